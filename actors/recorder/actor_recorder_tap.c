#include "actor_recorder_tap.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "actor_log.h"
#include "actor_recorder_source.h"
#include "proto_clock.h"
#include "proto_ring.h"

#define MS_NS UINT64_C(1000000)

enum {
    LOOK_MS = 8, /* as the recorder */
    SYNC_MS = 1000,
    RING_SIZE_BYTES = 64 * 1024 * 1024,
};

struct actor_recorder_tap {
    int ring_fd;
    actor_recorder_source_t *source;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex; /* guards is_ending */
    pthread_cond_t ending;
    bool is_ending;
};

static void *
run(void *context)
{
    actor_recorder_tap_t *self = context;
    const proto_clock_t *clock = proto_clock_system();
    uint64_t sync_next_ns = 0;
    pthread_mutex_lock(&self->mutex);
    while (!self->is_ending) {
        pthread_mutex_unlock(&self->mutex);
        bool more = actor_recorder_source_drain(self->source);
        if (proto_clock_monotonic_ns(clock) >= sync_next_ns) {
            sync_next_ns = proto_clock_monotonic_ns(clock) + SYNC_MS * MS_NS;
            actor_recorder_source_sync(self->source);
        }
        pthread_mutex_lock(&self->mutex);
        if (!more && !self->is_ending) {
            struct timespec until;
            (void)clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_nsec += LOOK_MS * (long)MS_NS;
            until.tv_sec += until.tv_nsec / 1000000000L;
            until.tv_nsec %= 1000000000L;
            (void)pthread_cond_timedwait(&self->ending, &self->mutex, &until);
        }
    }
    pthread_mutex_unlock(&self->mutex);
    while (actor_recorder_source_drain(self->source)) {
    }
    actor_recorder_source_sync(self->source);
    return NULL;
}

proto_status_t
actor_recorder_tap_open(const actor_recorder_tap_options_t *options, actor_recorder_tap_t **out_p)
{
    proto_ring_owner_t owner = {.role = options->role,
                                .epoch = options->epoch,
                                .is_strict = options->is_strict ? 1 : 0};
    (void)snprintf(owner.name, sizeof owner.name, "%s", options->name);
    size_t size_bytes =
        options->ring_size_bytes != 0 ? (size_t)options->ring_size_bytes : (size_t)RING_SIZE_BYTES;
    proto_status_t status = actor_recorder_open_folder(options->log_dir);
    if (status != STATUS_OK) {
        return status;
    }
    actor_recorder_tap_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&self->ending, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    (void)pthread_mutex_init(&self->mutex, NULL);
    self->ring_fd = -1;
    status = proto_ring_create(&owner, size_bytes, &self->ring_fd);
    if (status != STATUS_OK) {
        actor_log(ACTOR_LOG_ERROR, "recorder.ring", 0, NULL,
                  "cannot make a record ring of %zu bytes: %s", size_bytes, strerror(errno));
        goto err;
    }
    const actor_recorder_source_options_t source_options = {.fd = self->ring_fd,
                                                            .actor_name = options->name,
                                                            .log_dir = options->log_dir,
                                                            .build = options->build};
    status = actor_recorder_source_open(&source_options, &self->source);
    if (status != STATUS_OK) {
        goto err;
    }
    status = STATUS_ERR_IO;
    self->has_thread = pthread_create(&self->thread, NULL, run, self) == 0;
    if (!self->has_thread) {
        goto err;
    }
    *out_p = self;
    return STATUS_OK;

err:
    actor_recorder_tap_close(&self);
    return status;
}

int
actor_recorder_tap_ring_fd(const actor_recorder_tap_t *self)
{
    return self->ring_fd;
}

void
actor_recorder_tap_close(actor_recorder_tap_t **self_p)
{
    actor_recorder_tap_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    if (self->has_thread) {
        pthread_mutex_lock(&self->mutex);
        self->is_ending = true;
        pthread_cond_signal(&self->ending);
        pthread_mutex_unlock(&self->mutex);
        (void)pthread_join(self->thread, NULL);
    }
    actor_recorder_source_close(&self->source);
    if (self->ring_fd >= 0) {
        (void)close(self->ring_fd);
    }
    (void)pthread_cond_destroy(&self->ending);
    (void)pthread_mutex_destroy(&self->mutex);
    free(self);
    *self_p = NULL;
}
