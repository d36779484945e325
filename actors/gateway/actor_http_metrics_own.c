/* actor_http_metrics_own.c - the series that only we have, and how one is written. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "actor_core.h"
#include "actor_http_metrics_writer.h"

void
actor_metrics_describe(const actor_metrics_writer_t *writer, const char *name, const char *type,
                       const char *help)
{
    actor_http_text_printf(writer->out, "# HELP %s%s %s\n# TYPE %s%s %s\n", writer->prefix, name,
                           help, writer->prefix, name, type);
}

void
actor_metrics_write_value(const actor_metrics_writer_t *writer, const char *name,
                          const char *more_labels, double value)
{
    actor_http_text_printf(writer->out, "%s%s{%s%s} ", writer->prefix, name, writer->labels,
                           more_labels);
    if (fabs(value) < 9e15 && value == floor(value)) {
        actor_http_text_printf(writer->out, "%.0f\n", value);
    } else {
        actor_http_text_printf(writer->out, "%.9g\n", value);
    }
}

void
actor_metrics_write_one(const actor_metrics_writer_t *writer, const char *name, const char *type,
                        const char *help, double value)
{
    actor_metrics_describe(writer, name, type, help);
    actor_metrics_write_value(writer, name, "", value);
}

/* ---- the scheduler's ------------------------------------------------------------------------- */

static void
write_blocks(const proto_load_t *load, const actor_metrics_writer_t *writer)
{
    uint64_t unused = (uint64_t)load->blocks_free + load->blocks_cached + load->blocks_held +
                      load->blocks_incoming + load->blocks_fencing;
    uint64_t active = load->blocks_total > unused ? load->blocks_total - unused : 0;
    const struct {
        const char *label;
        double value;
    } states[] = {
        {",state=\"free\"", load->blocks_free},
        {",state=\"cached\"", load->blocks_cached},
        {",state=\"active\"", (double)active},
        {",state=\"exported\"", load->blocks_held},
        {",state=\"incoming\"", load->blocks_incoming},
        {",state=\"fencing\"", load->blocks_fencing},
    };
    actor_metrics_describe(writer, "kv_blocks", "gauge", "Cache blocks by state.");
    for (size_t at = 0; at < sizeof states / sizeof states[0]; at++) {
        actor_metrics_write_value(writer, "kv_blocks", states[at].label, states[at].value);
    }
}

static void
write_modes(const actor_metrics_writer_t *writer, const char *name, const char *help,
            uint64_t graph, uint64_t eager)
{
    actor_metrics_describe(writer, name, "counter", help);
    actor_metrics_write_value(writer, name, ",mode=\"graph\"", (double)graph);
    actor_metrics_write_value(writer, name, ",mode=\"eager\"", (double)eager);
}

/* A name with one sample, in a table. */
typedef struct {
    const char *name;
    const char *type;
    const char *help;
    double value;
} one_t;

static void
write_table(const actor_metrics_writer_t *writer, const one_t *table, size_t count)
{
    for (size_t at = 0; at < count; at++) {
        actor_metrics_write_one(writer, table[at].name, table[at].type, table[at].help,
                                table[at].value);
    }
}

/* The drafter's name, as the model's fingerprint has it. */
static void
drafter_label(const proto_model_info_t *model, char out[64])
{
    static const char key[] = ";draft=";
    size_t key_len = sizeof key - 1;
    (void)snprintf(out, 64, ",drafter=\"none\"");
    const char *text = model == NULL ? NULL : model->fingerprint.data;
    const char *at =
        text == NULL ? NULL : memmem(text, model->fingerprint.size_bytes, key, key_len);
    if (at == NULL) {
        return;
    }
    at += key_len;
    size_t rest = model->fingerprint.size_bytes - (size_t)(at - text);
    size_t length = 0;
    while (length < rest && length < 31 &&
           ((at[length] >= 'a' && at[length] <= 'z') || (at[length] >= '0' && at[length] <= '9'))) {
        length++;
    }
    (void)snprintf(out, 64, ",drafter=\"%.*s\"", (int)length, at);
}

static void
write_drafts(const actor_http_metrics_view_t *view, const actor_metrics_writer_t *writer)
{
    const proto_load_t *load = view->load;
    char label[64];
    drafter_label(view->model, label);
    const one_t table[] = {
        {"decode_wide_steps_total", "counter",
         "Steps whose decode rows had room for candidates of a drafter.", (double)load->wide_steps},
        {"draft_tokens_total", "counter", "Candidates of a drafter that were verified.",
         (double)load->drafts_proposed},
        {"draft_accepted_tokens_total", "counter", "Of these, accepted.",
         (double)load->drafts_accepted},
        {"draft_missing_rows_total", "counter", "Rows with room for candidates that had none.",
         (double)load->drafts_missing},
        {"draft_ignored_total", "counter", "Candidates that came too late or out of range.",
         (double)load->drafts_ignored},
    };
    for (size_t at = 0; at < sizeof table / sizeof table[0]; at++) {
        actor_metrics_describe(writer, table[at].name, table[at].type, table[at].help);
        actor_metrics_write_value(writer, table[at].name, label, table[at].value);
    }
}

