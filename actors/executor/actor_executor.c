#include "actor_executor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "actor_executor_core.h"
#include "actor_executor_device.h"
#include "actor_executor_kv.h"
#include "actor_exit.h"
#include "actor_log.h"
#include "actor_shell.h"
#include "proto_clock.h"
#include "proto_require.h"

static const uint64_t LINGER_NS = 500000000u;

typedef struct {
    actor_executor_options_t options;
    actor_executor_core_t *core;
    const actor_core_ops_t *core_ops;
    actor_core_ops_t ops; /* the core's, with the layer added to its progress */
    actor_executor_device_t *device;
    actor_shell_t *shell;
    uint8_t page_hash_key[PROTO_HASH_SIZE_BYTES]; /* drawn at start unless one is given */
    actor_executor_kv_t *kv; /* room for a registration; NULL = the cache is not shared */
    uint32_t kv_peer;        /* link to a kv-transfer; ACTOR_PEER_NONE = there is none */
    bool is_loaded;
    bool is_failed;
    proto_status_t failure;
} executor_t;

/* ---- the core's operations, with what only the device knows ---------------------------------- */

static void
register_cache(executor_t *self)
{
    const run_executor_t *run = actor_executor_device_run(self->device);
    if (self->kv == NULL || !self->is_loaded || self->kv_peer == ACTOR_PEER_NONE || run == NULL) {
        return;
    }
    proto_body_t body;
    proto_status_t status = actor_executor_kv_describe(self->kv, run, &body.kv_arena);
    if (status != STATUS_OK) {
        actor_log(ACTOR_LOG_ERROR, "executor.kv", 0, NULL,
                  "the cache cannot be registered for transfers: %s", proto_status_text(status));
        return;
    }
    /* Queued until this step's messages are out. */
    actor_shell_inject(self->shell, PROTO_KIND_KV_ARENA, self->kv_peer, &body);
}

/* What the core needs no state for: whether there is something to register, and where. */
static void
watch_kv(executor_t *self, const actor_input_t *input)
{
    bool is_local = input->from.index == ACTOR_PEER_LOCAL;
    const proto_body_t *body = input->body;
    if (is_local && input->header->kind == PROTO_KIND_PEER_UP &&
        body->peer_up.role == PROTO_ROLE_KV_TRANSFER) {
        self->kv_peer = body->peer_up.peer;
        register_cache(self);
    } else if (is_local && input->header->kind == PROTO_KIND_PEER_DOWN &&
               body->peer_down.peer == self->kv_peer) {
        self->kv_peer = ACTOR_PEER_NONE;
    } else if (is_local && input->header->kind == PROTO_KIND_DEVICE_READY && !self->is_loaded) {
        self->is_loaded = true;
        register_cache(self);
    } else if (!is_local && input->header->kind == PROTO_KIND_NAK &&
               input->from.index == self->kv_peer) {
        actor_log(ACTOR_LOG_ERROR, "executor.kv", 0, NULL,
                  "the kv-transfer refuses the cache: %.*s", (int)body->nak.detail.size_bytes,
                  body->nak.detail.data);
    }
}

static void
ops_step(void *context, const actor_input_t *input, actor_outbox_t *outbox)
{
    executor_t *self = context;
    watch_kv(self, input);
    if (self->options.on_input == NULL) {
        self->core_ops->step(self->core, input, outbox);
        return;
    }
    const proto_clock_t *clock = proto_clock_system();
    uint64_t begin_ns = proto_clock_monotonic_ns(clock);
    self->core_ops->step(self->core, input, outbox);
    self->options.on_input(self->options.on_input_context, input,
                           proto_clock_monotonic_ns(clock) - begin_ns);
}

static uint64_t
ops_deadline_ns(const void *context)
{
    const executor_t *self = context;
    return self->core_ops->deadline_ns(self->core);
}

static uint64_t
ops_digest(const void *context)
{
    const executor_t *self = context;
    return self->core_ops->digest(self->core);
}

static void
ops_stats(const void *context, proto_stats_t *out)
{
    const executor_t *self = context;
    self->core_ops->stats(self->core, out);
}

static void
ops_progress(const void *context, uint64_t now_ns, proto_heartbeat_t *out)
{
    const executor_t *self = context;
    self->core_ops->progress(self->core, now_ns, out);
    if (out->step != 0) {
        out->layer = actor_executor_device_layer(self->device) & 65535;
    }
}

static void
ops_check(const void *context)
{
    const executor_t *self = context;
    self->core_ops->check(self->core);
}

static bool
ops_idle(const void *context)
{
    const executor_t *self = context;
    return self->core_ops->idle(self->core);
}

static void
ops_save(const void *context, proto_pack_t *state, proto_pack_t *secret)
{
    const executor_t *self = context;
    self->core_ops->save(self->core, state, secret);
}

