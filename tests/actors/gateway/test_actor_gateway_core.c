/* test_actor_gateway_core.c - the core by its messages: every choice ends exactly once. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core_world.h"

enum { EXCHANGES = 48 };

/* A request before anything is attached must get its answer at once, not wait for ever. */
START_TEST(not_ready_is_refused_with_a_retry)
{
    proto_body_t body;
    give_request(1, 0, 3, 10, 0);
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_uint_eq(body.http_end.reason, PROTO_FINISH_REFUSED);
    ck_assert_int_eq(body.http_end.status, STATUS_ERR_PEER_LOST);
    ck_assert_uint_gt(body.http_end.retry_after_ms, 0);
    ck_assert_uint_eq(actor_gateway_core_state(core).open_count, 0);
}
END_TEST

/* A scheduler without an executor has no names to give: a message whose texts and columns are all
 * empty is as good as any other, for every kind that may come. */
START_TEST(messages_with_nothing_in_them_are_harmless)
{
    attach();
    const proto_kind_t kinds[] = {PROTO_KIND_MODEL_INFO, PROTO_KIND_LOAD, PROTO_KIND_TOKENS,
                                  PROTO_KIND_FINISHED};
    for (size_t at = 0; at < sizeof kinds / sizeof kinds[0]; at++) {
        proto_body_t body;
        memset(&body, 0, sizeof body);
        give(SCHEDULER, kinds[at], 0, &body);
    }
    ck_assert(!actor_gateway_core_state(core).ready); /* no slots */
    give_request(1, 0, 3, 10, 0);
    ck_assert_uint_eq(actor_outbox_count(outbox), 0); /* it waits for the next executor, */
    while (actor_outbox_count(outbox) == 0) {
        ck_assert(give_timer());
    }
    proto_body_t body;
    (void)emitted(0, PROTO_KIND_HTTP_END, &body); /* but not for ever */
    ck_assert(text_is(body.http_end.code, "worker_lost"));
}
END_TEST

START_TEST(tokens_pass_and_the_end_carries_the_usage)
{
    attach();
    ck_assert(actor_gateway_core_state(core).ready);
    uint64_t request = submit(1, 0);
    give_tokens(request, 0, 3);
    proto_body_t body;
    emitted(0, PROTO_KIND_HTTP_TOKENS, &body);
    ck_assert_uint_eq(body.http_tokens.exchange, 1);
    ck_assert_uint_eq(body.http_tokens.token_index, 0);
    ck_assert_uint_eq(body.http_tokens.tokens.count, 3);
    ck_assert_int_eq(body.http_tokens.tokens.data[2], 2);
    give_finished(request, PROTO_FINISH_LENGTH, 3);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_uint_eq(body.http_end.reason, PROTO_FINISH_LENGTH);
    ck_assert_uint_eq(body.http_end.generated_tokens, 3);
    ck_assert_uint_eq(body.http_end.cached_tokens, 1);
    give_finished(request, PROTO_FINISH_LENGTH, 3);
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
}
END_TEST

/* A duplicate after a reconnect must not be shown twice; an overlap gives its new part only. */
START_TEST(duplicates_are_dropped_and_overlaps_cut)
{
    attach();
    uint64_t request = submit(1, 0);
    give_tokens(request, 0, 4);
    give_tokens(request, 0, 4);
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    give_tokens(request, 2, 4);
    proto_body_t body;
    emitted(0, PROTO_KIND_HTTP_TOKENS, &body);
    ck_assert_uint_eq(body.http_tokens.token_index, 4);
    ck_assert_uint_eq(body.http_tokens.tokens.count, 2);
    ck_assert_int_eq(body.http_tokens.tokens.data[0], 4);
}
END_TEST

/* A hole in the tokens must never look like an answer. */
START_TEST(a_gap_ends_the_choice_with_an_error)
{
    attach();
    uint64_t request = submit(1, 0);
    give_tokens(request, 0, 1);
    give_tokens(request, 2, 1);
    proto_body_t body;
    const actor_emission_t *finish = emitted(0, PROTO_KIND_FINISH, &body);
    ck_assert_uint_eq(finish->request, request);
    emitted(1, PROTO_KIND_HTTP_END, &body);
    ck_assert_uint_eq(body.http_end.reason, PROTO_FINISH_ERROR);
    ck_assert_uint_eq(actor_gateway_core_state(core).gap_count, 1);
    /* And a FINISHED that counts more than came is the same hole at the end. */
    request = submit(2, 0);
    give_tokens(request, 0, 1);
    give_finished(request, PROTO_FINISH_STOP, 3);
    emitted(1, PROTO_KIND_HTTP_END, &body);
    ck_assert_uint_eq(body.http_end.reason, PROTO_FINISH_ERROR);
}
END_TEST

