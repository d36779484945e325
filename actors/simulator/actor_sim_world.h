/* actor_sim_world.h - the simulated node: its state, and the strings by which a run or a test pulls
 * it.  The seeds of actor_sim_run() and the fault matrix of the tests drive the same world.
 *
 * Members are the places of a node (scheduler, executor, gateways); an actor is one incarnation of
 * a member, with a core of its own.  A connection joins two actors, as one socket would.
 *
 *   actor_sim_world.c    making, the loop                  actor_sim_actor.c   what a shell does
 *   actor_sim_bus.c      links and messages                actor_sim_tamper.c  what happens to them
 *   actor_sim_client.c   clients and right answers         actor_sim_record.c  the log
 *   actor_sim_fault.c    which faults strike when          actor_sim.c         a run, its report
 * Long because it is the one picture of the world's state. */
#ifndef ACTOR_SIM_WORLD_H
#define ACTOR_SIM_WORLD_H

#include <setjmp.h>

#include "actor_core.h"
#include "actor_executor_core.h"
#include "actor_gateway_core.h"
#include "actor_restart.h"
#include "actor_scheduler_core.h"
#include "actor_sim.h"
#include "actor_sim_device.h"
#include "actor_sim_queue.h"
#include "actor_sim_random.h"
#include "proto_log.h"

enum {
    ACTOR_SIM_MEMBER_SCHEDULER = 0,
    ACTOR_SIM_MEMBER_EXECUTOR = 1,
    ACTOR_SIM_MEMBER_GATEWAY = 2, /* and the one behind it */
    ACTOR_SIM_MEMBER_COUNT_MAX = 4,
    ACTOR_SIM_ACTOR_COUNT_MAX = 12, /* members and zombies */
    ACTOR_SIM_PEER_COUNT_MAX = 24,  /* of one actor, those that are being reported down included */
    ACTOR_SIM_CONNECTION_COUNT_MAX = 64,
    ACTOR_SIM_QUEUE_LEN_MAX = 256, /* messages on their way in one direction */
    ACTOR_SIM_EVENTS_KEPT = 30,
    ACTOR_SIM_CLIENT_COUNT_MAX = 2048,
};

#define ACTOR_SIM_NONE UINT32_MAX /* no actor, no connection, no client */
#define ACTOR_SIM_MS UINT64_C(1000000)
#define ACTOR_SIM_HEARTBEAT_NS (250 * ACTOR_SIM_MS)
#define ACTOR_SIM_SILENCE_NS (4 * ACTOR_SIM_HEARTBEAT_NS)

typedef enum {
    ACTOR_SIM_SIDE_FREE = 0, /* not begun, or over */
    ACTOR_SIM_SIDE_CALLING,  /* the connector said HELLO */
    ACTOR_SIM_SIDE_GREETED,  /* the binder said INIT */
    ACTOR_SIM_SIDE_UP,
} actor_sim_side_state_t;

/* One end of a connection: 0 the connector's, 1 the binder's. */
typedef struct {
    uint32_t actor;
    uint32_t member;
    uint64_t epoch; /* of the actor: its place may have another one by now */
    actor_sim_side_state_t state;
    uint32_t peer; /* how this actor's core knows the other one */
    uint64_t sequence_in;
    uint64_t sequence_out;
    uint64_t unread_count;
    uint64_t heard_ns; /* or when it began */
    uint32_t hello_count;
    uint64_t arrives_ns; /* of the last message towards this side: order is kept */
    uint32_t under_way;  /* messages towards this side */
} actor_sim_side_t;

typedef struct {
    uint64_t id; /* 0 = unused; no two connections share one */
    actor_sim_side_t sides[2];
} actor_sim_connection_t;

typedef enum {
    ACTOR_SIM_CONTROL_NONE = 0, /* a message of proto_messages.h */
    ACTOR_SIM_CONTROL_HELLO,
    ACTOR_SIM_CONTROL_INIT,
    ACTOR_SIM_CONTROL_READY,
    ACTOR_SIM_CONTROL_REFUSE, /* a newer incarnation is known: end */
    ACTOR_SIM_CONTROL_CLOSED, /* the other end's socket is gone */
} actor_sim_control_t;

