/* The drafter's core, its bytes included: it is small.
 *
 * Rounds in work are a short queue in the order in which they were asked for. */
#include "actor_drafter_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum {
    SAVE_VERSION = 1,
    BODY_SIZE_MAX = 4096,
    OUTBOX_COUNT_MAX = 8,
};

typedef struct {
    uint64_t step;
    uint32_t slot;
} round_t;

struct actor_drafter_core {
    actor_core_ops_t ops;
    actor_drafter_core_options_t options;
    bool is_linked;
    bool is_open;
    bool is_failed;
    actor_peer_t executor;
    uint64_t executor_epoch;
    round_t rounds[ACTOR_DRAFTER_ROUNDS_MAX];
    uint32_t round_count;
    actor_drafter_figures_t figures;
};

static const actor_peer_t LOCAL = {ACTOR_PEER_LOCAL};

/* ---- links ----------------------------------------------------------------------------------- */

static void
close_ring(actor_drafter_core_t *self, actor_outbox_t *outbox)
{
    if (self->is_open) {
        proto_body_t body = {.draft_open = {.ring = proto_text("")}};
        actor_outbox_push(outbox, LOCAL, PROTO_KIND_DRAFT_OPEN, 0, &body);
    }
    self->is_open = false;
    self->round_count = 0;
}

static void
peer_up(actor_drafter_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_peer_up_t *up = &input->body->peer_up;
    if (up->role != PROTO_ROLE_EXECUTOR || up->peer >= ACTOR_PEER_COUNT_MAX) {
        return;
    }
    close_ring(self, outbox);
    self->is_linked = true;
    self->executor = (actor_peer_t){up->peer};
    self->executor_epoch = up->epoch;
    const actor_drafter_core_options_t *o = &self->options;
    proto_body_t body = {.drafter_info = {.name = proto_text(o->name),
                                          .target = proto_text(o->target),
                                          .vocab_size = o->vocab_size,
                                          .hidden_size = o->hidden_size,
                                          .width_max = o->width_max,
                                          .parent_count_max = o->parent_count_max}};
    actor_outbox_push(outbox, self->executor, PROTO_KIND_DRAFTER_INFO, 0, &body);
}

static void
peer_down(actor_drafter_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    if (self->is_linked && input->body->peer_down.peer == self->executor.index) {
        close_ring(self, outbox);
        self->is_linked = false;
    }
}

static void
fail(actor_drafter_core_t *self, int64_t status, const char *detail, actor_outbox_t *outbox)
{
    if (self->is_failed) {
        return;
    }
    self->is_failed = true;
    proto_body_t body = {.device_failed = {.status = status, .detail = proto_text(detail)}};
    actor_outbox_push(outbox, LOCAL, PROTO_KIND_DEVICE_FAILED, 0, &body);
}

/* ---- the executor ---------------------------------------------------------------------------- */

static void
accepted(actor_drafter_core_t *self, const proto_drafter_accept_t *accept, actor_outbox_t *outbox)
{
    if (self->is_open || accept->ring.size_bytes == 0) {
        self->figures.ignored++;
        return;
    }
    self->is_open = true;
    proto_body_t body = {.draft_open = {.ring = accept->ring,
                                        .ring_id = accept->ring_id,
                                        .epoch = self->executor_epoch,
                                        .width = accept->width,
                                        .vocab_size = accept->vocab_size,
                                        .slot_count = accept->slot_count,
                                        .model_len_max = accept->model_len_max,
                                        .parent_count = accept->parent_count}};
    actor_outbox_push(outbox, LOCAL, PROTO_KIND_DRAFT_OPEN, 0, &body);
}

static void
refused(actor_drafter_core_t *self, const proto_drafter_refuse_t *refuse, actor_outbox_t *outbox)
{
    char detail[PROTO_TEXT_LEN_MAX];
    (void)snprintf(detail, sizeof detail,
                   "the executor refuses this drafter: %.*s; the executor has '%.*s', the drafter "
                   "'%.*s'",
                   (int)(refuse->detail.size_bytes < 256 ? refuse->detail.size_bytes : 256),
                   refuse->detail.data,
                   (int)(refuse->expected.size_bytes < 256 ? refuse->expected.size_bytes : 256),
                   refuse->expected.data,
                   (int)(refuse->got.size_bytes < 256 ? refuse->got.size_bytes : 256),
                   refuse->got.data);
    fail(self, refuse->status < 0 ? refuse->status : STATUS_ERR_CONFIG, detail, outbox);
}

