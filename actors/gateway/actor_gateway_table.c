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
    uint32_t oldest; /* entry numbers, or NO_ENTRY */
    uint32_t newest;
    uint64_t arrival_count;
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

/* Lengths and times, not the tokens themselves: a log without them has the same digests. */
static uint64_t
entry_digest(const actor_gateway_choice_t *choice)
{
    const uint64_t values[] = {
        choice->request,
        choice->exchange,
        choice->client_deadline_ns,
        choice->finish_deadline_ns,
        choice->wait_until_ns,
        choice->retry_ns,
        (uint64_t)choice->priority,
        (uint64_t)choice->choice_index << 32 | choice->next_index,
        (uint64_t)choice->stop_reason << 32 | choice->stop_index,
        (uint64_t)choice->prompt_tokens << 32 | choice->generation_max,
        (uint64_t)choice->attempt_count << 32 | (choice->is_waiting ? 1u : 0u) |
            (choice->is_lost ? 2u : 0u) | (choice->was_waiting ? 4u : 0u) |
            (choice->is_kept ? 8u : 0u) | (choice->is_trial ? 16u : 0u),
        (uint64_t)choice->kill_count << 32 | choice->kill_index,
        (uint64_t)choice->sampling_size << 32 ^ choice->record.size_bytes,
    };
    uint64_t digest = 0;
    for (size_t at = 0; at < sizeof values / sizeof values[0]; at++) {
        digest = actor_gateway_mix(digest ^ values[at]);
    }
    return digest;
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
    self->oldest = NO_ENTRY;
    self->newest = NO_ENTRY;
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

/* A total order: which of two comes first does not depend on the heap's history. */
static bool
is_before(const actor_gateway_choice_t *a, const actor_gateway_choice_t *b)
{
    return a->deadline_ns != b->deadline_ns ? a->deadline_ns < b->deadline_ns
                                            : a->arrival < b->arrival;
}

static const actor_gateway_choice_t *
heap_entry(const actor_gateway_table_t *self, uint32_t at)
{
    return &self->entries[self->heap[at]];
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
    const actor_gateway_choice_t *choice = &self->entries[entry];
    while (at > 0 && is_before(choice, heap_entry(self, (at - 1) / 2))) {
        heap_put(self, at, self->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= self->count) {
            break;
        }
        if (child + 1 < self->count &&
            is_before(heap_entry(self, child + 1), heap_entry(self, child))) {
            child++;
        }
        if (is_before(choice, heap_entry(self, child))) {
            break;
        }
        heap_put(self, at, self->heap[child]);
        at = child;
    }
    heap_put(self, at, entry);
}

static uint64_t
earliest(const actor_gateway_choice_t *choice)
{
    if (choice->stop_reason != PROTO_FINISH_NONE) {
        return choice->finish_deadline_ns;
    }
    uint64_t deadline_ns = choice->client_deadline_ns;
    if (choice->is_waiting) {
        deadline_ns = choice->wait_until_ns < deadline_ns ? choice->wait_until_ns : deadline_ns;
        if (choice->retry_ns != 0) {
            deadline_ns = choice->retry_ns < deadline_ns ? choice->retry_ns : deadline_ns;
        }
    }
    return deadline_ns;
}

void
actor_gateway_table_begin(actor_gateway_table_t *self, const actor_gateway_choice_t *choice)
{
    self->digest ^= entry_digest(choice);
}

void
actor_gateway_table_end(actor_gateway_table_t *self, actor_gateway_choice_t *choice)
{
    self->digest ^= entry_digest(choice);
    uint64_t deadline_ns = earliest(choice);
    if (deadline_ns != choice->deadline_ns) {
        choice->deadline_ns = deadline_ns;
        heap_settle(self, choice->heap_at);
    }
}

actor_gateway_choice_t *
actor_gateway_table_first(const actor_gateway_table_t *self)
{
    return self->count == 0 ? NULL : &self->entries[self->heap[0]];
}

/* ---- age ------------------------------------------------------------------------------------- */

static actor_gateway_choice_t *
entry_or_null(const actor_gateway_table_t *self, uint32_t entry)
{
    return entry == NO_ENTRY ? NULL : &self->entries[entry];
}

actor_gateway_choice_t *
actor_gateway_table_oldest(const actor_gateway_table_t *self)
{
    return entry_or_null(self, self->oldest);
}

actor_gateway_choice_t *
actor_gateway_table_newer(const actor_gateway_table_t *self, const actor_gateway_choice_t *choice)
{
    return entry_or_null(self, choice->newer);
}

static void
age_append(actor_gateway_table_t *self, uint32_t entry)
{
    actor_gateway_choice_t *choice = &self->entries[entry];
    choice->arrival = ++self->arrival_count;
    choice->older = self->newest;
    choice->newer = NO_ENTRY;
    if (self->newest != NO_ENTRY) {
        self->entries[self->newest].newer = entry;
    } else {
        self->oldest = entry;
    }
    self->newest = entry;
}

static void
age_remove(actor_gateway_table_t *self, const actor_gateway_choice_t *choice)
{
    if (choice->older != NO_ENTRY) {
        self->entries[choice->older].newer = choice->newer;
    } else {
        self->oldest = choice->newer;
    }
    if (choice->newer != NO_ENTRY) {
        self->entries[choice->newer].older = choice->older;
    } else {
        self->newest = choice->older;
    }
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
        .client_deadline_ns = UINT64_MAX,
        .choice_index = choice_index,
        .next_free = NO_ENTRY,
    };
    index_insert(self, self->by_request, hash_request, entry);
    index_insert(self, self->by_choice, hash_choice, entry);
    age_append(self, entry);
    heap_put(self, self->count, entry);
    self->count++;
    heap_settle(self, choice->heap_at);
    self->digest ^= entry_digest(choice);
    return choice;
}

