#include "actor_executor_state.h"

static void
send_setup(actor_executor_core_t *self, uint32_t slot, uint32_t computed, actor_outbox_t *outbox)
{
    const executor_slot_t *s = &self->slots[slot];
    proto_body_t body = {
        .slot_setup = {.slot = slot,
                       .tokens = {executor_tokens(self, slot), s->known},
                       .sampling = {executor_sampling(self, slot), s->sampling_size},
                       .computed = computed}};
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_SLOT_SETUP, s->request,
                      &body);
}

/* Starts the extends; returns how many tokens went into the launch's token column. */
static uint32_t
commit_extends(actor_executor_core_t *self, const proto_plan_t *plan, executor_flight_t *flight,
               actor_outbox_t *outbox)
{
    uint32_t token_count = 0;
    for (uint32_t i = 0; i < plan->extend_slots.count; i++) {
        uint32_t slot = plan->extend_slots.data[i];
        uint32_t begin = plan->extend_begins.data[i];
        uint32_t length = plan->extend_lengths.data[i];
        bool samples = plan->extend_samples.data[i] != 0;
        executor_slot_t *s = &self->slots[slot];
        if (!s->is_set_up || s->is_decodable || begin < s->computed) {
            send_setup(self, slot, 0, outbox);
            s->is_set_up = true;
            s->setup_stamp = self->stamp;
        }
        memcpy(self->launch.tokens + token_count, executor_tokens(self, slot) + begin,
               length * sizeof *self->launch.tokens);
        token_count += length;
        self->launch.next_ids[i] =
            begin + length < s->known ? executor_tokens(self, slot)[begin + length] : -1;
        s->computed = begin + length;
        s->is_decodable = samples;
        s->pending = samples ? 1 : 0;
        s->pending_rows = s->pending;
        actor_executor_slot_touch(self, slot);
        flight->rows[flight->row_count++] = (executor_row_t){.slot = slot,
                                                             .generation = s->generation,
                                                             .end = begin + length,
                                                             .token_max = s->pending,
                                                             .pending = s->pending};
    }
    return token_count;
}

/* Starts the decodes; true if one of them had to be set up. */
static bool
commit_decodes(actor_executor_core_t *self, const proto_plan_t *plan, executor_flight_t *flight,
               actor_outbox_t *outbox)
{
    bool sets_up = false;
    for (uint32_t i = 0; i < plan->decode_slots.count; i++) {
        uint32_t slot = plan->decode_slots.data[i];
        executor_slot_t *s = &self->slots[slot];
        if (!s->is_set_up) {
            /* Its cache came from elsewhere: it never had an extend here. */
            send_setup(self, slot, s->known - 1, outbox);
            s->is_set_up = true;
            s->setup_stamp = self->stamp;
            sets_up = true;
        }
        s->computed = s->known + s->pending - 1 + plan->width;
        s->pending += plan->width;
        s->pending_rows++;
        actor_executor_slot_touch(self, slot);
        flight->rows[flight->row_count++] = (executor_row_t){.slot = slot,
                                                             .generation = s->generation,
                                                             .end = 0,
                                                             .token_max = plan->width,
                                                             .pending = plan->width};
    }
    return sets_up;
}

/* An empty column has no address. */
static void
copy(void *to, const void *from, size_t size_bytes)
{
    if (size_bytes > 0) {
        memcpy(to, from, size_bytes);
    }
}

/* Appends a patch of `count` blocks; NULL: holes. */
static void
add_patch(executor_launch_room_t *room, uint32_t slot, uint32_t group, uint32_t column,
          const uint32_t *blocks, uint32_t count)
{
    uint32_t patch = room->patch_count++;
    room->patch_slots[patch] = slot;
    room->patch_groups[patch] = (uint8_t)group;
    room->patch_columns[patch] = column;
    room->patch_counts[patch] = count;
    if (blocks != NULL) {
        copy(room->patch_blocks + room->block_count, blocks, count * sizeof *blocks);
    } else {
        memset(room->patch_blocks + room->block_count, 0, count * sizeof *blocks);
    }
    room->block_count += count;
}

/* A full plan drops columns that it does not name again.  The device knows patches only, so these
 * become patches to 0, one for each stretch. */
static void
add_dropped(actor_executor_core_t *self)
{
    executor_launch_room_t *room = &self->launch;
    uint32_t change_count = 0;
    const actor_executor_change_t *changes =
        actor_executor_tables_changes(self->tables, &change_count);
    for (uint32_t i = 0; i < change_count; i++) {
        const actor_executor_change_t *change = &changes[i];
        if (change->before == 0 || self->slots[change->slot].request == 0 ||
            actor_executor_tables_get(self->tables, change->slot, change->group, change->column) !=
                0) {
            continue;
        }
        uint32_t last = room->patch_count - 1;
        if (room->patch_count > 0 && room->patch_slots[last] == change->slot &&
            room->patch_groups[last] == change->group &&
            room->patch_columns[last] + room->patch_counts[last] == change->column) {
            room->patch_counts[last]++;
            room->patch_blocks[room->block_count++] = 0;
        } else {
            add_patch(room, change->slot, change->group, change->column, NULL, 1);
        }
    }
}

