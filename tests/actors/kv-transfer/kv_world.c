#include "kv_world.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_P = 1, FIRST_D = 8, GENERATION = 5 };
static const char names[2][8] = {"kv-p", "kv-d"};

static const uint64_t MS_NS = 1000000;

void
world_open(world_t *self, const actor_kv_core_options_t *options)
{
    memset(self, 0, sizeof *self);
    self->now_ns = 1000 * MS_NS;
    for (uint32_t s = 0; s < 2; s++) {
        world_side_t *side = &self->sides[s];
        ck_assert_int_eq(actor_kv_core_new(options, &side->core), STATUS_OK);
        side->ops = actor_kv_core_ops(side->core);
        ck_assert_int_eq(actor_outbox_new(side->ops, &side->outbox), STATUS_OK);
    }
    for (uint32_t g = 0; g < WORLD_GROUPS; g++) {
        for (uint32_t b = 0; b < WORLD_BLOCKS; b++) {
            for (uint32_t l = 0; l < WORLD_LAYERS; l++) {
                self->sides[WORLD_P].memory[g][b][l] = 1000000u + g * 10000u + b * 100u + l;
            }
        }
    }
}

void
world_close(world_t *self)
{
    for (uint32_t i = 0; i < self->queue_len; i++) {
        free(self->queue[i]);
    }
    for (uint32_t s = 0; s < 2; s++) {
        actor_outbox_destroy(&self->sides[s].outbox);
        actor_kv_core_destroy(&self->sides[s].core);
    }
}

/* ---- the bus ------------------------------------------------------------------------------------
 */

static world_message_t *
new_message(uint32_t to, uint32_t from_peer, const actor_emission_t *emission)
{
    world_message_t *message = aligned_alloc(64, (sizeof *message + 63) / 64 * 64);
    ck_assert_ptr_nonnull(message);
    memset(message, 0, sizeof *message);
    message->to = to;
    message->from_peer = from_peer;
    message->kind = emission->kind;
    message->request = emission->request;
    ck_assert_uint_le(emission->body.size_bytes, WORLD_BODY_MAX);
    ck_assert_uint_le(emission->blob.size_bytes, WORLD_BLOB_MAX);
    message->body_size = emission->body.size_bytes;
    message->blob_size = emission->blob.size_bytes;
    memcpy(message->body, emission->body.data, emission->body.size_bytes);
    if (emission->blob.size_bytes > 0) {
        memcpy(message->blob, emission->blob.data, emission->blob.size_bytes);
    }
    return message;
}

static void
push(world_t *self, world_message_t *message)
{
    ck_assert_uint_lt(self->queue_len, WORLD_QUEUE_MAX);
    self->queue[self->queue_len++] = message;
}

static world_message_t *
take(world_t *self, uint32_t index)
{
    world_message_t *message = self->queue[index];
    memmove(&self->queue[index], &self->queue[index + 1],
            (self->queue_len - index - 1) * sizeof *self->queue);
    self->queue_len--;
    return message;
}

static void
hear_role(world_side_t *side, const proto_transfer_done_t *done)
{
    side->done_count++;
    side->done_status = done->status;
    snprintf(side->done_detail, sizeof side->done_detail, "%.*s", (int)done->detail.size_bytes,
             done->detail.data);
    snprintf(side->done_code, sizeof side->done_code, "%.*s", (int)done->code.size_bytes,
             done->code.data);
}

/* As the data thread: reads the source's memory through its gate. */
static void
copy(world_t *self, const world_message_t *message)
{
    world_side_t *p = &self->sides[WORLD_P];
    world_side_t *d = &self->sides[WORLD_D];
    proto_body_t body;
    ck_assert_int_eq(proto_body_decode(PROTO_KIND_KV_COPY,
                                       (proto_bytes_t){message->body, message->body_size},
                                       (proto_bytes_t){message->blob, message->blob_size}, &body,
                                       NULL),
                     STATUS_OK);
    const proto_kv_copy_t *job = &body.kv_copy;
    proto_body_t copied = {.kv_copied = {.transfer = job->transfer, .piece = job->piece}};
    for (uint32_t i = 0; i < job->groups.count; i++) {
        ck_assert_uint_lt(job->from_blocks.data[i], WORLD_BLOCKS);
        ck_assert_uint_lt(job->to_blocks.data[i], WORLD_BLOCKS);
        if (!p->gates[job->gate] || job->from_generations.data[i] != GENERATION) {
            copied.kv_copied.status = STATUS_ERR_STALE;
            copied.kv_copied.detail = proto_text("the source's gate is closed");
            break;
        }
        uint32_t group = job->groups.data[i];
        for (uint32_t l = job->layer_begin; l < job->layer_end; l++) {
            if (d->fenced_count > 0) {
                self->fenced_writes++;
            }
            d->memory[group][job->to_blocks.data[i]][l] =
                p->memory[group][job->from_blocks.data[i]][l];
            copied.kv_copied.size_bytes += 8;
        }
    }
    world_give(self, WORLD_D, ACTOR_PEER_LOCAL, PROTO_KIND_KV_COPIED, &copied);
}

