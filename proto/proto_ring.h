/* proto_ring.h - the record ring: the last events of one actor, in shared memory.
 *
 * Whoever starts an actor makes a ring (a sealed memfd) and hands its descriptor on.  Producer:
 * the actor's working thread; it never waits and makes no system call (but see strict).  Consumer:
 * the recorder, in another process.  The producer overwrites the oldest records, so the ring always
 * holds the last ones, consumed or not: after a death it is the crash record.  A consumer that
 * falls behind by a whole ring loses the oldest records and knows how many.  In a strict ring the
 * producer waits for the consumer instead, for a bounded time.
 *
 * Survives a kill of the producer at any instruction: a record counts only once `head` has passed
 * it, and `tail` moves on before bytes are overwritten.  The consumer treats the ring as hostile:
 * it copies a record out, checks that it was not overwritten meanwhile, and checks every length.
 * Records are encoded as in a log segment (proto_log.h), without the CRC. */
#ifndef PROTO_RING_H
#define PROTO_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "proto_ids.h"
#include "proto_log.h"
#include "proto_status.h"

enum {
    PROTO_RING_SIZE_DEFAULT = 8 * 1024 * 1024, /* bytes of records */
    PROTO_RING_SIZE_MIN = 64 * 1024,
    PROTO_RING_SIZE_MAX = 1024 * 1024 * 1024,
    /* Of a strict ring: how long one append may wait for the consumer.  Less than the time after
     * which peers take the actor for dead (4 heartbeats of 250 ms). */
    PROTO_RING_STRICT_WAIT_MS = 500,
};

/* Whose ring it is. */
typedef struct {
    char name[PROTO_NAME_SIZE_BYTES]; /* zero-terminated */
    proto_role_t role;
    uint64_t epoch;
    uint32_t is_strict; /* not 0: the producer waits while the consumer is a ring behind */
} proto_ring_owner_t;

/* Makes a ring of `size_bytes` (0 = default; a power of two) and returns its descriptor, which the
 * caller owns and which is close-on-exec.  Memory is used as records come.  STATUS_ERR_IO with
 * errno set. */
MUST_CHECK proto_status_t proto_ring_create(const proto_ring_owner_t *owner, size_t size_bytes,
                                            int *fd_out);

/* ---- producer -------------------------------------------------------------------------------- */

typedef struct proto_ring_writer proto_ring_writer_t;

/* Maps the ring; the descriptor stays the caller's and may be closed afterwards.  At most one
 * writer at a time; a new one goes on where the old one was killed.  STATUS_ERR_IO, or
 * STATUS_ERR_MALFORMED if it is no ring. */
MUST_CHECK proto_status_t proto_ring_writer_open(int fd, proto_ring_writer_t **out_p);
void proto_ring_writer_close(proto_ring_writer_t **self_p);

/* Appends a record; record->sequence is ignored, the ring counts.  Cannot fail: of a record larger
 * than half the ring the last parts are left out (PROTO_LOG_FLAG_CUT).  Never waits; in a strict
 * ring it waits up to PROTO_RING_STRICT_WAIT_MS until the consumer has kept what it overwrites.
 * After a wait in vain it overwrites, counts (proto_ring_strict_count), and waits no more until the
 * consumer moves again. */
void proto_ring_append(proto_ring_writer_t *self, const proto_log_record_t *record);

/* Records that were cut, and records appended, by all writers of this ring. */
uint64_t proto_ring_cut_count(const proto_ring_writer_t *self);
uint64_t proto_ring_record_count(const proto_ring_writer_t *self);
/* Waits in vain of a strict ring, by all its writers. */
uint64_t proto_ring_strict_count(const proto_ring_writer_t *self);
/* Bytes of records appended for ever, and room for them. */
uint64_t proto_ring_written_bytes(const proto_ring_writer_t *self);
uint64_t proto_ring_capacity_bytes(const proto_ring_writer_t *self);

/* ---- consumer -------------------------------------------------------------------------------- */

typedef struct proto_ring_reader proto_ring_reader_t;

/* Maps the ring (the records read-only); begins at its oldest record.  The descriptor stays the
 * caller's. STATUS_ERR_IO, STATUS_ERR_NO_MEMORY, or STATUS_ERR_MALFORMED if it is no ring. */
MUST_CHECK proto_status_t proto_ring_reader_open(int fd, proto_ring_reader_t **out_p);
void proto_ring_reader_close(proto_ring_reader_t **self_p);

/* For a reader that goes on where another one stopped: records up to `sequence` are passed over,
 * and what is missing behind it counts as lost.  Before the first proto_ring_reader_next(). */
void proto_ring_reader_resume(proto_ring_reader_t *self, uint64_t sequence);

/* Tells the producer of a strict ring that everything read so far is kept and may be overwritten.
 * One reader of a ring does this: the recorder, after a flush. */
void proto_ring_reader_keep(proto_ring_reader_t *self);

/* Whose ring it is; lent. */
const proto_ring_owner_t *proto_ring_reader_owner(const proto_ring_reader_t *self);

/* The next record, copied out: views live until the next call.  STATUS_AGAIN if there is none yet;
 * STATUS_ERR_MALFORMED if the ring is damaged (then it stays so).  *out only on STATUS_OK. */
MUST_CHECK proto_status_t proto_ring_reader_next(proto_ring_reader_t *self,
                                                 proto_log_record_t *out);

/* Records that were overwritten before this reader saw them, so far. */
uint64_t proto_ring_reader_lost(const proto_ring_reader_t *self);

/* How far the producer is ahead, in bytes of records: more than half the ring means that the
 * reader falls behind. */
uint64_t proto_ring_reader_backlog_bytes(const proto_ring_reader_t *self);

#endif
