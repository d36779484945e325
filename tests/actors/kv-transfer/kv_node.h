/* kv_node.h - real kv-transfer processes, and puppets for everybody they talk to: of each node a
 * role, a scheduler and an executor, whose arenas lie in shared memory of the test. */
#ifndef KV_NODE_H
#define KV_NODE_H

#include <sys/types.h>

#include "actor_kv_map.h"
#include "actor_kv_transfer.h"
#include "actor_shell.h"
#include "proto_layers.h"

enum {
    NODE_LAYERS = 3,
    NODE_FIELDS = 2 * NODE_LAYERS + 1, /* keys and values, and one state in the last layer */
    NODE_PAGES = 64,
    NODE_ROWS = 16,
    NODE_HEADS = 4,
    NODE_HEAD_BYTES = 64,
    NODE_RANKS_MAX = 4,
    NODE_HEARD_MAX = 64,
};

/* Somebody who says what the test wants and keeps what it hears. */
typedef struct {
    actor_core_ops_t ops;
    actor_shell_t *shell;
    uint32_t peer; /* ACTOR_PEER_NONE = not linked */
    uint32_t done_count;
    int64_t done_status;
    char done_code[64];
    char done_detail[256];
    uint64_t done_bytes;
    uint64_t done_ns; /* duration */
    uint32_t fenced_count;
    uint32_t nak_count;
} puppet_t;

typedef struct {
    char name[16];
    char dir[64];
    uint64_t epoch;
    pid_t pid;
    pid_t executor_pid; /* of a real one; 0 = none */
    puppet_t role;
    puppet_t scheduler;
    puppet_t executor;
    uint32_t rank_count;
    actor_kv_map_t arenas[NODE_RANKS_MAX];
    actor_kv_map_t ready[NODE_RANKS_MAX];
    int arena_fds[NODE_RANKS_MAX];
    int ready_fds[NODE_RANKS_MAX];
    actor_kv_field_t fields[NODE_RANKS_MAX][NODE_FIELDS];
    actor_kv_layout_t layouts[NODE_RANKS_MAX];
} node_t;

typedef struct {
    actor_kv_way_t way;
    uint32_t source_ranks;
    uint32_t destination_ranks;
    bool checksums;
    const char *source_fault; /* NULL = none */
    const char *destination_fault;
    uint64_t stall_ns;
    /* Runs a real executor in a process of its own, instead of the puppets' arenas; NULL = those.
     */
    int (*run_executor)(const char *scheduler_endpoint, const char *kv_endpoint);
} cluster_options_t;

typedef struct {
    cluster_options_t options;
    char dir[64];
    node_t source;
    node_t destination;
    const node_t *asked; /* by cluster_register() */
} cluster_t;

void cluster_open(cluster_t *self, const cluster_options_t *options);
void cluster_close(cluster_t *self);
/* Kills a node's kv-transfer, waits for its end; starts another incarnation. */
void cluster_kill(cluster_t *self, node_t *node);
void cluster_start(cluster_t *self, node_t *node, const char *fault);
/* Services every puppet until the condition holds; fails the test after 20 s. */
typedef bool (*condition_fn)(const cluster_t *self);
void cluster_wait(cluster_t *self, condition_fn condition, const char *what);
/* Some rounds, whatever happens. */
void cluster_pass(cluster_t *self, uint32_t ms);

/* Content of the source's pages, and whether the destination has it; blocks are 1 + column at the
 * source, 20 + column at the destination. */
void cluster_fill(cluster_t *self, uint32_t seed);
bool cluster_is_right(const cluster_t *self, uint32_t columns, uint32_t seed);
bool cluster_is_untouched(const cluster_t *self);

void cluster_expect(cluster_t *self, uint64_t transfer, uint32_t columns);
void cluster_serve(cluster_t *self, uint64_t transfer, uint32_t columns);
void cluster_part(cluster_t *self, uint64_t transfer, uint32_t part, uint32_t begin, uint32_t end,
                  bool is_last, uint64_t step, uint32_t generation);
void cluster_layers(cluster_t *self, uint64_t step, uint32_t layers);
/* The executor's arenas, to its kv-transfer; returns when it has them. */
void cluster_register(cluster_t *self, node_t *node);
void node_fence(node_t *node, uint64_t transfer);
void node_cancel(node_t *node, uint64_t transfer);

#endif
