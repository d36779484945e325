/* Replay finds nothing where nothing is, and the first thing that is wrong, whatever it is. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_replay.h"
#include "toy_core.h"
#include "toy_log.h"

static char folder[64];
static char path[4096];
static const char *paths[1];
static actor_replay_options_t options;
static actor_replay_report_t report;

static void
setup(void)
{
    toy_wrong = TOY_RIGHT;
    toy_folder_make(folder);
    paths[0] = path;
    options = (actor_replay_options_t){.paths = paths, .path_count = 1, .role = &toy_role};
}

static void
teardown(void)
{
    toy_folder_remove(folder);
}

static void
record(uint32_t input_count)
{
    const toy_log_options_t log = {.folder = folder, .input_count = input_count, .random = 7};
    toy_log_write(&log, path);
}

static void
replay(void)
{
    ck_assert_int_eq(actor_replay_run(&options, &report), STATUS_OK);
}

/* Everything that was recorded is compared, and nothing differs. */
START_TEST(a_right_core_diverges_nowhere)
{
    record(300);
    replay();
    ck_assert_msg(report.outcome == ACTOR_REPLAY_SAME, "%s at input %lu: %s, %s, %s",
                  actor_replay_find_text(report.finding.what), (unsigned long)report.input.number,
                  report.finding.path, report.finding.recorded, report.finding.replayed);
    ck_assert_int_eq(report.end, ACTOR_REPLAY_END);
    ck_assert_uint_eq(report.input_count, 300);
    ck_assert_uint_eq(report.record_count, toy_log_record_count());
    ck_assert_uint_gt(report.output_count, 200);
    ck_assert_uint_ge(report.digest_count, 300 / 8);
    ck_assert_uint_eq(report.snapshot_count, 300 / 64);
    ck_assert_uint_gt(report.timer_count, 0);
    ck_assert_uint_eq(report.gap_count, 0);
    ck_assert_uint_eq(report.tail_count, 0);
    ck_assert_uint_gt(report.last_ns, report.first_ns);
}
END_TEST

/* What a wrong core must be caught with, and at which input at the latest. */
static const struct {
    toy_wrong_t how;
    actor_replay_find_t what;
    uint32_t late; /* inputs until it shows */
    const char *path;
} wrongs[] = {
    {TOY_FIELD, ACTOR_REPLAY_FIND_FIELD, 0, "heartbeat.step"},
    {TOY_COLUMN, ACTOR_REPLAY_FIND_FIELD, 0, "http_tokens.tokens[1]"},
    {TOY_TO, ACTOR_REPLAY_FIND_TO, 0, "(destination)"},
    {TOY_KIND, ACTOR_REPLAY_FIND_KIND, 0, "header.kind"},
    {TOY_REQUEST, ACTOR_REPLAY_FIND_REQUEST, 0, "header.request"},
    {TOY_MISSING, ACTOR_REPLAY_FIND_MISSING, 0, "(message)"},
    {TOY_EXTRA, ACTOR_REPLAY_FIND_EXTRA, 0, "(message)"},
    {TOY_SILENT, ACTOR_REPLAY_FIND_DIGEST, 8, "(digest of the state)"},
    {TOY_DEADLINE, ACTOR_REPLAY_FIND_DEADLINE, 8, "timer.deadline_ns"},
};

/* An input of the kind that the fault needs: found by trying. */
static void
find_input(toy_wrong_t how, uint64_t from)
{
    toy_wrong = how;
    for (toy_wrong_at = from;; toy_wrong_at++) {
        ck_assert_uint_lt(toy_wrong_at, 290);
        replay();
        if (report.outcome != ACTOR_REPLAY_SAME) {
            return;
        }
    }
}

