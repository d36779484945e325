/* actor_replay_compare.c - the first difference, with both values.  Equal bytes are equal messages,
 * so only what differs is decoded. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "actor_replay_state.h"

void
actor_replay_note(replay_t *self, actor_replay_find_t what, uint64_t sequence, const char *path,
                  const char *recorded, const char *replayed)
{
    actor_replay_finding_t *finding = &self->report->finding;
    finding->what = what;
    finding->sequence = sequence;
    (void)snprintf(finding->path, sizeof finding->path, "%s", path);
    (void)snprintf(finding->recorded, sizeof finding->recorded, "%s", recorded);
    (void)snprintf(finding->replayed, sizeof finding->replayed, "%s", replayed);
    self->report->outcome = ACTOR_REPLAY_DIVERGED;
    self->phase = REPLAY_DONE;
}

static void
find_numbers(replay_t *self, actor_replay_find_t what, uint64_t sequence, const char *path,
             uint64_t recorded, uint64_t replayed)
{
    char texts[2][32];
    (void)snprintf(texts[0], sizeof texts[0], "%" PRIu64, recorded);
    (void)snprintf(texts[1], sizeof texts[1], "%" PRIu64, replayed);
    actor_replay_note(self, what, sequence, path, texts[0], texts[1]);
}

static void
name_output(replay_t *self, proto_kind_t kind, uint32_t to)
{
    self->report->finding.output_index = (uint32_t)self->output_at;
    self->report->finding.kind = kind;
    self->report->finding.to = to;
}

static bool
equal_bytes(proto_bytes_t a, proto_bytes_t b)
{
    return a.size_bytes == b.size_bytes &&
           (a.size_bytes == 0 || memcmp(a.data, b.data, a.size_bytes) == 0);
}

/* The slow way: the bytes differ, or the record is incomplete. */
static void
compare_bodies(replay_t *self, const proto_log_record_t *record, const actor_emission_t *emission)
{
    log_message_t recorded;
    log_message_t replayed;
    uint8_t header[PROTO_HEADER_SIZE_MAX];
    const proto_header_t own = {.version = PROTO_SCHEMA_VERSION,
                                .kind = emission->kind,
                                .request = emission->request};
    proto_log_record_t mine = {.kind = PROTO_LOG_OUT,
                               .part_count = 3,
                               .parts = {{header, proto_header_encode(&own, header)},
                                         emission->body,
                                         emission->blob}};
    if (log_decoder_decode(&self->recorded_decoder, record, &recorded) != STATUS_OK ||
        !recorded.has_body) {
        self->report->uncompared_count++;
        return;
    }
    if (log_decoder_decode(&self->replayed_decoder, &mine, &replayed) != STATUS_OK ||
        !replayed.has_body) {
        char text[256];
        (void)snprintf(text, sizeof text, "does not decode: %s", replayed.error.detail);
        actor_replay_note(self, ACTOR_REPLAY_FIND_FIELD, record->sequence, "(body)", "a message",
                          text);
        name_output(self, emission->kind, record->channel);
        return;
    }
    log_field_diff_t diff;
    log_field_options_t how = {.ignore_private = (record->flags & PROTO_LOG_FLAG_REDACTED) != 0};
    if (log_field_diff(emission->kind, &recorded.body, &replayed.body, &how, &diff)) {
        actor_replay_note(self, ACTOR_REPLAY_FIND_FIELD, record->sequence, diff.path, diff.left,
                          diff.right);
        name_output(self, emission->kind, record->channel);
        self->report->finding.more_count = diff.more_count;
    }
}

/* To whom, what, for which request: what says at once that it is another message. */
static bool
compare_envelopes(replay_t *self, const proto_log_record_t *record, const proto_header_t *header,
                  const actor_emission_t *emission)
{
    if (header->kind != emission->kind) {
        actor_replay_note(self, ACTOR_REPLAY_FIND_KIND, record->sequence, "header.kind",
                          proto_kind_name(header->kind), proto_kind_name(emission->kind));
    } else if (record->channel != emission->to.index) {
        find_numbers(self, ACTOR_REPLAY_FIND_TO, record->sequence, "(destination)", record->channel,
                     emission->to.index);
    } else if (header->request != emission->request) {
        find_numbers(self, ACTOR_REPLAY_FIND_REQUEST, record->sequence, "header.request",
                     header->request, emission->request);
    } else {
        return true;
    }
    name_output(self, header->kind, record->channel);
    return false;
}

void
actor_replay_compare_output(replay_t *self, const proto_log_record_t *record)
{
    proto_header_t header;
    if (record->part_count == 0 || proto_header_decode(record->parts[0], &header) != STATUS_OK) {
        self->report->uncompared_count++;
        self->output_at++;
        return;
    }
    if (!replay_is_checked(self, ACTOR_REPLAY_CHECK_OUTPUTS, record->sequence)) {
        self->output_at++;
        return;
    }
    const actor_replay_player_ops_t *ops = self->player->ops;
    if (self->output_at >= ops->output_count(self->player)) {
        actor_replay_note(self, ACTOR_REPLAY_FIND_MISSING, record->sequence, "(message)",
                          proto_kind_name(header.kind), "(nothing)");
        name_output(self, header.kind, record->channel);
        return;
    }
    const actor_emission_t *emission = ops->output(self->player, (uint32_t)self->output_at);
    if (!compare_envelopes(self, record, &header, emission)) {
        return;
    }
    proto_bytes_t none = {NULL, 0};
    proto_bytes_t body = record->part_count > 1 ? record->parts[1] : none;
    proto_bytes_t blob = record->part_count > 2 ? record->parts[2] : none;
    if ((record->flags & PROTO_LOG_FLAG_CUT) != 0) {
        self->report->uncompared_count++;
    } else if (!equal_bytes(body, emission->body) || !equal_bytes(blob, emission->blob)) {
        compare_bodies(self, record, emission);
    }
    if (self->phase == REPLAY_RUNNING) {
        self->report->output_count++;
        self->output_at++;
    }
}

