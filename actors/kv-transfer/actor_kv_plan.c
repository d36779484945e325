#include "actor_kv_plan.h"

#include <string.h>

#include "proto_require.h"

typedef struct {
    const actor_kv_layout_t *const *sources;
    uint32_t source_count;
    const actor_kv_layout_t *destination;
    actor_kv_fragment_t *out;
    uint32_t capacity;
    uint32_t count;
} maker_t;

static bool
has_unit(const actor_kv_part_t *part, uint32_t unit)
{
    return unit >= part->begin && unit - part->begin < part->count;
}

static const actor_kv_part_t *
part_of(const maker_t *self, uint32_t source, uint32_t field, uint32_t part)
{
    return &self->sources[source]->fields[field].parts[part];
}

/* Which source gives a unit: of those that have it, the one at the destination's own place. */
static uint32_t
source_of(const maker_t *self, uint32_t field, uint32_t part, uint32_t unit)
{
    uint32_t holders[ACTOR_KV_RANK_COUNT_MAX];
    uint32_t count = 0;
    for (uint32_t s = 0; s < self->source_count; s++) {
        if (has_unit(part_of(self, s, field, part), unit)) {
            holders[count++] = s;
        }
    }
    if (count == 0) {
        return UINT32_MAX;
    }
    uint32_t rank = self->destination->rank;
    return holders[rank * count / self->destination->rank_count];
}

/* Up to which unit the answer of source_of() stays the same. */
static uint32_t
border_after(const maker_t *self, uint32_t field, uint32_t part, uint32_t unit)
{
    const actor_kv_part_t *own = &self->destination->fields[field].parts[part];
    uint32_t border = own->begin + own->count;
    for (uint32_t s = 0; s < self->source_count; s++) {
        const actor_kv_part_t *theirs = part_of(self, s, field, part);
        uint32_t end = theirs->begin + theirs->count;
        if (theirs->begin > unit && theirs->begin < border) {
            border = theirs->begin;
        }
        if (end > unit && end < border) {
            border = end;
        }
    }
    return border;
}

static uint64_t
offset_in_row(const actor_kv_field_t *field, uint32_t part, uint32_t unit)
{
    uint64_t offset = 0;
    for (uint32_t i = 0; i < part; i++) {
        offset += (uint64_t)field->parts[i].count * field->parts[i].unit_bytes;
    }
    return offset + (uint64_t)(unit - field->parts[part].begin) * field->parts[part].unit_bytes;
}

/* A fragment that goes on where the last one ended is one with it. */
static bool
join(maker_t *self, const actor_kv_fragment_t *next)
{
    if (self->count == 0) {
        return false;
    }
    actor_kv_fragment_t *last = &self->out[self->count - 1];
    if (last->field != next->field || last->source != next->source ||
        last->from_offset_bytes + last->bytes != next->from_offset_bytes ||
        last->to_offset_bytes + last->bytes != next->to_offset_bytes) {
        return false;
    }
    last->bytes += next->bytes;
    return true;
}

static proto_status_t
make_part(maker_t *self, uint32_t field, uint32_t part)
{
    const actor_kv_field_t *to = &self->destination->fields[field];
    const actor_kv_part_t *own = &to->parts[part];
    for (uint32_t unit = own->begin; unit < own->begin + own->count;) {
        uint32_t source = source_of(self, field, part, unit);
        if (source == UINT32_MAX) {
            return STATUS_ERR_INVALID;
        }
        const actor_kv_field_t *from = &self->sources[source]->fields[field];
        uint32_t end = border_after(self, field, part, unit);
        actor_kv_fragment_t next = {
            .field = field,
            .source = source,
            .rows = to->rows,
            .bytes = (end - unit) * own->unit_bytes,
            .from_offset_bytes = offset_in_row(from, part, unit),
            .from_stride_bytes = actor_kv_row_bytes(from),
            .to_offset_bytes = offset_in_row(to, part, unit),
            .to_stride_bytes = actor_kv_row_bytes(to),
        };
        unit = end;
        if (join(self, &next)) {
            continue;
        }
        if (self->count == self->capacity) {
            return STATUS_ERR_TOO_LARGE;
        }
        self->out[self->count++] = next;
    }
    return STATUS_OK;
}

