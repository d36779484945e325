/* actor_http_exchange.c - an exchange from its request to the core's hands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_gateway_table.h"
#include "actor_http_server.h"
#include "proto_clock.h"
#include "proto_require.h"

enum {
    INLINE_BODY_SIZE_MAX = 16 * 1024, /* larger bodies are parsed by the worker */
    SAMPLING_SIZE_MAX = 16384,
    SLOT_COUNT_MAX = 1 << 16,
};

uint64_t
actor_http_now_ns(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

/* ---- the table of exchanges ------------------------------------------------------------------ */

proto_status_t
actor_http_server_init(actor_http_server_t *self)
{
    const actor_gateway_options_t *options = self->options;
    uint32_t count = options->connection_count_max + options->choice_count_max;
    self->slot_count = count < SLOT_COUNT_MAX ? count : SLOT_COUNT_MAX;
    self->slots = calloc(self->slot_count, sizeof(actor_http_exchange_t *));
    self->generations = calloc(self->slot_count, sizeof *self->generations);
    self->free_slots = calloc(self->slot_count, sizeof *self->free_slots);
    if (self->slots == NULL || self->generations == NULL || self->free_slots == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t at = 0; at < self->slot_count; at++) {
        self->free_slots[at] = self->slot_count - 1 - at;
    }
    self->free_count = self->slot_count;
    return STATUS_OK;
}

void
actor_http_server_fini(actor_http_server_t *self)
{
    for (uint32_t at = 0; self->slots != NULL && at < self->slot_count; at++) {
        if (self->slots[at] != NULL) {
            actor_http_exchange_free(self->slots[at]);
        }
    }
    free(self->slots);
    free(self->generations);
    free(self->free_slots);
    self->slots = NULL;
    actor_http_text_fini(&self->scratch);
    actor_http_text_fini(&self->framed);
}

void
actor_http_exchange_free(actor_http_exchange_t *self)
{
    require(!self->is_dirty);
    actor_http_server_t *server = self->server;
    uint32_t slot = (uint32_t)(self->id % SLOT_COUNT_MAX);
    require(server->slots[slot] == self);
    server->slots[slot] = NULL;
    server->free_slots[server->free_count++] = slot;
    for (uint32_t at = 0; at < self->choice_count; at++) {
        actor_http_choice_fini(&self->choices[at].text);
    }
    free(self->choices);
    actor_http_params_fini(&self->params);
    actor_http_text_fini(&self->body);
    free(self);
}

static actor_http_exchange_t *
new_exchange(actor_http_server_t *server)
{
    if (server->free_count == 0) {
        return NULL;
    }
    actor_http_exchange_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return NULL;
    }
    uint32_t slot = server->free_slots[--server->free_count];
    self->server = server;
    self->id = (uint64_t)++server->generations[slot] * SLOT_COUNT_MAX + slot;
    server->slots[slot] = self;
    return self;
}

/* ---- begin ----------------------------------------------------------------------------------- */

static void
fail_overloaded(actor_http_exchange_t *self)
{
    actor_http_error_set(&self->error, "", "overloaded",
                         "Too many requests are in work; try again.");
    self->error.status = 429;
    self->error.type = "rate_limit_error";
    self->error.retry_after_ms = 1000;
}

/* The connection closes, so that a balancer in front of several nodes takes the next one. */
static void
refuse_held(actor_http_server_t *self, actor_http_conn_t *conn, const char *route,
            const actor_http_head_t *head)
{
    actor_http_error_t error = {0};
    char request_id[ACTOR_HTTP_ID_SIZE_MAX + 1];
    actor_http_routes_request_id(self, head, request_id);
    actor_http_error_set(&error, "", "shutting_down",
                         "This server is drained and admits nothing new; try again elsewhere.");
    error.status = 503;
    error.type = "server_error";
    error.retry_after_ms = 1000;
    actor_http_routes_fail(self, conn, route, request_id, head->http10, false, &error);
}

static void submit(actor_http_exchange_t *self);

