/* What the shell does around a core (actors/base/actor_shell_step.c), with processes that start,
 * die and are replaced.  The device's answers take their time here; what they are is known at once.
 */
#include <stdlib.h>
#include <string.h>

#include "actor_sim_world.h"
#include "proto_require.h"

enum {
    TIMER_RUN_MAX = 10000, /* TIMERs at one moment: a deadline that stays in the past */
    DIGEST_INPUTS = 64,    /* as the shell's */
    /* What a device event says. */
    DEVICE_READY = 1,
    DEVICE_STEP = 2,
};

static const proto_bytes_t no_bytes;

/* ---- starting and ending --------------------------------------------------------------------- */

static void
make_core(actor_sim_t *self, actor_sim_actor_t *actor)
{
    proto_status_t status = STATUS_ERR_INTERNAL;
    if (actor->member == ACTOR_SIM_MEMBER_SCHEDULER) {
        actor_scheduler_core_t *core = NULL;
        status = actor_scheduler_core_new(&self->config.scheduler, &core);
        require(status == STATUS_OK);
        actor->ops = actor_scheduler_core_ops(core);
        actor->core = core;
    } else if (actor->member == ACTOR_SIM_MEMBER_EXECUTOR) {
        const actor_sim_model_t *model = &self->config.model;
        actor_executor_core_options_t options = {.slot_count_max = model->slot_count,
                                                 .model_len_max = model->model_len_max,
                                                 .step_tokens_max = model->step_tokens_max};
        actor_executor_core_t *core = NULL;
        status = actor_executor_core_new(&options, &core);
        require(status == STATUS_OK);
        status = actor_sim_device_new(model, &actor->device);
        require(status == STATUS_OK);
        actor->ops = actor_executor_core_ops(core);
        actor->core = core;
    } else {
        actor_gateway_core_options_t options = self->config.gateway;
        options.epoch = actor->epoch;
        actor_gateway_core_t *core = NULL;
        status = actor_gateway_core_new(&options, &core);
        require(status == STATUS_OK);
        actor->ops = actor_gateway_core_ops();
        actor->core = core;
    }
}

static void
destroy_core(uint32_t member, void *core)
{
    if (member == ACTOR_SIM_MEMBER_SCHEDULER) {
        actor_scheduler_core_t *scheduler = core;
        actor_scheduler_core_destroy(&scheduler);
    } else if (member == ACTOR_SIM_MEMBER_EXECUTOR) {
        actor_executor_core_t *executor = core;
        actor_executor_core_destroy(&executor);
    } else {
        actor_gateway_core_t *gateway = core;
        actor_gateway_core_destroy(&gateway);
    }
}

/* A core made of what this one saves takes its place: nothing may differ from here on. */
static void
restore_core(actor_sim_t *self, actor_sim_actor_t *actor)
{
    proto_bytes_t state;
    proto_bytes_t secret;
    uint8_t *room = actor_sim_save(actor, &state, &secret);
    proto_error_t error = {.detail = ""};
    proto_status_t status = STATUS_ERR_INTERNAL;
    void *restored = NULL;
    if (actor->member == ACTOR_SIM_MEMBER_SCHEDULER) {
        actor_scheduler_core_t *core = NULL;
        status = actor_scheduler_core_restore(state, secret, &core, &error);
        restored = core;
    } else if (actor->member == ACTOR_SIM_MEMBER_EXECUTOR) {
        actor_executor_core_t *core = NULL;
        status = actor_executor_core_restore(state, secret, &core, &error);
        restored = core;
    } else {
        actor_gateway_core_t *core = NULL;
        status = actor_gateway_core_restore(state, secret, &core, &error);
        restored = core;
    }
    free(room);
    if (status != STATUS_OK) {
        actor_sim_fail(self, "a saved core restores", "%s: %s (%s)",
                       self->members[actor->member].name, error.detail, proto_status_text(status));
        return;
    }
    destroy_core(actor->member, actor->core);
    actor->core = restored;
    if (actor->member == ACTOR_SIM_MEMBER_SCHEDULER) {
        actor->ops = actor_scheduler_core_ops(restored);
    } else if (actor->member == ACTOR_SIM_MEMBER_EXECUTOR) {
        actor->ops = actor_executor_core_ops(restored);
    }
}

