/* actor_recorder.c - a shell without links that looks at the rings between its rounds.  Rings give
 * no wake-up, because their producers make no system call: they are looked at every few ms. */
#include "actor_recorder.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "actor_exit.h"
#include "actor_log.h"
#include "actor_shell.h"
#include "proto_clock.h"
#include "proto_log.h"
#include "proto_require.h"
#include "proto_ring.h"

#define MS_NS UINT64_C(1000000)

enum {
    LOOK_MS = 4,              /* between two looks; with the log's own 10 ms this is the loss */
    IDLE_MS = 100,            /* in ring mode there is nothing to do but to be there */
    ROUND_RECORDS_MAX = 4096, /* of one ring before the next has its turn */
    SYNC_MS = 1000,           /* a loss of power costs at most this */
    FD_COUNT_MAX = 8,
};

typedef struct {
    const actor_recorder_ring_t *ring;
    proto_ring_reader_t *reader;
    proto_log_writer_t *writer;
    uint64_t lost; /* records that the ring overwrote before they were read */
    bool damaged;
    bool failing; /* the disk refuses; said once */
} source_t;

typedef struct {
    const actor_recorder_options_t *options;
    source_t sources[ACTOR_RECORDER_RING_COUNT_MAX];
    uint32_t source_count;
    uint64_t record_count;
    uint64_t refused_count; /* records that could not be written */
    uint64_t sync_next_ns;
} recorder_t;

static uint64_t
now(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

/* ---- the core: there is nothing to decide ---------------------------------------------------- */

static void
core_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    (void)core;
    (void)input;
    (void)outbox;
}

static void
core_stats(const void *core, proto_stats_t *out)
{
    const recorder_t *self = core;
    out->steps = self->record_count;
    out->record_dropped = self->refused_count;
    for (uint32_t index = 0; index < self->source_count; index++) {
        out->record_dropped += self->sources[index].lost;
    }
}

static const actor_core_ops_t recorder_ops = {.name = "recorder",
                                              .role = PROTO_ROLE_RECORDER,
                                              .outbox_size_bytes = 1024,
                                              .outbox_count_max = 1,
                                              .step = core_step,
                                              .stats = core_stats};

/* ---- rings to segments ----------------------------------------------------------------------- */

static void
write_record(recorder_t *self, source_t *source, const proto_log_record_t *record, uint64_t now_ns)
{
    proto_status_t status = proto_log_append(source->writer, record, now_ns);
    if (status == STATUS_OK) {
        self->record_count++;
        source->failing = false;
        return;
    }
    self->refused_count++;
    if (!source->failing) {
        source->failing = true;
        proto_log_counts_t counts;
        proto_log_writer_counts(source->writer, &counts);
        actor_log(ACTOR_LOG_ERROR, "recorder.write", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("ring", source->ring->actor_name),
                                   actor_log_str("folder", self->options->log_dir),
                                   actor_log_str("error", strerror(counts.last_errno))),
                  "records of %s are lost: %s", source->ring->actor_name,
                  status == STATUS_ERR_IO ? strerror(counts.last_errno)
                                          : proto_status_text(status));
    }
}

/* A gap that is written down: the reader of the log must not take it for silence. */
static void
note_lost(recorder_t *self, source_t *source, uint64_t now_ns)
{
    uint64_t lost = proto_ring_reader_lost(source->reader);
    if (lost == source->lost) {
        return;
    }
    uint64_t missing = lost - source->lost;
    source->lost = lost;
    uint8_t bytes[8];
    for (uint32_t index = 0; index < 8; index++) {
        bytes[index] = (uint8_t)(missing >> (8 * index));
    }
    proto_log_record_t record = {.kind = PROTO_LOG_DROP,
                                 .time_ns = now_ns,
                                 .part_count = 1,
                                 .parts = {{bytes, sizeof bytes}}};
    write_record(self, source, &record, now_ns);
    actor_log(ACTOR_LOG_WARN, "recorder.behind", 0,
              ACTOR_LOG_FIELDS(actor_log_str("ring", source->ring->actor_name),
                               actor_log_u64("records", missing)),
              "too slow for %s: records are missing", source->ring->actor_name);
}

/* Copies what the ring holds, at most ROUND_RECORDS_MAX; true if more may be there. */
static bool
drain(recorder_t *self, source_t *source)
{
    if (source->writer == NULL || source->damaged) {
        return false;
    }
    uint64_t now_ns = now();
    proto_log_record_t record;
    for (uint32_t count = 0; count < ROUND_RECORDS_MAX; count++) {
        proto_status_t status = proto_ring_reader_next(source->reader, &record);
        if (status == STATUS_AGAIN) {
            note_lost(self, source, now_ns);
            if (proto_log_writer_poll(source->writer, now_ns) != STATUS_OK) {
                self->refused_count++;
            }
            return false;
        }
        if (status != STATUS_OK) {
            source->damaged = true;
            actor_log(ACTOR_LOG_ERROR, "recorder.ring", 0,
                      ACTOR_LOG_FIELDS(actor_log_str("ring", source->ring->actor_name)),
                      "the ring of %s is damaged: nothing more is recorded from it",
                      source->ring->actor_name);
            return false;
        }
        note_lost(self, source, now_ns);
        write_record(self, source, &record, now_ns);
    }
    return true;
}

static bool
drain_all(recorder_t *self)
{
    bool more = false;
    for (uint32_t index = 0; index < self->source_count; index++) {
        more = drain(self, &self->sources[index]) || more;
    }
    uint64_t now_ns = now();
    if (now_ns >= self->sync_next_ns) {
        self->sync_next_ns = now_ns + SYNC_MS * MS_NS;
        for (uint32_t index = 0; index < self->source_count; index++) {
            source_t *source = &self->sources[index];
            if (source->writer != NULL && proto_log_writer_sync(source->writer) != STATUS_OK) {
                self->refused_count++;
            }
        }
    }
    return more;
}

