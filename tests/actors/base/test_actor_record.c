/* What a shell records is enough to run its core again: state, inputs, outputs, nothing missing. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor_fault.h"
#include "actor_record.h"
#include "proto_ring.h"
#include "support.h"

enum { RING_SIZE = PROTO_RING_SIZE_MIN, PADDING_MAX = 64 * 1024 };

/* ---- a core with snapshots ------------------------------------------------------------------- */

/* Every input changes the state, and the state decides what is sent and when the next TIMER comes:
 * whatever is not recorded, or in another order, is seen in the next output. */
typedef struct {
    uint64_t state;
    uint64_t inputs;
    uint64_t deadline_ns;
    uint32_t peer;
    uint64_t kinds[64];          /* inputs of each kind below 64 */
    uint32_t padding_size_bytes; /* of the snapshot */
    uint8_t padding[PADDING_MAX];
} mixer_t;

static uint64_t
mix(uint64_t state, uint64_t value)
{
    state = (state ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return state ^ state >> 29;
}

static void
mixer_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    mixer_t *self = core;
    proto_kind_t kind = input->header->kind;
    self->inputs++;
    self->state = mix(self->state, kind);
    self->state = mix(self->state, input->from.index);
    self->state = mix(self->state, input->now_ns);
    self->state = mix(self->state, input->sequence);
    self->state = mix(self->state, input->header->request);
    self->kinds[kind % 64]++;
    if (kind == PROTO_KIND_PEER_UP) {
        self->peer = input->body->peer_up.peer;
        self->state = mix(self->state, input->body->peer_up.epoch);
    } else if (kind == PROTO_KIND_PEER_DOWN) {
        self->peer = ACTOR_PEER_NONE;
        self->state = mix(self->state, input->body->peer_down.epoch);
    } else if (kind == PROTO_KIND_TIMER) {
        self->state = mix(self->state, input->body->timer.deadline_ns);
    } else if (kind == PROTO_KIND_FINISH) {
        self->state = mix(self->state, input->body->finish.token_index);
    }
    self->deadline_ns = input->now_ns + 100000 + self->state % 1000000;
    if (self->state % 4 == 0) {
        return;
    }
    uint64_t to_peer = self->peer != ACTOR_PEER_NONE && self->state % 4 == 1;
    proto_body_t body = {.finished = {.generated_tokens = (uint32_t)(self->state >> 50)}};
    if (to_peer) {
        actor_outbox_push(outbox, (actor_peer_t){self->peer}, PROTO_KIND_FINISHED,
                          self->state >> 32, &body);
    } else {
        body = (proto_body_t){.http_end = {.exchange = self->state >> 40}};
        actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_HTTP_END,
                          self->state >> 32, &body);
    }
}

static uint64_t
mixer_deadline(const void *core)
{
    return ((const mixer_t *)core)->deadline_ns;
}

static uint64_t
mixer_digest(const void *core)
{
    return ((const mixer_t *)core)->state;
}

static bool
mixer_idle(const void *core)
{
    (void)core;
    return true;
}

static void
mixer_save(const void *core, proto_pack_t *state, proto_pack_t *secret)
{
    const mixer_t *self = core;
    proto_pack_u64(state, self->state);
    proto_pack_u64(state, self->inputs);
    proto_pack_u64(state, self->deadline_ns);
    proto_pack_u32(state, self->peer);
    proto_pack_bytes(secret, self->padding, self->padding_size_bytes);
}

static const actor_core_ops_t mixer_ops = {.name = "scheduler",
                                           .role = PROTO_ROLE_SCHEDULER,
                                           .outbox_size_bytes = 64 * 1024,
                                           .outbox_count_max = 4,
                                           .step = mixer_step,
                                           .deadline_ns = mixer_deadline,
                                           .digest = mixer_digest,
                                           .idle = mixer_idle,
                                           .save = mixer_save};

static mixer_t mixer;

/* ---- running it again ------------------------------------------------------------------------ */

