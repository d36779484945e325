#include "sched_state.h"

#include <stddef.h>
#include <stdint.h>

enum { NONE = -1 };

/* Rows are states, columns are moves in the order of sched_move_t.  A result never reaches a
 * request that holds no blocks: its rows are cut loose when it loses them. */
static const int8_t table[SCHED_STATE_COUNT][SCHED_MOVE_COUNT] = {
    [SCHED_STATE_SUBMITTED] = {SCHED_STATE_PREFILLING, SCHED_STATE_PREFILL_DONE, NONE, NONE, NONE,
                               SCHED_STATE_FINISHED, SCHED_STATE_FINISHED},
    [SCHED_STATE_PREFILLING] = {SCHED_STATE_PREFILLING, SCHED_STATE_PREFILL_DONE, NONE,
                                SCHED_STATE_PREFILLING, SCHED_STATE_RETRACTED, SCHED_STATE_FINISHED,
                                SCHED_STATE_FINISHED},
    [SCHED_STATE_PREFILL_DONE] = {NONE, NONE, SCHED_STATE_DECODING, SCHED_STATE_PREFILL_DONE,
                                  SCHED_STATE_RETRACTED, SCHED_STATE_FINISHED,
                                  SCHED_STATE_FINISHED},
    [SCHED_STATE_DECODING] = {NONE, NONE, SCHED_STATE_DECODING, SCHED_STATE_DECODING,
                              SCHED_STATE_RETRACTED, SCHED_STATE_FINISHED, SCHED_STATE_FINISHED},
    [SCHED_STATE_RETRACTED] = {SCHED_STATE_PREFILLING, SCHED_STATE_PREFILL_DONE, NONE, NONE, NONE,
                               SCHED_STATE_FINISHED, SCHED_STATE_FINISHED},
    [SCHED_STATE_FINISHED] = {NONE, NONE, NONE, SCHED_STATE_FINISHED, SCHED_STATE_FINISHED,
                              SCHED_STATE_FINISHED, SCHED_STATE_FINISHED},
};

proto_status_t
sched_state_next(sched_state_t state, sched_move_t move, sched_state_t *next)
{
    if ((unsigned)state >= SCHED_STATE_COUNT || (unsigned)move >= SCHED_MOVE_COUNT) {
        return STATUS_ERR_INVALID;
    }
    int8_t value = table[state][move];
    if (value == NONE) {
        return STATUS_ERR_INVALID;
    }
    *next = (sched_state_t)value;
    return STATUS_OK;
}

const char *
sched_state_name(sched_state_t state)
{
    static const char *const names[SCHED_STATE_COUNT] = {
        "submitted", "prefilling", "prefill-done", "decoding", "retracted", "finished",
    };
    return (unsigned)state < SCHED_STATE_COUNT ? names[state] : "unknown";
}

const char *
sched_move_name(sched_move_t move)
{
    static const char *const names[SCHED_MOVE_COUNT] = {
        "prefill", "prefill-last", "decode", "result", "retract", "finish", "abort",
    };
    return (unsigned)move < SCHED_MOVE_COUNT ? names[move] : "unknown";
}