void
actor_sim_start(actor_sim_t *self, uint32_t member)
{
    uint32_t index = 0;
    while (index < ACTOR_SIM_ACTOR_COUNT_MAX && self->actors[index].alive) {
        index++;
    }
    require(index < ACTOR_SIM_ACTOR_COUNT_MAX);
    actor_sim_actor_t *actor = &self->actors[index];
    memset(actor, 0, sizeof *actor);
    actor->alive = true;
    actor->member = member;
    actor->epoch = ++self->epoch_last;
    actor->timer_at_ns = UINT64_MAX;
    actor->link = ACTOR_SIM_NONE;
    for (uint32_t peer = 0; peer < ACTOR_SIM_PEER_COUNT_MAX; peer++) {
        actor->peers[peer] = ACTOR_SIM_NONE;
    }
    actor->clock_offset_ns = 1000000 * ACTOR_SIM_MS;
    if ((self->result.faults & ACTOR_SIM_CLOCK) != 0) {
        actor->clock_offset_ns = actor_sim_random_next(&self->random_fault) >> 16;
    }
    actor->now_ns = self->now_ns + actor->clock_offset_ns;
    make_core(self, actor);
    actor_sim_member_t *place = &self->members[member];
    if (place->outbox == NULL) {
        proto_status_t status = actor_outbox_new(actor->ops, &place->outbox);
        require(status == STATUS_OK);
    }
    place->actor = index;
    place->starting = false;
    actor_sim_record_open(self, index);
    uint64_t now_ns = self->now_ns;
    actor_sim_at(self, now_ns + actor_sim_random_us(&self->random_bus, 1, 250000),
                 ACTOR_SIM_EVENT_TICK, index, actor->epoch, NULL);
    if (member != ACTOR_SIM_MEMBER_SCHEDULER) {
        actor_sim_at(self, now_ns + actor_sim_random_us(&self->random_bus, 100, 5000),
                     ACTOR_SIM_EVENT_CONNECT, index, actor->epoch, NULL);
    }
    if (member == ACTOR_SIM_MEMBER_EXECUTOR) {
        actor->device_busy_ns = now_ns + actor_sim_random_us(&self->random_device, 1000, 50000);
        actor_sim_at(self, actor->device_busy_ns, ACTOR_SIM_EVENT_DEVICE, index, actor->epoch,
                     (void *)(uintptr_t)DEVICE_READY);
    }
}

void
actor_sim_actor_free(actor_sim_t *self, uint32_t index)
{
    actor_sim_record_close(self, index);
    destroy_core(self->actors[index].member, self->actors[index].core);
    actor_sim_device_destroy(&self->actors[index].device);
    self->actors[index].core = NULL;
    self->actors[index].alive = false;
}

static void
end_process(actor_sim_t *self, uint32_t index)
{
    actor_sim_count(self);
    actor_sim_close_all(self, index);
    actor_sim_clients_break(self, index);
    actor_sim_actor_free(self, index);
}

void
actor_sim_kill(actor_sim_t *self, uint32_t index)
{
    actor_sim_actor_t *actor = &self->actors[index];
    require(actor->alive);
    end_process(self, index);
    if (self->members[actor->member].actor == index) {
        actor_sim_supervise(self, actor->member, actor->epoch);
    }
}

void
actor_sim_leave(actor_sim_t *self, uint32_t index)
{
    actor_sim_actor_t *actor = &self->actors[index];
    uint8_t bytes[64];
    size_t size = 0;
    size_t blob_size = 0;
    proto_body_t body = {.bye = {.detail = proto_text("shutdown")}};
    proto_status_t status =
        proto_body_encode(PROTO_KIND_BYE, &body, bytes, sizeof bytes, &size, NULL, 0, &blob_size);
    require(status == STATUS_OK);
    for (uint32_t peer = 1; peer < ACTOR_SIM_PEER_COUNT_MAX; peer++) {
        if (actor->peers[peer] != ACTOR_SIM_NONE) {
            actor_sim_send(self, index, peer, PROTO_KIND_BYE, 0, 0, (proto_bytes_t){bytes, size},
                           no_bytes);
        }
    }
    actor_sim_kill(self, index);
}

