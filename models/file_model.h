/* file_model.h - a checkpoint on disk, checked and mapped: a GGUF file, or a Hugging Face folder
 * (config.json, *.safetensors, optionally model.safetensors.index.json).
 *
 * It owns the read-only mappings and the table of tensors.  It must never run code from a file,
 * follow a path out of the folder, or trust a number in it: every byte here is hostile input.
 * Opening and closing belong to one thread; an open model does not change, so all const calls may
 * come from any thread.  A file that shrinks while it is mapped is outside what a reader can
 * survive: checkpoints are replaced by renaming, never by writing into them.
 * Long because a checkpoint is described in one place. */
#ifndef FILE_MODEL_H
#define FILE_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_status.h"

typedef struct file_model file_model_t; /* opaque */

enum {
    FILE_ERROR_SIZE_BYTES = 512, /* a buffer of this size holds every error text */
    FILE_NAME_SIZE_BYTES = 128,  /* the model's name with its terminating zero */
    FILE_STOP_ID_COUNT_MAX = 16, /* end-of-sequence and end-of-turn ids */
    FILE_DIGEST_SIZE_BYTES = 32, /* BLAKE2b-256 */
    FILE_LAYER_COUNT_MAX = 1024,
    FILE_VOCAB_SIZE_MAX = 1 << 20,
};

#define FILE_ID_NONE (-1) /* "the checkpoint names no such token" */

/* Architectures that can be run, by the name each kind of checkpoint uses. */
typedef enum {
    FILE_ARCH_LLAMA,       /* GGUF "llama", HF "LlamaForCausalLM" */
    FILE_ARCH_QWEN3,       /* GGUF "qwen3", HF "Qwen3ForCausalLM" */
    FILE_ARCH_GEMMA3,      /* GGUF "gemma3", HF "Gemma3ForCausalLM": text only */
    FILE_ARCH_GPT_OSS,     /* GGUF "gpt-oss", HF "GptOssForCausalLM" */
    FILE_ARCH_QWEN35,      /* HF "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration" and both as
                            * "Qwen3_5Moe...": text only */
    FILE_ARCH_DEEPSEEK_V3, /* HF "DeepseekV3ForCausalLM" */
} file_arch_t;

/* What a layer attends to. */
typedef enum {
    FILE_LAYER_FULL = 0,    /* every token before */
    FILE_LAYER_SLIDING = 1, /* the last sliding_window tokens, itself included */
    FILE_LAYER_LINEAR = 2,  /* a recurrent state (Gated DeltaNet) in place of keys and values */
} file_layer_kind_t;

typedef enum {
    FILE_ACTIVATION_SILU = 0,
    FILE_ACTIVATION_GELU_TANH = 1,
    FILE_ACTIVATION_SWIGLU_OAI = 2, /* of experts; with the config's alpha and limit */
} file_activation_t;

/* Which two values of a head one rotation mixes.  The reader never permutes weights, so the same
 * architecture has another style in another container. */
typedef enum {
    FILE_ROPE_NEOX,        /* x[i] with x[i + rope_dim/2]: Hugging Face; GGUF qwen3 */
    FILE_ROPE_INTERLEAVED, /* x[2i] with x[2i + 1]: GGUF llama, whose q and k rows are permuted */
} file_rope_style_t;

typedef enum {
    FILE_ROPE_SCALING_NONE,
    FILE_ROPE_SCALING_LINEAR, /* position / rope_scaling_factor */
    FILE_ROPE_SCALING_LLAMA3, /* per-frequency, with the four factors below */
    FILE_ROPE_SCALING_YARN,   /* per-frequency, and rotations grow by the attention factor */
    FILE_ROPE_SCALING_TABLE,  /* GGUF rope_freqs.weight: frequency i is divided by entry i */
} file_rope_scaling_t;

/* Element types of stored tensors.  Row layouts are those of GGUF; a row of a block type has
 * cols / block_length blocks. */
