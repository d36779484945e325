/* actor_supervisor_core.h - the supervisor's side of the control links: who is linked, what each
 * child said last, and the messages to them.
 *
 * An actor core as every other: no process, clock or socket here.  STOP, RELINK, DOWN and
 * COMMAND_DONE are injected by the process side (as inputs of its own) and passed on: STOP and
 * RELINK to the child request - 1, DOWN to every linked child but the one that it names,
 * COMMAND_DONE to who gave the command `request`.
 *
 * A command of an operator has a number and a place of its own until its one answer: several wait
 * at once, and each answer finds its own.  Those for an executor are passed on and answered here
 * (actor_supervisor_executor.c), the others by the process side. */
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

/* A link of a member, as it told it last. */
typedef struct {
    char peer[PROTO_NAME_SIZE_BYTES];
    uint32_t age_ms; /* since the peer was heard */
    uint64_t messages_in;
    uint64_t messages_out;
} actor_supervisor_member_link_t;

enum { ACTOR_SUPERVISOR_LINK_COUNT_MAX = 12 }; /* of one member; the rest is not shown */

_Static_assert((int)ACTOR_SUPERVISOR_CHILD_COUNT_MAX *(int)ACTOR_SUPERVISOR_LINK_COUNT_MAX <=
                       (int)PROTO_LOOK_LINKS_MAX &&
                   (int)ACTOR_SUPERVISOR_CHILD_COUNT_MAX < (int)PROTO_LOOK_ACTORS_MAX,
               "ACTORS holds what there is");

typedef struct {
    char name[PROTO_NAME_SIZE_BYTES];
    proto_role_t role;
    uint64_t epoch;   /* of the incarnation that runs; 0 = none */
    uint32_t peer;    /* ACTOR_PEER_NONE: not linked */
    uint64_t down_ns; /* when its link ended while it ran; 0 = it did not */
    uint32_t state;   /* actor_state_t */
    uint64_t done_bytes;
    uint64_t total_bytes;
    char detail[256];
    bool state_changed; /* set here, cleared by the reader */
    bool stuck;         /* its step runs longer than its budget */
    uint64_t step;      /* that it works on */
    uint64_t step_age_ns;
    uint64_t heard_ns; /* its last heartbeat; 0 = none of this incarnation */
    proto_stats_t stats;
    uint32_t link_count;
    actor_supervisor_member_link_t links[ACTOR_SUPERVISOR_LINK_COUNT_MAX];
    actor_supervisor_scheduler_link_t scheduler;
} actor_supervisor_member_t;

enum {
    ACTOR_SUPERVISOR_COMMAND_COUNT_MAX = 8, /* without an answer, of all operators */
    ACTOR_SUPERVISOR_CHECK_S = 20,          /* a check waits for a step that it can check */
    ACTOR_SUPERVISOR_WISH_S = 10,           /* anything else is done between two steps */
};

/* What an operator asked for and has no answer to. */
typedef struct {
    uint64_t number;   /* from 1, never used again; 0 = this place is free */
    uint32_t peer;     /* who waits */
    bool is_new;       /* for the process side, which clears it when it has read it */
    uint32_t asked;    /* the member, from 1, that must answer; 0 = none */
    uint64_t until_ns; /* when that answer is overdue */
    char verb[32];
    char argument[PROTO_TEXT_LEN_MAX + 1];
} actor_supervisor_command_t;

enum {
    ACTOR_SUPERVISOR_LOOK_COUNT_MAX = 16, /* without an answer, of all operators */
    ACTOR_SUPERVISOR_LOOK_MS = 2000,      /* an actor answers between two steps */
};

/* What somebody wants to see and has no answer to. */
typedef struct {
    uint64_t number; /* from 1, never used again; 0 = this place is free */
    uint32_t peer;   /* who waits */
    bool is_new;     /* for the process side, which clears it when it has read it */
    uint32_t asked;  /* the member, from 1, that must answer; 0 = the process side */
    uint64_t until_ns;
} actor_supervisor_look_t;

typedef struct {
    actor_supervisor_look_t looks[ACTOR_SUPERVISOR_LOOK_COUNT_MAX];
    uint64_t look_last;
    bool is_held; /* `onepath drain`: what every gateway is told when it links */
    char owner[65];
    bool graphs_are_off; /* `onepath executor graphs off`: what a ready executor is told */
    actor_supervisor_command_t commands[ACTOR_SUPERVISOR_COMMAND_COUNT_MAX];
    uint64_t command_last;  /* the last number given */
    uint64_t refused_count; /* answers that nobody waits for, or from who was not asked */
    actor_supervisor_member_t members[ACTOR_SUPERVISOR_CHILD_COUNT_MAX];
    uint32_t member_count;
} actor_supervisor_core_t;

