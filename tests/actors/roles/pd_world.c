/* The bus, the clock, the devices' time and the gateway. */
#include "pd_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_sim_model.h"
#include "proto_pack.h"
#include "proto_require.h"

enum { RETRY_MS = 20, RESTART_MS = 300, ATTEMPTS_MAX = 40 };

static uint32_t
node_of(uint32_t actor)
{
    return actor / PD_MEMBERS;
}

static bool
is_linked(uint32_t a, uint32_t b)
{
    uint32_t low = a < b ? a : b;
    uint32_t high = a < b ? b : a;
    if (high == PD_GATEWAY) {
        return low == PD_ROLE;
    }
    uint32_t first = low % PD_MEMBERS;
    uint32_t second = high % PD_MEMBERS;
    if (node_of(low) != node_of(high)) {
        return node_of(low) == 0 && first == PD_ROLE && second == PD_ROLE;
    }
    return first == PD_SCHEDULER || second == PD_SCHEDULER || (first == PD_ROLE && second == PD_KV);
}

static proto_role_t
role_of(uint32_t actor)
{
    static const proto_role_t roles[PD_MEMBERS] = {PROTO_ROLE_PREFILL_ROLE, PROTO_ROLE_SCHEDULER,
                                                   PROTO_ROLE_EXECUTOR, PROTO_ROLE_KV_TRANSFER};
    if (actor == PD_GATEWAY) {
        return PROTO_ROLE_GATEWAY;
    }
    return actor == PD_ROLE ? PROTO_ROLE_DECODE_ROLE : roles[actor % PD_MEMBERS];
}

/* ---- events ---------------------------------------------------------------------------------- */

pd_event_t *
pd_world_event(pd_world_t *self, pd_event_kind_t kind, uint32_t to, uint64_t after_ns)
{
    require(self->event_count < PD_EVENTS_MAX);
    pd_event_t *event = &self->events[self->event_count++];
    *event = (pd_event_t){.kind = kind,
                          .at_ns = self->now_ns + after_ns,
                          .order = ++self->order,
                          .to = to};
    return event;
}

static uint32_t
first_event(const pd_world_t *self)
{
    uint32_t first = UINT32_MAX;
    for (uint32_t i = 0; i < self->event_count; i++) {
        const pd_event_t *event = &self->events[i];
        if (first == UINT32_MAX || event->at_ns < self->events[first].at_ns ||
            (event->at_ns == self->events[first].at_ns &&
             event->order < self->events[first].order)) {
            first = i;
        }
    }
    return first;
}

static void
put_on_wire(pd_world_t *self, pd_event_t *event, uint32_t from)
{
    uint64_t *last = &self->wire_ns[from][event->to];
    event->at_ns = event->at_ns > *last ? event->at_ns : *last;
    *last = event->at_ns;
    event->from = from;
    event->from_epoch = self->actors[from].epoch;
    event->to_epoch = self->actors[event->to].epoch;
}

static void
send_bytes(pd_world_t *self, uint32_t from, uint32_t to, proto_kind_t kind, uint64_t request,
           proto_bytes_t body, proto_bytes_t blob)
{
    pd_event_t *event =
        pd_world_event(self, PD_EVENT_MESSAGE, to, actor_sim_random_us(&self->random, 20, 200));
    put_on_wire(self, event, from);
    event->message = kind;
    event->request = request;
    event->body_size = body.size_bytes;
    event->blob_size = blob.size_bytes;
    size_t at = (body.size_bytes + 63) / 64 * 64;
    event->bytes = aligned_alloc(64, at + (blob.size_bytes + 127) / 64 * 64);
    require(event->bytes != NULL);
    if (body.size_bytes > 0) {
        memcpy(event->bytes, body.data, body.size_bytes);
    }
    if (blob.size_bytes > 0) {
        memcpy(event->bytes + at, blob.data, blob.size_bytes);
    }
}

