/* `onepath executor`: a look at how a running executor computes. */
#include <stdio.h>
#include <string.h>

#include "cli_command.h"
#include "cli_node.h"

typedef struct {
    const char *run_dir;
} options_t;

static const cli_option_t options_table[] = {
    {"run-dir", CLI_OPTION_TEXT, offsetof(options_t, run_dir), 0, 0, "DIR",
     "of the node (found by itself if one node of this user runs here)", false},
};

static const cli_command_t executor_command = {
    .name = "executor",
    .usage = "executor check | graphs on | graphs off | show  [--run-dir DIR]",
    .text =
        "check    runs the next decode step both ways, eagerly and as its captured graph, and\n"
        "         names the first buffer that differs.  The answers of the node do not change.\n"
        "graphs   off: decode steps run eagerly from now on; on: their graphs are used again.\n"
        "         The tokens are the same either way.\n"
        "show     says what is captured and used.\n"
        "Exit codes: 0 done, no difference; 1 a difference, or nothing to compare; 75 no step\n"
        "came, the executor is not ready, busy or ended, or the node does not answer; 78 usage,\n"
        "no such node, or an executor that can do none of this (the null device).",
    .examples = "  onepath executor check\n"
                "  onepath executor graphs off",
    .options = options_table,
    .node_option = "run-dir",
    .words = "check graphs show",
    .option_count = sizeof options_table / sizeof options_table[0],
    .word_count_min = 1,
    .word_count_max = 2,
};

int
cli_executor(int argc, char **argv)
{
    options_t options = {.run_dir = NULL};
    cli_words_t words;
    proto_status_t status = cli_options_parse(&executor_command, argc, argv, 2, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    const char *verb = words.words[0];
    bool is_graphs = strcmp(verb, "graphs") == 0;
    if (!is_graphs && strcmp(verb, "check") != 0 && strcmp(verb, "show") != 0) {
        fprintf(stderr, "onepath executor: '%s' is none of check, graphs, show\n", verb);
        return CLI_EXIT_CONFIG;
    }
    const char *argument = words.count > 1 ? words.words[1] : "";
    bool is_switch = strcmp(argument, "on") == 0 || strcmp(argument, "off") == 0;
    if (is_graphs ? !is_switch : words.count > 1) {
        fprintf(stderr, "onepath executor: %s\n",
                is_graphs ? "graphs takes on or off" : "this takes no further word");
        return CLI_EXIT_CONFIG;
    }
    char full[32];
    (void)snprintf(full, sizeof full, "executor-%s", verb);
    return cli_command_send("onepath executor", options.run_dir, full, argument);
}
