/* proto_log.h - the message log: segment files, their writer and their reader.
 *
 * Owns the format (docs/protocol.md, Log segments) and nothing else: it reads no clock (callers
 * pass the time), opens no socket and interprets no message.  A record is one event of one actor:
 * the exact parts of a message that went in or out, a timer, a snapshot.  Records that were
 * flushed survive a kill of any process; a torn tail is found by the first bad CRC.  A file is
 * hostile input to the reader.  One thread for each writer or reader.
 *
 * Long because the writer's and the reader's contracts explain each other. */
#ifndef PROTO_LOG_H
#define PROTO_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_clock.h"
#include "proto_codec.h"
#include "proto_ids.h"
#include "proto_status.h"

enum {
    PROTO_LOG_VERSION = 1,
    PROTO_LOG_HEADER_SIZE_BYTES = 4096,
    PROTO_LOG_PART_COUNT_MAX = 4,
    PROTO_LOG_RECORD_HEAD_SIZE_BYTES = 37, /* before the parts */
    PROTO_LOG_RECORD_SIZE_MAX = 80 * 1024 * 1024,
    PROTO_LOG_HOST_SIZE_BYTES = 64,
    PROTO_LOG_BUILD_SIZE_BYTES = 64,
    PROTO_LOG_MODEL_SIZE_BYTES = 1024,
};

/* Kinds of records; the numbers are in files. */
#define PROTO_LOG_KIND_LIST(KIND)                                                                  \
    KIND(IN, 1, "a message that the core was given: header, body, blob")                           \
    KIND(OUT, 2, "a message that the core emitted: header, body, blob")                            \
    KIND(TIMER, 3, "a TIMER input: its body")                                                      \
    KIND(RNG, 4, "randomness given to the core")                                                   \
    KIND(CLOCK, 5, "a clock pair: monotonic and real time, u64 each")                              \
    KIND(ENV, 6, "a setting: name, value")                                                         \
    KIND(STATE_DIGEST, 7, "digest of the core's state, u64")                                       \
    KIND(SNAPSHOT, 8, "the core's state: head, public bytes, private bytes")                       \
    KIND(FAULT, 9, "an injected or a seen fault: text")                                            \
    KIND(NOTE, 10, "a remark for people: text")                                                    \
    KIND(CHANNEL_DEF, 11, "what a channel number means: name, role, epoch as text")                \
    KIND(DROP, 12, "records that are missing here: count, u64; why, text")

typedef enum {
#define PROTO_LOG_KIND_ENUM(name, value, text) PROTO_LOG_##name = (value),
    PROTO_LOG_KIND_LIST(PROTO_LOG_KIND_ENUM)
#undef PROTO_LOG_KIND_ENUM
} proto_log_kind_t;

enum { PROTO_LOG_KIND_COUNT = PROTO_LOG_DROP + 1 };

/* Bits of proto_log_record_t.flags. */
enum {
    PROTO_LOG_FLAG_CUT = 1,      /* the last parts were left out: the record was too large */
    PROTO_LOG_FLAG_REDACTED = 2, /* private content was replaced by zeros of the same size */
};

/* Part 0 of a SNAPSHOT, little endian: u32 form (PROTO_LOG_SNAPSHOT_FORM), u32 role of the actor,
 * u64 digest of the state, u64 count of inputs that led to it.  Part 1 and 2: what
 * actor_core_ops_t.save packed as state and as secret. */
enum { PROTO_LOG_SNAPSHOT_FORM = 1, PROTO_LOG_SNAPSHOT_HEAD_SIZE_BYTES = 24 };

/* DROP: part 0 is the number of records that are missing in this place, u64; part 1 (may be absent)
 * says why, text.  Its sequence and time are those of the record that follows it, so the sequence
 * numbers before and after it differ by 1 + that number.  Only a DROP may have the same sequence as
 * the record after it. */

/* One event.  To write: views into the caller's memory, copied by the call.  Read: views that live
 * until the next call on the same reader.  A blob read back need not be aligned: see
 * proto_blob_is_aligned(). */
typedef struct {
    proto_log_kind_t kind;
    uint8_t flags;
    bool is_made;           /* read: a DROP that the reader made up; ignored when written */
    uint16_t channel;       /* peer index of the actor; CHANNEL_DEF says who that was */
    uint64_t sequence;      /* of records of this actor, from 1; a gap means records are missing */
    uint64_t time_ns;       /* monotonic clock of the actor's host */
    uint64_t link_sequence; /* header.sequence of IN and OUT; else 0 */
    uint32_t part_count;
    proto_bytes_t parts[PROTO_LOG_PART_COUNT_MAX];
} proto_log_record_t;

