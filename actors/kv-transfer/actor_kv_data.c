/* The thread: its queues, its round, its start and end.  Long because the order of a round and what
 * each part of it may touch stand in one place. */
#include "actor_kv_data.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "actor_fault.h"
#include "actor_kv_data_state.h"
#include "actor_log.h"
#include "proto_require.h"

enum {
    QUEUE_SIZE_BYTES = 1 << 20,
    QUEUE_SIZE_BYTES_MAX = 1 << 28,
    SERVER_QUEUE_LEN = 8192,
    WATCH_MS = 1,
    BUSY_MS = 1,
    IDLE_MS = 200,
};

actor_kv_piece_t
actor_kv_job_piece(const kv_job_t *job)
{
    return (actor_kv_piece_t){.layer_begin = job->layer_begin,
                              .layer_end = job->layer_end,
                              .count = job->count,
                              .groups = job->groups,
                              .from_blocks = job->from_blocks,
                              .to_blocks = job->to_blocks};
}

/* ---- from the shell's thread ------------------------------------------------------------------
 */

/* False if there is no room for it, or no memory. */
static bool
push_locked(const actor_kv_data_t *self, actor_queue_t *queue, size_t *size_bytes_p,
            const actor_emission_t *emission, const proto_body_t *body)
{
    proto_status_t status = actor_queue_push(queue, emission->kind, emission->request, body);
    while (status == STATUS_FULL || status == STATUS_ERR_TOO_LARGE) {
        if (*size_bytes_p > self->options.queue_size_bytes_max / 2 ||
            actor_queue_grow(queue) != STATUS_OK) {
            return false;
        }
        *size_bytes_p *= 2;
        status = actor_queue_push(queue, emission->kind, emission->request, body);
    }
    require(status == STATUS_OK);
    return true;
}

/* A transfer lives in the core until all its copies are told of, so that there is a place for each.
 */
static void
lose_copy(actor_kv_data_t *self, const proto_kv_copy_t *copy)
{
    kv_lost_t *place = NULL;
    for (uint32_t i = 0; i < self->options.gate_count; i++) {
        kv_lost_t *lost = &self->lost[i];
        if (lost->count > 0 && lost->transfer == copy->transfer) {
            place = lost;
            break;
        }
        place = place == NULL && lost->count == 0 ? lost : place;
    }
    require(place != NULL);
    place->transfer = copy->transfer;
    place->piece = copy->piece;
    place->count++;
}

static void
change_gate(actor_kv_data_t *self, const proto_kv_gate_t *gate)
{
    if (gate->is_source) {
        actor_kv_book_set_gate(&self->book, gate->gate, gate->is_open ? gate->transfer : 0);
    } else if (!gate->is_open) {
        self->closed[self->closed_count++ % KV_CLOSED_MAX] = gate->transfer;
    }
    atomic_fetch_add(&self->gate_changes, 1);
}

/* Our own cache has another layout, or is gone: its book is another one. */
static void
change_book(actor_kv_data_t *self, const proto_kv_arena_t *arena)
{
    if (arena->region != 0 && self->book_fd >= 0) {
        return; /* another rank of the same cache */
    }
    actor_kv_book_close(&self->book);
    if (self->book_fd >= 0) {
        (void)close(self->book_fd);
        self->book_fd = -1;
    }
    if (arena->region == 0) {
        return;
    }
    actor_kv_layout_t layout = {.group_count = arena->group_pages.count};
    for (uint32_t g = 0; g < layout.group_count && g < ACTOR_KV_GROUP_COUNT_MAX; g++) {
        layout.groups[g].page_count = arena->group_pages.data[g];
    }
    if (actor_kv_book_make(&layout, &self->book, &self->book_fd) != STATUS_OK) {
        self->book_fd = -1;
        actor_log(ACTOR_LOG_ERROR, "kv.book", 0, NULL,
                  "no memory for the book of gates and generations: nothing can be sent");
    }
}

static void
note_generations(actor_kv_data_t *self, const proto_kv_serve_t *serve)
{
    for (uint32_t i = 0; i < serve->groups.count; i++) {
        actor_kv_book_set_generation(&self->book, serve->groups.data[i], serve->blocks.data[i],
                                     serve->generations.data[i]);
    }
}