typedef struct {
    uint64_t snapshots;
    uint64_t inputs;  /* replayed */
    uint64_t outputs; /* compared */
    uint64_t digests; /* compared */
    uint64_t notes;
    uint64_t channels;   /* CHANNEL_DEF records behind the snapshot */
    uint64_t last_count; /* inputs that led to the end */
    mixer_t core;
} replay_t;

static void
take_snapshot(replay_t *self, const proto_log_record_t *record, bool is_first)
{
    uint32_t form = 0;
    uint32_t role = 0;
    uint64_t digest = 0;
    uint64_t count = 0;
    ck_assert_uint_eq(record->part_count, 3);
    ck_assert_uint_eq(record->flags, 0);
    ck_assert_uint_eq(record->parts[0].size_bytes, PROTO_LOG_SNAPSHOT_HEAD_SIZE_BYTES);
    memcpy(&form, record->parts[0].data, sizeof form);
    memcpy(&role, record->parts[0].data + 4, sizeof role);
    memcpy(&digest, record->parts[0].data + 8, sizeof digest);
    memcpy(&count, record->parts[0].data + 16, sizeof count);
    ck_assert_uint_eq(form, PROTO_LOG_SNAPSHOT_FORM);
    ck_assert_uint_eq(role, PROTO_ROLE_SCHEDULER);
    proto_unpack_t unpack = {.bytes = record->parts[1]};
    mixer_t core = {.state = proto_unpack_u64(&unpack)};
    core.inputs = proto_unpack_u64(&unpack);
    core.deadline_ns = proto_unpack_u64(&unpack);
    core.peer = proto_unpack_u32(&unpack);
    ck_assert_int_eq(proto_unpack_end(&unpack), STATUS_OK);
    ck_assert_uint_eq(core.state, digest);
    ck_assert_uint_eq(core.inputs, count);
    if (is_first) {
        self->core = core;
        self->last_count = count;
    } else { /* a later one must be where we are */
        ck_assert_uint_eq(self->core.state, core.state);
        ck_assert_uint_eq(self->last_count, count);
    }
    self->snapshots++;
}

static void
run_input(replay_t *self, const proto_log_record_t *record, actor_outbox_t *outbox)
{
    proto_header_t header = {.kind = PROTO_KIND_TIMER};
    proto_bytes_t body_bytes = record->parts[0];
    proto_body_t body;
    if (record->kind == PROTO_LOG_IN) {
        ck_assert_uint_ge(record->part_count, 2);
        ck_assert_int_eq(proto_header_decode(record->parts[0], &header), STATUS_OK);
        body_bytes = record->parts[1];
    }
    ck_assert_int_eq(proto_body_decode(header.kind, body_bytes, (proto_bytes_t){NULL, 0}, &body,
                                       NULL),
                     STATUS_OK);
    actor_input_t input = {.now_ns = record->time_ns,
                           .sequence = ++self->last_count,
                           .from = {record->channel},
                           .header = &header,
                           .body = &body};
    mixer_step(&self->core, &input, outbox);
    self->inputs++;
}

static void
check_output(replay_t *self, const proto_log_record_t *record, const actor_emission_t *emission)
{
    proto_header_t header;
    ck_assert_int_eq(proto_header_decode(record->parts[0], &header), STATUS_OK);
    ck_assert_uint_eq(record->channel, emission->to.index);
    ck_assert_int_eq(header.kind, emission->kind);
    ck_assert_uint_eq(header.request, emission->request);
    ck_assert_uint_eq(header.cause, self->last_count);
    ck_assert_uint_eq(header.sequence, record->link_sequence);
    ck_assert(emission->to.index == ACTOR_PEER_LOCAL || record->link_sequence > 0);
    ck_assert_uint_eq(record->parts[1].size_bytes, emission->body.size_bytes);
    ck_assert_mem_eq(record->parts[1].data, emission->body.data, emission->body.size_bytes);
    self->outputs++;
}

