/* What `onepath bench` measured, and how it says so. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli_bench.h"

enum { PLOT_ROWS = 12, PLOT_WIDTH = 50, PERCENT_COUNT = 4 };

static const double percents[PERCENT_COUNT] = {50, 90, 95, 99};
static const char *const percent_names[PERCENT_COUNT] = {"p50", "p90", "p95", "p99"};

bool
cli_bench_samples_add(cli_bench_samples_t *self, uint64_t ns)
{
    if (self->count == self->capacity) {
        size_t capacity = self->capacity == 0 ? 256 : self->capacity * 2;
        uint32_t *items = realloc(self->items, capacity * sizeof *items);
        if (items == NULL) {
            return false;
        }
        self->items = items;
        self->capacity = capacity;
    }
    uint64_t us = ns / 1000;
    self->items[self->count++] = us > UINT32_MAX ? UINT32_MAX : (uint32_t)us;
    self->sorted = false;
    return true;
}

static int
compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return x < y ? -1 : x > y ? 1 : 0;
}

uint32_t
cli_bench_samples_percentile(cli_bench_samples_t *self, double percent)
{
    if (self->count == 0) {
        return 0;
    }
    if (!self->sorted) {
        qsort(self->items, self->count, sizeof *self->items, compare);
        self->sorted = true;
    }
    double rank = ceil(percent / 100.0 * (double)self->count);
    size_t index = rank < 1 ? 0 : (size_t)rank - 1;
    return self->items[index < self->count ? index : self->count - 1];
}

void
cli_bench_books_error(cli_bench_books_t *self, const char *kind, const char *why)
{
    uint32_t at = 0;
    while (at < self->error_kind_count && strcmp(self->errors[at].kind, kind) != 0) {
        at++;
    }
    if (at == CLI_BENCH_KIND_COUNT_MAX) {
        at--;
    } else if (at == self->error_kind_count) {
        self->error_kind_count++;
        bool is_last = at == CLI_BENCH_KIND_COUNT_MAX - 1;
        (void)snprintf(self->errors[at].kind, sizeof self->errors[at].kind, "%s",
                       is_last ? "others" : kind);
        (void)snprintf(self->errors[at].first, sizeof self->errors[at].first, "%s", why);
    }
    self->errors[at].count++;
}

void
cli_bench_books_fini(cli_bench_books_t *self)
{
    free(self->first_token.items);
    free(self->between.items);
    free(self->whole.items);
    free(self->delay.items);
    memset(self, 0, sizeof *self);
}

/* ---- for people ------------------------------------------------------------------------------ */

static void
print_row(FILE *out, const char *name, cli_bench_samples_t *samples)
{
    if (samples->count == 0) {
        return;
    }
    fprintf(out, "%-22s", name);
    for (size_t i = 0; i < PERCENT_COUNT; i++) {
        fprintf(out, " %9.2f", (double)cli_bench_samples_percentile(samples, percents[i]) / 1e3);
    }
    fprintf(out, " %9.2f\n", (double)cli_bench_samples_percentile(samples, 100) / 1e3);
}

/* A histogram whose rows grow by one factor each, from the least to the largest. */
static void
print_plot(FILE *out, const char *name, cli_bench_samples_t *samples)
{
    uint32_t least = cli_bench_samples_percentile(samples, 0);
    uint32_t largest = cli_bench_samples_percentile(samples, 100);
    if (samples->count < 2 || least == largest) {
        return;
    }
    least = least == 0 ? 1 : least;
    double factor = pow((double)largest / least, 1.0 / PLOT_ROWS);
    size_t counts[PLOT_ROWS] = {0};
    size_t most = 1;
    for (size_t i = 0; i < samples->count; i++) {
        double value = samples->items[i] < least ? least : samples->items[i];
        double row = factor > 1.0 ? floor(log(value / least) / log(factor)) : 0;
        size_t at = row < 0 ? 0 : row >= PLOT_ROWS ? PLOT_ROWS - 1 : (size_t)row;
        counts[at]++;
        most = counts[at] > most ? counts[at] : most;
    }
    fprintf(out, "\n%s, ms\n", name);
    for (size_t i = 0; i < PLOT_ROWS; i++) {
        int width = (int)((counts[i] * PLOT_WIDTH + most - 1) / most);
        fprintf(out, "%10.2f |%.*s %zu\n", least * pow(factor, (double)i) / 1e3, width,
                "##################################################", counts[i]);
    }
}

static double
per_second(const cli_bench_books_t *books, uint64_t count)
{
    return books->wall_ns > 0 ? (double)count * 1e9 / (double)books->wall_ns : 0;
}

