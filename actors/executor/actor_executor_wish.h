/* actor_executor_wish.h - what an operator may ask of a running executor: a shadow check, graphs
 * on or off, how it runs.  The device thread carries it out between two commands of the core, whose
 * state it does not touch; the answer goes to the supervisor. */
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
} actor_executor_wish_t;

/* NONE if it is no wish for an executor. */
actor_executor_wish_t actor_executor_wish_of(const proto_command_t *command);

/* Carries a wish out and answers; a check is answered later, *is_checking is set then.  `run` is
 * NULL with the null device, which can do none of this. */
void actor_executor_wish_begin(actor_executor_wish_t wish, run_executor_t *run,
                               actor_shell_t *shell, bool *is_checking);
/* After a launch, while *is_checking: answers if the check was made. */
void actor_executor_wish_look(run_executor_t *run, actor_shell_t *shell, bool *is_checking);

#endif
