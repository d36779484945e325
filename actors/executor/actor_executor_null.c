#include "actor_executor_null.h"

#include <stdlib.h>
#include <string.h>

#include "proto_clock.h"
#include "proto_require.h"

enum {
    SLOT_COUNT_DEFAULT = 32,
    MODEL_LEN_DEFAULT = 8192,
    STEP_TOKENS_DEFAULT = 512,
    GRANULARITY_DEFAULT = 64,
    VOCAB_SIZE_DEFAULT = 49152,
    DECODE_WIDTH_MAX = 16,
    STEPS_MAX = 2, /* one runs, one waits */
};

static const uint64_t HASH_START = 0x6f6e6570617468u;

typedef struct {
    uint64_t hash;   /* of the first `length` tokens */
    uint32_t length; /* tokens that a decode would have behind it */
    int32_t stop_ids[PROTO_STOP_IDS_MAX];
    uint32_t stop_count;
} null_slot_t;

typedef struct {
    proto_step_done_t done;
    uint64_t end_ns; /* when it may be collected */
    uint32_t extend_count;
    uint8_t *counts; /* [slot_count] */
    uint8_t *flags;  /* [slot_count] */
    uint8_t *widths; /* [slot_count] zeros */
    int32_t *tokens; /* [slot_count * decode_width] */
} null_step_t;

struct actor_executor_null {
    actor_executor_null_options_t options;
    null_slot_t *slots;               /* [slot_count + 1] */
    null_step_t steps[STEPS_MAX + 1]; /* the one more is what the caller still reads */
    uint32_t step_first;
    uint32_t step_count;
    uint32_t group_kind;
    uint32_t group_granularity;
    uint32_t group_window;
    uint32_t group_packing;
    uint8_t page_hash_key[PROTO_HASH_SIZE_BYTES];
};

