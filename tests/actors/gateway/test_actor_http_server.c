/* test_actor_http_server.c - a live gateway before a fake scheduler: routes, answers, errors. */
#include <check.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fake_text.h"
#include "gateway_fixture.h"
#include "test_cases.h"

static void
assert_has(const http_reply_t *reply, const char *text)
{
    ck_assert_msg(strstr(reply->body, text) != NULL, "no %s in: %s", text, reply->body);
}

static void
assert_lacks(const http_reply_t *reply, const char *text)
{
    ck_assert_msg(strstr(reply->body, text) == NULL, "%s in: %s", text, reply->body);
}

START_TEST(a_completion_is_answered)
{
    fixture_start();
    http_reply_t reply;
    fixture_post("/v1/completions", "{\"model\":\"fake\",\"prompt\":\"abcd\"}", &reply);
    ck_assert_int_eq(reply.status, 200);
    ck_assert(reply.whole);
    ck_assert_ptr_nonnull(http_reply_header(&reply, "x-request-id"));
    ck_assert_str_eq(http_reply_header(&reply, "Content-Type"), "application/json");
    assert_has(&reply, "{\"id\":\"cmpl-");
    assert_has(&reply, "\"object\":\"text_completion\"");
    assert_has(&reply, "\"model\":\"fake\"");
    assert_has(&reply, "\"system_fingerprint\":\"fp_");
    assert_has(&reply, "{\"index\":0,\"text\":\"Hello world!\",\"logprobs\":null,"
                       "\"finish_reason\":\"stop\"}");
    assert_has(&reply, "\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3,\"total_tokens\":7,"
                       "\"prompt_tokens_details\":{\"cached_tokens\":2}}");
    http_reply_free(&reply);
    fake_seen_t seen = fake_scheduler_seen(fixture.scheduler);
    ck_assert_uint_eq(seen.last_prompt_length, 4);
    ck_assert_uint_eq(seen.last_generation_max, 16);
    ck_assert(seen.last_sampling.temperature > 0.99 && seen.last_sampling.temperature < 1.01);
    ck_assert_uint_eq(seen.last_sampling.prompt_length, 4);
}
END_TEST

START_TEST(a_chat_is_answered)
{
    fixture_start();
    http_reply_t reply;
    fixture_post("/v1/chat/completions",
                 "{\"model\":\"fake\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                 "\"max_completion_tokens\":2,\"temperature\":0}",
                 &reply);
    ck_assert_int_eq(reply.status, 200);
    assert_has(&reply, "{\"id\":\"chatcmpl-");
    assert_has(&reply, "\"object\":\"chat.completion\"");
    assert_has(&reply, "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hello "
                       "world\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"length\"}");
    http_reply_free(&reply);
    /* Without a limit a chat gets what is left of the context. */
    fixture_post("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}",
                 &reply);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
    fake_seen_t seen = fake_scheduler_seen(fixture.scheduler);
    ck_assert_uint_eq(seen.last_generation_max, 4096 - seen.last_prompt_length);
}
END_TEST

START_TEST(several_prompts_and_choices_keep_their_order)
{
    fixture_start();
    http_reply_t reply;
    fixture_post("/v1/completions",
                 "{\"prompt\":[\"ab\",\"cdef\"],\"n\":2,\"echo\":true,\"max_tokens\":1}", &reply);
    ck_assert_int_eq(reply.status, 200);
    static const char *const texts[] = {"{\"index\":0,\"text\":\"abHello\"",
                                        "{\"index\":1,\"text\":\"abHello\"",
                                        "{\"index\":2,\"text\":\"cdefHello\"",
                                        "{\"index\":3,\"text\":\"cdefHello\""};
    for (int at = 0; at < 4; at++) {
        assert_has(&reply, texts[at]);
    }
    assert_has(&reply, "\"prompt_tokens\":6,\"completion_tokens\":4");
    http_reply_free(&reply);
    fixture_post("/v1/completions", "{\"prompt\":[[65,66],[67]],\"echo\":true,\"max_tokens\":1}",
                 &reply);
    assert_has(&reply, "{\"index\":0,\"text\":\"ABHello\"");
    assert_has(&reply, "{\"index\":1,\"text\":\"CHello\"");
    http_reply_free(&reply);
}
END_TEST

