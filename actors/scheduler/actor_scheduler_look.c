#include "actor_scheduler_look.h"

#include "actor_look.h"
#include "proto_clock.h"

static proto_request_state_t
state_of(sched_state_t state)
{
    switch (state) {
    case SCHED_STATE_SUBMITTED:
        return PROTO_REQUEST_QUEUED;
    case SCHED_STATE_PREFILLING:
    case SCHED_STATE_PREFILL_DONE:
        return PROTO_REQUEST_PREFILL;
    case SCHED_STATE_RETRACTED:
        return PROTO_REQUEST_RETRACTED;
    case SCHED_STATE_DECODING:
    case SCHED_STATE_FINISHED:
    case SCHED_STATE_COUNT:
        break;
    }
    return PROTO_REQUEST_DECODE;
}

static proto_wait_t
wait_of(sched_wait_t wait)
{
    static const proto_wait_t waits[] = {
        [SCHED_WAIT_NOTHING] = PROTO_WAIT_NOTHING,     [SCHED_WAIT_EXECUTOR] = PROTO_WAIT_EXECUTOR,
        [SCHED_WAIT_SLOT] = PROTO_WAIT_SLOT,           [SCHED_WAIT_BLOCKS] = PROTO_WAIT_BLOCKS,
        [SCHED_WAIT_RETRACTED] = PROTO_WAIT_RETRACTED, [SCHED_WAIT_HEAD] = PROTO_WAIT_HEAD,
        [SCHED_WAIT_TURN] = PROTO_WAIT_TURN,           [SCHED_WAIT_STEP] = PROTO_WAIT_STEP,
    };
    return (size_t)wait < sizeof waits / sizeof waits[0] ? waits[wait] : PROTO_WAIT_NOTHING;
}

static uint32_t
bounded(uint64_t value)
{
    return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

void
actor_scheduler_look_told(void *context, const proto_header_t *header, const proto_body_t *body)
{
    const actor_scheduler_look_t *self = context;
    if (header->kind != PROTO_KIND_LOOK || self->shell == NULL) {
        return;
    }
    const sched_core_t *library = actor_scheduler_core_library(self->core);
    sched_figures_t figures;
    sched_core_figures(library, &figures);
    actor_look_row_t rows[PROTO_LOOK_ROWS_MAX];
    actor_look_answer_t answer = {.number = header->request,
                                  .total = figures.running_count + figures.waiting_count,
                                  .rows = rows};
    uint64_t at = body->look.after;
    uint64_t now_ns = proto_clock_monotonic_ns(proto_clock_system());
    sched_seen_t seen;
    bool more = sched_core_look(library, now_ns, &at, &seen);
    while (more && answer.count < PROTO_LOOK_ROWS_MAX) {
        rows[answer.count++] = (actor_look_row_t){
            .request = seen.request,
            .state = state_of(seen.why.state),
            .wait = wait_of(seen.why.resource),
            .holder = seen.why.holder,
            .needed = bounded(seen.why.needed),
            .available = bounded(seen.why.available),
            .age_ms = actor_look_milliseconds(seen.why.waited_ns),
            .prompt_tokens = seen.prompt_length,
            .computed_tokens = seen.computed_count,
            .generated_tokens = seen.generated_count,
            .generation_max = seen.generation_max,
            .block_count = seen.block_count,
            .slot = seen.slot,
            .priority = (int32_t)seen.priority, /* within +-1e6 by the list of messages */
        };
        answer.next = at;
        more = sched_core_look(library, now_ns, &at, &seen);
    }
    answer.next = more ? answer.next : 0;
    actor_look_show(self->shell, &answer);
}
