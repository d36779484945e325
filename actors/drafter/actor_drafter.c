#include "actor_drafter.h"

#include <stdio.h>
#include <string.h>

#include "actor_drafter_core.h"
#include "actor_drafter_device.h"
#include "actor_exit.h"
#include "actor_log.h"
#include "actor_shell.h"
#include "draft_base.h"
#include "proto_clock.h"
#include "proto_require.h"

static const uint64_t LINGER_NS = 500000000u;

typedef struct {
    actor_drafter_core_t *core;
    actor_drafter_device_t *device;
    actor_shell_t *shell;
    bool is_failed;
    proto_status_t failure;
} drafter_t;

static void
fail(drafter_t *self, proto_status_t status, proto_text_t detail)
{
    self->is_failed = true;
    self->failure = status;
    actor_log(ACTOR_LOG_ERROR, "drafter.failed", 0,
              ACTOR_LOG_FIELDS(actor_log_str("status", proto_status_name(status))), "%.*s",
              (int)detail.size_bytes, detail.data);
    char text[256];
    (void)snprintf(text, sizeof text, "%.*s", (int)detail.size_bytes, detail.data);
    actor_shell_report(self->shell, ACTOR_STATE_FAILING, 0, 0, text);
    actor_shell_stop(self->shell);
}

static void
on_local(void *context, const actor_emission_t *emission)
{
    drafter_t *self = context;
    if (emission->kind != PROTO_KIND_DEVICE_FAILED) {
        actor_drafter_device_push(self->device, emission);
        return;
    }
    proto_body_t body;
    proto_status_t status =
        proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL);
    require(status == STATUS_OK);
    if (!self->is_failed) {
        fail(self, (proto_status_t)body.device_failed.status, body.device_failed.detail);
    }
}

static proto_status_t
open_shell(drafter_t *self, const actor_drafter_options_t *options, uint64_t epoch)
{
    const actor_link_options_t link = {.peer_role = PROTO_ROLE_EXECUTOR,
                                       .endpoint = options->executor_endpoint};
    actor_shell_options_t shell = {.name = options->name != NULL ? options->name : "drafter",
                                   .epoch = epoch,
                                   .ops = actor_drafter_core_ops(self->core),
                                   .core = self->core,
                                   .links = &link,
                                   .link_count = 1,
                                   .supervisor_endpoint = options->supervisor_endpoint,
                                   .ring_fd = options->ring_fd,
                                   .local = on_local,
                                   .local_context = self,
                                   .zmq_context = options->zmq_context,
                                   .stop = options->stop};
    return actor_shell_new(&shell, &self->shell);
}

static proto_status_t
open_all(drafter_t *self, const actor_drafter_options_t *options, const char *kind)
{
    uint64_t epoch =
        options->epoch != 0 ? options->epoch : proto_clock_realtime_ns(proto_clock_system());
    actor_drafter_core_options_t core = {.width_max = options->width_max != 0 ? options->width_max
                                                                              : DRAFT_WIDTH_MAX};
    (void)snprintf(core.name, sizeof core.name, "%s", kind);
    proto_status_t status = actor_drafter_core_new(&core, &self->core);
    if (status != STATUS_OK) {
        return status;
    }
    const actor_drafter_device_options_t device = {.kind = kind, .epoch = epoch};
    status = actor_drafter_device_new(&device, &self->device);
    if (status == STATUS_OK) {
        status = open_shell(self, options, epoch);
    }
    return status;
}

int
actor_drafter_run(const actor_drafter_options_t *options)
{
    require(options != NULL);
    const char *kind = options->kind != NULL ? options->kind : "ngram";
    if (options->executor_endpoint == NULL || options->executor_endpoint[0] == '\0') {
        actor_log(ACTOR_LOG_ERROR, "drafter.config", 0, NULL,
                  "no endpoint of an executor is given");
        return ACTOR_EXIT_CONFIG;
    }
    if (strcmp(kind, "ngram") != 0) {
        actor_log(ACTOR_LOG_ERROR, "drafter.config", 0, NULL,
                  "there is no drafter '%s'; there is: ngram", kind);
        return ACTOR_EXIT_CONFIG;
    }
    drafter_t self = {.failure = STATUS_OK};
    proto_status_t status = open_all(&self, options, kind);
    if (status == STATUS_OK) {
        status = actor_drafter_device_start(self.device, self.shell);
    }
    if (status == STATUS_OK) {
        actor_shell_report(self.shell, ACTOR_STATE_READY, 0, 0, kind);
        status = actor_shell_run(self.shell);
    }
    if (self.is_failed) {
        status = self.failure;
    }
    if (self.shell != NULL) {
        actor_shell_stop(self.shell);
    }
    actor_drafter_device_destroy(&self.device);
    if (self.shell != NULL) {
        actor_shell_destroy(&self.shell, LINGER_NS);
    }
    actor_drafter_core_destroy(&self.core);
    return actor_exit_code(status);
}