/* A seed names the answer: given, it is passed on; absent, it comes from the request's own id. */
START_TEST(seeds_are_given_or_made)
{
    fixture_start();
    http_reply_t reply;
    fixture_post("/v1/completions", "{\"prompt\":\"a\",\"seed\":42,\"n\":2}", &reply);
    http_reply_free(&reply);
    fixture_post("/v1/completions", "{\"prompt\":\"a\",\"seed\":42,\"n\":2}", &reply);
    http_reply_free(&reply);
    fixture_post("/v1/completions", "{\"prompt\":\"a\",\"n\":2}", &reply);
    http_reply_free(&reply);
    fixture_post("/v1/completions", "{\"prompt\":\"a\"}", &reply);
    http_reply_free(&reply);
    fake_seen_t seen = fake_scheduler_seen(fixture.scheduler);
    ck_assert_uint_eq(seen.submit_count, 7);
    ck_assert_uint_eq(seen.seeds[0], 42);
    ck_assert_uint_ne(seen.seeds[1], 42);
    ck_assert_uint_eq(seen.seeds[2], seen.seeds[0]);
    ck_assert_uint_eq(seen.seeds[3], seen.seeds[1]);
    ck_assert_uint_ne(seen.seeds[4], seen.seeds[5]);
    ck_assert_uint_ne(seen.seeds[4], seen.seeds[6]);
}
END_TEST

START_TEST(sampling_fields_reach_the_scheduler)
{
    fixture_start();
    http_reply_t reply;
    fixture_post("/v1/completions",
                 "{\"prompt\":\"a\",\"temperature\":0.5,\"top_p\":0.25,\"top_k\":7,\"min_p\":0.125,"
                 "\"repetition_penalty\":1.5,\"presence_penalty\":-1,\"frequency_penalty\":0.75,"
                 "\"min_tokens\":2,\"ignore_eos\":true,\"stop_token_ids\":[65],\"priority\":-3,"
                 "\"logit_bias\":{\"66\":-100},\"logprobs\":2,\"max_tokens\":9}",
                 &reply);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
    proto_sampling_t sampling = fake_scheduler_seen(fixture.scheduler).last_sampling;
    ck_assert(sampling.temperature == 0.5 && sampling.top_p == 0.25 && sampling.min_p == 0.125);
    ck_assert(sampling.repetition_penalty == 1.5 && sampling.presence_penalty == -1.0);
    ck_assert(sampling.frequency_penalty == 0.75 && sampling.ignore_eos);
    ck_assert_uint_eq(sampling.top_k, 7);
    ck_assert_uint_eq(sampling.generation_min, 2);
    ck_assert_uint_eq(sampling.logprobs, 3);
    ck_assert_uint_eq(sampling.stop_ids.size_bytes, 4);
    ck_assert_uint_eq(sampling.bias_ids.size_bytes, 4);
    ck_assert_int_eq(fake_scheduler_seen(fixture.scheduler).last_priority, -3);
}
END_TEST

/* Page hashes: whole pages only, the same for the same prompt, another with another salt. */
START_TEST(page_hashes_follow_prompt_and_salt)
{
    fixture_start();
    http_reply_t reply;
    char json[256];
    uint8_t pages[3][PROTO_HASH_SIZE_BYTES];
    static const char *const salts[] = {"", "", ",\"cache_salt\":\"tenant\""};
    for (int at = 0; at < 3; at++) {
        (void)snprintf(json, sizeof json, "{\"prompt\":\"0123456789abcdef0123456789abcdef%s\"%s}",
                       at == 1 ? "xyz" : "", salts[at]);
        fixture_post("/v1/completions", json, &reply);
        ck_assert_int_eq(reply.status, 200);
        http_reply_free(&reply);
        fake_seen_t seen = fake_scheduler_seen(fixture.scheduler);
        ck_assert_uint_eq(seen.last_page_count, 2);
        memcpy(pages[at], seen.last_page, sizeof pages[at]);
    }
    ck_assert_mem_eq(pages[0], pages[1], PROTO_HASH_SIZE_BYTES);
    ck_assert_mem_ne(pages[0], pages[2], PROTO_HASH_SIZE_BYTES);
}
END_TEST

