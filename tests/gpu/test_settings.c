/* What an executor settles at its start, without a model: the capture ladder, what device and trees
 * can capture, what a CUDA device refuses, and text that says when it was cut. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_host.h"
#include "run_executor_private.h"
#include "run_graph_settings.h"
#include "run_text.h"

/* ---- the ladder ------------------------------------------------------------------------------
 */

/* As documented where it fits: 1, 2, 4, 8, steps of 8, the top. */
START_TEST(a_short_ladder_goes_in_steps_of_8)
{
    static const uint32_t tops[] = {1, 2, 3, 7, 8, 9, 16, 33, 128, 500, 992};
    uint32_t out[RUN_LADDER_LEN_MAX];
    for (size_t t = 0; t < sizeof tops / sizeof *tops; t++) {
        uint32_t expected[RUN_LADDER_LEN_MAX];
        uint32_t len = 0;
        for (uint32_t bs = 1; bs < tops[t]; bs += bs < 8 ? bs : 8) {
            expected[len++] = bs;
        }
        expected[len++] = tops[t];
        ck_assert_uint_eq(run_graph_settings_ladder(tops[t], out), len);
        ck_assert_mem_eq(out, expected, len * sizeof *out);
    }
}
END_TEST

/* Whatever the top: it ascends, ends with it, starts finely, and above 64 no batch pads by more
 * than an eighth of its size. */
START_TEST(every_ladder_reaches_its_top_evenly)
{
    uint32_t out[RUN_LADDER_LEN_MAX];
    for (uint32_t top = 1; top <= PROTO_ROWS_MAX; top++) {
        uint32_t len = run_graph_settings_ladder(top, out);
        ck_assert_uint_le(len, RUN_LADDER_LEN_MAX);
        ck_assert_uint_eq(out[0], 1);
        ck_assert_uint_eq(out[len - 1], top);
        for (uint32_t i = 1; i < len; i++) {
            uint32_t padded = out[i] - out[i - 1] - 1;
            if (out[i] <= out[i - 1] || (padded >= 8 && 8 * padded > out[i - 1])) {
                ck_abort_msg("top %" PRIu32 ": from %" PRIu32 " to %" PRIu32, top, out[i - 1],
                             out[i]);
            }
        }
    }
}
END_TEST

/* ---- what can be captured --------------------------------------------------------------------
 */

static device_t *
open_host_device(void)
{
    device_host_options_t options = {.thread_count = 1, .path = kern_path_best()};
    device_t *device = NULL;
    ck_assert_int_eq(device_host_new(&options, &device), STATUS_OK);
    return device;
}

START_TEST(a_device_that_cannot_capture_is_a_culprit)
{
    device_t *device = open_host_device();
    backend_t node = {.name = "a node", .support = {.decode_graph = true, .prefill_graph = true}};
    const backend_t *trees[] = {&node, NULL};
    char culprits[RUN_CULPRITS_SIZE_BYTES];
    backend_support_t all = run_graph_settings_support(device, trees, 2, culprits);
    ck_assert(all.decode_graph && all.prefill_graph);
    ck_assert_str_eq(culprits, "");
    device->has_prefill_graph = false;
    all = run_graph_settings_support(device, trees, 2, culprits);
    ck_assert(all.decode_graph && !all.prefill_graph);
    ck_assert_str_eq(culprits, "graphs: no prefill graph for cpu\n");
    node.support.decode_graph = false;
    all = run_graph_settings_support(device, trees, 2, culprits);
    ck_assert(!all.decode_graph && !all.prefill_graph);
    ck_assert_ptr_nonnull(strstr(culprits, "for cpu\n"));
    ck_assert_ptr_nonnull(strstr(culprits, "no decode graph for a node\n"));
    device_destroy(&device);
}
END_TEST

