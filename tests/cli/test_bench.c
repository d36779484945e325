/* The parts of `onepath bench` that need no server. */
#include <check.h>
#include <math.h>
#include <string.h>

#include "cli_bench.h"

/* The smallest sample that p percent do not exceed, in any order of arrival. */
START_TEST(percentiles_are_nearest_ranks)
{
    cli_bench_samples_t samples = {0};
    ck_assert_uint_eq(cli_bench_samples_percentile(&samples, 50), 0);
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t value = i * 7 % 1000 + 1;
        ck_assert(cli_bench_samples_add(&samples, (uint64_t)value * 1000));
    }
    ck_assert_uint_eq(cli_bench_samples_percentile(&samples, 0), 1);
    ck_assert_uint_eq(cli_bench_samples_percentile(&samples, 50), 500);
    ck_assert_uint_eq(cli_bench_samples_percentile(&samples, 99), 990);
    ck_assert_uint_eq(cli_bench_samples_percentile(&samples, 100), 1000);
    ck_assert(cli_bench_samples_add(&samples, UINT64_MAX)); /* saturates, and is sorted in */
    ck_assert_uint_eq(cli_bench_samples_percentile(&samples, 100), UINT32_MAX);
    cli_bench_books_t books = {.whole = samples};
    cli_bench_books_fini(&books);
}
END_TEST

START_TEST(lengths_parse_or_are_refused)
{
    static const char *const bad[] = {"",       "0",        "-3",        "3-",        "9-3",
                                      "1-2-3",  "normal:3", "normal:",   "exp:",      "exp:0",
                                      "exp:1x", "1000001",  "1.5",       " 4",        "normal:0:1",
                                      "nan",    "+4",       "uniform:3", "normal:3-4"};
    cli_bench_length_t length;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_msg(cli_bench_length_parse(bad[i], &length) == STATUS_ERR_INVALID, "'%s'",
                      bad[i]);
    }
    ck_assert_int_eq(cli_bench_length_parse("64-512", &length), STATUS_OK);
    ck_assert(length.spread == CLI_BENCH_UNIFORM && length.a == 64 && length.b == 512);
    ck_assert_int_eq(cli_bench_length_parse("normal:128:0", &length), STATUS_OK);
    ck_assert(length.spread == CLI_BENCH_NORMAL && length.a == 128 && length.b == 0);
}
END_TEST

static double
mean_of(const char *text, double *deviation)
{
    enum { COUNT = 20000 };
    cli_bench_length_t length;
    ck_assert_int_eq(cli_bench_length_parse(text, &length), STATUS_OK);
    cli_bench_random_t random = {.state = 42};
    double sum = 0;
    double squares = 0;
    for (int i = 0; i < COUNT; i++) {
        double value = cli_bench_length_draw(&length, &random);
        sum += value;
        squares += value * value;
    }
    *deviation = sqrt(squares / COUNT - sum / COUNT * (sum / COUNT));
    return sum / COUNT;
}

/* Means and deviations of 20,000 draws, within five standard errors of what the name promises. */
START_TEST(lengths_are_spread_as_they_say)
{
    double deviation;
    ck_assert_double_eq_tol(mean_of("100", &deviation), 100, 1e-9);
    ck_assert_double_eq_tol(mean_of("1-199", &deviation), 100, 2.1);
    ck_assert_double_eq_tol(deviation, 57.4, 1.5);
    ck_assert_double_eq_tol(mean_of("normal:200:20", &deviation), 200, 0.8);
    ck_assert_double_eq_tol(deviation, 20, 0.6);
    ck_assert_double_eq_tol(mean_of("exp:200", &deviation), 200, 8);
    ck_assert_double_eq_tol(deviation, 200, 12);
    cli_bench_random_t random = {.state = 42};
    double sum = 0;
    for (int i = 0; i < 20000; i++) {
        sum += (double)cli_bench_random_gap_ns(&random, 50) / 1e9;
    }
    ck_assert_double_eq_tol(sum / 20000, 0.02, 0.0008);
}
END_TEST

static const char answer[] =
    ": keep-alive\r\n\r\n"
    "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
    "data:{\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n"
    "event: x\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\n"
    "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"c\"}}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,"
    "\"completion_tokens\":9}}\n\n"
    "data: [DONE]\n\nanything after it";

