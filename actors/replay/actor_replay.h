/* actor_replay.h - one actor from its log: the core alone is fed the recorded inputs, and what it
 * answers is compared with what was recorded.
 *
 * Owns the comparison and its report.  Opens no socket and asks no clock on behalf of the core:
 * time comes from the records.  A log file is hostile input, and so is the core (it may be a new
 * and broken one): actor_replay_run() lets both meet in a child process.  One thread. */
#ifndef ACTOR_REPLAY_H
#define ACTOR_REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "actor_replay_role.h"
#include "proto_codec.h"
#include "proto_ids.h"
#include "proto_log.h"
#include "proto_status.h"

enum {
    ACTOR_REPLAY_GAP_COUNT_MAX = 16,      /* gaps that are told one by one */
    ACTOR_REPLAY_TEXT_SIZE_BYTES = 512,   /* a sentence */
    ACTOR_REPLAY_WORDS_SIZE_BYTES = 2048, /* the last words of a core that died */
    ACTOR_REPLAY_FIGURES_SIZE_BYTES = 2048,
};

/* What is compared; bits of options.checks. */
enum {
    ACTOR_REPLAY_CHECK_OUTPUTS = 1,   /* every OUT record: to whom, kind, request, each field */
    ACTOR_REPLAY_CHECK_DIGESTS = 2,   /* every STATE_DIGEST */
    ACTOR_REPLAY_CHECK_SNAPSHOTS = 4, /* every SNAPSHOT: its digest and its bytes */
    ACTOR_REPLAY_CHECK_DEADLINES = 8, /* every TIMER: the deadline that the core had asked for */
    ACTOR_REPLAY_CHECK_ALL = 15,
};

typedef struct actor_replay_report actor_replay_report_t;

/* A zero means the value in the comment.  Strings are lent for the call. */
typedef struct {
    const char *const *paths; /* segments of one incarnation of one actor, or their folder */
    uint32_t path_count;
    const char *actor;          /* its name or role, to pick it from a folder; none */
    uint64_t epoch;             /* which incarnation; the only one */
    uint64_t from_sequence;     /* begin with the last SNAPSHOT at or before; the first one */
    uint64_t until_sequence;    /* stop before the first input with a higher sequence; the end */
    proto_kind_t break_kind;    /* stop before the first input of this kind; never */
    uint32_t checks;            /* ACTOR_REPLAY_CHECK_*; all */
    uint64_t checks_after;      /* outputs, digests and deadlines of records up to here are not
                                   compared; all are */
    uint64_t probe_sequence;    /* compare the digest of this record only, then stop; do not */
    bool realtime;              /* as fast as it was recorded */
    bool dump;                  /* figures of the state where it stopped, also without a finding */
    const char *digests_path;   /* a file to write "NUMBER SEQUENCE DIGEST" to, a line after each
                                   input; none */
    const char *program;        /* a shell command as the core; the core of this build */
    uint64_t answer_timeout_ns; /* of one input, program or core: 30 s */
    const char *device_model;   /* executor: carry its launches out with this model; do not */
    const char *device_kernels; /* instruction set of that device: "auto" */
    double tolerance;           /* of log-probabilities from that device; exact */
    const actor_replay_role_t *role; /* how to make the core; by the role in the log */
    void (*progress)(void *context, const actor_replay_report_t *report); /* told now and then;
                                                                             none */
    void *progress_context;
} actor_replay_options_t;

typedef enum {
    ACTOR_REPLAY_SAME = 0,     /* nothing differs */
    ACTOR_REPLAY_DIVERGED = 1, /* something does: `finding` */
    ACTOR_REPLAY_DIED = 2,     /* the core aborted, hung or broke the contract: `detail`, `words` */
    ACTOR_REPLAY_REFUSED = 3,  /* there is nothing to replay: `detail` */
} actor_replay_outcome_t;

/* Why it stopped. */
typedef enum {
    ACTOR_REPLAY_END = 0,        /* the log ends */
    ACTOR_REPLAY_END_TORN = 1,   /* the log ends within a record */
    ACTOR_REPLAY_END_DAMAGE = 2, /* the log is damaged there */
    ACTOR_REPLAY_END_UNTIL = 3,
    ACTOR_REPLAY_END_BREAK = 4,
    ACTOR_REPLAY_END_PROBE = 5,
    ACTOR_REPLAY_END_GAP = 6, /* records are missing and the core cannot be restored */
} actor_replay_end_t;