void
actor_kv_data_push(actor_kv_data_t *self, const actor_emission_t *emission)
{
    proto_body_t body;
    proto_status_t status =
        proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL);
    require(status == STATUS_OK);
    pthread_mutex_lock(&self->mutex);
    if (emission->kind == PROTO_KIND_KV_GATE) {
        change_gate(self, &body.kv_gate);
    } else if (emission->kind == PROTO_KIND_KV_COPY) {
        if (!push_locked(self, self->copies, &self->copies_size_bytes, emission, &body)) {
            lose_copy(self, &body.kv_copy);
        }
    } else {
        if (emission->kind == PROTO_KIND_KV_ARENA && emission->request == 0) {
            change_book(self, &body.kv_arena);
        }
        if (emission->kind == PROTO_KIND_KV_SERVE) {
            note_generations(self, &body.kv_serve);
        }
        if (!push_locked(self, self->control, &self->control_size_bytes, emission, &body)) {
            /* Whoever needs it fails by its deadline, or is refused. */
            actor_log(ACTOR_LOG_ERROR, "kv.overloaded", 0, NULL,
                      "no room for what the data thread is told: transfers will fail");
        }
    }
    pthread_mutex_unlock(&self->mutex);
    uint64_t one = 1;
    ssize_t rc = write(self->wake_fd, &one, sizeof one);
    (void)rc;
}

bool
actor_kv_data_is_closed(actor_kv_data_t *self, uint64_t transfer)
{
    bool found = false;
    pthread_mutex_lock(&self->mutex);
    for (uint32_t i = 0; i < KV_CLOSED_MAX && !found; i++) {
        found = self->closed[i] == transfer;
    }
    pthread_mutex_unlock(&self->mutex);
    return found;
}

/* ---- jobs --------------------------------------------------------------------------------------
 */

static const actor_kv_transport_t *
transport_of(const actor_kv_data_t *self, uint32_t peer)
{
    const kv_place_t *place = &self->places[peer];
    if (self->options.way == ACTOR_KV_WAY_TCP) {
        return &actor_kv_transport_tcp;
    }
    if (self->options.way == ACTOR_KV_WAY_SHARED || place->is_mapped) {
        return &actor_kv_transport_shared;
    }
    return &actor_kv_transport_tcp;
}

void
actor_kv_data_finish(actor_kv_data_t *self, kv_job_t *job, proto_status_t status,
                     uint64_t size_bytes, const char *detail)
{
    transport_of(self, job->peer)->drop(self, job);
    job->in_use = false;
    proto_body_t body = {.kv_copied = {.transfer = job->transfer,
                                       .piece = job->piece,
                                       .status = status,
                                       .size_bytes = status == STATUS_OK ? size_bytes : 0,
                                       .detail = proto_text(detail)}};
    (void)self->options.post(self->options.post_context, PROTO_KIND_KV_COPIED, &body);
}

static void
try_job(actor_kv_data_t *self, kv_job_t *job)
{
    char detail[KV_DATA_DETAIL_SIZE_BYTES] = "";
    if (actor_kv_data_is_closed(self, job->transfer)) {
        actor_kv_data_finish(self, job, STATUS_ERR_CANCELLED, 0, "the transfer was ended");
        return;
    }
    if (job->is_asked) {
        return;
    }
    if (self->options.way == ACTOR_KV_WAY_SHARED && !self->places[job->peer].is_mapped) {
        actor_kv_data_finish(self, job, STATUS_ERR_NOT_FOUND, 0, self->places[job->peer].why);
        return;
    }
    uint64_t size_bytes = 0;
    proto_status_t status = transport_of(self, job->peer)->fetch(self, job, &size_bytes, detail);
    if (status != STATUS_AGAIN) {
        actor_kv_data_finish(self, job, status, size_bytes, detail);
    }
}

static void
fill_job(kv_job_t *job, const proto_kv_copy_t *copy)
{
    job->in_use = true;
    job->is_asked = false;
    job->transfer = copy->transfer;
    job->piece = copy->piece;
    job->gate = copy->gate;
    job->peer = copy->peer;
    job->layer_begin = copy->layer_begin;
    job->layer_end = copy->layer_end;
    job->count = copy->groups.count;
    job->frame_count = 0;
    job->staged_bytes = 0;
    size_t count = job->count;
    if (count > 0) {
        memcpy(job->groups, copy->groups.data, count);
        memcpy(job->from_blocks, copy->from_blocks.data, count * sizeof *job->from_blocks);
        memcpy(job->from_generations, copy->from_generations.data,
               count * sizeof *job->from_generations);
        memcpy(job->to_blocks, copy->to_blocks.data, count * sizeof *job->to_blocks);
    }
}

