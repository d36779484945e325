/* test_actor_gateway_resume.c - choices that outlive their scheduler, by the core's messages. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core_world.h"

enum { NEXT = 6 }; /* the peer that takes over */

#define SECOND_NS UINT64_C(1000000000)

static actor_gateway_core_state_t
state(void)
{
    return actor_gateway_core_state(core);
}

/* The only emission, which must be a SUBMIT to `peer`. */
static uint64_t
only_submit(uint32_t peer, proto_body_t *body)
{
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    const actor_emission_t *emission = emitted(0, PROTO_KIND_SUBMIT, body);
    ck_assert_uint_eq(emission->to.index, peer);
    return emission->request;
}

/* Kinds in the outbox. */
static uint32_t
count_of(proto_kind_t kind)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < actor_outbox_count(outbox); at++) {
        count += actor_outbox_at(outbox, at)->kind == kind;
    }
    return count;
}

static uint64_t
place_of(proto_kind_t kind)
{
    for (uint32_t at = 0; at < actor_outbox_count(outbox); at++) {
        if (actor_outbox_at(outbox, at)->kind == kind) {
            return at;
        }
    }
    ck_abort_msg("no %s", proto_kind_name(kind));
    return 0;
}

/* MODEL_INFO of a scheduler that was named by PEER_UP; HTTP_STATE comes with it. */
static uint64_t
take_over(uint32_t peer, proto_body_t *body)
{
    give_up(peer);
    ck_assert_uint_eq(count_of(PROTO_KIND_SUBMIT), 0);
    give_model(peer);
    ck_assert_uint_eq(count_of(PROTO_KIND_SUBMIT), 1);
    const actor_emission_t *emission =
        emitted((uint32_t)place_of(PROTO_KIND_SUBMIT), PROTO_KIND_SUBMIT, body);
    ck_assert_uint_eq(emission->to.index, peer);
    return emission->request;
}

static void
give_tokens_from(uint32_t peer, uint64_t request, uint32_t index, uint32_t count)
{
    int32_t tokens[16];
    uint8_t counts[1] = {(uint8_t)count};
    for (uint32_t at = 0; at < count; at++) {
        tokens[at] = (int32_t)(index + at);
    }
    proto_body_t body = {.tokens = {.requests = {&request, 1},
                                    .token_indices = {&index, 1},
                                    .token_counts = {counts, 1},
                                    .tokens = {tokens, count}}};
    give(peer, PROTO_KIND_TOKENS, 0, &body);
}

/* The heart of it: prompt and tokens so far, what is left to generate, the same sampling, a new
 * id; and the answer goes on where it was. */
START_TEST(a_choice_goes_on_with_the_next_scheduler)
{
    proto_body_t body;
    proto_column_u8_t sampling = sampling_bytes("salt", 0, false, NULL, 0);
    attach();
    give_request_with(1, 2, 20, 30, 90 * SECOND_NS, sampling);
    uint64_t first = only_submit(SCHEDULER, &body);
    ck_assert_uint_eq(body.submit.emitted, 0);
    give_tokens(first, 0, 13);
    now_ns += 7 * SECOND_NS;
    give_down(SCHEDULER);
    ck_assert_uint_eq(actor_outbox_count(outbox), 1); /* HTTP_STATE: the client hears nothing */
    uint64_t second = take_over(NEXT, &body);
    ck_assert_uint_ne(second, first);
    ck_assert_uint_eq(body.submit.prompt_length, 33);
    ck_assert_uint_eq(body.submit.emitted, 13);
    ck_assert_uint_eq(body.submit.generation_max, 17);
    ck_assert_int_eq(body.submit.priority, 1);
    ck_assert_uint_eq(body.submit.queue_timeout_ns, 83 * SECOND_NS);
    ck_assert_uint_eq(body.submit.sampling.count, sampling.count);
    ck_assert_mem_eq(body.submit.sampling.data, sampling.data, sampling.count);
    ck_assert_uint_eq(body.submit.tokens.count, 33);
    ck_assert_int_eq(body.submit.tokens.data[0], 6);
    for (uint32_t at = 1; at < 20; at++) {
        ck_assert_int_eq(body.submit.tokens.data[at], (int32_t)at);
    }
    for (uint32_t at = 0; at < 13; at++) {
        ck_assert_int_eq(body.submit.tokens.data[20 + at], (int32_t)at);
    }
    /* Whole pages of prompt and answer, with the salt: a scheduler takes no other number. */
    uint8_t hashes[2][PROTO_HASH_SIZE_BYTES];
    proto_body_t model = model_body();
    proto_bytes_t salt = {(const uint8_t *)"salt", 4};
    proto_page_hash(model.model_info.page_hash_key.data, NULL, salt, body.submit.tokens.data, PAGE,
                    hashes[0]);
    proto_page_hash(model.model_info.page_hash_key.data, hashes[0], salt,
                    body.submit.tokens.data + PAGE, PAGE, hashes[1]);
    ck_assert_uint_eq(body.submit.page_hashes.size_bytes, sizeof hashes);
    ck_assert_mem_eq(body.submit.page_hashes.data, hashes, sizeof hashes);
    ck_assert_uint_eq(state().resumed_count, 1);

    give_tokens_from(NEXT, first, 13, 1); /* a late one of the old id */
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    give_tokens_from(NEXT, second, 13, 2);
    emitted(0, PROTO_KIND_HTTP_TOKENS, &body);
    ck_assert_uint_eq(body.http_tokens.token_index, 13);
    ck_assert_uint_eq(body.http_tokens.choice_index, 2);
    body = (proto_body_t){.finished = {.reason = PROTO_FINISH_STOP,
                                       .prompt_tokens = 20,
                                       .cached_tokens = 32, /* its prompt held the answer's begin */
                                       .generated_tokens = 15}};
    give(NEXT, PROTO_KIND_FINISHED, second, &body);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_uint_eq(body.http_end.reason, PROTO_FINISH_STOP);
    ck_assert_uint_eq(body.http_end.prompt_tokens, 20);
    ck_assert_uint_eq(body.http_end.cached_tokens, 20);
    ck_assert_uint_eq(body.http_end.generated_tokens, 15);
    ck_assert_uint_eq(state().history_used_bytes, 0);
}
END_TEST

