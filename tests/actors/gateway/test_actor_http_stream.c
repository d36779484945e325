/* test_actor_http_stream.c - streams: their exact shape, and every way in which they end early. */
#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_text.h"
#include "gateway_fixture.h"
#include "test_cases.h"

/* Replaces what differs from run to run, so that a stream can be compared with a golden text. */
static void
normalise(http_reply_t *reply)
{
    static const struct {
        const char *key;
        char until;
        const char *value;
    } fields[] = {{"\"id\":\"", '"', "ID"},
                  {"\"created\":", ',', "0"},
                  {"\"system_fingerprint\":\"", '"', "FP"}};
    for (size_t field = 0; field < 3; field++) {
        char *at = reply->body;
        while ((at = strstr(at, fields[field].key)) != NULL) {
            at += strlen(fields[field].key);
            char *end = strchr(at, fields[field].until);
            ck_assert_ptr_nonnull(end);
            size_t value = strlen(fields[field].value);
            memcpy(at, fields[field].value, value);
            memmove(at + value, end, strlen(end) + 1);
        }
    }
    reply->body_size_bytes = strlen(reply->body);
}

#define CHAT_HEAD                                                                                  \
    "data: {\"id\":\"ID\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"fake\","  \
    "\"system_fingerprint\":\"FP\",\"choices\":["
#define CHAT_CHOICE(index, delta, reason)                                                          \
    CHAT_HEAD "{\"index\":" index ",\"delta\":" delta                                              \
              ",\"logprobs\":null,\"finish_reason\":" reason "}]"

static const char golden_chat[] =
    CHAT_CHOICE("0", "{\"role\":\"assistant\",\"content\":\"\"}", "null") "}\n\n" CHAT_CHOICE(
        "0", "{\"content\":\"Hello\"}",
        "null") "}\n\n" CHAT_CHOICE("0", "{\"content\":\" world\"}",
                                    "null") "}\n\n" CHAT_CHOICE("0", "{\"content\":\"!\"}",
                                                                "null") "}\n\n" CHAT_CHOICE("0",
                                                                                            "{}",
                                                                                            "\"stop"
                                                                                            "\"") "}\n\n"
                                                                                                  "data: [DONE]\n\n";

static const char golden_chat_usage[] = CHAT_CHOICE(
    "0", "{\"role\":\"assistant\",\"content\":\"\"}",
    "null") ",\"usage\":null}\n\n" CHAT_CHOICE("0", "{\"content\":\"Hello\"}",
                                               "null") ",\"usage\":null}"
                                                       "\n\n" CHAT_CHOICE("0", "{}",
                                                                          "\"length"
                                                                          "\"") ","
                                                                                "\""
                                                                                "us"
                                                                                "ag"
                                                                                "e"
                                                                                "\""
                                                                                ":n"
                                                                                "ul"
                                                                                "l}"
                                                                                "\n"
                                                                                "\n" CHAT_HEAD "],"
                                                                                "\""
                                                                                "us"
                                                                                "ag"
                                                                                "e"
                                                                                "\""
                                                                                ":{"
                                                                                "\""
                                                                                "pr"
                                                                                "om"
                                                                                "pt"
                                                                                "_t"
                                                                                "ok"
                                                                                "en"
                                                                                "s"
                                                                                "\""
                                                                                ":1"
                                                                                "7,"
                                                                                "\""
                                                                                "co"
                                                                                "mp"
                                                                                "le"
                                                                                "ti"
                                                                                "on"
                                                                                "_t"
                                                                                "ok"
                                                                                "en"
                                                                                "s"
                                                                                "\""
                                                                                ":1"
                                                                                ","
                                                                                "\""
                                                                                "to"
                                                                                "ta"
                                                                                "l_"
                                                                                "to"
                                                                                "ke"
                                                                                "ns"
                                                                                "\""
                                                                                ":1"
                                                                                "8,"
                                                                                "\""
                                                                                "pr"
                                                                                "om"
                                                                                "pt"
                                                                                "_t"
                                                                                "ok"
                                                                                "en"
                                                                                "s_"
                                                                                "de"
                                                                                "ta"
                                                                                "il"
                                                                                "s"
                                                                                "\""
                                                                                ":{"
                                                                                "\""
                                                                                "ca"
                                                                                "ch"
                                                                                "ed"
                                                                                "_t"
                                                                                "ok"
                                                                                "en"
                                                                                "s"
                                                                                "\""
                                                                                ":8"
                                                                                "}}"
                                                                                "}"
                                                                                "\n"
                                                                                "\n"
                                                                                "da"
                                                                                "ta"
                                                                                ": "
                                                                                "[D"
                                                                                "ON"
                                                                                "E]"
                                                                                "\n"
                                                                                "\n";

