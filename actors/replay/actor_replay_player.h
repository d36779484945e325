/* actor_replay_player.h - what is fed: the core of this build, or a program that is one.
 *
 * Private to actors/replay/.  One thread: that of the replay. */
#ifndef ACTOR_REPLAY_PLAYER_H
#define ACTOR_REPLAY_PLAYER_H

#include "actor_core.h"
#include "actor_replay_role.h"
#include "proto_log.h"

typedef struct actor_replay_player actor_replay_player_t;

/* The operations of one kind of player; `self` is what its maker gave. */
typedef struct {
    /* Makes the core anew from a SNAPSHOT.  NULL: it can only begin at the first input. */
    proto_status_t (*restore)(actor_replay_player_t *self, proto_bytes_t state,
                              proto_bytes_t secret, proto_error_t *error);
    /* A CHANNEL_DEF record came; may be NULL. */
    proto_status_t (*define)(actor_replay_player_t *self, const proto_log_record_t *record,
                             proto_error_t *error);
    /* One input: decoded, and the record that it came in.  Its outputs are there until the next
     * call. */
    proto_status_t (*step)(actor_replay_player_t *self, const actor_input_t *input,
                           const proto_log_record_t *record, proto_error_t *error);
    uint32_t (*output_count)(const actor_replay_player_t *self);
    const actor_emission_t *(*output)(const actor_replay_player_t *self, uint32_t index);
    /* False if it keeps none. */
    bool (*digest)(const actor_replay_player_t *self, uint64_t *out);
    /* When it wants its TIMER; NULL: nobody knows. */
    uint64_t (*deadline_ns)(const actor_replay_player_t *self);
    /* Its snapshot; NULL or false: it has none.  The views live until the next call. */
    bool (*save)(actor_replay_player_t *self, proto_bytes_t *state, proto_bytes_t *secret);
    void (*describe)(actor_replay_player_t *self, char *out, size_t capacity_bytes);
    void (*destroy)(actor_replay_player_t **self_p);
} actor_replay_player_ops_t;

struct actor_replay_player {
    const actor_replay_player_ops_t *ops; /* first in every player */
};

/* The core of this build for `role`; there is none before the first restore.  The caller owns
 * *out_p. */
MUST_CHECK proto_status_t actor_replay_core_new(const actor_replay_role_t *role,
                                                actor_replay_player_t **out_p);

/* A program: `command` for the shell, ONEPATH_REPLAY=1 in its environment, records on its stdin and
 * stdout (docs/debugging.md, Programs as cores).  Each input must be answered within `timeout_ns`;
 * the failures are STATUS_ERR_DEADLINE, STATUS_ERR_PEER_LOST (it ended) and STATUS_ERR_MALFORMED
 * (it broke the contract), with a sentence.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_replay_program_new(const char *command, uint64_t timeout_ns,
                                                   actor_replay_player_t **out_p,
                                                   proto_error_t *error);

#endif
