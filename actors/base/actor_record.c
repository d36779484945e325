/* actor_record.c - records are put together from views; the ring copies them once. */
#include "actor_record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "actor_log.h"
#include "proto_clock.h"
#include "proto_pack.h"
#include "proto_require.h"

enum {
    ROOM_SIZE_MIN_BYTES = 1024 * 1024,
    SNAPSHOT_PER_RING = 3, /* a snapshot for each such part of the ring */
};

typedef struct {
    bool in_use;
    proto_role_t role;
    uint64_t epoch;
    char name[PROTO_NAME_SIZE_BYTES];
} channel_t;

struct actor_record {
    proto_ring_writer_t *ring;
    /* Two areas, page-aligned, of which pages exist once they are used: an input of the actor's own
     * is encoded into the first; a snapshot's state and secret go into one each. */
    uint8_t *state_room;
    uint8_t *secret_room;
    size_t room_size_bytes; /* of each */
    bool has_snapshot;
    uint64_t snapshot_end_bytes; /* of the ring's bytes for ever, when the last one was written */
    uint64_t skipped_count;
    uint64_t cut_count; /* of what was cut before it reached the ring */
    uint64_t strict_count;
    channel_t channels[ACTOR_PEER_COUNT_MAX]; /* as CHANNEL_DEF said last */
};

static uint8_t *
reserve(size_t size_bytes)
{
    void *room = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return room != MAP_FAILED ? room : NULL;
}

proto_status_t
actor_record_new(int fd, actor_record_t **out_p)
{
    actor_record_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status = proto_ring_writer_open(fd, &self->ring);
    if (status != STATUS_OK) {
        goto err;
    }
    /* Nothing larger than half the ring is kept whole. */
    size_t half = (size_t)proto_ring_capacity_bytes(self->ring) / 2;
    self->room_size_bytes = half > ROOM_SIZE_MIN_BYTES ? half : ROOM_SIZE_MIN_BYTES;
    self->state_room = reserve(self->room_size_bytes);
    self->secret_room = reserve(self->room_size_bytes);
    if (self->state_room == NULL || self->secret_room == NULL) {
        status = STATUS_ERR_NO_MEMORY;
        goto err;
    }
    self->strict_count = proto_ring_strict_count(self->ring);
    *out_p = self;
    return STATUS_OK;

err:
    actor_record_destroy(&self);
    return status;
}

void
actor_record_destroy(actor_record_t **self_p)
{
    actor_record_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    if (self->ring != NULL) {
        proto_ring_writer_close(&self->ring);
    }
    if (self->state_room != NULL) {
        (void)munmap(self->state_room, self->room_size_bytes);
    }
    if (self->secret_room != NULL) {
        (void)munmap(self->secret_room, self->room_size_bytes);
    }
    free(self);
    *self_p = NULL;
}

static void
append(actor_record_t *self, const proto_log_record_t *record)
{
    proto_ring_append(self->ring, record);
    uint64_t strict_count = proto_ring_strict_count(self->ring);
    if (strict_count != self->strict_count) {
        self->strict_count = strict_count;
        actor_log(ACTOR_LOG_ERROR, "actor.record_strict", 0, NULL,
                  "the recorder kept nothing for %d ms: records are overwritten from now on",
                  PROTO_RING_STRICT_WAIT_MS);
        actor_record_fault(self, record->time_ns, "strict: the recorder did not keep up");
    }
}

static void
append_parts(actor_record_t *self, proto_log_kind_t kind, uint16_t channel, uint64_t now_ns,
             uint32_t part_count, const proto_bytes_t parts[])
{
    proto_log_record_t record = {.kind = kind,
                                 .channel = channel,
                                 .time_ns = now_ns,
                                 .part_count = part_count};
    require(part_count <= PROTO_LOG_PART_COUNT_MAX);
    memcpy(record.parts, parts, part_count * sizeof parts[0]);
    append(self, &record);
}

static void
append_text(actor_record_t *self, proto_log_kind_t kind, uint64_t now_ns, const char *text)
{
    proto_bytes_t part = {(const uint8_t *)text, strlen(text)};
    append_parts(self, kind, ACTOR_PEER_LOCAL, now_ns, 1, &part);
}

