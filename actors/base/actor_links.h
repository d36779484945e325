/* actor_links.h - all links of one actor and the peers at their other ends: handshake, sequence
 * numbers, heartbeats, silence, sudden death, fencing of old incarnations, bounded sends.
 *
 * Owns the sockets.  Calls back into the shell; a peer's end is reported only at points where no
 * step is in work.  Never touches the core.  One thread.
 *
 * Handshake: HELLO (each 250 ms until answered) -> INIT or REFUSE -> READY.  A ROUTER (binder) has
 * many peers, a DEALER (connector) one.  A lost DEALER link is opened again with a new socket,
 * whose routing id name.epoch.attempt nobody has used before.
 * Long because the state of links and peers stands beside what is done with it. */
#ifndef ACTOR_LINKS_H
#define ACTOR_LINKS_H

#include "actor_core.h"
#include "actor_shell.h"
#include "actor_socket.h"
#include "actor_zap.h"

enum {
    ACTOR_LINK_COUNT_MAX = 16,
    ACTOR_LINK_CONTROL = ACTOR_LINK_COUNT_MAX, /* index of the supervisor's link */
    ACTOR_PEER_CONTROL = ACTOR_PEER_COUNT_MAX - 1,
    ACTOR_FENCE_COUNT = 128,
    ACTOR_DETAIL_SIZE_BYTES = 192,
    ACTOR_NAK_BURST = 50,                  /* answers to what is refused; then 50 a second */
    ACTOR_SCRATCH_SIZE_BYTES = 8192,       /* of the shell's own messages; all are smaller */
    ACTOR_SCRATCH_BLOB_SIZE_BYTES = 32768, /* and of their columns: REQUESTS has most */
};

typedef enum {
    ACTOR_REMOTE_FREE = 0,
    ACTOR_REMOTE_GREETED, /* INIT is out, READY is awaited */
    ACTOR_REMOTE_UP,
    ACTOR_REMOTE_FAILED, /* to be reported down at the next safe point */
} actor_remote_state_t;

/* The other end of a link. */
typedef struct {
    actor_remote_state_t state;
    bool known_to_core; /* PEER_UP was given, PEER_DOWN must follow */
    bool said_goodbye;  /* it left in good order: nothing to warn of */
    bool moved;         /* we left it, because the supervisor said so */
    uint32_t link_index;
    proto_role_t role;
    char name[PROTO_NAME_SIZE_BYTES];
    uint64_t epoch;
    uint64_t attempt; /* of a connector's socket */
    uint32_t key;     /* line of its key; ACTOR_KEY_NONE where the link has none */
    bool packs;       /* it reads packed messages, and we said that we do */
    uint8_t routing_id[ACTOR_ROUTING_ID_SIZE_MAX];
    size_t routing_id_size;     /* 0: it is the binder of our DEALER */
    uint64_t sequence_in;       /* last one received */
    uint64_t sequence_out;      /* last one sent */
    uint64_t unread_count;      /* messages whose header, and so whose number, was unreadable */
    uint64_t heard_ns;          /* when anything came last */
    uint64_t heartbeat_next_ns; /* when to send the next */
    uint64_t heartbeat_ns;      /* agreed interval */
    uint64_t silence_max_ns;    /* longer means down */
    char detail[ACTOR_DETAIL_SIZE_BYTES]; /* why it failed */
} actor_remote_t;

typedef struct {
    bool in_use;
    bool bind;
    bool required;
    proto_role_t peer_role;
    char endpoint[ACTOR_ENDPOINT_SIZE_MAX];
    char fingerprint[PROTO_TEXT_LEN_MAX + 1];
    uint32_t queue_len_max;
    size_t part_size_bytes_max;
    actor_socket_t socket;
    bool look;              /* something may be readable without a new wake-up */
    bool look_monitor;      /* and so may a connection event */
    uint32_t peer;          /* of a DEALER that is up; ACTOR_PEER_NONE otherwise */
    bool reopen;            /* of a DEALER: at the next safe point */
    uint64_t open_at_ns;    /* of a DEALER whose opening failed */
    uint64_t hello_next_ns; /* of a DEALER that is not up */
    uint32_t hello_count;   /* since this socket was opened */
    uint32_t probes_left;   /* of a ROUTER: somebody's connection ended, find out whose */
    bool probe_again;
    uint64_t probe_next_ns;
} actor_link_t;

/* What the links tell the shell.  `message` and `heartbeat` are called with a peer that is up. */
typedef struct {
    void (*up)(void *context, uint32_t peer);
    void (*down)(void *context, uint32_t peer);
    void (*message)(void *context, uint32_t peer, const proto_header_t *header,
                    proto_bytes_t body_bytes, proto_bytes_t blob_bytes, const proto_body_t *body);
    /* Fills in what the actor's own heartbeat says. */
    void (*progress)(void *context, uint64_t now_ns, proto_heartbeat_t *out);
} actor_links_hooks_t;

typedef struct {
    uint64_t messages_in;
    uint64_t messages_out;
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t refused_in;    /* did not decode, of an old incarnation, too large, from a stranger,
                               not for its role to say; connections with a wrong key */
    uint64_t gaps_in;       /* sequence numbers that never came */
    uint64_t duplicates_in; /* dropped */
    uint64_t naks_in;       /* our own messages that a peer refused */
    uint64_t dropped_out;   /* telemetry for a full queue */
    uint64_t undeliverable; /* messages for a peer that is gone */
} actor_links_counts_t;

