/* run_tables.h - the executor's copy of every slot's block tables, patched by each step.
 *
 * Host memory, the device thread.  Scheduler's vocabulary only: groups, columns, block ids. */
#ifndef RUN_TABLES_H
#define RUN_TABLES_H

#include <stdint.h>

#include "cache_plan.h"
#include "proto_status.h"

typedef struct run_tables run_tables_t; /* opaque */

/* Tables of slots 1..slot_count with columns for sequences of token_count_max tokens.
 * STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t run_tables_new(const cache_plan_t *plan, uint32_t slot_count,
                                         uint32_t token_count_max, run_tables_t **out_p);
void run_tables_destroy(run_tables_t **self_p);

/* Takes the block counts of a plan with the same groups; for a rebind, between two steps. */
void run_tables_bind(run_tables_t *self, const cache_plan_t *plan);

/* Columns of a group's table. */
uint32_t run_tables_columns_max(const run_tables_t *self, uint32_t group);

/* Empties one slot's tables, or all. */
void run_tables_clear(run_tables_t *self, uint32_t slot);
void run_tables_clear_all(run_tables_t *self);

/* Writes blocks into columns first_column ...  STATUS_ERR_INVALID: slot, group, column or block out
 * of range; nothing is written then. */
MUST_CHECK proto_status_t run_tables_patch(run_tables_t *self, uint32_t slot, uint32_t group,
                                           uint32_t first_column, const uint32_t *blocks,
                                           uint32_t count);

/* The block in a column; 0 = none. */
int32_t run_tables_get(const run_tables_t *self, uint32_t slot, uint32_t group, uint32_t column);

/* The widest filled column count of some slots. */
uint32_t run_tables_columns(const run_tables_t *self, uint32_t group, const int32_t *slots,
                            uint32_t count);

/* Copies the rows of some slots, `columns` each, one after the other. */
void run_tables_pack(const run_tables_t *self, uint32_t group, const int32_t *slots, uint32_t count,
                     uint32_t columns, int32_t *out);

#endif
