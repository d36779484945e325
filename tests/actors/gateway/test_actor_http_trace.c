/* What a traceparent may be, and where traces may go. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "actor_http_trace.h"
#include "actor_http_trace_send.h"

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"
#define GOOD "00-" TRACE "-" PARENT "-01"

START_TEST(a_traceparent_is_read_as_the_standard_says)
{
    actor_http_trace_context_t context;
    ck_assert(actor_http_trace_parse(GOOD, strlen(GOOD), &context));
    ck_assert(context.is_given && context.is_sampled);
    ck_assert_uint_eq(context.trace[0], 0x4b);
    ck_assert_uint_eq(context.trace[15], 0x36);
    ck_assert_uint_eq(context.parent[7], 0xb7);
    const char *others[] = {"00-" TRACE "-" PARENT "-00", "00-" TRACE "-" PARENT "-02"};
    for (size_t i = 0; i < 2; i++) {
        ck_assert(actor_http_trace_parse(others[i], strlen(others[i]), &context));
        ck_assert(!context.is_sampled);
    }
    /* A later version may go on after the flags, which are what they were. */
    const char *later = "cc-" TRACE "-" PARENT "-09-what-the-future-will-be-like";
    ck_assert(actor_http_trace_parse(later, strlen(later), &context));
    ck_assert(context.is_sampled);
}
END_TEST

START_TEST(anything_else_is_none)
{
    static const char *const wrong[] = {
        "",
        "00",
        "ff-" TRACE "-" PARENT "-01",
        GOOD "-more",
        "cc-" TRACE "-" PARENT "-01.more",
        "00-00000000000000000000000000000000-" PARENT "-01",
        "00-" TRACE "-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01",
        "00-" TRACE "-" PARENT "-0g",
        "0x-" TRACE "-" PARENT "-01",
        "00_" TRACE "-" PARENT "-01",
        "00-" TRACE "_" PARENT "-01",
        "00-" TRACE "-" PARENT "_01",
        "00-g" TRACE "-" PARENT "-01",
    };
    actor_http_trace_context_t context;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ck_assert_msg(!actor_http_trace_parse(wrong[i], strlen(wrong[i]), &context), "%s",
                      wrong[i]);
        ck_assert(!context.is_given && !context.is_sampled);
    }
    for (size_t size = 0; size < strlen(GOOD); size++) { /* exactly so many bytes are there */
        char *bytes = malloc(size + 1);
        ck_assert_ptr_nonnull(bytes);
        memcpy(bytes, GOOD, size);
        ck_assert(!actor_http_trace_parse(bytes, size, &context));
        free(bytes);
    }
}
END_TEST

START_TEST(an_endpoint_is_an_http_url)
{
    static const struct {
        const char *text, *host, *port, *path;
    } good[] = {
        {"http://a", "a", "4318", "/v1/traces"},
        {"http://a/", "a", "4318", "/v1/traces"},
        {"http://a.b:80/x/y", "a.b", "80", "/x/y"},
        {"http://[::1]:4318", "::1", "4318", "/v1/traces"},
        {"http://[fe80::1]/t", "fe80::1", "4318", "/t"},
    };
    static const char *const wrong[] = {
        "",
        "a",
        "https://a",
        "http://",
        "http:///x",
        "http://:1",
        "http://a:0",
        "http://a:65536",
        "http://a:1x",
        "http://a: 1",
        "http://[::1",
        "http://u@a",
        "http://a/\r\nX: y",
        "http://a\n",
        "http://a:-1",
    };
    actor_http_trace_url_t url;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        ck_assert_msg(actor_http_trace_url(good[i].text, &url), "%s", good[i].text);
        ck_assert_str_eq(url.host, good[i].host);
        ck_assert_str_eq(url.port, good[i].port);
        ck_assert_str_eq(url.path, good[i].path);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ck_assert_msg(!actor_http_trace_url(wrong[i], &url), "%s", wrong[i]);
    }
}
END_TEST

/* A queue that is full costs its caller nothing but the trace. */
START_TEST(a_full_queue_drops_and_counts)
{
    const actor_http_trace_options_t options = {.endpoint = "http://127.0.0.1:9",
                                                .service = "test",
                                                .model_name = "m",
                                                .interval_ms = 600000};
    actor_http_trace_t *trace = NULL;
    ck_assert_int_eq(actor_http_trace_new(&options, &trace), STATUS_OK);
    actor_http_trace_request_t request = {.route = "/v1/completions", .status = 200};
    actor_http_trace_push(trace, &request); /* not sampled */
    enum { EXTRA = 2000 };
    for (uint32_t i = 0; i < ACTOR_HTTP_TRACE_QUEUE_LEN_MAX + EXTRA; i++) {
        actor_http_trace_begin(trace, &request.context);
        ck_assert(request.context.is_sampled);
        actor_http_trace_push(trace, &request);
    }
    actor_http_trace_counts_t counts = actor_http_trace_counts(trace);
    ck_assert_uint_eq(counts.sent_count, 0);
    /* The sender may have taken some meanwhile, which fail. */
    ck_assert_uint_gt(counts.dropped_count + counts.failed_count, 0);
    ck_assert_uint_le(counts.dropped_count, EXTRA);
    actor_http_trace_destroy(&trace);
    ck_assert_ptr_null(trace);
    actor_http_trace_push(NULL, &request);
    actor_http_trace_begin(NULL, &request.context);
    ck_assert(!request.context.is_sampled);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.http_trace");
    TCase *test = tcase_create("trace");
    tcase_add_test(test, a_traceparent_is_read_as_the_standard_says);
    tcase_add_test(test, anything_else_is_none);
    tcase_add_test(test, an_endpoint_is_an_http_url);
    tcase_add_test(test, a_full_queue_drops_and_counts);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
