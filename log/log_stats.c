#include "log_stats.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "log_requests.h"
#include "log_survey.h"
#include "log_visit.h"

typedef struct {
    uint64_t count;
    uint64_t bytes; /* of all parts */
    uint64_t bytes_max;
} tally_t;

/* What one stream did: messages in and out, and records that hold no message. */
typedef struct {
    tally_t messages[2][LOG_MESSAGE_NUMBER_MAX + 1];
    tally_t records[PROTO_LOG_KIND_COUNT];
    uint64_t first_ns, last_ns;
    log_gaps_t gaps;
} actor_t;

typedef struct {
    log_set_t *set;
    actor_t *actors; /* one for each stream */
    log_requests_t *requests;
} stats_t;

typedef struct {
    uint64_t count;
    uint64_t min, p50, p90, p99, max; /* ns */
    double mean;
} spread_t;

static void
count_in(tally_t *tally, const proto_log_record_t *record)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < record->part_count; i++) {
        bytes += record->parts[i].size_bytes;
    }
    tally->count++;
    tally->bytes += bytes;
    tally->bytes_max = bytes > tally->bytes_max ? bytes : tally->bytes_max;
}

static proto_status_t
visit(void *context, const log_set_item_t *item, const log_message_t *message)
{
    stats_t *self = context;
    actor_t *actor = &self->actors[item->stream];
    log_gaps_pass(&actor->gaps, &item->record);
    actor->first_ns = actor->first_ns == 0 ? item->record.time_ns : actor->first_ns;
    actor->last_ns = item->record.time_ns;
    if (message == NULL) {
        uint32_t kind = (uint32_t)item->record.kind;
        count_in(&actor->records[kind < PROTO_LOG_KIND_COUNT ? kind : 0], &item->record);
        return STATUS_OK;
    }
    uint32_t number = message->table != NULL ? (uint32_t)message->header.kind : 0;
    number = number <= LOG_MESSAGE_NUMBER_MAX ? number : 0;
    count_in(&actor->messages[item->record.kind == PROTO_LOG_OUT][number], &item->record);
    return log_requests_pass(self->requests, item, message);
}

/* ---- latencies ------------------------------------------------------------------------------- */

static int
by_value(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right ? 1 : 0;
}

/* Nearest rank: the smallest value that at least this share of all values does not exceed. */
static uint64_t
rank(const uint64_t *sorted, uint64_t count, uint64_t percent)
{
    uint64_t place = (count * percent + 99) / 100;
    return sorted[place > 0 ? place - 1 : 0];
}

typedef uint64_t value_fn(const log_request_t *request); /* UINT64_MAX = it has none */

static uint64_t
span(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns != 0 && to_ns != 0 ? (to_ns > from_ns ? to_ns - from_ns : 0) : UINT64_MAX;
}

static uint64_t
to_first_tokens(const log_request_t *request)
{
    return span(request->submit_ns, request->first_tokens_ns);
}

static uint64_t
to_finished(const log_request_t *request)
{
    return span(request->submit_ns, request->finished_ns);
}

static uint64_t
to_admit(const log_request_t *request)
{
    return span(request->submit_ns, request->admit_ns);
}

static const struct {
    const char *name;
    value_fn *value;
} latencies[] = {
    {"submit_to_admit", to_admit},
    {"submit_to_first_tokens", to_first_tokens},
    {"submit_to_finished", to_finished},
};

static bool
measure(const stats_t *self, value_fn *value, uint64_t *room, spread_t *out)
{
    memset(out, 0, sizeof *out);
    double sum = 0;
    for (uint32_t i = 0; i < log_requests_count(self->requests); i++) {
        uint64_t one = value(log_requests_at(self->requests, i));
        if (one != UINT64_MAX) {
            room[out->count++] = one;
            sum += (double)one;
        }
    }
    if (out->count == 0) {
        return false;
    }
    qsort(room, out->count, sizeof room[0], by_value);
    out->min = room[0];
    out->p50 = rank(room, out->count, 50);
    out->p90 = rank(room, out->count, 90);
    out->p99 = rank(room, out->count, 99);
    out->max = room[out->count - 1];
    out->mean = sum / (double)out->count;
    return true;
}

/* ---- printing -------------------------------------------------------------------------------- */

static double
ms(uint64_t value_ns)
{
    return (double)value_ns / 1e6;
}