#define TEXT_CHOICE(text, reason)                                                                  \
    "data: {\"id\":\"ID\",\"object\":\"text_completion\",\"created\":0,\"model\":\"fake\","        \
    "\"system_fingerprint\":\"FP\",\"choices\":[{\"index\":0,\"text\":" text                       \
    ",\"logprobs\":null,\"finish_reason\":" reason "}]}\n\n"

static const char golden_text[] = TEXT_CHOICE("\"Hello\"", "null") TEXT_CHOICE("\" world\"", "null")
    TEXT_CHOICE("\"!\"", "null") TEXT_CHOICE("\"\"", "\"stop\"") "data: [DONE]\n\n";

static const char golden_echo[] = TEXT_CHOICE("\"ab\"", "null") TEXT_CHOICE("\"Hello\"", "null")
    TEXT_CHOICE("\"\"", "\"length\"") "data: [DONE]\n\n";

START_TEST(streams_have_exactly_this_shape)
{
    static const struct {
        const char *path;
        const char *json;
        const char *golden;
    } cases[] = {
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}", golden_chat},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,\"max_tokens\":1,"
         "\"stream_options\":{\"include_usage\":true}}",
         golden_chat_usage},
        {"/v1/completions", "{\"prompt\":\"ab\",\"stream\":true}", golden_text},
        {"/v1/completions", "{\"prompt\":\"ab\",\"stream\":true,\"echo\":true,\"max_tokens\":1}",
         golden_echo},
    };
    /* Far enough apart that no two steps are written together. */
    fixture.script.step_ns = 20000000;
    fixture_start();
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++) {
        http_reply_t reply;
        fixture_post(cases[at].path, cases[at].json, &reply);
        ck_assert_int_eq(reply.status, 200);
        ck_assert(reply.whole && reply.chunked);
        ck_assert_str_eq(http_reply_header(&reply, "Content-Type"),
                         "text/event-stream; charset=utf-8");
        ck_assert_str_eq(http_reply_header(&reply, "Cache-Control"), "no-cache");
        ck_assert_str_eq(http_reply_header(&reply, "X-Accel-Buffering"), "no");
        normalise(&reply);
        ck_assert_str_eq(reply.body, cases[at].golden);
        http_reply_free(&reply);
    }
}
END_TEST

/* Puts the texts of all events of one choice together. */
static void
joined(const http_reply_t *reply, char *out, size_t size_bytes)
{
    const char *at = reply->body;
    size_t used = 0;
    out[0] = '\0';
    while ((at = strstr(at, "\"text\":\"")) != NULL) {
        at += 8;
        while (*at != '"') {
            ck_assert_uint_lt(used + 2, size_bytes);
            at += *at == '\\';
            out[used++] = *at++;
        }
        out[used] = '\0';
    }
}

START_TEST(a_stop_string_across_tokens_ends_a_stream)
{
    static const int32_t tokens[] = {FAKE_HELLO, FAKE_ST, FAKE_OP, 'x', 'y', 'z'};
    fixture.script.tokens = tokens;
    fixture.script.token_count = 6;
    fixture.script.endless = true;
    fixture.script.step_ns = 1000000;
    fixture_start();
    http_reply_t reply;
    char text[256];
    fixture_post("/v1/completions",
                 "{\"prompt\":\"ab\",\"stream\":true,\"stop\":[\"STOP\"],\"max_tokens\":1000,"
                 "\"stream_options\":{\"include_usage\":true}}",
                 &reply);
    joined(&reply, text, sizeof text);
    ck_assert_str_eq(text, "Hello");
    ck_assert_ptr_nonnull(strstr(reply.body, "\"finish_reason\":\"stop\""));
    ck_assert_ptr_nonnull(strstr(reply.body, "\"completion_tokens\":3,"));
    http_reply_free(&reply);
    fake_seen_t seen = fake_scheduler_seen(fixture.scheduler);
    ck_assert_uint_eq(seen.finish_count, 1);
    ck_assert_uint_eq(seen.last_finish.token_index, 3);
    ck_assert_uint_eq(seen.last_finish.reason, PROTO_FINISH_STOP);
    /* The same without a stream, and with a stop string that is never completed. */
    fixture_post("/v1/completions", "{\"prompt\":\"ab\",\"stop\":\"STOP\",\"max_tokens\":1000}",
                 &reply);
    ck_assert_ptr_nonnull(strstr(reply.body, "\"text\":\"Hello\",\"logprobs\":null,"
                                             "\"finish_reason\":\"stop\""));
    http_reply_free(&reply);
    fixture_post("/v1/completions",
                 "{\"prompt\":\"ab\",\"stop\":\"STOQ\",\"max_tokens\":3,\"stream\":true}", &reply);
    joined(&reply, text, sizeof text);
    ck_assert_str_eq(text, "HelloSTOP");
    http_reply_free(&reply);
}
END_TEST

