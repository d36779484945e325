/* kern_team.h - the compute threads of one host device.
 *
 * A team of N threads: the caller of kern_team_run() is thread 0, N - 1 helpers are made at start.
 * Helpers wait for work spinning for a bounded time, then asleep: an idle team uses no processor.
 * One thread at a time may call kern_team_run(); it may be a different thread each time. */
#ifndef KERN_TEAM_H
#define KERN_TEAM_H

#include <stdint.h>

#include "kern_path.h"
#include "kern_share.h"
#include "proto_status.h"

typedef struct kern_team kern_team_t;

typedef void (*kern_host_fn)(const void *args, kern_share_t *share);

/* One operation of a command list. */
typedef struct {
    kern_host_fn fn;
    const void *args; /* lent for the run */
} kern_command_t;

typedef struct {
    uint32_t thread_count; /* 1..KERN_THREADS_MAX; 0 = the processors this process may use */
    kern_path_t path;      /* must be available on this machine */
} kern_team_options_t;

/* Makes the threads.  STATUS_ERR_CONFIG: too many threads or a path not available;
 * STATUS_ERR_NO_MEMORY: no memory or no thread.  The caller owns *out_p. */
MUST_CHECK proto_status_t kern_team_new(const kern_team_options_t *options, kern_team_t **out_p);

/* Ends and joins the helpers, sets *self_p to NULL; does nothing if it is NULL already. */
void kern_team_destroy(kern_team_t **self_p);

/* Runs one operation on all threads and returns when all have left it. */
void kern_team_run(kern_team_t *self, kern_host_fn fn, const void *args);

/* Runs operations one after the other, each after the last thread left the one before: the same
 * results as kern_team_run() for each, with one hand-over to the helpers for all. */
void kern_team_run_list(kern_team_t *self, const kern_command_t *commands, uint32_t count);

/* The same on the calling thread alone, while the helpers stay where they are: for operations that
 * are over before a helper would be there. */
void kern_team_run_alone(kern_team_t *self, const kern_command_t *commands, uint32_t count);

uint32_t kern_team_thread_count(const kern_team_t *self);
kern_path_t kern_team_path(const kern_team_t *self);

#endif