void
actor_http_exchange_begin(actor_http_server_t *self, actor_http_conn_t *conn,
                          actor_http_kind_t kind, const char *route, const actor_http_head_t *head,
                          actor_http_text_t *body)
{
    if (self->hold.is_held && (kind == ACTOR_HTTP_COMPLETION || kind == ACTOR_HTTP_CHAT)) {
        refuse_held(self, conn, route, head);
        return;
    }
    actor_http_exchange_t *exchange = new_exchange(self);
    if (exchange == NULL) {
        actor_http_exchange_t refused = {.server = self};
        char request_id[ACTOR_HTTP_ID_SIZE_MAX + 1];
        actor_http_routes_request_id(self, head, request_id);
        fail_overloaded(&refused);
        actor_http_routes_fail(self, conn, route, request_id, head->http10, head->keep_alive,
                               &refused.error);
        return;
    }
    exchange->conn = conn;
    exchange->route = route;
    exchange->http10 = head->http10;
    exchange->keep_alive = head->keep_alive;
    exchange->params.kind = kind;
    exchange->arrived_ns = actor_http_now_ns();
    exchange->last_write_ns = exchange->arrived_ns;
    exchange->created_s = proto_clock_realtime_ns(proto_clock_system()) / UINT64_C(1000000000);
    actor_http_routes_request_id(self, head, exchange->request_id);
    if (head->traceparent == NULL ||
        !actor_http_trace_parse(head->traceparent, head->traceparent_size_bytes,
                                &exchange->trace)) {
        actor_http_trace_begin(self->trace, &exchange->trace);
    }
    self->exchange_count++;
    (void)snprintf(exchange->public_id, sizeof exchange->public_id, "%s-%016llx",
                   kind == ACTOR_HTTP_CHAT ? "chatcmpl" : "cmpl",
                   (unsigned long long)actor_gateway_mix(self->id_key ^ exchange->id));
    exchange->body = *body;
    memset(body, 0, sizeof *body);
    actor_http_conn_set_exchange(conn, exchange);
    if (exchange->body.size_bytes <= INLINE_BODY_SIZE_MAX) {
        actor_http_exchange_prepare(exchange, 0);
        submit(exchange);
        return;
    }
    exchange->in_worker = true;
    if (actor_http_worker_push(self->worker, exchange) != STATUS_OK) {
        exchange->in_worker = false;
        fail_overloaded(exchange);
        actor_http_exchange_mark(exchange);
    }
}

void
actor_http_exchange_prepare(actor_http_exchange_t *self, uint32_t lane)
{
    actor_http_server_t *server = self->server;
    actor_http_params_limits_t limits = {
        .served_model = server->model_name,
        .strict = server->options->strict_params,
        .vocab_size = server->text->vocab_size,
    };
    bool ok = actor_http_params_parse(&self->params, self->params.kind, self->body.data,
                                      self->body.size_bytes, &limits, &self->error);
    if (ok) {
        ok = actor_http_params_tokenize(&self->params, server->text, lane, PROTO_TOKENS_MAX,
                                        &self->error);
    }
    if (!ok) {
        require(self->error.status != 0);
    }
    /* The document has its own copy of every text; the body would only wait with the request. */
    actor_http_text_fini(&self->body);
}

void
actor_http_exchange_collect(actor_http_server_t *self)
{
    for (;;) {
        actor_http_exchange_t *exchange = actor_http_worker_pop(self->worker);
        if (exchange == NULL) {
            return;
        }
        exchange->in_worker = false;
        submit(exchange);
    }
}

/* ---- submit ---------------------------------------------------------------------------------- */

static bool
new_choices(actor_http_exchange_t *self)
{
    actor_http_params_t *params = &self->params;
    uint32_t count = (uint32_t)params->n * params->prompt_count;
    self->choices = calloc(count, sizeof *self->choices);
    if (self->choices == NULL) {
        return false;
    }
    for (uint32_t at = 0; at < count; at++) {
        self->choice_count = at + 1;
        self->choices[at].prompt_at = at / (uint32_t)params->n;
        if (!actor_http_choice_init(&self->choices[at].text, self->server->text, params)) {
            return false;
        }
    }
    self->open_count = count;
    return true;
}

static void
put_u32(uint8_t *out, uint32_t value)
{
    for (int at = 0; at < 4; at++) {
        out[at] = (uint8_t)(value >> (8 * at));
    }
}

/* The seed of a choice: what the client gave for the first of a prompt, something that only
 * depends on it for the others; without one, a hash of the request's own id. */
