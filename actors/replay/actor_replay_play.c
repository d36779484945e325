/* actor_replay_play.c - the records in their order.
 *
 * Replay begins at a SNAPSHOT.  Inputs are stepped, outputs are compared until the next input.
 * Where records are missing or unusable the rest of the inputs would only differ: replay notes the
 * gap and goes on from the next SNAPSHOT. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "actor_replay_state.h"
#include "proto_clock.h"
#include "proto_pack.h"
#include "proto_require.h"

#define ANSWER_TIMEOUT_NS UINT64_C(30000000000)

/* 8 bytes, little-endian. */
static uint64_t
read_u64(const uint8_t *bytes)
{
    return proto_unpack_u64(&(proto_unpack_t){.bytes = {bytes, 8}});
}

void
actor_replay_finish(replay_t *self, actor_replay_outcome_t outcome, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(self->report->detail, sizeof self->report->detail, format, arguments);
    va_end(arguments);
    self->report->outcome = outcome;
    self->phase = REPLAY_DONE;
}

void
actor_replay_stop(replay_t *self, actor_replay_end_t end)
{
    self->report->end = end;
    self->phase = REPLAY_DONE;
}

/* ---- gaps ------------------------------------------------------------------------------------ */

/* Records are missing, or one cannot be used: what follows makes no sense to this core. */
void
actor_replay_begin_gap(replay_t *self, uint64_t missing, const char *why)
{
    if (self->phase != REPLAY_RUNNING) {
        return;
    }
    actor_replay_report_t *report = self->report;
    if (report->gap_count < ACTOR_REPLAY_GAP_COUNT_MAX) {
        actor_replay_gap_t *gap = &report->gaps[report->gap_count];
        gap->after_sequence = self->last_sequence;
        gap->missing = missing;
        (void)snprintf(gap->why, sizeof gap->why, "%s", why);
    }
    report->gap_count++;
    self->phase = REPLAY_SEEKING;
    if (self->player->ops->restore == NULL) {
        actor_replay_stop(self, ACTOR_REPLAY_END_GAP);
    }
}

static void
end_gap(replay_t *self, uint64_t sequence)
{
    actor_replay_report_t *report = self->report;
    if (report->gap_count > 0 && report->gap_count <= ACTOR_REPLAY_GAP_COUNT_MAX) {
        report->gaps[report->gap_count - 1].resume_sequence = sequence;
    }
}

/* ---- snapshots ------------------------------------------------------------------------------- */

typedef struct {
    uint32_t form;
    uint32_t role;
    uint64_t digest;
    uint64_t input_count;
} snapshot_head_t;

static bool
read_head(const proto_log_record_t *record, snapshot_head_t *out)
{
    if (record->part_count < 3 || (record->flags & PROTO_LOG_FLAG_CUT) != 0 ||
        record->parts[0].size_bytes < PROTO_LOG_SNAPSHOT_HEAD_SIZE_BYTES) {
        return false;
    }
    proto_unpack_t in = {.bytes = record->parts[0]};
    out->form = proto_unpack_u32(&in);
    out->role = proto_unpack_u32(&in);
    out->digest = proto_unpack_u64(&in);
    out->input_count = proto_unpack_u64(&in);
    return out->form == PROTO_LOG_SNAPSHOT_FORM;
}

/* True if replay may begin here: with --from, a later one would do as well. */
static bool
is_wanted(const replay_t *self, uint64_t sequence)
{
    return self->has_begun || sequence >= self->begin_at;
}