/* Runs what the ring holds from its oldest snapshot on, and compares. */
static void
replay(int ring_fd, replay_t *self)
{
    proto_ring_reader_t *reader = NULL;
    actor_outbox_t *outbox = NULL;
    memset(self, 0, sizeof *self);
    ck_assert_int_eq(proto_ring_reader_open(ring_fd, &reader), STATUS_OK);
    ck_assert_int_eq(actor_outbox_new(&mixer_ops, &outbox), STATUS_OK);
    proto_log_record_t record;
    uint32_t next_output = 0;
    proto_status_t status;
    while ((status = proto_ring_reader_next(reader, &record)) == STATUS_OK) {
        self->notes += record.kind == PROTO_LOG_NOTE ? 1 : 0;
        if (self->snapshots == 0 && record.kind != PROTO_LOG_SNAPSHOT) {
            continue;
        }
        self->channels += record.kind == PROTO_LOG_CHANNEL_DEF ? 1 : 0;
        if (record.kind == PROTO_LOG_SNAPSHOT) {
            take_snapshot(self, &record, self->snapshots == 0);
        } else if (record.kind == PROTO_LOG_IN || record.kind == PROTO_LOG_TIMER) {
            ck_assert_uint_eq(next_output, actor_outbox_count(outbox)); /* all were recorded */
            actor_outbox_clear(outbox);
            next_output = 0;
            run_input(self, &record, outbox);
        } else if (record.kind == PROTO_LOG_OUT) {
            ck_assert_uint_lt(next_output, actor_outbox_count(outbox));
            check_output(self, &record, actor_outbox_at(outbox, next_output++));
        } else if (record.kind == PROTO_LOG_STATE_DIGEST) {
            uint64_t digest = 0;
            memcpy(&digest, record.parts[0].data, sizeof digest);
            ck_assert_uint_eq(digest, self->core.state);
            self->digests++;
        }
    }
    ck_assert_int_eq(status, STATUS_AGAIN);
    actor_outbox_destroy(&outbox);
    proto_ring_reader_close(&reader);
}

/* ---- a shell that records -------------------------------------------------------------------- */

static test_core_t other;
static int ring_fd;
static actor_shell_t *shell;
static actor_shell_t *peer;
static uint32_t local_count;

/* What the core sends to its own side comes back as an input, from within the callback. */
static void
on_local(void *context, const actor_emission_t *emission)
{
    (void)context;
    if (++local_count % 3 == 0) {
        proto_body_t body = {.finish = {.token_index = local_count}};
        actor_shell_inject(shell, PROTO_KIND_FINISH, emission->request, &body);
    }
}

static void
start(size_t ring_size, uint32_t padding_size_bytes)
{
    const proto_ring_owner_t owner = {"scheduler", PROTO_ROLE_SCHEDULER, 7, 0};
    ck_assert_int_eq(proto_ring_create(&owner, ring_size, &ring_fd), STATUS_OK);
    memset(&mixer, 0, sizeof mixer);
    mixer.peer = ACTOR_PEER_NONE;
    mixer.deadline_ns = UINT64_MAX;
    mixer.padding_size_bytes = padding_size_bytes;
    local_count = 0;
    actor_link_options_t bind = {.endpoint = test_endpoint("record"), .bind = true};
    shell = test_shell_with(&other,
                            (actor_shell_options_t){.name = "scheduler",
                                                    .epoch = 7,
                                                    .ops = &mixer_ops,
                                                    .core = &mixer,
                                                    .local = on_local,
                                                    .ring_fd = ring_fd},
                            &bind);
}

static void
connect_peer(uint64_t epoch)
{
    test_core_init(&other, PROTO_ROLE_GATEWAY, "gateway");
    actor_link_options_t dial = {.endpoint = actor_shell_endpoint(shell, 0)};
    peer = test_shell(&other, "executor-0", epoch, &dial);
    TEST_PUMP_UNTIL(other.peer != ACTOR_PEER_NONE && mixer.peer != ACTOR_PEER_NONE, 2000);
}

static void
end(void)
{
    test_shell_end(&shell);
    (void)close(ring_fd);
    test_dir_remove();
}

static void
inject(uint32_t count)
{
    for (uint32_t index = 0; index < count; index++) {
        proto_body_t body = {.finish = {.token_index = index}};
        actor_shell_inject(shell, PROTO_KIND_FINISH, index + 1, &body);
        if (peer != NULL) {
            actor_shell_inject(peer, PROTO_KIND_FINISH, index + 1, &body);
        }
        test_pump();
    }
}

