/* Perfetto's TrackEvent protobuf, by hand: a trace is a row of packets, each written whole here.
 * Numbers of fields are those of perfetto_trace.proto. */
#include <string.h>

#include "log_trace_sink.h"

/* Field numbers. */
enum {
    TRACE_PACKET = 1,
    PACKET_TIMESTAMP = 8,
    PACKET_SEQUENCE_ID = 10,
    PACKET_TRACK_EVENT = 11,
    PACKET_SEQUENCE_FLAGS = 13,
    PACKET_TRACK_DESCRIPTOR = 60,
    TRACK_UUID = 1,
    TRACK_NAME = 2,
    TRACK_PROCESS = 3,
    TRACK_PARENT_UUID = 5,
    TRACK_COUNTER = 8,
    PROCESS_PID = 1,
    PROCESS_NAME = 6,
    COUNTER_UNIT_NAME = 6,
    EVENT_DEBUG_ANNOTATIONS = 4,
    EVENT_TYPE = 9,
    EVENT_TRACK_UUID = 11,
    EVENT_NAME = 23,
    EVENT_COUNTER_VALUE = 30,
    EVENT_FLOW_IDS = 47,
    EVENT_TERMINATING_FLOW_IDS = 48,
    ANNOTATION_UINT_VALUE = 3,
    ANNOTATION_NAME = 10,
};

enum { TYPE_SLICE_BEGIN = 1, TYPE_SLICE_END = 2, TYPE_INSTANT = 3, TYPE_COUNTER = 4 };
enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2 };
enum { SEQUENCE_ID = 1, SEQUENCE_STATE_CLEARED = 1, MESSAGE_SIZE = 1024, NAME_LEN_MAX = 200 };

/* A message that is put together; names are cut so that the largest one fits. */
typedef struct {
    uint8_t bytes[MESSAGE_SIZE];
    size_t size_bytes;
} message_t;

static void
put_varint(message_t *message, uint64_t value)
{
    do {
        uint8_t low = value & 0x7fU;
        value >>= 7;
        if (message->size_bytes < MESSAGE_SIZE) {
            message->bytes[message->size_bytes++] = value != 0 ? low | 0x80U : low;
        }
    } while (value != 0);
}

static void
put_number(message_t *message, uint32_t field, uint64_t value)
{
    put_varint(message, (uint64_t)field << 3 | WIRE_VARINT);
    put_varint(message, value);
}

static void
put_fixed64(message_t *message, uint32_t field, uint64_t value)
{
    put_varint(message, (uint64_t)field << 3 | WIRE_FIXED64);
    for (uint32_t i = 0; i < 8 && message->size_bytes < MESSAGE_SIZE; i++) {
        message->bytes[message->size_bytes++] = (uint8_t)(value >> (8 * i));
    }
}

static void
put_bytes(message_t *message, uint32_t field, const void *data, size_t size_bytes)
{
    put_varint(message, (uint64_t)field << 3 | WIRE_BYTES);
    put_varint(message, size_bytes);
    if (size_bytes <= MESSAGE_SIZE - message->size_bytes) {
        memcpy(message->bytes + message->size_bytes, data, size_bytes);
        message->size_bytes += size_bytes;
    }
}

static void
put_text(message_t *message, uint32_t field, const char *text)
{
    size_t length = strlen(text);
    put_bytes(message, field, text, length < NAME_LEN_MAX ? length : NAME_LEN_MAX);
}

static void
write_packet(FILE *out, const message_t *packet)
{
    message_t head = {.size_bytes = 0};
    put_varint(&head, (uint64_t)TRACE_PACKET << 3 | WIRE_BYTES);
    put_varint(&head, packet->size_bytes);
    (void)fwrite(head.bytes, 1, head.size_bytes, out);
    (void)fwrite(packet->bytes, 1, packet->size_bytes, out);
}

/* 0 would be the default track. */
static uint64_t
uuid_of(uint32_t process, uint32_t thread)
{
    return (uint64_t)process << 32 | thread;
}

