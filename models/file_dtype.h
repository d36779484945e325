/* file_dtype.h - the element types of stored tensors as one table, and the containers' own numbers
 * for them.  Internal to models/; the public half is in file_model.h. */
#ifndef FILE_DTYPE_H
#define FILE_DTYPE_H

#include "file_model.h"

/* The type that a GGUF file calls `number`; false if it cannot be run. */
bool file_dtype_from_gguf(uint32_t number, file_dtype_t *out);

/* A GGUF type's name for an error text, also for types that cannot be run. */
const char *file_dtype_gguf_name(uint32_t number);

/* The types that can be run, separated by ", ". */
const char *file_dtype_list(void);

#endif