static uint64_t
choice_seed(const actor_http_exchange_t *self, uint32_t index)
{
    uint32_t within = index % (uint32_t)self->params.n;
    if (self->params.has_seed) {
        uint64_t seed = (uint64_t)self->params.seed;
        return within == 0 ? seed : actor_gateway_mix(seed ^ actor_gateway_mix(within));
    }
    uint64_t own = actor_gateway_mix(self->server->id_key ^ self->id);
    return actor_gateway_mix(own + index + 1);
}

static size_t
encode_sampling(const actor_http_exchange_t *self, uint32_t index, uint8_t out[SAMPLING_SIZE_MAX])
{
    const actor_http_params_t *params = &self->params;
    uint8_t stop_ids[4 * PROTO_STOP_IDS_MAX];
    uint8_t bias_ids[4 * PROTO_BIAS_MAX];
    uint8_t bias_values[4 * PROTO_BIAS_MAX];
    for (uint32_t at = 0; at < params->stop_id_count; at++) {
        put_u32(stop_ids + (size_t)4 * at, (uint32_t)params->stop_ids[at]);
    }
    for (uint32_t at = 0; at < params->bias_count; at++) {
        uint32_t bits = 0;
        memcpy(&bits, &params->bias_values[at], sizeof bits);
        put_u32(bias_ids + (size_t)4 * at, (uint32_t)params->bias_ids[at]);
        put_u32(bias_values + (size_t)4 * at, bits);
    }
    proto_body_t body = {
        .sampling =
            {
                .temperature = params->temperature,
                .top_p = params->top_p,
                .min_p = params->min_p,
                .top_k = params->top_k < 0 ? 0 : (uint32_t)params->top_k,
                .repetition_penalty = params->repetition_penalty,
                .presence_penalty = params->presence_penalty,
                .frequency_penalty = params->frequency_penalty,
                .seed = choice_seed(self, index),
                .logprobs = actor_http_params_logprob_width(params),
                .generation_min = (uint32_t)params->min_tokens,
                .ignore_eos = params->ignore_eos,
                .stop_ids = {stop_ids, (size_t)4 * params->stop_id_count},
                .bias_ids = {bias_ids, (size_t)4 * params->bias_count},
                .bias_values = {bias_values, (size_t)4 * params->bias_count},
                .page_salt = {(const uint8_t *)params->cache_salt,
                              params->cache_salt == NULL ? 0 : strlen(params->cache_salt)},
                .prompt_length = params->prompts[self->choices[index].prompt_at].id_count,
            },
    };
    size_t size = 0;
    size_t blob_size = 0;
    proto_status_t status = proto_body_encode(PROTO_KIND_SAMPLING, &body, out, SAMPLING_SIZE_MAX,
                                              &size, NULL, 0, &blob_size);
    require(status == STATUS_OK); /* every value is within its range in the table of fields */
    return size;
}

/* Hashes of the prompt's whole pages, or nothing if the model's page is not known. */
static uint8_t *
hash_pages(const actor_http_exchange_t *self, const actor_http_prompt_t *prompt,
           uint32_t *page_count)
{
    const proto_model_info_t *model = actor_gateway_core_model(self->server->core);
    *page_count = 0;
    if (model == NULL || model->prefix_granularity == 0 ||
        model->page_hash_key.size_bytes != PROTO_HASH_SIZE_BYTES) {
        return NULL;
    }
    uint32_t count = prompt->id_count / model->prefix_granularity;
    count = count < PROTO_PAGES_MAX ? count : PROTO_PAGES_MAX;
    uint8_t *hashes = count == 0 ? NULL : malloc((size_t)count * PROTO_HASH_SIZE_BYTES);
    if (hashes == NULL) {
        return NULL; /* without them the request only finds nothing in the cache */
    }
    const char *salt = self->params.cache_salt;
    proto_bytes_t salt_bytes = {(const uint8_t *)salt, salt == NULL ? 0 : strlen(salt)};
    const uint8_t *previous = NULL;
    for (uint32_t page = 0; page < count; page++) {
        uint8_t *hash = hashes + (size_t)page * PROTO_HASH_SIZE_BYTES;
        proto_page_hash(model->page_hash_key.data, previous, salt_bytes,
                        prompt->ids + (size_t)page * model->prefix_granularity,
                        model->prefix_granularity, hash);
        previous = hash;
    }
    *page_count = count;
    return hashes;
}