void
actor_sim_supervise(actor_sim_t *self, uint32_t member, uint64_t epoch)
{
    actor_sim_member_t *place = &self->members[member];
    place->actor = ACTOR_SIM_NONE;
    if (place->starting) {
        return;
    }
    for (uint32_t other = 0; other < ACTOR_SIM_ACTOR_COUNT_MAX; other++) {
        if (self->actors[other].alive && self->actors[other].member != member) {
            actor_sim_at(self, self->now_ns + actor_sim_random_us(&self->random_bus, 100, 50000),
                         ACTOR_SIM_EVENT_FENCE, other, epoch, (void *)(uintptr_t)member);
        }
    }
    uint64_t wait_ns = 0;
    if (!actor_restart_allow(&place->restart, self->now_ns, &wait_ns)) {
        actor_sim_fail(self, "restarts", "%s ended more often than it may be started", place->name);
        return;
    }
    place->starting = true;
    actor_sim_at(self, self->now_ns + wait_ns, ACTOR_SIM_EVENT_START, member, 0, NULL);
    self->result.restart_count++;
    if (member <= ACTOR_SIM_MEMBER_EXECUTOR) {
        self->replaced_ns = self->now_ns;
    }
    actor_sim_harm(self, self->now_ns + wait_ns + 3000 * ACTOR_SIM_MS,
                   member != ACTOR_SIM_MEMBER_SCHEDULER);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static void
arm_timer(actor_sim_t *self, uint32_t index)
{
    actor_sim_actor_t *actor = &self->actors[index];
    if (actor->ops->deadline_ns == NULL) {
        return;
    }
    uint64_t deadline_ns = actor->ops->deadline_ns(actor->core);
    if (deadline_ns == UINT64_MAX) {
        return;
    }
    uint64_t at_ns =
        deadline_ns > actor->clock_offset_ns ? deadline_ns - actor->clock_offset_ns : 0;
    at_ns = at_ns > self->now_ns ? at_ns : self->now_ns;
    if (at_ns < actor->timer_at_ns) {
        actor->timer_at_ns = at_ns;
        actor_sim_at(self, at_ns, ACTOR_SIM_EVENT_TIMER, index, actor->epoch, NULL);
    }
}

static void
launch(actor_sim_t *self, uint32_t index, const proto_step_launch_t *step)
{
    actor_sim_actor_t *actor = &self->actors[index];
    if (self->rates.nan > 0) {
        actor_sim_strike(self, ACTOR_SIM_INDEX_DEVICE, 0); /* some row may be spoiled */
    }
    if (!actor_sim_device_launch(actor->device, step, self->rates.nan, &self->random_device)) {
        actor_sim_fail(self, "bounded device queue", "more than %d steps wait at the device",
                       ACTOR_SIM_STEP_COUNT_MAX);
        return;
    }
    uint64_t duration_ns = actor_sim_random_us(&self->random_device, self->config.step_min_us,
                                               self->config.step_max_us);
    if (self->now_ns < self->slow_until_ns) {
        duration_ns *= 50;
    }
    uint64_t begin_ns = actor->device_busy_ns > self->now_ns ? actor->device_busy_ns : self->now_ns;
    actor->device_busy_ns = begin_ns + duration_ns;
    actor_sim_at(self, actor->device_busy_ns, ACTOR_SIM_EVENT_DEVICE, index, actor->epoch,
                 (void *)((uintptr_t)DEVICE_STEP | (uintptr_t)actor->device_era << 8));
}

/* What an executor's core tells its device. */
static void
to_device(actor_sim_t *self, uint32_t index, const actor_emission_t *emission)
{
    actor_sim_actor_t *actor = &self->actors[index];
    proto_body_t body;
    proto_status_t status =
        proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL);
    require(status == STATUS_OK);
    if (emission->kind == PROTO_KIND_SLOT_SETUP) {
        actor_sim_device_setup(actor->device, &body.slot_setup);
    } else if (emission->kind == PROTO_KIND_STEP_LAUNCH) {
        launch(self, index, &body.step_launch);
    } else if (emission->kind == PROTO_KIND_DEVICE_RESET) {
        actor_sim_device_reset(actor->device);
        actor->device_era++;
        uint64_t begin_ns =
            actor->device_busy_ns > self->now_ns ? actor->device_busy_ns : self->now_ns;
        actor->device_busy_ns = begin_ns + actor_sim_random_us(&self->random_device, 50, 500);
        actor_sim_at(self, actor->device_busy_ns, ACTOR_SIM_EVENT_DEVICE, index, actor->epoch,
                     (void *)(uintptr_t)DEVICE_READY);
    } else if (emission->kind == PROTO_KIND_DEVICE_FAILED) {
        actor->dying = true;
    }
}

/* What faults do to plans breaks these rules, or the order of plans; any other was broken by the
 * scheduler itself. */
