/* executor_fixture.h - an executor core driven by hand: inputs go in, the outbox is read. */
#ifndef EXECUTOR_FIXTURE_H
#define EXECUTOR_FIXTURE_H

#include <check.h>

#include "actor_executor_core.h"

enum {
    FIXTURE_SLOTS = 4,
    FIXTURE_LEN_MAX = 32,  /* tokens of a request */
    FIXTURE_STEP_MAX = 24, /* tokens of a step */
    FIXTURE_PAGE = 4,      /* tokens of an identity page, and of a block of the full group */
    FIXTURE_PARENTS = 97,  /* 96 usable */
    FIXTURE_VOCAB = 1000,
    FIXTURE_ROOM = 512,
    FIXTURE_PEER = 3,    /* the scheduler's index */
    FIXTURE_DRAFTER = 9, /* a drafter's, in tests that have one */
};

typedef struct {
    actor_executor_core_t *core;
    const actor_core_ops_t *ops;
    actor_outbox_t *outbox;
    uint64_t now_ns;
    uint64_t sequence;
    uint64_t epoch;
    proto_executor_info_t info;
    uint32_t kinds[3], granularities[3], windows[3], packings[3];
    uint8_t key[PROTO_HASH_SIZE_BYTES];
    proto_body_t body; /* the last emission that was decoded */
} fixture_t;

/* A plan under construction. */
typedef struct {
    proto_plan_t plan;
    uint32_t release[FIXTURE_ROOM];
    uint32_t patch_slots[FIXTURE_ROOM], patch_columns[FIXTURE_ROOM], patch_counts[FIXTURE_ROOM];
    uint32_t patch_blocks[FIXTURE_ROOM];
    uint8_t patch_groups[FIXTURE_ROOM], clear_groups[FIXTURE_ROOM], samples[FIXTURE_ROOM];
    uint32_t clear_blocks[FIXTURE_ROOM];
    uint32_t extend_slots[FIXTURE_ROOM], begins[FIXTURE_ROOM], lengths[FIXTURE_ROOM];
    uint32_t decode_slots[FIXTURE_ROOM];
} plan_t;

/* One full group, then (group_count 2) a sliding one with two blocks in a parent and a window of
 * 8, then (3) a state group.  Nothing is sent yet. */
void fixture_open(fixture_t *self, uint32_t group_count, uint32_t overlap_depth);
/* The same; the core complains after so many bad plans in a row. */
void fixture_open_patient(fixture_t *self, uint32_t group_count, uint32_t overlap_depth,
                          uint32_t bad_plans_max);
void fixture_close(fixture_t *self);
/* DEVICE_READY, PEER_UP; the outbox then holds EXECUTOR_INFO. */
void fixture_start(fixture_t *self, uint32_t group_count, uint32_t overlap_depth);

/* Clears the outbox, steps the core, checks its invariants. */
void fixture_feed(fixture_t *self, actor_peer_t from, proto_kind_t kind, uint64_t request,
                  const proto_body_t *body);
void fixture_local(fixture_t *self, proto_kind_t kind, const proto_body_t *body);
void fixture_ready(fixture_t *self);
void fixture_peer_up(fixture_t *self, uint64_t epoch);
void fixture_peer_down(fixture_t *self);
void fixture_reset(fixture_t *self);

/* Token i of a request's prompt. */
int32_t fixture_token(uint64_t request, uint32_t index);
/* An ADMIT whose page hashes are those of the gateway. */
void fixture_admit(fixture_t *self, uint32_t slot, uint64_t request, uint32_t prompt_length,
                   uint32_t length_max);
/* The encoded SAMPLING of a fixture_admit(); `out` has 512 bytes. */
proto_column_u8_t fixture_sampling(uint32_t prompt_length, proto_bytes_t salt, uint8_t *out);
/* STEP_DONE with one token for each row that samples: `tokens` in row order, `counts` per row. */
void fixture_done(fixture_t *self, uint64_t step, uint32_t row_count, const uint8_t *counts,
                  const int32_t *tokens, const uint8_t *flags);

/* How many emissions of a kind the outbox holds. */
uint32_t fixture_count(const fixture_t *self, proto_kind_t kind);
/* Decodes the index-th emission of a kind into self->body; fails the test if there is none. */
const proto_body_t *fixture_find(fixture_t *self, proto_kind_t kind, uint32_t index);
uint64_t fixture_digest(const fixture_t *self);

void plan_begin(plan_t *self, uint64_t step, uint64_t base_step);
void plan_release(plan_t *self, uint32_t slot);
/* `count` blocks from `block` on, from `column` on. */
void plan_patch(plan_t *self, uint32_t slot, uint32_t group, uint32_t column, uint32_t count,
                uint32_t block);
void plan_clear(plan_t *self, uint32_t group, uint32_t block);
void plan_extend(plan_t *self, uint32_t slot, uint32_t begin, uint32_t length, bool samples);
void plan_decode(plan_t *self, uint32_t slot);
void plan_send(plan_t *self, fixture_t *fixture);
/* Sends and expects a launch, or a refusal by this rule. */
void plan_accept(plan_t *self, fixture_t *fixture);
void plan_refuse(plan_t *self, fixture_t *fixture, proto_plan_rule_t rule, uint32_t slot);

#endif