START_TEST(a_character_in_two_tokens_is_sent_whole)
{
    static const int32_t tokens[] = {'a', FAKE_EURO_HEAD, FAKE_EURO_TAIL, FAKE_BAD, FAKE_EURO_HEAD};
    fixture.script.tokens = tokens;
    fixture.script.token_count = 5;
    fixture.script.step_ns = 10000000;
    fixture_start();
    http_reply_t reply;
    char text[256];
    fixture_post("/v1/completions", "{\"prompt\":\"ab\",\"stream\":true}", &reply);
    ck_assert_ptr_nonnull(strstr(reply.body, "\"text\":\"\xe2\x82\xac\""));
    joined(&reply, text, sizeof text);
    ck_assert_str_eq(text, "a\xe2\x82\xac\xef\xbf\xbd\xef\xbf\xbd");
    http_reply_free(&reply);
}
END_TEST

/* All tokens of a step leave in one event: one write for each step and stream. */
START_TEST(a_step_is_one_event)
{
    fixture.script.per_step = 3;
    fixture_start();
    http_reply_t reply;
    fixture_post("/v1/completions", "{\"prompt\":\"ab\",\"stream\":true}", &reply);
    ck_assert_ptr_nonnull(strstr(reply.body, "\"text\":\"Hello world!\""));
    http_reply_free(&reply);
}
END_TEST

START_TEST(an_http10_client_gets_a_plain_stream)
{
    fixture_start();
    http_client_t client;
    http_reply_t reply;
    http_client_open(&client, fixture.port);
    http_client_puts(&client, "POST /v1/completions HTTP/1.0\r\nContent-Length: 30\r\n\r\n"
                              "{\"prompt\":\"ab\",\"stream\":true }");
    http_client_read(&client, &reply, false);
    ck_assert(!reply.chunked && client.closed);
    ck_assert_str_eq(http_reply_header(&reply, "Connection"), "close");
    ck_assert_ptr_nonnull(strstr(reply.body, "data: [DONE]\n\n"));
    http_reply_free(&reply);
    http_client_close(&client);
}
END_TEST

static bool
finish_seen(const fake_seen_t *seen)
{
    return seen->finish_count >= 1;
}

/* C5: a client that leaves is seen at once, and the request is cancelled. */
START_TEST(a_disconnect_cancels_within_100_ms)
{
    fixture.script.endless = true;
    fixture.script.step_ns = 5000000;
    fixture.script.hold_at = _i == 0 ? FAKE_NEVER : 2; /* running, or silent */
    fixture_start();
    http_client_t client;
    http_client_open(&client, fixture.port);
    http_client_post(&client, "/v1/completions",
                     "{\"prompt\":\"a\",\"max_tokens\":4000,\"stream\":true}");
    ck_assert(http_client_wait_for(&client, " world"));
    uint64_t left_ns = test_now_ns();
    http_client_close(&client);
    ck_assert(fixture_wait_seen(finish_seen));
    fake_seen_t seen = fake_scheduler_seen(fixture.scheduler);
    ck_assert_uint_eq(seen.last_finish.reason, PROTO_FINISH_CANCELLED);
    ck_assert_msg(seen.last_finish_ns - left_ns < 100000000u, "seen after %llu us",
                  (unsigned long long)(seen.last_finish_ns - left_ns) / 1000);
    http_reply_t reply;
    uint64_t until = test_now_ns() + 5000000000u;
    while (strstr(fixture_log(), "\"status\":499") == NULL && test_now_ns() < until) {
        (void)poll(NULL, 0, 1);
    }
    ck_assert_ptr_nonnull(strstr(fixture_log(), "\"status\":499"));
    bool counted = false; /* when the scheduler has answered */
    while (!counted && test_now_ns() < until) {
        fixture_get("/metrics", &reply);
        counted = strstr(reply.body, "finished_reason=\"abort\"} 1\n") != NULL;
        http_reply_free(&reply);
    }
    ck_assert(counted);
}
END_TEST

