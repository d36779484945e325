/* `onepath probe`: whether a node lives, has started, is ready; for kubelet and systemd. */
#include <stdio.h>
#include <string.h>

#include "actor_log.h"
#include "actor_view.h"
#include "cli_command.h"
#include "cli_node.h"

typedef struct {
    const char *run_dir;
} options_t;

static const cli_option_t options_table[] = {
    {"run-dir", CLI_OPTION_TEXT, offsetof(options_t, run_dir), 0, 0, "DIR",
     "of the node (found by itself if one node of this user runs here)", false},
};

static const cli_command_t probe_command = {
    .name = "probe",
    .usage = "probe alive|started|ready  [--run-dir DIR]",
    .text = "alive    the supervisor answers, whatever its actors do.\n"
            "started  every actor was ready once.\n"
            "ready    every actor is ready, and the node admits requests: it is not drained.\n"
            "For nodes without a gateway, which has the same at /health, /health/startup and\n"
            "/health/ready.  Exit codes: 0 yes, 1 no, 75 the node does not answer, 78 usage or no\n"
            "such node.",
    .examples = "  onepath probe ready\n"
                "  onepath probe alive --run-dir /run/onepath/node",
    .options = options_table,
    .node_option = "run-dir",
    .words = "alive started ready",
    .option_count = sizeof options_table / sizeof options_table[0],
    .word_count_min = 1,
    .word_count_max = 1,
};

enum { PROBE_ALIVE, PROBE_STARTED, PROBE_READY, PROBE_COUNT };

static int
judge(int probe, const actor_node_t *node)
{
    bool is_so = probe == PROBE_ALIVE ||
                 (probe == PROBE_STARTED && node->state != PROTO_NODE_STARTING) ||
                 (probe == PROBE_READY && node->state == PROTO_NODE_READY);
    printf("%s\n", actor_view_node_state_name(node->state));
    return is_so ? CLI_EXIT_OK : CLI_EXIT_FOUND;
}

int
cli_probe(int argc, char **argv)
{
    static const char *const names[PROBE_COUNT] = {"alive", "started", "ready"};
    options_t options = {.run_dir = NULL};
    cli_words_t words;
    proto_status_t status = cli_options_parse(&probe_command, argc, argv, 2, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    int probe = 0;
    while (probe < PROBE_COUNT && strcmp(words.words[0], names[probe]) != 0) {
        probe++;
    }
    if (probe == PROBE_COUNT) {
        fprintf(stderr, "onepath probe: '%s' is none of alive, started, ready\n", words.words[0]);
        return CLI_EXIT_CONFIG;
    }
    char run_dir[512];
    if (!cli_command_node("onepath probe", options.run_dir, run_dir, sizeof run_dir)) {
        return CLI_EXIT_CONFIG;
    }
    actor_log_options_t log = {.actor = "client", .level_min = ACTOR_LOG_ERROR};
    actor_log_configure(&log);
    char error[ACTOR_VIEW_DETAIL_SIZE_BYTES] = "the node does not answer";
    actor_view_t *view = NULL;
    const actor_node_t *node = NULL;
    status = actor_view_open(run_dir, &view, error);
    if (status == STATUS_OK) {
        status = actor_view_look(view, 0, &node);
    }
    int code = cli_command_exit(status);
    if (status == STATUS_OK) {
        code = judge(probe, node);
    } else {
        fprintf(stderr, "onepath probe: %s\n", error);
    }
    actor_view_close(&view);
    return code;
}
