#include "actor_conform_executor.h"

#include <inttypes.h>
#include <string.h>

#include "proto_require.h"

enum { REFUSALS_MAX = 3 }; /* in a row; then a request may end */

static const uint64_t STEP_NS = 400000; /* how long a step takes if no plan waits behind it */

static void take_emissions(conform_executor_t *self, const actor_input_t *cause,
                           actor_outbox_t *outbox);

/* ---- the inner core -------------------------------------------------------------------------- */

static void
step_inner(conform_executor_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const actor_core_ops_t *ops = actor_executor_core_ops(self->inner);
    ops->step(self->inner, input, self->inner_outbox);
    take_emissions(self, input, outbox);
}

static void
fill_ready(const conform_executor_t *self, proto_body_t *out)
{
    _Static_assert(sizeof out->device_ready == sizeof self->info, "one field list");
    memcpy(&out->device_ready, &self->info, sizeof self->info);
}

/* The device carried out a reset; the core waits for that. */
static void
answer_reset(conform_executor_t *self, const actor_input_t *cause, actor_outbox_t *outbox)
{
    proto_body_t body;
    fill_ready(self, &body);
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION, .kind = PROTO_KIND_DEVICE_READY};
    actor_input_t input = {.now_ns = cause->now_ns,
                           .sequence = cause->sequence,
                           .from = {ACTOR_PEER_LOCAL},
                           .header = &header,
                           .body = &body};
    step_inner(self, &input, outbox);
}

/* The core's own verdict on a plan. */
static void
judge(conform_executor_t *self, const actor_input_t *cause, const proto_plan_refused_t *refused)
{
    const proto_plan_t *plan = &cause->body->plan;
    conform_where_t where = {.link = "executor",
                             .kind = PROTO_KIND_PLAN,
                             .sequence = cause->header->sequence};
    if (refused->slot >= 1 && refused->slot <= self->machine.slot_count &&
        self->slots[refused->slot].request != NULL) {
        where.request = self->slots[refused->slot].request->id;
    }
    if (self->awaits_full && plan->base_step != 0 && self->stale_allowed > 0) {
        self->stale_allowed--; /* it was on its way when the one before it was refused */
        return;
    }
    conform_rule_t rule = actor_conform_rule_of_plan((proto_plan_rule_t)refused->rule);
    char expected[120];
    (void)snprintf(expected, sizeof expected, "%s", actor_conform_rule(rule)->text);
    if (self->awaits_full && plan->base_step != 0) {
        rule = CONFORM_REFUSAL_FULL_PLAN;
        (void)snprintf(expected, sizeof expected, "base_step 0 after a refusal");
    }
    actor_conform_broke(self->report, rule, &where, expected, "step %" PRIu64 ", slot %u: %.*s",
                        plan->step, refused->slot, (int)refused->detail.size_bytes,
                        refused->detail.data);
    self->awaits_full = true;
    self->stale_allowed = self->machine.overlap_depth_max;
}

static void
send_result(conform_executor_t *self, actor_outbox_t *outbox)
{
    proto_step_result_t *result = &self->body.step_result;
    conform_flight_t *flight = &self->flights[self->flight_first];
    uint32_t broken = self->breaks_result;
    if (broken == 1 && result->token_counts.count > 0) {
        result->token_counts.count--;
        result->row_flags.count--;
        self->broken_step = result->step;
        self->breaks_result = 0;
    } else if (broken == 2) {
        self->broken_step = result->step;
        result->step += 1000;
        self->breaks_result = 0;
    }
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_STEP_RESULT, 0, &self->body);
    if (self->repeats_results && self->broken_step == 0) {
        actor_outbox_push(outbox, self->scheduler, PROTO_KIND_STEP_RESULT, 0, &self->body);
    }
    actor_conform_audit_result(self, flight);
    self->flight_first = (self->flight_first + 1) % CONFORM_FLIGHTS_MAX;
    self->flight_count--;
    self->in_flight--;
}