/* Where the network cuts the bytes must not matter: every single cut, and all of them at once. */
START_TEST(a_stream_is_the_same_wherever_it_is_cut)
{
    static cli_bench_stream_t stream;
    size_t length = sizeof answer - 1;
    for (size_t cut = 0; cut <= length; cut++) {
        cli_bench_stream_init(&stream);
        uint32_t found = cli_bench_stream_push(&stream, answer, cut);
        found += cli_bench_stream_push(&stream, answer + cut, length - cut);
        ck_assert_int_eq(stream.state, CLI_BENCH_STREAM_DONE);
        ck_assert_uint_eq(found, 3);
        ck_assert_uint_eq(stream.piece_count, 3);
        ck_assert_uint_eq(stream.token_count, 9);
        ck_assert_uint_eq(stream.prompt_count, 3);
    }
    cli_bench_stream_init(&stream);
    for (size_t i = 0; i < length; i++) {
        (void)cli_bench_stream_push(&stream, answer + i, 1);
    }
    ck_assert_int_eq(stream.state, CLI_BENCH_STREAM_DONE);
}
END_TEST

static cli_bench_stream_state_t
state_after(const char *text)
{
    static cli_bench_stream_t stream;
    cli_bench_stream_init(&stream);
    (void)cli_bench_stream_push(&stream, text, strlen(text));
    return stream.state;
}

START_TEST(what_is_no_stream_is_malformed)
{
    static const char *const bad[] = {"data: {\n",  "data: []\n",     "data: {\"choices\":3}\n",
                                      "data: {}\n", "data: \n",       "data: nul\n",
                                      "<html>\n",   "data: [DONE] \n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_msg(state_after(bad[i]) == CLI_BENCH_STREAM_MALFORMED, "'%s'", bad[i]);
    }
    ck_assert_int_eq(state_after("data: {\"error\":{\"message\":\"m\"}}\n"),
                     CLI_BENCH_STREAM_ERROR);
    ck_assert_int_eq(state_after("data: {\"error\":\"m\"}\n"), CLI_BENCH_STREAM_ERROR);
    ck_assert_int_eq(state_after("data: [DONE]"), CLI_BENCH_STREAM_OPEN); /* no line yet */
    static char endless[CLI_BENCH_LINE_SIZE_BYTES + 2];
    memset(endless, 'x', sizeof endless - 1);
    ck_assert_int_eq(state_after(endless), CLI_BENCH_STREAM_MALFORMED);
}
END_TEST

/* Kinds beyond the table's room are counted together; nothing is lost. */
START_TEST(errors_are_counted_by_kind)
{
    static cli_bench_books_t books;
    for (int i = 0; i < 100; i++) {
        char kind[16];
        (void)snprintf(kind, sizeof kind, "http_%d", i % 50);
        cli_bench_books_error(&books, kind, i < 50 ? "first" : "second");
    }
    uint64_t sum = 0;
    for (uint32_t i = 0; i < books.error_kind_count; i++) {
        sum += books.errors[i].count;
        ck_assert_str_eq(books.errors[i].first, "first");
    }
    ck_assert_uint_eq(sum, 100);
    ck_assert_uint_eq(books.error_kind_count, CLI_BENCH_KIND_COUNT_MAX);
    ck_assert_uint_eq(books.errors[0].count, 2);
    ck_assert_str_eq(books.errors[CLI_BENCH_KIND_COUNT_MAX - 1].kind, "others");
}
END_TEST

START_TEST(urls_are_taken_apart)
{
    cli_bench_url_t url;
    ck_assert_int_eq(cli_bench_url_parse("http://a:81/x/v1/", &url), STATUS_OK);
    ck_assert_str_eq(url.host, "a");
    ck_assert_str_eq(url.path, "/x");
    ck_assert_uint_eq(url.port, 81);
    ck_assert_int_eq(cli_bench_url_parse("http://a", &url), STATUS_OK);
    ck_assert_uint_eq(url.port, 80);
    ck_assert_str_eq(url.path, "");
    ck_assert_str_eq(url.address, "a");
    ck_assert_int_eq(cli_bench_url_parse("http://[::1]:8000/v1", &url), STATUS_OK);
    ck_assert_str_eq(url.host, "[::1]");  /* as the head of a request has it */
    ck_assert_str_eq(url.address, "::1"); /* as a resolver takes it */
    ck_assert_uint_eq(url.port, 8000);
    static const char *const bad[] = {"",           "a:80",           "https://a",    "http://",
                                      "http://a:0", "http://a:99999", "http://a?x=1", "http://u@a"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_msg(cli_bench_url_parse(bad[i], &url) == STATUS_ERR_INVALID, "'%s'", bad[i]);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("cli.bench_parts");
    TCase *tests = tcase_create("parts");
    tcase_add_test(tests, percentiles_are_nearest_ranks);
    tcase_add_test(tests, lengths_parse_or_are_refused);
    tcase_add_test(tests, lengths_are_spread_as_they_say);
    tcase_add_test(tests, a_stream_is_the_same_wherever_it_is_cut);
    tcase_add_test(tests, what_is_no_stream_is_malformed);
    tcase_add_test(tests, errors_are_counted_by_kind);
    tcase_add_test(tests, urls_are_taken_apart);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
