#include "kv_node.h"

#include <check.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor_fault.h"
#include "actor_log.h"
#include "proto_clock.h"

static uint64_t
now_ns(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

/* ---- puppets ------------------------------------------------------------------------------------
 */

static void
puppet_hear(puppet_t *self, const actor_input_t *input)
{
    const proto_body_t *body = input->body;
    switch ((uint32_t)input->header->kind) {
    case PROTO_KIND_TRANSFER_DONE:
        self->done_count++;
        self->done_status = body->transfer_done.status;
        self->done_bytes = body->transfer_done.size_bytes;
        self->done_ns = body->transfer_done.duration_ns;
        snprintf(self->done_code, sizeof self->done_code, "%.*s",
                 (int)body->transfer_done.code.size_bytes, body->transfer_done.code.data);
        snprintf(self->done_detail, sizeof self->done_detail, "%.*s",
                 (int)body->transfer_done.detail.size_bytes, body->transfer_done.detail.data);
        return;
    case PROTO_KIND_FENCED:
        self->fenced_count++;
        return;
    case PROTO_KIND_NAK:
        self->nak_count++;
        return;
    default:
        return;
    }
}

static void
puppet_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    puppet_t *self = core;
    if (input->header->kind == PROTO_KIND_PEER_UP) {
        self->peer = input->body->peer_up.peer;
    } else if (input->header->kind == PROTO_KIND_PEER_DOWN) {
        self->peer = ACTOR_PEER_NONE;
    } else if (input->from.index != ACTOR_PEER_LOCAL) {
        puppet_hear(self, input);
    } else if (proto_kind_is_wire(input->header->kind)) {
        ck_assert_uint_ne(self->peer, ACTOR_PEER_NONE);
        actor_outbox_push(outbox, (actor_peer_t){self->peer}, input->header->kind, 0, input->body);
    }
}

static uint64_t
puppet_deadline(const void *core)
{
    (void)core;
    return UINT64_MAX;
}

static uint64_t
puppet_digest(const void *core)
{
    (void)core;
    return 0;
}

static void
puppet_stats(const void *core, proto_stats_t *out)
{
    (void)core;
    (void)out;
}

static void
puppet_check(const void *core)
{
    (void)core;
}

static void
puppet_open(puppet_t *self, proto_role_t role, const char *name, const char *endpoint)
{
    memset(self, 0, sizeof *self);
    self->peer = ACTOR_PEER_NONE;
    self->ops = (actor_core_ops_t){.name = name,
                                   .role = role,
                                   .outbox_size_bytes = 1 << 20,
                                   .outbox_count_max = 64,
                                   .step = puppet_step,
                                   .deadline_ns = puppet_deadline,
                                   .digest = puppet_digest,
                                   .stats = puppet_stats,
                                   .check = puppet_check};
    const actor_link_options_t link = {.peer_role = PROTO_ROLE_KV_TRANSFER, .endpoint = endpoint};
    const actor_shell_options_t options = {.name = name,
                                           .epoch = now_ns(),
                                           .ops = &self->ops,
                                           .core = self,
                                           .links = &link,
                                           .link_count = 1,
                                           .ring_fd = -1};
    ck_assert_int_eq(actor_shell_new(&options, &self->shell), STATUS_OK);
}

static void
puppet_service(puppet_t *self)
{
    uint64_t wait_ns = 0;
    ck_assert_int_eq(actor_shell_service(self->shell, &wait_ns), STATUS_OK);
}

/* ---- caches
 * --------------------------------------------------------------------------------------- */

static void
make_field(actor_kv_field_t *field, uint32_t index, uint32_t rank, uint32_t ranks, uint64_t *at)
{
    bool is_state = index == NODE_FIELDS - 1;
    *field = (actor_kv_field_t){
        .layer = is_state ? NODE_LAYERS - 1 : index / 2,
        .name = is_state ? 3 : index % 2,
        .group = is_state ? 1 : 0,
        .rows = is_state ? 1 : NODE_ROWS,
        .part_count = 1,
        .parts = {{.extent = NODE_HEADS,
                   .begin = rank * NODE_HEADS / ranks,
                   .count = NODE_HEADS / ranks,
                   .unit_bytes = NODE_HEAD_BYTES}},
    };
    field->page0_offset_bytes = *at;
    field->stride_bytes = actor_kv_page_bytes(field) + 64;
    *at += field->stride_bytes * NODE_PAGES;
}

