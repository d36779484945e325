/* `onepath drain` and `undrain`: a node that admits nothing new, until that is taken back; and
 * `onepath level`: how much an actor logs. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "actor_command.h"
#include "actor_log.h"
#include "actor_view.h"
#include "cli_command.h"
#include "cli_node.h"
#include "proto_clock.h"

enum { POLL_MS = 100 };

typedef struct {
    const char *run_dir;
    const char *owner;
    bool wait;
    uint32_t timeout_s;
    bool force;
} options_t;

#define RUN_DIR                                                                                    \
    {                                                                                              \
        "run-dir", CLI_OPTION_TEXT, offsetof(options_t, run_dir), 0, 0, "DIR",                     \
            "of the node (found by itself if one node of this user runs here)", false              \
    }
#define OWNER                                                                                      \
    {                                                                                              \
        "owner", CLI_OPTION_TEXT, offsetof(options_t, owner), 0, 0, "NAME",                        \
            "whose drain it is: only the owner takes it back (default: operator)", false           \
    }

static const cli_option_t drain_options[] = {
    OWNER,
    {"wait", CLI_OPTION_FLAG, offsetof(options_t, wait), 0, 0, NULL,
     "return when no request is open any more", false},
    {"timeout", CLI_OPTION_U32, offsetof(options_t, timeout_s), 1, 86400, "SECONDS",
     "of --wait (default: 60)", false},
    RUN_DIR,
};

static const cli_option_t undrain_options[] = {
    OWNER,
    {"force", CLI_OPTION_FLAG, offsetof(options_t, force), 0, 0, NULL,
     "also take back the drain of another owner", false},
    RUN_DIR,
};

static const cli_option_t level_options[] = {RUN_DIR};

static const cli_command_t drain_command = {
    .name = "drain",
    .usage = "drain [--wait] [--owner NAME] [--run-dir DIR]",
    .text = "The node admits nothing new: /health/ready is 503 at once, requests that would\n"
            "generate are 503 with Retry-After, those that are open go on.  Nothing ends; what\n"
            "is drained can be taken back with `undrain`.\n"
            "Exit codes: 0 done; 1 it is drained by another owner; 75 --wait: requests were\n"
            "still open, or the node does not answer; 78 usage or no such node.",
    .examples = "  onepath drain --wait --timeout 60      # as a preStop hook\n"
                "  onepath drain --owner rollout-7",
    .options = drain_options,
    .node_option = "run-dir",
    .option_count = sizeof drain_options / sizeof drain_options[0],
};

static const cli_command_t undrain_command = {
    .name = "undrain",
    .usage = "undrain [--owner NAME | --force] [--run-dir DIR]",
    .text = "Takes a drain back: requests are admitted again at once.\n"
            "Exit codes: 0 done, also if there was no drain; 1 it is another owner's; 75 the node\n"
            "does not answer; 78 usage or no such node.",
    .examples = "  onepath undrain\n"
                "  onepath undrain --owner rollout-7",
    .options = undrain_options,
    .node_option = "run-dir",
    .option_count = sizeof undrain_options / sizeof undrain_options[0],
};

static const cli_command_t level_command = {
    .name = "level",
    .usage = "level ACTOR|all debug|info|warn|error  [--run-dir DIR]",
    .text = "Sets how much an actor of a running node logs, until it is set again or the actor\n"
            "is started again (then it is --log-level).\n"
            "Exit codes: 0 done, 1 no such level, 75 the actor is not there at the moment, 78\n"
            "usage, no such node or actor.",
    .examples = "  onepath level scheduler debug\n"
                "  onepath level all info",
    .options = level_options,
    .node_option = "run-dir",
    .option_count = sizeof level_options / sizeof level_options[0],
    .word_count_min = 2,
    .word_count_max = 2,
};

/* Looks until nothing is open; the time's up otherwise. */
static int
wait_until_idle(const char *run_dir, uint32_t timeout_s)
{
    const proto_clock_t *clock = proto_clock_system();
    uint64_t until_ns = proto_clock_monotonic_ns(clock) + timeout_s * UINT64_C(1000000000);
    char error[ACTOR_VIEW_DETAIL_SIZE_BYTES] = "";
    actor_view_t *view = NULL;
    const actor_node_t *node = NULL;
    proto_status_t status = actor_view_open(run_dir, &view, error);
    bool idle = false;
    while (status == STATUS_OK && !idle && proto_clock_monotonic_ns(clock) < until_ns) {
        status = actor_view_look(view, 1, &node);
        idle = status == STATUS_OK && node->gateway.status == STATUS_OK &&
               node->gateway.total == 0 && node->scheduler_requests.total == 0;
        if (status == STATUS_OK && !idle) {
            (void)usleep(POLL_MS * 1000);
        }
    }
    uint32_t left = node != NULL ? node->gateway.total : 0;
    actor_view_close(&view);
    if (status != STATUS_OK) {
        fprintf(stderr, "onepath drain: %s\n", error[0] != '\0' ? error : "the node has ended");
        return CLI_EXIT_TEMPORARY;
    }
    if (!idle) {
        fprintf(stderr, "onepath drain: %u requests are still open after %u s\n", left, timeout_s);
        return CLI_EXIT_TEMPORARY;
    }
    printf("no request is open\n");
    return CLI_EXIT_OK;
}

