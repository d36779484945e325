/* The scheduler's state as bytes, and back: options, peers, the executor in charge, then the store
 * of waiting requests and the library's own part.  Tokens, sampling parameters and the key of page
 * hashes are secret; page hashes are not, since they decide. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_scheduler_state.h"

enum {
    SAVE_VERSION = 5, /* of the layout; another one is refused */
    INCARNATION_MAX = 0xffffff,
};
static const uint64_t STORE_SIZE_MAX_BYTES = UINT64_C(1) << 34; /* as nobody would set it aside */

/* ---- saving ---------------------------------------------------------------------------------- */

static void
save_options(const actor_scheduler_core_options_t *options, proto_pack_t *out)
{
    proto_pack_u32(out, options->slot_count_max);
    proto_pack_u32(out, options->queue_len_max);
    proto_pack_u64(out, options->store_size_bytes);
    proto_pack_u64(out, options->load_interval_ns);
    proto_pack_u64(out, options->queue_timeout_ns);
    proto_pack_bool(out, options->no_overlap);
    proto_pack_bool(out, options->no_prefix_cache);
    proto_pack_bool(out, options->full_plans);
    proto_pack_u32(out, options->loan_count_max);
}

static bool
was_used(const scheduler_peer_t *peer)
{
    return peer->role != PROTO_ROLE_NONE || peer->epoch != 0 || peer->incarnation != 0;
}

static void
save_peers(const actor_scheduler_core_t *self, proto_pack_t *out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < ACTOR_PEER_COUNT_MAX; i++) {
        count += was_used(&self->peers[i]) ? 1 : 0;
    }
    proto_pack_u32(out, count);
    for (uint32_t i = 0; i < ACTOR_PEER_COUNT_MAX; i++) {
        const scheduler_peer_t *peer = &self->peers[i];
        if (was_used(peer)) {
            proto_pack_u32(out, i);
            proto_pack_u32(out, (uint32_t)peer->role);
            proto_pack_u64(out, peer->epoch);
            proto_pack_u32(out, peer->incarnation);
        }
    }
}

static void
save_column(proto_column_u32_t column, proto_pack_t *out)
{
    proto_pack_u32(out, column.count);
    proto_pack_u32_array(out, column.data, column.count);
}

/* All of it, although the library keeps most: after a fault the executor attaches again by it. */
static void
save_info(const proto_executor_info_t *info, proto_pack_t *out)
{
    proto_pack_bytes(out, info->model_name.data, info->model_name.size_bytes);
    proto_pack_bytes(out, info->fingerprint.data, info->fingerprint.size_bytes);
    proto_pack_u32(out, (uint32_t)info->page_hash_key.size_bytes);
    proto_pack_u32(out, info->vocab_size);
    proto_pack_u32(out, info->model_len_max);
    proto_pack_u32(out, info->slot_count);
    proto_pack_u32(out, info->prefix_granularity);
    proto_pack_u32(out, info->step_tokens_max);
    proto_pack_u32(out, info->decode_width);
    proto_pack_u32(out, info->overlap_depth_max);
    proto_pack_u32(out, info->parent_count);
    save_column(info->group_kinds, out);
    save_column(info->group_granularities, out);
    save_column(info->group_windows, out);
    save_column(info->group_packings, out);
}

void
actor_scheduler_save(const void *core, proto_pack_t *state, proto_pack_t *secret)
{
    const actor_scheduler_core_t *self = core;
    proto_pack_u32(state, SAVE_VERSION);
    save_options(&self->options, state);
    save_peers(self, state);
    bool attached = sched_core_is_attached(self->library);
    proto_pack_bool(state, attached);
    if (attached) {
        proto_pack_u32(state, self->executor.index);
        save_info(&self->info, state);
        proto_pack_raw(secret, self->page_hash_key, self->info.page_hash_key.size_bytes);
    }
    proto_pack_u64(state, self->executor_epoch);
    proto_pack_u32(state, self->fault_count);
    proto_pack_u64(state, self->load_next_ns);
    proto_pack_u64(state, self->load_digest);
    proto_pack_bool(state, self->load_is_due);
    proto_pack_bool(state, self->has_more_finished);
    proto_pack_bool(state, self->has_more_reserved);
    proto_pack_u32(state, self->kv_transfer.index);
    proto_pack_u64(state, self->fence_count);
    proto_pack_u64(state, self->busy_since_ns);
    proto_pack_u64(state, self->finished_count);
    proto_pack_u64(state, self->refused_count);
    proto_pack_u64(state, self->ignored_count);
    proto_pack_u64(state, self->stats.busy_ns);
    proto_pack_bytes(state, self->refusal, strlen(self->refusal));
    actor_scheduler_store_save(self->store, state, secret);
    sched_core_save(self->library, state);
}

