/* test_actor_gateway_snapshot.c - a restored core goes on exactly as the original; bytes that are
 * none never crash. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core_world.h"

enum { KNOWN_MAX = 32, BYTES_MAX = 1 << 20 };

/* Enough knowledge of what is open to send inputs that mean something. */
typedef struct {
    unsigned state;
    bool attached;
    uint32_t peer;
    uint64_t requests[KNOWN_MAX];
    uint32_t sent[KNOWN_MAX];
    uint32_t known_at;
} driver_t;

typedef struct {
    uint8_t *data;
    size_t size_bytes;
} bytes_t;

typedef struct {
    bytes_t state;
    bytes_t secret;
} snapshot_t;

static uint32_t
draw(driver_t *driver, uint32_t bound)
{
    return (uint32_t)rand_r(&driver->state) % bound;
}

static void
learn(driver_t *driver)
{
    for (uint32_t at = 0; at < actor_outbox_count(outbox); at++) {
        const actor_emission_t *emission = actor_outbox_at(outbox, at);
        if (emission->kind == PROTO_KIND_SUBMIT) {
            proto_body_t body;
            (void)emitted(at, PROTO_KIND_SUBMIT, &body);
            driver->requests[driver->known_at] = emission->request;
            driver->sent[driver->known_at] = body.submit.emitted;
            driver->known_at = (driver->known_at + 1) % KNOWN_MAX;
        }
    }
}

/* A different value in every field, as large as it may be less `less` and the field's place. */
static proto_body_t
load_body(uint32_t less)
{
    proto_body_t body = {0};
    uint32_t place = 0;
#define SET(field, type, bound, shown, text) body.load.field = (bound)-less - place++;
    PROTO_FIELDS_load(SET)
#undef SET
        return body;
}

static void
random_link(driver_t *driver, uint32_t what)
{
    if (what == 0 && driver->attached) {
        give_down(driver->peer);
        driver->attached = false;
    } else if (what == 1 && !driver->attached) {
        driver->peer = SCHEDULER; /* give_tokens() speaks for it */
        give_up(driver->peer);
        driver->attached = true;
    } else if (driver->attached) {
        proto_body_t info = model_body();
        info.model_info.slot_count = draw(driver, 4) == 0 ? 0 : 8;
        give(driver->peer, PROTO_KIND_MODEL_INFO, 0, &info);
    } else {
        give_request(900, 0, 3, 5, 0);
    }
}

static void
random_input(driver_t *driver)
{
    uint32_t what = draw(driver, 100);
    uint32_t known = draw(driver, KNOWN_MAX);
    uint64_t exchange = draw(driver, 12);
    now_ns += draw(driver, 100000000);
    if (what < 30) {
        static const int32_t stops[2] = {4, 9};
        give_request_with(exchange, draw(driver, 3), 1 + draw(driver, 100), 1 + draw(driver, 28),
                          draw(driver, 5) == 0 ? 1u + draw(driver, 2000000000) : 0,
                          sampling_bytes(draw(driver, 2) == 0 ? "s" : NULL, draw(driver, 6),
                                         draw(driver, 2) == 0, stops, draw(driver, 3)));
    } else if (what < 62) {
        uint32_t count = 1 + draw(driver, 3);
        give_tokens(driver->requests[known], driver->sent[known], count);
        driver->sent[known] += count;
    } else if (what < 70) {
        give_finished(driver->requests[known], 1 + draw(driver, 4), driver->sent[known]);
    } else if (what < 74) {
        give_refused(driver->requests[known], STATUS_ERR_OVERLOADED, "overloaded", 500);
    } else if (what < 80) {
        give_stop(exchange, draw(driver, 3), draw(driver, 9), PROTO_FINISH_STOP);
    } else if (what < 84) {
        proto_body_t load = load_body(draw(driver, 50));
        give(SCHEDULER, PROTO_KIND_LOAD, 0, &load);
    } else if (what < 92) {
        uint64_t deadline = actor_gateway_core_ops()->deadline_ns(core);
        if (deadline < now_ns + 2000000000u || draw(driver, 30) == 0) {
            (void)give_timer();
        }
    } else {
        random_link(driver, draw(driver, 4));
    }
}

/* ---- snapshots ------------------------------------------------------------------------------- */

static snapshot_t
take_snapshot(const actor_gateway_core_t *from)
{
    proto_pack_t state = {0};
    proto_pack_t secret = {0};
    actor_gateway_core_ops()->save(from, &state, &secret);
    snapshot_t out = {.state = {malloc(state.size_bytes + 1), state.size_bytes},
                      .secret = {malloc(secret.size_bytes + 1), secret.size_bytes}};
    ck_assert_ptr_nonnull(out.state.data);
    ck_assert_ptr_nonnull(out.secret.data);
    state = (proto_pack_t){.out = out.state.data, .capacity_bytes = out.state.size_bytes};
    secret = (proto_pack_t){.out = out.secret.data, .capacity_bytes = out.secret.size_bytes};
    actor_gateway_core_ops()->save(from, &state, &secret);
    ck_assert(proto_pack_is_complete(&state));
    ck_assert(proto_pack_is_complete(&secret));
    return out;
}

