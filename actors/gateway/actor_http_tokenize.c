/* actor_http_tokenize.c - messages to text, and texts to ids. */
#include <stdlib.h>
#include <string.h>

#include "actor_http_params.h"
#include "proto_require.h"

enum {
    RENDER_SIZE_MIN = 4096,
    RENDER_PER_MESSAGE = 256, /* markers that a template puts around one message */
    RENDER_SIZE_MAX = 64 << 20,
};

/* The chat becomes the one prompt. */
static bool
render_chat(actor_http_params_t *self, const actor_gateway_text_t *text, actor_http_error_t *error)
{
    if (text->chat_missing != NULL) {
        actor_http_error_set(error, "messages", "no_chat_template", "%s", text->chat_missing);
        return false;
    }
    size_t capacity = RENDER_SIZE_MIN;
    for (uint32_t at = 0; at < self->message_count; at++) {
        capacity += self->messages[at].content_size_bytes + RENDER_PER_MESSAGE;
    }
    proto_status_t status = STATUS_ERR_TOO_LARGE;
    while (status == STATUS_ERR_TOO_LARGE && capacity <= RENDER_SIZE_MAX) {
        actor_http_text_clear(&self->rendered);
        if (!actor_http_text_reserve(&self->rendered, capacity)) {
            return actor_http_error_no_memory(error);
        }
        char why[ACTOR_TEXT_ERROR_SIZE_BYTES] = "";
        size_t size = 0;
        status =
            text->render(text->context, self->messages, self->message_count,
                         self->add_generation_prompt, self->rendered.data, capacity, &size, why);
        self->rendered.size_bytes = status == STATUS_OK ? size : 0;
        capacity *= 2;
        if (status != STATUS_OK && status != STATUS_ERR_TOO_LARGE) {
            actor_http_error_set(error, "messages", "invalid_messages",
                                 "The chat template refuses these messages: %s", why);
            return false;
        }
    }
    if (status != STATUS_OK) {
        actor_http_error_set(error, "messages", "", "The rendered chat is too long.");
        return false;
    }
    self->prompts = calloc(1, sizeof *self->prompts);
    if (self->prompts == NULL) {
        return actor_http_error_no_memory(error);
    }
    self->prompt_count = 1;
    self->prompts[0].text = self->rendered.data;
    self->prompts[0].text_size_bytes = self->rendered.size_bytes;
    return true;
}

static bool
encode_prompt(actor_http_params_t *self, const actor_gateway_text_t *text, uint32_t lane,
              uint32_t id_count_max, actor_http_prompt_t *prompt, actor_http_error_t *error)
{
    bool is_chat = self->message_count > 0;
    const char *param = is_chat ? "messages" : "prompt";
    /* No text has more ids than bytes, beside the few that are put around it. */
    size_t room = prompt->text_size_bytes + 16;
    room = room < id_count_max ? room : id_count_max;
    prompt->ids = malloc(room * sizeof *prompt->ids);
    if (prompt->ids == NULL) {
        return actor_http_error_no_memory(error);
    }
    actor_text_encode_t call = {
        .text = prompt->text,
        .size_bytes = prompt->text_size_bytes,
        .parse_special = is_chat,
        .add_special = is_chat ? text->chat_adds_special : self->add_special_tokens,
        .ids = prompt->ids,
        .id_count_max = room,
    };
    size_t count = 0;
    proto_status_t status = text->encode(text->context, lane, &call, &count);
    if (status == STATUS_ERR_TOO_LARGE) {
        actor_http_error_set(error, param, "context_length_exceeded",
                             "This model's maximum context length is %u tokens, but %s has more "
                             "(%zu bytes of text).",
                             id_count_max, param, prompt->text_size_bytes);
        return false;
    }
    if (status != STATUS_OK) {
        actor_http_error_set(error, param, "", "%s cannot be tokenized: %s.", param,
                             proto_status_text(status));
        return false;
    }
    if (count == 0) {
        actor_http_error_set(error, param, "", "%s has no tokens.", param);
        return false;
    }
    prompt->id_count = (uint32_t)count;
    /* A long-lived request should not hold four bytes for each byte of its text. */
    int32_t *fitted = realloc(prompt->ids, count * sizeof *prompt->ids);
    if (fitted != NULL) {
        prompt->ids = fitted;
    }
    return true;
}

bool
actor_http_params_tokenize(actor_http_params_t *self, const actor_gateway_text_t *text,
                           uint32_t lane, uint32_t id_count_max, actor_http_error_t *error)
{
    require(lane < ACTOR_TEXT_LANE_COUNT);
    require(id_count_max > 0);
    if (self->message_count > 0 && self->prompt_count == 0 && !render_chat(self, text, error)) {
        return false;
    }
    for (uint32_t at = 0; at < self->prompt_count; at++) {
        actor_http_prompt_t *prompt = &self->prompts[at];
        if (prompt->text != NULL && !encode_prompt(self, text, lane, id_count_max, prompt, error)) {
            return false;
        }
    }
    return true;
}