static void
make_cache(node_t *node, uint32_t ranks)
{
    node->rank_count = ranks;
    for (uint32_t r = 0; r < ranks; r++) {
        uint64_t at = 0;
        for (uint32_t f = 0; f < NODE_FIELDS; f++) {
            make_field(&node->fields[r][f], f, r, ranks, &at);
        }
        node->layouts[r] = (actor_kv_layout_t){
            .arena_bytes = at,
            .rank = r,
            .rank_count = ranks,
            .layer_count = NODE_LAYERS,
            .group_count = 2,
            .groups = {{.granularity = 16, .page_count = NODE_PAGES},
                       {.kind = 2, .granularity = 16, .page_count = NODE_PAGES}},
            .field_count = NODE_FIELDS,
            .fields = node->fields[r]};
        ck_assert_int_eq(actor_kv_layout_check(&node->layouts[r], NULL), STATUS_OK);
        ck_assert_int_eq(actor_kv_map_make("test-arena", at, &node->arenas[r], &node->arena_fds[r]),
                         STATUS_OK);
        ck_assert_int_eq(actor_kv_map_make("test-ready", sizeof(proto_layers_t), &node->ready[r],
                                           &node->ready_fds[r]),
                         STATUS_OK);
    }
}

static uint8_t
content(uint32_t seed, uint32_t field, uint32_t column, uint32_t row, uint32_t at)
{
    uint32_t x =
        seed * 2654435761u ^ field * 40503u ^ column * 97u ^ row * 1013u ^ at * 2246822519u;
    return (uint8_t)((x >> 15) ^ x ^ 0x5a);
}

/* Visits the bytes of one rank's page; false at the first that is not as it should be. */
static bool
visit_page(const node_t *node, uint32_t rank, uint32_t field_index, uint32_t block, uint32_t column,
           uint32_t seed, bool is_write)
{
    const actor_kv_field_t *field = &node->fields[rank][field_index];
    uint8_t *page =
        node->arenas[rank].memory + field->page0_offset_bytes + block * field->stride_bytes;
    const actor_kv_part_t *part = &field->parts[0];
    for (uint32_t row = 0; row < field->rows; row++) {
        for (uint32_t i = 0; i < part->count * part->unit_bytes; i++) {
            uint8_t wanted =
                content(seed, field_index, column, row, part->begin * part->unit_bytes + i);
            if (is_write) {
                *page = wanted;
            } else if (*page != wanted) {
                return false;
            }
            page++;
        }
    }
    return true;
}

void
cluster_fill(cluster_t *self, uint32_t seed)
{
    for (uint32_t r = 0; r < self->source.rank_count; r++) {
        for (uint32_t f = 0; f < NODE_FIELDS; f++) {
            for (uint32_t c = 0; c < 16; c++) {
                (void)visit_page(&self->source, r, f, 1 + c, c, seed, true);
            }
        }
    }
    for (uint32_t r = 0; r < self->destination.rank_count; r++) {
        memset(self->destination.arenas[r].memory, 0, self->destination.arenas[r].size_bytes);
    }
}

bool
cluster_is_right(const cluster_t *self, uint32_t columns, uint32_t seed)
{
    for (uint32_t r = 0; r < self->destination.rank_count; r++) {
        for (uint32_t f = 0; f < NODE_FIELDS; f++) {
            bool is_state = f == NODE_FIELDS - 1;
            for (uint32_t c = 0; c < (is_state ? 1 : columns); c++) {
                if (!visit_page(&self->destination, r, f, 20 + c, c, seed, false)) {
                    return false;
                }
            }
        }
    }
    return true;
}

bool
cluster_is_untouched(const cluster_t *self)
{
    for (uint32_t r = 0; r < self->destination.rank_count; r++) {
        const actor_kv_map_t *arena = &self->destination.arenas[r];
        for (size_t i = 0; i < arena->size_bytes; i++) {
            if (arena->memory[i] != 0) {
                return false;
            }
        }
    }
    return true;
}

/* ---- processes
 * ------------------------------------------------------------------------------------- */

static const char fingerprint[] = "model=test;block=16";

