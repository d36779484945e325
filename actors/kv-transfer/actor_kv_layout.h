/* actor_kv_layout.h - the layout of one rank's cache, as a peer has to know it to copy pages.
 *
 * A field is one array of a layer.  A page of it has `rows` rows; a row is up to three parts behind
 * each other (keys alone are one; the window of a convolution is queries, keys, values), and of
 * each part the rank has an interval of units [begin, begin + count) of `extent` units in all.  A
 * part that every rank has whole is replicated.  Offsets count from the arena's beginning: no
 * address is in here.
 *
 * Pure data: no device, socket or clock; nothing is owned.  Any thread. */
#ifndef ACTOR_KV_LAYOUT_H
#define ACTOR_KV_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "proto_codec.h"
#include "proto_status.h"

enum {
    ACTOR_KV_GROUP_COUNT_MAX = 16,
    ACTOR_KV_FIELD_COUNT_MAX = 1024, /* of one arena */
    ACTOR_KV_PART_COUNT_MAX = 3,
    ACTOR_KV_LAYER_COUNT_MAX = 512,
    ACTOR_KV_RANK_COUNT_MAX = 8,
};

/* The numbers of EXECUTOR_INFO.group_kinds. */
typedef enum {
    ACTOR_KV_KIND_FULL = 0,
    ACTOR_KV_KIND_SLIDING = 1,
    ACTOR_KV_KIND_STATE = 2,
} actor_kv_kind_t;

typedef struct {
    uint32_t extent;     /* units over all ranks */
    uint32_t begin;      /* the first one here */
    uint32_t count;      /* how many are here, at least 1 */
    uint32_t unit_bytes; /* of one unit in one row */
} actor_kv_part_t;

typedef struct {
    uint32_t layer;
    uint32_t name;  /* what it holds; the same number on both sides */
    uint32_t dtype; /* likewise */
    uint32_t group;
    uint32_t rows; /* of a page */
    uint32_t part_count;
    actor_kv_part_t parts[ACTOR_KV_PART_COUNT_MAX];
    uint64_t page0_offset_bytes; /* of page 0, from the arena's beginning */
    uint64_t stride_bytes;       /* from page to page */
} actor_kv_field_t;

typedef struct {
    uint32_t kind;        /* actor_kv_kind_t */
    uint32_t granularity; /* raw tokens of a block */
    uint32_t window;      /* of a sliding group, else 0 */
    uint32_t page_count;  /* block ids are below it; block 0 is nobody's */
} actor_kv_group_t;

typedef struct {
    uint64_t arena_bytes;
    uint32_t rank;
    uint32_t rank_count;
    uint32_t layer_count; /* steps of readiness: field.layer is below it */
    uint32_t group_count;
    uint32_t field_count;
    actor_kv_group_t groups[ACTOR_KV_GROUP_COUNT_MAX];
    const actor_kv_field_t *fields; /* lent; by ascending layer */
} actor_kv_layout_t;

/* Bytes of one row, and of one page, of a field. */
uint64_t actor_kv_row_bytes(const actor_kv_field_t *field);
uint64_t actor_kv_page_bytes(const actor_kv_field_t *field);

/* Whether every number is in range and every page lies inside the arena; the layout may come from a
 * hostile peer.  STATUS_ERR_INVALID with a sentence in *error (may be NULL). */
MUST_CHECK proto_status_t actor_kv_layout_check(const actor_kv_layout_t *self,
                                                proto_error_t *error);

/* Reads a registration of any content into `fields` (ACTOR_KV_FIELD_COUNT_MAX of them) and *out,
 * checked.  STATUS_ERR_INVALID with a sentence in *error (may be NULL). */
MUST_CHECK proto_status_t actor_kv_layout_read(const proto_kv_arena_t *arena,
                                               actor_kv_field_t *fields, actor_kv_layout_t *out,
                                               proto_error_t *error);

/* Room for the columns of a registration. */
typedef struct {
    uint32_t kinds[ACTOR_KV_GROUP_COUNT_MAX];
    uint32_t granularities[ACTOR_KV_GROUP_COUNT_MAX];
    uint32_t windows[ACTOR_KV_GROUP_COUNT_MAX];
    uint32_t pages[ACTOR_KV_GROUP_COUNT_MAX];
    uint64_t offsets[ACTOR_KV_FIELD_COUNT_MAX];
    uint64_t strides[ACTOR_KV_FIELD_COUNT_MAX];
    uint32_t layers[ACTOR_KV_FIELD_COUNT_MAX];
    uint32_t rows[ACTOR_KV_FIELD_COUNT_MAX];
    uint32_t extents[ACTOR_KV_FIELD_COUNT_MAX * ACTOR_KV_PART_COUNT_MAX];
    uint32_t begins[ACTOR_KV_FIELD_COUNT_MAX * ACTOR_KV_PART_COUNT_MAX];
    uint32_t counts[ACTOR_KV_FIELD_COUNT_MAX * ACTOR_KV_PART_COUNT_MAX];
    uint32_t units[ACTOR_KV_FIELD_COUNT_MAX * ACTOR_KV_PART_COUNT_MAX];
    uint8_t names[ACTOR_KV_FIELD_COUNT_MAX];
    uint8_t dtypes[ACTOR_KV_FIELD_COUNT_MAX];
    uint8_t groups[ACTOR_KV_FIELD_COUNT_MAX];
    uint8_t part_counts[ACTOR_KV_FIELD_COUNT_MAX];
} actor_kv_layout_columns_t;

/* The other way: fills all of *out that describes the layout, with views of `columns`. */
void actor_kv_layout_write(const actor_kv_layout_t *self, actor_kv_layout_columns_t *columns,
                           proto_kv_arena_t *out);

/* What two caches must share so that pages of one can be those of the other, whatever their ranks,
 * sizes and offsets: groups, fields, rows, extents, units.  Never 0. */
uint64_t actor_kv_layout_fingerprint(const actor_kv_layout_t *self);

#endif
