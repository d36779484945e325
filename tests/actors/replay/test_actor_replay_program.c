/* A program as the core: the same comparison, and bounds on everything that it may do. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_replay.h"
#include "toy_core.h"
#include "toy_log.h"

static char folder[64];
static char path[4096];
static char command[4096];
static const char *paths[1];
static actor_replay_options_t options;
static actor_replay_report_t report;

static void
setup(void)
{
    toy_folder_make(folder);
    paths[0] = path;
    options = (actor_replay_options_t){.paths = paths,
                                       .path_count = 1,
                                       .program = command,
                                       .answer_timeout_ns = 20000000000u};
    const toy_log_options_t log = {.folder = folder, .input_count = 200, .random = 11};
    toy_log_write(&log, path);
}

static void
teardown(void)
{
    toy_folder_remove(folder);
}

static void
replay(const char *mode, uint64_t at)
{
    (void)snprintf(command, sizeof command, "exec %s %s %lu", TOY_PROGRAM, mode, (unsigned long)at);
    ck_assert_int_eq(actor_replay_run(&options, &report), STATUS_OK);
}

START_TEST(a_right_program_diverges_nowhere)
{
    replay(_i == 0 ? "right" : "digest", 0);
    ck_assert_msg(report.outcome == ACTOR_REPLAY_SAME, "%s", report.detail);
    ck_assert_uint_eq(report.input_count, 200);
    ck_assert_uint_gt(report.output_count, 130);
    ck_assert_uint_eq(report.digest_count > 0, _i == 1);
}
END_TEST

START_TEST(a_wrong_program_is_found)
{
    for (uint64_t at = 50;; at++) {
        ck_assert_uint_lt(at, 60);
        replay("wrong", at);
        if (report.outcome != ACTOR_REPLAY_SAME) {
            ck_assert_int_eq(report.outcome, ACTOR_REPLAY_DIVERGED);
            ck_assert_str_eq(report.finding.path, "heartbeat.step");
            ck_assert_uint_eq(report.input.number, at);
            return;
        }
    }
}
END_TEST

/* Each is an error with a sentence, at the input where it happened. */
static const struct {
    const char *mode;
    const char *words;
    uint64_t late; /* inputs until it is noticed */
} bad[] = {
    {"garbage", "is no record", 0},    {"exit", "exit code 9", 0},
    {"close", "closed its output", 0}, {"late", "did not answer within 500 ms", 0},
    {"sequence", "names record", 0},   {"kind", "NOTE", 0},
    {"empty", "is no message", 0},     {"twice", "", 1},
    {"flood", "more than", 0},
};

START_TEST(a_bad_program_is_an_error)
{
    options.answer_timeout_ns = strcmp(bad[_i].mode, "late") == 0 ? 500000000u : 20000000000u;
    replay(bad[_i].mode, 30);
    if (strcmp(bad[_i].mode, "twice") == 0 && report.outcome == ACTOR_REPLAY_DIVERGED) {
        /* The second answer was read as that of the next input, or the first as all of it. */
        ck_assert_uint_le(report.input.number, 31);
        return;
    }
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_DIED);
    ck_assert_msg(strstr(report.detail, bad[_i].words) != NULL, "%s", report.detail);
    ck_assert_uint_ge(report.input.number, 30);
    ck_assert_uint_le(report.input.number, 30 + bad[_i].late);
}
END_TEST

START_TEST(a_program_that_is_not_there)
{
    (void)snprintf(command, sizeof command, "/nowhere/at/all");
    ck_assert_int_eq(actor_replay_run(&options, &report), STATUS_OK);
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_DIED);
    ck_assert_ptr_nonnull(strstr(report.detail, "exit code 127"));
}
END_TEST

/* A program has no snapshots, so it must see everything. */
START_TEST(a_program_needs_the_begin)
{
    toy_folder_remove(folder);
    toy_folder_make(folder);
    const toy_log_options_t log = {
        .folder = folder, .input_count = 200, .random = 11, .drop_at = 1, .drop_count = 20};
    toy_log_write(&log, path);
    replay("right", 0);
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_REFUSED);
    ck_assert_ptr_nonnull(strstr(report.detail, "first input"));
}
END_TEST

/* And what was recorded without snapshots at all, from its first record on, will do. */
START_TEST(a_program_needs_no_snapshot)
{
    toy_folder_remove(folder);
    toy_folder_make(folder);
    const toy_log_options_t log = {.folder = folder,
                                   .input_count = 200,
                                   .random = 11,
                                   .no_first_snapshot = true,
                                   .snapshot_interval = 1000};
    toy_log_write(&log, path);
    replay("right", 0);
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_SAME);
    ck_assert_uint_eq(report.input_count, 200);
}
END_TEST

/* Behind a gap nothing can be said of a program: the part before it is. */
START_TEST(a_program_ends_at_a_gap)
{
    toy_folder_remove(folder);
    toy_folder_make(folder);
    const toy_log_options_t log = {.folder = folder,
                                   .input_count = 200,
                                   .random = 11,
                                   .drop_at = 100};
    toy_log_write(&log, path);
    replay("right", 0);
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_SAME);
    ck_assert_int_eq(report.end, ACTOR_REPLAY_END_GAP);
    ck_assert_uint_gt(report.input_count, 30);
    ck_assert_uint_lt(report.input_count, 100);
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("actors.replay_program");
    TCase *tc = tcase_create("program");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, a_right_program_diverges_nowhere, 0, 2);
    tcase_add_test(tc, a_wrong_program_is_found);
    tcase_add_loop_test(tc, a_bad_program_is_an_error, 0, (int)(sizeof bad / sizeof bad[0]));
    tcase_add_test(tc, a_program_that_is_not_there);
    tcase_add_test(tc, a_program_needs_the_begin);
    tcase_add_test(tc, a_program_needs_no_snapshot);
    tcase_add_test(tc, a_program_ends_at_a_gap);
    suite_add_tcase(s, tc);
    return s;
}

int
main(void)
{
    SRunner *runner = srunner_create(suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
