/* actor_shell_look.c - what the supervisor asks on behalf of people: this actor's links, its view,
 * its log level.  None of it is an input of the core, so none of it changes what the core does. */
#include <string.h>

#include "actor_log.h"
#include "actor_shell_private.h"
#include "proto_require.h"

#define MS_NS UINT64_C(1000000)

static uint32_t
milliseconds(uint64_t duration_ns)
{
    uint64_t value = duration_ns / MS_NS;
    return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

void
actor_shell_send_links(actor_shell_t *self)
{
    char names[PROTO_TEXT_LEN_MAX];
    uint32_t ages[PROTO_LOOK_ACTORS_MAX];
    uint64_t in[PROTO_LOOK_ACTORS_MAX];
    uint64_t out[PROTO_LOOK_ACTORS_MAX];
    uint32_t count = 0;
    size_t size = 0;
    for (uint32_t peer = 1; peer < ACTOR_PEER_CONTROL && count < PROTO_LOOK_ACTORS_MAX; peer++) {
        const actor_remote_t *remote = &self->links->remotes[peer];
        size_t length = strlen(remote->name);
        if (remote->state != ACTOR_REMOTE_UP || size + length + 1 > sizeof names) {
            continue;
        }
        memcpy(names + size, remote->name, length);
        names[size + length] = '\n';
        size += length + 1;
        ages[count] =
            milliseconds(self->now_ns > remote->heard_ns ? self->now_ns - remote->heard_ns : 0);
        in[count] = remote->sequence_in;
        out[count++] = remote->sequence_out;
    }
    proto_body_t body = {.links = {.names = {.data = names, .size_bytes = (uint32_t)size},
                                   .ages_ms = {.data = ages, .count = count},
                                   .messages_in = {.data = in, .count = count},
                                   .messages_out = {.data = out, .count = count}}};
    actor_links_send_body(self->links, ACTOR_PEER_CONTROL, PROTO_KIND_LINKS, &body);
}

void
actor_shell_show(actor_shell_t *self, uint64_t number, proto_kind_t kind, const proto_body_t *body)
{
    require(kind == PROTO_KIND_REQUESTS || kind == PROTO_KIND_LOAD);
    actor_links_send_answer(self->links, ACTOR_PEER_CONTROL, kind, number, body);
}

void
actor_shell_told(actor_shell_t *self, const proto_header_t *header, const proto_body_t *body)
{
    if (self->told != NULL) {
        self->told(self->told_context, header, body);
    } else if (header->kind == PROTO_KIND_LOOK) {
        proto_body_t answer = {.requests = {.status = STATUS_ERR_UNSUPPORTED,
                                            .detail = proto_text("this actor has no requests")}};
        actor_shell_show(self, header->request, PROTO_KIND_REQUESTS, &answer);
    }
}

bool
actor_shell_set_log_level(actor_shell_t *self, uint64_t number, const proto_command_t *wish)
{
    static const char verb[] = "log-level";
    if (wish->verb.size_bytes != sizeof verb - 1 ||
        memcmp(wish->verb.data, verb, sizeof verb - 1) != 0) {
        return false;
    }
    char text[16] = "";
    actor_log_level_t level;
    if (wish->argument.size_bytes < sizeof text && wish->argument.size_bytes > 0) {
        memcpy(text, wish->argument.data, wish->argument.size_bytes);
    }
    if (!actor_log_level_parse(text, &level)) {
        actor_shell_answer(self, number, STATUS_ERR_INVALID,
                           "a log level is one of debug, info, warn, error");
        return true;
    }
    actor_log_set_level(level);
    actor_shell_answer(self, number, STATUS_OK, text);
    return true;
}
