#include "log_maker.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto_require.h"

enum { GATEWAY, SCHEDULER, EXECUTOR, ACTORS };

typedef struct {
    proto_log_writer_t *writer;
    uint64_t sequence;
    uint64_t inputs;
} actor_t;

typedef struct {
    const maker_log_t *options;
    uint64_t epoch;
    actor_t actors[ACTORS];
    uint64_t now_ns;
    uint64_t record_count;
    uint64_t step;
    uint64_t link_sequence;
} world_t;

static const char *const names[ACTORS] = {"gateway", "scheduler", "executor"};
static const proto_role_t roles[ACTORS] = {PROTO_ROLE_GATEWAY, PROTO_ROLE_SCHEDULER,
                                           PROTO_ROLE_EXECUTOR};

static void
append(world_t *world, uint32_t actor, proto_log_record_t *record)
{
    actor_t *self = &world->actors[actor];
    record->sequence = ++self->sequence;
    record->time_ns = world->now_ns;
    world->record_count++;
    require(proto_log_append(self->writer, record, world->now_ns) == STATUS_OK);
}

static void
text_record(world_t *world, uint32_t actor, proto_log_kind_t kind, uint16_t channel,
            const char *text)
{
    proto_log_record_t record = {.kind = kind,
                                 .channel = channel,
                                 .part_count = 1,
                                 .parts = {{(const uint8_t *)text, strlen(text)}}};
    append(world, actor, &record);
}

static void
put_message(world_t *world, uint32_t actor, proto_log_kind_t direction, uint16_t channel,
            const proto_header_t *header, const proto_body_t *body)
{
    static _Alignas(64) uint8_t blob[1 << 16];
    static uint8_t bytes[1 << 16];
    uint8_t head[PROTO_HEADER_SIZE_MAX];
    size_t body_size = 0, blob_size = 0;
    require(proto_body_encode(header->kind, body, bytes, sizeof bytes, &body_size, blob,
                              sizeof blob, &blob_size) == STATUS_OK);
    proto_log_record_t record = {.kind = direction,
                                 .channel = channel,
                                 .link_sequence = header->sequence,
                                 .part_count = blob_size > 0 ? 3 : 2,
                                 .parts = {{head, proto_header_encode(header, head)},
                                           {bytes, body_size},
                                           {blob, blob_size}}};
    if (header->kind == PROTO_KIND_TIMER) {
        record.kind = PROTO_LOG_TIMER;
        record.part_count = 1;
        record.parts[0] = record.parts[1];
    }
    append(world, actor, &record);
}

/* An input of an actor; `cause` is the sender's. */
static void
give(world_t *world, uint32_t actor, uint16_t channel, proto_kind_t kind, uint64_t request,
     uint64_t cause, const proto_body_t *body)
{
    world->now_ns += 1000;
    world->actors[actor].inputs++;
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .epoch = world->epoch,
                             .sequence = channel != 0 ? ++world->link_sequence : 0,
                             .request = request,
                             .cause = cause};
    put_message(world, actor, PROTO_LOG_IN, channel, &header, body);
}

/* An output; its cause is the input that the actor works on.  Returns that. */
static uint64_t
emit(world_t *world, uint32_t actor, uint16_t channel, proto_kind_t kind, uint64_t request,
     const proto_body_t *body)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .epoch = world->epoch,
                             .request = request,
                             .cause = world->actors[actor].inputs};
    put_message(world, actor, PROTO_LOG_OUT, channel, &header, body);
    return header.cause;
}

/* From one actor to another: both see it. */
static void
send(world_t *world, uint32_t from, uint32_t to, proto_kind_t kind, uint64_t request,
     const proto_body_t *body)
{
    uint64_t cause = emit(world, from, 1, kind, request, body);
    give(world, to, 1, kind, request, cause, body);
}

static void
open_writers(world_t *world)
{
    for (uint32_t actor = 0; actor < ACTORS; actor++) {
        proto_log_options_t options = {.directory = world->options->directory,
                                       .name = names[actor],
                                       .role = roles[actor],
                                       .epoch = world->epoch,
                                       .segment_size_max = world->options->segment_size_max,
                                       .clock = world->options->clock,
                                       .sequence_before = PROTO_LOG_SEQUENCE_ANY};
        require(proto_log_writer_open(&options, &world->actors[actor].writer) == STATUS_OK);
        uint8_t head[PROTO_LOG_SNAPSHOT_HEAD_SIZE_BYTES] = {PROTO_LOG_SNAPSHOT_FORM, 0, 0, 0,
                                                            (uint8_t)roles[actor]};
        static const uint8_t state[] = "state", secret[] = "secret prompt";
        text_record(world, actor, PROTO_LOG_CHANNEL_DEF, 1, "peer");
        proto_log_record_t snapshot = {.kind = PROTO_LOG_SNAPSHOT,
                                       .part_count = 3,
                                       .parts = {{head, sizeof head},
                                                 {state, sizeof state},
                                                 {secret, sizeof secret}}};
        append(world, actor, &snapshot);
        text_record(world, actor, PROTO_LOG_NOTE, 0, "a remark");
    }
}

