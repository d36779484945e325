/* The pointer guard. */
#include "run_guard.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum { ENTRY_COUNT_MAX = 256 };

typedef struct {
    const char *path; /* a literal of the node that reported it */
    const void *address;
    size_t size_bytes;
} entry_t;

struct run_guard {
    uint32_t bs;
    uint32_t count;
    entry_t entries[ENTRY_COUNT_MAX];
};

static void
add_entry(void *context, const char *path, const void *address, size_t size_bytes)
{
    run_guard_t *self = context;
    require(self->count < ENTRY_COUNT_MAX);
    self->entries[self->count++] =
        (entry_t){.path = path, .address = address, .size_bytes = size_bytes};
}

proto_status_t
run_guard_new(const backend_t *backend, uint32_t bs, run_guard_t **out_p)
{
    run_guard_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->bs = bs;
    backend_visit_decode_slot(backend, bs, add_entry, self);
    require(self->count > 0);
    *out_p = self;
    return STATUS_OK;
}

void
run_guard_destroy(run_guard_t **self_p)
{
    require(self_p != NULL);
    free(*self_p);
    *self_p = NULL;
}

typedef struct {
    const run_guard_t *guard;
    uint32_t at;
    const char *first_moved;
} walk_t;

static void
compare_entry(void *context, const char *path, const void *address, size_t size_bytes)
{
    walk_t *walk = context;
    const entry_t *entry = walk->at < walk->guard->count ? &walk->guard->entries[walk->at] : NULL;
    walk->at++;
    bool is_same = entry != NULL && strcmp(entry->path, path) == 0 && entry->address == address &&
                   entry->size_bytes == size_bytes;
    if (!is_same && walk->first_moved == NULL) {
        walk->first_moved = path;
    }
}

proto_status_t
run_guard_verify(const run_guard_t *self, const backend_t *backend, const char **path_p)
{
    walk_t walk = {.guard = self};
    backend_visit_decode_slot(backend, self->bs, compare_entry, &walk);
    if (walk.first_moved == NULL && walk.at != self->count) {
        walk.first_moved = self->entries[walk.at].path;
    }
    if (walk.first_moved != NULL) {
        *path_p = walk.first_moved;
        return STATUS_ERR_INTERNAL;
    }
    return STATUS_OK;
}
