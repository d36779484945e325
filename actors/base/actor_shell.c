/* actor_shell.c - the loop around a core, its begin and its end. */
#include "actor_shell.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "actor_fault.h"
#include "actor_log.h"
#include "actor_shell_private.h"
#include "proto_require.h"

#define MS_NS UINT64_C(1000000)
#define SECOND_NS UINT64_C(1000000000)

enum {
    STOP_DRAIN_S = 60, /* grace of a signal where an actor runs alone */
    HEARTBEAT_MS = 250,
    MISSED_MAX = 4,
    SEND_WAIT_MS = 200,
    ROUND_MESSAGES_MAX = 256, /* from one source before the others have their turn */
    POST_SIZE_BYTES = 8 * 1024 * 1024,
    NESTED_SIZE_BYTES = 1024 * 1024,
    WAIT_MAX_MS = 1000,
    FD_COUNT_MAX = 2 * (ACTOR_LINK_COUNT_MAX + 1) + 2,
};

/* ---- the loop -------------------------------------------------------------------------------- */

static void
take_wake(actor_shell_t *self)
{
    if (self->wake_readable || atomic_load(&self->woken)) {
        self->wake_readable = false;
        uint64_t count = 0;
        ssize_t got = read(self->wake_fd, &count, sizeof count);
        (void)got;
        /* Cleared before the queues are looked at: what comes later wakes again. */
        (void)atomic_exchange(&self->woken, false);
    }
}

/* Whether the actor is done: STATUS_END, a failure, or STATUS_OK to go on. */
static proto_status_t
check_end(actor_shell_t *self, uint64_t *wait_ns)
{
    if (atomic_load(&self->stop_asked)) {
        return STATUS_END;
    }
    if (self->links->failure != STATUS_OK) {
        return self->links->failure;
    }
    if (!self->draining) {
        return STATUS_OK;
    }
    bool idle = atomic_load(&self->posted_len) == 0 &&
                (self->ops->idle == NULL || self->ops->idle(self->core));
    if (idle) {
        return STATUS_END;
    }
    if (self->now_ns >= self->drain_until_ns) {
        actor_log(ACTOR_LOG_WARN, "actor.drain_timeout", 0, NULL,
                  "the grace is over: ending with work unfinished");
        return STATUS_END;
    }
    actor_shell_lower(wait_ns, self->drain_until_ns, self->now_ns);
    return STATUS_OK;
}

static proto_status_t
service_round(actor_shell_t *self, uint64_t *wait_ns)
{
    *wait_ns = WAIT_MAX_MS * MS_NS;
    take_wake(self);
    (void)actor_shell_tick(self);
    if (atomic_load(&self->drain_asked)) {
        actor_shell_begin_drain(self, atomic_load(&self->drain_grace_ns));
    }
    actor_shell_service_posted(self, ROUND_MESSAGES_MAX);
    proto_status_t status = actor_links_service(self->links, ROUND_MESSAGES_MAX, wait_ns);
    if (status == STATUS_OK) {
        actor_shell_service_timer(self, wait_ns);
        (void)actor_shell_tick(self);
        actor_shell_service_control(self, wait_ns);
    }
    status = check_end(self, wait_ns);
    /* The timer and the reports come after the links' look: let nothing sleep. */
    if (atomic_load(&self->posted_len) > 0 || actor_links_pending(self->links)) {
        *wait_ns = 0;
    }
    if (status != STATUS_OK) {
        *wait_ns = 0;
    }
    return status;
}

proto_status_t
actor_shell_service(actor_shell_t *self, uint64_t *wait_ns)
{
    self->wake_readable = true;
    actor_links_readable_all(self->links);
    return service_round(self, wait_ns);
}

uint32_t
actor_shell_fds(const actor_shell_t *self, int *fds, uint32_t capacity)
{
    uint32_t count = 0;
    if (capacity > 0) {
        fds[count++] = self->wake_fd;
    }
    return count + actor_links_fds(self->links, fds + count, capacity - count);
}

/* A signal interrupts the poll; one that came just before it is seen at the next heartbeat. */
static void
watch_stop(actor_shell_t *self)
{
    int stop = self->stop != NULL ? atomic_load(self->stop) : 0;
    if (stop > 1) {
        atomic_store(&self->stop_asked, true);
    } else if (stop == 1 && !self->draining) {
        actor_shell_drain(self, STOP_DRAIN_S * SECOND_NS);
    }
}

proto_status_t
actor_shell_run(actor_shell_t *self)
{
    for (;;) {
        uint64_t wait_ns = 0;
        watch_stop(self);
        proto_status_t status = service_round(self, &wait_ns);
        if (status != STATUS_OK) {
            return status == STATUS_END ? STATUS_OK : status;
        }
        int fds[FD_COUNT_MAX];
        struct pollfd items[FD_COUNT_MAX];
        uint32_t count = actor_shell_fds(self, fds, FD_COUNT_MAX);
        for (uint32_t index = 0; index < count; index++) {
            items[index] = (struct pollfd){.fd = fds[index], .events = POLLIN};
        }
        struct timespec wait = {(time_t)(wait_ns / SECOND_NS), (long)(wait_ns % SECOND_NS)};
        int ready = ppoll(items, count, &wait, NULL);
        if (ready < 0 && errno != EINTR) {
            actor_log(ACTOR_LOG_ERROR, "actor.poll", 0, NULL, "poll: %s", strerror(errno));
            return STATUS_ERR_IO;
        }
        self->wake_readable = ready > 0 && items[0].revents != 0;
        for (uint32_t index = 1; ready > 0 && index < count; index++) {
            if (items[index].revents != 0) {
                actor_links_readable(self->links, items[index].fd);
            }
        }
    }
}

