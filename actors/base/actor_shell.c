/* actor_shell.c - the loop around a core: what comes in, in which order, and when it ends. */
#include "actor_shell.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "actor_fault.h"
#include "actor_links.h"
#include "actor_log.h"
#include "actor_queue.h"
#include "actor_record.h"
#include "proto_clock.h"
#include "proto_require.h"

#define MS_NS UINT64_C(1000000)
#define SECOND_NS UINT64_C(1000000000)

enum {
    HEARTBEAT_MS = 250,
    MISSED_MAX = 4,
    SEND_WAIT_MS = 200,
    ROUND_MESSAGES_MAX = 256, /* from one source before the others have their turn */
    POST_SIZE_BYTES = 8 * 1024 * 1024,
    NESTED_SIZE_BYTES = 1024 * 1024,
    POST_SLICE_MS = 50, /* how often a waiting producer looks whether the shell stops */
    STATS_MS = 1000,
    REPORT_MS = 50,          /* load progress is told at most this often */
    CONTROL_WAIT_MS = 15000, /* for the supervisor's first answer */
    DIGEST_INPUTS = 64,      /* inputs between two recorded digests */
    WAIT_MAX_MS = 1000,
    STOP_DRAIN_S = 60,
    FD_COUNT_MAX = 2 * (ACTOR_LINK_COUNT_MAX + 1) + 1,
};

/* What the supervisor is told, written by any thread. */
typedef struct {
    uint32_t state;
    uint64_t done_bytes;
    uint64_t total_bytes;
    char detail[PROTO_TEXT_LEN_MAX];
    bool changed;
    bool urgent; /* another state: not to be held back */
} report_t;

struct actor_shell {
    /* Shared with other threads. */
    pthread_mutex_t mutex; /* guards posted and report */
    pthread_cond_t room;   /* posted has room again */
    actor_queue_t *posted;
    report_t report;
    atomic_uint posted_len; /* may be looked at without the mutex */
    atomic_bool report_changed;
    atomic_bool woken; /* wake_fd is readable already */
    atomic_bool stop_asked;
    atomic_bool drain_asked;
    atomic_uint_fast64_t drain_grace_ns;
    int wake_fd;

    /* The shell's thread only. */
    const atomic_int *stop; /* lent; may be NULL */
    const actor_core_ops_t *ops;
    void *core;
    char name[PROTO_NAME_SIZE_BYTES];
    uint64_t epoch;
    actor_local_fn local;
    void *local_context;
    bool supervised;
    actor_links_t *links;
    actor_outbox_t *outbox;
    actor_queue_t *nested; /* injected while a step's messages went out */
    actor_record_t *record;
    proto_body_t queued_body; /* of the posted or nested message in work */
    bool in_step;
    bool wake_readable;      /* poll said so */
    uint64_t now_ns;         /* never goes back */
    uint64_t input_sequence; /* of the last input */
    bool draining;
    uint64_t drain_until_ns;
    uint64_t started_ns;
    uint64_t stats_next_ns;
    uint64_t report_next_ns;
    bool control_up;
};

static const proto_bytes_t no_bytes;

static uint64_t
tick(actor_shell_t *self)
{
    uint64_t now_ns = proto_clock_monotonic_ns(proto_clock_system());
    self->now_ns = now_ns > self->now_ns ? now_ns : self->now_ns;
    return self->now_ns;
}

static void
lower(uint64_t *wait_ns, uint64_t at_ns, uint64_t now_ns)
{
    uint64_t wait = at_ns > now_ns ? at_ns - now_ns : 0;
    *wait_ns = wait < *wait_ns ? wait : *wait_ns;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void
send_emissions(actor_shell_t *self, uint64_t now_ns)
{
    uint32_t count = actor_outbox_count(self->outbox);
    for (uint32_t index = 0; index < count; index++) {
        const actor_emission_t *emission = actor_outbox_at(self->outbox, index);
        proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                                 .kind = emission->kind,
                                 .epoch = self->epoch,
                                 .request = emission->request,
                                 .cause = self->input_sequence};
        actor_record_output(self->record, now_ns, &header, emission);
        if (emission->to.index != ACTOR_PEER_LOCAL) {
            actor_links_send(self->links, emission->to.index, emission->kind, emission->request,
                             self->input_sequence, emission->body, emission->blob);
        } else if (self->local != NULL) {
            self->local(self->local_context, emission);
        }
    }
    actor_outbox_clear(self->outbox);
}

