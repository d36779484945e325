/* actor_gateway_table.c - entries in one array, two open-addressing indexes and a binary heap of
 * entry numbers. */
#include "actor_gateway_table.h"

#include <stdbool.h>
#include <stdlib.h>

#include "proto_require.h"

#define NO_ENTRY UINT32_MAX

struct actor_gateway_table {
    actor_gateway_choice_t *entries; /* [count_max]; request 0 = free */
    uint32_t *by_request;            /* [index_size] entry numbers, linear probing */
    uint32_t *by_choice;             /* [index_size] */
    uint32_t *heap;                  /* [count] entry numbers, earliest deadline at 0 */
    uint32_t count_max;
    uint32_t index_mask; /* index_size - 1; the size is a power of two, at least twice the count */
    uint32_t count;
    uint32_t first_free;
    uint64_t digest; /* XOR over the entries in use */
};

uint64_t
actor_gateway_mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static uint64_t
hash_request(const actor_gateway_choice_t *choice)
{
    return actor_gateway_mix(choice->request);
}

static uint64_t
hash_choice(const actor_gateway_choice_t *choice)
{
    return actor_gateway_mix(choice->exchange * 65537u + choice->choice_index);
}

static uint64_t
entry_digest(const actor_gateway_choice_t *choice)
{
    uint64_t digest = actor_gateway_mix(choice->request);
    digest = actor_gateway_mix(digest ^ choice->exchange);
    digest = actor_gateway_mix(digest ^ choice->deadline_ns);
    digest =
        actor_gateway_mix(digest ^ ((uint64_t)choice->choice_index << 32) ^ choice->next_index);
    digest = actor_gateway_mix(digest ^ ((uint64_t)choice->stop_reason << 32) ^ choice->stop_index);
    return actor_gateway_mix(digest ^ choice->prompt_tokens);
}

proto_status_t
actor_gateway_table_new(uint32_t count_max, actor_gateway_table_t **out_p)
{
    require(out_p != NULL);
    require(count_max > 0);
    require(count_max <= (1u << 20));

    actor_gateway_table_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    uint32_t index_size = 16;
    while (index_size < 2 * count_max) {
        index_size *= 2;
    }
    self->count_max = count_max;
    self->index_mask = index_size - 1;
    self->entries = calloc(count_max, sizeof *self->entries);
    self->by_request = calloc(index_size, sizeof *self->by_request);
    self->by_choice = calloc(index_size, sizeof *self->by_choice);
    self->heap = calloc(count_max, sizeof *self->heap);
    if (self->entries == NULL || self->by_request == NULL || self->by_choice == NULL ||
        self->heap == NULL) {
        actor_gateway_table_destroy(&self);
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t at = 0; at < index_size; at++) {
        self->by_request[at] = NO_ENTRY;
        self->by_choice[at] = NO_ENTRY;
    }
    for (uint32_t at = 0; at < count_max; at++) {
        self->entries[at].next_free = at + 1 < count_max ? at + 1 : NO_ENTRY;
    }
    *out_p = self;
    return STATUS_OK;
}

void
actor_gateway_table_destroy(actor_gateway_table_t **self_p)
{
    require(self_p != NULL);
    actor_gateway_table_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    free(self->heap);
    free(self->by_choice);
    free(self->by_request);
    free(self->entries);
    free(self);
    *self_p = NULL;
}

/* ---- indexes --------------------------------------------------------------------------------- */

typedef uint64_t (*hash_fn)(const actor_gateway_choice_t *choice);

static void
index_insert(actor_gateway_table_t *self, uint32_t *index, hash_fn hash, uint32_t entry)
{
    uint32_t at = (uint32_t)hash(&self->entries[entry]) & self->index_mask;
    while (index[at] != NO_ENTRY) {
        at = (at + 1) & self->index_mask;
    }
    index[at] = entry;
}

/* Takes the entry out and closes the gap, so that no probe chain breaks and none needs a mark. */
static void
index_remove(actor_gateway_table_t *self, uint32_t *index, hash_fn hash, uint32_t entry)
{
    uint32_t at = (uint32_t)hash(&self->entries[entry]) & self->index_mask;
    while (index[at] != entry) {
        require(index[at] != NO_ENTRY);
        at = (at + 1) & self->index_mask;
    }
    uint32_t hole = at;
    for (;;) {
        at = (at + 1) & self->index_mask;
        if (index[at] == NO_ENTRY) {
            break;
        }
        uint32_t home = (uint32_t)hash(&self->entries[index[at]]) & self->index_mask;
        if (((at - home) & self->index_mask) >= ((at - hole) & self->index_mask)) {
            index[hole] = index[at];
            hole = at;
        }
    }
    index[hole] = NO_ENTRY;
}

actor_gateway_choice_t *
actor_gateway_table_find(actor_gateway_table_t *self, uint64_t request)
{
    if (request == 0) {
        return NULL;
    }
    actor_gateway_choice_t key = {.request = request};
    uint32_t at = (uint32_t)hash_request(&key) & self->index_mask;
    while (self->by_request[at] != NO_ENTRY) {
        actor_gateway_choice_t *choice = &self->entries[self->by_request[at]];
        if (choice->request == request) {
            return choice;
        }
        at = (at + 1) & self->index_mask;
    }
    return NULL;
}

