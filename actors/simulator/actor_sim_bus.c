/* Links as the shells make them: handshake, sequence numbers, heartbeats, silence, fences.  The
 * rules for a message that arrives are those of the shipped links (actor_arrival.h). */
#include <stdlib.h>
#include <string.h>

#include "actor_arrival.h"
#include "actor_sim_world.h"
#include "proto_require.h"

enum {
    HELLO_COUNT_MAX = 8, /* then a new socket */
    GREETED_MS = 2000,   /* READY must follow INIT within this */
};

static const proto_bytes_t no_bytes;

static actor_sim_actor_t *
actor_of(actor_sim_t *self, const actor_sim_side_t *side)
{
    return &self->actors[side->actor];
}

static uint32_t
index_of(const actor_sim_t *self, const actor_sim_connection_t *connection)
{
    return (uint32_t)(connection - self->connections);
}

/* ---- sending --------------------------------------------------------------------------------- */

static void
send_control(actor_sim_t *self, actor_sim_connection_t *connection, uint32_t to_side,
             actor_sim_control_t control)
{
    actor_sim_message_t *message = actor_sim_message_new(0, 0);
    message->connection = index_of(self, connection);
    message->connection_id = connection->id;
    message->to_side = to_side;
    message->control = control;
    message->sender_epoch = connection->sides[1 - to_side].epoch;
    actor_sim_transmit(self, message);
}

static void
send_parts(actor_sim_t *self, actor_sim_connection_t *connection, uint32_t to_side,
           const proto_header_t *header, proto_bytes_t body, proto_bytes_t blob)
{
    actor_sim_message_t *message = actor_sim_message_new(body.size_bytes, blob.size_bytes);
    message->connection = index_of(self, connection);
    message->connection_id = connection->id;
    message->to_side = to_side;
    message->sender_epoch = header->epoch;
    message->header_size_bytes = (uint32_t)proto_header_encode(header, message->header);
    if (body.size_bytes > 0) {
        memcpy(actor_sim_message_body(message), body.data, body.size_bytes);
    }
    if (blob.size_bytes > 0) {
        memcpy(actor_sim_message_blob(message), blob.data, blob.size_bytes);
    }
    actor_sim_transmit(self, message);
}

static bool
is_telemetry(proto_kind_t kind)
{
    return kind == PROTO_KIND_HEARTBEAT || kind == PROTO_KIND_STATS || kind == PROTO_KIND_LOAD ||
           kind == PROTO_KIND_BYE || kind == PROTO_KIND_NAK;
}

static void fail_side(actor_sim_t *self, actor_sim_connection_t *connection, uint32_t side);

void
actor_sim_send(actor_sim_t *self, uint32_t index, uint32_t peer, proto_kind_t kind,
               uint64_t request, uint64_t cause, proto_bytes_t body, proto_bytes_t blob)
{
    actor_sim_actor_t *actor = &self->actors[index];
    require(peer > 0 && peer < ACTOR_SIM_PEER_COUNT_MAX);
    if (actor->peers[peer] == ACTOR_SIM_NONE) {
        return; /* undeliverable, as to a peer that failed */
    }
    actor_sim_connection_t *connection = &self->connections[actor->peers[peer]];
    uint32_t own = connection->sides[0].actor == index ? 0 : 1;
    actor_sim_side_t *side = &connection->sides[own];
    require(side->state == ACTOR_SIM_SIDE_UP && side->peer == peer);
    if (connection->sides[1 - own].under_way >= ACTOR_SIM_QUEUE_LEN_MAX) {
        if (!is_telemetry(kind)) {
            fail_side(self, connection, own);
        }
        return;
    }
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .epoch = actor->epoch,
                             .sequence = ++side->sequence_out,
                             .request = request,
                             .cause = cause};
    send_parts(self, connection, 1 - own, &header, body, blob);
}