START_TEST(the_first_difference_is_named)
{
    record(300);
    find_input(wrongs[_i].how, 101);
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_DIVERGED);
    ck_assert_str_eq(report.finding.path, wrongs[_i].path);
    ck_assert_int_eq(report.finding.what, wrongs[_i].what);
    ck_assert_uint_ge(report.input.number, toy_wrong_at);
    ck_assert_uint_le(report.input.number, toy_wrong_at + wrongs[_i].late);
    ck_assert_uint_eq(report.input.sequence, toy_log_sequence_of(report.input.number));
    ck_assert_str_ne(report.finding.recorded, report.finding.replayed);
    ck_assert_uint_gt(report.digest_sequence, 0);
    ck_assert_uint_lt(report.digest_sequence, report.input.sequence);
    ck_assert_str_ne(report.figures, "");
    /* The command that it prints stops just before. */
    options.until_sequence = report.input.sequence - 1;
    uint64_t number = report.input.number;
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_SAME);
    ck_assert_int_eq(report.end, ACTOR_REPLAY_END_UNTIL);
    ck_assert_uint_eq(report.stop.number, number);
    ck_assert_uint_eq(report.input.number, number - 1);
}
END_TEST

/* A secret is no part of the digest: only the bytes of the next snapshot show it, unless a message
 * replaces it before. */
START_TEST(a_snapshot_shows_what_no_digest_does)
{
    record(128);
    toy_wrong = TOY_SECRET;
    toy_wrong_at = 64;
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_DIVERGED);
    ck_assert_int_eq(report.finding.what, ACTOR_REPLAY_FIND_STATE);
    ck_assert_uint_eq(report.input.number, 64);
}
END_TEST

/* The parent lives whatever the core does, and says what it was. */
static const struct {
    toy_wrong_t how;
    const char *words;
} deaths[] = {{TOY_ABORT, "SIGABRT"},
              {TOY_CRASH, ""},
              {TOY_EXIT, "exit code 3"},
              {TOY_HANG, "killed"}};

START_TEST(a_core_that_dies_is_reported)
{
    record(200);
    toy_wrong = deaths[_i].how;
    toy_wrong_at = 150;
    options.answer_timeout_ns = deaths[_i].how == TOY_HANG ? 300000000u : 0;
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_DIED);
    ck_assert_uint_eq(report.input.number, 150);
    ck_assert_ptr_nonnull(strstr(report.detail, "at input 150"));
    ck_assert_ptr_nonnull(strstr(report.detail, deaths[_i].words));
    if (deaths[_i].how == TOY_ABORT) {
        ck_assert_ptr_nonnull(strstr(report.words, "about to break"));
        ck_assert_ptr_nonnull(strstr(report.words, "self->step != toy_wrong_at"));
    }
}
END_TEST

/* A log that lost records is replayed on both sides of the hole. */
START_TEST(a_gap_ends_at_the_next_snapshot)
{
    const toy_log_options_t log = {.folder = folder,
                                   .input_count = 300,
                                   .random = 7,
                                   .drop_at = 200,
                                   .drop_count = 5,
                                   .says_dropped = _i == 1};
    toy_log_write(&log, path);
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_SAME);
    ck_assert_uint_eq(report.gap_count, 1);
    ck_assert_uint_eq(report.gaps[0].after_sequence, 199);
    ck_assert_uint_eq(report.gaps[0].missing, 5);
    ck_assert_uint_gt(report.gaps[0].resume_sequence, 204);
    ck_assert_uint_lt(report.input_count, 296);
    ck_assert_uint_eq(report.input.number, 300);
}
END_TEST

/* A fault behind the gap is found all the same. */
START_TEST(replay_goes_on_behind_a_gap)
{
    const toy_log_options_t log = {.folder = folder,
                                   .input_count = 300,
                                   .random = 7,
                                   .drop_at = 200};
    toy_log_write(&log, path);
    toy_wrong = TOY_SILENT;
    toy_wrong_at = 250;
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_DIVERGED);
    ck_assert_uint_ge(report.input.number, 250);
}
END_TEST

/* A ring's record begins anywhere: what is before the first snapshot is passed over. */
START_TEST(replay_begins_at_the_first_snapshot)
{
    const toy_log_options_t log = {.folder = folder,
                                   .input_count = 200,
                                   .random = 7,
                                   .no_first_snapshot = true};
    toy_log_write(&log, path);
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_SAME);
    ck_assert_uint_eq(report.begin_input, 64);
    ck_assert_uint_eq(report.input_count, 136);
}
END_TEST

