/* actor_kv_data_state.h - what the files of the data thread share.  For actor_kv_*.c only. */
#ifndef ACTOR_KV_DATA_STATE_H
#define ACTOR_KV_DATA_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "actor_kv_book.h"
#include "actor_kv_data.h"
#include "actor_kv_route.h"
#include "actor_queue.h"
#include "actor_socket.h"
#include "proto_layers.h"

enum {
    KV_FRAME_SIZE_BYTES = 1 << 20,
    KV_ZERO_COPY_MIN_BYTES = 64 << 10, /* a shorter run is gathered into a frame with others */
    KV_FRAMES_MAX = 2048,              /* of a piece in staging */
    KV_WINDOW = 4,                     /* pieces that are pulled at once */
    KV_ENDINGS_MAX = 256,              /* pieces that were sent and not ended */
    KV_BUFFERS = 64,                   /* frames that were gathered */
    KV_CLOSED_MAX = 1024,
    KV_GRAVES_MAX = 64,
    KV_DATA_DETAIL_SIZE_BYTES = 160,
};

/* A node's cache, ours or a peer's; the data thread's own. */
typedef struct {
    bool in_use;
    uint32_t rank_count;
    uint32_t rank_mask;
    actor_kv_layout_t layouts[ACTOR_KV_RANK_COUNT_MAX];
    actor_kv_field_t *fields; /* [ranks][ACTOR_KV_FIELD_COUNT_MAX] */
    actor_kv_map_t maps[ACTOR_KV_RANK_COUNT_MAX];
    actor_kv_side_t side;
    bool is_mapped;                      /* every rank's arena, and a peer's book */
    char why[KV_DATA_DETAIL_SIZE_BYTES]; /* it is not */
    actor_kv_book_t book;                /* a peer's */
    char endpoint[ACTOR_ENDPOINT_SIZE_MAX];
    actor_kv_route_t *in;  /* from this peer to us; NULL = not planned yet */
    actor_kv_route_t *out; /* from us to this peer */
    actor_socket_t pull;   /* to the peer's data endpoint */
    /* Of our own. */
    uint64_t regions[ACTOR_KV_RANK_COUNT_MAX];
    actor_kv_map_t ready[ACTOR_KV_RANK_COUNT_MAX];
    bool is_announced;
} kv_place_t;

/* A piece to bring here. */
typedef struct {
    bool in_use;
    bool is_asked; /* over TCP: the pull is out */
    uint64_t transfer;
    uint32_t piece;
    uint32_t gate;
    uint32_t peer;
    uint32_t layer_begin;
    uint32_t layer_end;
    uint32_t count;
    uint8_t *groups; /* [column_count_max], as all */
    uint32_t *from_blocks;
    uint32_t *from_generations;
    uint32_t *to_blocks;
    uint64_t *sums;
    zmq_msg_t *frames; /* [KV_FRAMES_MAX] staging */
    uint32_t frame_count;
    uint64_t staged_bytes;
} kv_job_t;

/* A piece that a peer may pull; index: gate and piece. */
typedef struct {
    uint64_t transfer;
    uint32_t piece;
    uint32_t gate;
    uint32_t peer;
    uint32_t layer_begin;
    uint32_t layer_end;
    uint32_t count;
    uint8_t *groups;
    uint32_t *blocks;
    uint32_t *generations;
} kv_served_t;

/* A piece whose bytes have been given to the library and not all left. */
typedef struct {
    bool in_use;
    atomic_uint unsent; /* frames; the library's thread counts down */
    struct actor_kv_data *data;
    const kv_served_t *served;
    uint64_t transfer;
    uint32_t piece;
    uint8_t routing_id[ACTOR_ROUTING_ID_SIZE_MAX];
    size_t routing_id_size;
    uint64_t size_bytes;
    proto_status_t status;
    uint64_t *sums; /* [column_count_max] */
    uint32_t sum_count;
} kv_ending_t;

typedef struct {
    atomic_bool in_use;
    uint8_t *memory; /* [KV_FRAME_SIZE_BYTES] */
} kv_buffer_t;