/* Between roles messages may be lost or said twice: what the leases and repeats are for. */
static void
send_emission(pd_world_t *self, uint32_t from, uint32_t to, const actor_emission_t *emission)
{
    bool between = from != PD_GATEWAY && to != PD_GATEWAY && node_of(from) != node_of(to);
    /* What a peer says of itself when a link opens is not lost alone: a gap in the sequence numbers
     * opens the link anew. */
    bool may_be_lost = between && emission->kind != PROTO_KIND_MODEL_INFO;
    if (may_be_lost && !self->is_quiet_bus &&
        actor_sim_random_chance(&self->random, self->config.drop_permille)) {
        return;
    }
    send_bytes(self, from, to, emission->kind, emission->request, emission->body, emission->blob);
    if (between && !self->is_quiet_bus &&
        actor_sim_random_chance(&self->random, self->config.double_permille)) {
        send_bytes(self, from, to, emission->kind, emission->request, emission->body,
                   emission->blob);
    }
}

void
pd_world_send(pd_world_t *self, uint32_t from, uint32_t to, proto_kind_t kind, uint64_t request,
              const proto_body_t *body)
{
    static const actor_core_ops_t ops = {.outbox_size_bytes = 1 << 20, .outbox_count_max = 4};
    actor_outbox_t *outbox = NULL;
    proto_status_t status = actor_outbox_new(&ops, &outbox);
    require(status == STATUS_OK);
    actor_outbox_push(outbox, (actor_peer_t){to + 1}, kind, request, body);
    const actor_emission_t *emission = actor_outbox_at(outbox, 0);
    send_bytes(self, from, to, kind, request, emission->body, emission->blob);
    actor_outbox_destroy(&outbox);
}

/* ---- actors ---------------------------------------------------------------------------------- */

static void device_word(pd_world_t *self, uint32_t actor, const actor_emission_t *emission);

static void
pass_on(pd_world_t *self, uint32_t actor)
{
    pd_actor_t *sender = &self->actors[actor];
    for (uint32_t i = 0; i < actor_outbox_count(sender->outbox); i++) {
        const actor_emission_t *emission = actor_outbox_at(sender->outbox, i);
        if (emission->to.index == ACTOR_PEER_LOCAL) {
            device_word(self, actor, emission);
        } else if (sender->sees[emission->to.index - 1]) {
            send_emission(self, actor, emission->to.index - 1, emission);
        }
    }
    actor_outbox_clear(sender->outbox);
}

static void
give(pd_world_t *self, uint32_t actor, uint32_t from_peer, proto_kind_t kind, uint64_t request,
     const proto_body_t *body)
{
    pd_actor_t *receiver = &self->actors[actor];
    if (receiver->ops == NULL || !receiver->is_alive) {
        return;
    }
    proto_header_t header = {.kind = kind, .request = request, .sequence = ++self->sequence};
    actor_input_t input = {.now_ns = self->now_ns,
                           .sequence = self->sequence,
                           .from = {from_peer},
                           .header = &header,
                           .body = body};
    actor_outbox_clear(receiver->outbox);
    receiver->ops->step(receiver->core, &input, receiver->outbox);
    receiver->ops->check(receiver->core);
    pass_on(self, actor);
}

static void
link_up(pd_world_t *self, uint32_t a, uint32_t b)
{
    for (uint32_t way = 0; way < 2; way++) {
        pd_event_t *event = pd_world_event(self, PD_EVENT_UP, way == 0 ? b : a, 50000);
        put_on_wire(self, event, way == 0 ? a : b);
    }
}

static void
start_core(pd_world_t *self, uint32_t actor)
{
    pd_actor_t *made = &self->actors[actor];
    uint32_t member = actor % PD_MEMBERS;
    proto_status_t status = STATUS_OK;
    if (actor == PD_GATEWAY || member == PD_KV) {
        return;
    }
    if (actor == PD_ROLE) {
        actor_decode_role_options_t options = {.epoch = made->epoch,
                                               .request_count_max = 32,
                                               .store_size_bytes = 1 << 20,
                                               .no_local_prefill = self->config.no_local_prefill};
        actor_decode_role_core_t *core = NULL;
        status = actor_decode_role_core_new(&options, &core);
        made->core = core;
        made->ops = actor_decode_role_core_ops(core);
    } else if (member == PD_ROLE) {
        actor_prefill_role_options_t options = {.transfer_count_max = 64};
        actor_prefill_role_core_t *core = NULL;
        status = actor_prefill_role_core_new(&options, &core);
        made->core = core;
        made->ops = actor_prefill_role_core_ops(core);
    } else if (member == PD_SCHEDULER) {
        actor_scheduler_core_options_t options = {.slot_count_max = 4,
                                                  .queue_len_max = 64,
                                                  .store_size_bytes = 1 << 18,
                                                  .loan_count_max = 32};
        actor_scheduler_core_t *core = NULL;
        status = actor_scheduler_core_new(&options, &core);
        made->core = core;
        made->ops = actor_scheduler_core_ops(core);
    } else {
        actor_executor_core_options_t options = {.slot_count_max = 4,
                                                 .model_len_max = 256,
                                                 .step_tokens_max = 64};
        actor_executor_core_t *core = NULL;
        status = actor_executor_core_new(&options, &core);
        made->core = core;
        made->ops = actor_executor_core_ops(core);
    }
    require(status == STATUS_OK);
    status = actor_outbox_new(made->ops, &made->outbox);
    require(status == STATUS_OK);
}