static void
restore_at(replay_t *self, const proto_log_record_t *record, const snapshot_head_t *head)
{
    actor_replay_report_t *report = self->report;
    if (head->role != (uint32_t)report->role) {
        actor_replay_finish(self, ACTOR_REPLAY_REFUSED,
                            "the snapshot at record %" PRIu64 " is of a %s, the log of a %s",
                            record->sequence, proto_role_name((proto_role_t)head->role),
                            proto_role_name(report->role));
        return;
    }
    proto_error_t error = {{0}};
    report->is_stepping = true;
    proto_status_t status =
        self->player->ops->restore(self->player, record->parts[1], record->parts[2], &error);
    report->is_stepping = false;
    if (status != STATUS_OK) {
        actor_replay_finish(self, ACTOR_REPLAY_REFUSED,
                            "the snapshot at record %" PRIu64 " gives no core: %s%s%s%s",
                            record->sequence, proto_status_text(status),
                            error.detail[0] != '\0' ? ": " : "", error.detail,
                            status == STATUS_ERR_VERSION
                                ? "; replay it with the build that recorded it"
                                : "");
        return;
    }
    end_gap(self, record->sequence);
    self->phase = REPLAY_RUNNING;
    self->output_at = 0;
    self->last_time_ns = record->time_ns;
    report->input.number = head->input_count;
    report->input.sequence = 0;
    if (!self->has_begun) {
        self->has_begun = true;
        report->begin_sequence = record->sequence;
        report->begin_input = head->input_count;
        report->first_ns = record->time_ns;
        self->log_begin_ns = record->time_ns;
    }
    uint64_t digest = 0;
    if (self->player->ops->digest(self->player, &digest) && digest != head->digest) {
        char texts[2][32];
        (void)snprintf(texts[0], sizeof texts[0], "%016" PRIx64, head->digest);
        (void)snprintf(texts[1], sizeof texts[1], "%016" PRIx64, digest);
        actor_replay_note(self, ACTOR_REPLAY_FIND_RESTORE, record->sequence, "snapshot.digest",
                          texts[0], texts[1]);
        return;
    }
    report->digest_sequence = record->sequence;
    report->digest = head->digest;
    report->digest_input = head->input_count;
}

static void
on_snapshot(replay_t *self, const proto_log_record_t *record)
{
    snapshot_head_t head;
    if (!read_head(record, &head)) {
        return; /* cut or of another form: no place to begin, and nothing to compare */
    }
    if (self->phase == REPLAY_SEEKING) {
        if (self->player->ops->restore == NULL) {
            /* A program begins from nothing: only the state before the first input is that. */
            if (head.input_count == 0 && !self->has_begun) {
                self->has_begun = true;
                self->phase = REPLAY_RUNNING;
                self->report->first_ns = record->time_ns;
                self->log_begin_ns = record->time_ns;
            }
        } else if (is_wanted(self, record->sequence)) {
            restore_at(self, record, &head);
        }
        return;
    }
    if (head.input_count == 0 && self->report->input.number != 0) {
        /* A life begins; the one before it could not write all that it decided. */
        actor_replay_begin_gap(self, 0, "the actor ended here, and its successor begins");
        if (self->phase == REPLAY_SEEKING) {
            restore_at(self, record, &head);
        }
        return;
    }
    actor_replay_compare_rest(self);
    if (self->phase != REPLAY_RUNNING) {
        return;
    }
    if (head.input_count != self->report->input.number) {
        actor_replay_begin_gap(
            self, 0, "the count of inputs in a snapshot does not fit: inputs are missing");
        if (self->phase == REPLAY_SEEKING) {
            restore_at(self, record, &head);
        }
        return;
    }
    actor_replay_compare_digest(self, record->sequence, head.digest);
    if (self->phase == REPLAY_RUNNING && self->player->ops->restore != NULL) {
        actor_replay_compare_state(self, record);
    }
}

/* ---- records --------------------------------------------------------------------------------- */

