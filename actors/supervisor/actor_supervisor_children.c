/* actor_supervisor_children.c - what follows from the life and death of a child.  How often it may
 * be restarted is decided in actor_restart.c. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "actor_log.h"
#include "actor_supervisor_private.h"
#include "proto_ring.h"

#define MS_NS UINT64_C(1000000)

enum {
    START_MS = 60000,     /* from exec to the control link */
    LOST_LINK_MS = 2000,  /* a process whose control link ended must end too */
    CRASH_COUNT_MAX = 16, /* crash records of one run */
    RING_SIZE_BYTES = 64 * 1024 * 1024,
};

/* ---- starting -------------------------------------------------------------------------------- */

proto_status_t
actor_supervisor_start_child(actor_supervisor_state_t *self, uint32_t index)
{
    actor_supervised_t *child = &self->children[index];
    actor_inherited_t inherited[ACTOR_SUPERVISOR_CHILD_COUNT_MAX];
    uint32_t count = 0;
    if (child->spec->is_recorder) {
        for (uint32_t other = 0; other < self->child_count; other++) {
            if (self->children[other].ring_fd >= 0) {
                inherited[count++] = (actor_inherited_t){self->children[other].ring_fd, "--ring",
                                                         self->children[other].spec->name};
            }
        }
    } else if (child->ring_fd >= 0) {
        inherited[count++] = (actor_inherited_t){child->ring_fd, "--ring-fd", NULL};
    }
    uint64_t epoch = ++self->epoch_last;
    actor_supervisor_core_begin(&self->core, index, epoch);
    child->started_ns = actor_supervisor_tick(self);
    child->restart_at_ns = 0;
    child->kill_at_ns = 0;
    child->killed = false;
    child->stop_sent = false;
    const actor_process_endpoints_t endpoints = {
        .supervisor = self->endpoint,
        .scheduler = actor_supervisor_scheduler_endpoint(self, index),
    };
    proto_status_t status =
        actor_process_start(&child->process, child->spec, epoch, &endpoints, inherited, count);
    if (status != STATUS_OK) {
        actor_log(ACTOR_LOG_ERROR, "supervisor.start", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("child", child->spec->name)),
                  "cannot start %s: %s", child->spec->name, strerror(errno));
        return status;
    }
    child->last_pid = child->process.pid;
    actor_log(ACTOR_LOG_INFO, "supervisor.started", 0,
              ACTOR_LOG_FIELDS(actor_log_str("child", child->spec->name),
                               actor_log_i64("pid", child->process.pid),
                               actor_log_u64("child_epoch", epoch)),
              "started %s", child->spec->name);
    return STATUS_OK;
}

proto_status_t
actor_supervisor_make_ring(actor_supervisor_state_t *self, actor_supervised_t *child)
{
    if (!child->spec->has_ring) {
        return STATUS_OK;
    }
    proto_ring_owner_t owner = {.role = child->spec->role,
                                .epoch = self->epoch_last + 1,
                                .is_strict = self->options->record_strict ? 1 : 0};
    (void)snprintf(owner.name, sizeof owner.name, "%s", child->spec->name);
    size_t size = self->options->ring_size_bytes != 0 ? self->options->ring_size_bytes
                                                      : (size_t)RING_SIZE_BYTES;
    proto_status_t status = proto_ring_create(&owner, size, &child->ring_fd);
    if (status != STATUS_OK) {
        actor_log(ACTOR_LOG_ERROR, "supervisor.ring", 0, NULL,
                  "cannot make a record ring of %zu bytes: %s", size, strerror(errno));
    }
    return status;
}

/* ---- ending ---------------------------------------------------------------------------------- */

void
actor_supervisor_inject(actor_supervisor_state_t *self, proto_kind_t kind, uint64_t request,
                        const proto_body_t *body)
{
    actor_shell_inject(self->shell, kind, request, body);
    self->injected = true;
}

void
actor_supervisor_begin_stop(actor_supervisor_state_t *self, int exit_code, uint64_t grace_ns)
{
    if (self->phase != PHASE_RUNNING) {
        return;
    }
    self->phase = PHASE_STOPPING;
    self->exit_code = exit_code;
    self->grace_ns = grace_ns;
    self->stop_index = 0;
    for (uint32_t index = 0; index < self->child_count; index++) {
        self->children[index].restart_at_ns = 0;
    }
    actor_log(ACTOR_LOG_INFO, "supervisor.stopping", 0,
              ACTOR_LOG_FIELDS(actor_log_i64("exit_code", exit_code),
                               actor_log_u64("grace_ms", grace_ns / MS_NS)),
              "ending all actors in order");
}

void
actor_supervisor_kill_all(actor_supervisor_state_t *self, const char *why)
{
    for (uint32_t index = 0; index < self->child_count; index++) {
        actor_supervised_t *child = &self->children[index];
        if (child->process.pid > 0) {
            actor_log(ACTOR_LOG_WARN, "supervisor.killed", 0,
                      ACTOR_LOG_FIELDS(actor_log_str("child", child->spec->name)), "killing %s: %s",
                      child->spec->name, why);
            child->killed = true;
            actor_process_signal(&child->process, SIGKILL);
        }
    }
}

