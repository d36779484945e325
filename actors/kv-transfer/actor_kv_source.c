/* The sending side: what may be announced, in which pieces. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "actor_kv_state.h"
#include "proto_require.h"

/* ---- opening ------------------------------------------------------------------------------------
 */

static void
refuse(actor_kv_core_t *self, uint32_t peer, uint64_t key, proto_status_t status, const char *code,
       const char *detail)
{
    self->figures.refused_count++;
    proto_body_t body = {.transfer_done = {.transfer = key,
                                           .status = status,
                                           .code = proto_text(code),
                                           .detail = proto_text(detail)}};
    actor_outbox_push(self->outbox, kv_peer(peer), PROTO_KIND_TRANSFER_DONE, 0, &body);
    actor_kv_note(self, key, status, "transfer %016" PRIx64 " is refused: %s", key, detail);
}

/* Begins with the peer that a transfer is for. */
static void
offer(actor_kv_core_t *self, kv_transfer_t *transfer, const kv_node_t *node)
{
    const kv_node_t *own = &self->nodes[KV_OWN];
    if (!node->is_compatible) {
        char detail[KV_DETAIL_SIZE_BYTES];
        (void)snprintf(detail, sizeof detail, "layout %016" PRIx64 " here, %016" PRIx64 " at %s",
                       own->layout_fingerprint, node->layout_fingerprint, node->name);
        actor_kv_end(self, transfer, STATUS_ERR_FINGERPRINT, "layout", detail);
        return;
    }
    transfer->kv_peer = node->peer;
    transfer->last_ns = self->now_ns;
    proto_body_t body = {.kv_offer = {.transfer = transfer->key,
                                      .fingerprint = proto_text(own->fingerprint),
                                      .wanted = transfer->wanted,
                                      .gate = (uint32_t)(transfer - self->transfers)}};
    actor_outbox_push(self->outbox, kv_peer(node->peer), PROTO_KIND_KV_OFFER, 0, &body);
}

static void take_part(actor_kv_core_t *self, kv_transfer_t *transfer, const kv_parked_t *part,
                      uint32_t count);

static void
open_source(actor_kv_core_t *self, const actor_input_t *input, uint32_t count)
{
    const proto_transfer_serve_t *serve = &input->body->transfer_serve;
    const char *why = NULL;
    kv_transfer_t *transfer = actor_kv_open(self, serve->transfer, count, &why);
    if (transfer == NULL) {
        refuse(self, input->from.index, serve->transfer, STATUS_ERR_OVERLOADED,
               "kv_transfer_failed", why);
        return;
    }
    transfer->is_source = true;
    transfer->role_peer = input->from.index;
    transfer->wanted = serve->wanted;
    transfer->kv_epoch = serve->kv_epoch;
    (void)snprintf(transfer->kv_name, sizeof transfer->kv_name, "%.*s",
                   (int)serve->kv_name.size_bytes, serve->kv_name.data);
    proto_body_t gate = {.kv_gate = {.transfer = transfer->key,
                                     .gate = (uint32_t)(transfer - self->transfers),
                                     .is_source = true,
                                     .is_open = true}};
    actor_outbox_push(self->outbox, kv_peer(ACTOR_PEER_LOCAL), PROTO_KIND_KV_GATE, 0, &gate);
    kv_node_t *node = actor_kv_node_named(self, transfer->kv_name, transfer->kv_epoch);
    if (node != NULL && actor_kv_node_is_whole(node) && self->data_endpoint[0] != '\0') {
        offer(self, transfer, node); /* else when peers have been told of us, and we of them */
    }
    uint64_t key = serve->transfer;
    kv_parked_t early;
    while (transfer->key == key && transfer->state == KV_TRANSFER_OPEN &&
           actor_kv_unpark(self, key, &early)) {
        if (early.kind == PROTO_KIND_TRANSFER_PART) {
            take_part(self, transfer, &early, early.column_count);
        }
    }
}

