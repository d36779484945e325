/* actor_gateway_core.c - making the core, its step, and what others may ask.
 *
 * One small state machine for each choice: open with a scheduler, waiting for one, stopping, ended.
 * A choice leaves the table in actor_gateway_end_choice() only, which gives its HTTP_END: so
 * "exactly one" holds by construction, and everything that comes later finds nothing and is
 * counted as ignored. */
#include "actor_gateway_core.h"

#include <stdlib.h>
#include <string.h>

#include "actor_gateway_state.h"

enum {
    /* Largest answer to one input: every choice gets tokens, a FINISH and an end; or SUBMITs. */
    EMISSION_COUNT_MAX = 3 * ACTOR_GATEWAY_CHOICE_COUNT_MAX + GATEWAY_RESUBMITS_MAX + 8,
    EMISSION_SIZE_BYTES = 512 + PROTO_TEXT_LEN_MAX,
};

/* Emissions without columns; a SUBMIT's columns at their largest, with those that may go before it;
 * log-probabilities of one TOKENS. */
#define OUTBOX_SIZE_BYTES                                                                          \
    ((size_t)EMISSION_COUNT_MAX * EMISSION_SIZE_BYTES + GATEWAY_RESUBMIT_BYTES_MAX +               \
     (size_t)GATEWAY_RESUBMITS_MAX * 512u + GATEWAY_SAMPLING_SIZE_MAX + 4u * PROTO_TOKENS_MAX +    \
     32u * PROTO_PAGES_MAX + 8u * GATEWAY_LOGPROBS_PER_MESSAGE_MAX + 65536u)

#define SECOND_NS UINT64_C(1000000000)
/* Both longer than what a node needs to mend itself.  A restarted scheduler may have to wait out
 * the supervisor's longest back-off (10 s), and an executor that comes with it loads its model;
 * giving up sooner would turn a delay into an error, and the client, kept alive meanwhile, can
 * always leave by itself. */
#define RESUME_TIMEOUT_NS (30 * SECOND_NS)
/* A scheduler at work says something at each step, and one chunk of a large model on a slow
 * processor is about a minute. */
#define ANSWER_TIMEOUT_NS (120 * SECOND_NS)
#define FINISH_TIMEOUT_NS (10 * SECOND_NS)
#define HISTORY_SIZE_BYTES (UINT64_C(64) << 20)

static void
fill_defaults(actor_gateway_core_options_t *options)
{
    if (options->finish_timeout_ns == 0) {
        options->finish_timeout_ns = FINISH_TIMEOUT_NS;
    }
    if (options->resume_timeout_ns == 0) {
        options->resume_timeout_ns = RESUME_TIMEOUT_NS;
    }
    if (options->answer_timeout_ns == 0) {
        options->answer_timeout_ns = ANSWER_TIMEOUT_NS;
    }
    if (options->history_size_bytes == 0) {
        options->history_size_bytes = HISTORY_SIZE_BYTES;
    }
}

proto_status_t
actor_gateway_core_new(const actor_gateway_core_options_t *options, actor_gateway_core_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);
    require(options->choice_count_max > 0);
    require(options->choice_count_max <= ACTOR_GATEWAY_CHOICE_COUNT_MAX);
    require(options->stop_id_count <= ACTOR_GATEWAY_STOP_ID_COUNT_MAX);
    require(options->history_size_bytes <= ACTOR_GATEWAY_HISTORY_SIZE_MAX);

    proto_status_t status = STATUS_ERR_NO_MEMORY;
    actor_gateway_core_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return status;
    }
    self->options = *options;
    fill_defaults(&self->options);
    actor_gateway_point_model(&self->model);
    actor_gateway_set_no_executor(self, (proto_text_t){.size_bytes = 0});
    /* 2^32 ids for each epoch, at a place that the epoch alone decides. */
    self->request_base = actor_gateway_mix(options->epoch) & ~UINT64_C(0xffffffff);
    self->scheduler.index = ACTOR_PEER_NONE;
    self->tokens = calloc(PROTO_TOKENS_MAX, sizeof *self->tokens);
    self->hashes = calloc(PROTO_PAGES_MAX, PROTO_HASH_SIZE_BYTES);
    self->sampling = calloc(GATEWAY_SAMPLING_SIZE_MAX, 1);
    if (self->tokens == NULL || self->hashes == NULL || self->sampling == NULL) {
        goto err_destroy;
    }
    status = actor_gateway_table_new(options->choice_count_max, &self->choices);
    if (status != STATUS_OK) {
        goto err_destroy;
    }
    status = actor_gateway_history_new(self->options.history_size_bytes, &self->history);
    if (status != STATUS_OK) {
        goto err_destroy;
    }
    *out_p = self;
    return STATUS_OK;

err_destroy:
    actor_gateway_core_destroy(&self);
    return status;
}

