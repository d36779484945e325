/* actor_supervisor_look.c - what people want to see: asked of the actor that knows, or of the
 * process side, and answered once.  Part of the core. */
#include <string.h>

#include "actor_supervisor_core.h"

#define MS_NS UINT64_C(1000000)

static void
refuse(actor_outbox_t *outbox, uint32_t peer, proto_status_t status, const char *detail)
{
    proto_body_t body = {.requests = {.status = status, .detail = proto_text(detail)}};
    actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_REQUESTS, 0, &body);
}

static uint32_t
find_role(const actor_supervisor_core_t *self, proto_role_t role)
{
    for (uint32_t index = 0; index < self->member_count; index++) {
        if (self->members[index].role == role && self->members[index].peer != ACTOR_PEER_NONE) {
            return index;
        }
    }
    return self->member_count;
}

/* True if the gateways are linked to a scheduler that is none of ours. */
static bool
plans_elsewhere(const actor_supervisor_core_t *self)
{
    uint32_t gateway = find_role(self, PROTO_ROLE_GATEWAY);
    if (gateway == self->member_count || self->members[gateway].scheduler.endpoint[0] == '\0') {
        return false;
    }
    const char *name = self->members[gateway].scheduler.name;
    for (uint32_t index = 0; index < self->member_count; index++) {
        if (strcmp(self->members[index].name, name) == 0) {
            return false;
        }
    }
    return true;
}

void
actor_supervisor_look_ask(actor_supervisor_core_t *self, const actor_input_t *input,
                          actor_outbox_t *outbox)
{
    actor_supervisor_look_t *place = NULL;
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_LOOK_COUNT_MAX && place == NULL; i++) {
        place = self->looks[i].number == 0 ? &self->looks[i] : NULL;
    }
    if (place == NULL) {
        refuse(outbox, input->from.index, STATUS_ERR_OVERLOADED, "too many look at this node");
        return;
    }
    uint32_t target = input->body->look.target;
    actor_supervisor_look_t look = {.number = self->look_last + 1,
                                    .peer = input->from.index,
                                    .is_new = target == PROTO_LOOK_ACTORS,
                                    .until_ns = input->now_ns + ACTOR_SUPERVISOR_LOOK_MS * MS_NS};
    if (target == PROTO_LOOK_SCHEDULER && plans_elsewhere(self)) {
        refuse(outbox, look.peer, STATUS_ERR_UNSUPPORTED,
               "an attached scheduler plans for this node, and it is not asked why");
        return;
    }
    if (target != PROTO_LOOK_ACTORS) {
        uint32_t index = find_role(self, target == PROTO_LOOK_SCHEDULER ? PROTO_ROLE_SCHEDULER
                                                                        : PROTO_ROLE_GATEWAY);
        if (index == self->member_count) {
            refuse(outbox, look.peer, STATUS_ERR_NOT_FOUND,
                   target == PROTO_LOOK_SCHEDULER ? "no scheduler is linked"
                                                  : "no gateway is linked");
            return;
        }
        look.asked = index + 1;
        actor_outbox_push(outbox, (actor_peer_t){self->members[index].peer}, PROTO_KIND_LOOK,
                          look.number, input->body);
    }
    self->look_last++;
    *place = look;
}

actor_supervisor_look_t *
actor_supervisor_look_next(actor_supervisor_core_t *self)
{
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_LOOK_COUNT_MAX; i++) {
        if (self->looks[i].number != 0 && self->looks[i].is_new) {
            return &self->looks[i];
        }
    }
    return NULL;
}

void
actor_supervisor_look_done(actor_supervisor_core_t *self, uint32_t index,
                           const actor_input_t *input, actor_outbox_t *outbox)
{
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_LOOK_COUNT_MAX; i++) {
        actor_supervisor_look_t *look = &self->looks[i];
        if (look->number != 0 && look->number == input->header->request &&
            look->asked == index + 1) {
            actor_outbox_push(outbox, (actor_peer_t){look->peer}, input->header->kind, 0,
                              input->body);
            look->number = 0;
            return;
        }
    }
    self->refused_count++; /* too late, or asked by nobody */
}

void
actor_supervisor_look_actors(actor_supervisor_core_t *self, uint64_t number,
                             const proto_body_t *body, actor_outbox_t *outbox)
{
    for (uint32_t i = 0; number != 0 && i < ACTOR_SUPERVISOR_LOOK_COUNT_MAX; i++) {
        if (self->looks[i].number == number) {
            actor_outbox_push(outbox, (actor_peer_t){self->looks[i].peer}, PROTO_KIND_ACTORS, 0,
                              body);
            self->looks[i].number = 0;
        }
    }
    for (uint32_t index = 0; number == 0 && index < self->member_count; index++) {
        const actor_supervisor_member_t *member = &self->members[index];
        if (member->role == PROTO_ROLE_GATEWAY && member->peer != ACTOR_PEER_NONE) {
            actor_outbox_push(outbox, (actor_peer_t){member->peer}, PROTO_KIND_ACTORS, 0, body);
        }
    }
}

void
actor_supervisor_look_member_down(actor_supervisor_core_t *self, uint32_t index,
                                  actor_outbox_t *outbox)
{
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_LOOK_COUNT_MAX; i++) {
        if (self->looks[i].number != 0 && self->looks[i].asked == index + 1) {
            refuse(outbox, self->looks[i].peer, STATUS_ERR_PEER_LOST, "it ended meanwhile");
            self->looks[i].number = 0;
        }
    }
}

void
actor_supervisor_look_client_down(actor_supervisor_core_t *self, uint32_t peer)
{
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_LOOK_COUNT_MAX; i++) {
        if (self->looks[i].peer == peer) {
            self->looks[i].number = 0;
        }
    }
}

void
actor_supervisor_look_timer(actor_supervisor_core_t *self, uint64_t now_ns, actor_outbox_t *outbox)
{
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_LOOK_COUNT_MAX; i++) {
        actor_supervisor_look_t *look = &self->looks[i];
        if (look->number != 0 && now_ns >= look->until_ns) {
            refuse(outbox, look->peer, STATUS_ERR_DEADLINE, "it is too busy to answer");
            look->number = 0;
        }
    }
}

uint64_t
actor_supervisor_look_deadline_ns(const actor_supervisor_core_t *self)
{
    uint64_t first_ns = UINT64_MAX;
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_LOOK_COUNT_MAX; i++) {
        if (self->looks[i].number != 0 && self->looks[i].until_ns < first_ns) {
            first_ns = self->looks[i].until_ns;
        }
    }
    return first_ns;
}

void
actor_supervisor_look_links(actor_supervisor_member_t *member, const proto_links_t *links)
{
    uint32_t count = links->ages_ms.count;
    if (links->messages_in.count != count || links->messages_out.count != count) {
        return;
    }
    const char *at = links->names.data;
    size_t left = links->names.size_bytes;
    member->link_count = 0;
    for (uint32_t i = 0; i < count && i < ACTOR_SUPERVISOR_LINK_COUNT_MAX; i++) {
        const char *end = left > 0 ? memchr(at, '\n', left) : NULL;
        size_t length = end != NULL ? (size_t)(end - at) : 0;
        if (end == NULL || length >= PROTO_NAME_SIZE_BYTES) {
            return;
        }
        actor_supervisor_member_link_t *link = &member->links[member->link_count++];
        memset(link->peer, 0, sizeof link->peer);
        memcpy(link->peer, at, length);
        link->age_ms = links->ages_ms.data[i];
        link->messages_in = links->messages_in.data[i];
        link->messages_out = links->messages_out.data[i];
        at = end + 1;
        left -= length + 1;
    }
}
