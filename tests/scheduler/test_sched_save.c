/* Snapshots of the planning core as hostile bytes: cut, flipped and mixed up they are refused, or
 * they are a state that holds every invariant and says itself again.  That a good one goes on as
 * the saved core is the business of scheduler.random.
 *   test_scheduler_save [SEED]    another seed for the random flips */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sched_world.h"

static uint64_t seed = 1;

/* A flipped size may ask for much: that has to be an answer, not the end. */
const char *__asan_default_options(void);
const char *
__asan_default_options(void)
{
    return "allocator_may_return_null=1:max_allocation_size_mb=1024";
}

static uint64_t random_state;

static uint32_t
draw(uint32_t below)
{
    uint64_t x = random_state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ (x >> 31)) % below);
}

typedef struct {
    sched_world_t world;
    uint8_t *bytes;
    size_t size;
} snapshot_t;

static const sched_fake_options_t executor = {
    .slot_count = 4,
    .step_tokens_max = 12,
    .model_len_max = 64,
    .overlap_depth_max = 1,
    .page_tokens = 8,
    .parent_count = 28,
    .width = 2,
    .group_count = 3,
    .kinds = {0, 1, 2},
    .granularities = {4, 4, 4},
    .windows = {0, 8, 0},
    .packings = {1, 2, 1},
};

/* A core in the middle of everything: steps in flight, a retracted request, prefix pages that are
 * shared and cached, a refused plan, requests that wait, one that ended and was not taken. */
static void
make_snapshot(snapshot_t *self)
{
    sched_core_options_t options = {.slot_count_max = 4,
                                    .queue_len_max = 8,
                                    .overlap_depth_max = 1,
                                    .refusal_count_max = 9};
    sched_world_t *world = &self->world;
    sched_world_init(world, &options, &executor);
    for (uint32_t i = 0; i < 8; i++) {
        const sched_fake_request_t *request = sched_world_request(world, 12 + i, 20, 1, 8);
        proto_status_t status = sched_world_submit(world, request, (int64_t)(i % 3), NULL);
        ck_assert_int_eq(status, STATUS_OK);
    }
    bool found = false;
    for (uint32_t round = 0; round < 400 && !found; round++) {
        sched_world_result(world);
        if (round == 9) {
            sched_fake_refuse_next(world->fake);
        }
        while (sched_world_plan(world)) {
        }
        sched_world_refusal(world);
        world->now_ns += 1000000;
        sched_figures_t figures = sched_world_figures(world);
        found = figures.retracted_count > 0 && figures.in_flight_count > 1 &&
                figures.cached_count > 0 && figures.waiting_count > 0 && figures.retractions > 1;
    }
    ck_assert(found);
    /* An end that nobody has taken yet. */
    sched_event_t event = {.kind = SCHED_EVENT_FINISH,
                           .finish = {.owner = WORLD_OWNER, .request = 8, .token_index = 0}};
    ck_assert_int_eq(sched_core_advance(world->core, world->now_ns, &event, NULL), STATUS_OK);
    sched_core_check(world->core);
    self->bytes = sched_world_save(world->core, &self->size);
}

static void
free_snapshot(snapshot_t *self)
{
    free(self->bytes);
    sched_world_fini(&self->world);
}

/* What a core that a stranger described goes through next. */
static void
drive(sched_core_t *core)
{
    uint64_t now_ns = 1000000000;
    proto_plan_t plan;
    sched_admission_t admission;
    sched_finished_t end;
    for (uint32_t i = 0; i < 3; i++) {
        if (sched_core_next_plan(core, now_ns, &plan) == STATUS_OK) {
            while (sched_core_take_admission(core, &admission)) {
            }
            sched_core_check(core);
        }
        sched_event_t event = {.kind = SCHED_EVENT_TIME};
        ck_assert_int_eq(sched_core_advance(core, now_ns, &event, NULL), STATUS_OK);
        while (sched_core_take_finished(core, &end)) {
        }
        now_ns += 20000000;
    }
    sched_core_check(core);
    sched_core_detach(core, STATUS_ERR_PEER_LOST, "worker_lost");
    while (sched_core_take_finished(core, &end)) {
    }
    sched_core_check(core);
}

