/* actor_conform_raw.h - a link by hand: one DEALER whose every byte the scenes decide, for what the
 * real shell would never send.
 *
 * Owns its socket and ZeroMQ context.  One thread. */
#ifndef ACTOR_CONFORM_RAW_H
#define ACTOR_CONFORM_RAW_H

#include "actor_socket.h"
#include "proto_codec.h"

typedef struct {
    void *context;
    actor_socket_t socket;
    actor_frames_t frames;
    proto_role_t role;
    char name[PROTO_NAME_SIZE_BYTES];
    uint64_t epoch;
    uint64_t sequence_out; /* last one sent */
    bool beats;            /* send heartbeats when asked to service */
    uint64_t beat_next_ns;
    uint64_t heartbeat_ns; /* as INIT said */

    /* The last message received. */
    proto_header_t header;
    proto_body_t body;
    uint8_t *aligned; /* copy of a blob at an odd address */
    bool is_readable; /* header and body decoded */
    char detail[160]; /* why not */
} conform_raw_t;

/* Connects.  The routing id is name.epoch.attempt.  STATUS_ERR_IO, ERR_CONFIG, ERR_NO_MEMORY. */
MUST_CHECK proto_status_t actor_conform_raw_open(conform_raw_t *self, const char *endpoint,
                                                 const char *name, uint64_t epoch,
                                                 uint64_t attempt);
void actor_conform_raw_close(conform_raw_t *self);

/* Sends a message with the next sequence number (handshakes: 0).  False if the queue is full. */
bool actor_conform_raw_send(conform_raw_t *self, proto_kind_t kind, uint64_t request,
                            const proto_body_t *body);
/* The same with the header's fields as given. */
bool actor_conform_raw_send_as(conform_raw_t *self, const proto_header_t *header,
                               const proto_body_t *body);
/* Sends bytes as they are. */
bool actor_conform_raw_send_bytes(conform_raw_t *self, proto_bytes_t header, proto_bytes_t body,
                                  proto_bytes_t blob);
bool actor_conform_raw_hello(conform_raw_t *self, uint32_t version_min, uint32_t version_max);
bool actor_conform_raw_ready(conform_raw_t *self);

/* The next message; STATUS_AGAIN if there is none. */
MUST_CHECK proto_status_t actor_conform_raw_receive(conform_raw_t *self);
/* Sends a heartbeat if one is due. */
void actor_conform_raw_service(conform_raw_t *self, uint64_t now_ns);

#endif
