/* The JSON form that chrome://tracing and Perfetto read: one event a line.  Names come from message
 * tables and from actors' names that were made plain, so nothing needs escaping. */
#include <inttypes.h>

#include "log_trace_sink.h"

/* Microseconds with three decimals. */
#define TIME_FORM "%" PRIu64 ".%03u"
#define TIME_ARGS(time_ns) (time_ns) / 1000, (unsigned)((time_ns) % 1000)

static void
begin(FILE *out)
{
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n", out);
}

/* Every line before this one ends in a comma; JSON wants none behind the last. */
static void
end(FILE *out)
{
    fputs("{\"ph\":\"M\",\"name\":\"trace_end\",\"pid\":0,\"tid\":0,\"args\":{}}\n]}\n", out);
}

static void
track(FILE *out, const log_track_t *what)
{
    if (what->form == LOG_TRACK_COUNTER) {
        return; /* a counter is made by its first value */
    }
    fprintf(out,
            "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%" PRIu32 ",\"tid\":%" PRIu32
            ",\"args\":{\"name\":\"%s\"}},\n",
            what->form == LOG_TRACK_PROCESS ? "process_name" : "thread_name", what->process,
            what->thread, what->name);
}

static void
flows(FILE *out, const log_trace_event_t *what)
{
    static const char phases[] = {
        [LOG_FLOW_BEGIN] = 's', [LOG_FLOW_STEP] = 't', [LOG_FLOW_END] = 'f'};
    for (uint32_t i = 0; i < what->flow_count; i++) {
        fprintf(out,
                "{\"ph\":\"%c\",\"bp\":\"e\",\"cat\":\"flow\",\"name\":\"flow\",\"id\":\"%" PRIx64
                "\",\"pid\":%" PRIu32 ",\"tid\":%" PRIu32 ",\"ts\":" TIME_FORM "},\n",
                phases[what->flows[i].phase], what->flows[i].id, what->process, what->thread,
                TIME_ARGS(what->begin_ns));
    }
}

static void
event(FILE *out, const log_trace_event_t *what)
{
    /* Flows bind to slices only: what has no duration is a slice of none. */
    uint64_t duration_ns = what->is_instant ? 0 : what->end_ns - what->begin_ns;
    fprintf(out,
            "{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%" PRIu32 ",\"tid\":%" PRIu32
            ",\"ts\":" TIME_FORM ",\"dur\":" TIME_FORM ",\"args\":{",
            what->name, what->process, what->thread, TIME_ARGS(what->begin_ns),
            TIME_ARGS(duration_ns));
    for (uint32_t i = 0; i < what->note_count; i++) {
        fprintf(out, "%s\"%s\":%" PRIu64, i > 0 ? "," : "", what->notes[i].name,
                what->notes[i].value);
    }
    fputs("}},\n", out);
    flows(out, what);
}

static void
counter(FILE *out, uint32_t process, uint32_t thread, const char *name, uint64_t time_ns,
        uint64_t value)
{
    fprintf(out,
            "{\"ph\":\"C\",\"name\":\"%s\",\"pid\":%" PRIu32 ",\"tid\":%" PRIu32
            ",\"ts\":" TIME_FORM ",\"args\":{\"value\":%" PRIu64 "}},\n",
            name, process, thread, TIME_ARGS(time_ns), value);
}

const log_trace_sink_t log_trace_chrome = {begin, track, event, counter, end};
