/* actor_supervisor_scheduler.c - which scheduler is in charge: our own child, or a program of
 * somebody else that listens at an endpoint.
 *
 * Our own one always runs, so that it can take over at once.  A move tells the gateways first,
 * waits until they are linked to the new one, and then the executors: a scheduler that loses its
 * executor ends its requests, and no gateway may be there to hear it. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "actor_command.h"
#include "actor_log.h"
#include "actor_socket.h"
#include "actor_supervisor_private.h"

#define MS_NS UINT64_C(1000000)

enum {
    MOVE_MS = 12000, /* both halves: each link gives up after 5 s */
};

_Static_assert(MOVE_MS / 1000 + 5 <= ACTOR_COMMAND_TIMEOUT_S,
               "the client waits longer than a move");

void
actor_supervisor_scheduler_init(actor_supervisor_state_t *self)
{
    actor_supervisor_scheduler_t *scheduler = &self->scheduler;
    *scheduler = (actor_supervisor_scheduler_t){.command = 0};
    if (self->options->scheduler_endpoint != NULL) {
        (void)snprintf(scheduler->external, sizeof scheduler->external, "%s",
                       self->options->scheduler_endpoint);
        actor_log(ACTOR_LOG_INFO, "supervisor.scheduler", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("endpoint", scheduler->external)),
                  "the scheduler at %s plans for this node", scheduler->external);
    }
}

const char *
actor_supervisor_scheduler_endpoint(const actor_supervisor_state_t *self, uint32_t index)
{
    const char *own = self->children[index].spec->scheduler_endpoint;
    bool external = own != NULL && self->scheduler.external[0] != '\0';
    return external ? self->scheduler.external : own;
}

static const char *
name_of(const char *external)
{
    return external[0] != '\0' ? external : "the built-in one";
}

static void
answer(actor_supervisor_state_t *self, uint64_t number, proto_status_t status, const char *detail)
{
    proto_body_t body = {.command_done = {.status = status, .detail = proto_text(detail)}};
    actor_supervisor_inject(self, PROTO_KIND_COMMAND_DONE, number, &body);
}

/* Answers who asked for the move in work; a complaint's move has nobody who waits. */
static void
answer_move(actor_supervisor_state_t *self, proto_status_t status, const char *detail)
{
    uint64_t number = self->scheduler.command;
    self->scheduler.command = 0;
    if (number != 0) {
        answer(self, number, status, detail);
    }
}

/* ---- the move -------------------------------------------------------------------------------- */

static bool
concerns(const actor_supervisor_state_t *self, uint32_t index, proto_role_t role)
{
    const actor_supervisor_child_t *spec = self->children[index].spec;
    return spec->scheduler_endpoint != NULL && spec->role == role;
}

static void
tell(actor_supervisor_state_t *self, proto_role_t role, const char *why)
{
    for (uint32_t index = 0; index < self->child_count; index++) {
        actor_supervisor_scheduler_link_t *link = &self->core.members[index].scheduler;
        const char *endpoint = actor_supervisor_scheduler_endpoint(self, index);
        /* Who is there already must not leave: its requests would end. */
        if (!concerns(self, index, role) || strcmp(link->endpoint, endpoint) == 0) {
            continue;
        }
        link->complained = false;
        link->endpoint[0] = '\0';
        proto_body_t body = {.relink = {.role = PROTO_ROLE_SCHEDULER,
                                        .endpoint = proto_text(endpoint),
                                        .detail = proto_text(why)}};
        actor_supervisor_inject(self, PROTO_KIND_RELINK, index + 1, &body);
    }
}

/* True when every child of that role is linked to where it was sent. */
static bool
arrived(const actor_supervisor_state_t *self, proto_role_t role)
{
    for (uint32_t index = 0; index < self->child_count; index++) {
        if (concerns(self, index, role) &&
            strcmp(self->core.members[index].scheduler.endpoint,
                   actor_supervisor_scheduler_endpoint(self, index)) != 0) {
            return false;
        }
    }
    return true;
}