static void
end_child(actor_supervisor_state_t *self, uint32_t index)
{
    actor_supervised_t *child = &self->children[index];
    if (child->stop_sent) {
        return;
    }
    child->stop_sent = true;
    bool has_clients = child->spec->role == PROTO_ROLE_GATEWAY || self->is_hurried;
    uint64_t words_ns = has_clients ? ACTOR_SUPERVISOR_LAST_WORDS_MS * MS_NS : 0;
    child->kill_at_ns = self->now_ns + self->grace_ns + words_ns;
    if (self->core.members[index].peer != ACTOR_PEER_NONE) {
        proto_body_t body = {.stop = {.grace_ns = self->grace_ns}};
        actor_supervisor_inject(self, PROTO_KIND_STOP, index + 1, &body);
    } else {
        /* Not linked yet: it can only be told so. */
        actor_process_signal(&child->process, SIGTERM);
    }
}

void
actor_supervisor_hurry(actor_supervisor_state_t *self)
{
    self->is_hurried = true;
    self->grace_ns = 0;
    for (uint32_t index = 0; index < self->child_count; index++) {
        actor_supervised_t *child = &self->children[index];
        if (child->process.pid > 0) {
            child->stop_sent = false; /* told once more, with no grace */
            end_child(self, index);
        }
    }
}

/* The order of the end: children as given, recorders last. */
static actor_supervised_t *
stop_child(actor_supervisor_state_t *self, uint32_t position)
{
    uint32_t at = 0;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t index = 0; index < self->child_count; index++) {
            actor_supervised_t *child = &self->children[index];
            if (child->spec->is_recorder == (pass == 1) && at++ == position) {
                return child;
            }
        }
    }
    return NULL;
}

void
actor_supervisor_service_stop(actor_supervisor_state_t *self, uint64_t *wait_ns)
{
    actor_supervised_t *child = stop_child(self, self->stop_index);
    while (child != NULL && child->process.pid == 0) {
        child = stop_child(self, ++self->stop_index);
    }
    if (child == NULL) {
        self->phase = PHASE_DONE;
        return;
    }
    end_child(self, (uint32_t)(child - self->children));
    actor_supervisor_lower(wait_ns, child->kill_at_ns, self->now_ns);
}

/* ---- what happens to children ---------------------------------------------------------------- */

/* Whether the end of this child ends the node, and with which code; 0: it may be restarted. */
static int
fatal_code(const actor_supervised_t *child)
{
    if (child->spec->optional || child->killed) {
        return 0;
    }
    int code = child->process.exit_code;
    /* A wrong setting does not get better by itself.  A busy port may, but not at the start: the
     * one who started us is still there to read why. */
    if (code == ACTOR_EXIT_CONFIG || (code == ACTOR_EXIT_TEMPORARY && !child->was_ready)) {
        return code;
    }
    return 0;
}

static void
dump_ring(actor_supervisor_state_t *self, actor_supervised_t *child, uint64_t epoch)
{
    self->crash_path[0] = '\0';
    /* Who says that its settings are wrong did not crash: its words are all there is to know. */
    if (child->ring_fd < 0 || self->crash_dir[0] == '\0' || self->crash_count >= CRASH_COUNT_MAX ||
        fatal_code(child) != 0) {
        return;
    }
    self->crash_count++;
    proto_status_t status = actor_crash_dump(child->ring_fd, self->crash_dir, child->spec->name,
                                             child->spec->role, epoch, self->crash_path);
    if (status == STATUS_OK) {
        actor_log(ACTOR_LOG_WARN, "supervisor.crash_record", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("child", child->spec->name),
                                   actor_log_str("path", self->crash_path)),
                  "the last messages of %s are in %s", child->spec->name, self->crash_path);
        return;
    }
    self->crash_path[0] = '\0'; /* begun, not finished */
    if (status != STATUS_END) {
        actor_log(ACTOR_LOG_WARN, "supervisor.crash_record", 0, NULL,
                  "no crash record of %s in '%s': %s", child->spec->name, self->crash_dir,
                  proto_status_text(status));
    }
}

static void
plan_restart(actor_supervisor_state_t *self, actor_supervised_t *child)
{
    uint64_t wait_ns = 0;
    int code = fatal_code(child);
    bool hopeless = child->spec->optional && child->process.exit_code == ACTOR_EXIT_CONFIG;
    bool allowed =
        code == 0 && !hopeless && actor_restart_allow(&child->restart, self->now_ns, &wait_ns);
    if (allowed) {
        child->restart_at_ns = self->now_ns + wait_ns;
        actor_log(ACTOR_LOG_INFO, "supervisor.restart", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("child", child->spec->name),
                                   actor_log_u64("wait_ms", wait_ns / MS_NS)),
                  "starting %s again", child->spec->name);
        return;
    }
    if (child->spec->optional) {
        child->given_up = true;
        actor_log(ACTOR_LOG_WARN, "supervisor.given_up", 0, NULL,
                  "%s stays down; the node goes on without it", child->spec->name);
        return;
    }
    if (code == 0) {
        code = child->process.exit_code == ACTOR_EXIT_TEMPORARY ? ACTOR_EXIT_TEMPORARY
                                                                : ACTOR_EXIT_INTERNAL;
    }
    actor_crash_report(child->spec->name, &child->process, child->restart_count, self->crash_path);
    actor_supervisor_begin_stop(self, code, ACTOR_SUPERVISOR_ESCALATION_MS * MS_NS);
}