/* A key that changed makes another identity of every page; without one there is none. */
START_TEST(pages_are_hashed_as_the_next_scheduler_wants_them)
{
    proto_body_t body;
    attach();
    give_request(1, 0, 40, 10, 0);
    give_down(SCHEDULER);
    proto_body_t info = model_body();
    uint8_t key[PROTO_HASH_SIZE_BYTES] = {9};
    info.model_info.page_hash_key.data = key;
    info.model_info.prefix_granularity = 8;
    give_up(NEXT);
    give(NEXT, PROTO_KIND_MODEL_INFO, 0, &info);
    emitted(1, PROTO_KIND_SUBMIT, &body);
    ck_assert_uint_eq(body.submit.page_hashes.size_bytes, 5 * PROTO_HASH_SIZE_BYTES);
    uint8_t hash[PROTO_HASH_SIZE_BYTES];
    proto_page_hash(key, NULL, (proto_bytes_t){0}, body.submit.tokens.data, 8, hash);
    ck_assert_mem_eq(body.submit.page_hashes.data, hash, sizeof hash);
    give_down(NEXT);
    info.model_info.page_hash_key = (proto_bytes_t){0};
    give_up(SCHEDULER);
    give(SCHEDULER, PROTO_KIND_MODEL_INFO, 0, &info);
    emitted(1, PROTO_KIND_SUBMIT, &body);
    ck_assert_uint_eq(body.submit.page_hashes.size_bytes, 0);
}
END_TEST

/* ---- orders ---------------------------------------------------------------------------------- */

/* What may happen between the loss of a scheduler and the first word of the next, as one letter
 * each: a choice with 2 of 10 tokens is open, and one that came later has none.
 *   u up   m model with an executor   e model without one   d down
 *   s the client's stop of the first  c its cancel          l late tokens of the first id
 *   t the timer at its deadline       r another request     x DRAIN
 * Wanted afterwards: SUBMITs, HTTP_ENDs (reason of the first one), choices that wait. */
