#include "executor_fixture.h"

#include <string.h>

static const actor_peer_t LOCAL = {ACTOR_PEER_LOCAL};
static const actor_peer_t SCHEDULER = {FIXTURE_PEER};

void
fixture_open(fixture_t *self, uint32_t group_count, uint32_t overlap_depth)
{
    /* Tests of rules break many of them in a row. */
    fixture_open_patient(self, group_count, overlap_depth, UINT32_MAX);
}

void
fixture_open_patient(fixture_t *self, uint32_t group_count, uint32_t overlap_depth,
                     uint32_t bad_plans_max)
{
    static const uint32_t kinds[3] = {0, 1, 2};
    static const uint32_t granularities[3] = {4, 4, 8};
    static const uint32_t windows[3] = {0, 8, 0};
    static const uint32_t packings[3] = {1, 2, 1};
    memset(self, 0, sizeof *self);
    actor_executor_core_options_t options = {.slot_count_max = FIXTURE_SLOTS,
                                             .model_len_max = FIXTURE_LEN_MAX,
                                             .step_tokens_max = FIXTURE_STEP_MAX,
                                             .bad_plans_max = bad_plans_max};
    ck_assert_int_eq(actor_executor_core_new(&options, &self->core), STATUS_OK);
    self->ops = actor_executor_core_ops(self->core);
    ck_assert_int_eq(actor_outbox_new(self->ops, &self->outbox), STATUS_OK);
    memcpy(self->kinds, kinds, sizeof kinds);
    memcpy(self->granularities, granularities, sizeof granularities);
    memcpy(self->windows, windows, sizeof windows);
    memcpy(self->packings, packings, sizeof packings);
    for (uint32_t i = 0; i < sizeof self->key; i++) {
        self->key[i] = (uint8_t)(i * 7 + 1);
    }
    self->info = (proto_executor_info_t){.model_name = proto_text("test"),
                                         .fingerprint = proto_text("model=test"),
                                         .vocab_size = FIXTURE_VOCAB,
                                         .model_len_max = FIXTURE_LEN_MAX,
                                         .slot_count = FIXTURE_SLOTS,
                                         .step_tokens_max = FIXTURE_STEP_MAX,
                                         .decode_width = 1,
                                         .overlap_depth_max = overlap_depth,
                                         .prefix_granularity = FIXTURE_PAGE,
                                         .parent_count = FIXTURE_PARENTS,
                                         .group_kinds = {self->kinds, group_count},
                                         .group_granularities = {self->granularities, group_count},
                                         .group_windows = {self->windows, group_count},
                                         .group_packings = {self->packings, group_count},
                                         .page_hash_key = {self->key, sizeof self->key}};
    self->epoch = 7;
}

void
fixture_close(fixture_t *self)
{
    actor_outbox_destroy(&self->outbox);
    actor_executor_core_destroy(&self->core);
}

void
fixture_start(fixture_t *self, uint32_t group_count, uint32_t overlap_depth)
{
    fixture_open(self, group_count, overlap_depth);
    fixture_ready(self);
    fixture_peer_up(self, self->epoch);
    ck_assert_uint_eq(fixture_count(self, PROTO_KIND_EXECUTOR_INFO), 1);
}

void
fixture_feed(fixture_t *self, actor_peer_t from, proto_kind_t kind, uint64_t request,
             const proto_body_t *body)
{
    self->now_ns += 1000;
    self->sequence++;
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .epoch = self->epoch,
                             .sequence = self->sequence,
                             .request = request};
    actor_input_t input = {.now_ns = self->now_ns,
                           .sequence = self->sequence,
                           .from = from,
                           .header = &header,
                           .body = body};
    actor_outbox_clear(self->outbox);
    self->ops->step(self->core, &input, self->outbox);
    self->ops->check(self->core);
}

void
fixture_local(fixture_t *self, proto_kind_t kind, const proto_body_t *body)
{
    fixture_feed(self, LOCAL, kind, 0, body);
}

void
fixture_ready(fixture_t *self)
{
    proto_body_t body = {.executor_info = self->info};
    fixture_local(self, PROTO_KIND_DEVICE_READY, &body);
}

void
fixture_peer_up(fixture_t *self, uint64_t epoch)
{
    self->epoch = epoch;
    proto_body_t body = {.peer_up = {.peer = FIXTURE_PEER,
                                     .role = PROTO_ROLE_SCHEDULER,
                                     .name = proto_text("scheduler"),
                                     .epoch = epoch}};
    fixture_local(self, PROTO_KIND_PEER_UP, &body);
}

void
fixture_peer_down(fixture_t *self)
{
    proto_body_t body = {.peer_down = {.peer = FIXTURE_PEER,
                                       .role = PROTO_ROLE_SCHEDULER,
                                       .epoch = self->epoch,
                                       .detail = proto_text("test")}};
    fixture_local(self, PROTO_KIND_PEER_DOWN, &body);
}

