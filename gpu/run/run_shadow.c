/* The shadow check. */
#include "run_shadow.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"
#include "run_executor_private.h"

/* A run of device memory that the step changes. */
typedef struct {
    char path[BACKEND_PATH_SIZE_BYTES];
    uint8_t *address;
    size_t save_bytes;    /* all that either way may write */
    size_t compare_bytes; /* what belongs to live requests */
    size_t offset;        /* in each area */
} span_t;

enum { AREA_BEFORE, AREA_EAGER, AREA_REPLAY, AREA_COUNT };

typedef struct {
    run_executor_t *executor;
    run_forward_step_t *runner; /* of the step's width */
    const run_batch_t *batch;
    uint32_t actual_bs;
    uint32_t padded_bs;
    int32_t *lengths; /* pinned, [slot_count + 2]: tokens in the cache before the step */
    span_t *spans;    /* [span_count_max] */
    uint32_t span_count;
    uint32_t span_count_max;
    uint32_t compare_at; /* while the compared sizes are filled in */
    size_t area_bytes;
    uint8_t *areas[AREA_COUNT]; /* pinned */
    size_t logit_bytes;
    uint8_t *logits[AREA_COUNT]; /* pinned; EAGER and REPLAY */
    bool is_short;               /* more spans than there is room for: a bug of count_max() */
} check_t;

/* ---- the spans ------------------------------------------------------------------------------- */

static void
add_span(void *context, const char *path, const void *address, size_t size_bytes)
{
    check_t *check = context;
    if (check->span_count == check->span_count_max) {
        check->is_short = true;
        return;
    }
    span_t *span = &check->spans[check->span_count++];
    (void)snprintf(span->path, sizeof span->path, "%s", path);
    span->address = (uint8_t *)(uintptr_t)address;
    span->save_bytes = size_bytes;
    span->compare_bytes = size_bytes;
    span->offset = check->area_bytes;
    check->area_bytes +=
        (size_bytes + DEVICE_MEMORY_ALIGN - 1) / DEVICE_MEMORY_ALIGN * DEVICE_MEMORY_ALIGN;
}

/* The second visit, with the live batch: cuts the spans of the first one. */
static void
cut_span(void *context, const char *path, const void *address, size_t size_bytes)
{
    check_t *check = context;
    span_t *span = &check->spans[check->compare_at++];
    require(strcmp(span->path, path) == 0);
    require(span->address == address);
    require(size_bytes <= span->save_bytes);
    span->compare_bytes = size_bytes;
}

static void
visit_inputs(const check_t *check, uint32_t bs, backend_visit_fn visit, void *context)
{
    const run_buffers_t *buffers = &check->executor->buffers;
    size_t rows = (size_t)bs * check->batch->launch->width;
    visit(context, "input.token_ids", buffers->input_ids, rows * sizeof(int32_t));
    visit(context, "input.positions", buffers->positions, rows * sizeof(int32_t));
    visit(context, "input.seq_lens", buffers->seq_lens, bs * sizeof(int32_t));
    visit(context, "input.request_slots", buffers->request_slots, bs * sizeof(int32_t));
    visit(context, "input.write_slots", buffers->write_slots, bs * sizeof(int32_t));
}

/* State by slot: what steps hand to each other.  The sink at the end belongs to padding. */
static void
visit_state(const run_buffers_t *buffers, size_t sinks, backend_visit_fn visit, void *context)
{
    size_t slots = (size_t)buffers->options.slot_count + 1 + sinks;
    visit(context, "state.valid_lengths", buffers->valid_lengths, slots * sizeof(int32_t));
    visit(context, "state.future_inputs", buffers->future_inputs,
          slots * buffers->options.width * sizeof(int32_t));
}

