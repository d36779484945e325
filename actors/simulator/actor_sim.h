/* actor_sim.h - the shipped cores of a node in one thread, on a simulated bus, clock and device.
 *
 * It owns every fake: links that delay, lose, double, reorder, corrupt and cut; processes that die,
 * freeze and come back with a higher epoch; a device whose next token is a hash of what its cache
 * really holds; clients that know every right answer.  The cores are the libraries that ship.  One
 * seed decides everything: the same seed and options give the same messages, byte for byte.
 *
 * It must never touch a socket, a real clock or a thread.  One world at a time in one thread:
 * a failed `require` of a core is caught (SIGABRT) and reported as a broken rule. */
#ifndef ACTOR_SIM_H
#define ACTOR_SIM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "proto_codec.h"
#include "proto_status.h"

/* What may go wrong; FAULT(NAME, text, harmful, meaning).  Harmful ones may end a request with an
 * error; the others must be invisible to clients, but for time. */
#define ACTOR_SIM_FAULT_LIST(FAULT)                                                                \
    FAULT(DELAY, "delay", 0, "messages take up to 50 ms longer, in order")                         \
    FAULT(LOSS, "loss", 1, "messages vanish")                                                      \
    FAULT(DUPLICATE, "duplicate", 0, "messages come twice")                                        \
    FAULT(REORDER, "reorder", 1, "messages come late or early")                                    \
    FAULT(CORRUPT, "corrupt", 1,                                                                   \
          "bytes of a message are cut or changed so that it does not decode")                      \
    FAULT(STALE, "stale", 1, "messages of an old incarnation turn up: the link begins anew")       \
    FAULT(PARTITION, "partition", 1, "a link is cut, in one or both directions")                   \
    FAULT(CRASH, "crash", 1, "an actor dies and comes back with a higher epoch")                   \
    FAULT(ZOMBIE, "zombie", 1, "its successor starts while an actor still runs")                   \
    FAULT(FREEZE, "freeze", 1, "an actor stands still for up to 3 s")                              \
    FAULT(SLOW, "slow", 0, "every input of an actor takes up to 0.4 ms")                           \
    FAULT(DEVICE, "device", 1, "steps take longer, rows give NaN, the device fails")               \
    FAULT(DISK, "disk", 0, "the recorder's disk is full")                                          \
    FAULT(ABORT, "abort", 0, "clients leave or stop")                                              \
    FAULT(BURST, "burst", 0, "many requests at once")                                              \
    FAULT(POOL, "pool", 0, "a cache so small that requests lose their blocks")                     \
    FAULT(REFUSE, "refuse", 1, "plans break a rule and are refused")                               \
    FAULT(CLOCK, "clock", 0, "clocks differ and jump ahead")                                       \
    FAULT(DRAIN, "drain", 1, "an actor is asked to end (SIGTERM) and is replaced")

typedef enum {
#define ACTOR_SIM_FAULT_INDEX(NAME, text, harmful, meaning) ACTOR_SIM_INDEX_##NAME,
    ACTOR_SIM_FAULT_LIST(ACTOR_SIM_FAULT_INDEX)
#undef ACTOR_SIM_FAULT_INDEX
        ACTOR_SIM_FAULT_COUNT,
} actor_sim_fault_index_t;

enum {
#define ACTOR_SIM_FAULT_BIT(NAME, text, harmful, meaning)                                          \
    ACTOR_SIM_##NAME = 1 << ACTOR_SIM_INDEX_##NAME,
    ACTOR_SIM_FAULT_LIST(ACTOR_SIM_FAULT_BIT)
#undef ACTOR_SIM_FAULT_BIT
        ACTOR_SIM_FAULTS_ALL = (1 << ACTOR_SIM_FAULT_COUNT) - 1,
};

typedef struct actor_sim actor_sim_t;

/* A zero means the value in the comment. */
typedef struct {
    uint32_t step_count;       /* inputs given to cores before the end begins: 2000 */
    uint32_t faults;           /* ACTOR_SIM_*: what a seed may choose from; 0 = none at all */
    bool every_fault;          /* a seed chooses all of them, not some */
    uint32_t request_count;    /* requests at most: as many as come */
    uint32_t check_interval;   /* inputs between two walks over all invariants: 4 */
    uint32_t restore_interval; /* inputs after which the core that was stepped last is replaced by
                                  one made of what it saves: never */
    const char *log_directory; /* exists; gets one segment for each incarnation: none */
    FILE *trace;               /* every delivered message, one line each: none */
} actor_sim_options_t;

typedef struct {
    bool failed;
    char rule[64];    /* which rule was broken */
    char detail[256]; /* the values */
    uint64_t seed;
    uint32_t faults;         /* what the seed chose */
    uint64_t step_count;     /* inputs given to cores */
    uint64_t virtual_ns;     /* how long it took in there */
    uint64_t digest;         /* of everything that was given and answered */
    uint64_t request_count;  /* given to gateways */
    uint64_t complete_count; /* that ended as asked: stop, length, or a stop of the client's */
    uint64_t error_count;    /* that ended with an error or a refusal */
    uint64_t broken_count;   /* whose gateway died */
    uint64_t token_count;    /* given to clients */
    uint64_t retraction_count;
    uint64_t refused_plan_count;
    uint64_t restart_count;
    uint64_t fault_count;          /* single faults that struck */
    uint64_t record_failure_count; /* records that the full disk refused */
    uint64_t resumed_count;        /* complete although an actor behind the gateway was replaced */
    uint32_t group_count;          /* of the executor's cache */
    uint32_t width;                /* of its decode rows */
    uint32_t overlap;              /* plans behind the running one */
    bool has_states;               /* its last group holds states */
} actor_sim_result_t;

/* STATUS_ERR_NO_MEMORY or STATUS_ERR_IO (log_directory).  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_sim_new(const actor_sim_options_t *options, actor_sim_t **out_p);
void actor_sim_destroy(actor_sim_t **self_p);

/* Runs one seed: faults, then everything healed, then silence.  A failure is in *out. */
void actor_sim_run(actor_sim_t *self, uint64_t seed, actor_sim_result_t *out);

/* The last inputs that were given to cores, oldest first; at most 30 lines. */
void actor_sim_print_events(const actor_sim_t *self, FILE *stream);

/* Bits of a list such as "loss,crash", "all", "none" or "all,-disk".  STATUS_ERR_INVALID for an
 * unknown word, which *word (lent, may be NULL) then points to. */
MUST_CHECK proto_status_t actor_sim_faults_parse(const char *list, uint32_t *out,
                                                 const char **word);
/* Writes the list of the bits; returns its length. */
size_t actor_sim_faults_print(uint32_t faults, char *out, size_t capacity_bytes);

#endif
