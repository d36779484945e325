/* backend_base.h - the runner-facing contract of every node of the attention backend tree.
 *
 * A node owns its persistent metadata buffers and its children.  It never sees a request, a
 * scheduler or a host copy of a table beyond the structs below.  The device thread calls it.
 *
 * - backend_refresh_decode_metadata() is the ONLY way decode metadata is prepared: capture is the
 *   idle refresh (actual_bs 0, for_graph_replay), replay is a refresh plus the graph, eager decode
 *   is a refresh plus the same forward.
 * - backend_init_forward_metadata() serves EXTEND, MIXED and idle warm-up; pure DECODE is refused.
 * - Init writes prefill-slot metadata, refresh writes decode-slot metadata; a forward reads the
 *   slot of its mode.
 * - Requests in [actual_bs, bs) are padding and resolve to the null page 0.
 * - What the decode slot reaches has a stable address for each bs, from one builder.
 * - backend_write_locations() is the only accessor of write slots.
 *
 * Long because the whole contract of a node, attention and recurrent, stands in one place. */
#ifndef BACKEND_BASE_H
#define BACKEND_BASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend_support.h"
#include "cache_pool.h"
#include "device_ops.h"
#include "proto_status.h"

typedef struct backend backend_t;

typedef enum {
    BACKEND_MODE_DECODE = 0, /* every request computes `width` tokens */
    BACKEND_MODE_EXTEND = 1, /* every request computes a run of prompt tokens */
    BACKEND_MODE_MIXED = 2,  /* extends first, then decodes */
    BACKEND_MODE_IDLE = 3,   /* nothing live: warm-up */
} backend_mode_t;

/* The block table of one cache group for a batch, in device memory; scheduler's vocabulary. */
typedef struct {
    const int32_t *blocks; /* [bs][stride]; NULL = not delivered */
    uint32_t stride;
    uint32_t columns; /* filled columns of each row */
} backend_table_t;

/* The tables of a batch, complete on every path: live, placeholder, idle. */
typedef struct {
    backend_table_t groups[CACHE_GROUP_COUNT_MAX]; /* index = group of the plan */
    uint32_t group_count;
} backend_tables_t;

/* Inputs of the decode refresh; every field is set at one place, there are no defaults. */
typedef struct {
    uint32_t bs;                  /* requests prepared, padding included */
    uint32_t actual_bs;           /* live ones; 0 = idle */
    const int32_t *request_slots; /* [bs] device: pool slots */
    const int32_t *seq_lens;      /* [bs] device */
    backend_mode_t mode;          /* DECODE */
    const backend_tables_t *tables;
    uint32_t num_extends;  /* 0 unless a mixed round refreshes a draft */
    bool for_graph_replay; /* a graph is in play: replay, or capture */
} backend_refresh_t;

/* Inputs of extend and mixed metadata.  The extend bundle is required: [num_extends] entries, never
 * NULL, also when there are none. */
typedef struct {
    uint32_t bs;
    uint32_t num_extends;
    const int32_t *request_slots; /* [bs] device */
    const int32_t *seq_lens;      /* [bs] device */
    backend_mode_t mode;          /* EXTEND, MIXED or IDLE */
    const backend_tables_t *tables;
    const int32_t *extend_seq_lens;      /* device: tokens to compute */
    const int32_t *extend_prefix_lens;   /* device: tokens before them */
    const int32_t *extend_cu_lens;       /* device, [num_extends + 1]: running sums */
    const int32_t *extend_seq_lens_host; /* the same on the host */
    const int32_t *extend_prefix_lens_host;
    const int32_t *extend_replay_lens_host; /* leading rows that re-feed cached positions */
    const int32_t *extend_prompt_lens_host; /* the whole prompt's length; 0 = not known */
    bool extend_with_prefix;                /* some prefix is not 0 */
} backend_extend_t;

/* One attention layer of a forward. */
typedef struct {
    uint32_t layer;
    backend_mode_t mode;
    const float *q; /* [rows][q_stride]; rotated already, keys and values written already */
    size_t q_stride;
    uint32_t rows;
    float *output; /* [rows][output_stride] */
    size_t output_stride;
    kern_form_t output_form;
    uint32_t output_rows; /* of the whole output, 0 = `rows`; only OPERAND needs it */
    float scale;
    const float *sinks; /* [q_heads] device, kern_attention.h; NULL = none */
    /* Of a narrowed stage (model_narrowing.h): its rows are the last ones of each extend, and every
     * decode row.  NULL = all rows of the forward. */
    const int32_t *suffix_cu_lens; /* [num_extends + 1] device: running sums of the extends' */
    uint32_t suffix_extend_rows;   /* of the extends */
} backend_forward_t;

