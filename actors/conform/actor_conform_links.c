/* Links of the stage: opening, attaching, closing. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "actor_conform_stage.h"
#include "proto_require.h"

static const uint64_t LINGER_NS = 200000000u;
static const uint64_t HEARTBEAT_NS = 250000000u;
static const uint64_t MS_NS = 1000000u;

enum {
    HELLO_MS = 250,   /* between two HELLOs */
    FIRST_MS = 10000, /* for the first answer of a scheduler that we started */
};

/* ---- opening --------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    proto_role_t role;
    const char *endpoint;
    uint32_t tape;
} opening_t;

static proto_status_t
open_shell(conform_stage_t *self, const opening_t *opening, const actor_core_ops_t *ops, void *core,
           actor_shell_t **out_p)
{
    /* Judged by our patience, not by what the scheduler itself thinks is long: this machine may be
     * busy. */
    uint64_t beat_ns = self->heartbeat_ns > 0 ? self->heartbeat_ns : HEARTBEAT_NS;
    uint64_t missed_max = self->patience_ns / beat_ns;
    actor_link_options_t link = {.peer_role = PROTO_ROLE_SCHEDULER, .endpoint = opening->endpoint};
    actor_shell_options_t options = {.name = opening->name,
                                     .epoch = ++self->epoch,
                                     .ops = ops,
                                     .core = core,
                                     .links = &link,
                                     .link_count = 1,
                                     .ring_fd = -1,
                                     .heartbeat_ns = HEARTBEAT_NS,
                                     .missed_max = missed_max > 4 ? (uint32_t)missed_max : 4,
                                     .allow_remote = self->options->allow_remote};
    if (self->options->log_dir != NULL) {
        proto_ring_owner_t owner = {.role = opening->role, .epoch = options.epoch};
        (void)snprintf(owner.name, sizeof owner.name, "%s", opening->name);
        proto_status_t status =
            actor_conform_tape_open(self->options->log_dir, &owner, &self->tapes[opening->tape]);
        if (status != STATUS_OK) {
            return status;
        }
        options.ring_fd = actor_conform_tape_fd(self->tapes[opening->tape]);
    }
    return actor_shell_new(&options, out_p);
}

static bool
gateway_is_up(conform_stage_t *self, const void *context)
{
    const uint32_t *index = context;
    return self->gateways[*index].is_up;
}

static bool
executor_is_up(conform_stage_t *self, const void *context)
{
    (void)context;
    return self->executor.is_up;
}

static bool
executor_is_reset(conform_stage_t *self, const void *context)
{
    (void)context;
    return self->executor.is_up && self->executor.has_reset;
}

static bool
no_link(conform_stage_t *self, const char *who, const char *endpoint)
{
    if (!self->is_lost && !self->is_aborted) {
        actor_conform_broke(self->report, CONFORM_LINK_HANDSHAKE, NULL,
                            "HELLO is answered with INIT", "no link for the %s at %s", who,
                            endpoint);
    }
    self->is_aborted = true;
    return false;
}

bool
actor_conform_open_gateway(conform_stage_t *self, uint32_t index)
{
    static const char *const names[CONFORM_GATEWAYS] = {"conform-gateway-a", "conform-gateway-b"};
    require(index < CONFORM_GATEWAYS && !self->has_gateway[index]);
    if (self->is_aborted) {
        return false;
    }
    conform_gateway_t *gateway = &self->gateways[index];
    actor_conform_gateway_init(gateway, index, &self->book, self->report);
    opening_t opening = {.name = names[index],
                         .role = PROTO_ROLE_GATEWAY,
                         .endpoint = self->options->gateway_endpoint,
                         .tape = index};
    if (open_shell(self, &opening, &gateway->ops, gateway, &gateway->shell) != STATUS_OK) {
        return no_link(self, "gateway", opening.endpoint);
    }
    self->has_gateway[index] = true;
    if (!actor_conform_wait(self, self->patience_ns, gateway_is_up, &index)) {
        return no_link(self, "gateway", opening.endpoint);
    }
    return true;
}

bool
actor_conform_open_executor(conform_stage_t *self, const conform_machine_t *machine)
{
    require(!self->has_executor);
    if (self->is_aborted) {
        return false;
    }
    conform_executor_t *executor = &self->executor;
    self->book.page_tokens = machine->page_tokens;
    if (actor_conform_executor_init(executor, machine, &self->book, self->report) != STATUS_OK) {
        return no_link(self, "executor", "(no memory)");
    }
    executor->step_last = &self->step_last;
    opening_t opening = {.name = "conform-executor",
                         .role = PROTO_ROLE_EXECUTOR,
                         .endpoint = self->options->executor_endpoint,
                         .tape = CONFORM_GATEWAYS};
    if (open_shell(self, &opening, &executor->ops, executor, &executor->shell) != STATUS_OK) {
        actor_conform_executor_fini(executor);
        return no_link(self, "executor", opening.endpoint);
    }
    self->has_executor = true;
    actor_conform_executor_start(executor);
    if (!actor_conform_wait(self, self->patience_ns, executor_is_up, NULL)) {
        return no_link(self, "executor", opening.endpoint);
    }
    return true;
}

