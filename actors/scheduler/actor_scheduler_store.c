#include "actor_scheduler_store.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

#define NONE UINT32_MAX /* no unit */

enum {
    SAMPLING_SIZE_MAX = 16384, /* bytes; the limit of SUBMIT.sampling */
    HASHES_SIZE_MAX = PROTO_PAGES_MAX * PROTO_HASH_SIZE_BYTES,
    UNIT_SHIFT = 10, /* the smallest stretch: 1 KiB */
    ORDERS_MAX = 32,
    SIZE_MIN_BYTES = 65536,
};

/* At the start of each stretch that is in use. */
typedef struct {
    uint32_t token_count;
    uint32_t sampling_size;
    uint64_t hashes_size;
} head_t;

typedef struct {
    uint32_t previous;
    uint32_t next;
    uint8_t order;
    bool is_free;    /* it begins a free stretch of `order` */
    bool is_used;    /* it begins a stretch in use */
    bool is_claimed; /* after a load: somebody owns it */
} unit_t;

struct actor_scheduler_store {
    uint8_t *memory;
    unit_t *units;
    uint32_t unit_count;
    uint32_t order_max;
    uint32_t free_heads[ORDERS_MAX];
    size_t used_bytes;
};

static void
push(actor_scheduler_store_t *self, uint32_t at, uint32_t order)
{
    unit_t *unit = &self->units[at];
    *unit = (unit_t){.previous = NONE,
                     .next = self->free_heads[order],
                     .order = (uint8_t)order,
                     .is_free = true};
    if (unit->next != NONE) {
        self->units[unit->next].previous = at;
    }
    self->free_heads[order] = at;
}

static void
take(actor_scheduler_store_t *self, uint32_t at)
{
    unit_t *unit = &self->units[at];
    require(unit->is_free);
    if (unit->previous != NONE) {
        self->units[unit->previous].next = unit->next;
    } else {
        self->free_heads[unit->order] = unit->next;
    }
    if (unit->next != NONE) {
        self->units[unit->next].previous = unit->previous;
    }
    unit->is_free = false;
}

proto_status_t
actor_scheduler_store_new(size_t size_bytes, actor_scheduler_store_t **out_p)
{
    require(out_p != NULL);
    size_t size = SIZE_MIN_BYTES;
    uint32_t order = 16 - UNIT_SHIFT;
    while (size < size_bytes && order < ORDERS_MAX - 2) {
        size *= 2;
        order++;
    }
    actor_scheduler_store_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->unit_count = 1u << order;
    self->order_max = order;
    self->memory = aligned_alloc(PROTO_COLUMN_ALIGN, size);
    self->units = calloc(self->unit_count, sizeof *self->units);
    if (self->memory == NULL || self->units == NULL) {
        actor_scheduler_store_destroy(&self);
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < ORDERS_MAX; i++) {
        self->free_heads[i] = NONE;
    }
    push(self, 0, order);
    *out_p = self;
    return STATUS_OK;
}

void
actor_scheduler_store_destroy(actor_scheduler_store_t **self_p)
{
    actor_scheduler_store_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    free(self->memory);
    free(self->units);
    free(self);
    *self_p = NULL;
}

static size_t
align_up(size_t value)
{
    return (value + PROTO_COLUMN_ALIGN - 1) / PROTO_COLUMN_ALIGN * PROTO_COLUMN_ALIGN;
}

typedef struct {
    size_t tokens_at;
    size_t sampling_at;
    size_t hashes_at;
    size_t size;
} layout_t;

static layout_t
layout_of(const head_t *head)
{
    layout_t layout;
    layout.tokens_at = align_up(sizeof *head);
    layout.sampling_at = align_up(layout.tokens_at + (size_t)head->token_count * sizeof(int32_t));
    layout.hashes_at = align_up(layout.sampling_at + head->sampling_size);
    layout.size = layout.hashes_at + head->hashes_size;
    return layout;
}

static uint32_t
order_of(size_t size_bytes)
{
    uint32_t order = 0;
    while ((size_t)1 << (order + UNIT_SHIFT) < size_bytes) {
        order++;
    }
    return order;
}

/* A stretch of exactly 2^order units, split off a larger one if need be; NONE if there is none. */
static uint32_t
acquire(actor_scheduler_store_t *self, uint32_t order)
{
    uint32_t from = order;
    while (from <= self->order_max && self->free_heads[from] == NONE) {
        from++;
    }
    if (from > self->order_max) {
        return NONE;
    }
    uint32_t at = self->free_heads[from];
    take(self, at);
    while (from > order) {
        from--;
        push(self, at + (1u << from), from);
    }
    self->units[at] = (unit_t){.order = (uint8_t)order, .is_used = true};
    self->used_bytes += (size_t)1 << (order + UNIT_SHIFT);
    return at;
}