void
actor_kv_on_serve(actor_kv_core_t *self, const actor_input_t *input)
{
    const proto_transfer_serve_t *serve = &input->body->transfer_serve;
    const kv_node_t *own = &self->nodes[KV_OWN];
    uint32_t from = input->from.index;
    if (serve->transfer == 0 || actor_kv_find(self, serve->transfer) != NULL) {
        self->figures.duplicate_count++;
        return;
    }
    const kv_ended_t *ended = actor_kv_find_ended(self, serve->transfer);
    if (ended != NULL) {
        self->figures.duplicate_count++;
        actor_kv_answer_ended(self, from, serve->transfer, ended);
        return;
    }
    if (!actor_kv_node_is_whole(own)) {
        refuse(self, from, serve->transfer, STATUS_ERR_REFUSED, "kv_transfer_failed",
               "no executor has registered its cache here");
        return;
    }
    proto_text_t theirs = serve->fingerprint;
    if (theirs.size_bytes > 0 && (theirs.size_bytes != strlen(own->fingerprint) ||
                                  memcmp(theirs.data, own->fingerprint, theirs.size_bytes) != 0)) {
        char detail[2 * 512];
        (void)snprintf(detail, sizeof detail, "%.480s here, %.*s asked for", own->fingerprint,
                       (int)(theirs.size_bytes < 480 ? theirs.size_bytes : 480), theirs.data);
        refuse(self, from, serve->transfer, STATUS_ERR_FINGERPRINT, "layout", detail);
        return;
    }
    const kv_runs_t runs = KV_RUNS_OF(serve);
    const char *why = NULL;
    uint32_t count = 0;
    if (!actor_kv_read_runs(self, &runs, NULL, &count, &why)) {
        refuse(self, from, serve->transfer, STATUS_ERR_INVALID, "kv_transfer_failed", why);
        return;
    }
    open_source(self, input, count);
}

void
actor_kv_source_found_peer(actor_kv_core_t *self, const kv_node_t *node)
{
    for (uint32_t i = 0; self->data_endpoint[0] != '\0' && i < self->options.transfer_count_max;
         i++) {
        kv_transfer_t *transfer = &self->transfers[i];
        if (transfer->state == KV_TRANSFER_OPEN && transfer->is_source &&
            transfer->kv_peer == ACTOR_PEER_NONE && transfer->kv_epoch == node->epoch &&
            strcmp(transfer->kv_name, node->name) == 0) {
            offer(self, transfer, node);
        }
    }
}

/* ---- parts
 * --------------------------------------------------------------------------------------- */

/* The columns of the part are in scratch: those that are wanted get their blocks. */
static bool
name_columns(actor_kv_core_t *self, kv_transfer_t *transfer, kv_part_t *part, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const kv_column_t *named = &self->scratch[i];
        kv_column_t *column = actor_kv_find_column(self, transfer, named->group, named->column);
        if (column == NULL) {
            continue; /* the other side has it already */
        }
        if (column->part != KV_NO_PART) {
            return false;
        }
        column->block = named->block;
        column->generation = named->generation;
        column->part = part->number;
        part->count++;
        transfer->missing--;
    }
    return true;
}

static void
take_part(actor_kv_core_t *self, kv_transfer_t *transfer, const kv_parked_t *message,
          uint32_t count)
{
    if (message->number < transfer->next_part) {
        self->figures.duplicate_count++;
        return;
    }
    if (message->number > transfer->next_part || transfer->has_last) {
        self->figures.refused_count++;
        actor_kv_end(self, transfer, STATUS_ERR_MALFORMED, "kv_transfer_failed",
                     "parts of the prefill are missing, or come after the last one");
        return;
    }
    if (transfer->parts_count == KV_PARTS_MAX) {
        actor_kv_end(self, transfer, STATUS_ERR_OVERLOADED, "kv_transfer_failed",
                     "more parts wait to be sent than there is room for");
        return;
    }
    kv_part_t *part = kv_part_at(self, transfer, transfer->parts_count);
    *part =
        (kv_part_t){.number = message->number, .step = message->step, .is_last = message->is_last};
    if (!name_columns(self, transfer, part, count)) {
        self->figures.refused_count++;
        actor_kv_end(self, transfer, STATUS_ERR_MALFORMED, "kv_transfer_failed",
                     "two parts name one column");
        return;
    }
    transfer->parts_count++;
    transfer->next_part++;
    transfer->has_last = message->is_last;
    transfer->last_ns = self->now_ns;
    if (transfer->has_last && transfer->missing > 0) {
        actor_kv_end(self, transfer, STATUS_ERR_INVALID, "kv_transfer_failed",
                     "the prefill has ended and some of the wanted columns were never named");
    }
}

