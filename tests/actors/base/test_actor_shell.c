/* Two cores, two shells, real sockets: what the shell promises when everybody behaves. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto_ring.h"
#include "support.h"

static test_core_t left;
static test_core_t right;

/* The left one binds, the right one connects; both links are up on return. */
static void
connect_pair(actor_shell_t **binder, actor_shell_t **connector, int ring_fd)
{
    test_core_init(&left, PROTO_ROLE_SCHEDULER, "scheduler");
    test_core_init(&right, PROTO_ROLE_EXECUTOR, "executor");
    actor_link_options_t bind = {.peer_role = PROTO_ROLE_EXECUTOR,
                                 .endpoint = test_endpoint("pair"),
                                 .bind = true};
    *binder = test_shell_with(
        &left, (actor_shell_options_t){.name = "scheduler", .epoch = 7, .ring_fd = ring_fd}, &bind);
    actor_link_options_t dial = {.peer_role = PROTO_ROLE_SCHEDULER,
                                 .endpoint = actor_shell_endpoint(*binder, 0)};
    *connector = test_shell(&right, "executor-0", 9, &dial);
    TEST_PUMP_UNTIL(left.peer != ACTOR_PEER_NONE && right.peer != ACTOR_PEER_NONE, 2000);
}

static void
end_pair(actor_shell_t **binder, actor_shell_t **connector)
{
    test_shell_end(connector);
    test_shell_end(binder);
    test_dir_remove();
}

/* The handshake tells each core whom it got; a thousand questions get a thousand answers. */
START_TEST(two_cores_talk)
{
    actor_shell_t *binder = NULL;
    actor_shell_t *connector = NULL;
    connect_pair(&binder, &connector, -1);
    ck_assert_uint_eq(test_core_last(&left, PROTO_KIND_PEER_UP)->epoch, 9);
    ck_assert_uint_eq(test_core_last(&right, PROTO_KIND_PEER_UP)->epoch, 7);
    for (uint32_t round = 1; round <= 1000; round++) {
        proto_body_t body = {.actor_state = {.done_bytes = round}};
        actor_shell_inject(round % 2 == 0 ? binder : connector, PROTO_KIND_ACTOR_STATE, round,
                           &body);
    }
    TEST_PUMP_UNTIL(test_core_count(&left, PROTO_KIND_LINKED) == 500 &&
                        test_core_count(&right, PROTO_KIND_LINKED) == 500,
                    5000);
    ck_assert_uint_eq(test_core_last(&left, PROTO_KIND_LINKED)->request, 1000);
    proto_stats_t stats;
    actor_shell_stats(binder, &stats);
    ck_assert_uint_ge(stats.messages_out, 1000);
    ck_assert_uint_ge(stats.messages_in, 1000);
    ck_assert_uint_eq(stats.refused_in, 0);
    end_pair(&binder, &connector);
}
END_TEST

/* Columns arrive whole and readable in place, whether libzmq hands the blob out of the middle of
 * its receive buffer (small) or in memory of its own (large). */
START_TEST(columns_arrive_aligned)
{
    actor_shell_t *binder = NULL;
    actor_shell_t *connector = NULL;
    connect_pair(&binder, &connector, -1);
    static const uint32_t counts[] = {1, 3, 100, 1000, 2500, 60000};
    static uint32_t blocks[60000];
    for (uint32_t index = 0; index < 60000; index++) {
        blocks[index] = index * 3 + 1;
    }
    uint32_t total = 0;
    for (uint32_t index = 0; index < sizeof counts / sizeof counts[0]; index++) {
        proto_body_t body = {.plan = {.step = index + 1, .patch_blocks = {blocks, counts[index]}}};
        actor_shell_inject(binder, PROTO_KIND_PLAN, 0, &body);
        total += counts[index];
    }
    TEST_PUMP_UNTIL(test_core_count(&left, PROTO_KIND_STEP_RESULT) == 6, 3000);
    ck_assert_uint_eq(right.plan_checked, total);
    end_pair(&binder, &connector);
}
END_TEST

static atomic_uint posted_ok;

static void *
post_many(void *context)
{
    actor_shell_t *shell = context;
    for (uint32_t index = 1; index <= 1000; index++) {
        proto_body_t body = {.finish = {.token_index = index}};
        if (actor_shell_post(shell, PROTO_KIND_FINISH, index, &body) == STATUS_OK) {
            atomic_fetch_add(&posted_ok, 1);
        }
        if (index % 100 == 0) {
            actor_shell_report(shell, ACTOR_STATE_LOADING, index, 1000, "loading");
        }
    }
    return NULL;
}

