/* `onepath ps`: the actors and requests of a running node, and why each request waits. */
#include <stdio.h>
#include <string.h>

#include "actor_log.h"
#include "cli_command.h"
#include "cli_look.h"
#include "cli_node.h"

typedef struct {
    const char *run_dir;
    bool waiting;
    bool json;
} options_t;

static const cli_option_t options_table[] = {
    {"waiting", CLI_OPTION_FLAG, offsetof(options_t, waiting), 0, 0, NULL,
     "only requests that wait: for what, and who has it", false},
    {"json", CLI_OPTION_FLAG, offsetof(options_t, json), 0, 0, NULL,
     "one JSON document with everything", false},
    {"run-dir", CLI_OPTION_TEXT, offsetof(options_t, run_dir), 0, 0, "DIR",
     "of the node (found by itself if one node of this user runs here)", false},
};

static const cli_command_t ps_command = {
    .name = "ps",
    .usage = "ps [--waiting] [--json] [--run-dir DIR]",
    .text = "Shows the actors of a running node, and its requests: how far each one is, and what\n"
            "it waits for: the resource, how much of it is missing, and which request or step\n"
            "has it.  Looking changes nothing.\n"
            "Exit codes: 0 done, 75 the node does not answer or has just ended, 78 usage or no\n"
            "such node.",
    .examples = "  onepath ps\n"
                "  onepath ps --waiting\n"
                "  onepath ps --json | jq '.requests[] | select(.waits_for==\"blocks\")'",
    .options = options_table,
    .node_option = "run-dir",
    .option_count = sizeof options_table / sizeof options_table[0],
};

static void
print_actors(const actor_node_t *node)
{
    printf("%-14s %-9s %8s %7s %7s %7s %8s %s\n", "ACTOR", "STATE", "PID", "UP", "BEAT", "RSS",
           "RESTARTS", "SAYS");
    for (uint32_t i = 0; i < node->actor_count; i++) {
        const actor_view_actor_t *actor = &node->actors[i];
        char up[16], beat[16] = "-", size[16];
        cli_look_duration(actor->uptime_ms, up);
        if (actor->role != PROTO_ROLE_SUPERVISOR && actor->pid != 0) {
            cli_look_duration(actor->beat_age_ms, beat);
        }
        cli_look_size(actor->resident_bytes, size);
        printf("%-14s %-9s %8u %7s %7s %7s %8u %s\n", actor->name,
               actor->pid != 0 ? actor_view_actor_state_name(actor->state) : "down", actor->pid, up,
               beat, size, actor->exits + actor->signals + actor->hangs, actor->detail);
    }
}

static void
print_requests(const actor_node_t *node, const cli_look_requests_t *requests, bool waiting)
{
    uint32_t shown = 0;
    for (uint32_t i = 0; i < requests->count; i++) {
        shown += !waiting || cli_look_waits(&requests->requests[i]) ? 1 : 0;
    }
    printf(waiting ? "%u of %u requests wait\n" : "%u of %u requests\n", shown, requests->total);
    if (node->scheduler_requests.status != STATUS_OK) {
        printf("(%s)\n", node->scheduler_requests.detail);
    }
    if (shown == 0) {
        return;
    }
    printf("%-26s %-9s %7s %15s %7s  %s\n", "REQUEST", "STATE", "AGE", "TOKENS", "BLOCKS",
           "WAITS FOR");
    for (uint32_t i = 0; i < requests->count; i++) {
        const cli_look_request_t *request = &requests->requests[i];
        if (waiting && !cli_look_waits(request)) {
            continue;
        }
        char age[16], tokens[40];
        cli_look_duration(request->row.age_ms, age);
        (void)snprintf(tokens, sizeof tokens, "%u+%u/%u", request->row.prompt_tokens,
                       request->row.generated_tokens, request->row.generation_max);
        printf("%-26s %-9s %7s %15s %7u  %s\n", request->row.name,
               actor_look_state_name(request->row.state), age, tokens, request->row.block_count,
               request->why);
    }
}

static void
print_all(const actor_node_t *node, const cli_look_requests_t *requests, bool waiting)
{
    if (!waiting) {
        printf("node: %s%s%s, scheduler: %s\n\n", actor_view_node_state_name(node->state),
               node->owner[0] != '\0' ? " by " : "", node->owner,
               node->scheduler[0] != '\0' ? node->scheduler : "built-in");
        print_actors(node);
        printf("\n");
    }
    print_requests(node, requests, waiting);
}

int
cli_ps(int argc, char **argv)
{
    options_t options = {.run_dir = NULL};
    cli_words_t words;
    proto_status_t status = cli_options_parse(&ps_command, argc, argv, 2, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    char run_dir[512];
    if (!cli_command_node("onepath ps", options.run_dir, run_dir, sizeof run_dir)) {
        return CLI_EXIT_CONFIG;
    }
    actor_log_options_t log = {.actor = "client", .level_min = ACTOR_LOG_ERROR};
    actor_log_configure(&log);
    char error[ACTOR_VIEW_DETAIL_SIZE_BYTES] = "";
    actor_view_t *view = NULL;
    const actor_node_t *node = NULL;
    cli_look_requests_t requests = {.count = 0};
    status = actor_view_open(run_dir, &view, error);
    if (status == STATUS_OK) {
        status = actor_view_look(view, CLI_LOOK_ROWS_MAX, &node);
    }
    if (status == STATUS_OK) {
        status = cli_look_merge(node, &requests);
    }
    if (status != STATUS_OK) {
        fprintf(stderr, "onepath ps: %s\n",
                error[0] != '\0' ? error : "the node does not answer, or has just ended");
    } else if (options.json) {
        status = cli_look_json(stdout, node, &requests, NULL);
    } else {
        print_all(node, &requests, options.waiting);
    }
    cli_look_fini(&requests);
    actor_view_close(&view);
    return cli_command_exit(status);
}
