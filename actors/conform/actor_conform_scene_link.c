/* Scenes of the link itself: what a peer may send that is no message, and what holds it open. */
#include <inttypes.h>
#include <string.h>

#include "actor_conform_scenes.h"

#define MS_NS UINT64_C(1000000)

static conform_where_t
where_raw(const conform_raw_t *raw)
{
    return (conform_where_t){.link = "gateway",
                             .kind = raw->header.kind,
                             .sequence = raw->header.sequence,
                             .request = raw->header.request};
}

/* ---- the handshake --------------------------------------------------------------------------- */

/* A HELLO that must be refused. */
static void
refused_hello(conform_stage_t *stage, uint32_t index, uint32_t version, conform_rule_t rule,
              proto_status_t expected)
{
    conform_raw_t *raw = &stage->raws[index];
    uint64_t until_ns = stage->now_ns + stage->patience_ns;
    while (!actor_conform_raw_hello(raw, version, version) && stage->now_ns < until_ns) {
        actor_conform_poll(stage, 5 * MS_NS);
    }
    char wanted[80];
    (void)snprintf(wanted, sizeof wanted, "REFUSE with status %d (%s)", expected,
                   proto_status_name(expected));
    if (!actor_conform_wait_raw(stage, index, PROTO_KIND_NONE, stage->patience_ns)) {
        if (!stage->is_aborted) {
            actor_conform_broke(stage->report, rule, NULL, wanted, "no answer");
        }
        return;
    }
    conform_where_t where = where_raw(raw);
    if (raw->header.kind != PROTO_KIND_REFUSE) {
        actor_conform_broke(stage->report, rule, &where, wanted, "%s",
                            proto_kind_name(raw->header.kind));
    } else if (!raw->is_readable || raw->body.refuse.status != expected) {
        actor_conform_broke(stage->report, rule, &where, wanted, "REFUSE with status %" PRId64,
                            raw->is_readable ? raw->body.refuse.status : 0);
    } else {
        actor_conform_held(stage->report, rule);
    }
}

static void
check_init(conform_stage_t *stage, const conform_raw_t *raw)
{
    const proto_init_t *init = &raw->body.init;
    conform_where_t where = where_raw(raw);
    const char *what = NULL;
    if (!raw->is_readable) {
        what = "a body that does not decode";
    } else if (raw->header.sequence != 0) {
        what = "a sequence number above 0";
    } else if (raw->header.epoch != init->epoch) {
        what = "a header of another epoch than the body";
    } else if (init->role != PROTO_ROLE_SCHEDULER) {
        what = "another role than scheduler (2)";
    } else if (init->version < PROTO_SCHEMA_VERSION_MIN || init->version > PROTO_SCHEMA_VERSION) {
        what = "a version that was not offered";
    } else if (init->name.size_bytes == 0) {
        what = "no name";
    } else if (init->heartbeat_ns < 5 * MS_NS || init->heartbeat_ns > 10000 * MS_NS) {
        what = "a heartbeat interval that is not 5 ms to 10 s";
    }
    if (what != NULL) {
        actor_conform_broke(stage->report, CONFORM_LINK_HANDSHAKE, &where,
                            "INIT: version 1, role 2, own name and epoch, interval, sequence 0",
                            "INIT with %s: %s", what, raw->detail);
    } else {
        actor_conform_held(stage->report, CONFORM_LINK_HANDSHAKE);
    }
}

/* True if it was answered as it should. */
static bool
before_ready(conform_stage_t *stage, conform_raw_t *raw)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = PROTO_KIND_FINISH,
                             .epoch = raw->epoch,
                             .sequence = 1,
                             .request = 1};
    proto_body_t body = {.finish = {.reason = PROTO_FINISH_CANCELLED}};
    (void)actor_conform_raw_send_as(raw, &header, &body);
    bool came = actor_conform_wait_raw(stage, 0, PROTO_KIND_NONE, stage->patience_ns);
    while (came && raw->header.kind == PROTO_KIND_INIT) { /* HELLO was said more than once */
        came = actor_conform_wait_raw(stage, 0, PROTO_KIND_NONE, stage->patience_ns);
    }
    conform_where_t where = where_raw(raw);
    if (!came || raw->header.kind != PROTO_KIND_NAK || !raw->is_readable ||
        raw->body.nak.status != STATUS_ERR_STALE) {
        actor_conform_broke(stage->report, CONFORM_LINK_NOT_OPEN, came ? &where : NULL,
                            "NAK with status ERR_STALE", "%s before READY was answered with %s",
                            "FINISH", came ? proto_kind_name(raw->header.kind) : "nothing");
        return false;
    }
    actor_conform_held(stage->report, CONFORM_LINK_NOT_OPEN);
    return true;
}

