/* `onepath scheduler`: which scheduler plans for a running node, and the change to another. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "actor_command.h"
#include "actor_log.h"
#include "cli_node.h"

#define TIMEOUT_NS UINT64_C(30000000000)

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
    .option_count = sizeof options_table / sizeof options_table[0],
    .word_count_min = 1,
    .word_count_max = 2,
};

/* True if somebody listens on the socket: a node that was killed leaves its own behind, and another
 * process may have its number by now. */
static bool
is_alive(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        return false;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool alive = fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return alive;
}

/* The one folder of a node of this user; false, with words, if there is none or more than one. */
static bool
find_node(char *out, size_t capacity_bytes)
{
    char base[64];
    char prefix[64];
    cli_node_run_base(base, sizeof base);
    (void)snprintf(prefix, sizeof prefix, "onepath-%ld-", (long)getuid());
    DIR *directory = opendir(base);
    uint32_t count = 0;
    const struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        char path[512];
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0) {
            continue;
        }
        (void)snprintf(path, sizeof path, "%s/%s/supervisor", base, entry->d_name);
        if (!is_alive(path)) {
            continue;
        }
        if (count++ > 0) {
            fprintf(stderr,
                    "onepath scheduler: several nodes run here: %s and %s/%s; say which "
                    "one with --run-dir\n",
                    out, base, entry->d_name);
            break;
        }
        (void)snprintf(out, capacity_bytes, "%s/%s", base, entry->d_name);
    }
    if (directory != NULL) {
        closedir(directory);
    }
    if (count == 0) {
        fprintf(stderr,
                "onepath scheduler: no node of this user runs here (looked for %s/%s*); say where "
                "with --run-dir\n",
                base, prefix);
    }
    return count == 1;
}

static int
exit_code(proto_status_t status)
{
    if (status == STATUS_OK) {
        return CLI_EXIT_OK;
    }
    if (status == STATUS_ERR_NOT_FOUND || status == STATUS_ERR_CONFIG ||
        status == STATUS_ERR_INVALID) {
        return CLI_EXIT_CONFIG;
    }
    return status == STATUS_ERR_DEADLINE || status == STATUS_ERR_OVERLOADED ? CLI_EXIT_TEMPORARY
                                                                            : CLI_EXIT_FOUND;
}

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
    char found[512];
    if (options.run_dir == NULL && !find_node(found, sizeof found)) {
        return CLI_EXIT_CONFIG;
    }
    actor_log_options_t log = {.actor = "client", .level_min = ACTOR_LOG_ERROR};
    actor_log_configure(&log);
    char full[32];
    (void)snprintf(full, sizeof full, "scheduler-%s", verb);
    char answer[ACTOR_COMMAND_ANSWER_SIZE_BYTES] = "";
    const actor_command_t command = {
        .run_dir = options.run_dir != NULL ? options.run_dir : found,
        .verb = full,
        .argument = attaches ? words.words[1] : "",
        .timeout_ns = TIMEOUT_NS,
    };
    status = actor_command_send(&command, answer);
    if (status == STATUS_OK) {
        printf("%s\n", answer);
    } else {
        fprintf(stderr, "onepath scheduler: %s\n", answer);
    }
    return exit_code(status);
}