void
actor_gateway_core_destroy(actor_gateway_core_t **self_p)
{
    require(self_p != NULL);
    actor_gateway_core_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    actor_gateway_history_destroy(&self->history);
    actor_gateway_table_destroy(&self->choices);
    free(self->sampling);
    free(self->hashes);
    free(self->tokens);
    free(self);
    *self_p = NULL;
}

uint64_t
actor_gateway_mint(actor_gateway_core_t *self)
{
    return self->request_base + ++self->request_count;
}

/* ---- what is attached ------------------------------------------------------------------------ */

const char *
actor_gateway_missing_text(const actor_gateway_core_t *self)
{
    if (self->draining) {
        return "the server is shutting down";
    }
    if (!actor_gateway_has_scheduler(self)) {
        return "no scheduler is attached";
    }
    return self->has_model ? "" : self->no_executor;
}

const char *
actor_gateway_missing_code(const actor_gateway_core_t *self)
{
    if (self->draining) {
        return "shutting_down";
    }
    return actor_gateway_has_scheduler(self) ? "no_executor" : "worker_lost";
}

static bool
is_ready(const actor_gateway_core_t *self)
{
    return actor_gateway_can_submit(self) && !self->draining;
}

void
actor_gateway_tell_state(actor_gateway_core_t *self, actor_outbox_t *outbox)
{
    bool ready = is_ready(self);
    if (self->told_any && self->told_ready == ready) {
        return;
    }
    self->told_any = true;
    self->told_ready = ready;
    proto_body_t body = {
        .http_state = {.ready = ready, .detail = proto_text(actor_gateway_missing_text(self))},
    };
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_HTTP_STATE, 0, &body);
}

/* ---- the core interface ---------------------------------------------------------------------- */

static void
step_from_scheduler(actor_gateway_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    switch ((uint32_t)input->header->kind) {
    case PROTO_KIND_TOKENS:
        actor_gateway_on_tokens(self, input, outbox);
        break;
    case PROTO_KIND_FINISHED:
        actor_gateway_on_finished(self, input, outbox);
        break;
    case PROTO_KIND_MODEL_INFO:
        actor_gateway_on_model_info(self, input, outbox);
        break;
    case PROTO_KIND_LOAD:
        actor_gateway_on_load(self, input);
        break;
    default:
        self->ignored_count++;
        break;
    }
}

static void
step_local(actor_gateway_core_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    switch ((uint32_t)input->header->kind) {
    case PROTO_KIND_HTTP_REQUEST:
        actor_gateway_on_http_request(self, input, outbox);
        break;
    case PROTO_KIND_HTTP_STOP:
        actor_gateway_on_http_stop(self, input, outbox);
        break;
    case PROTO_KIND_PEER_UP:
        actor_gateway_on_peer_up(self, input, outbox);
        break;
    case PROTO_KIND_PEER_DOWN:
        actor_gateway_on_peer_down(self, input, outbox);
        break;
    case PROTO_KIND_TIMER:
        actor_gateway_on_timer(self, input->now_ns, outbox);
        actor_gateway_watch(self, input->now_ns, outbox);
        break;
    case PROTO_KIND_DRAIN:
        actor_gateway_on_drain(self, input, outbox);
        break;
    default:
        self->ignored_count++;
        break;
    }
}

static void
step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    actor_gateway_core_t *self = core;
    proto_require_set_request(input->header->request);
    if (input->from.index == ACTOR_PEER_LOCAL) {
        step_local(self, input, outbox);
    } else if (input->from.index == self->scheduler.index) {
        step_from_scheduler(self, input, outbox);
    } else {
        self->ignored_count++;
    }
    proto_require_set_request(0);
}

static uint64_t
deadline_ns(const void *core)
{
    const actor_gateway_core_t *self = core;
    if (self->sweep_is_due && actor_gateway_can_submit(self)) {
        return 0; /* the rest of a sweep: at once, but other inputs may come between */
    }
    const actor_gateway_choice_t *choice = actor_gateway_table_first(self->choices);
    uint64_t deadline = choice == NULL ? UINT64_MAX : choice->deadline_ns;
    uint64_t silence = actor_gateway_silence_ns(self);
    deadline = silence < deadline ? silence : deadline;
    if (self->is_replacing && self->replacing_until_ns < deadline) {
        deadline = self->replacing_until_ns;
    }
    return deadline;
}

static uint64_t
digest(const void *core)
{
    const actor_gateway_core_t *self = core;
    const bool flags[] = {self->has_model,  self->knows_model, self->is_replacing,
                          self->draining,   self->told_ready,  self->told_any,
                          self->complained, self->sweep_is_due};
    uint64_t bits = self->scheduler.index;
    for (size_t at = 0; at < sizeof flags / sizeof flags[0]; at++) {
        bits = bits << 1 | (flags[at] ? 1u : 0u);
    }
    const proto_model_info_t *model = &self->model.info;
    const uint64_t values[] = {
        self->request_base + self->request_count,
        bits,
        self->is_replacing ? self->replacing_until_ns : 0,
        self->draining ? self->drain_until_ns : 0,
        self->progress_ns,
        self->load.steps,
        (uint64_t)model->model_len_max << 32 | model->prompt_len_max,
        (uint64_t)model->vocab_size << 32 | model->prefix_granularity,
    };
    uint64_t value = actor_gateway_table_digest(self->choices);
    for (size_t at = 0; at < sizeof values / sizeof values[0]; at++) {
        value = actor_gateway_mix(value ^ values[at]);
    }
    return value;
}

