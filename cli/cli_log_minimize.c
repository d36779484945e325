/* `onepath log minimize`: runs the command; what is tried next is up to log/. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli_log.h"
#include "log_minimize.h"
#include "proto_clock.h"

extern char **environ;

enum { CODE_TIMEOUT = 512, CODE_SIGNAL = 256, POLL_MS = 2 };

typedef struct {
    const char *cmd;
    const char *actor;
    uint32_t runs;
    uint32_t timeout_s;
    bool verbose;
} minimize_options_t;

static const cli_option_t minimize_cli_options[] = {
    {"cmd", CLI_OPTION_TEXT, offsetof(minimize_options_t, cmd), 0, 0, "COMMAND",
     "run by sh; {log} stands for the log, or it comes last", false},
    {"max-runs", CLI_OPTION_U32, offsetof(minimize_options_t, runs), 1, 1000000, "COUNT",
     "end after so many runs of the command (500)", false},
    {"timeout", CLI_OPTION_U32, offsetof(minimize_options_t, timeout_s), 1, 86400, "SECONDS",
     "a run that takes longer is ended, and is another failure (60)", false},
    {"verbose", CLI_OPTION_FLAG, offsetof(minimize_options_t, verbose), 0, 0, NULL,
     "let the command print", false},
    {"actor", CLI_OPTION_TEXT, offsetof(minimize_options_t, actor), 0, 0, "NAME",
     "only this actor, by name or role", false},
};

static const cli_command_t minimize_command = {
    .name = "log minimize",
    .usage = "log minimize PATH... OUT --cmd COMMAND",
    .text =
        "Takes out of a log whole requests, then inputs with what they caused, then fields, for "
        "as\n"
        "long as the command, run on what is left, ends with the same exit code as on the whole "
        "log.\n"
        "Records are numbered anew, so the result replays. Choose a command whose code tells the\n"
        "failure apart: `log replay` ends with 2 when the actor dies, but with 1 for any "
        "divergence,\n"
        "and without its oracle nearly every shorter log diverges. OUT is a folder, or a name in\n"
        "*.alog for one actor. Ctrl-C ends the search and writes nothing.\n\n" CLI_LOG_EXIT_CODES,
    .examples = "  onepath log minimize ./log ./small.alog --actor scheduler \\\n"
                "      --cmd 'onepath log replay {log} --exec ./my_scheduler'",
    .options = minimize_cli_options,
    .option_count = sizeof minimize_cli_options / sizeof minimize_cli_options[0],
    .word_count_min = 2,
    .word_count_max = CLI_WORDS_LEN_MAX,
};

/* The command with each {log} replaced by the quoted path; the caller frees it. */
static char *
command_line(const char *command, const char *path)
{
    char *line = NULL;
    size_t size_bytes = 0;
    FILE *out = open_memstream(&line, &size_bytes);
    if (out == NULL) {
        return NULL;
    }
    bool has_place = strstr(command, "{log}") != NULL;
    for (const char *at = command; *at != '\0'; at++) {
        if (strncmp(at, "{log}", 5) == 0) {
            fprintf(out, "'%s'", path);
            at += 4;
        } else {
            fputc(*at, out);
        }
    }
    if (!has_place) {
        fprintf(out, " '%s'", path);
    }
    if (fclose(out) != 0) {
        free(line);
        return NULL;
    }
    return line;
}

static int
spawn_shell(char *line, bool verbose, pid_t *pid)
{
    static char shell[] = "/bin/sh", flag[] = "-c";
    char *words[] = {shell, flag, line, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    if (posix_spawn_file_actions_init(&actions) != 0) {
        return -1;
    }
    if (posix_spawnattr_init(&attributes) != 0) {
        (void)posix_spawn_file_actions_destroy(&actions);
        return -1;
    }
    /* A group of its own, so that a time limit ends all that the shell began. */
    int failed = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    failed |= posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (!verbose) {
        failed |= posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
        failed |= posix_spawn_file_actions_adddup2(&actions, 1, 2);
    } else {
        failed |= posix_spawn_file_actions_adddup2(&actions, 2, 1);
    }
    if (failed == 0) {
        failed = posix_spawn(pid, shell, &actions, &attributes, words, environ);
    }
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)posix_spawnattr_destroy(&attributes);
    return failed == 0 ? 0 : -1;
}