void
cli_bench_print_text(const cli_bench_plan_t *plan, cli_bench_books_t *books, FILE *out)
{
    fprintf(out, "%" PRIu64 " of %" PRIu64 " %s answered, %" PRIu64 " failed", books->completed,
            books->started, books->started == 1 ? "request" : "requests", books->failed);
    if (books->interrupted) {
        fprintf(out, ", %" PRIu64 " broken off by the interrupt", books->unfinished);
    }
    fprintf(out, "; %.2f s, seed %" PRId64 "\n", (double)books->wall_ns / 1e9, (int64_t)plan->seed);
    fprintf(out, "%.2f requests/s, %.1f answer tokens/s, %.1f prompt tokens/s\n",
            per_second(books, books->completed), per_second(books, books->answer_tokens),
            per_second(books, books->prompt_tokens));
    if (books->without_usage > 0) {
        fprintf(out, "%" PRIu64 " answers came without usage: their tokens are events with text\n",
                books->without_usage);
    }
    if (books->empty > 0) {
        fprintf(out, "%" PRIu64 " answers had no text\n", books->empty);
    }
    if (books->completed > 0) {
        fprintf(out, "\n%-22s %9s %9s %9s %9s %9s\n", "ms", "p50", "p90", "p95", "p99", "max");
        print_row(out, "to the first token", &books->first_token);
        print_row(out, "between tokens", &books->between);
        print_row(out, "whole answer", &books->whole);
        if (plan->rate > 0) {
            print_row(out, "begun later than meant", &books->delay);
        }
        print_plot(out, "to the first token", &books->first_token);
        print_plot(out, "between tokens", &books->between);
        if (books->first_token.count == 0) {
            print_plot(out, "whole answer", &books->whole);
        }
    }
    for (uint32_t i = 0; i < books->error_kind_count; i++) {
        const cli_bench_error_t *error = &books->errors[i];
        fprintf(out, "%s%6" PRIu64 " %-14s the first one: %s\n", i == 0 ? "\nerrors\n" : "",
                error->count, error->kind, error->first);
    }
}

/* ---- for programs ---------------------------------------------------------------------------- */

static json_t *
json_samples(cli_bench_samples_t *samples)
{
    json_t *object = json_pack("{s:I}", "count", (json_int_t)samples->count);
    if (object == NULL || samples->count == 0) {
        return object;
    }
    double sum = 0;
    for (size_t i = 0; i < samples->count; i++) {
        sum += (double)samples->items[i];
    }
    (void)json_object_set_new(object, "mean", json_real(sum / (double)samples->count / 1e3));
    for (size_t i = 0; i < PERCENT_COUNT; i++) {
        (void)json_object_set_new(
            object, percent_names[i],
            json_real((double)cli_bench_samples_percentile(samples, percents[i]) / 1e3));
    }
    (void)json_object_set_new(object, "min",
                              json_real((double)cli_bench_samples_percentile(samples, 0) / 1e3));
    (void)json_object_set_new(object, "max",
                              json_real((double)cli_bench_samples_percentile(samples, 100) / 1e3));
    return object;
}

static json_t *
json_length(const cli_bench_length_t *length)
{
    static const char *const names[] = {"fixed", "uniform", "normal", "exponential"};
    return json_pack("{s:s, s:i, s:i}", "spread", names[length->spread], "a", (int)length->a, "b",
                     (int)length->b);
}

static json_t *
json_settings(const cli_bench_plan_t *plan)
{
    const cli_bench_prompt_options_t *prompt = &plan->prompt;
    return json_pack(
        "{s:s, s:i, s:s, s:s, s:s, s:b, s:b, s:I, s:I, s:f, s:f, s:f, s:I, s:s?, s:i, s:o, s:o}",
        "host", plan->url.host, "port", (int)plan->url.port, "path", plan->url.path, "model",
        prompt->model, "api", prompt->is_chat ? "chat" : "completions", "stream",
        (int)prompt->stream, "ignore_eos", (int)prompt->ignore_eos, "concurrency",
        (json_int_t)plan->concurrency, "requests", (json_int_t)plan->request_count, "duration_s",
        (double)plan->duration_ns / 1e9, "rate", plan->rate, "timeout_s",
        (double)plan->timeout_ns / 1e9, "seed", (json_int_t)plan->seed, "prompts", prompt->file,
        "prefix_words", (int)prompt->prefix_words, "prompt_words",
        json_length(&prompt->prompt_words), "max_tokens", json_length(&prompt->tokens_max));
}

json_t *
cli_bench_report_json(const cli_bench_plan_t *plan, cli_bench_books_t *books)
{
    json_t *errors = json_array();
    for (uint32_t i = 0; i < books->error_kind_count; i++) {
        const cli_bench_error_t *error = &books->errors[i];
        /* The server's words, or our cut of them, may be no UTF-8. */
        json_t *first = json_string(error->first);
        (void)json_array_append_new(errors,
                                    json_pack("{s:s, s:I, s:o}", "kind", error->kind, "count",
                                              (json_int_t)error->count, "first",
                                              first != NULL ? first : json_string("(not UTF-8)")));
    }
    return json_pack(
        "{s:o, s:b, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:o, s:o, s:o, "
        "s:o, s:o}",
        "settings", json_settings(plan), "interrupted", (int)books->interrupted, "wall_s",
        (double)books->wall_ns / 1e9, "started", (json_int_t)books->started, "completed",
        (json_int_t)books->completed, "failed", (json_int_t)books->failed, "unfinished",
        (json_int_t)books->unfinished, "empty", (json_int_t)books->empty, "answer_tokens",
        (json_int_t)books->answer_tokens, "prompt_tokens", (json_int_t)books->prompt_tokens,
        "answers_without_usage", (json_int_t)books->without_usage, "requests_per_s",
        per_second(books, books->completed), "answer_tokens_per_s",
        per_second(books, books->answer_tokens), "prompt_tokens_per_s",
        per_second(books, books->prompt_tokens), "first_token_ms",
        json_samples(&books->first_token), "between_tokens_ms", json_samples(&books->between),
        "whole_answer_ms", json_samples(&books->whole), "start_delay_ms",
        json_samples(&books->delay), "errors", errors);
}
