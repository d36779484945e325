/* actor_sim_device.h - a device whose cache is real and whose model is a hash.
 *
 * It knows only what an executor's core tells a device: SLOT_SETUP, STEP_LAUNCH, DEVICE_RESET. Each
 * position of a request writes the hash of all tokens up to it into its cell of the block that the
 * table names; a token is a hash of every cell that the model's layers would read.  So a block that
 * was given away too early, or a table that is wrong, gives a wrong token, as it would on a GPU.
 * A state group's block holds one state, a hash that goes on from token to token: a row reads the
 * one before it and leaves the one that it ended with, so a state of other or of fewer tokens is in
 * every token from there on.  A decoding row gives 1 to `width` tokens, as the hash has it, and
 * leaves garbage behind those, as rejected drafts do.
 * Groups share the memory of a parent block, as in the arena.  No clock: the world says when. */
#ifndef ACTOR_SIM_DEVICE_H
#define ACTOR_SIM_DEVICE_H

#include "actor_sim_random.h"
#include "proto_codec.h"

enum {
    ACTOR_SIM_GROUP_COUNT_MAX = 3,
    ACTOR_SIM_WIDTH_MAX = 4,
    ACTOR_SIM_LEN_MAX = 192,      /* tokens of a request */
    ACTOR_SIM_STEP_COUNT_MAX = 4, /* steps that were launched and not collected */
    ACTOR_SIM_SLOT_COUNT_MAX = 16,
    ACTOR_SIM_STOP_ID_COUNT_MAX = 4,
};

/* The sizes that the device reports. */
typedef struct {
    uint32_t slot_count;
    uint32_t model_len_max;
    uint32_t step_tokens_max;
    uint32_t vocab_size;
    uint32_t page_tokens;
    uint32_t parent_count;
    uint32_t overlap;
    uint32_t width;                            /* of decode rows; 0 = 1 */
    uint32_t group_count;                      /* the first is full */
    uint32_t kinds[ACTOR_SIM_GROUP_COUNT_MAX]; /* as in EXECUTOR_INFO */
    uint32_t granularities[ACTOR_SIM_GROUP_COUNT_MAX];
    uint32_t windows[ACTOR_SIM_GROUP_COUNT_MAX];
    uint32_t packings[ACTOR_SIM_GROUP_COUNT_MAX];
    bool reads_whole_blocks; /* what is beyond the last token is multiplied by 0: a NaN stays one */
    uint8_t page_hash_key[PROTO_HASH_SIZE_BYTES];
} actor_sim_model_t;

void actor_sim_model_info(const actor_sim_model_t *self, proto_executor_info_t *out);

/* ---- the pure function ----------------------------------------------------------------------- */

/* A sequence of tokens and what the model says of it. */
typedef struct {
    uint32_t length;
    uint64_t chain[ACTOR_SIM_LEN_MAX];        /* hash of the first tokens */
    uint64_t sums[ACTOR_SIM_GROUP_COUNT_MAX]; /* of what each group reads; the state */
} actor_sim_sequence_t;

void actor_sim_sequence_append(actor_sim_sequence_t *self, const actor_sim_model_t *model,
                               int32_t token);
/* The token that follows. */
int32_t actor_sim_sequence_next(const actor_sim_sequence_t *self, const actor_sim_model_t *model);
/* Tokens that a decoding row gives whose first one is the sequence's last, if none of them stops.
 */
uint32_t actor_sim_sequence_accepted(const actor_sim_sequence_t *self,
                                     const actor_sim_model_t *model);

/* ---- the device ------------------------------------------------------------------------------ */

typedef struct actor_sim_device actor_sim_device_t;

MUST_CHECK proto_status_t actor_sim_device_new(const actor_sim_model_t *model,
                                               actor_sim_device_t **out_p);
void actor_sim_device_destroy(actor_sim_device_t **self_p);

void actor_sim_device_setup(actor_sim_device_t *self, const proto_slot_setup_t *setup);
/* Computes the step at once; its outputs wait for actor_sim_device_collect().  `nan_permille`: how
 * often a row gives NaN, which also spoils what it writes.  False if too many steps wait. */
MUST_CHECK bool actor_sim_device_launch(actor_sim_device_t *self, const proto_step_launch_t *launch,
                                        uint32_t nan_permille, actor_sim_random_t *random);
/* What a transfer carries: a block of another device of the same model becomes one of this. */
void actor_sim_device_copy_block(actor_sim_device_t *self, uint32_t group, uint32_t block,
                                 const actor_sim_device_t *from, uint32_t from_block);
/* The oldest step; false if there is none.  Views live until the next launch. */
bool actor_sim_device_collect(actor_sim_device_t *self, proto_step_done_t *out);
/* Forgets slots and steps; the cache keeps its cells, as memory does, but for NaNs. */
void actor_sim_device_reset(actor_sim_device_t *self);

#endif
