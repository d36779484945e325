/* actor_http_worker.c - two rings of pointers under one lock. */
#include "actor_http_worker.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "proto_require.h"

typedef struct {
    void **jobs; /* [count_max] */
    uint32_t first;
    uint32_t count;
} ring_t;

struct actor_http_worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work; /* waiting is not empty, or stopping */
    ring_t waiting;
    ring_t done;
    uint32_t count_max;     /* of each ring */
    uint32_t in_work_count; /* 0 or 1 */
    bool stopping;
    int event_fd;
    actor_http_job_fn run;
    void *context;
};

static void
ring_push(ring_t *ring, uint32_t count_max, void *job)
{
    require(ring->count < count_max);
    ring->jobs[(ring->first + ring->count) % count_max] = job;
    ring->count++;
}

static void *
ring_pop(ring_t *ring, uint32_t count_max)
{
    if (ring->count == 0) {
        return NULL;
    }
    void *job = ring->jobs[ring->first];
    ring->first = (ring->first + 1) % count_max;
    ring->count--;
    return job;
}

static void
lock(actor_http_worker_t *self)
{
    int result = pthread_mutex_lock(&self->lock);
    require(result == 0);
}

static void
unlock(actor_http_worker_t *self)
{
    int result = pthread_mutex_unlock(&self->lock);
    require(result == 0);
}

static void *
work(void *argument)
{
    actor_http_worker_t *self = argument;
    lock(self);
    while (!self->stopping) {
        void *job = ring_pop(&self->waiting, self->count_max);
        if (job == NULL) {
            (void)pthread_cond_wait(&self->work, &self->lock);
            continue;
        }
        self->in_work_count = 1;
        unlock(self);
        self->run(self->context, job);
        lock(self);
        self->in_work_count = 0;
        ring_push(&self->done, self->count_max, job);
        uint64_t one = 1;
        ssize_t written = write(self->event_fd, &one, sizeof one);
        (void)written; /* fails only when the counter is full: then it is readable anyway */
    }
    unlock(self);
    return NULL;
}

static void
free_all(actor_http_worker_t *self)
{
    if (self->event_fd >= 0) {
        (void)close(self->event_fd);
    }
    free(self->waiting.jobs);
    free(self->done.jobs);
    (void)pthread_cond_destroy(&self->work);
    (void)pthread_mutex_destroy(&self->lock);
    free(self);
}

proto_status_t
actor_http_worker_new(uint32_t job_count_max, actor_http_job_fn run, void *context,
                      actor_http_worker_t **out_p)
{
    require(job_count_max > 0);
    require(run != NULL);
    require(out_p != NULL);
    actor_http_worker_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    /* A job is in one ring or in work, and push counts all three: neither ring overflows. */
    self->count_max = job_count_max + 1;
    self->run = run;
    self->context = context;
    (void)pthread_mutex_init(&self->lock, NULL);
    (void)pthread_cond_init(&self->work, NULL);
    self->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    self->waiting.jobs = calloc(self->count_max, sizeof *self->waiting.jobs);
    self->done.jobs = calloc(self->count_max, sizeof *self->done.jobs);
    if (self->event_fd < 0 || self->waiting.jobs == NULL || self->done.jobs == NULL ||
        pthread_create(&self->thread, NULL, work, self) != 0) {
        free_all(self);
        return STATUS_ERR_NO_MEMORY;
    }
    *out_p = self;
    return STATUS_OK;
}

void
actor_http_worker_destroy(actor_http_worker_t **self_p)
{
    require(self_p != NULL);
    actor_http_worker_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    lock(self);
    self->stopping = true;
    (void)pthread_cond_signal(&self->work);
    unlock(self);
    (void)pthread_join(self->thread, NULL);
    free_all(self);
    *self_p = NULL;
}

proto_status_t
actor_http_worker_push(actor_http_worker_t *self, void *job)
{
    lock(self);
    bool full =
        self->waiting.count + self->in_work_count + self->done.count + 1 > self->count_max - 1;
    if (!full) {
        ring_push(&self->waiting, self->count_max, job);
        (void)pthread_cond_signal(&self->work);
    }
    unlock(self);
    return full ? STATUS_FULL : STATUS_OK;
}

void *
actor_http_worker_pop(actor_http_worker_t *self)
{
    lock(self);
    void *job = ring_pop(&self->done, self->count_max);
    if (job == NULL) {
        uint64_t count = 0;
        ssize_t got = read(self->event_fd, &count, sizeof count);
        (void)got; /* nothing to read is fine */
    }
    unlock(self);
    return job;
}

int
actor_http_worker_fd(const actor_http_worker_t *self)
{
    return self->event_fd;
}
