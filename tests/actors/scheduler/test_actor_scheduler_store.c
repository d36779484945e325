/* The store of waiting prompts. */
#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "actor_scheduler_store.h"

static actor_scheduler_store_t *store;

static void
make(void)
{
    ck_assert_int_eq(actor_scheduler_store_new(100000, &store), STATUS_OK);
    ck_assert_uint_eq(actor_scheduler_store_size_bytes(store), 131072);
}

static void
drop(void)
{
    actor_scheduler_store_check(store);
    actor_scheduler_store_destroy(&store);
    ck_assert_ptr_null(store);
}

static actor_scheduler_content_t
content_of(const int32_t *tokens, uint32_t count)
{
    static const uint8_t sampling[] = "sampling";
    static const uint8_t hashes[64] = {7};
    return (actor_scheduler_content_t){
        .tokens = {tokens, count},
        .sampling = {sampling, sizeof sampling},
        .page_hashes = {hashes, sizeof hashes},
    };
}

START_TEST(what_was_put_in_comes_out)
{
    int32_t tokens[1000];
    for (int i = 0; i < 1000; i++) {
        tokens[i] = i * 3;
    }
    actor_scheduler_content_t in = content_of(tokens, 1000);
    actor_scheduler_parcel_t parcel;
    ck_assert_int_eq(actor_scheduler_store_put(store, &in, &parcel), STATUS_OK);
    actor_scheduler_content_t out = actor_scheduler_store_get(store, parcel);
    ck_assert_uint_eq(out.tokens.count, 1000);
    ck_assert_mem_eq(out.tokens.data, tokens, sizeof tokens);
    ck_assert_uint_eq(out.sampling.count, in.sampling.count);
    ck_assert_mem_eq(out.sampling.data, in.sampling.data, in.sampling.count);
    ck_assert_uint_eq(out.page_hashes.size_bytes, 64);
    ck_assert_mem_eq(out.page_hashes.data, in.page_hashes.data, 64);
    actor_scheduler_store_drop(store, parcel);
    ck_assert_uint_eq(actor_scheduler_store_used_bytes(store), 0);
}
END_TEST

/* Empty columns are columns too. */
START_TEST(an_empty_content_takes_the_smallest_stretch)
{
    actor_scheduler_content_t nothing = {0};
    actor_scheduler_parcel_t parcel;
    ck_assert_int_eq(actor_scheduler_store_put(store, &nothing, &parcel), STATUS_OK);
    ck_assert_uint_eq(actor_scheduler_store_get(store, parcel).tokens.count, 0);
    ck_assert_uint_eq(actor_scheduler_store_used_bytes(store), 1024);
    actor_scheduler_store_drop(store, parcel);
}
END_TEST

/* Full now is not the same as too large for ever. */
START_TEST(full_and_too_large_are_told_apart)
{
    static int32_t tokens[40000];
    actor_scheduler_content_t large = content_of(tokens, 40000);
    actor_scheduler_content_t half = content_of(tokens, 15000);
    actor_scheduler_parcel_t first;
    actor_scheduler_parcel_t second;
    actor_scheduler_parcel_t none = {0};
    ck_assert_int_eq(actor_scheduler_store_put(store, &large, &none), STATUS_ERR_TOO_LARGE);
    ck_assert_int_eq(actor_scheduler_store_put(store, &half, &first), STATUS_OK);
    ck_assert_int_eq(actor_scheduler_store_put(store, &half, &second), STATUS_OK);
    ck_assert_int_eq(actor_scheduler_store_put(store, &half, &none), STATUS_FULL);
    ck_assert_uint_eq(none.value, 0);
    actor_scheduler_store_drop(store, first);
    ck_assert_int_eq(actor_scheduler_store_put(store, &half, &first), STATUS_OK);
    actor_scheduler_store_drop(store, first);
    actor_scheduler_store_drop(store, second);
    /* Everything has grown together again. */
    actor_scheduler_content_t most = content_of(tokens, 32000);
    ck_assert_int_eq(actor_scheduler_store_put(store, &most, &first), STATUS_OK);
}
END_TEST

START_TEST(stretches_never_overlap_under_random_use)
{
    static int32_t tokens[8000];
    actor_scheduler_parcel_t held[64];
    int32_t marks[64];
    uint32_t counts[64];
    uint32_t count = 0;
    srand(20261130);
    for (int round = 0; round < 20000; round++) {
        if (rand() % 2 == 0 && count < 64) {
            uint32_t length = 1 + (uint32_t)rand() % (rand() % 8 == 0 ? 8000 : 500);
            for (uint32_t i = 0; i < length; i++) {
                tokens[i] = round;
            }
            actor_scheduler_content_t in = content_of(tokens, length);
            if (actor_scheduler_store_put(store, &in, &held[count]) == STATUS_OK) {
                marks[count] = round;
                counts[count++] = length;
            }
        } else if (count > 0) {
            uint32_t at = (uint32_t)rand() % count;
            actor_scheduler_content_t out = actor_scheduler_store_get(store, held[at]);
            ck_assert_uint_eq(out.tokens.count, counts[at]);
            bool same = true;
            for (uint32_t i = 0; i < counts[at]; i++) {
                same = same && out.tokens.data[i] == marks[at];
            }
            ck_assert(same);
            actor_scheduler_store_drop(store, held[at]);
            count--;
            held[at] = held[count];
            marks[at] = marks[count];
            counts[at] = counts[count];
        }
        if (round % 100 == 0) {
            actor_scheduler_store_check(store);
        }
    }
}
END_TEST

int
main(void)
{
    TCase *tcase = tcase_create("store");
    tcase_add_checked_fixture(tcase, make, drop);
    tcase_set_timeout(tcase, 30);
    tcase_add_test(tcase, what_was_put_in_comes_out);
    tcase_add_test(tcase, an_empty_content_takes_the_smallest_stretch);
    tcase_add_test(tcase, full_and_too_large_are_told_apart);
    tcase_add_test(tcase, stretches_never_overlap_under_random_use);
    Suite *suite = suite_create("actors.scheduler_store");
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