static void
drop_snapshot(snapshot_t *self)
{
    free(self->state.data);
    free(self->secret.data);
    memset(self, 0, sizeof *self);
}

static proto_status_t
restore(const snapshot_t *from, actor_gateway_core_t **out_p, proto_error_t *error)
{
    return actor_gateway_core_restore((proto_bytes_t){from->state.data, from->state.size_bytes},
                                      (proto_bytes_t){from->secret.data, from->secret.size_bytes},
                                      out_p, error);
}

static void
same_saves(const actor_gateway_core_t *a, const actor_gateway_core_t *b)
{
    snapshot_t one = take_snapshot(a);
    snapshot_t other = take_snapshot(b);
    ck_assert_uint_eq(one.state.size_bytes, other.state.size_bytes);
    ck_assert_mem_eq(one.state.data, other.state.data, one.state.size_bytes);
    ck_assert_uint_eq(one.secret.size_bytes, other.secret.size_bytes);
    ck_assert_mem_eq(one.secret.data, other.secret.data, one.secret.size_bytes);
    drop_snapshot(&one);
    drop_snapshot(&other);
}

static actor_gateway_core_t *twin;
static actor_outbox_t *twin_outbox;

/* The same input to the twin, with the clock and number that it had; both must say the same. */
static void
compare_with_twin(const driver_t *before, uint64_t before_ns, uint64_t before_sequence,
                  uint8_t *room[2])
{
    driver_t again = *before;
    uint64_t after_ns = now_ns;
    uint64_t after_sequence = input_sequence;
    size_t sizes[2];
    sizes[0] = outbox_bytes(outbox, room[0], BYTES_MAX);
    uint64_t deadline = actor_gateway_core_ops()->deadline_ns(core);
    uint64_t digest = actor_gateway_core_ops()->digest(core);
    actor_gateway_core_t *core_before = core;
    actor_outbox_t *outbox_before = outbox;
    core = twin;
    outbox = twin_outbox;
    now_ns = before_ns;
    input_sequence = before_sequence;
    actor_outbox_clear(outbox);
    random_input(&again);
    sizes[1] = outbox_bytes(outbox, room[1], BYTES_MAX);
    ck_assert_uint_eq(now_ns, after_ns);
    ck_assert_uint_eq(input_sequence, after_sequence);
    ck_assert_uint_eq(actor_gateway_core_ops()->deadline_ns(core), deadline);
    ck_assert_uint_eq(actor_gateway_core_ops()->digest(core), digest);
    core = core_before;
    outbox = outbox_before;
    ck_assert_uint_eq(sizes[0], sizes[1]);
    ck_assert_mem_eq(room[0], room[1], sizes[0]);
}

static void
follow_twin(driver_t *driver, uint32_t input_count)
{
    uint8_t *room[2] = {malloc(BYTES_MAX), malloc(BYTES_MAX)};
    ck_assert_ptr_nonnull(room[0]);
    ck_assert_ptr_nonnull(room[1]);
    for (uint32_t at = 0; at < input_count; at++) {
        driver_t before = *driver;
        uint64_t before_ns = now_ns;
        uint64_t before_sequence = input_sequence;
        actor_outbox_clear(outbox);
        random_input(driver);
        compare_with_twin(&before, before_ns, before_sequence, room);
        learn(driver);
    }
    free(room[0]);
    free(room[1]);
}

START_TEST(a_restored_core_goes_on_exactly_as_the_original)
{
    unsigned seed = (unsigned)time(NULL) ^ (unsigned)_i * 2654435761u;
    printf("gateway core, snapshots: seed %u\n", seed);
    /* A small history, so that it is full at times. */
    world_teardown();
    world_setup_with(
        (actor_gateway_core_options_t){.choice_count_max = 20, .history_size_bytes = 16 * 1024});
    driver_t driver = {.state = seed};
    uint64_t seen_waiting = 0;
    uint64_t seen_unkept = 0;
    for (int round = 0; round < 40; round++) {
        for (uint32_t at = 0; at < 200; at++) {
            actor_outbox_clear(outbox);
            random_input(&driver);
            learn(&driver);
        }
        snapshot_t snapshot = take_snapshot(core);
        proto_error_t error = {{0}};
        ck_assert_msg(restore(&snapshot, &twin, &error) == STATUS_OK, "%s", error.detail);
        actor_gateway_core_ops()->check(twin);
        drop_snapshot(&snapshot);
        ck_assert_int_eq(actor_outbox_new(actor_gateway_core_ops(), &twin_outbox), STATUS_OK);
        same_saves(core, twin);
        seen_waiting += actor_gateway_core_state(core).waiting_count;
        seen_unkept += actor_gateway_core_state(core).unkept_count;
        follow_twin(&driver, 300);
        same_saves(core, twin);
        actor_outbox_destroy(&twin_outbox);
        actor_gateway_core_destroy(&twin);
    }
    ck_assert_uint_gt(seen_waiting, 0); /* the snapshots held what they are to hold */
    ck_assert_uint_gt(seen_unkept, 0);
    ck_assert_uint_gt(actor_gateway_core_state(core).resumed_count, 0);
}
END_TEST