typedef enum {
    FILE_DTYPE_F32,
    FILE_DTYPE_F16,
    FILE_DTYPE_BF16,
    FILE_DTYPE_Q8_0,  /* 32 values: f16 d; 32 x i8 */
    FILE_DTYPE_Q4_0,  /* 32 values: f16 d; 16 bytes of two 4-bit values minus 8 */
    FILE_DTYPE_Q4_1,  /* 32 values: f16 d, f16 m; 16 bytes of two 4-bit values */
    FILE_DTYPE_Q5_0,  /* 32 values: f16 d; 4 bytes of high bits; 16 bytes of low 4 bits */
    FILE_DTYPE_Q4_K,  /* 256 values: f16 d, f16 dmin; 12 bytes of scales; 128 bytes */
    FILE_DTYPE_Q5_K,  /* 256 values: f16 d, f16 dmin; 12 of scales; 32 high; 128 low */
    FILE_DTYPE_Q6_K,  /* 256 values: 128 low; 64 high; 16 x i8 scales; f16 d */
    FILE_DTYPE_MXFP4, /* 32 values: u8 exponent; 16 bytes of two 4-bit floats; experts only */
    FILE_DTYPE_COUNT,
} file_dtype_t;

typedef struct {
    file_arch_t arch;
    char name[FILE_NAME_SIZE_BYTES]; /* general.name, or the folder's own name */
    uint32_t layer_count;
    uint32_t hidden_size;
    uint32_t ffn_size;
    uint32_t head_count;    /* query heads */
    uint32_t kv_head_count; /* divides head_count; 1 with latent attention */
    uint32_t head_dim;      /* of queries and keys; not always hidden_size / head_count */
    uint32_t latent_dim;    /* of a cached row of latent attention (kv_lora_rank); 0 = none */
    uint32_t q_latent_dim;  /* LATENT: of the queries' own latent (q_lora_rank); 0 = none */
    uint32_t nope_dim;      /* LATENT: values of a head before the rotated ones */
    uint32_t v_head_dim;    /* LATENT: of values */
    uint32_t vocab_size;    /* rows of the embedding */
    uint32_t context_len;   /* tokens the checkpoint was made for */
    double rope_theta;
    uint32_t rope_dim; /* rotated values of a head; even, at most head_dim */
    file_rope_style_t rope_style;
    file_rope_scaling_t rope_scaling;
    double rope_scaling_factor;         /* LINEAR, LLAMA3 and YARN; else 1 */
    double rope_low_freq_factor;        /* LLAMA3 */
    double rope_high_freq_factor;       /* LLAMA3 */
    uint32_t rope_original_context_len; /* LLAMA3 and YARN */
    double rope_beta_fast;              /* YARN: waves of more turns are kept */
    double rope_beta_slow;              /* YARN: those of fewer are slowed by the factor */
    bool rope_truncates;                /* YARN: both limits become whole dimensions */
    double rope_attention_factor;       /* YARN: of cos and sin; 0 = 1 */
    float rms_eps;
    file_activation_t activation;              /* of the feed-forward's gate */
    uint32_t sliding_window;                   /* tokens; 0 = every layer is full */
    uint8_t layer_kinds[FILE_LAYER_COUNT_MAX]; /* file_layer_kind_t */
    double rope_theta_sliding;                 /* of sliding layers, never scaled; 0 = as full */
    double query_scale;                        /* of the scores; 0 = 1 / sqrt(head_dim) */
    double embed_scale;                        /* of embedded tokens; 0 = 1 */
    uint32_t expert_count;                     /* 0 = one feed-forward in every layer */
    uint32_t expert_used_count;                /* experts that a token chooses */
    uint32_t expert_ffn_size;                  /* width of an expert */
    uint32_t shared_ffn_size;    /* width of the experts that every token meets; 0 = none */
    uint32_t dense_layer_count;  /* the first so many layers have one feed-forward, no experts */
    bool has_sigmoid_router;     /* FILE_ROLE_ROUTER_SELECT_BIAS exists; with the next four */
    bool has_normed_weights;     /* weights of a token's experts are made to sum to 1, */
    double expert_scale;         /*   then multiplied by this */
    uint32_t expert_group_count; /* experts are chosen within */
    uint32_t expert_group_used_count; /*   so many of so many groups; 1 = all are one group */
    bool has_router_bias;             /* FILE_ROLE_ROUTER_BIAS exists */
    bool has_shared_scale;            /* FILE_ROLE_SHARED_SCALE exists */
    bool has_apart_experts;           /* a tensor for each expert: file_model_expert() */
    uint32_t ignored_layer_count;     /* stored behind the last layer, for drafting */
    double expert_alpha;              /* SWIGLU_OAI */
    double expert_limit;              /* SWIGLU_OAI */
    bool has_fused_experts;           /* FILE_ROLE_EXPERT_GATE_UP; else _GATE and _UP */
    bool has_sinks;                   /* FILE_ROLE_ATTN_SINKS exists */
    bool has_attn_gate; /* the rows of a head in FILE_ROLE_ATTN_Q: its query, its gate */
    uint32_t linear_key_head_count;   /* LINEAR layers, as all below; divides the value heads */
    uint32_t linear_key_head_dim;     /* of keys and queries */
    uint32_t linear_value_head_count; /* each with a state [key_head_dim][value_head_dim] */
    uint32_t linear_value_head_dim;
    uint32_t linear_conv_width; /* taps of the convolution */
    bool is_nested;             /* a text model within a larger one: names begin with
                                 * "model.language_model." */
    bool has_post_norms;        /* FILE_ROLE_ATTN_POST_NORM and _FFN_POST_NORM exist */
    bool has_offset_norms;      /* stored norm weights lack a 1 (HF gemma) */
    bool tied_embeddings;       /* FILE_ROLE_OUTPUT is FILE_ROLE_TOKEN_EMBED */
    bool has_qk_norm;           /* FILE_ROLE_ATTN_Q_NORM and _K_NORM exist */
    bool has_qkv_bias;          /* FILE_ROLE_ATTN_Q_BIAS, _K_BIAS and _V_BIAS exist */
    bool has_o_bias;            /* FILE_ROLE_ATTN_O_BIAS exists */
    int32_t bos_id;             /* FILE_ID_NONE if there is none */
    int32_t eos_id;
    int32_t pad_id;
    uint32_t stop_id_count; /* eos, then ends of turn; no doubles */
    int32_t stop_ids[FILE_STOP_ID_COUNT_MAX];
    file_dtype_t linear_dtype;              /* the type that holds most bytes of the layers */
    char dtype_summary[64];                 /* for people: "Q4_1 (210), F32 (61), Q8_0 (1)" */
    uint64_t weight_size_bytes;             /* of the tensors with a role */
    uint64_t file_size_bytes;               /* of all files */
    uint8_t digest[FILE_DIGEST_SIZE_BYTES]; /* see file_model_open() */
} file_config_t;

