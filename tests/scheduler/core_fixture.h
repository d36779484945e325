/* core_fixture.h - what the tests of the planning core begin with: one world of 4 slots and 16
 * blocks of 4 tokens.  A test changes `options` and `executor`, then calls start().  One thread. */
#ifndef CORE_FIXTURE_H
#define CORE_FIXTURE_H

#include <check.h>

#include "sched_world.h"

extern sched_world_t world;
extern sched_core_options_t options;
extern sched_fake_options_t executor;

/* A case of the suite whose tests each get the defaults and a world that is taken down again. */
TCase *add_case(Suite *suite, const char *name);
/* Puts the defaults back, for a second world in one test. */
void set_defaults(void);
/* Makes the world. */
void start(void);
/* Runs until nothing moves; everything must be given back. */
void finish(void);
/* A new request, submitted with priority 0. */
sched_fake_request_t *submit(uint32_t prompt, uint32_t generation);
/* What the core says the request waits for. */
sched_why_t why(const sched_fake_request_t *request);

#endif
