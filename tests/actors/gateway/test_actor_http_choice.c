/* test_actor_http_choice.c - text out of tokens: whole characters, and never a part of a stop. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_http_choice.h"
#include "fake_text.h"

static actor_http_params_t params;
static actor_http_choice_t choice;
static char shown[4096];

static void
setup(void)
{
    memset(&params, 0, sizeof params);
    params.kind = ACTOR_HTTP_COMPLETION;
    params.skip_special_tokens = true;
    params.logprob_count = -1;
    params.n = 1;
    shown[0] = '\0';
}

static void
teardown(void)
{
    actor_http_choice_fini(&choice);
}

static void
stop_at(const char *text)
{
    params.stops[params.stop_count++] = proto_text(text);
}

/* Shows what is visible now, as a stream does. */
static void
show(void)
{
    size_t size = 0;
    const char *text = actor_http_choice_visible(&choice, &size);
    size_t used = strlen(shown);
    ck_assert_uint_lt(used + size, sizeof shown);
    memcpy(shown + used, text, size);
    shown[used + size] = '\0';
    actor_http_choice_take(&choice);
}

static void
push(int32_t token)
{
    actor_http_choice_push(&choice, token, 0, NULL, NULL);
    show();
}

static void
begin(void)
{
    ck_assert(actor_http_choice_init(&choice, fake_text(), &params));
}

static void
end(void)
{
    actor_http_choice_finish(&choice);
    show();
}

START_TEST(a_character_in_two_tokens_comes_whole)
{
    begin();
    push('a');
    push(FAKE_EURO_HEAD);
    ck_assert_str_eq(shown, "a");
    push(FAKE_EURO_TAIL);
    ck_assert_str_eq(shown, "a\xe2\x82\xac");
    push(FAKE_BAD);
    ck_assert_str_eq(shown, "a\xe2\x82\xac\xef\xbf\xbd");
    push(FAKE_EURO_HEAD);
    push('b');
    ck_assert_str_eq(shown, "a\xe2\x82\xac\xef\xbf\xbd\xef\xbf\xbd"
                            "b");
    push(FAKE_EURO_HEAD);
    end();
    ck_assert_str_eq(shown, "a\xe2\x82\xac\xef\xbf\xbd\xef\xbf\xbd"
                            "b\xef\xbf\xbd");
}
END_TEST

START_TEST(a_stop_string_across_tokens_is_never_shown)
{
    stop_at("STOP");
    begin();
    push(FAKE_HELLO);
    ck_assert_str_eq(shown, "Hello");
    push(FAKE_ST);
    ck_assert_str_eq(shown, "Hello");
    ck_assert(!choice.stopped);
    push(FAKE_OP);
    ck_assert(choice.stopped);
    ck_assert_uint_eq(choice.stop_index, 3);
    push('x'); /* what the model gives after it does not count */
    ck_assert_uint_eq(choice.token_count, 3);
    end();
    ck_assert_str_eq(shown, "Hello");
}
END_TEST

START_TEST(a_beginning_that_goes_on_otherwise_is_shown)
{
    stop_at("STOP");
    begin();
    push(FAKE_ST);
    push(FAKE_ST);
    ck_assert_str_eq(shown, "ST");
    push('O');
    push('!');
    ck_assert_str_eq(shown, "STSTO!");
    push('S');
    end();
    ck_assert_str_eq(shown, "STSTO!S");
}
END_TEST

START_TEST(text_before_a_stop_inside_a_token_is_shown)
{
    stop_at("STOP");
    begin();
    push('a');
    push(FAKE_XSTOPY);
    ck_assert(choice.stopped);
    end();
    ck_assert_str_eq(shown, "ax");
}
END_TEST

START_TEST(the_earliest_of_several_stops_wins)
{
    stop_at("world");
    stop_at("lo w");
    begin();
    push(FAKE_HELLO);
    ck_assert_str_eq(shown, "Hel");
    push(FAKE_WORLD);
    ck_assert(choice.stopped);
    end();
    ck_assert_str_eq(shown, "Hel");
}
END_TEST

