/* actor_supervisor.c - the loop over children, their links and signals, and what follows from each
 * event.  Who may be restarted is decided in actor_restart.c, who is linked in
 * actor_supervisor_core.c. */
#include "actor_supervisor.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "actor_child.h"
#include "actor_crash.h"
#include "actor_log.h"
#include "actor_restart.h"
#include "actor_run_dir.h"
#include "actor_shell.h"
#include "actor_supervisor_core.h"
#include "proto_clock.h"
#include "proto_require.h"
#include "proto_ring.h"

#define MS_NS UINT64_C(1000000)

enum {
    EXIT_INTERNAL = 70,  /* escalation, or a failure of our own */
    EXIT_TEMPORARY = 75, /* no GPU, port busy */
    EXIT_CONFIG = 78,

    GRACE_MS = 30000,
    ESCALATION_GRACE_MS = 2000, /* when the node fails anyway */
    START_MS = 60000,           /* from exec to the control link */
    LOST_LINK_MS = 2000,        /* a process whose control link ended must end too */
    MISSED_MAX = 40,            /* heartbeats: 10 s without one and the child counts as hung */
    LAST_WORDS_MS = 100,        /* for messages of a child that ended */
    PROGRESS_TTY_MS = 100,
    PROGRESS_LOG_MS = 2000,
    CRASH_COUNT_MAX = 16, /* crash records of one run */
    RING_SIZE_BYTES = 64 * 1024 * 1024,
    ENDPOINT_SIZE_BYTES = 256,
    FD_COUNT_MAX = 40 + 2 * ACTOR_SUPERVISOR_CHILD_COUNT_MAX,
};

typedef struct {
    const actor_supervisor_child_t *spec;
    actor_process_t process;
    actor_restart_t restart;
    int ring_fd; /* -1 = none */
    bool was_ready;
    bool given_up; /* optional, and it ended too often */
    uint32_t restart_count;
    uint64_t started_ns;
    uint64_t restart_at_ns; /* 0 = not waiting for a restart */
    bool stop_sent;
    uint64_t kill_at_ns; /* 0 = not */
    bool killed;         /* by us, for being stuck or too slow to end */
    pid_t last_pid;
} child_t;

typedef enum { PHASE_RUNNING, PHASE_STOPPING, PHASE_DONE } phase_t;

typedef struct {
    const actor_supervisor_options_t *options;
    actor_supervisor_core_t core;
    actor_shell_t *shell;
    child_t children[ACTOR_SUPERVISOR_CHILD_COUNT_MAX];
    uint32_t child_count;
    char endpoint[ENDPOINT_SIZE_BYTES];
    char crash_dir[ACTOR_CRASH_PATH_SIZE_BYTES];  /* "" = no crash records */
    char crash_path[ACTOR_CRASH_PATH_SIZE_BYTES]; /* the last one */
    uint32_t crash_count;
    bool run_dir_made;
    int signal_fd;
    uint64_t epoch_last;
    phase_t phase;
    int exit_code;
    uint32_t stop_index; /* of the child that is being ended */
    uint64_t grace_ns;
    bool was_ready;
    uint64_t progress_next_ns;
    bool bar_shown;
    uint64_t now_ns;
    bool injected; /* since the shell's last round: it wants another before we sleep */
} supervisor_t;

/* Kept open for ever: any thread may ask at any time, also between two runs. */
static atomic_int ask_fd = -1;

void
actor_supervisor_ask_stop(void)
{
    int fd = atomic_load(&ask_fd);
    uint64_t one = 1;
    if (fd >= 0 && write(fd, &one, sizeof one) < 0) {
        return; /* full: asked already */
    }
}

static uint64_t
tick(supervisor_t *self)
{
    self->now_ns = proto_clock_monotonic_ns(proto_clock_system());
    return self->now_ns;
}

