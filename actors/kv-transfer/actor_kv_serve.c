/* Pieces over TCP, at the source: bytes go out of the arena without a copy where they lie behind
 * each other for long enough, else gathered into frames.  The end of a piece is said when the last
 * byte has left this process, and only if its blocks are still what was announced. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "actor_fault.h"
#include "actor_kv_data_state.h"
#include "proto_require.h"

enum { BODY_SIZE_BYTES = 512, BUFFER_WAIT_US = 100, BUFFER_WAITS_MAX = 5000 };

/* One piece on its way into the library. */
typedef struct {
    actor_kv_data_t *data;
    kv_ending_t *ending;
    const uint8_t *run; /* bytes that lie behind each other and are not sent yet */
    size_t run_bytes;
    kv_buffer_t *buffer; /* frame that is gathered; NULL = none */
    size_t buffer_bytes;
    bool wants_sums;
} sender_t;

/* ---- frames -----------------------------------------------------------------------------------
 */

static void
note_left(kv_ending_t *ending)
{
    if (atomic_fetch_sub(&ending->unsent, 1) == 1) {
        uint64_t one = 1;
        ssize_t rc = write(ending->data->wake_fd, &one, sizeof one);
        (void)rc;
    }
}

/* On the library's thread. */
static void
free_run(void *memory, void *hint)
{
    (void)memory;
    note_left(hint);
}

static void
free_buffer(void *memory, void *hint)
{
    kv_ending_t *ending = hint;
    for (uint32_t i = 0; i < KV_BUFFERS; i++) {
        if (ending->data->buffers[i].memory == memory) {
            atomic_store(&ending->data->buffers[i].in_use, false);
        }
    }
    note_left(ending);
}

static bool
send_frame(sender_t *self, const uint8_t *bytes, size_t size_bytes, zmq_free_fn *free_fn)
{
    kv_ending_t *ending = self->ending;
    uint8_t header_bytes[PROTO_HEADER_SIZE_MAX];
    uint8_t body_bytes[BODY_SIZE_BYTES];
    const proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                                   .kind = PROTO_KIND_KV_DATA,
                                   .epoch = self->data->options.epoch};
    const proto_body_t body = {.kv_data = {.transfer = ending->transfer,
                                           .piece = ending->piece,
                                           .offset_bytes = ending->size_bytes,
                                           .data = {bytes, (uint32_t)size_bytes}}};
    size_t header_size = proto_header_encode(&header, header_bytes);
    size_t body_size = 0;
    size_t blob_size = 0;
    proto_status_t status =
        proto_body_encode(PROTO_KIND_KV_DATA, &body, body_bytes, sizeof body_bytes, &body_size,
                          NULL, 2 * KV_FRAME_SIZE_BYTES, &blob_size);
    require(status == STATUS_OK);
    zmq_msg_t part;
    atomic_fetch_add(&ending->unsent, 1);
    if (zmq_msg_init_data(&part, (void *)bytes, size_bytes, free_fn, ending) != 0) {
        free_fn((void *)bytes, ending);
        return false;
    }
    void *socket = self->data->server.handle;
    ending->size_bytes += size_bytes;
    if (zmq_send(socket, ending->routing_id, ending->routing_id_size, ZMQ_DONTWAIT | ZMQ_SNDMORE) <
        0) {
        (void)zmq_msg_close(&part);
        return false;
    }
    (void)zmq_send(socket, header_bytes, header_size, ZMQ_DONTWAIT | ZMQ_SNDMORE);
    (void)zmq_send(socket, body_bytes, body_size, ZMQ_DONTWAIT | ZMQ_SNDMORE);
    if (zmq_msg_send(&part, socket, ZMQ_DONTWAIT) < 0) {
        (void)zmq_msg_close(&part);
        return false;
    }
    return true;
}

static bool
flush_buffer(sender_t *self)
{
    if (self->buffer == NULL) {
        return true;
    }
    const uint8_t *memory = self->buffer->memory;
    size_t size_bytes = self->buffer_bytes;
    self->buffer = NULL;
    self->buffer_bytes = 0;
    return send_frame(self, memory, size_bytes, free_buffer);
}

/* Frames come back as they leave; a peer that takes none for half a second fails the piece. */
static kv_buffer_t *
take_buffer(actor_kv_data_t *data)
{
    for (uint32_t wait = 0; wait < BUFFER_WAITS_MAX; wait++) {
        for (uint32_t i = 0; i < KV_BUFFERS; i++) {
            if (!atomic_exchange(&data->buffers[i].in_use, true)) {
                return &data->buffers[i];
            }
        }
        (void)usleep(BUFFER_WAIT_US);
    }
    return NULL;
}

