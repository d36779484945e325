#include "actor_executor_device.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "actor_executor_group.h"
#include "actor_executor_queue.h"
#include "actor_fault.h"
#include "actor_log.h"
#include "proto_clock.h"
#include "proto_require.h"

enum {
    QUEUE_SIZE_BYTES = 2 * (PROTO_BLOB_SIZE_MAX + PROTO_BODY_SIZE_MAX),
    PUSH_WAIT_S = 10,
    FAILURE_POLL_NS = 200 * 1000 * 1000, /* while a step is in flight */
    WISH_COUNT_MAX = 16,                 /* the supervisor has 8 under way, and may withdraw each */
};

typedef struct {
    uint64_t number;
    actor_executor_wish_t wish;
} asked_wish_t;

struct actor_executor_device {
    const actor_executor_options_t *options;
    actor_shell_t *shell;
    pthread_t thread;
    bool is_started;

    /* The device: one of the two; the device thread's own. */
    run_executor_t *run;
    actor_executor_group_t *group; /* of the other ranks; NULL = alone */
    actor_executor_null_t *null;
    run_executor_t *_Atomic run_for_layer; /* the same, for the shell's thread */

    pthread_mutex_t lock; /* covers what follows */
    pthread_cond_t work;  /* the device thread waits for a command, a completion or the end */
    pthread_cond_t room;  /* the shell waits for room */
    actor_executor_queue_t queue;
    bool is_stopping;
    bool is_failed;
    bool is_completed;                   /* a step ended since the last look */
    bool is_waiting;                     /* the device thread sleeps on `work` */
    bool is_open;                        /* the device can be asked: it is loaded */
    asked_wish_t wishes[WISH_COUNT_MAX]; /* not looked at yet, the oldest first */
    uint32_t wish_count;

    char error[512];
    actor_executor_check_t check; /* the device thread's own */
    proto_body_t body;            /* what is decoded or posted; the device thread's own */
};

/* ---- the device, whichever it is ------------------------------------------------------------- */

static void
device_info(actor_executor_device_t *self, proto_executor_info_t *out)
{
    if (self->null != NULL) {
        actor_executor_null_info(self->null, out);
    } else {
        run_executor_info(self->run, out);
    }
}

static proto_status_t
device_setup(actor_executor_device_t *self, const proto_slot_setup_t *setup)
{
    return self->null != NULL ? actor_executor_null_slot_setup(self->null, setup)
                              : run_executor_slot_setup(self->run, setup);
}

static proto_status_t
device_launch(actor_executor_device_t *self, const proto_step_launch_t *launch)
{
    return self->null != NULL ? actor_executor_null_launch(self->null, launch)
                              : run_executor_launch(self->run, launch);
}

static proto_status_t
device_collect(actor_executor_device_t *self, proto_step_done_t *out)
{
    return self->null != NULL ? actor_executor_null_collect(self->null, out)
                              : run_executor_collect(self->run, out);
}

static proto_status_t
device_reset(actor_executor_device_t *self)
{
    return self->null != NULL ? actor_executor_null_reset(self->null)
                              : run_executor_reset(self->run);
}

/* A step has ended: any thread of the device. */
static void
on_complete(void *context)
{
    actor_executor_device_t *self = context;
    (void)pthread_mutex_lock(&self->lock);
    self->is_completed = true;
    if (self->is_waiting) {
        (void)pthread_cond_signal(&self->work);
    }
    (void)pthread_mutex_unlock(&self->lock);
}

static void
on_progress(void *context, const char *phase, uint64_t done_bytes, uint64_t total_bytes)
{
    actor_executor_device_t *self = context;
    actor_shell_report(self->shell, ACTOR_STATE_LOADING, done_bytes, total_bytes, phase);
}

/* What was sized and why: the lines of the device's own summary. */
static void
log_summary(const char *text)
{
    while (*text != '\0') {
        size_t length = strcspn(text, "\n");
        actor_log(ACTOR_LOG_INFO, "device.sized", 0, NULL, "%.*s", (int)length, text);
        text += length + (text[length] == '\n' ? 1 : 0);
    }
}

