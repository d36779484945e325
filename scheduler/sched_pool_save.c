/* The pool as canonical bytes.  What follows from the blocks (counts, masks, who is bound) is not
 * written; the order of the lists is, because it decides what is taken next.
 *
 *   u64 version, evicted
 *   each group: u32 runs; each run: u32 first, count; each block: u8 bits, u32 generation,
 *               u32 holders if held, u32 offset and 32 bytes of hash if indexed
 *   each group: each tier: u32 count, blocks; u32 idle parents, parents;
 *               u64 partial mask, for each bit: u32 count, parents
 *   u32 runs of empty parents; each run: u32 first, count
 *
 * Blocks are numbers within their group.  Loading marks what has to be listed, and takes the mark
 * off when it meets it in a list: so nothing can be listed twice, or not at all. */
#include <string.h>

#include "sched_pool_internal.h"

enum {
    BITS_STATE = 7,
    BITS_TIER = 8,
    BITS_DIRTY = 16,
    OFFSET_MAX = (1 << 20) - 1, /* what sched_prefix_add() takes */
};
#define UNLISTED UINT32_MAX /* as `previous`: no list has it yet */

static bool
is_held(const block_t *block)
{
    return block->state == SCHED_BLOCK_OWNED || block->state == SCHED_BLOCK_SHARED ||
           sched_block_is_lent(block);
}

static bool
is_indexed(const block_t *block)
{
    return block->state == SCHED_BLOCK_SHARED || block->state == SCHED_BLOCK_CACHED;
}

/* ---- saving ---------------------------------------------------------------------------------- */

static void
save_block(const sched_pool_t *self, const group_t *group, uint32_t child, proto_pack_t *out)
{
    uint32_t index = group->base + child;
    const block_t *block = &self->blocks[index];
    proto_pack_u8(out, (uint8_t)(block->state | (block->tier != 0 ? BITS_TIER : 0) |
                                 (block->dirty ? BITS_DIRTY : 0)));
    proto_pack_u32(out, block->generation);
    if (is_held(block)) {
        proto_pack_u32(out, block->holder_count);
    }
    if (is_indexed(block)) {
        proto_pack_u32(out, sched_prefix_offset(&self->prefix, index));
        proto_pack_raw(out, sched_prefix_hash(&self->prefix, index), PROTO_HASH_SIZE_BYTES);
    }
}

/* The end of the run of touched, or untouched, blocks that begins at `child`. */
static uint32_t
run_end(const sched_pool_t *self, const group_t *group, uint32_t child, uint32_t end)
{
    bool touched = sched_block_is_touched(&self->blocks[group->base + child]);
    while (child < end && sched_block_is_touched(&self->blocks[group->base + child]) == touched) {
        child++;
    }
    return child;
}

static void
save_blocks(const sched_pool_t *self, uint32_t group_index, proto_pack_t *out)
{
    const group_t *group = &self->groups[group_index];
    uint32_t end = group->touched_end;
    uint32_t runs = 0;
    for (uint32_t at = 1; at < end; at = run_end(self, group, at, end)) {
        runs += sched_block_is_touched(&self->blocks[group->base + at]) ? 1 : 0;
    }
    proto_pack_u32(out, runs);
    for (uint32_t at = 1; at < end;) {
        uint32_t next = run_end(self, group, at, end);
        if (sched_block_is_touched(&self->blocks[group->base + at])) {
            proto_pack_u32(out, at);
            proto_pack_u32(out, next - at);
            for (; at < next; at++) {
                save_block(self, group, at, out);
            }
        }
        at = next;
    }
}

