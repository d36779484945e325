/* A core out of saved bytes, which may be hostile: every number is held against its limit, and what
 * follows from the rest is computed anew. */
#include <stdio.h>
#include <string.h>

#include "actor_kv_state.h"

static void
load_text(proto_unpack_t *in, char *out, size_t out_size_bytes)
{
    proto_bytes_t text = proto_unpack_bytes(in, out_size_bytes - 1);
    if (text.size_bytes > 0) {
        memcpy(out, text.data, text.size_bytes);
    }
    out[text.size_bytes] = '\0';
}

static void
load_field(proto_unpack_t *in, actor_kv_field_t *field)
{
    field->layer = proto_unpack_u32(in);
    field->name = proto_unpack_u32(in);
    field->dtype = proto_unpack_u32(in);
    field->group = proto_unpack_u32(in);
    field->rows = proto_unpack_u32(in);
    field->part_count = proto_unpack_u32_max(in, ACTOR_KV_PART_COUNT_MAX);
    for (uint32_t p = 0; p < field->part_count; p++) {
        field->parts[p].extent = proto_unpack_u32(in);
        field->parts[p].begin = proto_unpack_u32(in);
        field->parts[p].count = proto_unpack_u32(in);
        field->parts[p].unit_bytes = proto_unpack_u32(in);
    }
    field->page0_offset_bytes = proto_unpack_u64(in);
    field->stride_bytes = proto_unpack_u64(in);
}

static void
load_layout(proto_unpack_t *in, actor_kv_layout_t *layout, actor_kv_field_t *fields)
{
    layout->arena_bytes = proto_unpack_u64(in);
    layout->layer_count = proto_unpack_u32(in);
    layout->group_count = proto_unpack_u32_max(in, ACTOR_KV_GROUP_COUNT_MAX);
    layout->field_count = proto_unpack_u32_max(in, ACTOR_KV_FIELD_COUNT_MAX);
    layout->fields = fields;
    for (uint32_t g = 0; g < layout->group_count; g++) {
        layout->groups[g].kind = proto_unpack_u32(in);
        layout->groups[g].granularity = proto_unpack_u32(in);
        layout->groups[g].window = proto_unpack_u32(in);
        layout->groups[g].page_count = proto_unpack_u32(in);
    }
    for (uint32_t f = 0; f < layout->field_count; f++) {
        load_field(in, &fields[f]);
    }
    if (!in->failed && actor_kv_layout_check(layout, NULL) != STATUS_OK) {
        proto_unpack_fail(in);
    }
}

static uint32_t
load_handle(proto_unpack_t *in, uint8_t out[KV_HANDLE_SIZE_BYTES])
{
    proto_bytes_t handle = proto_unpack_bytes(in, KV_HANDLE_SIZE_BYTES);
    if (handle.size_bytes > 0) {
        memcpy(out, handle.data, handle.size_bytes);
    }
    return (uint32_t)handle.size_bytes;
}

static uint32_t
load_peer(proto_unpack_t *in)
{
    uint32_t peer = proto_unpack_u32_max(in, ACTOR_PEER_NONE);
    if (peer >= ACTOR_PEER_COUNT_MAX && peer != ACTOR_PEER_NONE) {
        proto_unpack_fail(in);
    }
    return peer;
}

