/* cli_look.h - what `ps` and `top` show of a running node, put together from what its supervisor,
 * gateway and scheduler say.  Main thread. */
#ifndef CLI_LOOK_H
#define CLI_LOOK_H

#include <stdbool.h>
#include <stdio.h>

#include "actor_view.h"

enum {
    CLI_LOOK_ROWS_MAX = 4096, /* requests shown; the total is always told */
    CLI_LOOK_TEXT_SIZE_BYTES = 384,
};

/* One request, as the gateway and the scheduler together know it. */
typedef struct {
    actor_look_row_t row; /* the scheduler's where it has it, with the gateway's name and age */
    uint64_t holder_request;
    char holder[ACTOR_LOOK_NAME_SIZE_BYTES]; /* name of the holder; "" if it is no request */
    uint32_t holder_blocks;
    char why[CLI_LOOK_TEXT_SIZE_BYTES]; /* a sentence: the resource and its holder */
} cli_look_request_t;

typedef struct {
    cli_look_request_t *requests; /* [count], oldest first; owned */
    uint32_t count;
    uint32_t total;
} cli_look_requests_t;

/* Puts the requests of a node together.  STATUS_ERR_NO_MEMORY.  The caller owns *out. */
MUST_CHECK proto_status_t cli_look_merge(const actor_node_t *node, cli_look_requests_t *out);
void cli_look_fini(cli_look_requests_t *self);

/* True if something other than its own step holds it up. */
bool cli_look_waits(const cli_look_request_t *request);

/* Figures between two looks; NAN where there is none. */
typedef struct {
    double seconds;
    double prompt_tokens_per_s;
    double generation_tokens_per_s;
    double cpu_percent[PROTO_LOOK_ACTORS_MAX]; /* of one processor */
} cli_look_rates_t;

/* What a second look needs of the first. */
typedef struct {
    uint64_t at_ns; /* 0 = there was none */
    uint64_t prompt_tokens;
    uint64_t generation_tokens;
    uint32_t count;
    uint64_t epochs[PROTO_LOOK_ACTORS_MAX];
    uint64_t cpu_ns[PROTO_LOOK_ACTORS_MAX];
} cli_look_sample_t;

/* Figures since *sample, which becomes what `node` says. */
void cli_look_rates(cli_look_sample_t *sample, const actor_node_t *node, cli_look_rates_t *out);

/* One JSON document and a line feed.  `rates` may be NULL. */
MUST_CHECK proto_status_t cli_look_json(FILE *stream, const actor_node_t *node,
                                        const cli_look_requests_t *requests,
                                        const cli_look_rates_t *rates);

/* "3.2s", "4m10s", "2h05m", "3d04h". */
void cli_look_duration(uint64_t milliseconds, char out[16]);
/* "12.3M", "1.4G". */
void cli_look_size(uint64_t bytes, char out[16]);

#endif