static bool
submit_seen(const fake_seen_t *seen)
{
    return seen->submit_count >= 2;
}

/* The same for an answer in one piece, of which nothing was sent; all its choices go. */
START_TEST(a_disconnect_cancels_what_was_not_answered)
{
    fixture.script.hold_at = 0;
    fixture_start();
    http_client_t client;
    http_client_open(&client, fixture.port);
    http_client_post(&client, "/v1/completions", "{\"prompt\":\"a\",\"n\":2}");
    ck_assert(fixture_wait_seen(submit_seen));
    http_client_reset(&client);
    ck_assert(fixture_wait_seen(finish_seen));
    uint64_t until = test_now_ns() + 5000000000u;
    while (fake_scheduler_seen(fixture.scheduler).finish_count < 2 && test_now_ns() < until) {
        (void)poll(NULL, 0, 1);
    }
    ck_assert_uint_eq(fake_scheduler_seen(fixture.scheduler).finish_count, 2);
}
END_TEST

/* R6: what a client does not read is bounded, and so is the patience. */
START_TEST(a_slow_reader_is_cut)
{
    static const int32_t tokens[] = {FAKE_HELLO};
    fixture.script.tokens = tokens;
    fixture.script.token_count = 1;
    fixture.script.per_step = 50;
    fixture.script.endless = true;
    fixture.options.backlog_size_bytes_max = 64 * 1024;
    fixture.options.socket_send_buffer_bytes = 8 * 1024;
    fixture_start();
    http_client_t slow[2];
    for (int at = 0; at < 2; at++) {
        http_client_open_slow(&slow[at], fixture.port);
        http_client_post(&slow[at], "/v1/completions",
                         "{\"prompt\":\"a\",\"max_tokens\":4000,\"n\":4,\"stream\":true,"
                         "\"logprobs\":5}");
    }
    uint64_t until = test_now_ns() + 10000000000u;
    while (strstr(fixture_log(), "http.slow_reader") == NULL && test_now_ns() < until) {
        (void)poll(NULL, 0, 5);
    }
    ck_assert_ptr_nonnull(strstr(fixture_log(), "http.slow_reader"));
    ck_assert(fixture_wait_seen(finish_seen));
    http_reply_t reply;
    fixture_get("/health", &reply); /* others are served */
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
    for (int at = 0; at < 2; at++) {
        http_client_close(&slow[at]);
    }
}
END_TEST

START_TEST(a_stalled_reader_is_cut)
{
    static const int32_t tokens[] = {FAKE_HELLO};
    fixture.script.tokens = tokens;
    fixture.script.token_count = 1;
    fixture.script.per_step = 50;
    fixture.script.endless = true;
    fixture.options.stall_timeout_ms = 300;
    fixture.options.backlog_size_bytes_max = 64 * 1024 * 1024;
    fixture.options.socket_send_buffer_bytes = 8 * 1024;
    fixture_start();
    http_client_t client;
    http_client_open_slow(&client, fixture.port);
    http_client_post(&client, "/v1/completions",
                     "{\"prompt\":\"a\",\"max_tokens\":4000,\"n\":4,\"stream\":true,"
                     "\"logprobs\":5}");
    ck_assert(fixture_wait_seen(submit_seen));
    uint64_t until = test_now_ns() + 10000000000u;
    bool cut = false;
    while (!cut && test_now_ns() < until) {
        http_reply_t reply;
        fixture_get("/metrics", &reply);
        cut =
            strstr(reply.body,
                   "onepath_http_clients_cut_total{model_name=\"fake\",engine=\"0\"} 1\n") != NULL;
        http_reply_free(&reply);
    }
    ck_assert(cut);
    http_client_close(&client);
}
END_TEST

/* A failure in the middle must not look like an end: when no other scheduler comes, one error
 * event, then the connection closes without [DONE] and without the last chunk. */
