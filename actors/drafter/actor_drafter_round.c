#include "actor_drafter_round.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

/* What the drafter's state of a slot stands for. */
typedef struct {
    uint32_t generation; /* 0 = nothing */
    uint32_t length;
} known_t;

struct actor_drafter_rounds {
    draft_ring_t *ring;
    draft_t *draft;
    uint64_t epoch;
    uint32_t bs_max;
    uint32_t width;
    known_t *known;    /* [slot_count + 1] */
    int32_t *sequence; /* [model_len_max] of a row that is made anew */

    /* Our copy of the round. */
    draft_ring_head_t head;
    uint32_t sampled;
    uint32_t *slots;
    uint32_t *generations;
    uint32_t *lengths;
    int32_t *prefix_lens;
    int32_t *extend_lens;
    int32_t *cu_lens;
    int32_t *next_ids;
    int32_t *token_rows;
    int32_t *seq_lens;
    int32_t *accept_lengths;
    int32_t *tokens; /* [bs_max * width] */
    uint8_t *samples;
    bool *is_lost; /* [bs_max] its state could not be made */

    /* What DRAFT_DONE shows. */
    uint8_t *counts;
    int32_t *candidates; /* [bs_max * (width - 1)] */
    uint32_t candidate_count;
};

static void
copy(void *to, const void *from, size_t count, size_t size_bytes)
{
    if (count > 0) {
        memcpy(to, from, count * size_bytes);
    }
}

/* Copies the round; false if its parts do not fit each other or the ring. */
static bool
copy_round(actor_drafter_rounds_t *self, const draft_ring_view_t *view)
{
    self->head = *view->head;
    /* What is checked below and used later is our copy, not memory that may have changed since. */
    atomic_signal_fence(memory_order_seq_cst);
    const draft_ring_head_t *head = &self->head;
    if (head->bs == 0 || head->bs > self->bs_max || head->num_extends > head->bs ||
        (head->width != 1 && head->width != self->width)) {
        return false;
    }
    uint32_t extends = head->num_extends;
    uint32_t decodes = head->bs - extends;
    copy(self->slots, view->slots, head->bs, sizeof *self->slots);
    copy(self->generations, view->generations, head->bs, sizeof *self->generations);
    copy(self->lengths, view->lengths, head->bs, sizeof *self->lengths);
    copy(self->prefix_lens, view->prefix_lens, extends, sizeof *self->prefix_lens);
    copy(self->extend_lens, view->extend_lens, extends, sizeof *self->extend_lens);
    copy(self->cu_lens, view->cu_lens, extends + 1, sizeof *self->cu_lens);
    copy(self->next_ids, view->next_ids, extends, sizeof *self->next_ids);
    copy(self->samples, view->samples, extends, sizeof *self->samples);
    copy(self->seq_lens, view->seq_lens, head->bs, sizeof *self->seq_lens);
    copy(self->accept_lengths, view->accept_lengths, decodes, sizeof *self->accept_lengths);
    atomic_signal_fence(memory_order_seq_cst);
    self->sampled = 0;
    for (uint32_t i = 0; i < extends; i++) {
        self->token_rows[i] = self->samples[i] != 0 ? (int32_t)self->sampled : -1;
        self->sampled += self->samples[i] != 0 ? 1 : 0;
    }
    copy(self->tokens, view->tokens, self->sampled + (size_t)decodes * head->width,
         sizeof *self->tokens);
    uint32_t model_len_max = draft_ring_options(self->ring)->model_len_max;
    for (uint32_t b = 0; b < head->bs; b++) {
        if (self->slots[b] == 0 || self->slots[b] > self->bs_max ||
            self->lengths[b] > model_len_max ||
            (b >= extends && (self->accept_lengths[b - extends] < 0 ||
                              (uint32_t)self->accept_lengths[b - extends] > head->width))) {
            return false;
        }
    }
    return true;
}

/* Tokens that a row of the round brings. */
static uint32_t
new_tokens(const actor_drafter_rounds_t *self, uint32_t b)
{
    uint32_t extends = self->head.num_extends;
    return b < extends ? (self->samples[b] != 0 ? 1 : 0)
                       : (uint32_t)self->accept_lengths[b - extends];
}

/* Makes the state of each row what it was before the round.  Returns how many were made anew. */
static uint32_t
catch_up(actor_drafter_rounds_t *self)
{
    uint32_t rebuilt = 0;
    for (uint32_t b = 0; b < self->head.bs; b++) {
        uint32_t slot = self->slots[b];
        uint32_t count = new_tokens(self, b);
        uint32_t length = self->lengths[b];
        uint32_t before = length >= count ? length - count : 0;
        known_t *known = &self->known[slot];
        self->is_lost[b] = false;
        if (known->generation != self->generations[b] || known->length != before) {
            bool is_there = draft_ring_store_read(self->ring, slot, self->generations[b],
                                                  self->sequence, before);
            self->is_lost[b] = !is_there;
            draft_begin(self->draft, slot, self->sequence, is_there ? before : 0);
            rebuilt += is_there ? 1 : 0;
        }
        *known =
            (known_t){.generation = self->is_lost[b] ? 0 : self->generations[b], .length = length};
    }
    return rebuilt;
}

