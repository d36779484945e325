/* Every move in every state. */
#include <check.h>
#include <stdlib.h>

#include "sched_state.h"

enum { BAD = -1 };

/* The table of docs/scheduler-protocol.md, written out a second time: prefill, prefill-last,
 * decode, result, retract, finish, abort. */
static const int expected[SCHED_STATE_COUNT][SCHED_MOVE_COUNT] = {
    /* submitted    */ {1, 2, BAD, BAD, BAD, 5, 5},
    /* prefilling   */ {1, 2, BAD, 1, 4, 5, 5},
    /* prefill-done */ {BAD, BAD, 3, 2, 4, 5, 5},
    /* decoding     */ {BAD, BAD, 3, 3, 4, 5, 5},
    /* retracted    */ {1, 2, BAD, BAD, BAD, 5, 5},
    /* finished     */ {BAD, BAD, BAD, 5, 5, 5, 5},
};

/* A pair that is missing from the table would let a request do what its state forbids. */
START_TEST(every_pair_of_state_and_move_is_decided)
{
    for (int state = 0; state < SCHED_STATE_COUNT; state++) {
        for (int move = 0; move < SCHED_MOVE_COUNT; move++) {
            sched_state_t next = SCHED_STATE_COUNT;
            proto_status_t status =
                sched_state_next((sched_state_t)state, (sched_move_t)move, &next);
            if (expected[state][move] == BAD) {
                ck_assert_int_eq(status, STATUS_ERR_INVALID);
                ck_assert_int_eq(next, SCHED_STATE_COUNT);
            } else {
                ck_assert_int_eq(status, STATUS_OK);
                ck_assert_int_eq((int)next, expected[state][move]);
            }
        }
    }
}
END_TEST

/* Late events are normal with overlap: they must meet a state that takes them. */
START_TEST(finished_absorbs_what_comes_late)
{
    const sched_move_t late[] = {SCHED_MOVE_RESULT, SCHED_MOVE_RETRACT, SCHED_MOVE_FINISH,
                                 SCHED_MOVE_ABORT};
    for (size_t i = 0; i < sizeof late / sizeof late[0]; i++) {
        sched_state_t next = SCHED_STATE_COUNT;
        ck_assert_int_eq(sched_state_next(SCHED_STATE_FINISHED, late[i], &next), STATUS_OK);
        ck_assert_int_eq(next, SCHED_STATE_FINISHED);
    }
}
END_TEST

START_TEST(values_outside_the_lists_are_refused)
{
    sched_state_t next = SCHED_STATE_SUBMITTED;
    ck_assert_int_eq(sched_state_next(SCHED_STATE_COUNT, SCHED_MOVE_ABORT, &next),
                     STATUS_ERR_INVALID);
    ck_assert_int_eq(sched_state_next(SCHED_STATE_SUBMITTED, SCHED_MOVE_COUNT, &next),
                     STATUS_ERR_INVALID);
    ck_assert_str_eq(sched_state_name(SCHED_STATE_COUNT), "unknown");
    ck_assert_str_eq(sched_state_name(SCHED_STATE_DECODING), "decoding");
    ck_assert_str_eq(sched_move_name(SCHED_MOVE_COUNT), "unknown");
    ck_assert_str_eq(sched_move_name(SCHED_MOVE_RETRACT), "retract");
}
END_TEST

int
main(void)
{
    TCase *tcase = tcase_create("state");
    tcase_add_test(tcase, every_pair_of_state_and_move_is_decided);
    tcase_add_test(tcase, finished_absorbs_what_comes_late);
    tcase_add_test(tcase, values_outside_the_lists_are_refused);
    Suite *suite = suite_create("scheduler.state");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
