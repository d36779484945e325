/* The ring between executor and drafter: words, epochs, the token store, hostile headers. */
#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "draft_ring.h"
#include "proto_clock.h"

enum { SLOTS = 3, WIDTH = 4, LENGTH = 40, VOCABULARY = 100 };

static char path[128];
static draft_ring_options_t options;
static draft_ring_t *executor;
static draft_ring_t *drafter;

static uint64_t
after_ms(uint64_t ms)
{
    return proto_clock_monotonic_ns(proto_clock_system()) + ms * 1000000u;
}

static void
open_both(void)
{
    (void)snprintf(path, sizeof path, "/tmp/onepath-ring-%ld", (long)getpid());
    options = (draft_ring_options_t){.ring_id = 77,
                                     .slot_count = SLOTS,
                                     .width = WIDTH,
                                     .vocabulary = VOCABULARY,
                                     .model_len_max = LENGTH,
                                     .rows_max = 64};
    ck_assert_int_eq(draft_ring_create(path, &options, &executor), STATUS_OK);
    ck_assert_int_eq(draft_ring_open(path, &options, &drafter), STATUS_OK);
    draft_ring_admit(executor, 5);
}

static void
close_both(void)
{
    draft_ring_destroy(&drafter);
    draft_ring_destroy(&executor);
    ck_assert_int_ne(access(path, F_OK), 0);
}

/* What one side writes the other one reads, and no column lies in another. */
START_TEST(columns_are_apart_and_shared)
{
    for (uint32_t index = 0; index < DRAFT_RING_SLOT_COUNT; index++) {
        draft_ring_view_t mine = draft_ring_view(executor, index);
        for (uint32_t i = 0; i < SLOTS; i++) {
            mine.slots[i] = 1000 * index + i;
            mine.generations[i] = 1000 * index + 10 + i;
            mine.lengths[i] = 1000 * index + 20 + i;
            mine.accept_lengths[i] = (int32_t)(1000 * index + 30 + i);
            mine.samples[i] = (uint8_t)(index + i);
            mine.counts[i] = (int32_t)(1000 * index + 40 + i);
        }
        for (uint32_t i = 0; i < SLOTS * WIDTH; i++) {
            mine.tokens[i] = (int32_t)(1000 * index + 100 + i);
        }
        for (uint32_t i = 0; i < SLOTS * (WIDTH - 1); i++) {
            mine.candidates[i] = (int32_t)(1000 * index + 200 + i);
        }
    }
    for (uint32_t index = 0; index < DRAFT_RING_SLOT_COUNT; index++) {
        draft_ring_view_t theirs = draft_ring_view(drafter, index);
        ck_assert_ptr_null(theirs.hidden);
        for (uint32_t i = 0; i < SLOTS; i++) {
            ck_assert_uint_eq(theirs.slots[i], 1000 * index + i);
            ck_assert_uint_eq(theirs.generations[i], 1000 * index + 10 + i);
            ck_assert_uint_eq(theirs.lengths[i], 1000 * index + 20 + i);
            ck_assert_int_eq(theirs.accept_lengths[i], (int32_t)(1000 * index + 30 + i));
            ck_assert_uint_eq(theirs.samples[i], index + i);
            ck_assert_int_eq(theirs.counts[i], (int32_t)(1000 * index + 40 + i));
        }
        for (uint32_t i = 0; i < SLOTS * WIDTH; i++) {
            ck_assert_int_eq(theirs.tokens[i], (int32_t)(1000 * index + 100 + i));
        }
        for (uint32_t i = 0; i < SLOTS * (WIDTH - 1); i++) {
            ck_assert_int_eq(theirs.candidates[i], (int32_t)(1000 * index + 200 + i));
        }
    }
}
END_TEST