static const struct {
    const char *inputs;
    uint32_t submits;
    uint32_t ends;
    uint32_t reason;
    uint32_t waiting;
} orders[] = {
    {"d", 0, 0, 0, 2},
    {"du", 0, 0, 0, 2},
    {"dum", 2, 0, 0, 0},
    {"due", 0, 0, 0, 2},
    {"duem", 2, 0, 0, 0},
    {"dudum", 2, 0, 0, 0},
    {"dumdum", 4, 0, 0, 0},
    {"dumdumdum", 6, 0, 0, 0},
    {"dumemd", 2, 0, 0,
     2}, /* an executor that comes and goes: the scheduler tells of its requests */
    {"ds", 0, 1, PROTO_FINISH_STOP, 1},
    {"dsum", 1, 1, PROTO_FINISH_STOP, 0},
    {"dcum", 1, 1, PROTO_FINISH_CANCELLED, 0},
    {"dusm", 1, 1, PROTO_FINISH_STOP, 0},
    {"sd", 0, 1, PROTO_FINISH_STOP, 1}, /* the stop was recorded: it needs no scheduler */
    {"sdum", 1, 1, PROTO_FINISH_STOP, 0},
    {"cdt", 0, 2, PROTO_FINISH_CANCELLED, 0},
    {"dl", 0, 0, 0, 2},
    {"dulm", 2, 0, 0, 0},
    {"duml", 2, 0, 0, 0},
    {"dt", 0, 2, PROTO_FINISH_ERROR, 0},
    {"dut", 0, 2, PROTO_FINISH_ERROR, 0},
    {"duet", 0, 2, PROTO_FINISH_ERROR, 0},
    {"dtum", 0, 2, PROTO_FINISH_ERROR, 0},
    {"dudt", 0, 2, PROTO_FINISH_ERROR, 0}, /* the first loss counts, not the last */
    {"dr", 0, 0, 0, 3},
    {"drum", 3, 0, 0, 0},
    {"durm", 3, 0, 0, 0},
    {"dtr", 0, 3, PROTO_FINISH_ERROR, 0}, /* too late: as without any scheduler */
    {"duert", 0, 3, PROTO_FINISH_ERROR, 0},
    {"dx", 0, 0, 0, 2},
    {"dxt", 0, 2, PROTO_FINISH_ERROR, 0},
    {"dxum", 2, 0, 0, 0}, /* what is open is finished, whoever does it */
    {"xd", 0, 0, 0, 2},
    {"xdt", 0, 2, PROTO_FINISH_ERROR, 0},
    {"xdum", 2, 0, 0, 0},
    {"dxr", 0, 1, PROTO_FINISH_REFUSED, 2},
    {"uml", 2, 0, 0, 0}, /* a second one without a goodbye of the first */
    {"umd", 2, 0, 0, 2},
};

static uint64_t first_id;
static uint32_t submit_count;
static uint32_t end_count;
static uint32_t first_reason;
static uint64_t seen_ids[64];

static void
tally(void)
{
    for (uint32_t at = 0; at < actor_outbox_count(outbox); at++) {
        const actor_emission_t *emission = actor_outbox_at(outbox, at);
        proto_body_t body;
        if (emission->kind == PROTO_KIND_SUBMIT) {
            (void)emitted(at, PROTO_KIND_SUBMIT, &body);
            for (uint32_t seen = 0; seen < submit_count; seen++) {
                ck_assert_uint_ne(seen_ids[seen], emission->request);
            }
            ck_assert_uint_ne(first_id, emission->request);
            ck_assert_uint_lt(submit_count, 64);
            seen_ids[submit_count++] = emission->request;
        } else if (emission->kind == PROTO_KIND_HTTP_END) {
            (void)emitted(at, PROTO_KIND_HTTP_END, &body);
            first_reason = end_count == 0 ? body.http_end.reason : first_reason;
            end_count++;
        } else {
            ck_assert_msg(emission->kind != PROTO_KIND_HTTP_TOKENS, "a late token was shown");
        }
    }
}

static void
play(char letter, uint32_t *peer)
{
    proto_body_t body = model_body();
    proto_body_t drain = {.drain = {.grace_ns = SECOND_NS}};
    now_ns += 1000;
    switch (letter) {
    case 'u':
        *peer = *peer == SCHEDULER ? NEXT : SCHEDULER;
        give_up(*peer);
        break;
    case 'm':
        give_model(*peer);
        break;
    case 'e':
        body.model_info.slot_count = 0;
        give(*peer, PROTO_KIND_MODEL_INFO, 0, &body);
        break;
    case 'd':
        give_down(*peer);
        break;
    case 's':
        give_stop(1, 0, 1, PROTO_FINISH_STOP);
        break;
    case 'c':
        give_stop(1, 0, 1, PROTO_FINISH_CANCELLED);
        break;
    case 'l':
        give_tokens_from(*peer, first_id, 2, 1);
        break;
    case 't':
        ck_assert(give_timer());
        break;
    case 'x':
        give(ACTOR_PEER_LOCAL, PROTO_KIND_DRAIN, 0, &drain);
        break;
    default:
        ck_assert_int_eq(letter, 'r');
        give_request(3, 0, 3, 10, 0);
        break;
    }
    tally();
}

START_TEST(whatever_comes_between_two_schedulers)
{
    attach();
    first_id = submit(1, 0);
    (void)submit(2, 0);
    give_tokens(first_id, 0, 2);
    submit_count = 0;
    end_count = 0;
    first_reason = 0;
    uint32_t peer = SCHEDULER;
    const char *inputs = orders[_i].inputs;
    for (const char *at = inputs; *at != '\0'; at++) {
        play(*at, &peer);
    }
    ck_assert_msg(submit_count == orders[_i].submits, "%s: %u SUBMITs", inputs, submit_count);
    ck_assert_msg(end_count == orders[_i].ends, "%s: %u ends", inputs, end_count);
    ck_assert_msg(first_reason == orders[_i].reason, "%s: reason %u", inputs, first_reason);
    ck_assert_msg(state().waiting_count == orders[_i].waiting, "%s: %u wait", inputs,
                  state().waiting_count);
    /* And whatever it was, everything ends. */
    give_down(peer);
    tally();
    while (give_timer()) {
        tally();
    }
    ck_assert_uint_eq(state().open_count, 0);
    ck_assert_uint_eq(state().history_used_bytes, 0);
}
END_TEST

