#include "actor_http_trace.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "actor_http_text.h"
#include "actor_http_trace_send.h"
#include "actor_log.h"
#include "proto_clock.h"
#include "proto_require.h"

#define MS_NS UINT64_C(1000000)

enum { BATCH_LEN_MAX = 128 };

struct actor_http_trace {
    actor_http_trace_options_t options; /* defaults filled in */
    actor_http_trace_url_t url;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the ring, stopping, batch_count */
    pthread_cond_t wake;
    actor_http_trace_request_t ring[ACTOR_HTTP_TRACE_QUEUE_LEN_MAX];
    uint32_t first;
    uint32_t count;
    bool stopping;
    atomic_uint_fast64_t sent_count;
    atomic_uint_fast64_t dropped_count;
    atomic_uint_fast64_t failed_count;
    uint64_t seed[2];   /* of the ids; the loop's thread */
    uint64_t id_count;  /* made so far; the loop's thread */
    uint64_t span_seed; /* the sender's */
    uint64_t span_count;
    actor_http_trace_request_t batch[BATCH_LEN_MAX]; /* the sender's */
    actor_http_text_t body;                          /* the sender's */
};

/* ---- ids ------------------------------------------------------------------------------------- */

static uint64_t
mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

static void
put_id(uint64_t value, uint8_t out[8])
{
    value = value != 0 ? value : 1; /* zeros are no id */
    for (int at = 0; at < 8; at++) {
        out[at] = (uint8_t)(value >> (8 * at));
    }
}

