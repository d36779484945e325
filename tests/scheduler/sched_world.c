#include "sched_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

void
sched_world_init(sched_world_t *self, const sched_core_options_t *options,
                 const sched_fake_options_t *fake)
{
    memset(self, 0, sizeof *self);
    self->now_ns = 1000;
    self->fake = sched_fake_new(fake);
    self->requests = calloc(WORLD_REQUESTS_MAX, sizeof *self->requests);
    require(self->requests != NULL);
    proto_status_t status = sched_core_new(options, &self->core);
    require(status == STATUS_OK);
    proto_error_t error;
    status = sched_core_attach(self->core, sched_fake_info(self->fake), &error);
    require(status == STATUS_OK);
    sched_core_check(self->core);
}

void
sched_world_fini(sched_world_t *self)
{
    sched_core_destroy(&self->core);
    sched_core_destroy(&self->twin);
    sched_fake_destroy(&self->fake);
    free(self->requests);
    self->requests = NULL;
}

/* ---- the twin -------------------------------------------------------------------------------- */

uint8_t *
sched_world_save(const sched_core_t *core, size_t *size_bytes_p)
{
    proto_pack_t out = {0};
    sched_core_save(core, &out);
    size_t size = out.size_bytes;
    out = (proto_pack_t){.out = malloc(size), .capacity_bytes = size};
    require(out.out != NULL);
    sched_core_save(core, &out);
    require(proto_pack_is_complete(&out));
    require(out.size_bytes == size);
    *size_bytes_p = size;
    return out.out;
}

bool
sched_world_restored(void *context, const sched_restored_t *request, const uint8_t **hashes)
{
    const sched_world_t *self = context;
    if (request->request == 0 || request->request > self->request_count ||
        request->tag != request->request * 10) {
        return false;
    }
    const sched_fake_request_t *known = &self->requests[request->request - 1];
    uint32_t page = sched_fake_info(self->fake)->prefix_granularity;
    *hashes = known->hashes;
    return request->hashes_size_bytes <= known->prompt_length / page * PROTO_HASH_SIZE_BYTES;
}

/* The two must say the same bytes, digest and deadline. */
static void
compare_state(const sched_world_t *self)
{
    size_t size;
    size_t twin_size;
    uint8_t *bytes = sched_world_save(self->core, &size);
    uint8_t *twin_bytes = sched_world_save(self->twin, &twin_size);
    require(size == twin_size);
    require(memcmp(bytes, twin_bytes, size) == 0);
    free(bytes);
    free(twin_bytes);
}

void
sched_world_twin(sched_world_t *self)
{
    size_t size;
    uint8_t *bytes = sched_world_save(self->core, &size);
    sched_core_destroy(&self->twin);
    proto_unpack_t in = {.bytes = {bytes, size}};
    proto_error_t error;
    proto_status_t status =
        sched_core_restore(&in, sched_world_restored, self, &self->twin, &error);
    if (status != STATUS_OK) {
        (void)fprintf(stderr, "restore: %s\n", error.detail);
    }
    require(status == STATUS_OK);
    require(proto_unpack_end(&in) == STATUS_OK);
    free(bytes);
    compare_state(self);
}

static bool
same_u32(proto_column_u32_t a, proto_column_u32_t b)
{
    return a.count == b.count && (a.count == 0 || memcmp(a.data, b.data, a.count * 4) == 0);
}

static bool
same_u8(proto_column_u8_t a, proto_column_u8_t b)
{
    return a.count == b.count && (a.count == 0 || memcmp(a.data, b.data, a.count) == 0);
}

static void
compare_plans(const proto_plan_t *a, const proto_plan_t *b)
{
    require(a->step == b->step && a->base_step == b->base_step && a->width == b->width);
    require(same_u32(a->release_slots, b->release_slots));
    require(same_u32(a->patch_slots, b->patch_slots));
    require(same_u8(a->patch_groups, b->patch_groups));
    require(same_u32(a->patch_columns, b->patch_columns));
    require(same_u32(a->patch_counts, b->patch_counts));
    require(same_u32(a->patch_blocks, b->patch_blocks));
    require(same_u8(a->clear_groups, b->clear_groups));
    require(same_u32(a->clear_blocks, b->clear_blocks));
    require(same_u32(a->extend_slots, b->extend_slots));
    require(same_u32(a->extend_begins, b->extend_begins));
    require(same_u32(a->extend_lengths, b->extend_lengths));
    require(same_u8(a->extend_samples, b->extend_samples));
    require(same_u32(a->decode_slots, b->decode_slots));
}

