/* actor_replay_state.h - the insides of one replay, shared by the files of actors/replay/ only. One
 * thread.
 *
 * actor_replay_play.c     records in order: snapshots, gaps, the end
 * actor_replay_input.c    inputs to the core, and to a device below it
 * actor_replay_compare.c  what was recorded against what came */
#ifndef ACTOR_REPLAY_STATE_H
#define ACTOR_REPLAY_STATE_H

#include <stdio.h>

#include "actor_replay.h"
#include "actor_replay_device.h"
#include "actor_replay_player.h"
#include "log_field.h"
#include "log_message.h"
#include "log_set.h"

typedef enum {
    REPLAY_SEEKING = 0, /* for a SNAPSHOT to begin with */
    REPLAY_RUNNING = 1,
    REPLAY_DONE = 2,
} replay_phase_t;

typedef struct {
    const actor_replay_options_t *options;
    actor_replay_report_t *report;
    uint32_t checks;
    const actor_replay_role_t *role;
    log_set_t *set;
    actor_replay_player_t *player;
    actor_replay_device_t *device; /* NULL = none */
    FILE *digests;                 /* NULL = none */
    log_decoder_t input_decoder;
    log_decoder_t recorded_decoder;
    log_decoder_t replayed_decoder;

    replay_phase_t phase;
    bool has_begun;
    uint64_t epoch;
    uint64_t begin_at;      /* the SNAPSHOT to begin with; 0 = the first one */
    uint64_t last_sequence; /* of records; 0 = none yet */
    uint64_t last_time_ns;
    uint64_t output_at;     /* outputs of the last input that were compared */
    uint64_t real_begin_ns; /* with realtime */
    uint64_t log_begin_ns;
} replay_t;

/* Ends the replay with a sentence. */
__attribute__((format(printf, 3, 4))) void
actor_replay_finish(replay_t *self, actor_replay_outcome_t outcome, const char *format, ...);
/* Ends it with what was found so far. */
void actor_replay_stop(replay_t *self, actor_replay_end_t end);
/* Records are missing, or one cannot be used: nothing is replayed until the next SNAPSHOT. */
void actor_replay_begin_gap(replay_t *self, uint64_t missing, const char *why);

/* While the core runs: gives it an IN or TIMER record; compares an OUT record. */
void actor_replay_on_input(replay_t *self, const proto_log_record_t *record);
void actor_replay_on_output(replay_t *self, const proto_log_record_t *record);

/* Compares an OUT record with the next output of the last input; a finding ends the replay. */
void actor_replay_compare_output(replay_t *self, const proto_log_record_t *record);
/* The next input comes: nothing more may have been answered to the last one. */
void actor_replay_compare_rest(replay_t *self);
void actor_replay_compare_digest(replay_t *self, uint64_t sequence, uint64_t recorded);
/* The bytes of a SNAPSHOT, part 1 and 2. */
void actor_replay_compare_state(replay_t *self, const proto_log_record_t *record);
void actor_replay_compare_deadline(replay_t *self, const proto_log_record_t *record,
                                   uint64_t recorded_ns);
/* Notes what differs and ends the replay. */
void actor_replay_note(replay_t *self, actor_replay_find_t what, uint64_t sequence,
                       const char *path, const char *recorded, const char *replayed);

static inline bool
replay_is_checked(const replay_t *self, uint32_t check, uint64_t sequence)
{
    return (self->checks & check) != 0 && sequence > self->options->checks_after;
}

#endif
