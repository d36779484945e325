/* pd_world.h - one decode node and two prefill nodes on one thread, from one seed.
 *
 * The cores of roles, schedulers and executors are those that ship; the bus, the clock, the devices
 * (actor_sim_device.h: cells that are read back), the kv-transfers and the gateway are fakes of the
 * tests.  The gateway does what the real one promises: it submits again, with what came, when
 * something was lost. */
#ifndef PD_WORLD_H
#define PD_WORLD_H

#include "actor_decode_role_core.h"
#include "actor_executor_core.h"
#include "actor_prefill_role_core.h"
#include "actor_scheduler_core.h"
#include "actor_sim_device.h"

enum {
    PD_NODE_COUNT = 3, /* 0 decodes */
    PD_ROLE = 0,       /* members of a node */
    PD_SCHEDULER = 1,
    PD_EXECUTOR = 2,
    PD_KV = 3,
    PD_MEMBERS = 4,
    PD_GATEWAY = PD_NODE_COUNT * PD_MEMBERS,
    PD_ACTOR_COUNT = PD_GATEWAY + 1,
    PD_EVENTS_MAX = 4096,
    PD_REQUESTS_MAX = 64,
    PD_TRANSFERS_MAX = 256,
    PD_RUN_BLOCKS_MAX = 256,
};

#define PD_MS UINT64_C(1000000)

typedef enum {
    PD_EVENT_NONE = 0,
    PD_EVENT_MESSAGE,
    PD_EVENT_UP,        /* `from` is there, for `to` */
    PD_EVENT_DOWN,      /* `from` of `epoch` is gone, for `to` */
    PD_EVENT_START,     /* `to` comes back */
    PD_EVENT_STEP,      /* a device step of `to` ends */
    PD_EVENT_READY,     /* the device of `to` has been reset */
    PD_EVENT_COPY,      /* copy number `value` of the data plane happens */
    PD_EVENT_FENCED,    /* the kv-transfer `to` answers fence `value` for transfer `epoch` */
    PD_EVENT_CANCELLED, /* the same for TRANSFER_CANCEL */
} pd_event_kind_t;

typedef struct {
    pd_event_kind_t kind;
    uint64_t at_ns;
    uint64_t order;
    uint32_t from;
    uint32_t to;
    uint64_t from_epoch;
    uint64_t to_epoch;
    uint64_t value;
    proto_kind_t message;
    uint64_t request;
    uint8_t *bytes; /* body, then blob at a 64-byte boundary; the event's own */
    size_t body_size;
    size_t blob_size;
} pd_event_t;

typedef struct {
    bool is_alive;
    uint64_t epoch;
    void *core;
    const actor_core_ops_t *ops; /* NULL: a fake */
    actor_outbox_t *outbox;
    bool sees[PD_ACTOR_COUNT]; /* peers that it was told of */
} pd_actor_t;

typedef struct {
    int64_t priority;
    uint64_t end_ns;
    uint64_t id; /* to the node; another after each loss */
    uint32_t prompt_length;
    uint32_t generation_max;
    uint32_t received;
    int32_t tokens[ACTOR_SIM_LEN_MAX];
    uint32_t attempt_count;
    uint64_t retry_ns; /* to be submitted again then; 0 = no */
    uint64_t cancel_ns;
    bool was_cancelled;
    bool is_open;
    uint32_t end_count;
    bool is_complete;
    char code[32];
} pd_request_t;

typedef struct {
    uint32_t fault_permille; /* of each millisecond in which requests are open: an actor dies */
    uint32_t cancel_permille;
    uint32_t drop_permille; /* of messages between roles */
    uint32_t double_permille;
    bool no_local_prefill;
    uint32_t copy_max_us;      /* a copy happens so long after its step at most */
    uint32_t parent_count;     /* of each pool; 0 = 65 */
    uint64_t queue_timeout_ns; /* of each request; 0 = the actors' own */
    uint32_t shape;            /* 0 one group, 1 and a sliding one, 2 and states */
} pd_config_t;

typedef struct pd_world pd_world_t;

struct pd_world {
    pd_config_t config;
    actor_sim_model_t model;
    actor_sim_random_t random;
    uint64_t now_ns;
    uint64_t order;
    uint64_t sequence;
    pd_actor_t actors[PD_ACTOR_COUNT];
    actor_sim_device_t *devices[PD_NODE_COUNT];
    uint64_t step_end_ns[PD_NODE_COUNT];
    uint64_t done_step[PD_NODE_COUNT];                /* last step whose results are out */
    uint64_t wire_ns[PD_ACTOR_COUNT][PD_ACTOR_COUNT]; /* nothing overtakes on a link */
    pd_event_t events[PD_EVENTS_MAX];
    uint32_t event_count;
    pd_request_t requests[PD_REQUESTS_MAX];
    uint32_t request_count;
    uint64_t ids;
    uint32_t deaths;
    uint32_t queue_timeouts; /* requests that were refused with that code */
    bool has_model;
    bool is_quiet_bus; /* no more faults */
    struct pd_data *data;
};

pd_world_t *pd_world_new(uint64_t seed, const pd_config_t *config);
void pd_world_destroy(pd_world_t **self_p);
/* Asks for an answer; its index. */
uint32_t pd_world_ask(pd_world_t *self, uint32_t prompt_length, uint32_t generation_max,
                      uint32_t family);
/* One event; false if nothing will ever happen any more. */
bool pd_world_advance(pd_world_t *self);
/* Until every request has its end and nothing is left of any transfer, at most `limit_ns`. */
bool pd_world_settle(pd_world_t *self, uint64_t limit_ns);
void pd_world_describe(const pd_world_t *self);
bool pd_world_is_settled(pd_world_t *self);
void pd_world_kill(pd_world_t *self, uint32_t actor, uint64_t restart_ns);
void pd_world_cancel(pd_world_t *self, uint32_t request);
/* Whether the tokens that came are the model's. */
bool pd_world_is_right(const pd_world_t *self, uint32_t request);
sched_figures_t pd_world_figures(const pd_world_t *self, uint32_t node);

/* For pd_data.c. */
pd_event_t *pd_world_event(pd_world_t *self, pd_event_kind_t kind, uint32_t to, uint64_t after_ns);
void pd_world_send(pd_world_t *self, uint32_t from, uint32_t to, proto_kind_t kind,
                   uint64_t request, const proto_body_t *body);

/* ---- pd_data.c: the fake kv-transfers -------------------------------------------------------- */

struct pd_data *pd_data_new(void);
void pd_data_destroy(struct pd_data **self_p);
void pd_data_message(pd_world_t *world, uint32_t node, proto_kind_t kind, const proto_body_t *body);
void pd_data_step_done(pd_world_t *world, uint32_t node);
void pd_data_copy(pd_world_t *world, uint64_t value);
void pd_data_cancelled(pd_world_t *world, const pd_event_t *event);
void pd_data_fenced(pd_world_t *world, const pd_event_t *event);
void pd_data_lose(pd_world_t *world, uint32_t node);

#endif