/* After a call of both: what can be asked is the same too. */
static void
compare_answers(const sched_world_t *self)
{
    if (self->twin == NULL) {
        return;
    }
    sched_figures_t figures;
    sched_figures_t twin;
    sched_core_figures(self->core, &figures);
    sched_core_figures(self->twin, &twin);
    require(memcmp(&figures, &twin, sizeof figures) == 0);
    require(sched_core_digest(self->core) == sched_core_digest(self->twin));
    require(sched_core_deadline_ns(self->core) == sched_core_deadline_ns(self->twin));
    uint64_t a[3] = {0};
    uint64_t b[3] = {0};
    bool works = sched_core_step_in_work(self->core, &a[0], &a[1], &a[2]);
    require(works == sched_core_step_in_work(self->twin, &b[0], &b[1], &b[2]));
    require(memcmp(a, b, sizeof a) == 0);
}

static proto_status_t
advance(sched_world_t *self, const sched_event_t *event, sched_rows_t *rows)
{
    proto_status_t status = sched_core_advance(self->core, self->now_ns, event, rows);
    if (self->twin == NULL) {
        return status;
    }
    sched_rows_t twin;
    require(sched_core_advance(self->twin, self->now_ns, event, &twin) == status);
    if (rows != NULL && status == STATUS_OK) {
        require(rows->count == twin.count);
        for (uint32_t r = 0; r < rows->count; r++) {
            require(rows->requests[r] == twin.requests[r]);
            require(rows->token_counts[r] == twin.token_counts[r]);
            if (rows->requests[r] != 0) { /* of the others nothing is said */
                require(rows->owners[r] == twin.owners[r]);
                require(rows->token_indices[r] == twin.token_indices[r]);
            }
        }
    }
    return status;
}

/* ---- requests -------------------------------------------------------------------------------- */

sched_fake_request_t *
sched_world_request(sched_world_t *self, uint32_t prompt_length, uint32_t generation_max,
                    uint32_t family, uint32_t shared)
{
    require(self->request_count < WORLD_REQUESTS_MAX);
    require(prompt_length + generation_max <= FAKE_LENGTH_MAX);
    sched_fake_request_t *request = &self->requests[self->request_count++];
    request->id = self->request_count;
    request->prompt_length = prompt_length;
    request->generation_max = generation_max;
    sched_fake_prompt(request, family, shared, sched_fake_info(self->fake)->prefix_granularity);
    return request;
}

proto_status_t
sched_world_submit(sched_world_t *self, const sched_fake_request_t *request, int64_t priority,
                   sched_refusal_t *refusal)
{
    uint32_t page = sched_fake_info(self->fake)->prefix_granularity;
    sched_submit_t submit = {
        .request = request->id,
        .owner = WORLD_OWNER,
        .tag = request->id * 10,
        .prompt_length = request->prompt_length,
        .generation_max = request->generation_max,
        .priority = priority,
        .page_hashes = {request->hashes, request->prompt_length / page * PROTO_HASH_SIZE_BYTES},
    };
    sched_refusal_t ignored;
    proto_status_t status =
        sched_core_submit(self->core, self->now_ns, &submit, refusal != NULL ? refusal : &ignored);
    sched_core_check(self->core);
    if (self->twin != NULL) {
        require(sched_core_submit(self->twin, self->now_ns, &submit, &ignored) == status);
        compare_answers(self);
    }
    return status;
}