START_TEST(logprobs_have_the_shapes_of_the_api)
{
    fixture_start();
    http_reply_t reply;
    fixture_post("/v1/completions", "{\"prompt\":\"a\",\"logprobs\":1,\"max_tokens\":2}", &reply);
    assert_has(&reply, "\"logprobs\":{\"tokens\":[\"Hello\",\" world\"],\"token_logprobs\":[-0.5,"
                       "-0.5],\"top_logprobs\":[{\"b\":-1},{\"b\":-1}],\"text_offset\":[0,5]}");
    http_reply_free(&reply);
    fixture_post("/v1/chat/completions",
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true,"
                 "\"top_logprobs\":1,\"max_tokens\":1}",
                 &reply);
    assert_has(&reply,
               "\"logprobs\":{\"content\":[{\"token\":\"Hello\",\"logprob\":-0.5,\"bytes\":[72,"
               "101,108,108,111],\"top_logprobs\":[{\"token\":\"b\",\"logprob\":-1,\"bytes\":[98]"
               "}]}],\"refusal\":null}");
    http_reply_free(&reply);
}
END_TEST

START_TEST(what_is_too_long_is_refused_with_numbers)
{
    fixture.script.model_len_max = 64;
    fixture_start();
    http_reply_t reply;
    char prompt[128];
    char json[256];
    memset(prompt, 'x', 70);
    prompt[70] = '\0';
    (void)snprintf(json, sizeof json, "{\"prompt\":\"%s\"}", prompt);
    fixture_post("/v1/completions", json, &reply);
    ck_assert_int_eq(reply.status, 400);
    assert_has(&reply, "\"code\":\"context_length_exceeded\"");
    assert_has(&reply, "64");
    assert_has(&reply, "70");
    assert_has(&reply, "\"param\":\"prompt\"");
    http_reply_free(&reply);
    /* The default of 16 gives way to the context; an explicit wish does not. */
    prompt[60] = '\0';
    (void)snprintf(json, sizeof json, "{\"prompt\":\"%s\"}", prompt);
    fixture_post("/v1/completions", json, &reply);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
    ck_assert_uint_eq(fake_scheduler_seen(fixture.scheduler).last_generation_max, 4);
    (void)snprintf(json, sizeof json, "{\"prompt\":\"%s\",\"max_tokens\":5}", prompt);
    fixture_post("/v1/completions", json, &reply);
    ck_assert_int_eq(reply.status, 400);
    http_reply_free(&reply);
}
END_TEST

/* The prompt is longer than what is parsed inline: the worker does it, the answer is the same. */
START_TEST(long_prompts_go_through_the_worker)
{
    fixture_start();
    static char json[80000];
    int size = snprintf(json, sizeof json,
                        "{\"prompt\":\"a\",\"max_tokens\":1,\"user\":\"u\","
                        "\"unknown\":\"");
    memset(json + size, 'y', 60000);
    (void)snprintf(json + size + 60000, 16, "\"}");
    http_reply_t reply;
    for (int at = 0; at < 3; at++) {
        fixture_post("/v1/completions", json, &reply);
        ck_assert_int_eq(reply.status, 200);
        assert_has(&reply, "\"text\":\"Hello\"");
        http_reply_free(&reply);
    }
    size = snprintf(json, sizeof json, "{\"prompt\":\"");
    memset(json + size, 'y', 60000);
    (void)snprintf(json + size + 60000, 16, "\"}");
    fixture_post("/v1/completions", json, &reply);
    ck_assert_int_eq(reply.status, 400);
    assert_has(&reply, "context_length_exceeded");
    assert_has(&reply, "60000");
    http_reply_free(&reply);
    /* A client that leaves meanwhile leaves nothing behind. */
    http_client_t client;
    http_client_open(&client, fixture.port);
    http_client_post(&client, "/v1/completions", json);
    http_client_reset(&client);
    fixture_get("/health", &reply);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
}
END_TEST

