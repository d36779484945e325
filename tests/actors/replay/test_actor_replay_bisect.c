/* Bisect finds the input, with few replays. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_replay_bisect.h"
#include "toy_core.h"
#include "toy_log.h"

enum { INPUTS = 3000 };

static char folder[64];
static char path[4096];
static const char *paths[1];
static actor_replay_options_t options;
static actor_replay_bisect_t found;

static void
setup(void)
{
    toy_wrong = TOY_RIGHT;
    toy_folder_make(folder);
    paths[0] = path;
    options = (actor_replay_options_t){.paths = paths, .path_count = 1, .role = &toy_role};
    const toy_log_options_t log = {.folder = folder,
                                   .input_count = INPUTS,
                                   .random = 5,
                                   .snapshot_interval = 500};
    toy_log_write(&log, path);
}

static void
teardown(void)
{
    toy_folder_remove(folder);
}

START_TEST(nothing_is_found_where_nothing_is)
{
    ck_assert_int_eq(actor_replay_bisect(&options, NULL, folder, &found), STATUS_OK);
    ck_assert_int_eq(found.outcome, ACTOR_REPLAY_SAME);
    ck_assert_uint_eq(found.input_count, INPUTS);
    ck_assert_uint_eq(found.snapshot_count, 1 + INPUTS / 500);
    ck_assert_uint_eq(found.digest_count, 1 + INPUTS / 500 + INPUTS / 8);
}
END_TEST

/* A state that differs and shows in no message: the interval between two digests. */
START_TEST(a_silent_fault_is_narrowed_to_an_interval)
{
    toy_wrong = TOY_SILENT;
    toy_wrong_at = (uint64_t[]){1, 777, 1500, 1501, 2999}[_i];
    ck_assert_int_eq(actor_replay_bisect(&options, NULL, folder, &found), STATUS_OK);
    ck_assert_int_eq(found.outcome, ACTOR_REPLAY_DIVERGED);
    ck_assert_uint_lt(found.good_input, toy_wrong_at);
    ck_assert_uint_ge(found.bad_input, toy_wrong_at);
    ck_assert_uint_le(found.bad_input - found.good_input, 8);
    ck_assert_uint_le(found.probe_count, 12);
    ck_assert_int_eq(found.last.finding.what == ACTOR_REPLAY_FIND_DIGEST ||
                         found.last.finding.what == ACTOR_REPLAY_FIND_STATE,
                     1);
}
END_TEST

/* The digests of a build that is right name the very input. */
START_TEST(another_build_makes_it_exact)
{
    char good[128];
    char command[256];
    (void)snprintf(good, sizeof good, "%s/right", folder);
    options.digests_path = good;
    static actor_replay_report_t report;
    ck_assert_int_eq(actor_replay_run(&options, &report), STATUS_OK);
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_SAME);
    options.digests_path = NULL;
    toy_wrong = TOY_SILENT;
    toy_wrong_at = 1717;
    (void)snprintf(command, sizeof command, "test -f {log} && cat %s", good);
    ck_assert_int_eq(actor_replay_bisect(&options, command, folder, &found), STATUS_OK);
    ck_assert_int_eq(found.outcome, ACTOR_REPLAY_DIVERGED);
    ck_assert(found.is_by_digest);
    ck_assert_uint_eq(found.input.number, 1717);
    ck_assert_uint_eq(found.input.sequence, toy_log_sequence_of(1717));
    /* One that says nothing is told so. */
    ck_assert_int_eq(actor_replay_bisect(&options, "false", folder, &found), STATUS_OK);
    ck_assert_int_eq(found.outcome, ACTOR_REPLAY_REFUSED);
    ck_assert_ptr_nonnull(strstr(found.detail, "--good"));
}
END_TEST

/* A fault that changes a message and stays in the state. */
START_TEST(a_core_that_dies_is_found_too)
{
    toy_wrong = TOY_ABORT;
    toy_wrong_at = 1234;
    ck_assert_int_eq(actor_replay_bisect(&options, NULL, folder, &found), STATUS_OK);
    ck_assert_int_eq(found.outcome, ACTOR_REPLAY_DIED);
    ck_assert_uint_eq(found.input.number, 1234);
    ck_assert_uint_lt(found.good_input, 1234);
}
END_TEST

/* Messages alone may differ, with the same state: then replay's finding is the answer. */
START_TEST(a_fault_in_a_message_alone_is_found_by_it)
{
    toy_wrong = TOY_MISSING;
    for (toy_wrong_at = 1000;; toy_wrong_at++) {
        ck_assert_uint_lt(toy_wrong_at, 1010);
        ck_assert_int_eq(actor_replay_bisect(&options, NULL, folder, &found), STATUS_OK);
        if (found.outcome == ACTOR_REPLAY_DIVERGED) {
            ck_assert_uint_eq(found.bad_sequence, 0);
            ck_assert_uint_eq(found.input.number, toy_wrong_at);
            return;
        }
    }
}
END_TEST

/* A command judges prefixes: here, whether a certain request is in the log. */
START_TEST(a_command_names_the_first_input_with_which_it_fails)
{
    char command[256];
    uint64_t sequence = toy_log_sequence_of(2021);
    /* The file's size tells how much of the log it holds. */
    (void)snprintf(command, sizeof command, "%s {log} %lu", TOY_JUDGE, (unsigned long)sequence);
    ck_assert_int_eq(actor_replay_bisect_command(&options, command, folder, &found), STATUS_OK);
    ck_assert_int_eq(found.outcome, ACTOR_REPLAY_DIVERGED);
    ck_assert_uint_eq(found.input.number, 2021);
    ck_assert_uint_eq(found.input.sequence, sequence);
    ck_assert_uint_le(found.probe_count, 14);
}
END_TEST

START_TEST(commands_that_always_say_the_same)
{
    ck_assert_int_eq(actor_replay_bisect_command(&options, "true", folder, &found), STATUS_OK);
    ck_assert_int_eq(found.outcome, ACTOR_REPLAY_SAME);
    ck_assert_int_eq(actor_replay_bisect_command(&options, "false", folder, &found), STATUS_OK);
    ck_assert_int_eq(found.outcome, ACTOR_REPLAY_REFUSED);
    ck_assert_int_eq(actor_replay_bisect_command(&options, "/nowhere", folder, &found), STATUS_OK);
    ck_assert_int_eq(found.outcome, ACTOR_REPLAY_REFUSED);
    options.answer_timeout_ns = 200000000;
    ck_assert_int_eq(actor_replay_bisect_command(&options, "sleep 1000", folder, &found),
                     STATUS_OK);
    ck_assert_int_eq(found.outcome, ACTOR_REPLAY_REFUSED); /* fails even without an input */
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("actors.replay_bisect");
    TCase *tc = tcase_create("bisect");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, nothing_is_found_where_nothing_is);
    tcase_add_loop_test(tc, a_silent_fault_is_narrowed_to_an_interval, 0, 5);
    tcase_add_test(tc, another_build_makes_it_exact);
    tcase_add_test(tc, a_core_that_dies_is_found_too);
    tcase_add_test(tc, a_fault_in_a_message_alone_is_found_by_it);
    tcase_add_test(tc, a_command_names_the_first_input_with_which_it_fails);
    tcase_add_test(tc, commands_that_always_say_the_same);
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
