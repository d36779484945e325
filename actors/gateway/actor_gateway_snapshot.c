/* actor_gateway_snapshot.c - the core as bytes, and back.
 *
 * Choices go in the order in which they came, which is all of the table's inner order that later
 * outputs depend on.  The secret part has no structure of its own: the key of page hashes, then for
 * each choice that is kept its sampling bytes and tokens, whose sizes are in the state; so it can
 * be zeroed as it is. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "actor_gateway_state.h"
#include "proto_cursor.h"

enum {
    SNAPSHOT_VERSION = 4,
    FLAG_WAITING = 1, /* of a choice */
    FLAG_LOST = 2,
    FLAG_WAS_WAITING = 4,
    FLAG_KEPT = 8,
    FLAG_TRIAL = 16,
    FLAGS_ALL = 31,
};

/* ---- save ------------------------------------------------------------------------------------ */

static void
save_options(const actor_gateway_core_options_t *options, proto_pack_t *out)
{
    proto_pack_u64(out, options->epoch);
    proto_pack_u32(out, options->choice_count_max);
    proto_pack_u64(out, options->finish_timeout_ns);
    proto_pack_u64(out, options->resume_timeout_ns);
    proto_pack_u64(out, options->answer_timeout_ns);
    proto_pack_u64(out, options->history_size_bytes);
    proto_pack_u32(out, options->stop_id_count);
    for (uint32_t at = 0; at < options->stop_id_count; at++) {
        proto_pack_u32(out, (uint32_t)options->stop_ids[at]);
    }
}

static void
save_model(const gateway_model_t *model, proto_pack_t *out)
{
    const proto_model_info_t *info = &model->info;
    proto_pack_bytes(out, model->name, info->model_name.size_bytes);
    proto_pack_bytes(out, model->fingerprint, info->fingerprint.size_bytes);
    proto_pack_u32(out, (uint32_t)info->page_hash_key.size_bytes);
    proto_pack_u32(out, info->vocab_size);
    proto_pack_u32(out, info->model_len_max);
    proto_pack_u32(out, info->prompt_len_max);
    proto_pack_u32(out, info->slot_count);
    proto_pack_u32(out, info->queue_len_max);
    proto_pack_u32(out, info->prefix_granularity);
    proto_pack_u64(out, info->token_capacity);
}

/* The fields of LOAD, those with a limit of their own first and last. */
/* In the order in which load_load() reads them. */
static void
save_load(const proto_load_t *load, proto_pack_t *out)
{
    const uint64_t values[] = {
        load->running,
        load->waiting,
        load->blocks_total,
        load->blocks_free,
        load->blocks_cached,
        load->prefix_queries,
        load->prefix_hits,
        load->preemptions,
        load->steps,
        load->plans_refused,
        load->graph_steps,
        load->eager_steps,
        load->prompt_tokens,
        load->generation_tokens,
        load->above_ladder_steps,
        load->wide_steps,
        load->drafts_proposed,
        load->drafts_accepted,
        load->drafts_missing,
        load->drafts_ignored,
        load->blocks_held,
        load->blocks_incoming,
        load->blocks_fencing,
        load->prefill_graph_steps,
        load->prefill_eager_steps,
        load->recomputed_tokens,
        load->evicted_blocks,
        load->stalls,
    };
    proto_pack_u64_array(out, values, sizeof values / sizeof values[0]);
}

static void
save_choice(const actor_gateway_choice_t *choice, proto_pack_t *out)
{
    uint32_t flags = (choice->is_waiting ? (uint32_t)FLAG_WAITING : 0) |
                     (choice->is_lost ? (uint32_t)FLAG_LOST : 0) |
                     (choice->was_waiting ? (uint32_t)FLAG_WAS_WAITING : 0) |
                     (choice->is_kept ? (uint32_t)FLAG_KEPT : 0) |
                     (choice->is_trial ? (uint32_t)FLAG_TRIAL : 0);
    proto_pack_u64(out, choice->exchange);
    proto_pack_u64(out, choice->request);
    proto_pack_u64(out, choice->client_deadline_ns);
    proto_pack_u64(out, choice->finish_deadline_ns);
    proto_pack_u64(out, choice->wait_until_ns);
    proto_pack_u64(out, choice->retry_ns);
    proto_pack_i64(out, choice->priority);
    proto_pack_u32(out, choice->choice_index);
    proto_pack_u32(out, choice->next_index);
    proto_pack_u32(out, choice->prompt_tokens);
    proto_pack_u32(out, choice->generation_max);
    proto_pack_u32(out, choice->stop_index);
    proto_pack_u32(out, choice->attempt_count);
    proto_pack_u32(out, choice->kill_count);
    proto_pack_u32(out, choice->kill_index);
    proto_pack_u32(out, (uint32_t)choice->stop_reason);
    proto_pack_u32(out, choice->sampling_size);
    proto_pack_u32(out, flags);
}

