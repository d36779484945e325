/* The executor in charge: it comes and goes, gets plans, refuses some. */
#include <stdio.h>
#include <string.h>

#include "actor_scheduler_state.h"

/* ---- plans ----------------------------------------------------------------------------------- */

static void
send_admissions(actor_scheduler_core_t *self, actor_outbox_t *outbox)
{
    sched_admission_t admission;
    while (sched_core_take_admission(self->library, &admission)) {
        actor_scheduler_parcel_t parcel = {(uint32_t)admission.tag};
        actor_scheduler_content_t content = actor_scheduler_store_get(self->store, parcel);
        proto_body_t body = {
            .admit =
                {
                    .slot = admission.slot,
                    .prompt_length = admission.prompt_length,
                    .length_max = admission.length_max,
                    .tokens = content.tokens,
                    .sampling = content.sampling,
                    .page_hashes = content.page_hashes,
                    .computed = admission.computed,
                },
        };
        actor_outbox_push(outbox, self->executor, PROTO_KIND_ADMIT, admission.request, &body);
        actor_scheduler_store_drop(self->store, parcel);
    }
}

void
actor_scheduler_send_plans(actor_scheduler_core_t *self, uint64_t now_ns, actor_outbox_t *outbox)
{
    proto_body_t body;
    while (sched_core_next_plan(self->library, now_ns, &body.plan) == STATUS_OK) {
        send_admissions(self, outbox);
        actor_outbox_push(outbox, self->executor, PROTO_KIND_PLAN, 0, &body);
        actor_scheduler_send_parts(self, outbox);
        if (self->busy_since_ns == 0) {
            self->busy_since_ns = now_ns;
        }
    }
}

void
actor_scheduler_count_busy(actor_scheduler_core_t *self, uint64_t now_ns)
{
    uint64_t step;
    uint64_t planned;
    uint64_t predicted;
    if (self->busy_since_ns == 0) {
        return;
    }
    self->stats.busy_ns += now_ns - self->busy_since_ns;
    bool runs = sched_core_step_in_work(self->library, &step, &planned, &predicted);
    self->busy_since_ns = runs ? now_ns : 0;
}

void
actor_scheduler_plan_refused(actor_scheduler_core_t *self, const actor_input_t *input,
                             actor_outbox_t *outbox)
{
    if (!actor_scheduler_is_executor(self, input->from)) {
        self->ignored_count++;
        return;
    }
    sched_event_t event = {.kind = SCHED_EVENT_REFUSED, .refused = &input->body->plan_refused};
    proto_status_t status = sched_core_advance(self->library, input->now_ns, &event, NULL);
    if (status == STATUS_ERR_MALFORMED) {
        actor_scheduler_executor_fault(self, input, "it refuses every plan", outbox);
    } else if (status == STATUS_OK) {
        actor_scheduler_count_busy(self, input->now_ns);
        /* For the log: a plan of ours broke a rule, which is a fault of ours. */
        proto_body_t body = {.nak = {.sequence = input->header->sequence,
                                     .kind = PROTO_KIND_PLAN,
                                     .status = STATUS_ERR_REFUSED,
                                     .detail = input->body->plan_refused.detail}};
        actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_NAK, 0, &body);
    }
}

/* ---- coming and going ------------------------------------------------------------------------ */

bool
actor_scheduler_is_executor(const actor_scheduler_core_t *self, actor_peer_t peer)
{
    return self->executor.index != ACTOR_PEER_NONE && peer.index == self->executor.index;
}

void
actor_scheduler_lose_executor(actor_scheduler_core_t *self, const char *code,
                              actor_outbox_t *outbox)
{
    actor_scheduler_end_fences(self, outbox); /* whoever waits for blocks to come back is told */
    sched_core_detach(self->library, STATUS_ERR_PEER_LOST, code);
    self->executor.index = ACTOR_PEER_NONE;
    self->busy_since_ns = 0;
    actor_scheduler_tell_gateways(self, outbox);
}

static proto_text_t
keep_text(proto_text_t text, char *room)
{
    uint32_t size = text.size_bytes < PROTO_TEXT_LEN_MAX ? text.size_bytes : PROTO_TEXT_LEN_MAX;
    if (size > 0) {
        memcpy(room, text.data, size);
    }
    return (proto_text_t){room, size};
}

