/* fake_scheduler.h - NOT the scheduler: a stand-in for tests of the gateway, which answers every
 * SUBMIT from a script over real ZeroMQ.  It plans nothing and knows no cache. */
#ifndef FAKE_SCHEDULER_H
#define FAKE_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto_codec.h"

#define FAKE_NEVER UINT32_MAX

typedef struct {
    const int32_t *tokens; /* what every request gets, up to its generation_max */
    uint32_t token_count;
    bool endless;          /* the tokens again and again */
    uint32_t per_step;     /* tokens in one TOKENS message; 0 = 1 */
    uint64_t step_ns;      /* between two of them */
    uint32_t hold_at;      /* gives this many, then waits for FINISH; FAKE_NEVER */
    uint32_t skip_at;      /* loses this token; FAKE_NEVER */
    int32_t refuse_status; /* not 0: every SUBMIT is refused */
    const char *refuse_code;
    bool no_executor;       /* MODEL_INFO says that there are no slots */
    uint32_t model_len_max; /* 0 = 4096 */
} fake_script_t;

typedef struct fake_scheduler fake_scheduler_t;

/* A process of its own, bound to `endpoint`; call before this one has a second thread. */
fake_scheduler_t *fake_scheduler_start(const char *endpoint, const fake_script_t *script);
/* Kills it without a word, as a crash would. */
void fake_scheduler_kill(fake_scheduler_t *self);
void fake_scheduler_stop(fake_scheduler_t **self_p);

/* What came so far; copies. */
typedef struct {
    uint32_t submit_count;
    uint32_t finish_count;
    uint32_t open_count;
    proto_finish_t last_finish;
    uint64_t last_finish_ns;
    uint32_t last_prompt_length;
    uint32_t last_generation_max;
    uint32_t last_page_count;
    uint8_t last_page[PROTO_HASH_SIZE_BYTES]; /* hash of its first page */
    int64_t last_priority;
    proto_sampling_t last_sampling; /* without its lists */
    uint64_t seeds[32];             /* of the first submits */
} fake_seen_t;

fake_seen_t fake_scheduler_seen(fake_scheduler_t *self);

#endif