static void
write_load(const proto_load_t *load, const actor_metrics_writer_t *writer)
{
    write_blocks(load, writer);
    write_modes(writer, "decode_steps_total", "Decode steps by how they ran.", load->graph_steps,
                load->eager_steps);
    write_modes(writer, "prefill_steps_total", "Steps with prefills by how they ran.",
                load->prefill_graph_steps, load->prefill_eager_steps);
    const one_t table[] = {
        {"steps_total", "counter", "Plans made.", (double)load->steps},
        {"plans_refused_total", "counter", "Plans that an executor refused.",
         (double)load->plans_refused},
        {"decode_steps_above_ladder_total", "counter",
         "Eager decode steps whose batch was above the capture ladder.",
         (double)load->above_ladder_steps},
        {"recomputed_tokens_total", "counter", "Tokens to be computed again after a preemption.",
         (double)load->recomputed_tokens},
        {"evicted_blocks_total", "counter", "Cached blocks that were given to other content.",
         (double)load->evicted_blocks},
        {"scheduler_stalls_total", "counter",
         "Times that work waited and nothing could be planned.", (double)load->stalls},
    };
    write_table(writer, table, sizeof table / sizeof table[0]);
}

/* ---- the gateway's --------------------------------------------------------------------------- */

static void
write_gateway(const actor_http_metrics_t *self, const actor_http_metrics_view_t *view,
              const actor_metrics_writer_t *writer)
{
    const actor_gateway_core_state_t *state = &view->state;
    const one_t table[] = {
        {"ready", "gauge", "1: a scheduler and an executor are attached, and nothing is drained.",
         state->ready && !view->is_held ? 1.0 : 0.0},
        {"drained", "gauge", "1: a drain was asked for; nothing new is admitted.",
         view->is_held || state->draining ? 1.0 : 0.0},
        {"epoch", "gauge", "Incarnation of the gateway.", (double)view->epoch},
        {"choices_open", "gauge", "Choices without an end.", state->open_count},
        {"choices_waiting", "gauge", "Of these, without a scheduler.", state->waiting_count},
        {"resumed_requests_total", "counter",
         "Choices that another scheduler or executor went on with.", (double)state->resumed_count},
        {"poisoned_requests_total", "counter", "Choices that executors died of.",
         (double)state->poisoned_count},
        {"unresumable_requests_total", "counter",
         "Choices that could not have been: the history was full.", (double)state->unkept_count},
        {"history_used_bytes", "gauge", "Kept of open choices, to submit them again.",
         (double)state->history_used_bytes},
        {"history_size_bytes", "gauge", "Room for that.", (double)state->history_size_bytes},
        {"token_stream_gaps_total", "counter", "Choices lost to a hole.", (double)state->gap_count},
        {"rejected_messages_total", "counter", "Messages that the gateway refused.",
         (double)view->stats->refused_in},
        {"record_dropped_total", "counter", "Log records of the gateway that were dropped.",
         (double)view->stats->record_dropped},
        {"http_connections", "gauge", "Open connections.", view->connection_count},
        {"http_connections_accepted_total", "counter", "Connections accepted.",
         (double)self->connections_accepted},
        {"http_connections_refused_total", "counter", "Connections over a limit.",
         (double)self->connections_refused},
        {"http_clients_cut_total", "counter", "Clients that read too slowly.",
         (double)self->clients_cut},
    };
    write_table(writer, table, sizeof table / sizeof table[0]);
    static const char name[] = "traced_requests_total";
    actor_metrics_describe(writer, name, "counter", "Requests for the collector of traces.");
    actor_metrics_write_value(writer, name, ",result=\"sent\"", (double)view->traces.sent_count);
    actor_metrics_write_value(writer, name, ",result=\"dropped\"",
                              (double)view->traces.dropped_count);
    actor_metrics_write_value(writer, name, ",result=\"failed\"",
                              (double)view->traces.failed_count);
    actor_metrics_describe(writer, "http_requests_total", "counter",
                           "Replies by route and status.");
    for (uint32_t at = 0; at < self->reply_kind_count; at++) {
        char label[96];
        (void)snprintf(label, sizeof label, ",route=\"%s\",code=\"%d\"", self->replies[at].route,
                       self->replies[at].status);
        actor_metrics_write_value(writer, "http_requests_total", label,
                                  (double)self->replies[at].count);
    }
}

