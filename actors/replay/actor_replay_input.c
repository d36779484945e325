/* actor_replay_input.c - an input to the core, and to the device below it. */
#include <inttypes.h>
#include <time.h>

#include "actor_replay_state.h"
#include "proto_clock.h"

#define NAP_NS UINT64_C(100000000)

/* ---- inputs ---------------------------------------------------------------------------------- */

/* As fast as it was: sleeps until the input's time, in naps that keep the watch quiet. */
static void
wait_for(replay_t *self, uint64_t time_ns)
{
    const proto_clock_t *clock = proto_clock_system();
    if (self->real_begin_ns == 0) {
        self->real_begin_ns = proto_clock_monotonic_ns(clock);
    }
    for (;;) {
        uint64_t real_ns = proto_clock_monotonic_ns(clock) - self->real_begin_ns;
        uint64_t log_ns = time_ns - self->log_begin_ns;
        if (real_ns >= log_ns) {
            return;
        }
        uint64_t nap_ns = log_ns - real_ns < NAP_NS ? log_ns - real_ns : NAP_NS;
        (void)nanosleep(&(struct timespec){0, (long)nap_ns}, NULL);
        self->report->beat++;
    }
}

static bool
stops_before(replay_t *self, const actor_replay_input_t *next)
{
    const actor_replay_options_t *options = self->options;
    if (options->until_sequence != 0 && next->sequence > options->until_sequence) {
        self->report->stop = *next;
        actor_replay_stop(self, ACTOR_REPLAY_END_UNTIL);
        return true;
    }
    if (options->break_kind != PROTO_KIND_NONE && next->kind == options->break_kind) {
        self->report->stop = *next;
        actor_replay_stop(self, ACTOR_REPLAY_END_BREAK);
        return true;
    }
    return false;
}

/* The device's side of an executor: what the core just launched, and what the log says came back.
 */
static void
step_device(replay_t *self, const log_message_t *message)
{
    actor_replay_report_t *report = self->report;
    proto_error_t error = {{0}};
    proto_status_t status = STATUS_OK;
    if (message->header.kind == PROTO_KIND_DEVICE_READY && self->device == NULL) {
        const actor_replay_device_options_t options = {.model_path = self->options->device_model,
                                                       .kernel_path = self->options->device_kernels,
                                                       .ready = &message->body.device_ready,
                                                       .tolerance = self->options->tolerance};
        status = actor_replay_device_new(&options, &self->device, &error);
        if (status != STATUS_OK) {
            actor_replay_finish(self, ACTOR_REPLAY_REFUSED, "the device: %s", error.detail);
            return;
        }
    } else if (message->header.kind == PROTO_KIND_DEVICE_READY) {
        status = actor_replay_device_ready(self->device, &error);
    } else if (message->header.kind == PROTO_KIND_STEP_DONE && self->device != NULL) {
        bool differs = false;
        log_field_diff_t diff;
        status =
            actor_replay_device_compare(self->device, &message->body.step_done, &differs, &diff);
        report->device_step_count += status == STATUS_OK ? 1U : 0U;
        if (status == STATUS_OK && differs) {
            actor_replay_note(self, ACTOR_REPLAY_FIND_DEVICE, report->input.sequence, diff.path,
                              diff.left, diff.right);
            report->finding.kind = PROTO_KIND_STEP_DONE;
            return;
        }
    }
    const actor_replay_player_ops_t *ops = self->player->ops;
    for (uint32_t i = 0; status >= 0 && self->device != NULL && i < ops->output_count(self->player);
         i++) {
        const actor_emission_t *command = ops->output(self->player, i);
        if (command->to.index == ACTOR_PEER_LOCAL &&
            (command->kind == PROTO_KIND_SLOT_SETUP || command->kind == PROTO_KIND_STEP_LAUNCH ||
             command->kind == PROTO_KIND_DEVICE_RESET)) {
            status = actor_replay_device_push(self->device, command, &error);
        }
    }
    if (status < 0) {
        actor_replay_finish(self, ACTOR_REPLAY_DIED, "the device at input %" PRIu64 ": %s%s%s",
                            report->input.number, proto_status_text(status),
                            error.detail[0] != '\0' ? ": " : "", error.detail);
    }
}

