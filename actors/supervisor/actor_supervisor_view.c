/* actor_supervisor_view.c - the actors of this node as people see them: what each said last, and
 * what the system says of its process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor_supervisor_private.h"

#define MS_NS UINT64_C(1000000)

enum {
    VIEW_MS = 1000,                                    /* between two ACTORS to the gateways */
    ACTORS_MAX = ACTOR_SUPERVISOR_CHILD_COUNT_MAX + 1, /* the supervisor is one */
    LINKS_MAX = ACTOR_SUPERVISOR_CHILD_COUNT_MAX * ACTOR_SUPERVISOR_LINK_COUNT_MAX,
    NAMES_SIZE_BYTES = 1024,
    TEXTS_SIZE_BYTES = 8192,
    STAT_STATE = 3, /* fields of /proc/PID/stat, from 1 */
    STAT_USER = 14,
    STAT_SYSTEM = 15,
    STAT_RESIDENT = 24,
};

/* The columns of one ACTORS, until it is encoded. */
typedef struct {
    uint32_t count;
    uint8_t roles[ACTORS_MAX];
    uint8_t states[ACTORS_MAX];
    uint32_t pids[ACTORS_MAX];
    uint64_t epochs[ACTORS_MAX];
    uint64_t uptimes_ms[ACTORS_MAX];
    uint32_t beat_ages_ms[ACTORS_MAX];
    uint32_t exits[ACTORS_MAX];
    uint32_t signals[ACTORS_MAX];
    uint32_t hangs[ACTORS_MAX];
    uint32_t detections_us[ACTORS_MAX];
    uint64_t cpu_ns[ACTORS_MAX];
    uint64_t resident_bytes[ACTORS_MAX];
    uint64_t steps[ACTORS_MAX];
    uint32_t step_ages_ms[ACTORS_MAX];
    uint64_t refused_in[ACTORS_MAX];
    uint64_t record_dropped[ACTORS_MAX];
    char names[NAMES_SIZE_BYTES];
    size_t names_size;
    char details[TEXTS_SIZE_BYTES];
    size_t details_size;
    uint32_t link_count;
    uint8_t link_actors[LINKS_MAX];
    uint32_t link_ages_ms[LINKS_MAX];
    uint64_t link_in[LINKS_MAX];
    uint64_t link_out[LINKS_MAX];
    char link_names[TEXTS_SIZE_BYTES];
    size_t link_names_size;
} view_t;

/* Every name of the node fits; a detail may be cut by what is left. */
static void
add_line(char *room, size_t capacity_bytes, size_t *size, const char *text)
{
    while (*text != '\0' && *size + 1 < capacity_bytes) {
        unsigned char byte = (unsigned char)*text++;
        room[(*size)++] = byte < ' ' ? ' ' : (char)byte;
    }
    if (*size < capacity_bytes) {
        room[(*size)++] = '\n';
    }
}

static uint32_t
milliseconds(uint64_t now_ns, uint64_t then_ns)
{
    uint64_t value = now_ns > then_ns ? (now_ns - then_ns) / MS_NS : 0;
    return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

/* Resident size and processor time of a process that may be gone; zeros then. */
static void
read_process(pid_t pid, uint64_t *resident_bytes, uint64_t *cpu_ns)
{
    char path[64];
    char line[512];
    (void)snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    *resident_bytes = 0;
    *cpu_ns = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return;
    }
    size_t size = fread(line, 1, sizeof line - 1, file);
    (void)fclose(file);
    line[size] = '\0';
    /* Behind the name, which may hold anything, come the state and then numbers. */
    char *at = strrchr(line, ')');
    uint64_t ticks = 0;
    for (int field = STAT_STATE - 1; at != NULL && field <= STAT_RESIDENT; field++) {
        unsigned long long value = strtoull(at, NULL, 10);
        if (field == STAT_USER || field == STAT_SYSTEM) {
            ticks += value;
        } else if (field == STAT_RESIDENT) {
            *resident_bytes = value * (uint64_t)sysconf(_SC_PAGESIZE);
        }
        at = strchr(at + 1, ' ');
    }
    *cpu_ns = ticks * (UINT64_C(1000000000) / (uint64_t)sysconf(_SC_CLK_TCK));
}

static void
add_links(view_t *view, const actor_supervisor_member_t *member)
{
    uint32_t count = member->peer != ACTOR_PEER_NONE ? member->link_count : 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = view->link_count++;
        view->link_actors[at] = (uint8_t)view->count;
        view->link_ages_ms[at] = member->links[i].age_ms;
        view->link_in[at] = member->links[i].messages_in;
        view->link_out[at] = member->links[i].messages_out;
        add_line(view->link_names, sizeof view->link_names, &view->link_names_size,
                 member->links[i].peer);
    }
}

