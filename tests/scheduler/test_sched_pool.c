/* The pool of blocks: parents, sharing, the prefix index, what is evicted first. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "sched_pool.h"

static sched_pool_t *pool;

static void
make(uint32_t parent_count, uint32_t group_count, const uint32_t *packings)
{
    sched_pool_group_t groups[4];
    for (uint32_t g = 0; g < group_count; g++) {
        groups[g] = (sched_pool_group_t){.granularity = 4, .packing = packings[g]};
    }
    ck_assert_int_eq(sched_pool_new(parent_count, groups, group_count, &pool), STATUS_OK);
}

static void
make_single(void)
{
    const uint32_t one = 1;
    make(9, 1, &one);
}

static void
make_packed(void)
{
    const uint32_t packings[2] = {1, 4};
    make(5, 2, packings);
}

static void
drop(void)
{
    sched_pool_check(pool);
    sched_pool_destroy(&pool);
    ck_assert_ptr_null(pool);
}

static sched_block_t
take(uint32_t group)
{
    sched_block_t block = {0};
    ck_assert_int_eq(sched_pool_acquire(pool, group, &block), STATUS_OK);
    ck_assert_uint_ne(block.index, 0);
    sched_pool_check(pool);
    return block;
}

static sched_page_t
page(uint32_t group, uint8_t name, uint8_t *hash)
{
    memset(hash, 0, PROTO_HASH_SIZE_BYTES);
    hash[0] = name;
    hash[31] = (uint8_t)(name + 1);
    return (sched_page_t){.group = group, .hash = hash};
}

static sched_block_t
publish(uint32_t group, uint8_t name, sched_block_t block)
{
    uint8_t hash[PROTO_HASH_SIZE_BYTES];
    sched_page_t wanted = page(group, name, hash);
    sched_block_t canonical = sched_pool_publish(pool, &wanted, block);
    sched_pool_check(pool);
    return canonical;
}

static sched_block_t
find(uint32_t group, uint8_t name)
{
    uint8_t hash[PROTO_HASH_SIZE_BYTES];
    sched_page_t wanted = page(group, name, hash);
    return sched_pool_find(pool, &wanted);
}

static void
release(sched_block_t block)
{
    sched_pool_release(pool, block);
    sched_pool_check(pool);
}

/* Every block can be had, then none: the null block is never given. */
START_TEST(all_blocks_but_the_null_block_are_given)
{
    bool seen[9] = {false};
    for (int i = 0; i < 8; i++) {
        sched_block_t block = take(0);
        ck_assert(!seen[block.index]);
        seen[block.index] = true;
    }
    sched_block_t none = {77};
    ck_assert_int_eq(sched_pool_acquire(pool, 0, &none), STATUS_FULL);
    ck_assert_uint_eq(none.index, 77);
    ck_assert_uint_eq(sched_pool_available(pool, 0), 0);
}
END_TEST

/* A block's generation tells its owners apart. */
START_TEST(a_new_owner_is_a_new_generation)
{
    sched_block_t block = take(0);
    uint32_t generation = sched_pool_generation(pool, block);
    release(block);
    sched_block_t again = take(0);
    ck_assert_uint_eq(again.index, block.index);
    ck_assert_uint_gt(sched_pool_generation(pool, again), generation);
}
END_TEST

/* A published page outlives its owner and is found by the next one. */
START_TEST(a_published_page_stays_cached_and_is_shared)
{
    sched_block_t block = take(0);
    ck_assert_uint_eq(publish(0, 7, block).index, block.index);
    ck_assert_int_eq(sched_pool_state(pool, block), SCHED_BLOCK_SHARED);
    release(block);
    ck_assert_int_eq(sched_pool_state(pool, block), SCHED_BLOCK_CACHED);
    ck_assert_uint_eq(sched_pool_available(pool, 0), 8);
    ck_assert_uint_eq(find(0, 7).index, block.index);
    sched_pool_share(pool, block);
    sched_pool_share(pool, block);
    ck_assert_uint_eq(sched_pool_holder_count(pool, block), 2);
    ck_assert_uint_eq(sched_pool_available(pool, 0), 7);
    release(block);
    ck_assert_int_eq(sched_pool_state(pool, block), SCHED_BLOCK_SHARED);
    release(block);
    ck_assert_int_eq(sched_pool_state(pool, block), SCHED_BLOCK_CACHED);
}
END_TEST

