#include "save_node.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 4, MODEL_LEN = 96, STEP_TOKENS = 24, ROWS = 16, SALT = 5 };

uint32_t
node_draw(node_t *self, uint32_t below)
{
    uint64_t x = self->random.state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ (x >> 31)) % below);
}

/* ---- messages on their way ------------------------------------------------------------------- */

static uint8_t *
copy_bytes(proto_bytes_t bytes)
{
    if (bytes.size_bytes == 0) {
        return NULL;
    }
    size_t size = (bytes.size_bytes + 63) / 64 * 64;
    uint8_t *copy = aligned_alloc(64, size);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, bytes.data, bytes.size_bytes);
    return copy;
}

static void
push(node_queue_t *queue, const actor_emission_t *emission)
{
    ck_assert_uint_lt(queue->count, NODE_QUEUE_MAX);
    queue->items[queue->count++] = (node_message_t){
        .kind = emission->kind,
        .request = emission->request,
        .body = copy_bytes(emission->body),
        .blob = copy_bytes(emission->blob),
        .body_size = emission->body.size_bytes,
        .blob_size = emission->blob.size_bytes,
    };
}

static void
free_message(node_message_t *message)
{
    free(message->body);
    free(message->blob);
}

static node_message_t
pop(node_queue_t *queue)
{
    ck_assert_uint_gt(queue->count, 0);
    node_message_t message = queue->items[0];
    queue->count--;
    memmove(queue->items, queue->items + 1, queue->count * sizeof message);
    return message;
}

static void
clear(node_queue_t *queue)
{
    for (uint32_t i = 0; i < queue->count; i++) {
        free_message(&queue->items[i]);
    }
    queue->count = 0;
}

static void
decode(const node_message_t *message, proto_body_t *out)
{
    ck_assert_int_eq(proto_body_decode(message->kind,
                                       (proto_bytes_t){message->body, message->body_size},
                                       (proto_bytes_t){message->blob, message->blob_size}, out,
                                       NULL),
                     STATUS_OK);
}

/* ---- snapshots and twins --------------------------------------------------------------------- */

void
node_save(const node_actor_t *actor, const void *core, node_snapshot_t *out)
{
    proto_pack_t state = {0};
    proto_pack_t secret = {0};
    actor->ops->save(core, &state, &secret);
    *out = (node_snapshot_t){.state_size = state.size_bytes, .secret_size = secret.size_bytes};
    out->state = malloc(out->state_size + 1);
    out->secret = malloc(out->secret_size + 1);
    ck_assert(out->state != NULL && out->secret != NULL);
    state = (proto_pack_t){.out = out->state, .capacity_bytes = out->state_size};
    secret = (proto_pack_t){.out = out->secret, .capacity_bytes = out->secret_size};
    actor->ops->save(core, &state, &secret);
    ck_assert(proto_pack_is_complete(&state) && proto_pack_is_complete(&secret));
}

void
node_snapshot_free(node_snapshot_t *snapshot)
{
    free(snapshot->state);
    free(snapshot->secret);
}

static void
compare_snapshots(const node_actor_t *actor)
{
    node_snapshot_t a;
    node_snapshot_t b;
    node_save(actor, actor->core, &a);
    node_save(actor, actor->twin, &b);
    ck_assert_uint_eq(a.state_size, b.state_size);
    ck_assert_uint_eq(a.secret_size, b.secret_size);
    /* Page hashes come from tokens: an executor without them makes others. */
    if (!actor->redacted || actor->ops->role == PROTO_ROLE_SCHEDULER) {
        ck_assert_int_eq(memcmp(a.state, b.state, a.state_size), 0);
    }
    if (!actor->redacted) {
        ck_assert_int_eq(memcmp(a.secret, b.secret, a.secret_size), 0);
    }
    node_snapshot_free(&a);
    node_snapshot_free(&b);
}

static void
destroy_core(const node_actor_t *actor, void **core)
{
    if (actor->ops->role == PROTO_ROLE_SCHEDULER) {
        actor_scheduler_core_destroy((actor_scheduler_core_t **)core);
    } else {
        actor_executor_core_destroy((actor_executor_core_t **)core);
    }
}