/* One of the shell's own messages. */
static void
send_own(actor_sim_t *self, actor_sim_connection_t *connection, uint32_t own, proto_kind_t kind,
         const proto_body_t *body)
{
    uint8_t bytes[512];
    size_t size = 0;
    size_t blob_size = 0;
    proto_status_t status =
        proto_body_encode(kind, body, bytes, sizeof bytes, &size, NULL, 0, &blob_size);
    require(status == STATUS_OK);
    actor_sim_side_t *side = &connection->sides[own];
    if (side->state == ACTOR_SIM_SIDE_UP) {
        actor_sim_send(self, side->actor, side->peer, kind, 0, 0, (proto_bytes_t){bytes, size},
                       no_bytes);
        return;
    }
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION, .kind = kind, .epoch = side->epoch};
    send_parts(self, connection, 1 - own, &header, (proto_bytes_t){bytes, size}, no_bytes);
}

/* ---- the ends of links ----------------------------------------------------------------------- */

static void
release_if_over(actor_sim_connection_t *connection)
{
    if (connection->sides[0].state == ACTOR_SIM_SIDE_FREE &&
        connection->sides[1].state == ACTOR_SIM_SIDE_FREE) {
        connection->id = 0;
    }
}

void
actor_sim_on_down(actor_sim_t *self, uint32_t index, uint32_t peer)
{
    actor_sim_actor_t *actor = &self->actors[index];
    if (!actor->peer_leaving[peer]) {
        return;
    }
    actor->peer_leaving[peer] = false;
    uint32_t member = actor->peer_members[peer];
    proto_body_t body = {.peer_down = {.peer = peer,
                                       .role = self->members[member].role,
                                       .epoch = actor->peer_epochs[peer],
                                       .detail = proto_text("its link ended")}};
    actor_sim_input_own(self, index, PROTO_KIND_PEER_DOWN, &body);
}

/* One end gives a connection up.  A connector closes its socket, which the other end may notice; a
 * binder only answers from then on that it does not know this link. */
static void
fail_side(actor_sim_t *self, actor_sim_connection_t *connection, uint32_t own)
{
    actor_sim_side_t *side = &connection->sides[own];
    actor_sim_actor_t *actor = actor_of(self, side);
    actor_sim_side_state_t state = side->state;
    if (state == ACTOR_SIM_SIDE_FREE) {
        return;
    }
    side->state = ACTOR_SIM_SIDE_FREE;
    actor_sim_note(self, "%s.%llu gives up its link to %s", self->members[side->member].name,
                   (unsigned long long)side->epoch,
                   self->members[connection->sides[1 - own].member].name);
    uint32_t peer = side->peer;
    if (own == 0) {
        actor->link = ACTOR_SIM_NONE;
        actor_sim_at(self, self->now_ns + actor_sim_random_us(&self->random_bus, 500, 50000),
                     ACTOR_SIM_EVENT_CONNECT, side->actor, actor->epoch, NULL);
        if (connection->sides[1].state != ACTOR_SIM_SIDE_FREE) {
            send_control(self, connection, 1, ACTOR_SIM_CONTROL_CLOSED);
        }
    }
    release_if_over(connection);
    if (state != ACTOR_SIM_SIDE_UP) {
        return;
    }
    actor->peers[peer] = ACTOR_SIM_NONE;
    actor->peer_leaving[peer] = true;
    if (self->in_input) {
        actor_sim_at(self, self->now_ns, ACTOR_SIM_EVENT_DOWN, side->actor, actor->epoch,
                     (void *)(uintptr_t)peer);
    } else {
        actor_sim_on_down(self, side->actor, peer);
    }
}

void
actor_sim_close_all(actor_sim_t *self, uint32_t index)
{
    for (uint32_t at = 0; at < ACTOR_SIM_CONNECTION_COUNT_MAX; at++) {
        actor_sim_connection_t *connection = &self->connections[at];
        for (uint32_t own = 0; own < 2; own++) {
            actor_sim_side_t *side = &connection->sides[own];
            if (connection->id == 0 || side->actor != index || side->state == ACTOR_SIM_SIDE_FREE) {
                continue;
            }
            side->state = ACTOR_SIM_SIDE_FREE;
            if (connection->sides[1 - own].state != ACTOR_SIM_SIDE_FREE) {
                send_control(self, connection, 1 - own, ACTOR_SIM_CONTROL_CLOSED);
            }
            release_if_over(connection);
        }
    }
}

