/* The data plane beside its floors, in one run and by turns: bytes over both transports, control
 * messages under bulk, bookkeeping of a transfer of 1,000 blocks.
 *
 *   bench_pd [--rounds N] [--json FILE]
 *
 * Two kv-transfer processes carry 256 blocks of 1 MiB (16 layers) from the announcement of the
 * blocks to the role's TRANSFER_DONE.  Exits with 1 if a figure misses its goal. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_pd.h"
#include "bench_pd_node.h"

enum { ROUNDS_DEFAULT = 5, ROUNDS_MAX = 51, CONTROLS = 2000, BOOKS = 51, BOOK_BLOCKS = 1000 };

static bool has_missed;
static FILE *json;

static void
report(const char *name, const char *unit, double value, double floor, double goal, bool is_min)
{
    double ratio = value / floor;
    bool is_met = is_min ? ratio >= goal : ratio <= goal;
    has_missed = has_missed || !is_met;
    printf("%-44s %10.3f %-5s floor %10.3f  ratio %6.3f  goal %s %.2f  %s\n", name, value, unit,
           floor, ratio, is_min ? ">=" : "<=", goal, is_met ? "met" : "MISSED");
    if (json != NULL) {
        (void)fprintf(json,
                      "{\"name\": \"%s\", \"unit\": \"%s\", \"value\": %.6f, \"floor\": %.6f, "
                      "\"ratio\": %.4f, \"goal\": %.2f, \"met\": %s}\n",
                      name, unit, value, floor, ratio, goal, is_met ? "true" : "false");
    }
}

/* ---- bulk --------------------------------------------------------------------------------------
 */

static double
carry(bench_pair_t *pair, uint32_t scatter)
{
    uint64_t begin_ns = bench_now_ns();
    bench_pair_begin(pair, BENCH_BLOCKS, scatter);
    while (!bench_pair_service(pair)) {
        (void)poll(NULL, 0, 1);
    }
    return (double)(bench_now_ns() - begin_ns) / 1e9;
}

static void
measure_way(const char *name, actor_kv_way_t way, uint32_t scatter, uint32_t rounds, double goal)
{
    static actor_kv_field_t fields[BENCH_FIELDS];
    static bench_pair_t pair;
    double ours[ROUNDS_MAX];
    double floors[ROUNDS_MAX];
    size_t size_bytes = (size_t)BENCH_BLOCKS * BENCH_BLOCK_BYTES;
    bench_pair_open(&pair, way, fields);
    uint8_t *to = pair.destination.arena.memory;
    const uint8_t *from = pair.source.arena.memory;
    (void)carry(&pair, scatter); /* pages of the other processes' mappings */
    for (uint32_t i = 0; i < rounds; i++) {
        double gib = (double)size_bytes / 1e9;
        floors[i] = gib / (way == ACTOR_KV_WAY_TCP ? bench_floor_tcp(to, from, size_bytes)
                                                   : bench_floor_memcpy(to, from, size_bytes));
        ours[i] = gib / carry(&pair, scatter);
    }
    report(name, "GB/s", bench_median(ours, rounds), bench_median(floors, rounds), goal, true);
    bench_pair_close(&pair);
}

/* ---- control under bulk ------------------------------------------------------------------------
 */

static void
measure_control(const char *name, actor_kv_way_t way)
{
    static actor_kv_field_t fields[BENCH_FIELDS];
    static bench_pair_t pair;
    static double idle[CONTROLS];
    static double busy[CONTROLS];
    bench_pair_open(&pair, way, fields);
    (void)carry(&pair, 0);
    for (uint32_t i = 0; i < CONTROLS; i++) {
        idle[i] = bench_pair_control(&pair) * 1e6;
    }
    uint32_t count = 0;
    bench_pair_begin(&pair, BENCH_BLOCKS, 0);
    while (count < CONTROLS) {
        busy[count++] = bench_pair_control(&pair) * 1e6;
        if (bench_pair_service(&pair)) {
            bench_pair_begin(&pair, BENCH_BLOCKS, 0);
        }
    }
    report(name, "us", bench_percentile(busy, CONTROLS, 99), bench_percentile(idle, CONTROLS, 99),
           4, false);
    bench_pair_close(&pair);
}

/* ---- bookkeeping -------------------------------------------------------------------------------
 */

/* A core alone: what it costs to be told of 1,000 blocks and to say what follows. */
typedef struct {
    actor_kv_core_t *core;
    const actor_core_ops_t *ops;
    actor_outbox_t *outbox;
    uint64_t sequence;
    uint64_t spent_ns;
} book_t;

static void
give(book_t *self, uint32_t peer, proto_kind_t kind, const proto_body_t *body)
{
    const proto_header_t header = {.kind = kind};
    const actor_input_t input = {.now_ns = bench_now_ns(),
                                 .sequence = ++self->sequence,
                                 .from = {peer},
                                 .header = &header,
                                 .body = body};
    actor_outbox_clear(self->outbox);
    uint64_t begin_ns = bench_now_ns();
    self->ops->step(self->core, &input, self->outbox);
    self->spent_ns += bench_now_ns() - begin_ns;
}

