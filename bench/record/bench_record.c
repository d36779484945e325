/* What recording costs the thread of an actor: the core of each actor of a real log runs through
 * its inputs again, with a record ring and without, by turns, and the difference in the thread's
 * CPU time is what the ring costs, cold lines and all.
 *
 *   bench_record FOLDER [--passes N] [--recorder-ns NS] [--json FILE]
 *
 * FOLDER is a message log with one run (bench/record/record_cost.py makes it); --recorder-ns is the
 * recorder's CPU time during that run.  A step's time is the median distance of two STEP_RESULT in
 * the executor's log.  Exits with 1 if an actor or the recorder costs more than 1 % of it. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "actor_executor_core.h"
#include "actor_gateway_core.h"
#include "actor_record.h"
#include "actor_scheduler_core.h"
#include "proto_log.h"
#include "proto_ring.h"

enum {
    PASSES_DEFAULT = 5,
    PASSES_MAX = 101,
    INPUTS_MAX = 1 << 17,
    STEPS_MAX = 1 << 16,
    RING_SIZE = 64 * 1024 * 1024,
    SNAPSHOT_PER_RING = 3,
    COOL_SIZE = 8 * 1024 * 1024,
};

#define GOAL 0.01

/* One recorded input, ready to be given again. */
typedef struct {
    uint64_t now_ns;
    uint32_t from;
    bool is_own; /* the shell encodes it for the record */
    proto_header_t header;
    proto_bytes_t body_bytes;
    proto_bytes_t blob_bytes;
    proto_body_t body;
} input_t;

typedef struct {
    const char *name;
    proto_role_t role;
    proto_bytes_t state; /* of the first snapshot */
    proto_bytes_t secret;
    uint64_t input_first; /* inputs that led to it */
    input_t *inputs;
    uint32_t input_count;
    uint64_t record_bytes; /* of inputs and outputs */
} actor_t;

typedef struct {
    double step_us;      /* recording, on the actor's thread, for each step */
    double bytes;        /* recorded for each step */
    double snapshot_us;  /* one snapshot */
    double snapshot_kib; /*   and its size */
    double amortized_us; /*   for each step */
} figures_t;

static uint64_t result_times[STEPS_MAX];
static uint32_t result_count;

static void
die(const char *what)
{
    (void)fprintf(stderr, "bench_record: %s\n", what);
    exit(1);
}

