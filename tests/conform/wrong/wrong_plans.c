/* Faults in what an executor gets. */
#include <string.h>

#include "wrong_faults.h"

/* ---- columns --------------------------------------------------------------------------------- */

static proto_column_u32_t
own_u32(wrong_t *self, uint32_t room, proto_column_u32_t column)
{
    uint32_t count = column.count < WRONG_COLUMN_MAX - 1 ? column.count : WRONG_COLUMN_MAX - 1;
    if (count > 0) {
        memcpy(self->u32[room], column.data, count * sizeof(uint32_t));
    }
    return (proto_column_u32_t){self->u32[room], count};
}

static proto_column_u8_t
own_u8(wrong_t *self, uint32_t room, proto_column_u8_t column)
{
    uint32_t count = column.count < WRONG_COLUMN_MAX - 1 ? column.count : WRONG_COLUMN_MAX - 1;
    if (count > 0) {
        memcpy(self->u8[room], column.data, count);
    }
    return (proto_column_u8_t){self->u8[room], count};
}

static bool
is_plan(const wrong_message_t *message)
{
    return message->kind == PROTO_KIND_PLAN;
}

static bool
has_extend(const wrong_message_t *message)
{
    return is_plan(message) && message->body.plan.extend_slots.count > 0;
}

static bool
has_patch(const wrong_message_t *message)
{
    return is_plan(message) && message->body.plan.patch_blocks.count > 0;
}

/* ---- ADMIT, RESET ---------------------------------------------------------------------------- */

bool
wrong_skip_admit(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    return message->kind != PROTO_KIND_ADMIT || ++self->count != 3;
}

bool
wrong_admit_taken(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (message->kind == PROTO_KIND_ADMIT) {
        /* Where the one before went, for the same plan. */
        uint32_t slot = message->body.admit.slot;
        message->body.admit.slot = self->last != 0 ? (uint32_t)self->last : slot;
        self->last = slot;
    } else if (message->kind == PROTO_KIND_PLAN) {
        self->last = 0;
    }
    return true;
}

bool
wrong_admit_tokens(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (message->kind == PROTO_KIND_ADMIT && ++self->count == 4) {
        uint32_t count = message->body.admit.tokens.count;
        memcpy(self->i32, message->body.admit.tokens.data, count * sizeof(int32_t));
        self->i32[count - 1] ^= 1;
        message->body.admit.tokens.data = self->i32;
    }
    return true;
}

bool
wrong_admit_length(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (message->kind == PROTO_KIND_ADMIT) {
        message->body.admit.length_max++;
    }
    return true;
}

bool
wrong_no_reset(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    return message->kind != PROTO_KIND_RESET;
}

/* ---- numbers of plans ------------------------------------------------------------------------ */

bool
wrong_stale_base(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (is_plan(message) && message->body.plan.base_step > 1 && ++self->count == 5) {
        message->body.plan.base_step--;
    }
    return true;
}

bool
wrong_first_patch(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (is_plan(message) && message->body.plan.base_step == 0 && ++self->count == 1) {
        message->body.plan.base_step = 1;
        message->body.plan.step += 1;
    }
    return true;
}

bool
wrong_step_again(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (is_plan(message) && ++self->count == 6) {
        message->body.plan.step--;
    }
    return true;
}

/* ---- rules of the executor ------------------------------------------------------------------- */

bool
wrong_slot_range(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (has_extend(message)) {
        message->body.plan.extend_slots = own_u32(self, 0, message->body.plan.extend_slots);
        self->u32[0][0] = 999;
    }
    return true;
}

bool
wrong_slot_twice(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (is_plan(message) && message->body.plan.decode_slots.count > 0) {
        proto_column_u32_t column = own_u32(self, 0, message->body.plan.decode_slots);
        self->u32[0][column.count] = self->u32[0][0];
        column.count++;
        message->body.plan.decode_slots = column;
    }
    return true;
}

bool
wrong_group_range(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (has_patch(message)) {
        message->body.plan.patch_groups = own_u8(self, 0, message->body.plan.patch_groups);
        self->u8[0][0] = 7;
    }
    return true;
}

bool
wrong_column_range(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (has_patch(message)) {
        message->body.plan.patch_columns = own_u32(self, 0, message->body.plan.patch_columns);
        self->u32[0][0] = 4000;
    }
    return true;
}

bool
wrong_block_range(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (has_patch(message)) {
        message->body.plan.patch_blocks = own_u32(self, 0, message->body.plan.patch_blocks);
        self->u32[0][0] = 100000;
    }
    return true;
}

bool
wrong_no_blocks(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (has_patch(message)) {
        proto_plan_t *plan = &message->body.plan;
        plan->patch_slots.count = 0;
        plan->patch_groups.count = 0;
        plan->patch_columns.count = 0;
        plan->patch_counts.count = 0;
        plan->patch_blocks.count = 0;
    }
    return true;
}

