/* Ranks that share a model, each a process of its own: what they compute together against one that
 * has all of it, bit for bit where the order of sums is the same; and how a group ends.
 *
 * What is equal bit for bit: a group against itself, whatever the batch, eager or replayed, and all
 * ranks with each other.  A group against one executor adds up the inputs of a product in another
 * order, so logits are compared with a bound. */
#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device_comm.h"
#include "device_host.h"
#include "gpu_driver.h"
#include "run_inspect.h"

enum {
    VOCABULARY = 320,
    SLOTS = 5,
    STEPS = 8,
    RANKS_MAX = 4,
    ROUNDS = 4, /* ways to run the same requests */
};

static const char *const fixtures[] = {"tiny-llama",   "tiny-qwen3",  "tiny-gemma3",
                                       "tiny-gpt-oss", "tiny-qwen35", "tiny-qwen35-moe",
                                       "tiny-deepseek"};
enum { FIXTURE_COUNT = sizeof fixtures / sizeof *fixtures };

/* What a process computed, in memory that the test sees. */
typedef struct {
    float logits[ROUNDS][SLOTS][STEPS][VOCABULARY];
    int32_t tokens[ROUNDS][SLOTS][STEPS];
    char fault[512];
    proto_status_t status;
} report_t;

static report_t *
new_reports(void)
{
    void *memory = mmap(NULL, RANKS_MAX * sizeof(report_t), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    return memory;
}

static int
new_group(uint32_t rank_count)
{
    device_group_sizes_t sizes = {.rank_count = rank_count,
                                  .slot_size_bytes = 4096,
                                  .queue_size_bytes = 1 << 16};
    int fd = -1;
    ck_assert_int_eq(device_group_create(&sizes, &fd), STATUS_OK);
    return fd;
}

/* Runs `main` as rank 0..count - 1, each in a process of its own, which exits with what it returns.
 */
static void
start_ranks(int fd, uint32_t count, int (*rank_main)(device_group_t *group, void *context),
            void *context, pid_t *pids)
{
    for (uint32_t rank = 0; rank < count; rank++) {
        (void)fflush(NULL);
        pids[rank] = fork();
        if (pids[rank] == 0) {
            (void)alarm(100);
            device_group_options_t options = {.fd = fd, .rank = rank};
            device_group_t *group = NULL;
            if (device_group_join(&options, &group) != STATUS_OK) {
                _exit(99);
            }
            int code = rank_main(group, context);
            device_group_leave(&group);
            (void)fflush(NULL);
            _exit(code);
        }
        ck_assert_int_gt(pids[rank], 0);
    }
}

static void
wait_ranks(const pid_t *pids, uint32_t count, int wanted)
{
    for (uint32_t rank = 0; rank < count; rank++) {
        int how = 0;
        ck_assert_int_eq(waitpid(pids[rank], &how, 0), pids[rank]);
        ck_assert_msg(WIFEXITED(how) && WEXITSTATUS(how) == wanted, "rank %u ended with %d", rank,
                      how);
    }
}

/* ---- collectives ------------------------------------------------------------------------------
 */

enum { VALUES = 3000, PART = 70 };

static float
value_of(uint32_t rank, uint32_t index, uint32_t round)
{
    return (float)sin((double)rank * 7.1 + (double)index * 0.37 + (double)round) * 1e3f;
}

static void
reduce_and_gather(device_comm_t *comm, device_stream_t *stream, float *values,
                  const device_gather_t *gathered)
{
    device_comm_all_reduce(comm, stream, values, VALUES);
    device_comm_all_gather(comm, stream, gathered);
}

/* Longer than a slot, so in pieces; directly and from a graph, many times in a row. */
static int
collective_main(device_group_t *group, void *context)
{
    (void)context;
    device_host_options_t options = {.thread_count = 2, .path = kern_path_best()};
    device_t *device = NULL;
    device_stream_t *stream = NULL;
    device_comm_t *comm = NULL;
    device_pool_t *pool = NULL;
    device_graph_t *graph = NULL;
    float *values = NULL;
    float *part = NULL;
    float *whole = NULL;
    int32_t word = (int32_t)device_group_rank(group) + 5;
    uint32_t ranks = device_group_rank_count(group);
    uint32_t cols = PART * (ranks - 1) + 13;
    enum { ROWS_GATHERED = 40 };
    bool is_good =
        device_host_new(&options, &device) == STATUS_OK &&
        device_stream_new(device, &stream) == STATUS_OK &&
        device_host_comm_new(device, group, &comm) == STATUS_OK &&
        device_pool_new(device, 4096, &pool) == STATUS_OK &&
        device_alloc(device, DEVICE_MEMORY_DEVICE, VALUES * 4, (void **)&values) == STATUS_OK &&
        device_alloc(device, DEVICE_MEMORY_DEVICE, ROWS_GATHERED * PART * 4, (void **)&part) ==
            STATUS_OK &&
        device_alloc(device, DEVICE_MEMORY_DEVICE, ROWS_GATHERED * cols * 4, (void **)&whole) ==
            STATUS_OK;
    device_gather_t gathered = {
        .part = part, .whole = whole, .rows = ROWS_GATHERED, .cols = cols, .share = PART};
    is_good = is_good && device_capture_begin(stream, pool) == STATUS_OK;
    reduce_and_gather(comm, stream, values, &gathered);
    is_good = is_good && device_capture_end(stream, &graph) == STATUS_OK;
    uint32_t rank = device_group_rank(group);
    uint32_t own = rank + 1 == ranks ? 13 : PART;
    for (uint32_t round = 0; is_good && round < 60; round++) {
        for (uint32_t i = 0; i < VALUES; i++) {
            values[i] = value_of(rank, i, round);
        }
        for (uint32_t i = 0; i < ROWS_GATHERED * own; i++) {
            part[i] = (float)(i / own * cols + rank * PART + i % own + round);
        }
        if (round % 2 == 0) {
            reduce_and_gather(comm, stream, values, &gathered);
        } else {
            is_good = device_graph_replay(graph, stream) == STATUS_OK;
        }
        is_good = is_good && device_stream_synchronize(stream) == STATUS_OK;
        for (uint32_t i = 0; is_good && i < VALUES; i++) {
            volatile float sum = value_of(0, i, round) + value_of(1, i, round);
            for (uint32_t other = 2; other < ranks; other++) {
                sum = sum + value_of(other, i, round);
            }
            float wanted = sum;
            is_good = memcmp(&values[i], &wanted, sizeof wanted) == 0;
        }
        for (uint32_t i = 0; is_good && i < ROWS_GATHERED * cols; i++) {
            is_good = whole[i] == (float)(i + round);
        }
    }
    device_comm_broadcast(comm, stream, &word, sizeof word);
    is_good = is_good && device_stream_synchronize(stream) == STATUS_OK && word == 5;
    /* Another word on one rank: all of them fail, with one text. */
    word = rank == 1 ? 6 : 5;
    device_comm_agree(comm, stream, &word, sizeof word, "a word");
    is_good = is_good && device_stream_synchronize(stream) == STATUS_ERR_DEVICE &&
              strstr(device_group_fault(group), "rank 1 differs from rank 0 in a word") != NULL;
    device_graph_destroy(&graph);
    device_pool_destroy(&pool);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&values);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&part);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&whole);
    device_stream_destroy(&stream);
    device_comm_destroy(&comm);
    device_destroy(&device);
    return is_good ? 0 : 1;
}

