/* Links over TCP on loopback, with and without CURVE keys. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "actor_keys.h"
#include "bench_actor_step.h"

/* A port that was free a moment ago. */
static unsigned
free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, size) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0) {
        die("there is no free port");
    }
    (void)close(fd);
    return ntohs(address.sin_port);
}

void
keys_make(node_t *node)
{
    (void)snprintf(node->gateway_endpoint, sizeof node->gateway_endpoint, "tcp://127.0.0.1:%u",
                   free_port());
    (void)snprintf(node->executor_endpoint, sizeof node->executor_endpoint, "tcp://127.0.0.1:%u",
                   free_port());
    if (actor_keys_make(node->folder, PROTO_ROLE_SCHEDULER, "scheduler") != STATUS_OK ||
        actor_keys_make(node->folder, PROTO_ROLE_EXECUTOR, "executor") != STATUS_OK ||
        actor_keys_make(node->folder, PROTO_ROLE_GATEWAY, "gateway") != STATUS_OK) {
        die("cannot make keys");
    }
}

void
keys_use(const node_t *node, const char *name)
{
    static actor_keys_t keys;
    if (!node->curve) {
        actor_keys_set_process(NULL, false);
        return;
    }
    if (actor_keys_load(node->folder, actor_keys_role(name), name, &keys) != STATUS_OK) {
        die("cannot read keys");
    }
    actor_keys_set_process(&keys, false);
}

void
keys_remove(const node_t *node)
{
    static const char *const names[] = {"scheduler.key", "executor.key", "gateway.key", "peers"};
    char path[128];
    for (size_t index = 0; index < sizeof names / sizeof names[0]; index++) {
        (void)snprintf(path, sizeof path, "%s/%s", node->folder, names[index]);
        (void)unlink(path);
    }
}
