/* sched_fake.h - an executor for tests of the planning core.
 *
 * It applies plans as docs/scheduler-protocol.md says, refuses what breaks a rule, and models the
 * cache by content: each position of each block remembers a digest of the tokens that it was
 * computed from.  A row that reads a block with other content than its own history aborts the
 * test, so every mistake with prefix pages, swaps, holes and early reuse is seen.  The next token
 * is a digest of the history; so it must not depend on how the request was scheduled.  A wide row
 * gives 1 to `width` tokens, as the history has it.  A block of a state group remembers the digest
 * of exactly the tokens that its state is after. */
#ifndef SCHED_FAKE_H
#define SCHED_FAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto_codec.h"
#include "sched_core.h"

typedef struct sched_fake sched_fake_t;

enum {
    FAKE_SLOTS_MAX = 64,
    FAKE_LENGTH_MAX = 2048,
    FAKE_STEPS_MAX = 2,
    FAKE_WIDTH_MAX = 8,
};

typedef struct {
    uint32_t slot_count;
    uint32_t step_tokens_max;
    uint32_t model_len_max;
    uint32_t overlap_depth_max;
    uint32_t page_tokens;
    uint32_t parent_count;
    uint32_t width;       /* of decode rows; 0 = 1 */
    bool tells_drafts;    /* results tell of candidates */
    bool withhold_hashes; /* results tell of no page */
    uint32_t group_count;
    uint32_t kinds[4];
    uint32_t granularities[4];
    uint32_t windows[4];
    uint32_t packings[4];
} sched_fake_options_t;

sched_fake_t *sched_fake_new(const sched_fake_options_t *options);
void sched_fake_destroy(sched_fake_t **self_p);
/* EXECUTOR_INFO of it; lent. */
const proto_executor_info_t *sched_fake_info(const sched_fake_t *self);

/* A request as its owner knows it. */
typedef struct {
    uint64_t id;
    uint32_t prompt_length;
    uint32_t generation_max;
    uint32_t stop_at;                /* the executor sees a stop token after this many; 0 = never */
    uint32_t nan_at;                 /* its logits hold a NaN at this generated token; 0 = never */
    int32_t tokens[FAKE_LENGTH_MAX]; /* the prompt, then what came back */
    uint8_t hashes[FAKE_LENGTH_MAX / 2 * PROTO_HASH_SIZE_BYTES];
    /* What happened to it. */
    uint32_t received;
    uint32_t end_count;
    sched_finished_t end;
} sched_fake_request_t;

/* Fills the prompt: `shared` tokens that depend on the family only, the rest on the id. */
void sched_fake_prompt(sched_fake_request_t *request, uint32_t family, uint32_t shared,
                       uint32_t page_tokens);
/* The token that every correct run gives after `length` tokens. */
int32_t sched_fake_next(const int32_t *tokens, uint32_t length);

/* The tokens that a wide row gives behind `length` tokens, if nothing ends it. */
uint32_t sched_fake_accepted(const int32_t *tokens, uint32_t length, uint32_t width);

/* With tells_drafts: whether candidates come from now on (they do at first), and what a step
 * costs. */
void sched_fake_set_drafts(sched_fake_t *self, bool come, uint64_t narrow_ns, uint64_t wide_ns);

/* ADMIT. */
void sched_fake_admit(sched_fake_t *self, const sched_admission_t *admission,
                      const sched_fake_request_t *request);
/* PLAN: true if applied (its result can be taken later), false if *refused was filled. */
bool sched_fake_plan(sched_fake_t *self, const proto_plan_t *plan, proto_plan_refused_t *refused);
/* The next plan is refused, whatever it says. */
void sched_fake_refuse_next(sched_fake_t *self);
/* STEP_RESULT of the oldest step; false if none is in flight. */
bool sched_fake_result(sched_fake_t *self, proto_step_result_t *out);
/* Blocks written so far that the plan asked to clear. */
uint64_t sched_fake_clear_count(const sched_fake_t *self);
/* What the table of a slot has in a column; 0 = a hole. */
uint32_t sched_fake_block(const sched_fake_t *self, uint32_t slot, uint32_t group, uint32_t column);
/* Slots that hold a request. */
uint32_t sched_fake_used_count(const sched_fake_t *self);

#endif