static void
save_lists(const sched_pool_t *self, const group_t *group, proto_pack_t *out)
{
    for (uint32_t tier = 0; tier < TIER_COUNT; tier++) {
        proto_pack_u32(out, group->cached[tier].count);
        for (uint32_t at = group->cached[tier].head; at != 0; at = self->blocks[at].next) {
            proto_pack_u32(out, at - group->base);
        }
    }
    proto_pack_u32(out, group->idle.count);
    for (uint32_t at = group->idle.head; at != 0; at = self->parents[at].idle_next) {
        proto_pack_u32(out, at);
    }
    proto_pack_u64(out, group->partial_mask);
    for (uint64_t mask = group->partial_mask; mask != 0; mask &= mask - 1) {
        uint32_t first = group->partial[__builtin_ctzll(mask)];
        uint32_t count = 0;
        for (uint32_t at = first; at != 0; at = self->parents[at].next) {
            count++;
        }
        proto_pack_u32(out, count);
        for (uint32_t at = first; at != 0; at = self->parents[at].next) {
            proto_pack_u32(out, at);
        }
    }
}

/* How many parents, from `at` on, follow each other by number in the list of empty ones. */
static uint32_t
empty_run(const sched_pool_t *self, uint32_t at)
{
    uint32_t count = 1;
    while (self->parents[at].next == at + 1) {
        at++;
        if (at >= self->pristine) {
            return count + (self->parent_count - at); /* the rest follows in order */
        }
        count++;
    }
    return count;
}

static void
save_empty(const sched_pool_t *self, proto_pack_t *out)
{
    uint32_t runs = 0;
    for (uint32_t at = self->empty_head; at != 0;) {
        at = self->parents[at + empty_run(self, at) - 1].next;
        runs++;
    }
    proto_pack_u32(out, runs);
    for (uint32_t at = self->empty_head; at != 0;) {
        uint32_t count = empty_run(self, at);
        proto_pack_u32(out, at);
        proto_pack_u32(out, count);
        at = self->parents[at + count - 1].next;
    }
}

void
sched_pool_save(const sched_pool_t *self, proto_pack_t *out)
{
    proto_pack_u64(out, self->version);
    proto_pack_u64(out, self->evicted_count);
    for (uint32_t g = 0; g < self->group_count; g++) {
        save_blocks(self, g, out);
    }
    for (uint32_t g = 0; g < self->group_count; g++) {
        save_lists(self, &self->groups[g], out);
    }
    save_empty(self, out);
}

/* ---- loading --------------------------------------------------------------------------------- */

/* The block's parent gets one used block more, and is bound to the group.  False if it belongs to
 * another one. */
static bool
use_parent(sched_pool_t *self, uint32_t group_index, uint32_t index)
{
    group_t *group = &self->groups[group_index];
    const block_t *block = &self->blocks[index];
    parent_t *parent = &self->parents[block->parent];
    if (parent->group == NO_GROUP) {
        parent->group = (uint8_t)group_index;
        parent->free_mask = group->packing == 64 ? UINT64_MAX : (UINT64_C(1) << group->packing) - 1;
        group->partial_free += group->packing;
    }
    if (parent->group != group_index) {
        return false;
    }
    uint32_t slot = index - group->base - 1 - (block->parent - 1) * group->packing;
    parent->free_mask &= ~(UINT64_C(1) << slot);
    parent->used_count++;
    parent->held_count = (uint8_t)(parent->held_count + (block->holder_count > 0 ? 1 : 0));
    group->partial_free--;
    return true;
}

/* Puts the block into the index; false if its page is in already. */
static bool
index_block(sched_pool_t *self, uint32_t group_index, uint32_t index, proto_unpack_t *in)
{
    uint8_t hash[PROTO_HASH_SIZE_BYTES];
    sched_page_t page = {.group = group_index,
                         .offset = proto_unpack_u32_max(in, OFFSET_MAX),
                         .hash = hash};
    proto_unpack_raw(in, hash, sizeof hash);
    if (in->failed || sched_prefix_find(&self->prefix, &page) != 0) {
        return false;
    }
    sched_prefix_add(&self->prefix, &page, index);
    return true;
}

