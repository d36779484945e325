#include "actor_drafter_shared.h"

#include <czmq.h>
#include <pthread.h>
#include <stdlib.h>

#include "proto_require.h"

struct actor_drafter_shared {
    actor_drafter_options_t options;
    void *context;
    atomic_int stop;
    pthread_t thread;
    bool is_started;
};

const char *
actor_drafter_shared_endpoint(void)
{
    return "inproc://executor-drafter";
}

proto_status_t
actor_drafter_shared_new(const actor_drafter_options_t *options, actor_drafter_shared_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);
    actor_drafter_shared_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->context = zmq_ctx_new();
    if (self->context == NULL) {
        free(self);
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    self->options.executor_endpoint = actor_drafter_shared_endpoint();
    self->options.supervisor_endpoint = NULL;
    self->options.ring_fd = -1;
    self->options.stop = &self->stop;
    self->options.zmq_context = self->context;
    *out_p = self;
    return STATUS_OK;
}

void *
actor_drafter_shared_context(const actor_drafter_shared_t *self)
{
    return self->context;
}

static void *
shared_main(void *context)
{
    actor_drafter_shared_t *self = context;
    (void)actor_drafter_run(&self->options);
    return NULL;
}

proto_status_t
actor_drafter_shared_start(actor_drafter_shared_t *self)
{
    require(!self->is_started);
    if (pthread_create(&self->thread, NULL, shared_main, self) != 0) {
        return STATUS_ERR_IO;
    }
    self->is_started = true;
    return STATUS_OK;
}

void
actor_drafter_shared_destroy(actor_drafter_shared_t **self_p)
{
    require(self_p != NULL);
    actor_drafter_shared_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    if (self->is_started) {
        atomic_store(&self->stop, 2);
        (void)pthread_join(self->thread, NULL);
    }
    (void)zmq_ctx_term(self->context);
    free(self);
    *self_p = NULL;
}