void
actor_kv_on_part(actor_kv_core_t *self, const actor_input_t *input)
{
    const proto_transfer_part_t *part = &input->body->transfer_part;
    if (part->transfer == 0 || actor_kv_find_ended(self, part->transfer) != NULL) {
        self->figures.stale_count++;
        return;
    }
    kv_transfer_t *transfer = actor_kv_find(self, part->transfer);
    if (transfer != NULL && (!transfer->is_source || transfer->state != KV_TRANSFER_OPEN)) {
        self->figures.stale_count++;
        return;
    }
    const kv_runs_t runs = KV_RUNS_OF(part);
    const kv_node_t *own = &self->nodes[KV_OWN];
    const char *why = NULL;
    uint32_t count = 0;
    if (!actor_kv_read_runs(self, &runs, actor_kv_node_is_whole(own) ? own : NULL, &count, &why)) {
        self->figures.refused_count++;
        if (transfer != NULL) {
            actor_kv_end(self, transfer, STATUS_ERR_INVALID, "kv_transfer_failed", why);
        }
        return;
    }
    const kv_parked_t message = {.key = part->transfer,
                                 .kind = PROTO_KIND_TRANSFER_PART,
                                 .from = input->from.index,
                                 .step = part->step,
                                 .number = part->part,
                                 .is_last = part->is_last};
    if (transfer == NULL) {
        actor_kv_park(self, &message, count);
        return;
    }
    take_part(self, transfer, &message, count);
}

/* ---- pieces
 * -------------------------------------------------------------------------------------- */

/* A rectangle of a part: some of its columns, some layers. */
typedef struct {
    uint32_t first; /* of the part's columns */
    uint32_t count;
    uint32_t layer_begin;
    uint32_t layer_end;
} piece_t;

/* As many layers as fit, of all columns that are left; or as many columns of one layer as fit. */
static piece_t
cut_piece(const actor_kv_core_t *self, const kv_transfer_t *transfer, const kv_part_t *part,
          uint32_t ready)
{
    const kv_column_t *columns = kv_columns_of(self, transfer);
    uint32_t per_group[ACTOR_KV_GROUP_COUNT_MAX] = {0};
    for (uint32_t i = 0; i < transfer->column_count; i++) {
        per_group[columns[i].group] += columns[i].part == part->number;
    }
    piece_t piece = {.first = part->cursor,
                     .count = part->count - part->cursor,
                     .layer_begin = part->layer,
                     .layer_end = part->layer + 1};
    uint64_t bytes = 0;
    for (uint32_t layer = part->layer; part->cursor == 0 && layer < ready; layer++) {
        for (uint32_t g = 0; g < ACTOR_KV_GROUP_COUNT_MAX; g++) {
            bytes += per_group[g] == 0
                         ? 0
                         : per_group[g] * actor_kv_block_bytes(self, g, layer, layer + 1);
        }
        if (layer > part->layer && bytes > self->options.piece_size_bytes) {
            return piece;
        }
        piece.layer_end = layer + 1;
        if (bytes > self->options.piece_size_bytes) {
            break; /* one layer is too much: fewer columns */
        }
    }
    if (part->cursor == 0 && bytes <= self->options.piece_size_bytes) {
        return piece;
    }
    uint32_t seen = 0;
    uint32_t taken = 0;
    bytes = 0;
    for (uint32_t i = 0; i < transfer->column_count && taken < piece.count; i++) {
        if (columns[i].part != part->number || seen++ < piece.first) {
            continue;
        }
        bytes += actor_kv_block_bytes(self, columns[i].group, part->layer, part->layer + 1);
        if (taken > 0 && bytes > self->options.piece_size_bytes) {
            break;
        }
        taken++;
    }
    piece.count = taken;
    return piece;
}

