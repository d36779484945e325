/* actor_child.c - fork and exec, pipes and process groups. */
#include "actor_child.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor_exit.h"
#include "actor_log.h"
#include "proto_require.h"

enum {
    ADDED_ARGUMENTS_MAX = 8 + 2 * ACTOR_SUPERVISOR_CHILD_COUNT_MAX,
    NUMBER_SIZE_BYTES = 64,
    READ_SIZE_BYTES = 16384,
};

proto_status_t
actor_process_init(actor_process_t *self)
{
    *self = (actor_process_t){.pid_fd = -1, .error_fd = -1};
    self->lines = calloc(ACTOR_SUPERVISOR_LOG_LINES, sizeof self->lines[0]);
    return self->lines != NULL ? STATUS_OK : STATUS_ERR_NO_MEMORY;
}

void
actor_process_fini(actor_process_t *self)
{
    if (self->pid > 0) {
        actor_process_signal(self, SIGKILL);
        (void)waitpid(self->pid, NULL, 0);
        self->pid = 0;
    }
    if (self->pid_fd >= 0) {
        (void)close(self->pid_fd);
    }
    if (self->error_fd >= 0) {
        (void)close(self->error_fd);
    }
    free(self->lines);
    *self = (actor_process_t){.pid_fd = -1, .error_fd = -1};
}

/* The command line, put together before the fork: after it, nothing may be allocated. */
typedef struct {
    const char *argv[ACTOR_SUPERVISOR_ARGUMENT_COUNT_MAX + ADDED_ARGUMENTS_MAX + 1];
    uint32_t count;
    char numbers[1 + ACTOR_SUPERVISOR_CHILD_COUNT_MAX][NUMBER_SIZE_BYTES];
} command_t;

static void
add(command_t *command, const char *argument)
{
    command->argv[command->count++] = argument;
    command->argv[command->count] = NULL;
}

static proto_status_t
make_command(command_t *command, const actor_supervisor_child_t *child, uint64_t epoch,
             const actor_process_endpoints_t *endpoints, const actor_inherited_t *inherited,
             uint32_t inherited_count)
{
    command->count = 0;
    for (const char *const *argument = child->argv; *argument != NULL; argument++) {
        if (command->count == ACTOR_SUPERVISOR_ARGUMENT_COUNT_MAX) {
            return STATUS_ERR_CONFIG;
        }
        add(command, *argument);
    }
    (void)snprintf(command->numbers[0], NUMBER_SIZE_BYTES, "%" PRIu64, epoch);
    add(command, "--name");
    add(command, child->name);
    add(command, "--epoch");
    add(command, command->numbers[0]);
    add(command, "--supervisor");
    add(command, endpoints->supervisor);
    if (endpoints->scheduler != NULL) {
        add(command, "--scheduler-at");
        add(command, endpoints->scheduler);
    }
    for (uint32_t index = 0; index < inherited_count; index++) {
        char *number = command->numbers[1 + index];
        const char *ring_of = inherited[index].ring_of;
        (void)snprintf(number, NUMBER_SIZE_BYTES, "%s%s%d", ring_of != NULL ? ring_of : "",
                       ring_of != NULL ? "=" : "", inherited[index].fd);
        add(command, inherited[index].option);
        add(command, number);
    }
    return STATUS_OK;
}

/* In the child: only calls that are safe after the fork of a process with threads. */
static void
run_child(const command_t *command, pid_t parent, int error_fd, const actor_inherited_t *inherited,
          uint32_t inherited_count)
{
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(ACTOR_EXIT_CONFIG); /* it died before we asked to be told */
    }
    /* SIGTERM waits until the actor can take it: before its handler is there, it would be an end
     * by a signal and not the orderly one that was asked for. */
    sigset_t mask;
    (void)sigemptyset(&mask);
    (void)sigaddset(&mask, SIGTERM);
    (void)sigprocmask(SIG_SETMASK, &mask, NULL);
    (void)signal(SIGPIPE, SIG_DFL);
    int null_fd = open("/dev/null", O_RDONLY);
    if (null_fd >= 0) {
        (void)dup2(null_fd, STDIN_FILENO);
    }
    (void)dup2(error_fd, STDERR_FILENO);
    (void)syscall(SYS_close_range, 3U, ~0U, 4U /* CLOSE_RANGE_CLOEXEC */);
    for (uint32_t index = 0; index < inherited_count; index++) {
        (void)fcntl(inherited[index].fd, F_SETFD, 0);
    }
    (void)execv(command->argv[0], (char *const *)command->argv);
    static const char message[] = "{\"level\":\"error\",\"event\":\"supervisor.exec\",\"msg\":"
                                  "\"the program cannot be executed\"}\n";
    ssize_t written = write(STDERR_FILENO, message, sizeof message - 1);
    (void)written;
    _exit(ACTOR_EXIT_CONFIG);
}

