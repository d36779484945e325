/* actor_socket.h - one ZeroMQ socket of a link, with everything set that libzmq 4.3.4 needs to be
 * told (docs/architecture.md, Messaging): mandatory ROUTER without handover, immediate DEALER,
 * bounded queues, bounded parts, a short transport handshake, no transport heartbeats, a monitor.
 *
 * Owns the socket and its monitor.  Knows nothing of messages.  One thread. */
#ifndef ACTOR_SOCKET_H
#define ACTOR_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "actor_keys.h"
#include "proto_codec.h"
#include "proto_frame.h"
#include "proto_status.h"

enum {
    ACTOR_ROUTING_ID_SIZE_MAX = 96,
    ACTOR_ENDPOINT_SIZE_MAX = 256,
};

typedef struct {
    const char *endpoint;
    bool bind;              /* ROUTER that binds, else DEALER that connects */
    const char *routing_id; /* of a DEALER */
    uint32_t queue_len_max; /* messages, each direction */
    size_t part_size_bytes_max;
    const actor_keys_t *keys; /* encrypts what goes over tcp://; NULL = nothing */
    proto_role_t peer_role;   /* with keys, of a DEALER: whose key it trusts */
} actor_socket_options_t;

typedef struct {
    void *handle;                           /* NULL = closed */
    void *monitor;                          /* NULL = the transport has no events */
    int fd;                                 /* readable: look at the socket (edge, not level) */
    int monitor_fd;                         /* -1 = none */
    bool router;                            /* else DEALER */
    bool has_keys;                          /* encrypted: messages carry the key that sent them */
    uint32_t server;                        /* of a DEALER with keys: the line of its binder's */
    char endpoint[ACTOR_ENDPOINT_SIZE_MAX]; /* really bound; as given if connected */
} actor_socket_t;

/* One received message.  The parts are reused from call to call. */
typedef struct {
    zmq_msg_t parts[PROTO_PART_COUNT_MAX];
    proto_parts_t packed; /* of a message that came packed; views into its one part */
    bool is_packed;
    const char *user;    /* the public key that its connection was let in with; "" = none */
    uint32_t count;      /* parts kept: at most PROTO_PART_COUNT_MAX */
    uint32_t count_sent; /* parts that came */
    size_t size_bytes;   /* of all that came */
} actor_frames_t;

typedef enum {
    ACTOR_SOCKET_EVENT_OTHER,
    ACTOR_SOCKET_EVENT_OPEN,    /* the transport's handshake succeeded */
    ACTOR_SOCKET_EVENT_CLOSED,  /* a connection ended */
    ACTOR_SOCKET_EVENT_REFUSED, /* the transport's handshake failed */
} actor_socket_event_t;

void actor_frames_init(actor_frames_t *frames);
void actor_frames_fini(actor_frames_t *frames);
/* Part `index` as the transport gave it, empty if there is none. */
proto_bytes_t actor_frames_part(actor_frames_t *frames, uint32_t index);
/* Header, body and blob, which begin at part `first`: packed into it, or it and those after it. */
proto_parts_t actor_frames_message(actor_frames_t *frames, uint32_t first);

/* True for ipc://, inproc:// and tcp:// on 127.x, [::1] or localhost. */
bool actor_endpoint_is_local(const char *endpoint);

/* With keys and tcp:// the link is encrypted and each end proves its key (CURVE).  An ipc:// socket
 * that is bound lets in only processes of this user and of root, and lies in a folder that nobody
 * else can write to.  STATUS_ERR_CONFIG for an endpoint that cannot be one, STATUS_ERR_IO if it is
 * in use or the system refuses; logged with the value and the remedy. */
MUST_CHECK proto_status_t actor_socket_open(void *context, const actor_socket_options_t *options,
                                            actor_socket_t *out);
/* `linger_ms`: how long unsent messages may stay; the context's end waits for it. */
void actor_socket_close(actor_socket_t *self, int linger_ms);

/* The next message, packed or not.  STATUS_AGAIN if there is none; STATUS_ERR_TOO_LARGE if it had
 * too many parts or bytes: taken off the queue whole, the first parts are in *frames. */
MUST_CHECK proto_status_t actor_socket_receive(actor_socket_t *self, size_t size_bytes_max,
                                               actor_frames_t *frames);

/* Copies one message into the queue; an empty blob is not sent.  `routing_id` for a ROUTER.
 * STATUS_AGAIN if the queue is full or nobody is connected, STATUS_ERR_PEER_LOST if a ROUTER knows
 * no such peer. */
MUST_CHECK proto_status_t actor_socket_send(actor_socket_t *self, proto_bytes_t routing_id,
                                            proto_bytes_t header, proto_bytes_t body,
                                            proto_bytes_t blob);
/* The same in one part (proto_frame.h), to a peer that reads such. */
MUST_CHECK proto_status_t actor_socket_send_packed(actor_socket_t *self, proto_bytes_t routing_id,
                                                   const proto_parts_t *parts);

/* Lets the library notice what happened to its connections (a retry loop that only sends never
 * learns that the peer died); returns ZMQ_POLLIN | ZMQ_POLLOUT as they hold now. */
int actor_socket_ready(actor_socket_t *self);

/* The next connection event; STATUS_AGAIN if there is none. */
MUST_CHECK proto_status_t actor_socket_event(actor_socket_t *self, actor_socket_event_t *out);

#endif