void
actor_gateway_table_release(actor_gateway_table_t *self, actor_gateway_choice_t *choice)
{
    uint32_t entry = (uint32_t)(choice - self->entries);
    require(entry < self->count_max);
    require(choice->request != 0);
    self->digest ^= entry_digest(choice);
    age_remove(self, choice);
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
actor_gateway_table_rename(actor_gateway_table_t *self, actor_gateway_choice_t *choice,
                           uint64_t request)
{
    uint32_t entry = (uint32_t)(choice - self->entries);
    require(request != 0);
    require(actor_gateway_table_find(self, request) == NULL);
    index_remove(self, self->by_request, hash_request, entry);
    self->digest ^= entry_digest(choice);
    choice->request = request;
    self->digest ^= entry_digest(choice);
    index_insert(self, self->by_request, hash_request, entry);
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

static void
check_ages(const actor_gateway_table_t *self)
{
    uint32_t count = 0;
    uint32_t older = NO_ENTRY;
    for (uint32_t at = self->oldest; at != NO_ENTRY; at = self->entries[at].newer) {
        require(self->entries[at].request != 0);
        require(self->entries[at].older == older);
        require(older == NO_ENTRY || self->entries[older].arrival < self->entries[at].arrival);
        older = at;
        count++;
        require(count <= self->count);
    }
    require(older == self->newest);
    require(count == self->count);
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
        require(at == 0 || is_before(heap_entry(self, (at - 1) / 2), choice));
        require(choice->deadline_ns == earliest(choice));
        require(choice->stop_reason == PROTO_FINISH_NONE || !choice->is_waiting);
        digest ^= entry_digest(choice);
    }
    require(digest == self->digest);
    check_ages(self);
    uint32_t indexed = 0;
    for (uint32_t at = 0; at <= self->index_mask; at++) {
        indexed += self->by_request[at] != NO_ENTRY;
        indexed += self->by_choice[at] != NO_ENTRY;
    }
    require(indexed == 2 * self->count);
}
