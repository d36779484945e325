/* actor_kv_state.h - what the files of the core share.  For actor_kv_*.c only.  Long because a
 * transfer's whole state stands in one place. */
#ifndef ACTOR_KV_STATE_H
#define ACTOR_KV_STATE_H

#include "actor_kv_core.h"
#include "actor_kv_layout.h"

enum {
    KV_SAVE_VERSION = 2,
    KV_NODE_MAX = 9,    /* this node and the peers' */
    KV_OWN = 0,         /* this node's own entry */
    KV_STEPS = 16,      /* steps whose readiness is kept */
    KV_PARTS_MAX = 512, /* named and not yet announced, of one transfer */
    KV_PARKED_MAX = 64,
    KV_ENDED_MAX = 512, /* transfers whose end is remembered */
    KV_WATCH_MAX = 16,
    KV_DETAIL_SIZE_BYTES = 160,
    KV_HANDLE_SIZE_BYTES = 96,
};
#define KV_NO_PART UINT32_MAX
_Static_assert(ACTOR_PEER_COUNT_MAX <= 64, "a bit for each link");

/* One block of a transfer.  Sorted by group, then column. */
typedef struct {
    uint32_t column;
    uint32_t block;      /* ours: what is read, or written */
    uint32_t generation; /* of it */
    uint32_t part;       /* source: index of the part that named it, or KV_NO_PART */
    uint16_t layers;     /* destination: the first `layers` ones were announced */
    uint8_t group;
} kv_column_t;

/* Source: columns that one planned step completes. */
typedef struct {
    uint32_t number;
    uint64_t step;   /* 0 = it is there already */
    uint32_t layer;  /* announced before it */
    uint32_t cursor; /* columns of `layer` that were announced, when a piece had to be cut */
    uint32_t count;  /* columns of it that are wanted */
    bool is_last;
} kv_part_t;

typedef enum {
    KV_TRANSFER_FREE = 0,
    KV_TRANSFER_OPEN,
    KV_TRANSFER_DYING, /* it has ended; copies that had begun have not */
} kv_transfer_state_t;

typedef struct {
    uint64_t key;
    kv_transfer_state_t state;
    bool is_source;
    bool has_last;       /* source: the last part was named; destination: the last piece came */
    bool is_last_sent;   /* source */
    bool has_fence;      /* FENCED is owed */
    uint32_t role_peer;  /* who opened it */
    uint32_t fence_peer; /* who fences it */
    uint64_t fence;      /* its number */
    uint32_t kv_peer;    /* the other side; ACTOR_PEER_NONE = not linked yet */
    uint64_t kv_epoch;   /* source: of whom it is for */
    char kv_name[PROTO_NAME_SIZE_BYTES];
    uint32_t gate;   /* destination: the source's */
    uint32_t wanted; /* tokens */
    uint32_t column_count;
    uint32_t missing;     /* columns: not named (source), not whole (destination) */
    uint32_t next_part;   /* source: the number that comes next */
    uint32_t next_piece;  /* to announce, or to come */
    uint32_t flying;      /* pieces announced, or copies in work */
    uint32_t landed;      /* pieces */
    uint32_t parts_first; /* ring of parts */
    uint32_t parts_count;
    uint64_t size_bytes;
    uint64_t begin_ns; /* of the first piece; 0 = none */
    uint64_t last_ns;  /* of the last progress */
} kv_transfer_t;

/* An early message, in short. */
typedef struct {
    uint64_t key; /* 0 = free */
    proto_kind_t kind;
    uint32_t from;
    uint64_t until_ns;
    uint64_t order;
    uint64_t step;
    uint32_t number; /* part, or piece */
    uint32_t layer_begin;
    uint32_t layer_end;
    uint32_t gate;
    uint32_t wanted;
    bool is_last;
    uint32_t column_count; /* kept in the core's parked columns */
} kv_parked_t;

typedef struct {
    uint64_t key; /* 0 = none */
    int32_t status;
    bool is_source;
    uint32_t part_count;
    uint64_t size_bytes;
} kv_ended_t;

