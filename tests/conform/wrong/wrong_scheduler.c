/* wrong_scheduler FAULT ENDPOINT: runs until SIGTERM.  FAULT "none" is the built-in scheduler as it
 * is; "list" prints all of them. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_log.h"
#include "actor_shell.h"
#include "proto_clock.h"
#include "proto_require.h"
#include "wrong.h"

static atomic_int stop;

static void
on_signal(int number)
{
    (void)number;
    atomic_store(&stop, 2);
}

void
wrong_send(actor_outbox_t *outbox, const wrong_message_t *message)
{
    actor_outbox_push(outbox, message->to, message->kind, message->request, &message->body);
}

static void
pass_on(wrong_t *self, actor_outbox_t *outbox)
{
    static wrong_message_t message;
    for (uint32_t i = 0; i < actor_outbox_count(self->inner_outbox); i++) {
        const actor_emission_t *emission = actor_outbox_at(self->inner_outbox, i);
        message.to = emission->to;
        message.kind = emission->kind;
        message.request = emission->request;
        proto_status_t status =
            proto_body_decode(emission->kind, emission->body, emission->blob, &message.body, NULL);
        require(status == STATUS_OK);
        if (self->fault->output == NULL || self->fault->output(self, &message, outbox)) {
            wrong_send(outbox, &message);
        }
    }
    actor_outbox_clear(self->inner_outbox);
}

static void
step_inner(wrong_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const actor_core_ops_t *ops = actor_scheduler_core_ops(self->inner);
    ops->step(self->inner, input, self->inner_outbox);
    pass_on(self, outbox);
}

void
wrong_feed(wrong_t *self, const actor_input_t *like, actor_peer_t from, proto_kind_t kind,
           const proto_body_t *body, actor_outbox_t *outbox)
{
    proto_header_t header = *like->header;
    header.kind = kind;
    header.request = 0;
    actor_input_t input = *like;
    input.from = from;
    input.header = &header;
    input.body = body;
    const actor_core_ops_t *ops = actor_scheduler_core_ops(self->inner);
    ops->step(self->inner, &input, self->inner_outbox);
    pass_on(self, outbox);
}

static void
note_gateway(wrong_t *self, const actor_input_t *input)
{
    if (input->header->kind == PROTO_KIND_PEER_UP &&
        input->body->peer_up.role == PROTO_ROLE_GATEWAY && self->gateway_count < 4) {
        self->gateways[self->gateway_count++].index = input->body->peer_up.peer;
    }
    for (uint32_t i = 0; input->header->kind == PROTO_KIND_PEER_DOWN && i < self->gateway_count;
         i++) {
        if (self->gateways[i].index == input->body->peer_down.peer) {
            self->gateways[i] = self->gateways[--self->gateway_count];
        }
    }
}

static void
core_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    wrong_t *self = core;
    if (input->from.index == ACTOR_PEER_LOCAL) {
        note_gateway(self, input);
    }
    static proto_body_t body;
    memcpy(&body, input->body, sizeof body);
    if (self->fault->input != NULL && !self->fault->input(self, input, &body, outbox)) {
        return;
    }
    actor_input_t changed = *input;
    changed.body = &body;
    step_inner(self, &changed, outbox);
    if (self->fault->after != NULL) {
        self->fault->after(self, outbox);
    }
}

static uint64_t
core_deadline_ns(const void *core)
{
    const wrong_t *self = core;
    return actor_scheduler_core_ops(self->inner)->deadline_ns(self->inner);
}

static uint64_t
core_digest(const void *core)
{
    (void)core;
    return 0;
}

static void
core_progress(const void *core, uint64_t now_ns, proto_heartbeat_t *out)
{
    const wrong_t *self = core;
    actor_scheduler_core_ops(self->inner)->progress(self->inner, now_ns, out);
}

static const wrong_fault_t *
find_fault(const char *name)
{
    for (uint32_t i = 0; i < wrong_fault_count; i++) {
        if (strcmp(wrong_faults[i].name, name) == 0) {
            return &wrong_faults[i];
        }
    }
    return NULL;
}

static int
run(wrong_t *self, const char *endpoint)
{
    const actor_core_ops_t *ops = actor_scheduler_core_ops(self->inner);
    self->ops = (actor_core_ops_t){.name = "scheduler",
                                   .role = PROTO_ROLE_SCHEDULER,
                                   .outbox_size_bytes = 2 * ops->outbox_size_bytes,
                                   .outbox_count_max = 2 * ops->outbox_count_max + 16,
                                   .step = core_step,
                                   .deadline_ns = core_deadline_ns,
                                   .digest = core_digest,
                                   .progress = core_progress};
    actor_link_options_t link = {.peer_role = PROTO_ROLE_NONE, .endpoint = endpoint, .bind = true};
    actor_shell_options_t options = {.name = "scheduler",
                                     .epoch = proto_clock_realtime_ns(proto_clock_system()),
                                     .ops = &self->ops,
                                     .core = self,
                                     .links = &link,
                                     .link_count = 1,
                                     .ring_fd = -1,
                                     .heartbeat_ns = 150000000,
                                     .missed_max = 8,
                                     .stop = &stop};
    actor_shell_t *shell = NULL;
    if (actor_shell_new(&options, &shell) != STATUS_OK) {
        return 75;
    }
    proto_status_t status = actor_shell_run(shell);
    actor_shell_destroy(&shell, 200000000);
    return status == STATUS_OK ? 0 : 70;
}

int
main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        for (uint32_t i = 0; i < wrong_fault_count; i++) {
            printf("%s\n", wrong_faults[i].name);
        }
        return 0;
    }
    const wrong_fault_t *fault = argc == 3 ? find_fault(argv[1]) : NULL;
    if (fault == NULL) {
        fprintf(stderr, "usage: wrong_scheduler FAULT ENDPOINT; FAULT as in `wrong_scheduler "
                        "list`\n");
        return 78;
    }
    struct sigaction action = {.sa_handler = on_signal};
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
    const actor_log_options_t log = {.actor = "wrong", .level_min = ACTOR_LOG_ERROR};
    actor_log_configure(&log);
    wrong_t *self = calloc(1, sizeof *self);
    const actor_scheduler_core_options_t limits = {.slot_count_max = 64, .queue_len_max = 64};
    if (self == NULL || actor_scheduler_core_new(&limits, &self->inner) != STATUS_OK ||
        actor_outbox_new(actor_scheduler_core_ops(self->inner), &self->inner_outbox) != STATUS_OK) {
        fprintf(stderr, "wrong_scheduler: no memory\n");
        return 75;
    }
    self->fault = fault;
    int code = run(self, argv[2]);
    actor_outbox_destroy(&self->inner_outbox);
    actor_scheduler_core_destroy(&self->inner);
    free(self);
    return code;
}