static void
print_tally(FILE *out, bool json, bool *is_first, const proto_log_header_t *actor,
            const char *direction, const char *name, const tally_t *tally)
{
    if (tally->count == 0) {
        return;
    }
    if (json) {
        fprintf(out,
                "%s{\"actor\":\"%s\",\"epoch\":%" PRIu64
                ",\"direction\":\"%s\",\"kind\":\"%s\",\"count\":%" PRIu64 ",\"bytes\":%" PRIu64
                ",\"bytes_max\":%" PRIu64 "}",
                *is_first ? "" : ",", actor->name, actor->epoch, direction, name, tally->count,
                tally->bytes, tally->bytes_max);
    } else {
        fprintf(out, "%-10s %-6s %-14s %10" PRIu64 " %14" PRIu64 " %12" PRIu64 " %12" PRIu64 "\n",
                actor->name, direction, name, tally->count, tally->bytes,
                tally->bytes / tally->count, tally->bytes_max);
    }
    *is_first = false;
}

static void
print_tallies(const stats_t *self, bool json, FILE *out)
{
    bool is_first = true;
    for (uint32_t i = 0; i < log_set_stream_count(self->set); i++) {
        const proto_log_header_t *name = log_set_stream(self->set, i).header;
        const actor_t *actor = &self->actors[i];
        for (uint32_t side = 0; side < 2; side++) {
            for (uint32_t number = 0; number <= LOG_MESSAGE_NUMBER_MAX; number++) {
                print_tally(out, json, &is_first, name, side == 1 ? "out" : "in",
                            proto_kind_name((proto_kind_t)number), &actor->messages[side][number]);
            }
        }
        for (uint32_t kind = 0; kind < PROTO_LOG_KIND_COUNT; kind++) {
            print_tally(out, json, &is_first, name, "record",
                        proto_log_kind_name((proto_log_kind_t)kind), &actor->records[kind]);
        }
    }
}

static void
print_span(FILE *out, const char *name, uint64_t value_ns)
{
    if (value_ns == UINT64_MAX) {
        fprintf(out, ",\"%s\":null", name);
    } else {
        fprintf(out, ",\"%s\":%.6f", name, ms(value_ns));
    }
}

static void
print_request_json(FILE *out, bool is_first, const log_request_t *request)
{
    fprintf(out,
            "%s{\"request\":%" PRIu64 ",\"submit_ns\":%" PRIu64 ",\"admit_ns\":%" PRIu64
            ",\"first_tokens_ns\":%" PRIu64 ",\"finished_ns\":%" PRIu64,
            is_first ? "" : ",", request->request, request->submit_ns, request->admit_ns,
            request->first_tokens_ns, request->finished_ns);
    print_span(out, "admit_ms", to_admit(request));
    print_span(out, "first_tokens_ms", to_first_tokens(request));
    print_span(out, "finished_ms", to_finished(request));
    fprintf(out,
            ",\"prompt_tokens\":%u,\"cached_tokens\":%u,\"generated_tokens\":%u,"
            "\"token_messages\":%u,\"submits\":%u,\"reason\":\"%s\"}",
            request->prompt_length, request->cached_tokens, request->generated_tokens,
            request->token_messages, request->submit_count,
            log_finish_reason_name(request->reason));
}

static void
print_cell(FILE *out, uint64_t value_ns)
{
    if (value_ns == UINT64_MAX) {
        fprintf(out, " %11s", "-");
    } else {
        fprintf(out, " %11.3f", ms(value_ns));
    }
}

static void
print_request_line(FILE *out, const log_request_t *request)
{
    fprintf(out, "%20" PRIu64 " %14.6f", request->request, (double)request->submit_ns / 1e9);
    print_cell(out, to_admit(request));
    print_cell(out, to_first_tokens(request));
    print_cell(out, to_finished(request));
    fprintf(out, " %7u %7u %7u  %s%s\n", request->prompt_length, request->cached_tokens,
            request->generated_tokens,
            request->finished_ns != 0 ? log_finish_reason_name(request->reason) : "not finished",
            request->submit_count > 1 ? ", submitted again" : "");
}

