/* save_node.h - a scheduler's and an executor's core with everything around them played: gateways,
 * device, links.
 *
 * Each core has a twin: a core restored from its snapshot, at random moments.  Both get the same
 * inputs, and everything that comes out (messages, digest, deadline, figures, the next snapshot) is
 * compared.  One seed decides everything. */
#ifndef SAVE_NODE_H
#define SAVE_NODE_H

#include "actor_executor_core.h"
#include "actor_scheduler_core.h"

enum {
    NODE_EXECUTOR = 7,  /* the scheduler's peer */
    NODE_SCHEDULER = 3, /* the executor's peer */
    NODE_GATEWAYS = 2,  /* the scheduler's peers 1, 2 */
    NODE_REQUESTS_MAX = 96,
    NODE_PAGE = 4,
    NODE_VOCAB = 500,
};

/* Bytes of a snapshot; both parts owned. */
typedef struct {
    uint8_t *state;
    uint8_t *secret;
    size_t state_size;
    size_t secret_size;
} node_snapshot_t;

/* A message on its way; the bytes are owned, the blob is aligned. */
typedef struct {
    proto_kind_t kind;
    uint64_t request;
    uint8_t *body;
    uint8_t *blob;
    size_t body_size;
    size_t blob_size;
} node_message_t;

enum { NODE_QUEUE_MAX = 512 };

typedef struct {
    node_message_t items[NODE_QUEUE_MAX];
    uint32_t count;
} node_queue_t;

typedef struct {
    uint64_t state;
} node_random_t;

typedef struct {
    const char *name;
    const actor_core_ops_t *ops;
    void *core;
    void *twin;    /* NULL: none */
    bool redacted; /* the twin was made without the secret part */
    actor_outbox_t *outbox;
    actor_outbox_t *twin_outbox;
    uint64_t sequence;
    node_queue_t inbox; /* from the other actor */
} node_actor_t;

typedef struct {
    uint64_t owner_epoch; /* of its gateway; 0 = never submitted */
    uint32_t gateway;     /* 1..NODE_GATEWAYS */
    uint32_t received;
    uint32_t ends;
} node_request_t;

typedef struct {
    node_random_t random;
    uint64_t now_ns;
    node_actor_t scheduler;
    node_actor_t executor;
    node_queue_t device; /* commands that it has not carried out */
    node_request_t requests[NODE_REQUESTS_MAX];
    uint32_t request_count;
    uint64_t epoch;                             /* the newest that was given out */
    uint64_t gateway_epochs[NODE_GATEWAYS + 1]; /* 0 = down */
    uint64_t scheduler_epoch;
    uint64_t executor_epoch;
    uint32_t refused_plans;
    uint32_t complaints;
    uint32_t restored; /* twins made */
    uint64_t trace;    /* digest of everything that the two cores said */
} node_t;

typedef struct {
    bool alone;              /* no twins */
    bool redact;             /* twins are made of redacted snapshots */
    bool sliding;            /* the device has a sliding group too */
    bool separate_gpu;       /* steps do not overlap */
    uint32_t damage_percent; /* of the plans that reach the executor damaged */
    uint32_t fault_permille; /* of the results that reach the scheduler naming another step */
} node_options_t;

uint32_t node_draw(node_t *self, uint32_t below);

void node_open(node_t *self, uint64_t seed, const node_options_t *options);
void node_close(node_t *self);
/* One random event. */
void node_step(node_t *self, const node_options_t *options);
/* Both are told to drain, then the device fails: the states at the end of a life have snapshots. */
void node_end(node_t *self, const node_options_t *options);
/* No faults any more: until nothing is left to do; every request of a living gateway ends. */
void node_settle(node_t *self, const node_options_t *options);

void node_save(const node_actor_t *actor, const void *core, node_snapshot_t *out);
void node_snapshot_free(node_snapshot_t *snapshot);
/* Saves, restores into a new twin, compares the two snapshots. */
void node_twin(node_t *self, node_actor_t *actor, bool redact);
/* Gives a core, of the same kind as the actor's, inputs that need no answer: time, a step's end,
 * a plan, links that break and come.  What it says is thrown away. */
void node_drive(const node_actor_t *actor, void *core);

#endif
