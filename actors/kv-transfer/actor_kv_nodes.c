/* Arenas: this node's, registered by its executors, and the peers', which they tell us of. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "actor_kv_state.h"
#include "proto_require.h"

static actor_kv_field_t *
fields_of(const actor_kv_core_t *self, const kv_node_t *node, uint32_t rank)
{
    size_t index = (size_t)(node - self->nodes) * ACTOR_KV_RANK_COUNT_MAX + rank;
    return self->fields + index * ACTOR_KV_FIELD_COUNT_MAX;
}

kv_node_t *
actor_kv_node_of_peer(actor_kv_core_t *self, uint32_t peer)
{
    for (uint32_t i = 1; i < KV_NODE_MAX; i++) {
        if (self->nodes[i].peer == peer) {
            return &self->nodes[i];
        }
    }
    return NULL;
}

kv_node_t *
actor_kv_node_named(actor_kv_core_t *self, const char *name, uint64_t epoch)
{
    for (uint32_t i = 1; i < KV_NODE_MAX; i++) {
        kv_node_t *node = &self->nodes[i];
        if (node->peer != ACTOR_PEER_NONE && node->epoch == epoch &&
            strcmp(node->name, name) == 0) {
            return node;
        }
    }
    return NULL;
}

bool
actor_kv_node_is_whole(const kv_node_t *node)
{
    return node->rank_count > 0 && node->rank_mask == (1u << node->rank_count) - 1;
}

bool
actor_kv_pages_agree(const kv_node_t *node, const actor_kv_layout_t *layout)
{
    for (uint32_t r = 0; r < node->rank_count; r++) {
        const actor_kv_layout_t *other = &node->layouts[r];
        if (other == layout || (node->rank_mask & 1u << r) == 0) {
            continue;
        }
        if (other->group_count != layout->group_count) {
            return false;
        }
        for (uint32_t g = 0; g < layout->group_count; g++) {
            if (other->groups[g].page_count != layout->groups[g].page_count) {
                return false;
            }
        }
    }
    return true;
}

uint32_t
actor_kv_node_layers(const kv_node_t *node)
{
    return actor_kv_node_is_whole(node) ? node->layouts[0].layer_count : 0;
}

/* ---- readiness
 * ------------------------------------------------------------------------------------ */

uint32_t
actor_kv_ready_layers(const actor_kv_core_t *self, uint64_t step)
{
    const kv_node_t *own = &self->nodes[KV_OWN];
    const kv_ready_t *ready = &self->ready[step % KV_STEPS];
    if (ready->step > step) {
        return actor_kv_node_layers(own); /* steps end in order */
    }
    if (ready->step < step) {
        return 0;
    }
    uint32_t layers = UINT32_MAX;
    for (uint32_t r = 0; r < own->rank_count; r++) {
        layers = ready->layers[r] < layers ? ready->layers[r] : layers;
    }
    uint32_t all = actor_kv_node_layers(own);
    return layers < all ? layers : all;
}

void
actor_kv_on_ready(actor_kv_core_t *self, const proto_kv_ready_t *message)
{
    const kv_node_t *own = &self->nodes[KV_OWN];
    kv_ready_t *ready = &self->ready[message->step % KV_STEPS];
    if (message->step == 0 || message->step < ready->step) {
        self->figures.stale_count++;
        return;
    }
    for (uint32_t r = 0; r < own->rank_count; r++) {
        if ((own->rank_mask & 1u << r) == 0 || own->regions[r] != message->region) {
            continue;
        }
        if (ready->step != message->step) {
            *ready = (kv_ready_t){.step = message->step};
        }
        if (message->layer_count > ready->layers[r]) {
            ready->layers[r] = message->layer_count;
        }
    }
}