static void
take_ends(sched_world_t *self)
{
    sched_finished_t end;
    sched_finished_t twin;
    while (sched_core_take_finished(self->core, &end)) {
        if (self->twin != NULL) {
            require(sched_core_take_finished(self->twin, &twin));
            require(end.request == twin.request && end.tag == twin.tag);
            require(end.owner == twin.owner && end.admitted == twin.admitted);
            require(end.reason == twin.reason && end.status == twin.status);
            require(strcmp(end.code, twin.code) == 0);
            require(end.prompt_count == twin.prompt_count);
            require(end.cached_count == twin.cached_count);
            require(end.generated_count == twin.generated_count);
            require(end.queue_ns == twin.queue_ns && end.needed == twin.needed);
            require(end.limit == twin.limit && end.retry_after_ms == twin.retry_after_ms);
        }
        require(end.owner == WORLD_OWNER);
        require(end.request >= 1 && end.request <= self->request_count);
        sched_fake_request_t *request = &self->requests[end.request - 1];
        require(end.tag == request->id * 10);
        request->end_count++;
        request->end = end;
        self->end_count++;
        require(request->end_count == 1);
    }
    sched_core_check(self->core);
    require(self->twin == NULL || !sched_core_take_finished(self->twin, &twin));
    compare_answers(self);
}

bool
sched_world_plan(sched_world_t *self)
{
    proto_plan_t plan;
    proto_status_t status = sched_core_next_plan(self->core, self->now_ns, &plan);
    proto_plan_t twin;
    if (self->twin != NULL) {
        require(sched_core_next_plan(self->twin, self->now_ns, &twin) == status);
    }
    if (status != STATUS_OK) {
        require(status == STATUS_AGAIN);
        take_ends(self);
        return false;
    }
    if (self->twin != NULL) {
        compare_plans(&plan, &twin);
    }
    sched_admission_t admission;
    while (sched_core_take_admission(self->core, &admission)) {
        sched_admission_t other = admission;
        require(self->twin == NULL || sched_core_take_admission(self->twin, &other));
        require(admission.request == other.request && admission.tag == other.tag);
        require(admission.slot == other.slot && admission.owner == other.owner);
        require(admission.length_max == other.length_max);
        const sched_fake_request_t *request = &self->requests[admission.request - 1];
        require(admission.prompt_length == request->prompt_length);
        require(admission.length_max == request->prompt_length + request->generation_max);
        sched_fake_admit(self->fake, &admission, request);
    }
    proto_plan_refused_t refused;
    if (!sched_fake_plan(self->fake, &plan, &refused)) {
        require(self->refusal_count < WORLD_REFUSALS_MAX);
        self->refusals[self->refusal_count++] = refused;
    }
    self->last_plan = plan;
    bool extends = plan.extend_slots.count > 0;
    self->last_begin = extends ? plan.extend_begins.data[0] : 0;
    self->last_length = extends ? plan.extend_lengths.data[0] : 0;
    self->steps_sent++;
    take_ends(self);
    return true;
}

bool
sched_world_result(sched_world_t *self)
{
    proto_step_result_t result;
    if (!sched_fake_result(self->fake, &result)) {
        return false;
    }
    sched_event_t event = {.kind = SCHED_EVENT_RESULT, .result = &result};
    sched_rows_t rows;
    proto_status_t status = advance(self, &event, &rows);
    require(status == STATUS_OK);
    require(rows.count == result.token_counts.count);
    uint32_t at = 0;
    for (uint32_t r = 0; r < rows.count; r++) {
        require(rows.token_counts[r] <= result.token_counts.data[r]);
        if (rows.requests[r] != 0) {
            sched_fake_request_t *request = &self->requests[rows.requests[r] - 1];
            require(rows.owners[r] == WORLD_OWNER);
            require(request->end_count == 0);
            for (uint32_t k = 0; k < rows.token_counts[r]; k++) {
                require(rows.token_indices[r] + k == request->received);
                request->tokens[request->prompt_length + request->received++] =
                    result.tokens.data[at + k];
            }
        }
        at += result.token_counts.data[r];
    }
    take_ends(self);
    return true;
}

bool
sched_world_refusal(sched_world_t *self)
{
    if (self->refusal_count == 0) {
        return false;
    }
    proto_plan_refused_t refused = self->refusals[0];
    self->refusal_count--;
    memmove(self->refusals, self->refusals + 1, self->refusal_count * sizeof refused);
    sched_event_t event = {.kind = SCHED_EVENT_REFUSED, .refused = &refused};
    proto_status_t status = advance(self, &event, NULL);
    require(status == STATUS_OK || status == STATUS_ERR_STALE);
    take_ends(self);
    return true;
}