static void
take_emission(conform_executor_t *self, const actor_input_t *cause,
              const actor_emission_t *emission, actor_outbox_t *outbox)
{
    proto_status_t status =
        proto_body_decode(emission->kind, emission->body, emission->blob, &self->body, NULL);
    require(status == STATUS_OK);
    if (emission->kind == PROTO_KIND_PLAN_REFUSED) {
        judge(self, cause, &self->body.plan_refused);
        actor_outbox_push(outbox, self->scheduler, PROTO_KIND_PLAN_REFUSED, 0, &self->body);
    } else if (emission->kind == PROTO_KIND_STEP_RESULT) {
        send_result(self, outbox);
    } else if (emission->kind == PROTO_KIND_STEP_LAUNCH) {
        actor_conform_audit_applied(self, &cause->body->plan);
        actor_conform_device_launch(self, cause);
        if (self->awaits_full) {
            actor_conform_held(self->report, CONFORM_REFUSAL_FULL_PLAN);
            self->awaits_full = false;
        }
        self->in_flight++;
    } else if (emission->kind == PROTO_KIND_EXECUTOR_INFO) {
        self->is_info_sent = true;
        self->has_reset = false;
        actor_outbox_push(outbox, self->scheduler, emission->kind, 0, &self->body);
    } else if (emission->kind == PROTO_KIND_NAK && emission->to.index == ACTOR_PEER_LOCAL) {
        conform_where_t where = {.link = "executor",
                                 .kind = cause->header->kind,
                                 .sequence = cause->header->sequence,
                                 .request = cause->header->request};
        actor_conform_broke(self->report, CONFORM_ADMIT_CONTENT, &where, "an ADMIT that is usable",
                            "%.*s", (int)self->body.nak.detail.size_bytes,
                            self->body.nak.detail.data);
    } else if (emission->to.index != ACTOR_PEER_LOCAL) {
        actor_outbox_push(outbox, emission->to, emission->kind, emission->request, &self->body);
    }
}

/* What the inner core said goes on to the scheduler, or to the device that is here. */
static void
take_emissions(conform_executor_t *self, const actor_input_t *cause, actor_outbox_t *outbox)
{
    bool resets = false;
    for (uint32_t i = 0; i < actor_outbox_count(self->inner_outbox); i++) {
        const actor_emission_t *emission = actor_outbox_at(self->inner_outbox, i);
        resets = resets || emission->kind == PROTO_KIND_DEVICE_RESET;
        take_emission(self, cause, emission, outbox);
    }
    actor_outbox_clear(self->inner_outbox);
    if (resets) {
        answer_reset(self, cause, outbox);
    }
}

/* ---- refusals that are made up --------------------------------------------------------------- */

static bool
has_row_of(const conform_executor_t *self, const proto_plan_t *plan, uint64_t request,
           uint32_t *slot)
{
    const proto_column_u32_t *columns[] = {&plan->extend_slots, &plan->decode_slots};
    for (uint32_t k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < columns[k]->count; i++) {
            uint32_t at = columns[k]->data[i];
            bool is_known =
                at >= 1 && at <= self->machine.slot_count && self->slots[at].request != NULL;
            if (is_known && (request == 0 || self->slots[at].request->id == request)) {
                *slot = at;
                return true;
            }
        }
    }
    return false;
}

/* Notes whose rows a refused plan had.  Who is refused for the third time may end, and so may one
 * whose slot is said to be empty. */
static void
note_rows(conform_executor_t *self, const proto_plan_t *plan)
{
    conform_refuse_t *refuse = &self->refuse;
    const proto_column_u32_t *columns[] = {&plan->extend_slots, &plan->decode_slots};
    for (uint32_t k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < columns[k]->count; i++) {
            uint32_t slot = columns[k]->data[i];
            conform_request_t *request =
                slot >= 1 && slot <= self->machine.slot_count ? self->slots[slot].request : NULL;
            if (request == NULL || refuse->request_count == CONFORM_SLOTS_MAX) {
                continue;
            }
            refuse->requests[refuse->request_count++] = request->id;
            bool is_named = slot == refuse->slot && refuse->rule == PROTO_RULE_SLOT_EMPTY;
            if (++request->refusal_count >= REFUSALS_MAX || is_named) {
                request->excuses |= CONFORM_EXCUSE_REFUSED;
            }
        }
    }
}

