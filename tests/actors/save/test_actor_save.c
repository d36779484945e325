/* What a snapshot of the scheduler's and of the executor's core is worth: a core restored from it
 * says and does the same for ever; without its secret part it plans and refuses the same; and
 * damaged bytes are refused or give a core that keeps its invariants.
 *   test_actors_save [SEED [COUNT]]    COUNT lives of each kind from SEED on */
#include <check.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "save_node.h"

static uint64_t seed_first = 1;
static uint32_t seed_count; /* 0 = each test's own */

/* A flipped size may ask for much: that has to be an answer, not the end. */
const char *__asan_default_options(void);
const char *
__asan_default_options(void)
{
    return "allocator_may_return_null=1:max_allocation_size_mb=2048";
}

static node_t node; /* large: not for a stack */

static void
live_many(const char *name, const node_options_t *options, uint32_t count)
{
    uint32_t lives = seed_count != 0 ? seed_count : count;
    uint32_t restored = 0;
    uint32_t refused = 0;
    uint32_t complaints = 0;
    for (uint32_t i = 0; i < lives; i++) {
        /* The last line printed names the seed that failed. */
        printf("%s: seed %llu\n", name, (unsigned long long)(seed_first + i));
        fflush(stdout);
        node_open(&node, seed_first + i, options);
        for (uint32_t n = 0; n < 1500; n++) {
            node_step(&node, options);
        }
        node_settle(&node, options);
        node_end(&node, options);
        restored += node.restored;
        refused += node.refused_plans;
        complaints += node.complaints;
        node_close(&node);
    }
    printf("%s: %u twins, %u plans refused, %u complaints\n", name, restored, refused, complaints);
    ck_assert_uint_gt(restored, lives * 20);
    ck_assert(options->damage_percent == 0 || refused > lives);
    ck_assert(options->damage_percent < 30 || complaints > 0);
}

START_TEST(restored_cores_go_on_as_the_saved_ones)
{
    live_many("plain", &(node_options_t){0}, 25);
}
END_TEST

START_TEST(restored_cores_go_on_with_refused_plans)
{
    live_many("refusals", &(node_options_t){.damage_percent = 40, .fault_permille = 20}, 20);
}
END_TEST

START_TEST(restored_cores_go_on_with_sliding_groups)
{
    live_many("sliding", &(node_options_t){.sliding = true, .separate_gpu = true}, 15);
    live_many("sliding, overlapped", &(node_options_t){.sliding = true, .damage_percent = 5}, 15);
}
END_TEST

/* Redaction takes what people wrote, and nothing that decides. */
START_TEST(redacted_cores_plan_and_refuse_the_same)
{
    live_many("redacted", &(node_options_t){.redact = true, .damage_percent = 10}, 25);
}
END_TEST

/* ---- determinism ----------------------------------------------------------------------------- */

/* Everything that both cores say in one life, when fresh memory holds `fill` and lies elsewhere. */
static uint64_t
trace_of(uint64_t seed, const node_options_t *options, int fill)
{
    (void)mallopt(M_PERTURB, fill); /* a sanitizer's allocator has no such switch */
    void *shift = malloc((size_t)fill * 1000 + 1);
    ck_assert_ptr_nonnull(shift);
    node_open(&node, seed, options);
    for (uint32_t n = 0; n < 1500; n++) {
        node_step(&node, options);
    }
    node_settle(&node, options);
    uint64_t trace = node.trace;
    node_close(&node);
    free(shift);
    return trace;
}

/* A step depends on its inputs, and not on where things lie or what fresh memory held. */
START_TEST(same_inputs_give_the_same_bytes)
{
    static const node_options_t options = {.alone = true, .sliding = true, .damage_percent = 10};
    for (uint64_t seed = seed_first; seed < seed_first + 10; seed++) {
        uint64_t trace = trace_of(seed, &options, 0x11);
        ck_assert_uint_eq(trace_of(seed, &options, 0xee), trace);
        ck_assert_uint_eq(trace_of(seed, &options, 0x77), trace);
        ck_assert_uint_ne(trace_of(seed + 1, &options, 0x77), trace);
    }
}
END_TEST

/* ---- hostile bytes --------------------------------------------------------------------------- */