/* Running sums, so that any range of layers is one difference. */
void
actor_kv_sum_layers(actor_kv_core_t *self)
{
    const kv_node_t *own = &self->nodes[KV_OWN];
    memset(self->layer_bytes, 0,
           (size_t)ACTOR_KV_GROUP_COUNT_MAX * (ACTOR_KV_LAYER_COUNT_MAX + 1) *
               sizeof *self->layer_bytes);
    for (uint32_t r = 0; r < own->rank_count; r++) {
        const actor_kv_layout_t *layout = &own->layouts[r];
        for (uint32_t f = 0; f < layout->field_count; f++) {
            const actor_kv_field_t *field = &layout->fields[f];
            self->layer_bytes[field->group * (ACTOR_KV_LAYER_COUNT_MAX + 1) + field->layer + 1] +=
                actor_kv_page_bytes(field);
        }
    }
    for (uint32_t g = 0; g < ACTOR_KV_GROUP_COUNT_MAX; g++) {
        uint64_t *sums = self->layer_bytes + g * (ACTOR_KV_LAYER_COUNT_MAX + 1);
        for (uint32_t layer = 0; layer < ACTOR_KV_LAYER_COUNT_MAX; layer++) {
            sums[layer + 1] += sums[layer];
        }
    }
}

uint64_t
actor_kv_block_bytes(const actor_kv_core_t *self, uint32_t group, uint32_t begin, uint32_t end)
{
    const uint64_t *sums = self->layer_bytes + group * (ACTOR_KV_LAYER_COUNT_MAX + 1);
    return sums[end] - sums[begin];
}

/* ---- registration
 * --------------------------------------------------------------------------------- */

/* What this node has, to one peer: a message for each rank. */
static void
announce_to(actor_kv_core_t *self, uint32_t peer)
{
    const kv_node_t *own = &self->nodes[KV_OWN];
    if (!actor_kv_node_is_whole(own) || self->data_endpoint[0] == '\0') {
        return;
    }
    for (uint32_t r = 0; r < own->rank_count; r++) {
        proto_body_t body = {
            .kv_arena = {.region = own->regions[r],
                         .handle = {own->handles[r], own->handle_sizes[r]},
                         .fingerprint = proto_text(own->fingerprint),
                         .data_endpoint = proto_text(self->data_endpoint),
                         .book_handle = {self->book_handle, self->book_handle_size}}};
        actor_kv_layout_write(&own->layouts[r], self->wire, &body.kv_arena);
        actor_outbox_push(self->outbox, kv_peer(peer), PROTO_KIND_KV_ARENA, 0, &body);
    }
}

/* The data thread has mapped what this node has: peers may know. */
static void
take_announcement(actor_kv_core_t *self, const proto_kv_arena_t *arena)
{
    (void)snprintf(self->data_endpoint, sizeof self->data_endpoint, "%.*s",
                   (int)arena->data_endpoint.size_bytes, arena->data_endpoint.data);
    self->book_handle_size = 0;
    if (arena->book_handle.size_bytes > 0 &&
        arena->book_handle.size_bytes <= KV_HANDLE_SIZE_BYTES) {
        self->book_handle_size = (uint32_t)arena->book_handle.size_bytes;
        memcpy(self->book_handle, arena->book_handle.data, arena->book_handle.size_bytes);
    }
    for (uint32_t i = 1; i < KV_NODE_MAX; i++) {
        if (self->nodes[i].peer != ACTOR_PEER_NONE) {
            announce_to(self, self->nodes[i].peer);
        }
        if (self->nodes[i].peer != ACTOR_PEER_NONE && actor_kv_node_is_whole(&self->nodes[i])) {
            actor_kv_source_found_peer(self, &self->nodes[i]);
        }
    }
}

static void
forget_arenas(kv_node_t *node)
{
    node->rank_count = 0;
    node->rank_mask = 0;
    node->fingerprint[0] = '\0';
    node->layout_fingerprint = 0;
    node->is_compatible = false;
}