/* Copies that found no room have failed; the guard is not held while that is told. */
static void
tell_lost(actor_kv_data_t *self)
{
    for (uint32_t i = 0; i < self->options.gate_count; i++) {
        pthread_mutex_lock(&self->mutex);
        kv_lost_t lost = self->lost[i];
        self->lost[i].count = 0;
        pthread_mutex_unlock(&self->mutex);
        for (uint32_t c = 0; c < lost.count; c++) {
            const proto_body_t body = {
                .kv_copied = {.transfer = lost.transfer,
                              .piece = lost.piece,
                              .status = STATUS_ERR_OVERLOADED,
                              .detail = proto_text("no room for the copy to wait in")}};
            (void)self->options.post(self->options.post_context, PROTO_KIND_KV_COPIED, &body);
        }
    }
}

/* Fills free places of the window; pieces of one transfer stay in order, as one peer sends them. */
static void
take_copies(actor_kv_data_t *self)
{
    for (uint32_t i = 0; i < KV_WINDOW; i++) {
        kv_job_t *job = &self->jobs[i];
        if (job->in_use) {
            continue;
        }
        actor_queued_t queued;
        pthread_mutex_lock(&self->mutex);
        proto_status_t status = actor_queue_front(self->copies, &queued);
        if (status == STATUS_OK) {
            status = proto_body_decode(queued.kind, queued.body, queued.blob, &self->body, NULL);
            require(status == STATUS_OK);
            require(self->body.kv_copy.groups.count <= self->options.column_count_max);
            require(self->body.kv_copy.peer < ACTOR_PEER_COUNT_MAX);
            fill_job(job, &self->body.kv_copy);
            actor_queue_pop(self->copies);
        }
        pthread_mutex_unlock(&self->mutex);
        if (!job->in_use) {
            return;
        }
        try_job(self, job);
    }
}

static void
take_serve(actor_kv_data_t *self, const proto_kv_serve_t *serve)
{
    require(serve->gate < self->options.gate_count);
    require(serve->groups.count <= self->options.column_count_max);
    kv_served_t *served = &self->served[(size_t)serve->gate * self->options.flying_max +
                                        serve->piece % self->options.flying_max];
    size_t columns = self->options.column_count_max;
    if (served->groups == NULL) {
        served->groups = calloc(columns, sizeof *served->groups);
        served->blocks = calloc(columns, sizeof *served->blocks);
        served->generations = calloc(columns, sizeof *served->generations);
        if (served->groups == NULL || served->blocks == NULL || served->generations == NULL) {
            free(served->groups);
            free(served->blocks);
            free(served->generations);
            *served = (kv_served_t){.groups = NULL}; /* a pull of it is refused */
            return;
        }
    }
    served->transfer = serve->transfer;
    served->piece = serve->piece;
    served->gate = serve->gate;
    served->peer = serve->peer;
    served->layer_begin = serve->layer_begin;
    served->layer_end = serve->layer_end;
    served->count = serve->groups.count;
    if (served->count > 0) {
        memcpy(served->groups, serve->groups.data, served->count);
        memcpy(served->blocks, serve->blocks.data, served->count * sizeof *served->blocks);
        memcpy(served->generations, serve->generations.data,
               served->count * sizeof *served->generations);
    }
}

static void
take_watch(actor_kv_data_t *self, const proto_kv_watch_t *watch)
{
    self->step_count = watch->steps.count;
    if (watch->steps.count > 0) {
        memcpy(self->steps, watch->steps.data, watch->steps.count * sizeof *self->steps);
    }
    memset(self->told, 0, sizeof self->told);
}

/* Whatever was being brought from a peer whose memory changes is brought no more. */
static void
drop_jobs_of(actor_kv_data_t *self, uint32_t peer)
{
    for (uint32_t i = 0; i < KV_WINDOW; i++) {
        if (self->jobs[i].in_use && (peer == 0 || self->jobs[i].peer == peer)) {
            actor_kv_data_finish(self, &self->jobs[i], STATUS_ERR_PEER_LOST, 0,
                                 "the cache has gone");
        }
    }
}

/* Mapping is done outside the guard, and the queue may grow meanwhile, which moves what it holds:
 * the message goes to memory of its own, where `message` points afterwards.  NULL = no memory. */
