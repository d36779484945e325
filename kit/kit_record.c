#include "kit_record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_log.h"
#include "proto_pack.h"
#include "proto_require.h"

enum { DIGEST_INPUTS = 64 /* inputs between two recorded digests */ };

struct kit_record {
    actor_core_ops_t ops;
    const actor_core_ops_t *inner_ops;
    void *inner;
    uint64_t epoch;
    proto_log_writer_t *log;
    uint64_t record_count;
    uint8_t *scratch; /* an encoded input: blob, then body; 64-byte aligned */
    size_t scratch_size_bytes;
};

/* A record that cannot be written is counted by the writer and shows as a gap; running goes on. */
static void
append(kit_record_t *self, proto_log_kind_t kind, uint16_t channel, uint64_t now_ns,
       uint64_t link_sequence, const proto_bytes_t *parts, uint32_t part_count)
{
    proto_log_record_t record = {.kind = kind,
                                 .channel = channel,
                                 .sequence = ++self->record_count,
                                 .time_ns = now_ns,
                                 .link_sequence = link_sequence,
                                 .part_count = part_count};
    memcpy(record.parts, parts, part_count * sizeof parts[0]);
    (void)!proto_log_append(self->log, &record, now_ns);
}

static bool
reserve(kit_record_t *self, size_t size_bytes)
{
    if (size_bytes <= self->scratch_size_bytes) {
        return true;
    }
    size_t size = (size_bytes + PROTO_COLUMN_ALIGN - 1) / PROTO_COLUMN_ALIGN * PROTO_COLUMN_ALIGN;
    uint8_t *larger = aligned_alloc(PROTO_COLUMN_ALIGN, size);
    if (larger == NULL) {
        return false;
    }
    free(self->scratch);
    self->scratch = larger;
    self->scratch_size_bytes = size;
    return true;
}

/* Who a channel number is, before the first message of it. */
static void
record_peer(kit_record_t *self, const actor_input_t *input)
{
    const proto_peer_up_t *up = &input->body->peer_up;
    char epoch[24];
    (void)snprintf(epoch, sizeof epoch, "%" PRIu64, up->epoch);
    const char *role = proto_role_name((proto_role_t)up->role);
    proto_bytes_t parts[3] = {{(const uint8_t *)up->name.data, up->name.size_bytes},
                              {(const uint8_t *)role, strlen(role)},
                              {(const uint8_t *)epoch, strlen(epoch)}};
    append(self, PROTO_LOG_CHANNEL_DEF, (uint16_t)up->peer, input->now_ns, 0, parts, 3);
}

static void
record_input(kit_record_t *self, const actor_input_t *input)
{
    size_t body_bound = 0;
    size_t blob_bound = 0;
    proto_kind_t kind = input->header->kind;
    if (kind == PROTO_KIND_PEER_UP) {
        record_peer(self, input);
    }
    proto_body_bound(kind, input->body, &body_bound, &blob_bound);
    if (!reserve(self, blob_bound + body_bound)) {
        self->record_count++; /* the gap says that one is missing */
        return;
    }
    size_t body_size = 0;
    size_t blob_size = 0;
    uint8_t *body = self->scratch + blob_bound;
    proto_status_t status = proto_body_encode(kind, input->body, body, body_bound, &body_size,
                                              self->scratch, blob_bound, &blob_size);
    require(status == STATUS_OK); /* it was decoded from the same tables */
    uint8_t header[PROTO_HEADER_SIZE_MAX];
    proto_bytes_t parts[3] = {{header, proto_header_encode(input->header, header)},
                              {body, body_size},
                              {self->scratch, blob_size}};
    uint16_t channel = (uint16_t)input->from.index;
    if (kind == PROTO_KIND_TIMER) {
        append(self, PROTO_LOG_TIMER, channel, input->now_ns, 0, &parts[1], 1);
        return;
    }
    append(self, PROTO_LOG_IN, channel, input->now_ns, input->header->sequence, parts,
           blob_size > 0 ? 3 : 2);
}

