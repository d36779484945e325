/* The command queue: order and bytes survive every wrap, and an empty queue starts at its begin so
 * that it touches no more memory than it needs. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_executor_queue.h"
#include "proto_clock.h"

enum { CAPACITY = 4096, ROUNDS = 20000, PART_MAX = 1500 };

static actor_executor_queue_t queue;
static uint8_t bytes[PART_MAX];

static void
check_part(proto_bytes_t part, size_t size_bytes, uint8_t mark)
{
    ck_assert_uint_eq(part.size_bytes, size_bytes);
    memset(bytes, mark, sizeof bytes);
    ck_assert(size_bytes == 0 || memcmp(part.data, bytes, size_bytes) == 0);
}

START_TEST(commands_come_out_as_they_went_in)
{
    static struct {
        size_t body, blob;
        uint8_t mark;
    } expected[ROUNDS];
    uint32_t in = 0;
    uint32_t out = 0;
    uint32_t full = 0;
    unsigned seed = (unsigned)proto_clock_realtime_ns(proto_clock_system());
    printf("seed %u\n", seed);
    srand(seed);
    ck_assert_int_eq(actor_executor_queue_init(&queue, CAPACITY), STATUS_OK);
    while (out < ROUNDS) {
        if (in < ROUNDS && rand() % 5 < 3) {
            expected[in].body = (size_t)rand() % 100;
            expected[in].blob = rand() % 3 == 0 ? 0 : (size_t)rand() % PART_MAX;
            expected[in].mark = (uint8_t)rand();
            memset(bytes, expected[in].mark, sizeof bytes);
            actor_emission_t command = {.kind = (proto_kind_t)(1 + in % 50),
                                        .body = {bytes, expected[in].body},
                                        .blob = {bytes, expected[in].blob}};
            if (actor_executor_queue_push(&queue, &command)) {
                in++;
            } else {
                full++;
                ck_assert_uint_gt(queue.count, 0); /* one command always fits */
            }
        } else if (out < in) {
            const actor_executor_record_t *record = actor_executor_queue_front(&queue);
            ck_assert_ptr_nonnull(record);
            ck_assert_uint_eq(record->kind, 1 + out % 50);
            check_part(actor_executor_record_body(record), expected[out].body, expected[out].mark);
            check_part(actor_executor_record_blob(record), expected[out].blob, expected[out].mark);
            ck_assert_uint_eq((uintptr_t)actor_executor_record_blob(record).data % 64, 0);
            actor_executor_queue_pop(&queue);
            out++;
        }
        ck_assert_uint_eq(queue.count, in - out);
    }
    ck_assert_ptr_null(actor_executor_queue_front(&queue));
    ck_assert_uint_gt(full, 0);
    actor_executor_queue_fini(&queue);
}
END_TEST

START_TEST(an_empty_queue_starts_at_its_begin)
{
    actor_emission_t command = {.kind = PROTO_KIND_STEP_LAUNCH,
                                .body = {bytes, 10},
                                .blob = {bytes, 100}};
    ck_assert_int_eq(actor_executor_queue_init(&queue, CAPACITY), STATUS_OK);
    for (uint32_t i = 0; i < 100; i++) {
        ck_assert(actor_executor_queue_push(&queue, &command));
        ck_assert_ptr_eq(actor_executor_queue_front(&queue), queue.memory);
        actor_executor_queue_pop(&queue);
    }
    actor_executor_queue_fini(&queue);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.executor_queue");
    TCase *order = tcase_create("order");
    tcase_set_timeout(order, 60);
    tcase_add_test(order, commands_come_out_as_they_went_in);
    tcase_add_test(order, an_empty_queue_starts_at_its_begin);
    suite_add_tcase(suite, order);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
