/* The JSON view, read back by an independent strict parser. */
#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "message_maker.h"

static char text[1 << 20];

static json_t *
to_json(proto_kind_t kind, const proto_body_t *body, bool show_private, uint32_t len_max)
{
    size_t length = proto_body_to_json(kind, body, show_private, len_max, text, sizeof text);
    ck_assert_uint_lt(length, sizeof text);
    ck_assert_uint_eq(strlen(text), length);
    json_error_t error;
    json_t *json =
        json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
    ck_assert_msg(json != NULL, "%s in %s", error.text, text);
    return json;
}

START_TEST(every_message_gives_valid_json)
{
    maker_t *maker = maker_new(maker_seed("json"), 100);
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (int round = 0; round < 20; round++) {
        for (uint32_t index = 0; index < count; index++) {
            proto_body_t body;
            maker_fill(maker, &messages[index], &body);
            json_t *json = to_json(messages[index].kind, &body, round % 2 == 0, 20);
            ck_assert_uint_eq(json_object_size(json), messages[index].field_count);
            json_decref(json);
            ck_assert_ptr_null(strchr(text, '\n'));
        }
    }
    free(maker);
}
END_TEST

START_TEST(values_are_shown_as_they_are)
{
    const int32_t tokens[] = {1, -2, 3};
    const uint64_t requests[] = {UINT64_C(9007199254740993), 7};
    const float logprobs[] = {-0.25f};
    proto_body_t body;
    memset(&body, 0, sizeof body);
    body.tokens.step = UINT64_MAX;
    body.tokens.requests = (proto_column_u64_t){requests, 2};
    body.tokens.tokens = (proto_column_i32_t){tokens, 3};
    body.tokens.logprob_values = (proto_column_f32_t){logprobs, 1};
    json_decref(to_json(PROTO_KIND_TOKENS, &body, true, 8));
    ck_assert_ptr_nonnull(strstr(text, "\"step\":18446744073709551615,"));
    ck_assert_ptr_nonnull(strstr(text, "\"requests\":[9007199254740993,7]"));
    ck_assert_ptr_nonnull(strstr(text, "\"tokens\":[1,-2,3]"));
    ck_assert_ptr_nonnull(strstr(text, "\"logprob_values\":[-0.25]"));
    memset(&body, 0, sizeof body);
    body.sampling.temperature = 0.7;
    body.sampling.top_p = 0.1 + 0.2;
    body.sampling.ignore_eos = true;
    body.sampling.stop_ids = (proto_bytes_t){(const uint8_t *)"\x01\xff", 2};
    json_decref(to_json(PROTO_KIND_SAMPLING, &body, true, 8));
    ck_assert_ptr_nonnull(strstr(text, "\"temperature\":0.7,\"top_p\":0.30000000000000004,"));
    ck_assert_ptr_nonnull(strstr(text, "\"ignore_eos\":true"));
    ck_assert_ptr_nonnull(strstr(text, "\"stop_ids\":\"01ff\""));
}
END_TEST

/* A peer's text ends on somebody's terminal. */
START_TEST(text_is_escaped)
{
    const char hostile[] = "a\"b\\c\nd\x1b[31m\x7f\xc2\x9b"
                           "e\xc3\xa9\xff"
                           "f";
    proto_body_t body;
    memset(&body, 0, sizeof body);
    body.bye.detail = (proto_text_t){hostile, sizeof hostile - 1};
    json_t *json = to_json(PROTO_KIND_BYE, &body, false, 8);
    ck_assert_str_eq(json_string_value(json_object_get(json, "detail")),
                     "a\"b\\c\nd\x1b[31m\x7f\xc2\x9b"
                     "e\xc3\xa9\xef\xbf\xbd"
                     "f");
    json_decref(json);
    for (size_t at = 0; text[at] != '\0'; at++) {
        ck_assert_int_ne(text[at], 0x1b);
        ck_assert_int_ne(text[at], 0x7f);
    }
    ck_assert_ptr_null(strstr(text, "\xc2\x9b"));
}
END_TEST

/* Prompts are not shown unless asked for; lengths are. */
START_TEST(private_fields_show_only_their_size)
{
    const int32_t tokens[] = {424242, 434343};
    const uint8_t sampling[] = {0x91, 0x01};
    proto_body_t body;
    memset(&body, 0, sizeof body);
    body.submit.prompt_length = 2;
    body.submit.tokens = (proto_column_i32_t){tokens, 2};
    body.submit.sampling = (proto_column_u8_t){sampling, 2};
    json_decref(to_json(PROTO_KIND_SUBMIT, &body, false, 100));
    ck_assert_ptr_null(strstr(text, "424242"));
    ck_assert_ptr_nonnull(strstr(text, "\"tokens\":{\"count\":2},\"sampling\":{\"count\":2}"));
    json_decref(to_json(PROTO_KIND_SUBMIT, &body, true, 100));
    ck_assert_ptr_nonnull(strstr(text, "\"tokens\":[424242,434343]"));
}
END_TEST

START_TEST(long_columns_are_cut_with_their_count)
{
    const uint32_t slots[] = {1, 2, 3, 4, 5};
    proto_body_t body;
    memset(&body, 0, sizeof body);
    body.plan.decode_slots = (proto_column_u32_t){slots, 5};
    json_decref(to_json(PROTO_KIND_PLAN, &body, false, 3));
    ck_assert_ptr_nonnull(strstr(text, "\"decode_slots\":{\"count\":5,\"first\":[1,2,3]}"));
    json_decref(to_json(PROTO_KIND_PLAN, &body, false, 5));
    ck_assert_ptr_nonnull(strstr(text, "\"decode_slots\":[1,2,3,4,5]"));
    memset(&body, 0, sizeof body);
    body.submit.page_hashes = (proto_bytes_t){(const uint8_t *)"\x0a\x0b\x0c", 3};
    json_decref(to_json(PROTO_KIND_SUBMIT, &body, false, 2));
    ck_assert_ptr_nonnull(strstr(text, "{\"size_bytes\":3,\"first\":\"0a0b\"}"));
}
END_TEST

/* As snprintf: the length is that of the whole, and nothing is written past the room. */
START_TEST(small_rooms_are_not_overrun)
{
    maker_t *maker = maker_new(maker_seed("json rooms"), 30);
    const proto_message_t *message = proto_message_find(PROTO_KIND_STEP_RESULT);
    proto_body_t body;
    maker_fill(maker, message, &body);
    size_t whole = proto_body_to_json(message->kind, &body, true, 10, text, sizeof text);
    ck_assert_uint_eq(proto_body_to_json(message->kind, &body, true, 10, NULL, 0), whole);
    for (size_t room = 1; room <= whole + 1; room++) {
        char *out = malloc(room);
        ck_assert_ptr_nonnull(out);
        ck_assert_uint_eq(proto_body_to_json(message->kind, &body, true, 10, out, room), whole);
        ck_assert_uint_eq(strlen(out), room - 1);
        ck_assert_mem_eq(out, text, room - 1);
        free(out);
    }
    free(maker);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("proto.json");
    TCase *tcase = tcase_create("json");
    tcase_set_timeout(tcase, 50);
    tcase_add_test(tcase, every_message_gives_valid_json);
    tcase_add_test(tcase, values_are_shown_as_they_are);
    tcase_add_test(tcase, text_is_escaped);
    tcase_add_test(tcase, private_fields_show_only_their_size);
    tcase_add_test(tcase, long_columns_are_cut_with_their_count);
    tcase_add_test(tcase, small_rooms_are_not_overrun);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
