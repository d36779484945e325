/* Streams and events of the host device.
 *
 * The queue is a ring of fixed-size commands with one producer and one consumer.  The consumer
 * looks at an empty ring for a short while before it sleeps, because the next step is usually
 * on its way; the flag `is_sleeping` keeps the lock out of the common path. */
#include "device_host_private.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto_require.h"

static void
pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static uint64_t
now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void
event_finish(device_event_t *event, uint64_t number)
{
    (void)pthread_mutex_lock(&event->lock);
    atomic_store_explicit(&event->time_ns, now_ns(), memory_order_relaxed);
    atomic_store_explicit(&event->done, number, memory_order_release);
    (void)pthread_cond_broadcast(&event->ran);
    (void)pthread_mutex_unlock(&event->lock);
}

static void
event_wait(device_event_t *event, uint64_t number)
{
    if (atomic_load_explicit(&event->done, memory_order_acquire) >= number) {
        return;
    }
    (void)pthread_mutex_lock(&event->lock);
    while (atomic_load_explicit(&event->done, memory_order_acquire) < number) {
        (void)pthread_cond_wait(&event->ran, &event->lock);
    }
    (void)pthread_mutex_unlock(&event->lock);
}

static void
run_graph(device_stream_t *self, device_graph_t *graph)
{
    device_pool_t *pool = graph->pool;
    /* NaN as float, huge as an index: whoever reads another graph's leftovers shows it. */
    if (((host_device_t *)self->part.device)->options.debug && pool->last != graph &&
        !pool->is_kept) {
        memset(pool->memory, 0xff, pool->size_bytes);
    }
    pool->last = graph;
    kern_team_run_list(self->team, graph->list, graph->count);
}

/* Operations that one thread does, over in a few microseconds: handing them to the team would cost
 * more, and a helper that was preempted would hold them up. */
static bool
is_small(kern_host_fn function)
{
    return function == kern_table_expand_host || function == kern_table_copy_host ||
           function == kern_decode_locations_host || function == kern_extend_locations_host ||
           function == kern_seq_lens_host || function == kern_decode_fill_host ||
           function == kern_extend_fill_host || function == kern_slot_setup_host;
}

/* Runs what stands at `tail`: one command, or all launches that stand there in a row (small ones
 * apart), so that the team is woken once for them.  Returns how many commands that were. */
static uint64_t
run_from(device_stream_t *self, uint64_t tail)
{
    command_t *command = &self->queue[tail & (self->queue_len - 1)];
    switch (command->kind) {
    case COMMAND_KERNEL: {
        uint64_t head = atomic_load_explicit(&self->head, memory_order_acquire);
        kern_command_t list[DEVICE_LIST_LEN_MAX];
        uint32_t count = 0;
        bool small = is_small(command->function);
        while (command->kind == COMMAND_KERNEL && is_small(command->function) == small) {
            list[count].fn = command->function;
            list[count].args = command->u.args;
            count++;
            if (count == DEVICE_LIST_LEN_MAX || tail + count == head) {
                break;
            }
            command = &self->queue[(tail + count) & (self->queue_len - 1)];
        }
        if (small) {
            kern_team_run_alone(self->team, list, count);
        } else {
            kern_team_run_list(self->team, list, count);
        }
        return count;
    }
    case COMMAND_RECORD:
        event_finish(command->u.event.event, command->u.event.number);
        return 1;
    case COMMAND_WAIT:
        event_wait(command->u.event.event, command->u.event.number);
        return 1;
    case COMMAND_CALL:
        command->u.call.function(command->u.call.context);
        return 1;
    case COMMAND_GRAPH:
        run_graph(self, command->u.graph);
        return 1;
    case COMMAND_STOP:
        return 0;
    }
    return 0;
}

/* Returns when there is something in the queue. */
static void
wait_for_command(device_stream_t *self, uint64_t tail)
{
    for (uint32_t i = 0; i < DEVICE_SPIN_COUNT; i++) {
        if (atomic_load_explicit(&self->head, memory_order_acquire) != tail) {
            return;
        }
        pause_briefly();
    }
    (void)pthread_mutex_lock(&self->lock);
    atomic_store(&self->is_sleeping, true);
    while (atomic_load(&self->head) == tail) {
        (void)pthread_cond_wait(&self->pushed, &self->lock);
    }
    atomic_store(&self->is_sleeping, false);
    (void)pthread_mutex_unlock(&self->lock);
}

