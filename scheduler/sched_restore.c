/* The bytes of sched_save.c as a core.  They may be hostile: no number is an index or a size before
 * it was compared with what it must fit, nothing is listed twice, and at the end every invariant of
 * the core has to hold. */
#include <stdio.h>
#include <string.h>

#include "sched_save.h"

/* More than any executor needs; so a few bytes cannot ask for all the memory there is. */
static const uint64_t MEMORY_MAX_BYTES = UINT64_C(16) << 30;

const char *
sched_code_find(const char *text, size_t size_bytes)
{
    static const char *const codes[] = {
        "",           "nan_logits",    "plan_refused", "stalled",        "cancelled",
        "owner_gone", "queue_timeout", "worker_lost",  "executor_fault",
    };
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        if (strlen(codes[i]) == size_bytes && memcmp(codes[i], text, size_bytes) == 0) {
            return codes[i];
        }
    }
    return NULL;
}

/* False, and the bytes count as wrong, unless the condition holds. */
static bool
expect(proto_unpack_t *in, bool condition)
{
    if (!condition) {
        proto_unpack_fail(in);
    }
    return !in->failed;
}

static void
load_options(proto_unpack_t *in, sched_core_options_t *options)
{
    options->slot_count_max = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
    options->queue_len_max = proto_unpack_u32(in);
    options->overlap_depth_max = proto_unpack_u32(in);
    options->separate_batches = proto_unpack_bool(in);
    options->no_prefix_cache = proto_unpack_bool(in);
    options->full_plans = proto_unpack_bool(in);
    options->clear_blocks = proto_unpack_bool(in);
    options->skip_count_max = proto_unpack_u32(in);
    options->refusal_count_max = proto_unpack_u32(in);
    options->stall_ticks_max = proto_unpack_u32(in);
    options->queue_timeout_ns = proto_unpack_u64(in);
    /* A zero would become its default, and not be what was saved. */
    expect(in, options->queue_len_max != 0 && options->skip_count_max != 0 &&
                   options->refusal_count_max != 0 && options->stall_ticks_max != 0 &&
                   options->queue_timeout_ns != 0);
}