/* ---- an open link ---------------------------------------------------------------------------- */

/* Everything that comes within `duration_ns` is numbered on; returns how many heartbeats came. */
static uint32_t
listen_raw(conform_stage_t *stage, uint64_t *sequence, uint64_t duration_ns)
{
    conform_raw_t *raw = &stage->raws[0];
    uint64_t end_ns = stage->now_ns + duration_ns;
    uint32_t beats = 0;
    while (!stage->is_aborted && stage->now_ns < end_ns) {
        actor_conform_poll(stage, 2 * MS_NS);
        while (actor_conform_raw_receive(raw) == STATUS_OK) {
            conform_where_t where = where_raw(raw);
            beats += raw->header.kind == PROTO_KIND_HEARTBEAT ? 1 : 0;
            if (!raw->is_readable) {
                actor_conform_broke(stage->report, CONFORM_LINK_READABLE, &where,
                                    "a message that decodes", "%s", raw->detail);
            }
            if (raw->header.sequence != *sequence + 1 ||
                (raw->header.kind != PROTO_KIND_NAK && raw->header.epoch == 0)) {
                char expected[64];
                (void)snprintf(expected, sizeof expected, "sequence %" PRIu64, *sequence + 1);
                actor_conform_broke(stage->report, CONFORM_LINK_SEQUENCE, &where, expected,
                                    "%s with sequence %" PRIu64, proto_kind_name(raw->header.kind),
                                    raw->header.sequence);
            } else {
                actor_conform_held(stage->report, CONFORM_LINK_SEQUENCE);
            }
            *sequence = raw->header.sequence;
        }
    }
    return beats;
}

/* The NAK that answers what was just sent. */
static void
wait_nak(conform_stage_t *stage, uint64_t number, uint32_t kind, const char *what)
{
    conform_raw_t *raw = &stage->raws[0];
    char expected[96];
    (void)snprintf(expected, sizeof expected, "NAK with sequence %" PRIu64 " and kind %u", number,
                   kind);
    if (!actor_conform_wait_raw(stage, 0, PROTO_KIND_NAK, stage->patience_ns)) {
        if (!stage->is_aborted) {
            actor_conform_broke(stage->report, CONFORM_LINK_NAK, NULL, expected, "no answer to %s",
                                what);
        }
        return;
    }
    conform_where_t where = where_raw(raw);
    if (!raw->is_readable || raw->body.nak.sequence != number || raw->body.nak.kind != kind ||
        raw->body.nak.status >= 0) {
        actor_conform_broke(stage->report, CONFORM_LINK_NAK, &where, expected,
                            "NAK with sequence %" PRIu64 ", kind %u, status %" PRId64 " for %s",
                            raw->body.nak.sequence, raw->body.nak.kind, raw->body.nak.status, what);
        return;
    }
    actor_conform_held(stage->report, CONFORM_LINK_NAK);
}

static void
send_garbage(conform_stage_t *stage)
{
    static const uint8_t noise[] = {0xc1, 0xff, 0x00, 0x17};
    static const uint8_t empty[] = {0x90};
    conform_raw_t *raw = &stage->raws[0];
    proto_bytes_t none = {NULL, 0};
    (void)actor_conform_raw_send_bytes(raw, (proto_bytes_t){noise, sizeof noise}, none, none);
    wait_nak(stage, 0, 0, "a header of noise");

    uint8_t head[PROTO_HEADER_SIZE_MAX];
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = (proto_kind_t)999,
                             .epoch = raw->epoch,
                             .sequence = ++raw->sequence_out};
    size_t size = proto_header_encode(&header, head);
    (void)actor_conform_raw_send_bytes(raw, (proto_bytes_t){head, size},
                                       (proto_bytes_t){empty, sizeof empty}, none);
    wait_nak(stage, header.sequence, 999, "a message of kind 999");

    header.kind = PROTO_KIND_FINISH;
    header.sequence = ++raw->sequence_out;
    size = proto_header_encode(&header, head);
    (void)actor_conform_raw_send_bytes(raw, (proto_bytes_t){head, size},
                                       (proto_bytes_t){noise, sizeof noise}, none);
    wait_nak(stage, header.sequence, PROTO_KIND_FINISH, "a FINISH with a body of noise");
}

