#include "actor_decode_role_core.h"

#include <stdlib.h>
#include <string.h>

#include "actor_decode_role_state.h"

enum {
    REQUESTS_DEFAULT = 512,
    REQUESTS_MAX = PROTO_ROWS_MAX / 2,
    STORE_SIZE_DEFAULT_BYTES = 64 << 20,
};
static const uint64_t RENEW_DEFAULT_NS = 1000000000u;
static const uint64_t OFFER_DEFAULT_NS = 5000000000u;
static const uint64_t QUEUE_DEFAULT_NS = 600000000000u;
static const uint64_t LANDING_DEFAULT_NS = 10000000000u;

/* ---- the model ------------------------------------------------------------------------------- */

/* True if a request that comes now would be served. */
static bool
can_serve(const actor_decode_role_core_t *self)
{
    return self->has_model && !self->is_draining &&
           (!self->options.no_local_prefill || actor_decode_role_has_prefill(self));
}

static void
tell_gateway(const actor_decode_role_core_t *self, uint32_t peer, actor_outbox_t *outbox)
{
    proto_body_t body = {.model_info = self->model};
    if (!can_serve(self)) {
        body.model_info = (proto_model_info_t){0};
        body.model_info.detail =
            proto_text(self->has_model ? "no prefill node can serve" : "no executor is attached");
    }
    actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_MODEL_INFO, 0, &body);
}

/* Tells them if what they know is not so any more, or, with `always`, in any case. */
static void
tell_gateways(actor_decode_role_core_t *self, bool always, actor_outbox_t *outbox)
{
    bool serves = can_serve(self);
    if (!always && serves == self->told_model) {
        return;
    }
    self->told_model = serves;
    for (uint32_t peer = 0; peer < ACTOR_PEER_COUNT_MAX; peer++) {
        if (self->peers[peer].role == PROTO_ROLE_GATEWAY) {
            tell_gateway(self, peer, outbox);
        }
    }
}

static proto_text_t
keep_text(proto_text_t text, char *room)
{
    if (text.size_bytes > 0) {
        memcpy(room, text.data, text.size_bytes);
    }
    return (proto_text_t){room, text.size_bytes};
}

static void
on_own_model(actor_decode_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_model_info_t *info = &input->body->model_info;
    bool had_model = self->has_model;
    self->has_model = info->slot_count > 0;
    self->model = *info;
    self->model.model_name = keep_text(info->model_name, self->model_name);
    self->model.fingerprint = keep_text(info->fingerprint, self->fingerprint);
    self->model.detail = proto_text("");
    if (info->page_hash_key.size_bytes > 0) {
        memcpy(self->page_hash_key, info->page_hash_key.data, info->page_hash_key.size_bytes);
    }
    self->model.page_hash_key.data = self->page_hash_key;
    decode_role_fold(self, self->has_model ? 1 : 2);
    tell_gateways(self, true, outbox);
    if (had_model) {
        /* Whoever serves now knows nothing of what was reserved. */
        actor_decode_role_lose_executor(self, input->now_ns, outbox);
    }
}

static bool
is_same_model(const actor_decode_role_core_t *self, const proto_model_info_t *info)
{
    size_t size = info->fingerprint.size_bytes;
    return size == self->model.fingerprint.size_bytes &&
           (size == 0 || memcmp(info->fingerprint.data, self->model.fingerprint.data, size) == 0);
}

static void
on_peer_model(actor_decode_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_model_info_t *info = &input->body->model_info;
    decode_role_peer_t *peer = &self->peers[input->from.index];
    /* Without a model of our own its offers would be refused with both values: as good a check. */
    peer->can_serve = info->slot_count > 0 && (!self->has_model || is_same_model(self, info));
    decode_role_fold(self, (uint64_t)input->from.index << 1 | (peer->can_serve ? 1 : 0));
    tell_gateways(self, false, outbox);
}

/* ---- links ----------------------------------------------------------------------------------- */

static void
on_peer_up(actor_decode_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_peer_up_t *up = &input->body->peer_up;
    if (up->peer == ACTOR_PEER_LOCAL || up->peer >= ACTOR_PEER_COUNT_MAX) {
        self->ignored_count++;
        return;
    }
    decode_role_peer_t *peer = &self->peers[up->peer];
    *peer = (decode_role_peer_t){.role = (proto_role_t)up->role, .epoch = up->epoch};
    size_t size =
        up->name.size_bytes < sizeof peer->name - 1 ? up->name.size_bytes : sizeof peer->name - 1;
    memcpy(peer->name, up->name.data, size);
    decode_role_fold(self, up->epoch);
    if (peer->role == PROTO_ROLE_SCHEDULER) {
        self->scheduler.index = up->peer;
    } else if (peer->role == PROTO_ROLE_KV_TRANSFER) {
        self->kv_transfer.index = up->peer;
        tell_gateways(self, false, outbox);
    } else if (peer->role == PROTO_ROLE_GATEWAY) {
        tell_gateway(self, up->peer, outbox);
    }
}

