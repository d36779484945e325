/* sched_ids.h - finds a request by who sent it and its id.
 *
 * Open addressing without tombstones; it also remembers the last requests that ended, so that a
 * duplicate that comes late meets a finished request and not an unknown one.  Allocated once.
 * Scheduler's thread only. */
#ifndef SCHED_IDS_H
#define SCHED_IDS_H

#include <stdint.h>

#include "proto_pack.h"
#include "proto_status.h"

#define SCHED_IDS_UNKNOWN UINT32_MAX     /* never seen, or forgotten */
#define SCHED_IDS_ENDED (UINT32_MAX - 1) /* ended not long ago */

typedef struct {
    uint64_t request;
    uint32_t owner;
    uint32_t value; /* entry of the request, or SCHED_IDS_ENDED */
} sched_ids_cell_t;

typedef struct {
    sched_ids_cell_t *cells; /* value SCHED_IDS_UNKNOWN = empty */
    uint32_t mask;
    uint32_t count;
    sched_ids_cell_t *ended; /* ring, oldest first */
    uint32_t ended_capacity;
    uint32_t ended_count;
    uint32_t ended_at; /* next to overwrite */
} sched_ids_t;

/* Room for `live_count_max` requests and the memory of `ended_count_max` ended ones. */
MUST_CHECK proto_status_t sched_ids_init(sched_ids_t *self, uint32_t live_count_max,
                                         uint32_t ended_count_max);
void sched_ids_fini(sched_ids_t *self);

/* The entry, SCHED_IDS_ENDED or SCHED_IDS_UNKNOWN. */
uint32_t sched_ids_find(const sched_ids_t *self, uint32_t owner, uint64_t request);
/* Adds a request that is not in. */
void sched_ids_add(sched_ids_t *self, uint32_t owner, uint64_t request, uint32_t entry);
/* The request ended: remembered, and the oldest one remembered is forgotten. */
void sched_ids_end(sched_ids_t *self, uint32_t owner, uint64_t request);
/* Forgets what ended for this owner: a new incarnation counts anew.  O(memory). */
void sched_ids_forget(sched_ids_t *self, uint32_t owner);

/* Packs what is remembered of ended requests; those that live are the owner's to pack. */
void sched_ids_save(const sched_ids_t *self, proto_pack_t *out);
/* Takes in what sched_ids_save() packed, after every living request was added to an empty one;
 * anything else marks *in as failed. */
void sched_ids_load(sched_ids_t *self, proto_unpack_t *in);

#endif