static uint8_t *
copy_message(actor_queued_t *message)
{
    size_t blob_room =
        (message->blob.size_bytes / PROTO_COLUMN_ALIGN + 1) * (size_t)PROTO_COLUMN_ALIGN;
    size_t body_room =
        (message->body.size_bytes / PROTO_COLUMN_ALIGN + 1) * (size_t)PROTO_COLUMN_ALIGN;
    uint8_t *memory = aligned_alloc(PROTO_COLUMN_ALIGN, blob_room + body_room);
    if (memory == NULL) {
        return NULL;
    }
    if (message->blob.size_bytes > 0) {
        memcpy(memory, message->blob.data, message->blob.size_bytes);
        message->blob.data = memory;
    }
    if (message->body.size_bytes > 0) {
        memcpy(memory + blob_room, message->body.data, message->body.size_bytes);
        message->body.data = memory + blob_room;
    }
    return memory;
}

/* NULL: there was no memory for the message; the cache counts as gone. */
static void
take_arena(actor_kv_data_t *self, uint32_t peer, const actor_queued_t *message)
{
    proto_body_t body = {.kv_arena = {.region = 0}};
    if (message == NULL) {
        actor_log(ACTOR_LOG_ERROR, "kv.arena", 0, NULL,
                  "no memory to read an arena: nothing goes to or from it");
    } else {
        proto_status_t status =
            proto_body_decode(message->kind, message->body, message->blob, &body, NULL);
        require(status == STATUS_OK);
    }
    drop_jobs_of(self, peer);
    actor_kv_place_arena(self, peer, &body.kv_arena);
}

static bool
take_control(actor_kv_data_t *self)
{
    actor_queued_t queued;
    pthread_mutex_lock(&self->mutex);
    proto_status_t status = actor_queue_front(self->control, &queued);
    if (status != STATUS_OK) {
        pthread_mutex_unlock(&self->mutex);
        return false;
    }
    uint8_t *copied = NULL;
    bool is_arena = queued.kind == PROTO_KIND_KV_ARENA;
    uint32_t peer = (uint32_t)queued.request;
    if (is_arena) {
        copied = copy_message(&queued);
    } else {
        status = proto_body_decode(queued.kind, queued.body, queued.blob, &self->body, NULL);
        require(status == STATUS_OK);
        if (queued.kind == PROTO_KIND_KV_SERVE) {
            take_serve(self, &self->body.kv_serve);
        } else if (queued.kind == PROTO_KIND_KV_WATCH) {
            take_watch(self, &self->body.kv_watch);
        }
    }
    actor_queue_pop(self->control);
    pthread_mutex_unlock(&self->mutex);
    if (is_arena) {
        take_arena(self, peer, copied == NULL ? NULL : &queued);
        free(copied);
    }
    return true;
}

void
actor_kv_data_take_control(actor_kv_data_t *self)
{
    while (take_control(self)) {
    }
}

/* ---- readiness ---------------------------------------------------------------------------------
 */

static void
watch_steps(actor_kv_data_t *self)
{
    const kv_place_t *own = &self->places[0];
    for (uint32_t i = 0; own->in_use && i < self->step_count; i++) {
        for (uint32_t r = 0; r < own->rank_count; r++) {
            const proto_layers_t *layers = (const proto_layers_t *)(void *)own->ready[r].memory;
            if (layers == NULL) {
                continue;
            }
            uint32_t done = proto_layers_done(layers, self->steps[i]);
            done = done > UINT16_MAX ? UINT16_MAX : done;
            if (done > self->told[i][r]) {
                self->told[i][r] = done;
                proto_body_t body = {.kv_ready = {.region = own->regions[r],
                                                  .step = self->steps[i],
                                                  .layer_count = done}};
                (void)self->options.post(self->options.post_context, PROTO_KIND_KV_READY, &body);
            }
        }
    }
}

/* ---- rounds ------------------------------------------------------------------------------------
 */

static bool
has_open_job(const actor_kv_data_t *self)
{
    for (uint32_t i = 0; i < KV_WINDOW; i++) {
        if (self->jobs[i].in_use) {
            return true;
        }
    }
    return false;
}

