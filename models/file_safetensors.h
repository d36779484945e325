/* file_safetensors.h - the structure of one .safetensors file, checked.  Internal to models/.
 *
 * The header is JSON, at most 100 MB and strict; every tensor's bytes must be exactly its shape,
 * and together they must cover the file without overlap or hole. */
#ifndef FILE_SAFETENSORS_H
#define FILE_SAFETENSORS_H

#include "file_support.h"
#include "file_tensors.h"

/* Adds the file's tensors to `tensors` (not sorted).  `name` is the file's, for error texts.  Their
 * names live in *header_p, which the caller owns (json_decref) and keeps as long as the table. */
MUST_CHECK proto_status_t file_safetensors_read(file_view_t file, const char *name, uint32_t shard,
                                                file_tensors_t *tensors, json_t **header_p,
                                                file_error_t error);

#endif
