/* actor_gateway_poison.c - choices whose executors die.
 *
 * A request that makes its executor crash would be resumed on the next one, and end that too, until
 * the supervisor gives the node up.  So deaths are counted for each choice that was in a step when
 * the executor died.  The first one proves nothing: all of them go on.  At the second it is the
 * only one of its step, or they are tried one at a time: while one is on trial the other suspects
 * wait, and the next death is its own.  Tokens that came since clear a choice. */
#include "actor_gateway_state.h"

enum {
    KILLS_MAX = 2,
    /* Tokens since the last death that clear a choice.  A death at one position may come back a
     * token or two later: after a resume that position is computed by the prefill. */
    ACQUIT_TOKENS = 8,
};

bool
actor_gateway_blame(actor_gateway_core_t *self, actor_gateway_choice_t *choice, uint32_t suspects)
{
    bool alone = suspects == 1 || choice->is_trial;
    if (self->trial_count > 0 && !alone) {
        return false; /* the one on trial did it */
    }
    actor_gateway_table_begin(self->choices, choice);
    choice->kill_count++;
    choice->kill_index = choice->next_index;
    actor_gateway_table_end(self->choices, choice);
    return choice->kill_count >= KILLS_MAX && alone;
}

bool
actor_gateway_must_stand_back(const actor_gateway_core_t *self,
                              const actor_gateway_choice_t *choice)
{
    return choice->kill_count >= KILLS_MAX && self->trial_count > 0;
}

void
actor_gateway_try(actor_gateway_core_t *self, actor_gateway_choice_t *choice)
{
    if (choice->kill_count < KILLS_MAX) {
        return;
    }
    require(!choice->is_trial);
    require(self->trial_count == 0);
    actor_gateway_table_begin(self->choices, choice);
    choice->is_trial = true;
    actor_gateway_table_end(self->choices, choice);
    self->trial_count++;
}

void
actor_gateway_leave_trial(actor_gateway_core_t *self, actor_gateway_choice_t *choice)
{
    if (!choice->is_trial) {
        return;
    }
    actor_gateway_table_begin(self->choices, choice);
    choice->is_trial = false;
    actor_gateway_table_end(self->choices, choice);
    require(self->trial_count > 0);
    self->trial_count--;
    self->sweep_is_due = self->sweep_is_due || self->waiting_count > 0; /* the next suspect */
}

void
actor_gateway_acquit(actor_gateway_core_t *self, actor_gateway_choice_t *choice)
{
    if (choice->kill_count == 0 || choice->next_index - choice->kill_index < ACQUIT_TOKENS) {
        return;
    }
    actor_gateway_table_begin(self->choices, choice);
    choice->kill_count = 0;
    actor_gateway_table_end(self->choices, choice);
    actor_gateway_leave_trial(self, choice);
}
