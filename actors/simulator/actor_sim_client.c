/* Clients: what they ask for, and whether what they get is right.  They know every answer, because
 * the model is a function of the tokens alone. */
#include <stdio.h>
#include <string.h>

#include "actor_sim_world.h"
#include "proto_require.h"

enum {
    FAMILY_COUNT = 4,    /* prompts of one family begin with the same tokens */
    LEAVE_STOPS = 1,     /* a stop string matched, rather than that the client left */
    SAMPLING_SIZE = 256, /* bytes */
};

/* ---- prompts --------------------------------------------------------------------------------- */

/* The prompts of a family share a beginning of any length. */
static int32_t
prompt_token(const actor_sim_t *self, uint32_t family, uint32_t variety, uint32_t at,
             uint32_t shared)
{
    uint64_t hash = actor_sim_mix((uint64_t)family << 32 | at);
    if (at >= shared) {
        hash = actor_sim_mix(hash ^ (uint64_t)variety << 16 ^ 1);
    }
    return (int32_t)(hash % self->config.model.vocab_size);
}

static size_t
encode_sampling(const actor_sim_client_t *client, uint8_t out[SAMPLING_SIZE])
{
    proto_body_t body = {
        .sampling = {.temperature = 0,
                     .top_p = 1,
                     .repetition_penalty = 1,
                     .seed = client->exchange,
                     .prompt_length = client->prompt_length,
                     .stop_ids = {client->stop_id_count > 0 ? (const uint8_t *)client->stop_ids
                                                            : NULL,
                                  client->stop_id_count * sizeof client->stop_ids[0]}}};
    size_t size = 0;
    size_t blob_size = 0;
    proto_status_t status = proto_body_encode(PROTO_KIND_SAMPLING, &body, out, SAMPLING_SIZE, &size,
                                              NULL, 0, &blob_size);
    require(status == STATUS_OK);
    return size;
}

/* The identity of each whole page, as the HTTP side computes it. */
static uint32_t
hash_pages(const actor_sim_client_t *client, const proto_model_info_t *model,
           uint8_t out[ACTOR_SIM_LEN_MAX][PROTO_HASH_SIZE_BYTES])
{
    uint32_t count = client->prompt_length / model->prefix_granularity;
    for (uint32_t page = 0; page < count; page++) {
        proto_page_hash(model->page_hash_key.data, page > 0 ? out[page - 1] : NULL,
                        (proto_bytes_t){NULL, 0}, client->tokens + page * model->prefix_granularity,
                        model->prefix_granularity, out[page]);
    }
    return count;
}

/* ---- asking ---------------------------------------------------------------------------------- */

static void
submit(actor_sim_t *self, actor_sim_client_t *client, int64_t priority)
{
    uint8_t hashes[ACTOR_SIM_LEN_MAX][PROTO_HASH_SIZE_BYTES];
    uint8_t sampling[SAMPLING_SIZE];
    actor_sim_actor_t *actor = &self->actors[client->gateway];
    const proto_model_info_t *model = actor_gateway_core_model(actor->core);
    uint32_t pages = model != NULL ? hash_pages(client, model, hashes) : 0;
    proto_body_t body = {
        .http_request = {.exchange = client->exchange,
                         .choice_index = client->choice_index,
                         .generation_max = client->generation_max,
                         .priority = priority,
                         .timeout_ns = client->timeout_ns,
                         .tokens = {client->tokens, client->prompt_length},
                         .sampling = {sampling, (uint32_t)encode_sampling(client, sampling)},
                         .page_hashes = {pages > 0 ? hashes[0] : NULL,
                                         (size_t)pages * PROTO_HASH_SIZE_BYTES}}};
    self->result.request_count++;
    self->open_count++;
    actor->open_count++;
    actor_sim_input_own(self, client->gateway, PROTO_KIND_HTTP_REQUEST, &body);
}

static actor_sim_client_t *
new_client(actor_sim_t *self, const actor_sim_ask_t *ask, uint32_t gateway)
{
    actor_sim_client_t *client = &self->clients[self->client_count++];
    memset(client, 0, offsetof(actor_sim_client_t, tokens));
    client->sequence.length = 0;
    client->gateway = gateway;
    client->gateway_epoch = self->actors[gateway].epoch;
    client->begun_ns = self->now_ns;
    client->last_token_ns = self->now_ns;
    client->prompt_length = ask->prompt_length != 0 ? ask->prompt_length : 8;
    client->generation_max = ask->generation_max;
    client->stop_after = ask->stop_after;
    client->timeout_ns = ask->timeout_ns;
    client->stop_id_count = ask->stop_id_count;
    require(client->stop_id_count <= ACTOR_SIM_STOP_ID_COUNT_MAX);
    uint32_t shared = (uint32_t)(actor_sim_mix(ask->variety) % (client->prompt_length + 1));
    for (uint32_t at = 0; at < client->prompt_length; at++) {
        client->tokens[at] = prompt_token(self, ask->family, ask->variety, at, shared);
        actor_sim_sequence_append(&client->sequence, &self->config.model, client->tokens[at]);
    }
    for (uint32_t i = 0; i < client->stop_id_count; i++) {
        client->stop_ids[i] = (int32_t)actor_sim_random_between(&self->random_load, 0,
                                                                self->config.model.vocab_size - 1);
    }
    return client;
}