static void
lower(uint64_t *wait_ns, uint64_t at_ns, uint64_t now_ns)
{
    uint64_t wait = at_ns > now_ns ? at_ns - now_ns : 0;
    *wait_ns = wait < *wait_ns ? wait : *wait_ns;
}

/* ---- starting -------------------------------------------------------------------------------- */

static proto_status_t
start_child(supervisor_t *self, uint32_t index)
{
    child_t *child = &self->children[index];
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
    child->started_ns = tick(self);
    child->restart_at_ns = 0;
    child->kill_at_ns = 0;
    child->killed = false;
    child->stop_sent = false;
    proto_status_t status =
        actor_process_start(&child->process, child->spec, epoch, self->endpoint, inherited, count);
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

static proto_status_t
make_ring(supervisor_t *self, child_t *child)
{
    if (!child->spec->has_ring) {
        return STATUS_OK;
    }
    proto_ring_owner_t owner = {.role = child->spec->role, .epoch = self->epoch_last + 1};
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

static void
inject(supervisor_t *self, proto_kind_t kind, uint64_t request, const proto_body_t *body)
{
    actor_shell_inject(self->shell, kind, request, body);
    self->injected = true;
}

static void
begin_stop(supervisor_t *self, int exit_code, uint64_t grace_ns)
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

static void
kill_all(supervisor_t *self, const char *why)
{
    for (uint32_t index = 0; index < self->child_count; index++) {
        child_t *child = &self->children[index];
        if (child->process.pid > 0) {
            actor_log(ACTOR_LOG_WARN, "supervisor.killed", 0,
                      ACTOR_LOG_FIELDS(actor_log_str("child", child->spec->name)), "killing %s: %s",
                      child->spec->name, why);
            child->killed = true;
            actor_process_signal(&child->process, SIGKILL);
        }
    }
}

/* The order of the end: children as given, recorders last. */
static child_t *
stop_child(supervisor_t *self, uint32_t position)
{
    uint32_t at = 0;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t index = 0; index < self->child_count; index++) {
            child_t *child = &self->children[index];
            if (child->spec->is_recorder == (pass == 1) && at++ == position) {
                return child;
            }
        }
    }
    return NULL;
}

static void
service_stop(supervisor_t *self, uint64_t *wait_ns)
{
    child_t *child = stop_child(self, self->stop_index);
    while (child != NULL && child->process.pid == 0) {
        child = stop_child(self, ++self->stop_index);
    }
    if (child == NULL) {
        self->phase = PHASE_DONE;
        return;
    }
    uint32_t index = (uint32_t)(child - self->children);
    if (!child->stop_sent) {
        child->stop_sent = true;
        child->kill_at_ns = self->now_ns + self->grace_ns;
        if (self->core.members[index].peer != ACTOR_PEER_NONE) {
            proto_body_t body = {.stop = {.grace_ns = self->grace_ns}};
            inject(self, PROTO_KIND_STOP, index + 1, &body);
        } else {
            /* Not linked yet: it can only be told so. */
            actor_process_signal(&child->process, SIGTERM);
        }
    }
    lower(wait_ns, child->kill_at_ns, self->now_ns);
}

/* ---- what happens to children ---------------------------------------------------------------- */

