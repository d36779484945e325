#include "cli_command.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "actor_command.h"
#include "actor_log.h"
#include "cli_node.h"

#define SECOND_NS UINT64_C(1000000000)

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
find_node(const char *program, char *out, size_t capacity_bytes)
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
                    "%s: several nodes run here: %s and %s/%s; say which "
                    "one with --run-dir\n",
                    program, out, base, entry->d_name);
            break;
        }
        (void)snprintf(out, capacity_bytes, "%s/%s", base, entry->d_name);
    }
    if (directory != NULL) {
        closedir(directory);
    }
    if (count == 0) {
        fprintf(stderr,
                "%s: no node of this user runs here (looked for %s/%s*); say where "
                "with --run-dir\n",
                program, base, prefix);
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
        status == STATUS_ERR_INVALID || status == STATUS_ERR_UNSUPPORTED) {
        return CLI_EXIT_CONFIG;
    }
    if (status == STATUS_ERR_DEADLINE || status == STATUS_ERR_OVERLOADED ||
        status == STATUS_ERR_PEER_LOST) {
        return CLI_EXIT_TEMPORARY;
    }
    return CLI_EXIT_FOUND;
}

bool
cli_command_node(const char *program, const char *run_dir, char *out, size_t capacity_bytes)
{
    if (run_dir == NULL) {
        return find_node(program, out, capacity_bytes);
    }
    (void)snprintf(out, capacity_bytes, "%s", run_dir);
    return true;
}

int
cli_command_exit(proto_status_t status)
{
    return exit_code(status);
}

int
cli_command_send(const char *program, const char *run_dir, const char *verb, const char *argument)
{
    char found[512];
    if (run_dir == NULL && !find_node(program, found, sizeof found)) {
        return CLI_EXIT_CONFIG;
    }
    actor_log_options_t log = {.actor = "client", .level_min = ACTOR_LOG_ERROR};
    actor_log_configure(&log);
    char answer[ACTOR_COMMAND_ANSWER_SIZE_BYTES] = "";
    const actor_command_t command = {
        .run_dir = run_dir != NULL ? run_dir : found,
        .verb = verb,
        .argument = argument,
        .timeout_ns = ACTOR_COMMAND_TIMEOUT_S * SECOND_NS,
    };
    proto_status_t status = actor_command_send(&command, answer);
    if (status == STATUS_OK) {
        printf("%s\n", answer);
    } else {
        fprintf(stderr, "%s: %s\n", program, answer);
    }
    return exit_code(status);
}