static void
save_record(const actor_gateway_core_t *self, const actor_gateway_choice_t *choice,
            proto_pack_t *out)
{
    uint8_t part[1024];
    uint64_t at = 0;
    while (at < choice->record.size_bytes) {
        uint64_t left = choice->record.size_bytes - at;
        size_t size_bytes = left < sizeof part ? (size_t)left : sizeof part;
        actor_gateway_history_read(self->history, &choice->record, at, part, size_bytes);
        proto_pack_raw(out, part, size_bytes);
        at += size_bytes;
    }
}

void
actor_gateway_save(const void *core, proto_pack_t *state, proto_pack_t *secret)
{
    const actor_gateway_core_t *self = core;
    proto_pack_u32(state, SNAPSHOT_VERSION);
    save_options(&self->options, state);
    proto_pack_u64(state, self->request_count);
    proto_pack_u32(state, self->scheduler.index);
    proto_pack_bytes(state, self->scheduler_name, strlen(self->scheduler_name));
    proto_pack_u64(state, self->scheduler_epoch);
    proto_pack_bytes(state, self->no_executor, strlen(self->no_executor));
    proto_pack_bool(state, self->has_model);
    proto_pack_bool(state, self->knows_model);
    proto_pack_bool(state, self->is_replacing);
    proto_pack_bool(state, self->draining);
    proto_pack_bool(state, self->told_ready);
    proto_pack_bool(state, self->told_any);
    proto_pack_bool(state, self->complained);
    proto_pack_bool(state, self->sweep_is_due);
    proto_pack_u64(state, self->replacing_until_ns);
    proto_pack_u64(state, self->drain_until_ns);
    proto_pack_u64(state, self->progress_ns);
    save_model(&self->model, state);
    proto_pack_raw(secret, self->model.page_hash_key, self->model.info.page_hash_key.size_bytes);
    save_load(&self->load, state);
    const uint64_t counts[] = {
        self->submitted_count, self->ended_count,  self->gap_count,     self->ignored_count,
        self->resumed_count,   self->unkept_count, self->prompt_tokens, self->generation_tokens,
    };
    proto_pack_u64_array(state, counts, sizeof counts / sizeof counts[0]);
    proto_pack_u32(state, actor_gateway_table_count(self->choices));
    const actor_gateway_choice_t *choice = actor_gateway_table_oldest(self->choices);
    for (; choice != NULL; choice = actor_gateway_table_newer(self->choices, choice)) {
        save_choice(choice, state);
        save_record(self, choice, secret);
    }
}

/* ---- restore --------------------------------------------------------------------------------- */

static void
load_options(proto_unpack_t *in, actor_gateway_core_options_t *out)
{
    out->epoch = proto_unpack_u64(in);
    out->choice_count_max = proto_unpack_u32_max(in, ACTOR_GATEWAY_CHOICE_COUNT_MAX);
    out->finish_timeout_ns = proto_unpack_u64(in);
    out->resume_timeout_ns = proto_unpack_u64(in);
    out->answer_timeout_ns = proto_unpack_u64(in);
    out->history_size_bytes = proto_unpack_u64_max(in, ACTOR_GATEWAY_HISTORY_SIZE_MAX);
    out->stop_id_count = proto_unpack_u32_max(in, ACTOR_GATEWAY_STOP_ID_COUNT_MAX);
    for (uint32_t at = 0; at < out->stop_id_count; at++) {
        out->stop_ids[at] = (int32_t)proto_unpack_u32(in);
    }
    /* Saved with the defaults filled in. */
    if (out->choice_count_max == 0 || out->finish_timeout_ns == 0 || out->resume_timeout_ns == 0 ||
        out->answer_timeout_ns == 0 || out->history_size_bytes == 0) {
        proto_unpack_fail(in);
    }
}

/* The number of bytes copied to `out`, which holds `size_bytes_max`. */
static uint32_t
load_bytes(proto_unpack_t *in, void *out, size_t size_bytes_max)
{
    proto_bytes_t bytes = proto_unpack_bytes(in, size_bytes_max);
    if (bytes.size_bytes > 0) {
        memcpy(out, bytes.data, bytes.size_bytes);
    }
    return (uint32_t)bytes.size_bytes;
}

