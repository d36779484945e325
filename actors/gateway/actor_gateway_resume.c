/* actor_gateway_resume.c - choices that no scheduler has.
 *
 * The gateway's history is the only truth about a request: a scheduler that takes over knows
 * nothing, the executor has dropped its rows.  So a choice is submitted again with its prompt and
 * the tokens that the client has already, and goes on behind them.  It gets another request id each
 * time: what an old scheduler still says about the old one finds nothing. */
#include <string.h>

#include "actor_gateway_state.h"

enum {
    /* Submissions without a token between them: a request that ends every scheduler it is given to
     * must not end them for ever. */
    ATTEMPTS_MAX = 8,
};

/* ---- the record ------------------------------------------------------------------------------ */

static void
drop_record(actor_gateway_core_t *self, actor_gateway_choice_t *choice)
{
    actor_gateway_table_begin(self->choices, choice);
    actor_gateway_history_drop(self->history, &choice->record);
    choice->is_kept = false;
    choice->sampling_size = 0;
    actor_gateway_table_end(self->choices, choice);
}

bool
actor_gateway_keep(actor_gateway_core_t *self, actor_gateway_choice_t *choice,
                   const proto_http_request_t *request)
{
    require(!choice->is_kept);
    actor_gateway_table_begin(self->choices, choice);
    proto_status_t status =
        actor_gateway_history_append(self->history, &choice->record, request->sampling.data,
                                     request->sampling.count);
    if (status == STATUS_OK) {
        status = actor_gateway_history_append(self->history, &choice->record, request->tokens.data,
                                              request->tokens.count * sizeof(int32_t));
    }
    choice->is_kept = status == STATUS_OK;
    choice->sampling_size = request->sampling.count;
    actor_gateway_table_end(self->choices, choice);
    if (!choice->is_kept) {
        drop_record(self, choice);
    }
    return choice->is_kept;
}

void
actor_gateway_keep_tokens(actor_gateway_core_t *self, actor_gateway_choice_t *choice,
                          const int32_t *tokens, uint32_t count)
{
    if (!choice->is_kept) {
        return;
    }
    actor_gateway_table_begin(self->choices, choice);
    proto_status_t status = actor_gateway_history_append(self->history, &choice->record, tokens,
                                                         count * sizeof(int32_t));
    actor_gateway_table_end(self->choices, choice);
    if (status != STATUS_OK) {
        self->unkept_count++;
        drop_record(self, choice);
    }
}

static void
read_tokens(const actor_gateway_core_t *self, const actor_gateway_choice_t *choice, uint32_t begin,
            int32_t *out, uint32_t count)
{
    actor_gateway_history_read(self->history, &choice->record,
                               choice->sampling_size + (uint64_t)begin * sizeof(int32_t), out,
                               count * sizeof(int32_t));
}

/* Reads the sampling bytes to self->sampling; false if they do not decode, which leaves *out
 * zeroed. */
static bool
read_sampling(actor_gateway_core_t *self, const actor_gateway_choice_t *choice,
              proto_sampling_t *out)
{
    actor_gateway_history_read(self->history, &choice->record, 0, self->sampling,
                               choice->sampling_size);
    proto_column_u8_t bytes = {self->sampling, choice->sampling_size};
    memset(out, 0, sizeof *out);
    return proto_sampling_decode(bytes, out, NULL) == STATUS_OK;
}

/* ---- what is complete already ---------------------------------------------------------------- */

static bool
has_id(proto_bytes_t ids, int32_t wanted)
{
    for (size_t at = 0; at + sizeof wanted <= ids.size_bytes; at += sizeof wanted) {
        int32_t id = 0;
        memcpy(&id, ids.data + at, sizeof id);
        if (id == wanted) {
            return true;
        }
    }
    return false;
}

/* True if the last token that came ends the answer: the scheduler died between the token and the
 * FINISHED that would have said so.  Going on behind it would add text that nobody wants. */
static bool
ends_with_stop_token(actor_gateway_core_t *self, const actor_gateway_choice_t *choice)
{
    proto_sampling_t sampling;
    int32_t last = 0;
    if (!choice->is_kept || choice->next_index == 0 || !read_sampling(self, choice, &sampling) ||
        choice->next_index <= sampling.generation_min) {
        return false;
    }
    read_tokens(self, choice, choice->prompt_tokens + choice->next_index - 1, &last, 1);
    if (has_id(sampling.stop_ids, last)) {
        return true;
    }
    for (uint32_t at = 0; at < self->options.stop_id_count && !sampling.ignore_eos; at++) {
        if (self->options.stop_ids[at] == last) {
            return true;
        }
    }
    return false;
}

