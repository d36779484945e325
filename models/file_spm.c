#include "file_spm.h"

#include <math.h>
#include <stdlib.h>

#include "proto_require.h"

#define NO_SYMBOL UINT32_MAX

typedef struct {
    float score;
    uint32_t id;
} scored_t;

static int
by_score(const void *a, const void *b)
{
    const scored_t *left = a;
    const scored_t *right = b;
    if (left->score != right->score) {
        return left->score > right->score ? -1 : 1;
    }
    return left->id < right->id ? -1 : left->id > right->id;
}

proto_status_t
file_spm_init(file_spm_t *self, const float *scores, uint32_t count, file_error_t error)
{
    require(count > 0);
    *self = (file_spm_t){.count = count};
    scored_t *sorted = malloc(count * sizeof *sorted);
    self->ranks = malloc(count * sizeof *self->ranks);
    if (sorted == NULL || self->ranks == NULL) {
        free(sorted);
        file_spm_fini(self);
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory for the scores");
    }
    for (uint32_t i = 0; i < count; i++) {
        if (isnan(scores[i])) {
            free(sorted);
            file_spm_fini(self);
            return file_error_set(error, STATUS_ERR_MALFORMED,
                                  "tokenizer: the score of a token is not a number");
        }
        sorted[i] = (scored_t){scores[i], i};
    }
    qsort(sorted, count, sizeof *sorted, by_score);
    uint32_t rank = 0;
    for (uint32_t i = 0; i < count; i++) {
        rank += i > 0 && sorted[i].score != sorted[i - 1].score ? 1 : 0;
        self->ranks[sorted[i].id] = rank;
    }
    free(sorted);
    return STATUS_OK;
}

void
file_spm_fini(file_spm_t *self)
{
    free(self->ranks);
    *self = (file_spm_t){0};
}

/* What one call works on. */
typedef struct {
    const file_spm_t *spm;
    const file_vocab_t *vocab;
    file_symbol_t *symbols;
    uint64_t *heap;
    uint32_t heap_count;
    const uint8_t *text;
    uint32_t size_bytes;
} merger_t;

/* Where the symbol at `at` ends. */
static inline uint32_t
end_of(const merger_t *self, uint32_t at)
{
    uint32_t next = self->symbols[at].next;
    return next == NO_SYMBOL ? self->size_bytes : next;
}

static void
push(merger_t *self, uint64_t value)
{
    uint32_t at = self->heap_count++;
    while (at > 0 && self->heap[(at - 1) / 2] > value) {
        self->heap[at] = self->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    self->heap[at] = value;
}

static uint64_t
pop(merger_t *self)
{
    uint64_t best = self->heap[0];
    uint64_t value = self->heap[--self->heap_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= self->heap_count) {
            break;
        }
        child += child + 1 < self->heap_count && self->heap[child + 1] < self->heap[child];
        if (value <= self->heap[child]) {
            break;
        }
        self->heap[at] = self->heap[child];
        at = child;
    }
    self->heap[at] = value;
    return best;
}

/* The token that the symbol at `at` and its right neighbour make; FILE_ID_NONE if none. */
static int32_t
union_at(const merger_t *self, uint32_t at)
{
    uint32_t next = self->symbols[at].next;
    if (self->symbols[at].previous == at || next == NO_SYMBOL) {
        return FILE_ID_NONE;
    }
    uint32_t size = end_of(self, next) - at;
    return size > FILE_TOKEN_SIZE_BYTES_MAX
               ? FILE_ID_NONE
               : file_vocab_find_normal(self->vocab, self->text + at, size);
}

static void
offer(merger_t *self, uint32_t at)
{
    int32_t id = union_at(self, at);
    if (id >= 0) {
        push(self, (uint64_t)self->spm->ranks[id] << 32 | at);
    }
}

/* One symbol for each character. */
static void
cut(merger_t *self)
{
    uint32_t previous = NO_SYMBOL;
    for (size_t at = 0; at < self->size_bytes;) {
        uint32_t begin = (uint32_t)at;
        (void)file_utf8_next(self->text, self->size_bytes, &at);
        int32_t id = file_vocab_find_normal(self->vocab, self->text + begin, (uint32_t)at - begin);
        self->symbols[begin] = (file_symbol_t){id, previous, NO_SYMBOL};
        if (previous != NO_SYMBOL) {
            self->symbols[previous].next = begin;
        }
        previous = begin;
    }
}

/* An entry of the queue is stale if its symbol is gone (then it is its own `previous`) or has
 * another neighbour by now (then the union's rank differs, or is the same and as good). */
void
file_spm_merge(const file_spm_t *self, const file_vocab_t *vocab, file_bpe_work_t *work,
               const uint8_t *text, uint32_t size_bytes)
{
    require(size_bytes > 0 && size_bytes <= work->piece_size_bytes_max);
    require(vocab->count <= self->count);
    merger_t merger = {.spm = self,
                       .vocab = vocab,
                       .symbols = work->symbols,
                       .heap = work->heap,
                       .text = text,
                       .size_bytes = size_bytes};
    file_symbol_t *symbols = work->symbols;
    cut(&merger);
    for (uint32_t at = 0; at != NO_SYMBOL; at = symbols[at].next) {
        offer(&merger, at);
    }
    while (merger.heap_count > 0) {
        uint64_t entry = pop(&merger);
        uint32_t at = (uint32_t)entry;
        int32_t id = union_at(&merger, at);
        if (id < 0 || self->ranks[id] != (uint32_t)(entry >> 32)) {
            continue;
        }
        uint32_t gone = symbols[at].next;
        symbols[at].id = id;
        symbols[at].next = symbols[gone].next;
        symbols[gone].previous = gone;
        if (symbols[at].next != NO_SYMBOL) {
            symbols[symbols[at].next].previous = at;
            offer(&merger, at);
        }
        if (symbols[at].previous != NO_SYMBOL) {
            offer(&merger, symbols[at].previous);
        }
        require(merger.heap_count <= 2 * work->piece_size_bytes_max);
    }
}