/* Tells whether the bytes were taken; if so, everything must hold. */
static bool
probe(snapshot_t *self, const uint8_t *bytes, size_t size)
{
    proto_unpack_t in = {.bytes = {bytes, size}};
    sched_core_t *core = NULL;
    proto_error_t error;
    proto_status_t status =
        sched_core_restore(&in, sched_world_restored, &self->world, &core, &error);
    if (status != STATUS_OK) {
        ck_assert(core == NULL);
        ck_assert(error.detail[0] != '\0');
        ck_assert(status == STATUS_ERR_MALFORMED || status == STATUS_ERR_VERSION ||
                  status == STATUS_ERR_NO_MEMORY);
        return false;
    }
    sched_core_check(core);
    size_t again_size;
    uint8_t *again = sched_world_save(core, &again_size);
    ck_assert_uint_eq(again_size, in.at);
    ck_assert_int_eq(memcmp(again, bytes, again_size), 0);
    free(again);
    drive(core);
    sched_core_destroy(&core);
    return true;
}

/* The snapshot itself is taken whole, and a byte more is not its own. */
START_TEST(whole_snapshot_is_taken)
{
    snapshot_t snapshot;
    make_snapshot(&snapshot);
    printf("a snapshot of %zu bytes\n", snapshot.size);
    ck_assert(probe(&snapshot, snapshot.bytes, snapshot.size));
    uint8_t *longer = malloc(snapshot.size + 1);
    ck_assert_ptr_nonnull(longer);
    memcpy(longer, snapshot.bytes, snapshot.size);
    longer[snapshot.size] = 0;
    proto_unpack_t in = {.bytes = {longer, snapshot.size + 1}};
    sched_core_t *core = NULL;
    proto_status_t status =
        sched_core_restore(&in, sched_world_restored, &snapshot.world, &core, NULL);
    ck_assert_int_eq(status, STATUS_OK);
    ck_assert_int_eq(proto_unpack_end(&in), STATUS_ERR_MALFORMED);
    sched_core_destroy(&core);
    free(longer);
    free_snapshot(&snapshot);
}
END_TEST

START_TEST(every_truncation_is_refused)
{
    snapshot_t snapshot;
    make_snapshot(&snapshot);
    for (size_t size = 0; size < snapshot.size; size++) {
        /* A copy of exactly this size: a byte read too far is seen by the sanitizer. */
        uint8_t *cut = malloc(size != 0 ? size : 1);
        ck_assert_ptr_nonnull(cut);
        memcpy(cut, snapshot.bytes, size);
        ck_assert(!probe(&snapshot, cut, size));
        free(cut);
    }
    free_snapshot(&snapshot);
}
END_TEST