/* Rows that lie behind each other on both sides are one. */
static void
flatten(actor_kv_fragment_t *fragment)
{
    if (fragment->from_stride_bytes == fragment->bytes &&
        fragment->to_stride_bytes == fragment->bytes) {
        uint64_t bytes = (uint64_t)fragment->rows * fragment->bytes;
        if (bytes <= UINT32_MAX) {
            fragment->bytes = (uint32_t)bytes;
            fragment->rows = 1;
            fragment->from_stride_bytes = bytes;
            fragment->to_stride_bytes = bytes;
        }
    }
}

proto_status_t
actor_kv_plan_make(const actor_kv_layout_t *const *sources, uint32_t source_count,
                   const actor_kv_layout_t *destination, actor_kv_fragment_t *out,
                   uint32_t capacity, uint32_t *count_p)
{
    require(source_count >= 1);
    require(source_count <= ACTOR_KV_RANK_COUNT_MAX);
    uint64_t fingerprint = actor_kv_layout_fingerprint(destination);
    for (uint32_t s = 0; s < source_count; s++) {
        if (actor_kv_layout_fingerprint(sources[s]) != fingerprint) {
            return STATUS_ERR_FINGERPRINT;
        }
    }
    maker_t maker = {.sources = sources,
                     .source_count = source_count,
                     .destination = destination,
                     .out = out,
                     .capacity = capacity};
    for (uint32_t f = 0; f < destination->field_count; f++) {
        uint32_t first = maker.count;
        for (uint32_t p = 0; p < destination->fields[f].part_count; p++) {
            proto_status_t status = make_part(&maker, f, p);
            if (status != STATUS_OK) {
                return status;
            }
        }
        for (uint32_t i = first; i < maker.count; i++) {
            flatten(&out[i]);
        }
    }
    *count_p = maker.count;
    return actor_kv_plan_check(destination, out, maker.count);
}

/* Fragments of one field are few (parts times ranks): pairs are compared. */
static bool
overlap(const actor_kv_fragment_t *a, const actor_kv_fragment_t *b, uint64_t row_bytes)
{
    uint64_t a_at = a->to_offset_bytes % row_bytes;
    uint64_t b_at = b->to_offset_bytes % row_bytes;
    return a->rows == b->rows && a_at < b_at + b->bytes && b_at < a_at + a->bytes;
}

proto_status_t
actor_kv_plan_check(const actor_kv_layout_t *destination, const actor_kv_fragment_t *fragments,
                    uint32_t count)
{
    uint32_t at = 0;
    for (uint32_t f = 0; f < destination->field_count; f++) {
        const actor_kv_field_t *field = &destination->fields[f];
        uint64_t page_bytes = actor_kv_page_bytes(field);
        uint64_t covered = 0;
        uint32_t first = at;
        for (; at < count && fragments[at].field == f; at++) {
            const actor_kv_fragment_t *one = &fragments[at];
            uint64_t last = one->to_offset_bytes + (one->rows - 1) * one->to_stride_bytes;
            if (last + one->bytes > page_bytes) {
                return STATUS_ERR_INVALID;
            }
            covered += (uint64_t)one->rows * one->bytes;
            for (uint32_t i = first; i < at; i++) {
                if (overlap(one, &fragments[i], actor_kv_row_bytes(field))) {
                    return STATUS_ERR_INVALID;
                }
            }
        }
        if (covered != page_bytes) {
            return STATUS_ERR_INVALID;
        }
    }
    return at == count ? STATUS_OK : STATUS_ERR_INVALID;
}

uint64_t
actor_kv_plan_page_bytes(const actor_kv_fragment_t *fragments, uint32_t count, uint32_t field,
                         uint32_t source)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (fragments[i].field == field && fragments[i].source == source) {
            bytes += (uint64_t)fragments[i].rows * fragments[i].bytes;
        }
    }
    return bytes;
}

void
actor_kv_fragment_copy(const actor_kv_fragment_t *fragment, const uint8_t *from_page,
                       uint8_t *to_page)
{
    const uint8_t *from = from_page + fragment->from_offset_bytes;
    uint8_t *to = to_page + fragment->to_offset_bytes;
    for (uint32_t row = 0; row < fragment->rows; row++) {
        memcpy(to, from, fragment->bytes);
        from += fragment->from_stride_bytes;
        to += fragment->to_stride_bytes;
    }
}