uint32_t
actor_sim_ask(actor_sim_t *self, const actor_sim_ask_t *ask)
{
    uint32_t choices = ask->choice_count != 0 ? ask->choice_count : 1;
    uint32_t gateway = self->members[ACTOR_SIM_MEMBER_GATEWAY + ask->gateway].actor;
    if (gateway == ACTOR_SIM_NONE || self->client_count + choices > ACTOR_SIM_CLIENT_COUNT_MAX) {
        return ACTOR_SIM_NONE;
    }
    uint32_t first = self->client_count;
    uint64_t epoch = self->actors[gateway].epoch;
    for (uint32_t choice = 0; choice < choices; choice++) {
        if (!self->actors[gateway].alive || self->actors[gateway].epoch != epoch) {
            break;
        }
        actor_sim_client_t *client = new_client(self, ask, gateway);
        uint32_t index = self->client_count - 1;
        client->exchange = first + 1;
        client->choice_index = choice;
        if (ask->leave_ns != 0) {
            actor_sim_at(self, self->now_ns + ask->leave_ns, ACTOR_SIM_EVENT_LEAVE, index, 0, NULL);
        }
        submit(self, client, ask->priority);
    }
    return first;
}

void
actor_sim_on_request(actor_sim_t *self)
{
    actor_sim_random_t *random = &self->random_load;
    const actor_sim_config_t *config = &self->config;
    uint32_t limit = config->model.model_len_max;
    actor_sim_ask_t ask = {
        .prompt_length = actor_sim_random_between(random, 1, config->prompt_max),
        .generation_max = actor_sim_random_between(random, 1, config->generation_max),
        .family = actor_sim_random_between(random, 0, FAMILY_COUNT - 1),
        .variety = actor_sim_random_between(random, 0, 20),
        .choice_count = actor_sim_random_chance(random, 100) ? 3 : 1,
        .stop_id_count = actor_sim_random_between(random, 0, 3),
        .priority = (int64_t)actor_sim_random_between(random, 0, 2) - 1,
        .gateway = actor_sim_random_between(random, 0, config->gateway_count - 1),
    };
    if (ask.prompt_length + ask.generation_max > limit && !actor_sim_random_chance(random, 20)) {
        ask.generation_max = 0; /* what the context leaves */
    }
    bool leaves = (self->result.faults & ACTOR_SIM_ABORT) != 0;
    if (leaves && actor_sim_random_chance(random, 200)) {
        ask.stop_after = actor_sim_random_between(random, 1, 12);
    }
    if (leaves && actor_sim_random_chance(random, 200)) {
        ask.leave_ns = actor_sim_random_us(random, 1, 200000);
    }
    if (!config->no_timeouts && actor_sim_random_chance(random, 30)) {
        ask.timeout_ns = actor_sim_random_us(random, 1000, 2000000);
    }
    /* Most clients look elsewhere while the node is not ready; some do not. */
    const actor_sim_actor_t *actor =
        actor_sim_member_actor(self, ACTOR_SIM_MEMBER_GATEWAY + ask.gateway);
    bool ready = actor != NULL && actor_gateway_core_state(actor->core).ready;
    if (ready || actor_sim_random_chance(random, 50)) {
        (void)actor_sim_ask(self, &ask);
    }
}

void
actor_sim_client_stop(actor_sim_t *self, uint32_t index, proto_finish_reason_t reason,
                      uint32_t token_index)
{
    actor_sim_client_t *client = &self->clients[index];
    if (client->state != ACTOR_SIM_CLIENT_OPEN) {
        return;
    }
    if (!client->stop_told) {
        client->stop_told = true;
        client->stop_reason = reason;
        client->stop_index = token_index;
    }
    proto_body_t body = {.http_stop = {.exchange = client->exchange,
                                       .choice_index = client->choice_index,
                                       .token_index = token_index,
                                       .reason = reason}};
    actor_sim_input_own(self, client->gateway, PROTO_KIND_HTTP_STOP, &body);
}