/* A device thread posts while the shell works; nothing is lost although the queue is small. */
START_TEST(other_threads_post)
{
    test_core_init(&left, PROTO_ROLE_EXECUTOR, "executor");
    actor_shell_t *shell = test_shell_with(
        &left, (actor_shell_options_t){.name = "executor", .epoch = 1, .post_size_bytes = 4096},
        NULL);
    pthread_t threads[2];
    for (uint32_t index = 0; index < 2; index++) {
        ck_assert_int_eq(pthread_create(&threads[index], NULL, post_many, shell), 0);
    }
    TEST_PUMP_UNTIL(test_core_count(&left, PROTO_KIND_FINISH) == 2000, 10000);
    for (uint32_t index = 0; index < 2; index++) {
        ck_assert_int_eq(pthread_join(threads[index], NULL), 0);
    }
    ck_assert_uint_eq(atomic_load(&posted_ok), 2000);
    test_shell_end(&shell);
}
END_TEST

static void *
post_until_refused(void *context)
{
    actor_shell_t *shell = context;
    proto_body_t body = {.finish = {.token_index = 1}};
    while (actor_shell_post(shell, PROTO_KIND_FINISH, 1, &body) == STATUS_OK) {
    }
    atomic_store(&posted_ok, 1);
    return NULL;
}

/* A producer that waits for room must not wait for a shell that ends. */
START_TEST(posting_ends_with_the_shell)
{
    test_core_init(&left, PROTO_ROLE_EXECUTOR, "executor");
    actor_shell_t *shell = test_shell_with(
        &left, (actor_shell_options_t){.name = "executor", .epoch = 1, .post_size_bytes = 1024},
        NULL);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, post_until_refused, shell), 0);
    TEST_PUMP_UNTIL(left.event_count > 10, 3000);
    actor_shell_stop(shell);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_eq(atomic_load(&posted_ok), 1);
    test_shell_end(&shell);
}
END_TEST

typedef struct {
    actor_shell_t *shell;
    uint32_t ends;
} local_t;

static void
on_local(void *context, const actor_emission_t *emission)
{
    local_t *local = context;
    ck_assert_int_eq(emission->kind, PROTO_KIND_HTTP_END);
    local->ends++;
    proto_body_t body = {.finish = {.token_index = local->ends}};
    actor_shell_inject(local->shell, PROTO_KIND_FINISH, local->ends, &body);
}

/* The HTTP side answers from within its callback (a stop string matched): the core gets that
 * input after the step in work, not in the middle of it. */
START_TEST(local_side_may_answer_within_its_callback)
{
    static local_t local;
    test_core_init(&left, PROTO_ROLE_GATEWAY, "gateway");
    left.emit_local = 1000;
    actor_shell_t *shell = test_shell_with(&left,
                                           (actor_shell_options_t){.name = "gateway",
                                                                   .epoch = 1,
                                                                   .local = on_local,
                                                                   .local_context = &local},
                                           NULL);
    local.shell = shell;
    proto_body_t body = {.finish = {.token_index = 0}};
    actor_shell_inject(shell, PROTO_KIND_FINISH, 77, &body);
    ck_assert_uint_eq(local.ends, 1000);
    ck_assert_uint_eq(left.event_count, 1001);
    ck_assert_uint_eq(left.events[1000].request, 1000);
    test_shell_end(&shell);
}
END_TEST

/* A deadline of the core comes back as a TIMER input, not before it has passed. */
START_TEST(deadline_becomes_timer)
{
    test_core_init(&left, PROTO_ROLE_SCHEDULER, "scheduler");
    actor_shell_t *shell = test_shell(&left, "scheduler", 1, NULL);
    left.deadline_ns = test_now_ns() + 20000000;
    uint64_t deadline_ns = left.deadline_ns;
    TEST_PUMP_UNTIL(test_core_count(&left, PROTO_KIND_TIMER) == 1, 1000);
    ck_assert_uint_ge(test_core_last(&left, PROTO_KIND_TIMER)->time_ns, deadline_ns);
    ck_assert_uint_lt(test_core_last(&left, PROTO_KIND_TIMER)->time_ns, deadline_ns + 500000000);
    test_shell_end(&shell);
}
END_TEST

/* Draining ends the actor when the core is idle, and not before. */
START_TEST(drain_waits_for_the_core)
{
    test_core_init(&left, PROTO_ROLE_GATEWAY, "gateway");
    left.busy = true;
    actor_shell_t *shell = test_shell(&left, "gateway", 1, NULL);
    actor_shell_drain(shell, UINT64_C(60000000000));
    TEST_PUMP_UNTIL(test_core_count(&left, PROTO_KIND_DRAIN) == 1, 1000);
    test_pump();
    test_pump();
    ck_assert_int_eq(test_status(shell), STATUS_OK);
    ck_assert(actor_shell_is_draining(shell));
    left.busy = false;
    TEST_PUMP_UNTIL(test_status(shell) == STATUS_END, 1000);
    test_shell_end(&shell);
}
END_TEST

