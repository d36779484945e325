/* Pieces over TCP, at the destination: asked for, staged in the messages that bring them, placed
 * when their end agrees. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* the state of a sum lies on the stack */
#include <xxhash.h>

#include "actor_fault.h"
#include "actor_keys.h"
#include "actor_kv_data_state.h"
#include "proto_require.h"

enum { QUEUE_LEN = 4096, BODY_SIZE_BYTES = 512 };

static proto_status_t
open_pull(actor_kv_data_t *self, kv_place_t *place, char *detail)
{
    if (place->pull.handle != NULL) {
        return STATUS_OK;
    }
    if (place->endpoint[0] == '\0' || strcmp(place->endpoint, "none") == 0) {
        (void)snprintf(detail, KV_DATA_DETAIL_SIZE_BYTES,
                       "the source serves no data over TCP, and its memory is not here: %.80s",
                       place->why);
        return STATUS_ERR_NOT_FOUND;
    }
    if (actor_keys_process() != NULL && !actor_endpoint_is_local(place->endpoint)) {
        (void)snprintf(detail, KV_DATA_DETAIL_SIZE_BYTES,
                       "cache bytes are not encrypted, and this node has keys: none from %.80s",
                       place->endpoint);
        return STATUS_ERR_UNSUPPORTED;
    }
    char routing_id[ACTOR_ROUTING_ID_SIZE_MAX];
    (void)snprintf(routing_id, sizeof routing_id, "%s.%016" PRIx64 ".%u", self->options.name,
                   self->options.epoch, (unsigned)(place - self->places));
    const actor_socket_options_t options = {.endpoint = place->endpoint,
                                            .routing_id = routing_id,
                                            .queue_len_max = QUEUE_LEN,
                                            .part_size_bytes_max = 2 * KV_FRAME_SIZE_BYTES};
    proto_status_t status = actor_socket_open(self->zmq_context, &options, &place->pull);
    if (status != STATUS_OK) {
        (void)snprintf(detail, KV_DATA_DETAIL_SIZE_BYTES, "cannot connect to %.100s",
                       place->endpoint);
    }
    return status;
}

/* The socket connects in its own time: until then there is no room, and it is asked again. */
static proto_status_t
ask(actor_kv_data_t *self, kv_place_t *place, const kv_job_t *job)
{
    uint8_t header_bytes[PROTO_HEADER_SIZE_MAX];
    uint8_t body_bytes[BODY_SIZE_BYTES];
    const proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                                   .kind = PROTO_KIND_KV_PULL,
                                   .epoch = self->options.epoch};
    const proto_body_t body = {.kv_pull = {.transfer = job->transfer,
                                           .piece = job->piece,
                                           .checksums = self->options.checksums}};
    size_t header_size = proto_header_encode(&header, header_bytes);
    size_t body_size = 0;
    size_t blob_size = 0;
    proto_status_t status = proto_body_encode(PROTO_KIND_KV_PULL, &body, body_bytes,
                                              sizeof body_bytes, &body_size, NULL, 0, &blob_size);
    require(status == STATUS_OK);
    return actor_socket_send(&place->pull, (proto_bytes_t){NULL, 0},
                             (proto_bytes_t){header_bytes, header_size},
                             (proto_bytes_t){body_bytes, body_size}, (proto_bytes_t){NULL, 0});
}

static proto_status_t
tcp_fetch(actor_kv_data_t *self, kv_job_t *job, uint64_t *size_bytes_p, char *detail)
{
    kv_place_t *place = &self->places[job->peer];
    *size_bytes_p = 0;
    proto_status_t status = open_pull(self, place, detail);
    if (status != STATUS_OK) {
        return status;
    }
    status = ask(self, place, job);
    job->is_asked = status == STATUS_OK;
    if (status != STATUS_OK && status != STATUS_AGAIN) {
        (void)snprintf(detail, KV_DATA_DETAIL_SIZE_BYTES, "the data link to the source is lost");
        return status;
    }
    return STATUS_AGAIN;
}

static void
tcp_drop(actor_kv_data_t *self, kv_job_t *job)
{
    (void)self;
    for (uint32_t i = 0; i < job->frame_count; i++) {
        (void)zmq_msg_close(&job->frames[i]);
    }
    job->frame_count = 0;
    job->staged_bytes = 0;
}

const actor_kv_transport_t actor_kv_transport_tcp = {.name = "TCP",
                                                     .fetch = tcp_fetch,
                                                     .drop = tcp_drop};

