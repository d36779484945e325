/* actor_decode_role_state.h - the insides of the decode-role's core, shared by its own files only.
 *
 * actor_decode_role_core.c      making, the step, links
 * actor_decode_role_request.c   requests: what gateways and the scheduler say of them
 * actor_decode_role_transfer.c  transfers: reservation, offer, lease, landing, closing */
#ifndef ACTOR_DECODE_ROLE_STATE_H
#define ACTOR_DECODE_ROLE_STATE_H

#include "actor_decode_role_core.h"
#include "actor_scheduler_store.h"
#include "proto_require.h"

#define DECODE_ROLE_NONE UINT32_MAX /* an enumerator is an int */

enum {
    DECODE_ROLE_ATTEMPTS_MAX = 2, /* transfers of one request */
    DECODE_ROLE_LOGPROBS_MAX = PROTO_LOGPROBS_MAX + 1,
    DECODE_ROLE_RETRY_AFTER_MS = 1000,
};

typedef enum {
    DECODE_ROLE_REQUEST_FREE = 0,
    DECODE_ROLE_REQUEST_MOVING, /* its transfer is in work */
    DECODE_ROLE_REQUEST_ACTIVE, /* the scheduler has it */
} decode_role_request_state_t;

typedef struct {
    uint64_t request;
    uint64_t timeout_ns; /* as submitted */
    int64_t priority;
    uint32_t gateway;  /* peer */
    uint32_t transfer; /* index, while MOVING */
    uint32_t prompt_length;
    uint32_t generation_max;
    uint32_t emitted;
    uint32_t attempt_count;
    uint32_t cached_tokens; /* at the prefill node */
    uint64_t queue_ns;      /* there */
    actor_scheduler_parcel_t parcel;
    uint8_t state;
    bool is_remote; /* ACTIVE: its prefill was done elsewhere */
} decode_role_request_t;

typedef enum {
    DECODE_ROLE_TRANSFER_FREE = 0,
    DECODE_ROLE_TRANSFER_RESERVING, /* RESERVE is out */
    DECODE_ROLE_TRANSFER_OFFERED,   /* the offer is out */
    DECODE_ROLE_TRANSFER_RUNNING,   /* its answer came; PREFILLED and TRANSFER_DONE are awaited */
    DECODE_ROLE_TRANSFER_CLOSING,   /* TRANSFER_CLOSED and RETURNED are awaited */
} decode_role_transfer_state_t;

typedef struct {
    uint64_t key;
    uint64_t deadline_ns; /* UINT64_MAX = none */
    uint32_t request;     /* index; NONE when it goes on without this transfer */
    uint32_t peer;        /* prefill-role; ACTOR_PEER_NONE: none, or gone */
    uint8_t state;
    bool is_offered;      /* the peer may know it */
    bool is_prefilled;    /* the first token is here */
    bool is_landed;       /* the cache is here */
    bool awaits_closed;   /* CLOSING: of the peer */
    bool awaits_returned; /* CLOSING: of the scheduler */
    uint32_t row_flags;
    int32_t token;
    uint32_t logprob_width;
    int32_t logprob_ids[DECODE_ROLE_LOGPROBS_MAX];
    float logprob_values[DECODE_ROLE_LOGPROBS_MAX];
} decode_role_transfer_t;

typedef struct {
    proto_role_t role;
    uint64_t epoch;
    bool can_serve;          /* a prefill-role with a model like ours */
    uint32_t transfer_count; /* open at it */
    char name[PROTO_NAME_SIZE_BYTES];
} decode_role_peer_t;

struct actor_decode_role_core {
    actor_core_ops_t ops;
    actor_decode_role_options_t options;
    decode_role_peer_t peers[ACTOR_PEER_COUNT_MAX];
    actor_peer_t scheduler;
    actor_peer_t kv_transfer;
    bool has_model;
    bool is_draining;
    bool told_model; /* the last MODEL_INFO to gateways had an executor */
    proto_model_info_t model;
    char model_name[PROTO_TEXT_LEN_MAX];
    char fingerprint[PROTO_TEXT_LEN_MAX];
    uint8_t page_hash_key[PROTO_HASH_SIZE_BYTES];

    decode_role_request_t *requests; /* [request_count_max] */
    uint32_t request_count;
    decode_role_transfer_t *transfers; /* [transfer_max]: twice as many */
    uint32_t transfer_max;
    uint32_t transfer_count;
    uint64_t key_base;
    uint64_t key_count;
    uint32_t last_peer; /* whom the last offer went to */
    uint64_t renew_next_ns;
    actor_scheduler_store_t *store;
    uint64_t *keys;  /* [transfer_max] room for a LEASE_RENEW */
    int32_t *tokens; /* [PROTO_TOKENS_MAX] room for an ACTIVATE */

    uint64_t ignored_count;
    uint64_t local_count;
    uint64_t failed_count;
    uint64_t digest;
};

