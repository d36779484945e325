#include "actor_conform_raw.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum {
    PART_SIZE_MAX = 1 << 20,
    BODY_SIZE_MAX = 64 * 1024,
    BLOB_SIZE_MAX = 1 << 20,
};

/* As actor_socket_open() does it, but for ZMQ_IMMEDIATE: with that, a connection's end may throw
 * away what came just before it and was not read yet, a BYE most of all. */
static proto_status_t
connect_socket(conform_raw_t *self, const char *endpoint, const char *routing_id)
{
    actor_socket_t *socket = &self->socket;
    socket->monitor_fd = -1;
    socket->handle = zmq_socket(self->context, ZMQ_DEALER);
    if (socket->handle == NULL) {
        return STATUS_ERR_IO;
    }
    int linger_ms = 0;
    int64_t size_max = PART_SIZE_MAX;
    size_t fd_size = sizeof socket->fd;
    bool made =
        zmq_setsockopt(socket->handle, ZMQ_ROUTING_ID, routing_id, strlen(routing_id)) == 0 &&
        zmq_setsockopt(socket->handle, ZMQ_LINGER, &linger_ms, sizeof linger_ms) == 0 &&
        zmq_setsockopt(socket->handle, ZMQ_MAXMSGSIZE, &size_max, sizeof size_max) == 0 &&
        zmq_getsockopt(socket->handle, ZMQ_FD, &socket->fd, &fd_size) == 0 &&
        zmq_connect(socket->handle, endpoint) == 0;
    return made ? STATUS_OK : STATUS_ERR_IO;
}

proto_status_t
actor_conform_raw_open(conform_raw_t *self, const char *endpoint, const char *name, uint64_t epoch,
                       uint64_t attempt)
{
    memset(self, 0, sizeof *self);
    char routing_id[ACTOR_ROUTING_ID_SIZE_MAX];
    (void)snprintf(routing_id, sizeof routing_id, "%s.%" PRIu64 ".%" PRIu64, name, epoch, attempt);
    (void)snprintf(self->name, sizeof self->name, "%s", name);
    self->role = PROTO_ROLE_GATEWAY;
    self->epoch = epoch;
    self->aligned = aligned_alloc(PROTO_COLUMN_ALIGN, PART_SIZE_MAX);
    self->context = zmq_ctx_new();
    if (self->aligned == NULL || self->context == NULL) {
        actor_conform_raw_close(self);
        return STATUS_ERR_NO_MEMORY;
    }
    actor_frames_init(&self->frames);
    proto_status_t status = connect_socket(self, endpoint, routing_id);
    if (status != STATUS_OK) {
        actor_conform_raw_close(self);
    }
    return status;
}

void
actor_conform_raw_close(conform_raw_t *self)
{
    if (self->socket.handle != NULL) {
        actor_socket_close(&self->socket, 200);
    }
    if (self->context != NULL) {
        if (self->aligned != NULL) {
            actor_frames_fini(&self->frames);
        }
        while (zmq_ctx_term(self->context) != 0 && errno == EINTR) {
        }
    }
    free(self->aligned);
    memset(self, 0, sizeof *self);
}

bool
actor_conform_raw_send_bytes(conform_raw_t *self, proto_bytes_t header, proto_bytes_t body,
                             proto_bytes_t blob)
{
    proto_bytes_t nobody = {NULL, 0};
    return actor_socket_send(&self->socket, nobody, header, body, blob) == STATUS_OK;
}

bool
actor_conform_raw_send_as(conform_raw_t *self, const proto_header_t *header,
                          const proto_body_t *body)
{
    static _Alignas(PROTO_COLUMN_ALIGN) uint8_t blob[BLOB_SIZE_MAX];
    static uint8_t bytes[BODY_SIZE_MAX];
    uint8_t head[PROTO_HEADER_SIZE_MAX];
    size_t head_size = proto_header_encode(header, head);
    size_t size = 0;
    size_t blob_size = 0;
    proto_status_t status = proto_body_encode(header->kind, body, bytes, sizeof bytes, &size, blob,
                                              sizeof blob, &blob_size);
    require(status == STATUS_OK);
    return actor_conform_raw_send_bytes(self, (proto_bytes_t){head, head_size},
                                        (proto_bytes_t){bytes, size},
                                        (proto_bytes_t){blob, blob_size});
}

bool
actor_conform_raw_send(conform_raw_t *self, proto_kind_t kind, uint64_t request,
                       const proto_body_t *body)
{
    bool counts = kind != PROTO_KIND_HELLO && kind != PROTO_KIND_READY;
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .epoch = self->epoch,
                             .sequence = counts ? self->sequence_out + 1 : 0,
                             .request = request};
    bool sent = actor_conform_raw_send_as(self, &header, body);
    self->sequence_out += sent && counts ? 1 : 0;
    return sent;
}

bool
actor_conform_raw_hello(conform_raw_t *self, uint32_t version_min, uint32_t version_max)
{
    proto_body_t body = {.hello = {.version_min = version_min,
                                   .version_max = version_max,
                                   .role = self->role,
                                   .name = proto_text(self->name),
                                   .epoch = self->epoch}};
    return actor_conform_raw_send(self, PROTO_KIND_HELLO, 0, &body);
}

bool
actor_conform_raw_ready(conform_raw_t *self)
{
    proto_body_t body = {.ready = {.epoch = self->epoch}};
    return actor_conform_raw_send(self, PROTO_KIND_READY, 0, &body);
}

proto_status_t
actor_conform_raw_receive(conform_raw_t *self)
{
    proto_status_t status = actor_socket_receive(&self->socket, 3 * PART_SIZE_MAX, &self->frames);
    if (status == STATUS_AGAIN) {
        return status;
    }
    self->is_readable = false;
    self->header = (proto_header_t){0};
    (void)snprintf(self->detail, sizeof self->detail, "too many parts or bytes");
    if (status != STATUS_OK) {
        return STATUS_OK;
    }
    if (proto_header_decode(actor_frames_part(&self->frames, 0), &self->header) != STATUS_OK) {
        (void)snprintf(self->detail, sizeof self->detail, "the header does not decode");
        return STATUS_OK;
    }
    proto_bytes_t blob = actor_frames_part(&self->frames, 2);
    if (blob.size_bytes > 0 && !proto_blob_is_aligned(blob)) {
        memcpy(self->aligned, blob.data, blob.size_bytes);
        blob.data = self->aligned;
    }
    proto_error_t error = {.detail = ""};
    self->is_readable = proto_kind_known(self->header.kind) &&
                        proto_body_decode(self->header.kind, actor_frames_part(&self->frames, 1),
                                          blob, &self->body, &error) == STATUS_OK;
    (void)snprintf(self->detail, sizeof self->detail, "%s", error.detail);
    return STATUS_OK;
}

void
actor_conform_raw_service(conform_raw_t *self, uint64_t now_ns)
{
    if (!self->beats || now_ns < self->beat_next_ns || self->socket.handle == NULL) {
        return;
    }
    proto_body_t body = {.heartbeat = {.progress = self->sequence_out}};
    (void)actor_conform_raw_send(self, PROTO_KIND_HEARTBEAT, 0, &body);
    self->beat_next_ns = now_ns + (self->heartbeat_ns > 0 ? self->heartbeat_ns : 250000000u);
}