static void
listen_and_disturb(conform_stage_t *stage)
{
    conform_raw_t *raw = &stage->raws[0];
    uint64_t interval_ns = raw->heartbeat_ns;
    if (interval_ns < 5 * MS_NS || interval_ns > 1000 * MS_NS) {
        interval_ns = 1000 * MS_NS;
    }
    uint64_t sequence = 0;
    uint32_t beats = listen_raw(stage, &sequence, 4 * interval_ns);
    if (stage->is_aborted) {
        return;
    }
    if (beats < 2) {
        actor_conform_broke(stage->report, CONFORM_LINK_HEARTBEAT, NULL,
                            "a HEARTBEAT at each interval of INIT",
                            "%u heartbeats in four intervals of %" PRIu64 " ms", beats,
                            interval_ns / MS_NS);
    } else {
        actor_conform_held(stage->report, CONFORM_LINK_HEARTBEAT);
    }
    send_garbage(stage);
    bool goes_on = actor_conform_wait_raw(stage, 0, PROTO_KIND_HEARTBEAT,
                                          4 * interval_ns + stage->patience_ns);
    if (goes_on) {
        actor_conform_held(stage->report, CONFORM_LINK_GOES_ON);
    } else if (!stage->is_aborted) {
        actor_conform_broke(stage->report, CONFORM_LINK_GOES_ON, NULL, "heartbeats as before",
                            "no heartbeat after messages that could not be read");
    }
}

static void
refused_hellos(conform_stage_t *stage, uint64_t epoch)
{
    if (actor_conform_open_raw(stage, 1, "conform-raw-a", epoch - 1, 1)) {
        refused_hello(stage, 1, PROTO_SCHEMA_VERSION, CONFORM_LINK_OLD_EPOCH, STATUS_ERR_STALE);
        actor_conform_close_raw(stage, 1);
    }
    if (actor_conform_open_raw(stage, 1, "conform-raw-v", epoch, 1)) {
        refused_hello(stage, 1, 60000, CONFORM_LINK_VERSION, STATUS_ERR_VERSION);
        actor_conform_close_raw(stage, 1);
    }
}

static void
say_goodbye(conform_stage_t *stage, uint64_t epoch)
{
    proto_body_t body = {.bye = {.detail = proto_text("the scene ends")}};
    (void)actor_conform_raw_send(&stage->raws[0], PROTO_KIND_BYE, 0, &body);
    actor_conform_close_raw(stage, 0);
    if (actor_conform_open_raw(stage, 0, "conform-raw-a", epoch, 4) &&
        actor_conform_greet_raw(stage, 0, CONFORM_LINK_BYE)) {
        actor_conform_held(stage->report, CONFORM_LINK_BYE);
    }
}

void
actor_conform_scene_link(conform_stage_t *stage)
{
    stage->epoch += 2;
    uint64_t epoch = stage->epoch;
    if (!actor_conform_open_raw(stage, 0, "conform-raw-a", epoch, 1)) {
        return;
    }
    conform_raw_t *raw = &stage->raws[0];
    if (!actor_conform_contact(stage)) {
        return;
    }
    if (raw->header.kind != PROTO_KIND_INIT) {
        conform_where_t where = where_raw(raw);
        actor_conform_broke(stage->report, CONFORM_LINK_HANDSHAKE, &where, "INIT",
                            "HELLO was answered with %s", proto_kind_name(raw->header.kind));
        stage->is_aborted = true;
        return;
    }
    check_init(stage, raw);
    raw->heartbeat_ns = raw->is_readable ? raw->body.init.heartbeat_ns : 0;
    stage->heartbeat_ns = raw->heartbeat_ns;
    if (before_ready(stage, raw)) {
        (void)actor_conform_raw_ready(raw);
        raw->beats = true;
    } else {
        /* That took long: the link that was half open may be forgotten. */
        actor_conform_close_raw(stage, 0);
        if (!actor_conform_open_raw(stage, 0, "conform-raw-a", epoch, 2) ||
            !actor_conform_greet_raw(stage, 0, CONFORM_LINK_HANDSHAKE)) {
            return;
        }
    }
    listen_and_disturb(stage);
    refused_hellos(stage, epoch);
    if (!stage->is_aborted) {
        say_goodbye(stage, epoch);
    }
}

/* ---- numbers --------------------------------------------------------------------------------- */