/* Gives the core one input and sends what it answers.  The encoded parts are for the record;
 * without them the input is encoded if there is one. */
static void
step(actor_shell_t *self, uint32_t from, const proto_header_t *header, proto_bytes_t body_bytes,
     proto_bytes_t blob_bytes, const proto_body_t *body)
{
    require(!self->in_step);
    self->in_step = true;
    uint64_t now_ns = tick(self);
    actor_input_t input = {.now_ns = now_ns,
                           .sequence = ++self->input_sequence,
                           .from = {from},
                           .header = header,
                           .body = body};
    if (body_bytes.size_bytes > 0) {
        actor_record_input(self->record, &input, body_bytes, blob_bytes);
    } else {
        actor_record_own_input(self->record, &input);
    }
    proto_require_set_request(header->request);
    self->ops->step(self->core, &input, self->outbox);
#ifdef ONEPATH_DEBUG
    if (self->ops->check != NULL) {
        self->ops->check(self->core);
    }
#endif
    send_emissions(self, now_ns);
    proto_require_set_request(0);
    if (self->record != NULL && self->ops->digest != NULL &&
        self->input_sequence % DIGEST_INPUTS == 0) {
        actor_record_digest(self->record, now_ns, self->ops->digest(self->core));
    }
    self->in_step = false;
}

static void
step_own(actor_shell_t *self, proto_kind_t kind, uint64_t request, const proto_body_t *body)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .epoch = self->epoch,
                             .request = request};
    step(self, ACTOR_PEER_LOCAL, &header, no_bytes, no_bytes, body);
}

/* A message of the actor's own side that was encoded to wait for its turn. */
static void
step_queued(actor_shell_t *self, const actor_queued_t *queued)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = queued->kind,
                             .epoch = self->epoch,
                             .request = queued->request};
    proto_status_t status =
        proto_body_decode(queued->kind, queued->body, queued->blob, &self->queued_body, NULL);
    require(status == STATUS_OK);
    step(self, ACTOR_PEER_LOCAL, &header, queued->body, queued->blob, &self->queued_body);
}

/* What was injected from within actor_local_fn. */
static void
step_nested(actor_shell_t *self)
{
    actor_queued_t queued;
    while (actor_queue_front(self->nested, &queued) == STATUS_OK) {
        step_queued(self, &queued);
        /* The queue may have grown meanwhile; the front is the same message. */
        actor_queue_pop(self->nested);
    }
}

void
actor_shell_inject(actor_shell_t *self, proto_kind_t kind, uint64_t request,
                   const proto_body_t *body)
{
    if (!self->in_step) {
        step_own(self, kind, request, body);
        step_nested(self);
        actor_links_reap(self->links);
        return;
    }
    proto_status_t status = actor_queue_push(self->nested, kind, request, body);
    while (status == STATUS_FULL || status == STATUS_ERR_TOO_LARGE) {
        status = actor_queue_grow(self->nested);
        require(status == STATUS_OK);
        status = actor_queue_push(self->nested, kind, request, body);
    }
    require(status == STATUS_OK);
}

static void
service_posted(actor_shell_t *self)
{
    for (uint32_t count = 0; count < ROUND_MESSAGES_MAX; count++) {
        if (atomic_load_explicit(&self->posted_len, memory_order_acquire) == 0) {
            return;
        }
        actor_queued_t queued;
        pthread_mutex_lock(&self->mutex);
        proto_status_t status = actor_queue_front(self->posted, &queued);
        pthread_mutex_unlock(&self->mutex);
        require(status == STATUS_OK);
        step_queued(self, &queued);
        pthread_mutex_lock(&self->mutex);
        actor_queue_pop(self->posted);
        atomic_fetch_sub_explicit(&self->posted_len, 1, memory_order_release);
        pthread_cond_broadcast(&self->room);
        pthread_mutex_unlock(&self->mutex);
        step_nested(self);
        actor_links_reap(self->links);
    }
}