/* The cache of one node: its ranks' layouts. */
typedef struct {
    uint32_t peer; /* whose link; ACTOR_PEER_NONE = not there */
    uint64_t epoch;
    char name[PROTO_NAME_SIZE_BYTES];
    uint32_t rank_count;                      /* 0 = nothing registered */
    uint32_t rank_mask;                       /* which have registered */
    uint32_t owners[ACTOR_KV_RANK_COUNT_MAX]; /* links of the executors, of our own node */
    uint64_t regions[ACTOR_KV_RANK_COUNT_MAX];
    char fingerprint[512]; /* text of the executor's */
    /* Of our own node alone: how others map it. */
    uint8_t handles[ACTOR_KV_RANK_COUNT_MAX][KV_HANDLE_SIZE_BYTES];
    uint32_t handle_sizes[ACTOR_KV_RANK_COUNT_MAX];
    uint64_t layout_fingerprint;
    bool is_compatible;                                 /* with ours: pages may go either way */
    actor_kv_layout_t layouts[ACTOR_KV_RANK_COUNT_MAX]; /* fields: of the core's pool */
} kv_node_t;

typedef struct {
    uint64_t step;
    uint32_t layers[ACTOR_KV_RANK_COUNT_MAX];
} kv_ready_t;

struct actor_kv_core {
    actor_core_ops_t ops;
    actor_kv_core_options_t options; /* defaults filled in */
    kv_node_t nodes[KV_NODE_MAX];    /* [KV_OWN] is ours */
    uint64_t cache_owners;           /* a bit for each link that may register our own cache */
    actor_kv_field_t *fields;        /* [nodes][ranks][ACTOR_KV_FIELD_COUNT_MAX] */
    /* What peers are told beside the arenas; the endpoint is empty until the data thread said it.
     */
    char data_endpoint[256];
    uint8_t book_handle[KV_HANDLE_SIZE_BYTES];
    uint32_t book_handle_size;
    actor_kv_layout_columns_t *wire; /* room to tell them in */
    uint64_t *layer_bytes; /* [groups][layers + 1]: bytes of a block in the layers before, over our
                            * ranks */
    kv_ready_t ready[KV_STEPS];
    uint64_t watched[KV_WATCH_MAX]; /* what the data thread looks at, ascending */
    uint32_t watched_count;
    kv_transfer_t *transfers; /* [transfer_count_max] */
    kv_column_t *columns;     /* [transfer_count_max][column_count_max] */
    kv_part_t *parts;         /* [transfer_count_max][KV_PARTS_MAX] */
    kv_parked_t parked[KV_PARKED_MAX];
    kv_column_t *parked_columns; /* [KV_PARKED_MAX][column_count_max] */
    uint64_t parked_order;
    kv_ended_t ended[KV_ENDED_MAX]; /* a ring */
    uint64_t ended_count;
    actor_kv_figures_t figures;
    uint64_t digest;
    bool is_draining;
    /* Of the step in work. */
    uint64_t now_ns;
    actor_outbox_t *outbox;
    kv_column_t *scratch; /* [column_count_max] */
    uint8_t *run_groups;  /* [column_count_max], and so on */
    uint32_t *run_columns;
    uint32_t *run_counts;
    uint32_t *run_blocks;
    uint32_t *run_generations;
    uint8_t *groups;
    uint32_t *to_blocks;
};

/* The five columns of a message that list runs of blocks. */
typedef struct {
    proto_column_u8_t groups;
    proto_column_u32_t columns;
    proto_column_u32_t counts;
    proto_column_u32_t blocks;
    proto_column_u32_t generations;
} kv_runs_t;

#define KV_RUNS_OF(message)                                                                        \
    ((kv_runs_t){(message)->run_groups, (message)->run_columns, (message)->run_counts,             \
                 (message)->run_blocks, (message)->run_generations})

static inline actor_peer_t
kv_peer(uint32_t index)
{
    return (actor_peer_t){index};
}

static inline kv_column_t *
kv_columns_of(const actor_kv_core_t *self, const kv_transfer_t *transfer)
{
    return self->columns + (size_t)(transfer - self->transfers) * self->options.column_count_max;
}

static inline kv_part_t *
kv_part_at(const actor_kv_core_t *self, const kv_transfer_t *transfer, uint32_t index)
{
    kv_part_t *parts = self->parts + (size_t)(transfer - self->transfers) * KV_PARTS_MAX;
    return &parts[(transfer->parts_first + index) % KV_PARTS_MAX];
}

/* ---- actor_kv_core.c ------------------------------------------------------------------------- */

proto_status_t actor_kv_core_make(const actor_kv_core_options_t *options, actor_kv_core_t **out_p);
/* Asks the shell to log. */
void actor_kv_note(actor_kv_core_t *self, uint64_t transfer, proto_status_t status,
                   const char *format, ...) __attribute__((format(printf, 4, 5)));

/* ---- actor_kv_table.c: transfers, their columns, what ended, what is parked --------------------
 */

