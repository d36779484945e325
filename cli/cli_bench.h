/* cli_bench.h - the parts of `onepath bench`, a load generator for OpenAI-style endpoints.
 *
 * Main thread only.  The prompt source and the books know nothing of HTTP; cli_bench_run.c drives
 * them with libevent.  A latency counts from the moment at which the request should have begun: a
 * server that stands still cannot hide that by holding the generator up. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "proto_status.h"

/* ---- numbers from one seed ------------------------------------------------------------------- */

typedef struct {
    uint64_t state;
} cli_bench_random_t;

uint64_t cli_bench_random_next(cli_bench_random_t *self);

/* A time between two arrivals of a Poisson process of `rate` in 1/s; nanoseconds. */
uint64_t cli_bench_random_gap_ns(cli_bench_random_t *self, double rate);

typedef enum {
    CLI_BENCH_FIXED,       /* "128" */
    CLI_BENCH_UNIFORM,     /* "64-512", both included */
    CLI_BENCH_NORMAL,      /* "normal:128:32": mean and standard deviation, at least 1 */
    CLI_BENCH_EXPONENTIAL, /* "exp:128": mean, at least 1 */
} cli_bench_spread_t;

typedef struct {
    cli_bench_spread_t spread;
    uint32_t a, b; /* the value; least and largest; mean and deviation */
} cli_bench_length_t;

/* STATUS_ERR_INVALID for what is none of the forms above, or outside 1 .. 1,000,000. */
MUST_CHECK proto_status_t cli_bench_length_parse(const char *text, cli_bench_length_t *out);
uint32_t cli_bench_length_draw(const cli_bench_length_t *self, cli_bench_random_t *random);

/* ---- what is asked --------------------------------------------------------------------------- */

typedef struct {
    const char *model;
    bool is_chat;
    bool stream;
    bool ignore_eos;
    cli_bench_length_t prompt_words;
    cli_bench_length_t tokens_max;
    uint32_t prefix_words; /* the same in every prompt, before the rest */
    const char *file;      /* JSON lines; NULL: made-up words */
} cli_bench_prompt_options_t;

typedef struct cli_bench_prompts cli_bench_prompts_t;

/* Reads the file, if there is one; prints what is wrong with which line.  The caller owns *out_p;
 * `options` is lent for the life of the source. */
MUST_CHECK proto_status_t cli_bench_prompts_new(const cli_bench_prompt_options_t *options,
                                                cli_bench_prompts_t **out_p);
void cli_bench_prompts_destroy(cli_bench_prompts_t **self_p);

/* The body of request `number`: JSON that the caller frees.  NULL without memory. */
char *cli_bench_prompts_body(cli_bench_prompts_t *self, uint64_t number,
                             cli_bench_random_t *random);

/* ---- one answer ------------------------------------------------------------------------------ */

enum { CLI_BENCH_LINE_SIZE_BYTES = 64 * 1024, CLI_BENCH_WHY_SIZE_BYTES = 256 };

typedef enum {
    CLI_BENCH_STREAM_OPEN,
    CLI_BENCH_STREAM_DONE,      /* [DONE] came */
    CLI_BENCH_STREAM_MALFORMED, /* an event is no JSON object of this API */
    CLI_BENCH_STREAM_ERROR,     /* the server sent an error event */
} cli_bench_stream_state_t;

/* Server-sent events from bytes that are cut anywhere. */
typedef struct {
    cli_bench_stream_state_t state;
    uint32_t piece_count;  /* events with text so far */
    uint32_t token_count;  /* from the usage event; 0 without one */
    uint32_t prompt_count; /* likewise */
    char why[CLI_BENCH_WHY_SIZE_BYTES];
    size_t line_len;
    char line[CLI_BENCH_LINE_SIZE_BYTES];
} cli_bench_stream_t;

void cli_bench_stream_init(cli_bench_stream_t *self);

/* Takes bytes; returns how many events with text they completed. */
uint32_t cli_bench_stream_push(cli_bench_stream_t *self, const char *data, size_t size_bytes);

/* The whole body of an answer that is not streamed, or the message of an error answer. */
void cli_bench_stream_whole(cli_bench_stream_t *self, const char *body, size_t size_bytes);

/* ---- the books ------------------------------------------------------------------------------- */

typedef struct {
    uint32_t *items; /* microseconds */
    size_t count, capacity;
    bool sorted;
} cli_bench_samples_t;