static void
dump_ring(supervisor_t *self, child_t *child, uint64_t epoch)
{
    if (child->ring_fd < 0 || self->crash_dir[0] == '\0' || self->crash_count >= CRASH_COUNT_MAX) {
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
    self->crash_path[0] = '\0';
    if (status != STATUS_END) {
        actor_log(ACTOR_LOG_WARN, "supervisor.crash_record", 0, NULL,
                  "no crash record of %s in '%s': %s", child->spec->name, self->crash_dir,
                  proto_status_text(status));
    }
}

/* Whether the end of this child ends the node, and with which code; 0: it may be restarted. */
static int
fatal_code(const child_t *child)
{
    if (child->spec->optional || child->killed) {
        return 0;
    }
    int code = child->process.exit_code;
    /* A wrong setting does not get better by itself.  A busy port may, but not at the start: the
     * one who started us is still there to read why. */
    if (code == EXIT_CONFIG || (code == EXIT_TEMPORARY && !child->was_ready)) {
        return code;
    }
    return 0;
}

static void
plan_restart(supervisor_t *self, child_t *child)
{
    uint64_t wait_ns = 0;
    int code = fatal_code(child);
    bool allowed = code == 0 && actor_restart_allow(&child->restart, self->now_ns, &wait_ns);
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
                  "%s ended too often and stays down; the node goes on without it",
                  child->spec->name);
        return;
    }
    if (code == 0) {
        code = child->process.exit_code == EXIT_TEMPORARY ? EXIT_TEMPORARY : EXIT_INTERNAL;
    }
    actor_crash_report(child->spec->name, &child->process, child->restart_count, self->crash_path);
    begin_stop(self, code, ESCALATION_GRACE_MS * MS_NS);
}

static void
child_ended(supervisor_t *self, uint32_t index)
{
    child_t *child = &self->children[index];
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
    inject(self, PROTO_KIND_DOWN, 0, &body);
    child->kill_at_ns = 0;
    if (!asked) {
        dump_ring(self, child, member->epoch);
    }
    member->state = 0;
    if (self->phase == PHASE_RUNNING) {
        plan_restart(self, child);
    }
}

/* ---- progress -------------------------------------------------------------------------------- */

static void
clear_bar(supervisor_t *self)
{
    if (self->bar_shown) {
        (void)fprintf(stderr, "\r\x1b[K");
        (void)fflush(stderr);
        self->bar_shown = false;
    }
}

static void
draw_bar(supervisor_t *self, uint64_t done, uint64_t total, const char *detail)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    uint32_t filled = total > 0 ? (uint32_t)((double)done / (double)total * WIDTH) : 0;
    filled = filled > WIDTH ? WIDTH : filled;
    memset(bar, '.', WIDTH);
    memset(bar, '#', filled);
    bar[WIDTH] = '\0';
    (void)fprintf(stderr, "\r\x1b[Kloading [%s] %5.1f / %.1f MB  %.60s", bar, (double)done / 1e6,
                  (double)total / 1e6, detail);
    (void)fflush(stderr);
    self->bar_shown = true;
}

static void
show_progress(supervisor_t *self, uint64_t *wait_ns)
{
    if (!self->options->show_progress || self->was_ready || self->phase != PHASE_RUNNING) {
        clear_bar(self);
        return;
    }
    bool terminal = isatty(STDERR_FILENO) == 1;
    if (self->now_ns >= self->progress_next_ns) {
        uint64_t done = 0;
        uint64_t total = 0;
        const char *detail = "";
        for (uint32_t index = 0; index < self->child_count; index++) {
            const actor_supervisor_member_t *member = &self->core.members[index];
            done += member->done_bytes;
            total += member->total_bytes;
            if (member->state == 1) {
                detail = member->detail;
            }
        }
        if (terminal) {
            draw_bar(self, done, total, detail);
        } else if (total > 0) {
            actor_log(ACTOR_LOG_INFO, "supervisor.loading", 0,
                      ACTOR_LOG_FIELDS(actor_log_u64("done_bytes", done),
                                       actor_log_u64("total_bytes", total)),
                      "loading: %.1f of %.1f MB %s", (double)done / 1e6, (double)total / 1e6,
                      detail);
        }
        self->progress_next_ns =
            self->now_ns + (terminal ? PROGRESS_TTY_MS : PROGRESS_LOG_MS) * MS_NS;
    }
    lower(wait_ns, self->progress_next_ns, self->now_ns);
}

/* ---- each round ------------------------------------------------------------------------------ */

