/* The bytes of actor_executor_save.c as a core.  They may be hostile: no number is an index or a
 * size before it was compared with what it must fit, and what the core's check would find is
 * refused here. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "actor_executor_state.h"

/* More than any device needs; so a few bytes cannot ask for all the memory there is. */
static const uint64_t MEMORY_MAX_BYTES = UINT64_C(64) << 30;

typedef struct {
    proto_device_ready_t info;
    uint32_t columns[4][PROTO_GROUPS_MAX];
} device_t;

static bool
expect(proto_unpack_t *in, bool condition)
{
    if (!condition) {
        proto_unpack_fail(in);
    }
    return !in->failed;
}

static proto_text_t
load_text(proto_unpack_t *in)
{
    proto_bytes_t bytes = proto_unpack_bytes(in, PROTO_TEXT_LEN_MAX);
    return (proto_text_t){(const char *)bytes.data, (uint32_t)bytes.size_bytes};
}

static void
load_info(proto_unpack_t *in, proto_unpack_t *private, device_t *device, uint8_t *key)
{
    proto_device_ready_t *info = &device->info;
    info->model_name = load_text(in);
    info->fingerprint = load_text(in);
    proto_unpack_raw(private, key, PROTO_HASH_SIZE_BYTES);
    info->page_hash_key = (proto_bytes_t){key, PROTO_HASH_SIZE_BYTES};
    info->vocab_size = proto_unpack_u32_max(in, 1 << 24);
    info->model_len_max = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    info->slot_count = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
    info->step_tokens_max = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    info->decode_width = proto_unpack_u32_max(in, 16);
    info->overlap_depth_max = proto_unpack_u32_max(in, FLIGHTS_MAX - 1);
    info->prefix_granularity = proto_unpack_u32_max(in, 65536);
    info->parent_count = proto_unpack_u32_max(in, PROTO_BLOCKS_MAX);
    info->hidden_size = proto_unpack_u32_max(in, 1 << 24);
    uint32_t groups = proto_unpack_u32_max(in, PROTO_GROUPS_MAX);
    for (uint32_t g = 0; g < groups; g++) {
        for (uint32_t c = 0; c < 4; c++) {
            device->columns[c][g] = proto_unpack_u32(in);
        }
    }
    info->group_kinds = (proto_column_u32_t){device->columns[0], groups};
    info->group_granularities = (proto_column_u32_t){device->columns[1], groups};
    info->group_windows = (proto_column_u32_t){device->columns[2], groups};
    info->group_packings = (proto_column_u32_t){device->columns[3], groups};
}

/* About what a device of this shape makes the core allocate; its tables have a limit of their own.
 */