static void
load_model(proto_unpack_t *in, proto_unpack_t *secret, gateway_model_t *out)
{
    proto_model_info_t *info = &out->info;
    info->model_name.size_bytes = load_bytes(in, out->name, sizeof out->name);
    info->fingerprint.size_bytes = load_bytes(in, out->fingerprint, sizeof out->fingerprint);
    info->page_hash_key.size_bytes = proto_unpack_u32_max(in, sizeof out->page_hash_key);
    proto_unpack_raw(secret, out->page_hash_key, info->page_hash_key.size_bytes);
    info->vocab_size = proto_unpack_u32_max(in, 1 << 24);
    info->model_len_max = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    info->prompt_len_max = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    info->slot_count = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
    info->queue_len_max = proto_unpack_u32_max(in, 1 << 20);
    info->prefix_granularity = proto_unpack_u32_max(in, 65536);
    info->token_capacity = proto_unpack_u64(in);
    actor_gateway_point_model(out);
}

static void
load_load(proto_unpack_t *in, proto_load_t *out)
{
    out->running = (uint32_t)proto_unpack_u64_max(in, PROTO_ROWS_MAX);
    out->waiting = (uint32_t)proto_unpack_u64_max(in, 1 << 20);
    out->blocks_total = (uint32_t)proto_unpack_u64_max(in, PROTO_BLOCKS_MAX);
    out->blocks_free = (uint32_t)proto_unpack_u64_max(in, PROTO_BLOCKS_MAX);
    out->blocks_cached = (uint32_t)proto_unpack_u64_max(in, PROTO_BLOCKS_MAX);
    uint64_t *rest[] = {
        &out->prefix_queries,    &out->prefix_hits,
        &out->preemptions,       &out->steps,
        &out->plans_refused,     &out->graph_steps,
        &out->eager_steps,       &out->prompt_tokens,
        &out->generation_tokens, &out->above_ladder_steps,
        &out->wide_steps,        &out->drafts_proposed,
        &out->drafts_accepted,   &out->drafts_missing,
        &out->drafts_ignored,
    };
    for (size_t at = 0; at < sizeof rest / sizeof rest[0]; at++) {
        *rest[at] = proto_unpack_u64(in);
    }
    out->blocks_held = (uint32_t)proto_unpack_u64_max(in, PROTO_BLOCKS_MAX);
    out->blocks_incoming = (uint32_t)proto_unpack_u64_max(in, PROTO_BLOCKS_MAX);
    out->blocks_fencing = (uint32_t)proto_unpack_u64_max(in, PROTO_BLOCKS_MAX);
    out->prefill_graph_steps = proto_unpack_u64(in);
    out->prefill_eager_steps = proto_unpack_u64(in);
    out->recomputed_tokens = proto_unpack_u64(in);
    out->evicted_blocks = proto_unpack_u64(in);
    out->stalls = proto_unpack_u64(in);
}

static void
load_flags(proto_unpack_t *in, actor_gateway_core_t *self)
{
    self->has_model = proto_unpack_bool(in);
    self->knows_model = proto_unpack_bool(in);
    self->is_replacing = proto_unpack_bool(in);
    self->draining = proto_unpack_bool(in);
    self->told_ready = proto_unpack_bool(in);
    self->told_any = proto_unpack_bool(in);
    self->complained = proto_unpack_bool(in);
    self->sweep_is_due = proto_unpack_bool(in);
    self->replacing_until_ns = proto_unpack_u64(in);
    self->drain_until_ns = proto_unpack_u64(in);
    self->progress_ns = proto_unpack_u64(in);
}