kv_transfer_t *actor_kv_find(actor_kv_core_t *self, uint64_t key);
const kv_ended_t *actor_kv_find_ended(const actor_kv_core_t *self, uint64_t key);
/* A new one with the columns of scratch; NULL and *why if there is no room. */
kv_transfer_t *actor_kv_open(actor_kv_core_t *self, uint64_t key, uint32_t column_count,
                             const char **why);
/* Reads runs into self->scratch, sorted; false with a sentence if they are not well formed. */
bool actor_kv_read_runs(actor_kv_core_t *self, const kv_runs_t *runs, const kv_node_t *node,
                        uint32_t *count_p, const char **why);
/* The column of a transfer, or NULL. */
kv_column_t *actor_kv_find_column(const actor_kv_core_t *self, const kv_transfer_t *transfer,
                                  uint32_t group, uint32_t column);
/* Tells everybody how it ended, closes its gate; it is gone when its copies are. */
void actor_kv_end(actor_kv_core_t *self, kv_transfer_t *transfer, proto_status_t status,
                  const char *code, const char *detail);
/* A copy of it ended: the last one of a dying transfer frees it. */
void actor_kv_settle(actor_kv_core_t *self, kv_transfer_t *transfer);
/* Answers a role as the first time. */
void actor_kv_answer_ended(actor_kv_core_t *self, uint32_t peer, uint64_t key,
                           const kv_ended_t *ended);
/* Keeps the message, whose columns are `count` of scratch; refuses it if there is no room. */
void actor_kv_park(actor_kv_core_t *self, const kv_parked_t *message, uint32_t count);
/* The parked message of a transfer that came first, moved to *out and scratch; false = none. */
bool actor_kv_unpark(actor_kv_core_t *self, uint64_t key, kv_parked_t *out);

/* ---- actor_kv_nodes.c: arenas, ours and the peers' ---------------------------------------------
 */

kv_node_t *actor_kv_node_of_peer(actor_kv_core_t *self, uint32_t peer);
kv_node_t *actor_kv_node_named(actor_kv_core_t *self, const char *name, uint64_t epoch);
bool actor_kv_node_is_whole(const kv_node_t *node);
/* Whether this rank has as many pages as those that have registered: blocks are checked against any
 * one of them. */
bool actor_kv_pages_agree(const kv_node_t *node, const actor_kv_layout_t *layout);
/* Layers of a node's cache; 0 if it is not whole. */
uint32_t actor_kv_node_layers(const kv_node_t *node);
void actor_kv_on_peer_up(actor_kv_core_t *self, const proto_peer_up_t *up);
void actor_kv_on_peer_down(actor_kv_core_t *self, const proto_peer_down_t *down);
void actor_kv_on_arena(actor_kv_core_t *self, const actor_input_t *input);
void actor_kv_on_ready(actor_kv_core_t *self, const proto_kv_ready_t *ready);
/* Layers of a step that may be read on every rank. */
uint32_t actor_kv_ready_layers(const actor_kv_core_t *self, uint64_t step);
/* After our arenas are whole: what actor_kv_block_bytes() looks up. */
void actor_kv_sum_layers(actor_kv_core_t *self);
/* Bytes of one block of a group in layers [begin, end), over our ranks. */
uint64_t actor_kv_block_bytes(const actor_kv_core_t *self, uint32_t group, uint32_t begin,
                              uint32_t end);

/* ---- actor_kv_source.c -------------------------------------------------------------------------
 */

void actor_kv_on_serve(actor_kv_core_t *self, const actor_input_t *input);
void actor_kv_on_part(actor_kv_core_t *self, const actor_input_t *input);
void actor_kv_on_landed(actor_kv_core_t *self, const actor_input_t *input);
/* Announces what is ready, of every transfer; and says what is awaited. */
void actor_kv_pump(actor_kv_core_t *self);
/* A peer's arenas came: transfers that wait for it begin. */
void actor_kv_source_found_peer(actor_kv_core_t *self, const kv_node_t *node);

/* ---- actor_kv_destination.c --------------------------------------------------------------------
 */

void actor_kv_on_expect(actor_kv_core_t *self, const actor_input_t *input);
void actor_kv_on_offer(actor_kv_core_t *self, const actor_input_t *input);
void actor_kv_on_piece(actor_kv_core_t *self, const actor_input_t *input);
void actor_kv_on_copied(actor_kv_core_t *self, const proto_kv_copied_t *copied);

/* ---- actor_kv_save.c ----------------------------------------------------------------------------
 */

void actor_kv_save(const void *core, proto_pack_t *state, proto_pack_t *secret);

#endif
