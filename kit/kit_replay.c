/* kit_replay.c - a core at two pipes: recorded inputs in, its messages out. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor_exit.h"
#include "kit_scheduler.h"
#include "proto_log.h"
#include "proto_pack.h"
#include "proto_require.h"

enum { READ_SIZE_BYTES = 64 * 1024 };

typedef struct {
    uint8_t *data;
    size_t size_bytes;
    size_t capacity_bytes;
} buffer_t;

typedef struct {
    const actor_core_ops_t *ops;
    void *core;
    actor_outbox_t *outbox;
    int in_fd, out_fd;
    buffer_t in;
    size_t in_at;   /* of these, understood */
    buffer_t out;   /* the answer to one input */
    buffer_t blob;  /* a copy of an input's columns, aligned */
    uint64_t epoch; /* of the recorded run, as its own messages say */
    uint64_t input_count;
    proto_body_t body;
} replay_t;

static bool
grow(buffer_t *self, size_t size_bytes)
{
    if (size_bytes <= self->capacity_bytes) {
        return true;
    }
    size_t capacity = self->capacity_bytes * 2 > size_bytes ? self->capacity_bytes * 2 : size_bytes;
    capacity = (capacity + PROTO_COLUMN_ALIGN - 1) / PROTO_COLUMN_ALIGN * PROTO_COLUMN_ALIGN;
    uint8_t *data = aligned_alloc(PROTO_COLUMN_ALIGN, capacity);
    if (data == NULL) {
        return false;
    }
    if (self->size_bytes > 0) {
        memcpy(data, self->data, self->size_bytes);
    }
    free(self->data);
    self->data = data;
    self->capacity_bytes = capacity;
    return true;
}

static int
refuse(const char *why, uint64_t sequence)
{
    fprintf(stderr, "replay: record %llu: %s\n", (unsigned long long)sequence, why);
    return ACTOR_EXIT_CONFIG;
}

/* ---- out ------------------------------------------------------------------------------------- */

static bool
put_record(replay_t *self, const proto_log_record_t *record)
{
    size_t size = proto_log_record_size_bytes(record);
    if (size > PROTO_LOG_RECORD_SIZE_MAX || !grow(&self->out, self->out.size_bytes + size)) {
        return false;
    }
    proto_log_record_encode(record, true, self->out.data + self->out.size_bytes);
    self->out.size_bytes += size;
    return true;
}

static bool
put_answer(replay_t *self, const proto_log_record_t *input)
{
    proto_log_record_t record = {.kind = PROTO_LOG_OUT,
                                 .sequence = input->sequence,
                                 .time_ns = input->time_ns};
    for (uint32_t i = 0; i < actor_outbox_count(self->outbox); i++) {
        const actor_emission_t *emission = actor_outbox_at(self->outbox, i);
        const proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                                       .kind = emission->kind,
                                       .epoch = self->epoch,
                                       .request = emission->request,
                                       .cause = self->input_count};
        uint8_t bytes[PROTO_HEADER_SIZE_MAX];
        record.channel = (uint16_t)emission->to.index;
        record.part_count = emission->blob.size_bytes > 0 ? 3 : 2;
        record.parts[0] = (proto_bytes_t){bytes, proto_header_encode(&header, bytes)};
        record.parts[1] = emission->body;
        record.parts[2] = emission->blob;
        if (!put_record(self, &record)) {
            return false;
        }
    }
    uint64_t digest = self->ops->digest != NULL ? self->ops->digest(self->core) : 0;
    uint8_t bytes[8];
    proto_pack_u64(&(proto_pack_t){.out = bytes, .capacity_bytes = sizeof bytes}, digest);
    record = (proto_log_record_t){.kind = PROTO_LOG_STATE_DIGEST,
                                  .sequence = input->sequence,
                                  .time_ns = input->time_ns,
                                  .part_count = 1,
                                  .parts = {{bytes, sizeof bytes}}};
    return put_record(self, &record);
}

static bool
write_out(replay_t *self)
{
    size_t at = 0;
    while (at < self->out.size_bytes) {
        ssize_t written = write(self->out_fd, self->out.data + at, self->out.size_bytes - at);
        if (written < 0 && errno != EINTR) {
            return false;
        }
        at += written > 0 ? (size_t)written : 0;
    }
    self->out.size_bytes = 0;
    return true;
}

