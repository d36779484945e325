/* The data thread alone: what it is told while it works. */
#include <check.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "actor_exit.h"
#include "actor_keys.h"
#include "actor_kv_data.h"
#include "actor_kv_layout.h"
#include "actor_kv_transfer.h"

enum { COLUMNS = 4096, PEER = 1, STRANGER = 2, HELD = 1, REFUSED = 2, LAST = 3 };

typedef struct {
    actor_kv_data_t *data;
    atomic_int status[LAST + 1]; /* of each transfer; 1 = not told yet */
    atomic_bool has_grown;
    atomic_uint copied_count;
    atomic_uint overloaded_count;
} fixture_t;

static fixture_t fixture;

static void
push(fixture_t *self, proto_kind_t kind, uint64_t request, const proto_body_t *body)
{
    size_t body_size = 0;
    size_t blob_size = 0;
    proto_body_bound(kind, body, &body_size, &blob_size);
    uint8_t *body_bytes = malloc(body_size + 1);
    uint8_t *blob = aligned_alloc(64, (blob_size / 64 + 1) * 64);
    ck_assert_ptr_nonnull(body_bytes);
    ck_assert_ptr_nonnull(blob);
    ck_assert_int_eq(proto_body_encode(kind, body, body_bytes, body_size, &body_size, blob,
                                       blob_size, &blob_size),
                     STATUS_OK);
    const actor_emission_t emission = {.kind = kind,
                                       .request = request,
                                       .body = {body_bytes, body_size},
                                       .blob = {blob_size > 0 ? blob : NULL, blob_size}};
    actor_kv_data_push(self->data, &emission);
    free(body_bytes);
    free(blob);
}

/* More than the queue holds: it grows, and its old memory is given back. */
static void
fill_queue(fixture_t *self)
{
    enum { SERVES = 64 };
    static uint8_t groups[COLUMNS];
    static uint32_t numbers[COLUMNS];
    for (uint32_t i = 0; i < SERVES; i++) {
        const proto_body_t body = {.kv_serve = {.transfer = 99,
                                                .piece = i,
                                                .peer = PEER,
                                                .groups = {groups, COLUMNS},
                                                .blocks = {numbers, COLUMNS},
                                                .generations = {numbers, COLUMNS}}};
        push(self, PROTO_KIND_KV_SERVE, 0, &body);
    }
    atomic_store(&self->has_grown, true);
}

/* On the data thread.  A copy that ends because its cache changes ends in the middle of the arena's
 * registration. */
static proto_status_t
post(void *context, proto_kind_t kind, const proto_body_t *body)
{
    fixture_t *self = context;
    if (kind != PROTO_KIND_KV_COPIED) {
        return STATUS_OK;
    }
    if (body->kv_copied.transfer == HELD) {
        fill_queue(self);
    }
    atomic_fetch_add(&self->overloaded_count, body->kv_copied.status == STATUS_ERR_OVERLOADED);
    atomic_fetch_add(&self->copied_count, 1);
    atomic_store(&self->status[body->kv_copied.transfer], (int)body->kv_copied.status);
    return STATUS_OK;
}

static int
await(fixture_t *self, uint32_t transfer)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    for (uint32_t i = 0; i < 20000 && atomic_load(&self->status[transfer]) == 1; i++) {
        (void)nanosleep(&pause, NULL);
    }
    return atomic_load(&self->status[transfer]);
}

static void
push_arena(fixture_t *self, const char *endpoint)
{
    static actor_kv_layout_columns_t columns;
    static const actor_kv_field_t field = {.rows = 16,
                                           .stride_bytes = 256,
                                           .part_count = 1,
                                           .parts = {{.extent = 4, .count = 4, .unit_bytes = 4}}};
    const actor_kv_layout_t layout = {.arena_bytes = 4096,
                                      .rank_count = 1,
                                      .layer_count = 1,
                                      .group_count = 1,
                                      .groups = {{.granularity = 16, .page_count = 16}},
                                      .field_count = 1,
                                      .fields = (actor_kv_field_t *)&field};
    proto_body_t body = {.kv_arena = {.region = 9,
                                      .fingerprint = proto_text("m"),
                                      .data_endpoint = proto_text(endpoint)}};
    actor_kv_layout_write(&layout, &columns, &body.kv_arena);
    push(self, PROTO_KIND_KV_ARENA, PEER, &body);
}

static void
push_copy(fixture_t *self, uint64_t transfer, uint32_t peer)
{
    static const uint8_t groups[] = {0};
    static const uint32_t numbers[] = {1};
    const proto_body_t body = {.kv_copy = {.transfer = transfer,
                                           .peer = peer,
                                           .layer_end = 1,
                                           .groups = {groups, 1},
                                           .from_blocks = {numbers, 1},
                                           .from_generations = {numbers, 1},
                                           .to_blocks = {numbers, 1}}};
    push(self, PROTO_KIND_KV_COPY, 0, &body);
}

