#include "log_trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "log_requests.h"
#include "log_table.h"
#include "log_trace_sink.h"
#include "log_visit.h"

enum {
    LANES_MAX = 4096, /* requests open at once that are drawn */
    THREAD_MESSAGES = 1,
    THREAD_DEVICE = 2,
    THREAD_BATCH = 3,
    THREAD_CACHE = 4,
    NAME_SIZE = 64,
};

/* What one flow id is made of, so that both ends find the same number. */
typedef enum { FLOW_REQUEST = 1, FLOW_STEP, FLOW_MESSAGE, FLOW_CAUSE } flow_kind_t;

typedef struct {
    uint64_t request; /* 0 = free lane */
    uint64_t submit_ns, admit_ns, first_ns;
} lane_t;

typedef struct {
    log_inputs_t inputs;
    bool has_device, has_batch, has_cache; /* tracks that exist */
    uint64_t device_end_ns;                /* slices of one track must not overlap */
} stream_t;

typedef struct {
    log_set_t *set;
    const log_trace_sink_t *sink;
    FILE *out;
    log_trace_counts_t *counts;
    stream_t *streams;
    lane_t *lanes; /* LANES_MAX */
    uint32_t lane_count;
    uint32_t requests_process;
    proto_role_t observer;     /* whose SUBMIT and FINISHED are the life of a request */
    proto_role_t step_teller;  /* whose messages tell of steps */
    proto_role_t batch_teller; /* whose plans are counted */
    uint64_t base_ns;          /* subtracted: JSON readers have 53 bits */
    uint64_t last_ns;
} trace_t;

static uint64_t
flow_id(flow_kind_t kind, uint64_t a, uint64_t b, uint64_t c)
{
    return log_table_mix(log_table_mix(log_table_mix(a + (uint64_t)kind) ^ b) ^ c);
}

static void
make_track(trace_t *self, log_track_form_t form, uint32_t process, uint32_t thread,
           const char *name)
{
    log_track_t track = {form, process, thread, name, thread == THREAD_BATCH ? "rows" : "blocks"};
    self->sink->track(self->out, &track);
    self->counts->tracks++;
}

static void
put_event(trace_t *self, log_trace_event_t *event)
{
    self->sink->event(self->out, event);
    self->counts->events++;
}

static void
add_flow(log_trace_event_t *event, uint64_t id, log_flow_phase_t phase)
{
    if (event->flow_count < LOG_TRACE_FLOWS_MAX) {
        event->flows[event->flow_count++] = (log_flow_t){id, phase};
    }
}

