/* Blocks that a transfer reads or writes: kept outside of slots, until no copy touches them.
 * Long because a loan's way from one owner to the next stands in one place, its bytes included. */
#include "sched_loan.h"

#include <string.h>

#include "sched_internal.h"
#include "sched_save.h"

/* ---- the loans ------------------------------------------------------------------------------- */

static sched_loan_t *
find_loan(const sched_core_t *self, uint64_t transfer)
{
    for (uint32_t i = 0; i < self->loan_max; i++) {
        sched_loan_t *loan = &self->loans[i];
        if (loan->state != SCHED_LOAN_FREE && loan->transfer == transfer) {
            return loan;
        }
    }
    return NULL;
}

static sched_loan_t *
take_loan(sched_core_t *self, uint64_t transfer, uint32_t owner, sched_loan_state_t state)
{
    uint32_t at = 0;
    while (at < self->loan_max && self->loans[at].state != SCHED_LOAN_FREE) {
        at++;
    }
    if (at == self->loan_max) {
        return NULL;
    }
    self->loans[at] = (sched_loan_t){.transfer = transfer, .owner = owner, .state = (uint8_t)state};
    self->loan_count++;
    sched_fold(self, transfer ^ (uint64_t)state << 56);
    return &self->loans[at];
}

static sched_extent_t *
extents_of(const sched_core_t *self, const sched_loan_t *loan)
{
    return self->loan_extents + (size_t)(loan - self->loans) * self->group_count;
}

static uint32_t *
table_of(const sched_core_t *self, const sched_loan_t *loan, uint32_t g)
{
    return self->loan_tables + (size_t)(loan - self->loans) * self->table_stride +
           self->groups[g].column_offset;
}

static uint8_t *
hashes_of(const sched_core_t *self, const sched_loan_t *loan)
{
    return self->loan_hashes +
           (size_t)(loan - self->loans) * self->pages_max * PROTO_HASH_SIZE_BYTES;
}

static sched_block_state_t
block_state_of(const sched_loan_t *loan)
{
    static const sched_block_state_t states[SCHED_LOAN_STATE_COUNT] = {
        [SCHED_LOAN_RESERVING] = SCHED_BLOCK_INCOMING, [SCHED_LOAN_INCOMING] = SCHED_BLOCK_INCOMING,
        [SCHED_LOAN_ACTIVE] = SCHED_BLOCK_OWNED,       [SCHED_LOAN_HELD] = SCHED_BLOCK_HELD,
        [SCHED_LOAN_FENCING] = SCHED_BLOCK_FENCING,
    };
    return states[loan->state];
}

static void
set_loan_state(sched_core_t *self, sched_loan_t *loan, sched_loan_state_t state)
{
    bool reserved = loan->state == SCHED_LOAN_WAITING || loan->state == SCHED_LOAN_RESERVING;
    bool reserves = state == SCHED_LOAN_WAITING || state == SCHED_LOAN_RESERVING;
    self->reserve_count += reserves ? 1 : 0;
    self->reserve_count -= reserved ? 1 : 0;
    loan->state = (uint8_t)state;
    sched_fold(self, loan->transfer ^ (uint64_t)state << 56);
}

/* Lends every block of the loan as its state says; counts them. */
static void
lend(sched_core_t *self, sched_loan_t *loan)
{
    loan->block_count = 0;
    for (uint32_t g = 0; g < self->group_count; g++) {
        const sched_extent_t *extent = &extents_of(self, loan)[g];
        const uint32_t *table = table_of(self, loan, g);
        for (uint32_t c = extent->expired_count; c < extent->column_count; c++) {
            if (table[c] != 0) {
                sched_pool_lend(self->pool, sched_block(self, g, table[c]), block_state_of(loan));
                loan->block_count++;
            }
        }
    }
}

/* The table of a slot becomes that of the loan; the slot's is empty afterwards. */
static void
move_to_loan(sched_core_t *self, uint32_t slot, sched_loan_t *loan)
{
    for (uint32_t g = 0; g < self->group_count; g++) {
        sched_extent_t *extent = sched_extent(self, slot, g);
        extents_of(self, loan)[g] = *extent;
        memcpy(table_of(self, loan, g), sched_table(self, slot, g),
               extent->column_count * sizeof(uint32_t));
        extent->column_count = 0;
        extent->expired_count = 0;
    }
}