void
actor_replay_compare_rest(replay_t *self)
{
    const actor_replay_player_ops_t *ops = self->player->ops;
    const actor_replay_report_t *report = self->report;
    if (report->input.sequence == 0 || /* restored, and nothing stepped since */
        self->output_at >= ops->output_count(self->player) ||
        !replay_is_checked(self, ACTOR_REPLAY_CHECK_OUTPUTS, report->input.sequence)) {
        return;
    }
    const actor_emission_t *extra = ops->output(self->player, (uint32_t)self->output_at);
    actor_replay_note(self, ACTOR_REPLAY_FIND_EXTRA, 0, "(message)", "(nothing)",
                      proto_kind_name(extra->kind));
    name_output(self, extra->kind, extra->to.index);
}

void
actor_replay_compare_digest(replay_t *self, uint64_t sequence, uint64_t recorded)
{
    uint64_t replayed = 0;
    if (!self->player->ops->digest(self->player, &replayed)) {
        return;
    }
    bool is_probe = self->options->probe_sequence == sequence;
    /* One more than the others: the digest at the border is the last good one. */
    if (!is_probe && !replay_is_checked(self, ACTOR_REPLAY_CHECK_DIGESTS, sequence + 1)) {
        return;
    }
    actor_replay_report_t *report = self->report;
    if (replayed == recorded) {
        report->digest_count++;
        report->digest_sequence = sequence;
        report->digest = recorded;
        report->digest_input = report->input.number;
        return;
    }
    char texts[2][32];
    (void)snprintf(texts[0], sizeof texts[0], "%016" PRIx64, recorded);
    (void)snprintf(texts[1], sizeof texts[1], "%016" PRIx64, replayed);
    actor_replay_note(self, ACTOR_REPLAY_FIND_DIGEST, sequence, "(digest of the state)", texts[0],
                      texts[1]);
}

/* Says where two states part. */
static bool
compare_part(replay_t *self, uint64_t sequence, const char *name, proto_bytes_t recorded,
             proto_bytes_t replayed)
{
    if (equal_bytes(recorded, replayed)) {
        return true;
    }
    size_t at = 0;
    while (at < recorded.size_bytes && at < replayed.size_bytes &&
           recorded.data[at] == replayed.data[at]) {
        at++;
    }
    char path[96];
    char texts[2][96];
    const proto_bytes_t sides[2] = {recorded, replayed};
    (void)snprintf(path, sizeof path, "snapshot.%s[byte %zu]", name, at);
    for (uint32_t side = 0; side < 2; side++) {
        int length =
            snprintf(texts[side], sizeof texts[side], "%zu bytes:", sides[side].size_bytes);
        for (size_t i = at; i < at + 8 && i < sides[side].size_bytes; i++) {
            length += snprintf(texts[side] + length, sizeof texts[side] - (size_t)length, " %02x",
                               sides[side].data[i]);
        }
    }
    actor_replay_note(self, ACTOR_REPLAY_FIND_STATE, sequence, path, texts[0], texts[1]);
    return false;
}

void
actor_replay_compare_state(replay_t *self, const proto_log_record_t *record)
{
    proto_bytes_t state;
    proto_bytes_t secret;
    if (!replay_is_checked(self, ACTOR_REPLAY_CHECK_SNAPSHOTS, record->sequence) ||
        record->part_count < 3 || self->player->ops->save == NULL ||
        !self->player->ops->save(self->player, &state, &secret)) {
        return;
    }
    if (!compare_part(self, record->sequence, "state", record->parts[1], state)) {
        return;
    }
    /* Zeros stand in a redacted one; a core that began with zeros has others. */
    if ((record->flags & PROTO_LOG_FLAG_REDACTED) == 0 && !self->report->is_redacted &&
        !compare_part(self, record->sequence, "secret", record->parts[2], secret)) {
        return;
    }
    self->report->snapshot_count++;
}

void
actor_replay_compare_deadline(replay_t *self, const proto_log_record_t *record,
                              uint64_t recorded_ns)
{
    if (self->player->ops->deadline_ns == NULL ||
        !replay_is_checked(self, ACTOR_REPLAY_CHECK_DEADLINES, record->sequence)) {
        return;
    }
    uint64_t replayed_ns = self->player->ops->deadline_ns(self->player);
    if (replayed_ns != recorded_ns) {
        find_numbers(self, ACTOR_REPLAY_FIND_DEADLINE, record->sequence, "timer.deadline_ns",
                     recorded_ns, replayed_ns);
    }
}