static void
record_output(kit_record_t *self, const actor_input_t *input, const actor_emission_t *emission)
{
    const proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                                   .kind = emission->kind,
                                   .epoch = self->epoch,
                                   .request = emission->request,
                                   .cause = input->sequence};
    uint8_t bytes[PROTO_HEADER_SIZE_MAX];
    proto_bytes_t parts[3] = {{bytes, proto_header_encode(&header, bytes)},
                              emission->body,
                              emission->blob};
    append(self, PROTO_LOG_OUT, (uint16_t)emission->to.index, input->now_ns, 0, parts,
           emission->blob.size_bytes > 0 ? 3 : 2);
}

static void
step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    kit_record_t *self = core;
    record_input(self, input);
    uint32_t before = actor_outbox_count(outbox);
    self->inner_ops->step(self->inner, input, outbox);
    for (uint32_t i = before; i < actor_outbox_count(outbox); i++) {
        record_output(self, input, actor_outbox_at(outbox, i));
    }
    if (self->inner_ops->digest != NULL && input->sequence % DIGEST_INPUTS == 0) {
        uint64_t digest = self->inner_ops->digest(self->inner);
        uint8_t bytes[8];
        proto_pack_u64(&(proto_pack_t){.out = bytes, .capacity_bytes = sizeof bytes}, digest);
        proto_bytes_t part = {bytes, sizeof bytes};
        append(self, PROTO_LOG_STATE_DIGEST, 0, input->now_ns, 0, &part, 1);
    }
}

/* ---- the other operations go through --------------------------------------------------------- */

static uint64_t
deadline_ns(const void *core)
{
    const kit_record_t *self = core;
    return self->inner_ops->deadline_ns(self->inner);
}

static uint64_t
digest(const void *core)
{
    const kit_record_t *self = core;
    return self->inner_ops->digest(self->inner);
}

static void
stats(const void *core, proto_stats_t *out)
{
    const kit_record_t *self = core;
    self->inner_ops->stats(self->inner, out);
}

static void
progress(const void *core, uint64_t now_ns, proto_heartbeat_t *out)
{
    const kit_record_t *self = core;
    self->inner_ops->progress(self->inner, now_ns, out);
}

static void
check(const void *core)
{
    const kit_record_t *self = core;
    self->inner_ops->check(self->inner);
}

static bool
idle(const void *core)
{
    const kit_record_t *self = core;
    return self->inner_ops->idle(self->inner);
}

/* ---- making ---------------------------------------------------------------------------------- */

proto_status_t
kit_record_new(const kit_record_options_t *options, kit_record_t **out_p)
{
    require(options != NULL);
    require(options->ops != NULL);
    require(out_p != NULL);
    kit_record_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    const actor_core_ops_t *inner = options->ops;
    self->inner_ops = inner;
    self->inner = options->core;
    self->epoch = options->epoch;
    self->ops = *inner;
    self->ops.step = step;
    self->ops.deadline_ns = inner->deadline_ns != NULL ? deadline_ns : NULL;
    self->ops.digest = inner->digest != NULL ? digest : NULL;
    self->ops.stats = inner->stats != NULL ? stats : NULL;
    self->ops.progress = inner->progress != NULL ? progress : NULL;
    self->ops.check = inner->check != NULL ? check : NULL;
    self->ops.idle = inner->idle != NULL ? idle : NULL;
    self->ops.save = NULL; /* a program replays from its first input */
    proto_log_options_t log = {.directory = options->directory,
                               .name = options->name,
                               .role = PROTO_ROLE_SCHEDULER,
                               .epoch = options->epoch,
                               .build = "kit"};
    proto_status_t status = proto_log_writer_open(&log, &self->log);
    if (status != STATUS_OK) {
        free(self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

void
kit_record_destroy(kit_record_t **self_p)
{
    require(self_p != NULL);
    kit_record_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    proto_log_writer_close(&self->log);
    free(self->scratch);
    free(self);
    *self_p = NULL;
}

const actor_core_ops_t *
kit_record_ops(const kit_record_t *self)
{
    return &self->ops;
}
