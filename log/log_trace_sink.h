/* log_trace_sink.h - what a format of timelines has to be able to write; private to log/. */
#ifndef LOG_TRACE_SINK_H
#define LOG_TRACE_SINK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { LOG_TRACE_FLOWS_MAX = 4, LOG_TRACE_NOTES_MAX = 4 };

typedef enum { LOG_TRACK_PROCESS, LOG_TRACK_EVENTS, LOG_TRACK_COUNTER } log_track_form_t;

typedef struct {
    log_track_form_t form;
    uint32_t process; /* from 1 */
    uint32_t thread;  /* within the process, from 1; 0 for the process itself */
    const char *name;
    const char *unit; /* of a counter */
} log_track_t;

typedef enum { LOG_FLOW_BEGIN, LOG_FLOW_STEP, LOG_FLOW_END } log_flow_phase_t;

typedef struct {
    uint64_t id;
    log_flow_phase_t phase;
} log_flow_t;

typedef struct {
    uint32_t process, thread;
    const char *name;
    bool is_instant;
    uint64_t begin_ns, end_ns;
    log_flow_t flows[LOG_TRACE_FLOWS_MAX];
    uint32_t flow_count;
    struct {
        const char *name;
        uint64_t value;
    } notes[LOG_TRACE_NOTES_MAX];
    uint32_t note_count;
} log_trace_event_t;

typedef struct {
    void (*begin)(FILE *out);
    void (*track)(FILE *out, const log_track_t *track);
    void (*event)(FILE *out, const log_trace_event_t *event);
    void (*counter)(FILE *out, uint32_t process, uint32_t thread, const char *name,
                    uint64_t time_ns, uint64_t value);
    void (*end)(FILE *out);
} log_trace_sink_t;

extern const log_trace_sink_t log_trace_perfetto; /* log_perfetto.c */
extern const log_trace_sink_t log_trace_chrome;   /* log_chrome.c */

#endif
