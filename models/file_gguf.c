#include "file_gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "file_dtype.h"
#include "proto_require.h"

static const uint8_t SCALAR_SIZE_BYTES[FILE_GGUF_TYPE_COUNT] = {
    [FILE_GGUF_U8] = 1,  [FILE_GGUF_I8] = 1,  [FILE_GGUF_U16] = 2, [FILE_GGUF_I16] = 2,
    [FILE_GGUF_U32] = 4, [FILE_GGUF_I32] = 4, [FILE_GGUF_F32] = 4, [FILE_GGUF_BOOL] = 1,
    [FILE_GGUF_U64] = 8, [FILE_GGUF_I64] = 8, [FILE_GGUF_F64] = 8,
};

static const char *const TYPE_NAMES[FILE_GGUF_TYPE_COUNT] = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64",
};

static file_view_t
take_string(file_cursor_t *cursor, uint64_t size_bytes_max)
{
    uint64_t size_bytes = file_cursor_u64(cursor);
    if (size_bytes > size_bytes_max) {
        cursor->failed = true;
    }
    const uint8_t *bytes = file_cursor_take(cursor, size_bytes);
    return (file_view_t){bytes, bytes != NULL ? size_bytes : 0};
}

static void
skip_elements(file_cursor_t *cursor, file_gguf_type_t type, uint64_t count)
{
    if (type != FILE_GGUF_STRING) {
        const uint8_t *bytes = file_cursor_take(cursor, count * SCALAR_SIZE_BYTES[type]);
        for (uint64_t i = 0; bytes != NULL && type == FILE_GGUF_BOOL && i < count; i++) {
            cursor->failed |= bytes[i] > 1;
        }
        return;
    }
    for (uint64_t i = 0; i < count && !cursor->failed; i++) {
        (void)take_string(cursor, FILE_GGUF_STRING_SIZE_BYTES_MAX);
    }
}

static proto_status_t
read_value(file_cursor_t *cursor, file_gguf_value_t *out, file_error_t error)
{
    out->key = take_string(cursor, FILE_GGUF_KEY_SIZE_BYTES_MAX);
    uint32_t type = file_cursor_u32(cursor);
    if (cursor->failed || out->key.size_bytes == 0) {
        return file_error_set(error, STATUS_ERR_MALFORMED, "GGUF: a key is cut off or too long");
    }
    file_printable_t key = file_printable(out->key.bytes, out->key.size_bytes);
    out->count = 1;
    out->is_array = type == FILE_GGUF_ARRAY;
    if (out->is_array) {
        type = file_cursor_u32(cursor);
        out->count = file_cursor_u64(cursor);
    }
    if (!cursor->failed && (type >= FILE_GGUF_TYPE_COUNT || type == FILE_GGUF_ARRAY)) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "GGUF key '%s': value type %" PRIu32 " is not known", key.text, type);
    }
    if (!cursor->failed && out->count > FILE_GGUF_ARRAY_COUNT_MAX) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "GGUF key '%s': an array of %" PRIu64
                              " elements; at most %d are read",
                              key.text, out->count, FILE_GGUF_ARRAY_COUNT_MAX);
    }
    if (!cursor->failed) {
        out->type = (file_gguf_type_t)type;
        const uint8_t *start = cursor->at;
        skip_elements(cursor, out->type, out->count);
        out->value = (file_view_t){start, (uint64_t)(cursor->at - start)};
    }
    if (cursor->failed) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "GGUF key '%s': its value is cut off or out of range", key.text);
    }
    return STATUS_OK;
}

static int
compare_keys(const void *a, const void *b)
{
    const file_gguf_value_t *left = a;
    const file_gguf_value_t *right = b;
    return file_view_compare(left->key, right->key);
}

