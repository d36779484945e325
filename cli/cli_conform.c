/* `onepath conform scheduler`: is this scheduler one that gateways and executors can live with? */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor_conform.h"
#include "actor_log.h"
#include "cli_node.h"

typedef struct {
    const char *endpoint;
    const char *gateway_endpoint;
    const char *executor_endpoint;
    const char *exec;
    const char *log_dir;
    const char *scene;
    int64_t seed;
    uint32_t patience_ms;
    bool fail_fast;
    bool json;
    bool verbose;
    bool list_rules;
    bool list_scenes;
    bool allow_remote;
} conform_options_t;

static const cli_option_t conform_cli_options[] = {
    {"endpoint", CLI_OPTION_TEXT, offsetof(conform_options_t, endpoint), 0, 0, "ENDPOINT",
     "where the scheduler listens for gateways and executors", false},
    {"gateway-endpoint", CLI_OPTION_TEXT, offsetof(conform_options_t, gateway_endpoint), 0, 0,
     "ENDPOINT", "where it listens for gateways, if that is another place", false},
    {"executor-endpoint", CLI_OPTION_TEXT, offsetof(conform_options_t, executor_endpoint), 0, 0,
     "ENDPOINT", "where it listens for executors, if that is another place", false},
    {"exec", CLI_OPTION_TEXT, offsetof(conform_options_t, exec), 0, 0, "COMMAND",
     "start the scheduler with this command, end it at last", false},
    {"seed", CLI_OPTION_I64, offsetof(conform_options_t, seed), 0, 0, "N",
     "of lengths, priorities and moments (1)", false},
    {"patience", CLI_OPTION_U32, offsetof(conform_options_t, patience_ms), 100, 600000, "MS",
     "how long one answer may take (2000)", false},
    {"scene", CLI_OPTION_TEXT, offsetof(conform_options_t, scene), 0, 0, "NAME",
     "play only scenes whose name begins so", false},
    {"fail-fast", CLI_OPTION_FLAG, offsetof(conform_options_t, fail_fast), 0, 0, NULL,
     "end at the first broken rule", false},
    {"log", CLI_OPTION_TEXT, offsetof(conform_options_t, log_dir), 0, 0, "FOLDER",
     "record the conversation there, for `onepath log show`", false},
    {"json", CLI_OPTION_FLAG, offsetof(conform_options_t, json), 0, 0, NULL, "the report as JSON",
     false},
    {"verbose", CLI_OPTION_FLAG, offsetof(conform_options_t, verbose), 0, 0, NULL,
     "also the rules that hold; scenes and links on stderr", false},
    {"list-rules", CLI_OPTION_FLAG, offsetof(conform_options_t, list_rules), 0, 0, NULL,
     "print the rules and where they are written down; play nothing", false},
    {"list-scenes", CLI_OPTION_FLAG, offsetof(conform_options_t, list_scenes), 0, 0, NULL,
     "print the scenes; play nothing", false},
    {"allow-remote", CLI_OPTION_FLAG, offsetof(conform_options_t, allow_remote), 0, 0, NULL,
     "permit endpoints on other machines: links are not encrypted", false},
};

static const cli_command_t conform_command = {
    .name = "conform",
    .usage = "conform scheduler --endpoint ENDPOINT [OPTIONS]",
    .text = "Plays gateways and an executor against a scheduler that listens at ENDPOINT, checks\n"
            "every rule of docs/scheduler-protocol.md and names those that it breaks, with the\n"
            "message and the values.  No model is needed; nothing else may use the scheduler.\n"
            "Exit codes: 0 it conforms; 1 a rule is broken, or the scheduler died or cannot be\n"
            "reached; 70 a failure of this command; 78 options.",
    .examples = "  onepath conform scheduler --endpoint ipc:///tmp/sched --exec './my_sched "
                "ipc:///tmp/sched'\n"
                "  onepath conform scheduler --endpoint tcp://127.0.0.1:5555 --json | jq "
                ".first_broken\n"
                "  onepath conform scheduler --list-rules",
    .words = "scheduler",
    .options = conform_cli_options,
    .option_count = sizeof conform_cli_options / sizeof conform_cli_options[0],
    .word_count_min = 1,
    .word_count_max = 1,
};

/* ---- the scheduler as a child ---------------------------------------------------------------- */

typedef struct {
    pid_t pid; /* 0 = none */
    bool has_ended;
    int code;
    bool verbose;
} child_t;

