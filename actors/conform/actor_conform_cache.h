/* actor_conform_cache.h - the cache of the executor that the tool plays: block tables and, for each
 * position of each block, what was computed there.
 *
 * A position holds the chain value of the book for the tokens up to it, so that a block that was
 * given away too early, shared with other tokens or never computed is seen when a row reads it.
 * The first position of a state group's block holds the same of the tokens that its state is after.
 * Applies plans that the executor's own checks have passed.  One thread. */
#ifndef ACTOR_CONFORM_CACHE_H
#define ACTOR_CONFORM_CACHE_H

#include "actor_conform_book.h"

enum {
    CONFORM_GROUPS_MAX = 3,
    CONFORM_SLOTS_MAX = 16,
    CONFORM_COLUMNS_MAX = 64,
    CONFORM_EMPTY = 0, /* a position that holds nothing */
    CONFORM_SPOILT = 1 /* a position that holds a NaN */
};

typedef struct {
    uint32_t kind; /* 0 full, 1 sliding, 2 state */
    uint32_t granularity;
    uint32_t window;
    uint32_t block_count;               /* ids 1..block_count-1 */
    uint64_t *content;                  /* [block_count][granularity] */
    const conform_request_t **spoilers; /* [block_count] whose NaN is in the block */
} conform_group_t;

/* A request in its slot, as this device knows it. */
typedef struct {
    conform_request_t *request; /* NULL: empty */
    uint32_t known;             /* tokens, those of rows in flight included */
} conform_row_t;

typedef struct {
    conform_report_t *report;
    uint32_t slot_count;
    uint32_t group_count;
    uint32_t page_tokens;
    conform_group_t groups[CONFORM_GROUPS_MAX];
    uint32_t tables[CONFORM_SLOTS_MAX + 1][CONFORM_GROUPS_MAX][CONFORM_COLUMNS_MAX];
    conform_row_t rows[CONFORM_SLOTS_MAX + 1];
} conform_cache_t;

/* Makes an empty cache for an executor of these figures. */
MUST_CHECK proto_status_t actor_conform_cache_init(conform_cache_t *self,
                                                   const proto_executor_info_t *info,
                                                   conform_report_t *report);
void actor_conform_cache_fini(conform_cache_t *self);
/* Empties everything: a reset. */
void actor_conform_cache_clear(conform_cache_t *self);

/* Releases, patches and clears of a plan; checks who shares a block with whom. */
void actor_conform_cache_patch(conform_cache_t *self, const proto_plan_t *plan,
                               const conform_where_t *where);
/* A row computes positions [begin, end) of a slot: checks what it reads, then writes. */
void actor_conform_cache_row(conform_cache_t *self, uint32_t slot, uint32_t begin, uint32_t end,
                             bool is_nan, const conform_where_t *where);

#endif
