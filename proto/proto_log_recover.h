/* proto_log_recover.h - what can be said about a damaged segment, and what can be saved of it.
 *
 * Owns the walk over a whole segment (verify), the cut of a torn tail and the copy around damage
 * (recover), and the writing of one segment file by tools (copy).  Reads no message.  The segment
 * is hostile input.  One thread for each call. */
#ifndef PROTO_LOG_RECOVER_H
#define PROTO_LOG_RECOVER_H

#include "proto_log_index.h"

enum { PROTO_LOG_DAMAGE_COUNT_MAX = 32 };

/* A place where records are damaged. */
typedef struct {
    uint64_t begin_offset;
    uint64_t end_offset;    /* of the next good record, or the file's end */
    uint64_t records_lost;  /* by the sequence numbers around it; 0 at the end: nobody knows */
    uint64_t next_sequence; /* of the good record after it; 0 = none follows */
    char why[64];           /* "check (CRC)", "sequence 9 after 12", ... */
} proto_log_damage_t;

typedef struct {
    uint64_t size_bytes; /* of the file */
    uint64_t records;    /* good ones */
    uint64_t sequence_first;
    uint64_t sequence_last;
    uint64_t time_first_ns;
    uint64_t time_last_ns;
    uint64_t kind_counts[PROTO_LOG_KIND_COUNT]; /* by proto_log_kind_t; 0 = kinds not known */
    uint64_t redacted;                          /* records with PROTO_LOG_FLAG_REDACTED */
    uint64_t cut;                               /* records with PROTO_LOG_FLAG_CUT */
    uint64_t gaps;         /* places where the sequence jumps, with or without a DROP record */
    uint64_t missing;      /* records missing in them */
    uint64_t dropped;      /* of these, announced by DROP records */
    uint64_t torn_bytes;   /* a last record that is not whole, if nothing else is wrong there */
    uint64_t damage_count; /* places; the first ones are in damages[] */
    uint64_t damage_bytes;
    proto_log_damage_t damages[PROTO_LOG_DAMAGE_COUNT_MAX];
    proto_log_index_state_t index_state;
} proto_log_verdict_t;

/* Walks the whole segment, over damage too.  STATUS_OK whatever was found (look into *out); else as
 * proto_log_reader_open(). */
MUST_CHECK proto_status_t proto_log_verify(const char *path, proto_log_verdict_t *out,
                                           proto_error_t *error);

/* Makes a segment out of what is good in `path`: a torn tail is cut off; for damage in the middle a
 * DROP record with the number of lost records takes its place.  All else stays byte for byte.
 * out_path NULL: in place - a torn tail is cut off the file itself; with damage in the middle the
 * old file is kept as PATH.damaged and the new one takes its name.  The sidecar is rebuilt.
 * *out (may be NULL) gets what was found.  Nothing is changed if nothing is wrong and out_path is
 * NULL.  STATUS_ERR_IO; STATUS_ERR_MALFORMED if the header itself is damaged: nothing is known
 * then. */
MUST_CHECK proto_status_t proto_log_recover(const char *path, const char *out_path,
                                            proto_log_verdict_t *out, proto_error_t *error);

/* ---- a segment written by a tool ------------------------------------------------------------- */

typedef struct proto_log_copy proto_log_copy_t;

/* Begins a segment at `path` (0600) with `header` as it is; it is written beside and gets its name
 * at the end, so nobody sees half of it and the source may be the same file.  For a copy that
 * differs from its source set header->segment_id anew (proto_log_new_segment_id). */
MUST_CHECK proto_status_t proto_log_copy_open(const char *path, const proto_log_header_t *header,
                                              proto_log_copy_t **out_p, proto_error_t *error);
/* Adds a record just as it is: sequence, time, flags.  STATUS_ERR_IO, STATUS_ERR_TOO_LARGE. */
MUST_CHECK proto_status_t proto_log_copy_append(proto_log_copy_t *self,
                                                const proto_log_record_t *record);
/* Syncs, renames into place, writes the sidecar if the name ends in .alog.  On failure the file is
 * gone.  Nulls *self_p. */
MUST_CHECK proto_status_t proto_log_copy_commit(proto_log_copy_t **self_p, proto_error_t *error);
/* Removes what was written; does nothing if it is NULL already. */
void proto_log_copy_abort(proto_log_copy_t **self_p);

/* 16 random bytes. */
void proto_log_new_segment_id(uint8_t out[16]);

#endif