START_TEST(the_oldest_goes_first_and_newcomers_wait_behind_it)
{
    proto_body_t body;
    attach();
    for (uint64_t exchange = 1; exchange <= 5; exchange++) {
        give_request(exchange, 0, 3, 10, exchange == 2 ? 5 * SECOND_NS : 0);
    }
    give_down(SCHEDULER);
    give_request(6, 0, 3, 10, 0);
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    give_up(NEXT);
    give_model(NEXT);
    ck_assert_uint_eq(count_of(PROTO_KIND_SUBMIT), 6);
    for (uint32_t at = 0; at < 6; at++) {
        emitted(1 + at, PROTO_KIND_SUBMIT, &body);
        ck_assert_int_eq(body.submit.tokens.data[0], 4 * ((int32_t)at + 1));
    }
    ck_assert_uint_eq(state().resumed_count, 5); /* the sixth had nothing to resume */
}
END_TEST

/* More than one step may hold: the rest follows with TIMERs, other inputs between. */
START_TEST(a_long_queue_is_submitted_in_pieces)
{
    world_teardown();
    world_setup_with((actor_gateway_core_options_t){.choice_count_max = 300});
    attach();
    for (uint32_t at = 0; at < 200; at++) {
        (void)submit(1 + at / 4, at % 4);
    }
    give_down(SCHEDULER);
    give_up(NEXT);
    give_model(NEXT);
    uint32_t submitted = count_of(PROTO_KIND_SUBMIT);
    ck_assert_uint_eq(submitted, 64);
    give_request(100, 0, 3, 10, 0); /* waits for its turn */
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    uint32_t rounds = 0;
    while (submitted < 201) {
        ck_assert_uint_eq(actor_gateway_core_ops()->deadline_ns(core), 0);
        ck_assert(give_timer());
        submitted += count_of(PROTO_KIND_SUBMIT);
        ck_assert_uint_lt(++rounds, 10);
    }
    ck_assert_uint_eq(state().waiting_count, 0);
    ck_assert_uint_ne(actor_gateway_core_ops()->deadline_ns(core), 0);
}
END_TEST

/* ---- ends ------------------------------------------------------------------------------------ */

/* The last token came, the word that it was the last did not: going on would add text. */
START_TEST(an_answer_that_was_whole_ends_without_a_scheduler)
{
    static const int32_t own_stop[1] = {77};
    static const struct {
        int32_t last;
        uint32_t generation_min;
        bool ignore_eos;
        uint32_t reason; /* NONE: it waits */
    } cases[] = {
        {STOP_ID, 0, false, PROTO_FINISH_STOP}, {STOP_ID, 0, true, PROTO_FINISH_NONE},
        {STOP_ID, 3, false, PROTO_FINISH_NONE}, {STOP_ID, 2, false, PROTO_FINISH_STOP},
        {77, 0, true, PROTO_FINISH_STOP},       {78, 0, false, PROTO_FINISH_NONE},
    };
    proto_body_t body;
    attach();
    give_request_with(1, 0, 3, 10, 0,
                      sampling_bytes(NULL, cases[_i].generation_min, cases[_i].ignore_eos, own_stop,
                                     1));
    uint64_t request = only_submit(SCHEDULER, &body);
    give_token(request, 0, 5);
    give_token(request, 1, 6);
    give_token(request, 2, cases[_i].last);
    give_down(SCHEDULER);
    if (cases[_i].reason == PROTO_FINISH_NONE) {
        ck_assert_uint_eq(count_of(PROTO_KIND_HTTP_END), 0);
        ck_assert_uint_eq(state().waiting_count, 1);
        return;
    }
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_uint_eq(body.http_end.reason, cases[_i].reason);
    ck_assert_uint_eq(body.http_end.generated_tokens, 3);
}
END_TEST

START_TEST(an_answer_at_its_limit_ends_without_a_scheduler)
{
    proto_body_t body;
    attach();
    uint64_t request = submit(1, 0);
    give_tokens(request, 0, 10);
    give_down(SCHEDULER);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_uint_eq(body.http_end.reason, PROTO_FINISH_LENGTH);
    ck_assert_uint_eq(body.http_end.generated_tokens, 10);
}
END_TEST

