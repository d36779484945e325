/* Which faults a seed gets and when they strike.  Each seed gets some of the kinds, not all: what
 * hides in the noise of everything shows when only two things go wrong (swarm testing). */
#include <string.h>

#include "actor_sim_world.h"
#include "proto_require.h"

enum {
    FAULT_INTERVAL_US_MIN = 5000,
    FAULT_INTERVAL_US_MAX = 400000,
    RESTARTS_MAX = 40, /* of one member in one seed */
};

#define RECOVERY_NS (3000 * ACTOR_SIM_MS)

static const struct {
    const char *text;
    bool is_harmful;
} kinds[ACTOR_SIM_FAULT_COUNT] = {
#define FAULT_ENTRY(NAME, name, harmful, meaning) {name, harmful},
    ACTOR_SIM_FAULT_LIST(FAULT_ENTRY)
#undef FAULT_ENTRY
};

/* ---- lists ----------------------------------------------------------------------------------- */

static bool
parse_word(const char *word, size_t size, uint32_t *bits)
{
    if (size == 3 && strncmp(word, "all", size) == 0) {
        *bits = ACTOR_SIM_FAULTS_ALL;
        return true;
    }
    if (size == 4 && strncmp(word, "none", size) == 0) {
        *bits = 0;
        return true;
    }
    for (uint32_t i = 0; i < ACTOR_SIM_FAULT_COUNT; i++) {
        if (strlen(kinds[i].text) == size && strncmp(word, kinds[i].text, size) == 0) {
            *bits = UINT32_C(1) << i;
            return true;
        }
    }
    return false;
}

proto_status_t
actor_sim_faults_parse(const char *list, uint32_t *out, const char **word)
{
    uint32_t faults = 0;
    while (*list != '\0') {
        size_t size = strcspn(list, ",");
        bool without = list[0] == '-';
        uint32_t bits = 0;
        if (!parse_word(list + (without ? 1 : 0), size - (without ? 1 : 0), &bits)) {
            if (word != NULL) {
                *word = list;
            }
            return STATUS_ERR_INVALID;
        }
        faults = without ? faults & ~bits : faults | bits;
        list += size;
        list += *list == ',' ? 1 : 0;
    }
    *out = faults;
    return STATUS_OK;
}

size_t
actor_sim_faults_print(uint32_t faults, char *out, size_t capacity_bytes)
{
    size_t size = 0;
    if (faults == 0) {
        return (size_t)snprintf(out, capacity_bytes, "none");
    }
    for (uint32_t i = 0; i < ACTOR_SIM_FAULT_COUNT; i++) {
        if ((faults >> i & 1) != 0 && size < capacity_bytes) {
            size += (size_t)snprintf(out + size, capacity_bytes - size, "%s%s", size > 0 ? "," : "",
                                     kinds[i].text);
        }
    }
    return size;
}

/* ---- a seed's share -------------------------------------------------------------------------- */

static bool
has(const actor_sim_t *self, uint32_t bit)
{
    return (self->result.faults & bit) != 0;
}

void
actor_sim_faults_choose(actor_sim_t *self)
{
    actor_sim_random_t *random = &self->random_fault;
    uint32_t chosen = self->options.faults;
    /* One seed in eight is left in peace: there nothing may end with an error. */
    bool calm = actor_sim_random_between(random, 0, 7) == 0;
    uint32_t share = actor_sim_random_between(random, 100, 600);
    for (uint32_t i = 0; i < ACTOR_SIM_FAULT_COUNT && !self->options.every_fault; i++) {
        bool keep = actor_sim_random_chance(random, share) && !(calm && kinds[i].is_harmful);
        chosen = keep ? chosen : chosen & ~(UINT32_C(1) << i);
    }
    self->result.faults = chosen;
    actor_sim_rates_t *rates = &self->rates;
    *rates = (actor_sim_rates_t){0};
    rates->loss = has(self, ACTOR_SIM_LOSS) ? actor_sim_random_between(random, 1, 8) : 0;
    rates->duplicate = has(self, ACTOR_SIM_DUPLICATE) ? actor_sim_random_between(random, 1, 50) : 0;
    rates->reorder = has(self, ACTOR_SIM_REORDER) ? actor_sim_random_between(random, 1, 8) : 0;
    rates->corrupt = has(self, ACTOR_SIM_CORRUPT) ? actor_sim_random_between(random, 1, 8) : 0;
    rates->delay = has(self, ACTOR_SIM_DELAY) ? actor_sim_random_between(random, 1, 200) : 0;
    rates->refuse = has(self, ACTOR_SIM_REFUSE) ? actor_sim_random_between(random, 1, 60) : 0;
    rates->nan = has(self, ACTOR_SIM_DEVICE) ? actor_sim_random_between(random, 0, 4) : 0;
    rates->stale = has(self, ACTOR_SIM_STALE) ? actor_sim_random_between(random, 5, 100) : 0;
    if (chosen != 0) {
        actor_sim_at(self, self->now_ns + 300 * ACTOR_SIM_MS, ACTOR_SIM_EVENT_FAULT, 0, 0, NULL);
    }
}

