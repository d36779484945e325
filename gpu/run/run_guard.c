/* The pointer guard. */
#include "run_guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum { ENTRY_COUNT_MAX = 256 };

typedef struct {
    char path[BACKEND_PATH_SIZE_BYTES];
    const void *address;
    size_t size_bytes;
} entry_t;

struct run_guard {
    uint32_t bs;
    uint32_t count;
    entry_t entries[ENTRY_COUNT_MAX];
    char moved[BACKEND_PATH_SIZE_BYTES]; /* what the last verification found; "" = nothing */
};

static void
add_entry(void *context, const char *path, const void *address, size_t size_bytes)
{
    run_guard_t *self = context;
    require(self->count < ENTRY_COUNT_MAX);
    entry_t *entry = &self->entries[self->count++];
    entry->address = address;
    entry->size_bytes = size_bytes;
    (void)snprintf(entry->path, sizeof entry->path, "%s", path);
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
    run_guard_t *guard;
    uint32_t at;
} walk_t;

static void
compare_entry(void *context, const char *path, const void *address, size_t size_bytes)
{
    walk_t *walk = context;
    const entry_t *entry = walk->at < walk->guard->count ? &walk->guard->entries[walk->at] : NULL;
    walk->at++;
    bool is_same = entry != NULL && strcmp(entry->path, path) == 0 && entry->address == address &&
                   entry->size_bytes == size_bytes;
    if (!is_same && walk->guard->moved[0] == '\0') {
        (void)snprintf(walk->guard->moved, sizeof walk->guard->moved, "%s", path);
    }
}

proto_status_t
run_guard_verify(run_guard_t *self, const backend_t *backend, const char **path_p)
{
    walk_t walk = {.guard = self};
    self->moved[0] = '\0';
    backend_visit_decode_slot(backend, self->bs, compare_entry, &walk);
    if (self->moved[0] == '\0' && walk.at != self->count) {
        memcpy(self->moved, self->entries[walk.at].path, sizeof self->moved);
    }
    if (self->moved[0] != '\0') {
        *path_p = self->moved;
        return STATUS_ERR_INTERNAL;
    }
    return STATUS_OK;
}

typedef struct {
    uintptr_t begin;
    uintptr_t end;
    char *path;
} leak_t;

static void
find_leak(void *context, const char *path, const void *address, size_t size_bytes)
{
    leak_t *leak = context;
    uintptr_t begin = (uintptr_t)address;
    if (begin < leak->end && begin + size_bytes > leak->begin && leak->path[0] == '\0') {
        (void)snprintf(leak->path, BACKEND_PATH_SIZE_BYTES, "%s", path);
    }
}

proto_status_t
run_guard_check_eager(const backend_t *backend, uint32_t bs, const device_pool_t *pool,
                      char path[BACKEND_PATH_SIZE_BYTES])
{
    size_t size_bytes = 0;
    uintptr_t begin = (uintptr_t)device_pool_memory(pool, &size_bytes);
    leak_t leak = {.begin = begin, .end = begin + size_bytes, .path = path};
    path[0] = '\0';
    backend_visit_decode_slot(backend, bs, find_leak, &leak);
    return path[0] == '\0' ? STATUS_OK : STATUS_ERR_INTERNAL;
}
