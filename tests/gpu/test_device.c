/* The device interface: what every device must do.  Run against the host device, or against the one
 * that ONEPATH_TEST_DEVICE names ("cuda", on a GPU host).  Words lie in pinned memory, which both
 * the test and every device reach. */
#include <check.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device_cuda.h"
#include "device_host.h"
#include "device_ops.h"

enum { WORDS = 1024 };

static device_t *device;
static device_stream_t *stream;

static bool
is_cuda(void)
{
    const char *name = getenv("ONEPATH_TEST_DEVICE");
    return name != NULL && strcmp(name, "cuda") == 0;
}

static void
open_device(void)
{
    if (is_cuda()) {
        char error[DEVICE_CUDA_ERROR_SIZE_BYTES];
        device_cuda_options_t cuda = {.debug = true, .error = error};
        ck_assert_msg(device_cuda_new(&cuda, &device) == STATUS_OK, "%s", error);
        ck_assert_int_eq(device_stream_new(device, &stream), STATUS_OK);
        return;
    }
    device_host_options_t options = {.thread_count = 2,
                                     .path = KERN_PATH_PORTABLE,
                                     .queue_len_max = 16,
                                     .debug = true};
    ck_assert_int_eq(device_host_new(&options, &device), STATUS_OK);
    ck_assert_int_eq(device_stream_new(device, &stream), STATUS_OK);
}

static void
close_device(void)
{
    device_stream_destroy(&stream);
    ck_assert_ptr_null(stream);
    device_destroy(&device);
}

static uint32_t *
new_words(uint32_t count)
{
    void *memory = NULL;
    ck_assert_int_eq(device_alloc(device, DEVICE_MEMORY_PINNED, count * sizeof(uint32_t), &memory),
                     STATUS_OK);
    ck_assert_uint_eq((uintptr_t)memory % DEVICE_MEMORY_ALIGN, 0);
    return memory;
}

static void
free_words(uint32_t *words)
{
    void *memory = words;
    device_release(device, DEVICE_MEMORY_PINNED, &memory);
}

static void
launch_fill(device_stream_t *on, void *to, size_t size_bytes, uint8_t value)
{
    kern_fill_args_t args = {.to = to, .size_bytes = size_bytes, .value = value};
    device_ops(device)->fill(on, &args);
}

static void
launch_copy(device_stream_t *on, void *to, const void *from, size_t size_bytes)
{
    kern_copy_args_t args = {.from = from, .to = to, .size_bytes = size_bytes};
    device_ops(device)->copy(on, &args);
}

static void
launch_mark(device_stream_t *on, _Atomic uint32_t *word, uint32_t value)
{
    kern_mark_args_t args = {.word = word, .value = value};
    device_ops(device)->mark(on, &args);
}

/* A gate on the device: work behind it waits until the test opens it. */
static _Atomic bool gate_is_open;
static void
wait_for_gate(void *context)
{
    (void)context;
    while (!atomic_load(&gate_is_open)) {
        (void)sched_yield();
    }
}

/* Launches run in order, far more of them than the queue holds. */
START_TEST(a_stream_keeps_the_order_of_launches)
{
    uint32_t *words = new_words(WORDS);
    for (uint32_t i = 1; i < WORDS; i++) {
        launch_fill(stream, &words[i - 1], sizeof *words, (uint8_t)i);
        launch_copy(stream, &words[i], &words[i - 1], sizeof *words);
    }
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    for (uint32_t i = 1; i + 1 < WORDS; i++) {
        ck_assert_uint_eq(words[i] & 0xff, (i + 1) & 0xff);
    }
    free_words(words);
}
END_TEST

START_TEST(fresh_memory_is_zero)
{
    uint32_t *words = new_words(WORDS);
    for (uint32_t i = 0; i < WORDS; i++) {
        ck_assert_uint_eq(words[i], 0);
    }
    free_words(words);
}
END_TEST