static void
judge_refusal(actor_sim_t *self, const actor_emission_t *emission)
{
    proto_body_t body;
    proto_status_t status =
        proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL);
    require(status == STATUS_OK);
    const proto_plan_refused_t *refused = &body.plan_refused;
    bool is_fault = refused->rule == PROTO_RULE_STALE || refused->rule == PROTO_RULE_SLOT_EMPTY ||
                    refused->rule == PROTO_RULE_BUDGET || refused->rule == PROTO_RULE_WIDTH ||
                    refused->rule == PROTO_RULE_SLOT_RANGE;
    if (!is_fault) {
        actor_sim_fail(self, "plans break no rule", "rule %u, slot %u: %.*s", refused->rule,
                       refused->slot, (int)refused->detail.size_bytes, refused->detail.data);
    }
}

static void
pass_on(actor_sim_t *self, uint32_t index)
{
    actor_sim_actor_t *actor = &self->actors[index];
    actor_outbox_t *outbox = self->members[actor->member].outbox;
    uint32_t count = actor_outbox_count(outbox);
    for (uint32_t at = 0; at < count; at++) {
        const actor_emission_t *emission = actor_outbox_at(outbox, at);
        proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                                 .kind = emission->kind,
                                 .epoch = actor->epoch,
                                 .request = emission->request,
                                 .cause = actor->input_sequence};
        actor_sim_record_output(self, index, &header, emission);
        uint64_t what = emission->kind ^ (uint64_t)emission->to.index << 32;
        what = actor_sim_mix(what ^ emission->request) ^ emission->body.size_bytes;
        self->result.digest = actor_sim_mix(self->result.digest ^ what);
        if (emission->kind == PROTO_KIND_PLAN_REFUSED) {
            judge_refusal(self, emission);
        }
        if (emission->to.index != ACTOR_PEER_LOCAL) {
            if (emission->kind == PROTO_KIND_SUBMIT) {
                actor_sim_on_submit(self, index, emission->request);
            }
            actor_sim_send(self, index, emission->to.index, emission->kind, emission->request,
                           actor->input_sequence, emission->body, emission->blob);
        } else if (actor->member == ACTOR_SIM_MEMBER_EXECUTOR) {
            to_device(self, index, emission);
        } else if (actor->member >= ACTOR_SIM_MEMBER_GATEWAY) {
            actor_sim_on_http(self, index, emission);
        }
    }
    actor_outbox_clear(outbox);
}

static void
note_event(actor_sim_t *self, const actor_sim_actor_t *actor, const actor_input_t *input,
           size_t size_bytes)
{
    uint32_t from = ACTOR_SIM_NONE;
    if (input->from.index != ACTOR_PEER_LOCAL) {
        from = actor->peer_members[input->from.index];
    }
    self->events[self->event_count++ % ACTOR_SIM_EVENTS_KEPT] =
        (actor_sim_trace_t){.time_ns = self->now_ns,
                            .request = input->header->request,
                            .sequence = input->header->sequence,
                            .epoch = actor->epoch,
                            .member = actor->member,
                            .from = from,
                            .kind = input->header->kind,
                            .size_bytes = (uint32_t)size_bytes};
}

static void
print_input(actor_sim_t *self, const actor_sim_actor_t *actor, const actor_input_t *input)
{
    char json[4096];
    (void)proto_body_to_json(input->header->kind, input->body, true, 8, json, sizeof json);
    const char *from = input->from.index == ACTOR_PEER_LOCAL
                           ? "itself"
                           : self->members[actor->peer_members[input->from.index]].name;
    fprintf(self->options.trace, "%12.6f %s.%llu < %s  %s %llx  %s\n", (double)self->now_ns / 1e9,
            self->members[actor->member].name, (unsigned long long)actor->epoch, from,
            proto_kind_name(input->header->kind), (unsigned long long)input->header->request, json);
}

