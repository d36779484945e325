/* actor_shell_control.c - what the supervisor is told, and what other threads may ask. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "actor_log.h"
#include "actor_shell_private.h"
#include "proto_require.h"

#define MS_NS UINT64_C(1000000)
#define SECOND_NS UINT64_C(1000000000)

enum {
    POST_SLICE_MS = 50, /* how often a waiting producer looks whether the shell stops */
    STATS_MS = 1000,
    REPORT_MS = 50,          /* load progress is told at most this often */
    CONTROL_WAIT_MS = 15000, /* for the supervisor's first answer */
    RELINK_MS = 5000,        /* for the peer that a RELINK names */
};

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

void
actor_shell_send_stats(actor_shell_t *self)
{
    if (self->control_up) {
        proto_body_t body;
        actor_shell_stats(self, &body.stats);
        actor_links_send_body(self->links, ACTOR_PEER_CONTROL, PROTO_KIND_STATS, &body);
        actor_shell_send_links(self);
    }
}

static void
send_report(actor_shell_t *self)
{
    char detail[PROTO_TEXT_LEN_MAX];
    pthread_mutex_lock(&self->mutex);
    actor_shell_report_t *report = &self->report;
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
send_answers(actor_shell_t *self)
{
    while (atomic_load(&self->answer_count) > 0) {
        pthread_mutex_lock(&self->mutex);
        actor_shell_answer_t answer = self->answers[0];
        uint32_t left = atomic_load(&self->answer_count) - 1;
        memmove(self->answers, self->answers + 1, left * sizeof self->answers[0]);
        atomic_store(&self->answer_count, left);
        pthread_mutex_unlock(&self->mutex);
        proto_body_t body = {.command_done = {.status = answer.status}};
        body.command_done.detail = proto_text(answer.detail);
        actor_links_send_answer(self->links, ACTOR_PEER_CONTROL, PROTO_KIND_COMMAND_DONE,
                                answer.number, &body);
    }
}

void
actor_shell_answer(actor_shell_t *self, uint64_t number, proto_status_t status, const char *detail)
{
    pthread_mutex_lock(&self->mutex);
    uint32_t count = atomic_load(&self->answer_count);
    bool has_room = count < ACTOR_SHELL_ANSWER_COUNT_MAX;
    if (has_room) {
        actor_shell_answer_t *answer = &self->answers[count];
        answer->number = number;
        answer->status = status;
        (void)snprintf(answer->detail, sizeof answer->detail, "%s", detail);
        atomic_store(&self->answer_count, count + 1);
    }
    pthread_mutex_unlock(&self->mutex);
    if (has_room) {
        actor_shell_wake(self);
    } else {
        actor_log(ACTOR_LOG_WARN, "actor.answer_dropped", 0, NULL,
                  "too many answers wait for the supervisor; dropped: %s", detail);
    }
}

/* ---- the supervisor's word, and what it is told of peers ------------------------------------- */

static void
complain(actor_shell_t *self, proto_role_t role, const char *name, uint64_t epoch,
         proto_complaint_reason_t reason, const char *detail)
{
    if (!self->control_up || self->draining) {
        return;
    }
    proto_body_t body = {.complaint = {.role = role,
                                       .name = proto_text(name),
                                       .epoch = epoch,
                                       .reason = reason,
                                       .detail = proto_text(detail)}};
    actor_links_send_body(self->links, ACTOR_PEER_CONTROL, PROTO_KIND_COMPLAINT, &body);
}

static void
relink(actor_shell_t *self, const proto_relink_t *wish)
{
    proto_role_t role = (proto_role_t)wish->role;
    actor_log(ACTOR_LOG_INFO, "actor.relink", 0,
              ACTOR_LOG_FIELDS(actor_log_str("role", proto_role_name(role)),
                               actor_log_text("endpoint", wish->endpoint),
                               actor_log_text("why", wish->detail)),
              "moving to another %s", proto_role_name(role));
    proto_status_t status = actor_links_relink(self->links, role, wish->endpoint);
    if (status != STATUS_OK) {
        complain(self, role, "", 0, PROTO_COMPLAINT_LOST,
                 status == STATUS_ERR_CONFIG
                     ? "the endpoint cannot be used: it takes ipc:// or tcp://127.0.0.1:PORT"
                     : "this actor has no link to that role");
        return;
    }
    self->relink_role = role;
    self->relink_until_ns = actor_shell_tick(self) + RELINK_MS * MS_NS;
}

void
actor_shell_control_message(actor_shell_t *self, const proto_header_t *header,
                            const proto_body_t *body)
{
    if (header->kind == PROTO_KIND_STOP) {
        actor_shell_begin_drain(self, body->stop.grace_ns);
    } else if (header->kind == PROTO_KIND_DOWN) {
        char why[128];
        (void)snprintf(why, sizeof why, "%.*s", (int)body->down.detail.size_bytes,
                       body->down.detail.data != NULL ? body->down.detail.data : "");
        actor_links_fence(self->links, body->down.name, body->down.epoch, why);
    } else if (header->kind == PROTO_KIND_RELINK) {
        relink(self, &body->relink);
    } else if (header->kind == PROTO_KIND_COMMAND) {
        if (actor_shell_set_log_level(self, header->request, &body->command)) {
            return;
        }
        if (self->command != NULL) {
            self->command(self->command_context, header->request, &body->command);
        } else {
            actor_shell_answer(self, header->request, STATUS_ERR_UNSUPPORTED,
                               "this actor takes no commands");
        }
    } else if (header->kind == PROTO_KIND_LOOK || header->kind == PROTO_KIND_HOLD ||
               header->kind == PROTO_KIND_ACTORS) {
        actor_shell_told(self, header, body);
    } else {
        self->links->counts.refused_in++;
    }
}

void
actor_shell_control_up(actor_shell_t *self)
{
    for (uint32_t peer = 1; peer < ACTOR_PEER_CONTROL; peer++) {
        if (self->links->remotes[peer].state == ACTOR_REMOTE_UP) {
            actor_shell_control_linked(self, peer);
        }
    }
}

void
actor_shell_control_linked(actor_shell_t *self, uint32_t peer)
{
    const actor_remote_t *remote = &self->links->remotes[peer];
    const char *endpoint = actor_links_endpoint_of(self->links, peer);
    if (endpoint == NULL) {
        return; /* it came to us */
    }
    if (remote->role == self->relink_role) {
        self->relink_until_ns = 0;
    }
    if (self->control_up) {
        proto_body_t body = {.linked = {.role = remote->role,
                                        .name = proto_text(remote->name),
                                        .epoch = remote->epoch,
                                        .endpoint = proto_text(endpoint)}};
        actor_links_send_body(self->links, ACTOR_PEER_CONTROL, PROTO_KIND_LINKED, &body);
    }
}

void
actor_shell_control_lost(actor_shell_t *self, uint32_t peer)
{
    const actor_remote_t *remote = &self->links->remotes[peer];
    if (!remote->moved && actor_links_endpoint_of(self->links, peer) != NULL) {
        complain(self, remote->role, remote->name, remote->epoch, PROTO_COMPLAINT_LOST,
                 remote->detail);
    }
}

void
actor_shell_control_complaint(actor_shell_t *self, const actor_emission_t *emission)
{
    proto_body_t body;
    proto_status_t status =
        proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL);
    require(status == STATUS_OK);
    const proto_complaint_t *said = &body.complaint;
    char detail[PROTO_TEXT_LEN_MAX + 1];
    (void)snprintf(detail, sizeof detail, "%.*s", (int)said->detail.size_bytes,
                   said->detail.data != NULL ? said->detail.data : "");
    uint32_t peer = actor_links_find_role(self->links, (proto_role_t)said->role);
    if (peer == ACTOR_PEER_NONE) {
        return; /* it is gone already, which was told */
    }
    const actor_remote_t *remote = &self->links->remotes[peer];
    actor_log(ACTOR_LOG_WARN, "actor.complaint", 0,
              ACTOR_LOG_FIELDS(actor_log_str("peer", remote->name),
                               actor_log_u64("peer_epoch", remote->epoch),
                               actor_log_u64("reason", said->reason)),
              "%s does not do its part: %s", remote->name, detail);
    complain(self, remote->role, remote->name, remote->epoch,
             (proto_complaint_reason_t)said->reason, detail);
}