static void
open_fixture(void)
{
    memset(&fixture, 0, sizeof fixture);
    for (uint32_t i = 0; i <= LAST; i++) {
        atomic_store(&fixture.status[i], 1);
    }
    const actor_kv_data_options_t options = {.name = "kv",
                                             .epoch = 1,
                                             .way = ACTOR_KV_WAY_TCP,
                                             .gate_count = 2,
                                             .column_count_max = COLUMNS,
                                             .flying_max = 4,
                                             .queue_size_bytes_max = 4 << 20,
                                             .post = post,
                                             .post_context = &fixture};
    ck_assert_int_eq(actor_kv_data_new(&options, &fixture.data), STATUS_OK);
}

/* An arena is read while the queue that brought it grows. */
START_TEST(an_arena_outlives_its_queue)
{
    open_fixture();
    ck_assert_int_eq(actor_kv_data_start(fixture.data), STATUS_OK);
    push_arena(&fixture, "tcp://127.0.0.1:9"); /* nobody is there: the copy waits */
    push_copy(&fixture, HELD, PEER);
    push_copy(&fixture, REFUSED, STRANGER);
    ck_assert_int_eq(await(&fixture, REFUSED), STATUS_ERR_NOT_FOUND); /* so the other is in work */
    ck_assert_int_eq(atomic_load(&fixture.status[HELD]), 1);
    push_arena(&fixture, "none");
    ck_assert_int_eq(await(&fixture, HELD), STATUS_ERR_PEER_LOST);
    ck_assert(atomic_load(&fixture.has_grown));
    actor_kv_data_destroy(&fixture.data); /* ends when the arena has been read */
}
END_TEST

/* More copies than the queue may hold: the rest fail, and each is told once. */
START_TEST(copies_without_room_fail)
{
    enum { COPIES = 200 };
    static const uint8_t groups[COLUMNS];
    static const uint32_t numbers[COLUMNS];
    open_fixture();
    for (uint32_t i = 0; i < COPIES; i++) {
        const proto_body_t body = {.kv_copy = {.transfer = LAST,
                                               .piece = i,
                                               .peer = STRANGER,
                                               .layer_end = 1,
                                               .groups = {groups, COLUMNS},
                                               .from_blocks = {numbers, COLUMNS},
                                               .from_generations = {numbers, COLUMNS},
                                               .to_blocks = {numbers, COLUMNS}}};
        push(&fixture, PROTO_KIND_KV_COPY, 0, &body);
    }
    ck_assert_int_eq(actor_kv_data_start(fixture.data), STATUS_OK);
    const struct timespec pause = {.tv_nsec = 1000000};
    for (uint32_t i = 0; i < 20000 && atomic_load(&fixture.copied_count) < COPIES; i++) {
        (void)nanosleep(&pause, NULL);
    }
    actor_kv_data_destroy(&fixture.data);
    ck_assert_uint_eq(atomic_load(&fixture.copied_count), COPIES);
    ck_assert_uint_gt(atomic_load(&fixture.overloaded_count), 0);
    ck_assert_uint_lt(atomic_load(&fixture.overloaded_count), COPIES);
}
END_TEST

/* Cache bytes are not encrypted: with keys they neither leave this machine nor come from another.
 */
START_TEST(with_keys_no_bytes_between_machines)
{
    static const actor_keys_t keys = {.public_text = "p", .secret_text = "s"};
    actor_keys_set_process(&keys, false);
    const actor_kv_transfer_options_t options = {.node_endpoint = "inproc://node",
                                                 .data_endpoint = "tcp://0.0.0.0:*",
                                                 .allow_remote = true,
                                                 .ring_fd = -1};
    ck_assert_int_eq(actor_kv_transfer_run(&options), actor_exit_code(STATUS_ERR_CONFIG));
    open_fixture();
    ck_assert_int_eq(actor_kv_data_start(fixture.data), STATUS_OK);
    push_arena(&fixture, "tcp://192.0.2.1:9");
    push_copy(&fixture, LAST, PEER);
    ck_assert_int_eq(await(&fixture, LAST), STATUS_ERR_UNSUPPORTED);
    actor_kv_data_destroy(&fixture.data);
    actor_keys_set_process(NULL, false);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.kv_data");
    TCase *tests = tcase_create("thread");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, an_arena_outlives_its_queue);
    tcase_add_test(tests, copies_without_room_fail);
    tcase_add_test(tests, with_keys_no_bytes_between_machines);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