/* Gives its blocks back. */
static void
drop_blocks(sched_core_t *self, sched_loan_t *loan, bool dirty)
{
    for (uint32_t g = 0; g < self->group_count; g++) {
        sched_extent_t *extent = &extents_of(self, loan)[g];
        const uint32_t *table = table_of(self, loan, g);
        for (uint32_t c = extent->column_count; c > extent->expired_count; c--) {
            if (table[c - 1] == 0) {
                continue;
            }
            sched_block_t block = sched_block(self, g, table[c - 1]);
            sched_pool_lend(self->pool, block, SCHED_BLOCK_OWNED);
            if (dirty && sched_pool_state(self->pool, block) == SCHED_BLOCK_OWNED) {
                sched_pool_mark_dirty(self->pool, block);
            }
            sched_pool_release(self->pool, block);
        }
        *extent = (sched_extent_t){0};
    }
    self->end_count++; /* what did not fit may fit now */
}

static void
free_loan(sched_core_t *self, sched_loan_t *loan)
{
    set_loan_state(self, loan, SCHED_LOAN_FREE);
    self->loan_count--;
}

uint32_t
sched_core_loan_count(const sched_core_t *self)
{
    return self->loan_count;
}

uint64_t
sched_core_loan_of(const sched_core_t *self, uint32_t owner)
{
    for (uint32_t i = 0; i < self->loan_max; i++) {
        const sched_loan_t *loan = &self->loans[i];
        if (loan->owner == owner && loan->state != SCHED_LOAN_FREE &&
            loan->state != SCHED_LOAN_FENCING && loan->state != SCHED_LOAN_ACTIVE) {
            return loan->transfer;
        }
    }
    return 0;
}

uint64_t
sched_core_next_fencing(const sched_core_t *self, uint64_t transfer)
{
    uint64_t next = 0;
    for (uint32_t i = 0; i < self->loan_max; i++) {
        const sched_loan_t *loan = &self->loans[i];
        if (loan->state == SCHED_LOAN_FENCING && loan->transfer > transfer &&
            (next == 0 || loan->transfer < next)) {
            next = loan->transfer;
        }
    }
    return next;
}

/* ---- runs ------------------------------------------------------------------------------------ */

typedef struct {
    const sched_extent_t *extents;
    const uint32_t *table; /* columns of all groups */
    uint32_t begin;        /* tokens [begin, end) */
    uint32_t end;
    uint32_t wanted; /* tokens of the whole prefill */
    bool is_last;    /* `end` is its end: what is begun there counts */
} cut_t;

/* The columns of a group that the cut completes and that a row at `wanted` still reads. */
static sched_run_t
columns_of(const sched_core_t *self, uint32_t g, const cut_t *cut)
{
    const sched_group_t *group = &self->groups[g];
    if (group->kind == SCHED_GROUP_STATE) {
        uint32_t last = (cut->wanted - 1) / group->granularity;
        return (sched_run_t){.begin = last, .end = cut->is_last ? last + 1 : last};
    }
    uint32_t first = sched_first_column(group, cut->wanted);
    sched_run_t run = {.begin = cut->begin / group->granularity,
                       .end = cut->is_last ? sched_divide_up(cut->end, group->granularity)
                                           : cut->end / group->granularity};
    run.begin = run.begin > first ? run.begin : first;
    return run;
}

/* Lists what the cut has; the views last until the next call. */
static void
list_runs(sched_core_t *self, const cut_t *cut, sched_runs_t *out)
{
    *out = (sched_runs_t){.groups = self->run_groups,
                          .columns = self->run_columns,
                          .counts = self->run_counts,
                          .blocks = self->run_blocks,
                          .generations = self->run_generations};
    for (uint32_t g = 0; g < self->group_count; g++) {
        sched_run_t run = columns_of(self, g, cut);
        const uint32_t *table = cut->table + self->groups[g].column_offset;
        uint32_t end =
            run.end < cut->extents[g].column_count ? run.end : cut->extents[g].column_count;
        bool open = false;
        for (uint32_t c = run.begin; c < end; c++) {
            if (table[c] == 0) {
                open = false;
                continue;
            }
            if (!open) {
                self->run_groups[out->run_count] = (uint8_t)g;
                self->run_columns[out->run_count] = c;
                self->run_counts[out->run_count++] = 0;
                open = true;
            }
            self->run_counts[out->run_count - 1]++;
            self->run_blocks[out->block_count] = table[c];
            self->run_generations[out->block_count++] =
                sched_pool_generation(self->pool, sched_block(self, g, table[c]));
        }
    }
}

/* ---- the decode node ------------------------------------------------------------------------- */

