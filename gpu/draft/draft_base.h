/* draft_base.h - the interface of a drafter: who proposes the candidates that the target's next
 * decode step verifies.
 *
 * A drafter is given what one forward of the target computed (a round) and answers width - 1
 * candidates for each request that will decode next.  Whether the round lies in the executor's own
 * memory or in a ring slot that two processes map makes no difference to it: all it gets are views.
 * It owns its weights, its backend tree, its graphs and its outputs; it borrows device, stream,
 * cache pool and the target's embedding and head.  It never sees a plan, a request or a message,
 * never changes what it was lent, and a wrong proposal costs time, not tokens: nothing of it counts
 * that the target did not verify.
 *
 * Two kinds.  A device drafter launches on its stream and answers in device memory.  A host drafter
 * (`is_host`: n-gram) computes before the call returns, reads its round as host memory, and needs
 * no device.  State of a drafter is keyed by slot and begins with draft_begin().
 *
 * Order of calls: new (kind by kind) -> draft_set_cache_pool -> draft_init_graph_state ->
 * draft_capture -> {draft_begin, draft_propose} ... -> destroy.  One thread: the device thread. */
#ifndef DRAFT_BASE_H
#define DRAFT_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend_base.h"
#include "proto_status.h"

typedef struct draft draft_t;

enum {
    DRAFT_TAP_COUNT_MAX = 8,
    DRAFT_WIDTH_MAX = 16, /* N: RUN_WIDTH_MAX of run_executor.h */
    DRAFT_NAME_SIZE_BYTES = 32,
};

/* A tap in place of a layer: the hidden behind the target's final norm. */
#define DRAFT_TAP_FINAL UINT32_MAX

/* What a drafter is and wants; fixed when it is made. */
typedef struct {
    char kind[DRAFT_NAME_SIZE_BYTES]; /* "ngram", "eagle3", "mtp", "dflash", "dspark" */
    bool is_host;
    uint32_t width;      /* N: the last verified token and N - 1 candidates; at least 2 */
    uint32_t vocabulary; /* of the target: candidates lie below it */

    /* Hidden rows that it reads.  Tap L is the residual stream after layer L of the target (zero
     * based, layer L completed).  They are concatenated in this order: [rows][tap_count *
     * hidden_size] float32.  0 taps: tokens and accepted lengths are enough. */
    uint32_t tap_count;
    uint32_t tap_layers[DRAFT_TAP_COUNT_MAX]; /* ascending; or one DRAFT_TAP_FINAL */
    uint32_t hidden_size;                     /* of one tap */

    /* Cache fields that it adds to the one merged plan: layers behind the target's last, in the
     * group that keeps every token, over that group's own block ids.  0 layers: none. */
    uint32_t cache_layers;
    uint32_t cache_kv_heads;
    uint32_t cache_head_dim;
    uint32_t cache_lookahead; /* tokens behind a step's window that its tables must cover, so that
                               * candidates can be computed; a table that does not costs acceptance
                               * alone: what lies beyond it resolves to the null page */
} draft_info_t;

/* What one forward of the target computed.  Rows: the extends' first, request by request, then N
 * rows for each decode request (width of the round).  Arrays are device memory, read when the
 * launches run (host drafters: host memory, read in the call), unless they end in _host; all must
 * stay until what draft_propose() launched has run.  Every field is set, there are no defaults. */
typedef struct {
    backend_mode_t mode;  /* DECODE, EXTEND or MIXED */
    uint32_t bs;          /* requests, extends and decodes */
    uint32_t num_extends; /* the first ones */
    uint32_t rows;        /* of the forward */
    uint32_t width;       /* rows of a decode request: 1, or the drafter's N */

    const uint32_t *slots_host;             /* [bs] pool slots, from 1 */
    const int32_t *extend_prefix_lens_host; /* [num_extends] tokens before the chunk */
    const int32_t *extend_seq_lens_host;    /* [num_extends] tokens of the chunk */
    const uint8_t *extend_samples_host;     /* [num_extends] 1: it completed its prompt */

    const int32_t *slots;              /* [bs] */
    const int32_t *extend_prefix_lens; /* [num_extends] */
    const int32_t *extend_seq_lens;    /* [num_extends] */
    const int32_t *extend_cu_lens;     /* [num_extends + 1] running sums */
    /* [num_extends] the token behind the chunk: the prompt's next one, or -1 = the one that was
     * sampled now, if it was; a drafter that shifts its ids by one needs it. */
    const int32_t *extend_next_ids;
    /* [num_extends] row of `tokens` of an extend that sampled; -1 = none. */
    const int32_t *extend_token_rows;

    const int32_t *input_ids; /* [rows] as the target read them; -1 = a candidate that was none */
    const int32_t *positions; /* [rows] */
    const int32_t *seq_lens;  /* [bs] tokens in the cache with this forward's rows: for a decode
                               * request width more than before it */
    const int32_t *tokens;    /* [sampled extends + decodes * width] what was drawn; behind the
                               * accepted ones of a decode request -1 */
    const int32_t *accept_lengths; /* [decodes] rows that count, 1..width */
    const float *hidden;           /* [rows][hidden_stride] taps; NULL only without taps */
    size_t hidden_stride;          /* floats */
    bool is_projected; /* draft_prepare_target_forward()'s sink was attached to this forward */

    const backend_tables_t *tables; /* of the batch, over the drafter's own block ids */
} draft_round_t;

