/* actor_executor.h - the executor actor: checks plans, runs them on a device, reports results.
 *
 * Two threads.  The caller's thread runs the shell and the core (actor_executor_core.h); the
 * device thread owns the device and everything below it (run_executor.h). */
#ifndef ACTOR_EXECUTOR_H
#define ACTOR_EXECUTOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "actor_core.h"
#include "actor_executor_null.h"
#include "run_executor.h"

enum {
    ACTOR_EXECUTOR_RUN = 0,   /* values of options.stop: go on */
    ACTOR_EXECUTOR_DRAIN = 1, /* finish what runs, end with 0 */
    ACTOR_EXECUTOR_QUIT = 2,  /* end now, with 0 */
};

/* A zero means the value in the comment. */
typedef struct {
    const char *name;                /* "executor" */
    uint64_t epoch;                  /* from the supervisor; made from the time */
    const char *scheduler_endpoint;  /* required: the link to the scheduler */
    bool bind;                       /* bind that endpoint instead of connecting to it */
    const char *fingerprint;         /* of the link; nothing to compare */
    const char *supervisor_endpoint; /* none: runs alone */
    int ring_fd;                     /* -1 = record nothing */
    const atomic_int *stop;          /* ACTOR_EXECUTOR_*, set from a signal handler; none */
    uint32_t bad_plans_max;          /* in a row, before it complains of the scheduler: 8 */
    const char *drafter_endpoint;    /* it binds this one for a drafter, with run.draft_ring_path;
                                      * none */
    const char *kv_endpoint;         /* of the node's kv-transfer, to which the cache is registered:
                                      * sets run.share_cache; none */
    void *zmq_context;               /* for a drafter in the same process (inproc://); its own */

    /* The device.  on_complete, progress and error of `run` are the actor's own. */
    run_executor_options_t run;
    uint32_t rank_count;          /* processes that share the model, this one included: 1 */
    const char *const *rank_argv; /* of the others (actor_executor_group.h); with rank_count > 1 */
    bool null_device;             /* no model: for benches and tests (actor_executor_null.h) */
    actor_executor_null_options_t null; /* with null_device; its zeros take the value in `run` */

    /* For benches: called after each input of the core with what it took; none. */
    void (*on_input)(void *context, const actor_input_t *input, uint64_t duration_ns);
    void *on_input_context;
} actor_executor_options_t;

/* Loads the model, runs until the supervisor's STOP, *options->stop or a failure.  Returns the
 * exit code of the process: 0 asked shutdown; 70 internal or device failure; 75 temporary (no
 * memory, endpoint in use, supervisor lost); 78 configuration (no such model, bad endpoint). */
int actor_executor_run(const actor_executor_options_t *options);

#endif
