/* actor_executor_wish.h - what an operator may ask of a running executor: a shadow check, graphs
 * on or off, how it runs.  The device thread carries it out between two commands of the core, whose
 * state it does not touch; the answer goes to the supervisor, with the number of the wish.  At most
 * one check is pending; the deadlines are the supervisor's, which withdraws a wish that nobody
 * waits for any more. */
#ifndef ACTOR_EXECUTOR_WISH_H
#define ACTOR_EXECUTOR_WISH_H

#include "actor_shell.h"
#include "run_executor.h"

typedef enum {
    ACTOR_EXECUTOR_WISH_NONE = 0,
    ACTOR_EXECUTOR_WISH_CHECK,      /* "executor-check" */
    ACTOR_EXECUTOR_WISH_GRAPHS_ON,  /* "executor-graphs" "on" */
    ACTOR_EXECUTOR_WISH_GRAPHS_OFF, /* "executor-graphs" "off" */
    ACTOR_EXECUTOR_WISH_SHOW,       /* "executor-show" */
    ACTOR_EXECUTOR_WISH_CANCEL,     /* "executor-cancel": the wish of this number; no answer */
} actor_executor_wish_t;

/* The check that is pending; the device thread's own. */
typedef struct {
    uint64_t number; /* of the wish that waits for it; 0 = none is pending */
} actor_executor_check_t;

/* NONE if it is no wish for an executor. */
actor_executor_wish_t actor_executor_wish_of(const proto_command_t *command);

/* Carries a wish out and answers; a check becomes pending and is answered later.  Graphs off ends
 * a pending check with an answer.  `run` is NULL with the null device, which can do none of this.
 */
void actor_executor_wish_begin(actor_executor_wish_t wish, uint64_t number, run_executor_t *run,
                               actor_shell_t *shell, actor_executor_check_t *check);
/* After a launch: answers if the pending check was made. */
void actor_executor_wish_look(run_executor_t *run, actor_shell_t *shell,
                              actor_executor_check_t *check);
/* Nobody waits for that wish any more: if it is the pending check, that is not made. */
void actor_executor_wish_cancel(uint64_t number, run_executor_t *run,
                                actor_executor_check_t *check);

#endif