/* ---- what comes -------------------------------------------------------------------------------
 */

static kv_job_t *
find_job(actor_kv_data_t *self, uint32_t peer, uint64_t transfer, uint32_t piece)
{
    for (uint32_t i = 0; i < KV_WINDOW; i++) {
        kv_job_t *job = &self->jobs[i];
        if (job->in_use && job->is_asked && job->peer == peer && job->transfer == transfer &&
            job->piece == piece) {
            return job;
        }
    }
    return NULL;
}

static void
take_data(actor_kv_data_t *self, uint32_t peer, const proto_kv_data_t *data, zmq_msg_t *part)
{
    kv_job_t *job = find_job(self, peer, data->transfer, data->piece);
    if (job == NULL) {
        return; /* it was dropped meanwhile */
    }
    if (ACTOR_FAULT("kv.receive.drop")) {
        return;
    }
    if (ACTOR_FAULT("kv.receive.corrupt") && data->data.count > 0) {
        ((uint8_t *)zmq_msg_data(part))[data->data.count / 2] ^= 0x10;
    }
    if (data->offset_bytes != job->staged_bytes || job->frame_count == KV_FRAMES_MAX ||
        data->data.count != zmq_msg_size(part)) {
        actor_kv_data_finish(self, job, STATUS_ERR_MALFORMED, 0,
                             "bytes of a piece are missing, or come in another order");
        return;
    }
    zmq_msg_t *frame = &job->frames[job->frame_count++];
    (void)zmq_msg_init(frame);
    (void)zmq_msg_move(frame, part);
    job->staged_bytes += data->data.count;
}

/* Goes through the staged bytes, run by run. */
typedef struct {
    kv_job_t *job;
    uint32_t frame;
    size_t at; /* in that frame */
} reader_t;

static const uint8_t *
next_bytes(reader_t *reader, size_t *size_p)
{
    while (reader->at == zmq_msg_size(&reader->job->frames[reader->frame])) {
        reader->frame++;
        reader->at = 0;
    }
    zmq_msg_t *frame = &reader->job->frames[reader->frame];
    size_t left = zmq_msg_size(frame) - reader->at;
    *size_p = left < *size_p ? left : *size_p;
    const uint8_t *bytes = (const uint8_t *)zmq_msg_data(frame) + reader->at;
    reader->at += *size_p;
    return bytes;
}

static bool
place_run(void *context, uint32_t index, const uint8_t *from, uint8_t *to, size_t size_bytes)
{
    (void)index;
    (void)from;
    for (size_t done = 0; done < size_bytes;) {
        size_t size = size_bytes - done;
        const uint8_t *bytes = next_bytes(context, &size);
        memcpy(to + done, bytes, size);
        done += size;
    }
    return true;
}

typedef struct {
    reader_t reader;
    uint64_t *sums;
    uint8_t *scratch;
} summer_t;

/* A sum is over a run; a run that two frames share is put together first. */
static bool
sum_staged(void *context, uint32_t index, const uint8_t *from, uint8_t *to, size_t size_bytes)
{
    (void)from;
    (void)to;
    summer_t *summer = context;
    XXH3_state_t state;
    (void)XXH3_64bits_reset_withSeed(&state, summer->sums[index]);
    for (size_t done = 0; done < size_bytes;) {
        size_t size = size_bytes - done;
        const uint8_t *bytes = next_bytes(&summer->reader, &size);
        (void)XXH3_64bits_update(&state, bytes, size);
        done += size;
    }
    summer->sums[index] = XXH3_64bits_digest(&state);
    return true;
}

