/* The drafter: is it one for this target, and which rounds are out to it.
 *
 * Rounds go out with launches, before their rows exist; what they hold lies in the ring.  One whose
 * rounds are all out gets no more until it has ended one, so a drafter that hangs costs candidates
 * and nothing else. */
#include <inttypes.h>
#include <stdio.h>

#include "actor_executor_state.h"

void
actor_executor_drafter_up(actor_executor_core_t *self, const actor_input_t *input)
{
    const proto_peer_up_t *up = &input->body->peer_up;
    if (self->drafter.is_linked && up->epoch < self->drafter.epoch) {
        return; /* an old incarnation */
    }
    self->drafter = (executor_drafter_t){.is_linked = true,
                                         .peer = {up->peer},
                                         .epoch = up->epoch,
                                         .ring_next = self->drafter.ring_next};
}

static void
open_ring(actor_executor_core_t *self, uint64_t epoch, actor_outbox_t *outbox)
{
    proto_body_t body = {.draft_open = {.ring = proto_text(epoch != 0 ? self->draft_ring : ""),
                                        .ring_id = self->limits.draft_ring_id,
                                        .epoch = epoch,
                                        .width = self->info.decode_width,
                                        .vocab_size = self->info.vocab_size,
                                        .slot_count = self->info.slot_count,
                                        .model_len_max = self->info.model_len_max,
                                        .parent_count = self->info.parent_count}};
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_DRAFT_OPEN, 0, &body);
}

void
actor_executor_drafter_down(actor_executor_core_t *self, actor_outbox_t *outbox)
{
    bool was_used = self->drafter.is_used;
    self->drafter = (executor_drafter_t){.ring_next = self->drafter.ring_next};
    if (was_used) {
        open_ring(self, 0, outbox);
    }
}

/* ---- does it fit? ---------------------------------------------------------------------------- */

/* The value of a key in "key=value;key=value". */
static proto_text_t
value_of(proto_text_t fingerprint, const char *key)
{
    size_t key_size = strlen(key);
    for (uint32_t at = 0; at < fingerprint.size_bytes;) {
        uint32_t end = at;
        while (end < fingerprint.size_bytes && fingerprint.data[end] != ';') {
            end++;
        }
        if (end - at > key_size && memcmp(fingerprint.data + at, key, key_size) == 0 &&
            fingerprint.data[at + key_size] == '=') {
            uint32_t begin = at + (uint32_t)key_size + 1;
            return (proto_text_t){fingerprint.data + begin, end - begin};
        }
        at = end + 1;
    }
    return (proto_text_t){"", 0};
}

static bool
is_same(proto_text_t a, proto_text_t b)
{
    return a.size_bytes == b.size_bytes &&
           (a.size_bytes == 0 || memcmp(a.data, b.data, a.size_bytes) == 0);
}

/* What differs, with both values; NULL: nothing does. */
static const char *
misfit(const actor_executor_core_t *self, char expected[DRAFT_TARGET_SIZE_MAX],
       char got[DRAFT_TARGET_SIZE_MAX])
{
    const executor_drafter_t *drafter = &self->drafter;
    const proto_executor_info_t *info = &self->info;
    proto_text_t target = {drafter->target, drafter->target_size};
    proto_text_t model = value_of(info->fingerprint, "model");
    if (target.size_bytes > 0 && !is_same(target, model)) {
        (void)snprintf(expected, DRAFT_TARGET_SIZE_MAX, "%.*s", (int)model.size_bytes, model.data);
        (void)snprintf(got, DRAFT_TARGET_SIZE_MAX, "%.*s", (int)target.size_bytes, target.data);
        return "it was made for another target";
    }
    const struct {
        const char *what;
        uint32_t expected;
        uint32_t got;
        bool differs;
    } numbers[] = {
        {"it has another vocabulary", info->vocab_size, drafter->vocab_size,
         drafter->vocab_size != 0 && drafter->vocab_size != info->vocab_size},
        {"it reads hidden rows of another size", info->hidden_size, drafter->hidden_size,
         drafter->hidden_size != 0 && drafter->hidden_size != info->hidden_size},
        {"it cannot fill a window of this width", info->decode_width, drafter->width_max,
         drafter->width_max < info->decode_width},
        {"it has no room for the blocks of this cache", info->parent_count,
         drafter->parent_count_max,
         drafter->parent_count_max != 0 && drafter->parent_count_max < info->parent_count},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (numbers[i].differs) {
            (void)snprintf(expected, DRAFT_TARGET_SIZE_MAX, "%" PRIu32, numbers[i].expected);
            (void)snprintf(got, DRAFT_TARGET_SIZE_MAX, "%" PRIu32, numbers[i].got);
            return numbers[i].what;
        }
    }
    return NULL;
}