void
sched_world_finish(sched_world_t *self, const sched_fake_request_t *request, uint32_t token_index,
                   proto_finish_reason_t reason)
{
    sched_event_t event = {
        .kind = SCHED_EVENT_FINISH,
        .finish = {.owner = WORLD_OWNER,
                   .request = request->id,
                   .token_index = token_index,
                   .reason = reason},
    };
    proto_status_t status = advance(self, &event, NULL);
    require(status == STATUS_OK || status == STATUS_ERR_STALE);
    take_ends(self);
}

void
sched_world_time(sched_world_t *self, uint64_t elapsed_ns)
{
    self->now_ns += elapsed_ns;
    sched_event_t event = {.kind = SCHED_EVENT_TIME};
    proto_status_t status = advance(self, &event, NULL);
    require(status == STATUS_OK);
    take_ends(self);
}

void
sched_world_lose(sched_world_t *self, const sched_fake_options_t *fake)
{
    sched_core_detach(self->core, STATUS_ERR_PEER_LOST, "worker_lost");
    if (self->twin != NULL) {
        sched_core_detach(self->twin, STATUS_ERR_PEER_LOST, "worker_lost");
        compare_state(self);
    }
    take_ends(self);
    sched_fake_destroy(&self->fake);
    self->fake = sched_fake_new(fake);
    self->refusal_count = 0;
    proto_status_t status = sched_core_attach(self->core, sched_fake_info(self->fake), NULL);
    require(status == STATUS_OK);
    if (self->twin != NULL) {
        status = sched_core_attach(self->twin, sched_fake_info(self->fake), NULL);
        require(status == STATUS_OK);
        compare_state(self);
    }
}

void
sched_world_owner_gone(sched_world_t *self)
{
    sched_event_t event = {.kind = SCHED_EVENT_OWNER_GONE, .owner = WORLD_OWNER};
    proto_status_t status = advance(self, &event, NULL);
    require(status == STATUS_OK);
    take_ends(self);
}

void
sched_world_run(sched_world_t *self)
{
    uint32_t quiet = 0;
    for (uint32_t round = 0; quiet < 2; round++) {
        require(round < 200000);
        if (self->twin != NULL && round % 7 == 0) {
            sched_world_twin(self);
        }
        bool moved = sched_world_refusal(self);
        while (sched_world_plan(self)) {
            moved = true;
        }
        moved = sched_world_result(self) || moved;
        uint64_t deadline = sched_core_deadline_ns(self->core);
        sched_figures_t figures = sched_world_figures(self);
        bool waits = figures.running_count + figures.waiting_count > 0;
        if (!moved && waits && deadline != UINT64_MAX && deadline > self->now_ns) {
            sched_world_time(self, deadline - self->now_ns);
            moved = true;
        }
        quiet = moved ? 0 : quiet + 1;
    }
}

void
sched_world_expect(const sched_world_t *self, const sched_fake_request_t *request,
                   proto_finish_reason_t reason, uint32_t generated)
{
    (void)self;
    require(request->end_count == 1);
    require(request->end.reason == reason);
    require(request->end.generated_count == generated);
    require(request->received >= generated);
    require(request->end.prompt_count == request->prompt_length);
    for (uint32_t i = 0; i < request->received; i++) {
        uint32_t length = request->prompt_length + i;
        require(request->tokens[length] == sched_fake_next(request->tokens, length));
    }
}

void
sched_world_expect_idle(const sched_world_t *self)
{
    sched_figures_t figures = sched_world_figures(self);
    require(figures.running_count == 0);
    require(figures.waiting_count == 0);
    require(figures.in_flight_count == 0);
    require(figures.free_count + figures.cached_count == figures.block_count);
    require(sched_fake_used_count(self->fake) == 0);
}

sched_figures_t
sched_world_figures(const sched_world_t *self)
{
    sched_figures_t figures;
    sched_core_figures(self->core, &figures);
    return figures;
}