static void
inject_choice(actor_http_exchange_t *self, uint32_t index, const uint8_t *hashes,
              uint32_t page_count)
{
    const actor_http_params_t *params = &self->params;
    const actor_http_prompt_t *prompt = &params->prompts[self->choices[index].prompt_at];
    uint8_t sampling[SAMPLING_SIZE_MAX];
    size_t sampling_size = encode_sampling(self, index, sampling);
    const char *salt = params->cache_salt;
    /* As the API says: a completion has 16 tokens unless asked, a chat what is left. */
    int64_t default_max = params->kind == ACTOR_HTTP_COMPLETION ? 16 : 0;
    proto_body_t body = {
        .http_request =
            {
                .exchange = self->id,
                .choice_index = index,
                .generation_max =
                    (uint32_t)(params->max_tokens > 0 ? params->max_tokens : default_max),
                .priority = params->priority,
                .timeout_ns = self->server->options->request_timeout_ms * UINT64_C(1000000),
                .salt = {(const uint8_t *)salt, salt == NULL ? 0 : strlen(salt)},
                .tokens = {prompt->ids, prompt->id_count},
                .sampling = {sampling, (uint32_t)sampling_size},
                .page_hashes = {hashes, (size_t)page_count * PROTO_HASH_SIZE_BYTES},
            },
    };
    self->choices[index].submitted = true;
    actor_shell_inject(self->server->shell, PROTO_KIND_HTTP_REQUEST, 0, &body);
}

/* A default of 16 must not refuse a prompt that ends close to the context's end. */
static void
fit_default(actor_http_exchange_t *self)
{
    const proto_model_info_t *model = actor_gateway_core_model(self->server->core);
    if (model == NULL || self->params.max_tokens > 0 ||
        self->params.kind != ACTOR_HTTP_COMPLETION) {
        return;
    }
    self->params.max_tokens = 16;
    for (uint32_t at = 0; at < self->params.prompt_count; at++) {
        uint32_t count = self->params.prompts[at].id_count;
        if (count < model->model_len_max &&
            model->model_len_max - count < self->params.max_tokens) {
            self->params.max_tokens = model->model_len_max - count;
        }
    }
}

static void
submit_choices(actor_http_exchange_t *self)
{
    uint8_t *hashes = NULL;
    uint32_t page_count = 0;
    uint32_t hashed_at = UINT32_MAX;
    self->submitted_ns = actor_http_now_ns();
    fit_default(self);
    for (uint32_t index = 0; index < self->choice_count; index++) {
        uint32_t prompt_at = self->choices[index].prompt_at;
        if (self->error.status != 0) {
            /* An earlier choice was refused: the whole request is. */
            self->choices[index].ended = true;
            self->open_count--;
            continue;
        }
        if (prompt_at != hashed_at) {
            free(hashes);
            hashes = hash_pages(self, &self->params.prompts[prompt_at], &page_count);
            hashed_at = prompt_at;
        }
        inject_choice(self, index, hashes, page_count);
    }
    free(hashes);
}

static void
submit(actor_http_exchange_t *self)
{
    actor_http_exchange_mark(self); /* whatever comes, there is something to write or to free */
    bool generates =
        self->params.kind == ACTOR_HTTP_COMPLETION || self->params.kind == ACTOR_HTTP_CHAT;
    if (self->error.status != 0 || self->conn == NULL || !generates) {
        return;
    }
    if (!new_choices(self)) {
        self->open_count = 0;
        actor_http_error_set(&self->error, "", "out_of_memory", "The server is out of memory.");
        self->error.status = 503;
        self->error.type = "server_error";
        self->error.retry_after_ms = 1000;
        return;
    }
    submit_choices(self);
    actor_http_metrics_t *metrics = &self->server->metrics;
    actor_http_metrics_observe(metrics, ACTOR_METRICS_PARAMS_N, (double)self->params.n);
    if (self->params.max_tokens > 0) {
        actor_http_metrics_observe(metrics, ACTOR_METRICS_PARAMS_MAX_TOKENS,
                                   (double)self->params.max_tokens);
    }
}

void
actor_http_exchange_gone(actor_http_exchange_t *self)
{
    self->conn = NULL;
    if (!self->in_worker) {
        actor_http_exchange_mark(self);
    }
}
