#include "actor_conform_stage.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "proto_clock.h"
#include "proto_require.h"

#define MS_NS UINT64_C(1000000)

static const uint64_t STEP_LOOK_NS = 100000; /* between two looks at a step that runs */

enum {
    PATIENCE_MS = 2000,
    FD_COUNT_MAX = 64,
    WAIT_MAX_MS = 20,
};

static uint64_t
now(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

/* ---- is it still there? ---------------------------------------------------------------------- */

static void
end_run(conform_stage_t *self, const char *format, const char *detail)
{
    if (!self->is_lost) {
        (void)snprintf(self->report->ended, sizeof self->report->ended, format, self->report->scene,
                       detail);
    }
    self->is_lost = true;
    self->is_aborted = true;
}

/* A link of ours that ended although nobody wanted it. */
static void
blame_loss(conform_stage_t *self, const char *link, const char *detail)
{
    conform_where_t where = {.link = link};
    if (strstr(detail, "nothing heard") != NULL) {
        actor_conform_broke(self->report, CONFORM_LINK_HEARTBEAT, &where,
                            "a HEARTBEAT at each interval, from the thread that works", "%s",
                            detail);
    } else if (strstr(detail, "were lost") != NULL) {
        actor_conform_broke(self->report, CONFORM_LINK_SEQUENCE, &where,
                            "sequence numbers without a gap", "%s", detail);
    } else if (strstr(detail, "does not know this link") != NULL) {
        actor_conform_broke(self->report, CONFORM_LINK_GOES_ON, &where, "a link that goes on",
                            "a message on an open link was answered with NAK, ERR_STALE");
    } else {
        end_run(self, "in scene %s the scheduler left: %s", detail);
    }
    self->is_aborted = true;
}

static void
watch_links(conform_stage_t *self)
{
    for (uint32_t i = 0; i < CONFORM_GATEWAYS; i++) {
        const conform_gateway_t *gateway = &self->gateways[i];
        if (self->has_gateway[i] && gateway->was_up && !gateway->is_up && !gateway->is_leaving) {
            blame_loss(self, "gateway", gateway->down_detail);
        }
    }
    const conform_executor_t *executor = &self->executor;
    if (self->has_executor && executor->was_up && !executor->is_up && !executor->is_leaving) {
        blame_loss(self, "executor", executor->down_detail);
    }
    const actor_conform_options_t *options = self->options;
    if (options->is_alive != NULL && !options->is_alive(options->context)) {
        char detail[48];
        (void)snprintf(detail, sizeof detail, " with code %d",
                       options->exit_code != NULL ? options->exit_code(options->context) : -1);
        end_run(self, "in scene %s the scheduler's process ended%s", detail);
    }
    if (options->stop != NULL && atomic_load(options->stop) != 0) {
        end_run(self, "stopped in scene %s%s", "");
    }
}

/* With something to do and nothing in flight, a plan must come. */
static void
watch_idle(conform_stage_t *self)
{
    const conform_executor_t *executor = &self->executor;
    bool is_idle = self->has_executor && executor->is_up && executor->has_reset &&
                   executor->in_flight == 0 && executor->flight_count == 0 &&
                   self->book.open_count > 0;
    if (!is_idle || self->is_aborted) {
        return;
    }
    uint64_t since_ns =
        executor->changed_ns > self->quiet_ns ? executor->changed_ns : self->quiet_ns;
    if (self->now_ns < since_ns + self->patience_ns) {
        return;
    }
    const conform_request_t *waits = NULL;
    for (uint32_t i = self->book.first; i < self->book.count && waits == NULL; i++) {
        const conform_request_t *request = &self->book.items[i];
        bool is_open = request->submit_count > 0 && request->end_count == 0 &&
                       request->excuses != CONFORM_EXCUSE_GONE;
        waits = is_open && request->ask.expect == CONFORM_EXPECT_GOOD ? request : NULL;
    }
    if (waits == NULL || waits->is_finishing) {
        return; /* it waits for an answer, not for a plan */
    }
    conform_where_t where = {.link = "executor", .request = waits->id};
    conform_rule_t rule = waits->ask.rule;
    rule = rule == CONFORM_END_LENGTH ? CONFORM_PROGRESS_IDLE : rule;
    rule = executor->awaits_full ? CONFORM_REFUSAL_FULL_PLAN : rule;
    actor_conform_broke(self->report, rule, &where, "a plan while a request can run",
                        "no plan for %" PRIu64 " ms with %u requests open and nothing in flight",
                        (self->now_ns - since_ns) / MS_NS, self->book.open_count);
    self->is_aborted = true;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void
lower(uint64_t *wait_ns, uint64_t limit_ns)
{
    *wait_ns = limit_ns < *wait_ns ? limit_ns : *wait_ns;
}

static void
service_shell(actor_shell_t *shell, uint64_t *wait_ns)
{
    uint64_t shell_wait_ns = UINT64_MAX;
    proto_status_t status = actor_shell_service(shell, &shell_wait_ns);
    lower(wait_ns, status == STATUS_OK ? shell_wait_ns : WAIT_MAX_MS * MS_NS);
}

static void
service_all(conform_stage_t *self, uint64_t *wait_ns)
{
    for (uint32_t i = 0; i < CONFORM_GATEWAYS; i++) {
        if (self->has_gateway[i]) {
            service_shell(self->gateways[i].shell, wait_ns);
        }
    }
    if (self->has_executor) {
        service_shell(self->executor.shell, wait_ns);
        self->now_ns = now();
        if (actor_conform_executor_service(&self->executor, self->now_ns)) {
            *wait_ns = 0;
        } else if (self->executor.flight_count > 0 && !self->executor.is_holding) {
            lower(wait_ns, STEP_LOOK_NS);
        }
    }
    for (uint32_t i = 0; i < CONFORM_RAWS; i++) {
        if (self->has_raw[i]) {
            actor_conform_raw_service(&self->raws[i], self->now_ns);
        }
    }
    for (uint32_t i = 0; i <= CONFORM_GATEWAYS; i++) {
        if (self->tapes[i] != NULL) {
            actor_conform_tape_service(self->tapes[i], self->now_ns);
        }
    }
}

static uint32_t
collect_fds(const conform_stage_t *self, int *fds, uint32_t capacity)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < CONFORM_GATEWAYS; i++) {
        if (self->has_gateway[i]) {
            count += actor_shell_fds(self->gateways[i].shell, fds + count, capacity - count);
        }
    }
    if (self->has_executor) {
        count += actor_shell_fds(self->executor.shell, fds + count, capacity - count);
    }
    for (uint32_t i = 0; i < CONFORM_RAWS; i++) {
        if (self->has_raw[i] && count < capacity) {
            fds[count++] = self->raws[i].socket.fd;
        }
    }
    return count;
}

