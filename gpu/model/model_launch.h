/* model_launch.h - launches that the forward code of every decoder-only model is made of.
 *
 * A layer's weights and a forward's workspace in their common form; what a family does not have is
 * NULL.  Nothing is owned here.  The device thread. */
#ifndef MODEL_LAUNCH_H
#define MODEL_LAUNCH_H

#include "model_base.h"
#include "model_weights.h"

/* Attention and feed-forward of one layer. */
typedef struct {
    const float *attn_norm;
    const float *attn_post_norm; /* NULL = none, as all below */
    const float *ffn_norm;
    const float *ffn_post_norm;
    const float *q_norm;
    const float *k_norm;
    const float *q_bias;
    const float *k_bias;
    const float *v_bias;
    const float *o_bias;
    const float *sinks; /* [head_count] */
    kern_weight_t q;
    kern_weight_t k;
    kern_weight_t v;
    kern_weight_t o;
    kern_weight_t gate; /* with experts (model_experts.h) there is none of these three */
    kern_weight_t up;
    kern_weight_t down;
} model_layer_t;

/* What stands before and after the layers. */
typedef struct {
    kern_weight_t embed;
    kern_weight_t output;
    const float *output_norm;
} model_ends_t;

/* Rows of intermediate results within a workspace; each as [rows][its width].  What products read -
 * normed, attn, hidden, q_normed, gathered - is in KERN_FORM_OPERAND, the rest in KERN_FORM_ROWS.
 */
typedef struct {
    float *x; /* the residual stream */
    float *normed;
    float *q;
    float *q_gate;    /* where gates lie between the query heads: both, as projected */
    float *attn_rows; /* with gates: what was attended to, before them */
    float *k;
    float *v;
    float *attn;
    float *delta;  /* a block's output, added by the norm that follows it */
    float *hidden; /* of the feed-forward; with experts a row for each pair */
    /* With latent attention only, where k is the latent and the rotated part, and there is no v. */
    float *q_latent; /* [q_latent_dim], and the same normalised, which a product reads: */
    float *q_normed;
    float *query;     /* heads of latent_dim + rope_dim */
    float *latents;   /* heads of latent_dim */
    float *angles[2]; /* of full and of sliding layers; one of them where they agree */
    /* With experts only; pairs and what stands of them: kern_moe.h. */
    float *router_logits;
    float *pair_results;
    float *pair_weights;
    int32_t *pair_experts;
    int32_t *pair_order;
    int32_t *expert_offsets; /* [expert_count + 1], whatever the rows */
    float *shared; /* with a weight of its own: the shared expert's output, and the same weighed */
    float *weighed;
    float *gathered;
    float *logits;
    float *logit_share; /* of this rank, where several share the head */
    void *linear_workspace;
    size_t linear_workspace_bytes;
    size_t total_bytes;
} model_rows_t;

/* Lays out `memory` (NULL: only counts).  The logits come first, so that they stay where they are
 * whatever the row count. */
model_rows_t model_rows_lay_out(const model_t *self, uint8_t *memory, uint32_t rows,
                                uint32_t logit_rows);

/* Loads what a layer has, as the config says; norm weights stored without their 1 get it. */
MUST_CHECK proto_status_t model_layer_load(model_weights_t *weights, const file_config_t *config,
                                           uint32_t index, model_layer_t *out);
MUST_CHECK proto_status_t model_ends_load(model_weights_t *weights, const file_config_t *config,
                                          model_ends_t *out);

/* Up to KERN_LINEAR_WEIGHTS_MAX matrices that take the same input. */
typedef struct {
    const float *input; /* [rows][weights[0].cols] */
    uint32_t rows;
    uint32_t count;
    kern_weight_t weights[KERN_LINEAR_WEIGHTS_MAX];
    const float *biases[KERN_LINEAR_WEIGHTS_MAX]; /* NULL = none */
    float *outputs[KERN_LINEAR_WEIGHTS_MAX];      /* each [rows][its weight's rows] */
    bool accumulates;                             /* y += ... instead of y = ... */
} model_projection_t;

void model_launch_project(const model_t *self, const model_context_t *context,
                          const model_rows_t *rows, const model_projection_t *projection);

/* Adds up what the ranks computed of rows->delta; nothing where there is one.  After each product
 * over inputs that are cut (file_model_slice()). */
void model_launch_reduce(const model_t *self, const model_context_t *context,
                         const model_rows_t *rows);

/* Embeds the tokens: a break. */
void model_launch_embed(const model_t *self, const model_context_t *context,
                        const model_ends_t *ends, const model_rows_t *rows);

/* cos and sin of each row's position, for frequencies [rope_dim / 2]: a break.  Only breaks read
 * them. */
void model_launch_angles(const model_t *self, const model_context_t *context,
                         const float *frequencies, float *angles);

/* x += residual (NULL = nothing), output = norm(x) * weight.  x and output may be the same; another
 * output is what a product reads. */
void model_launch_norm(const model_t *self, const model_context_t *context, float *x,
                       const float *residual, const float *weight, float *output);

/* Where heads have gates, their sigmoids weigh what was attended to.  Projects; as a break rotates,
 * writes keys and values where the backend says and attends; projects back into rows->delta.
 * `normed` is the input. */
void model_launch_attention(const model_t *self, const model_context_t *context,
                            const model_layer_t *layer, const model_rows_t *rows, uint32_t index,
                            const float *angles);

/* The two halves of it after the projections, for forward code that narrows between them.  Rotates
 * context->rows rows of q and k, and writes k and v where the backend says. */
void model_launch_rope_write(const model_t *self, const model_context_t *context,
                             const model_layer_t *layer, const model_rows_t *rows, uint32_t index,
                             const float *angles);
/* context->rows rows of q attend to what the cache holds, into attn. */
void model_launch_attend(const model_t *self, const model_context_t *context,
                         const model_layer_t *layer, const float *q, float *attn, uint32_t index);

/* After layer `layer` (or MODEL_TAP_FINAL, before the logits, with the final norm's weight): if it
 * is a tap, its rows go to the context's capture, and its sink hears of it.  rows->x and
 * rows->delta stay as they are. */
void model_launch_tap(const model_t *self, const model_context_t *context, const model_rows_t *rows,
                      uint32_t layer, const float *final_norm);

/* The gated feed-forward of rows->normed into rows->delta. */
void model_launch_ffn(const model_t *self, const model_context_t *context,
                      const model_layer_t *layer, const model_rows_t *rows);

/* One of any width, of rows->normed; `accumulates`: added to rows->delta. */
typedef struct {
    kern_weight_t gate;
    kern_weight_t up;
    kern_weight_t down;
    bool accumulates;
} model_ffn_t;

void model_launch_gated(const model_t *self, const model_context_t *context, const model_ffn_t *ffn,
                        const model_rows_t *rows);

/* A break; nothing if no row wants logits.  The last add and norm run on all rows, since the add is
 * in place; the head only on those asked for.  `ends` must live as long as the model. */
void model_launch_logits(const model_t *self, const model_context_t *context,
                         const model_ends_t *ends, const model_rows_t *rows, const float *residual);

/* Tells the watcher which layer is in work, from 1; 0 = none. */
void model_launch_mark(const model_t *self, const model_context_t *context, uint32_t layer);

#endif