/* ---- restoring ------------------------------------------------------------------------------- */

static void
load_options(proto_unpack_t *in, actor_scheduler_core_options_t *options)
{
    options->slot_count_max = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
    options->queue_len_max = proto_unpack_u32_max(in, 1 << 20);
    options->store_size_bytes = proto_unpack_u64_max(in, STORE_SIZE_MAX_BYTES);
    options->load_interval_ns = proto_unpack_u64(in);
    options->queue_timeout_ns = proto_unpack_u64(in);
    options->no_overlap = proto_unpack_bool(in);
    options->no_prefix_cache = proto_unpack_bool(in);
    options->full_plans = proto_unpack_bool(in);
    options->loan_count_max = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
    /* A zero would become its default, and not be what was saved. */
    if (options->slot_count_max == 0 || options->queue_len_max == 0 ||
        options->store_size_bytes == 0 || options->load_interval_ns == 0) {
        proto_unpack_fail(in);
    }
}

static void
load_peers(actor_scheduler_core_t *self, proto_unpack_t *in)
{
    uint32_t count = proto_unpack_u32_max(in, ACTOR_PEER_COUNT_MAX);
    for (uint32_t n = 0, least = 1; n < count; n++) {
        uint32_t index = proto_unpack_u32_max(in, ACTOR_PEER_COUNT_MAX - 1);
        scheduler_peer_t *peer = &self->peers[index];
        peer->role = (proto_role_t)proto_unpack_u32_max(in, PROTO_ROLE_CLIENT);
        peer->epoch = proto_unpack_u64(in);
        peer->incarnation = proto_unpack_u32_max(in, INCARNATION_MAX);
        if (index < least || !was_used(peer)) {
            proto_unpack_fail(in);
        }
        least = index + 1;
    }
}

static proto_text_t
load_text(proto_unpack_t *in, char *room)
{
    proto_bytes_t bytes = proto_unpack_bytes(in, PROTO_TEXT_LEN_MAX);
    if (bytes.size_bytes > 0) {
        memcpy(room, bytes.data, bytes.size_bytes);
    }
    return (proto_text_t){room, (uint32_t)bytes.size_bytes};
}

static proto_column_u32_t
load_column(proto_unpack_t *in, uint32_t *room)
{
    uint32_t count = proto_unpack_u32_max(in, PROTO_GROUPS_MAX);
    proto_unpack_u32_array(in, room, count, UINT32_MAX);
    return (proto_column_u32_t){room, count};
}

static void
load_info(actor_scheduler_core_t *self, proto_unpack_t *in, proto_unpack_t *secret)
{
    proto_executor_info_t *info = &self->info;
    self->executor.index = proto_unpack_u32_max(in, ACTOR_PEER_COUNT_MAX - 1);
    info->model_name = load_text(in, self->info_text[0]);
    info->fingerprint = load_text(in, self->info_text[1]);
    uint32_t key_size = proto_unpack_u32_max(in, sizeof self->page_hash_key);
    proto_unpack_raw(secret, self->page_hash_key, key_size);
    info->page_hash_key = (proto_bytes_t){self->page_hash_key, key_size};
    info->vocab_size = proto_unpack_u32_max(in, 1 << 24);
    info->model_len_max = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    info->slot_count = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
    info->prefix_granularity = proto_unpack_u32_max(in, 65536);
    info->step_tokens_max = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    info->decode_width = proto_unpack_u32_max(in, 16);
    info->overlap_depth_max = proto_unpack_u32_max(in, 1);
    info->parent_count = proto_unpack_u32_max(in, PROTO_BLOCKS_MAX);
    info->group_kinds = load_column(in, self->info_columns[0]);
    info->group_granularities = load_column(in, self->info_columns[1]);
    info->group_windows = load_column(in, self->info_columns[2]);
    info->group_packings = load_column(in, self->info_columns[3]);
    if (self->executor.index == ACTOR_PEER_LOCAL) {
        proto_unpack_fail(in);
    }
}

/* A request of the library: its owner can be a peer, and its bytes are in the store. */
static bool
restored(void *context, const sched_restored_t *request, const uint8_t **hashes)
{
    actor_scheduler_core_t *self = context;
    if ((request->owner & 255) >= ACTOR_PEER_COUNT_MAX) {
        return false;
    }
    actor_scheduler_content_t content;
    if (request->admitted) {
        return true;
    }
    if (!actor_scheduler_store_claim(self->store, request->tag, &content) ||
        content.tokens.count != request->prompt_length) {
        return false;
    }
    *hashes = content.page_hashes.data;
    return !request->waits || content.page_hashes.size_bytes == request->hashes_size_bytes;
}