static uint64_t
thread_ns(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

/* ---- the log --------------------------------------------------------------------------------- */

static proto_bytes_t
keep(proto_bytes_t bytes)
{
    uint8_t *copy = aligned_alloc(64, bytes.size_bytes / 64 * 64 + 64);
    if (copy == NULL) {
        die("no memory");
    }
    if (bytes.size_bytes > 0) {
        memcpy(copy, bytes.data, bytes.size_bytes);
    }
    return (proto_bytes_t){bytes.size_bytes > 0 ? copy : NULL, bytes.size_bytes};
}

static void
take_input(actor_t *actor, const proto_log_record_t *record)
{
    if (actor->input_count == INPUTS_MAX) {
        die("the log is too long for this bench");
    }
    input_t *input = &actor->inputs[actor->input_count];
    bool is_timer = record->kind == PROTO_LOG_TIMER;
    input->now_ns = record->time_ns;
    input->from = record->channel;
    input->header = (proto_header_t){.version = PROTO_SCHEMA_VERSION, .kind = PROTO_KIND_TIMER};
    if (!is_timer && proto_header_decode(record->parts[0], &input->header) != STATUS_OK) {
        die("an input has no header");
    }
    input->body_bytes = keep(record->parts[is_timer ? 0 : 1]);
    input->blob_bytes = keep(record->part_count > 2 ? record->parts[2] : (proto_bytes_t){NULL, 0});
    if (proto_body_decode(input->header.kind, input->body_bytes, input->blob_bytes, &input->body,
                          NULL) != STATUS_OK) {
        die("an input does not decode");
    }
    /* What comes from the device's thread was encoded to cross over; the rest was not. */
    input->is_own = input->from == ACTOR_PEER_LOCAL && input->header.kind != PROTO_KIND_STEP_DONE;
    actor->input_count++;
}

static void
load(actor_t *actor, const char *path)
{
    proto_log_reader_t *reader = NULL;
    if (proto_log_reader_open(path, &reader, NULL) != STATUS_OK) {
        die("a segment cannot be read");
    }
    proto_log_record_t record;
    while (proto_log_reader_next(reader, &record) == STATUS_OK) {
        bool is_input = record.kind == PROTO_LOG_IN || record.kind == PROTO_LOG_TIMER;
        if (record.kind == PROTO_LOG_SNAPSHOT && actor->state.size_bytes == 0) {
            actor->state = keep(record.parts[1]);
            actor->secret = keep(record.parts[2]);
            memcpy(&actor->input_first, record.parts[0].data + 16, 8);
        }
        if (actor->state.size_bytes > 0 && is_input) {
            take_input(actor, &record);
        }
        proto_header_t header;
        if (record.kind == PROTO_LOG_OUT && actor->role == PROTO_ROLE_EXECUTOR &&
            proto_header_decode(record.parts[0], &header) == STATUS_OK &&
            header.kind == PROTO_KIND_STEP_RESULT && result_count < STEPS_MAX) {
            result_times[result_count++] = record.time_ns;
        }
    }
    proto_log_reader_close(&reader);
}

static void
load_folder(actor_t *actor, const char *folder)
{
    struct dirent **entries = NULL;
    size_t length = strlen(actor->name);
    int count = scandir(folder, &entries, NULL, alphasort);
    uint32_t found = 0;
    for (int index = 0; index < count; index++) {
        const char *name = entries[index]->d_name;
        size_t name_length = strlen(name);
        if (name_length > length + 5 && strncmp(name, actor->name, length) == 0 &&
            name[length] == '.' && strcmp(name + name_length - 5, ".alog") == 0) {
            char path[4096];
            (void)snprintf(path, sizeof path, "%s/%s", folder, name);
            load(actor, path);
            found++;
        }
        free(entries[index]);
    }
    free(entries);
    if (found == 0 || actor->input_count == 0) {
        die("the folder has no log with a snapshot of each actor");
    }
}

/* ---- cores ----------------------------------------------------------------------------------- */

typedef struct {
    void *core;
    const actor_core_ops_t *ops;
} core_t;

static core_t
restore(const actor_t *actor)
{
    core_t made = {NULL, NULL};
    proto_status_t status = STATUS_ERR_INVALID;
    if (actor->role == PROTO_ROLE_SCHEDULER) {
        actor_scheduler_core_t *core = NULL;
        status = actor_scheduler_core_restore(actor->state, actor->secret, &core, NULL);
        made.core = core;
        made.ops = status == STATUS_OK ? actor_scheduler_core_ops(core) : NULL;
    } else if (actor->role == PROTO_ROLE_EXECUTOR) {
        actor_executor_core_t *core = NULL;
        status = actor_executor_core_restore(actor->state, actor->secret, &core, NULL);
        made.core = core;
        made.ops = status == STATUS_OK ? actor_executor_core_ops(core) : NULL;
    } else {
        actor_gateway_core_t *core = NULL;
        status = actor_gateway_core_restore(actor->state, actor->secret, &core, NULL);
        made.core = core;
        made.ops = actor_gateway_core_ops();
    }
    if (status != STATUS_OK) {
        die("a snapshot cannot be restored");
    }
    return made;
}

static void
destroy(const actor_t *actor, core_t *made)
{
    if (actor->role == PROTO_ROLE_SCHEDULER) {
        actor_scheduler_core_t *core = made->core;
        actor_scheduler_core_destroy(&core);
    } else if (actor->role == PROTO_ROLE_EXECUTOR) {
        actor_executor_core_t *core = made->core;
        actor_executor_core_destroy(&core);
    } else {
        actor_gateway_core_t *core = made->core;
        actor_gateway_core_destroy(&core);
    }
}

/* What actor_shell_step.c does for one input, without the sockets; record NULL: without a ring. */
static void
give(core_t *made, actor_outbox_t *outbox, actor_record_t *record, const input_t *given,
     uint64_t sequence)
{
    actor_record_snapshot(record, given->now_ns, made->ops, made->core, sequence - 1);
    actor_input_t input = {.now_ns = given->now_ns,
                           .sequence = sequence,
                           .from = {given->from},
                           .header = &given->header,
                           .body = &given->body};
    if (given->is_own) {
        actor_record_own_input(record, &input);
    } else {
        actor_record_input(record, &input, given->body_bytes, given->blob_bytes);
    }
    made->ops->step(made->core, &input, outbox);
    for (uint32_t index = 0; index < actor_outbox_count(outbox); index++) {
        const actor_emission_t *emission = actor_outbox_at(outbox, index);
        proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                                 .kind = emission->kind,
                                 .epoch = 1,
                                 .sequence = 1,
                                 .request = emission->request,
                                 .cause = sequence};
        actor_record_output(record, given->now_ns, &header, emission);
    }
    actor_outbox_clear(outbox);
    if (record != NULL && sequence % 64 == 0) {
        actor_record_digest(record, given->now_ns, made->ops->digest(made->core));
    }
}

