/* The record of each incarnation, as a shell would write it, into segments.  The clock of the files
 * is the simulated one and no file draws an id, so the same seed writes the same bytes.  A disk
 * that is full is a limit on the size of files: the writer sees real failures of real calls. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "actor_sim_world.h"
#include "proto_require.h"

#define REALTIME_START_NS UINT64_C(1700000000000000000)

static uint64_t
clock_now(void *context)
{
    const actor_sim_t *self = context;
    return self->now_ns;
}

static uint64_t
clock_realtime(void *context)
{
    const actor_sim_t *self = context;
    return REALTIME_START_NS + self->now_ns;
}

static void
append(actor_sim_t *self, actor_sim_actor_t *actor, proto_log_kind_t kind, uint32_t channel,
       uint64_t link_sequence, const proto_bytes_t *parts, uint32_t part_count)
{
    proto_log_record_t record = {.kind = kind,
                                 .channel = (uint16_t)channel,
                                 .sequence = ++actor->record_sequence,
                                 .time_ns = actor->now_ns,
                                 .link_sequence = link_sequence,
                                 .part_count = part_count};
    memcpy(record.parts, parts, part_count * sizeof parts[0]);
    bool full = self->now_ns < self->disk_until_ns;
    struct rlimit before;
    if (full) {
        (void)getrlimit(RLIMIT_FSIZE, &before);
        struct rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
        (void)setrlimit(RLIMIT_FSIZE, &none);
    }
    proto_status_t status = proto_log_append(actor->log, &record, self->now_ns);
    if (full) {
        (void)setrlimit(RLIMIT_FSIZE, &before);
    }
    if (status == STATUS_ERR_IO) {
        self->result.record_failure_count++;
    } else if (status != STATUS_OK) {
        actor_sim_fail(self, "the recorder", "a record was refused: %s", proto_status_text(status));
    }
}

static void
put_u64(uint8_t *out, uint64_t value)
{
    for (uint32_t i = 0; i < 8; i++) {
        out[i] = (uint8_t)(value >> (8 * i));
    }
}

uint8_t *
actor_sim_save(const actor_sim_actor_t *actor, proto_bytes_t *state, proto_bytes_t *secret)
{
    proto_pack_t open = {0};
    proto_pack_t hidden = {0};
    actor->ops->save(actor->core, &open, &hidden);
    size_t open_size = open.size_bytes;
    size_t hidden_size = hidden.size_bytes;
    uint8_t *room = malloc(open_size + hidden_size + 1);
    require(room != NULL);
    open = (proto_pack_t){.out = room, .capacity_bytes = open_size};
    hidden = (proto_pack_t){.out = room + open_size, .capacity_bytes = hidden_size};
    actor->ops->save(actor->core, &open, &hidden);
    require(open.size_bytes == open_size);
    require(hidden.size_bytes == hidden_size);
    *state = (proto_bytes_t){room, open_size};
    *secret = (proto_bytes_t){room + open_size, hidden_size};
    return room;
}

/* The head of a SNAPSHOT, and what the core saves. */
static void
snapshot(actor_sim_t *self, actor_sim_actor_t *actor)
{
    uint8_t head[PROTO_LOG_SNAPSHOT_HEAD_SIZE_BYTES] = {PROTO_LOG_SNAPSHOT_FORM};
    head[4] = (uint8_t)actor->ops->role;
    put_u64(head + 8, actor->ops->digest(actor->core));
    put_u64(head + 16, actor->input_sequence);
    proto_bytes_t parts[3] = {{head, sizeof head}};
    uint8_t *room = actor_sim_save(actor, &parts[1], &parts[2]);
    append(self, actor, PROTO_LOG_SNAPSHOT, 0, 0, parts, 3);
    free(room);
}

void
actor_sim_record_open(actor_sim_t *self, uint32_t index)
{
    actor_sim_actor_t *actor = &self->actors[index];
    if (self->options.log_directory == NULL) {
        return;
    }
    const actor_sim_member_t *member = &self->members[actor->member];
    self->clock = (proto_clock_t){clock_now, clock_realtime, self};
    proto_log_options_t options = {.directory = self->options.log_directory,
                                   .name = member->name,
                                   .role = member->role,
                                   .epoch = actor->epoch,
                                   .build = "simulated",
                                   .model = "model=simulated",
                                   .clock = &self->clock,
                                   .is_simulated = true};
    proto_status_t status = proto_log_writer_open(&options, &actor->log);
    if (status != STATUS_OK) {
        actor_sim_fail(self, "the recorder", "cannot write to %s: %s", self->options.log_directory,
                       proto_status_text(status));
        return;
    }
    snapshot(self, actor);
}

