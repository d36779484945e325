/* The engine of `onepath bench`: slots with one connection each, driven by libevent.
 *
 * A connection serves one request: a server that closes idle connections at a bad moment is none of
 * its errors then.  Callbacks only settle a slot; pump() alone frees connections and starts
 * requests, from the loop, so nothing is freed below its own callback. */
#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli_bench.h"
#include "proto_clock.h"

enum { BODY_SIZE_BYTES = 1 << 20, SECOND_NS = 1000000000, PAUSE_NS = 100000000 };

typedef struct run run_t;

typedef enum { SLOT_FREE, SLOT_RUNNING, SLOT_SETTLED } slot_state_t;

typedef struct {
    run_t *run;
    slot_state_t state;
    struct evhttp_connection *connection;
    struct event *timer; /* the time limit of the request */
    uint64_t intended_ns, begin_ns, first_ns, last_ns;
    uint64_t resume_ns; /* closed loop: not before this, after an error */
    int code;           /* of HTTP; 0: no head yet */
    bool too_long;
    cli_bench_samples_t gaps;
    struct evbuffer *body; /* of an answer that is no stream */
    cli_bench_stream_t stream;
} slot_t;

struct run {
    const cli_bench_plan_t *plan;
    cli_bench_prompts_t *prompts;
    cli_bench_books_t *books;
    struct event_base *base;
    struct event *pump_timer, *progress_timer, *interrupt;
    cli_bench_random_t random;
    slot_t *slots;
    uint32_t running_count;
    uint64_t begin_ns, arrival_ns;
    uint64_t end_ns; /* of the last settled request, or the interrupt */
    char head_host[280], head_key[512];
    char path[300];
    bool stop;
    bool was_probed;
};

