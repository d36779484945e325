/* Transfers, their columns, what is remembered of those that ended, and messages that came early.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_kv_state.h"
#include "proto_require.h"

kv_transfer_t *
actor_kv_find(actor_kv_core_t *self, uint64_t key)
{
    for (uint32_t i = 0; key != 0 && i < self->options.transfer_count_max; i++) {
        if (self->transfers[i].key == key) {
            return &self->transfers[i];
        }
    }
    return NULL;
}

const kv_ended_t *
actor_kv_find_ended(const actor_kv_core_t *self, uint64_t key)
{
    for (uint32_t i = 0; key != 0 && i < KV_ENDED_MAX; i++) {
        if (self->ended[i].key == key) {
            return &self->ended[i];
        }
    }
    return NULL;
}

kv_transfer_t *
actor_kv_open(actor_kv_core_t *self, uint64_t key, uint32_t column_count, const char **why)
{
    for (uint32_t i = 0; i < self->options.transfer_count_max; i++) {
        kv_transfer_t *transfer = &self->transfers[i];
        if (transfer->state != KV_TRANSFER_FREE) {
            continue;
        }
        *transfer = (kv_transfer_t){
            .key = key,
            .state = KV_TRANSFER_OPEN,
            .kv_peer = ACTOR_PEER_NONE,
            .column_count = column_count,
            .missing = column_count,
            .last_ns = self->now_ns,
        };
        memcpy(kv_columns_of(self, transfer), self->scratch, column_count * sizeof *self->scratch);
        self->figures.open_count++;
        return transfer;
    }
    *why = "as many transfers are open as there is room for";
    return NULL;
}

/* ---- runs of columns --------------------------------------------------------------------------
 */

static int
compare_columns(const void *a, const void *b)
{
    const kv_column_t *x = a;
    const kv_column_t *y = b;
    if (x->group != y->group) {
        return x->group < y->group ? -1 : 1;
    }
    return x->column < y->column ? -1 : x->column > y->column;
}

static bool
is_sorted(const kv_column_t *columns, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        if (compare_columns(&columns[i - 1], &columns[i]) >= 0) {
            return false;
        }
    }
    return true;
}

static bool
runs_have_shape(const kv_runs_t *runs, uint32_t column_count_max, const char **why)
{
    if (runs->columns.count != runs->groups.count || runs->counts.count != runs->groups.count ||
        runs->blocks.count != runs->generations.count) {
        *why = "columns of one list differ in length";
        return false;
    }
    uint64_t sum = 0;
    for (uint32_t i = 0; i < runs->counts.count; i++) {
        if (runs->counts.data[i] == 0) {
            *why = "a run of no columns";
            return false;
        }
        sum += runs->counts.data[i];
    }
    if (sum != runs->blocks.count) {
        *why = "runs and blocks differ in number";
        return false;
    }
    if (sum > column_count_max) {
        *why = "more blocks than a transfer may have";
        return false;
    }
    return true;
}

bool
actor_kv_read_runs(actor_kv_core_t *self, const kv_runs_t *runs, const kv_node_t *node,
                   uint32_t *count_p, const char **why)
{
    if (!runs_have_shape(runs, self->options.column_count_max, why)) {
        return false;
    }
    const actor_kv_layout_t *layout = node == NULL ? NULL : &node->layouts[0];
    uint32_t count = 0;
    for (uint32_t r = 0; r < runs->groups.count; r++) {
        uint32_t group = runs->groups.data[r];
        if (group >= ACTOR_KV_GROUP_COUNT_MAX || (layout != NULL && group >= layout->group_count)) {
            *why = "no such cache group";
            return false;
        }
        for (uint32_t i = 0; i < runs->counts.data[r]; i++, count++) {
            uint32_t block = runs->blocks.data[count];
            if (layout != NULL && (block == 0 || block >= layout->groups[group].page_count)) {
                *why = "a block outside its cache";
                return false;
            }
            if (runs->columns.data[r] > PROTO_BLOCKS_MAX - i) {
                *why = "a column beyond any table";
                return false;
            }
            self->scratch[count] = (kv_column_t){.group = (uint8_t)group,
                                                 .column = runs->columns.data[r] + i,
                                                 .block = block,
                                                 .generation = runs->generations.data[count],
                                                 .part = KV_NO_PART};
        }
    }
    if (!is_sorted(self->scratch, count)) {
        qsort(self->scratch, count, sizeof *self->scratch, compare_columns);
        if (!is_sorted(self->scratch, count)) {
            *why = "a column twice";
            return false;
        }
    }
    *count_p = count;
    return true;
}