START_TEST(a_killed_scheduler_breaks_the_stream_visibly)
{
    fixture.options.resume_timeout_ms = 300;
    fixture.script.endless = true;
    fixture.script.step_ns = 5000000;
    fixture_start();
    http_client_t client;
    http_reply_t reply;
    http_client_open(&client, fixture.port);
    http_client_post(&client, "/v1/completions",
                     "{\"prompt\":\"a\",\"max_tokens\":4000,\"stream\":true}");
    ck_assert(http_client_wait_for(&client, " world"));
    fake_scheduler_kill(fixture.scheduler);
    http_client_read(&client, &reply, false);
    ck_assert(client.closed && !reply.whole);
    ck_assert_ptr_null(strstr(reply.body, "[DONE]"));
    ck_assert_ptr_null(strstr(reply.body, "\"finish_reason\":\""));
    const char *event = strstr(reply.body, "data: {\"error\":{\"message\":");
    ck_assert_ptr_nonnull(event);
    ck_assert_ptr_nonnull(strstr(event, "\"code\":\"worker_lost\""));
    ck_assert_ptr_eq(strstr(event, "\n\n") + 2, reply.body + reply.body_size_bytes);
    http_reply_free(&reply);
    http_client_close(&client);
    fixture_get("/health", &reply);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
    fixture_post("/v1/completions", "{\"prompt\":\"a\"}", &reply);
    ck_assert_int_eq(reply.status, 503);
    http_reply_free(&reply);
}
END_TEST

START_TEST(a_killed_scheduler_fails_an_answer_with_503)
{
    fixture.options.resume_timeout_ms = 300;
    fixture.script.hold_at = 1;
    fixture_start();
    http_client_t client;
    http_reply_t reply;
    http_client_open(&client, fixture.port);
    http_client_post(&client, "/v1/completions", "{\"prompt\":\"a\"}");
    uint64_t until = test_now_ns() + 5000000000u;
    bool running = false;
    while (!running && test_now_ns() < until) {
        fixture_get("/metrics", &reply);
        running = strstr(reply.body, "onepath_generation_tokens_total{model_name=\"fake\","
                                     "engine=\"0\"} 1\n") != NULL;
        http_reply_free(&reply);
    }
    ck_assert(running);
    fake_scheduler_kill(fixture.scheduler);
    http_client_read(&client, &reply, false);
    ck_assert_int_eq(reply.status, 503);
    ck_assert_ptr_nonnull(http_reply_header(&reply, "Retry-After"));
    ck_assert_ptr_nonnull(strstr(reply.body, "\"code\":\"worker_lost\""));
    http_reply_free(&reply);
    http_client_close(&client);
}
END_TEST

START_TEST(a_lost_token_breaks_the_stream_visibly)
{
    fixture.script.endless = true;
    fixture.script.step_ns = 2000000;
    fixture.script.skip_at = 5;
    fixture_start();
    http_reply_t reply;
    fixture_post("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":100,\"stream\":true}",
                 &reply);
    ck_assert(!reply.whole);
    ck_assert_ptr_null(strstr(reply.body, "[DONE]"));
    ck_assert_ptr_nonnull(strstr(reply.body, "\"code\":\"token_stream_broken\""));
    http_reply_free(&reply);
}
END_TEST

START_TEST(a_waiting_stream_gets_comments)
{
    fixture.script.hold_at = 0;
    fixture.options.keep_alive_ms = 50;
    fixture_start();
    http_client_t client;
    http_client_open(&client, fixture.port);
    http_client_post(&client, "/v1/completions", "{\"prompt\":\"a\",\"stream\":true}");
    ck_assert(http_client_wait_for(&client, ": keep-alive\n\n\r\ne\r\n: keep-alive\n\n"));
    ck_assert(http_client_wait_for(&client, "HTTP/1.1 200 OK"));
    http_client_close(&client);
}
END_TEST

START_TEST(a_clients_deadline_is_kept)
{
    fixture.script.hold_at = 0;
    fixture.options.request_timeout_ms = 150;
    fixture_start();
    http_reply_t reply;
    fixture_post("/v1/completions", "{\"prompt\":\"a\"}", &reply);
    ck_assert_int_eq(reply.status, 504);
    ck_assert_ptr_nonnull(strstr(reply.body, "deadline_exceeded"));
    http_reply_free(&reply);
}
END_TEST

