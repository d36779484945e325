#include <stdio.h>
#include <string.h>

#include "actor_gateway_state.h"
#include "proto_cursor.h"

/* ---- the model ------------------------------------------------------------------------------- */

void
actor_gateway_point_model(gateway_model_t *model)
{
    model->info.model_name.data = model->name;
    model->info.fingerprint.data = model->fingerprint;
    model->info.page_hash_key.data = model->page_hash_key;
}

static void
keep_model(gateway_model_t *model, const proto_model_info_t *info)
{
    memset(model, 0, sizeof *model);
    model->info = *info;
    /* An empty text has no address. */
    if (info->model_name.size_bytes > 0) {
        memcpy(model->name, info->model_name.data, info->model_name.size_bytes);
    }
    if (info->fingerprint.size_bytes > 0) {
        memcpy(model->fingerprint, info->fingerprint.data, info->fingerprint.size_bytes);
    }
    if (info->page_hash_key.size_bytes > 0) {
        memcpy(model->page_hash_key, info->page_hash_key.data, info->page_hash_key.size_bytes);
    }
    actor_gateway_point_model(model);
}

/* Tokens of one model are no history for another. */
static bool
is_same_model(const proto_model_info_t *a, const proto_model_info_t *b)
{
    size_t size_bytes = a->fingerprint.size_bytes;
    return size_bytes == b->fingerprint.size_bytes &&
           (size_bytes == 0 || memcmp(a->fingerprint.data, b->fingerprint.data, size_bytes) == 0) &&
           a->vocab_size == b->vocab_size && a->model_len_max == b->model_len_max;
}

/* The fingerprint as far as it is short and plain: the sentence must stay valid text. */
static void
describe_model(const proto_model_info_t *info, char *out, size_t capacity_bytes)
{
    char plain[300];
    size_t size_bytes = 0;
    while (size_bytes < info->fingerprint.size_bytes && size_bytes < sizeof plain - 1) {
        char letter = info->fingerprint.data[size_bytes];
        plain[size_bytes++] = letter >= ' ' && letter <= '~' ? letter : '?';
    }
    plain[size_bytes] = '\0';
    (void)snprintf(out, capacity_bytes, "'%s' (vocabulary %u, context %u)", plain, info->vocab_size,
                   info->model_len_max);
}

static void
end_for_another_model(actor_gateway_core_t *self, const proto_model_info_t *info,
                      actor_outbox_t *outbox)
{
    char before[400];
    char after[400];
    char detail[PROTO_TEXT_LEN_MAX];
    describe_model(&self->model.info, before, sizeof before);
    describe_model(info, after, sizeof after);
    (void)snprintf(detail, sizeof detail,
                   "The request cannot go on: it began with the model %s, the next scheduler "
                   "serves %s.",
                   before, after);
    actor_gateway_end_waiting(self, outbox, STATUS_ERR_FINGERPRINT, "model_changed", detail);
}

enum { REFUSAL_SIZE_MAX = 200 }; /* bytes of it that fit, with the words around it */

void
actor_gateway_set_no_executor(actor_gateway_core_t *self, proto_text_t refusal)
{
    bool has_reason = refusal.size_bytes > 0;
    size_t size = refusal.size_bytes < REFUSAL_SIZE_MAX ? refusal.size_bytes : REFUSAL_SIZE_MAX;
    size = has_reason ? proto_utf8_prefix((const uint8_t *)refusal.data, size) : 0;
    memset(self->no_executor, 0, sizeof self->no_executor);
    (void)snprintf(self->no_executor, sizeof self->no_executor, "no executor is attached%s%.*s",
                   has_reason ? ": the scheduler refused it: " : "", (int)size,
                   has_reason ? refusal.data : "");
}

void
actor_gateway_on_model_info(actor_gateway_core_t *self, const actor_input_t *input,
                            actor_outbox_t *outbox)
{
    const proto_model_info_t *info = &input->body->model_info;
    /* No slots: the scheduler lives, its executor does not. */
    bool had_model = self->has_model;
    self->has_model = info->slot_count > 0 && info->model_len_max > 1;
    if (had_model && !self->has_model) {
        /* Its successor is on the way: what comes meanwhile waits for it too. */
        self->is_replacing = true;
        self->replacing_until_ns =
            actor_gateway_after(input->now_ns, self->options.resume_timeout_ns);
    }
    actor_gateway_set_no_executor(self, info->detail);
    if (self->has_model) {
        if (self->waiting_count > 0 && !is_same_model(&self->model.info, info)) {
            end_for_another_model(self, info, outbox);
        }
        keep_model(&self->model, info);
        self->knows_model = true;
        self->is_replacing = false;
        self->sweep_is_due = self->waiting_count > 0;
    }
    actor_gateway_tell_state(self, outbox);
    actor_gateway_sweep(self, input->now_ns, outbox);
}

/* ---- which scheduler ------------------------------------------------------------------------- */

