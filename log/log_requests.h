/* log_requests.h - the lives of requests, as one actor of a log saw them.
 *
 * The observer is the gateway if the log has one, else the scheduler, else the executor.  Owns the
 * times of each request: 96 bytes each, at most LOG_REQUESTS_LEN_MAX; further ones are counted, not
 * followed.  One thread. */
#ifndef LOG_REQUESTS_H
#define LOG_REQUESTS_H

#include "log_message.h"
#include "log_set.h"

enum { LOG_REQUESTS_LEN_MAX = 1 << 20 };

/* Times are monotonic, of the actor that saw it; 0 = not seen. */
typedef struct {
    uint64_t request;
    uint64_t submit_ns;       /* SUBMIT */
    uint64_t admit_ns;        /* ADMIT, by whatever actor of the log */
    uint64_t first_tokens_ns; /* first TOKENS (STEP_RESULT is not per request) */
    uint64_t finished_ns;     /* FINISHED */
    uint64_t queue_ns;        /* as FINISHED says */
    uint32_t prompt_length;
    uint32_t cached_tokens;
    uint32_t generated_tokens;
    uint32_t token_messages;
    uint32_t submit_count; /* of this id; one that another scheduler gets has a new id */
    uint32_t reason;       /* proto_finish_reason_t */
    int32_t status;        /* of FINISHED */
} log_request_t;

typedef struct log_requests log_requests_t;

MUST_CHECK proto_status_t log_requests_new(const log_set_t *set, log_requests_t **out_p);
void log_requests_destroy(log_requests_t **self_p);

/* Takes one message into account.  STATUS_ERR_NO_MEMORY. */
MUST_CHECK proto_status_t log_requests_pass(log_requests_t *self, const log_set_item_t *item,
                                            const log_message_t *message);

uint32_t log_requests_count(const log_requests_t *self);
const log_request_t *log_requests_at(const log_requests_t *self, uint32_t index);
uint64_t log_requests_unfollowed(const log_requests_t *self);
/* "gateway", ... */
const char *log_requests_observer(const log_requests_t *self);

const char *log_finish_reason_name(uint32_t reason);

#endif
