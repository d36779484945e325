/* The executor's half of speculation.
 *
 * Who touches what: windows, rounds in the ring and `known` belong to the stream's thread; the
 * generations of the slots are changed by the device thread, under the lock, which the stream's
 * thread takes for the moment of an append.  A step that was launched for an earlier request of a
 * slot carries the generation of then, and finds that it no longer matches. */
#include "run_draft.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device_ops.h"
#include "proto_clock.h"
#include "proto_require.h"

/* Candidates for what follows the first `length` tokens of a slot. */
typedef struct {
    uint32_t generation; /* 0 = none */
    uint32_t length;
    uint32_t count;
} window_t;

/* A round whose answer is out: our own copy, since the ring's can be written by the other side. */
typedef struct {
    uint64_t step; /* 0 = none */
    uint64_t epoch;
    uint32_t bs;
    uint32_t *slots;
    uint32_t *generations;
    uint32_t *lengths;
} asked_t;

/* A step from take to collect. */
typedef struct {
    run_draft_t *owner;
    const run_stage_t *stage;
    const int32_t *requests;
    uint64_t step;
    uint32_t draft_slot; /* 1 + ring slot; 0 = none */
    uint32_t width;
    uint32_t extends;
    uint32_t decodes;
    uint32_t sampled;
    uint32_t rows; /* of the forward */
    uint32_t ignored;
    uint32_t *generations; /* [bs_max] at the launch */
    int32_t *candidates;   /* pinned, [bs_max][N - 1] of the decode rows */
    uint8_t *used;         /* [bs_max] candidates of each decode row */
    uint8_t *drafted;      /* [bs_max] by row */
    uint8_t *hits;         /* [bs_max] */
} round_t;

struct run_draft {
    run_draft_options_t options;
    draft_ring_t *ring;
    uint32_t stride; /* N - 1 */
    pthread_mutex_t lock;
    _Atomic uint64_t epoch; /* admitted */
    uint32_t *generations;  /* [slot_count + 1], under the lock */
    uint32_t *known;        /* [slot_count + 1] tokens, under the lock */
    window_t *windows;      /* [slot_count + 1] */
    int32_t *tokens;        /* [slot_count + 1][N - 1] candidates */
    asked_t asked[DRAFT_RING_SLOT_COUNT];
    uint64_t newest_step; /* of those asked */
    bool is_late;         /* a wait was in vain: wait for nothing until it has caught up */
    uint32_t ignored;     /* since the last round */
    round_t rounds[RUN_STAGE_COUNT];
};

/* ---- answers --------------------------------------------------------------------------------- */

/* Read once: what is used is what was checked, whatever the other side writes meanwhile. */
static int32_t
read_once(const int32_t *word)
{
    return *(const volatile int32_t *)word;
}

static bool
take_row(run_draft_t *self, const asked_t *asked, const draft_ring_view_t *view, uint32_t b)
{
    uint32_t slot = asked->slots[b];
    int32_t count = read_once(&view->counts[b]);
    if (count < 0 || (uint32_t)count > self->stride) {
        return false;
    }
    int32_t *to = self->tokens + (size_t)slot * self->stride;
    window_t window = {.generation = asked->generations[b], .length = asked->lengths[b]};
    for (int32_t i = 0; i < count; i++) {
        int32_t token = read_once(&view->candidates[(size_t)b * self->stride + (uint32_t)i]);
        if ((uint32_t)token >= self->options.vocabulary) {
            self->windows[slot].generation = 0;
            return false;
        }
        to[window.count++] = token;
    }
    self->windows[slot] = window;
    return true;
}

static void
take_answer(run_draft_t *self, asked_t *asked, uint32_t index)
{
    draft_ring_view_t view = draft_ring_view(self->ring, index);
    for (uint32_t b = 0; b < asked->bs; b++) {
        self->ignored += take_row(self, asked, &view, b) ? 0 : 1;
    }
    /* One that comes a round late shows that the drafter is there. */
    self->is_late = self->is_late && asked->step + 1 < self->newest_step;
    asked->step = 0;
}

/* Takes in every answer that is there, waits for the newest one until the deadline (0 = not). */
static void
take_answers(run_draft_t *self, uint64_t deadline_ns)
{
    uint64_t epoch = atomic_load(&self->epoch);
    for (uint32_t index = 0; index < DRAFT_RING_SLOT_COUNT; index++) {
        asked_t *asked = &self->asked[index];
        if (asked->step == 0 || asked->epoch != epoch) {
            asked->step = 0; /* an earlier incarnation was asked */
            continue;
        }
        bool is_newest = asked->step == self->newest_step;
        uint64_t until_ns = is_newest && !self->is_late ? deadline_ns : 0;
        proto_status_t status = draft_ring_wait_answer(self->ring, index, asked->step, until_ns);
        if (status == STATUS_OK) {
            take_answer(self, asked, index);
        } else if (status < 0) {
            self->ignored += status == STATUS_ERR_STALE ? 1 : 0;
            asked->step = 0;
        } else if (until_ns != 0) {
            self->is_late = true;
        }
    }
}

