/* backend_gdn.h - the state backend of Gated DeltaNet layers: a convolution window and a recurrent
 * state for each request and layer, in blocks of one state group of the cache.
 *
 * A block is one checkpoint: with granularity bg the state after n tokens is in column (n - 1) / bg
 * of the request's table.  A forward over positions [b, e) reads column (b - 1) / bg, or nothing if
 * b is 0 (a fresh request's state is logically zero, and no stale byte is read), and writes column
 * (e - 1) / bg.  Only whole blocks of its own group are read by claim; other groups' tables ride
 * through untouched.
 *
 * Extends are staged: the input block's state goes to the output block, and the layers work there
 * in place.  A decode row goes from block to block.  Rows of a verification (N > 1) never write a
 * block: how many of them count is known after sampling, and backend_commit_speculative_state_
 * after_verify() brings the accepted state to its block, from a scratch of every row's state, or by
 * running the accepted rows again (ReplaySSM).  Both give the bits of one-by-one decoding. */
#ifndef BACKEND_GDN_H
#define BACKEND_GDN_H

#include "backend_base.h"

/* Forwards with live requests that may be enqueued and not yet run. */
enum { BACKEND_GDN_STEPS_IN_FLIGHT_MAX = 2 };

typedef struct {
    backend_options_t backend;
    uint32_t k_heads;
    uint32_t v_heads; /* a multiple of k_heads */
    uint32_t k_dim;
    uint32_t v_dim;
    uint32_t conv_width; /* taps */
    bool keeps_states;   /* verification keeps the state after every row; else the rows, which a
                          * commit runs again.  No matter at width 1 */
} backend_gdn_options_t;

/* The caller owns *out_p.  STATUS_ERR_NO_MEMORY. */
MUST_CHECK proto_status_t backend_gdn_new(const backend_gdn_options_t *options, backend_t **out_p);

/* Bytes of the verify workspace of so many recurrent layers. */
size_t backend_gdn_verify_size_bytes(const backend_gdn_options_t *options, uint32_t layer_count);

#endif
