#include "actor_conform_report.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "actor_log.h"
#include "proto_require.h"

void
actor_conform_held(conform_report_t *self, conform_rule_t rule)
{
    require(rule < CONFORM_RULE_COUNT);
    self->findings[rule].held_count++;
}

void
actor_conform_broke(conform_report_t *self, conform_rule_t rule, const conform_where_t *where,
                    const char *expected, const char *format, ...)
{
    require(rule < CONFORM_RULE_COUNT);
    conform_finding_t *finding = &self->findings[rule];
    if (finding->broken_count++ > 0) {
        return;
    }
    finding->order = ++self->failed_count;
    finding->where = where != NULL ? *where : (conform_where_t){0};
    (void)snprintf(finding->scene, sizeof finding->scene, "%s", self->scene);
    (void)snprintf(finding->expected, sizeof finding->expected, "%s", expected);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(finding->detail, sizeof finding->detail, format, arguments);
    va_end(arguments);
}

void
actor_conform_skip(conform_report_t *self, conform_rule_t rule, const char *format, ...)
{
    require(rule < CONFORM_RULE_COUNT);
    conform_finding_t *finding = &self->findings[rule];
    if (finding->skipped[0] != '\0') {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(finding->skipped, sizeof finding->skipped, format, arguments);
    va_end(arguments);
}

conform_verdict_t
actor_conform_verdict(const conform_report_t *self, conform_rule_t rule)
{
    const conform_finding_t *finding = &self->findings[rule];
    if (finding->broken_count > 0) {
        return CONFORM_FAIL;
    }
    return finding->held_count > 0 ? CONFORM_PASS : CONFORM_NOT_TRIED;
}

conform_rule_t
actor_conform_first(const conform_report_t *self)
{
    for (uint32_t rule = 0; rule < CONFORM_RULE_COUNT; rule++) {
        if (self->findings[rule].order == 1) {
            return (conform_rule_t)rule;
        }
    }
    return CONFORM_RULE_COUNT;
}

static const char *
why_not(const conform_report_t *self, uint32_t rule)
{
    if (self->findings[rule].skipped[0] != '\0') {
        return self->findings[rule].skipped;
    }
    return self->ended[0] != '\0' ? self->ended : "it did nothing that this rule is about";
}

/* The file and heading of a section in the list. */
static void
split_section(const char *section, const char **file, const char **heading)
{
    *file = section[0] == 'P' ? "docs/protocol.md" : "docs/scheduler-protocol.md";
    *heading = section + 3;
}

/* ---- for people ------------------------------------------------------------------------------ */

static void
print_failure(const conform_report_t *self, uint32_t rule, FILE *stream)
{
    const conform_finding_t *finding = &self->findings[rule];
    const conform_rule_text_t *text = actor_conform_rule((conform_rule_t)rule);
    const char *file = NULL;
    const char *heading = NULL;
    split_section(text->section, &file, &heading);
    fprintf(stream, "FAIL  %s\n      %s (%s, %s)\n", text->name, text->text, file, heading);
    fprintf(stream, "      found:    %s\n      expected: %s\n      in:       scene %s",
            finding->detail, finding->expected, finding->scene);
    if (finding->where.link != NULL) {
        fprintf(stream, ", %s %" PRIu64 " on the %s's link", proto_kind_name(finding->where.kind),
                finding->where.sequence, finding->where.link);
    }
    if (finding->where.request != 0) {
        fprintf(stream, ", request %" PRIu64, finding->where.request);
    }
    if (finding->broken_count > 1) {
        fprintf(stream, " (and %" PRIu64 " times more)", finding->broken_count - 1);
    }
    fprintf(stream, "\n\n");
}

/* Rules in the order in which they were broken: what comes later is often a consequence. */
static void
print_failures(const conform_report_t *self, FILE *stream)
{
    for (uint32_t order = 1; order <= self->failed_count; order++) {
        for (uint32_t rule = 0; rule < CONFORM_RULE_COUNT; rule++) {
            if (self->findings[rule].order == order) {
                print_failure(self, rule, stream);
            }
        }
    }
}

static void
count_verdicts(const conform_report_t *self, uint32_t counts[3])
{
    memset(counts, 0, 3 * sizeof *counts);
    for (uint32_t rule = 0; rule < CONFORM_RULE_COUNT; rule++) {
        counts[actor_conform_verdict(self, (conform_rule_t)rule)]++;
    }
}

void
actor_conform_print(const conform_report_t *self, const conform_run_t *run, FILE *stream)
{
    uint32_t counts[3];
    count_verdicts(self, counts);
    print_failures(self, stream);
    for (uint32_t rule = 0; rule < CONFORM_RULE_COUNT; rule++) {
        const conform_finding_t *finding = &self->findings[rule];
        const char *name = actor_conform_rule((conform_rule_t)rule)->name;
        conform_verdict_t verdict = actor_conform_verdict(self, (conform_rule_t)rule);
        bool ended = self->ended[0] != '\0' && finding->skipped[0] == '\0';
        if (verdict == CONFORM_NOT_TRIED && ended && !run->verbose) {
            continue; /* one reason for all of them, said below */
        }
        if (verdict == CONFORM_NOT_TRIED) {
            fprintf(stream, "not tried  %-22s %s\n", name, why_not(self, rule));
        } else if (verdict == CONFORM_PASS && run->verbose) {
            fprintf(stream, "pass       %-22s %" PRIu64 " checks\n", name, finding->held_count);
        }
    }
    fprintf(stream,
            "%s: %u rules hold, %u broken, %u not tried; %" PRIu64 " requests, %" PRIu64
            " plans, %.1f s, seed %" PRIu64 "\n",
            run->endpoint, counts[CONFORM_PASS], counts[CONFORM_FAIL], counts[CONFORM_NOT_TRIED],
            run->request_count, run->plan_count, (double)run->duration_ns / 1e9, run->seed);
    if (self->ended[0] != '\0') {
        fprintf(stream, "the run ended early: %s\n", self->ended);
    }
    fprintf(stream, "%s\n",
            self->failed_count == 0 && self->ended[0] == '\0' ? "conforms" : "does not conform");
}

void
actor_conform_print_rules(FILE *stream)
{
    for (uint32_t rule = 0; rule < CONFORM_RULE_COUNT; rule++) {
        const conform_rule_text_t *text = actor_conform_rule((conform_rule_t)rule);
        const char *file = NULL;
        const char *heading = NULL;
        split_section(text->section, &file, &heading);
        fprintf(stream, "%-22s %s\n%-22s   (%s, %s)\n", text->name, text->text, "", file, heading);
    }
}

/* ---- for programs ---------------------------------------------------------------------------- */

static void
print_text(FILE *stream, const char *name, const char *value)
{
    char text[1024];
    (void)actor_log_escape(proto_text(value), text, sizeof text);
    fprintf(stream, "\"%s\":\"%s\"", name, text);
}

static void
print_rule_json(const conform_report_t *self, uint32_t rule, FILE *stream)
{
    static const char *const verdicts[] = {"not tried", "pass", "fail"};
    const conform_finding_t *finding = &self->findings[rule];
    const conform_rule_text_t *text = actor_conform_rule((conform_rule_t)rule);
    conform_verdict_t verdict = actor_conform_verdict(self, (conform_rule_t)rule);
    const char *file = NULL;
    const char *heading = NULL;
    split_section(text->section, &file, &heading);
    fprintf(stream, "{\"rule\":\"%s\",\"verdict\":\"%s\",\"held\":%" PRIu64 ",\"broken\":%" PRIu64,
            text->name, verdicts[verdict], finding->held_count, finding->broken_count);
    fprintf(stream, ",\"file\":\"%s\",", file);
    print_text(stream, "section", heading);
    fprintf(stream, ",");
    print_text(stream, "text", text->text);
    if (verdict == CONFORM_FAIL) {
        fprintf(stream, ",\"order\":%u,", finding->order);
        print_text(stream, "scene", finding->scene);
        fprintf(stream, ",");
        print_text(stream, "found", finding->detail);
        fprintf(stream, ",");
        print_text(stream, "expected", finding->expected);
        if (finding->where.link != NULL) {
            fprintf(stream, ",\"link\":\"%s\",\"message\":\"%s\",\"sequence\":%" PRIu64,
                    finding->where.link, proto_kind_name(finding->where.kind),
                    finding->where.sequence);
        }
        fprintf(stream, ",\"request\":%" PRIu64, finding->where.request);
    } else if (verdict == CONFORM_NOT_TRIED) {
        fprintf(stream, ",");
        print_text(stream, "why", why_not(self, rule));
    }
    fprintf(stream, "}");
}

void
actor_conform_print_json(const conform_report_t *self, const conform_run_t *run, FILE *stream)
{
    uint32_t counts[3];
    count_verdicts(self, counts);
    conform_rule_t first = actor_conform_first(self);
    fprintf(stream, "{");
    print_text(stream, "endpoint", run->endpoint);
    fprintf(stream, ",\"conforms\":%s,",
            self->failed_count == 0 && self->ended[0] == '\0' ? "true" : "false");
    print_text(stream, "first_broken",
               first < CONFORM_RULE_COUNT ? actor_conform_rule(first)->name : "");
    fprintf(stream, ",");
    print_text(stream, "ended_early", self->ended);
    fprintf(stream,
            ",\"pass\":%u,\"fail\":%u,\"not_tried\":%u,\"seed\":%" PRIu64 ",\"requests\":%" PRIu64
            ",\"plans\":%" PRIu64 ",\"seconds\":%.3f,\"rules\":[",
            counts[CONFORM_PASS], counts[CONFORM_FAIL], counts[CONFORM_NOT_TRIED], run->seed,
            run->request_count, run->plan_count, (double)run->duration_ns / 1e9);
    for (uint32_t rule = 0; rule < CONFORM_RULE_COUNT; rule++) {
        fprintf(stream, "%s\n", rule > 0 ? "," : "");
        print_rule_json(self, rule, stream);
    }
    fprintf(stream, "]}\n");
}