static void
hear(world_t *self, uint32_t s, const actor_emission_t *emission)
{
    world_side_t *side = &self->sides[s];
    proto_body_t body;
    ck_assert_int_eq(proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL),
                     STATUS_OK);
    if (emission->to.index == WORLD_PEER_ROLE && emission->kind == PROTO_KIND_TRANSFER_DONE) {
        hear_role(side, &body.transfer_done);
    } else if (emission->to.index == WORLD_PEER_SCHEDULER && emission->kind == PROTO_KIND_FENCED) {
        side->fenced_count++;
        side->fenced_generation = body.fenced.generation;
    } else if (emission->to.index == WORLD_PEER_ROLE) {
        ck_abort_msg("%s to the role", proto_kind_name(emission->kind));
    } else if (emission->to.index != ACTOR_PEER_LOCAL) {
        ck_assert_msg(emission->kind == PROTO_KIND_NAK || (emission->kind == PROTO_KIND_KV_ARENA &&
                                                           emission->to.index >= WORLD_PEER_OTHERS),
                      "%s to peer %u", proto_kind_name(emission->kind), emission->to.index);
        side->refused_count += emission->kind == PROTO_KIND_NAK ? 1 : 0;
    } else if (emission->kind == PROTO_KIND_KV_GATE && body.kv_gate.is_source) {
        side->gates[body.kv_gate.gate] = body.kv_gate.is_open;
    } else if (emission->kind == PROTO_KIND_KV_WATCH) {
        side->watch_count = body.kv_watch.steps.count;
        side->watched =
            body.kv_watch.steps.count == 0 ? 0 : body.kv_watch.steps.data[side->watch_count - 1];
    } else if (emission->kind == PROTO_KIND_NAK) {
        side->nak_count++;
    }
}

static void
route(world_t *self, uint32_t s)
{
    world_side_t *side = &self->sides[s];
    for (uint32_t i = 0; i < actor_outbox_count(side->outbox); i++) {
        const actor_emission_t *emission = actor_outbox_at(side->outbox, i);
        if (emission->to.index == WORLD_PEER_KV && emission->kind == PROTO_KIND_KV_ARENA) {
            continue; /* world_link() gives what peers have */
        }
        if (emission->to.index == WORLD_PEER_KV) {
            push(self, new_message(1 - s, WORLD_PEER_KV, emission));
        } else if (emission->to.index == ACTOR_PEER_LOCAL && emission->kind == PROTO_KIND_KV_COPY) {
            push(self, new_message(s, ACTOR_PEER_LOCAL, emission));
        } else {
            hear(self, s, emission);
        }
    }
    actor_outbox_clear(side->outbox);
}

/* ---- steps --------------------------------------------------------------------------------------
 */

enum { STATE_MAX = 1 << 20 };

static size_t
save(const world_side_t *side, uint8_t *out)
{
    proto_pack_t state = {.out = out, .capacity_bytes = STATE_MAX};
    proto_pack_t secret = {.out = NULL};
    side->ops->save(side->core, &state, &secret);
    ck_assert(proto_pack_is_complete(&state));
    ck_assert_uint_eq(secret.size_bytes, 0);
    return state.size_bytes;
}

/* The core is exchanged for one made of its bytes; its bytes are the same. */
static void
exchange(world_side_t *side)
{
    static uint8_t before[STATE_MAX];
    static uint8_t after[STATE_MAX];
    size_t size = save(side, before);
    actor_kv_core_t *twin = NULL;
    proto_error_t error = {""};
    ck_assert_msg(actor_kv_core_restore((proto_bytes_t){before, size}, (proto_bytes_t){NULL, 0},
                                        &twin, &error) == STATUS_OK,
                  "%s", error.detail);
    uint64_t digest = side->ops->digest(side->core);
    actor_kv_core_destroy(&side->core);
    side->core = twin;
    side->ops = actor_kv_core_ops(twin);
    ck_assert_uint_eq(save(side, after), size);
    ck_assert_mem_eq(before, after, size);
    ck_assert_uint_eq(side->ops->digest(side->core), digest);
}

