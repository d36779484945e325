#include "actor_conform_book.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

static const uint64_t CHAIN_START = 0x636f6e666f726d31u;

uint64_t
actor_conform_mix(uint64_t value)
{
    value ^= value >> 30;
    value *= 0xbf58476d1ce4e5b9u;
    value ^= value >> 27;
    value *= 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

/* Never 0 or 1, which mean an empty and a spoilt position. */
static uint64_t
chain_on(uint64_t chain, int32_t token)
{
    uint64_t value = actor_conform_mix(chain ^ ((uint64_t)(uint32_t)token + 1) << 20);
    return value > 1 ? value : 2;
}

static int32_t
token_of(uint64_t value)
{
    return (int32_t)((value >> 16) % CONFORM_VOCAB_SIZE);
}

proto_status_t
actor_conform_book_init(conform_book_t *self, uint64_t seed, uint64_t id_base)
{
    *self = (conform_book_t){.seed = seed, .id_base = id_base, .page_tokens = 16};
    self->items = calloc(CONFORM_REQUEST_COUNT_MAX, sizeof *self->items);
    return self->items != NULL ? STATUS_OK : STATUS_ERR_NO_MEMORY;
}

void
actor_conform_book_fini(conform_book_t *self)
{
    for (uint32_t i = 0; i < self->count; i++) {
        free(self->items[i].tokens);
        free(self->items[i].chains);
        free(self->items[i].hashes);
    }
    free(self->items);
    self->items = NULL;
    self->count = 0;
}

/* Prompt and answer: a prompt's tokens are drawn, an answer's follow from all before them. */
static void
make_tokens(conform_request_t *request, uint64_t seed)
{
    const conform_ask_t *ask = &request->ask;
    uint64_t chain = CHAIN_START;
    uint32_t length = ask->prompt_length + ask->generation_max + 1;
    for (uint32_t i = 0; i < length; i++) {
        if (i >= ask->prompt_length - ask->emitted) {
            request->tokens[i] = token_of(chain);
        } else if (i < ask->shared_length) {
            request->tokens[i] = token_of(actor_conform_mix(ask->shared_seed * 977 + i + 1));
        } else {
            request->tokens[i] = token_of(actor_conform_mix((seed ^ request->id) * 31 + i));
        }
        chain = chain_on(chain, request->tokens[i]);
        request->chains[i] = chain;
    }
}

static void
make_hashes(conform_request_t *request, const conform_book_t *book)
{
    uint32_t pages = request->ask.prompt_length / book->page_tokens;
    const uint8_t *previous = NULL;
    for (uint32_t page = 0; page < pages; page++) {
        uint8_t *out = request->hashes + (size_t)page * PROTO_HASH_SIZE_BYTES;
        proto_page_hash(book->page_key, previous, (proto_bytes_t){NULL, 0},
                        request->tokens + (size_t)page * book->page_tokens, book->page_tokens, out);
        previous = out;
    }
    request->hashes_size = pages * PROTO_HASH_SIZE_BYTES;
}

static void
make_sampling(conform_request_t *request)
{
    const conform_ask_t *ask = &request->ask;
    proto_body_t body = {.sampling = {.temperature = 0.0,
                                      .top_p = 1.0,
                                      .repetition_penalty = 1.0,
                                      .seed = request->id,
                                      .logprobs = ask->logprobs ? CONFORM_LOGPROB_WIDTH : 0,
                                      .prompt_length = ask->prompt_length - ask->emitted}};
    size_t size = 0;
    size_t blob_size = 0;
    proto_status_t status = proto_body_encode(PROTO_KIND_SAMPLING, &body, request->sampling,
                                              sizeof request->sampling, &size, NULL, 0, &blob_size);
    require(status == STATUS_OK);
    request->sampling_size = (uint32_t)size;
}

conform_request_t *
actor_conform_book_add(conform_book_t *self, const conform_ask_t *ask)
{
    if (self->count == CONFORM_REQUEST_COUNT_MAX) {
        return NULL;
    }
    conform_request_t *request = &self->items[self->count];
    *request = (conform_request_t){.id = self->id_base + self->count + 1,
                                   .ask = *ask,
                                   .next_index = ask->emitted};
    if (request->ask.rule == 0) {
        request->ask.rule = CONFORM_END_LENGTH;
    }
    size_t length = (size_t)ask->prompt_length + ask->generation_max + 1;
    request->tokens = calloc(length + ask->wrong_length, sizeof *request->tokens);
    request->chains = calloc(length, sizeof *request->chains);
    request->hashes =
        calloc(length / self->page_tokens + 1 + ask->wrong_hashes, PROTO_HASH_SIZE_BYTES);
    if (request->tokens == NULL || request->chains == NULL || request->hashes == NULL) {
        free(request->tokens);
        free(request->chains);
        free(request->hashes);
        return NULL;
    }
    self->count++;
    make_tokens(request, self->seed);
    if (!ask->no_hashes) {
        make_hashes(request, self);
    }
    request->hashes_size += ask->wrong_hashes;
    make_sampling(request);
    return request;
}

void
actor_conform_book_resume(conform_book_t *self, conform_request_t *request)
{
    conform_ask_t *ask = &request->ask;
    uint32_t came = request->next_index - ask->emitted;
    require(came < ask->generation_max);
    ask->prompt_length += came;
    ask->emitted += came;
    ask->generation_max -= came;
    make_hashes(request, self);
    request->submit_count = 0;
    request->end_count = 0;
    request->excuses = 0;
    request->zombie_count = 0;
    request->row_count = 0;
    request->admit_count = 0;
}

conform_request_t *
actor_conform_book_find(conform_book_t *self, uint64_t id)
{
    if (id <= self->id_base || id > self->id_base + self->count) {
        return NULL;
    }
    return &self->items[id - self->id_base - 1];
}

uint32_t
actor_conform_answer_length(const conform_request_t *request)
{
    const conform_ask_t *ask = &request->ask;
    uint32_t length = ask->emitted + ask->generation_max;
    if (ask->stop_at > 0 && ask->stop_at < length) {
        length = ask->stop_at;
    }
    if (ask->nan_at > 0 && ask->nan_at - 1 < length) {
        length = ask->nan_at - 1;
    }
    return length;
}

int32_t
actor_conform_answer_token(const conform_request_t *request, uint32_t index)
{
    const conform_ask_t *ask = &request->ask;
    require(index < ask->emitted + ask->generation_max + 1);
    return request->tokens[ask->prompt_length - ask->emitted + index];
}