static void
wait_for_work(actor_kv_data_t *self, uint32_t unended)
{
    zmq_pollitem_t items[2 + ACTOR_PEER_COUNT_MAX];
    int count = 0;
    items[count++] = (zmq_pollitem_t){.fd = self->wake_fd, .events = ZMQ_POLLIN};
    if (self->server.handle != NULL) {
        items[count++] = (zmq_pollitem_t){.socket = self->server.handle, .events = ZMQ_POLLIN};
    }
    for (uint32_t i = 1; i < ACTOR_PEER_COUNT_MAX; i++) {
        if (self->places[i].pull.handle != NULL) {
            items[count++] =
                (zmq_pollitem_t){.socket = self->places[i].pull.handle, .events = ZMQ_POLLIN};
        }
    }
    long wait_ms = IDLE_MS;
    if (self->step_count > 0) {
        wait_ms = WATCH_MS;
    } else if (unended > 0 || has_open_job(self)) {
        wait_ms = BUSY_MS;
    }
    (void)zmq_poll(items, count, wait_ms);
    uint64_t ignored;
    ssize_t rc = read(self->wake_fd, &ignored, sizeof ignored);
    (void)rc;
}

static void *
run(void *context)
{
    actor_kv_data_t *self = context;
    while (!atomic_load(&self->is_ending)) {
        actor_kv_data_take_control(self);
        watch_steps(self);
        for (uint32_t i = 0; i < KV_WINDOW; i++) {
            if (self->jobs[i].in_use) {
                try_job(self, &self->jobs[i]);
            }
        }
        tell_lost(self);
        take_copies(self);
        if (self->server.handle != NULL) {
            actor_kv_serve_receive(self);
        }
        uint32_t unended = actor_kv_serve_end(self);
        while (unended == 0 && self->grave_count > 0) {
            actor_kv_map_close(&self->graves[--self->grave_count]);
        }
        for (uint32_t i = 1; i < ACTOR_PEER_COUNT_MAX; i++) {
            if (self->places[i].pull.handle != NULL) {
                actor_kv_pull_receive(self, &self->places[i], i);
            }
        }
        bool has_copy = false;
        pthread_mutex_lock(&self->mutex);
        has_copy = actor_queue_len(self->copies) > 0;
        pthread_mutex_unlock(&self->mutex);
        bool has_room = false;
        for (uint32_t i = 0; i < KV_WINDOW; i++) {
            has_room = has_room || !self->jobs[i].in_use;
        }
        if (!has_copy || !has_room) {
            wait_for_work(self, unended);
        }
    }
    return NULL;
}

/* ---- life --------------------------------------------------------------------------------------
 */

static bool
alloc_jobs(actor_kv_data_t *self)
{
    size_t columns = self->options.column_count_max;
    bool is_whole = true;
    for (uint32_t i = 0; i < KV_WINDOW; i++) {
        kv_job_t *job = &self->jobs[i];
        job->groups = calloc(columns, sizeof *job->groups);
        job->from_blocks = calloc(columns, sizeof *job->from_blocks);
        job->from_generations = calloc(columns, sizeof *job->from_generations);
        job->to_blocks = calloc(columns, sizeof *job->to_blocks);
        job->sums = calloc(columns, sizeof *job->sums);
        job->frames = calloc(KV_FRAMES_MAX, sizeof *job->frames);
        is_whole = is_whole && job->groups != NULL && job->from_blocks != NULL &&
                   job->from_generations != NULL && job->to_blocks != NULL && job->sums != NULL &&
                   job->frames != NULL;
    }
    for (uint32_t i = 0; i < KV_ENDINGS_MAX; i++) {
        self->endings[i].sums = calloc(columns, sizeof *self->endings[i].sums);
        is_whole = is_whole && self->endings[i].sums != NULL;
    }
    for (uint32_t i = 0; i < KV_BUFFERS; i++) {
        self->buffers[i].memory = aligned_alloc(PROTO_COLUMN_ALIGN, KV_FRAME_SIZE_BYTES);
        is_whole = is_whole && self->buffers[i].memory != NULL;
    }
    self->served =
        calloc((size_t)self->options.gate_count * self->options.flying_max, sizeof *self->served);
    self->lost = calloc(self->options.gate_count, sizeof *self->lost);
    self->scratch = aligned_alloc(PROTO_COLUMN_ALIGN, KV_FRAME_SIZE_BYTES);
    return is_whole && self->lost != NULL && self->served != NULL && self->scratch != NULL;
}

