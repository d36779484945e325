/* The receiving side: which pieces fit what may be written, and when all has landed. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "actor_kv_state.h"
#include "proto_require.h"

static void
refuse_expect(actor_kv_core_t *self, uint32_t peer, uint64_t key, proto_status_t status,
              const char *code, const char *detail)
{
    self->figures.refused_count++;
    proto_body_t body = {.transfer_done = {.transfer = key,
                                           .status = status,
                                           .code = proto_text(code),
                                           .detail = proto_text(detail)}};
    actor_outbox_push(self->outbox, kv_peer(peer), PROTO_KIND_TRANSFER_DONE, 0, &body);
    actor_kv_note(self, key, status, "transfer %016" PRIx64 " is refused: %s", key, detail);
}

/* ---- a piece
 * -------------------------------------------------------------------------------------- */

static void
say_landed(actor_kv_core_t *self, uint32_t peer, uint64_t key, uint32_t piece,
           proto_status_t status, const char *detail)
{
    proto_body_t body = {.kv_landed = {.transfer = key,
                                       .piece = piece,
                                       .status = status,
                                       .detail = proto_text(detail)}};
    actor_outbox_push(self->outbox, kv_peer(peer), PROTO_KIND_KV_LANDED, 0, &body);
}

/* A piece that cannot be taken ends its transfer on both sides. */
static void
reject_piece(actor_kv_core_t *self, kv_transfer_t *transfer, const kv_parked_t *piece,
             proto_status_t status, const char *why)
{
    self->figures.refused_count++;
    say_landed(self, piece->from, transfer->key, piece->number, status, why);
    actor_kv_end(self, transfer, status,
                 status == STATUS_ERR_STALE ? "stale" : "kv_transfer_failed", why);
}

static void
finish_if_whole(actor_kv_core_t *self, kv_transfer_t *transfer)
{
    if (!transfer->has_last || transfer->flying > 0) {
        return;
    }
    if (transfer->missing > 0) {
        char detail[KV_DETAIL_SIZE_BYTES];
        (void)snprintf(detail, sizeof detail,
                       "the source has nothing more, and %" PRIu32 " of %" PRIu32
                       " blocks are not whole",
                       transfer->missing, transfer->column_count);
        actor_kv_end(self, transfer, STATUS_ERR_INVALID, "kv_transfer_failed", detail);
        return;
    }
    actor_kv_end(self, transfer, STATUS_OK, "", "");
}

/* Every column of the piece is one that is wanted, and its layers go on where they ended. */
static const char *
fit(const actor_kv_core_t *self, const kv_transfer_t *transfer, const kv_parked_t *piece,
    uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const kv_column_t *column =
            actor_kv_find_column(self, transfer, self->scratch[i].group, self->scratch[i].column);
        if (column == NULL) {
            return "a column that nobody asked for";
        }
        if (column->layers != piece->layer_begin) {
            return "layers of a column are missing, or come twice";
        }
    }
    return NULL;
}

static void
ask_for_copy(actor_kv_core_t *self, kv_transfer_t *transfer, const kv_parked_t *piece,
             uint32_t count)
{
    uint32_t layers = actor_kv_node_layers(&self->nodes[KV_OWN]);
    for (uint32_t i = 0; i < count; i++) {
        kv_column_t *column =
            actor_kv_find_column(self, transfer, self->scratch[i].group, self->scratch[i].column);
        column->layers = (uint16_t)piece->layer_end;
        transfer->missing -= piece->layer_end == layers ? 1 : 0;
        self->groups[i] = column->group;
        self->run_blocks[i] = self->scratch[i].block;
        self->run_generations[i] = self->scratch[i].generation;
        self->to_blocks[i] = column->block;
    }
    proto_body_t body = {.kv_copy = {.transfer = transfer->key,
                                     .piece = piece->number,
                                     .gate = transfer->gate,
                                     .peer = transfer->kv_peer,
                                     .layer_begin = piece->layer_begin,
                                     .layer_end = piece->layer_end,
                                     .groups = {self->groups, count},
                                     .from_blocks = {self->run_blocks, count},
                                     .from_generations = {self->run_generations, count},
                                     .to_blocks = {self->to_blocks, count}}};
    actor_outbox_push(self->outbox, kv_peer(ACTOR_PEER_LOCAL), PROTO_KIND_KV_COPY, 0, &body);
    transfer->flying++;
}