/* On its way.  The parts lie behind the struct, the blob first, 64-byte aligned. */
typedef struct {
    uint32_t connection;
    uint32_t to_side;
    uint64_t connection_id;
    actor_sim_control_t control;
    uint64_t sender_epoch; /* who really sent it, whatever its header says */
    uint32_t header_size_bytes;
    uint8_t header[PROTO_HEADER_SIZE_MAX];
    size_t blob_size_bytes;
    size_t body_size_bytes;
    size_t blob_capacity_bytes;
} actor_sim_message_t;

typedef struct {
    bool alive;
    bool dying; /* its core said that it cannot go on */
    uint32_t member;
    uint32_t open_count; /* a gateway's clients that wait for their end */
    uint64_t epoch;
    void *core;
    const actor_core_ops_t *ops;
    actor_sim_device_t *device; /* an executor's */
    uint32_t device_era;        /* counts resets: what was asked for before one never ends */
    uint64_t device_busy_ns;    /* when what it was given will be done */
    uint64_t input_sequence;
    uint64_t clock_offset_ns; /* its monotonic clock is the world's plus this */
    uint64_t now_ns;          /* its own, of its last input */
    uint64_t timer_at_ns;     /* of the world; UINT64_MAX = none is queued */
    uint64_t timer_last_ns;   /* when one was given last */
    uint32_t timer_run;       /* TIMERs in a row at that time */
    uint64_t frozen_until_ns;
    uint64_t slow_ns; /* each input takes this */
    uint64_t busy_until_ns;
    bool draining;
    uint64_t drain_until_ns;
    uint32_t link; /* connector: its connection, or ACTOR_SIM_NONE */
    uint64_t epochs_min[ACTOR_SIM_MEMBER_COUNT_MAX];
    /* What PEER_UP said: connection and epoch of each peer; connection ACTOR_SIM_NONE = nobody. */
    uint32_t peers[ACTOR_SIM_PEER_COUNT_MAX];
    uint64_t peer_epochs[ACTOR_SIM_PEER_COUNT_MAX];
    uint32_t peer_members[ACTOR_SIM_PEER_COUNT_MAX];
    bool peer_leaving[ACTOR_SIM_PEER_COUNT_MAX];          /* PEER_DOWN is still to be given */
    uint32_t peer_incarnations[ACTOR_SIM_PEER_COUNT_MAX]; /* PEER_UPs given for the index */
    proto_log_writer_t *log;
    uint64_t record_sequence;
} actor_sim_actor_t;

typedef struct {
    const char *name;
    proto_role_t role;
    uint32_t actor; /* its incarnation in charge; ACTOR_SIM_NONE: none runs */
    bool starting;  /* one is about to */
    actor_restart_t restart;
    actor_outbox_t *outbox; /* kept over incarnations and seeds */
} actor_sim_member_t;

typedef enum {
    ACTOR_SIM_CLIENT_OPEN = 0,
    ACTOR_SIM_CLIENT_COMPLETE, /* stop, length, or as the client asked */
    ACTOR_SIM_CLIENT_ERROR,    /* an error or a refusal, with a code */
    ACTOR_SIM_CLIENT_BROKEN,   /* its gateway died: the connection broke */
} actor_sim_client_state_t;

/* One choice of one exchange, and what it was told so far. */
typedef struct {
    actor_sim_client_state_t state;
    uint32_t gateway; /* the actor */
    uint64_t gateway_epoch;
    uint64_t exchange;
    uint32_t choice_index;
    uint64_t request; /* the gateway's id; 0 until it was submitted */
    uint64_t begun_ns;
    uint64_t ended_ns;
    uint32_t prompt_length;
    uint32_t generation_max; /* as asked; 0 = what the context leaves */
    uint32_t received;
    uint32_t stop_after; /* says HTTP_STOP after so many tokens; 0 = never */
    int32_t stop_ids[ACTOR_SIM_STOP_ID_COUNT_MAX];
    uint32_t stop_id_count;
    bool stop_seen; /* the last token is a stop token */
    bool stop_told;
    uint32_t stop_index;
    proto_finish_reason_t stop_reason;
    proto_finish_reason_t reason; /* of its end */
    uint64_t timeout_ns;
    uint64_t last_token_ns;
    uint64_t longest_gap_ns; /* between two tokens */
    char code[40];
    int32_t tokens[ACTOR_SIM_LEN_MAX]; /* prompt, then answer */
    actor_sim_sequence_t sequence;
} actor_sim_client_t;

