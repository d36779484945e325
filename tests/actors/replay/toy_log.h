/* toy_log.h - logs as a shell would have recorded them, of a toy core. */
#ifndef TOY_LOG_H
#define TOY_LOG_H

#include "proto_log.h"

enum { TOY_EPOCH = 0x1234 };

typedef struct {
    const char *folder;         /* exists */
    uint32_t input_count;       /* inputs to record */
    uint32_t digest_interval;   /* inputs between two digests; 0 = 8 */
    uint32_t snapshot_interval; /* inputs between two snapshots; 0 = 64 */
    uint32_t random;            /* seed of the inputs */
    uint64_t segment_size_max;  /* 0 = one segment */
    bool no_first_snapshot;
    bool is_redacted;         /* private content is zeros, records say so */
    proto_role_t role;        /* 0 = SCHEDULER */
    uint64_t drop_at;         /* leave out this record (sequence); 0 = none */
    uint32_t drop_count;      /* and so many in all; 0 = 1 */
    bool says_dropped;        /* write a DROP record there */
    uint64_t epoch;           /* 0 = TOY_EPOCH */
    uint64_t stop_outputs_at; /* the last input's outputs end after so many; 0 = all */
} toy_log_options_t;

/* Records a run of a right toy; path[4096] gets the first segment's. */
void toy_log_write(const toy_log_options_t *options, char *path);

/* The record sequence of input `number`, as just written. */
uint64_t toy_log_sequence_of(uint64_t number);
/* Records written. */
uint64_t toy_log_record_count(void);

/* A fresh folder below /tmp, and the end of it and of the files in it. */
void toy_folder_make(char path[64]);
void toy_folder_remove(const char *path);

#endif