/* Whether pages may go from one to the other: the same model, and caches of one kind. */
static void
compare(actor_kv_core_t *self)
{
    const kv_node_t *own = &self->nodes[KV_OWN];
    for (uint32_t i = 1; i < KV_NODE_MAX; i++) {
        kv_node_t *node = &self->nodes[i];
        bool was_compatible = node->is_compatible;
        node->is_compatible = node->peer != ACTOR_PEER_NONE && actor_kv_node_is_whole(node) &&
                              actor_kv_node_is_whole(own) &&
                              node->layout_fingerprint == own->layout_fingerprint &&
                              strcmp(node->fingerprint, own->fingerprint) == 0;
        if (node->peer == ACTOR_PEER_NONE || !actor_kv_node_is_whole(node) ||
            !actor_kv_node_is_whole(own)) {
            continue;
        }
        if (!node->is_compatible) {
            self->figures.refused_count++;
            actor_kv_note(self, 0, STATUS_ERR_FINGERPRINT,
                          "the cache of %s does not match: layout %016" PRIx64 " here, %016" PRIx64
                          " there; %.300s here, %.300s there",
                          node->name, own->layout_fingerprint, node->layout_fingerprint,
                          own->fingerprint, node->fingerprint);
        }
        if (!was_compatible || !node->is_compatible) {
            actor_kv_source_found_peer(self, node);
        }
    }
}

static void
refuse_arena(actor_kv_core_t *self, const actor_input_t *input, proto_status_t status,
             const char *why)
{
    self->figures.refused_count++;
    actor_kv_note(self, 0, status, "an arena is refused: %s", why);
    if (input->from.index == ACTOR_PEER_LOCAL) {
        return;
    }
    proto_body_t body = {.nak = {.sequence = input->header->sequence,
                                 .kind = PROTO_KIND_KV_ARENA,
                                 .status = status,
                                 .detail = proto_text(why)}};
    actor_outbox_push(self->outbox, input->from, PROTO_KIND_NAK, 0, &body);
}

/* What this node has goes to every peer, by its own shell, which knows where bytes are pulled. */
static void
pass_on(actor_kv_core_t *self, const kv_node_t *node, const proto_kv_arena_t *arena)
{
    proto_body_t body = {.kv_arena = *arena};
    uint64_t index = (uint64_t)(node - self->nodes);
    actor_outbox_push(self->outbox, kv_peer(ACTOR_PEER_LOCAL), PROTO_KIND_KV_ARENA,
                      index == KV_OWN ? 0 : node->peer, &body);
}

/* The data thread unmaps what it has of a peer; of this node with 0. */
static void
tell_gone(actor_kv_core_t *self, uint64_t index)
{
    proto_body_t body = {.kv_arena = {.region = 0}};
    actor_outbox_push(self->outbox, kv_peer(ACTOR_PEER_LOCAL), PROTO_KIND_KV_ARENA, index, &body);
}

static proto_status_t
check_arena(actor_kv_core_t *self, kv_node_t *node, const proto_kv_arena_t *arena,
            proto_error_t *error)
{
    const char *why = arena->region == 0 ? "an arena without a name" : NULL;
    if (why == NULL && (arena->rank_count == 0 || arena->rank_count > ACTOR_KV_RANK_COUNT_MAX ||
                        arena->rank >= arena->rank_count)) {
        why = "a rank outside its group";
    }
    if (why == NULL && arena->fingerprint.size_bytes >= sizeof node->fingerprint) {
        why = "a fingerprint longer than any";
    }
    if (why == NULL && node->rank_mask != 0 &&
        (node->rank_count != arena->rank_count ||
         strlen(node->fingerprint) != arena->fingerprint.size_bytes ||
         memcmp(node->fingerprint, arena->fingerprint.data, arena->fingerprint.size_bytes) != 0)) {
        why = "ranks of one node that do not agree";
    }
    if (why == NULL && arena->handle.size_bytes > KV_HANDLE_SIZE_BYTES) {
        why = "a handle longer than any";
    }
    if (why == NULL && (node->rank_mask & 1u << arena->rank) != 0) {
        why = "this rank is registered already";
    }
    if (why != NULL) {
        (void)snprintf(error->detail, sizeof error->detail, "%s", why);
        return STATUS_ERR_INVALID;
    }
    return actor_kv_layout_read(arena, fields_of(self, node, arena->rank),
                                &node->layouts[arena->rank], error);
}