START_TEST(a_log_without_a_snapshot_is_refused)
{
    const toy_log_options_t log = {.folder = folder,
                                   .input_count = 50,
                                   .random = 7,
                                   .no_first_snapshot = true};
    toy_log_write(&log, path);
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_REFUSED);
    ck_assert_ptr_nonnull(strstr(report.detail, "SNAPSHOT"));
}
END_TEST

START_TEST(from_begins_at_the_snapshot_before_it)
{
    record(300);
    options.from_sequence = toy_log_sequence_of(200);
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_SAME);
    ck_assert_uint_eq(report.begin_input, 192);
    ck_assert_uint_le(report.begin_sequence, options.from_sequence);
    ck_assert_uint_eq(report.input.number, 300);
}
END_TEST

START_TEST(break_stops_before_the_kind)
{
    record(300);
    options.break_kind = PROTO_KIND_TIMER;
    options.dump = true;
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_SAME);
    ck_assert_int_eq(report.end, ACTOR_REPLAY_END_BREAK);
    ck_assert_int_eq(report.stop.kind, PROTO_KIND_TIMER);
    ck_assert_uint_eq(report.stop.number, report.input.number + 1);
    ck_assert_ptr_nonnull(strstr(report.figures, "count: "));
    char text[1024];
    ck_assert_int_eq(actor_replay_describe(&options, report.stop.sequence, text, sizeof text),
                     STATUS_OK);
    ck_assert_ptr_nonnull(strstr(text, "TIMER"));
    ck_assert_ptr_nonnull(strstr(text, "deadline_ns"));
}
END_TEST

/* kill -9 between two writes: what is missing at the end is no divergence, and is counted. */
START_TEST(a_log_may_end_within_a_step)
{
    toy_log_options_t log = {.folder = folder, .input_count = 0, .random = 7};
    for (log.input_count = 20;; log.input_count++) {
        ck_assert_uint_lt(log.input_count, 60);
        log.stop_outputs_at = 1;
        toy_folder_remove(folder);
        toy_folder_make(folder);
        log.folder = folder;
        toy_log_write(&log, path);
        replay();
        ck_assert_int_eq(report.outcome, ACTOR_REPLAY_SAME);
        ck_assert_uint_eq(report.input.number, log.input_count);
        if (report.tail_count > 0) {
            return;
        }
    }
}
END_TEST

/* A record that rolled over into several files is one log. */
START_TEST(segments_of_one_run_are_one_log)
{
    const toy_log_options_t log = {.folder = folder,
                                   .input_count = 2000,
                                   .random = 7,
                                   .segment_size_max = 64 * 1024};
    toy_log_write(&log, path);
    paths[0] = folder;
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_SAME);
    ck_assert_uint_eq(report.input_count, 2000);
    ck_assert_uint_eq(report.gap_count, 0);
}
END_TEST

START_TEST(two_runs_must_be_told_apart)
{
    record(20);
    const toy_log_options_t log = {.folder = folder,
                                   .input_count = 30,
                                   .random = 8,
                                   .epoch = 0x5678};
    toy_log_write(&log, path);
    paths[0] = folder;
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_REFUSED);
    ck_assert_ptr_nonnull(strstr(report.detail, "0000000000005678"));
    options.epoch = 0x5678;
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_SAME);
    ck_assert_uint_eq(report.input_count, 30);
}
END_TEST

START_TEST(a_redacted_log_replays_only_where_tokens_do_not_matter)
{
    toy_log_options_t log = {.folder = folder,
                             .input_count = 200,
                             .random = 7,
                             .is_redacted = true};
    toy_log_write(&log, path);
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_SAME);
    ck_assert_uint_eq(report.input_count, 200);
    ck_assert(report.is_redacted);

    toy_folder_remove(folder);
    toy_folder_make(folder);
    log.folder = folder;
    log.role = PROTO_ROLE_EXECUTOR;
    toy_log_write(&log, path);
    options.role = &toy_private_role;
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_REFUSED);
    ck_assert_ptr_nonnull(strstr(report.detail, "redacted"));
}
END_TEST