proto_status_t
sched_core_reserve(sched_core_t *self, const sched_reserve_t *reserve)
{
    if (!self->attached || self->draining) {
        return STATUS_ERR_REFUSED;
    }
    uint32_t pages =
        reserve->prompt_length > 0 ? (reserve->prompt_length - 1) / self->page_tokens : 0;
    uint64_t length = (uint64_t)reserve->prompt_length + reserve->generation_max;
    size_t size = reserve->page_hashes.size_bytes;
    if (reserve->transfer == 0 || reserve->prompt_length < 2 || reserve->generation_max == 0 ||
        (size != 0 && size != (size_t)pages * PROTO_HASH_SIZE_BYTES)) {
        return STATUS_ERR_INVALID;
    }
    if (length > self->model_len_max ||
        sched_parents_needed(self, sched_cover_max(self, reserve->prompt_length,
                                                   reserve->generation_max)) >
            self->parent_count - 1) {
        return STATUS_ERR_NEVER_FITS;
    }
    if (find_loan(self, reserve->transfer) != NULL) {
        return STATUS_ERR_STALE;
    }
    sched_loan_t *loan = take_loan(self, reserve->transfer, reserve->owner, SCHED_LOAN_FREE);
    if (loan == NULL) {
        return STATUS_ERR_OVERLOADED;
    }
    set_loan_state(self, loan, SCHED_LOAN_WAITING);
    loan->arrival = ++self->loan_arrivals;
    loan->priority = reserve->priority;
    loan->prompt_length = reserve->prompt_length;
    loan->generation_max = reserve->generation_max;
    loan->page_count = (uint32_t)(size / PROTO_HASH_SIZE_BYTES);
    if (size > 0) {
        memcpy(hashes_of(self, loan), reserve->page_hashes.data, size);
    }
    return STATUS_OK;
}

static bool
goes_before(const sched_loan_t *a, const sched_loan_t *b)
{
    return a->priority != b->priority ? a->priority < b->priority : a->arrival < b->arrival;
}

static sched_loan_t *
first_waiting(const sched_core_t *self)
{
    sched_loan_t *first = NULL;
    for (uint32_t i = 0; i < self->loan_max; i++) {
        sched_loan_t *loan = &self->loans[i];
        if (loan->state == SCHED_LOAN_WAITING && (first == NULL || goes_before(loan, first))) {
            first = loan;
        }
    }
    return first;
}

void
sched_serve_reservations(sched_core_t *self)
{
    while (self->reserve_count > 0) {
        sched_loan_t *loan = first_waiting(self);
        uint32_t hit = 0;
        if (loan == NULL ||
            sched_take_incoming(self, loan, hashes_of(self, loan), &hit) != STATUS_OK) {
            return; /* in order: a long one is not passed for ever */
        }
        move_to_loan(self, 0, loan);
        loan->computed = hit;
        loan->ready_step = 0;
        loan->has_step = false;
        set_loan_state(self, loan, SCHED_LOAN_RESERVING);
        lend(self, loan);
        self->figures.prefix_queries += loan->prompt_length - 1;
        self->figures.prefix_hits += hit;
    }
}

void
sched_note_reservations(sched_core_t *self)
{
    for (uint32_t i = 0; self->reserve_count > 0 && i < self->loan_max; i++) {
        sched_loan_t *loan = &self->loans[i];
        if (loan->state == SCHED_LOAN_RESERVING && !loan->has_step) {
            loan->has_step = true;
            loan->ready_step = self->step_last;
        }
    }
}

void
sched_redo_reservations(sched_core_t *self)
{
    for (uint32_t i = 0; self->reserve_count > 0 && i < self->loan_max; i++) {
        sched_loan_t *loan = &self->loans[i];
        if (loan->state == SCHED_LOAN_RESERVING) {
            drop_blocks(self, loan, true);
            set_loan_state(self, loan, SCHED_LOAN_WAITING);
        }
    }
}

