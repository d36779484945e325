/* actor_http_params.h - a request's JSON body, read strictly into one struct.
 *
 * Duplicate keys, trailing bytes, numbers that do not fit and nesting beyond 32 are refused; every
 * field has its type and range in one table (docs/http-api.md shows it).  Nothing here touches a
 * socket or the core: the HTTP loop and the worker both call it. */
#ifndef ACTOR_HTTP_PARAMS_H
#define ACTOR_HTTP_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "actor_gateway_text.h"
#include "actor_http_text.h"
#include "proto_codec.h"

enum {
    ACTOR_HTTP_JSON_DEPTH_MAX = 32,
    ACTOR_HTTP_STOP_COUNT_MAX = 16,
    ACTOR_HTTP_STOP_SIZE_MAX = 256, /* bytes of one stop string */
    ACTOR_HTTP_PROMPT_COUNT_MAX = 64,
    ACTOR_HTTP_CHOICE_COUNT_MAX = 128, /* prompts times n */
    ACTOR_HTTP_MESSAGE_COUNT_MAX = 4096,
};

/* What a client is told when something is wrong.  A zeroed one means "nothing is". */
typedef struct {
    int status;        /* HTTP */
    const char *type;  /* static */
    char code[48];     /* stable; "" = null */
    char param[96];    /* the field; "" = null */
    char message[640]; /* a sentence with the value and the range */
    uint32_t retry_after_ms;
} actor_http_error_t;

/* Fills in a 400 of type invalid_request_error. */
void actor_http_error_set(actor_http_error_t *error, const char *param, const char *code,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Fills in a 503: the server is out of memory.  Returns false, for a parser to return. */
bool actor_http_error_no_memory(actor_http_error_t *error);

typedef enum {
    ACTOR_HTTP_COMPLETION = 1,
    ACTOR_HTTP_CHAT = 2,
    ACTOR_HTTP_TOKENIZE = 4,
    ACTOR_HTTP_DETOKENIZE = 8,
} actor_http_kind_t; /* bits: a field's row names the kinds it belongs to */

/* One prompt: a text or token ids; `ids` becomes filled for both. */
typedef struct {
    const char *text; /* NULL: given as ids; lent from the document */
    size_t text_size_bytes;
    int32_t *ids; /* owned */
    uint32_t id_count;
} actor_http_prompt_t;

typedef struct {
    actor_http_kind_t kind;
    void *document; /* the parsed JSON; owns the texts below */

    const char *model; /* NULL: not given */
    const char *cache_salt;
    const char *user;

    actor_http_prompt_t *prompts; /* [prompt_count], owned */
    uint32_t prompt_count;
    actor_text_message_t *messages; /* [message_count], owned; chat and tokenize */
    uint32_t message_count;
    char *joined;               /* owned: texts of messages that came in parts */
    actor_http_text_t rendered; /* the chat as one text */

    int64_t n;
    int64_t max_tokens; /* 0 = not given */
    int64_t min_tokens;
    int64_t seed;
    bool has_seed;
    int64_t top_k;
    int64_t priority;
    int64_t logprob_count; /* completions: -1 = none; chat: top_logprobs */
    double temperature;
    double top_p;
    double min_p;
    double presence_penalty;
    double frequency_penalty;
    double repetition_penalty;
    bool logprobs; /* chat */
    bool echo;
    bool stream;
    bool include_usage;
    bool ignore_eos;
    bool skip_special_tokens;
    bool return_tokens_as_token_ids; /* log-probabilities name "token_id:N" instead of text */
    bool add_special_tokens;         /* tokenize */
    bool add_generation_prompt;      /* tokenize */

    uint32_t stop_count;
    proto_text_t stops[ACTOR_HTTP_STOP_COUNT_MAX]; /* lent from the document */
    uint32_t stop_id_count;
    int32_t stop_ids[PROTO_STOP_IDS_MAX];
    uint32_t bias_count;
    int32_t bias_ids[PROTO_BIAS_MAX];
    float bias_values[PROTO_BIAS_MAX];
} actor_http_params_t;

/* What a body is checked against. */
typedef struct {
    const char *served_model; /* NULL: any name passes */
    bool strict;              /* an unknown field is an error */
    uint32_t vocab_size;      /* for ids in the body; 0 = not known */
} actor_http_params_limits_t;

/* Reads `body`.  True, or false with *error filled in; either way the caller calls fini. */
MUST_CHECK bool actor_http_params_parse(actor_http_params_t *self, actor_http_kind_t kind,
                                        const char *body, size_t size_bytes,
                                        const actor_http_params_limits_t *limits,
                                        actor_http_error_t *error);

/* Renders the chat and makes ids of every text, in `lane`; no prompt may have more than
 * `id_count_max`.  True, or false with *error filled in. */
MUST_CHECK bool actor_http_params_tokenize(actor_http_params_t *self,
                                           const actor_gateway_text_t *text, uint32_t lane,
                                           uint32_t id_count_max, actor_http_error_t *error);

void actor_http_params_fini(actor_http_params_t *self);

/* Tokens' log-probabilities to ask for: 0 none, 1 the sampled one, 1 + n also the top n. */
uint32_t actor_http_params_logprob_width(const actor_http_params_t *self);

#endif