/* The piece's columns are in scratch. */
static void
take_piece(actor_kv_core_t *self, kv_transfer_t *transfer, const kv_parked_t *piece, uint32_t count)
{
    uint32_t layers = actor_kv_node_layers(&self->nodes[KV_OWN]);
    if (transfer->kv_peer != piece->from) {
        self->figures.stale_count++;
        return; /* another sender: the offer of this one was never taken */
    }
    if (piece->number < transfer->next_piece) {
        self->figures.duplicate_count++;
        return;
    }
    if (piece->number > transfer->next_piece || transfer->has_last) {
        reject_piece(self, transfer, piece, STATUS_ERR_MALFORMED,
                     "pieces are missing, or come after the last one");
        return;
    }
    if (piece->layer_begin >= piece->layer_end || piece->layer_end > layers) {
        reject_piece(self, transfer, piece, STATUS_ERR_INVALID, "layers that the cache has not");
        return;
    }
    const char *why = fit(self, transfer, piece, count);
    if (why != NULL) {
        reject_piece(self, transfer, piece, STATUS_ERR_INVALID, why);
        return;
    }
    transfer->next_piece++;
    transfer->last_ns = self->now_ns;
    transfer->begin_ns = transfer->begin_ns == 0 ? self->now_ns : transfer->begin_ns;
    transfer->has_last = piece->is_last;
    if (count > 0) {
        ask_for_copy(self, transfer, piece, count);
        return;
    }
    transfer->landed++;
    say_landed(self, piece->from, transfer->key, piece->number, STATUS_OK, "");
    finish_if_whole(self, transfer);
}

static void
take_offer(actor_kv_core_t *self, kv_transfer_t *transfer, const kv_parked_t *offer)
{
    const kv_node_t *node = actor_kv_node_of_peer(self, offer->from);
    if (transfer->kv_peer != ACTOR_PEER_NONE) {
        self->figures.duplicate_count++;
        return;
    }
    char detail[KV_DETAIL_SIZE_BYTES];
    if (node == NULL || !actor_kv_node_is_whole(node)) {
        self->figures.stale_count++;
        return;
    }
    transfer->kv_peer = offer->from;
    transfer->gate = offer->gate;
    transfer->last_ns = self->now_ns;
    if (!node->is_compatible) {
        (void)snprintf(detail, sizeof detail, "layout %016" PRIx64 " here, %016" PRIx64 " at %s",
                       self->nodes[KV_OWN].layout_fingerprint, node->layout_fingerprint,
                       node->name);
        self->figures.refused_count++;
        actor_kv_end(self, transfer, STATUS_ERR_FINGERPRINT, "layout", detail);
        return;
    }
    if (offer->wanted != transfer->wanted) {
        (void)snprintf(detail, sizeof detail,
                       "%" PRIu32 " tokens expected, %" PRIu32 " are offered", transfer->wanted,
                       offer->wanted);
        self->figures.refused_count++;
        actor_kv_end(self, transfer, STATUS_ERR_INVALID, "kv_transfer_failed", detail);
    }
}

/* ---- opening
 * -------------------------------------------------------------------------------------- */

static void
take_early(actor_kv_core_t *self, kv_transfer_t *transfer)
{
    uint64_t key = transfer->key;
    kv_parked_t early;
    while (transfer->key == key && transfer->state == KV_TRANSFER_OPEN &&
           actor_kv_unpark(self, key, &early)) {
        if (early.kind == PROTO_KIND_KV_OFFER) {
            take_offer(self, transfer, &early);
        } else if (early.kind == PROTO_KIND_KV_PART) {
            take_piece(self, transfer, &early, early.column_count);
        }
    }
}

void
actor_kv_on_expect(actor_kv_core_t *self, const actor_input_t *input)
{
    const proto_transfer_expect_t *expect = &input->body->transfer_expect;
    const kv_node_t *own = &self->nodes[KV_OWN];
    uint32_t from = input->from.index;
    if (expect->transfer == 0 || actor_kv_find(self, expect->transfer) != NULL) {
        self->figures.duplicate_count++;
        return;
    }
    const kv_ended_t *ended = actor_kv_find_ended(self, expect->transfer);
    if (ended != NULL) {
        self->figures.duplicate_count++;
        actor_kv_answer_ended(self, from, expect->transfer, ended);
        return;
    }
    if (!actor_kv_node_is_whole(own)) {
        refuse_expect(self, from, expect->transfer, STATUS_ERR_REFUSED, "kv_transfer_failed",
                      "no executor has registered its cache here");
        return;
    }
    const kv_runs_t runs = KV_RUNS_OF(expect);
    const char *why = NULL;
    uint32_t count = 0;
    kv_transfer_t *transfer = NULL;
    if (actor_kv_read_runs(self, &runs, own, &count, &why)) {
        transfer = actor_kv_open(self, expect->transfer, count, &why);
    }
    if (transfer == NULL) {
        refuse_expect(self, from, expect->transfer, STATUS_ERR_INVALID, "kv_transfer_failed", why);
        return;
    }
    transfer->role_peer = from;
    transfer->wanted = expect->wanted;
    take_early(self, transfer);
}