static conform_request_t *
raw_request(conform_stage_t *stage)
{
    conform_ask_t ask = {.gateway = 1, .prompt_length = 5, .generation_max = 3};
    conform_request_t *request = actor_conform_book_add(&stage->book, &ask);
    if (request != NULL) {
        request->submit_count = 1;
        request->excuses = CONFORM_EXCUSE_GONE; /* its answers come to a link by hand */
    }
    return request;
}

static void
raw_submit(conform_raw_t *raw, const conform_request_t *request, uint64_t sequence)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = PROTO_KIND_SUBMIT,
                             .epoch = raw->epoch,
                             .sequence = sequence,
                             .request = request->id};
    proto_body_t body;
    actor_conform_submit_body(request, &body);
    (void)actor_conform_raw_send_as(raw, &header, &body);
}

/* FINISHED of this request on link 0; notes one of `stray`. */
static bool
wait_raw_end(conform_stage_t *stage, const conform_request_t *request,
             const conform_request_t *stray, bool *strayed)
{
    conform_raw_t *raw = &stage->raws[0];
    uint64_t end_ns = stage->now_ns + stage->patience_ns;
    while (stage->now_ns < end_ns &&
           actor_conform_wait_raw(stage, 0, PROTO_KIND_FINISHED, end_ns - stage->now_ns)) {
        *strayed = *strayed || raw->header.request == stray->id;
        if (raw->header.request == request->id) {
            return true;
        }
    }
    return false;
}

static void
send_duplicate(conform_stage_t *stage, conform_raw_t *raw)
{
    conform_request_t *first = raw_request(stage);
    conform_request_t *second = raw_request(stage);
    conform_request_t *third = raw_request(stage);
    if (first == NULL || second == NULL || third == NULL) {
        return;
    }
    uint64_t number = ++raw->sequence_out;
    raw_submit(raw, first, number);
    raw_submit(raw, second, number);
    bool strayed = false;
    bool came = wait_raw_end(stage, first, second, &strayed);
    raw_submit(raw, third, ++raw->sequence_out);
    came = came && wait_raw_end(stage, third, second, &strayed);
    conform_where_t where = {.link = "gateway", .kind = PROTO_KIND_SUBMIT, .request = second->id};
    if (strayed || second->admit_count > 0 || second->row_count > 0) {
        actor_conform_broke(stage->report, CONFORM_LINK_DUPLICATE, &where, "nothing",
                            "a SUBMIT with the number %" PRIu64 " of an earlier message was served",
                            number);
    } else if (!came && !stage->is_aborted) {
        actor_conform_broke(stage->report, CONFORM_LINK_DUPLICATE, &where,
                            "the link goes on after a repeated number",
                            "no FINISHED of the requests around it");
    } else {
        actor_conform_held(stage->report, CONFORM_LINK_DUPLICATE);
    }
}

static void
send_gap(conform_stage_t *stage, uint64_t epoch)
{
    conform_raw_t *raw = &stage->raws[0];
    conform_request_t *lost = raw_request(stage);
    if (lost == NULL) {
        return;
    }
    raw_submit(raw, lost, raw->sequence_out + 5);
    raw->beats = false;
    actor_conform_play(stage, 100 * MS_NS);
    conform_where_t where = {.link = "gateway", .kind = PROTO_KIND_SUBMIT, .request = lost->id};
    if (lost->admit_count > 0 || lost->row_count > 0) {
        actor_conform_broke(stage->report, CONFORM_LINK_GAP, &where, "nothing",
                            "a SUBMIT after a gap of 4 numbers was served");
        return;
    }
    actor_conform_close_raw(stage, 0);
    if (actor_conform_open_raw(stage, 0, "conform-raw-b", epoch, 2) &&
        actor_conform_greet_raw(stage, 0, CONFORM_LINK_GAP)) {
        actor_conform_held(stage->report, CONFORM_LINK_GAP);
    }
}

void
actor_conform_scene_numbers(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    uint64_t epoch = ++stage->epoch;
    if (!actor_conform_open(stage, &machine) ||
        !actor_conform_open_raw(stage, 0, "conform-raw-b", epoch, 1) ||
        !actor_conform_greet_raw(stage, 0, CONFORM_LINK_HANDSHAKE)) {
        return;
    }
    send_duplicate(stage, &stage->raws[0]);
    if (!stage->is_aborted) {
        send_gap(stage, epoch);
    }
    actor_conform_settle(stage);
}

/* ---- silence --------------------------------------------------------------------------------- */

static bool
is_admitted(conform_stage_t *stage, const void *context)
{
    (void)stage;
    const conform_request_t *request = context;
    return request->row_count > 0;
}