/* Whether a layer has experts in place of one feed-forward. */
static inline bool
file_config_has_experts(const file_config_t *config, uint32_t layer)
{
    return config->expert_count > 0 && layer >= config->dense_layer_count;
}

/* What a tensor is for.  Roles below the line exist once for each layer. */
typedef enum {
    FILE_ROLE_TOKEN_EMBED, /* [vocab_size, hidden_size] */
    FILE_ROLE_OUTPUT_NORM, /* [1, hidden_size] */
    FILE_ROLE_OUTPUT,      /* [vocab_size, hidden_size]; tied: the embedding's bytes */
    FILE_ROLE_ROPE_FREQS,  /* [1, rope_dim / 2] F32; only with FILE_ROPE_SCALING_TABLE */
    /* Of draft folders alone: file_draft.h. */
    FILE_ROLE_DRAFT_FC,           /* [hidden_size, taps * the target's hidden size] */
    FILE_ROLE_DRAFT_CONTEXT_NORM, /* [1, hidden_size] */
    FILE_ROLE_DRAFT_MARKOV_IN,    /* [the target's vocabulary, rank] */
    FILE_ROLE_DRAFT_MARKOV_OUT,   /* [the target's vocabulary, rank] */
    /* --- per layer --- */
    FILE_ROLE_ATTN_NORM,      /* [1, hidden_size] */
    FILE_ROLE_ATTN_Q,         /* [head_count * head_dim, hidden_size]; twice the rows with gates */
    FILE_ROLE_ATTN_K,         /* [kv_head_count * head_dim, hidden_size] */
    FILE_ROLE_ATTN_V,         /* [kv_head_count * head_dim, hidden_size] */
    FILE_ROLE_ATTN_O,         /* [hidden_size, head_count * head_dim, or LATENT v_head_dim] */
    FILE_ROLE_ATTN_Q_NORM,    /* [1, head_dim] */
    FILE_ROLE_ATTN_K_NORM,    /* [1, head_dim] */
    FILE_ROLE_ATTN_Q_BIAS,    /* [1, head_count * head_dim] */
    FILE_ROLE_ATTN_K_BIAS,    /* [1, kv_head_count * head_dim] */
    FILE_ROLE_ATTN_V_BIAS,    /* [1, kv_head_count * head_dim] */
    FILE_ROLE_ATTN_O_BIAS,    /* [1, hidden_size] */
    FILE_ROLE_ATTN_POST_NORM, /* [1, hidden_size]; of the attention's output */
    FILE_ROLE_FFN_NORM,       /* [1, hidden_size] */
    FILE_ROLE_FFN_GATE,       /* [ffn_size, hidden_size] */
    FILE_ROLE_FFN_UP,         /* [ffn_size, hidden_size] */
    FILE_ROLE_FFN_DOWN,       /* [hidden_size, ffn_size] */
    FILE_ROLE_FFN_POST_NORM,  /* [1, hidden_size]; of the feed-forward's output */
    FILE_ROLE_ATTN_SINKS,     /* [1, head_count]: logits beside the scores, without a value */
    FILE_ROLE_ROUTER,         /* [expert_count, hidden_size] */
    FILE_ROLE_ROUTER_BIAS,    /* [1, expert_count] */
    /* Experts one after the other.  Fused (HF): stored [inputs][outputs], gate and up by turns. */
    FILE_ROLE_EXPERT_GATE_UP,      /* fused: [expert_count * hidden_size, 2 * expert_ffn_size] */
    FILE_ROLE_EXPERT_GATE_UP_BIAS, /* fused: [expert_count, 2 * expert_ffn_size] */
    FILE_ROLE_EXPERT_GATE,         /* [expert_count * expert_ffn_size, hidden_size] */
    FILE_ROLE_EXPERT_GATE_BIAS,    /* [expert_count, expert_ffn_size] */
    FILE_ROLE_EXPERT_UP,           /* [expert_count * expert_ffn_size, hidden_size] */
    FILE_ROLE_EXPERT_UP_BIAS,      /* [expert_count, expert_ffn_size] */
    FILE_ROLE_EXPERT_DOWN,         /* [expert_count * hidden_size, expert_ffn_size]; fused:
                                        [expert_count * expert_ffn_size, hidden_size] */
    FILE_ROLE_EXPERT_DOWN_BIAS,    /* [expert_count, hidden_size] */
    /* Layers of kind LINEAR have these in place of ATTN_Q .. ATTN_O and their norms. */
    FILE_ROLE_LINEAR_QKV,     /* [channels, hidden_size]: queries, keys, values, head by head */
    FILE_ROLE_LINEAR_Z,       /* [value_head_count * value_head_dim, hidden_size]: output gate */
    FILE_ROLE_LINEAR_A,       /* [value_head_count, hidden_size]: decay */
    FILE_ROLE_LINEAR_B,       /* [value_head_count, hidden_size]: step */
    FILE_ROLE_LINEAR_CONV,    /* [channels, conv_width]: taps, the newest input's last */
    FILE_ROLE_LINEAR_DT_BIAS, /* [1, value_head_count] */
    FILE_ROLE_LINEAR_A_LOG,   /* [1, value_head_count] */
    FILE_ROLE_LINEAR_NORM,    /* [1, value_head_dim]; never lacks a 1 */
    FILE_ROLE_LINEAR_OUT,     /* [hidden_size, value_head_count * value_head_dim] */
    FILE_ROLE_ROUTER_SELECT_BIAS, /* [1, expert_count]: counts for the choice alone */
    FILE_ROLE_SHARED_GATE,        /* [shared_ffn_size, hidden_size] */
    FILE_ROLE_SHARED_UP,          /* [shared_ffn_size, hidden_size] */
    FILE_ROLE_SHARED_DOWN,        /* [hidden_size, shared_ffn_size] */
    FILE_ROLE_SHARED_SCALE,       /* [1, hidden_size]: its product's sigmoid weighs them */
    /* Latent attention; without q_latent_dim FILE_ROLE_ATTN_Q stands for the first three. */
    FILE_ROLE_ATTN_Q_A,       /* [q_latent_dim, hidden_size] */
    FILE_ROLE_ATTN_Q_A_NORM,  /* [1, q_latent_dim] */
    FILE_ROLE_ATTN_Q_B,       /* [head_count * head_dim, q_latent_dim] */
    FILE_ROLE_ATTN_KV_A,      /* [latent_dim + rope_dim, hidden_size] */
    FILE_ROLE_ATTN_KV_A_NORM, /* [1, latent_dim] */
    FILE_ROLE_ATTN_KV_B,      /* [head_count * (nope_dim + v_head_dim), latent_dim]: of each head
                               * the rows that make keys, then those that make values */
    /* Of draft folders alone. */
    FILE_ROLE_DRAFT_HIDDEN_NORM, /* [1, hidden_size] of the hidden that comes in */
    FILE_ROLE_DRAFT_EMBED_NORM,  /* [1, hidden_size] of the token that comes in */
    FILE_ROLE_DRAFT_EH_PROJ,     /* [hidden_size, 2 * hidden_size] of both */
    FILE_ROLE_DRAFT_HEAD_NORM,   /* [1, hidden_size] before the head */
    FILE_ROLE_COUNT,
} file_role_t;