START_TEST(culprits_that_have_no_room_leave_a_mark)
{
    device_t *device = open_host_device();
    enum { TREES = 20 };
    backend_t node = {.name = "a node that captures nothing at all"};
    const backend_t *trees[TREES];
    for (int i = 0; i < TREES; i++) {
        trees[i] = &node;
    }
    char culprits[RUN_CULPRITS_SIZE_BYTES];
    (void)run_graph_settings_support(device, trees, TREES, culprits);
    ck_assert_uint_eq(strlen(culprits), RUN_CULPRITS_SIZE_BYTES - 1);
    ck_assert_str_eq(culprits + RUN_CULPRITS_SIZE_BYTES - 4, "...");
    device_destroy(&device);
}
END_TEST

START_TEST(text_is_cut_with_a_mark)
{
    char text[16] = "";
    run_text_add(text, sizeof text, "%s", "0123456789");
    ck_assert_str_eq(text, "0123456789");
    run_text_add(text, sizeof text, "%s", "abcde");
    ck_assert_str_eq(text, "0123456789abcde");
    run_text_add(text, sizeof text, "%s", "");
    ck_assert_str_eq(text, "0123456789abcde");
    run_text_add(text, sizeof text, "%s", "f");
    ck_assert_str_eq(text, "0123456789ab...");
    run_text_add(text, sizeof text, "%s", "more");
    ck_assert_str_eq(text, "0123456789ab...");
}
END_TEST

/* The host's memory is the machine's: that is not the same as a full device. */
START_TEST(the_host_device_has_no_memory_of_its_own)
{
    device_t *device = open_host_device();
    uint64_t free_bytes = 1;
    ck_assert_int_eq(device_memory_free_bytes(device, &free_bytes), STATUS_ERR_UNSUPPORTED);
    device_destroy(&device);
}
END_TEST

/* ---- what a CUDA device refuses --------------------------------------------------------------
 */

static proto_status_t
check_options(run_executor_options_t options, bool is_cuda, char *error, size_t size_bytes)
{
    run_executor_t *executor = calloc(1, sizeof *executor);
    ck_assert_ptr_nonnull(executor);
    error[0] = '\0';
    options.error = error;
    options.error_size_bytes = size_bytes;
    executor->options = options;
    executor->is_cuda = is_cuda;
    proto_status_t status = run_executor_check_options(executor);
    free(executor);
    return status;
}

START_TEST(a_cuda_device_refuses_what_its_kernels_do_not_take)
{
    char error[512];
    run_executor_options_t good = {.width = 1, .slot_count = 32, .step_tokens_max = 65535};
    for (int is_cuda = 0; is_cuda < 2; is_cuda++) {
        proto_status_t refusal = is_cuda == 1 ? STATUS_ERR_CONFIG : STATUS_OK;
        run_executor_options_t options = good;
        options.verify_by_rejection = true; /* at width 1 there is nothing to verify */
        ck_assert_int_eq(check_options(options, is_cuda == 1, error, sizeof error), STATUS_OK);
        options.width = 3;
        ck_assert_int_eq(check_options(options, is_cuda == 1, error, sizeof error), refusal);
        ck_assert_int_eq(strstr(error, "width of 3") != NULL, is_cuda);
        options.verify_by_rejection = false;
        ck_assert_int_eq(check_options(options, is_cuda == 1, error, sizeof error), STATUS_OK);
        options = good;
        options.step_tokens_max = 65536;
        ck_assert_int_eq(check_options(options, is_cuda == 1, error, sizeof error), refusal);
        ck_assert_int_eq(strstr(error, "65536 tokens") != NULL, is_cuda);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.settings");
    TCase *tests = tcase_create("settings");
    tcase_add_test(tests, a_short_ladder_goes_in_steps_of_8);
    tcase_add_test(tests, every_ladder_reaches_its_top_evenly);
    tcase_add_test(tests, a_device_that_cannot_capture_is_a_culprit);
    tcase_add_test(tests, culprits_that_have_no_room_leave_a_mark);
    tcase_add_test(tests, text_is_cut_with_a_mark);
    tcase_add_test(tests, the_host_device_has_no_memory_of_its_own);
    tcase_add_test(tests, a_cuda_device_refuses_what_its_kernels_do_not_take);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
