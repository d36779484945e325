/* actor_replay_bisect.c - the search over recorded digests. */
#include "actor_replay_bisect.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor_replay_command.h"
#include "log_set.h"
#include "proto_require.h"

/* A recorded digest. */
typedef struct {
    uint64_t sequence;
    uint64_t input_number;
    bool is_snapshot;
} point_t;

typedef struct {
    const actor_replay_options_t *options;
    actor_replay_bisect_t *out;
    point_t *points;
    uint32_t count, capacity;
} bisect_t;

__attribute__((format(printf, 2, 3))) static void
refuse(bisect_t *self, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(self->out->detail, sizeof self->out->detail, format, arguments);
    va_end(arguments);
    self->out->outcome = ACTOR_REPLAY_REFUSED;
}

/* ---- what can be asked ----------------------------------------------------------------------- */

static proto_status_t
add_point(bisect_t *self, const point_t *point)
{
    if (self->count == ACTOR_REPLAY_BISECT_POINT_COUNT_MAX) {
        return STATUS_ERR_TOO_LARGE;
    }
    if (self->count == self->capacity) {
        uint32_t capacity = self->capacity == 0 ? 1024 : self->capacity * 2;
        point_t *points = realloc(self->points, capacity * sizeof *points);
        if (points == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        self->points = points;
        self->capacity = capacity;
    }
    self->points[self->count++] = *point;
    self->out->snapshot_count += point->is_snapshot ? 1U : 0U;
    return STATUS_OK;
}

/* Digests and snapshots from the first snapshot to the first gap. */
static proto_status_t
collect_from(bisect_t *self, log_set_t *set)
{
    log_set_item_t item;
    proto_status_t status;
    uint64_t last = 0;
    uint64_t input_number = 0;
    while ((status = log_set_next(set, &item)) == STATUS_OK) {
        const proto_log_record_t *record = &item.record;
        if (record->kind == PROTO_LOG_DROP || (last != 0 && record->sequence != last + 1)) {
            if (self->count > 0) {
                return STATUS_OK;
            }
            last = record->kind == PROTO_LOG_DROP ? 0 : record->sequence;
            continue;
        }
        last = record->sequence;
        point_t point = {.sequence = last, .input_number = input_number};
        if (record->kind == PROTO_LOG_IN || record->kind == PROTO_LOG_TIMER) {
            input_number++;
            self->out->input_count += self->count > 0 ? 1U : 0U;
        } else if (record->kind == PROTO_LOG_SNAPSHOT && record->part_count == 3 &&
                   record->parts[0].size_bytes >= PROTO_LOG_SNAPSHOT_HEAD_SIZE_BYTES &&
                   (record->flags & PROTO_LOG_FLAG_CUT) == 0 &&
                   (self->count > 0 || last >= self->options->from_sequence)) {
            memcpy(&input_number, record->parts[0].data + 16, sizeof input_number);
            point.input_number = input_number;
            point.is_snapshot = true;
            status = add_point(self, &point);
        } else if (record->kind == PROTO_LOG_STATE_DIGEST && self->count > 0) {
            status = add_point(self, &point);
        }
        if (status != STATUS_OK) {
            return status;
        }
    }
    return status == STATUS_END ? STATUS_OK : status;
}

static proto_status_t
collect(bisect_t *self)
{
    log_set_t *set = NULL;
    proto_error_t error = {{0}};
    const actor_replay_options_t *options = self->options;
    const log_set_options_t set_options = {.actor = options->actor,
                                           .epoch = options->epoch,
                                           .skip_damage = true};
    proto_status_t status =
        log_set_open(options->paths, options->path_count, &set_options, &set, &error);
    if (status == STATUS_ERR_NO_MEMORY) {
        return status;
    }
    if (status != STATUS_OK) {
        refuse(self, "%s", error.detail[0] != '\0' ? error.detail : proto_status_text(status));
        return STATUS_OK;
    }
    if (log_set_stream_count(set) != 1) {
        refuse(self, "%" PRIu32 " logs are there; choose one with --actor and --epoch",
               log_set_stream_count(set));
    } else {
        status = collect_from(self, set);
        self->out->digest_count = self->count;
        if (status == STATUS_ERR_TOO_LARGE) {
            refuse(self, "the log holds more than %d digests", ACTOR_REPLAY_BISECT_POINT_COUNT_MAX);
            status = STATUS_OK;
        }
        if (status == STATUS_OK && self->count == 0) {
            refuse(self, "the log holds no SNAPSHOT to begin with");
        }
    }
    log_set_close(&set);
    return status;
}

/* ---- the search ------------------------------------------------------------------------------ */

/* The last snapshot at or before a point; the first point is one. */
static uint64_t
begin_of(const bisect_t *self, uint32_t point)
{
    while (!self->points[point].is_snapshot) {
        require(point > 0);
        point--;
    }
    return self->points[point].sequence;
}

/* True if this build agrees with the recorded digest `point`, given that it does with `good`. */
static proto_status_t
probe(bisect_t *self, uint32_t good, uint32_t point, bool *agrees)
{
    actor_replay_options_t options = *self->options;
    options.from_sequence = begin_of(self, good);
    options.probe_sequence = self->points[point].sequence;
    options.checks_after = UINT64_MAX;
    options.realtime = false;
    options.dump = false;
    options.until_sequence = 0;
    options.break_kind = PROTO_KIND_NONE;
    self->out->probe_count++;
    actor_replay_report_t *report = &self->out->last;
    proto_status_t status = actor_replay_run(&options, report);
    if (status != STATUS_OK) {
        return status;
    }
    if (report->outcome == ACTOR_REPLAY_REFUSED) {
        refuse(self, "%s", report->detail);
    }
    *agrees = report->outcome == ACTOR_REPLAY_SAME;
    return STATUS_OK;
}

/* Narrows to two neighbours: *good agrees, *bad does not; *bad = count if all agree. */
static proto_status_t
narrow(bisect_t *self, uint32_t *good, uint32_t *bad)
{
    *good = 0;
    *bad = self->count;
    bool agrees = false;
    proto_status_t status = probe(self, 0, self->count - 1, &agrees);
    if (status != STATUS_OK || self->out->outcome == ACTOR_REPLAY_REFUSED) {
        return status;
    }
    if (agrees) {
        *good = self->count - 1;
        return STATUS_OK;
    }
    *bad = self->count - 1;
    while (*bad - *good > 1) {
        uint32_t middle = *good + (*bad - *good) / 2;
        status = probe(self, *good, middle, &agrees);
        if (status != STATUS_OK || self->out->outcome == ACTOR_REPLAY_REFUSED) {
            return status;
        }
        *(agrees ? good : bad) = middle;
    }
    return STATUS_OK;
}

/* Step by step through what is left: the first input whose outputs differ, or the digest at its
 * end. */
static proto_status_t
walk(bisect_t *self, uint32_t good, uint32_t bad)
{
    actor_replay_bisect_t *out = self->out;
    actor_replay_options_t options = *self->options;
    bool all_agree = bad == self->count;
    options.from_sequence = begin_of(self, all_agree ? 0 : good);
    options.checks_after = all_agree ? 0 : self->points[good].sequence;
    out->good_sequence = self->points[good].sequence;
    out->good_input = self->points[good].input_number;
    if (!all_agree) {
        options.until_sequence = self->points[bad].sequence;
        out->bad_sequence = self->points[bad].sequence;
        out->bad_input = self->points[bad].input_number;
    }
    proto_status_t status = actor_replay_run(&options, &out->last);
    if (status != STATUS_OK) {
        return status;
    }
    out->outcome = out->last.outcome;
    if (out->last.outcome != ACTOR_REPLAY_SAME) {
        out->input = out->last.input;
    }
    (void)snprintf(out->detail, sizeof out->detail, "%s", out->last.detail);
    return STATUS_OK;
}

/* A digest is a number of what its core chose to fold: a message may have been another one before
 * that shows, or without showing at all. */
static proto_status_t
look_before(bisect_t *self)
{
    actor_replay_bisect_t *out = self->out;
    if (out->bad_sequence == 0) {
        return STATUS_OK; /* the walk was over the whole log */
    }
    actor_replay_options_t options = *self->options;
    options.from_sequence = begin_of(self, 0);
    options.until_sequence = out->good_sequence;
    proto_status_t status = actor_replay_run(&options, &out->early);
    if (status == STATUS_OK && out->early.outcome == ACTOR_REPLAY_DIVERGED) {
        out->input = out->early.input;
    }
    return status;
}

/* ---- another build as the judge -------------------------------------------------------------- */

typedef struct {
    actor_replay_input_t input; /* number and sequence */
    uint64_t digest;
} line_t;

static bool
read_line(FILE *file, line_t *out)
{
    char text[128];
    if (fgets(text, sizeof text, file) == NULL) {
        return false;
    }
    memset(out, 0, sizeof *out);
    char *at = text;
    errno = 0;
    out->input.number = strtoull(at, &at, 10);
    out->input.sequence = strtoull(at, &at, 10);
    const char *last = at;
    out->digest = strtoull(at, &at, 16);
    return errno == 0 && at != last && out->input.sequence != 0;
}

/* The first input after which the two builds have another state. */
static bool
compare_lines(bisect_t *self, FILE *theirs, FILE *ours)
{
    line_t left;
    line_t right;
    while (read_line(theirs, &left) && read_line(ours, &right)) {
        if (left.input.sequence != right.input.sequence) {
            refuse(self,
                   "the digests of --good are of other inputs (record %" PRIu64 ", here %" PRIu64
                   "): does it replay the same log from the same snapshot?",
                   left.input.sequence, right.input.sequence);
            return true;
        }
        if (left.digest != right.digest) {
            self->out->input = left.input;
            self->out->good_digest = left.digest;
            self->out->bad_digest = right.digest;
            self->out->is_by_digest = true;
            self->out->outcome = ACTOR_REPLAY_DIVERGED;
            return true;
        }
    }
    return false;
}

static proto_status_t
judge(bisect_t *self, const char *good_command, const char *folder)
{
    char paths[2][ACTOR_REPLAY_PATH_SIZE_BYTES];
    (void)snprintf(paths[0], ACTOR_REPLAY_PATH_SIZE_BYTES, "%s/good.digests", folder);
    (void)snprintf(paths[1], ACTOR_REPLAY_PATH_SIZE_BYTES, "%s/own.digests", folder);
    actor_replay_options_t options = *self->options;
    options.from_sequence = self->points[0].sequence;
    options.checks_after = UINT64_MAX;
    options.digests_path = paths[1];
    actor_replay_report_t report;
    proto_status_t status = actor_replay_run(&options, &report);
    int exit_code = 0;
    if (status == STATUS_OK) {
        status =
            actor_replay_command_run(good_command, self->options->paths, self->options->path_count,
                                     paths[0], ACTOR_REPLAY_COMMAND_TIMEOUT_NS, &exit_code);
    }
    FILE *theirs = status == STATUS_OK ? fopen(paths[0], "re") : NULL;
    FILE *ours = status == STATUS_OK ? fopen(paths[1], "re") : NULL;
    if (status == STATUS_OK && (theirs == NULL || ours == NULL)) {
        status = STATUS_ERR_IO;
    }
    if (status == STATUS_OK) {
        line_t first;
        if (!read_line(theirs, &first)) {
            refuse(self,
                   "--good gave no digests (exit code %d): it must print what 'log replay "
                   "{log} --digests' prints",
                   exit_code);
        } else {
            rewind(theirs);
            (void)compare_lines(self, theirs, ours);
        }
    }
    if (theirs != NULL) {
        (void)fclose(theirs);
    }
    if (ours != NULL) {
        (void)fclose(ours);
    }
    (void)unlink(paths[0]);
    (void)unlink(paths[1]);
    return status;
}

proto_status_t
actor_replay_bisect(const actor_replay_options_t *options, const char *good_command,
                    const char *folder, actor_replay_bisect_t *out)
{
    require(options != NULL);
    require(out != NULL);
    memset(out, 0, sizeof *out);
    bisect_t self = {.options = options, .out = out};
    uint32_t good = 0;
    uint32_t bad = 0;
    proto_status_t status = collect(&self);
    if (status == STATUS_OK && out->outcome != ACTOR_REPLAY_REFUSED) {
        status = narrow(&self, &good, &bad);
    }
    if (status == STATUS_OK && out->outcome != ACTOR_REPLAY_REFUSED) {
        status = walk(&self, good, bad);
    }
    if (status == STATUS_OK &&
        (out->outcome == ACTOR_REPLAY_DIVERGED || out->outcome == ACTOR_REPLAY_DIED)) {
        status = look_before(&self);
    }
    if (status == STATUS_OK && good_command != NULL && out->outcome != ACTOR_REPLAY_REFUSED) {
        status = judge(&self, good_command, folder);
    }
    free(self.points);
    return status;
}