void
actor_sim_on_fence(actor_sim_t *self, uint32_t index, uint32_t member, uint64_t epoch)
{
    actor_sim_actor_t *actor = &self->actors[index];
    uint64_t *epoch_min = &actor->epochs_min[member];
    *epoch_min = epoch + 1 > *epoch_min ? epoch + 1 : *epoch_min;
    for (uint32_t peer = 1; peer < ACTOR_SIM_PEER_COUNT_MAX && actor->alive; peer++) {
        if (actor->peers[peer] != ACTOR_SIM_NONE && actor->peer_members[peer] == member &&
            actor->peer_epochs[peer] <= epoch) {
            actor_sim_connection_t *connection = &self->connections[actor->peers[peer]];
            fail_side(self, connection, connection->sides[0].actor == index ? 0 : 1);
        }
    }
}

/* ---- handshake ------------------------------------------------------------------------------- */

static uint32_t
free_peer(const actor_sim_actor_t *actor)
{
    for (uint32_t peer = 1; peer < ACTOR_SIM_PEER_COUNT_MAX; peer++) {
        if (actor->peers[peer] == ACTOR_SIM_NONE && !actor->peer_leaving[peer]) {
            return peer;
        }
    }
    return ACTOR_SIM_NONE;
}

static void
bring_up(actor_sim_t *self, actor_sim_connection_t *connection, uint32_t own)
{
    actor_sim_side_t *side = &connection->sides[own];
    actor_sim_actor_t *actor = actor_of(self, side);
    const actor_sim_side_t *other = &connection->sides[1 - own];
    uint32_t peer = free_peer(actor);
    require(peer != ACTOR_SIM_NONE);
    side->state = ACTOR_SIM_SIDE_UP;
    side->peer = peer;
    side->heard_ns = self->now_ns;
    actor->peers[peer] = index_of(self, connection);
    actor->peer_epochs[peer] = other->epoch;
    actor->peer_members[peer] = other->member;
    actor->peer_incarnations[peer]++;
    actor_sim_record_peer(self, side->actor, peer);
    const actor_sim_member_t *member = &self->members[other->member];
    proto_body_t body = {.peer_up = {.peer = peer,
                                     .role = member->role,
                                     .name = proto_text(member->name),
                                     .epoch = other->epoch}};
    actor_sim_input_own(self, side->actor, PROTO_KIND_PEER_UP, &body);
}

void
actor_sim_on_connect(actor_sim_t *self, uint32_t index)
{
    actor_sim_actor_t *actor = &self->actors[index];
    actor_sim_connection_t *connection = NULL;
    if (actor->link != ACTOR_SIM_NONE) {
        connection = &self->connections[actor->link];
        if (connection->sides[0].state != ACTOR_SIM_SIDE_CALLING) {
            return;
        }
    }
    uint32_t binder = self->members[ACTOR_SIM_MEMBER_SCHEDULER].actor;
    if (connection != NULL && ++connection->sides[0].hello_count > HELLO_COUNT_MAX) {
        fail_side(self, connection, 0);
        return; /* which tries again */
    }
    if (connection == NULL && binder != ACTOR_SIM_NONE) {
        uint32_t at = 0;
        while (at < ACTOR_SIM_CONNECTION_COUNT_MAX && self->connections[at].id != 0) {
            at++;
        }
        require(at < ACTOR_SIM_CONNECTION_COUNT_MAX);
        connection = &self->connections[at];
        *connection = (actor_sim_connection_t){.id = ++self->connection_last};
        connection->sides[0] = (actor_sim_side_t){.actor = index,
                                                  .member = actor->member,
                                                  .epoch = actor->epoch,
                                                  .state = ACTOR_SIM_SIDE_CALLING,
                                                  .heard_ns = self->now_ns};
        connection->sides[1] = (actor_sim_side_t){.actor = binder,
                                                  .member = ACTOR_SIM_MEMBER_SCHEDULER,
                                                  .epoch = self->actors[binder].epoch};
        actor->link = at;
    }
    if (connection != NULL) {
        send_control(self, connection, 1, ACTOR_SIM_CONTROL_HELLO);
    }
    actor_sim_at(self, self->now_ns + ACTOR_SIM_HEARTBEAT_NS, ACTOR_SIM_EVENT_CONNECT, index,
                 actor->epoch, NULL);
}