static inline void
decode_role_fold(actor_decode_role_core_t *self, uint64_t value)
{
    uint64_t x = (self->digest ^ value) * 0x9e3779b97f4a7c15u;
    self->digest = x ^ (x >> 29);
}

/* Why a request or a transfer does not go on. */
typedef struct {
    proto_finish_reason_t reason;
    proto_status_t status;
    proto_text_t code;
    proto_text_t detail;
    uint32_t retry_after_ms;
} decode_role_failure_t;

static inline decode_role_failure_t
decode_role_lost(const char *code, const char *detail)
{
    return (decode_role_failure_t){.reason = PROTO_FINISH_ERROR,
                                   .status = STATUS_ERR_PEER_LOST,
                                   .code = proto_text(code),
                                   .detail = proto_text(detail),
                                   .retry_after_ms = DECODE_ROLE_RETRY_AFTER_MS};
}

/* ---- actor_decode_role_request.c ------------------------------------------------------------- */

void actor_decode_role_on_submit(actor_decode_role_core_t *self, const actor_input_t *input,
                                 actor_outbox_t *outbox);
void actor_decode_role_on_finish(actor_decode_role_core_t *self, const actor_input_t *input,
                                 actor_outbox_t *outbox);
void actor_decode_role_on_tokens(actor_decode_role_core_t *self, const actor_input_t *input,
                                 actor_outbox_t *outbox);
void actor_decode_role_on_finished(actor_decode_role_core_t *self, const actor_input_t *input,
                                   actor_outbox_t *outbox);
/* Begins a transfer, or the prefill here. */
void actor_decode_role_begin(actor_decode_role_core_t *self, uint64_t now_ns,
                             decode_role_request_t *request, actor_outbox_t *outbox);
/* Its transfer failed before it had a token: once more, or its end. */
void actor_decode_role_try_again(actor_decode_role_core_t *self, uint64_t now_ns,
                                 decode_role_request_t *request,
                                 const decode_role_failure_t *failure, actor_outbox_t *outbox);
/* The first token and the cache are here. */
void actor_decode_role_go_on(actor_decode_role_core_t *self, decode_role_request_t *request,
                             const decode_role_transfer_t *transfer, actor_outbox_t *outbox);
void actor_decode_role_end(actor_decode_role_core_t *self, decode_role_request_t *request,
                           const proto_finished_t *finished, actor_outbox_t *outbox);
void actor_decode_role_end_with(actor_decode_role_core_t *self, decode_role_request_t *request,
                                const decode_role_failure_t *failure, actor_outbox_t *outbox);
/* Forgets it without a word. */
void actor_decode_role_forget(actor_decode_role_core_t *self, decode_role_request_t *request);

/* ---- actor_decode_role_transfer.c ------------------------------------------------------------ */

/* False if no prefill node can serve now, or every transfer is taken. */
bool actor_decode_role_transfer_begin(actor_decode_role_core_t *self, uint64_t now_ns,
                                      decode_role_request_t *request, actor_outbox_t *outbox);
/* Ends its part in the request and gives everything of it back. */
void actor_decode_role_transfer_close(actor_decode_role_core_t *self,
                                      decode_role_transfer_t *transfer, uint64_t now_ns,
                                      proto_status_t status, bool keeps_blocks,
                                      actor_outbox_t *outbox);
void actor_decode_role_on_reserved(actor_decode_role_core_t *self, const actor_input_t *input,
                                   actor_outbox_t *outbox);
void actor_decode_role_on_returned(actor_decode_role_core_t *self, const actor_input_t *input);
void actor_decode_role_on_taken(actor_decode_role_core_t *self, const actor_input_t *input);
void actor_decode_role_on_prefilled(actor_decode_role_core_t *self, const actor_input_t *input,
                                    actor_outbox_t *outbox);
void actor_decode_role_on_failed(actor_decode_role_core_t *self, const actor_input_t *input,
                                 actor_outbox_t *outbox);
void actor_decode_role_on_closed(actor_decode_role_core_t *self, const actor_input_t *input);
void actor_decode_role_on_done(actor_decode_role_core_t *self, const actor_input_t *input,
                               actor_outbox_t *outbox);
/* What a peer, or the node's own part, took with it when it went. */
void actor_decode_role_lose_prefill(actor_decode_role_core_t *self, uint64_t now_ns, uint32_t peer,
                                    actor_outbox_t *outbox);
void actor_decode_role_lose_kv_transfer(actor_decode_role_core_t *self, uint64_t now_ns,
                                        actor_outbox_t *outbox);
void actor_decode_role_lose_executor(actor_decode_role_core_t *self, uint64_t now_ns,
                                     actor_outbox_t *outbox);
void actor_decode_role_transfer_timer(actor_decode_role_core_t *self, uint64_t now_ns,
                                      actor_outbox_t *outbox);
uint64_t actor_decode_role_transfer_deadline(const actor_decode_role_core_t *self);
bool actor_decode_role_has_prefill(const actor_decode_role_core_t *self);

#endif
