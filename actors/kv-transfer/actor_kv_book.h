/* actor_kv_book.h - the source's book in shared memory, which readers on the same host look at
 * before and after they copy: whether a transfer's gate is open, and of which generation each block
 * is.  The source's shell alone writes it.
 *
 * A reader that finds the gate closed or another generation afterwards throws away what it read, so
 * a fence at the source waits for nobody. */
#ifndef ACTOR_KV_BOOK_H
#define ACTOR_KV_BOOK_H

#include <stdatomic.h>

#include "actor_kv_layout.h"
#include "actor_kv_map.h"

enum { ACTOR_KV_GATE_COUNT = 1024 };

typedef struct {
    actor_kv_map_t map;
    _Atomic uint64_t *gates; /* [ACTOR_KV_GATE_COUNT]: the transfer it is open for; 0 = shut */
    _Atomic uint32_t *generations; /* blocks of all groups, one group after the other */
    uint64_t group_begins[ACTOR_KV_GROUP_COUNT_MAX];
    uint32_t group_pages[ACTOR_KV_GROUP_COUNT_MAX]; /* block ids are below it */
} actor_kv_book_t;

/* Makes the book of a cache; *fd_p is the caller's. */
MUST_CHECK proto_status_t actor_kv_book_make(const actor_kv_layout_t *layout, actor_kv_book_t *out,
                                             int *fd_p);
/* Opens a peer's, to read.  As actor_kv_map_open(). */
MUST_CHECK proto_status_t actor_kv_book_open(const actor_kv_layout_t *layout, proto_bytes_t handle,
                                             actor_kv_book_t *out, char *detail,
                                             size_t detail_size_bytes);
void actor_kv_book_close(actor_kv_book_t *self);

void actor_kv_book_set_gate(actor_kv_book_t *self, uint32_t gate, uint64_t transfer);
/* Blocks and gates outside the book are passed over. */
void actor_kv_book_set_generation(actor_kv_book_t *self, uint32_t group, uint32_t block,
                                  uint32_t generation);
bool actor_kv_book_is_open(const actor_kv_book_t *self, uint32_t gate, uint64_t transfer);
/* 0 for a block outside the book. */
uint32_t actor_kv_book_generation(const actor_kv_book_t *self, uint32_t group, uint32_t block);

#endif
