/* Counts system calls with ptrace: every thread stops at entry and exit of each call.  That slows
 * the processes down, so it is done in a run of its own whose times are not used. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_actor_step.h"

enum { SYSCALL_STOP = SIGTRAP | 0x80 };

static void
for_each_thread(pid_t pid, void (*visit)(pid_t pid, pid_t thread, uint64_t *sum), uint64_t *sum)
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
            visit(pid, thread, sum);
        }
    }
    (void)closedir(folder);
}

static void
attach(pid_t pid, pid_t thread, uint64_t *sum)
{
    (void)pid;
    if (ptrace(PTRACE_SEIZE, thread, NULL, (void *)(long)PTRACE_O_TRACESYSGOOD) != 0 ||
        ptrace(PTRACE_INTERRUPT, thread, NULL, NULL) != 0) {
        die("cannot trace a process");
    }
    (*sum)++;
}

static void
trace(shared_t *shared)
{
    uint64_t stops = 0;
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
            stops++;
            atomic_store(&shared->syscall_count, stops / 2);
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
    trace(shared);
    _exit(0); /* which lets the traced threads go */
}

static void
add_switches(pid_t pid, pid_t thread, uint64_t *sum)
{
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
