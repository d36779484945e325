#include "core_world.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

actor_gateway_core_t *core;
actor_outbox_t *outbox;
uint64_t now_ns;
uint64_t input_sequence;

void
world_setup_with(actor_gateway_core_options_t options)
{
    options.epoch = options.epoch != 0 ? options.epoch : 7;
    options.choice_count_max = options.choice_count_max != 0 ? options.choice_count_max : CHOICES;
    if (options.stop_id_count == 0) {
        options.stop_id_count = 1;
        options.stop_ids[0] = STOP_ID;
    }
    ck_assert_int_eq(actor_gateway_core_new(&options, &core), STATUS_OK);
    ck_assert_int_eq(actor_outbox_new(actor_gateway_core_ops(), &outbox), STATUS_OK);
    now_ns = 1000;
    input_sequence = 0;
}

void
world_setup(void)
{
    world_setup_with((actor_gateway_core_options_t){0});
}

void
world_teardown(void)
{
    actor_outbox_destroy(&outbox);
    actor_gateway_core_destroy(&core);
}

void
give(uint32_t from, proto_kind_t kind, uint64_t request, const proto_body_t *body)
{
    proto_header_t header = {.version = 1, .kind = kind, .epoch = 9, .request = request};
    actor_input_t input = {
        .now_ns = now_ns,
        .sequence = ++input_sequence,
        .from = {from},
        .header = &header,
        .body = body,
    };
    actor_outbox_clear(outbox);
    actor_gateway_core_ops()->step(core, &input, outbox);
    actor_gateway_core_ops()->check(core);
}

const actor_emission_t *
emitted(uint32_t index, proto_kind_t kind, proto_body_t *body)
{
    ck_assert_uint_lt(index, actor_outbox_count(outbox));
    const actor_emission_t *emission = actor_outbox_at(outbox, index);
    ck_assert_int_eq(emission->kind, kind);
    ck_assert_int_eq(proto_body_decode(emission->kind, emission->body, emission->blob, body, NULL),
                     STATUS_OK);
    return emission;
}

bool
text_is(proto_text_t text, const char *wanted)
{
    return text.size_bytes == strlen(wanted) &&
           (text.size_bytes == 0 || memcmp(text.data, wanted, text.size_bytes) == 0);
}

bool
text_has(proto_text_t text, const char *wanted)
{
    char line[PROTO_TEXT_LEN_MAX + 1];
    (void)snprintf(line, sizeof line, "%.*s", (int)text.size_bytes,
                   text.size_bytes == 0 ? "" : text.data);
    return strstr(line, wanted) != NULL;
}

/* ---- the scheduler's side -------------------------------------------------------------------- */

void
give_up(uint32_t peer)
{
    proto_body_t up = {.peer_up = {.peer = peer, .role = PROTO_ROLE_SCHEDULER, .epoch = 9}};
    up.peer_up.name = proto_text("scheduler");
    give(ACTOR_PEER_LOCAL, PROTO_KIND_PEER_UP, 0, &up);
}

void
give_down(uint32_t peer)
{
    proto_body_t down = {.peer_down = {.peer = peer, .role = PROTO_ROLE_SCHEDULER, .epoch = 9}};
    down.peer_down.detail = proto_text("test");
    give(ACTOR_PEER_LOCAL, PROTO_KIND_PEER_DOWN, 0, &down);
}

proto_body_t
model_body(void)
{
    static const uint8_t key[PROTO_HASH_SIZE_BYTES] = {1};
    return (proto_body_t){
        .model_info =
            {
                .model_name = proto_text("m"),
                .fingerprint = proto_text("f"),
                .vocab_size = VOCAB,
                .model_len_max = MODEL_LEN,
                .prompt_len_max = 100,
                .slot_count = 8,
                .queue_len_max = 16,
                .prefix_granularity = PAGE,
                .token_capacity = 4096,
                .page_hash_key = {key, sizeof key},
            },
    };
}

void
give_model(uint32_t peer)
{
    proto_body_t info = model_body();
    give(peer, PROTO_KIND_MODEL_INFO, 0, &info);
}

void
attach(void)
{
    give_up(SCHEDULER);
    give_model(SCHEDULER);
}

bool
give_timer(void)
{
    uint64_t deadline = actor_gateway_core_ops()->deadline_ns(core);
    if (deadline == UINT64_MAX) {
        return false;
    }
    now_ns = now_ns > deadline ? now_ns : deadline;
    proto_body_t timer = {.timer = {.deadline_ns = deadline}};
    give(ACTOR_PEER_LOCAL, PROTO_KIND_TIMER, 0, &timer);
    return true;
}

/* ---- the HTTP side --------------------------------------------------------------------------- */

proto_column_u8_t
sampling_bytes(const char *salt, uint32_t generation_min, bool ignore_eos, const int32_t *stop_ids,
               uint32_t stop_id_count)
{
    static uint8_t out[1024];
    proto_body_t body = {
        .sampling =
            {
                .temperature = 0.5,
                .top_p = 1,
                .seed = 11,
                .generation_min = generation_min,
                .ignore_eos = ignore_eos,
                .stop_ids = {(const uint8_t *)stop_ids, stop_id_count * sizeof *stop_ids},
                .page_salt = {(const uint8_t *)salt, salt == NULL ? 0 : strlen(salt)},
            },
    };
    size_t size = 0;
    size_t blob_size = 0;
    ck_assert_int_eq(proto_body_encode(PROTO_KIND_SAMPLING, &body, out, sizeof out, &size, NULL, 0,
                                       &blob_size),
                     STATUS_OK);
    return (proto_column_u8_t){out, (uint32_t)size};
}

