/* actor_links_receive.c - from hostile bytes to messages that a core may see. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "actor_arrival.h"
#include "actor_fault.h"
#include "actor_links_private.h"
#include "actor_log.h"
#include "actor_roles.h"
#include "proto_clock.h"
#include "proto_require.h"

#define MS_NS UINT64_C(1000000)

enum {
    NAK_PER_SECOND = 50,
    MESSAGE_OVERHEAD_BYTES = 4096, /* header and routing id, generously */
};

static const proto_bytes_t no_bytes;

static uint64_t
now(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

uint32_t
actor_links_find(const actor_links_t *self, uint32_t link_index, proto_bytes_t routing_id)
{
    if (!self->links[link_index].bind) {
        return self->links[link_index].peer;
    }
    uint64_t peers = self->peer_mask;
    while (peers != 0) {
        uint32_t peer = actor_mask_take(&peers);
        const actor_remote_t *remote = &self->remotes[peer];
        bool live = remote->state == ACTOR_REMOTE_GREETED || remote->state == ACTOR_REMOTE_UP;
        if (live && remote->link_index == link_index &&
            remote->routing_id_size == routing_id.size_bytes &&
            memcmp(remote->routing_id, routing_id.data, routing_id.size_bytes) == 0) {
            return peer;
        }
    }
    return ACTOR_PEER_NONE;
}

/* Counts and logs a message that is not accepted, and answers it. */
static void
refuse(actor_links_t *self, uint32_t link_index, uint32_t peer, proto_bytes_t routing_id,
       const proto_header_t *header, proto_status_t status, const char *detail)
{
    self->counts.refused_in++;
    const char *from = peer != ACTOR_PEER_NONE ? self->remotes[peer].name : "a stranger";
    actor_log(ACTOR_LOG_WARN, "message.refused", header->request,
              ACTOR_LOG_FIELDS(actor_log_str("peer", from),
                               actor_log_str("kind", proto_kind_name(header->kind)),
                               actor_log_u64("sequence", header->sequence),
                               actor_log_str("status", proto_status_name(status))),
              "refused a message from %s: %s", from, detail);
    if (header->kind == PROTO_KIND_NAK || header->kind == PROTO_KIND_REFUSE) {
        return; /* an answer to an answer would never end */
    }
    uint64_t now_ns = now();
    uint64_t earned = (now_ns - self->nak_filled_ns) / (1000 * MS_NS / NAK_PER_SECOND);
    if (earned > 0) {
        uint64_t tokens = self->nak_tokens + earned;
        self->nak_tokens = tokens > ACTOR_NAK_BURST ? ACTOR_NAK_BURST : (uint32_t)tokens;
        self->nak_filled_ns = now_ns;
    }
    if (self->nak_tokens == 0) {
        return;
    }
    self->nak_tokens--;
    proto_body_t body = {.nak = {.sequence = header->sequence,
                                 .kind = (uint32_t)header->kind & 0xffff,
                                 .status = status,
                                 .detail = proto_text(detail)}};
    bool up = peer != ACTOR_PEER_NONE && self->remotes[peer].state == ACTOR_REMOTE_UP;
    if (up) {
        actor_links_send_body(self, peer, PROTO_KIND_NAK, &body);
    } else {
        actor_links_send_raw(self, &self->links[link_index], routing_id, PROTO_KIND_NAK, &body);
    }
}

/* Blobs are read in place, which needs an aligned address: libzmq hands out small messages from
 * the middle of its receive buffer. */
static proto_bytes_t
align_blob(actor_links_t *self, proto_bytes_t blob)
{
    if (blob.size_bytes == 0 || proto_blob_is_aligned(blob)) {
        return blob;
    }
    if (blob.size_bytes > self->aligned_size_bytes) {
        /* Only from a sender in the same process; bounded by the limit on a part. */
        size_t size =
            (blob.size_bytes + PROTO_COLUMN_ALIGN - 1) / PROTO_COLUMN_ALIGN * PROTO_COLUMN_ALIGN;
        uint8_t *larger = aligned_alloc(PROTO_COLUMN_ALIGN, size);
        if (larger == NULL) {
            return blob; /* refused by the decoder */
        }
        free(self->aligned);
        self->aligned = larger;
        self->aligned_size_bytes = size;
    }
    memcpy(self->aligned, blob.data, blob.size_bytes);
    return (proto_bytes_t){self->aligned, blob.size_bytes};
}

/* True if the message is the next one of its link. */
static bool
check_sequence(actor_links_t *self, uint32_t peer, const proto_header_t *header)
{
    actor_remote_t *remote = &self->remotes[peer];
    uint64_t missing = 0;
    actor_arrival_t arrival =
        actor_arrival_check_sequence(&remote->sequence_in, &remote->unread_count, header->sequence,
                                     &missing);
    if (arrival == ACTOR_ARRIVAL_NEXT) {
        return true;
    }
    bool duplicate = arrival == ACTOR_ARRIVAL_DUPLICATE;
    self->counts.duplicates_in += duplicate ? 1 : 0;
    self->counts.gaps_in += missing;
    actor_log(ACTOR_LOG_WARN, duplicate ? "link.duplicate" : "link.gap", header->request,
              ACTOR_LOG_FIELDS(actor_log_str("peer", remote->name),
                               actor_log_u64("expected", remote->sequence_in + 1),
                               actor_log_u64("got", header->sequence),
                               actor_log_str("kind", proto_kind_name(header->kind))),
              "%s from %s", duplicate ? "a message came twice" : "messages are missing",
              remote->name);
    if (!duplicate) {
        /* What was lost may be the very message that both ends would wait for. */
        actor_links_fail(self, peer, "%" PRIu64 " messages were lost", missing);
    }
    return false;
}

/* The shell's own kinds; true if there is nothing left for the core. */
static bool
receive_own(actor_links_t *self, uint32_t peer, const proto_header_t *header)
{
    actor_remote_t *remote = &self->remotes[peer];
    if (header->kind == PROTO_KIND_HEARTBEAT) {
        return !self->options.heartbeats_to_core;
    }
    if (header->kind == PROTO_KIND_BYE) {
        proto_text_t why = self->body.bye.detail;
        remote->said_goodbye = true;
        actor_links_fail(self, peer, "said goodbye: %.*s", (int)why.size_bytes,
                         why.data != NULL ? why.data : "");
        return true;
    }
    if (header->kind == PROTO_KIND_NAK) {
        const proto_nak_t *nak = &self->body.nak;
        self->counts.naks_in++;
        actor_log(ACTOR_LOG_WARN, "message.nak", header->request,
                  ACTOR_LOG_FIELDS(actor_log_str("peer", remote->name),
                                   actor_log_u64("sequence", nak->sequence),
                                   actor_log_str("kind", proto_kind_name((proto_kind_t)nak->kind)),
                                   actor_log_str("status",
                                                 proto_status_name((proto_status_t)nak->status)),
                                   actor_log_text("detail", nak->detail)),
                  "%s refused a message", remote->name);
        if (actor_arrival_nak_ends_link(header, nak)) {
            bool stale = nak->status == STATUS_ERR_STALE;
            actor_links_fail(self, peer,
                             stale ? "it does not know this link any more"
                                   : "it could not read a message of ours");
        }
        return true;
    }
    return false;
}

/* The bytes of one received message. */
typedef struct {
    uint32_t link_index;
    uint32_t peer; /* ACTOR_PEER_NONE: a stranger */
    proto_bytes_t routing_id;
    proto_header_t header;
    proto_bytes_t body;
    proto_bytes_t blob;
} arrival_t;

static void
refuse_arrival(actor_links_t *self, const arrival_t *in, proto_status_t status, const char *detail)
{
    refuse(self, in->link_index, in->peer, in->routing_id, &in->header, status, detail);
}

static void
receive_handshake(actor_links_t *self, const arrival_t *in)
{
    proto_error_t error = {.detail = "cannot be read"};
    proto_status_t status =
        proto_body_decode(in->header.kind, in->body, in->blob, &self->body, &error);
    if (status != STATUS_OK) {
        refuse_arrival(self, in, status, error.detail);
    } else if (!ACTOR_FAULT_KIND("shell.after_receive", in->header.kind)) {
        actor_handshake_receive(self, in->link_index, in->routing_id, &in->header, &self->body);
    }
}

/* A message of a peer that is up. */
static void
receive_message(actor_links_t *self, const arrival_t *in)
{
    proto_error_t error = {.detail = "cannot be read"};
    proto_status_t status =
        proto_body_decode(in->header.kind, in->body, in->blob, &self->body, &error);
    if (status != STATUS_OK) {
        refuse_arrival(self, in, status, error.detail);
        if (in->header.kind == PROTO_KIND_NAK) {
            /* Something of ours was refused, and we shall never know what. */
            actor_links_fail(self, in->peer, "its NAK cannot be read");
        }
        return;
    }
    if (!actor_roles_may_send(self->remotes[in->peer].role, in->header.kind)) {
        /* Its number counts, so that what it may say still comes in order. */
        refuse_arrival(self, in, STATUS_ERR_REFUSED, "this is not for a peer of its role to say");
        return;
    }
    if (ACTOR_FAULT_KIND("shell.after_receive", in->header.kind) ||
        receive_own(self, in->peer, &in->header)) {
        return;
    }
    self->hooks.message(self->hooks_context, in->peer, &in->header, in->body, in->blob,
                        &self->body);
}

/* Whether the message in hand came over a connection with the key that the peer began with. */
static bool
is_its_key(const actor_links_t *self, uint32_t peer)
{
    const actor_remote_t *remote = &self->remotes[peer];
    const actor_link_t *link = &self->links[remote->link_index];
    return !link->bind || !link->socket.has_keys ||
           (remote->key != ACTOR_KEY_NONE &&
            strcmp(self->options.keys->peers[remote->key].public_text, self->frames.user) == 0);
}

static void
receive_one(actor_links_t *self, uint32_t link_index, bool too_large)
{
    actor_link_t *link = &self->links[link_index];
    uint32_t first = link->bind ? 1 : 0;
    arrival_t in = {.link_index = link_index,
                    .routing_id = link->bind ? actor_frames_part(&self->frames, 0) : no_bytes};
    in.peer = actor_links_find(self, link_index, in.routing_id);
    self->counts.messages_in++;
    self->counts.bytes_in += self->frames.size_bytes;

    bool up = in.peer != ACTOR_PEER_NONE && self->remotes[in.peer].state == ACTOR_REMOTE_UP;
    proto_parts_t parts = actor_frames_message(&self->frames, first);
    if (proto_header_decode(parts.header, &in.header) != STATUS_OK) {
        in.header = (proto_header_t){.version = 0};
        if (up) {
            self->remotes[in.peer].unread_count++;
        }
        refuse_arrival(self, &in, STATUS_ERR_MALFORMED, "the header does not decode");
        return;
    }
    if (up && !is_its_key(self, in.peer)) {
        /* Not its connection: what it was told to expect is nobody else's to say. */
        in.peer = ACTOR_PEER_NONE;
        refuse_arrival(self, &in, STATUS_ERR_REFUSED, "another key opened this link");
        return;
    }
    bool handshake = actor_arrival_is_handshake(in.header.kind);
    const char *detail = "";
    uint64_t epoch = up ? self->remotes[in.peer].epoch : 0;
    proto_status_t status = actor_arrival_check_origin(up, epoch, &in.header, &detail);
    if (status != STATUS_OK) {
        refuse_arrival(self, &in, status, detail);
        return;
    }
    if (!handshake) {
        self->remotes[in.peer].heard_ns = now();
        /* Counted before the rest is judged: what does not decode did arrive. */
        if (in.header.sequence != 0 && !check_sequence(self, in.peer, &in.header)) {
            return;
        }
    }
    too_large = too_large || parts.body.size_bytes > link->part_size_bytes_max ||
                parts.blob.size_bytes > link->part_size_bytes_max;
    if (too_large || self->frames.count_sent > first + 3) {
        refuse_arrival(self, &in, STATUS_ERR_TOO_LARGE, "too many parts or bytes");
        return;
    }
    if (!proto_kind_known(in.header.kind) || !proto_kind_is_wire(in.header.kind)) {
        refuse_arrival(self, &in, STATUS_ERR_UNSUPPORTED, "this kind of message is not known");
        return;
    }
    in.body = parts.body;
    in.blob = align_blob(self, parts.blob);
    if (handshake) {
        receive_handshake(self, &in);
    } else {
        receive_message(self, &in);
    }
}

void
actor_links_receive(actor_links_t *self, uint32_t link_index, uint32_t message_count_max)
{
    actor_link_t *link = &self->links[link_index];
    size_t size_max = 2 * link->part_size_bytes_max + MESSAGE_OVERHEAD_BYTES;
    for (uint32_t count = 0; count < message_count_max && !link->reopen; count++) {
        proto_status_t status = actor_socket_receive(&link->socket, size_max, &self->frames);
        if (status == STATUS_AGAIN) {
            link->look = false;
            return;
        }
        receive_one(self, link_index, status == STATUS_ERR_TOO_LARGE);
        actor_links_reap(self);
        if (self->failure != STATUS_OK) {
            return;
        }
    }
}
