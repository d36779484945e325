/* actor_http_params.c - one table of fields, one pass over the body's keys. */
#include "actor_http_params.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_http_fields.h"
#include "proto_require.h"

enum {
    GENERATE = ACTOR_HTTP_COMPLETION | ACTOR_HTTP_CHAT,
    ALL = GENERATE | ACTOR_HTTP_TOKENIZE | ACTOR_HTTP_DETOKENIZE,
};

void
actor_http_error_set(actor_http_error_t *error, const char *param, const char *code,
                     const char *format, ...)
{
    error->status = 400;
    error->type = "invalid_request_error";
    error->retry_after_ms = 0;
    (void)snprintf(error->param, sizeof error->param, "%s", param);
    (void)snprintf(error->code, sizeof error->code, "%s", code);
    va_list arguments;
    va_start(arguments, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is two lines up */
    (void)vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
}

bool
actor_http_error_no_memory(actor_http_error_t *error)
{
    actor_http_error_set(error, "", "out_of_memory", "The server is out of memory.");
    error->status = 503;
    error->type = "server_error";
    error->retry_after_ms = 1000;
    return false;
}

/* ---- the table ------------------------------------------------------------------------------- */

typedef enum {
    FIELD_INTEGER,
    FIELD_NUMBER,       /* min..max */
    FIELD_NUMBER_ABOVE, /* above min, up to max */
    FIELD_BOOL,
    FIELD_STRING,      /* 1..max bytes, without a zero byte */
    FIELD_SPECIAL,     /* has its own reader below */
    FIELD_IGNORED,     /* known, and of no effect here */
    FIELD_UNSUPPORTED, /* would change the answer: refused unless it says "nothing" */
} field_type_t;

typedef struct {
    const char *name;
    unsigned kinds;
    field_type_t type;
    double min;
    double max;
    size_t offset_bytes; /* within actor_http_params_t */
} field_t;

#define AT(member) offsetof(actor_http_params_t, member)

static const field_t fields[] = {
    {"model", ALL, FIELD_STRING, 1, 256, AT(model)},
    {"prompt", ACTOR_HTTP_COMPLETION | ACTOR_HTTP_TOKENIZE, FIELD_SPECIAL, 0, 0, 0},
    {"messages", ACTOR_HTTP_CHAT | ACTOR_HTTP_TOKENIZE, FIELD_SPECIAL, 0, 0, 0},
    {"tokens", ACTOR_HTTP_DETOKENIZE, FIELD_SPECIAL, 0, 0, 0},
    {"n", GENERATE, FIELD_INTEGER, 1, PROTO_CHOICES_MAX, AT(n)},
    {"max_tokens", GENERATE, FIELD_INTEGER, 1, PROTO_TOKENS_MAX, AT(max_tokens)},
    {"max_completion_tokens", GENERATE, FIELD_INTEGER, 1, PROTO_TOKENS_MAX, AT(max_tokens)},
    {"min_tokens", GENERATE, FIELD_INTEGER, 0, PROTO_TOKENS_MAX, AT(min_tokens)},
    {"temperature", GENERATE, FIELD_NUMBER, 0, 2, AT(temperature)},
    {"top_p", GENERATE, FIELD_NUMBER_ABOVE, 0, 1, AT(top_p)},
    {"top_k", GENERATE, FIELD_INTEGER, -1, 1 << 24, AT(top_k)},
    {"min_p", GENERATE, FIELD_NUMBER, 0, 1, AT(min_p)},
    {"presence_penalty", GENERATE, FIELD_NUMBER, -2, 2, AT(presence_penalty)},
    {"frequency_penalty", GENERATE, FIELD_NUMBER, -2, 2, AT(frequency_penalty)},
    {"repetition_penalty", GENERATE, FIELD_NUMBER_ABOVE, 0, 10, AT(repetition_penalty)},
    {"seed", GENERATE, FIELD_SPECIAL, 0, 0, 0},
    {"priority", GENERATE, FIELD_INTEGER, -1000000, 1000000, AT(priority)},
    {"logit_bias", GENERATE, FIELD_SPECIAL, 0, 0, 0},
    {"stop", GENERATE, FIELD_SPECIAL, 0, 0, 0},
    {"stop_token_ids", GENERATE, FIELD_SPECIAL, 0, 0, 0},
    {"stream", GENERATE, FIELD_BOOL, 0, 0, AT(stream)},
    {"stream_options", GENERATE, FIELD_SPECIAL, 0, 0, 0},
    {"ignore_eos", GENERATE, FIELD_BOOL, 0, 0, AT(ignore_eos)},
    {"skip_special_tokens", GENERATE, FIELD_BOOL, 0, 0, AT(skip_special_tokens)},
    {"return_tokens_as_token_ids", GENERATE, FIELD_BOOL, 0, 0, AT(return_tokens_as_token_ids)},
    {"cache_salt", GENERATE, FIELD_STRING, 1, 64, AT(cache_salt)},
    {"user", GENERATE, FIELD_STRING, 0, 512, AT(user)},
    {"echo", ACTOR_HTTP_COMPLETION, FIELD_BOOL, 0, 0, AT(echo)},
    {"logprobs", ACTOR_HTTP_COMPLETION, FIELD_INTEGER, 0, PROTO_LOGPROBS_MAX, AT(logprob_count)},
    {"logprobs", ACTOR_HTTP_CHAT, FIELD_BOOL, 0, 0, AT(logprobs)},
    {"top_logprobs", ACTOR_HTTP_CHAT, FIELD_INTEGER, 0, PROTO_LOGPROBS_MAX, AT(logprob_count)},
    {"add_special_tokens", ACTOR_HTTP_TOKENIZE, FIELD_BOOL, 0, 0, AT(add_special_tokens)},
    {"add_generation_prompt", ACTOR_HTTP_TOKENIZE, FIELD_BOOL, 0, 0, AT(add_generation_prompt)},
    {"metadata", GENERATE, FIELD_IGNORED, 0, 0, 0},
    {"store", GENERATE, FIELD_IGNORED, 0, 0, 0},
    {"service_tier", GENERATE, FIELD_IGNORED, 0, 0, 0},
    {"safety_identifier", GENERATE, FIELD_IGNORED, 0, 0, 0},
    {"prompt_cache_key", GENERATE, FIELD_IGNORED, 0, 0, 0},
    {"parallel_tool_calls", ACTOR_HTTP_CHAT, FIELD_IGNORED, 0, 0, 0},
    {"best_of", ACTOR_HTTP_COMPLETION, FIELD_UNSUPPORTED, 0, 0, 0},
    {"suffix", ACTOR_HTTP_COMPLETION, FIELD_UNSUPPORTED, 0, 0, 0},
    {"tools", ACTOR_HTTP_CHAT, FIELD_UNSUPPORTED, 0, 0, 0},
    {"tool_choice", ACTOR_HTTP_CHAT, FIELD_UNSUPPORTED, 0, 0, 0},
    {"functions", ACTOR_HTTP_CHAT, FIELD_UNSUPPORTED, 0, 0, 0},
    {"function_call", ACTOR_HTTP_CHAT, FIELD_UNSUPPORTED, 0, 0, 0},
    {"response_format", GENERATE, FIELD_UNSUPPORTED, 0, 0, 0},
    {"modalities", ACTOR_HTTP_CHAT, FIELD_UNSUPPORTED, 0, 0, 0},
    {"audio", ACTOR_HTTP_CHAT, FIELD_UNSUPPORTED, 0, 0, 0},
    {"images", GENERATE, FIELD_UNSUPPORTED, 0, 0, 0},
    {"prediction", ACTOR_HTTP_CHAT, FIELD_UNSUPPORTED, 0, 0, 0},
    {"web_search_options", ACTOR_HTTP_CHAT, FIELD_UNSUPPORTED, 0, 0, 0},
    {"reasoning_effort", ACTOR_HTTP_CHAT, FIELD_UNSUPPORTED, 0, 0, 0},
    {"verbosity", ACTOR_HTTP_CHAT, FIELD_UNSUPPORTED, 0, 0, 0},
    {"prompt_logprobs", GENERATE, FIELD_UNSUPPORTED, 0, 0, 0},
    {"use_beam_search", GENERATE, FIELD_UNSUPPORTED, 0, 0, 0},
    {"guided_json", GENERATE, FIELD_UNSUPPORTED, 0, 0, 0},
    {"guided_regex", GENERATE, FIELD_UNSUPPORTED, 0, 0, 0},
    {"guided_choice", GENERATE, FIELD_UNSUPPORTED, 0, 0, 0},
    {"guided_grammar", GENERATE, FIELD_UNSUPPORTED, 0, 0, 0},
    {"structured_outputs", GENERATE, FIELD_UNSUPPORTED, 0, 0, 0},
    {"prompt_embeds", ACTOR_HTTP_COMPLETION, FIELD_UNSUPPORTED, 0, 0, 0},
};

/* ---- reading one field ----------------------------------------------------------------------- */

/* True if the value of an unsupported field asks for nothing: best_of 1, tools [], ... */
static bool
asks_for_nothing(const char *name, const json_t *value)
{
    if (json_is_array(value) && json_array_size(value) == 0) {
        return true;
    }
    if (strcmp(name, "best_of") == 0 && json_is_integer(value)) {
        return json_integer_value(value) == 1;
    }
    if (json_is_false(value)) {
        return true;
    }
    const char *word = json_string_value(value);
    if (word != NULL) {
        bool choice = strcmp(name, "tool_choice") == 0 || strcmp(name, "function_call") == 0;
        return choice && strcmp(word, "none") == 0;
    }
    if (strcmp(name, "response_format") == 0) {
        const char *type = json_string_value(json_object_get(value, "type"));
        return type != NULL && strcmp(type, "text") == 0;
    }
    if (strcmp(name, "modalities") == 0 && json_array_size(value) == 1) {
        const char *only = json_string_value(json_array_get(value, 0));
        return only != NULL && strcmp(only, "text") == 0;
    }
    return false;
}

static bool
out_of_range(const field_t *field, const json_t *value, actor_http_error_t *error)
{
    char shown[64];
    actor_http_fields_show(value, shown, sizeof shown);
    switch (field->type) {
    case FIELD_INTEGER:
        actor_http_error_set(error, field->name, "",
                             "%s must be an integer between %.0f and %.0f, not %s.", field->name,
                             field->min, field->max, shown);
        break;
    case FIELD_NUMBER:
        actor_http_error_set(error, field->name, "",
                             "%s must be a number between %g and %g, not %s.", field->name,
                             field->min, field->max, shown);
        break;
    case FIELD_NUMBER_ABOVE:
        actor_http_error_set(error, field->name, "",
                             "%s must be a number above %g and at most %g, not %s.", field->name,
                             field->min, field->max, shown);
        break;
    case FIELD_BOOL:
        actor_http_error_set(error, field->name, "", "%s must be true or false, not %s.",
                             field->name, shown);
        break;
    case FIELD_STRING:
    case FIELD_SPECIAL:
    case FIELD_IGNORED:
    case FIELD_UNSUPPORTED:
        if (json_is_string(value)) { /* never its text: it may be a secret */
            (void)snprintf(shown, sizeof shown, "of %zu", json_string_length(value));
        }
        actor_http_error_set(error, field->name, "",
                             "%s must be a string of %.0f to %.0f bytes, not %s.", field->name,
                             field->min, field->max, shown);
        break;
    }
    return false;
}

static bool
read_plain(actor_http_params_t *self, const field_t *field, const json_t *value,
           actor_http_error_t *error)
{
    char *place = (char *)self + field->offset_bytes;
    switch (field->type) {
    case FIELD_INTEGER: {
        int64_t number = json_integer_value(value);
        if (!json_is_integer(value) || number < (int64_t)field->min ||
            number > (int64_t)field->max) {
            return out_of_range(field, value, error);
        }
        memcpy(place, &number, sizeof number);
        return true;
    }
    case FIELD_NUMBER:
    case FIELD_NUMBER_ABOVE: {
        double number = json_number_value(value);
        bool low = field->type == FIELD_NUMBER ? number < field->min : number <= field->min;
        if (!json_is_number(value) || low || !(number <= field->max)) {
            return out_of_range(field, value, error);
        }
        memcpy(place, &number, sizeof number);
        return true;
    }
    case FIELD_BOOL: {
        bool truth = json_is_true(value);
        if (!json_is_boolean(value)) {
            return out_of_range(field, value, error);
        }
        memcpy(place, &truth, sizeof truth);
        return true;
    }
    case FIELD_STRING: {
        const char *string = json_string_value(value);
        size_t size = json_string_length(value);
        if (string == NULL || (double)size < field->min || (double)size > field->max) {
            return out_of_range(field, value, error);
        }
        memcpy(place, &string, sizeof string);
        return true;
    }
    case FIELD_SPECIAL:
    case FIELD_IGNORED:
    case FIELD_UNSUPPORTED:
        break;
    }
    return true;
}

static bool
read_seed(actor_http_params_t *self, const json_t *value, actor_http_error_t *error)
{
    if (!json_is_integer(value)) {
        char shown[64];
        actor_http_fields_show(value, shown, sizeof shown);
        actor_http_error_set(error, "seed", "",
                             "seed must be an integer of at most 64 bits, not %s.", shown);
        return false;
    }
    self->seed = json_integer_value(value);
    self->has_seed = true;
    return true;
}

static bool
read_stream_options(actor_http_params_t *self, const json_t *value, actor_http_error_t *error)
{
    const json_t *usage = json_object_get(value, "include_usage");
    bool absent = usage == NULL || json_is_null(usage);
    if (!json_is_object(value) || (!absent && !json_is_boolean(usage))) {
        actor_http_error_set(error, "stream_options", "",
                             "stream_options must be an object whose include_usage is true or "
                             "false.");
        return false;
    }
    self->include_usage = json_is_true(usage);
    return true;
}

static bool
read_special(actor_http_params_t *self, const field_t *field, const json_t *value,
             const actor_http_params_limits_t *limits, actor_http_error_t *error)
{
    const char *name = field->name;
    if (strcmp(name, "prompt") == 0) {
        return actor_http_fields_prompt(self, value, limits, error);
    }
    if (strcmp(name, "messages") == 0) {
        return actor_http_fields_messages(self, value, error);
    }
    if (strcmp(name, "tokens") == 0) {
        return actor_http_fields_tokens(self, value, limits, error);
    }
    if (strcmp(name, "seed") == 0) {
        return read_seed(self, value, error);
    }
    if (strcmp(name, "logit_bias") == 0) {
        return actor_http_fields_bias(self, value, limits, error);
    }
    if (strcmp(name, "stop") == 0) {
        return actor_http_fields_stop(self, value, error);
    }
    if (strcmp(name, "stop_token_ids") == 0) {
        return actor_http_fields_stop_ids(self, value, limits, error);
    }
    require(strcmp(name, "stream_options") == 0);
    return read_stream_options(self, value, error);
}

static const field_t *
find_field(actor_http_kind_t kind, const char *name)
{
    for (size_t at = 0; at < sizeof fields / sizeof fields[0]; at++) {
        if ((fields[at].kinds & (unsigned)kind) != 0 && strcmp(fields[at].name, name) == 0) {
            return &fields[at];
        }
    }
    return NULL;
}

/* A client's own name may hold anything; what goes into a message is short and plain. */
static void
plain_name(const char *name, char *out, size_t size_bytes)
{
    size_t at = 0;
    for (; name[at] != '\0' && at + 1 < size_bytes && at < 64; at++) {
        bool plain = name[at] > ' ' && name[at] < 0x7f && name[at] != '"' && name[at] != '\\';
        out[at] = '?';
        if (plain) {
            out[at] = name[at];
        }
    }
    out[at] = '\0';
}

static bool
read_field(actor_http_params_t *self, const char *key, const json_t *value,
           const actor_http_params_limits_t *limits, actor_http_error_t *error)
{
    const field_t *field = find_field(self->kind, key);
    if (field == NULL) {
        if (!limits->strict) {
            return true;
        }
        char name[80];
        plain_name(key, name, sizeof name);
        actor_http_error_set(error, name, "unknown_parameter", "Unknown parameter: %s.", name);
        return false;
    }
    if (json_is_null(value)) {
        return true; /* as if it were not there */
    }
    switch (field->type) {
    case FIELD_IGNORED:
        return true;
    case FIELD_UNSUPPORTED:
        if (asks_for_nothing(field->name, value)) {
            return true;
        }
        actor_http_error_set(error, field->name, "unsupported_parameter",
                             "%s is not supported by this server.", field->name);
        return false;
    case FIELD_SPECIAL:
        return read_special(self, field, value, limits, error);
    case FIELD_INTEGER:
    case FIELD_NUMBER:
    case FIELD_NUMBER_ABOVE:
    case FIELD_BOOL:
    case FIELD_STRING:
        break;
    }
    return read_plain(self, field, value, error);
}

/* ---- the body -------------------------------------------------------------------------------- */

/* Walks the text up to `end`: how deep it nests, and the last key at the top level, which is the
 * field that a syntax error at `end` belongs to. */
static uint32_t
scan(const char *body, size_t end, char *key, size_t key_size_bytes)
{
    uint32_t depth = 0;
    uint32_t deepest = 0;
    size_t string_at = 0;
    size_t string_size = 0;
    for (size_t at = 0; at < end; at++) {
        char byte = body[at];
        if (byte == '"') {
            string_at = at + 1;
            for (at++; at < end && body[at] != '"'; at++) {
                at += body[at] == '\\';
            }
            string_size = (at < end ? at : end) - string_at;
        } else if (byte == '{' || byte == '[') {
            depth++;
            deepest = depth > deepest ? depth : deepest;
        } else if ((byte == '}' || byte == ']') && depth > 0) {
            depth--;
        } else if (byte == ':' && depth == 1 && string_size > 0) {
            char raw[80];
            size_t size = string_size < sizeof raw - 1 ? string_size : sizeof raw - 1;
            memcpy(raw, body + string_at, size);
            raw[size] = '\0';
            plain_name(raw, key, key_size_bytes);
        }
    }
    return deepest;
}

static bool
load_document(actor_http_params_t *self, const char *body, size_t size_bytes,
              actor_http_error_t *error)
{
    char key[80] = "";
    if (scan(body, size_bytes, key, sizeof key) > ACTOR_HTTP_JSON_DEPTH_MAX) {
        actor_http_error_set(error, "", "invalid_json", "The body nests deeper than %d levels.",
                             ACTOR_HTTP_JSON_DEPTH_MAX);
        return false;
    }
    if (size_bytes == 0) {
        actor_http_error_set(error, "", "invalid_json",
                             "The body is empty; it must be a JSON object.");
        return false;
    }
    json_error_t json_error;
    self->document = json_loadb(body, size_bytes, JSON_REJECT_DUPLICATES, &json_error);
    if (self->document == NULL) {
        size_t position = json_error.position < 0 ? 0 : (size_t)json_error.position;
        key[0] = '\0';
        (void)scan(body, position < size_bytes ? position : size_bytes, key, sizeof key);
        const char *why = "it is malformed";
        if (json_error_code(&json_error) == json_error_numeric_overflow) {
            why = "a number is out of range";
        } else if (json_error_code(&json_error) == json_error_duplicate_key) {
            why = "a key is given twice";
        } else if (json_error_code(&json_error) == json_error_invalid_utf8) {
            why = "it is not UTF-8";
        }
        actor_http_error_set(error, key, "invalid_json",
                             "The body is not valid JSON: %s (line %d, column %d%s%s).", why,
                             json_error.line, json_error.column, key[0] == '\0' ? "" : ", at ",
                             key);
        return false;
    }
    if (!json_is_object((json_t *)self->document)) {
        actor_http_error_set(error, "", "invalid_json", "The body must be a JSON object.");
        return false;
    }
    return true;
}

static void
set_defaults(actor_http_params_t *self, actor_http_kind_t kind)
{
    memset(self, 0, sizeof *self);
    self->kind = kind;
    self->n = 1;
    self->temperature = 1.0;
    self->top_p = 1.0;
    self->repetition_penalty = 1.0;
    self->skip_special_tokens = true;
    self->add_special_tokens = true;
    self->add_generation_prompt = true;
    self->logprob_count = -1;
}

/* Rules between fields. */
static bool
check_together(actor_http_params_t *self, const actor_http_params_limits_t *limits,
               actor_http_error_t *error)
{
    if (self->model != NULL && limits->served_model != NULL &&
        strcmp(self->model, limits->served_model) != 0) {
        char name[80];
        plain_name(self->model, name, sizeof name);
        actor_http_error_set(error, "model", "model_not_found",
                             "The model `%s` does not exist here; `%s` is served.", name,
                             limits->served_model);
        error->status = 404;
        return false;
    }
    const char *missing = NULL;
    if (self->kind == ACTOR_HTTP_CHAT && self->message_count == 0) {
        missing = "messages";
    } else if (self->kind == ACTOR_HTTP_DETOKENIZE && self->prompt_count == 0) {
        missing = "tokens";
    } else if (self->kind != ACTOR_HTTP_CHAT && self->prompt_count == 0 &&
               self->message_count == 0) {
        missing = "prompt";
    }
    if (missing != NULL) {
        actor_http_error_set(error, missing, "missing_required_parameter", "%s is required.",
                             missing);
        return false;
    }
    if (self->prompt_count > 0 && self->message_count > 0) {
        actor_http_error_set(error, "messages", "", "Give either prompt or messages, not both.");
        return false;
    }
    if ((uint64_t)self->n * self->prompt_count > ACTOR_HTTP_CHOICE_COUNT_MAX) {
        actor_http_error_set(error, "n", "", "n times the number of prompts must be at most %d.",
                             ACTOR_HTTP_CHOICE_COUNT_MAX);
        return false;
    }
    if (self->max_tokens > 0 && self->min_tokens > self->max_tokens) {
        actor_http_error_set(error, "min_tokens", "",
                             "min_tokens must be at most max_tokens (%lld), not %lld.",
                             (long long)self->max_tokens, (long long)self->min_tokens);
        return false;
    }
    if (self->kind == ACTOR_HTTP_CHAT && self->logprob_count >= 0 && !self->logprobs) {
        actor_http_error_set(error, "top_logprobs", "", "top_logprobs needs logprobs to be true.");
        return false;
    }
    if (self->echo && self->logprob_count >= 0) {
        actor_http_error_set(error, "echo", "unsupported_parameter",
                             "echo together with logprobs is not supported by this server.");
        return false;
    }
    if (self->include_usage && !self->stream) {
        actor_http_error_set(error, "stream_options", "",
                             "stream_options is only allowed when stream is true.");
        return false;
    }
    return true;
}

bool
actor_http_params_parse(actor_http_params_t *self, actor_http_kind_t kind, const char *body,
                        size_t size_bytes, const actor_http_params_limits_t *limits,
                        actor_http_error_t *error)
{
    set_defaults(self, kind);
    if (!load_document(self, body, size_bytes, error)) {
        return false;
    }
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)self->document, key, value)
    {
        if (!read_field(self, key, value, limits, error)) {
            return false;
        }
    }
    return check_together(self, limits, error);
}

void
actor_http_params_fini(actor_http_params_t *self)
{
    for (uint32_t at = 0; at < self->prompt_count; at++) {
        free(self->prompts[at].ids);
    }
    free(self->prompts);
    free(self->messages);
    free(self->joined);
    actor_http_text_fini(&self->rendered);
    json_decref((json_t *)self->document);
    memset(self, 0, sizeof *self);
}

uint32_t
actor_http_params_logprob_width(const actor_http_params_t *self)
{
    if (self->kind == ACTOR_HTTP_CHAT) {
        return self->logprobs ? 1 + (uint32_t)(self->logprob_count < 0 ? 0 : self->logprob_count)
                              : 0;
    }
    return self->logprob_count < 0 ? 0 : 1 + (uint32_t)self->logprob_count;
}
