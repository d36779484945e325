#include "cli_look.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto_clock.h"

/* ---- requests -------------------------------------------------------------------------------- */

static const actor_look_row_t *
find(const actor_view_requests_t *list, uint64_t request)
{
    for (uint32_t i = 0; request != 0 && i < list->count; i++) {
        if (list->rows[i].request == request) {
            return &list->rows[i];
        }
    }
    return NULL;
}

/* What a person calls a request: its x-request-id, else its number. */
static void
name_request(const actor_node_t *node, uint64_t request, char out[ACTOR_LOOK_NAME_SIZE_BYTES])
{
    const actor_look_row_t *row = find(&node->gateway, request);
    if (row != NULL && row->name[0] != '\0') {
        memcpy(out, row->name, ACTOR_LOOK_NAME_SIZE_BYTES);
    } else if (request != 0) {
        (void)snprintf(out, ACTOR_LOOK_NAME_SIZE_BYTES, "%016" PRIx64, request);
    } else {
        out[0] = '\0';
    }
}

static void
explain_gateway(const actor_node_t *node, cli_look_request_t *request)
{
    const actor_look_row_t *row = &request->row;
    char *why = request->why;
    if (row->state == PROTO_REQUEST_WAITING) {
        (void)snprintf(why, CLI_LOOK_TEXT_SIZE_BYTES, "a scheduler: none is there to take it");
    } else if (row->state == PROTO_REQUEST_STOPPING) {
        (void)snprintf(why, CLI_LOOK_TEXT_SIZE_BYTES, "the scheduler's word that it has ended");
    } else if (node->scheduler[0] != '\0') {
        (void)snprintf(why, CLI_LOOK_TEXT_SIZE_BYTES, "the scheduler at %s, which does not say why",
                       node->scheduler);
    } else {
        (void)snprintf(why, CLI_LOOK_TEXT_SIZE_BYTES, "the scheduler's first word about it");
    }
}

/* The resource and who has it, in words. */
static void
explain(const actor_node_t *node, cli_look_request_t *request)
{
    const actor_look_row_t *row = &request->row;
    const char *holder = request->holder;
    char *why = request->why;
    switch (row->wait) {
    case PROTO_WAIT_NOTHING:
        (void)snprintf(why, CLI_LOOK_TEXT_SIZE_BYTES,
                       row->holder != 0 ? "runs in step %" PRIu64 : "runs", row->holder);
        break;
    case PROTO_WAIT_EXECUTOR:
        (void)snprintf(why, CLI_LOOK_TEXT_SIZE_BYTES, "an executor: none is attached");
        break;
    case PROTO_WAIT_SLOT:
        (void)snprintf(why, CLI_LOOK_TEXT_SIZE_BYTES, "a slot: all are taken, %s has run longest",
                       holder);
        break;
    case PROTO_WAIT_BLOCKS:
        (void)snprintf(why, CLI_LOOK_TEXT_SIZE_BYTES,
                       "%" PRIu32 " cache blocks, %" PRIu32 " are free: %s holds most (%" PRIu32
                       ")",
                       row->needed, row->available, holder[0] != '\0' ? holder : "nobody",
                       request->holder_blocks);
        break;
    case PROTO_WAIT_RETRACTED:
        (void)snprintf(why, CLI_LOOK_TEXT_SIZE_BYTES, "%s, which lost its blocks and goes first",
                       holder);
        break;
    case PROTO_WAIT_HEAD:
        (void)snprintf(why, CLI_LOOK_TEXT_SIZE_BYTES, "%s, which was passed too often: it is next",
                       holder);
        break;
    case PROTO_WAIT_TURN:
        (void)snprintf(why, CLI_LOOK_TEXT_SIZE_BYTES,
                       holder[0] != '\0' ? "%s, which is before it" : "its turn%s", holder);
        break;
    case PROTO_WAIT_STEP:
        (void)snprintf(why, CLI_LOOK_TEXT_SIZE_BYTES, "step %" PRIu64 ", which is running",
                       row->holder);
        break;
    case PROTO_WAIT_SCHEDULER:
    default:
        explain_gateway(node, request);
        break;
    }
}

static bool
holder_is_step(const actor_look_row_t *row)
{
    return row->wait == PROTO_WAIT_NOTHING || row->wait == PROTO_WAIT_STEP;
}

static void
fill(const actor_node_t *node, const actor_look_row_t *gateway, const actor_look_row_t *scheduler,
     cli_look_request_t *out)
{
    *out = (cli_look_request_t){.why = ""};
    if (scheduler != NULL) {
        out->row = *scheduler;
    }
    if (gateway != NULL && scheduler == NULL) {
        out->row = *gateway;
    } else if (gateway != NULL) {
        memcpy(out->row.name, gateway->name, sizeof out->row.name);
        out->row.age_ms = gateway->age_ms;
    }
    name_request(node, out->row.request, out->row.name);
    if (!holder_is_step(&out->row)) {
        out->holder_request = out->row.holder;
        name_request(node, out->row.holder, out->holder);
        const actor_look_row_t *holder = find(&node->scheduler_requests, out->row.holder);
        out->holder_blocks = holder != NULL ? holder->block_count : 0;
    }
    explain(node, out);
}

