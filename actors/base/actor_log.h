/* actor_log.h - log lines of one process: one JSON object a line on stderr, or a form for people
 * when stderr is a terminal.
 *
 * Keys: ts, level, actor, epoch, req, event, msg, then the fields.  Event names are stable: tools
 * match on them (docs/operations.md).  Repeats of one event are limited to a burst and then a few
 * each second; what was left out is counted in the next line as "suppressed".  Never logged: a
 * prompt, a token, a key.  A full pipe never holds the caller: the line is dropped and counted.
 * Any thread; nothing is allocated. */
#ifndef ACTOR_LOG_H
#define ACTOR_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "proto_codec.h"

typedef enum {
    ACTOR_LOG_DEBUG = 0,
    ACTOR_LOG_INFO = 1,
    ACTOR_LOG_WARN = 2,
    ACTOR_LOG_ERROR = 3,
} actor_log_level_t;

typedef enum {
    ACTOR_LOG_FORMAT_AUTO = 0, /* HUMAN if the descriptor is a terminal, else JSON */
    ACTOR_LOG_FORMAT_JSON = 1,
    ACTOR_LOG_FORMAT_HUMAN = 2,
} actor_log_format_t;

typedef struct {
    const char *actor; /* name; copied; NULL = "onepath" */
    uint64_t epoch;    /* 0 = left out */
    actor_log_level_t level_min;
    actor_log_format_t format;
    int fd;      /* 0 = stderr */
    bool colour; /* in the form for people */
} actor_log_options_t;

/* One field of a line; made by the functions below, strings are lent for the call. */
typedef struct {
    const char *name; /* NULL ends a list */
    enum {
        ACTOR_LOG_FIELD_U64,
        ACTOR_LOG_FIELD_I64,
        ACTOR_LOG_FIELD_F64,
        ACTOR_LOG_FIELD_TEXT,
    } type;
    uint64_t u64;
    int64_t i64;
    double f64;
    proto_text_t text;
} actor_log_field_t;

actor_log_field_t actor_log_u64(const char *name, uint64_t value);
actor_log_field_t actor_log_i64(const char *name, int64_t value);
actor_log_field_t actor_log_f64(const char *name, double value);
actor_log_field_t actor_log_str(const char *name, const char *value);
actor_log_field_t actor_log_text(const char *name, proto_text_t value);

/* A list of fields for actor_log(); NULL where there are none. */
#define ACTOR_LOG_FIELDS(...) ((const actor_log_field_t[]){__VA_ARGS__, {.name = NULL}})

/* Before the first thread starts; may be called again (the epoch is known later). */
void actor_log_configure(const actor_log_options_t *options);

/* May change at run time. */
void actor_log_set_level(actor_log_level_t level_min);
bool actor_log_enabled(actor_log_level_t level);

/* Writes one line.  `event` is a literal such as "link.up"; `request` 0 = none. */
void actor_log(actor_log_level_t level, const char *event, uint64_t request,
               const actor_log_field_t *fields, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* The same for lines that each stand for one thing that happened (access log): never suppressed. */
void actor_log_each(actor_log_level_t level, const char *event, uint64_t request,
                    const actor_log_field_t *fields, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Whether lines are written in the form for people. */
bool actor_log_is_human(void);

/* Writes bytes that are log lines already, such as those of a child, to the log's descriptor. */
void actor_log_forward(const char *bytes, size_t size_bytes);

/* Parses "debug", "info", "warn", "error"; false if it is none of them. */
bool actor_log_level_parse(const char *text, actor_log_level_t *out);

/* Lines lost because stderr was full. */
uint64_t actor_log_dropped(void);

/* Writes `text` into out as the inside of a JSON string; returns the length written, which may
 * stop early at a whole character; always zero-terminated. */
size_t actor_log_escape(proto_text_t text, char *out, size_t capacity_bytes);

#endif
