/* What a peer, a role, a scheduler or a data thread may say to a kv-transfer, in any order and of
 * any content; and a saved state of any content.  The first byte says which.  Arenas of both sides
 * are registered before.  After each message the invariants hold. */
#include <stdlib.h>
#include <string.h>

#include "actor_kv_core.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);
const char *__asan_default_options(void);

/* A large shape is an answer (no memory), not a finding. */
const char *
__asan_default_options(void)
{
    return "allocator_may_return_null=1:max_allocation_size_mb=64";
}

enum { LINKS = 5, RUNS_MAX = 2, BLOCKS_MAX = 4, MESSAGE_BYTES = 12 };

typedef struct {
    actor_kv_core_t *core;
    const actor_core_ops_t *ops;
    actor_outbox_t *outbox;
    uint64_t now_ns;
    uint64_t sequence;
} world_t;

static void
give(world_t *self, uint32_t from, proto_kind_t kind, const proto_body_t *body)
{
    const proto_header_t header = {.kind = kind};
    const actor_input_t input = {.now_ns = self->now_ns += 1000000,
                                 .sequence = ++self->sequence,
                                 .from = {from},
                                 .header = &header,
                                 .body = body};
    self->ops->step(self->core, &input, self->outbox);
    self->ops->check(self->core);
    actor_outbox_clear(self->outbox);
}

static void
register_both(world_t *self)
{
    static actor_kv_layout_columns_t columns;
    static const actor_kv_field_t fields[] = {
        {.rows = 2, .part_count = 1, .parts = {{4, 0, 4, 8}}, .stride_bytes = 64},
        {.layer = 1,
         .group = 1,
         .rows = 1,
         .part_count = 1,
         .parts = {{4, 0, 4, 8}},
         .page0_offset_bytes = 1024,
         .stride_bytes = 64}};
    const actor_kv_layout_t layout = {.arena_bytes = 4096,
                                      .rank_count = 1,
                                      .layer_count = 2,
                                      .group_count = 2,
                                      .groups = {{.granularity = 16, .page_count = 16},
                                                 {2, 16, 0, 16}},
                                      .field_count = 2,
                                      .fields = fields};
    proto_body_t body = {.peer_up = {.peer = 1,
                                     .role = PROTO_ROLE_KV_TRANSFER,
                                     .name = proto_text("p"),
                                     .epoch = 1}};
    give(self, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_UP, &body);
    body = (proto_body_t){
        .peer_up = {.peer = 4, .role = PROTO_ROLE_EXECUTOR, .name = proto_text("e")}};
    give(self, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_UP, &body);
    static const uint32_t owners[] = {4, 1};
    for (uint32_t i = 0; i < 2; i++) {
        body = (proto_body_t){.kv_arena = {.region = 9, .fingerprint = proto_text("m")}};
        actor_kv_layout_write(&layout, &columns, &body.kv_arena);
        give(self, owners[i], PROTO_KIND_KV_ARENA, &body);
    }
    body = (proto_body_t){.kv_arena = {.data_endpoint = proto_text("none")}};
    give(self, ACTOR_PEER_LOCAL, PROTO_KIND_KV_ARENA, &body);
}

/* A fence of whatever key the messages named cannot leave anything behind. */
static void
end_all(world_t *self)
{
    proto_body_t body = {.peer_down = {.peer = 3, .role = PROTO_ROLE_SCHEDULER}};
    give(self, ACTOR_PEER_LOCAL, PROTO_KIND_PEER_DOWN, &body);
    self->now_ns += UINT64_C(60000000000);
    body = (proto_body_t){.timer = {.deadline_ns = self->now_ns}};
    give(self, ACTOR_PEER_LOCAL, PROTO_KIND_TIMER, &body);
    actor_kv_figures_t figures;
    actor_kv_core_figures(self->core, &figures);
    if (figures.parked_count != 0) {
        abort();
    }
}

