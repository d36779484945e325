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
    member->heard_ns = 0;
    member->link_count = 0;
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
peer_up(actor_supervisor_core_t *self, const proto_peer_up_t *up, actor_outbox_t *outbox)
{
    for (uint32_t index = 0; index < self->member_count; index++) {
        actor_supervisor_member_t *member = &self->members[index];
        if (strlen(member->name) == up->name.size_bytes &&
            memcmp(member->name, up->name.data, up->name.size_bytes) == 0 &&
            member->epoch == up->epoch) {
            member->peer = up->peer;
            member->down_ns = 0;
            actor_supervisor_drain_welcome(self, index, outbox);
        }
    }
}

static void
actor_state(actor_supervisor_core_t *self, actor_supervisor_member_t *member,
            const proto_actor_state_t *state, actor_outbox_t *outbox)
{
    bool is_new = state->state == ACTOR_STATE_READY && member->state != ACTOR_STATE_READY;
    member->state = state->state;
    member->done_bytes = state->done_bytes;
    member->total_bytes = state->total_bytes;
    copy_text(member->detail, sizeof member->detail, state->detail);
    member->state_changed = true;
    if (is_new && member->role == PROTO_ROLE_EXECUTOR) {
        actor_supervisor_wish_welcome(self, member->peer, outbox);
    }
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

/* An operator's wish gets a place until it has its answer. */
static void
command(actor_supervisor_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    actor_supervisor_command_t *place = NULL;
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_COMMAND_COUNT_MAX && place == NULL; i++) {
        place = self->commands[i].number == 0 ? &self->commands[i] : NULL;
    }
    if (place == NULL) {
        proto_body_t body = {
            .command_done = {.status = STATUS_ERR_OVERLOADED,
                             .detail = proto_text("too many commands wait for their answers; "
                                                  "try again in a moment")}};
        actor_outbox_push(outbox, input->from, PROTO_KIND_COMMAND_DONE, 0, &body);
        return;
    }
    *place =
        (actor_supervisor_command_t){.number = ++self->command_last, .peer = input->from.index};
    copy_text(place->verb, sizeof place->verb, input->body->command.verb);
    copy_text(place->argument, sizeof place->argument, input->body->command.argument);
    if (actor_supervisor_wish_is_for_executor(place->verb)) {
        actor_supervisor_wish_ask(self, place, input->now_ns, outbox);
    } else if (!actor_supervisor_drain_ask(self, place, outbox) &&
               !actor_supervisor_level_ask(self, place, input->now_ns, outbox)) {
        place->is_new = true;
    }
}

actor_supervisor_command_t *
actor_supervisor_core_next(actor_supervisor_core_t *self)
{
    actor_supervisor_command_t *oldest = NULL;
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_COMMAND_COUNT_MAX; i++) {
        actor_supervisor_command_t *command = &self->commands[i];
        if (command->number != 0 && command->is_new &&
            (oldest == NULL || command->number < oldest->number)) {
            oldest = command;
        }
    }
    return oldest;
}

/* The end of a process: all others hear of it, and nobody waits for its answer any more. */
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
        if (concerned) {
            actor_supervisor_wish_member_down(self, index, outbox);
            actor_supervisor_look_member_down(self, index, outbox);
        }
    }
}

static void
peer_down(actor_supervisor_core_t *self, uint32_t peer, uint64_t now_ns, actor_outbox_t *outbox)
{
    actor_supervisor_member_t *member = find_peer(self, peer);
    if (member == NULL) {
        actor_supervisor_wish_client_down(self, peer, outbox);
        actor_supervisor_look_client_down(self, peer);
        return;
    }
    member->peer = ACTOR_PEER_NONE;
    member->down_ns = now_ns;
    actor_supervisor_wish_member_down(self, (uint32_t)(member - self->members), outbox);
    actor_supervisor_look_member_down(self, (uint32_t)(member - self->members), outbox);
}