/* Lists the piece's columns as runs; also block by block, for the data thread. */
static uint32_t
list_columns(actor_kv_core_t *self, const kv_transfer_t *transfer, const kv_part_t *part,
             const piece_t *piece)
{
    const kv_column_t *columns = kv_columns_of(self, transfer);
    uint32_t seen = 0;
    uint32_t count = 0;
    uint32_t runs = 0;
    for (uint32_t i = 0; i < transfer->column_count && count < piece->count; i++) {
        const kv_column_t *column = &columns[i];
        if (column->part != part->number || seen++ < piece->first) {
            continue;
        }
        bool goes_on = runs > 0 && self->run_groups[runs - 1] == column->group &&
                       self->run_columns[runs - 1] + self->run_counts[runs - 1] == column->column;
        if (!goes_on) {
            self->run_groups[runs] = column->group;
            self->run_columns[runs] = column->column;
            self->run_counts[runs++] = 0;
        }
        self->run_counts[runs - 1]++;
        self->run_blocks[count] = column->block;
        self->run_generations[count] = column->generation;
        self->groups[count++] = column->group;
    }
    return runs;
}

static void
announce(actor_kv_core_t *self, kv_transfer_t *transfer, const kv_part_t *part,
         const piece_t *piece)
{
    uint32_t runs = list_columns(self, transfer, part, piece);
    uint32_t number = transfer->next_piece++;
    proto_body_t body = {.kv_serve = {.transfer = transfer->key,
                                      .piece = number,
                                      .gate = (uint32_t)(transfer - self->transfers),
                                      .peer = transfer->kv_peer,
                                      .layer_begin = piece->layer_begin,
                                      .layer_end = piece->layer_end,
                                      .groups = {self->groups, piece->count},
                                      .blocks = {self->run_blocks, piece->count},
                                      .generations = {self->run_generations, piece->count}}};
    actor_outbox_push(self->outbox, kv_peer(ACTOR_PEER_LOCAL), PROTO_KIND_KV_SERVE, 0, &body);
    body = (proto_body_t){.kv_part = {.transfer = transfer->key,
                                      .part = part->number,
                                      .piece = number,
                                      .layer_begin = piece->layer_begin,
                                      .layer_end = piece->layer_end,
                                      .is_last = transfer->is_last_sent,
                                      .run_groups = {self->run_groups, runs},
                                      .run_columns = {self->run_columns, runs},
                                      .run_counts = {self->run_counts, runs},
                                      .run_blocks = {self->run_blocks, piece->count},
                                      .run_generations = {self->run_generations, piece->count}}};
    actor_outbox_push(self->outbox, kv_peer(transfer->kv_peer), PROTO_KIND_KV_PART, 0, &body);
    transfer->flying++;
    transfer->last_ns = self->now_ns;
    transfer->begin_ns = transfer->begin_ns == 0 ? self->now_ns : transfer->begin_ns;
}

static void
drop_part(kv_transfer_t *transfer)
{
    transfer->parts_first = (transfer->parts_first + 1) % KV_PARTS_MAX;
    transfer->parts_count--;
}

/* One piece of the transfer's first part, if something of it is ready; false: not now. */
static bool
pump_one(actor_kv_core_t *self, kv_transfer_t *transfer)
{
    uint32_t layers = actor_kv_node_layers(&self->nodes[KV_OWN]);
    kv_part_t *part = kv_part_at(self, transfer, 0);
    uint32_t ready = part->step == 0 ? layers : actor_kv_ready_layers(self, part->step);
    if (part->count == 0 && !part->is_last) {
        drop_part(transfer);
        return true;
    }
    if (part->count == 0) {
        if (ready < layers) {
            return false; /* the end is told when it is the end */
        }
        const piece_t nothing = {.layer_begin = 0, .layer_end = layers};
        transfer->is_last_sent = true;
        announce(self, transfer, part, &nothing);
        drop_part(transfer);
        return true;
    }
    if (part->layer >= ready) {
        return false;
    }
    const piece_t piece = cut_piece(self, transfer, part, ready);
    bool is_whole = piece.first + piece.count == part->count;
    bool is_done = is_whole && piece.layer_end == layers;
    transfer->is_last_sent = is_done && part->is_last;
    announce(self, transfer, part, &piece);
    part->cursor = is_whole ? 0 : piece.first + piece.count;
    part->layer = is_whole ? piece.layer_end : part->layer;
    if (is_done) {
        drop_part(transfer);
    }
    return true;
}