static void
forget_parked(actor_kv_core_t *self, uint32_t peer)
{
    for (uint32_t i = 0; i < KV_PARKED_MAX; i++) {
        if (self->parked[i].key != 0 && self->parked[i].from == peer) {
            self->parked[i] = (kv_parked_t){.key = 0};
            self->figures.parked_count--;
        }
    }
}

/* A peer's cache is not there any more, its link is.  What waits of it was checked against it. */
static void
lose_arenas(actor_kv_core_t *self, kv_node_t *node, const char *why)
{
    for (uint32_t i = 0; i < self->options.transfer_count_max; i++) {
        kv_transfer_t *transfer = &self->transfers[i];
        if (transfer->state == KV_TRANSFER_OPEN && transfer->kv_peer == node->peer) {
            actor_kv_end(self, transfer, STATUS_ERR_PEER_LOST, "kv_transfer_failed", why);
        }
    }
    forget_parked(self, node->peer);
    forget_arenas(node);
    tell_gone(self, node->peer);
}

/* A link's number may be any: only those that came up as one that has a cache here. */
static bool
may_own(const actor_kv_core_t *self, uint32_t peer)
{
    return peer < ACTOR_PEER_COUNT_MAX && (self->cache_owners & UINT64_C(1) << peer) != 0;
}

void
actor_kv_on_arena(actor_kv_core_t *self, const actor_input_t *input)
{
    const proto_kv_arena_t *arena = &input->body->kv_arena;
    kv_node_t *node = actor_kv_node_of_peer(self, input->from.index);
    if (arena->region == 0 && input->from.index == ACTOR_PEER_LOCAL) {
        take_announcement(self, arena);
        return;
    }
    if (arena->region == 0 && node != NULL) {
        lose_arenas(self, node, "its executor has gone");
        return;
    }
    bool is_own = node == NULL;
    if (is_own && !may_own(self, input->from.index)) {
        refuse_arena(self, input, STATUS_ERR_INVALID,
                     "neither an executor or drafter of this node nor a peer there is room for");
        return;
    }
    node = is_own ? &self->nodes[KV_OWN] : node;
    proto_error_t error;
    proto_status_t status = check_arena(self, node, arena, &error);
    if (status != STATUS_OK) {
        refuse_arena(self, input, status, error.detail);
        return;
    }
    uint64_t fingerprint = actor_kv_layout_fingerprint(&node->layouts[arena->rank]);
    if (node->rank_mask != 0 && (fingerprint != node->layout_fingerprint ||
                                 !actor_kv_pages_agree(node, &node->layouts[arena->rank]))) {
        refuse_arena(self, input, STATUS_ERR_FINGERPRINT, "ranks of one node that do not agree");
        return;
    }
    node->rank_count = arena->rank_count;
    node->rank_mask |= 1u << arena->rank;
    node->regions[arena->rank] = arena->region;
    node->owners[arena->rank] = input->from.index;
    node->layout_fingerprint = fingerprint;
    (void)snprintf(node->fingerprint, sizeof node->fingerprint, "%.*s",
                   (int)arena->fingerprint.size_bytes, arena->fingerprint.data);
    if (is_own && arena->handle.size_bytes > 0) {
        node->handle_sizes[arena->rank] = (uint32_t)arena->handle.size_bytes;
        memcpy(node->handles[arena->rank], arena->handle.data, arena->handle.size_bytes);
    }
    pass_on(self, node, arena);
    if (actor_kv_node_is_whole(node)) {
        if (is_own) {
            actor_kv_sum_layers(self);
        }
        compare(self);
    }
}

/* ---- links
 * ---------------------------------------------------------------------------------------- */