static void
propose(actor_drafter_core_t *self, const proto_draft_propose_t *asked, actor_outbox_t *outbox)
{
    bool is_free = asked->slot < ACTOR_DRAFTER_ROUNDS_MAX;
    for (uint32_t i = 0; i < self->round_count; i++) {
        is_free = is_free && self->rounds[i].slot != asked->slot;
    }
    if (!self->is_open || !is_free || self->round_count == ACTOR_DRAFTER_ROUNDS_MAX) {
        self->figures.ignored++;
        return;
    }
    self->rounds[self->round_count++] = (round_t){.step = asked->step, .slot = asked->slot};
    proto_body_t body = {.draft_launch = {.step = asked->step, .slot = asked->slot}};
    actor_outbox_push(outbox, LOCAL, PROTO_KIND_DRAFT_LAUNCH, 0, &body);
}

static void
step_executor(actor_drafter_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    if (!self->is_linked || input->from.index != self->executor.index) {
        self->figures.ignored++;
    } else if (input->header->kind == PROTO_KIND_DRAFTER_ACCEPT) {
        accepted(self, &input->body->drafter_accept, outbox);
    } else if (input->header->kind == PROTO_KIND_DRAFTER_REFUSE) {
        refused(self, &input->body->drafter_refuse, outbox);
    } else if (input->header->kind == PROTO_KIND_DRAFT_PROPOSE) {
        propose(self, &input->body->draft_propose, outbox);
    } else if (input->header->kind != PROTO_KIND_NAK) {
        proto_body_t body = {.nak = {.sequence = input->header->sequence,
                                     .kind = (uint32_t)input->header->kind & 65535,
                                     .status = STATUS_ERR_UNSUPPORTED,
                                     .detail = proto_text("not for a drafter")}};
        actor_outbox_push(outbox, input->from, PROTO_KIND_NAK, input->header->request, &body);
    }
}

/* ---- the device ------------------------------------------------------------------------------ */

/* One of before the link ended finds no round: it is no answer to anybody. */
static void
done(actor_drafter_core_t *self, const proto_draft_done_t *ended, actor_outbox_t *outbox)
{
    if (self->round_count == 0 || self->rounds[0].step != ended->step ||
        self->rounds[0].slot != ended->slot) {
        self->figures.ignored++;
        return;
    }
    self->round_count--;
    memmove(self->rounds, self->rounds + 1, self->round_count * sizeof self->rounds[0]);
    self->figures.rounds++;
    self->figures.proposed += ended->candidates.count;
    self->figures.rebuilt += ended->rebuilt;
    self->figures.empty += ended->status != STATUS_OK ? 1 : 0;
    proto_body_t body = {.draft_proposed = {.step = ended->step, .slot = ended->slot}};
    actor_outbox_push(outbox, self->executor, PROTO_KIND_DRAFT_PROPOSED, 0, &body);
}

static void
step_local(actor_drafter_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_body_t *body = input->body;
    if (input->header->kind == PROTO_KIND_PEER_UP) {
        peer_up(self, input, outbox);
    } else if (input->header->kind == PROTO_KIND_PEER_DOWN) {
        peer_down(self, input, outbox);
    } else if (input->header->kind == PROTO_KIND_DRAFT_DONE) {
        done(self, &body->draft_done, outbox);
    } else if (input->header->kind == PROTO_KIND_DEVICE_FAILED) {
        char detail[PROTO_TEXT_LEN_MAX];
        (void)snprintf(detail, sizeof detail, "%.*s", (int)body->device_failed.detail.size_bytes,
                       body->device_failed.detail.data);
        int64_t status = body->device_failed.status;
        fail(self, status < 0 ? status : STATUS_ERR_DEVICE, detail, outbox);
    }
}

static void
core_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    actor_drafter_core_t *self = core;
    if (self->is_failed) {
        return;
    }
    if (input->from.index == ACTOR_PEER_LOCAL) {
        step_local(self, input, outbox);
    } else {
        step_executor(self, input, outbox);
    }
}