/* At most one a round: a core whose deadline stays in the past must not starve its peers. */
static void
service_timer(actor_shell_t *self, uint64_t *wait_ns)
{
    if (self->ops->deadline_ns == NULL) {
        return;
    }
    uint64_t deadline_ns = self->ops->deadline_ns(self->core);
    if (deadline_ns == UINT64_MAX) {
        return;
    }
    if (tick(self) >= deadline_ns) {
        proto_body_t body = {.timer = {.deadline_ns = deadline_ns}};
        step_own(self, PROTO_KIND_TIMER, 0, &body);
        step_nested(self);
        actor_links_reap(self->links);
        deadline_ns = self->ops->deadline_ns(self->core);
    }
    if (deadline_ns != UINT64_MAX) {
        lower(wait_ns, deadline_ns, self->now_ns);
    }
}

/* ---- what the links tell us ------------------------------------------------------------------ */

static void
on_up(void *context, uint32_t peer)
{
    actor_shell_t *self = context;
    const actor_remote_t *remote = &self->links->remotes[peer];
    if (peer == ACTOR_PEER_CONTROL) {
        self->control_up = true;
        pthread_mutex_lock(&self->mutex);
        self->report.changed = true;
        self->report.urgent = true;
        atomic_store(&self->report_changed, true);
        pthread_mutex_unlock(&self->mutex);
        return;
    }
    actor_record_peer(self->record, tick(self), peer, remote->name, remote->role, remote->epoch);
    proto_body_t body = {.peer_up = {.peer = peer,
                                     .role = remote->role,
                                     .name = proto_text(remote->name),
                                     .epoch = remote->epoch}};
    step_own(self, PROTO_KIND_PEER_UP, 0, &body);
    step_nested(self);
}

static void
on_down(void *context, uint32_t peer)
{
    actor_shell_t *self = context;
    const actor_remote_t *remote = &self->links->remotes[peer];
    if (peer == ACTOR_PEER_CONTROL) {
        self->control_up = false;
        return;
    }
    proto_body_t body = {.peer_down = {.peer = peer,
                                       .role = remote->role,
                                       .epoch = remote->epoch,
                                       .detail = proto_text(remote->detail)}};
    step_own(self, PROTO_KIND_PEER_DOWN, 0, &body);
    step_nested(self);
}

static void
begin_drain(actor_shell_t *self, uint64_t grace_ns)
{
    if (self->draining) {
        return;
    }
    uint64_t now_ns = tick(self);
    self->draining = true;
    self->links->ending = true; /* peers that leave now are no failure */
    self->drain_until_ns = grace_ns < UINT64_MAX - now_ns ? now_ns + grace_ns : UINT64_MAX;
    actor_log(ACTOR_LOG_INFO, "actor.drain", 0,
              ACTOR_LOG_FIELDS(actor_log_u64("grace_ms", grace_ns / MS_NS)),
              "asked to end: finishing what was begun");
    actor_shell_report(self, 3, 0, 0, "draining");
    proto_body_t body = {.drain = {.grace_ns = grace_ns}};
    step_own(self, PROTO_KIND_DRAIN, 0, &body);
    step_nested(self);
}

static void
on_control(actor_shell_t *self, const proto_header_t *header, const proto_body_t *body)
{
    if (header->kind == PROTO_KIND_STOP) {
        begin_drain(self, body->stop.grace_ns);
    } else if (header->kind == PROTO_KIND_DOWN) {
        char why[128];
        (void)snprintf(why, sizeof why, "%.*s", (int)body->down.detail.size_bytes,
                       body->down.detail.data != NULL ? body->down.detail.data : "");
        actor_links_fence(self->links, body->down.name, body->down.epoch, why);
    } else {
        self->links->counts.refused_in++;
    }
}