static void
begin_move(actor_supervisor_state_t *self, const char *endpoint, const char *why)
{
    actor_supervisor_scheduler_t *scheduler = &self->scheduler;
    actor_log(ACTOR_LOG_INFO, "supervisor.scheduler_move", 0,
              ACTOR_LOG_FIELDS(actor_log_str("from", name_of(scheduler->external)),
                               actor_log_str("to", name_of(endpoint)), actor_log_str("why", why)),
              "from the scheduler at %s to %s: %s", name_of(scheduler->external), name_of(endpoint),
              why);
    char target[ACTOR_SUPERVISOR_ENDPOINT_SIZE_BYTES];
    (void)snprintf(target, sizeof target, "%s", endpoint);
    memcpy(scheduler->previous, scheduler->external, sizeof scheduler->previous);
    memcpy(scheduler->external, target, sizeof scheduler->external);
    scheduler->returning = false;
    scheduler->move = ACTOR_SUPERVISOR_MOVE_GATEWAYS;
    scheduler->move_until_ns = self->now_ns + MOVE_MS * MS_NS;
    tell(self, PROTO_ROLE_GATEWAY, why);
}

static void
end_move(actor_supervisor_state_t *self)
{
    actor_supervisor_scheduler_t *scheduler = &self->scheduler;
    scheduler->move = ACTOR_SUPERVISOR_MOVE_NONE;
    const actor_supervisor_scheduler_link_t *link = NULL;
    for (uint32_t index = 0; index < self->child_count; index++) {
        if (concerns(self, index, PROTO_ROLE_EXECUTOR)) {
            link = &self->core.members[index].scheduler;
        }
    }
    char text[400] = "the built-in scheduler plans for this node";
    if (scheduler->external[0] != '\0') {
        (void)snprintf(text, sizeof text, "%s, epoch %" PRIu64 ", at %s, plans for this node",
                       link != NULL ? link->name : "the scheduler", link != NULL ? link->epoch : 0,
                       scheduler->external);
    }
    actor_log(ACTOR_LOG_INFO, "supervisor.scheduler", 0,
              ACTOR_LOG_FIELDS(actor_log_str("endpoint", name_of(scheduler->external)),
                               actor_log_str("name", link != NULL ? link->name : "")),
              "%s", text);
    answer_move(self, STATUS_OK, text);
}

/* Nobody is where we came from either, and it was asked for that no other takes over. */
static void
stay(actor_supervisor_state_t *self, const char *why)
{
    actor_supervisor_scheduler_t *scheduler = &self->scheduler;
    if (scheduler->move == ACTOR_SUPERVISOR_MOVE_GATEWAYS) {
        tell(self, PROTO_ROLE_EXECUTOR, "the gateways wait there");
    }
    scheduler->move = ACTOR_SUPERVISOR_MOVE_NONE;
    actor_log(ACTOR_LOG_WARN, "supervisor.scheduler", 0,
              ACTOR_LOG_FIELDS(actor_log_str("endpoint", scheduler->external)),
              "the scheduler at %s stays in charge, as asked, though %s", scheduler->external, why);
}

/* The new one is not there, or is no good: back to where we came from.  If nobody is there any
 * more either, our own one takes over. */
static void
fail_move(actor_supervisor_state_t *self, const char *why)
{
    actor_supervisor_scheduler_t *scheduler = &self->scheduler;
    if (scheduler->external[0] == '\0') {
        return; /* our own one: it is being restarted, and its links come up then */
    }
    char text[512];
    (void)snprintf(text, sizeof text, "the scheduler at %s: %s", scheduler->external, why);
    answer_move(self, STATUS_ERR_REFUSED, text);
    if (scheduler->returning && self->options->scheduler_stays) {
        stay(self, why);
        return;
    }
    char previous[ACTOR_SUPERVISOR_ENDPOINT_SIZE_BYTES] = "";
    if (!scheduler->returning) {
        memcpy(previous, scheduler->previous, sizeof previous);
    }
    begin_move(self, previous, text);
    scheduler->returning = true;
}

static void
service_move(actor_supervisor_state_t *self, uint64_t *wait_ns)
{
    actor_supervisor_scheduler_t *scheduler = &self->scheduler;
    if (scheduler->move == ACTOR_SUPERVISOR_MOVE_GATEWAYS && arrived(self, PROTO_ROLE_GATEWAY)) {
        scheduler->move = ACTOR_SUPERVISOR_MOVE_EXECUTORS;
        tell(self, PROTO_ROLE_EXECUTOR, "the gateways have moved");
    }
    if (scheduler->move == ACTOR_SUPERVISOR_MOVE_EXECUTORS && arrived(self, PROTO_ROLE_EXECUTOR)) {
        end_move(self);
    }
    if (scheduler->move == ACTOR_SUPERVISOR_MOVE_NONE) {
        return;
    }
    if (self->now_ns < scheduler->move_until_ns) {
        actor_supervisor_lower(wait_ns, scheduler->move_until_ns, self->now_ns);
    } else if (scheduler->external[0] != '\0') {
        fail_move(self, "not every actor is linked to it in time");
    } else {
        /* An actor that is away finds our own scheduler by itself when it comes back. */
        if (scheduler->move == ACTOR_SUPERVISOR_MOVE_GATEWAYS) {
            tell(self, PROTO_ROLE_EXECUTOR, "the gateways are away");
        }
        scheduler->move = ACTOR_SUPERVISOR_MOVE_NONE;
        answer_move(self, STATUS_OK, "the built-in scheduler takes over as its actors come back");
    }
}

