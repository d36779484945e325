/* actor_links_send.c - sending into queues that may be full, to peers that may be gone. */
#include <inttypes.h>
#include <poll.h>

#include "actor_fault.h"
#include "actor_links_private.h"
#include "proto_clock.h"
#include "proto_require.h"

#define MS_NS UINT64_C(1000000)

enum {
    SEND_SLICE_MS = 5, /* how long one wait for a full queue is */
};

static const proto_bytes_t no_bytes;

static uint64_t
now(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

static proto_bytes_t
routing_id_of(const actor_remote_t *remote)
{
    if (remote->routing_id_size == 0) {
        return no_bytes;
    }
    return (proto_bytes_t){remote->routing_id, remote->routing_id_size};
}

/* Messages that are worth less than the wait for a full queue. */
static bool
is_telemetry(proto_kind_t kind)
{
    return kind == PROTO_KIND_HEARTBEAT || kind == PROTO_KIND_STATS || kind == PROTO_KIND_LOAD ||
           kind == PROTO_KIND_BYE || kind == PROTO_KIND_NAK || kind == PROTO_KIND_LINKS ||
           kind == PROTO_KIND_REQUESTS || kind == PROTO_KIND_ACTORS;
}

/* Sends into a queue that may be full.  A peer that lets us wait too long is failed. */
static proto_status_t
send_patiently(actor_links_t *self, uint32_t link_index, const actor_remote_t *remote,
               proto_bytes_t header, proto_bytes_t body, proto_bytes_t blob, bool wait)
{
    actor_link_t *link = &self->links[link_index];
    proto_bytes_t routing_id = routing_id_of(remote);
    proto_parts_t parts = {header, body, blob};
    uint64_t deadline_ns = 0;
    for (;;) {
        proto_status_t status =
            remote->packs ? actor_socket_send_packed(&link->socket, routing_id, &parts)
                          : actor_socket_send(&link->socket, routing_id, header, body, blob);
        if (status != STATUS_AGAIN || !wait) {
            return status;
        }
        uint64_t now_ns = now();
        if (deadline_ns == 0) {
            deadline_ns = now_ns + self->options.send_wait_ns;
        } else if (now_ns >= deadline_ns) {
            return STATUS_ERR_DEADLINE;
        }
        struct pollfd item = {.fd = link->socket.fd, .events = POLLIN};
        (void)poll(&item, 1, SEND_SLICE_MS);
        /* A loop that only retries would never learn that the peer died. */
        (void)actor_socket_ready(&link->socket);
        actor_links_take_events(self, link_index);
        if (remote->state == ACTOR_REMOTE_FAILED) {
            return STATUS_ERR_PEER_LOST;
        }
    }
}

uint64_t
actor_links_next_sequence(const actor_links_t *self, uint32_t peer)
{
    bool is_up = peer > ACTOR_PEER_LOCAL && peer < ACTOR_PEER_COUNT_MAX &&
                 self->remotes[peer].state == ACTOR_REMOTE_UP;
    return is_up ? self->remotes[peer].sequence_out + 1 : 0;
}

void
actor_links_send(actor_links_t *self, uint32_t peer, proto_kind_t kind, uint64_t request,
                 uint64_t cause, proto_bytes_t body, proto_bytes_t blob)
{
    require(peer > 0 && peer < ACTOR_PEER_COUNT_MAX);
    actor_remote_t *remote = &self->remotes[peer];
    if (remote->state != ACTOR_REMOTE_UP) {
        self->counts.undeliverable++;
        return;
    }
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .epoch = self->options.epoch,
                             .sequence = remote->sequence_out + 1,
                             .request = request,
                             .cause = cause};
    uint8_t header_bytes[PROTO_HEADER_SIZE_MAX];
    size_t header_size = proto_header_encode(&header, header_bytes);
    if (ACTOR_FAULT_KIND("shell.before_send", kind)) {
        remote->sequence_out++; /* lost on its way */
        return;
    }
    bool telemetry = is_telemetry(kind);
    proto_status_t status =
        send_patiently(self, remote->link_index, remote, (proto_bytes_t){header_bytes, header_size},
                       body, blob, !telemetry);
    self->links[remote->link_index].look = true;
    if (status == STATUS_OK) {
        remote->sequence_out++;
        self->counts.messages_out++;
        self->counts.bytes_out += header_size + body.size_bytes + blob.size_bytes;
    } else if (status == STATUS_AGAIN) {
        self->counts.dropped_out++;
    } else if (status == STATUS_ERR_DEADLINE) {
        actor_links_fail(self, peer, "its queue was full for %" PRIu64 " ms (%s)",
                         self->options.send_wait_ns / MS_NS, proto_kind_name(kind));
    } else {
        actor_links_fail(self, peer, "its connection ended");
    }
}

/* Encodes one of the shell's own messages into the scratch memory. */
static proto_bytes_t
encode_own(actor_links_t *self, proto_kind_t kind, const proto_body_t *body, proto_bytes_t *blob)
{
    size_t body_bound = 0;
    size_t blob_bound = 0;
    proto_body_bound(kind, body, &body_bound, &blob_bound);
    require(body_bound <= sizeof self->scratch);
    require(blob_bound <= ACTOR_SCRATCH_BLOB_SIZE_BYTES);
    size_t size = 0;
    size_t blob_size = 0;
    proto_status_t status =
        proto_body_encode(kind, body, self->scratch, sizeof self->scratch, &size,
                          self->scratch_blob, ACTOR_SCRATCH_BLOB_SIZE_BYTES, &blob_size);
    require(status == STATUS_OK);
    *blob = (proto_bytes_t){blob_size > 0 ? self->scratch_blob : NULL, blob_size};
    return (proto_bytes_t){self->scratch, size};
}

void
actor_links_send_body(actor_links_t *self, uint32_t peer, proto_kind_t kind,
                      const proto_body_t *body)
{
    actor_links_send_answer(self, peer, kind, 0, body);
}

void
actor_links_send_answer(actor_links_t *self, uint32_t peer, proto_kind_t kind, uint64_t request,
                        const proto_body_t *body)
{
    proto_bytes_t blob;
    proto_bytes_t bytes = encode_own(self, kind, body, &blob);
    actor_links_send(self, peer, kind, request, 0, bytes, blob);
}

void
actor_links_send_raw(actor_links_t *self, actor_link_t *link, proto_bytes_t routing_id,
                     proto_kind_t kind, const proto_body_t *body)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .epoch = self->options.epoch};
    uint8_t header_bytes[PROTO_HEADER_SIZE_MAX];
    size_t header_size = proto_header_encode(&header, header_bytes);
    proto_bytes_t blob;
    proto_bytes_t body_bytes = encode_own(self, kind, body, &blob);
    require(blob.size_bytes == 0);
    if (ACTOR_FAULT_KIND("shell.before_send", kind)) {
        return;
    }
    proto_status_t status =
        actor_socket_send(&link->socket, routing_id, (proto_bytes_t){header_bytes, header_size},
                          body_bytes, no_bytes);
    link->look = true;
    if (status == STATUS_OK) {
        self->counts.messages_out++;
        self->counts.bytes_out += header_size + body_bytes.size_bytes;
    } else {
        self->counts.dropped_out++; /* handshakes are repeated by the one who wants the link */
    }
}