/* Gives the core one input and passes on what it answers. */
static void
give(actor_sim_t *self, uint32_t index, uint32_t from, const proto_header_t *header,
     proto_bytes_t body_bytes, proto_bytes_t blob_bytes, const proto_body_t *body)
{
    actor_sim_actor_t *actor = &self->actors[index];
    require(!self->in_input);
    self->in_input = true;
    uint64_t now_ns = self->now_ns + actor->clock_offset_ns;
    actor->now_ns = now_ns > actor->now_ns ? now_ns : actor->now_ns;
    actor_input_t input = {.now_ns = actor->now_ns,
                           .sequence = ++actor->input_sequence,
                           .from = {from},
                           .header = header,
                           .body = body};
    note_event(self, actor, &input, body_bytes.size_bytes + blob_bytes.size_bytes);
    if (self->options.trace != NULL) {
        print_input(self, actor, &input);
    }
    actor_sim_record_input(self, index, &input, body_bytes, blob_bytes);
    proto_require_set_request(header->request);
    actor->ops->step(actor->core, &input, self->members[actor->member].outbox);
    self->result.step_count++;
    pass_on(self, index);
    uint64_t digest = actor->ops->digest(actor->core);
    self->result.digest = actor_sim_mix(self->result.digest ^ digest ^ actor->now_ns);
    if (actor->input_sequence % DIGEST_INPUTS == 0) {
        actor_sim_record_digest(self, index);
    }
    if (self->result.step_count % self->options.check_interval == 0) {
        actor_sim_check(self);
    }
    proto_require_set_request(0);
    self->in_input = false;
    if (self->options.restore_interval > 0 &&
        self->result.step_count % self->options.restore_interval == 0) {
        restore_core(self, actor);
    }
    actor->busy_until_ns = self->now_ns + actor->slow_ns;
    arm_timer(self, index);
    if (actor->dying || (actor->draining && actor->ops->idle(actor->core))) {
        actor_sim_at(self, self->now_ns, ACTOR_SIM_EVENT_GRACE, index, actor->epoch, NULL);
    }
}

void
actor_sim_input_peer(actor_sim_t *self, uint32_t actor, uint32_t peer, const proto_header_t *header,
                     proto_bytes_t body_bytes, proto_bytes_t blob_bytes, const proto_body_t *body)
{
    give(self, actor, peer, header, body_bytes, blob_bytes, body);
}

void
actor_sim_input_own(actor_sim_t *self, uint32_t actor, proto_kind_t kind, const proto_body_t *body)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .epoch = self->actors[actor].epoch};
    give(self, actor, ACTOR_PEER_LOCAL, &header, no_bytes, no_bytes, body);
}

void
actor_sim_drain(actor_sim_t *self, uint32_t index, uint64_t grace_ns)
{
    actor_sim_actor_t *actor = &self->actors[index];
    if (actor->draining) {
        return;
    }
    actor->draining = true;
    actor_sim_at(self, self->now_ns + grace_ns, ACTOR_SIM_EVENT_GRACE, index, actor->epoch, NULL);
    proto_body_t body = {.drain = {.grace_ns = grace_ns}};
    actor_sim_input_own(self, index, PROTO_KIND_DRAIN, &body);
}

void
actor_sim_on_timer(actor_sim_t *self, uint32_t index)
{
    actor_sim_actor_t *actor = &self->actors[index];
    actor->timer_run = actor->timer_last_ns == self->now_ns ? actor->timer_run + 1 : 0;
    actor->timer_last_ns = self->now_ns;
    actor->timer_at_ns = UINT64_MAX;
    uint64_t deadline_ns = actor->ops->deadline_ns(actor->core);
    if (deadline_ns == UINT64_MAX) {
        return;
    }
    if (self->now_ns + actor->clock_offset_ns < deadline_ns) {
        arm_timer(self, index);
        return;
    }
    if (actor->timer_run > TIMER_RUN_MAX) {
        actor_sim_fail(self, "a deadline passes", "%s asks for a TIMER again and again",
                       self->members[actor->member].name);
        return;
    }
    proto_body_t body = {.timer = {.deadline_ns = deadline_ns}};
    actor_sim_input_own(self, index, PROTO_KIND_TIMER, &body);
}

void
actor_sim_on_device(actor_sim_t *self, uint32_t index, uint64_t what)
{
    actor_sim_actor_t *actor = &self->actors[index];
    if ((what & 255) == DEVICE_READY) {
        proto_body_t body;
        actor_sim_model_info(&self->config.model, &body.executor_info);
        actor_sim_input_own(self, index, PROTO_KIND_DEVICE_READY, &body);
        return;
    }
    proto_body_t body = {.step_done = {.step = 0}};
    if (what >> 8 == actor->device_era &&
        actor_sim_device_collect(actor->device, &body.step_done)) {
        body.step_done.duration_ns = (uint64_t)self->config.step_min_us * 1000;
        actor_sim_input_own(self, index, PROTO_KIND_STEP_DONE, &body);
    }
}
