/* actor_http_reply.c - written by hand, in the key order that the API's documentation shows. */
#include "actor_http_reply.h"

#include <string.h>

#include "proto_require.h"

const char *
actor_http_reply_phrase(int status)
{
    static const struct {
        int status;
        const char *phrase;
    } phrases[] = {
        {200, "OK"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {411, "Length Required"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t at = 0; at < sizeof phrases / sizeof phrases[0]; at++) {
        if (phrases[at].status == status) {
            return phrases[at].phrase;
        }
    }
    return "Error";
}

void
actor_http_reply_head(actor_http_text_t *out, const actor_http_reply_head_t *head)
{
    actor_http_text_printf(out, "HTTP/1.1 %d %s\r\nx-request-id: %s\r\n", head->status,
                           actor_http_reply_phrase(head->status), head->request_id);
    if (head->is_stream) {
        actor_http_text_puts(out, "Content-Type: text/event-stream; charset=utf-8\r\n"
                                  "Cache-Control: no-cache\r\n"
                                  "X-Accel-Buffering: no\r\n");
        if (!head->http10) {
            actor_http_text_puts(out, "Transfer-Encoding: chunked\r\n");
        }
    } else if (head->content_type != NULL) {
        actor_http_text_printf(out, "Content-Type: %s\r\nContent-Length: %zu\r\n",
                               head->content_type, head->content_length);
    } else if (head->status != 204) {
        actor_http_text_puts(out, "Content-Length: 0\r\n");
    }
    if (head->retry_after_s > 0) {
        actor_http_text_printf(out, "Retry-After: %u\r\n", head->retry_after_s);
    }
    if (head->wants_key) {
        actor_http_text_printf(out, "WWW-Authenticate: Bearer\r\n");
    }
    if (head->allow != NULL) {
        actor_http_text_printf(out, "Allow: %s\r\n", head->allow);
    }
    if (head->close) {
        actor_http_text_puts(out, "Connection: close\r\n");
    } else if (head->http10) {
        actor_http_text_puts(out, "Connection: keep-alive\r\n");
    }
    actor_http_text_puts(out, "\r\n");
}

static void
json_or_null(actor_http_text_t *out, const char *string)
{
    if (string[0] == '\0') {
        actor_http_text_puts(out, "null");
    } else {
        actor_http_text_json(out, string, strlen(string));
    }
}

void
actor_http_reply_error(actor_http_text_t *out, const actor_http_error_t *error)
{
    actor_http_text_puts(out, "{\"error\":{\"message\":");
    actor_http_text_json(out, error->message, strlen(error->message));
    actor_http_text_printf(out, ",\"type\":\"%s\",\"param\":", error->type);
    json_or_null(out, error->param);
    actor_http_text_puts(out, ",\"code\":");
    json_or_null(out, error->code);
    actor_http_text_puts(out, "}}");
}

/* ---- parts ----------------------------------------------------------------------------------- */

static bool
is_chat(const actor_http_reply_t *reply)
{
    return reply->params->kind == ACTOR_HTTP_CHAT;
}

static void
add_common(actor_http_text_t *out, const actor_http_reply_t *reply, bool is_event)
{
    const char *object = !is_chat(reply) ? "text_completion"
                         : is_event      ? "chat.completion.chunk"
                                         : "chat.completion";
    actor_http_text_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%llu,\"model\":",
                           reply->id, object, (unsigned long long)reply->created);
    actor_http_text_json(out, reply->model, strlen(reply->model));
    actor_http_text_printf(out, ",\"system_fingerprint\":\"%s\"", reply->fingerprint);
}

static void
add_usage(actor_http_text_t *out, const actor_http_usage_t *usage)
{
    actor_http_text_printf(
        out,
        "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
        "\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
        usage->prompt_tokens, usage->completion_tokens,
        usage->prompt_tokens + usage->completion_tokens, usage->cached_tokens);
}

static void
token_text(const actor_http_reply_t *reply, int32_t id, const char **bytes, size_t *size_bytes)
{
    const actor_gateway_text_t *text = reply->tokenizer;
    if (text->token_bytes(text->context, id, bytes, size_bytes) != STATUS_OK) {
        *bytes = "";
        *size_bytes = 0;
    }
}

/* The token as a JSON string: its text, or its number for a client that asked for numbers, since
 * two tokens may have the same text. */
static void
add_token_string(actor_http_text_t *out, const actor_http_reply_t *reply, int32_t id)
{
    if (reply->params->return_tokens_as_token_ids) {
        actor_http_text_printf(out, "\"token_id:%d\"", id);
        return;
    }
    const char *bytes = NULL;
    size_t size = 0;
    token_text(reply, id, &bytes, &size);
    actor_http_text_json(out, bytes, size);
}

static void
add_chat_token(actor_http_text_t *out, const actor_http_reply_t *reply, int32_t id, float value)
{
    const char *bytes = NULL;
    size_t size = 0;
    token_text(reply, id, &bytes, &size);
    actor_http_text_puts(out, "{\"token\":");
    add_token_string(out, reply, id);
    actor_http_text_puts(out, ",\"logprob\":");
    /* JSON has no infinity; the API's documentation gives this value for "very unlikely". */
    actor_http_text_number(out, value < -9999.0f ? -9999.0 : (double)value);
    actor_http_text_puts(out, ",\"bytes\":[");
    for (size_t at = 0; at < size; at++) {
        actor_http_text_printf(out, "%s%u", at == 0 ? "" : ",", (unsigned char)bytes[at]);
    }
    actor_http_text_puts(out, "]");
}

static void
add_chat_logprobs(actor_http_text_t *out, const actor_http_reply_t *reply,
                  const actor_http_choice_t *choice, uint32_t count)
{
    actor_http_text_puts(out, "{\"content\":[");
    for (uint32_t at = 0; at < count; at++) {
        uint32_t entry = choice->logprobs[choice->logprob_shown + at].entry_at;
        const int32_t *ids = choice->logprob_ids + entry;
        const float *values = choice->logprob_values + entry;
        actor_http_text_puts(out, at == 0 ? "" : ",");
        add_chat_token(out, reply, ids[0], values[0]);
        actor_http_text_puts(out, ",\"top_logprobs\":[");
        for (uint32_t top = 1; top < choice->logprob_width; top++) {
            actor_http_text_puts(out, top == 1 ? "" : ",");
            add_chat_token(out, reply, ids[top], values[top]);
            actor_http_text_puts(out, "}");
        }
        actor_http_text_puts(out, "]}");
    }
    actor_http_text_puts(out, "],\"refusal\":null}");
}

/* Two tokens may have the same text once their bytes are shown as U+FFFD; a JSON object must not
 * have a key twice, so the first, likelier one stays. */
static bool
shown_before(const actor_http_reply_t *reply, const int32_t *ids, uint32_t top)
{
    if (reply->params->return_tokens_as_token_ids) {
        return false; /* numbers are never the same */
    }
    const char *bytes = NULL;
    size_t size = 0;
    token_text(reply, ids[top], &bytes, &size);
    bool whole = size > 0;
    for (size_t at = 0; at < size && whole;) {
        int length = actor_http_utf8_length(bytes + at, size - at);
        whole = length > 0;
        at += whole ? (size_t)length : 0;
    }
    for (uint32_t at = 1; at < top; at++) {
        const char *other = NULL;
        size_t other_size = 0;
        token_text(reply, ids[at], &other, &other_size);
        bool same = other_size == size && (size == 0 || memcmp(other, bytes, size) == 0);
        if (ids[at] == ids[top] || same) {
            return true;
        }
    }
    return !whole && top > 1;
}

static void
add_completion_logprobs(actor_http_text_t *out, const actor_http_reply_t *reply,
                        const actor_http_choice_t *choice, uint32_t count)
{
    const actor_http_logprob_t *records = choice->logprobs + choice->logprob_shown;
    actor_http_text_puts(out, "{\"tokens\":[");
    for (uint32_t at = 0; at < count; at++) {
        actor_http_text_puts(out, at == 0 ? "" : ",");
        add_token_string(out, reply, choice->logprob_ids[records[at].entry_at]);
    }
    actor_http_text_puts(out, "],\"token_logprobs\":[");
    for (uint32_t at = 0; at < count; at++) {
        actor_http_text_puts(out, at == 0 ? "" : ",");
        actor_http_text_number(out, (double)choice->logprob_values[records[at].entry_at]);
    }
    actor_http_text_puts(out, "],\"top_logprobs\":");
    if (choice->logprob_width <= 1) {
        actor_http_text_puts(out, "null");
    } else {
        actor_http_text_puts(out, "[");
        for (uint32_t at = 0; at < count; at++) {
            const int32_t *ids = choice->logprob_ids + records[at].entry_at;
            const float *values = choice->logprob_values + records[at].entry_at;
            actor_http_text_puts(out, at == 0 ? "{" : ",{");
            for (uint32_t top = 1; top < choice->logprob_width; top++) {
                if (shown_before(reply, ids, top)) {
                    continue;
                }
                actor_http_text_puts(out, top == 1 ? "" : ",");
                add_token_string(out, reply, ids[top]);
                actor_http_text_puts(out, ":");
                actor_http_text_number(out, (double)values[top]);
            }
            actor_http_text_puts(out, "}");
        }
        actor_http_text_puts(out, "]");
    }
    actor_http_text_puts(out, ",\"text_offset\":[");
    for (uint32_t at = 0; at < count; at++) {
        actor_http_text_printf(out, "%s%u", at == 0 ? "" : ",", records[at].begin_chars);
    }
    actor_http_text_puts(out, "]}");
}

static void
add_logprobs(actor_http_text_t *out, const actor_http_reply_t *reply,
             const actor_http_choice_t *choice)
{
    uint32_t count = choice == NULL ? 0 : actor_http_choice_logprobs_ready(choice);
    actor_http_text_puts(out, ",\"logprobs\":");
    if (choice == NULL || choice->logprob_width == 0) {
        actor_http_text_puts(out, "null");
    } else if (is_chat(reply)) {
        add_chat_logprobs(out, reply, choice, count);
    } else {
        add_completion_logprobs(out, reply, choice, count);
    }
}

/* ---- whole answers --------------------------------------------------------------------------- */

/* The prompt goes before the text of a completion that asked for echo. */
static void
add_echoed(actor_http_text_t *out, const actor_http_reply_t *reply, uint32_t index,
           const char *text, size_t size_bytes)
{
    const actor_http_prompt_t *prompt = &reply->params->prompts[index / (uint32_t)reply->params->n];
    actor_http_text_t whole = {0};
    if (prompt->text != NULL) {
        actor_http_text_add(&whole, prompt->text, prompt->text_size_bytes);
    } else {
        for (uint32_t at = 0; at < prompt->id_count; at++) {
            const char *bytes = NULL;
            size_t size = 0;
            token_text(reply, prompt->ids[at], &bytes, &size);
            actor_http_text_add(&whole, bytes, size);
        }
    }
    actor_http_text_add(&whole, text, size_bytes);
    actor_http_text_json(out, whole.data, whole.size_bytes);
    out->failed = out->failed || whole.failed;
    actor_http_text_fini(&whole);
}

void
actor_http_reply_answer(actor_http_text_t *out, const actor_http_reply_t *reply,
                        actor_http_choice_t *const *choices, const char *const *reasons,
                        uint32_t count, const actor_http_usage_t *usage)
{
    add_common(out, reply, false);
    actor_http_text_puts(out, ",\"choices\":[");
    for (uint32_t at = 0; at < count; at++) {
        size_t size = 0;
        const char *text = actor_http_choice_visible(choices[at], &size);
        actor_http_text_printf(out, "%s{\"index\":%u,", at == 0 ? "" : ",", at);
        if (is_chat(reply)) {
            actor_http_text_puts(out, "\"message\":{\"role\":\"assistant\",\"content\":");
            actor_http_text_json(out, text, size);
            actor_http_text_puts(out, ",\"refusal\":null}");
        } else {
            actor_http_text_puts(out, "\"text\":");
            if (reply->params->echo) {
                add_echoed(out, reply, at, text, size);
            } else {
                actor_http_text_json(out, text, size);
            }
        }
        add_logprobs(out, reply, choices[at]);
        actor_http_text_printf(out, ",\"finish_reason\":\"%s\"}", reasons[at]);
        out->failed = out->failed || choices[at]->failed;
    }
    actor_http_text_puts(out, "],");
    add_usage(out, usage);
    actor_http_text_puts(out, "}");
}

/* ---- events ---------------------------------------------------------------------------------- */

static void
open_event(actor_http_text_t *out, const actor_http_reply_t *reply)
{
    actor_http_text_puts(out, "data: ");
    add_common(out, reply, true);
}

static void
close_event(actor_http_text_t *out, const actor_http_reply_t *reply)
{
    actor_http_text_puts(out, reply->params->include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

void
actor_http_reply_role_event(actor_http_text_t *out, const actor_http_reply_t *reply, uint32_t index)
{
    require(is_chat(reply));
    open_event(out, reply);
    actor_http_text_printf(out,
                           ",\"choices\":[{\"index\":%u,\"delta\":{\"role\":\"assistant\","
                           "\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}",
                           index);
    close_event(out, reply);
}

void
actor_http_reply_text_event(actor_http_text_t *out, const actor_http_reply_t *reply, uint32_t index,
                            const char *text, size_t size_bytes, const actor_http_choice_t *choice)
{
    open_event(out, reply);
    actor_http_text_printf(out, ",\"choices\":[{\"index\":%u,", index);
    actor_http_text_puts(out, is_chat(reply) ? "\"delta\":{\"content\":" : "\"text\":");
    if (reply->params->echo && choice == NULL) {
        add_echoed(out, reply, index, text, size_bytes);
    } else {
        actor_http_text_json(out, text, size_bytes);
    }
    actor_http_text_puts(out, is_chat(reply) ? "}" : "");
    add_logprobs(out, reply, choice);
    actor_http_text_puts(out, ",\"finish_reason\":null}");
    close_event(out, reply);
}

void
actor_http_reply_finish_event(actor_http_text_t *out, const actor_http_reply_t *reply,
                              uint32_t index, const char *reason)
{
    open_event(out, reply);
    actor_http_text_printf(out,
                           ",\"choices\":[{\"index\":%u,%s,\"logprobs\":null,"
                           "\"finish_reason\":\"%s\"}",
                           index, is_chat(reply) ? "\"delta\":{}" : "\"text\":\"\"", reason);
    close_event(out, reply);
}

void
actor_http_reply_usage_event(actor_http_text_t *out, const actor_http_reply_t *reply,
                             const actor_http_usage_t *usage)
{
    open_event(out, reply);
    actor_http_text_puts(out, ",\"choices\":[],");
    add_usage(out, usage);
    actor_http_text_puts(out, "}\n\n");
}

void
actor_http_reply_error_event(actor_http_text_t *out, const actor_http_error_t *error)
{
    actor_http_text_puts(out, "data: ");
    actor_http_reply_error(out, error);
    actor_http_text_puts(out, "\n\n");
}
