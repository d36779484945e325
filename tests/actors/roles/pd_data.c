/* The fake data plane: a transfer's blocks are copied one at a time, some time after the step that
 * wrote them.  It is careless on purpose: between FENCE and FENCED it still copies,
 * and for a while after TRANSFER_CANCEL. */
#include <stdlib.h>
#include <string.h>

#include "pd_world.h"
#include "proto_require.h"

typedef struct {
    uint32_t group;
    uint32_t column;
    uint32_t block;
} cell_t;

typedef struct {
    uint64_t key;
    uint32_t source;  /* node; 0 = not known yet */
    bool is_expected; /* at the decode node */
    bool is_served;   /* at the source */
    bool is_dead[PD_NODE_COUNT];
    bool is_done[2]; /* told to the decode node, to the source */
    uint32_t wanted_count;
    cell_t wanted[PD_RUN_BLOCKS_MAX];
    bool has[PD_RUN_BLOCKS_MAX];
    uint32_t ready_count; /* of what the source's scheduler told of */
    cell_t ready[PD_RUN_BLOCKS_MAX];
    uint64_t steps[PD_RUN_BLOCKS_MAX];
    bool is_asked[PD_RUN_BLOCKS_MAX]; /* its copy is on the way, or done */
    bool is_last;
} transfer_t;

struct pd_data {
    transfer_t transfers[PD_TRANSFERS_MAX];
    uint32_t next;
};

struct pd_data *
pd_data_new(void)
{
    return calloc(1, sizeof(struct pd_data));
}

void
pd_data_destroy(struct pd_data **self_p)
{
    free(*self_p);
    *self_p = NULL;
}

static transfer_t *
find(pd_world_t *world, uint64_t key, bool makes)
{
    struct pd_data *self = world->data;
    for (uint32_t i = 0; i < PD_TRANSFERS_MAX; i++) {
        if (self->transfers[i].key == key) {
            return &self->transfers[i];
        }
    }
    if (!makes) {
        return NULL;
    }
    transfer_t *transfer = &self->transfers[self->next++ % PD_TRANSFERS_MAX];
    memset(transfer, 0, sizeof *transfer);
    transfer->key = key;
    return transfer;
}

static uint32_t
read_runs(cell_t *out, uint32_t at, proto_column_u8_t groups, proto_column_u32_t columns,
          proto_column_u32_t counts, proto_column_u32_t blocks)
{
    uint32_t block = 0;
    for (uint32_t r = 0; r < groups.count; r++) {
        for (uint32_t i = 0; i < counts.data[r]; i++) {
            require(at < PD_RUN_BLOCKS_MAX && block < blocks.count);
            out[at++] = (cell_t){groups.data[r], columns.data[r] + i, blocks.data[block++]};
        }
    }
    require(block == blocks.count);
    return at;
}

static void
tell_done(pd_world_t *world, transfer_t *transfer, uint32_t node, proto_status_t status)
{
    uint32_t kv = node * PD_MEMBERS + PD_KV;
    proto_body_t body = {
        .transfer_done = {.transfer = transfer->key,
                          .status = status,
                          .code = proto_text(status == STATUS_OK ? "" : "cancelled")}};
    pd_world_send(world, kv, node * PD_MEMBERS + PD_ROLE, PROTO_KIND_TRANSFER_DONE, 0, &body);
    transfer->is_done[node == 0 ? 0 : 1] = true;
}

/* Asks for copies of what is there and wanted; ends the transfer when all of it is. */
static void
push(pd_world_t *world, transfer_t *transfer)
{
    if (!transfer->is_expected || !transfer->is_served || transfer->is_dead[0] ||
        transfer->is_dead[transfer->source] || transfer->is_done[0]) {
        return;
    }
    uint64_t at = (uint64_t)(transfer - world->data->transfers);
    for (uint32_t i = 0; i < transfer->ready_count; i++) {
        if (transfer->is_asked[i] || transfer->steps[i] > world->done_step[transfer->source]) {
            continue;
        }
        for (uint32_t w = 0; w < transfer->wanted_count; w++) {
            if (transfer->wanted[w].group == transfer->ready[i].group &&
                transfer->wanted[w].column == transfer->ready[i].column) {
                uint64_t after = actor_sim_random_us(&world->random, 1, world->config.copy_max_us);
                pd_event_t *event = pd_world_event(world, PD_EVENT_COPY, 0, after);
                event->value = at << 32 | i << 16 | w;
                event->from_epoch = transfer->key;
                break;
            }
        }
        transfer->is_asked[i] = true;
    }
    bool whole = transfer->is_last;
    for (uint32_t w = 0; w < transfer->wanted_count; w++) {
        whole = whole && transfer->has[w];
    }
    /* The last step too: the last part may have had nothing that is wanted. */
    for (uint32_t i = 0; i < transfer->ready_count; i++) {
        whole = whole && transfer->is_asked[i];
    }
    if (whole) {
        tell_done(world, transfer, 0, STATUS_OK);
        tell_done(world, transfer, transfer->source, STATUS_OK);
    }
}