static proto_status_t
print_json(const stats_t *self, FILE *out, uint64_t *room)
{
    fputs("{\"kinds\":[", out);
    print_tallies(self, true, out);
    fprintf(out, "],\"observer\":\"%s\",\"latency_ms\":{", log_requests_observer(self->requests));
    for (size_t i = 0; i < sizeof latencies / sizeof latencies[0]; i++) {
        spread_t spread;
        (void)measure(self, latencies[i].value, room, &spread);
        fprintf(out,
                "%s\"%s\":{\"count\":%" PRIu64 ",\"min\":%.6f,\"mean\":%.6f,\"p50\":%.6f,"
                "\"p90\":%.6f,\"p99\":%.6f,\"max\":%.6f}",
                i > 0 ? "," : "", latencies[i].name, spread.count, ms(spread.min),
                spread.mean / 1e6, ms(spread.p50), ms(spread.p90), ms(spread.p99), ms(spread.max));
    }
    fprintf(out, "},\"requests_not_followed\":%" PRIu64 ",\"requests\":[",
            log_requests_unfollowed(self->requests));
    for (uint32_t i = 0; i < log_requests_count(self->requests); i++) {
        print_request_json(out, i == 0, log_requests_at(self->requests, i));
    }
    fputs("]}\n", out);
    return STATUS_OK;
}

static void
print_actors(const stats_t *self, FILE *out)
{
    for (uint32_t i = 0; i < log_set_stream_count(self->set); i++) {
        const actor_t *actor = &self->actors[i];
        const proto_log_header_t *header = log_set_stream(self->set, i).header;
        fprintf(out,
                "%-10s epoch %016" PRIx64 "  %9.3f s  %" PRIu64 " gap%s, %" PRIu64
                " record%s missing\n",
                header->name, header->epoch, (double)(actor->last_ns - actor->first_ns) / 1e9,
                actor->gaps.gap_count, actor->gaps.gap_count == 1 ? "" : "s",
                actor->gaps.missing_count, actor->gaps.missing_count == 1 ? "" : "s");
    }
}

static void
print_text(const stats_t *self, bool list_requests, FILE *out, uint64_t *room)
{
    print_actors(self, out);
    fprintf(out, "\n%-10s %-6s %-14s %10s %14s %12s %12s\n", "actor", "", "kind", "count", "bytes",
            "mean", "largest");
    print_tallies(self, false, out);
    uint32_t count = log_requests_count(self->requests);
    if (count == 0) {
        return;
    }
    fprintf(out, "\n%u request%s as the %s saw %s, ms:\n", (unsigned)count, count == 1 ? "" : "s",
            log_requests_observer(self->requests), count == 1 ? "it" : "them");
    fprintf(out, "%-24s %8s %10s %10s %10s %10s %10s %10s\n", "", "count", "min", "mean", "p50",
            "p90", "p99", "max");
    for (size_t i = 0; i < sizeof latencies / sizeof latencies[0]; i++) {
        spread_t spread;
        if (measure(self, latencies[i].value, room, &spread)) {
            fprintf(out, "%-24s %8" PRIu64 " %10.3f %10.3f %10.3f %10.3f %10.3f %10.3f\n",
                    latencies[i].name, spread.count, ms(spread.min), spread.mean / 1e6,
                    ms(spread.p50), ms(spread.p90), ms(spread.p99), ms(spread.max));
        }
    }
    if (log_requests_unfollowed(self->requests) > 0) {
        fprintf(out, "%" PRIu64 " messages of further requests are not in these figures\n",
                log_requests_unfollowed(self->requests));
    }
    if (list_requests) {
        fprintf(out, "\n%20s %14s %11s %11s %11s %7s %7s %7s  %s\n", "request", "submitted, s",
                "admit", "first", "finished", "prompt", "cached", "tokens", "end");
        for (uint32_t i = 0; i < count; i++) {
            print_request_line(out, log_requests_at(self->requests, i));
        }
    }
}

proto_status_t
log_stats_print(log_set_t *set, const log_stats_options_t *options, FILE *out)
{
    stats_t self = {.set = set};
    uint64_t *room = NULL;
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    self.actors = calloc(log_set_stream_count(set), sizeof self.actors[0]);
    if (self.actors == NULL) {
        goto end;
    }
    status = log_requests_new(set, &self.requests);
    if (status != STATUS_OK) {
        goto end;
    }
    status = log_set_visit(set, visit, &self);
    if (status != STATUS_OK) {
        goto end;
    }
    status = STATUS_ERR_NO_MEMORY;
    room = malloc(((size_t)log_requests_count(self.requests) + 1) * sizeof room[0]);
    if (room == NULL) {
        goto end;
    }
    status = STATUS_OK;
    if (options->json) {
        status = print_json(&self, out, room);
    } else {
        print_text(&self, options->list_requests, out, room);
    }

end:
    free(room);
    log_requests_destroy(&self.requests);
    free(self.actors);
    return status;
}
