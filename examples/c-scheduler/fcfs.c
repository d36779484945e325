/* fcfs.c - requests from SUBMIT to FINISHED, and which message goes where: read it from the end. */
#include <stdlib.h>
#include <string.h>

#include "fcfs_state.h"

/* ---- lists of entries ------------------------------------------------------------------------ */

static void
push(fcfs_t *self, fcfs_list_t *list, uint32_t entry)
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
take(fcfs_t *self, fcfs_list_t *list, uint32_t entry)
{
    uint32_t before = 0;
    for (uint32_t at = list->first; at != entry; at = self->requests[at].next) {
        before = at;
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

void
fcfs_move(fcfs_t *self, uint32_t entry, fcfs_list_t *from, fcfs_list_t *to)
{
    take(self, from, entry);
    push(self, to, entry);
}

static uint32_t
find(const fcfs_t *self, uint32_t gateway, uint64_t id)
{
    const fcfs_list_t *const lists[] = {&self->waiting, &self->running, &self->ended};
    for (uint32_t l = 0; l < 3; l++) {
        for (uint32_t at = lists[l]->first; at != 0; at = self->requests[at].next) {
            if (self->requests[at].id == id && self->requests[at].gateway == gateway) {
                return at;
            }
        }
    }
    return 0;
}

fcfs_request_t *
fcfs_request_of(const fcfs_t *self, const fcfs_row_t *row)
{
    fcfs_request_t *request = &self->requests[row->entry];
    bool runs = request->phase == FCFS_PREFILLING || request->phase == FCFS_DECODING;
    return runs && request->serial == row->serial ? request : NULL;
}

/* ---- ends ------------------------------------------------------------------------------------ */

void
fcfs_end(fcfs_t *self, uint32_t entry, proto_finish_reason_t reason, proto_status_t status,
         const char *code)
{
    fcfs_request_t *request = &self->requests[entry];
    if (request->phase == FCFS_WAITING) {
        fcfs_move(self, entry, &self->waiting, &self->ended);
    } else {
        fcfs_move(self, entry, &self->running, &self->ended);
        /* The next plan releases the slot first, so its blocks may have new owners in it. */
        bool is_nan = strcmp(code, "nan_logits") == 0;
        uint32_t *blocks = is_nan ? self->dirty : self->free_blocks;
        uint32_t *count = is_nan ? &self->dirty_count : &self->free_block_count;
        memcpy(blocks + *count, request->blocks, request->block_count * sizeof(uint32_t));
        *count += request->block_count;
        self->releases[self->release_count++] = request->slot;
    }
    request->phase = FCFS_ENDED;
    request->reason = reason;
    request->status = status;
    request->code = code;
}

void
fcfs_free_content(fcfs_request_t *request)
{
    free(request->tokens);
    free(request->sampling);
    free(request->hashes);
    request->tokens = NULL;
    request->sampling = NULL;
    request->hashes = NULL;
}

static void
send_finished(fcfs_t *self, const fcfs_request_t *request, actor_outbox_t *outbox)
{
    const char *detail = request->status != STATUS_OK ? proto_status_text(request->status) : "";
    bool later = request->status == STATUS_ERR_PEER_LOST || request->status == STATUS_ERR_DEADLINE;
    proto_body_t body = {.finished = {.reason = request->reason,
                                      .prompt_tokens = request->prompt_length - request->emitted,
                                      .generated_tokens = request->emitted + request->generated,
                                      .status = request->status,
                                      .code = proto_text(request->code),
                                      .detail = proto_text(detail),
                                      .retry_after_ms = later ? 1000 : 0,
                                      .queue_ns = request->queue_ns}};
    if (self->roles[request->gateway] == PROTO_ROLE_GATEWAY) {
        actor_outbox_push(outbox, (actor_peer_t){request->gateway}, PROTO_KIND_FINISHED,
                          request->id, &body);
    }
}

static void
send_ends(fcfs_t *self, actor_outbox_t *outbox)
{
    for (uint32_t i = 0; i < FCFS_ENDS_MAX && self->ended.first != 0; i++) {
        uint32_t entry = self->ended.first;
        fcfs_request_t *request = &self->requests[entry];
        send_finished(self, request, outbox);
        self->gone[self->gone_next].id = request->id;
        self->gone[self->gone_next].gateway = request->gateway;
        self->gone_next = (self->gone_next + 1) % FCFS_ENDED_KEPT;
        take(self, &self->ended, entry);
        fcfs_free_content(request);
        free(request->blocks);
        *request = (fcfs_request_t){.phase = FCFS_FREE};
        push(self, &self->free, entry);
    }
}

/* ---- SUBMIT ---------------------------------------------------------------------------------- */

static bool
is_known(const fcfs_t *self, uint32_t gateway, uint64_t id)
{
    for (uint32_t i = 0; i < FCFS_ENDED_KEPT; i++) {
        if (self->gone[i].id == id && self->gone[i].gateway == gateway) {
            return id != 0;
        }
    }
    return find(self, gateway, id) != 0;
}

/* The last token of a request never goes through the model, so it needs no place. */
static uint32_t
blocks_needed(const fcfs_t *self, const proto_submit_t *submit)
{
    uint64_t tokens = (uint64_t)submit->prompt_length + submit->generation_max - 1;
    return (uint32_t)((tokens + self->granularity - 1) / self->granularity);
}

static proto_status_t
submit_problem(const fcfs_t *self, const actor_input_t *input, const char **code)
{
    const proto_submit_t *submit = &input->body->submit;
    if (self->executor == ACTOR_PEER_NONE || self->draining) {
        *code = self->draining ? "draining" : "no_executor";
        return STATUS_ERR_REFUSED;
    }
    uint32_t granularity = self->info.prefix_granularity > 0 ? self->info.prefix_granularity : 1;
    size_t hashes = (size_t)(submit->prompt_length / granularity) * PROTO_HASH_SIZE_BYTES;
    size_t hashes_given = submit->page_hashes.size_bytes;
    if (submit->prompt_length == 0 || submit->generation_max == 0 ||
        submit->emitted >= submit->prompt_length || submit->tokens.count != submit->prompt_length ||
        input->header->request == 0 || (hashes_given != 0 && hashes_given != hashes)) {
        *code = "invalid";
        return STATUS_ERR_INVALID;
    }
    uint64_t length = (uint64_t)submit->prompt_length + submit->generation_max;
    if (length > self->info.model_len_max || blocks_needed(self, submit) > self->block_count) {
        *code = "never_fits";
        return STATUS_ERR_NEVER_FITS;
    }
    *code = "overloaded";
    return self->waiting.count >= self->queue_len_max || self->free.first == 0
               ? STATUS_ERR_OVERLOADED
               : STATUS_OK;
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

/* False if there is no memory; then nothing is kept. */
static bool
keep_content(const fcfs_t *self, fcfs_request_t *request, const proto_submit_t *submit)
{
    request->block_count = blocks_needed(self, submit);
    request->tokens = copy_of(submit->tokens.data, submit->tokens.count * sizeof(int32_t));
    request->sampling = copy_of(submit->sampling.data, submit->sampling.count);
    request->hashes = copy_of(submit->page_hashes.data, submit->page_hashes.size_bytes);
    request->blocks = calloc(request->block_count, sizeof(uint32_t));
    if (request->tokens != NULL && request->sampling != NULL && request->hashes != NULL &&
        request->blocks != NULL) {
        return true;
    }
    fcfs_free_content(request);
    free(request->blocks);
    request->blocks = NULL;
    return false;
}

static void
refuse(const actor_input_t *input, proto_status_t status, const char *code, actor_outbox_t *outbox)
{
    bool later = status == STATUS_ERR_OVERLOADED || status == STATUS_ERR_REFUSED;
    proto_body_t body = {.finished = {.reason = PROTO_FINISH_REFUSED,
                                      .prompt_tokens = input->body->submit.prompt_length,
                                      .status = status,
                                      .code = proto_text(code),
                                      .detail = proto_text(proto_status_text(status)),
                                      .retry_after_ms = later ? 1000 : 0}};
    actor_outbox_push(outbox, input->from, PROTO_KIND_FINISHED, input->header->request, &body);
}

static void
on_submit(fcfs_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_submit_t *submit = &input->body->submit;
    const char *code = "";
    if (is_known(self, input->from.index, input->header->request)) {
        return; /* a duplicate: its first copy gets the answer */
    }
    proto_status_t status = submit_problem(self, input, &code);
    uint32_t entry = self->free.first;
    fcfs_request_t *request = &self->requests[entry];
    if (status == STATUS_OK && !keep_content(self, request, submit)) {
        status = STATUS_ERR_OVERLOADED;
    }
    if (status != STATUS_OK) {
        refuse(input, status, code, outbox);
        return;
    }
    request->phase = FCFS_WAITING;
    request->serial = ++self->serial;
    request->id = input->header->request;
    request->gateway = input->from.index;
    request->prompt_length = submit->prompt_length;
    request->generation_max = submit->generation_max;
    request->emitted = submit->emitted;
    request->sampling_size = submit->sampling.count;
    request->hashes_size = (uint32_t)submit->page_hashes.size_bytes;
    request->arrived_ns = input->now_ns;
    uint64_t timeout_ns = submit->queue_timeout_ns;
    bool has_deadline = timeout_ns != 0 && timeout_ns < UINT64_MAX - input->now_ns;
    request->deadline_ns = has_deadline ? input->now_ns + timeout_ns : UINT64_MAX;
    fcfs_move(self, entry, &self->free, &self->waiting);
}

/* ---- FINISH, time, links --------------------------------------------------------------------- */

static void
on_finish(fcfs_t *self, const actor_input_t *input)
{
    const proto_finish_t *finish = &input->body->finish;
    uint32_t entry = find(self, input->from.index, input->header->request);
    fcfs_request_t *request = &self->requests[entry];
    if (entry == 0 || request->phase == FCFS_ENDED) {
        return;
    }
    uint32_t kept =
        finish->token_index > request->emitted ? finish->token_index - request->emitted : 0;
    request->generated = request->generated < kept ? request->generated : kept;
    if (finish->reason == PROTO_FINISH_STOP || finish->reason == PROTO_FINISH_LENGTH) {
        fcfs_end(self, entry, (proto_finish_reason_t)finish->reason, STATUS_OK, "");
    } else {
        fcfs_end(self, entry, PROTO_FINISH_CANCELLED, STATUS_ERR_CANCELLED, "cancelled");
    }
}

static void
on_time(fcfs_t *self, uint64_t now_ns)
{
    for (uint32_t at = self->waiting.first; at != 0;) {
        fcfs_request_t *request = &self->requests[at];
        uint32_t next = request->next;
        if (request->deadline_ns <= now_ns) {
            request->queue_ns = now_ns - request->arrived_ns;
            fcfs_end(self, at, PROTO_FINISH_REFUSED, STATUS_ERR_DEADLINE, "queue_timeout");
        }
        at = next;
    }
}

static void
on_gateway_gone(fcfs_t *self, uint32_t peer)
{
    const fcfs_list_t *const lists[] = {&self->waiting, &self->running};
    for (uint32_t l = 0; l < 2; l++) {
        for (uint32_t at = lists[l]->first; at != 0;) {
            uint32_t next = self->requests[at].next;
            if (self->requests[at].gateway == peer) {
                fcfs_end(self, at, PROTO_FINISH_CANCELLED, STATUS_ERR_PEER_LOST, "owner_gone");
            }
            at = next;
        }
    }
    for (uint32_t i = 0; i < FCFS_ENDED_KEPT; i++) {
        if (self->gone[i].gateway == peer) {
            self->gone[i].id = 0; /* the peer's number may soon be another gateway's */
        }
    }
}

static void
on_peer_down(fcfs_t *self, const proto_peer_down_t *down, actor_outbox_t *outbox)
{
    if (down->peer >= ACTOR_PEER_COUNT_MAX) {
        return;
    }
    self->roles[down->peer] = PROTO_ROLE_NONE;
    if (down->peer == self->executor) {
        fcfs_lose_executor(self, "worker_lost", outbox);
    } else {
        on_gateway_gone(self, down->peer);
        send_ends(self, outbox); /* to nobody: frees the entries while the number is unused */
    }
}

/* ---- the core's operations ------------------------------------------------------------------- */

/* A new gateway under a number that was another's, or its own before: what it submits again is no
 * duplicate. */
static void
forget_ids(fcfs_t *self, uint32_t gateway)
{
    for (uint32_t i = 0; i < FCFS_ENDED_KEPT; i++) {
        if (self->gone[i].gateway == gateway) {
            self->gone[i].id = 0;
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
            forget_ids(self, up->peer);
            fcfs_send_model_info(self, up->peer, outbox);
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
    uint32_t refused = kind == PROTO_KIND_NAK ? input->body->nak.kind : 0;
    if (role == PROTO_ROLE_GATEWAY && kind == PROTO_KIND_SUBMIT) {
        on_submit(self, input, outbox);
    } else if (role == PROTO_ROLE_GATEWAY && kind == PROTO_KIND_FINISH) {
        on_finish(self, input);
    } else if (role == PROTO_ROLE_EXECUTOR && kind == PROTO_KIND_EXECUTOR_INFO) {
        fcfs_on_executor_info(self, input, outbox);
    } else if (in_charge && kind == PROTO_KIND_STEP_RESULT) {
        fcfs_on_step_result(self, input, outbox);
    } else if (in_charge && kind == PROTO_KIND_PLAN_REFUSED) {
        fcfs_on_plan_refused(self, input, outbox);
    } else if (in_charge && (refused == PROTO_KIND_PLAN || refused == PROTO_KIND_RESET)) {
        fcfs_on_fault(self, input, "it could not read a plan", outbox);
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
    fcfs_plan(self, input->now_ns, outbox);
    send_ends(self, outbox);
}

static uint64_t
deadline_ns(const void *core)
{
    const fcfs_t *self = core;
    uint64_t deadline = self->ended.first != 0 ? 0 : UINT64_MAX;
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

const actor_core_ops_t *
fcfs_ops(void)
{
    static const actor_core_ops_t ops = {
        .name = "scheduler",
        .role = PROTO_ROLE_SCHEDULER,
        .outbox_size_bytes = FCFS_OUTBOX_SIZE_BYTES,
        .outbox_count_max = 2 * PROTO_ROWS_MAX + FCFS_ENDS_MAX + 4 * ACTOR_PEER_COUNT_MAX,
        .step = step,
        .deadline_ns = deadline_ns,
        .idle = idle,
    };
    return &ops;
}

fcfs_t *
fcfs_new(uint32_t queue_len_max)
{
    fcfs_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return NULL;
    }
    self->queue_len_max = queue_len_max;
    /* Waiting ones, running ones, and ended ones whose FINISHED is still to be sent. */
    self->request_count = queue_len_max + 2 * PROTO_ROWS_MAX;
    self->executor = ACTOR_PEER_NONE;
    self->requests = calloc((size_t)self->request_count + 1, sizeof *self->requests);
    if (self->requests == NULL) {
        free(self);
        return NULL;
    }
    for (uint32_t entry = 1; entry <= self->request_count; entry++) {
        push(self, &self->free, entry);
    }
    return self;
}

void
fcfs_destroy(fcfs_t *self)
{
    for (uint32_t entry = 1; entry <= self->request_count; entry++) {
        fcfs_free_content(&self->requests[entry]);
        free(self->requests[entry].blocks);
    }
    fcfs_free_executor(self);
    free(self->requests);
    free(self);
}
