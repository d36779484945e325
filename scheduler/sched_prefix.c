#include "sched_prefix.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum { OFFSET_BITS = 20 };

static uint32_t
tag_of(const uint8_t *hash, uint32_t place)
{
    uint64_t x;
    memcpy(&x, hash, sizeof x);
    x ^= (uint64_t)place * 0x9e3779b97f4a7c15u;
    x ^= x >> 32;
    return (uint32_t)x;
}

static uint32_t
place_of(const sched_page_t *page)
{
    return page->group << OFFSET_BITS | page->offset;
}

proto_status_t
sched_prefix_init(sched_prefix_t *self, uint32_t block_count)
{
    require(block_count > 0);
    memset(self, 0, sizeof *self);
    uint32_t size = 16;
    while (size < 2 * (uint64_t)block_count) {
        size *= 2;
    }
    self->cells = calloc(size, sizeof *self->cells);
    self->hashes = calloc(block_count, sizeof *self->hashes);
    self->places = calloc(block_count, sizeof *self->places);
    if (self->cells == NULL || self->hashes == NULL || self->places == NULL) {
        sched_prefix_fini(self);
        return STATUS_ERR_NO_MEMORY;
    }
    /* Touched now, so that no page fault comes with the first use of a block. */
    memset(self->hashes, 0xff, block_count * sizeof *self->hashes);
    memset(self->places, 0xff, block_count * sizeof *self->places);
    for (uint32_t i = 0; i < size; i++) {
        self->cells[i].tag = UINT32_MAX;
    }
    self->mask = size - 1;
    self->block_count = block_count;
    return STATUS_OK;
}

void
sched_prefix_fini(sched_prefix_t *self)
{
    free(self->cells);
    free(self->hashes);
    free(self->places);
    memset(self, 0, sizeof *self);
}

uint32_t
sched_prefix_find(const sched_prefix_t *self, const sched_page_t *page)
{
    uint32_t place = place_of(page);
    uint32_t tag = tag_of(page->hash, place);
    for (uint32_t at = tag & self->mask;; at = (at + 1) & self->mask) {
        sched_prefix_cell_t cell = self->cells[at];
        if (cell.block == 0) {
            return 0;
        }
        if (cell.tag == tag && self->places[cell.block] == place &&
            memcmp(self->hashes[cell.block].hash, page->hash, PROTO_HASH_SIZE_BYTES) == 0) {
            return cell.block;
        }
    }
}

void
sched_prefix_prefetch(const sched_prefix_t *self, const sched_page_t *page)
{
    __builtin_prefetch(&self->cells[tag_of(page->hash, place_of(page)) & self->mask]);
}

void
sched_prefix_add(sched_prefix_t *self, const sched_page_t *page, uint32_t block)
{
    require(block != 0);
    require(block < self->block_count);
    require(page->offset < 1u << OFFSET_BITS);
    uint32_t place = place_of(page);
    uint32_t tag = tag_of(page->hash, place);
    uint32_t at = tag & self->mask;
    while (self->cells[at].block != 0) {
        at = (at + 1) & self->mask;
    }
    self->cells[at] = (sched_prefix_cell_t){.tag = tag, .block = block};
    memcpy(self->hashes[block].hash, page->hash, PROTO_HASH_SIZE_BYTES);
    self->places[block] = place;
    self->count++;
}

void
sched_prefix_remove(sched_prefix_t *self, uint32_t block)
{
    uint32_t tag = tag_of(self->hashes[block].hash, self->places[block]);
    uint32_t hole = tag & self->mask;
    while (self->cells[hole].block != block) {
        require(self->cells[hole].block != 0);
        hole = (hole + 1) & self->mask;
    }
    for (uint32_t at = hole;;) {
        at = (at + 1) & self->mask;
        sched_prefix_cell_t next = self->cells[at];
        if (next.block == 0) {
            break;
        }
        uint32_t home = next.tag & self->mask;
        bool stays = ((at - home) & self->mask) < ((at - hole) & self->mask);
        if (!stays) {
            self->cells[hole] = next;
            hole = at;
        }
    }
    self->cells[hole].block = 0;
    self->count--;
}

const uint8_t *
sched_prefix_hash(const sched_prefix_t *self, uint32_t block)
{
    require(block < self->block_count);
    return self->hashes[block].hash;
}

uint32_t
sched_prefix_offset(const sched_prefix_t *self, uint32_t block)
{
    require(block < self->block_count);
    return self->places[block] & ((1u << OFFSET_BITS) - 1);
}