/* A launch that waits would let no step be queued behind a running one. */
START_TEST(launches_and_records_return_at_once)
{
    _Atomic uint32_t *word = (_Atomic uint32_t *)(void *)new_words(1);
    device_event_t *event = NULL;
    ck_assert_int_eq(device_event_new(device, &event), STATUS_OK);
    ck_assert_int_eq(device_event_query(event), STATUS_OK); /* never recorded */
    atomic_store(&gate_is_open, false);
    ck_assert_int_eq(device_stream_call(stream, wait_for_gate, NULL), STATUS_OK);
    launch_mark(stream, word, 7);
    ck_assert_int_eq(device_event_record(event, stream), STATUS_OK);
    if (!is_cuda()) {
        /* There, launches do not wait for a call of the host. */
        ck_assert_int_eq(device_event_query(event), STATUS_AGAIN);
        ck_assert_uint_eq(atomic_load(word), 0);
    }
    atomic_store(&gate_is_open, true);
    ck_assert_int_eq(device_event_synchronize(event), STATUS_OK);
    ck_assert_int_eq(device_event_query(event), STATUS_OK);
    ck_assert_uint_eq(atomic_load(word), 7);
    free_words((uint32_t *)(void *)word);
    ck_assert_uint_gt(device_event_time_ns(event), 0);
    device_event_destroy(&event);
}
END_TEST

/* A wait binds to the record that is latest when it is called. */
START_TEST(a_stream_waits_for_an_event_of_another)
{
    device_stream_t *other = NULL;
    device_event_t *event = NULL;
    uint32_t *words = new_words(2);
    ck_assert_int_eq(device_stream_new(device, &other), STATUS_OK);
    ck_assert_int_eq(device_event_new(device, &event), STATUS_OK);
    atomic_store(&gate_is_open, false);
    ck_assert_int_eq(device_stream_call(stream, wait_for_gate, NULL), STATUS_OK);
    launch_fill(stream, &words[0], sizeof *words, 9);
    ck_assert_int_eq(device_event_record(event, stream), STATUS_OK);
    ck_assert_int_eq(device_stream_wait(other, event), STATUS_OK);
    launch_copy(other, &words[1], &words[0], sizeof *words);
    atomic_store(&gate_is_open, true);
    ck_assert_int_eq(device_stream_synchronize(other), STATUS_OK);
    ck_assert_uint_eq(words[1], 0x09090909u);
    device_event_destroy(&event);
    device_stream_destroy(&other);
    free_words(words);
}
END_TEST

static uint32_t calls;
static void
count_call(void *context)
{
    *(uint32_t *)context += 1;
}

START_TEST(host_calls_run_in_order)
{
    calls = 0;
    for (uint32_t i = 0; i < 50; i++) {
        ck_assert_int_eq(device_stream_call(stream, count_call, &calls), STATUS_OK);
    }
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    ck_assert_uint_eq(calls, 50);
}
END_TEST

/* Recording runs nothing; replay runs what was recorded, with the arguments of that time. */
START_TEST(capture_freezes_arguments_and_replay_runs_them)
{
    device_pool_t *pool = NULL;
    device_graph_t *graph = NULL;
    uint32_t *words = new_words(4);
    ck_assert_int_eq(device_pool_new(device, 4096, &pool), STATUS_OK);
    ck_assert_int_eq(device_capture_begin(stream, pool), STATUS_OK);
    kern_fill_args_t args = {.to = &words[0], .size_bytes = sizeof *words, .value = 3};
    device_ops(device)->fill(stream, &args);
    args.value = 5; /* changes nothing: the scalar was copied */
    args.to = &words[1];
    launch_copy(stream, &words[2], &words[3], sizeof *words);
    ck_assert_int_eq(device_capture_end(stream, &graph), STATUS_OK);
    ck_assert_uint_eq(device_graph_launch_count(graph), 2);
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    ck_assert_uint_eq(words[0], 0);

    for (uint32_t i = 1; i <= 3; i++) {
        /* Memory behind the frozen addresses is read anew at each replay. */
        launch_fill(stream, &words[3], sizeof *words, (uint8_t)i);
        launch_fill(stream, &words[0], sizeof *words, 0);
        ck_assert_int_eq(device_graph_replay(graph, stream), STATUS_OK);
        ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
        ck_assert_uint_eq(words[0], 0x03030303u);
        ck_assert_uint_eq(words[1], 0);
        ck_assert_uint_eq(words[2] & 0xff, i);
    }
    device_graph_destroy(&graph);
    device_pool_destroy(&pool);
    free_words(words);
}
END_TEST

