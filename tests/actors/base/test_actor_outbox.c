/* The outbox keeps what a step says, whole and aligned, until it is cleared. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "actor_core.h"

static actor_outbox_t *outbox;

static void
make(size_t size_bytes, uint32_t count_max)
{
    actor_core_ops_t ops = {.outbox_size_bytes = size_bytes, .outbox_count_max = count_max};
    ck_assert_int_eq(actor_outbox_new(&ops, &outbox), STATUS_OK);
}

static const uint32_t blocks[1000] = {1, 2, 3};

/* Bodies and columns come back as they went in, in order; a cleared outbox starts anew. */
START_TEST(messages_come_back_whole)
{
    make(64 * 1024, 8);
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t index = 0; index < 8; index++) {
            proto_body_t body = {
                .plan = {.step = index + 1, .patch_blocks = {blocks, index * 100}}};
            actor_outbox_push(outbox, (actor_peer_t){index + 1}, PROTO_KIND_PLAN, index, &body);
        }
        ck_assert_uint_eq(actor_outbox_count(outbox), 8);
        for (uint32_t index = 0; index < 8; index++) {
            const actor_emission_t *item = actor_outbox_at(outbox, index);
            ck_assert_uint_eq(item->to.index, index + 1);
            ck_assert_uint_eq(item->request, index);
            ck_assert_uint_eq((uintptr_t)item->blob.data % PROTO_COLUMN_ALIGN, 0);
            proto_body_t body;
            ck_assert_int_eq(proto_body_decode(item->kind, item->body, item->blob, &body, NULL),
                             STATUS_OK);
            ck_assert_uint_eq(body.plan.step, index + 1);
            ck_assert_uint_eq(body.plan.patch_blocks.count, index * 100);
            ck_assert(index == 0 || memcmp(body.plan.patch_blocks.data, blocks,
                                           index * 100 * sizeof blocks[0]) == 0);
        }
        actor_outbox_clear(outbox);
        ck_assert_uint_eq(actor_outbox_count(outbox), 0);
    }
    actor_outbox_destroy(&outbox);
    ck_assert_ptr_null(outbox);
}
END_TEST

/* The size that a core states is enough, to the byte. */
START_TEST(stated_size_is_enough)
{
    proto_body_t body = {.plan = {.step = 1, .patch_blocks = {blocks, 1000}}};
    size_t body_size = 0;
    size_t blob_size = 0;
    proto_body_bound(PROTO_KIND_PLAN, &body, &body_size, &blob_size);
    make(16 * (body_size + blob_size), 16);
    for (uint32_t index = 0; index < 16; index++) {
        actor_outbox_push(outbox, (actor_peer_t){1}, PROTO_KIND_PLAN, 0, &body);
    }
    actor_outbox_destroy(&outbox);
}
END_TEST

/* Running out is a bug of the core and is found where it happens. */
START_TEST(too_many_messages_abort)
{
    make(1024, 1);
    proto_body_t body = {.finish = {.token_index = 1}};
    actor_outbox_push(outbox, (actor_peer_t){1}, PROTO_KIND_FINISH, 1, &body);
    actor_outbox_push(outbox, (actor_peer_t){1}, PROTO_KIND_FINISH, 1, &body);
}
END_TEST

START_TEST(too_many_bytes_abort)
{
    make(128, 8);
    for (uint32_t index = 0; index < 8; index++) {
        proto_body_t body = {.plan = {.step = 1, .patch_blocks = {blocks, 1000}}};
        actor_outbox_push(outbox, (actor_peer_t){1}, PROTO_KIND_PLAN, 1, &body);
    }
}
END_TEST

/* What belongs to a shell and its core never goes to another actor. */
START_TEST(local_kinds_stay_local)
{
    make(1024, 8);
    proto_body_t body = {.http_end = {.exchange = 1}};
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_HTTP_END, 1, &body);
    ck_assert_uint_eq(actor_outbox_count(outbox), 1);
    actor_outbox_push(outbox, (actor_peer_t){1}, PROTO_KIND_HTTP_END, 1, &body);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.outbox");
    TCase *test = tcase_create("outbox");
    tcase_add_test(test, messages_come_back_whole);
    tcase_add_test(test, stated_size_is_enough);
    suite_add_tcase(suite, test);
    TCase *aborts = tcase_create("abort");
    tcase_set_tags(aborts, "abort");
    tcase_add_test_raise_signal(aborts, too_many_messages_abort, 6);
    tcase_add_test_raise_signal(aborts, too_many_bytes_abort, 6);
    tcase_add_test_raise_signal(aborts, local_kinds_stay_local, 6);
    suite_add_tcase(suite, aborts);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
