/* run_memory.h - how many parent blocks the cache gets: a written sum.  Pure, except for the look
 * at the system's free memory. */
#ifndef RUN_MEMORY_H
#define RUN_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "cache_plan.h"
#include "proto_status.h"

typedef struct {
    uint64_t cache_size_bytes; /* asked for; 0 = choose */
    uint64_t available_bytes;  /* of the machine, before anything below is touched */
    uint64_t fixed_bytes;      /* weights, workspaces, buffers: not the cache's */
    uint32_t slot_count;
    uint32_t model_len_max;
    uint32_t width;
    uint32_t step_tokens_max; /* what a sliding group holds beyond its window while it prefills */
} run_memory_request_t;

typedef struct {
    uint32_t parent_count; /* the null parent not counted */
    uint32_t wanted_count; /* every slot at model_len_max */
    uint64_t parent_bytes;
    uint64_t budget_bytes; /* what the cache may take */
    uint64_t token_capacity;
} run_memory_answer_t;

/* min(what every slot needs at full length, what the budget pays for).  STATUS_ERR_NO_MEMORY if not
 * even one block of each group fits. */
MUST_CHECK proto_status_t run_memory_solve(const cache_plan_t *plan,
                                           const run_memory_request_t *request,
                                           run_memory_answer_t *out);

/* The sum as a sentence for the start log. */
void run_memory_describe(const run_memory_request_t *request, const run_memory_answer_t *answer,
                         char *out, size_t out_size_bytes);

/* Memory that new allocations may take, as the system says; a guess if it says nothing. */
uint64_t run_memory_available_bytes(void);
/* What the machine or the container has in all, whoever uses it now. */
uint64_t run_memory_total_bytes(void);

#endif
