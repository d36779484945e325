/* model_experts.h - the mixture of experts of one layer: its weights on the device, and its
 * launches.
 *
 * The kernels read each expert's matrix as [outputs][inputs], one behind the other.  What a
 * checkpoint stores the other way round is turned over, what it stores apart is put together, what
 * it stores as MXFP4 becomes BF16, which holds every such value.
 * Nothing is owned here.  The device thread. */
#ifndef MODEL_EXPERTS_H
#define MODEL_EXPERTS_H

#include "model_launch.h"

typedef struct {
    kern_weight_t router;
    const float *router_bias; /* NULL = none, as below */
    const float *select_bias; /* counts for the choice alone */
    kern_expert_weight_t gate;
    kern_expert_weight_t up;
    kern_expert_weight_t down;
    model_ffn_t shared;         /* what every token meets besides; only with shared_ffn_size */
    kern_weight_t shared_scale; /* only with has_shared_scale */
} model_experts_t;

/* STATUS_ERR_UNSUPPORTED, STATUS_ERR_NO_MEMORY. */
MUST_CHECK proto_status_t model_experts_load(model_weights_t *weights, const file_config_t *config,
                                             uint32_t layer, model_experts_t *out);

/* Chooses, computes and sums: rows->normed into rows->delta. */
void model_launch_experts(const model_t *self, const model_context_t *context,
                          const model_experts_t *experts, const model_rows_t *rows);

#endif
