/* actor_conform_gateway.h - a gateway that the tool plays: a core behind the real shell.
 *
 * It sends what it is told to and checks each message that comes back against the book.  It owns
 * its shell; book and report are lent.  One thread. */
#ifndef ACTOR_CONFORM_GATEWAY_H
#define ACTOR_CONFORM_GATEWAY_H

#include "actor_conform_book.h"
#include "actor_shell.h"

/* The last MODEL_INFO. */
typedef struct {
    char model_name[128];
    char fingerprint[128];
    uint32_t vocab_size;
    uint32_t model_len_max;
    uint32_t prompt_len_max;
    uint32_t slot_count;
    uint32_t queue_len_max;
    uint32_t prefix_granularity;
    uint8_t page_hash_key[PROTO_HASH_SIZE_BYTES];
} conform_model_info_t;

typedef struct {
    actor_core_ops_t ops;
    uint32_t index;
    conform_book_t *book;
    conform_report_t *report;
    actor_shell_t *shell; /* set by the stage */
    int ring_fd;          /* of its record; -1 = none */

    actor_peer_t scheduler;
    bool is_up;
    bool was_up;
    bool is_leaving; /* the tool ends the link: its loss is no fault */
    char down_detail[160];
    uint64_t scheduler_epoch;

    conform_model_info_t info;
    uint32_t info_count;
    uint32_t load_count;
} conform_gateway_t;

void actor_conform_gateway_init(conform_gateway_t *self, uint32_t index, conform_book_t *book,
                                conform_report_t *report);

/* Sends SUBMIT of a request; again for a duplicate. */
void actor_conform_submit(conform_gateway_t *self, conform_request_t *request, uint64_t now_ns);
/* Sends FINISH.  The book takes note of the first one of a request. */
void actor_conform_finish(conform_gateway_t *self, conform_request_t *request, uint32_t token_index,
                          proto_finish_reason_t reason);
/* Sends FINISH of a request that does not exist. */
void actor_conform_finish_unknown(conform_gateway_t *self, uint64_t id);

/* What must become of a request, for messages. */
void actor_conform_describe_end(const conform_request_t *request, char *out, size_t size_bytes);
/* The body of a SUBMIT; views into the request. */
void actor_conform_submit_body(const conform_request_t *request, proto_body_t *out);

#endif