/* First page of a segment. */
typedef struct {
    uint32_t version;
    uint32_t segment_index;  /* from 0, of this writer */
    uint8_t segment_id[16];  /* random */
    uint64_t first_sequence; /* of the first record; 0 = unknown */
    uint64_t time_ns;        /* clock pair of the moment of creation: monotonic, */
    uint64_t realtime_ns;    /*   and since 1970 */
    uint64_t epoch;          /* incarnation of the actor */
    proto_role_t role;
    uint32_t schema_version; /* PROTO_SCHEMA_VERSION of the recorder */
    uint64_t schema_hash;    /* proto_schema_hash() of the recorder */
    uint64_t config_digest;
    char name[PROTO_NAME_SIZE_BYTES];     /* of the actor; zero-terminated, as all text here */
    char host[PROTO_LOG_HOST_SIZE_BYTES]; /* host name */
    char boot[PROTO_LOG_HOST_SIZE_BYTES]; /* boot id: monotonic times compare only within one */
    char build[PROTO_LOG_BUILD_SIZE_BYTES];
    char model[PROTO_LOG_MODEL_SIZE_BYTES]; /* fingerprint of the model; "" = none */
} proto_log_header_t;

/* The constant's name without the prefix; "UNKNOWN" for a number not listed. */
const char *proto_log_kind_name(proto_log_kind_t kind);

/* CRC-32C (Castagnoli) of `data`, continued from `crc` (0 to begin). */
uint32_t proto_crc32c(uint32_t crc, const void *data, size_t size_bytes);
/* The same without special instructions, for comparison. */
uint32_t proto_crc32c_portable(uint32_t crc, const void *data, size_t size_bytes);

/* 64-bit hash of the message tables: equal for builds that encode alike. */
uint64_t proto_schema_hash(void);

/* ---- one record as bytes, shared by segments and rings --------------------------------------- */

/* Size of the encoded record, padding included; a multiple of 8.  Saturates above
 * PROTO_LOG_RECORD_SIZE_MAX. */
size_t proto_log_record_size_bytes(const proto_log_record_t *record);

/* Writes the record, size as above.  With crc false the check is left 0 (rings). */
void proto_log_record_encode(const proto_log_record_t *record, bool crc, uint8_t *out);

/* Reads one record at the begin of `bytes`.  STATUS_AGAIN if the bytes end within it, else
 * STATUS_ERR_MALFORMED if it is damaged; *out and *size_bytes only on STATUS_OK. */
MUST_CHECK proto_status_t proto_log_record_decode(proto_bytes_t bytes, bool crc,
                                                  proto_log_record_t *out, size_t *size_bytes);

/* For options.sequence_before. */
#define PROTO_LOG_SEQUENCE_ANY UINT64_MAX

/* ---- writer ---------------------------------------------------------------------------------- */

typedef struct proto_log_writer proto_log_writer_t;

typedef struct {
    const char *directory; /* exists; files are made 0600 in it */
    const char *name;      /* of the actor */
    proto_role_t role;
    uint64_t epoch;
    const char *build; /* may be NULL */
    const char *model; /* fingerprint; may be NULL */
    uint64_t config_digest;
    uint64_t segment_size_max;   /* bytes; 0 = 256 MiB */
    uint64_t segment_age_max_ns; /* 0 = 10 minutes */
    uint32_t segment_count_max;  /* older ones of this writer are deleted; 0 = keep all */
    const proto_clock_t *clock;  /* asked only when a segment is made; NULL = the machine's */
    uint64_t sequence_before; /* the last that is in the folder already (proto_log_last_sequence);
                                 PROTO_LOG_SEQUENCE_ANY: the first record begins the log */
    bool no_index;            /* write no sidecar (proto_log_index.h) */
    bool is_simulated;        /* names no host and draws no id: the same records, the same bytes */
} proto_log_options_t;

/* Makes a writer; the first segment comes with the first record.  Files are called
 * NAME.EPOCH.NNNNNN.alog, the epoch in 16 hexadecimal digits.  STATUS_ERR_IO if the directory
 * cannot be opened.  The caller owns *out_p. */
MUST_CHECK proto_status_t proto_log_writer_open(const proto_log_options_t *options,
                                                proto_log_writer_t **out_p);

/* Flushes and closes.  Sets *self_p to NULL. */
void proto_log_writer_close(proto_log_writer_t **self_p);