/* The stop is recorded first: what the scheduler says meanwhile does not change the answer. */
START_TEST(a_stop_is_answered_once_whatever_the_order)
{
    proto_body_t body;
    attach();
    uint64_t request = submit(1, 0);
    give_tokens(request, 0, 5);
    give_stop(1, 0, 4, PROTO_FINISH_STOP);
    emitted(0, PROTO_KIND_FINISH, &body);
    ck_assert_uint_eq(body.finish.token_index, 4);
    give_stop(1, 0, 2, PROTO_FINISH_CANCELLED);
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    give_tokens(request, 5, 2);
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    give_finished(request, PROTO_FINISH_LENGTH, 7); /* crossed the FINISH */
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_uint_eq(body.http_end.reason, PROTO_FINISH_STOP);
    ck_assert_uint_eq(body.http_end.generated_tokens, 4);
    give_stop(1, 0, 4, PROTO_FINISH_STOP);
    ck_assert_uint_eq(actor_outbox_count(outbox), 0);
}
END_TEST

/* Steps that ran when the stop was sent go on giving tokens: none of them counts, so none is
 * missing either. */
START_TEST(tokens_beyond_a_stop_leave_no_hole)
{
    proto_body_t body;
    attach();
    uint64_t request = submit(1, 0);
    give_tokens(request, 0, 4);
    give_stop(1, 0, 4, PROTO_FINISH_STOP);
    for (uint32_t index = 4; index < 8; index++) {
        give_tokens(request, index, 1);
        ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    }
    ck_assert_uint_eq(actor_gateway_core_state(core).gap_count, 0);
    give_finished(request, PROTO_FINISH_STOP, 4);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_uint_eq(body.http_end.reason, PROTO_FINISH_STOP);
    ck_assert_uint_eq(body.http_end.generated_tokens, 4);
}
END_TEST

START_TEST(a_finish_without_answer_ends_at_its_deadline)
{
    proto_body_t body;
    attach();
    submit(1, 0);
    give_stop(1, 0, 0, PROTO_FINISH_CANCELLED);
    uint64_t deadline = actor_gateway_core_ops()->deadline_ns(core);
    ck_assert_uint_eq(deadline, now_ns + UINT64_C(10000000000));
    now_ns = deadline;
    proto_body_t timer = {.timer = {.deadline_ns = deadline}};
    give(ACTOR_PEER_LOCAL, PROTO_KIND_TIMER, 0, &timer);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_uint_eq(body.http_end.reason, PROTO_FINISH_CANCELLED);
    ck_assert(actor_gateway_core_ops()->idle(core));
}
END_TEST

START_TEST(a_clients_deadline_ends_its_request)
{
    proto_body_t body;
    attach();
    give_request(1, 0, 3, 10, 5000);
    now_ns += 5000;
    proto_body_t timer = {.timer = {.deadline_ns = now_ns}};
    give(ACTOR_PEER_LOCAL, PROTO_KIND_TIMER, 0, &timer);
    emitted(0, PROTO_KIND_FINISH, &body);
    ck_assert_uint_eq(body.finish.reason, PROTO_FINISH_CANCELLED);
    emitted(1, PROTO_KIND_HTTP_END, &body);
    ck_assert_int_eq(body.http_end.status, STATUS_ERR_DEADLINE);
}
END_TEST

/* Everything waits for the next scheduler; when none comes, each choice ends once, the oldest
 * first, with a code that says why. */
