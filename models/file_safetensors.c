#include "file_safetensors.h"

#include <inttypes.h>

#include "proto_require.h"

enum {
    HEADER_SIZE_BYTES_MAX = 100 * 1000 * 1000,
    HEADER_DEPTH_MAX = 4,
    HEADER_VALUE_COUNT_MAX = 1 << 21,
};

typedef struct {
    const char *name;
    uint32_t size_bytes;
    bool is_known;
    file_dtype_t dtype;
} element_t;

static const element_t ELEMENTS[] = {
    {"F32", 4, true, FILE_DTYPE_F32},
    {"F16", 2, true, FILE_DTYPE_F16},
    {"BF16", 2, true, FILE_DTYPE_BF16},
    {"F64", 8, false, 0},
    {"I64", 8, false, 0},
    {"U64", 8, false, 0},
    {"I32", 4, false, 0},
    {"U32", 4, false, 0},
    {"I16", 2, false, 0},
    {"U16", 2, false, 0},
    {"I8", 1, false, 0},
    {"U8", 1, false, 0},
    {"BOOL", 1, false, 0},
    {"F8_E4M3", 1, false, 0},
    {"F8_E5M2", 1, false, 0},
};

static const element_t *
find_element(const char *name)
{
    for (size_t i = 0; i < sizeof ELEMENTS / sizeof ELEMENTS[0]; i++) {
        if (strcmp(ELEMENTS[i].name, name) == 0) {
            return &ELEMENTS[i];
        }
    }
    return NULL;
}

/* A whole number that is not negative; jansson has refused anything over 63 bits. */
static bool
read_size(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        return false;
    }
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static proto_status_t
read_shape(const char *name, const json_t *shape, file_stored_t *out, file_error_t error)
{
    if (!json_is_array(shape) || json_array_size(shape) > FILE_TENSOR_RANK_MAX) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tensor '%s': 'shape' must be a list of at most %d numbers", name,
                              FILE_TENSOR_RANK_MAX);
    }
    out->rank = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < out->rank; i++) {
        if (!read_size(json_array_get(shape, i), &out->shape[i]) || out->shape[i] == 0) {
            return file_error_set(error, STATUS_ERR_MALFORMED,
                                  "tensor '%s': dimension %" PRIu32
                                  " must be a whole number over 0",
                                  name, i);
        }
    }
    return STATUS_OK;
}

static bool
shape_size(const file_stored_t *stored, uint64_t element_size_bytes, uint64_t *out)
{
    uint64_t total = element_size_bytes;
    bool fits = true;
    for (uint32_t i = 0; fits && i < stored->rank; i++) {
        fits = file_mul_u64(total, stored->shape[i], &total);
    }
    *out = total;
    return fits;
}

static proto_status_t
read_tensor(const char *key, const json_t *entry, file_stored_t *out, file_error_t error)
{
    file_printable_t name = file_printable(key, strlen(key));
    const json_t *dtype = json_object_get(entry, "dtype");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (!json_is_object(entry) || json_object_size(entry) != 3 || !json_is_string(dtype)) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tensor '%s': needs 'dtype', 'shape' and 'data_offsets', no more",
                              name.text);
    }
    const element_t *element = find_element(json_string_value(dtype));
    if (element == NULL) {
        const char *text = json_string_value(dtype);
        return file_error_set(error, STATUS_ERR_UNSUPPORTED, "tensor '%s': dtype '%s' is not known",
                              name.text, file_printable(text, strlen(text)).text);
    }
    *out = (file_stored_t){.element = element->name,
                           .is_known = element->is_known,
                           .dtype = element->dtype};
    out->name = (file_view_t){(const uint8_t *)key, strlen(key)};
    proto_status_t status = read_shape(name.text, json_object_get(entry, "shape"), out, error);
    if (status != STATUS_OK) {
        return status;
    }
    uint64_t begin = 0;
    uint64_t end = 0;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !read_size(json_array_get(offsets, 0), &begin) ||
        !read_size(json_array_get(offsets, 1), &end) || begin > end) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tensor '%s': 'data_offsets' must be [begin, end]", name.text);
    }
    uint64_t wanted = 0;
    if (!shape_size(out, element->size_bytes, &wanted) || wanted != end - begin) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tensor '%s': its shape does not need the %" PRIu64
                              " bytes that 'data_offsets' gives it",
                              name.text, end - begin);
    }
    out->offset = begin;
    out->size_bytes = wanted;
    return STATUS_OK;
}

static proto_status_t
read_entries(const json_t *header, file_tensors_t *tensors, file_error_t error)
{
    proto_status_t status = file_tensors_grow(tensors, json_object_size(header), error);
    if (status != STATUS_OK) {
        return status;
    }
    const char *key;
    json_t *entry;
    json_object_foreach((json_t *)(uintptr_t)header, key, entry)
    {
        if (strcmp(key, "__metadata__") == 0) {
            continue; /* free text about the file: nothing in it is used */
        }
        require(tensors->count < tensors->count_max);
        status = read_tensor(key, entry, &tensors->items[tensors->count], error);
        if (status != STATUS_OK) {
            return status;
        }
        tensors->count++;
    }
    return STATUS_OK;
}

proto_status_t
file_safetensors_read(file_view_t file, const char *name, uint32_t shard, file_tensors_t *tensors,
                      json_t **header_p, file_error_t error)
{
    file_cursor_t cursor = {file.bytes, file.bytes + file.size_bytes, false};
    uint64_t header_size_bytes = file_cursor_u64(&cursor);
    const uint8_t *text = file_cursor_take(&cursor, header_size_bytes);
    if (cursor.failed || header_size_bytes < 2 || text[0] != '{') {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "%s: no safetensors file, or its header is cut off", name);
    }
    file_json_limits_t limits = {name, HEADER_SIZE_BYTES_MAX, HEADER_DEPTH_MAX,
                                 HEADER_VALUE_COUNT_MAX};
    json_t *header = NULL;
    proto_status_t status = file_json_parse(text, header_size_bytes, &limits, error, &header);
    if (status != STATUS_OK) {
        return status;
    }
    uint32_t first = tensors->count;
    uint64_t data_size_bytes = (uint64_t)(cursor.end - cursor.at);
    status = read_entries(header, tensors, error);
    if (status == STATUS_OK) {
        status = file_tensors_check_ranges(tensors, first, data_size_bytes, 1, error);
    }
    if (status != STATUS_OK) {
        json_decref(header);
        return status;
    }
    for (uint32_t i = first; i < tensors->count; i++) {
        tensors->items[i].data = cursor.at + tensors->items[i].offset;
        tensors->items[i].shard = shard;
    }
    *header_p = header;
    return STATUS_OK;
}
