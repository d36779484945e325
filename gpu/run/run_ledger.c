/* The memory sum. */
#include "run_ledger.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto_require.h"

void
run_ledger_begin(run_ledger_t *self, uint64_t used_bytes)
{
    *self = (run_ledger_t){.begin_bytes = used_bytes, .seen_bytes = used_bytes};
}

void
run_ledger_note(run_ledger_t *self, const char *name, uint64_t used_bytes)
{
    require(used_bytes >= self->seen_bytes);
    uint64_t size_bytes = used_bytes - self->seen_bytes;
    self->seen_bytes = used_bytes;
    for (uint32_t i = 0; i < self->count; i++) {
        if (strcmp(self->terms[i].name, name) == 0) {
            self->terms[i].size_bytes += size_bytes;
            return;
        }
    }
    require(self->count < RUN_LEDGER_TERM_COUNT_MAX);
    self->terms[self->count++] = (run_ledger_term_t){.name = name, .size_bytes = size_bytes};
}

uint64_t
run_ledger_term(const run_ledger_t *self, const char *name)
{
    for (uint32_t i = 0; i < self->count; i++) {
        if (strcmp(self->terms[i].name, name) == 0) {
            return self->terms[i].size_bytes;
        }
    }
    return 0;
}

uint64_t
run_ledger_sum(const run_ledger_t *self)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        sum += self->terms[i].size_bytes;
    }
    require(sum == self->seen_bytes - self->begin_bytes);
    return sum;
}

void
run_ledger_describe(const run_ledger_t *self, const char *except, char *out, size_t out_size_bytes)
{
    require(out_size_bytes > 0);
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < self->count; i++) {
        const run_ledger_term_t *term = &self->terms[i];
        if (except != NULL && strcmp(term->name, except) == 0) {
            continue;
        }
        int size = snprintf(out + used, out_size_bytes - used, "%s%" PRIu64 " %s",
                            used == 0 ? "" : " + ", term->size_bytes, term->name);
        require(size >= 0);
        require((size_t)size < out_size_bytes - used);
        used += (size_t)size;
    }
}