static void
on_record(replay_t *self, const proto_log_record_t *record)
{
    if ((record->flags & PROTO_LOG_FLAG_REDACTED) != 0) {
        self->report->is_redacted = true;
        if (self->player->ops->restore != NULL && self->role->reads_private) {
            actor_replay_finish(
                self, ACTOR_REPLAY_REFUSED,
                "the log is redacted, and what a %s does depends on the tokens that are gone; "
                "only a scheduler's replays",
                self->role->name);
            return;
        }
    }
    bool runs = self->phase == REPLAY_RUNNING;
    switch (record->kind) {
    case PROTO_LOG_SNAPSHOT:
        on_snapshot(self, record);
        break;
    case PROTO_LOG_IN:
    case PROTO_LOG_TIMER:
        if (runs) {
            actor_replay_on_input(self, record);
        }
        break;
    case PROTO_LOG_OUT:
        if (runs) {
            actor_replay_on_output(self, record);
        }
        break;
    case PROTO_LOG_STATE_DIGEST:
        if (runs) {
            actor_replay_compare_rest(self);
        }
        if (self->phase == REPLAY_RUNNING && record->part_count > 0 &&
            record->parts[0].size_bytes == 8) {
            actor_replay_compare_digest(self, record->sequence, read_u64(record->parts[0].data));
        }
        break;
    case PROTO_LOG_CHANNEL_DEF: {
        proto_error_t error = {{0}};
        if (self->player->ops->define != NULL &&
            self->player->ops->define(self->player, record, &error) != STATUS_OK) {
            actor_replay_finish(self, ACTOR_REPLAY_DIED, "%s", error.detail);
        }
        break;
    }
    case PROTO_LOG_RNG:
    case PROTO_LOG_CLOCK:
    case PROTO_LOG_ENV:
    case PROTO_LOG_FAULT:
    case PROTO_LOG_NOTE:
    case PROTO_LOG_DROP:
        break;
    }
}

/* A hole in the numbers, a DROP, or numbers that go back. */
static void
check_sequence(replay_t *self, const proto_log_record_t *record)
{
    if (record->kind == PROTO_LOG_DROP) {
        uint64_t missing = record->part_count > 0 && record->parts[0].size_bytes == 8
                               ? read_u64(record->parts[0].data)
                               : 0;
        actor_replay_begin_gap(self, missing,
                               "the recorder could not keep up or could not write (DROP)");
        return;
    }
    uint64_t expected = self->last_sequence + 1;
    if (self->last_sequence != 0 && record->sequence != expected) {
        actor_replay_begin_gap(self, record->sequence > expected ? record->sequence - expected : 0,
                               record->sequence > expected ? "records are missing"
                                                           : "the numbers of the records go back");
    }
    self->last_sequence = record->sequence;
}

/* A program has no snapshot to begin with: a log whose first record is number 1 begins there. */
static void
begin_program(replay_t *self, const proto_log_record_t *record)
{
    bool is_input = record->kind == PROTO_LOG_IN || record->kind == PROTO_LOG_TIMER;
    if (self->player->ops->restore == NULL && !self->has_begun && is_input &&
        self->report->record_count == self->last_sequence) {
        self->has_begun = true;
        self->phase = REPLAY_RUNNING;
        self->report->first_ns = record->time_ns;
        self->log_begin_ns = record->time_ns;
    }
}

static void
end_of_log(replay_t *self)
{
    actor_replay_report_t *report = self->report;
    uint32_t damages = log_set_damage_count(self->set);
    char damage_text[sizeof report->detail] = "";
    report->end = ACTOR_REPLAY_END;
    for (uint32_t i = 0; i < damages; i++) {
        const log_damage_t *damage = log_set_damage(self->set, i);
        report->end =
            damage->status == STATUS_AGAIN ? ACTOR_REPLAY_END_TORN : ACTOR_REPLAY_END_DAMAGE;
        (void)snprintf(damage_text, sizeof damage_text, "%.250s: %s", damage->path, damage->detail);
    }
    if (!self->has_begun && self->player->ops->restore == NULL) {
        actor_replay_finish(
            self, ACTOR_REPLAY_REFUSED,
            "the log does not begin with the actor's first input, and a program cannot be given "
            "the state in between; record it from the start");
        return;
    }
    if (!self->has_begun) {
        actor_replay_finish(self, ACTOR_REPLAY_REFUSED,
                            "the log holds no usable SNAPSHOT to begin with%s%s",
                            damages > 0 ? ": " : "", damage_text);
        return;
    }
    memcpy(report->detail, damage_text, sizeof report->detail);
    if (self->phase == REPLAY_RUNNING && report->input.sequence != 0 &&
        self->output_at < self->player->ops->output_count(self->player)) {
        /* The actor was killed before these were written, or the log was cut. */
        report->tail_count =
            self->player->ops->output_count(self->player) - (uint32_t)self->output_at;
    }
}

/* With --from the last SNAPSHOT at or before it is the place to begin, so it is looked for first.
 */
