/* Dispatch, and the checks that every drafter wants. */
#include "draft_base.h"

#include "file_model.h"
#include "proto_require.h"

void
draft_destroy(draft_t **self_p)
{
    require(self_p != NULL);
    if (*self_p != NULL) {
        file_model_t *file = (*self_p)->file;
        (*self_p)->vtable->destroy(*self_p);
        file_model_close(&file);
        *self_p = NULL;
    }
}

void
draft_keep_file(draft_t *self, file_model_t **file_p)
{
    require(self->file == NULL);
    self->file = *file_p;
    *file_p = NULL;
}

const draft_info_t *
draft_info(const draft_t *self)
{
    return &self->info;
}

proto_status_t
draft_set_cache_pool(draft_t *self, const cache_pool_t *pool)
{
    require(pool != NULL);
    return self->vtable->set_cache_pool == NULL ? STATUS_OK
                                                : self->vtable->set_cache_pool(self, pool);
}

proto_status_t
draft_init_graph_state(draft_t *self)
{
    return self->vtable->init_graph_state == NULL ? STATUS_OK
                                                  : self->vtable->init_graph_state(self);
}

proto_status_t
draft_capture(draft_t *self)
{
    return self->vtable->capture == NULL ? STATUS_OK : self->vtable->capture(self);
}

void
draft_begin(draft_t *self, uint32_t slot, const int32_t *tokens, uint32_t token_count)
{
    require(slot >= 1);
    require(slot <= self->slot_count);
    require(tokens != NULL || token_count == 0);
    if (self->vtable->begin != NULL) {
        self->vtable->begin(self, slot, tokens, token_count);
    }
}

const struct model_capture_sink *
draft_prepare_target_forward(draft_t *self, backend_mode_t mode, uint32_t width)
{
    return self->vtable->prepare_target_forward == NULL
               ? NULL
               : self->vtable->prepare_target_forward(self, mode, width);
}

/* Rows are the extends' tokens and `width` for each decode request. */
static bool
rows_add_up(const draft_round_t *round)
{
    uint64_t rows = (uint64_t)(round->bs - round->num_extends) * round->width;
    for (uint32_t i = 0; i < round->num_extends; i++) {
        if (round->extend_seq_lens_host[i] < 1 || round->extend_prefix_lens_host[i] < 0) {
            return false;
        }
        rows += (uint32_t)round->extend_seq_lens_host[i];
    }
    return rows == round->rows;
}

static bool
is_whole(const draft_t *self, const draft_round_t *round)
{
    bool has_extends = round->mode != BACKEND_MODE_DECODE;
    if (round->bs == 0 || round->bs > self->bs_max || round->num_extends > round->bs ||
        round->rows > self->rows_max || round->mode == BACKEND_MODE_IDLE ||
        has_extends != (round->num_extends > 0) ||
        (round->mode == BACKEND_MODE_EXTEND && round->num_extends != round->bs)) {
        return false;
    }
    if (round->width != 1 && round->width != self->info.width) {
        return false;
    }
    if (self->info.tap_count > 0 &&
        (round->hidden == NULL ||
         round->hidden_stride < (size_t)self->info.tap_count * self->info.hidden_size)) {
        return false;
    }
    for (uint32_t i = 0; i < round->bs; i++) {
        if (round->slots_host[i] < 1 || round->slots_host[i] > self->slot_count) {
            return false;
        }
    }
    return rows_add_up(round);
}

proto_status_t
draft_propose(draft_t *self, const draft_round_t *round, draft_proposal_t *out)
{
    require(round != NULL);
    require(out != NULL);
    if (!is_whole(self, round)) {
        return STATUS_ERR_INVALID;
    }
    return self->vtable->propose(self, round, out);
}
