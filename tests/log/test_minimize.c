/* Delta debugging: what is left is all that the failure needs. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log_maker.h"
#include "log_minimize.h"
#include "log_out.h"
#include "log_visit.h"
#include "proto_log_recover.h"

enum { REQUESTS = 12 };

static char folder[512], source[600], scratch[600], target[600];

static void
make_folder(const char *name, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s/%s", folder, name);
    log_out_t *made = NULL;
    ck_assert_int_eq(log_out_open(out, &made, NULL), STATUS_OK);
    ck_assert_int_eq(log_out_commit(made), STATUS_OK);
    log_out_close(&made);
}

static void
set_up(void)
{
    maker_folder(folder, sizeof folder);
    make_folder("source", source, sizeof source);
    make_folder("scratch", scratch, sizeof scratch);
    (void)snprintf(target, sizeof target, "%s/target", folder);
}

static void
tear_down(void)
{
    maker_remove(folder);
}

/* The "command": the log still shows request 4 submitted and, later, request 9 finished. */
typedef struct {
    uint32_t runs;
    bool submitted, failed;
    uint32_t records, inputs;
    uint64_t last_sequence;
    bool prompt_kept;
} oracle_t;

static proto_status_t
look(void *context, const log_set_item_t *item, const log_message_t *message)
{
    oracle_t *oracle = context;
    oracle->records++;
    ck_assert_uint_eq(item->record.sequence, oracle->last_sequence + 1);
    oracle->last_sequence = item->record.sequence;
    if (message == NULL) {
        return STATUS_OK;
    }
    ck_assert(message->has_body);
    bool is_input = item->record.kind == PROTO_LOG_IN || item->record.kind == PROTO_LOG_TIMER;
    oracle->inputs += is_input ? 1U : 0U;
    if (!is_input) {
        ck_assert_uint_eq(message->header.cause, oracle->inputs);
    }
    if (is_input && message->header.kind == PROTO_KIND_SUBMIT && message->header.request == 4) {
        oracle->submitted = true;
        oracle->prompt_kept = message->body.submit.tokens.count > 0;
    }
    if (message->header.kind == PROTO_KIND_FINISHED && message->header.request == 9) {
        oracle->failed = oracle->submitted;
    }
    return STATUS_OK;
}

static int
run(void *context, const char *path)
{
    oracle_t *oracle = context;
    log_set_t *set = NULL;
    oracle->runs++;
    oracle->submitted = oracle->failed = false;
    oracle->records = oracle->inputs = 0;
    oracle->last_sequence = 0;
    if (log_set_open(&path, 1, NULL, &set, NULL) != STATUS_OK) {
        return 5;
    }
    ck_assert_int_eq(log_set_visit(set, look, oracle), STATUS_OK);
    ck_assert_uint_eq(log_set_damage_count(set), 0);
    log_set_close(&set);
    return oracle->failed ? 42 : 1;
}

static log_set_t *
open_scheduler(uint32_t request_count)
{
    maker_log_t options = {.directory = source, .request_count = request_count};
    (void)maker_log_write(&options);
    log_set_options_t chosen = {.actor = "scheduler"};
    log_set_t *set = NULL;
    const char *path = source;
    ck_assert_int_eq(log_set_open(&path, 1, &chosen, &set, NULL), STATUS_OK);
    return set;
}

START_TEST(what_the_failure_does_not_need_goes)
{
    log_set_t *set = open_scheduler(REQUESTS);
    oracle_t oracle = {0};
    log_minimize_options_t options = {.run = run,
                                      .context = &oracle,
                                      .scratch = scratch,
                                      .run_max = 500};
    log_minimize_result_t result;
    proto_error_t error = {{0}};
    ck_assert_int_eq(log_minimize(set, &options, target, &result, &error), STATUS_OK);
    log_set_close(&set);
    ck_assert_int_eq(result.exit_code, 42);
    ck_assert_uint_eq(result.requests_before, REQUESTS);
    ck_assert_uint_eq(result.requests_after, 2);
    ck_assert_uint_eq(result.runs, oracle.runs);
    ck_assert(!result.is_exhausted);
    /* SUBMIT of 4, and the STEP_RESULT upon which FINISHED of 9 was sent. */
    ck_assert_uint_eq(result.inputs_after, 2);
    ck_assert_uint_gt(result.fields_cut, 0);
    /* What is written fails the same way, and is a whole log. */
    ck_assert_int_eq(run(&oracle, target), 42);
    ck_assert_uint_eq(oracle.inputs, 2);
    ck_assert(!oracle.prompt_kept);
    ck_assert_uint_eq(oracle.records, result.records_after);
}
END_TEST

START_TEST(the_number_of_runs_is_bounded)
{
    log_set_t *set = open_scheduler(REQUESTS);
    oracle_t oracle = {0};
    log_minimize_options_t options = {.run = run,
                                      .context = &oracle,
                                      .scratch = scratch,
                                      .run_max = 7};
    log_minimize_result_t result;
    ck_assert_int_eq(log_minimize(set, &options, target, &result, NULL), STATUS_OK);
    log_set_close(&set);
    ck_assert_uint_le(oracle.runs, 7);
    ck_assert(result.is_exhausted);
    ck_assert_int_eq(run(&oracle, target), 42);
}
END_TEST

static int
succeed(void *context, const char *path)
{
    (void)context;
    (void)path;
    return 0;
}

START_TEST(a_command_that_does_not_fail_is_refused)
{
    log_set_t *set = open_scheduler(2);
    log_minimize_options_t options = {.run = succeed, .scratch = scratch, .run_max = 7};
    log_minimize_result_t result;
    proto_error_t error = {{0}};
    ck_assert_int_eq(log_minimize(set, &options, target, &result, &error), STATUS_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.detail, "ends with 0"));
    log_set_close(&set);
    const char *path = target;
    ck_assert_int_eq(log_set_open(&path, 1, NULL, &set, NULL), STATUS_ERR_NOT_FOUND);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("log.minimize");
    TCase *tests = tcase_create("minimize");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, what_the_failure_does_not_need_goes);
    tcase_add_test(tests, the_number_of_runs_is_bounded);
    tcase_add_test(tests, a_command_that_does_not_fail_is_refused);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