actor_gateway_choice_t *
actor_gateway_table_find_choice(actor_gateway_table_t *self, uint64_t exchange,
                                uint32_t choice_index)
{
    actor_gateway_choice_t key = {.exchange = exchange, .choice_index = choice_index};
    uint32_t at = (uint32_t)hash_choice(&key) & self->index_mask;
    while (self->by_choice[at] != NO_ENTRY) {
        actor_gateway_choice_t *choice = &self->entries[self->by_choice[at]];
        if (choice->exchange == exchange && choice->choice_index == choice_index) {
            return choice;
        }
        at = (at + 1) & self->index_mask;
    }
    return NULL;
}

/* ---- deadline heap --------------------------------------------------------------------------- */

static uint64_t
heap_deadline(const actor_gateway_table_t *self, uint32_t at)
{
    return self->entries[self->heap[at]].deadline_ns;
}

static void
heap_put(actor_gateway_table_t *self, uint32_t at, uint32_t entry)
{
    self->heap[at] = entry;
    self->entries[entry].heap_at = at;
}

static void
heap_settle(actor_gateway_table_t *self, uint32_t at)
{
    uint32_t entry = self->heap[at];
    uint64_t deadline_ns = self->entries[entry].deadline_ns;
    while (at > 0 && heap_deadline(self, (at - 1) / 2) > deadline_ns) {
        heap_put(self, at, self->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= self->count) {
            break;
        }
        if (child + 1 < self->count &&
            heap_deadline(self, child + 1) < heap_deadline(self, child)) {
            child++;
        }
        if (heap_deadline(self, child) >= deadline_ns) {
            break;
        }
        heap_put(self, at, self->heap[child]);
        at = child;
    }
    heap_put(self, at, entry);
}

void
actor_gateway_table_set_deadline(actor_gateway_table_t *self, actor_gateway_choice_t *choice,
                                 uint64_t deadline_ns)
{
    actor_gateway_table_fold(self, choice);
    choice->deadline_ns = deadline_ns;
    actor_gateway_table_fold(self, choice);
    heap_settle(self, choice->heap_at);
}

actor_gateway_choice_t *
actor_gateway_table_first(const actor_gateway_table_t *self)
{
    return self->count == 0 ? NULL : &self->entries[self->heap[0]];
}

/* ---- entries --------------------------------------------------------------------------------- */

actor_gateway_choice_t *
actor_gateway_table_acquire(actor_gateway_table_t *self, uint64_t request, uint64_t exchange,
                            uint32_t choice_index)
{
    require(request != 0);
    require(actor_gateway_table_find(self, request) == NULL);
    require(actor_gateway_table_find_choice(self, exchange, choice_index) == NULL);
    if (self->first_free == NO_ENTRY) {
        return NULL;
    }
    uint32_t entry = self->first_free;
    actor_gateway_choice_t *choice = &self->entries[entry];
    self->first_free = choice->next_free;
    *choice = (actor_gateway_choice_t){
        .exchange = exchange,
        .request = request,
        .deadline_ns = UINT64_MAX,
        .choice_index = choice_index,
        .next_free = NO_ENTRY,
    };
    index_insert(self, self->by_request, hash_request, entry);
    index_insert(self, self->by_choice, hash_choice, entry);
    heap_put(self, self->count, entry);
    self->count++;
    heap_settle(self, choice->heap_at);
    actor_gateway_table_fold(self, choice);
    return choice;
}

void
actor_gateway_table_release(actor_gateway_table_t *self, actor_gateway_choice_t *choice)
{
    uint32_t entry = (uint32_t)(choice - self->entries);
    require(entry < self->count_max);
    require(choice->request != 0);
    actor_gateway_table_fold(self, choice);
    index_remove(self, self->by_request, hash_request, entry);
    index_remove(self, self->by_choice, hash_choice, entry);
    uint32_t at = choice->heap_at;
    self->count--;
    if (at != self->count) {
        heap_put(self, at, self->heap[self->count]);
        heap_settle(self, at);
    }
    choice->request = 0;
    choice->next_free = self->first_free;
    self->first_free = entry;
}

void
actor_gateway_table_fold(actor_gateway_table_t *self, const actor_gateway_choice_t *choice)
{
    self->digest ^= entry_digest(choice);
}

uint32_t
actor_gateway_table_count(const actor_gateway_table_t *self)
{
    return self->count;
}

uint64_t
actor_gateway_table_digest(const actor_gateway_table_t *self)
{
    return self->digest;
}

void
actor_gateway_table_check(const actor_gateway_table_t *self)
{
    uint32_t free_count = 0;
    for (uint32_t at = self->first_free; at != NO_ENTRY; at = self->entries[at].next_free) {
        require(self->entries[at].request == 0);
        free_count++;
        require(free_count <= self->count_max);
    }
    require(free_count + self->count == self->count_max);
    uint64_t digest = 0;
    for (uint32_t at = 0; at < self->count; at++) {
        const actor_gateway_choice_t *choice = &self->entries[self->heap[at]];
        require(choice->request != 0);
        require(choice->heap_at == at);
        require(at == 0 || heap_deadline(self, (at - 1) / 2) <= choice->deadline_ns);
        require(choice->stop_reason == PROTO_FINISH_NONE || choice->deadline_ns != UINT64_MAX);
        digest ^= entry_digest(choice);
    }
    require(digest == self->digest);
    uint32_t indexed = 0;
    for (uint32_t at = 0; at <= self->index_mask; at++) {
        indexed += self->by_request[at] != NO_ENTRY;
        indexed += self->by_choice[at] != NO_ENTRY;
    }
    require(indexed == 2 * self->count);
}