static void
run_child(const cluster_t *cluster, const node_t *node, const char *fault)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    char node_endpoint[128];
    char peer_endpoint[128];
    (void)snprintf(node_endpoint, sizeof node_endpoint, "ipc://%s/%s", cluster->dir, node->name);
    (void)snprintf(peer_endpoint, sizeof peer_endpoint, "ipc://%s/peers", cluster->dir);
    bool is_source = node == &cluster->source;
    actor_kv_transfer_options_t options = {
        .name = node->name,
        .epoch = node->epoch,
        .node_endpoint = node_endpoint,
        .peer_endpoint = is_source ? peer_endpoint : NULL,
        .peers = {peer_endpoint},
        .peer_count = is_source ? 0 : 1,
        .data_endpoint = is_source ? "tcp://127.0.0.1:*" : NULL,
        .way = cluster->options.way,
        .core = {.transfer_count_max = 8,
                 .column_count_max = 64,
                 .stall_ns = cluster->options.stall_ns,
                 .checksums = cluster->options.checksums},
        .ring_fd = -1,
    };
    if (fault != NULL && actor_fault_arm(fault) != STATUS_OK) {
        _exit(99);
    }
    _exit(actor_kv_transfer_run(&options));
}

static void
open_puppets(cluster_t *self, node_t *node)
{
    char endpoint[128];
    (void)snprintf(endpoint, sizeof endpoint, "ipc://%s/%s", self->dir, node->name);
    puppet_open(&node->role,
                node == &self->source ? PROTO_ROLE_PREFILL_ROLE : PROTO_ROLE_DECODE_ROLE, "role",
                endpoint);
    puppet_open(&node->scheduler, PROTO_ROLE_SCHEDULER, "scheduler", endpoint);
    puppet_open(&node->executor, PROTO_ROLE_EXECUTOR, "executor", endpoint);
}

static void
node_register(node_t *node)
{
    static actor_kv_layout_columns_t columns;
    for (uint32_t r = 0; r < node->rank_count; r++) {
        char handle[ACTOR_KV_HANDLE_SIZE_BYTES];
        char ready[ACTOR_KV_HANDLE_SIZE_BYTES];
        size_t handle_size = actor_kv_handle_write(node->arena_fds[r], 0, handle);
        size_t ready_size = actor_kv_handle_write(node->ready_fds[r], 0, ready);
        proto_body_t body = {.kv_arena = {.region = 100 + r,
                                          .handle = {(const uint8_t *)handle, handle_size},
                                          .fingerprint = proto_text(fingerprint),
                                          .ready_kind = 1,
                                          .ready_handle = {(const uint8_t *)ready, ready_size}}};
        actor_kv_layout_write(&node->layouts[r], &columns, &body.kv_arena);
        actor_shell_inject(node->executor.shell, PROTO_KIND_KV_ARENA, 0, &body);
    }
}

static bool
is_linked(const cluster_t *self)
{
    const puppet_t *puppets[] = {&self->source.role,           &self->source.scheduler,
                                 &self->source.executor,       &self->destination.role,
                                 &self->destination.scheduler, &self->destination.executor};
    for (size_t i = 0; i < sizeof puppets / sizeof *puppets; i++) {
        if (puppets[i]->peer == ACTOR_PEER_NONE) {
            return false;
        }
    }
    return true;
}

void
cluster_start(cluster_t *self, node_t *node, const char *fault)
{
    node->epoch = now_ns();
    node->pid = fork();
    ck_assert_int_ge(node->pid, 0);
    if (node->pid == 0) {
        run_child(self, node, fault);
    }
    open_puppets(self, node);
    if (self->source.pid > 0 && self->destination.pid > 0) {
        cluster_wait(self, is_linked, "puppets are linked");
    }
}

static void
close_puppets(node_t *node)
{
    actor_shell_destroy(&node->role.shell, 0);
    actor_shell_destroy(&node->scheduler.shell, 0);
    actor_shell_destroy(&node->executor.shell, 0);
}

void
cluster_kill(cluster_t *self, node_t *node)
{
    (void)self;
    (void)kill(node->pid, SIGKILL);
    (void)waitpid(node->pid, NULL, 0);
    close_puppets(node);
    node->pid = 0;
}

static void
start_executor(const cluster_t *self, node_t *node)
{
    char scheduler[128];
    char kv[128];
    (void)snprintf(scheduler, sizeof scheduler, "ipc://%s/nobody", self->dir);
    (void)snprintf(kv, sizeof kv, "ipc://%s/%s", self->dir, node->name);
    node->executor_pid = fork();
    ck_assert_int_ge(node->executor_pid, 0);
    if (node->executor_pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(self->options.run_executor(scheduler, kv));
    }
}