static void
read_states(supervisor_t *self)
{
    bool ready = true;
    for (uint32_t index = 0; index < self->child_count; index++) {
        actor_supervisor_member_t *member = &self->core.members[index];
        child_t *child = &self->children[index];
        if (member->state_changed) {
            member->state_changed = false;
            child->was_ready = child->was_ready || member->state == 2;
            if (self->options->on_state != NULL) {
                clear_bar(self);
                self->options->on_state(self->options->context, member->name, member->state,
                                        member->detail);
            }
        }
        ready = ready && (member->state == 2 || child->spec->optional);
    }
    if (ready && !self->was_ready && self->phase == PHASE_RUNNING) {
        self->was_ready = true;
        clear_bar(self);
        actor_log(ACTOR_LOG_INFO, "supervisor.ready", 0, NULL, "all actors are ready");
        if (self->options->on_ready != NULL) {
            self->options->on_ready(self->options->context);
        }
    }
}

/* Ends a process that lives but does not work. */
static void
watch_child(supervisor_t *self, uint32_t index, uint64_t *wait_ns)
{
    child_t *child = &self->children[index];
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
        lower(wait_ns, link_until_ns, self->now_ns);
    } else if (member->peer == ACTOR_PEER_NONE && member->down_ns == 0 &&
               self->phase == PHASE_RUNNING) {
        why = self->now_ns >= start_until_ns ? "it did not link to the supervisor" : NULL;
        lower(wait_ns, start_until_ns, self->now_ns);
    }
    if (child->kill_at_ns != 0) {
        lower(wait_ns, child->kill_at_ns, self->now_ns);
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

static void
service_children(supervisor_t *self, uint64_t *wait_ns)
{
    for (uint32_t index = 0; index < self->child_count; index++) {
        child_t *child = &self->children[index];
        clear_bar(self);
        actor_process_read(&child->process);
        if (actor_process_reap(&child->process) == STATUS_OK) {
            child_ended(self, index);
        }
        if (child->restart_at_ns != 0 && self->now_ns >= child->restart_at_ns) {
            child->restart_count++;
            if (start_child(self, index) != STATUS_OK) {
                begin_stop(self, EXIT_INTERNAL, ESCALATION_GRACE_MS * MS_NS);
            }
        } else if (child->restart_at_ns != 0) {
            lower(wait_ns, child->restart_at_ns, self->now_ns);
        }
        watch_child(self, index, wait_ns);
    }
}

static void
asked_to_stop(supervisor_t *self, const char *by)
{
    if (self->phase == PHASE_STOPPING) {
        kill_all(self, "asked a second time");
        return;
    }
    clear_bar(self);
    actor_log(ACTOR_LOG_INFO, "supervisor.asked", 0, NULL, "asked to end by %s", by);
    uint64_t grace_ns = self->options->grace_ns;
    begin_stop(self, 0, grace_ns != 0 ? grace_ns : GRACE_MS * MS_NS);
}

static void
read_signals(supervisor_t *self)
{
    struct signalfd_siginfo info;
    while (read(self->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo != SIGCHLD) {
            asked_to_stop(self, info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM");
        }
    }
    uint64_t count = 0;
    if (read(atomic_load(&ask_fd), &count, sizeof count) == (ssize_t)sizeof count &&
        self->phase == PHASE_RUNNING) {
        asked_to_stop(self, "the program");
    }
}

static void
sleep_until_event(supervisor_t *self, uint64_t wait_ns)
{
    int fds[FD_COUNT_MAX];
    struct pollfd items[FD_COUNT_MAX];
    uint32_t count = 0;
    fds[count++] = self->signal_fd;
    fds[count++] = atomic_load(&ask_fd);
    for (uint32_t index = 0; index < self->child_count; index++) {
        const actor_process_t *process = &self->children[index].process;
        if (process->error_fd >= 0) {
            fds[count++] = process->error_fd;
        }
        if (process->pid_fd >= 0) {
            fds[count++] = process->pid_fd;
        }
    }
    count += actor_shell_fds(self->shell, fds + count, FD_COUNT_MAX - count);
    for (uint32_t index = 0; index < count; index++) {
        items[index] = (struct pollfd){.fd = fds[index], .events = POLLIN};
    }
    struct timespec wait = {(time_t)(wait_ns / (1000 * MS_NS)), (long)(wait_ns % (1000 * MS_NS))};
    (void)ppoll(items, count, &wait, NULL);
}

static void
run(supervisor_t *self)
{
    while (self->phase != PHASE_DONE) {
        uint64_t wait_ns = 1000 * MS_NS;
        self->injected = false;
        proto_status_t status = actor_shell_service(self->shell, &wait_ns);
        if (status != STATUS_OK && status != STATUS_END) {
            begin_stop(self, EXIT_INTERNAL, ESCALATION_GRACE_MS * MS_NS);
        }
        (void)tick(self);
        read_signals(self);
        read_states(self);
        service_children(self, &wait_ns);
        if (self->phase == PHASE_STOPPING) {
            service_stop(self, &wait_ns);
        }
        show_progress(self, &wait_ns);
        if (self->phase != PHASE_DONE) {
            sleep_until_event(self, self->injected ? 0 : wait_ns);
        }
    }
    /* The last numbers of those that ended are perhaps still on their way. */
    uint64_t until_ns = tick(self) + LAST_WORDS_MS * MS_NS;
    bool linked = true;
    while (linked && tick(self) < until_ns) {
        uint64_t wait_ns = 5 * MS_NS;
        if (actor_shell_service(self->shell, &wait_ns) != STATUS_OK) {
            break;
        }
        linked = false;
        for (uint32_t index = 0; index < self->child_count; index++) {
            linked = linked || self->core.members[index].peer != ACTOR_PEER_NONE;
        }
        if (linked) {
            sleep_until_event(self, wait_ns < 5 * MS_NS ? wait_ns : 5 * MS_NS);
        }
    }
}

/* ---- begin and end --------------------------------------------------------------------------- */

static int
exit_code_of(proto_status_t status)
{
    if (status == STATUS_ERR_CONFIG) {
        return EXIT_CONFIG;
    }
    return status == STATUS_ERR_IO ? EXIT_TEMPORARY : EXIT_INTERNAL;
}

static proto_status_t
open_signals(supervisor_t *self, sigset_t *old_mask)
{
    sigset_t mask;
    (void)sigemptyset(&mask);
    (void)sigaddset(&mask, SIGTERM);
    (void)sigaddset(&mask, SIGINT);
    (void)sigaddset(&mask, SIGCHLD);
    if (pthread_sigmask(SIG_BLOCK, &mask, old_mask) != 0) {
        return STATUS_ERR_IO;
    }
    self->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (atomic_load(&ask_fd) < 0) {
        atomic_store(&ask_fd, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    }
    uint64_t old = 0;
    ssize_t got = read(atomic_load(&ask_fd), &old, sizeof old); /* asked of an earlier run */
    (void)got;
    return self->signal_fd >= 0 && atomic_load(&ask_fd) >= 0 ? STATUS_OK : STATUS_ERR_IO;
}

static proto_status_t
open_shell(supervisor_t *self)
{
    int size = snprintf(self->endpoint, sizeof self->endpoint, "ipc://%s/supervisor",
                        self->options->run_dir);
    if (size >= (int)sizeof self->endpoint) {
        return STATUS_ERR_CONFIG;
    }
    actor_link_options_t link = {.endpoint = self->endpoint,
                                 .bind = true,
                                 .part_size_bytes_max = 64 * 1024};
    actor_shell_options_t options = {.name = "supervisor",
                                     .epoch = self->epoch_last,
                                     .ops = &actor_supervisor_core_ops,
                                     .core = &self->core,
                                     .links = &link,
                                     .link_count = 1,
                                     .ring_fd = -1,
                                     .missed_max = MISSED_MAX,
                                     .post_size_bytes = 64 * 1024,
                                     .heartbeats_to_core = true};
    return actor_shell_new(&options, &self->shell);
}

static proto_status_t
open_children(supervisor_t *self)
{
    for (uint32_t index = 0; index < self->child_count; index++) {
        child_t *child = &self->children[index];
        actor_restart_init(&child->restart, self->options->restart_count_max,
                           self->options->restart_period_ns);
        proto_status_t status = actor_process_init(&child->process);
        if (status == STATUS_OK) {
            status = make_ring(self, child);
        }
        if (status != STATUS_OK) {
            return status;
        }
    }
    /* Rings first: the recorder inherits those of all others. */
    for (uint32_t index = 0; index < self->child_count; index++) {
        proto_status_t status = start_child(self, index);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

static void
fill_report(const supervisor_t *self, actor_supervisor_report_t *report)
{
    for (uint32_t index = 0; report != NULL && index < self->child_count; index++) {
        const actor_supervisor_member_t *member = &self->core.members[index];
        report[index] =
            (actor_supervisor_report_t){.role = member->role,
                                        .restart_count = self->children[index].restart_count,
                                        .pid = (int32_t)self->children[index].last_pid,
                                        .stats = member->stats};
        memcpy(report[index].name, member->name, sizeof report[index].name);
    }
}

static void
choose_crash_dir(supervisor_t *self)
{
    if (self->options->crash_dir != NULL) {
        (void)snprintf(self->crash_dir, sizeof self->crash_dir, "%s", self->options->crash_dir);
    } else if (actor_crash_default_dir(self->crash_dir, sizeof self->crash_dir) != STATUS_OK) {
        self->crash_dir[0] = '\0';
    }
}

int
actor_supervisor_run(const actor_supervisor_options_t *options, actor_supervisor_report_t *report)
{
    require(options->child_count <= ACTOR_SUPERVISOR_CHILD_COUNT_MAX);

    int exit_code = EXIT_INTERNAL;
    sigset_t old_mask;
    supervisor_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return EXIT_INTERNAL;
    }
    self->options = options;
    self->child_count = options->child_count;
    self->signal_fd = -1;
    for (uint32_t index = 0; index < self->child_count; index++) {
        self->children[index] = (child_t){.spec = &options->children[index],
                                          .process = {.pid_fd = -1, .error_fd = -1},
                                          .ring_fd = -1};
    }
    /* Rises from run to run as well: milliseconds since 1970, then one for each start. */
    self->epoch_last = proto_clock_realtime_ns(proto_clock_system()) / MS_NS;
    (void)tick(self);
    actor_supervisor_core_init(&self->core, options->children, options->child_count);
    choose_crash_dir(self);
    proto_status_t status = open_signals(self, &old_mask);
    if (status == STATUS_OK) {
        status = actor_run_dir_make(options->run_dir, &self->run_dir_made);
    }
    if (status == STATUS_OK) {
        status = open_shell(self);
    }
    if (status == STATUS_OK) {
        status = open_children(self);
    }
    if (status == STATUS_OK) {
        run(self);
        exit_code = self->exit_code;
    } else {
        exit_code = exit_code_of(status);
    }
    fill_report(self, report);
    for (uint32_t index = 0; index < self->child_count; index++) {
        actor_process_fini(&self->children[index].process);
        if (self->children[index].ring_fd >= 0) {
            (void)close(self->children[index].ring_fd);
        }
    }
    bool opened = self->shell != NULL;
    actor_shell_destroy(&self->shell, 0);
    if (opened || self->run_dir_made) { /* else somebody else's sockets are in there */
        actor_run_dir_remove(options->run_dir, self->run_dir_made);
    }
    if (self->signal_fd >= 0) {
        (void)close(self->signal_fd);
    }
    (void)pthread_sigmask(SIG_SETMASK, &old_mask, NULL);
    clear_bar(self);
    free(self);
    return exit_code;
}