/* Roles without a core are named; so is a snapshot of another role. */
START_TEST(other_roles_are_refused_by_name)
{
    const toy_log_options_t log = {.folder = folder,
                                   .input_count = 20,
                                   .random = 7,
                                   .role = PROTO_ROLE_RECORDER};
    toy_log_write(&log, path);
    options.role = NULL;
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_REFUSED);
    ck_assert_ptr_nonnull(strstr(report.detail, "recorder"));
    ck_assert_ptr_nonnull(strstr(report.detail, actor_replay_role_names()));
    ck_assert_ptr_null(actor_replay_role_find(PROTO_ROLE_RECORDER));
    ck_assert_ptr_nonnull(actor_replay_role_find(PROTO_ROLE_KV_TRANSFER));
    ck_assert_ptr_nonnull(actor_replay_role_find(PROTO_ROLE_DRAFTER));
    ck_assert_ptr_nonnull(actor_replay_role_find(PROTO_ROLE_SCHEDULER));
    ck_assert_ptr_nonnull(actor_replay_role_find(PROTO_ROLE_GATEWAY));
    ck_assert_ptr_nonnull(actor_replay_role_find(PROTO_ROLE_EXECUTOR));
}
END_TEST

START_TEST(what_is_no_log_is_refused)
{
    (void)snprintf(path, sizeof path, "%s/none.alog", folder);
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_REFUSED);
    ck_assert_str_ne(report.detail, "");
}
END_TEST

/* 1x keeps the time between inputs. */
START_TEST(realtime_takes_as_long_as_it_took)
{
    record(300);
    options.realtime = true;
    options.until_sequence = toy_log_sequence_of(300);
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_SAME);
    ck_assert_uint_ge(report.wall_ns, report.last_ns - report.first_ns);
}
END_TEST

static uint32_t told;

static void
on_progress(void *context, const actor_replay_report_t *so_far)
{
    (void)context;
    (void)so_far;
    told++;
}

START_TEST(digests_of_every_input_can_be_written)
{
    record(40);
    char lines[128];
    (void)snprintf(lines, sizeof lines, "%s/digests", folder);
    options.digests_path = lines;
    options.progress = on_progress;
    replay();
    ck_assert_int_eq(report.outcome, ACTOR_REPLAY_SAME);
    ck_assert_uint_gt(told, 0);
    FILE *file = fopen(lines, "re");
    ck_assert_ptr_nonnull(file);
    unsigned long number = 0;
    unsigned long sequence = 0;
    unsigned long long digest = 0;
    uint32_t count = 0;
    while (fscanf(file, "%lu %lu %llx", &number, &sequence, &digest) == 3) {
        count++;
        ck_assert_uint_eq(number, count);
        ck_assert_uint_eq(sequence, toy_log_sequence_of(number));
    }
    (void)fclose(file);
    ck_assert_uint_eq(count, 40);
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("actors.replay");
    TCase *tc = tcase_create("replay");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, a_right_core_diverges_nowhere);
    tcase_add_loop_test(tc, the_first_difference_is_named, 0,
                        (int)(sizeof wrongs / sizeof wrongs[0]));
    tcase_add_test(tc, a_snapshot_shows_what_no_digest_does);
    tcase_add_loop_test(tc, a_core_that_dies_is_reported, 0,
                        (int)(sizeof deaths / sizeof deaths[0]));
    tcase_add_loop_test(tc, a_gap_ends_at_the_next_snapshot, 0, 2);
    tcase_add_test(tc, replay_goes_on_behind_a_gap);
    tcase_add_test(tc, replay_begins_at_the_first_snapshot);
    tcase_add_test(tc, a_log_without_a_snapshot_is_refused);
    tcase_add_test(tc, from_begins_at_the_snapshot_before_it);
    tcase_add_test(tc, break_stops_before_the_kind);
    tcase_add_test(tc, a_log_may_end_within_a_step);
    tcase_add_test(tc, segments_of_one_run_are_one_log);
    tcase_add_test(tc, two_runs_must_be_told_apart);
    tcase_add_test(tc, a_redacted_log_replays_only_where_tokens_do_not_matter);
    tcase_add_test(tc, other_roles_are_refused_by_name);
    tcase_add_test(tc, what_is_no_log_is_refused);
    tcase_add_test(tc, realtime_takes_as_long_as_it_took);
    tcase_add_test(tc, digests_of_every_input_can_be_written);
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
