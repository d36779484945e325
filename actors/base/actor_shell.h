/* actor_shell.h - the one shell that runs any core over ZeroMQ.
 *
 * It owns the sockets, the handshake, heartbeats and peer liveness, sequence numbers, the record
 * ring and the statistics.  It polls, decodes, steps, encodes, sends.  All calls from one thread,
 * except those that say otherwise.
 *
 * A message that does not decode is counted, answered with NAK and dropped; the link goes on.
 * A peer of an old epoch is refused.  ZMQ_HEARTBEAT_* is off; the shell's own heartbeats carry the
 * core's progress, so a stuck core is seen. */
#ifndef ACTOR_SHELL_H
#define ACTOR_SHELL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "actor_core.h"
#include "actor_keys.h"

typedef struct actor_shell actor_shell_t;

typedef struct {
    proto_role_t peer_role;  /* whom this link is to; NONE: any role (the supervisor's own link) */
    const char *endpoint;    /* ipc:// or tcp:// or inproc:// */
    bool bind;               /* true: ROUTER that binds; false: DEALER that connects */
    const char *fingerprint; /* must match the peer's; NULL or "" = nothing to compare */
    bool required;           /* its loss makes actor_shell_run() return STATUS_ERR_PEER_LOST */
    uint32_t queue_len_max;  /* messages that may wait in each direction; 0 = 1024 */
    size_t part_size_bytes_max; /* of one part of a message; 0 = PROTO_BLOB_SIZE_MAX */
} actor_link_options_t;

/* Messages that the core sends to ACTOR_PEER_LOCAL; called within actor_shell_service(). */
typedef void (*actor_local_fn)(void *context, const actor_emission_t *emission);

typedef struct {
    const char *name; /* [a-z0-9-]{1,31}, unique in the node */
    uint64_t epoch;   /* from the supervisor; or made from the time when alone */
    const actor_core_ops_t *ops;
    void *core; /* lent; lives longer than the shell */
    const actor_link_options_t *links;
    uint32_t link_count;
    const char *supervisor_endpoint; /* control link; NULL when the actor runs alone */
    int ring_fd;                     /* record ring (actor_ring.h); -1 = record nothing */
    uint64_t heartbeat_ns;           /* 0 = 250 ms */
    uint32_t missed_max;             /* heartbeats missed before a peer is down; 0 = 4 */
    actor_local_fn local;            /* may be NULL if the core never sends to LOCAL */
    void *local_context;
    /* A COMMAND of the supervisor, for what the core does not know of.  Called on the shell's
     * thread within actor_shell_service(), so it must not wait; `wish` and its texts are lent for
     * the call.  Several may be in work: each is answered once, then or later, by any thread, with
     * actor_shell_answer() and its `number`.  NULL: each is answered with UNSUPPORTED. */
    void (*command)(void *context, uint64_t number, const proto_command_t *wish);
    void *command_context;
    /* A LOOK, HOLD or ACTORS of the supervisor, for what the core does not know of; the same rules.
     * A LOOK is answered within the call, with actor_shell_show().  NULL: a LOOK is answered with
     * UNSUPPORTED, the others are dropped. */
    void (*told)(void *context, const proto_header_t *header, const proto_body_t *body);
    void *told_context;
    uint64_t send_wait_ns;    /* a full link may hold the shell this long, then its peer is
                                 failed; 0 = 200 ms */
    size_t post_size_bytes;   /* of the queue of actor_shell_post(); 0 = 8 MiB */
    bool allow_remote;        /* permit endpoints beyond ipc:// and loopback without keys */
    const actor_keys_t *keys; /* encrypts tcp:// links, says who may connect; lent; NULL = those of
                                 the process (actor_keys.h) */
    bool heartbeats_to_core;  /* the core also gets each HEARTBEAT (supervisor) */
    void *zmq_context;        /* lent, for inproc:// in one process; NULL = its own */
    const atomic_int *stop;   /* watched by actor_shell_run(), set by a signal handler: 1 = as
                                 actor_shell_drain() with 60 s, above = as actor_shell_stop();
                                 NULL = none */
} actor_shell_options_t;