static void
look(child_t *child)
{
    int status = 0;
    if (child->pid <= 0 || child->has_ended ||
        waitpid(child->pid, &status, WNOHANG) != child->pid) {
        return;
    }
    child->has_ended = true;
    child->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static bool
child_is_alive(void *context)
{
    child_t *child = context;
    look(child);
    return !child->has_ended;
}

static void
child_ask_to_end(void *context)
{
    const child_t *child = context;
    (void)kill(-child->pid, SIGTERM);
}

static int
child_exit_code(void *context)
{
    child_t *child = context;
    look(child);
    return child->has_ended ? child->code : -1;
}

/* In a process group of its own, so that whatever it starts ends with it. */
static proto_status_t
child_start(child_t *child, const char *command)
{
    char line[4096];
    int size = snprintf(line, sizeof line, "exec %s", command);
    if (size < 0 || (size_t)size >= sizeof line) {
        fprintf(stderr, "onepath conform: --exec is longer than %zu bytes\n", sizeof line - 6);
        return STATUS_ERR_CONFIG;
    }
    pid_t pid = fork();
    if (pid < 0) {
        fprintf(stderr, "onepath conform: cannot start a process: %s\n", strerror(errno));
        return STATUS_ERR_IO;
    }
    if (pid == 0) {
        (void)setpgid(0, 0);
        (void)dup2(STDERR_FILENO, STDOUT_FILENO); /* stdout is for the report */
        (void)execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    (void)setpgid(pid, pid);
    child->pid = pid;
    return STATUS_OK;
}

static void
child_end(child_t *child)
{
    if (child->pid <= 0) {
        return;
    }
    look(child);
    if (!child->has_ended) {
        (void)kill(-child->pid, SIGKILL);
        int status = 0;
        while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR) {
        }
    }
    child->pid = 0;
}

/* ---- the command ----------------------------------------------------------------------------- */

static void
show_scene(void *context, const char *scene)
{
    const child_t *child = context;
    if (child->verbose) {
        fprintf(stderr, "scene %s\n", scene);
    }
}

static int
list(const conform_options_t *options)
{
    if (options->list_rules) {
        actor_conform_print_rules(stdout);
        return CLI_EXIT_OK;
    }
    for (uint32_t i = 0; actor_conform_scene_name(i) != NULL; i++) {
        printf("%-10s %s\n", actor_conform_scene_name(i), actor_conform_scene_text(i));
    }
    return CLI_EXIT_OK;
}

static proto_status_t
check(conform_options_t *options, const char *word)
{
    if (strcmp(word, "scheduler") != 0) {
        fprintf(stderr, "onepath conform: '%s' cannot be checked; there is: scheduler\n", word);
        return STATUS_ERR_CONFIG;
    }
    if (options->list_rules || options->list_scenes) {
        return STATUS_OK;
    }
    if (options->gateway_endpoint == NULL) {
        options->gateway_endpoint = options->endpoint;
    }
    if (options->executor_endpoint == NULL) {
        options->executor_endpoint = options->endpoint;
    }
    if (options->gateway_endpoint == NULL || options->executor_endpoint == NULL) {
        fprintf(stderr, "onepath conform: --endpoint is needed (or --gateway-endpoint and "
                        "--executor-endpoint): where the scheduler listens\n");
        return STATUS_ERR_CONFIG;
    }
    if (options->log_dir != NULL && mkdir(options->log_dir, 0700) != 0 && errno != EEXIST) {
        fprintf(stderr, "onepath conform: cannot make the folder '%s': %s; choose another --log\n",
                options->log_dir, strerror(errno));
        return STATUS_ERR_CONFIG;
    }
    if (options->scene != NULL) {
        uint32_t i = 0;
        while (actor_conform_scene_name(i) != NULL &&
               strncmp(actor_conform_scene_name(i), options->scene, strlen(options->scene)) != 0) {
            i++;
        }
        if (actor_conform_scene_name(i) == NULL) {
            fprintf(stderr, "onepath conform: no scene begins with '%s'; see --list-scenes\n",
                    options->scene);
            return STATUS_ERR_CONFIG;
        }
    }
    return STATUS_OK;
}

static int
run(const conform_options_t *options)
{
    child_t child = {.verbose = options->verbose};
    if (options->exec != NULL && child_start(&child, options->exec) != STATUS_OK) {
        return CLI_EXIT_INTERNAL;
    }
    actor_conform_options_t conform = {
        .gateway_endpoint = options->gateway_endpoint,
        .executor_endpoint = options->executor_endpoint,
        .seed = (uint64_t)options->seed,
        .patience_ms = options->patience_ms,
        .fail_fast = options->fail_fast,
        .allow_remote = options->allow_remote,
        .log_dir = options->log_dir,
        .scene = options->scene,
        .stop = &cli_stop,
        .progress = show_scene,
        .context = &child,
    };
    if (child.pid > 0) {
        conform.is_alive = child_is_alive;
        conform.ask_to_end = child_ask_to_end;
        conform.exit_code = child_exit_code;
    }
    static conform_report_t report;
    conform_run_t result = {.endpoint = options->gateway_endpoint};
    proto_status_t status = actor_conform_scheduler(&conform, &report, &result);
    child_end(&child);
    if (status != STATUS_OK && status != STATUS_ERR_PEER_LOST) {
        fprintf(stderr, "onepath conform: no run at %s: %s\n", options->gateway_endpoint,
                proto_status_text(status));
        return status == STATUS_ERR_CONFIG ? CLI_EXIT_CONFIG : CLI_EXIT_INTERNAL;
    }
    result.verbose = options->verbose;
    if (options->json) {
        actor_conform_print_json(&report, &result, stdout);
    } else {
        actor_conform_print(&report, &result, stdout);
    }
    if (options->log_dir != NULL && !options->json) {
        printf("recorded: onepath log show %s\n", options->log_dir);
    }
    bool conforms = status == STATUS_OK && report.failed_count == 0 && report.ended[0] == '\0';
    return conforms ? CLI_EXIT_OK : CLI_EXIT_FOUND;
}

int
cli_conform(int argc, char **argv)
{
    conform_options_t options = {.seed = 1, .patience_ms = 2000};
    cli_words_t words;
    proto_status_t status = cli_options_parse(&conform_command, argc, argv, 2, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    if (check(&options, words.words[0]) != STATUS_OK) {
        return CLI_EXIT_CONFIG;
    }
    if (options.list_rules || options.list_scenes) {
        return list(&options);
    }
    const actor_log_options_t log = {
        .actor = "conform",
        .level_min = options.verbose ? ACTOR_LOG_INFO : ACTOR_LOG_ERROR,
    };
    actor_log_configure(&log);
    cli_signals_install(false);
    return run(&options);
}