static uint64_t
now_ns(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

static struct timeval
time_of(uint64_t ns)
{
    return (struct timeval){.tv_sec = (time_t)(ns / SECOND_NS),
                            .tv_usec = (suseconds_t)(ns % SECOND_NS / 1000)};
}

/* ---- the end of a request -------------------------------------------------------------------- */

static void
settle(slot_t *slot)
{
    run_t *run = slot->run;
    slot->state = SLOT_SETTLED;
    run->running_count--;
    run->end_ns = now_ns();
    (void)event_del(slot->timer);
    event_active(run->pump_timer, EV_TIMEOUT, 0);
}

static void
settle_error(slot_t *slot, const char *kind, const char *why)
{
    run_t *run = slot->run;
    cli_bench_books_error(run->books, kind, why);
    run->books->failed++;
    if (run->plan->rate <= 0) {
        slot->resume_ns = now_ns() + PAUSE_NS;
    }
    settle(slot);
}

static void
settle_good(slot_t *slot)
{
    cli_bench_books_t *books = slot->run->books;
    const cli_bench_stream_t *stream = &slot->stream;
    bool kept = cli_bench_samples_add(&books->whole, now_ns() - slot->intended_ns) &&
                cli_bench_samples_add(&books->delay, slot->begin_ns - slot->intended_ns);
    if (slot->run->plan->prompt.stream && stream->piece_count > 0) {
        kept &= cli_bench_samples_add(&books->first_token, slot->first_ns - slot->intended_ns);
    }
    for (size_t i = 0; i < slot->gaps.count; i++) {
        kept &= cli_bench_samples_add(&books->between, (uint64_t)slot->gaps.items[i] * 1000);
    }
    books->no_memory |= !kept;
    books->completed++;
    books->empty += stream->piece_count == 0 ? 1 : 0;
    books->without_usage += stream->token_count == 0 && stream->piece_count > 0 ? 1 : 0;
    books->answer_tokens += stream->token_count > 0 ? stream->token_count : stream->piece_count;
    books->prompt_tokens += stream->prompt_count;
    settle(slot);
}

/* What the answer was, once no more of it comes: `is_whole` if it ended as HTTP wants it. */
static void
judge(slot_t *slot, bool is_whole, const char *retry_after)
{
    cli_bench_stream_t *stream = &slot->stream;
    size_t size_bytes = evbuffer_get_length(slot->body);
    const char *body = (const char *)evbuffer_pullup(slot->body, -1);
    if (slot->code != 200) {
        char kind[CLI_BENCH_KIND_SIZE_BYTES];
        char why[2 * CLI_BENCH_WHY_SIZE_BYTES];
        (void)snprintf(kind, sizeof kind, "http_%d", slot->code);
        cli_bench_stream_whole(stream, body != NULL ? body : "", size_bytes);
        (void)snprintf(why, sizeof why, "%s%s%s", stream->why,
                       retry_after != NULL ? "; Retry-After: " : "",
                       retry_after != NULL ? retry_after : "");
        settle_error(slot, kind, why);
        return;
    }
    if (!slot->run->plan->prompt.stream && is_whole && !slot->too_long) {
        cli_bench_stream_whole(stream, body != NULL ? body : "", size_bytes);
    }
    switch (stream->state) {
    case CLI_BENCH_STREAM_DONE:
        settle_good(slot);
        break;
    case CLI_BENCH_STREAM_MALFORMED:
        settle_error(slot, "malformed", stream->why);
        break;
    case CLI_BENCH_STREAM_ERROR:
        settle_error(slot, "error_event", stream->why);
        break;
    case CLI_BENCH_STREAM_OPEN: {
        char why[CLI_BENCH_WHY_SIZE_BYTES];
        if (slot->run->plan->prompt.stream) {
            (void)snprintf(why, sizeof why, "the stream ended without [DONE] after %u events%s",
                           stream->piece_count, is_whole ? "" : "; the connection broke off");
        } else {
            (void)snprintf(why, sizeof why, "%s",
                           slot->too_long ? "the answer is larger than 1 MiB"
                                          : "the connection broke off inside the answer");
        }
        settle_error(slot, slot->run->plan->prompt.stream ? "broken_stream" : "broken_answer", why);
        break;
    }
    }
}

static void
on_end(struct evhttp_request *request, void *context)
{
    slot_t *slot = context;
    if (slot->state != SLOT_RUNNING) {
        return;
    }
    int code = request != NULL ? evhttp_request_get_response_code(request) : 0;
    slot->code = code != 0 ? code : slot->code;
    if (slot->code == 0) {
        char why[CLI_BENCH_WHY_SIZE_BYTES] = "";
        if (!slot->run->was_probed) { /* the first message is all that is kept */
            cli_bench_probe(&slot->run->plan->url, why);
            slot->run->was_probed = true;
        }
        settle_error(slot, "connect", why);
        return;
    }
    const struct evkeyvalq *heads =
        request != NULL ? evhttp_request_get_input_headers(request) : NULL;
    judge(slot, code != 0, heads != NULL ? evhttp_find_header(heads, "Retry-After") : NULL);
}

/* Called before on_end(NULL). */
static void
on_fault(enum evhttp_request_error error, void *context)
{
    slot_t *slot = context;
    if (slot->state != SLOT_RUNNING) {
        return;
    }
    if (error == EVREQ_HTTP_INVALID_HEADER || error == EVREQ_HTTP_DATA_TOO_LONG) {
        settle_error(slot, "malformed", "the head or the framing of the answer is no HTTP");
    } else if (slot->code == 0) {
        settle_error(slot, "connect", "the server closed the connection without an answer");
    } else {
        judge(slot, false, NULL);
    }
}

static void
on_time_limit(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    slot_t *slot = context;
    if (slot->state == SLOT_RUNNING) {
        char why[CLI_BENCH_WHY_SIZE_BYTES];
        (void)snprintf(why, sizeof why, "no end within %.3g s; %u events with text so far",
                       (double)slot->run->plan->timeout_ns / 1e9, slot->stream.piece_count);
        settle_error(slot, "timeout", why);
    }
}

/* ---- the answer ------------------------------------------------------------------------------ */

static int
on_head(struct evhttp_request *request, void *context)
{
    ((slot_t *)context)->code = evhttp_request_get_response_code(request);
    return 0;
}

static void
take_piece(slot_t *slot, uint32_t found)
{
    uint64_t now = now_ns();
    if (slot->first_ns == 0) {
        slot->first_ns = now;
    } else {
        slot->run->books->no_memory |= !cli_bench_samples_add(&slot->gaps, now - slot->last_ns);
    }
    /* Events that came in one piece came at one time. */
    for (uint32_t i = 1; i < found; i++) {
        slot->run->books->no_memory |= !cli_bench_samples_add(&slot->gaps, 0);
    }
    slot->last_ns = now;
}

static void
on_bytes(struct evhttp_request *request, void *context)
{
    slot_t *slot = context;
    struct evbuffer *input = evhttp_request_get_input_buffer(request);
    if (slot->state != SLOT_RUNNING) {
        return;
    }
    if (slot->code != 200 || !slot->run->plan->prompt.stream) {
        slot->too_long |= evbuffer_get_length(slot->body) > BODY_SIZE_BYTES;
        if (!slot->too_long) {
            (void)evbuffer_add_buffer(slot->body, input);
        }
        return;
    }
    char bytes[4096];
    uint32_t found = 0;
    int got;
    while ((got = evbuffer_remove(input, bytes, sizeof bytes)) > 0) {
        found += cli_bench_stream_push(&slot->stream, bytes, (size_t)got);
    }
    if (found > 0) {
        take_piece(slot, found);
    }
    if (slot->stream.state != CLI_BENCH_STREAM_OPEN) {
        judge(slot, true, NULL);
    }
}

/* ---- the start of a request ------------------------------------------------------------------ */

static bool
post(slot_t *slot, const char *body)
{
    run_t *run = slot->run;
    slot->connection =
        evhttp_connection_base_new(run->base, NULL, run->plan->url.address, run->plan->url.port);
    struct evhttp_request *request = evhttp_request_new(on_end, slot);
    if (slot->connection == NULL || request == NULL) {
        if (request != NULL) {
            evhttp_request_free(request);
        }
        return false;
    }
    struct timeval limit = time_of(run->plan->timeout_ns + 10 * (uint64_t)SECOND_NS);
    evhttp_connection_set_timeout_tv(slot->connection, &limit); /* the slot's timer comes first */
    evhttp_request_set_header_cb(request, on_head);
    evhttp_request_set_chunked_cb(request, on_bytes);
    evhttp_request_set_error_cb(request, on_fault);
    struct evkeyvalq *heads = evhttp_request_get_output_headers(request);
    bool good =
        evhttp_add_header(heads, "Host", run->head_host) == 0 &&
        evhttp_add_header(heads, "Content-Type", "application/json") == 0 &&
        evhttp_add_header(heads, "Connection", "close") == 0 &&
        (run->plan->key == NULL || evhttp_add_header(heads, "Authorization", run->head_key) == 0) &&
        evbuffer_add(evhttp_request_get_output_buffer(request), body, strlen(body)) == 0;
    /* The request is the connection's from here on, whatever the result. */
    return evhttp_make_request(slot->connection, request, EVHTTP_REQ_POST, run->path) == 0 && good;
}

static void
start(slot_t *slot, uint64_t intended_ns)
{
    run_t *run = slot->run;
    char *body = cli_bench_prompts_body(run->prompts, run->books->started, &run->random);
    run->books->started++;
    run->running_count++;
    slot->state = SLOT_RUNNING;
    slot->code = 0;
    slot->too_long = false;
    slot->first_ns = 0;
    slot->gaps.count = 0;
    slot->begin_ns = now_ns();
    slot->intended_ns = intended_ns;
    cli_bench_stream_init(&slot->stream);
    (void)evbuffer_drain(slot->body, evbuffer_get_length(slot->body));
    struct timeval limit = time_of(run->plan->timeout_ns);
    (void)evtimer_add(slot->timer, &limit);
    bool good = body != NULL && post(slot, body);
    if (!good && slot->state == SLOT_RUNNING) {
        settle_error(slot, "connect", "no socket or no memory for it");
    }
    free(body);
}

static bool
may_start(const run_t *run, uint64_t now)
{
    const cli_bench_plan_t *plan = run->plan;
    if (run->stop || (plan->request_count != 0 && run->books->started >= plan->request_count)) {
        return false;
    }
    uint64_t at = plan->rate > 0 ? run->arrival_ns : now;
    return plan->duration_ns == 0 || at - run->begin_ns < plan->duration_ns;
}

/* The connection of a settled slot goes; what was left of its request goes with it. */
static void
reap(slot_t *slot)
{
    if (slot->state != SLOT_SETTLED) {
        return;
    }
    if (slot->connection != NULL) {
        evhttp_connection_free(slot->connection);
        slot->connection = NULL;
    }
    slot->state = SLOT_FREE;
}

static void
pump(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    run_t *run = context;
    uint64_t wake_ns = UINT64_MAX;
    for (uint32_t i = 0; i < run->plan->concurrency; i++) {
        reap(&run->slots[i]);
    }
    for (uint32_t i = 0; i < run->plan->concurrency; i++) {
        slot_t *slot = &run->slots[i];
        uint64_t now = now_ns();
        if (slot->state != SLOT_FREE || !may_start(run, now)) {
            continue;
        }
        uint64_t due_ns = run->plan->rate > 0 ? run->arrival_ns : slot->resume_ns;
        if (due_ns > now) {
            wake_ns = due_ns < wake_ns ? due_ns : wake_ns;
            continue;
        }
        if (run->plan->rate > 0) {
            run->arrival_ns += cli_bench_random_gap_ns(&run->random, run->plan->rate);
            start(slot, due_ns);
        } else {
            start(slot, now);
        }
    }
    uint64_t now = now_ns();
    if (run->running_count == 0 && !may_start(run, now)) {
        (void)event_base_loopbreak(run->base);
    } else if (wake_ns != UINT64_MAX) {
        struct timeval wait = time_of(wake_ns > now ? wake_ns - now : 0);
        (void)evtimer_add(run->pump_timer, &wait);
    }
}

/* ---- around it ------------------------------------------------------------------------------- */

static void
on_progress(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    const run_t *run = context;
    const cli_bench_books_t *books = run->books;
    double seconds = (double)(now_ns() - run->begin_ns) / 1e9;
    char of[32] = "";
    if (run->plan->request_count != 0) {
        (void)snprintf(of, sizeof of, " of %llu", (unsigned long long)run->plan->request_count);
    }
    fprintf(stderr, "\r\033[K%.0f s: %llu%s answers, %u in flight, %.1f tokens/s, %llu errors",
            seconds, (unsigned long long)books->completed, of, run->running_count,
            (double)books->answer_tokens / seconds, (unsigned long long)books->failed);
}

static void
on_interrupt(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    run_t *run = context;
    run->stop = true;
    run->books->interrupted = true;
    run->books->unfinished = run->running_count;
    run->end_ns = now_ns(); /* what was still running took its time as well */
    (void)event_base_loopbreak(run->base);
}

static bool
make_slots(run_t *run)
{
    uint32_t count = run->plan->concurrency;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    run->slots = calloc(count, sizeof *run->slots);
    for (uint32_t i = 0; run->slots != NULL && i < count; i++) {
        slot_t *slot = &run->slots[i];
        slot->run = run;
        slot->timer = evtimer_new(run->base, on_time_limit, slot);
        slot->body = evbuffer_new();
        if (slot->timer == NULL || slot->body == NULL) {
            return false;
        }
    }
    return run->slots != NULL;
}

static void
fini(run_t *run)
{
    for (uint32_t i = 0; run->slots != NULL && i < run->plan->concurrency; i++) {
        slot_t *slot = &run->slots[i];
        if (slot->connection != NULL) {
            evhttp_connection_free(slot->connection);
        }
        if (slot->timer != NULL) {
            event_free(slot->timer);
        }
        if (slot->body != NULL) {
            evbuffer_free(slot->body);
        }
        free(slot->gaps.items);
    }
    free(run->slots);
    struct event *const events[] = {run->pump_timer, run->progress_timer, run->interrupt};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
        if (events[i] != NULL) {
            event_free(events[i]);
        }
    }
    if (run->base != NULL) {
        event_base_free(run->base);
    }
}

