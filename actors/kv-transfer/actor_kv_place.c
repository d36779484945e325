/* Where caches are: ours and the peers', mapped if they can be. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_kv_data_state.h"
#include "actor_log.h"
#include "proto_require.h"

void
actor_kv_place_close(kv_place_t *place)
{
    for (uint32_t r = 0; r < ACTOR_KV_RANK_COUNT_MAX; r++) {
        actor_kv_map_close(&place->maps[r]);
        actor_kv_map_close(&place->ready[r]);
    }
    actor_kv_book_close(&place->book);
    actor_kv_route_destroy(&place->in);
    actor_kv_route_destroy(&place->out);
    actor_socket_close(&place->pull, 0);
    free(place->fields);
    *place = (kv_place_t){.in_use = false};
}

/* Bytes of our arena may still be on their way into the network: it stays mapped until they have
 * left, and nobody waits for that. */
static void
bury(actor_kv_data_t *self, uint32_t peer)
{
    kv_place_t *place = &self->places[peer];
    if (peer != 0) {
        return;
    }
    for (uint32_t r = 0; r < ACTOR_KV_RANK_COUNT_MAX; r++) {
        if (place->maps[r].base != NULL && self->grave_count < KV_GRAVES_MAX) {
            self->graves[self->grave_count++] = place->maps[r];
            place->maps[r] = (actor_kv_map_t){.memory = NULL};
        }
    }
}

/* Ways to and from everybody go over our own layout. */
static void
forget_routes(actor_kv_data_t *self)
{
    for (uint32_t i = 0; i < ACTOR_PEER_COUNT_MAX; i++) {
        actor_kv_route_destroy(&self->places[i].in);
        actor_kv_route_destroy(&self->places[i].out);
    }
}

