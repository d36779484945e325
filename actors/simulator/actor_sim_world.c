#include "actor_sim_world.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum {
    STREAM_BUS = 1,
    STREAM_FAULT,
    STREAM_LOAD,
    STREAM_DEVICE,
};

#define START_NS (1000 * ACTOR_SIM_MS)

void
actor_sim_fail(actor_sim_t *self, const char *rule, const char *format, ...)
{
    if (self->result.failed) {
        return;
    }
    self->result.failed = true;
    (void)snprintf(self->result.rule, sizeof self->result.rule, "%s", rule);
    va_list arguments;
    va_start(arguments, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is one line above */
    (void)vsnprintf(self->result.detail, sizeof self->result.detail, format, arguments);
    va_end(arguments);
}

void
actor_sim_note(const actor_sim_t *self, const char *format, ...)
{
    if (self->options.trace == NULL) {
        return;
    }
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is one line above */
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(self->options.trace, "%12.6f ~ %s\n", (double)self->now_ns / 1e9, text);
}

void
actor_sim_at(actor_sim_t *self, uint64_t time_ns, actor_sim_event_kind_t kind, uint32_t index,
             uint64_t stamp, void *pointer)
{
    actor_sim_queue_push(&self->queue, (actor_sim_event_t){.time_ns = time_ns,
                                                           .kind = kind,
                                                           .index = index,
                                                           .stamp = stamp,
                                                           .pointer = pointer});
}

actor_sim_actor_t *
actor_sim_member_actor(actor_sim_t *self, uint32_t member)
{
    uint32_t actor = self->members[member].actor;
    return actor != ACTOR_SIM_NONE ? &self->actors[actor] : NULL;
}

/* ---- begin and end --------------------------------------------------------------------------- */

void
actor_sim_world_config(actor_sim_config_t *out)
{
    *out = (actor_sim_config_t){
        .model = {.slot_count = 4,
                  .model_len_max = 64,
                  .step_tokens_max = 16,
                  .vocab_size = 97,
                  .page_tokens = 4,
                  .parent_count = 65,
                  .overlap = 1,
                  .group_count = 1,
                  .granularities = {4, 4},
                  .packings = {1, 1}},
        .scheduler = {.slot_count_max = 4, .queue_len_max = 16, .store_size_bytes = 65536},
        .gateway = {.choice_count_max = 32, .history_size_bytes = 1 << 20},
        .gateway_count = 1,
        .latency_min_us = 20,
        .latency_max_us = 100,
        .step_min_us = 1000,
        .step_max_us = 1500,
        .prompt_max = 32,
        .generation_max = 24,
    };
}

void
actor_sim_world_end(actor_sim_t *self)
{
    actor_sim_event_t event;
    while (actor_sim_queue_pop(&self->queue, &event)) {
        if (event.kind == ACTOR_SIM_EVENT_MESSAGE) {
            free(event.pointer);
        }
    }
    for (uint32_t i = 0; i < ACTOR_SIM_ACTOR_COUNT_MAX; i++) {
        if (self->actors[i].alive) {
            actor_sim_actor_free(self, i);
        }
    }
    for (uint32_t from = 0; from < ACTOR_SIM_MEMBER_COUNT_MAX; from++) {
        for (uint32_t to = 0; to < ACTOR_SIM_MEMBER_COUNT_MAX; to++) {
            free(self->old[from][to]);
            self->old[from][to] = NULL;
        }
    }
    for (uint32_t member = 0; member < ACTOR_SIM_MEMBER_COUNT_MAX; member++) {
        actor_outbox_destroy(&self->members[member].outbox);
    }
}

void
actor_sim_world_begin(actor_sim_t *self, uint64_t seed, const actor_sim_config_t *config)
{
    static const char *const names[ACTOR_SIM_MEMBER_COUNT_MAX] = {"scheduler", "executor",
                                                                  "gateway", "gateway-2"};
    static const proto_role_t roles[ACTOR_SIM_MEMBER_COUNT_MAX] = {PROTO_ROLE_SCHEDULER,
                                                                   PROTO_ROLE_EXECUTOR,
                                                                   PROTO_ROLE_GATEWAY,
                                                                   PROTO_ROLE_GATEWAY};
    actor_sim_world_end(self);
    require(config->gateway_count >= 1 && config->gateway_count <= 2);
    actor_sim_options_t options = self->options;
    actor_sim_queue_t queue = self->queue;
    actor_sim_client_t *clients = self->clients;
    memset(self, 0, sizeof *self);
    self->options = options;
    self->queue = queue;
    self->queue.order = 0;
    self->clients = clients;
    self->config = *config;
    self->seed = seed;
    self->now_ns = START_NS;
    self->harm_until_ns = START_NS + 1000 * ACTOR_SIM_MS; /* not everything is there yet */
    self->result.seed = seed;
    actor_sim_random_init(&self->random_bus, seed, STREAM_BUS);
    actor_sim_random_init(&self->random_fault, seed, STREAM_FAULT);
    actor_sim_random_init(&self->random_load, seed, STREAM_LOAD);
    actor_sim_random_init(&self->random_device, seed, STREAM_DEVICE);
    self->member_count = ACTOR_SIM_MEMBER_GATEWAY + config->gateway_count;
    for (uint32_t i = 0; i < self->member_count; i++) {
        actor_sim_member_t *member = &self->members[i];
        *member = (actor_sim_member_t){.name = names[i],
                                       .role = roles[i],
                                       .actor = ACTOR_SIM_NONE,
                                       .starting = true};
        actor_restart_init(&member->restart, ACTOR_RESTART_COUNT_MAX, 3000 * ACTOR_SIM_MS);
        actor_sim_at(self, START_NS + actor_sim_random_us(&self->random_bus, 0, 20000),
                     ACTOR_SIM_EVENT_START, i, 0, NULL);
    }
    if (config->interval_us > 0) {
        actor_sim_at(self, START_NS + 100 * ACTOR_SIM_MS, ACTOR_SIM_EVENT_REQUEST, 0, 0, NULL);
    }
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* True if the event has to wait for its actor. */
static bool
waits(actor_sim_t *self, const actor_sim_event_t *event, uint32_t index)
{
    const actor_sim_actor_t *actor = &self->actors[index];
    uint64_t until_ns = actor->frozen_until_ns > actor->busy_until_ns ? actor->frozen_until_ns
                                                                      : actor->busy_until_ns;
    if (until_ns <= self->now_ns) {
        return false;
    }
    actor_sim_event_t later = *event;
    later.time_ns = until_ns;
    actor_sim_queue_push(&self->queue, later);
    return true;
}

static void
on_message(actor_sim_t *self, const actor_sim_event_t *event)
{
    actor_sim_message_t *message = event->pointer;
    const actor_sim_connection_t *connection = &self->connections[message->connection];
    if (connection->id == message->connection_id &&
        waits(self, event, connection->sides[message->to_side].actor)) {
        return;
    }
    actor_sim_on_message(self, message);
    free(message);
}

static void
on_request(actor_sim_t *self, bool in_burst)
{
    if (self->arrivals_over || (self->options.request_count != 0 &&
                                self->result.request_count >= self->options.request_count)) {
        return;
    }
    if (!in_burst) {
        uint32_t most = 2 * self->config.interval_us;
        actor_sim_at(self, self->now_ns + actor_sim_random_us(&self->random_load, 1, most),
                     ACTOR_SIM_EVENT_REQUEST, 0, 0, NULL);
    }
    if (self->open_count < self->config.open_count_max) {
        actor_sim_on_request(self);
    }
}

/* What concerns one actor: nothing if that incarnation is gone. */
static void
on_actor(actor_sim_t *self, const actor_sim_event_t *event)
{
    actor_sim_actor_t *actor = &self->actors[event->index];
    uint32_t index = event->index;
    uint64_t value = (uint64_t)(uintptr_t)event->pointer;
    if (!actor->alive || actor->epoch != event->stamp) {
        return;
    }
    if (event->kind == ACTOR_SIM_EVENT_GRACE) {
        if (actor->dying) {
            actor_sim_kill(self, index);
        } else {
            actor_sim_leave(self, index);
        }
        return;
    }
    if (waits(self, event, index)) {
        return;
    }
    switch ((int)event->kind) {
    case ACTOR_SIM_EVENT_TIMER:
        actor_sim_on_timer(self, index);
        break;
    case ACTOR_SIM_EVENT_TICK:
        actor_sim_on_tick(self, index);
        break;
    case ACTOR_SIM_EVENT_CONNECT:
        actor_sim_on_connect(self, index);
        break;
    case ACTOR_SIM_EVENT_DOWN:
        actor_sim_on_down(self, index, (uint32_t)value);
        break;
    case ACTOR_SIM_EVENT_DEVICE:
        actor_sim_on_device(self, index, value);
        break;
    default:
        break;
    }
}

static void
on_client(actor_sim_t *self, const actor_sim_event_t *event)
{
    const actor_sim_client_t *client = &self->clients[event->index];
    if (client->state == ACTOR_SIM_CLIENT_OPEN && !waits(self, event, client->gateway)) {
        actor_sim_on_leave(self, event->index, (uint64_t)(uintptr_t)event->pointer);
    }
}

bool
actor_sim_world_advance(actor_sim_t *self)
{
    actor_sim_event_t event;
    if (self->result.failed || !actor_sim_queue_pop(&self->queue, &event)) {
        return false;
    }
    require(event.time_ns >= self->now_ns);
    self->now_ns = event.time_ns;
    switch (event.kind) {
    case ACTOR_SIM_EVENT_MESSAGE:
        on_message(self, &event);
        break;
    case ACTOR_SIM_EVENT_START:
        actor_sim_start(self, event.index);
        break;
    case ACTOR_SIM_EVENT_FENCE:
        if (self->actors[event.index].alive && !waits(self, &event, event.index)) {
            actor_sim_on_fence(self, event.index, (uint32_t)(uintptr_t)event.pointer, event.stamp);
        }
        break;
    case ACTOR_SIM_EVENT_REQUEST:
        on_request(self, event.index != 0);
        break;
    case ACTOR_SIM_EVENT_LEAVE:
        on_client(self, &event);
        break;
    case ACTOR_SIM_EVENT_FAULT:
        actor_sim_on_fault(self);
        break;
    case ACTOR_SIM_EVENT_TIMER:
    case ACTOR_SIM_EVENT_TICK:
    case ACTOR_SIM_EVENT_CONNECT:
    case ACTOR_SIM_EVENT_DOWN:
    case ACTOR_SIM_EVENT_DEVICE:
    case ACTOR_SIM_EVENT_GRACE:
        on_actor(self, &event);
        break;
    }
    return !self->result.failed;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static void
check_scheduler(actor_sim_t *self, const actor_sim_actor_t *actor)
{
    sched_figures_t figures;
    sched_core_figures(actor_scheduler_core_library(actor->core), &figures);
    if (figures.free_count + figures.cached_count > figures.block_count) {
        actor_sim_fail(self, "blocks are conserved", "%u free + %u cached of %u",
                       figures.free_count, figures.cached_count, figures.block_count);
    }
    if (figures.waiting_count > self->config.scheduler.queue_len_max) {
        actor_sim_fail(self, "bounded queues", "%u requests wait, %u may", figures.waiting_count,
                       self->config.scheduler.queue_len_max);
    }
    if (figures.running_count > self->config.scheduler.slot_count_max) {
        actor_sim_fail(self, "bounded queues", "%u requests run", figures.running_count);
    }
}

void
actor_sim_check(actor_sim_t *self)
{
    for (uint32_t i = 0; i < ACTOR_SIM_ACTOR_COUNT_MAX; i++) {
        const actor_sim_actor_t *actor = &self->actors[i];
        if (!actor->alive) {
            continue;
        }
        actor->ops->check(actor->core);
        if (actor->member == ACTOR_SIM_MEMBER_SCHEDULER) {
            check_scheduler(self, actor);
        } else if (actor->member >= ACTOR_SIM_MEMBER_GATEWAY) {
            actor_gateway_core_state_t state = actor_gateway_core_state(actor->core);
            if (state.open_count != actor->open_count) {
                actor_sim_fail(self, "exactly one end", "%s has %u open choices, its clients %u",
                               self->members[actor->member].name, state.open_count,
                               actor->open_count);
            }
        }
    }
}

bool
actor_sim_is_quiet(actor_sim_t *self)
{
    const actor_sim_actor_t *scheduler = actor_sim_member_actor(self, ACTOR_SIM_MEMBER_SCHEDULER);
    const actor_sim_actor_t *executor = actor_sim_member_actor(self, ACTOR_SIM_MEMBER_EXECUTOR);
    if (self->open_count > 0 || scheduler == NULL || executor == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < ACTOR_SIM_ACTOR_COUNT_MAX; i++) {
        const actor_sim_actor_t *actor = &self->actors[i];
        if (actor->alive && (self->members[actor->member].actor != i || actor->draining)) {
            return false; /* a predecessor still runs, or one is about to end */
        }
    }
    for (uint32_t i = 0; i < self->config.gateway_count; i++) {
        const actor_sim_actor_t *gateway =
            actor_sim_member_actor(self, ACTOR_SIM_MEMBER_GATEWAY + i);
        if (gateway == NULL || !actor_gateway_core_state(gateway->core).ready) {
            return false;
        }
    }
    for (uint32_t i = 0; i < self->member_count; i++) {
        if (self->members[i].starting) {
            return false;
        }
    }
    sched_figures_t figures;
    sched_core_figures(actor_scheduler_core_library(scheduler->core), &figures);
    return figures.running_count == 0 && figures.waiting_count == 0 &&
           figures.in_flight_count == 0 && figures.block_count > 0 &&
           figures.free_count + figures.cached_count == figures.block_count &&
           executor->ops->idle(executor->core);
}

void
actor_sim_describe_stuck(actor_sim_t *self, const char *rule)
{
    const actor_sim_actor_t *scheduler = actor_sim_member_actor(self, ACTOR_SIM_MEMBER_SCHEDULER);
    const actor_sim_actor_t *executor = actor_sim_member_actor(self, ACTOR_SIM_MEMBER_EXECUTOR);
    sched_figures_t figures = {0};
    if (scheduler != NULL) {
        sched_core_figures(actor_scheduler_core_library(scheduler->core), &figures);
    }
    uint32_t oldest = 0;
    while (oldest < self->client_count && self->clients[oldest].state != ACTOR_SIM_CLIENT_OPEN) {
        oldest++;
    }
    bool ready = true;
    for (uint32_t i = 0; i < self->config.gateway_count; i++) {
        const actor_sim_actor_t *gateway =
            actor_sim_member_actor(self, ACTOR_SIM_MEMBER_GATEWAY + i);
        ready = ready && gateway != NULL && actor_gateway_core_state(gateway->core).ready;
    }
    actor_sim_fail(self, rule,
                   "%u clients wait (the oldest: %u), ready %d; scheduler: %u run, %u wait, %u "
                   "steps, %u free + %u cached of %u; executor %s",
                   self->open_count, oldest, ready, figures.running_count, figures.waiting_count,
                   figures.in_flight_count, figures.free_count, figures.cached_count,
                   figures.block_count,
                   executor == NULL                      ? "is not there"
                   : executor->ops->idle(executor->core) ? "is idle"
                                                         : "has rows");
}

void
actor_sim_count(actor_sim_t *self)
{
    const actor_sim_actor_t *scheduler = actor_sim_member_actor(self, ACTOR_SIM_MEMBER_SCHEDULER);
    if (scheduler == NULL) {
        return;
    }
    sched_figures_t figures;
    sched_core_figures(actor_scheduler_core_library(scheduler->core), &figures);
    uint64_t *counted = self->counted;
    if (self->counted_epoch != scheduler->epoch) {
        self->counted_epoch = scheduler->epoch;
        counted[0] = counted[1] = 0;
    }
    self->result.retraction_count += figures.retractions - counted[0];
    self->result.refused_plan_count += figures.plans_refused - counted[1];
    counted[0] = figures.retractions;
    counted[1] = figures.plans_refused;
}