static uint64_t
hash_token(uint64_t hash, int32_t token)
{
    hash = (hash ^ (uint32_t)token) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

static int32_t
token_of(uint64_t hash, uint32_t vocab_size)
{
    return (int32_t)((hash >> 16) % vocab_size);
}

int32_t
actor_executor_null_token(const int32_t *tokens, uint32_t token_count, uint32_t vocab_size)
{
    uint64_t hash = HASH_START;
    for (uint32_t i = 0; i < token_count; i++) {
        hash = hash_token(hash, tokens[i]);
    }
    return token_of(hash, vocab_size);
}

static void
set_default(uint32_t *value, uint32_t otherwise)
{
    if (*value == 0) {
        *value = otherwise;
    }
}

static proto_status_t
make_steps(actor_executor_null_t *self)
{
    size_t rows = self->options.slot_count;
    for (uint32_t i = 0; i < STEPS_MAX + 1; i++) {
        null_step_t *step = &self->steps[i];
        step->counts = calloc(rows, sizeof *step->counts);
        step->flags = calloc(rows, sizeof *step->flags);
        step->widths = calloc(rows, sizeof *step->widths);
        step->tokens = calloc(rows * self->options.decode_width, sizeof *step->tokens);
        if (step->counts == NULL || step->flags == NULL || step->widths == NULL ||
            step->tokens == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
    }
    return STATUS_OK;
}

proto_status_t
actor_executor_null_new(const actor_executor_null_options_t *options, actor_executor_null_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);
    actor_executor_null_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status = STATUS_ERR_CONFIG;
    actor_executor_null_options_t *o = &self->options;
    *o = *options;
    set_default(&o->slot_count, SLOT_COUNT_DEFAULT);
    set_default(&o->model_len_max, MODEL_LEN_DEFAULT);
    set_default(&o->step_tokens_max, STEP_TOKENS_DEFAULT);
    set_default(&o->block_granularity, GRANULARITY_DEFAULT);
    set_default(&o->vocab_size, VOCAB_SIZE_DEFAULT);
    set_default(&o->decode_width, 1);
    if (o->slot_count > PROTO_ROWS_MAX || o->model_len_max > PROTO_TOKENS_MAX ||
        o->step_tokens_max > PROTO_TOKENS_MAX || o->block_granularity > 65536 ||
        o->vocab_size > 1 << 24 || o->decode_width > DECODE_WIDTH_MAX ||
        (o->is_inline && o->step_ns > 0)) {
        goto err;
    }
    uint64_t positions = (uint64_t)o->model_len_max + o->decode_width - 1;
    uint64_t columns = (positions + o->block_granularity - 1) / o->block_granularity;
    uint64_t enough = 1 + columns * o->slot_count;
    set_default(&o->parent_count,
                (uint32_t)(enough < PROTO_BLOCKS_MAX ? enough : PROTO_BLOCKS_MAX));
    if (o->parent_count > PROTO_BLOCKS_MAX) {
        goto err;
    }
    if (options->page_hash_key != NULL) {
        memcpy(self->page_hash_key, options->page_hash_key, PROTO_HASH_SIZE_BYTES);
    }
    self->group_granularity = o->block_granularity;
    self->group_packing = 1;
    status = STATUS_ERR_NO_MEMORY;
    self->slots = calloc((size_t)o->slot_count + 1, sizeof *self->slots);
    if (self->slots == NULL || make_steps(self) != STATUS_OK) {
        goto err;
    }
    *out_p = self;
    return STATUS_OK;

err:
    actor_executor_null_destroy(&self);
    return status;
}

void
actor_executor_null_destroy(actor_executor_null_t **self_p)
{
    require(self_p != NULL);
    actor_executor_null_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    for (uint32_t i = 0; i < STEPS_MAX + 1; i++) {
        free(self->steps[i].counts);
        free(self->steps[i].flags);
        free(self->steps[i].widths);
        free(self->steps[i].tokens);
    }
    free(self->slots);
    free(self);
    *self_p = NULL;
}

void
actor_executor_null_info(const actor_executor_null_t *self, proto_executor_info_t *out)
{
    const actor_executor_null_options_t *o = &self->options;
    *out = (proto_executor_info_t){
        .model_name = proto_text("null device (tokens are hashes)"),
        .fingerprint = proto_text("model=null"),
        .vocab_size = o->vocab_size,
        .model_len_max = o->model_len_max,
        .slot_count = o->slot_count,
        .step_tokens_max = o->step_tokens_max,
        .decode_width = o->decode_width,
        .overlap_depth_max = o->no_overlap ? 0 : 1,
        .prefix_granularity = o->block_granularity,
        .parent_count = o->parent_count,
        .group_kinds = {&self->group_kind, 1},
        .group_granularities = {&self->group_granularity, 1},
        .group_windows = {&self->group_window, 1},
        .group_packings = {&self->group_packing, 1},
        .page_hash_key = {self->page_hash_key, PROTO_HASH_SIZE_BYTES},
    };
}

proto_status_t
actor_executor_null_slot_setup(actor_executor_null_t *self, const proto_slot_setup_t *setup)
{
    require(setup->slot >= 1 && setup->slot <= self->options.slot_count);
    null_slot_t *slot = &self->slots[setup->slot];
    proto_sampling_t sampling;
    slot->hash = HASH_START;
    slot->length = 0;
    slot->stop_count = 0;
    if (proto_sampling_decode(setup->sampling, &sampling, NULL) == STATUS_OK) {
        slot->stop_count = (uint32_t)(sampling.stop_ids.size_bytes / sizeof(int32_t));
        if (slot->stop_count > 0) {
            memcpy(slot->stop_ids, sampling.stop_ids.data, slot->stop_count * sizeof(int32_t));
        }
    }
    /* What an extend finds in the cache: it may begin behind any of these. */
    for (uint32_t i = 0; i < setup->tokens.count; i++) {
        slot->hash = hash_token(slot->hash, setup->tokens.data[i]);
    }
    slot->length = setup->tokens.count;
    return STATUS_OK;
}

static bool
is_stop(const null_slot_t *slot, int32_t token)
{
    for (uint32_t i = 0; i < slot->stop_count; i++) {
        if (slot->stop_ids[i] == token) {
            return true;
        }
    }
    return false;
}

/* One row.  A sampling extend ends where the setup's tokens do, so the hash is that of the setup.
 */
static void
sample(actor_executor_null_t *self, null_step_t *step, uint32_t slot_index, uint32_t row,
       uint32_t width)
{
    null_slot_t *slot = &self->slots[slot_index];
    bool is_extend = row < step->extend_count;
    uint32_t count = is_extend ? 1 : 1 + (uint32_t)((slot->hash >> 40) % width);
    step->counts[row] = 0;
    step->flags[row] = 0;
    while (step->counts[row] < count && step->flags[row] == 0) {
        int32_t token = token_of(slot->hash, self->options.vocab_size);
        slot->hash = hash_token(slot->hash, token);
        slot->length++;
        step->tokens[step->done.tokens.count++] = token;
        step->counts[row]++;
        step->flags[row] = is_stop(slot, token) ? PROTO_ROW_STOP_TOKEN : 0;
    }
}

static uint32_t
mode_of(uint32_t extends, uint32_t decodes)
{
    if (extends == 0) {
        return decodes == 0 ? PROTO_STEP_IDLE : PROTO_STEP_DECODE_EAGER;
    }
    return decodes == 0 ? PROTO_STEP_EXTEND : PROTO_STEP_MIXED;
}

proto_status_t
actor_executor_null_launch(actor_executor_null_t *self, const proto_step_launch_t *launch)
{
    if (self->step_count == STEPS_MAX) {
        return STATUS_FULL;
    }
    uint32_t at = (self->step_first + self->step_count) % (STEPS_MAX + 1);
    null_step_t *step = &self->steps[at];
    uint32_t extends = launch->extend_slots.count;
    uint32_t rows = extends + launch->decode_slots.count;
    require(rows <= self->options.slot_count);
    require(launch->decode_slots.count == 0 || launch->width == 1 ||
            launch->width == self->options.decode_width);
    step->extend_count = extends;
    step->done = (proto_step_done_t){.step = launch->step,
                                     .mode = mode_of(extends, launch->decode_slots.count),
                                     .duration_ns = self->options.step_ns,
                                     .token_counts = {step->counts, rows},
                                     .row_flags = {step->flags, rows},
                                     .tokens = {step->tokens, 0},
                                     .logprob_widths = {step->widths, rows}};
    for (uint32_t i = 0; i < extends; i++) {
        step->counts[i] = 0;
        step->flags[i] = 0;
        if (launch->extend_samples.data[i] != 0) {
            sample(self, step, launch->extend_slots.data[i], i, 1);
        }
    }
    for (uint32_t i = 0; i < launch->decode_slots.count; i++) {
        sample(self, step, launch->decode_slots.data[i], extends + i, launch->width);
    }
    uint64_t now_ns = 0;
    if (self->options.step_ns > 0) {
        now_ns = proto_clock_monotonic_ns(proto_clock_system());
    }
    uint64_t begin_ns = now_ns;
    if (self->step_count > 0) {
        uint64_t before_ns =
            self->steps[(self->step_first + self->step_count - 1) % (STEPS_MAX + 1)].end_ns;
        begin_ns = before_ns > now_ns ? before_ns : now_ns;
    }
    step->end_ns = begin_ns + self->options.step_ns;
    self->step_count++;
    return STATUS_OK;
}

uint64_t
actor_executor_null_wait_ns(const actor_executor_null_t *self)
{
    if (self->step_count == 0) {
        return UINT64_MAX;
    }
    if (self->options.step_ns == 0) {
        return 0;
    }
    uint64_t now_ns = proto_clock_monotonic_ns(proto_clock_system());
    uint64_t end_ns = self->steps[self->step_first].end_ns;
    return end_ns > now_ns ? end_ns - now_ns : 0;
}

proto_status_t
actor_executor_null_collect(actor_executor_null_t *self, proto_step_done_t *out)
{
    if (self->step_count == 0) {
        return STATUS_END;
    }
    if (actor_executor_null_wait_ns(self) > 0) {
        return STATUS_AGAIN;
    }
    *out = self->steps[self->step_first].done;
    self->step_first = (self->step_first + 1) % (STEPS_MAX + 1);
    self->step_count--;
    return STATUS_OK;
}

proto_status_t
actor_executor_null_reset(actor_executor_null_t *self)
{
    self->step_count = 0;
    memset(self->slots, 0, ((size_t)self->options.slot_count + 1) * sizeof *self->slots);
    return STATUS_OK;
}