static void
on_hello(actor_sim_t *self, actor_sim_connection_t *connection, uint64_t epoch)
{
    actor_sim_side_t *side = &connection->sides[1];
    actor_sim_actor_t *binder = actor_of(self, side);
    uint32_t member = connection->sides[0].member;
    if (side->state == ACTOR_SIM_SIDE_GREETED) {
        send_control(self, connection, 0, ACTOR_SIM_CONTROL_INIT);
    }
    if (side->state != ACTOR_SIM_SIDE_FREE) {
        return;
    }
    bool refused = epoch < binder->epochs_min[member];
    for (uint32_t at = 0; at < ACTOR_SIM_CONNECTION_COUNT_MAX && !refused; at++) {
        actor_sim_connection_t *other = &self->connections[at];
        if (other == connection || other->id == 0 || other->sides[1].actor != side->actor ||
            other->sides[1].state == ACTOR_SIM_SIDE_FREE || other->sides[0].member != member) {
            continue;
        }
        /* A newer socket replaces an older one, never the other way round. */
        refused = other->id > connection->id;
        if (!refused) {
            fail_side(self, other, 1);
        }
    }
    if (refused) {
        send_control(self, connection, 0, ACTOR_SIM_CONTROL_REFUSE);
        return;
    }
    binder->epochs_min[member] = epoch;
    side->state = ACTOR_SIM_SIDE_GREETED;
    side->heard_ns = self->now_ns;
    send_control(self, connection, 0, ACTOR_SIM_CONTROL_INIT);
}

static void
on_control(actor_sim_t *self, const actor_sim_message_t *message,
           actor_sim_connection_t *connection)
{
    actor_sim_side_t *side = &connection->sides[message->to_side];
    actor_sim_actor_t *actor = actor_of(self, side);
    if (message->control == ACTOR_SIM_CONTROL_HELLO) {
        on_hello(self, connection, message->sender_epoch);
    } else if (message->control == ACTOR_SIM_CONTROL_INIT) {
        if (side->state == ACTOR_SIM_SIDE_CALLING &&
            message->sender_epoch >= actor->epochs_min[ACTOR_SIM_MEMBER_SCHEDULER]) {
            actor->epochs_min[ACTOR_SIM_MEMBER_SCHEDULER] = message->sender_epoch;
            send_control(self, connection, 1, ACTOR_SIM_CONTROL_READY);
            bring_up(self, connection, 0);
        }
    } else if (message->control == ACTOR_SIM_CONTROL_READY) {
        if (side->state == ACTOR_SIM_SIDE_GREETED) {
            bring_up(self, connection, 1);
        }
    } else if (message->control == ACTOR_SIM_CONTROL_REFUSE) {
        if (side->state == ACTOR_SIM_SIDE_CALLING) {
            /* A newer incarnation does its work: anything that it still does would be wrong. */
            actor_sim_kill(self, side->actor);
        }
    } else if (message->control == ACTOR_SIM_CONTROL_CLOSED) {
        fail_side(self, connection, message->to_side);
    }
}

/* ---- what arrives ---------------------------------------------------------------------------- */