void
actor_sim_record_close(actor_sim_t *self, uint32_t index)
{
    (void)self;
    proto_log_writer_close(&self->actors[index].log);
}

void
actor_sim_record_input(actor_sim_t *self, uint32_t index, const actor_input_t *input,
                       proto_bytes_t body, proto_bytes_t blob)
{
    actor_sim_actor_t *actor = &self->actors[index];
    if (actor->log == NULL) {
        return;
    }
    uint8_t *room = NULL;
    if (body.size_bytes == 0) { /* of its own side: encoded for the record alone */
        size_t body_bound = 0;
        size_t blob_bound = 0;
        proto_body_bound(input->header->kind, input->body, &body_bound, &blob_bound);
        size_t blob_room = (blob_bound + PROTO_COLUMN_ALIGN) / PROTO_COLUMN_ALIGN;
        size_t lines = blob_room + body_bound / PROTO_COLUMN_ALIGN + 1;
        room = aligned_alloc(PROTO_COLUMN_ALIGN, lines * PROTO_COLUMN_ALIGN);
        require(room != NULL);
        uint8_t *body_out = room + blob_room * PROTO_COLUMN_ALIGN;
        proto_status_t status =
            proto_body_encode(input->header->kind, input->body, body_out, body_bound,
                              &body.size_bytes, room, blob_bound, &blob.size_bytes);
        require(status == STATUS_OK);
        body.data = body_out;
        blob.data = room;
    }
    if (input->header->kind == PROTO_KIND_TIMER) {
        append(self, actor, PROTO_LOG_TIMER, input->from.index, 0, &body, 1);
    } else {
        uint8_t header[PROTO_HEADER_SIZE_MAX];
        proto_bytes_t parts[3] = {{header, proto_header_encode(input->header, header)}, body, blob};
        append(self, actor, PROTO_LOG_IN, input->from.index, input->header->sequence, parts,
               blob.size_bytes > 0 ? 3 : 2);
    }
    free(room);
}

void
actor_sim_record_output(actor_sim_t *self, uint32_t index, const proto_header_t *header,
                        const actor_emission_t *emission)
{
    actor_sim_actor_t *actor = &self->actors[index];
    if (actor->log == NULL) {
        return;
    }
    uint8_t bytes[PROTO_HEADER_SIZE_MAX];
    proto_bytes_t parts[3] = {{bytes, proto_header_encode(header, bytes)},
                              emission->body,
                              emission->blob};
    append(self, actor, PROTO_LOG_OUT, emission->to.index, header->sequence, parts,
           emission->blob.size_bytes > 0 ? 3 : 2);
}

void
actor_sim_record_peer(actor_sim_t *self, uint32_t index, uint32_t peer)
{
    actor_sim_actor_t *actor = &self->actors[index];
    if (actor->log == NULL) {
        return;
    }
    const actor_sim_member_t *member = &self->members[actor->peer_members[peer]];
    char number[24];
    (void)snprintf(number, sizeof number, "%" PRIu64, actor->peer_epochs[peer]);
    const char *role = proto_role_name(member->role);
    proto_bytes_t parts[3] = {{(const uint8_t *)member->name, strlen(member->name)},
                              {(const uint8_t *)role, strlen(role)},
                              {(const uint8_t *)number, strlen(number)}};
    append(self, actor, PROTO_LOG_CHANNEL_DEF, peer, 0, parts, 3);
}

void
actor_sim_record_digest(actor_sim_t *self, uint32_t index)
{
    actor_sim_actor_t *actor = &self->actors[index];
    if (actor->log == NULL) {
        return;
    }
    uint8_t bytes[8];
    put_u64(bytes, actor->ops->digest(actor->core));
    proto_bytes_t part = {bytes, sizeof bytes};
    append(self, actor, PROTO_LOG_STATE_DIGEST, 0, 0, &part, 1);
}
