/* run_verify.h - what follows the logits of a forward: prefill requests sample, decode requests
 * verify, the recurrent states take what was accepted, lengths and next inputs move on.
 *
 * Launches only, the same whether they are recorded or run.  The device thread. */
#ifndef RUN_VERIFY_H
#define RUN_VERIFY_H

#include "run_forward_step.h"

/* The decode requests of a batch, and what comes before them in its arrays. */
typedef struct {
    const float *logits; /* [bs * width][vocabulary] */
    uint32_t bs;
    uint32_t extends;         /* in arrays by request */
    uint32_t sampled_extends; /* in the outputs */
    uint32_t extend_tokens;   /* in arrays by row */
} run_window_t;

/* Samples the `sampled` extends whose prompt is complete and commits all `extends`. */
void run_verify_extends(const run_forward_step_options_t *o, const float *logits, uint32_t extends,
                        uint32_t sampled);

/* Verifies and commits the decodes. */
void run_verify_decodes(const run_forward_step_options_t *o, const run_window_t *window);

/* After the forward, replayed or eager, and never within a capture: recurrent states of `bs` live
 * decode requests become those after what was accepted.  Nothing at width 1. */
void run_verify_commit_states(const run_forward_step_options_t *options, uint32_t bs,
                              uint32_t extends, uint32_t sampled_extends);

#endif