START_TEST(scheduler_refusals_become_http_errors)
{
    static const struct {
        proto_status_t status;
        const char *code;
        int expected;
    } cases[] = {
        {STATUS_ERR_OVERLOADED, "overloaded", 429}, {STATUS_ERR_NEVER_FITS, "never_fits", 400},
        {STATUS_ERR_PEER_LOST, "worker_lost", 503}, {STATUS_ERR_DEADLINE, "deadline", 504},
        {STATUS_ERR_INTERNAL, "bug", 500},
    };
    fixture.script.refuse_status = cases[_i].status;
    fixture.script.refuse_code = cases[_i].code;
    fixture_start();
    /* Streaming or not: nothing was sent yet, so both get the true status. */
    for (int stream = 0; stream < 2; stream++) {
        http_reply_t reply;
        fixture_post("/v1/completions",
                     stream ? "{\"prompt\":\"a\",\"stream\":true}" : "{\"prompt\":\"a\"}", &reply);
        ck_assert_int_eq(reply.status, cases[_i].expected);
        ck_assert_ptr_nonnull(http_reply_header(&reply, "x-request-id"));
        bool retries = cases[_i].expected == 429 || cases[_i].expected == 503;
        ck_assert_int_eq(http_reply_header(&reply, "Retry-After") != NULL,
                         retries || cases[_i].expected != 0);
        http_reply_free(&reply);
    }
}
END_TEST

START_TEST(without_a_scheduler_it_says_so_at_once)
{
    fixture.no_scheduler = true;
    fixture_start();
    http_reply_t reply;
    uint64_t begin = test_now_ns();
    fixture_post("/v1/completions", "{\"prompt\":\"a\"}", &reply);
    ck_assert_int_eq(reply.status, 503);
    ck_assert_str_eq(http_reply_header(&reply, "Retry-After"), "1");
    assert_has(&reply, "\"code\":\"worker_lost\"");
    ck_assert_uint_lt(test_now_ns() - begin, 1000000000u);
    http_reply_free(&reply);
    static const struct {
        const char *path;
        int status;
    } cases[] = {{"/health", 200},
                 {"/health/ready", 503},
                 {"/health/startup", 503},
                 {"/v1/models", 200}};
    for (size_t at = 0; at < 4; at++) {
        fixture_get(cases[at].path, &reply);
        ck_assert_int_eq(reply.status, cases[at].status);
        http_reply_free(&reply);
    }
    fixture_post("/v1/completions", "{\"prompt\":5}", &reply);
    ck_assert_int_eq(reply.status, 400); /* what is wrong with it will still be wrong later */
    http_reply_free(&reply);
}
END_TEST

START_TEST(without_an_executor_it_says_so)
{
    fixture.script.no_executor = true;
    fixture_start();
    http_reply_t reply;
    uint64_t until = test_now_ns() + 5000000000u;
    bool attached = false;
    while (!attached && test_now_ns() < until) {
        fixture_get("/health/ready", &reply);
        attached = strstr(reply.body, "no executor") != NULL;
        ck_assert_int_eq(reply.status, 503);
        http_reply_free(&reply);
    }
    ck_assert(attached);
    fixture_post("/v1/completions", "{\"prompt\":\"a\"}", &reply);
    ck_assert_int_eq(reply.status, 503);
    assert_has(&reply, "\"code\":\"no_executor\"");
    http_reply_free(&reply);
}
END_TEST

