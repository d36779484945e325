/* Slot setup and stop flags. */
#include "kern_slot.h"

#include <string.h>

void
kern_slot_setup_host(const void *args, kern_share_t *share)
{
    const kern_slot_setup_args_t *a = args;
    const kern_slot_record_t *record = a->record;
    uint32_t slot = record->slot;
    if (share->thread_index != 0 || slot >= a->slot_count) {
        return;
    }
    a->temperature[slot] = record->temperature;
    a->top_k[slot] = record->top_k;
    a->top_p[slot] = record->top_p;
    a->min_p[slot] = record->min_p;
    a->seed[slot] = record->seed;
    a->repetition_penalty[slot] = record->repetition_penalty;
    a->presence_penalty[slot] = record->presence_penalty;
    a->frequency_penalty[slot] = record->frequency_penalty;
    a->logprobs[slot] = record->logprobs;
    a->bias_counts[slot] = record->bias_count;
    memcpy(a->bias_ids + (size_t)slot * KERN_SAMPLE_BIAS_MAX, record->bias_ids,
           record->bias_count * sizeof(int32_t));
    memcpy(a->bias_values + (size_t)slot * KERN_SAMPLE_BIAS_MAX, record->bias_values,
           record->bias_count * sizeof(float));
    a->stop_counts[slot] = record->stop_count;
    memcpy(a->stop_ids + (size_t)slot * KERN_SAMPLE_BANNED_MAX, record->stop_ids,
           record->stop_count * sizeof(int32_t));
    a->stop_from[slot] = record->stop_from;
}

void
kern_stop_flags_host(const void *args, kern_share_t *share)
{
    const kern_stop_flags_args_t *a = args;
    if (share->thread_index != 0) {
        return;
    }
    for (uint32_t b = 0; b < a->bs; b++) {
        uint32_t slot = (uint32_t)a->slots[b];
        int32_t accepted = a->accept_lengths[b];
        uint8_t flags = 0;
        for (uint32_t t = 0; t < a->width && (int32_t)t < accepted; t++) {
            if ((a->sample_flags[(size_t)b * a->width + t] & KERN_SAMPLE_FLAG_NAN) != 0) {
                flags |= a->nan_bit;
            }
        }
        if (accepted > 0 && (uint32_t)accepted <= a->width) {
            int32_t token = a->tokens[(size_t)b * a->width + (uint32_t)accepted - 1];
            int32_t position = a->seq_lens[b] - (int32_t)a->width + accepted;
            const int32_t *ids = a->stop_ids + slot * a->stop_stride;
            for (uint32_t i = 0; i < a->stop_counts[slot]; i++) {
                if (ids[i] == token && position >= a->stop_from[slot]) {
                    flags |= a->stop_bit;
                }
            }
        }
        a->out[b] = flags;
    }
}