START_TEST(sixteen_streams_at_once_are_whole)
{
    fixture.script.endless = true;
    fixture.script.step_ns = 1000000;
    fixture_start();
    http_client_t clients[16];
    for (int at = 0; at < 16; at++) {
        http_client_open(&clients[at], fixture.port);
        http_client_post(&clients[at], "/v1/completions",
                         "{\"prompt\":\"a\",\"max_tokens\":60,\"n\":2,\"stream\":true}");
    }
    for (int at = 0; at < 16; at++) {
        http_reply_t reply;
        http_client_read(&clients[at], &reply, false);
        ck_assert(reply.whole);
        ck_assert_ptr_nonnull(strstr(reply.body, "data: [DONE]\n\n"));
        char text[4096];
        joined(&reply, text, sizeof text);
        ck_assert_uint_eq(strlen(text), 2 * 20 * strlen("Hello world!"));
        http_reply_free(&reply);
        http_client_close(&clients[at]);
    }
}
END_TEST

/* Reads `count` events of each stream. */
static void
read_events(http_client_t *clients, int client_count, int count)
{
    for (int at = 0; at < client_count; at++) {
        for (int event = 0; event < count; event++) {
            ck_assert(http_client_wait_for(&clients[at], "data: {"));
            char *found = memmem(clients[at].bytes, clients[at].size_bytes, "data: {", 7);
            size_t used = (size_t)(found - clients[at].bytes) + 7;
            memmove(clients[at].bytes, found + 7, clients[at].size_bytes - used);
            clients[at].size_bytes -= used;
        }
    }
}

/* No allocation in the decode loop: streams in their stride, with stops to look for. */
START_TEST(a_stream_in_its_stride_allocates_nothing)
{
    uint32_t before = 0;
    if (!fixture_allocations(&before)) {
        return;
    }
    fixture.script.endless = true;
    fixture.script.step_ns = 1000000;
    fixture_start();
    http_client_t clients[4];
    for (int at = 0; at < 4; at++) {
        http_client_open(&clients[at], fixture.port);
        http_client_post(&clients[at], at % 2 == 0 ? "/v1/completions" : "/v1/chat/completions",
                         at % 2 == 0 ? "{\"prompt\":\"a\",\"max_tokens\":3000,\"n\":2,\"stream\":"
                                       "true,\"stop\":[\"world?\"]}"
                                     : "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
                                       "\"max_tokens\":3000,\"stream\":true,\"logprobs\":true}");
    }
    read_events(clients, 4, 300); /* warm-up: buffers reach their size */
    ck_assert(fixture_allocations(&before));
    ck_assert_uint_gt(before, 100); /* they are counted at all */
    read_events(clients, 4, 300);
    uint32_t after = 0;
    ck_assert(fixture_allocations(&after));
    ck_assert_msg(after == before, "%u allocations in 1200 events", after - before);
    for (int at = 0; at < 4; at++) {
        http_client_close(&clients[at]);
    }
}
END_TEST

TCase *
stream_cases(void)
{
    TCase *tcase = tcase_create("stream");
    tcase_add_checked_fixture(tcase, fixture_setup, fixture_teardown);
    tcase_set_timeout(tcase, 40);
    tcase_add_test(tcase, streams_have_exactly_this_shape);
    tcase_add_test(tcase, a_stop_string_across_tokens_ends_a_stream);
    tcase_add_test(tcase, a_character_in_two_tokens_is_sent_whole);
    tcase_add_test(tcase, a_step_is_one_event);
    tcase_add_test(tcase, an_http10_client_gets_a_plain_stream);
    tcase_add_loop_test(tcase, a_disconnect_cancels_within_100_ms, 0, 2);
    tcase_add_test(tcase, a_disconnect_cancels_what_was_not_answered);
    tcase_add_test(tcase, a_slow_reader_is_cut);
    tcase_add_test(tcase, a_stalled_reader_is_cut);
    tcase_add_test(tcase, a_killed_scheduler_breaks_the_stream_visibly);
    tcase_add_test(tcase, a_killed_scheduler_fails_an_answer_with_503);
    tcase_add_test(tcase, a_lost_token_breaks_the_stream_visibly);
    tcase_add_test(tcase, a_waiting_stream_gets_comments);
    tcase_add_test(tcase, a_clients_deadline_is_kept);
    tcase_add_test(tcase, sixteen_streams_at_once_are_whole);
    tcase_add_test(tcase, a_stream_in_its_stride_allocates_nothing);
    return tcase;
}
