/* The picture of `onepath top`: it fits every window, and says what is wrong. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli_top.h"

static actor_node_t node;
static cli_look_requests_t requests;
static cli_look_rates_t rates;
static cli_top_line_t lines[CLI_TOP_LINES_MAX];

static void
make_node(uint32_t request_count)
{
    memset(&node, 0, sizeof node);
    node.state = PROTO_NODE_READY;
    node.has_load = true;
    node.load = (proto_load_t){.running = 1, .waiting = 2, .blocks_total = 100, .blocks_free = 3};
    node.actor_count = 5;
    for (uint32_t i = 0; i < node.actor_count; i++) {
        node.actors[i] = (actor_view_actor_t){.role = PROTO_ROLE_GATEWAY,
                                              .state = ACTOR_STATE_READY,
                                              .pid = 10 + i,
                                              .epoch = UINT64_MAX,
                                              .resident_bytes = UINT64_MAX,
                                              .uptime_ms = UINT64_MAX,
                                              .step = UINT64_MAX};
        (void)snprintf(node.actors[i].name, sizeof node.actors[i].name, "a-very-long-name-%u", i);
        memset(node.actors[i].detail, 'x', sizeof node.actors[i].detail - 1);
        rates.cpu_percent[i] = i == 0 ? (double)NAN : 1e9;
    }
    node.link_count = 7;
    for (uint32_t i = 0; i < node.link_count; i++) {
        node.links[i] = (actor_view_link_t){.actor = i, /* two of them of nobody */
                                            .age_ms = UINT32_MAX,
                                            .messages_in = UINT64_MAX,
                                            .messages_out = 12345};
        (void)snprintf(node.links[i].peer, sizeof node.links[i].peer, "peer-%u", i);
    }
    node.gateway.rows = calloc(request_count + 1, sizeof *node.gateway.rows);
    node.scheduler_requests.rows = calloc(request_count + 1, sizeof *node.gateway.rows);
    ck_assert(node.gateway.rows != NULL && node.scheduler_requests.rows != NULL);
    node.gateway.total = request_count;
    for (uint32_t i = 0; i < request_count; i++) {
        node.gateway.rows[node.gateway.count++] =
            (actor_look_row_t){.request = 100 + i, .state = PROTO_REQUEST_SUBMITTED, .age_ms = i};
        (void)snprintf(node.gateway.rows[i].name, sizeof node.gateway.rows[i].name, "r-%u", i);
        actor_look_row_t *row = &node.scheduler_requests.rows[node.scheduler_requests.count++];
        *row = (actor_look_row_t){.request = 100 + i,
                                  .state = PROTO_REQUEST_QUEUED,
                                  .wait = (proto_wait_t)(i % 9),
                                  .holder = 100,
                                  .needed = UINT32_MAX,
                                  .block_count = 77};
    }
    ck_assert_int_eq(cli_look_merge(&node, &requests), STATUS_OK);
}

static void
drop_node(void)
{
    cli_look_fini(&requests);
    free(node.gateway.rows);
    free(node.scheduler_requests.rows);
}

static cli_top_view_t
view_of(uint32_t width, uint32_t height)
{
    return (cli_top_view_t){.node = &node,
                            .requests = &requests,
                            .rates = &rates,
                            .run_dir = "/run/onepath",
                            .clock = "12:34:56",
                            .width = width,
                            .height = height};
}

START_TEST(it_fits_every_window)
{
    make_node(300);
    for (uint32_t width = CLI_TOP_WIDTH_MIN; width <= CLI_TOP_WIDTH_MAX; width += 13) {
        for (uint32_t height = CLI_TOP_HEIGHT_MIN; height < 220; height += 7) {
            cli_top_view_t view = view_of(width, height);
            uint32_t count = cli_top_draw(&view, lines);
            ck_assert_uint_eq(count, height < CLI_TOP_LINES_MAX ? height : CLI_TOP_LINES_MAX);
            for (uint32_t i = 0; i < count; i++) {
                ck_assert_uint_le(strlen(lines[i].text), width);
            }
            ck_assert_ptr_nonnull(strstr(lines[count - 1].text, "q quit"));
        }
    }
    drop_node();
}
END_TEST