static proto_status_t
check_staged(actor_kv_data_t *self, kv_job_t *job, const actor_kv_route_t *route,
             const proto_kv_end_t *end, char *detail)
{
    actor_kv_piece_t piece = actor_kv_job_piece(job);
    uint64_t expected = actor_kv_route_bytes(route, &piece);
    if (job->staged_bytes != expected || end->size_bytes != expected) {
        (void)snprintf(detail, KV_DATA_DETAIL_SIZE_BYTES,
                       "%" PRIu64 " bytes are expected, %" PRIu64 " came, %" PRIu64 " were sent",
                       expected, job->staged_bytes, end->size_bytes);
        return STATUS_ERR_INVALID;
    }
    if (!self->options.checksums) {
        return STATUS_OK;
    }
    if (end->checksums.count != job->count) {
        (void)snprintf(detail, KV_DATA_DETAIL_SIZE_BYTES,
                       "%" PRIu32 " checksums for %" PRIu32 " blocks", end->checksums.count,
                       job->count);
        return STATUS_ERR_MALFORMED;
    }
    summer_t summer = {.reader = {.job = job}, .sums = job->sums};
    memset(job->sums, 0, job->count * sizeof *job->sums);
    (void)actor_kv_route_walk(route, &piece, NULL, NULL, sum_staged, &summer);
    for (uint32_t i = 0; i < job->count; i++) {
        if (job->sums[i] != end->checksums.data[i]) {
            (void)snprintf(detail, KV_DATA_DETAIL_SIZE_BYTES,
                           "checksum of block %" PRIu32 ": %016" PRIx64 " sent, %016" PRIx64
                           " came",
                           job->to_blocks[i], end->checksums.data[i], job->sums[i]);
            return STATUS_ERR_MALFORMED;
        }
    }
    return STATUS_OK;
}

static void
take_end(actor_kv_data_t *self, uint32_t peer, const proto_kv_end_t *end)
{
    kv_job_t *job = find_job(self, peer, end->transfer, end->piece);
    if (job == NULL) {
        return;
    }
    char detail[KV_DATA_DETAIL_SIZE_BYTES] = "the source's blocks are not those of the piece now";
    const actor_kv_route_t *route = NULL;
    proto_status_t status = (proto_status_t)end->status;
    if (status == STATUS_OK) {
        status = actor_kv_place_route(self, peer, true, &route, detail);
    }
    if (status == STATUS_OK) {
        status = check_staged(self, job, route, end, detail);
    }
    if (status == STATUS_OK &&
        (actor_kv_data_is_closed(self, job->transfer) || ACTOR_FAULT("kv.receive.before_place"))) {
        (void)snprintf(detail, sizeof detail, "the transfer was fenced meanwhile");
        status = STATUS_ERR_CANCELLED;
    }
    uint64_t size_bytes = job->staged_bytes;
    if (status == STATUS_OK) {
        actor_kv_piece_t piece = actor_kv_job_piece(job);
        reader_t reader = {.job = job};
        (void)actor_kv_route_walk(route, &piece, NULL, &self->places[0].side, place_run, &reader);
    }
    actor_kv_data_finish(self, job, status, size_bytes, status == STATUS_OK ? "" : detail);
}

static void
take_message(actor_kv_data_t *self, uint32_t peer)
{
    actor_frames_t *frames = &self->frames;
    proto_header_t header;
    if (frames->count < 2 ||
        proto_header_decode(actor_frames_part(frames, 0), &header) != STATUS_OK) {
        return;
    }
    proto_bytes_t blob = actor_frames_part(frames, 2);
    if (!proto_blob_is_aligned(blob)) {
        if (blob.size_bytes > KV_FRAME_SIZE_BYTES) {
            return;
        }
        zmq_msg_t *part = &frames->parts[2]; /* small ones lie anywhere in the library's memory */
        memcpy(self->scratch, blob.data, blob.size_bytes);
        size_t size = blob.size_bytes;
        (void)zmq_msg_close(part);
        if (zmq_msg_init_size(part, size) != 0) {
            (void)zmq_msg_init(part);
            return;
        }
        memcpy(zmq_msg_data(part), self->scratch, size);
        blob = actor_frames_part(frames, 2);
        blob.data = self->scratch;
    }
    if ((header.kind != PROTO_KIND_KV_DATA && header.kind != PROTO_KIND_KV_END) ||
        proto_body_decode(header.kind, actor_frames_part(frames, 1), blob, &self->body, NULL) !=
            STATUS_OK) {
        return;
    }
    if (header.kind == PROTO_KIND_KV_DATA) {
        take_data(self, peer, &self->body.kv_data, &frames->parts[2]);
    } else {
        take_end(self, peer, &self->body.kv_end);
    }
}

enum { MESSAGES_A_ROUND = 64 };

void
actor_kv_pull_receive(actor_kv_data_t *self, kv_place_t *place, uint32_t peer)
{
    size_t size_max = 4 * KV_FRAME_SIZE_BYTES;
    for (uint32_t i = 0; i < MESSAGES_A_ROUND; i++) {
        proto_status_t status = actor_socket_receive(&place->pull, size_max, &self->frames);
        if (status == STATUS_AGAIN) {
            return;
        }
        if (status == STATUS_OK) {
            take_message(self, peer);
        }
    }
}