/* ---- begin and end --------------------------------------------------------------------------- */

static int
open_folder(const char *path)
{
    struct stat info;
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        actor_log(ACTOR_LOG_ERROR, "recorder.folder", 0, NULL,
                  "cannot make the log folder '%s': %s; choose another one", path, strerror(errno));
        return ACTOR_EXIT_CONFIG;
    }
    /* Prompts are in it. */
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid() ||
        (info.st_mode & 077) != 0) {
        actor_log(ACTOR_LOG_ERROR, "recorder.folder", 0, NULL,
                  "the log folder '%s' must be a folder of this user with mode 0700: chmod 700 it",
                  path);
        return ACTOR_EXIT_CONFIG;
    }
    if (access(path, W_OK | X_OK) != 0) {
        actor_log(ACTOR_LOG_ERROR, "recorder.folder", 0, NULL,
                  "the log folder '%s' is not writable: %s", path, strerror(errno));
        return ACTOR_EXIT_CONFIG;
    }
    return ACTOR_EXIT_OK;
}

static int
open_sources(recorder_t *self)
{
    const actor_recorder_options_t *options = self->options;
    if (options->log_dir == NULL) {
        return ACTOR_EXIT_OK; /* rings stay where they are */
    }
    int code = open_folder(options->log_dir);
    if (code != ACTOR_EXIT_OK) {
        return code;
    }
    for (uint32_t index = 0; index < options->ring_count; index++) {
        source_t *source = &self->sources[self->source_count++];
        source->ring = &options->rings[index];
        if (proto_ring_reader_open(source->ring->fd, &source->reader) != STATUS_OK) {
            actor_log(ACTOR_LOG_ERROR, "recorder.ring", 0, NULL,
                      "descriptor %d is no record ring of %s", source->ring->fd,
                      source->ring->actor_name);
            return ACTOR_EXIT_INTERNAL;
        }
        const proto_ring_owner_t *owner = proto_ring_reader_owner(source->reader);
        proto_log_options_t log_options = {.directory = options->log_dir,
                                           .name = owner->name,
                                           .role = owner->role,
                                           .epoch = owner->epoch};
        if (proto_log_writer_open(&log_options, &source->writer) != STATUS_OK) {
            actor_log(ACTOR_LOG_ERROR, "recorder.folder", 0, NULL,
                      "cannot write in the log folder '%s'", options->log_dir);
            return ACTOR_EXIT_CONFIG;
        }
    }
    return ACTOR_EXIT_OK;
}

static void
close_sources(recorder_t *self)
{
    for (uint32_t index = 0; index < self->source_count; index++) {
        source_t *source = &self->sources[index];
        if (source->writer != NULL) {
            proto_log_writer_close(&source->writer);
        }
        if (source->reader != NULL) {
            proto_ring_reader_close(&source->reader);
        }
    }
}

static bool
stop_asked(const recorder_t *self)
{
    return self->options->stop != NULL && atomic_load(self->options->stop) != 0;
}

static void
sleep_a_little(const actor_shell_t *shell, uint64_t wait_ns)
{
    int fds[FD_COUNT_MAX];
    struct pollfd items[FD_COUNT_MAX];
    uint32_t count = actor_shell_fds(shell, fds, FD_COUNT_MAX);
    for (uint32_t index = 0; index < count; index++) {
        items[index] = (struct pollfd){.fd = fds[index], .events = POLLIN};
    }
    struct timespec wait = {0, (long)wait_ns};
    (void)ppoll(items, count, &wait, NULL);
}

static int
run(recorder_t *self, actor_shell_t *shell)
{
    uint64_t look_ns = (self->source_count > 0 ? LOOK_MS : IDLE_MS) * MS_NS;
    proto_status_t status = STATUS_OK;
    while (status == STATUS_OK && !stop_asked(self)) {
        uint64_t wait_ns = 0;
        status = actor_shell_service(shell, &wait_ns);
        bool more = drain_all(self);
        if (status == STATUS_OK && !more) {
            sleep_a_little(shell, wait_ns < look_ns ? wait_ns : look_ns);
        }
    }
    /* The others ended before us: what they left is all there will be. */
    while (drain_all(self)) {
    }
    return status == STATUS_OK || status == STATUS_END ? ACTOR_EXIT_OK : ACTOR_EXIT_INTERNAL;
}

int
actor_recorder_run(const actor_recorder_options_t *options)
{
    require(options->ring_count <= ACTOR_RECORDER_RING_COUNT_MAX);

    int code = ACTOR_EXIT_INTERNAL;
    actor_shell_t *shell = NULL;
    recorder_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return code;
    }
    self->options = options;
    actor_shell_options_t shell_options = {.name = options->name,
                                           .epoch = options->epoch,
                                           .ops = &recorder_ops,
                                           .core = self,
                                           .supervisor_endpoint = options->supervisor_endpoint,
                                           .ring_fd = -1,
                                           .post_size_bytes = 4096};
    code = open_sources(self);
    if (code != ACTOR_EXIT_OK) {
        goto end;
    }
    if (actor_shell_new(&shell_options, &shell) != STATUS_OK) {
        code = ACTOR_EXIT_INTERNAL;
        goto end;
    }
    actor_shell_report(shell, 2, 0, 0,
                       options->log_dir != NULL ? options->log_dir : "rings in memory");
    code = run(self, shell);

end:
    close_sources(self);
    actor_shell_destroy(&shell, 100 * MS_NS);
    free(self);
    return code;
}