static void
copy(uint8_t *to, const void *from, size_t size_bytes)
{
    if (size_bytes > 0) {
        memcpy(to, from, size_bytes);
    }
}

proto_status_t
actor_scheduler_store_put(actor_scheduler_store_t *self, const actor_scheduler_content_t *content,
                          actor_scheduler_parcel_t *out)
{
    head_t head = {.token_count = content->tokens.count,
                   .sampling_size = content->sampling.count,
                   .hashes_size = content->page_hashes.size_bytes};
    layout_t layout = layout_of(&head);
    uint32_t order = order_of(layout.size);
    if (order > self->order_max) {
        return STATUS_ERR_TOO_LARGE;
    }
    uint32_t at = acquire(self, order);
    if (at == NONE) {
        return STATUS_FULL;
    }
    uint8_t *base = self->memory + ((size_t)at << UNIT_SHIFT);
    memcpy(base, &head, sizeof head);
    copy(base + layout.tokens_at, content->tokens.data, head.token_count * sizeof(int32_t));
    copy(base + layout.sampling_at, content->sampling.data, head.sampling_size);
    copy(base + layout.hashes_at, content->page_hashes.data, head.hashes_size);
    out->value = at + 1;
    return STATUS_OK;
}

actor_scheduler_content_t
actor_scheduler_store_get(const actor_scheduler_store_t *self, actor_scheduler_parcel_t parcel)
{
    require(parcel.value >= 1 && parcel.value <= self->unit_count);
    require(self->units[parcel.value - 1].is_used);
    const uint8_t *base = self->memory + ((size_t)(parcel.value - 1) << UNIT_SHIFT);
    head_t head;
    memcpy(&head, base, sizeof head);
    layout_t layout = layout_of(&head);
    return (actor_scheduler_content_t){
        .tokens = {(const int32_t *)(const void *)(base + layout.tokens_at), head.token_count},
        .sampling = {base + layout.sampling_at, head.sampling_size},
        .page_hashes = {base + layout.hashes_at, head.hashes_size},
    };
}

void
actor_scheduler_store_drop(actor_scheduler_store_t *self, actor_scheduler_parcel_t parcel)
{
    require(parcel.value >= 1 && parcel.value <= self->unit_count);
    uint32_t at = parcel.value - 1;
    require(self->units[at].is_used);
    uint32_t order = self->units[at].order;
    self->units[at].is_used = false;
    self->used_bytes -= (size_t)1 << (order + UNIT_SHIFT);
    while (order < self->order_max) {
        uint32_t buddy = at ^ 1u << order;
        if (!self->units[buddy].is_free || self->units[buddy].order != order) {
            break;
        }
        take(self, buddy);
        at = at < buddy ? at : buddy;
        order++;
    }
    push(self, at, order);
}

/* ---- saving ---------------------------------------------------------------------------------- */

static actor_scheduler_content_t
content_at(const actor_scheduler_store_t *self, uint32_t at)
{
    return actor_scheduler_store_get(self, (actor_scheduler_parcel_t){at + 1});
}

void
actor_scheduler_store_save(const actor_scheduler_store_t *self, proto_pack_t *state,
                           proto_pack_t *secret)
{
    uint32_t used = 0;
    for (uint32_t at = 0; at < self->unit_count; at += 1u << self->units[at].order) {
        used += self->units[at].is_used ? 1 : 0;
    }
    proto_pack_u32(state, used);
    for (uint32_t at = 0; at < self->unit_count; at += 1u << self->units[at].order) {
        if (!self->units[at].is_used) {
            continue;
        }
        actor_scheduler_content_t content = content_at(self, at);
        proto_pack_u32(state, at);
        proto_pack_u32(state, content.tokens.count);
        proto_pack_u32(state, content.sampling.count);
        proto_pack_bytes(state, content.page_hashes.data, content.page_hashes.size_bytes);
        for (uint32_t i = 0; i < content.tokens.count; i++) {
            proto_pack_u32(secret, (uint32_t)content.tokens.data[i]);
        }
        proto_pack_raw(secret, content.sampling.data, content.sampling.count);
    }
    /* In the order of the lists: it decides where the next stretch is taken from. */
    for (uint32_t order = 0; order <= self->order_max; order++) {
        uint32_t count = 0;
        for (uint32_t at = self->free_heads[order]; at != NONE; at = self->units[at].next) {
            count++;
        }
        proto_pack_u32(state, count);
        for (uint32_t at = self->free_heads[order]; at != NONE; at = self->units[at].next) {
            proto_pack_u32(state, at);
        }
    }
}

/* Marks `at` as the begin of a stretch of `order`; false if it cannot be one. */
static bool
place(actor_scheduler_store_t *self, uint32_t at, uint32_t order, bool is_free)
{
    unit_t *unit = &self->units[at];
    if (order > self->order_max || at % (1u << order) != 0 || unit->is_free || unit->is_used) {
        return false;
    }
    *unit = (unit_t){.previous = NONE,
                     .next = NONE,
                     .order = (uint8_t)order,
                     .is_free = is_free,
                     .is_used = !is_free};
    return true;
}

