/* actor_supervisor.c - the loop over children, their links and signals; begin and end. */
#include "actor_supervisor.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "actor_log.h"
#include "actor_run_dir.h"
#include "actor_supervisor_private.h"
#include "proto_require.h"

#define MS_NS UINT64_C(1000000)

enum {
    GRACE_MS = 30000,
    MISSED_MAX = 40,     /* heartbeats: 10 s without one and the child counts as hung */
    LAST_WORDS_MS = 100, /* for messages of a child that ended */
    FD_COUNT_MAX = 40 + 2 * ACTOR_SUPERVISOR_CHILD_COUNT_MAX,
};

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

/* ---- each round ------------------------------------------------------------------------------ */

static void
read_states(actor_supervisor_state_t *self)
{
    bool ready = true;
    for (uint32_t index = 0; index < self->child_count; index++) {
        actor_supervisor_member_t *member = &self->core.members[index];
        actor_supervised_t *child = &self->children[index];
        if (member->state_changed) {
            member->state_changed = false;
            child->was_ready = child->was_ready || member->state == ACTOR_STATE_READY;
            if (self->options->on_state != NULL) {
                actor_supervisor_clear_bar(self);
                self->options->on_state(self->options->context, member->name, member->state,
                                        member->detail);
            }
        }
        ready = ready && (member->state == ACTOR_STATE_READY || child->spec->optional);
    }
    if (ready && !self->was_ready && self->phase == PHASE_RUNNING) {
        self->was_ready = true;
        actor_supervisor_clear_bar(self);
        actor_log(ACTOR_LOG_INFO, "supervisor.ready", 0, NULL, "all actors are ready");
        if (self->options->on_ready != NULL) {
            self->options->on_ready(self->options->context);
        }
    }
}

static void
asked_to_stop(actor_supervisor_state_t *self, const char *by)
{
    if (self->phase == PHASE_STOPPING && self->is_hurried) {
        actor_supervisor_kill_all(self, "asked a third time");
        return;
    }
    if (self->phase == PHASE_STOPPING) {
        actor_log(ACTOR_LOG_WARN, "supervisor.asked", 0, NULL, "asked again by %s: no more grace",
                  by);
        actor_supervisor_hurry(self);
        return;
    }
    actor_supervisor_clear_bar(self);
    actor_log(ACTOR_LOG_INFO, "supervisor.asked", 0, NULL, "asked to end by %s", by);
    uint64_t grace_ns = self->options->grace_ns;
    actor_supervisor_begin_stop(self, 0, grace_ns != 0 ? grace_ns : GRACE_MS * MS_NS);
}

static void
read_signals(actor_supervisor_state_t *self)
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
sleep_until_event(actor_supervisor_state_t *self, uint64_t wait_ns)
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
run(actor_supervisor_state_t *self)
{
    while (self->phase != PHASE_DONE) {
        uint64_t wait_ns = 1000 * MS_NS;
        self->injected = false;
        proto_status_t status = actor_shell_service(self->shell, &wait_ns);
        if (status != STATUS_OK && status != STATUS_END) {
            actor_supervisor_begin_stop(self, ACTOR_EXIT_INTERNAL,
                                        ACTOR_SUPERVISOR_ESCALATION_MS * MS_NS);
        }
        (void)actor_supervisor_tick(self);
        read_signals(self);
        read_states(self);
        actor_supervisor_service_children(self, &wait_ns);
        actor_supervisor_service_scheduler(self, &wait_ns);
        if (self->phase == PHASE_STOPPING) {
            actor_supervisor_service_stop(self, &wait_ns);
        }
        actor_supervisor_service_view(self, &wait_ns);
        actor_supervisor_show_progress(self, &wait_ns);
        if (self->options->on_round != NULL) {
            self->options->on_round(self->options->context, self->phase != PHASE_RUNNING);
        }
        if (self->phase != PHASE_DONE) {
            sleep_until_event(self, self->injected ? 0 : wait_ns);
        }
    }
    /* The last numbers of those that ended are perhaps still on their way. */
    uint64_t until_ns = actor_supervisor_tick(self) + LAST_WORDS_MS * MS_NS;
    bool linked = true;
    while (linked && actor_supervisor_tick(self) < until_ns) {
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

static proto_status_t
open_signals(actor_supervisor_state_t *self, sigset_t *old_mask)
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
open_shell(actor_supervisor_state_t *self)
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
open_children(actor_supervisor_state_t *self)
{
    for (uint32_t index = 0; index < self->child_count; index++) {
        actor_supervised_t *child = &self->children[index];
        actor_restart_init(&child->restart, self->options->restart_count_max,
                           self->options->restart_period_ns);
        proto_status_t status = actor_process_init(&child->process);
        if (status == STATUS_OK) {
            status = actor_supervisor_make_ring(self, child);
        }
        if (status != STATUS_OK) {
            return status;
        }
    }
    /* Rings first: the recorder inherits those of all others. */
    for (uint32_t index = 0; index < self->child_count; index++) {
        proto_status_t status = actor_supervisor_start_child(self, index);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

static void
fill_report(const actor_supervisor_state_t *self, actor_supervisor_report_t *report)
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
choose_crash_dir(actor_supervisor_state_t *self)
{
    if (self->options->crash_dir != NULL) {
        (void)snprintf(self->crash_dir, sizeof self->crash_dir, "%s", self->options->crash_dir);
    } else if (actor_crash_default_dir(self->crash_dir, sizeof self->crash_dir) != STATUS_OK) {
        self->crash_dir[0] = '\0';
    } else {
        actor_crash_prune(self->crash_dir, ACTOR_CRASH_KEPT_MAX);
    }
}

int
actor_supervisor_run(const actor_supervisor_options_t *options, actor_supervisor_report_t *report)
{
    require(options->child_count <= ACTOR_SUPERVISOR_CHILD_COUNT_MAX);

    int exit_code = ACTOR_EXIT_INTERNAL;
    sigset_t old_mask;
    actor_supervisor_state_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return ACTOR_EXIT_INTERNAL;
    }
    self->options = options;
    self->child_count = options->child_count;
    self->signal_fd = -1;
    for (uint32_t index = 0; index < self->child_count; index++) {
        self->children[index] = (actor_supervised_t){.spec = &options->children[index],
                                                     .process = {.pid_fd = -1, .error_fd = -1},
                                                     .ring_fd = -1};
    }
    /* Rises from run to run as well: milliseconds since 1970, then one for each start. */
    self->epoch_last = proto_clock_realtime_ns(proto_clock_system()) / MS_NS;
    self->epoch_first = self->epoch_last;
    self->begun_ns = actor_supervisor_tick(self);
    actor_supervisor_core_init(&self->core, options->children, options->child_count);
    choose_crash_dir(self);
    actor_supervisor_scheduler_init(self);
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
        exit_code = actor_exit_code(status);
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
    actor_supervisor_clear_bar(self);
    free(self);
    return exit_code;
}
