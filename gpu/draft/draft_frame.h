/* draft_frame.h - what drafters with weights share: a model of their own with its backend tree,
 * persistent inputs and outputs, a workspace, graphs for each batch size.
 *
 * Internal to gpu/draft.  Everything is allocated before the first round.  The device thread. */
#ifndef DRAFT_FRAME_H
#define DRAFT_FRAME_H

#include "device_ops.h"
#include "draft_open.h"
#include "model_base.h"

/* Persistent device arrays of a round. */
typedef struct {
    int32_t *ids;            /* [rows_max] */
    int32_t *positions;      /* [rows_max] */
    int32_t *slots;          /* [bs_max] */
    int32_t *lens;           /* [bs_max] lengths of the round */
    int32_t *live_rows;      /* [bs_max] */
    int32_t *live_positions; /* [bs_max] */
    int32_t *frontier;       /* [bs_max] */
    int32_t *next;           /* [bs_max] what the next step reads */
    int32_t *has_next;       /* [bs_max] */
    int32_t *step_lens;      /* [bs_max] */
    int32_t *step_positions; /* [bs_max] */
    int32_t *candidates;     /* [bs_max][width - 1] */
    float *hidden;           /* [rows_max][hidden_cols] what the target captured */
    float *chained;          /* [bs_max][chained_cols] */
} draft_buffers_t;

typedef struct draft_frame draft_frame_t;

/* What a drafter is called and reads of the target. */
typedef struct {
    const char *kind;
    uint32_t taps; /* 0 = tokens are enough */
    const uint32_t *tap_layers;
    uint32_t tap_size;   /* hidden_size of the target */
    uint32_t vocabulary; /* of the target */
} draft_target_t;

/* Rows of one forward's workspace. */
typedef struct {
    void *memory;
    size_t size_bytes;
} draft_room_t;

typedef struct {
    uint32_t rows;       /* of the largest forward */
    uint32_t logit_rows; /* of the largest forward */
    uint32_t hidden_cols;
    uint32_t chained_cols;
    uint32_t block_width; /* of the tree */
    /* The launches of a decode round of `bs` requests of width N behind its refresh: recorded, or
     * run. */
    void (*decode_body)(void *owner, uint32_t bs, draft_room_t room);
    void *owner;
} draft_frame_shape_t;

typedef struct {
    uint32_t bs;
    device_graph_t *graph;
} draft_captured_t;

struct draft_frame {
    draft_options_t options; /* without what was lent for the call */
    draft_frame_shape_t shape;
    model_t *model;     /* owned */
    backend_t *backend; /* owned */
    cache_pool_t pool;
    bool is_bound;
    draft_buffers_t buffers;
    draft_room_t room; /* of eager forwards */
    uint32_t capture_sizes[DRAFT_CAPTURE_COUNT_MAX];
    draft_captured_t captured[DRAFT_CAPTURE_COUNT_MAX];
    uint32_t captured_count;
    bool is_armed; /* decode rounds that the graphs hold are projected ones */
    device_pool_t *graph_pool;
};

/* Takes the model on success only.  draft_frame_fini() is due in either case. */
MUST_CHECK proto_status_t draft_frame_init(draft_frame_t *self, const draft_options_t *options,
                                           const draft_frame_shape_t *shape, model_t **model_p);
void draft_frame_fini(draft_frame_t *self);

/* The common members of a drafter. */
void draft_frame_fill_base(const draft_frame_t *self, const draft_target_t *target, draft_t *out);

/* A drafter's set_cache_pool, init_graph_state and capture. */
MUST_CHECK proto_status_t draft_frame_set_cache_pool(draft_frame_t *self, const cache_pool_t *pool);
MUST_CHECK proto_status_t draft_frame_init_graph_state(draft_frame_t *self);
MUST_CHECK proto_status_t draft_frame_capture(draft_frame_t *self);

/* The first launches of every round: inputs into the persistent buffers.  *bs_p = the captured size
 * that the round will be replayed at, or its own; *is_graph_p says which. */
void draft_frame_begin(draft_frame_t *self, const draft_round_t *round, bool shifts, uint32_t *bs_p,
                       bool *is_graph_p);

/* The two steps of the contract: init for extends, then the refresh; extends and mixed rounds with
 * one token for each request. */
MUST_CHECK proto_status_t draft_frame_refresh(draft_frame_t *self, const draft_round_t *round,
                                              uint32_t bs, bool for_graph_replay);

/* Replays the graph of a size that draft_frame_begin() gave. */
MUST_CHECK proto_status_t draft_frame_replay(draft_frame_t *self, uint32_t bs);

/* to[b] = max(from[b] + add, 0) */
void draft_frame_lens(draft_frame_t *self, const int32_t *from, int32_t add, int32_t *to,
                      uint32_t bs);
/* The last launches: requests without a verified token get no candidates. */
void draft_frame_finish(draft_frame_t *self, uint32_t bs, draft_proposal_t *out);

/* A context of the frame's model and tree. */
model_context_t draft_frame_context(const draft_frame_t *self, backend_mode_t mode, uint32_t rows,
                                    draft_room_t room);

#endif
