/* actor_replay_device.c - launches once more, on the host.
 *
 * Live, commands wait in a queue while a DEVICE_RESET is carried out, and steps that had ended
 * before it are still reported.  Here the log says when the reset was done (DEVICE_READY comes
 * again), so commands behind a reset wait for that. */
#include "actor_replay_device.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto_clock.h"
#include "proto_require.h"
#include "run_executor.h"

#define STEP_TIMEOUT_NS UINT64_C(60000000000)
#define NAP_NS 100000L

typedef struct command {
    struct command *next;
    proto_kind_t kind;
    size_t body_size_bytes;
    size_t blob_size_bytes;
    uint8_t *body;
    uint8_t *blob; /* 64-byte aligned */
} command_t;

struct actor_replay_device {
    run_executor_t *run;
    double tolerance;
    command_t *first; /* waiting behind a reset, which is the first of them */
    command_t **last;
    proto_body_t body;
};

/* ---- making it ------------------------------------------------------------------------------- */

static bool
says(proto_text_t fingerprint, const char *word)
{
    size_t length = strlen(word);
    for (size_t at = 0; at + length <= fingerprint.size_bytes; at++) {
        if (memcmp(fingerprint.data + at, word, length) == 0) {
            return true;
        }
    }
    return false;
}

static proto_status_t
check_same(const proto_device_ready_t *ready, const proto_executor_info_t *info,
           proto_error_t *error)
{
    if (ready->fingerprint.size_bytes != info->fingerprint.size_bytes ||
        memcmp(ready->fingerprint.data, info->fingerprint.data, info->fingerprint.size_bytes) !=
            0) {
        (void)snprintf(error->detail, sizeof error->detail,
                       "this is another model: recorded '%.*s', given '%.*s'",
                       ready->fingerprint.size_bytes < 60 ? (int)ready->fingerprint.size_bytes : 60,
                       ready->fingerprint.data,
                       info->fingerprint.size_bytes < 60 ? (int)info->fingerprint.size_bytes : 60,
                       info->fingerprint.data);
        return STATUS_ERR_CONFIG;
    }
    if (info->parent_count < ready->parent_count) {
        (void)snprintf(error->detail, sizeof error->detail,
                       "the memory here gives a cache of %" PRIu32 " blocks, the recorded one had "
                       "%" PRIu32,
                       info->parent_count, ready->parent_count);
        return STATUS_ERR_CONFIG;
    }
    return STATUS_OK;
}

proto_status_t
actor_replay_device_new(const actor_replay_device_options_t *options, actor_replay_device_t **out_p,
                        proto_error_t *error)
{
    require(options != NULL);
    require(options->ready != NULL);
    require(error != NULL);
    const proto_device_ready_t *ready = options->ready;
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    actor_replay_device_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        goto err;
    }
    self->last = &self->first;
    self->tolerance = options->tolerance;
    if (says(ready->fingerprint, "model=null")) {
        status = STATUS_ERR_CONFIG;
        (void)snprintf(error->detail, sizeof error->detail,
                       "the log is of a null device, which has no model");
        goto err_free;
    }
    const run_executor_options_t run = {
        .model_path = options->model_path,
        .device = "cpu",
        .kernel_path = options->kernel_path != NULL ? options->kernel_path : "auto",
        .model_len_max = ready->model_len_max,
        .slot_count = ready->slot_count,
        .step_tokens_max = ready->step_tokens_max,
        .block_granularity = ready->prefix_granularity,
        .int8_activations = says(ready->fingerprint, "activations=int8"),
        .cache_dtype = says(ready->fingerprint, ";kv=f32") ? "f32" : "f16",
        .page_hash_key = ready->page_hash_key.size_bytes == PROTO_HASH_SIZE_BYTES
                             ? ready->page_hash_key.data
                             : NULL,
        .error = error->detail,
        .error_size_bytes = sizeof error->detail,
    };
    status = run_executor_new(&run, &self->run);
    if (status != STATUS_OK) {
        goto err_free;
    }
    proto_executor_info_t info;
    run_executor_info(self->run, &info);
    status = check_same(ready, &info, error);
    if (status != STATUS_OK) {
        goto err_close;
    }
    *out_p = self;
    return STATUS_OK;

err_close:
    run_executor_destroy(&self->run);
err_free:
    free(self);
err:
    return status;
}

static void
drop_first(actor_replay_device_t *self)
{
    command_t *command = self->first;
    self->first = command->next;
    if (self->first == NULL) {
        self->last = &self->first;
    }
    free(command->body);
    free(command->blob);
    free(command);
}

