#include "actor_command.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "actor_shell.h"
#include "proto_clock.h"

typedef struct {
    const actor_command_t *command;
    char *answer;
    uint64_t deadline_ns;
    bool done;
    proto_status_t status;
    actor_shell_t *shell;
} client_t;

static void
finish(client_t *self, proto_status_t status, proto_text_t text)
{
    self->done = true;
    self->status = status;
    (void)snprintf(self->answer, ACTOR_COMMAND_ANSWER_SIZE_BYTES, "%.*s", (int)text.size_bytes,
                   text.data != NULL ? text.data : "");
}

static void
client_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    client_t *self = core;
    if (self->done) {
        return;
    }
    if (input->header->kind == PROTO_KIND_PEER_UP) {
        proto_body_t body = {.command = {.verb = proto_text(self->command->verb),
                                         .argument = proto_text(self->command->argument)}};
        actor_outbox_push(outbox, (actor_peer_t){input->body->peer_up.peer}, PROTO_KIND_COMMAND, 0,
                          &body);
    } else if (input->header->kind == PROTO_KIND_COMMAND_DONE) {
        const proto_command_done_t *done = &input->body->command_done;
        finish(self, (proto_status_t)done->status, done->detail);
    } else if (input->header->kind == PROTO_KIND_PEER_DOWN) {
        finish(self, STATUS_ERR_PEER_LOST, proto_text("the node ended before it answered"));
    } else if (input->header->kind == PROTO_KIND_TIMER) {
        finish(self, STATUS_ERR_DEADLINE, proto_text("the node does not answer"));
    }
}

static uint64_t
client_deadline_ns(const void *core)
{
    const client_t *self = core;
    return self->done ? UINT64_MAX : self->deadline_ns;
}

static const actor_core_ops_t client_ops = {
    .name = "client",
    .role = PROTO_ROLE_CLIENT,
    .outbox_size_bytes = 4096,
    .outbox_count_max = 2,
    .step = client_step,
    .deadline_ns = client_deadline_ns,
};

/* Serviced by hand: the shell has no way for a core to end it. */
static proto_status_t
talk(client_t *self)
{
    while (!self->done) {
        uint64_t wait_ns = 0;
        proto_status_t status = actor_shell_service(self->shell, &wait_ns);
        if (status != STATUS_OK) {
            finish(self, STATUS_ERR_PEER_LOST, proto_text("the node refused the link"));
        } else if (!self->done && wait_ns > 0) {
            (void)usleep(1000);
        }
    }
    return self->status;
}

/* A node that was killed leaves its socket behind, on which a link would wait in silence. */
static bool
is_alive(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t size = strlen(path);
    if (size >= sizeof address.sun_path) {
        return false;
    }
    memcpy(address.sun_path, path, size + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool alive = fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return alive;
}

proto_status_t
actor_command_find(const char *run_dir, char endpoint[ACTOR_COMMAND_ENDPOINT_SIZE_BYTES],
                   char *error, size_t capacity_bytes)
{
    char path[256];
    struct stat info;
    int size = snprintf(path, sizeof path, "%s/supervisor", run_dir);
    if (size < 0 || (size_t)size >= sizeof path || stat(path, &info) != 0 ||
        !S_ISSOCK(info.st_mode)) {
        (void)snprintf(error, capacity_bytes, "no node has its sockets in '%s'", run_dir);
        return STATUS_ERR_NOT_FOUND;
    }
    if (!is_alive(path)) {
        (void)
            snprintf(error, capacity_bytes,
                     "the node in '%s' is not alive: nobody listens at its socket, which was left "
                     "behind",
                     run_dir);
        return STATUS_ERR_PEER_LOST;
    }
    (void)snprintf(endpoint, ACTOR_COMMAND_ENDPOINT_SIZE_BYTES, "ipc://%s", path);
    return STATUS_OK;
}

proto_status_t
actor_command_send(const actor_command_t *command, char answer[ACTOR_COMMAND_ANSWER_SIZE_BYTES])
{
    char endpoint[272];
    char name[PROTO_NAME_SIZE_BYTES];
    proto_status_t found =
        actor_command_find(command->run_dir, endpoint, answer, ACTOR_COMMAND_ANSWER_SIZE_BYTES);
    if (found != STATUS_OK) {
        return found;
    }
    /* Two threads of a program are two clients: of one name, the newer would end the older. */
    static atomic_uint call_count;
    (void)snprintf(name, sizeof name, "client-%ld-%u", (long)getpid(),
                   atomic_fetch_add(&call_count, 1));
    const proto_clock_t *clock = proto_clock_system();
    client_t self = {.command = command,
                     .answer = answer,
                     .deadline_ns = proto_clock_monotonic_ns(clock) + command->timeout_ns};
    actor_link_options_t link = {.peer_role = PROTO_ROLE_SUPERVISOR, .endpoint = endpoint};
    const actor_shell_options_t options = {.name = name,
                                           .epoch = proto_clock_realtime_ns(clock),
                                           .ops = &client_ops,
                                           .core = &self,
                                           .links = &link,
                                           .link_count = 1,
                                           .ring_fd = -1,
                                           .post_size_bytes = 65536};
    proto_status_t status = actor_shell_new(&options, &self.shell);
    if (status != STATUS_OK) {
        (void)snprintf(answer, ACTOR_COMMAND_ANSWER_SIZE_BYTES, "cannot open a link to '%s'",
                       endpoint);
        return status;
    }
    status = talk(&self);
    actor_shell_destroy(&self.shell, 100000000u);
    return status;
}
