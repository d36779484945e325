/* Staging of a step. */
#include "run_stage.h"

#include <string.h>

proto_status_t
run_stage_fill(const run_buffers_options_t *sizes, const proto_step_launch_t *launch,
               run_stage_t *stage)
{
    uint32_t extends = launch->extend_slots.count;
    uint32_t decodes = launch->decode_slots.count;
    if ((decodes > 0 && (launch->width == 0 || launch->width > sizes->width)) ||
        extends > sizes->bs_max || decodes > sizes->bs_max - extends ||
        launch->extend_begins.count != extends || launch->extend_lengths.count != extends ||
        launch->extend_samples.count != extends ||
        (launch->extend_next_ids.count != 0 && launch->extend_next_ids.count != extends)) {
        return STATUS_ERR_INVALID;
    }
    run_header_t *header = &stage->header;
    uint64_t tokens = 0;
    uint32_t sampled = 0;
    header->cu_lens[0] = 0;
    for (uint32_t i = 0; i < extends; i++) {
        uint32_t slot = launch->extend_slots.data[i];
        uint32_t length = launch->extend_lengths.data[i];
        uint64_t end = (uint64_t)launch->extend_begins.data[i] + length;
        tokens += length;
        if (slot == 0 || slot > sizes->slot_count || length == 0 || end > PROTO_TOKENS_MAX ||
            tokens > sizes->step_tokens_max) {
            return STATUS_ERR_INVALID;
        }
        header->slots[i] = (int32_t)slot;
        header->prefix_lens[i] = (int32_t)launch->extend_begins.data[i];
        header->extend_lens[i] = (int32_t)length;
        header->cu_lens[i + 1] = (int32_t)tokens;
        header->sample_indices[i] = -1;
        header->next_ids[i] =
            launch->extend_next_ids.count == 0 ? -1 : launch->extend_next_ids.data[i];
        if (launch->extend_samples.data[i] != 0) {
            header->sample_indices[i] = (int32_t)sampled;
            header->sample_slots[sampled] = (int32_t)slot;
            header->sample_lens[sampled] = (int32_t)end;
            header->gather_rows[sampled] = (int32_t)tokens - 1;
            sampled++;
        }
    }
    uint64_t rows = tokens + (uint64_t)decodes * launch->width;
    if (launch->extend_tokens.count != tokens || rows > sizes->step_tokens_max) {
        return STATUS_ERR_INVALID;
    }
    for (uint32_t i = 0; i < decodes; i++) {
        uint32_t slot = launch->decode_slots.data[i];
        if (slot == 0 || slot > sizes->slot_count) {
            return STATUS_ERR_INVALID;
        }
        header->slots[extends + i] = (int32_t)slot;
        for (uint32_t t = 0; t < launch->width; t++) {
            header->gather_rows[sampled + i * launch->width + t] =
                (int32_t)(tokens + i * launch->width + t);
        }
    }
    if (tokens > 0) {
        memcpy(stage->input_ids, launch->extend_tokens.data, tokens * sizeof(int32_t));
    }
    return STATUS_OK;
}
