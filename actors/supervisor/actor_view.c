#include "actor_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor_command.h"
#include "actor_shell.h"
#include "proto_clock.h"

#define SECOND_NS UINT64_C(1000000000)

struct actor_view {
    actor_shell_t *shell;
    actor_node_t node;
    bool is_up;
    bool is_lost;
    /* The one question that is out. */
    bool answered;
    uint32_t supervisor; /* peer */
    uint64_t next;       /* of a REQUESTS */
    actor_view_requests_t *into;
    uint32_t row_count_max;
};

/* ---- answers --------------------------------------------------------------------------------- */

/* Copies the next line of *text and moves behind it. */
static void
take_line(proto_text_t *text, char *out, size_t capacity_bytes)
{
    const char *end = text->size_bytes > 0 ? memchr(text->data, '\n', text->size_bytes) : NULL;
    size_t length = end != NULL ? (size_t)(end - text->data) : text->size_bytes;
    (void)snprintf(out, capacity_bytes, "%.*s", (int)length, length > 0 ? text->data : "");
    size_t used = end != NULL ? length + 1 : length;
    text->data = used > 0 ? text->data + used : text->data;
    text->size_bytes -= (uint32_t)used;
}

static void
take_text(proto_text_t text, char *out, size_t capacity_bytes)
{
    (void)snprintf(out, capacity_bytes, "%.*s", (int)text.size_bytes,
                   text.size_bytes > 0 ? text.data : "");
}

static bool
columns_agree(const proto_actors_t *actors)
{
    uint32_t count = actors->roles.count;
    uint32_t links = actors->link_actors.count;
    return count <= PROTO_LOOK_ACTORS_MAX && links <= PROTO_LOOK_LINKS_MAX &&
           actors->states.count == count && actors->pids.count == count &&
           actors->epochs.count == count && actors->uptimes_ms.count == count &&
           actors->beat_ages_ms.count == count && actors->exits.count == count &&
           actors->signals.count == count && actors->hangs.count == count &&
           actors->cpu_ns.count == count && actors->resident_bytes.count == count &&
           actors->steps.count == count && actors->step_ages_ms.count == count &&
           actors->refused_in.count == count && actors->record_dropped.count == count &&
           actors->link_ages_ms.count == links && actors->link_in.count == links &&
           actors->link_out.count == links;
}

static void
on_actors(actor_node_t *node, const proto_actors_t *actors)
{
    if (!columns_agree(actors)) {
        return;
    }
    proto_text_t names = actors->names;
    proto_text_t details = actors->details;
    proto_text_t peers = actors->link_names;
    node->state = (proto_node_health_t)actors->node_state;
    take_text(actors->owner, node->owner, sizeof node->owner);
    take_text(actors->scheduler, node->scheduler, sizeof node->scheduler);
    node->actor_count = actors->roles.count;
    for (uint32_t i = 0; i < node->actor_count; i++) {
        actor_view_actor_t *actor = &node->actors[i];
        *actor = (actor_view_actor_t){.role = (proto_role_t)actors->roles.data[i],
                                      .state = actors->states.data[i],
                                      .pid = actors->pids.data[i],
                                      .epoch = actors->epochs.data[i],
                                      .uptime_ms = actors->uptimes_ms.data[i],
                                      .beat_age_ms = actors->beat_ages_ms.data[i],
                                      .exits = actors->exits.data[i],
                                      .signals = actors->signals.data[i],
                                      .hangs = actors->hangs.data[i],
                                      .cpu_ns = actors->cpu_ns.data[i],
                                      .resident_bytes = actors->resident_bytes.data[i],
                                      .step = actors->steps.data[i],
                                      .step_age_ms = actors->step_ages_ms.data[i],
                                      .refused_in = actors->refused_in.data[i],
                                      .record_dropped = actors->record_dropped.data[i]};
        take_line(&names, actor->name, sizeof actor->name);
        take_line(&details, actor->detail, sizeof actor->detail);
    }
    node->link_count = actors->link_actors.count;
    for (uint32_t i = 0; i < node->link_count; i++) {
        actor_view_link_t *link = &node->links[i];
        *link = (actor_view_link_t){.actor = actors->link_actors.data[i],
                                    .age_ms = actors->link_ages_ms.data[i],
                                    .messages_in = actors->link_in.data[i],
                                    .messages_out = actors->link_out.data[i]};
        take_line(&peers, link->peer, sizeof link->peer);
    }
}