bool
actor_conform_attach(conform_stage_t *self, conform_rule_t rule)
{
    if (self->is_aborted) {
        return false;
    }
    if (actor_conform_wait(self, self->patience_ns, executor_is_reset, NULL)) {
        actor_conform_held(self->report, rule);
        return true;
    }
    if (!self->is_aborted) {
        actor_conform_broke(self->report, rule, NULL, "RESET after EXECUTOR_INFO",
                            "nothing came of EXECUTOR_INFO for %" PRIu64 " ms",
                            self->patience_ns / 1000000);
    }
    self->is_aborted = true;
    return false;
}

/* ---- MODEL_INFO ------------------------------------------------------------------------------ */

static bool
info_fits(conform_stage_t *self, const void *context)
{
    const uint32_t *index = context;
    const conform_model_info_t *info = &self->gateways[*index].info;
    const conform_machine_t *machine = &self->executor.machine;
    return strcmp(info->model_name, "conformance") == 0 &&
           strcmp(info->fingerprint, "model=conformance") == 0 &&
           info->vocab_size == CONFORM_VOCAB_SIZE &&
           info->model_len_max == machine->model_len_max && info->slot_count > 0 &&
           info->slot_count <= machine->slot_count &&
           info->prefix_granularity == machine->page_tokens && info->prompt_len_max > 0 &&
           info->prompt_len_max <= machine->model_len_max &&
           memcmp(info->page_hash_key, self->executor.page_key, PROTO_HASH_SIZE_BYTES) == 0;
}

bool
actor_conform_wait_info(conform_stage_t *self, uint32_t index)
{
    if (actor_conform_wait(self, self->patience_ns, info_fits, &index)) {
        actor_conform_held(self->report, CONFORM_ATTACH_MODEL_INFO);
        return true;
    }
    if (!self->is_aborted) {
        const conform_model_info_t *info = &self->gateways[index].info;
        const conform_machine_t *machine = &self->executor.machine;
        char expected[200];
        (void)snprintf(expected, sizeof expected,
                       "name, fingerprint and key of EXECUTOR_INFO, vocab_size %d, model_len_max "
                       "%u, slot_count 1..%u, prefix_granularity %u, prompt_len_max up to %u",
                       CONFORM_VOCAB_SIZE, machine->model_len_max, machine->slot_count,
                       machine->page_tokens, machine->model_len_max);
        conform_where_t where = {.link = "gateway", .kind = PROTO_KIND_MODEL_INFO};
        actor_conform_broke(self->report, CONFORM_ATTACH_MODEL_INFO, &where, expected,
                            "%u MODEL_INFO; the last: name '%s', vocab_size %u, model_len_max %u, "
                            "slot_count %u, prefix_granularity %u, prompt_len_max %u",
                            self->gateways[index].info_count, info->model_name, info->vocab_size,
                            info->model_len_max, info->slot_count, info->prefix_granularity,
                            info->prompt_len_max);
    }
    self->is_aborted = true;
    return false;
}

bool
actor_conform_open(conform_stage_t *self, const conform_machine_t *machine)
{
    return actor_conform_open_gateway(self, 0) && actor_conform_open_executor(self, machine) &&
           actor_conform_attach(self, CONFORM_ATTACH_RESET) && actor_conform_wait_info(self, 0);
}

/* ---- raw links ------------------------------------------------------------------------------- */

bool
actor_conform_open_raw(conform_stage_t *self, uint32_t index, const char *name, uint64_t epoch,
                       uint64_t attempt)
{
    require(index < CONFORM_RAWS && !self->has_raw[index]);
    if (self->is_aborted) {
        return false;
    }
    bool is_executor = strstr(name, "executor") != NULL;
    const char *endpoint =
        is_executor ? self->options->executor_endpoint : self->options->gateway_endpoint;
    conform_raw_t *raw = &self->raws[index];
    proto_status_t status = actor_conform_raw_open(raw, endpoint, name, epoch, attempt);
    self->has_raw[index] = status == STATUS_OK;
    if (status != STATUS_OK) {
        return no_link(self, "link by hand", endpoint);
    }
    raw->role = is_executor ? PROTO_ROLE_EXECUTOR : PROTO_ROLE_GATEWAY;
    return true;
}