static void
on_message(void *context, uint32_t peer, const proto_header_t *header, proto_bytes_t body_bytes,
           proto_bytes_t blob_bytes, const proto_body_t *body)
{
    actor_shell_t *self = context;
    if (peer == ACTOR_PEER_CONTROL) {
        on_control(self, header, body);
        return;
    }
    if (header->kind == PROTO_KIND_STOP || header->kind == PROTO_KIND_DOWN) {
        self->links->counts.refused_in++; /* only the supervisor may say this */
        actor_log(ACTOR_LOG_WARN, "message.refused", 0, NULL, "%s from a peer that may not",
                  proto_kind_name(header->kind));
        return;
    }
    step(self, peer, header, body_bytes, blob_bytes, body);
    step_nested(self);
}

static void
on_progress(void *context, uint64_t now_ns, proto_heartbeat_t *out)
{
    actor_shell_t *self = context;
    out->progress = self->input_sequence;
    if (self->ops->progress != NULL) {
        self->ops->progress(self->core, now_ns, out);
    }
}

/* ---- telling the supervisor ------------------------------------------------------------------ */

void
actor_shell_stats(const actor_shell_t *self, proto_stats_t *out)
{
    *out = (proto_stats_t){.messages_in = 0};
    if (self->ops->stats != NULL) {
        self->ops->stats(self->core, out);
    }
    const actor_links_counts_t *counts = &self->links->counts;
    out->messages_in += counts->messages_in;
    out->messages_out += counts->messages_out;
    out->bytes_in += counts->bytes_in;
    out->bytes_out += counts->bytes_out;
    out->refused_in += counts->refused_in;
    struct timespec cpu = {0, 0};
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    out->cpu_ns = (uint64_t)cpu.tv_sec * SECOND_NS + (uint64_t)cpu.tv_nsec;
    out->record_dropped += actor_record_cut_count(self->record);
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        out->resident_bytes = (uint64_t)usage.ru_maxrss * 1024;
    }
}

static void
send_stats(actor_shell_t *self)
{
    if (self->control_up) {
        proto_body_t body;
        actor_shell_stats(self, &body.stats);
        actor_links_send_body(self->links, ACTOR_PEER_CONTROL, PROTO_KIND_STATS, &body);
    }
}

static void
send_report(actor_shell_t *self)
{
    char detail[PROTO_TEXT_LEN_MAX];
    pthread_mutex_lock(&self->mutex);
    report_t *report = &self->report;
    proto_body_t body = {.actor_state = {.state = report->state,
                                         .done_bytes = report->done_bytes,
                                         .total_bytes = report->total_bytes}};
    memcpy(detail, report->detail, sizeof detail);
    report->changed = false;
    report->urgent = false;
    atomic_store(&self->report_changed, false);
    pthread_mutex_unlock(&self->mutex);
    body.actor_state.detail = proto_text(detail);
    actor_links_send_body(self->links, ACTOR_PEER_CONTROL, PROTO_KIND_ACTOR_STATE, &body);
    self->report_next_ns = self->now_ns + REPORT_MS * MS_NS;
}

static void
service_control(actor_shell_t *self, uint64_t *wait_ns)
{
    if (!self->supervised) {
        return;
    }
    uint64_t now_ns = self->now_ns;
    if (!self->control_up) {
        uint64_t until_ns = self->started_ns + CONTROL_WAIT_MS * MS_NS;
        if (now_ns >= until_ns && self->links->failure == STATUS_OK) {
            actor_log(ACTOR_LOG_ERROR, "actor.no_supervisor", 0, NULL,
                      "the supervisor does not answer at its endpoint");
            self->links->failure = STATUS_ERR_PEER_LOST;
        }
        lower(wait_ns, until_ns, now_ns);
        return;
    }
    if (atomic_load(&self->report_changed)) {
        pthread_mutex_lock(&self->mutex);
        bool urgent = self->report.urgent;
        pthread_mutex_unlock(&self->mutex);
        if (urgent || now_ns >= self->report_next_ns) {
            send_report(self);
        } else {
            lower(wait_ns, self->report_next_ns, now_ns);
        }
    }
    if (now_ns >= self->stats_next_ns) {
        send_stats(self);
        self->stats_next_ns = now_ns + STATS_MS * MS_NS;
    }
    lower(wait_ns, self->stats_next_ns, now_ns);
}

