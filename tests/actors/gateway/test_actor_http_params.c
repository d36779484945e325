/* test_actor_http_params.c - every field at and beyond its bounds. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_http_params.h"
#include "fake_text.h"

static const actor_http_params_limits_t limits = {.served_model = "fake", .vocab_size = FAKE_VOCAB};

static bool
parse(actor_http_params_t *params, actor_http_kind_t kind, const char *body,
      actor_http_error_t *error)
{
    memset(error, 0, sizeof *error);
    return actor_http_params_parse(params, kind, body, strlen(body), &limits, error);
}

/* Parses a completion with one more field; returns the field named in the error, "" if it passed.
 */
static const char *
try_field(actor_http_kind_t kind, const char *field, const char *value)
{
    static actor_http_error_t error;
    char body[4096];
    const char *base = kind == ACTOR_HTTP_CHAT
                           ? "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
                           : "\"prompt\":\"x\"";
    (void)snprintf(body, sizeof body, "{%s,\"%s\":%s}", base, field, value);
    actor_http_params_t params;
    bool ok = parse(&params, kind, body, &error);
    actor_http_params_fini(&params);
    if (ok) {
        return "";
    }
    ck_assert_int_ge(error.status, 400);
    ck_assert_uint_gt(strlen(error.message), 10);
    return error.param;
}

typedef struct {
    const char *field;
    int kinds;
    const char *low;   /* passes */
    const char *high;  /* passes */
    const char *below; /* refused */
    const char *above; /* refused */
} bounds_t;

static const bounds_t numeric[] = {
    {"n", 3, "1", "16", "0", "17"},
    {"max_tokens", 3, "1", "1048576", "0", "1048577"},
    {"max_completion_tokens", 3, "1", "1048576", "0", "1048577"},
    {"min_tokens", 3, "0", "1048576", "-1", "1048577"},
    {"temperature", 3, "0", "2", "-0.001", "2.001"},
    {"top_p", 3, "0.0001", "1", "0", "1.001"},
    {"top_k", 3, "-1", "16777216", "-2", "16777217"},
    {"min_p", 3, "0", "1", "-0.001", "1.001"},
    {"presence_penalty", 3, "-2", "2", "-2.1", "2.1"},
    {"frequency_penalty", 3, "-2", "2", "-2.1", "2.1"},
    {"repetition_penalty", 3, "0.001", "10", "0", "10.1"},
    {"priority", 3, "-1000000", "1000000", "-1000001", "1000001"},
    {"logprobs", 1, "0", "20", "-1", "21"},
    {"seed", 3, "-9223372036854775808", "9223372036854775807", "-9223372036854775809",
     "9223372036854775808"},
    {"logit_bias", 3, "{\"0\":-100}", "{\"265\":100}", "{\"5\":-100.5}", "{\"266\":1}"},
};

START_TEST(numbers_have_bounds)
{
    static const actor_http_kind_t kinds[] = {ACTOR_HTTP_COMPLETION, ACTOR_HTTP_CHAT};
    static const char *const never[] = {
        "9223372036854775808", "1e400", "-1e400", "NaN", "Infinity", "\"1\"", "true", "[1]",
        "{\"a\":1}",           "01"};
    for (size_t at = 0; at < sizeof numeric / sizeof numeric[0]; at++) {
        for (size_t kind = 0; kind < 2; kind++) {
            const bounds_t *row = &numeric[at];
            if ((row->kinds & (int)kinds[kind]) == 0) {
                continue;
            }
            ck_assert_str_eq(try_field(kinds[kind], row->field, row->low), "");
            ck_assert_str_eq(try_field(kinds[kind], row->field, row->high), "");
            ck_assert_str_eq(try_field(kinds[kind], row->field, "null"), "");
            ck_assert_str_eq(try_field(kinds[kind], row->field, row->below), row->field);
            ck_assert_str_eq(try_field(kinds[kind], row->field, row->above), row->field);
            for (size_t bad = 0; bad < sizeof never / sizeof never[0]; bad++) {
                const char *param = try_field(kinds[kind], row->field, never[bad]);
                ck_assert_msg(strcmp(param, row->field) == 0, "%s: %s named \"%s\"", row->field,
                              never[bad], param);
            }
        }
    }
}
END_TEST

