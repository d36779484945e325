/* The queue of posted messages: order, bounds, wrapping, growing. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "actor_queue.h"

static uint32_t values[4096];

static uint32_t
next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static proto_status_t
push(actor_queue_t *queue, uint64_t number, uint32_t count)
{
    proto_body_t body = {.plan = {.step = number, .patch_blocks = {values, count}}};
    return actor_queue_push(queue, PROTO_KIND_PLAN, number, &body);
}

static void
check_front(const actor_queue_t *queue, uint64_t number, uint32_t count)
{
    actor_queued_t queued;
    proto_body_t body;
    ck_assert_int_eq(actor_queue_front(queue, &queued), STATUS_OK);
    ck_assert_int_eq(queued.kind, PROTO_KIND_PLAN);
    ck_assert_uint_eq(queued.request, number);
    ck_assert_uint_eq((uintptr_t)queued.blob.data % PROTO_COLUMN_ALIGN, 0);
    ck_assert_int_eq(proto_body_decode(queued.kind, queued.body, queued.blob, &body, NULL),
                     STATUS_OK);
    ck_assert_uint_eq(body.plan.step, number);
    ck_assert_uint_eq(body.plan.patch_blocks.count, count);
    ck_assert(count == 0 ||
              memcmp(body.plan.patch_blocks.data, values, count * sizeof values[0]) == 0);
}

/* Random sizes, random order of pushing and popping: what goes in comes out, in order. */
START_TEST(order_is_kept_over_many_wraps)
{
    uint32_t seed = (uint32_t)time(NULL) | 1;
    (void)printf("seed %u\n", seed);
    for (uint32_t index = 0; index < 4096; index++) {
        values[index] = index * 7 + 1;
    }
    actor_queue_t *queue = NULL;
    ck_assert_int_eq(actor_queue_new(8192, &queue), STATUS_OK);
    static uint32_t counts[512];
    uint64_t pushed = 0;
    uint64_t popped = 0;
    uint32_t full = 0;
    while (popped < 20000) {
        if (next_random(&seed) % 2 == 0) {
            uint32_t count = next_random(&seed) % 600;
            proto_status_t status = push(queue, pushed + 1, count);
            if (status == STATUS_OK) {
                counts[pushed % 512] = count;
                pushed++;
            } else {
                ck_assert_int_eq(status, STATUS_FULL);
                full++;
                ck_assert_uint_gt(actor_queue_len(queue), 0);
            }
        } else if (actor_queue_len(queue) > 0) {
            check_front(queue, popped + 1, counts[popped % 512]);
            actor_queue_pop(queue);
            popped++;
        }
        ck_assert_uint_eq(actor_queue_len(queue), pushed - popped);
    }
    ck_assert_uint_gt(full, 0);
    actor_queue_destroy(&queue);
}
END_TEST

/* What can never fit is told apart from what does not fit now. */
START_TEST(too_large_is_not_full)
{
    actor_queue_t *queue = NULL;
    ck_assert_int_eq(actor_queue_new(4096, &queue), STATUS_OK);
    ck_assert_int_eq(push(queue, 1, 4000), STATUS_ERR_TOO_LARGE);
    ck_assert_int_eq(push(queue, 1, 500), STATUS_OK);
    ck_assert_int_eq(push(queue, 2, 500), STATUS_FULL);
    actor_queued_t queued;
    actor_queue_pop(queue);
    ck_assert_int_eq(actor_queue_front(queue, &queued), STATUS_AGAIN);
    ck_assert_int_eq(push(queue, 3, 500), STATUS_OK);
    check_front(queue, 3, 500);
    actor_queue_destroy(&queue);
}
END_TEST

/* Growing keeps what is queued, wherever the ring had wrapped. */
START_TEST(growing_keeps_everything)
{
    for (uint32_t skip = 0; skip < 20; skip++) {
        actor_queue_t *queue = NULL;
        ck_assert_int_eq(actor_queue_new(4096, &queue), STATUS_OK);
        for (uint32_t index = 0; index < skip; index++) {
            ck_assert_int_eq(push(queue, 0, 60), STATUS_OK);
            actor_queue_pop(queue);
            /* Keeps one in the queue, so that the positions move on. */
            ck_assert_int_eq(push(queue, 0, 10 * index), STATUS_OK);
            ck_assert_int_eq(push(queue, 0, 3), STATUS_OK);
            actor_queue_pop(queue);
            actor_queue_pop(queue);
        }
        uint64_t pushed = 0;
        for (; pushed < 200; pushed++) {
            while (push(queue, pushed + 1, (uint32_t)pushed) == STATUS_FULL) {
                ck_assert_int_eq(actor_queue_grow(queue), STATUS_OK);
            }
        }
        for (uint64_t popped = 0; popped < pushed; popped++) {
            check_front(queue, popped + 1, (uint32_t)popped);
            actor_queue_pop(queue);
        }
        actor_queue_destroy(&queue);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.queue");
    TCase *test = tcase_create("queue");
    tcase_add_test(test, order_is_kept_over_many_wraps);
    tcase_add_test(test, too_large_is_not_full);
    tcase_add_test(test, growing_keeps_everything);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