/* ---- the other operations -------------------------------------------------------------------- */

static uint64_t
core_deadline_ns(const void *core)
{
    (void)core;
    return UINT64_MAX; /* a drafter owns no timer */
}

static uint64_t
mix(uint64_t value)
{
    value ^= value >> 30;
    value *= 0xbf58476d1ce4e5b9u;
    value ^= value >> 27;
    value *= 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static uint64_t
core_digest(const void *core)
{
    const actor_drafter_core_t *self = core;
    uint64_t flags = (uint64_t)self->is_linked | (uint64_t)self->is_open << 1 |
                     (uint64_t)self->is_failed << 2 | (uint64_t)self->executor.index << 8 |
                     (uint64_t)self->round_count << 16;
    uint64_t digest = mix(flags + 1);
    digest = mix(digest + self->executor_epoch);
    for (uint32_t i = 0; i < self->round_count; i++) {
        digest = mix(digest + self->rounds[i].step);
        digest = mix(digest + self->rounds[i].slot);
    }
    return digest;
}

static void
core_stats(const void *core, proto_stats_t *out)
{
    const actor_drafter_core_t *self = core;
    out->steps = self->figures.rounds;
    out->drafts_proposed = self->figures.proposed;
    out->drafts_ignored = self->figures.ignored;
}

static bool
core_idle(const void *core)
{
    const actor_drafter_core_t *self = core;
    return self->round_count == 0 || !self->is_linked;
}

static void
core_check(const void *core)
{
    const actor_drafter_core_t *self = core;
    require(self->round_count <= ACTOR_DRAFTER_ROUNDS_MAX);
    require(self->is_open || self->round_count == 0);
    require(self->is_linked || !self->is_open);
    for (uint32_t i = 0; i < self->round_count; i++) {
        require(self->rounds[i].slot < ACTOR_DRAFTER_ROUNDS_MAX);
        for (uint32_t k = 0; k < i; k++) {
            require(self->rounds[i].slot != self->rounds[k].slot);
        }
    }
}

static void
core_save(const void *core, proto_pack_t *state, proto_pack_t *secret)
{
    const actor_drafter_core_t *self = core;
    const actor_drafter_core_options_t *o = &self->options;
    const actor_drafter_figures_t *figures = &self->figures;
    (void)secret;
    proto_pack_u32(state, SAVE_VERSION);
    proto_pack_bytes(state, o->name, strlen(o->name));
    proto_pack_bytes(state, o->target, strlen(o->target));
    proto_pack_u32(state, o->vocab_size);
    proto_pack_u32(state, o->hidden_size);
    proto_pack_u32(state, o->width_max);
    proto_pack_u32(state, o->parent_count_max);
    proto_pack_bool(state, self->is_linked);
    proto_pack_bool(state, self->is_open);
    proto_pack_bool(state, self->is_failed);
    proto_pack_u32(state, self->executor.index);
    proto_pack_u64(state, self->executor_epoch);
    proto_pack_u64(state, figures->rounds);
    proto_pack_u64(state, figures->proposed);
    proto_pack_u64(state, figures->rebuilt);
    proto_pack_u64(state, figures->empty);
    proto_pack_u64(state, figures->ignored);
    proto_pack_u32(state, self->round_count);
    for (uint32_t i = 0; i < self->round_count; i++) {
        proto_pack_u64(state, self->rounds[i].step);
        proto_pack_u32(state, self->rounds[i].slot);
    }
}

static void
load_name(proto_unpack_t *in, char *out, size_t capacity_bytes)
{
    proto_bytes_t bytes = proto_unpack_bytes(in, capacity_bytes - 1);
    if (!in->failed && bytes.size_bytes > 0) {
        memcpy(out, bytes.data, bytes.size_bytes);
        if (memchr(out, '\0', bytes.size_bytes) != NULL) {
            proto_unpack_fail(in);
        }
    }
}

static void
load_options(proto_unpack_t *in, actor_drafter_core_options_t *out)
{
    load_name(in, out->name, sizeof out->name);
    load_name(in, out->target, sizeof out->target);
    out->vocab_size = proto_unpack_u32_max(in, 1 << 24);
    out->hidden_size = proto_unpack_u32_max(in, 1 << 24);
    out->width_max = proto_unpack_u32_max(in, 16);
    out->parent_count_max = proto_unpack_u32_max(in, PROTO_BLOCKS_MAX);
}

static void
load(actor_drafter_core_t *self, proto_unpack_t *in)
{
    actor_drafter_figures_t *figures = &self->figures;
    self->is_linked = proto_unpack_bool(in);
    self->is_open = proto_unpack_bool(in);
    self->is_failed = proto_unpack_bool(in);
    self->executor.index = proto_unpack_u32_max(in, ACTOR_PEER_COUNT_MAX - 1);
    self->executor_epoch = proto_unpack_u64(in);
    figures->rounds = proto_unpack_u64(in);
    figures->proposed = proto_unpack_u64(in);
    figures->rebuilt = proto_unpack_u64(in);
    figures->empty = proto_unpack_u64(in);
    figures->ignored = proto_unpack_u64(in);
    self->round_count = proto_unpack_u32_max(in, ACTOR_DRAFTER_ROUNDS_MAX);
    bool is_sound =
        (self->is_open || self->round_count == 0) && (self->is_linked || !self->is_open);
    for (uint32_t i = 0; i < self->round_count && !in->failed; i++) {
        self->rounds[i].step = proto_unpack_u64(in);
        self->rounds[i].slot = proto_unpack_u32_max(in, ACTOR_DRAFTER_ROUNDS_MAX - 1);
        for (uint32_t k = 0; k < i; k++) {
            is_sound = is_sound && self->rounds[i].slot != self->rounds[k].slot;
        }
    }
    if (!is_sound) {
        proto_unpack_fail(in);
    }
}

proto_status_t
actor_drafter_core_restore(proto_bytes_t state, proto_bytes_t secret, actor_drafter_core_t **out_p,
                           proto_error_t *error)
{
    require(out_p != NULL);
    proto_error_t unused = {.detail = ""};
    proto_error_t *told = error != NULL ? error : &unused;
    proto_unpack_t in = {.bytes = state};
    uint32_t version = proto_unpack_u32(&in);
    if (!in.failed && version != SAVE_VERSION) {
        (void)snprintf(told->detail, sizeof told->detail,
                       "the drafter's state: its version is %" PRIu32 ", this build reads %d",
                       version, SAVE_VERSION);
        return STATUS_ERR_VERSION;
    }
    actor_drafter_core_options_t options = {.width_max = 0};
    load_options(&in, &options);
    actor_drafter_core_t *self = NULL;
    proto_status_t status = actor_drafter_core_new(&options, &self);
    if (status != STATUS_OK) {
        return status;
    }
    load(self, &in);
    status = secret.size_bytes == 0 ? proto_unpack_end(&in) : STATUS_ERR_MALFORMED;
    if (status != STATUS_OK) {
        (void)snprintf(told->detail, sizeof told->detail,
                       "the drafter's state, near byte %zu of %zu: %s", in.at, state.size_bytes,
                       proto_status_text(status));
        actor_drafter_core_destroy(&self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

proto_status_t
actor_drafter_core_new(const actor_drafter_core_options_t *options, actor_drafter_core_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);
    actor_drafter_core_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    self->ops = (actor_core_ops_t){.name = "drafter",
                                   .role = PROTO_ROLE_DRAFTER,
                                   .outbox_size_bytes = (size_t)OUTBOX_COUNT_MAX * BODY_SIZE_MAX,
                                   .outbox_count_max = OUTBOX_COUNT_MAX,
                                   .step = core_step,
                                   .deadline_ns = core_deadline_ns,
                                   .digest = core_digest,
                                   .stats = core_stats,
                                   .check = core_check,
                                   .idle = core_idle,
                                   .save = core_save};
    *out_p = self;
    return STATUS_OK;
}

void
actor_drafter_core_destroy(actor_drafter_core_t **self_p)
{
    require(self_p != NULL);
    free(*self_p);
    *self_p = NULL;
}

const actor_core_ops_t *
actor_drafter_core_ops(const actor_drafter_core_t *self)
{
    return &self->ops;
}

void
actor_drafter_core_figures(const actor_drafter_core_t *self, actor_drafter_figures_t *out)
{
    *out = self->figures;
    out->is_open = self->is_open;
    out->round_count = self->round_count;
}
