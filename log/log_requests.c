#include "log_requests.h"

#include <stdlib.h>
#include <string.h>

#include "log_table.h"
#include "proto_require.h"

struct log_requests {
    proto_role_t observer;
    log_table_t table; /* id -> index */
    log_request_t *requests;
    uint32_t capacity;
    uint64_t unfollowed;
};

const char *
log_finish_reason_name(uint32_t reason)
{
    static const char *const names[] = {"none", "stop", "length", "cancelled", "error", "refused"};
    return reason < sizeof names / sizeof names[0] ? names[reason] : "unknown";
}

proto_status_t
log_requests_new(const log_set_t *set, log_requests_t **out_p)
{
    log_requests_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    static const proto_role_t wanted[] = {PROTO_ROLE_GATEWAY, PROTO_ROLE_SCHEDULER,
                                          PROTO_ROLE_EXECUTOR};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && self->observer == 0; i++) {
        for (uint32_t stream = 0; stream < log_set_stream_count(set); stream++) {
            if (log_set_stream(set, stream).header->role == wanted[i]) {
                self->observer = wanted[i];
            }
        }
    }
    *out_p = self;
    return STATUS_OK;
}

void
log_requests_destroy(log_requests_t **self_p)
{
    if (*self_p != NULL) {
        log_table_fini(&(*self_p)->table);
        free((*self_p)->requests);
        free(*self_p);
        *self_p = NULL;
    }
}

/* The entry of a request, made if need be; NULL at the limit. */
static proto_status_t
entry_of(log_requests_t *self, uint64_t request, log_request_t **out)
{
    *out = NULL;
    int32_t index = log_table_find(&self->table, request);
    if (index != LOG_TABLE_NONE) {
        *out = &self->requests[index];
        return STATUS_OK;
    }
    if (self->table.count == LOG_REQUESTS_LEN_MAX) {
        self->unfollowed++;
        return STATUS_OK;
    }
    if (self->table.count == self->capacity) {
        uint32_t capacity = self->capacity == 0 ? 64 : self->capacity * 2;
        log_request_t *larger = realloc(self->requests, capacity * sizeof larger[0]);
        if (larger == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        self->requests = larger;
        self->capacity = capacity;
    }
    index = log_table_add(&self->table, request);
    if (index == LOG_TABLE_NONE) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->requests[index] = (log_request_t){.request = request};
    *out = &self->requests[index];
    return STATUS_OK;
}

static void
note_first(uint64_t *at, uint64_t time_ns)
{
    if (*at == 0) {
        *at = time_ns;
    }
}

static void
note_finished(log_request_t *entry, uint64_t time_ns, const log_message_t *message)
{
    note_first(&entry->finished_ns, time_ns);
    if (message->has_body) {
        const proto_finished_t *body = &message->body.finished;
        entry->reason = body->reason;
        entry->cached_tokens = body->cached_tokens;
        entry->generated_tokens = body->generated_tokens;
        entry->queue_ns = body->queue_ns;
        entry->status = (int32_t)body->status;
    }
}

static proto_status_t
pass_tokens(log_requests_t *self, uint64_t time_ns, const log_message_t *message)
{
    proto_status_t status = STATUS_OK;
    const proto_column_u64_t *requests = &message->body.tokens.requests;
    for (uint32_t i = 0; message->has_body && i < requests->count && status == STATUS_OK; i++) {
        log_request_t *entry;
        status = entry_of(self, requests->data[i], &entry);
        if (entry != NULL) {
            note_first(&entry->first_tokens_ns, time_ns);
            entry->token_messages++;
        }
    }
    return status;
}

proto_status_t
log_requests_pass(log_requests_t *self, const log_set_item_t *item, const log_message_t *message)
{
    if (message == NULL) {
        return STATUS_OK;
    }
    bool is_observed = item->header->role == self->observer;
    uint64_t time_ns = item->record.time_ns;
    proto_kind_t kind = message->header.kind;
    if (is_observed && kind == PROTO_KIND_TOKENS) {
        return pass_tokens(self, time_ns, message);
    }
    bool is_wanted = kind == PROTO_KIND_ADMIT ||
                     (is_observed && (kind == PROTO_KIND_SUBMIT || kind == PROTO_KIND_FINISHED));
    if (!is_wanted || message->header.request == 0) {
        return STATUS_OK;
    }
    log_request_t *entry;
    proto_status_t status = entry_of(self, message->header.request, &entry);
    if (entry == NULL) {
        return status;
    }
    if (kind == PROTO_KIND_SUBMIT) {
        note_first(&entry->submit_ns, time_ns);
        entry->submit_count++;
        entry->prompt_length = message->has_body ? message->body.submit.prompt_length : 0;
    } else if (kind == PROTO_KIND_ADMIT) {
        note_first(&entry->admit_ns, time_ns);
        if (entry->prompt_length == 0 && message->has_body) {
            entry->prompt_length = message->body.admit.prompt_length;
        }
    } else {
        note_finished(entry, time_ns, message);
    }
    return STATUS_OK;
}

uint32_t
log_requests_count(const log_requests_t *self)
{
    return self->table.count;
}

const log_request_t *
log_requests_at(const log_requests_t *self, uint32_t index)
{
    require(index < self->table.count);
    return &self->requests[index];
}

uint64_t
log_requests_unfollowed(const log_requests_t *self)
{
    return self->unfollowed;
}

const char *
log_requests_observer(const log_requests_t *self)
{
    return proto_role_name(self->observer);
}
