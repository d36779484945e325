#include "sched_core.h"

#include <stdlib.h>
#include <string.h>

#include "sched_internal.h"

enum {
    QUEUE_LEN_DEFAULT = 1024,
    SKIP_COUNT_DEFAULT = 64,
    REFUSAL_COUNT_DEFAULT = 3,
    STALL_TICKS_DEFAULT = 8,
};
#define QUEUE_TIMEOUT_DEFAULT_NS UINT64_C(600000000000)

/* ---- lists of slots -------------------------------------------------------------------------- */

void
sched_list_add(sched_core_t *self, sched_list_t *list, uint32_t slot)
{
    require(list->count < self->slot_count);
    self->slots[slot].place = list->count;
    list->items[list->count++] = slot;
}

void
sched_list_swap_remove(sched_core_t *self, sched_list_t *list, uint32_t slot)
{
    uint32_t place = self->slots[slot].place;
    require(place < list->count);
    require(list->items[place] == slot);
    uint32_t last = list->items[--list->count];
    list->items[place] = last;
    self->slots[last].place = place;
    self->slots[slot].place = SCHED_NONE;
}

void
sched_list_remove(sched_core_t *self, sched_list_t *list, uint32_t slot)
{
    uint32_t place = self->slots[slot].place;
    require(place < list->count);
    require(list->items[place] == slot);
    list->count--;
    for (uint32_t i = place; i < list->count; i++) {
        list->items[i] = list->items[i + 1];
        self->slots[list->items[i]].place = i;
    }
    self->slots[slot].place = SCHED_NONE;
}

/* ---- making ---------------------------------------------------------------------------------- */

static proto_status_t
check_options(sched_core_options_t *options)
{
    if (options->slot_count_max == 0 || options->slot_count_max > PROTO_ROWS_MAX ||
        options->queue_len_max > 1 << 20 || options->overlap_depth_max > 1 ||
        options->loan_count_max > PROTO_ROWS_MAX) {
        return STATUS_ERR_CONFIG;
    }
    if (options->queue_len_max == 0) {
        options->queue_len_max = QUEUE_LEN_DEFAULT;
    }
    if (options->skip_count_max == 0) {
        options->skip_count_max = SKIP_COUNT_DEFAULT;
    }
    if (options->refusal_count_max == 0) {
        options->refusal_count_max = REFUSAL_COUNT_DEFAULT;
    }
    if (options->stall_ticks_max == 0) {
        options->stall_ticks_max = STALL_TICKS_DEFAULT;
    }
    if (options->queue_timeout_ns == 0) {
        options->queue_timeout_ns = QUEUE_TIMEOUT_DEFAULT_NS;
    }
    return STATUS_OK;
}

proto_status_t
sched_core_new(const sched_core_options_t *options, sched_core_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);
    sched_core_options_t checked = *options;
    proto_status_t status = check_options(&checked);
    if (status != STATUS_OK) {
        return status;
    }
    status = STATUS_ERR_NO_MEMORY;
    sched_core_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return status;
    }
    self->options = checked;
    /* An entry for each waiting request and each slot; an ended one keeps its entry until it is
     * taken, so twice the slots lets new ones in meanwhile. */
    self->entry_count = checked.queue_len_max + 2 * checked.slot_count_max;
    self->entries = calloc(self->entry_count, sizeof *self->entries);
    if (self->entries == NULL) {
        goto err_destroy;
    }
    status = sched_ids_init(&self->ids, self->entry_count, SCHED_ENDED_MEMORY);
    if (status != STATUS_OK) {
        goto err_destroy;
    }
    status = sched_heap_init(&self->waiting, self->entry_count);
    if (status != STATUS_OK) {
        goto err_destroy;
    }
    status = sched_heap_init(&self->deadlines, self->entry_count);
    if (status != STATUS_OK) {
        goto err_destroy;
    }
    for (uint32_t i = 0; i < self->entry_count; i++) {
        self->entries[i].next = i + 1 < self->entry_count ? i + 1 : SCHED_NONE;
    }
    self->finished_head = SCHED_NONE;
    self->finished_tail = SCHED_NONE;
    self->tick_ns = UINT64_MAX;
    *out_p = self;
    return STATUS_OK;

