#include "file_tensors.h"

#include <inttypes.h>
#include <stdlib.h>

#include "proto_require.h"

proto_status_t
file_tensors_init(file_tensors_t *self, uint64_t count_max, file_error_t error)
{
    *self = (file_tensors_t){0};
    return file_tensors_grow(self, count_max, error);
}

proto_status_t
file_tensors_grow(file_tensors_t *self, uint64_t more, file_error_t error)
{
    if (more > FILE_TENSOR_COUNT_MAX - self->count_max) {
        return file_error_set(error, STATUS_ERR_MALFORMED, "more than %d tensors",
                              FILE_TENSOR_COUNT_MAX);
    }
    uint32_t count_max = self->count_max + (uint32_t)more;
    file_stored_t *items = realloc(self->items, (size_t)(count_max + 1) * sizeof *items);
    if (items == NULL) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory for the tensor table");
    }
    self->items = items;
    self->count_max = count_max;
    return STATUS_OK;
}

void
file_tensors_fini(file_tensors_t *self)
{
    free(self->items);
    *self = (file_tensors_t){0};
}

static int
compare_places(const void *a, const void *b)
{
    const file_stored_t *left = a;
    const file_stored_t *right = b;
    return (left->offset > right->offset) - (left->offset < right->offset);
}

static int
compare_names(const void *a, const void *b)
{
    const file_stored_t *left = a;
    const file_stored_t *right = b;
    return file_view_compare(left->name, right->name);
}

static file_printable_t
shown_name(const file_stored_t *stored)
{
    return file_printable(stored->name.bytes, stored->name.size_bytes);
}

proto_status_t
file_tensors_check_ranges(file_tensors_t *self, uint32_t first, uint64_t data_size_bytes,
                          uint64_t alignment, file_error_t error)
{
    require(first <= self->count);
    require(alignment >= 1);
    qsort(self->items + first, self->count - first, sizeof *self->items, compare_places);
    uint64_t covered = 0;
    for (uint32_t i = first; i < self->count; i++) {
        const file_stored_t *item = &self->items[i];
        if (item->offset < covered) {
            return file_error_set(error, STATUS_ERR_MALFORMED,
                                  "tensor '%s': its bytes overlap another tensor's",
                                  shown_name(item).text);
        }
        if (item->offset - covered >= alignment) {
            return file_error_set(error, STATUS_ERR_MALFORMED,
                                  "tensor '%s': %" PRIu64 " unused bytes before it",
                                  shown_name(item).text, item->offset - covered);
        }
        if (item->offset > data_size_bytes || item->size_bytes > data_size_bytes - item->offset) {
            return file_error_set(error, STATUS_ERR_MALFORMED,
                                  "tensor '%s': needs %" PRIu64 " bytes at %" PRIu64
                                  ", but the file has only %" PRIu64 " bytes of data (truncated?)",
                                  shown_name(item).text, item->size_bytes, item->offset,
                                  data_size_bytes);
        }
        covered = item->offset + item->size_bytes;
    }
    if (data_size_bytes - covered >= alignment) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "%" PRIu64 " bytes after the last tensor", data_size_bytes - covered);
    }
    return STATUS_OK;
}

proto_status_t
file_tensors_sort(file_tensors_t *self, file_error_t error)
{
    qsort(self->items, self->count, sizeof *self->items, compare_names);
    for (uint32_t i = 1; i < self->count; i++) {
        if (compare_names(&self->items[i - 1], &self->items[i]) == 0) {
            return file_error_set(error, STATUS_ERR_MALFORMED, "tensor '%s' stands twice",
                                  shown_name(&self->items[i]).text);
        }
    }
    return STATUS_OK;
}

file_stored_t *
file_tensors_find(const file_tensors_t *self, const char *name)
{
    if (self->count == 0) {
        return NULL;
    }
    file_stored_t key = {.name = {(const uint8_t *)name, strlen(name)}};
    return bsearch(&key, self->items, self->count, sizeof key, compare_names);
}

proto_status_t
file_tensors_size(const file_stored_t *stored, uint64_t *size_bytes, file_error_t error)
{
    require(stored->is_known);
    require(stored->rank <= FILE_TENSOR_RANK_MAX);
    uint32_t block_length = file_dtype_block_length(stored->dtype);
    uint64_t block_size_bytes = file_dtype_row_size_bytes(stored->dtype, block_length);
    uint64_t inner = stored->rank > 0 ? stored->shape[stored->rank - 1] : 1;
    if (inner % block_length != 0) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tensor '%s': rows of %" PRIu64
                              " values are not whole blocks of %s (%" PRIu32 " values)",
                              shown_name(stored).text, inner, file_dtype_name(stored->dtype),
                              block_length);
    }
    uint64_t total = 0;
    bool fits = file_mul_u64(inner / block_length, block_size_bytes, &total);
    for (uint32_t i = 0; fits && i + 1 < stored->rank; i++) {
        fits = file_mul_u64(total, stored->shape[i], &total);
    }
    if (!fits || total > INT64_MAX) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tensor '%s': its shape is larger than any file",
                              shown_name(stored).text);
    }
    *size_bytes = total;
    return STATUS_OK;
}