static void
describe(const actor_drafter_rounds_t *self, draft_round_t *out)
{
    const draft_ring_head_t *head = &self->head;
    *out = (draft_round_t){
        .mode = (backend_mode_t)head->mode,
        .bs = head->bs,
        .num_extends = head->num_extends,
        .rows = head->rows,
        .width = head->width,
        .slots_host = self->slots,
        .extend_prefix_lens_host = self->prefix_lens,
        .extend_seq_lens_host = self->extend_lens,
        .extend_samples_host = self->samples,
        .slots = (const int32_t *)self->slots,
        .extend_prefix_lens = self->prefix_lens,
        .extend_seq_lens = self->extend_lens,
        .extend_cu_lens = self->cu_lens,
        .extend_next_ids = self->next_ids,
        .extend_token_rows = self->token_rows,
        .input_ids = NULL,
        .positions = NULL,
        .seq_lens = self->seq_lens,
        .tokens = self->tokens,
        .accept_lengths = self->accept_lengths,
        .hidden = NULL,
        .hidden_stride = 0,
        .tables = NULL,
    };
}

/* The candidates into the ring, and the same for the log. */
static void
put_answer(actor_drafter_rounds_t *self, const draft_ring_view_t *view,
           const draft_proposal_t *proposal)
{
    uint32_t stride = self->width - 1;
    self->candidate_count = 0;
    for (uint32_t b = 0; b < self->head.bs; b++) {
        const int32_t *from = proposal->candidates + (size_t)b * proposal->count;
        uint32_t count = 0;
        while (!self->is_lost[b] && count < proposal->count && count < stride && from[count] >= 0) {
            view->candidates[(size_t)b * stride + count] = from[count];
            self->candidates[self->candidate_count++] = from[count];
            count++;
        }
        view->counts[b] = (int32_t)count;
        self->counts[b] = (uint8_t)count;
    }
}

proto_status_t
actor_drafter_round_run(actor_drafter_rounds_t *self, uint32_t index, uint64_t step,
                        proto_draft_done_t *done)
{
    draft_ring_view_t view = draft_ring_view(self->ring, index);
    if (!copy_round(self, &view)) {
        return STATUS_ERR_MALFORMED;
    }
    done->rebuilt = catch_up(self);
    draft_round_t round;
    draft_proposal_t proposal;
    describe(self, &round);
    proto_status_t status = draft_propose(self->draft, &round, &proposal);
    if (status != STATUS_OK) {
        /* Its state did not follow: every row is made anew when it comes again. */
        for (uint32_t b = 0; b < self->head.bs; b++) {
            self->known[self->slots[b]].generation = 0;
        }
        return STATUS_ERR_MALFORMED;
    }
    status = draft_ring_wait_round(self->ring, index, step, self->epoch, 0);
    if (status != STATUS_OK) {
        return STATUS_ERR_STALE;
    }
    put_answer(self, &view, &proposal);
    uint32_t bs = self->head.bs;
    done->rows = (proto_column_u32_t){self->slots, bs};
    done->lengths = (proto_column_u32_t){self->lengths, bs};
    done->counts = (proto_column_u8_t){self->counts, bs};
    done->candidates = (proto_column_i32_t){self->candidates, self->candidate_count};
    return STATUS_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

proto_status_t
actor_drafter_rounds_new(draft_ring_t *ring, draft_t *draft, uint64_t epoch,
                         actor_drafter_rounds_t **out_p)
{
    const draft_ring_options_t *o = draft_ring_options(ring);
    size_t bs = o->slot_count;
    actor_drafter_rounds_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->ring = ring;
    self->draft = draft;
    self->epoch = epoch;
    self->bs_max = o->slot_count;
    self->width = o->width;
    const struct {
        void *at;
        size_t count;
        size_t size_bytes;
    } parts[] = {
        {&self->known, bs + 1, sizeof *self->known},
        {&self->sequence, o->model_len_max, sizeof *self->sequence},
        {&self->slots, bs, sizeof *self->slots},
        {&self->generations, bs, sizeof *self->generations},
        {&self->lengths, bs, sizeof *self->lengths},
        {&self->prefix_lens, bs, sizeof *self->prefix_lens},
        {&self->extend_lens, bs, sizeof *self->extend_lens},
        {&self->cu_lens, bs + 1, sizeof *self->cu_lens},
        {&self->next_ids, bs, sizeof *self->next_ids},
        {&self->token_rows, bs, sizeof *self->token_rows},
        {&self->seq_lens, bs, sizeof *self->seq_lens},
        {&self->accept_lengths, bs, sizeof *self->accept_lengths},
        {&self->tokens, bs * o->width, sizeof *self->tokens},
        {&self->samples, bs, sizeof *self->samples},
        {&self->is_lost, bs, sizeof *self->is_lost},
        {&self->counts, bs, sizeof *self->counts},
        {&self->candidates, bs * o->width, sizeof *self->candidates},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        void *memory = calloc(parts[i].count, parts[i].size_bytes);
        if (memory == NULL) {
            actor_drafter_rounds_destroy(&self);
            return STATUS_ERR_NO_MEMORY;
        }
        memcpy(parts[i].at, &memory, sizeof memory);
    }
    *out_p = self;
    return STATUS_OK;
}

void
actor_drafter_rounds_destroy(actor_drafter_rounds_t **self_p)
{
    require(self_p != NULL);
    actor_drafter_rounds_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    free(self->known);
    free(self->sequence);
    free(self->slots);
    free(self->generations);
    free(self->lengths);
    free(self->prefix_lens);
    free(self->extend_lens);
    free(self->cu_lens);
    free(self->next_ids);
    free(self->token_rows);
    free(self->seq_lens);
    free(self->accept_lengths);
    free(self->tokens);
    free(self->samples);
    free(self->is_lost);
    free(self->counts);
    free(self->candidates);
    free(self);
    *self_p = NULL;
}