static proto_status_t
device_open(actor_executor_device_t *self)
{
    const actor_executor_options_t *options = self->options;
    if (options->null_device) {
        (void)snprintf(self->error, sizeof self->error, "the null device's options are wrong");
        return actor_executor_null_new(&options->null, &self->null);
    }
    run_executor_options_t run = options->run;
    run.on_complete = on_complete;
    run.on_complete_context = self;
    run.progress = on_progress;
    run.progress_context = self;
    run.error = self->error;
    run.error_size_bytes = sizeof self->error;
    run.group = self->group == NULL ? NULL : actor_executor_group_ranks(self->group);
    proto_status_t status = run_executor_new(&run, &self->run);
    if (status == STATUS_OK) {
        atomic_store(&self->run_for_layer, self->run);
        log_summary(run_executor_summary(self->run));
    }
    return status;
}

/* ---- the device thread ----------------------------------------------------------------------- */

static void
post_failed(actor_executor_device_t *self, proto_status_t status, const char *detail)
{
    (void)pthread_mutex_lock(&self->lock);
    self->is_failed = true;
    (void)pthread_cond_broadcast(&self->room);
    (void)pthread_mutex_unlock(&self->lock);
    self->body.device_failed =
        (proto_device_failed_t){.status = status, .detail = proto_text(detail)};
    /* Only a shell that is stopping refuses, and then nobody needs to know. */
    if (actor_shell_post(self->shell, PROTO_KIND_DEVICE_FAILED, 0, &self->body) != STATUS_OK) {
        actor_log(ACTOR_LOG_DEBUG, "device.failed", 0, NULL, "%s", detail);
    }
}

static proto_status_t
post_ready(actor_executor_device_t *self)
{
    device_info(self, &self->body.executor_info);
    proto_status_t status = actor_shell_post(self->shell, PROTO_KIND_DEVICE_READY, 0, &self->body);
    if (status == STATUS_OK) {
        actor_shell_report(self->shell, ACTOR_STATE_READY, 0, 0, "loaded");
    }
    return status;
}

/* Posts every step that has ended.  STATUS_OK, or why the thread must end. */
static proto_status_t
collect_all(actor_executor_device_t *self)
{
    for (;;) {
        proto_status_t status = device_collect(self, &self->body.step_done);
        if (status > 0) {
            return STATUS_OK; /* it runs, or there is none */
        }
        if (status < 0) {
            const char *fault = self->run != NULL ? run_executor_fault(self->run) : "";
            post_failed(self, status,
                        fault[0] != '\0' ? fault : "the device gave an error for a step");
            return status;
        }
        if (ACTOR_FAULT("executor.before_done")) {
            continue;
        }
        status = actor_shell_post(self->shell, PROTO_KIND_STEP_DONE, 0, &self->body);
        if (status != STATUS_OK) {
            return status;
        }
    }
}

/* The other ranks are told what the device of this one took. */
static proto_status_t
forward(actor_executor_device_t *self, const actor_executor_record_t *record)
{
    if (self->group == NULL) {
        return STATUS_OK;
    }
    return actor_executor_group_forward(self->group, record->kind,
                                        run_executor_has_graphs_off(self->run),
                                        actor_executor_record_body(record),
                                        actor_executor_record_blob(record));
}