/* Two requests that computed the same page end up with one block. */
START_TEST(the_first_publisher_is_canonical)
{
    sched_block_t first = take(0);
    sched_block_t second = take(0);
    ck_assert_uint_eq(publish(0, 7, first).index, first.index);
    ck_assert_uint_eq(publish(0, 7, second).index, first.index);
    ck_assert_int_eq(sched_pool_state(pool, second), SCHED_BLOCK_OWNED);
}
END_TEST

/* Pages that were found again are worth more than pages that were not, and among equals the one
 * that was left first goes first. */
START_TEST(eviction_takes_the_least_worthy_page)
{
    sched_block_t blocks[8];
    for (uint8_t i = 0; i < 8; i++) {
        blocks[i] = take(0);
        publish(0, i, blocks[i]);
    }
    sched_pool_share(pool, blocks[0]); /* a hit on page 0 */
    release(blocks[0]);
    for (uint8_t i = 0; i < 8; i++) {
        release(blocks[i]);
    }
    for (uint8_t i = 1; i < 8; i++) {
        ck_assert_uint_eq(take(0).index, blocks[i].index);
        ck_assert_uint_eq(find(0, i).index, 0);
    }
    ck_assert_uint_eq(find(0, 0).index, blocks[0].index);
    ck_assert_uint_eq(take(0).index, blocks[0].index);
    ck_assert_uint_eq(find(0, 0).index, 0);
    ck_assert_uint_eq(sched_pool_evicted_count(pool), 8);
}
END_TEST

/* The established tier is bounded, or old favourites would never leave. */
START_TEST(old_favourites_lose_their_rank)
{
    sched_block_t blocks[8];
    for (uint8_t i = 0; i < 8; i++) {
        blocks[i] = take(0);
        publish(0, i, blocks[i]);
        sched_pool_share(pool, blocks[i]);
        release(blocks[i]);
    }
    for (uint8_t i = 0; i < 8; i++) {
        release(blocks[i]);
    }
    ck_assert_uint_eq(take(0).index, blocks[0].index);
    ck_assert_uint_eq(take(0).index, blocks[1].index);
}
END_TEST

/* Content that must not be read again leaves the index and is cleared once. */
START_TEST(an_unpublished_block_is_free_and_dirty)
{
    sched_block_t block = take(0);
    publish(0, 3, block);
    sched_pool_unpublish(pool, block);
    sched_pool_mark_dirty(pool, block);
    sched_pool_check(pool);
    ck_assert_uint_eq(find(0, 3).index, 0);
    release(block);
    ck_assert_int_eq(sched_pool_state(pool, block), SCHED_BLOCK_FREE);
    sched_block_t again = take(0);
    ck_assert_uint_eq(again.index, block.index);
    ck_assert(sched_pool_take_dirty(pool, again));
    ck_assert(!sched_pool_take_dirty(pool, again));
}
END_TEST

/* The bytes stay where they are when their parent goes to another group. */
START_TEST(a_mark_follows_the_parent_to_another_group)
{
    sched_block_t blocks[4];
    for (uint32_t i = 0; i < 4; i++) {
        blocks[i] = take(1);
    }
    sched_pool_mark_dirty(pool, blocks[2]);
    for (uint32_t i = 0; i < 4; i++) {
        release(blocks[i]);
    }
    sched_block_t other = take(0); /* of the parent that was emptied last */
    ck_assert(sched_pool_take_dirty(pool, other));
    release(other);
    /* Nobody has cleared the rest. */
    for (uint32_t i = 0; i < 4; i++) {
        blocks[i] = take(1);
        ck_assert(sched_pool_take_dirty(pool, blocks[i]) == (i == 2));
    }
}
END_TEST

/* A parent serves one group at a time, and all its blocks before another parent is opened. */
START_TEST(a_parent_is_bound_while_a_block_of_it_is_used)
{
    sched_block_t small[5];
    for (int i = 0; i < 5; i++) {
        small[i] = take(1);
    }
    ck_assert_uint_eq(sched_pool_empty_parent_count(pool), 2);
    ck_assert_uint_eq(sched_pool_available(pool, 1), 3 + 8);
    ck_assert_uint_eq(sched_pool_available(pool, 0), 2);
    take(0);
    take(0);
    sched_block_t none;
    ck_assert_int_eq(sched_pool_acquire(pool, 0, &none), STATUS_FULL);
    release(small[4]);
    ck_assert_uint_eq(sched_pool_empty_parent_count(pool), 1);
    take(0);
}
END_TEST