static void
child_ended(actor_supervisor_state_t *self, uint32_t index)
{
    actor_supervised_t *child = &self->children[index];
    actor_supervisor_member_t *member = &self->core.members[index];
    char how[64];
    actor_process_describe(&child->process, how, sizeof how);
    bool asked = child->stop_sent && child->process.exit_code == 0;
    actor_log(asked ? ACTOR_LOG_INFO : ACTOR_LOG_WARN, "supervisor.ended", 0,
              ACTOR_LOG_FIELDS(actor_log_str("child", child->spec->name),
                               actor_log_i64("pid", child->last_pid),
                               actor_log_u64("child_epoch", member->epoch),
                               actor_log_i64("exit_code", child->process.exit_code),
                               actor_log_i64("signal", child->process.exit_signal)),
              "%s ended: %s", child->spec->name, how);
    proto_body_t body = {.down = {.role = child->spec->role,
                                  .name = proto_text(child->spec->name),
                                  .epoch = member->epoch,
                                  .detail = proto_text(how)}};
    actor_supervisor_inject(self, PROTO_KIND_DOWN, 0, &body);
    child->kill_at_ns = 0;
    if (!asked && self->phase == PHASE_RUNNING) {
        child->exit_count += child->killed || child->process.exit_signal != 0 ? 0 : 1;
        child->signal_count += !child->killed && child->process.exit_signal != 0 ? 1 : 0;
        child->hang_count += child->killed ? 1 : 0;
        child->silent_ns = member->heard_ns != 0 ? self->now_ns - member->heard_ns : 0;
    }
    if (!asked) {
        dump_ring(self, child, member->epoch);
    }
    member->state = ACTOR_STATE_STARTING;
    if (self->phase == PHASE_RUNNING) {
        plan_restart(self, child);
    }
}

/* Ends a process that lives but does not work. */
static void
watch_child(actor_supervisor_state_t *self, uint32_t index, uint64_t *wait_ns)
{
    actor_supervised_t *child = &self->children[index];
    const actor_supervisor_member_t *member = &self->core.members[index];
    if (child->process.pid == 0 || child->killed) {
        return;
    }
    const char *why = NULL;
    uint64_t start_until_ns = child->started_ns + START_MS * MS_NS;
    uint64_t link_until_ns = member->down_ns + LOST_LINK_MS * MS_NS;
    if (child->kill_at_ns != 0 && self->now_ns >= child->kill_at_ns) {
        why = "its grace is over";
    } else if (member->stuck && self->phase == PHASE_RUNNING) {
        why = "its step runs far beyond its budget";
    } else if (member->down_ns != 0 && self->phase == PHASE_RUNNING) {
        why = self->now_ns >= link_until_ns ? "its control link is gone" : NULL;
        actor_supervisor_lower(wait_ns, link_until_ns, self->now_ns);
    } else if (member->peer == ACTOR_PEER_NONE && member->down_ns == 0 &&
               self->phase == PHASE_RUNNING) {
        why = self->now_ns >= start_until_ns ? "it did not link to the supervisor" : NULL;
        actor_supervisor_lower(wait_ns, start_until_ns, self->now_ns);
    }
    if (child->kill_at_ns != 0) {
        actor_supervisor_lower(wait_ns, child->kill_at_ns, self->now_ns);
    }
    if (why == NULL) {
        return;
    }
    actor_log(ACTOR_LOG_WARN, "supervisor.killed", 0,
              ACTOR_LOG_FIELDS(actor_log_str("child", child->spec->name),
                               actor_log_u64("step", member->step),
                               actor_log_u64("step_age_ms", member->step_age_ns / MS_NS)),
              "killing %s: %s", child->spec->name, why);
    child->killed = true;
    actor_process_signal(&child->process, SIGKILL);
}

void
actor_supervisor_service_children(actor_supervisor_state_t *self, uint64_t *wait_ns)
{
    for (uint32_t index = 0; index < self->child_count; index++) {
        actor_supervised_t *child = &self->children[index];
        actor_supervisor_clear_bar(self);
        actor_process_read(&child->process);
        if (actor_process_reap(&child->process) == STATUS_OK) {
            child_ended(self, index);
        }
        if (child->restart_at_ns != 0 && self->now_ns >= child->restart_at_ns) {
            child->restart_count++;
            if (actor_supervisor_start_child(self, index) != STATUS_OK) {
                actor_supervisor_begin_stop(self, ACTOR_EXIT_INTERNAL,
                                            ACTOR_SUPERVISOR_ESCALATION_MS * MS_NS);
            }
        } else if (child->restart_at_ns != 0) {
            actor_supervisor_lower(wait_ns, child->restart_at_ns, self->now_ns);
        }
        watch_child(self, index, wait_ns);
    }
}