START_TEST(a_scheduler_that_is_not_replaced_ends_everything)
{
    proto_body_t body;
    attach();
    submit(1, 0);
    submit(1, 1);
    submit(2, 0);
    uint64_t lost_ns = now_ns;
    give_down(SCHEDULER);
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    emitted(0, PROTO_KIND_HTTP_STATE, &body);
    ck_assert(!body.http_state.ready);
    ck_assert_uint_eq(actor_gateway_core_state(core).waiting_count, 3);
    ck_assert_ptr_nonnull(actor_gateway_core_model(core));
    ck_assert(give_timer());
    ck_assert_uint_eq(now_ns, lost_ns + UINT64_C(30000000000));
    ck_assert_uint_eq(actor_outbox_count(outbox), 3);
    const uint64_t exchanges[] = {1, 1, 2};
    for (uint32_t at = 0; at < 3; at++) {
        emitted(at, PROTO_KIND_HTTP_END, &body);
        ck_assert_uint_eq(body.http_end.reason, PROTO_FINISH_ERROR);
        ck_assert(text_is(body.http_end.code, "worker_lost"));
        ck_assert_uint_gt(body.http_end.retry_after_ms, 0);
        ck_assert_uint_eq(body.http_end.exchange, exchanges[at]);
    }
    ck_assert_ptr_null(actor_gateway_core_model(core));
    ck_assert(!give_timer());
}
END_TEST

START_TEST(what_cannot_fit_is_refused_with_the_numbers)
{
    proto_body_t body;
    char text[PROTO_TEXT_LEN_MAX + 1];
    attach();
    static const struct {
        uint32_t prompt;
        uint32_t generation;
        const char *number;
    } cases[] = {{128, 1, "128"}, {101, 1, "101"}, {100, 29, "129"}};
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++) {
        give_request(1, 0, cases[at].prompt, cases[at].generation, 0);
        emitted(0, PROTO_KIND_HTTP_END, &body);
        ck_assert_int_eq(body.http_end.status, STATUS_ERR_NEVER_FITS);
        (void)snprintf(text, sizeof text, "%.*s", (int)body.http_end.detail.size_bytes,
                       body.http_end.detail.data);
        ck_assert_msg(strstr(text, cases[at].number) != NULL, "no %s in: %s", cases[at].number,
                      text);
    }
    give_request(1, 0, 100, 28, 0);
    emitted(0, PROTO_KIND_SUBMIT, &body);
    give_request(1, 1, 100, 0, 0);
    emitted(0, PROTO_KIND_SUBMIT, &body);
    ck_assert_uint_eq(body.submit.generation_max, 28);
}
END_TEST

START_TEST(a_full_table_refuses_as_overloaded)
{
    proto_body_t body;
    attach();
    for (uint32_t at = 0; at < CHOICES; at++) {
        submit(at + 1, 0);
    }
    give_request(CHOICES + 1, 0, 3, 10, 0);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_int_eq(body.http_end.status, STATUS_ERR_OVERLOADED);
    ck_assert_uint_gt(body.http_end.retry_after_ms, 0);
}
END_TEST

START_TEST(nothing_is_admitted_while_draining)
{
    proto_body_t body;
    attach();
    uint64_t request = submit(1, 0);
    proto_body_t drain = {.drain = {.grace_ns = 1}};
    give(ACTOR_PEER_LOCAL, PROTO_KIND_DRAIN, 0, &drain);
    emitted(0, PROTO_KIND_HTTP_STATE, &body);
    ck_assert(!body.http_state.ready);
    give_request(2, 0, 3, 10, 0);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_mem_eq(body.http_end.code.data, "shutting_down", 13);
    ck_assert(!actor_gateway_core_ops()->idle(core));
    give_tokens(request, 0, 1);
    give_finished(request, PROTO_FINISH_STOP, 1);
    emitted(0, PROTO_KIND_HTTP_END, &body);
    ck_assert_uint_eq(body.http_end.reason, PROTO_FINISH_STOP);
    ck_assert(actor_gateway_core_ops()->idle(core));
}
END_TEST

/* Ids of two incarnations never meet, so a late FINISHED of an old one finds nothing. */
START_TEST(request_ids_differ_between_epochs)
{
    attach();
    uint64_t first = submit(1, 0);
    world_teardown();
    world_setup_with((actor_gateway_core_options_t){.epoch = 8});
    attach();
    uint64_t second = submit(1, 0);
    ck_assert_uint_ne(first, second);
    ck_assert_uint_eq(submit(1, 1), second + 1);
}
END_TEST

/* ---- random order ---------------------------------------------------------------------------- */

