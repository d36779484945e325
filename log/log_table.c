#include "log_table.h"

#include <stdlib.h>
#include <string.h>

enum { PLACES_FIRST = 64 };

void
log_table_fini(log_table_t *self)
{
    free(self->keys);
    free(self->places);
    memset(self, 0, sizeof *self);
}

uint64_t
log_table_mix(uint64_t value)
{
    value ^= value >> 33;
    value *= UINT64_C(0xff51afd7ed558ccd);
    value ^= value >> 33;
    value *= UINT64_C(0xc4ceb9fe1a85ec53);
    return value ^ value >> 33;
}

/* Where the key is, or where it would be put. */
static uint32_t
place_of(const log_table_t *self, uint64_t key)
{
    uint32_t mask = self->place_count - 1;
    uint32_t place = (uint32_t)log_table_mix(key) & mask;
    while (self->places[place] != 0 && self->keys[self->places[place] - 1] != key) {
        place = (place + 1) & mask;
    }
    return place;
}

int32_t
log_table_find(const log_table_t *self, uint64_t key)
{
    if (self->place_count == 0) {
        return LOG_TABLE_NONE;
    }
    return (int32_t)self->places[place_of(self, key)] - 1;
}

/* At most half of the places are taken. */
static bool
grow(log_table_t *self)
{
    uint32_t place_count = self->place_count == 0 ? PLACES_FIRST : self->place_count * 2;
    uint64_t *keys = realloc(self->keys, place_count / 2 * sizeof keys[0]);
    if (keys == NULL) {
        return false;
    }
    self->keys = keys;
    uint32_t *places = calloc(place_count, sizeof places[0]);
    if (places == NULL) {
        return false;
    }
    free(self->places);
    self->places = places;
    self->place_count = place_count;
    for (uint32_t i = 0; i < self->count; i++) {
        self->places[place_of(self, self->keys[i])] = i + 1;
    }
    return true;
}

int32_t
log_table_add(log_table_t *self, uint64_t key)
{
    int32_t found = log_table_find(self, key);
    if (found != LOG_TABLE_NONE) {
        return found;
    }
    if (self->count == LOG_TABLE_LEN_MAX || (self->count >= self->place_count / 2 && !grow(self))) {
        return LOG_TABLE_NONE;
    }
    self->keys[self->count] = key;
    self->places[place_of(self, key)] = ++self->count;
    return (int32_t)(self->count - 1);
}
