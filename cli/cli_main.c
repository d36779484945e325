/* The onepath program: one executable, one command each for people and for the actors. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_commands.h"
#include "cli_node.h"
#include "proto_messages.h"

int
main(int argc, char **argv)
{
    /* For this program and those it starts (device_cuda.h), while there is one thread. */
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    if (argc < 2) {
        cli_commands_help(stderr);
        return CLI_EXIT_CONFIG;
    }
    for (uint32_t i = 0; i < cli_command_count; i++) {
        if (strcmp(argv[1], cli_commands[i].name) == 0) {
            return cli_commands[i].run(argc, argv);
        }
    }
    if (strcmp(argv[1], "version") == 0 || strcmp(argv[1], "--version") == 0) {
        printf("onepath %s, message schema %d (talks to %d and newer)\n", ONEPATH_VERSION,
               PROTO_SCHEMA_VERSION, PROTO_SCHEMA_VERSION_MIN);
        return CLI_EXIT_OK;
    }
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 ||
        strcmp(argv[1], "-h") == 0) {
        cli_commands_help(stdout);
        return CLI_EXIT_OK;
    }
    fprintf(stderr, "onepath: unknown command '%s'\n\n", argv[1]);
    cli_commands_help(stderr);
    return CLI_EXIT_CONFIG;
}