/* What a test does to the next message of a kind. */
typedef enum {
    ACTOR_SIM_TAMPER_NONE = 0,
    ACTOR_SIM_TAMPER_LOSE,
    ACTOR_SIM_TAMPER_DOUBLE,
    ACTOR_SIM_TAMPER_LATE,  /* behind those that follow it */
    ACTOR_SIM_TAMPER_EARLY, /* before those that precede it */
    ACTOR_SIM_TAMPER_CORRUPT,
    ACTOR_SIM_TAMPER_REFUSE, /* a PLAN only: it breaks a rule */
} actor_sim_tamper_t;

typedef struct {
    uint64_t time_ns;
    uint64_t request;
    uint64_t sequence;
    uint64_t epoch; /* of who was given it */
    uint32_t member;
    uint32_t from; /* member; ACTOR_SIM_NONE: its own side */
    proto_kind_t kind;
    uint32_t size_bytes;
} actor_sim_trace_t;

typedef struct {
    actor_sim_model_t model;
    actor_scheduler_core_options_t scheduler;
    actor_gateway_core_options_t gateway; /* but for the epoch */
    uint32_t gateway_count;
    uint32_t latency_min_us, latency_max_us;
    uint32_t step_min_us, step_max_us;
    uint32_t interval_us;    /* between two requests, on average; 0 = none come by themselves */
    uint32_t open_count_max; /* beyond it clients wait outside */
    uint32_t prompt_max, generation_max;
    bool no_timeouts; /* no client has a deadline */
} actor_sim_config_t;

/* How often what happens; in a thousand. */
typedef struct {
    uint32_t loss, duplicate, reorder, corrupt, delay, refuse, nan, stale;
} actor_sim_rates_t;

struct actor_sim {
    actor_sim_options_t options;
    actor_sim_config_t config;
    actor_sim_rates_t rates; /* zeros once all is healed */
    uint64_t seed;
    uint64_t now_ns;
    uint64_t epoch_last;
    uint64_t connection_last;
    actor_sim_random_t random_bus, random_fault, random_load, random_device;
    actor_sim_queue_t queue;
    actor_sim_member_t members[ACTOR_SIM_MEMBER_COUNT_MAX];
    uint32_t member_count;
    actor_sim_actor_t actors[ACTOR_SIM_ACTOR_COUNT_MAX];
    actor_sim_connection_t connections[ACTOR_SIM_CONNECTION_COUNT_MAX];
    /* Partitions: cut_until[a][b]: nothing of member a reaches member b before. */
    uint64_t cut_until_ns[ACTOR_SIM_MEMBER_COUNT_MAX][ACTOR_SIM_MEMBER_COUNT_MAX];
    bool cut_loses[ACTOR_SIM_MEMBER_COUNT_MAX][ACTOR_SIM_MEMBER_COUNT_MAX]; /* else it is late */
    uint64_t slow_until_ns;                                                 /* of the device */
    uint64_t harm_until_ns; /* a harmful fault's effects may last until then: */
    uint64_t loss_until_ns; /* of these, the ones that may cost a request that runs */
    uint64_t disk_until_ns; /* the recorder's disk is full until then */
    uint64_t replaced_ns;   /* when a scheduler or an executor was last replaced */
    bool healed;
    bool arrivals_over; /* no request comes by itself any more */
    bool in_input;
    proto_clock_t clock; /* of the log's files */

    actor_sim_tamper_t tamper;
    proto_kind_t tamper_kind;
    uint32_t tamper_count; /* messages tampered with so far */
    /* A message of each member to each other, kept until its sender is dead. */
    actor_sim_message_t *old[ACTOR_SIM_MEMBER_COUNT_MAX][ACTOR_SIM_MEMBER_COUNT_MAX];

    actor_sim_client_t *clients; /* [ACTOR_SIM_CLIENT_COUNT_MAX] */
    uint32_t client_count;
    uint32_t open_count;

    proto_body_t body; /* of the message in work */
    uint8_t *scratch;  /* own inputs, encoded for the log */
    size_t scratch_size_bytes;
    actor_sim_trace_t events[ACTOR_SIM_EVENTS_KEPT];
    uint64_t event_count;
    actor_sim_result_t result;
    uint64_t counted_epoch; /* of the scheduler whose figures are in the result: */
    uint64_t counted[2];    /* so much of them */
    sigjmp_buf escape;      /* where a failed `require` goes */
};

/* ---- actor_sim_world.c ----------------------------------------------------------------------- */

/* Begins anew with `seed` and `config`: members start, nothing else happens by itself unless the
 * config says so.  Frees what the last world left. */
