/* actor_http_fields.c - prompts, messages, stops and biases. */
#include "actor_http_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

void
actor_http_fields_show(const json_t *value, char *out, size_t size_bytes)
{
    require(size_bytes >= 8);
    if (json_is_object(value) || json_is_array(value)) {
        /* Its content may be long and private; its kind says enough. */
        (void)snprintf(out, size_bytes, "%s", json_is_object(value) ? "an object" : "an array");
        return;
    }
    if (json_is_string(value)) {
        (void)snprintf(out, size_bytes, "a string");
        return;
    }
    size_t written = json_dumpb(value, out, size_bytes - 1, JSON_ENCODE_ANY);
    if (written == 0 || written > size_bytes - 1) {
        (void)snprintf(out, size_bytes, "something else");
        return;
    }
    out[written] = '\0';
}

/* ---- prompt ---------------------------------------------------------------------------------- */

static bool
take_ids(const json_t *value, const char *name, uint32_t vocab_size, actor_http_prompt_t *out,
         actor_http_error_t *error)
{
    size_t count = json_array_size(value);
    if (count == 0 || count > PROTO_TOKENS_MAX) {
        actor_http_error_set(error, name, "", "%s must hold 1 to %d token ids, not %zu.", name,
                             PROTO_TOKENS_MAX, count);
        return false;
    }
    out->ids = malloc(count * sizeof *out->ids);
    if (out->ids == NULL) {
        return actor_http_error_no_memory(error);
    }
    int64_t limit = vocab_size == 0 ? INT32_MAX : (int64_t)vocab_size - 1;
    for (size_t at = 0; at < count; at++) {
        const json_t *id = json_array_get(value, at);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > limit) {
            char shown[64];
            actor_http_fields_show(id, shown, sizeof shown);
            actor_http_error_set(error, name, "",
                                 "%s[%zu] must be a token id between 0 and %lld, not %s.", name, at,
                                 (long long)limit, shown);
            return false;
        }
        out->ids[at] = (int32_t)json_integer_value(id);
    }
    out->id_count = (uint32_t)count;
    return true;
}

static bool
take_text(const json_t *value, const char *name, actor_http_prompt_t *out,
          actor_http_error_t *error)
{
    out->text = json_string_value(value);
    out->text_size_bytes = json_string_length(value);
    if (out->text_size_bytes == 0) {
        actor_http_error_set(error, name, "", "%s must not be empty.", name);
        return false;
    }
    return true;
}

bool
actor_http_fields_prompt(actor_http_params_t *self, const json_t *value,
                         const actor_http_params_limits_t *limits, actor_http_error_t *error)
{
    const json_t *first = json_array_get(value, 0); /* NULL unless a filled array */
    bool is_list = json_is_string(first) || json_is_array(first);
    size_t count = is_list ? json_array_size(value) : 1;
    if (!json_is_string(value) && first == NULL) {
        actor_http_error_set(error, "prompt", "",
                             "prompt must be a string, an array of strings, an array of token ids "
                             "or an array of such arrays, and not empty.");
        return false;
    }
    if (count > ACTOR_HTTP_PROMPT_COUNT_MAX) {
        actor_http_error_set(error, "prompt", "", "prompt must hold 1 to %d prompts, not %zu.",
                             ACTOR_HTTP_PROMPT_COUNT_MAX, count);
        return false;
    }
    self->prompts = calloc(count, sizeof *self->prompts);
    if (self->prompts == NULL) {
        return actor_http_error_no_memory(error);
    }
    self->prompt_count = (uint32_t)count;
    if (json_is_string(value)) {
        return take_text(value, "prompt", &self->prompts[0], error);
    }
    if (!is_list) {
        return take_ids(value, "prompt", limits->vocab_size, &self->prompts[0], error);
    }
    for (size_t at = 0; at < count; at++) {
        const json_t *item = json_array_get(value, at);
        char name[32];
        (void)snprintf(name, sizeof name, "prompt[%zu]", at);
        if (json_typeof(item) != json_typeof(first)) {
            actor_http_error_set(error, name, "", "%s is of another type than prompt[0].", name);
            return false;
        }
        bool ok = json_is_string(item)
                      ? take_text(item, name, &self->prompts[at], error)
                      : take_ids(item, name, limits->vocab_size, &self->prompts[at], error);
        if (!ok) {
            return false;
        }
    }
    return true;
}