/* Own inputs, inputs of a peer, posted and nested ones, timers, peers that come and go, the drain:
 * the core that is run again from the first snapshot ends in the state of the live one. */
START_TEST(a_recorded_core_runs_again_to_the_same_state)
{
    start(16 * 1024 * 1024, 1000);
    connect_peer(9);
    inject(150);
    proto_body_t body = {.finish = {.token_index = 77}};
    ck_assert_int_eq(actor_shell_post(shell, PROTO_KIND_FINISH, 5, &body), STATUS_OK);
    test_shell_end(&peer);
    TEST_PUMP_UNTIL(mixer.peer == ACTOR_PEER_NONE, 2000);
    connect_peer(10);
    inject(50);
    TEST_PUMP_UNTIL(mixer.kinds[PROTO_KIND_TIMER % 64] > 20, 5000);
    test_shell_end(&peer);
    actor_shell_drain(shell, 1000000000);
    TEST_PUMP_UNTIL(test_status(shell) == STATUS_END, 2000);
    static replay_t again;
    replay(ring_fd, &again);
    ck_assert_uint_eq(again.inputs, mixer.inputs);
    ck_assert_uint_eq(again.core.state, mixer.state);
    ck_assert_uint_gt(again.outputs, mixer.inputs / 2);
    ck_assert_uint_gt(again.digests, mixer.inputs / 64);
    ck_assert_uint_eq(again.snapshots, 1);
    ck_assert_uint_ge(again.core.kinds[PROTO_KIND_PEER_UP % 64], 2);
    ck_assert_uint_ge(again.core.kinds[PROTO_KIND_PEER_DOWN % 64], 1);
    ck_assert_uint_ge(again.core.kinds[PROTO_KIND_TIMER % 64], 20);
    ck_assert_uint_eq(again.core.kinds[PROTO_KIND_DRAIN % 64], 1);
    end();
}
END_TEST

/* However often the ring was overwritten, it holds a snapshot and all since. */
START_TEST(a_wrapped_ring_still_runs_again)
{
    start(RING_SIZE, 9000); /* a seventh of the ring */
    connect_peer(9);
    uint64_t wraps = 0;
    proto_ring_writer_t *writer = NULL;
    for (uint32_t round = 0; round < 120; round++) {
        static replay_t again;
        inject(15);
        replay(ring_fd, &again);
        ck_assert_uint_ge(again.snapshots, 1);
        ck_assert_uint_gt(again.inputs, 0);
        ck_assert_uint_eq(again.core.state, mixer.state);
        ck_assert(round < 60 || again.channels >= 2); /* who is who is said again */
        ck_assert_int_eq(proto_ring_writer_open(ring_fd, &writer), STATUS_OK);
        wraps = proto_ring_written_bytes(writer) / RING_SIZE;
        proto_ring_writer_close(&writer);
    }
    ck_assert_uint_gt(wraps, 5);
    test_shell_end(&peer);
    end();
}
END_TEST

/* A state beyond half of the ring: said once, and recording goes on without. */
START_TEST(a_snapshot_that_does_not_fit_is_left_out_and_said_once)
{
    start(RING_SIZE, 40000);
    proto_ring_reader_t *reader = NULL;
    ck_assert_int_eq(proto_ring_reader_open(ring_fd, &reader), STATUS_OK);
    uint64_t notes = 0;
    uint64_t inputs = 0;
    for (uint32_t round = 0; round < 100; round++) {
        proto_log_record_t record;
        inject(15);
        while (proto_ring_reader_next(reader, &record) == STATUS_OK) {
            notes += record.kind == PROTO_LOG_NOTE ? 1 : 0;
            inputs += record.kind == PROTO_LOG_IN || record.kind == PROTO_LOG_TIMER ? 1 : 0;
            ck_assert_int_ne(record.kind, PROTO_LOG_SNAPSHOT);
        }
    }
    ck_assert_uint_eq(proto_ring_reader_lost(reader), 0);
    ck_assert_uint_eq(notes, 1);
    ck_assert_uint_eq(inputs, mixer.inputs);
    proto_ring_reader_close(&reader);
    end();
}
END_TEST

