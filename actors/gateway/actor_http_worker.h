/* actor_http_worker.h - one thread for work that would hold up the HTTP loop: parsing and
 * tokenising large requests.  A bounded queue in, a list out, a descriptor that says when to look.
 *
 * The loop's thread pushes and pops; the worker runs the function on one job after the other and
 * touches nothing but the job. */
#ifndef ACTOR_HTTP_WORKER_H
#define ACTOR_HTTP_WORKER_H

#include <stdint.h>

#include "proto_status.h"

typedef struct actor_http_worker actor_http_worker_t; /* opaque */

typedef void (*actor_http_job_fn)(void *context, void *job);

/* Starts the thread.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_http_worker_new(uint32_t job_count_max, actor_http_job_fn run,
                                                void *context, actor_http_worker_t **out_p);
/* Joins the thread after the job it works on; jobs not begun are not run.  All jobs must have been
 * popped or be freed by the caller, who knows them. */
void actor_http_worker_destroy(actor_http_worker_t **self_p);

/* STATUS_FULL: job_count_max wait already. */
MUST_CHECK proto_status_t actor_http_worker_push(actor_http_worker_t *self, void *job);
/* A job that is done, or NULL. */
void *actor_http_worker_pop(actor_http_worker_t *self);
/* Readable while a job may be done. */
int actor_http_worker_fd(const actor_http_worker_t *self);

#endif
