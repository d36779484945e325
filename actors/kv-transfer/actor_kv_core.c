/* The core's start, its dispatch, deadlines and figures. */
#include "actor_kv_core.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "actor_kv_state.h"
#include "proto_require.h"

enum {
    PIECE_SIZE_BYTES = 8 << 20,
    TRANSFER_COUNT_MAX = 1024,
    COLUMN_COUNT_MAX = 1 << 16,
};
#define SECOND_NS UINT64_C(1000000000)

void
actor_kv_note(actor_kv_core_t *self, uint64_t transfer, proto_status_t status, const char *format,
              ...)
{
    char text[PROTO_TEXT_LEN_MAX];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    (void)transfer;
    proto_body_t body = {.nak = {.status = status, .detail = proto_text(text)}};
    actor_outbox_push(self->outbox, kv_peer(ACTOR_PEER_LOCAL), PROTO_KIND_NAK, 0, &body);
}

/* ---- the other messages -----------------------------------------------------------------------
 */

static void
on_fence(actor_kv_core_t *self, const actor_input_t *input)
{
    const proto_fence_t *fence = &input->body->fence;
    kv_transfer_t *transfer = actor_kv_find(self, fence->transfer);
    if (transfer != NULL && transfer->state == KV_TRANSFER_OPEN) {
        transfer->has_fence = true;
        transfer->fence = fence->generation;
        transfer->fence_peer = input->from.index;
        actor_kv_end(self, transfer, STATUS_ERR_CANCELLED, "cancelled",
                     "its blocks are taken back");
        return;
    }
    if (transfer != NULL && !transfer->has_fence) {
        transfer->has_fence = true; /* dying: it is told when the last copy has ended */
        transfer->fence = fence->generation;
        transfer->fence_peer = input->from.index;
        return;
    }
    if (transfer != NULL && transfer->fence == fence->generation) {
        self->figures.duplicate_count++;
        return;
    }
    if (transfer == NULL && actor_kv_find_ended(self, fence->transfer) == NULL &&
        fence->transfer != 0) {
        /* Nothing of it may open later. */
        self->ended[self->ended_count++ % KV_ENDED_MAX] =
            (kv_ended_t){.key = fence->transfer, .status = STATUS_ERR_CANCELLED};
    }
    proto_body_t body = {.fenced = {.generation = fence->generation, .transfer = fence->transfer}};
    actor_outbox_push(self->outbox, input->from, PROTO_KIND_FENCED, 0, &body);
}

static void
on_cancel(actor_kv_core_t *self, const actor_input_t *input)
{
    uint64_t key = input->body->transfer_cancel.transfer;
    kv_transfer_t *transfer = actor_kv_find(self, key);
    if (transfer != NULL && transfer->state == KV_TRANSFER_OPEN) {
        transfer->role_peer = input->from.index;
        actor_kv_end(self, transfer, STATUS_ERR_CANCELLED, "cancelled", "asked for");
        return;
    }
    const kv_ended_t *ended = actor_kv_find_ended(self, key);
    actor_kv_answer_ended(self, input->from.index, key, ended);
    if (ended == NULL && key != 0) {
        self->ended[self->ended_count++ % KV_ENDED_MAX] =
            (kv_ended_t){.key = key, .status = STATUS_ERR_CANCELLED};
    }
}

static void
on_peer_cancel(actor_kv_core_t *self, const actor_input_t *input)
{
    const proto_kv_cancel_t *cancel = &input->body->kv_cancel;
    kv_transfer_t *transfer = actor_kv_find(self, cancel->transfer);
    if (transfer != NULL && transfer->state == KV_TRANSFER_OPEN &&
        transfer->kv_peer == input->from.index) {
        char detail[KV_DETAIL_SIZE_BYTES];
        (void)snprintf(detail, sizeof detail, "the other side ended it: %.*s",
                       (int)(cancel->detail.size_bytes < 120 ? cancel->detail.size_bytes : 120),
                       cancel->detail.data);
        transfer->kv_peer = ACTOR_PEER_NONE; /* it knows */
        actor_kv_end(self, transfer,
                     cancel->status < 0 ? (proto_status_t)cancel->status : STATUS_ERR_CANCELLED,
                     "kv_transfer_failed", detail);
    } else {
        self->figures.stale_count++;
    }
    proto_body_t body = {.kv_cancelled = {.transfer = cancel->transfer}};
    actor_outbox_push(self->outbox, input->from, PROTO_KIND_KV_CANCELLED, 0, &body);
}

/* ---- deadlines --------------------------------------------------------------------------------
 */

