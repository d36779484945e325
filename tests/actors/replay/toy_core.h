/* toy_core.h - a small core with everything that replay has to cope with: outputs to peers and to
 * the shell, columns, private content, a timer, a state that is partly secret; and a way to make it
 * wrong at a chosen input. */
#ifndef TOY_CORE_H
#define TOY_CORE_H

#include "actor_core.h"
#include "actor_replay_role.h"

typedef struct toy_core toy_core_t;

/* How a build of the toy is wrong; what it does at input `at` only. */
typedef enum {
    TOY_RIGHT = 0,
    TOY_FIELD,    /* a field of an output */
    TOY_COLUMN,   /* an entry of a column */
    TOY_TO,       /* the destination */
    TOY_KIND,     /* another kind of message */
    TOY_REQUEST,  /* another request */
    TOY_MISSING,  /* an output less */
    TOY_EXTRA,    /* an output more */
    TOY_SILENT,   /* its state alone, which no output shows */
    TOY_SECRET,   /* its secret alone, which is not in the digest */
    TOY_DEADLINE, /* another deadline */
    TOY_ABORT,    /* a broken requirement */
    TOY_CRASH,    /* a bad address */
    TOY_HANG,     /* never comes back */
    TOY_EXIT,     /* ends the process */
} toy_wrong_t;

/* Of the build that is replayed; inherited by child processes. */
extern toy_wrong_t toy_wrong;
extern uint64_t toy_wrong_at; /* input.sequence */

toy_core_t *toy_core_new(void);
void toy_core_destroy(toy_core_t **self_p);
const actor_core_ops_t *toy_core_ops(void);

/* Made from snapshots; role SCHEDULER (reads nothing private) or EXECUTOR (does). */
extern const actor_replay_role_t toy_role;
extern const actor_replay_role_t toy_private_role;

#endif
