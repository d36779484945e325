/* test_actor_http_probes.c - the permanent list of hostile requests, against a live gateway: each
 * is refused and closed, nothing that is smuggled behind it runs, and the next client is served. */
#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gateway_fixture.h"
#include "test_cases.h"

#define BODY "{\"prompt\":\"a\"}" /* 14 bytes */
#define SMUGGLED "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n\r\n" BODY
#define POST "POST /v1/completions HTTP/1.1\r\n"
#define BYTES(text) text, sizeof(text) - 1

static const struct {
    const char *what;
    const char *bytes;
    size_t size_bytes;
    int status;
} probes[] = {
    {"CL and chunked",
     BYTES(POST
           "Host: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SMUGGLED),
     400},
    {"chunked and CL",
     BYTES(POST
           "Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" SMUGGLED),
     400},
    {"two Content-Length",
     BYTES(POST "Host: a\r\nContent-Length: 14\r\nContent-Length: 15\r\n\r\n" BODY SMUGGLED), 400},
    {"two equal Content-Length",
     BYTES(POST "Host: a\r\nContent-Length: 14\r\nContent-Length: 14\r\n\r\n" BODY SMUGGLED), 400},
    {"a list of lengths", BYTES(POST "Host: a\r\nContent-Length: 14, 14\r\n\r\n" BODY), 400},
    {"space before the colon",
     BYTES(POST "Host: a\r\nTransfer-Encoding : chunked\r\nContent-Length: 14\r\n\r\n" BODY), 400},
    {"plus in the length", BYTES(POST "Host: a\r\nContent-Length: +14\r\n\r\n" BODY), 400},
    {"minus in the length", BYTES(POST "Host: a\r\nContent-Length: -1\r\n\r\n" BODY), 400},
    {"a length beyond 64 bits",
     BYTES(POST "Host: a\r\nContent-Length: 18446744073709551616\r\n\r\n" BODY), 400},
    {"gzip, chunked",
     BYTES(POST "Host: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" SMUGGLED), 400},
    {"chunked twice",
     BYTES(POST "Host: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"
                "0\r\n\r\n"),
     400},
    {"another coding", BYTES(POST "Host: a\r\nTransfer-Encoding: identity\r\n\r\n" BODY), 400},
    {"chunked in HTTP/1.0",
     BYTES("POST /v1/completions HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
           "0\r\n\r\n"),
     400},
    {"NUL in a header", BYTES("GET /health HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n"), 400},
    {"CR in a header", BYTES("GET /health HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n"), 400},
    {"bare LF in the request line", BYTES("GET /health HTTP/1.1\nHost: a\r\n\r\n"), 400},
    {"bare LF everywhere", BYTES("GET /health HTTP/1.1\nHost: a\n\n"), 400},
    {"folded header", BYTES("GET /health HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n"), 400},
    {"no Host", BYTES("GET /health HTTP/1.1\r\n\r\n"), 400},
    {"two Hosts", BYTES("GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400},
    {"no header name", BYTES("GET /health HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n"), 400},
    {"header without colon", BYTES("GET /health HTTP/1.1\r\nHost: a\r\nfoo\r\n\r\n"), 400},
    {"HTTP/2 preface", BYTES("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505},
    {"HTTP/0.9", BYTES("GET /health\r\n\r\n"), 400},
    {"garbage", BYTES("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), 400},
    {"absolute target", BYTES("GET http://a/health HTTP/1.1\r\nHost: a\r\n\r\n"), 400},
    {"unknown method", BYTES("BREW /health HTTP/1.1\r\nHost: a\r\n\r\n"), 400},
    {"a chunk size with a sign",
     BYTES(POST "Host: a\r\nTransfer-Encoding: chunked\r\n\r\n+E\r\n" BODY "\r\n0\r\n\r\n"), 400},
    {"a chunk extension",
     BYTES(POST "Host: a\r\nTransfer-Encoding: chunked\r\n\r\nE;a=b\r\n" BODY "\r\n0\r\n\r\n"),
     400},
    {"bare LF in chunks",
     BYTES(POST "Host: a\r\nTransfer-Encoding: chunked\r\n\r\nE\n" BODY "\n0\n\n"), 400},
    {"a trailer", BYTES(POST "Host: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n"),
     400},
    {"a chunk longer than said",
     BYTES(POST "Host: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n" BODY "\r\n0\r\n\r\n"), 400},
    {"gzip body",
     BYTES(POST "Host: a\r\nContent-Encoding: gzip\r\nContent-Length: 14\r\n\r\n" BODY), 415},
    {"a form",
     BYTES(POST "Host: a\r\nContent-Type: application/x-www-form-urlencoded\r\n"
                "Content-Length: 14\r\n\r\n" BODY),
     415},
    {"no length", BYTES(POST "Host: a\r\n\r\n"), 411},
    {"too large by its length", BYTES(POST "Host: a\r\nContent-Length: 100000000\r\n\r\n"), 413},
    {"a body for GET", BYTES("GET /health HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabcde"),
     413},
    {"wrong method with a body",
     BYTES("PUT /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n\r\n" BODY), 405},
    {"unknown path with a body",
     BYTES("POST /v1/other HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n\r\n" BODY), 404},
    {"unknown expectation",
     BYTES(POST "Host: a\r\nExpect: magic\r\nContent-Length: 14\r\n\r\n" BODY), 417},
};

START_TEST(hostile_requests_are_refused_and_closed)
{
    fixture_start();
    for (size_t at = 0; at < sizeof probes / sizeof probes[0]; at++) {
        /* In one piece, and cut into small ones. */
        for (int pieces = 0; pieces < 2; pieces++) {
            http_client_t client;
            http_reply_t reply;
            http_client_open(&client, fixture.port);
            size_t step = pieces == 0 ? probes[at].size_bytes : 7;
            for (size_t from = 0; from < probes[at].size_bytes; from += step) {
                size_t rest = probes[at].size_bytes - from;
                http_client_send(&client, probes[at].bytes + from, rest < step ? rest : step);
            }
            http_client_read(&client, &reply, false);
            ck_assert_msg(reply.status == probes[at].status, "%s: %d, expected %d\n%s",
                          probes[at].what, reply.status, probes[at].status, reply.head);
            ck_assert_ptr_nonnull(http_reply_header(&reply, "x-request-id"));
            ck_assert_str_eq(http_reply_header(&reply, "Connection"), "close");
            ck_assert_ptr_nonnull(strstr(reply.body, "{\"error\":{\"message\":\""));
            if (reply.status == 405) {
                ck_assert_str_eq(http_reply_header(&reply, "Allow"), "POST, OPTIONS");
            }
            http_reply_free(&reply);
            ck_assert_msg(http_client_wait_close(&client, 5000), "%s: not closed", probes[at].what);
            http_client_close(&client);
        }
    }
    /* Nothing of it reached the scheduler; a good client does. */
    ck_assert_uint_eq(fake_scheduler_seen(fixture.scheduler).submit_count, 0);
    http_reply_t reply;
    fixture_post("/v1/completions", BODY, &reply);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
}
END_TEST

START_TEST(large_heads_and_bodies_are_refused_while_they_come)
{
    fixture.options.body_size_bytes_max = 100 * 1000;
    fixture_start();
    static char filler[200 * 1000];
    memset(filler, 'x', sizeof filler);
    http_client_t client;
    http_reply_t reply;
    http_client_open(&client, fixture.port);
    http_client_puts(&client, "GET /health HTTP/1.1\r\nHost: a\r\nX: ");
    http_client_send(&client, filler, sizeof filler);
    http_client_read(&client, &reply, false);
    ck_assert_int_eq(reply.status, 431);
    http_reply_free(&reply);
    http_client_close(&client);

    http_client_open(&client, fixture.port);
    http_client_puts(&client, "GET /health HTTP/1.1\r\nHost: a\r\n");
    for (int at = 0; at < 1000; at++) {
        http_client_puts(&client, "X: y\r\n");
    }
    http_client_puts(&client, "\r\n");
    http_client_read(&client, &reply, false);
    ck_assert_int_eq(reply.status, 431);
    http_reply_free(&reply);
    http_client_close(&client);

    http_client_open(&client, fixture.port);
    http_client_puts(&client, POST "Host: a\r\nTransfer-Encoding: chunked\r\n\r\n30D40\r\n");
    http_client_send(&client, filler, sizeof filler);
    http_client_read(&client, &reply, false);
    ck_assert_int_eq(reply.status, 413);
    http_reply_free(&reply);
    http_client_close(&client);
}
END_TEST

/* Slow heads and bodies have an absolute deadline: dripping does not renew it. */
START_TEST(a_drip_does_not_hold_a_connection)
{
    fixture.options.head_timeout_ms = 300;
    fixture.options.body_timeout_ms = 300;
    fixture_start();
    static const char *const openings[] = {"GET /health HTTP/1.1\r\nHost: a\r\n",
                                           POST "Host: a\r\nContent-Length: 1000\r\n\r\n"};
    for (int at = 0; at < 2; at++) {
        http_client_t client;
        http_reply_t reply;
        http_client_open(&client, fixture.port);
        uint64_t begin = test_now_ns();
        http_client_puts(&client, openings[at]);
        struct pollfd item = {.fd = client.fd, .events = POLLIN};
        while (poll(&item, 1, 20) == 0) {
            http_client_puts(&client, at == 0 ? "X: y\r\n" : "x");
            ck_assert_uint_lt(test_now_ns() - begin, 5000000000u);
        }
        http_client_read(&client, &reply, false);
        ck_assert_int_eq(reply.status, 408);
        ck_assert_uint_ge(test_now_ns() - begin, 250000000u);
        http_reply_free(&reply);
        ck_assert(http_client_wait_close(&client, 5000));
        http_client_close(&client);
    }
}
END_TEST

START_TEST(an_idle_connection_is_closed_without_a_word)
{
    fixture.options.idle_timeout_ms = 200;
    fixture.options.head_timeout_ms = 200;
    fixture_start();
    http_client_t client;
    http_reply_t reply;
    http_client_open(&client, fixture.port);
    ck_assert(http_client_wait_close(&client, 5000));
    http_client_close(&client);
    http_client_open(&client, fixture.port);
    http_client_puts(&client, "GET /health HTTP/1.1\r\nHost: a\r\n\r\n");
    http_client_read(&client, &reply, false);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
    http_client_read(&client, &reply, false);
    ck_assert_int_eq(reply.status, 0);
    ck_assert(client.closed);
    http_reply_free(&reply);
    http_client_close(&client);
}
END_TEST

START_TEST(connections_have_a_limit)
{
    fixture.options.connection_count_max = 8;
    fixture_start();
    http_client_t clients[8];
    http_reply_t reply;
    uint32_t open_count = 0;
    int refused = 0;
    /* The fixture's own last connection may still be on its way out. */
    for (; open_count < 8 && refused == 0; open_count++) {
        http_client_open(&clients[open_count], fixture.port);
        http_client_puts(&clients[open_count], "GET /health HTTP/1.1\r\nHost: a\r\n\r\n");
        http_client_read(&clients[open_count], &reply, false);
        refused = reply.status == 503;
        http_reply_free(&reply);
    }
    ck_assert_uint_ge(open_count, 7);
    http_client_t more;
    http_client_open(&more, fixture.port);
    http_client_read(&more, &reply, false);
    ck_assert_int_eq(reply.status, 503);
    ck_assert_ptr_nonnull(http_reply_header(&reply, "Retry-After"));
    http_reply_free(&reply);
    http_client_close(&more);
    for (uint32_t at = 0; at < open_count; at++) {
        http_client_close(&clients[at]);
    }
    uint64_t until = test_now_ns() + 5000000000u;
    int status = 0;
    while (status != 200 && test_now_ns() < until) {
        fixture_get("/health", &reply);
        status = reply.status;
        http_reply_free(&reply);
    }
    ck_assert_int_eq(status, 200);
}
END_TEST

/* What a client sends ahead is answered in order, each request once. */
START_TEST(pipelined_requests_are_answered_in_order)
{
    fixture_start();
    http_client_t client;
    http_reply_t reply;
    http_client_open(&client, fixture.port);
    static const char requests[] =
        "GET /health HTTP/1.1\r\nHost: a\r\nx-request-id: one\r\n\r\n"
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nx-request-id: two\r\nContent-Length: 14\r\n"
        "\r\n" BODY "POST /v1/completions HTTP/1.1\r\nHost: a\r\nx-request-id: three\r\n"
        "Transfer-Encoding: chunked\r\n\r\n4\r\n{\"pr\r\na\r\nompt\":\"a\"}\r\n0\r\n\r\n"
        "\r\nGET /nothing HTTP/1.1\r\nHost: a\r\nx-request-id: four\r\n\r\n"
        "GET /version HTTP/1.1\r\nHost: a\r\nx-request-id: five\r\nConnection: close\r\n\r\n";
    http_client_send(&client, requests, sizeof requests - 1);
    static const struct {
        const char *id;
        int status;
    } answers[] = {{"one", 200}, {"two", 200}, {"three", 200}, {"four", 404}, {"five", 200}};
    for (size_t at = 0; at < 5; at++) {
        http_client_read(&client, &reply, false);
        ck_assert_str_eq(http_reply_header(&reply, "x-request-id"), answers[at].id);
        ck_assert_int_eq(reply.status, answers[at].status);
        ck_assert(reply.whole);
        http_reply_free(&reply);
    }
    ck_assert(http_client_wait_close(&client, 5000));
    http_client_close(&client);
    ck_assert_uint_eq(fake_scheduler_seen(fixture.scheduler).submit_count, 2);
}
END_TEST

START_TEST(head_and_options_are_sane)
{
    fixture_start();
    http_client_t client;
    http_reply_t reply;
    http_client_open(&client, fixture.port);
    http_client_puts(&client, "HEAD /health HTTP/1.1\r\nHost: a\r\n\r\n");
    http_client_read(&client, &reply, true);
    ck_assert_int_eq(reply.status, 200);
    ck_assert_str_eq(http_reply_header(&reply, "Content-Length"), "15");
    http_reply_free(&reply);
    http_client_puts(&client, "OPTIONS /v1/completions HTTP/1.1\r\nHost: a\r\n\r\n");
    http_client_read(&client, &reply, false);
    ck_assert_int_eq(reply.status, 204);
    ck_assert_str_eq(http_reply_header(&reply, "Allow"), "POST, OPTIONS");
    http_reply_free(&reply);
    http_client_puts(&client, "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
    http_client_read(&client, &reply, false);
    ck_assert_int_eq(reply.status, 204);
    http_reply_free(&reply);
    http_client_puts(&client, "HEAD /v1/completions HTTP/1.1\r\nHost: a\r\n\r\n");
    http_client_read(&client, &reply, true);
    ck_assert_int_eq(reply.status, 405);
    http_reply_free(&reply);
    http_client_puts(&client, "DELETE /health HTTP/1.1\r\nHost: a\r\n\r\n");
    http_client_read(&client, &reply, false);
    ck_assert_int_eq(reply.status, 405);
    ck_assert_str_eq(http_reply_header(&reply, "Allow"), "GET, HEAD, OPTIONS");
    http_reply_free(&reply);
    /* Clients that would like HTTP/2 get HTTP/1.1. */
    http_client_puts(&client, "GET /health HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, "
                              "HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
                              "\r\nPOST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: "
                              "upgrade\r\nUpgrade: h2c\r\nContent-Length: 14\r\n\r\n" BODY);
    for (int at = 0; at < 2; at++) {
        http_client_read(&client, &reply, false);
        ck_assert_int_eq(reply.status, 200);
        http_reply_free(&reply);
    }
    /* Expect: 100-continue is answered before the body is sent. */
    http_client_puts(&client, POST "Host: a\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n");
    http_client_read(&client, &reply, false);
    ck_assert_int_eq(reply.status, 100);
    http_reply_free(&reply);
    http_client_puts(&client, BODY);
    http_client_read(&client, &reply, false);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
    http_client_close(&client);
}
END_TEST

/* Client bytes never come back in a header, nor raw in the log. */
START_TEST(ids_are_checked_before_they_are_echoed)
{
    fixture_start();
    static const struct {
        const char *id;
        bool kept;
    } ids[] = {
        {"abc-DEF_1.2", true},
        {"a b", false},
        {"a\tb", false},
        {"\xc3\xa9", false},
        {"<script>", false},
        {"0123456789012345678901234567890123456789012345678901234567890123", true},
        {"01234567890123456789012345678901234567890123456789012345678901234", false},
    };
    for (size_t at = 0; at < sizeof ids / sizeof ids[0]; at++) {
        http_client_t client;
        http_reply_t reply;
        char head[512];
        http_client_open(&client, fixture.port);
        (void)snprintf(head, sizeof head,
                       "GET /health HTTP/1.1\r\nHost: a\r\nX-Request-Id: %s\r\n\r\n", ids[at].id);
        http_client_puts(&client, head);
        http_client_read(&client, &reply, false);
        const char *echoed = http_reply_header(&reply, "x-request-id");
        ck_assert_ptr_nonnull(echoed);
        ck_assert_int_eq(strcmp(echoed, ids[at].id) == 0, ids[at].kept);
        ck_assert_uint_gt(strlen(echoed), 0);
        http_reply_free(&reply);
        http_client_close(&client);
    }
    http_reply_t reply;
    fixture_post("/v1/completions", "{\"prompt\":\"a\",\"model\":\"x\\r\\nSet-Cookie: y\"}",
                 &reply);
    ck_assert_int_eq(reply.status, 404);
    ck_assert_ptr_null(strstr(reply.head, "Set-Cookie"));
    ck_assert_ptr_null(strstr(fixture_log(), "Set-Cookie"));
    http_reply_free(&reply);
}
END_TEST

START_TEST(bodies_that_are_wrong_are_400_and_the_connection_goes_on)
{
    fixture_start();
    http_client_t client;
    http_client_open(&client, fixture.port);
    static const struct {
        const char *body;
        const char *text;
    } cases[] = {
        {"{\"prompt\":\"a\",\"temperature\":1e400}", "\"param\":\"temperature\""},
        {"{\"prompt\":\"a\",\"n\":9223372036854775808}", "\"param\":\"n\""},
        {"{\"prompt\":\"a\",\"temperature\":3}", "between 0 and 2, not 3"},
        {"{\"prompt\":\"a\",\"top_k\":true}", "between -1 and 16777216, not true"},
        {"{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_object\"}}",
         "\"param\":\"response_format\""},
        {"{\"prompt\":\"a\"", "\"code\":\"invalid_json\""},
        {"", "\"code\":\"invalid_json\""},
        {"{}", "\"param\":\"prompt\""},
    };
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++) {
        http_reply_t reply;
        http_client_post(&client, "/v1/completions", cases[at].body);
        http_client_read(&client, &reply, false);
        ck_assert_int_eq(reply.status, 400);
        ck_assert_msg(strstr(reply.body, cases[at].text) != NULL, "no %s in %s", cases[at].text,
                      reply.body);
        ck_assert_ptr_nonnull(strstr(reply.body, "\"type\":\"invalid_request_error\""));
        http_reply_free(&reply);
    }
    http_reply_t reply;
    http_client_post(&client, "/v1/completions", BODY);
    http_client_read(&client, &reply, false);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
    http_client_close(&client);
}
END_TEST

TCase *
probe_cases(void)
{
    TCase *tcase = tcase_create("probes");
    tcase_add_checked_fixture(tcase, fixture_setup, fixture_teardown);
    tcase_set_timeout(tcase, 40);
    tcase_add_test(tcase, hostile_requests_are_refused_and_closed);
    tcase_add_test(tcase, large_heads_and_bodies_are_refused_while_they_come);
    tcase_add_test(tcase, a_drip_does_not_hold_a_connection);
    tcase_add_test(tcase, an_idle_connection_is_closed_without_a_word);
    tcase_add_test(tcase, connections_have_a_limit);
    tcase_add_test(tcase, pipelined_requests_are_answered_in_order);
    tcase_add_test(tcase, head_and_options_are_sane);
    tcase_add_test(tcase, ids_are_checked_before_they_are_echoed);
    tcase_add_test(tcase, bodies_that_are_wrong_are_400_and_the_connection_goes_on);
    return tcase;
}