static void
on_requests(actor_view_t *self, const proto_requests_t *requests)
{
    actor_view_requests_t *into = self->into;
    if (into == NULL) {
        return;
    }
    into->status = (proto_status_t)requests->status;
    into->total = requests->total;
    self->next = requests->next;
    take_text(requests->detail, into->detail, sizeof into->detail);
    for (uint32_t i = 0; into->count < self->row_count_max; i++) {
        if (!actor_look_row(requests, i, &into->rows[into->count])) {
            return;
        }
        into->count++;
    }
}

static void
view_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    actor_view_t *self = core;
    proto_kind_t kind = input->header->kind;
    if (kind == PROTO_KIND_PEER_UP) {
        self->is_up = true;
        self->supervisor = input->body->peer_up.peer;
    } else if (kind == PROTO_KIND_PEER_DOWN) {
        self->is_lost = true;
    } else if (kind == PROTO_KIND_ACTORS) {
        on_actors(&self->node, &input->body->actors);
        self->answered = true;
    } else if (kind == PROTO_KIND_REQUESTS) {
        on_requests(self, &input->body->requests);
        self->answered = true;
    } else if (kind == PROTO_KIND_LOAD) {
        self->node.load = input->body->load;
        self->node.has_load = true;
        self->answered = true;
    } else if (kind == PROTO_KIND_LOOK && input->from.index == ACTOR_PEER_LOCAL) {
        actor_outbox_push(outbox, (actor_peer_t){self->supervisor}, PROTO_KIND_LOOK, 0,
                          input->body);
    }
}

static const actor_core_ops_t view_ops = {
    .name = "client",
    .role = PROTO_ROLE_CLIENT,
    .outbox_size_bytes = 4096,
    .outbox_count_max = 2,
    .step = view_step,
};

/* ---- asking ---------------------------------------------------------------------------------- */

/* Serviced by hand: nothing else runs here. */
static proto_status_t
service(actor_view_t *self, uint64_t *wait_ns)
{
    if (!self->is_lost && actor_shell_service(self->shell, wait_ns) != STATUS_OK) {
        self->is_lost = true;
    }
    return self->is_lost ? STATUS_ERR_PEER_LOST : STATUS_OK;
}

static proto_status_t
wait_for(actor_view_t *self, const bool *condition)
{
    const proto_clock_t *clock = proto_clock_system();
    uint64_t until_ns = proto_clock_monotonic_ns(clock) + ACTOR_VIEW_TIMEOUT_S * SECOND_NS;
    while (!*condition) {
        uint64_t wait_ns = 0;
        if (service(self, &wait_ns) != STATUS_OK) {
            return STATUS_ERR_PEER_LOST;
        }
        if (proto_clock_monotonic_ns(clock) >= until_ns) {
            return STATUS_ERR_DEADLINE;
        }
        if (!*condition && wait_ns > 0) {
            (void)usleep(1000);
        }
    }
    return STATUS_OK;
}

static proto_status_t
ask(actor_view_t *self, proto_look_target_t target, uint64_t after)
{
    proto_body_t body = {.look = {.target = target, .after = after}};
    self->answered = false;
    self->next = 0;
    actor_shell_inject(self->shell, PROTO_KIND_LOOK, 0, &body);
    return wait_for(self, &self->answered);
}

static proto_status_t
ask_requests(actor_view_t *self, proto_look_target_t target, actor_view_requests_t *into)
{
    into->count = 0;
    into->total = 0;
    into->status = STATUS_OK;
    into->detail[0] = '\0';
    self->into = into;
    proto_status_t status = ask(self, target, 0);
    while (status == STATUS_OK && self->next != 0 && into->count < self->row_count_max) {
        status = ask(self, target, self->next);
    }
    self->into = NULL;
    return status;
}