static void
begin(FILE *out)
{
    message_t packet = {.size_bytes = 0};
    put_number(&packet, PACKET_SEQUENCE_ID, SEQUENCE_ID);
    put_number(&packet, PACKET_SEQUENCE_FLAGS, SEQUENCE_STATE_CLEARED);
    write_packet(out, &packet);
}

static void
end(FILE *out)
{
    (void)out; /* a trace ends where its packets end */
}

static void
track(FILE *out, const log_track_t *what)
{
    message_t descriptor = {.size_bytes = 0};
    put_number(&descriptor, TRACK_UUID, uuid_of(what->process, what->thread));
    if (what->form == LOG_TRACK_PROCESS) {
        message_t process = {.size_bytes = 0};
        put_number(&process, PROCESS_PID, what->process);
        put_text(&process, PROCESS_NAME, what->name);
        put_bytes(&descriptor, TRACK_PROCESS, process.bytes, process.size_bytes);
    } else {
        put_number(&descriptor, TRACK_PARENT_UUID, uuid_of(what->process, 0));
        put_text(&descriptor, TRACK_NAME, what->name);
    }
    if (what->form == LOG_TRACK_COUNTER) {
        message_t counter = {.size_bytes = 0};
        put_text(&counter, COUNTER_UNIT_NAME, what->unit);
        put_bytes(&descriptor, TRACK_COUNTER, counter.bytes, counter.size_bytes);
    }
    message_t packet = {.size_bytes = 0};
    put_bytes(&packet, PACKET_TRACK_DESCRIPTOR, descriptor.bytes, descriptor.size_bytes);
    put_number(&packet, PACKET_SEQUENCE_ID, SEQUENCE_ID);
    write_packet(out, &packet);
}

static void
write_event(FILE *out, uint64_t time_ns, const message_t *event)
{
    message_t packet = {.size_bytes = 0};
    put_number(&packet, PACKET_TIMESTAMP, time_ns);
    put_bytes(&packet, PACKET_TRACK_EVENT, event->bytes, event->size_bytes);
    put_number(&packet, PACKET_SEQUENCE_ID, SEQUENCE_ID);
    write_packet(out, &packet);
}

static void
event(FILE *out, const log_trace_event_t *what)
{
    message_t message = {.size_bytes = 0};
    put_number(&message, EVENT_TYPE, what->is_instant ? TYPE_INSTANT : TYPE_SLICE_BEGIN);
    put_number(&message, EVENT_TRACK_UUID, uuid_of(what->process, what->thread));
    put_text(&message, EVENT_NAME, what->name);
    for (uint32_t i = 0; i < what->flow_count; i++) {
        put_fixed64(&message,
                    what->flows[i].phase == LOG_FLOW_END ? EVENT_TERMINATING_FLOW_IDS
                                                         : EVENT_FLOW_IDS,
                    what->flows[i].id);
    }
    for (uint32_t i = 0; i < what->note_count; i++) {
        message_t note = {.size_bytes = 0};
        put_text(&note, ANNOTATION_NAME, what->notes[i].name);
        put_number(&note, ANNOTATION_UINT_VALUE, what->notes[i].value);
        put_bytes(&message, EVENT_DEBUG_ANNOTATIONS, note.bytes, note.size_bytes);
    }
    write_event(out, what->begin_ns, &message);
    if (!what->is_instant) {
        message_t last = {.size_bytes = 0};
        put_number(&last, EVENT_TYPE, TYPE_SLICE_END);
        put_number(&last, EVENT_TRACK_UUID, uuid_of(what->process, what->thread));
        write_event(out, what->end_ns, &last);
    }
}

static void
counter(FILE *out, uint32_t process, uint32_t thread, const char *name, uint64_t time_ns,
        uint64_t value)
{
    (void)name; /* its track has it */
    message_t message = {.size_bytes = 0};
    put_number(&message, EVENT_TYPE, TYPE_COUNTER);
    put_number(&message, EVENT_TRACK_UUID, uuid_of(process, thread));
    put_number(&message, EVENT_COUNTER_VALUE, value);
    write_event(out, time_ns, &message);
}

const log_trace_sink_t log_trace_perfetto = {begin, track, event, counter, end};
