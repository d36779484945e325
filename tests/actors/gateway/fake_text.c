/* fake_text.c - see the header. */
#include "fake_text.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *bytes;
    bool special;
} words[] = {
    [FAKE_EOS - 256] = {"<eos>", true},       [FAKE_HELLO - 256] = {"Hello", false},
    [FAKE_WORLD - 256] = {" world", false},   [FAKE_EURO_HEAD - 256] = {"\xe2\x82", false},
    [FAKE_EURO_TAIL - 256] = {"\xac", false}, [FAKE_ST - 256] = {"ST", false},
    [FAKE_OP - 256] = {"OP", false},          [FAKE_BAD - 256] = {"\xff", false},
    [FAKE_MARK - 256] = {"<mark>", true},     [FAKE_XSTOPY - 256] = {"xSTOPy", false},
};

static proto_status_t
encode(void *context, uint32_t lane, const actor_text_encode_t *call, size_t *id_count)
{
    (void)context;
    (void)lane;
    if (call->size_bytes > call->id_count_max) {
        return STATUS_ERR_TOO_LARGE;
    }
    for (size_t at = 0; at < call->size_bytes; at++) {
        call->ids[at] = (unsigned char)call->text[at];
    }
    *id_count = call->size_bytes;
    return STATUS_OK;
}

static proto_status_t
token_bytes(void *context, int32_t id, const char **bytes, size_t *size_bytes)
{
    static char single[256];
    (void)context;
    if (id < 0 || id >= FAKE_VOCAB) {
        return STATUS_ERR_NOT_FOUND;
    }
    if (id < 256) {
        single[id] = (char)id; /* always the same value: any thread may write it */
        *bytes = &single[id];
        *size_bytes = 1;
        return STATUS_OK;
    }
    *bytes = words[id - 256].bytes;
    *size_bytes = strlen(*bytes);
    return STATUS_OK;
}

static bool
is_special(void *context, int32_t id)
{
    (void)context;
    return id >= 256 && id < FAKE_VOCAB && words[id - 256].special;
}

static proto_status_t
render(void *context, const actor_text_message_t *messages, size_t count,
       bool add_generation_prompt, char *out, size_t capacity_bytes, size_t *size_bytes,
       char *error)
{
    (void)context;
    size_t used = 0;
    for (size_t at = 0; at < count; at++) {
        if (messages[at].role_size_bytes == 6 && memcmp(messages[at].role, "system", 6) == 0 &&
            at > 0) {
            (void)snprintf(error, ACTOR_TEXT_ERROR_SIZE_BYTES, "system must come first");
            return STATUS_ERR_INVALID;
        }
        size_t need = messages[at].role_size_bytes + messages[at].content_size_bytes + 2;
        if (need > capacity_bytes - used) {
            return STATUS_ERR_TOO_LARGE;
        }
        memcpy(out + used, messages[at].role, messages[at].role_size_bytes);
        used += messages[at].role_size_bytes;
        out[used++] = ':';
        memcpy(out + used, messages[at].content, messages[at].content_size_bytes);
        used += messages[at].content_size_bytes;
        out[used++] = '\n';
    }
    if (add_generation_prompt) {
        if (capacity_bytes - used < 10) {
            return STATUS_ERR_TOO_LARGE;
        }
        memcpy(out + used, "assistant:", 10);
        used += 10;
    }
    *size_bytes = used;
    return STATUS_OK;
}

const actor_gateway_text_t *
fake_text(void)
{
    static const actor_gateway_text_t text = {
        .model_name = "fake",
        .vocab_size = FAKE_VOCAB,
        .context_len = 4096,
        .stop_id_count = 1,
        .stop_ids = {FAKE_EOS},
        .encode = encode,
        .token_bytes = token_bytes,
        .is_special = is_special,
        .render = render,
    };
    return &text;
}