/* A core that never gets idle is ended when its grace is over. */
START_TEST(drain_ends_with_its_grace)
{
    test_core_init(&left, PROTO_ROLE_GATEWAY, "gateway");
    left.busy = true;
    actor_shell_t *shell = test_shell(&left, "gateway", 1, NULL);
    actor_shell_drain(shell, 50000000);
    TEST_PUMP_UNTIL(test_status(shell) == STATUS_END, 2000);
    test_shell_end(&shell);
}
END_TEST

/* An orderly end reaches the other core at once, as the end of a link. */
START_TEST(goodbye_is_heard)
{
    actor_shell_t *binder = NULL;
    actor_shell_t *connector = NULL;
    connect_pair(&binder, &connector, -1);
    uint64_t begin_ns = test_now_ns();
    test_shell_end(&connector);
    TEST_PUMP_UNTIL(left.peer == ACTOR_PEER_NONE, 1000);
    ck_assert_uint_lt(test_now_ns() - begin_ns, 400000000);
    ck_assert_ptr_nonnull(
        strstr(test_core_last(&left, PROTO_KIND_PEER_DOWN)->detail, "said goodbye"));
    test_shell_end(&binder);
    test_dir_remove();
}
END_TEST

/* The ring holds each input in delivery order and each output with its cause. */
START_TEST(ring_holds_inputs_and_outputs_in_order)
{
    proto_ring_owner_t owner = {.name = "scheduler", .role = PROTO_ROLE_SCHEDULER, .epoch = 7};
    int fd = -1;
    ck_assert_int_eq(proto_ring_create(&owner, PROTO_RING_SIZE_MIN, &fd), STATUS_OK);
    actor_shell_t *binder = NULL;
    actor_shell_t *connector = NULL;
    connect_pair(&binder, &connector, fd);
    for (uint32_t round = 1; round <= 10; round++) {
        proto_body_t body = {.actor_state = {.done_bytes = round}};
        actor_shell_inject(binder, PROTO_KIND_ACTOR_STATE, round, &body);
    }
    TEST_PUMP_UNTIL(test_core_count(&left, PROTO_KIND_LINKED) == 10, 3000);
    proto_ring_reader_t *reader = NULL;
    ck_assert_int_eq(proto_ring_reader_open(fd, &reader), STATUS_OK);
    proto_log_record_t record;
    uint32_t in = 0;
    uint32_t out = 0;
    uint32_t definitions = 0;
    while (proto_ring_reader_next(reader, &record) == STATUS_OK) {
        definitions += record.kind == PROTO_LOG_CHANNEL_DEF ? 1 : 0;
        if (record.kind != PROTO_LOG_IN && record.kind != PROTO_LOG_OUT) {
            continue;
        }
        proto_header_t header;
        proto_body_t body;
        proto_bytes_t none = {NULL, 0};
        ck_assert_uint_ge(record.part_count, 2);
        ck_assert_int_eq(proto_header_decode(record.parts[0], &header), STATUS_OK);
        ck_assert_int_eq(proto_body_decode(header.kind, record.parts[1], none, &body, NULL),
                         STATUS_OK);
        if (record.kind == PROTO_LOG_IN) {
            ck_assert_int_eq(header.kind, left.events[in].kind);
            ck_assert_uint_eq(header.request, left.events[in].request);
            ck_assert_uint_eq(record.time_ns, left.events[in].time_ns);
            in++;
        } else {
            ck_assert_uint_eq(header.cause, in);
            out++;
        }
    }
    ck_assert_uint_eq(in, left.event_count);
    ck_assert_uint_eq(out, 10);
    ck_assert_uint_eq(definitions, 2); /* itself and its peer */
    proto_ring_reader_close(&reader);
    (void)close(fd);
    end_pair(&binder, &connector);
}
END_TEST

static proto_status_t
try_endpoint(const char *endpoint, bool bind)
{
    test_core_init(&left, PROTO_ROLE_SCHEDULER, "scheduler");
    actor_link_options_t link = {.endpoint = endpoint, .bind = bind};
    actor_shell_options_t options = {.name = "scheduler",
                                     .epoch = 1,
                                     .ops = &left.ops,
                                     .core = &left,
                                     .links = &link,
                                     .link_count = 1,
                                     .ring_fd = -1};
    actor_shell_t *shell = NULL;
    proto_status_t status = actor_shell_new(&options, &shell);
    actor_shell_destroy(&shell, 0);
    return status;
}

