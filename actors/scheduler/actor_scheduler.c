#include "actor_scheduler.h"

#include <stdio.h>

#include "actor_exit.h"
#include "actor_log.h"
#include "actor_scheduler_core.h"
#include "actor_scheduler_look.h"
#include "actor_shell.h"
#include "proto_clock.h"
#include "proto_require.h"

static const uint64_t LINGER_NS = 500000000u;

/* What the core wants to be logged comes as NAK to its own shell. */
static void
on_local(void *context, const actor_emission_t *emission)
{
    (void)context;
    proto_body_t body;
    if (emission->kind != PROTO_KIND_NAK ||
        proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL) !=
            STATUS_OK) {
        return;
    }
    const proto_nak_t *nak = &body.nak;
    actor_log(ACTOR_LOG_WARN, "scheduler.executor", emission->request,
              ACTOR_LOG_FIELDS(actor_log_str("status",
                                             proto_status_name((proto_status_t)nak->status)),
                               actor_log_str("kind", proto_kind_name((proto_kind_t)nak->kind))),
              "%.*s", (int)nak->detail.size_bytes, nak->detail.data);
}

static proto_status_t
open_shell(const actor_scheduler_options_t *options, actor_scheduler_core_t *core,
           actor_scheduler_look_t *look, actor_shell_t **out_p)
{
    actor_link_options_t links[2] = {
        {.peer_role = PROTO_ROLE_GATEWAY, .endpoint = options->gateway_endpoint, .bind = true},
        {.peer_role = PROTO_ROLE_EXECUTOR, .endpoint = options->executor_endpoint, .bind = true},
    };
    if (options->endpoint != NULL) {
        links[0] = (actor_link_options_t){.endpoint = options->endpoint, .bind = true};
    }
    const proto_clock_t *clock = proto_clock_system();
    actor_shell_options_t shell = {
        .name = options->name != NULL ? options->name : "scheduler",
        .epoch = options->epoch != 0 ? options->epoch : proto_clock_realtime_ns(clock),
        .ops = actor_scheduler_core_ops(core),
        .core = core,
        .links = links,
        .link_count = options->endpoint != NULL ? 1 : 2,
        .supervisor_endpoint = options->supervisor_endpoint,
        .ring_fd = options->ring_fd,
        .local = on_local,
        .told = actor_scheduler_look_told,
        .told_context = look,
        .stop = options->stop,
    };
    return actor_shell_new(&shell, out_p);
}

int
actor_scheduler_run(const actor_scheduler_options_t *options)
{
    require(options != NULL);
    if (options->endpoint == NULL &&
        (options->gateway_endpoint == NULL || options->executor_endpoint == NULL)) {
        actor_log(ACTOR_LOG_ERROR, "scheduler.config", 0, NULL,
                  "both endpoints are needed: for gateways and for executors");
        return ACTOR_EXIT_CONFIG;
    }
    const actor_scheduler_core_options_t limits = {
        .queue_len_max = options->queue_len_max,
        .no_overlap = options->no_overlap,
        .no_prefix_cache = options->no_prefix_cache,
        .full_plans = options->full_plans,
    };
    actor_scheduler_core_t *core = NULL;
    actor_shell_t *shell = NULL;
    proto_status_t status = actor_scheduler_core_new(&limits, &core);
    if (status != STATUS_OK) {
        actor_log(ACTOR_LOG_ERROR, "scheduler.config", 0, NULL,
                  "cannot make the planning core for a queue of %u: %s", options->queue_len_max,
                  proto_status_text(status));
        status = status == STATUS_ERR_INVALID ? STATUS_ERR_CONFIG : status;
        goto done;
    }
    actor_scheduler_look_t look = {.core = core};
    status = open_shell(options, core, &look, &shell);
    if (status != STATUS_OK) {
        goto done_core;
    }
    look.shell = shell;
    actor_shell_report(shell, ACTOR_STATE_READY, 0, 0,
                       options->endpoint != NULL ? options->endpoint : options->gateway_endpoint);
    status = actor_shell_run(shell);
    actor_shell_destroy(&shell, LINGER_NS);
done_core:
    actor_scheduler_core_destroy(&core);
done:
    return actor_exit_code(status);
}