void
cluster_open(cluster_t *self, const cluster_options_t *options)
{
    memset(self, 0, sizeof *self);
    self->options = *options;
    (void)snprintf(self->dir, sizeof self->dir, "/tmp/kv-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(self->dir));
    (void)snprintf(self->source.name, sizeof self->source.name, "kv-p");
    (void)snprintf(self->destination.name, sizeof self->destination.name, "kv-d");
    make_cache(&self->source, options->source_ranks);
    make_cache(&self->destination, options->destination_ranks);
    /* Both are forked before the test opens a socket. */
    self->source.epoch = now_ns();
    self->source.pid = fork();
    ck_assert_int_ge(self->source.pid, 0);
    if (self->source.pid == 0) {
        run_child(self, &self->source, options->source_fault);
    }
    self->destination.epoch = now_ns();
    self->destination.pid = fork();
    ck_assert_int_ge(self->destination.pid, 0);
    if (self->destination.pid == 0) {
        run_child(self, &self->destination, options->destination_fault);
    }
    if (options->run_executor != NULL) {
        start_executor(self, &self->source);
        start_executor(self, &self->destination);
    }
    open_puppets(self, &self->source);
    open_puppets(self, &self->destination);
    cluster_wait(self, is_linked, "puppets are linked");
    cluster_register(self, &self->source);
    cluster_register(self, &self->destination);
}

void
cluster_close(cluster_t *self)
{
    node_t *nodes[2] = {&self->source, &self->destination};
    for (uint32_t n = 0; n < 2; n++) {
        if (nodes[n]->executor_pid > 0) {
            (void)kill(nodes[n]->executor_pid, SIGKILL);
            (void)waitpid(nodes[n]->executor_pid, NULL, 0);
        }
        if (nodes[n]->pid > 0) {
            cluster_kill(self, nodes[n]);
        }
        for (uint32_t r = 0; r < nodes[n]->rank_count; r++) {
            actor_kv_map_close(&nodes[n]->arenas[r]);
            actor_kv_map_close(&nodes[n]->ready[r]);
            (void)close(nodes[n]->arena_fds[r]);
            (void)close(nodes[n]->ready_fds[r]);
        }
        char path[128];
        (void)snprintf(path, sizeof path, "%s/%s", self->dir, nodes[n]->name);
        (void)unlink(path);
    }
    char path[128];
    (void)snprintf(path, sizeof path, "%s/peers", self->dir);
    (void)unlink(path);
    (void)rmdir(self->dir);
}

static void
service(cluster_t *self)
{
    node_t *nodes[2] = {&self->source, &self->destination};
    for (uint32_t n = 0; n < 2; n++) {
        if (nodes[n]->pid > 0 && nodes[n]->role.shell != NULL) {
            puppet_service(&nodes[n]->role);
            puppet_service(&nodes[n]->scheduler);
            puppet_service(&nodes[n]->executor);
        }
    }
}

void
cluster_wait(cluster_t *self, condition_fn condition, const char *what)
{
    uint64_t until_ns = now_ns() + UINT64_C(20000000000);
    while (!condition(self)) {
        service(self);
        ck_assert_msg(now_ns() < until_ns, "not in 20 s: %s", what);
        (void)poll(NULL, 0, 1);
    }
}

void
cluster_pass(cluster_t *self, uint32_t ms)
{
    uint64_t until_ns = now_ns() + ms * UINT64_C(1000000);
    while (now_ns() < until_ns) {
        service(self);
        (void)poll(NULL, 0, 1);
    }
}

/* ---- what is said
 * --------------------------------------------------------------------------------- */

typedef struct {
    uint8_t groups[2];
    uint32_t columns[2];
    uint32_t counts[2];
    uint32_t blocks[NODE_PAGES];
    uint32_t generations[NODE_PAGES];
    uint32_t run_count;
    uint32_t block_count;
} runs_t;

static void
fill_runs(runs_t *runs, uint32_t begin, uint32_t end, bool has_state, uint32_t first,
          uint32_t generation)
{
    memset(runs, 0, sizeof *runs);
    if (end > begin) {
        runs->columns[0] = begin;
        runs->counts[runs->run_count++] = end - begin;
        for (uint32_t c = begin; c < end; c++) {
            runs->generations[runs->block_count] = generation;
            runs->blocks[runs->block_count++] = first + c;
        }
    }
    if (has_state) {
        runs->groups[runs->run_count] = 1;
        runs->counts[runs->run_count++] = 1;
        runs->generations[runs->block_count] = generation;
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
cluster_expect(cluster_t *self, uint64_t transfer, uint32_t columns)
{
    runs_t runs;
    fill_runs(&runs, 0, columns, true, 20, 1);
    proto_body_t body = {
        .transfer_expect = {.transfer = transfer, .wanted = 16 * columns, RUNS(runs)}};
    actor_shell_inject(self->destination.role.shell, PROTO_KIND_TRANSFER_EXPECT, 0, &body);
}

void
cluster_serve(cluster_t *self, uint64_t transfer, uint32_t columns)
{
    runs_t runs;
    fill_runs(&runs, 0, columns, true, 20, 1);
    proto_body_t body = {.transfer_serve = {.transfer = transfer,
                                            .wanted = 16 * columns,
                                            .kv_name = proto_text(self->destination.name),
                                            .kv_epoch = self->destination.epoch,
                                            .fingerprint = proto_text(fingerprint),
                                            RUNS(runs)}};
    actor_shell_inject(self->source.role.shell, PROTO_KIND_TRANSFER_SERVE, 0, &body);
}

void
cluster_part(cluster_t *self, uint64_t transfer, uint32_t part, uint32_t begin, uint32_t end,
             bool is_last, uint64_t step, uint32_t generation)
{
    runs_t runs;
    fill_runs(&runs, begin, end, is_last, 1, generation);
    proto_body_t body = {
        .transfer_part = {
            .transfer = transfer, .part = part, .step = step, .is_last = is_last, RUNS(runs)}};
    actor_shell_inject(self->source.scheduler.shell, PROTO_KIND_TRANSFER_PART, 0, &body);
}

void
cluster_layers(cluster_t *self, uint64_t step, uint32_t layers)
{
    for (uint32_t r = 0; r < self->source.rank_count; r++) {
        proto_layers_t *ready = (proto_layers_t *)(void *)self->source.ready[r].memory;
        if (proto_layers_done(ready, step) == 0) {
            (void)proto_layers_open(ready, step);
        }
        atomic_store(&ready->slots[step % PROTO_LAYERS_SLOT_COUNT].layers, layers);
    }
}

void
node_fence(node_t *node, uint64_t transfer)
{
    proto_body_t body = {.fence = {.generation = transfer, .transfer = transfer}};
    actor_shell_inject(node->scheduler.shell, PROTO_KIND_FENCE, 0, &body);
}

void
node_cancel(node_t *node, uint64_t transfer)
{
    proto_body_t body = {.transfer_cancel = {.transfer = transfer}};
    actor_shell_inject(node->role.shell, PROTO_KIND_TRANSFER_CANCEL, 0, &body);
}

/* Registration has no answer of its own: a transfer of nothing is asked for until it is taken. */
static bool
is_taken(const cluster_t *self)
{
    const puppet_t *role = &self->asked->role;
    return role->done_count > 0 && strcmp(role->done_detail, "asked for") == 0;
}

static bool
is_answered(const cluster_t *self)
{
    return self->asked->role.done_count > 0;
}

void
cluster_register(cluster_t *self, node_t *node)
{
    if (self->options.run_executor == NULL) {
        node_register(node);
    }
    self->asked = node;
    for (uint64_t key = 1; key < 5000; key++) {
        uint64_t transfer = node->epoch / 1000 + key;
        node->role.done_count = 0;
        proto_body_t body;
        if (node == &self->source) {
            body = (proto_body_t){
                .transfer_serve = {.transfer = transfer, .kv_name = proto_text("nobody")}};
            actor_shell_inject(node->role.shell, PROTO_KIND_TRANSFER_SERVE, 0, &body);
        } else {
            body = (proto_body_t){.transfer_expect = {.transfer = transfer}};
            actor_shell_inject(node->role.shell, PROTO_KIND_TRANSFER_EXPECT, 0, &body);
        }
        node_cancel(node, transfer);
        cluster_wait(self, is_answered, "an answer of any kind");
        cluster_pass(self, 2);
        if (is_taken(self)) {
            node->role.done_count = 0;
            return;
        }
    }
    ck_abort_msg("the cache is not registered");
}