/* Tokens of one model are no history for another: the client is told which two. */
START_TEST(another_model_ends_what_waits)
{
    proto_body_t body;
    attach();
    (void)submit(1, 0);
    give_down(SCHEDULER);
    give_up(NEXT);
    proto_body_t info = model_body();
    if (_i == 0) {
        info.model_info.fingerprint = proto_text("gg");
    } else if (_i == 1) {
        info.model_info.vocab_size = VOCAB + 7;
    } else {
        info.model_info.model_len_max = MODEL_LEN / 2;
    }
    give(NEXT, PROTO_KIND_MODEL_INFO, 0, &info);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_int_eq(body.http_end.status, STATUS_ERR_FINGERPRINT);
    ck_assert(text_is(body.http_end.code, "model_changed"));
    static const char *const wanted[][2] = {{"'f'", "'gg'"}, {"1000", "1007"}, {"128", "64"}};
    ck_assert(text_has(body.http_end.detail, wanted[_i][0]));
    ck_assert(text_has(body.http_end.detail, wanted[_i][1]));
    give_request(2, 0, 3, 10, 0); /* and new ones are served by the new model */
    (void)only_submit(NEXT, &body);
}
END_TEST

/* A scheduler that takes over may have a shorter queue than there are requests: they were promised
 * an answer, so they try again until their time is over. */
START_TEST(a_full_queue_is_tried_again_until_time_is_over)
{
    proto_body_t body;
    attach();
    (void)submit(1, 0);
    uint64_t until = now_ns + 30 * SECOND_NS;
    give_down(SCHEDULER);
    give_up(SCHEDULER);
    give_model(SCHEDULER);
    emitted(1, PROTO_KIND_SUBMIT, &body);
    uint64_t request = actor_outbox_at(outbox, 1)->request;
    for (int round = 0; round < 20; round++) {
        give_refused(request, STATUS_ERR_OVERLOADED, "overloaded", 1000);
        ck_assert_uint_eq(actor_outbox_count(outbox), 0);
        ck_assert(give_timer());
        uint64_t next = only_submit(SCHEDULER, &body);
        ck_assert_uint_ne(next, request);
        request = next;
    }
    ck_assert_uint_eq(state().resumed_count, 1);
    now_ns = until;
    give_refused(request, STATUS_ERR_OVERLOADED, "overloaded", 1000);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_int_eq(body.http_end.status, STATUS_ERR_OVERLOADED);
    /* A request that never lost anything gets the refusal as it is. */
    request = submit(2, 0);
    give_refused(request, STATUS_ERR_OVERLOADED, "overloaded", 1000);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_uint_eq(body.http_end.reason, PROTO_FINISH_REFUSED);
}
END_TEST

/* A refusal in mid-stream is an error: the client has a part of the answer. */
START_TEST(a_refusal_after_tokens_is_an_error)
{
    proto_body_t body;
    attach();
    uint64_t request = submit(1, 0);
    give_tokens(request, 0, 4);
    give_down(SCHEDULER);
    give_up(SCHEDULER);
    give_model(SCHEDULER);
    request = actor_outbox_at(outbox, 1)->request;
    give_refused(request, STATUS_ERR_NEVER_FITS, "never_fits", 0);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_uint_eq(body.http_end.reason, PROTO_FINISH_ERROR);
    ck_assert_uint_eq(body.http_end.prompt_tokens, 3);
}
END_TEST

/* A request that ends every scheduler it is given to must not end them for ever. */
START_TEST(a_request_that_kills_each_scheduler_is_given_up)
{
    proto_body_t body;
    attach();
    uint64_t request = submit(1, 0);
    for (int round = 0; round < 7; round++) {
        give_down(SCHEDULER);
        give_up(SCHEDULER);
        give_model(SCHEDULER);
        ck_assert_uint_eq(count_of(PROTO_KIND_SUBMIT), 1);
        request = actor_outbox_at(outbox, 1)->request;
        if (_i == 1) {
            give_tokens(request, (uint32_t)round, 1); /* but one that gets on is innocent */
        }
    }
    give_down(SCHEDULER);
    if (_i == 1) {
        ck_assert_uint_eq(state().waiting_count, 1);
        return;
    }
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert(text_is(body.http_end.code, "worker_lost"));
}
END_TEST

/* ---- executors that die ---------------------------------------------------------------------- */

static void
give_executor(bool is_there)
{
    proto_body_t body = model_body();
    if (!is_there) {
        memset(&body, 0, sizeof body);
    }
    give(SCHEDULER, PROTO_KIND_MODEL_INFO, 0, &body);
}