static proto_status_t
open_place(kv_place_t *place, const proto_kv_arena_t *arena)
{
    if (place->in_use) {
        return STATUS_OK;
    }
    place->fields =
        calloc((size_t)ACTOR_KV_RANK_COUNT_MAX * ACTOR_KV_FIELD_COUNT_MAX, sizeof *place->fields);
    if (place->fields == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    place->in_use = true;
    place->is_mapped = true;
    place->rank_count = arena->rank_count;
    place->side.rank_count = arena->rank_count;
    (void)snprintf(place->endpoint, sizeof place->endpoint, "%.*s",
                   (int)arena->data_endpoint.size_bytes, arena->data_endpoint.data);
    return STATUS_OK;
}

static void
note_unmapped(kv_place_t *place, const char *why)
{
    place->is_mapped = false;
    (void)snprintf(place->why, sizeof place->why, "%s", why);
}

/* Our own arena is written, a peer's is only read. */
static void
map_rank(actor_kv_data_t *self, kv_place_t *place, const proto_kv_arena_t *arena, bool is_own)
{
    uint32_t rank = arena->rank;
    char why[KV_DATA_DETAIL_SIZE_BYTES] = "";
    bool is_wanted = is_own || self->options.way != ACTOR_KV_WAY_TCP;
    proto_status_t status = STATUS_ERR_NOT_FOUND;
    if (arena->handle_kind != 0) {
        (void)snprintf(why, sizeof why, "handles of CUDA IPC cannot be opened by this build");
    } else if (is_wanted && arena->size_bytes > 0) {
        status = actor_kv_map_open(arena->handle, arena->size_bytes, is_own, &place->maps[rank],
                                   why, sizeof why);
    } else {
        (void)snprintf(why, sizeof why, "shared memory is not to be used");
    }
    if (status == STATUS_OK && is_own && arena->ready_kind == 1) {
        status = actor_kv_map_open(arena->ready_handle, sizeof(proto_layers_t), false,
                                   &place->ready[rank], why, sizeof why);
    }
    place->side.arenas[rank] = place->maps[rank].memory;
    if (status != STATUS_OK) {
        note_unmapped(place, why);
    }
}

static void
map_book(actor_kv_data_t *self, kv_place_t *place, const proto_kv_arena_t *arena)
{
    char why[KV_DATA_DETAIL_SIZE_BYTES] = "";
    if (self->options.way == ACTOR_KV_WAY_TCP || place->book.gates != NULL) {
        return;
    }
    if (actor_kv_book_open(&place->layouts[arena->rank], arena->book_handle, &place->book, why,
                           sizeof why) != STATUS_OK) {
        note_unmapped(place, why);
    }
}

static void
tell_place(const kv_place_t *place, uint32_t peer)
{
    if (peer == 0 && !place->is_mapped) {
        actor_log(ACTOR_LOG_ERROR, "kv.arena", 0, NULL, "the executor's cache cannot be mapped: %s",
                  place->why);
    } else {
        actor_log(ACTOR_LOG_INFO, "kv.arena", 0,
                  ACTOR_LOG_FIELDS(actor_log_u64("ranks", place->rank_count)), "%s cache: %s",
                  peer == 0 ? "our own" : "a peer's",
                  place->is_mapped ? "shared memory" : place->why);
    }
}

/* Peers may know of us now. */
static void
announce(actor_kv_data_t *self, kv_place_t *place)
{
    char handle[ACTOR_KV_HANDLE_SIZE_BYTES];
    pthread_mutex_lock(&self->mutex);
    size_t size = self->book_fd < 0 ? 0 : actor_kv_handle_write(self->book_fd, 0, handle);
    pthread_mutex_unlock(&self->mutex);
    const char *endpoint = actor_kv_data_endpoint(self);
    proto_body_t body = {
        .kv_arena = {.data_endpoint = proto_text(endpoint[0] != '\0' ? endpoint : "none"),
                     .book_handle = {(const uint8_t *)handle, size}}};
    place->is_announced = true;
    (void)self->options.post(self->options.post_context, PROTO_KIND_KV_ARENA, &body);
}

void
actor_kv_place_arena(actor_kv_data_t *self, uint32_t peer, const proto_kv_arena_t *arena)
{
    require(peer < ACTOR_PEER_COUNT_MAX);
    kv_place_t *place = &self->places[peer];
    forget_routes(self);
    if (arena->region == 0) {
        bury(self, peer);
        actor_kv_place_close(place);
        return;
    }
    if (arena->rank >= ACTOR_KV_RANK_COUNT_MAX || open_place(place, arena) != STATUS_OK) {
        return;
    }
    actor_kv_field_t *fields = place->fields + (size_t)arena->rank * ACTOR_KV_FIELD_COUNT_MAX;
    actor_kv_layout_t *layout = &place->layouts[arena->rank];
    proto_error_t error;
    if (actor_kv_layout_read(arena, fields, layout, &error) != STATUS_OK) {
        note_unmapped(place, error.detail); /* the core let none through that is wrong */
        return;
    }
    place->side.layouts[arena->rank] = layout;
    place->regions[arena->rank] = arena->region;
    place->rank_mask |= 1u << arena->rank;
    map_rank(self, place, arena, peer == 0);
    if (peer != 0) {
        map_book(self, place, arena);
    }
    if (place->rank_mask != (1u << place->rank_count) - 1) {
        return;
    }
    tell_place(place, peer);
    if (peer == 0 && place->is_mapped && !place->is_announced) {
        announce(self, place);
    }
}

proto_status_t
actor_kv_place_route(actor_kv_data_t *self, uint32_t peer, bool is_in,
                     const actor_kv_route_t **out_p, char *detail)
{
    kv_place_t *own = &self->places[0];
    kv_place_t *other = &self->places[peer];
    if (!own->in_use || !other->in_use || !own->is_mapped ||
        own->rank_mask != (1u << own->rank_count) - 1 ||
        other->rank_mask != (1u << other->rank_count) - 1) {
        (void)snprintf(detail, KV_DATA_DETAIL_SIZE_BYTES, "a cache is not there: %.120s",
                       own->why[0] != '\0' ? own->why : "it is not registered");
        return STATUS_ERR_NOT_FOUND;
    }
    actor_kv_route_t **route_p = is_in ? &other->in : &other->out;
    if (*route_p == NULL) {
        proto_status_t status = is_in ? actor_kv_route_new(&other->side, &own->side, route_p)
                                      : actor_kv_route_new(&own->side, &other->side, route_p);
        if (status != STATUS_OK) {
            (void)snprintf(detail, KV_DATA_DETAIL_SIZE_BYTES, "no way between the two caches: %s",
                           proto_status_text(status));
            return status;
        }
    }
    *out_p = *route_p;
    return STATUS_OK;
}
