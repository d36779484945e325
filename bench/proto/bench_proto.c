/* What the codec, the ring and the log cost, as ratios to plain copies taken in the same run.
 *
 *   bench_proto [ROUNDS]
 *
 * The yardstick is a struct of arrays: one memcpy for each column, on the sender's side and again
 * on the receiver's.  `view` is what an actor does (columns are read in place); `copied` also
 * copies every column out of the blob, as a receiver that keeps them would.  Exits with 1 if a
 * goal is missed or if anything is allocated. */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "proto_codec.h"
#include "proto_log.h"
#include "proto_ring.h"

enum {
    BLOCKS_PER_REQUEST = 64,
    BATCH_MAX = 1024,
    INNER = 200, /* repetitions of one timing */
    ROUNDS_DEFAULT = 41,
    COLUMN_COUNT = 6,
};

/* ---- counting allocations ------------------------------------------------------------------- */

void *__libc_malloc(size_t size_bytes);
void *__libc_calloc(size_t count, size_t size_bytes);
void *__libc_realloc(void *memory, size_t size_bytes);
void *malloc(size_t size_bytes);
void *calloc(size_t count, size_t size_bytes);
void *realloc(void *memory, size_t size_bytes);

static uint64_t allocation_count;

void *
malloc(size_t size_bytes)
{
    allocation_count++;
    return __libc_malloc(size_bytes);
}

void *
calloc(size_t count, size_t size_bytes)
{
    allocation_count++;
    return __libc_calloc(count, size_bytes);
}

void *
realloc(void *memory, size_t size_bytes)
{
    allocation_count++;
    return __libc_realloc(memory, size_bytes);
}

/* ---- a plan --------------------------------------------------------------------------------- */

typedef struct {
    uint32_t slots[BATCH_MAX];
    uint8_t groups[BATCH_MAX];
    uint32_t columns[BATCH_MAX];
    uint32_t counts[BATCH_MAX];
    uint32_t blocks[BATCH_MAX * BLOCKS_PER_REQUEST];
    uint32_t decodes[BATCH_MAX];
} arrays_t;

static arrays_t source;
static arrays_t sent;
static arrays_t received;
static _Alignas(64) uint8_t body_bytes[4096];
static _Alignas(64) uint8_t blob_bytes[sizeof(arrays_t) + 1024];
static proto_body_t plan;
static proto_body_t decoded;
static size_t body_size;
static size_t blob_size;

/* `patches` requests get `blocks` new blocks each; all of the batch decode. */
static void
make_plan(uint32_t batch, uint32_t patches, uint32_t blocks)
{
    memset(&plan, 0, sizeof plan);
    for (uint32_t index = 0; index < batch; index++) {
        source.slots[index] = index + 1;
        source.columns[index] = index % BLOCKS_PER_REQUEST;
        source.counts[index] = blocks;
        source.decodes[index] = index + 1;
    }
    for (uint32_t index = 0; index < patches * blocks; index++) {
        source.blocks[index] = 1000 + index;
    }
    plan.plan.step = 123456;
    plan.plan.base_step = blocks == BLOCKS_PER_REQUEST ? 0 : 123455;
    plan.plan.width = 1;
    plan.plan.patch_slots = (proto_column_u32_t){source.slots, patches};
    plan.plan.patch_groups = (proto_column_u8_t){source.groups, patches};
    plan.plan.patch_columns = (proto_column_u32_t){source.columns, patches};
    plan.plan.patch_counts = (proto_column_u32_t){source.counts, patches};
    plan.plan.patch_blocks = (proto_column_u32_t){source.blocks, patches * blocks};
    plan.plan.decode_slots = (proto_column_u32_t){source.decodes, batch};
}

static void
copy_arrays(arrays_t *to, const proto_plan_t *from)
{
    memcpy(to->slots, from->patch_slots.data, from->patch_slots.count * sizeof *to->slots);
    memcpy(to->groups, from->patch_groups.data, from->patch_groups.count);
    memcpy(to->columns, from->patch_columns.data, from->patch_columns.count * sizeof *to->columns);
    memcpy(to->counts, from->patch_counts.data, from->patch_counts.count * sizeof *to->counts);
    memcpy(to->blocks, from->patch_blocks.data, from->patch_blocks.count * sizeof *to->blocks);
    memcpy(to->decodes, from->decode_slots.data, from->decode_slots.count * sizeof *to->decodes);
}

/* ---- what is timed -------------------------------------------------------------------------- */

static void
run_copies(void)
{
    copy_arrays(&sent, &plan.plan);
    __asm__ volatile("" : : "r"(&sent) : "memory");
    copy_arrays(&received, &plan.plan);
    __asm__ volatile("" : : "r"(&received) : "memory");
}

static void
run_pack(void)
{
    proto_status_t status =
        proto_body_encode(PROTO_KIND_PLAN, &plan, body_bytes, sizeof body_bytes, &body_size,
                          blob_bytes, sizeof blob_bytes, &blob_size);
    if (status != STATUS_OK) {
        abort();
    }
    __asm__ volatile("" : : "r"(blob_bytes) : "memory");
}