void
node_twin(node_t *self, node_actor_t *actor, bool redact)
{
    node_snapshot_t snapshot;
    node_save(actor, actor->core, &snapshot);
    if (redact) {
        memset(snapshot.secret, 0, snapshot.secret_size);
    }
    destroy_core(actor, &actor->twin);
    proto_bytes_t state = {snapshot.state, snapshot.state_size};
    proto_bytes_t secret = {snapshot.secret, snapshot.secret_size};
    proto_error_t error = {""};
    proto_status_t status;
    if (actor->ops->role == PROTO_ROLE_SCHEDULER) {
        actor_scheduler_core_t *twin = NULL;
        status = actor_scheduler_core_restore(state, secret, &twin, &error);
        actor->twin = twin;
    } else {
        actor_executor_core_t *twin = NULL;
        status = actor_executor_core_restore(state, secret, &twin, &error);
        actor->twin = twin;
    }
    ck_assert_msg(status == STATUS_OK, "%s: %s", actor->name, error.detail);
    node_snapshot_free(&snapshot);
    actor->redacted = redact;
    compare_snapshots(actor);
    self->restored++;
}

/* A redacted actor knows no tokens and no key: what carries or follows from them may differ. */
static bool
is_comparable(const node_actor_t *actor, proto_kind_t kind)
{
    if (!actor->redacted) {
        return true;
    }
    return kind != PROTO_KIND_ADMIT && kind != PROTO_KIND_SLOT_SETUP &&
           kind != PROTO_KIND_STEP_LAUNCH && kind != PROTO_KIND_STEP_RESULT &&
           kind != PROTO_KIND_EXECUTOR_INFO && kind != PROTO_KIND_MODEL_INFO;
}

static bool
same_bytes(proto_bytes_t a, proto_bytes_t b)
{
    return a.size_bytes == b.size_bytes &&
           (a.size_bytes == 0 || memcmp(a.data, b.data, a.size_bytes) == 0);
}

static void
compare_outputs(const node_actor_t *actor)
{
    uint32_t count = actor_outbox_count(actor->outbox);
    ck_assert_uint_eq(actor_outbox_count(actor->twin_outbox), count);
    for (uint32_t i = 0; i < count; i++) {
        const actor_emission_t *a = actor_outbox_at(actor->outbox, i);
        const actor_emission_t *b = actor_outbox_at(actor->twin_outbox, i);
        ck_assert_int_eq(a->kind, b->kind);
        ck_assert_uint_eq(a->to.index, b->to.index);
        ck_assert_uint_eq(a->request, b->request);
        ck_assert_uint_eq(a->body.size_bytes, b->body.size_bytes);
        ck_assert_uint_eq(a->blob.size_bytes, b->blob.size_bytes);
        if (is_comparable(actor, a->kind)) {
            ck_assert_msg(same_bytes(a->body, b->body) && same_bytes(a->blob, b->blob),
                          "%s: %s differs", actor->name, proto_kind_name(a->kind));
        }
    }
    ck_assert_uint_eq(actor->ops->deadline_ns(actor->core), actor->ops->deadline_ns(actor->twin));
    if (!actor->redacted || actor->ops->role == PROTO_ROLE_SCHEDULER) {
        ck_assert_uint_eq(actor->ops->digest(actor->core), actor->ops->digest(actor->twin));
    }
    proto_stats_t stats = {0};
    proto_stats_t twin_stats = {0};
    actor->ops->stats(actor->core, &stats);
    actor->ops->stats(actor->twin, &twin_stats);
    ck_assert_int_eq(memcmp(&stats, &twin_stats, sizeof stats), 0);
}

static void
fold(node_t *self, const void *data, size_t size_bytes)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size_bytes; i++) {
        self->trace = (self->trace ^ bytes[i]) * 0x100000001b3u;
    }
}

static void
fold_outputs(node_t *self, const node_actor_t *actor)
{
    for (uint32_t i = 0; i < actor_outbox_count(actor->outbox); i++) {
        const actor_emission_t *emission = actor_outbox_at(actor->outbox, i);
        fold(self, &emission->kind, sizeof emission->kind);
        fold(self, &emission->to.index, sizeof emission->to.index);
        fold(self, &emission->request, sizeof emission->request);
        fold(self, emission->body.data, emission->body.size_bytes);
        fold(self, emission->blob.data, emission->blob.size_bytes);
    }
    uint64_t digest = actor->ops->digest(actor->core);
    uint64_t deadline = actor->ops->deadline_ns(actor->core);
    fold(self, &digest, sizeof digest);
    fold(self, &deadline, sizeof deadline);
}

