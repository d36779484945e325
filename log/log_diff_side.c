#include "log_diff_side.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

/* ---- streams --------------------------------------------------------------------------------- */

static int
by_epoch(const void *a, const void *b)
{
    const log_diff_stream_t *left = a, *right = b;
    int order = strcmp(left->name, right->name);
    if (order == 0) {
        order = left->epoch < right->epoch ? -1 : left->epoch > right->epoch ? 1 : 0;
    }
    return order;
}

int
log_diff_stream_order(const log_diff_stream_t *a, const log_diff_stream_t *b)
{
    int order = strcmp(a->name, b->name);
    if (order == 0) {
        order = a->incarnation < b->incarnation ? -1 : a->incarnation > b->incarnation ? 1 : 0;
    }
    return order;
}

proto_status_t
log_diff_streams(const log_diff_side_t *side, const char *actor, log_diff_stream_t **out_p,
                 uint32_t *count_p, proto_error_t *error)
{
    log_set_t *set = NULL;
    log_set_options_t options = {.actor = actor};
    proto_status_t status = log_set_open(side->paths, side->path_count, &options, &set, error);
    if (status != STATUS_OK) {
        return status;
    }
    uint32_t count = log_set_stream_count(set);
    log_diff_stream_t *streams = calloc(count, sizeof streams[0]);
    if (streams == NULL) {
        log_set_close(&set);
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++) {
        const proto_log_header_t *header = log_set_stream(set, i).header;
        memcpy(streams[i].name, header->name, sizeof streams[i].name);
        streams[i].epoch = header->epoch;
    }
    log_set_close(&set);
    qsort(streams, count, sizeof streams[0], by_epoch);
    for (uint32_t i = 1; i < count; i++) {
        bool is_same = strcmp(streams[i].name, streams[i - 1].name) == 0;
        streams[i].incarnation = is_same ? streams[i - 1].incarnation + 1 : 0;
    }
    *out_p = streams;
    *count_p = count;
    return STATUS_OK;
}

proto_status_t
log_diff_place_read(const log_diff_place_t *place, proto_log_reader_t **reader_p,
                    log_set_item_t *out)
{
    memset(out, 0, sizeof *out);
    proto_status_t status = proto_log_reader_open(place->path, reader_p, NULL);
    if (status == STATUS_OK) {
        proto_log_reader_seek(*reader_p, place->offset);
        status = proto_log_reader_next(*reader_p, &out->record);
    }
    out->header = place->header;
    out->path = place->path;
    out->offset = place->offset;
    return status;
}

/* ---- the cursor ------------------------------------------------------------------------------ */