/* ---- before a step --------------------------------------------------------------------------- */

static void
take_call(void *context)
{
    round_t *round = context;
    run_draft_t *self = round->owner;
    bool waits = round->decodes > 0 && round->width > 1 && atomic_load(&self->epoch) != 0;
    uint64_t deadline_ns = 0;
    if (waits && !self->is_late) {
        deadline_ns = proto_clock_monotonic_ns(proto_clock_system()) + self->options.wait_ns;
    }
    take_answers(self, deadline_ns);
    if (round->width == 1) {
        return;
    }
    const int32_t *slots = round->stage->header.slots + round->extends;
    memset(round->candidates, 0xff,
           (size_t)round->decodes * self->stride * sizeof *round->candidates);
    (void)pthread_mutex_lock(&self->lock);
    for (uint32_t d = 0; d < round->decodes; d++) {
        uint32_t slot = (uint32_t)slots[d];
        const window_t *window = &self->windows[slot];
        bool fits = window->generation == round->generations[round->extends + d] &&
                    window->generation == self->generations[slot] &&
                    window->length == self->known[slot];
        round->used[d] = fits ? (uint8_t)window->count : 0;
        memcpy(round->candidates + (size_t)d * self->stride,
               self->tokens + (size_t)slot * self->stride,
               round->used[d] * sizeof *round->candidates);
    }
    (void)pthread_mutex_unlock(&self->lock);
}

static void
note_launch(run_draft_t *self, round_t *round, const proto_step_launch_t *launch)
{
    round->step = launch->step;
    round->draft_slot = launch->draft_slot <= DRAFT_RING_SLOT_COUNT ? launch->draft_slot : 0;
    round->width = launch->width;
    round->extends = launch->extend_slots.count;
    round->decodes = launch->decode_slots.count;
    round->rows = launch->extend_tokens.count + round->decodes * launch->width;
    uint32_t rows = round->extends + round->decodes;
    memset(round->used, 0, rows);
    memset(round->drafted, 0, rows);
    memset(round->hits, 0, rows);
    (void)pthread_mutex_lock(&self->lock);
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t slot = r < round->extends ? launch->extend_slots.data[r]
                                           : launch->decode_slots.data[r - round->extends];
        round->generations[r] = self->generations[slot];
    }
    (void)pthread_mutex_unlock(&self->lock);
}

proto_status_t
run_draft_take(run_draft_t *self, uint32_t index, const proto_step_launch_t *launch,
               const run_stage_t *stage)
{
    require(index < RUN_STAGE_COUNT);
    round_t *round = &self->rounds[index];
    round->stage = stage;
    note_launch(self, round, launch);
    if (round->decodes == 0 || round->width == 1) {
        return STATUS_OK; /* what came meanwhile is looked at behind the step */
    }
    proto_status_t status = device_stream_call(self->options.stream, take_call, round);
    if (status != STATUS_OK) {
        return status;
    }
    kern_draft_commit_args_t commit = {
        .write_slots = stage->header.slots + round->extends,
        .candidates = round->candidates,
        .stride = self->stride,
        .count = self->stride,
        .bs = round->decodes,
        .width = self->options.width,
        .vocabulary = self->options.vocabulary,
        .future_inputs = self->options.buffers->future_inputs,
        .dropped = NULL,
    };
    device_ops(self->options.device)->draft_commit(self->options.stream, &commit);
    return STATUS_OK;
}

/* ---- behind a step --------------------------------------------------------------------------- */

typedef struct {
    const int32_t *tokens;
    uint32_t count;
} given_t;

/* The tokens that a row gave. */
static given_t
given_by(const round_t *round, uint32_t row)
{
    const run_draft_options_t *o = &round->owner->options;
    int32_t request = round->requests[row];
    if (request < 0) {
        return (given_t){.tokens = NULL, .count = 0};
    }
    const uint8_t *outputs = round->stage->outputs;
    const int32_t *tokens = (const int32_t *)(const void *)outputs;
    const int32_t *lengths = (const int32_t *)(const void *)(outputs + o->lengths_at);
    uint32_t index = (uint32_t)request;
    uint32_t count = (uint32_t)lengths[index];
    if ((outputs[o->flags_at + index] & PROTO_ROW_NAN) != 0) {
        count--;
    }
    size_t from = index < round->sampled
                      ? index
                      : round->sampled + (size_t)(index - round->sampled) * round->width;
    return (given_t){.tokens = tokens + from, .count = count};
}

