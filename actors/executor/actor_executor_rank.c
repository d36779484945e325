/* A rank that is not the first: a device, and what rank 0 tells it. */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "actor_executor_group.h"
#include "actor_exit.h"
#include "actor_fault.h"
#include "actor_log.h"
#include "proto_require.h"

enum { WAIT_MS = 500 };

typedef struct {
    device_group_t *ranks;
    run_executor_t *run;
    pthread_mutex_t lock;
    pthread_cond_t ended; /* a step has, or it is time to look */
    bool is_completed;
    bool is_over; /* rank 0 said so */
    proto_body_t body;
    char error[512];
} rank_t;

static void
on_complete(void *context)
{
    rank_t *self = context;
    (void)pthread_mutex_lock(&self->lock);
    self->is_completed = true;
    (void)pthread_cond_signal(&self->ended);
    (void)pthread_mutex_unlock(&self->lock);
}

/* What has ended is dropped: rank 0 answers for all.  STATUS_OK, or why the device failed. */
static proto_status_t
drop_results(rank_t *self)
{
    proto_step_done_t done;
    proto_status_t status = STATUS_OK;
    while (status == STATUS_OK) {
        status = run_executor_collect(self->run, &done);
    }
    return status < 0 ? status : STATUS_OK;
}

static void
wait_for_step(rank_t *self)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 1; /* a group that fails calls nobody */
    (void)pthread_mutex_lock(&self->lock);
    if (!self->is_completed) {
        (void)pthread_cond_timedwait(&self->ended, &self->lock, &until);
    }
    self->is_completed = false;
    (void)pthread_mutex_unlock(&self->lock);
}

static proto_status_t
launch(rank_t *self, bool has_graphs_off)
{
    if (has_graphs_off != run_executor_has_graphs_off(self->run)) {
        run_executor_set_graphs(self->run, !has_graphs_off);
    }
    (void)ACTOR_FAULT("executor.rank_before_launch");
    for (;;) {
        proto_status_t status = drop_results(self);
        if (status == STATUS_OK) {
            status = run_executor_launch(self->run, &self->body.step_launch);
        }
        if (status != STATUS_FULL) {
            (void)ACTOR_FAULT("executor.rank_after_launch");
            return status;
        }
        wait_for_step(self);
    }
}

static proto_status_t
carry_out(rank_t *self, const device_group_message_t *message)
{
    if (message->kind == PROTO_KIND_STOP) {
        self->is_over = true;
        return STATUS_OK;
    }
    proto_bytes_t body = {message->body, (uint32_t)message->body_size_bytes};
    proto_bytes_t blob = {message->blob, (uint32_t)message->blob_size_bytes};
    proto_status_t status =
        proto_body_decode((proto_kind_t)message->kind, body, blob, &self->body, NULL);
    if (status != STATUS_OK) {
        return status;
    }
    if (message->kind == PROTO_KIND_SLOT_SETUP) {
        return run_executor_slot_setup(self->run, &self->body.slot_setup);
    }
    if (message->kind == PROTO_KIND_DEVICE_RESET) {
        return run_executor_reset(self->run);
    }
    require(message->kind == PROTO_KIND_STEP_LAUNCH);
    return launch(self, message->flags != 0);
}

static proto_status_t
serve(rank_t *self)
{
    while (!self->is_over) {
        device_group_message_t message;
        proto_status_t status = device_group_receive(self->ranks, WAIT_MS, &message);
        if (status == STATUS_OK) {
            status = carry_out(self, &message);
        } else if (status == STATUS_AGAIN) {
            status = drop_results(self);
        }
        if (status < 0) {
            return status;
        }
    }
    return STATUS_OK;
}

static proto_status_t
load(rank_t *self, const actor_executor_options_t *options)
{
    run_executor_options_t run = options->run;
    run.on_complete = on_complete;
    run.on_complete_context = self;
    run.progress = NULL;
    run.error = self->error;
    run.error_size_bytes = sizeof self->error;
    run.group = self->ranks;
    return run_executor_new(&run, &self->run);
}

int
actor_executor_rank_run(const actor_executor_options_t *options, uint32_t rank, int group_fd)
{
    /* Whoever ends a node signals all its processes; a rank ends when rank 0 does. */
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGINT, SIG_IGN);
    static rank_t self;
    const device_group_options_t join = {.fd = group_fd, .rank = rank};
    proto_status_t status = device_group_join(&join, &self.ranks);
    if (status != STATUS_OK) {
        actor_log(ACTOR_LOG_ERROR, "executor.rank", 0, NULL,
                  "cannot join the group as rank %" PRIu32 ": %s", rank, proto_status_text(status));
        return ACTOR_EXIT_CONFIG;
    }
    (void)pthread_mutex_init(&self.lock, NULL);
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&self.ended, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    status = load(&self, options);
    if (status == STATUS_OK) {
        status = serve(&self);
    }
    if (status != STATUS_OK) {
        const char *fault = device_group_fault(self.ranks);
        const char *own = self.run != NULL ? run_executor_fault(self.run) : self.error;
        const char *why = fault != NULL ? fault : own[0] != '\0' ? own : proto_status_text(status);
        actor_log(ACTOR_LOG_ERROR, "executor.rank", 0,
                  ACTOR_LOG_FIELDS(actor_log_u64("rank", rank)), "rank %" PRIu32 " ends: %s", rank,
                  why);
        device_group_fail(self.ranks, "rank %" PRIu32 " failed: %s", rank, why);
    }
    run_executor_destroy(&self.run);
    device_group_leave(&self.ranks);
    return actor_exit_code(status);
}