typedef struct {
    bool is_open;        /* asked for, not ended */
    uint64_t request;    /* of its last SUBMIT; 0: not submitted */
    uint32_t next_token; /* given to the HTTP side */
    uint32_t sent;       /* given to the core */
    uint32_t generation_max;
} track_t;

static track_t tracks[EXCHANGES][4];
static uint64_t requested;
static uint64_t ended;
static uint64_t resumed;

static void
follow_submit(const actor_emission_t *emission, const proto_submit_t *submit)
{
    ck_assert_uint_eq(emission->to.index, SCHEDULER);
    ck_assert_uint_eq(submit->prompt_length, submit->tokens.count);
    ck_assert_uint_gt(submit->prompt_length, submit->emitted);
    int32_t whose = submit->tokens.data[0];
    track_t *track = &tracks[whose / 4][whose % 4];
    ck_assert(track->is_open);
    ck_assert_uint_eq(track->request, 0);
    ck_assert_uint_eq(submit->emitted, track->next_token);
    for (uint32_t at = 0; at < submit->emitted; at++) {
        int32_t token = submit->tokens.data[submit->prompt_length - submit->emitted + at];
        ck_assert_int_eq(token, (int32_t)at); /* give_tokens() */
    }
    resumed += submit->emitted > 0 ? 1 : 0;
    track->request = emission->request;
    track->sent = submit->emitted;
}

static void
follow(void)
{
    for (uint32_t at = 0; at < actor_outbox_count(outbox); at++) {
        const actor_emission_t *emission = actor_outbox_at(outbox, at);
        proto_body_t body;
        ck_assert_int_eq(proto_body_decode(emission->kind, emission->body, emission->blob, &body,
                                           NULL),
                         STATUS_OK);
        if (emission->kind == PROTO_KIND_HTTP_END) {
            track_t *track = &tracks[body.http_end.exchange][body.http_end.choice_index];
            ck_assert_msg(track->is_open, "an end for a choice that is not open");
            track->is_open = false;
            track->request = 0;
            ended++;
        } else if (emission->kind == PROTO_KIND_HTTP_TOKENS) {
            track_t *track = &tracks[body.http_tokens.exchange][body.http_tokens.choice_index];
            ck_assert(track->is_open);
            ck_assert_uint_eq(body.http_tokens.token_index, track->next_token);
            track->next_token += body.http_tokens.tokens.count;
            ck_assert_uint_le(track->next_token, track->generation_max);
        } else if (emission->kind == PROTO_KIND_SUBMIT) {
            follow_submit(emission, &body.submit);
        }
    }
}

static void
random_request(unsigned *state, uint32_t exchange, uint32_t choice)
{
    track_t *track = &tracks[exchange][choice];
    uint32_t prompt = (uint32_t)(rand_r(state) % 130);
    uint32_t generation = (uint32_t)(rand_r(state) % 40);
    if (!track->is_open) {
        *track =
            (track_t){.is_open = true, .generation_max = generation == 0 ? MODEL_LEN : generation};
        requested++;
    }
    give_request(exchange, choice, prompt, generation, rand_r(state) % 8 == 0 ? 5000000u : 0u);
}

static void
forget_requests(void)
{
    for (uint32_t slot = 0; slot < EXCHANGES * 4; slot++) {
        tracks[slot / 4][slot % 4].request = 0;
    }
}

static void
random_input(unsigned *state, bool *attached)
{
    uint32_t exchange = (uint32_t)(rand_r(state) % EXCHANGES);
    uint32_t choice = (uint32_t)(rand_r(state) % 4);
    track_t *track = &tracks[exchange][choice];
    int what = rand_r(state) % 100;
    now_ns += (uint64_t)(rand_r(state) % 1000000);
    if (what < 25) {
        random_request(state, exchange, choice);
    } else if (what < 65) {
        int skew = rand_r(state) % 12;
        uint32_t index = skew == 0 ? track->sent + 1 : skew == 1 ? track->sent / 2 : track->sent;
        uint32_t count = (uint32_t)(rand_r(state) % 4);
        give_tokens(track->request == 0 ? 77 : track->request, index, count);
        track->sent = index + count > track->sent ? index + count : track->sent;
    } else if (what < 75) {
        give_stop(exchange, choice, (uint32_t)(rand_r(state) % 20),
                  rand_r(state) % 2 == 0 ? PROTO_FINISH_STOP : PROTO_FINISH_CANCELLED);
    } else if (what < 85) {
        give_finished(track->request, (uint32_t)(rand_r(state) % 6), track->sent);
    } else if (what < 88) {
        uint64_t request = track->request;
        track->request = 0; /* it may be submitted again */
        give_refused(request, STATUS_ERR_OVERLOADED, "overloaded", 1000);
    } else if (what < 97) {
        uint64_t deadline = actor_gateway_core_ops()->deadline_ns(core);
        if (deadline < now_ns + 1000000000u || rand_r(state) % 64 == 0) {
            (void)give_timer();
        }
    } else if (what < 98 && *attached) {
        give_down(SCHEDULER);
        forget_requests();
        *attached = false;
    } else if (what >= 98 && !*attached) {
        attach();
        *attached = true;
    }
}