static void
load_node(actor_kv_core_t *self, uint32_t index, proto_unpack_t *in)
{
    kv_node_t *node = &self->nodes[index];
    node->peer = load_peer(in);
    node->epoch = proto_unpack_u64(in);
    load_text(in, node->name, sizeof node->name);
    node->rank_count = proto_unpack_u32_max(in, ACTOR_KV_RANK_COUNT_MAX);
    node->rank_mask = proto_unpack_u32_max(in, (1u << node->rank_count) - 1);
    load_text(in, node->fingerprint, sizeof node->fingerprint);
    node->layout_fingerprint = proto_unpack_u64(in);
    node->is_compatible = proto_unpack_bool(in);
    for (uint32_t r = 0; r < node->rank_count; r++) {
        if ((node->rank_mask & 1u << r) == 0) {
            continue;
        }
        node->owners[r] = load_peer(in);
        node->regions[r] = proto_unpack_u64(in);
        node->handle_sizes[r] = load_handle(in, node->handles[r]);
        node->layouts[r].rank = r;
        node->layouts[r].rank_count = node->rank_count;
        size_t at = ((size_t)index * ACTOR_KV_RANK_COUNT_MAX + r) * ACTOR_KV_FIELD_COUNT_MAX;
        load_layout(in, &node->layouts[r], self->fields + at);
        if (node->layouts[r].layer_count != node->layouts[0].layer_count &&
            (node->rank_mask & 1u) != 0) {
            proto_unpack_fail(in);
        }
    }
    for (uint32_t r = 0; r < node->rank_count; r++) {
        if ((node->rank_mask & 1u << r) != 0 && !actor_kv_pages_agree(node, &node->layouts[r])) {
            proto_unpack_fail(in);
        }
    }
}

/* Sorted, and of groups that exist. */
static uint32_t
load_columns(proto_unpack_t *in, kv_column_t *columns, uint32_t count_max)
{
    uint32_t count = proto_unpack_u32_max(in, count_max);
    for (uint32_t i = 0; i < count; i++) {
        columns[i].group = (uint8_t)proto_unpack_u32_max(in, ACTOR_KV_GROUP_COUNT_MAX - 1);
        columns[i].column = proto_unpack_u32(in);
        columns[i].block = proto_unpack_u32(in);
        columns[i].generation = proto_unpack_u32(in);
        columns[i].part = proto_unpack_u32(in);
        columns[i].layers = (uint16_t)proto_unpack_u32_max(in, ACTOR_KV_LAYER_COUNT_MAX);
        if (i > 0 && (columns[i - 1].group > columns[i].group ||
                      (columns[i - 1].group == columns[i].group &&
                       columns[i - 1].column >= columns[i].column))) {
            proto_unpack_fail(in);
        }
    }
    return in->failed ? 0 : count;
}

static void
load_parts(actor_kv_core_t *self, kv_transfer_t *t, proto_unpack_t *in)
{
    t->parts_count = proto_unpack_u32_max(in, KV_PARTS_MAX);
    for (uint32_t i = 0; i < t->parts_count; i++) {
        kv_part_t *part = kv_part_at(self, t, i);
        part->number = proto_unpack_u32(in);
        part->step = proto_unpack_u64(in);
        part->layer = proto_unpack_u32_max(in, ACTOR_KV_LAYER_COUNT_MAX - 1);
        part->cursor = proto_unpack_u32_max(in, t->column_count);
        part->count = proto_unpack_u32_max(in, t->column_count);
        part->is_last = proto_unpack_bool(in);
        uint32_t named = 0;
        const kv_column_t *columns = kv_columns_of(self, t);
        for (uint32_t c = 0; c < t->column_count; c++) {
            named += columns[c].part == part->number;
        }
        if (named != part->count || part->cursor > part->count ||
            (part->count > 0 && part->cursor == part->count)) {
            proto_unpack_fail(in);
        }
    }
}