bool
actor_http_fields_tokens(actor_http_params_t *self, const json_t *value,
                         const actor_http_params_limits_t *limits, actor_http_error_t *error)
{
    if (!json_is_array(value)) {
        actor_http_error_set(error, "tokens", "", "tokens must be an array of token ids.");
        return false;
    }
    self->prompts = calloc(1, sizeof *self->prompts);
    if (self->prompts == NULL) {
        return actor_http_error_no_memory(error);
    }
    self->prompt_count = 1;
    return take_ids(value, "tokens", limits->vocab_size, &self->prompts[0], error);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Text parts are joined by a line feed; the first pass counts, the second copies. */
static bool
join_parts(const json_t *parts, size_t message_at, char *out, size_t *size_bytes,
           actor_http_error_t *error)
{
    size_t size = 0;
    for (size_t at = 0; at < json_array_size(parts); at++) {
        const json_t *part = json_array_get(parts, at);
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        char name[64];
        (void)snprintf(name, sizeof name, "messages[%zu].content[%zu]", message_at, at);
        if (type == NULL || strcmp(type, "text") != 0) {
            bool known = type != NULL && strlen(type) < 32;
            actor_http_error_set(error, name, "unsupported_content",
                                 "%s: only parts of type \"text\" are supported here%s.", name,
                                 known ? "" : " (each needs a type)");
            return false;
        }
        if (!json_is_string(text)) {
            actor_http_error_set(error, name, "", "%s.text must be a string.", name);
            return false;
        }
        if (at > 0) {
            if (out != NULL) {
                out[size] = '\n';
            }
            size++;
        }
        if (out != NULL) {
            memcpy(out + size, json_string_value(text), json_string_length(text));
        }
        size += json_string_length(text);
    }
    *size_bytes = size;
    return true;
}

static bool
check_role(const json_t *message, size_t at, actor_text_message_t *out, actor_http_error_t *error)
{
    char name[48];
    (void)snprintf(name, sizeof name, "messages[%zu].role", at);
    const json_t *role = json_object_get(message, "role");
    const char *word = json_string_value(role);
    bool known = word != NULL && (strcmp(word, "system") == 0 || strcmp(word, "user") == 0 ||
                                  strcmp(word, "assistant") == 0 || strcmp(word, "developer") == 0);
    if (!known) {
        actor_http_error_set(error, name, "",
                             "%s must be \"system\", \"developer\", \"user\" or \"assistant\"; "
                             "tools are not supported here.",
                             name);
        return false;
    }
    out->role = strcmp(word, "developer") == 0 ? "system" : word;
    out->role_size_bytes = strlen(out->role);
    static const char *const unsupported[] = {"tool_calls", "function_call", "audio"};
    for (size_t field = 0; field < sizeof unsupported / sizeof unsupported[0]; field++) {
        const json_t *value = json_object_get(message, unsupported[field]);
        if (value != NULL && !json_is_null(value) &&
            !(json_is_array(value) && json_array_size(value) == 0)) {
            (void)snprintf(name, sizeof name, "messages[%zu].%s", at, unsupported[field]);
            actor_http_error_set(error, name, "unsupported_parameter", "%s is not supported here.",
                                 name);
            return false;
        }
    }
    return true;
}

static bool
check_content(const json_t *content, size_t at, size_t *joined_bytes, actor_http_error_t *error)
{
    char name[48];
    (void)snprintf(name, sizeof name, "messages[%zu].content", at);
    if (json_is_string(content)) {
        return true;
    }
    if (!json_is_array(content) || json_array_size(content) == 0) {
        char shown[64] = "absent";
        if (content != NULL) {
            actor_http_fields_show(content, shown, sizeof shown);
        }
        actor_http_error_set(error, name, "",
                             "%s must be a string or an array of text parts; it is %s.", name,
                             shown);
        return false;
    }
    size_t size = 0;
    if (!join_parts(content, at, NULL, &size, error)) {
        return false;
    }
    *joined_bytes += size;
    return true;
}

bool
actor_http_fields_messages(actor_http_params_t *self, const json_t *value,
                           actor_http_error_t *error)
{
    size_t count = json_array_size(value);
    if (!json_is_array(value) || count == 0 || count > ACTOR_HTTP_MESSAGE_COUNT_MAX) {
        actor_http_error_set(error, "messages", "",
                             "messages must be an array of 1 to %d messages.",
                             ACTOR_HTTP_MESSAGE_COUNT_MAX);
        return false;
    }
    self->messages = calloc(count, sizeof *self->messages);
    if (self->messages == NULL) {
        return actor_http_error_no_memory(error);
    }
    size_t joined_bytes = 0;
    for (size_t at = 0; at < count; at++) {
        const json_t *message = json_array_get(value, at);
        if (!json_is_object(message)) {
            char name[48];
            (void)snprintf(name, sizeof name, "messages[%zu]", at);
            actor_http_error_set(error, name, "", "%s must be an object.", name);
            return false;
        }
        if (!check_role(message, at, &self->messages[at], error) ||
            !check_content(json_object_get(message, "content"), at, &joined_bytes, error)) {
            return false;
        }
    }
    self->joined = malloc(joined_bytes + 1);
    if (self->joined == NULL) {
        return actor_http_error_no_memory(error);
    }
    size_t used = 0;
    for (size_t at = 0; at < count; at++) {
        const json_t *content = json_object_get(json_array_get(value, at), "content");
        actor_text_message_t *out = &self->messages[at];
        if (json_is_string(content)) {
            out->content = json_string_value(content);
            out->content_size_bytes = json_string_length(content);
            continue;
        }
        out->content = self->joined + used;
        bool ok = join_parts(content, at, self->joined + used, &out->content_size_bytes, error);
        require(ok); /* checked above */
        used += out->content_size_bytes;
    }
    require(used == joined_bytes);
    self->message_count = (uint32_t)count;
    return true;
}

/* ---- stops and biases ------------------------------------------------------------------------ */

bool
actor_http_fields_stop(actor_http_params_t *self, const json_t *value, actor_http_error_t *error)
{
    size_t count = json_is_string(value) ? 1 : json_array_size(value);
    if ((!json_is_string(value) && !json_is_array(value)) || count > ACTOR_HTTP_STOP_COUNT_MAX) {
        actor_http_error_set(error, "stop", "",
                             "stop must be a string or an array of at most %d strings.",
                             ACTOR_HTTP_STOP_COUNT_MAX);
        return false;
    }
    for (size_t at = 0; at < count; at++) {
        const json_t *item = json_is_string(value) ? value : json_array_get(value, at);
        size_t size = json_string_length(item);
        if (!json_is_string(item) || size == 0 || size > ACTOR_HTTP_STOP_SIZE_MAX) {
            char name[48] = "stop";
            if (!json_is_string(value)) {
                (void)snprintf(name, sizeof name, "stop[%zu]", at);
            }
            actor_http_error_set(error, name, "",
                                 "%s must be a string of 1 to %d bytes, not of %zu.", name,
                                 ACTOR_HTTP_STOP_SIZE_MAX, size);
            return false;
        }
        self->stops[at] = (proto_text_t){json_string_value(item), (uint32_t)size};
    }
    self->stop_count = (uint32_t)count;
    return true;
}

bool
actor_http_fields_stop_ids(actor_http_params_t *self, const json_t *value,
                           const actor_http_params_limits_t *limits, actor_http_error_t *error)
{
    size_t count = json_array_size(value);
    if (!json_is_array(value) || count > PROTO_STOP_IDS_MAX) {
        actor_http_error_set(error, "stop_token_ids", "",
                             "stop_token_ids must be an array of at most %d token ids.",
                             PROTO_STOP_IDS_MAX);
        return false;
    }
    int64_t limit = limits->vocab_size == 0 ? INT32_MAX : (int64_t)limits->vocab_size - 1;
    for (size_t at = 0; at < count; at++) {
        const json_t *id = json_array_get(value, at);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > limit) {
            char shown[64];
            actor_http_fields_show(id, shown, sizeof shown);
            actor_http_error_set(error, "stop_token_ids", "",
                                 "stop_token_ids[%zu] must be between 0 and %lld, not %s.", at,
                                 (long long)limit, shown);
            return false;
        }
        self->stop_ids[at] = (int32_t)json_integer_value(id);
    }
    self->stop_id_count = (uint32_t)count;
    return true;
}