/* ---- begin and end --------------------------------------------------------------------------- */

static bool
name_is_valid(const char *name)
{
    size_t len = strlen(name);
    return len > 0 && len < PROTO_NAME_SIZE_BYTES &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

static void
set_options(actor_shell_t *self, const actor_shell_options_t *options)
{
    self->ops = options->ops;
    self->core = options->core;
    (void)snprintf(self->name, sizeof self->name, "%s", options->name);
    self->epoch = options->epoch;
    self->local = options->local;
    self->local_context = options->local_context;
    self->command = options->command;
    self->command_context = options->command_context;
    self->told = options->told;
    self->told_context = options->told_context;
    self->stop = options->stop;
    self->supervised = options->supervisor_endpoint != NULL;
    self->started_ns = actor_shell_tick(self);
}

/* An injected fault leaves its word in the ring: a crash record then says why it ends. */
static void
on_fault(void *context, const char *text)
{
    actor_shell_t *self = context;
    if (pthread_equal(pthread_self(), self->thread) != 0) {
        actor_record_fault(self->record, actor_shell_tick(self), text);
    }
}

static proto_status_t
open_links(actor_shell_t *self, const actor_shell_options_t *options)
{
    actor_links_options_t links_options = {
        .name = self->name,
        .role = options->ops->role,
        .epoch = options->epoch,
        .heartbeat_ns = options->heartbeat_ns != 0 ? options->heartbeat_ns : HEARTBEAT_MS * MS_NS,
        .missed_max = options->missed_max != 0 ? options->missed_max : MISSED_MAX,
        .send_wait_ns = options->send_wait_ns != 0 ? options->send_wait_ns : SEND_WAIT_MS * MS_NS,
        .allow_remote = options->allow_remote || actor_keys_insecure_bind(),
        .keys = options->keys != NULL ? options->keys : actor_keys_process(),
        .heartbeats_to_core = options->heartbeats_to_core,
        .zmq_context = options->zmq_context};
    proto_status_t status = actor_links_new(&links_options, &actor_shell_hooks, self, &self->links);
    for (uint32_t index = 0; index < options->link_count && status == STATUS_OK; index++) {
        status = actor_links_open(self->links, index, &options->links[index]);
    }
    if (status == STATUS_OK && self->supervised) {
        actor_link_options_t control = {.peer_role = PROTO_ROLE_SUPERVISOR,
                                        .endpoint = options->supervisor_endpoint,
                                        .required = true};
        status = actor_links_open(self->links, ACTOR_LINK_CONTROL, &control);
    }
    return status;
}

proto_status_t
actor_shell_new(const actor_shell_options_t *options, actor_shell_t **out_p)
{
    require(options->ops != NULL && options->core != NULL);
    require(options->link_count <= ACTOR_LINK_COUNT_MAX);

    if (options->name == NULL || !name_is_valid(options->name)) {
        actor_log(ACTOR_LOG_ERROR, "actor.name", 0, NULL,
                  "'%s' is no actor name: 1 to %d of a-z, 0-9 and '-'",
                  options->name != NULL ? options->name : "", PROTO_NAME_SIZE_BYTES - 1);
        return STATUS_ERR_CONFIG;
    }
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    actor_shell_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return status;
    }
    self->wake_fd = -1;
    set_options(self, options);
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&self->room, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    (void)pthread_mutex_init(&self->mutex, NULL);
    size_t post_size =
        options->post_size_bytes != 0 ? options->post_size_bytes : (size_t)POST_SIZE_BYTES;
    if (actor_queue_new(post_size, &self->posted) != STATUS_OK ||
        actor_queue_new(NESTED_SIZE_BYTES, &self->nested) != STATUS_OK ||
        actor_outbox_new(options->ops, &self->outbox) != STATUS_OK) {
        goto err;
    }
    status = STATUS_ERR_IO;
    self->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (self->wake_fd < 0) {
        goto err;
    }
    if (options->ring_fd >= 0) {
        status = actor_record_new(options->ring_fd, &self->record);
        if (status != STATUS_OK) {
            actor_log(ACTOR_LOG_ERROR, "actor.ring", 0, NULL, "descriptor %d is no record ring",
                      options->ring_fd);
            goto err;
        }
        self->thread = pthread_self();
        actor_fault_watch(on_fault, self);
        actor_record_clock(self->record, self->now_ns);
        actor_record_peer(self->record, self->now_ns, ACTOR_PEER_LOCAL, self->name, self->ops->role,
                          self->epoch);
    }
    status = open_links(self, options);
    if (status != STATUS_OK) {
        goto err;
    }
    *out_p = self;
    return STATUS_OK;

err:
    actor_shell_destroy(&self, 0);
    return status;
}

void
actor_shell_destroy(actor_shell_t **self_p, uint64_t linger_ns)
{
    actor_shell_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    atomic_store(&self->stop_asked, true);
    if (self->links != NULL) {
        actor_shell_send_stats(self);
        actor_links_destroy(&self->links, linger_ns);
    }
    if (self->record != NULL) {
        actor_fault_watch(NULL, NULL);
    }
    actor_record_destroy(&self->record);
    actor_outbox_destroy(&self->outbox);
    actor_queue_destroy(&self->nested);
    actor_queue_destroy(&self->posted);
    if (self->wake_fd >= 0) {
        (void)close(self->wake_fd);
    }
    (void)pthread_cond_destroy(&self->room);
    (void)pthread_mutex_destroy(&self->mutex);
    free(self);
    *self_p = NULL;
}

const char *
actor_shell_endpoint(const actor_shell_t *self, uint32_t index)
{
    require(index < ACTOR_LINK_COUNT_MAX && self->links->links[index].in_use);
    return self->links->links[index].socket.endpoint;
}
