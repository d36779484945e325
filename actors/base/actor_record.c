/* actor_record.c - records are put together from views; the ring copies them once. */
#include "actor_record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_clock.h"
#include "proto_require.h"

enum {
    SCRATCH_SIZE_BYTES = 1024 * 1024, /* grows for a larger input of the actor's own */
};

struct actor_record {
    proto_ring_writer_t *ring;
    uint8_t *scratch; /* 64-byte aligned */
    size_t scratch_size_bytes;
};

proto_status_t
actor_record_new(int fd, actor_record_t **out_p)
{
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    actor_record_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        goto err;
    }
    self->scratch = aligned_alloc(PROTO_COLUMN_ALIGN, SCRATCH_SIZE_BYTES);
    if (self->scratch == NULL) {
        goto err_free_self;
    }
    self->scratch_size_bytes = SCRATCH_SIZE_BYTES;
    status = proto_ring_writer_open(fd, &self->ring);
    if (status != STATUS_OK) {
        goto err_free_scratch;
    }
    *out_p = self;
    return STATUS_OK;

err_free_scratch:
    free(self->scratch);
err_free_self:
    free(self);
err:
    return status;
}

void
actor_record_destroy(actor_record_t **self_p)
{
    actor_record_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    proto_ring_writer_close(&self->ring);
    free(self->scratch);
    free(self);
    *self_p = NULL;
}

static void
append(actor_record_t *self, proto_log_kind_t kind, uint16_t channel, uint64_t now_ns,
       uint64_t link_sequence, const proto_bytes_t *parts, uint32_t part_count)
{
    proto_log_record_t record = {.kind = kind,
                                 .channel = channel,
                                 .time_ns = now_ns,
                                 .link_sequence = link_sequence,
                                 .part_count = part_count};
    require(part_count <= PROTO_LOG_PART_COUNT_MAX);
    memcpy(record.parts, parts, part_count * sizeof parts[0]);
    proto_ring_append(self->ring, &record);
}

void
actor_record_input(actor_record_t *self, const actor_input_t *input, proto_bytes_t body,
                   proto_bytes_t blob)
{
    if (self == NULL) {
        return;
    }
    uint16_t channel = (uint16_t)input->from.index;
    if (input->header->kind == PROTO_KIND_TIMER) {
        append(self, PROTO_LOG_TIMER, channel, input->now_ns, 0, &body, 1);
        return;
    }
    uint8_t header[PROTO_HEADER_SIZE_MAX];
    proto_bytes_t parts[3] = {{header, proto_header_encode(input->header, header)}, body, blob};
    append(self, PROTO_LOG_IN, channel, input->now_ns, input->header->sequence, parts,
           blob.size_bytes > 0 ? 3 : 2);
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
    size_t need = (blob_bound + body_bound + 2 * PROTO_COLUMN_ALIGN) / PROTO_COLUMN_ALIGN *
                  PROTO_COLUMN_ALIGN;
    if (need > self->scratch_size_bytes) {
        uint8_t *larger = aligned_alloc(PROTO_COLUMN_ALIGN, need);
        if (larger == NULL) {
            actor_record_note(self, input->now_ns, "an input is missing: no memory");
            return;
        }
        free(self->scratch);
        self->scratch = larger;
        self->scratch_size_bytes = need;
    }
    size_t blob_size = 0;
    size_t body_size = 0;
    uint8_t *body = self->scratch + (blob_bound + 7) / 8 * 8;
    proto_status_t status =
        proto_body_encode(input->header->kind, input->body, body,
                          self->scratch_size_bytes - (size_t)(body - self->scratch), &body_size,
                          self->scratch, blob_bound, &blob_size);
    require(status == STATUS_OK);
    actor_record_input(self, input, (proto_bytes_t){body, body_size},
                       (proto_bytes_t){self->scratch, blob_size});
}

void
actor_record_output(actor_record_t *self, uint64_t now_ns, const proto_header_t *header,
                    const actor_emission_t *emission)
{
    if (self == NULL) {
        return;
    }
    uint8_t bytes[PROTO_HEADER_SIZE_MAX];
    proto_bytes_t parts[3] = {{bytes, proto_header_encode(header, bytes)},
                              emission->body,
                              emission->blob};
    append(self, PROTO_LOG_OUT, (uint16_t)emission->to.index, now_ns, header->sequence, parts,
           emission->blob.size_bytes > 0 ? 3 : 2);
}

void
actor_record_peer(actor_record_t *self, uint64_t now_ns, uint32_t peer, const char *name,
                  proto_role_t role, uint64_t epoch)
{
    if (self == NULL) {
        return;
    }
    char number[24];
    (void)snprintf(number, sizeof number, "%" PRIu64, epoch);
    const char *role_name = proto_role_name(role);
    proto_bytes_t parts[3] = {{(const uint8_t *)name, strlen(name)},
                              {(const uint8_t *)role_name, strlen(role_name)},
                              {(const uint8_t *)number, strlen(number)}};
    append(self, PROTO_LOG_CHANNEL_DEF, (uint16_t)peer, now_ns, 0, parts, 3);
}

void
actor_record_digest(actor_record_t *self, uint64_t now_ns, uint64_t digest)
{
    if (self == NULL) {
        return;
    }
    uint8_t bytes[8];
    for (uint32_t index = 0; index < 8; index++) {
        bytes[index] = (uint8_t)(digest >> (8 * index));
    }
    proto_bytes_t part = {bytes, sizeof bytes};
    append(self, PROTO_LOG_STATE_DIGEST, 0, now_ns, 0, &part, 1);
}

void
actor_record_clock(actor_record_t *self, uint64_t now_ns)
{
    if (self == NULL) {
        return;
    }
    uint64_t realtime_ns = proto_clock_realtime_ns(proto_clock_system());
    uint8_t bytes[16];
    for (uint32_t index = 0; index < 8; index++) {
        bytes[index] = (uint8_t)(now_ns >> (8 * index));
        bytes[8 + index] = (uint8_t)(realtime_ns >> (8 * index));
    }
    proto_bytes_t part = {bytes, sizeof bytes};
    append(self, PROTO_LOG_CLOCK, 0, now_ns, 0, &part, 1);
}

void
actor_record_note(actor_record_t *self, uint64_t now_ns, const char *text)
{
    if (self == NULL) {
        return;
    }
    proto_bytes_t part = {(const uint8_t *)text, strlen(text)};
    append(self, PROTO_LOG_NOTE, 0, now_ns, 0, &part, 1);
}

uint64_t
actor_record_cut_count(const actor_record_t *self)
{
    return self != NULL ? proto_ring_cut_count(self->ring) : 0;
}