static proto_status_t
read_values(file_gguf_t *self, file_cursor_t *cursor, uint64_t count, file_error_t error)
{
    /* The least key takes 8 + 1 + 4 + 1 bytes, so a small file cannot ask for a large table. */
    if (count > FILE_GGUF_KEY_COUNT_MAX || count > (uint64_t)(cursor->end - cursor->at) / 14) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "GGUF: %" PRIu64 " keys do not fit the file (at most %d are read)",
                              count, FILE_GGUF_KEY_COUNT_MAX);
    }
    self->values = calloc(count + 1, sizeof *self->values);
    if (self->values == NULL) {
        return file_error_set(error, STATUS_ERR_NO_MEMORY, "out of memory for the keys");
    }
    for (uint64_t i = 0; i < count; i++) {
        proto_status_t status = read_value(cursor, &self->values[i], error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    self->value_count = (uint32_t)count;
    qsort(self->values, self->value_count, sizeof *self->values, compare_keys);
    for (uint32_t i = 1; i < self->value_count; i++) {
        if (compare_keys(&self->values[i - 1], &self->values[i]) == 0) {
            file_view_t key = self->values[i].key;
            return file_error_set(error, STATUS_ERR_MALFORMED, "GGUF key '%s' stands twice",
                                  file_printable(key.bytes, key.size_bytes).text);
        }
    }
    return STATUS_OK;
}

static proto_status_t
read_tensor(file_cursor_t *cursor, uint64_t alignment, file_stored_t *out, file_error_t error)
{
    *out = (file_stored_t){.is_known = true};
    out->name = take_string(cursor, FILE_GGUF_NAME_SIZE_BYTES_MAX);
    out->rank = file_cursor_u32(cursor);
    if (cursor->failed || out->name.size_bytes == 0) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "GGUF: the table of tensors is cut off or a name is too long");
    }
    file_printable_t name = file_printable(out->name.bytes, out->name.size_bytes);
    if (out->rank < 1 || out->rank > FILE_TENSOR_RANK_MAX) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tensor '%s': %" PRIu32 " dimensions; 1 to %d are allowed", name.text,
                              out->rank, FILE_TENSOR_RANK_MAX);
    }
    bool has_zero = false;
    for (uint32_t i = out->rank; i-- > 0;) { /* stored innermost first */
        out->shape[i] = file_cursor_u64(cursor);
        has_zero |= out->shape[i] == 0;
    }
    uint32_t type = file_cursor_u32(cursor);
    out->offset = file_cursor_u64(cursor);
    if (cursor->failed) {
        return file_error_set(error, STATUS_ERR_MALFORMED, "tensor '%s': its entry is cut off",
                              name.text);
    }
    if (has_zero) {
        return file_error_set(error, STATUS_ERR_MALFORMED, "tensor '%s': a dimension is 0",
                              name.text);
    }
    if (!file_dtype_from_gguf(type, &out->dtype)) {
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "tensor '%s': type %" PRIu32 " (%s); supported are %s", name.text,
                              type, file_dtype_gguf_name(type), file_dtype_list());
    }
    if (out->offset % alignment != 0) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "tensor '%s': offset %" PRIu64 " is not aligned to %" PRIu64,
                              name.text, out->offset, alignment);
    }
    return file_tensors_size(out, &out->size_bytes, error);
}

static proto_status_t
read_tensors(const file_gguf_t *self, file_cursor_t *cursor, uint64_t count,
             file_tensors_t *tensors, file_error_t error)
{
    /* The least entry takes 8 + 1 + 4 + 8 + 4 + 8 bytes. */
    if (count > FILE_TENSOR_COUNT_MAX || count > (uint64_t)(cursor->end - cursor->at) / 33) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "GGUF: %" PRIu64 " tensors do not fit the file (at most %d are read)",
                              count, FILE_TENSOR_COUNT_MAX);
    }
    proto_status_t status = file_tensors_init(tensors, count, error);
    for (uint64_t i = 0; status == STATUS_OK && i < count; i++) {
        status = read_tensor(cursor, self->alignment, &tensors->items[i], error);
        tensors->count += status == STATUS_OK;
    }
    return status;
}

