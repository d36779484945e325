#include "log_field.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "log_table.h"
#include "proto_require.h"

/* Columns of all types have one shape (proto_codec.h). */
typedef struct {
    const void *data;
    uint32_t count;
} column_t;
_Static_assert(sizeof(column_t) == sizeof(proto_column_u8_t), "one shape");
_Static_assert(sizeof(column_t) == sizeof(proto_column_f32_t), "one shape");
_Static_assert(offsetof(column_t, count) == offsetof(proto_column_u64_t, count), "one shape");

typedef struct {
    const log_field_options_t *options; /* never NULL */
    log_field_diff_t *out;              /* never NULL */
    char prefix[48];                    /* "plan" */
    uint32_t count;                     /* fields that differ */
    bool is_private;                    /* within a PRIVATE column */
} walk_t;

static const log_field_options_t no_options;

static bool
is_column(proto_field_type_t type)
{
    return type >= PROTO_FIELD_COL_U8;
}

static void
lower_name(const char *name, char *out, size_t out_size_bytes)
{
    size_t at = 0;
    for (; name[at] != '\0' && at + 1 < out_size_bytes; at++) {
        out[at] = (char)(name[at] >= 'A' && name[at] <= 'Z' ? name[at] - 'A' + 'a' : name[at]);
    }
    out[at] = '\0';
}

bool
log_field_is_ignored(const log_field_options_t *options, const char *message, const char *field)
{
    if (options == NULL) {
        return false;
    }
    char prefix[48];
    lower_name(message, prefix, sizeof prefix);
    size_t prefix_len = strlen(prefix);
    for (uint32_t i = 0; i < options->ignored_count; i++) {
        const char *name = options->ignored[i];
        if (strncmp(name, prefix, prefix_len) == 0 && name[prefix_len] == '.') {
            name += prefix_len + 1;
        }
        if (strcmp(name, field) == 0) {
            return true;
        }
    }
    return false;
}

static bool
real_is_same(double a, double b, double tolerance)
{
    uint64_t bits[2];
    memcpy(&bits[0], &a, sizeof a);
    memcpy(&bits[1], &b, sizeof b);
    if (bits[0] == bits[1]) {
        return true;
    }
    double largest = fmax(1.0, fmax(fabs(a), fabs(b)));
    return fabs(a - b) <= tolerance * largest;
}

/* ---- one value as text ----------------------------------------------------------------------- */

/* Text of peers, made harmless for a terminal and cut. */
static void
text_of_str(const proto_text_t *text, char *out, size_t capacity)
{
    size_t at = 0;
    out[at++] = '"';
    for (uint32_t i = 0; i < text->size_bytes && at + 8 < capacity; i++) {
        uint8_t byte = (uint8_t)text->data[i];
        out[at++] = byte >= 0x20 && byte < 0x7f ? (char)byte : '.';
    }
    (void)snprintf(out + at, capacity - at, at + 8 < capacity ? "\"" : "...\"");
}

static void
text_of_bin(const proto_bytes_t *bytes, char *out, size_t capacity)
{
    int length = snprintf(out, capacity, "%zu bytes ", bytes->size_bytes);
    size_t at = (size_t)length;
    for (size_t i = 0; i < bytes->size_bytes && i < 32 && at + 3 < capacity; i++) {
        at += (size_t)snprintf(out + at, capacity - at, "%02x", bytes->data[i]);
    }
    if (bytes->size_bytes > 32) {
        (void)snprintf(out + at, capacity - at, "...");
    }
}

