/* actor_shell_step.c - every input of a core goes through here, in the order in which it is
 * recorded. */
#include "actor_log.h"
#include "actor_shell_private.h"
#include "proto_require.h"
#include <inttypes.h>

#define MS_NS UINT64_C(1000000)

enum {
    DIGEST_INPUTS = 64, /* inputs between two recorded digests */
};

static const proto_bytes_t no_bytes;

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
                                 .sequence =
                                     actor_links_next_sequence(self->links, emission->to.index),
                                 .request = emission->request,
                                 .cause = self->input_sequence};
        actor_record_output(self->record, now_ns, &header, emission);
        if (emission->to.index != ACTOR_PEER_LOCAL) {
            actor_links_send(self->links, emission->to.index, emission->kind, emission->request,
                             self->input_sequence, emission->body, emission->blob);
        } else if (emission->kind == PROTO_KIND_COMPLAINT) {
            actor_shell_control_complaint(self, emission);
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
    uint64_t now_ns = actor_shell_tick(self);
    actor_record_snapshot(self->record, now_ns, self->ops, self->core, self->input_sequence);
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

void
actor_shell_step_own(actor_shell_t *self, proto_kind_t kind, uint64_t request,
                     const proto_body_t *body)
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
void
actor_shell_step_nested(actor_shell_t *self)
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
        actor_shell_step_own(self, kind, request, body);
        actor_shell_step_nested(self);
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

void
actor_shell_service_posted(actor_shell_t *self, uint32_t message_count_max)
{
    for (uint32_t count = 0; count < message_count_max; count++) {
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
        actor_shell_step_nested(self);
        actor_links_reap(self->links);
    }
}

/* At most one a round: a core whose deadline stays in the past must not starve its peers. */
void
actor_shell_service_timer(actor_shell_t *self, uint64_t *wait_ns)
{
    if (self->ops->deadline_ns == NULL) {
        return;
    }
    uint64_t deadline_ns = self->ops->deadline_ns(self->core);
    if (deadline_ns == UINT64_MAX) {
        return;
    }
    if (actor_shell_tick(self) >= deadline_ns) {
        proto_body_t body = {.timer = {.deadline_ns = deadline_ns}};
        actor_shell_step_own(self, PROTO_KIND_TIMER, 0, &body);
        actor_shell_step_nested(self);
        actor_links_reap(self->links);
        deadline_ns = self->ops->deadline_ns(self->core);
    }
    if (deadline_ns != UINT64_MAX) {
        actor_shell_lower(wait_ns, deadline_ns, self->now_ns);
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
        actor_shell_control_up(self);
        return;
    }
    actor_record_peer(self->record, actor_shell_tick(self), peer, remote->name, remote->role,
                      remote->epoch);
    proto_body_t body = {.peer_up = {.peer = peer,
                                     .role = remote->role,
                                     .name = proto_text(remote->name),
                                     .epoch = remote->epoch}};
    actor_shell_step_own(self, PROTO_KIND_PEER_UP, 0, &body);
    actor_shell_step_nested(self);
    actor_shell_control_linked(self, peer);
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
    actor_shell_step_own(self, PROTO_KIND_PEER_DOWN, 0, &body);
    actor_shell_step_nested(self);
    actor_shell_control_lost(self, peer);
}

void
actor_shell_begin_drain(actor_shell_t *self, uint64_t grace_ns)
{
    uint64_t now_ns = actor_shell_tick(self);
    if (self->draining) {
        uint64_t until_ns = grace_ns < UINT64_MAX - now_ns ? now_ns + grace_ns : UINT64_MAX;
        self->drain_until_ns = until_ns < self->drain_until_ns ? until_ns : self->drain_until_ns;
        return; /* asked again, more urgently or not */
    }
    self->draining = true;
    self->links->ending = true; /* peers that leave now are no failure */
    self->drain_until_ns = grace_ns < UINT64_MAX - now_ns ? now_ns + grace_ns : UINT64_MAX;
    actor_log(ACTOR_LOG_INFO, "actor.drain", 0,
              ACTOR_LOG_FIELDS(actor_log_u64("grace_ms", grace_ns / MS_NS)),
              "asked to end: finishing what was begun");
    actor_shell_report(self, ACTOR_STATE_DRAINING, 0, 0, "draining");
    proto_body_t body = {.drain = {.grace_ns = grace_ns}};
    actor_shell_step_own(self, PROTO_KIND_DRAIN, 0, &body);
    actor_shell_step_nested(self);
}

static void
on_message(void *context, uint32_t peer, const proto_header_t *header, proto_bytes_t body_bytes,
           proto_bytes_t blob_bytes, const proto_body_t *body)
{
    actor_shell_t *self = context;
    if (peer == ACTOR_PEER_CONTROL) {
        actor_shell_control_message(self, header, body);
        return;
    }
    if (header->kind == PROTO_KIND_STOP || header->kind == PROTO_KIND_DOWN ||
        header->kind == PROTO_KIND_RELINK ||
        ((header->kind == PROTO_KIND_LOOK || header->kind == PROTO_KIND_HOLD ||
          header->kind == PROTO_KIND_ACTORS) &&
         self->supervised) ||
        (header->kind == PROTO_KIND_COMMAND && self->supervised)) {
        self->links->counts.refused_in++; /* only the supervisor may say this */
        actor_log(ACTOR_LOG_WARN, "message.refused", 0, NULL, "%s from a peer that may not",
                  proto_kind_name(header->kind));
        return;
    }
    step(self, peer, header, body_bytes, blob_bytes, body);
    actor_shell_step_nested(self);
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

const actor_links_hooks_t actor_shell_hooks = {.up = on_up,
                                               .down = on_down,
                                               .message = on_message,
                                               .progress = on_progress};