static bool
parse(const cli_command_t *command, int argc, char **argv, options_t *options, cli_words_t *words,
      int *code)
{
    *options = (options_t){.owner = "operator", .timeout_s = 60};
    proto_status_t status = cli_options_parse(command, argc, argv, 2, options, words);
    *code = status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    return status == STATUS_OK;
}

int
cli_drain(int argc, char **argv)
{
    options_t options;
    cli_words_t words;
    int code = 0;
    char run_dir[512];
    if (!parse(&drain_command, argc, argv, &options, &words, &code)) {
        return code;
    }
    if (!cli_command_node("onepath drain", options.run_dir, run_dir, sizeof run_dir)) {
        return CLI_EXIT_CONFIG;
    }
    code = cli_command_send("onepath drain", run_dir, "drain", options.owner);
    return code == CLI_EXIT_OK && options.wait ? wait_until_idle(run_dir, options.timeout_s) : code;
}

int
cli_undrain(int argc, char **argv)
{
    options_t options;
    cli_words_t words;
    int code = 0;
    if (!parse(&undrain_command, argc, argv, &options, &words, &code)) {
        return code;
    }
    return cli_command_send("onepath undrain", options.run_dir, "undrain",
                            options.force ? "*" : options.owner);
}

/* One command for each actor, so that each one's answer is seen. */
static int
set_all(const char *run_dir, const char *level)
{
    char error[ACTOR_VIEW_DETAIL_SIZE_BYTES] = "";
    actor_view_t *view = NULL;
    const actor_node_t *node = NULL;
    int code = CLI_EXIT_OK;
    proto_status_t status = actor_view_open(run_dir, &view, error);
    if (status == STATUS_OK) {
        status = actor_view_look(view, 0, &node);
    }
    for (uint32_t i = 0; status == STATUS_OK && i < node->actor_count; i++) {
        char argument[64];
        (void)snprintf(argument, sizeof argument, "%s %s", node->actors[i].name, level);
        printf("%s: ", node->actors[i].name);
        fflush(stdout);
        int one = cli_command_send("onepath level", run_dir, "log-level", argument);
        code = one != CLI_EXIT_OK ? one : code;
    }
    actor_view_close(&view);
    if (status != STATUS_OK) {
        fprintf(stderr, "onepath level: %s\n", error);
        return cli_command_exit(status);
    }
    return code;
}

int
cli_level(int argc, char **argv)
{
    options_t options;
    cli_words_t words;
    int code = 0;
    char run_dir[512];
    if (!parse(&level_command, argc, argv, &options, &words, &code)) {
        return code;
    }
    actor_log_level_t level;
    if (!actor_log_level_parse(words.words[1], &level)) {
        fprintf(stderr, "onepath level: '%s' is none of debug, info, warn, error\n",
                words.words[1]);
        return CLI_EXIT_CONFIG;
    }
    if (!cli_command_node("onepath level", options.run_dir, run_dir, sizeof run_dir)) {
        return CLI_EXIT_CONFIG;
    }
    actor_log_options_t log = {.actor = "client", .level_min = ACTOR_LOG_ERROR};
    actor_log_configure(&log);
    if (strcmp(words.words[0], "all") == 0) {
        return set_all(run_dir, words.words[1]);
    }
    char argument[128];
    (void)snprintf(argument, sizeof argument, "%.80s %s", words.words[0], words.words[1]);
    return cli_command_send("onepath level", run_dir, "log-level", argument);
}
