#include "bench_pd_node.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_pd.h"

static void
stop_if(bool condition, const char *what)
{
    if (condition) {
        (void)fprintf(stderr, "bench_pd: %s\n", what);
        exit(1);
    }
}

/* ---- puppets -----------------------------------------------------------------------------------
 */

static void
on_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    bench_puppet_t *self = core;
    proto_kind_t kind = input->header->kind;
    if (kind == PROTO_KIND_PEER_UP) {
        self->peer = input->body->peer_up.peer;
    } else if (kind == PROTO_KIND_PEER_DOWN) {
        self->peer = ACTOR_PEER_NONE;
    } else if (input->from.index == ACTOR_PEER_LOCAL && proto_kind_is_wire(kind)) {
        actor_outbox_push(outbox, (actor_peer_t){self->peer}, kind, 0, input->body);
    } else if (kind == PROTO_KIND_TRANSFER_DONE) {
        const proto_transfer_done_t *done = &input->body->transfer_done;
        self->done_count++;
        self->done_status = done->status;
        (void)snprintf(self->done_detail, sizeof self->done_detail, "%.*s",
                       (int)done->detail.size_bytes, done->detail.data);
    } else if (kind == PROTO_KIND_FENCED) {
        self->fenced_count++;
    }
}

static uint64_t
no_deadline(const void *core)
{
    (void)core;
    return UINT64_MAX;
}

static uint64_t
no_digest(const void *core)
{
    (void)core;
    return 0;
}

static void
no_stats(const void *core, proto_stats_t *out)
{
    (void)core;
    (void)out;
}

static void
open_puppet(bench_puppet_t *self, proto_role_t role, const char *endpoint)
{
    memset(self, 0, sizeof *self);
    self->peer = ACTOR_PEER_NONE;
    self->ops = (actor_core_ops_t){.name = proto_role_name(role),
                                   .role = role,
                                   .outbox_size_bytes = 1 << 20,
                                   .outbox_count_max = 16,
                                   .step = on_step,
                                   .deadline_ns = no_deadline,
                                   .digest = no_digest,
                                   .stats = no_stats};
    const actor_link_options_t link = {.peer_role = PROTO_ROLE_KV_TRANSFER, .endpoint = endpoint};
    const actor_shell_options_t options = {.name = proto_role_name(role),
                                           .epoch = bench_now_ns(),
                                           .ops = &self->ops,
                                           .core = self,
                                           .links = &link,
                                           .link_count = 1,
                                           .ring_fd = -1};
    stop_if(actor_shell_new(&options, &self->shell) != STATUS_OK, "a puppet's shell");
}

static void
service_node(bench_node_t *node)
{
    bench_puppet_t *puppets[3] = {&node->role, &node->scheduler, &node->executor};
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t wait_ns = 0;
        stop_if(actor_shell_service(puppets[i]->shell, &wait_ns) != STATUS_OK, "a link is lost");
    }
}

/* ---- processes ---------------------------------------------------------------------------------
 */

static void
run_child(const bench_pair_t *pair, bool is_source, actor_kv_way_t way, uint64_t epoch)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    char node[128];
    char peers[128];
    (void)snprintf(node, sizeof node, "ipc://%s/%s", pair->dir, is_source ? "p" : "d");
    (void)snprintf(peers, sizeof peers, "ipc://%s/peers", pair->dir);
    const actor_kv_transfer_options_t options = {
        .name = is_source ? "kv-p" : "kv-d",
        .epoch = epoch,
        .node_endpoint = node,
        .peer_endpoint = is_source ? peers : NULL,
        .peers = {peers},
        .peer_count = is_source ? 0 : 1,
        .data_endpoint = is_source ? "tcp://127.0.0.1:*" : NULL,
        .way = way,
        .core = {.transfer_count_max = 8, .column_count_max = 1024},
        .ring_fd = -1,
    };
    _exit(actor_kv_transfer_run(&options));
}

