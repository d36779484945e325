/* random_rounds.h - random rounds of extends and decodes in two executors, every bit of them
 * compared: chunks, prefix hits, retractions, mixed rounds.
 *
 * The first executor has a prefill graph, the second has none; options of both: RANDOM_SLOTS slots,
 * steps of RANDOM_STEP_TOKENS, a model of RANDOM_VOCABULARY tokens.
 * The seed is printed; ONEPATH_SEED sets it. */
#ifndef RANDOM_ROUNDS_H
#define RANDOM_ROUNDS_H

#include "gpu_driver.h"

enum {
    RANDOM_VOCABULARY = 320,
    RANDOM_SLOTS = 12,
    RANDOM_STEP_TOKENS = 128,
    RANDOM_LEN_MAX = 224,
};

/* What one slot is at. */
typedef struct {
    int32_t tokens[RANDOM_LEN_MAX];
    uint32_t length; /* of the prompt; 0 = the slot is free */
    uint32_t at;     /* prompt tokens computed */
    uint32_t drawn;  /* decode steps */
} random_request_t;

typedef struct {
    driver_t *drivers[2]; /* lent: with the prefill graph, and without */
    uint32_t top;         /* rows that the prefill graph holds */
    const char *name;
    random_request_t requests[RANDOM_SLOTS + 1];
    uint32_t graph_rounds;
    uint32_t eager_rounds;
    uint32_t mixed_rounds;
    uint32_t prefix_hits;
    uint32_t round;
} random_rounds_t;

void random_rounds_begin(random_rounds_t *run, driver_t drivers[2], uint32_t top, const char *name);
/* One round, or none if chance offers no extend.  Fails the test at a difference. */
void random_rounds_step(random_rounds_t *run);
/* Compares every block of both caches, and prints what happened. */
void random_rounds_end(random_rounds_t *run);

#endif
