/* proto_log_reader_private.h - the state of a reader, for proto_log_reader.c (one record after the
 * other) and proto_log_resync.c (over damage).  One thread. */
#ifndef PROTO_LOG_READER_PRIVATE_H
#define PROTO_LOG_READER_PRIVATE_H

#include "proto_log_file.h"

enum {
    PROTO_LOG_PREFIX_SIZE_BYTES = 8, /* size and check of a record */
    PROTO_LOG_ALIGN_BYTES = 8,       /* a record begins at a multiple of it */
    PROTO_LOG_WHY_SIZE_BYTES = 64,
};

struct proto_log_reader {
    int fd;
    proto_log_header_t header;
    uint64_t file_size_bytes;
    uint64_t offset;        /* of the next record */
    uint64_t last_sequence; /* of the last numbered record; 0 = none yet */
    bool last_is_drop;      /* it was a DROP: the next may have the same number */
    uint8_t *window;        /* bytes [window_offset, window_offset + window_bytes) of the file */
    uint64_t window_offset;
    size_t window_bytes;
    size_t window_capacity_bytes;
    char why[PROTO_LOG_WHY_SIZE_BYTES];
    bool skip;
    uint64_t made_lost; /* content of a DROP record that is made here */
    char made_why[2 * PROTO_LOG_WHY_SIZE_BYTES];
};

/* Asks for the file's size again; false if it cannot be had. */
bool proto_log_reader_refresh_size(proto_log_reader_t *self);

/* What the window holds from the next record on; may be empty. */
proto_bytes_t proto_log_reader_seen(const proto_log_reader_t *self);

/* Moves the window to the next record, with at least `size_bytes` of room (the caller compared with
 * the file's size); false without memory. */
MUST_CHECK bool proto_log_reader_load(proto_log_reader_t *self, size_t size_bytes);

/* Decodes the record at the offset, with the window moved and widened as needed; moves nothing
 * else.  Status as of proto_log_reader_next(). */
MUST_CHECK proto_status_t proto_log_reader_decode_here(proto_log_reader_t *self,
                                                       proto_log_record_t *out, size_t *size_bytes);

/* Whether a record with this number may come now: numbers rise; 0 is not judged. */
bool proto_log_reader_order_holds(const proto_log_reader_t *self, uint64_t sequence);

/* In skip mode, after damage: gives the DROP record that tells of it and stands behind it. */
MUST_CHECK proto_status_t proto_log_reader_step_over(proto_log_reader_t *self,
                                                     proto_log_record_t *out);

#endif
