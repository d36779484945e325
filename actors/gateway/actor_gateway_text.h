/* actor_gateway_text.h - what the gateway needs of a tokenizer and a chat template, as one table of
 * functions: the checkpoint's own, or a test's.
 *
 * All functions are called from two threads at once, the HTTP loop (lane 0) and the worker (lane
 * 1); an implementation keeps what a call needs to work in a scratch for each lane. */
#ifndef ACTOR_GATEWAY_TEXT_H
#define ACTOR_GATEWAY_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_status.h"

enum {
    ACTOR_TEXT_LANE_COUNT = 2,
    ACTOR_TEXT_ERROR_SIZE_BYTES = 512,
    ACTOR_TEXT_STOP_ID_COUNT_MAX = 16,
};

typedef struct {
    const char *role;
    size_t role_size_bytes;
    const char *content;
    size_t content_size_bytes;
} actor_text_message_t;

typedef struct {
    const char *text;
    size_t size_bytes;
    bool parse_special; /* special tokens in the text become their ids */
    bool add_special;   /* add what the tokenizer puts around a text */
    int32_t *ids;       /* out: [id_count_max] */
    size_t id_count_max;
} actor_text_encode_t;

typedef struct {
    void *context;
    const char *model_name;
    uint32_t vocab_size;
    uint32_t context_len; /* the checkpoint's own; the scheduler's limit goes first */
    uint32_t stop_id_count;
    int32_t stop_ids[ACTOR_TEXT_STOP_ID_COUNT_MAX]; /* end of text, end of turn */
    bool chat_adds_special;                         /* rendered chats still need add_special */
    const char *chat_missing;                       /* NULL, or why there is no chat template */

    /* STATUS_ERR_TOO_LARGE: more than id_count_max ids; STATUS_ERR_INVALID: not UTF-8. */
    proto_status_t (*encode)(void *context, uint32_t lane, const actor_text_encode_t *call,
                             size_t *id_count);

    /* The bytes of a token, lent for ever.  STATUS_ERR_NOT_FOUND: no such token. */
    proto_status_t (*token_bytes)(void *context, int32_t id, const char **bytes,
                                  size_t *size_bytes);
    bool (*is_special)(void *context, int32_t id);

    /* Writes the rendered messages.  STATUS_ERR_INVALID: refused, `error` says why. */
    proto_status_t (*render)(void *context, const actor_text_message_t *messages, size_t count,
                             bool add_generation_prompt, char *out, size_t capacity_bytes,
                             size_t *size_bytes, char *error);
} actor_gateway_text_t;

typedef struct actor_gateway_checkpoint actor_gateway_checkpoint_t; /* opaque */

/* Opens the tokenizer and template of the checkpoint at `model_path` (docs/models.md).  A template
 * that is not known is an error if `chat_template` names one; else chat requests are refused with
 * the reason.  `error` holds ACTOR_TEXT_ERROR_SIZE_BYTES.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_gateway_checkpoint_open(const char *model_path,
                                                        const char *chat_template, char *error,
                                                        actor_gateway_checkpoint_t **out_p);
void actor_gateway_checkpoint_close(actor_gateway_checkpoint_t **self_p);
/* Lent until the checkpoint is closed. */
const actor_gateway_text_t *actor_gateway_checkpoint_text(const actor_gateway_checkpoint_t *self);

#endif