/* Where a position of a slot lies in a field: a row, or the page of a state.  0 bytes: nowhere. */
static size_t
cache_row(const check_t *check, uint32_t field_index, uint32_t slot, uint32_t position,
          uint8_t **address_p)
{
    const run_executor_t *executor = check->executor;
    const cache_field_t *field = cache_plan_field(executor->plan, field_index);
    const cache_group_t *group = cache_plan_group(executor->plan, field->group);
    cache_place_t place = cache_plan_place(executor->plan, field_index);
    int32_t block =
        run_tables_get(executor->tables, slot, field->group, position / group->granularity);
    if (block <= 0) {
        return 0;
    }
    *address_p = cache_arena_memory(executor->arena) + place.page0_offset_bytes +
                 (size_t)block * place.stride_bytes;
    if (group->kind == CACHE_KIND_STATE) {
        return place.page_bytes;
    }
    size_t row_bytes =
        (size_t)field->heads * field->head_dim * cache_dtype_size_bytes(field->dtype);
    *address_p += position % group->granularity * row_bytes;
    return row_bytes;
}

static uint32_t
slot_of(const check_t *check, uint32_t request)
{
    return check->batch->launch->decode_slots.data[request];
}

static void
add_cache_spans(check_t *check)
{
    const run_executor_t *executor = check->executor;
    uint32_t width = check->batch->launch->width;
    for (uint32_t f = 0; f < cache_plan_field_count(executor->plan); f++) {
        const cache_field_t *field = cache_plan_field(executor->plan, f);
        for (uint32_t b = 0; b < check->actual_bs; b++) {
            uint32_t slot = slot_of(check, b);
            const uint8_t *last = NULL;
            for (uint32_t t = 0; t < width; t++) {
                uint32_t position = (uint32_t)check->lengths[slot] + t;
                uint8_t *address = NULL;
                size_t size_bytes = cache_row(check, f, slot, position, &address);
                if (size_bytes == 0 || address == last) {
                    continue; /* a hole, or the state page of the position before */
                }
                last = address;
                char path[BACKEND_PATH_SIZE_BYTES];
                (void)snprintf(path, sizeof path,
                               "cache layer %" PRIu32 " field %d of slot %" PRIu32
                               " position %" PRIu32,
                               field->layer, (int)field->name, slot, position);
                add_span(check, path, address, size_bytes);
            }
        }
    }
}