/* The data section begins at the next aligned byte of the file. */
static proto_status_t
place_tensors(const file_gguf_t *self, file_view_t file, const uint8_t *at, file_tensors_t *tensors,
              file_error_t error)
{
    uint64_t header = (uint64_t)(at - file.bytes);
    uint64_t start = (header + self->alignment - 1) / self->alignment * self->alignment;
    if (start > file.size_bytes) {
        start = file.size_bytes;
    }
    proto_status_t status =
        file_tensors_check_ranges(tensors, 0, file.size_bytes - start, self->alignment, error);
    if (status != STATUS_OK) {
        return status;
    }
    for (uint32_t i = 0; i < tensors->count; i++) {
        tensors->items[i].data = file.bytes + start + tensors->items[i].offset;
    }
    return file_tensors_sort(tensors, error);
}

static proto_status_t
read_alignment(file_gguf_t *self, file_error_t error)
{
    self->alignment = 32;
    proto_status_t status = file_gguf_u64(self, "general.alignment", &self->alignment, error);
    if (status != STATUS_OK && status != STATUS_ERR_NOT_FOUND) {
        return status;
    }
    uint64_t value = self->alignment;
    if (value < 8 || value > 4096 || (value & (value - 1)) != 0) {
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "GGUF: general.alignment is %" PRIu64
                              "; a power of two from 8 to 4096 is allowed",
                              value);
    }
    return STATUS_OK;
}

static proto_status_t
read_file(file_gguf_t *self, file_view_t file, file_tensors_t *tensors, file_error_t error)
{
    file_cursor_t cursor = {file.bytes, file.bytes + file.size_bytes, false};
    const uint8_t *magic = file_cursor_take(&cursor, 4);
    if (magic == NULL || memcmp(magic, "GGUF", 4) != 0) {
        return file_error_set(error, STATUS_ERR_MALFORMED, "not a GGUF file: it begins otherwise");
    }
    self->version = file_cursor_u32(&cursor);
    uint64_t tensor_count = file_cursor_u64(&cursor);
    uint64_t value_count = file_cursor_u64(&cursor);
    if (cursor.failed) {
        return file_error_set(error, STATUS_ERR_MALFORMED, "GGUF: the header is cut off");
    }
    if (self->version != 2 && self->version != 3) {
        bool swapped = (self->version & 0xffff) == 0 && self->version != 0;
        return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                              "GGUF: version %" PRIu32 "%s; versions 2 and 3 are supported",
                              self->version, swapped ? " (a big-endian file?)" : "");
    }
    proto_status_t status = read_values(self, &cursor, value_count, error);
    if (status == STATUS_OK) {
        status = read_alignment(self, error);
    }
    if (status == STATUS_OK) {
        status = read_tensors(self, &cursor, tensor_count, tensors, error);
    }
    if (status == STATUS_OK) {
        status = place_tensors(self, file, cursor.at, tensors, error);
    }
    return status;
}

proto_status_t
file_gguf_init(file_gguf_t *self, file_view_t file, file_tensors_t *tensors, file_error_t error)
{
    *self = (file_gguf_t){0};
    proto_status_t status = read_file(self, file, tensors, error);
    if (status != STATUS_OK) {
        file_gguf_fini(self);
        file_tensors_fini(tensors);
    }
    return status;
}

void
file_gguf_fini(file_gguf_t *self)
{
    free(self->values);
    *self = (file_gguf_t){0};
}

const file_gguf_value_t *
file_gguf_find(const file_gguf_t *self, const char *key)
{
    if (self->value_count == 0) {
        return NULL;
    }
    file_gguf_value_t wanted = {.key = {(const uint8_t *)key, strlen(key)}};
    return bsearch(&wanted, self->values, self->value_count, sizeof wanted, compare_keys);
}

static proto_status_t
wrong_type(const char *key, const file_gguf_value_t *value, const char *wanted, file_error_t error)
{
    return file_error_set(error, STATUS_ERR_MALFORMED, "GGUF key '%s': is %s%s, must be %s", key,
                          value->is_array ? "an array of " : "", TYPE_NAMES[value->type], wanted);
}