START_TEST(collectives_add_up_in_the_order_of_the_ranks)
{
    pid_t pids[RANKS_MAX];
    uint32_t count = (uint32_t)_i;
    int fd = new_group(count);
    start_ranks(fd, count, collective_main, NULL, pids);
    wait_ranks(pids, count, 0);
    (void)close(fd);
}
END_TEST

/* Messages of all sizes come whole and in order, whatever the queue's end. */
static int
message_main(device_group_t *group, void *context)
{
    (void)context;
    static uint8_t bytes[20000];
    bool is_sender = device_group_rank(group) == 0;
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t body = i * 37 % 1000;
        uint32_t blob = i * 7919 % 19000;
        if (is_sender) {
            memset(bytes, (int)(i & 255), sizeof bytes);
            device_group_message_t message = {.kind = i,
                                              .flags = i * 3,
                                              .body = bytes,
                                              .body_size_bytes = body,
                                              .blob = bytes,
                                              .blob_size_bytes = blob};
            if (device_group_send(group, &message) != STATUS_OK) {
                return 1;
            }
            continue;
        }
        device_group_message_t message;
        proto_status_t status = STATUS_AGAIN;
        while (status == STATUS_AGAIN) {
            status = device_group_receive(group, 50, &message);
        }
        if (status != STATUS_OK || message.kind != i || message.flags != i * 3 ||
            message.body_size_bytes != body || message.blob_size_bytes != blob) {
            return 2;
        }
        for (uint32_t at = 0; at < blob; at += 97) {
            if (((const uint8_t *)message.blob)[at] != (i & 255)) {
                return 3;
            }
        }
    }
    uint64_t least = 0;
    uint64_t own = 100 - device_group_rank(group);
    bool is_met = device_group_agree_min(group, own, &least) == STATUS_OK;
    return is_met && least == 101 - device_group_rank_count(group) ? 0 : 4;
}