/* Carries out one command.  STATUS_FULL: not now, a step must end first. */
static proto_status_t
execute(actor_executor_device_t *self, const actor_executor_record_t *record)
{
    proto_error_t error;
    proto_status_t status =
        proto_body_decode(record->kind, actor_executor_record_body(record),
                          actor_executor_record_blob(record), &self->body, &error);
    if (status != STATUS_OK) {
        post_failed(self, STATUS_ERR_INTERNAL, error.detail);
        return status;
    }
    if (record->kind == PROTO_KIND_SLOT_SETUP) {
        status = device_setup(self, &self->body.slot_setup);
        status = status == STATUS_OK ? forward(self, record) : status;
    } else if (record->kind == PROTO_KIND_STEP_LAUNCH) {
        (void)ACTOR_FAULT("executor.before_launch");
        status = device_launch(self, &self->body.step_launch);
        status = status == STATUS_OK ? forward(self, record) : status;
        (void)ACTOR_FAULT("executor.after_launch");
        actor_executor_wish_look(self->run, self->shell, &self->check);
    } else {
        require(record->kind == PROTO_KIND_DEVICE_RESET);
        status = device_reset(self);
        status = status == STATUS_OK ? forward(self, record) : status;
        if (status == STATUS_OK) {
            return post_ready(self);
        }
    }
    if (status < 0) {
        const char *fault = self->run != NULL ? run_executor_fault(self->run) : "";
        char detail[512];
        (void)snprintf(detail, sizeof detail, "%s: %s%s%s", proto_kind_name(record->kind),
                       proto_status_text(status), fault[0] != '\0' ? ": " : "", fault);
        post_failed(self, status, detail);
    }
    return status;
}

static void
deadline_after(struct timespec *out, uint64_t wait_ns)
{
    (void)clock_gettime(CLOCK_MONOTONIC, out);
    uint64_t ns = (uint64_t)out->tv_nsec + wait_ns % 1000000000u;
    out->tv_sec += (time_t)(wait_ns / 1000000000u + ns / 1000000000u);
    out->tv_nsec = (long)(ns % 1000000000u);
}

/* Sleeps until there is something to do; false at the end.  `is_blocked`: the front command waits
 * for a step to end. */
static bool
wait_for_work(actor_executor_device_t *self, bool is_blocked)
{
    uint64_t wait_ns = self->null != NULL ? actor_executor_null_wait_ns(self->null) : UINT64_MAX;
    if (self->run != NULL && run_executor_is_busy(self->run)) {
        wait_ns = FAILURE_POLL_NS; /* a device that fails calls nobody */
    }
    struct timespec deadline;
    if (wait_ns != UINT64_MAX) {
        deadline_after(&deadline, wait_ns);
    }
    (void)pthread_mutex_lock(&self->lock);
    self->is_waiting = true;
    int result = 0;
    while (!self->is_stopping && !self->is_completed && self->wish_count == 0 &&
           result != ETIMEDOUT && (is_blocked || self->queue.count == 0)) {
        result = wait_ns == UINT64_MAX
                     ? pthread_cond_wait(&self->work, &self->lock)
                     : pthread_cond_timedwait(&self->work, &self->lock, &deadline);
    }
    self->is_waiting = false;
    self->is_completed = false;
    bool goes_on = !self->is_stopping;
    (void)pthread_mutex_unlock(&self->lock);
    return goes_on;
}

static const actor_executor_record_t *
front(actor_executor_device_t *self)
{
    (void)pthread_mutex_lock(&self->lock);
    const actor_executor_record_t *record = actor_executor_queue_front(&self->queue);
    (void)pthread_mutex_unlock(&self->lock);
    return record;
}

static void
pop(actor_executor_device_t *self)
{
    (void)pthread_mutex_lock(&self->lock);
    actor_executor_queue_pop(&self->queue);
    (void)pthread_cond_signal(&self->room);
    (void)pthread_mutex_unlock(&self->lock);
}

static void
serve_wishes(actor_executor_device_t *self)
{
    asked_wish_t wishes[WISH_COUNT_MAX];
    (void)pthread_mutex_lock(&self->lock);
    uint32_t count = self->wish_count;
    memcpy(wishes, self->wishes, count * sizeof wishes[0]);
    self->wish_count = 0;
    (void)pthread_mutex_unlock(&self->lock);
    for (uint32_t i = 0; i < count; i++) {
        if (wishes[i].wish == ACTOR_EXECUTOR_WISH_CANCEL) {
            actor_executor_wish_cancel(wishes[i].number, self->run, &self->check);
        } else {
            actor_executor_wish_begin(wishes[i].wish, wishes[i].number, self->run, self->shell,
                                      &self->check);
        }
    }
}