/* ---- waiting --------------------------------------------------------------------------------- */

void
actor_gateway_wait(actor_gateway_core_t *self, actor_gateway_choice_t *choice, uint64_t until_ns,
                   uint64_t retry_ns)
{
    require(!choice->is_waiting);
    require(choice->is_kept);
    require(choice->stop_reason == PROTO_FINISH_NONE);
    actor_gateway_leave_trial(self, choice);
    actor_gateway_table_rename(self->choices, choice, actor_gateway_mint(self));
    actor_gateway_table_begin(self->choices, choice);
    choice->is_waiting = true;
    choice->was_waiting = true;
    choice->wait_until_ns = until_ns;
    choice->retry_ns = retry_ns;
    actor_gateway_table_end(self->choices, choice);
    self->waiting_count++;
}

void
actor_gateway_lose(actor_gateway_core_t *self, actor_outbox_t *outbox,
                   actor_gateway_choice_t *choice, uint64_t now_ns, uint64_t retry_ns,
                   const char *detail)
{
    if (choice->stop_reason != PROTO_FINISH_NONE) {
        actor_gateway_end_as_stopped(self, outbox, choice, NULL);
        return;
    }
    proto_http_end_t end = {.generated_tokens = choice->next_index};
    if (ends_with_stop_token(self, choice)) {
        end.reason = PROTO_FINISH_STOP;
        actor_gateway_end_choice(self, outbox, choice, end);
        return;
    }
    if (choice->next_index >= choice->generation_max) {
        end.reason = PROTO_FINISH_LENGTH;
        actor_gateway_end_choice(self, outbox, choice, end);
        return;
    }
    if (!choice->is_kept || choice->attempt_count >= ATTEMPTS_MAX) {
        actor_gateway_end_with_error(self, outbox, choice, STATUS_ERR_PEER_LOST, "worker_lost",
                                     detail);
        return;
    }
    uint64_t until_ns = actor_gateway_after(now_ns, self->options.resume_timeout_ns);
    if (self->draining && until_ns > self->drain_until_ns) {
        until_ns = self->drain_until_ns;
    }
    actor_gateway_wait(self, choice, until_ns, retry_ns);
    actor_gateway_table_begin(self->choices, choice);
    choice->is_lost = true;
    actor_gateway_table_end(self->choices, choice);
}

void
actor_gateway_end_waiting(actor_gateway_core_t *self, actor_outbox_t *outbox, proto_status_t status,
                          const char *code, const char *detail)
{
    actor_gateway_choice_t *choice = actor_gateway_table_oldest(self->choices);
    while (choice != NULL && self->waiting_count > 0) {
        actor_gateway_choice_t *newer = actor_gateway_table_newer(self->choices, choice);
        if (choice->is_waiting) {
            actor_gateway_end_with_error(self, outbox, choice, status, code, detail);
        }
        choice = newer;
    }
}

/* ---- submitting again ------------------------------------------------------------------------ */

/* Hashes of all whole pages of self->tokens, in self->hashes.  None if the pages are not known, or
 * if the salt is not: another tenant's salt must not be forgotten. */
static proto_bytes_t
hash_pages(actor_gateway_core_t *self, uint32_t token_count, const proto_sampling_t *sampling)
{
    const proto_model_info_t *model = &self->model.info;
    proto_bytes_t none = {NULL, 0};
    if (model->prefix_granularity == 0 ||
        model->page_hash_key.size_bytes != PROTO_HASH_SIZE_BYTES) {
        return none;
    }
    uint32_t count = token_count / model->prefix_granularity;
    if (count == 0 || count > PROTO_PAGES_MAX) {
        return none;
    }
    const uint8_t *previous = NULL;
    for (uint32_t page = 0; page < count; page++) {
        uint8_t *hash = self->hashes + (size_t)page * PROTO_HASH_SIZE_BYTES;
        proto_page_hash(model->page_hash_key.data, previous, sampling->page_salt,
                        self->tokens + (size_t)page * model->prefix_granularity,
                        model->prefix_granularity, hash);
        previous = hash;
    }
    return (proto_bytes_t){self->hashes, (size_t)count * PROTO_HASH_SIZE_BYTES};
}

/* What is left of the client's time; 0 = as long as it takes. */
static uint64_t
time_left(const actor_gateway_choice_t *choice, uint64_t now_ns)
{
    if (choice->client_deadline_ns == UINT64_MAX) {
        return 0;
    }
    return choice->client_deadline_ns > now_ns ? choice->client_deadline_ns - now_ns : 1;
}

