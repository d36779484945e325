/* actor_log.c - a line is put together on the stack and leaves in one write. */
#include "actor_log.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto_clock.h"

enum {
    LINE_SIZE_BYTES = 8192,
    MESSAGE_SIZE_BYTES = 2048,
    EVENT_COUNT_MAX = 128, /* events whose repeats are limited; others share the last entry */
    BURST = 20,            /* lines of one event before the limit bites */
    PER_SECOND = 10,
};

#define SECOND_NS UINT64_C(1000000000)

typedef struct {
    char *out;
    size_t capacity_bytes;
    size_t at;
} line_t;

typedef struct {
    const char *event;
    uint64_t filled_ns; /* when tokens were last added */
    uint32_t tokens;
    uint64_t suppressed;
} repeat_t;

static struct {
    pthread_mutex_t mutex; /* guards repeats and the identity */
    char actor[PROTO_NAME_SIZE_BYTES];
    uint64_t epoch;
    bool human;
    bool colour;
    int fd;
    bool configured;
    repeat_t repeats[EVENT_COUNT_MAX];
    uint32_t repeat_count;
} state = {.mutex = PTHREAD_MUTEX_INITIALIZER, .actor = "onepath", .fd = STDERR_FILENO};

static atomic_int level_min = ACTOR_LOG_INFO;
static atomic_uint_fast64_t dropped_lines;

static const char *const level_names[] = {"debug", "info", "warn", "error"};
static const char *const level_colours[] = {"\x1b[2m", "", "\x1b[33m", "\x1b[31m"};

void
actor_log_configure(const actor_log_options_t *options)
{
    pthread_mutex_lock(&state.mutex);
    (void)snprintf(state.actor, sizeof state.actor, "%s",
                   options->actor != NULL ? options->actor : "onepath");
    state.epoch = options->epoch;
    state.fd = options->fd > 0 ? options->fd : STDERR_FILENO;
    state.human = options->format == ACTOR_LOG_FORMAT_HUMAN ||
                  (options->format == ACTOR_LOG_FORMAT_AUTO && isatty(state.fd) == 1);
    state.colour = state.human && options->colour;
    state.configured = true;
    pthread_mutex_unlock(&state.mutex);
    actor_log_set_level(options->level_min);
}

bool
actor_log_is_human(void)
{
    pthread_mutex_lock(&state.mutex);
    bool human = state.human;
    pthread_mutex_unlock(&state.mutex);
    return human;
}

void
actor_log_set_level(actor_log_level_t level)
{
    atomic_store_explicit(&level_min, (int)level, memory_order_relaxed);
}

bool
actor_log_enabled(actor_log_level_t level)
{
    return (int)level >= atomic_load_explicit(&level_min, memory_order_relaxed);
}

bool
actor_log_level_parse(const char *text, actor_log_level_t *out)
{
    for (uint32_t index = 0; index < sizeof level_names / sizeof level_names[0]; index++) {
        if (strcmp(text, level_names[index]) == 0) {
            *out = (actor_log_level_t)index;
            return true;
        }
    }
    return false;
}

uint64_t
actor_log_dropped(void)
{
    return atomic_load_explicit(&dropped_lines, memory_order_relaxed);
}

actor_log_field_t
actor_log_u64(const char *name, uint64_t value)
{
    return (actor_log_field_t){.name = name, .type = ACTOR_LOG_FIELD_U64, .u64 = value};
}

actor_log_field_t
actor_log_i64(const char *name, int64_t value)
{
    return (actor_log_field_t){.name = name, .type = ACTOR_LOG_FIELD_I64, .i64 = value};
}

actor_log_field_t
actor_log_f64(const char *name, double value)
{
    return (actor_log_field_t){.name = name, .type = ACTOR_LOG_FIELD_F64, .f64 = value};
}

actor_log_field_t
actor_log_text(const char *name, proto_text_t value)
{
    return (actor_log_field_t){.name = name, .type = ACTOR_LOG_FIELD_TEXT, .text = value};
}

actor_log_field_t
actor_log_str(const char *name, const char *value)
{
    const char *string = value != NULL ? value : "";
    return actor_log_text(name, (proto_text_t){string, (uint32_t)strnlen(string, LINE_SIZE_BYTES)});
}

/* How many bytes a UTF-8 sequence beginning with `lead` has; 0 if it can begin none. */
static uint32_t
utf8_len(uint8_t lead)
{
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xc2 && lead < 0xe0) {
        return 2;
    }
    if (lead >= 0xe0 && lead < 0xf0) {
        return 3;
    }
    return lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
}

