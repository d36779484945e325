/* log_set_private.h - the set from within: log_set.c reads, log_set_find.c finds; private to
 * log/.  One thread. */
#ifndef LOG_SET_PRIVATE_H
#define LOG_SET_PRIVATE_H

#include <sys/types.h>

#include "log_set.h"

typedef struct {
    char *path; /* ours */
    dev_t device;
    ino_t inode; /* with the device: the same file under two names is read once */
    bool is_bad; /* noted as damage: never asked again */
    bool is_noted;
    proto_log_header_t header;
} log_segment_t;

typedef struct {
    log_segment_t **segments; /* in order of their index; ours */
    uint32_t segment_count;
    uint32_t at;                /* segment that is read */
    proto_log_reader_t *reader; /* NULL: not opened, or all was read */
    uint64_t record_count;      /* of the segment that is read */
    bool is_sought;             /*   of its records behind the place that was sought */
    bool has_record;            /* `item` waits to be given */
    log_set_item_t item;
    /* Cuts of one log have segments with the same index: each then is a stream of its own, a lane,
     * and the first of them leads.  What follows is the leader's. */
    uint32_t lead; /* index of the leader; its own if there are no others */
    bool has_lanes;
    uint64_t last_sequence; /* given last, by any of the lanes */
    bool last_is_drop;
} log_stream_t;

/* Clock pair of one boot of one host: what makes times of several boots comparable. */
typedef struct {
    char boot[PROTO_LOG_HOST_SIZE_BYTES];
    uint64_t offset_ns; /* real minus monotonic, modulo 2^64 */
} log_boot_t;

struct log_set {
    char **roots; /* as given, to look again; ours */
    uint32_t root_count;
    char *actor; /* ours; NULL = all */
    uint64_t epoch;
    bool follow;
    bool skip_damage;
    uint64_t from_sequence, from_time_ns;
    log_segment_t **segments; /* all, in order of finding; ours */
    uint32_t segment_count;
    log_stream_t *streams; /* LOG_SET_STREAM_COUNT_MAX */
    uint32_t stream_count;
    log_boot_t *boots; /* one for each stream at most */
    uint32_t boot_count;
    log_damage_t *damages; /* one for each segment at most */
    uint32_t damage_count;
    int32_t current; /* stream whose item was given last; -1 = none */
};

/* Says why, with the end of the path; returns the status. */
proto_status_t log_set_refuse(proto_error_t *error, proto_status_t status, const char *path,
                              const char *why);

/* Notes what is wrong with a segment, once. */
void log_set_note_damage(log_set_t *self, log_segment_t *segment, proto_status_t status,
                         uint64_t offset, uint64_t record_count, const char *detail);

/* Adds the segments that the roots hold and that are not known yet. */
MUST_CHECK proto_status_t log_set_look(log_set_t *self, proto_error_t *error);

#endif