/* One recurrent layer of a forward: its rows after the projections, before the convolution.  Which
 * states the rows go on from, and where the new ones go, is the node's metadata.  Rows of padded
 * requests give zeros. */
typedef struct {
    uint32_t layer;
    backend_mode_t mode;
    uint32_t rows;
    const float *qkv; /* [rows][qkv_stride]: queries, keys, values, head by head */
    size_t qkv_stride;
    float *mixed; /* [rows][mixed_stride] scratch: the same after the convolution */
    size_t mixed_stride;
    const float *a; /* [rows][a_stride]: a value for each value head, kern_gdn.h */
    size_t a_stride;
    const float *b;
    size_t b_stride;
    const float *conv_weight; /* [taps][channels] */
    const float *rate;        /* [value heads] */
    const float *dt_bias;     /* [value heads] */
    float *output;            /* [rows][output_stride]: value heads one after the other */
    size_t output_stride;
} backend_recurrent_t;

enum { BACKEND_PATH_SIZE_BYTES = 96 };

/* Reports one address that the decode slot of `bs` reaches; `path` lives for the call. */
typedef void (*backend_visit_fn)(void *context, const char *path, const void *address,
                                 size_t size_bytes);

typedef struct {
    void (*destroy)(backend_t *self);
    proto_status_t (*validate_cache_pool)(const backend_t *self, const cache_pool_t *pool);
    proto_status_t (*publish_cache_pool)(backend_t *self, const cache_pool_t *pool);
    proto_status_t (*init_cuda_graph_state)(backend_t *self);
    proto_status_t (*init_forward_metadata)(backend_t *self, const backend_extend_t *extend);
    proto_status_t (*refresh_decode_metadata)(backend_t *self, const backend_refresh_t *refresh);
    /* NULL = inherited: the idle refresh.  An override names its kernel's asymmetry. */
    proto_status_t (*capture_forward_metadata)(backend_t *self, const backend_refresh_t *refresh);
    void (*forward)(backend_t *self, const backend_forward_t *forward);
    const int32_t *(*write_locations)(const backend_t *self, uint32_t layer, backend_mode_t mode);
    void (*visit_decode_slot)(const backend_t *self, uint32_t bs, backend_visit_fn visit,
                              void *context);
    /* NULL = no recurrent layers. */
    void (*forward_recurrent)(backend_t *self, const backend_recurrent_t *forward);
    /* NULL = inherited: no verify workspace, nothing to commit. */
    proto_status_t (*preallocate_verify_workspace)(backend_t *self, size_t *size_bytes_p);
    void (*commit_speculative_state)(backend_t *self, const int32_t *accept_lengths, uint32_t bs,
                                     uint32_t num_extends);
    /* The spans, besides cache slots, that a decode step of `bs` requests changes and a later step
     * or a reader can see, each cut to what belongs to the first `bs` requests; scratch that the
     * same forward fills and reads is none.  NULL = there are none. */
    void (*visit_step_spans)(const backend_t *self, uint32_t bs, backend_visit_fn visit,
                             void *context);
    const struct backend_draft_vtable *draft; /* backend_draft.h; NULL = no root of a draft tree */
} backend_vtable_t;

enum { BACKEND_CHILD_COUNT_MAX = 4 };

/* Sizes that every node is built for. */
typedef struct {
    device_t *device;        /* lent */
    device_stream_t *stream; /* lent: metadata and forward run on it */
    uint32_t bs_max;         /* max_decode_bs: requests of a batch */
    uint32_t width;          /* N, tokens a decode request computes; 1 without a drafter */
    uint32_t step_tokens_max;
    uint32_t model_len_max; /* longest sequence */
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t latent_dim;  /* of groups with CACHE_FIELD_LATENT; 0 = there are none */
    uint32_t rope_dim;    /* of their rows, behind the latent */
    bool is_draft;        /* a draft's tree: backend_draft.h.  Lengths have the floor 1, and decode
                           * forwards any rows from 1 to width for each request */
    uint32_t block_width; /* of a block drafter: rows that see each other; 0 = every row sees the
                           * keys up to itself.  At most width */
} backend_options_t;

/* First member of every node. */
struct backend {
    const backend_vtable_t *vtable;
    const char *name; /* for logs and the pointer guard */
    backend_support_t support;
    backend_t *children[BACKEND_CHILD_COUNT_MAX]; /* owned */
    uint32_t child_count;
    backend_options_t options;
    cache_pool_t pool; /* as published */
    bool is_bound;
    bool has_graph_state;   /* init_cuda_graph_state ran since the last publish */
    bool keeps_graph_state; /* its buffers do not come from the pool: a publish leaves them */
    /* Of the root alone, while a step is launched whose cache somebody carries away as it is
     * written: gets the number of layers that are done.  NULL = nobody does. */
    _Atomic uint32_t *layers_ready;
};

