/* proto_log_index.h - the sidecar of a segment: where in it a sequence number, a time or a request
 * is.  A segment NAME.EPOCH.NNNNNN.alog has NAME.EPOCH.NNNNNN.aidx beside it.
 *
 * Owns the sidecar's format (docs/protocol.md, Log segments).  The writer of a segment writes it as
 * it goes; it holds nothing that the segment does not, so it may be deleted at any time and be
 * rebuilt.  It is hostile input like the segment: a sidecar of another segment, a damaged, a
 * truncated or an older one is used as far as it is right and no further, and where a look-up lands
 * is compared with the segment before anybody relies on it.  One thread for each index. */
#ifndef PROTO_LOG_INDEX_H
#define PROTO_LOG_INDEX_H

#include "proto_log.h"

enum {
    PROTO_LOG_INDEX_VERSION = 1,
    PROTO_LOG_INDEX_SPAN_BYTES = 64 * 1024, /* of the segment that one block covers, at least */
    PROTO_LOG_INDEX_BLOOM_SIZE_BYTES = 256,
    PROTO_LOG_INDEX_HEADER_SIZE_BYTES = 64,
    PROTO_LOG_INDEX_BLOCK_SIZE_BYTES = 320,
};

/* What one block says: a run of whole records. */
typedef struct {
    uint64_t offset;         /* of the first record in the segment */
    uint64_t size_bytes;     /* of all of them; the next block begins there */
    uint64_t sequence_first; /* of the first record */
    uint64_t sequence_last;
    uint64_t time_first_ns;
    uint64_t time_last_ns;
    uint32_t record_count;
    uint8_t bloom[PROTO_LOG_INDEX_BLOOM_SIZE_BYTES]; /* ids that headers of IN and OUT name */
} proto_log_index_block_t;

typedef struct proto_log_index proto_log_index_t;

typedef enum {
    PROTO_LOG_INDEX_GOOD,    /* every block agrees with the segment */
    PROTO_LOG_INDEX_PARTIAL, /* right, but covers only the begin: what follows is scanned */
    PROTO_LOG_INDEX_MISSING,
    PROTO_LOG_INDEX_WRONG, /* of another segment, damaged or forged: used only before the damage */
} proto_log_index_state_t;

/* "good", "partial", "missing", "wrong". */
const char *proto_log_index_state_name(proto_log_index_state_t state);

/* The sidecar's name for a segment's; STATUS_ERR_INVALID if `path` does not end in .alog or is too
 * long for `capacity_bytes`. */
MUST_CHECK proto_status_t proto_log_index_path(const char *path, char *out, size_t capacity_bytes);

/* Loads the sidecar of the segment at `path`, checked against its header and size; blocks from the
 * first doubtful one on are left out.  Never fails for a sidecar that is missing or bad: then the
 * index has no block, and *state (may be NULL) says why; a block that agrees in form is not yet
 * compared with the records (proto_log_index_check).  Errors are those of proto_log_reader_open().
 * The caller owns *out_p. */
MUST_CHECK proto_status_t proto_log_index_open(const char *path, proto_log_index_t **out_p,
                                               proto_log_index_state_t *state,
                                               proto_error_t *error);
void proto_log_index_close(proto_log_index_t **self_p);

uint32_t proto_log_index_count(const proto_log_index_t *self);
/* Lent. */
const proto_log_index_block_t *proto_log_index_at(const proto_log_index_t *self, uint32_t index);

/* Where the next block would begin: what lies behind has to be scanned. */
uint64_t proto_log_index_end_offset(const proto_log_index_t *self);

/* False: no IN or OUT record of the block has `request` in its header - if the sidecar is honest.
 * Messages that name requests in their columns only (PLAN, TOKENS, STEP_RESULT) are not in it. */
bool proto_log_index_may_hold(const proto_log_index_block_t *block, uint64_t request);

/* Moves `reader` so that its next record is the first with a sequence >= `sequence`, or at the
 * segment's end if there is none.  `self` may be NULL (scans from the begin).  Where the index
 * points is compared with the record there; if they differ, the segment is scanned instead.  Damage
 * on the way ends the search as in proto_log_reader_next(), unless the reader skips damage. */
MUST_CHECK proto_status_t proto_log_index_seek_sequence(const proto_log_index_t *self,
                                                        proto_log_reader_t *reader,
                                                        uint64_t sequence);
/* The same for the first record with a time >= `time_ns`. */
MUST_CHECK proto_status_t proto_log_index_seek_time(const proto_log_index_t *self,
                                                    proto_log_reader_t *reader, uint64_t time_ns);

/* Writes the sidecar anew from the records of the segment's valid prefix (beside it, then renamed).
 * STATUS_ERR_IO, or what proto_log_reader_open() says. */
MUST_CHECK proto_status_t proto_log_index_rebuild(const char *path, proto_error_t *error);

/* Compares the sidecar with the segment, record by record: O(segment). */
MUST_CHECK proto_status_t proto_log_index_check(const char *path, proto_log_index_state_t *state,
                                                proto_error_t *error);

#endif