START_TEST(the_short_routes_answer)
{
    fixture.options.served_model_name = "org/name v1";
    fixture_start();
    static const struct {
        const char *path;
        int status;
        const char *text;
    } cases[] = {
        {"/v1/models", 200,
         "{\"object\":\"list\",\"data\":[{\"id\":\"org/name v1\",\"object\":"
         "\"model\""},
        {"/v1/models/org/name%20v1", 200, "\"max_model_len\":4096"},
        {"/v1/models/org%2fname%20v1", 200, "\"id\":\"org/name v1\""},
        {"/v1/models/other", 404, "\"code\":\"model_not_found\""},
        {"/v1/models/", 404, "\"error\""},
        {"/version", 200, "\"version\":"},
        {"/health", 200, "\"ok\""},
        {"/ping", 200, "\"ok\""},
        {"/health/ready", 200, "\"ready\""},
        {"/health/startup", 200, "\"started\""},
        {"/health?verbose=1", 200, "\"ok\""},
        {"/nothing", 404, "\"error\""},
        {"/", 404, "\"error\""},
        {"/v1/completions", 405, "\"error\""},
    };
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++) {
        http_reply_t reply;
        fixture_get(cases[at].path, &reply);
        ck_assert_msg(reply.status == cases[at].status, "%s: %d", cases[at].path, reply.status);
        assert_has(&reply, cases[at].text);
        ck_assert_ptr_nonnull(http_reply_header(&reply, "x-request-id"));
        http_reply_free(&reply);
    }
}
END_TEST

START_TEST(texts_are_tokenized_and_back)
{
    fixture_start();
    http_reply_t reply;
    fixture_post("/tokenize", "{\"model\":\"fake\",\"prompt\":\"AB\"}", &reply);
    ck_assert_int_eq(reply.status, 200);
    ck_assert_str_eq(reply.body, "{\"count\":2,\"max_model_len\":4096,\"tokens\":[65,66]}");
    http_reply_free(&reply);
    fixture_post("/tokenize",
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"A\"}],"
                 "\"add_generation_prompt\":false}",
                 &reply);
    ck_assert_str_eq(reply.body, "{\"count\":7,\"max_model_len\":4096,\"tokens\":[117,115,101,114,"
                                 "58,65,10]}");
    http_reply_free(&reply);
    fixture_post("/detokenize", "{\"tokens\":[65,259,260,10,264]}", &reply);
    ck_assert_str_eq(reply.body, "{\"prompt\":\"A\xe2\x82\xac\\n<mark>\"}");
    http_reply_free(&reply);
    fixture_post("/detokenize", "{\"tokens\":[266]}", &reply);
    ck_assert_int_eq(reply.status, 400);
    assert_has(&reply, "\"param\":\"tokens\"");
    http_reply_free(&reply);
    ck_assert_uint_eq(fake_scheduler_seen(fixture.scheduler).submit_count, 0);
}
END_TEST

/* A file's name may be any bytes; a client must be able to send back the name that it was told. */
START_TEST(a_served_name_that_is_no_utf8_can_still_be_asked_for)
{
    fixture.options.served_model_name = "caf\xe9";
    fixture_start();
    http_reply_t reply;
    fixture_get("/v1/models", &reply);
    assert_has(&reply, "\"id\":\"caf\xef\xbf\xbd\"");
    http_reply_free(&reply);
    fixture_get("/v1/models/caf%EF%BF%BD", &reply);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
    fixture_post("/v1/completions", "{\"prompt\":\"a\",\"model\":\"caf\xef\xbf\xbd\"}", &reply);
    ck_assert_int_eq(reply.status, 200);
    assert_has(&reply, "\"model\":\"caf\xef\xbf\xbd\"");
    http_reply_free(&reply);
    ck_assert_ptr_nonnull(strstr(fixture_log(), "gateway.model_name"));
}
END_TEST

/* What is wrong with a string is its length, and the answer says so. */
START_TEST(messages_of_errors_name_what_is_wrong)
{
    static const struct {
        const char *body;
        const char *wanted;
    } cases[] = {
        {"", "The body is empty; it must be a JSON object."},
        {"{\"prompt\":\"a\",\"cache_salt\":\"\"}",
         "cache_salt must be a string of 1 to 64 bytes, not of 0."},
        {"{\"prompt\":\"a\",\"cache_salt\":3}",
         "cache_salt must be a string of 1 to 64 bytes, not 3."},
    };
    fixture_start();
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++) {
        http_reply_t reply;
        fixture_post("/v1/completions", cases[at].body, &reply);
        ck_assert_int_eq(reply.status, 400);
        assert_has(&reply, cases[at].wanted);
        http_reply_free(&reply);
    }
}
END_TEST

