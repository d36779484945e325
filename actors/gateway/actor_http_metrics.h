/* actor_http_metrics.h - what the gateway counts, and its text exposition for Prometheus.
 *
 * Every series has the prefix onepath_; those that dashboards of other servers know also appear
 * as vllm:... with the same labels and buckets (docs/http-api.md).  Fixed memory; the HTTP loop's
 * thread. */
#ifndef ACTOR_HTTP_METRICS_H
#define ACTOR_HTTP_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "actor_gateway_core.h"
#include "actor_http_text.h"
#include "actor_http_told.h"
#include "actor_http_trace.h"

enum {
    ACTOR_METRICS_BUCKET_COUNT_MAX = 24,
    ACTOR_METRICS_ROUTE_COUNT = 13,
    ACTOR_METRICS_STATUS_COUNT = 24,
};

/* The histograms, in the order of the exposition. */
typedef enum {
    ACTOR_METRICS_TTFT,
    ACTOR_METRICS_ITL,
    ACTOR_METRICS_E2E,
    ACTOR_METRICS_QUEUE,
    ACTOR_METRICS_INFERENCE,
    ACTOR_METRICS_PREFILL,
    ACTOR_METRICS_DECODE,
    ACTOR_METRICS_PROMPT_TOKENS,
    ACTOR_METRICS_GENERATION_TOKENS,
    ACTOR_METRICS_MAX_GENERATION,
    ACTOR_METRICS_PARAMS_N,
    ACTOR_METRICS_PARAMS_MAX_TOKENS,
    ACTOR_METRICS_ITERATION_TOKENS,
    ACTOR_METRICS_HISTOGRAM_COUNT,
} actor_metrics_histogram_t;

typedef struct {
    uint64_t buckets[ACTOR_METRICS_BUCKET_COUNT_MAX + 1]; /* not cumulative; the last is +Inf */
    uint64_t count;
    double sum;
} actor_metrics_counts_t;

typedef enum {
    ACTOR_METRICS_STOP,
    ACTOR_METRICS_LENGTH,
    ACTOR_METRICS_ABORT,
    ACTOR_METRICS_ERROR,
    ACTOR_METRICS_FINISH_COUNT,
} actor_metrics_finish_t;

/* Embed it, zeroed. */
typedef struct {
    actor_metrics_counts_t histograms[ACTOR_METRICS_HISTOGRAM_COUNT];
    uint64_t finished[ACTOR_METRICS_FINISH_COUNT];
    uint64_t prompt_tokens;     /* of ended choices, cached ones included */
    uint64_t generation_tokens; /* given to clients, counted as they come */
    struct {
        const char *route; /* static */
        int status;
        uint64_t count;
    } replies[ACTOR_METRICS_ROUTE_COUNT * ACTOR_METRICS_STATUS_COUNT];
    uint32_t reply_kind_count;
    uint64_t connections_accepted;
    uint64_t connections_refused;
    uint64_t clients_cut; /* slow readers and stalled writers */
    uint64_t last_steps;  /* of the LOAD before, for iteration_tokens_total */
    uint64_t last_tokens;
} actor_http_metrics_t;

void actor_http_metrics_observe(actor_http_metrics_t *self, actor_metrics_histogram_t histogram,
                                double value);
/* Counts one reply.  `route` is a static name. */
void actor_http_metrics_reply(actor_http_metrics_t *self, const char *route, int status);
/* Takes the steps since the LOAD before into iteration_tokens_total. */
void actor_http_metrics_load(actor_http_metrics_t *self, const proto_load_t *load);

typedef struct {
    const char *model_name;
    const proto_model_info_t *model; /* NULL: not known */
    const proto_load_t *load;
    actor_gateway_core_state_t state;
    uint32_t connection_count;
    uint64_t epoch;
    const proto_stats_t *stats; /* of the shell */
    const actor_http_actors_t *actors;
    bool is_held; /* drained */
    actor_http_trace_counts_t traces;
    bool vllm_names;
} actor_http_metrics_view_t;

/* Writes the whole exposition (text/plain; version=0.0.4). */
void actor_http_metrics_write(const actor_http_metrics_t *self,
                              const actor_http_metrics_view_t *view, actor_http_text_t *out);

#endif