/* Until the scheduler sends no heartbeats to link 0 any more, 24 intervals at most. */
static void
wait_given_up(conform_stage_t *stage)
{
    uint64_t interval_ns = stage->raws[0].heartbeat_ns;
    uint64_t end_ns = stage->now_ns + 24 * interval_ns;
    actor_conform_play(stage, 4 * interval_ns);
    while (stage->now_ns < end_ns &&
           actor_conform_wait_raw(stage, 0, PROTO_KIND_HEARTBEAT, 4 * interval_ns)) {
    }
}

void
actor_conform_scene_silence(conform_stage_t *stage)
{
    conform_machine_t machine = actor_conform_machine();
    uint64_t epoch = ++stage->epoch;
    if (!actor_conform_open(stage, &machine) ||
        !actor_conform_open_raw(stage, 0, "conform-raw-c", epoch, 1) ||
        !actor_conform_greet_raw(stage, 0, CONFORM_LINK_HANDSHAKE)) {
        return;
    }
    conform_raw_t *raw = &stage->raws[0];
    if (raw->heartbeat_ns > 1000 * MS_NS) {
        actor_conform_skip(stage->report, CONFORM_LINK_SILENCE,
                           "the heartbeat interval is %" PRIu64 " ms: it would take too long",
                           raw->heartbeat_ns / MS_NS);
        return;
    }
    conform_ask_t ask = {.gateway = 1, .prompt_length = 5, .generation_max = 200};
    conform_request_t *request = actor_conform_book_add(&stage->book, &ask);
    if (request == NULL) {
        return;
    }
    request->submit_count = 1;
    request->excuses = CONFORM_EXCUSE_GONE;
    stage->executor.is_holding = true;
    raw_submit(raw, request, ++raw->sequence_out);
    if (!actor_conform_wait(stage, stage->patience_ns, is_admitted, request)) {
        return;
    }
    raw->beats = false;
    wait_given_up(stage);
    uint32_t rows = request->row_count;
    actor_conform_settle(stage);
    if (stage->is_aborted) {
        return;
    }
    if (request->row_count > rows + 8) {
        conform_where_t where = {.link = "gateway", .request = request->id};
        actor_conform_broke(stage->report, CONFORM_LINK_SILENCE, &where,
                            "the request of a peer that is gone ends",
                            "it was computed on: %u rows after the silence",
                            request->row_count - rows);
    } else {
        actor_conform_held(stage->report, CONFORM_LINK_SILENCE);
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static bool
has_exited(conform_stage_t *stage, const void *context)
{
    (void)context;
    const actor_conform_options_t *options = stage->options;
    return options->exit_code(options->context) >= 0;
}

void
actor_conform_scene_stop(conform_stage_t *stage)
{
    const actor_conform_options_t *options = stage->options;
    if (options->ask_to_end == NULL || options->exit_code == NULL) {
        actor_conform_skip(stage->report, CONFORM_LINK_STOP,
                           "the scheduler was not started by this command (--exec)");
        return;
    }
    /* By hand: the real shell may take note of the connection's end before it reads the last
     * message. */
    if (!actor_conform_open_raw(stage, 0, "conform-raw-s", ++stage->epoch, 1) ||
        !actor_conform_greet_raw(stage, 0, CONFORM_LINK_HANDSHAKE) ||
        !actor_conform_wait_raw(stage, 0, PROTO_KIND_HEARTBEAT, 5 * stage->patience_ns)) {
        return;
    }
    options->ask_to_end(options->context);
    actor_conform_options_t deaf = *options;
    deaf.is_alive = NULL; /* its end is no surprise now */
    stage->options = &deaf;
    bool said_bye = actor_conform_wait_raw(stage, 0, PROTO_KIND_BYE, stage->patience_ns);
    bool ended = actor_conform_wait(stage, 2 * stage->patience_ns, has_exited, NULL);
    stage->options = options;
    int code = options->exit_code(options->context);
    if (!ended || code != 0) {
        actor_conform_broke(stage->report, CONFORM_LINK_STOP, NULL, "exit code 0",
                            ended ? "its process ended with %d" : "its process goes on (%d)", code);
    } else if (!said_bye) {
        actor_conform_broke(stage->report, CONFORM_LINK_STOP, NULL, "BYE before the end",
                            "the process ended without BYE");
    } else {
        actor_conform_held(stage->report, CONFORM_LINK_STOP);
    }
}
