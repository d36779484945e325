/* actor_conform_book.h - every request that the scheduler under test was given, and what must come
 * of it.
 *
 * The model is a hash: each token follows from all tokens before it, so that the whole answer of a
 * request, and what each cache position must hold, is known when the request is made.  Shared by
 * the two sides that the scheduler is between: gateways check what they get, the executor computes
 * from it.  One thread. */
#ifndef ACTOR_CONFORM_BOOK_H
#define ACTOR_CONFORM_BOOK_H

#include <stdbool.h>

#include "actor_conform_report.h"

enum {
    CONFORM_VOCAB_SIZE = 1000,
    CONFORM_SAMPLING_SIZE_MAX = 256,
    CONFORM_LOGPROB_WIDTH = 3, /* with ask.logprobs */
};

/* What must become of a request, beside what its tokens say. */
typedef enum {
    CONFORM_EXPECT_GOOD = 0, /* LENGTH, or STOP if it comes to its stop token */
    CONFORM_EXPECT_REFUSED,  /* REFUSED with ask.code */
    CONFORM_EXPECT_ANY,      /* one end, whatever it is */
} conform_expect_t;

/* A request to make.  Zeros are good defaults but for the lengths. */
typedef struct {
    uint32_t gateway; /* who asks: 0 or 1 */
    uint32_t prompt_length;
    uint32_t generation_max;
    uint32_t emitted;
    int64_t priority;
    uint64_t queue_timeout_ns;
    uint64_t shared_seed;    /* the first shared_length tokens of the prompt follow from it */
    uint32_t shared_length;  /* the rest is the request's own */
    uint32_t stop_at;        /* 1 + index of the token that is a stop token; 0 = none */
    uint32_t nan_at;         /* 1 + index of the token whose row has a NaN; 0 = none */
    bool no_hashes;          /* no page hashes: takes no part in the prefix cache */
    bool logprobs;           /* rows carry log probabilities */
    conform_expect_t expect; /* how it must end */
    const char *code;        /* with CONFORM_EXPECT_REFUSED; a literal */
    conform_rule_t rule;     /* that is broken if it ends otherwise; 0 = end.length */
    uint32_t wrong_length;   /* of tokens, in place of the right one: an invalid SUBMIT */
    uint32_t wrong_hashes;   /* bytes of hashes too many */
} conform_ask_t;

/* What may have happened to a request that is none of its own doing. */
enum {
    CONFORM_EXCUSE_LOST = 1,    /* its executor went away: worker_lost */
    CONFORM_EXCUSE_FAULT = 2,   /* a result made no sense: executor_fault */
    CONFORM_EXCUSE_REFUSED = 4, /* its plan was refused: plan_refused */
    CONFORM_EXCUSE_GONE = 8,    /* its gateway left: no answer */
};

typedef struct {
    uint64_t id;
    conform_ask_t ask;
    int32_t *tokens;  /* [prompt_length + generation_max + 1]: prompt, then the whole answer */
    uint64_t *chains; /* same: what the cache must hold at each position */
    uint8_t *hashes;
    uint32_t hashes_size;
    uint8_t sampling[CONFORM_SAMPLING_SIZE_MAX];
    uint32_t sampling_size;

    /* The gateway's view. */
    uint32_t next_index;    /* of the token that must come next */
    uint32_t submit_count;  /* SUBMITs of it */
    uint32_t end_count;     /* FINISHEDs of it */
    bool is_short;          /* FINISHED counted tokens that had not come */
    bool is_finishing;      /* FINISH was sent */
    bool is_finished_twice; /* FINISH was sent again, or after its end */
    uint32_t finish_index;  /* of the first FINISH */
    uint32_t finish_reason;
    uint32_t excuses;
    uint64_t submit_ns;
    uint64_t end_ns;
    conform_where_t end_where;
    uint32_t end_reason;
    uint32_t end_generated;
    uint32_t end_retry_ms;
    char end_code[65];

    /* The executor's view. */
    uint32_t admit_count;   /* for the executor that is there now */
    bool had_nan;           /* a row of it gave a NaN */
    uint32_t refusal_count; /* plans with a row of it that were refused */
    uint32_t zombie_count;  /* plans with a row of it after its end */
    uint32_t row_count;     /* rows that were computed */
} conform_request_t;

typedef struct {
    conform_request_t *items;
    uint32_t count;
    uint32_t open_count; /* submitted and not ended */
    uint32_t first;      /* of this scene: ids grow, so older ones are not looked at */
    uint64_t id_base;
    uint64_t seed;
    uint32_t page_tokens; /* of the executor that hashes are made for */
    uint8_t page_key[PROTO_HASH_SIZE_BYTES];
} conform_book_t;

enum { CONFORM_REQUEST_COUNT_MAX = 16384 };

MUST_CHECK proto_status_t actor_conform_book_init(conform_book_t *self, uint64_t seed,
                                                  uint64_t id_base);
void actor_conform_book_fini(conform_book_t *self);

/* Makes a request with everything that must come of it; lent until the book's end.  NULL when the
 * book is full or memory is out. */
conform_request_t *actor_conform_book_add(conform_book_t *self, const conform_ask_t *ask);
/* The request is to be submitted once more, to whoever knows nothing of it: what came of its answer
 * is part of the prompt now. */
void actor_conform_book_resume(conform_book_t *self, conform_request_t *request);
/* NULL if there is none. */
conform_request_t *actor_conform_book_find(conform_book_t *self, uint64_t id);

/* Tokens that must come in all: up to the stop token, the NaN or generation_max. */
uint32_t actor_conform_answer_length(const conform_request_t *request);
/* The token with this index, which counts from 0 and includes `emitted`. */
int32_t actor_conform_answer_token(const conform_request_t *request, uint32_t index);

/* A number that follows from the seed and where it is used. */
uint64_t actor_conform_mix(uint64_t value);

#endif