static void
refuse(actor_executor_core_t *self, const char *detail, const char *expected, const char *got,
       actor_outbox_t *outbox)
{
    proto_body_t body = {.drafter_refuse = {.status = STATUS_ERR_CONFIG,
                                            .detail = proto_text(detail),
                                            .expected = proto_text(expected),
                                            .got = proto_text(got)}};
    actor_outbox_push(outbox, self->drafter.peer, PROTO_KIND_DRAFTER_REFUSE, 0, &body);
}

void
actor_executor_drafter_answer(actor_executor_core_t *self, actor_outbox_t *outbox)
{
    executor_drafter_t *drafter = &self->drafter;
    if (self->phase != EXECUTOR_READY || !drafter->is_linked || !drafter->has_info ||
        drafter->is_used) {
        return;
    }
    drafter->has_info = false;
    if (self->draft_ring[0] == '\0' || self->info.decode_width < 2) {
        refuse(self, "this executor was started without room for candidates", "--decode-width 2",
               "1", outbox);
        return;
    }
    char expected[DRAFT_TARGET_SIZE_MAX] = "";
    char got[DRAFT_TARGET_SIZE_MAX] = "";
    const char *what = misfit(self, expected, got);
    if (what != NULL) {
        refuse(self, what, expected, got, outbox);
        return;
    }
    drafter->is_used = true;
    drafter->asked_count = 0;
    open_ring(self, drafter->epoch, outbox);
    proto_body_t body = {.drafter_accept = {.ring = proto_text(self->draft_ring),
                                            .ring_id = self->limits.draft_ring_id,
                                            .width = self->info.decode_width,
                                            .vocab_size = self->info.vocab_size,
                                            .slot_count = self->info.slot_count,
                                            .model_len_max = self->info.model_len_max,
                                            .parent_count = self->info.parent_count}};
    actor_outbox_push(outbox, drafter->peer, PROTO_KIND_DRAFTER_ACCEPT, 0, &body);
}

/* ---- what it says ---------------------------------------------------------------------------- */

static void
keep_info(executor_drafter_t *drafter, const proto_drafter_info_t *info)
{
    drafter->has_info = true;
    drafter->vocab_size = info->vocab_size;
    drafter->hidden_size = info->hidden_size;
    drafter->width_max = info->width_max;
    drafter->parent_count_max = info->parent_count_max;
    drafter->name_size = info->name.size_bytes;
    if (info->name.size_bytes > 0) {
        memcpy(drafter->name, info->name.data, info->name.size_bytes);
    }
    /* A longer one is no target of ours, and its beginning says so as well. */
    drafter->target_size = info->target.size_bytes < DRAFT_TARGET_SIZE_MAX ? info->target.size_bytes
                                                                           : DRAFT_TARGET_SIZE_MAX;
    if (drafter->target_size > 0) {
        memcpy(drafter->target, info->target.data, drafter->target_size);
    }
}

void
actor_executor_drafter_says(actor_executor_core_t *self, const actor_input_t *input,
                            actor_outbox_t *outbox)
{
    executor_drafter_t *drafter = &self->drafter;
    if (input->header->kind == PROTO_KIND_DRAFTER_INFO) {
        if (!drafter->is_used) {
            keep_info(drafter, &input->body->drafter_info);
            actor_executor_drafter_answer(self, outbox);
        }
    } else if (input->header->kind == PROTO_KIND_DRAFT_PROPOSED) {
        /* Which one is told by the ring; here it makes room for another. */
        if (drafter->is_used && drafter->asked_count > 0) {
            drafter->asked_count--;
        }
    } else if (input->header->kind != PROTO_KIND_NAK) {
        proto_body_t body = {.nak = {.sequence = input->header->sequence,
                                     .kind = (uint32_t)input->header->kind & 65535,
                                     .status = STATUS_ERR_UNSUPPORTED,
                                     .detail = proto_text("not for an executor")}};
        actor_outbox_push(outbox, input->from, PROTO_KIND_NAK, input->header->request, &body);
    }
}

uint32_t
actor_executor_draft_ask(actor_executor_core_t *self, uint64_t step, actor_outbox_t *outbox)
{
    executor_drafter_t *drafter = &self->drafter;
    if (!drafter->is_used || drafter->asked_count == DRAFT_ROUNDS_MAX) {
        return 0;
    }
    uint32_t slot = drafter->ring_next;
    drafter->ring_next = (slot + 1) % DRAFT_ROUNDS_MAX;
    drafter->asked_count++;
    proto_body_t body = {.draft_propose = {.step = step, .slot = slot}};
    actor_outbox_push(outbox, drafter->peer, PROTO_KIND_DRAFT_PROPOSE, 0, &body);
    return slot + 1;
}