static uint64_t
id_of(const world_t *world, uint32_t number)
{
    return world->options->request_base + number;
}

/* Two slots, so that who does not see a release takes another request's steps for its own. */
static uint32_t
slot_of(uint32_t number)
{
    return (number - 1) % 2 + 1;
}

/* HTTP_REQUEST, SUBMIT, ADMIT. */
static void
begin_request(world_t *world, uint32_t number)
{
    int32_t tokens[MAKER_PROMPT_LEN];
    for (int32_t i = 0; i < MAKER_PROMPT_LEN; i++) {
        tokens[i] = MAKER_TOKEN_BASE + 1000 * (int32_t)(number % 1000) + i;
    }
    proto_column_i32_t prompt = {tokens, MAKER_PROMPT_LEN};
    proto_body_t body = {.http_request = {.exchange = 100 + number,
                                          .generation_max = MAKER_ANSWER_LEN,
                                          .tokens = prompt,
                                          .salt = {(const uint8_t *)"saltsalt", 8}}};
    give(world, GATEWAY, 0, PROTO_KIND_HTTP_REQUEST, 0, 0, &body);
    body = (proto_body_t){.submit = {.prompt_length = MAKER_PROMPT_LEN,
                                     .generation_max = MAKER_ANSWER_LEN,
                                     .tokens = prompt}};
    send(world, GATEWAY, SCHEDULER, PROTO_KIND_SUBMIT, id_of(world, number), &body);
    body = (proto_body_t){.admit = {.slot = slot_of(number),
                                    .prompt_length = MAKER_PROMPT_LEN,
                                    .length_max = MAKER_PROMPT_LEN + MAKER_ANSWER_LEN,
                                    .tokens = prompt}};
    send(world, SCHEDULER, EXECUTOR, PROTO_KIND_ADMIT, id_of(world, number), &body);
    body = (proto_body_t){.slot_setup = {.slot = slot_of(number), .tokens = prompt}};
    (void)emit(world, EXECUTOR, 0, PROTO_KIND_SLOT_SETUP, id_of(world, number), &body);
}

/* One step with one row: PLAN, STEP_LAUNCH, STEP_DONE, STEP_RESULT, TOKENS, HTTP_TOKENS. */
static void
step_request(world_t *world, uint32_t number, uint32_t index)
{
    uint32_t slot = slot_of(number), zero = 0, five = MAKER_PROMPT_LEN, block = 40 + slot;
    uint32_t count = 1;
    uint8_t one = 1, group = 0;
    world->step++;
    proto_body_t body = {.plan = {.step = world->step, .base_step = world->step - 1, .width = 1}};
    if (index == 0) {
        body.plan.patch_slots = (proto_column_u32_t){&slot, 1};
        body.plan.patch_groups = (proto_column_u8_t){&group, 1};
        body.plan.patch_columns = (proto_column_u32_t){&zero, 1};
        body.plan.patch_counts = (proto_column_u32_t){&count, 1};
        body.plan.patch_blocks = (proto_column_u32_t){&block, 1};
        body.plan.extend_slots = (proto_column_u32_t){&slot, 1};
        body.plan.extend_begins = (proto_column_u32_t){&zero, 1};
        body.plan.extend_lengths = (proto_column_u32_t){&five, 1};
        body.plan.extend_samples = (proto_column_u8_t){&one, 1};
    } else {
        body.plan.decode_slots = (proto_column_u32_t){&slot, 1};
    }
    send(world, SCHEDULER, EXECUTOR, PROTO_KIND_PLAN, 0, &body);
    body = (proto_body_t){.step_launch = {.step = world->step, .width = 1}};
    (void)emit(world, EXECUTOR, 0, PROTO_KIND_STEP_LAUNCH, 0, &body);
    world->now_ns += 400000;
    int32_t token = MAKER_ANSWER_BASE + 1000 * (int32_t)(number % 1000) + (int32_t)index;
    proto_column_i32_t tokens = {&token, 1};
    proto_column_u8_t counts = {&one, 1};
    body = (proto_body_t){.step_done = {.step = world->step,
                                        .mode = PROTO_STEP_DECODE_EAGER,
                                        .duration_ns = 300000,
                                        .token_counts = counts,
                                        .row_flags = {&group, 1},
                                        .tokens = tokens}};
    give(world, EXECUTOR, 0, PROTO_KIND_STEP_DONE, 0, 0, &body);
    body = (proto_body_t){.step_result = {.step = world->step,
                                          .mode = PROTO_STEP_DECODE_EAGER,
                                          .duration_ns = 300000,
                                          .computed_tokens = 1,
                                          .token_counts = counts,
                                          .row_flags = {&group, 1},
                                          .tokens = tokens}};
    send(world, EXECUTOR, SCHEDULER, PROTO_KIND_STEP_RESULT, 0, &body);
    uint64_t id = id_of(world, number);
    body = (proto_body_t){.tokens = {.step = world->step,
                                     .requests = {&id, 1},
                                     .token_indices = {&index, 1},
                                     .token_counts = counts,
                                     .tokens = tokens}};
    send(world, SCHEDULER, GATEWAY, PROTO_KIND_TOKENS, 0, &body);
    body = (proto_body_t){
        .http_tokens = {.exchange = 100 + number, .token_index = index, .tokens = tokens}};
    (void)emit(world, GATEWAY, 0, PROTO_KIND_HTTP_TOKENS, id, &body);
}