static proto_status_t
make_room(actor_view_t *self, uint32_t row_count_max)
{
    if (row_count_max <= self->row_count_max) {
        return STATUS_OK;
    }
    actor_view_requests_t *both[] = {&self->node.gateway, &self->node.scheduler_requests};
    for (size_t i = 0; i < 2; i++) {
        actor_look_row_t *rows = realloc(both[i]->rows, row_count_max * sizeof *rows);
        if (rows == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        both[i]->rows = rows;
    }
    self->row_count_max = row_count_max;
    return STATUS_OK;
}

proto_status_t
actor_view_look(actor_view_t *self, uint32_t row_count_max, const actor_node_t **out_p)
{
    proto_status_t status = make_room(self, row_count_max);
    self->node.has_load = false;
    if (status == STATUS_OK) {
        status = ask(self, PROTO_LOOK_ACTORS, 0);
    }
    if (status == STATUS_OK && row_count_max > 0) {
        status = ask(self, PROTO_LOOK_LOAD, 0); /* a REQUESTS instead: no gateway is there */
    }
    if (status == STATUS_OK && row_count_max > 0) {
        status = ask_requests(self, PROTO_LOOK_GATEWAY, &self->node.gateway);
    }
    if (status == STATUS_OK && row_count_max > 0) {
        status = ask_requests(self, PROTO_LOOK_SCHEDULER, &self->node.scheduler_requests);
    }
    *out_p = &self->node;
    return status;
}

proto_status_t
actor_view_service(actor_view_t *self)
{
    uint64_t wait_ns = 0;
    return service(self, &wait_ns);
}

/* ---- begin and end --------------------------------------------------------------------------- */

proto_status_t
actor_view_open(const char *run_dir, actor_view_t **out_p, char error[ACTOR_VIEW_DETAIL_SIZE_BYTES])
{
    char endpoint[272];
    char name[PROTO_NAME_SIZE_BYTES];
    proto_status_t status =
        actor_command_find(run_dir, endpoint, error, ACTOR_VIEW_DETAIL_SIZE_BYTES);
    if (status != STATUS_OK) {
        return status;
    }
    actor_view_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    (void)snprintf(name, sizeof name, "view-%ld", (long)getpid());
    actor_link_options_t link = {.peer_role = PROTO_ROLE_SUPERVISOR, .endpoint = endpoint};
    const actor_shell_options_t options = {.name = name,
                                           .epoch = proto_clock_realtime_ns(proto_clock_system()),
                                           .ops = &view_ops,
                                           .core = self,
                                           .links = &link,
                                           .link_count = 1,
                                           .ring_fd = -1,
                                           .post_size_bytes = 65536};
    status = actor_shell_new(&options, &self->shell);
    if (status == STATUS_OK) {
        status = wait_for(self, &self->is_up);
    }
    if (status != STATUS_OK) {
        (void)snprintf(error, ACTOR_VIEW_DETAIL_SIZE_BYTES, "the node in '%s' does not answer",
                       run_dir);
        actor_view_close(&self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

void
actor_view_close(actor_view_t **self_p)
{
    actor_view_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    if (self->shell != NULL) {
        actor_shell_destroy(&self->shell, 100000000u);
    }
    free(self->node.gateway.rows);
    free(self->node.scheduler_requests.rows);
    free(self);
    *self_p = NULL;
}

const char *
actor_view_node_state_name(proto_node_health_t state)
{
    static const char *const names[] = {
        [PROTO_NODE_STARTING] = "starting", [PROTO_NODE_READY] = "ready",
        [PROTO_NODE_DEGRADED] = "degraded", [PROTO_NODE_HELD] = "drained",
        [PROTO_NODE_STOPPING] = "stopping",
    };
    return (size_t)state < sizeof names / sizeof names[0] ? names[state] : "unknown";
}

const char *
actor_view_actor_state_name(uint32_t state)
{
    static const char *const names[] = {
        [ACTOR_STATE_STARTING] = "starting", [ACTOR_STATE_LOADING] = "loading",
        [ACTOR_STATE_READY] = "ready",       [ACTOR_STATE_DRAINING] = "draining",
        [ACTOR_STATE_FAILING] = "failing",
    };
    return state < sizeof names / sizeof names[0] ? names[state] : "unknown";
}
