/* sched_world.h - a planning core and a fake executor, joined.
 *
 * It carries admissions, plans, refusals and results between the two, keeps what each request got,
 * and walks the core's invariants after every call.  With a twin, a core restored from the first
 * one's snapshot gets the same inputs, and everything that comes out of the two is compared. */
#ifndef SCHED_WORLD_H
#define SCHED_WORLD_H

#include "sched_fake.h"

enum {
    WORLD_REQUESTS_MAX = 512,
    WORLD_REFUSALS_MAX = 8,
    WORLD_OWNER = 3,
};

typedef struct {
    sched_core_t *core;
    sched_core_t *twin; /* NULL: none */
    sched_fake_t *fake;
    uint64_t now_ns;
    sched_fake_request_t *requests; /* [WORLD_REQUESTS_MAX]; id = index + 1 */
    uint32_t request_count;
    uint32_t end_count;
    proto_plan_refused_t refusals[WORLD_REFUSALS_MAX]; /* on their way */
    uint32_t refusal_count;
    uint32_t steps_sent;
    proto_plan_t last_plan; /* lengths only: its views are gone */
    uint32_t last_begin;    /* of its first extend */
    uint32_t last_length;
} sched_world_t;

/* Makes both and attaches them. */
void sched_world_init(sched_world_t *self, const sched_core_options_t *options,
                      const sched_fake_options_t *fake);
void sched_world_fini(sched_world_t *self);

/* A new request; its first `shared` prompt tokens depend on the family only. */
sched_fake_request_t *sched_world_request(sched_world_t *self, uint32_t prompt_length,
                                          uint32_t generation_max, uint32_t family,
                                          uint32_t shared);
proto_status_t sched_world_submit(sched_world_t *self, const sched_fake_request_t *request,
                                  int64_t priority, sched_refusal_t *refusal);
/* Saves the core, makes the twin of it (instead of the twin before), and compares their bytes. */
void sched_world_twin(sched_world_t *self);
/* Packs the core; the caller frees. */
uint8_t *sched_world_save(const sched_core_t *core, size_t *size_bytes_p);
/* For sched_core_restore() with the world as context. */
bool sched_world_restored(void *context, const sched_restored_t *request, const uint8_t **hashes);
/* The executor goes, and one like it comes: every request ends. */
void sched_world_lose(sched_world_t *self, const sched_fake_options_t *fake);
/* The owner of all requests goes. */
void sched_world_owner_gone(sched_world_t *self);
/* Makes one plan and sends it; false if there was none. */
bool sched_world_plan(sched_world_t *self);
/* Delivers the oldest result; false if there is none. */
bool sched_world_result(sched_world_t *self);
/* Delivers the oldest refusal; false if there is none. */
bool sched_world_refusal(sched_world_t *self);
void sched_world_finish(sched_world_t *self, const sched_fake_request_t *request,
                        uint32_t token_index, proto_finish_reason_t reason);
void sched_world_time(sched_world_t *self, uint64_t elapsed_ns);
/* Plans, results and ticks until nothing moves; aborts after too many rounds. */
void sched_world_run(sched_world_t *self);

/* Aborts unless the request ended once, with this reason, and its tokens are right. */
void sched_world_expect(const sched_world_t *self, const sched_fake_request_t *request,
                        proto_finish_reason_t reason, uint32_t generated);
/* Aborts unless every block is free or cached, and no slot is taken. */
void sched_world_expect_idle(const sched_world_t *self);
sched_figures_t sched_world_figures(const sched_world_t *self);

#endif