kv_column_t *
actor_kv_find_column(const actor_kv_core_t *self, const kv_transfer_t *transfer, uint32_t group,
                     uint32_t column)
{
    kv_column_t *columns = kv_columns_of(self, transfer);
    kv_column_t wanted = {.group = (uint8_t)group, .column = column};
    uint32_t low = 0;
    uint32_t high = transfer->column_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = compare_columns(&columns[middle], &wanted);
        if (order == 0) {
            return &columns[middle];
        }
        low = order < 0 ? middle + 1 : low;
        high = order < 0 ? high : middle;
    }
    return NULL;
}

/* ---- ends ---------------------------------------------------------------------------------------
 */

static void
remember(actor_kv_core_t *self, const kv_transfer_t *transfer, proto_status_t status)
{
    self->ended[self->ended_count++ % KV_ENDED_MAX] = (kv_ended_t){
        .key = transfer->key,
        .status = status,
        .is_source = transfer->is_source,
        .part_count = transfer->landed,
        .size_bytes = transfer->size_bytes,
    };
}

static void
say_fenced(actor_kv_core_t *self, const kv_transfer_t *transfer)
{
    proto_body_t body = {.fenced = {.generation = transfer->fence, .transfer = transfer->key}};
    actor_outbox_push(self->outbox, kv_peer(transfer->fence_peer), PROTO_KIND_FENCED, 0, &body);
}

void
actor_kv_settle(actor_kv_core_t *self, kv_transfer_t *transfer)
{
    if (transfer->state != KV_TRANSFER_DYING || transfer->flying > 0) {
        return;
    }
    if (transfer->has_fence) {
        say_fenced(self, transfer);
    }
    *transfer = (kv_transfer_t){.key = 0, .kv_peer = ACTOR_PEER_NONE};
    self->figures.open_count--;
}

static void
tell_role(actor_kv_core_t *self, const kv_transfer_t *transfer, proto_status_t status,
          const char *code, const char *detail)
{
    if (transfer->role_peer == ACTOR_PEER_NONE) {
        return;
    }
    uint64_t since_ns = transfer->begin_ns == 0 ? self->now_ns : transfer->begin_ns;
    proto_body_t body = {.transfer_done = {.transfer = transfer->key,
                                           .status = status,
                                           .code = proto_text(code),
                                           .detail = proto_text(detail),
                                           .part_count = transfer->landed,
                                           .size_bytes = transfer->size_bytes,
                                           .duration_ns = self->now_ns - since_ns}};
    actor_outbox_push(self->outbox, kv_peer(transfer->role_peer), PROTO_KIND_TRANSFER_DONE, 0,
                      &body);
}