static bool
gather(sender_t *self, const uint8_t *bytes, size_t size_bytes)
{
    while (size_bytes > 0) {
        if (self->buffer == NULL) {
            self->buffer = take_buffer(self->data);
            if (self->buffer == NULL) {
                return false;
            }
        }
        size_t room = KV_FRAME_SIZE_BYTES - self->buffer_bytes;
        size_t size = size_bytes < room ? size_bytes : room;
        memcpy(self->buffer->memory + self->buffer_bytes, bytes, size);
        self->buffer_bytes += size;
        bytes += size;
        size_bytes -= size;
        if (self->buffer_bytes == KV_FRAME_SIZE_BYTES && !flush_buffer(self)) {
            return false;
        }
    }
    return true;
}

static bool
flush_run(sender_t *self)
{
    const uint8_t *bytes = self->run;
    size_t left = self->run_bytes;
    self->run = NULL;
    self->run_bytes = 0;
    if (left < KV_ZERO_COPY_MIN_BYTES) {
        return gather(self, bytes, left);
    }
    if (!flush_buffer(self)) {
        return false;
    }
    while (left > 0) {
        size_t size = left < KV_FRAME_SIZE_BYTES ? left : KV_FRAME_SIZE_BYTES;
        if (!send_frame(self, bytes, size, free_run)) {
            return false;
        }
        bytes += size;
        left -= size;
    }
    return true;
}

static bool
send_run(void *context, uint32_t index, const uint8_t *from, uint8_t *to, size_t size_bytes)
{
    (void)to;
    sender_t *self = context;
    if (self->wants_sums) {
        self->ending->sums[index] =
            XXH3_64bits_withSeed(from, size_bytes, self->ending->sums[index]);
    }
    if (self->run != NULL && self->run + self->run_bytes == from) {
        self->run_bytes += size_bytes;
        return true;
    }
    if (self->run != NULL && !flush_run(self)) {
        return false;
    }
    self->run = from;
    self->run_bytes = size_bytes;
    return true;
}

/* ---- a pull -----------------------------------------------------------------------------------
 */

static const kv_served_t *
find_served(const actor_kv_data_t *self, uint64_t transfer, uint32_t piece)
{
    for (uint32_t gate = 0; gate < self->options.gate_count; gate++) {
        const kv_served_t *served = &self->served[(size_t)gate * self->options.flying_max +
                                                  piece % self->options.flying_max];
        if (served->transfer == transfer && served->piece == piece) {
            return served;
        }
    }
    return NULL;
}

/* The gate is open and every block of the generation that was announced. */
static bool
is_right(actor_kv_data_t *self, const kv_served_t *served, uint64_t transfer, uint32_t piece)
{
    if (served == NULL || served->transfer != transfer || served->piece != piece) {
        return false;
    }
    pthread_mutex_lock(&self->mutex);
    bool right = actor_kv_book_is_open(&self->book, served->gate, transfer);
    for (uint32_t i = 0; right && i < served->count; i++) {
        right = actor_kv_book_generation(&self->book, served->groups[i], served->blocks[i]) ==
                served->generations[i];
    }
    pthread_mutex_unlock(&self->mutex);
    return right;
}

static proto_status_t
send_bytes(actor_kv_data_t *self, kv_ending_t *ending, bool wants_sums)
{
    const kv_served_t *served = ending->served;
    const actor_kv_route_t *route = NULL;
    char detail[KV_DATA_DETAIL_SIZE_BYTES];
    proto_status_t status = actor_kv_place_route(self, served->peer, false, &route, detail);
    if (status != STATUS_OK) {
        return status;
    }
    const actor_kv_piece_t piece = {.layer_begin = served->layer_begin,
                                    .layer_end = served->layer_end,
                                    .count = served->count,
                                    .groups = served->groups,
                                    .from_blocks = served->blocks};
    sender_t sender = {.data = self, .ending = ending, .wants_sums = wants_sums};
    if (wants_sums) {
        memset(ending->sums, 0, served->count * sizeof *ending->sums);
        ending->sum_count = served->count;
    }
    bool is_sent =
        actor_kv_route_walk(route, &piece, &self->places[0].side, NULL, send_run, &sender) &&
        (sender.run == NULL || flush_run(&sender)) && flush_buffer(&sender);
    if (sender.buffer != NULL) {
        atomic_store(&sender.buffer->in_use, false);
    }
    return is_sent ? STATUS_OK : STATUS_ERR_PEER_LOST;
}

