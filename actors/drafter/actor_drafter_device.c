#include "actor_drafter_device.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_drafter_round.h"
#include "actor_fault.h"
#include "actor_log.h"
#include "draft_ngram.h"
#include "proto_clock.h"
#include "proto_require.h"

enum {
    COMMANDS_MAX = 16, /* an open and a close, and the rounds of a few incarnations */
    POLL_NS = 100 * 1000 * 1000,
};

typedef struct {
    proto_kind_t kind;
    char path[256];
    draft_ring_options_t ring;
    uint64_t step;
    uint32_t slot;
} command_t;

struct actor_drafter_device {
    actor_drafter_device_options_t options;
    actor_shell_t *shell;
    pthread_t thread;
    bool is_started;

    pthread_mutex_t lock; /* covers what follows */
    pthread_cond_t work;
    command_t commands[COMMANDS_MAX];
    uint32_t command_first;
    uint32_t command_count;
    bool is_stopping;
    bool is_failed;
    uint32_t open_count; /* DRAFT_OPENs that wait: the present round is not wanted any more */

    /* The device thread's own. */
    draft_ring_t *ring;
    draft_t *draft;
    actor_drafter_rounds_t *rounds;
    proto_body_t body;
};

/* ---- opening --------------------------------------------------------------------------------- */

static void
post_failed(actor_drafter_device_t *self, proto_status_t status, const char *detail)
{
    (void)pthread_mutex_lock(&self->lock);
    self->is_failed = true;
    (void)pthread_mutex_unlock(&self->lock);
    self->body.device_failed =
        (proto_device_failed_t){.status = status, .detail = proto_text(detail)};
    if (actor_shell_post(self->shell, PROTO_KIND_DEVICE_FAILED, 0, &self->body) != STATUS_OK) {
        actor_log(ACTOR_LOG_DEBUG, "drafter.failed", 0, NULL, "%s", detail);
    }
}

static void
close_ring(actor_drafter_device_t *self)
{
    actor_drafter_rounds_destroy(&self->rounds);
    draft_destroy(&self->draft);
    draft_ring_destroy(&self->ring);
}

static proto_status_t
make_draft(actor_drafter_device_t *self)
{
    const draft_ring_options_t *ring = draft_ring_options(self->ring);
    draft_ngram_options_t options = {.width = ring->width,
                                     .vocabulary = ring->vocabulary,
                                     .slot_count = ring->slot_count,
                                     .model_len_max = ring->model_len_max,
                                     .rows_max = ring->rows_max};
    require(strcmp(self->options.kind, "ngram") == 0);
    return draft_ngram_new(&options, &self->draft);
}

