#include "file_added.h"

#include <stdlib.h>

#include "proto_require.h"

void
file_added_fini(file_added_t *self)
{
    free(self->nodes);
    *self = (file_added_t){0};
}

static proto_status_t
grow(file_added_t *self, uint32_t more)
{
    if (self->count_max - self->count > more) {
        return STATUS_OK;
    }
    uint64_t count_max = 2 * (uint64_t)self->count_max + more + 64;
    if (count_max > FILE_ADDED_NODE_COUNT_MAX) {
        return STATUS_ERR_TOO_LARGE;
    }
    file_added_node_t *nodes = realloc(self->nodes, count_max * sizeof *nodes);
    if (nodes == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->nodes = nodes;
    self->count_max = (uint32_t)count_max;
    if (self->count == 0) {
        nodes[0] = (file_added_node_t){.id = FILE_ID_NONE};
        self->count = 1;
    }
    return STATUS_OK;
}

static uint32_t
find_child(const file_added_t *self, uint32_t node, uint8_t byte)
{
    uint32_t child = self->nodes[node].child;
    while (child != 0 && self->nodes[child].byte != byte) {
        child = self->nodes[child].sibling;
    }
    return child;
}

proto_status_t
file_added_insert(file_added_t *self, const uint8_t *bytes, uint32_t size_bytes, int32_t id,
                  bool is_special)
{
    require(size_bytes > 0);
    require(id >= 0);
    proto_status_t status = grow(self, size_bytes);
    if (status != STATUS_OK) {
        return status;
    }
    uint32_t node = 0;
    for (uint32_t i = 0; i < size_bytes; i++) {
        uint32_t child = find_child(self, node, bytes[i]);
        if (child == 0) {
            child = self->count++;
            self->nodes[child] = (file_added_node_t){.sibling = self->nodes[node].child,
                                                     .id = FILE_ID_NONE,
                                                     .byte = bytes[i]};
            self->nodes[node].child = child;
        }
        node = child;
    }
    self->nodes[node].id = id;
    self->nodes[node].is_special = is_special;
    self->starts[bytes[0]] = 1;
    return STATUS_OK;
}

int32_t
file_added_find(const file_added_t *self, const uint8_t *text, size_t size_bytes, size_t from,
                bool with_special, size_t *begin, size_t *end)
{
    for (size_t at = from; at < size_bytes; at++) {
        if (!self->starts[text[at]]) {
            continue;
        }
        int32_t found = FILE_ID_NONE;
        uint32_t node = 0;
        for (size_t i = at; i < size_bytes; i++) {
            node = find_child(self, node, text[i]);
            if (node == 0) {
                break;
            }
            const file_added_node_t *here = &self->nodes[node];
            if (here->id >= 0 && (with_special || !here->is_special)) {
                found = here->id;
                *begin = at;
                *end = i + 1;
            }
        }
        if (found >= 0) {
            return found;
        }
    }
    return FILE_ID_NONE;
}