/* Cached pages of one group give way to another group, a parent at a time. */
START_TEST(an_idle_parent_is_taken_from_another_group)
{
    sched_block_t small[16];
    for (uint8_t i = 0; i < 16; i++) {
        small[i] = take(1);
        publish(1, i, small[i]);
    }
    for (uint8_t i = 0; i < 15; i++) {
        release(small[i]);
    }
    ck_assert_uint_eq(sched_pool_available(pool, 0), 3);
    take(0);
    for (uint8_t i = 0; i < 4; i++) {
        ck_assert_uint_eq(find(1, i).index, 0);
    }
    ck_assert_uint_ne(find(1, 4).index, 0);
    take(0);
    take(0);
    sched_block_t none;
    ck_assert_int_eq(sched_pool_acquire(pool, 0, &none), STATUS_FULL);
    ck_assert_int_eq(sched_pool_state(pool, small[15]), SCHED_BLOCK_SHARED);
}
END_TEST

/* Many random operations; the walker looks after each. */
START_TEST(counters_and_lists_agree_under_random_use)
{
    const uint32_t packings[3] = {1, 3, 64};
    make(8, 3, packings);
    srand(20261130);
    sched_block_t held[64];
    uint32_t count = 0;
    for (int i = 0; i < 20000; i++) {
        uint32_t what = (uint32_t)rand() % 8;
        if (what < 4 && count < 64) {
            sched_block_t block;
            if (sched_pool_acquire(pool, (uint32_t)rand() % 3, &block) == STATUS_OK) {
                held[count++] = block;
            }
        } else if (what < 5 && count > 0) {
            sched_block_t block = held[(uint32_t)rand() % count];
            uint8_t hash[PROTO_HASH_SIZE_BYTES];
            sched_page_t wanted =
                page(sched_pool_group_of(pool, block), (uint8_t)(rand() % 40), hash);
            if (sched_pool_state(pool, block) == SCHED_BLOCK_OWNED) {
                (void)sched_pool_publish(pool, &wanted, block);
            }
        } else if (what < 6 && count < 64) {
            sched_block_t block = find((uint32_t)rand() % 3, (uint8_t)(rand() % 40));
            if (block.index != 0) {
                sched_pool_share(pool, block);
                held[count++] = block;
            }
        } else if (count > 0) {
            uint32_t at = (uint32_t)rand() % count;
            sched_pool_release(pool, held[at]);
            held[at] = held[--count];
        }
        sched_pool_check(pool);
    }
    while (count > 0) {
        release(held[--count]);
    }
    sched_pool_destroy(&pool);
}
END_TEST

/* Sizes that cannot be are refused before anything is allocated for them. */
START_TEST(impossible_shapes_are_refused)
{
    sched_pool_group_t group = {.granularity = 4, .packing = 0};
    ck_assert_int_eq(sched_pool_new(9, &group, 1, &pool), STATUS_ERR_CONFIG);
    group.packing = 65;
    ck_assert_int_eq(sched_pool_new(9, &group, 1, &pool), STATUS_ERR_CONFIG);
    group.packing = 64;
    ck_assert_int_eq(sched_pool_new(PROTO_BLOCKS_MAX, &group, 1, &pool), STATUS_ERR_CONFIG);
    ck_assert_int_eq(sched_pool_new(1, &group, 1, &pool), STATUS_ERR_CONFIG);
}
END_TEST

static TCase *
case_with(const char *name, void (*setup)(void))
{
    TCase *tcase = tcase_create(name);
    if (setup != NULL) {
        tcase_add_checked_fixture(tcase, setup, drop);
    }
    return tcase;
}

int
main(void)
{
    Suite *suite = suite_create("scheduler.pool");
    TCase *single = case_with("single", make_single);
    tcase_add_test(single, all_blocks_but_the_null_block_are_given);
    tcase_add_test(single, a_new_owner_is_a_new_generation);
    tcase_add_test(single, a_published_page_stays_cached_and_is_shared);
    tcase_add_test(single, the_first_publisher_is_canonical);
    tcase_add_test(single, eviction_takes_the_least_worthy_page);
    tcase_add_test(single, old_favourites_lose_their_rank);
    tcase_add_test(single, an_unpublished_block_is_free_and_dirty);
    suite_add_tcase(suite, single);
    TCase *packed = case_with("packed", make_packed);
    tcase_add_test(packed, a_parent_is_bound_while_a_block_of_it_is_used);
    tcase_add_test(packed, an_idle_parent_is_taken_from_another_group);
    tcase_add_test(packed, a_mark_follows_the_parent_to_another_group);
    suite_add_tcase(suite, packed);
    TCase *other = case_with("other", NULL);
    tcase_add_test(other, impossible_shapes_are_refused);
    tcase_add_test(other, counters_and_lists_agree_under_random_use);
    suite_add_tcase(suite, other);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