/* False without memory. */
bool cli_bench_samples_add(cli_bench_samples_t *self, uint64_t ns);

/* The smallest sample that at least `percent` of all do not exceed; 0 of none.  Microseconds. */
uint32_t cli_bench_samples_percentile(cli_bench_samples_t *self, double percent);

enum { CLI_BENCH_KIND_COUNT_MAX = 32, CLI_BENCH_KIND_SIZE_BYTES = 24 };

typedef struct {
    char kind[CLI_BENCH_KIND_SIZE_BYTES]; /* connect, timeout, broken_stream, http_429 ... */
    uint64_t count;
    char first[CLI_BENCH_WHY_SIZE_BYTES]; /* the message of the first one */
} cli_bench_error_t;

typedef struct {
    cli_bench_samples_t first_token;                    /* from the intended start */
    cli_bench_samples_t between;                        /* two events with text of one answer */
    cli_bench_samples_t whole;                          /* whole answers, from the intended start */
    cli_bench_samples_t delay;                          /* intended to real start */
    cli_bench_error_t errors[CLI_BENCH_KIND_COUNT_MAX]; /* the last one takes what has no room */
    uint32_t error_kind_count;
    uint64_t started, completed, failed, unfinished;
    uint64_t empty; /* completed without any text */
    uint64_t answer_tokens, prompt_tokens;
    uint64_t without_usage; /* completed answers whose tokens are their events with text */
    uint64_t wall_ns;
    bool interrupted;
    bool no_memory;
} cli_bench_books_t;

void cli_bench_books_error(cli_bench_books_t *self, const char *kind, const char *why);
void cli_bench_books_fini(cli_bench_books_t *self);

/* ---- a run ----------------------------------------------------------------------------------- */

typedef struct {
    char host[256];    /* as it is written: [::1] */
    char address[256]; /* to connect to: ::1 */
    uint16_t port;
    char path[256]; /* before /v1, without a slash at its end */
} cli_bench_url_t;

/* "http://host:port", with or without a path and /v1 at its end.  STATUS_ERR_INVALID otherwise. */
MUST_CHECK proto_status_t cli_bench_url_parse(const char *text, cli_bench_url_t *out);

typedef struct {
    cli_bench_url_t url;
    cli_bench_prompt_options_t prompt;
    const char *key;        /* NULL: none */
    uint32_t concurrency;   /* requests at once, at most */
    uint64_t request_count; /* 0: no limit */
    uint64_t duration_ns;   /* 0: no limit */
    double rate;            /* requests per second; 0: a closed loop */
    uint64_t timeout_ns;    /* of one request, from its real start */
    uint64_t seed;
    bool show_progress;
} cli_bench_plan_t;

/* Asks /v1/models for the first model.  STATUS_ERR_PEER_LOST: nobody there; STATUS_ERR_REFUSED: no
 * such answer; `why` says more. */
MUST_CHECK proto_status_t cli_bench_ask_model(const cli_bench_plan_t *plan, char *out,
                                              size_t capacity_bytes,
                                              char why[CLI_BENCH_WHY_SIZE_BYTES]);

/* Why no connection comes about: libevent does not tell.  Waits for a second at most. */
void cli_bench_probe(const cli_bench_url_t *url, char why[CLI_BENCH_WHY_SIZE_BYTES]);

/* Does it all; ends early in good order after SIGINT. */
MUST_CHECK proto_status_t cli_bench_run(const cli_bench_plan_t *plan, cli_bench_prompts_t *prompts,
                                        cli_bench_books_t *books);

void cli_bench_print_text(const cli_bench_plan_t *plan, cli_bench_books_t *books, FILE *out);

/* The caller owns the result; NULL without memory. */
json_t *cli_bench_report_json(const cli_bench_plan_t *plan, cli_bench_books_t *books);

/* ---- a node of its own ----------------------------------------------------------------------- */

/* Starts `onepath serve ARGUMENTS... --port 0` and waits until it is ready; its lines go on to
 * stderr.  STATUS_ERR_PEER_LOST if it ended, with its exit code in *exit_code; STATUS_ERR_TOO_LARGE
 * and 78 there if there are more arguments than 128; STATUS_ERR_IO: no pipe or no process. */
MUST_CHECK proto_status_t cli_bench_node_start(char *const *arguments, cli_bench_url_t *url,
                                               int *exit_code);

/* Asks it to end and waits. */
void cli_bench_node_stop(void);

#endif