/* False: the drafter cannot work; the process ends and is started again. */
static bool
open_ring(actor_drafter_device_t *self, const command_t *command)
{
    close_ring(self);
    if (command->path[0] == '\0') {
        return true;
    }
    proto_status_t status = draft_ring_open(command->path, &command->ring, &self->ring);
    if (status != STATUS_OK) {
        char detail[512];
        (void)snprintf(detail, sizeof detail, "cannot map the executor's ring '%s': %s",
                       command->path,
                       status == STATUS_ERR_IO ? strerror(errno) : proto_status_text(status));
        post_failed(self, STATUS_ERR_IO, detail);
        return false;
    }
    status = make_draft(self);
    if (status == STATUS_OK) {
        status =
            actor_drafter_rounds_new(self->ring, self->draft, self->options.epoch, &self->rounds);
    }
    if (status != STATUS_OK) {
        post_failed(self, status, "no room for the drafter");
        return false;
    }
    const draft_ring_options_t *o = draft_ring_options(self->ring);
    actor_log(ACTOR_LOG_INFO, "drafter.open", 0,
              ACTOR_LOG_FIELDS(actor_log_str("drafter", draft_info(self->draft)->kind),
                               actor_log_u64("width", o->width),
                               actor_log_u64("slots", o->slot_count)),
              "drafting %u candidates for each of %u requests", o->width - 1, o->slot_count);
    return true;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static bool
is_wanted(actor_drafter_device_t *self)
{
    (void)pthread_mutex_lock(&self->lock);
    bool wanted = !self->is_stopping && self->open_count == 0;
    (void)pthread_mutex_unlock(&self->lock);
    return wanted;
}

static bool
launch(actor_drafter_device_t *self, const command_t *command)
{
    if (self->ring == NULL) {
        return true;
    }
    proto_status_t status = STATUS_AGAIN;
    while (status == STATUS_AGAIN) {
        if (!is_wanted(self)) {
            return true;
        }
        uint64_t until_ns = proto_clock_monotonic_ns(proto_clock_system()) + POLL_NS;
        status = draft_ring_wait_round(self->ring, command->slot, command->step,
                                       self->options.epoch, until_ns);
    }
    (void)ACTOR_FAULT("drafter.before_round");
    proto_draft_done_t *done = &self->body.draft_done;
    *done = (proto_draft_done_t){.step = command->step, .slot = command->slot, .status = status};
    if (status == STATUS_OK) {
        status = actor_drafter_round_run(self->rounds, command->slot, command->step, done);
        done->status = status;
    }
    (void)ACTOR_FAULT("drafter.before_answer");
    if (status == STATUS_OK && !ACTOR_FAULT("drafter.answer")) {
        draft_ring_answer(self->ring, command->slot, command->step, self->options.epoch);
    }
    (void)ACTOR_FAULT("drafter.after_answer");
    return actor_shell_post(self->shell, PROTO_KIND_DRAFT_DONE, 0, &self->body) == STATUS_OK;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static bool
next_command(actor_drafter_device_t *self, command_t *out)
{
    (void)pthread_mutex_lock(&self->lock);
    while (!self->is_stopping && self->command_count == 0) {
        (void)pthread_cond_wait(&self->work, &self->lock);
    }
    bool goes_on = !self->is_stopping;
    if (goes_on) {
        *out = self->commands[self->command_first];
        self->command_first = (self->command_first + 1) % COMMANDS_MAX;
        self->command_count--;
        self->open_count -= out->kind == PROTO_KIND_DRAFT_OPEN ? 1 : 0;
    }
    (void)pthread_mutex_unlock(&self->lock);
    return goes_on;
}

static void *
device_main(void *context)
{
    actor_drafter_device_t *self = context;
    command_t command;
    while (next_command(self, &command)) {
        bool goes_on = command.kind == PROTO_KIND_DRAFT_OPEN ? open_ring(self, &command)
                                                             : launch(self, &command);
        if (!goes_on) {
            break;
        }
    }
    close_ring(self);
    return NULL;
}

/* ---- the shell's side ------------------------------------------------------------------------ */

proto_status_t
actor_drafter_device_new(const actor_drafter_device_options_t *options,
                         actor_drafter_device_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);
    actor_drafter_device_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    (void)pthread_mutex_init(&self->lock, NULL);
    (void)pthread_cond_init(&self->work, NULL);
    *out_p = self;
    return STATUS_OK;
}

proto_status_t
actor_drafter_device_start(actor_drafter_device_t *self, actor_shell_t *shell)
{
    require(!self->is_started);
    self->shell = shell;
    if (pthread_create(&self->thread, NULL, device_main, self) != 0) {
        return STATUS_ERR_IO;
    }
    self->is_started = true;
    return STATUS_OK;
}

static void
read_command(const actor_emission_t *emission, command_t *out)
{
    proto_body_t body;
    proto_status_t status =
        proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL);
    require(status == STATUS_OK);
    *out = (command_t){.kind = emission->kind};
    if (emission->kind == PROTO_KIND_DRAFT_OPEN) {
        const proto_draft_open_t *open = &body.draft_open;
        (void)snprintf(out->path, sizeof out->path, "%.*s", (int)open->ring.size_bytes,
                       open->ring.size_bytes > 0 ? open->ring.data : "");
        out->ring = (draft_ring_options_t){.ring_id = open->ring_id,
                                           .slot_count = open->slot_count,
                                           .width = open->width,
                                           .vocabulary = open->vocab_size,
                                           .model_len_max = open->model_len_max};
    } else {
        require(emission->kind == PROTO_KIND_DRAFT_LAUNCH);
        out->step = body.draft_launch.step;
        out->slot = body.draft_launch.slot;
    }
}

void
actor_drafter_device_push(actor_drafter_device_t *self, const actor_emission_t *emission)
{
    command_t command;
    read_command(emission, &command);
    (void)pthread_mutex_lock(&self->lock);
    if (command.kind == PROTO_KIND_DRAFT_OPEN) {
        /* What was asked for before is of a link that ended. */
        self->command_count = 0;
        self->open_count = 1;
    }
    bool is_in = !self->is_failed && self->command_count < COMMANDS_MAX;
    if (is_in) {
        uint32_t at = (self->command_first + self->command_count) % COMMANDS_MAX;
        self->commands[at] = command;
        self->command_count++;
        (void)pthread_cond_signal(&self->work);
    }
    (void)pthread_mutex_unlock(&self->lock);
}

void
actor_drafter_device_destroy(actor_drafter_device_t **self_p)
{
    require(self_p != NULL);
    actor_drafter_device_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    if (self->is_started) {
        (void)pthread_mutex_lock(&self->lock);
        self->is_stopping = true;
        (void)pthread_cond_broadcast(&self->work);
        (void)pthread_mutex_unlock(&self->lock);
        (void)pthread_join(self->thread, NULL);
    }
    (void)pthread_cond_destroy(&self->work);
    (void)pthread_mutex_destroy(&self->lock);
    free(self);
    *self_p = NULL;
}