/* IN and OUT. */
static void
append_message(actor_record_t *self, proto_log_record_t record, const proto_header_t *header,
               proto_bytes_t body, proto_bytes_t blob)
{
    uint8_t bytes[PROTO_HEADER_SIZE_MAX];
    record.link_sequence = header->sequence;
    record.parts[0] = (proto_bytes_t){bytes, proto_header_encode(header, bytes)};
    record.parts[1] = body;
    record.parts[2] = blob;
    if (record.part_count == 0) {
        record.part_count = blob.size_bytes > 0 ? 3 : 2;
    }
    append(self, &record);
}

/* ---- inputs and outputs ---------------------------------------------------------------------- */

void
actor_record_input(actor_record_t *self, const actor_input_t *input, proto_bytes_t body,
                   proto_bytes_t blob)
{
    if (self == NULL) {
        return;
    }
    uint16_t channel = (uint16_t)input->from.index;
    if (input->header->kind == PROTO_KIND_TIMER) {
        append_parts(self, PROTO_LOG_TIMER, channel, input->now_ns, 1, &body);
        return;
    }
    proto_log_record_t record = {.kind = PROTO_LOG_IN,
                                 .channel = channel,
                                 .time_ns = input->now_ns};
    append_message(self, record, input->header, body, blob);
}

void
actor_record_own_input(actor_record_t *self, const actor_input_t *input)
{
    if (self == NULL) {
        return;
    }
    size_t body_bound = 0;
    size_t blob_bound = 0;
    proto_body_bound(input->header->kind, input->body, &body_bound, &blob_bound);
    size_t body_at = (blob_bound + 7) / 8 * 8;
    if (body_at + body_bound > self->room_size_bytes) {
        proto_log_record_t record = {.kind = PROTO_LOG_IN,
                                     .flags = PROTO_LOG_FLAG_CUT,
                                     .channel = (uint16_t)input->from.index,
                                     .time_ns = input->now_ns,
                                     .part_count = 1};
        self->cut_count++;
        append_message(self, record, input->header, (proto_bytes_t){NULL, 0},
                       (proto_bytes_t){NULL, 0});
        return;
    }
    size_t blob_size = 0;
    size_t body_size = 0;
    uint8_t *body = self->state_room + body_at;
    proto_status_t status = proto_body_encode(input->header->kind, input->body, body, body_bound,
                                              &body_size, self->state_room, blob_bound, &blob_size);
    require(status == STATUS_OK);
    actor_record_input(self, input, (proto_bytes_t){body, body_size},
                       (proto_bytes_t){self->state_room, blob_size});
}

void
actor_record_output(actor_record_t *self, uint64_t now_ns, const proto_header_t *header,
                    const actor_emission_t *emission)
{
    if (self == NULL) {
        return;
    }
    proto_log_record_t record = {.kind = PROTO_LOG_OUT,
                                 .channel = (uint16_t)emission->to.index,
                                 .time_ns = now_ns};
    append_message(self, record, header, emission->body, emission->blob);
}

/* ---- who and when ---------------------------------------------------------------------------- */

static void
append_channel(actor_record_t *self, uint64_t now_ns, uint32_t peer)
{
    const channel_t *channel = &self->channels[peer];
    char number[24];
    (void)snprintf(number, sizeof number, "%" PRIu64, channel->epoch);
    const char *role_name = proto_role_name(channel->role);
    const proto_bytes_t parts[3] = {{(const uint8_t *)channel->name, strlen(channel->name)},
                                    {(const uint8_t *)role_name, strlen(role_name)},
                                    {(const uint8_t *)number, strlen(number)}};
    append_parts(self, PROTO_LOG_CHANNEL_DEF, (uint16_t)peer, now_ns, 3, parts);
}

void
actor_record_peer(actor_record_t *self, uint64_t now_ns, uint32_t peer, const char *name,
                  proto_role_t role, uint64_t epoch)
{
    if (self == NULL) {
        return;
    }
    require(peer < ACTOR_PEER_COUNT_MAX);
    channel_t *channel = &self->channels[peer];
    *channel = (channel_t){.in_use = true, .role = role, .epoch = epoch};
    (void)snprintf(channel->name, sizeof channel->name, "%s", name);
    append_channel(self, now_ns, peer);
}

void
actor_record_digest(actor_record_t *self, uint64_t now_ns, uint64_t digest)
{
    if (self == NULL) {
        return;
    }
    uint8_t bytes[8];
    proto_pack_u64(&(proto_pack_t){.out = bytes, .capacity_bytes = sizeof bytes}, digest);
    append_parts(self, PROTO_LOG_STATE_DIGEST, ACTOR_PEER_LOCAL, now_ns, 1,
                 &(proto_bytes_t){bytes, sizeof bytes});
}