static void
load_block(sched_pool_t *self, uint32_t group_index, uint32_t index, proto_unpack_t *in)
{
    group_t *group = &self->groups[group_index];
    block_t *block = &self->blocks[index];
    uint8_t bits = proto_unpack_u8(in);
    uint8_t state = bits & BITS_STATE;
    block->generation = proto_unpack_u32(in);
    block->dirty = (bits & BITS_DIRTY) != 0;
    if (bits >= 2 * BITS_DIRTY || state >= SCHED_BLOCK_STATE_COUNT) {
        proto_unpack_fail(in);
        return;
    }
    group->counts[SCHED_BLOCK_FREE]--;
    group->counts[state]++;
    block->state = state;
    block->tier = (bits & BITS_TIER) != 0 ? TIER_ESTABLISHED : TIER_PROBATION;
    block->holder_count = is_held(block) ? proto_unpack_u32(in) : 0;
    bool fits =
        sched_block_is_touched(block) && is_held(block) == (block->holder_count > 0) &&
        (!(state == SCHED_BLOCK_OWNED || sched_block_is_lent(block)) || block->holder_count == 1) &&
        (is_indexed(block) || block->tier == TIER_PROBATION) &&
        (!is_indexed(block) || index_block(self, group_index, index, in)) &&
        (state == SCHED_BLOCK_FREE || use_parent(self, group_index, index));
    if (!fits) {
        proto_unpack_fail(in);
    }
    block->previous = state == SCHED_BLOCK_CACHED ? UNLISTED : 0;
}

static void
load_blocks(sched_pool_t *self, uint32_t group_index, proto_unpack_t *in)
{
    uint32_t capacity = sched_pool_capacity(self, group_index);
    uint32_t base = self->groups[group_index].base;
    uint32_t runs = proto_unpack_u32_max(in, capacity);
    uint32_t before = 0; /* where the last run ended; a gap follows */
    for (uint32_t r = 0; r < runs && !in->failed; r++) {
        uint32_t first = proto_unpack_u32_max(in, capacity);
        uint32_t count = proto_unpack_u32_max(in, capacity);
        if (first == 0 || (r > 0 && first <= before) || count == 0 ||
            count > capacity - (first - 1)) {
            proto_unpack_fail(in);
            return;
        }
        for (uint32_t i = 0; i < count && !in->failed; i++) {
            load_block(self, group_index, base + first + i, in);
        }
        before = first + count;
        self->groups[group_index].touched_end = before;
    }
}

static void
mark_parents(sched_pool_t *self)
{
    for (uint32_t p = 1; p < self->parent_count; p++) {
        parent_t *parent = &self->parents[p];
        bool bound = parent->group != NO_GROUP;
        parent->next = 0;
        parent->previous = !bound || parent->free_mask != 0 ? UNLISTED : 0;
        parent->idle_previous = bound && parent->held_count == 0 ? UNLISTED : 0;
    }
}

static void
load_cached(sched_pool_t *self, uint32_t group_index, uint32_t tier, proto_unpack_t *in)
{
    group_t *group = &self->groups[group_index];
    list_t *list = &group->cached[tier];
    uint32_t capacity = sched_pool_capacity(self, group_index);
    uint32_t count = proto_unpack_u32_max(in, group->counts[SCHED_BLOCK_CACHED]);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = group->base + proto_unpack_u32_max(in, capacity);
        block_t *block = &self->blocks[index];
        if (in->failed || index == group->base || block->previous != UNLISTED ||
            block->tier != tier) {
            proto_unpack_fail(in);
            return;
        }
        block->previous = list->tail;
        if (list->tail != 0) {
            self->blocks[list->tail].next = index;
        } else {
            list->head = index;
        }
        list->tail = index;
        list->count++;
    }
}

static void
load_idle(sched_pool_t *self, uint32_t group_index, proto_unpack_t *in)
{
    list_t *list = &self->groups[group_index].idle;
    uint32_t count = proto_unpack_u32_max(in, self->parent_count - 1);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = proto_unpack_u32_max(in, self->parent_count - 1);
        parent_t *parent = &self->parents[index];
        if (in->failed || index == 0 || parent->idle_previous != UNLISTED ||
            parent->group != group_index) {
            proto_unpack_fail(in);
            return;
        }
        parent->idle_previous = list->tail;
        if (list->tail != 0) {
            self->parents[list->tail].idle_next = index;
        } else {
            list->head = index;
        }
        list->tail = index;
        list->count++;
    }
}