void
pd_data_copy(pd_world_t *world, uint64_t value)
{
    transfer_t *transfer = &world->data->transfers[value >> 32];
    uint32_t i = (uint32_t)(value >> 16) & 65535;
    uint32_t w = (uint32_t)value & 65535;
    if (transfer->is_dead[0] || transfer->is_dead[transfer->source] || transfer->source == 0) {
        return;
    }
    actor_sim_device_copy_block(world->devices[0], transfer->wanted[w].group,
                                transfer->wanted[w].block, world->devices[transfer->source],
                                transfer->ready[i].block);
    transfer->has[w] = true;
    push(world, transfer);
}

static void
on_part(pd_world_t *world, uint32_t node, const proto_transfer_part_t *part)
{
    transfer_t *transfer = find(world, part->transfer, true);
    uint32_t before = transfer->ready_count;
    transfer->source = node;
    transfer->ready_count = read_runs(transfer->ready, before, part->run_groups, part->run_columns,
                                      part->run_counts, part->run_blocks);
    for (uint32_t i = before; i < transfer->ready_count; i++) {
        transfer->steps[i] = part->step;
    }
    transfer->is_last = transfer->is_last || part->is_last;
    push(world, transfer);
}

static void
later(pd_world_t *world, uint32_t node, pd_event_kind_t kind, uint64_t value, uint64_t key)
{
    uint32_t kv = node * PD_MEMBERS + PD_KV;
    pd_event_t *event =
        pd_world_event(world, kind, kv,
                       actor_sim_random_us(&world->random, 1, world->config.copy_max_us));
    event->value = value;
    event->from_epoch = key;
    event->to_epoch = world->actors[kv].epoch;
}

void
pd_data_message(pd_world_t *world, uint32_t node, proto_kind_t kind, const proto_body_t *body)
{
    transfer_t *transfer = NULL;
    switch ((int)kind) {
    case PROTO_KIND_TRANSFER_EXPECT: {
        const proto_transfer_expect_t *expect = &body->transfer_expect;
        transfer = find(world, expect->transfer, true);
        transfer->is_expected = true;
        transfer->wanted_count =
            read_runs(transfer->wanted, 0, expect->run_groups, expect->run_columns,
                      expect->run_counts, expect->run_blocks);
        push(world, transfer);
        break;
    }
    case PROTO_KIND_TRANSFER_SERVE:
        transfer = find(world, body->transfer_serve.transfer, true);
        transfer->is_served = true;
        transfer->source = node;
        push(world, transfer);
        break;
    case PROTO_KIND_TRANSFER_PART:
        on_part(world, node, &body->transfer_part);
        break;
    case PROTO_KIND_TRANSFER_CANCEL:
        later(world, node, PD_EVENT_CANCELLED, 0, body->transfer_cancel.transfer);
        break;
    case PROTO_KIND_FENCE:
        later(world, node, PD_EVENT_FENCED, body->fence.generation, body->fence.transfer);
        break;
    default:
        break;
    }
}

void
pd_data_cancelled(pd_world_t *world, const pd_event_t *event)
{
    uint32_t node = event->to / PD_MEMBERS;
    transfer_t *transfer = find(world, event->from_epoch, true);
    transfer->is_dead[node] = true;
    if (!transfer->is_done[node == 0 ? 0 : 1]) {
        tell_done(world, transfer, node, STATUS_ERR_CANCELLED);
    }
}

/* Only now nothing of it is copied any more. */
void
pd_data_fenced(pd_world_t *world, const pd_event_t *event)
{
    uint32_t node = event->to / PD_MEMBERS;
    transfer_t *transfer = find(world, event->from_epoch, true);
    transfer->is_dead[node] = true;
    proto_body_t body = {.fenced = {.generation = event->value, .transfer = event->from_epoch}};
    pd_world_send(world, event->to, node * PD_MEMBERS + PD_SCHEDULER, PROTO_KIND_FENCED, 0, &body);
}

void
pd_data_step_done(pd_world_t *world, uint32_t node)
{
    for (uint32_t i = 0; i < PD_TRANSFERS_MAX; i++) {
        transfer_t *transfer = &world->data->transfers[i];
        if (transfer->key != 0 && transfer->source == node) {
            push(world, transfer);
        }
    }
}

/* A kv-transfer, or whoever's memory or blocks they were, is gone: nothing of its transfers goes
 * on. */
void
pd_data_lose(pd_world_t *world, uint32_t node)
{
    for (uint32_t i = 0; i < PD_TRANSFERS_MAX; i++) {
        transfer_t *transfer = &world->data->transfers[i];
        if (transfer->key != 0 && (node == 0 || transfer->source == node)) {
            transfer->is_dead[node] = true;
        }
    }
}