START_TEST(other_fields_have_types)
{
    static const struct {
        actor_http_kind_t kind;
        const char *field;
        const char *value;
        const char *param; /* "" passes */
    } cases[] = {
        {ACTOR_HTTP_COMPLETION, "stream", "true", ""},
        {ACTOR_HTTP_COMPLETION, "stream", "1", "stream"},
        {ACTOR_HTTP_COMPLETION, "stream", "\"true\"", "stream"},
        {ACTOR_HTTP_COMPLETION, "ignore_eos", "0", "ignore_eos"},
        {ACTOR_HTTP_COMPLETION, "echo", "true", ""},
        {ACTOR_HTTP_CHAT, "logprobs", "1", "logprobs"},
        {ACTOR_HTTP_CHAT, "top_logprobs", "3", "top_logprobs"},
        {ACTOR_HTTP_COMPLETION, "stop", "\"a\"", ""},
        {ACTOR_HTTP_COMPLETION, "stop", "[]", ""},
        {ACTOR_HTTP_COMPLETION, "stop", "\"\"", "stop"},
        {ACTOR_HTTP_COMPLETION, "stop", "[\"a\",\"\"]", "stop[1]"},
        {ACTOR_HTTP_COMPLETION, "stop", "[1]", "stop[0]"},
        {ACTOR_HTTP_COMPLETION, "stop", "3", "stop"},
        {ACTOR_HTTP_COMPLETION, "stop",
         "[\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\","
         "\"a\",\"a\",\"a\"]",
         "stop"},
        {ACTOR_HTTP_COMPLETION, "stop_token_ids", "[0,265]", ""},
        {ACTOR_HTTP_COMPLETION, "stop_token_ids", "[266]", "stop_token_ids"},
        {ACTOR_HTTP_COMPLETION, "stop_token_ids", "[-1]", "stop_token_ids"},
        {ACTOR_HTTP_COMPLETION, "stop_token_ids", "7", "stop_token_ids"},
        {ACTOR_HTTP_COMPLETION, "logit_bias", "{\"x\":1}", "logit_bias"},
        {ACTOR_HTTP_COMPLETION, "logit_bias", "{\"1\":\"2\"}", "logit_bias"},
        {ACTOR_HTTP_COMPLETION, "cache_salt", "\"\"", "cache_salt"},
        {ACTOR_HTTP_COMPLETION, "cache_salt", "\"abc\"", ""},
        {ACTOR_HTTP_COMPLETION, "user", "5", "user"},
        {ACTOR_HTTP_COMPLETION, "user", "\"\"", ""},
        {ACTOR_HTTP_COMPLETION, "model", "\"\"", "model"},
        {ACTOR_HTTP_COMPLETION, "model", "\"fake\"", ""},
        {ACTOR_HTTP_COMPLETION, "model", "\"other\"", "model"},
        {ACTOR_HTTP_COMPLETION, "model", "5", "model"},
        {ACTOR_HTTP_COMPLETION, "stream_options", "{\"include_usage\":true}", "stream_options"},
        {ACTOR_HTTP_COMPLETION, "stream_options", "{\"include_usage\":1}", "stream_options"},
        {ACTOR_HTTP_COMPLETION, "best_of", "1", ""},
        {ACTOR_HTTP_COMPLETION, "best_of", "2", "best_of"},
        {ACTOR_HTTP_COMPLETION, "suffix", "\"x\"", "suffix"},
        {ACTOR_HTTP_CHAT, "tools", "[]", ""},
        {ACTOR_HTTP_CHAT, "tools", "[{}]", "tools"},
        {ACTOR_HTTP_CHAT, "tool_choice", "\"none\"", ""},
        {ACTOR_HTTP_CHAT, "tool_choice", "\"auto\"", "tool_choice"},
        {ACTOR_HTTP_CHAT, "functions", "[{}]", "functions"},
        {ACTOR_HTTP_CHAT, "response_format", "{\"type\":\"text\"}", ""},
        {ACTOR_HTTP_CHAT, "response_format", "{\"type\":\"json_object\"}", "response_format"},
        {ACTOR_HTTP_CHAT, "modalities", "[\"text\"]", ""},
        {ACTOR_HTTP_CHAT, "modalities", "[\"text\",\"audio\"]", "modalities"},
        {ACTOR_HTTP_CHAT, "audio", "{}", "audio"},
        {ACTOR_HTTP_CHAT, "no_such_field", "[1,{\"a\":2}]", ""},
        {ACTOR_HTTP_CHAT, "metadata", "{\"a\":\"b\"}", ""},
    };
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++) {
        const char *param = try_field(cases[at].kind, cases[at].field, cases[at].value);
        ck_assert_msg(strcmp(param, cases[at].param) == 0, "%s %s: named \"%s\", expected \"%s\"",
                      cases[at].field, cases[at].value, param, cases[at].param);
    }
}
END_TEST