/* One character of `text` at `at` as JSON; returns how many bytes of text it took. */
static uint32_t
escape_one(proto_text_t text, uint32_t at, char out[8])
{
    uint8_t byte = (uint8_t)text.data[at];
    if (byte == '"' || byte == '\\') {
        (void)snprintf(out, 8, "\\%c", byte);
        return 1;
    }
    if ((byte > 0 && byte < 0x20) || byte == 0x7f) {
        (void)snprintf(out, 8, "\\u%04x", byte);
        return 1;
    }
    uint32_t len = byte == 0 ? 0 : utf8_len(byte); /* many readers refuse a zero character */
    bool whole = len > 0 && len <= text.size_bytes - at;
    for (uint32_t index = 1; whole && index < len; index++) {
        whole = ((uint8_t)text.data[at + index] & 0xc0) == 0x80;
    }
    if (!whole) {
        (void)snprintf(out, 8, "\\ufffd");
        return 1;
    }
    memcpy(out, text.data + at, len);
    out[len] = '\0';
    return len;
}

size_t
actor_log_escape(proto_text_t text, char *out, size_t capacity_bytes)
{
    size_t used = 0;
    uint32_t at = 0;
    while (at < text.size_bytes) {
        char piece[8];
        uint32_t taken = escape_one(text, at, piece);
        size_t size = strlen(piece);
        if (size + 1 > capacity_bytes - used) {
            break;
        }
        memcpy(out + used, piece, size);
        used += size;
        at += taken;
    }
    if (capacity_bytes > 0) {
        out[used] = '\0';
    }
    return used;
}

static void __attribute__((format(printf, 2, 3))) put(line_t *line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t left = line->capacity_bytes - line->at;
    int size = vsnprintf(line->out + line->at, left, format, arguments);
    va_end(arguments);
    if (size > 0) {
        line->at += (size_t)size < left ? (size_t)size : left - 1;
    }
}

static void
put_text(line_t *line, proto_text_t text)
{
    line->at += actor_log_escape(text, line->out + line->at, line->capacity_bytes - line->at);
}

static void
put_value(line_t *line, const actor_log_field_t *field, bool quoted)
{
    switch (field->type) {
    case ACTOR_LOG_FIELD_U64:
        put(line, "%" PRIu64, field->u64);
        break;
    case ACTOR_LOG_FIELD_I64:
        put(line, "%" PRId64, field->i64);
        break;
    case ACTOR_LOG_FIELD_F64:
        /* JSON has no word for infinities and NaN. */
        if (field->f64 - field->f64 == 0.0) {
            put(line, "%.6g", field->f64);
        } else {
            put(line, "null");
        }
        break;
    case ACTOR_LOG_FIELD_TEXT:
        put(line, "%s", quoted ? "\"" : "");
        put_text(line, field->text);
        put(line, "%s", quoted ? "\"" : "");
        break;
    }
}

/* Whether a line of this event may go out now; *suppressed gets how many did not before it. */
static bool
may_repeat(const char *event, uint64_t *suppressed)
{
    uint64_t now_ns = proto_clock_monotonic_ns(proto_clock_system());
    repeat_t *entry = NULL;
    for (uint32_t index = 0; index < state.repeat_count && entry == NULL; index++) {
        if (strcmp(state.repeats[index].event, event) == 0) {
            entry = &state.repeats[index];
        }
    }
    if (entry == NULL) {
        if (state.repeat_count < EVENT_COUNT_MAX) {
            entry = &state.repeats[state.repeat_count++];
            *entry = (repeat_t){.event = event, .filled_ns = now_ns, .tokens = BURST};
        } else {
            entry = &state.repeats[EVENT_COUNT_MAX - 1];
        }
    }
    uint64_t earned = (now_ns - entry->filled_ns) / (SECOND_NS / PER_SECOND);
    if (earned > 0) {
        entry->filled_ns += earned * (SECOND_NS / PER_SECOND);
        entry->tokens = earned > BURST - entry->tokens ? BURST : entry->tokens + (uint32_t)earned;
    }
    if (entry->tokens == 0) {
        entry->suppressed++;
        return false;
    }
    entry->tokens--;
    *suppressed = entry->suppressed;
    entry->suppressed = 0;
    return true;
}