static void
open_book(book_t *self)
{
    static actor_kv_layout_columns_t columns;
    static const actor_kv_field_t field = {.rows = 64,
                                           .part_count = 1,
                                           .parts = {{.extent = 8, .count = 8, .unit_bytes = 128}},
                                           .stride_bytes = 65536};
    const actor_kv_layout_t layout = {.arena_bytes = UINT64_C(65536) * 4096,
                                      .rank_count = 1,
                                      .layer_count = 1,
                                      .group_count = 1,
                                      .groups = {{.granularity = 64, .page_count = 4096}},
                                      .field_count = 1,
                                      .fields = &field};
    const actor_kv_core_options_t options = {.piece_size_bytes = 1u << 31};
    if (actor_kv_core_new(&options, &self->core) != STATUS_OK) {
        exit(1);
    }
    self->ops = actor_kv_core_ops(self->core);
    if (actor_outbox_new(self->ops, &self->outbox) != STATUS_OK) {
        exit(1);
    }
    proto_body_t body = {.peer_up = {.peer = 1,
                                     .role = PROTO_ROLE_KV_TRANSFER,
                                     .name = proto_text("kv-d"),
                                     .epoch = 7}};
    give(self, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_UP, &body);
    for (uint32_t peer = 4; peer != 0; peer = peer == 4 ? 1 : 0) {
        body = (proto_body_t){.kv_arena = {.region = 1, .fingerprint = proto_text("bench")}};
        actor_kv_layout_write(&layout, &columns, &body.kv_arena);
        give(self, peer, PROTO_KIND_KV_ARENA, &body);
    }
    body = (proto_body_t){.kv_arena = {.data_endpoint = proto_text("none")}};
    give(self, ACTOR_PEER_LOCAL, PROTO_KIND_KV_ARENA, &body);
    self->spent_ns = 0;
}

static uint32_t ids[BOOK_BLOCKS];
static uint32_t generations[BOOK_BLOCKS];

#define RUNS                                                                                       \
    .run_groups = {&group, 1}, .run_columns = {&column, 1}, .run_counts = {&blocks, 1},            \
    .run_blocks = {ids, BOOK_BLOCKS}, .run_generations = {generations, BOOK_BLOCKS}

/* Microseconds of the cores of both sides for one whole transfer. */
static double
book_once(book_t *p, book_t *d, uint64_t transfer)
{
    static const uint8_t group = 0;
    static const uint32_t column = 0;
    static const uint32_t blocks = BOOK_BLOCKS;
    p->spent_ns = 0;
    d->spent_ns = 0;
    proto_body_t body = {.transfer_expect = {.transfer = transfer, .wanted = 1, RUNS}};
    give(d, 2, PROTO_KIND_TRANSFER_EXPECT, &body);
    body = (proto_body_t){
        .transfer_serve = {
            .transfer = transfer, .wanted = 1, .kv_name = proto_text("kv-d"), .kv_epoch = 7, RUNS}};
    give(p, 2, PROTO_KIND_TRANSFER_SERVE, &body);
    body = (proto_body_t){.kv_offer = {.transfer = transfer, .wanted = 1}};
    give(d, 1, PROTO_KIND_KV_OFFER, &body);
    body = (proto_body_t){.transfer_part = {.transfer = transfer, .is_last = true, RUNS}};
    give(p, 3, PROTO_KIND_TRANSFER_PART, &body);
    body = (proto_body_t){.kv_part = {.transfer = transfer, .layer_end = 1, .is_last = true, RUNS}};
    give(d, 1, PROTO_KIND_KV_PART, &body);
    body = (proto_body_t){.kv_copied = {.transfer = transfer}};
    give(d, ACTOR_PEER_LOCAL, PROTO_KIND_KV_COPIED, &body);
    body = (proto_body_t){.kv_landed = {.transfer = transfer}};
    give(p, 1, PROTO_KIND_KV_LANDED, &body);
    return (double)(p->spent_ns + d->spent_ns) / 1e3;
}

static void
measure_books(void)
{
    book_t p = {.core = NULL};
    book_t d = {.core = NULL};
    open_book(&p);
    open_book(&d);
    for (uint32_t i = 0; i < BOOK_BLOCKS; i++) {
        ids[i] = 1 + i;
        generations[i] = 1;
    }
    double spent[BOOKS];
    for (uint32_t i = 0; i < BOOKS; i++) {
        spent[i] = book_once(&p, &d, 1 + i);
    }
    actor_kv_figures_t figures;
    actor_kv_core_figures(d.core, &figures);
    if (figures.landed_count != BOOKS) {
        (void)fprintf(stderr, "bench_pd: the books do not balance\n");
        exit(1);
    }
    report("bookkeeping of 1,000 blocks, both sides", "us", bench_median(spent, BOOKS), 200, 1,
           false);
    actor_outbox_destroy(&p.outbox);
    actor_outbox_destroy(&d.outbox);
    actor_kv_core_destroy(&p.core);
    actor_kv_core_destroy(&d.core);
}

int
main(int argc, char **argv)
{
    uint32_t rounds = ROUNDS_DEFAULT;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--rounds") == 0) {
            rounds = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--json") == 0) {
            json = fopen(argv[i + 1], "w");
        }
    }
    rounds = rounds < 1 || rounds > ROUNDS_MAX ? ROUNDS_DEFAULT : rounds;
    measure_books();
    measure_way("shared memory / memcpy", ACTOR_KV_WAY_SHARED, 0, rounds, 0.85);
    measure_way("shared memory, scattered blocks / memcpy", ACTOR_KV_WAY_SHARED, 85, rounds, 0.85);
    measure_way("TCP landed / raw TCP landed", ACTOR_KV_WAY_TCP, 0, rounds, 0.85);
    measure_way("TCP, scattered blocks / raw TCP landed", ACTOR_KV_WAY_TCP, 85, rounds, 0.85);
    measure_control("control p99 under shared memory bulk / idle", ACTOR_KV_WAY_SHARED);
    measure_control("control p99 under TCP bulk / idle", ACTOR_KV_WAY_TCP);
    if (json != NULL) {
        (void)fclose(json);
    }
    return has_missed ? 1 : 0;
}
