/* Two kv-transfer processes with arenas in shared memory: bytes over every way and between unequal
 * degrees, and what happens when one of them dies, freezes, loses or spoils something. */
#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_node.h"
#include "proto_clock.h"

enum { COLUMNS = 12 };

static cluster_t cluster;
static uint64_t next_transfer = 1000;

static const cluster_options_t shared = {.way = ACTOR_KV_WAY_SHARED,
                                         .source_ranks = 1,
                                         .destination_ranks = 1,
                                         .checksums = true};
static const cluster_options_t tcp = {.way = ACTOR_KV_WAY_TCP,
                                      .source_ranks = 1,
                                      .destination_ranks = 1,
                                      .checksums = true};

static bool
both_are_done(const cluster_t *self)
{
    return self->source.role.done_count > 0 && self->destination.role.done_count > 0;
}

static bool
destination_is_done(const cluster_t *self)
{
    return self->destination.role.done_count > 0;
}

static bool
source_is_done(const cluster_t *self)
{
    return self->source.role.done_count > 0;
}

static void
forget(void)
{
    cluster.source.role.done_count = 0;
    cluster.destination.role.done_count = 0;
    cluster.source.scheduler.fenced_count = 0;
    cluster.destination.scheduler.fenced_count = 0;
}

/* A whole transfer, at once. */
static uint64_t
begin(uint32_t columns)
{
    uint64_t transfer = next_transfer++;
    forget();
    cluster_expect(&cluster, transfer, columns);
    cluster_serve(&cluster, transfer, columns);
    cluster_part(&cluster, transfer, 0, 0, columns, true, 0, 7);
    return transfer;
}

static void
expect_ok(uint32_t columns, uint32_t seed)
{
    cluster_wait(&cluster, both_are_done, "both roles are told");
    ck_assert_msg(cluster.destination.role.done_status == STATUS_OK, "%s",
                  cluster.destination.role.done_detail);
    ck_assert_msg(cluster.source.role.done_status == STATUS_OK, "%s",
                  cluster.source.role.done_detail);
    ck_assert(cluster_is_right(&cluster, columns, seed));
}

static void
run_once(uint32_t seed)
{
    cluster_fill(&cluster, seed);
    (void)begin(COLUMNS);
    expect_ok(COLUMNS, seed);
}

static bool
source_has_answered(const cluster_t *self)
{
    return self->source.role.done_count > 0 && self->source.scheduler.fenced_count > 0;
}

/* Until the source has taken all that its role and its scheduler have said: each link keeps its
 * order, and an unknown transfer is answered at once. */
static void
sync_source(void)
{
    uint64_t unknown = next_transfer++;
    node_cancel(&cluster.source, unknown);
    node_fence(&cluster.source, unknown);
    cluster_wait(&cluster, source_has_answered, "the source has heard all");
    cluster.source.role.done_count = 0;
    cluster.source.scheduler.fenced_count = 0;
}

/* Every way, and ranks that are not the same number. */
START_TEST(bytes_arrive_whatever_the_ranks)
{
    static const uint32_t ranks[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 4}};
    for (uint32_t way = 0; way < 2; way++) {
        cluster_options_t options = way == 0 ? shared : tcp;
        options.source_ranks = ranks[_i][0];
        options.destination_ranks = ranks[_i][1];
        cluster_open(&cluster, &options);
        run_once(1);
        run_once(2);
        cluster_close(&cluster);
    }
}
END_TEST

/* Layers go as the executor's words say, chunk by chunk; nothing goes before. */
START_TEST(layers_follow_the_steps)
{
    cluster_options_t options = _i == 0 ? shared : tcp;
    options.source_ranks = 2;
    cluster_open(&cluster, &options);
    cluster_fill(&cluster, 3);
    uint64_t transfer = next_transfer++;
    forget();
    cluster_expect(&cluster, transfer, COLUMNS);
    cluster_serve(&cluster, transfer, COLUMNS);
    cluster_part(&cluster, transfer, 0, 0, 5, false, 40, 7);
    sync_source();
    ck_assert(cluster_is_untouched(&cluster));
    cluster_layers(&cluster, 40, 1);
    cluster_layers(&cluster, 40, NODE_LAYERS);
    cluster_part(&cluster, transfer, 1, 5, COLUMNS, true, 41, 7);
    cluster_layers(&cluster, 41, 2);
    sync_source();
    ck_assert_uint_eq(cluster.destination.role.done_count, 0);
    cluster_layers(&cluster, 41, PROTO_LAYERS_ALL);
    expect_ok(COLUMNS, 3);
    cluster_close(&cluster);
}
END_TEST