static void
refuse(actor_sim_t *self, actor_sim_connection_t *connection, uint32_t own,
       const proto_header_t *header, proto_status_t status, const char *detail)
{
    actor_sim_note(self, "%s.%llu refuses %s %llu: %s",
                   self->members[connection->sides[own].member].name,
                   (unsigned long long)connection->sides[own].epoch, proto_kind_name(header->kind),
                   (unsigned long long)header->sequence, detail);
    if (header->kind == PROTO_KIND_NAK || header->kind == PROTO_KIND_REFUSE) {
        return; /* an answer to an answer would never end */
    }
    proto_body_t body = {.nak = {.sequence = header->sequence,
                                 .kind = (uint32_t)header->kind & 0xffff,
                                 .status = status,
                                 .detail = proto_text(detail)}};
    send_own(self, connection, own, PROTO_KIND_NAK, &body);
}

/* The shell's own kinds; true if there is nothing left for the core. */
static bool
receive_own(actor_sim_t *self, actor_sim_connection_t *connection, uint32_t own,
            const proto_header_t *header)
{
    proto_kind_t kind = header->kind;
    if (kind == PROTO_KIND_HEARTBEAT) {
        return true;
    }
    if (kind == PROTO_KIND_BYE) {
        fail_side(self, connection, own);
        return true;
    }
    if (kind == PROTO_KIND_NAK) {
        if (actor_arrival_nak_ends_link(header, &self->body.nak)) {
            fail_side(self, connection, own);
        }
        return true;
    }
    return false;
}

static void
receive(actor_sim_t *self, actor_sim_message_t *message, actor_sim_connection_t *connection)
{
    uint32_t own = message->to_side;
    actor_sim_side_t *side = &connection->sides[own];
    actor_sim_actor_t *actor = actor_of(self, side);
    bool up = side->state == ACTOR_SIM_SIDE_UP;
    proto_header_t header;
    if (proto_header_decode((proto_bytes_t){message->header, message->header_size_bytes},
                            &header) != STATUS_OK) {
        header = (proto_header_t){.version = 0};
        side->unread_count += up ? 1 : 0;
        refuse(self, connection, own, &header, STATUS_ERR_MALFORMED, "the header does not decode");
        return;
    }
    const char *detail = "";
    uint64_t epoch = up ? actor->peer_epochs[side->peer] : 0;
    proto_status_t status = actor_arrival_check_origin(up, epoch, &header, &detail);
    if (status != STATUS_OK) {
        refuse(self, connection, own, &header, status, detail);
        return;
    }
    side->heard_ns = self->now_ns;
    uint64_t missing = 0;
    if (header.sequence != 0) {
        actor_arrival_t arrival =
            actor_arrival_check_sequence(&side->sequence_in, &side->unread_count, header.sequence,
                                         &missing);
        if (arrival == ACTOR_ARRIVAL_GAP) {
            fail_side(self, connection, own);
        }
        if (arrival != ACTOR_ARRIVAL_NEXT) {
            actor_sim_note(self, "%s.%llu drops %s %llu: %s", self->members[actor->member].name,
                           (unsigned long long)actor->epoch, proto_kind_name(header.kind),
                           (unsigned long long)header.sequence,
                           arrival == ACTOR_ARRIVAL_GAP ? "there is a gap before it"
                                                        : "it came before");
            return;
        }
    }
    if (!proto_kind_known(header.kind) || !proto_kind_is_wire(header.kind)) {
        refuse(self, connection, own, &header, STATUS_ERR_UNSUPPORTED, "not known");
        return;
    }
    proto_bytes_t body = {actor_sim_message_body(message), message->body_size_bytes};
    proto_bytes_t blob = {message->blob_size_bytes > 0 ? actor_sim_message_blob(message) : NULL,
                          message->blob_size_bytes};
    proto_error_t error = {.detail = "cannot be read"};
    status = proto_body_decode(header.kind, body, blob, &self->body, &error);
    if (status != STATUS_OK) {
        refuse(self, connection, own, &header, status, error.detail);
        if (header.kind == PROTO_KIND_NAK) {
            fail_side(self, connection, own);
        }
        return;
    }
    if (receive_own(self, connection, own, &header)) {
        return;
    }
    if (message->sender_epoch != epoch) {
        actor_sim_fail(self, "no effect of an old epoch",
                       "%s was given %s of epoch %llu; its peer is of epoch %llu",
                       self->members[actor->member].name, proto_kind_name(header.kind),
                       (unsigned long long)message->sender_epoch, (unsigned long long)epoch);
        return;
    }
    actor_sim_input_peer(self, side->actor, side->peer, &header, body, blob, &self->body);
}

