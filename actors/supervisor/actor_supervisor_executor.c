/* actor_supervisor_executor.c - an operator's wishes for the executor: passed on with a number, and
 * answered once, by the executor that was asked or by us.
 *
 * Whoever no longer waits withdraws: the executor is told, so that no check runs later for nobody.
 * Part of the core. */
#include <string.h>

#include "actor_command.h"
#include "actor_supervisor_core.h"

#define SECOND_NS UINT64_C(1000000000)

static const char cancel_verb[] = "executor-cancel";
static const char graphs_verb[] = "executor-graphs";

#define WELCOME_NUMBER UINT64_MAX /* a command of ours, whose answer nobody waits for */

/* An operator must hear our answer before it gives up. */
_Static_assert(ACTOR_SUPERVISOR_CHECK_S + 5 <= ACTOR_COMMAND_TIMEOUT_S &&
                   ACTOR_SUPERVISOR_WISH_S <= ACTOR_SUPERVISOR_CHECK_S,
               "the client waits longer than any wish");

static bool
is_check(const actor_supervisor_command_t *command)
{
    return strcmp(command->verb, "executor-check") == 0;
}

/* We alone say that one: no operator's word is taken for it. */
bool
actor_supervisor_wish_is_for_executor(const char *verb)
{
    return strncmp(verb, "executor-", 9) == 0 && strcmp(verb, cancel_verb) != 0;
}

void
actor_supervisor_core_answer(actor_supervisor_core_t *self, uint64_t number,
                             const proto_command_done_t *done, actor_outbox_t *outbox)
{
    for (uint32_t i = 0; number != 0 && i < ACTOR_SUPERVISOR_COMMAND_COUNT_MAX; i++) {
        actor_supervisor_command_t *command = &self->commands[i];
        if (command->number == number) {
            proto_body_t body = {.command_done = *done};
            actor_outbox_push(outbox, (actor_peer_t){command->peer}, PROTO_KIND_COMMAND_DONE, 0,
                              &body);
            command->number = 0;
        }
    }
}

static void
answer(actor_supervisor_core_t *self, const actor_supervisor_command_t *command,
       proto_status_t status, const char *detail, actor_outbox_t *outbox)
{
    const proto_command_done_t done = {.status = status, .detail = proto_text(detail)};
    actor_supervisor_core_answer(self, command->number, &done, outbox);
}

static void
withdraw(const actor_supervisor_core_t *self, const actor_supervisor_command_t *command,
         actor_outbox_t *outbox)
{
    uint32_t peer = self->members[command->asked - 1].peer;
    if (peer != ACTOR_PEER_NONE && actor_supervisor_wish_is_for_executor(command->verb)) {
        proto_body_t body = {.command = {.verb = proto_text(cancel_verb)}};
        actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_COMMAND, command->number, &body);
    }
}

static uint32_t
find_executor(const actor_supervisor_core_t *self)
{
    for (uint32_t index = 0; index < self->member_count; index++) {
        const actor_supervisor_member_t *member = &self->members[index];
        if (member->role == PROTO_ROLE_EXECUTOR && member->peer != ACTOR_PEER_NONE &&
            member->state == ACTOR_STATE_READY) {
            return index;
        }
    }
    return self->member_count;
}

static bool
has_check(const actor_supervisor_core_t *self, uint32_t index)
{
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_COMMAND_COUNT_MAX; i++) {
        const actor_supervisor_command_t *other = &self->commands[i];
        if (other->number != 0 && other->asked == index + 1 && is_check(other)) {
            return true;
        }
    }
    return false;
}

void
actor_supervisor_wish_ask(actor_supervisor_core_t *self, actor_supervisor_command_t *command,
                          uint64_t now_ns, actor_outbox_t *outbox)
{
    uint32_t index = find_executor(self);
    if (index == self->member_count) {
        answer(self, command, STATUS_ERR_OVERLOADED, "no executor is ready; try again in a moment",
               outbox);
        return;
    }
    if (is_check(command) && has_check(self, index)) {
        answer(self, command, STATUS_ERR_OVERLOADED,
               "another check waits for its step; try again in a moment", outbox);
        return;
    }
    command->asked = index + 1;
    command->until_ns = now_ns + (is_check(command) ? ACTOR_SUPERVISOR_CHECK_S * SECOND_NS
                                                    : ACTOR_SUPERVISOR_WISH_S * SECOND_NS);
    proto_body_t body = {
        .command = {.verb = proto_text(command->verb), .argument = proto_text(command->argument)}};
    actor_outbox_push(outbox, (actor_peer_t){self->members[index].peer}, PROTO_KIND_COMMAND,
                      command->number, &body);
}

