/* router_stacks.h - the router's persistent storage: kernel-page tables and write locations, one
 * slice for each consumed group.  Allocated once, refilled in place; the tables are
 * [group][bs_max][page_columns], the decode locations [group][bs_max * width], the extend locations
 * [group][step_tokens_max].  The device thread. */
#ifndef ROUTER_STACKS_H
#define ROUTER_STACKS_H

#include "backend_base.h"

/* What the stacks know of a group. */
typedef struct {
    uint32_t group;        /* of the plan */
    uint32_t block_count;  /* ids are below it */
    uint32_t ratio;        /* kernel pages in a block */
    uint32_t stride;       /* kernel pages from block to block */
    uint32_t page_size;    /* tokens of a kernel page */
    uint32_t page_columns; /* kernel pages of a request */
} router_stack_group_t;

typedef struct {
    backend_options_t options;
    router_stack_group_t groups[CACHE_GROUP_COUNT_MAX];
    uint32_t group_count;
    uint32_t page_columns;     /* of the widest group */
    int32_t *tables;           /* device */
    int32_t *decode_locations; /* device */
    int32_t *extend_locations; /* device */
    int32_t *window_ends;      /* device, [bs_max]: scratch of router_stacks_window() */
} router_stacks_t;

/* Allocates for the groups set in self.  STATUS_ERR_NO_MEMORY. */
MUST_CHECK proto_status_t router_stacks_init(router_stacks_t *self);
void router_stacks_fini(router_stacks_t *self);

/* The table slice of the index-th group: [bs_max][page_columns]. */
int32_t *router_stacks_table(const router_stacks_t *self, uint32_t index);
int32_t *router_stacks_decode_locations(const router_stacks_t *self, uint32_t index);
int32_t *router_stacks_extend_locations(const router_stacks_t *self, uint32_t index);

/* Expands every group's blocks to kernel pages; pads, holes and tails become the null page. */
void router_stacks_fill(router_stacks_t *self, const backend_tables_t *tables, uint32_t bs,
                        uint32_t actual_bs);

/* Write slots of the `width` newest positions of each request. */
void router_stacks_decode(router_stacks_t *self, const int32_t *seq_lens, uint32_t bs,
                          uint32_t actual_bs);

/* Of the index-th group: slots of positions start[b] .. + n - 1 into out[bs * n]. */
void router_stacks_window(router_stacks_t *self, uint32_t index, const int32_t *start, uint32_t n,
                          uint32_t bs, int32_t *out);

/* Write slots of the extends' rows, then of the decode requests that follow them. */
void router_stacks_extend(router_stacks_t *self, const backend_extend_t *extend,
                          uint32_t extend_tokens);

#endif
