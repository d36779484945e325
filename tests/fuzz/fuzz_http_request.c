/* Everything that reads a client's bytes before a request exists.  Input: what (u8), bytes.
 *
 * What passes must be in range; a head and a chunked body must be judged the same in one piece and
 * byte by byte; what is refused must say why. */
#include <stdlib.h>
#include <string.h>

#include "actor_http_guard.h"
#include "actor_http_params.h"
#include "actor_http_reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

enum { VOCAB = 300, IDS_MAX = 1 << 20 };

static void
must(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* ---- heads and chunks ------------------------------------------------------------------------ */

static void
check_head(const char *bytes, size_t size_bytes)
{
    size_t scanned = 0;
    long end = actor_http_guard_find_end(bytes, size_bytes, &scanned);
    size_t by_byte = 0;
    long end_by_byte = 0;
    for (size_t size = 1; size <= size_bytes && end_by_byte == 0; size++) {
        end_by_byte = actor_http_guard_find_end(bytes, size, &by_byte);
    }
    must(end == end_by_byte);
    if (end <= 0) {
        return;
    }
    actor_http_head_t head;
    const char *reason = NULL;
    int status = actor_http_guard_head(bytes, (size_t)end, &head, &reason);
    if (status != 0) {
        must(status >= 400 && status < 600 && reason != NULL);
        return;
    }
    must(head.method_size_bytes > 0 && head.target_size_bytes > 0);
    must(head.target_size_bytes <= ACTOR_HTTP_TARGET_SIZE_MAX);
    must(!(head.chunked && head.has_length));
    must(head.request_id == NULL ||
         actor_http_guard_id_ok(head.request_id, head.request_id_size_bytes));
}

static void
check_chunks(const char *bytes, size_t size_bytes)
{
    actor_http_chunks_t whole = {0};
    bool done = false;
    long used = actor_http_guard_chunks(&whole, bytes, size_bytes, &done);
    must(used <= (long)size_bytes);
    actor_http_chunks_t pieces = {0};
    bool pieces_done = false;
    long pieces_used = 0;
    for (size_t at = 0; at < size_bytes && !pieces_done && pieces_used >= 0; at++) {
        long one = actor_http_guard_chunks(&pieces, bytes + at, 1, &pieces_done);
        pieces_used = one < 0 ? -1 : pieces_used + one;
    }
    must(done == pieces_done);
    must((used < 0) == (pieces_used < 0));
    must(used < 0 || used == pieces_used);
}

/* ---- bodies ---------------------------------------------------------------------------------- */

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
    (void)context;
    *bytes = "\xe2\x82\xac";
    *size_bytes = (size_t)id % 4;
    return id >= 0 && id < VOCAB ? STATUS_OK : STATUS_ERR_NOT_FOUND;
}

static bool
is_special(void *context, int32_t id)
{
    (void)context;
    return id == VOCAB - 1;
}

static proto_status_t
render(void *context, const actor_text_message_t *messages, size_t count,
       bool add_generation_prompt, char *out, size_t capacity_bytes, size_t *size_bytes,
       char *error)
{
    (void)context;
    (void)add_generation_prompt;
    (void)error;
    size_t used = 0;
    for (size_t at = 0; at < count; at++) {
        if (messages[at].content_size_bytes + 1 > capacity_bytes - used) {
            return STATUS_ERR_TOO_LARGE;
        }
        memcpy(out + used, messages[at].content, messages[at].content_size_bytes);
        used += messages[at].content_size_bytes;
        out[used++] = '\n';
    }
    *size_bytes = used;
    return STATUS_OK;
}

static const actor_gateway_text_t text = {
    .model_name = "m",
    .vocab_size = VOCAB,
    .context_len = 4096,
    .encode = encode,
    .token_bytes = token_bytes,
    .is_special = is_special,
    .render = render,
};