/* ---- one input ------------------------------------------------------------------------------- */

static void route(node_t *self, const node_actor_t *actor, const actor_emission_t *emission);

static void
give(node_t *self, node_actor_t *actor, uint32_t from, proto_kind_t kind, uint64_t request,
     const proto_body_t *body)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .sequence = ++actor->sequence,
                             .request = request};
    actor_input_t input = {.now_ns = self->now_ns,
                           .sequence = actor->sequence,
                           .from = {from},
                           .header = &header,
                           .body = body};
    actor_outbox_clear(actor->outbox);
    actor->ops->step(actor->core, &input, actor->outbox);
    actor->ops->check(actor->core);
    fold_outputs(self, actor);
    if (actor->twin != NULL) {
        actor_outbox_clear(actor->twin_outbox);
        actor->ops->step(actor->twin, &input, actor->twin_outbox);
        actor->ops->check(actor->twin);
        compare_outputs(actor);
        if (actor->sequence % 16 == 0) {
            compare_snapshots(actor);
        }
    }
    for (uint32_t i = 0; i < actor_outbox_count(actor->outbox); i++) {
        route(self, actor, actor_outbox_at(actor->outbox, i));
    }
}

static void
on_tokens(node_t *self, const proto_tokens_t *tokens)
{
    for (uint32_t r = 0; r < tokens->requests.count; r++) {
        uint64_t id = tokens->requests.data[r];
        ck_assert(id >= 1 && id <= self->request_count);
        node_request_t *request = &self->requests[id - 1];
        ck_assert_uint_eq(request->ends, 0);
        ck_assert_uint_eq(tokens->token_indices.data[r], request->received);
        request->received += tokens->token_counts.data[r];
    }
}

static void
route(node_t *self, const node_actor_t *actor, const actor_emission_t *emission)
{
    proto_body_t body;
    if (actor == &self->executor) {
        if (emission->to.index == NODE_SCHEDULER) {
            self->refused_plans += emission->kind == PROTO_KIND_PLAN_REFUSED ? 1 : 0;
            push(&self->scheduler.inbox, emission);
        } else if (emission->kind == PROTO_KIND_COMPLAINT) {
            self->complaints++;
        } else if (emission->kind != PROTO_KIND_NAK) {
            push(&self->device, emission);
        }
        return;
    }
    if (emission->to.index == NODE_EXECUTOR) {
        push(&self->executor.inbox, emission);
    } else if (emission->to.index != ACTOR_PEER_LOCAL) {
        ck_assert_int_eq(proto_body_decode(emission->kind, emission->body, emission->blob, &body,
                                           NULL),
                         STATUS_OK);
        if (emission->kind == PROTO_KIND_TOKENS) {
            on_tokens(self, &body.tokens);
        } else if (emission->kind == PROTO_KIND_FINISHED) {
            ck_assert_uint_le(emission->request, self->request_count);
            ck_assert_uint_eq(++self->requests[emission->request - 1].ends, 1);
        }
    }
}

/* ---- the device ------------------------------------------------------------------------------ */

static void
device_ready(node_t *self, const node_options_t *options)
{
    static const uint32_t kinds[] = {0, 1};
    static const uint32_t granularities[] = {4, 2};
    static const uint32_t windows[] = {0, 9};
    static const uint32_t packings[] = {1, 4};
    static const uint8_t key[PROTO_HASH_SIZE_BYTES] = {7, 7, 7};
    uint32_t groups = options->sliding ? 2 : 1;
    proto_body_t body = {.device_ready = {.model_name = proto_text("toy"),
                                          .fingerprint = proto_text("model=1;"),
                                          .vocab_size = NODE_VOCAB,
                                          .model_len_max = MODEL_LEN,
                                          .slot_count = SLOTS,
                                          .step_tokens_max = STEP_TOKENS,
                                          .decode_width = 1,
                                          .overlap_depth_max = options->separate_gpu ? 0 : 1,
                                          .prefix_granularity = NODE_PAGE,
                                          .parent_count = options->sliding ? 60 : 40,
                                          .group_kinds = {kinds, groups},
                                          .group_granularities = {granularities, groups},
                                          .group_windows = {windows, groups},
                                          .group_packings = {packings, groups},
                                          .page_hash_key = {key, sizeof key}}};
    give(self, &self->executor, ACTOR_PEER_LOCAL, PROTO_KIND_DEVICE_READY, 0, &body);
}

