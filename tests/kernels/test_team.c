/* The team: every chunk once, barriers that hold, sleep when idle. */
#include <check.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kern_share.h"
#include "kern_team.h"

enum {
    CHUNKS = 257,
    PHASES = 50,
};

typedef struct {
    _Atomic uint32_t claims[PHASES][CHUNKS];
    _Atomic uint32_t early; /* chunks of a phase seen unfinished after its barrier */
} phases_t;

/* After each barrier every chunk of the phase before must be done, whoever did it. */
static void
phases_host(const void *args, kern_share_t *share)
{
    phases_t *phases = *(phases_t *const *)args;
    for (int phase = 0; phase < PHASES; phase++) {
        for (uint32_t chunk = kern_share_claim(share); chunk < CHUNKS;
             chunk = kern_share_claim(share)) {
            atomic_fetch_add(&phases->claims[phase][chunk], 1);
        }
        kern_share_sync(share);
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            if (atomic_load(&phases->claims[phase][chunk]) != 1) {
                atomic_fetch_add(&phases->early, 1);
            }
        }
    }
}

START_TEST(every_chunk_of_every_phase_is_claimed_once)
{
    uint32_t thread_count = (uint32_t)_i;
    kern_team_options_t options = {.thread_count = thread_count, .path = KERN_PATH_PORTABLE};
    kern_team_t *team = NULL;
    ck_assert_int_eq(kern_team_new(&options, &team), STATUS_OK);
    ck_assert_uint_eq(kern_team_thread_count(team), thread_count);
    phases_t *phases = calloc(1, sizeof *phases);
    ck_assert(phases != NULL);
    for (int run = 0; run < 20; run++) {
        memset(phases, 0, sizeof *phases);
        kern_team_run(team, phases_host, &phases);
        ck_assert_uint_eq(atomic_load(&phases->early), 0);
    }
    free(phases);
    kern_team_destroy(&team);
    ck_assert(team == NULL);
    kern_team_destroy(&team);
}
END_TEST

typedef struct {
    uint32_t *log;
    _Atomic uint32_t *at;
    uint32_t value;
} append_args_t;

static void
append_host(const void *args_void, kern_share_t *share)
{
    const append_args_t *args = args_void;
    if (kern_share_claim(share) == 0) {
        args->log[atomic_fetch_add(args->at, 1)] = args->value;
    }
}

/* Commands of a list run one after the other, and chunks start at 0 in each. */
START_TEST(a_list_runs_in_order)
{
    enum { COUNT = 500 };
    static uint32_t log[COUNT];
    static append_args_t args[COUNT];
    static kern_command_t commands[COUNT];
    kern_team_options_t options = {.thread_count = 3, .path = KERN_PATH_PORTABLE};
    kern_team_t *team = NULL;
    ck_assert_int_eq(kern_team_new(&options, &team), STATUS_OK);
    for (int run = 0; run < 20; run++) {
        _Atomic uint32_t at = 0;
        for (uint32_t i = 0; i < COUNT; i++) {
            args[i] = (append_args_t){log, &at, i};
            commands[i] = (kern_command_t){append_host, &args[i]};
        }
        kern_team_run_list(team, commands, COUNT);
        ck_assert_uint_eq(atomic_load(&at), COUNT);
        for (uint32_t i = 0; i < COUNT; i++) {
            ck_assert_uint_eq(log[i], i);
        }
        kern_team_run_list(team, commands, 0);
    }
    kern_team_destroy(&team);
}
END_TEST