START_TEST(messages_are_checked)
{
    static const struct {
        const char *messages;
        const char *param;
    } cases[] = {
        {"[]", "messages"},
        {"{}", "messages"},
        {"[3]", "messages[0]"},
        {"[{\"role\":\"user\",\"content\":\"a\"}]", ""},
        {"[{\"role\":\"developer\",\"content\":\"a\"}]", ""},
        {"[{\"role\":\"tool\",\"content\":\"a\"}]", "messages[0].role"},
        {"[{\"content\":\"a\"}]", "messages[0].role"},
        {"[{\"role\":\"user\"}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":5}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":[]}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}]", ""},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0]"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
         "{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]",
         "messages[0].content[1]"},
        {"[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[{}]}]",
         "messages[0].tool_calls"},
    };
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++) {
        char body[1024];
        (void)snprintf(body, sizeof body, "{\"messages\":%s}", cases[at].messages);
        actor_http_params_t params;
        actor_http_error_t error;
        bool ok = parse(&params, ACTOR_HTTP_CHAT, body, &error);
        ck_assert_msg(ok == (cases[at].param[0] == '\0'), "%s: %s", cases[at].messages,
                      error.message);
        ck_assert_str_eq(ok ? "" : error.param, cases[at].param);
        actor_http_params_fini(&params);
    }
}
END_TEST

START_TEST(prompts_have_four_forms)
{
    static const struct {
        const char *prompt;
        uint32_t count; /* 0: refused */
        const char *param;
    } cases[] = {
        {"\"abc\"", 1, ""},       {"[\"a\",\"b\"]", 2, ""},      {"[1,2,3]", 1, ""},
        {"[[1],[2,3]]", 2, ""},   {"\"\"", 0, "prompt"},         {"[]", 0, "prompt"},
        {"[[]]", 0, "prompt[0]"}, {"[\"a\",1]", 0, "prompt[1]"}, {"[1,\"a\"]", 0, "prompt"},
        {"[266]", 0, "prompt"},   {"[-1]", 0, "prompt"},         {"[[1],[1.5]]", 0, "prompt[1]"},
        {"{}", 0, "prompt"},      {"null", 0, "prompt"},         {"[null]", 0, "prompt"},
    };
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++) {
        char body[256];
        (void)snprintf(body, sizeof body, "{\"prompt\":%s}", cases[at].prompt);
        actor_http_params_t params;
        actor_http_error_t error;
        bool ok = parse(&params, ACTOR_HTTP_COMPLETION, body, &error);
        ck_assert_msg(ok == (cases[at].count > 0), "%s: %s", cases[at].prompt, error.message);
        if (ok) {
            ck_assert_uint_eq(params.prompt_count, cases[at].count);
        } else {
            ck_assert_str_eq(error.param, cases[at].param);
        }
        actor_http_params_fini(&params);
    }
}
END_TEST