void
world_give(world_t *self, uint32_t s, uint32_t peer, proto_kind_t kind, const proto_body_t *body)
{
    world_side_t *side = &self->sides[s];
    const proto_header_t header = {.version = PROTO_SCHEMA_VERSION, .kind = kind};
    const actor_input_t input = {.now_ns = self->now_ns,
                                 .sequence = ++side->sequence,
                                 .from = {peer},
                                 .header = &header,
                                 .body = body};
    if (self->checks_twins) {
        exchange(side);
    }
    side->ops->step(side->core, &input, side->outbox);
    side->ops->check(side->core);
    route(self, s);
}

/* ---- faults -------------------------------------------------------------------------------------
 */

/* Another number at a place that the message decides. */
static void
corrupt(world_message_t *message)
{
    if (message->blob_size > 0) {
        message->blob[(message->blob_size - 1) / 2 / 4 * 4] ^= 0x15;
    } else if (message->body_size > 2) {
        message->body[message->body_size - 1] ^= 0x01;
    }
}

static void
deliver_one(world_t *self, world_message_t *message)
{
    proto_body_t body;
    if (message->kind == PROTO_KIND_KV_COPY) {
        copy(self, message);
        return;
    }
    proto_status_t status =
        proto_body_decode(message->kind, (proto_bytes_t){message->body, message->body_size},
                          (proto_bytes_t){message->blob, message->blob_size}, &body, NULL);
    if (status == STATUS_OK) { /* else its link answers, and no core sees it */
        world_give(self, message->to, message->from_peer, message->kind, &body);
    }
}

/* Which message comes next: held copies stay. */
static uint32_t
next_index(const world_t *self)
{
    for (uint32_t i = 0; i < self->queue_len; i++) {
        if (!self->hold_copies || self->queue[i]->kind != PROTO_KIND_KV_COPY) {
            return i;
        }
    }
    return self->queue_len;
}

void
world_deliver(world_t *self)
{
    for (;;) {
        uint32_t index = next_index(self);
        if (index == self->queue_len) {
            return;
        }
        bool is_bus = self->queue[index]->from_peer == WORLD_PEER_KV;
        bool is_met = is_bus && self->fault != WORLD_FAULT_NONE && !self->fault_met &&
                      self->delivered == self->fault_at;
        if (is_met && self->fault == WORLD_FAULT_EARLY && self->queue_len > index + 1) {
            index = self->queue_len - 1; /* the youngest goes first */
        }
        world_message_t *message = take(self, index);
        self->delivered += is_bus ? 1 : 0;
        self->fault_met = self->fault_met || is_met;
        self->now_ns += MS_NS / 10;
        if (is_met && self->fault == WORLD_FAULT_LATE) {
            push(self, message);
            continue;
        }
        if (is_met && self->fault == WORLD_FAULT_CORRUPT) {
            corrupt(message);
        }
        if (!is_met || self->fault != WORLD_FAULT_LOST) {
            deliver_one(self, message);
        }
        if (is_met && self->fault == WORLD_FAULT_TWICE) {
            deliver_one(self, message);
        }
        free(message);
    }
}

void
world_run_copies(world_t *self)
{
    self->hold_copies = false;
    world_deliver(self);
}

void
world_run(world_t *self)
{
    uint64_t until_ns = self->now_ns + 60000 * MS_NS;
    while (self->now_ns < until_ns) {
        world_deliver(self);
        uint64_t deadline_ns = UINT64_MAX;
        for (uint32_t s = 0; s < 2; s++) {
            uint64_t at_ns = self->sides[s].ops->deadline_ns(self->sides[s].core);
            deadline_ns = at_ns < deadline_ns ? at_ns : deadline_ns;
        }
        if (deadline_ns == UINT64_MAX) {
            return;
        }
        self->now_ns = deadline_ns > self->now_ns ? deadline_ns : self->now_ns + 1;
        for (uint32_t s = 0; s < 2; s++) {
            if (self->sides[s].ops->deadline_ns(self->sides[s].core) <= self->now_ns) {
                proto_body_t body = {.timer = {.deadline_ns = self->now_ns}};
                world_give(self, s, ACTOR_PEER_LOCAL, PROTO_KIND_TIMER, &body);
            }
        }
    }
    ck_abort_msg("a wait without an end");
}

