/* config_value.h - one value as text, held against its key: type, bounds, form. */
#ifndef CONFIG_VALUE_H
#define CONFIG_VALUE_H

#include "config_schema.h"
#include "proto_status.h"

enum { CONFIG_MESSAGE_SIZE_BYTES = 320, CONFIG_NUMBERS_MAX = 128 };

/* Reads `text` as a value of `key`: flags and numbers into *number, sizes in bytes; texts, choices,
 * endpoints and lists ("1,2,4") stay as they are.  STATUS_ERR_INVALID: `message` says what it
 * takes, to stand behind "KEY is 'TEXT'; ". */
MUST_CHECK proto_status_t config_value_parse(const config_key_t *key, const char *text,
                                             uint64_t *number,
                                             char message[CONFIG_MESSAGE_SIZE_BYTES]);

/* "4G", "512M", "64K" or bytes.  STATUS_ERR_INVALID otherwise. */
MUST_CHECK proto_status_t config_size_parse(const char *text, uint64_t *size_bytes);

/* A size as short as it can be read back. */
void config_size_print(uint64_t size_bytes, char out[24]);

/* Splits "tcp://HOST:PORT".  False if it is none: no host, or a port that is not 1 to 65535. */
bool config_endpoint_tcp(const char *text, char host[256], uint32_t *port);

/* True for 127.x.y.z, localhost and ::1. */
bool config_host_is_loopback(const char *host);

#endif
