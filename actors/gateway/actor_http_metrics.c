/* actor_http_metrics.c - tables of names and buckets, and the exposition. */
#include "actor_http_metrics.h"

#include "actor_http_metrics_writer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proto_require.h"

static const double ttft_bounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                     1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
static const double itl_bounds[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                    .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
static const double request_bounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
static const double token_bounds[] = {1,   2,    5,    10,   20,    50,    100,   200,
                                      500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
static const double n_bounds[] = {1, 2, 5, 10, 20};
static const double iteration_bounds[] = {1,   8,    16,   32,   64,   128,  256,
                                          512, 1024, 2048, 4096, 8192, 16384};

#define BOUNDS(array) array, sizeof(array) / sizeof((array)[0])

static const struct {
    const char *name;
    const char *old_name; /* a second vllm: name that older dashboards use; or NULL */
    const char *help;
    const double *bounds;
    size_t bound_count;
} histograms[ACTOR_METRICS_HISTOGRAM_COUNT] = {
    [ACTOR_METRICS_TTFT] = {"time_to_first_token_seconds", NULL,
                            "From the request's arrival to its first token.", BOUNDS(ttft_bounds)},
    [ACTOR_METRICS_ITL] = {"inter_token_latency_seconds", "time_per_output_token_seconds",
                           "Between two tokens of one choice.", BOUNDS(itl_bounds)},
    [ACTOR_METRICS_E2E] = {"e2e_request_latency_seconds", NULL,
                           "From the request's arrival to its end.", BOUNDS(request_bounds)},
    [ACTOR_METRICS_QUEUE] = {"request_queue_time_seconds", NULL, "From submit to the first plan.",
                             BOUNDS(request_bounds)},
    [ACTOR_METRICS_INFERENCE] = {"request_inference_time_seconds", NULL,
                                 "From the first plan to the end.", BOUNDS(request_bounds)},
    [ACTOR_METRICS_PREFILL] = {"request_prefill_time_seconds", NULL,
                               "From the first plan to the first token.", BOUNDS(request_bounds)},
    [ACTOR_METRICS_DECODE] = {"request_decode_time_seconds", NULL,
                              "From the first token to the end.", BOUNDS(request_bounds)},
    [ACTOR_METRICS_PROMPT_TOKENS] = {"request_prompt_tokens", NULL, "Prompt tokens of a choice.",
                                     BOUNDS(token_bounds)},
    [ACTOR_METRICS_GENERATION_TOKENS] = {"request_generation_tokens", NULL,
                                         "Generated tokens of a choice.", BOUNDS(token_bounds)},
    [ACTOR_METRICS_MAX_GENERATION] = {"request_max_num_generation_tokens", NULL,
                                      "Most tokens generated for a choice of a request.",
                                      BOUNDS(token_bounds)},
    [ACTOR_METRICS_PARAMS_N] = {"request_params_n", NULL, "The request's n.", BOUNDS(n_bounds)},
    [ACTOR_METRICS_PARAMS_MAX_TOKENS] = {"request_params_max_tokens", NULL,
                                         "The request's max_tokens.", BOUNDS(token_bounds)},
    [ACTOR_METRICS_ITERATION_TOKENS] = {"iteration_tokens", "iteration_tokens_total",
                                        "Tokens computed in a step (mean of the steps between "
                                        "two reports of the scheduler).",
                                        BOUNDS(iteration_bounds)},
};

static const char *const finish_names[ACTOR_METRICS_FINISH_COUNT] = {
    [ACTOR_METRICS_STOP] = "stop",
    [ACTOR_METRICS_LENGTH] = "length",
    [ACTOR_METRICS_ABORT] = "abort",
    [ACTOR_METRICS_ERROR] = "error",
};

static void
observe_many(actor_http_metrics_t *self, actor_metrics_histogram_t histogram, double value,
             uint64_t count)
{
    require(histogram < ACTOR_METRICS_HISTOGRAM_COUNT);
    actor_metrics_counts_t *counts = &self->histograms[histogram];
    size_t at = 0;
    while (at < histograms[histogram].bound_count && value > histograms[histogram].bounds[at]) {
        at++;
    }
    bool beyond = at == histograms[histogram].bound_count;
    counts->buckets[beyond ? ACTOR_METRICS_BUCKET_COUNT_MAX : at] += count;
    counts->count += count;
    counts->sum += value * (double)count;
}

void
actor_http_metrics_observe(actor_http_metrics_t *self, actor_metrics_histogram_t histogram,
                           double value)
{
    observe_many(self, histogram, value, 1);
}

void
actor_http_metrics_reply(actor_http_metrics_t *self, const char *route, int status)
{
    for (uint32_t at = 0; at < self->reply_kind_count; at++) {
        if (self->replies[at].status == status && strcmp(self->replies[at].route, route) == 0) {
            self->replies[at].count++;
            return;
        }
    }
    require(self->reply_kind_count < sizeof self->replies / sizeof self->replies[0]);
    self->replies[self->reply_kind_count].route = route;
    self->replies[self->reply_kind_count].status = status;
    self->replies[self->reply_kind_count++].count = 1;
}

void
actor_http_metrics_load(actor_http_metrics_t *self, const proto_load_t *load)
{
    uint64_t tokens = load->prompt_tokens + load->generation_tokens;
    if (load->steps > self->last_steps && tokens >= self->last_tokens) {
        uint64_t steps = load->steps - self->last_steps;
        observe_many(self, ACTOR_METRICS_ITERATION_TOKENS,
                     (double)(tokens - self->last_tokens) / (double)steps, steps);
    }
    self->last_steps = load->steps;
    self->last_tokens = tokens;
}

/* ---- exposition ------------------------------------------------------------------------------ */

static void
write_histogram(const actor_metrics_writer_t *writer, const char *name,
                actor_metrics_histogram_t histogram, const actor_metrics_counts_t *counts)
{
    char series[96];
    actor_metrics_describe(writer, name, "histogram", histograms[histogram].help);
    (void)snprintf(series, sizeof series, "%s_bucket", name);
    uint64_t sum = 0;
    for (size_t at = 0; at < histograms[histogram].bound_count; at++) {
        char label[40];
        sum += counts->buckets[at];
        (void)snprintf(label, sizeof label, ",le=\"%g\"", histograms[histogram].bounds[at]);
        actor_metrics_write_value(writer, series, label, (double)sum);
    }
    actor_metrics_write_value(writer, series, ",le=\"+Inf\"", (double)counts->count);
    (void)snprintf(series, sizeof series, "%s_sum", name);
    actor_metrics_write_value(writer, series, "", counts->sum);
    (void)snprintf(series, sizeof series, "%s_count", name);
    actor_metrics_write_value(writer, series, "", (double)counts->count);
}

static double
usage_of(const proto_load_t *load)
{
    if (load->blocks_total == 0) {
        return 0.0;
    }
    double unused = (double)load->blocks_free + (double)load->blocks_cached;
    double used = 1.0 - unused / (double)load->blocks_total;
    return used < 0.0 ? 0.0 : used;
}

/* The series that exist under both prefixes. */
static void
write_shared(const actor_http_metrics_t *self, const actor_http_metrics_view_t *view,
             const actor_metrics_writer_t *writer, bool is_alias)
{
    const proto_load_t *load = view->load;
    actor_metrics_write_one(writer, "num_requests_running", "gauge", "Requests with a slot.",
                            load->running);
    actor_metrics_write_one(writer, "num_requests_waiting", "gauge", "Requests without one.",
                            load->waiting);
    actor_metrics_write_one(writer, "kv_cache_usage_perc", "gauge",
                            "Blocks held by requests, 0 to 1.", usage_of(load));
    if (is_alias) {
        actor_metrics_write_one(writer, "gpu_cache_usage_perc", "gauge",
                                "Old name of kv_cache_usage_perc.", usage_of(load));
    }
    actor_metrics_write_one(writer, "prefix_cache_queries_total", "counter",
                            "Prompt tokens looked up in the prefix cache.",
                            (double)load->prefix_queries);
    actor_metrics_write_one(writer, "prefix_cache_hits_total", "counter",
                            "Prompt tokens found there.", (double)load->prefix_hits);
    actor_metrics_write_one(writer, "num_preemptions_total", "counter", "Requests retracted.",
                            (double)load->preemptions);
    actor_metrics_write_one(writer, "prompt_tokens_total", "counter",
                            "Prompt tokens of ended choices.", (double)self->prompt_tokens);
    actor_metrics_write_one(writer, "generation_tokens_total", "counter",
                            "Tokens given to clients.", (double)self->generation_tokens);
    actor_metrics_describe(writer, "request_success_total", "counter",
                           "Choices by the reason of their end.");
    for (int at = 0; at < ACTOR_METRICS_FINISH_COUNT; at++) {
        char label[48];
        (void)snprintf(label, sizeof label, ",finished_reason=\"%s\"", finish_names[at]);
        actor_metrics_write_value(writer, "request_success_total", label,
                                  (double)self->finished[at]);
    }
    for (int at = 0; at < ACTOR_METRICS_HISTOGRAM_COUNT; at++) {
        actor_metrics_histogram_t histogram = (actor_metrics_histogram_t)at;
        write_histogram(writer, histograms[at].name, histogram, &self->histograms[at]);
        if (is_alias && histograms[at].old_name != NULL) {
            write_histogram(writer, histograms[at].old_name, histogram, &self->histograms[at]);
        }
    }
    if (is_alias) {
        actor_metrics_write_one(writer, "spec_decode_num_draft_tokens_total", "counter",
                                "Candidates of a drafter.", (double)load->drafts_proposed);
        actor_metrics_write_one(writer, "spec_decode_num_accepted_tokens_total", "counter",
                                "Of these, accepted.", (double)load->drafts_accepted);
    }
    if (view->model != NULL) {
        char label[160];
        (void)snprintf(label, sizeof label,
                       ",block_size=\"%u\",num_gpu_blocks=\"%u\",cache_dtype=\"auto\"",
                       view->model->prefix_granularity, load->blocks_total);
        actor_metrics_describe(writer, "cache_config_info", "gauge", "Shape of the cache.");
        actor_metrics_write_value(writer, "cache_config_info", label, 1.0);
    }
}

void
actor_http_metrics_write(const actor_http_metrics_t *self, const actor_http_metrics_view_t *view,
                         actor_http_text_t *out)
{
    /* A label's value is escaped as a JSON string is, as far as names of models go. */
    actor_http_text_t labels = {0};
    actor_http_text_puts(&labels, "model_name=");
    actor_http_text_json(&labels, view->model_name, strlen(view->model_name));
    actor_http_text_add(&labels, ",engine=\"0\"", sizeof ",engine=\"0\""); /* with the zero */
    if (labels.failed) {
        out->failed = true;
        actor_http_text_fini(&labels);
        return;
    }
    actor_metrics_writer_t writer = {.out = out, .prefix = "onepath_", .labels = labels.data};
    write_shared(self, view, &writer, false);
    actor_metrics_write_own(self, view, &writer);
    if (view->vllm_names) {
        writer.prefix = "vllm:";
        write_shared(self, view, &writer, true);
    }
    actor_http_text_fini(&labels);
}