void
actor_conform_poll(conform_stage_t *self, uint64_t wait_ns)
{
    self->now_ns = now();
    uint64_t away_ns = self->polled_ns != 0 ? self->now_ns - self->polled_ns : 0;
    self->away_ns = away_ns > self->away_ns ? away_ns : self->away_ns;
    self->polled_ns = self->now_ns;
    lower(&wait_ns, WAIT_MAX_MS * MS_NS);
    service_all(self, &wait_ns);
    watch_links(self);
    watch_idle(self);
    if (wait_ns == 0) {
        return;
    }
    int fds[FD_COUNT_MAX];
    struct pollfd items[FD_COUNT_MAX];
    uint32_t count = collect_fds(self, fds, FD_COUNT_MAX);
    for (uint32_t i = 0; i < count; i++) {
        items[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    }
    struct timespec wait = {(time_t)(wait_ns / (1000 * MS_NS)), (long)(wait_ns % (1000 * MS_NS))};
    (void)ppoll(items, count, &wait, NULL);
}

bool
actor_conform_wait(conform_stage_t *self, uint64_t limit_ns, conform_until_t until,
                   const void *context)
{
    self->now_ns = now();
    uint64_t end_ns = self->now_ns + limit_ns;
    bool fails_fast = self->options->fail_fast;
    while (!self->is_aborted && !until(self, context)) {
        if (self->now_ns >= end_ns) {
            return false;
        }
        actor_conform_poll(self, end_ns - self->now_ns);
        if (fails_fast && self->report->failed_count > 0) {
            self->is_aborted = true;
        }
    }
    return !self->is_aborted;
}

static bool
never(conform_stage_t *self, const void *context)
{
    (void)self;
    (void)context;
    return false;
}

void
actor_conform_play(conform_stage_t *self, uint64_t duration_ns)
{
    (void)actor_conform_wait(self, duration_ns, never, NULL);
}

/* ---- waiting for ends ------------------------------------------------------------------------ */

typedef struct {
    const conform_request_t *request; /* NULL: all of the scene */
    uint64_t tokens;
    uint64_t seen;    /* a number that grows with progress */
    uint64_t seen_ns; /* when it last did */
} ending_t;

static bool
is_open(const conform_request_t *request)
{
    return request->submit_count > 0 && request->end_count == 0 &&
           (request->excuses & CONFORM_EXCUSE_GONE) == 0;
}

static uint64_t
progress_of(const conform_stage_t *self)
{
    uint64_t sum = self->has_executor ? self->executor.plan_count : 0;
    for (uint32_t i = self->book.first; i < self->book.count; i++) {
        sum += self->book.items[i].next_index + self->book.items[i].end_count;
    }
    return sum;
}

static bool
have_ended(conform_stage_t *self, const void *context)
{
    const ending_t *ending = context;
    return ending->request != NULL ? !is_open(ending->request) : self->book.open_count == 0;
}

/* A request that did not end. */
static void
blame_open(conform_stage_t *self, const conform_request_t *request, conform_rule_t rule)
{
    conform_where_t where = {.link = "gateway", .request = request->id};
    char expected[200];
    actor_conform_describe_end(request, expected, sizeof expected);
    if (rule == 0) {
        rule = request->is_finishing ? CONFORM_END_CANCEL : request->ask.rule;
        rule = rule == CONFORM_END_LENGTH ? CONFORM_PROGRESS_END : rule;
    }
    actor_conform_broke(self->report, rule, &where, expected,
                        "no FINISHED; %u of %u tokens came, %u rows were computed, %s",
                        request->next_index, actor_conform_answer_length(request),
                        request->row_count,
                        request->admit_count > 0 ? "it has a slot" : "it has no slot");
}

/* Waits as long as something moves, 10 times the patience at most. */
static bool
wait_ending(conform_stage_t *self, const conform_request_t *request, conform_rule_t rule)
{
    ending_t ending = {.request = request};
    uint64_t end_ns = now() + 10 * self->patience_ns;
    uint64_t seen = UINT64_MAX;
    uint64_t seen_ns = now();
    while (!actor_conform_wait(self, 20 * MS_NS, have_ended, &ending)) {
        if (self->is_aborted) {
            return false;
        }
        uint64_t progress = progress_of(self);
        if (progress != seen) {
            seen = progress;
            seen_ns = self->now_ns;
        }
        if (self->now_ns < end_ns && self->now_ns - seen_ns < self->patience_ns + 500 * MS_NS) {
            continue;
        }
        for (uint32_t i = self->book.first; i < self->book.count; i++) {
            const conform_request_t *open = &self->book.items[i];
            if (is_open(open) && (request == NULL || request == open)) {
                blame_open(self, open, rule);
            }
        }
        self->is_aborted = true;
        return false;
    }
    return true;
}

bool
actor_conform_wait_ends(conform_stage_t *self, conform_rule_t rule)
{
    if (!wait_ending(self, NULL, rule)) {
        return false;
    }
    actor_conform_held(self->report, CONFORM_PROGRESS_END);
    actor_conform_held(self->report, CONFORM_PROGRESS_IDLE);
    return true;
}

bool
actor_conform_wait_end(conform_stage_t *self, const conform_request_t *request)
{
    return request != NULL && wait_ending(self, request, 0);
}

static bool
has_tokens(conform_stage_t *self, const void *context)
{
    (void)self;
    const ending_t *ending = context;
    return ending->request->next_index >= ending->tokens || ending->request->end_count > 0;
}

bool
actor_conform_wait_tokens(conform_stage_t *self, const conform_request_t *request, uint32_t count)
{
    if (request == NULL) {
        return false;
    }
    ending_t ending = {.request = request, .tokens = count};
    if (actor_conform_wait(self, 5 * self->patience_ns, has_tokens, &ending)) {
        return true;
    }
    if (!self->is_aborted) {
        blame_open(self, request, CONFORM_PROGRESS_END);
    }
    self->is_aborted = true;
    return false;
}

static bool
has_flights(conform_stage_t *self, const void *context)
{
    const uint32_t *count = context;
    return self->executor.flight_count >= *count;
}

bool
actor_conform_wait_flights(conform_stage_t *self, uint32_t count)
{
    return actor_conform_wait(self, self->patience_ns, has_flights, &count);
}

/* ---- the end of a scene ---------------------------------------------------------------------- */

static bool
is_released(conform_stage_t *self, const void *context)
{
    (void)context;
    const conform_executor_t *executor = &self->executor;
    for (uint32_t slot = 1; slot <= executor->machine.slot_count; slot++) {
        if (executor->slots[slot].state != CONFORM_SLOT_FREE) {
            return false;
        }
    }
    return executor->in_flight == 0;
}

static void
check_released(conform_stage_t *self)
{
    if (actor_conform_wait(self, self->patience_ns, is_released, NULL) || self->is_aborted) {
        return;
    }
    for (uint32_t slot = 1; slot <= self->executor.machine.slot_count; slot++) {
        const conform_slot_t *held = &self->executor.slots[slot];
        if (held->state == CONFORM_SLOT_TAKEN) {
            conform_where_t where = {.link = "executor",
                                     .request = held->request != NULL ? held->request->id : 0};
            actor_conform_broke(self->report, CONFORM_SLOT_RELEASE, &where,
                                "a plan that releases the slot, if need be without rows",
                                "slot %u is not released %" PRIu64 " ms after its request's end",
                                slot, self->patience_ns / MS_NS);
            return;
        }
    }
}

/* FINISHED counted tokens that never came after it either. */
static void
check_short(conform_stage_t *self)
{
    for (uint32_t i = self->book.first; i < self->book.count; i++) {
        const conform_request_t *request = &self->book.items[i];
        if (request->is_short) {
            char expected[80];
            (void)snprintf(expected, sizeof expected, "tokens up to index %u",
                           request->end_generated - 1);
            actor_conform_broke(self->report, CONFORM_TOKENS_COMPLETE, &request->end_where,
                                expected, "FINISHED counts %u tokens, %u came",
                                request->end_generated, request->next_index);
        }
    }
}

void
actor_conform_settle(conform_stage_t *self)
{
    if (self->is_aborted) {
        check_short(self);
        return;
    }
    self->executor.is_holding = false;
    (void)actor_conform_wait_ends(self, (conform_rule_t)0);
    if (self->has_executor && self->executor.is_up) {
        check_released(self);
    }
    actor_conform_play(self, 10 * MS_NS); /* what comes too late comes now */
    check_short(self);
    if (!self->is_aborted && self->report->findings[CONFORM_TOKENS_AFTER_END].broken_count == 0) {
        actor_conform_held(self->report, CONFORM_TOKENS_AFTER_END);
    }
}

/* ---- raw links ------------------------------------------------------------------------------- */

bool
actor_conform_wait_raw(conform_stage_t *self, uint32_t index, proto_kind_t kind, uint64_t limit_ns)
{
    conform_raw_t *raw = &self->raws[index];
    self->now_ns = now();
    uint64_t end_ns = self->now_ns + limit_ns;
    while (!self->is_aborted) {
        while (actor_conform_raw_receive(raw) == STATUS_OK) {
            bool fits = kind == PROTO_KIND_NONE ? raw->header.kind != PROTO_KIND_HEARTBEAT
                                                : raw->header.kind == kind;
            if (fits) {
                return true;
            }
        }
        if (self->now_ns >= end_ns) {
            return false;
        }
        if (self->options->fail_fast && self->report->failed_count > 0) {
            self->is_aborted = true;
        }
        uint64_t wait_ns = end_ns - self->now_ns;
        actor_conform_poll(self, wait_ns < 2 * MS_NS ? wait_ns : 2 * MS_NS);
    }
    return false;
}

/* ---- requests -------------------------------------------------------------------------------- */

conform_request_t *
actor_conform_ask(conform_stage_t *self, const conform_ask_t *ask)
{
    if (self->is_aborted || !self->has_gateway[ask->gateway]) {
        return NULL;
    }
    conform_request_t *request = actor_conform_book_add(&self->book, ask);
    if (request == NULL) {
        self->is_aborted = true;
        return NULL;
    }
    self->now_ns = now();
    self->quiet_ns = self->now_ns;
    actor_conform_submit(&self->gateways[ask->gateway], request, self->now_ns);
    return request;
}

void
actor_conform_excuse(conform_stage_t *self, uint32_t excuse)
{
    for (uint32_t i = self->book.first; i < self->book.count; i++) {
        if (is_open(&self->book.items[i])) {
            self->book.items[i].excuses |= excuse;
        }
    }
}

uint32_t
actor_conform_random(conform_stage_t *self, uint32_t limit)
{
    self->random = actor_conform_mix(self->random + 0x9e3779b97f4a7c15u);
    return (uint32_t)((self->random >> 20) % limit);
}

conform_machine_t
actor_conform_machine(void)
{
    return (conform_machine_t){.slot_count = 4,
                               .model_len_max = 256,
                               .step_tokens_max = 64,
                               .overlap_depth_max = 1,
                               .page_tokens = 16,
                               .parent_count = 65,
                               .group_count = 1,
                               .granularities = {16, 16, 8},
                               .packings = {1, 1, 1}};
}

/* ---- begin and end --------------------------------------------------------------------------- */

proto_status_t
actor_conform_stage_init(conform_stage_t *self, const actor_conform_options_t *options,
                         conform_report_t *report)
{
    memset(self, 0, sizeof *self);
    self->options = options;
    self->report = report;
    uint32_t patience_ms = options->patience_ms != 0 ? options->patience_ms : PATIENCE_MS;
    self->patience_ns = patience_ms * MS_NS;
    self->epoch = proto_clock_realtime_ns(proto_clock_system());
    self->now_ns = now();
    uint64_t seed = options->seed != 0 ? options->seed : 1;
    self->random = actor_conform_mix(seed);
    /* Ids that no earlier run has used. */
    return actor_conform_book_init(&self->book, seed, self->epoch >> 10 << 14);
}

void
actor_conform_stage_fini(conform_stage_t *self)
{
    actor_conform_close_all(self);
    actor_conform_book_fini(&self->book);
}