static void
stop_core(pd_world_t *self, uint32_t actor)
{
    pd_actor_t *gone = &self->actors[actor];
    uint32_t member = actor % PD_MEMBERS;
    actor_outbox_destroy(&gone->outbox);
    if (gone->core != NULL && actor == PD_ROLE) {
        actor_decode_role_core_t *core = gone->core;
        actor_decode_role_core_destroy(&core);
    } else if (gone->core != NULL && member == PD_ROLE) {
        actor_prefill_role_core_t *core = gone->core;
        actor_prefill_role_core_destroy(&core);
    } else if (gone->core != NULL && member == PD_SCHEDULER) {
        actor_scheduler_core_t *core = gone->core;
        actor_scheduler_core_destroy(&core);
    } else if (gone->core != NULL) {
        actor_executor_core_t *core = gone->core;
        actor_executor_core_destroy(&core);
    }
    gone->core = NULL;
    gone->ops = NULL;
}

static void
device_ready(pd_world_t *self, uint32_t actor)
{
    proto_body_t body;
    actor_sim_model_info(&self->model, &body.executor_info);
    _Static_assert(sizeof body.device_ready == sizeof body.executor_info, "the same fields");
    give(self, actor, ACTOR_PEER_LOCAL, PROTO_KIND_DEVICE_READY, 0, &body);
}

static void
start(pd_world_t *self, uint32_t actor)
{
    pd_actor_t *made = &self->actors[actor];
    made->is_alive = true;
    made->epoch++;
    start_core(self, actor);
    if (actor != PD_GATEWAY && actor % PD_MEMBERS == PD_EXECUTOR) {
        uint32_t node = node_of(actor);
        actor_sim_device_destroy(&self->devices[node]);
        proto_status_t status = actor_sim_device_new(&self->model, &self->devices[node]);
        require(status == STATUS_OK);
        self->done_step[node] = 0;
        device_ready(self, actor);
    }
    for (uint32_t other = 0; other < PD_ACTOR_COUNT; other++) {
        if (other != actor && self->actors[other].is_alive && is_linked(actor, other)) {
            link_up(self, actor, other);
        }
    }
}

void
pd_world_kill(pd_world_t *self, uint32_t actor, uint64_t restart_ns)
{
    pd_actor_t *gone = &self->actors[actor];
    if (!gone->is_alive) {
        return;
    }
    self->deaths++;
    gone->is_alive = false;
    memset(gone->sees, 0, sizeof gone->sees);
    stop_core(self, actor);
    if (actor != PD_GATEWAY && actor % PD_MEMBERS >= PD_EXECUTOR) {
        pd_data_lose(self, node_of(actor));
    }
    for (uint32_t other = 0; other < PD_ACTOR_COUNT; other++) {
        if (self->actors[other].is_alive && is_linked(actor, other)) {
            pd_event_t *event = pd_world_event(self, PD_EVENT_DOWN, other, 1000000);
            put_on_wire(self, event, actor);
        }
    }
    (void)pd_world_event(self, PD_EVENT_START, actor, restart_ns);
}

/* ---- the device ------------------------------------------------------------------------------ */