static void *
stream_main(void *argument)
{
    device_stream_t *self = argument;
    uint64_t tail = 0;
    for (;;) {
        wait_for_command(self, tail);
        uint64_t count = run_from(self, tail);
        if (count == 0) {
            break;
        }
        tail += count;
        atomic_store(&self->tail, tail);
        if (atomic_load(&self->is_full_wait)) {
            (void)pthread_mutex_lock(&self->lock);
            (void)pthread_cond_signal(&self->popped);
            (void)pthread_mutex_unlock(&self->lock);
        }
    }
    return NULL;
}

static command_t *
queue_place(device_stream_t *self)
{
    uint64_t head = atomic_load_explicit(&self->head, memory_order_relaxed);
    if (head - atomic_load_explicit(&self->tail, memory_order_acquire) == self->queue_len) {
        (void)pthread_mutex_lock(&self->lock);
        atomic_store(&self->is_full_wait, true);
        while (head - atomic_load(&self->tail) == self->queue_len) {
            (void)pthread_cond_wait(&self->popped, &self->lock);
        }
        atomic_store(&self->is_full_wait, false);
        (void)pthread_mutex_unlock(&self->lock);
    }
    return &self->queue[head & (self->queue_len - 1)];
}

static void
queue_commit(device_stream_t *self)
{
    atomic_store(&self->head, atomic_load_explicit(&self->head, memory_order_relaxed) + 1);
    if (atomic_load(&self->is_sleeping)) {
        (void)pthread_mutex_lock(&self->lock);
        (void)pthread_cond_signal(&self->pushed);
        (void)pthread_mutex_unlock(&self->lock);
    }
}

/* A capture may grow its list: it happens at start only, before anything is served. */
static command_t *
graph_place(device_graph_t *graph)
{
    if (graph->count == graph->capacity) {
        uint32_t capacity = graph->capacity == 0 ? 256 : graph->capacity * 2;
        command_t *commands = aligned_alloc(64, capacity * sizeof *commands);
        if (commands == NULL) {
            ((host_device_t *)graph->part.device)->capture_spoilt = true;
            graph->count = 0; /* the capture fails at its end; go on in the old list */
            require(graph->capacity > 0);
            return &graph->commands[0];
        }
        if (graph->count > 0) {
            memcpy(commands, graph->commands, graph->count * sizeof *commands);
        }
        free(graph->commands);
        graph->commands = commands;
        graph->capacity = capacity;
    }
    return &graph->commands[graph->count];
}

command_t *
device_host_push(device_stream_t *stream)
{
    require(stream != NULL);
    return stream->capture != NULL ? graph_place(stream->capture) : queue_place(stream);
}

void
device_host_commit(device_stream_t *stream)
{
    if (stream->capture != NULL) {
        stream->capture->count++;
    } else {
        queue_commit(stream);
    }
}

proto_status_t
device_host_stream_new(device_t *base, device_stream_t **out_p)
{
    if (device_host_in_capture(base)) {
        return STATUS_ERR_CAPTURE;
    }
    const device_host_options_t *options = &((host_device_t *)base)->options;
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    device_stream_t *self = aligned_alloc(64, (sizeof *self + 63) & ~(size_t)63);
    if (self == NULL) {
        goto err;
    }
    memset(self, 0, sizeof *self);
    self->part.device = base;
    self->queue_len = options->queue_len_max;
    self->queue = aligned_alloc(64, self->queue_len * sizeof *self->queue);
    if (self->queue == NULL) {
        goto err_free_self;
    }
    (void)pthread_mutex_init(&self->lock, NULL);
    (void)pthread_cond_init(&self->pushed, NULL);
    (void)pthread_cond_init(&self->popped, NULL);
    kern_team_options_t team_options = {.thread_count = options->thread_count,
                                        .path = options->path};
    status = device_host_event_new(base, &self->drained);
    if (status != STATUS_OK) {
        goto err_free_queue;
    }
    status = kern_team_new(&team_options, &self->team);
    if (status != STATUS_OK) {
        goto err_free_event;
    }
    if (pthread_create(&self->thread, NULL, stream_main, self) != 0) {
        status = STATUS_ERR_NO_MEMORY;
        goto err_free_team;
    }
    *out_p = self;
    return STATUS_OK;

err_free_team:
    kern_team_destroy(&self->team);
err_free_event:
    device_host_event_destroy(self->drained);
err_free_queue:
    (void)pthread_cond_destroy(&self->popped);
    (void)pthread_cond_destroy(&self->pushed);
    (void)pthread_mutex_destroy(&self->lock);
    free(self->queue);
err_free_self:
    free(self);
err:
    return status;
}