static void
end_step(node_t *self, const proto_step_launch_t *launch)
{
    uint8_t counts[ROWS] = {0};
    uint8_t flags[ROWS] = {0};
    uint8_t widths[ROWS] = {0};
    int32_t tokens[ROWS] = {0};
    uint32_t rows = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < launch->extend_slots.count; i++) {
        counts[rows++] = launch->extend_samples.data[i];
    }
    for (uint32_t i = 0; i < launch->decode_slots.count; i++) {
        counts[rows++] = 1;
    }
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t luck = node_draw(self, 60);
        flags[r] = luck == 0 ? PROTO_ROW_STOP_TOKEN : luck == 1 ? PROTO_ROW_NAN : 0;
        flags[r] = counts[r] == 0 ? 0 : flags[r];
        counts[r] = flags[r] == PROTO_ROW_NAN ? 0 : counts[r];
        for (uint32_t k = 0; k < counts[r]; k++) {
            tokens[count++] = (int32_t)node_draw(self, NODE_VOCAB);
        }
    }
    proto_body_t body = {.step_done = {.step = launch->step,
                                       .mode = launch->extend_slots.count > 0
                                                   ? PROTO_STEP_EXTEND
                                                   : PROTO_STEP_DECODE_EAGER,
                                       .duration_ns = 1000 + node_draw(self, 5000),
                                       .token_counts = {counts, rows},
                                       .row_flags = {flags, rows},
                                       .tokens = {tokens, count},
                                       .logprob_widths = {widths, rows}}};
    give(self, &self->executor, ACTOR_PEER_LOCAL, PROTO_KIND_STEP_DONE, 0, &body);
}

static void
device_step(node_t *self, const node_options_t *options)
{
    node_message_t message = pop(&self->device);
    proto_body_t body;
    decode(&message, &body);
    if (message.kind == PROTO_KIND_STEP_LAUNCH) {
        end_step(self, &body.step_launch);
    } else if (message.kind == PROTO_KIND_DEVICE_RESET) {
        device_ready(self, options);
    } else {
        ck_assert_int_eq(message.kind, PROTO_KIND_SLOT_SETUP);
    }
    free_message(&message);
}

/* ---- links ----------------------------------------------------------------------------------- */

static void
peer_up(node_t *self, node_actor_t *actor, uint32_t peer, proto_role_t role, uint64_t epoch)
{
    proto_body_t body = {
        .peer_up = {.peer = peer, .role = role, .name = proto_text("peer"), .epoch = epoch}};
    give(self, actor, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_UP, 0, &body);
}

static void
peer_down(node_t *self, node_actor_t *actor, uint32_t peer, proto_role_t role, uint64_t epoch)
{
    proto_body_t body = {
        .peer_down = {.peer = peer, .role = role, .epoch = epoch, .detail = proto_text("gone")}};
    give(self, actor, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_DOWN, 0, &body);
}

/* The link between the two breaks and comes again; what was on its way is lost. */
static void
relink(node_t *self)
{
    peer_down(self, &self->scheduler, NODE_EXECUTOR, PROTO_ROLE_EXECUTOR, self->executor_epoch);
    peer_down(self, &self->executor, NODE_SCHEDULER, PROTO_ROLE_SCHEDULER, self->scheduler_epoch);
    clear(&self->scheduler.inbox);
    clear(&self->executor.inbox);
    self->executor_epoch = ++self->epoch;
    self->scheduler_epoch = ++self->epoch;
    peer_up(self, &self->scheduler, NODE_EXECUTOR, PROTO_ROLE_EXECUTOR, self->executor_epoch);
    peer_up(self, &self->executor, NODE_SCHEDULER, PROTO_ROLE_SCHEDULER, self->scheduler_epoch);
}