/* FINISHED, HTTP_END, LOAD, and the plan that releases the slot. */
static void
end_request(world_t *world, uint32_t number)
{
    bool is_wrong = number == world->options->wrong_request;
    proto_body_t body = {.finished = {.reason = PROTO_FINISH_LENGTH,
                                      .prompt_tokens = MAKER_PROMPT_LEN,
                                      .generated_tokens = MAKER_ANSWER_LEN - (is_wrong ? 1U : 0U),
                                      .queue_ns = world->now_ns % 1000}};
    send(world, SCHEDULER, GATEWAY, PROTO_KIND_FINISHED, id_of(world, number), &body);
    body = (proto_body_t){.http_end = {.exchange = 100 + number,
                                       .reason = PROTO_FINISH_LENGTH,
                                       .prompt_tokens = MAKER_PROMPT_LEN,
                                       .generated_tokens = MAKER_ANSWER_LEN}};
    (void)emit(world, GATEWAY, 0, PROTO_KIND_HTTP_END, id_of(world, number), &body);
    uint32_t slot = slot_of(number);
    world->step++;
    body = (proto_body_t){.plan = {.step = world->step,
                                   .base_step = world->step - 1,
                                   .width = 1,
                                   .release_slots = {&slot, 1}}};
    send(world, SCHEDULER, EXECUTOR, PROTO_KIND_PLAN, 0, &body);
    body = (proto_body_t){
        .load = {.running = 1, .blocks_total = 100, .blocks_free = 90 - number % 90}};
    send(world, SCHEDULER, GATEWAY, PROTO_KIND_LOAD, 0, &body);
    body = (proto_body_t){.timer = {.deadline_ns = world->now_ns}};
    give(world, SCHEDULER, 0, PROTO_KIND_TIMER, 0, 0, &body);
    text_record(world, SCHEDULER, PROTO_LOG_STATE_DIGEST, 0, "12345678");
}

uint64_t
maker_log_write(const maker_log_t *options)
{
    static world_t world;
    memset(&world, 0, sizeof world);
    world.options = options;
    world.epoch = options->epoch != 0 ? options->epoch : MAKER_EPOCH;
    world.now_ns = MAKER_BEGIN_NS;
    open_writers(&world);
    for (uint32_t i = 1; i <= options->request_count; i++) {
        uint32_t number = options->reversed ? options->request_count + 1 - i : i;
        begin_request(&world, number);
        for (uint32_t index = 0; index < MAKER_ANSWER_LEN; index++) {
            step_request(&world, number, index);
        }
        end_request(&world, number);
    }
    for (uint32_t actor = 0; actor < ACTORS; actor++) {
        proto_log_writer_close(&world.actors[actor].writer);
    }
    return world.record_count;
}

/* ---- files ----------------------------------------------------------------------------------- */

void
maker_log_path(const maker_log_t *options, const char *actor, char *out, size_t capacity)
{
    uint64_t epoch = options->epoch != 0 ? options->epoch : MAKER_EPOCH;
    (void)snprintf(out, capacity, "%s/%s.%016" PRIx64 ".000000.alog", options->directory, actor,
                   epoch);
}

void
maker_folder(char *out, size_t capacity)
{
    /* Memory if there is some: the tools sync what they write, and the tests write a lot. */
    const char *temporary = getenv("TMPDIR");
    if (temporary == NULL) {
        temporary = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    }
    (void)snprintf(out, capacity, "%s/onepath-log-XXXXXX", temporary);
    require(mkdtemp(out) != NULL);
}

void
maker_remove(const char *directory)
{
    DIR *folder = opendir(directory);
    for (const struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        char path[1024];
        (void)snprintf(path, sizeof path, "%.500s/%.300s", directory, entry->d_name);
        struct stat info;
        if (lstat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
            maker_remove(path);
        } else {
            (void)unlink(path);
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    (void)rmdir(directory);
}

uint8_t *
maker_read(const char *path, size_t *size_bytes)
{
    FILE *file = fopen(path, "rb");
    require(file != NULL);
    require(fseek(file, 0, SEEK_END) == 0);
    long end = ftell(file);
    require(end >= 0);
    rewind(file);
    uint8_t *data = malloc((size_t)end + 1);
    require(data != NULL);
    *size_bytes = fread(data, 1, (size_t)end, file);
    require(*size_bytes == (size_t)end);
    (void)fclose(file);
    return data;
}

void
maker_write(const char *path, const uint8_t *data, size_t size_bytes)
{
    FILE *file = fopen(path, "wb");
    require(file != NULL);
    require(fwrite(data, 1, size_bytes, file) == size_bytes);
    require(fclose(file) == 0);
}
