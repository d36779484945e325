/* log_maker.h - a small node's log, made by hand: gateway, scheduler and executor of one boot, some
 * requests one after the other or interleaved, every number known.  For the tests of log/. */
#ifndef LOG_MAKER_H
#define LOG_MAKER_H

#include "proto_log.h"

enum {
    MAKER_TOKEN_BASE = 1000000, /* prompt token i of request r is BASE + 1000 * (r % 1000) + i */
    MAKER_ANSWER_BASE = 2000000,
    MAKER_PROMPT_LEN = 5,
    MAKER_ANSWER_LEN = 3,
};

#define MAKER_EPOCH UINT64_C(0x77)
#define MAKER_BEGIN_NS UINT64_C(5000000000)

typedef struct {
    const char *directory; /* exists */
    uint32_t request_count;
    uint64_t request_base;  /* ids are request_base + 1, ... */
    uint64_t epoch;         /* 0 = MAKER_EPOCH */
    uint32_t wrong_request; /* the scheduler's FINISHED of this one (from 1) says 1 token less */
    bool reversed;          /* requests come in reverse order */
    uint64_t segment_size_max;
    const proto_clock_t *clock; /* for the headers; NULL = the machine's */
} maker_log_t;

/* Writes the log; aborts if that fails.  Returns the number of records. */
uint64_t maker_log_write(const maker_log_t *options);

/* The path of the first segment of an actor ("scheduler") in the folder. */
void maker_log_path(const maker_log_t *options, const char *actor, char *out, size_t capacity);

/* A new folder below TMPDIR, /dev/shm or /tmp; the caller removes it with maker_remove(). */
void maker_folder(char *out, size_t capacity);
void maker_remove(const char *directory);

/* Whole file into memory; the caller frees it. */
uint8_t *maker_read(const char *path, size_t *size_bytes);
void maker_write(const char *path, const uint8_t *data, size_t size_bytes);

#endif
