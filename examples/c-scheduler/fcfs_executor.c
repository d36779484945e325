/* fcfs_executor.c - who computes: its sizes, its coming and going. */
#include <stdlib.h>
#include <string.h>

#include "fcfs_state.h"

void
fcfs_complain(const actor_input_t *input, proto_status_t status, const char *detail,
              actor_outbox_t *outbox)
{
    proto_body_t nak = {.nak = {.sequence = input->header->sequence,
                                .kind = (uint32_t)input->header->kind,
                                .status = status,
                                .detail = proto_text(detail)}};
    actor_outbox_push(outbox, input->from, PROTO_KIND_NAK, 0, &nak);
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_NAK, 0, &nak);
}

/* ---- what gateways are told ------------------------------------------------------------------ */

void
fcfs_send_model_info(const fcfs_t *self, uint32_t peer, actor_outbox_t *outbox)
{
    proto_body_t body = {.model_info = {.queue_len_max = self->queue_len_max}};
    if (self->executor != ACTOR_PEER_NONE) {
        const proto_executor_info_t *info = &self->info;
        uint64_t capacity = (uint64_t)self->block_count * self->granularity;
        uint64_t longest = info->model_len_max - 1;
        body.model_info.model_name = info->model_name;
        body.model_info.fingerprint = info->fingerprint;
        body.model_info.vocab_size = info->vocab_size;
        body.model_info.model_len_max = info->model_len_max;
        body.model_info.prompt_len_max = (uint32_t)(longest < capacity ? longest : capacity);
        body.model_info.slot_count = info->slot_count;
        body.model_info.prefix_granularity = info->prefix_granularity;
        body.model_info.token_capacity = capacity;
        body.model_info.page_hash_key = info->page_hash_key;
    }
    actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_MODEL_INFO, 0, &body);
}

static void
tell_gateways(const fcfs_t *self, actor_outbox_t *outbox)
{
    for (uint32_t peer = 1; peer < ACTOR_PEER_COUNT_MAX; peer++) {
        if (self->roles[peer] == PROTO_ROLE_GATEWAY) {
            fcfs_send_model_info(self, peer, outbox);
        }
    }
}

/* ---- attaching ------------------------------------------------------------------------------- */

static const char *
info_problem(const proto_executor_info_t *info)
{
    if (info->group_kinds.count != 1 || info->group_granularities.count != 1 ||
        info->group_windows.count != 1 || info->group_packings.count != 1) {
        return "this scheduler takes executors with one cache group: no model with sliding windows";
    }
    if (info->group_kinds.data[0] != 0 || info->group_packings.data[0] != 1 ||
        info->group_granularities.data[0] == 0) {
        return "this scheduler takes a group without window, state or packing";
    }
    if (info->parent_count < 2 || info->slot_count == 0 || info->step_tokens_max == 0 ||
        info->model_len_max < 2 || info->decode_width != 1) {
        return "an empty pool, no slots, no tokens in a step, or wide decode rows";
    }
    return NULL;
}

void
fcfs_free_executor(fcfs_t *self)
{
    free(self->free_blocks);
    free(self->dirty);
    free(self->zeros);
    free(self->free_slots);
    free(self->releases);
    free(self->columns);
    for (uint32_t i = 0; i < FCFS_FLIGHT_COUNT; i++) {
        free(self->flights[i].rows);
        free(self->flights[i].releases);
    }
    memset(self->flights, 0, sizeof self->flights);
    self->free_blocks = self->free_slots = self->releases = self->columns = self->dirty = NULL;
    self->zeros = NULL;
}

/* Room for everything that the executor's sizes decide; false if there is no memory. */
static bool
make_room(fcfs_t *self)
{
    size_t slots = self->info.slot_count;
    size_t columns = self->info.parent_count + 8 * slots; /* see fcfs_plan.c: seven, and blocks */
    self->free_blocks = calloc(self->info.parent_count, sizeof(uint32_t));
    self->dirty = calloc(self->info.parent_count, sizeof(uint32_t));
    self->zeros = calloc(self->info.parent_count, 1);
    self->free_slots = calloc(slots, sizeof(uint32_t));
    self->releases = calloc(slots, sizeof(uint32_t));
    self->columns = calloc(columns, sizeof(uint32_t));
    bool ok = self->free_blocks != NULL && self->dirty != NULL && self->zeros != NULL &&
              self->free_slots != NULL && self->releases != NULL && self->columns != NULL;
    for (uint32_t i = 0; i < FCFS_FLIGHT_COUNT; i++) {
        self->flights[i].rows = calloc(slots, sizeof(fcfs_row_t));
        self->flights[i].releases = calloc(slots, sizeof(uint32_t));
        ok = ok && self->flights[i].rows != NULL && self->flights[i].releases != NULL;
    }
    return ok;
}