static volatile sig_atomic_t interrupted;

static void
on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* The exit code; a signal and the time limit are codes of their own; -1 if it could not be run. */
static int
run_command(void *context, const char *path)
{
    const minimize_options_t *options = context;
    char *line = command_line(options->cmd, path);
    pid_t pid = 0;
    if (line == NULL || interrupted || spawn_shell(line, options->verbose, &pid) != 0) {
        free(line);
        return -1;
    }
    free(line);
    const proto_clock_t *clock = proto_clock_system();
    uint64_t end_ns =
        proto_clock_monotonic_ns(clock) + (uint64_t)options->timeout_s * UINT64_C(1000000000);
    int code = -1, state = 0;
    for (;;) {
        pid_t ended = waitpid(pid, &state, WNOHANG);
        if (ended == pid) {
            code = code == CODE_TIMEOUT ? CODE_TIMEOUT
                   : WIFEXITED(state)   ? WEXITSTATUS(state)
                                        : CODE_SIGNAL + WTERMSIG(state);
            break;
        }
        if (ended < 0 && errno != EINTR) {
            break;
        }
        if (interrupted || proto_clock_monotonic_ns(clock) > end_ns) {
            code = CODE_TIMEOUT;
            (void)kill(-pid, SIGKILL);
        }
        (void)poll(NULL, 0, POLL_MS);
    }
    return interrupted ? -1 : code;
}

static void
print_result(const log_minimize_result_t *result)
{
    printf("%u run%s, exit code %d kept: %llu of %llu records, %u of %u requests, %u of %u inputs "
           "left, %u field%s cut%s\n",
           (unsigned)result->runs, cli_plural(result->runs), result->exit_code,
           (unsigned long long)result->records_after, (unsigned long long)result->records_before,
           (unsigned)result->requests_after, (unsigned)result->requests_before,
           (unsigned)result->inputs_after, (unsigned)result->inputs_before,
           (unsigned)result->fields_cut, cli_plural(result->fields_cut),
           result->is_exhausted ? "; --max-runs ended it, more may be possible" : "");
}

int
cli_log_minimize(int argc, char **argv)
{
    minimize_options_t options = {.runs = 500, .timeout_s = 60};
    cli_words_t words;
    int exit_code;
    if (!cli_log_parse(&minimize_command, argc, argv, &options, &words, &exit_code)) {
        return exit_code;
    }
    if (options.cmd == NULL || options.cmd[0] == '\0') {
        fprintf(stderr, "onepath log minimize: say what has to fail, with --cmd COMMAND\n");
        return CLI_EXIT_CONFIG;
    }
    log_set_options_t chosen = {.actor = options.actor};
    log_set_t *set = cli_log_open("minimize", &words, 0, words.count - 1, &chosen, &exit_code);
    if (set == NULL) {
        return exit_code;
    }
    char scratch[CLI_LOG_SCRATCH_SIZE_BYTES];
    if (!cli_log_make_scratch("minimize", scratch)) {
        log_set_close(&set);
        return CLI_EXIT_TEMPORARY;
    }
    struct sigaction action = {.sa_handler = on_interrupt};
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    log_minimize_options_t what = {.run = run_command,
                                   .context = &options,
                                   .scratch = scratch,
                                   .run_max = options.runs,
                                   .progress = stderr};
    log_minimize_result_t result;
    proto_error_t error = {{0}};
    proto_status_t status = log_minimize(set, &what, words.words[words.count - 1], &result, &error);
    if (status == STATUS_OK) {
        print_result(&result);
        exit_code = cli_log_report_damage("minimize", set);
    } else {
        exit_code = cli_log_fail("minimize", status,
                                 interrupted ? "stopped; nothing is written" : error.detail);
    }
    (void)rmdir(scratch);
    log_set_close(&set);
    return exit_code;
}