static void
device_word(pd_world_t *self, uint32_t actor, const actor_emission_t *emission)
{
    uint32_t node = node_of(actor);
    if (actor == PD_GATEWAY || actor % PD_MEMBERS != PD_EXECUTOR) {
        return; /* what the others' own shells would log */
    }
    proto_body_t body;
    proto_status_t status =
        proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL);
    require(status == STATUS_OK);
    if (emission->kind == PROTO_KIND_SLOT_SETUP) {
        actor_sim_device_setup(self->devices[node], &body.slot_setup);
    } else if (emission->kind == PROTO_KIND_DEVICE_RESET) {
        actor_sim_device_reset(self->devices[node]);
        self->done_step[node] = 0; /* the next scheduler counts from 1 */
        pd_event_t *event = pd_world_event(self, PD_EVENT_READY, actor, PD_MS);
        event->to_epoch = self->actors[actor].epoch;
    } else if (emission->kind == PROTO_KIND_STEP_LAUNCH) {
        bool launched =
            actor_sim_device_launch(self->devices[node], &body.step_launch, 0, &self->random);
        require(launched);
        uint64_t begin =
            self->step_end_ns[node] > self->now_ns ? self->step_end_ns[node] : self->now_ns;
        self->step_end_ns[node] = begin + actor_sim_random_us(&self->random, 800, 1500);
        pd_event_t *event = pd_world_event(self, PD_EVENT_STEP, actor, 0);
        event->at_ns = self->step_end_ns[node];
        event->to_epoch = self->actors[actor].epoch;
    }
}

static void
step_ended(pd_world_t *self, const pd_event_t *event)
{
    uint32_t node = node_of(event->to);
    proto_body_t body;
    if (!self->actors[event->to].is_alive || self->actors[event->to].epoch != event->to_epoch ||
        !actor_sim_device_collect(self->devices[node], &body.step_done)) {
        return;
    }
    self->done_step[node] = body.step_done.step;
    give(self, event->to, ACTOR_PEER_LOCAL, PROTO_KIND_STEP_DONE, 0, &body);
    pd_data_step_done(self, node);
}

/* ---- the gateway ----------------------------------------------------------------------------- */

static void
submit(pd_world_t *self, pd_request_t *request)
{
    static uint8_t sampling_bytes[256];
    proto_sampling_t sampling = {.temperature = 0,
                                 .top_p = 1,
                                 .repetition_penalty = 1,
                                 .prompt_length = request->prompt_length,
                                 .ignore_eos = true};
    uint32_t length = request->prompt_length + request->received;
    static uint8_t hashes[ACTOR_SIM_LEN_MAX][PROTO_HASH_SIZE_BYTES];
    uint32_t pages = length / self->model.page_tokens;
    for (uint32_t page = 0; page < pages; page++) {
        proto_page_hash(self->model.page_hash_key, page > 0 ? hashes[page - 1] : NULL,
                        (proto_bytes_t){NULL, 0},
                        request->tokens + (size_t)page * self->model.page_tokens,
                        self->model.page_tokens, hashes[page]);
    }
    proto_body_t sampled = {.sampling = sampling};
    size_t size = 0;
    {
        static const actor_core_ops_t ops = {.outbox_size_bytes = 1 << 16, .outbox_count_max = 1};
        actor_outbox_t *outbox = NULL;
        proto_status_t status = actor_outbox_new(&ops, &outbox);
        require(status == STATUS_OK);
        actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_SAMPLING, 0,
                          &sampled);
        proto_bytes_t bytes = actor_outbox_at(outbox, 0)->body;
        size = bytes.size_bytes;
        require(size <= sizeof sampling_bytes);
        memcpy(sampling_bytes, bytes.data, size);
        actor_outbox_destroy(&outbox);
    }
    request->id = ++self->ids;
    request->retry_ns = 0;
    request->attempt_count++;
    proto_body_t body = {
        .submit = {.prompt_length = length,
                   .generation_max = request->generation_max - request->received,
                   .emitted = request->received,
                   .priority = request->priority,
                   .queue_timeout_ns = self->config.queue_timeout_ns,
                   .page_hashes = {hashes[0], (size_t)pages * PROTO_HASH_SIZE_BYTES},
                   .tokens = {request->tokens, length},
                   .sampling = {sampling_bytes, (uint32_t)size}}};
    pd_world_send(self, PD_GATEWAY, PD_ROLE, PROTO_KIND_SUBMIT, request->id, &body);
}

uint32_t
pd_world_ask(pd_world_t *self, uint32_t prompt_length, uint32_t generation_max, uint32_t family)
{
    require(self->request_count < PD_REQUESTS_MAX);
    pd_request_t *request = &self->requests[self->request_count];
    *request = (pd_request_t){.prompt_length = prompt_length,
                              .generation_max = generation_max,
                              .is_open = true};
    for (uint32_t i = 0; i < prompt_length; i++) {
        uint64_t own = i < 16 ? 0 : self->request_count;
        request->tokens[i] =
            (int32_t)(actor_sim_mix(family * 1000 + i + own * 7777) % self->model.vocab_size);
    }
    request->retry_ns = self->now_ns + 1;
    return self->request_count++;
}