proto_status_t
actor_process_start(actor_process_t *self, const actor_supervisor_child_t *child, uint64_t epoch,
                    const actor_process_endpoints_t *endpoints, const actor_inherited_t *inherited,
                    uint32_t inherited_count)
{
    require(self->pid == 0);
    require(inherited_count <= ACTOR_SUPERVISOR_CHILD_COUNT_MAX);

    command_t command;
    proto_status_t status =
        make_command(&command, child, epoch, endpoints, inherited, inherited_count);
    if (status != STATUS_OK) {
        goto err;
    }
    status = STATUS_ERR_IO;
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
        goto err;
    }
    /* Neither end waits for the other: a child must not stand still because nobody reads its
     * log, and we must not because it writes none. */
    (void)fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK);
    (void)fcntl(pipe_fds[1], F_SETFL, O_NONBLOCK);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid < 0) {
        goto err_close_pipe;
    }
    if (pid == 0) {
        run_child(&command, parent, pipe_fds[1], inherited, inherited_count);
    }
    (void)setpgid(pid, pid); /* both sides do it: whoever comes first */
    (void)close(pipe_fds[1]);
    self->pid = pid;
    self->error_fd = pipe_fds[0];
    self->pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (self->pid_fd >= 0) {
        (void)fcntl(self->pid_fd, F_SETFD, FD_CLOEXEC);
    }
    self->partial_size = 0;
    self->line_count = 0;
    self->line_next = 0;
    return STATUS_OK;

err_close_pipe:
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
err:
    return status;
}

void
actor_process_signal(const actor_process_t *self, int signal_number)
{
    if (self->pid > 0 && kill(-self->pid, signal_number) != 0) {
        (void)kill(self->pid, signal_number);
    }
}

/* Passes a whole line on, so that lines of several children never mix, and keeps it. */
static void
keep_line(actor_process_t *self)
{
    self->partial[self->partial_size] = '\n';
    actor_log_forward(self->partial, self->partial_size + 1);
    char *line = self->lines[self->line_next];
    memcpy(line, self->partial, self->partial_size);
    line[self->partial_size] = '\0';
    self->line_next = (self->line_next + 1) % ACTOR_SUPERVISOR_LOG_LINES;
    self->line_count += self->line_count < ACTOR_SUPERVISOR_LOG_LINES ? 1 : 0;
    self->partial_size = 0;
}

proto_status_t
actor_process_reap(actor_process_t *self)
{
    int status = 0;
    if (self->pid <= 0 || waitpid(self->pid, &status, WNOHANG) != self->pid) {
        return STATUS_AGAIN;
    }
    self->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    self->exit_signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    (void)kill(-self->pid, SIGKILL); /* whatever it had started itself */
    self->pid = 0;
    if (self->pid_fd >= 0) {
        (void)close(self->pid_fd);
        self->pid_fd = -1;
    }
    actor_process_read(self);
    if (self->partial_size > 0) {
        keep_line(self);
    }
    if (self->error_fd >= 0) {
        (void)close(self->error_fd);
        self->error_fd = -1;
    }
    return STATUS_OK;
}

void
actor_process_read(actor_process_t *self)
{
    char bytes[READ_SIZE_BYTES];
    /* A few rounds at most: a child that never stops writing must not hold us up. */
    for (uint32_t round = 0; round < 8 && self->error_fd >= 0; round++) {
        ssize_t size = read(self->error_fd, bytes, sizeof bytes);
        if (size < 0) {
            return; /* nothing now */
        }
        if (size == 0) {
            (void)close(self->error_fd);
            self->error_fd = -1;
            return;
        }
        for (ssize_t index = 0; index < size; index++) {
            if (bytes[index] == '\n') {
                keep_line(self);
            } else if (self->partial_size < sizeof self->partial - 1) {
                self->partial[self->partial_size++] = bytes[index];
            }
        }
    }
}

const char *
actor_process_line(const actor_process_t *self, uint32_t index)
{
    require(index < self->line_count);
    uint32_t first = self->line_count < ACTOR_SUPERVISOR_LOG_LINES ? 0 : self->line_next;
    return self->lines[(first + index) % ACTOR_SUPERVISOR_LOG_LINES];
}

void
actor_process_describe(const actor_process_t *self, char *out, size_t capacity_bytes)
{
    if (self->exit_signal != 0) {
        (void)snprintf(out, capacity_bytes, "signal %d (%s)", self->exit_signal,
                       strsignal(self->exit_signal));
    } else {
        (void)snprintf(out, capacity_bytes, "exit code %d", self->exit_code);
    }
}