static void
restart_gateway(node_t *self, uint32_t gateway)
{
    if (self->gateway_epochs[gateway] != 0) {
        peer_down(self, &self->scheduler, gateway, PROTO_ROLE_GATEWAY,
                  self->gateway_epochs[gateway]);
    }
    self->gateway_epochs[gateway] = ++self->epoch;
    peer_up(self, &self->scheduler, gateway, PROTO_ROLE_GATEWAY, self->gateway_epochs[gateway]);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void
submit(node_t *self)
{
    uint32_t gateway = 1 + node_draw(self, NODE_GATEWAYS);
    if (self->request_count == NODE_REQUESTS_MAX || self->gateway_epochs[gateway] == 0) {
        return;
    }
    node_request_t *request = &self->requests[self->request_count++];
    request->gateway = gateway;
    request->owner_epoch = self->gateway_epochs[gateway];
    uint32_t length = 1 + node_draw(self, 40);
    uint32_t family = node_draw(self, 3);
    uint32_t shared = node_draw(self, 40);
    int32_t tokens[64];
    uint8_t hashes[16 * PROTO_HASH_SIZE_BYTES];
    uint8_t key[PROTO_HASH_SIZE_BYTES] = {7, 7, 7};
    uint8_t salt[SALT] = "salt";
    uint8_t encoded[512];
    size_t size = 0;
    for (uint32_t i = 0; i < length; i++) {
        uint32_t of = i < shared ? family : 100 + self->request_count;
        tokens[i] = (int32_t)((of * 31 + i * 7) % NODE_VOCAB);
    }
    uint32_t pages = node_draw(self, 8) == 0 ? 0 : length / NODE_PAGE;
    for (uint32_t p = 0; p < pages; p++) {
        uint8_t *hash = hashes + (size_t)p * PROTO_HASH_SIZE_BYTES;
        proto_page_hash(key, p > 0 ? hash - PROTO_HASH_SIZE_BYTES : NULL,
                        (proto_bytes_t){salt, SALT}, tokens + (size_t)p * NODE_PAGE, NODE_PAGE,
                        hash);
    }
    proto_body_t sampling = {.sampling = {.temperature = 0.5,
                                          .top_p = 1,
                                          .repetition_penalty = 1,
                                          .prompt_length = length,
                                          .seed = self->request_count,
                                          .page_salt = {salt, SALT}}};
    size_t blob_size = 0;
    ck_assert_int_eq(proto_body_encode(PROTO_KIND_SAMPLING, &sampling, encoded, sizeof encoded,
                                       &size, NULL, 0, &blob_size),
                     STATUS_OK);
    proto_body_t body = {.submit = {.prompt_length = length,
                                    .generation_max = 1 + node_draw(self, 30),
                                    .priority = (int64_t)node_draw(self, 3),
                                    .queue_timeout_ns = node_draw(self, 6) == 0 ? 20000000 : 0,
                                    .page_hashes = {hashes, (size_t)pages * PROTO_HASH_SIZE_BYTES},
                                    .tokens = {tokens, length},
                                    .sampling = {encoded, (uint32_t)size}}};
    give(self, &self->scheduler, gateway, PROTO_KIND_SUBMIT, self->request_count, &body);
}

static void
finish(node_t *self)
{
    if (self->request_count == 0) {
        return;
    }
    uint32_t index = node_draw(self, self->request_count);
    const node_request_t *request = &self->requests[index];
    proto_body_t body = {
        .finish = {.token_index = node_draw(self, request->received + 1),
                   .reason = node_draw(self, 2) == 0 ? PROTO_FINISH_STOP : PROTO_FINISH_CANCELLED}};
    give(self, &self->scheduler, request->gateway, PROTO_KIND_FINISH, index + 1, &body);
}

/* ---- time and deliveries --------------------------------------------------------------------- */

static void
deliver(node_t *self, node_actor_t *actor, const node_options_t *options)
{
    bool to_executor = actor == &self->executor;
    node_message_t message = pop(&actor->inbox);
    proto_body_t body;
    decode(&message, &body);
    if (to_executor && message.kind == PROTO_KIND_PLAN &&
        node_draw(self, 100) < options->damage_percent) {
        body.plan.width = 3; /* no executor was built for it */
    }
    if (message.kind == PROTO_KIND_STEP_RESULT && node_draw(self, 1000) < options->fault_permille) {
        body.step_result.step += 7; /* an executor that breaks the protocol is attached anew */
    }
    give(self, actor, to_executor ? NODE_SCHEDULER : NODE_EXECUTOR, message.kind, message.request,
         &body);
    free_message(&message);
}

static void
tick(node_t *self)
{
    if (self->scheduler.ops->deadline_ns(self->scheduler.core) <= self->now_ns) {
        proto_body_t body = {0};
        give(self, &self->scheduler, ACTOR_PEER_LOCAL, PROTO_KIND_TIMER, 0, &body);
    }
}

static bool
work(node_t *self, const node_options_t *options)
{
    node_queue_t *queues[] = {&self->scheduler.inbox, &self->executor.inbox, &self->device};
    uint32_t first = node_draw(self, 3);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t which = (first + i) % 3;
        if (queues[which]->count == 0) {
            continue;
        }
        if (which == 2) {
            device_step(self, options);
        } else {
            deliver(self, which == 0 ? &self->scheduler : &self->executor, options);
        }
        return true;
    }
    return false;
}

