/* The onepath program: one executable, one command each for people and for the actors. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli_node.h"
#include "proto_messages.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *text;
} commands[] = {
    {"serve", cli_serve, "serve a model on this machine"},
    {"demo", cli_demo, "start a node, ask it one question, show what each actor did"},
    {"log", cli_log, "show, measure, compare, cut, repair and replay recorded messages"},
    {"scheduler", cli_scheduler, "attach another scheduler to a running node, and go back"},
    {"executor", cli_executor, "check a running executor's graphs, switch them off and on"},
    {"sim", cli_sim, "run a whole node in one thread, with faults, from one seed"},
    {"conform", cli_conform, "check a scheduler against every rule of the protocol"},
    {"bench", cli_bench, "measure a server: rate, latencies, errors"},
    {"actor", cli_actor, "run one actor (what `serve` starts)"},
    {"protocol", cli_protocol, "the messages, also as JSON for other languages"},
};

static void
help(FILE *stream)
{
    fprintf(stream, "usage: onepath COMMAND [OPTIONS]\n\n"
                    "  onepath serve model.gguf --port 8000\n"
                    "  onepath log show LOGDIR/scheduler.*.alog\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        fprintf(stream, "  %-9s %s\n", commands[i].name, commands[i].text);
    }
    fprintf(stream, "  %-9s %s\n\nonepath COMMAND --help says more.\n", "version",
            "print the version");
}

int
main(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return CLI_EXIT_CONFIG;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc, argv);
        }
    }
    if (strcmp(argv[1], "version") == 0 || strcmp(argv[1], "--version") == 0) {
        printf("onepath %s, message schema %d (talks to %d and newer)\n", ONEPATH_VERSION,
               PROTO_SCHEMA_VERSION, PROTO_SCHEMA_VERSION_MIN);
        return CLI_EXIT_OK;
    }
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 ||
        strcmp(argv[1], "-h") == 0) {
        help(stdout);
        return CLI_EXIT_OK;
    }
    fprintf(stderr, "onepath: unknown command '%s'\n\n", argv[1]);
    help(stderr);
    return CLI_EXIT_CONFIG;
}