/* One spoilt byte: the sum tells, both roles hear it, and the next transfer is right. */
START_TEST(a_spoilt_byte_fails_the_transfer)
{
    cluster_options_t options = _i == 0 ? shared : tcp;
    options.destination_fault = "kv.receive.corrupt:drop:1";
    cluster_open(&cluster, &options);
    cluster_fill(&cluster, 4);
    (void)begin(COLUMNS);
    cluster_wait(&cluster, both_are_done, "both roles are told");
    ck_assert_int_eq(cluster.destination.role.done_status, STATUS_ERR_MALFORMED);
    ck_assert_str_eq(cluster.destination.role.done_code, "checksum");
    ck_assert_int_lt(cluster.source.role.done_status, 0);
    run_once(5);
    cluster_close(&cluster);
}
END_TEST

/* A block that another owner got meanwhile: the newer generation wins, the older one is refused. */
START_TEST(a_stale_generation_is_refused)
{
    cluster_options_t options = _i == 0 ? shared : tcp;
    options.destination_fault = "kv.receive.before_check:delay:1:1";
    cluster_open(&cluster, &options);
    cluster_fill(&cluster, 6);
    /* The first is announced with a step that is not over; the second names the same blocks. */
    uint64_t old = next_transfer++;
    forget();
    cluster_expect(&cluster, old, 4);
    cluster_serve(&cluster, old, 4);
    (void)kill(cluster.destination.pid, SIGSTOP);
    cluster_part(&cluster, old, 0, 0, 4, true, 0, 7);
    uint64_t young = next_transfer++;
    cluster_serve(&cluster, young, 4);
    cluster_part(&cluster, young, 0, 0, 4, true, 0, 8);
    sync_source(); /* its blocks are of the newer generation */
    (void)kill(cluster.destination.pid, SIGCONT);
    cluster_wait(&cluster, destination_is_done, "the old one is refused");
    ck_assert_int_eq(cluster.destination.role.done_status, STATUS_ERR_STALE);
    ck_assert(cluster_is_untouched(&cluster) || _i == 0);
    cluster_close(&cluster);
}
END_TEST

/* Lost on the data lane: whoever waits gives up by its deadline; nobody hangs. */
START_TEST(a_lost_pull_ends_by_its_deadline)
{
    cluster_options_t options = tcp;
    options.source_fault = _i == 0 ? "kv.send.drop:drop:1" : "kv.send.before_end:drop:1";
    if (_i == 2) {
        options.source_fault = NULL;
        options.destination_fault = "kv.receive.drop:drop:1";
    }
    options.stall_ns = 1000000000;
    cluster_open(&cluster, &options);
    cluster_fill(&cluster, 7);
    (void)begin(COLUMNS);
    cluster_wait(&cluster, both_are_done, "both roles are told");
    ck_assert_int_lt(cluster.destination.role.done_status, 0);
    ck_assert_int_lt(cluster.source.role.done_status, 0);
    ck_assert(cluster_is_untouched(&cluster));
    run_once(8);
    cluster_close(&cluster);
}
END_TEST

static bool
destination_is_fenced(const cluster_t *self)
{
    return self->destination.scheduler.fenced_count > 0;
}

static bool
source_is_fenced(const cluster_t *self)
{
    return self->source.scheduler.fenced_count > 0;
}

/* A source whose data thread is stuck in the middle delays neither a fence nor a cancel at the
 * destination, and what it sends afterwards lands nowhere. */
START_TEST(a_stuck_source_delays_no_fence)
{
    cluster_options_t options = tcp;
    options.source_fault = "kv.send.before_end:delay:1:3000";
    cluster_open(&cluster, &options);
    cluster_fill(&cluster, 9);
    uint64_t transfer = begin(COLUMNS);
    cluster_pass(&cluster, 100);
    uint64_t begin_ns = proto_clock_monotonic_ns(proto_clock_system());
    node_fence(&cluster.destination, transfer);
    cluster_wait(&cluster, destination_is_fenced, "the fence holds");
    uint64_t took_ns = proto_clock_monotonic_ns(proto_clock_system()) - begin_ns;
    ck_assert_uint_lt(took_ns, UINT64_C(2500000000)); /* the source goes on after three seconds */
    ck_assert_int_eq(cluster.destination.role.done_status, STATUS_ERR_CANCELLED);
    cluster_pass(&cluster, 3500); /* until it goes on */
    ck_assert(cluster_is_untouched(&cluster));
    cluster_close(&cluster);
}
END_TEST

/* A destination that is stuck between its copy and its check delays no fence at the source; what it
 * read stays without effect. */