/* What a peer or the data thread owes: pieces that were announced, copies in work, a link. */
static bool
is_owed(const kv_transfer_t *transfer)
{
    return transfer->state == KV_TRANSFER_OPEN &&
           (transfer->flying > 0 || (transfer->is_source && transfer->kv_peer == ACTOR_PEER_NONE));
}

static uint64_t
kv_deadline_ns(const void *core)
{
    const actor_kv_core_t *self = core;
    uint64_t deadline_ns = UINT64_MAX;
    for (uint32_t i = 0; i < self->options.transfer_count_max; i++) {
        if (is_owed(&self->transfers[i])) {
            uint64_t at_ns = self->transfers[i].last_ns + self->options.stall_ns;
            deadline_ns = at_ns < deadline_ns ? at_ns : deadline_ns;
        }
    }
    for (uint32_t i = 0; self->figures.parked_count > 0 && i < KV_PARKED_MAX; i++) {
        if (self->parked[i].key != 0 && self->parked[i].until_ns < deadline_ns) {
            deadline_ns = self->parked[i].until_ns;
        }
    }
    return deadline_ns;
}

static void
on_timer(actor_kv_core_t *self)
{
    for (uint32_t i = 0; i < self->options.transfer_count_max; i++) {
        kv_transfer_t *transfer = &self->transfers[i];
        if (is_owed(transfer) && transfer->last_ns + self->options.stall_ns <= self->now_ns) {
            actor_kv_end(self, transfer, STATUS_ERR_DEADLINE, "kv_transfer_failed",
                         transfer->kv_peer == ACTOR_PEER_NONE
                             ? "the other kv-transfer is not linked"
                             : "a piece did not land in time");
        }
    }
    for (uint32_t i = 0; i < KV_PARKED_MAX; i++) {
        kv_parked_t *parked = &self->parked[i];
        if (parked->key != 0 && parked->until_ns <= self->now_ns) {
            self->figures.parked_count--;
            self->figures.stale_count++;
            if (parked->kind == PROTO_KIND_KV_PART) {
                proto_body_t body = {.kv_landed = {.transfer = parked->key,
                                                   .piece = parked->number,
                                                   .status = STATUS_ERR_NOT_FOUND,
                                                   .detail = proto_text("nobody expects it")}};
                actor_outbox_push(self->outbox, kv_peer(parked->from), PROTO_KIND_KV_LANDED, 0,
                                  &body);
            }
            *parked = (kv_parked_t){.key = 0};
        }
    }
}

/* ---- one step ---------------------------------------------------------------------------------
 */

static void
mix(actor_kv_core_t *self, uint64_t value)
{
    self->digest = XXH3_64bits_withSeed(&value, sizeof value, self->digest);
}

/* What decides the future is a function of the inputs; what they changed is in these numbers. */
static void
note_digest(actor_kv_core_t *self, const actor_input_t *input)
{
    mix(self, input->header->kind);
    mix(self, self->figures.open_count);
    mix(self, self->figures.parked_count);
    mix(self, self->ended_count);
    mix(self, self->figures.piece_count);
    mix(self, self->figures.refused_count + self->figures.stale_count);
}

static void
dispatch(actor_kv_core_t *self, const actor_input_t *input)
{
    const proto_body_t *body = input->body;
    switch ((uint32_t)input->header->kind) {
    case PROTO_KIND_PEER_UP:
        actor_kv_on_peer_up(self, &body->peer_up);
        break;
    case PROTO_KIND_PEER_DOWN:
        actor_kv_on_peer_down(self, &body->peer_down);
        break;
    case PROTO_KIND_TIMER:
        on_timer(self);
        break;
    case PROTO_KIND_DRAIN:
        self->is_draining = true;
        break;
    case PROTO_KIND_KV_ARENA:
        actor_kv_on_arena(self, input);
        break;
    case PROTO_KIND_KV_READY:
        actor_kv_on_ready(self, &body->kv_ready);
        break;
    case PROTO_KIND_TRANSFER_SERVE:
        actor_kv_on_serve(self, input);
        break;
    case PROTO_KIND_TRANSFER_PART:
        actor_kv_on_part(self, input);
        break;
    case PROTO_KIND_TRANSFER_EXPECT:
        actor_kv_on_expect(self, input);
        break;
    case PROTO_KIND_TRANSFER_CANCEL:
        on_cancel(self, input);
        break;
    case PROTO_KIND_FENCE:
        on_fence(self, input);
        break;
    case PROTO_KIND_KV_OFFER:
        actor_kv_on_offer(self, input);
        break;
    case PROTO_KIND_KV_PART:
        actor_kv_on_piece(self, input);
        break;
    case PROTO_KIND_KV_LANDED:
        actor_kv_on_landed(self, input);
        break;
    case PROTO_KIND_KV_CANCEL:
        on_peer_cancel(self, input);
        break;
    case PROTO_KIND_KV_CANCELLED:
        break; /* it is only for the log */
    case PROTO_KIND_KV_COPIED:
        actor_kv_on_copied(self, &body->kv_copied);
        break;
    case PROTO_KIND_NAK:
        actor_kv_note(self, 0, (proto_status_t)body->nak.status, "a peer refuses a message: %.*s",
                      (int)body->nak.detail.size_bytes, body->nak.detail.data);
        break;
    default: {
        self->figures.refused_count++;
        proto_body_t nak = {.nak = {.sequence = input->header->sequence,
                                    .kind = input->header->kind,
                                    .status = STATUS_ERR_UNSUPPORTED,
                                    .detail = proto_text("not for a kv-transfer")}};
        if (input->from.index != ACTOR_PEER_LOCAL) {
            actor_outbox_push(self->outbox, input->from, PROTO_KIND_NAK, 0, &nak);
        }
    }
    }
}