/* In the order in which a step writes them, so that the first that differs is the cause. */
static void
add_spans(check_t *check)
{
    run_executor_t *executor = check->executor;
    backend_t *backend = run_forward_step_options(check->runner)->backend;
    const int32_t *slots = check->batch->stage->header.slots;
    visit_inputs(check, check->padded_bs, add_span, check);
    backend_visit_step_spans(backend, check->padded_bs, add_span, check);
    visit_inputs(check, check->actual_bs, cut_span, check);
    backend_visit_step_spans(backend, check->actual_bs, cut_span, check);
    require(check->compare_at == check->span_count);
    add_cache_spans(check);
    const sample_step_t step = {slots, check->actual_bs, check->batch->launch->width};
    sample_pool_visit_step_spans(executor->sample, &step, add_span, check);
    check->compare_at = check->span_count;
    visit_state(&executor->buffers, 1, add_span, check);
    visit_state(&executor->buffers, 0, cut_span, check);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static proto_status_t
alloc_pinned(check_t *check, size_t size_bytes, void *memory_p)
{
    return device_alloc(check->executor->device, DEVICE_MEMORY_PINNED, size_bytes,
                        (void **)memory_p);
}

static void
check_fini(check_t *check)
{
    device_t *device = check->executor->device;
    for (uint32_t i = 0; i < AREA_COUNT; i++) {
        device_release(device, DEVICE_MEMORY_PINNED, (void **)&check->areas[i]);
        device_release(device, DEVICE_MEMORY_PINNED, (void **)&check->logits[i]);
    }
    device_release(device, DEVICE_MEMORY_PINNED, (void **)&check->lengths);
    free(check->spans);
}

/* The written sum: inputs, state and sampling by name, counts by request, backend nodes, and a row
 * of each field for each token. */
static uint32_t
count_max(const check_t *check)
{
    enum { FIXED = 5 + 2 + 5, BACKEND = 1024 };
    const run_executor_t *executor = check->executor;
    return FIXED + BACKEND + check->actual_bs +
           cache_plan_field_count(executor->plan) * check->actual_bs * check->batch->launch->width;
}

static proto_status_t
check_init(run_executor_t *executor, const run_batch_t *batch, check_t *check)
{
    const run_buffers_t *buffers = &executor->buffers;
    uint32_t decodes = batch->launch->decode_slots.count;
    *check = (check_t){
        .executor = executor,
        .runner = run_executor_runner(executor, batch->launch->width),
        .batch = batch,
        .actual_bs = decodes,
    };
    check->padded_bs = run_forward_step_padded_bs(check->runner, decodes);
    size_t lengths_bytes = ((size_t)buffers->options.slot_count + 2) * sizeof(int32_t);
    proto_status_t status = alloc_pinned(check, lengths_bytes, &check->lengths);
    if (status != STATUS_OK) {
        return status;
    }
    run_buffers_copy(buffers, check->lengths, buffers->valid_lengths, lengths_bytes);
    status = device_stream_synchronize(executor->stream); /* drains what is in flight, too */
    if (status != STATUS_OK) {
        return status;
    }
    check->span_count_max = count_max(check);
    check->spans = calloc(check->span_count_max, sizeof *check->spans);
    if (check->spans == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    add_spans(check);
    require(!check->is_short);
    check->logit_bytes = (size_t)decodes * batch->launch->width *
                         model_config(executor->model)->vocab_size * sizeof(float);
    for (uint32_t i = 0; status == STATUS_OK && i < AREA_COUNT; i++) {
        status = alloc_pinned(check, check->area_bytes, &check->areas[i]);
        if (status == STATUS_OK && i != AREA_BEFORE) {
            status = alloc_pinned(check, check->logit_bytes, &check->logits[i]);
        }
    }
    return status;
}

/* ---- the two runs ---------------------------------------------------------------------------- */

static void
save(check_t *check, uint32_t area)
{
    for (uint32_t i = 0; i < check->span_count; i++) {
        const span_t *span = &check->spans[i];
        run_buffers_copy(&check->executor->buffers, check->areas[area] + span->offset,
                         span->address, span->save_bytes);
    }
}

static void
restore(check_t *check)
{
    for (uint32_t i = 0; i < check->span_count; i++) {
        const span_t *span = &check->spans[i];
        run_buffers_copy(&check->executor->buffers, span->address,
                         check->areas[AREA_BEFORE] + span->offset, span->save_bytes);
    }
}

static proto_status_t
run_once(check_t *check, uint32_t area, run_launched_t *out)
{
    run_executor_t *executor = check->executor;
    proto_status_t status = run_forward_step_launch(check->runner, check->batch, out);
    if (status != STATUS_OK) {
        return status;
    }
    save(check, area);
    run_buffers_copy(&executor->buffers, check->logits[area], out->logits, check->logit_bytes);
    return device_stream_synchronize(executor->stream);
}

/* The planted fault: the newest key of the first request looks different to the eager run. */
static proto_status_t
flip_byte(const check_t *check)
{
    const run_executor_t *executor = check->executor;
    uint32_t slot = slot_of(check, 0);
    uint32_t length = (uint32_t)check->lengths[slot];
    uint8_t *address = NULL;
    if (length == 0 || cache_row(check, 0, slot, length - 1, &address) == 0) {
        return STATUS_OK;
    }
    uint8_t *byte = check->areas[AREA_REPLAY]; /* pinned, and not in use yet */
    run_buffers_copy(&executor->buffers, byte, address + 1, 1);
    proto_status_t status = device_stream_synchronize(executor->stream);
    if (status == STATUS_OK) {
        *byte ^= 0x80; /* the sign of a half or a mantissa bit of a float */
        run_buffers_copy(&executor->buffers, address + 1, byte, 1);
        status = device_stream_synchronize(executor->stream);
    }
    return status;
}

static proto_status_t
run_both(check_t *check, run_launched_t *out)
{
    run_executor_t *executor = check->executor;
    bool is_planted = executor->shadow.is_planted;
    save(check, AREA_BEFORE);
    proto_status_t status = is_planted ? flip_byte(check) : STATUS_OK;
    if (status == STATUS_OK) {
        run_forward_step_set_graphs(check->runner, false);
        status = run_once(check, AREA_EAGER, out);
        run_forward_step_set_graphs(check->runner, true);
    }
    if (status == STATUS_OK && is_planted) {
        status = flip_byte(check); /* and back */
    }
    if (status != STATUS_OK) {
        return status;
    }
    require(out->mode == PROTO_STEP_DECODE_EAGER);
    restore(check);
    status = run_once(check, AREA_REPLAY, out);
    require(status != STATUS_OK || out->mode == PROTO_STEP_DECODE_GRAPH);
    return status;
}

/* ---- the verdict ----------------------------------------------------------------------------- */

static size_t
first_difference(const uint8_t *a, const uint8_t *b, size_t size_bytes)
{
    size_t at = 0;
    while (at < size_bytes && a[at] == b[at]) {
        at++;
    }
    return at;
}

/* Logits are compared where they arise: after the cache rows, before the sampling. */
static bool
differs(const check_t *check, const char **path_p, size_t *at_p)
{
    bool logits_done = false;
    for (uint32_t i = 0; i <= check->span_count; i++) {
        const span_t *span = i < check->span_count ? &check->spans[i] : NULL;
        bool is_after = span == NULL || strncmp(span->path, "sample.", 7) == 0;
        if (is_after && !logits_done) {
            logits_done = true;
            *at_p = first_difference(check->logits[AREA_EAGER], check->logits[AREA_REPLAY],
                                     check->logit_bytes);
            if (*at_p < check->logit_bytes) {
                *path_p = "logits";
                return true;
            }
        }
        if (span == NULL) {
            break;
        }
        *at_p = first_difference(check->areas[AREA_EAGER] + span->offset,
                                 check->areas[AREA_REPLAY] + span->offset, span->compare_bytes);
        if (*at_p < span->compare_bytes) {
            *path_p = span->path;
            return true;
        }
    }
    return false;
}

static void
judge(const check_t *check, run_shadow_t *shadow)
{
    const char *path = NULL;
    size_t at = 0;
    uint64_t step = check->batch->launch->step;
    if (differs(check, &path, &at)) {
        shadow->status = STATUS_ERR_INTERNAL;
        (void)snprintf(shadow->text, sizeof shadow->text,
                       "step %" PRIu64
                       ": eager and replay differ, first in '%s' at byte %zu (%" PRIu32
                       " requests, padded to %" PRIu32 "); the replay's results stand",
                       step, path, at, check->actual_bs, check->padded_bs);
        return;
    }
    size_t bytes = check->logit_bytes;
    for (uint32_t i = 0; i < check->span_count; i++) {
        bytes += check->spans[i].compare_bytes;
    }
    shadow->status = STATUS_OK;
    (void)snprintf(shadow->text, sizeof shadow->text,
                   "step %" PRIu64 ": eager and replay agree in every bit: %" PRIu32
                   " buffers, %zu bytes, %" PRIu32 " requests, padded to %" PRIu32,
                   step, check->span_count + 1, bytes, check->actual_bs, check->padded_bs);
}

proto_status_t
run_shadow_launch(run_executor_t *self, const run_batch_t *batch, run_launched_t *out)
{
    run_shadow_t *shadow = &self->shadow;
    const proto_step_launch_t *launch = batch->launch;
    run_forward_step_t *runner = run_executor_runner(self, launch->width);
    bool is_decode = launch->extend_slots.count == 0 && launch->decode_slots.count > 0;
    if (!is_decode || run_forward_step_padded_bs(runner, launch->decode_slots.count) == 0) {
        return run_forward_step_launch(runner, batch, out);
    }
    shadow->is_wanted = false;
    shadow->is_done = true;
    check_t check;
    proto_status_t status = check_init(self, batch, &check);
    if (status == STATUS_ERR_NO_MEMORY) {
        shadow->status = status;
        (void)snprintf(shadow->text, sizeof shadow->text,
                       "no memory for a check of %" PRIu32 " requests", check.actual_bs);
        check_fini(&check);
        return run_forward_step_launch(runner, batch, out);
    }
    if (status == STATUS_OK) {
        status = run_both(&check, out);
    }
    if (status == STATUS_OK) {
        judge(&check, shadow);
    } else {
        shadow->status = status;
        (void)snprintf(shadow->text, sizeof shadow->text, "the step failed: %s",
                       proto_status_text(status));
    }
    check_fini(&check);
    shadow->is_planted = false;
    return status;
}