void
actor_replay_device_destroy(actor_replay_device_t **self_p)
{
    actor_replay_device_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    while (self->first != NULL) {
        drop_first(self);
    }
    run_executor_destroy(&self->run);
    free(self);
    *self_p = NULL;
}

/* ---- commands -------------------------------------------------------------------------------- */

static proto_status_t
execute(actor_replay_device_t *self, proto_kind_t kind, proto_bytes_t body, proto_bytes_t blob,
        proto_error_t *error)
{
    proto_status_t status = STATUS_OK;
    if (kind == PROTO_KIND_DEVICE_RESET) {
        return run_executor_reset(self->run);
    }
    status = proto_body_decode(kind, body, blob, &self->body, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = kind == PROTO_KIND_SLOT_SETUP
                 ? run_executor_slot_setup(self->run, &self->body.slot_setup)
                 : run_executor_launch(self->run, &self->body.step_launch);
    if (status < 0) {
        (void)snprintf(error->detail, sizeof error->detail, "%s", run_executor_fault(self->run));
    }
    if (status == STATUS_FULL) {
        (void)snprintf(error->detail, sizeof error->detail,
                       "more steps are under way than the log has results");
        status = STATUS_ERR_INTERNAL;
    }
    return status;
}

static proto_status_t
keep(actor_replay_device_t *self, const actor_emission_t *emission)
{
    command_t *command = calloc(1, sizeof *command);
    if (command == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    size_t blob_room =
        (emission->blob.size_bytes + PROTO_COLUMN_ALIGN) / PROTO_COLUMN_ALIGN * PROTO_COLUMN_ALIGN;
    command->body = malloc(emission->body.size_bytes + 1);
    command->blob = aligned_alloc(PROTO_COLUMN_ALIGN, blob_room);
    if (command->body == NULL || command->blob == NULL) {
        free(command->body);
        free(command->blob);
        free(command);
        return STATUS_ERR_NO_MEMORY;
    }
    command->kind = emission->kind;
    command->body_size_bytes = emission->body.size_bytes;
    command->blob_size_bytes = emission->blob.size_bytes;
    memcpy(command->body, emission->body.data, emission->body.size_bytes);
    if (emission->blob.size_bytes > 0) {
        memcpy(command->blob, emission->blob.data, emission->blob.size_bytes);
    }
    *self->last = command;
    self->last = &command->next;
    return STATUS_OK;
}

proto_status_t
actor_replay_device_push(actor_replay_device_t *self, const actor_emission_t *command,
                         proto_error_t *error)
{
    if (self->first != NULL || command->kind == PROTO_KIND_DEVICE_RESET) {
        return keep(self, command);
    }
    return execute(self, command->kind, command->body, command->blob, error);
}

proto_status_t
actor_replay_device_ready(actor_replay_device_t *self, proto_error_t *error)
{
    if (self->first == NULL) {
        return STATUS_OK; /* the first DEVICE_READY: nothing waits for it */
    }
    proto_status_t status = STATUS_OK;
    do {
        const command_t *command = self->first;
        proto_bytes_t body = {command->body, command->body_size_bytes};
        proto_bytes_t blob = {command->blob, command->blob_size_bytes};
        status = execute(self, command->kind, body, blob, error);
        drop_first(self);
    } while (status == STATUS_OK && self->first != NULL &&
             self->first->kind != PROTO_KIND_DEVICE_RESET);
    return status;
}

/* ---- results --------------------------------------------------------------------------------- */

proto_status_t
actor_replay_device_compare(actor_replay_device_t *self, const proto_step_done_t *recorded,
                            bool *differs, log_field_diff_t *out)
{
    const proto_clock_t *clock = proto_clock_system();
    uint64_t begin_ns = proto_clock_monotonic_ns(clock);
    proto_body_t sides[2] = {{.step_done = *recorded}};
    proto_status_t status;
    while ((status = run_executor_collect(self->run, &sides[1].step_done)) == STATUS_AGAIN) {
        if (proto_clock_monotonic_ns(clock) - begin_ns > STEP_TIMEOUT_NS) {
            return STATUS_ERR_DEADLINE;
        }
        (void)nanosleep(&(struct timespec){0, NAP_NS}, NULL);
    }
    if (status != STATUS_OK) {
        return status;
    }
    /* How long it took is not what it gave, and a graph may stand in for an eager step. */
    static const char *const ignored[] = {"duration_ns", "mode"};
    const log_field_options_t how = {.ignored = ignored,
                                     .ignored_count = 2,
                                     .tolerance = self->tolerance};
    *differs = log_field_diff(PROTO_KIND_STEP_DONE, &sides[0], &sides[1], &how, out);
    return STATUS_OK;
}