err_destroy:
    sched_core_destroy(&self);
    return status;
}

void
sched_core_destroy(sched_core_t **self_p)
{
    sched_core_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    sched_free_executor(self);
    sched_heap_fini(&self->deadlines);
    sched_heap_fini(&self->waiting);
    sched_ids_fini(&self->ids);
    free(self->entries);
    free(self);
    *self_p = NULL;
}

bool
sched_core_is_attached(const sched_core_t *self)
{
    return self->attached;
}

/* ---- submit ---------------------------------------------------------------------------------- */

/* Its last token is never written to the cache. */
uint32_t
sched_cover_max(const sched_core_t *self, uint32_t prompt_length, uint32_t generation_max)
{
    uint64_t tokens = (uint64_t)prompt_length + generation_max - 1;
    if (self->width > 1) {
        tokens += (uint64_t)self->width * self->step_count_max;
    }
    /* The last row of a wide executor may reach beyond the longest request. */
    uint32_t most = self->model_len_max + self->width - 1;
    return tokens < most ? (uint32_t)tokens : most;
}

uint32_t
sched_columns_needed(const sched_core_t *self, uint32_t g, uint32_t token_count)
{
    const sched_group_t *group = &self->groups[g];
    uint64_t columns = sched_divide_up(token_count, group->granularity);
    if (group->kind == SCHED_GROUP_STATE) {
        /* The state that the oldest row reads, the ends of chunks in flight, and what the steps in
         * flight reach from the last token on, cut anywhere. */
        uint64_t reach = (uint64_t)self->step_count_max * self->width;
        uint64_t most =
            2 + self->step_count_max + (reach + group->granularity - 1) / group->granularity;
        columns = columns < most ? columns : most;
    }
    if (group->kind == SCHED_GROUP_SLIDING) {
        /* The window, what the steps in flight add before it moves, and a column cut by its end. */
        uint64_t live = (uint64_t)group->window +
                        (uint64_t)self->step_count_max * (self->step_tokens_max + self->width);
        uint64_t most = (live + group->granularity - 1) / group->granularity + 1;
        columns = columns < most ? columns : most;
    }
    return (uint32_t)columns;
}

uint64_t
sched_parents_needed(const sched_core_t *self, uint32_t token_count)
{
    uint64_t parents = 0;
    for (uint32_t g = 0; g < self->group_count; g++) {
        uint32_t columns = sched_columns_needed(self, g, token_count);
        /* Each of the few states may lie beside published ones, which keep its parent filled. */
        uint32_t packing = self->groups[g].kind == SCHED_GROUP_STATE ? 1 : self->groups[g].packing;
        parents += sched_divide_up(columns, packing);
    }
    return parents;
}

static proto_status_t
refuse(sched_refusal_t *refusal, proto_status_t status, const char *code, const char *what,
       uint64_t needed, uint64_t limit)
{
    bool later = status == STATUS_ERR_OVERLOADED || status == STATUS_ERR_REFUSED;
    *refusal = (sched_refusal_t){
        .code = code,
        .what = what,
        .needed = needed,
        .limit = limit,
        .retry_after_ms = later ? SCHED_RETRY_AFTER_MS : 0,
    };
    return status;
}