static uint64_t
memory_of(const proto_device_ready_t *info)
{
    uint64_t rows = (uint64_t)info->slot_count + 1;
    uint64_t blocks = 0;
    for (uint32_t g = 0; g < info->group_packings.count; g++) {
        blocks += (uint64_t)info->parent_count * (info->group_packings.data[g] + (uint64_t)2);
    }
    return rows * (info->model_len_max * (uint64_t)sizeof(int32_t) + SAMPLING_SIZE_MAX) +
           blocks * sizeof(uint32_t);
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool
slot_is_sound(const actor_executor_core_t *self, const executor_slot_t *s)
{
    return s->request != 0 && s->prompt_length > 0 && s->known >= s->prompt_length &&
           s->known <= s->length_max && s->length_max <= self->info.model_len_max &&
           s->done <= s->known && s->chain_pages <= s->known / self->info.prefix_granularity &&
           s->computed <= PROTO_TOKENS_MAX + 16;
}

static void
load_slot(actor_executor_core_t *self, uint32_t slot, proto_unpack_t *in, proto_unpack_t *private)
{
    executor_slot_t *s = &self->slots[slot];
    s->request = proto_unpack_u64(in);
    s->prompt_length = proto_unpack_u32(in);
    s->length_max = proto_unpack_u32(in);
    uint32_t known = proto_unpack_u32_max(in, self->info.model_len_max);
    s->computed = proto_unpack_u32(in);
    s->done = proto_unpack_u32(in);
    s->chain_pages = proto_unpack_u32(in);
    s->is_set_up = proto_unpack_bool(in);
    s->is_decodable = proto_unpack_bool(in);
    s->is_hashed = proto_unpack_bool(in);
    s->salt_size = (uint8_t)proto_unpack_u32_max(in, SALT_SIZE_MAX);
    s->sampling_size = proto_unpack_u32_max(in, SAMPLING_SIZE_MAX);
    proto_unpack_raw(in, s->chain, sizeof s->chain);
    if (in->failed) {
        return;
    }
    actor_executor_tables_load(self->tables, slot, in);
    proto_unpack_raw(private, s->salt, s->salt_size);
    proto_unpack_raw(private, executor_sampling(self, slot), s->sampling_size);
    for (uint32_t i = 0; i < known && !private->failed; i++) {
        int32_t token = (int32_t)proto_unpack_u32_max(private, self->info.vocab_size - 1);
        actor_executor_slot_append(self, slot, &token, 1);
    }
    expect(in, !private->failed && slot_is_sound(self, s));
}

static void
load_slots(actor_executor_core_t *self, proto_unpack_t *in, proto_unpack_t *private)
{
    for (uint32_t slot = 1; slot <= self->info.slot_count; slot++) {
        self->slots[slot].generation = proto_unpack_u32(in);
    }
    uint32_t count = proto_unpack_u32_max(in, self->info.slot_count);
    for (uint32_t n = 0, least = 1; n < count; n++) {
        uint32_t slot = proto_unpack_u32_max(in, self->info.slot_count);
        if (!expect(in, slot >= least)) {
            return;
        }
        load_slot(self, slot, in, private);
        if (in->failed) {
            return;
        }
        least = slot + 1;
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* One whose request is still there adds to what is pending for it. */
static bool
load_row(actor_executor_core_t *self, proto_unpack_t *in, executor_row_t *row)
{
    row->slot = proto_unpack_u32_max(in, self->info.slot_count);
    row->generation = proto_unpack_u32(in);
    row->end = proto_unpack_u32_max(in, self->info.model_len_max);
    row->token_max = proto_unpack_u32_max(in, self->info.decode_width);
    row->pending = proto_unpack_u32_max(in, row->token_max);
    if (in->failed || row->slot == 0) {
        return false;
    }
    executor_slot_t *s = &self->slots[row->slot];
    if (s->request == 0 || s->generation != row->generation) {
        /* Of an earlier request in this slot, never of a later one. */
        return (int32_t)(s->generation - row->generation) > 0;
    }
    s->pending += row->pending;
    s->pending_rows += row->pending > 0 ? 1 : 0;
    return row->end <= s->known && executor_slot_is_bounded(self, s);
}

static void
load_flight(actor_executor_core_t *self, uint64_t before, proto_unpack_t *in)
{
    executor_flight_t *flight = &self->flights[self->flight_count++];
    flight->step = proto_unpack_u64_max(in, self->applied_step);
    flight->width = proto_unpack_u32_max(in, self->info.decode_width);
    flight->token_count = proto_unpack_u32_max(in, self->info.step_tokens_max);
    flight->prompt_token_count = proto_unpack_u32_max(in, flight->token_count);
    flight->row_count = proto_unpack_u32_max(in, self->info.slot_count);
    expect(in, flight->step > before);
    for (uint32_t r = 0; r < flight->row_count && !in->failed; r++) {
        expect(in, load_row(self, in, &flight->rows[r]));
    }
}

static proto_status_t
load_stores(actor_executor_core_t *self, proto_unpack_t *in, proto_unpack_t *private,
            proto_error_t *error)
{
    device_t device = {0};
    uint8_t key[PROTO_HASH_SIZE_BYTES];
    load_info(in, private, &device, key);
    if (in->failed) {
        return STATUS_ERR_MALFORMED;
    }
    if (memory_of(&device.info) > MEMORY_MAX_BYTES) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status =
        actor_executor_stores_make(self, &device.info, error->detail, sizeof error->detail);
    if (status != STATUS_OK) {
        return status == STATUS_ERR_NO_MEMORY ? status : STATUS_ERR_MALFORMED;
    }
    self->has_stores = true;
    load_slots(self, in, private);
    uint32_t flights = proto_unpack_u32_max(in, 1 + self->info.overlap_depth_max);
    uint64_t before = 0;
    for (uint32_t i = 0; i < flights && !in->failed; i++) {
        load_flight(self, before, in);
        before = self->flights[i].step;
    }
    for (uint32_t slot = 1; slot <= self->info.slot_count; slot++) {
        actor_executor_slot_touch(self, slot);
    }
    return in->failed ? STATUS_ERR_MALFORMED : STATUS_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void
load_options(proto_unpack_t *in, actor_executor_core_options_t *options, char ring[256])
{
    options->slot_count_max = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
    options->model_len_max = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    options->step_tokens_max = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    options->bad_plans_max = proto_unpack_u32(in);
    proto_bytes_t path = proto_unpack_bytes(in, 255);
    if (!in->failed && path.size_bytes > 0) {
        memcpy(ring, path.data, path.size_bytes);
        expect(in, memchr(ring, '\0', path.size_bytes) == NULL);
    }
    options->draft_ring = ring;
    options->draft_ring_id = proto_unpack_u64(in);
    /* A zero would become its default, and not be what was saved. */
    expect(in, options->slot_count_max != 0 && options->model_len_max != 0 &&
                   options->step_tokens_max != 0 && options->bad_plans_max != 0);
}

static void
load_drafter(executor_drafter_t *drafter, proto_unpack_t *in)
{
    drafter->is_linked = proto_unpack_bool(in);
    drafter->has_info = proto_unpack_bool(in);
    drafter->is_used = proto_unpack_bool(in);
    drafter->peer.index = proto_unpack_u32_max(in, ACTOR_PEER_COUNT_MAX - 1);
    drafter->epoch = proto_unpack_u64(in);
    drafter->asked_count = proto_unpack_u32_max(in, DRAFT_ROUNDS_MAX);
    drafter->ring_next = proto_unpack_u32_max(in, DRAFT_ROUNDS_MAX - 1);
    drafter->vocab_size = proto_unpack_u32_max(in, 1 << 24);
    drafter->hidden_size = proto_unpack_u32_max(in, 1 << 24);
    drafter->width_max = proto_unpack_u32_max(in, 16);
    drafter->parent_count_max = proto_unpack_u32_max(in, PROTO_BLOCKS_MAX);
    proto_bytes_t name = proto_unpack_bytes(in, sizeof drafter->name);
    proto_bytes_t target = proto_unpack_bytes(in, sizeof drafter->target);
    if (in->failed) {
        return;
    }
    drafter->name_size = (uint32_t)name.size_bytes;
    drafter->target_size = (uint32_t)target.size_bytes;
    if (name.size_bytes > 0) {
        memcpy(drafter->name, name.data, name.size_bytes);
    }
    if (target.size_bytes > 0) {
        memcpy(drafter->target, target.data, target.size_bytes);
    }
    expect(in, drafter->is_linked || (!drafter->has_info && !drafter->is_used));
}

static void
load_links(actor_executor_core_t *self, proto_unpack_t *in)
{
    proto_stats_t *stats = &self->stats;
    self->phase = (executor_phase_t)proto_unpack_u32_max(in, EXECUTOR_FAILED);
    self->is_linked = proto_unpack_bool(in);
    self->is_info_sent = proto_unpack_bool(in);
    self->is_device_pristine = proto_unpack_bool(in);
    self->is_draining = proto_unpack_bool(in);
    self->is_awaiting_full = proto_unpack_bool(in);
    self->scheduler.index = proto_unpack_u32_max(in, ACTOR_PEER_COUNT_MAX - 1);
    self->scheduler_epoch = proto_unpack_u64(in);
    self->reset_count = proto_unpack_u32_max(in, RESETS_MAX);
    self->bad_plans = proto_unpack_u32_max(in, self->limits.bad_plans_max);
    self->applied_step = proto_unpack_u64(in);
    stats->steps = proto_unpack_u64(in);
    stats->prompt_tokens = proto_unpack_u64(in);
    stats->generation_tokens = proto_unpack_u64(in);
    stats->graph_steps = proto_unpack_u64(in);
    stats->eager_steps = proto_unpack_u64(in);
    stats->busy_ns = proto_unpack_u64(in);
    stats->wide_steps = proto_unpack_u64(in);
    stats->drafts_proposed = proto_unpack_u64(in);
    stats->drafts_accepted = proto_unpack_u64(in);
    stats->drafts_missing = proto_unpack_u64(in);
    stats->drafts_ignored = proto_unpack_u64(in);
    self->busy_since_ns = proto_unpack_u64(in);
    self->step_ns = proto_unpack_u64(in);
    self->token_ns = proto_unpack_u64(in);
    self->oldest_begin_ns = proto_unpack_u64(in);
    load_drafter(&self->drafter, in);
}

static proto_status_t
load(actor_executor_core_t *self, proto_unpack_t *in, proto_unpack_t *private, proto_error_t *error)
{
    load_links(self, in);
    bool has_stores = proto_unpack_bool(in);
    /* Without a device there is nothing to plan for, and with one it is ready or broke. */
    bool agrees = has_stores ? self->phase != EXECUTOR_LOADING : self->phase != EXECUTOR_READY;
    if (!expect(in, agrees && (!self->is_info_sent || self->phase == EXECUTOR_READY))) {
        return STATUS_ERR_MALFORMED;
    }
    if (has_stores) {
        proto_status_t status = load_stores(self, in, private, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    proto_status_t status = proto_unpack_end(in);
    return status == STATUS_OK ? proto_unpack_end(private) : status;
}

proto_status_t
actor_executor_core_restore(proto_bytes_t state, proto_bytes_t secret,
                            actor_executor_core_t **out_p, proto_error_t *error)
{
    require(out_p != NULL);
    proto_error_t unused = {.detail = ""};
    proto_error_t *told = error != NULL ? error : &unused;
    told->detail[0] = '\0';
    proto_unpack_t in = {.bytes = state};
    proto_unpack_t private = {.bytes = secret};
    actor_executor_core_options_t options = {0};
    char ring[256] = "";
    actor_executor_core_t *self = NULL;
    uint32_t version = proto_unpack_u32(&in);
    proto_status_t status = STATUS_ERR_VERSION;
    if (!in.failed && version != EXECUTOR_SAVE_VERSION) {
        (void)snprintf(told->detail, sizeof told->detail,
                       "the executor's state: its version is %" PRIu32 ", this build reads %d",
                       version, EXECUTOR_SAVE_VERSION);
        goto err;
    }
    load_options(&in, &options, ring);
    status = STATUS_ERR_MALFORMED;
    if (in.failed) {
        goto err;
    }
    status = actor_executor_core_new(&options, &self);
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
    actor_executor_core_destroy(&self);
err:
    if (told->detail[0] == '\0') {
        (void)snprintf(told->detail, sizeof told->detail,
                       "the executor's state, near byte %zu of %zu: %s", in.at, state.size_bytes,
                       proto_status_text(status));
    }
    return status;
}