/* Copies of one transfer that found no room: each is told as failed. */
typedef struct {
    uint64_t transfer;
    uint32_t piece; /* the last one */
    uint32_t count;
} kv_lost_t;

/* How bytes come here: one for each kind of memory or wire between two nodes. */
typedef struct {
    const char *name;
    /* Begins to bring a piece.  STATUS_OK: done, *size_bytes_p written; STATUS_AGAIN: it goes on,
     * and ends by actor_kv_data_finish(); else it failed, with a sentence in `detail`. */
    proto_status_t (*fetch)(actor_kv_data_t *self, kv_job_t *job, uint64_t *size_bytes_p,
                            char *detail);
    /* Forgets what came of it. */
    void (*drop)(actor_kv_data_t *self, kv_job_t *job);
} actor_kv_transport_t;

extern const actor_kv_transport_t actor_kv_transport_shared;
extern const actor_kv_transport_t actor_kv_transport_tcp;
/* Between GPUs of one host: only refuses, and says so. */
extern const actor_kv_transport_t actor_kv_transport_cuda_ipc;

struct actor_kv_data {
    actor_kv_data_options_t options;
    void *zmq_context; /* its own, with its own I/O thread */
    actor_socket_t server;
    actor_frames_t frames;
    pthread_t thread;
    bool is_started;
    atomic_bool is_ending;
    int wake_fd;

    pthread_mutex_t mutex; /* guards both queues, the book and what is closed */
    actor_queue_t *control;
    actor_queue_t *copies;
    size_t control_size_bytes;
    size_t copies_size_bytes;
    kv_lost_t *lost;      /* [gate_count]: as many transfers as the core has */
    actor_kv_book_t book; /* ours */
    int book_fd;          /* -1 = none */
    uint64_t closed[KV_CLOSED_MAX];
    uint64_t closed_count;
    atomic_uint gate_changes;

    /* The data thread's own. */
    kv_place_t places[ACTOR_PEER_COUNT_MAX]; /* [0] is ours; else by link */
    kv_job_t jobs[KV_WINDOW];
    kv_served_t *served;                  /* [gate_count][flying_max] */
    actor_kv_map_t graves[KV_GRAVES_MAX]; /* arenas that went while bytes were leaving them */
    uint32_t grave_count;
    kv_ending_t endings[KV_ENDINGS_MAX];
    kv_buffer_t buffers[KV_BUFFERS];
    uint64_t steps[64];
    uint32_t step_count;
    uint32_t told[64][ACTOR_KV_RANK_COUNT_MAX]; /* layers that were told of each */
    proto_body_t body;
    uint8_t *scratch; /* [KV_FRAME_SIZE_BYTES], aligned */
};

/* ---- actor_kv_data.c ---------------------------------------------------------------------------
 */

/* Ends a job and tells the core. */
void actor_kv_data_finish(actor_kv_data_t *self, kv_job_t *job, proto_status_t status,
                          uint64_t size_bytes, const char *detail);
/* All that was said and is not a copy; overwrites `body`. */
void actor_kv_data_take_control(actor_kv_data_t *self);
bool actor_kv_data_is_closed(actor_kv_data_t *self, uint64_t transfer);
actor_kv_piece_t actor_kv_job_piece(const kv_job_t *job);

/* ---- actor_kv_place.c --------------------------------------------------------------------------
 */

/* A KV_ARENA of a node: maps it; our own readiness too. */
void actor_kv_place_arena(actor_kv_data_t *self, uint32_t peer, const proto_kv_arena_t *arena);
void actor_kv_place_close(kv_place_t *place);
/* The way between us and a peer, planned when first asked for. */
MUST_CHECK proto_status_t actor_kv_place_route(actor_kv_data_t *self, uint32_t peer, bool is_in,
                                               const actor_kv_route_t **out_p, char *detail);

/* ---- actor_kv_pull.c, actor_kv_serve.c ---------------------------------------------------------
 */

void actor_kv_pull_receive(actor_kv_data_t *self, kv_place_t *place, uint32_t peer);
void actor_kv_serve_receive(actor_kv_data_t *self);
/* Ends what has left; returns how many are left. */
uint32_t actor_kv_serve_end(actor_kv_data_t *self);

#endif
