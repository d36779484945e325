/* A message's way: how long it takes, and what faults make of its bytes. */
#include <stdlib.h>
#include <string.h>

#include "actor_sim_world.h"
#include "proto_require.h"

enum {
    LATE_MS_MAX = 20,
    DELAY_US_MAX = 50000,
    BODY_SLACK_BYTES = 256, /* a refused plan may be larger than the plan was */
};

#define HARM_NS (3000 * ACTOR_SIM_MS)

actor_sim_message_t *
actor_sim_message_new(size_t body_size_bytes, size_t blob_size_bytes)
{
    size_t blob = (blob_size_bytes + PROTO_COLUMN_ALIGN - 1) / PROTO_COLUMN_ALIGN;
    size_t head = (sizeof(actor_sim_message_t) + PROTO_COLUMN_ALIGN - 1) / PROTO_COLUMN_ALIGN;
    size_t body = (body_size_bytes + PROTO_COLUMN_ALIGN - 1) / PROTO_COLUMN_ALIGN;
    actor_sim_message_t *self =
        aligned_alloc(PROTO_COLUMN_ALIGN, (head + blob + body) * PROTO_COLUMN_ALIGN);
    require(self != NULL);
    memset(self, 0, sizeof *self);
    self->body_size_bytes = body_size_bytes;
    self->blob_size_bytes = blob_size_bytes;
    self->blob_capacity_bytes = blob * PROTO_COLUMN_ALIGN;
    return self;
}

static actor_sim_message_t *
clone(actor_sim_message_t *message)
{
    actor_sim_message_t *copy =
        actor_sim_message_new(message->body_size_bytes, message->blob_capacity_bytes);
    size_t capacity = copy->blob_capacity_bytes;
    *copy = *message;
    copy->blob_capacity_bytes = capacity;
    if (message->body_size_bytes > 0) {
        memcpy(actor_sim_message_body(copy), actor_sim_message_body(message),
               message->body_size_bytes);
    }
    if (message->blob_size_bytes > 0) {
        memcpy(actor_sim_message_blob(copy), actor_sim_message_blob(message),
               message->blob_size_bytes);
    }
    return copy;
}