START_TEST(every_figure_of_the_load_is_restored_to_its_place)
{
    attach();
    proto_body_t body = load_body(0);
    give(SCHEDULER, PROTO_KIND_LOAD, 0, &body);
    snapshot_t snapshot = take_snapshot(core);
    proto_error_t error = {{0}};
    ck_assert_msg(restore(&snapshot, &twin, &error) == STATUS_OK, "%s", error.detail);
    const proto_load_t *load = actor_gateway_core_load(twin);
#define COMPARE(field, type, bound, shown, text) ck_assert_uint_eq(load->field, body.load.field);
    PROTO_FIELDS_load(COMPARE)
#undef COMPARE
        actor_gateway_core_destroy(&twin);
    drop_snapshot(&snapshot);
}
END_TEST

/* A log without what people wrote still has a core in it, with all lengths as they were. */
START_TEST(zeros_in_place_of_the_secret_restore)
{
    attach();
    uint64_t request = submit(1, 0);
    give_tokens(request, 0, 5);
    (void)submit(2, 0);
    snapshot_t snapshot = take_snapshot(core);
    ck_assert_uint_gt(snapshot.secret.size_bytes, 2 * 3 * sizeof(int32_t));
    static const uint8_t tokens[] = {4, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0}; /* of the first prompt */
    ck_assert_ptr_null(
        memmem(snapshot.state.data, snapshot.state.size_bytes, tokens, sizeof tokens));
    ck_assert_ptr_nonnull(
        memmem(snapshot.secret.data, snapshot.secret.size_bytes, tokens, sizeof tokens));
    memset(snapshot.secret.data, 0, snapshot.secret.size_bytes);
    ck_assert_int_eq(restore(&snapshot, &twin, NULL), STATUS_OK);
    ck_assert_uint_eq(actor_gateway_core_ops()->digest(twin),
                      actor_gateway_core_ops()->digest(core));
    actor_gateway_core_destroy(&core);
    core = twin;
    twin = NULL;
    give_down(SCHEDULER);
    give_up(SCHEDULER);
    give_model(SCHEDULER);
    proto_body_t body;
    emitted(1, PROTO_KIND_SUBMIT, &body);
    ck_assert_uint_eq(body.submit.prompt_length, 8);
    ck_assert_uint_eq(body.submit.emitted, 5);
    ck_assert_int_eq(body.submit.tokens.data[0], 0);
    drop_snapshot(&snapshot);
}
END_TEST

/* ---- hostile bytes --------------------------------------------------------------------------- */

static void
fill_core(driver_t *driver, uint32_t input_count)
{
    attach();
    driver->attached = true;
    driver->peer = SCHEDULER;
    for (uint32_t at = 0; at < input_count; at++) {
        actor_outbox_clear(outbox);
        random_input(driver);
        learn(driver);
    }
    for (uint64_t exchange = 500; exchange < 504; exchange++) {
        give_request(exchange, 0, 5, 9, 0);
        learn(driver);
    }
}

/* Bytes that were taken make a core that lives: whatever comes, it holds its invariants. */
static void
try_bytes(const snapshot_t *bytes, unsigned seed)
{
    proto_error_t error = {{0}};
    actor_gateway_core_t *made = NULL;
    proto_status_t status = restore(bytes, &made, &error);
    if (status != STATUS_OK) {
        ck_assert_ptr_null(made);
        ck_assert(status == STATUS_ERR_MALFORMED || status == STATUS_ERR_VERSION ||
                  status == STATUS_ERR_NO_MEMORY);
        ck_assert_uint_gt(strlen(error.detail), 0);
        return;
    }
    actor_gateway_core_t *core_before = core;
    core = made;
    driver_t driver = {.state = seed};
    actor_gateway_core_ops()->check(core);
    give_up(SCHEDULER);
    give_model(SCHEDULER);
    for (uint32_t at = 0; at < 12; at++) {
        actor_outbox_clear(outbox);
        random_input(&driver);
        (void)give_timer();
    }
    give_down(SCHEDULER);
    core = core_before;
    actor_gateway_core_destroy(&made);
}