/* ---- of every actor of the node -------------------------------------------------------------- */

typedef struct {
    const char *name;
    const char *type;
    const char *help;
    size_t offset_bytes; /* of the figure in the entry of an actor */
    bool is_wide;        /* 64 bits */
    double unit;         /* what one of the figure is */
} actor_series_t;

#define ACTOR_FIELD(field) offsetof(actor_http_actor_t, field)

static const actor_series_t actor_series[] = {
    {"actor_heartbeat_age_seconds", "gauge", "Since the actor's last heartbeat.",
     ACTOR_FIELD(beat_age_ms), false, 1e-3},
    {"actor_epoch", "gauge", "Incarnation of the actor.", ACTOR_FIELD(epoch), true, 1.0},
    {"actor_uptime_seconds", "gauge", "Since its process began.", ACTOR_FIELD(uptime_ms), true,
     1e-3},
    {"actor_detection_seconds", "gauge",
     "From its last sign of life to the notice of its end, the last time.",
     ACTOR_FIELD(detection_us), false, 1e-6},
    {"actor_cpu_seconds_total", "counter", "Processor time of its process.", ACTOR_FIELD(cpu_ns),
     true, 1e-9},
    {"actor_resident_bytes", "gauge", "Resident size of its process.", ACTOR_FIELD(resident_bytes),
     true, 1.0},
    {"actor_rejected_messages_total", "counter", "Messages that it refused.",
     ACTOR_FIELD(refused_in), true, 1.0},
    {"actor_record_dropped_total", "counter", "Log records that it dropped.",
     ACTOR_FIELD(record_dropped), true, 1.0},
};

static double
figure_of(const actor_http_actor_t *actor, const actor_series_t *series)
{
    const unsigned char *at = (const unsigned char *)actor + series->offset_bytes;
    uint64_t wide = 0;
    uint32_t narrow = 0;
    if (series->is_wide) {
        memcpy(&wide, at, sizeof wide);
    } else {
        memcpy(&narrow, at, sizeof narrow);
    }
    return (double)(series->is_wide ? wide : narrow) * series->unit;
}

static void
write_restarts(const actor_http_actors_t *actors, const actor_metrics_writer_t *writer)
{
    actor_metrics_describe(writer, "actor_restarts_total", "counter",
                           "Ends of an actor that nobody asked for.");
    for (uint32_t at = 0; at < actors->count; at++) {
        const actor_http_actor_t *actor = &actors->actors[at];
        const struct {
            const char *reason;
            uint32_t count;
        } reasons[] = {{"exit", actor->exits}, {"signal", actor->signals}, {"hang", actor->hangs}};
        for (size_t reason = 0; reason < sizeof reasons / sizeof reasons[0]; reason++) {
            char label[96];
            (void)snprintf(label, sizeof label, ",actor=\"%s\",reason=\"%s\"", actor->name,
                           reasons[reason].reason);
            actor_metrics_write_value(writer, "actor_restarts_total", label, reasons[reason].count);
        }
    }
}

static void
write_actors(const actor_http_actors_t *actors, const actor_metrics_writer_t *writer)
{
    if (actors->count == 0) {
        return; /* no supervisor */
    }
    char label[96];
    actor_metrics_describe(writer, "actor_up", "gauge", "1: the actor is ready.");
    for (uint32_t at = 0; at < actors->count; at++) {
        (void)snprintf(label, sizeof label, ",actor=\"%s\"", actors->actors[at].name);
        actor_metrics_write_value(writer, "actor_up", label,
                                  actors->actors[at].state == ACTOR_STATE_READY ? 1.0 : 0.0);
    }
    for (size_t series = 0; series < sizeof actor_series / sizeof actor_series[0]; series++) {
        const actor_series_t *one = &actor_series[series];
        actor_metrics_describe(writer, one->name, one->type, one->help);
        for (uint32_t at = 0; at < actors->count; at++) {
            (void)snprintf(label, sizeof label, ",actor=\"%s\"", actors->actors[at].name);
            actor_metrics_write_value(writer, one->name, label,
                                      figure_of(&actors->actors[at], one));
        }
    }
    write_restarts(actors, writer);
}

void
actor_metrics_write_own(const actor_http_metrics_t *self, const actor_http_metrics_view_t *view,
                        const actor_metrics_writer_t *writer)
{
    actor_metrics_describe(writer, "build_info", "gauge", "Version of the program.");
    actor_metrics_write_value(writer, "build_info", ",version=\"" ONEPATH_VERSION "\"", 1.0);
    write_load(view->load, writer);
    write_drafts(view, writer);
    write_gateway(self, view, writer);
    write_actors(view->actors, writer);
}