static void
kv_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    actor_kv_core_t *self = core;
    self->now_ns = input->now_ns;
    self->outbox = outbox;
    dispatch(self, input);
    actor_kv_pump(self);
    note_digest(self, input);
    self->outbox = NULL;
}

static uint64_t
kv_digest(const void *core)
{
    return ((const actor_kv_core_t *)core)->digest;
}

static void
kv_stats(const void *core, proto_stats_t *out)
{
    const actor_kv_core_t *self = core;
    out->steps = self->figures.piece_count;
}

static bool
kv_idle(const void *core)
{
    return ((const actor_kv_core_t *)core)->figures.open_count == 0;
}

/* Columns are sorted and counted, in every open transfer. */
static void
kv_check(const void *core)
{
    const actor_kv_core_t *self = core;
    uint32_t open_count = 0;
    uint32_t layers = actor_kv_node_layers(&self->nodes[KV_OWN]);
    for (uint32_t i = 0; i < self->options.transfer_count_max; i++) {
        const kv_transfer_t *transfer = &self->transfers[i];
        open_count += transfer->state != KV_TRANSFER_FREE ? 1 : 0;
        if (transfer->state != KV_TRANSFER_OPEN) {
            require(transfer->state != KV_TRANSFER_DYING || transfer->flying > 0);
            continue;
        }
        uint32_t missing = 0;
        const kv_column_t *columns = kv_columns_of(self, transfer);
        for (uint32_t c = 0; c < transfer->column_count; c++) {
            missing +=
                transfer->is_source ? columns[c].part == KV_NO_PART : columns[c].layers < layers;
        }
        require(missing == transfer->missing);
        require(!transfer->is_source || transfer->flying <= self->options.flying_max);
    }
    require(open_count == self->figures.open_count);
}

/* ---- life -------------------------------------------------------------------------------------
 */

static void
fill_options(actor_kv_core_options_t *options)
{
    options->transfer_count_max =
        options->transfer_count_max != 0 ? options->transfer_count_max : ACTOR_KV_TRANSFER_COUNT;
    options->column_count_max =
        options->column_count_max != 0 ? options->column_count_max : ACTOR_KV_COLUMN_COUNT;
    options->piece_size_bytes =
        options->piece_size_bytes != 0 ? options->piece_size_bytes : PIECE_SIZE_BYTES;
    options->flying_max = options->flying_max != 0 ? options->flying_max : ACTOR_KV_FLYING;
    options->stall_ns = options->stall_ns != 0 ? options->stall_ns : 10 * SECOND_NS;
    options->park_ns = options->park_ns != 0 ? options->park_ns : 5 * SECOND_NS;
}

