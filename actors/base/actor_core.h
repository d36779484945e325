/* actor_core.h - what every actor's logic looks like: a deterministic step function.
 *
 * One input message in, messages out.  A core reads no clock, opens no socket, draws no random
 * number of its own, allocates nothing after its start and never waits: time comes with each
 * input, a wait is a deadline that comes back as a TIMER input.  The same core runs live (shell),
 * in replay (from a log) and in simulation (seeded bus).  One thread at a time. */
#ifndef ACTOR_CORE_H
#define ACTOR_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_codec.h"
#include "proto_pack.h"
#include "proto_status.h"

typedef struct {
    uint32_t index; /* a peer of this actor: ACTOR_PEER_LOCAL or what PEER_UP said */
} actor_peer_t;

enum {
    ACTOR_PEER_LOCAL = 0,  /* the actor's own shell: HTTP side, device thread */
    ACTOR_PEER_NONE = 255, /* nobody; never a destination */
    ACTOR_PEER_COUNT_MAX = 64,
};

/* What an actor says of itself in ACTOR_STATE. */
typedef enum {
    ACTOR_STATE_STARTING = 0,
    ACTOR_STATE_LOADING,
    ACTOR_STATE_READY,
    ACTOR_STATE_DRAINING,
    ACTOR_STATE_FAILING,
} actor_state_t;

/* What a core is given.  Pointers are lent for the call. */
typedef struct {
    uint64_t now_ns;              /* monotonic; never goes back between inputs */
    uint64_t sequence;            /* of inputs of this actor, from 1; `cause` of what follows */
    actor_peer_t from;            /* who sent it; ACTOR_PEER_LOCAL for the shell's own */
    const proto_header_t *header; /* kind, epoch of the sender, request */
    const proto_body_t *body;     /* decoded, range-checked views */
} actor_input_t;

/* What a core gives back: a bounded list of encoded messages. */
typedef struct actor_outbox actor_outbox_t;

/* Encodes a message to `to` into the outbox.  `request` 0 = none.  The outbox is sized so that one
 * step's messages always fit (actor_core_ops_t.outbox_size_bytes): running out is a bug and
 * aborts, as does a value beyond its limit in the message list. */
void actor_outbox_push(actor_outbox_t *outbox, actor_peer_t to, proto_kind_t kind, uint64_t request,
                       const proto_body_t *body);

typedef struct {
    const char *name; /* "scheduler" */
    proto_role_t role;
    size_t outbox_size_bytes;  /* most bytes that one step can emit, all parts */
    uint32_t outbox_count_max; /* most messages that one step can emit */

    /* Handles one input.  Cannot fail: what is wrong with an input is answered by messages. */
    void (*step)(void *core, const actor_input_t *input, actor_outbox_t *outbox);

    /* When the core wants a TIMER input; UINT64_MAX = never.  Asked after each step. */
    uint64_t (*deadline_ns)(const void *core);

    /* 64-bit digest of the state that decides future outputs; kept incrementally. */
    uint64_t (*digest)(const void *core);

    /* What this actor did so far, for STATS; the shell adds what it counts itself. */
    void (*stats)(const void *core, proto_stats_t *out);

    /* Step in work, for heartbeats (may be NULL: no steps).  Leaves *out untouched if idle. */
    void (*progress)(const void *core, uint64_t now_ns, proto_heartbeat_t *out);

    /* Walks invariants and aborts at the first broken one; tests and debug builds. */
    void (*check)(const void *core);

    /* After DRAIN: true when nothing is left to finish, so that the actor may end.  Asked after
     * each step while draining; NULL: at once. */
    bool (*idle)(const void *core);

    /* Canonical bytes of the whole state, options included: what ACTOR_core_restore() needs to make
     * a core that goes on exactly as this one.  `state` decides; `secret` holds what people wrote
     * and what the model answered (tokens, sampling), so that a log can be redacted: zeros of the
     * same size in its place must still restore.  NULL: this core has no snapshots. */
    void (*save)(const void *core, proto_pack_t *state, proto_pack_t *secret);
} actor_core_ops_t;

/* ---- for harnesses: shell, replay, simulator, tests ------------------------------------------ */

/* One emitted message.  Views live until the next actor_outbox_clear(). */
typedef struct {
    actor_peer_t to;
    proto_kind_t kind;
    uint64_t request;
    proto_bytes_t body; /* encoded */
    proto_bytes_t blob; /* encoded, 64-byte aligned; empty if there are no columns */
} actor_emission_t;

/* Makes an outbox for `ops`; the caller owns *out_p. */
MUST_CHECK proto_status_t actor_outbox_new(const actor_core_ops_t *ops, actor_outbox_t **out_p);
void actor_outbox_destroy(actor_outbox_t **self_p);
void actor_outbox_clear(actor_outbox_t *self);
uint32_t actor_outbox_count(const actor_outbox_t *self);
const actor_emission_t *actor_outbox_at(const actor_outbox_t *self, uint32_t index);

#endif