static double
seconds(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

typedef struct {
    uint32_t claims;
    uint32_t threads;
    uint32_t calls;
} alone_t;

static void
alone_host(const void *args, kern_share_t *share)
{
    alone_t *alone = *(alone_t *const *)args;
    alone->threads = share->thread_count;
    alone->calls++;
    while (kern_share_claim(share) < CHUNKS) {
        alone->claims++; /* not atomic: nobody else may be here */
    }
    kern_share_sync(share);
}

/* Small operations run without the helpers, between lists that run with them. */
START_TEST(an_operation_can_run_on_one_thread)
{
    kern_team_options_t options = {.thread_count = 4, .path = KERN_PATH_PORTABLE};
    kern_team_t *team = NULL;
    ck_assert_int_eq(kern_team_new(&options, &team), STATUS_OK);
    phases_t *phases = calloc(1, sizeof *phases);
    ck_assert(phases != NULL);
    for (int run = 0; run < 20; run++) {
        alone_t state = {.claims = 0};
        alone_t *alone = &state;
        kern_command_t commands[] = {{alone_host, &alone}, {alone_host, &alone}};
        kern_team_run_alone(team, commands, 2);
        ck_assert_uint_eq(state.calls, 2);
        ck_assert_uint_eq(state.threads, 1);
        ck_assert_uint_eq(state.claims, 2 * CHUNKS); /* each begins with chunk 0 */
        memset(phases, 0, sizeof *phases);
        kern_team_run(team, phases_host, &phases);
        ck_assert_uint_eq(atomic_load(&phases->early), 0);
    }
    free(phases);
    kern_team_destroy(&team);
}
END_TEST

/* Other actors need the processors: an idle team must use next to none. */
START_TEST(an_idle_team_sleeps)
{
    kern_team_options_t options = {.thread_count = 4, .path = KERN_PATH_PORTABLE};
    kern_team_t *team = NULL;
    ck_assert_int_eq(kern_team_new(&options, &team), STATUS_OK);
    phases_t *phases = calloc(1, sizeof *phases);
    ck_assert(phases != NULL);
    kern_team_run(team, phases_host, &phases);
    double end = seconds(CLOCK_MONOTONIC) + 10.0;
    double used = 1.0;
    /* Some 100 ms in which the process used less than a tenth of one processor. */
    while (used > 0.010 && seconds(CLOCK_MONOTONIC) < end) {
        double before = seconds(CLOCK_PROCESS_CPUTIME_ID);
        struct timespec pause = {.tv_nsec = 100000000};
        clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
        used = seconds(CLOCK_PROCESS_CPUTIME_ID) - before;
    }
    ck_assert_double_le(used, 0.010);
    /* And it still works. */
    memset(phases, 0, sizeof *phases);
    kern_team_run(team, phases_host, &phases);
    ck_assert_uint_eq(atomic_load(&phases->early), 0);
    free(phases);
    kern_team_destroy(&team);
}
END_TEST

START_TEST(impossible_teams_are_refused)
{
    kern_team_t *team = NULL;
    kern_team_options_t many = {.thread_count = KERN_THREADS_MAX + 1};
    ck_assert_int_eq(kern_team_new(&many, &team), STATUS_ERR_CONFIG);
    kern_team_options_t nowhere = {.thread_count = 1, .path = KERN_PATH_COUNT};
    ck_assert_int_eq(kern_team_new(&nowhere, &team), STATUS_ERR_CONFIG);
    ck_assert(team == NULL);
}
END_TEST

START_TEST(paths_are_found_by_name)
{
    kern_path_t path = KERN_PATH_COUNT;
    ck_assert(kern_path_find("portable", &path));
    ck_assert_int_eq(path, KERN_PATH_PORTABLE);
    ck_assert(kern_path_find("auto", &path));
    ck_assert_int_eq(path, kern_path_best());
    ck_assert(kern_path_find(NULL, &path));
    ck_assert(!kern_path_find("sse", &path));
    ck_assert(!kern_path_find("", &path));
    ck_assert_int_eq(path, kern_path_best());
    for (int i = 0; i < KERN_PATH_COUNT; i++) {
        kern_path_t found = KERN_PATH_COUNT;
        bool available = kern_path_available((kern_path_t)i);
        ck_assert(kern_path_find(kern_path_name((kern_path_t)i), &found) == available);
        ck_assert(!available || (int)found == i);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("kernels.team");
    TCase *tests = tcase_create("team");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, every_chunk_of_every_phase_is_claimed_once, 1, 6);
    tcase_add_test(tests, a_list_runs_in_order);
    tcase_add_test(tests, an_operation_can_run_on_one_thread);
    tcase_add_test(tests, an_idle_team_sleeps);
    tcase_add_test(tests, impossible_teams_are_refused);
    tcase_add_test(tests, paths_are_found_by_name);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