/* Opens the sockets (the binder's endpoint may hold ":*"; see actor_shell_endpoint).
 * STATUS_ERR_CONFIG for a bad endpoint, STATUS_ERR_IO if it is in use; both are logged with the
 * value and the remedy.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_shell_new(const actor_shell_options_t *options,
                                          actor_shell_t **out_p);

/* Says BYE on each link, waits at most `linger_ns` for it to leave, closes.  Nulls *self_p. */
void actor_shell_destroy(actor_shell_t **self_p, uint64_t linger_ns);

/* Services links and timers until STOP and drain (STATUS_OK), actor_shell_stop(), or the loss of
 * a required link or of the supervisor (STATUS_ERR_PEER_LOST). */
MUST_CHECK proto_status_t actor_shell_run(actor_shell_t *self);

/* One non-blocking round: drains sockets (capped for fairness) and posted messages, steps the
 * core, fires timers, sends heartbeats.  *wait_ns gets how long a poll may sleep.  STATUS_END
 * when actor_shell_run() would return STATUS_OK. */
MUST_CHECK proto_status_t actor_shell_service(actor_shell_t *self, uint64_t *wait_ns);

/* File descriptors to poll for reading before the next actor_shell_service(); returns how many
 * of at most `capacity` were written.  They stay the same until a link reconnects; ask again
 * after each service. */
uint32_t actor_shell_fds(const actor_shell_t *self, int *fds, uint32_t capacity);

/* Gives the core an input from its own side (ACTOR_PEER_LOCAL), from the shell's thread: steps
 * the core at once.  Called from within actor_local_fn, it waits until the messages of the step in
 * work are out.  What the step sends may swallow the wake-up of a message that comes meanwhile:
 * call actor_shell_service() once more before you wait. */
void actor_shell_inject(actor_shell_t *self, proto_kind_t kind, uint64_t request,
                        const proto_body_t *body);

/* The same from any other thread: copies the encoded message into a bounded queue and wakes the
 * shell.  Blocks while the queue is full unless the shell is stopping (STATUS_ERR_CANCELLED). */
MUST_CHECK proto_status_t actor_shell_post(actor_shell_t *self, proto_kind_t kind, uint64_t request,
                                           const proto_body_t *body);

/* Ends actor_shell_run() at once; async-signal-safe, any thread. */
void actor_shell_stop(actor_shell_t *self);

/* As STOP from the supervisor: DRAIN to the core, then the end when it is idle or `grace_ns` is
 * over.  For SIGTERM where an actor runs alone; async-signal-safe, any thread. */
void actor_shell_drain(actor_shell_t *self, uint64_t grace_ns);

/* True from STOP or actor_shell_drain() on. */
bool actor_shell_is_draining(const actor_shell_t *self);

/* Makes the shell's poll return; async-signal-safe, any thread. */
void actor_shell_wake(actor_shell_t *self);

/* Tells the supervisor how loading goes; any thread; `state` is an actor_state_t. */
void actor_shell_report(actor_shell_t *self, uint32_t state, uint64_t done_bytes,
                        uint64_t total_bytes, const char *detail);

/* Answers the COMMAND `number` of the supervisor; any thread; `detail` is copied.  At most 8
 * answers wait to be sent, which is all that the supervisor asks at once; one more is dropped and
 * logged. */
void actor_shell_answer(actor_shell_t *self, uint64_t number, proto_status_t status,
                        const char *detail);

/* Answers the LOOK `number` of the supervisor with a REQUESTS or a LOAD; the shell's thread.  What
 * does not fit the queue of the link is dropped: who asked has a deadline. */
void actor_shell_show(actor_shell_t *self, uint64_t number, proto_kind_t kind,
                      const proto_body_t *body);

/* The endpoint that link `index` really bound (a port in place of ":*"); lent. */
const char *actor_shell_endpoint(const actor_shell_t *self, uint32_t index);

/* What the shell counted, with the core's own numbers added. */
void actor_shell_stats(const actor_shell_t *self, proto_stats_t *out);

#endif