static node_actor_t *
actor_of(int role)
{
    return role == PROTO_ROLE_SCHEDULER ? &node.scheduler : &node.executor;
}

/* A node in the middle of its work. */
static void
make_busy_node(void)
{
    static const node_options_t options = {.sliding = true};
    node_open(&node, 5, &options);
    for (uint32_t n = 0; n < 400 || node.device.count == 0; n++) {
        ck_assert_uint_lt(n, 5000);
        node_step(&node, &options);
    }
}

/* Restores; if the bytes are taken, they must be what the core packs, and it must keep its
 * invariants when its work goes on. */
static bool
probe(const node_actor_t *actor, node_snapshot_t *snapshot)
{
    node_actor_t other = {.name = actor->name, .ops = actor->ops};
    proto_bytes_t state = {snapshot->state, snapshot->state_size};
    proto_bytes_t secret = {snapshot->secret, snapshot->secret_size};
    proto_error_t error = {""};
    actor_scheduler_core_t *scheduler = NULL;
    actor_executor_core_t *executor = NULL;
    bool schedules = actor->ops->role == PROTO_ROLE_SCHEDULER;
    proto_status_t status = schedules
                                ? actor_scheduler_core_restore(state, secret, &scheduler, &error)
                                : actor_executor_core_restore(state, secret, &executor, &error);
    if (status != STATUS_OK) {
        ck_assert(error.detail[0] != '\0');
        ck_assert(status == STATUS_ERR_MALFORMED || status == STATUS_ERR_VERSION ||
                  status == STATUS_ERR_NO_MEMORY);
        return false;
    }
    other.core = schedules ? (void *)scheduler : (void *)executor;
    other.ops->check(other.core);
    node_snapshot_t again;
    node_save(&other, other.core, &again);
    ck_assert_uint_eq(again.state_size, snapshot->state_size);
    ck_assert_int_eq(memcmp(again.state, snapshot->state, again.state_size), 0);
    ck_assert_uint_eq(again.secret_size, snapshot->secret_size);
    ck_assert_int_eq(memcmp(again.secret, snapshot->secret, again.secret_size), 0);
    node_snapshot_free(&again);
    node_drive(actor, other.core);
    actor_scheduler_core_destroy(&scheduler);
    actor_executor_core_destroy(&executor);
    return true;
}

START_TEST(every_truncation_is_refused)
{
    make_busy_node();
    const node_actor_t *actor = actor_of(_i);
    node_snapshot_t snapshot;
    node_save(actor, actor->core, &snapshot);
    printf("%s: a snapshot of %zu and %zu bytes\n", actor->name, snapshot.state_size,
           snapshot.secret_size);
    ck_assert(probe(actor, &snapshot));
    for (size_t size = 0; size < snapshot.state_size; size++) {
        node_snapshot_t cut = {.state = malloc(size + 1),
                               .state_size = size,
                               .secret = snapshot.secret,
                               .secret_size = snapshot.secret_size};
        ck_assert_ptr_nonnull(cut.state);
        memcpy(cut.state, snapshot.state, size);
        ck_assert(!probe(actor, &cut));
        free(cut.state);
    }
    for (size_t size = 0; size < snapshot.secret_size; size++) {
        node_snapshot_t cut = snapshot;
        cut.secret_size = size;
        ck_assert(!probe(actor, &cut));
    }
    node_snapshot_free(&snapshot);
    node_close(&node);
}
END_TEST

/* The layout before and the one after: no guess, and both numbers in the text. */
START_TEST(another_version_is_refused_with_both_numbers)
{
    make_busy_node();
    const node_actor_t *actor = actor_of(_i);
    node_snapshot_t snapshot;
    node_save(actor, actor->core, &snapshot);
    uint32_t own;
    memcpy(&own, snapshot.state, sizeof own);
    const uint32_t others[] = {own - 1, own + 1};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        memcpy(snapshot.state, &others[i], sizeof others[i]);
        proto_bytes_t state = {snapshot.state, snapshot.state_size};
        proto_bytes_t secret = {snapshot.secret, snapshot.secret_size};
        proto_error_t error = {""};
        actor_scheduler_core_t *scheduler = NULL;
        actor_executor_core_t *executor = NULL;
        proto_status_t status =
            _i == PROTO_ROLE_SCHEDULER
                ? actor_scheduler_core_restore(state, secret, &scheduler, &error)
                : actor_executor_core_restore(state, secret, &executor, &error);
        ck_assert_int_eq(status, STATUS_ERR_VERSION);
        char wanted[64];
        (void)snprintf(wanted, sizeof wanted, "its version is %u, this build reads %u", others[i],
                       own);
        ck_assert_msg(strstr(error.detail, wanted) != NULL, "%s", error.detail);
    }
    node_snapshot_free(&snapshot);
    node_close(&node);
}
END_TEST

