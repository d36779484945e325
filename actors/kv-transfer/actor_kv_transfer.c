#include "actor_kv_transfer.h"

#include <stdio.h>
#include <string.h>

#include "actor_exit.h"
#include "actor_fault.h"
#include "actor_keys.h"
#include "actor_kv_book.h"
#include "actor_log.h"
#include "actor_shell.h"
#include "actor_socket.h"
#include "proto_clock.h"
#include "proto_require.h"

static const uint64_t LINGER_NS = 500000000u;

typedef struct {
    actor_kv_core_t *core;
    actor_kv_data_t *data;
    actor_shell_t *shell;
} kv_transfer_actor_t;

static void
on_local(void *context, const actor_emission_t *emission)
{
    kv_transfer_actor_t *self = context;
    if (emission->kind != PROTO_KIND_NAK) {
        actor_kv_data_push(self->data, emission);
        return;
    }
    proto_body_t body;
    if (proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL) !=
        STATUS_OK) {
        return;
    }
    actor_log(ACTOR_LOG_WARN, "kv.refused", emission->request,
              ACTOR_LOG_FIELDS(
                  actor_log_str("status", proto_status_name((proto_status_t)body.nak.status))),
              "%.*s", (int)body.nak.detail.size_bytes, body.nak.detail.data);
}

static proto_status_t
post(void *context, proto_kind_t kind, const proto_body_t *body)
{
    kv_transfer_actor_t *self = context;
    return actor_shell_post(self->shell, kind, 0, body);
}

static proto_status_t
open_shell(kv_transfer_actor_t *self, const actor_kv_transfer_options_t *options, const char *name,
           uint64_t epoch)
{
    actor_link_options_t links[2 + ACTOR_KV_PEERS_MAX];
    uint32_t count = 0;
    links[count++] = (actor_link_options_t){.peer_role = PROTO_ROLE_NONE,
                                            .endpoint = options->node_endpoint,
                                            .bind = true};
    if (options->peer_endpoint != NULL) {
        links[count++] = (actor_link_options_t){.peer_role = PROTO_ROLE_KV_TRANSFER,
                                                .endpoint = options->peer_endpoint,
                                                .bind = true};
    }
    for (uint32_t i = 0; i < options->peer_count; i++) {
        links[count++] = (actor_link_options_t){.peer_role = PROTO_ROLE_KV_TRANSFER,
                                                .endpoint = options->peers[i]};
    }
    actor_shell_options_t shell = {.name = name,
                                   .epoch = epoch,
                                   .ops = actor_kv_core_ops(self->core),
                                   .core = self->core,
                                   .links = links,
                                   .link_count = count,
                                   .supervisor_endpoint = options->supervisor_endpoint,
                                   .ring_fd = options->ring_fd,
                                   .local = on_local,
                                   .local_context = self,
                                   .allow_remote = options->allow_remote,
                                   .stop = options->stop};
    return actor_shell_new(&shell, &self->shell);
}

static proto_status_t
open_data(kv_transfer_actor_t *self, const actor_kv_transfer_options_t *options, const char *name,
          uint64_t epoch)
{
    const actor_kv_core_options_t *core = &options->core;
    const actor_kv_data_options_t data = {
        .name = name,
        .epoch = epoch,
        .data_endpoint = options->data_endpoint,
        .way = options->way,
        .checksums = core->checksums,
        .gate_count =
            core->transfer_count_max != 0 ? core->transfer_count_max : ACTOR_KV_TRANSFER_COUNT,
        .column_count_max =
            core->column_count_max != 0 ? core->column_count_max : ACTOR_KV_COLUMN_COUNT,
        .flying_max = core->flying_max != 0 ? core->flying_max : ACTOR_KV_FLYING,
        .post = post,
        .post_context = self,
    };
    return actor_kv_data_new(&data, &self->data);
}

static proto_status_t
check_options(const actor_kv_transfer_options_t *options)
{
    if (options->node_endpoint == NULL || options->peer_count > ACTOR_KV_PEERS_MAX) {
        actor_log(ACTOR_LOG_ERROR, "kv.config", 0, NULL,
                  "an endpoint for the node's actors is needed, and at most %d peers",
                  ACTOR_KV_PEERS_MAX);
        return STATUS_ERR_CONFIG;
    }
    bool is_remote =
        options->data_endpoint != NULL && !actor_endpoint_is_local(options->data_endpoint);
    if (is_remote && actor_keys_process() != NULL) {
        actor_log(
            ACTOR_LOG_ERROR, "kv.config", 0,
            ACTOR_LOG_FIELDS(actor_log_str("endpoint", options->data_endpoint)),
            "cache bytes are not encrypted: a node with keys serves them on this machine only "
            "(tcp://127.0.0.1:*)");
        return STATUS_ERR_CONFIG;
    }
    if (!options->allow_remote && is_remote) {
        actor_log(ACTOR_LOG_ERROR, "kv.config", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("endpoint", options->data_endpoint)),
                  "cache bytes would be served beyond this machine: allow it explicitly");
        return STATUS_ERR_CONFIG;
    }
    return STATUS_OK;
}

int
actor_kv_transfer_run(const actor_kv_transfer_options_t *options)
{
    require(options != NULL);
    kv_transfer_actor_t self = {.core = NULL};
    const char *name = options->name != NULL ? options->name : "kv-transfer";
    uint64_t epoch =
        options->epoch != 0 ? options->epoch : proto_clock_realtime_ns(proto_clock_system());
    proto_status_t status = check_options(options);
    if (status == STATUS_OK) {
        status = actor_kv_core_new(&options->core, &self.core);
    }
    if (status == STATUS_OK) {
        status = open_data(&self, options, name, epoch);
    }
    if (status == STATUS_OK) {
        status = open_shell(&self, options, name, epoch);
    }
    if (status == STATUS_OK) {
        status = actor_kv_data_start(self.data);
    }
    if (status == STATUS_OK) {
        actor_shell_report(self.shell, ACTOR_STATE_READY, 0, 0, options->node_endpoint);
        status = actor_shell_run(self.shell);
        actor_shell_stop(self.shell); /* a data thread that posts is let go */
    }
    actor_kv_data_destroy(&self.data);
    if (self.shell != NULL) {
        actor_shell_destroy(&self.shell, LINGER_NS);
    }
    actor_kv_core_destroy(&self.core);
    return actor_exit_code(status);
}