extern const actor_core_ops_t actor_supervisor_core_ops;

void actor_supervisor_core_init(actor_supervisor_core_t *self,
                                const actor_supervisor_child_t *children, uint32_t child_count);
/* A new incarnation of a member begins; the old one's words are forgotten, its numbers kept. */
void actor_supervisor_core_begin(actor_supervisor_core_t *self, uint32_t index, uint64_t epoch);
/* The oldest command that the process side has not read, or NULL. */
actor_supervisor_command_t *actor_supervisor_core_next(actor_supervisor_core_t *self);

/* ---- actor_supervisor_executor.c: for the core itself ---------------------------------------- */

/* Answers and frees the place; number 0 and one that is no longer there are nobody. */
void actor_supervisor_core_answer(actor_supervisor_core_t *self, uint64_t number,
                                  const proto_command_done_t *done, actor_outbox_t *outbox);
/* True for a verb that goes to an executor. */
bool actor_supervisor_wish_is_for_executor(const char *verb);
/* Passes a command on, or answers that it cannot. */
void actor_supervisor_wish_ask(actor_supervisor_core_t *self, actor_supervisor_command_t *command,
                               uint64_t now_ns, actor_outbox_t *outbox);
/* The answer of a member to the command `number`. */
void actor_supervisor_wish_done(actor_supervisor_core_t *self, uint32_t index, uint64_t number,
                                const proto_command_done_t *done, actor_outbox_t *outbox);
/* That member ended or lost its link; that operator left; time passed. */
void actor_supervisor_wish_member_down(actor_supervisor_core_t *self, uint32_t index,
                                       actor_outbox_t *outbox);
void actor_supervisor_wish_client_down(actor_supervisor_core_t *self, uint32_t peer,
                                       actor_outbox_t *outbox);
void actor_supervisor_wish_timer(actor_supervisor_core_t *self, uint64_t now_ns,
                                 actor_outbox_t *outbox);
/* When the first answer is overdue; UINT64_MAX = none is awaited. */
uint64_t actor_supervisor_wish_deadline_ns(const actor_supervisor_core_t *self);

/* An executor is ready: what was switched off stays off. */
void actor_supervisor_wish_welcome(const actor_supervisor_core_t *self, uint32_t peer,
                                   actor_outbox_t *outbox);

/* ---- actor_supervisor_drain.c: for the core itself ------------------------------------------- */

/* Carries out `drain` and `undrain`; false for another verb.  Answers and frees the place. */
bool actor_supervisor_drain_ask(actor_supervisor_core_t *self, actor_supervisor_command_t *command,
                                actor_outbox_t *outbox);
/* A gateway that linked is told of a drain that was asked for before. */
void actor_supervisor_drain_welcome(const actor_supervisor_core_t *self, uint32_t index,
                                    actor_outbox_t *outbox);
/* Passes `log-level ACTOR LEVEL` on; false for another verb, and for the supervisor's own, which
 * is the process side's. */
bool actor_supervisor_level_ask(actor_supervisor_core_t *self, actor_supervisor_command_t *command,
                                uint64_t now_ns, actor_outbox_t *outbox);

/* ---- actor_supervisor_look.c: for the core itself -------------------------------------------- */

/* A LOOK of an operator: passed on to who can answer, or left to the process side. */
void actor_supervisor_look_ask(actor_supervisor_core_t *self, const actor_input_t *input,
                               actor_outbox_t *outbox);
/* The oldest LOOK that the process side has not read, or NULL. */
actor_supervisor_look_t *actor_supervisor_look_next(actor_supervisor_core_t *self);
/* The answer of a member. */
void actor_supervisor_look_done(actor_supervisor_core_t *self, uint32_t index,
                                const actor_input_t *input, actor_outbox_t *outbox);
/* ACTORS of the process side: to who asked with that number, or with 0 to every gateway. */
void actor_supervisor_look_actors(actor_supervisor_core_t *self, uint64_t number,
                                  const proto_body_t *body, actor_outbox_t *outbox);
void actor_supervisor_look_member_down(actor_supervisor_core_t *self, uint32_t index,
                                       actor_outbox_t *outbox);
void actor_supervisor_look_client_down(actor_supervisor_core_t *self, uint32_t peer);
void actor_supervisor_look_timer(actor_supervisor_core_t *self, uint64_t now_ns,
                                 actor_outbox_t *outbox);
uint64_t actor_supervisor_look_deadline_ns(const actor_supervisor_core_t *self);
/* A member's LINKS. */
void actor_supervisor_look_links(actor_supervisor_member_t *member, const proto_links_t *links);

#endif