static bool
init(run_t *run)
{
    const cli_bench_plan_t *plan = run->plan;
    run->base = event_base_new();
    if (run->base == NULL) {
        return false;
    }
    run->pump_timer = evtimer_new(run->base, pump, run);
    run->progress_timer = event_new(run->base, -1, EV_PERSIST, on_progress, run);
    run->interrupt = evsignal_new(run->base, SIGINT, on_interrupt, run);
    (void)snprintf(run->head_host, sizeof run->head_host, "%s:%u", plan->url.host,
                   (unsigned)plan->url.port);
    (void)snprintf(run->head_key, sizeof run->head_key, "Bearer %s",
                   plan->key != NULL ? plan->key : "");
    (void)snprintf(run->path, sizeof run->path, "%s/v1/%s", plan->url.path,
                   plan->prompt.is_chat ? "chat/completions" : "completions");
    return run->pump_timer != NULL && run->progress_timer != NULL && run->interrupt != NULL &&
           make_slots(run);
}

proto_status_t
cli_bench_run(const cli_bench_plan_t *plan, cli_bench_prompts_t *prompts, cli_bench_books_t *books)
{
    run_t run = {.plan = plan, .prompts = prompts, .books = books, .random = {.state = plan->seed}};
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    if (init(&run)) {
        (void)evsignal_add(run.interrupt, NULL);
        struct timeval half = {.tv_usec = 500000};
        if (plan->show_progress) {
            (void)evtimer_add(run.progress_timer, &half);
        }
        run.begin_ns = run.end_ns = now_ns();
        run.arrival_ns = run.begin_ns;
        if (plan->rate > 0) {
            run.arrival_ns += cli_bench_random_gap_ns(&run.random, plan->rate);
        }
        event_active(run.pump_timer, EV_TIMEOUT, 0);
        (void)event_base_dispatch(run.base);
        books->wall_ns = run.end_ns - run.begin_ns;
        if (plan->show_progress) {
            fprintf(stderr, "\r\033[K");
        }
        status = books->no_memory ? STATUS_ERR_NO_MEMORY : STATUS_OK;
    }
    fini(&run);
    return status;
}