/* Refuses a good plan with the rule that the scene wants; true if it did. */
static bool
make_up_refusal(conform_executor_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_plan_t *plan = &input->body->plan;
    conform_refuse_t *refuse = &self->refuse;
    uint32_t slot = 0;
    if (!refuse->is_armed || !has_row_of(self, plan, refuse->request, &slot)) {
        return false;
    }
    refuse->is_armed = false;
    refuse->is_done = true;
    refuse->step = plan->step;
    refuse->slot = slot;
    refuse->request_count = 0;
    note_rows(self, plan);
    self->awaits_full = true;
    self->stale_allowed = self->machine.overlap_depth_max;
    uint64_t applied =
        self->flight_count > 0
            ? self->flights[(self->flight_first + self->flight_count - 1) % CONFORM_FLIGHTS_MAX]
                  .step
            : self->sent.step;
    proto_body_t body = {.plan_refused = {.step = plan->step,
                                          .applied_step = applied,
                                          .rule = refuse->rule,
                                          .slot = slot,
                                          .detail = proto_text("made up by the conformance run")}};
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_PLAN_REFUSED, 0, &body);
    return true;
}

/* ---- the core around it ---------------------------------------------------------------------- */

static void
on_plan(conform_executor_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_plan_t *plan = &input->body->plan;
    actor_conform_audit_plan(self, input);
    if (self->in_flight >= CONFORM_FLIGHTS_MAX - 1) {
        return; /* said already; there is no room for more */
    }
    if (self->awaits_full && plan->base_step != 0 && self->stale_allowed == 0) {
        conform_where_t where = {.link = "executor",
                                 .kind = PROTO_KIND_PLAN,
                                 .sequence = input->header->sequence};
        actor_conform_broke(self->report, CONFORM_REFUSAL_FULL_PLAN, &where,
                            "base_step 0 after a refusal",
                            "step %" PRIu64 " with base_step %" PRIu64, plan->step,
                            plan->base_step);
    }
    if (make_up_refusal(self, input, outbox)) {
        return;
    }
    step_inner(self, input, outbox);
}

static void
on_reset(conform_executor_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    self->reset_count++;
    self->has_reset = true;
    self->broken_step = 0;
    actor_conform_held(self->report, CONFORM_ATTACH_RESET);
    actor_conform_audit_reset(self);
    step_inner(self, input, outbox);
}

static void
step_scheduler(conform_executor_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    int kind = (int)input->header->kind;
    actor_conform_held(self->report, CONFORM_LINK_SEQUENCE);
    if (!self->has_reset && (kind == PROTO_KIND_PLAN || kind == PROTO_KIND_ADMIT)) {
        conform_where_t where = {.link = "executor",
                                 .kind = input->header->kind,
                                 .sequence = input->header->sequence,
                                 .request = input->header->request};
        actor_conform_broke(self->report, CONFORM_ATTACH_RESET, &where, "RESET first",
                            "%s before any RESET", proto_kind_name(input->header->kind));
        self->has_reset = true;
    }
    if (kind == PROTO_KIND_PLAN) {
        on_plan(self, input, outbox);
    } else if (kind == PROTO_KIND_ADMIT) {
        actor_conform_audit_admit(self, input);
        step_inner(self, input, outbox);
    } else if (kind == PROTO_KIND_RESET) {
        on_reset(self, input, outbox);
    } else {
        conform_where_t where = {.link = "executor",
                                 .kind = input->header->kind,
                                 .sequence = input->header->sequence,
                                 .request = input->header->request};
        actor_conform_broke(self->report, CONFORM_LINK_KIND, &where, "RESET, ADMIT or PLAN",
                            "%s to an executor", proto_kind_name(input->header->kind));
        return;
    }
    actor_conform_held(self->report, CONFORM_LINK_KIND);
}

static void
core_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    conform_executor_t *self = core;
    if (input->from.index != ACTOR_PEER_LOCAL) {
        step_scheduler(self, input, outbox);
        return;
    }
    int kind = (int)input->header->kind;
    if (kind == PROTO_KIND_PEER_UP) {
        self->scheduler.index = input->body->peer_up.peer;
        self->is_up = true;
        self->was_up = true;
        actor_conform_audit_reset(self);
    } else if (kind == PROTO_KIND_PEER_DOWN) {
        self->is_up = false;
        self->is_info_sent = false;
        self->has_reset = false;
        proto_text_t why = input->body->peer_down.detail;
        (void)snprintf(self->down_detail, sizeof self->down_detail, "%.*s", (int)why.size_bytes,
                       why.data != NULL ? why.data : "");
        self->flight_count = 0;
        self->in_flight = 0;
    }
    step_inner(self, input, outbox);
    self->changed_ns = input->now_ns;
}

static uint64_t
core_deadline_ns(const void *core)
{
    (void)core;
    return UINT64_MAX;
}