static void
keep_info(actor_scheduler_core_t *self, const proto_executor_info_t *info)
{
    self->info = *info;
    self->info.model_name = keep_text(info->model_name, self->info_text[0]);
    self->info.fingerprint = keep_text(info->fingerprint, self->info_text[1]);
    proto_column_u32_t *columns[] = {&self->info.group_kinds, &self->info.group_granularities,
                                     &self->info.group_windows, &self->info.group_packings};
    for (uint32_t i = 0; i < 4; i++) {
        require(columns[i]->count <= PROTO_GROUPS_MAX);
        if (columns[i]->count > 0) {
            memcpy(self->info_columns[i], columns[i]->data, columns[i]->count * sizeof(uint32_t));
        }
        columns[i]->data = self->info_columns[i];
    }
    size_t size = info->page_hash_key.size_bytes;
    require(size <= sizeof self->page_hash_key);
    if (size > 0) {
        memcpy(self->page_hash_key, info->page_hash_key.data, size);
    }
    self->info.page_hash_key = (proto_bytes_t){self->page_hash_key, size};
}

static void
attach(actor_scheduler_core_t *self, actor_peer_t peer, const actor_input_t *input,
       actor_outbox_t *outbox)
{
    proto_error_t error = {{0}};
    proto_status_t status = sched_core_attach(self->library, &self->info, &error);
    if (status != STATUS_OK) {
        proto_body_t body = {.nak = {.sequence = input->header->sequence,
                                     .kind = PROTO_KIND_EXECUTOR_INFO,
                                     .status = status,
                                     .detail = proto_text(error.detail)}};
        actor_outbox_push(outbox, peer, PROTO_KIND_NAK, 0, &body);
        actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_NAK, 0, &body);
        (void)snprintf(self->refusal, sizeof self->refusal, "%s", error.detail);
        actor_scheduler_tell_gateways(self, outbox);
        return;
    }
    self->refusal[0] = '\0';
    self->executor = peer;
    self->executor_epoch = self->peers[peer.index].epoch;
    /* Whatever it holds is not ours: rows of an earlier scheduler, or of a step that broke. */
    proto_body_t body = {.reset = {.detail = proto_text("a scheduler attaches")}};
    actor_outbox_push(outbox, peer, PROTO_KIND_RESET, 0, &body);
    actor_scheduler_tell_gateways(self, outbox);
}

void
actor_scheduler_executor_info(actor_scheduler_core_t *self, const actor_input_t *input,
                              actor_outbox_t *outbox)
{
    if (sched_core_is_attached(self->library)) {
        bool is_newer = self->peers[input->from.index].epoch > self->executor_epoch;
        if (actor_scheduler_is_executor(self, input->from) || !is_newer) {
            self->ignored_count++;
            return;
        }
        actor_scheduler_lose_executor(self, "worker_lost", outbox);
    }
    self->fault_count = 0;
    keep_info(self, &input->body->executor_info);
    attach(self, input->from, input, outbox);
}

void
actor_scheduler_executor_fault(actor_scheduler_core_t *self, const actor_input_t *input,
                               const char *detail, actor_outbox_t *outbox)
{
    actor_peer_t peer = self->executor;
    proto_body_t body = {.nak = {.sequence = input->header->sequence,
                                 .kind = (uint32_t)input->header->kind & 65535,
                                 .status = STATUS_ERR_MALFORMED,
                                 .detail = proto_text(detail)}};
    actor_outbox_push(outbox, peer, PROTO_KIND_NAK, 0, &body);
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_NAK, 0, &body);
    actor_scheduler_lose_executor(self, "executor_fault", outbox);
    if (++self->fault_count <= SCHEDULER_FAULTS_MAX) {
        attach(self, peer, input, outbox);
    }
}

void
actor_scheduler_nak(actor_scheduler_core_t *self, const actor_input_t *input,
                    actor_outbox_t *outbox)
{
    const proto_nak_t *nak = &input->body->nak;
    bool lost = actor_scheduler_is_executor(self, input->from) &&
                (nak->kind == PROTO_KIND_PLAN || nak->kind == PROTO_KIND_RESET);
    if (lost) {
        /* No result will ever come for it. */
        actor_scheduler_executor_fault(self, input, "it could not read a plan", outbox);
    } else {
        self->ignored_count++;
    }
}