/* Without a shell, to count what a shell does not show. */
START_TEST(skipped_snapshots_and_cut_inputs_are_counted)
{
    static int32_t tokens[300000];
    const proto_ring_owner_t owner = {"scheduler", PROTO_ROLE_SCHEDULER, 7, 0};
    actor_record_t *record = NULL;
    ck_assert_int_eq(proto_ring_create(&owner, RING_SIZE, &ring_fd), STATUS_OK);
    ck_assert_int_eq(actor_record_new(ring_fd, &record), STATUS_OK);
    memset(&mixer, 0, sizeof mixer);
    mixer.padding_size_bytes = 40000;
    actor_record_snapshot(record, 1, &mixer_ops, &mixer, 0);
    ck_assert_uint_eq(actor_record_skipped_count(record), 1);
    actor_record_snapshot(record, 2, &mixer_ops, &mixer, 1); /* not due yet */
    ck_assert_uint_eq(actor_record_skipped_count(record), 1);
    proto_header_t header = {.version = 1, .kind = PROTO_KIND_SUBMIT, .request = 3};
    proto_body_t body = {.submit = {.tokens = {tokens, 300000}}};
    actor_input_t input = {
        .now_ns = 3, .sequence = 1, .from = {0}, .header = &header, .body = &body};
    actor_record_own_input(record, &input); /* larger than any room for it */
    body.submit.tokens.count = 20000;
    actor_record_own_input(record, &input); /* larger than half the ring */
    body.submit.tokens.count = 2000;
    actor_record_own_input(record, &input);
    ck_assert_uint_eq(actor_record_cut_count(record), 2);
    actor_record_fault(record, 4, "seen");
    proto_ring_reader_t *reader = NULL;
    proto_log_record_t got;
    ck_assert_int_eq(proto_ring_reader_open(ring_fd, &reader), STATUS_OK);
    uint32_t inputs = 0;
    while (proto_ring_reader_next(reader, &got) == STATUS_OK) {
        if (got.kind == PROTO_LOG_IN) {
            static const uint8_t flags[] = {PROTO_LOG_FLAG_CUT, PROTO_LOG_FLAG_CUT, 0};
            proto_header_t decoded;
            ck_assert_int_eq(proto_header_decode(got.parts[0], &decoded), STATUS_OK);
            ck_assert_uint_eq(decoded.request, 3); /* what it was is known all the same */
            ck_assert_uint_eq(got.flags, flags[inputs++]);
        }
    }
    ck_assert_uint_eq(inputs, 3);
    ck_assert_int_eq(got.kind, PROTO_LOG_FAULT);
    proto_ring_reader_close(&reader);
    actor_record_destroy(&record);
    ck_assert_ptr_null(record);
    (void)close(ring_fd);
}
END_TEST

/* A fault that is injected into the shell's thread says so in the ring before it acts. */
START_TEST(an_injected_fault_is_in_the_ring)
{
    start(1024 * 1024, 100);
    connect_peer(9);
    ck_assert_int_eq(actor_fault_arm("shell.before_send.FINISHED:drop"), STATUS_OK);
    inject(40);
    actor_fault_clear();
    proto_ring_reader_t *reader = NULL;
    proto_log_record_t record;
    uint32_t faults = 0;
    ck_assert_int_eq(proto_ring_reader_open(ring_fd, &reader), STATUS_OK);
    while (proto_ring_reader_next(reader, &record) == STATUS_OK) {
        if (record.kind == PROTO_LOG_FAULT) {
            static const char text[] = "injected at shell.before_send.FINISHED: drop";
            ck_assert_uint_eq(record.parts[0].size_bytes, sizeof text - 1);
            ck_assert_mem_eq(record.parts[0].data, text, sizeof text - 1);
            faults++;
        }
    }
    ck_assert_uint_eq(faults, 1);
    proto_ring_reader_close(&reader);
    test_shell_end(&peer);
    end();
}
END_TEST

