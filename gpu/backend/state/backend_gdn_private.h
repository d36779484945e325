/* backend_gdn_private.h - the inside of the state backend; for its two files.
 *
 * All index arrays are device memory, filled by launches on the node's stream, so that a later
 * forward's fill runs after everything that an earlier forward reads.  Host descriptors that
 * launches read at execution lie in a ring. */
#ifndef BACKEND_GDN_PRIVATE_H
#define BACKEND_GDN_PRIVATE_H

#include "backend_gdn.h"
#include "kern_conv.h"
#include "kern_gdn.h"
#include "kern_state.h"

/* The ring of descriptors.  A step in flight, an idle one too, holds two at most: of its extends
 * and of its decodes.  Builds for captures have no live request, so nothing reads theirs, and no
 * step is in flight then.  What is over that sum is to spare. */
enum {
    GDN_TABLES_OF_STEP = 2,
    GDN_TABLES_SPARE = 32,
    GDN_TABLES_IN_FLIGHT_MAX =
        BACKEND_GDN_STEPS_IN_FLIGHT_MAX * GDN_TABLES_OF_STEP + GDN_TABLES_SPARE,
};

/* What a pool must agree with, once it is known. */
typedef struct {
    char group_id[64];
    uint32_t group;
    uint32_t granularity;
    uint32_t layer_count; /* recurrent layers */
} gdn_geometry_t;

/* One recurrent layer of the bound pool. */
typedef struct {
    uint32_t layer;
    kern_conv_cache_t windows;
    kern_gdn_cache_t states;
} gdn_layer_t;

/* Which blocks the requests of one forward read and write; [bs_max] each. */
typedef struct {
    int32_t *in_blocks;
    int32_t *out_blocks;
    int32_t *began_lens; /* tokens before this forward */
    int32_t *seeds;      /* row of the verify scratch; -1 = padded */
} gdn_index_t;

/* What a captured graph of one bs reaches. */
typedef struct {
    gdn_index_t index;
    uint32_t bs; /* 0 = not built yet */
} gdn_decode_view_t;

typedef struct {
    const kern_state_group_t *table;        /* of the extends */
    const kern_state_group_t *decode_table; /* of the decodes behind them */
    const int32_t *cu_rows;                 /* [num_extends + 1], lent for the forward */
    uint32_t bs;
    uint32_t num_extends;
    uint32_t extend_tokens;
    uint32_t program_count; /* of the convolution: CausalConv1dPrefillMetadata */
} gdn_prefill_metadata_t;

/* Room of one layer in the verify workspace: states after every row, or the rows themselves. */
typedef struct {
    float *windows; /* [bs_max * (N + 1)][taps - 1][channels] */
    float *states;  /* [bs_max * (N + 1)][v_heads][k_dim][v_dim] */
    float *inputs;  /* [bs_max * N][channels], before the convolution */
    float *mixed;   /* [bs_max * N][channels], after it */
    float *a;       /* [bs_max * N][v_heads] */
    float *b;
    const float *rate; /* the layer's weights, for running the rows again */
    const float *dt_bias;
} gdn_verify_layer_t;

typedef struct {
    backend_t base; /* first */
    backend_gdn_options_t options;
    gdn_geometry_t geometry;  /* layer_count 0 before the first bind */
    uint32_t *state_of_layer; /* [pool layers]: index in `layers`, or UINT32_MAX */
    gdn_layer_t *layers;      /* [geometry.layer_count] */

    /* Pool-independent: kept over a rebind. */
    int32_t *memory;            /* one allocation for the arrays below */
    gdn_index_t decode;         /* decode slot */
    gdn_index_t prefill;        /* prefill slot: extends, then the decodes of a mixed forward */
    int32_t *resumed;           /* [bs_max] history flags of the extends */
    int32_t *requests;          /* [programs] conv program -> request */
    int32_t *chunks;            /* [programs] conv program -> chunk of its rows */
    int32_t *accepted;          /* [bs_max] */
    int32_t *pages;             /* [bs_max] where accepted states go */
    int32_t *from_rows;         /* [layers][bs_max] */
    int32_t *to_rows;           /* [layers][bs_max] */
    uint32_t *layer_groups;     /* pinned, [layers]: zeros, there is one group */
    kern_state_group_t *tables; /* pinned ring */
    uint32_t table_count;       /* taken since the start */
    gdn_decode_view_t *decode_views_by_bs; /* [bs_max + 1] */

    /* Pool-derived: dropped by a publish. */
    kern_state_field_t *stage_fields;       /* pinned, [layers] */
    kern_state_copy_field_t *seed_fields;   /* pinned, [2 * layers]: blocks to scratch */
    kern_state_copy_field_t *commit_fields; /* pinned, [2 * layers]: scratch to blocks */
    void *verify_memory;
    size_t verify_bytes;
    gdn_verify_layer_t *verify_layers; /* [layers]; NULL = no workspace */
    const gdn_decode_view_t *forward_decode_metadata;
    const kern_state_group_t *decode_table;
    gdn_prefill_metadata_t forward_prefill_metadata;
} gdn_t;

static inline uint32_t
gdn_channels(const backend_gdn_options_t *options)
{
    return 2 * options->k_heads * options->k_dim + options->v_heads * options->v_dim;
}

static inline size_t
gdn_window_floats(const backend_gdn_options_t *options)
{
    return (size_t)(options->conv_width - 1) * gdn_channels(options);
}

static inline size_t
gdn_state_floats(const backend_gdn_options_t *options)
{
    return (size_t)options->v_heads * options->k_dim * options->v_dim;
}

/* The vtable's metadata, forward and commit. */
proto_status_t backend_gdn_init_forward(backend_t *base, const backend_extend_t *extend);
proto_status_t backend_gdn_refresh(backend_t *base, const backend_refresh_t *refresh);
void backend_gdn_forward(backend_t *base, const backend_recurrent_t *forward);
void backend_gdn_commit(backend_t *base, const int32_t *accept_lengths, uint32_t bs,
                        uint32_t num_extends);

#endif
