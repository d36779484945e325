/* actor_kv_transfer.h - the kv-transfer actor: the data plane of one node.
 *
 * The core decides (actor_kv_core.h), the data thread moves bytes (actor_kv_data.h), this shell
 * joins them to the links: one that roles, scheduler and executors of the node connect to, one that
 * peers connect to, and those to peers. */
#ifndef ACTOR_KV_TRANSFER_H
#define ACTOR_KV_TRANSFER_H

#include <stdatomic.h>

#include "actor_kv_core.h"
#include "actor_kv_data.h"

enum { ACTOR_KV_PEERS_MAX = 8 };

typedef struct {
    const char *name; /* NULL = "kv-transfer"; unique in the cluster: peers know it by name */
    uint64_t epoch;
    const char *node_endpoint;             /* bound: roles, scheduler, executors of this node */
    const char *peer_endpoint;             /* bound, for other nodes; NULL = nobody connects */
    const char *peers[ACTOR_KV_PEERS_MAX]; /* endpoints of other nodes, to connect to */
    uint32_t peer_count;
    /* Bound, for pulls: tcp://HOST:*; NULL = shared memory only.  Its bytes are not encrypted: with
     * keys (actor_keys.h) only on this machine, and peers' elsewhere are not asked. */
    const char *data_endpoint;
    actor_kv_way_t way;
    actor_kv_core_options_t core;
    bool allow_remote; /* endpoints beyond this machine */
    const char *supervisor_endpoint;
    int ring_fd;
    const atomic_int *stop; /* may be NULL */
} actor_kv_transfer_options_t;

/* Runs until asked to end.  Returns the exit code of the process. */
int actor_kv_transfer_run(const actor_kv_transfer_options_t *options);

#endif