/* Returns the bytes that it needed. */
static size_t
resubmit(actor_gateway_core_t *self, actor_gateway_choice_t *choice, uint64_t now_ns,
         actor_outbox_t *outbox)
{
    require(choice->is_kept);
    require(choice->next_index < choice->generation_max);
    uint32_t token_count = choice->prompt_tokens + choice->next_index;
    proto_sampling_t sampling;
    bool is_readable = read_sampling(self, choice, &sampling);
    read_tokens(self, choice, 0, self->tokens, token_count);
    proto_body_t body = {
        .submit =
            {
                .prompt_length = token_count,
                .generation_max = choice->generation_max - choice->next_index,
                .emitted = choice->next_index,
                .priority = choice->priority,
                .queue_timeout_ns = time_left(choice, now_ns),
                .tokens = {self->tokens, token_count},
                .sampling = {self->sampling, choice->sampling_size},
            },
    };
    if (is_readable) {
        body.submit.page_hashes = hash_pages(self, token_count, &sampling);
    }
    if (self->waiting_count == actor_gateway_table_count(self->choices)) {
        self->progress_ns = now_ns;
    }
    self->waiting_count--;
    self->submitted_count++;
    self->resumed_count += choice->is_lost ? 1 : 0;
    actor_gateway_table_begin(self->choices, choice);
    choice->is_waiting = false;
    choice->is_lost = false;
    choice->retry_ns = 0;
    choice->attempt_count++;
    actor_gateway_table_end(self->choices, choice);
    actor_gateway_try(self, choice);
    actor_outbox_push(outbox, self->scheduler, PROTO_KIND_SUBMIT, choice->request, &body);
    return token_count * sizeof(int32_t) + body.submit.page_hashes.size_bytes +
           choice->sampling_size;
}

void
actor_gateway_sweep(actor_gateway_core_t *self, uint64_t now_ns, actor_outbox_t *outbox)
{
    if (!self->sweep_is_due || !actor_gateway_can_submit(self)) {
        return;
    }
    uint32_t count = 0;
    size_t size_bytes = 0;
    actor_gateway_choice_t *choice = actor_gateway_table_oldest(self->choices);
    for (; choice != NULL; choice = actor_gateway_table_newer(self->choices, choice)) {
        if (!choice->is_waiting || choice->retry_ns != 0 ||
            actor_gateway_must_stand_back(self, choice)) {
            continue;
        }
        if (count == GATEWAY_RESUBMITS_MAX || size_bytes > GATEWAY_RESUBMIT_BYTES_MAX) {
            return; /* still due */
        }
        size_bytes += resubmit(self, choice, now_ns, outbox);
        count++;
    }
    self->sweep_is_due = false;
}

/* ---- time ------------------------------------------------------------------------------------ */

static void
on_deadline(actor_gateway_core_t *self, uint64_t now_ns, actor_gateway_choice_t *choice,
            actor_outbox_t *outbox)
{
    if (choice->stop_reason != PROTO_FINISH_NONE) {
        actor_gateway_end_as_stopped(self, outbox, choice, NULL); /* never answered */
    } else if (choice->client_deadline_ns <= now_ns) {
        actor_gateway_send_finish(self, outbox, choice, choice->next_index, PROTO_FINISH_CANCELLED);
        actor_gateway_end_with_error(self, outbox, choice, STATUS_ERR_DEADLINE, "deadline_exceeded",
                                     "The request's deadline passed.");
    } else if (choice->wait_until_ns <= now_ns) {
        actor_gateway_end_with_error(self, outbox, choice, STATUS_ERR_PEER_LOST, "worker_lost",
                                     "What ran the request was lost, and nothing took it over in "
                                     "time.");
    } else {
        require(choice->retry_ns != 0);
        actor_gateway_table_begin(self->choices, choice);
        choice->retry_ns = 0;
        actor_gateway_table_end(self->choices, choice);
        self->sweep_is_due = true;
    }
}

void
actor_gateway_on_timer(actor_gateway_core_t *self, uint64_t now_ns, actor_outbox_t *outbox)
{
    actor_gateway_choice_t *choice = actor_gateway_table_first(self->choices);
    while (choice != NULL && choice->deadline_ns <= now_ns) {
        on_deadline(self, now_ns, choice, outbox);
        choice = actor_gateway_table_first(self->choices);
    }
    if (self->is_replacing && self->replacing_until_ns <= now_ns) {
        self->is_replacing = false;
    }
    actor_gateway_sweep(self, now_ns, outbox);
}