void
device_host_stream_destroy(device_stream_t *self)
{
    require(self->capture == NULL);
    command_t *command = queue_place(self);
    command->kind = COMMAND_STOP;
    queue_commit(self);
    (void)pthread_join(self->thread, NULL);
    kern_team_destroy(&self->team);
    device_host_event_destroy(self->drained);
    (void)pthread_cond_destroy(&self->popped);
    (void)pthread_cond_destroy(&self->pushed);
    (void)pthread_mutex_destroy(&self->lock);
    free(self->queue);
    free(self);
}

proto_status_t
device_host_stream_synchronize(device_stream_t *self)
{
    proto_status_t status = device_host_event_record(self->drained, self);
    if (status != STATUS_OK) {
        return status;
    }
    status = device_host_event_synchronize(self->drained);
    return status != STATUS_OK ? status : device_host_stream_check(self);
}

/* The one failure that leaves the process alive is that of its group of ranks. */
proto_status_t
device_host_stream_check(const device_stream_t *self)
{
    require(self != NULL);
    return self->part.device->fault == NULL ? STATUS_OK : STATUS_ERR_DEVICE;
}

proto_status_t
device_host_stream_wait(device_stream_t *self, device_event_t *event)
{
    if (device_host_in_capture(self->part.device)) {
        return STATUS_ERR_CAPTURE;
    }
    command_t *command = queue_place(self);
    command->kind = COMMAND_WAIT;
    command->u.event.event = event;
    command->u.event.number = atomic_load_explicit(&event->recorded, memory_order_acquire);
    queue_commit(self);
    return STATUS_OK;
}

proto_status_t
device_host_stream_call(device_stream_t *self, void (*function)(void *), void *context)
{
    if (device_host_in_capture(self->part.device)) {
        return STATUS_ERR_CAPTURE;
    }
    command_t *command = queue_place(self);
    command->kind = COMMAND_CALL;
    command->u.call.function = function;
    command->u.call.context = context;
    queue_commit(self);
    return STATUS_OK;
}

proto_status_t
device_host_event_new(device_t *base, device_event_t **out_p)
{
    if (device_host_in_capture(base)) {
        return STATUS_ERR_CAPTURE;
    }
    device_event_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->part.device = base;
    (void)pthread_mutex_init(&self->lock, NULL);
    (void)pthread_cond_init(&self->ran, NULL);
    *out_p = self;
    return STATUS_OK;
}

void
device_host_event_destroy(device_event_t *self)
{
    (void)pthread_cond_destroy(&self->ran);
    (void)pthread_mutex_destroy(&self->lock);
    free(self);
}

proto_status_t
device_host_event_record(device_event_t *self, device_stream_t *stream)
{
    if (device_host_in_capture(self->part.device)) {
        return STATUS_ERR_CAPTURE;
    }
    command_t *command = queue_place(stream);
    command->kind = COMMAND_RECORD;
    command->u.event.event = self;
    command->u.event.number = atomic_fetch_add(&self->recorded, 1) + 1;
    queue_commit(stream);
    return STATUS_OK;
}

proto_status_t
device_host_event_query(const device_event_t *self)
{
    if (device_host_in_capture(self->part.device)) {
        return STATUS_ERR_CAPTURE;
    }
    uint64_t recorded = atomic_load_explicit(&self->recorded, memory_order_acquire);
    uint64_t done = atomic_load_explicit(&self->done, memory_order_acquire);
    return done >= recorded ? STATUS_OK : STATUS_AGAIN;
}

proto_status_t
device_host_event_synchronize(device_event_t *self)
{
    if (device_host_in_capture(self->part.device)) {
        return STATUS_ERR_CAPTURE;
    }
    event_wait(self, atomic_load_explicit(&self->recorded, memory_order_acquire));
    return STATUS_OK;
}

uint64_t
device_host_event_time_ns(const device_event_t *self)
{
    return atomic_load_explicit(&self->time_ns, memory_order_relaxed);
}