/* ---- what the source says
 * ------------------------------------------------------------------------- */

/* The transfer that a source's message is for; NULL: it was dealt with, or it waits. */
static kv_transfer_t *
find_or_park(actor_kv_core_t *self, const kv_parked_t *message, uint32_t count)
{
    const kv_ended_t *ended = actor_kv_find_ended(self, message->key);
    if (message->key == 0 || ended != NULL) {
        self->figures.stale_count++;
        if (ended != NULL && ended->status != STATUS_OK) {
            proto_body_t body = {.kv_cancel = {.transfer = message->key,
                                               .status = ended->status,
                                               .detail = proto_text("it has ended here")}};
            actor_outbox_push(self->outbox, kv_peer(message->from), PROTO_KIND_KV_CANCEL, 0, &body);
        }
        return NULL;
    }
    kv_transfer_t *transfer = actor_kv_find(self, message->key);
    if (transfer == NULL) {
        actor_kv_park(self, message, count);
        return NULL;
    }
    if (transfer->is_source || transfer->state != KV_TRANSFER_OPEN) {
        self->figures.stale_count++;
        return NULL;
    }
    return transfer;
}

void
actor_kv_on_offer(actor_kv_core_t *self, const actor_input_t *input)
{
    const proto_kv_offer_t *offer = &input->body->kv_offer;
    const kv_parked_t message = {.key = offer->transfer,
                                 .kind = PROTO_KIND_KV_OFFER,
                                 .from = input->from.index,
                                 .gate = offer->gate,
                                 .wanted = offer->wanted};
    kv_transfer_t *transfer = find_or_park(self, &message, 0);
    if (transfer != NULL) {
        take_offer(self, transfer, &message);
    }
}

void
actor_kv_on_piece(actor_kv_core_t *self, const actor_input_t *input)
{
    const proto_kv_part_t *part = &input->body->kv_part;
    const kv_parked_t message = {.key = part->transfer,
                                 .kind = PROTO_KIND_KV_PART,
                                 .from = input->from.index,
                                 .number = part->piece,
                                 .layer_begin = part->layer_begin,
                                 .layer_end = part->layer_end,
                                 .is_last = part->is_last};
    const kv_node_t *node = actor_kv_node_of_peer(self, input->from.index);
    if (node == NULL || !actor_kv_node_is_whole(node)) {
        self->figures.stale_count++;
        return;
    }
    const kv_runs_t runs = KV_RUNS_OF(part);
    const char *why = NULL;
    uint32_t count = 0;
    if (!actor_kv_read_runs(self, &runs, node, &count, &why)) {
        kv_transfer_t *broken = actor_kv_find(self, message.key);
        if (broken != NULL && !broken->is_source && broken->state == KV_TRANSFER_OPEN &&
            broken->kv_peer == message.from) {
            reject_piece(self, broken, &message, STATUS_ERR_INVALID, why);
        } else {
            self->figures.refused_count++;
            say_landed(self, message.from, message.key, message.number, STATUS_ERR_INVALID, why);
        }
        return;
    }
    kv_transfer_t *transfer = find_or_park(self, &message, count);
    if (transfer != NULL) {
        take_piece(self, transfer, &message, count);
    }
}

void
actor_kv_on_copied(actor_kv_core_t *self, const proto_kv_copied_t *copied)
{
    kv_transfer_t *transfer = actor_kv_find(self, copied->transfer);
    if (transfer == NULL || transfer->is_source || transfer->flying == 0) {
        self->figures.stale_count++;
        return;
    }
    transfer->flying--;
    if (transfer->state == KV_TRANSFER_DYING) {
        actor_kv_settle(self, transfer);
        return;
    }
    transfer->last_ns = self->now_ns;
    if (copied->status != STATUS_OK) {
        char detail[KV_DETAIL_SIZE_BYTES];
        (void)snprintf(detail, sizeof detail, "%.*s",
                       (int)(copied->detail.size_bytes < 150 ? copied->detail.size_bytes : 150),
                       copied->detail.data);
        proto_status_t status = (proto_status_t)copied->status;
        self->figures.refused_count++;
        say_landed(self, transfer->kv_peer, transfer->key, copied->piece, status, detail);
        actor_kv_end(self, transfer, status,
                     status == STATUS_ERR_MALFORMED ? "checksum"
                     : status == STATUS_ERR_STALE   ? "stale"
                                                    : "kv_transfer_failed",
                     detail);
        return;
    }
    transfer->landed++;
    transfer->size_bytes += copied->size_bytes;
    self->figures.piece_count++;
    self->figures.size_bytes += copied->size_bytes;
    say_landed(self, transfer->kv_peer, transfer->key, copied->piece, STATUS_OK, "");
    finish_if_whole(self, transfer);
}