static proto_status_t
check_submit(const sched_core_t *self, const sched_submit_t *submit, sched_refusal_t *refusal)
{
    if (!self->attached) {
        return refuse(refusal, STATUS_ERR_REFUSED, "no_executor", "executors", 1, 0);
    }
    if (self->draining && !submit->is_activated) {
        return refuse(refusal, STATUS_ERR_REFUSED, "draining", "requests", 1, 0);
    }
    if (submit->prompt_length == 0 || submit->generation_max == 0 ||
        submit->emitted >= submit->prompt_length) {
        return refuse(refusal, STATUS_ERR_INVALID, "invalid", "prompt and generated tokens",
                      submit->emitted, submit->prompt_length);
    }
    uint64_t pages = submit->prompt_length / self->page_tokens;
    /* The page that ends with the first generated token was not known when its blocks were. */
    pages -= submit->is_activated && submit->prompt_length % self->page_tokens == 0 ? 1 : 0;
    /* No hashes at all: this request takes no part in the prefix cache. */
    if (submit->page_hashes.size_bytes != pages * PROTO_HASH_SIZE_BYTES &&
        submit->page_hashes.size_bytes != 0) {
        return refuse(refusal, STATUS_ERR_INVALID, "invalid", "page hashes",
                      submit->page_hashes.size_bytes / PROTO_HASH_SIZE_BYTES, pages);
    }
    uint64_t length = (uint64_t)submit->prompt_length + submit->generation_max;
    if (length > self->model_len_max) {
        return refuse(refusal, STATUS_ERR_NEVER_FITS, "never_fits", "tokens", length,
                      self->model_len_max);
    }
    uint64_t parents = sched_parents_needed(self, sched_cover_max(self, submit->prompt_length,
                                                                  submit->generation_max));
    if (parents > self->parent_count - 1) {
        return refuse(refusal, STATUS_ERR_NEVER_FITS, "never_fits", "blocks", parents,
                      self->parent_count - 1);
    }
    if (submit->transfer != 0 && !submit->is_activated && self->loan_count >= self->loan_max) {
        return refuse(refusal, STATUS_ERR_OVERLOADED, "overloaded", "transfers",
                      (uint64_t)self->loan_count + 1, self->loan_max);
    }
    if (self->waiting.count >= self->options.queue_len_max || self->entry_free == SCHED_NONE) {
        return refuse(refusal, STATUS_ERR_OVERLOADED, "overloaded", "requests",
                      (uint64_t)self->waiting.count + 1, self->options.queue_len_max);
    }
    return STATUS_OK;
}

proto_status_t
sched_core_submit(sched_core_t *self, uint64_t now_ns, const sched_submit_t *submit,
                  sched_refusal_t *refusal)
{
    require(submit != NULL);
    require(refusal != NULL);
    if (sched_ids_find(&self->ids, submit->owner, submit->request) != SCHED_IDS_UNKNOWN) {
        self->figures.late_events++;
        return refuse(refusal, STATUS_ERR_STALE, "duplicate", "requests", 2, 1);
    }
    proto_status_t status = check_submit(self, submit, refusal);
    if (status != STATUS_OK) {
        return status;
    }
    if (submit->is_activated && !sched_activate(self, submit)) {
        return refuse(refusal, STATUS_ERR_INVALID, "invalid", "transfers", 1, 0);
    }
    uint32_t index = self->entry_free;
    sched_entry_t *entry = &self->entries[index];
    self->entry_free = entry->next;
    uint64_t timeout =
        submit->queue_timeout_ns != 0 ? submit->queue_timeout_ns : self->options.queue_timeout_ns;
    *entry = (sched_entry_t){
        .request = submit->request,
        .tag = submit->tag,
        .arrival = ++self->arrival_count,
        .submit_ns = now_ns,
        .deadline_ns = timeout < UINT64_MAX - now_ns ? now_ns + timeout : UINT64_MAX,
        .hashes = submit->page_hashes.data,
        .priority = submit->priority,
        .owner = submit->owner,
        .prompt_length = submit->prompt_length,
        .generation_max = submit->generation_max,
        .emitted = submit->emitted,
        .page_count = (uint32_t)(submit->page_hashes.size_bytes / PROTO_HASH_SIZE_BYTES),
        .transfer = submit->transfer,
        .is_activated = submit->is_activated,
        .tried_version = UINT64_MAX,
        .code = "",
        .state = SCHED_STATE_SUBMITTED,
        .in_use = true,
    };
    sched_ids_add(&self->ids, submit->owner, submit->request, index);
    sched_heap_push(&self->waiting, index, sched_queue_key(entry));
    int64_t deadline = entry->deadline_ns < INT64_MAX ? (int64_t)entry->deadline_ns : INT64_MAX;
    sched_heap_push(&self->deadlines, index,
                    (sched_key_t){.major = deadline, .minor = entry->arrival});
    sched_fold(self, submit->request);
    sched_fold(self, (uint64_t)submit->prompt_length << 32 | submit->generation_max);
    return STATUS_OK;
}