#define FILE_ROLE_FIRST_OF_LAYER FILE_ROLE_ATTN_NORM

/* One stored matrix, row-major: y[row] = sum over col of data[row][col] * x[col].  A vector has
 * one row.  Norms and biases are F32, F16 or BF16, never a block type. */
typedef struct {
    file_dtype_t dtype;
    uint32_t rows;
    uint32_t cols;       /* a multiple of the type's block length */
    const void *data;    /* in the mapping; aligned to 8 or more (GGUF), to the element (HF) */
    uint64_t size_bytes; /* rows * file_dtype_row_size_bytes(dtype, cols) */
} file_tensor_t;

/* Opens and checks the whole structure of a checkpoint: sizes, shapes against the config, every
 * tensor's range inside its file.  Reads metadata and samples of the weights, not the weights.
 *
 * The digest covers the config, each tensor's name, type, shape and size, and 4 KiB samples at
 * the start, middle and end of each tensor: a stable fingerprint that tells revisions apart in
 * milliseconds.  It is no proof against somebody who prepares two files on purpose.
 *
 * STATUS_ERR_IO (no such path, cannot map), STATUS_ERR_MALFORMED (corrupt or truncated),
 * STATUS_ERR_UNSUPPORTED (valid, but an architecture or type that cannot be run; the text lists
 * those that can), STATUS_ERR_NO_MEMORY.  `error` is always terminated; the text names the file
 * and what was expected and found.  The caller owns *out_p. */
