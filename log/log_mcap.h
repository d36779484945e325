/* log_mcap.h - the records of an MCAP file, byte by byte; private to log/.
 *
 * Writes to a stream and keeps nothing.  One thread. */
#ifndef LOG_MCAP_H
#define LOG_MCAP_H

#include <stdint.h>
#include <stdio.h>

#include "proto_codec.h"

void log_mcap_begin(FILE *out);
void log_mcap_end(FILE *out);
/* A JSON schema; `id` from 1. */
void log_mcap_schema(FILE *out, uint16_t id, const char *name, proto_bytes_t text);
/* `schema` 0 = none. */
void log_mcap_channel(FILE *out, uint16_t id, uint16_t schema, const char *topic);
void log_mcap_message(FILE *out, uint16_t channel, uint32_t sequence, uint64_t log_time_ns,
                      proto_bytes_t json);

#endif
