/* router_draft.h - the router's part of the draft contract.  Internal to paged/. */
#ifndef ROUTER_DRAFT_H
#define ROUTER_DRAFT_H

#include "backend_draft.h"
#include "backend_leaf.h"
#include "router_stacks.h"

/* What of a router a draft's calls need. */
typedef struct {
    backend_leaf_t *const *leaves; /* [leaf_count] by consumed group */
    uint32_t leaf_count;
    router_stacks_t *stacks;
} router_draft_view_t;

/* Of router_cache_group.c. */
router_draft_view_t router_draft_view(const backend_t *base);

extern const backend_draft_vtable_t router_draft_vtable;

#endif