static void
answer_pull(actor_kv_data_t *self, const proto_kv_pull_t *pull, proto_bytes_t routing_id)
{
    kv_ending_t *ending = NULL;
    for (uint32_t i = 0; i < KV_ENDINGS_MAX && ending == NULL; i++) {
        ending = self->endings[i].in_use ? NULL : &self->endings[i];
    }
    if (ending == NULL || routing_id.size_bytes > sizeof ending->routing_id ||
        ACTOR_FAULT("kv.send.drop")) {
        return; /* whoever asked fails it by its deadline */
    }
    uint64_t *sums = ending->sums;
    memset(ending, 0, sizeof *ending);
    ending->sums = sums;
    ending->in_use = true;
    ending->data = self;
    ending->transfer = pull->transfer;
    ending->piece = pull->piece;
    ending->routing_id_size = routing_id.size_bytes;
    memcpy(ending->routing_id, routing_id.data, routing_id.size_bytes);
    const kv_served_t *served = find_served(self, pull->transfer, pull->piece);
    ending->served = served;
    ending->status =
        is_right(self, served, pull->transfer, pull->piece) ? STATUS_OK : STATUS_ERR_STALE;
    if (ending->status == STATUS_OK) {
        ending->status = send_bytes(self, ending, pull->checksums);
    }
    if (ACTOR_FAULT("kv.send.before_end")) {
        ending->status = STATUS_ERR_CANCELLED;
    }
}

void
actor_kv_serve_receive(actor_kv_data_t *self)
{
    enum { PULLS_A_ROUND = 16 };
    for (uint32_t i = 0; i < PULLS_A_ROUND; i++) {
        actor_frames_t *frames = &self->frames;
        proto_status_t status = actor_socket_receive(&self->server, KV_FRAME_SIZE_BYTES, frames);
        if (status == STATUS_AGAIN) {
            return;
        }
        proto_header_t header;
        if (status != STATUS_OK || frames->count != 3 ||
            proto_header_decode(actor_frames_part(frames, 1), &header) != STATUS_OK ||
            header.kind != PROTO_KIND_KV_PULL ||
            proto_body_decode(header.kind, actor_frames_part(frames, 2), (proto_bytes_t){NULL, 0},
                              &self->body, NULL) != STATUS_OK) {
            continue;
        }
        const proto_kv_pull_t pull = self->body.kv_pull;
        actor_kv_data_take_control(self); /* the piece was told of before it was announced */
        answer_pull(self, &pull, actor_frames_part(frames, 0));
    }
}

/* ---- the end of a piece -----------------------------------------------------------------------
 */

static bool
say_end(actor_kv_data_t *self, kv_ending_t *ending)
{
    bool is_whole = ending->status == STATUS_OK &&
                    is_right(self, ending->served, ending->transfer, ending->piece);
    proto_status_t status = ending->status;
    if (status == STATUS_OK && !is_whole) {
        status = STATUS_ERR_STALE;
    }
    const proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                                   .kind = PROTO_KIND_KV_END,
                                   .epoch = self->options.epoch};
    const proto_body_t body = {.kv_end = {.transfer = ending->transfer,
                                          .piece = ending->piece,
                                          .status = status,
                                          .size_bytes = ending->size_bytes,
                                          .checksums = {ending->sums, ending->sum_count}}};
    uint8_t header_bytes[PROTO_HEADER_SIZE_MAX];
    uint8_t body_bytes[BODY_SIZE_BYTES];
    size_t header_size = proto_header_encode(&header, header_bytes);
    size_t body_size = 0;
    size_t blob_size = 0;
    proto_status_t encoded =
        proto_body_encode(PROTO_KIND_KV_END, &body, body_bytes, sizeof body_bytes, &body_size,
                          self->scratch, KV_FRAME_SIZE_BYTES, &blob_size);
    require(encoded == STATUS_OK);
    status = actor_socket_send(&self->server,
                               (proto_bytes_t){ending->routing_id, ending->routing_id_size},
                               (proto_bytes_t){header_bytes, header_size},
                               (proto_bytes_t){body_bytes, body_size},
                               (proto_bytes_t){self->scratch, blob_size});
    return status != STATUS_AGAIN; /* else again; a peer that is gone needs no end */
}

uint32_t
actor_kv_serve_end(actor_kv_data_t *self)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < KV_ENDINGS_MAX; i++) {
        kv_ending_t *ending = &self->endings[i];
        if (!ending->in_use) {
            continue;
        }
        if (atomic_load(&ending->unsent) == 0 && say_end(self, ending)) {
            ending->in_use = false;
        } else {
            left++;
        }
    }
    return left;
}
