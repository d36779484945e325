#include "toy_log.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor_core.h"
#include "proto_require.h"
#include "toy_core.h"

enum { INPUT_MAX = 1 << 16, PEERS = 3 };

typedef struct {
    const toy_log_options_t *options;
    proto_log_writer_t *writer;
    uint64_t sequence;
    uint64_t now_ns;
    uint64_t input_number;
    uint32_t random;
} recording_t;

static uint64_t sequences[INPUT_MAX];
static uint64_t record_count;

static uint32_t
draw(recording_t *self, uint32_t below)
{
    self->random = self->random * 1664525u + 1013904223u;
    return (self->random >> 8) % below;
}

static void
append(recording_t *self, proto_log_record_t *record)
{
    const toy_log_options_t *options = self->options;
    record->sequence = ++self->sequence;
    record->time_ns = self->now_ns;
    uint32_t drop_count = options->drop_count != 0 ? options->drop_count : 1;
    if (options->drop_at != 0 && record->sequence >= options->drop_at &&
        record->sequence < options->drop_at + drop_count) {
        uint64_t lost = drop_count;
        proto_log_record_t drop = {.kind = PROTO_LOG_DROP,
                                   .time_ns = self->now_ns,
                                   .sequence = record->sequence,
                                   .part_count = 1,
                                   .parts = {{(const uint8_t *)&lost, sizeof lost}}};
        if (options->says_dropped && record->sequence == options->drop_at) {
            require(proto_log_append(self->writer, &drop, self->now_ns) == STATUS_OK);
        }
        return;
    }
    require(proto_log_append(self->writer, record, self->now_ns) == STATUS_OK);
    record_count++;
}

static void
append_message(recording_t *self, proto_log_kind_t kind, uint32_t channel,
               const proto_header_t *header, proto_bytes_t body, proto_bytes_t blob)
{
    uint8_t bytes[PROTO_HEADER_SIZE_MAX];
    proto_log_record_t record = {.kind = kind,
                                 .channel = (uint16_t)channel,
                                 .part_count = blob.size_bytes > 0 ? 3 : 2,
                                 .parts = {{bytes, proto_header_encode(header, bytes)},
                                           body,
                                           blob}};
    if (kind == PROTO_LOG_TIMER) {
        record.part_count = 1;
        record.parts[0] = body;
    } else if (self->options->is_redacted) {
        record.flags = PROTO_LOG_FLAG_REDACTED;
    }
    append(self, &record);
}

static void
append_snapshot(recording_t *self, const toy_core_t *core)
{
    uint8_t head[PROTO_LOG_SNAPSHOT_HEAD_SIZE_BYTES];
    uint8_t parts[2][512];
    proto_pack_t pack = {head, sizeof head, 0};
    proto_pack_t packs[2] = {{parts[0], sizeof parts[0], 0}, {parts[1], sizeof parts[1], 0}};
    proto_role_t role = self->options->role != 0 ? self->options->role : PROTO_ROLE_SCHEDULER;
    proto_pack_u32(&pack, PROTO_LOG_SNAPSHOT_FORM);
    proto_pack_u32(&pack, (uint32_t)role);
    proto_pack_u64(&pack, toy_core_ops()->digest(core));
    proto_pack_u64(&pack, self->input_number);
    toy_core_ops()->save(core, &packs[0], &packs[1]);
    proto_log_record_t record = {.kind = PROTO_LOG_SNAPSHOT,
                                 .part_count = 3,
                                 .parts = {{head, sizeof head},
                                           {parts[0], packs[0].size_bytes},
                                           {parts[1], packs[1].size_bytes}}};
    append(self, &record);
}

static void
append_digest(recording_t *self, const toy_core_t *core)
{
    uint64_t digest = toy_core_ops()->digest(core);
    proto_log_record_t record = {.kind = PROTO_LOG_STATE_DIGEST,
                                 .part_count = 1,
                                 .parts = {{(const uint8_t *)&digest, sizeof digest}}};
    append(self, &record);
}

/* One of: a message of a peer, a message of the shell with a column, the timer. */
static proto_kind_t
make_input(recording_t *self, const toy_core_t *core, proto_body_t *body, int32_t *tokens)
{
    uint64_t deadline_ns = toy_core_ops()->deadline_ns(core);
    self->now_ns += 500 + draw(self, 400);
    if (deadline_ns <= self->now_ns) {
        *body = (proto_body_t){.timer = {.deadline_ns = deadline_ns}};
        return PROTO_KIND_TIMER;
    }
    if (draw(self, 3) == 0) {
        uint32_t count = 1 + draw(self, 6);
        for (uint32_t i = 0; i < count; i++) {
            tokens[i] = self->options->is_redacted ? 0 : (int32_t)draw(self, 1000);
        }
        *body =
            (proto_body_t){.http_tokens = {.exchange = draw(self, 100), .tokens = {tokens, count}}};
        return PROTO_KIND_HTTP_TOKENS;
    }
    *body = (proto_body_t){.heartbeat = {.progress = draw(self, 1000)}};
    return PROTO_KIND_HEARTBEAT;
}