typedef struct {
    const char *name;
    proto_role_t role;
    uint64_t epoch;
    uint64_t heartbeat_ns;
    uint32_t missed_max;
    uint64_t send_wait_ns;
    bool allow_remote;
    const actor_keys_t *keys; /* of what goes over tcp://; lent; NULL = none */
    bool heartbeats_to_core;
    void *zmq_context; /* NULL: make one */
} actor_links_options_t;

typedef struct {
    char name[PROTO_NAME_SIZE_BYTES];
    uint64_t epoch_min; /* lower ones are refused */
} actor_fence_t;

typedef struct {
    actor_links_options_t options;
    actor_links_hooks_t hooks;
    void *hooks_context;
    void *zmq_context;
    bool owns_context;
    actor_link_t links[ACTOR_LINK_COUNT_MAX + 1]; /* the last one is the supervisor's */
    actor_remote_t remotes[ACTOR_PEER_COUNT_MAX];
    uint32_t open_mask;   /* bit of each link that is in use */
    uint64_t peer_mask;   /* bit of each peer that is not FREE: a round looks at no others */
    uint64_t failed_mask; /* bit of each that is FAILED */
    actor_fence_t fences[ACTOR_FENCE_COUNT];
    uint32_t fence_next;
    actor_links_counts_t counts;
    proto_status_t failure; /* what ends the actor; STATUS_OK: nothing so far */
    uint64_t serviced_ns;   /* when the last round began */
    uint64_t nak_filled_ns; /* token bucket of answers to strangers */
    uint32_t nak_tokens;
    actor_zap_t zap;           /* says which keys may connect; closed where there are none */
    uint64_t insecure_next_ns; /* when to warn again of an open address; 0 = there is none */
    bool ending;               /* losses are no failures any more */
    actor_frames_t frames;
    proto_body_t body; /* of the message in work */
    uint8_t *aligned;  /* copy of a blob that lies at an odd address */
    size_t aligned_size_bytes;
    uint8_t scratch[ACTOR_SCRATCH_SIZE_BYTES];
    uint8_t *scratch_blob; /* [ACTOR_SCRATCH_BLOB_SIZE_BYTES], aligned */
} actor_links_t;

MUST_CHECK proto_status_t actor_links_new(const actor_links_options_t *options,
                                          const actor_links_hooks_t *hooks, void *hooks_context,
                                          actor_links_t **out_p);

/* Opens a link at `index` (ACTOR_LINK_CONTROL for the supervisor's). */
MUST_CHECK proto_status_t actor_links_open(actor_links_t *self, uint32_t index,
                                           const actor_link_options_t *options);

/* BYE on every link, then closes; at most `linger_ns` for what is queued. */
void actor_links_destroy(actor_links_t **self_p, uint64_t linger_ns);

/* One round without waiting: events, at most `message_count_max` messages from each link,
 * handshakes, heartbeats, silence.  *wait_ns is lowered to when it wants to be called again. */
MUST_CHECK proto_status_t actor_links_service(actor_links_t *self, uint32_t message_count_max,
                                              uint64_t *wait_ns);

/* The number that the next message to `peer` will have on its link; 0 if the peer is not up or is
 * the actor itself. */
uint64_t actor_links_next_sequence(const actor_links_t *self, uint32_t peer);

/* Sends to a peer, whose failure is reported later through hooks.down. */
void actor_links_send(actor_links_t *self, uint32_t peer, proto_kind_t kind, uint64_t request,
                      uint64_t cause, proto_bytes_t body, proto_bytes_t blob);

/* The same for a message of the shell's own. */
void actor_links_send_body(actor_links_t *self, uint32_t peer, proto_kind_t kind,
                           const proto_body_t *body);
void actor_links_send_answer(actor_links_t *self, uint32_t peer, proto_kind_t kind,
                             uint64_t request, const proto_body_t *body);

/* The incarnation `epoch` of `name` is dead: its links are down, its return is refused. */
void actor_links_fence(actor_links_t *self, proto_text_t name, uint64_t epoch, const char *why);

/* Leaves the peers of `role` that this actor connected to, and connects to `endpoint` instead; a
 * peer that is there now goes down at the next safe point.  STATUS_ERR_NOT_FOUND if no link is for
 * that role, STATUS_ERR_CONFIG for an endpoint that may not be used. */
MUST_CHECK proto_status_t actor_links_relink(actor_links_t *self, proto_role_t role,
                                             proto_text_t endpoint);

/* A peer of that role that is up; ACTOR_PEER_NONE if there is none. */
uint32_t actor_links_find_role(const actor_links_t *self, proto_role_t role);

/* The endpoint of the link that `peer` is at the other end of; NULL if it is the one that
 * connected. */
const char *actor_links_endpoint_of(const actor_links_t *self, uint32_t peer);

/* Reports peers that failed since the last safe point. */
void actor_links_reap(actor_links_t *self);

/* Descriptors to poll; returns how many were written. */
uint32_t actor_links_fds(const actor_links_t *self, int *fds, uint32_t capacity);

/* Notes that descriptor `fd` is readable; without it, the next round looks only at what is known
 * to hold something. */
void actor_links_readable(actor_links_t *self, int fd);
/* Notes that any of them may be. */
void actor_links_readable_all(actor_links_t *self);
/* True if a message may be waiting without a new wake-up: something was sent since the last look,
 * which may have swallowed it. */
bool actor_links_pending(actor_links_t *self);

#endif