typedef proto_status_t (*forbidden_fn)(device_event_t *event, device_graph_t *graph);

static proto_status_t
try_alloc(device_event_t *event, device_graph_t *graph)
{
    (void)event;
    (void)graph;
    void *memory = NULL;
    return device_alloc(device, DEVICE_MEMORY_DEVICE, 64, &memory);
}

static proto_status_t
try_synchronize(device_event_t *event, device_graph_t *graph)
{
    (void)event;
    (void)graph;
    return device_stream_synchronize(stream);
}

static proto_status_t
try_query(device_event_t *event, device_graph_t *graph)
{
    (void)graph;
    return device_event_query(event);
}

static proto_status_t
try_event_synchronize(device_event_t *event, device_graph_t *graph)
{
    (void)graph;
    return device_event_synchronize(event);
}

static proto_status_t
try_record(device_event_t *event, device_graph_t *graph)
{
    (void)graph;
    return device_event_record(event, stream);
}

static proto_status_t
try_wait(device_event_t *event, device_graph_t *graph)
{
    (void)graph;
    return device_stream_wait(stream, event);
}

static proto_status_t
try_call(device_event_t *event, device_graph_t *graph)
{
    (void)event;
    (void)graph;
    return device_stream_call(stream, count_call, &calls);
}

static proto_status_t
try_replay(device_event_t *event, device_graph_t *graph)
{
    (void)event;
    return device_graph_replay(graph, stream);
}

static proto_status_t
try_stream_new(device_event_t *event, device_graph_t *graph)
{
    (void)event;
    (void)graph;
    device_stream_t *other = NULL;
    return device_stream_new(device, &other);
}

static proto_status_t
try_pool_new(device_event_t *event, device_graph_t *graph)
{
    (void)event;
    (void)graph;
    device_pool_t *pool = NULL;
    return device_pool_new(device, 64, &pool);
}

static const forbidden_fn forbidden[] = {
    try_alloc, try_synchronize, try_query,  try_event_synchronize, try_record,
    try_wait,  try_call,        try_replay, try_stream_new,        try_pool_new,
};

/* What a graph cannot hold is refused at once and spoils the capture, so that no half-recorded
 * graph is ever replayed; the device works on. */
START_TEST(forbidden_calls_spoil_the_capture)
{
    device_pool_t *pool = NULL;
    device_event_t *event = NULL;
    device_graph_t *good = NULL;
    device_graph_t *spoilt = NULL;
    uint32_t *words = new_words(1);
    ck_assert_int_eq(device_event_new(device, &event), STATUS_OK);
    ck_assert_int_eq(device_pool_new(device, 4096, &pool), STATUS_OK);
    ck_assert_int_eq(device_capture_begin(stream, pool), STATUS_OK);
    launch_fill(stream, words, sizeof *words, 1);
    ck_assert_int_eq(device_capture_end(stream, &good), STATUS_OK);

    ck_assert_int_eq(device_capture_begin(stream, pool), STATUS_OK);
    launch_fill(stream, words, sizeof *words, 2);
    ck_assert_int_eq(forbidden[_i](event, good), STATUS_ERR_CAPTURE);
    ck_assert_int_eq(device_stream_check(stream), STATUS_OK);
    ck_assert_int_eq(device_capture_end(stream, &spoilt), STATUS_ERR_CAPTURE);
    ck_assert_ptr_null(spoilt);

    ck_assert_int_eq(device_graph_replay(good, stream), STATUS_OK);
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    ck_assert_uint_eq(words[0], 0x01010101u);
    ck_assert_int_eq(device_capture_begin(stream, pool), STATUS_OK);
    launch_fill(stream, words, sizeof *words, 4);
    ck_assert_int_eq(device_capture_end(stream, &spoilt), STATUS_OK);
    device_graph_destroy(&spoilt);
    device_graph_destroy(&good);
    device_pool_destroy(&pool);
    device_event_destroy(&event);
    free_words(words);
}
END_TEST