void
fixture_reset(fixture_t *self)
{
    proto_body_t body = {.reset = {.detail = proto_text("test")}};
    fixture_feed(self, SCHEDULER, PROTO_KIND_RESET, 0, &body);
}

int32_t
fixture_token(uint64_t request, uint32_t index)
{
    return (int32_t)((request * 31 + index * 17 + 3) % FIXTURE_VOCAB);
}

proto_column_u8_t
fixture_sampling(uint32_t prompt_length, proto_bytes_t salt, uint8_t *out)
{
    proto_body_t body = {.sampling = {.temperature = 1,
                                      .top_p = 1,
                                      .repetition_penalty = 1,
                                      .seed = 5,
                                      .prompt_length = prompt_length,
                                      .page_salt = salt}};
    size_t size = 0;
    size_t blob_size = 0;
    ck_assert_int_eq(proto_body_encode(PROTO_KIND_SAMPLING, &body, out, 512, &size, NULL, 0,
                                       &blob_size),
                     STATUS_OK);
    return (proto_column_u8_t){out, (uint32_t)size};
}

void
fixture_admit(fixture_t *self, uint32_t slot, uint64_t request, uint32_t prompt_length,
              uint32_t length_max)
{
    int32_t tokens[FIXTURE_LEN_MAX];
    uint8_t sampling[512];
    uint8_t hashes[FIXTURE_LEN_MAX / FIXTURE_PAGE][PROTO_HASH_SIZE_BYTES];
    uint32_t pages = prompt_length / FIXTURE_PAGE;
    ck_assert_uint_le(prompt_length, FIXTURE_LEN_MAX);
    for (uint32_t i = 0; i < prompt_length; i++) {
        tokens[i] = fixture_token(request, i);
    }
    for (uint32_t i = 0; i < pages; i++) {
        proto_page_hash(self->key, i > 0 ? hashes[i - 1] : NULL, (proto_bytes_t){NULL, 0},
                        tokens + i * FIXTURE_PAGE, FIXTURE_PAGE, hashes[i]);
    }
    proto_body_t body = {
        .admit = {.slot = slot,
                  .prompt_length = prompt_length,
                  .length_max = length_max,
                  .tokens = {tokens, prompt_length},
                  .sampling = fixture_sampling(prompt_length, (proto_bytes_t){NULL, 0}, sampling),
                  .page_hashes = {pages > 0 ? hashes[0] : NULL,
                                  (size_t)pages * PROTO_HASH_SIZE_BYTES}}};
    fixture_feed(self, SCHEDULER, PROTO_KIND_ADMIT, request, &body);
}

void
fixture_done(fixture_t *self, uint64_t step, uint32_t row_count, const uint8_t *counts,
             const int32_t *tokens, const uint8_t *flags)
{
    static const uint8_t none[FIXTURE_ROOM];
    uint32_t token_count = 0;
    for (uint32_t i = 0; i < row_count; i++) {
        token_count += counts[i];
    }
    proto_body_t body = {.step_done = {.step = step,
                                       .mode = PROTO_STEP_DECODE_EAGER,
                                       .duration_ns = 1000,
                                       .token_counts = {counts, row_count},
                                       .row_flags = {flags != NULL ? flags : none, row_count},
                                       .tokens = {tokens, token_count},
                                       .logprob_widths = {none, row_count}}};
    fixture_local(self, PROTO_KIND_STEP_DONE, &body);
}

uint32_t
fixture_count(const fixture_t *self, proto_kind_t kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < actor_outbox_count(self->outbox); i++) {
        count += actor_outbox_at(self->outbox, i)->kind == kind;
    }
    return count;
}

const proto_body_t *
fixture_find(fixture_t *self, proto_kind_t kind, uint32_t index)
{
    for (uint32_t i = 0; i < actor_outbox_count(self->outbox); i++) {
        const actor_emission_t *emission = actor_outbox_at(self->outbox, i);
        if (emission->kind != kind || index-- > 0) {
            continue;
        }
        bool is_local = kind == PROTO_KIND_STEP_LAUNCH || kind == PROTO_KIND_SLOT_SETUP ||
                        kind == PROTO_KIND_DEVICE_RESET || kind == PROTO_KIND_DEVICE_FAILED ||
                        kind == PROTO_KIND_COMPLAINT || kind == PROTO_KIND_DRAFT_OPEN;
        bool is_to_drafter = kind == PROTO_KIND_DRAFT_PROPOSE ||
                             kind == PROTO_KIND_DRAFTER_ACCEPT || kind == PROTO_KIND_DRAFTER_REFUSE;
        if (is_to_drafter) {
            ck_assert_uint_eq(emission->to.index, FIXTURE_DRAFTER);
        } else if (is_local) {
            ck_assert_uint_eq(emission->to.index, ACTOR_PEER_LOCAL);
        } else if (kind != PROTO_KIND_NAK) {
            ck_assert_uint_eq(emission->to.index, FIXTURE_PEER);
        }
        ck_assert_int_eq(proto_body_decode(kind, emission->body, emission->blob, &self->body, NULL),
                         STATUS_OK);
        return &self->body;
    }
    ck_abort_msg("no %s in the outbox", proto_kind_name(kind));
    return NULL;
}