/* Two requests get the same block: both would write it. */
bool
wrong_foreign_block(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (has_patch(message)) {
        proto_plan_t *plan = &message->body.plan;
        plan->patch_blocks = own_u32(self, 0, plan->patch_blocks);
        uint32_t last = plan->patch_blocks.count - 1;
        uint32_t slot = plan->patch_slots.data[plan->patch_slots.count - 1];
        if (self->block != 0 && self->last != slot && self->u32[0][last] != 0) {
            self->u32[0][last] = self->block;
        } else {
            self->block = self->u32[0][last];
            self->last = slot;
        }
    }
    return true;
}

/* The checkpoint that a request begins behind is not the one that was found. */
bool
wrong_state(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (!has_extend(message) || !has_patch(message) ||
        message->body.plan.extend_begins.data[0] == 0) {
        return true;
    }
    proto_plan_t *plan = &message->body.plan;
    plan->patch_blocks = own_u32(self, 0, plan->patch_blocks);
    uint32_t column = (plan->extend_begins.data[0] - 1) / 8; /* of the machine's state group */
    uint32_t at = 0;
    for (uint32_t i = 0; i < plan->patch_slots.count; i++) {
        uint32_t begin = plan->patch_columns.data[i];
        bool is_its = plan->patch_groups.data[i] == 2 &&
                      plan->patch_slots.data[i] == plan->extend_slots.data[0] && begin <= column &&
                      column - begin < plan->patch_counts.data[i];
        if (is_its) {
            self->u32[0][at + column - begin] = 99; /* the last of the pool, which nobody wrote */
        }
        at += plan->patch_counts.data[i];
    }
    return true;
}

bool
wrong_begin(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (has_extend(message)) {
        message->body.plan.extend_begins = own_u32(self, 0, message->body.plan.extend_begins);
        self->u32[0][0] += 3;
    }
    return true;
}

bool
wrong_budget(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (has_extend(message)) {
        message->body.plan.extend_lengths = own_u32(self, 0, message->body.plan.extend_lengths);
        self->u32[0][0] += 4096;
    }
    return true;
}

bool
wrong_shape(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (has_extend(message)) {
        message->body.plan.extend_samples.count--;
    }
    return true;
}

bool
wrong_width(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (is_plan(message)) {
        message->body.plan.width = 2;
    }
    return true;
}

bool
wrong_samples(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (has_extend(message)) {
        message->body.plan.extend_samples = own_u8(self, 0, message->body.plan.extend_samples);
        self->u8[0][0] ^= 1;
    }
    return true;
}

bool
wrong_no_clear(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)self;
    (void)outbox;
    if (is_plan(message)) {
        message->body.plan.clear_groups.count = 0;
        message->body.plan.clear_blocks.count = 0;
    }
    return true;
}

/* ---- releases -------------------------------------------------------------------------------- */

static bool
is_release_only(const wrong_message_t *message)
{
    const proto_plan_t *plan = &message->body.plan;
    return is_plan(message) && plan->extend_slots.count + plan->decode_slots.count == 0 &&
           plan->release_slots.count > 0;
}

/* Plans without rows are never sent; the core believes that they were. */
bool
wrong_keep_slot(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (is_release_only(message)) {
        self->last = message->body.plan.step;
        self->block = message->to.index;
        return false;
    }
    return true;
}

/* They are sent, but the core does not wait for their results. */
bool
wrong_reuse_early(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    if (is_release_only(message)) {
        self->last = message->body.plan.step;
        self->block = message->to.index;
    }
    return true;
}

/* The result that the core waits for, made up. */
void
wrong_answer_release(wrong_t *self, actor_outbox_t *outbox)
{
    while (self->last != 0) {
        proto_body_t body = {.step_result = {.step = self->last, .mode = PROTO_STEP_IDLE}};
        proto_header_t header = {.version = PROTO_SCHEMA_VERSION};
        actor_input_t like = {.now_ns = self->tokens_request, .header = &header};
        self->last = 0;
        wrong_feed(self, &like, (actor_peer_t){self->block}, PROTO_KIND_STEP_RESULT, &body, outbox);
    }
}

/* Remembers the time of the last input, for the result that is made up. */
bool
wrong_note_time(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                actor_outbox_t *outbox)
{
    (void)body;
    (void)outbox;
    self->tokens_request = input->now_ns;
    return true;
}

/* ---- twice, too early, of others ------------------------------------------------------------- */

bool
wrong_admit_again(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    if (message->kind == PROTO_KIND_ADMIT && ++self->count == 3) {
        wrong_message_t copy = *message;
        copy.body.admit.slot = message->body.admit.slot == 4 ? 3 : 4;
        wrong_send(outbox, message);
        wrong_send(outbox, &copy);
        return false;
    }
    return true;
}

