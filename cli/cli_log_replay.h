/* cli_log_replay.h - what `onepath log replay` and `onepath log bisect` share: how the core and the
 * log are chosen, and how a finding is told.  Main thread. */
#ifndef CLI_LOG_REPLAY_H
#define CLI_LOG_REPLAY_H

#include "actor_replay.h"
#include "cli_log.h"

enum { CLI_EXIT_DIED = 2 }; /* the core died, hung or broke the contract */

typedef struct {
    const char *actor;
    const char *epoch;
    const char *program;
    const char *until;
    const char *from;
    const char *break_kind;
    const char *speed;
    const char *device;
    const char *kernels;
    const char *tolerance;
    const char *good;
    const char *command;
    uint32_t answer_timeout_s;
    bool dump;
    bool digests;
    bool json;
} cli_replay_options_t;

/* Fills what is common; prints what is wrong.  STATUS_ERR_CONFIG then. */
MUST_CHECK proto_status_t cli_replay_fill(const char *command, const cli_replay_options_t *options,
                                          const cli_words_t *words, actor_replay_options_t *out);

/* A decimal or 0x number; prints what is wrong.  NULL text leaves *out. */
MUST_CHECK proto_status_t cli_replay_number(const char *command, const char *name, const char *text,
                                            uint64_t *out);

/* On stdout: where a replay diverged, or how the core died, and the command that stops just before
 * it. */
void cli_replay_print_finding(const actor_replay_options_t *options,
                              const actor_replay_report_t *report);
void cli_replay_print_input(const actor_replay_options_t *options, uint64_t sequence);
/* On stderr: gaps, and how the log ended. */
void cli_replay_print_gaps(const char *command, const actor_replay_report_t *report);
/* The report as one JSON object on stdout. */
void cli_replay_print_json(const actor_replay_options_t *options,
                           const actor_replay_report_t *report);

/* 0, 1, 2 or 78. */
int cli_replay_exit_code(actor_replay_outcome_t outcome);

/* Told on stderr while it runs: a line that is written over on a terminal, else one now and then.
 */
void cli_replay_progress(void *context, const actor_replay_report_t *report);

#endif
