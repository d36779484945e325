/* `onepath scheduler`: which scheduler plans for a running node, and the change to another. */
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

static const cli_command_t scheduler_command = {
    .name = "scheduler",
    .usage = "scheduler attach ENDPOINT | builtin | show  [--run-dir DIR]",
    .text =
        "attach   lets the scheduler that listens at ENDPOINT (ipc://... or tcp://127.0.0.1:N)\n"
        "         plan for a running node.  Requests that run are taken along.  If nobody\n"
        "         answers there within 5 s, everything stays as it is.\n"
        "builtin  goes back to the built-in scheduler.\n"
        "show     says who is in charge, and whom each actor is linked to.\n"
        "When an attached scheduler dies, breaks the rules of plans again and again or answers\n"
        "nothing, the built-in one takes over (unless the node runs with --scheduler-stays).\n"
        "Exit codes: 0 done, 1 the scheduler is not there or not fit, 75 the node does not\n"
        "answer, 78 usage or no such node.",
    .examples = "  python3 examples/python/fcfs.py --endpoint ipc:///tmp/fcfs &\n"
                "  onepath scheduler attach ipc:///tmp/fcfs\n"
                "  onepath scheduler show\n"
                "  onepath scheduler builtin",
    .options = options_table,
    .node_option = "run-dir",
    .words = "attach builtin show",
    .option_count = sizeof options_table / sizeof options_table[0],
    .word_count_min = 1,
    .word_count_max = 2,
};

int
cli_scheduler(int argc, char **argv)
{
    options_t options = {.run_dir = NULL};
    cli_words_t words;
    proto_status_t status = cli_options_parse(&scheduler_command, argc, argv, 2, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    const char *verb = words.words[0];
    bool attaches = strcmp(verb, "attach") == 0;
    if (!attaches && strcmp(verb, "builtin") != 0 && strcmp(verb, "show") != 0) {
        fprintf(stderr, "onepath scheduler: '%s' is none of attach, builtin, show\n", verb);
        return CLI_EXIT_CONFIG;
    }
    if (words.count != (attaches ? 2u : 1u)) {
        fprintf(stderr, "onepath scheduler: %s\n",
                attaches ? "attach takes the endpoint where the scheduler listens"
                         : "this takes no further word");
        return CLI_EXIT_CONFIG;
    }
    char full[32];
    (void)snprintf(full, sizeof full, "scheduler-%s", verb);
    return cli_command_send("onepath scheduler", options.run_dir, full,
                            attaches ? words.words[1] : "");
}