static void
add_note(log_trace_event_t *event, const char *name, uint64_t value)
{
    if (event->note_count < LOG_TRACE_NOTES_MAX) {
        event->notes[event->note_count].name = name;
        event->notes[event->note_count++].value = value;
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

static lane_t *
find_lane(trace_t *self, uint64_t request)
{
    for (uint32_t i = 0; i < self->lane_count; i++) {
        if (self->lanes[i].request == request) {
            return &self->lanes[i];
        }
    }
    return NULL;
}

static void
open_lane(trace_t *self, uint64_t request, uint64_t time_ns)
{
    if (request == 0 || find_lane(self, request) != NULL) {
        return;
    }
    lane_t *lane = find_lane(self, 0);
    if (lane == NULL) {
        if (self->lane_count == LANES_MAX) {
            self->counts->left_out++;
            return;
        }
        if (self->lane_count == 0) {
            make_track(self, LOG_TRACK_PROCESS, self->requests_process, 0, "requests");
        }
        char name[NAME_SIZE];
        (void)snprintf(name, sizeof name, "lane %u", (unsigned)self->lane_count);
        lane = &self->lanes[self->lane_count++];
        make_track(self, LOG_TRACK_EVENTS, self->requests_process, self->lane_count, name);
    }
    *lane = (lane_t){.request = request, .submit_ns = time_ns};
}

static void
put_phase(trace_t *self, uint32_t thread, const char *name, uint64_t begin_ns, uint64_t end_ns)
{
    if (begin_ns != 0 && end_ns >= begin_ns) {
        log_trace_event_t phase = {.process = self->requests_process,
                                   .thread = thread,
                                   .name = name,
                                   .begin_ns = begin_ns,
                                   .end_ns = end_ns};
        put_event(self, &phase);
    }
}

/* The whole life and its phases within; `message` NULL: it is still open at the end of the log. */
static void
close_lane(trace_t *self, lane_t *lane, uint64_t end_ns, const log_message_t *message)
{
    uint32_t thread = (uint32_t)(lane - self->lanes) + 1;
    char name[NAME_SIZE];
    const char *reason = "not finished";
    if (message != NULL) {
        reason = message->has_body ? log_finish_reason_name(message->body.finished.reason) : "?";
    }
    (void)snprintf(name, sizeof name, "request %" PRIu64 " (%s)", lane->request, reason);
    log_trace_event_t whole = {.process = self->requests_process,
                               .thread = thread,
                               .name = name,
                               .begin_ns = lane->submit_ns,
                               .end_ns = end_ns};
    add_note(&whole, "request", lane->request);
    if (message != NULL && message->has_body) {
        add_note(&whole, "prompt_tokens", message->body.finished.prompt_tokens);
        add_note(&whole, "cached_tokens", message->body.finished.cached_tokens);
        add_note(&whole, "generated_tokens", message->body.finished.generated_tokens);
    }
    add_flow(&whole, flow_id(FLOW_REQUEST, lane->request, 0, 0), LOG_FLOW_STEP);
    put_event(self, &whole);
    uint64_t admit_ns = lane->admit_ns != 0 ? lane->admit_ns : end_ns;
    uint64_t first_ns = lane->first_ns != 0 ? lane->first_ns : end_ns;
    put_phase(self, thread, "waiting", lane->submit_ns, admit_ns);
    if (lane->admit_ns != 0) {
        put_phase(self, thread, "prompt", admit_ns, first_ns);
    }
    if (lane->first_ns != 0) {
        put_phase(self, thread, "generating", first_ns, end_ns);
    }
    self->counts->requests++;
    lane->request = 0;
}

static void
follow_requests(trace_t *self, proto_role_t role, uint64_t time_ns, const log_message_t *message)
{
    proto_kind_t kind = message->header.kind;
    bool is_observer = role == self->observer;
    lane_t *lane = NULL;
    if (is_observer && kind == PROTO_KIND_SUBMIT) {
        open_lane(self, message->header.request, time_ns);
    } else if (is_observer && kind == PROTO_KIND_TOKENS && message->has_body) {
        const proto_column_u64_t *requests = &message->body.tokens.requests;
        for (uint32_t i = 0; i < requests->count; i++) {
            lane = requests->data[i] != 0 ? find_lane(self, requests->data[i]) : NULL;
            if (lane != NULL && lane->first_ns == 0) {
                lane->first_ns = time_ns;
            }
        }
    } else if (kind == PROTO_KIND_ADMIT || (is_observer && kind == PROTO_KIND_FINISHED)) {
        lane = message->header.request != 0 ? find_lane(self, message->header.request) : NULL;
        if (lane != NULL && kind == PROTO_KIND_FINISHED) {
            close_lane(self, lane, time_ns, message);
        } else if (lane != NULL && lane->admit_ns == 0) {
            lane->admit_ns = time_ns;
        }
    }
}

/* ---- steps and counters ---------------------------------------------------------------------- */

static void
put_step(trace_t *self, uint32_t index, uint64_t time_ns, uint64_t step, uint64_t duration_ns,
         uint32_t rows)
{
    stream_t *stream = &self->streams[index];
    if (!stream->has_device) {
        make_track(self, LOG_TRACK_EVENTS, index + 1, THREAD_DEVICE, "device");
        stream->has_device = true;
    }
    uint64_t begin_ns = duration_ns < time_ns ? time_ns - duration_ns : 0;
    if (begin_ns < stream->device_end_ns) {
        begin_ns = stream->device_end_ns; /* it was queued behind the one before */
    }
    if (time_ns < begin_ns) {
        return; /* times of a log that lies */
    }
    stream->device_end_ns = time_ns;
    char name[NAME_SIZE];
    (void)snprintf(name, sizeof name, "step %" PRIu64, step);
    log_trace_event_t event = {.process = index + 1,
                               .thread = THREAD_DEVICE,
                               .name = name,
                               .begin_ns = begin_ns,
                               .end_ns = time_ns};
    add_note(&event, "step", step);
    add_note(&event, "rows", rows);
    add_note(&event, "device_ns", duration_ns);
    add_flow(&event, flow_id(FLOW_STEP, step, 0, 0), LOG_FLOW_STEP);
    put_event(self, &event);
}

static void
put_counter(trace_t *self, uint32_t index, uint32_t thread, const char *name, uint64_t time_ns,
            uint64_t value)
{
    stream_t *stream = &self->streams[index];
    bool *has = thread == THREAD_BATCH ? &stream->has_batch : &stream->has_cache;
    if (!*has) {
        make_track(self, LOG_TRACK_COUNTER, index + 1, thread, name);
        *has = true;
    }
    self->sink->counter(self->out, index + 1, thread, name, time_ns, value);
    self->counts->counters++;
}

static void
follow_steps(trace_t *self, uint32_t index, proto_role_t role, uint64_t time_ns,
             const log_message_t *message)
{
    const proto_body_t *body = &message->body;
    if (!message->has_body) {
        return;
    }
    switch ((int)message->header.kind) {
    case PROTO_KIND_STEP_DONE:
        put_step(self, index, time_ns, body->step_done.step, body->step_done.duration_ns,
                 body->step_done.token_counts.count);
        break;
    case PROTO_KIND_STEP_RESULT:
        if (role == self->step_teller && role == PROTO_ROLE_SCHEDULER) {
            put_step(self, index, time_ns, body->step_result.step, body->step_result.duration_ns,
                     body->step_result.token_counts.count);
        }
        break;
    case PROTO_KIND_PLAN:
        if (role == self->batch_teller) {
            put_counter(self, index, THREAD_BATCH, "batch size", time_ns,
                        (uint64_t)body->plan.extend_slots.count + body->plan.decode_slots.count);
        }
        break;
    case PROTO_KIND_LOAD:
        if (role == self->batch_teller || self->batch_teller != PROTO_ROLE_SCHEDULER) {
            uint64_t idle = (uint64_t)body->load.blocks_free + body->load.blocks_cached;
            put_counter(self, index, THREAD_CACHE, "KV blocks in use", time_ns,
                        body->load.blocks_total > idle ? body->load.blocks_total - idle : 0);
        }
        break;
    default:
        break;
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

static uint64_t
step_of(const log_message_t *message)
{
    if (!message->has_body) {
        return 0;
    }
    switch ((int)message->header.kind) {
    case PROTO_KIND_PLAN:
        return message->body.plan.step;
    case PROTO_KIND_STEP_RESULT:
        return message->body.step_result.step;
    case PROTO_KIND_STEP_LAUNCH:
        return message->body.step_launch.step;
    case PROTO_KIND_STEP_DONE:
        return message->body.step_done.step;
    case PROTO_KIND_TOKENS:
        return message->body.tokens.step;
    default:
        return 0;
    }
}

static void
add_flows(log_trace_event_t *event, const stream_t *stream, const log_set_item_t *item,
          const log_message_t *message)
{
    const proto_header_t *header = &message->header;
    bool is_output = item->record.kind == PROTO_LOG_OUT;
    uint64_t step = step_of(message);
    if (header->request != 0) {
        bool is_end = header->kind == PROTO_KIND_HTTP_END;
        bool is_begin = is_output && header->kind == PROTO_KIND_SUBMIT;
        add_flow(event, flow_id(FLOW_REQUEST, header->request, 0, 0),
                 is_end     ? LOG_FLOW_END
                 : is_begin ? LOG_FLOW_BEGIN
                            : LOG_FLOW_STEP);
    }
    if (step != 0) {
        bool is_begin = is_output && header->kind == PROTO_KIND_PLAN;
        add_flow(event, flow_id(FLOW_STEP, step, 0, 0), is_begin ? LOG_FLOW_BEGIN : LOG_FLOW_STEP);
    }
    if (item->record.channel != 0 && header->cause != 0) {
        uint64_t what = (uint64_t)header->kind << 48 ^ header->request ^ step << 20;
        add_flow(event, flow_id(FLOW_MESSAGE, header->epoch, header->cause, what),
                 is_output ? LOG_FLOW_BEGIN : LOG_FLOW_END);
    }
    uint64_t input = is_output ? header->cause : stream->inputs.is_known ? stream->inputs.count : 0;
    if (input != 0) {
        add_flow(event, flow_id(FLOW_CAUSE, item->header->epoch, input, item->stream),
                 is_output ? LOG_FLOW_STEP : LOG_FLOW_BEGIN);
    }
}

static proto_status_t
visit(void *context, const log_set_item_t *item, const log_message_t *message)
{
    trace_t *self = context;
    stream_t *stream = &self->streams[item->stream];
    if (self->base_ns == 0 && self->sink == &log_trace_chrome) {
        self->base_ns = item->realtime_ns;
    }
    uint64_t time_ns =
        item->realtime_ns > self->base_ns ? item->realtime_ns - self->base_ns + 1 : 1;
    self->last_ns = time_ns > self->last_ns ? time_ns : self->last_ns;
    log_inputs_pass(&stream->inputs, &item->record);
    if (message == NULL && item->record.kind != PROTO_LOG_FAULT &&
        item->record.kind != PROTO_LOG_DROP && item->record.kind != PROTO_LOG_SNAPSHOT) {
        return STATUS_OK;
    }
    char name[NAME_SIZE];
    (void)snprintf(name, sizeof name, "%s%s",
                   message == NULL                      ? ""
                   : item->record.kind == PROTO_LOG_OUT ? "send "
                                                        : "",
                   message == NULL ? proto_log_kind_name(item->record.kind)
                                   : proto_kind_name(message->header.kind));
    log_trace_event_t event = {.process = item->stream + 1,
                               .thread = THREAD_MESSAGES,
                               .name = name,
                               .is_instant = true,
                               .begin_ns = time_ns,
                               .end_ns = time_ns};
    add_note(&event, "sequence", item->record.sequence);
    if (message != NULL) {
        add_note(&event, "peer", item->record.channel);
        if (message->header.request != 0) {
            add_note(&event, "request", message->header.request);
        }
        if (step_of(message) != 0) {
            add_note(&event, "step", step_of(message));
        }
        add_flows(&event, stream, item, message);
    }
    put_event(self, &event);
    if (message != NULL) {
        follow_steps(self, item->stream, item->header->role, time_ns, message);
        follow_requests(self, item->header->role, time_ns, message);
    }
    return ferror(self->out) ? STATUS_ERR_IO : STATUS_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static bool
has_role(const log_set_t *set, proto_role_t role)
{
    for (uint32_t i = 0; i < log_set_stream_count(set); i++) {
        if (log_set_stream(set, i).header->role == role) {
            return true;
        }
    }
    return false;
}

static void
choose_tellers(trace_t *self)
{
    bool has_scheduler = has_role(self->set, PROTO_ROLE_SCHEDULER);
    self->observer =
        has_role(self->set, PROTO_ROLE_GATEWAY) ? PROTO_ROLE_GATEWAY : PROTO_ROLE_SCHEDULER;
    self->batch_teller = has_scheduler ? PROTO_ROLE_SCHEDULER : PROTO_ROLE_EXECUTOR;
    self->step_teller =
        has_role(self->set, PROTO_ROLE_EXECUTOR) ? PROTO_ROLE_EXECUTOR : PROTO_ROLE_SCHEDULER;
}

proto_status_t
log_trace_write(log_set_t *set, log_trace_form_t form, FILE *out, log_trace_counts_t *counts)
{
    memset(counts, 0, sizeof *counts);
    uint32_t stream_count = log_set_stream_count(set);
    trace_t self = {.set = set,
                    .sink = form == LOG_TRACE_PERFETTO ? &log_trace_perfetto : &log_trace_chrome,
                    .out = out,
                    .counts = counts,
                    .requests_process = stream_count + 1};
    self.streams = calloc(stream_count, sizeof self.streams[0]);
    self.lanes = calloc(LANES_MAX, sizeof self.lanes[0]);
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    if (self.streams != NULL && self.lanes != NULL) {
        choose_tellers(&self);
        self.sink->begin(out);
        for (uint32_t i = 0; i < stream_count; i++) {
            const proto_log_header_t *header = log_set_stream(set, i).header;
            char name[NAME_SIZE];
            (void)snprintf(name, sizeof name, "%s %" PRIx64, header->name, header->epoch);
            make_track(&self, LOG_TRACK_PROCESS, i + 1, 0, name);
            make_track(&self, LOG_TRACK_EVENTS, i + 1, THREAD_MESSAGES, "messages");
        }
        status = log_set_visit(set, visit, &self);
        for (uint32_t i = 0; i < self.lane_count; i++) {
            if (self.lanes[i].request != 0) {
                close_lane(&self, &self.lanes[i], self.last_ns, NULL);
            }
        }
        self.sink->end(out);
    }
    free(self.streams);
    free(self.lanes);
    return status;
}
