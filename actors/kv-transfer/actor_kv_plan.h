/* actor_kv_plan.h - which bytes of which source rank go where, when prefill and decode have
 * different tensor-parallel degrees.
 *
 * For each field of the destination rank, each unit of each part comes from exactly one source
 * rank: of those that have it, the one that the destination's own rank falls to, so that replicated
 * fields spread over the sources.  Neighbouring units of one source are one fragment; a page that
 * comes whole from one source, in the same form, is one run of bytes.
 *
 * Pure functions of layouts; nothing is owned.  Any thread. */
#ifndef ACTOR_KV_PLAN_H
#define ACTOR_KV_PLAN_H

#include "actor_kv_layout.h"

/* Rows of one field's page; offsets are from the beginning of the page. */
typedef struct {
    uint32_t field;  /* of both layouts */
    uint32_t source; /* rank */
    uint32_t rows;
    uint32_t bytes; /* of one row */
    uint64_t from_offset_bytes;
    uint64_t from_stride_bytes; /* from row to row */
    uint64_t to_offset_bytes;
    uint64_t to_stride_bytes;
} actor_kv_fragment_t;

enum {
    /* Every part of every field cut at every rank's border. */
    ACTOR_KV_FRAGMENT_COUNT_MAX =
        ACTOR_KV_FIELD_COUNT_MAX * ACTOR_KV_PART_COUNT_MAX * ACTOR_KV_RANK_COUNT_MAX,
};

/* What the destination rank gets of one source rank; views of the caller's memory. */
typedef struct {
    const actor_kv_fragment_t *fragments; /* by ascending field */
    uint32_t count;
} actor_kv_plan_t;

/* `sources`: the layouts of all source ranks, in order.  Writes at most `capacity` fragments, by
 * ascending field.  STATUS_ERR_FINGERPRINT: the caches are not of one kind; STATUS_ERR_INVALID: a
 * part of the destination that no source has; STATUS_ERR_TOO_LARGE: more than `capacity`.  Checked
 * layouts only (actor_kv_layout_check). */
MUST_CHECK proto_status_t actor_kv_plan_make(const actor_kv_layout_t *const *sources,
                                             uint32_t source_count,
                                             const actor_kv_layout_t *destination,
                                             actor_kv_fragment_t *out, uint32_t capacity,
                                             uint32_t *count_p);

/* Whether the fragments of all sources fill every byte of the destination's pages exactly once. */
MUST_CHECK proto_status_t actor_kv_plan_check(const actor_kv_layout_t *destination,
                                              const actor_kv_fragment_t *fragments, uint32_t count);

/* Bytes that one page's fragments of `field` from `source` move. */
uint64_t actor_kv_plan_page_bytes(const actor_kv_fragment_t *fragments, uint32_t count,
                                  uint32_t field, uint32_t source);

/* Copies what one fragment moves, between the beginnings of two pages. */
void actor_kv_fragment_copy(const actor_kv_fragment_t *fragment, const uint8_t *from_page,
                            uint8_t *to_page);

#endif
