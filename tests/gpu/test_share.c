/* A cache that another process reads as it is written: its handle, where its pages lie, and the
 * layers of each step, the same whether the prefill runs eagerly or from its graph. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache_plan.h"
#include "gpu_driver.h"
#include "run_inspect.h"
#include "run_share.h"

enum { MARKS_MAX = 4096, PROMPT = 40 };

static char model_path[600];

/* ---- what is recorded, seen at its launch -----------------------------------------------------
 */

static const device_ops_t *real_ops;
static device_ops_t seen_ops;
static uint32_t marks[MARKS_MAX];
static uint32_t mark_count;
static backend_t *root;

static void
seen_mark(device_stream_t *stream, const kern_mark_args_t *args)
{
    if (args->word == root->layers_ready && mark_count < MARKS_MAX) {
        marks[mark_count++] = args->value;
    }
    real_ops->mark(stream, args);
}

static void
watch_marks(backend_t *backend)
{
    device_t *device = backend->options.device;
    root = backend;
    real_ops = device->ops;
    seen_ops = *real_ops;
    seen_ops.mark = seen_mark;
    device->ops = &seen_ops;
}

static const run_plants_t watching = {.adjust_backend = watch_marks};

static void
open_shared(driver_t *driver, const char *fixture, bool eager)
{
    (void)snprintf(model_path, sizeof model_path, "%s", driver_fixture(fixture));
    run_executor_options_t options = {
        .model_path = model_path,
        .slot_count = 4,
        .model_len_max = 256,
        .step_tokens_max = 128,
        .block_granularity = strcmp(fixture, "tiny-qwen35") == 0 ? 64 : 16,
        .capture_bs_max = 4,
        .prefill_graph_tokens_max = eager ? 0 : 64,
        .cache_size_bytes = 32 << 20,
        .disable_prefill_graph = eager,
        .plants = &watching,
        .share_cache = true,
    };
    driver_open(driver, &options);
    mark_count = 0;
}

/* One chunk of a prompt, then a decode: what each of them recorded. */
static void
record(const char *fixture, bool eager, uint32_t *layers_p)
{
    driver_t driver;
    open_shared(&driver, fixture, eager);
    run_share_t share;
    ck_assert_int_eq(run_share_describe(driver.executor, &share), STATUS_OK);
    int32_t prompt[PROMPT];
    driver_random_tokens(7, 60, prompt, PROMPT);
    (void)driver_prefill(&driver, 1, prompt, PROMPT, PROMPT);
    ck_assert_int_eq(run_inspect_bucket(driver.executor, PROMPT) == 0, eager);
    ck_assert_uint_eq(mark_count, share.layer_count + 1);
    for (uint32_t i = 0; i < share.layer_count; i++) {
        ck_assert_uint_eq(marks[i], i + 1);
    }
    ck_assert_uint_eq(marks[share.layer_count], PROTO_LAYERS_ALL);
    mark_count = 0;
    (void)driver_decode_one(&driver, 1);
    ck_assert_uint_eq(mark_count, 1);
    ck_assert_uint_eq(marks[0], PROTO_LAYERS_ALL);
    *layers_p = share.layer_count;
    driver_close(&driver);
}

/* Every layer once, in order, behind its write, and the end behind everything: in a router's and in
 * a composite's tree, eagerly and from the prefill graph. */
START_TEST(each_layer_is_recorded_once_on_every_path)
{
    static const char *const fixtures[] = {"tiny-llama", "tiny-gemma3", "tiny-deepseek",
                                           "tiny-qwen35"};
    const char *fixture = fixtures[_i];
    uint32_t eager = 0;
    uint32_t replayed = 0;
    record(fixture, true, &eager);
    record(fixture, false, &replayed);
    ck_assert_uint_eq(eager, replayed);
}
END_TEST

/* ---- another process --------------------------------------------------------------------------
 */