/* What the process side asks for. */
static void
step_local(actor_supervisor_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_body_t *body = input->body;
    if (input->header->kind == PROTO_KIND_PEER_UP) {
        peer_up(self, &body->peer_up, outbox);
    } else if (input->header->kind == PROTO_KIND_PEER_DOWN) {
        peer_down(self, body->peer_down.peer, input->now_ns, outbox);
    } else if (input->header->kind == PROTO_KIND_TIMER) {
        actor_supervisor_wish_timer(self, input->now_ns, outbox);
        actor_supervisor_look_timer(self, input->now_ns, outbox);
    } else if (input->header->kind == PROTO_KIND_STOP || input->header->kind == PROTO_KIND_RELINK) {
        require(input->header->request >= 1 && input->header->request <= self->member_count);
        uint32_t peer = self->members[input->header->request - 1].peer;
        if (peer != ACTOR_PEER_NONE) {
            actor_outbox_push(outbox, (actor_peer_t){peer}, input->header->kind, 0, body);
        }
    } else if (input->header->kind == PROTO_KIND_COMMAND_DONE) {
        actor_supervisor_core_answer(self, input->header->request, &body->command_done, outbox);
    } else if (input->header->kind == PROTO_KIND_DOWN) {
        broadcast_down(self, body, outbox);
    } else if (input->header->kind == PROTO_KIND_ACTORS) {
        actor_supervisor_look_actors(self, input->header->request, body, outbox);
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
            command(self, input, outbox);
        } else if (input->header->kind == PROTO_KIND_LOOK) {
            actor_supervisor_look_ask(self, input, outbox);
        } else if (input->header->kind == PROTO_KIND_COMMAND_DONE) {
            self->refused_count++; /* nobody asked it for anything */
        }
        return;
    }
    member->heard_ns = input->now_ns;
    if (input->header->kind == PROTO_KIND_ACTOR_STATE) {
        actor_state(self, member, &input->body->actor_state, outbox);
    } else if (input->header->kind == PROTO_KIND_STATS) {
        member->stats = input->body->stats;
    } else if (input->header->kind == PROTO_KIND_LINKS) {
        actor_supervisor_look_links(member, &input->body->links);
    } else if (input->header->kind == PROTO_KIND_REQUESTS ||
               input->header->kind == PROTO_KIND_LOAD) {
        actor_supervisor_look_done(self, (uint32_t)(member - self->members), input, outbox);
    } else if (input->header->kind == PROTO_KIND_LINKED) {
        linked(member, &input->body->linked);
    } else if (input->header->kind == PROTO_KIND_COMPLAINT) {
        complaint(member, &input->body->complaint);
    } else if (input->header->kind == PROTO_KIND_COMMAND_DONE) {
        actor_supervisor_wish_done(self, (uint32_t)(member - self->members), input->header->request,
                                   &input->body->command_done, outbox);
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
    const actor_supervisor_core_t *self = core;
    out->refused_in = self->refused_count; /* the shell adds what it counts */
}

static uint64_t
core_deadline_ns(const void *core)
{
    uint64_t wish_ns = actor_supervisor_wish_deadline_ns(core);
    uint64_t look_ns = actor_supervisor_look_deadline_ns(core);
    return wish_ns < look_ns ? wish_ns : look_ns;
}

const actor_core_ops_t actor_supervisor_core_ops = {
    .name = "supervisor",
    .role = PROTO_ROLE_SUPERVISOR,
    /* A DOWN to each child, an answer and a withdrawal for each command, a refusal for each look;
     * or ACTORS to each child. */
    .outbox_size_bytes =
        (ACTOR_SUPERVISOR_CHILD_COUNT_MAX + 2 * ACTOR_SUPERVISOR_COMMAND_COUNT_MAX +
         ACTOR_SUPERVISOR_LOOK_COUNT_MAX) *
            2048 +
        ACTOR_SUPERVISOR_CHILD_COUNT_MAX * 40960,
    .outbox_count_max = ACTOR_SUPERVISOR_CHILD_COUNT_MAX + 2 * ACTOR_SUPERVISOR_COMMAND_COUNT_MAX +
                        ACTOR_SUPERVISOR_LOOK_COUNT_MAX,
    .step = core_step,
    .deadline_ns = core_deadline_ns,
    .stats = core_stats,
};