/* Destroys the children, then the node. */
void backend_destroy(backend_t **self_p);

/* Validates the whole subtree, then publishes children first: a rejected pool moves nothing.  May
 * run again with another pool of the same geometry; everything derived from the old one is dropped
 * and backend_init_cuda_graph_state() is due again.  STATUS_ERR_INVALID: another geometry. */
MUST_CHECK proto_status_t backend_set_cache_pool(backend_t *self, const cache_pool_t *pool);

/* The first half alone: whether the whole subtree would take the pool.  Moves nothing. */
MUST_CHECK proto_status_t backend_validate_cache_pool(const backend_t *self,
                                                      const cache_pool_t *pool);

/* Allocates the persistent decode buffers of the subtree, sized by bs_max; always, whether or not
 * graphs are captured.  A second call drops the first one's buffers. */
MUST_CHECK proto_status_t backend_init_cuda_graph_state(backend_t *self);

/* STATUS_ERR_INVALID: pure decode, an incomplete bundle, a missing group table, a non-zero replay.
 */
MUST_CHECK proto_status_t backend_init_forward_metadata(backend_t *self,
                                                        const backend_extend_t *extend);

/* STATUS_ERR_INVALID: a live batch without the table of a consumed group. */
MUST_CHECK proto_status_t backend_refresh_decode_metadata(backend_t *self,
                                                          const backend_refresh_t *refresh);

/* Before a capture: the idle refresh over placeholder tables, unless a node overrides it. */
MUST_CHECK proto_status_t backend_capture_forward_metadata(backend_t *self, uint32_t bs,
                                                           const int32_t *request_slots,
                                                           const int32_t *seq_lens,
                                                           const backend_tables_t *placeholder);

/* The capture hook of a child, for composites that only fan out. */
MUST_CHECK proto_status_t backend_capture_child(backend_t *child, const backend_refresh_t *refresh);

/* Attention of one layer over what the cache holds. */
void backend_forward(backend_t *self, const backend_forward_t *forward);

/* Once at the end of a step whose layers are followed: everything is written, a drafter's cache
 * too. The layers themselves are recorded inside the attention break, behind the layer's cache
 * write on the same stream, so an eager forward and a replayed prefill graph tell the same. */
void backend_record_pd_cache_step(backend_t *self);

/* Convolution and state update of one recurrent layer. */
void backend_forward_recurrent(backend_t *self, const backend_recurrent_t *forward);

/* What verification of width N needs beside the cache, once for each node that keeps state; nothing
 * at width 1.  After backend_init_cuda_graph_state() and before the first forward or capture.  Adds
 * the bytes that were allocated to *size_bytes_p. */
MUST_CHECK proto_status_t backend_preallocate_verify_workspace(backend_t *self,
                                                               size_t *size_bytes_p);

/* Once after the verification of a decode or mixed forward of width N > 1, replayed or eager:
 * `bs` live decode requests, which follow `num_extends` extends in the forward's arrays, accepted
 * accept_lengths[bs] (device memory) of their N rows.  Nodes that keep state make that the
 * requests' state; the others inherit a no-op.  Launches only. */
void backend_commit_speculative_state_after_verify(backend_t *self, const int32_t *accept_lengths,
                                                   uint32_t bs, uint32_t num_extends);

/* Write slots of the rows of this forward, in device memory: EXTEND the span, DECODE the window,
 * MIXED the span and then the window. */
const int32_t *backend_write_locations(const backend_t *self, uint32_t layer, backend_mode_t mode);

/* Every address that decode metadata of `bs` reaches, with a path that names it; below a child the
 * path begins with the child's index and name. */
void backend_visit_decode_slot(const backend_t *self, uint32_t bs, backend_visit_fn visit,
                               void *context);

/* What a decode step of `bs` requests changes in the subtree besides cache slots; after a refresh
 * of at least `bs` requests. */
void backend_visit_step_spans(const backend_t *self, uint32_t bs, backend_visit_fn visit,
                              void *context);

/* A visitor that puts "prefix/" before each path: for nodes that report for parts of theirs. */
typedef struct {
    char prefix[40];
    backend_visit_fn visit;
    void *context;
} backend_visit_scope_t;
void backend_visit_in_scope(void *scope, const char *path, const void *address, size_t size_bytes);

/* For nodes that write every extend row: a replayed row would rewrite a shared page. */
MUST_CHECK proto_status_t backend_reject_bounded_replay(const backend_extend_t *extend);

#endif