static void
text_of_scalar(proto_field_type_t type, const void *value, char *out, size_t capacity)
{
    switch (type) {
    case PROTO_FIELD_U32:
    case PROTO_FIELD_COL_U32:
        (void)snprintf(out, capacity, "%" PRIu32, *(const uint32_t *)value);
        return;
    case PROTO_FIELD_U64:
    case PROTO_FIELD_COL_U64:
        (void)snprintf(out, capacity, "%" PRIu64, *(const uint64_t *)value);
        return;
    case PROTO_FIELD_I64:
        (void)snprintf(out, capacity, "%" PRId64, *(const int64_t *)value);
        return;
    case PROTO_FIELD_F64:
        (void)snprintf(out, capacity, "%.17g", *(const double *)value);
        return;
    case PROTO_FIELD_COL_F32:
        (void)snprintf(out, capacity, "%.9g", (double)*(const float *)value);
        return;
    case PROTO_FIELD_BOOL:
        (void)snprintf(out, capacity, "%s", *(const bool *)value ? "true" : "false");
        return;
    case PROTO_FIELD_COL_U8:
        (void)snprintf(out, capacity, "%u", (unsigned)*(const uint8_t *)value);
        return;
    case PROTO_FIELD_COL_I32:
        (void)snprintf(out, capacity, "%" PRId32, *(const int32_t *)value);
        return;
    case PROTO_FIELD_STR:
        text_of_str(value, out, capacity);
        return;
    case PROTO_FIELD_BIN:
        text_of_bin(value, out, capacity);
        return;
    }
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Notes a field that differs; only the first one is described.  NULL = the column ends there. */
static void
note(walk_t *walk, const proto_field_t *field, int64_t index, const void *a, const void *b)
{
    if (walk->count++ > 0) {
        return;
    }
    log_field_diff_t *out = walk->out;
    if (index >= 0) {
        (void)snprintf(out->path, sizeof out->path, "%s.%s[%" PRId64 "]", walk->prefix, field->name,
                       index);
    } else {
        (void)snprintf(out->path, sizeof out->path, "%s.%s", walk->prefix, field->name);
    }
    const void *values[2] = {a, b};
    char *texts[2] = {out->left, out->right};
    for (int side = 0; side < 2; side++) {
        if (values[side] == NULL) {
            (void)snprintf(texts[side], LOG_FIELD_TEXT_SIZE_BYTES, "(ends)");
        } else if ((field->is_private || walk->is_private) && walk->options->hide_private) {
            (void)snprintf(texts[side], LOG_FIELD_TEXT_SIZE_BYTES, "(private)");
        } else {
            text_of_scalar(field->type, values[side], texts[side], LOG_FIELD_TEXT_SIZE_BYTES);
        }
    }
}

static size_t
entry_size(proto_field_type_t type)
{
    switch (type) {
    case PROTO_FIELD_COL_U8:
        return 1;
    case PROTO_FIELD_COL_U32:
    case PROTO_FIELD_COL_I32:
    case PROTO_FIELD_COL_F32:
        return 4;
    case PROTO_FIELD_COL_U64:
        return 8;
    case PROTO_FIELD_U32:
    case PROTO_FIELD_U64:
    case PROTO_FIELD_I64:
    case PROTO_FIELD_F64:
    case PROTO_FIELD_BOOL:
    case PROTO_FIELD_STR:
    case PROTO_FIELD_BIN:
        break;
    }
    return 0;
}

static bool
entry_is_same(const walk_t *walk, proto_field_type_t type, const void *a, const void *b)
{
    if (type == PROTO_FIELD_COL_F32) {
        return real_is_same((double)*(const float *)a, (double)*(const float *)b,
                            walk->options->tolerance);
    }
    return memcmp(a, b, entry_size(type)) == 0;
}

static void
compare_columns(walk_t *walk, const proto_field_t *field, const column_t *a, const column_t *b)
{
    size_t size = entry_size(field->type);
    uint32_t common = a->count < b->count ? a->count : b->count;
    for (uint32_t i = 0; i < common; i++) {
        const uint8_t *left = (const uint8_t *)a->data + i * size;
        const uint8_t *right = (const uint8_t *)b->data + i * size;
        if (!entry_is_same(walk, field->type, left, right)) {
            note(walk, field, i, left, right);
            return;
        }
    }
    if (a->count != b->count) {
        size_t skip = common * size;
        note(walk, field, common, a->count > common ? (const uint8_t *)a->data + skip : NULL,
             b->count > common ? (const uint8_t *)b->data + skip : NULL);
    }
}

static bool
bytes_are_same(const void *a, size_t a_size, const void *b, size_t b_size)
{
    return a_size == b_size && (a_size == 0 || memcmp(a, b, a_size) == 0);
}

static bool
scalar_is_same(const walk_t *walk, proto_field_type_t type, const void *a, const void *b)
{
    switch (type) {
    case PROTO_FIELD_U32:
        return *(const uint32_t *)a == *(const uint32_t *)b;
    case PROTO_FIELD_U64:
    case PROTO_FIELD_I64:
        return memcmp(a, b, sizeof(uint64_t)) == 0;
    case PROTO_FIELD_F64:
        return real_is_same(*(const double *)a, *(const double *)b, walk->options->tolerance);
    case PROTO_FIELD_BOOL:
        return *(const bool *)a == *(const bool *)b;
    case PROTO_FIELD_STR: {
        const proto_text_t *left = a, *right = b;
        return bytes_are_same(left->data, left->size_bytes, right->data, right->size_bytes);
    }
    case PROTO_FIELD_BIN: {
        const proto_bytes_t *left = a, *right = b;
        return bytes_are_same(left->data, left->size_bytes, right->data, right->size_bytes);
    }
    case PROTO_FIELD_COL_U8:
    case PROTO_FIELD_COL_U32:
    case PROTO_FIELD_COL_I32:
    case PROTO_FIELD_COL_U64:
    case PROTO_FIELD_COL_F32:
        break;
    }
    return true;
}

static void walk_body(walk_t *walk, const proto_message_t *message, const void *a, const void *b);

static bool
is_sampling(const proto_field_t *field, const void *value, proto_sampling_t *out)
{
    if (field->type != PROTO_FIELD_COL_U8 || strcmp(field->name, "sampling") != 0) {
        return false;
    }
    const proto_column_u8_t *column = value;
    return column->count > 0 && proto_sampling_decode(*column, out, NULL) == STATUS_OK;
}

/* A SAMPLING body inside a column: its own fields are compared and named.  False if it is none. */
static bool
compare_sampling(walk_t *walk, const proto_field_t *field, const column_t *a, const column_t *b)
{
    proto_sampling_t left, right;
    if (!is_sampling(field, a, &left) || !is_sampling(field, b, &right)) {
        return false;
    }
    walk_t inner = *walk;
    (void)snprintf(inner.prefix, sizeof inner.prefix, "%.31s.sampling", walk->prefix);
    inner.is_private = field->is_private;
    walk_body(&inner, proto_message_find(PROTO_KIND_SAMPLING), &left, &right);
    walk->count = inner.count;
    return true;
}

static void
walk_body(walk_t *walk, const proto_message_t *message, const void *a, const void *b)
{
    for (uint32_t index = 0; index < message->field_count; index++) {
        const proto_field_t *field = &message->fields[index];
        const void *left = (const uint8_t *)a + field->offset_bytes;
        const void *right = (const uint8_t *)b + field->offset_bytes;
        if ((field->is_private && walk->options->ignore_private) ||
            log_field_is_ignored(walk->options, message->name, field->name)) {
            continue;
        }
        if (is_column(field->type)) {
            if (!bytes_are_same(((const column_t *)left)->data,
                                ((const column_t *)left)->count * entry_size(field->type),
                                ((const column_t *)right)->data,
                                ((const column_t *)right)->count * entry_size(field->type)) &&
                !compare_sampling(walk, field, left, right)) {
                compare_columns(walk, field, left, right);
            }
        } else if (!scalar_is_same(walk, field->type, left, right)) {
            note(walk, field, -1, left, right);
        }
    }
}

static uint64_t
hash_bytes(uint64_t hash, const void *data, size_t size_bytes)
{
    const uint8_t *at = data;
    uint64_t word;
    for (; size_bytes >= sizeof word; at += sizeof word, size_bytes -= sizeof word) {
        memcpy(&word, at, sizeof word);
        hash = log_table_mix(hash ^ word);
    }
    word = size_bytes;
    for (size_t i = 0; i < size_bytes; i++) {
        word = word << 8 | at[i];
    }
    return log_table_mix(hash ^ word ^ UINT64_C(0x9e3779b97f4a7c15));
}

static uint64_t
hash_field(uint64_t hash, const proto_field_t *field, const void *value,
           const log_field_options_t *options)
{
    proto_sampling_t sampling;
    if (is_sampling(field, value, &sampling)) {
        const proto_body_t *inner = (const void *)&sampling;
        return log_table_mix(hash ^ log_field_hash(PROTO_KIND_SAMPLING, inner, options));
    }
    const column_t *column = value;
    const proto_text_t *text = value;
    const proto_bytes_t *bytes = value;
    switch (field->type) {
    case PROTO_FIELD_U32:
        return hash_bytes(hash, value, sizeof(uint32_t));
    case PROTO_FIELD_U64:
    case PROTO_FIELD_I64:
    case PROTO_FIELD_F64:
        return hash_bytes(hash, value, sizeof(uint64_t));
    case PROTO_FIELD_BOOL:
        return hash_bytes(hash, value, sizeof(bool));
    case PROTO_FIELD_STR:
        return hash_bytes(hash, text->data, text->size_bytes);
    case PROTO_FIELD_BIN:
        return hash_bytes(hash, bytes->data, bytes->size_bytes);
    case PROTO_FIELD_COL_U8:
    case PROTO_FIELD_COL_U32:
    case PROTO_FIELD_COL_I32:
    case PROTO_FIELD_COL_U64:
    case PROTO_FIELD_COL_F32:
        return hash_bytes(hash, column->data, column->count * entry_size(field->type));
    }
    return hash;
}

uint64_t
log_field_hash(proto_kind_t kind, const proto_body_t *body, const log_field_options_t *options)
{
    const proto_message_t *message = proto_message_find(kind);
    require(message != NULL);
    uint64_t hash = (uint64_t)kind;
    for (uint32_t index = 0; index < message->field_count; index++) {
        const proto_field_t *field = &message->fields[index];
        bool is_skipped = (options != NULL && options->ignore_private && field->is_private) ||
                          log_field_is_ignored(options, message->name, field->name);
        if (!is_skipped) {
            hash = hash_field(hash, field, (const uint8_t *)body + field->offset_bytes, options);
        }
    }
    return hash;
}

static bool
finish(walk_t *walk)
{
    walk->out->more_count = walk->count > 0 ? walk->count - 1 : 0;
    return walk->count > 0;
}

bool
log_field_diff(proto_kind_t kind, const proto_body_t *a, const proto_body_t *b,
               const log_field_options_t *options, log_field_diff_t *out)
{
    const proto_message_t *message = proto_message_find(kind);
    log_field_diff_t unused = {.more_count = 0};
    require(message != NULL);
    walk_t walk = {.options = options != NULL ? options : &no_options,
                   .out = out != NULL ? out : &unused};
    lower_name(message->name, walk.prefix, sizeof walk.prefix);
    walk_body(&walk, message, a, b);
    return finish(&walk);
}

bool
log_field_diff_header(const proto_header_t *a, const proto_header_t *b,
                      const log_field_options_t *options, log_field_diff_t *out)
{
    log_field_diff_t unused = {.more_count = 0};
    walk_t walk = {.options = options != NULL ? options : &no_options,
                   .out = out != NULL ? out : &unused,
                   .prefix = "header"};
    uint64_t kinds[2] = {(uint64_t)a->kind, (uint64_t)b->kind};
    const struct {
        const char *name;
        uint64_t left, right;
    } fields[] = {{"kind", kinds[0], kinds[1]},
                  {"epoch", a->epoch, b->epoch},
                  {"request", a->request, b->request},
                  {"cause", a->cause, b->cause}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        proto_field_t field = {.name = fields[i].name, .type = PROTO_FIELD_U64};
        if (fields[i].left != fields[i].right &&
            !log_field_is_ignored(walk.options, "header", fields[i].name)) {
            note(&walk, &field, -1, &fields[i].left, &fields[i].right);
        }
    }
    return finish(&walk);
}