/* A device forgets a slot's table when the slot is set up, but earlier plans may have filled it:
 * the whole table goes along, after the plan's own patches. */
static void
add_tables(actor_executor_core_t *self, const proto_plan_t *plan)
{
    uint32_t extends = plan->extend_slots.count;
    for (uint32_t i = 0; i < extends + plan->decode_slots.count; i++) {
        uint32_t slot =
            i < extends ? plan->extend_slots.data[i] : plan->decode_slots.data[i - extends];
        if (self->slots[slot].setup_stamp != self->stamp) {
            continue;
        }
        for (uint32_t g = 0; g < self->group_count; g++) {
            uint32_t count = 0;
            const uint32_t *row = actor_executor_tables_row(self->tables, slot, g, &count);
            if (count > 0) {
                add_patch(&self->launch, slot, g, 0, row, count);
            }
        }
    }
}

/* What the device's tables need beside the plan's own patches; usually nothing. */
static void
make_patches(actor_executor_core_t *self, const proto_plan_t *plan, proto_step_launch_t *launch)
{
    executor_launch_room_t *room = &self->launch;
    room->patch_count = 0;
    room->block_count = 0;
    if (plan->base_step == 0) {
        add_dropped(self);
    }
    uint32_t at = room->patch_count;
    uint32_t own = plan->patch_slots.count;
    copy(room->patch_slots + at, plan->patch_slots.data, own * sizeof(uint32_t));
    copy(room->patch_groups + at, plan->patch_groups.data, own);
    copy(room->patch_columns + at, plan->patch_columns.data, own * sizeof(uint32_t));
    copy(room->patch_counts + at, plan->patch_counts.data, own * sizeof(uint32_t));
    copy(room->patch_blocks + room->block_count, plan->patch_blocks.data,
         plan->patch_blocks.count * sizeof(uint32_t));
    room->patch_count += own;
    room->block_count += plan->patch_blocks.count;
    add_tables(self, plan);
    uint32_t patches = room->patch_count;
    launch->patch_slots = (proto_column_u32_t){room->patch_slots, patches};
    launch->patch_groups = (proto_column_u8_t){room->patch_groups, patches};
    launch->patch_columns = (proto_column_u32_t){room->patch_columns, patches};
    launch->patch_counts = (proto_column_u32_t){room->patch_counts, patches};
    launch->patch_blocks = (proto_column_u32_t){room->patch_blocks, room->block_count};
}

void
actor_executor_launch(actor_executor_core_t *self, const actor_input_t *input,
                      actor_outbox_t *outbox)
{
    const proto_plan_t *plan = &input->body->plan;
    uint32_t release_count = plan->release_slots.count;
#if ONEPATH_MUTANT == 4 /* see scheduler/sched_internal.h */
    release_count /= 2;
#endif
    for (uint32_t i = 0; i < release_count; i++) {
        if (self->slots[plan->release_slots.data[i]].request != 0) {
            actor_executor_slot_leave(self, plan->release_slots.data[i]);
        }
    }
    uint32_t at = (self->flight_first + self->flight_count) % FLIGHTS_MAX;
    executor_flight_t *flight = &self->flights[at];
    flight->step = plan->step;
    flight->row_count = 0;
    flight->width = plan->width;
    flight->prompt_token_count = commit_extends(self, plan, flight, outbox);
    bool sets_up = commit_decodes(self, plan, flight, outbox);
    flight->token_count = flight->prompt_token_count + plan->decode_slots.count * plan->width;
    if (self->flight_count++ == 0) {
        self->busy_since_ns = input->now_ns;
        self->oldest_begin_ns = input->now_ns;
    }
    self->applied_step = plan->step;
    self->is_awaiting_full = false;
    self->bad_plans = 0;
    self->is_device_pristine = false;

    proto_body_t body = {
        .step_launch = {.step = plan->step,
                        .width = plan->width,
                        .patch_slots = plan->patch_slots,
                        .patch_groups = plan->patch_groups,
                        .patch_columns = plan->patch_columns,
                        .patch_counts = plan->patch_counts,
                        .patch_blocks = plan->patch_blocks,
                        .clear_groups = plan->clear_groups,
                        .clear_blocks = plan->clear_blocks,
                        .extend_slots = plan->extend_slots,
                        .extend_begins = plan->extend_begins,
                        .extend_lengths = plan->extend_lengths,
                        .extend_samples = plan->extend_samples,
                        .extend_tokens = {self->launch.tokens, flight->prompt_token_count},
                        .extend_next_ids = {self->launch.next_ids, plan->extend_slots.count},
                        .decode_slots = plan->decode_slots}};
    if (flight->row_count > 0) {
        body.step_launch.draft_slot = actor_executor_draft_ask(self, plan->step, outbox);
    }
    if (plan->base_step == 0 || plan->extend_slots.count > 0 || sets_up) {
        make_patches(self, plan, &body.step_launch);
    }
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_STEP_LAUNCH, 0, &body);
}