proto_status_t
log_diff_cursor_open(log_diff_cursor_t *self, const log_diff_side_t *side,
                     const log_diff_stream_t *stream, proto_error_t *error)
{
    /* An epoch of 0 would mean all of them; only a made-up log has it. */
    log_set_options_t options = {.actor = stream->name, .epoch = stream->epoch};
    self->ids = calloc(PROTO_ROWS_MAX, sizeof self->ids[0]);
    if (self->ids == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    return log_set_open(side->paths, side->path_count, &options, &self->set, error);
}

void
log_diff_cursor_fini(log_diff_cursor_t *self)
{
    log_set_close(&self->set);
    log_decoder_fini(&self->decoder);
    log_table_fini(&self->requests);
    free(self->sums);
    free(self->ids);
    memset(self, 0, sizeof *self);
}

proto_status_t
log_diff_cursor_rewind(log_diff_cursor_t *self)
{
    self->row_count = 0;
    self->row = 0;
    self->given = 0;
    return log_set_rewind(self->set);
}

static proto_status_t
ordinal_of(log_diff_cursor_t *self, uint64_t *request)
{
    if (*request != 0) {
        int32_t index = log_table_add(&self->requests, *request);
        if (index == LOG_TABLE_NONE) {
            return STATUS_ERR_NO_MEMORY;
        }
        *request = (uint64_t)index + 1;
    }
    return STATUS_OK;
}

/* Puts ordinals in the place of ids. */
static proto_status_t
rename_requests(log_diff_cursor_t *self)
{
    proto_status_t status = ordinal_of(self, &self->message.header.request);
    if (!self->message.has_body || self->message.header.kind != PROTO_KIND_TOKENS) {
        return status;
    }
    proto_column_u64_t *requests = &self->message.body.tokens.requests;
    require(requests->count <= PROTO_ROWS_MAX);
    for (uint32_t i = 0; i < requests->count && status == STATUS_OK; i++) {
        self->ids[i] = requests->data[i];
        status = ordinal_of(self, &self->ids[i]);
    }
    requests->data = self->ids;
    return status;
}

/* One row of a TOKENS as a message of its own, so that it does not matter who shared its step. */
static bool
take_row(log_diff_cursor_t *self)
{
    const proto_tokens_t *all = &self->whole.body.tokens;
    uint32_t at = self->row++;
    if (at >= all->token_indices.count || at >= all->token_counts.count) {
        self->row = self->row_count; /* columns of different lengths: not a TOKENS of ours */
        return false;
    }
    uint32_t count = all->token_counts.data[at];
    if (self->row_token_at + count > all->tokens.count) {
        self->row = self->row_count;
        return false;
    }
    self->message = self->whole;
    self->row_request = all->requests.data[at];
    self->message.header.request = self->row_request;
    proto_tokens_t *one = &self->message.body.tokens;
    memset(one, 0, sizeof *one);
    one->requests = (proto_column_u64_t){&self->row_request, 1};
    one->token_indices = (proto_column_u32_t){&all->token_indices.data[at], 1};
    one->token_counts = (proto_column_u8_t){&all->token_counts.data[at], 1};
    one->tokens = (proto_column_i32_t){all->tokens.data + self->row_token_at, count};
    self->row_token_at += count;
    return true;
}

/* The next message of the set, or the next row of the last one. */
static proto_status_t
take(log_diff_cursor_t *self)
{
    while (self->row < self->row_count) {
        if (take_row(self)) {
            return STATUS_OK;
        }
    }
    for (;;) {
        proto_status_t status = log_set_next(self->set, &self->item);
        if (status != STATUS_OK) {
            return status;
        }
        status = log_decoder_decode(&self->decoder, &self->item.record, &self->message);
        if (status == STATUS_ERR_NO_MEMORY) {
            return status;
        }
        if (status != STATUS_OK) {
            continue;
        }
        status = rename_requests(self);
        if (status != STATUS_OK) {
            return status;
        }
        self->place = (log_diff_place_t){self->item.path, self->item.offset, self->item.header};
        if (!self->by_row || !self->message.has_body ||
            self->message.header.kind != PROTO_KIND_TOKENS) {
            return STATUS_OK;
        }
        self->whole = self->message;
        self->row = 0;
        self->row_count = self->message.body.tokens.requests.count;
        self->row_token_at = 0;
        while (self->row < self->row_count) {
            if (take_row(self)) {
                return STATUS_OK;
            }
        }
    }
}

proto_status_t
log_diff_cursor_next(log_diff_cursor_t *self, int32_t ordinal)
{
    if (self->has_message) {
        self->recent[self->given++ % LOG_DIFF_CONTEXT_MAX] = self->place;
    }
    self->has_message = false;
    proto_status_t status;
    do {
        status = take(self);
    } while (status == STATUS_OK && ordinal != LOG_TABLE_NONE &&
             self->message.header.request != (uint64_t)ordinal + 1);
    self->has_message = status == STATUS_OK;
    return status == STATUS_END ? STATUS_OK : status;
}

const log_diff_place_t *
log_diff_cursor_recent(const log_diff_cursor_t *self, uint32_t back)
{
    if (back == 0 || back > self->given || back > LOG_DIFF_CONTEXT_MAX) {
        return NULL;
    }
    return &self->recent[(self->given - back) % LOG_DIFF_CONTEXT_MAX];
}

/* ---- sums ------------------------------------------------------------------------------------ */

static proto_status_t
reserve_sums(log_diff_cursor_t *self, uint64_t count)
{
    uint32_t capacity = self->sum_capacity == 0 ? 64 : self->sum_capacity;
    while (capacity < count) {
        capacity *= 2; /* the table's limit ends this long before it overflows */
    }
    if (capacity == self->sum_capacity) {
        return STATUS_OK;
    }
    log_diff_sum_t *larger = realloc(self->sums, capacity * sizeof larger[0]);
    if (larger == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    memset(larger + self->sum_capacity, 0, (capacity - self->sum_capacity) * sizeof larger[0]);
    self->sums = larger;
    self->sum_capacity = capacity;
    return STATUS_OK;
}

static proto_status_t
add_to_sum(log_diff_cursor_t *self, uint64_t value, uint64_t first)
{
    proto_status_t status = reserve_sums(self, self->message.header.request);
    if (status == STATUS_OK) {
        log_diff_sum_t *sum = &self->sums[self->message.header.request - 1];
        sum->sum = log_table_mix(sum->sum ^ value) + 1;
        sum->first = sum->count++ == 0 ? first : sum->first;
    }
    return status;
}

proto_status_t
log_diff_cursor_sum(log_diff_cursor_t *self, const log_field_options_t *fields)
{
    /* A seed that the gateway drew is another in every run. */
    static const char *const drawn[] = {"sampling", "cause", "slot", "step", "request", "requests"};
    static const log_field_options_t prompt = {.ignored = drawn,
                                               .ignored_count = sizeof drawn / sizeof drawn[0]};
    proto_status_t status;
    while ((status = log_diff_cursor_next(self, LOG_TABLE_NONE)) == STATUS_OK &&
           self->has_message) {
        const log_message_t *message = &self->message;
        if (message->header.request == 0) {
            continue;
        }
        uint64_t value = (uint64_t)message->header.kind << 1 |
                         (uint64_t)(self->item.record.kind == PROTO_LOG_OUT);
        uint64_t first = value;
        if (message->has_body) {
            value ^= log_field_hash(message->header.kind, &message->body, fields);
            bool is_known = message->header.request <= self->sum_capacity &&
                            self->sums[message->header.request - 1].count > 0;
            first ^= is_known ? 0 : log_field_hash(message->header.kind, &message->body, &prompt);
        }
        status = add_to_sum(self, value, first);
        if (status != STATUS_OK) {
            break;
        }
    }
    return status == STATUS_OK ? reserve_sums(self, self->requests.count) : status;
}