static uint64_t
core_digest(const void *core)
{
    const conform_executor_t *self = core;
    return actor_executor_core_ops(self->inner)->digest(self->inner);
}

static void
core_progress(const void *core, uint64_t now_ns, proto_heartbeat_t *out)
{
    const conform_executor_t *self = core;
    actor_executor_core_ops(self->inner)->progress(self->inner, now_ns, out);
}

/* ---- making ---------------------------------------------------------------------------------- */

static void
fill_info(conform_executor_t *self)
{
    const conform_machine_t *machine = &self->machine;
    self->info = (proto_executor_info_t){
        .model_name = proto_text("conformance"),
        .fingerprint = proto_text("model=conformance"),
        .vocab_size = CONFORM_VOCAB_SIZE,
        .model_len_max = machine->model_len_max,
        .slot_count = machine->slot_count,
        .step_tokens_max = machine->step_tokens_max,
        .decode_width = 1,
        .overlap_depth_max = machine->overlap_depth_max,
        .prefix_granularity = machine->page_tokens,
        .parent_count = machine->parent_count,
        .group_kinds = {machine->kinds, machine->group_count},
        .group_granularities = {machine->granularities, machine->group_count},
        .group_windows = {machine->windows, machine->group_count},
        .group_packings = {machine->packings, machine->group_count},
        .page_hash_key = {self->page_key, sizeof self->page_key},
    };
}

proto_status_t
actor_conform_executor_init(conform_executor_t *self, const conform_machine_t *machine,
                            conform_book_t *book, conform_report_t *report)
{
    memset(self, 0, sizeof *self);
    self->machine = *machine;
    self->book = book;
    self->report = report;
    self->ring_fd = -1;
    self->scheduler.index = ACTOR_PEER_NONE;
    memcpy(self->page_key, book->page_key, sizeof self->page_key);
    fill_info(self);
    actor_executor_core_options_t limits = {.slot_count_max = machine->slot_count,
                                            .model_len_max = machine->model_len_max,
                                            .step_tokens_max = machine->step_tokens_max};
    proto_status_t status = actor_executor_core_new(&limits, &self->inner);
    if (status != STATUS_OK) {
        return status;
    }
    const actor_core_ops_t *ops = actor_executor_core_ops(self->inner);
    status = actor_outbox_new(ops, &self->inner_outbox);
    if (status == STATUS_OK) {
        status = actor_conform_cache_init(&self->cache, &self->info, report);
    }
    if (status != STATUS_OK) {
        actor_conform_executor_fini(self);
        return status;
    }
    self->ops = (actor_core_ops_t){.name = "executor",
                                   .role = PROTO_ROLE_EXECUTOR,
                                   .outbox_size_bytes = 2 * ops->outbox_size_bytes + 65536,
                                   .outbox_count_max = 2 * ops->outbox_count_max + 4,
                                   .step = core_step,
                                   .deadline_ns = core_deadline_ns,
                                   .digest = core_digest,
                                   .progress = core_progress};
    return STATUS_OK;
}

void
actor_conform_executor_fini(conform_executor_t *self)
{
    actor_conform_cache_fini(&self->cache);
    actor_outbox_destroy(&self->inner_outbox);
    actor_executor_core_destroy(&self->inner);
}

void
actor_conform_executor_start(conform_executor_t *self)
{
    proto_body_t body;
    fill_ready(self, &body);
    actor_shell_inject(self->shell, PROTO_KIND_DEVICE_READY, 0, &body);
}

bool
actor_conform_executor_service(conform_executor_t *self, uint64_t now_ns)
{
    if (self->flight_count == 0 || !self->is_up || (self->is_holding && self->let_count == 0)) {
        return false;
    }
    /* As a device does, it gives the scheduler time to plan the step behind. */
    const conform_flight_t *oldest = &self->flights[self->flight_first];
    bool is_full = self->flight_count > self->machine.overlap_depth_max;
    if (!self->is_holding && !is_full && now_ns < oldest->launched_ns + STEP_NS) {
        return false;
    }
    self->let_count -= self->is_holding ? 1 : 0;
    self->sent = self->flights[self->flight_first];
    proto_body_t body;
    actor_conform_device_done(&self->sent, &body);
    actor_shell_inject(self->shell, PROTO_KIND_STEP_DONE, 0, &body);
    return true;
}