static void
lose_gateway(actor_decode_role_core_t *self, uint64_t now_ns, uint32_t peer, actor_outbox_t *outbox)
{
    for (uint32_t i = 0; i < self->options.request_count_max; i++) {
        decode_role_request_t *request = &self->requests[i];
        if (request->state == DECODE_ROLE_REQUEST_FREE || request->gateway != peer) {
            continue;
        }
        request->gateway = ACTOR_PEER_NONE; /* nobody wants its answer */
        if (request->state == DECODE_ROLE_REQUEST_ACTIVE) {
            proto_body_t body = {.finish = {.reason = PROTO_FINISH_CANCELLED}};
            actor_outbox_push(outbox, self->scheduler, PROTO_KIND_FINISH, request->request, &body);
        } else {
            actor_decode_role_transfer_close(self, &self->transfers[request->transfer], now_ns,
                                             STATUS_ERR_PEER_LOST, false, outbox);
            actor_decode_role_forget(self, request);
        }
    }
}

static void
lose_scheduler(actor_decode_role_core_t *self, uint64_t now_ns, actor_outbox_t *outbox)
{
    self->scheduler.index = ACTOR_PEER_NONE;
    self->has_model = false;
    tell_gateways(self, true, outbox);
    actor_decode_role_lose_executor(self, now_ns, outbox);
    decode_role_failure_t failure =
        decode_role_lost("worker_lost", "the decode node lost its scheduler");
    for (uint32_t i = 0; i < self->options.request_count_max; i++) {
        if (self->requests[i].state == DECODE_ROLE_REQUEST_ACTIVE) {
            actor_decode_role_end_with(self, &self->requests[i], &failure, outbox);
        }
    }
}

static void
on_peer_down(actor_decode_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_peer_down_t *down = &input->body->peer_down;
    if (down->peer >= ACTOR_PEER_COUNT_MAX || self->peers[down->peer].role == PROTO_ROLE_NONE ||
        self->peers[down->peer].epoch != down->epoch) {
        self->ignored_count++;
        return;
    }
    decode_role_peer_t *peer = &self->peers[down->peer];
    proto_role_t role = peer->role;
    peer->can_serve = false;
    peer->role = PROTO_ROLE_NONE;
    if (role == PROTO_ROLE_SCHEDULER && down->peer == self->scheduler.index) {
        lose_scheduler(self, input->now_ns, outbox);
    } else if (role == PROTO_ROLE_KV_TRANSFER && down->peer == self->kv_transfer.index) {
        self->kv_transfer.index = ACTOR_PEER_NONE;
        actor_decode_role_lose_kv_transfer(self, input->now_ns, outbox);
        tell_gateways(self, false, outbox);
    } else if (role == PROTO_ROLE_PREFILL_ROLE) {
        actor_decode_role_lose_prefill(self, input->now_ns, down->peer, outbox);
        tell_gateways(self, false, outbox);
    } else if (role == PROTO_ROLE_GATEWAY) {
        lose_gateway(self, input->now_ns, down->peer, outbox);
    }
}

/* ---- the core interface ---------------------------------------------------------------------- */

static void
step_local(actor_decode_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    switch ((int)input->header->kind) {
    case PROTO_KIND_PEER_UP:
        on_peer_up(self, input, outbox);
        break;
    case PROTO_KIND_PEER_DOWN:
        on_peer_down(self, input, outbox);
        break;
    case PROTO_KIND_TIMER:
        actor_decode_role_transfer_timer(self, input->now_ns, outbox);
        break;
    case PROTO_KIND_DRAIN:
        self->is_draining = true; /* what is open is finished; gateways refuse what comes */
        break;
    default:
        self->ignored_count++;
        break;
    }
}

static void
step_scheduler(actor_decode_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    switch ((int)input->header->kind) {
    case PROTO_KIND_MODEL_INFO:
        on_own_model(self, input, outbox);
        break;
    case PROTO_KIND_LOAD:
        for (uint32_t peer = 0; peer < ACTOR_PEER_COUNT_MAX; peer++) {
            if (self->peers[peer].role == PROTO_ROLE_GATEWAY) {
                actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_LOAD, 0, input->body);
            }
        }
        break;
    case PROTO_KIND_TOKENS:
        actor_decode_role_on_tokens(self, input, outbox);
        break;
    case PROTO_KIND_FINISHED:
        actor_decode_role_on_finished(self, input, outbox);
        break;
    case PROTO_KIND_RESERVED:
        actor_decode_role_on_reserved(self, input, outbox);
        break;
    case PROTO_KIND_RETURNED:
        actor_decode_role_on_returned(self, input);
        break;
    default:
        self->ignored_count++;
        break;
    }
}

