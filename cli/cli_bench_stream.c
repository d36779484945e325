/* One answer of `onepath bench`: server-sent events, or one JSON body. */
#include <string.h>

#include "cli_bench.h"

void
cli_bench_stream_init(cli_bench_stream_t *self)
{
    self->state = CLI_BENCH_STREAM_OPEN;
    self->piece_count = 0;
    self->token_count = 0;
    self->prompt_count = 0;
    self->why[0] = '\0';
    self->line_len = 0;
}

static void
end(cli_bench_stream_t *self, cli_bench_stream_state_t state, const char *why, const char *text)
{
    self->state = state;
    (void)snprintf(self->why, sizeof self->why, "%s%.180s", why, text);
}

static bool
is_text(const json_t *value)
{
    return json_string_length(value) > 0;
}

/* Text of any choice: of chat, of a reasoning model, of a plain completion, of a whole answer. */
static bool
has_text(const json_t *event)
{
    const json_t *choices = json_object_get(event, "choices");
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const json_t *choice = json_array_get(choices, i);
        const json_t *delta = json_object_get(choice, "delta");
        const json_t *message = json_object_get(choice, "message");
        if (is_text(json_object_get(delta, "content")) ||
            is_text(json_object_get(delta, "reasoning_content")) ||
            is_text(json_object_get(message, "content")) ||
            is_text(json_object_get(choice, "text"))) {
            return true;
        }
    }
    return false;
}

static uint32_t
count_of(const json_t *usage, const char *name)
{
    json_int_t value = json_integer_value(json_object_get(usage, name));
    return value < 0 || value > UINT32_MAX ? 0 : (uint32_t)value;
}

/* True if the event has text. */
static bool
take_object(cli_bench_stream_t *self, const json_t *event, const char *text)
{
    const json_t *error = json_object_get(event, "error");
    if (error != NULL && !json_is_null(error)) {
        const char *message = json_string_value(json_object_get(error, "message"));
        if (message == NULL) {
            message = json_string_value(error);
        }
        end(self, CLI_BENCH_STREAM_ERROR, "", message != NULL ? message : text);
        return false;
    }
    if (!json_is_array(json_object_get(event, "choices"))) {
        end(self, CLI_BENCH_STREAM_MALFORMED, "an event without choices: ", text);
        return false;
    }
    const json_t *usage = json_object_get(event, "usage");
    if (json_is_object(usage)) {
        self->token_count = count_of(usage, "completion_tokens");
        self->prompt_count = count_of(usage, "prompt_tokens");
    }
    return has_text(event);
}

static bool
take_line(cli_bench_stream_t *self)
{
    const char *text = self->line;
    if (strncmp(text, "data:", 5) != 0) {
        /* Empty lines, comments, and fields that this API does not use. */
        static const char *const fields[] = {":", "event:", "id:", "retry:"};
        bool is_known = text[0] == '\0';
        for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
            is_known |= strncmp(text, fields[i], strlen(fields[i])) == 0;
        }
        if (!is_known) {
            end(self, CLI_BENCH_STREAM_MALFORMED, "no line of an event: ", text);
        }
        return false;
    }
    text += text[5] == ' ' ? 6 : 5;
    if (strcmp(text, "[DONE]") == 0) {
        end(self, CLI_BENCH_STREAM_DONE, "", "");
        return false;
    }
    json_t *event = json_loads(text, JSON_ALLOW_NUL, NULL);
    if (event == NULL) {
        end(self, CLI_BENCH_STREAM_MALFORMED, "an event that is no JSON: ", text);
        return false;
    }
    bool found = take_object(self, event, text);
    json_decref(event);
    return found;
}

uint32_t
cli_bench_stream_push(cli_bench_stream_t *self, const char *data, size_t size_bytes)
{
    uint32_t found = 0;
    for (size_t i = 0; i < size_bytes && self->state == CLI_BENCH_STREAM_OPEN; i++) {
        if (data[i] != '\n') {
            if (self->line_len + 1 >= sizeof self->line) {
                end(self, CLI_BENCH_STREAM_MALFORMED, "a line of more than 64 KiB", "");
                break;
            }
            self->line[self->line_len++] = data[i];
            continue;
        }
        if (self->line_len > 0 && self->line[self->line_len - 1] == '\r') {
            self->line_len--;
        }
        self->line[self->line_len] = '\0';
        self->line_len = 0;
        found += take_line(self) ? 1 : 0;
    }
    self->piece_count += found;
    return found;
}

void
cli_bench_stream_whole(cli_bench_stream_t *self, const char *body, size_t size_bytes)
{
    char text[200];
    (void)snprintf(text, sizeof text, "%.*s",
                   (int)(size_bytes < sizeof text ? size_bytes : sizeof text - 1), body);
    json_t *answer = json_loadb(body, size_bytes, JSON_ALLOW_NUL, NULL);
    if (answer == NULL) {
        end(self, CLI_BENCH_STREAM_MALFORMED, "", text);
        return;
    }
    if (take_object(self, answer, text)) {
        self->piece_count = 1;
    }
    if (self->state == CLI_BENCH_STREAM_OPEN) {
        self->state = CLI_BENCH_STREAM_DONE;
    }
    json_decref(answer);
}
