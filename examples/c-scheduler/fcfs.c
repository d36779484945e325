/* Long because it is a whole scheduler: read it from the bottom, where the messages come in. */
#include "fcfs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum {
    FLIGHT_COUNT = 2,             /* plans without a result: the running one and one behind it */
    ADMIT_BYTES_MAX = 4 << 20,    /* of prompts admitted in answer to one input, beyond the first */
    OUTBOX_SIZE_BYTES = 64 << 20, /* ADMITs, two plans, TOKENS, ends */
    ENDS_PER_INPUT_MAX = 128,     /* the rest follows with TIMERs */
    REFUSALS_MAX = 16,            /* plans in a row; then the executor is at fault */
};

typedef enum { FREE = 0, WAITING, PREFILLING, DECODING, ENDED } state_t;

typedef struct {
    state_t state;
    uint64_t id;
    uint32_t gateway;
    uint32_t prompt_length, generation_max, emitted;
    uint32_t slot;      /* 0 = none yet */
    uint32_t computed;  /* prompt tokens whose computation is planned */
    uint32_t sampled;   /* tokens given or in flight */
    uint32_t generated; /* tokens given */
    uint64_t arrived_ns, deadline_ns, queue_ns;
    int32_t *tokens; /* prompt, sampling, hashes: kept until ADMIT, passed on unread */
    uint8_t *sampling;
    uint8_t *hashes;
    uint32_t sampling_size, hashes_size;
    uint32_t *blocks; /* all that it ever needs */
    uint32_t block_count;
    uint32_t next;   /* in its list */
    uint64_t serial; /* names this use of the entry */
    /* how it ended, until FINISHED is sent */
    proto_finish_reason_t reason;
    proto_status_t status;
    const char *code;
} request_t;

typedef struct {
    uint32_t entry;
    uint64_t serial;
    bool samples;
} row_t;

typedef struct {
    uint64_t step;
    uint32_t row_count;
    row_t *rows;        /* [slot_count] */
    uint32_t *releases; /* [slot_count] slots that are free when its result is here */
    uint32_t release_count;
} flight_t;

typedef struct {
    uint32_t first, last, count; /* entries; 0 = none */
} list_t;

struct fcfs {
    request_t *requests; /* [request_count + 1]; entry 0 is not used */
    uint32_t request_count, queue_len_max;
    uint64_t serial;
    list_t free, waiting, running, ended;
    proto_role_t roles[ACTOR_PEER_COUNT_MAX];
    uint64_t epochs[ACTOR_PEER_COUNT_MAX];
    bool draining, more;
    /* the executor */
    uint32_t executor; /* ACTOR_PEER_NONE = none */
    proto_executor_info_t info;
    char texts[2][PROTO_TEXT_LEN_MAX];
    uint8_t hash_key[PROTO_HASH_SIZE_BYTES];
    uint32_t granularity;
    uint32_t *free_blocks, free_block_count, block_count;
    uint32_t *free_slots, free_slot_count;
    uint32_t *releases, release_count; /* for the next plan */
    flight_t flights[FLIGHT_COUNT];
    uint32_t flight_count, refusal_count;
    uint64_t step, base;
    uint32_t *columns; /* room for the columns of a plan or of TOKENS */
};

/* ---- lists of entries ------------------------------------------------------------------------ */

static void
list_push(fcfs_t *self, list_t *list, uint32_t entry)
{
    self->requests[entry].next = 0;
    if (list->last != 0) {
        self->requests[list->last].next = entry;
    } else {
        list->first = entry;
    }
    list->last = entry;
    list->count++;
}