void
actor_kv_on_peer_up(actor_kv_core_t *self, const proto_peer_up_t *up)
{
    if (up->role != PROTO_ROLE_KV_TRANSFER) {
        bool has_cache = up->role == PROTO_ROLE_EXECUTOR || up->role == PROTO_ROLE_DRAFTER;
        if (has_cache && up->peer < ACTOR_PEER_COUNT_MAX) {
            self->cache_owners |= UINT64_C(1) << up->peer;
        }
        return;
    }
    for (uint32_t i = 1; i < KV_NODE_MAX; i++) {
        kv_node_t *node = &self->nodes[i];
        if (node->peer != ACTOR_PEER_NONE) {
            continue;
        }
        forget_arenas(node);
        node->peer = up->peer;
        node->epoch = up->epoch;
        (void)snprintf(node->name, sizeof node->name, "%.*s", (int)up->name.size_bytes,
                       up->name.data);
        announce_to(self, up->peer);
        return;
    }
    self->figures.refused_count++;
    actor_kv_note(self, 0, STATUS_ERR_OVERLOADED, "more peers than there is room for (%d)",
                  KV_NODE_MAX - 1);
}

/* Whatever needs what has gone has failed. */
static void
end_transfers_of(actor_kv_core_t *self, const proto_peer_down_t *down, bool is_node)
{
    char detail[KV_DETAIL_SIZE_BYTES];
    (void)snprintf(detail, sizeof detail, "%s has gone: %.*s",
                   proto_role_name((proto_role_t)down->role),
                   (int)(down->detail.size_bytes < 100 ? down->detail.size_bytes : 100),
                   down->detail.data);
    for (uint32_t i = 0; i < self->options.transfer_count_max; i++) {
        kv_transfer_t *transfer = &self->transfers[i];
        if (transfer->state == KV_TRANSFER_FREE) {
            continue;
        }
        if (transfer->has_fence && transfer->fence_peer == down->peer) {
            transfer->has_fence = false; /* nobody waits for it */
        }
        if (transfer->role_peer == down->peer) {
            transfer->role_peer = ACTOR_PEER_NONE;
            is_node = true;
        }
        if (transfer->kv_peer == down->peer) {
            transfer->kv_peer = ACTOR_PEER_NONE;
        } else if (!is_node) {
            continue;
        }
        if (transfer->state == KV_TRANSFER_OPEN) {
            actor_kv_end(self, transfer, STATUS_ERR_PEER_LOST, "kv_transfer_failed", detail);
        }
    }
}

void
actor_kv_on_peer_down(actor_kv_core_t *self, const proto_peer_down_t *down)
{
    forget_parked(self, down->peer);
    kv_node_t *node = actor_kv_node_of_peer(self, down->peer);
    kv_node_t *own = &self->nodes[KV_OWN];
    if (may_own(self, down->peer)) {
        self->cache_owners &= ~(UINT64_C(1) << down->peer);
        for (uint32_t r = 0; r < own->rank_count; r++) {
            if ((own->rank_mask & 1u << r) != 0 && own->owners[r] == down->peer) {
                node = own;
            }
        }
    }
    /* A scheduler that has gone says no fences; its successor gives blocks out anew.  Without an
     * executor, or whoever had our cache, there is no arena. */
    bool is_node = down->role == PROTO_ROLE_SCHEDULER || down->role == PROTO_ROLE_EXECUTOR;
    end_transfers_of(self, down, is_node || node == own);
    if (node == NULL) {
        return;
    }
    forget_arenas(node);
    memset(self->ready, 0, sizeof self->ready);
    uint64_t index = node == own ? 0 : node->peer;
    if (node != own) {
        node->peer = ACTOR_PEER_NONE;
        node->name[0] = '\0';
    }
    compare(self);
    tell_gone(self, index);
    self->data_endpoint[0] = node == own ? '\0' : self->data_endpoint[0];
    for (uint32_t i = 1; node == own && i < KV_NODE_MAX; i++) {
        if (self->nodes[i].peer != ACTOR_PEER_NONE) {
            proto_body_t body = {.kv_arena = {.region = 0}};
            actor_outbox_push(self->outbox, kv_peer(self->nodes[i].peer), PROTO_KIND_KV_ARENA, 0,
                              &body);
        }
    }
}
