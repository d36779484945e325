/* log_set.h - several segments read as one log: a folder, or files of several actors and
 * incarnations, merged in order of time.
 *
 * Owns the order and the account of damage; interprets no message.  Files are hostile.  Within one
 * stream (one incarnation of one actor) records always come in the order in which they were
 * written, whatever their times say; streams are merged by monotonic time, and those of different
 * boots by the clock pairs of their headers.  Segments of one incarnation with the same index are
 * cuts of one log: they are merged by sequence, and what several of them hold comes once.  Holds
 * one open reader (256 KiB and the largest record) for each stream that is not at its end, and a
 * header for each segment: memory does not grow with the size of the log.  One thread. */
#ifndef LOG_SET_H
#define LOG_SET_H

#include "proto_log.h"

enum {
    LOG_SET_SEGMENT_COUNT_MAX = 16384,
    LOG_SET_STREAM_COUNT_MAX = 256, /* incarnations of actors */
};

typedef struct log_set log_set_t;

typedef struct {
    const char *actor; /* only this actor, by its name or the name of its role; NULL = all */
    uint64_t epoch;    /* only this incarnation; 0 = all */
    /* Pass over records of each stream before this sequence or monotonic time, where headers and
     * sidecars say how; others before it may still come.  0 = none. */
    uint64_t from_sequence;
    uint64_t from_time_ns;
    bool skip_damage; /* go on behind damage within a segment: in its place comes a DROP record with
                         is_made set; else the segment ends there */
    bool follow;      /* the end of the last segment of a stream is no damage, and no end for good:
                         see log_set_refresh() */
} log_set_options_t;

/* One incarnation of one actor, or one of several cuts of its log; items have the number of the
 * first of these.  Lent; `header` is that of its first segment. */
typedef struct {
    const proto_log_header_t *header;
    uint32_t segment_count;
} log_set_stream_t;

/* One record and where it was found.  All of it lives until the next call of log_set_next(). */
typedef struct {
    proto_log_record_t record;
    const proto_log_header_t *header; /* of its segment */
    const char *path;                 /* of its segment */
    uint64_t offset;                  /* of the record within the file */
    uint64_t realtime_ns;             /* record.time_ns as time since 1970 */
    uint32_t stream;                  /* index, from 0 */
} log_set_item_t;

/* What is wrong with one segment. */
typedef struct {
    const char *path;
    proto_status_t status; /* AGAIN: ends within a record; ERR_MALFORMED: damaged there; else it
                              could not be read at all */
    uint64_t offset;       /* bytes of the valid prefix; 0 = the header is not valid */
    uint64_t record_count; /* records in that prefix */
    char detail[160];      /* a sentence */
} log_damage_t;

/* Collects the segments (*.alog) of folders, and files of any name, reads their headers and sorts
 * them into streams.  A segment that cannot be read is damage, not a failure.  STATUS_ERR_NOT_FOUND
 * if a path does not exist, a folder holds no segment or no segment belongs to options->actor;
 * STATUS_ERR_TOO_LARGE beyond the limits above; the status of the damage if no segment at all can
 * be read.  `options` may be NULL.  *error (may be NULL) on failure.  The caller owns *out_p. */
MUST_CHECK proto_status_t log_set_open(const char *const *paths, uint32_t path_count,
                                       const log_set_options_t *options, log_set_t **out_p,
                                       proto_error_t *error);
void log_set_close(log_set_t **self_p);

/* The next record of all streams.  Damage ends a segment: its valid prefix is given, the damage is
 * noted, and reading goes on with the stream's next segment (a reader that cares sees the gap in
 * record.sequence).  STATUS_END when nothing is left, for now if following; STATUS_ERR_NO_MEMORY.
 * *out only on STATUS_OK. */
MUST_CHECK proto_status_t log_set_next(log_set_t *self, log_set_item_t *out);

/* Begins again with the first record.  Damage stays noted and is not noted twice. */
MUST_CHECK proto_status_t log_set_rewind(log_set_t *self);

/* Looks for segments that came into the folders since; for following.  Never waits. */
MUST_CHECK proto_status_t log_set_refresh(log_set_t *self);

uint32_t log_set_stream_count(const log_set_t *self);
log_set_stream_t log_set_stream(const log_set_t *self, uint32_t index);

/* Segments of one stream, in order: path and header (lent). */
const char *log_set_segment_path(const log_set_t *self, uint32_t stream, uint32_t index);
const proto_log_header_t *log_set_segment_header(const log_set_t *self, uint32_t stream,
                                                 uint32_t index);

/* Whatever is not [a-z0-9-] becomes '-': names of a hostile header go to terminals and into file
 * names.  The headers of a set are like that already. */
void log_set_make_name_plain(char name[PROTO_NAME_SIZE_BYTES]);

/* Damage seen so far: that of headers at once, that of records when they were passed. */
uint32_t log_set_damage_count(const log_set_t *self);
const log_damage_t *log_set_damage(const log_set_t *self, uint32_t index);

#endif