/* How the candidates of a decode row did. */
static void
judge(run_draft_t *self, round_t *round, uint32_t row, const given_t *given)
{
    uint32_t slot = (uint32_t)round->stage->header.slots[row];
    if (round->width > 1) {
        uint32_t used = round->used[row - round->extends];
        uint32_t accepted = given->count > 0 ? given->count - 1 : 0;
        round->drafted[row] = (uint8_t)used;
        round->hits[row] = (uint8_t)(accepted < used ? accepted : used);
        return;
    }
    const window_t *window = &self->windows[slot];
    if (window->generation == round->generations[row] && window->length == self->known[slot] &&
        window->count > 0 && given->count > 0) {
        round->drafted[row] = 1;
        round->hits[row] = self->tokens[(size_t)slot * self->stride] == given->tokens[0];
    }
}

/* The rows of a round, for the other side and for us. */
static void
fill_round(run_draft_t *self, const round_t *round, const draft_ring_view_t *view, asked_t *asked)
{
    const run_header_t *header = &round->stage->header;
    uint32_t bs = round->extends + round->decodes;
    *view->head = (draft_ring_head_t){.mode = round->extends == 0   ? BACKEND_MODE_DECODE
                                              : round->decodes == 0 ? BACKEND_MODE_EXTEND
                                                                    : BACKEND_MODE_MIXED,
                                      .bs = bs,
                                      .num_extends = round->extends,
                                      .rows = round->rows,
                                      .width = round->width};
    asked->bs = bs;
    uint32_t at = 0;
    view->cu_lens[0] = 0;
    for (uint32_t r = 0; r < bs; r++) {
        uint32_t slot = (uint32_t)header->slots[r];
        given_t given = given_by(round, r);
        asked->slots[r] = slot;
        asked->generations[r] = round->generations[r];
        asked->lengths[r] = self->known[slot];
        view->slots[r] = slot;
        view->generations[r] = round->generations[r];
        view->lengths[r] = self->known[slot];
        if (r < round->extends) {
            view->prefix_lens[r] = header->prefix_lens[r];
            view->extend_lens[r] = header->extend_lens[r];
            view->cu_lens[r + 1] = header->cu_lens[r + 1];
            view->samples[r] = given.count > 0;
            view->token_rows[r] = given.count > 0 ? (int32_t)at : -1;
            view->next_ids[r] = -1;
        } else {
            view->accept_lengths[r - round->extends] = (int32_t)given.count;
        }
        uint32_t room = r < round->extends ? given.count : round->width;
        for (uint32_t i = 0; i < room; i++) {
            view->tokens[at++] = i < given.count ? given.tokens[i] : -1;
        }
    }
}

static void
post_call(void *context)
{
    round_t *round = context;
    run_draft_t *self = round->owner;
    uint32_t bs = round->extends + round->decodes;
    take_answers(self, 0);
    uint64_t epoch = atomic_load(&self->epoch);
    bool asks = round->draft_slot != 0 && epoch != 0;
    (void)pthread_mutex_lock(&self->lock);
    for (uint32_t r = 0; r < bs; r++) {
        uint32_t slot = (uint32_t)round->stage->header.slots[r];
        given_t given = given_by(round, r);
        if (r >= round->extends) {
            judge(self, round, r, &given);
        }
        if (given.count > 0 && self->generations[slot] == round->generations[r]) {
            self->known[slot] = draft_ring_store_append(self->ring, slot, self->known[slot],
                                                        given.tokens, given.count);
        }
    }
    if (asks) {
        uint32_t index = round->draft_slot - 1;
        asked_t *asked = &self->asked[index];
        draft_ring_view_t view = draft_ring_view(self->ring, index);
        fill_round(self, round, &view, asked);
        asked->step = round->step;
        asked->epoch = epoch;
        self->newest_step = round->step;
        draft_ring_post(self->ring, index, round->step);
    }
    (void)pthread_mutex_unlock(&self->lock);
    round->ignored = self->ignored;
    self->ignored = 0;
}

proto_status_t
run_draft_post(run_draft_t *self, uint32_t index, const int32_t *requests, uint32_t sampled_extends)
{
    require(index < RUN_STAGE_COUNT);
    round_t *round = &self->rounds[index];
    round->requests = requests;
    round->sampled = sampled_extends;
    return device_stream_call(self->options.stream, post_call, round);
}

void
run_draft_collect(run_draft_t *self, uint32_t index, proto_step_done_t *out)
{
    require(index < RUN_STAGE_COUNT);
    const round_t *round = &self->rounds[index];
    uint32_t rows = round->extends + round->decodes;
    out->drafted = (proto_column_u8_t){round->drafted, rows};
    out->draft_hits = (proto_column_u8_t){round->hits, rows};
    out->draft_ignored = round->ignored;
}

