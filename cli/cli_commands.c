#include "cli_commands.h"

#include <string.h>

#include "cli_log.h"
#include "cli_node.h"
#include "proto_require.h"

const cli_entry_t cli_commands[] = {
    {"serve", cli_serve, "serve a model on this machine"},
    {"up", cli_up, "start a node of a cluster file on this machine"},
    {"demo", cli_demo, "start a node, ask it one question, show what each actor did"},
    {"doctor", cli_doctor, "what this machine has, what is missing, what to type"},
    {"config", cli_config, "check a cluster file, show every setting and its origin"},
    {"bench", cli_bench, "measure a server: rate, latencies, errors"},
    {"ps", cli_ps, "the actors and requests of a running node, and why each one waits"},
    {"probe", cli_probe, "whether a node lives, has started, is ready"},
    {"top", cli_top, "a running node as it changes: actors, links, cache, requests"},
    {"drain", cli_drain, "admit nothing new, finish what is open; can be taken back"},
    {"undrain", cli_undrain, "take a drain back"},
    {"level", cli_level, "how much an actor of a running node logs"},
    {"report", cli_report, "what a bug report needs, in one file, without prompts"},
    {"log", cli_log, "show, measure, compare, cut, repair and replay recorded messages"},
    {"scheduler", cli_scheduler, "attach another scheduler to a running node, and go back"},
    {"executor", cli_executor, "check a running executor's graphs, switch them off and on"},
    {"keygen", cli_keygen, "make the keys of links between machines"},
    {"sim", cli_sim, "run a whole node in one thread, with faults, from one seed"},
    {"conform", cli_conform, "check a scheduler against every rule of the protocol"},
    {"actor", cli_actor, "run one actor (what `serve` starts)"},
    {"protocol", cli_protocol, "the messages, also as JSON for other languages"},
    {"completion", cli_completion, "completion of commands and options, for a shell"},
    {"man", cli_man, "the manual pages"},
};
const uint32_t cli_command_count = sizeof cli_commands / sizeof cli_commands[0];

void
cli_commands_help(FILE *stream)
{
    fprintf(stream, "usage: onepath COMMAND [OPTIONS]\n\n"
                    "  onepath serve model.gguf --port 8000\n"
                    "  onepath log show LOGDIR/scheduler.*.alog\n\n");
    for (uint32_t i = 0; i < cli_command_count; i++) {
        fprintf(stream, "  %-10s %s\n", cli_commands[i].name, cli_commands[i].text);
    }
    fprintf(stream, "  %-10s %s\n\nonepath COMMAND --help says more.\n", "version",
            "print the version");
}

typedef struct {
    cli_commands_visit_t visit;
    void *context;
    cli_seen_t seen;
} relay_t;

static void
pass_on(void *context, const cli_command_t *command)
{
    relay_t *relay = context;
    relay->seen.command = command;
    relay->visit(relay->context, &relay->seen);
}

void
cli_commands_each(cli_commands_visit_t visit, void *context)
{
    relay_t relay = {.visit = visit, .context = context};
    char name[] = "onepath", first[] = "", second[] = "";
    char *argv[] = {name, first, second, NULL};
    cli_options_set_visitor(pass_on, &relay);
    for (uint32_t i = 0; i < cli_command_count; i++) {
        relay.seen.text = cli_commands[i].text;
        (void)snprintf(relay.seen.name, sizeof relay.seen.name, "%s", cli_commands[i].name);
        if (cli_commands[i].run != cli_log) {
            int code = cli_commands[i].run(2, argv);
            require(code == CLI_EXIT_OK);
            continue;
        }
        for (uint32_t k = 0; k < cli_log_command_count; k++) {
            relay.seen.text = cli_log_commands[k].text;
            (void)snprintf(relay.seen.name, sizeof relay.seen.name, "log %s",
                           cli_log_commands[k].name);
            int code = cli_log_commands[k].run(CLI_LOG_FIRST_WORD, argv);
            require(code == CLI_EXIT_OK);
        }
    }
    cli_options_set_visitor(NULL, NULL);
}
