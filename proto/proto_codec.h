/* proto_codec.h - the three parts of a message and their codec.
 *
 * Parts: header (decodable alone), body, and a blob for the columns.  Decoding is a cursor over
 * bytes from a hostile peer: it allocates nothing, and the decoded structs are views that live as
 * long as the parts do.  Any thread; no state is shared. */
#ifndef PROTO_CODEC_H
#define PROTO_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_ids.h"
#include "proto_messages.h"
#include "proto_status.h"

typedef enum {
    PROTO_KIND_NONE = 0,
#define PROTO_KIND_ENUM(NAME, name, number, scope, form, route, text) PROTO_KIND_##NAME = (number),
    PROTO_MESSAGE_LIST(PROTO_KIND_ENUM)
#undef PROTO_KIND_ENUM
} proto_kind_t;

enum {
    PROTO_COLUMN_ALIGN = 64,                /* bytes; offsets of columns within the blob */
    PROTO_HEADER_SIZE_MAX = 128,            /* bytes of an encoded header */
    PROTO_BODY_SIZE_MAX = 4 * 1024 * 1024,  /* bytes of an encoded body */
    PROTO_BLOB_SIZE_MAX = 64 * 1024 * 1024, /* bytes of a blob */
    PROTO_PART_COUNT_MAX = 4,               /* routing id, header, body, blob */
};

/* Bytes that somebody else owns. */
typedef struct {
    const uint8_t *data; /* NULL when size_bytes is 0 */
    size_t size_bytes;
} proto_bytes_t;

/* Text that somebody else owns; valid UTF-8, not zero-terminated. */
typedef struct {
    const char *data;
    uint32_t size_bytes;
} proto_text_t;

/* Columns: views into a blob (decoded) or into the caller's arrays (to encode). */
/* clang-format off */
typedef struct { const uint8_t *data; uint32_t count; } proto_column_u8_t;
typedef struct { const uint32_t *data; uint32_t count; } proto_column_u32_t;
typedef struct { const int32_t *data; uint32_t count; } proto_column_i32_t;
typedef struct { const uint64_t *data; uint32_t count; } proto_column_u64_t;
typedef struct { const float *data; uint32_t count; } proto_column_f32_t;
/* clang-format on */

/* One struct for each message: proto_plan_t with the fields of PROTO_FIELDS_plan, and so on. */
#define PROTO_TYPE_U32 uint32_t
#define PROTO_TYPE_U64 uint64_t
#define PROTO_TYPE_I64 int64_t
#define PROTO_TYPE_F64 double
#define PROTO_TYPE_BOOL bool
#define PROTO_TYPE_STR proto_text_t
#define PROTO_TYPE_BIN proto_bytes_t
#define PROTO_TYPE_COL_U8 proto_column_u8_t
#define PROTO_TYPE_COL_U32 proto_column_u32_t
#define PROTO_TYPE_COL_I32 proto_column_i32_t
#define PROTO_TYPE_COL_U64 proto_column_u64_t
#define PROTO_TYPE_COL_F32 proto_column_f32_t
#define PROTO_STRUCT_FIELD(name, type, limit, privacy, text) PROTO_TYPE_##type name;
#define PROTO_STRUCT(NAME, name, number, scope, form, route, text)                                 \
    typedef struct {                                                                               \
        PROTO_FIELDS_##name(PROTO_STRUCT_FIELD)                                                    \
    } proto_##name##_t;
PROTO_MESSAGE_LIST(PROTO_STRUCT)

/* Any body. */
typedef union {
#define PROTO_UNION(NAME, name, number, scope, form, route, text) proto_##name##_t name;
    PROTO_MESSAGE_LIST(PROTO_UNION)
#undef PROTO_UNION
} proto_body_t;

/* Decodable alone, whatever became of the body. */
typedef struct {
    uint32_t version;  /* schema version of the sender */
    proto_kind_t kind; /* as sent: may be a number that this build does not know */
    uint64_t epoch;    /* incarnation of the sender */
    uint64_t sequence; /* per link and direction, from 1; 0 = not counted (handshake) */
    uint64_t request;  /* the request concerned; 0 = none */
    uint64_t cause;    /* sequence of the input that made the sender send this; 0 = none */
} proto_header_t;

/* The upper-case name of the list; "UNKNOWN" if the number is not in it. */
const char *proto_kind_name(proto_kind_t kind);
/* True for numbers in the list. */
bool proto_kind_known(proto_kind_t kind);
/* True for messages that may arrive from another actor. */
bool proto_kind_is_wire(proto_kind_t kind);

/* Writes a header into out[PROTO_HEADER_SIZE_MAX]; returns its size.  Cannot fail. */
size_t proto_header_encode(const proto_header_t *header, uint8_t *out);

/* STATUS_ERR_MALFORMED if the bytes are no header; unknown kinds are not an error here.  Unknown
 * trailing fields are skipped. */
