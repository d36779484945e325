/* actor_supervisor.h - starts the actors of one host, watches them, restarts them, ends them.
 *
 * It owns the child processes, the run folder, the epochs and the memory of the record rings.  It
 * never touches a request.  One thread (the caller's); signals are blocked and read through a
 * descriptor, so nothing runs in a handler. */
#ifndef ACTOR_SUPERVISOR_H
#define ACTOR_SUPERVISOR_H

#include <stdbool.h>
#include <stdint.h>

#include "proto_codec.h"
#include "proto_status.h"

enum {
    ACTOR_SUPERVISOR_CHILD_COUNT_MAX = 16,
    ACTOR_SUPERVISOR_ARGUMENT_COUNT_MAX = 96,
    ACTOR_SUPERVISOR_LOG_LINES = 50, /* last lines of a child, shown on escalation */
};

/* One child.  Its command line is: argv[0..], then what the supervisor adds:
 *   --name NAME --epoch N --supervisor ENDPOINT [--ring-fd FD] [--scheduler-at ENDPOINT]
 * and for the recorder one --ring NAME=FD for each child that has a ring. */
typedef struct {
    const char *name; /* [a-z0-9-]{1,31} */
    proto_role_t role;
    const char *const *argv; /* program and arguments, NULL-terminated; lent */
    bool has_ring;           /* gets a record ring */
    bool is_recorder;        /* gets every ring; ended last */
    bool optional;           /* its end never ends the node, and readiness does not wait for it */
    const char *scheduler_endpoint; /* where the built-in scheduler listens for it; NULL: this
                                       child has no link to a scheduler */
} actor_supervisor_child_t;

typedef struct {
    const actor_supervisor_child_t *children; /* in start order; ended in this order too */
    uint32_t child_count;
    const char *run_dir;        /* 0700, made if missing, removed at the end when we made it */
    uint32_t restart_count_max; /* restarts in one period before escalation, at most
                                   ACTOR_RESTART_COUNT_MAX; 0 = 3 */
    uint64_t restart_period_ns; /* 0 = 60 s */
    uint64_t grace_ns;          /* from STOP to SIGKILL of a child; 0 = 30 s */
    uint64_t ring_size_bytes;   /* of each ring; 0 = 64 MiB */
    bool record_strict;         /* producers of the rings wait for the recorder (proto_ring.h) */
    const char *crash_dir;      /* crash records go here; NULL = run_dir's parent is not used:
                                   the system's folder for temporary files */
    bool show_progress;         /* load progress on stderr */
    const char *scheduler_endpoint; /* of a scheduler that is not our child, for the start; NULL =
                                       the built-in one.  It may change (COMMAND). */
    bool scheduler_stays;           /* never go back to the built-in one by ourselves */
    /* Called once, on the caller's thread, when every child that counts is READY for the first
     * time; must not block.  May be NULL. */
    void (*on_ready)(void *context);
    /* Called for each ACTOR_STATE (actor_state_t) of a child, such as the gateway's "http://...";
     * may be NULL. */
    void (*on_state)(void *context, const char *name, uint32_t state, const char *detail);
    /* Called in each round of the loop, at least once a second, with whether the end has begun;
     * must not block.  May be NULL. */
    void (*on_round)(void *context, bool is_ending);
    void *context;
} actor_supervisor_options_t;

typedef struct {
    char name[PROTO_NAME_SIZE_BYTES];
    proto_role_t role;
    uint32_t restart_count;
    int32_t pid;
    proto_stats_t stats; /* the last that this child sent; zeros if none came */
} actor_supervisor_report_t;

/* Starts the children, stays until a shutdown was asked for (SIGTERM, SIGINT,
 * actor_supervisor_ask_stop) or the restarts ran out.  Returns the exit code of the process: 0
 * asked shutdown; 70 escalation; or the child's own 75 or 78.  report[0..child_count) (may be
 * NULL) gets what each child did. */
int actor_supervisor_run(const actor_supervisor_options_t *options,
                         actor_supervisor_report_t *report);

/* Asks the running supervisor of this process to end everything in order; any thread. */
void actor_supervisor_ask_stop(void);

#endif
