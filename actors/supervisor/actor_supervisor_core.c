#include "actor_supervisor_core.h"

#include <stdio.h>
#include <string.h>

#include "proto_require.h"

void
actor_supervisor_core_init(actor_supervisor_core_t *self, const actor_supervisor_child_t *children,
                           uint32_t child_count)
{
    require(child_count <= ACTOR_SUPERVISOR_CHILD_COUNT_MAX);
    *self = (actor_supervisor_core_t){.member_count = child_count};
    for (uint32_t index = 0; index < child_count; index++) {
        actor_supervisor_member_t *member = &self->members[index];
        (void)snprintf(member->name, sizeof member->name, "%s", children[index].name);
        member->role = children[index].role;
        member->peer = ACTOR_PEER_NONE;
    }
}

void
actor_supervisor_core_begin(actor_supervisor_core_t *self, uint32_t index, uint64_t epoch)
{
    actor_supervisor_member_t *member = &self->members[index];
    member->epoch = epoch;
    member->peer = ACTOR_PEER_NONE;
    member->down_ns = 0;
    member->state = 0;
    member->done_bytes = 0;
    member->total_bytes = 0;
    member->detail[0] = '\0';
    member->state_changed = false;
    member->stuck = false;
    member->scheduler = (actor_supervisor_scheduler_link_t){.epoch = 0};
}

static void
copy_text(char *out, size_t capacity_bytes, proto_text_t text)
{
    (void)snprintf(out, capacity_bytes, "%.*s", (int)text.size_bytes,
                   text.data != NULL ? text.data : "");
}

static actor_supervisor_member_t *
find_peer(actor_supervisor_core_t *self, uint32_t peer)
{
    for (uint32_t index = 0; index < self->member_count; index++) {
        if (self->members[index].peer == peer) {
            return &self->members[index];
        }
    }
    return NULL;
}

static void
peer_up(actor_supervisor_core_t *self, const proto_peer_up_t *up)
{
    for (uint32_t index = 0; index < self->member_count; index++) {
        actor_supervisor_member_t *member = &self->members[index];
        if (strlen(member->name) == up->name.size_bytes &&
            memcmp(member->name, up->name.data, up->name.size_bytes) == 0 &&
            member->epoch == up->epoch) {
            member->peer = up->peer;
            member->down_ns = 0;
        }
    }
}

static void
actor_state(actor_supervisor_member_t *member, const proto_actor_state_t *state)
{
    member->state = state->state;
    member->done_bytes = state->done_bytes;
    member->total_bytes = state->total_bytes;
    copy_text(member->detail, sizeof member->detail, state->detail);
    member->state_changed = true;
}

static void
linked(actor_supervisor_member_t *member, const proto_linked_t *to)
{
    if (to->role != (uint32_t)PROTO_ROLE_SCHEDULER) {
        return;
    }
    actor_supervisor_scheduler_link_t *link = &member->scheduler;
    copy_text(link->name, sizeof link->name, to->name);
    copy_text(link->endpoint, sizeof link->endpoint, to->endpoint);
    link->epoch = to->epoch;
}

static void
complaint(actor_supervisor_member_t *member, const proto_complaint_t *said)
{
    if (said->role != (uint32_t)PROTO_ROLE_SCHEDULER) {
        return;
    }
    actor_supervisor_scheduler_link_t *link = &member->scheduler;
    link->complained = true;
    link->reason = (proto_complaint_reason_t)said->reason;
    copy_text(link->detail, sizeof link->detail, said->detail);
    if (link->reason == PROTO_COMPLAINT_LOST) {
        link->endpoint[0] = '\0';
    }
}

/* An operator's wish; a second one before the first was looked at is told to come again. */
static void
command(actor_supervisor_core_t *self, uint32_t peer, const proto_command_t *wish,
        actor_outbox_t *outbox)
{
    if (self->command.is_new) {
        proto_body_t body = {.command_done = {.status = STATUS_ERR_OVERLOADED,
                                              .detail = proto_text("another command is in work")}};
        actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_COMMAND_DONE, 0, &body);
        return;
    }
    self->command.is_new = true;
    self->command.peer = peer;
    copy_text(self->command.verb, sizeof self->command.verb, wish->verb);
    copy_text(self->command.argument, sizeof self->command.argument, wish->argument);
}