static void
check_ranges(const actor_http_params_t *params)
{
    must(params->n >= 1 && params->n <= PROTO_CHOICES_MAX);
    must(params->max_tokens >= 0 && params->max_tokens <= PROTO_TOKENS_MAX);
    must(params->temperature >= 0 && params->temperature <= 2);
    must(params->top_p > 0 && params->top_p <= 1);
    must(params->min_p >= 0 && params->min_p <= 1);
    must(params->repetition_penalty > 0 && params->repetition_penalty <= 10);
    must(actor_http_params_logprob_width(params) <= PROTO_LOGPROBS_MAX + 1);
    must(params->stop_count <= ACTOR_HTTP_STOP_COUNT_MAX);
    must(params->stop_id_count <= PROTO_STOP_IDS_MAX);
    must(params->bias_count <= PROTO_BIAS_MAX);
    must(params->prompt_count <= ACTOR_HTTP_PROMPT_COUNT_MAX);
    for (uint32_t at = 0; at < params->stop_id_count; at++) {
        must(params->stop_ids[at] >= 0 && params->stop_ids[at] < VOCAB);
    }
    for (uint32_t at = 0; at < params->bias_count; at++) {
        must(params->bias_ids[at] >= 0 && params->bias_ids[at] < VOCAB);
    }
}

/* The prompt becomes the answer: stops, characters and JSON are exercised with it. */
static void
check_answer(const actor_http_params_t *params)
{
    actor_http_choice_t choice;
    must(actor_http_choice_init(&choice, &text, params));
    const actor_http_prompt_t *prompt = &params->prompts[0];
    int32_t ids[PROTO_LOGPROBS_MAX + 1] = {0};
    float values[PROTO_LOGPROBS_MAX + 1] = {0};
    for (uint32_t at = 0; at < prompt->id_count && at < 256; at++) {
        ids[0] = prompt->ids[at];
        actor_http_choice_push(&choice, prompt->ids[at], PROTO_LOGPROBS_MAX + 1, ids, values);
        must(choice.visible_bytes <= choice.text.size_bytes);
    }
    actor_http_choice_finish(&choice);
    size_t size = 0;
    const char *shown = actor_http_choice_visible(&choice, &size);
    for (uint32_t at = 0; at < params->stop_count && size > 0; at++) {
        must(memmem(shown, size, params->stops[at].data, params->stops[at].size_bytes) == NULL);
    }
    actor_http_reply_t reply = {
        .params = params,
        .tokenizer = &text,
        .id = "x",
        .model = "m",
        .fingerprint = "fp",
    };
    actor_http_text_t out = {0};
    actor_http_choice_t *const choices[] = {&choice};
    const char *const reasons[] = {"stop"};
    actor_http_usage_t usage = {0};
    actor_http_reply_answer(&out, &reply, choices, reasons, 1, &usage);
    must(!out.failed && out.size_bytes > 0);
    actor_http_text_fini(&out);
    actor_http_choice_fini(&choice);
}

static void
check_body(actor_http_kind_t kind, const char *bytes, size_t size_bytes)
{
    actor_http_params_limits_t limits = {.vocab_size = VOCAB, .strict = (size_bytes & 1) != 0};
    actor_http_params_t params;
    actor_http_error_t error = {0};
    bool ok = actor_http_params_parse(&params, kind, bytes, size_bytes, &limits, &error);
    if (ok) {
        check_ranges(&params);
        ok = actor_http_params_tokenize(&params, &text, 0, IDS_MAX, &error);
    }
    must(ok == (error.status == 0));
    if (!ok) {
        must(error.message[0] != '\0');
        actor_http_text_t out = {0};
        actor_http_reply_error(&out, &error);
        must(!out.failed);
        actor_http_text_fini(&out);
    } else if (kind == ACTOR_HTTP_COMPLETION || kind == ACTOR_HTTP_CHAT) {
        check_answer(&params);
    }
    actor_http_params_fini(&params);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    if (size_bytes < 1 || size_bytes > 65536) {
        return 0;
    }
    /* In memory of its own and of its exact size, so that a byte too many is seen. */
    size_t rest = size_bytes - 1;
    char *bytes = malloc(rest > 0 ? rest : 1);
    must(bytes != NULL);
    memcpy(bytes, data + 1, rest);
    switch (data[0]) {
    case 'h':
        check_head(bytes, rest);
        break;
    case 'k':
        check_chunks(bytes, rest);
        break;
    case 'p':
        check_body(ACTOR_HTTP_COMPLETION, bytes, rest);
        break;
    case 'c':
        check_body(ACTOR_HTTP_CHAT, bytes, rest);
        break;
    case 't':
        check_body(ACTOR_HTTP_TOKENIZE, bytes, rest);
        break;
    case 'd':
        check_body(ACTOR_HTTP_DETOKENIZE, bytes, rest);
        break;
    default:
        break;
    }
    free(bytes);
    return 0;
}