START_TEST(in_any_order_every_choice_ends_exactly_once)
{
    unsigned seed = (unsigned)time(NULL) ^ (unsigned)_i * 2654435761u;
    printf("gateway core, random order: seed %u\n", seed);
    unsigned state = seed;
    memset(tracks, 0, sizeof tracks);
    requested = 0;
    ended = 0;
    resumed = 0;
    bool attached = false;
    for (int at = 0; at < 30000; at++) {
        actor_outbox_clear(outbox);
        random_input(&state, &attached);
        follow();
    }
    /* Nothing is left hanging when the scheduler goes and none comes. */
    give_down(SCHEDULER);
    follow();
    while (give_timer()) {
        follow();
    }
    ck_assert_uint_eq(actor_gateway_core_state(core).open_count, 0);
    ck_assert_uint_eq(requested, ended);
    ck_assert_uint_gt(requested, 1000);
    ck_assert_uint_gt(resumed, 20);
    ck_assert_uint_eq(actor_gateway_core_state(core).history_used_bytes, 0);
}
END_TEST

/* The same inputs give the same digests: what replay stands on. */
START_TEST(the_digest_follows_from_the_inputs)
{
    uint64_t digests[2];
    for (int round = 0; round < 2; round++) {
        bool attached = false;
        unsigned state = 42;
        world_teardown();
        world_setup();
        memset(tracks, 0, sizeof tracks);
        for (int at = 0; at < 500; at++) {
            actor_outbox_clear(outbox);
            random_input(&state, &attached);
            follow();
        }
        digests[round] = actor_gateway_core_ops()->digest(core);
    }
    ck_assert_uint_eq(digests[0], digests[1]);
    uint64_t before = actor_gateway_core_ops()->digest(core);
    proto_body_t drain = {.drain = {.grace_ns = 1}};
    give(ACTOR_PEER_LOCAL, PROTO_KIND_DRAIN, 0, &drain);
    ck_assert_uint_ne(before, actor_gateway_core_ops()->digest(core));
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.gateway_core");
    TCase *tcase = tcase_create("core");
    tcase_add_checked_fixture(tcase, world_setup, world_teardown);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, not_ready_is_refused_with_a_retry);
    tcase_add_test(tcase, messages_with_nothing_in_them_are_harmless);
    tcase_add_test(tcase, tokens_pass_and_the_end_carries_the_usage);
    tcase_add_test(tcase, duplicates_are_dropped_and_overlaps_cut);
    tcase_add_test(tcase, a_gap_ends_the_choice_with_an_error);
    tcase_add_test(tcase, a_stop_is_answered_once_whatever_the_order);
    tcase_add_test(tcase, tokens_beyond_a_stop_leave_no_hole);
    tcase_add_test(tcase, a_finish_without_answer_ends_at_its_deadline);
    tcase_add_test(tcase, a_clients_deadline_ends_its_request);
    tcase_add_test(tcase, a_scheduler_that_is_not_replaced_ends_everything);
    tcase_add_test(tcase, what_cannot_fit_is_refused_with_the_numbers);
    tcase_add_test(tcase, a_full_table_refuses_as_overloaded);
    tcase_add_test(tcase, nothing_is_admitted_while_draining);
    tcase_add_test(tcase, request_ids_differ_between_epochs);
    tcase_add_loop_test(tcase, in_any_order_every_choice_ends_exactly_once, 0, 4);
    tcase_add_test(tcase, the_digest_follows_from_the_inputs);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
