#include "sched_ids.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

static uint32_t
home_of(const sched_ids_t *self, uint32_t owner, uint64_t request)
{
    uint64_t x = request ^ ((uint64_t)owner << 56);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(x ^ (x >> 31)) & self->mask;
}

proto_status_t
sched_ids_init(sched_ids_t *self, uint32_t live_count_max, uint32_t ended_count_max)
{
    require(live_count_max > 0);
    require(ended_count_max > 0);
    memset(self, 0, sizeof *self);
    uint64_t wanted = 2 * ((uint64_t)live_count_max + ended_count_max + 1);
    uint32_t size = 16;
    while (size < wanted) {
        size *= 2;
    }
    self->cells = malloc((size_t)size * sizeof *self->cells);
    self->ended = calloc(ended_count_max, sizeof *self->ended);
    if (self->cells == NULL || self->ended == NULL) {
        sched_ids_fini(self);
        return STATUS_ERR_NO_MEMORY;
    }
    memset(self->cells, 0xff, (size_t)size * sizeof *self->cells);
    self->mask = size - 1;
    self->ended_capacity = ended_count_max;
    return STATUS_OK;
}

void
sched_ids_fini(sched_ids_t *self)
{
    free(self->cells);
    free(self->ended);
    memset(self, 0, sizeof *self);
}

/* The cell of the request, or the empty cell where it would go. */
static sched_ids_cell_t *
cell_of(const sched_ids_t *self, uint32_t owner, uint64_t request)
{
    uint32_t at = home_of(self, owner, request);
    while (self->cells[at].value != SCHED_IDS_UNKNOWN) {
        if (self->cells[at].request == request && self->cells[at].owner == owner) {
            break;
        }
        at = (at + 1) & self->mask;
    }
    return &self->cells[at];
}

uint32_t
sched_ids_find(const sched_ids_t *self, uint32_t owner, uint64_t request)
{
    return cell_of(self, owner, request)->value;
}

void
sched_ids_add(sched_ids_t *self, uint32_t owner, uint64_t request, uint32_t entry)
{
    sched_ids_cell_t *cell = cell_of(self, owner, request);
    require(cell->value == SCHED_IDS_UNKNOWN);
    require(self->count < self->mask);
    *cell = (sched_ids_cell_t){.request = request, .owner = owner, .value = entry};
    self->count++;
}

/* Moves later cells of the same run back, so that no search meets a false end. */
static void
erase(sched_ids_t *self, uint32_t owner, uint64_t request)
{
    sched_ids_cell_t *cell = cell_of(self, owner, request);
    if (cell->value == SCHED_IDS_UNKNOWN) {
        return;
    }
    uint32_t hole = (uint32_t)(cell - self->cells);
    uint32_t at = hole;
    for (;;) {
        at = (at + 1) & self->mask;
        const sched_ids_cell_t *next = &self->cells[at];
        if (next->value == SCHED_IDS_UNKNOWN) {
            break;
        }
        uint32_t home = home_of(self, next->owner, next->request);
        bool stays = ((at - home) & self->mask) < ((at - hole) & self->mask);
        if (!stays) {
            self->cells[hole] = *next;
            hole = at;
        }
    }
    self->cells[hole].value = SCHED_IDS_UNKNOWN;
    self->count--;
}

void
sched_ids_end(sched_ids_t *self, uint32_t owner, uint64_t request)
{
    sched_ids_cell_t *cell = cell_of(self, owner, request);
    require(cell->value != SCHED_IDS_UNKNOWN);
    cell->value = SCHED_IDS_ENDED;
    sched_ids_cell_t *place = &self->ended[self->ended_at];
    if (self->ended_count == self->ended_capacity) {
        if (sched_ids_find(self, place->owner, place->request) == SCHED_IDS_ENDED) {
            erase(self, place->owner, place->request);
        }
    } else {
        self->ended_count++;
    }
    *place = (sched_ids_cell_t){.request = request, .owner = owner, .value = SCHED_IDS_ENDED};
    self->ended_at = (self->ended_at + 1) % self->ended_capacity;
}

void
sched_ids_forget(sched_ids_t *self, uint32_t owner)
{
    for (uint32_t i = 0; i < self->ended_count; i++) {
        const sched_ids_cell_t *place = &self->ended[i];
        if (place->owner == owner &&
            sched_ids_find(self, owner, place->request) == SCHED_IDS_ENDED) {
            erase(self, owner, place->request);
        }
    }
}

/* ---- saving ---------------------------------------------------------------------------------- */

/* The memory's entry number `i` from the oldest on. */
static const sched_ids_cell_t *
ended_at(const sched_ids_t *self, uint32_t i)
{
    uint32_t first = self->ended_at + self->ended_capacity - self->ended_count;
    return &self->ended[(first + i) % self->ended_capacity];
}

static bool
is_remembered(const sched_ids_t *self, const sched_ids_cell_t *place)
{
    return sched_ids_find(self, place->owner, place->request) == SCHED_IDS_ENDED;
}

void
sched_ids_save(const sched_ids_t *self, proto_pack_t *out)
{
    proto_pack_u32(out, self->ended_count);
    for (uint32_t i = 0; i < self->ended_count; i++) {
        const sched_ids_cell_t *place = ended_at(self, i);
        proto_pack_u32(out, place->owner);
        proto_pack_u64(out, place->request);
        proto_pack_bool(out, is_remembered(self, place)); /* false: forgotten before its turn */
    }
}

void
sched_ids_load(sched_ids_t *self, proto_unpack_t *in)
{
    self->ended_count = proto_unpack_u32_max(in, self->ended_capacity);
    self->ended_at = self->ended_count % self->ended_capacity;
    for (uint32_t i = 0; i < self->ended_count && !in->failed; i++) {
        sched_ids_cell_t *place = &self->ended[i];
        place->owner = proto_unpack_u32(in);
        place->request = proto_unpack_u64(in);
        bool remembered = proto_unpack_bool(in);
        bool is_unknown = sched_ids_find(self, place->owner, place->request) == SCHED_IDS_UNKNOWN;
        if (remembered && is_unknown && !in->failed) {
            sched_ids_add(self, place->owner, place->request, SCHED_IDS_ENDED);
        }
        place->value = remembered ? SCHED_IDS_ENDED : SCHED_IDS_UNKNOWN;
    }
    for (uint32_t i = 0; i < self->ended_count; i++) {
        sched_ids_cell_t *place = &self->ended[i];
        if (is_remembered(self, place) != (place->value == SCHED_IDS_ENDED)) {
            proto_unpack_fail(in); /* it lives, or is said to be both remembered and forgotten */
        }
        place->value = SCHED_IDS_ENDED;
    }
}