static void
load_transfer(actor_kv_core_t *self, proto_unpack_t *in)
{
    uint32_t index = proto_unpack_u32_max(in, self->options.transfer_count_max - 1);
    kv_transfer_t *t = &self->transfers[index];
    if (in->failed || t->state != KV_TRANSFER_FREE) {
        proto_unpack_fail(in);
        return;
    }
    t->key = proto_unpack_u64(in);
    t->state = (kv_transfer_state_t)proto_unpack_u32_max(in, KV_TRANSFER_DYING);
    t->is_source = proto_unpack_bool(in);
    t->has_last = proto_unpack_bool(in);
    t->is_last_sent = proto_unpack_bool(in);
    t->has_fence = proto_unpack_bool(in);
    t->role_peer = load_peer(in);
    t->fence_peer = load_peer(in);
    t->fence = proto_unpack_u64(in);
    t->kv_peer = load_peer(in);
    t->kv_epoch = proto_unpack_u64(in);
    load_text(in, t->kv_name, sizeof t->kv_name);
    t->gate = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
    t->wanted = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    t->missing = proto_unpack_u32(in);
    t->next_part = proto_unpack_u32(in);
    t->next_piece = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    t->flying = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    t->landed = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
    t->size_bytes = proto_unpack_u64(in);
    t->begin_ns = proto_unpack_u64(in);
    t->last_ns = proto_unpack_u64(in);
    t->column_count = load_columns(in, kv_columns_of(self, t), self->options.column_count_max);
    load_parts(self, t, in);
    uint32_t missing = 0;
    uint32_t layers = actor_kv_node_layers(&self->nodes[KV_OWN]);
    for (uint32_t c = 0; c < t->column_count; c++) {
        const kv_column_t *column = &kv_columns_of(self, t)[c];
        missing += t->is_source ? column->part == KV_NO_PART : column->layers < layers;
    }
    bool is_wrong = t->key == 0 || t->state == KV_TRANSFER_FREE ||
                    (t->state == KV_TRANSFER_OPEN && (missing != t->missing || layers == 0)) ||
                    (t->state == KV_TRANSFER_DYING && t->flying == 0) ||
                    (t->is_source && t->flying > self->options.flying_max);
    if (is_wrong) {
        proto_unpack_fail(in);
    }
    self->figures.open_count++;
}

static void
load_parked(actor_kv_core_t *self, proto_unpack_t *in)
{
    uint32_t index = proto_unpack_u32_max(in, KV_PARKED_MAX - 1);
    kv_parked_t *p = &self->parked[index];
    if (in->failed || p->key != 0) {
        proto_unpack_fail(in);
        return;
    }
    p->key = proto_unpack_u64(in);
    p->kind = (proto_kind_t)proto_unpack_u32(in);
    p->from = load_peer(in);
    p->until_ns = proto_unpack_u64(in);
    p->order = proto_unpack_u64(in);
    p->step = proto_unpack_u64(in);
    p->number = proto_unpack_u32_max(in, PROTO_TOKENS_MAX);
    p->layer_begin = proto_unpack_u32(in);
    p->layer_end = proto_unpack_u32(in);
    p->gate = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
    p->wanted = proto_unpack_u32(in);
    p->is_last = proto_unpack_bool(in);
    p->column_count =
        load_columns(in, self->parked_columns + (size_t)index * self->options.column_count_max,
                     self->options.column_count_max);
    if (p->key == 0 || p->from == ACTOR_PEER_NONE) {
        proto_unpack_fail(in);
    }
    self->figures.parked_count++;
}