void
actor_shell_report(actor_shell_t *self, uint32_t state, uint64_t done_bytes, uint64_t total_bytes,
                   const char *detail)
{
    pthread_mutex_lock(&self->mutex);
    report_t *report = &self->report;
    report->urgent = report->urgent || report->state != state;
    report->changed = true;
    report->state = state;
    report->done_bytes = done_bytes;
    report->total_bytes = total_bytes;
    (void)snprintf(report->detail, sizeof report->detail, "%s", detail != NULL ? detail : "");
    atomic_store(&self->report_changed, true);
    pthread_mutex_unlock(&self->mutex);
    actor_shell_wake(self);
}

/* ---- other threads --------------------------------------------------------------------------- */

void
actor_shell_wake(actor_shell_t *self)
{
    /* One write until the shell has looked; a second one would be a system call for nothing. */
    if (!atomic_exchange(&self->woken, true)) {
        uint64_t one = 1;
        ssize_t written = write(self->wake_fd, &one, sizeof one);
        (void)written; /* full means readable already */
    }
}

void
actor_shell_stop(actor_shell_t *self)
{
    atomic_store(&self->stop_asked, true);
    actor_shell_wake(self);
}

void
actor_shell_drain(actor_shell_t *self, uint64_t grace_ns)
{
    atomic_store(&self->drain_grace_ns, grace_ns);
    atomic_store(&self->drain_asked, true);
    actor_shell_wake(self);
}

bool
actor_shell_is_draining(const actor_shell_t *self)
{
    return self->draining;
}

proto_status_t
actor_shell_post(actor_shell_t *self, proto_kind_t kind, uint64_t request, const proto_body_t *body)
{
    pthread_mutex_lock(&self->mutex);
    proto_status_t status = STATUS_ERR_CANCELLED;
    while (!atomic_load(&self->stop_asked)) {
        status = actor_queue_push(self->posted, kind, request, body);
        if (status != STATUS_FULL) {
            break;
        }
        status = STATUS_ERR_CANCELLED;
        struct timespec until;
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += POST_SLICE_MS * (long)MS_NS;
        until.tv_sec += until.tv_nsec / (long)SECOND_NS;
        until.tv_nsec %= (long)SECOND_NS;
        (void)pthread_cond_timedwait(&self->room, &self->mutex, &until);
    }
    if (status == STATUS_OK) {
        atomic_fetch_add_explicit(&self->posted_len, 1, memory_order_release);
    }
    pthread_mutex_unlock(&self->mutex);
    if (status == STATUS_OK) {
        actor_shell_wake(self);
    }
    return status;
}

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
    lower(wait_ns, self->drain_until_ns, self->now_ns);
    return STATUS_OK;
}

static proto_status_t
service_round(actor_shell_t *self, uint64_t *wait_ns)
{
    *wait_ns = WAIT_MAX_MS * MS_NS;
    take_wake(self);
    (void)tick(self);
    if (atomic_load(&self->drain_asked)) {
        begin_drain(self, atomic_load(&self->drain_grace_ns));
    }
    service_posted(self);
    proto_status_t status = actor_links_service(self->links, ROUND_MESSAGES_MAX, wait_ns);
    if (status == STATUS_OK) {
        service_timer(self, wait_ns);
        (void)tick(self);
        service_control(self, wait_ns);
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
    self->stop = options->stop;
    self->supervised = options->supervisor_endpoint != NULL;
    self->started_ns = tick(self);
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
        .allow_remote = options->allow_remote,
        .heartbeats_to_core = options->heartbeats_to_core,
        .zmq_context = options->zmq_context};
    static const actor_links_hooks_t hooks = {.up = on_up,
                                              .down = on_down,
                                              .message = on_message,
                                              .progress = on_progress};
    proto_status_t status = actor_links_new(&links_options, &hooks, self, &self->links);
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
        send_stats(self);
        actor_links_destroy(&self->links, linger_ns);
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
