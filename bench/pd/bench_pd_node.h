/* bench_pd_node.h - two kv-transfer processes and who talks to them, with arenas of the bench. */
#ifndef BENCH_PD_NODE_H
#define BENCH_PD_NODE_H

#include <sys/types.h>

#include "actor_kv_map.h"
#include "actor_kv_transfer.h"
#include "actor_shell.h"

enum {
    BENCH_LAYERS = 16,
    BENCH_BLOCKS = 256,
    BENCH_BLOCK_BYTES = 1 << 20, /* over all layers, keys and values */
    BENCH_FIELDS = 2 * BENCH_LAYERS,
};

typedef struct {
    actor_core_ops_t ops;
    actor_shell_t *shell;
    uint32_t peer;
    uint32_t done_count;
    int64_t done_status;
    char done_detail[200];
    uint32_t fenced_count;
} bench_puppet_t;

typedef struct {
    pid_t pid;
    uint64_t epoch;
    bench_puppet_t role;
    bench_puppet_t scheduler;
    bench_puppet_t executor;
    actor_kv_map_t arena;
    int arena_fd;
} bench_node_t;

typedef struct {
    char dir[64];
    bench_node_t source;
    bench_node_t destination;
    uint64_t next;
} bench_pair_t;

/* Exits with a message if anything fails.  `is_scattered`: pages of one field do not follow one
 * another, as after a time of serving. */
void bench_pair_open(bench_pair_t *self, actor_kv_way_t way, actor_kv_field_t *fields);
void bench_pair_close(bench_pair_t *self);
/* Begins to carry `blocks` blocks; `scatter` != 0: in an order of its own. */
void bench_pair_begin(bench_pair_t *self, uint32_t blocks, uint32_t scatter);
/* One round of everybody; true when both roles heard that all is well. */
bool bench_pair_service(bench_pair_t *self);
/* A fence of nothing at the destination: a control message and its answer, seconds. */
double bench_pair_control(bench_pair_t *self);

#endif