static void
device_loop(actor_executor_device_t *self)
{
    bool is_blocked = false;
    while (wait_for_work(self, is_blocked)) {
        if (collect_all(self) != STATUS_OK) {
            return;
        }
        is_blocked = false;
        serve_wishes(self);
        const actor_executor_record_t *record = front(self);
        while (record != NULL && !is_blocked) {
            proto_status_t status = execute(self, record);
            if (status < 0) {
                return;
            }
            if (status == STATUS_FULL) {
                is_blocked = true;
            } else {
                pop(self);
            }
            if (collect_all(self) != STATUS_OK) {
                return;
            }
            serve_wishes(self);
            record = front(self);
        }
    }
}

static void *
device_main(void *context)
{
    actor_executor_device_t *self = context;
    proto_status_t status = device_open(self);
    if (status != STATUS_OK) {
        post_failed(self, status < 0 ? status : STATUS_ERR_INTERNAL,
                    self->error[0] != '\0' ? self->error : proto_status_text(status));
        return NULL;
    }
    (void)pthread_mutex_lock(&self->lock);
    self->is_open = true; /* before READY is reported: who reads that may ask at once */
    (void)pthread_mutex_unlock(&self->lock);
    if (post_ready(self) == STATUS_OK) {
        device_loop(self);
    }
    return NULL;
}

/* ---- the shell's side ------------------------------------------------------------------------ */

proto_status_t
actor_executor_device_new(const actor_executor_options_t *options, actor_executor_device_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);
    actor_executor_device_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = options;
    proto_status_t status = actor_executor_queue_init(&self->queue, QUEUE_SIZE_BYTES);
    if (status != STATUS_OK) {
        free(self);
        return status;
    }
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&self->lock, NULL);
    (void)pthread_cond_init(&self->work, &monotonic);
    (void)pthread_cond_init(&self->room, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    if (options->rank_count > 1) {
        const actor_executor_group_options_t ranks = {.rank_count = options->rank_count,
                                                      .argv = options->rank_argv,
                                                      .on_failed = on_complete,
                                                      .context = self};
        status = actor_executor_group_new(&ranks, &self->group);
        if (status != STATUS_OK) {
            actor_executor_device_destroy(&self);
            return status;
        }
    }
    *out_p = self;
    return STATUS_OK;
}

/* The null device without a thread: what it is told is done when the call returns; the core hears
 * of it when the messages of its present step are out. */
static proto_status_t
push_inline(actor_executor_device_t *self, const actor_emission_t *command)
{
    proto_status_t status =
        proto_body_decode(command->kind, command->body, command->blob, &self->body, NULL);
    if (status != STATUS_OK) {
        return status;
    }
    if (command->kind == PROTO_KIND_SLOT_SETUP) {
        return device_setup(self, &self->body.slot_setup);
    }
    if (command->kind == PROTO_KIND_DEVICE_RESET) {
        status = device_reset(self);
        device_info(self, &self->body.executor_info);
        actor_shell_inject(self->shell, PROTO_KIND_DEVICE_READY, 0, &self->body);
        return status;
    }
    require(command->kind == PROTO_KIND_STEP_LAUNCH);
    status = device_launch(self, &self->body.step_launch);
    if (status == STATUS_OK) {
        status = device_collect(self, &self->body.step_done);
    }
    if (status == STATUS_OK) {
        actor_shell_inject(self->shell, PROTO_KIND_STEP_DONE, 0, &self->body);
    }
    return status;
}

proto_status_t
actor_executor_device_start(actor_executor_device_t *self, actor_shell_t *shell)
{
    require(!self->is_started);
    self->shell = shell;
    if (self->options->null_device && self->options->null.is_inline) {
        proto_status_t status = device_open(self);
        return status == STATUS_OK ? post_ready(self) : status;
    }
    if (pthread_create(&self->thread, NULL, device_main, self) != 0) {
        return STATUS_ERR_IO;
    }
    self->is_started = true;
    return STATUS_OK;
}