static void
step_prefill_role(actor_decode_role_core_t *self, const actor_input_t *input,
                  actor_outbox_t *outbox)
{
    switch ((int)input->header->kind) {
    case PROTO_KIND_MODEL_INFO:
        on_peer_model(self, input, outbox);
        break;
    case PROTO_KIND_OFFER_TAKEN:
        actor_decode_role_on_taken(self, input);
        break;
    case PROTO_KIND_PREFILLED:
        actor_decode_role_on_prefilled(self, input, outbox);
        break;
    case PROTO_KIND_TRANSFER_FAILED:
        actor_decode_role_on_failed(self, input, outbox);
        break;
    case PROTO_KIND_TRANSFER_CLOSED:
        actor_decode_role_on_closed(self, input);
        break;
    default: /* LOAD: the count of open transfers says enough */
        break;
    }
}

static void
step_peer(actor_decode_role_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    uint32_t from = input->from.index;
    proto_role_t role = from < ACTOR_PEER_COUNT_MAX ? self->peers[from].role : PROTO_ROLE_NONE;
    int kind = (int)input->header->kind;
    if (from == self->scheduler.index) {
        step_scheduler(self, input, outbox);
    } else if (role == PROTO_ROLE_PREFILL_ROLE) {
        step_prefill_role(self, input, outbox);
    } else if (role == PROTO_ROLE_GATEWAY && kind == PROTO_KIND_SUBMIT) {
        actor_decode_role_on_submit(self, input, outbox);
    } else if (role == PROTO_ROLE_GATEWAY && kind == PROTO_KIND_FINISH) {
        actor_decode_role_on_finish(self, input, outbox);
    } else if (from == self->kv_transfer.index && kind == PROTO_KIND_TRANSFER_DONE) {
        actor_decode_role_on_done(self, input, outbox);
    } else {
        self->ignored_count++;
    }
}

static void
step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    actor_decode_role_core_t *self = core;
    proto_require_set_request(input->header->request);
    if (input->from.index == ACTOR_PEER_LOCAL) {
        step_local(self, input, outbox);
    } else {
        step_peer(self, input, outbox);
    }
    proto_require_set_request(0);
}

static uint64_t
deadline_ns(const void *core)
{
    return actor_decode_role_transfer_deadline(core);
}

static uint64_t
digest(const void *core)
{
    return ((const actor_decode_role_core_t *)core)->digest;
}

static void
stats(const void *core, proto_stats_t *out)
{
    out->refused_in += ((const actor_decode_role_core_t *)core)->ignored_count;
}

static void
check(const void *core)
{
    const actor_decode_role_core_t *self = core;
    uint32_t requests = 0;
    uint32_t moving = 0;
    for (uint32_t i = 0; i < self->options.request_count_max; i++) {
        const decode_role_request_t *request = &self->requests[i];
        requests += request->state != DECODE_ROLE_REQUEST_FREE ? 1 : 0;
        if (request->state == DECODE_ROLE_REQUEST_MOVING) {
            moving++;
            require(self->transfers[request->transfer].request == i);
            require(request->parcel.value != 0);
        }
    }
    uint32_t transfers = 0;
    uint32_t carrying = 0;
    uint32_t counts[ACTOR_PEER_COUNT_MAX] = {0};
    for (uint32_t i = 0; i < self->transfer_max; i++) {
        const decode_role_transfer_t *transfer = &self->transfers[i];
        if (transfer->state == DECODE_ROLE_TRANSFER_FREE) {
            continue;
        }
        transfers++;
        carrying += transfer->state != DECODE_ROLE_TRANSFER_CLOSING ? 1 : 0;
        if (transfer->peer != ACTOR_PEER_NONE) {
            counts[transfer->peer]++;
        }
    }
    for (uint32_t peer = 0; peer < ACTOR_PEER_COUNT_MAX; peer++) {
        require(counts[peer] == self->peers[peer].transfer_count);
    }
    require(requests == self->request_count);
    require(transfers == self->transfer_count);
    require(moving == carrying);
    actor_scheduler_store_check(self->store);
}

