/* toy_program MODE [AT]: the toy core as a program, for replay --exec; and every way to be a bad
 * one at input AT. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto_log.h"
#include "toy_core.h"

enum { ROOM_SIZE = 1 << 20 };

static uint8_t in[ROOM_SIZE];
static size_t in_size;
static const char *mode;
static uint64_t at;

static void
write_all(const void *data, size_t size_bytes)
{
    const uint8_t *from = data;
    while (size_bytes > 0) {
        ssize_t written = write(STDOUT_FILENO, from, size_bytes);
        if (written <= 0) {
            exit(4);
        }
        from += written;
        size_bytes -= (size_t)written;
    }
}

static void
write_record(const proto_log_record_t *record)
{
    static uint8_t room[ROOM_SIZE];
    proto_log_record_encode(record, true, room);
    write_all(room, proto_log_record_size_bytes(record));
}

static void
write_output(const actor_emission_t *emission)
{
    uint8_t bytes[PROTO_HEADER_SIZE_MAX];
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = emission->kind,
                             .request = emission->request};
    write_record(&(proto_log_record_t){
        .kind = PROTO_LOG_OUT,
        .channel = (uint16_t)emission->to.index,
        .part_count = emission->blob.size_bytes > 0 ? 3 : 2,
        .parts = {{bytes, proto_header_encode(&header, bytes)}, emission->body, emission->blob}});
}

static void
write_digest(uint64_t sequence, uint64_t digest)
{
    write_record(&(proto_log_record_t){.kind = PROTO_LOG_STATE_DIGEST,
                                       .sequence = sequence,
                                       .part_count = 1,
                                       .parts = {{(const uint8_t *)&digest, sizeof digest}}});
}

/* What a bad program does instead of its answer, or before it. */
static void
misbehave(uint64_t sequence)
{
    static const uint8_t garbage[4096] = "This is a print() in somebody's scheduler.\n";
    if (strcmp(mode, "garbage") == 0) {
        write_all(garbage, sizeof garbage);
    } else if (strcmp(mode, "exit") == 0) {
        exit(9);
    } else if (strcmp(mode, "close") == 0) {
        (void)close(STDOUT_FILENO);
        for (;;) {
            (void)pause();
        }
    } else if (strcmp(mode, "late") == 0) {
        for (;;) {
            (void)pause();
        }
    } else if (strcmp(mode, "sequence") == 0) {
        write_digest(sequence + 1, 0);
    } else if (strcmp(mode, "kind") == 0) {
        write_record(&(proto_log_record_t){.kind = PROTO_LOG_NOTE, .part_count = 0});
    } else if (strcmp(mode, "empty") == 0) {
        write_record(&(proto_log_record_t){.kind = PROTO_LOG_OUT, .part_count = 0});
    } else if (strcmp(mode, "twice") == 0) {
        write_digest(sequence, 0);
    } else if (strcmp(mode, "flood") == 0) {
        proto_body_t body = {.bye = {.detail = proto_text("flood")}};
        uint8_t bytes[256];
        size_t size_bytes = 0;
        size_t none = 0;
        if (proto_body_encode(PROTO_KIND_BYE, &body, bytes, sizeof bytes, &size_bytes, NULL, 0,
                              &none) != STATUS_OK) {
            exit(11);
        }
        actor_emission_t emission = {.kind = PROTO_KIND_BYE,
                                     .body = {bytes, size_bytes},
                                     .to = {1}};
        for (;;) {
            write_output(&emission);
        }
    }
}

static void
answer(const actor_core_ops_t *ops, toy_core_t *core, actor_outbox_t *outbox,
       const proto_log_record_t *record, uint64_t number)
{
    static _Alignas(64) uint8_t blob[ROOM_SIZE];
    proto_header_t header = {.kind = PROTO_KIND_TIMER};
    proto_bytes_t parts[2] = {record->parts[0], {NULL, 0}};
    if (record->kind == PROTO_LOG_IN) {
        if (proto_header_decode(record->parts[0], &header) != STATUS_OK) {
            exit(5);
        }
        parts[0] = record->parts[1];
        if (record->part_count > 2) {
            memcpy(blob, record->parts[2].data, record->parts[2].size_bytes);
            parts[1] = (proto_bytes_t){blob, record->parts[2].size_bytes};
        }
    }
    proto_body_t body;
    if (proto_body_decode(header.kind, parts[0], parts[1], &body, NULL) != STATUS_OK) {
        exit(6);
    }
    actor_input_t input = {.now_ns = record->time_ns,
                           .sequence = number,
                           .from = {record->channel},
                           .header = &header,
                           .body = &body};
    actor_outbox_clear(outbox);
    ops->step(core, &input, outbox);
    if (number == at) {
        misbehave(record->sequence);
    }
    for (uint32_t i = 0; i < actor_outbox_count(outbox); i++) {
        write_output(actor_outbox_at(outbox, i));
    }
    write_digest(record->sequence, strcmp(mode, "digest") == 0 ? ops->digest(core) : 0);
}

int
main(int argc, char **argv)
{
    mode = argc > 1 ? argv[1] : "right";
    at = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    if (getenv("ONEPATH_REPLAY") == NULL) {
        return 7;
    }
    if (strcmp(mode, "wrong") == 0) {
        toy_wrong = TOY_FIELD;
        toy_wrong_at = at;
    }
    toy_core_t *core = toy_core_new();
    const actor_core_ops_t *ops = toy_core_ops();
    actor_outbox_t *outbox = NULL;
    if (actor_outbox_new(ops, &outbox) != STATUS_OK) {
        return 8;
    }
    uint64_t number = 0;
    for (;;) {
        proto_log_record_t record;
        size_t size_bytes = 0;
        proto_status_t status =
            proto_log_record_decode((proto_bytes_t){in, in_size}, true, &record, &size_bytes);
        if (status == STATUS_OK) {
            if (record.kind != PROTO_LOG_CHANNEL_DEF) {
                answer(ops, core, outbox, &record, ++number);
            }
            memmove(in, in + size_bytes, in_size - size_bytes);
            in_size -= size_bytes;
            continue;
        }
        ssize_t got = read(STDIN_FILENO, in + in_size, sizeof in - in_size);
        if (status != STATUS_AGAIN || got <= 0) {
            break;
        }
        in_size += (size_t)got;
    }
    actor_outbox_destroy(&outbox);
    toy_core_destroy(&core);
    return 0;
}
