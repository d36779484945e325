/* log_message.h - the message in a record: header and body, decoded.
 *
 * Owns a copy of the blob where the file's bytes are not aligned.  Content is hostile: it is
 * decoded and checked by proto/.  One thread. */
#ifndef LOG_MESSAGE_H
#define LOG_MESSAGE_H

#include "proto_log.h"

typedef struct {
    proto_header_t header;
    const proto_message_t *table; /* of header.kind; NULL if the number is not in the list */
    bool has_body;                /* false: it does not decode, `error` says why */
    proto_body_t body;            /* views into the record and into the decoder */
    proto_bytes_t body_bytes;     /* as recorded */
    proto_bytes_t blob_bytes;     /* as recorded; empty if there is none */
    const uint8_t *blob_read;     /* where the body's columns point into: blob_bytes or a copy */
    proto_error_t error;          /* why there is no body */
} log_message_t;

typedef struct {
    uint8_t *blob; /* 64-byte aligned */
    size_t blob_capacity_bytes;
} log_decoder_t; /* begin with zeros */

void log_decoder_fini(log_decoder_t *self);

/* Decodes IN, OUT and TIMER records (of a TIMER the header is made up: kind alone).  STATUS_OK also
 * if only the header decodes, see has_body.  STATUS_ERR_NOT_FOUND for records of other kinds,
 * STATUS_ERR_MALFORMED without a header, STATUS_ERR_NO_MEMORY.  *out lives as long as the record
 * and until the next call with this decoder. */
MUST_CHECK proto_status_t log_decoder_decode(log_decoder_t *self, const proto_log_record_t *record,
                                             log_message_t *out);

#endif