START_TEST(messages_come_whole_and_in_order)
{
    pid_t pids[3];
    int fd = new_group(3);
    start_ranks(fd, 3, message_main, NULL, pids);
    wait_ranks(pids, 3, 0);
    (void)close(fd);
}
END_TEST

/* ---- models -----------------------------------------------------------------------------------
 */

typedef struct {
    const char *fixture;
    report_t *reports;
    uint32_t width;
} run_t;

static run_executor_options_t
options_of(const run_t *run, bool is_eager, device_group_t *group)
{
    static char path[600];
    (void)snprintf(path, sizeof path, "%s", driver_fixture(run->fixture));
    run_executor_options_t options = {
        .model_path = path,
        .slot_count = SLOTS,
        .model_len_max = 256,
        .step_tokens_max = 256,
        .block_granularity = strstr(run->fixture, "qwen35") != NULL ? 64 : 16,
        .cache_size_bytes = 32 << 20,
        .capture_bs_max = 4,
        .thread_count = 1,
        .graph_debug = true,
        .enforce_eager = is_eager,
        .width = run->width,
        .cache_dtype = "f32",
        .group = group,
    };
    return options;
}

static void
prefill(driver_t *driver, uint32_t slot)
{
    int32_t prompt[40];
    uint32_t length = 7 + slot * 5;
    driver_random_tokens(slot, VOCABULARY, prompt, length);
    driver_setup(driver, slot, prompt, length, NULL);
    (void)driver_prefill(driver, slot, prompt, length, 64);
}

/* Each slot alone, then all of them: with graphs, then eagerly. */
static void
run_rounds(const run_t *run, device_group_t *group, report_t *report)
{
    static float logits[SLOTS * VOCABULARY];
    for (uint32_t round = 0; round < ROUNDS; round++) {
        static driver_t driver;
        if (round % 2 == 0) {
            run_executor_options_t options = options_of(run, round >= 2, group);
            driver_open(&driver, &options);
        }
        for (uint32_t slot = 1; slot <= SLOTS; slot++) {
            prefill(&driver, slot);
        }
        for (uint32_t step = 0; step < STEPS; step++) {
            uint32_t slots[SLOTS];
            for (uint32_t slot = 1; slot <= SLOTS; slot++) {
                slots[slot - 1] = slot;
            }
            uint32_t batch = round % 2 == 0 ? 1 : 1 + (step + 4) % SLOTS;
            for (uint32_t at = 0; at < SLOTS; at += batch) {
                uint32_t bs = SLOTS - at < batch ? SLOTS - at : batch;
                driver_result_t result;
                driver_step(&driver, NULL, 0, slots + at, bs, &result);
                driver_logits(&driver, logits, sizeof logits / sizeof *logits, bs);
                for (uint32_t i = 0; i < bs; i++) {
                    memcpy(report->logits[round][at + i][step], logits + i * VOCABULARY,
                           VOCABULARY * sizeof(float));
                    report->tokens[round][at + i][step] = result.tokens[i];
                }
            }
        }
        if (round % 2 == 1) {
            driver_close(&driver);
        }
    }
}

static int
rounds_main(device_group_t *group, void *context)
{
    const run_t *run = context;
    run_rounds(run, group, &run->reports[device_group_rank(group)]);
    return 0;
}

/* The largest difference of logits before the first token that differs; a token differs only where
 * the two best are nearly tied. */
static double
compare(const report_t *one, const report_t *many, uint32_t *ties)
{
    double worst = 0;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        for (uint32_t step = 0; step < STEPS; step++) {
            const float *a = one->logits[0][slot][step];
            const float *b = many->logits[0][slot][step];
            double difference = 0;
            for (uint32_t i = 0; i < VOCABULARY; i++) {
                difference = fmax(difference, fabs((double)a[i] - (double)b[i]));
            }
            worst = fmax(worst, difference);
            int32_t x = one->tokens[0][slot][step];
            int32_t y = many->tokens[0][slot][step];
            if (x != y) {
                ck_assert_double_le(fabs((double)a[x] - (double)a[y]), 4 * difference);
                (*ties)++;
                break;
            }
        }
    }
    return worst;
}

