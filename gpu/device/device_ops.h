/* device_ops.h - the launch table: one typed launch call for each operation, cut at the fused
 * operations of the fastest device.  Models, backends and sampling are written once against it.
 *
 * A launch copies its argument struct, so the struct need not outlive the call; what the struct
 * points to must live until the launch has run (for a captured launch: as long as its graph). */
#ifndef DEVICE_OPS_H
#define DEVICE_OPS_H

#include "device_base.h"
#include "kern_attention.h"
#include "kern_conv.h"
#include "kern_draft.h"
#include "kern_elementwise.h"
#include "kern_embed.h"
#include "kern_form.h"
#include "kern_gdn.h"
#include "kern_linear.h"
#include "kern_metadata.h"
#include "kern_mla.h"
#include "kern_moe.h"
#include "kern_norm.h"
#include "kern_rope.h"
#include "kern_sample.h"
#include "kern_slot.h"
#include "kern_state.h"

#define DEVICE_OP_LIST(OP)                                                                         \
    OP(embed)                                                                                      \
    OP(rms_norm)                                                                                   \
    OP(linear)                                                                                     \
    OP(gate_up)                                                                                    \
    OP(moe_route)                                                                                  \
    OP(expert_gate_up)                                                                             \
    OP(expert_linear)                                                                              \
    OP(moe_combine)                                                                                \
    OP(silu_mul)                                                                                   \
    OP(add)                                                                                        \
    OP(rope_angles)                                                                                \
    OP(rope_kv_write)                                                                              \
    OP(attention_decode)                                                                           \
    OP(attention_extend)                                                                           \
    OP(conv_programs)                                                                              \
    OP(conv_prefill)                                                                               \
    OP(conv_decode)                                                                                \
    OP(conv_verify)                                                                                \
    OP(conv_replay)                                                                                \
    OP(gdn_prefill)                                                                                \
    OP(gdn_decode)                                                                                 \
    OP(gdn_verify)                                                                                 \
    OP(gdn_replay)                                                                                 \
    OP(gated_norm)                                                                                 \
    OP(sigmoid_mul)                                                                                \
    OP(heads_copy)                                                                                 \
    OP(state_blocks)                                                                               \
    OP(state_stage)                                                                                \
    OP(state_copy)                                                                                 \
    OP(commit_state_pages)                                                                         \
    OP(state_verify_commit_rows)                                                                   \
    OP(mla_write)                                                                                  \
    OP(head_linear)                                                                                \
    OP(mla_decode)                                                                                 \
    OP(mla_extend)                                                                                 \
    OP(gather_rows)                                                                                \
    OP(sample)                                                                                     \
    OP(sample_counts)                                                                              \
    OP(copy)                                                                                       \
    OP(fill)                                                                                       \
    OP(table_expand)                                                                               \
    OP(table_copy)                                                                                 \
    OP(decode_locations)                                                                           \
    OP(extend_locations)                                                                           \
    OP(seq_lens)                                                                                   \
    OP(decode_fill)                                                                                \
    OP(extend_fill)                                                                                \
    OP(decode_commit)                                                                              \
    OP(extend_commit)                                                                              \
    OP(stop_flags)                                                                                 \
    OP(draft_commit)                                                                               \
    OP(draft_lens)                                                                                 \
    OP(draft_begin)                                                                                \
    OP(draft_argmax)                                                                               \
    OP(draft_mask)                                                                                 \
    OP(draft_limit)                                                                                \
    OP(draft_window)                                                                               \
    OP(draft_lead)                                                                                 \
    OP(draft_roll)                                                                                 \
    OP(draft_block)                                                                                \
    OP(page_zero)                                                                                  \
    OP(slot_setup)                                                                                 \
    OP(mark)

struct device_ops {
#define DEVICE_OP_MEMBER(name)                                                                     \
    void (*name)(device_stream_t * stream, const kern_##name##_args_t *args);
    DEVICE_OP_LIST(DEVICE_OP_MEMBER)
#undef DEVICE_OP_MEMBER
};

typedef struct device_weight_vtable {
    size_t (*size_bytes)(const device_t *self, const kern_weight_t *weight);
    kern_weight_t (*load)(device_t *self, const kern_weight_t *weight, void *memory);
    size_t (*form_size_bytes)(const device_t *self, kern_form_t form, uint32_t rows, uint32_t cols);
} device_weight_vtable_t;

/* How many workers an operation may have: the workspace sizes of kern_sample.h ask for it. */
uint32_t device_worker_count(const device_t *self);

/* Bytes of device memory that a weight needs to be used in its best form; 0: it is used as it is,
 * in place. */
size_t device_weight_size_bytes(const device_t *self, const kern_weight_t *weight);
/* Brings a weight to the device: into `memory` of that many bytes (NULL if 0).  Blocks; at start
 * only.  The source is not needed afterwards unless the size was 0. */
kern_weight_t device_weight_load(device_t *self, const kern_weight_t *weight, void *memory);

/* Bytes of so many rows of activations in a form. */
size_t device_form_size_bytes(const device_t *self, kern_form_t form, uint32_t rows, uint32_t cols);

#endif