static void
record_input(recording_t *self, toy_core_t *core, actor_outbox_t *outbox, bool is_last)
{
    static uint8_t body_bytes[4096];
    static _Alignas(64) uint8_t blob_bytes[4096];
    int32_t tokens[8];
    proto_body_t body;
    proto_kind_t kind = make_input(self, core, &body, tokens);
    bool is_local = kind != PROTO_KIND_HEARTBEAT;
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .epoch = is_local ? TOY_EPOCH : 99,
                             .request = is_local ? 0 : 1 + draw(self, 50)};
    actor_input_t input = {.now_ns = self->now_ns,
                           .sequence = ++self->input_number,
                           .from = {is_local ? ACTOR_PEER_LOCAL : 1 + draw(self, PEERS)},
                           .header = &header,
                           .body = &body};
    size_t body_size = 0;
    size_t blob_size = 0;
    require(proto_body_encode(kind, &body, body_bytes, sizeof body_bytes, &body_size, blob_bytes,
                              sizeof blob_bytes, &blob_size) == STATUS_OK);
    append_message(self, kind == PROTO_KIND_TIMER ? PROTO_LOG_TIMER : PROTO_LOG_IN,
                   input.from.index, &header, (proto_bytes_t){body_bytes, body_size},
                   (proto_bytes_t){blob_bytes, blob_size});
    if (self->input_number < INPUT_MAX) {
        sequences[self->input_number] = self->sequence;
    }
    toy_core_ops()->step(core, &input, outbox);
    uint32_t count = actor_outbox_count(outbox);
    if (is_last && self->options->stop_outputs_at != 0 && self->options->stop_outputs_at <= count) {
        count = (uint32_t)self->options->stop_outputs_at - 1;
    }
    for (uint32_t i = 0; i < count; i++) {
        const actor_emission_t *emission = actor_outbox_at(outbox, i);
        proto_header_t out = {.version = PROTO_SCHEMA_VERSION,
                              .kind = emission->kind,
                              .epoch = TOY_EPOCH,
                              .request = emission->request,
                              .cause = self->input_number};
        append_message(self, PROTO_LOG_OUT, emission->to.index, &out, emission->body,
                       emission->blob);
    }
    actor_outbox_clear(outbox);
}

static void
record_channels(recording_t *self)
{
    for (uint32_t peer = 1; peer <= PEERS; peer++) {
        proto_log_record_t record = {.kind = PROTO_LOG_CHANNEL_DEF,
                                     .channel = (uint16_t)peer,
                                     .part_count = 3,
                                     .parts = {{(const uint8_t *)"peer", 4},
                                               {(const uint8_t *)"gateway", 7},
                                               {(const uint8_t *)"99", 2}}};
        append(self, &record);
    }
}

void
toy_log_write(const toy_log_options_t *options, char *path)
{
    uint64_t epoch = options->epoch != 0 ? options->epoch : TOY_EPOCH;
    toy_wrong_t wrong = toy_wrong;
    toy_wrong = TOY_RIGHT;
    recording_t self = {.options = options, .now_ns = 1000000, .random = options->random};
    const proto_log_options_t log_options = {.directory = options->folder,
                                             .name = "toy",
                                             .role = options->role != 0 ? options->role
                                                                        : PROTO_ROLE_SCHEDULER,
                                             .epoch = epoch,
                                             .segment_size_max = options->segment_size_max};
    require(proto_log_writer_open(&log_options, &self.writer) == STATUS_OK);
    actor_outbox_t *outbox = NULL;
    require(actor_outbox_new(toy_core_ops(), &outbox) == STATUS_OK);
    toy_core_t *core = toy_core_new();
    uint32_t digests = options->digest_interval != 0 ? options->digest_interval : 8;
    uint32_t snapshots = options->snapshot_interval != 0 ? options->snapshot_interval : 64;
    record_count = 0;
    if (!options->no_first_snapshot) {
        append_snapshot(&self, core);
    }
    record_channels(&self);
    for (uint32_t i = 1; i <= options->input_count; i++) {
        record_input(&self, core, outbox, i == options->input_count);
        if (i == options->input_count && options->stop_outputs_at != 0) {
            break;
        }
        if (i % digests == 0) {
            append_digest(&self, core);
        }
        if (i % snapshots == 0) {
            append_snapshot(&self, core);
        }
    }
    toy_core_destroy(&core);
    actor_outbox_destroy(&outbox);
    proto_log_writer_close(&self.writer);
    (void)snprintf(path, 4096, "%s/toy.%016" PRIx64 ".000000.alog", options->folder, epoch);
    toy_wrong = wrong;
}

uint64_t
toy_log_sequence_of(uint64_t number)
{
    require(number < INPUT_MAX);
    return sequences[number];
}

uint64_t
toy_log_record_count(void)
{
    return record_count;
}

void
toy_folder_make(char path[64])
{
    (void)snprintf(path, 64, "/tmp/onepath-replay-XXXXXX");
    require(mkdtemp(path) != NULL);
}

void
toy_folder_remove(const char *path)
{
    DIR *directory = opendir(path);
    const struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        if (entry->d_name[0] != '.') {
            (void)unlinkat(dirfd(directory), entry->d_name, 0);
        }
    }
    if (directory != NULL) {
        (void)closedir(directory);
    }
    (void)rmdir(path);
}