void
actor_sim_client_leave(actor_sim_t *self, uint32_t index)
{
    actor_sim_client_stop(self, index, PROTO_FINISH_CANCELLED, self->clients[index].received);
}

void
actor_sim_on_leave(actor_sim_t *self, uint32_t index, uint64_t how)
{
    const actor_sim_client_t *client = &self->clients[index];
    if (how == LEAVE_STOPS) {
        actor_sim_client_stop(self, index, PROTO_FINISH_STOP, client->stop_after);
    } else {
        actor_sim_client_leave(self, index);
    }
}

void
actor_sim_on_submit(actor_sim_t *self, uint32_t index, uint64_t request)
{
    actor_sim_client_t *client = &self->clients[self->client_count - 1];
    if (self->client_count > 0 && client->gateway == index && client->request == 0 &&
        client->gateway_epoch == self->actors[index].epoch) {
        client->request = request;
    }
}

/* ---- answers --------------------------------------------------------------------------------- */

static actor_sim_client_t *
find(actor_sim_t *self, uint32_t actor, uint64_t exchange, uint32_t choice)
{
    uint64_t index = exchange - 1 + choice;
    if (exchange == 0 || index >= self->client_count) {
        return NULL;
    }
    actor_sim_client_t *client = &self->clients[index];
    bool same = client->exchange == exchange && client->choice_index == choice &&
                client->gateway == actor && client->gateway_epoch == self->actors[actor].epoch;
    return same ? client : NULL;
}

static uint32_t
index_of(const actor_sim_t *self, const actor_sim_client_t *client)
{
    return (uint32_t)(client - self->clients);
}

static uint32_t
most_tokens(const actor_sim_t *self, const actor_sim_client_t *client)
{
    uint32_t room = self->config.model.model_len_max - client->prompt_length;
    return client->generation_max != 0 ? client->generation_max : room;
}

static void
on_tokens(actor_sim_t *self, actor_sim_client_t *client, const proto_http_tokens_t *tokens)
{
    uint32_t index = index_of(self, client);
    if (client->state != ACTOR_SIM_CLIENT_OPEN) {
        actor_sim_fail(self, "nothing after the end", "client %u was given tokens", index);
        return;
    }
    if (tokens->token_index != client->received) {
        actor_sim_fail(self, "tokens in order", "client %u was given token %u, awaited %u", index,
                       tokens->token_index, client->received);
        return;
    }
    for (uint32_t i = 0; i < tokens->tokens.count; i++) {
        if (client->stop_seen || client->received >= most_tokens(self, client)) {
            actor_sim_fail(self, "stop and length", "client %u was given token %u after its %s",
                           index, client->received, client->stop_seen ? "stop token" : "last");
            return;
        }
        int32_t right = actor_sim_sequence_next(&client->sequence, &self->config.model);
        int32_t token = tokens->tokens.data[i];
        if (token != right) {
            actor_sim_fail(self, "tokens are right",
                           "client %u, request %llx: token %u is %d, must be %d", index,
                           (unsigned long long)client->request, client->received, token, right);
            return;
        }
        client->tokens[client->prompt_length + client->received++] = token;
        actor_sim_sequence_append(&client->sequence, &self->config.model, token);
        self->result.token_count++;
        for (uint32_t stop = 0; stop < client->stop_id_count; stop++) {
            client->stop_seen = client->stop_seen || client->stop_ids[stop] == token;
        }
    }
    uint64_t gap_ns = self->now_ns - client->last_token_ns;
    client->longest_gap_ns = gap_ns > client->longest_gap_ns ? gap_ns : client->longest_gap_ns;
    client->last_token_ns = self->now_ns;
    if (client->stop_after != 0 && client->received >= client->stop_after && !client->stop_told) {
        actor_sim_at(self, self->now_ns + 1000, ACTOR_SIM_EVENT_LEAVE, index, 0,
                     (void *)(uintptr_t)LEAVE_STOPS);
    }
}

/* What an end must say; NULL if it is right. */
static const char *
end_is_wrong(const actor_sim_t *self, const actor_sim_client_t *client, const proto_http_end_t *end)
{
    uint32_t received = client->received;
    if (client->stop_told) {
        uint32_t kept = received < client->stop_index ? received : client->stop_index;
        if (end->reason != client->stop_reason) {
            return "a stop that was told decides how it ends";
        }
        return end->generated_tokens == kept ? NULL : "the stop's index decides what counts";
    }
    switch (end->reason) {
    case PROTO_FINISH_STOP:
        return client->stop_seen && end->generated_tokens == received ? NULL
                                                                      : "no stop token was given";
    case PROTO_FINISH_LENGTH:
        return received == most_tokens(self, client) && !client->stop_seen &&
                       end->generated_tokens == received
                   ? NULL
                   : "its length is not what was asked for";
    case PROTO_FINISH_REFUSED:
        return received == 0 && end->status < 0 && end->code.size_bytes > 0
                   ? NULL
                   : "a refusal has a code and no tokens";
    case PROTO_FINISH_ERROR:
        return end->status < 0 && end->code.size_bytes > 0 ? NULL : "an error has a code";
    default:
        return "nobody asked for this end";
    }
}

