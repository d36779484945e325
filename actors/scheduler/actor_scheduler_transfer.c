/* Transfers between two nodes: reservations, held blocks, fences; with roles and kv-transfer. */
#include <stdio.h>

#include "actor_scheduler_state.h"

static bool
is_role(const actor_scheduler_core_t *self, uint32_t peer)
{
    return self->peers[peer].role == PROTO_ROLE_PREFILL_ROLE ||
           self->peers[peer].role == PROTO_ROLE_DECODE_ROLE;
}

static void
put_runs(const sched_runs_t *runs, proto_column_u8_t *groups, proto_column_u32_t *columns,
         proto_column_u32_t *counts, proto_column_u32_t *blocks, proto_column_u32_t *generations)
{
    *groups = (proto_column_u8_t){runs->groups, runs->run_count};
    *columns = (proto_column_u32_t){runs->columns, runs->run_count};
    *counts = (proto_column_u32_t){runs->counts, runs->run_count};
    *blocks = (proto_column_u32_t){runs->blocks, runs->block_count};
    *generations = (proto_column_u32_t){runs->generations, runs->block_count};
}

static void
tell_returned(actor_scheduler_core_t *self, uint32_t owner, uint64_t transfer, uint32_t block_count,
              actor_outbox_t *outbox)
{
    if (actor_scheduler_owner_is_there(self, owner)) {
        proto_body_t body = {.returned = {.transfer = transfer, .block_count = block_count}};
        actor_outbox_push(outbox, (actor_peer_t){owner & 255}, PROTO_KIND_RETURNED, 0, &body);
    }
}

/* No copy of it runs any more. */
static void
end_fence(actor_scheduler_core_t *self, uint64_t transfer, actor_outbox_t *outbox)
{
    sched_release_t release;
    if (sched_core_fenced(self->library, transfer, &release) == STATUS_OK) {
        tell_returned(self, release.owner, transfer, release.block_count, outbox);
    } else {
        self->ignored_count++;
    }
}

/* Asks a loan back; without a kv-transfer nothing can touch it. */
static proto_status_t
ask_back(actor_scheduler_core_t *self, uint64_t transfer, actor_outbox_t *outbox)
{
    sched_release_t release;
    proto_status_t status = sched_core_release(self->library, transfer, &release);
    if (status != STATUS_OK) {
        return status;
    }
    if (release.is_back) {
        tell_returned(self, release.owner, transfer, release.block_count, outbox);
    } else if (self->kv_transfer.index == ACTOR_PEER_NONE) {
        end_fence(self, transfer, outbox);
    } else {
        proto_body_t body = {.fence = {.generation = ++self->fence_count, .transfer = transfer}};
        actor_outbox_push(outbox, self->kv_transfer, PROTO_KIND_FENCE, 0, &body);
    }
    return STATUS_OK;
}

/* ---- what roles ask -------------------------------------------------------------------------- */

static void
refuse_reserve(actor_scheduler_core_t *self, const actor_input_t *input, proto_status_t status,
               actor_outbox_t *outbox)
{
    const proto_reserve_t *reserve = &input->body->reserve;
    bool later = status == STATUS_ERR_OVERLOADED || status == STATUS_ERR_REFUSED;
    const char *code = status == STATUS_ERR_OVERLOADED   ? "overloaded"
                       : status == STATUS_ERR_REFUSED    ? "no_executor"
                       : status == STATUS_ERR_NEVER_FITS ? "never_fits"
                                                         : "invalid";
    char detail[160];
    (void)snprintf(detail, sizeof detail, "%s: a reservation for %u tokens and %u to generate",
                   proto_status_text(status), reserve->prompt_length, reserve->generation_max);
    proto_body_t body = {
        .finished = {.reason = PROTO_FINISH_REFUSED,
                     .status = status,
                     .code = proto_text(code),
                     .detail = proto_text(detail),
                     .retry_after_ms = later ? SCHEDULER_RETRY_AFTER_MS : 0},
    };
    actor_outbox_push(outbox, input->from, PROTO_KIND_FINISHED, input->header->request, &body);
    self->refused_count++;
}

void
actor_scheduler_reserve(actor_scheduler_core_t *self, const actor_input_t *input,
                        actor_outbox_t *outbox)
{
    const proto_reserve_t *reserve = &input->body->reserve;
    sched_reserve_t wanted = {
        .transfer = reserve->transfer,
        .owner = actor_scheduler_owner(self, input->from.index),
        .prompt_length = reserve->prompt_length,
        .generation_max = reserve->generation_max,
        .priority = reserve->priority, /* its timeout is the role's to watch */
        .page_hashes = reserve->page_hashes,
    };
    proto_status_t status = sched_core_reserve(self->library, &wanted);
    if (status == STATUS_ERR_STALE) {
        self->ignored_count++; /* a duplicate: its first copy gets the answer */
    } else if (status != STATUS_OK) {
        refuse_reserve(self, input, status, outbox);
    }
}