bool
actor_http_fields_bias(actor_http_params_t *self, const json_t *value,
                       const actor_http_params_limits_t *limits, actor_http_error_t *error)
{
    if (!json_is_object(value) || json_object_size(value) > PROTO_BIAS_MAX) {
        actor_http_error_set(error, "logit_bias", "",
                             "logit_bias must be an object of at most %d entries.", PROTO_BIAS_MAX);
        return false;
    }
    long long limit = limits->vocab_size == 0 ? INT32_MAX : (long long)limits->vocab_size - 1;
    json_t *object = (json_t *)(uintptr_t)value; /* the iterator's signature lacks a const */
    void *iterator = json_object_iter(object);
    for (; iterator != NULL; iterator = json_object_iter_next(object, iterator)) {
        const char *key = json_object_iter_key(iterator);
        const json_t *bias = json_object_iter_value(iterator);
        char *end = NULL;
        bool digits = key[0] >= '0' && key[0] <= '9' && strlen(key) <= 9;
        long long id = digits ? strtoll(key, &end, 10) : -1;
        if (id < 0 || id > limit || *end != '\0') {
            actor_http_error_set(error, "logit_bias", "",
                                 "logit_bias has a key that is no token id between 0 and %lld.",
                                 limit);
            return false;
        }
        double number = json_number_value(bias);
        if (!json_is_number(bias) || number < -100.0 || number > 100.0) {
            char shown[64];
            actor_http_fields_show(bias, shown, sizeof shown);
            actor_http_error_set(error, "logit_bias", "",
                                 "logit_bias.%lld must be a number between -100 and 100, not %s.",
                                 id, shown);
            return false;
        }
        self->bias_ids[self->bias_count] = (int32_t)id;
        self->bias_values[self->bias_count++] = (float)number;
    }
    return true;
}
