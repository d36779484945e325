/* log_field.h - the first field in which two messages of one kind differ, by the message tables.
 *
 * Pure; allocates nothing.  Any thread. */
#ifndef LOG_FIELD_H
#define LOG_FIELD_H

#include "proto_codec.h"

enum {
    LOG_FIELD_PATH_SIZE_BYTES = 96,
    LOG_FIELD_TEXT_SIZE_BYTES = 256,
};

typedef struct {
    bool ignore_private;        /* skip PRIVATE fields: one side is redacted */
    bool hide_private;          /* compare them, but show "(private)" for their values */
    const char *const *ignored; /* fields to skip: "duration_ns", or "step_result.duration_ns" */
    uint32_t ignored_count;
    double tolerance; /* of f64 and f32: |a - b| <= tolerance * max(1, |a|, |b|); 0 =
                         equal */
} log_field_options_t;

typedef struct {
    char path[LOG_FIELD_PATH_SIZE_BYTES]; /* "plan.patch_blocks[17]", "submit.sampling.top_p" */
    char
        left[LOG_FIELD_TEXT_SIZE_BYTES]; /* the value of `a`, as in the JSON view; "(ends)" where */
    char right[LOG_FIELD_TEXT_SIZE_BYTES]; /*   a column is shorter than the other */
    uint32_t more_count;                   /* further fields that differ; a column counts once */
} log_field_diff_t;

/* Compares two decoded bodies field by field, in the order of the list.  True if they differ: then
 * *out (may be NULL) says where.  `options` may be NULL.  `kind` must be in the list. */
bool log_field_diff(proto_kind_t kind, const proto_body_t *a, const proto_body_t *b,
                    const log_field_options_t *options, log_field_diff_t *out);

/* The same for two headers: path "header.cause" and so on; kind, epoch, request, cause (version
 * and sequence are never compared: they belong to the link). */
bool log_field_diff_header(const proto_header_t *a, const proto_header_t *b,
                           const log_field_options_t *options, log_field_diff_t *out);

/* A number of all that log_field_diff() with these options compares: equal for equal bodies.  The
 * tolerance is not taken into account. */
uint64_t log_field_hash(proto_kind_t kind, const proto_body_t *body,
                        const log_field_options_t *options);

/* True if the options say to skip `field` of `message` (names without the path's index). */
bool log_field_is_ignored(const log_field_options_t *options, const char *message,
                          const char *field);

#endif