void
actor_record_clock(actor_record_t *self, uint64_t now_ns)
{
    if (self == NULL) {
        return;
    }
    uint8_t bytes[16];
    proto_pack_t pack = {.out = bytes, .capacity_bytes = sizeof bytes};
    proto_pack_u64(&pack, now_ns);
    proto_pack_u64(&pack, proto_clock_realtime_ns(proto_clock_system()));
    append_parts(self, PROTO_LOG_CLOCK, ACTOR_PEER_LOCAL, now_ns, 1,
                 &(proto_bytes_t){bytes, sizeof bytes});
}

void
actor_record_note(actor_record_t *self, uint64_t now_ns, const char *text)
{
    if (self != NULL) {
        append_text(self, PROTO_LOG_NOTE, now_ns, text);
    }
}

void
actor_record_fault(actor_record_t *self, uint64_t now_ns, const char *text)
{
    if (self != NULL) {
        append_text(self, PROTO_LOG_FAULT, now_ns, text);
    }
}

/* ---- snapshots ------------------------------------------------------------------------------- */

/* False: it does not fit half a ring. */
static bool
append_snapshot(actor_record_t *self, uint64_t now_ns, const actor_core_ops_t *ops,
                const void *core, uint64_t input_count)
{
    uint64_t digest = ops->digest != NULL ? ops->digest(core) : 0;
    uint8_t head[PROTO_LOG_SNAPSHOT_HEAD_SIZE_BYTES];
    proto_pack_t pack = {.out = head, .capacity_bytes = sizeof head};
    proto_pack_u32(&pack, PROTO_LOG_SNAPSHOT_FORM);
    proto_pack_u32(&pack, (uint32_t)ops->role);
    proto_pack_u64(&pack, digest);
    proto_pack_u64(&pack, input_count);
    proto_pack_t state = {.out = self->state_room, .capacity_bytes = self->room_size_bytes};
    proto_pack_t secret = {.out = self->secret_room, .capacity_bytes = self->room_size_bytes};
    ops->save(core, &state, &secret);
    if (!proto_pack_is_complete(&state) || !proto_pack_is_complete(&secret)) {
        return false;
    }
    proto_log_record_t record = {.kind = PROTO_LOG_SNAPSHOT,
                                 .time_ns = now_ns,
                                 .part_count = 3,
                                 .parts = {{head, sizeof head},
                                           {self->state_room, state.size_bytes},
                                           {self->secret_room, secret.size_bytes}}};
    if (proto_log_record_size_bytes(&record) > proto_ring_capacity_bytes(self->ring) / 2) {
        return false; /* the ring would cut it, and half a snapshot is none */
    }
    append(self, &record);
    if (ops->digest != NULL) {
        actor_record_digest(self, now_ns, digest);
    }
    return true;
}

void
actor_record_snapshot(actor_record_t *self, uint64_t now_ns, const actor_core_ops_t *ops,
                      const void *core, uint64_t input_count)
{
    if (self == NULL) {
        return;
    }
    uint64_t since = proto_ring_written_bytes(self->ring) - self->snapshot_end_bytes;
    if (self->has_snapshot && since < proto_ring_capacity_bytes(self->ring) / SNAPSHOT_PER_RING) {
        return;
    }
    if (ops->save != NULL && !append_snapshot(self, now_ns, ops, core, input_count) &&
        self->skipped_count++ == 0) {
        actor_record_note(self, now_ns,
                          "a snapshot does not fit half of the ring: a wrapped ring cannot be "
                          "replayed");
    }
    if (self->has_snapshot || ops->save != NULL) { /* who is who may stand before the snapshot */
        actor_record_clock(self, now_ns);
        for (uint32_t peer = 0; peer < ACTOR_PEER_COUNT_MAX; peer++) {
            if (self->channels[peer].in_use) {
                append_channel(self, now_ns, peer);
            }
        }
    }
    self->has_snapshot = true;
    self->snapshot_end_bytes = proto_ring_written_bytes(self->ring);
}

uint64_t
actor_record_skipped_count(const actor_record_t *self)
{
    return self != NULL ? self->skipped_count : 0;
}

uint64_t
actor_record_cut_count(const actor_record_t *self)
{
    return self != NULL ? self->cut_count + proto_ring_cut_count(self->ring) + self->strict_count
                        : 0;
}