typedef enum {
    ACTOR_REPLAY_FIND_NONE = 0,
    ACTOR_REPLAY_FIND_FIELD,    /* a field of an output */
    ACTOR_REPLAY_FIND_TO,       /* who an output goes to */
    ACTOR_REPLAY_FIND_KIND,     /* the kind of an output */
    ACTOR_REPLAY_FIND_REQUEST,  /* the request that an output names */
    ACTOR_REPLAY_FIND_MISSING,  /* a recorded output does not come */
    ACTOR_REPLAY_FIND_EXTRA,    /* an output comes that was not recorded */
    ACTOR_REPLAY_FIND_DIGEST,   /* the digest of the state */
    ACTOR_REPLAY_FIND_STATE,    /* the bytes of a snapshot */
    ACTOR_REPLAY_FIND_DEADLINE, /* when the core wanted its TIMER */
    ACTOR_REPLAY_FIND_RESTORE,  /* a restored core has another digest than the recorded one */
    ACTOR_REPLAY_FIND_DEVICE,   /* a step's outputs on a real device */
} actor_replay_find_t;

/* An input of the core. */
typedef struct {
    uint64_t number;   /* input.sequence; 0 = none yet */
    uint64_t sequence; /* of its record */
    uint64_t time_ns;
    proto_kind_t kind;
    uint32_t from;
    uint64_t request;
} actor_replay_input_t;

/* The first divergence. */
typedef struct {
    actor_replay_find_t what;
    uint64_t sequence;     /* of the record that was compared; 0 = there is none (EXTRA) */
    uint32_t output_index; /* of this input's outputs, from 0 */
    proto_kind_t kind;     /* of the output */
    uint32_t to;           /* its destination, as recorded (EXTRA: as replayed) */
    char path[128];        /* field path, as log_field_diff_t */
    char recorded[256];
    char replayed[256];
    uint32_t more_count; /* further fields of this message that differ */
} actor_replay_finding_t;

typedef struct {
    uint64_t after_sequence;  /* the last record before it */
    uint64_t missing;         /* records, if known */
    uint64_t resume_sequence; /* the SNAPSHOT from which replay went on; 0 = none came */
    char why[96];
} actor_replay_gap_t;

/* Fixed size and without pointers: it lives in memory that is shared with the child. */
struct actor_replay_report {
    actor_replay_outcome_t outcome;
    actor_replay_end_t end;
    char detail[ACTOR_REPLAY_TEXT_SIZE_BYTES]; /* DIED, REFUSED: a sentence */
    char words[ACTOR_REPLAY_WORDS_SIZE_BYTES]; /* DIED: the last lines on its stderr */

    /* The log. */
    char actor[PROTO_NAME_SIZE_BYTES];
    proto_role_t role;
    uint64_t epoch;
    char build[PROTO_LOG_BUILD_SIZE_BYTES];
    bool is_other_schema; /* recorded by a build with other message tables */
    bool is_redacted;     /* some records have no private content */

    /* How far it is. */
    uint64_t beat;              /* counts records; for the watch over the child */
    uint64_t begin_sequence;    /* the SNAPSHOT that it began with; 0 = from the first input */
    uint64_t begin_input;       /* inputs before it */
    actor_replay_input_t input; /* the last one that was given to the core */
    bool is_stepping;           /* the core is at work on it */
    uint64_t record_count;
    uint64_t input_count;
    uint64_t output_count;
    uint64_t digest_count;
    uint64_t snapshot_count; /* compared */
    uint64_t timer_count;
    uint64_t device_step_count;
    uint64_t uncompared_count;  /* outputs that were recorded only in part */
    uint32_t tail_count;        /* outputs of the last input that the log does not hold any more */
    uint64_t first_ns, last_ns; /* time of the log that was replayed */
    uint64_t wall_ns;
    uint64_t digest_sequence; /* the last record whose digest agreed; 0 = none */
    uint64_t digest;
    uint64_t digest_input; /* the input after which it was taken */

    actor_replay_finding_t finding;
    actor_replay_input_t stop; /* UNTIL, BREAK: the input that would come next */
    uint32_t gap_count;        /* all of them */
    actor_replay_gap_t gaps[ACTOR_REPLAY_GAP_COUNT_MAX];
    char figures[ACTOR_REPLAY_FIGURES_SIZE_BYTES]; /* of the state: lines of "name: value" */
};

/* Replays in a child process and waits for it; what the core says on stderr goes to ours.
 * STATUS_OK whatever was found (*out says), STATUS_ERR_NO_MEMORY or STATUS_ERR_IO without a child.
 */
MUST_CHECK proto_status_t actor_replay_run(const actor_replay_options_t *options,
                                           actor_replay_report_t *out);

/* The same within this process: a broken core takes it along.  *report is zeroed first and kept
 * up to date. */
void actor_replay_play(const actor_replay_options_t *options, actor_replay_report_t *report);

/* Writes the input with this record sequence as people read it: direction, peer, kind, body as JSON
 * (private content as sizes, columns cut).  STATUS_ERR_NOT_FOUND if the log has none. */
MUST_CHECK proto_status_t actor_replay_describe(const actor_replay_options_t *options,
                                                uint64_t sequence, char *out,
                                                size_t capacity_bytes);

/* "an output's field", ...: what was found, in words. */
const char *actor_replay_find_text(actor_replay_find_t what);

#endif