static void
step_core(replay_t *self, const proto_log_record_t *record, const log_message_t *message)
{
    actor_replay_report_t *report = self->report;
    proto_header_t header = message->header;
    if (record->kind == PROTO_LOG_TIMER) {
        header = (proto_header_t){.version = PROTO_SCHEMA_VERSION,
                                  .kind = PROTO_KIND_TIMER,
                                  .epoch = self->epoch};
    }
    const actor_input_t input = {.now_ns = record->time_ns,
                                 .sequence = report->input.number,
                                 .from = {record->channel},
                                 .header = &header,
                                 .body = &message->body};
    proto_error_t error = {{0}};
    report->is_stepping = true;
    proto_status_t status = self->player->ops->step(self->player, &input, record, &error);
    report->is_stepping = false;
    if (status != STATUS_OK) {
        actor_replay_finish(self, ACTOR_REPLAY_DIED, "input %" PRIu64 ": %s", report->input.number,
                            error.detail[0] != '\0' ? error.detail : proto_status_text(status));
        return;
    }
    report->input_count++;
    report->timer_count += record->kind == PROTO_LOG_TIMER ? 1U : 0U;
    self->output_at = 0;
    uint64_t digest = 0;
    if (self->digests != NULL && self->player->ops->digest(self->player, &digest)) {
        (void)fprintf(self->digests, "%" PRIu64 " %" PRIu64 " %016" PRIx64 "\n",
                      report->input.number, record->sequence, digest);
    }
    if (self->options->device_model != NULL) {
        step_device(self, message);
    }
}

void
actor_replay_on_input(replay_t *self, const proto_log_record_t *record)
{
    actor_replay_compare_rest(self);
    if (self->phase != REPLAY_RUNNING) {
        return;
    }
    log_message_t message;
    proto_status_t status = log_decoder_decode(&self->input_decoder, record, &message);
    if (status == STATUS_ERR_NO_MEMORY) {
        actor_replay_finish(self, ACTOR_REPLAY_REFUSED, "no memory for record %" PRIu64,
                            record->sequence);
        return;
    }
    if (status != STATUS_OK || !message.has_body || (record->flags & PROTO_LOG_FLAG_CUT) != 0) {
        actor_replay_begin_gap(self, 1,
                               (record->flags & PROTO_LOG_FLAG_CUT) != 0
                                   ? "an input was too large for its ring and is not whole"
                                   : "an input does not decode");
        return;
    }
    if (record->channel >= ACTOR_PEER_COUNT_MAX || record->time_ns < self->last_time_ns) {
        actor_replay_begin_gap(self, 0, "an input's peer or time is impossible");
        return;
    }
    actor_replay_report_t *report = self->report;
    actor_replay_input_t next = {.number = report->input.number + 1,
                                 .sequence = record->sequence,
                                 .time_ns = record->time_ns,
                                 .kind = message.header.kind,
                                 .from = record->channel,
                                 .request = message.header.request};
    if (stops_before(self, &next)) {
        return;
    }
    if (record->kind == PROTO_LOG_TIMER) {
        actor_replay_compare_deadline(self, record, message.body.timer.deadline_ns);
        if (self->phase != REPLAY_RUNNING) {
            report->input = next; /* the finding is about this one */
            return;
        }
    }
    if (self->options->realtime) {
        wait_for(self, record->time_ns);
    }
    self->last_time_ns = record->time_ns;
    report->last_ns = record->time_ns;
    report->input = next;
    step_core(self, record, &message);
}

void
actor_replay_on_output(replay_t *self, const proto_log_record_t *record)
{
    proto_header_t header;
    if (self->report->input_count == 0 || self->report->input.sequence == 0) {
        actor_replay_begin_gap(self, 0, "an output without an input before it");
        return;
    }
    /* Its cause is the number of the input that it answers, if the recorder knew. */
    if (self->player->ops->restore != NULL && record->part_count > 0 &&
        proto_header_decode(record->parts[0], &header) == STATUS_OK && header.cause != 0 &&
        header.cause != self->report->input.number) {
        actor_replay_begin_gap(self, 0, "an output names another input than the last one");
        return;
    }
    actor_replay_compare_output(self, record);
}