/* FINISHED of a scheduler that lives, whose executor does not. */
static void
give_lost(uint64_t request, uint32_t suspects)
{
    proto_body_t body = {.finished = {.reason = PROTO_FINISH_ERROR,
                                      .prompt_tokens = 3,
                                      .status = STATUS_ERR_PEER_LOST,
                                      .code = proto_text("worker_lost"),
                                      .suspects = suspects}};
    give(SCHEDULER, PROTO_KIND_FINISHED, request, &body);
}

/* Requests of the SUBMITs in the outbox, in order. */
static uint32_t
submits(uint64_t *requests)
{
    uint32_t count = 0;
    for (uint32_t at = 0; at < actor_outbox_count(outbox); at++) {
        if (actor_outbox_at(outbox, at)->kind == PROTO_KIND_SUBMIT) {
            requests[count++] = actor_outbox_at(outbox, at)->request;
        }
    }
    return count;
}

/* The scheduler lives, its executor does not: the answer goes on with the next one. */
START_TEST(a_choice_goes_on_with_the_next_executor)
{
    proto_body_t body;
    attach();
    uint64_t first = submit(1, 0);
    give_tokens(first, 0, 4);
    if (_i == 0) {
        give_executor(false);
        give_lost(first, 1);
        ck_assert_uint_eq(actor_outbox_count(outbox), 0); /* the client hears nothing */
        give_executor(true);
    } else {
        /* The next one is there before the end of what the old one had. */
        give_executor(true);
        give_lost(first, 1);
        ck_assert_uint_eq(actor_outbox_count(outbox), 0);
        ck_assert(give_timer());
        while (count_of(PROTO_KIND_SUBMIT) == 0) {
            ck_assert(give_timer());
        }
    }
    ck_assert_uint_eq(count_of(PROTO_KIND_SUBMIT), 1);
    const actor_emission_t *emission =
        emitted((uint32_t)place_of(PROTO_KIND_SUBMIT), PROTO_KIND_SUBMIT, &body);
    ck_assert_uint_ne(emission->request, first);
    ck_assert_uint_eq(body.submit.emitted, 4);
    ck_assert_uint_eq(body.submit.generation_max, 6);
    ck_assert_uint_eq(state().resumed_count, 1);
}
END_TEST

/* Robustness S5: two executors died of it, and it was alone: no third one. */
START_TEST(a_request_that_kills_its_executor_twice_is_poisoned)
{
    proto_body_t body;
    uint64_t request = 0;
    attach();
    (void)submit(1, 0);
    request = actor_outbox_at(outbox, 0)->request;
    for (uint32_t death = 0; death < 2; death++) {
        give_tokens(request, death, 1); /* a token that the prefill still gave clears nobody */
        give_executor(false);
        give_lost(request, 1);
        if (death == 0) {
            give_executor(true);
            ck_assert_uint_eq(submits(&request), 1);
        }
    }
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert(text_is(body.http_end.code, "request_killed_worker"));
    ck_assert_int_eq(body.http_end.status, STATUS_ERR_INTERNAL);
    ck_assert_uint_eq(body.http_end.retry_after_ms, 0);
    ck_assert_uint_eq(state().poisoned_count, 1);
    give_executor(true);
    ck_assert_uint_eq(count_of(PROTO_KIND_SUBMIT), 0);
}
END_TEST

/* Among several nobody is guilty before they were tried one at a time; the guilty one is found,
 * the others are answered. */
START_TEST(suspects_are_tried_one_at_a_time)
{
    enum { COUNT = 3 };
    proto_body_t body;
    uint64_t requests[COUNT];
    attach();
    for (uint32_t i = 0; i < COUNT; i++) {
        requests[i] = submit(i + 1, 0);
    }
    for (uint32_t death = 0; death < 2; death++) {
        give_executor(false);
        for (uint32_t i = 0; i < COUNT; i++) {
            give_lost(requests[i], COUNT);
            ck_assert_uint_eq(count_of(PROTO_KIND_HTTP_END), 0);
        }
        give_executor(true);
        ck_assert_uint_eq(submits(requests), death == 0 ? COUNT : 1);
    }
    /* The first is innocent: tokens enough clear it, and the next one's trial begins. */
    give_tokens(requests[0], 0, 8);
    ck_assert(give_timer());
    ck_assert_uint_eq(submits(requests + 1), 1);
    /* A newcomer that shares the step is not charged with what the second one does. */
    uint64_t newcomer = submit(9, 0);
    give_executor(false);
    give_lost(newcomer, 2);
    ck_assert_uint_eq(count_of(PROTO_KIND_HTTP_END), 0);
    give_lost(requests[1], 2);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_uint_eq(body.http_end.exchange, 2);
    ck_assert(text_is(body.http_end.code, "request_killed_worker"));
    give_lost(requests[0], 2);
    ck_assert_uint_eq(count_of(PROTO_KIND_HTTP_END), 0);
    /* All others go on. */
    give_executor(true);
    uint64_t again[COUNT];
    ck_assert_uint_eq(submits(again), 3);
}
END_TEST

