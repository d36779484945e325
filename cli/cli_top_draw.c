#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli_top.h"

typedef struct {
    const cli_top_view_t *view;
    cli_top_line_t *lines;
    uint32_t count;
    uint32_t count_max; /* without the line of keys */
} picture_t;

static void add(picture_t *self, cli_top_look_t look, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void
add(picture_t *self, cli_top_look_t look, const char *format, ...)
{
    if (self->count >= self->count_max) {
        return;
    }
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cli_top_line_t *line = &self->lines[self->count++];
    uint32_t width = self->view->width < CLI_TOP_WIDTH_MAX ? self->view->width : CLI_TOP_WIDTH_MAX;
    uint32_t length = size > 0 ? (uint32_t)strlen(text) : 0;
    length = length < width ? length : width;
    for (uint32_t at = 0; at < length; at++) {
        line->text[at] = text[at] >= ' ' && text[at] < 127 ? text[at] : '?';
    }
    line->text[length] = '\0';
    line->look = look;
}

/* "45.3 %", or "-" where there is nothing to divide by. */
static void
percent(uint64_t part, uint64_t whole, char out[16])
{
    if (whole == 0) {
        (void)snprintf(out, 16, "-");
    } else {
        (void)snprintf(out, 16, "%.1f %%", 100.0 * (double)part / (double)whole);
    }
}

static void
real(double value, char out[16])
{
    if (!isfinite(value)) {
        (void)snprintf(out, 16, "-");
    } else {
        (void)snprintf(out, 16, value < 100.0 ? "%.1f" : "%.0f", value);
    }
}

/* "1234", "12.3k", "4.5M". */
static void
count_of(uint64_t value, char out[16])
{
    if (value < 10000) {
        (void)snprintf(out, 16, "%" PRIu64, value);
    } else if (value < 10000000) {
        (void)snprintf(out, 16, "%.1fk", (double)value / 1e3);
    } else {
        (void)snprintf(out, 16, "%.1fM", (double)value / 1e6);
    }
}

/* ---- the head -------------------------------------------------------------------------------- */

static void
draw_head(picture_t *self)
{
    const actor_node_t *node = self->view->node;
    char left[160];
    char up[16] = "-";
    for (uint32_t i = 0; i < node->actor_count; i++) {
        if (node->actors[i].role == PROTO_ROLE_SUPERVISOR) {
            cli_look_duration(node->actors[i].uptime_ms, up);
        }
    }
    (void)snprintf(left, sizeof left, "onepath  %s%s%.24s  up %s  %.60s%s",
                   actor_view_node_state_name(node->state), node->owner[0] != '\0' ? " by " : "",
                   node->owner, up, self->view->run_dir, self->view->paused ? "  PAUSED" : "");
    cli_top_look_t look = node->state == PROTO_NODE_READY      ? CLI_TOP_GOOD
                          : node->state == PROTO_NODE_DEGRADED ? CLI_TOP_BAD
                                                               : CLI_TOP_WARN;
    int pad = (int)self->view->width - (int)strlen(self->view->clock);
    add(self, look, "%-*.*s%s", pad > 0 ? pad : 0, pad > 0 ? pad : 0, left, self->view->clock);
}

static void
draw_load(picture_t *self)
{
    enum { BAR = 24 };
    const proto_load_t *load = &self->view->node->load;
    const cli_look_rates_t *rates = self->view->rates;
    char in[16], out[16], hits[16], accepted[16], graphs[16], used_text[16];
    if (!self->view->node->has_load) {
        add(self, CLI_TOP_WARN, "no gateway is there to say how the load is");
        return;
    }
    real(rates != NULL ? rates->prompt_tokens_per_s : (double)NAN, in);
    real(rates != NULL ? rates->generation_tokens_per_s : (double)NAN, out);
    add(self, CLI_TOP_PLAIN, "requests %u running, %u waiting    tokens/s %s in, %s out",
        load->running, load->waiting, in, out);
    uint64_t unused = (uint64_t)load->blocks_free + load->blocks_cached;
    uint64_t total = load->blocks_total;
    uint64_t used = total > unused ? total - unused : 0;
    char bar[BAR + 1];
    memset(bar, '.', BAR);
    memset(bar, '#', total > 0 ? (size_t)(used * BAR / total) : 0);
    bar[BAR] = '\0';
    percent(used, total, used_text);
    bool is_full = total > 0 && used * 100 > total * 95;
    add(self, is_full ? CLI_TOP_WARN : CLI_TOP_PLAIN,
        "cache [%s] %s of %" PRIu64 " blocks, %u free, %u cached", bar, used_text, total,
        load->blocks_free, load->blocks_cached);
    percent(load->prefix_hits, load->prefix_queries, hits);
    percent(load->drafts_accepted, load->drafts_proposed, accepted);
    percent(load->graph_steps, load->graph_steps + load->eager_steps, graphs);
    add(self, CLI_TOP_PLAIN, "prefix hits %s   accepted %s   in graphs %s   preempted %" PRIu64,
        hits, accepted, graphs, load->preemptions);
}

/* ---- actors and links ------------------------------------------------------------------------ */

static cli_top_look_t
look_of(const actor_view_actor_t *actor)
{
    if (actor->pid == 0 || actor->state == ACTOR_STATE_FAILING) {
        return CLI_TOP_BAD;
    }
    bool is_late = actor->role != PROTO_ROLE_SUPERVISOR && actor->beat_age_ms > 1500;
    return actor->state != ACTOR_STATE_READY || is_late ? CLI_TOP_WARN : CLI_TOP_PLAIN;
}

static void
draw_actors(picture_t *self)
{
    const actor_node_t *node = self->view->node;
    add(self, CLI_TOP_TITLE, "%-14s %-9s %-13s %6s %6s %7s %4s  %s", "ACTOR", "STATE", "EPOCH",
        "BEAT", "CPU %", "RSS", "ENDS", "STEP");
    for (uint32_t i = 0; i < node->actor_count; i++) {
        const actor_view_actor_t *actor = &node->actors[i];
        char beat[16] = "-", cpu[16], size[16], step[48] = "";
        if (actor->role != PROTO_ROLE_SUPERVISOR && actor->pid != 0) {
            cli_look_duration(actor->beat_age_ms, beat);
        }
        real(self->view->rates != NULL ? self->view->rates->cpu_percent[i] : (double)NAN, cpu);
        cli_look_size(actor->resident_bytes, size);
        if (actor->step != 0) {
            (void)snprintf(step, sizeof step, "%" PRIu64, actor->step);
        } else if (actor->state == ACTOR_STATE_LOADING || actor->pid == 0) {
            (void)snprintf(step, sizeof step, "%.40s", actor->detail);
        }
        add(self, look_of(actor), "%-14.14s %-9s %-13" PRIu64 " %6s %6s %7s %4u  %s", actor->name,
            actor->pid != 0 ? actor_view_actor_state_name(actor->state) : "down", actor->epoch,
            beat, cpu, size, actor->exits + actor->signals + actor->hangs, step);
    }
}

/* A link has two ends, and each tells of it: the first one's word is shown. */
static bool
is_shown(const actor_node_t *node, uint32_t index)
{
    const actor_view_link_t *link = &node->links[index];
    for (uint32_t i = 0; i < index; i++) {
        const actor_view_link_t *other = &node->links[i];
        if (link->actor < node->actor_count && other->actor < node->actor_count &&
            strcmp(other->peer, node->actors[link->actor].name) == 0 &&
            strcmp(link->peer, node->actors[other->actor].name) == 0) {
            return false;
        }
    }
    return link->actor < node->actor_count;
}

static void
draw_links(picture_t *self)
{
    const actor_node_t *node = self->view->node;
    uint32_t columns = self->view->width >= 78 ? 2 : 1;
    char row[2][64];
    uint32_t filled = 0;
    add(self, CLI_TOP_TITLE, "LINKS (heard, messages in/out)");
    for (uint32_t i = 0; i < node->link_count; i++) {
        const actor_view_link_t *link = &node->links[i];
        if (!is_shown(node, i)) {
            continue;
        }
        char age[16], in[16], out[16], name[40];
        cli_look_duration(link->age_ms, age);
        count_of(link->messages_in, in);
        count_of(link->messages_out, out);
        (void)snprintf(name, sizeof name, "%.10s - %.10s", node->actors[link->actor].name,
                       link->peer);
        (void)snprintf(row[filled++], sizeof row[0], "%-22.22s %5.5s %.6s/%.6s", name, age, in,
                       out);
        if (filled == columns) {
            add(self, CLI_TOP_PLAIN, columns == 2 ? "%-40s%s" : "%s%s", row[0],
                columns == 2 ? row[1] : "");
            filled = 0;
        }
    }
    if (filled > 0) {
        add(self, CLI_TOP_PLAIN, "%s", row[0]);
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The sentence, or where there is no room for one the resource and its holder. */
static void
reason(const cli_look_request_t *request, bool is_wide, char out[CLI_LOOK_TEXT_SIZE_BYTES])
{
    const actor_look_row_t *row = &request->row;
    const char *resource = actor_look_wait_name(row->wait);
    if (is_wide || request->holder[0] == '\0') {
        (void)snprintf(out, CLI_LOOK_TEXT_SIZE_BYTES, "%s", request->why);
    } else if (row->wait == PROTO_WAIT_BLOCKS) {
        (void)snprintf(out, CLI_LOOK_TEXT_SIZE_BYTES, "%u blocks, %u free: %s", row->needed,
                       row->available, request->holder);
    } else {
        (void)snprintf(out, CLI_LOOK_TEXT_SIZE_BYTES, "%s: %s", resource, request->holder);
    }
}

static void
draw_requests(picture_t *self)
{
    const cli_look_requests_t *requests = self->view->requests;
    uint32_t skipped = 0;
    uint32_t name_width = self->view->width >= 110 ? 26 : 16;
    const char *trouble =
        self->view->node->scheduler_requests.status != STATUS_OK && requests->count > 0
            ? self->view->node->scheduler_requests.detail
            : "";
    add(self, CLI_TOP_TITLE, "%-*s %-9s %6s %-14s %s%s%s", (int)name_width, "REQUEST", "STATE",
        "AGE", "TOKENS", self->view->only_waiting ? "WAITS FOR (only what waits)" : "WAITS FOR",
        trouble[0] != '\0' ? "  " : "", trouble);
    for (uint32_t i = 0; i < requests->count; i++) {
        const cli_look_request_t *request = &requests->requests[i];
        bool waits = cli_look_waits(request);
        if ((self->view->only_waiting && !waits) || skipped < self->view->first_request) {
            skipped += self->view->only_waiting && !waits ? 0 : 1;
            continue;
        }
        char age[16], tokens[40];
        cli_look_duration(request->row.age_ms, age);
        (void)snprintf(tokens, sizeof tokens, "%u+%u/%u", request->row.prompt_tokens,
                       request->row.generated_tokens, request->row.generation_max);
        char why[CLI_LOOK_TEXT_SIZE_BYTES];
        reason(request, self->view->width >= 110, why);
        add(self, waits ? CLI_TOP_WARN : CLI_TOP_PLAIN, "%-*.*s %-9s %6s %-14s %s", (int)name_width,
            (int)name_width, request->row.name, actor_look_state_name(request->row.state), age,
            tokens, why);
    }
    if (requests->count == 0) {
        add(self, CLI_TOP_DIM, "none");
    }
}

uint32_t
cli_top_draw(const cli_top_view_t *view, cli_top_line_t *lines)
{
    uint32_t height =
        view->height != 0 && view->height < CLI_TOP_LINES_MAX ? view->height : CLI_TOP_LINES_MAX;
    bool has_keys = view->height != 0;
    picture_t self = {.view = view, .lines = lines, .count_max = has_keys ? height - 1 : height};
    draw_head(&self);
    draw_load(&self);
    add(&self, CLI_TOP_PLAIN, "%s", "");
    draw_actors(&self);
    add(&self, CLI_TOP_PLAIN, "%s", "");
    draw_links(&self);
    add(&self, CLI_TOP_PLAIN, "%s", "");
    draw_requests(&self);
    if (has_keys) {
        while (self.count < self.count_max) {
            add(&self, CLI_TOP_PLAIN, "%s", "");
        }
        self.count_max = height;
        add(&self, CLI_TOP_DIM, "q quit   w only what waits   p pause   j k scroll   %u requests",
            view->requests->total);
    }
    return self.count;
}
