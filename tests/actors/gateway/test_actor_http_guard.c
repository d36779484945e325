/* test_actor_http_guard.c - which heads and chunks pass.  The same list runs against a live
 * gateway in test_actor_http_probes.c. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_http_guard.h"

static int
judge(const char *bytes, size_t size_bytes, actor_http_head_t *head)
{
    size_t scanned = 0;
    const char *reason = "";
    long end = actor_http_guard_find_end(bytes, size_bytes, &scanned);
    if (end < 0) {
        return 400;
    }
    ck_assert_int_eq(end, (long)size_bytes);
    return actor_http_guard_head(bytes, size_bytes, head, &reason);
}

#define HEAD(text) text, sizeof(text) - 1

START_TEST(heads_are_judged_strictly)
{
    static const struct {
        const char *bytes;
        size_t size_bytes;
        int status;
    } cases[] = {
        {HEAD("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), 0},
        {HEAD("GET / HTTP/1.0\r\n\r\n"), 0},
        {HEAD("GET / HTTP/1.1\r\n\r\n"), 400},
        {HEAD("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), 400},
        {HEAD("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n"), 400},
        {HEAD("GET / HTTP/1.1\nHost: a\r\n\r\n"), 400},
        {HEAD("GET / HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n"), 400},
        {HEAD("GET / HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n"), 400},
        {HEAD("GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n"), 400},
        {HEAD("GET / HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n"), 400},
        {HEAD("GET / HTTP/1.1\r\nHost : a\r\n\r\n"), 400},
        {HEAD("GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n"), 400},
        {HEAD("GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n"), 400},
        {HEAD("GET  / HTTP/1.1\r\nHost: a\r\n\r\n"), 400},
        {HEAD("GET / HTTP/1.1 \r\nHost: a\r\n\r\n"), 400},
        {HEAD("GET / HTTP/2.0\r\nHost: a\r\n\r\n"), 505},
        {HEAD("GET / http/1.1\r\nHost: a\r\n\r\n"), 400},
        {HEAD("GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n"), 400},
        {HEAD("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"), 400},
        {HEAD("GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n"), 400},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n"), 0},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n"), 400},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2, 2\r\n\r\n"), 400},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +2\r\n\r\n"), 400},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -2\r\n\r\n"), 400},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x2\r\n\r\n"), 400},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n"), 400},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n"), 400},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"), 0},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n"), 0},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"), 400},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n"), 400},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n"), 400},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n"), 400},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
              "Transfer-Encoding: chunked\r\n\r\n"),
         400},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
              "Content-Length: 2\r\n\r\n"),
         400},
        {HEAD("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\n\r\n"), 415},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: identity\r\n\r\n"), 0},
        {HEAD("POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n"), 417},
        {HEAD("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n\r\n"), 0},
    };
    actor_http_head_t head;
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++) {
        int status = judge(cases[at].bytes, cases[at].size_bytes, &head);
        ck_assert_msg(status == cases[at].status, "case %zu: %d, expected %d: %s", at, status,
                      cases[at].status, cases[at].bytes);
    }
}
END_TEST

START_TEST(a_head_is_read)
{
    actor_http_head_t head;
    ck_assert_int_eq(
        judge(HEAD("POST /v1/x?y=1 HTTP/1.1\r\nhost: a\r\nCONNECTION: foo , close\r\n"
                   "content-type: application/json ; charset=utf-8\r\nx-request-id: ab-1._Z\r\n"
                   "expect: 100-Continue\r\ncontent-length:  17  \r\n\r\n"),
              &head),
        0);
    ck_assert_uint_eq(head.target_size_bytes, 5);
    ck_assert_uint_eq(head.content_length, 17);
    ck_assert(!head.keep_alive && head.json_body && head.expect_continue && !head.chunked);
    ck_assert_uint_eq(head.request_id_size_bytes, 7);
    ck_assert_int_eq(judge(HEAD("POST / HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n"
                                "X-Request-Id: a b\r\n\r\n"),
                           &head),
                     0);
    ck_assert(!head.json_body && head.request_id == NULL && head.keep_alive);
}
END_TEST

START_TEST(fields_are_counted)
{
    char bytes[8192];
    size_t size = (size_t)snprintf(bytes, sizeof bytes, "GET / HTTP/1.1\r\nHost: a\r\n");
    for (int at = 1; at < ACTOR_HTTP_FIELD_COUNT_MAX; at++) {
        size += (size_t)snprintf(bytes + size, sizeof bytes - size, "X-%d: y\r\n", at);
    }
    actor_http_head_t head;
    memcpy(bytes + size, "\r\n", 2);
    ck_assert_int_eq(judge(bytes, size + 2, &head), 0);
    size += (size_t)snprintf(bytes + size, sizeof bytes - size, "X-more: y\r\n\r\n");
    ck_assert_int_eq(judge(bytes, size, &head), 431);
}
END_TEST

START_TEST(chunks_are_judged_strictly)
{
    static const struct {
        const char *bytes;
        int result; /* 1: whole, 0: not yet, -1: refused */
    } cases[] = {
        {"2\r\nab\r\n0\r\n\r\n", 1},
        {"2\r\nab\r\n", 0},
        {"A\r\n0123456789\r\n0\r\n\r\n", 1},
        {"00000002\r\nab\r\n0\r\n\r\n", 1},
        {"000000002\r\nab\r\n0\r\n\r\n", -1},
        {"2;ext=1\r\nab\r\n0\r\n\r\n", -1},
        {"2 \r\nab\r\n0\r\n\r\n", -1},
        {" 2\r\nab\r\n0\r\n\r\n", -1},
        {"0x2\r\nab\r\n0\r\n\r\n", -1},
        {"-2\r\nab\r\n0\r\n\r\n", -1},
        {"\r\nab\r\n0\r\n\r\n", -1},
        {"2\nab\r\n0\r\n\r\n", -1},
        {"2\r\nab\n0\r\n\r\n", -1},
        {"2\r\nabc\r\n0\r\n\r\n", -1},
        {"2\r\nab\r\n0\r\nTrailer: x\r\n\r\n", -1},
        {"0\r\n\r\n", 1},
    };
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++) {
        /* In one piece, and byte by byte: the judgement is the same. */
        for (int piece = 0; piece < 2; piece++) {
            actor_http_chunks_t chunks = {0};
            size_t size = strlen(cases[at].bytes);
            size_t step = piece == 0 ? size : 1;
            bool done = false;
            long used = 0;
            for (size_t from = 0; from < size && used >= 0 && !done; from += step) {
                used = actor_http_guard_chunks(&chunks, cases[at].bytes + from, step, &done);
            }
            int result = used < 0 ? -1 : done ? 1 : 0;
            ck_assert_msg(result == cases[at].result, "case %zu: %d, expected %d: %s", at, result,
                          cases[at].result, cases[at].bytes);
        }
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.http_guard");
    TCase *tcase = tcase_create("guard");
    tcase_add_test(tcase, heads_are_judged_strictly);
    tcase_add_test(tcase, a_head_is_read);
    tcase_add_test(tcase, fields_are_counted);
    tcase_add_test(tcase, chunks_are_judged_strictly);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