static pd_request_t *
request_of(pd_world_t *self, uint64_t id)
{
    for (uint32_t i = 0; i < self->request_count; i++) {
        if (self->requests[i].is_open && self->requests[i].id == id) {
            return &self->requests[i];
        }
    }
    return NULL;
}

static void
gateway_tokens(pd_world_t *self, const proto_tokens_t *tokens)
{
    size_t at = 0;
    for (uint32_t r = 0; r < tokens->requests.count; r++) {
        pd_request_t *request = request_of(self, tokens->requests.data[r]);
        uint32_t count = tokens->token_counts.data[r];
        if (request != NULL && request->retry_ns == 0) {
            require(tokens->token_indices.data[r] == request->received); /* no hole, no double */
            for (uint32_t i = 0; i < count; i++) {
                request->tokens[request->prompt_length + request->received++] =
                    tokens->tokens.data[at + i];
            }
        }
        at += count;
    }
}

static void
gateway_finished(pd_world_t *self, uint64_t id, const proto_finished_t *finished)
{
    pd_request_t *request = request_of(self, id);
    if (request == NULL || request->retry_ns != 0) {
        return;
    }
    bool well = finished->reason == PROTO_FINISH_STOP || finished->reason == PROTO_FINISH_LENGTH;
    bool is_late = finished->code.size_bytes == strlen("queue_timeout") &&
                   memcmp(finished->code.data, "queue_timeout", finished->code.size_bytes) == 0;
    require(!is_late ||
            (finished->reason == PROTO_FINISH_REFUSED && finished->status == STATUS_ERR_DEADLINE));
    self->queue_timeouts += is_late ? 1 : 0;
    bool again = !well && finished->retry_after_ms > 0 && request->attempt_count < ATTEMPTS_MAX;
    if (again && !request->was_cancelled) {
        request->retry_ns = self->now_ns + RETRY_MS * PD_MS; /* as the gateway resumes */
        return;
    }
    require(!well || finished->generated_tokens == request->received);
    request->is_complete = well;
    request->end_ns = self->now_ns;
    request->is_open = false;
    request->end_count++;
    (void)snprintf(request->code, sizeof request->code, "%.*s", (int)finished->code.size_bytes,
                   finished->code.size_bytes > 0 ? finished->code.data : "");
}

void
pd_world_cancel(pd_world_t *self, uint32_t index)
{
    pd_request_t *request = &self->requests[index];
    if (!request->is_open || request->was_cancelled) {
        return;
    }
    request->was_cancelled = true;
    if (request->retry_ns != 0) {
        request->retry_ns = 0;
        request->is_open = false; /* nobody has it */
        request->end_count++;
        return;
    }
    proto_body_t body = {
        .finish = {.token_index = request->received, .reason = PROTO_FINISH_CANCELLED}};
    pd_world_send(self, PD_GATEWAY, PD_ROLE, PROTO_KIND_FINISH, request->id, &body);
}

static void
gateway_message(pd_world_t *self, const pd_event_t *event, const proto_body_t *body)
{
    if (event->message == PROTO_KIND_MODEL_INFO) {
        self->has_model = body->model_info.slot_count > 0;
    } else if (event->message == PROTO_KIND_TOKENS) {
        gateway_tokens(self, &body->tokens);
    } else if (event->message == PROTO_KIND_FINISHED) {
        gateway_finished(self, event->request, &body->finished);
    }
}

/* The role that had them is gone. */
static void
gateway_lost_role(pd_world_t *self)
{
    self->has_model = false;
    for (uint32_t i = 0; i < self->request_count; i++) {
        pd_request_t *request = &self->requests[i];
        if (!request->is_open || request->retry_ns != 0) {
            continue;
        }
        if (request->was_cancelled || request->received == request->generation_max) {
            request->is_open = false;
            request->is_complete = !request->was_cancelled;
            request->end_count++;
        } else {
            request->retry_ns = self->now_ns + RETRY_MS * PD_MS;
        }
    }
}