/* Instead of a decode row, an extend of what is not known yet. */
bool
wrong_extends_early(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    proto_plan_t *plan = &message->body.plan;
    if (is_plan(message) && plan->extend_slots.count == 0 && plan->decode_slots.count == 1) {
        plan->extend_slots = own_u32(self, 0, plan->decode_slots);
        self->u32[1][0] = 1;
        self->u32[2][0] = 1;
        self->u8[0][0] = 1;
        plan->extend_begins = (proto_column_u32_t){self->u32[1], 1};
        plan->extend_lengths = (proto_column_u32_t){self->u32[2], 1};
        plan->extend_samples = (proto_column_u8_t){self->u8[0], 1};
        plan->decode_slots.count = 0;
    }
    return true;
}

/* The block of another request that runs, where this one will write later. */
static uint32_t
block_of_another(const wrong_t *self, uint32_t slot)
{
    for (uint32_t other = 1; other < 64; other++) {
        if (other != slot && self->seen[other] != 0) {
            return (uint32_t)self->seen[other];
        }
    }
    return 0;
}

bool
wrong_borrows_block(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    proto_plan_t *plan = &message->body.plan;
    if (!is_plan(message)) {
        return true;
    }
    for (uint32_t i = 0; i < plan->release_slots.count; i++) {
        self->seen[plan->release_slots.data[i] & 63] = 0;
    }
    if (plan->patch_slots.count != 1 || plan->extend_slots.count != 1 ||
        plan->extend_slots.data[0] != plan->patch_slots.data[0]) {
        return true;
    }
    uint32_t slot = plan->patch_slots.data[0] & 63;
    uint32_t column = plan->patch_columns.data[0] + plan->patch_counts.data[0] - 1;
    uint32_t end = plan->extend_begins.data[0] + plan->extend_lengths.data[0];
    uint32_t block = block_of_another(self, slot);
    plan->patch_blocks = own_u32(self, 0, plan->patch_blocks);
    uint32_t *last = &self->u32[0][plan->patch_blocks.count - 1];
    self->seen[slot] = self->u32[0][0];
    if (block != 0 && column * 16 >= end) {
        *last = block;
    }
    return true;
}

/* Counts plans without a result. */
bool
wrong_note_results(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                   actor_outbox_t *outbox)
{
    (void)body;
    (void)outbox;
    self->block -= input->header->kind == PROTO_KIND_STEP_RESULT && self->block > 0 ? 1 : 0;
    return true;
}

/* A full plan behind one that runs. */
bool
wrong_full_behind(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    self->block += is_plan(message) ? 1 : 0;
    if (is_plan(message) && self->block > 1 && ++self->count == 4) {
        message->body.plan.base_step = 0;
    }
    return true;
}

/* ---- noise ----------------------------------------------------------------------------------- */

static uint32_t
draw(wrong_t *self)
{
    self->last = self->last * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(self->last >> 33);
}

static void
spoil(wrong_t *self, uint32_t room, proto_column_u32_t *column)
{
    if (column->count == 0 || column->count >= WRONG_COLUMN_MAX) {
        return;
    }
    *column = own_u32(self, room, *column);
    uint32_t value = draw(self);
    self->u32[room][draw(self) % column->count] = value % 3 == 0 ? value : value % 70;
    column->count -= value % 5 == 0 ? 1 : 0;
}

/* Now and then a number of a plan is any number. */
static void
add_noise(wrong_t *self, wrong_message_t *message)
{
    proto_plan_t *plan = &message->body.plan;
    proto_column_u32_t *columns[] = {
        &plan->release_slots, &plan->patch_slots,    &plan->patch_columns,
        &plan->patch_counts,  &plan->patch_blocks,   &plan->extend_begins,
        &plan->extend_slots,  &plan->extend_lengths, &plan->decode_slots,
    };
    if (message->kind == PROTO_KIND_ADMIT && draw(self) % 8 == 0) {
        message->body.admit.slot = draw(self) % 9;
    } else if (message->kind == PROTO_KIND_FINISHED && draw(self) % 8 == 0) {
        message->body.finished.reason = draw(self) % 7;
    } else if (is_plan(message) && draw(self) % 4 == 0) {
        spoil(self, 0, columns[draw(self) % (sizeof columns / sizeof columns[0])]);
    } else if (is_plan(message) && draw(self) % 16 == 0) {
        plan->step += draw(self) % 3;
        plan->base_step = draw(self) % 100;
    }
}

bool
wrong_noise(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    (void)outbox;
    add_noise(self, message);
    return true;
}

/* The same from another seed, and some messages come twice or never. */
bool
wrong_more_noise(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
{
    self->last += self->count++ == 0 ? 77 : 0;
    add_noise(self, message);
    if (draw(self) % 32 == 0) {
        wrong_send(outbox, message);
    }
    return draw(self) % 32 != 0;
}