void
actor_kv_end(actor_kv_core_t *self, kv_transfer_t *transfer, proto_status_t status,
             const char *code, const char *detail)
{
    require(transfer->state == KV_TRANSFER_OPEN);
    proto_body_t gate = {.kv_gate = {.transfer = transfer->key,
                                     .gate = (uint32_t)(transfer - self->transfers),
                                     .is_source = transfer->is_source,
                                     .is_open = false}};
    actor_outbox_push(self->outbox, kv_peer(ACTOR_PEER_LOCAL), PROTO_KIND_KV_GATE, 0, &gate);
    if (status == STATUS_OK) {
        self->figures.served_count += transfer->is_source ? 1 : 0;
        self->figures.landed_count += transfer->is_source ? 0 : 1;
    } else {
        self->figures.failed_count++;
        if (transfer->kv_peer != ACTOR_PEER_NONE) {
            proto_body_t cancel = {.kv_cancel = {.transfer = transfer->key,
                                                 .status = status,
                                                 .detail = proto_text(detail)}};
            actor_outbox_push(self->outbox, kv_peer(transfer->kv_peer), PROTO_KIND_KV_CANCEL, 0,
                              &cancel);
        }
        if (status != STATUS_ERR_CANCELLED) {
            actor_kv_note(self, transfer->key, status, "transfer %016" PRIx64 " failed: %s",
                          transfer->key, detail);
        }
    }
    tell_role(self, transfer, status, code, detail);
    remember(self, transfer, status);
    transfer->state = KV_TRANSFER_DYING;
    if (transfer->is_source) {
        transfer->flying = 0; /* what others read of it is behind the gate */
    }
    actor_kv_settle(self, transfer);
}

void
actor_kv_answer_ended(actor_kv_core_t *self, uint32_t peer, uint64_t key, const kv_ended_t *ended)
{
    proto_status_t status = ended == NULL ? STATUS_ERR_CANCELLED : (proto_status_t)ended->status;
    proto_body_t body = {
        .transfer_done = {.transfer = key,
                          .status = status,
                          .code =
                              proto_text(status == STATUS_OK              ? ""
                                         : status == STATUS_ERR_CANCELLED ? "cancelled"
                                                                          : "kv_transfer_failed"),
                          .detail = proto_text(ended == NULL ? "nothing is known of it"
                                                             : "it had ended before"),
                          .part_count = ended == NULL ? 0 : ended->part_count,
                          .size_bytes = ended == NULL ? 0 : ended->size_bytes}};
    actor_outbox_push(self->outbox, kv_peer(peer), PROTO_KIND_TRANSFER_DONE, 0, &body);
}

/* ---- what came early ----------------------------------------------------------------------------
 */

static kv_column_t *
parked_columns_of(const actor_kv_core_t *self, const kv_parked_t *parked)
{
    return self->parked_columns + (size_t)(parked - self->parked) * self->options.column_count_max;
}

void
actor_kv_park(actor_kv_core_t *self, const kv_parked_t *message, uint32_t count)
{
    for (uint32_t i = 0; i < KV_PARKED_MAX; i++) {
        kv_parked_t *place = &self->parked[i];
        if (place->key != 0) {
            continue;
        }
        *place = *message;
        place->until_ns = self->now_ns + self->options.park_ns;
        place->order = ++self->parked_order;
        place->column_count = count;
        memcpy(parked_columns_of(self, place), self->scratch, count * sizeof *self->scratch);
        self->figures.parked_count++;
        return;
    }
    self->figures.refused_count++;
    actor_kv_note(self, message->key, STATUS_ERR_OVERLOADED,
                  "a message of the unknown transfer %016" PRIx64 " finds no place to wait",
                  message->key);
}

bool
actor_kv_unpark(actor_kv_core_t *self, uint64_t key, kv_parked_t *out)
{
    kv_parked_t *first = NULL;
    for (uint32_t i = 0; i < KV_PARKED_MAX; i++) {
        kv_parked_t *parked = &self->parked[i];
        if (parked->key == key && (first == NULL || parked->order < first->order)) {
            first = parked;
        }
    }
    if (first == NULL) {
        return false;
    }
    *out = *first;
    memcpy(self->scratch, parked_columns_of(self, first),
           first->column_count * sizeof *self->scratch);
    *first = (kv_parked_t){.key = 0};
    self->figures.parked_count--;
    return true;
}