START_TEST(a_stop_of_several_bytes_a_character_works)
{
    stop_at("\xe2\x82\xac");
    begin();
    push('a');
    push(FAKE_EURO_HEAD);
    push(FAKE_EURO_TAIL);
    ck_assert(choice.stopped);
    end();
    ck_assert_str_eq(shown, "a");
}
END_TEST

/* Against the plain definition: the text before the first occurrence, whatever the pieces. */
START_TEST(random_texts_agree_with_the_definition)
{
    unsigned seed = 12345u + (unsigned)_i;
    printf("choice, random texts: seed %u\n", seed);
    for (int round = 0; round < 300; round++) {
        setup();
        char stop[6];
        int stop_size = 1 + rand_r(&seed) % 4;
        for (int at = 0; at < stop_size; at++) {
            stop[at] = (char)('a' + rand_r(&seed) % 2);
        }
        stop[stop_size] = '\0';
        stop_at(stop);
        begin();
        char whole[64];
        int size = rand_r(&seed) % 40;
        for (int at = 0; at < size; at++) {
            whole[at] = (char)('a' + rand_r(&seed) % 3);
        }
        whole[size] = '\0';
        uint32_t expected_index = 0;
        char *found = strstr(whole, stop);
        if (found != NULL) {
            expected_index = (uint32_t)(found - whole) + (uint32_t)stop_size;
        }
        for (int at = 0; at < size; at++) {
            push(whole[at]);
        }
        end();
        if (found != NULL) {
            *found = '\0';
            ck_assert_uint_eq(choice.stop_index, expected_index);
        }
        ck_assert_int_eq(choice.stopped, found != NULL);
        ck_assert_str_eq(shown, whole);
        teardown();
    }
    setup();
    begin();
}
END_TEST

START_TEST(special_and_stop_tokens_have_no_text)
{
    params.stop_ids[params.stop_id_count++] = 'z';
    params.min_tokens = 2;
    begin();
    push('z'); /* before min_tokens it is an ordinary token */
    push(FAKE_MARK);
    push('z');
    push(FAKE_EOS);
    end();
    ck_assert_str_eq(shown, "z");
    ck_assert_uint_eq(choice.token_count, 4);
    actor_http_choice_fini(&choice);
    setup();
    params.skip_special_tokens = false;
    params.ignore_eos = true;
    begin();
    push(FAKE_MARK);
    push(FAKE_EOS);
    end();
    ck_assert_str_eq(shown, "<mark><eos>");
}
END_TEST

START_TEST(logprobs_stay_with_their_text)
{
    stop_at("STOP");
    params.logprob_count = 1;
    begin();
    static const int32_t tokens[] = {'a', FAKE_ST, FAKE_OP};
    for (size_t at = 0; at < 3; at++) {
        int32_t ids[2] = {tokens[at], 'q'};
        float values[2] = {-1.0f, -2.0f};
        actor_http_choice_push(&choice, tokens[at], 2, ids, values);
        if (at == 1) {
            ck_assert_uint_eq(actor_http_choice_logprobs_ready(&choice), 1);
        }
    }
    actor_http_choice_finish(&choice);
    /* The tokens of the stop string have no text left to stand beside. */
    ck_assert_uint_eq(actor_http_choice_logprobs_ready(&choice), 1);
    ck_assert_int_eq(choice.logprob_ids[choice.logprobs[0].entry_at], 'a');
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.http_choice");
    TCase *tcase = tcase_create("choice");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_character_in_two_tokens_comes_whole);
    tcase_add_test(tcase, a_stop_string_across_tokens_is_never_shown);
    tcase_add_test(tcase, a_beginning_that_goes_on_otherwise_is_shown);
    tcase_add_test(tcase, text_before_a_stop_inside_a_token_is_shown);
    tcase_add_test(tcase, the_earliest_of_several_stops_wins);
    tcase_add_test(tcase, a_stop_of_several_bytes_a_character_works);
    tcase_add_loop_test(tcase, random_texts_agree_with_the_definition, 0, 3);
    tcase_add_test(tcase, special_and_stop_tokens_have_no_text);
    tcase_add_test(tcase, logprobs_stay_with_their_text);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