void
give_request_with(uint64_t exchange, uint32_t choice, uint32_t prompt_len, uint32_t generation_max,
                  uint64_t timeout_ns, proto_column_u8_t sampling)
{
    static int32_t tokens[PROTO_ROWS_MAX];
    for (uint32_t at = 0; at < prompt_len; at++) {
        tokens[at] = (int32_t)(at == 0 ? exchange * 4 + choice : at) % STOP_ID;
    }
    proto_body_t body = {
        .http_request =
            {
                .exchange = exchange,
                .choice_index = choice,
                .generation_max = generation_max,
                .priority = (int64_t)(exchange % 3),
                .timeout_ns = timeout_ns,
                .tokens = {tokens, prompt_len},
                .sampling = sampling,
            },
    };
    give(ACTOR_PEER_LOCAL, PROTO_KIND_HTTP_REQUEST, 0, &body);
}

void
give_request(uint64_t exchange, uint32_t choice, uint32_t prompt_len, uint32_t generation_max,
             uint64_t timeout_ns)
{
    give_request_with(exchange, choice, prompt_len, generation_max, timeout_ns,
                      sampling_bytes(NULL, 0, false, NULL, 0));
}

uint64_t
submit(uint64_t exchange, uint32_t choice)
{
    proto_body_t body;
    give_request(exchange, choice, 3, 10, 0);
    const actor_emission_t *emission = emitted(0, PROTO_KIND_SUBMIT, &body);
    ck_assert_uint_eq(emission->to.index, SCHEDULER);
    ck_assert_uint_eq(body.submit.prompt_length, 3);
    ck_assert_uint_ne(emission->request, 0);
    return emission->request;
}

void
give_tokens(uint64_t request, uint32_t index, uint32_t count)
{
    int32_t tokens[16];
    uint8_t counts[1] = {(uint8_t)count};
    uint8_t widths[1] = {0};
    for (uint32_t at = 0; at < count; at++) {
        tokens[at] = (int32_t)(index + at) % STOP_ID;
    }
    proto_body_t body = {
        .tokens =
            {
                .step = 1,
                .requests = {&request, 1},
                .token_indices = {&index, 1},
                .token_counts = {counts, 1},
                .tokens = {tokens, count},
                .logprob_widths = {widths, 1},
            },
    };
    give(SCHEDULER, PROTO_KIND_TOKENS, 0, &body);
}

void
give_stop(uint64_t exchange, uint32_t choice, uint32_t index, uint32_t reason)
{
    proto_body_t body = {
        .http_stop =
            {
                .exchange = exchange,
                .choice_index = choice,
                .token_index = index,
                .reason = reason,
            },
    };
    give(ACTOR_PEER_LOCAL, PROTO_KIND_HTTP_STOP, 0, &body);
}

void
give_finished(uint64_t request, uint32_t reason, uint32_t generated)
{
    proto_body_t body = {
        .finished =
            {
                .reason = reason,
                .prompt_tokens = 3,
                .cached_tokens = 1,
                .generated_tokens = generated,
                .code = proto_text(""),
                .detail = proto_text(""),
                .queue_ns = 5,
            },
    };
    give(SCHEDULER, PROTO_KIND_FINISHED, request, &body);
}

void
give_token(uint64_t request, uint32_t index, int32_t token)
{
    uint8_t counts[1] = {1};
    proto_body_t body = {
        .tokens =
            {
                .step = 1,
                .requests = {&request, 1},
                .token_indices = {&index, 1},
                .token_counts = {counts, 1},
                .tokens = {&token, 1},
            },
    };
    give(SCHEDULER, PROTO_KIND_TOKENS, 0, &body);
}

void
give_refused(uint64_t request, proto_status_t status, const char *code, uint32_t retry_after_ms)
{
    proto_body_t body = {
        .finished =
            {
                .reason = PROTO_FINISH_REFUSED,
                .status = status,
                .code = proto_text(code),
                .detail = proto_text("refused"),
                .retry_after_ms = retry_after_ms,
            },
    };
    give(SCHEDULER, PROTO_KIND_FINISHED, request, &body);
}

size_t
outbox_bytes(const actor_outbox_t *box, uint8_t *out, size_t capacity_bytes)
{
    proto_pack_t pack = {.out = out, .capacity_bytes = capacity_bytes};
    for (uint32_t at = 0; at < actor_outbox_count(box); at++) {
        const actor_emission_t *emission = actor_outbox_at(box, at);
        proto_pack_u32(&pack, emission->to.index);
        proto_pack_u32(&pack, (uint32_t)emission->kind);
        proto_pack_u64(&pack, emission->request);
        proto_pack_bytes(&pack, emission->body.data, emission->body.size_bytes);
        proto_pack_bytes(&pack, emission->blob.data, emission->blob.size_bytes);
    }
    ck_assert(proto_pack_is_complete(&pack));
    return pack.size_bytes;
}
