/* cache_plan.h - how the KV cache is laid out: groups, fields, planes, packing.
 *
 * A group is what the scheduler plans with: blocks of `granularity` raw tokens with one retention.
 * A field is one array of a layer ("k", "v"), cut into pages, one page for each block of its group.
 * A plane is a run of memory with one slice for each parent block; fields of different groups may
 * share a plane, because a parent block belongs to one group at a time.  Block 0 is the null block.
 *
 * Pure arithmetic: no device, no memory of the cache.  Any thread; a plan does not change after
 * cache_plan_bind(). */
#ifndef CACHE_PLAN_H
#define CACHE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_status.h"

typedef struct cache_plan cache_plan_t; /* opaque */

enum {
    CACHE_GROUP_COUNT_MAX = 16,
    CACHE_FIELD_COUNT_MAX = 8192,
    CACHE_PLANE_COUNT_MAX = 8192,
    CACHE_FIELD_ALIGN = 64,         /* bytes: pages and planes start at multiples */
    CACHE_GRANULARITY_DEFAULT = 64, /* raw tokens of a block */
};

/* The numbers of EXECUTOR_INFO.group_kinds. */
typedef enum {
    CACHE_KIND_FULL = 0,    /* keeps every token */
    CACHE_KIND_SLIDING = 1, /* keeps the last `window` tokens */
    CACHE_KIND_STATE = 2,   /* one checkpoint for each block */
} cache_kind_t;

typedef enum {
    CACHE_DTYPE_F32,
    CACHE_DTYPE_F16,
} cache_dtype_t;

typedef enum {
    CACHE_FIELD_K,
    CACHE_FIELD_V,
    CACHE_FIELD_CONV,   /* the convolution's window: [taps - 1][1][channels], float32 */
    CACHE_FIELD_STATE,  /* the recurrent state: [value heads][key dim][value dim], float32 */
    CACHE_FIELD_LATENT, /* latent attention: [tokens][1][latent and rotated part] */
} cache_field_name_t;

typedef struct {
    const char *id; /* "full_attention"; lent, must outlive the plan */
    cache_kind_t kind;
    uint32_t granularity; /* raw tokens of a block */
    uint32_t window;      /* CACHE_KIND_SLIDING, else 0 */
    uint32_t packing;     /* blocks of the group in one parent block, at least 1 */
} cache_group_t;

/* One page of it has the shape [rows][heads][head_dim]. */
typedef struct {
    uint32_t layer;
    cache_field_name_t name;
    uint32_t group; /* index */
    uint32_t plane; /* index; fields of one group and plane lie behind each other */
    uint32_t rows;  /* of a page: tokens */
    uint32_t heads;
    uint32_t head_dim;
    cache_dtype_t dtype;
} cache_field_t;

typedef struct {
    const cache_group_t *groups;
    uint32_t group_count;
    const cache_field_t *fields;
    uint32_t field_count;
    uint32_t prefix_granularity; /* raw tokens of an identity page; every granularity divides it */
} cache_plan_options_t;

/* Where the pages of a field lie in the arena. */
typedef struct {
    size_t page0_offset_bytes; /* of page 0 */
    size_t stride_bytes;       /* from page to page */
    size_t page_bytes;         /* of one page; the rest of the stride belongs to other fields */
} cache_place_t;

/* Solves the layout; page counts are still open.  STATUS_ERR_INVALID if granularities do not
 * divide, an index is out of range, or no plane width suits its groups' packings;
 * STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t cache_plan_new(const cache_plan_options_t *options, cache_plan_t **out_p);
void cache_plan_destroy(cache_plan_t **self_p);

/* Fixes the number of parent blocks, the null parent not counted: at least 1.
 * STATUS_ERR_TOO_LARGE if the arena's size does not fit a size_t or ids a 22-bit count. */
MUST_CHECK proto_status_t cache_plan_bind(cache_plan_t *self, uint32_t parent_count);

/* Bytes of one parent block over all planes. */
size_t cache_plan_parent_bytes(const cache_plan_t *self);
/* Bytes of the whole arena, the null parent included; 0 before bind. */
size_t cache_plan_arena_bytes(const cache_plan_t *self);
/* As bound, the null parent not counted; 0 before bind. */
uint32_t cache_plan_parent_count(const cache_plan_t *self);
uint32_t cache_plan_prefix_granularity(const cache_plan_t *self);

uint32_t cache_plan_group_count(const cache_plan_t *self);
const cache_group_t *cache_plan_group(const cache_plan_t *self, uint32_t group);
/* Pages of a group, the null page included: ids are below it. */
uint32_t cache_plan_page_count(const cache_plan_t *self, uint32_t group);

uint32_t cache_plan_field_count(const cache_plan_t *self);
const cache_field_t *cache_plan_field(const cache_plan_t *self, uint32_t field);
/* The index of a layer's field.  STATUS_ERR_NOT_FOUND. */
MUST_CHECK proto_status_t cache_plan_find(const cache_plan_t *self, uint32_t layer,
                                          cache_field_name_t name, uint32_t *field_p);
/* Only after bind. */
cache_place_t cache_plan_place(const cache_plan_t *self, uint32_t field);

size_t cache_dtype_size_bytes(cache_dtype_t dtype);

/* True if both have the same groups, fields, planes and strides; page counts may differ. */
bool cache_plan_same_geometry(const cache_plan_t *a, const cache_plan_t *b);

/* Walks the plan and aborts if two pages of one parent overlap or leave their plane. */
void cache_plan_check(const cache_plan_t *self);

#endif