/* ---- what the doubles say
 * ------------------------------------------------------------------------ */

void
world_arena(world_t *self, uint32_t side, uint32_t peer, const world_arena_t *arena)
{
    const uint32_t granularity = arena->granularity;
    static const uint32_t kinds[] = {0, 2};
    const uint32_t granularities[] = {granularity, granularity};
    static const uint32_t windows[] = {0, 0};
    const uint32_t pages[] = {arena->pages, arena->pages};
    static const uint32_t layers[] = {0, 1, 2, 3};
    static const uint8_t ids[] = {0, 0, 3, 0};
    static const uint8_t dtypes[] = {0, 0, 0, 0};
    static const uint8_t groups[] = {0, 0, 1, 0};
    static const uint32_t rows[] = {1, 1, 1, 1};
    static const uint64_t offsets[] = {0, 1024, 2048, 3072};
    static const uint64_t strides[] = {64, 64, 64, 64};
    static const uint8_t parts[] = {1, 1, 1, 1};
    static const uint32_t extents[] = {8, 8, 8, 8};
    static const uint32_t begins[] = {0, 0, 0, 0};
    static const uint32_t units[] = {1, 1, 1, 1};
    proto_body_t body = {.kv_arena = {.region = 77 + arena->rank,
                                      .size_bytes = 4096,
                                      .rank = arena->rank,
                                      .rank_count = arena->rank_count,
                                      .layer_count = WORLD_LAYERS,
                                      .fingerprint = proto_text("model=x"),
                                      .group_kinds = {kinds, 2},
                                      .group_granularities = {granularities, 2},
                                      .group_windows = {windows, 2},
                                      .group_pages = {pages, 2},
                                      .field_layers = {layers, 4},
                                      .field_names = {ids, 4},
                                      .field_dtypes = {dtypes, 4},
                                      .field_groups = {groups, 4},
                                      .field_rows = {rows, 4},
                                      .field_offsets = {offsets, 4},
                                      .field_strides = {strides, 4},
                                      .field_parts = {parts, 4},
                                      .part_extents = {extents, 4},
                                      .part_begins = {begins, 4},
                                      .part_counts = {extents, 4},
                                      .part_units = {units, 4}}};
    world_give(self, side, peer, PROTO_KIND_KV_ARENA, &body);
}

static void
give_arena(world_t *self, uint32_t side, uint32_t peer, uint32_t granularity)
{
    const world_arena_t arena = {.rank_count = 1,
                                 .granularity = granularity,
                                 .pages = WORLD_BLOCKS};
    world_arena(self, side, peer, &arena);
}

void
world_link(world_t *self, uint32_t granularity_of_d)
{
    for (uint32_t s = 0; s < 2; s++) {
        proto_body_t body = {.peer_up = {.peer = WORLD_PEER_KV,
                                         .role = PROTO_ROLE_KV_TRANSFER,
                                         .name = proto_text(names[1 - s]),
                                         .epoch = 10 + (1 - s)}};
        world_give(self, s, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_UP, &body);
        body = (proto_body_t){.peer_up = {.peer = WORLD_PEER_EXECUTOR,
                                          .role = PROTO_ROLE_EXECUTOR,
                                          .name = proto_text("executor"),
                                          .epoch = 1}};
        world_give(self, s, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_UP, &body);
        give_arena(self, s, WORLD_PEER_EXECUTOR, s == WORLD_D ? granularity_of_d : 16);
        proto_body_t said = {.kv_arena = {.data_endpoint = proto_text("none")}};
        world_give(self, s, ACTOR_PEER_LOCAL, PROTO_KIND_KV_ARENA, &said);
        give_arena(self, s, WORLD_PEER_KV, s == WORLD_D ? 16 : granularity_of_d);
    }
}

typedef struct {
    uint8_t groups[2];
    uint32_t columns[2];
    uint32_t counts[2];
    uint32_t blocks[WORLD_BLOCKS];
    uint32_t generations[WORLD_BLOCKS];
    uint32_t run_count;
    uint32_t block_count;
} runs_t;