START_TEST(a_stuck_destination_delays_no_fence)
{
    cluster_options_t options = shared;
    options.destination_fault = "kv.receive.before_check:delay:1:3000";
    cluster_open(&cluster, &options);
    cluster_fill(&cluster, 10);
    uint64_t transfer = begin(COLUMNS);
    cluster_pass(&cluster, 100);
    node_fence(&cluster.source, transfer);
    cluster_wait(&cluster, source_is_fenced, "the fence holds");
    cluster_wait(&cluster, destination_is_done, "the destination is told");
    ck_assert_int_lt(cluster.destination.role.done_status, 0);
    cluster_close(&cluster);
}
END_TEST

/* A cancel is answered on both sides, and the next transfer is right. */
START_TEST(a_cancel_is_answered)
{
    cluster_open(&cluster, _i == 0 ? &shared : &tcp);
    cluster_fill(&cluster, 11);
    uint64_t transfer = next_transfer++;
    forget();
    cluster_expect(&cluster, transfer, COLUMNS);
    cluster_serve(&cluster, transfer, COLUMNS);
    node_cancel(&cluster.destination, transfer);
    cluster_wait(&cluster, both_are_done, "both roles are told");
    ck_assert_int_lt(cluster.source.role.done_status, 0);
    ck_assert_int_eq(cluster.destination.role.done_status, STATUS_ERR_CANCELLED);
    run_once(12);
    cluster_close(&cluster);
}
END_TEST

/* One side is killed in the middle: the other's role is told; a new incarnation at the same place
 * serves the next transfer. */
START_TEST(a_killed_side_is_another_one_afterwards)
{
    bool kills_source = _i % 2 == 0;
    cluster_options_t options = _i < 2 ? shared : tcp;
    cluster_open(&cluster, &options);
    run_once(13);
    cluster_fill(&cluster, 14);
    uint64_t transfer = next_transfer++;
    forget();
    cluster_expect(&cluster, transfer, COLUMNS);
    cluster_serve(&cluster, transfer, COLUMNS);
    cluster_part(&cluster, transfer, 0, 0, 3, false, 0, 7);
    cluster_pass(&cluster, 50);
    node_t *victim = kills_source ? &cluster.source : &cluster.destination;
    cluster_kill(&cluster, victim);
    cluster_wait(&cluster, kills_source ? destination_is_done : source_is_done,
                 "the survivor's role is told");
    const puppet_t *told = kills_source ? &cluster.destination.role : &cluster.source.role;
    ck_assert_int_eq(told->done_status, STATUS_ERR_PEER_LOST);
    cluster_start(&cluster, victim, NULL);
    cluster_register(&cluster, victim);
    run_once(15);
    cluster_close(&cluster);
}
END_TEST

static uint32_t
count_files(pid_t pid)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    uint32_t count = 0;
    while (readdir(dir) != NULL) {
        count++;
    }
    (void)closedir(dir);
    return count;
}

/* Many transfers, some of them cancelled: as many descriptors as before. */
START_TEST(nothing_is_left_of_many_transfers)
{
    cluster_open(&cluster, _i == 0 ? &shared : &tcp);
    run_once(16);
    uint32_t before = count_files(cluster.source.pid) + count_files(cluster.destination.pid);
    for (uint32_t i = 0; i < 30; i++) {
        cluster_fill(&cluster, 17 + i);
        uint64_t transfer = begin(COLUMNS);
        if (i % 3 == 0) {
            node_cancel(i % 2 == 0 ? &cluster.source : &cluster.destination, transfer);
            cluster_wait(&cluster, both_are_done, "both roles are told");
        } else {
            expect_ok(COLUMNS, 17 + i);
        }
    }
    ck_assert_uint_le(count_files(cluster.source.pid) + count_files(cluster.destination.pid),
                      before);
    cluster_close(&cluster);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.kv_process");
    TCase *tests = tcase_create("process");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, bytes_arrive_whatever_the_ranks, 0, 4);
    tcase_add_loop_test(tests, layers_follow_the_steps, 0, 2);
    tcase_add_loop_test(tests, a_spoilt_byte_fails_the_transfer, 0, 2);
    tcase_add_loop_test(tests, a_stale_generation_is_refused, 0, 2);
    tcase_add_loop_test(tests, a_lost_pull_ends_by_its_deadline, 0, 3);
    tcase_add_test(tests, a_stuck_source_delays_no_fence);
    tcase_add_test(tests, a_stuck_destination_delays_no_fence);
    tcase_add_loop_test(tests, a_cancel_is_answered, 0, 2);
    tcase_add_loop_test(tests, a_killed_side_is_another_one_afterwards, 0, 4);
    tcase_add_loop_test(tests, nothing_is_left_of_many_transfers, 0, 2);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