void
actor_sim_harm(actor_sim_t *self, uint64_t until_ns, bool costs)
{
    self->harm_until_ns = until_ns > self->harm_until_ns ? until_ns : self->harm_until_ns;
    if (costs) {
        self->loss_until_ns = until_ns > self->loss_until_ns ? until_ns : self->loss_until_ns;
    }
}

void
actor_sim_strike(actor_sim_t *self, actor_sim_fault_index_t fault, uint64_t harm_ns)
{
    self->result.fault_count++;
    if (kinds[fault].is_harmful) {
        actor_sim_harm(self, self->now_ns + harm_ns, true);
    }
}

void
actor_sim_strike_member(actor_sim_t *self, actor_sim_fault_index_t fault, uint32_t member,
                        uint64_t harm_ns)
{
    self->result.fault_count++;
    (void)fault;
    actor_sim_harm(self, self->now_ns + harm_ns, member != ACTOR_SIM_MEMBER_SCHEDULER);
}

/* ---- single strikes -------------------------------------------------------------------------- */

void
actor_sim_partition(actor_sim_t *self, uint32_t a, uint32_t b, bool both, bool loses,
                    uint64_t duration_ns)
{
    self->cut_until_ns[a][b] = self->now_ns + duration_ns;
    self->cut_loses[a][b] = loses;
    if (both) {
        self->cut_until_ns[b][a] = self->now_ns + duration_ns;
        self->cut_loses[b][a] = loses;
    }
    actor_sim_strike(self, ACTOR_SIM_INDEX_PARTITION, duration_ns + RECOVERY_NS);
}

void
actor_sim_freeze(actor_sim_t *self, uint32_t index, uint64_t duration_ns)
{
    actor_sim_actor_t *actor = &self->actors[index];
    actor->frozen_until_ns = self->now_ns + duration_ns;
    /* It was away itself: its peers get the time that it lost. */
    for (uint32_t peer = 1; peer < ACTOR_SIM_PEER_COUNT_MAX; peer++) {
        if (actor->peers[peer] != ACTOR_SIM_NONE) {
            actor_sim_connection_t *connection = &self->connections[actor->peers[peer]];
            uint32_t own = connection->sides[0].actor == index ? 0 : 1;
            connection->sides[own].heard_ns = actor->frozen_until_ns;
        }
    }
    actor_sim_strike(self, ACTOR_SIM_INDEX_FREEZE, duration_ns + RECOVERY_NS);
}

static bool
may_restart(const actor_sim_t *self, uint32_t member)
{
    return self->members[member].restart.count < RESTARTS_MAX;
}

/* A fault that concerns one actor in charge. */
static void
strike_actor(actor_sim_t *self, actor_sim_fault_index_t fault, uint32_t index)
{
    actor_sim_random_t *random = &self->random_fault;
    actor_sim_actor_t *actor = &self->actors[index];
    uint32_t member = actor->member;
    switch ((int)fault) {
    case ACTOR_SIM_INDEX_CRASH:
        if (may_restart(self, member)) {
            actor_sim_strike_member(self, fault, member, RECOVERY_NS);
            actor_sim_kill(self, index);
        }
        break;
    case ACTOR_SIM_INDEX_ZOMBIE:
        /* The scheduler binds its endpoint: two of them cannot be. */
        if (may_restart(self, member) && member != ACTOR_SIM_MEMBER_SCHEDULER) {
            actor_sim_strike(self, fault, RECOVERY_NS);
            actor_sim_supervise(self, member, actor->epoch);
        }
        break;
    case ACTOR_SIM_INDEX_FREEZE:
        actor_sim_freeze(self, index, actor_sim_random_us(random, 1000, 3000000));
        break;
    case ACTOR_SIM_INDEX_SLOW:
        actor_sim_strike(self, fault, 0);
        actor->slow_ns = actor->slow_ns != 0 ? 0 : actor_sim_random_us(random, 10, 400);
        break;
    case ACTOR_SIM_INDEX_CLOCK:
        actor_sim_strike(self, fault, 0);
        actor->clock_offset_ns += actor_sim_random_us(random, 1000, 2000000);
        break;
    case ACTOR_SIM_INDEX_DRAIN:
        if (may_restart(self, member)) {
            uint64_t grace_ns = actor_sim_random_us(random, 1000, 1000000);
            actor_sim_strike_member(self, fault, member, grace_ns + RECOVERY_NS);
            actor_sim_drain(self, index, grace_ns);
        }
        break;
    default:
        break;
    }
}