/* ---- life ------------------------------------------------------------------------------------ */

void
run_draft_admit(run_draft_t *self, uint64_t epoch)
{
    atomic_store(&self->epoch, epoch);
    draft_ring_admit(self->ring, epoch);
}

void
run_draft_begin(run_draft_t *self, uint32_t slot, const int32_t *tokens, uint32_t count)
{
    require(slot >= 1);
    require(slot <= self->options.slot_count);
    (void)pthread_mutex_lock(&self->lock);
    self->generations[slot] = draft_ring_store_begin(self->ring, slot, tokens, count);
    self->known[slot] = count < self->options.model_len_max ? count : self->options.model_len_max;
    (void)pthread_mutex_unlock(&self->lock);
}

static proto_status_t
make_rounds(run_draft_t *self)
{
    size_t bs = self->options.slot_count;
    for (uint32_t i = 0; i < RUN_STAGE_COUNT; i++) {
        round_t *round = &self->rounds[i];
        round->owner = self;
        round->generations = calloc(bs, sizeof *round->generations);
        round->used = calloc(bs, 1);
        round->drafted = calloc(bs, 1);
        round->hits = calloc(bs, 1);
        if (round->generations == NULL || round->used == NULL || round->drafted == NULL ||
            round->hits == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        proto_status_t status = device_alloc(self->options.device, DEVICE_MEMORY_PINNED,
                                             bs * self->stride * sizeof *round->candidates,
                                             (void **)&round->candidates);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

static proto_status_t
make_books(run_draft_t *self)
{
    size_t bs = self->options.slot_count;
    self->generations = calloc(bs + 1, sizeof *self->generations);
    self->known = calloc(bs + 1, sizeof *self->known);
    self->windows = calloc(bs + 1, sizeof *self->windows);
    self->tokens = calloc((bs + 1) * self->stride, sizeof *self->tokens);
    bool is_whole = self->generations != NULL && self->known != NULL && self->windows != NULL &&
                    self->tokens != NULL;
    for (uint32_t i = 0; is_whole && i < DRAFT_RING_SLOT_COUNT; i++) {
        asked_t *asked = &self->asked[i];
        asked->slots = calloc(bs, sizeof *asked->slots);
        asked->generations = calloc(bs, sizeof *asked->generations);
        asked->lengths = calloc(bs, sizeof *asked->lengths);
        is_whole = asked->slots != NULL && asked->generations != NULL && asked->lengths != NULL;
    }
    return is_whole ? STATUS_OK : STATUS_ERR_NO_MEMORY;
}

proto_status_t
run_draft_new(const run_draft_options_t *options, run_draft_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);
    require(options->width >= 2);
    run_draft_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    self->stride = options->width - 1;
    (void)pthread_mutex_init(&self->lock, NULL);
    draft_ring_options_t ring = {
        .ring_id = options->ring_id,
        .slot_count = options->slot_count,
        .width = options->width,
        .vocabulary = options->vocabulary,
        .model_len_max = options->model_len_max,
        .rows_max = options->buffers->options.step_tokens_max,
        .hidden_stride = 0,
    };
    proto_status_t status = make_books(self);
    if (status == STATUS_OK) {
        status = make_rounds(self);
    }
    if (status == STATUS_OK) {
        status = draft_ring_create(options->ring_path, &ring, &self->ring);
    }
    if (status != STATUS_OK) {
        run_draft_destroy(&self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

void
run_draft_destroy(run_draft_t **self_p)
{
    require(self_p != NULL);
    run_draft_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    if (self->ring != NULL) {
        draft_ring_admit(self->ring, 0);
    }
    draft_ring_destroy(&self->ring);
    for (uint32_t i = 0; i < RUN_STAGE_COUNT; i++) {
        round_t *round = &self->rounds[i];
        free(round->generations);
        free(round->used);
        free(round->drafted);
        free(round->hits);
        device_release(self->options.device, DEVICE_MEMORY_PINNED, (void **)&round->candidates);
    }
    for (uint32_t i = 0; i < DRAFT_RING_SLOT_COUNT; i++) {
        free(self->asked[i].slots);
        free(self->asked[i].generations);
        free(self->asked[i].lengths);
    }
    free(self->generations);
    free(self->known);
    free(self->windows);
    free(self->tokens);
    (void)pthread_mutex_destroy(&self->lock);
    free(self);
    *self_p = NULL;
}

size_t
run_draft_size_bytes(const run_draft_t *self)
{
    return draft_ring_size_bytes(self->ring);
}
