#include "toy_core.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto_require.h"

enum { LAST_MAX = 8 };

struct toy_core {
    uint64_t sum;
    uint64_t count;
    uint64_t deadline_ns;
    uint64_t hidden;        /* in the digest, in no output */
    int32_t last[LAST_MAX]; /* secret */
    uint32_t last_count;
    uint64_t step; /* not saved: of the input in work */
};

toy_wrong_t toy_wrong = TOY_RIGHT;
uint64_t toy_wrong_at = 0;

static bool
is_wrong(const toy_core_t *self, toy_wrong_t how)
{
    return toy_wrong == how && self->step == toy_wrong_at;
}

static void
break_down(const toy_core_t *self)
{
    if (is_wrong(self, TOY_ABORT)) {
        (void)fprintf(stderr, "toy: about to break\n");
        require(self->step != toy_wrong_at);
    }
    if (is_wrong(self, TOY_CRASH)) {
        (void)raise(SIGSEGV);
    }
    if (is_wrong(self, TOY_EXIT)) {
        _exit(3);
    }
    while (is_wrong(self, TOY_HANG)) {
        (void)pause();
    }
}

static void
on_heartbeat(toy_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    self->sum += input->body->heartbeat.progress * 3;
    self->deadline_ns = input->now_ns + 1000;
    self->deadline_ns += is_wrong(self, TOY_DEADLINE) ? 1 : 0;
    proto_body_t body = {.heartbeat = {.progress = self->sum, .step = self->count}};
    body.heartbeat.step += is_wrong(self, TOY_FIELD) ? 1 : 0;
    actor_peer_t to = input->from;
    to.index += is_wrong(self, TOY_TO) ? 1 : 0;
    uint64_t request = input->header->request + (is_wrong(self, TOY_REQUEST) ? 1 : 0);
    if (!is_wrong(self, TOY_MISSING)) {
        if (is_wrong(self, TOY_KIND)) {
            body = (proto_body_t){.bye = {.detail = proto_text("wrong")}};
            actor_outbox_push(outbox, to, PROTO_KIND_BYE, request, &body);
        } else {
            actor_outbox_push(outbox, to, PROTO_KIND_HEARTBEAT, request, &body);
        }
    }
    if (self->count % 5 == 0 || is_wrong(self, TOY_EXTRA)) {
        body = (proto_body_t){.bye = {.detail = proto_text("five")}};
        actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_BYE, 0, &body);
    }
}

static void
on_tokens(toy_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_http_tokens_t *tokens = &input->body->http_tokens;
    self->last_count = tokens->tokens.count < LAST_MAX ? tokens->tokens.count : LAST_MAX;
    for (uint32_t i = 0; i < self->last_count; i++) {
        self->last[i] = tokens->tokens.data[self->last_count - 1 - i];
    }
    if (self->last_count > 1 && is_wrong(self, TOY_COLUMN)) {
        self->last[1]++;
    }
    proto_body_t body = {.http_tokens = {.exchange = tokens->exchange,
                                         .token_index = self->last_count,
                                         .tokens = {self->last, self->last_count}}};
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_HTTP_TOKENS,
                      input->header->request, &body);
}

static void
step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    toy_core_t *self = core;
    self->step = input->sequence;
    self->count++;
    self->hidden = self->hidden * 31 + (uint64_t)input->header->kind + input->from.index;
    self->hidden += is_wrong(self, TOY_SILENT) ? 1 : 0;
    break_down(self);
    if (input->header->kind == PROTO_KIND_HEARTBEAT) {
        on_heartbeat(self, input, outbox);
    } else if (input->header->kind == PROTO_KIND_HTTP_TOKENS) {
        on_tokens(self, input, outbox);
    } else if (input->header->kind == PROTO_KIND_TIMER) {
        self->deadline_ns = UINT64_MAX;
    }
    if (is_wrong(self, TOY_SECRET)) {
        self->last_count = 1;
        self->last[0] = 77;
    }
}

static uint64_t
deadline_ns(const void *core)
{
    return ((const toy_core_t *)core)->deadline_ns;
}

static uint64_t
digest(const void *core)
{
    const toy_core_t *self = core;
    return (self->sum * 1099511628211u) ^ (self->count << 48) ^ self->hidden;
}

static void
save(const void *core, proto_pack_t *state, proto_pack_t *secret)
{
    const toy_core_t *self = core;
    proto_pack_u32(state, 1);
    proto_pack_u64(state, self->sum);
    proto_pack_u64(state, self->count);
    proto_pack_u64(state, self->deadline_ns);
    proto_pack_u64(state, self->hidden);
    proto_pack_u32(state, self->last_count);
    proto_pack_raw(secret, self->last, sizeof self->last);
}

static const actor_core_ops_t ops = {.name = "toy",
                                     .role = PROTO_ROLE_SCHEDULER,
                                     .outbox_size_bytes = 65536,
                                     .outbox_count_max = 8,
                                     .step = step,
                                     .deadline_ns = deadline_ns,
                                     .digest = digest,
                                     .save = save};

toy_core_t *
toy_core_new(void)
{
    toy_core_t *self = calloc(1, sizeof *self);
    require(self != NULL);
    self->deadline_ns = UINT64_MAX;
    return self;
}

void
toy_core_destroy(toy_core_t **self_p)
{
    free(*self_p);
    *self_p = NULL;
}

const actor_core_ops_t *
toy_core_ops(void)
{
    return &ops;
}

/* ---- as a role of replay --------------------------------------------------------------------- */

static proto_status_t
restore(proto_bytes_t state, proto_bytes_t secret, void **core_p, const actor_core_ops_t **ops_p,
        proto_error_t *error)
{
    toy_core_t *self = toy_core_new();
    proto_unpack_t in = {.bytes = state};
    uint32_t version = proto_unpack_u32(&in);
    self->sum = proto_unpack_u64(&in);
    self->count = proto_unpack_u64(&in);
    self->deadline_ns = proto_unpack_u64(&in);
    self->hidden = proto_unpack_u64(&in);
    self->last_count = proto_unpack_u32_max(&in, LAST_MAX);
    proto_status_t status = proto_unpack_end(&in);
    proto_unpack_t hush = {.bytes = secret};
    proto_unpack_raw(&hush, self->last, sizeof self->last);
    if (status == STATUS_OK) {
        status = proto_unpack_end(&hush);
    }
    if (status == STATUS_OK && version != 1) {
        status = STATUS_ERR_VERSION;
    }
    if (status != STATUS_OK) {
        (void)snprintf(error->detail, sizeof error->detail, "no state of a toy");
        toy_core_destroy(&self);
        return status;
    }
    *core_p = self;
    *ops_p = &ops;
    return STATUS_OK;
}

static void
destroy(void *core)
{
    toy_core_t *self = core;
    toy_core_destroy(&self);
}

static void
describe(const void *core, char *out, size_t capacity_bytes)
{
    const toy_core_t *self = core;
    (void)snprintf(out, capacity_bytes, "count: %llu\n", (unsigned long long)self->count);
}

const actor_replay_role_t toy_role = {"scheduler", PROTO_ROLE_SCHEDULER, false, restore, destroy,
                                      describe};
const actor_replay_role_t toy_private_role = {"executor", PROTO_ROLE_EXECUTOR,
                                              true,       restore,
                                              destroy,    NULL};
