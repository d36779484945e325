/* The executor's cache: how many blocks it gets, and whether the machine pays for them.
 *
 * By default a probe measures instead of guessing: everything is built and captured once on the
 * smallest pool that works, the device's own count says what that took, and what is left pays for
 * the real pool, to which the trees are then rebound (run_rebind.c).  A size that was asked for
 * skips the probe and is checked against the same measured sum. */
#include <inttypes.h>
#include <stdio.h>

#include "proto_require.h"
#include "run_executor_private.h"
#include "run_plan.h"

static const char term_cache[] = "cache";
static const char term_probe[] = "probe cache";

static double
mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

static run_memory_request_t
request_of(const run_executor_t *self)
{
    const run_executor_options_t *o = &self->options;
    return (run_memory_request_t){
        .cache_size_bytes = o->cache_size_bytes / run_ranks_count(self),
        .available_bytes = self->available_bytes,
        .slot_count = o->slot_count,
        .model_len_max = o->model_len_max,
        .width = o->width,
        .step_tokens_max = o->step_tokens_max,
    };
}

void
run_executor_note_memory(run_executor_t *self, const char *name)
{
    run_ledger_note(&self->ledger, name, device_memory_used_bytes(self->device));
}

proto_status_t
run_executor_new_plan(const run_executor_t *self, cache_plan_t **out_p)
{
    run_plan_options_t layout = {
        .config = model_config(self->model),
        .granularity = self->options.block_granularity,
        .dtype = self->cache_dtype,
        .draft = self->drafter.draft == NULL ? NULL : draft_info(self->drafter.draft),
    };
    return run_plan_new(&layout, out_p);
}

proto_status_t
run_executor_new_arena(const run_executor_t *self, const cache_plan_t *plan, cache_arena_t **out_p)
{
    return self->options.share_cache ? cache_arena_new_shared(self->device, plan, out_p)
                                     : cache_arena_new(self->device, plan, out_p);
}

/* The smallest pool that everything can be captured on: a block of each group, and a row of state
 * for each request of the largest batch. */
static uint32_t
probe_parent_count(const run_executor_t *self)
{
    uint32_t parents = 0;
    for (uint32_t g = 0; g < cache_plan_group_count(self->plan); g++) {
        const cache_group_t *group = cache_plan_group(self->plan, g);
        uint32_t blocks = group->kind == CACHE_KIND_STATE ? self->options.slot_count : 1;
        parents += (blocks + group->packing - 1) / group->packing;
    }
    return parents;
}

typedef struct {
    uint64_t available_bytes; /* to new allocations, now */
    uint64_t total_bytes;     /* whoever uses it now */
} memory_t;

/* Of the device, or of the machine if that is the device's. */
static proto_status_t
read_memory(run_executor_t *self, memory_t *out)
{
    uint64_t free_bytes = 0;
    proto_status_t status = device_memory_free_bytes(self->device, &free_bytes);
    if (status == STATUS_ERR_UNSUPPORTED) {
        *out = (memory_t){run_memory_available_bytes(), run_memory_total_bytes()};
        return STATUS_OK;
    }
    if (status != STATUS_OK) {
        const char *fault = self->device->fault;
        return run_executor_fail(self, status,
                                 "the device does not say how much memory is free: %s",
                                 fault != NULL ? fault : proto_status_text(status));
    }
    *out = (memory_t){free_bytes, free_bytes + device_memory_used_bytes(self->device)};
    return STATUS_OK;
}

static proto_status_t
check_asked_size(run_executor_t *self, run_memory_answer_t *answer)
{
    run_memory_request_t request = request_of(self);
    /* What is free now may grow, as a page cache gives way; what there is does not. */
    memory_t memory = {0};
    proto_status_t status = read_memory(self, &memory);
    if (status != STATUS_OK) {
        return status;
    }
    uint64_t total_bytes = memory.total_bytes;
    if (request.cache_size_bytes > total_bytes) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "no room for a cache of %.1f MiB as asked: this machine has %.1f "
                                 "MiB",
                                 mib(request.cache_size_bytes), mib(total_bytes));
    }
    if (run_memory_solve(self->plan, &request, answer) != STATUS_OK) {
        /* Waiting does not help: the limit itself is too small. */
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "no room for a cache in %.1f MiB as asked: a block is %.2f MiB, "
                                 "and at least %u of them are needed",
                                 mib(request.cache_size_bytes),
                                 mib(cache_plan_parent_bytes(self->plan)),
                                 cache_plan_group_count(self->plan) + 1);
    }
    return STATUS_OK;
}

proto_status_t
run_executor_open_cache(run_executor_t *self)
{
    proto_status_t status = run_executor_new_plan(self, &self->plan);
    if (status != STATUS_OK) {
        return run_executor_fail(self, status, "the cache cannot be laid out");
    }
    run_ledger_begin(&self->ledger, device_memory_used_bytes(self->device));
    memory_t memory = {0};
    status = read_memory(self, &memory);
    if (status != STATUS_OK) {
        return status;
    }
    self->available_bytes = memory.available_bytes / run_ranks_count(self);
    self->is_probing = self->options.cache_size_bytes == 0;
    uint32_t parents = probe_parent_count(self);
    if (!self->is_probing) {
        run_memory_answer_t answer = {0};
        status = check_asked_size(self, &answer);
        if (status != STATUS_OK) {
            return status;
        }
        parents = answer.parent_count;
    }
    status = cache_plan_bind(self->plan, parents);
    if (status == STATUS_OK) {
        status = run_executor_new_arena(self, self->plan, &self->arena);
    }
    if (status != STATUS_OK) {
        return run_executor_fail(self, status, "cannot allocate the cache arena of %zu bytes",
                                 cache_plan_arena_bytes(self->plan));
    }
    run_executor_note_memory(self, self->is_probing ? term_probe : term_cache);
    return run_executor_publish_cache(self);
}

