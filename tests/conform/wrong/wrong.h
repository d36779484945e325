/* wrong.h - schedulers that break one rule each: the built-in core with a filter around it.
 *
 * A fault sees each input before the core and each message after it; it may change or drop both.
 * For tests of `onepath conform scheduler`, never for anything else. */
#ifndef WRONG_H
#define WRONG_H

#include "actor_core.h"
#include "actor_scheduler_core.h"

enum {
    WRONG_COLUMN_MAX = 8192,
    WRONG_KEPT_MAX = 4096,
};

/* What faults remember; each uses what it needs. */
typedef struct {
    actor_core_ops_t ops;
    actor_scheduler_core_t *inner;
    actor_outbox_t *inner_outbox;
    const struct wrong_fault *fault;
    uint32_t count; /* of what the fault counts */
    uint64_t last;
    uint32_t block; /* some request's */
    actor_peer_t gateways[4];
    uint32_t gateway_count;
    uint64_t seen[WRONG_KEPT_MAX]; /* requests */
    uint32_t seen_count;
    proto_finished_t finished; /* kept for later; its texts are not */
    bool has_tokens;           /* kept for later */
    uint64_t tokens_request;
    uint32_t tokens_index;
    int32_t tokens_value;
    uint8_t hashes[WRONG_KEPT_MAX][64]; /* the begin of page_hashes as they came */
    uint64_t hash_requests[WRONG_KEPT_MAX];
    uint32_t hash_count;
    /* Room for columns that are changed. */
    uint32_t u32[4][WRONG_COLUMN_MAX];
    uint64_t u64[WRONG_COLUMN_MAX];
    uint8_t u8[2][WRONG_COLUMN_MAX];
    int32_t i32[WRONG_COLUMN_MAX];
    uint8_t bytes[1 << 16];
} wrong_t;

/* One message of the inner core on its way out. */
typedef struct {
    actor_peer_t to;
    proto_kind_t kind;
    uint64_t request;
    proto_body_t body;
} wrong_message_t;

typedef struct wrong_fault {
    const char *name;
    /* Each returns false to drop the message; NULL: all pass. */
    bool (*input)(wrong_t *self, const actor_input_t *input, proto_body_t *body,
                  actor_outbox_t *outbox);
    bool (*output)(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox);
    /* After a step's messages are out; may be NULL. */
    void (*after)(wrong_t *self, actor_outbox_t *outbox);
} wrong_fault_t;

extern const wrong_fault_t wrong_faults[];
extern const uint32_t wrong_fault_count;

/* Sends a message as it is. */
void wrong_send(actor_outbox_t *outbox, const wrong_message_t *message);
/* Gives the inner core an input of our own making, from `from`. */
void wrong_feed(wrong_t *self, const actor_input_t *like, actor_peer_t from, proto_kind_t kind,
                const proto_body_t *body, actor_outbox_t *outbox);

#endif