MUST_CHECK proto_status_t proto_header_decode(proto_bytes_t bytes, proto_header_t *out);

/* How large the encoded body and blob can get; upper bounds, exact for the blob. */
void proto_body_bound(proto_kind_t kind, const proto_body_t *body, size_t *body_size_bytes,
                      size_t *blob_size_bytes);

/* Encodes `body` into caller memory of at least proto_body_bound() bytes, blob at 64-byte aligned
 * offsets with zeroed gaps; *blob_size_bytes is 0 when the message has no columns or all are
 * empty.  STATUS_ERR_TOO_LARGE if a capacity is too small; STATUS_ERR_INVALID if a value is beyond
 * its limit in the list (a sender's bug, never sent).  NULL blob_out: columns are not copied. */
MUST_CHECK proto_status_t proto_body_encode(proto_kind_t kind, const proto_body_t *body,
                                            uint8_t *body_out, size_t body_capacity_bytes,
                                            size_t *body_size_bytes, uint8_t *blob_out,
                                            size_t blob_capacity_bytes, size_t *blob_size_bytes);

/* What was wrong with bytes that did not decode; for the log and for NAK. */
typedef struct {
    char detail[160]; /* zero-terminated, names the field and the values */
} proto_error_t;

/* Checks `body` with the bounded validator, then decodes it.  The blob must be 64-byte aligned in
 * memory, or a copy is needed first (proto_blob_is_aligned).  Every field is range-checked, every
 * column lies inside the blob and overlaps no other; *out is written only on STATUS_OK; *error
 * (may be NULL) only on failure. */
MUST_CHECK proto_status_t proto_body_decode(proto_kind_t kind, proto_bytes_t body,
                                            proto_bytes_t blob, proto_body_t *out,
                                            proto_error_t *error);

/* Columns are read in place: true if the address allows it (8 bytes are enough for the types). */
bool proto_blob_is_aligned(proto_bytes_t blob);

/* The validator alone: well-formed msgpack, one value and nothing after it, depth <= 16, at most
 * 64 Ki elements, declared counts <= remaining bytes, UTF-8 text, no ext types, no 0xc1, no
 * duplicate keys. */
MUST_CHECK proto_status_t proto_validate(proto_bytes_t bytes, proto_error_t *error);

/* JSON view of a message, one line, for people and tools.  PRIVATE fields are shown as their size
 * unless show_private; columns longer than column_len_max entries are cut with their count.
 * Returns the length that was needed (as snprintf does). */
size_t proto_body_to_json(proto_kind_t kind, const proto_body_t *body, bool show_private,
                          uint32_t column_len_max, char *out, size_t capacity_bytes);

/* Field tables, for generators, diffs and redaction. */
typedef enum {
    PROTO_FIELD_U32,
    PROTO_FIELD_U64,
    PROTO_FIELD_I64,
    PROTO_FIELD_F64,
    PROTO_FIELD_BOOL,
    PROTO_FIELD_STR,
    PROTO_FIELD_BIN,
    PROTO_FIELD_COL_U8,
    PROTO_FIELD_COL_U32,
    PROTO_FIELD_COL_I32,
    PROTO_FIELD_COL_U64,
    PROTO_FIELD_COL_F32,
} proto_field_type_t;

typedef struct {
    const char *name;
    proto_field_type_t type;
    uint64_t limit;
    bool is_private;
    size_t offset_bytes; /* within the struct */
    const char *text;
} proto_field_t;

typedef struct {
    const char *name; /* upper case */
    proto_kind_t kind;
    bool is_wire;
    bool is_map;
    const char *route;
    const char *text;
    const proto_field_t *fields;
    uint32_t field_count;
    size_t struct_size_bytes; /* of proto_NAME_t */
} proto_message_t;

/* The table of `kind`, or NULL if it is not in the list. */
const proto_message_t *proto_message_find(proto_kind_t kind);
/* All tables in the order of the list; *count_p their number. */
const proto_message_t *proto_message_all(uint32_t *count_p);

/* A proto_text_t of a C string, cut to 1 KiB. */
proto_text_t proto_text(const char *string);

/* SAMPLING travels inside other messages as bytes: body only, no blob. */
MUST_CHECK proto_status_t proto_sampling_decode(proto_column_u8_t bytes, proto_sampling_t *out,
                                                proto_error_t *error);

/* Page identity: keyed BLAKE2b-256 over (previous hash or 32 zero bytes, salt, the page's token
 * ids little endian).  `out` may be the same memory as `previous`. */
void proto_page_hash(const uint8_t key[PROTO_HASH_SIZE_BYTES], const uint8_t *previous,
                     proto_bytes_t salt, const int32_t *tokens, uint32_t token_count,
                     uint8_t out[PROTO_HASH_SIZE_BYTES]);

#endif