proto_status_t
file_gguf_u64(const file_gguf_t *self, const char *key, uint64_t *out, file_error_t error)
{
    const file_gguf_value_t *value = file_gguf_find(self, key);
    if (value == NULL) {
        return STATUS_ERR_NOT_FOUND;
    }
    bool is_signed = value->type == FILE_GGUF_I8 || value->type == FILE_GGUF_I16 ||
                     value->type == FILE_GGUF_I32 || value->type == FILE_GGUF_I64;
    bool is_unsigned = value->type == FILE_GGUF_U8 || value->type == FILE_GGUF_U16 ||
                       value->type == FILE_GGUF_U32 || value->type == FILE_GGUF_U64;
    if (value->is_array || (!is_signed && !is_unsigned)) {
        return wrong_type(key, value, "a whole number", error);
    }
    uint64_t number = 0;
    for (uint64_t i = 0; i < value->value.size_bytes; i++) {
        number |= (uint64_t)value->value.bytes[i] << (8 * i);
    }
    if (is_signed && (value->value.bytes[value->value.size_bytes - 1] & 0x80) != 0) {
        return file_error_set(error, STATUS_ERR_MALFORMED, "GGUF key '%s': is negative", key);
    }
    *out = number;
    return STATUS_OK;
}

proto_status_t
file_gguf_f64(const file_gguf_t *self, const char *key, double *out, file_error_t error)
{
    const file_gguf_value_t *value = file_gguf_find(self, key);
    if (value == NULL) {
        return STATUS_ERR_NOT_FOUND;
    }
    double number = 0;
    if (!value->is_array && value->type == FILE_GGUF_F32) {
        float single;
        memcpy(&single, value->value.bytes, sizeof single);
        number = (double)single;
    } else if (!value->is_array && value->type == FILE_GGUF_F64) {
        memcpy(&number, value->value.bytes, sizeof number);
    } else {
        return wrong_type(key, value, "a floating-point number", error);
    }
    if (!isfinite(number)) {
        return file_error_set(error, STATUS_ERR_MALFORMED, "GGUF key '%s': is not finite", key);
    }
    *out = number;
    return STATUS_OK;
}

proto_status_t
file_gguf_bool(const file_gguf_t *self, const char *key, bool *out, file_error_t error)
{
    const file_gguf_value_t *value = file_gguf_find(self, key);
    if (value == NULL) {
        return STATUS_ERR_NOT_FOUND;
    }
    if (value->is_array || value->type != FILE_GGUF_BOOL) {
        return wrong_type(key, value, "a bool", error);
    }
    *out = value->value.bytes[0] != 0;
    return STATUS_OK;
}

proto_status_t
file_gguf_string(const file_gguf_t *self, const char *key, file_view_t *out, file_error_t error)
{
    const file_gguf_value_t *value = file_gguf_find(self, key);
    if (value == NULL) {
        return STATUS_ERR_NOT_FOUND;
    }
    if (value->is_array || value->type != FILE_GGUF_STRING) {
        return wrong_type(key, value, "a string", error);
    }
    file_cursor_t strings = file_gguf_strings(value);
    *out = file_gguf_next_string(&strings);
    return STATUS_OK;
}

proto_status_t
file_gguf_array(const file_gguf_t *self, const char *key, file_gguf_type_t type,
                const file_gguf_value_t **out, file_error_t error)
{
    const file_gguf_value_t *value = file_gguf_find(self, key);
    if (value == NULL) {
        return STATUS_ERR_NOT_FOUND;
    }
    if (!value->is_array || value->type != type) {
        file_printable_t wanted = file_printable(TYPE_NAMES[type], strlen(TYPE_NAMES[type]));
        return file_error_set(error, STATUS_ERR_MALFORMED,
                              "GGUF key '%s': is %s%s, must be an array of %s", key,
                              value->is_array ? "an array of " : "", TYPE_NAMES[value->type],
                              wanted.text);
    }
    *out = value;
    return STATUS_OK;
}

file_cursor_t
file_gguf_strings(const file_gguf_value_t *value)
{
    require(value->type == FILE_GGUF_STRING);
    const uint8_t *bytes = value->value.bytes;
    return (file_cursor_t){bytes, bytes + value->value.size_bytes, false};
}

file_view_t
file_gguf_next_string(file_cursor_t *strings)
{
    file_view_t view = take_string(strings, FILE_GGUF_STRING_SIZE_BYTES_MAX);
    require(!strings->failed);
    return view;
}
