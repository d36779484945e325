/* A node as one JSON document, for `ps --json` and `top --once --json`. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#include "cli_look.h"

static json_t *
number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *
actor_of(const actor_view_actor_t *actor, double cpu_percent)
{
    return json_pack("{ss ss ss si sI sI sf s{si si si} sI so sI sI si sI sI ss}", "name",
                     actor->name, "role", proto_role_name(actor->role), "state",
                     actor->pid != 0 ? actor_view_actor_state_name(actor->state) : "down", "pid",
                     (int)actor->pid, "epoch", (json_int_t)actor->epoch, "uptime_ms",
                     (json_int_t)actor->uptime_ms, "heartbeat_age_s",
                     (double)actor->beat_age_ms / 1e3, "restarts", "exit", (int)actor->exits,
                     "signal", (int)actor->signals, "hang", (int)actor->hangs, "cpu_ns",
                     (json_int_t)actor->cpu_ns, "cpu_percent", number(cpu_percent),
                     "resident_bytes", (json_int_t)actor->resident_bytes, "step",
                     (json_int_t)actor->step, "step_age_ms", (int)actor->step_age_ms,
                     "refused_messages", (json_int_t)actor->refused_in, "record_dropped",
                     (json_int_t)actor->record_dropped, "detail", actor->detail);
}

static json_t *
link_of(const actor_node_t *node, const actor_view_link_t *link)
{
    const char *name = link->actor < node->actor_count ? node->actors[link->actor].name : "";
    return json_pack("{ss ss sf sI sI}", "actor", name, "peer", link->peer, "heard_age_s",
                     (double)link->age_ms / 1e3, "messages_in", (json_int_t)link->messages_in,
                     "messages_out", (json_int_t)link->messages_out);
}

static json_t *
request_of(const cli_look_request_t *request)
{
    const actor_look_row_t *row = &request->row;
    char id[24];
    (void)snprintf(id, sizeof id, "%016" PRIx64, row->request);
    json_t *out =
        json_pack("{ss ss ss sf sI sI sI sI sI sI sI ss ss}", "request", id, "request_id",
                  row->name, "state", actor_look_state_name(row->state), "age_s",
                  (double)row->age_ms / 1e3, "prompt_tokens", (json_int_t)row->prompt_tokens,
                  "computed_tokens", (json_int_t)row->computed_tokens, "generated_tokens",
                  (json_int_t)row->generated_tokens, "generation_max",
                  (json_int_t)row->generation_max, "blocks", (json_int_t)row->block_count, "slot",
                  (json_int_t)row->slot, "priority", (json_int_t)row->priority, "waits_for",
                  actor_look_wait_name(row->wait), "why", request->why);
    if (out != NULL && cli_look_waits(request)) {
        (void)json_object_set_new(out, "holder",
                                  request->holder[0] != '\0' ? json_string(request->holder)
                                                             : json_null());
        (void)json_object_set_new(out, "needed", json_integer((json_int_t)row->needed));
        (void)json_object_set_new(out, "available", json_integer((json_int_t)row->available));
    }
    return out;
}

static json_t *
load_of(const actor_node_t *node, const cli_look_rates_t *rates)
{
    const proto_load_t *load = &node->load;
    if (!node->has_load) {
        return json_null();
    }
    static const double unknown = NAN;
    double used =
        load->blocks_total == 0
            ? unknown
            : 1.0 - (double)(load->blocks_free + load->blocks_cached) / (double)load->blocks_total;
    return json_pack("{sI sI s{sI sI sI so} sI sI sI sI sI sI sI sI sI sI so so so}", "running",
                     (json_int_t)load->running, "waiting", (json_int_t)load->waiting, "kv_blocks",
                     "total", (json_int_t)load->blocks_total, "free", (json_int_t)load->blocks_free,
                     "cached", (json_int_t)load->blocks_cached, "usage", number(used),
                     "prefix_queries", (json_int_t)load->prefix_queries, "prefix_hits",
                     (json_int_t)load->prefix_hits, "preemptions", (json_int_t)load->preemptions,
                     "steps", (json_int_t)load->steps, "graph_steps", (json_int_t)load->graph_steps,
                     "eager_steps", (json_int_t)load->eager_steps, "prompt_tokens",
                     (json_int_t)load->prompt_tokens, "generation_tokens",
                     (json_int_t)load->generation_tokens, "draft_tokens",
                     (json_int_t)load->drafts_proposed, "accepted_tokens",
                     (json_int_t)load->drafts_accepted, "acceptance",
                     number(load->drafts_proposed > 0
                                ? (double)load->drafts_accepted / (double)load->drafts_proposed
                                : unknown),
                     "prompt_tokens_per_s",
                     number(rates != NULL ? rates->prompt_tokens_per_s : unknown),
                     "generation_tokens_per_s",
                     number(rates != NULL ? rates->generation_tokens_per_s : unknown));
}

proto_status_t
cli_look_json(FILE *stream, const actor_node_t *node, const cli_look_requests_t *requests,
              const cli_look_rates_t *rates)
{
    json_t *actors = json_array();
    json_t *links = json_array();
    json_t *rows = json_array();
    for (uint32_t i = 0; i < node->actor_count; i++) {
        (void)json_array_append_new(actors,
                                    actor_of(&node->actors[i],
                                             rates != NULL ? rates->cpu_percent[i] : (double)NAN));
    }
    for (uint32_t i = 0; i < node->link_count; i++) {
        (void)json_array_append_new(links, link_of(node, &node->links[i]));
    }
    for (uint32_t i = 0; i < requests->count; i++) {
        (void)json_array_append_new(rows, request_of(&requests->requests[i]));
    }
    json_t *root = json_pack("{ss ss ss so so so sI so}", "state",
                             actor_view_node_state_name(node->state), "drained_by", node->owner,
                             "scheduler", node->scheduler[0] != '\0' ? node->scheduler : "builtin",
                             "actors", actors, "links", links, "load", load_of(node, rates),
                             "request_count", (json_int_t)requests->total, "requests", rows);
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    bool ok = text != NULL && fprintf(stream, "%s\n", text) > 0 && fflush(stream) == 0;
    free(text);
    json_decref(root);
    return ok ? STATUS_OK : STATUS_ERR_IO;
}