START_TEST(metrics_have_the_names_of_dashboards)
{
    fixture_start();
    http_reply_t reply;
    fixture_post("/v1/completions", "{\"prompt\":\"abcd\",\"n\":2}", &reply);
    http_reply_free(&reply);
    fixture_get("/metrics", &reply);
    ck_assert_int_eq(reply.status, 200);
    static const char *const lines[] = {
        "num_requests_running{model_name=\"fake\",engine=\"0\"} 1\n",
        "num_requests_waiting{model_name=\"fake\",engine=\"0\"} 0\n",
        "kv_cache_usage_perc{model_name=\"fake\",engine=\"0\"} 0.25\n",
        "prompt_tokens_total{model_name=\"fake\",engine=\"0\"} 8\n",
        "generation_tokens_total{model_name=\"fake\",engine=\"0\"} 6\n",
        "request_success_total{model_name=\"fake\",engine=\"0\",finished_reason=\"stop\"} 2\n",
        "time_to_first_token_seconds_count{model_name=\"fake\",engine=\"0\"} 1\n",
        "time_to_first_token_seconds_bucket{model_name=\"fake\",engine=\"0\",le=\"+Inf\"} 1\n",
        "inter_token_latency_seconds_count{model_name=\"fake\",engine=\"0\"} 4\n",
        "e2e_request_latency_seconds_count{model_name=\"fake\",engine=\"0\"} 1\n",
        "request_generation_tokens_count{model_name=\"fake\",engine=\"0\"} 2\n",
        "request_params_n_sum{model_name=\"fake\",engine=\"0\"} 2\n",
    };
    for (size_t at = 0; at < sizeof lines / sizeof lines[0]; at++) {
        char line[256];
        (void)snprintf(line, sizeof line, "onepath_%s", lines[at]);
        assert_has(&reply, line);
        (void)snprintf(line, sizeof line, "vllm:%s", lines[at]);
        assert_has(&reply, line);
    }
    assert_has(&reply, "vllm:gpu_cache_usage_perc{");
    assert_has(&reply, "vllm:time_per_output_token_seconds_bucket{");
    assert_has(&reply, "onepath_http_requests_total{model_name=\"fake\",engine=\"0\",route=\"/v1/"
                       "completions\",code=\"200\"} 1\n");
    http_reply_free(&reply);
}
END_TEST

START_TEST(vllm_names_can_be_left_out)
{
    fixture.options.no_vllm_names = true;
    fixture_start();
    http_reply_t reply;
    fixture_get("/metrics", &reply);
    assert_has(&reply, "onepath_num_requests_running{");
    assert_lacks(&reply, "vllm:");
    http_reply_free(&reply);
}
END_TEST

/* The access log says who and how much, never what. */
START_TEST(the_log_has_no_prompt)
{
    fixture_start();
    http_reply_t reply;
    fixture_post("/v1/completions", "{\"prompt\":\"secretprompt\",\"user\":\"secretuser\"}",
                 &reply);
    ck_assert_int_eq(reply.status, 200);
    http_reply_free(&reply);
    ck_assert_ptr_nonnull(strstr(fixture_log(), "http.request"));
    ck_assert_ptr_nonnull(strstr(fixture_log(), "\"route\":\"/v1/completions\""));
    ck_assert_ptr_nonnull(strstr(fixture_log(), "\"generated_tokens\":3"));
    ck_assert_ptr_null(strstr(fixture_log(), "secret"));
    ck_assert_ptr_null(strstr(fixture_log(), "Hello"));
}
END_TEST