static bool
idle(const void *core)
{
    const actor_decode_role_core_t *self = core;
    return self->request_count == 0 && self->transfer_count == 0;
}

/* The most that one input can make it say: a message's columns passed on three times, or words to
 * and about every request and transfer; a retry names its prompt again. */
static size_t
outbox_size_bytes(const actor_decode_role_core_t *self)
{
    size_t columns = 3 * ((size_t)PROTO_TOKENS_MAX * sizeof(int32_t) + 16384 +
                          (size_t)PROTO_PAGES_MAX * PROTO_HASH_SIZE_BYTES + (size_t)(24 << 20));
    size_t words = ((size_t)self->options.request_count_max + self->transfer_max) * 4 * 1536;
    size_t again = self->options.store_size_bytes;
    size_t gateways = (size_t)ACTOR_PEER_COUNT_MAX * 8192;
    return columns + words + again + gateways + 65536;
}

static void
fill_defaults(actor_decode_role_options_t *options)
{
    if (options->request_count_max == 0) {
        options->request_count_max = REQUESTS_DEFAULT;
    }
    if (options->store_size_bytes == 0) {
        options->store_size_bytes = STORE_SIZE_DEFAULT_BYTES;
    }
    if (options->renew_ns == 0) {
        options->renew_ns = RENEW_DEFAULT_NS;
    }
    if (options->offer_timeout_ns == 0) {
        options->offer_timeout_ns = OFFER_DEFAULT_NS;
    }
    if (options->queue_timeout_ns == 0) {
        options->queue_timeout_ns = QUEUE_DEFAULT_NS;
    }
    if (options->landing_timeout_ns == 0) {
        options->landing_timeout_ns = LANDING_DEFAULT_NS;
    }
}

proto_status_t
actor_decode_role_core_new(const actor_decode_role_options_t *options,
                           actor_decode_role_core_t **out_p)
{
    require(options != NULL);
    require(options->request_count_max <= REQUESTS_MAX);
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    actor_decode_role_core_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return status;
    }
    self->options = *options;
    fill_defaults(&self->options);
    self->transfer_max = 2 * self->options.request_count_max;
    self->scheduler.index = ACTOR_PEER_NONE;
    self->kv_transfer.index = ACTOR_PEER_NONE;
    uint64_t mixed = options->epoch * 0x9e3779b97f4a7c15u;
    self->key_base = (mixed ^ mixed >> 31) & ~UINT64_C(0xffffffff);
    self->requests = calloc(self->options.request_count_max, sizeof *self->requests);
    self->transfers = calloc(self->transfer_max, sizeof *self->transfers);
    self->keys = calloc(self->transfer_max, sizeof *self->keys);
    self->tokens = calloc(PROTO_TOKENS_MAX + 1, sizeof *self->tokens);
    if (self->requests == NULL || self->transfers == NULL || self->keys == NULL ||
        self->tokens == NULL) {
        goto err_destroy;
    }
    status = actor_scheduler_store_new(self->options.store_size_bytes, &self->store);
    if (status != STATUS_OK) {
        goto err_destroy;
    }
    self->ops = (actor_core_ops_t){
        .name = "decode-role",
        .role = PROTO_ROLE_DECODE_ROLE,
        .outbox_size_bytes = outbox_size_bytes(self),
        .outbox_count_max =
            4 * (self->options.request_count_max + self->transfer_max) + 2 * ACTOR_PEER_COUNT_MAX,
        .step = step,
        .deadline_ns = deadline_ns,
        .digest = digest,
        .stats = stats,
        .check = check,
        .idle = idle,
    };
    *out_p = self;
    return STATUS_OK;

err_destroy:
    actor_decode_role_core_destroy(&self);
    return status;
}

void
actor_decode_role_core_destroy(actor_decode_role_core_t **self_p)
{
    actor_decode_role_core_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    actor_scheduler_store_destroy(&self->store);
    free(self->tokens);
    free(self->keys);
    free(self->transfers);
    free(self->requests);
    free(self);
    *self_p = NULL;
}

const actor_core_ops_t *
actor_decode_role_core_ops(const actor_decode_role_core_t *self)
{
    return &self->ops;
}

uint32_t
actor_decode_role_core_request_count(const actor_decode_role_core_t *self)
{
    return self->request_count;
}

uint32_t
actor_decode_role_core_transfer_count(const actor_decode_role_core_t *self)
{
    return self->transfer_count;
}

uint64_t
actor_decode_role_core_local_count(const actor_decode_role_core_t *self)
{
    return self->local_count;
}

uint64_t
actor_decode_role_core_failed_count(const actor_decode_role_core_t *self)
{
    return self->failed_count;
}
