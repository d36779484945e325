/* The node that `onepath bench -- MODEL ...` starts for itself, and ends. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli_bench.h"
#include "cli_node.h"
#include "proto_require.h"

enum { ARGUMENTS_MAX = 128 };

static struct {
    pid_t process;
    FILE *lines; /* its stderr */
    pthread_t copier;
    bool copies;
} node;

/* So that a full pipe never holds the node up, and its warnings are seen. */
static void *
copy_lines(void *context)
{
    (void)context;
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, node.lines) >= 0) {
        (void)fputs(line, stderr);
    }
    free(line);
    return NULL;
}

static void
become_node(char *const *arguments, int write_fd)
{
    static char program[] = "/proc/self/exe";
    static char name[] = "onepath", serve[] = "serve", port[] = "--port", zero[] = "0";
    char *argv[ARGUMENTS_MAX + 6] = {name, serve};
    size_t count = 2;
    for (size_t i = 0; arguments[i] != NULL; i++) {
        argv[count++] = arguments[i];
    }
    argv[count++] = port;
    argv[count++] = zero;
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)setpgid(0, 0); /* the terminal's interrupt is for the generator; it ends the node */
    (void)dup2(write_fd, STDERR_FILENO);
    (void)dup2(STDERR_FILENO, STDOUT_FILENO);
    (void)execv(program, argv);
    _exit(127);
}

static int
wait_for_end(void)
{
    int status = 0;
    while (waitpid(node.process, &status, 0) < 0 && errno == EINTR) {
    }
    node.process = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

proto_status_t
cli_bench_node_start(char *const *arguments, cli_bench_url_t *url, int *exit_code)
{
    size_t count = 0;
    while (arguments[count] != NULL) {
        count++;
    }
    if (count > ARGUMENTS_MAX) {
        fprintf(stderr, "onepath bench: %zu arguments after `--`; it takes %d at most\n", count,
                ARGUMENTS_MAX);
        *exit_code = CLI_EXIT_CONFIG;
        return STATUS_ERR_TOO_LARGE;
    }
    int fds[2];
    if (pipe(fds) != 0) {
        return STATUS_ERR_IO;
    }
    node.process = fork();
    if (node.process == 0) {
        (void)close(fds[0]);
        become_node(arguments, fds[1]);
    }
    (void)close(fds[1]);
    node.lines = node.process > 0 ? fdopen(fds[0], "r") : NULL;
    if (node.lines == NULL) {
        (void)close(fds[0]);
        if (node.process > 0) { /* nobody would read its lines, or end it */
            (void)kill(node.process, SIGTERM);
            (void)wait_for_end();
        }
        return STATUS_ERR_IO;
    }
    char *line = NULL;
    size_t capacity = 0;
    proto_status_t status = STATUS_ERR_PEER_LOST;
    while (status != STATUS_OK && getline(&line, &capacity, node.lines) >= 0) {
        (void)fputs(line, stderr);
        if (strncmp(line, "ready: ", 7) == 0) {
            line[strcspn(line, "\r\n")] = '\0';
            status = cli_bench_url_parse(line + 7, url);
        }
    }
    free(line);
    if (status != STATUS_OK) { /* end of file: it is gone */
        (void)fclose(node.lines);
        *exit_code = wait_for_end();
        return status;
    }
    node.copies = pthread_create(&node.copier, NULL, copy_lines, NULL) == 0;
    return STATUS_OK;
}

void
cli_bench_node_stop(void)
{
    require(node.process > 0);
    (void)kill(node.process, SIGTERM);
    (void)wait_for_end();
    if (node.copies) {
        (void)pthread_join(node.copier, NULL);
    }
    (void)fclose(node.lines);
}