/* The steps that transfers wait for, ascending and without duplicates. */
static uint32_t
list_awaited(const actor_kv_core_t *self, uint64_t *out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < self->options.transfer_count_max; i++) {
        const kv_transfer_t *transfer = &self->transfers[i];
        if (transfer->state != KV_TRANSFER_OPEN || !transfer->is_source ||
            transfer->parts_count == 0) {
            continue;
        }
        uint64_t step = kv_part_at(self, transfer, 0)->step;
        if (step == 0 ||
            actor_kv_ready_layers(self, step) >= actor_kv_node_layers(&self->nodes[KV_OWN])) {
            continue;
        }
        uint32_t at = 0;
        while (at < count && out[at] < step) {
            at++;
        }
        if ((at < count && out[at] == step) || count == KV_WATCH_MAX) {
            continue;
        }
        memmove(&out[at + 1], &out[at], (count - at) * sizeof *out);
        out[at] = step;
        count++;
    }
    return count;
}

static void
say_awaited(actor_kv_core_t *self)
{
    uint64_t steps[KV_WATCH_MAX + 1];
    uint32_t count = list_awaited(self, steps);
    if (count == self->watched_count && memcmp(steps, self->watched, count * sizeof *steps) == 0) {
        return;
    }
    memcpy(self->watched, steps, count * sizeof *steps);
    self->watched_count = count;
    proto_body_t body = {.kv_watch = {.steps = {self->watched, count}}};
    actor_outbox_push(self->outbox, kv_peer(ACTOR_PEER_LOCAL), PROTO_KIND_KV_WATCH, 0, &body);
}

/* An announcement is small, but a step's outbox is bounded: the rest goes with the next input. */
enum { PUMP_PIECES_MAX = 32 };

void
actor_kv_pump(actor_kv_core_t *self)
{
    uint32_t room = PUMP_PIECES_MAX;
    for (uint32_t i = 0; i < self->options.transfer_count_max && room > 0; i++) {
        kv_transfer_t *transfer = &self->transfers[i];
        if (transfer->state != KV_TRANSFER_OPEN || !transfer->is_source ||
            transfer->kv_peer == ACTOR_PEER_NONE) {
            continue;
        }
        while (room > 0 && transfer->parts_count > 0 &&
               transfer->flying < self->options.flying_max && pump_one(self, transfer)) {
            room--;
        }
    }
    say_awaited(self);
}

void
actor_kv_on_landed(actor_kv_core_t *self, const actor_input_t *input)
{
    const proto_kv_landed_t *landed = &input->body->kv_landed;
    kv_transfer_t *transfer = actor_kv_find(self, landed->transfer);
    if (transfer == NULL || !transfer->is_source || transfer->state != KV_TRANSFER_OPEN ||
        transfer->kv_peer != input->from.index) {
        self->figures.stale_count++;
        return;
    }
    if (landed->status != STATUS_OK) {
        char detail[KV_DETAIL_SIZE_BYTES];
        (void)snprintf(detail, sizeof detail, "piece %" PRIu32 ": %.*s", landed->piece,
                       (int)(landed->detail.size_bytes < 120 ? landed->detail.size_bytes : 120),
                       landed->detail.data);
        actor_kv_end(self, transfer, (proto_status_t)landed->status, "kv_transfer_failed", detail);
        return;
    }
    if (landed->piece != transfer->landed || transfer->flying == 0) {
        self->figures.duplicate_count++; /* pieces land in order; another answer is an old one */
        return;
    }
    transfer->flying--;
    transfer->landed++;
    transfer->last_ns = self->now_ns;
    if (transfer->is_last_sent && transfer->flying == 0) {
        actor_kv_end(self, transfer, STATUS_OK, "", "");
    }
}