static void
start_node(bench_pair_t *self, bench_node_t *node, actor_kv_way_t way)
{
    node->epoch = bench_now_ns();
    node->pid = fork();
    stop_if(node->pid < 0, "fork");
    if (node->pid == 0) {
        run_child(self, node == &self->source, way, node->epoch);
    }
}

static void
register_node(bench_node_t *node, actor_kv_field_t *fields)
{
    static actor_kv_layout_columns_t columns;
    char handle[ACTOR_KV_HANDLE_SIZE_BYTES];
    size_t handle_size = actor_kv_handle_write(node->arena_fd, 0, handle);
    const actor_kv_layout_t layout = {.arena_bytes = node->arena.size_bytes,
                                      .rank_count = 1,
                                      .layer_count = BENCH_LAYERS,
                                      .group_count = 1,
                                      .groups = {{.granularity = 64,
                                                  .page_count = BENCH_BLOCKS + 1}},
                                      .field_count = BENCH_FIELDS,
                                      .fields = fields};
    proto_body_t body = {.kv_arena = {.region = 1,
                                      .handle = {(const uint8_t *)handle, handle_size},
                                      .fingerprint = proto_text("bench")}};
    actor_kv_layout_write(&layout, &columns, &body.kv_arena);
    actor_shell_inject(node->executor.shell, PROTO_KIND_KV_ARENA, 0, &body);
}

static bool
is_linked(const bench_node_t *node)
{
    return node->role.peer != ACTOR_PEER_NONE && node->scheduler.peer != ACTOR_PEER_NONE &&
           node->executor.peer != ACTOR_PEER_NONE;
}

void
bench_pair_open(bench_pair_t *self, actor_kv_way_t way, actor_kv_field_t *fields)
{
    memset(self, 0, sizeof *self);
    self->next = 1;
    (void)snprintf(self->dir, sizeof self->dir, "/tmp/bench-pd-XXXXXX");
    stop_if(mkdtemp(self->dir) == NULL, "a folder");
    uint64_t at = 0;
    for (uint32_t f = 0; f < BENCH_FIELDS; f++) {
        fields[f] =
            (actor_kv_field_t){.layer = f / 2,
                               .name = f % 2,
                               .rows = 64,
                               .part_count = 1,
                               .parts = {{.extent = 8,
                                          .count = 8,
                                          .unit_bytes = BENCH_BLOCK_BYTES / BENCH_FIELDS / 512}},
                               .page0_offset_bytes = at,
                               .stride_bytes = BENCH_BLOCK_BYTES / BENCH_FIELDS};
        at += fields[f].stride_bytes * (BENCH_BLOCKS + 1);
    }
    bench_node_t *nodes[2] = {&self->source, &self->destination};
    for (uint32_t n = 0; n < 2; n++) {
        stop_if(actor_kv_map_make("bench-arena", at, &nodes[n]->arena, &nodes[n]->arena_fd) !=
                    STATUS_OK,
                "an arena");
        memset(nodes[n]->arena.memory, (int)n + 1, at); /* every page is there */
        start_node(self, nodes[n], way);
    }
    char endpoint[128];
    for (uint32_t n = 0; n < 2; n++) {
        (void)snprintf(endpoint, sizeof endpoint, "ipc://%s/%s", self->dir, n == 0 ? "p" : "d");
        open_puppet(&nodes[n]->role, n == 0 ? PROTO_ROLE_PREFILL_ROLE : PROTO_ROLE_DECODE_ROLE,
                    endpoint);
        open_puppet(&nodes[n]->scheduler, PROTO_ROLE_SCHEDULER, endpoint);
        open_puppet(&nodes[n]->executor, PROTO_ROLE_EXECUTOR, endpoint);
    }
    while (!is_linked(&self->source) || !is_linked(&self->destination)) {
        (void)bench_pair_service(self);
        (void)poll(NULL, 0, 1);
    }
    register_node(&self->source, fields);
    register_node(&self->destination, fields);
    for (uint32_t i = 0; i < 500; i++) {
        (void)bench_pair_service(self);
        (void)poll(NULL, 0, 1);
    }
}