/* The library must be the one that these options make: the outbox is sized by them. */
static bool
library_fits(const actor_scheduler_core_t *self)
{
    sched_core_options_t expected = actor_scheduler_library_options(&self->options);
    const sched_core_options_t *given = sched_core_options(self->library);
    bool has_timeout = expected.queue_timeout_ns != 0;
    return given->slot_count_max == expected.slot_count_max &&
           given->queue_len_max == expected.queue_len_max &&
           given->overlap_depth_max == expected.overlap_depth_max &&
           given->no_prefix_cache == expected.no_prefix_cache &&
           given->full_plans == expected.full_plans &&
           given->loan_count_max == expected.loan_count_max &&
           (!has_timeout || given->queue_timeout_ns == expected.queue_timeout_ns);
}

static proto_status_t
load(actor_scheduler_core_t *self, proto_unpack_t *state, proto_unpack_t *secret,
     proto_error_t *error)
{
    load_peers(self, state);
    bool attached = proto_unpack_bool(state);
    if (attached) {
        load_info(self, state, secret);
    }
    self->executor_epoch = proto_unpack_u64(state);
    self->fault_count = proto_unpack_u32(state);
    self->load_next_ns = proto_unpack_u64(state);
    self->load_digest = proto_unpack_u64(state);
    self->load_is_due = proto_unpack_bool(state);
    self->has_more_finished = proto_unpack_bool(state);
    self->has_more_reserved = proto_unpack_bool(state);
    self->kv_transfer.index = proto_unpack_u32_max(state, ACTOR_PEER_NONE);
    self->fence_count = proto_unpack_u64(state);
    self->busy_since_ns = proto_unpack_u64(state);
    self->finished_count = proto_unpack_u64(state);
    self->refused_count = proto_unpack_u64(state);
    self->ignored_count = proto_unpack_u64(state);
    self->stats.busy_ns = proto_unpack_u64(state);
    proto_bytes_t refusal = proto_unpack_bytes(state, sizeof self->refusal - 1);
    if (refusal.size_bytes > 0) {
        memcpy(self->refusal, refusal.data, refusal.size_bytes);
    }
    if (state->failed) {
        return STATUS_ERR_MALFORMED;
    }
    actor_scheduler_store_load(self->store, state, secret);
    if (state->failed || proto_unpack_end(secret) != STATUS_OK) {
        return STATUS_ERR_MALFORMED;
    }
    sched_core_destroy(&self->library);
    proto_status_t status = sched_core_restore(state, restored, self, &self->library, error);
    if (status != STATUS_OK) {
        return status;
    }
    bool fits = proto_unpack_end(state) == STATUS_OK && library_fits(self) &&
                actor_scheduler_store_is_claimed(self->store) &&
                sched_core_is_attached(self->library) == attached;
    return fits ? STATUS_OK : STATUS_ERR_MALFORMED;
}

proto_status_t
actor_scheduler_core_restore(proto_bytes_t state, proto_bytes_t secret,
                             actor_scheduler_core_t **out_p, proto_error_t *error)
{
    require(out_p != NULL);
    proto_error_t unused = {.detail = ""};
    proto_error_t *told = error != NULL ? error : &unused;
    told->detail[0] = '\0';
    proto_unpack_t in = {.bytes = state};
    proto_unpack_t private = {.bytes = secret};
    actor_scheduler_core_options_t options = {0};
    actor_scheduler_core_t *self = NULL;
    uint32_t version = proto_unpack_u32(&in);
    proto_status_t status = STATUS_ERR_VERSION;
    if (!in.failed && version != SAVE_VERSION) {
        (void)snprintf(told->detail, sizeof told->detail,
                       "the scheduler's state: its version is %" PRIu32 ", this build reads %d",
                       version, SAVE_VERSION);
        goto err;
    }
    load_options(&in, &options);
    status = STATUS_ERR_MALFORMED;
    if (in.failed) {
        goto err;
    }
    status = actor_scheduler_core_new(&options, &self);
    if (status != STATUS_OK) {
        status = status == STATUS_ERR_NO_MEMORY ? status : STATUS_ERR_MALFORMED;
        goto err;
    }
    status = load(self, &in, &private, told);
    if (status != STATUS_OK) {
        goto err_destroy;
    }
    *out_p = self;
    return STATUS_OK;

err_destroy:
    actor_scheduler_core_destroy(&self);
err:
    if (told->detail[0] == '\0') {
        (void)snprintf(told->detail, sizeof told->detail,
                       "the scheduler's state, near byte %zu of %zu: %s", in.at, state.size_bytes,
                       proto_status_text(status));
    }
    return status;
}