void actor_sim_world_begin(actor_sim_t *self, uint64_t seed, const actor_sim_config_t *config);
/* A config that suits tests: one gateway, 4 slots, a pool that is large enough. */
void actor_sim_world_config(actor_sim_config_t *out);
/* Lets the next thing happen.  False when nothing is left, or a rule was broken. */
bool actor_sim_world_advance(actor_sim_t *self);
/* Frees all that a world holds but the members' outboxes. */
void actor_sim_world_end(actor_sim_t *self);
/* Notes the first broken rule. */
void actor_sim_fail(actor_sim_t *self, const char *rule, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A line of the trace that is no input: what faults do. */
void actor_sim_note(const actor_sim_t *self, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void actor_sim_at(actor_sim_t *self, uint64_t time_ns, actor_sim_event_kind_t kind, uint32_t index,
                  uint64_t stamp, void *pointer);
/* The actor in charge of a member, or NULL. */
actor_sim_actor_t *actor_sim_member_actor(actor_sim_t *self, uint32_t member);
/* Walks over every core and compares the figures that must add up. */
void actor_sim_check(actor_sim_t *self);
/* After the last request: every block is free or cached, no row is left.  False: not yet. */
bool actor_sim_is_quiet(actor_sim_t *self);
/* Fails with what is not quiet yet. */
void actor_sim_describe_stuck(actor_sim_t *self, const char *rule);
/* Adds what the cores counted to the result. */
void actor_sim_count(actor_sim_t *self);

/* ---- actor_sim_actor.c ----------------------------------------------------------------------- */

void actor_sim_start(actor_sim_t *self, uint32_t member);
/* Frees what it holds; for the end of a world. */
void actor_sim_actor_free(actor_sim_t *self, uint32_t actor);
/* The process ends without a word. */
void actor_sim_kill(actor_sim_t *self, uint32_t actor);
/* SIGTERM: finishes what it has, says goodbye, is replaced. */
void actor_sim_drain(actor_sim_t *self, uint32_t actor, uint64_t grace_ns);
/* Gives a core an input of its own side. */
void actor_sim_input_own(actor_sim_t *self, uint32_t actor, proto_kind_t kind,
                         const proto_body_t *body);
void actor_sim_input_peer(actor_sim_t *self, uint32_t actor, uint32_t peer,
                          const proto_header_t *header, proto_bytes_t body_bytes,
                          proto_bytes_t blob_bytes, const proto_body_t *body);
void actor_sim_on_timer(actor_sim_t *self, uint32_t actor);
void actor_sim_on_device(actor_sim_t *self, uint32_t actor, uint64_t what);
/* The supervisor learns that an incarnation ended: fences it, starts the next one. */
void actor_sim_supervise(actor_sim_t *self, uint32_t member, uint64_t epoch);
/* Ends it in good order. */
void actor_sim_leave(actor_sim_t *self, uint32_t actor);

/* ---- actor_sim_bus.c ------------------------------------------------------------------------- */

void actor_sim_send(actor_sim_t *self, uint32_t actor, uint32_t peer, proto_kind_t kind,
                    uint64_t request, uint64_t cause, proto_bytes_t body, proto_bytes_t blob);
void actor_sim_on_message(actor_sim_t *self, actor_sim_message_t *message);
void actor_sim_on_tick(actor_sim_t *self, uint32_t actor);
void actor_sim_on_connect(actor_sim_t *self, uint32_t actor);
/* A peer that failed while a core was at work is reported. */
void actor_sim_on_down(actor_sim_t *self, uint32_t actor, uint32_t peer);
/* The supervisor's DOWN. */
void actor_sim_on_fence(actor_sim_t *self, uint32_t actor, uint32_t member, uint64_t epoch);
/* All sockets of an actor close: its peers notice, unless they are cut off. */
void actor_sim_close_all(actor_sim_t *self, uint32_t actor);

/* ---- actor_sim_tamper.c ---------------------------------------------------------------------- */

/* Puts a message on its way and takes ownership: latency, order, and what faults make of it. */
void actor_sim_transmit(actor_sim_t *self, actor_sim_message_t *message);
MUST_CHECK actor_sim_message_t *actor_sim_message_new(size_t body_size_bytes,
                                                      size_t blob_size_bytes);
static inline uint8_t *
actor_sim_message_blob(actor_sim_message_t *message)
{
    size_t at = (sizeof *message + PROTO_COLUMN_ALIGN - 1) / PROTO_COLUMN_ALIGN;
    return (uint8_t *)message + at * PROTO_COLUMN_ALIGN;
}
static inline uint8_t *
actor_sim_message_body(actor_sim_message_t *message)
{
    return actor_sim_message_blob(message) + message->blob_capacity_bytes;
}

/* ---- actor_sim_client.c ---------------------------------------------------------------------- */

/* What a client asks for; a zero means the value in the comment. */
typedef struct {
    uint32_t prompt_length;  /* 8 */
    uint32_t generation_max; /* what the context leaves */
    uint32_t family;         /* prompts of one family begin alike: 0 */
    uint32_t variety;        /* and differ in their last tokens by this: 0 */
    uint32_t choice_count;   /* 1 */
    uint32_t stop_id_count;  /* random stop tokens: none */
    uint32_t stop_after;     /* stops by itself after so many tokens: never */
    uint64_t leave_ns;       /* goes away after this time: never */
    uint64_t timeout_ns;     /* its deadline: none */
    int64_t priority;
    uint32_t gateway; /* 0 or 1 */
} actor_sim_ask_t;

/* Gives a request to a gateway.  Returns its (first) client, or ACTOR_SIM_NONE if no gateway runs
 * or it does not say ready (the HTTP side would answer 503 by itself). */
uint32_t actor_sim_ask(actor_sim_t *self, const actor_sim_ask_t *ask);
/* A client goes away. */
void actor_sim_client_leave(actor_sim_t *self, uint32_t client);
/* The same, or a stop string that matched: keep so many tokens. */
void actor_sim_client_stop(actor_sim_t *self, uint32_t client, proto_finish_reason_t reason,
                           uint32_t token_index);
/* The event that was set for it. */
void actor_sim_on_leave(actor_sim_t *self, uint32_t client, uint64_t how);
/* A request as the seed likes it. */
void actor_sim_on_request(actor_sim_t *self);
/* The gateway's core to its HTTP side. */
void actor_sim_on_http(actor_sim_t *self, uint32_t actor, const actor_emission_t *emission);
/* A SUBMIT left a gateway: its id names the client that was just given to it. */
void actor_sim_on_submit(actor_sim_t *self, uint32_t actor, uint64_t request);
/* The connections to a gateway broke. */
void actor_sim_clients_break(actor_sim_t *self, uint32_t actor);

/* ---- actor_sim_record.c ---------------------------------------------------------------------- */

void actor_sim_record_open(actor_sim_t *self, uint32_t actor);
void actor_sim_record_close(actor_sim_t *self, uint32_t actor);
void actor_sim_record_input(actor_sim_t *self, uint32_t actor, const actor_input_t *input,
                            proto_bytes_t body, proto_bytes_t blob);
void actor_sim_record_output(actor_sim_t *self, uint32_t actor, const proto_header_t *header,
                             const actor_emission_t *emission);
void actor_sim_record_peer(actor_sim_t *self, uint32_t actor, uint32_t peer);
void actor_sim_record_digest(actor_sim_t *self, uint32_t actor);
/* What the core saves, in memory that the caller frees. */
uint8_t *actor_sim_save(const actor_sim_actor_t *actor, proto_bytes_t *state,
                        proto_bytes_t *secret);

/* ---- actor_sim_fault.c ----------------------------------------------------------------------- */

/* Which faults this seed gets, and how often. */
void actor_sim_faults_choose(actor_sim_t *self);
void actor_sim_on_fault(actor_sim_t *self);
/* Says that a fault strikes now; what it harms may last for `harm_ns`. */
void actor_sim_strike(actor_sim_t *self, actor_sim_fault_index_t fault, uint64_t harm_ns);
/* The same for an actor that is replaced: the loss of a scheduler costs no request that runs. */
void actor_sim_strike_member(actor_sim_t *self, actor_sim_fault_index_t fault, uint32_t member,
                             uint64_t harm_ns);
/* What is harmed until then; `costs`: requests that run too. */
void actor_sim_harm(actor_sim_t *self, uint64_t until_ns, bool costs);
/* An actor stands still. */
void actor_sim_freeze(actor_sim_t *self, uint32_t actor, uint64_t duration_ns);
/* Nothing of member a reaches member b (and the other way round); it is lost, or late. */
void actor_sim_partition(actor_sim_t *self, uint32_t a, uint32_t b, bool both, bool loses,
                         uint64_t duration_ns);
/* Nothing goes wrong from here on. */
void actor_sim_heal(actor_sim_t *self);

#endif