START_TEST(a_client_deadline_holds_while_it_waits)
{
    proto_body_t body;
    attach();
    give_request(1, 0, 3, 10, 4 * SECOND_NS);
    uint64_t deadline = now_ns + 4 * SECOND_NS;
    give_down(SCHEDULER);
    ck_assert(give_timer());
    ck_assert_uint_eq(now_ns, deadline);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_int_eq(body.http_end.status, STATUS_ERR_DEADLINE);
    ck_assert_uint_eq(count_of(PROTO_KIND_FINISH), 0);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* What does not fit is served, and lost with its scheduler as if there were no history. */
START_TEST(without_room_a_choice_is_served_but_not_resumed)
{
    proto_body_t body;
    world_teardown();
    world_setup_with((actor_gateway_core_options_t){.history_size_bytes = 2048});
    attach();
    uint64_t first = submit(1, 0);
    (void)submit(1, 1);
    uint64_t third = submit(1, 2); /* 2 chunks of 1 KiB are taken */
    ck_assert_uint_eq(state().unkept_count, 1);
    give_tokens(third, 0, 1);
    emitted(0, PROTO_KIND_HTTP_TOKENS, &body);
    give_down(SCHEDULER);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_uint_eq(body.http_end.choice_index, 2);
    ck_assert(text_is(body.http_end.code, "worker_lost"));
    ck_assert_uint_eq(state().waiting_count, 2);
    give_request(2, 0, 3, 10, 0); /* nowhere to keep it meanwhile */
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert(text_is(body.http_end.code, "worker_lost"));
    give_up(SCHEDULER);
    give_model(SCHEDULER);
    ck_assert_uint_eq(count_of(PROTO_KIND_SUBMIT), 2);
    (void)first;
}
END_TEST

/* It also may fill up while an answer grows. */
START_TEST(an_answer_that_outgrows_the_history_is_not_resumed)
{
    proto_body_t body;
    world_teardown();
    world_setup_with((actor_gateway_core_options_t){.history_size_bytes = 1024});
    attach();
    give_request(1, 0, 90, 38, 0); /* 360 bytes, and up to 152 more */
    uint64_t request = only_submit(SCHEDULER, &body);
    give_request(2, 0, 90, 38, 0);
    ck_assert_uint_eq(state().unkept_count, 1);
    give_tokens(request, 0, 16);
    give_tokens(request, 16, 16);
    ck_assert_uint_eq(state().unkept_count, 1);
    give_down(SCHEDULER);
    ck_assert_uint_eq(state().waiting_count, 1);
    world_teardown();
    world_setup_with((actor_gateway_core_options_t){.history_size_bytes = 1024});
    attach();
    proto_body_t info = model_body();
    info.model_info.model_len_max = 4096;
    give(SCHEDULER, PROTO_KIND_MODEL_INFO, 0, &info);
    give_request(1, 0, 90, 1000, 0);
    request = only_submit(SCHEDULER, &body);
    for (uint32_t at = 0; at < 300; at += 10) {
        give_tokens(request, at, 10);
        ck_assert_uint_eq(count_of(PROTO_KIND_HTTP_TOKENS), 1);
    }
    ck_assert_uint_eq(state().unkept_count, 1);
    ck_assert_uint_eq(state().history_used_bytes, 0);
    give_down(SCHEDULER);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert(text_is(body.http_end.code, "worker_lost"));
}
END_TEST

/* A prompt of several chunks, and an answer that crosses their borders, come back as they were. */
START_TEST(a_long_history_comes_back_whole)
{
    proto_body_t body;
    attach();
    proto_body_t info = model_body();
    info.model_info.model_len_max = 8192;
    info.model_info.prompt_len_max = 4096;
    give(SCHEDULER, PROTO_KIND_MODEL_INFO, 0, &info);
    give_request(1, 0, 2000, 2000, 0);
    uint64_t request = only_submit(SCHEDULER, &body);
    for (uint32_t at = 0; at < 900; at += 9) {
        give_tokens(request, at, 9);
    }
    give_down(SCHEDULER);
    give_up(SCHEDULER);
    give(SCHEDULER, PROTO_KIND_MODEL_INFO, 0, &info);
    emitted(1, PROTO_KIND_SUBMIT, &body);
    ck_assert_uint_eq(body.submit.prompt_length, 2900);
    for (uint32_t at = 1; at < 2000; at++) {
        ck_assert_int_eq(body.submit.tokens.data[at], (int32_t)at % STOP_ID);
    }
    for (uint32_t at = 0; at < 900; at++) {
        ck_assert_int_eq(body.submit.tokens.data[2000 + at], (int32_t)at % STOP_ID);
    }
}
END_TEST

/* ---- silence --------------------------------------------------------------------------------- */

START_TEST(a_silent_scheduler_is_complained_of_once)
{
    proto_body_t body;
    attach();
    ck_assert_uint_eq(actor_gateway_core_ops()->deadline_ns(core),
                      UINT64_MAX); /* nothing is asked */
    now_ns += 1000 * SECOND_NS;
    uint64_t request = submit(1, 0);
    ck_assert_uint_eq(actor_gateway_core_ops()->deadline_ns(core), now_ns + 120 * SECOND_NS);
    /* Signs of work, each 100 s after the one before: none of them is silence. */
    for (uint64_t round = 0; round < 4; round++) {
        now_ns += 100 * SECOND_NS;
        proto_body_t load = {.load = {.steps = round + 1}};
        if (round % 2 == 0) {
            give(SCHEDULER, PROTO_KIND_LOAD, 0, &load);
        } else {
            give_tokens(request, (uint32_t)round / 2, 1);
        }
        ck_assert_uint_eq(actor_gateway_core_ops()->deadline_ns(core), now_ns + 120 * SECOND_NS);
    }
    /* These are: the same LOAD again, tokens of nobody, an end of nobody. */
    uint64_t deadline = actor_gateway_core_ops()->deadline_ns(core);
    now_ns += SECOND_NS;
    proto_body_t load = {.load = {.steps = 3, .running = 1}};
    give(SCHEDULER, PROTO_KIND_LOAD, 0, &load);
    give_tokens(99, 0, 1);
    give_finished(99, PROTO_FINISH_STOP, 1);
    ck_assert_uint_eq(actor_gateway_core_ops()->deadline_ns(core), deadline);
    ck_assert(give_timer());
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    const actor_emission_t *emission = emitted(0, PROTO_KIND_COMPLAINT, &body);
    ck_assert_uint_eq(emission->to.index, ACTOR_PEER_LOCAL);
    ck_assert_uint_eq(body.complaint.reason, PROTO_COMPLAINT_NO_ANSWER);
    ck_assert_uint_eq(body.complaint.role, PROTO_ROLE_SCHEDULER);
    ck_assert(text_is(body.complaint.name, "scheduler"));
    ck_assert_uint_eq(body.complaint.epoch, 9);
    ck_assert(text_has(body.complaint.detail, "120.0 s"));
    ck_assert(!give_timer()); /* once; the request still waits for its answer */
    give_down(SCHEDULER);
    give_up(SCHEDULER);
    give_model(SCHEDULER);
    ck_assert_uint_eq(actor_gateway_core_ops()->deadline_ns(core), now_ns + 120 * SECOND_NS);
}
END_TEST

/* ---- main ------------------------------------------------------------------------------------ */

int
main(void)
{
    Suite *suite = suite_create("actors.gateway_resume");
    TCase *tcase = tcase_create("resume");
    tcase_add_checked_fixture(tcase, world_setup, world_teardown);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, a_choice_goes_on_with_the_next_scheduler);
    tcase_add_test(tcase, pages_are_hashed_as_the_next_scheduler_wants_them);
    tcase_add_loop_test(tcase, whatever_comes_between_two_schedulers, 0,
                        (int)(sizeof orders / sizeof orders[0]));
    tcase_add_test(tcase, the_oldest_goes_first_and_newcomers_wait_behind_it);
    tcase_add_test(tcase, a_long_queue_is_submitted_in_pieces);
    tcase_add_loop_test(tcase, an_answer_that_was_whole_ends_without_a_scheduler, 0, 6);
    tcase_add_test(tcase, an_answer_at_its_limit_ends_without_a_scheduler);
    tcase_add_loop_test(tcase, another_model_ends_what_waits, 0, 3);
    tcase_add_test(tcase, a_full_queue_is_tried_again_until_time_is_over);
    tcase_add_test(tcase, a_refusal_after_tokens_is_an_error);
    tcase_add_loop_test(tcase, a_request_that_kills_each_scheduler_is_given_up, 0, 2);
    tcase_add_loop_test(tcase, a_choice_goes_on_with_the_next_executor, 0, 2);
    tcase_add_test(tcase, a_request_that_kills_its_executor_twice_is_poisoned);
    tcase_add_test(tcase, suspects_are_tried_one_at_a_time);
    tcase_add_test(tcase, a_client_deadline_holds_while_it_waits);
    tcase_add_test(tcase, without_room_a_choice_is_served_but_not_resumed);
    tcase_add_test(tcase, an_answer_that_outgrows_the_history_is_not_resumed);
    tcase_add_test(tcase, a_long_history_comes_back_whole);
    tcase_add_test(tcase, a_silent_scheduler_is_complained_of_once);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