static bool
code_is(const proto_http_end_t *end, const char *code)
{
    size_t size = strlen(code);
    return end->code.size_bytes == size && memcmp(end->code.data, code, size) == 0;
}

/* Whether an error is a client's own doing, or what a full node says. */
static bool
is_expected(const actor_sim_client_t *client, const proto_http_end_t *end)
{
    if (code_is(end, "deadline_exceeded") || code_is(end, "queue_timeout")) {
        return client->timeout_ns != 0;
    }
    return code_is(end, "overloaded") || code_is(end, "never_fits") ||
           code_is(end, "context_length_exceeded");
}

static void
on_end(actor_sim_t *self, uint32_t actor, actor_sim_client_t *client, const proto_http_end_t *end)
{
    uint32_t index = index_of(self, client);
    if (client->state != ACTOR_SIM_CLIENT_OPEN) {
        actor_sim_fail(self, "exactly one end", "client %u was ended twice", index);
        return;
    }
    const char *wrong = end_is_wrong(self, client, end);
    if (wrong != NULL) {
        actor_sim_fail(self, "the end is right", "client %u, reason %u, %u of %u tokens: %s", index,
                       end->reason, end->generated_tokens, client->received, wrong);
        return;
    }
    bool failed = end->reason == PROTO_FINISH_ERROR || end->reason == PROTO_FINISH_REFUSED;
    bool runs = end->reason == PROTO_FINISH_ERROR;
    bool harmed = (runs ? self->loss_until_ns : self->harm_until_ns) >= client->begun_ns;
    if (code_is(end, "stalled") || (failed && !harmed && !is_expected(client, end))) {
        actor_sim_fail(self, "no error without a fault", "client %u ended with %.*s: %.*s", index,
                       (int)end->code.size_bytes, end->code.data, (int)end->detail.size_bytes,
                       end->detail.data);
        return;
    }
    client->state = failed ? ACTOR_SIM_CLIENT_ERROR : ACTOR_SIM_CLIENT_COMPLETE;
    client->reason = (proto_finish_reason_t)end->reason;
    client->ended_ns = self->now_ns;
    (void)snprintf(client->code, sizeof client->code, "%.*s", (int)end->code.size_bytes,
                   end->code.data != NULL ? end->code.data : "");
    self->result.error_count += failed ? 1 : 0;
    self->result.complete_count += failed ? 0 : 1;
    self->result.resumed_count += !failed && self->replaced_ns > client->begun_ns ? 1 : 0;
    self->open_count--;
    self->actors[actor].open_count--;
}

void
actor_sim_on_http(actor_sim_t *self, uint32_t actor, const actor_emission_t *emission)
{
    proto_body_t body;
    proto_status_t status =
        proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL);
    require(status == STATUS_OK);
    bool is_tokens = emission->kind == PROTO_KIND_HTTP_TOKENS;
    if (!is_tokens && emission->kind != PROTO_KIND_HTTP_END) {
        return;
    }
    uint64_t exchange = is_tokens ? body.http_tokens.exchange : body.http_end.exchange;
    uint32_t choice = is_tokens ? body.http_tokens.choice_index : body.http_end.choice_index;
    actor_sim_client_t *client = find(self, actor, exchange, choice);
    if (client == NULL) {
        actor_sim_fail(self, "answers have a client", "%s of exchange %llu, choice %u",
                       proto_kind_name(emission->kind), (unsigned long long)exchange, choice);
    } else if (is_tokens) {
        on_tokens(self, client, &body.http_tokens);
    } else {
        on_end(self, actor, client, &body.http_end);
    }
}

void
actor_sim_clients_break(actor_sim_t *self, uint32_t index)
{
    actor_sim_actor_t *actor = &self->actors[index];
    for (uint32_t i = 0; i < self->client_count && actor->open_count > 0; i++) {
        actor_sim_client_t *client = &self->clients[i];
        if (client->state == ACTOR_SIM_CLIENT_OPEN && client->gateway == index &&
            client->gateway_epoch == actor->epoch) {
            client->state = ACTOR_SIM_CLIENT_BROKEN;
            client->ended_ns = self->now_ns;
            self->result.broken_count++;
            self->open_count--;
            actor->open_count--;
        }
    }
}