void
actor_scheduler_activate(actor_scheduler_core_t *self, const actor_input_t *input,
                         actor_outbox_t *outbox)
{
    const proto_activate_t *activate = &input->body->activate;
    /* The rest is that of any SUBMIT. */
    proto_body_t body = {
        .submit = {.prompt_length = activate->tokens.count,
                   .generation_max = activate->generation_max,
                   .emitted = activate->emitted,
                   .priority = activate->priority,
                   .queue_timeout_ns = activate->queue_timeout_ns,
                   .page_hashes = activate->page_hashes,
                   .tokens = activate->tokens,
                   .sampling = activate->sampling,
                   .transfer = activate->transfer},
    };
    actor_input_t submit = *input;
    submit.body = &body;
    actor_scheduler_submit_as(self, &submit, true, outbox);
}

void
actor_scheduler_release(actor_scheduler_core_t *self, const actor_input_t *input,
                        actor_outbox_t *outbox)
{
    uint64_t transfer = input->body->release.transfer;
    proto_status_t status = ask_back(self, transfer, outbox);
    if (status == STATUS_ERR_NOT_FOUND) {
        /* Nothing of it is lent: that is what was asked for. */
        tell_returned(self, actor_scheduler_owner(self, input->from.index), transfer, 0, outbox);
    }
}

void
actor_scheduler_lose_role(actor_scheduler_core_t *self, uint32_t owner, actor_outbox_t *outbox)
{
    uint64_t transfer = sched_core_loan_of(self->library, owner);
    while (transfer != 0) {
        proto_status_t status = ask_back(self, transfer, outbox);
        require(status == STATUS_OK);
        transfer = sched_core_loan_of(self->library, owner);
    }
}

/* ---- kv-transfer ----------------------------------------------------------------------------- */

void
actor_scheduler_fenced(actor_scheduler_core_t *self, const actor_input_t *input,
                       actor_outbox_t *outbox)
{
    if (input->from.index != self->kv_transfer.index) {
        self->ignored_count++;
        return;
    }
    end_fence(self, input->body->fenced.transfer, outbox);
}

void
actor_scheduler_lose_kv_transfer(actor_scheduler_core_t *self, actor_outbox_t *outbox)
{
    self->kv_transfer.index = ACTOR_PEER_NONE;
    actor_scheduler_end_fences(self, outbox);
}

void
actor_scheduler_end_fences(actor_scheduler_core_t *self, actor_outbox_t *outbox)
{
    uint64_t transfer = sched_core_next_fencing(self->library, 0);
    while (transfer != 0) {
        end_fence(self, transfer, outbox);
        transfer = sched_core_next_fencing(self->library, transfer);
    }
}

/* ---- what the library has to tell ------------------------------------------------------------ */

void
actor_scheduler_send_parts(actor_scheduler_core_t *self, actor_outbox_t *outbox)
{
    sched_part_t part;
    while (sched_core_take_part(self->library, &part)) {
        if (self->kv_transfer.index == ACTOR_PEER_NONE) {
            continue; /* its role knows, and gives the transfer up */
        }
        proto_body_t body = {.transfer_part = {.transfer = part.transfer,
                                               .part = part.part,
                                               .step = part.step,
                                               .begin = part.begin,
                                               .end = part.end,
                                               .is_last = part.is_last}};
        proto_transfer_part_t *out = &body.transfer_part;
        put_runs(&part.runs, &out->run_groups, &out->run_columns, &out->run_counts,
                 &out->run_blocks, &out->run_generations);
        actor_outbox_push(outbox, self->kv_transfer, PROTO_KIND_TRANSFER_PART, 0, &body);
    }
}

void
actor_scheduler_send_reserved(actor_scheduler_core_t *self, actor_outbox_t *outbox)
{
    self->has_more_reserved = false;
    sched_reserved_t reserved;
    for (uint32_t i = 0; i < SCHEDULER_RESERVED_MAX; i++) {
        if (!sched_core_take_reserved(self->library, &reserved)) {
            return;
        }
        if (!actor_scheduler_owner_is_there(self, reserved.owner) ||
            !is_role(self, reserved.owner & 255)) {
            continue;
        }
        proto_body_t body = {.reserved = {.transfer = reserved.transfer,
                                          .computed = reserved.computed,
                                          .wanted = reserved.wanted,
                                          .fingerprint = self->info.fingerprint}};
        proto_reserved_t *out = &body.reserved;
        put_runs(&reserved.runs, &out->run_groups, &out->run_columns, &out->run_counts,
                 &out->run_blocks, &out->run_generations);
        actor_outbox_push(outbox, (actor_peer_t){reserved.owner & 255}, PROTO_KIND_RESERVED, 0,
                          &body);
    }
    self->has_more_reserved = true;
}