static void
service_relink(actor_shell_t *self, uint64_t *wait_ns)
{
    if (self->relink_until_ns == 0) {
        return;
    }
    if (self->now_ns < self->relink_until_ns) {
        actor_shell_lower(wait_ns, self->relink_until_ns, self->now_ns);
        return;
    }
    self->relink_until_ns = 0;
    char detail[64];
    (void)snprintf(detail, sizeof detail, "nobody answers there within %d s: does it run?",
                   RELINK_MS / 1000);
    complain(self, self->relink_role, "", 0, PROTO_COMPLAINT_LOST, detail);
}

void
actor_shell_service_control(actor_shell_t *self, uint64_t *wait_ns)
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
        actor_shell_lower(wait_ns, until_ns, now_ns);
        return;
    }
    if (atomic_load(&self->report_changed)) {
        pthread_mutex_lock(&self->mutex);
        bool urgent = self->report.urgent;
        pthread_mutex_unlock(&self->mutex);
        if (urgent || now_ns >= self->report_next_ns) {
            send_report(self);
        } else {
            actor_shell_lower(wait_ns, self->report_next_ns, now_ns);
        }
    }
    send_answers(self);
    service_relink(self, wait_ns);
    if (now_ns >= self->stats_next_ns) {
        actor_shell_send_stats(self);
        self->stats_next_ns = now_ns + STATS_MS * MS_NS;
    }
    actor_shell_lower(wait_ns, self->stats_next_ns, now_ns);
}

void
actor_shell_report(actor_shell_t *self, uint32_t state, uint64_t done_bytes, uint64_t total_bytes,
                   const char *detail)
{
    pthread_mutex_lock(&self->mutex);
    actor_shell_report_t *report = &self->report;
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
