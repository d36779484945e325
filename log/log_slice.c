/* Works on units: an input and what the actor recorded until the next one, all of it caused by that
 * input.  The input waits until the unit shows whether it is wanted. */
#include "log_slice.h"

#include <stdlib.h>
#include <string.h>

#include "log_cut.h"
#include "log_filter.h"
#include "log_visit.h"

enum {
    STEPS_IN_FLIGHT = 16, /* plans that were sent and have no result yet; the protocol has 2 */
    EXCHANGES_MAX = 4,    /* of one request: one, unless the log lies */
};

typedef enum { NOT_WANTED, BY_NAME, BY_STEP, BY_EXCHANGE } reason_t;

typedef struct {
    uint64_t exchange;
    uint32_t choice_index;
} choice_t;

/* What is known of the request in one stream. */
typedef struct {
    uint32_t slot; /* 0 = it has none */
    uint64_t steps[STEPS_IN_FLIGHT];
    uint32_t step_at; /* the oldest is written over */
    choice_t choices[EXCHANGES_MAX];
    uint32_t choice_count;
    bool has_input; /* `input` waits */
    uint8_t *bytes; /* the input, encoded */
    size_t capacity_bytes;
    size_t size_bytes;
    uint32_t number; /* its message */
    bool has_http;   /* it is a HTTP_REQUEST, of: */
    choice_t http;
    proto_log_header_t header;
} stream_t;

typedef struct {
    uint64_t request;
    log_out_t *out;
    log_slice_counts_t *counts;
    stream_t *streams;
} slice_t;

static bool
column_holds(proto_column_u32_t column, uint32_t value)
{
    for (uint32_t i = 0; i < column.count; i++) {
        if (column.data[i] == value) {
            return true;
        }
    }
    return false;
}

static void
remember_step(stream_t *stream, uint64_t step)
{
    stream->steps[stream->step_at++ % STEPS_IN_FLIGHT] = step;
}

static bool
knows_step(const stream_t *stream, uint64_t step)
{
    for (uint32_t i = 0; i < STEPS_IN_FLIGHT; i++) {
        if (step != 0 && stream->steps[i] == step) {
            return true;
        }
    }
    return false;
}

/* A plan concerns the request if its slot is a row, is patched or is released. */
static reason_t
judge_plan(stream_t *stream, const proto_plan_t *plan)
{
    uint32_t slot = stream->slot;
    if (slot == 0) {
        return NOT_WANTED;
    }
    bool is_row = column_holds(plan->extend_slots, slot) || column_holds(plan->decode_slots, slot);
    bool is_released = column_holds(plan->release_slots, slot);
    if (is_row) {
        remember_step(stream, plan->step);
    }
    if (is_released) {
        stream->slot = 0;
    }
    return is_row || is_released || column_holds(plan->patch_slots, slot) ? BY_STEP : NOT_WANTED;
}

static reason_t
judge_launch(stream_t *stream, const proto_step_launch_t *launch)
{
    /* The plan that it carries out was judged before: it knows whether the slot is in it, also if
     * the same plan released it. */
    return knows_step(stream, launch->step) ? BY_STEP : NOT_WANTED;
}

static reason_t
judge_exchange(const stream_t *stream, uint64_t exchange, uint32_t choice_index)
{
    for (uint32_t i = 0; i < stream->choice_count; i++) {
        if (stream->choices[i].exchange == exchange &&
            stream->choices[i].choice_index == choice_index) {
            return BY_EXCHANGE;
        }
    }
    return NOT_WANTED;
}

/* Every message passes here once, in the order of its stream. */
static reason_t
judge(slice_t *self, stream_t *stream, const log_message_t *message)
{
    reason_t by_name = log_message_names(message, self->request) ? BY_NAME : NOT_WANTED;
    if (!message->has_body) {
        return by_name;
    }
    const proto_body_t *body = &message->body;
    reason_t reason = NOT_WANTED;
    switch ((int)message->header.kind) {
    case PROTO_KIND_ADMIT:
        if (by_name != NOT_WANTED) {
            stream->slot = body->admit.slot;
        } else if (body->admit.slot == stream->slot) {
            stream->slot = 0; /* another one's now: we missed the release */
        }
        break;
    case PROTO_KIND_PLAN:
        reason = judge_plan(stream, &body->plan);
        break;
    case PROTO_KIND_STEP_LAUNCH:
        reason = judge_launch(stream, &body->step_launch);
        break;
    case PROTO_KIND_SLOT_SETUP:
        reason = stream->slot != 0 && body->slot_setup.slot == stream->slot ? BY_STEP : NOT_WANTED;
        break;
    case PROTO_KIND_STEP_RESULT:
        reason = knows_step(stream, body->step_result.step) ? BY_STEP : NOT_WANTED;
        break;
    case PROTO_KIND_STEP_DONE:
        reason = knows_step(stream, body->step_done.step) ? BY_STEP : NOT_WANTED;
        break;
    case PROTO_KIND_PLAN_REFUSED:
        reason = knows_step(stream, body->plan_refused.step) ? BY_STEP : NOT_WANTED;
        break;
    case PROTO_KIND_HTTP_STOP:
        reason = judge_exchange(stream, body->http_stop.exchange, body->http_stop.choice_index);
        break;
    default:
        break;
    }
    return by_name != NOT_WANTED ? by_name : reason;
}

