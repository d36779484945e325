/* actor_supervisor_core.h - the supervisor's side of the control links: who is linked, what each
 * child said last, and the messages to them.
 *
 * An actor core as every other: no process, clock or socket here.  STOP, RELINK, COMMAND,
 * DOWN and COMMAND_DONE are injected by the process side (as inputs of its own) and passed on:
 * STOP, RELINK and COMMAND to the child request - 1, DOWN to every linked child but the one that it
 * names, COMMAND_DONE to the peer `request`. */
#ifndef ACTOR_SUPERVISOR_CORE_H
#define ACTOR_SUPERVISOR_CORE_H

#include "actor_core.h"
#include "actor_supervisor.h"

/* Whom a child is linked to as its scheduler, and what it says of it. */
typedef struct {
    char name[PROTO_NAME_SIZE_BYTES];
    char endpoint[256]; /* "" = not linked */
    uint64_t epoch;
    bool complained; /* set here, cleared by the reader; the rest is of the last complaint */
    proto_complaint_reason_t reason;
    char detail[256];
} actor_supervisor_scheduler_link_t;

typedef struct {
    char name[PROTO_NAME_SIZE_BYTES];
    proto_role_t role;
    uint64_t epoch;   /* of the incarnation that runs; 0 = none */
    uint32_t peer;    /* ACTOR_PEER_NONE: not linked */
    uint64_t down_ns; /* when its link ended while it ran; 0 = it did not */
    uint32_t state;   /* as in ACTOR_STATE */
    uint64_t done_bytes;
    uint64_t total_bytes;
    char detail[256];
    bool state_changed; /* set here, cleared by the reader */
    bool stuck;         /* its step runs longer than its budget */
    uint64_t step;      /* that it works on */
    uint64_t step_age_ns;
    proto_stats_t stats;
    actor_supervisor_scheduler_link_t scheduler;
} actor_supervisor_member_t;

/* What an operator asked for; one at a time. */
typedef struct {
    bool is_new; /* set here, cleared by the reader */
    uint32_t peer;
    char verb[32];
    char argument[PROTO_TEXT_LEN_MAX + 1];
} actor_supervisor_command_t;

/* What an executor answered to a wish that was passed on. */
typedef struct {
    bool is_new; /* set here, cleared by the reader */
    proto_status_t status;
    char detail[PROTO_TEXT_LEN_MAX + 1];
} actor_supervisor_answer_t;

typedef struct {
    actor_supervisor_command_t command;
    actor_supervisor_answer_t executor_answer;
    actor_supervisor_member_t members[ACTOR_SUPERVISOR_CHILD_COUNT_MAX];
    uint32_t member_count;
} actor_supervisor_core_t;

extern const actor_core_ops_t actor_supervisor_core_ops;

void actor_supervisor_core_init(actor_supervisor_core_t *self,
                                const actor_supervisor_child_t *children, uint32_t child_count);
/* A new incarnation of a member begins; the old one's words are forgotten, its numbers kept. */
void actor_supervisor_core_begin(actor_supervisor_core_t *self, uint32_t index, uint64_t epoch);

#endif