static void
list_remove(fcfs_t *self, list_t *list, uint32_t entry)
{
    uint32_t before = 0;
    uint32_t at = list->first;
    while (at != entry) {
        require(at != 0);
        before = at;
        at = self->requests[at].next;
    }
    uint32_t next = self->requests[entry].next;
    if (before != 0) {
        self->requests[before].next = next;
    } else {
        list->first = next;
    }
    list->last = list->last == entry ? before : list->last;
    list->count--;
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Takes a request out of everything; its FINISHED follows, unless nobody waits for it. */
static void
end(fcfs_t *self, uint32_t entry, proto_finish_reason_t reason, proto_status_t status,
    const char *code)
{
    request_t *request = &self->requests[entry];
    if (request->state == WAITING) {
        list_remove(self, &self->waiting, entry);
    } else {
        list_remove(self, &self->running, entry);
        memcpy(self->free_blocks + self->free_block_count, request->blocks,
               request->block_count * sizeof(uint32_t));
        self->free_block_count += request->block_count;
        self->releases[self->release_count++] = request->slot;
    }
    request->state = ENDED;
    request->reason = reason;
    request->status = status;
    request->code = code;
    list_push(self, &self->ended, entry);
}

static void
free_content(request_t *request)
{
    free(request->tokens);
    free(request->sampling);
    free(request->hashes);
    request->tokens = NULL;
    request->sampling = NULL;
    request->hashes = NULL;
}

static void
send_ends(fcfs_t *self, actor_outbox_t *outbox)
{
    for (uint32_t i = 0; i < ENDS_PER_INPUT_MAX && self->ended.first != 0; i++) {
        uint32_t entry = self->ended.first;
        request_t *request = &self->requests[entry];
        list_remove(self, &self->ended, entry);
        proto_body_t body = {
            .finished = {.reason = request->reason,
                         .prompt_tokens = request->prompt_length - request->emitted,
                         .generated_tokens = request->emitted + request->generated,
                         .status = request->status,
                         .code = proto_text(request->code),
                         .detail = proto_text(request->status != STATUS_OK
                                                  ? proto_status_text(request->status)
                                                  : ""),
                         .retry_after_ms = request->status == STATUS_ERR_PEER_LOST ? 1000 : 0,
                         .queue_ns = request->queue_ns}};
        if (self->roles[request->gateway] == PROTO_ROLE_GATEWAY) {
            actor_outbox_push(outbox, (actor_peer_t){request->gateway}, PROTO_KIND_FINISHED,
                              request->id, &body);
        }
        free_content(request);
        free(request->blocks);
        *request = (request_t){.state = FREE};
        list_push(self, &self->free, entry);
    }
    self->more = self->ended.first != 0;
}

/* ---- the executor ---------------------------------------------------------------------------- */

static void
send_model_info(fcfs_t *self, uint32_t peer, actor_outbox_t *outbox)
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
tell_gateways(fcfs_t *self, actor_outbox_t *outbox)
{
    for (uint32_t peer = 1; peer < ACTOR_PEER_COUNT_MAX; peer++) {
        if (self->roles[peer] == PROTO_ROLE_GATEWAY) {
            send_model_info(self, peer, outbox);
        }
    }
}

static void
free_executor(fcfs_t *self)
{
    free(self->free_blocks);
    free(self->free_slots);
    free(self->releases);
    free(self->columns);
    for (uint32_t i = 0; i < FLIGHT_COUNT; i++) {
        free(self->flights[i].rows);
        free(self->flights[i].releases);
    }
    memset(self->flights, 0, sizeof self->flights);
    self->free_blocks = self->free_slots = self->releases = self->columns = NULL;
    self->executor = ACTOR_PEER_NONE;
    self->flight_count = self->release_count = self->refusal_count = 0;
    self->base = 0;
}

/* Every request ends: what the executor had of it is gone. */
static void
lose_executor(fcfs_t *self, const char *code, actor_outbox_t *outbox)
{
    while (self->running.first != 0) {
        end(self, self->running.first, PROTO_FINISH_ERROR, STATUS_ERR_PEER_LOST, code);
    }
    while (self->waiting.first != 0) {
        end(self, self->waiting.first, PROTO_FINISH_ERROR, STATUS_ERR_PEER_LOST, code);
    }
    free_executor(self);
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

static const char *
info_problem(const proto_executor_info_t *info)
{
    if (info->group_kinds.count != 1 || info->group_granularities.count != 1 ||
        info->group_windows.count != 1 || info->group_packings.count != 1) {
        return "this scheduler takes executors with one cache group";
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

/* Room for everything that its sizes decide; false if there is no memory. */
static bool
make_room(fcfs_t *self, const proto_executor_info_t *info)
{
    size_t slots = info->slot_count;
    size_t columns = info->parent_count + 8 * slots; /* the largest use is a plan */
    bool ok = true;
    self->free_blocks = calloc(info->parent_count, sizeof(uint32_t));
    self->free_slots = calloc(slots, sizeof(uint32_t));
    self->releases = calloc(slots, sizeof(uint32_t));
    self->columns = calloc(columns, sizeof(uint32_t));
    for (uint32_t i = 0; i < FLIGHT_COUNT; i++) {
        self->flights[i].rows = calloc(slots, sizeof(row_t));
        self->flights[i].releases = calloc(slots, sizeof(uint32_t));
        ok = ok && self->flights[i].rows != NULL && self->flights[i].releases != NULL;
    }
    return ok && self->free_blocks != NULL && self->free_slots != NULL && self->releases != NULL &&
           self->columns != NULL;
}

static void
on_executor_info(fcfs_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_executor_info_t *info = &input->body->executor_info;
    uint32_t peer = input->from.index;
    if (self->executor != ACTOR_PEER_NONE) {
        if (peer == self->executor || self->epochs[peer] <= self->epochs[self->executor]) {
            return;
        }
        lose_executor(self, "worker_lost", outbox);
    }
    const char *problem = info_problem(info);
    if (problem == NULL && !make_room(self, info)) {
        free_executor(self);
        problem = "no memory for an executor of this size";
    }
    if (problem != NULL) {
        proto_body_t nak = {.nak = {.sequence = input->header->sequence,
                                    .kind = PROTO_KIND_EXECUTOR_INFO,
                                    .status = STATUS_ERR_UNSUPPORTED,
                                    .detail = proto_text(problem)}};
        actor_outbox_push(outbox, input->from, PROTO_KIND_NAK, 0, &nak);
        actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_NAK, 0, &nak);
        return;
    }
    self->info = *info;
    self->info.model_name = keep_text(info->model_name, self->texts[0]);
    self->info.fingerprint = keep_text(info->fingerprint, self->texts[1]);
    if (info->page_hash_key.size_bytes > 0) {
        memcpy(self->hash_key, info->page_hash_key.data, info->page_hash_key.size_bytes);
    }
    self->info.page_hash_key.data = self->hash_key;
    self->granularity = info->group_granularities.data[0];
    self->executor = peer;
    self->block_count = self->free_block_count = info->parent_count - 1;
    for (uint32_t i = 0; i < self->block_count; i++) {
        self->free_blocks[i] = self->block_count - i; /* from 1: block 0 is the null block */
    }
    self->free_slot_count = info->slot_count;
    for (uint32_t i = 0; i < info->slot_count; i++) {
        self->free_slots[i] = info->slot_count - i;
    }
    proto_body_t reset = {.reset = {.detail = proto_text("a scheduler attaches")}};
    actor_outbox_push(outbox, input->from, PROTO_KIND_RESET, 0, &reset);
    tell_gateways(self, outbox);
}

/* ---- requests -------------------------------------------------------------------------------- */

static uint32_t
blocks_needed(const fcfs_t *self, uint64_t prompt_length, uint64_t generation_max)
{
    /* The last token never goes through the model, so it needs no place. */
    uint64_t blocks =
        (prompt_length + generation_max - 1 + self->granularity - 1) / self->granularity;
    return (uint32_t)blocks;
}

static uint32_t
find(const fcfs_t *self, uint32_t gateway, uint64_t id)
{
    const list_t *const lists[] = {&self->waiting, &self->running, &self->ended};
    for (uint32_t l = 0; l < 3; l++) {
        for (uint32_t at = lists[l]->first; at != 0; at = self->requests[at].next) {
            if (self->requests[at].id == id && self->requests[at].gateway == gateway) {
                return at;
            }
        }
    }
    return 0;
}

static proto_status_t
submit_problem(const fcfs_t *self, const actor_input_t *input, const char **code)
{
    const proto_submit_t *submit = &input->body->submit;
    if (self->executor == ACTOR_PEER_NONE || self->draining) {
        *code = self->draining ? "draining" : "no_executor";
        return STATUS_ERR_REFUSED;
    }
    if (submit->prompt_length == 0 || submit->generation_max == 0 ||
        submit->emitted >= submit->prompt_length || submit->tokens.count != submit->prompt_length ||
        input->header->request == 0) {
        *code = "invalid";
        return STATUS_ERR_INVALID;
    }
    uint64_t length = (uint64_t)submit->prompt_length + submit->generation_max;
    if (length > self->info.model_len_max ||
        blocks_needed(self, submit->prompt_length, submit->generation_max) > self->block_count) {
        *code = "never_fits";
        return STATUS_ERR_NEVER_FITS;
    }
    if (self->waiting.count >= self->queue_len_max || self->free.first == 0) {
        *code = "overloaded";
        return STATUS_ERR_OVERLOADED;
    }
    return STATUS_OK;
}

static void *
copy_of(const void *data, size_t size_bytes)
{
    void *copy = malloc(size_bytes > 0 ? size_bytes : 1);
    if (copy != NULL && size_bytes > 0) {
        memcpy(copy, data, size_bytes);
    }
    return copy;
}

static void
on_submit(fcfs_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_submit_t *submit = &input->body->submit;
    const char *code = "";
    if (find(self, input->from.index, input->header->request) != 0) {
        return; /* a duplicate: its first copy gets the answer */
    }
    proto_status_t status = submit_problem(self, input, &code);
    request_t *request = &self->requests[self->free.first];
    if (status == STATUS_OK) {
        request->tokens = copy_of(submit->tokens.data, submit->tokens.count * sizeof(int32_t));
        request->sampling = copy_of(submit->sampling.data, submit->sampling.count);
        request->hashes = copy_of(submit->page_hashes.data, submit->page_hashes.size_bytes);
        request->blocks = calloc(blocks_needed(self, submit->prompt_length, submit->generation_max),
                                 sizeof(uint32_t));
        if (request->tokens == NULL || request->sampling == NULL || request->hashes == NULL ||
            request->blocks == NULL) {
            free_content(request);
            free(request->blocks);
            request->blocks = NULL;
            status = STATUS_ERR_OVERLOADED;
            code = "overloaded";
        }
    }
    if (status != STATUS_OK) {
        bool later = status == STATUS_ERR_OVERLOADED || status == STATUS_ERR_REFUSED;
        proto_body_t body = {.finished = {.reason = PROTO_FINISH_REFUSED,
                                          .prompt_tokens = submit->prompt_length,
                                          .status = status,
                                          .code = proto_text(code),
                                          .detail = proto_text(proto_status_text(status)),
                                          .retry_after_ms = later ? 1000 : 0}};
        actor_outbox_push(outbox, input->from, PROTO_KIND_FINISHED, input->header->request, &body);
        return;
    }
    uint32_t entry = self->free.first;
    list_remove(self, &self->free, entry);
    request->state = WAITING;
    request->id = input->header->request;
    request->gateway = input->from.index;
    request->prompt_length = submit->prompt_length;
    request->generation_max = submit->generation_max;
    request->emitted = submit->emitted;
    request->sampling_size = submit->sampling.count;
    request->hashes_size = (uint32_t)submit->page_hashes.size_bytes;
    request->block_count = blocks_needed(self, submit->prompt_length, submit->generation_max);
    request->serial = ++self->serial;
    request->arrived_ns = input->now_ns;
    uint64_t timeout_ns = submit->queue_timeout_ns;
    request->deadline_ns = timeout_ns != 0 && timeout_ns < UINT64_MAX - input->now_ns
                               ? input->now_ns + timeout_ns
                               : UINT64_MAX;
    list_push(self, &self->waiting, entry);
}

static void
on_finish(fcfs_t *self, const actor_input_t *input)
{
    const proto_finish_t *finish = &input->body->finish;
    uint32_t entry = find(self, input->from.index, input->header->request);
    if (entry == 0 || self->requests[entry].state == ENDED) {
        return;
    }
    request_t *request = &self->requests[entry];
    uint32_t kept =
        finish->token_index > request->emitted ? finish->token_index - request->emitted : 0;
    request->generated = request->generated < kept ? request->generated : kept;
    if (finish->reason == PROTO_FINISH_STOP || finish->reason == PROTO_FINISH_LENGTH) {
        end(self, entry, (proto_finish_reason_t)finish->reason, STATUS_OK, "");
    } else {
        end(self, entry, PROTO_FINISH_CANCELLED, STATUS_ERR_CANCELLED, "cancelled");
    }
}

static void
on_time(fcfs_t *self, uint64_t now_ns)
{
    uint32_t at = self->waiting.first;
    while (at != 0) {
        uint32_t next = self->requests[at].next;
        if (self->requests[at].deadline_ns <= now_ns) {
            self->requests[at].queue_ns = now_ns - self->requests[at].arrived_ns;
            end(self, at, PROTO_FINISH_REFUSED, STATUS_ERR_DEADLINE, "queue_timeout");
        }
        at = next;
    }
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* The columns of a plan are cut from one piece of memory. */
static uint32_t *
cut(uint32_t **room, uint32_t count)
{
    uint32_t *column = *room;
    *room += count;
    return column;
}

/* Gives the first waiting request a slot and its blocks, if they are there. */
static bool
admit(fcfs_t *self, uint64_t now_ns, size_t *bytes, actor_outbox_t *outbox)
{
    uint32_t entry = self->waiting.first;
    if (entry == 0 || self->free_slot_count == 0 || *bytes > ADMIT_BYTES_MAX) {
        return false;
    }
    request_t *request = &self->requests[entry];
    if (request->block_count > self->free_block_count) {
        return false; /* it holds the queue, so it is not passed for ever by smaller ones */
    }
    list_remove(self, &self->waiting, entry);
    list_push(self, &self->running, entry);
    request->state = PREFILLING;
    request->slot = self->free_slots[--self->free_slot_count];
    request->queue_ns = now_ns - request->arrived_ns;
    self->free_block_count -= request->block_count;
    memcpy(request->blocks, self->free_blocks + self->free_block_count,
           request->block_count * sizeof(uint32_t));
    proto_body_t body = {.admit = {.slot = request->slot,
                                   .prompt_length = request->prompt_length,
                                   .length_max = request->prompt_length + request->generation_max,
                                   .tokens = {request->tokens, request->prompt_length},
                                   .sampling = {request->sampling, request->sampling_size},
                                   .page_hashes = {request->hashes, request->hashes_size}}};
    actor_outbox_push(outbox, (actor_peer_t){self->executor}, PROTO_KIND_ADMIT, request->id, &body);
    *bytes += request->prompt_length * sizeof(int32_t) + request->hashes_size;
    free_content(request);
    return true;
}

static void
add_row(flight_t *flight, const fcfs_t *self, uint32_t entry, bool samples)
{
    flight->rows[flight->row_count++] =
        (row_t){.entry = entry, .serial = self->requests[entry].serial, .samples = samples};
}

/* Tables: of the request just admitted, or of everybody when the plan is a full one. */
static void
add_patches(fcfs_t *self, proto_plan_t *plan, const bool *is_new, uint8_t *groups, uint32_t **room)
{
    bool full = plan->base_step == 0;
    uint32_t slots = self->info.slot_count;
    uint32_t *patch_slots = cut(room, slots);
    uint32_t *patch_columns = cut(room, slots);
    uint32_t *patch_counts = cut(room, slots);
    uint32_t *patch_blocks = *room;
    uint32_t count = 0;
    uint32_t blocks = 0;
    for (uint32_t at = self->running.first; at != 0; at = self->requests[at].next) {
        const request_t *request = &self->requests[at];
        if (full || is_new[request->slot]) {
            patch_slots[count] = request->slot;
            patch_columns[count] = 0;
            patch_counts[count] = request->block_count;
            groups[count] = 0;
            memcpy(patch_blocks + blocks, request->blocks, request->block_count * sizeof(uint32_t));
            blocks += request->block_count;
            count++;
        }
    }
    plan->patch_slots = (proto_column_u32_t){patch_slots, count};
    plan->patch_groups = (proto_column_u8_t){groups, count};
    plan->patch_columns = (proto_column_u32_t){patch_columns, count};
    plan->patch_counts = (proto_column_u32_t){patch_counts, count};
    plan->patch_blocks = (proto_column_u32_t){patch_blocks, blocks};
}

/* Chunks of prompts, first come first; the last chunk of a prompt samples a token. */
static void
add_extends(fcfs_t *self, proto_plan_t *plan, flight_t *flight, uint32_t budget, uint8_t *samples,
            uint32_t **room)
{
    uint32_t slots = self->info.slot_count;
    uint32_t *extend_slots = cut(room, slots);
    uint32_t *begins = cut(room, slots);
    uint32_t *lengths = cut(room, slots);
    uint32_t count = 0;
    for (uint32_t at = self->running.first; at != 0 && budget > 0; at = self->requests[at].next) {
        request_t *request = &self->requests[at];
        if (request->state != PREFILLING) {
            continue;
        }
        uint32_t left = request->prompt_length - request->computed;
        uint32_t length = left < budget ? left : budget;
        bool is_last = length == left;
        extend_slots[count] = request->slot;
        begins[count] = request->computed;
        lengths[count] = length;
        samples[count++] = is_last;
        add_row(flight, self, at, is_last);
        request->computed += length;
        budget -= length;
        if (is_last) {
            request->state = DECODING;
            request->sampled = 1;
        }
    }
    plan->extend_slots = (proto_column_u32_t){extend_slots, count};
    plan->extend_begins = (proto_column_u32_t){begins, count};
    plan->extend_lengths = (proto_column_u32_t){lengths, count};
    plan->extend_samples = (proto_column_u8_t){samples, count};
}

/* Who decodes in this plan: everybody whose prompt is planned and whose answer is not. */
static uint32_t
choose_decodes(fcfs_t *self, uint32_t budget, uint32_t *entries)
{
    uint32_t count = 0;
    for (uint32_t at = self->running.first; at != 0 && count < budget;
         at = self->requests[at].next) {
        const request_t *request = &self->requests[at];
        if (request->state == DECODING && request->sampled < request->generation_max) {
            entries[count++] = at;
        }
    }
    return count;
}

/* Makes and sends one plan; false if there is nothing to plan, or no room for it in flight. */
static bool
plan_one(fcfs_t *self, uint64_t now_ns, size_t *admit_bytes, actor_outbox_t *outbox)
{
    static uint8_t groups[PROTO_ROWS_MAX];
    static uint8_t samples[PROTO_ROWS_MAX];
    static bool is_new[PROTO_ROWS_MAX + 1];
    if (self->executor == ACTOR_PEER_NONE || self->flight_count > self->info.overlap_depth_max) {
        return false;
    }
    uint32_t *room = self->columns;
    uint32_t *decodes = cut(&room, self->info.slot_count);
    uint32_t budget = self->info.step_tokens_max;
    uint32_t decode_count = choose_decodes(self, budget, decodes);
    budget -= decode_count;
    memset(is_new, 0, sizeof is_new);
    uint32_t admitted = 0;
    /* One for each token left would be enough for any prompts, so this is never the limit. */
    while (admitted < budget && admit(self, now_ns, admit_bytes, outbox)) {
        is_new[self->requests[self->running.last].slot] = true;
        admitted++;
    }
    flight_t *flight = &self->flights[self->flight_count];
    flight->row_count = 0;
    flight->step = self->step + 1;
    proto_body_t body = {.plan = {.step = flight->step, .base_step = self->base, .width = 1}};
    add_patches(self, &body.plan, is_new, groups, &room);
    room += body.plan.patch_blocks.count;
    add_extends(self, &body.plan, flight, budget, samples, &room);
    for (uint32_t i = 0; i < decode_count; i++) {
        request_t *request = &self->requests[decodes[i]];
        request->sampled++;
        add_row(flight, self, decodes[i], true);
        decodes[i] = request->slot; /* from here on the plan's column */
    }
    bool has_news = flight->row_count > 0 || admitted > 0;
    if (!has_news && (self->release_count == 0 || self->flight_count > 0)) {
        return false;
    }
    body.plan.decode_slots = (proto_column_u32_t){decodes, decode_count};
    body.plan.release_slots = (proto_column_u32_t){self->releases, self->release_count};
    memcpy(flight->releases, self->releases, self->release_count * sizeof(uint32_t));
    flight->release_count = self->release_count;
    actor_outbox_push(outbox, (actor_peer_t){self->executor}, PROTO_KIND_PLAN, 0, &body);
    self->release_count = 0;
    self->step = self->base = flight->step;
    self->flight_count++;
    return true;
}

/* ---- results --------------------------------------------------------------------------------- */

/* The executor broke the protocol: everything ends, and it is left alone. */
static void
on_fault(fcfs_t *self, const actor_input_t *input, const char *detail, actor_outbox_t *outbox)
{
    proto_body_t body = {.nak = {.sequence = input->header->sequence,
                                 .kind = (uint32_t)input->header->kind,
                                 .status = STATUS_ERR_MALFORMED,
                                 .detail = proto_text(detail)}};
    actor_outbox_push(outbox, input->from, PROTO_KIND_NAK, 0, &body);
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_NAK, 0, &body);
    lose_executor(self, "executor_fault", outbox);
}

static bool
result_fits(const flight_t *flight, const proto_step_result_t *result)
{
    uint32_t tokens = 0;
    uint32_t logprobs = 0;
    bool has_widths = result->logprob_widths.count > 0;
    if (result->step != flight->step || result->token_counts.count != flight->row_count ||
        result->row_flags.count != flight->row_count ||
        (has_widths && result->logprob_widths.count != flight->row_count)) {
        return false;
    }
    for (uint32_t r = 0; r < flight->row_count; r++) {
        uint32_t count = result->token_counts.data[r];
        bool is_nan = (result->row_flags.data[r] & PROTO_ROW_NAN) != 0;
        if (count != (flight->rows[r].samples ? 1 : 0) && !is_nan) {
            return false;
        }
        tokens += count;
        logprobs += has_widths ? count * result->logprob_widths.data[r] : 0;
    }
    return tokens == result->tokens.count && logprobs == result->logprob_ids.count &&
           logprobs == result->logprob_values.count;
}

/* The request of a row, or NULL if it has ended since the row was planned. */
static request_t *
request_of(const fcfs_t *self, const row_t *row)
{
    request_t *request = &self->requests[row->entry];
    bool runs = request->state == PREFILLING || request->state == DECODING;
    return runs && request->serial == row->serial ? request : NULL;
}

/* The tokens of one gateway's requests, passed on unread. */
static void
send_tokens(fcfs_t *self, const flight_t *flight, const proto_step_result_t *result,
            uint32_t gateway, actor_outbox_t *outbox)
{
    static uint64_t ids[PROTO_ROWS_MAX];
    static uint32_t indices[PROTO_ROWS_MAX];
    static uint8_t counts[PROTO_ROWS_MAX], widths[PROTO_ROWS_MAX];
    static int32_t tokens[PROTO_ROWS_MAX];
    static int32_t logprob_ids[PROTO_ROWS_MAX * (PROTO_LOGPROBS_MAX + 1)];
    static float logprob_values[PROTO_ROWS_MAX * (PROTO_LOGPROBS_MAX + 1)];
    uint32_t rows = 0;
    uint32_t logprobs = 0;
    uint32_t token_at = 0;
    uint32_t logprob_at = 0;
    for (uint32_t r = 0; r < flight->row_count; r++) {
        const request_t *request = request_of(self, &flight->rows[r]);
        uint32_t count = result->token_counts.data[r];
        uint32_t width = result->logprob_widths.count > 0 ? result->logprob_widths.data[r] : 0;
        bool is_nan = (result->row_flags.data[r] & PROTO_ROW_NAN) != 0;
        if (request != NULL && request->gateway == gateway && count == 1 && !is_nan &&
            width <= PROTO_LOGPROBS_MAX + 1) {
            ids[rows] = request->id;
            indices[rows] = request->emitted + request->generated;
            counts[rows] = 1;
            widths[rows] = (uint8_t)width;
            tokens[rows++] = result->tokens.data[token_at];
            if (width > 0) {
                memcpy(logprob_ids + logprobs, result->logprob_ids.data + logprob_at,
                       width * sizeof(int32_t));
                memcpy(logprob_values + logprobs, result->logprob_values.data + logprob_at,
                       width * sizeof(float));
                logprobs += width;
            }
        }
        token_at += count;
        logprob_at += count * width;
    }
    if (rows == 0) {
        return;
    }
    proto_body_t body = {.tokens = {.step = result->step,
                                    .requests = {ids, rows},
                                    .token_indices = {indices, rows},
                                    .token_counts = {counts, rows},
                                    .tokens = {tokens, rows},
                                    .logprob_widths = {widths, logprobs > 0 ? rows : 0},
                                    .logprob_ids = {logprob_ids, logprobs},
                                    .logprob_values = {logprob_values, logprobs}}};
    actor_outbox_push(outbox, (actor_peer_t){gateway}, PROTO_KIND_TOKENS, 0, &body);
}

static void
take_rows(fcfs_t *self, const flight_t *flight, const proto_step_result_t *result)
{
    for (uint32_t r = 0; r < flight->row_count; r++) {
        request_t *request = request_of(self, &flight->rows[r]);
        if (request == NULL) {
            continue;
        }
        uint32_t flags = result->row_flags.data[r];
        if ((flags & PROTO_ROW_NAN) != 0) {
            end(self, flight->rows[r].entry, PROTO_FINISH_ERROR, STATUS_ERR_INTERNAL, "nan_logits");
            continue;
        }
        request->generated += result->token_counts.data[r];
        if ((flags & PROTO_ROW_STOP_TOKEN) != 0) {
            end(self, flight->rows[r].entry, PROTO_FINISH_STOP, STATUS_OK, "");
        } else if (request->generated >= request->generation_max) {
            end(self, flight->rows[r].entry, PROTO_FINISH_LENGTH, STATUS_OK, "");
        }
    }
}

/* The oldest flight is over; its room goes to the end of the row. */
static void
pop_flight(fcfs_t *self, uint32_t index)
{
    flight_t over = self->flights[index];
    for (uint32_t i = index; i + 1 < FLIGHT_COUNT; i++) {
        self->flights[i] = self->flights[i + 1];
    }
    self->flights[FLIGHT_COUNT - 1] = over;
    self->flight_count--;
}

static void
on_step_result(fcfs_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_step_result_t *result = &input->body->step_result;
    if (self->flight_count == 0 || result->step < self->flights[0].step) {
        return; /* of before a reset */
    }
    const flight_t *flight = &self->flights[0];
    if (!result_fits(flight, result)) {
        on_fault(self, input, "a step result that does not fit its plan", outbox);
        return;
    }
    self->refusal_count = 0;
    for (uint32_t peer = 1; peer < ACTOR_PEER_COUNT_MAX; peer++) {
        if (self->roles[peer] == PROTO_ROLE_GATEWAY) {
            send_tokens(self, flight, result, peer, outbox);
        }
    }
    take_rows(self, flight, result);
    memcpy(self->free_slots + self->free_slot_count, flight->releases,
           flight->release_count * sizeof(uint32_t));
    self->free_slot_count += flight->release_count;
    pop_flight(self, 0);
}

/* A plan that breaks a rule is our fault: its requests end, the others go on with a full plan. */
static void
on_plan_refused(fcfs_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_plan_refused_t *refused = &input->body->plan_refused;
    uint32_t index = 0;
    while (index < self->flight_count && self->flights[index].step != refused->step) {
        index++;
    }
    if (index == self->flight_count) {
        return;
    }
    const flight_t *flight = &self->flights[index];
    proto_body_t body = {.nak = {.sequence = input->header->sequence,
                                 .kind = PROTO_KIND_PLAN,
                                 .status = STATUS_ERR_REFUSED,
                                 .detail = refused->detail}};
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_NAK, 0, &body);
    for (uint32_t r = 0; r < flight->row_count; r++) {
        if (request_of(self, &flight->rows[r]) != NULL) {
            end(self, flight->rows[r].entry, PROTO_FINISH_ERROR, STATUS_ERR_REFUSED,
                "plan_refused");
        }
    }
    memcpy(self->releases + self->release_count, flight->releases,
           flight->release_count * sizeof(uint32_t));
    self->release_count += flight->release_count;
    pop_flight(self, index);
    self->base = 0;
    if (++self->refusal_count > REFUSALS_MAX) {
        on_fault(self, input, "it refuses every plan", outbox);
    }
}

/* ---- the core's operations ------------------------------------------------------------------- */

static void
on_peer_down(fcfs_t *self, const proto_peer_down_t *down, actor_outbox_t *outbox)
{
    if (down->peer >= ACTOR_PEER_COUNT_MAX) {
        return;
    }
    self->roles[down->peer] = PROTO_ROLE_NONE;
    if (down->peer == self->executor) {
        lose_executor(self, "worker_lost", outbox);
        return;
    }
    list_t *const lists[] = {&self->waiting, &self->running};
    for (uint32_t l = 0; l < 2; l++) {
        uint32_t at = lists[l]->first;
        while (at != 0) {
            uint32_t next = self->requests[at].next;
            if (self->requests[at].gateway == down->peer) {
                end(self, at, PROTO_FINISH_CANCELLED, STATUS_ERR_PEER_LOST, "owner_gone");
            }
            at = next;
        }
    }
}

static void
step_local(fcfs_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_peer_up_t *up = &input->body->peer_up;
    if (input->header->kind == PROTO_KIND_PEER_UP && up->peer < ACTOR_PEER_COUNT_MAX) {
        self->roles[up->peer] = (proto_role_t)up->role;
        self->epochs[up->peer] = up->epoch;
        if (up->role == PROTO_ROLE_GATEWAY) {
            send_model_info(self, up->peer, outbox);
        }
    } else if (input->header->kind == PROTO_KIND_PEER_DOWN) {
        on_peer_down(self, &input->body->peer_down, outbox);
    } else if (input->header->kind == PROTO_KIND_TIMER) {
        on_time(self, input->now_ns);
    } else if (input->header->kind == PROTO_KIND_DRAIN) {
        self->draining = true;
    }
}

static void
step_peer(fcfs_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    proto_role_t role = self->roles[input->from.index];
    proto_kind_t kind = input->header->kind;
    bool in_charge = input->from.index == self->executor;
    if (role == PROTO_ROLE_GATEWAY && kind == PROTO_KIND_SUBMIT) {
        on_submit(self, input, outbox);
    } else if (role == PROTO_ROLE_GATEWAY && kind == PROTO_KIND_FINISH) {
        on_finish(self, input);
    } else if (role == PROTO_ROLE_EXECUTOR && kind == PROTO_KIND_EXECUTOR_INFO) {
        on_executor_info(self, input, outbox);
    } else if (in_charge && kind == PROTO_KIND_STEP_RESULT) {
        on_step_result(self, input, outbox);
    } else if (in_charge && kind == PROTO_KIND_PLAN_REFUSED) {
        on_plan_refused(self, input, outbox);
    } else if (in_charge && kind == PROTO_KIND_NAK && input->body->nak.kind == PROTO_KIND_PLAN) {
        on_fault(self, input, "it could not read a plan", outbox);
    }
}

static void
step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    fcfs_t *self = core;
    if (input->from.index == ACTOR_PEER_LOCAL) {
        step_local(self, input, outbox);
    } else {
        step_peer(self, input, outbox);
    }
    size_t admit_bytes = 0;
    while (plan_one(self, input->now_ns, &admit_bytes, outbox)) {
    }
    send_ends(self, outbox);
}

static uint64_t
deadline_ns(const void *core)
{
    const fcfs_t *self = core;
    uint64_t deadline = self->more ? 0 : UINT64_MAX;
    for (uint32_t at = self->waiting.first; at != 0; at = self->requests[at].next) {
        uint64_t own = self->requests[at].deadline_ns;
        deadline = own < deadline ? own : deadline;
    }
    return deadline;
}

static bool
idle(const void *core)
{
    const fcfs_t *self = core;
    return self->waiting.count == 0 && self->running.count == 0 && self->ended.count == 0;
}

fcfs_t *
fcfs_new(uint32_t queue_len_max)
{
    fcfs_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return NULL;
    }
    self->queue_len_max = queue_len_max;
    self->request_count = queue_len_max + 2 * PROTO_ROWS_MAX;
    self->executor = ACTOR_PEER_NONE;
    self->requests = calloc((size_t)self->request_count + 1, sizeof *self->requests);
    if (self->requests == NULL) {
        free(self);
        return NULL;
    }
    for (uint32_t entry = 1; entry <= self->request_count; entry++) {
        list_push(self, &self->free, entry);
    }
    return self;
}

void
fcfs_destroy(fcfs_t *self)
{
    for (uint32_t entry = 1; entry <= self->request_count; entry++) {
        free_content(&self->requests[entry]);
        free(self->requests[entry].blocks);
    }
    free_executor(self);
    free(self->requests);
    free(self);
}

const actor_core_ops_t *
fcfs_ops(void)
{
    static const actor_core_ops_t ops = {
        .name = "scheduler",
        .role = PROTO_ROLE_SCHEDULER,
        .outbox_size_bytes = OUTBOX_SIZE_BYTES,
        .outbox_count_max = 3 * PROTO_ROWS_MAX + ENDS_PER_INPUT_MAX + 4 * ACTOR_PEER_COUNT_MAX,
        .step = step,
        .deadline_ns = deadline_ns,
        .idle = idle,
    };
    return &ops;
}