void
node_step(node_t *self, const node_options_t *options)
{
    self->now_ns += node_draw(self, 2000000);
    uint32_t what = node_draw(self, 1000);
    if (what < 150) {
        submit(self);
    } else if (what < 190) {
        finish(self);
    } else if (what < 194) {
        relink(self);
    } else if (what < 198) {
        restart_gateway(self, 1 + node_draw(self, NODE_GATEWAYS));
    } else if (what < 230 && !options->alone) {
        node_twin(self, &self->scheduler, options->redact);
    } else if (what < 260 && !options->alone) {
        node_twin(self, &self->executor, options->redact);
    } else {
        (void)work(self, options);
    }
    tick(self);
}

void
node_settle(node_t *self, const node_options_t *options)
{
    node_options_t calm = *options;
    calm.damage_percent = 0;
    calm.fault_permille = 0;
    uint32_t quiet = 0;
    for (uint32_t round = 0; quiet < 3; round++) {
        ck_assert_uint_lt(round, 100000);
        bool moved = work(self, &calm);
        uint64_t deadline = self->scheduler.ops->deadline_ns(self->scheduler.core);
        if (!moved && deadline != UINT64_MAX) {
            self->now_ns = deadline > self->now_ns ? deadline : self->now_ns;
            tick(self);
        }
        quiet = moved || deadline != UINT64_MAX ? 0 : quiet + 1;
        if (round % 50 == 0 && !options->alone) {
            node_twin(self, &self->scheduler, options->redact);
            node_twin(self, &self->executor, options->redact);
        }
    }
    ck_assert(self->scheduler.ops->idle(self->scheduler.core));
    for (uint32_t i = 0; i < self->request_count; i++) {
        const node_request_t *request = &self->requests[i];
        if (request->owner_epoch == self->gateway_epochs[request->gateway]) {
            ck_assert_uint_eq(request->ends, 1);
        }
    }
}

/* One input whose outputs nobody gets. */
static void
drop(const node_t *self, node_actor_t *actor, uint32_t from, proto_kind_t kind,
     const proto_body_t *body)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .sequence = 1,
                             .request = 1};
    actor_input_t input = {
        .now_ns = self->now_ns, .sequence = 1, .from = {from}, .header = &header, .body = body};
    actor_outbox_clear(actor->outbox);
    actor->ops->step(actor->core, &input, actor->outbox);
    actor_outbox_clear(actor->outbox);
}

void
node_drive(const node_actor_t *actor, void *core)
{
    node_actor_t other = {.ops = actor->ops, .core = core, .outbox = actor->outbox};
    static node_t nowhere; /* its queues stay empty: every emission is dropped */
    nowhere.now_ns = 900000000000;
    bool schedules = actor->ops->role == PROTO_ROLE_SCHEDULER;
    proto_body_t timer = {0};
    drop(&nowhere, &other, ACTOR_PEER_LOCAL, PROTO_KIND_TIMER, &timer);
    const node_queue_t *inbox = &actor->inbox;
    for (uint32_t i = 0; i < inbox->count; i++) {
        proto_body_t body;
        decode(&inbox->items[i], &body);
        drop(&nowhere, &other, schedules ? NODE_EXECUTOR : NODE_SCHEDULER, inbox->items[i].kind,
             &body);
    }
    proto_body_t up = {.peer_up = {.peer = schedules ? NODE_EXECUTOR : NODE_SCHEDULER,
                                   .role = schedules ? PROTO_ROLE_EXECUTOR : PROTO_ROLE_SCHEDULER,
                                   .name = proto_text("peer"),
                                   .epoch = UINT64_MAX}};
    drop(&nowhere, &other, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_UP, &up);
    proto_body_t down = {.peer_down = {.peer = up.peer_up.peer,
                                       .role = up.peer_up.role,
                                       .epoch = UINT64_MAX,
                                       .detail = proto_text("gone")}};
    drop(&nowhere, &other, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_DOWN, &down);
}