static void
cool_down(void)
{
    static volatile uint8_t other[COOL_SIZE];
    for (size_t at = 0; at < sizeof other; at += 64) {
        other[at]++;
    }
}

/* Thread time of all inputs after the first, in ns. */
static uint64_t
run_pass(const actor_t *actor, actor_record_t *record, bool is_cold)
{
    core_t made = restore(actor);
    actor_outbox_t *outbox = NULL;
    if (actor_outbox_new(made.ops, &outbox) != STATUS_OK) {
        die("no memory");
    }
    give(&made, outbox, record, &actor->inputs[0], actor->input_first + 1);
    uint64_t sum_ns = 0;
    for (uint32_t index = 1; index < actor->input_count; index++) {
        if (is_cold) {
            cool_down();
        }
        uint64_t begin_ns = thread_ns();
        give(&made, outbox, record, &actor->inputs[index], actor->input_first + 1 + index);
        sum_ns += thread_ns() - begin_ns;
    }
    actor_outbox_destroy(&outbox);
    destroy(actor, &made);
    return sum_ns;
}

/* Runs the core to the middle of the log, where it has most to save, and takes a snapshot there. */
static void
measure_snapshot(const actor_t *actor, int ring_fd, figures_t *out)
{
    core_t made = restore(actor);
    actor_outbox_t *outbox = NULL;
    if (actor_outbox_new(made.ops, &outbox) != STATUS_OK) {
        die("no memory");
    }
    for (uint32_t index = 0; index < actor->input_count / 2; index++) {
        give(&made, outbox, NULL, &actor->inputs[index], actor->input_first + 1 + index);
    }
    double best_us = 1e9;
    for (int turn = 0; turn < 5; turn++) {
        actor_record_t *record = NULL;
        proto_ring_writer_t *ring = NULL;
        if (proto_ring_writer_open(ring_fd, &ring) != STATUS_OK ||
            actor_record_new(ring_fd, &record) != STATUS_OK) {
            die("no ring");
        }
        uint64_t before = proto_ring_written_bytes(ring);
        proto_ring_writer_close(&ring);
        uint64_t begin_ns = thread_ns();
        actor_record_snapshot(record, 1, made.ops, made.core, 1);
        double us = (double)(thread_ns() - begin_ns) / 1e3;
        best_us = us < best_us ? us : best_us;
        actor_record_destroy(&record);
        if (proto_ring_writer_open(ring_fd, &ring) != STATUS_OK) {
            die("no ring");
        }
        out->snapshot_kib = (double)(proto_ring_written_bytes(ring) - before) / 1024;
        proto_ring_writer_close(&ring);
    }
    out->snapshot_us = best_us;
    actor_outbox_destroy(&outbox);
    destroy(actor, &made);
}

static int
by_value(const void *a, const void *b)
{
    double left = *(const double *)a;
    double right = *(const double *)b;
    return left < right ? -1 : left > right;
}

static double
median(double *values, uint32_t count)
{
    qsort(values, count, sizeof values[0], by_value);
    return values[count / 2];
}

static figures_t
measure(const actor_t *actor, uint32_t passes, uint32_t steps)
{
    static double with[PASSES_MAX];
    static double without[PASSES_MAX];
    figures_t figures = {.step_us = 0};
    const proto_ring_owner_t owner = {"bench", actor->role, 1, 0};
    int fd = -1;
    actor_record_t *record = NULL;
    proto_ring_writer_t *ring = NULL;
    if (proto_ring_create(&owner, RING_SIZE, &fd) != STATUS_OK ||
        actor_record_new(fd, &record) != STATUS_OK ||
        proto_ring_writer_open(fd, &ring) != STATUS_OK) {
        die("no ring");
    }
    /* Its pages must exist: a running node has written over its ring many times. */
    proto_ring_writer_close(&ring);
    (void)run_pass(actor, record, false);
    uint64_t written = 0;
    for (uint64_t last = 0; written < RING_SIZE;) {
        (void)run_pass(actor, record, false);
        if (proto_ring_writer_open(fd, &ring) != STATUS_OK) {
            die("no ring");
        }
        last = written;
        written = proto_ring_written_bytes(ring);
        proto_ring_writer_close(&ring);
        figures.bytes = (double)(written - last) / steps;
    }
    for (uint32_t pass = 0; pass < passes; pass++) {
        without[pass] = (double)run_pass(actor, NULL, true);
        with[pass] = (double)run_pass(actor, record, true);
    }
    figures.step_us = (median(with, passes) - median(without, passes)) / 1e3 / steps;
    actor_record_destroy(&record);
    measure_snapshot(actor, fd, &figures);
    (void)close(fd);
    figures.amortized_us =
        figures.snapshot_us * figures.bytes / ((double)RING_SIZE / SNAPSHOT_PER_RING);
    return figures;
}