/* What cannot work is refused at the start, and nothing is opened to the world by mistake. */
START_TEST(bad_endpoints_are_refused)
{
    char path[256];
    (void)snprintf(path, sizeof path, "ipc:///tmp/%0200d", 1);
    ck_assert_int_eq(try_endpoint(path, true), STATUS_ERR_CONFIG);
    ck_assert_int_eq(try_endpoint("tcp://*:5555", true), STATUS_ERR_CONFIG);
    ck_assert_int_eq(try_endpoint("tcp://0.0.0.0:5555", true), STATUS_ERR_CONFIG);
    ck_assert_int_eq(try_endpoint("tcp://127.0.0.1.example.com:5555", false), STATUS_ERR_CONFIG);
    ck_assert_int_eq(try_endpoint("tcp://127.0.0.1:port", true), STATUS_ERR_CONFIG);
    ck_assert_int_eq(try_endpoint("pgm://127.0.0.1:5555", true), STATUS_ERR_CONFIG);
    ck_assert_int_eq(try_endpoint("", true), STATUS_ERR_CONFIG);
    ck_assert_int_eq(try_endpoint("tcp://127.0.0.1:*", true), STATUS_OK);
    ck_assert_int_eq(try_endpoint(test_endpoint("fine"), true), STATUS_OK);
    /* A socket file that was left behind is no reason to refuse. */
    ck_assert_int_eq(try_endpoint(test_endpoint("fine"), true), STATUS_OK);
    test_dir_remove();
}
END_TEST

/* libzmq would take the address of a living process over; the shell must not. */
START_TEST(endpoint_in_use_is_refused)
{
    actor_shell_t *binder = NULL;
    actor_shell_t *connector = NULL;
    connect_pair(&binder, &connector, -1);
    static test_core_t other;
    test_core_init(&other, PROTO_ROLE_SCHEDULER, "scheduler");
    actor_link_options_t link = {.endpoint = actor_shell_endpoint(binder, 0), .bind = true};
    actor_shell_options_t options = {.name = "scheduler",
                                     .epoch = 8,
                                     .ops = &other.ops,
                                     .core = &other,
                                     .links = &link,
                                     .link_count = 1,
                                     .ring_fd = -1};
    actor_shell_t *shell = NULL;
    ck_assert_int_eq(actor_shell_new(&options, &shell), STATUS_ERR_IO);
    proto_body_t body = {.actor_state = {.done_bytes = 1}};
    actor_shell_inject(connector, PROTO_KIND_ACTOR_STATE, 5, &body);
    TEST_PUMP_UNTIL(test_core_count(&right, PROTO_KIND_LINKED) == 1, 2000);
    end_pair(&binder, &connector);
}
END_TEST

/* Over TCP the binder chooses the port and tells it. */
START_TEST(binder_publishes_its_port)
{
    test_core_init(&left, PROTO_ROLE_SCHEDULER, "scheduler");
    test_core_init(&right, PROTO_ROLE_EXECUTOR, "executor");
    actor_link_options_t bind = {.endpoint = "tcp://127.0.0.1:*", .bind = true};
    actor_shell_t *binder = test_shell(&left, "scheduler", 1, &bind);
    ck_assert_ptr_null(strchr(actor_shell_endpoint(binder, 0), '*'));
    actor_link_options_t dial = {.endpoint = actor_shell_endpoint(binder, 0)};
    actor_shell_t *connector = test_shell(&right, "executor", 1, &dial);
    TEST_PUMP_UNTIL(left.peer != ACTOR_PEER_NONE && right.peer != ACTOR_PEER_NONE, 2000);
    end_pair(&binder, &connector);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.shell");
    TCase *test = tcase_create("two shells");
    tcase_set_timeout(test, 30);
    tcase_add_test(test, two_cores_talk);
    tcase_add_test(test, columns_arrive_aligned);
    tcase_add_test(test, other_threads_post);
    tcase_add_test(test, posting_ends_with_the_shell);
    tcase_add_test(test, local_side_may_answer_within_its_callback);
    tcase_add_test(test, deadline_becomes_timer);
    tcase_add_test(test, drain_waits_for_the_core);
    tcase_add_test(test, drain_ends_with_its_grace);
    tcase_add_test(test, goodbye_is_heard);
    tcase_add_test(test, ring_holds_inputs_and_outputs_in_order);
    tcase_add_test(test, bad_endpoints_are_refused);
    tcase_add_test(test, endpoint_in_use_is_refused);
    tcase_add_test(test, binder_publishes_its_port);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