/* One list of parents that have `used` blocks in use. */
static void
load_partial(sched_pool_t *self, uint32_t group_index, uint32_t used, proto_unpack_t *in)
{
    group_t *group = &self->groups[group_index];
    uint32_t count = proto_unpack_u32_max(in, self->parent_count - 1);
    uint32_t tail = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = proto_unpack_u32_max(in, self->parent_count - 1);
        parent_t *parent = &self->parents[index];
        if (in->failed || index == 0 || parent->previous != UNLISTED ||
            parent->group != group_index || parent->used_count != used) {
            proto_unpack_fail(in);
            return;
        }
        parent->previous = tail;
        if (tail != 0) {
            self->parents[tail].next = index;
        } else {
            group->partial[used] = index;
        }
        tail = index;
    }
    if (count == 0) {
        proto_unpack_fail(in); /* its bit says that there is one */
    }
}

static void
load_lists(sched_pool_t *self, uint32_t group_index, proto_unpack_t *in)
{
    group_t *group = &self->groups[group_index];
    for (uint32_t tier = 0; tier < TIER_COUNT; tier++) {
        load_cached(self, group_index, tier, in);
    }
    load_idle(self, group_index, in);
    group->partial_mask = proto_unpack_u64(in);
    if (group->packing < 64 && group->partial_mask >> group->packing != 0) {
        proto_unpack_fail(in);
    }
    for (uint64_t mask = group->partial_mask; mask != 0 && !in->failed; mask &= mask - 1) {
        load_partial(self, group_index, (uint32_t)__builtin_ctzll(mask), in);
    }
}

static void
load_empty(sched_pool_t *self, proto_unpack_t *in)
{
    uint32_t runs = proto_unpack_u32_max(in, self->parent_count - 1);
    uint32_t tail = 0;
    self->empty_head = 0;
    self->empty_count = 0;
    for (uint32_t r = 0; r < runs; r++) {
        uint32_t first = proto_unpack_u32_max(in, self->parent_count - 1);
        uint32_t count = proto_unpack_u32_max(in, self->parent_count - 1);
        if (in->failed || first == 0 || (r > 0 && first == tail + 1) || count == 0 ||
            count > self->parent_count - first) {
            proto_unpack_fail(in);
            return;
        }
        for (uint32_t index = first; index < first + count; index++) {
            parent_t *parent = &self->parents[index];
            if (parent->previous != UNLISTED || parent->group != NO_GROUP) {
                proto_unpack_fail(in);
                return;
            }
            parent->previous = 0;
            if (tail != 0) {
                self->parents[tail].next = index;
            } else {
                self->empty_head = index;
            }
            tail = index;
            self->empty_count++;
        }
    }
}

/* Every mark is gone: what had to be listed is. */
static bool
all_listed(const sched_pool_t *self)
{
    for (uint32_t b = 0; b < self->block_count; b++) {
        if (self->blocks[b].previous == UNLISTED) {
            return false;
        }
    }
    for (uint32_t p = 1; p < self->parent_count; p++) {
        if (self->parents[p].previous == UNLISTED || self->parents[p].idle_previous == UNLISTED) {
            return false;
        }
    }
    return true;
}

void
sched_pool_load(sched_pool_t *self, proto_unpack_t *in)
{
    self->version = proto_unpack_u64(in);
    self->evicted_count = proto_unpack_u64(in);
    for (uint32_t g = 0; g < self->group_count && !in->failed; g++) {
        load_blocks(self, g, in);
    }
    if (in->failed) {
        return;
    }
    self->pristine = self->parent_count; /* not known any more; it only spares time */
    mark_parents(self);
    for (uint32_t g = 0; g < self->group_count && !in->failed; g++) {
        load_lists(self, g, in);
    }
    load_empty(self, in);
    if (!in->failed && !all_listed(self)) {
        proto_unpack_fail(in);
    }
}