static void *
map(const device_share_t *share, pid_t owner)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)owner, share->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    void *memory =
        mmap(NULL, share->offset_bytes + share->size_bytes, PROT_READ, MAP_SHARED, fd, 0);
    (void)close(fd);
    return memory == MAP_FAILED ? NULL : (uint8_t *)memory + share->offset_bytes;
}

static uint64_t
digest(const uint8_t *bytes, size_t size_bytes)
{
    uint64_t sum = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < size_bytes; i++) {
        sum = (sum ^ bytes[i]) * UINT64_C(1099511628211);
    }
    return sum;
}

/* 0 if the other process finds the pages of block 1 written, and the step over. */
static int
look(const driver_t *driver, const run_share_t *share, pid_t owner)
{
    const proto_layers_t *layers = map(&share->ready, owner);
    const uint8_t *arena = map(&share->arena, owner);
    if (layers == NULL || arena == NULL) {
        return 1;
    }
    if (proto_layers_done(layers, driver->step) != PROTO_LAYERS_ALL ||
        proto_layers_done(layers, driver->step + 1) != 0) {
        return 2;
    }
    for (uint32_t i = 0; i < share->field_count; i++) {
        run_share_field_t field;
        run_share_field(driver->executor, i, &field);
        uint64_t row_bytes = (uint64_t)field.parts[0].count * field.parts[0].unit_bytes;
        const uint8_t *page = arena + field.page0_offset_bytes + field.stride_bytes;
        const uint8_t *null_page = arena + field.page0_offset_bytes;
        if (field.part_count != 1 || field.page0_offset_bytes > share->arena.size_bytes ||
            digest(page, field.rows * row_bytes) == digest(null_page, field.rows * row_bytes)) {
            return 3;
        }
    }
    return 0;
}

START_TEST(another_process_reads_the_pages)
{
    driver_t driver;
    open_shared(&driver, "tiny-llama", true);
    int32_t prompt[PROMPT];
    driver_random_tokens(9, 60, prompt, PROMPT);
    (void)driver_prefill(&driver, 1, prompt, PROMPT, PROMPT);
    run_share_t share;
    ck_assert_int_eq(run_share_describe(driver.executor, &share), STATUS_OK);
    pid_t owner = getpid();
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        _exit(look(&driver, &share, owner));
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    /* Nobody can shrink it under those who map it. */
    ck_assert_int_ne(ftruncate(share.arena.fd, 0), 0);
    ck_assert_int_eq(run_executor_reset(driver.executor), STATUS_OK);
    const proto_layers_t *layers = map(&share.ready, owner);
    ck_assert_ptr_nonnull(layers);
    ck_assert_uint_eq(proto_layers_done(layers, driver.step), 0);
    driver_close(&driver);
}
END_TEST

/* A node of its own keeps its cache to itself. */
START_TEST(without_the_option_nothing_is_shared)
{
    driver_t driver;
    (void)snprintf(model_path, sizeof model_path, "%s", driver_fixture("tiny-llama"));
    run_executor_options_t options = {.model_path = model_path,
                                      .slot_count = 2,
                                      .model_len_max = 64,
                                      .step_tokens_max = 64,
                                      .block_granularity = 16,
                                      .enforce_eager = true,
                                      .cache_size_bytes = 8 << 20};
    driver_open(&driver, &options);
    run_share_t share;
    ck_assert_int_eq(run_share_describe(driver.executor, &share), STATUS_ERR_UNSUPPORTED);
    driver_close(&driver);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.share");
    TCase *tests = tcase_create("share");
    tcase_set_timeout(tests, 100);
    if (driver_device_is_cuda()) {
        (void)printf("skipped: a cache on a GPU cannot be shared yet\n");
        return 0;
    }
    tcase_add_loop_test(tests, each_layer_is_recorded_once_on_every_path, 0, 4);
    tcase_add_test(tests, another_process_reads_the_pages);
    tcase_add_test(tests, without_the_option_nothing_is_shared);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
