/* executor_oracle.h - a second, naive reading of the plan rules, to hold the core against.
 *
 * It keeps tables and tokens as plain arrays, scans everything for each question, and never looks
 * into the core.  It also plays the device: a mirror that is built from launches alone. */
#ifndef EXECUTOR_ORACLE_H
#define EXECUTOR_ORACLE_H

#include "executor_fixture.h"

enum {
    ORACLE_GROUPS = 3,
    ORACLE_COLUMNS = FIXTURE_LEN_MAX / FIXTURE_PAGE,
    ORACLE_FLIGHTS = 2,
};

typedef struct {
    uint64_t request; /* 0 = empty */
    uint32_t known;
    uint32_t pending;
    uint32_t computed; /* tokens in the cache when all rows in flight have ended */
    uint32_t length_max;
    bool is_decodable;
    int32_t tokens[FIXTURE_LEN_MAX];
    uint32_t table[ORACLE_GROUPS][ORACLE_COLUMNS];
} oracle_slot_t;

typedef struct {
    uint64_t step;
    uint32_t row_count;
    uint32_t slots[FIXTURE_SLOTS];
    uint64_t requests[FIXTURE_SLOTS];
    bool samples[FIXTURE_SLOTS];
} oracle_step_t;

typedef struct {
    oracle_slot_t slots[FIXTURE_SLOTS + 1];
    oracle_step_t steps[ORACLE_FLIGHTS];
    uint32_t step_count;
    uint32_t flight_max;
    uint64_t applied;
    bool is_awaiting_full;
    bool is_ready; /* the scheduler has EXECUTOR_INFO, and fewer than two resets are under way */

    /* The device. */
    uint32_t device_table[FIXTURE_SLOTS + 1][ORACLE_GROUPS][ORACLE_COLUMNS];
    uint64_t device_request[FIXTURE_SLOTS + 1]; /* whose SLOT_SETUP came last */
} oracle_t;

/* Blocks of a group: ids 1..count. */
uint32_t oracle_block_count(uint32_t group);
/* Rows (slots and groups) whose tables hold the block. */
uint32_t oracle_references(const oracle_t *self, uint32_t group, uint32_t block);

/* Whether the plan breaks no rule; *after gets the state that follows if it breaks none. */
bool oracle_judge(const oracle_t *self, const proto_plan_t *plan, oracle_t *after);
/* Takes in what the core sent to its device; fails the test if the device could not carry it out
 * or would compute something else than the plan says. */
void oracle_device(oracle_t *self, fixture_t *fixture, const proto_plan_t *plan);
/* The oldest step ended with these outputs. */
void oracle_done(oracle_t *self, const uint8_t *counts, const int32_t *tokens);
/* Every row goes. */
void oracle_drop(oracle_t *self);

#endif