static void
load_rest(actor_kv_core_t *self, proto_unpack_t *in)
{
    self->cache_owners = proto_unpack_u64(in);
    for (uint32_t i = 0; i < KV_NODE_MAX && !in->failed; i++) {
        load_node(self, i, in);
    }
    load_text(in, self->data_endpoint, sizeof self->data_endpoint);
    self->book_handle_size = load_handle(in, self->book_handle);
    for (uint32_t i = 0; i < KV_STEPS; i++) {
        self->ready[i].step = proto_unpack_u64(in);
        proto_unpack_u32_array(in, self->ready[i].layers, ACTOR_KV_RANK_COUNT_MAX, UINT32_MAX);
    }
    self->watched_count = proto_unpack_u32_max(in, KV_WATCH_MAX);
    proto_unpack_u64_array(in, self->watched, self->watched_count);
    uint32_t count = proto_unpack_u32_max(in, self->options.transfer_count_max);
    for (uint32_t i = 0; i < count && !in->failed; i++) {
        load_transfer(self, in);
    }
    self->parked_order = proto_unpack_u64(in);
    count = proto_unpack_u32_max(in, KV_PARKED_MAX);
    for (uint32_t i = 0; i < count && !in->failed; i++) {
        load_parked(self, in);
    }
    self->ended_count = proto_unpack_u64(in);
    uint64_t ended = self->ended_count < KV_ENDED_MAX ? self->ended_count : KV_ENDED_MAX;
    for (uint64_t i = 0; i < ended && !in->failed; i++) {
        kv_ended_t *one = &self->ended[i];
        one->key = proto_unpack_u64(in);
        int64_t status = proto_unpack_i64(in);
        one->status = (int32_t)status;
        if (status < -1000 || status > 0) {
            proto_unpack_fail(in);
        }
        one->is_source = proto_unpack_bool(in);
        one->part_count = proto_unpack_u32_max(in, PROTO_ROWS_MAX);
        one->size_bytes = proto_unpack_u64(in);
    }
}

static void
load_figures(proto_unpack_t *in, actor_kv_figures_t *figures)
{
    figures->served_count = proto_unpack_u64(in);
    figures->landed_count = proto_unpack_u64(in);
    figures->failed_count = proto_unpack_u64(in);
    figures->piece_count = proto_unpack_u64(in);
    figures->size_bytes = proto_unpack_u64(in);
    figures->refused_count = proto_unpack_u64(in);
    figures->stale_count = proto_unpack_u64(in);
    figures->duplicate_count = proto_unpack_u64(in);
}

proto_status_t
actor_kv_core_restore(proto_bytes_t state, proto_bytes_t secret, actor_kv_core_t **out_p,
                      proto_error_t *error)
{
    enum { TRANSFERS_MAX = 1024, COLUMNS_MAX = 1 << 16, STORE_MAX = 1 << 24 };
    (void)secret;
    proto_unpack_t in = {.bytes = state};
    uint32_t version = proto_unpack_u32(&in);
    if (!in.failed && version != KV_SAVE_VERSION) {
        return STATUS_ERR_VERSION;
    }
    actor_kv_core_options_t options = {
        .transfer_count_max = proto_unpack_u32_max(&in, TRANSFERS_MAX),
        .column_count_max = proto_unpack_u32_max(&in, COLUMNS_MAX),
        .piece_size_bytes = proto_unpack_u32(&in),
        .flying_max = proto_unpack_u32_max(&in, 1024),
        .stall_ns = proto_unpack_u64(&in),
        .park_ns = proto_unpack_u64(&in),
        .checksums = proto_unpack_bool(&in),
    };
    if (in.failed || options.transfer_count_max == 0 || options.column_count_max == 0 ||
        (uint64_t)options.transfer_count_max * options.column_count_max > STORE_MAX) {
        if (error != NULL) {
            (void)snprintf(error->detail, sizeof error->detail, "options out of range");
        }
        return STATUS_ERR_MALFORMED;
    }
    actor_kv_core_t *self = NULL;
    proto_status_t status = actor_kv_core_make(&options, &self);
    if (status != STATUS_OK) {
        return status;
    }
    self->digest = proto_unpack_u64(&in);
    self->is_draining = proto_unpack_bool(&in);
    load_figures(&in, &self->figures);
    load_rest(self, &in);
    status = proto_unpack_end(&in);
    if (status != STATUS_OK) {
        if (error != NULL) {
            (void)snprintf(error->detail, sizeof error->detail,
                           "the saved state ends early or holds a value out of range");
        }
        actor_kv_core_destroy(&self);
        return status;
    }
    if (actor_kv_node_is_whole(&self->nodes[KV_OWN])) {
        actor_kv_sum_layers(self);
    }
    *out_p = self;
    return STATUS_OK;
}
