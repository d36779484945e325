/* proto_log_file.h - what the files of the log share: the first page of a segment as bytes, the
 * place of a reader, the blocks of a sidecar while they grow; private to proto/.
 * One thread for each object. */
#ifndef PROTO_LOG_FILE_H
#define PROTO_LOG_FILE_H

#include "proto_log_index.h"

void proto_log_header_encode(const proto_log_header_t *header,
                             uint8_t out[PROTO_LOG_HEADER_SIZE_BYTES]);

/* STATUS_ERR_MALFORMED or STATUS_ERR_VERSION; *out only on STATUS_OK, its text terminated. */
MUST_CHECK proto_status_t proto_log_header_decode(const uint8_t in[PROTO_LOG_HEADER_SIZE_BYTES],
                                                  proto_log_header_t *out, proto_error_t *error);

/* STATUS_ERR_IO, with the path, what could not be done and errno's text in *error (may be NULL). */
MUST_CHECK proto_status_t proto_log_fail(proto_error_t *error, const char *path, const char *what);

/* Where a reader is, to come back to; only for the reader it came from. */
typedef struct {
    uint64_t offset;
    uint64_t last_sequence;
    bool last_is_drop;
} proto_log_mark_t;

void proto_log_reader_mark(const proto_log_reader_t *self, proto_log_mark_t *out);
void proto_log_reader_rewind(proto_log_reader_t *self, const proto_log_mark_t *mark);
/* Of what was read since the opening or the last seek; 0 = nothing numbered. */
uint64_t proto_log_reader_last_sequence(const proto_log_reader_t *self);

/* ---- proto_log_index_build.c ----------------------------------------------------------------- */

/* The block that is being filled. */
typedef struct {
    uint8_t segment_id[16];
    uint32_t block_index;
    proto_log_index_block_t block; /* record_count 0 = empty */
} proto_log_index_builder_t;

void proto_log_index_begin(proto_log_index_builder_t *self, const uint8_t segment_id[16],
                           uint8_t header_out[PROTO_LOG_INDEX_HEADER_SIZE_BYTES]);
/* Adds the record that lies at `offset`; true if the block is full: encode it before the next. */
bool proto_log_index_add(proto_log_index_builder_t *self, const proto_log_record_t *record,
                         uint64_t offset, uint64_t size_bytes);
/* The block as bytes; begins the next one.  There must be a record in it. */
void proto_log_index_encode(proto_log_index_builder_t *self,
                            uint8_t out[PROTO_LOG_INDEX_BLOCK_SIZE_BYTES]);
/* Reads block number `block_index` of the sidecar of `segment_id`. */
MUST_CHECK proto_status_t proto_log_index_decode(const uint8_t in[PROTO_LOG_INDEX_BLOCK_SIZE_BYTES],
                                                 const uint8_t segment_id[16], uint32_t block_index,
                                                 proto_log_index_block_t *out);
MUST_CHECK proto_status_t proto_log_index_header_decode(
    const uint8_t in[PROTO_LOG_INDEX_HEADER_SIZE_BYTES], uint8_t segment_id_out[16]);

/* ---- proto_log_sidecar.c --------------------------------------------------------------------- */

typedef struct {
    int fd; /* -1 = none */
    uint64_t size_bytes;
    proto_log_index_builder_t builder;
} proto_log_sidecar_t;

/* Begins the sidecar of the segment called `segment_name`; without it if that fails. */
void proto_log_sidecar_open(proto_log_sidecar_t *self, int directory_fd, const char *segment_name,
                            const uint8_t segment_id[16]);
/* Takes in whole records that are in the segment at `offset` now. */
void proto_log_sidecar_add(proto_log_sidecar_t *self, const uint8_t *data, size_t size_bytes,
                           uint64_t offset);
/* Writes the last block.  Does nothing if there is none. */
void proto_log_sidecar_close(proto_log_sidecar_t *self);

#endif
