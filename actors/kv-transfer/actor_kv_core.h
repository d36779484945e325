/* actor_kv_core.h - the data plane's logic: which pages of which transfer may be read, sent and
 * written, and when.  One for each node.
 *
 * It owns the registered arenas' layouts, the transfers of both directions and their columns.  It
 * never touches cache memory, a socket or a clock: copies are LOCAL messages to the data thread
 * (actor_kv_data.h), whose ends come back as inputs.  One thread at a time (the shell's).
 *
 * A transfer, at the source: TRANSFER_SERVE opens it and its gate; TRANSFER_PART names blocks and
 * the step that fills them; as layers of that step get ready (KV_READY), KV_PART announces a piece:
 * columns and a range of layers.  The destination pulls it and answers KV_LANDED.  At the
 * destination: TRANSFER_EXPECT names the blocks that may be written; KV_OFFER and KV_PARTs are held
 * against it; a piece that fits becomes a KV_COPY, and its end a KV_LANDED.
 *
 * - Everything of a transfer that nobody knows is parked for a while: messages of one transfer come
 *   over several links.  What is known to have ended is ignored, or answered as the first time.
 * - A gate that is closed stops every reader: FENCE closes it and is answered at once at the source
 *   (a reader that was in work finds it closed afterwards and throws away what it read), and as
 *   soon as the local copies end at the destination.  No peer is waited for.
 * - Whatever fails is counted, told to the role (TRANSFER_DONE) and to the peer (KV_CANCEL).
 *
 * LOCAL: NAK asks the shell to log a sentence. */
#ifndef ACTOR_KV_CORE_H
#define ACTOR_KV_CORE_H

#include "actor_core.h"
#include "actor_kv_layout.h"

typedef struct actor_kv_core actor_kv_core_t;

enum {
    ACTOR_KV_TRANSFER_COUNT = 128, /* defaults of the options below */
    ACTOR_KV_COLUMN_COUNT = 4096,
    ACTOR_KV_FLYING = 8,
};

/* A zero means the value in the comment. */
typedef struct {
    uint32_t transfer_count_max; /* 128 open at once */
    uint32_t column_count_max;   /* 4096 blocks of one transfer, all groups */
    uint32_t piece_size_bytes;   /* 8 MiB: a piece has at most so much, unless one block has more */
    uint32_t flying_max;         /* 8 pieces of a transfer announced and not landed */
    uint64_t stall_ns; /* 10 s without progress of what a peer or thread owes: it failed */
    uint64_t park_ns;  /* 5 s that an early message waits for its transfer */
    bool checksums;    /* each block carries an xxh3 sum over transports that can corrupt;
                        * the data thread computes and compares */
} actor_kv_core_options_t;

/* What was done and refused since the start. */
typedef struct {
    uint32_t open_count; /* transfers */
    uint32_t parked_count;
    uint64_t served_count; /* transfers that ended well, as source */
    uint64_t landed_count; /* and as destination */
    uint64_t failed_count;
    uint64_t piece_count;   /* landed here */
    uint64_t size_bytes;    /* landed here */
    uint64_t refused_count; /* messages that broke a rule */
    uint64_t stale_count;   /* of an old incarnation, generation or an ended transfer */
    uint64_t duplicate_count;
} actor_kv_figures_t;

/* STATUS_ERR_NO_MEMORY, STATUS_ERR_CONFIG.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_kv_core_new(const actor_kv_core_options_t *options,
                                            actor_kv_core_t **out_p);
void actor_kv_core_destroy(actor_kv_core_t **self_p);

/* Makes a core out of what `save` packed; the bytes may be hostile: STATUS_ERR_MALFORMED with a
 * sentence in *error (may be NULL), STATUS_ERR_VERSION, STATUS_ERR_NO_MEMORY.  Nothing is secret.
 */
MUST_CHECK proto_status_t actor_kv_core_restore(proto_bytes_t state, proto_bytes_t secret,
                                                actor_kv_core_t **out_p, proto_error_t *error);

/* Lent, live as long as the core. */
const actor_core_ops_t *actor_kv_core_ops(const actor_kv_core_t *self);

void actor_kv_core_figures(const actor_kv_core_t *self, actor_kv_figures_t *out);

#endif