/* Takes `self->info` into service. */
static void
attach(fcfs_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const char *problem = info_problem(&self->info);
    if (problem == NULL && !make_room(self)) {
        fcfs_free_executor(self);
        problem = "no memory for an executor of this size";
    }
    if (problem != NULL) {
        fcfs_complain(input, STATUS_ERR_UNSUPPORTED, problem, outbox);
        return;
    }
    self->executor = input->from.index;
    self->granularity = self->info.group_granularities.data[0];
    self->block_count = self->free_block_count = self->info.parent_count - 1;
    for (uint32_t i = 0; i < self->block_count; i++) {
        self->free_blocks[i] = self->block_count - i; /* from 1: block 0 is the null block */
    }
    self->free_slot_count = self->info.slot_count;
    for (uint32_t i = 0; i < self->free_slot_count; i++) {
        self->free_slots[i] = self->free_slot_count - i; /* from 1 too */
    }
    proto_body_t reset = {.reset = {.detail = proto_text("a scheduler attaches")}};
    actor_outbox_push(outbox, input->from, PROTO_KIND_RESET, 0, &reset);
    tell_gateways(self, outbox);
}

static proto_text_t
keep_text(proto_text_t text, char *room)
{
    if (text.size_bytes > 0) {
        memcpy(room, text.data, text.size_bytes); /* at most PROTO_TEXT_LEN_MAX: the codec checks */
    }
    return (proto_text_t){room, text.size_bytes};
}

/* Keeps what the input only lends.  Of the groups, one entry each is all that is ever used. */
static void
keep_info(fcfs_t *self, const proto_executor_info_t *info)
{
    static uint32_t groups[4];
    self->info = *info;
    self->info.model_name = keep_text(info->model_name, self->texts[0]);
    self->info.fingerprint = keep_text(info->fingerprint, self->texts[1]);
    if (info->page_hash_key.size_bytes > 0) {
        memcpy(self->hash_key, info->page_hash_key.data, info->page_hash_key.size_bytes);
    }
    self->info.page_hash_key.data = self->hash_key;
    proto_column_u32_t *columns[] = {&self->info.group_kinds, &self->info.group_granularities,
                                     &self->info.group_windows, &self->info.group_packings};
    for (uint32_t i = 0; i < 4; i++) {
        groups[i] = columns[i]->count > 0 ? columns[i]->data[0] : 0;
        columns[i]->data = &groups[i];
    }
}

void
fcfs_on_executor_info(fcfs_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    uint32_t peer = input->from.index;
    if (self->executor != ACTOR_PEER_NONE) {
        if (peer == self->executor || self->epochs[peer] <= self->epochs[self->executor]) {
            return;
        }
        fcfs_lose_executor(self, "worker_lost", outbox);
    }
    self->fault_count = 0;
    keep_info(self, &input->body->executor_info);
    attach(self, input, outbox);
}

/* ---- losing ---------------------------------------------------------------------------------- */

void
fcfs_lose_executor(fcfs_t *self, const char *code, actor_outbox_t *outbox)
{
    self->executor = ACTOR_PEER_NONE;
    while (self->running.first != 0) {
        fcfs_end(self, self->running.first, PROTO_FINISH_ERROR, STATUS_ERR_PEER_LOST, code);
    }
    while (self->waiting.first != 0) {
        fcfs_end(self, self->waiting.first, PROTO_FINISH_ERROR, STATUS_ERR_PEER_LOST, code);
    }
    fcfs_free_executor(self);
    self->flight_count = self->release_count = self->refusal_count = 0;
    self->dirty_count = self->clearing_count = 0;
    self->is_recovering = false;
    self->base = 0;
    tell_gateways(self, outbox);
}

void
fcfs_on_fault(fcfs_t *self, const actor_input_t *input, const char *detail, actor_outbox_t *outbox)
{
    fcfs_complain(input, STATUS_ERR_MALFORMED, detail, outbox);
    fcfs_lose_executor(self, "executor_fault", outbox);
    if (++self->fault_count <= FCFS_FAULTS_MAX) {
        attach(self, input, outbox);
    }
}