START_TEST(a_group_computes_what_one_executor_computes)
{
    report_t *reports = new_reports();
    report_t *alone = new_reports();
    pid_t pids[2];
    run_t run = {.fixture = fixtures[_i], .reports = reports, .width = 1};
    int fd = new_group(2);
    start_ranks(fd, 2, rounds_main, &run, pids);
    run_rounds(&run, NULL, alone);
    wait_ranks(pids, 2, 0);
    (void)close(fd);
    ck_assert_mem_eq(reports[0].logits, reports[1].logits, sizeof reports[0].logits);
    for (uint32_t round = 1; round < ROUNDS; round++) {
        ck_assert_mem_eq(reports[0].logits[0], reports[0].logits[round],
                         sizeof reports[0].logits[0]);
        ck_assert_mem_eq(reports[0].tokens[0], reports[0].tokens[round],
                         sizeof reports[0].tokens[0]);
    }
    uint32_t ties = 0;
    double worst = compare(alone, &reports[0], &ties);
    (void)printf("%s: logits of two ranks within %.2e of one executor's, %u near-ties\n",
                 fixtures[_i], worst, ties);
    ck_assert(worst > 0 || ties == 0);
    ck_assert_double_le(worst, 2e-4);
}
END_TEST

enum { WIDE = 4, WIDE_TOKENS = 40 };

/* What a slot gives at width 1; then at a width where rank 0 alone knows candidates, of which every
 * fourth time another one is wrong. */
static int
candidates_main(device_group_t *group, void *context)
{
    const run_t *run = context;
    int32_t tokens[WIDE_TOKENS];
    static driver_t driver;
    run_executor_options_t options = options_of(run, false, group);
    int32_t prompt[12];
    uint32_t slot = 1;
    driver_random_tokens(slot, VOCABULARY, prompt, 12);
    driver_open(&driver, &options);
    driver_setup(&driver, slot, prompt, 12, NULL);
    tokens[0] = driver_prefill(&driver, slot, prompt, 12, 64);
    for (uint32_t i = 1; i < WIDE_TOKENS; i++) {
        tokens[i] = driver_decode_one(&driver, slot);
    }
    driver_close(&driver);
    run_t wide = {.fixture = run->fixture, .width = WIDE};
    options = options_of(&wide, false, group);
    driver_open(&driver, &options);
    driver_setup(&driver, slot, prompt, 12, NULL);
    (void)driver_prefill(&driver, slot, prompt, 12, 64);
    uint32_t done = 1;
    for (uint32_t round = 0; done + WIDE < WIDE_TOKENS; round++) {
        int32_t candidates[WIDE - 1] = {-1, -1, -1};
        uint32_t right = round % WIDE;
        for (uint32_t i = 0; device_group_rank(group) == 0 && i < WIDE - 1; i++) {
            candidates[i] = i == right ? (tokens[done + i] + 1) % VOCABULARY : tokens[done + i];
        }
        if (run_inspect_plant_candidates(driver.executor, slot, candidates, WIDE - 1) !=
            STATUS_OK) {
            return 1;
        }
        driver_result_t result;
        driver_step(&driver, NULL, 0, &slot, 1, &result);
        if (result.counts[0] != right + 1 ||
            memcmp(result.windows[0], tokens + done, (right + 1) * sizeof *tokens) != 0) {
            return 2;
        }
        done += right + 1;
    }
    driver_close(&driver);
    return 0;
}

START_TEST(candidates_are_those_of_rank_zero)
{
    static const char *const models[] = {"tiny-llama", "tiny-qwen35"};
    pid_t pids[2];
    run_t run = {.fixture = models[_i], .width = 1};
    int fd = new_group(2);
    start_ranks(fd, 2, candidates_main, &run, pids);
    wait_ranks(pids, 2, 0);
    (void)close(fd);
}
END_TEST

/* ---- how a group ends -------------------------------------------------------------------------
 */

static int
differing_main(device_group_t *group, void *context)
{
    const run_t *run = context;
    report_t *report = &run->reports[device_group_rank(group)];
    run_executor_options_t options = options_of(run, false, group);
    driver_t driver;
    driver_open(&driver, &options);
    prefill(&driver, 1);
    prefill(&driver, 2);
    uint32_t slot = device_group_rank(group) == 0 ? 1 : 2;
    proto_step_done_t done;
    report->status = driver_try_launch(&driver, NULL, 0, &slot, 1);
    while (report->status == STATUS_OK || report->status == STATUS_AGAIN) {
        report->status = run_executor_collect(driver.executor, &done);
    }
    (void)snprintf(report->fault, sizeof report->fault, "%s", run_executor_fault(driver.executor));
    driver_close(&driver);
    return 0;
}