static void
put_json(line_t *line, const struct timespec *time, actor_log_level_t level, const char *event,
         uint64_t request, const actor_log_field_t *fields, const char *message,
         uint64_t suppressed)
{
    struct tm utc;
    (void)gmtime_r(&time->tv_sec, &utc);
    put(line, "{\"ts\":\"%04d-%02d-%02dT%02d:%02d:%02d.%06ldZ\",\"level\":\"%s\",\"actor\":\"%s\"",
        utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
        time->tv_nsec / 1000, level_names[level], state.actor);
    if (state.epoch != 0) {
        put(line, ",\"epoch\":%" PRIu64, state.epoch);
    }
    if (request != 0) {
        put(line, ",\"req\":%" PRIu64, request);
    }
    put(line, ",\"event\":\"%s\",\"msg\":\"", event);
    put_text(line, (proto_text_t){message, (uint32_t)strlen(message)});
    put(line, "\"");
    for (const actor_log_field_t *field = fields; field != NULL && field->name != NULL; field++) {
        put(line, ",\"%s\":", field->name);
        put_value(line, field, true);
    }
    if (suppressed > 0) {
        put(line, ",\"suppressed\":%" PRIu64, suppressed);
    }
    put(line, "}");
}

static void
put_human(line_t *line, const struct timespec *time, actor_log_level_t level, const char *event,
          uint64_t request, const actor_log_field_t *fields, const char *message,
          uint64_t suppressed)
{
    struct tm local;
    (void)localtime_r(&time->tv_sec, &local);
    put(line, "%s%02d:%02d:%02d.%03ld %-5s %-10s ", state.colour ? level_colours[level] : "",
        local.tm_hour, local.tm_min, local.tm_sec, time->tv_nsec / 1000000, level_names[level],
        state.actor);
    put_text(line, (proto_text_t){message, (uint32_t)strlen(message)});
    put(line, " [%s", event);
    if (request != 0) {
        put(line, " req=%" PRIu64, request);
    }
    for (const actor_log_field_t *field = fields; field != NULL && field->name != NULL; field++) {
        put(line, " %s=", field->name);
        put_value(line, field, false);
    }
    if (suppressed > 0) {
        put(line, " suppressed=%" PRIu64, suppressed);
    }
    put(line, "]%s", state.colour ? "\x1b[0m" : "");
}

static void
write_line(int fd, const char *bytes, size_t size_bytes)
{
    size_t at = 0;
    while (at < size_bytes) {
        ssize_t written = write(fd, bytes + at, size_bytes - at);
        if (written > 0) {
            at += (size_t)written;
        } else if (written < 0 && errno == EINTR) {
            continue;
        } else {
            /* Full or closed: a log line may be lost, the actor's time may not. */
            atomic_fetch_add_explicit(&dropped_lines, 1, memory_order_relaxed);
            return;
        }
    }
}

void
actor_log_forward(const char *bytes, size_t size_bytes)
{
    pthread_mutex_lock(&state.mutex);
    write_line(state.fd, bytes, size_bytes);
    pthread_mutex_unlock(&state.mutex);
}

static void __attribute__((format(printf, 5, 0)))
log_line(actor_log_level_t level, const char *event, uint64_t request,
         const actor_log_field_t *fields, const char *format, va_list arguments, bool each)
{
    int saved_errno = errno;
    char message[MESSAGE_SIZE_BYTES];
    (void)vsnprintf(message, sizeof message, format, arguments);
    struct timespec time;
    (void)clock_gettime(CLOCK_REALTIME, &time);

    pthread_mutex_lock(&state.mutex);
    if (!state.configured) {
        state.human = isatty(state.fd) == 1;
        state.configured = true;
    }
    uint64_t suppressed = 0;
    if (each || may_repeat(event, &suppressed)) {
        char bytes[LINE_SIZE_BYTES];
        /* Room for what closes the line, however long the rest gets. */
        line_t line = {bytes, sizeof bytes - 64, 0};
        if (state.human) {
            put_human(&line, &time, level, event, request, fields, message, suppressed);
        } else {
            put_json(&line, &time, level, event, request, fields, message, suppressed);
        }
        if (line.at + 1 >= line.capacity_bytes && !state.human) {
            /* Cut in the middle: still one JSON object, without the fields. */
            line.at = 0;
            message[256] = '\0';
            put_json(&line, &time, level, event, request, NULL, message, suppressed);
        }
        bytes[line.at++] = '\n';
        write_line(state.fd, bytes, line.at);
    }
    pthread_mutex_unlock(&state.mutex);
    errno = saved_errno;
}

void
actor_log(actor_log_level_t level, const char *event, uint64_t request,
          const actor_log_field_t *fields, const char *format, ...)
{
    if (!actor_log_enabled(level)) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    log_line(level, event, request, fields, format, arguments, false);
    va_end(arguments);
}

void
actor_log_each(actor_log_level_t level, const char *event, uint64_t request,
               const actor_log_field_t *fields, const char *format, ...)
{
    if (!actor_log_enabled(level)) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    log_line(level, event, request, fields, format, arguments, true);
    va_end(arguments);
}