/* A strict ring that nobody reads: the actor is held up once, says so in the ring, and goes on. */
START_TEST(a_broken_promise_is_a_fault_in_the_ring)
{
    const proto_ring_owner_t owner = {"scheduler", PROTO_ROLE_SCHEDULER, 7, 1};
    actor_record_t *record = NULL;
    ck_assert_int_eq(proto_ring_create(&owner, RING_SIZE, &ring_fd), STATUS_OK);
    ck_assert_int_eq(actor_record_new(ring_fd, &record), STATUS_OK);
    uint64_t begin_ns = test_now_ns();
    while (actor_record_cut_count(record) == 0) {
        actor_record_note(record, 1, "one of many notes that fill the ring");
    }
    ck_assert_uint_lt(test_now_ns() - begin_ns, 2 * UINT64_C(1000000) * PROTO_RING_STRICT_WAIT_MS);
    for (uint32_t count = 0; count < 100; count++) { /* no second wait */
        actor_record_note(record, 2, "and some more");
    }
    proto_ring_reader_t *reader = NULL;
    proto_log_record_t got;
    uint32_t faults = 0;
    ck_assert_int_eq(proto_ring_reader_open(ring_fd, &reader), STATUS_OK);
    while (proto_ring_reader_next(reader, &got) == STATUS_OK) {
        faults += got.kind == PROTO_LOG_FAULT ? 1 : 0;
    }
    ck_assert_uint_eq(faults, 1);
    proto_ring_reader_close(&reader);
    ck_assert_uint_eq(actor_record_cut_count(record), 1);
    actor_record_destroy(&record);
    (void)close(ring_fd);
}
END_TEST

/* The next life of an actor in the same ring begins with a snapshot of its own. */
START_TEST(a_restarted_actor_begins_with_a_snapshot)
{
    start(1024 * 1024, 100);
    inject(20);
    test_shell_end(&shell);
    int fd = dup(ring_fd);
    (void)close(ring_fd);
    ring_fd = fd;
    memset(&mixer, 0, sizeof mixer);
    mixer.peer = ACTOR_PEER_NONE;
    mixer.deadline_ns = UINT64_MAX;
    actor_link_options_t bind = {.endpoint = test_endpoint("again"), .bind = true};
    shell = test_shell_with(&other,
                            (actor_shell_options_t){.name = "scheduler",
                                                    .epoch = 8,
                                                    .ops = &mixer_ops,
                                                    .core = &mixer,
                                                    .local = on_local,
                                                    .ring_fd = ring_fd},
                            &bind);
    inject(10);
    proto_ring_reader_t *reader = NULL;
    proto_log_record_t record;
    uint64_t counts[4] = {0};
    uint32_t snapshots = 0;
    ck_assert_int_eq(proto_ring_reader_open(ring_fd, &reader), STATUS_OK);
    while (proto_ring_reader_next(reader, &record) == STATUS_OK) {
        if (record.kind == PROTO_LOG_SNAPSHOT) {
            ck_assert_uint_lt(snapshots, 4);
            memcpy(&counts[snapshots++], record.parts[0].data + 16, 8);
        }
    }
    ck_assert_uint_eq(snapshots, 2);
    ck_assert_uint_eq(counts[0], 0);
    ck_assert_uint_eq(counts[1], 0);
    proto_ring_reader_close(&reader);
    end();
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.record");
    TCase *test = tcase_create("record");
    tcase_set_timeout(test, 60);
    tcase_add_test(test, a_recorded_core_runs_again_to_the_same_state);
    tcase_add_test(test, a_wrapped_ring_still_runs_again);
    tcase_add_test(test, a_snapshot_that_does_not_fit_is_left_out_and_said_once);
    tcase_add_test(test, skipped_snapshots_and_cut_inputs_are_counted);
    tcase_add_test(test, an_injected_fault_is_in_the_ring);
    tcase_add_test(test, a_broken_promise_is_a_fault_in_the_ring);
    tcase_add_test(test, a_restarted_actor_begins_with_a_snapshot);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