/* A message of a dead incarnation turns up with the number that is awaited. */
static void
receive_old(actor_sim_t *self, actor_sim_connection_t *connection, uint32_t own)
{
    actor_sim_side_t *side = &connection->sides[own];
    const actor_sim_side_t *sender = &connection->sides[1 - own];
    actor_sim_message_t *old = self->old[sender->member][side->member];
    if (old == NULL || old->sender_epoch >= sender->epoch ||
        !actor_sim_random_chance(&self->random_fault, self->rates.stale)) {
        return;
    }
    proto_header_t header;
    proto_status_t status =
        proto_header_decode((proto_bytes_t){old->header, old->header_size_bytes}, &header);
    require(status == STATUS_OK);
    header.sequence = side->sequence_in + 1;
    old->header_size_bytes = (uint32_t)proto_header_encode(&header, old->header);
    old->to_side = own;
    actor_sim_strike(self, ACTOR_SIM_INDEX_STALE, 3000 * ACTOR_SIM_MS);
    receive(self, old, connection);
}

void
actor_sim_on_message(actor_sim_t *self, actor_sim_message_t *message)
{
    actor_sim_connection_t *connection = &self->connections[message->connection];
    if (connection->id != message->connection_id) {
        return; /* to a socket that is closed */
    }
    actor_sim_side_t *side = &connection->sides[message->to_side];
    side->under_way--;
    const actor_sim_actor_t *actor = actor_of(self, side);
    if (!actor->alive || actor->epoch != side->epoch) {
        return; /* it died meanwhile */
    }
    if (message->control != ACTOR_SIM_CONTROL_NONE) {
        on_control(self, message, connection);
        return;
    }
    if (message->to_side == 0 && side->state == ACTOR_SIM_SIDE_FREE) {
        return; /* the connector has closed this socket */
    }
    if (self->rates.stale > 0 && side->state == ACTOR_SIM_SIDE_UP) {
        receive_old(self, connection, message->to_side);
        if (connection->id != message->connection_id) {
            return;
        }
    }
    receive(self, message, connection);
}

void
actor_sim_on_tick(actor_sim_t *self, uint32_t index)
{
    actor_sim_actor_t *actor = &self->actors[index];
    actor_sim_at(self, self->now_ns + ACTOR_SIM_HEARTBEAT_NS, ACTOR_SIM_EVENT_TICK, index,
                 actor->epoch, NULL);
    for (uint32_t at = 0; at < ACTOR_SIM_CONNECTION_COUNT_MAX; at++) {
        actor_sim_connection_t *connection = &self->connections[at];
        for (uint32_t own = 0; own < 2 && connection->id != 0; own++) {
            actor_sim_side_t *side = &connection->sides[own];
            uint64_t silent_ns = self->now_ns - side->heard_ns;
            if (side->actor != index) {
                continue;
            }
            bool forgotten =
                side->state == ACTOR_SIM_SIDE_GREETED && silent_ns > GREETED_MS * ACTOR_SIM_MS;
            bool silent = side->state == ACTOR_SIM_SIDE_UP && silent_ns > ACTOR_SIM_SILENCE_NS;
            if (forgotten || silent) {
                fail_side(self, connection, own);
            } else if (side->state == ACTOR_SIM_SIDE_UP) {
                proto_body_t body = {.heartbeat = {.progress = actor->input_sequence}};
                send_own(self, connection, own, PROTO_KIND_HEARTBEAT, &body);
            }
        }
    }
}
