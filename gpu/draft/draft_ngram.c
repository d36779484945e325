/* Each slot has its tokens and, for each length n, a table from the hash of n tokens to the
 * position behind their last occurrence.  A token is entered when the next one comes, so that the
 * end of the sequence never finds itself. */
#include "draft_ngram.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum {
    LENGTH_MIN = 2,
    LENGTH_MAX = 4,
    TABLE_COUNT = LENGTH_MAX - LENGTH_MIN + 1,
};

typedef struct {
    int32_t *tokens; /* [model_len_max] */
    uint32_t count;
    uint32_t *tables[TABLE_COUNT]; /* [table_len]: a position, 0 = none */
} sequence_t;

typedef struct {
    draft_t base;
    uint32_t model_len_max;
    uint32_t table_len;    /* a power of two */
    sequence_t *sequences; /* [slot_count + 1] */
    int32_t *candidates;   /* [bs_max][width - 1] */
} ngram_t;

static uint32_t
hash_of(const int32_t *tokens, uint32_t length, uint32_t table_len)
{
    uint64_t hash = length;
    for (uint32_t i = 0; i < length; i++) {
        hash = (hash ^ (uint32_t)tokens[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return (uint32_t)(hash & (table_len - 1));
}

/* What ends at `end` gets that position as the place where it goes on. */
static void
enter(const ngram_t *self, sequence_t *sequence, uint32_t end)
{
    for (uint32_t t = 0; t < TABLE_COUNT; t++) {
        uint32_t length = LENGTH_MIN + t;
        if (end >= length) {
            const int32_t *tokens = sequence->tokens + end - length;
            sequence->tables[t][hash_of(tokens, length, self->table_len)] = end;
        }
    }
}

static void
append(const ngram_t *self, sequence_t *sequence, const int32_t *tokens, uint32_t count)
{
    uint32_t room = self->model_len_max - sequence->count;
    count = count < room ? count : room;
    for (uint32_t i = 0; i < count; i++) {
        enter(self, sequence, sequence->count);
        sequence->tokens[sequence->count++] = tokens[i];
    }
}

/* Where the sequence went on the last time that its end occurred; 0 = it never did. */
static uint32_t
find(const ngram_t *self, const sequence_t *sequence)
{
    for (uint32_t t = TABLE_COUNT; t > 0; t--) {
        uint32_t length = LENGTH_MIN + t - 1;
        if (sequence->count <= length) {
            continue;
        }
        const int32_t *last = sequence->tokens + sequence->count - length;
        uint32_t at = sequence->tables[t - 1][hash_of(last, length, self->table_len)];
        if (at >= length &&
            memcmp(sequence->tokens + at - length, last, length * sizeof *last) == 0) {
            return at;
        }
    }
    return 0;
}

static void
propose_for(const ngram_t *self, const sequence_t *sequence, int32_t *out)
{
    uint32_t count = self->base.info.width - 1;
    uint32_t at = find(self, sequence);
    for (uint32_t i = 0; i < count; i++) {
        /* Beyond the end it goes on as what was found: a loop repeats itself. */
        uint32_t from = at + i;
        out[i] = at == 0                  ? -1
                 : from < sequence->count ? sequence->tokens[from]
                                          : out[from - sequence->count];
    }
}

static proto_status_t
ngram_propose(draft_t *base, const draft_round_t *round, draft_proposal_t *out)
{
    ngram_t *self = (ngram_t *)(void *)base;
    uint32_t sampled = 0;
    for (uint32_t i = 0; i < round->num_extends; i++) {
        sampled += round->extend_samples_host[i] != 0;
    }
    uint32_t decodes = round->bs - round->num_extends;
    for (uint32_t d = 0; d < decodes; d++) {
        int32_t accepted = round->accept_lengths[d];
        if (accepted < 0 || (uint32_t)accepted > round->width) {
            return STATUS_ERR_INVALID;
        }
    }
    uint32_t stride = base->info.width - 1;
    uint32_t sample = 0;
    for (uint32_t b = 0; b < round->bs; b++) {
        sequence_t *sequence = &self->sequences[round->slots_host[b]];
        const int32_t *tokens = round->tokens + sample;
        uint32_t count = 1;
        if (b >= round->num_extends) {
            uint32_t d = b - round->num_extends;
            tokens = round->tokens + sampled + (size_t)d * round->width;
            count = (uint32_t)round->accept_lengths[d];
        } else if (round->extend_samples_host[b] != 0) {
            sample++;
        } else {
            count = 0;
        }
        append(self, sequence, tokens, count);
        int32_t *row = self->candidates + (size_t)b * stride;
        if (count > 0) {
            propose_for(self, sequence, row);
        } else {
            memset(row, 0xff, stride * sizeof *row); /* -1 */
        }
    }
    *out = (draft_proposal_t){.candidates = self->candidates, .count = stride};
    return STATUS_OK;
}

static void
ngram_begin(draft_t *base, uint32_t slot, const int32_t *tokens, uint32_t token_count)
{
    ngram_t *self = (ngram_t *)(void *)base;
    sequence_t *sequence = &self->sequences[slot];
    sequence->count = 0;
    for (uint32_t t = 0; t < TABLE_COUNT; t++) {
        memset(sequence->tables[t], 0, self->table_len * sizeof *sequence->tables[t]);
    }
    append(self, sequence, tokens, token_count);
}

static void
ngram_destroy(draft_t *base)
{
    ngram_t *self = (ngram_t *)(void *)base;
    for (uint32_t s = 1; self->sequences != NULL && s <= base->slot_count; s++) {
        free(self->sequences[s].tokens);
        for (uint32_t t = 0; t < TABLE_COUNT; t++) {
            free(self->sequences[s].tables[t]);
        }
    }
    free(self->sequences);
    free(self->candidates);
    free(self);
}

static const draft_vtable_t ngram_vtable = {
    .destroy = ngram_destroy,
    .begin = ngram_begin,
    .propose = ngram_propose,
};

static bool
allocate(ngram_t *self)
{
    size_t slots = (size_t)self->base.slot_count + 1;
    self->sequences = calloc(slots, sizeof *self->sequences);
    self->candidates =
        calloc((size_t)self->base.bs_max * (self->base.info.width - 1), sizeof *self->candidates);
    bool is_whole = self->sequences != NULL && self->candidates != NULL;
    for (uint32_t s = 1; is_whole && s < slots; s++) {
        sequence_t *sequence = &self->sequences[s];
        sequence->tokens = calloc(self->model_len_max, sizeof *sequence->tokens);
        is_whole = sequence->tokens != NULL;
        for (uint32_t t = 0; is_whole && t < TABLE_COUNT; t++) {
            sequence->tables[t] = calloc(self->table_len, sizeof *sequence->tables[t]);
            is_whole = sequence->tables[t] != NULL;
        }
    }
    return is_whole;
}

proto_status_t
draft_ngram_new(const draft_ngram_options_t *options, draft_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);
    require(options->width >= 2);
    require(options->width <= DRAFT_WIDTH_MAX);
    require(options->slot_count >= 1);
    require(options->model_len_max >= 1);
    ngram_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->base = (draft_t){
        .vtable = &ngram_vtable,
        .info = {.kind = "ngram",
                 .is_host = true,
                 .width = options->width,
                 .vocabulary = options->vocabulary},
        .slot_count = options->slot_count,
        .bs_max = options->slot_count,
        .rows_max = options->rows_max,
    };
    self->model_len_max = options->model_len_max;
    self->table_len = 64;
    while (self->table_len < 2 * options->model_len_max) {
        self->table_len *= 2;
    }
    if (!allocate(self)) {
        ngram_destroy(&self->base);
        return STATUS_ERR_NO_MEMORY;
    }
    *out_p = &self->base;
    return STATUS_OK;
}