START_TEST(captures_do_not_nest_and_do_not_end_twice)
{
    device_pool_t *pool = NULL;
    device_graph_t *graph = NULL;
    ck_assert_int_eq(device_pool_new(device, 64, &pool), STATUS_OK);
    ck_assert_int_eq(device_capture_end(stream, &graph), STATUS_ERR_CAPTURE);
    ck_assert_int_eq(device_capture_begin(stream, pool), STATUS_OK);
    ck_assert_int_eq(device_capture_begin(stream, pool), STATUS_ERR_CAPTURE);
    ck_assert_int_eq(device_capture_end(stream, &graph), STATUS_ERR_CAPTURE);
    device_pool_destroy(&pool);
}
END_TEST

/* Graphs of one pool share its memory: what one left there is gone once another ran. */
START_TEST(a_pool_is_poisoned_when_another_graph_runs)
{
    device_pool_t *pool = NULL;
    device_graph_t *graphs[2] = {NULL, NULL};
    size_t size_bytes = 0;
    ck_assert_int_eq(device_pool_new(device, 4096, &pool), STATUS_OK);
    uint8_t *memory = device_pool_memory(pool, &size_bytes);
    uint8_t *seen = (uint8_t *)new_words(32);
    ck_assert_uint_ge(size_bytes, 4096);
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_int_eq(device_capture_begin(stream, pool), STATUS_OK);
        launch_fill(stream, memory + i * 64, 64, (uint8_t)(i + 1));
        ck_assert_int_eq(device_capture_end(stream, &graphs[i]), STATUS_OK);
    }
    ck_assert_int_eq(device_graph_replay(graphs[0], stream), STATUS_OK);
    ck_assert_int_eq(device_graph_replay(graphs[0], stream), STATUS_OK);
    launch_copy(stream, seen, memory, 128);
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    ck_assert_uint_eq(seen[0], 1);
    ck_assert_int_eq(device_graph_replay(graphs[1], stream), STATUS_OK);
    launch_copy(stream, seen, memory, 128);
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    ck_assert_uint_eq(seen[0], 0xff);
    ck_assert_uint_eq(seen[64], 2);
    free_words((uint32_t *)(void *)seen);
    device_graph_destroy(&graphs[0]);
    device_graph_destroy(&graphs[1]);
    device_pool_destroy(&pool);
}
END_TEST

/* A graph longer than the first list that a capture allocates. */
START_TEST(long_captures_grow)
{
    device_pool_t *pool = NULL;
    device_graph_t *graph = NULL;
    uint32_t *words = new_words(WORDS);
    ck_assert_int_eq(device_pool_new(device, 64, &pool), STATUS_OK);
    ck_assert_int_eq(device_capture_begin(stream, pool), STATUS_OK);
    for (uint32_t i = 0; i < WORDS; i++) {
        launch_fill(stream, &words[i], sizeof *words, (uint8_t)i);
    }
    ck_assert_int_eq(device_capture_end(stream, &graph), STATUS_OK);
    ck_assert_uint_eq(device_graph_launch_count(graph), WORDS);
    ck_assert_int_eq(device_graph_replay(graph, stream), STATUS_OK);
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
    for (uint32_t i = 0; i < WORDS; i++) {
        ck_assert_uint_eq(words[i] & 0xff, i & 0xff);
    }
    device_graph_destroy(&graph);
    device_pool_destroy(&pool);
    free_words(words);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.device");
    TCase *tests = tcase_create("conformance");
    tcase_add_checked_fixture(tests, open_device, close_device);
    tcase_set_timeout(tests, 30);
    tcase_add_test(tests, a_stream_keeps_the_order_of_launches);
    tcase_add_test(tests, fresh_memory_is_zero);
    tcase_add_test(tests, launches_and_records_return_at_once);
    tcase_add_test(tests, a_stream_waits_for_an_event_of_another);
    tcase_add_test(tests, host_calls_run_in_order);
    tcase_add_test(tests, capture_freezes_arguments_and_replay_runs_them);
    tcase_add_loop_test(tests, forbidden_calls_spoil_the_capture, 0,
                        (int)(sizeof forbidden / sizeof *forbidden));
    tcase_add_test(tests, captures_do_not_nest_and_do_not_end_twice);
    tcase_add_test(tests, a_pool_is_poisoned_when_another_graph_runs);
    tcase_add_test(tests, long_captures_grow);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