uint64_t
fixture_digest(const fixture_t *self)
{
    return self->ops->digest(self->core);
}

void
plan_begin(plan_t *self, uint64_t step, uint64_t base_step)
{
    memset(&self->plan, 0, sizeof self->plan);
    self->plan.step = step;
    self->plan.base_step = base_step;
    self->plan.width = 1;
    self->plan.release_slots.data = self->release;
    self->plan.patch_slots.data = self->patch_slots;
    self->plan.patch_groups.data = self->patch_groups;
    self->plan.patch_columns.data = self->patch_columns;
    self->plan.patch_counts.data = self->patch_counts;
    self->plan.patch_blocks.data = self->patch_blocks;
    self->plan.clear_groups.data = self->clear_groups;
    self->plan.clear_blocks.data = self->clear_blocks;
    self->plan.extend_slots.data = self->extend_slots;
    self->plan.extend_begins.data = self->begins;
    self->plan.extend_lengths.data = self->lengths;
    self->plan.extend_samples.data = self->samples;
    self->plan.decode_slots.data = self->decode_slots;
}

void
plan_release(plan_t *self, uint32_t slot)
{
    self->release[self->plan.release_slots.count++] = slot;
}

void
plan_patch(plan_t *self, uint32_t slot, uint32_t group, uint32_t column, uint32_t count,
           uint32_t block)
{
    uint32_t i = self->plan.patch_slots.count;
    ck_assert_uint_le(self->plan.patch_blocks.count + count, FIXTURE_ROOM);
    self->patch_slots[i] = slot;
    self->patch_groups[i] = (uint8_t)group;
    self->patch_columns[i] = column;
    self->patch_counts[i] = count;
    for (uint32_t k = 0; k < count; k++) {
        self->patch_blocks[self->plan.patch_blocks.count++] = block == 0 ? 0 : block + k;
    }
    self->plan.patch_slots.count++;
    self->plan.patch_groups.count++;
    self->plan.patch_columns.count++;
    self->plan.patch_counts.count++;
}

void
plan_clear(plan_t *self, uint32_t group, uint32_t block)
{
    self->clear_groups[self->plan.clear_groups.count++] = (uint8_t)group;
    self->clear_blocks[self->plan.clear_blocks.count++] = block;
}

void
plan_extend(plan_t *self, uint32_t slot, uint32_t begin, uint32_t length, bool samples)
{
    uint32_t i = self->plan.extend_slots.count;
    self->extend_slots[i] = slot;
    self->begins[i] = begin;
    self->lengths[i] = length;
    self->samples[i] = samples;
    self->plan.extend_slots.count++;
    self->plan.extend_begins.count++;
    self->plan.extend_lengths.count++;
    self->plan.extend_samples.count++;
}

void
plan_decode(plan_t *self, uint32_t slot)
{
    self->decode_slots[self->plan.decode_slots.count++] = slot;
}

void
plan_send(plan_t *self, fixture_t *fixture)
{
    proto_body_t body = {.plan = self->plan};
    fixture_feed(fixture, SCHEDULER, PROTO_KIND_PLAN, 0, &body);
}

void
plan_accept(plan_t *self, fixture_t *fixture)
{
    plan_send(self, fixture);
    if (fixture_count(fixture, PROTO_KIND_PLAN_REFUSED) > 0) {
        const proto_plan_refused_t *refused =
            &fixture_find(fixture, PROTO_KIND_PLAN_REFUSED, 0)->plan_refused;
        ck_abort_msg("refused by rule %u: %.*s", refused->rule, (int)refused->detail.size_bytes,
                     refused->detail.data);
    }
    const proto_step_launch_t *launch =
        &fixture_find(fixture, PROTO_KIND_STEP_LAUNCH, 0)->step_launch;
    ck_assert_uint_eq(launch->step, self->plan.step);
    ck_assert_uint_eq(fixture_count(fixture, PROTO_KIND_STEP_LAUNCH), 1);
}

void
plan_refuse(plan_t *self, fixture_t *fixture, proto_plan_rule_t rule, uint32_t slot)
{
    plan_send(self, fixture);
    ck_assert_uint_eq(actor_outbox_count(fixture->outbox), 1);
    const proto_plan_refused_t *refused =
        &fixture_find(fixture, PROTO_KIND_PLAN_REFUSED, 0)->plan_refused;
    ck_assert_msg(refused->rule == (uint32_t)rule, "rule %u (%.*s), expected %u", refused->rule,
                  (int)refused->detail.size_bytes, refused->detail.data, (unsigned)rule);
    ck_assert_uint_eq(refused->slot, slot);
    ck_assert_uint_eq(refused->step, self->plan.step);
    ck_assert_uint_gt(refused->detail.size_bytes, 0);
}
