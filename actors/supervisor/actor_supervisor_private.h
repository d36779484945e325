/* actor_supervisor_private.h - what the files of the supervisor share: its state and the parts of
 * a round.  For actor_supervisor*.c only; the supervisor's one thread. */
#ifndef ACTOR_SUPERVISOR_PRIVATE_H
#define ACTOR_SUPERVISOR_PRIVATE_H

#include "actor_child.h"
#include "actor_crash.h"
#include "actor_exit.h"
#include "actor_restart.h"
#include "actor_shell.h"
#include "actor_supervisor.h"
#include "actor_supervisor_core.h"
#include "proto_clock.h"

enum {
    ACTOR_SUPERVISOR_ESCALATION_MS = 2000, /* grace when the node fails anyway */
    ACTOR_SUPERVISOR_LAST_WORDS_MS =
        3000, /* for a gateway whose grace is over to tell its clients */
    ACTOR_SUPERVISOR_ENDPOINT_SIZE_BYTES = 256,
};

typedef struct {
    const actor_supervisor_child_t *spec;
    actor_process_t process;
    actor_restart_t restart;
    int ring_fd; /* -1 = none */
    bool was_ready;
    bool given_up; /* optional, and it ended too often */
    uint32_t restart_count;
    uint64_t started_ns;
    uint64_t restart_at_ns; /* 0 = not waiting for a restart */
    bool stop_sent;
    uint64_t kill_at_ns; /* 0 = not */
    bool killed;         /* by us, for being stuck or too slow to end */
    pid_t last_pid;
    /* For people. */
    uint32_t exit_count;   /* ends by an exit that were not asked for */
    uint32_t signal_count; /* by a signal */
    uint32_t hang_count;   /* by us, because it did not work */
    uint64_t silent_ns;    /* from its last sign of life to our notice of its last such end */
} actor_supervised_t;

/* Which scheduler is in charge, and the move to another one: gateways leave the old one first, so
 * that they never hear it end the requests of an executor that left. */
typedef enum {
    ACTOR_SUPERVISOR_MOVE_NONE = 0,
    ACTOR_SUPERVISOR_MOVE_GATEWAYS,
    ACTOR_SUPERVISOR_MOVE_EXECUTORS,
} actor_supervisor_move_t;

typedef struct {
    char external[ACTOR_SUPERVISOR_ENDPOINT_SIZE_BYTES]; /* in charge or moved to; "" = built-in */
    char previous[ACTOR_SUPERVISOR_ENDPOINT_SIZE_BYTES]; /* where to go back to */
    bool returning; /* this move goes back, because the one before it failed */
    actor_supervisor_move_t move;
    uint64_t move_until_ns;
    uint64_t command; /* the number of who asked for the move; 0 = nobody did */
} actor_supervisor_scheduler_t;

typedef enum { PHASE_RUNNING, PHASE_STOPPING, PHASE_DONE } actor_supervisor_phase_t;

typedef struct {
    const actor_supervisor_options_t *options;
    actor_supervisor_core_t core;
    actor_shell_t *shell;
    actor_supervised_t children[ACTOR_SUPERVISOR_CHILD_COUNT_MAX];
    uint32_t child_count;
    char endpoint[ACTOR_SUPERVISOR_ENDPOINT_SIZE_BYTES];
    char crash_dir[ACTOR_CRASH_PATH_SIZE_BYTES];  /* "" = no crash records */
    char crash_path[ACTOR_CRASH_PATH_SIZE_BYTES]; /* the last one */
    uint32_t crash_count;
    bool run_dir_made;
    int signal_fd;
    uint64_t epoch_first; /* the supervisor's own */
    uint64_t epoch_last;
    uint64_t begun_ns;
    actor_supervisor_phase_t phase;
    int exit_code;
    uint32_t stop_index;   /* of the child that is being ended */
    bool is_hurried;       /* asked a second time */
    uint64_t view_next_ns; /* when the gateways are told of the actors again */
    uint64_t grace_ns;
    bool was_ready;
    uint64_t progress_next_ns;
    bool bar_shown;
    uint64_t now_ns;
    actor_supervisor_scheduler_t scheduler;
    bool injected; /* since the shell's last round: it wants another before we sleep */
} actor_supervisor_state_t;

/* Reads the clock into now_ns. */
static inline uint64_t
actor_supervisor_tick(actor_supervisor_state_t *self)
{
    self->now_ns = proto_clock_monotonic_ns(proto_clock_system());
    return self->now_ns;
}

static inline void
actor_supervisor_lower(uint64_t *wait_ns, uint64_t at_ns, uint64_t now_ns)
{
    uint64_t wait = at_ns > now_ns ? at_ns - now_ns : 0;
    *wait_ns = wait < *wait_ns ? wait : *wait_ns;
}

/* ---- actor_supervisor_children.c ------------------------------------------------------------- */

MUST_CHECK proto_status_t actor_supervisor_make_ring(actor_supervisor_state_t *self,
                                                     actor_supervised_t *child);
MUST_CHECK proto_status_t actor_supervisor_start_child(actor_supervisor_state_t *self,
                                                       uint32_t index);
/* Begins the end of the node; the first reason counts. */
void actor_supervisor_begin_stop(actor_supervisor_state_t *self, int exit_code, uint64_t grace_ns);
/* Asked again: no grace any more, but clients are still told. */
void actor_supervisor_hurry(actor_supervisor_state_t *self);
void actor_supervisor_kill_all(actor_supervisor_state_t *self, const char *why);
/* Ends the children one after the other; the phase is DONE when none is left. */
void actor_supervisor_service_stop(actor_supervisor_state_t *self, uint64_t *wait_ns);
/* Reads their lines, notices their ends, starts them again, kills what does not work. */
void actor_supervisor_service_children(actor_supervisor_state_t *self, uint64_t *wait_ns);

/* An input of the supervisor's own side to its core. */
void actor_supervisor_inject(actor_supervisor_state_t *self, proto_kind_t kind, uint64_t request,
                             const proto_body_t *body);

/* ---- actor_supervisor_scheduler.c ------------------------------------------------------------ */

void actor_supervisor_scheduler_init(actor_supervisor_state_t *self);
/* Where that child is to find its scheduler now; NULL if it has none. */
const char *actor_supervisor_scheduler_endpoint(const actor_supervisor_state_t *self,
                                                uint32_t index);
/* Commands, complaints, and the move in work. */
void actor_supervisor_service_scheduler(actor_supervisor_state_t *self, uint64_t *wait_ns);

/* ---- actor_supervisor_view.c ----------------------------------------------------------------- */

/* Answers who wants to see the actors, and tells the gateways once a second. */
void actor_supervisor_service_view(actor_supervisor_state_t *self, uint64_t *wait_ns);

/* ---- actor_supervisor_progress.c ------------------------------------------------------------- */

void actor_supervisor_clear_bar(actor_supervisor_state_t *self);
void actor_supervisor_show_progress(actor_supervisor_state_t *self, uint64_t *wait_ns);

#endif