static void
broadcast_down(actor_supervisor_core_t *self, const proto_body_t *body, actor_outbox_t *outbox)
{
    for (uint32_t index = 0; index < self->member_count; index++) {
        const actor_supervisor_member_t *member = &self->members[index];
        bool concerned =
            strlen(member->name) == body->down.name.size_bytes &&
            memcmp(member->name, body->down.name.data, body->down.name.size_bytes) == 0;
        if (member->peer != ACTOR_PEER_NONE && !concerned) {
            actor_outbox_push(outbox, (actor_peer_t){member->peer}, PROTO_KIND_DOWN, 0, body);
        }
    }
}

/* What the process side asks for. */
static void
step_local(actor_supervisor_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_body_t *body = input->body;
    if (input->header->kind == PROTO_KIND_PEER_UP) {
        peer_up(self, &body->peer_up);
    } else if (input->header->kind == PROTO_KIND_PEER_DOWN) {
        actor_supervisor_member_t *member = find_peer(self, body->peer_down.peer);
        if (member != NULL) {
            member->peer = ACTOR_PEER_NONE;
            member->down_ns = input->now_ns;
        }
    } else if (input->header->kind == PROTO_KIND_STOP || input->header->kind == PROTO_KIND_RELINK ||
               input->header->kind == PROTO_KIND_COMMAND) {
        require(input->header->request >= 1 && input->header->request <= self->member_count);
        uint32_t peer = self->members[input->header->request - 1].peer;
        if (peer != ACTOR_PEER_NONE) {
            actor_outbox_push(outbox, (actor_peer_t){peer}, input->header->kind, 0, body);
        }
    } else if (input->header->kind == PROTO_KIND_COMMAND_DONE) {
        uint32_t peer = (uint32_t)input->header->request;
        actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_COMMAND_DONE, 0, body);
    } else if (input->header->kind == PROTO_KIND_DOWN) {
        broadcast_down(self, body, outbox);
    }
}

static void
core_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    actor_supervisor_core_t *self = core;
    if (input->from.index == ACTOR_PEER_LOCAL) {
        step_local(self, input, outbox);
        return;
    }
    actor_supervisor_member_t *member = find_peer(self, input->from.index);
    if (member == NULL) {
        /* Linked, but none of ours: somebody who may open our socket, so an operator. */
        if (input->header->kind == PROTO_KIND_COMMAND) {
            command(self, input->from.index, &input->body->command, outbox);
        }
        return;
    }
    if (input->header->kind == PROTO_KIND_ACTOR_STATE) {
        actor_state(member, &input->body->actor_state);
    } else if (input->header->kind == PROTO_KIND_STATS) {
        member->stats = input->body->stats;
    } else if (input->header->kind == PROTO_KIND_LINKED) {
        linked(member, &input->body->linked);
    } else if (input->header->kind == PROTO_KIND_COMPLAINT) {
        complaint(member, &input->body->complaint);
    } else if (input->header->kind == PROTO_KIND_COMMAND_DONE) {
        const proto_command_done_t *done = &input->body->command_done;
        self->executor_answer.is_new = true;
        self->executor_answer.status = (proto_status_t)done->status;
        copy_text(self->executor_answer.detail, sizeof self->executor_answer.detail, done->detail);
    } else if (input->header->kind == PROTO_KIND_HEARTBEAT) {
        const proto_heartbeat_t *beat = &input->body->heartbeat;
        member->step = beat->step;
        member->step_age_ns = beat->step_age_ns;
        member->stuck = beat->step_budget_ns > 0 && beat->step_age_ns > beat->step_budget_ns;
    }
}

static void
core_stats(const void *core, proto_stats_t *out)
{
    (void)core;
    (void)out; /* what the shell counts is all there is */
}

const actor_core_ops_t actor_supervisor_core_ops = {
    .name = "supervisor",
    .role = PROTO_ROLE_SUPERVISOR,
    .outbox_size_bytes = ACTOR_SUPERVISOR_CHILD_COUNT_MAX * 2048,
    .outbox_count_max = ACTOR_SUPERVISOR_CHILD_COUNT_MAX,
    .step = core_step,
    .stats = core_stats,
};