void
bench_pair_close(bench_pair_t *self)
{
    bench_node_t *nodes[2] = {&self->source, &self->destination};
    for (uint32_t n = 0; n < 2; n++) {
        actor_shell_destroy(&nodes[n]->role.shell, 0);
        actor_shell_destroy(&nodes[n]->scheduler.shell, 0);
        actor_shell_destroy(&nodes[n]->executor.shell, 0);
        (void)kill(nodes[n]->pid, SIGKILL);
        (void)waitpid(nodes[n]->pid, NULL, 0);
        actor_kv_map_close(&nodes[n]->arena);
        (void)close(nodes[n]->arena_fd);
    }
    static const char *const names[] = {"p", "d", "peers"};
    for (uint32_t i = 0; i < 3; i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "%s/%s", self->dir, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(self->dir);
}

/* ---- transfers ---------------------------------------------------------------------------------
 */

void
bench_pair_begin(bench_pair_t *self, uint32_t blocks, uint32_t scatter)
{
    static const uint8_t group = 0;
    static const uint32_t column = 0;
    static uint32_t ids[BENCH_BLOCKS];
    static uint32_t generations[BENCH_BLOCKS];
    uint64_t transfer = self->next++;
    for (uint32_t i = 0; i < blocks; i++) {
        ids[i] = 1 + (scatter == 0 ? i : i * scatter % BENCH_BLOCKS);
        generations[i] = 1;
    }
    self->source.role.done_count = 0;
    self->destination.role.done_count = 0;
#define RUNS                                                                                       \
    .run_groups = {&group, 1}, .run_columns = {&column, 1}, .run_counts = {&blocks, 1},            \
    .run_blocks = {ids, blocks}, .run_generations = {generations, blocks}
    proto_body_t body = {.transfer_expect = {.transfer = transfer, .wanted = blocks, RUNS}};
    actor_shell_inject(self->destination.role.shell, PROTO_KIND_TRANSFER_EXPECT, 0, &body);
    body = (proto_body_t){.transfer_serve = {.transfer = transfer,
                                             .wanted = blocks,
                                             .kv_name = proto_text("kv-d"),
                                             .kv_epoch = self->destination.epoch,
                                             RUNS}};
    actor_shell_inject(self->source.role.shell, PROTO_KIND_TRANSFER_SERVE, 0, &body);
    body = (proto_body_t){.transfer_part = {.transfer = transfer, .is_last = true, RUNS}};
    actor_shell_inject(self->source.scheduler.shell, PROTO_KIND_TRANSFER_PART, 0, &body);
#undef RUNS
}

bool
bench_pair_service(bench_pair_t *self)
{
    service_node(&self->source);
    service_node(&self->destination);
    const bench_puppet_t *role = &self->destination.role;
    if (role->done_count == 0) {
        return false;
    }
    if (role->done_status != STATUS_OK) {
        (void)fprintf(stderr, "bench_pd: a transfer failed: %s\n", role->done_detail);
        exit(1);
    }
    return true;
}

double
bench_pair_control(bench_pair_t *self)
{
    bench_puppet_t *scheduler = &self->destination.scheduler;
    uint32_t before = scheduler->fenced_count;
    proto_body_t body = {.fence = {.generation = before, .transfer = UINT64_MAX - before}};
    uint64_t begin_ns = bench_now_ns();
    actor_shell_inject(scheduler->shell, PROTO_KIND_FENCE, 0, &body);
    while (scheduler->fenced_count == before) {
        uint64_t wait_ns = 0;
        stop_if(actor_shell_service(scheduler->shell, &wait_ns) != STATUS_OK, "a link is lost");
        int fds[8];
        struct pollfd polled[8];
        uint32_t count = actor_shell_fds(scheduler->shell, fds, 8);
        for (uint32_t i = 0; i < count; i++) {
            polled[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
        }
        if (scheduler->fenced_count == before) {
            (void)poll(polled, count, 1);
        }
    }
    return (double)(bench_now_ns() - begin_ns) / 1e9;
}