static void
stats(const void *core, proto_stats_t *out)
{
    const actor_gateway_core_t *self = core;
    out->prompt_tokens = self->prompt_tokens;
    out->generation_tokens = self->generation_tokens;
}

static void
check(const void *core)
{
    const actor_gateway_core_t *self = core;
    actor_gateway_table_check(self->choices);
    require(!self->has_model || actor_gateway_has_scheduler(self));
    require(!self->has_model || self->knows_model);
    uint32_t waiting = 0;
    uint32_t trials = 0;
    uint64_t used = 0;
    const actor_gateway_choice_t *choice = actor_gateway_table_oldest(self->choices);
    for (; choice != NULL; choice = actor_gateway_table_newer(self->choices, choice)) {
        waiting += choice->is_waiting ? 1 : 0;
        trials += choice->is_trial ? 1 : 0;
        require(!choice->is_trial || !choice->is_waiting);
        used += actor_gateway_history_check(self->history, &choice->record);
        uint64_t size = choice->sampling_size +
                        sizeof(int32_t) * ((uint64_t)choice->prompt_tokens + choice->next_index);
        require(choice->record.size_bytes == (choice->is_kept ? size : 0));
        require(choice->next_index <= choice->generation_max);
        require(choice->is_waiting || actor_gateway_has_scheduler(self));
        require(choice->is_kept || !choice->is_waiting);
    }
    require(waiting == self->waiting_count);
    require(trials == self->trial_count);
    require(trials <= 1);
    require(used == actor_gateway_history_used_bytes(self->history));
}

static bool
idle(const void *core)
{
    const actor_gateway_core_t *self = core;
    return actor_gateway_table_count(self->choices) == 0;
}

const actor_core_ops_t *
actor_gateway_core_ops(void)
{
    static const actor_core_ops_t ops = {
        .name = "gateway",
        .role = PROTO_ROLE_GATEWAY,
        .outbox_size_bytes = OUTBOX_SIZE_BYTES,
        .outbox_count_max = EMISSION_COUNT_MAX,
        .step = step,
        .deadline_ns = deadline_ns,
        .digest = digest,
        .stats = stats,
        .progress = NULL,
        .check = check,
        .idle = idle,
        .save = actor_gateway_save,
    };
    return &ops;
}

/* ---- questions ------------------------------------------------------------------------------- */

const proto_model_info_t *
actor_gateway_core_model(const actor_gateway_core_t *self)
{
    return self->has_model || self->is_replacing ? &self->model.info : NULL;
}

const proto_load_t *
actor_gateway_core_load(const actor_gateway_core_t *self)
{
    return &self->load;
}

actor_gateway_core_state_t
actor_gateway_core_state(const actor_gateway_core_t *self)
{
    return (actor_gateway_core_state_t){
        .ready = is_ready(self),
        .draining = self->draining,
        .open_count = actor_gateway_table_count(self->choices),
        .waiting_count = self->waiting_count,
        .submitted_count = self->submitted_count,
        .ended_count = self->ended_count,
        .gap_count = self->gap_count,
        .ignored_count = self->ignored_count,
        .resumed_count = self->resumed_count,
        .unkept_count = self->unkept_count,
        .poisoned_count = self->poisoned_count,
        .history_used_bytes = actor_gateway_history_used_bytes(self->history),
        .history_size_bytes = actor_gateway_history_size_bytes(self->history),
        .detail = actor_gateway_missing_text(self),
    };
}

bool
actor_gateway_core_look(const actor_gateway_core_t *self, uint64_t *after,
                        actor_gateway_seen_t *out)
{
    const actor_gateway_choice_t *choice = actor_gateway_table_oldest(self->choices);
    while (choice != NULL && choice->arrival <= *after) {
        choice = actor_gateway_table_newer(self->choices, choice);
    }
    if (choice == NULL) {
        return false;
    }
    *after = choice->arrival;
    *out = (actor_gateway_seen_t){
        .exchange = choice->exchange,
        .request = choice->request,
        .priority = choice->priority,
        .choice_index = choice->choice_index,
        .prompt_tokens = choice->prompt_tokens,
        .generated_tokens = choice->next_index,
        .generation_max = choice->generation_max,
        .is_waiting = choice->is_waiting,
        .is_stopping = choice->stop_reason != PROTO_FINISH_NONE,
    };
    return true;
}
