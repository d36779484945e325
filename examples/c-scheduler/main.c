/* The program around the core: options, and the choice between a run and a replay. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fcfs.h"
#include "kit_scheduler.h"

enum { EXIT_USAGE = 78, QUEUE_LEN = 1024 };

static int
usage(const char *program)
{
    fprintf(stderr,
            "usage: %s [--endpoint ipc:///PATH] [--record FOLDER] [--queue-len COUNT] [--quiet]\n\n"
            "First come, first served.  Listens for gateways and an executor at the endpoint\n"
            "(ipc:///tmp/onepath-scheduler), writes its log into FOLDER, lets COUNT requests wait\n"
            "(1024); --quiet only says what is wrong.  Exit codes: 0 asked to end, 70 internal\n"
            "failure, 75 try again (endpoint in use), 78 options.\n\n"
            "  %s --endpoint ipc:///tmp/my-scheduler &\n"
            "  onepath serve MODEL --scheduler ipc:///tmp/my-scheduler\n",
            program, program);
    return EXIT_USAGE;
}

int
main(int argc, char **argv)
{
    kit_scheduler_options_t options = {.endpoint = "ipc:///tmp/onepath-scheduler",
                                       .ops = fcfs_ops()};
    unsigned long queue_len_max = QUEUE_LEN;
    for (int at = 1; at < argc; at++) {
        const char *value = at + 1 < argc ? argv[at + 1] : NULL;
        if (strcmp(argv[at], "--quiet") == 0) {
            options.quiet = true;
        } else if (value != NULL && strcmp(argv[at], "--endpoint") == 0) {
            options.endpoint = argv[++at];
        } else if (value != NULL && strcmp(argv[at], "--record") == 0) {
            options.record_dir = argv[++at];
        } else if (value != NULL && strcmp(argv[at], "--queue-len") == 0) {
            char *end = NULL;
            errno = 0;
            queue_len_max = strtoul(argv[++at], &end, 10);
            if (errno != 0 || *end != '\0' || queue_len_max < 1 || queue_len_max > 65536) {
                fprintf(stderr, "--queue-len is '%s'; it takes 1 to 65536\n", value);
                return EXIT_USAGE;
            }
        } else {
            return usage(argv[0]);
        }
    }
    fcfs_t *core = fcfs_new((uint32_t)queue_len_max);
    if (core == NULL) {
        fprintf(stderr, "%s: no memory\n", argv[0]);
        return EXIT_FAILURE;
    }
    options.core = core;
    int code = getenv("ONEPATH_REPLAY") != NULL ? kit_scheduler_replay(options.ops, core, 0, 1)
                                                : kit_scheduler_run(&options);
    fcfs_destroy(core);
    return code;
}
