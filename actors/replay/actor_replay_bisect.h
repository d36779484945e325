/* actor_replay_bisect.h - which input was the first after which something is wrong.
 *
 * Owns the search; the replays run in child processes (actor_replay.h).  It takes for granted that
 * what is wrong stays wrong: a state that differs once differs at all later digests, a prefix that
 * fails makes all longer ones fail.  One thread. */
#ifndef ACTOR_REPLAY_BISECT_H
#define ACTOR_REPLAY_BISECT_H

#include "actor_replay.h"

enum { ACTOR_REPLAY_BISECT_POINT_COUNT_MAX = 1 << 22 };

typedef struct {
    actor_replay_outcome_t outcome; /* SAME: nothing was found; DIED: the core did, `last` says at
                                       which input */
    char detail[ACTOR_REPLAY_TEXT_SIZE_BYTES]; /* REFUSED: a sentence */
    uint32_t digest_count;   /* recorded digests that could be asked, snapshots included */
    uint32_t snapshot_count; /* of these, places to begin */
    uint32_t probe_count;    /* replays, or runs of the command */
    uint64_t input_count;    /* inputs of the log */
    uint64_t good_sequence;  /* the last recorded digest that this build agrees with, */
    uint64_t good_input;     /*   and after which input it was taken */
    uint64_t bad_sequence;   /* the first that it disagrees with; 0 = none */
    uint64_t bad_input;
    bool is_by_digest;          /* found by the digests of another build, input by input: exact */
    actor_replay_input_t input; /* what was found; number 0 = the end of the log */
    uint64_t good_digest, bad_digest; /* with is_by_digest: of the other build, and of this one */
    actor_replay_report_t last;       /* the replay of the interval, step by step */
    actor_replay_report_t early; /* of what is before it: messages may differ under equal digests */
} actor_replay_bisect_t;

/* Searches the recorded digests: each probe begins at the last SNAPSHOT that is known to be good.
 * Within the interval that is left the outputs say which input it was; `good_command` (may be NULL)
 * says it exactly: a shell command that prints the digests of a build that is right, as `onepath
 * log replay FILE --digests` does, with {log} for the paths.  STATUS_OK whatever was found;
 * STATUS_ERR_NO_MEMORY, STATUS_ERR_IO.  `folder` is for files of its own. */
MUST_CHECK proto_status_t actor_replay_bisect(const actor_replay_options_t *options,
                                              const char *good_command, const char *folder,
                                              actor_replay_bisect_t *out);

/* Searches for the first prefix of the inputs with which a shell command fails (exit code not 0);
 * {log} in it stands for a file with the prefix.  A run that takes longer than
 * options->answer_timeout_ns (0 = 10 minutes) fails. */
MUST_CHECK proto_status_t actor_replay_bisect_command(const actor_replay_options_t *options,
                                                      const char *command, const char *folder,
                                                      actor_replay_bisect_t *out);

#endif
