/* actor_executor_null.h - a device without a model, for benches and tests only.
 *
 * A token is a hash of all tokens before it, so that answers are deterministic, differ between
 * prompts, and do not depend on batching, chunking, overlap or retraction.  With a decode width
 * above 1 a row gives 1..width of them, as many as a hash of the sequence says, no more behind a
 * stop id.  Stop ids of the sampling parameters are honoured; everything else in them is ignored.
 * Same calls as run_executor.h, same thread rules. */
#ifndef ACTOR_EXECUTOR_NULL_H
#define ACTOR_EXECUTOR_NULL_H

#include <stdbool.h>

#include "proto_codec.h"
#include "proto_status.h"

typedef struct actor_executor_null actor_executor_null_t;

/* A zero means the value in the comment. */
typedef struct {
    uint32_t slot_count;          /* 32 */
    uint32_t model_len_max;       /* 8192 */
    uint32_t step_tokens_max;     /* 512 */
    uint32_t block_granularity;   /* 64 */
    uint32_t parent_count;        /* enough for every slot at model_len_max, and the null parent */
    uint32_t vocab_size;          /* 49152 */
    uint32_t decode_width;        /* 1 */
    bool no_overlap;              /* no plan may wait behind the running one */
    uint64_t step_ns;             /* how long a step takes; 0 = it is done at once */
    const uint8_t *page_hash_key; /* PROTO_HASH_SIZE_BYTES; zeros */
    bool is_inline;               /* no device thread: the shell's own runs it; step_ns must be 0 */
} actor_executor_null_options_t;

/* STATUS_ERR_CONFIG if a value is out of range.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_executor_null_new(const actor_executor_null_options_t *options,
                                                  actor_executor_null_t **out_p);
void actor_executor_null_destroy(actor_executor_null_t **self_p);
void actor_executor_null_info(const actor_executor_null_t *self, proto_executor_info_t *out);
MUST_CHECK proto_status_t actor_executor_null_slot_setup(actor_executor_null_t *self,
                                                         const proto_slot_setup_t *setup);
MUST_CHECK proto_status_t actor_executor_null_launch(actor_executor_null_t *self,
                                                     const proto_step_launch_t *launch);
/* STATUS_AGAIN while step_ns has not passed: actor_executor_null_wait_ns() says how long. */
MUST_CHECK proto_status_t actor_executor_null_collect(actor_executor_null_t *self,
                                                      proto_step_done_t *out);
MUST_CHECK proto_status_t actor_executor_null_reset(actor_executor_null_t *self);
/* Until the oldest step in flight ends; UINT64_MAX if none is. */
uint64_t actor_executor_null_wait_ns(const actor_executor_null_t *self);

/* The token at position `token_count` of a request that holds `tokens`: what tests expect. */
int32_t actor_executor_null_token(const int32_t *tokens, uint32_t token_count, uint32_t vocab_size);

#endif
