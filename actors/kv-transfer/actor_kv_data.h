/* actor_kv_data.h - the thread that moves cache bytes for the core: maps arenas, watches the layers
 * of steps, copies pieces on one host, pulls and serves them over TCP.
 *
 * It owns the mapped memory, the data sockets (of a ZeroMQ context and I/O thread of their own, so
 * that control messages never wait behind bulk) and the staging of what has come and not landed.
 * The shell's thread hands it what the core says to LOCAL; it answers by `post`.
 *
 * Over a network a piece stays in staging, in the messages that brought it, until its end says that
 * the source's blocks were still right when the last byte had left them, and until lengths and sums
 * agree; only then is it placed, and only if its transfer has not been fenced.  So a peer can never
 * write, and never delays reuse. */
#ifndef ACTOR_KV_DATA_H
#define ACTOR_KV_DATA_H

#include "actor_core.h"

typedef struct actor_kv_data actor_kv_data_t;

typedef enum {
    ACTOR_KV_WAY_AUTO = 0, /* shared memory where it can be mapped, else TCP */
    ACTOR_KV_WAY_SHARED,
    ACTOR_KV_WAY_TCP,
} actor_kv_way_t;

typedef struct {
    const char *name; /* of this actor; its routing id at peers */
    uint64_t epoch;
    const char *data_endpoint; /* where KV_PULL comes: tcp://HOST:*; NULL = nowhere */
    actor_kv_way_t way;
    bool checksums;            /* xxh3 of each block: made where it is read, held where it lands */
    uint32_t gate_count;       /* transfers of the core, at most ACTOR_KV_GATE_COUNT */
    uint32_t column_count_max; /* of a piece */
    uint32_t flying_max;       /* pieces of a transfer */
    size_t queue_size_bytes_max; /* of what is said and not yet taken, each way; 0 = 256 MiB */
    /* Gives the core an input; called on the data thread, may block. */
    proto_status_t (*post)(void *context, proto_kind_t kind, const proto_body_t *body);
    void *post_context;
} actor_kv_data_options_t;

/* STATUS_ERR_CONFIG, STATUS_ERR_IO: the endpoint cannot be bound; STATUS_ERR_NO_MEMORY.  The caller
 * owns *out_p. */
MUST_CHECK proto_status_t actor_kv_data_new(const actor_kv_data_options_t *options,
                                            actor_kv_data_t **out_p);
MUST_CHECK proto_status_t actor_kv_data_start(actor_kv_data_t *self);
/* Ends the thread after the copy in work. */
void actor_kv_data_destroy(actor_kv_data_t **self_p);

/* What the core said to LOCAL; the shell's thread.  Gates and generations take effect at once. */
void actor_kv_data_push(actor_kv_data_t *self, const actor_emission_t *emission);

/* Where pulls are taken; lent. */
const char *actor_kv_data_endpoint(const actor_kv_data_t *self);

#endif