/* ---- in -------------------------------------------------------------------------------------- */

static int
give_input(replay_t *self, const proto_log_record_t *record)
{
    bool is_timer = record->kind == PROTO_LOG_TIMER;
    uint32_t body_part = is_timer ? 0 : 1;
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION, .kind = PROTO_KIND_TIMER};
    if (record->part_count <= body_part) {
        return refuse("an input without its parts", record->sequence);
    }
    if (!is_timer && proto_header_decode(record->parts[0], &header) != STATUS_OK) {
        return refuse("the header does not decode", record->sequence);
    }
    proto_bytes_t blob = {NULL, 0};
    if (!is_timer && record->part_count > 2) {
        blob = record->parts[2];
    }
    self->blob.size_bytes = 0;
    if (blob.size_bytes > 0) {
        if (!grow(&self->blob, blob.size_bytes)) {
            return ACTOR_EXIT_INTERNAL;
        }
        memcpy(self->blob.data, blob.data, blob.size_bytes);
        blob.data = self->blob.data;
    }
    proto_error_t error = {"cannot be read"};
    if (record->channel >= ACTOR_PEER_COUNT_MAX ||
        proto_body_decode(header.kind, record->parts[body_part], blob, &self->body, &error) !=
            STATUS_OK) {
        return refuse(error.detail, record->sequence);
    }
    if (!is_timer && record->channel == ACTOR_PEER_LOCAL) {
        self->epoch = header.epoch;
    }
    actor_input_t input = {.now_ns = record->time_ns,
                           .sequence = ++self->input_count,
                           .from = {record->channel},
                           .header = &header,
                           .body = &self->body};
    actor_outbox_clear(self->outbox);
    self->ops->step(self->core, &input, self->outbox);
    return put_answer(self, record) && write_out(self) ? ACTOR_EXIT_OK : ACTOR_EXIT_INTERNAL;
}

/* Everything that has come whole; the rest moves to the front. */
static int
take_records(replay_t *self)
{
    proto_log_record_t record;
    size_t size_bytes = 0;
    proto_status_t status = STATUS_OK;
    while (status == STATUS_OK) {
        proto_bytes_t rest = {self->in.data + self->in_at, self->in.size_bytes - self->in_at};
        status = proto_log_record_decode(rest, true, &record, &size_bytes);
        if (status != STATUS_OK) {
            break;
        }
        self->in_at += size_bytes;
        if (record.kind == PROTO_LOG_IN || record.kind == PROTO_LOG_TIMER) {
            int code = give_input(self, &record);
            if (code != ACTOR_EXIT_OK) {
                return code;
            }
        }
    }
    if (status != STATUS_AGAIN) {
        return refuse("the input is no stream of records", self->input_count + 1);
    }
    self->in.size_bytes -= self->in_at;
    memmove(self->in.data, self->in.data + self->in_at, self->in.size_bytes);
    self->in_at = 0;
    return ACTOR_EXIT_OK;
}

static int
read_all(replay_t *self)
{
    for (;;) {
        if (!grow(&self->in, self->in.size_bytes + READ_SIZE_BYTES)) {
            return ACTOR_EXIT_INTERNAL;
        }
        ssize_t got = read(self->in_fd, self->in.data + self->in.size_bytes,
                           self->in.capacity_bytes - self->in.size_bytes);
        if (got < 0 && errno != EINTR) {
            return ACTOR_EXIT_INTERNAL;
        }
        if (got == 0) {
            return self->in.size_bytes == 0
                       ? ACTOR_EXIT_OK
                       : refuse("the input ends within a record", self->input_count + 1);
        }
        self->in.size_bytes += got > 0 ? (size_t)got : 0;
        int code = take_records(self);
        if (code != ACTOR_EXIT_OK) {
            return code;
        }
    }
}

int
kit_scheduler_replay(const actor_core_ops_t *ops, void *core, int in_fd, int out_fd)
{
    require(ops != NULL);
    require(ops->step != NULL);
    replay_t self = {.ops = ops, .core = core, .in_fd = in_fd, .out_fd = out_fd};
    if (actor_outbox_new(ops, &self.outbox) != STATUS_OK) {
        return ACTOR_EXIT_INTERNAL;
    }
    int code = read_all(&self);
    actor_outbox_destroy(&self.outbox);
    free(self.in.data);
    free(self.out.data);
    free(self.blob.data);
    return code;
}