/* Everything that it had waits for the next one, oldest first. */
static void
leave_scheduler(actor_gateway_core_t *self, uint64_t now_ns, bool is_there, actor_outbox_t *outbox)
{
    actor_gateway_choice_t *choice = actor_gateway_table_oldest(self->choices);
    while (choice != NULL) {
        actor_gateway_choice_t *newer = actor_gateway_table_newer(self->choices, choice);
        if (!choice->is_waiting) {
            if (is_there) {
                actor_gateway_send_finish(self, outbox, choice, choice->next_index,
                                          PROTO_FINISH_CANCELLED);
            }
            actor_gateway_lose(self, outbox, choice, now_ns, 0,
                               "The scheduler was lost while the request ran.");
        }
        choice = newer;
    }
    if (self->has_model) {
        self->is_replacing = true;
        self->replacing_until_ns = actor_gateway_after(now_ns, self->options.resume_timeout_ns);
    }
    self->scheduler.index = ACTOR_PEER_NONE;
    self->has_model = false;
    self->sweep_is_due = false;
    memset(&self->load, 0, sizeof self->load);
}

void
actor_gateway_on_peer_up(actor_gateway_core_t *self, const actor_input_t *input,
                         actor_outbox_t *outbox)
{
    const proto_peer_up_t *peer = &input->body->peer_up;
    bool is_scheduler = peer->role == PROTO_ROLE_SCHEDULER || peer->role == PROTO_ROLE_DECODE_ROLE;
    if (!is_scheduler || peer->peer == ACTOR_PEER_LOCAL || peer->peer >= ACTOR_PEER_COUNT_MAX) {
        return;
    }
    if (actor_gateway_has_scheduler(self)) {
        leave_scheduler(self, input->now_ns, peer->peer != self->scheduler.index, outbox);
    }
    self->scheduler.index = peer->peer;
    self->scheduler_epoch = peer->epoch;
    size_t size_bytes = peer->name.size_bytes;
    memset(self->scheduler_name, 0, sizeof self->scheduler_name);
    if (size_bytes > 0 && size_bytes < sizeof self->scheduler_name) {
        memcpy(self->scheduler_name, peer->name.data, size_bytes);
    }
    self->complained = false;
    self->progress_ns = input->now_ns;
    actor_gateway_set_no_executor(self, (proto_text_t){.size_bytes = 0});
    actor_gateway_tell_state(self, outbox);
}

void
actor_gateway_on_peer_down(actor_gateway_core_t *self, const actor_input_t *input,
                           actor_outbox_t *outbox)
{
    const proto_peer_down_t *peer = &input->body->peer_down;
    if (!actor_gateway_has_scheduler(self) || peer->peer != self->scheduler.index) {
        return;
    }
    leave_scheduler(self, input->now_ns, false, outbox);
    actor_gateway_tell_state(self, outbox);
}

/* Those that wait get no longer than the drain lasts. */
void
actor_gateway_on_drain(actor_gateway_core_t *self, const actor_input_t *input,
                       actor_outbox_t *outbox)
{
    if (self->draining) {
        return;
    }
    self->draining = true;
    self->drain_until_ns = actor_gateway_after(input->now_ns, input->body->drain.grace_ns);
    actor_gateway_choice_t *choice = actor_gateway_table_oldest(self->choices);
    for (; choice != NULL; choice = actor_gateway_table_newer(self->choices, choice)) {
        if (choice->is_waiting && choice->wait_until_ns > self->drain_until_ns) {
            actor_gateway_table_begin(self->choices, choice);
            choice->wait_until_ns = self->drain_until_ns;
            actor_gateway_table_end(self->choices, choice);
        }
    }
    actor_gateway_tell_state(self, outbox);
}

/* ---- silence --------------------------------------------------------------------------------- */

void
actor_gateway_on_load(actor_gateway_core_t *self, const actor_input_t *input)
{
    /* Plans without tokens are a long prefill at work. */
    if (input->body->load.steps != self->load.steps) {
        self->progress_ns = input->now_ns;
    }
    self->load = input->body->load;
}

uint64_t
actor_gateway_silence_ns(const actor_gateway_core_t *self)
{
    bool expects = actor_gateway_has_scheduler(self) && !self->complained &&
                   actor_gateway_table_count(self->choices) > self->waiting_count;
    return expects ? actor_gateway_after(self->progress_ns, self->options.answer_timeout_ns)
                   : UINT64_MAX;
}

void
actor_gateway_watch(actor_gateway_core_t *self, uint64_t now_ns, actor_outbox_t *outbox)
{
    if (now_ns < actor_gateway_silence_ns(self)) {
        return;
    }
    char detail[160];
    (void)snprintf(detail, sizeof detail,
                   "it has %u requests and did nothing for any of them for %.1f s",
                   actor_gateway_table_count(self->choices) - self->waiting_count,
                   (double)(now_ns - self->progress_ns) / 1e9);
    proto_body_t body = {
        .complaint =
            {
                .role = PROTO_ROLE_SCHEDULER,
                .name = proto_text(self->scheduler_name),
                .epoch = self->scheduler_epoch,
                .reason = PROTO_COMPLAINT_NO_ANSWER,
                .detail = proto_text(detail),
            },
    };
    self->complained = true;
    actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_COMPLAINT, 0, &body);
}