/* A scheduler that was started just now may take its time. */
bool
actor_conform_contact(conform_stage_t *self)
{
    uint64_t limit_ns = self->patience_ns > FIRST_MS * MS_NS ? self->patience_ns : FIRST_MS * MS_NS;
    uint64_t end_ns =
        self->now_ns + (self->options->is_alive != NULL ? limit_ns : self->patience_ns);
    while (!self->is_aborted && self->now_ns < end_ns) {
        (void)actor_conform_raw_hello(&self->raws[0], PROTO_SCHEMA_VERSION_MIN,
                                      PROTO_SCHEMA_VERSION);
        if (actor_conform_wait_raw(self, 0, PROTO_KIND_NONE, HELLO_MS * MS_NS)) {
            return true;
        }
    }
    if (!self->is_lost) {
        (void)snprintf(self->report->ended, sizeof self->report->ended,
                       "nothing answers at %s: start the scheduler first, or with --exec",
                       self->options->gateway_endpoint);
    }
    self->is_lost = true;
    self->is_aborted = true;
    return false;
}

bool
actor_conform_greet_raw(conform_stage_t *self, uint32_t index, conform_rule_t rule)
{
    conform_raw_t *raw = &self->raws[index];
    (void)actor_conform_raw_hello(raw, PROTO_SCHEMA_VERSION_MIN, PROTO_SCHEMA_VERSION);
    if (!actor_conform_wait_raw(self, index, PROTO_KIND_INIT, self->patience_ns)) {
        if (!self->is_aborted) {
            actor_conform_broke(self->report, rule, NULL, "HELLO is answered with INIT",
                                "no INIT for %s, epoch %" PRIu64, raw->name, raw->epoch);
        }
        self->is_aborted = true;
        return false;
    }
    raw->heartbeat_ns = raw->body.init.heartbeat_ns;
    self->heartbeat_ns = raw->heartbeat_ns;
    (void)actor_conform_raw_ready(raw);
    raw->beats = true;
    return true;
}

/* ---- closing --------------------------------------------------------------------------------- */

/* Messages that the real shell could not use. */
static void
check_refused(conform_stage_t *self, const actor_shell_t *shell, const char *link)
{
    proto_stats_t stats;
    actor_shell_stats(shell, &stats);
    if (stats.refused_in > 0) {
        conform_where_t where = {.link = link};
        actor_conform_broke(self->report, CONFORM_LINK_READABLE, &where,
                            "messages that decode, of this link's epoch",
                            "%" PRIu64 " messages could not be read and were answered with NAK; "
                            "their reasons are in the log (--verbose)",
                            stats.refused_in);
    } else {
        actor_conform_held(self->report, CONFORM_LINK_READABLE);
    }
}

void
actor_conform_close_gateway(conform_stage_t *self, uint32_t index)
{
    if (!self->has_gateway[index]) {
        return;
    }
    conform_gateway_t *gateway = &self->gateways[index];
    gateway->is_leaving = true;
    check_refused(self, gateway->shell, "gateway");
    actor_shell_destroy(&gateway->shell, LINGER_NS);
    actor_conform_tape_close(&self->tapes[index]);
    self->has_gateway[index] = false;
    for (uint32_t i = self->book.first; i < self->book.count; i++) {
        conform_request_t *request = &self->book.items[i];
        if (request->ask.gateway == index && request->submit_count > 0 && request->end_count == 0 &&
            (request->excuses & CONFORM_EXCUSE_GONE) == 0) {
            request->excuses |= CONFORM_EXCUSE_GONE;
            self->book.open_count--;
        }
    }
}

void
actor_conform_close_executor(conform_stage_t *self)
{
    if (!self->has_executor) {
        return;
    }
    conform_executor_t *executor = &self->executor;
    executor->is_leaving = true;
    check_refused(self, executor->shell, "executor");
    actor_shell_destroy(&executor->shell, LINGER_NS);
    actor_conform_tape_close(&self->tapes[CONFORM_GATEWAYS]);
    actor_conform_audit_reset(executor);
    self->plan_count += executor->plan_count;
    actor_conform_executor_fini(executor);
    self->has_executor = false;
}

void
actor_conform_close_raw(conform_stage_t *self, uint32_t index)
{
    if (self->has_raw[index]) {
        actor_conform_raw_close(&self->raws[index]);
        self->has_raw[index] = false;
    }
}

void
actor_conform_close_all(conform_stage_t *self)
{
    actor_conform_close_executor(self);
    for (uint32_t index = 0; index < CONFORM_GATEWAYS; index++) {
        actor_conform_close_gateway(self, index);
    }
    for (uint32_t index = 0; index < CONFORM_RAWS; index++) {
        actor_conform_close_raw(self, index);
    }
}
