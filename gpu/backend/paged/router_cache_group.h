/* router_cache_group.h - the CacheGroupRouter: the one place where the scheduler's block tables
 * become kernel pages and write slots.  A backend node; a model with one cache group is a router
 * with one leaf.
 *
 * It consumes every full and sliding group of the pool by claim; other groups' tables ride through
 * untouched.  Its leaves exist from the first bind on. */
#ifndef ROUTER_CACHE_GROUP_H
#define ROUTER_CACHE_GROUP_H

#include "backend_leaf.h"

typedef struct {
    backend_options_t backend;
    uint32_t page_size; /* kernel page of the leaves, tokens; 0 = min(granularity, 64) */
} router_cache_group_options_t;

/* The caller owns *out_p and binds it with backend_set_cache_pool(). */
MUST_CHECK proto_status_t router_cache_group_new(const router_cache_group_options_t *options,
                                                 backend_t **out_p);

/* What the router publishes for a group after a refresh, for tests and for consumers of the same
 * group: device memory, [bs_max][*stride] kernel pages. */
const int32_t *router_cache_group_table(const backend_t *self, uint32_t group, size_t *stride,
                                        uint32_t *page_size);

#endif