static void
fill_runs(runs_t *runs, uint32_t begin, uint32_t end, bool has_state, uint32_t first)
{
    memset(runs, 0, sizeof *runs);
    if (end > begin) {
        runs->columns[0] = begin;
        runs->counts[runs->run_count++] = end - begin;
        for (uint32_t c = begin; c < end; c++) {
            runs->generations[runs->block_count] = GENERATION;
            runs->blocks[runs->block_count++] = first + c;
        }
    }
    if (has_state) {
        runs->groups[runs->run_count] = 1;
        runs->columns[runs->run_count] = 9;
        runs->counts[runs->run_count++] = 1;
        runs->generations[runs->block_count] = GENERATION;
        runs->blocks[runs->block_count++] = first;
    }
}

#define RUNS(runs)                                                                                 \
    .run_groups = {(runs).groups, (runs).run_count},                                               \
    .run_columns = {(runs).columns, (runs).run_count},                                             \
    .run_counts = {(runs).counts, (runs).run_count},                                               \
    .run_blocks = {(runs).blocks, (runs).block_count},                                             \
    .run_generations = {(runs).generations, (runs).block_count}

void
world_expect(world_t *self, uint64_t transfer, uint32_t count)
{
    runs_t runs;
    fill_runs(&runs, 0, count, count > 0, FIRST_D);
    proto_body_t body = {
        .transfer_expect = {.transfer = transfer, .wanted = 16 * count, RUNS(runs)}};
    world_give(self, WORLD_D, WORLD_PEER_ROLE, PROTO_KIND_TRANSFER_EXPECT, &body);
}

void
world_serve(world_t *self, uint64_t transfer, uint32_t count)
{
    runs_t runs;
    fill_runs(&runs, 0, count, count > 0, FIRST_D);
    proto_body_t body = {.transfer_serve = {.transfer = transfer,
                                            .wanted = 16 * count,
                                            .kv_name = proto_text(names[WORLD_D]),
                                            .kv_epoch = 11,
                                            .fingerprint = proto_text("model=x"),
                                            RUNS(runs)}};
    world_give(self, WORLD_P, WORLD_PEER_ROLE, PROTO_KIND_TRANSFER_SERVE, &body);
}

void
world_part(world_t *self, uint64_t transfer, uint32_t part, uint32_t begin, uint32_t end,
           bool is_last, uint64_t step)
{
    runs_t runs;
    fill_runs(&runs, begin, end, is_last && end > 0, FIRST_P);
    proto_body_t body = {
        .transfer_part = {
            .transfer = transfer, .part = part, .step = step, .is_last = is_last, RUNS(runs)}};
    world_give(self, WORLD_P, WORLD_PEER_SCHEDULER, PROTO_KIND_TRANSFER_PART, &body);
}

void
world_ready(world_t *self, uint64_t step, uint32_t layers)
{
    proto_body_t body = {.kv_ready = {.region = 77, .step = step, .layer_count = layers}};
    world_give(self, WORLD_P, ACTOR_PEER_LOCAL, PROTO_KIND_KV_READY, &body);
}

void
world_cancel(world_t *self, uint32_t side, uint64_t transfer)
{
    proto_body_t body = {.transfer_cancel = {.transfer = transfer}};
    world_give(self, side, WORLD_PEER_ROLE, PROTO_KIND_TRANSFER_CANCEL, &body);
}

void
world_fence(world_t *self, uint32_t side, uint64_t transfer, uint64_t generation)
{
    proto_body_t body = {.fence = {.generation = generation, .transfer = transfer}};
    world_give(self, side, WORLD_PEER_SCHEDULER, PROTO_KIND_FENCE, &body);
}

bool
world_is_right(const world_t *self, uint32_t count)
{
    const world_side_t *p = &self->sides[WORLD_P];
    const world_side_t *d = &self->sides[WORLD_D];
    for (uint32_t c = 0; c < count; c++) {
        if (memcmp(p->memory[0][FIRST_P + c], d->memory[0][FIRST_D + c], sizeof p->memory[0][0]) !=
            0) {
            return false;
        }
    }
    return count == 0 ||
           memcmp(p->memory[1][FIRST_P], d->memory[1][FIRST_D], sizeof p->memory[1][0]) == 0;
}

actor_kv_figures_t
world_figures(const world_t *self, uint32_t side)
{
    actor_kv_figures_t figures;
    actor_kv_core_figures(self->sides[side].core, &figures);
    return figures;
}