/* Where every page of every field lies, for the clearing of blocks; and what ids there are. */
proto_status_t
run_executor_publish_cache(run_executor_t *self)
{
    uint32_t count = cache_plan_field_count(self->plan);
    device_release(self->device, DEVICE_MEMORY_PINNED, (void **)&self->zero_fields);
    proto_status_t status =
        device_alloc(self->device, DEVICE_MEMORY_PINNED, count * sizeof *self->zero_fields,
                     (void **)&self->zero_fields);
    if (status != STATUS_OK) {
        return status;
    }
    for (uint32_t i = 0; i < count; i++) {
        cache_place_t place = cache_plan_place(self->plan, i);
        uint32_t group = cache_plan_field(self->plan, i)->group;
        self->zero_fields[i] = (kern_page_field_t){
            .pages = cache_arena_memory(self->arena) + place.page0_offset_bytes,
            .stride_bytes = place.stride_bytes,
            .page_bytes = place.page_bytes,
            .group = group,
            .page_count = cache_plan_page_count(self->plan, group),
        };
    }
    self->zero_field_count = count;
    if (self->tables != NULL) {
        run_tables_bind(self->tables, self->plan);
    }
    return STATUS_OK;
}

/* ---- the arithmetic -------------------------------------------------------------------------- */

/* The cache that was asked for, beside everything else, must fit the machine. */
static proto_status_t
settle_asked(run_executor_t *self)
{
    memory_t memory = {0};
    proto_status_t status = read_memory(self, &memory);
    if (status != STATUS_OK) {
        return status;
    }
    uint64_t total_bytes = memory.total_bytes;
    uint64_t weight_bytes = self->ledger.begin_bytes;
    uint64_t sum = run_ledger_sum(&self->ledger);
    uint64_t cache_bytes = run_ledger_term(&self->ledger, term_cache);
    char terms[512];
    run_ledger_describe(&self->ledger, term_cache, terms, sizeof terms);
    if (weight_bytes + sum > total_bytes) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "no room for a cache of %.1f MiB as asked: this machine has %.1f "
                                 "MiB, and beside the cache %.1f MiB are needed (%" PRIu64
                                 " weights + %s bytes)",
                                 mib(self->options.cache_size_bytes), mib(total_bytes),
                                 mib(weight_bytes + sum - cache_bytes), weight_bytes, terms);
    }
    run_memory_request_t request = request_of(self);
    run_memory_answer_t answer;
    status = run_memory_solve(self->plan, &request, &answer);
    require(status == STATUS_OK);
    request.fixed_bytes = sum - cache_bytes;
    char line[512];
    run_memory_describe(&request, &answer, line, sizeof line);
    run_executor_add_summary(self, "%s\n", line);
    run_executor_add_summary(self,
                             "memory: %" PRIu64 " bytes in all = %" PRIu64
                             " weights + %s + %" PRIu64 " cache + %" PRIu64 " rest\n",
                             total_bytes, weight_bytes, terms, cache_bytes,
                             total_bytes - weight_bytes - sum);
    return STATUS_OK;
}

/* What the probe did not take pays for the cache; the trees move to it. */
static proto_status_t
settle_probe(run_executor_t *self)
{
    uint64_t probe_bytes = run_ledger_term(&self->ledger, term_probe);
    uint64_t fixed_bytes = run_ledger_sum(&self->ledger) - probe_bytes;
    run_memory_request_t request = request_of(self);
    request.fixed_bytes = fixed_bytes;
    run_memory_answer_t answer;
    proto_status_t status = run_memory_solve(self->plan, &request, &answer);
    char terms[512];
    run_ledger_describe(&self->ledger, term_probe, terms, sizeof terms);
    if (status != STATUS_OK) {
        return run_executor_fail(self, status,
                                 "no room for a cache: %.1f MiB available, %.1f MiB needed for "
                                 "everything else (%s bytes), a block is %.2f MiB",
                                 mib(request.available_bytes), mib(fixed_bytes), terms,
                                 mib(cache_plan_parent_bytes(self->plan)));
    }
    status = run_ranks_agree_blocks(self, &answer.parent_count);
    if (status != STATUS_OK) {
        return status;
    }
    status = run_executor_rebind(self, answer.parent_count);
    if (status != STATUS_OK) {
        return run_executor_fail(self, status, "cannot bind the cache of %" PRIu32 " blocks: %s",
                                 answer.parent_count,
                                 self->fault[0] != '\0' ? self->fault : proto_status_text(status));
    }
    char line[512];
    run_memory_describe(&request, &answer, line, sizeof line);
    run_executor_add_summary(self, "%s\n", line);
    uint64_t cache_bytes = cache_plan_arena_bytes(self->plan);
    uint64_t reserve_bytes = request.available_bytes - fixed_bytes - answer.budget_bytes;
    run_executor_add_summary(self,
                             "memory: %" PRIu64 " bytes available = %s + %" PRIu64
                             " reserve + %" PRIu64 " cache + %" PRIu64
                             " rest; after the rebind %" PRIu64 " bytes beside the cache\n",
                             request.available_bytes, terms, reserve_bytes, cache_bytes,
                             answer.budget_bytes - cache_bytes, self->rebound_fixed_bytes);
    return STATUS_OK;
}

proto_status_t
run_executor_settle_cache(run_executor_t *self)
{
    if (!self->is_probing) {
        return settle_asked(self);
    }
    self->is_probing = false;
    return settle_probe(self);
}