void
node_end(node_t *self, const node_options_t *options)
{
    proto_body_t drain = {0};
    give(self, &self->scheduler, ACTOR_PEER_LOCAL, PROTO_KIND_DRAIN, 0, &drain);
    give(self, &self->executor, ACTOR_PEER_LOCAL, PROTO_KIND_DRAIN, 0, &drain);
    if (!options->alone) {
        node_twin(self, &self->scheduler, options->redact);
        node_twin(self, &self->executor, options->redact);
    }
    submit(self);
    proto_body_t failed = {
        .device_failed = {.status = STATUS_ERR_DEVICE, .detail = proto_text("it broke")}};
    give(self, &self->executor, ACTOR_PEER_LOCAL, PROTO_KIND_DEVICE_FAILED, 0, &failed);
    if (!options->alone) {
        node_twin(self, &self->executor, options->redact);
    }
    relink(self);
}

/* ---- making ---------------------------------------------------------------------------------- */

void
node_open(node_t *self, uint64_t seed, const node_options_t *options)
{
    memset(self, 0, sizeof *self);
    self->random.state = seed * 2654435761u + 1;
    self->now_ns = 1000000;
    actor_scheduler_core_options_t scheduler = {.slot_count_max = SLOTS,
                                                .queue_len_max = 12,
                                                .store_size_bytes = 65536,
                                                .load_interval_ns = 3000000,
                                                .no_overlap = node_draw(self, 4) == 0,
                                                .no_prefix_cache = node_draw(self, 6) == 0};
    actor_executor_core_options_t executor = {.slot_count_max = SLOTS,
                                              .model_len_max = MODEL_LEN,
                                              .step_tokens_max = STEP_TOKENS,
                                              .bad_plans_max = 3};
    actor_scheduler_core_t *s = NULL;
    actor_executor_core_t *e = NULL;
    ck_assert_int_eq(actor_scheduler_core_new(&scheduler, &s), STATUS_OK);
    ck_assert_int_eq(actor_executor_core_new(&executor, &e), STATUS_OK);
    self->scheduler = (node_actor_t){.name = "scheduler", .core = s};
    self->executor = (node_actor_t){.name = "executor", .core = e};
    self->scheduler.ops = actor_scheduler_core_ops(s);
    self->executor.ops = actor_executor_core_ops(e);
    node_actor_t *actors[] = {&self->scheduler, &self->executor};
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_int_eq(actor_outbox_new(actors[i]->ops, &actors[i]->outbox), STATUS_OK);
        ck_assert_int_eq(actor_outbox_new(actors[i]->ops, &actors[i]->twin_outbox), STATUS_OK);
    }
    if (!options->alone) {
        /* Snapshots of cores that hold nothing yet are snapshots too. */
        node_twin(self, &self->scheduler, options->redact);
        node_twin(self, &self->executor, options->redact);
    }
    for (uint32_t gateway = 1; gateway <= NODE_GATEWAYS; gateway++) {
        restart_gateway(self, gateway);
    }
    relink(self);
    device_ready(self, options);
}

void
node_close(node_t *self)
{
    node_actor_t *actors[] = {&self->scheduler, &self->executor};
    for (uint32_t i = 0; i < 2; i++) {
        clear(&actors[i]->inbox);
        destroy_core(actors[i], &actors[i]->twin);
        destroy_core(actors[i], &actors[i]->core);
        actor_outbox_destroy(&actors[i]->outbox);
        actor_outbox_destroy(&actors[i]->twin_outbox);
    }
    clear(&self->device);
}
