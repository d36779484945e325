#include "file_bpe.h"

#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>

#include "proto_require.h"

#define FREE_PAIR UINT64_MAX
#define NO_SYMBOL UINT32_MAX

proto_status_t
file_bpe_init(file_bpe_t *self, uint64_t count_max, file_error_t error)
{
    *self = (file_bpe_t){0};
    if (count_max > FILE_MERGE_COUNT_MAX) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tokenizer: %" PRIu64 " merges; at most %d are read", count_max,
                              FILE_MERGE_COUNT_MAX);
    }
    uint64_t slot_count = 64;
    while (slot_count < 2 * count_max) {
        slot_count *= 2;
    }
    self->slots = malloc(slot_count * sizeof *self->slots);
    if (self->slots == NULL) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory for the merges");
    }
    memset(self->slots, 0xff, slot_count * sizeof *self->slots);
    self->mask = slot_count - 1;
    randombytes_buf(&self->seed, sizeof self->seed);
    return STATUS_OK;
}

void
file_bpe_fini(file_bpe_t *self)
{
    free(self->slots);
    *self = (file_bpe_t){0};
}

static inline uint64_t
mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static inline file_merge_t *
find_slot(const file_bpe_t *self, uint64_t pair)
{
    uint64_t at = mix(pair ^ self->seed) & self->mask;
    while (self->slots[at].pair != pair && self->slots[at].pair != FREE_PAIR) {
        at = (at + 1) & self->mask;
    }
    return &self->slots[at];
}

static inline uint64_t
pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

proto_status_t
file_bpe_add(file_bpe_t *self, const file_vocab_t *vocab, file_view_t left, file_view_t right,
             file_error_t error)
{
    require(2 * (uint64_t)self->count < self->mask + 1);
    uint8_t bytes[FILE_TOKEN_SIZE_BYTES_MAX];
    uint32_t left_size = 0;
    uint32_t right_size = 0;
    int32_t left_id = FILE_ID_NONE;
    int32_t right_id = FILE_ID_NONE;
    int32_t id = FILE_ID_NONE;
    if (file_vocab_decode_spelling(left, bytes, sizeof bytes, &left_size) &&
        file_vocab_decode_spelling(right, bytes + left_size, sizeof bytes - left_size,
                                   &right_size)) {
        left_id = file_vocab_find_normal(vocab, bytes, left_size);
        right_id = file_vocab_find_normal(vocab, bytes + left_size, right_size);
        id = file_vocab_find_normal(vocab, bytes, left_size + right_size);
    }
    if (left_id < 0 || right_id < 0 || id < 0) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tokenizer: merge %" PRIu32 " ('%.40s' '%.40s') names a token that "
                              "the vocabulary lacks",
                              self->count, file_printable(left.bytes, left.size_bytes).text,
                              file_printable(right.bytes, right.size_bytes).text);
    }
    uint64_t pair = pair_of(left_id, right_id);
    file_merge_t *slot = find_slot(self, pair);
    if (slot->pair == pair) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tokenizer: merge %" PRIu32 " ('%.40s' '%.40s') stands twice",
                              self->count, file_printable(left.bytes, left.size_bytes).text,
                              file_printable(right.bytes, right.size_bytes).text);
    }
    *slot = (file_merge_t){pair, self->count, (uint32_t)id};
    self->count++;
    return STATUS_OK;
}

static inline void
sift_down(uint64_t *heap, uint32_t count, uint32_t at)
{
    uint64_t value = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count) {
            break;
        }
        child += child + 1 < count && heap[child + 1] < heap[child];
        if (value <= heap[child]) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = value;
}

static inline void
push(uint64_t *heap, uint32_t *count, uint64_t value)
{
    uint32_t at = (*count)++;
    while (at > 0 && heap[(at - 1) / 2] > value) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = value;
}

/* The merge of the symbol at `at` with its right neighbour, or NULL. */
static inline const file_merge_t *
merge_at(const file_bpe_t *self, const file_symbol_t *symbols, uint32_t at)
{
    if (symbols[at].id < 0 || symbols[at].next == NO_SYMBOL) {
        return NULL;
    }
    const file_merge_t *slot =
        find_slot(self, pair_of(symbols[at].id, symbols[symbols[at].next].id));
    return slot->pair == FREE_PAIR ? NULL : slot;
}

/* The lowest rank first, the leftmost of equal ones: a queue of (rank, position).  An entry is
 * stale if its pair has changed since; ranks name pairs, so comparing ranks tells.  Each merge
 * takes one entry and adds at most two, so twice the length is always enough. */
void
file_bpe_merge(const file_bpe_t *self, file_bpe_work_t *work, uint32_t count)
{
    require(count <= work->piece_size_bytes_max);
    file_symbol_t *symbols = work->symbols;
    uint64_t *heap = work->heap;
    uint32_t heap_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const file_merge_t *merge = merge_at(self, symbols, i);
        if (merge != NULL) {
            heap[heap_count++] = (uint64_t)merge->rank << 32 | i;
        }
    }
    for (uint32_t i = heap_count / 2; i-- > 0;) {
        sift_down(heap, heap_count, i);
    }
    while (heap_count > 0) {
        uint32_t rank = (uint32_t)(heap[0] >> 32);
        uint32_t at = (uint32_t)heap[0];
        heap[0] = heap[--heap_count];
        sift_down(heap, heap_count, 0);
        const file_merge_t *merge = merge_at(self, symbols, at);
        if (merge == NULL || merge->rank != rank) {
            continue;
        }
        uint32_t gone = symbols[at].next;
        symbols[at].id = (int32_t)merge->id;
        symbols[at].next = symbols[gone].next;
        symbols[gone].id = FILE_ID_NONE;
        if (symbols[at].next != NO_SYMBOL) {
            symbols[symbols[at].next].previous = at;
            merge = merge_at(self, symbols, at);
            if (merge != NULL) {
                push(heap, &heap_count, (uint64_t)merge->rank << 32 | at);
            }
        }
        if (symbols[at].previous != NO_SYMBOL) {
            merge = merge_at(self, symbols, symbols[at].previous);
            if (merge != NULL) {
                push(heap, &heap_count, (uint64_t)merge->rank << 32 | symbols[at].previous);
            }
        }
        require(heap_count <= 2 * work->piece_size_bytes_max);
    }
}
