/* actor_supervisor_drain.c - a drain that can be taken back, and log levels: what operators say to
 * actors other than the executor.  Part of the core.
 *
 * A drain has an owner, so that a roll-out that was cancelled undoes its own drain and nobody
 * else's.  It outlives a restart of the gateway: whoever links is told again. */
#include <stdio.h>
#include <string.h>

#include "actor_supervisor_core.h"

#define SECOND_NS UINT64_C(1000000000)

static void
answer(actor_supervisor_core_t *self, const actor_supervisor_command_t *command,
       proto_status_t status, const char *detail, actor_outbox_t *outbox)
{
    const proto_command_done_t done = {.status = status, .detail = proto_text(detail)};
    actor_supervisor_core_answer(self, command->number, &done, outbox);
}

static void
tell(const actor_supervisor_core_t *self, uint32_t peer, actor_outbox_t *outbox)
{
    proto_body_t body = {.hold = {.on = self->is_held, .owner = proto_text(self->owner)}};
    actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_HOLD, 0, &body);
}

static void
set_held(actor_supervisor_core_t *self, bool is_held, const char *owner, actor_outbox_t *outbox)
{
    self->is_held = is_held;
    (void)snprintf(self->owner, sizeof self->owner, "%s", owner);
    for (uint32_t index = 0; index < self->member_count; index++) {
        const actor_supervisor_member_t *member = &self->members[index];
        if (member->role == PROTO_ROLE_GATEWAY && member->peer != ACTOR_PEER_NONE) {
            tell(self, member->peer, outbox);
        }
    }
}

bool
actor_supervisor_drain_ask(actor_supervisor_core_t *self, actor_supervisor_command_t *command,
                           actor_outbox_t *outbox)
{
    bool is_drain = strcmp(command->verb, "drain") == 0;
    if (!is_drain && strcmp(command->verb, "undrain") != 0) {
        return false;
    }
    const char *owner = command->argument;
    bool is_forced = !is_drain && strcmp(owner, "*") == 0;
    if (owner[0] == '\0' || strlen(owner) >= sizeof self->owner) {
        answer(self, command, STATUS_ERR_INVALID, "a drain has an owner of 1 to 64 bytes", outbox);
        return true;
    }
    char text[256];
    if (self->is_held && !is_forced && strcmp(owner, self->owner) != 0) {
        (void)snprintf(text, sizeof text,
                       "the drain is not yours: %s asked for it (--owner %s, or undrain --force)",
                       self->owner, self->owner);
        answer(self, command, STATUS_ERR_REFUSED, text, outbox);
        return true;
    }
    if (is_drain) {
        (void)snprintf(text, sizeof text, "draining for %.64s: nothing new is admitted", owner);
        set_held(self, true, owner, outbox);
    } else {
        (void)snprintf(text, sizeof text, "%s",
                       self->is_held ? "requests are admitted again" : "nothing to do: no drain");
        set_held(self, false, "", outbox);
    }
    answer(self, command, STATUS_OK, text, outbox);
    return true;
}

void
actor_supervisor_drain_welcome(const actor_supervisor_core_t *self, uint32_t index,
                               actor_outbox_t *outbox)
{
    const actor_supervisor_member_t *member = &self->members[index];
    if (member->role == PROTO_ROLE_GATEWAY && self->is_held) {
        tell(self, member->peer, outbox);
    }
}

bool
actor_supervisor_level_ask(actor_supervisor_core_t *self, actor_supervisor_command_t *command,
                           uint64_t now_ns, actor_outbox_t *outbox)
{
    const char *space = strchr(command->argument, ' ');
    if (strcmp(command->verb, "log-level") != 0 || space == NULL) {
        return false;
    }
    size_t length = (size_t)(space - command->argument);
    for (uint32_t index = 0; index < self->member_count; index++) {
        const actor_supervisor_member_t *member = &self->members[index];
        if (strlen(member->name) != length ||
            memcmp(member->name, command->argument, length) != 0) {
            continue;
        }
        if (member->peer == ACTOR_PEER_NONE) {
            answer(self, command, STATUS_ERR_PEER_LOST, "it is not linked at the moment", outbox);
            return true;
        }
        command->asked = index + 1;
        command->until_ns = now_ns + ACTOR_SUPERVISOR_WISH_S * SECOND_NS;
        proto_body_t body = {
            .command = {.verb = proto_text("log-level"), .argument = proto_text(space + 1)}};
        actor_outbox_push(outbox, (actor_peer_t){member->peer}, PROTO_KIND_COMMAND, command->number,
                          &body);
        return true;
    }
    return false; /* the supervisor itself, or nobody */
}
