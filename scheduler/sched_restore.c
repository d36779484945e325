/* The bytes of sched_save.c as a core.  They may be hostile: no number is an index or a size before
 * it was compared with what it must fit, nothing is listed twice, and at the end every invariant of
 * the core has to hold. */
#include <stdio.h>
#include <string.h>

#include "sched_save.h"

/* More than any executor needs; so a few bytes cannot ask for all the memory there is. */
static const uint64_t MEMORY_MAX_BYTES = UINT64_C(16) << 30;

/* What FINISHED can carry. */
enum { STATUS_MAX = 1000, RETRY_AFTER_MAX_MS = 600000 };

const char *
sched_code_find(const char *text, size_t size_bytes)
{
    static const char *const codes[] = {
        "",           "nan_logits",    "plan_refused", "stalled",        "cancelled",
        "owner_gone", "queue_timeout", "worker_lost",  "executor_fault",
    };
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        bool same = strlen(codes[i]) == size_bytes &&
                    (size_bytes == 0 || memcmp(codes[i], text, size_bytes) == 0);
        if (same) {
            return codes[i];
        }
    }
    return NULL;
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
    options->loan_count_max = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
    /* A zero would become its default, and not be what was saved. */
    sched_expect(in, options->queue_len_max != 0 && options->skip_count_max != 0 &&
                         options->refusal_count_max != 0 && options->stall_ticks_max != 0 &&
                         options->queue_timeout_ns != 0);
}

static void
load_figures(sched_core_t *self, proto_unpack_t *in, bool *attached)
{
    sched_figures_t *figures = &self->figures;
    uint64_t *values[SCHED_SAVED_FIGURES] = {
        &figures->prefix_queries,      &figures->prefix_hits,
        &figures->retractions,         &figures->steps,
        &figures->recomputed_tokens,   &figures->full_plans,
        &figures->plans_refused,       &figures->stalls,
        &figures->zombie_rows,         &figures->late_events,
        &figures->swapped_blocks,      &figures->graph_steps,
        &figures->eager_steps,         &figures->prompt_tokens,
        &figures->generation_tokens,   &figures->above_ladder_steps,
        &figures->prefill_graph_steps, &figures->prefill_eager_steps,
        &figures->wide_steps,          &figures->drafts_proposed,
        &figures->drafts_accepted,     &figures->drafts_missing,
        &figures->drafts_ignored,
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
    entry->suspects = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
    entry->transfer = proto_unpack_u64(in);
    entry->is_activated = proto_unpack_bool(in);
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
    sched_expect(in,
                 entry->code != NULL && entry->state < SCHED_STATE_COUNT &&
                     entry->prompt_length > 0 && entry->generation_max > 0 &&
                     entry->emitted < entry->prompt_length &&
                     entry->page_count <= entry->prompt_length &&
                     (uint64_t)entry->prompt_length + entry->generation_max <= PROTO_TOKENS_MAX &&
                     entry->cached_count <= entry->prompt_length &&
                     entry->generated_count <= entry->generation_max &&
                     entry->retry_after_ms <= RETRY_AFTER_MAX_MS && runs == (entry->slot != 0) &&
                     (!runs || entry->admitted) && status >= -STATUS_MAX && status <= STATUS_MAX &&
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
        .prompt_length = entry->prompt_length,
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
    sched_heap_push(&self->waiting, index, sched_queue_key(entry));
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
        if (!sched_expect(in, count > 0 && count <= self->entry_count - first &&
                                  (r == 0 || first != *tail + 1))) {
            return 0;
        }
        for (uint32_t i = first; i < first + count; i++) {
            sched_entry_t *entry = &self->entries[i];
            bool fits = entry->next == i && entry->in_use == finished &&
                        (!finished || entry->state == SCHED_STATE_FINISHED);
            if (!sched_expect(in, fits)) {
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
        if (!sched_expect(in, index >= least)) {
            return;
        }
        least = index + 1;
        sched_entry_t *entry = &self->entries[index];
        load_entry(in, entry);
        if (in->failed || !sched_expect(in, ask(entry, restored, context))) {
            return;
        }
        if (entry->state == SCHED_STATE_FINISHED) {
            ended++;
            continue;
        }
        uint32_t known = sched_ids_find(&self->ids, entry->owner, entry->request);
        if (!sched_expect(in, known == SCHED_IDS_UNKNOWN)) {
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
    sched_expect(in, unused == self->entry_count - count && listed == ended);
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
    info->overlap_depth_max = sched_expect(in, steps > 0) ? steps - 1 : 0;
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
    for (uint32_t g = 0; g < self->group_count; g++) {
        same = same && self->groups[g].window == shape.columns[2][g]; /* a state's is its own */
    }
    self->step_base = proto_unpack_u64_max(in, self->step_last);
    self->tick_ns = proto_unpack_u64(in);
    self->stall_ticks = proto_unpack_u32(in);
    self->refusal_run = proto_unpack_u32(in);
    sched_width_load(self, in);
    return sched_expect(in, same) ? STATUS_OK : STATUS_ERR_MALFORMED;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* What waits must be what a submit lets in, and without an executor nothing does. */
static bool
entries_agree(const sched_core_t *self)
{
    if (self->waiting.count > self->options.queue_len_max) {
        return false;
    }
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
            sched_load_slots(self, in);
        }
    }
    if (in->failed || !sched_holds(audit, entries_agree(self))) {
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