/* ---- units ----------------------------------------------------------------------------------- */

static void
count_message(slice_t *self, uint32_t number)
{
    if (number < sizeof self->counts->message_counts / sizeof self->counts->message_counts[0]) {
        self->counts->message_counts[number]++;
    }
}

static proto_status_t
hold_input(stream_t *stream, const log_set_item_t *item, const log_message_t *message)
{
    size_t size_bytes = proto_log_record_size_bytes(&item->record);
    if (size_bytes > stream->capacity_bytes) {
        free(stream->bytes);
        stream->capacity_bytes = 0;
        stream->bytes = malloc(size_bytes);
        if (stream->bytes == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        stream->capacity_bytes = size_bytes;
    }
    proto_log_record_encode(&item->record, false, stream->bytes);
    stream->size_bytes = size_bytes;
    stream->number = (uint32_t)message->header.kind;
    stream->header = *item->header;
    stream->has_input = true;
    stream->has_http = message->has_body && message->header.kind == PROTO_KIND_HTTP_REQUEST;
    if (stream->has_http) {
        stream->http = (choice_t){message->body.http_request.exchange,
                                  message->body.http_request.choice_index};
    }
    return STATUS_OK;
}

/* The input that waits caused something that is wanted. */
static proto_status_t
keep_cause(slice_t *self, stream_t *stream)
{
    if (!stream->has_input) {
        return STATUS_OK;
    }
    stream->has_input = false;
    if (stream->has_http && stream->choice_count < EXCHANGES_MAX) {
        stream->choices[stream->choice_count++] = stream->http;
    }
    proto_log_record_t record;
    size_t size_bytes;
    proto_bytes_t bytes = {stream->bytes, stream->size_bytes};
    proto_status_t status = proto_log_record_decode(bytes, false, &record, &size_bytes);
    if (status != STATUS_OK) {
        return STATUS_ERR_INTERNAL; /* it was encoded here */
    }
    self->counts->causes++;
    count_message(self, stream->number);
    return log_out_append(self->out, &stream->header, &record);
}

static void
count_reason(slice_t *self, reason_t reason)
{
    self->counts->named += reason == BY_NAME ? 1U : 0U;
    self->counts->steps += reason == BY_STEP ? 1U : 0U;
    self->counts->exchange += reason == BY_EXCHANGE ? 1U : 0U;
}

static proto_status_t
visit(void *context, const log_set_item_t *item, const log_message_t *message)
{
    slice_t *self = context;
    stream_t *stream = &self->streams[item->stream];
    self->counts->read++;
    if (message == NULL) {
        bool is_frame = log_cut_is_frame(&item->record) || item->record.kind == PROTO_LOG_NOTE ||
                        item->record.kind == PROTO_LOG_FAULT;
        if (!is_frame) {
            return STATUS_OK;
        }
        stream->has_input = false; /* a later cause of it would go back in the sequence */
        self->counts->frames++;
        return log_out_append(self->out, item->header, &item->record);
    }
    bool is_output = item->record.kind == PROTO_LOG_OUT;
    reason_t reason = judge(self, stream, message);
    if (reason == NOT_WANTED) {
        return is_output ? STATUS_OK : hold_input(stream, item, message);
    }
    proto_status_t status = STATUS_OK;
    if (is_output) {
        status = keep_cause(self, stream);
    } else {
        stream->has_input = false;
    }
    if (status != STATUS_OK) {
        return status;
    }
    count_reason(self, reason);
    count_message(self, (uint32_t)message->header.kind);
    return log_out_append(self->out, item->header, &item->record);
}

proto_status_t
log_slice(log_set_t *set, uint64_t request, log_out_t *out, log_slice_counts_t *counts)
{
    memset(counts, 0, sizeof *counts);
    slice_t self = {.request = request, .out = out, .counts = counts};
    uint32_t stream_count = log_set_stream_count(set);
    self.streams = calloc(stream_count, sizeof self.streams[0]);
    if (self.streams == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    proto_status_t status = log_set_visit(set, visit, &self);
    for (uint32_t i = 0; i < stream_count; i++) {
        free(self.streams[i].bytes);
    }
    free(self.streams);
    if (status == STATUS_OK && counts->named == 0) {
        status = STATUS_ERR_NOT_FOUND;
    }
    return status;
}