static void
load_figures(sched_core_t *self, proto_unpack_t *in, bool *attached)
{
    sched_figures_t *figures = &self->figures;
    uint64_t *values[SCHED_SAVED_FIGURES] = {
        &figures->prefix_queries,    &figures->prefix_hits,
        &figures->retractions,       &figures->steps,
        &figures->recomputed_tokens, &figures->full_plans,
        &figures->plans_refused,     &figures->stalls,
        &figures->zombie_rows,       &figures->late_events,
        &figures->swapped_blocks,    &figures->graph_steps,
        &figures->eager_steps,       &figures->prompt_tokens,
        &figures->generation_tokens,
    };
    for (uint32_t i = 0; i < SCHED_SAVED_FIGURES; i++) {
        *values[i] = proto_unpack_u64(in);
    }
    self->arrival_count = proto_unpack_u64(in);
    self->step_last = proto_unpack_u64(in);
    self->end_count = proto_unpack_u64(in);
    self->extend_token_ns = proto_unpack_u64(in);
    self->decode_step_ns = proto_unpack_u64(in);
    self->digest = proto_unpack_u64(in);
    self->retraction_run = proto_unpack_u32(in);
    self->decode_cursor = proto_unpack_u32(in);
    self->draining = proto_unpack_bool(in);
    *attached = proto_unpack_bool(in);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void
load_entry(proto_unpack_t *in, sched_entry_t *entry)
{
    entry->request = proto_unpack_u64(in);
    entry->tag = proto_unpack_u64(in);
    entry->arrival = proto_unpack_u64(in);
    entry->submit_ns = proto_unpack_u64(in);
    entry->deadline_ns = proto_unpack_u64(in);
    entry->queue_ns = proto_unpack_u64(in);
    entry->tried_version = proto_unpack_u64(in);
    entry->needed = proto_unpack_u64(in);
    entry->limit = proto_unpack_u64(in);
    entry->priority = proto_unpack_i64(in);
    entry->owner = proto_unpack_u32(in);
    entry->prompt_length = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    entry->generation_max = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    entry->emitted = proto_unpack_u32(in);
    entry->page_count = proto_unpack_u32(in);
    entry->slot = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
    entry->cached_count = proto_unpack_u32(in);
    entry->generated_count = proto_unpack_u32(in);
    entry->passed_count = proto_unpack_u32(in);
    entry->refusal_count = proto_unpack_u32(in);
    entry->retry_after_ms = proto_unpack_u32(in);
    int64_t status = proto_unpack_i64(in);
    proto_bytes_t code = proto_unpack_bytes(in, PROTO_TEXT_LEN_MAX);
    entry->code = sched_code_find((const char *)code.data, code.size_bytes);
    entry->reason = proto_unpack_u8(in);
    entry->state = proto_unpack_u8(in);
    entry->admitted = proto_unpack_bool(in);
    entry->in_use = true;
    bool runs = entry->state != SCHED_STATE_SUBMITTED && entry->state != SCHED_STATE_FINISHED;
    expect(in, entry->code != NULL && entry->state < SCHED_STATE_COUNT &&
                   entry->prompt_length > 0 && entry->generation_max > 0 &&
                   entry->emitted < entry->prompt_length &&
                   entry->page_count <= entry->prompt_length && runs == (entry->slot != 0) &&
                   (!runs || entry->admitted) && status >= INT32_MIN && status <= INT32_MAX &&
                   entry->reason <= PROTO_FINISH_REFUSED &&
                   (entry->state != SCHED_STATE_SUBMITTED || !entry->admitted));
    entry->status = (proto_status_t)status;
    if (entry->code == NULL) {
        entry->code = "";
    }
}

/* The caller's part of a request. */
static bool
ask(sched_entry_t *entry, sched_restored_fn restored, void *context)
{
    bool waits = entry->state == SCHED_STATE_SUBMITTED;
    sched_restored_t request = {
        .request = entry->request,
        .tag = entry->tag,
        .owner = entry->owner,
        .admitted = entry->admitted,
        .waits = waits,
        .hashes_size_bytes = waits ? (size_t)entry->page_count * PROTO_HASH_SIZE_BYTES : 0,
    };
    const uint8_t *hashes = NULL;
    if (!restored(context, &request, &hashes)) {
        return false;
    }
    entry->hashes = waits ? hashes : NULL;
    return !waits || entry->page_count == 0 || hashes != NULL;
}

static void
queue(sched_core_t *self, uint32_t index)
{
    const sched_entry_t *entry = &self->entries[index];
    sched_heap_push(&self->waiting, index,
                    (sched_key_t){.major = entry->priority, .minor = entry->arrival});
    int64_t deadline = entry->deadline_ns < INT64_MAX ? (int64_t)entry->deadline_ns : INT64_MAX;
    sched_heap_push(&self->deadlines, index,
                    (sched_key_t){.major = deadline, .minor = entry->arrival});
}

/* Reads a list of entries; each must be one of those that `finished` asks for, and in no list yet,
 * which `next` tells.  Gives how many there are. */
static uint32_t
load_entry_list(sched_core_t *self, proto_unpack_t *in, bool finished, uint32_t *head,
                uint32_t *tail)
{
    uint32_t runs = proto_unpack_u32_max(in, self->entry_count);
    uint32_t total = 0;
    *head = SCHED_NONE;
    *tail = SCHED_NONE;
    for (uint32_t r = 0; r < runs; r++) {
        uint32_t first = proto_unpack_u32_max(in, self->entry_count - 1);
        uint32_t count = proto_unpack_u32_max(in, self->entry_count);
        if (!expect(in, count > 0 && count <= self->entry_count - first &&
                            (r == 0 || first != *tail + 1))) {
            return 0;
        }
        for (uint32_t i = first; i < first + count; i++) {
            sched_entry_t *entry = &self->entries[i];
            bool fits = entry->next == i && entry->in_use == finished &&
                        (!finished || entry->state == SCHED_STATE_FINISHED);
            if (!expect(in, fits)) {
                return 0;
            }
            if (*tail == SCHED_NONE) {
                *head = i;
            } else {
                self->entries[*tail].next = i;
            }
            entry->next = SCHED_NONE;
            *tail = i;
            total++;
        }
    }
    return total;
}

static void
load_entries(sched_core_t *self, proto_unpack_t *in, sched_restored_fn restored, void *context)
{
    for (uint32_t i = 0; i < self->entry_count; i++) {
        self->entries[i].next = i; /* in no list: nothing follows itself */
    }
    uint32_t count = proto_unpack_u32_max(in, self->entry_count);
    uint32_t ended = 0;
    for (uint32_t n = 0, least = 0; n < count; n++) {
        uint32_t index = proto_unpack_u32_max(in, self->entry_count - 1);
        if (!expect(in, index >= least)) {
            return;
        }
        least = index + 1;
        sched_entry_t *entry = &self->entries[index];
        load_entry(in, entry);
        if (in->failed || !expect(in, ask(entry, restored, context))) {
            return;
        }
        if (entry->state == SCHED_STATE_FINISHED) {
            ended++;
            continue;
        }
        uint32_t known = sched_ids_find(&self->ids, entry->owner, entry->request);
        if (!expect(in, known == SCHED_IDS_UNKNOWN)) {
            return;
        }
        sched_ids_add(&self->ids, entry->owner, entry->request, index);
        if (entry->state == SCHED_STATE_SUBMITTED) {
            queue(self, index);
        } else {
            self->running_count++;
        }
    }
    uint32_t tail;
    uint32_t unused = load_entry_list(self, in, false, &self->entry_free, &tail);
    uint32_t listed = load_entry_list(self, in, true, &self->finished_head, &self->finished_tail);
    expect(in, unused == self->entry_count - count && listed == ended);
    sched_ids_load(&self->ids, in);
}

/* ---- the executor ---------------------------------------------------------------------------- */

typedef struct {
    proto_executor_info_t info;
    uint32_t columns[4][PROTO_GROUPS_MAX];
} shape_t;

static void
load_shape(proto_unpack_t *in, shape_t *shape)
{
    proto_executor_info_t *info = &shape->info;
    info->slot_count = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
    info->step_tokens_max = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    info->decode_width = proto_unpack_u32_max(in, 16);
    uint32_t steps = proto_unpack_u32_max(in, SCHED_STEPS_MAX);
    info->overlap_depth_max = expect(in, steps > 0) ? steps - 1 : 0;
    info->prefix_granularity = proto_unpack_u32_max(in, 65536);
    info->model_len_max = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    info->parent_count = proto_unpack_u32_max(in, PROTO_BLOCKS_MAX);
    uint32_t groups = proto_unpack_u32_max(in, PROTO_GROUPS_MAX);
    for (uint32_t g = 0; g < groups; g++) {
        for (uint32_t c = 0; c < 4; c++) {
            shape->columns[c][g] = proto_unpack_u32(in);
        }
    }
    info->group_kinds = (proto_column_u32_t){shape->columns[0], groups};
    info->group_granularities = (proto_column_u32_t){shape->columns[1], groups};
    info->group_windows = (proto_column_u32_t){shape->columns[2], groups};
    info->group_packings = (proto_column_u32_t){shape->columns[3], groups};
}

/* About what an executor of this shape makes the core allocate. */
static uint64_t
memory_of(const proto_executor_info_t *info)
{
    enum { BLOCK_BYTES = 24 + 32 + 4 + 32 + 4, PARENT_BYTES = 64, PLAN_BYTES = 24 };
    uint64_t blocks = 0;
    uint64_t columns = 0;
    for (uint32_t g = 0; g < info->group_kinds.count; g++) {
        uint32_t granularity = info->group_granularities.data[g];
        blocks += (uint64_t)info->parent_count * info->group_packings.data[g];
        columns += info->model_len_max / (granularity != 0 ? granularity : 1) + 1;
    }
    uint64_t page = info->prefix_granularity != 0 ? info->prefix_granularity : 1;
    uint64_t pages = info->model_len_max / page + 1;
    uint64_t slot = columns * PLAN_BYTES + pages * PROTO_HASH_SIZE_BYTES;
    return blocks * BLOCK_BYTES + info->parent_count * (uint64_t)PARENT_BYTES +
           (info->slot_count + (uint64_t)1) * slot;
}

static proto_status_t
load_executor(sched_core_t *self, proto_unpack_t *in, proto_error_t *error)
{
    shape_t shape = {0};
    load_shape(in, &shape);
    if (in->failed) {
        return STATUS_ERR_MALFORMED;
    }
    if (memory_of(&shape.info) > MEMORY_MAX_BYTES) {
        return STATUS_ERR_NO_MEMORY;
    }
    uint64_t digest = self->digest;
    uint32_t running = self->running_count;
    proto_status_t status = sched_core_attach(self, &shape.info, error);
    if (status != STATUS_OK) {
        return status == STATUS_ERR_NO_MEMORY ? status : STATUS_ERR_MALFORMED;
    }
    self->digest = digest;
    self->running_count = running;
    bool same = self->slot_count == shape.info.slot_count &&
                self->step_count_max == 1 + shape.info.overlap_depth_max;
    self->step_base = proto_unpack_u64_max(in, self->step_last);
    self->tick_ns = proto_unpack_u64(in);
    self->stall_ticks = proto_unpack_u32(in);
    self->refusal_run = proto_unpack_u32(in);
    return expect(in, same) ? STATUS_OK : STATUS_ERR_MALFORMED;
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* The block numbers of a table; what they must be, the invariants say. */
static void
load_table(sched_core_t *self, uint32_t slot, uint32_t g, proto_unpack_t *in)
{
    const sched_group_t *group = &self->groups[g];
    sched_extent_t *extent = sched_extent(self, slot, g);
    uint32_t *table = sched_table(self, slot, g);
    extent->executor_count = proto_unpack_u32_max(in, group->columns_max);
    extent->expired_count = proto_unpack_u32_max(in, group->columns_max);
    extent->column_count = proto_unpack_u32_max(in, group->columns_max);
    if (!expect(in, extent->expired_count <= extent->column_count)) {
        extent->expired_count = 0;
        extent->column_count = 0;
        return;
    }
    memset(table, 0, extent->expired_count * sizeof *table);
    proto_unpack_u32_array(in, table + extent->expired_count,
                           extent->column_count - extent->expired_count,
                           sched_pool_capacity(self->pool, g));
}

static void
load_slot(sched_core_t *self, uint32_t slot, proto_unpack_t *in)
{
    sched_slot_t *row = &self->slots[slot];
    sched_span_t *span = &self->spans[slot];
    uint32_t index = proto_unpack_u32_max(in, self->entry_count - 1);
    const sched_entry_t *entry = &self->entries[index];
    if (!expect(in, entry->in_use && entry->slot == slot)) {
        return;
    }
    row->entry = index;
    row->owner = entry->owner;
    row->request = entry->request;
    row->state = entry->state;
    row->generation_max = entry->generation_max;
    row->computed = proto_unpack_u32(in);
    row->generated = proto_unpack_u32(in);
    row->flags = proto_unpack_u8(in);
    row->planned = row->computed;
    span->prompt_length = entry->prompt_length;
    span->cover_max = sched_cover_max(self, entry->prompt_length, entry->generation_max);
    span->prefill_end = proto_unpack_u32(in);
    span->page_published = proto_unpack_u32(in);
    span->lost = proto_unpack_u32(in);
    proto_bytes_t hashes = proto_unpack_bytes(in, (size_t)self->pages_max * PROTO_HASH_SIZE_BYTES);
    span->page_known = (uint32_t)(hashes.size_bytes / PROTO_HASH_SIZE_BYTES);
    if (hashes.size_bytes > 0) {
        memcpy(sched_hash(self, slot, 0), hashes.data, hashes.size_bytes);
    }
    uint64_t length = (uint64_t)entry->prompt_length + entry->generation_max;
    expect(in, hashes.size_bytes % PROTO_HASH_SIZE_BYTES == 0 && length <= self->model_len_max &&
                   (row->flags & ~(SLOT_RETRACT | SLOT_REFUSED)) == 0);
    for (uint32_t g = 0; g < self->group_count; g++) {
        load_table(self, slot, g, in);
    }
}

/* Slots by number; those that no request has stand as when one has just left them. */
static void
load_running(sched_core_t *self, proto_unpack_t *in)
{
    for (uint32_t slot = 1; slot <= self->slot_count; slot++) {
        self->slots[slot] = (sched_slot_t){.serial = proto_unpack_u32(in),
                                           .entry = SCHED_NONE,
                                           .place = SCHED_NONE,
                                           .publish_at = UINT32_MAX,
                                           .expire_at = UINT32_MAX};
    }
    uint32_t count = proto_unpack_u32_max(in, self->slot_count);
    expect(in, count == self->running_count);
    for (uint32_t n = 0, least = 1; n < count && !in->failed; n++) {
        uint32_t slot = proto_unpack_u32_max(in, self->slot_count);
        if (expect(in, slot >= least)) {
            load_slot(self, slot, in);
        }
        least = slot + 1;
    }
}

/* A list of slots that have a request, or of such that have none; each in one list at most. */
static void
load_list(sched_core_t *self, sched_list_t *list, bool in_use, proto_unpack_t *in)
{
    uint32_t count = proto_unpack_u32_max(in, self->slot_count);
    list->count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = proto_unpack_u32_max(in, self->slot_count);
        const sched_slot_t *row = &self->slots[slot];
        if (!expect(in, slot != 0 && row->place == SCHED_NONE &&
                            (row->entry != SCHED_NONE) == in_use)) {
            return;
        }
        sched_list_add(self, list, slot);
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* A row of a step in flight; a slot is in one of them at most.  One that still counts adds to what
 * its slot has planned. */
static bool
load_row(sched_core_t *self, bool is_extend, proto_unpack_t *in, sched_row_t *row)
{
    row->slot = proto_unpack_u32_max(in, self->slot_count);
    row->serial = proto_unpack_u32(in);
    row->length = proto_unpack_u32_max(in, self->step_tokens_max);
    row->samples = proto_unpack_u32_max(in, 1);
    bool shaped = is_extend ? row->length > 0 : row->length == self->width && row->samples == 1;
    if (in->failed || row->slot == 0 || !shaped || self->leaving[row->slot] != 0) {
        return false;
    }
    self->leaving[row->slot] = 1; /* room that only a plan in work uses */
    sched_slot_t *slot = &self->slots[row->slot];
    if (slot->serial != row->serial) {
        /* Of an earlier life of the slot, never of a later one. */
        return (int32_t)(slot->serial - row->serial) > 0;
    }
    slot->planned += row->length;
    slot->rows_in_flight++;
    slot->samples_in_flight += row->samples;
    return slot->entry != SCHED_NONE;
}

static void
load_step(sched_core_t *self, uint64_t before, proto_unpack_t *in)
{
    sched_step_t *step = sched_step_at(self, self->step_in_flight++);
    step->step = proto_unpack_u64_max(in, self->step_last);
    step->planned_ns = proto_unpack_u64(in);
    step->release_count = proto_unpack_u32_max(in, self->slot_count);
    for (uint32_t i = 0; i < step->release_count; i++) {
        uint32_t slot = proto_unpack_u32_max(in, self->slot_count);
        sched_slot_t *row = &self->slots[slot];
        if (!expect(in, slot != 0 && row->entry == SCHED_NONE && row->place == SCHED_NONE)) {
            return;
        }
        step->releases[i] = slot;
        row->place = 0; /* it has its place: here */
    }
    step->extend_count = proto_unpack_u32_max(in, self->slot_count);
    step->row_count = proto_unpack_u32_max(in, self->slot_count);
    expect(in, step->step > before && step->extend_count <= step->row_count);
    uint64_t tokens = 0;
    memset(self->leaving, 0, ((size_t)self->slot_count + 1) * sizeof *self->leaving);
    for (uint32_t r = 0; r < step->row_count && !in->failed; r++) {
        sched_row_t *row = &step->rows[r];
        expect(in, load_row(self, r < step->extend_count, in, row));
        tokens += row->length;
    }
    expect(in, tokens <= self->step_tokens_max);
    step->token_count = (uint32_t)tokens;
}

static void
load_steps(sched_core_t *self, proto_unpack_t *in)
{
    uint32_t count = proto_unpack_u32_max(in, self->step_count_max);
    uint64_t before = 0;
    for (uint32_t i = 0; i < count && !in->failed; i++) {
        load_step(self, before, in);
        before = sched_step_at(self, i)->step;
    }
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* A slot whose request left is told of by its release, which empties the list. */
static void
load_holed(sched_core_t *self, proto_unpack_t *in)
{
    uint32_t count = proto_unpack_u32_max(in, self->slot_count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = proto_unpack_u32_max(in, self->slot_count);
        sched_slot_t *row = &self->slots[slot];
        bool is_releasing =
            row->place < self->releasing.count && self->releasing.items[row->place] == slot;
        if (!expect(in, slot != 0 && (row->flags & SLOT_HOLES) == 0 &&
                            (row->entry != SCHED_NONE || is_releasing))) {
            return;
        }
        row->flags |= SLOT_HOLES;
        self->holed.items[self->holed.count++] = slot;
    }
    for (uint32_t i = 0; i < count; i++) {
        sched_slot_t *row = &self->slots[self->holed.items[i]];
        row->flags = row->entry != SCHED_NONE ? row->flags : 0;
    }
}

static void
load_dirty(sched_core_t *self, proto_unpack_t *in)
{
    self->dirty_count = proto_unpack_u32_max(in, self->dirty_max);
    for (uint32_t i = 0; i < self->dirty_count; i++) {
        sched_dirty_t *dirty = &self->dirty[i];
        dirty->slot = proto_unpack_u32_max(in, self->slot_count);
        dirty->serial = proto_unpack_u32(in);
        dirty->group = proto_unpack_u32_max(in, self->group_count - 1);
        dirty->column = proto_unpack_u32(in);
        const sched_slot_t *row = &self->slots[dirty->slot];
        bool is_live = dirty->serial == row->serial;
        uint32_t columns = is_live ? sched_extent(self, dirty->slot, dirty->group)->column_count
                                   : self->groups[dirty->group].columns_max;
        if (!expect(in, dirty->slot != 0 && dirty->column < columns &&
                            (is_live || (int32_t)(row->serial - dirty->serial) > 0))) {
            return;
        }
    }
}

/* What follows from what was read. */
static void
derive(sched_core_t *self)
{
    for (uint32_t slot = 1; slot <= self->slot_count; slot++) {
        sched_slot_t *row = &self->slots[slot];
        if (row->entry == SCHED_NONE) {
            continue;
        }
        sched_set_covered(self, slot);
        if (row->state != SCHED_STATE_RETRACTED) {
            sched_set_publish_at(self, slot);
            sched_set_expire_at(self, slot);
        }
    }
}

static void
load_slots(sched_core_t *self, proto_unpack_t *in)
{
    self->free_slots.count = 0;
    load_running(self, in);
    load_list(self, &self->free_slots, false, in);
    load_list(self, &self->releasing, false, in);
    load_list(self, &self->decoding, true, in);
    load_list(self, &self->prefilling, true, in);
    load_list(self, &self->retracted, true, in);
    if (in->failed) {
        return;
    }
    load_steps(self, in);
    load_holed(self, in);
    load_dirty(self, in);
    derive(self);
}

/* What the lists hold must be in the state of the list. */
static bool
lists_agree(const sched_core_t *self)
{
    const sched_list_t *lists[] = {&self->decoding, &self->prefilling, &self->retracted};
    for (uint32_t l = 0; l < 3; l++) {
        for (uint32_t i = 0; i < lists[l]->count; i++) {
            uint8_t state = self->slots[lists[l]->items[i]].state;
            bool decodes = state == SCHED_STATE_PREFILL_DONE || state == SCHED_STATE_DECODING;
            bool fits = l == 0   ? decodes
                        : l == 1 ? state == SCHED_STATE_PREFILLING
                                 : state == SCHED_STATE_RETRACTED;
            if (!fits) {
                return false;
            }
        }
    }
    return true;
}

/* What waits must be what a submit lets in, and without an executor nothing does. */
static bool
entries_agree(const sched_core_t *self)
{
    for (uint32_t i = 0; i < self->entry_count; i++) {
        const sched_entry_t *entry = &self->entries[i];
        if (!entry->in_use || entry->state != SCHED_STATE_SUBMITTED) {
            continue;
        }
        uint64_t length = (uint64_t)entry->prompt_length + entry->generation_max;
        if (!self->attached || length > self->model_len_max ||
            entry->page_count > entry->prompt_length / self->page_tokens) {
            return false;
        }
    }
    return true;
}

static proto_status_t
load(sched_core_t *self, proto_unpack_t *in, sched_restored_fn restored, void *context,
     proto_error_t *error, sched_audit_t *audit)
{
    bool attached;
    load_figures(self, in, &attached);
    load_entries(self, in, restored, context);
    if (in->failed) {
        return STATUS_ERR_MALFORMED;
    }
    if (attached) {
        proto_status_t status = load_executor(self, in, error);
        if (status != STATUS_OK) {
            return status;
        }
        sched_pool_load(self->pool, in);
        if (!in->failed) {
            load_slots(self, in);
        }
    }
    if (in->failed || !sched_holds(audit, lists_agree(self)) ||
        !sched_holds(audit, entries_agree(self))) {
        return STATUS_ERR_MALFORMED;
    }
    sched_core_audit(self, audit);
    return audit->broken == NULL ? STATUS_OK : STATUS_ERR_MALFORMED;
}

static void
explain(proto_error_t *error, proto_status_t status, const proto_unpack_t *in,
        const sched_audit_t *audit)
{
    if (error == NULL || error->detail[0] != '\0') {
        return;
    }
    if (status == STATUS_ERR_MALFORMED && audit->broken != NULL) {
        (void)snprintf(error->detail, sizeof error->detail,
                       "the planning state contradicts itself: not %s", audit->broken);
    } else if (status == STATUS_ERR_MALFORMED) {
        (void)snprintf(error->detail, sizeof error->detail,
                       "the planning state is cut or out of range near byte %zu of %zu", in->at,
                       in->bytes.size_bytes);
    } else {
        (void)snprintf(error->detail, sizeof error->detail, "the planning state: %s",
                       proto_status_text(status));
    }
}

proto_status_t
sched_core_restore(proto_unpack_t *in, sched_restored_fn restored, void *context,
                   sched_core_t **out_p, proto_error_t *error)
{
    require(restored != NULL);
    require(out_p != NULL);
    sched_core_options_t options = {0};
    sched_audit_t audit = {0};
    sched_core_t *self = NULL;
    if (error != NULL) {
        error->detail[0] = '\0';
    }
    uint32_t version = proto_unpack_u32(in);
    proto_status_t status = STATUS_ERR_MALFORMED;
    if (!in->failed && version != SCHED_SAVE_VERSION) {
        status = STATUS_ERR_VERSION;
        goto err;
    }
    load_options(in, &options);
    if (in->failed) {
        goto err;
    }
    status = sched_core_new(&options, &self);
    if (status != STATUS_OK) {
        status = status == STATUS_ERR_NO_MEMORY ? status : STATUS_ERR_MALFORMED;
        goto err;
    }
    status = load(self, in, restored, context, error, &audit);
    if (status != STATUS_OK) {
        goto err_destroy;
    }
    *out_p = self;
    return STATUS_OK;

err_destroy:
    sched_core_destroy(&self);
err:
    explain(error, status, in, &audit);
    return status;
}