START_TEST(another_version_is_refused_with_both_numbers)
{
    attach();
    (void)submit(1, 0);
    snapshot_t snapshot = take_snapshot(core);
    uint32_t own;
    memcpy(&own, snapshot.state.data, sizeof own);
    const uint32_t others[] = {own - 1, own + 1};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        memcpy(snapshot.state.data, &others[i], sizeof others[i]);
        proto_error_t error = {{0}};
        ck_assert_int_eq(restore(&snapshot, &twin, &error), STATUS_ERR_VERSION);
        char wanted[64];
        (void)snprintf(wanted, sizeof wanted, "its version is %u, this build reads %u", others[i],
                       own);
        ck_assert_msg(strstr(error.detail, wanted) != NULL, "%s", error.detail);
    }
    drop_snapshot(&snapshot);
}
END_TEST

START_TEST(every_truncation_is_refused)
{
    driver_t driver = {.state = 5};
    world_teardown();
    world_setup_with(
        (actor_gateway_core_options_t){.choice_count_max = 20, .history_size_bytes = 64 * 1024});
    fill_core(&driver, 20);
    snapshot_t snapshot = take_snapshot(core);
    size_t whole = snapshot.state.size_bytes;
    for (size_t size = 0; size < whole; size++) {
        snapshot.state.size_bytes = size;
        actor_gateway_core_t *made = NULL;
        ck_assert_int_lt(restore(&snapshot, &made, NULL), 0);
    }
    snapshot.state.size_bytes = whole;
    ck_assert_uint_gt(snapshot.secret.size_bytes, 0);
    size_t secret = snapshot.secret.size_bytes;
    for (size_t size = 0; size < secret; size += 1 + size / 16) {
        snapshot.secret.size_bytes = size;
        actor_gateway_core_t *made = NULL;
        ck_assert_int_eq(restore(&snapshot, &made, NULL), STATUS_ERR_MALFORMED);
    }
    snapshot.secret.size_bytes = secret + 1; /* one too many is as wrong */
    actor_gateway_core_t *made = NULL;
    ck_assert_int_eq(restore(&snapshot, &made, NULL), STATUS_ERR_MALFORMED);
    snapshot.secret.size_bytes = secret;
    snapshot.state.data[0]++;
    ck_assert_int_eq(restore(&snapshot, &made, NULL), STATUS_ERR_VERSION);
    drop_snapshot(&snapshot);
}
END_TEST

START_TEST(flipped_bytes_never_crash)
{
    unsigned seed = (unsigned)time(NULL) ^ (unsigned)_i * 2654435761u;
    printf("gateway core, hostile snapshots: seed %u\n", seed);
    driver_t driver = {.state = seed};
    world_teardown();
    world_setup_with(
        (actor_gateway_core_options_t){.choice_count_max = 20, .history_size_bytes = 64 * 1024});
    fill_core(&driver, 100);
    snapshot_t snapshot = take_snapshot(core);
    uint32_t taken = 0;
    for (uint32_t round = 0; round < 1500; round++) {
        size_t at[3];
        uint8_t before[3];
        uint32_t count = 1 + draw(&driver, 3);
        for (uint32_t flip = 0; flip < count; flip++) {
            at[flip] = draw(&driver, (uint32_t)snapshot.state.size_bytes);
            before[flip] = snapshot.state.data[at[flip]];
            snapshot.state.data[at[flip]] ^= (uint8_t)(1u << draw(&driver, 8));
        }
        try_bytes(&snapshot, seed + round);
        for (uint32_t flip = count; flip > 0; flip--) {
            snapshot.state.data[at[flip - 1]] = before[flip - 1];
        }
        taken++;
    }
    ck_assert_int_eq(restore(&snapshot, &twin, NULL), STATUS_OK);
    actor_gateway_core_destroy(&twin);
    ck_assert_uint_eq(taken, 1500);
    drop_snapshot(&snapshot);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.gateway_snapshot");
    TCase *tcase = tcase_create("snapshot");
    tcase_add_checked_fixture(tcase, world_setup, world_teardown);
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, a_restored_core_goes_on_exactly_as_the_original, 0, 4);
    tcase_add_test(tcase, every_figure_of_the_load_is_restored_to_its_place);
    tcase_add_test(tcase, zeros_in_place_of_the_secret_restore);
    tcase_add_test(tcase, another_version_is_refused_with_both_numbers);
    tcase_add_test(tcase, every_truncation_is_refused);
    tcase_add_loop_test(tcase, flipped_bytes_never_crash, 0, 4);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
