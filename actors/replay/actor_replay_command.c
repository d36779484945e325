#include "actor_replay_command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto_clock.h"

#define NAP_NS 2000000L

enum { COMMAND_SIZE_BYTES = 64 * 1024 };

/* In single quotes, so that the shell takes it as one word. */
static bool
add_quoted(char *out, size_t capacity_bytes, size_t *length, const char *text)
{
    char quoted[2 * ACTOR_REPLAY_PATH_SIZE_BYTES];
    size_t at = 0;
    quoted[at++] = '\'';
    for (; *text != '\0' && at + 8 < sizeof quoted; text++) {
        if (*text == '\'') { /* ends the quotes, a quote of its own, begins them again */
            quoted[at++] = '\'';
            quoted[at++] = '\\';
            quoted[at++] = '\'';
        }
        quoted[at++] = *text;
    }
    quoted[at++] = '\'';
    if (*text != '\0' || at >= capacity_bytes - *length) {
        return false;
    }
    memcpy(out + *length, quoted, at);
    *length += at;
    return true;
}

static bool
fill_command(const char *command, const char *const *paths, uint32_t path_count, char *out,
             size_t capacity_bytes)
{
    size_t length = 0;
    while (*command != '\0') {
        if (length + 2 >= capacity_bytes) {
            return false;
        }
        if (strncmp(command, "{log}", 5) != 0) {
            out[length++] = *command++;
            continue;
        }
        command += 5;
        for (uint32_t i = 0; i < path_count; i++) {
            if (i > 0) {
                out[length++] = ' ';
            }
            if (!add_quoted(out, capacity_bytes - 2, &length, paths[i])) {
                return false;
            }
        }
    }
    out[length] = '\0';
    return true;
}

static void
run_command(const char *text, const char *output)
{
    (void)setpgid(0, 0);
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out_fd = output != NULL ? open(output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)
                                : STDERR_FILENO;
    if (null_fd < 0 || out_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 ||
        dup2(out_fd, STDOUT_FILENO) < 0) {
        _exit(126);
    }
    (void)execl("/bin/sh", "sh", "-c", text, (char *)NULL);
    _exit(127);
}

proto_status_t
actor_replay_command_run(const char *command, const char *const *paths, uint32_t path_count,
                         const char *output, uint64_t timeout_ns, int *exit_code)
{
    static char text[COMMAND_SIZE_BYTES];
    if (!fill_command(command, paths, path_count, text, sizeof text)) {
        return STATUS_ERR_TOO_LARGE;
    }
    (void)fflush(stdout);
    (void)fflush(stderr);
    pid_t child = fork();
    if (child < 0) {
        return STATUS_ERR_IO;
    }
    if (child == 0) {
        run_command(text, output);
    }
    const proto_clock_t *clock = proto_clock_system();
    uint64_t begin_ns = proto_clock_monotonic_ns(clock);
    int wait_status = 0;
    for (;;) {
        pid_t got = waitpid(child, &wait_status, WNOHANG);
        if (got == child) {
            *exit_code =
                WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
            return STATUS_OK;
        }
        if (got < 0 && errno != EINTR) {
            return STATUS_ERR_IO;
        }
        if (proto_clock_monotonic_ns(clock) - begin_ns > timeout_ns) {
            (void)kill(-child, SIGKILL);
            (void)kill(child, SIGKILL);
            (void)waitpid(child, &wait_status, 0);
            *exit_code = 124;
            return STATUS_OK;
        }
        (void)nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
}