static int
hex_digit(char byte)
{
    if (byte >= '0' && byte <= '9') {
        return byte - '0';
    }
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* Lower-case hex, as the standard wants it; false for anything else, and for zeros. */
static bool
read_hex(const char *text, uint8_t *out, size_t size_bytes)
{
    uint8_t any = 0;
    for (size_t at = 0; at < size_bytes; at++) {
        int high = hex_digit(text[2 * at]);
        int low = hex_digit(text[2 * at + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        out[at] = (uint8_t)(high * 16 + low);
        any |= out[at];
    }
    return any != 0;
}

bool
actor_http_trace_parse(const char *text, size_t size_bytes, actor_http_trace_context_t *out)
{
    enum { SIZE = 55 }; /* VV-trace-parent-FF */
    *out = (actor_http_trace_context_t){.is_given = false};
    if (size_bytes < SIZE || text[2] != '-' || text[35] != '-' || text[52] != '-') {
        return false;
    }
    int version_high = hex_digit(text[0]);
    int version_low = hex_digit(text[1]);
    int flags_high = hex_digit(text[53]);
    int flags_low = hex_digit(text[54]);
    bool is_zero = version_high == 0 && version_low == 0;
    if (version_high < 0 || version_low < 0 || flags_high < 0 || flags_low < 0 ||
        (version_high == 15 && version_low == 15) || (is_zero && size_bytes != SIZE) ||
        (size_bytes > SIZE && text[SIZE] != '-')) {
        return false;
    }
    actor_http_trace_context_t context = {.is_given = true, .is_sampled = (flags_low & 1) != 0};
    if (!read_hex(text + 3, context.trace, sizeof context.trace) ||
        !read_hex(text + 36, context.parent, sizeof context.parent)) {
        return false;
    }
    *out = context;
    return true;
}

void
actor_http_trace_begin(actor_http_trace_t *self, actor_http_trace_context_t *out)
{
    *out = (actor_http_trace_context_t){.is_sampled = self != NULL};
    if (self != NULL) {
        uint64_t number = ++self->id_count;
        put_id(mix(self->seed[0] + number), out->trace);
        put_id(mix(self->seed[1] + number), out->trace + 8);
    }
}

/* ---- spans ----------------------------------------------------------------------------------- */

static void
add_hex(actor_http_text_t *out, const uint8_t *bytes, size_t size_bytes)
{
    for (size_t at = 0; at < size_bytes; at++) {
        actor_http_text_printf(out, "%02x", bytes[at]);
    }
}

static void
add_text(actor_http_text_t *out, const char *key, const char *value)
{
    actor_http_text_printf(out, "{\"key\":\"%s\",\"value\":{\"stringValue\":", key);
    actor_http_text_json(out, value, strlen(value));
    actor_http_text_puts(out, "}}");
}

/* OTLP writes 64-bit numbers as strings. */
static void
add_number(actor_http_text_t *out, const char *key, uint64_t value)
{
    actor_http_text_printf(out, ",{\"key\":\"%s\",\"value\":{\"intValue\":\"%llu\"}}", key,
                           (unsigned long long)value);
}

typedef struct {
    const char *name;
    uint8_t id[ACTOR_HTTP_SPAN_ID_BYTES];
    const uint8_t *parent; /* NULL = a root */
    int kind;              /* 2 server, 1 internal */
    uint64_t begin_ns;     /* since 1970 */
    uint64_t end_ns;
} span_t;

static void
begin_span(actor_http_text_t *out, const actor_http_trace_context_t *context, const span_t *span)
{
    actor_http_text_puts(out, "{\"traceId\":\"");
    add_hex(out, context->trace, sizeof context->trace);
    actor_http_text_puts(out, "\",\"spanId\":\"");
    add_hex(out, span->id, sizeof span->id);
    if (span->parent != NULL) {
        actor_http_text_puts(out, "\",\"parentSpanId\":\"");
        add_hex(out, span->parent, ACTOR_HTTP_SPAN_ID_BYTES);
    }
    actor_http_text_printf(out,
                           "\",\"name\":\"%s\",\"kind\":%d,\"startTimeUnixNano\":\"%llu\","
                           "\"endTimeUnixNano\":\"%llu\",\"attributes\":[",
                           span->name, span->kind, (unsigned long long)span->begin_ns,
                           (unsigned long long)span->end_ns);
}

static void
make_span_id(actor_http_trace_t *self, uint8_t out[ACTOR_HTTP_SPAN_ID_BYTES])
{
    put_id(mix(self->span_seed + ++self->span_count), out);
}

static void
add_phase(actor_http_trace_t *self, const actor_http_trace_request_t *request, const span_t *parent,
          const char *name, uint64_t begin_ns, uint64_t end_ns)
{
    if (begin_ns == 0 || end_ns < begin_ns) {
        return;
    }
    uint64_t base_ns = parent->begin_ns - request->arrived_ns;
    span_t span = {.name = name,
                   .parent = parent->id,
                   .kind = 1,
                   .begin_ns = base_ns + begin_ns,
                   .end_ns = base_ns + end_ns};
    make_span_id(self, span.id);
    actor_http_text_puts(&self->body, ",");
    begin_span(&self->body, &request->context, &span);
    add_text(&self->body, "onepath.request_id", request->request_id);
    actor_http_text_puts(&self->body, "]}");
}

static void
add_request(actor_http_trace_t *self, const actor_http_trace_request_t *request, uint64_t offset_ns)
{
    static const uint8_t none[ACTOR_HTTP_SPAN_ID_BYTES];
    const actor_http_trace_context_t *context = &request->context;
    actor_http_text_t *out = &self->body;
    char name[64];
    (void)snprintf(name, sizeof name, "POST %.48s", request->route);
    span_t span = {.name = name,
                   .parent =
                       memcmp(context->parent, none, sizeof none) != 0 ? context->parent : NULL,
                   .kind = 2,
                   .begin_ns = offset_ns + request->arrived_ns,
                   .end_ns = offset_ns + request->ended_ns};
    make_span_id(self, span.id);
    begin_span(out, context, &span);
    add_text(out, "http.request.method", "POST");
    actor_http_text_puts(out, ",");
    add_text(out, "http.route", request->route);
    actor_http_text_puts(out, ",");
    add_text(out, "onepath.request_id", request->request_id);
    actor_http_text_puts(out, ",");
    add_text(out, "gen_ai.response.model", self->options.model_name);
    add_number(out, "http.response.status_code", (uint64_t)request->status);
    add_number(out, "gen_ai.usage.input_tokens", request->prompt_tokens);
    add_number(out, "gen_ai.usage.output_tokens", request->generated_tokens);
    add_number(out, "onepath.choices", request->choice_count);
    add_number(out, "onepath.stream", request->stream ? 1 : 0);
    actor_http_text_puts(out, "],\"status\":{");
    if (request->status >= 500 || request->code[0] != '\0') {
        actor_http_text_puts(out, "\"code\":2,\"message\":");
        actor_http_text_json(out, request->code, strlen(request->code));
    }
    actor_http_text_puts(out, "}}");
    add_phase(self, request, &span, "queue", request->submitted_ns, request->planned_ns);
    add_phase(self, request, &span, "prefill", request->planned_ns, request->first_token_ns);
    add_phase(self, request, &span, "decode", request->first_token_ns,
              request->first_token_ns != 0 ? request->ended_ns : 0);
}

static void
make_body(actor_http_trace_t *self, uint32_t count)
{
    const proto_clock_t *clock = proto_clock_system();
    uint64_t offset_ns = proto_clock_realtime_ns(clock) - proto_clock_monotonic_ns(clock);
    actor_http_text_t *out = &self->body;
    actor_http_text_clear(out);
    actor_http_text_puts(out, "{\"resourceSpans\":[{\"resource\":{\"attributes\":[");
    add_text(out, "service.name", self->options.service);
    actor_http_text_puts(out, ",");
    add_text(out, "service.version", ONEPATH_VERSION);
    actor_http_text_puts(out, "]},\"scopeSpans\":[{\"scope\":{\"name\":\"onepath\"},\"spans\":[");
    for (uint32_t at = 0; at < count; at++) {
        if (at > 0) {
            actor_http_text_puts(out, ",");
        }
        add_request(self, &self->batch[at], offset_ns);
    }
    actor_http_text_puts(out, "]}]}]}");
}

/* ---- the sender ------------------------------------------------------------------------------ */

static void
wait_until(actor_http_trace_t *self, uint32_t milliseconds)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t at_ns =
        (uint64_t)until.tv_sec * 1000 * MS_NS + (uint64_t)until.tv_nsec + milliseconds * MS_NS;
    until.tv_sec = (time_t)(at_ns / (1000 * MS_NS));
    until.tv_nsec = (long)(at_ns % (1000 * MS_NS));
    (void)pthread_cond_timedwait(&self->wake, &self->mutex, &until);
}

static void
send_batch(actor_http_trace_t *self, uint32_t count)
{
    char error[160] = "out of memory";
    make_body(self, count);
    bool taken = !self->body.failed &&
                 actor_http_trace_send(&self->url, self->body.data, self->body.size_bytes,
                                       self->options.timeout_ms, error, sizeof error);
    if (taken) {
        atomic_fetch_add(&self->sent_count, count);
    } else {
        atomic_fetch_add(&self->failed_count, count);
        actor_log(ACTOR_LOG_WARN, "trace.export", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("endpoint", self->options.endpoint),
                                   actor_log_u64("requests", count)),
                  "the traces of %u requests are lost: %s", count, error);
    }
}

static void *
run(void *context)
{
    actor_http_trace_t *self = context;
    pthread_mutex_lock(&self->mutex);
    for (;;) {
        while (self->count == 0 && !self->stopping) {
            (void)pthread_cond_wait(&self->wake, &self->mutex);
        }
        if (self->count < BATCH_LEN_MAX && !self->stopping) {
            wait_until(self, self->options.interval_ms); /* more may come and go along */
        }
        if (self->count == 0 && self->stopping) {
            break;
        }
        uint32_t count = 0;
        while (count < BATCH_LEN_MAX && self->count > 0) {
            self->batch[count++] = self->ring[self->first];
            self->first = (self->first + 1) % ACTOR_HTTP_TRACE_QUEUE_LEN_MAX;
            self->count--;
        }
        bool is_last = self->stopping;
        pthread_mutex_unlock(&self->mutex);
        if (count > 0) {
            send_batch(self, count);
        }
        pthread_mutex_lock(&self->mutex);
        if (is_last) {
            break; /* one send is all the time that an end has */
        }
    }
    atomic_fetch_add(&self->dropped_count, self->count);
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

void
actor_http_trace_push(actor_http_trace_t *self, const actor_http_trace_request_t *request)
{
    if (self == NULL || !request->context.is_sampled) {
        return;
    }
    pthread_mutex_lock(&self->mutex);
    bool has_room = self->count < ACTOR_HTTP_TRACE_QUEUE_LEN_MAX;
    if (has_room) {
        self->ring[(self->first + self->count++) % ACTOR_HTTP_TRACE_QUEUE_LEN_MAX] = *request;
    }
    bool wakes = self->count == 1 || self->count == BATCH_LEN_MAX;
    pthread_mutex_unlock(&self->mutex);
    if (!has_room) {
        atomic_fetch_add(&self->dropped_count, 1);
    } else if (wakes) {
        (void)pthread_cond_signal(&self->wake);
    }
}

actor_http_trace_counts_t
actor_http_trace_counts(const actor_http_trace_t *self)
{
    if (self == NULL) {
        return (actor_http_trace_counts_t){.sent_count = 0};
    }
    return (actor_http_trace_counts_t){.sent_count = atomic_load(&self->sent_count),
                                       .dropped_count = atomic_load(&self->dropped_count),
                                       .failed_count = atomic_load(&self->failed_count)};
}

/* ---- begin and end --------------------------------------------------------------------------- */

proto_status_t
actor_http_trace_new(const actor_http_trace_options_t *options, actor_http_trace_t **out_p)
{
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    actor_http_trace_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return status;
    }
    self->options = *options;
    self->options.timeout_ms = options->timeout_ms != 0 ? options->timeout_ms : 5000;
    self->options.interval_ms = options->interval_ms != 0 ? options->interval_ms : 1000;
    status = STATUS_ERR_CONFIG;
    if (!actor_http_trace_url(options->endpoint, &self->url)) {
        actor_log(ACTOR_LOG_ERROR, "gateway.config", 0, NULL,
                  "the endpoint of traces is '%s'; it takes http://HOST[:PORT][/PATH]",
                  options->endpoint);
        goto err_free;
    }
    status = STATUS_ERR_IO;
    uint64_t random[3] = {0};
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        goto err_free;
    }
    self->seed[0] = random[0];
    self->seed[1] = random[1];
    self->span_seed = random[2];
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&self->wake, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    (void)pthread_mutex_init(&self->mutex, NULL);
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are the main thread's */
    int failed = pthread_create(&self->thread, NULL, run, self);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        goto err_fini;
    }
    *out_p = self;
    return STATUS_OK;

err_fini:
    (void)pthread_mutex_destroy(&self->mutex);
    (void)pthread_cond_destroy(&self->wake);
err_free:
    free(self);
    return status;
}

void
actor_http_trace_destroy(actor_http_trace_t **self_p)
{
    actor_http_trace_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    pthread_mutex_lock(&self->mutex);
    self->stopping = true;
    pthread_mutex_unlock(&self->mutex);
    (void)pthread_cond_signal(&self->wake);
    (void)pthread_join(self->thread, NULL);
    actor_http_text_fini(&self->body);
    (void)pthread_mutex_destroy(&self->mutex);
    (void)pthread_cond_destroy(&self->wake);
    free(self);
    *self_p = NULL;
}
