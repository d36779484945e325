#include "sched_world.h"

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
    sched_fake_destroy(&self->fake);
    free(self->requests);
    self->requests = NULL;
}

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
    return status;
}

static void
take_ends(sched_world_t *self)
{
    sched_finished_t end;
    while (sched_core_take_finished(self->core, &end)) {
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
}

bool
sched_world_plan(sched_world_t *self)
{
    proto_plan_t plan;
    proto_status_t status = sched_core_next_plan(self->core, self->now_ns, &plan);
    if (status != STATUS_OK) {
        require(status == STATUS_AGAIN);
        take_ends(self);
        return false;
    }
    sched_admission_t admission;
    while (sched_core_take_admission(self->core, &admission)) {
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
    proto_status_t status = sched_core_advance(self->core, self->now_ns, &event, &rows);
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
    proto_status_t status = sched_core_advance(self->core, self->now_ns, &event, NULL);
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
    proto_status_t status = sched_core_advance(self->core, self->now_ns, &event, NULL);
    require(status == STATUS_OK || status == STATUS_ERR_STALE);
    take_ends(self);
}

void
sched_world_time(sched_world_t *self, uint64_t elapsed_ns)
{
    self->now_ns += elapsed_ns;
    sched_event_t event = {.kind = SCHED_EVENT_TIME};
    proto_status_t status = sched_core_advance(self->core, self->now_ns, &event, NULL);
    require(status == STATUS_OK);
    take_ends(self);
}

void
sched_world_run(sched_world_t *self)
{
    uint32_t quiet = 0;
    for (uint32_t round = 0; quiet < 2; round++) {
        require(round < 200000);
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