/* ---- ends ------------------------------------------------------------------------------------ */

void
sched_move(sched_core_t *self, uint32_t index, sched_move_t move)
{
    sched_entry_t *entry = &self->entries[index];
    sched_state_t next = SCHED_STATE_FINISHED;
    proto_status_t status = sched_state_next((sched_state_t)entry->state, move, &next);
    require(status == STATUS_OK);
    entry->state = (uint8_t)next;
    if (entry->slot != 0) {
        self->slots[entry->slot].state = (uint8_t)next;
    }
}

void
sched_leave_queue(sched_core_t *self, uint32_t index)
{
    sched_heap_remove(&self->waiting, index);
    sched_heap_remove(&self->deadlines, index);
}

static void
leave_slot(sched_core_t *self, uint32_t slot)
{
    sched_slot_t *row = &self->slots[slot];
    if (row->place != SCHED_NONE) {
        if (row->state == SCHED_STATE_RETRACTED) {
            sched_list_remove(self, &self->retracted, slot);
        } else if (row->state == SCHED_STATE_PREFILLING) {
            sched_list_remove(self, &self->prefilling, slot);
        } else {
            sched_list_swap_remove(self, &self->decoding, slot);
        }
    }
    if (!sched_hold(self, slot)) {
        sched_drop_blocks(self, slot);
    }
    for (uint32_t g = 0; g < self->group_count; g++) {
        sched_extent(self, slot, g)->executor_count = 0;
    }
    uint32_t serial = row->serial + 1;
    *row = (sched_slot_t){.serial = serial,
                          .entry = SCHED_NONE,
                          .publish_at = UINT32_MAX,
                          .expire_at = UINT32_MAX};
    sched_list_add(self, &self->releasing, slot);
    self->running_count--;
    self->end_count++;
}

void
sched_end(sched_core_t *self, uint32_t index, proto_finish_reason_t reason, proto_status_t status,
          const char *code)
{
    sched_entry_t *entry = &self->entries[index];
    require(entry->in_use);
    require(entry->state != SCHED_STATE_FINISHED);
    if (entry->slot != 0) {
        entry->generated_count = self->slots[entry->slot].generated;
        leave_slot(self, entry->slot);
        entry->slot = 0;
    } else {
        sched_leave_queue(self, index);
        sched_drop_loan_of(self, entry);
    }
    bool well = reason == PROTO_FINISH_STOP || reason == PROTO_FINISH_LENGTH;
    sched_move(self, index, well ? SCHED_MOVE_FINISH : SCHED_MOVE_ABORT);
    entry->reason = (uint8_t)reason;
    entry->status = status;
    entry->code = code;
    entry->next = SCHED_NONE;
    if (self->finished_tail != SCHED_NONE) {
        self->entries[self->finished_tail].next = index;
    } else {
        self->finished_head = index;
    }
    self->finished_tail = index;
    sched_ids_end(&self->ids, entry->owner, entry->request);
    sched_fold(self, entry->request ^ (uint64_t)reason << 60);
}