proto_status_t
actor_executor_device_push(actor_executor_device_t *self, const actor_emission_t *command)
{
    if (!self->is_started) {
        return push_inline(self, command);
    }
    struct timespec deadline;
    (void)clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += PUSH_WAIT_S;
    (void)pthread_mutex_lock(&self->lock);
    bool is_in = false;
    int result = 0;
    while (!self->is_failed && !self->is_stopping && result != ETIMEDOUT) {
        is_in = actor_executor_queue_push(&self->queue, command);
        if (is_in) {
            break;
        }
        result = pthread_cond_timedwait(&self->room, &self->lock, &deadline);
    }
    bool wakes = is_in && self->is_waiting;
    (void)pthread_mutex_unlock(&self->lock);
    if (wakes) {
        (void)pthread_cond_signal(&self->work);
    }
    return is_in ? STATUS_OK : STATUS_ERR_DEVICE;
}

/* A wish that the device thread has not looked at is simply taken out; true if it was there. */
static bool
take_out(actor_executor_device_t *self, uint64_t number)
{
    for (uint32_t i = 0; i < self->wish_count; i++) {
        if (self->wishes[i].number == number) {
            self->wish_count--;
            memmove(self->wishes + i, self->wishes + i + 1,
                    (self->wish_count - i) * sizeof self->wishes[0]);
            return true;
        }
    }
    return false;
}

void
actor_executor_device_ask(actor_executor_device_t *self, uint64_t number,
                          actor_executor_wish_t wish)
{
    bool is_cancel = wish == ACTOR_EXECUTOR_WISH_CANCEL;
    if (self->options->null_device) {
        if (!is_cancel) {
            actor_executor_wish_begin(wish, number, NULL, self->shell, &self->check);
        }
        return;
    }
    const char *why = NULL;
    (void)pthread_mutex_lock(&self->lock);
    if (!self->is_open || self->is_failed || self->is_stopping) {
        why = self->is_open ? "this executor is ending; try again in a moment"
                            : "this executor is not ready yet; try again in a moment";
    } else if (self->wish_count == WISH_COUNT_MAX) {
        why = "too many wishes wait for this executor; try again in a moment";
    } else if (!is_cancel || !take_out(self, number)) {
        self->wishes[self->wish_count++] = (asked_wish_t){number, wish};
        (void)pthread_cond_signal(&self->work);
    }
    (void)pthread_mutex_unlock(&self->lock);
    if (why != NULL && !is_cancel) {
        actor_shell_answer(self->shell, number, STATUS_ERR_OVERLOADED, why);
    }
}

void
actor_executor_device_admit_drafter(actor_executor_device_t *self, uint64_t epoch)
{
    run_executor_t *run = atomic_load(&self->run_for_layer);
    if (run != NULL) {
        run_executor_draft_admit(run, epoch);
    }
}

uint32_t
actor_executor_device_layer(const actor_executor_device_t *self)
{
    run_executor_t *run = atomic_load(&self->run_for_layer);
    return run != NULL ? run_executor_layer(run) : 0;
}

void
actor_executor_device_destroy(actor_executor_device_t **self_p)
{
    require(self_p != NULL);
    actor_executor_device_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    if (self->is_started) {
        (void)pthread_mutex_lock(&self->lock);
        self->is_stopping = true;
        (void)pthread_cond_broadcast(&self->work);
        (void)pthread_cond_broadcast(&self->room);
        (void)pthread_mutex_unlock(&self->lock);
        (void)pthread_join(self->thread, NULL);
    }
    run_executor_destroy(&self->run);
    actor_executor_group_destroy(&self->group);
    actor_executor_null_destroy(&self->null);
    actor_executor_queue_fini(&self->queue);
    (void)pthread_cond_destroy(&self->room);
    (void)pthread_cond_destroy(&self->work);
    (void)pthread_mutex_destroy(&self->lock);
    free(self);
    *self_p = NULL;
}

const run_executor_t *
actor_executor_device_run(const actor_executor_device_t *self)
{
    return self->run;
}