/* ---- complaints ------------------------------------------------------------------------------ */

/* Our own scheduler is no good: its successor may be. */
static void
end_own(actor_supervisor_state_t *self, const char *why)
{
    for (uint32_t index = 0; index < self->child_count; index++) {
        actor_supervised_t *child = &self->children[index];
        if (child->spec->role == PROTO_ROLE_SCHEDULER && child->process.pid > 0 && !child->killed) {
            actor_log(ACTOR_LOG_WARN, "supervisor.killed", 0,
                      ACTOR_LOG_FIELDS(actor_log_str("child", child->spec->name)), "killing %s: %s",
                      child->spec->name, why);
            child->killed = true;
            actor_process_signal(&child->process, SIGKILL);
        }
    }
}

static void
take_complaint(actor_supervisor_state_t *self, uint32_t index)
{
    const actor_supervisor_scheduler_t *scheduler = &self->scheduler;
    const actor_supervisor_member_t *member = &self->core.members[index];
    proto_complaint_reason_t reason = member->scheduler.reason;
    if (scheduler->move == ACTOR_SUPERVISOR_MOVE_GATEWAYS &&
        concerns(self, index, PROTO_ROLE_EXECUTOR)) {
        return; /* it was not told to move yet: this is about the scheduler that we leave */
    }
    char why[400];
    (void)snprintf(why, sizeof why, "%s says: %s", member->name, member->scheduler.detail);
    bool external = scheduler->external[0] != '\0';
    if (!external && reason != PROTO_COMPLAINT_LOST) {
        end_own(self, why);
    } else if (external && scheduler->move != ACTOR_SUPERVISOR_MOVE_NONE) {
        fail_move(self, why);
    } else if (external && !self->options->scheduler_stays) {
        begin_move(self, "", why);
    } else if (external) {
        actor_log(ACTOR_LOG_WARN, "supervisor.scheduler", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("endpoint", scheduler->external)),
                  "the scheduler at %s stays in charge, as asked, though %s", scheduler->external,
                  why);
    }
}

static void
read_complaints(actor_supervisor_state_t *self)
{
    for (uint32_t index = 0; index < self->child_count; index++) {
        actor_supervisor_scheduler_link_t *link = &self->core.members[index].scheduler;
        if (link->complained) {
            link->complained = false;
            take_complaint(self, index);
        }
    }
}

/* ---- commands -------------------------------------------------------------------------------- */

static void
show(actor_supervisor_state_t *self, uint64_t number)
{
    char text[900];
    int size = snprintf(text, sizeof text, "in charge: %s", name_of(self->scheduler.external));
    for (uint32_t index = 0; index < self->child_count; index++) {
        const actor_supervisor_member_t *member = &self->core.members[index];
        if (self->children[index].spec->scheduler_endpoint == NULL || size < 0 ||
            (size_t)size >= sizeof text) {
            continue;
        }
        const actor_supervisor_scheduler_link_t *link = &member->scheduler;
        size += link->endpoint[0] != '\0'
                    ? snprintf(text + size, sizeof text - (size_t)size,
                               "\n%s: linked to %s, epoch %" PRIu64 ", at %s", member->name,
                               link->name, link->epoch, link->endpoint)
                    : snprintf(text + size, sizeof text - (size_t)size, "\n%s: not linked",
                               member->name);
    }
    answer(self, number, STATUS_OK, text);
}

/* True for a socket on which a node's own actors link to each other.  A gateway or an executor of
 * another node that says hello there is taken for the new incarnation of the one that lives. */
