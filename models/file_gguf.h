/* file_gguf.h - the structure of a GGUF file (versions 2 and 3): keys and tensors, checked.
 * Internal to models/.
 *
 * It owns the key table; values and tensor data are lent from the mapping, which the caller keeps.
 * Every length is compared with the bytes that are left before it is used. */
#ifndef FILE_GGUF_H
#define FILE_GGUF_H

#include "file_support.h"
#include "file_tensors.h"

enum {
    FILE_GGUF_KEY_COUNT_MAX = 65536,
    FILE_GGUF_KEY_SIZE_BYTES_MAX = 1024,
    FILE_GGUF_STRING_SIZE_BYTES_MAX = 1 << 24,
    FILE_GGUF_ARRAY_COUNT_MAX = 1 << 24,
    FILE_GGUF_NAME_SIZE_BYTES_MAX = 255,
};

/* Value types, as the format numbers them. */
typedef enum {
    FILE_GGUF_U8 = 0,
    FILE_GGUF_I8 = 1,
    FILE_GGUF_U16 = 2,
    FILE_GGUF_I16 = 3,
    FILE_GGUF_U32 = 4,
    FILE_GGUF_I32 = 5,
    FILE_GGUF_F32 = 6,
    FILE_GGUF_BOOL = 7,
    FILE_GGUF_STRING = 8,
    FILE_GGUF_ARRAY = 9,
    FILE_GGUF_U64 = 10,
    FILE_GGUF_I64 = 11,
    FILE_GGUF_F64 = 12,
    FILE_GGUF_TYPE_COUNT = 13,
} file_gguf_type_t;

typedef struct {
    file_view_t key;
    file_gguf_type_t type; /* of the value, or of an array's elements */
    bool is_array;
    uint64_t count;    /* elements; 1 if no array */
    file_view_t value; /* the elements as stored; strings with their lengths */
} file_gguf_value_t;

typedef struct {
    file_gguf_value_t *values; /* [value_count], sorted by key */
    uint32_t value_count;
    uint32_t version;
    uint64_t alignment;
} file_gguf_t;

/* Reads keys and tensor table of the mapped bytes; the tensors are added to `tensors` (empty
 * before), shapes turned to outermost first, and sorted by name. */
MUST_CHECK proto_status_t file_gguf_init(file_gguf_t *self, file_view_t file,
                                         file_tensors_t *tensors, file_error_t error);
void file_gguf_fini(file_gguf_t *self);

/* NULL if the key is missing. */
const file_gguf_value_t *file_gguf_find(const file_gguf_t *self, const char *key);

/* Typed reads.  STATUS_ERR_NOT_FOUND without a text if the key is missing, STATUS_ERR_MALFORMED if
 * it has another type or a value outside the result's range. */
MUST_CHECK proto_status_t file_gguf_u64(const file_gguf_t *self, const char *key, uint64_t *out,
                                        file_error_t error);
MUST_CHECK proto_status_t file_gguf_f64(const file_gguf_t *self, const char *key, double *out,
                                        file_error_t error);
MUST_CHECK proto_status_t file_gguf_bool(const file_gguf_t *self, const char *key, bool *out,
                                         file_error_t error);
MUST_CHECK proto_status_t file_gguf_string(const file_gguf_t *self, const char *key,
                                           file_view_t *out, file_error_t error);
/* An array whose elements have exactly this type. */
MUST_CHECK proto_status_t file_gguf_array(const file_gguf_t *self, const char *key,
                                          file_gguf_type_t type, const file_gguf_value_t **out,
                                          file_error_t error);

/* Walks the strings of an array: a cursor over value->value, checked when the file was read. */
file_cursor_t file_gguf_strings(const file_gguf_value_t *value);
file_view_t file_gguf_next_string(file_cursor_t *strings);

#endif