static void
load_head(proto_unpack_t *in, proto_unpack_t *secret, actor_gateway_core_t *self)
{
    self->request_count = proto_unpack_u64_max(in, UINT32_MAX);
    self->scheduler.index = proto_unpack_u32_max(in, ACTOR_PEER_NONE);
    (void)load_bytes(in, self->scheduler_name, sizeof self->scheduler_name - 1);
    self->scheduler_epoch = proto_unpack_u64(in);
    memset(self->no_executor, 0, sizeof self->no_executor);
    uint32_t reason_size = load_bytes(in, self->no_executor, sizeof self->no_executor - 1);
    load_flags(in, self);
    load_model(in, secret, &self->model);
    load_load(in, &self->load);
    uint64_t *counts[] = {
        &self->submitted_count, &self->ended_count,  &self->gap_count,     &self->ignored_count,
        &self->resumed_count,   &self->unkept_count, &self->prompt_tokens, &self->generation_tokens,
    };
    for (size_t at = 0; at < sizeof counts / sizeof counts[0]; at++) {
        *counts[at] = proto_unpack_u64(in);
    }
    bool name_ok = true;
    for (const char *at = self->scheduler_name; *at != '\0'; at++) {
        name_ok =
            name_ok && ((*at >= 'a' && *at <= 'z') || (*at >= '0' && *at <= '9') || *at == '-');
    }
    bool peer_ok =
        self->scheduler.index == ACTOR_PEER_NONE ||
        (self->scheduler.index != ACTOR_PEER_LOCAL && self->scheduler.index < ACTOR_PEER_COUNT_MAX);
    bool model_ok = !self->has_model || (actor_gateway_has_scheduler(self) && self->knows_model);
    bool reason_ok =
        proto_utf8_prefix((const uint8_t *)self->no_executor, reason_size) == reason_size;
    if (!name_ok || !peer_ok || !model_ok || !reason_ok ||
        (self->is_replacing && !self->knows_model)) {
        proto_unpack_fail(in);
    }
}

/* The record of a choice, which is in the table with an empty one. */
static void
load_record(proto_unpack_t *secret, actor_gateway_core_t *self, actor_gateway_choice_t *choice)
{
    uint8_t part[1024];
    uint64_t left = choice->sampling_size +
                    sizeof(int32_t) * ((uint64_t)choice->prompt_tokens + choice->next_index);
    while (left > 0 && !secret->failed) {
        size_t size_bytes = left < sizeof part ? (size_t)left : sizeof part;
        proto_unpack_raw(secret, part, size_bytes);
        if (secret->failed || actor_gateway_history_append(self->history, &choice->record, part,
                                                           size_bytes) != STATUS_OK) {
            proto_unpack_fail(secret);
        }
        left -= size_bytes;
    }
}

/* What the core takes for granted of its choices. */
static bool
choice_is_sound(const actor_gateway_core_t *self, const actor_gateway_choice_t *choice)
{
    bool stops =
        choice->stop_reason == PROTO_FINISH_STOP || choice->stop_reason == PROTO_FINISH_CANCELLED;
    if (!stops && choice->stop_reason != PROTO_FINISH_NONE) {
        return false;
    }
    if (choice->is_waiting &&
        (!choice->is_kept || stops || choice->next_index >= choice->generation_max)) {
        return false;
    }
    if (choice->is_trial && (choice->is_waiting || self->trial_count > 0)) {
        return false;
    }
    if (!choice->is_waiting && !actor_gateway_has_scheduler(self)) {
        return false;
    }
    /* Ids that are still to be minted must be free. */
    bool is_minted = choice->request > self->request_base &&
                     choice->request - self->request_base <= self->request_count;
    return is_minted && choice->prompt_tokens > 0 &&
           (uint64_t)choice->prompt_tokens + choice->generation_max <= PROTO_TOKENS_MAX &&
           choice->next_index <= choice->generation_max &&
           (choice->is_kept || choice->sampling_size == 0);
}