bool
pd_world_is_right(const pd_world_t *self, uint32_t index)
{
    const pd_request_t *request = &self->requests[index];
    actor_sim_sequence_t *sequence = calloc(1, sizeof *sequence);
    require(sequence != NULL);
    bool right = true;
    for (uint32_t i = 0; i < request->prompt_length + request->received; i++) {
        if (i >= request->prompt_length) {
            right = right && actor_sim_sequence_next(sequence, &self->model) == request->tokens[i];
        }
        actor_sim_sequence_append(sequence, &self->model, request->tokens[i]);
    }
    free(sequence);
    return right;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void
deliver(pd_world_t *self, pd_event_t *event)
{
    pd_actor_t *to = &self->actors[event->to];
    bool stale = !to->is_alive || to->epoch != event->to_epoch || !to->sees[event->from] ||
                 self->actors[event->from].epoch != event->from_epoch;
    if (stale) {
        return;
    }
    proto_body_t body;
    size_t at = (event->body_size + 63) / 64 * 64;
    proto_status_t status =
        proto_body_decode(event->message, (proto_bytes_t){event->bytes, event->body_size},
                          (proto_bytes_t){event->bytes + at, event->blob_size}, &body, NULL);
    require(status == STATUS_OK);
    if (event->to == PD_GATEWAY) {
        gateway_message(self, event, &body);
    } else if (event->to % PD_MEMBERS == PD_KV) {
        pd_data_message(self, node_of(event->to), event->message, &body);
    } else {
        give(self, event->to, event->from + 1, event->message, event->request, &body);
    }
}

static void
peer_up(pd_world_t *self, const pd_event_t *event)
{
    pd_actor_t *to = &self->actors[event->to];
    if (!to->is_alive || to->epoch != event->to_epoch ||
        self->actors[event->from].epoch != event->from_epoch ||
        !self->actors[event->from].is_alive) {
        return;
    }
    to->sees[event->from] = true;
    char name[32];
    (void)snprintf(name, sizeof name, "actor-%u", event->from);
    proto_body_t body = {.peer_up = {.peer = event->from + 1,
                                     .role = role_of(event->from),
                                     .name = proto_text(name),
                                     .epoch = event->from_epoch}};
    give(self, event->to, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_UP, 0, &body);
}

static void
peer_down(pd_world_t *self, const pd_event_t *event)
{
    pd_actor_t *to = &self->actors[event->to];
    if (!to->is_alive || to->epoch != event->to_epoch || !to->sees[event->from]) {
        return;
    }
    to->sees[event->from] = false;
    if (event->to == PD_GATEWAY) {
        gateway_lost_role(self);
        return;
    }
    if (event->to % PD_MEMBERS == PD_KV && event->from % PD_MEMBERS == PD_SCHEDULER) {
        pd_data_lose(self, node_of(event->to)); /* its blocks are nobody's any more */
    }
    proto_body_t body = {.peer_down = {.peer = event->from + 1,
                                       .role = role_of(event->from),
                                       .epoch = event->from_epoch,
                                       .detail = proto_text("killed")}};
    give(self, event->to, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_DOWN, 0, &body);
}

static void
handle(pd_world_t *self, pd_event_t *event)
{
    switch (event->kind) {
    case PD_EVENT_MESSAGE:
        deliver(self, event);
        free(event->bytes);
        break;
    case PD_EVENT_UP:
        peer_up(self, event);
        break;
    case PD_EVENT_DOWN:
        peer_down(self, event);
        break;
    case PD_EVENT_START:
        start(self, event->to);
        break;
    case PD_EVENT_STEP:
        step_ended(self, event);
        break;
    case PD_EVENT_READY:
        if (self->actors[event->to].epoch == event->to_epoch) {
            device_ready(self, event->to);
        }
        break;
    case PD_EVENT_COPY:
        pd_data_copy(self, event->value);
        break;
    case PD_EVENT_FENCED:
        if (self->actors[event->to].is_alive && self->actors[event->to].epoch == event->to_epoch) {
            pd_data_fenced(self, event);
        }
        break;
    case PD_EVENT_CANCELLED:
        if (self->actors[event->to].is_alive && self->actors[event->to].epoch == event->to_epoch) {
            pd_data_cancelled(self, event);
        }
        break;
    case PD_EVENT_NONE:
        break;
    }
}

/* The earliest of the actors' own deadlines and the gateway's. */
static uint64_t
first_deadline(const pd_world_t *self, uint32_t *actor)
{
    uint64_t first = UINT64_MAX;
    for (uint32_t i = 0; i < PD_ACTOR_COUNT; i++) {
        const pd_actor_t *candidate = &self->actors[i];
        if (candidate->is_alive && candidate->ops != NULL) {
            uint64_t deadline = candidate->ops->deadline_ns(candidate->core);
            if (deadline < first) {
                first = deadline;
                *actor = i;
            }
        }
    }
    for (uint32_t i = 0; i < self->request_count; i++) {
        const pd_request_t *request = &self->requests[i];
        if (request->is_open && request->retry_ns != 0 && self->has_model &&
            self->actors[PD_GATEWAY].sees[PD_ROLE] && request->retry_ns < first) {
            first = request->retry_ns;
            *actor = PD_GATEWAY;
        }
    }
    return first;
}

static void
gateway_timer(pd_world_t *self)
{
    for (uint32_t i = 0; i < self->request_count; i++) {
        pd_request_t *request = &self->requests[i];
        if (request->is_open && request->retry_ns != 0 && request->retry_ns <= self->now_ns) {
            submit(self, request);
        }
    }
}

/* Faults of the millisecond that began. */
static void
harm(pd_world_t *self, uint64_t before_ns)
{
    for (uint64_t ms = before_ns / PD_MS; ms < self->now_ns / PD_MS && !self->is_quiet_bus; ms++) {
        if (actor_sim_random_chance(&self->random, self->config.fault_permille)) {
            uint32_t victim = actor_sim_random_between(&self->random, 0, PD_GATEWAY - 1);
            pd_world_kill(self, victim,
                          actor_sim_random_us(&self->random, 2000, RESTART_MS * 1000));
        }
        if (self->request_count > 0 &&
            actor_sim_random_chance(&self->random, self->config.cancel_permille)) {
            pd_world_cancel(self,
                            actor_sim_random_between(&self->random, 0, self->request_count - 1));
        }
    }
}

bool
pd_world_advance(pd_world_t *self)
{
    uint32_t actor = PD_GATEWAY;
    uint64_t deadline = first_deadline(self, &actor);
    uint32_t at = first_event(self);
    if (at == UINT32_MAX && deadline == UINT64_MAX) {
        return false;
    }
    uint64_t before_ns = self->now_ns;
    if (at == UINT32_MAX || deadline < self->events[at].at_ns) {
        self->now_ns = deadline > self->now_ns ? deadline : self->now_ns;
        if (actor == PD_GATEWAY) {
            gateway_timer(self);
        } else {
            proto_body_t body = {.timer = {.deadline_ns = deadline}};
            give(self, actor, ACTOR_PEER_LOCAL, PROTO_KIND_TIMER, 0, &body);
        }
    } else {
        pd_event_t event = self->events[at];
        self->events[at] = self->events[--self->event_count];
        self->now_ns = event.at_ns > self->now_ns ? event.at_ns : self->now_ns;
        handle(self, &event);
    }
    harm(self, before_ns);
    return true;
}

sched_figures_t
pd_world_figures(const pd_world_t *self, uint32_t node)
{
    sched_figures_t figures = {0};
    const pd_actor_t *actor = &self->actors[node * PD_MEMBERS + PD_SCHEDULER];
    if (actor->is_alive) {
        sched_core_figures(actor_scheduler_core_library(actor->core), &figures);
    }
    return figures;
}

bool
pd_world_is_settled(pd_world_t *self)
{
    for (uint32_t i = 0; i < PD_ACTOR_COUNT; i++) {
        if (!self->actors[i].is_alive || !self->has_model) {
            return false;
        }
    }
    for (uint32_t i = 0; i < self->request_count; i++) {
        if (self->requests[i].is_open) {
            return false;
        }
    }
    for (uint32_t node = 0; node < PD_NODE_COUNT; node++) {
        sched_figures_t figures = pd_world_figures(self, node);
        if (figures.running_count + figures.waiting_count + figures.held_count +
                    figures.incoming_count + figures.fencing_count + figures.in_flight_count >
                0 ||
            figures.block_count == 0 || figures.free_count + figures.cached_count == 0) {
            return false;
        }
        if (node > 0 &&
            actor_prefill_role_core_count(self->actors[node * PD_MEMBERS + PD_ROLE].core) > 0) {
            return false;
        }
    }
    return actor_decode_role_core_request_count(self->actors[PD_ROLE].core) == 0 &&
           actor_decode_role_core_transfer_count(self->actors[PD_ROLE].core) == 0;
}

/* What is left, for whoever reads of a test that failed. */
void
pd_world_describe(const pd_world_t *self)
{
    for (uint32_t i = 0; i < self->request_count; i++) {
        const pd_request_t *request = &self->requests[i];
        if (request->is_open) {
            (void)fprintf(stderr, "request %u: %u of %u tokens, attempt %u, retry %d\n", i,
                          request->received, request->generation_max, request->attempt_count,
                          request->retry_ns != 0);
        }
    }
    for (uint32_t i = 0; i < PD_ACTOR_COUNT; i++) {
        if (!self->actors[i].is_alive) {
            (void)fprintf(stderr, "actor %u is not there\n", i);
        }
    }
    for (uint32_t node = 0; node < PD_NODE_COUNT; node++) {
        sched_figures_t f = pd_world_figures(self, node);
        (void)fprintf(stderr,
                      "node %u: %u run, %u wait, %u in flight; blocks %u: %u free, %u cached, %u "
                      "held, %u incoming, %u fencing\n",
                      node, f.running_count, f.waiting_count, f.in_flight_count, f.block_count,
                      f.free_count, f.cached_count, f.held_count, f.incoming_count,
                      f.fencing_count);
        const pd_actor_t *role = &self->actors[node * PD_MEMBERS + PD_ROLE];
        if (role->is_alive && node > 0) {
            (void)fprintf(stderr, "  %u transfers\n", actor_prefill_role_core_count(role->core));
        } else if (role->is_alive) {
            (void)fprintf(stderr, "  %u requests, %u transfers\n",
                          actor_decode_role_core_request_count(role->core),
                          actor_decode_role_core_transfer_count(role->core));
        }
    }
}

bool
pd_world_settle(pd_world_t *self, uint64_t limit_ns)
{
    uint64_t until_ns = self->now_ns + limit_ns;
    while (self->now_ns < until_ns) {
        if (pd_world_is_settled(self)) {
            return true;
        }
        if (!pd_world_advance(self)) {
            break;
        }
    }
    bool settled = pd_world_is_settled(self);
    if (!settled) {
        pd_world_describe(self);
    }
    return settled;
}

/* ---- making ---------------------------------------------------------------------------------- */

pd_world_t *
pd_world_new(uint64_t seed, const pd_config_t *config)
{
    pd_world_t *self = calloc(1, sizeof *self);
    require(self != NULL);
    self->config = *config;
    self->config.copy_max_us = config->copy_max_us > 0 ? config->copy_max_us : 500;
    actor_sim_random_init(&self->random, seed, 1);
    self->now_ns = 1000 * PD_MS;
    self->model =
        (actor_sim_model_t){.slot_count = 4,
                            .model_len_max = 96,
                            .step_tokens_max = 16,
                            .vocab_size = 97,
                            .page_tokens = 4,
                            .parent_count = config->parent_count > 0 ? config->parent_count : 65,
                            .overlap = 1,
                            .group_count = 1 + (config->shape > 0 ? 1 : 0),
                            .kinds = {ACTOR_SIM_FULL,
                                      config->shape == 2 ? ACTOR_SIM_STATE : ACTOR_SIM_SLIDING},
                            .granularities = {4, 4},
                            .windows = {0, config->shape == 1 ? 12 : 0},
                            .packings = {1, 1}};
    self->data = pd_data_new();
    require(self->data != NULL);
    for (uint32_t i = 0; i < PD_ACTOR_COUNT; i++) {
        self->actors[i].epoch = 100 * (i + 1);
    }
    for (uint32_t i = 0; i < PD_ACTOR_COUNT; i++) {
        start(self, i);
    }
    return self;
}

void
pd_world_destroy(pd_world_t **self_p)
{
    pd_world_t *self = *self_p;
    for (uint32_t i = 0; i < PD_ACTOR_COUNT; i++) {
        stop_core(self, i);
    }
    for (uint32_t i = 0; i < self->event_count; i++) {
        free(self->events[i].bytes);
    }
    for (uint32_t node = 0; node < PD_NODE_COUNT; node++) {
        actor_sim_device_destroy(&self->devices[node]);
    }
    pd_data_destroy(&self->data);
    free(self);
    *self_p = NULL;
}