/* The answers of a round, valid until the next one: device memory (host drafters: host memory) of
 * one address for the drafter's whole life. */
typedef struct {
    const int32_t *candidates; /* [bs][width - 1]: -1 = none, and then none behind it either.  Of an
                                * extend that sampled nothing all are -1 */
    uint32_t count;            /* width - 1 */
} draft_proposal_t;

typedef struct {
    void (*destroy)(draft_t *self);
    /* These four may be NULL: nothing to do. */
    proto_status_t (*set_cache_pool)(draft_t *self, const cache_pool_t *pool);
    proto_status_t (*init_graph_state)(draft_t *self);
    proto_status_t (*capture)(draft_t *self);
    void (*begin)(draft_t *self, uint32_t slot, const int32_t *tokens, uint32_t token_count);
    proto_status_t (*propose)(draft_t *self, const draft_round_t *round, draft_proposal_t *out);
    /* NULL = it wants nothing done during a target's forward. */
    const struct model_capture_sink *(*prepare_target_forward)(draft_t *self, backend_mode_t mode,
                                                               uint32_t width);
} draft_vtable_t;

/* First member of every drafter. */
struct draft {
    const draft_vtable_t *vtable;
    draft_info_t info;
    const backend_t *backend; /* its tree, for what it declares; NULL = none */
    struct file_model *file;  /* the weights' mapping, owned; NULL = none */
    uint32_t slot_count;      /* slots are 1..slot_count */
    uint32_t bs_max;          /* requests of a round */
    uint32_t rows_max;        /* rows of a round */
};

/* Takes the mapping that the drafter's weights lie in; closed after its destroy. */
void draft_keep_file(draft_t *self, struct file_model **file_p);

/* Destroys the drafter and sets *self_p to NULL; does nothing if it is NULL already. */
void draft_destroy(draft_t **self_p);

const draft_info_t *draft_info(const draft_t *self);

/* The drafter's own layers as a pool of the merged plan; its layer 0 is the pool's.  May run again
 * with another pool of the same geometry, and then init_graph_state and capture are due again.
 * STATUS_ERR_INVALID: another geometry. */
MUST_CHECK proto_status_t draft_set_cache_pool(draft_t *self, const cache_pool_t *pool);
/* Persistent buffers, sized by bs_max. */
MUST_CHECK proto_status_t draft_init_graph_state(draft_t *self);
/* Captures its graphs, if it has any; without this call every round runs eagerly, with the same
 * bits.  Drops earlier ones. */
MUST_CHECK proto_status_t draft_capture(draft_t *self);

/* A request takes a slot: what an earlier one left there is forgotten.  `tokens` are those known so
 * far (prompt, and what a request that was retracted or moved had generated).  Cannot fail. */
void draft_begin(draft_t *self, uint32_t slot, const int32_t *tokens, uint32_t token_count);

/* What the drafter wants done during target forwards of this mode and width, in the same process
 * and on the same stream: a sink for the context (model_capture.h), or NULL.  The drafter decides
 * under the one gate by which draft_propose() takes a round that is_projected.  Before
 * draft_capture(). */
const struct model_capture_sink *draft_prepare_target_forward(draft_t *self, backend_mode_t mode,
                                                              uint32_t width);

/* Takes a round, in the order of the target's forwards and each one once, and answers candidates.
 * A round that is left out costs acceptance of its requests, never tokens.  STATUS_ERR_INVALID: the
 * round is not one of this drafter's (sizes, width, tables), nothing was launched. */
MUST_CHECK proto_status_t draft_propose(draft_t *self, const draft_round_t *round,
                                        draft_proposal_t *out);

#endif