/* Single bits, and values that are likely to hurt, a few at a time. */
START_TEST(damage_is_refused_or_consistent)
{
    make_busy_node();
    const node_actor_t *actor = actor_of(_i);
    node_snapshot_t good;
    node_save(actor, actor->core, &good);
    node_snapshot_t bad;
    node_save(actor, actor->core, &bad);
    node.random.state = seed_first;
    printf("%s: seed %llu\n", actor->name, (unsigned long long)seed_first);
    uint32_t taken = 0;
    for (size_t bit = 0; bit < 8 * good.state_size; bit += 1 + node_draw(&node, 12)) {
        bad.state[bit / 8] ^= (uint8_t)(1u << bit % 8);
        taken += probe(actor, &bad) ? 1 : 0;
        bad.state[bit / 8] = good.state[bit / 8];
    }
    printf("%s: single bits, %u taken\n", actor->name, taken);
    for (uint32_t n = 0; n < 5000; n++) {
        memcpy(bad.state, good.state, good.state_size);
        for (uint32_t k = 1 + node_draw(&node, 3); k > 0; k--) {
            static const uint32_t values[] = {0, 1, 2, 3, 4, 5, 8, 12, 64, 255, 65535, UINT32_MAX};
            uint32_t value = values[node_draw(&node, sizeof values / sizeof values[0])];
            size_t at = node_draw(&node, (uint32_t)good.state_size - 4);
            size_t from = node_draw(&node, (uint32_t)good.state_size - 4);
            uint32_t how = node_draw(&node, 3);
            if (how == 0) {
                bad.state[at] = (uint8_t)value;
            } else {
                memcpy(bad.state + at, how == 1 ? (uint8_t *)&value : good.state + from, 4);
            }
        }
        taken += probe(actor, &bad) ? 1 : 0;
    }
    printf("%s: 5000 damaged, %u taken in all\n", actor->name, taken);
    node_snapshot_free(&good);
    node_snapshot_free(&bad);
    node_close(&node);
}
END_TEST

int
main(int argument_count, char **arguments)
{
    if (argument_count > 1) {
        seed_first = strtoull(arguments[1], NULL, 10);
        seed_count = 1;
    }
    if (argument_count > 2) {
        seed_count = (uint32_t)strtoul(arguments[2], NULL, 10);
    }
    Suite *suite = suite_create("actors.save");
    TCase *lives = tcase_create("lives");
    tcase_set_timeout(lives, 600);
    tcase_add_test(lives, restored_cores_go_on_as_the_saved_ones);
    tcase_add_test(lives, restored_cores_go_on_with_refused_plans);
    tcase_add_test(lives, restored_cores_go_on_with_sliding_groups);
    tcase_add_test(lives, redacted_cores_plan_and_refuse_the_same);
    tcase_add_test(lives, same_inputs_give_the_same_bytes);
    suite_add_tcase(suite, lives);
    TCase *hostile = tcase_create("hostile");
    tcase_set_timeout(hostile, 600);
    tcase_add_loop_test(hostile, every_truncation_is_refused, PROTO_ROLE_SCHEDULER,
                        PROTO_ROLE_EXECUTOR + 1);
    tcase_add_loop_test(hostile, another_version_is_refused_with_both_numbers, PROTO_ROLE_SCHEDULER,
                        PROTO_ROLE_EXECUTOR + 1);
    tcase_add_loop_test(hostile, damage_is_refused_or_consistent, PROTO_ROLE_SCHEDULER,
                        PROTO_ROLE_EXECUTOR + 1);
    suite_add_tcase(suite, hostile);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