bool
sched_core_take_reserved(sched_core_t *self, sched_reserved_t *out)
{
    if (self->reserve_count == 0) {
        return false;
    }
    uint64_t oldest = self->step_in_flight > 0 ? sched_step_at(self, 0)->step : UINT64_MAX;
    for (uint32_t i = 0; i < self->loan_max; i++) {
        sched_loan_t *loan = &self->loans[i];
        if (loan->state != SCHED_LOAN_RESERVING || !loan->has_step || loan->ready_step >= oldest) {
            continue;
        }
        set_loan_state(self, loan, SCHED_LOAN_INCOMING);
        cut_t cut = {.extents = extents_of(self, loan),
                     .table = table_of(self, loan, 0) - self->groups[0].column_offset,
                     .begin = loan->computed,
                     .end = loan->prompt_length - 1,
                     .wanted = loan->prompt_length - 1,
                     .is_last = true};
        *out = (sched_reserved_t){.transfer = loan->transfer,
                                  .owner = loan->owner,
                                  .computed = loan->computed,
                                  .wanted = loan->prompt_length - 1};
        list_runs(self, &cut, &out->runs);
        return true;
    }
    return false;
}

bool
sched_activate(sched_core_t *self, const sched_submit_t *submit)
{
    sched_loan_t *loan = find_loan(self, submit->transfer);
    if (loan == NULL || loan->state != SCHED_LOAN_INCOMING || loan->owner != submit->owner ||
        loan->prompt_length != submit->prompt_length ||
        loan->generation_max != submit->generation_max ||
        loan->page_count * PROTO_HASH_SIZE_BYTES != submit->page_hashes.size_bytes) {
        return false;
    }
    set_loan_state(self, loan, SCHED_LOAN_ACTIVE);
    lend(self, loan);
    return true;
}

void
sched_adopt(sched_core_t *self, const sched_entry_t *entry, uint32_t slot)
{
    sched_loan_t *loan = find_loan(self, entry->transfer);
    require(loan != NULL && loan->state == SCHED_LOAN_ACTIVE);
    sched_slot_t *row = &self->slots[slot];
    for (uint32_t g = 0; g < self->group_count; g++) {
        sched_extent_t *extent = sched_extent(self, slot, g);
        *extent = extents_of(self, loan)[g];
        extent->executor_count = 0;
        memcpy(sched_table(self, slot, g), table_of(self, loan, g),
               extent->column_count * sizeof(uint32_t));
        extents_of(self, loan)[g] = (sched_extent_t){0};
    }
    uint32_t wanted = loan->prompt_length - 1;
    self->spans[slot] = (sched_span_t){
        .prompt_length = loan->prompt_length,
        .prefill_end = wanted,
        .body_end = wanted,
        .page_known = loan->page_count,
        .page_published = loan->computed / self->page_tokens,
        .cover_max = sched_cover_max(self, loan->prompt_length, loan->generation_max),
    };
    if (loan->page_count > 0) {
        memcpy(sched_hash(self, slot, 0), hashes_of(self, loan),
               (size_t)loan->page_count * PROTO_HASH_SIZE_BYTES);
    }
    row->computed = wanted;
    row->planned = wanted;
    sched_set_covered(self, slot);
    sched_set_publish_at(self, slot);
    sched_set_expire_at(self, slot);
    free_loan(self, loan);
}

void
sched_drop_loan_of(sched_core_t *self, const sched_entry_t *entry)
{
    sched_loan_t *loan = entry->is_activated ? find_loan(self, entry->transfer) : NULL;
    if (loan != NULL && loan->state == SCHED_LOAN_ACTIVE) {
        drop_blocks(self, loan, false);
        free_loan(self, loan);
    }
}

/* ---- the prefill node ------------------------------------------------------------------------ */

bool
sched_hold(sched_core_t *self, uint32_t slot)
{
    const sched_entry_t *entry = &self->entries[self->slots[slot].entry];
    if (entry->transfer == 0 || entry->is_activated) {
        return false;
    }
    sched_loan_t *loan = take_loan(self, entry->transfer, entry->owner, SCHED_LOAN_HELD);
    if (loan == NULL) {
        return false; /* submit has seen to it that this cannot be */
    }
    move_to_loan(self, slot, loan);
    loan->prompt_length = entry->prompt_length;
    lend(self, loan);
    return true;
}

bool
sched_core_take_part(sched_core_t *self, sched_part_t *out)
{
    while (self->part_at < self->plan.extend_count) {
        uint32_t at = self->part_at++;
        uint32_t slot = self->plan.extend_slots[at];
        sched_span_t *span = &self->spans[slot];
        uint32_t index = self->slots[slot].entry;
        if (index == SCHED_NONE || self->entries[index].transfer == 0 ||
            self->entries[index].is_activated) {
            continue;
        }
        const sched_entry_t *entry = &self->entries[index];
        uint32_t end = self->plan.extend_begins[at] + self->plan.extend_lengths[at];
        cut_t cut = {.extents = sched_extent(self, slot, 0),
                     .table = self->tables + (size_t)slot * self->table_stride,
                     .begin = span->part_end,
                     .end = end,
                     .wanted = span->prefill_end,
                     .is_last = self->plan.extend_samples[at] != 0};
        *out = (sched_part_t){.transfer = entry->transfer,
                              .owner = entry->owner,
                              .part = span->part_count++,
                              .step = self->step_last,
                              .begin = cut.begin,
                              .end = end,
                              .is_last = cut.is_last};
        span->part_end = end;
        list_runs(self, &cut, &out->runs);
        return true;
    }
    return false;
}