static void
run_decode(void)
{
    proto_bytes_t body = {body_bytes, body_size};
    proto_bytes_t blob = {blob_bytes, blob_size};
    if (proto_body_decode(PROTO_KIND_PLAN, body, blob, &decoded, NULL) != STATUS_OK) {
        abort();
    }
    __asm__ volatile("" : : "r"(&decoded) : "memory");
}

static void
run_decode_and_copy(void)
{
    run_decode();
    copy_arrays(&received, &decoded.plan);
    __asm__ volatile("" : : "r"(&received) : "memory");
}

static double
time_ns(void (*function)(void))
{
    struct timespec begin;
    struct timespec end;
    (void)clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int index = 0; index < INNER; index++) {
        function();
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    return ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) /
           INNER;
}

static int
compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double
median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return values[count / 2];
}

enum { TIMED_COPIES, TIMED_PACK, TIMED_DECODE, TIMED_DECODE_COPY, TIMED_COUNT };

/* One row of the table; interleaved, so that all four see the same machine. */
static int
measure(const char *name, int rounds, double goal)
{
    static double samples[TIMED_COUNT][1024];
    static void (*const functions[TIMED_COUNT])(void) = {run_copies, run_pack, run_decode,
                                                         run_decode_and_copy};
    double ns[TIMED_COUNT];
    run_pack();
    run_decode();
    uint64_t allocations_before = allocation_count;
    for (int round = 0; round < rounds; round++) {
        for (int timed = 0; timed < TIMED_COUNT; timed++) {
            samples[timed][round] = time_ns(functions[timed]);
        }
    }
    uint64_t allocations = allocation_count - allocations_before;
    for (int timed = 0; timed < TIMED_COUNT; timed++) {
        ns[timed] = median(samples[timed], rounds);
    }
    double view = (ns[TIMED_PACK] + ns[TIMED_DECODE]) / ns[TIMED_COPIES];
    double copied = (ns[TIMED_PACK] + ns[TIMED_DECODE_COPY]) / ns[TIMED_COPIES];
    printf("%-18s %7zu %9.0f %7.0f %8.0f %10.2f %12.2f %6.1f %6" PRIu64 "\n", name,
           body_size + blob_size, ns[TIMED_COPIES], ns[TIMED_PACK], ns[TIMED_DECODE], view, copied,
           goal, allocations);
    return view > goal || allocations > 0;
}

/* ---- ring and log --------------------------------------------------------------------------- */

static proto_ring_writer_t *ring;
static uint8_t header_bytes[PROTO_HEADER_SIZE_MAX];
static proto_log_record_t record;

static void
run_ring_append(void)
{
    proto_ring_append(ring, &record);
}

static void
measure_ring(int rounds)
{
    static double samples[1024];
    const proto_ring_owner_t owner = {"bench", PROTO_ROLE_SCHEDULER, 1, 0};
    int fd = -1;
    if (proto_ring_create(&owner, 0, &fd) != STATUS_OK ||
        proto_ring_writer_open(fd, &ring) != STATUS_OK) {
        abort();
    }
    const proto_header_t header = {PROTO_SCHEMA_VERSION, PROTO_KIND_PLAN, 1, 2, 0, 3};
    record = (proto_log_record_t){
        .kind = PROTO_LOG_OUT,
        .part_count = 3,
        .parts = {{header_bytes, proto_header_encode(&header, header_bytes)},
                  {body_bytes, body_size},
                  {blob_bytes, blob_size}},
    };
    for (int round = 0; round < rounds; round++) {
        samples[round] = time_ns(run_ring_append);
    }
    printf("ring: append of this plan %.0f ns, %zu bytes\n", median(samples, rounds),
           proto_log_record_size_bytes(&record));
    proto_ring_writer_close(&ring);
    (void)close(fd);
}

int
main(int argument_count, char **arguments)
{
    int rounds = argument_count > 1 ? atoi(arguments[1]) : ROUNDS_DEFAULT;
    if (rounds < 1 || rounds > 1000) {
        (void)fprintf(stderr, "bench_proto: ROUNDS must be 1..1000\n");
        return 2;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    (void)sched_setaffinity(0, sizeof one, &one);

    printf("%-18s %7s %9s %7s %8s %10s %12s %6s %6s\n", "plan", "bytes", "2 copies", "pack",
           "decode", "view/copy", "copied/copy", "goal", "allocs");
    int missed = 0;
    make_plan(256, 256, BLOCKS_PER_REQUEST);
    missed |= measure("256 full", rounds, 1.5);
    measure_ring(rounds);
    make_plan(32, 32, BLOCKS_PER_REQUEST);
    missed |= measure("32 full", rounds, 3.0);
    make_plan(1, 1, BLOCKS_PER_REQUEST);
    missed |= measure("1 full", rounds, 12.0);
    make_plan(1024, 1024, BLOCKS_PER_REQUEST);
    missed |= measure("1024 full", rounds, 1.5);
    /* In steady state one request in a block's length needs a new block. */
    make_plan(256, 16, 1);
    (void)measure("256 delta", rounds, 0.0);
    measure_ring(rounds);
    printf(missed != 0 ? "A goal is missed.\n" : "All goals are met (delta has none).\n");
    return missed;
}
