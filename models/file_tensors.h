/* file_tensors.h - the table of stored tensors of one checkpoint, whatever its container.
 * Internal to models/.  It owns its array; names and data are lent from mappings or arenas. */
#ifndef FILE_TENSORS_H
#define FILE_TENSORS_H

#include "file_model.h"
#include "file_support.h"

enum {
    FILE_TENSOR_COUNT_MAX = 131072, /* 60 layers of 384 experts, each with three, are over half */
    FILE_TENSOR_RANK_MAX = 4,
};

typedef struct {
    file_view_t name;
    const char *element; /* its type as a safetensors file names it; NULL in a GGUF */
    bool is_known;       /* false: `dtype` is not one that can be run, only its place is known */
    file_dtype_t dtype;
    uint32_t rank;
    uint64_t shape[FILE_TENSOR_RANK_MAX]; /* outermost first, as Hugging Face writes it */
    const uint8_t *data;
    uint64_t size_bytes;
    uint64_t offset; /* inside its own file's data section, for range checks */
    uint32_t shard;  /* which file of the checkpoint */
    bool is_used;    /* it has a role */
} file_stored_t;

typedef struct {
    file_stored_t *items; /* [count], sorted by name after file_tensors_sort() */
    uint32_t count;
    uint32_t count_max;
} file_tensors_t;

MUST_CHECK proto_status_t file_tensors_init(file_tensors_t *self, uint64_t count_max,
                                            file_error_t error);
/* Makes room for `more` further tensors. */
MUST_CHECK proto_status_t file_tensors_grow(file_tensors_t *self, uint64_t more,
                                            file_error_t error);
void file_tensors_fini(file_tensors_t *self);

/* Checks that the ranges of the tensors [first, count) cover [0, data_size_bytes) of one data
 * section without overlap; a hole of less than `alignment` bytes is padding.  Changes the order. */
MUST_CHECK proto_status_t file_tensors_check_ranges(file_tensors_t *self, uint32_t first,
                                                    uint64_t data_size_bytes, uint64_t alignment,
                                                    file_error_t error);

/* Sorts by name; STATUS_ERR_MALFORMED if a name stands twice. */
MUST_CHECK proto_status_t file_tensors_sort(file_tensors_t *self, file_error_t error);

/* NULL if there is none. */
file_stored_t *file_tensors_find(const file_tensors_t *self, const char *name);

/* Bytes of `shape` in `dtype`, checked: the inner dimension must be whole blocks. */
MUST_CHECK proto_status_t file_tensors_size(const file_stored_t *stored, uint64_t *size_bytes,
                                            file_error_t error);

#endif
