/* actor_scheduler.h - the scheduler actor: the planning core behind a shell.
 *
 * One thread: the caller's runs shell and core.  It never reads a token and never touches a
 * device. */
#ifndef ACTOR_SCHEDULER_H
#define ACTOR_SCHEDULER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A zero means the value in the comment. */
typedef struct {
    const char *name;                /* "scheduler" */
    uint64_t epoch;                  /* from the supervisor; made from the time */
    const char *gateway_endpoint;    /* bound: gateways connect here */
    const char *executor_endpoint;   /* bound: executors connect here */
    const char *endpoint;            /* bound in place of both: everybody connects here; none */
    const char *supervisor_endpoint; /* none: runs alone */
    int ring_fd;                     /* -1 = record nothing */
    const atomic_int *stop;          /* 1: finish what runs, then end; above: end now; set from a
                                        signal handler; none */
    uint32_t queue_len_max;          /* requests that may wait: 1024 */
    bool no_overlap;                 /* a step's result comes before the next plan */
    bool no_prefix_cache;
    bool full_plans; /* every plan is a full one: for benches */
} actor_scheduler_options_t;

/* Runs until the supervisor's STOP, *options->stop or a failure.  Returns the exit code of the
 * process: 0 asked shutdown, 70 internal failure, 75 endpoint in use, 78 configuration. */
int actor_scheduler_run(const actor_scheduler_options_t *options);

#endif
