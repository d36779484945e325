/* actor_http_choice.h - the text of one choice as its tokens come: characters held back until they
 * are whole, text held back while it may be the beginning of a stop string, log-probabilities kept
 * beside the text they belong to.  No socket, no core; the HTTP loop's thread.
 *
 * `text` grows with the answer.  What may be shown is [0, visible); what was shown is
 * [0, shown_bytes).  A stream drops the front as it shows it, so that its memory stays small. */
#ifndef ACTOR_HTTP_CHOICE_H
#define ACTOR_HTTP_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "actor_gateway_text.h"
#include "actor_http_params.h"
#include "actor_http_text.h"

/* What the model thought of one token. */
typedef struct {
    uint32_t end_bytes;   /* length of the answer's text with this token; grows along the list */
    uint32_t begin_bytes; /* and without it */
    uint32_t begin_chars; /* the same in characters */
    uint32_t entry_at;    /* its first entry in logprob_ids and logprob_values */
} actor_http_logprob_t;

typedef struct {
    const actor_gateway_text_t *tokenizer; /* lent */
    const actor_http_params_t *params;     /* lent: stops, stop ids */

    actor_http_text_t text; /* valid UTF-8, from `dropped_bytes` of the answer on */
    uint32_t dropped_bytes; /* taken off the front already */
    uint32_t visible_bytes; /* of `text`: no part of a stop string, no half character */
    uint8_t held_count;     /* bytes of an unfinished character */
    char held[4];

    uint32_t token_count; /* generated, as far as they count */
    uint32_t char_count;  /* characters of the answer; kept only for log-probabilities */
    bool stopped;         /* a stop string matched: nothing more is taken */
    uint32_t stop_index;  /* then: tokens [0, stop_index) count */

    uint32_t logprob_width;         /* entries a token */
    actor_http_logprob_t *logprobs; /* [logprob_capacity], owned; NULL if none were asked for */
    uint32_t logprob_count;
    uint32_t logprob_shown; /* entries already in a chunk */
    uint32_t logprob_capacity;
    int32_t *logprob_ids; /* [logprob_capacity][logprob_width], owned */
    float *logprob_values;
    bool failed; /* out of memory */
} actor_http_choice_t;

/* False without memory. */
MUST_CHECK bool actor_http_choice_init(actor_http_choice_t *self,
                                       const actor_gateway_text_t *tokenizer,
                                       const actor_http_params_t *params);
void actor_http_choice_fini(actor_http_choice_t *self);

/* Takes the next token; logprob_ids and _values have `width` entries, the token's own first.
 * Afterwards look at `stopped`. */
void actor_http_choice_push(actor_http_choice_t *self, int32_t token, uint32_t width,
                            const int32_t *logprob_ids, const float *logprob_values);

/* The end: what was held back becomes visible. */
void actor_http_choice_finish(actor_http_choice_t *self);

/* Text that is visible and was not taken yet: a stream shows it and then takes it. */
const char *actor_http_choice_visible(const actor_http_choice_t *self, size_t *size_bytes);
void actor_http_choice_take(actor_http_choice_t *self);

/* Log-probability records whose text is visible, from logprob_shown on. */
uint32_t actor_http_choice_logprobs_ready(const actor_http_choice_t *self);

#endif