static void
load_choice(proto_unpack_t *in, proto_unpack_t *secret, actor_gateway_core_t *self)
{
    actor_gateway_choice_t saved = {.exchange = proto_unpack_u64(in)};
    saved.request = proto_unpack_u64(in);
    saved.client_deadline_ns = proto_unpack_u64(in);
    saved.finish_deadline_ns = proto_unpack_u64(in);
    saved.wait_until_ns = proto_unpack_u64(in);
    saved.retry_ns = proto_unpack_u64(in);
    saved.priority = proto_unpack_i64(in);
    saved.choice_index = proto_unpack_u32_max(in, 65535);
    saved.next_index = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    saved.prompt_tokens = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    saved.generation_max = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    saved.stop_index = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    saved.attempt_count = proto_unpack_u32(in);
    saved.kill_count = proto_unpack_u32(in);
    saved.kill_index = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    saved.stop_reason = (proto_finish_reason_t)proto_unpack_u32_max(in, PROTO_FINISH_REFUSED);
    saved.sampling_size = proto_unpack_u32_max(in, GATEWAY_SAMPLING_SIZE_MAX);
    uint32_t flags = proto_unpack_u32_max(in, FLAGS_ALL);
    saved.is_waiting = (flags & FLAG_WAITING) != 0;
    saved.is_lost = (flags & FLAG_LOST) != 0;
    saved.was_waiting = (flags & FLAG_WAS_WAITING) != 0;
    saved.is_kept = (flags & FLAG_KEPT) != 0;
    saved.is_trial = (flags & FLAG_TRIAL) != 0;
    bool is_sound = !in->failed && choice_is_sound(self, &saved) && saved.priority <= 1000000 &&
                    saved.priority >= -1000000;
    if (!is_sound || actor_gateway_table_find(self->choices, saved.request) != NULL ||
        actor_gateway_table_find_choice(self->choices, saved.exchange, saved.choice_index) !=
            NULL) {
        proto_unpack_fail(in);
        return;
    }
    actor_gateway_choice_t *choice =
        actor_gateway_table_acquire(self->choices, saved.request, saved.exchange,
                                    saved.choice_index);
    require(choice != NULL); /* their number was compared with the table's size */
    actor_gateway_table_begin(self->choices, choice);
    choice->client_deadline_ns = saved.client_deadline_ns;
    choice->finish_deadline_ns = saved.finish_deadline_ns;
    choice->wait_until_ns = saved.wait_until_ns;
    choice->retry_ns = saved.retry_ns;
    choice->priority = saved.priority;
    choice->next_index = saved.next_index;
    choice->prompt_tokens = saved.prompt_tokens;
    choice->generation_max = saved.generation_max;
    choice->stop_index = saved.stop_index;
    choice->attempt_count = saved.attempt_count;
    choice->kill_count = saved.kill_count;
    choice->kill_index = saved.kill_index;
    choice->stop_reason = saved.stop_reason;
    choice->sampling_size = saved.sampling_size;
    choice->is_waiting = saved.is_waiting;
    choice->is_lost = saved.is_lost;
    choice->was_waiting = saved.was_waiting;
    choice->is_kept = saved.is_kept;
    choice->is_trial = saved.is_trial;
    if (choice->is_kept) {
        load_record(secret, self, choice);
    }
    actor_gateway_table_end(self->choices, choice);
    self->waiting_count += choice->is_waiting ? 1 : 0;
    self->trial_count += choice->is_trial ? 1 : 0;
}

static proto_status_t
load_all(proto_unpack_t *in, proto_unpack_t *secret, actor_gateway_core_t *self)
{
    load_head(in, secret, self);
    uint32_t count = proto_unpack_u32_max(in, self->options.choice_count_max);
    for (uint32_t at = 0; at < count && !in->failed && !secret->failed; at++) {
        load_choice(in, secret, self);
    }
    proto_status_t status = proto_unpack_end(in);
    return status == STATUS_OK ? proto_unpack_end(secret) : status;
}

static proto_status_t
fail(proto_error_t *error, proto_status_t status, const char *what, size_t at, size_t size_bytes)
{
    if (error != NULL) {
        (void)snprintf(error->detail, sizeof error->detail,
                       "snapshot of a gateway: %s, at byte %zu of %zu", what, at, size_bytes);
    }
    return status;
}

proto_status_t
actor_gateway_core_restore(proto_bytes_t state, proto_bytes_t secret, actor_gateway_core_t **out_p,
                           proto_error_t *error)
{
    require(out_p != NULL);
    proto_unpack_t in = {.bytes = state};
    proto_unpack_t secrets = {.bytes = secret};
    uint32_t version = proto_unpack_u32(&in);
    if (in.failed) {
        return fail(error, STATUS_ERR_MALFORMED, "it has no version", in.at, state.size_bytes);
    }
    if (version != SNAPSHOT_VERSION) {
        char what[80];
        (void)snprintf(what, sizeof what, "its version is %" PRIu32 ", this build reads %d",
                       version, SNAPSHOT_VERSION);
        return fail(error, STATUS_ERR_VERSION, what, in.at, state.size_bytes);
    }
    actor_gateway_core_options_t options = {0};
    load_options(&in, &options);
    if (in.failed) {
        return fail(error, STATUS_ERR_MALFORMED, "its options are wrong", in.at, state.size_bytes);
    }
    actor_gateway_core_t *self = NULL;
    proto_status_t status = actor_gateway_core_new(&options, &self);
    if (status != STATUS_OK) {
        return fail(error, status, "no memory for what it asks for", in.at, state.size_bytes);
    }
    status = load_all(&in, &secrets, self);
    if (status != STATUS_OK) {
        actor_gateway_core_destroy(&self);
        if (!in.failed && in.at == state.size_bytes) {
            return fail(error, status, "its secret part does not fit its state", secrets.at,
                        secret.size_bytes);
        }
        return fail(error, status, "its state is wrong", in.at, state.size_bytes);
    }
    *out_p = self;
    return STATUS_OK;
}
