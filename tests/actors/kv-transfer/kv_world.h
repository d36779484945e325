/* kv_world.h - two kv-transfer cores with a bus between them, and doubles of everybody else: a
 * role, a scheduler and an executor for each, and a data thread that "copies" numbers.  Time is
 * virtual. One message of the run can be lost, doubled, delayed, hurried or corrupted. */
#ifndef KV_WORLD_H
#define KV_WORLD_H

#include "actor_kv_core.h"

enum {
    WORLD_P = 0, /* the source */
    WORLD_D = 1,
    WORLD_PEER_KV = 1, /* links of each side */
    WORLD_PEER_ROLE = 2,
    WORLD_PEER_SCHEDULER = 3,
    WORLD_PEER_EXECUTOR = 4,
    WORLD_PEER_OTHERS = 10, /* and above: more peers */
    WORLD_LAYERS = 4,
    WORLD_BLOCKS = 16,
    WORLD_GROUPS = 2,
    WORLD_QUEUE_MAX = 512,
    WORLD_BODY_MAX = 4096,
    WORLD_BLOB_MAX = 8192,
};

typedef enum {
    WORLD_FAULT_NONE,
    WORLD_FAULT_LOST,
    WORLD_FAULT_TWICE,
    WORLD_FAULT_LATE,
    WORLD_FAULT_EARLY,
    WORLD_FAULT_CORRUPT, /* a number in it is another one */
    WORLD_FAULT_COUNT,
} world_fault_t;

typedef struct {
    uint32_t to; /* side */
    uint32_t from_peer;
    proto_kind_t kind;
    uint64_t request;
    size_t body_size;
    size_t blob_size;
    uint8_t body[WORLD_BODY_MAX];
    _Alignas(64) uint8_t blob[WORLD_BLOB_MAX];
} world_message_t;

typedef struct {
    actor_kv_core_t *core;
    const actor_core_ops_t *ops;
    actor_outbox_t *outbox;
    uint64_t sequence;
    uint64_t memory[WORLD_GROUPS][WORLD_BLOCKS][WORLD_LAYERS]; /* content of the cache */
    bool gates[128];
    /* What was said to the doubles. */
    uint32_t done_count;
    int64_t done_status;
    char done_detail[256];
    char done_code[64];
    uint32_t fenced_count;
    uint64_t fenced_generation;
    uint32_t nak_count;
    uint32_t refused_count; /* messages answered by NAK to their sender */
    uint32_t watch_count;
    uint64_t watched; /* the last step listed */
} world_side_t;

typedef struct {
    world_side_t sides[2];
    world_message_t *queue[WORLD_QUEUE_MAX];
    uint32_t queue_len;
    uint64_t now_ns;
    uint32_t delivered; /* messages of the bus so far */
    world_fault_t fault;
    uint32_t fault_at;
    bool fault_met;
    uint64_t fenced_writes; /* copies into blocks after FENCED was said: must stay 0 */
    bool hold_copies;       /* KV_COPY waits until world_run_copies() */
    bool checks_twins;      /* each step also on a core made of the saved one */
} world_t;

void world_open(world_t *self, const actor_kv_core_options_t *options);
void world_close(world_t *self);
/* Gives a core an input at once. */
void world_give(world_t *self, uint32_t side, uint32_t peer, proto_kind_t kind,
                const proto_body_t *body);
/* Links and arenas of both; D's cache may differ in its granularity. */
void world_link(world_t *self, uint32_t granularity_of_d);
/* One rank's arena, from whoever has it. */
typedef struct {
    uint32_t rank;
    uint32_t rank_count;
    uint32_t granularity;
    uint32_t pages;
} world_arena_t;
void world_arena(world_t *self, uint32_t side, uint32_t peer, const world_arena_t *arena);
/* Delivers what is in the queue, and timers, until nothing is left or 60 s have passed. */
void world_run(world_t *self);
/* Delivers what is in the queue, no timers. */
void world_deliver(world_t *self);
/* As the data thread: what was held back. */
void world_run_copies(world_t *self);

/* The same transfer for both: columns [0, count) of group 0, and the last one of group 1. */
void world_expect(world_t *self, uint64_t transfer, uint32_t count);
void world_serve(world_t *self, uint64_t transfer, uint32_t count);
/* Columns [begin, end) of group 0; the last part brings group 1's. */
void world_part(world_t *self, uint64_t transfer, uint32_t part, uint32_t begin, uint32_t end,
                bool is_last, uint64_t step);
void world_ready(world_t *self, uint64_t step, uint32_t layers);
void world_cancel(world_t *self, uint32_t side, uint64_t transfer);
void world_fence(world_t *self, uint32_t side, uint64_t transfer, uint64_t generation);
/* Whether D has P's content in every column. */
bool world_is_right(const world_t *self, uint32_t count);
actor_kv_figures_t world_figures(const world_t *self, uint32_t side);

#endif
