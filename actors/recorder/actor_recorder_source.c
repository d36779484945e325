#include "actor_recorder_source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actor_log.h"
#include "proto_clock.h"
#include "proto_log.h"
#include "proto_ring.h"

enum {
    ROUND_RECORDS_MAX = 4096, /* of one ring before the next has its turn */
};

struct actor_recorder_source {
    const char *actor_name; /* lent */
    const char *log_dir;    /* lent */
    proto_ring_reader_t *reader;
    proto_log_writer_t *writer;
    uint64_t lost;      /* as told last */
    bool is_damaged;    /* the ring */
    bool is_failing;    /* the disk refuses; said once */
    uint64_t failed_at; /* bytes written when it began to */
};

static uint64_t
now(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

/* ---- begin and end --------------------------------------------------------------------------- */

proto_status_t
actor_recorder_open_folder(const char *path)
{
    struct stat info;
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        actor_log(ACTOR_LOG_ERROR, "recorder.folder", 0, NULL,
                  "cannot make the log folder '%s': %s; choose another one", path, strerror(errno));
        return STATUS_ERR_CONFIG;
    }
    /* Prompts are in it. */
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid() ||
        (info.st_mode & 077) != 0) {
        actor_log(ACTOR_LOG_ERROR, "recorder.folder", 0, NULL,
                  "the log folder '%s' must be a folder of this user with mode 0700: chmod 700 it",
                  path);
        return STATUS_ERR_CONFIG;
    }
    if (access(path, W_OK | X_OK) != 0) {
        actor_log(ACTOR_LOG_ERROR, "recorder.folder", 0, NULL,
                  "the log folder '%s' is not writable: %s", path, strerror(errno));
        return STATUS_ERR_CONFIG;
    }
    return STATUS_OK;
}

proto_status_t
actor_recorder_source_open(const actor_recorder_source_options_t *options,
                           actor_recorder_source_t **out_p)
{
    actor_recorder_source_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->actor_name = options->actor_name;
    self->log_dir = options->log_dir;
    proto_status_t status = proto_ring_reader_open(options->fd, &self->reader);
    if (status != STATUS_OK) {
        actor_log(ACTOR_LOG_ERROR, "recorder.ring", 0, NULL,
                  "descriptor %d is no record ring of %s", options->fd, options->actor_name);
        goto err;
    }
    const proto_ring_owner_t *owner = proto_ring_reader_owner(self->reader);
    proto_log_options_t log_options = {.directory = options->log_dir,
                                       .name = owner->name,
                                       .role = owner->role,
                                       .epoch = owner->epoch,
                                       .build = options->build};
    status = proto_log_last_sequence(options->log_dir, owner->name, owner->epoch,
                                     &log_options.sequence_before);
    if (status == STATUS_OK) {
        status = proto_log_writer_open(&log_options, &self->writer);
    }
    if (status != STATUS_OK) {
        actor_log(ACTOR_LOG_ERROR, "recorder.folder", 0, NULL,
                  "cannot write in the log folder '%s': %s", options->log_dir,
                  proto_status_text(status));
        goto err;
    }
    proto_ring_reader_resume(self->reader, log_options.sequence_before);
    *out_p = self;
    return STATUS_OK;

err:
    actor_recorder_source_close(&self);
    return status;
}

void
actor_recorder_source_close(actor_recorder_source_t **self_p)
{
    actor_recorder_source_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    if (self->writer != NULL) {
        proto_log_writer_close(&self->writer);
    }
    if (self->reader != NULL) {
        proto_ring_reader_close(&self->reader);
    }
    free(self);
    *self_p = NULL;
}

/* ---- ring to segment ------------------------------------------------------------------------- */

/* Says once that the disk refuses, and once that it takes records again. */
static void
judge(actor_recorder_source_t *self, proto_status_t status)
{
    proto_log_counts_t counts;
    proto_log_writer_counts(self->writer, &counts);
    if (status != STATUS_OK && !self->is_failing) {
        self->is_failing = true;
        self->failed_at = counts.bytes;
        const char *why =
            status == STATUS_ERR_IO ? strerror(counts.last_errno) : proto_status_text(status);
        actor_log(ACTOR_LOG_ERROR, "recorder.write", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("ring", self->actor_name),
                                   actor_log_str("folder", self->log_dir),
                                   actor_log_str("error", why)),
                  "records of %s are lost: %s", self->actor_name, why);
    } else if (self->is_failing && counts.bytes > self->failed_at) {
        self->is_failing = false;
        actor_log(ACTOR_LOG_INFO, "recorder.healed", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("ring", self->actor_name),
                                   actor_log_u64("records", counts.dropped)),
                  "records of %s are written again; a DROP record tells how many are missing",
                  self->actor_name);
    }
}

/* What the ring overwrote: the writer sees the gap in the numbers and puts a DROP record there. */
static void
tell_lost(actor_recorder_source_t *self)
{
    uint64_t lost = proto_ring_reader_lost(self->reader);
    if (lost != self->lost) {
        actor_log(ACTOR_LOG_WARN, "recorder.behind", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("ring", self->actor_name),
                                   actor_log_u64("records", lost - self->lost)),
                  "too slow for %s: records are missing", self->actor_name);
        self->lost = lost;
    }
}

bool
actor_recorder_source_drain(actor_recorder_source_t *self)
{
    uint64_t now_ns = now();
    proto_log_record_t record;
    proto_status_t status = STATUS_AGAIN;
    uint32_t count = 0;
    while (!self->is_damaged && count < ROUND_RECORDS_MAX) {
        status = proto_ring_reader_next(self->reader, &record);
        if (status != STATUS_OK) {
            break;
        }
        count++;
        tell_lost(self);
        judge(self, proto_log_append(self->writer, &record, now_ns));
        if (record.kind == PROTO_LOG_FAULT) {
            judge(self, proto_log_writer_sync(self->writer));
        }
    }
    if (status == STATUS_ERR_MALFORMED) {
        self->is_damaged = true;
        actor_log(ACTOR_LOG_ERROR, "recorder.ring", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("ring", self->actor_name)),
                  "the ring of %s is damaged: nothing more is recorded from it", self->actor_name);
    }
    /* At once: the next look is the 10 ms after which a record must be in the file. */
    proto_status_t flushed = proto_log_writer_flush(self->writer);
    judge(self, flushed);
    if (flushed == STATUS_OK) {
        /* Only what is in the file may be overwritten: a kill of ours must not lose it either. */
        proto_ring_reader_keep(self->reader);
    }
    return count == ROUND_RECORDS_MAX;
}

void
actor_recorder_source_sync(actor_recorder_source_t *self)
{
    judge(self, proto_log_writer_sync(self->writer));
}

void
actor_recorder_source_counts(const actor_recorder_source_t *self, actor_recorder_counts_t *out)
{
    proto_log_counts_t counts;
    proto_log_writer_counts(self->writer, &counts);
    *out = (actor_recorder_counts_t){.written = counts.records,
                                     .lost = self->lost,
                                     .refused = counts.dropped};
}
