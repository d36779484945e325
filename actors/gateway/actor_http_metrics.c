/* actor_http_metrics.c - tables of names and buckets, and the exposition. */
#include "actor_http_metrics.h"

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
    [ACTOR_METRICS_ITERATION_TOKENS] = {"iteration_tokens_total", NULL,
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

typedef struct {
    actor_http_text_t *out;
    const char *prefix;
    const char *labels; /* model_name="...",engine="0" */
} writer_t;

static void
describe(const writer_t *writer, const char *name, const char *type, const char *help)
{
    actor_http_text_printf(writer->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", writer->prefix, name,
                           help, writer->prefix, name, type);
}

static void
write_value(const writer_t *writer, const char *name, const char *more_labels, double value)
{
    actor_http_text_printf(writer->out, "%s%s{%s%s} ", writer->prefix, name, writer->labels,
                           more_labels);
    if (fabs(value) < 9e15 && value == floor(value)) {
        actor_http_text_printf(writer->out, "%.0f\n", value);
    } else {
        actor_http_text_printf(writer->out, "%.9g\n", value);
    }
}

static void
write_one(const writer_t *writer, const char *name, const char *type, const char *help,
          double value)
{
    describe(writer, name, type, help);
    write_value(writer, name, "", value);
}

static void
write_histogram(const writer_t *writer, const char *name, actor_metrics_histogram_t histogram,
                const actor_metrics_counts_t *counts)
{
    char series[96];
    describe(writer, name, "histogram", histograms[histogram].help);
    (void)snprintf(series, sizeof series, "%s_bucket", name);
    uint64_t sum = 0;
    for (size_t at = 0; at < histograms[histogram].bound_count; at++) {
        char label[40];
        sum += counts->buckets[at];
        (void)snprintf(label, sizeof label, ",le=\"%g\"", histograms[histogram].bounds[at]);
        write_value(writer, series, label, (double)sum);
    }
    write_value(writer, series, ",le=\"+Inf\"", (double)counts->count);
    (void)snprintf(series, sizeof series, "%s_sum", name);
    write_value(writer, series, "", counts->sum);
    (void)snprintf(series, sizeof series, "%s_count", name);
    write_value(writer, series, "", (double)counts->count);
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
             const writer_t *writer, bool is_alias)
{
    const proto_load_t *load = view->load;
    write_one(writer, "num_requests_running", "gauge", "Requests with a slot.", load->running);
    write_one(writer, "num_requests_waiting", "gauge", "Requests without one.", load->waiting);
    write_one(writer, "kv_cache_usage_perc", "gauge", "Blocks held by requests, 0 to 1.",
              usage_of(load));
    if (is_alias) {
        write_one(writer, "gpu_cache_usage_perc", "gauge", "Old name of kv_cache_usage_perc.",
                  usage_of(load));
    }
    write_one(writer, "prefix_cache_queries_total", "counter",
              "Prompt tokens looked up in the prefix cache.", (double)load->prefix_queries);
    write_one(writer, "prefix_cache_hits_total", "counter", "Prompt tokens found there.",
              (double)load->prefix_hits);
    write_one(writer, "num_preemptions_total", "counter", "Requests retracted.",
              (double)load->preemptions);
    write_one(writer, "prompt_tokens_total", "counter", "Prompt tokens of ended choices.",
              (double)self->prompt_tokens);
    write_one(writer, "generation_tokens_total", "counter", "Tokens given to clients.",
              (double)self->generation_tokens);
    describe(writer, "request_success_total", "counter", "Choices by the reason of their end.");
    for (int at = 0; at < ACTOR_METRICS_FINISH_COUNT; at++) {
        char label[48];
        (void)snprintf(label, sizeof label, ",finished_reason=\"%s\"", finish_names[at]);
        write_value(writer, "request_success_total", label, (double)self->finished[at]);
    }
    for (int at = 0; at < ACTOR_METRICS_HISTOGRAM_COUNT; at++) {
        actor_metrics_histogram_t histogram = (actor_metrics_histogram_t)at;
        write_histogram(writer, histograms[at].name, histogram, &self->histograms[at]);
        if (is_alias && histograms[at].old_name != NULL) {
            write_histogram(writer, histograms[at].old_name, histogram, &self->histograms[at]);
        }
    }
    if (view->model != NULL) {
        char label[160];
        (void)snprintf(label, sizeof label,
                       ",block_size=\"%u\",num_gpu_blocks=\"%u\",cache_dtype=\"auto\"",
                       view->model->prefix_granularity, load->blocks_total);
        describe(writer, "cache_config_info", "gauge", "Shape of the cache.");
        write_value(writer, "cache_config_info", label, 1.0);
    }
}

/* The series of our own. */
/* The drafter's name, as the model's fingerprint has it. */
static void
drafter_label(const proto_model_info_t *model, char out[64])
{
    (void)snprintf(out, 64, ",drafter=\"none\"");
    const char *text = model == NULL ? NULL : model->fingerprint.data;
    const char *at =
        text == NULL ? NULL : memmem(text, model->fingerprint.size_bytes, ";draft=", 7);
    if (at == NULL) {
        return;
    }
    at += 7;
    size_t rest = model->fingerprint.size_bytes - (size_t)(at - text);
    size_t length = 0;
    while (length < rest && length < 31 &&
           ((at[length] >= 'a' && at[length] <= 'z') || (at[length] >= '0' && at[length] <= '9'))) {
        length++;
    }
    (void)snprintf(out, 64, ",drafter=\"%.*s\"", (int)length, at);
}

static void
write_drafts(const actor_http_metrics_view_t *view, const writer_t *writer)
{
    const proto_load_t *load = view->load;
    char label[64];
    drafter_label(view->model, label);
    describe(writer, "wide_steps_total", "counter", "Decode steps with room for proposed tokens.");
    write_value(writer, "wide_steps_total", label, (double)load->wide_steps);
    describe(writer, "drafts_proposed_total", "counter", "Proposed tokens that were verified.");
    write_value(writer, "drafts_proposed_total", label, (double)load->drafts_proposed);
    describe(writer, "drafts_accepted_total", "counter", "Of these, accepted.");
    write_value(writer, "drafts_accepted_total", label, (double)load->drafts_accepted);
    describe(writer, "drafts_missing_total", "counter",
             "Rows of such steps for which nothing was proposed.");
    write_value(writer, "drafts_missing_total", label, (double)load->drafts_missing);
    describe(writer, "drafts_ignored_total", "counter",
             "Proposals that were stale, miscounted or no tokens: never verified.");
    write_value(writer, "drafts_ignored_total", label, (double)load->drafts_ignored);
    describe(writer, "draft_acceptance", "gauge", "Accepted of verified, since the start.");
    double proposed = (double)load->drafts_proposed;
    write_value(writer, "draft_acceptance", label,
                proposed > 0.0 ? (double)load->drafts_accepted / proposed : 0.0);
}

static void
write_own(const actor_http_metrics_t *self, const actor_http_metrics_view_t *view,
          const writer_t *writer)
{
    const proto_load_t *load = view->load;
    uint32_t unused = load->blocks_free + load->blocks_cached;
    uint32_t active = load->blocks_total > unused ? load->blocks_total - unused : 0;
    describe(writer, "kv_blocks", "gauge", "Blocks by state.");
    write_value(writer, "kv_blocks", ",state=\"free\"", load->blocks_free);
    write_value(writer, "kv_blocks", ",state=\"cached\"", load->blocks_cached);
    write_value(writer, "kv_blocks", ",state=\"active\"", active);
    write_one(writer, "steps_total", "counter", "Plans made.", (double)load->steps);
    write_one(writer, "plans_refused_total", "counter", "Plans that an executor refused.",
              (double)load->plans_refused);
    describe(writer, "decode_steps_total", "counter", "Decode steps by how they ran.");
    write_value(writer, "decode_steps_total", ",mode=\"graph\"", (double)load->graph_steps);
    write_value(writer, "decode_steps_total", ",mode=\"eager\"", (double)load->eager_steps);
    write_one(writer, "decode_steps_above_ladder_total", "counter",
              "Eager decode steps whose batch was above the capture ladder.",
              (double)load->above_ladder_steps);
    write_drafts(view, writer);
    write_one(writer, "ready", "gauge", "1: a scheduler and an executor are attached.",
              view->state.ready ? 1.0 : 0.0);
    write_one(writer, "epoch", "gauge", "Incarnation of the gateway.", (double)view->epoch);
    write_one(writer, "choices_open", "gauge", "Choices without an end.", view->state.open_count);
    write_one(writer, "choices_waiting", "gauge", "Of these, without a scheduler.",
              view->state.waiting_count);
    write_one(writer, "resumed_requests_total", "counter",
              "Choices that another scheduler or executor went on with.",
              (double)view->state.resumed_count);
    write_one(writer, "poisoned_requests_total", "counter", "Choices that executors died of.",
              (double)view->state.poisoned_count);
    write_one(writer, "unresumable_requests_total", "counter",
              "Choices that could not have been: the history was full.",
              (double)view->state.unkept_count);
    write_one(writer, "history_used_bytes", "gauge", "Kept of open choices, to submit them again.",
              (double)view->state.history_used_bytes);
    write_one(writer, "token_stream_gaps_total", "counter", "Choices lost to a hole.",
              (double)view->state.gap_count);
    write_one(writer, "rejected_messages_total", "counter", "Messages that were refused.",
              (double)view->stats->refused_in);
    write_one(writer, "record_dropped_total", "counter", "Log records dropped.",
              (double)view->stats->record_dropped);
    write_one(writer, "http_connections", "gauge", "Open connections.", view->connection_count);
    write_one(writer, "http_connections_accepted_total", "counter", "Connections accepted.",
              (double)self->connections_accepted);
    write_one(writer, "http_connections_refused_total", "counter", "Connections over a limit.",
              (double)self->connections_refused);
    write_one(writer, "http_clients_cut_total", "counter", "Clients that read too slowly.",
              (double)self->clients_cut);
    describe(writer, "http_requests_total", "counter", "Replies by route and status.");
    for (uint32_t at = 0; at < self->reply_kind_count; at++) {
        char label[96];
        (void)snprintf(label, sizeof label, ",route=\"%s\",code=\"%d\"", self->replies[at].route,
                       self->replies[at].status);
        write_value(writer, "http_requests_total", label, (double)self->replies[at].count);
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
    writer_t writer = {.out = out, .prefix = "onepath_", .labels = labels.data};
    write_shared(self, view, &writer, false);
    write_own(self, view, &writer);
    if (view->vllm_names) {
        writer.prefix = "vllm:";
        write_shared(self, view, &writer, true);
    }
    actor_http_text_fini(&labels);
}