/* ---- the figures ----------------------------------------------------------------------------- */

static double
median_step_us(void)
{
    static double distances[STEPS_MAX];
    if (result_count < 3) {
        die("the log has fewer than three steps");
    }
    for (uint32_t index = 1; index < result_count; index++) {
        distances[index - 1] = (double)(result_times[index] - result_times[index - 1]) / 1e3;
    }
    return median(distances, result_count - 1);
}

int
main(int argc, char **argv)
{
    static actor_t actors[3] = {{.name = "gateway", .role = PROTO_ROLE_GATEWAY},
                                {.name = "scheduler", .role = PROTO_ROLE_SCHEDULER},
                                {.name = "executor", .role = PROTO_ROLE_EXECUTOR}};
    uint32_t passes = PASSES_DEFAULT;
    double recorder_ns = 0;
    FILE *json = NULL;
    if (argc < 2) {
        die("usage: bench_record FOLDER [--passes N] [--recorder-ns NS] [--json FILE]");
    }
    for (int index = 2; index + 1 < argc; index += 2) {
        if (strcmp(argv[index], "--passes") == 0) {
            passes = (uint32_t)strtoul(argv[index + 1], NULL, 10);
        } else if (strcmp(argv[index], "--recorder-ns") == 0) {
            recorder_ns = strtod(argv[index + 1], NULL);
        } else if (strcmp(argv[index], "--json") == 0) {
            json = fopen(argv[index + 1], "w");
        }
    }
    passes = passes < 1 ? 1 : passes > PASSES_MAX ? PASSES_MAX : passes;
    for (int index = 0; index < 3; index++) {
        actors[index].inputs = calloc(INPUTS_MAX, sizeof(input_t));
        if (actors[index].inputs == NULL) {
            die("no memory");
        }
        load_folder(&actors[index], argv[1]);
    }
    double step_us = median_step_us();
    bool is_good = true;
    printf("steps %u, a step takes %.0f us\n", result_count, step_us);
    printf("%-10s %10s %9s %9s %12s %12s %9s\n", "thread of", "us/step", "% of step", "bytes/step",
           "snapshot us", "snapshot KiB", "amortized");
    if (json != NULL) {
        fprintf(json, "{\"steps\":%u,\"step_us\":%.1f,\"recorder_us\":%.2f", result_count, step_us,
                recorder_ns / 1e3 / result_count);
    }
    for (int index = 0; index < 3; index++) {
        figures_t figures = measure(&actors[index], passes, result_count);
        double share = (figures.step_us + figures.amortized_us) / step_us;
        is_good = is_good && share <= GOAL;
        printf("%-10s %10.2f %9.3f %9.0f %12.0f %12.1f %9.3f\n", actors[index].name,
               figures.step_us, share * 100, figures.bytes, figures.snapshot_us,
               figures.snapshot_kib, figures.amortized_us);
        if (json != NULL) {
            fprintf(json,
                    ",\"%s\":{\"us\":%.3f,\"share\":%.6f,\"bytes\":%.0f,\"snapshot_us\":%.1f,"
                    "\"snapshot_kib\":%.1f,\"amortized_us\":%.4f}",
                    actors[index].name, figures.step_us, share, figures.bytes, figures.snapshot_us,
                    figures.snapshot_kib, figures.amortized_us);
        }
    }
    if (recorder_ns > 0) {
        double share = recorder_ns / 1e3 / result_count / step_us;
        is_good = is_good && share <= GOAL;
        printf("%-10s %10.2f %9.3f\n", "recorder", recorder_ns / 1e3 / result_count, share * 100);
    }
    if (json != NULL) {
        fprintf(json, "}\n");
        (void)fclose(json);
    }
    printf("goal: at most 1 %% of the step, each: %s\n", is_good ? "met" : "missed");
    return is_good ? 0 : 1;
}