START_TEST(bodies_that_are_no_json_are_refused)
{
    static const char *const bodies[] = {
        "",
        "{",
        "[]",
        "\"x\"",
        "{\"prompt\":\"a\"} x",
        "{\"prompt\":\"a\",\"prompt\":\"b\"}",
        "{\"prompt\":\"\\ud800\"}",
        "{\"prompt\":\"a\\u0000b\"}",
        "{\"prompt\":\"\xff\"}",
        "{\"prompt\":\"a\nb\"}",
        "{\"prompt\":\"a\",\"n\":01}",
        "{'prompt':'a'}",
    };
    for (size_t at = 0; at < sizeof bodies / sizeof bodies[0]; at++) {
        actor_http_params_t params;
        actor_http_error_t error;
        ck_assert_msg(!parse(&params, ACTOR_HTTP_COMPLETION, bodies[at], &error), "%s", bodies[at]);
        ck_assert_int_eq(error.status, 400);
        actor_http_params_fini(&params);
    }
    /* Nesting: 32 levels pass, 33 do not, 100 000 cost nothing. */
    static char deep[200100];
    for (int levels = 31; levels <= 100000; levels += levels == 31 ? 1 : 99968) {
        int size = snprintf(deep, sizeof deep, "{\"prompt\":\"a\",\"x\":");
        memset(deep + size, '[', (size_t)levels);
        memset(deep + size + levels, ']', (size_t)levels);
        (void)snprintf(deep + size + 2 * levels, 2, "}");
        actor_http_params_t params;
        actor_http_error_t error;
        ck_assert_int_eq(parse(&params, ACTOR_HTTP_COMPLETION, deep, &error), levels <= 31);
        actor_http_params_fini(&params);
    }
}
END_TEST

START_TEST(strict_refuses_what_it_does_not_know)
{
    actor_http_params_limits_t strict = limits;
    strict.strict = true;
    actor_http_params_t params;
    actor_http_error_t error;
    const char *body = "{\"prompt\":\"a\",\"wrong\\nname\":1}";
    ck_assert(!actor_http_params_parse(&params, ACTOR_HTTP_COMPLETION, body, strlen(body), &strict,
                                       &error));
    ck_assert_str_eq(error.code, "unknown_parameter");
    ck_assert_str_eq(error.param, "wrong?name");
    actor_http_params_fini(&params);
}
END_TEST

START_TEST(chats_are_rendered_and_encoded)
{
    actor_http_params_t params;
    actor_http_error_t error;
    const char *body = "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\","
                       "\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
                       "\"text\":\"b\"}]}]}";
    ck_assert(parse(&params, ACTOR_HTTP_CHAT, body, &error));
    ck_assert(actor_http_params_tokenize(&params, fake_text(), 0, 4096, &error));
    ck_assert_uint_eq(params.prompt_count, 1);
    static const char expected[] = "system:s\nuser:a\nb\nassistant:";
    ck_assert_uint_eq(params.prompts[0].id_count, sizeof expected - 1);
    for (size_t at = 0; at < sizeof expected - 1; at++) {
        ck_assert_int_eq(params.prompts[0].ids[at], expected[at]);
    }
    actor_http_params_fini(&params);
    const char *refused = "{\"messages\":[{\"role\":\"user\",\"content\":\"s\"},{\"role\":"
                          "\"system\",\"content\":\"x\"}]}";
    ck_assert(parse(&params, ACTOR_HTTP_CHAT, refused, &error));
    ck_assert(!actor_http_params_tokenize(&params, fake_text(), 0, 4096, &error));
    ck_assert_ptr_nonnull(strstr(error.message, "system must come first"));
    actor_http_params_fini(&params);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.http_params");
    TCase *tcase = tcase_create("params");
    tcase_add_test(tcase, numbers_have_bounds);
    tcase_add_test(tcase, other_fields_have_types);
    tcase_add_test(tcase, messages_are_checked);
    tcase_add_test(tcase, prompts_have_four_forms);
    tcase_add_test(tcase, bodies_that_are_no_json_are_refused);
    tcase_add_test(tcase, strict_refuses_what_it_does_not_know);
    tcase_add_test(tcase, chats_are_rendered_and_encoded);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
