/* actor_replay_prefix.c - the search with a command as the judge: shorter and longer excerpts of
 * the log, each a file of its own. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor_replay_bisect.h"
#include "actor_replay_command.h"
#include "log_set.h"

typedef struct {
    const actor_replay_options_t *options;
    actor_replay_bisect_t *out;
    const char *command;
    char path[ACTOR_REPLAY_PATH_SIZE_BYTES];
    log_set_t *set;
    uint8_t *room; /* one encoded record */
    size_t room_bytes;
} prefix_t;

__attribute__((format(printf, 2, 3))) static void
refuse(prefix_t *self, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(self->out->detail, sizeof self->out->detail, format, arguments);
    va_end(arguments);
    self->out->outcome = ACTOR_REPLAY_REFUSED;
}

static bool
is_input(const proto_log_record_t *record)
{
    return record->kind == PROTO_LOG_IN || record->kind == PROTO_LOG_TIMER;
}

static proto_status_t
copy_header(const prefix_t *self, FILE *file)
{
    uint8_t page[PROTO_LOG_HEADER_SIZE_BYTES];
    FILE *from = fopen(log_set_segment_path(self->set, 0, 0), "re");
    if (from == NULL) {
        return STATUS_ERR_IO;
    }
    size_t got = fread(page, 1, sizeof page, from);
    (void)fclose(from);
    return got == sizeof page && fwrite(page, 1, sizeof page, file) == sizeof page ? STATUS_OK
                                                                                   : STATUS_ERR_IO;
}

static proto_status_t
copy_record(prefix_t *self, const proto_log_record_t *record, FILE *file)
{
    size_t size_bytes = proto_log_record_size_bytes(record);
    if (size_bytes > self->room_bytes) {
        uint8_t *room = realloc(self->room, size_bytes);
        if (room == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        self->room = room;
        self->room_bytes = size_bytes;
    }
    proto_log_record_encode(record, true, self->room);
    return fwrite(self->room, 1, size_bytes, file) == size_bytes ? STATUS_OK : STATUS_ERR_IO;
}

/* Writes everything before input number `count` (from 0) of the file, and names the input before
 * it. */
static proto_status_t
write_prefix(prefix_t *self, uint64_t count, actor_replay_input_t *last)
{
    *last = (actor_replay_input_t){0};
    proto_status_t status = log_set_rewind(self->set);
    FILE *file = fopen(self->path, "we");
    if (file == NULL) {
        return STATUS_ERR_IO;
    }
    if (status == STATUS_OK) {
        status = copy_header(self, file);
    }
    log_set_item_t item;
    uint64_t seen = 0;
    while (status == STATUS_OK && (status = log_set_next(self->set, &item)) == STATUS_OK) {
        if (is_input(&item.record) && seen++ == count) {
            break;
        }
        if (is_input(&item.record)) {
            *last = (actor_replay_input_t){.number = seen, .sequence = item.record.sequence};
        }
        status = copy_record(self, &item.record, file);
    }
    bool is_written = fclose(file) == 0;
    status = status == STATUS_END ? STATUS_OK : status;
    return status == STATUS_OK && !is_written ? STATUS_ERR_IO : status;
}

static proto_status_t
try_prefix(prefix_t *self, uint64_t count, bool *fails)
{
    actor_replay_input_t last;
    int exit_code = 0;
    const char *const paths[1] = {self->path};
    uint64_t timeout_ns = self->options->answer_timeout_ns != 0 ? self->options->answer_timeout_ns
                                                                : ACTOR_REPLAY_COMMAND_TIMEOUT_NS;
    proto_status_t status = write_prefix(self, count, &last);
    if (status == STATUS_OK) {
        self->out->probe_count++;
        status = actor_replay_command_run(self->command, paths, 1, NULL, timeout_ns, &exit_code);
    }
    if (status == STATUS_OK && exit_code >= 126 && exit_code <= 127) {
        refuse(self, "the command cannot be run (exit code %d): %.200s", exit_code, self->command);
    }
    *fails = exit_code != 0;
    if (status == STATUS_OK && *fails) {
        self->out->input = last;
    }
    return status;
}

static proto_status_t
search(prefix_t *self)
{
    bool fails = false;
    uint64_t good = 0;
    uint64_t bad = self->out->input_count;
    proto_status_t status = try_prefix(self, bad, &fails);
    if (status != STATUS_OK || self->out->outcome == ACTOR_REPLAY_REFUSED) {
        return status;
    }
    if (!fails) {
        return STATUS_OK; /* nothing is wrong with the whole log */
    }
    self->out->outcome = ACTOR_REPLAY_DIVERGED;
    actor_replay_input_t found = self->out->input;
    status = try_prefix(self, 0, &fails);
    if (status == STATUS_OK && fails) {
        refuse(self, "the command fails even without an input");
    }
    while (status == STATUS_OK && self->out->outcome == ACTOR_REPLAY_DIVERGED && bad - good > 1) {
        uint64_t middle = good + (bad - good) / 2;
        status = try_prefix(self, middle, &fails);
        if (fails) {
            bad = middle;
            found = self->out->input;
        } else {
            good = middle;
        }
    }
    self->out->input = found;
    return status;
}

proto_status_t
actor_replay_bisect_command(const actor_replay_options_t *options, const char *command,
                            const char *folder, actor_replay_bisect_t *out)
{
    memset(out, 0, sizeof *out);
    prefix_t self = {.options = options, .out = out, .command = command};
    proto_error_t error = {{0}};
    const log_set_options_t set_options = {.actor = options->actor,
                                           .epoch = options->epoch,
                                           .skip_damage = true};
    (void)snprintf(self.path, sizeof self.path, "%s/prefix.alog", folder);
    proto_status_t status =
        log_set_open(options->paths, options->path_count, &set_options, &self.set, &error);
    if (status != STATUS_OK) {
        refuse(&self, "%s", error.detail[0] != '\0' ? error.detail : proto_status_text(status));
        return status == STATUS_ERR_NO_MEMORY ? status : STATUS_OK;
    }
    if (log_set_stream_count(self.set) != 1) {
        refuse(&self, "%" PRIu32 " logs are there; choose one with --actor and --epoch",
               log_set_stream_count(self.set));
    } else {
        log_set_item_t item;
        while ((status = log_set_next(self.set, &item)) == STATUS_OK) {
            out->input_count += is_input(&item.record) ? 1U : 0U;
        }
        status = status == STATUS_END ? search(&self) : status;
    }
    (void)unlink(self.path);
    free(self.room);
    log_set_close(&self.set);
    return status;
}