/* Only the answer to this step, from the admitted incarnation, counts. */
START_TEST(answers_of_another_step_or_epoch_do_not_count)
{
    ck_assert_int_eq(draft_ring_wait_answer(executor, 1, 9, 0), STATUS_AGAIN);
    ck_assert_int_eq(draft_ring_wait_round(drafter, 1, 9, 5, 0), STATUS_AGAIN);
    draft_ring_post(executor, 1, 9);
    ck_assert_int_eq(draft_ring_wait_round(drafter, 1, 9, 5, 0), STATUS_OK);
    ck_assert_int_eq(draft_ring_wait_round(drafter, 1, 8, 5, 0), STATUS_ERR_STALE);
    ck_assert_int_eq(draft_ring_wait_round(drafter, 1, 10, 5, 0), STATUS_AGAIN);
    ck_assert_int_eq(draft_ring_wait_round(drafter, 1, 9, 4, 0), STATUS_ERR_CANCELLED);
    draft_ring_answer(drafter, 1, 8, 5);
    ck_assert_int_eq(draft_ring_wait_answer(executor, 1, 9, 0), STATUS_AGAIN);
    draft_ring_answer(drafter, 1, 9, 4); /* an incarnation that was declared dead and lives */
    ck_assert_int_eq(draft_ring_wait_answer(executor, 1, 9, 0), STATUS_ERR_STALE);
    draft_ring_answer(drafter, 1, 9, 5);
    ck_assert_int_eq(draft_ring_wait_answer(executor, 1, 9, 0), STATUS_OK);
    draft_ring_answer(drafter, 1, 9 + (UINT64_C(1) << 32), 5); /* the same word, another step */
    ck_assert_int_eq(draft_ring_wait_answer(executor, 1, 9, 0), STATUS_ERR_STALE);
    draft_ring_admit(executor, 0);
    ck_assert_int_eq(draft_ring_wait_answer(executor, 1, 9, 0), STATUS_ERR_CANCELLED);
    ck_assert_int_eq(draft_ring_wait_round(drafter, 1, 10, 5, 0), STATUS_ERR_CANCELLED);
}
END_TEST

static proto_status_t waited;

static void *
wait_long(void *context)
{
    bool is_executor = context != NULL;
    waited = is_executor ? draft_ring_wait_answer(executor, 0, 3, after_ms(30000))
                         : draft_ring_wait_round(drafter, 0, 3, 5, after_ms(30000));
    return NULL;
}

/* Who sleeps is woken: by the word, and by the survivor when the other one is declared dead. */
START_TEST(whoever_waits_is_woken)
{
    for (int which = 0; which < 4; which++) {
        bool is_executor = which % 2 == 0;
        pthread_t thread;
        draft_ring_admit(executor, 5);
        draft_ring_post(executor, 0, 2);
        uint64_t begin_ns = after_ms(0);
        ck_assert_int_eq(pthread_create(&thread, NULL, wait_long, is_executor ? path : NULL), 0);
        if (which < 2) {
            draft_ring_admit(executor, 0);
        } else if (is_executor) {
            draft_ring_answer(drafter, 0, 3, 5);
        } else {
            draft_ring_post(executor, 0, 3);
        }
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_int_eq(waited, which < 2 ? STATUS_ERR_CANCELLED : STATUS_OK);
        ck_assert_uint_lt(after_ms(0) - begin_ns, UINT64_C(20000000000));
    }
}
END_TEST

/* Two processes hand a number back and forth: no wake-up is lost. */
START_TEST(two_processes_take_turns)
{
    enum { ROUNDS = 3000 };
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        for (uint64_t step = 1; step <= ROUNDS; step++) {
            uint32_t index = (uint32_t)(step % DRAFT_RING_SLOT_COUNT);
            if (draft_ring_wait_round(drafter, index, step, 5, after_ms(20000)) != STATUS_OK) {
                _exit(1);
            }
            draft_ring_view_t view = draft_ring_view(drafter, index);
            view.counts[0] = view.accept_lengths[0] + 1;
            draft_ring_answer(drafter, index, step, 5);
        }
        _exit(0);
    }
    for (uint64_t step = 1; step <= ROUNDS; step++) {
        uint32_t index = (uint32_t)(step % DRAFT_RING_SLOT_COUNT);
        draft_ring_view_t view = draft_ring_view(executor, index);
        view.accept_lengths[0] = (int32_t)step;
        draft_ring_post(executor, index, step);
        ck_assert_int_eq(draft_ring_wait_answer(executor, index, step, after_ms(20000)), STATUS_OK);
        ck_assert_int_eq(view.counts[0], (int32_t)step + 1);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}
END_TEST

/* A request's tokens are there for who comes late, and another request's never are. */
START_TEST(the_store_is_read_by_generation)
{
    const int32_t prompt[] = {4, 5, 6};
    int32_t out[LENGTH];
    uint32_t first = draft_ring_store_begin(executor, 2, prompt, 3);
    ck_assert_uint_eq(draft_ring_store_append(executor, 2, 3, prompt, 2), 5);
    ck_assert(draft_ring_store_read(drafter, 2, first, out, 5));
    ck_assert_int_eq(out[4], 5);
    ck_assert(!draft_ring_store_read(drafter, 2, first, out, 6));
    ck_assert(!draft_ring_store_read(drafter, 2, first + 2, out, 1));
    ck_assert(!draft_ring_store_read(drafter, 0, first, out, 1));
    ck_assert(!draft_ring_store_read(drafter, SLOTS + 1, first, out, 1));
    ck_assert(!draft_ring_store_read(drafter, 2, first, out, LENGTH + 1));
    uint32_t second = draft_ring_store_begin(executor, 2, prompt, 1);
    ck_assert_uint_ne(first, second);
    ck_assert(!draft_ring_store_read(drafter, 2, first, out, 1));
    ck_assert(draft_ring_store_read(drafter, 2, second, out, 1));
    int32_t many[LENGTH + 9] = {0};
    ck_assert_uint_eq(draft_ring_store_append(executor, 2, 1, many, LENGTH + 9), LENGTH);
    const int32_t wrong[] = {VOCABULARY};
    uint32_t third = draft_ring_store_begin(executor, 2, wrong, 1);
    ck_assert(!draft_ring_store_read(drafter, 2, third, out, 1));
}
END_TEST

