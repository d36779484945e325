/* actor_conform.h - plays gateways and an executor against a scheduler and tells which rules of the
 * protocol it keeps.
 *
 * The scheduler under test is a process of its own that binds one endpoint, or one for gateways
 * and one for executors.  The links are those of the real shell, the executor judges plans with
 * the real core; gateways, device and model are made up, so that every token and every cache
 * position is known beforehand.  One thread: the caller's.  Every wait has a deadline. */
#ifndef ACTOR_CONFORM_H
#define ACTOR_CONFORM_H

#include <stdatomic.h>
#include <stdbool.h>

#include "actor_conform_report.h"
#include "proto_status.h"

/* A zero means the value in the comment. */
typedef struct {
    const char *gateway_endpoint;  /* required */
    const char *executor_endpoint; /* the same */
    uint64_t seed;                 /* 1; of lengths, priorities, moments */
    uint32_t patience_ms;          /* how long one answer may take: 2000 */
    bool fail_fast;                /* end at the first broken rule */
    bool allow_remote;             /* permit endpoints beyond ipc:// and loopback */
    const char *log_dir;           /* exists: the conversation is recorded there; not recorded */
    const char *scene;             /* only scenes whose name begins so; all */
    const atomic_int *stop;        /* not 0: end; none */
    void (*progress)(void *context, const char *scene); /* a scene begins; none */

    /* If the caller started the scheduler: is it alive, end it, how did it end (-1 not yet). */
    bool (*is_alive)(void *context);
    void (*ask_to_end)(void *context);
    int (*exit_code)(void *context);
    void *context; /* of the functions above */
} actor_conform_options_t;

/* Runs all scenes.  STATUS_OK: the report holds a verdict; STATUS_ERR_PEER_LOST: the scheduler
 * cannot be reached or died, the report says when; STATUS_ERR_CONFIG, ERR_IO, ERR_NO_MEMORY: of
 * our own, logged. */
MUST_CHECK proto_status_t actor_conform_scheduler(const actor_conform_options_t *options,
                                                  conform_report_t *report, conform_run_t *run);

/* Names of the scenes, in order; NULL after the last. */
const char *actor_conform_scene_name(uint32_t index);
const char *actor_conform_scene_text(uint32_t index);

#endif