static void
load_parcel(actor_scheduler_store_t *self, proto_unpack_t *state, proto_unpack_t *secret)
{
    uint32_t at = proto_unpack_u32_max(state, self->unit_count - 1);
    head_t head = {.token_count = proto_unpack_u32_max(state, PROTO_TOKENS_MAX),
                   .sampling_size = proto_unpack_u32_max(state, SAMPLING_SIZE_MAX)};
    proto_bytes_t hashes = proto_unpack_bytes(state, HASHES_SIZE_MAX);
    head.hashes_size = hashes.size_bytes;
    layout_t layout = layout_of(&head);
    uint32_t order = order_of(layout.size);
    if (state->failed || !place(self, at, order, false) || (1u << order) > self->unit_count - at) {
        proto_unpack_fail(state);
        return;
    }
    self->used_bytes += (size_t)1 << (order + UNIT_SHIFT);
    uint8_t *base = self->memory + ((size_t)at << UNIT_SHIFT);
    memcpy(base, &head, sizeof head);
    int32_t *tokens = (int32_t *)(void *)(base + layout.tokens_at);
    for (uint32_t i = 0; i < head.token_count; i++) {
        tokens[i] = (int32_t)proto_unpack_u32(secret);
    }
    proto_unpack_raw(secret, base + layout.sampling_at, head.sampling_size);
    copy(base + layout.hashes_at, hashes.data, head.hashes_size);
}

static void
load_free(actor_scheduler_store_t *self, uint32_t order, proto_unpack_t *state)
{
    uint32_t count = proto_unpack_u32_max(state, self->unit_count >> order);
    uint32_t tail = NONE;
    self->free_heads[order] = NONE;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = proto_unpack_u32_max(state, self->unit_count - 1);
        if (state->failed || !place(self, at, order, true)) {
            proto_unpack_fail(state);
            return;
        }
        self->units[at].previous = tail;
        if (tail != NONE) {
            self->units[tail].next = at;
        } else {
            self->free_heads[order] = at;
        }
        tail = at;
    }
}

void
actor_scheduler_store_load(actor_scheduler_store_t *self, proto_unpack_t *state,
                           proto_unpack_t *secret)
{
    require(self->used_bytes == 0);
    take(self, 0); /* all of it, as one free stretch */
    uint32_t count = proto_unpack_u32_max(state, self->unit_count);
    for (uint32_t i = 0; i < count && !state->failed; i++) {
        load_parcel(self, state, secret);
    }
    for (uint32_t order = 0; order <= self->order_max && !state->failed; order++) {
        load_free(self, order, state);
        for (uint32_t at = self->free_heads[order]; at != NONE; at = self->units[at].next) {
            count++;
        }
    }
    if (state->failed) {
        return;
    }
    /* The stretches follow each other without gaps, and none lies within another. */
    uint32_t at = 0;
    while (at < self->unit_count && (self->units[at].is_free || self->units[at].is_used)) {
        at += 1u << self->units[at].order;
        count--;
    }
    if (at != self->unit_count || count != 0) {
        proto_unpack_fail(state);
    }
}

bool
actor_scheduler_store_claim(actor_scheduler_store_t *self, uint64_t parcel,
                            actor_scheduler_content_t *out)
{
    if (parcel == 0 || parcel > self->unit_count || !self->units[parcel - 1].is_used ||
        self->units[parcel - 1].is_claimed) {
        return false;
    }
    self->units[parcel - 1].is_claimed = true;
    *out = content_at(self, (uint32_t)parcel - 1);
    return true;
}

bool
actor_scheduler_store_is_claimed(const actor_scheduler_store_t *self)
{
    for (uint32_t at = 0; at < self->unit_count; at += 1u << self->units[at].order) {
        if (self->units[at].is_used && !self->units[at].is_claimed) {
            return false;
        }
    }
    return true;
}

/* ---- questions ------------------------------------------------------------------------------- */

size_t
actor_scheduler_store_size_bytes(const actor_scheduler_store_t *self)
{
    return (size_t)self->unit_count << UNIT_SHIFT;
}

size_t
actor_scheduler_store_used_bytes(const actor_scheduler_store_t *self)
{
    return self->used_bytes;
}

void
actor_scheduler_store_check(const actor_scheduler_store_t *self)
{
    size_t used = 0;
    uint32_t at = 0;
    while (at < self->unit_count) {
        const unit_t *unit = &self->units[at];
        require(unit->is_free != unit->is_used);
        used += unit->is_used ? (size_t)1 << (unit->order + UNIT_SHIFT) : 0;
        at += 1u << unit->order;
    }
    require(at == self->unit_count);
    require(used == self->used_bytes);
}