static int
by_age(const void *a, const void *b)
{
    const cli_look_request_t *first = a;
    const cli_look_request_t *second = b;
    if (first->row.age_ms != second->row.age_ms) {
        return first->row.age_ms > second->row.age_ms ? -1 : 1;
    }
    return first->row.request < second->row.request ? -1 : 1;
}

proto_status_t
cli_look_merge(const actor_node_t *node, cli_look_requests_t *out)
{
    uint32_t room = node->gateway.count + node->scheduler_requests.count;
    *out = (cli_look_requests_t){.total = node->gateway.total};
    if (node->scheduler_requests.total > out->total) {
        out->total = node->scheduler_requests.total;
    }
    if (room == 0) {
        return STATUS_OK;
    }
    out->requests = calloc(room, sizeof *out->requests);
    if (out->requests == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < node->gateway.count; i++) {
        const actor_look_row_t *row = &node->gateway.rows[i];
        fill(node, row, find(&node->scheduler_requests, row->request),
             &out->requests[out->count++]);
    }
    /* Those of other gateways, and those that began between the two answers. */
    for (uint32_t i = 0; i < node->scheduler_requests.count; i++) {
        const actor_look_row_t *row = &node->scheduler_requests.rows[i];
        if (find(&node->gateway, row->request) == NULL) {
            fill(node, NULL, row, &out->requests[out->count++]);
        }
    }
    qsort(out->requests, out->count, sizeof *out->requests, by_age);
    return STATUS_OK;
}

void
cli_look_fini(cli_look_requests_t *self)
{
    free(self->requests);
    *self = (cli_look_requests_t){.count = 0};
}

bool
cli_look_waits(const cli_look_request_t *request)
{
    return request->row.wait != PROTO_WAIT_NOTHING;
}

/* ---- rates ----------------------------------------------------------------------------------- */

static double
rate(uint64_t now, uint64_t then, double seconds)
{
    return now >= then && seconds > 0.0 ? (double)(now - then) / seconds : NAN;
}

void
cli_look_rates(cli_look_sample_t *sample, const actor_node_t *node, cli_look_rates_t *out)
{
    uint64_t now_ns = proto_clock_monotonic_ns(proto_clock_system());
    double seconds = sample->at_ns != 0 ? (double)(now_ns - sample->at_ns) / 1e9 : 0.0;
    *out = (cli_look_rates_t){
        .seconds = seconds,
        .prompt_tokens_per_s = rate(node->load.prompt_tokens, sample->prompt_tokens, seconds),
        .generation_tokens_per_s =
            rate(node->load.generation_tokens, sample->generation_tokens, seconds),
    };
    for (uint32_t i = 0; i < node->actor_count; i++) {
        const actor_view_actor_t *actor = &node->actors[i];
        bool is_same = i < sample->count && sample->epochs[i] == actor->epoch;
        out->cpu_percent[i] = is_same ? rate(actor->cpu_ns, sample->cpu_ns[i], seconds) / 1e7 : NAN;
        sample->epochs[i] = actor->epoch;
        sample->cpu_ns[i] = actor->cpu_ns;
    }
    sample->count = node->actor_count;
    sample->at_ns = now_ns;
    sample->prompt_tokens = node->load.prompt_tokens;
    sample->generation_tokens = node->load.generation_tokens;
}

void
cli_look_duration(uint64_t milliseconds, char out[16])
{
    uint64_t seconds = milliseconds / 1000;
    if (milliseconds < 10000) {
        (void)snprintf(out, 16, "%" PRIu64 ".%" PRIu64 "s", seconds, milliseconds / 100 % 10);
    } else if (seconds < 100) {
        (void)snprintf(out, 16, "%" PRIu64 "s", seconds);
    } else if (seconds < 3600) {
        (void)snprintf(out, 16, "%" PRIu64 "m%02" PRIu64 "s", seconds / 60, seconds % 60);
    } else if (seconds < 86400) {
        (void)snprintf(out, 16, "%" PRIu64 "h%02" PRIu64 "m", seconds / 3600, seconds / 60 % 60);
    } else {
        (void)snprintf(out, 16, "%" PRIu64 "d%02" PRIu64 "h", seconds / 86400 % 100000,
                       seconds / 3600 % 24);
    }
}

void
cli_look_size(uint64_t bytes, char out[16])
{
    static const char *const units[] = {"B", "K", "M", "G", "T"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1000.0 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024.0;
        unit++;
    }
    (void)snprintf(out, 16, unit == 0 || value >= 100.0 ? "%.0f%s" : "%.1f%s", value, units[unit]);
}