static void
add_child(view_t *view, const actor_supervisor_state_t *self, uint32_t index)
{
    const actor_supervised_t *child = &self->children[index];
    const actor_supervisor_member_t *member = &self->core.members[index];
    bool runs = child->process.pid > 0;
    uint64_t silent_us = child->silent_ns / 1000;
    add_links(view, member);
    uint32_t at = view->count++;
    view->roles[at] = (uint8_t)child->spec->role;
    view->states[at] = (uint8_t)(runs ? member->state : 0);
    view->pids[at] = runs ? (uint32_t)child->process.pid : 0;
    view->epochs[at] = member->epoch;
    view->uptimes_ms[at] = runs ? (self->now_ns - child->started_ns) / MS_NS : 0;
    view->beat_ages_ms[at] =
        member->heard_ns != 0 ? milliseconds(self->now_ns, member->heard_ns) : 0;
    view->exits[at] = child->exit_count;
    view->signals[at] = child->signal_count;
    view->hangs[at] = child->hang_count;
    view->detections_us[at] = silent_us < UINT32_MAX ? (uint32_t)silent_us : UINT32_MAX;
    if (runs) {
        read_process(child->process.pid, &view->resident_bytes[at], &view->cpu_ns[at]);
    }
    view->steps[at] = member->step;
    view->step_ages_ms[at] = milliseconds(member->step_age_ns, 0);
    view->refused_in[at] = member->stats.refused_in;
    view->record_dropped[at] = member->stats.record_dropped;
    add_line(view->names, sizeof view->names, &view->names_size, member->name);
    const char *detail = member->detail;
    if (!runs) {
        detail = child->given_up             ? "given up: it ended too often"
                 : child->restart_at_ns != 0 ? "ended; it is started again in a moment"
                                             : "ended";
    }
    add_line(view->details, sizeof view->details, &view->details_size, detail);
}

static void
add_self(view_t *view, const actor_supervisor_state_t *self)
{
    uint32_t at = view->count++;
    view->roles[at] = PROTO_ROLE_SUPERVISOR;
    view->states[at] =
        self->phase == PHASE_RUNNING ? (uint8_t)ACTOR_STATE_READY : (uint8_t)ACTOR_STATE_DRAINING;
    view->pids[at] = (uint32_t)getpid();
    view->epochs[at] = self->epoch_first;
    view->uptimes_ms[at] = (self->now_ns - self->begun_ns) / MS_NS;
    read_process(getpid(), &view->resident_bytes[at], &view->cpu_ns[at]);
    proto_stats_t stats;
    actor_shell_stats(self->shell, &stats);
    view->refused_in[at] = stats.refused_in;
    add_line(view->names, sizeof view->names, &view->names_size, "supervisor");
    add_line(view->details, sizeof view->details, &view->details_size, "");
}

static proto_node_health_t
node_state(const actor_supervisor_state_t *self)
{
    if (self->phase != PHASE_RUNNING) {
        return PROTO_NODE_STOPPING;
    }
    if (!self->was_ready) {
        return PROTO_NODE_STARTING;
    }
    for (uint32_t index = 0; index < self->child_count; index++) {
        if (!self->children[index].spec->optional &&
            self->core.members[index].state != ACTOR_STATE_READY) {
            return PROTO_NODE_DEGRADED;
        }
    }
    return self->core.is_held ? PROTO_NODE_HELD : PROTO_NODE_READY;
}

static void
show(actor_supervisor_state_t *self, uint64_t number)
{
    static view_t room; /* one thread, and large */
    view_t *view = &room;
    memset(view, 0, sizeof *view);
    for (uint32_t index = 0; index < self->child_count; index++) {
        add_child(view, self, index);
    }
    add_self(view, self);
#define COLUMN(field) .field = {.data = view->field, .count = view->count}
#define LINK_COLUMN(field) .field = {.data = view->field, .count = view->link_count}
#define LINES(field)                                                                               \
    {                                                                                              \
        .data = view->field, .size_bytes = (uint32_t)view->field##_size                            \
    }
    proto_body_t body = {
        .actors = {.node_state = node_state(self),
                   .owner = proto_text(self->core.owner),
                   .scheduler = proto_text(self->scheduler.external),
                   .names = LINES(names),
                   .details = LINES(details),
                   COLUMN(roles),
                   COLUMN(states),
                   COLUMN(pids),
                   COLUMN(epochs),
                   COLUMN(uptimes_ms),
                   COLUMN(beat_ages_ms),
                   COLUMN(exits),
                   COLUMN(signals),
                   COLUMN(hangs),
                   COLUMN(detections_us),
                   COLUMN(cpu_ns),
                   COLUMN(resident_bytes),
                   COLUMN(steps),
                   COLUMN(step_ages_ms),
                   COLUMN(refused_in),
                   COLUMN(record_dropped),
                   .link_names = LINES(link_names),
                   LINK_COLUMN(link_actors),
                   LINK_COLUMN(link_ages_ms),
                   LINK_COLUMN(link_in),
                   LINK_COLUMN(link_out)},
    };
#undef COLUMN
#undef LINK_COLUMN
#undef LINES
    actor_supervisor_inject(self, PROTO_KIND_ACTORS, number, &body);
}

void
actor_supervisor_service_view(actor_supervisor_state_t *self, uint64_t *wait_ns)
{
    actor_supervisor_look_t *look = actor_supervisor_look_next(&self->core);
    while (look != NULL) {
        look->is_new = false;
        show(self, look->number);
        look = actor_supervisor_look_next(&self->core);
    }
    if (self->now_ns >= self->view_next_ns) {
        show(self, 0);
        self->view_next_ns = self->now_ns + VIEW_MS * MS_NS;
    }
    actor_supervisor_lower(wait_ns, self->view_next_ns, self->now_ns);
}