/* Where the executor appends is its own knowledge: a count that the drafter wrote moves nothing. */
START_TEST(a_count_in_the_store_is_not_believed)
{
    const int32_t prompt[] = {4, 5, 6};
    const uint32_t counts[] = {0, 2, LENGTH, LENGTH + 1, 1u << 24, UINT32_MAX};
    int32_t out[LENGTH];
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        uint32_t generation = draft_ring_store_begin(executor, SLOTS, prompt, 3);
        uint32_t words[2] = {generation, 3};
        uint32_t count = counts[i];
        /* As hostile memory: the entry is the only place where its two words stand together. */
        size_t size_bytes = draft_ring_size_bytes(drafter);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        ck_assert_int_ge(fd, 0);
        uint8_t *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ck_assert(memory != MAP_FAILED);
        uint32_t planted = 0;
        for (size_t at = 0; at + sizeof words <= size_bytes; at += 64) {
            if (memcmp(memory + at, words, sizeof words) == 0) {
                memcpy(memory + at + sizeof words[0], &count, sizeof count);
                planted++;
            }
        }
        ck_assert_uint_eq(planted, 1);
        ck_assert_int_eq(munmap(memory, size_bytes), 0);
        close(fd);
        ck_assert_uint_eq(draft_ring_store_append(executor, SLOTS, 3, prompt, 2), 5);
        ck_assert(draft_ring_store_read(drafter, SLOTS, generation, out, 5));
        ck_assert_int_eq(out[4], 5);
        ck_assert_uint_eq(draft_ring_store_append(executor, SLOTS, UINT32_MAX, prompt, 2), LENGTH);
    }
}
END_TEST

/* A header is believed only where it agrees with what the executor said in its message. */
START_TEST(another_ring_is_refused)
{
    draft_ring_t *other = NULL;
    draft_ring_options_t wrong[6];
    for (size_t i = 0; i < 6; i++) {
        wrong[i] = options;
    }
    wrong[0].ring_id++;
    wrong[1].slot_count++;
    wrong[2].width++;
    wrong[3].vocabulary++;
    wrong[4].model_len_max++;
    for (size_t i = 0; i < 5; i++) {
        ck_assert_int_eq(draft_ring_open(path, &wrong[i], &other), STATUS_ERR_MALFORMED);
    }
    ck_assert_int_eq(draft_ring_open("/tmp/onepath-no-ring", &options, &other), STATUS_ERR_IO);
    ck_assert_int_eq(truncate(path, 4096), 0);
    ck_assert_int_eq(draft_ring_open(path, &options, &other), STATUS_ERR_MALFORMED);
    wrong[5].width = 17;
    ck_assert_int_eq(draft_ring_create("/tmp/onepath-no-ring", &wrong[5], &other),
                     STATUS_ERR_CONFIG);
    ck_assert_int_eq(draft_ring_create("/nowhere/ring", &options, &other), STATUS_ERR_IO);
}
END_TEST

/* The executor starts again: who has the old ring keeps it, and it is not the new one. */
START_TEST(a_new_ring_is_another_file)
{
    draft_ring_t *next = NULL;
    draft_ring_options_t other = options;
    other.ring_id = 78;
    ck_assert_int_eq(draft_ring_create(path, &other, &next), STATUS_OK);
    draft_ring_admit(next, 6);
    draft_ring_post(next, 0, 1);
    ck_assert_int_eq(draft_ring_wait_round(drafter, 0, 1, 5, 0), STATUS_AGAIN);
    draft_ring_destroy(&next);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.draft_ring");
    TCase *tests = tcase_create("ring");
    tcase_add_checked_fixture(tests, open_both, close_both);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, columns_are_apart_and_shared);
    tcase_add_test(tests, answers_of_another_step_or_epoch_do_not_count);
    tcase_add_test(tests, whoever_waits_is_woken);
    tcase_add_test(tests, two_processes_take_turns);
    tcase_add_test(tests, the_store_is_read_by_generation);
    tcase_add_test(tests, a_count_in_the_store_is_not_believed);
    tcase_add_test(tests, another_ring_is_refused);
    tcase_add_test(tests, a_new_ring_is_another_file);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
