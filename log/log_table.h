/* log_table.h - numbers (ids of requests, hashes) to small indices, in order of first appearance.
 *
 * Grows by doubling up to a limit; 24 bytes an entry at most.  One thread. */
#ifndef LOG_TABLE_H
#define LOG_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LOG_TABLE_LEN_MAX = 1 << 22, LOG_TABLE_NONE = -1 };

typedef struct {
    uint64_t *keys;   /* by index */
    uint32_t *places; /* of the hash: index + 1; 0 = free */
    uint32_t count;
    uint32_t place_count; /* a power of two */
} log_table_t;            /* begin with zeros */

void log_table_fini(log_table_t *self);

/* The index of `key`; LOG_TABLE_NONE if it is not there. */
int32_t log_table_find(const log_table_t *self, uint64_t key);

/* The same, and adds it if it is not there.  LOG_TABLE_NONE at the limit or without memory. */
int32_t log_table_add(log_table_t *self, uint64_t key);

/* Mixes a number, so that near numbers lie far apart. */
uint64_t log_table_mix(uint64_t value);

#endif