static void
make_ops(executor_t *self)
{
    self->ops = *self->core_ops;
    self->ops.step = ops_step;
    self->ops.deadline_ns = ops_deadline_ns;
    self->ops.digest = ops_digest;
    self->ops.stats = ops_stats;
    self->ops.progress = ops_progress;
    self->ops.check = ops_check;
    self->ops.idle = ops_idle;
    self->ops.save = ops_save;
}

/* ---- what the core tells its shell ----------------------------------------------------------- */

static void
fail(executor_t *self, proto_status_t status, proto_text_t detail)
{
    self->is_failed = true;
    self->failure = status;
    bool is_config = status == STATUS_ERR_CONFIG || status == STATUS_ERR_MALFORMED ||
                     status == STATUS_ERR_UNSUPPORTED || status == STATUS_ERR_NOT_FOUND;
    const char *event = is_config ? "device.config" : "device.failed";
    actor_log(ACTOR_LOG_ERROR, event, 0,
              ACTOR_LOG_FIELDS(actor_log_str("status", proto_status_name(status))), "%s: %.*s",
              is_config ? "cannot start the device" : "device failed", (int)detail.size_bytes,
              detail.data);
    char text[256];
    (void)snprintf(text, sizeof text, "%.*s", (int)detail.size_bytes, detail.data);
    actor_shell_report(self->shell, ACTOR_STATE_FAILING, 0, 0, text);
    actor_shell_stop(self->shell);
}

/* Whose candidates count.  At once, past the queue: a step may be waiting for the one that left. */
static void
admit_drafter(executor_t *self, const actor_emission_t *emission)
{
    proto_body_t body;
    proto_status_t status =
        proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL);
    require(status == STATUS_OK);
    uint64_t epoch = body.draft_open.epoch;
    actor_executor_device_admit_drafter(self->device, epoch);
    actor_log(ACTOR_LOG_INFO, epoch != 0 ? "executor.drafter" : "executor.no_drafter", 0,
              ACTOR_LOG_FIELDS(actor_log_u64("drafter_epoch", epoch)),
              epoch != 0 ? "a drafter proposes candidates from now on"
                         : "the drafter is gone; decoding goes on without candidates");
}

static void
on_local(void *context, const actor_emission_t *emission)
{
    executor_t *self = context;
    if (emission->kind == PROTO_KIND_DRAFT_OPEN) {
        admit_drafter(self, emission);
        return;
    }
    if (emission->kind != PROTO_KIND_NAK && emission->kind != PROTO_KIND_DEVICE_FAILED) {
        if (actor_executor_device_push(self->device, emission) != STATUS_OK && !self->is_failed) {
            fail(self, STATUS_ERR_DEVICE, proto_text("the device takes no more commands"));
        }
        return;
    }
    proto_body_t body;
    proto_status_t status =
        proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL);
    require(status == STATUS_OK);
    if (emission->kind == PROTO_KIND_NAK) {
        actor_log(ACTOR_LOG_WARN, "executor.dropped", emission->request, NULL, "%.*s",
                  (int)body.nak.detail.size_bytes, body.nak.detail.data);
    } else if (!self->is_failed) {
        fail(self, (proto_status_t)body.device_failed.status, body.device_failed.detail);
    }
}

/* What an operator asks for goes past the core: it changes neither plans nor tokens. */
static void
on_command(void *context, uint64_t number, const proto_command_t *command)
{
    executor_t *self = context;
    actor_executor_device_ask(self->device, number, actor_executor_wish_of(command));
}

/* ---- running --------------------------------------------------------------------------------- */

/* A key of this run alone: who sees page hashes in a log cannot test guesses of a prompt. */
static void
draw_page_hash_key(executor_t *self)
{
    if (self->options.run.page_hash_key != NULL) {
        return;
    }
    size_t at = 0;
    while (at < sizeof self->page_hash_key) {
        ssize_t got = getrandom(self->page_hash_key + at, sizeof self->page_hash_key - at, 0);
        require(got > 0 || errno == EINTR);
        at += got > 0 ? (size_t)got : 0;
    }
    self->options.run.page_hash_key = self->page_hash_key;
}

/* The null device takes the sizes that are given for the real one. */
static void
fill_null_options(actor_executor_options_t *options)
{
    actor_executor_null_options_t *null = &options->null;
    const run_executor_options_t *run = &options->run;
    null->slot_count = null->slot_count != 0 ? null->slot_count : run->slot_count;
    null->model_len_max = null->model_len_max != 0 ? null->model_len_max : run->model_len_max;
    null->step_tokens_max =
        null->step_tokens_max != 0 ? null->step_tokens_max : run->step_tokens_max;
    null->block_granularity =
        null->block_granularity != 0 ? null->block_granularity : run->block_granularity;
    null->decode_width = null->decode_width != 0 ? null->decode_width : run->width;
    null->page_hash_key = null->page_hash_key != NULL ? null->page_hash_key : run->page_hash_key;
}

