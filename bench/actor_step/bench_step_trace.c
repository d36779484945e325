/* Counts system calls in two ways.  The kernel's own trace point counts them without slowing
 * anything down, but needs the right to use it.  ptrace works everywhere and tells the calls apart,
 * but every thread stops twice in each call: steps then take longer than the millisecond for which
 * libzmq's sends skip a look at their mailbox, so that each sending socket makes two calls more.
 * Either is done in a run of its own whose times are not used. */
#include <dirent.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_actor_step.h"

enum { SYSCALL_STOP = SIGTRAP | 0x80 };

static void
for_each_thread(pid_t pid, void (*visit)(pid_t pid, pid_t thread, void *context), void *context)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return;
    }
    struct dirent *entry = NULL;
    while ((entry = readdir(folder)) != NULL) {
        int thread = atoi(entry->d_name);
        if (thread > 0) {
            visit(pid, thread, context);
        }
    }
    (void)closedir(folder);
}

/* ---- the kernel's trace point ---------------------------------------------------------------- */

static uint64_t
trace_point_id(void)
{
    static const char *const paths[] = {
        "/sys/kernel/tracing/events/raw_syscalls/sys_enter/id",
        "/sys/kernel/debug/tracing/events/raw_syscalls/sys_enter/id",
    };
    char line[32] = "";
    for (uint32_t i = 0; i < 2 && line[0] == '\0'; i++) {
        FILE *file = fopen(paths[i], "r");
        if (file != NULL) {
            line[fread(line, 1, sizeof line - 1, file)] = '\0';
            (void)fclose(file);
        }
    }
    return strtoull(line, NULL, 10);
}

static void
open_counter(pid_t pid, pid_t thread, void *context)
{
    (void)pid;
    counters_t *self = context;
    struct perf_event_attr attr = {.type = PERF_TYPE_TRACEPOINT,
                                   .size = sizeof attr,
                                   .config = self->trace_point};
    if (self->count == COUNTERS_MAX) {
        die("too many threads to count");
    }
    self->fds[self->count] = (int)syscall(SYS_perf_event_open, &attr, thread, -1, -1, 0UL);
    self->is_good = self->is_good && self->fds[self->count] >= 0;
    self->count++;
}

bool
counters_open(counters_t *self, const pid_t *pids, uint32_t pid_count)
{
    *self = (counters_t){.trace_point = trace_point_id(), .is_good = true};
    for (uint32_t i = 0; self->trace_point != 0 && i < pid_count; i++) {
        for_each_thread(pids[i], open_counter, self);
    }
    return self->count > 0 && self->is_good;
}

uint64_t
counters_read(const counters_t *self)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        uint64_t value = 0;
        if (read(self->fds[i], &value, sizeof value) == (ssize_t)sizeof value) {
            sum += value;
        }
    }
    return sum;
}

void
counters_close(counters_t *self)
{
    for (uint32_t i = 0; i < self->count; i++) {
        if (self->fds[i] >= 0) {
            (void)close(self->fds[i]);
        }
    }
    self->count = 0;
}

/* ---- ptrace ---------------------------------------------------------------------------------- */

static void
attach(pid_t pid, pid_t thread, void *context)
{
    uint64_t *sum = context;
    (void)pid;
    if (ptrace(PTRACE_SEIZE, thread, NULL, (void *)(long)PTRACE_O_TRACESYSGOOD) != 0 ||
        ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) != 0) {
        die("cannot trace a process");
    }
    (*sum)++;
}

/* The calls that a step is made of; the rest is counted together. */
static const struct {
    int number;
    const char *name;
} call_names[CALL_KINDS - 1] = {
    {SYS_poll, "poll"},           {SYS_ppoll, "ppoll"},   {SYS_epoll_wait, "epoll_wait"},
    {SYS_epoll_ctl, "epoll_ctl"}, {SYS_read, "read"},     {SYS_write, "write"},
    {SYS_sendto, "send"},         {SYS_recvfrom, "recv"}, {SYS_futex, "futex"},
    {SYS_getpid, "getpid"},
};

const char *
call_name(uint32_t kind)
{
    return kind < CALL_KINDS - 1 ? call_names[kind].name : "other";
}

/* Counts a call by the thread that makes it, at the stop before it. */
static void
count_call(shared_t *shared, const pid_t *pids, pid_t thread)
{
    struct __ptrace_syscall_info info;
    memset(&info, 0, sizeof info);
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, (void *)sizeof info, &info) <= 0 ||
        info.op != PTRACE_SYSCALL_INFO_ENTRY) {
        return;
    }
    uint32_t kind = 0;
    while (kind < CALL_KINDS - 1 && (uint64_t)call_names[kind].number != info.entry.nr) {
        kind++;
    }
    uint32_t who = thread == pids[0] ? CALLER_SCHEDULER : CALLER_EXECUTOR;
    if (thread != pids[0] && thread != pids[1]) {
        char path[64];
        (void)snprintf(path, sizeof path, "/proc/%d/task/%d", (int)pids[0], (int)thread);
        who = access(path, F_OK) == 0 ? CALLER_SCHEDULER_IO : CALLER_EXECUTOR_IO;
    }
    (void)atomic_fetch_add(&shared->calls[who][kind], 1);
    (void)atomic_fetch_add(&shared->syscall_count, 1);
}

static void
trace(shared_t *shared, const pid_t *pids)
{
    while (atomic_load(&shared->is_tracing)) {
        int status = 0;
        pid_t thread = waitpid(-1, &status, __WALL | WNOHANG);
        if (thread == 0) {
            continue;
        }
        if (thread < 0) {
            break;
        }
        if (!WIFSTOPPED(status)) {
            continue;
        }
        int number = WSTOPSIG(status);
        if (number == SYSCALL_STOP && atomic_load(&shared->is_window)) {
            count_call(shared, pids, thread);
        }
        /* Stops of our own making carry no signal on. */
        bool is_signal = number != SYSCALL_STOP && number != SIGTRAP && status >> 16 == 0;
        (void)ptrace(PTRACE_SYSCALL, thread, NULL, (void *)(long)(is_signal ? number : 0));
    }
}

pid_t
start_tracer(const pid_t *pids, uint32_t pid_count, shared_t *shared)
{
    atomic_store(&shared->is_tracing, true);
    atomic_store(&shared->is_traced, false);
    atomic_store(&shared->syscall_count, 0);
    (void)fflush(NULL);
    pid_t tracer = fork();
    if (tracer != 0) {
        return tracer;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    uint64_t threads = 0;
    for (uint32_t i = 0; i < pid_count; i++) {
        for_each_thread(pids[i], attach, &threads);
    }
    atomic_store(&shared->is_traced, true);
    trace(shared, pids);
    _exit(0); /* which lets the traced threads go */
}

static void
add_switches(pid_t pid, pid_t thread, void *context)
{
    uint64_t *sum = context;
    char path[96];
    char line[128];
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/status", (int)pid, (int)thread);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (colon != NULL && strstr(line, "ctxt_switches") != NULL) {
            *sum += strtoull(colon + 1, NULL, 10);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

uint64_t
context_switches(pid_t pid)
{
    uint64_t sum = 0;
    for_each_thread(pid, add_switches, &sum);
    return sum;
}