START_TEST(ranks_that_were_told_different_things_end)
{
    report_t *reports = new_reports();
    pid_t pids[2];
    run_t run = {.fixture = "tiny-llama", .reports = reports, .width = 1};
    int fd = new_group(2);
    start_ranks(fd, 2, differing_main, &run, pids);
    wait_ranks(pids, 2, 0);
    (void)close(fd);
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(reports[rank].status, STATUS_ERR_DEVICE);
        ck_assert_ptr_nonnull(
            strstr(reports[rank].fault,
                   "rank 1 differs from rank 0 in what it was told up to this step"));
    }
}
END_TEST

static double
now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Rank 1 dies in the middle of decoding, or while nothing runs; rank 0 sees it: within two seconds
 * is wanted, and a loaded machine gets more. */
static int
losing_main(device_group_t *group, void *context)
{
    const run_t *run = context;
    report_t *report = run->reports;
    bool dies_idle = run->width == 2; /* of the test, not of the executor */
    run_t own = {.fixture = run->fixture, .reports = run->reports, .width = 1};
    run_executor_options_t options = options_of(&own, false, group);
    driver_t driver;
    driver_open(&driver, &options);
    prefill(&driver, 1);
    uint32_t slot = 1;
    driver_result_t result;
    driver_step(&driver, NULL, 0, &slot, 1, &result);
    if (device_group_rank(group) == 1) {
        (void)raise(SIGKILL);
    }
    double begin = now_s();
    proto_step_done_t done;
    report->status = dies_idle ? STATUS_END : driver_try_launch(&driver, NULL, 0, &slot, 1);
    while (report->status >= 0 && now_s() < begin + 60) {
        report->status = run_executor_collect(driver.executor, &done);
    }
    (void)snprintf(report->fault, sizeof report->fault, "%s", run_executor_fault(driver.executor));
    driver_close(&driver);
    (void)printf("rank 0 knew after %.2f s\n", now_s() - begin);
    return now_s() - begin <= 20.0 ? 0 : 7;
}

START_TEST(a_lost_rank_ends_the_group)
{
    report_t *reports = new_reports();
    pid_t pids[2];
    run_t run = {.fixture = "tiny-llama", .reports = reports, .width = (uint32_t)_i};
    int fd = new_group(2);
    start_ranks(fd, 2, losing_main, &run, pids);
    wait_ranks(pids, 1, 0);
    int how = 0;
    ck_assert_int_eq(waitpid(pids[1], &how, 0), pids[1]);
    ck_assert(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    (void)close(fd);
    ck_assert_int_eq(reports[0].status, STATUS_ERR_DEVICE);
    ck_assert_ptr_nonnull(strstr(reports[0].fault, "rank 1 of 2 was lost"));
}
END_TEST

static int
refused_main(device_group_t *group, void *context)
{
    const run_t *run = context;
    report_t *report = &run->reports[device_group_rank(group)];
    run_executor_options_t options = options_of(run, false, group);
    run_executor_t *executor = NULL;
    options.error = report->fault;
    options.error_size_bytes = sizeof report->fault;
    report->status = run_executor_new(&options, &executor);
    return 0;
}

/* Heads that do not divide are refused with the numbers. */
START_TEST(what_does_not_divide_is_refused)
{
    report_t *reports = new_reports();
    pid_t pids[3];
    run_t run = {.fixture = "tiny-llama", .reports = reports, .width = 1};
    int fd = new_group(3);
    start_ranks(fd, 3, refused_main, &run, pids);
    wait_ranks(pids, 3, 0);
    (void)close(fd);
    for (uint32_t rank = 0; rank < 3; rank++) {
        ck_assert_int_eq(reports[rank].status, STATUS_ERR_CONFIG);
        ck_assert_ptr_nonnull(strstr(reports[rank].fault, "cannot be shared out over 3 ranks"));
        ck_assert_ptr_nonnull(strstr(reports[rank].fault, "4 query heads, 2 key and value heads"));
        ck_assert_ptr_nonnull(strstr(reports[rank].fault, "128 rows of the feed-forward"));
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.ranks");
    TCase *tests = tcase_create("ranks");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, collectives_add_up_in_the_order_of_the_ranks, 2, 4);
    tcase_add_test(tests, messages_come_whole_and_in_order);
    tcase_add_loop_test(tests, a_group_computes_what_one_executor_computes, 0, FIXTURE_COUNT);
    tcase_add_loop_test(tests, candidates_are_those_of_rank_zero, 0, 2);
    tcase_add_test(tests, ranks_that_were_told_different_things_end);
    tcase_add_loop_test(tests, a_lost_rank_ends_the_group, 1, 3);
    tcase_add_test(tests, what_does_not_divide_is_refused);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