/* Adds a record.  Flushes when 64 KiB wait or the oldest record waits for 10 ms.  Where the
 * sequence jumps, whatever the reason, a DROP record with the number of missing ones is put in
 * first. STATUS_ERR_IO (disk full, ...): what waited is lost and counted, the file is cut back to
 * whole records, the DROP record follows as soon as writing works again; calling on is right.
 * STATUS_ERR_TOO_LARGE: this record is refused and counted.  STATUS_ERR_INVALID: its sequence does
 * not rise (0 = not numbered, never checked); refused, not counted. */
MUST_CHECK proto_status_t proto_log_append(proto_log_writer_t *self,
                                           const proto_log_record_t *record, uint64_t now_ns);

/* Flushes if the oldest waiting record is 10 ms old; for the caller's timer. */
MUST_CHECK proto_status_t proto_log_writer_poll(proto_log_writer_t *self, uint64_t now_ns);

/* Writes out what waits. */
MUST_CHECK proto_status_t proto_log_writer_flush(proto_log_writer_t *self);

/* Flushes and asks the disk to keep it: survives a loss of power. */
MUST_CHECK proto_status_t proto_log_writer_sync(proto_log_writer_t *self);

typedef struct {
    uint64_t records;  /* written or waiting */
    uint64_t bytes;    /* written, headers included */
    uint64_t dropped;  /* records lost to errors */
    uint64_t segments; /* made */
    int last_errno;    /* of the last failed call; 0 = none */
} proto_log_counts_t;

/* The last sequence that NAME's segments of `epoch` in the folder hold, 0 if none: what a writer
 * that goes on after a killed one must not write again.  A tail that the killed one left torn is
 * cut off.  STATUS_ERR_IO if the folder cannot be read. */
MUST_CHECK proto_status_t proto_log_last_sequence(const char *directory, const char *name,
                                                  uint64_t epoch, uint64_t *out);

void proto_log_writer_counts(const proto_log_writer_t *self, proto_log_counts_t *out);

/* ---- reader ---------------------------------------------------------------------------------- */

typedef struct proto_log_reader proto_log_reader_t;

/* Opens a segment and checks its header.  STATUS_ERR_IO if it cannot be read, STATUS_ERR_MALFORMED
 * if it is none or its header is damaged, STATUS_ERR_VERSION for a format of another version.
 * *error (may be NULL) on failure only.  The caller owns *out_p. */
MUST_CHECK proto_status_t proto_log_reader_open(const char *path, proto_log_reader_t **out_p,
                                                proto_error_t *error);
void proto_log_reader_close(proto_log_reader_t **self_p);

/* The header; lent. */
const proto_log_header_t *proto_log_reader_header(const proto_log_reader_t *self);

/* The next record.  STATUS_END at a clean end; STATUS_AGAIN if the file ends within a record (a
 * torn tail, or it is being written: a later call tries again, and END may turn into OK too);
 * STATUS_ERR_MALFORMED for damage, and for a sequence that does not rise: the reader stays there.
 * *out only on STATUS_OK. */
MUST_CHECK proto_status_t proto_log_reader_next(proto_log_reader_t *self, proto_log_record_t *out);

/* Why the last call gave STATUS_ERR_MALFORMED or STATUS_AGAIN; lent, "" if it did not. */
const char *proto_log_reader_why(const proto_log_reader_t *self);

/* After STATUS_ERR_MALFORMED or STATUS_AGAIN: looks for the next good record (at multiples of 8
 * bytes; its length, CRC and sequence must hold) and stands there.  *begin_offset and *end_offset
 * get the bytes passed over, *records_lost how many records they held by the sequence numbers.
 * STATUS_END if there is none: the reader stays where it was, *end_offset is the file's end. */
MUST_CHECK proto_status_t proto_log_reader_resync(proto_log_reader_t *self, uint64_t *begin_offset,
                                                  uint64_t *end_offset, uint64_t *records_lost);

/* With `skip`, proto_log_reader_next() goes on after damage by itself: in its place it gives a DROP
 * record (proto_log_record_t.is_made set: it is not in the file) with the count and the byte range
 * as text.  Damage that no good record follows gives STATUS_AGAIN, as a torn tail does. */
void proto_log_reader_set_skip(proto_log_reader_t *self, bool skip);

/* Goes to `offset`, which must be where a record begins (else the next call says MALFORMED); the
 * order of sequences is judged anew from there. */
void proto_log_reader_seek(proto_log_reader_t *self, uint64_t offset);

/* Bytes of the valid prefix: where the next record begins, or where the damage is. */
uint64_t proto_log_reader_offset(const proto_log_reader_t *self);

/* Size of the file as last seen. */
uint64_t proto_log_reader_size(const proto_log_reader_t *self);

#endif
