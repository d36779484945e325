/* actor_shell_private.h - what the files of the shell share: its state and the parts of a round.
 * For actor_shell*.c only. */
#ifndef ACTOR_SHELL_PRIVATE_H
#define ACTOR_SHELL_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "actor_links.h"
#include "actor_queue.h"
#include "actor_record.h"
#include "actor_shell.h"
#include "proto_clock.h"

/* What the supervisor is told, written by any thread. */
typedef struct {
    uint32_t state;
    uint64_t done_bytes;
    uint64_t total_bytes;
    char detail[PROTO_TEXT_LEN_MAX];
    bool changed;
    bool urgent; /* another state: not to be held back */
} actor_shell_report_t;

enum { ACTOR_SHELL_ANSWER_COUNT_MAX = 8 };

/* An answer to a COMMAND of the supervisor, written by any thread. */
typedef struct {
    uint64_t number;
    proto_status_t status;
    char detail[PROTO_TEXT_LEN_MAX];
} actor_shell_answer_t;

struct actor_shell {
    /* Shared with other threads. */
    pthread_mutex_t mutex; /* guards posted, report and answers */
    pthread_cond_t room;   /* posted has room again */
    actor_queue_t *posted;
    actor_shell_report_t report;
    actor_shell_answer_t answers[ACTOR_SHELL_ANSWER_COUNT_MAX]; /* the oldest first */
    atomic_uint answer_count; /* may be looked at without the mutex */
    atomic_uint posted_len;   /* may be looked at without the mutex */
    atomic_bool report_changed;
    atomic_bool woken; /* wake_fd is readable already */
    atomic_bool stop_asked;
    atomic_bool drain_asked;
    atomic_uint_fast64_t drain_grace_ns;
    int wake_fd;

    /* The shell's thread only. */
    const atomic_int *stop; /* lent; may be NULL */
    const actor_core_ops_t *ops;
    void *core;
    char name[PROTO_NAME_SIZE_BYTES];
    uint64_t epoch;
    actor_local_fn local;
    void *local_context;
    void (*command)(void *context, uint64_t number, const proto_command_t *wish);
    void *command_context;
    void (*told)(void *context, const proto_header_t *header, const proto_body_t *body);
    void *told_context;
    bool supervised;
    actor_links_t *links;
    actor_outbox_t *outbox;
    actor_queue_t *nested; /* injected while a step's messages went out */
    actor_record_t *record;
    pthread_t thread;         /* the only one that may write to the record */
    proto_body_t queued_body; /* of the posted or nested message in work */
    bool in_step;
    bool wake_readable;      /* poll said so */
    uint64_t now_ns;         /* never goes back */
    uint64_t input_sequence; /* of the last input */
    bool draining;
    uint64_t drain_until_ns;
    uint64_t started_ns;
    uint64_t stats_next_ns;
    uint64_t report_next_ns;
    bool control_up;
    proto_role_t relink_role; /* of the peer that a RELINK is to find */
    uint64_t relink_until_ns; /* when to complain that it is not there; 0 = nothing awaited */
};

/* Reads the clock; never goes back. */
static inline uint64_t
actor_shell_tick(actor_shell_t *self)
{
    uint64_t now_ns = proto_clock_monotonic_ns(proto_clock_system());
    self->now_ns = now_ns > self->now_ns ? now_ns : self->now_ns;
    return self->now_ns;
}

static inline void
actor_shell_lower(uint64_t *wait_ns, uint64_t at_ns, uint64_t now_ns)
{
    uint64_t wait = at_ns > now_ns ? at_ns - now_ns : 0;
    *wait_ns = wait < *wait_ns ? wait : *wait_ns;
}

/* ---- actor_shell_step.c ---------------------------------------------------------------------- */

extern const actor_links_hooks_t actor_shell_hooks;

/* Gives the core an input of the shell's own. */
void actor_shell_step_own(actor_shell_t *self, proto_kind_t kind, uint64_t request,
                          const proto_body_t *body);
/* Gives it what was injected meanwhile. */
void actor_shell_step_nested(actor_shell_t *self);
void actor_shell_service_posted(actor_shell_t *self, uint32_t message_count_max);
/* Gives a TIMER if the core's deadline has passed; lowers *wait_ns to the next one. */
void actor_shell_service_timer(actor_shell_t *self, uint64_t *wait_ns);
void actor_shell_begin_drain(actor_shell_t *self, uint64_t grace_ns);

/* ---- actor_shell_control.c ------------------------------------------------------------------- */

/* Tells the supervisor what is due; lowers *wait_ns. */
void actor_shell_service_control(actor_shell_t *self, uint64_t *wait_ns);
void actor_shell_send_stats(actor_shell_t *self);
/* ---- actor_shell_look.c ---------------------------------------------------------------------- */

/* Tells the supervisor of this actor's links. */
void actor_shell_send_links(actor_shell_t *self);
/* A LOOK, HOLD or ACTORS. */
void actor_shell_told(actor_shell_t *self, const proto_header_t *header, const proto_body_t *body);
/* Answers the COMMAND log-level, which every actor takes; false for another. */
bool actor_shell_set_log_level(actor_shell_t *self, uint64_t number, const proto_command_t *wish);

/* ---- actor_shell_control.c ------------------------------------------------------------------- */

/* A message of the supervisor. */
void actor_shell_control_message(actor_shell_t *self, const proto_header_t *header,
                                 const proto_body_t *body);
/* The supervisor is there: it is told of the links that came up before. */
void actor_shell_control_up(actor_shell_t *self);
/* Tells it that a link came up, or went down by itself. */
void actor_shell_control_linked(actor_shell_t *self, uint32_t peer);
void actor_shell_control_lost(actor_shell_t *self, uint32_t peer);
/* Passes a core's COMPLAINT on, with the peer's name and epoch filled in. */
void actor_shell_control_complaint(actor_shell_t *self, const actor_emission_t *emission);

#endif