/* ---- asking back ----------------------------------------------------------------------------- */

proto_status_t
sched_core_release(sched_core_t *self, uint64_t transfer, sched_release_t *out)
{
    sched_loan_t *loan = self->attached ? find_loan(self, transfer) : NULL;
    if (loan == NULL || loan->state == SCHED_LOAN_ACTIVE) {
        return STATUS_ERR_NOT_FOUND;
    }
    *out = (sched_release_t){.transfer = transfer,
                             .owner = loan->owner,
                             .block_count = loan->block_count};
    if (loan->state == SCHED_LOAN_FENCING) {
        return STATUS_AGAIN;
    }
    if (loan->state == SCHED_LOAN_WAITING || loan->state == SCHED_LOAN_RESERVING) {
        /* Nobody was told of these blocks; a clear that did not happen is owed. */
        drop_blocks(self, loan, true);
        free_loan(self, loan);
        out->is_back = true;
        return STATUS_OK;
    }
    set_loan_state(self, loan, SCHED_LOAN_FENCING);
    lend(self, loan);
    return STATUS_OK;
}

proto_status_t
sched_core_fenced(sched_core_t *self, uint64_t transfer, sched_release_t *out)
{
    sched_loan_t *loan = self->attached ? find_loan(self, transfer) : NULL;
    if (loan == NULL || loan->state != SCHED_LOAN_FENCING) {
        return STATUS_ERR_NOT_FOUND;
    }
    *out = (sched_release_t){.transfer = transfer,
                             .owner = loan->owner,
                             .block_count = loan->block_count,
                             .is_back = true};
    drop_blocks(self, loan, false);
    free_loan(self, loan);
    return STATUS_OK;
}

/* ---- invariants ------------------------------------------------------------------------------ */

void
sched_audit_loans(sched_core_t *self, sched_audit_t *audit)
{
    uint32_t used = 0;
    uint32_t reserving = 0;
    for (uint32_t i = 0; i < self->loan_max; i++) {
        const sched_loan_t *loan = &self->loans[i];
        if (loan->state == SCHED_LOAN_FREE) {
            continue;
        }
        used++;
        reserving +=
            loan->state == SCHED_LOAN_WAITING || loan->state == SCHED_LOAN_RESERVING ? 1 : 0;
        uint32_t blocks = 0;
        for (uint32_t g = 0; g < self->group_count; g++) {
            const sched_extent_t *extent = &extents_of(self, loan)[g];
            const uint32_t *table = table_of(self, loan, g);
            sched_holds(audit, extent->column_count <= self->groups[g].columns_max);
            for (uint32_t c = extent->expired_count; c < extent->column_count; c++) {
                if (table[c] == 0) {
                    continue;
                }
                sched_block_t block = sched_block(self, g, table[c]);
                sched_block_state_t state = sched_pool_state(self->pool, block);
                self->check_holders[block.index]++;
                blocks++;
                sched_holds(audit, state == SCHED_BLOCK_SHARED || state == block_state_of(loan));
            }
        }
        sched_holds(audit, blocks == (loan->state == SCHED_LOAN_WAITING ? 0 : loan->block_count));
    }
    sched_holds(audit, used == self->loan_count);
    sched_holds(audit, reserving == self->reserve_count);
}

/* ---- save and restore ------------------------------------------------------------------------ */