static proto_status_t
find_begin(replay_t *self)
{
    log_set_item_t item;
    proto_status_t status;
    while ((status = log_set_next(self->set, &item)) == STATUS_OK) {
        snapshot_head_t head;
        if (item.record.kind == PROTO_LOG_SNAPSHOT && read_head(&item.record, &head) &&
            (item.record.sequence <= self->options->from_sequence || self->begin_at == 0)) {
            self->begin_at = item.record.sequence;
        }
        self->report->beat++;
        if (item.record.sequence > self->options->from_sequence && self->begin_at != 0) {
            break;
        }
    }
    return status == STATUS_OK || status == STATUS_END ? log_set_rewind(self->set) : status;
}

static void
read_all(replay_t *self)
{
    uint64_t told = 0;
    log_set_item_t item;
    proto_status_t status = STATUS_END;
    while (self->phase != REPLAY_DONE && (status = log_set_next(self->set, &item)) == STATUS_OK) {
        actor_replay_report_t *report = self->report;
        report->beat++;
        report->record_count++;
        check_sequence(self, &item.record);
        begin_program(self, &item.record);
        if (self->phase != REPLAY_DONE) {
            on_record(self, &item.record);
        }
        if (self->options->probe_sequence == item.record.sequence &&
            self->options->probe_sequence != 0 && self->phase != REPLAY_DONE) {
            actor_replay_stop(self, ACTOR_REPLAY_END_PROBE);
        }
        if (self->options->progress != NULL && report->record_count - told >= 4096) {
            told = report->record_count;
            self->options->progress(self->options->progress_context, report);
        }
    }
    if (self->phase != REPLAY_DONE && status == STATUS_END) {
        end_of_log(self);
    } else if (self->phase != REPLAY_DONE) {
        actor_replay_finish(self, ACTOR_REPLAY_REFUSED, "reading stopped: %s",
                            proto_status_text(status));
    }
}

/* ---- begin and end --------------------------------------------------------------------------- */

/* One incarnation of one actor, or a refusal that says which ones there are. */
static bool
choose_stream(replay_t *self)
{
    actor_replay_report_t *report = self->report;
    uint32_t count = log_set_stream_count(self->set);
    if (count != 1) {
        char *at = report->detail;
        size_t room = sizeof report->detail;
        int length = snprintf(at, room,
                              "%" PRIu32 " logs are there; choose one with --actor and "
                              "--epoch:",
                              count);
        for (uint32_t i = 0; i < count && length > 0 && (size_t)length < room - 60; i++) {
            const proto_log_header_t *header = log_set_stream(self->set, i).header;
            length += snprintf(at + length, room - (size_t)length, " %s %016" PRIx64, header->name,
                               header->epoch);
        }
        report->outcome = ACTOR_REPLAY_REFUSED;
        return false;
    }
    const proto_log_header_t *header = log_set_stream(self->set, 0).header;
    (void)snprintf(report->actor, sizeof report->actor, "%s", header->name);
    (void)snprintf(report->build, sizeof report->build, "%s", header->build);
    report->role = header->role;
    report->epoch = header->epoch;
    report->is_other_schema =
        header->schema_hash != 0 && header->schema_hash != proto_schema_hash();
    self->epoch = header->epoch;
    return true;
}

static bool
open_player(replay_t *self)
{
    const actor_replay_options_t *options = self->options;
    proto_error_t error = {{0}};
    proto_status_t status;
    if (options->program != NULL) {
        uint64_t timeout_ns =
            options->answer_timeout_ns != 0 ? options->answer_timeout_ns : ANSWER_TIMEOUT_NS;
        status = actor_replay_program_new(options->program, timeout_ns, &self->player, &error);
    } else {
        self->role =
            options->role != NULL ? options->role : actor_replay_role_find(self->report->role);
        if (self->role == NULL) {
            actor_replay_finish(
                self, ACTOR_REPLAY_REFUSED,
                "the log is of a %s: this build has no core of that role (it has: %s)",
                proto_role_name(self->report->role), actor_replay_role_names());
            return false;
        }
        status = actor_replay_core_new(self->role, &self->player);
    }
    if (status != STATUS_OK) {
        actor_replay_finish(self, ACTOR_REPLAY_REFUSED, "%s%s%s", proto_status_text(status),
                            error.detail[0] != '\0' ? ": " : "", error.detail);
        return false;
    }
    if (options->device_model != NULL && self->report->role != PROTO_ROLE_EXECUTOR) {
        actor_replay_finish(self, ACTOR_REPLAY_REFUSED,
                            "a device belongs to an executor; this log is of a %s",
                            proto_role_name(self->report->role));
        return false;
    }
    return true;
}