static proto_status_t
open_server(actor_kv_data_t *self)
{
    self->zmq_context = zmq_ctx_new();
    if (self->zmq_context == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    if (self->options.data_endpoint == NULL || self->options.data_endpoint[0] == '\0') {
        return STATUS_OK;
    }
    const actor_socket_options_t options = {.endpoint = self->options.data_endpoint,
                                            .bind = true,
                                            .queue_len_max = SERVER_QUEUE_LEN,
                                            .part_size_bytes_max = KV_FRAME_SIZE_BYTES};
    return actor_socket_open(self->zmq_context, &options, &self->server);
}

proto_status_t
actor_kv_data_new(const actor_kv_data_options_t *options, actor_kv_data_t **out_p)
{
    require(options->post != NULL);
    require(options->gate_count <= ACTOR_KV_GATE_COUNT);
    actor_kv_data_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    if (self->options.queue_size_bytes_max == 0) {
        self->options.queue_size_bytes_max = QUEUE_SIZE_BYTES_MAX;
    }
    self->control_size_bytes = QUEUE_SIZE_BYTES;
    self->copies_size_bytes = QUEUE_SIZE_BYTES;
    self->book_fd = -1;
    self->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    (void)pthread_mutex_init(&self->mutex, NULL);
    actor_frames_init(&self->frames);
    proto_status_t status =
        self->wake_fd < 0 || !alloc_jobs(self) ? STATUS_ERR_NO_MEMORY : STATUS_OK;
    if (status == STATUS_OK) {
        status = actor_queue_new(QUEUE_SIZE_BYTES, &self->control);
    }
    if (status == STATUS_OK) {
        status = actor_queue_new(QUEUE_SIZE_BYTES, &self->copies);
    }
    if (status == STATUS_OK) {
        status = open_server(self);
    }
    if (status != STATUS_OK) {
        actor_kv_data_destroy(&self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

proto_status_t
actor_kv_data_start(actor_kv_data_t *self)
{
    if (pthread_create(&self->thread, NULL, run, self) != 0) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->is_started = true;
    return STATUS_OK;
}

static void
free_memory(actor_kv_data_t *self)
{
    for (uint32_t i = 0; i < KV_WINDOW; i++) {
        kv_job_t *job = &self->jobs[i];
        for (uint32_t f = 0; f < job->frame_count; f++) {
            (void)zmq_msg_close(&job->frames[f]);
        }
        free(job->groups);
        free(job->from_blocks);
        free(job->from_generations);
        free(job->to_blocks);
        free(job->sums);
        free(job->frames);
    }
    for (uint32_t i = 0; i < KV_ENDINGS_MAX; i++) {
        free(self->endings[i].sums);
    }
    for (uint32_t i = 0; i < KV_BUFFERS; i++) {
        free(self->buffers[i].memory);
    }
    size_t count = (size_t)self->options.gate_count * self->options.flying_max;
    for (size_t i = 0; self->served != NULL && i < count; i++) {
        free(self->served[i].groups);
        free(self->served[i].blocks);
        free(self->served[i].generations);
    }
    free(self->served);
    free(self->lost);
    free(self->scratch);
}

void
actor_kv_data_destroy(actor_kv_data_t **self_p)
{
    require(self_p != NULL);
    actor_kv_data_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    if (self->is_started) {
        atomic_store(&self->is_ending, true);
        uint64_t one = 1;
        ssize_t rc = write(self->wake_fd, &one, sizeof one);
        (void)rc;
        (void)pthread_join(self->thread, NULL);
    }
    for (uint32_t i = 0; i < ACTOR_PEER_COUNT_MAX; i++) {
        actor_socket_close(&self->places[i].pull, 0);
    }
    actor_socket_close(&self->server, 0);
    actor_frames_fini(&self->frames);
    if (self->zmq_context != NULL) {
        (void)zmq_ctx_term(self->zmq_context); /* the library lets go of every byte of an arena */
    }
    for (uint32_t i = 0; i < ACTOR_PEER_COUNT_MAX; i++) {
        actor_kv_place_close(&self->places[i]);
    }
    while (self->grave_count > 0) {
        actor_kv_map_close(&self->graves[--self->grave_count]);
    }
    actor_kv_book_close(&self->book);
    if (self->book_fd >= 0) {
        (void)close(self->book_fd);
    }
    actor_queue_destroy(&self->control);
    actor_queue_destroy(&self->copies);
    free_memory(self);
    if (self->wake_fd >= 0) {
        (void)close(self->wake_fd);
    }
    (void)pthread_mutex_destroy(&self->mutex);
    free(self);
    *self_p = NULL;
}

const char *
actor_kv_data_endpoint(const actor_kv_data_t *self)
{
    return self->server.handle == NULL ? "" : self->server.endpoint;
}
