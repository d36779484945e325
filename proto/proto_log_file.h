/* proto_log_file.h - the first page of a segment as bytes; private to proto/. */
#ifndef PROTO_LOG_FILE_H
#define PROTO_LOG_FILE_H

#include "proto_log.h"

void proto_log_header_encode(const proto_log_header_t *header,
                             uint8_t out[PROTO_LOG_HEADER_SIZE_BYTES]);

/* STATUS_ERR_MALFORMED or STATUS_ERR_VERSION; *out only on STATUS_OK, its text terminated. */
MUST_CHECK proto_status_t proto_log_header_decode(const uint8_t in[PROTO_LOG_HEADER_SIZE_BYTES],
                                                  proto_log_header_t *out, proto_error_t *error);

#endif