static void
strike_device(actor_sim_t *self)
{
    actor_sim_random_t *random = &self->random_fault;
    uint32_t index = self->members[ACTOR_SIM_MEMBER_EXECUTOR].actor;
    if (actor_sim_random_chance(random, 700)) {
        self->slow_until_ns = self->now_ns + actor_sim_random_us(random, 1000, 500000);
        self->result.fault_count++;
    } else if (index != ACTOR_SIM_NONE && may_restart(self, ACTOR_SIM_MEMBER_EXECUTOR)) {
        actor_sim_strike(self, ACTOR_SIM_INDEX_DEVICE, RECOVERY_NS);
        proto_body_t body = {
            .device_failed = {.status = STATUS_ERR_DEVICE, .detail = proto_text("simulated")}};
        actor_sim_input_own(self, index, PROTO_KIND_DEVICE_FAILED, &body);
    }
}

static void
strike_leave(actor_sim_t *self)
{
    uint32_t skip = actor_sim_random_between(&self->random_fault, 0, 15);
    for (uint32_t client = self->client_count; client-- > 0;) {
        if (self->clients[client].state == ACTOR_SIM_CLIENT_OPEN && skip-- == 0) {
            actor_sim_strike(self, ACTOR_SIM_INDEX_ABORT, 0);
            actor_sim_client_leave(self, client);
            return;
        }
    }
}

static void
strike(actor_sim_t *self, actor_sim_fault_index_t fault)
{
    actor_sim_random_t *random = &self->random_fault;
    uint32_t member = actor_sim_random_between(random, 0, self->member_count - 1);
    actor_sim_note(self, "fault: %s, %s", kinds[fault].text, self->members[member].name);
    if (fault == ACTOR_SIM_INDEX_PARTITION) {
        /* Gateways and executors talk to the scheduler only. */
        uint32_t other = member != 0 ? member : actor_sim_random_between(random, 1, 2);
        bool both = actor_sim_random_chance(random, 500);
        bool outward = actor_sim_random_chance(random, 500);
        bool loses = actor_sim_random_chance(random, 300);
        actor_sim_partition(self, outward ? other : 0, outward ? 0 : other, both, loses,
                            actor_sim_random_us(random, 1000, 3000000));
    } else if (fault == ACTOR_SIM_INDEX_DEVICE) {
        strike_device(self);
    } else if (fault == ACTOR_SIM_INDEX_DISK) {
        actor_sim_strike(self, fault, 0);
        self->disk_until_ns = self->now_ns + actor_sim_random_us(random, 1000, 500000);
    } else if (fault == ACTOR_SIM_INDEX_ABORT) {
        strike_leave(self);
    } else if (fault == ACTOR_SIM_INDEX_BURST) {
        actor_sim_strike(self, fault, 0);
        uint32_t count = actor_sim_random_between(random, 4, 20);
        for (uint32_t i = 0; i < count; i++) {
            actor_sim_at(self, self->now_ns + actor_sim_random_us(random, 0, 500),
                         ACTOR_SIM_EVENT_REQUEST, 1, 0, NULL);
        }
    } else if (self->members[member].actor != ACTOR_SIM_NONE) {
        strike_actor(self, fault, self->members[member].actor);
    }
}

void
actor_sim_on_fault(actor_sim_t *self)
{
    if (self->healed) {
        return;
    }
    actor_sim_random_t *random = &self->random_fault;
    actor_sim_at(self,
                 self->now_ns +
                     actor_sim_random_us(random, FAULT_INTERVAL_US_MIN, FAULT_INTERVAL_US_MAX),
                 ACTOR_SIM_EVENT_FAULT, 0, 0, NULL);
    uint32_t first = actor_sim_random_between(random, 0, ACTOR_SIM_FAULT_COUNT - 1);
    for (uint32_t i = 0; i < ACTOR_SIM_FAULT_COUNT; i++) {
        uint32_t fault = (first + i) % ACTOR_SIM_FAULT_COUNT;
        if ((self->result.faults >> fault & 1) != 0) {
            strike(self, (actor_sim_fault_index_t)fault);
            return;
        }
    }
}

void
actor_sim_heal(actor_sim_t *self)
{
    self->healed = true;
    self->rates = (actor_sim_rates_t){0};
    self->slow_until_ns = 0;
    self->disk_until_ns = 0;
    for (uint32_t a = 0; a < ACTOR_SIM_MEMBER_COUNT_MAX; a++) {
        for (uint32_t b = 0; b < ACTOR_SIM_MEMBER_COUNT_MAX; b++) {
            self->cut_until_ns[a][b] = 0;
        }
    }
    for (uint32_t i = 0; i < ACTOR_SIM_ACTOR_COUNT_MAX; i++) {
        self->actors[i].slow_ns = 0; /* who is frozen thaws when it was going to */
    }
}