MUST_CHECK proto_status_t file_model_open(const char *path, char *error, size_t error_size_bytes,
                                          file_model_t **out_p);

enum { FILE_SLICE_VOCAB_GRAIN = 32 }; /* tokens of a rank's share of the head are a multiple */

/* Makes the open model what rank `rank` of `count` holds of it: the config gets its share of heads
 * and of the widths of feed-forwards, the tensors are cut to match.  Products over cut inputs
 * (FILE_ROLE_ATTN_O, _FFN_DOWN, _EXPERT_DOWN, _SHARED_DOWN, _LINEAR_OUT) give a part of a sum over
 * the ranks; what is added to them once is zeros on all ranks but the first.  FILE_ROLE_OUTPUT has
 * the rows of file_slice_vocabulary() and exists with tied embeddings too; vocab_size stays whole.
 * Key and value heads fewer than ranks are held by several.  Once, before anybody reads a tensor;
 * after an error the model can only be closed.  STATUS_ERR_CONFIG with the numbers: something does
 * not divide; STATUS_ERR_NO_MEMORY. */
MUST_CHECK proto_status_t file_model_slice(file_model_t *self, uint32_t rank, uint32_t count,
                                           char *error, size_t error_size_bytes);

/* The rows of the head that a rank holds: [*begin, *end). */
void file_slice_vocabulary(uint32_t vocab_size, uint32_t rank, uint32_t count, uint32_t *begin,
                           uint32_t *end);