void
sched_save_loans(const sched_core_t *self, proto_pack_t *out)
{
    proto_pack_u32(out, self->loan_count);
    proto_pack_u64(out, self->loan_arrivals);
    for (uint32_t i = 0; i < self->loan_max; i++) {
        const sched_loan_t *loan = &self->loans[i];
        if (loan->state == SCHED_LOAN_FREE) {
            continue;
        }
        proto_pack_u32(out, i);
        proto_pack_u8(out, loan->state);
        proto_pack_u64(out, loan->transfer);
        proto_pack_u32(out, loan->owner);
        proto_pack_u64(out, loan->ready_step);
        proto_pack_bool(out, loan->has_step);
        proto_pack_u64(out, loan->arrival);
        proto_pack_i64(out, loan->priority);
        proto_pack_u32(out, loan->prompt_length);
        proto_pack_u32(out, loan->generation_max);
        proto_pack_u32(out, loan->computed);
        proto_pack_bytes(out, hashes_of(self, loan),
                         (size_t)loan->page_count * PROTO_HASH_SIZE_BYTES);
        for (uint32_t g = 0; g < self->group_count; g++) {
            const sched_extent_t *extent = &extents_of(self, loan)[g];
            proto_pack_u32(out, extent->expired_count);
            proto_pack_u32(out, extent->column_count);
            proto_pack_u32_array(out, table_of(self, loan, g) + extent->expired_count,
                                 extent->column_count - extent->expired_count);
        }
    }
}

static void
load_loan_table(sched_core_t *self, sched_loan_t *loan, uint32_t g, proto_unpack_t *in)
{
    sched_extent_t *extent = &extents_of(self, loan)[g];
    uint32_t *table = table_of(self, loan, g);
    extent->expired_count = proto_unpack_u32_max(in, self->groups[g].columns_max);
    extent->column_count = proto_unpack_u32_max(in, self->groups[g].columns_max);
    extent->executor_count = 0;
    if (!sched_expect(in, extent->expired_count <= extent->column_count)) {
        *extent = (sched_extent_t){0};
        return;
    }
    memset(table, 0, extent->expired_count * sizeof *table);
    proto_unpack_u32_array(in, table + extent->expired_count,
                           extent->column_count - extent->expired_count,
                           sched_pool_capacity(self->pool, g));
    for (uint32_t c = extent->expired_count; c < extent->column_count && !in->failed; c++) {
        loan->block_count += table[c] != 0 ? 1 : 0;
    }
}

static void
load_loan(sched_core_t *self, sched_loan_t *loan, proto_unpack_t *in)
{
    uint8_t state = proto_unpack_u8(in);
    loan->transfer = proto_unpack_u64(in);
    loan->owner = proto_unpack_u32(in);
    loan->ready_step = proto_unpack_u64_max(in, self->step_last);
    loan->has_step = proto_unpack_bool(in);
    loan->arrival = proto_unpack_u64_max(in, self->loan_arrivals);
    loan->priority = proto_unpack_i64(in);
    loan->prompt_length = proto_unpack_u32_max(in, self->model_len_max);
    loan->generation_max = proto_unpack_u32_max(in, self->model_len_max);
    loan->computed = proto_unpack_u32_max(in, self->model_len_max);
    bool holds = state == SCHED_LOAN_HELD || state == SCHED_LOAN_FENCING;
    if (!sched_expect(in, state > SCHED_LOAN_FREE && state < SCHED_LOAN_STATE_COUNT &&
                              loan->transfer != 0 && loan->prompt_length >= (holds ? 1 : 2) &&
                              loan->prompt_length + loan->generation_max <= self->model_len_max)) {
        return;
    }
    proto_bytes_t hashes = proto_unpack_bytes(in, (size_t)self->pages_max * PROTO_HASH_SIZE_BYTES);
    loan->page_count = (uint32_t)(hashes.size_bytes / PROTO_HASH_SIZE_BYTES);
    if (hashes.size_bytes > 0) {
        memcpy(hashes_of(self, loan), hashes.data, hashes.size_bytes);
    }
    sched_expect(in, hashes.size_bytes % PROTO_HASH_SIZE_BYTES == 0);
    set_loan_state(self, loan, (sched_loan_state_t)state);
    for (uint32_t g = 0; g < self->group_count && !in->failed; g++) {
        load_loan_table(self, loan, g, in);
    }
    if (state == SCHED_LOAN_WAITING) {
        sched_expect(in, loan->block_count == 0);
    }
}

void
sched_load_loans(sched_core_t *self, proto_unpack_t *in)
{
    uint64_t digest = self->digest; /* what is read back was folded in before */
    uint32_t count = proto_unpack_u32_max(in, self->loan_max);
    self->loan_arrivals = proto_unpack_u64(in);
    for (uint32_t n = 0, least = 0; n < count && !in->failed; n++) {
        uint32_t at = proto_unpack_u32_max(in, self->loan_max - 1);
        if (!sched_expect(in, at >= least)) {
            break;
        }
        self->loan_count++;
        load_loan(self, &self->loans[at], in);
        least = at + 1;
    }
    self->digest = digest;
}