static proto_kind_t
kind_of(actor_sim_message_t *message, proto_header_t *header)
{
    if (message->control != ACTOR_SIM_CONTROL_NONE) {
        return PROTO_KIND_NONE;
    }
    proto_status_t status =
        proto_header_decode((proto_bytes_t){message->header, message->header_size_bytes}, header);
    require(status == STATUS_OK);
    return header->kind;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static bool
decodes(actor_sim_message_t *message, proto_body_t *body)
{
    proto_header_t header;
    if (proto_header_decode((proto_bytes_t){message->header, message->header_size_bytes},
                            &header) != STATUS_OK) {
        return false;
    }
    proto_bytes_t bytes = {actor_sim_message_body(message), message->body_size_bytes};
    proto_bytes_t blob = {message->blob_size_bytes > 0 ? actor_sim_message_blob(message) : NULL,
                          message->blob_size_bytes};
    return proto_body_decode(header.kind, bytes, blob, body, NULL) == STATUS_OK;
}

/* Damages a message so that the codec sees it.  Damage that no codec can see (another token of the
 * same size) is not simulated: below TCP and within one host there are checksums or memory. */
static void
corrupt(actor_sim_t *self, actor_sim_message_t *message)
{
    actor_sim_random_t *random = &self->random_fault;
    uint32_t how = actor_sim_random_between(random, 0, 3);
    proto_body_t body;
    if (how == 0) {
        message->header[0] ^= 0xff;
    } else if (how == 1 && message->blob_size_bytes > 0) {
        message->blob_size_bytes /= 2;
    } else if (how == 2 && message->body_size_bytes > 0) {
        uint32_t at = actor_sim_random_between(random, 0, (uint32_t)message->body_size_bytes - 1);
        uint8_t before = actor_sim_message_body(message)[at];
        actor_sim_message_body(message)[at] = 0xc1;
        if (decodes(message, &body)) {
            actor_sim_message_body(message)[at] = before;
        }
    }
    if (decodes(message, &body)) {
        message->body_size_bytes /= 2;
    }
    if (decodes(message, &body)) {
        message->header_size_bytes = 1;
    }
}

/* Makes a plan that breaks a rule, early or late in the executor's checks. */
static actor_sim_message_t *
break_plan(actor_sim_t *self, actor_sim_message_t *message)
{
    proto_body_t body;
    if (!decodes(message, &body)) {
        return message;
    }
    proto_plan_t *plan = &body.plan;
    uint32_t slots[ACTOR_SIM_SLOT_COUNT_MAX + 1];
    require(plan->decode_slots.count <= ACTOR_SIM_SLOT_COUNT_MAX);
    if (actor_sim_random_chance(&self->random_fault, 250)) {
        plan->width = 16;
    } else {
        if (plan->decode_slots.count > 0) {
            memcpy(slots, plan->decode_slots.data, plan->decode_slots.count * sizeof slots[0]);
        }
        slots[plan->decode_slots.count] = self->config.model.slot_count + 1;
        plan->decode_slots.data = slots;
        plan->decode_slots.count++;
    }
    size_t body_bound = 0;
    size_t blob_bound = 0;
    proto_body_bound(PROTO_KIND_PLAN, &body, &body_bound, &blob_bound);
    actor_sim_message_t *broken = actor_sim_message_new(body_bound + BODY_SLACK_BYTES, blob_bound);
    size_t capacity = broken->blob_capacity_bytes;
    *broken = *message;
    broken->blob_capacity_bytes = capacity;
    proto_status_t status =
        proto_body_encode(PROTO_KIND_PLAN, &body, actor_sim_message_body(broken),
                          body_bound + BODY_SLACK_BYTES, &broken->body_size_bytes,
                          actor_sim_message_blob(broken), blob_bound, &broken->blob_size_bytes);
    require(status == STATUS_OK);
    free(message);
    return broken;
}

/* ---- the way --------------------------------------------------------------------------------- */

static void
deliver(actor_sim_t *self, actor_sim_message_t *message, uint64_t at_ns)
{
    self->connections[message->connection].sides[message->to_side].under_way++;
    actor_sim_at(self, at_ns, ACTOR_SIM_EVENT_MESSAGE, 0, 0, message);
}

static const char *const tamper_texts[] = {"goes its way", "is lost",     "comes twice",
                                           "comes late",   "comes early", "is corrupt",
                                           "breaks a rule"};

/* What a seed does to a message of this kind. */
static actor_sim_tamper_t
choose(actor_sim_t *self, proto_kind_t kind, bool control, uint32_t under_way)
{
    if (self->tamper != ACTOR_SIM_TAMPER_NONE && kind == self->tamper_kind && !control &&
        (self->tamper != ACTOR_SIM_TAMPER_EARLY || under_way > 0)) {
        actor_sim_tamper_t tamper = self->tamper;
        self->tamper = ACTOR_SIM_TAMPER_NONE;
        self->tamper_count++;
        return tamper;
    }
    const actor_sim_rates_t *rates = &self->rates;
    actor_sim_random_t *random = &self->random_fault;
    if (rates->loss > 0 && actor_sim_random_chance(random, rates->loss)) {
        return ACTOR_SIM_TAMPER_LOSE;
    }
    if (control) {
        return ACTOR_SIM_TAMPER_NONE;
    }
    if (rates->duplicate > 0 && actor_sim_random_chance(random, rates->duplicate)) {
        return ACTOR_SIM_TAMPER_DOUBLE;
    }
    if (rates->reorder > 0 && actor_sim_random_chance(random, rates->reorder)) {
        return actor_sim_random_chance(random, 500) ? ACTOR_SIM_TAMPER_LATE
                                                    : ACTOR_SIM_TAMPER_EARLY;
    }
    if (rates->corrupt > 0 && actor_sim_random_chance(random, rates->corrupt)) {
        return ACTOR_SIM_TAMPER_CORRUPT;
    }
    if (rates->refuse > 0 && kind == PROTO_KIND_PLAN &&
        actor_sim_random_chance(random, rates->refuse)) {
        return ACTOR_SIM_TAMPER_REFUSE;
    }
    return ACTOR_SIM_TAMPER_NONE;
}

/* Keeps a message for the day when its sender is dead. */
static void
keep_old(actor_sim_t *self, actor_sim_message_t *message, uint32_t from, uint32_t to)
{
    if (message->control != ACTOR_SIM_CONTROL_NONE ||
        !actor_sim_random_chance(&self->random_fault, 20)) {
        return;
    }
    actor_sim_message_t **old = &self->old[from][to];
    bool serves = *old != NULL && self->members[from].actor != ACTOR_SIM_NONE &&
                  (*old)->sender_epoch < self->actors[self->members[from].actor].epoch;
    if (!serves) {
        free(*old);
        *old = clone(message);
    }
}

void
actor_sim_transmit(actor_sim_t *self, actor_sim_message_t *message)
{
    actor_sim_connection_t *connection = &self->connections[message->connection];
    actor_sim_side_t *side = &connection->sides[message->to_side];
    uint32_t from = connection->sides[1 - message->to_side].member;
    proto_header_t header = {.version = 0};
    proto_kind_t kind = kind_of(message, &header);
    bool control = message->control != ACTOR_SIM_CONTROL_NONE;
    if (self->rates.stale > 0) {
        keep_old(self, message, from, side->member);
    }
    uint64_t begin_ns = self->now_ns;
    uint64_t cut_ns = self->cut_until_ns[from][side->member];
    if (cut_ns > begin_ns) {
        actor_sim_note(self, "%s %llu from %s to %s is cut off",
                       control ? "handshake" : proto_kind_name(kind),
                       (unsigned long long)header.sequence, self->members[from].name,
                       self->members[side->member].name);
        if (self->cut_loses[from][side->member]) {
            free(message);
            return;
        }
        begin_ns = cut_ns;
    }
    uint64_t at_ns = begin_ns + actor_sim_random_us(&self->random_bus, self->config.latency_min_us,
                                                    self->config.latency_max_us);
    if (self->rates.delay > 0 && actor_sim_random_chance(&self->random_fault, self->rates.delay)) {
        at_ns += actor_sim_random_us(&self->random_fault, 100, DELAY_US_MAX);
        actor_sim_strike(self, ACTOR_SIM_INDEX_DELAY, 0);
    }
    at_ns = at_ns > side->arrives_ns ? at_ns : side->arrives_ns + 1;
    actor_sim_tamper_t tamper = choose(self, kind, control, side->under_way);
    if (tamper != ACTOR_SIM_TAMPER_NONE) {
        actor_sim_note(self, "%s %llu from %s to %s %s",
                       control ? "handshake" : proto_kind_name(kind),
                       (unsigned long long)header.sequence, self->members[from].name,
                       self->members[side->member].name, tamper_texts[tamper]);
    }
    switch (tamper) {
    case ACTOR_SIM_TAMPER_NONE:
        break;
    case ACTOR_SIM_TAMPER_LOSE:
        actor_sim_strike(self, ACTOR_SIM_INDEX_LOSS, HARM_NS);
        free(message);
        return;
    case ACTOR_SIM_TAMPER_DOUBLE:
        actor_sim_strike(self, ACTOR_SIM_INDEX_DUPLICATE, 0);
        deliver(self, clone(message),
                at_ns + actor_sim_random_us(&self->random_fault, 0, LATE_MS_MAX * 1000));
        break;
    case ACTOR_SIM_TAMPER_LATE:
        actor_sim_strike(self, ACTOR_SIM_INDEX_REORDER, HARM_NS);
        deliver(self, message,
                at_ns + actor_sim_random_us(&self->random_fault, 1, LATE_MS_MAX * 1000));
        return;
    case ACTOR_SIM_TAMPER_EARLY:
        actor_sim_strike(self, ACTOR_SIM_INDEX_REORDER, HARM_NS);
        deliver(self, message, self->now_ns + 1);
        return;
    case ACTOR_SIM_TAMPER_CORRUPT:
        actor_sim_strike(self, ACTOR_SIM_INDEX_CORRUPT, HARM_NS);
        corrupt(self, message);
        break;
    case ACTOR_SIM_TAMPER_REFUSE:
        actor_sim_strike(self, ACTOR_SIM_INDEX_REFUSE, HARM_NS);
        message = break_plan(self, message);
        break;
    }
    side->arrives_ns = at_ns;
    deliver(self, message, at_ns);
}
