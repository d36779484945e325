/* actor_supervisor_executor.c - an operator's wishes for the executor, passed on, and its answer
 * passed back. */
#include <string.h>

#include "actor_supervisor_private.h"

#define SECOND_NS UINT64_C(1000000000)

enum {
    ANSWER_S = 20, /* a check waits for a step that it can check */
};

static uint32_t
find_executor(const actor_supervisor_state_t *self)
{
    for (uint32_t index = 0; index < self->child_count; index++) {
        const actor_supervisor_member_t *member = &self->core.members[index];
        if (member->role == PROTO_ROLE_EXECUTOR && member->peer != ACTOR_PEER_NONE &&
            member->state == 2) {
            return index;
        }
    }
    return self->child_count;
}

void
actor_supervisor_ask_executor(actor_supervisor_state_t *self, const char *verb,
                              const char *argument)
{
    uint32_t index = find_executor(self);
    if (index == self->child_count) {
        actor_supervisor_answer(self, STATUS_ERR_OVERLOADED,
                                "no executor is ready; try again in a moment");
        return;
    }
    self->executor_index = index;
    self->executor_until_ns = self->now_ns + ANSWER_S * SECOND_NS;
    self->core.executor_answer.is_new = false;
    proto_body_t body = {.command = {.verb = proto_text(verb), .argument = proto_text(argument)}};
    actor_supervisor_inject(self, PROTO_KIND_COMMAND, index + 1, &body);
}

void
actor_supervisor_service_executor(actor_supervisor_state_t *self, uint64_t *wait_ns)
{
    if (self->executor_until_ns == 0) {
        return;
    }
    actor_supervisor_answer_t *answer = &self->core.executor_answer;
    if (answer->is_new) {
        answer->is_new = false;
        self->executor_until_ns = 0;
        actor_supervisor_answer(self, answer->status, answer->detail);
    } else if (self->core.members[self->executor_index].peer == ACTOR_PEER_NONE) {
        self->executor_until_ns = 0;
        actor_supervisor_answer(self, STATUS_ERR_PEER_LOST, "the executor ended meanwhile");
    } else if (self->now_ns >= self->executor_until_ns) {
        self->executor_until_ns = 0;
        actor_supervisor_answer(self, STATUS_ERR_DEADLINE,
                                "no step came that could be checked: a check needs a request that "
                                "generates, in a batch that has a graph");
    } else {
        actor_supervisor_lower(wait_ns, self->executor_until_ns, self->now_ns);
    }
}