START_TEST(every_flipped_bit_is_refused_or_consistent)
{
    snapshot_t snapshot;
    make_snapshot(&snapshot);
    uint32_t taken = 0;
    for (size_t bit = 0; bit < 8 * snapshot.size; bit++) {
        snapshot.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        taken += probe(&snapshot, snapshot.bytes, snapshot.size) ? 1 : 0;
        snapshot.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    printf("%zu flips, %u taken\n", 8 * snapshot.size, taken);
    free_snapshot(&snapshot);
}
END_TEST

/* Values that are likely to hurt, at random places, a few at a time. */
START_TEST(random_damage_is_refused_or_consistent)
{
    snapshot_t snapshot;
    make_snapshot(&snapshot);
    random_state = seed;
    printf("seed %llu\n", (unsigned long long)seed);
    uint8_t *bytes = malloc(snapshot.size);
    ck_assert_ptr_nonnull(bytes);
    uint32_t taken = 0;
    for (uint32_t n = 0; n < 20000; n++) {
        memcpy(bytes, snapshot.bytes, snapshot.size);
        for (uint32_t k = 1 + draw(3); k > 0; k--) {
            static const uint32_t values[] = {0, 1, 2, 3, 4, 5, 8, 12, 64, 255, 65535, UINT32_MAX};
            uint32_t value = values[draw(sizeof values / sizeof values[0])];
            size_t at = draw((uint32_t)snapshot.size - 4);
            if (draw(2) == 0) {
                bytes[at] = (uint8_t)value;
            } else if (draw(2) == 0) {
                memcpy(bytes + at, &value, sizeof value);
            } else {
                memcpy(bytes + at, snapshot.bytes + draw((uint32_t)snapshot.size - 4), 4);
            }
        }
        taken += probe(&snapshot, bytes, snapshot.size) ? 1 : 0;
    }
    printf("20000 damaged, %u taken\n", taken);
    free(bytes);
    free_snapshot(&snapshot);
}
END_TEST

START_TEST(another_version_is_told_apart)
{
    snapshot_t snapshot;
    make_snapshot(&snapshot);
    snapshot.bytes[0]++;
    proto_unpack_t in = {.bytes = {snapshot.bytes, snapshot.size}};
    sched_core_t *core = NULL;
    proto_error_t error;
    proto_status_t status =
        sched_core_restore(&in, sched_world_restored, &snapshot.world, &core, &error);
    ck_assert_int_eq(status, STATUS_ERR_VERSION);
    free_snapshot(&snapshot);
}
END_TEST

/* A pool of a million blocks costs a snapshot nothing until they are used. */
START_TEST(size_follows_what_is_in_use)
{
    sched_core_options_t options = {.slot_count_max = 4, .overlap_depth_max = 1};
    sched_world_t world;
    sched_world_init(&world, &options, &executor);
    proto_executor_info_t large = *sched_fake_info(world.fake);
    large.parent_count = 300000;
    sched_core_detach(world.core, STATUS_ERR_PEER_LOST, "worker_lost");
    ck_assert_int_eq(sched_core_attach(world.core, &large, NULL), STATUS_OK);
    size_t idle;
    free(sched_world_save(world.core, &idle));
    ck_assert_uint_lt(idle, 700);
    sched_fake_request_t *request = sched_world_request(&world, 30, 20, 1, 8);
    ck_assert_int_eq(sched_world_submit(&world, request, 0, NULL), STATUS_OK);
    proto_plan_t plan;
    sched_admission_t admission;
    ck_assert_int_eq(sched_core_next_plan(world.core, 1, &plan), STATUS_OK);
    ck_assert(sched_core_take_admission(world.core, &admission));
    size_t size;
    free(sched_world_save(world.core, &size));
    ck_assert_uint_lt(size, idle + 800);
    sched_world_fini(&world);
}
END_TEST

/* How often nothing could run is part of the state: the end comes at the same tick. */
START_TEST(stall_count_goes_on)
{
    sched_fake_options_t small = executor;
    small.slot_count = 1;
    sched_core_options_t options = {.slot_count_max = 1, .stall_ticks_max = 4};
    sched_world_t world;
    sched_world_init(&world, &options, &small);
    const sched_fake_request_t *first = sched_world_request(&world, 9, 20, 1, 0);
    const sched_fake_request_t *second = sched_world_request(&world, 9, 20, 2, 0);
    ck_assert_int_eq(sched_world_submit(&world, first, 0, NULL), STATUS_OK);
    ck_assert(sched_world_plan(&world));
    ck_assert(sched_world_result(&world));
    /* It ends, and its slot waits for a release that is refused again and again. */
    sched_world_finish(&world, first, 0, PROTO_FINISH_CANCELLED);
    ck_assert_int_eq(sched_world_submit(&world, second, 0, NULL), STATUS_OK);
    for (uint32_t tick = 0; tick < 40; tick++) {
        sched_world_twin(&world);
        (void)sched_world_plan(&world);
        (void)sched_world_result(&world);
        sched_world_time(&world, 10000000);
    }
    sched_world_run(&world);
    sched_world_expect_idle(&world);
    sched_world_fini(&world);
}
END_TEST

int
main(int argument_count, char **arguments)
{
    if (argument_count > 1) {
        seed = strtoull(arguments[1], NULL, 10);
    }
    Suite *suite = suite_create("scheduler.save");
    TCase *tcase = tcase_create("save");
    tcase_set_timeout(tcase, 600);
    tcase_add_test(tcase, whole_snapshot_is_taken);
    tcase_add_test(tcase, every_truncation_is_refused);
    tcase_add_test(tcase, every_flipped_bit_is_refused_or_consistent);
    tcase_add_test(tcase, random_damage_is_refused_or_consistent);
    tcase_add_test(tcase, another_version_is_told_apart);
    tcase_add_test(tcase, size_follows_what_is_in_use);
    tcase_add_test(tcase, stall_count_goes_on);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
