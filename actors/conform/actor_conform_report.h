/* actor_conform_report.h - what was checked, what held, what was broken and how.
 *
 * Owns counts and the first failure of each rule, in the order in which they were found.  Knows
 * nothing of links.  One thread. */
#ifndef ACTOR_CONFORM_REPORT_H
#define ACTOR_CONFORM_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "actor_conform_rules.h"
#include "proto_codec.h"

/* The message in which something was seen; zeros: none. */
typedef struct {
    const char *link;  /* "gateway", "executor"; a literal or NULL */
    proto_kind_t kind; /* of the message */
    uint64_t sequence; /* its number on the link */
    uint64_t request;  /* whom it concerns; 0 = nobody */
} conform_where_t;

typedef enum {
    CONFORM_NOT_TRIED = 0,
    CONFORM_PASS,
    CONFORM_FAIL,
} conform_verdict_t;

typedef struct {
    uint64_t held_count;   /* checks that held */
    uint64_t broken_count; /* checks that did not */
    uint32_t order;        /* of its first failure among all rules, from 1 */
    conform_where_t where; /* of the first failure */
    char scene[48];        /* in which it failed */
    char detail[320];      /* what was found, with the values */
    char expected[200];    /* what should have been */
    char skipped[160];     /* why it was not tried */
} conform_finding_t;

typedef struct {
    conform_finding_t findings[CONFORM_RULE_COUNT];
    uint32_t failed_count; /* rules */
    char scene[48];        /* in work */
    char ended[200];       /* why the run ended before its time; "" = it did not */
} conform_report_t;

/* A check that held. */
void actor_conform_held(conform_report_t *self, conform_rule_t rule);
/* A check that did not. */
void actor_conform_broke(conform_report_t *self, conform_rule_t rule, const conform_where_t *where,
                         const char *expected, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Why a rule could not be tried; the first reason stays. */
void actor_conform_skip(conform_report_t *self, conform_rule_t rule, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

conform_verdict_t actor_conform_verdict(const conform_report_t *self, conform_rule_t rule);
/* The rule that was broken first; CONFORM_RULE_COUNT if none was. */
conform_rule_t actor_conform_first(const conform_report_t *self);

typedef struct {
    const char *endpoint;
    uint64_t seed;
    uint64_t duration_ns;
    uint64_t plan_count;    /* plans that the scheduler made */
    uint64_t request_count; /* requests that it was given */
    bool verbose;           /* also the rules that hold */
} conform_run_t;

void actor_conform_print(const conform_report_t *self, const conform_run_t *run, FILE *stream);
void actor_conform_print_json(const conform_report_t *self, const conform_run_t *run, FILE *stream);
void actor_conform_print_rules(FILE *stream);

#endif