static proto_status_t
open_core(executor_t *self)
{
    const actor_executor_options_t *options = &self->options;
    actor_executor_core_options_t limits = {
        .slot_count_max = options->run.slot_count,
        .model_len_max = options->run.model_len_max,
        .step_tokens_max = options->run.step_tokens_max,
        .bad_plans_max = options->bad_plans_max,
        .draft_ring = options->null_device ? NULL : options->run.draft_ring_path,
        .draft_ring_id = options->run.draft_ring_id,
    };
    if (options->null_device) {
        limits.slot_count_max = options->null.slot_count;
        limits.model_len_max = options->null.model_len_max;
        limits.step_tokens_max = options->null.step_tokens_max;
    }
    proto_status_t status = actor_executor_core_new(&limits, &self->core);
    if (status != STATUS_OK) {
        actor_log(ACTOR_LOG_ERROR, "executor.config", 0, NULL,
                  "a limit is too large: %u requests (at most %d), %u tokens of a request, "
                  "%u tokens of a step (at most %d)",
                  limits.slot_count_max, PROTO_ROWS_MAX, limits.model_len_max,
                  limits.step_tokens_max, PROTO_TOKENS_MAX);
        return status;
    }
    self->core_ops = actor_executor_core_ops(self->core);
    make_ops(self);
    return STATUS_OK;
}

static proto_status_t
open_shell(executor_t *self, const actor_executor_options_t *options)
{
    actor_link_options_t links[3] = {{.peer_role = PROTO_ROLE_SCHEDULER,
                                      .endpoint = options->scheduler_endpoint,
                                      .bind = options->bind,
                                      .fingerprint = options->fingerprint}};
    uint32_t link_count = 1;
    if (options->drafter_endpoint != NULL) {
        links[link_count++] = (actor_link_options_t){.peer_role = PROTO_ROLE_DRAFTER,
                                                     .endpoint = options->drafter_endpoint,
                                                     .bind = true};
    }
    if (options->kv_endpoint != NULL) {
        links[link_count++] = (actor_link_options_t){.peer_role = PROTO_ROLE_KV_TRANSFER,
                                                     .endpoint = options->kv_endpoint};
    }
    const proto_clock_t *clock = proto_clock_system();
    actor_shell_options_t shell = {.name = options->name != NULL ? options->name : "executor",
                                   .epoch = options->epoch != 0 ? options->epoch
                                                                : proto_clock_realtime_ns(clock),
                                   .ops = &self->ops,
                                   .core = self,
                                   .links = links,
                                   .link_count = link_count,
                                   .supervisor_endpoint = options->supervisor_endpoint,
                                   .ring_fd = options->ring_fd,
                                   .local = on_local,
                                   .local_context = self,
                                   .command = on_command,
                                   .command_context = self,
                                   .zmq_context = options->zmq_context,
                                   .stop = options->stop};
    return actor_shell_new(&shell, &self->shell);
}

int
actor_executor_run(const actor_executor_options_t *options)
{
    require(options != NULL);
    if (options->scheduler_endpoint == NULL || options->scheduler_endpoint[0] == '\0') {
        actor_log(ACTOR_LOG_ERROR, "executor.config", 0, NULL,
                  "no endpoint of a scheduler is given");
        return ACTOR_EXIT_CONFIG;
    }
    executor_t self = {.options = *options, .kv_peer = ACTOR_PEER_NONE, .failure = STATUS_OK};
    self.options.run.share_cache = options->run.share_cache || options->kv_endpoint != NULL;
    draw_page_hash_key(&self);
    fill_null_options(&self.options);
    proto_status_t status =
        options->kv_endpoint == NULL ? STATUS_OK : actor_executor_kv_new(&self.kv);
    if (status == STATUS_OK) {
        status = open_core(&self);
    }
    if (status != STATUS_OK) {
        goto done;
    }
    status = actor_executor_device_new(&self.options, &self.device);
    if (status != STATUS_OK) {
        goto done_core;
    }
    status = open_shell(&self, options);
    if (status != STATUS_OK) {
        goto done_device;
    }
    status = actor_executor_device_start(self.device, self.shell);
    if (status == STATUS_OK) {
        status = actor_shell_run(self.shell);
    }
    if (self.is_failed) {
        status = self.failure;
    }
    /* A device thread that posts is let go; then it ends after the call that it is in. */
    actor_shell_stop(self.shell);
done_device:
    actor_executor_device_destroy(&self.device);
    if (self.shell != NULL) {
        actor_shell_destroy(&self.shell, LINGER_NS);
    }
done_core:
    actor_executor_core_destroy(&self.core);
done:
    actor_executor_kv_destroy(&self.kv);
    return actor_exit_code(status);
}