static bool
alloc_stores(actor_kv_core_t *self)
{
    size_t transfers = self->options.transfer_count_max;
    size_t columns = self->options.column_count_max;
    self->fields = calloc((size_t)KV_NODE_MAX * ACTOR_KV_RANK_COUNT_MAX * ACTOR_KV_FIELD_COUNT_MAX,
                          sizeof *self->fields);
    self->layer_bytes = calloc((size_t)ACTOR_KV_GROUP_COUNT_MAX * (ACTOR_KV_LAYER_COUNT_MAX + 1),
                               sizeof *self->layer_bytes);
    self->wire = calloc(1, sizeof *self->wire);
    self->transfers = calloc(transfers, sizeof *self->transfers);
    self->columns = calloc(transfers * columns, sizeof *self->columns);
    self->parts = calloc(transfers * KV_PARTS_MAX, sizeof *self->parts);
    self->parked_columns = calloc(KV_PARKED_MAX * columns, sizeof *self->parked_columns);
    self->scratch = calloc(columns, sizeof *self->scratch);
    self->run_groups = calloc(columns, sizeof *self->run_groups);
    self->run_columns = calloc(columns, sizeof *self->run_columns);
    self->run_counts = calloc(columns, sizeof *self->run_counts);
    self->run_blocks = calloc(columns, sizeof *self->run_blocks);
    self->run_generations = calloc(columns, sizeof *self->run_generations);
    self->groups = calloc(columns, sizeof *self->groups);
    self->to_blocks = calloc(columns, sizeof *self->to_blocks);
    return self->wire != NULL && self->fields != NULL && self->layer_bytes != NULL &&
           self->transfers != NULL && self->columns != NULL && self->parts != NULL &&
           self->parked_columns != NULL && self->scratch != NULL && self->run_groups != NULL &&
           self->run_columns != NULL && self->run_counts != NULL && self->run_blocks != NULL &&
           self->run_generations != NULL && self->groups != NULL && self->to_blocks != NULL;
}

/* One step's messages: every transfer may end (four messages each), and pieces are announced. */
static size_t
outbox_size_bytes(const actor_kv_core_options_t *options)
{
    enum { END_BYTES = 2048, PIECES = 32, COLUMN_BYTES = 40, ARENA_BYTES = 8 << 20 };
    return (size_t)options->transfer_count_max * 4 * END_BYTES +
           (size_t)PIECES * 2 * (options->column_count_max * COLUMN_BYTES + END_BYTES) +
           (size_t)KV_PARKED_MAX * END_BYTES +
           (size_t)KV_PARKED_MAX * options->column_count_max * COLUMN_BYTES + ARENA_BYTES;
}

proto_status_t
actor_kv_core_make(const actor_kv_core_options_t *options, actor_kv_core_t **out_p)
{
    actor_kv_core_options_t filled = *options;
    fill_options(&filled);
    if (filled.transfer_count_max > TRANSFER_COUNT_MAX ||
        filled.column_count_max > COLUMN_COUNT_MAX || filled.flying_max > 1024) {
        return STATUS_ERR_CONFIG;
    }
    actor_kv_core_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = filled;
    self->digest = 1;
    for (uint32_t i = 0; i < KV_NODE_MAX; i++) {
        self->nodes[i].peer = ACTOR_PEER_NONE;
    }
    self->ops = (actor_core_ops_t){
        .name = "kv-transfer",
        .role = PROTO_ROLE_KV_TRANSFER,
        .outbox_size_bytes = outbox_size_bytes(&filled),
        .outbox_count_max = filled.transfer_count_max * 4 + 64 + KV_PARKED_MAX * 2 +
                            KV_NODE_MAX * (ACTOR_KV_RANK_COUNT_MAX + 1) + 64,
        .step = kv_step,
        .deadline_ns = kv_deadline_ns,
        .digest = kv_digest,
        .stats = kv_stats,
        .check = kv_check,
        .idle = kv_idle,
        .save = actor_kv_save,
    };
    if (!alloc_stores(self)) {
        actor_kv_core_destroy(&self);
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < filled.transfer_count_max; i++) {
        self->transfers[i].kv_peer = ACTOR_PEER_NONE;
    }
    *out_p = self;
    return STATUS_OK;
}

proto_status_t
actor_kv_core_new(const actor_kv_core_options_t *options, actor_kv_core_t **out_p)
{
    require(options != NULL);
    return actor_kv_core_make(options, out_p);
}

void
actor_kv_core_destroy(actor_kv_core_t **self_p)
{
    require(self_p != NULL);
    actor_kv_core_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    free(self->wire);
    free(self->fields);
    free(self->layer_bytes);
    free(self->transfers);
    free(self->columns);
    free(self->parts);
    free(self->parked_columns);
    free(self->scratch);
    free(self->run_groups);
    free(self->run_columns);
    free(self->run_counts);
    free(self->run_blocks);
    free(self->run_generations);
    free(self->groups);
    free(self->to_blocks);
    free(self);
    *self_p = NULL;
}

const actor_core_ops_t *
actor_kv_core_ops(const actor_kv_core_t *self)
{
    return &self->ops;
}

void
actor_kv_core_figures(const actor_kv_core_t *self, actor_kv_figures_t *out)
{
    *out = self->figures;
}