START_TEST(a_drain_finishes_what_runs_and_refuses_the_rest)
{
    fixture.script.endless = true;
    fixture.script.step_ns = 2000000;
    fixture_start();
    http_client_t client;
    http_client_open(&client, fixture.port);
    http_client_post(&client, "/v1/completions",
                     "{\"prompt\":\"a\",\"max_tokens\":150,\"stream\":true}");
    ck_assert(http_client_wait_for(&client, "Hello"));
    fixture_drain();
    http_reply_t reply;
    int status = 200;
    uint64_t until = test_now_ns() + 5000000000u;
    while (status != 503 && test_now_ns() < until) {
        fixture_get("/health/ready", &reply);
        status = reply.status;
        http_reply_free(&reply);
    }
    ck_assert_int_eq(status, 503);
    fixture_post("/v1/completions", "{\"prompt\":\"a\"}", &reply);
    ck_assert_int_eq(reply.status, 503);
    assert_has(&reply, "\"code\":\"shutting_down\"");
    http_reply_free(&reply);
    http_client_read(&client, &reply, false);
    ck_assert(reply.whole);
    assert_has(&reply, "data: [DONE]");
    http_reply_free(&reply);
    http_client_close(&client);
    fixture_stop();
    ck_assert_int_eq(fixture.exit_code, 0);
}
END_TEST

START_TEST(a_port_in_use_is_exit_75)
{
    int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ck_assert_int_eq(bind(descriptor, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(descriptor, 1), 0);
    socklen_t length = sizeof address;
    ck_assert_int_eq(getsockname(descriptor, (struct sockaddr *)&address, &length), 0);
    fixture.options.port = ntohs(address.sin_port);
    ck_assert_int_eq(actor_gateway_run(&fixture.options), 75);
    ck_assert_ptr_nonnull(strstr(fixture_log(), "another program uses it"));
    (void)close(descriptor);
}
END_TEST

START_TEST(bad_configurations_are_exit_78)
{
    actor_gateway_options_t options = fixture.options;
    options.bind_address = "localhost:8000";
    ck_assert_int_eq(actor_gateway_run(&options), 78);
    options = fixture.options;
    options.text = NULL;
    options.model_path = "/nonexistent/model.gguf";
    ck_assert_int_eq(actor_gateway_run(&options), 78);
    ck_assert_ptr_nonnull(strstr(fixture_log(), "/nonexistent/model.gguf"));
    options = fixture.options;
    options.scheduler_endpoint = NULL;
    ck_assert_int_eq(actor_gateway_run(&options), 78);
}
END_TEST

static TCase *
server_cases(void)
{
    TCase *tcase = tcase_create("server");
    tcase_add_checked_fixture(tcase, fixture_setup, fixture_teardown);
    tcase_set_timeout(tcase, 30);
    tcase_add_test(tcase, a_completion_is_answered);
    tcase_add_test(tcase, a_chat_is_answered);
    tcase_add_test(tcase, several_prompts_and_choices_keep_their_order);
    tcase_add_test(tcase, seeds_are_given_or_made);
    tcase_add_test(tcase, sampling_fields_reach_the_scheduler);
    tcase_add_test(tcase, page_hashes_follow_prompt_and_salt);
    tcase_add_test(tcase, logprobs_have_the_shapes_of_the_api);
    tcase_add_test(tcase, what_is_too_long_is_refused_with_numbers);
    tcase_add_test(tcase, long_prompts_go_through_the_worker);
    tcase_add_loop_test(tcase, scheduler_refusals_become_http_errors, 0, 5);
    tcase_add_test(tcase, without_a_scheduler_it_says_so_at_once);
    tcase_add_test(tcase, without_an_executor_it_says_so);
    tcase_add_test(tcase, the_short_routes_answer);
    tcase_add_test(tcase, texts_are_tokenized_and_back);
    tcase_add_test(tcase, a_served_name_that_is_no_utf8_can_still_be_asked_for);
    tcase_add_test(tcase, messages_of_errors_name_what_is_wrong);
    tcase_add_test(tcase, metrics_have_the_names_of_dashboards);
    tcase_add_test(tcase, vllm_names_can_be_left_out);
    tcase_add_test(tcase, the_log_has_no_prompt);
    tcase_add_test(tcase, a_drain_finishes_what_runs_and_refuses_the_rest);
    tcase_add_test(tcase, a_port_in_use_is_exit_75);
    tcase_add_test(tcase, bad_configurations_are_exit_78);
    return tcase;
}

int
main(void)
{
    Suite *suite = suite_create("actors.http_server");
    suite_add_tcase(suite, server_cases());
    suite_add_tcase(suite, stream_cases());
    suite_add_tcase(suite, probe_cases());
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
