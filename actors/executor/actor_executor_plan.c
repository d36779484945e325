/* The order of the checks is the order of the rules in docs/protocol.md: base, shape, budget, then
 * releases, patches, clears and rows on the patched tables.  Nothing but the tables changes before
 * the last check has passed, and they are rolled back if one fails. */
#include <stdarg.h>
#include <stdio.h>

#include "actor_executor_state.h"

typedef struct {
    actor_executor_core_t *core;
    const proto_plan_t *plan;
    executor_refusal_t refusal;
} check_t;

/* What a row does to the cache: it reads below write_end and writes [write_begin, write_end). */
typedef struct {
    uint32_t slot;
    uint32_t write_begin;
    uint32_t write_end;
    bool is_extend;
} span_t;

static bool refuse(check_t *check, proto_plan_rule_t rule, uint32_t slot, const char *format, ...)
    __attribute__((format(printf, 4, 5), cold));

/* Always false, so that a check can end with it. */
static bool
refuse(check_t *check, proto_plan_rule_t rule, uint32_t slot, const char *format, ...)
{
    executor_refusal_t *refusal = &check->refusal;
    refusal->rule = rule;
    refusal->slot = slot <= PROTO_ROWS_MAX ? slot : 0;
    va_list arguments;
    va_start(arguments, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is one line above */
    (void)vsnprintf(refusal->detail, sizeof refusal->detail, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- the plan as a whole --------------------------------------------------------------------- */

static bool
check_base(check_t *check)
{
    const actor_executor_core_t *self = check->core;
    const proto_plan_t *plan = check->plan;
    unsigned long long step = plan->step;
    unsigned long long base = plan->base_step;
    unsigned long long applied = self->applied_step;
    if (!self->is_info_sent || self->reset_count >= RESETS_MAX) {
        return refuse(check, PROTO_RULE_STALE, 0, "the executor is not ready for plans");
    }
    if (step <= applied) {
        return refuse(check, PROTO_RULE_STALE, 0, "step %llu, last applied %llu", step, applied);
    }
    if (base != 0 && self->is_awaiting_full) {
        return refuse(check, PROTO_RULE_STALE, 0, "base step %llu, a full plan is awaited", base);
    }
    if (base != 0 && base != applied) {
        return refuse(check, PROTO_RULE_STALE, 0, "base step %llu, last applied %llu", base,
                      applied);
    }
    return true;
}

static bool
check_shape(check_t *check)
{
    const proto_plan_t *plan = check->plan;
    uint32_t patches = plan->patch_slots.count;
    if (plan->patch_groups.count != patches || plan->patch_columns.count != patches ||
        plan->patch_counts.count != patches) {
        return refuse(check, PROTO_RULE_SHAPE, 0, "patch columns of %u, %u, %u and %u entries",
                      patches, plan->patch_groups.count, plan->patch_columns.count,
                      plan->patch_counts.count);
    }
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < patches; i++) {
        blocks += plan->patch_counts.data[i];
    }
    if (blocks != plan->patch_blocks.count) {
        return refuse(check, PROTO_RULE_SHAPE, 0, "%u patch blocks, the counts say %llu",
                      plan->patch_blocks.count, (unsigned long long)blocks);
    }
    if (plan->clear_groups.count != plan->clear_blocks.count) {
        return refuse(check, PROTO_RULE_SHAPE, 0, "clear columns of %u and %u entries",
                      plan->clear_groups.count, plan->clear_blocks.count);
    }
    uint32_t extends = plan->extend_slots.count;
    if (plan->extend_begins.count != extends || plan->extend_lengths.count != extends ||
        plan->extend_samples.count != extends) {
        return refuse(check, PROTO_RULE_SHAPE, 0, "extend columns of %u, %u, %u and %u entries",
                      extends, plan->extend_begins.count, plan->extend_lengths.count,
                      plan->extend_samples.count);
    }
    return true;
}

static bool
check_budget(check_t *check)
{
    const actor_executor_core_t *self = check->core;
    const proto_plan_t *plan = check->plan;
    if (plan->width != self->info.decode_width && plan->width != 1) {
        return refuse(check, PROTO_RULE_WIDTH, 0, "width %u, built for %u", plan->width,
                      self->info.decode_width);
    }
    uint32_t flight_max = 1 + self->info.overlap_depth_max;
    if (self->flight_count >= flight_max) {
        return refuse(check, PROTO_RULE_BUDGET, 0, "%u steps in flight, limit %u",
                      self->flight_count + 1, flight_max);
    }
    uint64_t rows = (uint64_t)plan->extend_slots.count + plan->decode_slots.count;
    if (rows > self->info.slot_count) {
        return refuse(check, PROTO_RULE_BUDGET, 0, "%llu rows, limit %u", (unsigned long long)rows,
                      self->info.slot_count);
    }
    uint64_t tokens = (uint64_t)plan->decode_slots.count * plan->width;
    for (uint32_t i = 0; i < plan->extend_lengths.count; i++) {
        tokens += plan->extend_lengths.data[i];
    }
    if (tokens > self->info.step_tokens_max) {
        return refuse(check, PROTO_RULE_BUDGET, 0, "%llu tokens, limit %u",
                      (unsigned long long)tokens, self->info.step_tokens_max);
    }
    uint32_t cells = actor_executor_tables_cell_count(self->tables);
    if (plan->patch_slots.count > cells || plan->patch_blocks.count > cells) {
        return refuse(check, PROTO_RULE_BUDGET, 0, "%u patches of %u blocks, limit %u",
                      plan->patch_slots.count, plan->patch_blocks.count, cells);
    }
    if (plan->clear_blocks.count > cells) {
        return refuse(check, PROTO_RULE_BUDGET, 0, "%u clears, limit %u", plan->clear_blocks.count,
                      cells);
    }
    return true;
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* True if a request will be in the slot once this plan's releases are done. */
static bool
is_live(const actor_executor_core_t *self, uint32_t slot)
{
    const executor_slot_t *s = &self->slots[slot];
    return s->request != 0 && s->release_stamp != self->stamp;
}

/* A slot that is empty already may be released: a scheduler cannot know that an ADMIT of its own
 * was unusable. */
static bool
apply_releases(check_t *check)
{
    actor_executor_core_t *self = check->core;
    const proto_plan_t *plan = check->plan;
    for (uint32_t i = 0; i < plan->release_slots.count; i++) {
        uint32_t slot = plan->release_slots.data[i];
        if (slot == 0 || slot > self->info.slot_count) {
            return refuse(check, PROTO_RULE_SLOT_RANGE, slot, "release of slot %u, limit %u", slot,
                          self->info.slot_count);
        }
        if (is_live(self, slot)) {
            self->slots[slot].release_stamp = self->stamp;
            actor_executor_tables_drop(self->tables, slot);
        }
    }
    if (plan->base_step == 0) {
        for (uint32_t slot = 1; slot <= self->info.slot_count; slot++) {
            if (is_live(self, slot)) {
                actor_executor_tables_drop(self->tables, slot);
            }
        }
    }
    return true;
}

static bool
apply_patches(check_t *check)
{
    actor_executor_core_t *self = check->core;
    const proto_plan_t *plan = check->plan;
    const uint32_t *blocks = plan->patch_blocks.data;
    for (uint32_t i = 0; i < plan->patch_slots.count; i++) {
        uint32_t slot = plan->patch_slots.data[i];
        uint32_t g = plan->patch_groups.data[i];
        uint32_t column = plan->patch_columns.data[i];
        uint32_t count = plan->patch_counts.data[i];
        if (slot == 0 || slot > self->info.slot_count) {
            return refuse(check, PROTO_RULE_SLOT_RANGE, slot, "patch of slot %u, limit %u", slot,
                          self->info.slot_count);
        }
        if (!is_live(self, slot)) {
            return refuse(check, PROTO_RULE_SLOT_EMPTY, slot, "patch of an empty slot");
        }
        if (g >= self->group_count) {
            return refuse(check, PROTO_RULE_GROUP_RANGE, slot, "group %u, limit %u", g,
                          self->group_count - 1);
        }
        const actor_executor_group_t *group = &self->groups[g];
        if (column > group->column_count || count > group->column_count - column) {
            return refuse(check, PROTO_RULE_COLUMN_RANGE, slot, "columns %u to %llu, limit %u",
                          column, (unsigned long long)column + count, group->column_count);
        }
        for (uint32_t k = 0; k < count; k++) {
            if (blocks[k] >= group->block_count) {
                return refuse(check, PROTO_RULE_BLOCK_RANGE, slot, "block %u of group %u, limit %u",
                              blocks[k], g, group->block_count - 1);
            }
            actor_executor_tables_set(self->tables, slot, g, column + k, blocks[k]);
        }
        blocks += count;
    }
    return true;
}

static bool
check_clears(check_t *check)
{
    const actor_executor_core_t *self = check->core;
    const proto_plan_t *plan = check->plan;
    for (uint32_t i = 0; i < plan->clear_blocks.count; i++) {
        uint32_t g = plan->clear_groups.data[i];
        uint32_t block = plan->clear_blocks.data[i];
        if (g >= self->group_count) {
            return refuse(check, PROTO_RULE_GROUP_RANGE, 0, "clear in group %u, limit %u", g,
                          self->group_count - 1);
        }
        if (block == 0 || block >= self->groups[g].block_count) {
            return refuse(check, PROTO_RULE_BLOCK_RANGE, 0, "clear of block %u, limit %u", block,
                          self->groups[g].block_count - 1);
        }
        if (actor_executor_tables_references(self->tables, g, block) > 1) {
            return refuse(check, PROTO_RULE_WRITE_SHARED, 0, "clear of block %u with %u references",
                          block, actor_executor_tables_references(self->tables, g, block));
        }
    }
    return true;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* The blocks that a row reads and writes in one group. */
static bool
check_columns(check_t *check, uint32_t g, const span_t *span)
{
    const actor_executor_core_t *self = check->core;
    const actor_executor_group_t *group = &self->groups[g];
    uint32_t end = (span->write_end - 1) / group->granularity + 1;
    uint32_t write = span->write_begin / group->granularity;
    uint32_t read = 0;
    if (group->kind == ACTOR_EXECUTOR_GROUP_SLIDING) {
        read = span->write_begin + 1 > group->window
                   ? (span->write_begin + 1 - group->window) / group->granularity
                   : 0;
    } else if (group->kind == ACTOR_EXECUTOR_GROUP_STATE) {
        /* The state after n tokens lies in column (n - 1) / granularity: an extend reads the state
         * before it and leaves one at its end, a decode may end in each of its columns; what lies
         * between may be a hole. */
        uint32_t before = span->write_begin > 0 ? (span->write_begin - 1) / group->granularity : 0;
        if (span->write_begin > 0 &&
            actor_executor_tables_missing(self->tables, span->slot, g, before, before + 1) !=
                UINT32_MAX) {
            return refuse(check, PROTO_RULE_COLUMN_MISSING, span->slot,
                          "group %u has no state in column %u", g, before);
        }
        write = span->is_extend ? end - 1 : write;
        read = write;
    }
    uint32_t missing = actor_executor_tables_missing(self->tables, span->slot, g, read, end);
    if (missing != UINT32_MAX) {
        return refuse(check, PROTO_RULE_COLUMN_MISSING, span->slot,
                      "group %u has no block in column %u of %u to %u", g, missing, read, end - 1);
    }
    for (uint32_t c = write; c < end; c++) {
        uint32_t block = actor_executor_tables_get(self->tables, span->slot, g, c);
        if (!actor_executor_tables_exclusive(self->tables, g, block)) {
            return refuse(check, PROTO_RULE_WRITE_SHARED, span->slot,
                          "group %u column %u: block %u has %u references", g, c, block,
                          actor_executor_tables_references(self->tables, g, block));
        }
    }
    return true;
}

static bool
check_row_slot(check_t *check, uint32_t slot)
{
    actor_executor_core_t *self = check->core;
    if (slot == 0 || slot > self->info.slot_count) {
        return refuse(check, PROTO_RULE_SLOT_RANGE, slot, "slot %u, limit %u", slot,
                      self->info.slot_count);
    }
    if (!is_live(self, slot)) {
        return refuse(check, PROTO_RULE_SLOT_EMPTY, slot, "no request in slot %u", slot);
    }
    if (self->slots[slot].row_stamp == self->stamp) {
        return refuse(check, PROTO_RULE_SLOT_TWICE, slot, "slot %u is in two rows", slot);
    }
    self->slots[slot].row_stamp = self->stamp;
    return true;
}

/* A state is there only where a row ended; others find it only after whole pages. */
static bool
check_chunk(check_t *check, uint32_t slot, uint32_t begin, uint32_t end)
{
    const actor_executor_core_t *self = check->core;
    const executor_slot_t *s = &self->slots[slot];
    uint32_t page = self->info.prefix_granularity;
    for (uint32_t g = 0; g < self->group_count; g++) {
        if (self->groups[g].kind != ACTOR_EXECUTOR_GROUP_STATE) {
            continue;
        }
        if (begin % page != 0 && begin != s->computed) {
            return refuse(check, PROTO_RULE_TOKEN_RANGE, slot,
                          "group %u: no state after %u tokens, the last row ended at %u, pages "
                          "have %u",
                          g, begin, s->computed, page);
        }
        if (end % page != 0 && end != s->known) {
            return refuse(check, PROTO_RULE_TOKEN_RANGE, slot,
                          "group %u: an extend ends at %u of %u, not on a page of %u", g, end,
                          s->known, page);
        }
    }
    return true;
}

static bool
check_extend(check_t *check, uint32_t row)
{
    const actor_executor_core_t *self = check->core;
    const proto_plan_t *plan = check->plan;
    uint32_t slot = plan->extend_slots.data[row];
    uint32_t begin = plan->extend_begins.data[row];
    uint32_t length = plan->extend_lengths.data[row];
    bool samples = plan->extend_samples.data[row] != 0;
    if (!check_row_slot(check, slot)) {
        return false;
    }
    const executor_slot_t *s = &self->slots[slot];
    if (s->pending > 0) {
        /* Its last token is not known yet, so neither are the ranges that follow. */
        return refuse(check, PROTO_RULE_TOKEN_RANGE, slot, "extend with %u tokens in flight",
                      s->pending);
    }
    if (length == 0 || begin >= s->known || length > s->known - begin) {
        return refuse(check, PROTO_RULE_TOKEN_RANGE, slot, "extend of %u tokens at %u, has %u",
                      length, begin, s->known);
    }
    uint32_t end = begin + length;
    if (samples && end != s->known) {
        return refuse(check, PROTO_RULE_TOKEN_RANGE, slot, "samples after token %u of %u", end,
                      s->known);
    }
    if (!check_chunk(check, slot, begin, end)) {
        return false;
    }
    if (samples && end + 1 > s->length_max) {
        return refuse(check, PROTO_RULE_LENGTH_LIMIT, slot, "length %u, limit %u", end + 1,
                      s->length_max);
    }
    span_t span = {.slot = slot, .write_begin = begin, .write_end = end, .is_extend = true};
    for (uint32_t g = 0; g < self->group_count; g++) {
        if (!check_columns(check, g, &span)) {
            return false;
        }
    }
    return true;
}

static bool
check_decode(check_t *check, uint32_t row)
{
    const actor_executor_core_t *self = check->core;
    uint32_t width = check->plan->width;
    uint32_t slot = check->plan->decode_slots.data[row];
    if (!check_row_slot(check, slot)) {
        return false;
    }
    const executor_slot_t *s = &self->slots[slot];
    if (!s->is_decodable) {
        return refuse(check, PROTO_RULE_TOKEN_RANGE, slot, "decode before the prompt is complete");
    }
    /* Each row in flight adds a token at least, and as many as it is wide at most. */
    uint32_t least = s->known + s->pending_rows;
    uint32_t most = s->known + s->pending - 1 + width;
    /* The scheduler has not seen what the last wide rows gave when it plans the next one. */
    uint32_t unseen = self->info.overlap_depth_max > self->flight_count
                          ? self->info.overlap_depth_max - self->flight_count
                          : 0;
    uint32_t surplus = unseen * (self->info.decode_width - 1); /* of rows as wide as can be */
    if (least + 1 > s->length_max + surplus) {
        return refuse(check, PROTO_RULE_LENGTH_LIMIT, slot, "length %u, limit %u", least + 1,
                      s->length_max);
    }
    span_t span = {.slot = slot,
                   .write_begin = least - 1,
                   .write_end = most < s->length_max + width - 1 ? most : s->length_max + width - 1,
                   .is_extend = false};
    for (uint32_t g = 0; g < self->group_count; g++) {
        if (!check_columns(check, g, &span)) {
            return false;
        }
    }
    return true;
}

static bool
check_rows(check_t *check)
{
    for (uint32_t i = 0; i < check->plan->extend_slots.count; i++) {
        if (!check_extend(check, i)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < check->plan->decode_slots.count; i++) {
        if (!check_decode(check, i)) {
            return false;
        }
    }
    return true;
}

/* The rule's name in docs/protocol.md. */
static const char *
rule_name(proto_plan_rule_t rule)
{
    static const char *const names[] = {
        [PROTO_RULE_NONE] = "NONE",
        [PROTO_RULE_STALE] = "STALE",
        [PROTO_RULE_SLOT_RANGE] = "SLOT_RANGE",
        [PROTO_RULE_SLOT_EMPTY] = "SLOT_EMPTY",
        [PROTO_RULE_SLOT_TWICE] = "SLOT_TWICE",
        [PROTO_RULE_GROUP_RANGE] = "GROUP_RANGE",
        [PROTO_RULE_COLUMN_RANGE] = "COLUMN_RANGE",
        [PROTO_RULE_BLOCK_RANGE] = "BLOCK_RANGE",
        [PROTO_RULE_COLUMN_MISSING] = "COLUMN_MISSING",
        [PROTO_RULE_WRITE_SHARED] = "WRITE_SHARED",
        [PROTO_RULE_TOKEN_RANGE] = "TOKEN_RANGE",
        [PROTO_RULE_LENGTH_LIMIT] = "LENGTH_LIMIT",
        [PROTO_RULE_BUDGET] = "BUDGET",
        [PROTO_RULE_SHAPE] = "SHAPE",
        [PROTO_RULE_WIDTH] = "WIDTH",
    };
    return (unsigned)rule < sizeof names / sizeof names[0] ? names[rule] : "unknown";
}

/* A scheduler may be late (STALE) without being wrong.  One that breaks other rules again and
 * again, without a good plan between, is for the supervisor to judge; it is told once. */
static void
count_bad_plan(actor_executor_core_t *self, const executor_refusal_t *refusal,
               actor_outbox_t *outbox)
{
    if (refusal->rule == PROTO_RULE_STALE || self->bad_plans >= self->limits.bad_plans_max) {
        return;
    }
    if (++self->bad_plans < self->limits.bad_plans_max) {
        return;
    }
    char detail[256];
    (void)snprintf(detail, sizeof detail, "%u bad plans in a row, the last: %s, slot %u: %s",
                   self->bad_plans, rule_name(refusal->rule), refusal->slot, refusal->detail);
    proto_body_t body = {.complaint = {.role = PROTO_ROLE_SCHEDULER,
                                       .epoch = self->scheduler_epoch,
                                       .reason = PROTO_COMPLAINT_BAD_PLANS,
                                       .detail = proto_text(detail)}};
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_COMPLAINT, 0, &body);
}

static void
send_refusal(actor_executor_core_t *self, const check_t *check, actor_outbox_t *outbox)
{
    self->is_awaiting_full = true;
    proto_body_t body = {.plan_refused = {.step = check->plan->step,
                                          .applied_step = self->applied_step,
                                          .rule = check->refusal.rule,
                                          .slot = check->refusal.slot,
                                          .detail = proto_text(check->refusal.detail)}};
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_PLAN_REFUSED, 0, &body);
    count_bad_plan(self, &check->refusal, outbox);
}

/* Marks of older plans must not look like this one's. */
static void
next_stamp(actor_executor_core_t *self)
{
    if (++self->stamp != 0) {
        return;
    }
    for (uint32_t slot = 1; slot <= self->info.slot_count; slot++) {
        self->slots[slot].row_stamp = 0;
        self->slots[slot].release_stamp = 0;
        self->slots[slot].setup_stamp = 0;
    }
    self->stamp = 1;
}

void
actor_executor_plan(actor_executor_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    check_t check = {.core = self, .plan = &input->body->plan};
    check.refusal.rule = PROTO_RULE_NONE;
    if (!check_base(&check)) {
        send_refusal(self, &check, outbox);
        return;
    }
    next_stamp(self);
    actor_executor_tables_begin(self->tables);
    if (check_shape(&check) && check_budget(&check) && apply_releases(&check) &&
        apply_patches(&check) && check_clears(&check) && check_rows(&check)) {
        actor_executor_launch(self, input, outbox);
        return;
    }
#if ONEPATH_MUTANT != 4
    actor_executor_tables_rollback(self->tables);
#endif
    send_refusal(self, &check, outbox);
}
