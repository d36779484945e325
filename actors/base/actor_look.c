#include "actor_look.h"

#include <string.h>

#include "proto_require.h"

uint32_t
actor_look_milliseconds(uint64_t duration_ns)
{
    uint64_t value = duration_ns / UINT64_C(1000000);
    return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

/* The columns of one message; large, and one thread answers. */
typedef struct {
    uint64_t requests[PROTO_LOOK_ROWS_MAX];
    uint8_t states[PROTO_LOOK_ROWS_MAX];
    uint8_t waits[PROTO_LOOK_ROWS_MAX];
    uint64_t holders[PROTO_LOOK_ROWS_MAX];
    uint32_t needed[PROTO_LOOK_ROWS_MAX];
    uint32_t available[PROTO_LOOK_ROWS_MAX];
    uint32_t ages_ms[PROTO_LOOK_ROWS_MAX];
    uint32_t prompt_tokens[PROTO_LOOK_ROWS_MAX];
    uint32_t computed_tokens[PROTO_LOOK_ROWS_MAX];
    uint32_t generated_tokens[PROTO_LOOK_ROWS_MAX];
    uint32_t generation_max[PROTO_LOOK_ROWS_MAX];
    uint32_t blocks[PROTO_LOOK_ROWS_MAX];
    uint32_t slots[PROTO_LOOK_ROWS_MAX];
    int32_t priorities[PROTO_LOOK_ROWS_MAX];
    uint8_t name_sizes[PROTO_LOOK_ROWS_MAX];
    uint8_t names[PROTO_LOOK_ROWS_MAX * (ACTOR_LOOK_NAME_SIZE_BYTES - 1)];
    uint32_t names_size;
} columns_t;

static void
add(columns_t *columns, uint32_t at, const actor_look_row_t *row)
{
    columns->requests[at] = row->request;
    columns->states[at] = (uint8_t)row->state;
    columns->waits[at] = (uint8_t)row->wait;
    columns->holders[at] = row->holder;
    columns->needed[at] = row->needed;
    columns->available[at] = row->available;
    columns->ages_ms[at] = row->age_ms;
    columns->prompt_tokens[at] = row->prompt_tokens;
    columns->computed_tokens[at] = row->computed_tokens;
    columns->generated_tokens[at] = row->generated_tokens;
    columns->generation_max[at] = row->generation_max;
    columns->blocks[at] = row->block_count;
    columns->slots[at] = row->slot;
    columns->priorities[at] = row->priority;
    size_t size = strlen(row->name);
    require(size < ACTOR_LOOK_NAME_SIZE_BYTES);
    columns->name_sizes[at] = (uint8_t)size;
    memcpy(columns->names + columns->names_size, row->name, size);
    columns->names_size += (uint32_t)size;
}

void
actor_look_show(actor_shell_t *shell, const actor_look_answer_t *answer)
{
    require(answer->count <= PROTO_LOOK_ROWS_MAX);
    columns_t columns = {.names_size = 0};
    for (uint32_t at = 0; at < answer->count; at++) {
        add(&columns, at, &answer->rows[at]);
    }
#define COLUMN(field) .field = {.data = columns.field, .count = answer->count}
    proto_body_t body = {
        .requests = {.total = answer->total,
                     .next = answer->next,
                     COLUMN(requests),
                     COLUMN(states),
                     COLUMN(waits),
                     COLUMN(holders),
                     COLUMN(needed),
                     COLUMN(available),
                     COLUMN(ages_ms),
                     COLUMN(prompt_tokens),
                     COLUMN(computed_tokens),
                     COLUMN(generated_tokens),
                     COLUMN(generation_max),
                     COLUMN(blocks),
                     COLUMN(slots),
                     COLUMN(priorities),
                     COLUMN(name_sizes),
                     .names = {.data = columns.names, .count = columns.names_size}},
    };
#undef COLUMN
    actor_shell_show(shell, answer->number, PROTO_KIND_REQUESTS, &body);
}

bool
actor_look_row(const proto_requests_t *requests, uint32_t index, actor_look_row_t *out)
{
    uint32_t count = requests->requests.count;
    bool agree =
        requests->states.count == count && requests->waits.count == count &&
        requests->holders.count == count && requests->needed.count == count &&
        requests->available.count == count && requests->ages_ms.count == count &&
        requests->prompt_tokens.count == count && requests->computed_tokens.count == count &&
        requests->generated_tokens.count == count && requests->generation_max.count == count &&
        requests->blocks.count == count && requests->slots.count == count &&
        requests->priorities.count == count && requests->name_sizes.count == count;
    if (!agree || index >= count) {
        return false;
    }
    uint32_t name_at = 0;
    for (uint32_t i = 0; i < index; i++) {
        name_at += requests->name_sizes.data[i];
    }
    uint32_t name_size = requests->name_sizes.data[index];
    if (name_size >= ACTOR_LOOK_NAME_SIZE_BYTES || name_at + name_size > requests->names.count) {
        return false;
    }
    *out = (actor_look_row_t){
        .request = requests->requests.data[index],
        .state = (proto_request_state_t)requests->states.data[index],
        .wait = (proto_wait_t)requests->waits.data[index],
        .holder = requests->holders.data[index],
        .needed = requests->needed.data[index],
        .available = requests->available.data[index],
        .age_ms = requests->ages_ms.data[index],
        .prompt_tokens = requests->prompt_tokens.data[index],
        .computed_tokens = requests->computed_tokens.data[index],
        .generated_tokens = requests->generated_tokens.data[index],
        .generation_max = requests->generation_max.data[index],
        .block_count = requests->blocks.data[index],
        .slot = requests->slots.data[index],
        .priority = requests->priorities.data[index],
    };
    if (name_size > 0) {
        memcpy(out->name, requests->names.data + name_at, name_size);
    }
    return true;
}

const char *
actor_look_state_name(proto_request_state_t state)
{
    static const char *const names[] = {
        [PROTO_REQUEST_WAITING] = "waiting",     [PROTO_REQUEST_SUBMITTED] = "submitted",
        [PROTO_REQUEST_STREAMING] = "streaming", [PROTO_REQUEST_STOPPING] = "stopping",
        [PROTO_REQUEST_QUEUED] = "queued",       [PROTO_REQUEST_PREFILL] = "prefill",
        [PROTO_REQUEST_DECODE] = "decode",       [PROTO_REQUEST_RETRACTED] = "retracted",
    };
    return (size_t)state < sizeof names / sizeof names[0] ? names[state] : "unknown";
}

const char *
actor_look_wait_name(proto_wait_t wait)
{
    static const char *const names[] = {
        [PROTO_WAIT_NOTHING] = "nothing",     [PROTO_WAIT_EXECUTOR] = "executor",
        [PROTO_WAIT_SLOT] = "slot",           [PROTO_WAIT_BLOCKS] = "blocks",
        [PROTO_WAIT_RETRACTED] = "retracted", [PROTO_WAIT_HEAD] = "head",
        [PROTO_WAIT_TURN] = "turn",           [PROTO_WAIT_STEP] = "step",
        [PROTO_WAIT_SCHEDULER] = "scheduler",
    };
    return (size_t)wait < sizeof names / sizeof names[0] ? names[wait] : "unknown";
}