void
actor_supervisor_wish_done(actor_supervisor_core_t *self, uint32_t index, uint64_t number,
                           const proto_command_done_t *done, actor_outbox_t *outbox)
{
    if (number == WELCOME_NUMBER) {
        return; /* of our own accord */
    }
    for (uint32_t i = 0; number != 0 && i < ACTOR_SUPERVISOR_COMMAND_COUNT_MAX; i++) {
        actor_supervisor_command_t *command = &self->commands[i];
        if (command->number == number && command->asked == index + 1) {
            if (strcmp(command->verb, graphs_verb) == 0 && done->status == STATUS_OK) {
                self->graphs_are_off = strcmp(command->argument, "off") == 0;
            }
            actor_supervisor_core_answer(self, number, done, outbox);
            return;
        }
    }
    self->refused_count++;
}

void
actor_supervisor_wish_welcome(const actor_supervisor_core_t *self, uint32_t peer,
                              actor_outbox_t *outbox)
{
    if (self->graphs_are_off && peer != ACTOR_PEER_NONE) {
        proto_body_t body = {
            .command = {.verb = proto_text(graphs_verb), .argument = proto_text("off")}};
        actor_outbox_push(outbox, (actor_peer_t){peer}, PROTO_KIND_COMMAND, WELCOME_NUMBER, &body);
    }
}

void
actor_supervisor_wish_member_down(actor_supervisor_core_t *self, uint32_t index,
                                  actor_outbox_t *outbox)
{
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_COMMAND_COUNT_MAX; i++) {
        if (self->commands[i].number != 0 && self->commands[i].asked == index + 1) {
            answer(self, &self->commands[i], STATUS_ERR_PEER_LOST,
                   self->members[index].role == PROTO_ROLE_EXECUTOR ? "the executor ended meanwhile"
                                                                    : "it ended meanwhile",
                   outbox);
        }
    }
}

void
actor_supervisor_wish_client_down(actor_supervisor_core_t *self, uint32_t peer,
                                  actor_outbox_t *outbox)
{
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_COMMAND_COUNT_MAX; i++) {
        actor_supervisor_command_t *command = &self->commands[i];
        if (command->number == 0 || command->peer != peer) {
            continue;
        }
        if (command->asked != 0) {
            withdraw(self, command, outbox);
        }
        command->number = 0;
    }
}

void
actor_supervisor_wish_timer(actor_supervisor_core_t *self, uint64_t now_ns, actor_outbox_t *outbox)
{
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_COMMAND_COUNT_MAX; i++) {
        const actor_supervisor_command_t *command = &self->commands[i];
        if (command->number == 0 || command->asked == 0 || now_ns < command->until_ns) {
            continue;
        }
        withdraw(self, command, outbox);
        answer(self, command, STATUS_ERR_DEADLINE,
               strcmp(command->verb, "log-level") == 0 ? "it is too busy to answer"
               : is_check(command)
                   ? "no step came that could be checked: a check needs a request that "
                     "generates, in a batch that has a graph"
                   : "the executor is too busy to answer; look with `onepath executor show` "
                     "before you ask again",
               outbox);
    }
}

uint64_t
actor_supervisor_wish_deadline_ns(const actor_supervisor_core_t *self)
{
    uint64_t first_ns = UINT64_MAX;
    for (uint32_t i = 0; i < ACTOR_SUPERVISOR_COMMAND_COUNT_MAX; i++) {
        const actor_supervisor_command_t *command = &self->commands[i];
        if (command->number != 0 && command->asked != 0 && command->until_ns < first_ns) {
            first_ns = command->until_ns;
        }
    }
    return first_ns;
}
