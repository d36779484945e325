/* run_ledger.h - what the device's memory went to: a written sum of named, measured terms.
 *
 * A term is what the device's own count of allocated bytes grew by since the last note, so the
 * terms of a ledger always add up to what was allocated.  Pure; the device thread. */
#ifndef RUN_LEDGER_H
#define RUN_LEDGER_H

#include <stddef.h>
#include <stdint.h>

enum { RUN_LEDGER_TERM_COUNT_MAX = 16 };

typedef struct {
    const char *name; /* a literal */
    uint64_t size_bytes;
} run_ledger_term_t;

typedef struct {
    run_ledger_term_t terms[RUN_LEDGER_TERM_COUNT_MAX];
    uint32_t count;
    uint64_t begin_bytes; /* the device's count before the first term */
    uint64_t seen_bytes;  /* the device's count at the last note */
} run_ledger_t;

/* Starts a sum at the device's present count. */
void run_ledger_begin(run_ledger_t *self, uint64_t used_bytes);

/* What was allocated since the last note becomes, or joins, the term `name`. */
void run_ledger_note(run_ledger_t *self, const char *name, uint64_t used_bytes);

/* A term's bytes; 0 if there is none. */
uint64_t run_ledger_term(const run_ledger_t *self, const char *name);
uint64_t run_ledger_sum(const run_ledger_t *self);

/* Writes "N name + N name", leaving out the term `except` (may be NULL). */
void run_ledger_describe(const run_ledger_t *self, const char *except, char *out,
                         size_t out_size_bytes);

#endif