/* Digest and sizes of the state, then what the role has to say. */
static void
write_figures(replay_t *self)
{
    const actor_replay_player_ops_t *ops = self->player->ops;
    char *out = self->report->figures;
    size_t room = sizeof self->report->figures;
    uint64_t digest = 0;
    proto_bytes_t parts[2];
    int length = 0;
    if (ops->digest(self->player, &digest)) {
        length += snprintf(out, room, "digest: %016" PRIx64 "\n", digest);
    }
    if (ops->save != NULL && ops->save(self->player, &parts[0], &parts[1])) {
        length += snprintf(out + length, room - (size_t)length,
                           "state: %zu bytes, and %zu that are secret\n", parts[0].size_bytes,
                           parts[1].size_bytes);
    }
    if (ops->describe != NULL) {
        ops->describe(self->player, out + length, room - (size_t)length);
    }
}

static void
play(replay_t *self)
{
    const actor_replay_options_t *options = self->options;
    if (options->from_sequence != 0 && find_begin(self) != STATUS_OK) {
        actor_replay_finish(self, ACTOR_REPLAY_REFUSED, "the log cannot be read twice");
        return;
    }
    if (options->digests_path != NULL) {
        self->digests = fopen(options->digests_path, "we");
        if (self->digests == NULL) {
            actor_replay_finish(self, ACTOR_REPLAY_REFUSED, "%s cannot be written: %s",
                                options->digests_path, strerror(errno));
            return;
        }
    }
    read_all(self);
    if (self->digests != NULL && fclose(self->digests) != 0) {
        actor_replay_finish(self, ACTOR_REPLAY_REFUSED, "%s cannot be written: %s",
                            options->digests_path, strerror(errno));
    }
    actor_replay_report_t *report = self->report;
    if (options->device_model != NULL && report->outcome == ACTOR_REPLAY_SAME &&
        self->device == NULL) {
        actor_replay_finish(
            self, ACTOR_REPLAY_REFUSED,
            "the log does not hold the device's begin (DEVICE_READY), and a device has no "
            "snapshots: replay without --device, or record from the start");
    }
    if (options->dump || report->outcome == ACTOR_REPLAY_DIVERGED) {
        write_figures(self);
    }
}

void
actor_replay_play(const actor_replay_options_t *options, actor_replay_report_t *report)
{
    require(options != NULL);
    require(report != NULL);
    memset(report, 0, sizeof *report);
    uint64_t begin_ns = proto_clock_monotonic_ns(proto_clock_system());
    replay_t self = {.options = options,
                     .report = report,
                     .checks = options->checks != 0 ? options->checks : ACTOR_REPLAY_CHECK_ALL};
    const log_set_options_t set_options = {.actor = options->actor,
                                           .epoch = options->epoch,
                                           .skip_damage = true};
    proto_error_t error = {{0}};
    proto_status_t status =
        log_set_open(options->paths, options->path_count, &set_options, &self.set, &error);
    if (status != STATUS_OK) {
        actor_replay_finish(&self, ACTOR_REPLAY_REFUSED, "%s",
                            error.detail[0] != '\0' ? error.detail : proto_status_text(status));
        return;
    }
    if (choose_stream(&self) && open_player(&self)) {
        play(&self);
    }
    report->wall_ns = proto_clock_monotonic_ns(proto_clock_system()) - begin_ns;
    if (self.player != NULL) {
        self.player->ops->destroy(&self.player);
    }
    actor_replay_device_destroy(&self.device);
    log_decoder_fini(&self.input_decoder);
    log_decoder_fini(&self.recorded_decoder);
    log_decoder_fini(&self.replayed_decoder);
    log_set_close(&self.set);
}