/* Unmaps everything and sets *self_p to NULL; does nothing if it is NULL already.  Every pointer
 * into the model ends here. */
void file_model_close(file_model_t **self_p);

/* Lent until the model is closed. */
const file_config_t *file_model_config(const file_model_t *self);

/* The tensor of a role; `layer` is ignored for roles that exist once.  STATUS_ERR_NOT_FOUND for
 * an optional role that this checkpoint lacks (the flags of the config say which); the others are
 * always there after open.  *out is written only on STATUS_OK. */
MUST_CHECK proto_status_t file_model_tensor(const file_model_t *self, file_role_t role,
                                            uint32_t layer, file_tensor_t *out);

/* The tensor of one expert, with has_apart_experts: FILE_ROLE_EXPERT_GATE and _UP
 * [expert_ffn_size, hidden_size], _DOWN [hidden_size, expert_ffn_size].  STATUS_ERR_NOT_FOUND in a
 * layer without experts. */
MUST_CHECK proto_status_t file_model_expert(const file_model_t *self, file_role_t role,
                                            uint32_t layer, uint32_t expert, file_tensor_t *out);

/* Bytes touched so far, of total_bytes. */
typedef void (*file_progress_fn)(void *context, uint64_t done_bytes, uint64_t total_bytes);

/* Reads every page of the tensors once, so that the first step does not wait for the disk.
 * Blocks; calls `progress` (may be NULL) about 64 times and once at the end. */
void file_model_prefetch(const file_model_t *self, file_progress_fn progress, void *context);

/* "Q4_1", "BF16", ...; "?" for a number not listed. */
const char *file_dtype_name(file_dtype_t dtype);

/* Values in a block: 1, 32 or 256. */
uint32_t file_dtype_block_length(file_dtype_t dtype);

/* Bytes of a row of `cols` values, a multiple of the block length. */
uint64_t file_dtype_row_size_bytes(file_dtype_t dtype, uint32_t cols);

/* Rows of FILE_ROLE_LINEAR_QKV: what goes through the convolution. */
uint32_t file_config_linear_channels(const file_config_t *config);

/* "llama", "qwen3", "gemma3", "gpt-oss", "qwen3.5", "deepseek_v3". */
const char *file_arch_name(file_arch_t arch);

#endif
