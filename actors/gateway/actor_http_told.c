#include "actor_http_told.h"

#include <stdio.h>
#include <string.h>

#include "actor_http_server.h"
#include "actor_log.h"
#include "actor_look.h"

/* ---- a drain --------------------------------------------------------------------------------- */

static void
on_hold(actor_http_server_t *self, const proto_hold_t *hold)
{
    bool changes = self->hold.is_held != hold->on;
    self->hold.is_held = hold->on;
    (void)snprintf(self->hold.owner, sizeof self->hold.owner, "%.*s", (int)hold->owner.size_bytes,
                   hold->owner.size_bytes > 0 ? hold->owner.data : "");
    if (changes) {
        actor_log(ACTOR_LOG_INFO, hold->on ? "gateway.held" : "gateway.released", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("owner", self->hold.owner)), "%s",
                  hold->on ? "nothing new is admitted until the drain is taken back"
                           : "requests are admitted again");
    }
}

/* ---- the actors ------------------------------------------------------------------------------ */

static bool
agree(const proto_actors_t *actors)
{
    uint32_t count = actors->states.count;
    return count <= PROTO_LOOK_ACTORS_MAX && actors->epochs.count == count &&
           actors->uptimes_ms.count == count && actors->beat_ages_ms.count == count &&
           actors->exits.count == count && actors->signals.count == count &&
           actors->hangs.count == count && actors->detections_us.count == count &&
           actors->cpu_ns.count == count && actors->resident_bytes.count == count &&
           actors->refused_in.count == count && actors->record_dropped.count == count;
}

static void
on_actors(actor_http_server_t *self, const proto_actors_t *actors)
{
    actor_http_actors_t *out = &self->actors;
    if (!agree(actors)) {
        return;
    }
    const char *at = actors->names.data;
    size_t left = actors->names.size_bytes;
    *out = (actor_http_actors_t){.node_state = actors->node_state};
    for (uint32_t i = 0; i < actors->states.count; i++) {
        const char *end = left > 0 ? memchr(at, '\n', left) : NULL;
        size_t length = end != NULL ? (size_t)(end - at) : PROTO_NAME_SIZE_BYTES;
        if (length >= PROTO_NAME_SIZE_BYTES) {
            return;
        }
        memcpy(out->actors[i].name, at, length);
        out->actors[i].state = actors->states.data[i];
        out->actors[i].epoch = actors->epochs.data[i];
        out->actors[i].uptime_ms = actors->uptimes_ms.data[i];
        out->actors[i].beat_age_ms = actors->beat_ages_ms.data[i];
        out->actors[i].exits = actors->exits.data[i];
        out->actors[i].signals = actors->signals.data[i];
        out->actors[i].hangs = actors->hangs.data[i];
        out->actors[i].detection_us = actors->detections_us.data[i];
        out->actors[i].cpu_ns = actors->cpu_ns.data[i];
        out->actors[i].resident_bytes = actors->resident_bytes.data[i];
        out->actors[i].refused_in = actors->refused_in.data[i];
        out->actors[i].record_dropped = actors->record_dropped.data[i];
        out->count++;
        at += length + 1;
        left -= length + 1;
    }
}

/* ---- questions ------------------------------------------------------------------------------- */

enum { SLOTS = 1 << 16 }; /* as in actor_http_exchange.c */

static const actor_http_exchange_t *
find(const actor_http_server_t *self, uint64_t id)
{
    uint32_t slot = (uint32_t)(id % SLOTS);
    const actor_http_exchange_t *exchange = slot < self->slot_count ? self->slots[slot] : NULL;
    return exchange != NULL && exchange->id == id ? exchange : NULL;
}

static proto_request_state_t
state_of(const actor_gateway_seen_t *seen)
{
    if (seen->is_stopping) {
        return PROTO_REQUEST_STOPPING;
    }
    if (seen->is_waiting) {
        return PROTO_REQUEST_WAITING;
    }
    return seen->generated_tokens > 0 ? PROTO_REQUEST_STREAMING : PROTO_REQUEST_SUBMITTED;
}

static void
fill_row(const actor_http_server_t *self, const actor_gateway_seen_t *seen, uint64_t now_ns,
         actor_look_row_t *row)
{
    proto_request_state_t state = state_of(seen);
    *row = (actor_look_row_t){
        .request = seen->request,
        .state = state,
        .wait = state == PROTO_REQUEST_STREAMING ? PROTO_WAIT_NOTHING : PROTO_WAIT_SCHEDULER,
        .prompt_tokens = seen->prompt_tokens,
        .generated_tokens = seen->generated_tokens,
        .generation_max = seen->generation_max,
        .priority = (int32_t)seen->priority,
    };
    const actor_http_exchange_t *exchange = find(self, seen->exchange);
    if (exchange != NULL) {
        row->age_ms = actor_look_milliseconds(now_ns - exchange->arrived_ns);
        (void)snprintf(row->name, sizeof row->name, "%s", exchange->request_id);
    }
}

static void
show_requests(actor_http_server_t *self, uint64_t number, uint64_t after)
{
    actor_look_row_t rows[PROTO_LOOK_ROWS_MAX];
    actor_look_answer_t answer = {.number = number,
                                  .total = actor_gateway_core_state(self->core).open_count,
                                  .rows = rows};
    uint64_t now_ns = actor_http_now_ns();
    actor_gateway_seen_t seen;
    bool more = actor_gateway_core_look(self->core, &after, &seen);
    while (more && answer.count < PROTO_LOOK_ROWS_MAX) {
        fill_row(self, &seen, now_ns, &rows[answer.count++]);
        answer.next = after;
        more = actor_gateway_core_look(self->core, &after, &seen);
    }
    answer.next = more ? answer.next : 0;
    actor_look_show(self->shell, &answer);
}

void
actor_http_told(void *context, const proto_header_t *header, const proto_body_t *body)
{
    actor_http_server_t *self = context;
    if (header->kind == PROTO_KIND_HOLD) {
        on_hold(self, &body->hold);
    } else if (header->kind == PROTO_KIND_ACTORS) {
        on_actors(self, &body->actors);
    } else if (header->kind == PROTO_KIND_LOOK && body->look.target == PROTO_LOOK_LOAD) {
        proto_body_t load = {.load = *actor_gateway_core_load(self->core)};
        actor_shell_show(self->shell, header->request, PROTO_KIND_LOAD, &load);
    } else if (header->kind == PROTO_KIND_LOOK) {
        show_requests(self, header->request, body->look.after);
    }
}
