#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_shell.h"
#include "bench_actor_step.h"

enum { PROMPT_MAX = 63, FDS_MAX = 16, PATIENCE_S = 60 };

/* A gateway without HTTP: submits what it is told to and counts what ends. */
struct load {
    actor_core_ops_t ops;
    actor_shell_t *shell;
    uint32_t peer;
    bool is_ready;
    uint64_t request_last;
    uint32_t submit_count;
    uint32_t generation;
    uint32_t finished_count;
    uint32_t failed_count;
    uint64_t token_count;
    void (*watch)(void *context);
    void *watch_context;
    int32_t prompt[PROMPT_MAX];
    uint8_t sampling[512];
    uint32_t sampling_size;
};

static void
submit_all(load_t *self, actor_outbox_t *outbox)
{
    for (uint32_t i = 0; i < self->submit_count; i++) {
        /* Different lengths: the requests reach block boundaries in different steps. */
        uint64_t request = ++self->request_last;
        uint32_t length = 1 + (uint32_t)(request * 2654435761u >> 8) % PROMPT_MAX;
        proto_body_t body = {.submit = {.prompt_length = length,
                                        .generation_max = self->generation,
                                        .tokens = {self->prompt, length},
                                        .sampling = {self->sampling, self->sampling_size}}};
        self->prompt[0] = (int32_t)(request % 40000);
        actor_outbox_push(outbox, (actor_peer_t){self->peer}, PROTO_KIND_SUBMIT, request, &body);
    }
    self->submit_count = 0;
}

static void
on_step(void *context, const actor_input_t *input, actor_outbox_t *outbox)
{
    load_t *self = context;
    switch ((int)input->header->kind) {
    case PROTO_KIND_PEER_UP:
        self->peer = input->body->peer_up.peer;
        break;
    case PROTO_KIND_PEER_DOWN:
        die("the scheduler is gone");
        break;
    case PROTO_KIND_MODEL_INFO:
        /* The first one may come before an executor is there. */
        self->is_ready = input->body->model_info.slot_count > 0;
        break;
    case PROTO_KIND_TOKENS:
        self->token_count += input->body->tokens.tokens.count;
        break;
    case PROTO_KIND_FINISHED:
        self->finished_count++;
        if (input->body->finished.reason != PROTO_FINISH_LENGTH) {
            self->failed_count++;
            (void)fprintf(stderr, "a request ended with %u: %.*s\n", input->body->finished.reason,
                          (int)input->body->finished.detail.size_bytes,
                          input->body->finished.detail.data);
        }
        break;
    case PROTO_KIND_TIMER:
        submit_all(self, outbox);
        break;
    default:
        break;
    }
}

static uint64_t
on_deadline(const void *context)
{
    (void)context;
    return UINT64_MAX;
}

static uint64_t
on_digest(const void *context)
{
    (void)context;
    return 0;
}

static void
on_stats(const void *context, proto_stats_t *out)
{
    (void)context;
    (void)out;
}

static void
on_check(const void *context)
{
    (void)context;
}

static void
encode_sampling(load_t *self)
{
    proto_body_t body = {
        .sampling = {
            .temperature = 1, .top_p = 1, .repetition_penalty = 1, .ignore_eos = true, .seed = 1}};
    size_t size = 0;
    size_t blob_size = 0;
    if (proto_body_encode(PROTO_KIND_SAMPLING, &body, self->sampling, sizeof self->sampling, &size,
                          NULL, 0, &blob_size) != STATUS_OK) {
        die("cannot encode the sampling parameters");
    }
    self->sampling_size = (uint32_t)size;
}

load_t *
load_open(const node_t *node)
{
    load_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        die("no memory");
    }
    keys_use(node, "gateway");
    encode_sampling(self);
    self->ops = (actor_core_ops_t){.name = "gateway",
                                   .role = PROTO_ROLE_GATEWAY,
                                   .outbox_size_bytes = BATCH_MAX * 2048,
                                   .outbox_count_max = BATCH_MAX,
                                   .step = on_step,
                                   .deadline_ns = on_deadline,
                                   .digest = on_digest,
                                   .stats = on_stats,
                                   .check = on_check};
    const actor_link_options_t link = {.peer_role = PROTO_ROLE_SCHEDULER,
                                       .endpoint = node->gateway_endpoint,
                                       .queue_len_max = 4 * BATCH_MAX};
    const actor_shell_options_t options = {.name = "gateway",
                                           .epoch = now_ns(),
                                           .ops = &self->ops,
                                           .core = self,
                                           .links = &link,
                                           .link_count = 1,
                                           .ring_fd = -1,
                                           .send_wait_ns = 5000000000u};
    if (actor_shell_new(&options, &self->shell) != STATUS_OK) {
        die("cannot open the gateway's shell");
    }
    return self;
}

void
load_close(load_t *self)
{
    actor_shell_destroy(&self->shell, 0);
    free(self);
}

static void
pump(load_t *self)
{
    uint64_t wait_ns = 0;
    int fds[FDS_MAX];
    struct pollfd polls[FDS_MAX];
    if (actor_shell_service(self->shell, &wait_ns) != STATUS_OK) {
        die("the gateway's shell ended");
    }
    if (wait_ns == 0) {
        return;
    }
    uint32_t count = actor_shell_fds(self->shell, fds, FDS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        polls[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    }
    (void)poll(polls, count, 50);
}

void
load_wait_ready(load_t *self)
{
    uint64_t until_ns = now_ns() + (uint64_t)PATIENCE_S * 1000000000u;
    while (!self->is_ready) {
        pump(self);
        if (now_ns() > until_ns) {
            die("the node does not become ready");
        }
    }
}

void
load_watch(load_t *self, void (*watch)(void *context), void *context)
{
    self->watch = watch;
    self->watch_context = context;
}

void
load_run(load_t *self, uint32_t count, uint32_t generation)
{
    uint64_t until_ns = now_ns() + (uint64_t)PATIENCE_S * 1000000000u;
    proto_body_t timer = {.timer = {.deadline_ns = 0}};
    self->submit_count = count;
    self->generation = generation;
    self->finished_count = 0;
    self->token_count = 0;
    actor_shell_inject(self->shell, PROTO_KIND_TIMER, 0, &timer);
    while (self->finished_count < count) {
        pump(self);
        if (self->watch != NULL) {
            self->watch(self->watch_context);
        }
        if (now_ns() > until_ns) {
            die("the requests do not end");
        }
    }
    if (self->failed_count > 0 || self->token_count != (uint64_t)count * generation) {
        die("requests failed, or tokens are missing");
    }
}