static bool
shows(uint32_t count, const char *text)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strstr(lines[i].text, text) != NULL) {
            return true;
        }
    }
    return false;
}

/* Every reason names its holder, in both forms. */
START_TEST(each_request_has_its_reason)
{
    make_node(9);
    for (uint32_t i = 0; i < requests.count; i++) {
        ck_assert_str_ne(requests.requests[i].why, "");
    }
    cli_top_view_t view = view_of(200, 0);
    uint32_t count = cli_top_draw(&view, lines);
    ck_assert(shows(count, "a slot: all are taken, r-0 has run longest"));
    ck_assert(shows(count, "4294967295 cache blocks, 0 are free: r-0 holds most (77)"));
    ck_assert(shows(count, "r-0, which lost its blocks and goes first"));
    ck_assert(shows(count, "an executor: none is attached"));
    ck_assert(shows(count, "step 100, which is running"));
    view.width = 80;
    count = cli_top_draw(&view, lines);
    ck_assert(shows(count, "slot: r-0"));
    view.only_waiting = true;
    uint32_t fewer = cli_top_draw(&view, lines);
    ck_assert_uint_eq(fewer, count - 1); /* one of them runs */
    view.first_request = 100;
    ck_assert_uint_lt(cli_top_draw(&view, lines), fewer);
    drop_node();
}
END_TEST

START_TEST(what_is_wrong_stands_out)
{
    make_node(0);
    cli_top_view_t view = view_of(80, 0);
    (void)cli_top_draw(&view, lines);
    ck_assert_int_eq(lines[0].look, CLI_TOP_GOOD);
    ck_assert_int_eq(lines[2].look, CLI_TOP_WARN); /* the cache is full */
    node.state = PROTO_NODE_HELD;
    (void)snprintf(node.owner, sizeof node.owner, "rollout");
    node.actors[0].pid = 0;
    node.actors[1].beat_age_ms = 5000;
    node.has_load = false;
    uint32_t count = cli_top_draw(&view, lines);
    ck_assert_ptr_nonnull(strstr(lines[0].text, "drained by rollout"));
    ck_assert_int_eq(lines[0].look, CLI_TOP_WARN);
    ck_assert(shows(count, "no gateway is there"));
    ck_assert(shows(count, "none"));
    bool is_down = false;
    bool is_late = false;
    for (uint32_t i = 0; i < count; i++) {
        is_down |= lines[i].look == CLI_TOP_BAD && strstr(lines[i].text, " down ") != NULL;
        is_late |= lines[i].look == CLI_TOP_WARN && strstr(lines[i].text, " 5.0s ") != NULL;
    }
    ck_assert(is_down);
    ck_assert(is_late);
    drop_node();
}
END_TEST

START_TEST(durations_and_sizes_are_short)
{
    char text[16];
    const struct {
        uint64_t value;
        const char *text;
    } durations[] = {{0, "0.0s"},       {9999, "9.9s"},     {61000, "61s"},
                     {100000, "1m40s"}, {7500000, "2h05m"}, {UINT64_C(100) * 3600000, "4d04h"}};
    for (size_t i = 0; i < sizeof durations / sizeof durations[0]; i++) {
        cli_look_duration(durations[i].value, text);
        ck_assert_str_eq(text, durations[i].text);
    }
    cli_look_size(512, text);
    ck_assert_str_eq(text, "512B");
    cli_look_size(UINT64_C(3) << 29, text);
    ck_assert_str_eq(text, "1.5G");
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("cli.top");
    TCase *test = tcase_create("top");
    tcase_add_test(test, it_fits_every_window);
    tcase_add_test(test, each_request_has_its_reason);
    tcase_add_test(test, what_is_wrong_stands_out);
    tcase_add_test(test, durations_and_sizes_are_short);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