bool
sched_core_take_finished(sched_core_t *self, sched_finished_t *out)
{
    uint32_t index = self->finished_head;
    if (index == SCHED_NONE) {
        return false;
    }
    sched_entry_t *entry = &self->entries[index];
    self->finished_head = entry->next;
    if (self->finished_head == SCHED_NONE) {
        self->finished_tail = SCHED_NONE;
    }
    /* Of a request that began elsewhere the pages found may hold tokens of its answer too. */
    uint32_t prompt_count = entry->prompt_length - entry->emitted;
    *out = (sched_finished_t){
        .request = entry->request,
        .owner = entry->owner,
        .tag = entry->tag,
        .admitted = entry->admitted,
        .reason = (proto_finish_reason_t)entry->reason,
        .status = entry->status,
        .code = entry->code,
        .prompt_count = prompt_count,
        .cached_count = entry->cached_count < prompt_count ? entry->cached_count : prompt_count,
        .generated_count = entry->emitted + entry->generated_count,
        .queue_ns = entry->queue_ns,
        .needed = entry->needed,
        .limit = entry->limit,
        .retry_after_ms = entry->retry_after_ms,
        .suspects = entry->suspects,
    };
    entry->in_use = false;
    entry->next = self->entry_free;
    self->entry_free = index;
    return true;
}

bool
sched_core_take_admission(sched_core_t *self, sched_admission_t *out)
{
    if (self->admission_at == self->admission_count) {
        return false;
    }
    *out = self->admissions[self->admission_at++];
    return true;
}

/* ---- questions ------------------------------------------------------------------------------- */

uint64_t
sched_core_deadline_ns(const sched_core_t *self)
{
    uint32_t first = sched_heap_first(&self->deadlines);
    uint64_t deadline = first == SCHED_NONE ? UINT64_MAX : self->entries[first].deadline_ns;
    return self->tick_ns < deadline ? self->tick_ns : deadline;
}

static uint32_t
prompt_length_max_of(const sched_core_t *self)
{
    uint32_t low = 0;
    uint32_t high = self->model_len_max - 1;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (sched_parents_needed(self, sched_cover_max(self, middle, 1)) <=
            self->parent_count - 1) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

const sched_core_options_t *
sched_core_options(const sched_core_t *self)
{
    return &self->options;
}

void
sched_core_figures(const sched_core_t *self, sched_figures_t *out)
{
    *out = self->figures;
    out->running_count = self->running_count;
    out->waiting_count = self->waiting.count;
    out->retracted_count = self->retracted.count;
    out->in_flight_count = self->step_in_flight;
    if (!self->attached) {
        return;
    }
    out->block_count = sched_pool_capacity(self->pool, 0);
    out->free_count = sched_pool_count(self->pool, 0, SCHED_BLOCK_FREE);
    out->cached_count = sched_pool_count(self->pool, 0, SCHED_BLOCK_CACHED);
    for (uint32_t g = 0; g < self->group_count; g++) {
        out->held_count += sched_pool_count(self->pool, g, SCHED_BLOCK_HELD);
        out->incoming_count += sched_pool_count(self->pool, g, SCHED_BLOCK_INCOMING);
        out->fencing_count += sched_pool_count(self->pool, g, SCHED_BLOCK_FENCING);
    }
    out->prompt_length_max = prompt_length_max_of(self);
    out->token_capacity = (uint64_t)out->block_count * self->groups[0].granularity;
    out->evicted_blocks = sched_pool_evicted_count(self->pool);
}

bool
sched_core_step_in_work(const sched_core_t *self, uint64_t *step, uint64_t *planned_ns,
                        uint64_t *predicted_ns)
{
    if (self->step_in_flight == 0) {
        return false;
    }
    const sched_step_t *oldest = &self->steps[self->step_first];
    *step = oldest->step;
    *planned_ns = oldest->planned_ns;
    uint64_t extend_tokens = 0;
    for (uint32_t r = 0; r < oldest->extend_count; r++) {
        extend_tokens += oldest->rows[r].length;
    }
    *predicted_ns = self->decode_step_ns + extend_tokens * self->extend_token_ns;
    return true;
}

uint64_t
sched_core_digest(const sched_core_t *self)
{
    return self->digest;
}
