#include "actor_kv_book.h"

#include <unistd.h>

#include "proto_require.h"

static size_t
lay_out(const actor_kv_layout_t *layout, actor_kv_book_t *book)
{
    uint64_t blocks = 0;
    for (uint32_t g = 0; g < layout->group_count; g++) {
        book->group_begins[g] = blocks;
        book->group_pages[g] = layout->groups[g].page_count;
        blocks += layout->groups[g].page_count;
    }
    return ACTOR_KV_GATE_COUNT * sizeof *book->gates + blocks * sizeof *book->generations;
}

static void
point(actor_kv_book_t *book)
{
    book->gates = (_Atomic uint64_t *)(void *)book->map.memory;
    book->generations =
        (_Atomic uint32_t *)(void *)(book->map.memory + ACTOR_KV_GATE_COUNT * sizeof *book->gates);
}

proto_status_t
actor_kv_book_make(const actor_kv_layout_t *layout, actor_kv_book_t *out, int *fd_p)
{
    actor_kv_book_t book = {.gates = NULL};
    size_t size_bytes = lay_out(layout, &book);
    proto_status_t status = actor_kv_map_make("onepath-book", size_bytes, &book.map, fd_p);
    if (status != STATUS_OK) {
        return status;
    }
    point(&book);
    *out = book;
    return STATUS_OK;
}

proto_status_t
actor_kv_book_open(const actor_kv_layout_t *layout, proto_bytes_t handle, actor_kv_book_t *out,
                   char *detail, size_t detail_size_bytes)
{
    actor_kv_book_t book = {.gates = NULL};
    size_t size_bytes = lay_out(layout, &book);
    proto_status_t status =
        actor_kv_map_open(handle, size_bytes, false, &book.map, detail, detail_size_bytes);
    if (status != STATUS_OK) {
        return status;
    }
    point(&book);
    *out = book;
    return STATUS_OK;
}

void
actor_kv_book_close(actor_kv_book_t *self)
{
    actor_kv_map_close(&self->map);
    self->gates = NULL;
    self->generations = NULL;
}

void
actor_kv_book_set_gate(actor_kv_book_t *self, uint32_t gate, uint64_t transfer)
{
    if (self->gates != NULL && gate < ACTOR_KV_GATE_COUNT) {
        atomic_store(&self->gates[gate], transfer);
    }
}

static bool
has_block(const actor_kv_book_t *self, uint32_t group, uint32_t block)
{
    return self->generations != NULL && group < ACTOR_KV_GROUP_COUNT_MAX &&
           block < self->group_pages[group];
}

void
actor_kv_book_set_generation(actor_kv_book_t *self, uint32_t group, uint32_t block,
                             uint32_t generation)
{
    if (has_block(self, group, block)) {
        atomic_store(&self->generations[self->group_begins[group] + block], generation);
    }
}

bool
actor_kv_book_is_open(const actor_kv_book_t *self, uint32_t gate, uint64_t transfer)
{
    /* What was read before must have been read when this is asked. */
    atomic_thread_fence(memory_order_seq_cst);
    return self->gates != NULL && gate < ACTOR_KV_GATE_COUNT &&
           atomic_load(&self->gates[gate]) == transfer;
}

uint32_t
actor_kv_book_generation(const actor_kv_book_t *self, uint32_t group, uint32_t block)
{
    return has_block(self, group, block)
               ? atomic_load(&self->generations[self->group_begins[group] + block])
               : 0;
}