static bool
is_inside_a_node(const char *endpoint)
{
    static const char prefix[] = "ipc://";
    static const char *const names[] = {"supervisor", "scheduler-gateway", "scheduler-executor"};
    const char *slash = strrchr(endpoint, '/');
    if (strncmp(endpoint, prefix, sizeof prefix - 1) != 0 || slash < endpoint + sizeof prefix - 1) {
        return false;
    }
    char path[ACTOR_SUPERVISOR_ENDPOINT_SIZE_BYTES + 16];
    (void)snprintf(path, sizeof path, "%.*s/supervisor",
                   (int)(slash - endpoint - (ptrdiff_t)(sizeof prefix - 1)),
                   endpoint + sizeof prefix - 1);
    struct stat info;
    for (uint32_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(slash + 1, names[i]) == 0) {
            return stat(path, &info) == 0 && S_ISSOCK(info.st_mode);
        }
    }
    return false;
}

static void
attach(actor_supervisor_state_t *self, uint64_t number, const char *endpoint)
{
    actor_supervisor_scheduler_t *scheduler = &self->scheduler;
    if (scheduler->move != ACTOR_SUPERVISOR_MOVE_NONE) {
        answer(self, number, STATUS_ERR_OVERLOADED,
               "another move is under way; try again in a moment");
    } else if (strlen(endpoint) >= sizeof scheduler->external) {
        answer(self, number, STATUS_ERR_CONFIG, "an endpoint has at most 255 bytes");
    } else if (strcmp(scheduler->external, endpoint) == 0) {
        answer(self, number, STATUS_OK, "nothing to do: it is in charge already");
    } else if (endpoint[0] != '\0' && !actor_endpoint_is_local(endpoint)) {
        answer(self, number, STATUS_ERR_CONFIG,
               "the endpoint cannot be used: it takes ipc:// or tcp://127.0.0.1:PORT");
    } else if (is_inside_a_node(endpoint)) {
        answer(self, number, STATUS_ERR_CONFIG,
               "there a node's own actors link to each other; `onepath scheduler builtin` goes "
               "back to the built-in scheduler");
    } else {
        begin_move(self, endpoint, "an operator asked for it");
        scheduler->command = number;
    }
}

/* The actors' levels are the core's to pass on; what comes here is for us, or for nobody. */
static void
set_own_level(actor_supervisor_state_t *self, const actor_supervisor_command_t *command)
{
    static const char prefix[] = "supervisor ";
    actor_log_level_t level;
    if (strncmp(command->argument, prefix, sizeof prefix - 1) != 0) {
        answer(self, command->number, STATUS_ERR_NOT_FOUND,
               "no such actor here; `onepath ps` lists them");
    } else if (!actor_log_level_parse(command->argument + sizeof prefix - 1, &level)) {
        answer(self, command->number, STATUS_ERR_INVALID,
               "a log level is one of debug, info, warn, error");
    } else {
        actor_log_set_level(level);
        answer(self, command->number, STATUS_OK, command->argument + sizeof prefix - 1);
    }
}

static void
carry_out(actor_supervisor_state_t *self, const actor_supervisor_command_t *command)
{
    if (self->phase != PHASE_RUNNING) {
        answer(self, command->number, STATUS_ERR_REFUSED, "the node is ending");
    } else if (strcmp(command->verb, "scheduler-attach") == 0 && command->argument[0] != '\0') {
        attach(self, command->number, command->argument);
    } else if (strcmp(command->verb, "scheduler-builtin") == 0) {
        attach(self, command->number, "");
    } else if (strcmp(command->verb, "scheduler-show") == 0) {
        show(self, command->number);
    } else if (strncmp(command->verb, "log-level", 9) == 0) {
        set_own_level(self, command);
    } else {
        answer(self, command->number, STATUS_ERR_INVALID,
               "no such command: scheduler-attach ENDPOINT, scheduler-builtin, scheduler-show, "
               "executor-check, executor-graphs on|off, executor-show, drain OWNER, "
               "undrain OWNER, log-level ACTOR LEVEL");
    }
}

static void
read_commands(actor_supervisor_state_t *self)
{
    actor_supervisor_command_t *command = actor_supervisor_core_next(&self->core);
    while (command != NULL) {
        command->is_new = false;
        carry_out(self, command);
        command = actor_supervisor_core_next(&self->core);
    }
}

void
actor_supervisor_service_scheduler(actor_supervisor_state_t *self, uint64_t *wait_ns)
{
    read_commands(self);
    if (self->phase != PHASE_RUNNING) {
        answer_move(self, STATUS_ERR_REFUSED, "the node is ending");
        return;
    }
    read_complaints(self);
    service_move(self, wait_ns);
}