/* One message out of twelve bytes: the codec has a target of its own. */
static void
say(world_t *self, const uint8_t *b)
{
    static const proto_kind_t kinds[] = {PROTO_KIND_TRANSFER_EXPECT, PROTO_KIND_TRANSFER_SERVE,
                                         PROTO_KIND_TRANSFER_PART,   PROTO_KIND_TRANSFER_CANCEL,
                                         PROTO_KIND_FENCE,           PROTO_KIND_KV_OFFER,
                                         PROTO_KIND_KV_PART,         PROTO_KIND_KV_LANDED,
                                         PROTO_KIND_KV_CANCEL,       PROTO_KIND_KV_COPIED,
                                         PROTO_KIND_KV_READY};
    proto_kind_t kind = kinds[b[0] % (sizeof kinds / sizeof *kinds)];
    uint64_t transfer = b[1] % 4;
    uint32_t number = b[2] % 4;
    uint8_t groups[RUNS_MAX] = {b[3] % 3, b[4] % 3};
    uint32_t columns[RUNS_MAX] = {b[5] % 4, b[6] % 4};
    uint32_t counts[RUNS_MAX] = {b[7] % 3, 1};
    uint32_t blocks[BLOCKS_MAX] = {b[8] % 18, 1 + b[8] % 15, 3, 4};
    uint32_t generations[BLOCKS_MAX] = {1, 1, 1, 1};
    uint32_t runs = b[9] % (RUNS_MAX + 1);
    uint32_t count = b[10] % (BLOCKS_MAX + 1);
    int64_t status = b[11] % 4 == 0 ? STATUS_ERR_STALE : STATUS_OK;
#define RUNS                                                                                       \
    .run_groups = {groups, runs}, .run_columns = {columns, runs}, .run_counts = {counts, runs},    \
    .run_blocks = {blocks, count}, .run_generations = {generations, count}
    proto_body_t body = {.kv_cancel = {.transfer = transfer, .status = status}};
    switch ((uint32_t)kind) {
    case PROTO_KIND_TRANSFER_EXPECT:
        body = (proto_body_t){.transfer_expect = {.transfer = transfer, .wanted = 1, RUNS}};
        break;
    case PROTO_KIND_TRANSFER_SERVE:
        body = (proto_body_t){.transfer_serve = {.transfer = transfer,
                                                 .wanted = 1,
                                                 .kv_name = proto_text("p"),
                                                 .kv_epoch = 1 + b[11] % 2,
                                                 RUNS}};
        break;
    case PROTO_KIND_TRANSFER_PART:
        body = (proto_body_t){.transfer_part = {.transfer = transfer,
                                                .part = number,
                                                .step = b[11] % 3,
                                                .is_last = b[11] / 3 % 2 == 0,
                                                RUNS}};
        break;
    case PROTO_KIND_FENCE:
        body = (proto_body_t){.fence = {.generation = number, .transfer = transfer}};
        break;
    case PROTO_KIND_KV_OFFER:
        body = (proto_body_t){.kv_offer = {.transfer = transfer, .wanted = b[11] % 2}};
        break;
    case PROTO_KIND_KV_PART:
        body = (proto_body_t){.kv_part = {.transfer = transfer,
                                          .piece = number,
                                          .layer_begin = b[11] % 3,
                                          .layer_end = b[11] / 3 % 4,
                                          .is_last = b[11] / 12 % 2 == 0,
                                          RUNS}};
        break;
    case PROTO_KIND_KV_LANDED:
    case PROTO_KIND_KV_COPIED: /* both begin alike */
        body =
            (proto_body_t){.kv_landed = {.transfer = transfer, .piece = number, .status = status}};
        if (kind == PROTO_KIND_KV_COPIED) {
            body = (proto_body_t){
                .kv_copied = {.transfer = transfer, .piece = number, .status = status}};
        }
        break;
    case PROTO_KIND_KV_READY:
        body = (proto_body_t){.kv_ready = {.region = 9, .step = number, .layer_count = b[11] % 4}};
        break;
    default:
        break;
    }
#undef RUNS
    bool is_local = kind == PROTO_KIND_KV_COPIED || kind == PROTO_KIND_KV_READY;
    give(self, is_local ? ACTOR_PEER_LOCAL : 1 + b[9] / 3 % (LINKS - 1), kind, &body);
}

static void
play(const uint8_t *data, size_t size_bytes)
{
    const actor_kv_core_options_t options = {.transfer_count_max = 3,
                                             .column_count_max = 32,
                                             .piece_size_bytes = 64};
    world_t world = {.core = NULL};
    if (actor_kv_core_new(&options, &world.core) != STATUS_OK) {
        return;
    }
    world.ops = actor_kv_core_ops(world.core);
    if (actor_outbox_new(world.ops, &world.outbox) != STATUS_OK) {
        actor_kv_core_destroy(&world.core);
        return;
    }
    register_both(&world);
    size_t at = 0;
    while (size_bytes - at >= MESSAGE_BYTES) {
        say(&world, data + at);
        at += MESSAGE_BYTES;
    }
    end_all(&world);
    actor_outbox_destroy(&world.outbox);
    actor_kv_core_destroy(&world.core);
}

static void
restore(const uint8_t *data, size_t size_bytes)
{
    actor_kv_core_t *core = NULL;
    proto_error_t error;
    if (actor_kv_core_restore((proto_bytes_t){data, size_bytes}, (proto_bytes_t){NULL, 0}, &core,
                              &error) != STATUS_OK) {
        return;
    }
    const actor_core_ops_t *ops = actor_kv_core_ops(core);
    ops->check(core);
    uint8_t *again = malloc(size_bytes + 1);
    if (again == NULL) {
        abort();
    }
    proto_pack_t state = {.out = again, .capacity_bytes = size_bytes};
    proto_pack_t secret = {0};
    ops->save(core, &state, &secret);
    if (state.size_bytes != size_bytes || memcmp(again, data, size_bytes) != 0) {
        abort();
    }
    free(again);
    actor_kv_core_destroy(&core);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    if (size_bytes > 0 && data[0] % 2 == 0) {
        play(data + 1, size_bytes - 1);
    } else if (size_bytes > 0) {
        restore(data + 1, size_bytes - 1);
    }
    return 0;
}
