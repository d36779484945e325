/* actor_conform_stage.h - what the scenes play on: links that come and go, one loop that serves
 * them all, waits with a deadline, and the record of the conversation.
 *
 * It owns gateways, executor, raw links, book and record.  Scenes are plain functions that say what
 * happens next and what must come of it.  One thread. */
#ifndef ACTOR_CONFORM_STAGE_H
#define ACTOR_CONFORM_STAGE_H

#include "actor_conform.h"
#include "actor_conform_executor.h"
#include "actor_conform_gateway.h"
#include "actor_conform_raw.h"
#include "actor_conform_tape.h"

enum {
    CONFORM_GATEWAYS = 2,
    CONFORM_RAWS = 2,
};

typedef struct {
    const actor_conform_options_t *options;
    conform_report_t *report;
    conform_book_t book;
    uint64_t patience_ns;
    uint64_t heartbeat_ns; /* as the scheduler's INIT said; 0 = not known yet */
    uint64_t epoch;        /* of the next link: higher than any before */
    uint64_t step_last;    /* highest step of the scheduler */
    uint64_t plan_count;   /* of links that are closed */
    uint64_t now_ns;
    uint64_t polled_ns; /* when the last round ended */
    uint64_t away_ns;   /* longest time of this scene in which this process did nothing */
    uint64_t quiet_ns;  /* until then nothing is said about idleness */
    bool is_lost;       /* the scheduler is gone */
    bool is_aborted;    /* this scene cannot go on */
    uint32_t aborted_count;
    uint64_t random;

    conform_gateway_t gateways[CONFORM_GATEWAYS];
    bool has_gateway[CONFORM_GATEWAYS];
    conform_executor_t executor;
    bool has_executor;
    conform_raw_t raws[CONFORM_RAWS];
    bool has_raw[CONFORM_RAWS];
    conform_tape_t *tapes[CONFORM_GATEWAYS + 1]; /* the last one is the executor's */
} conform_stage_t;

/* True when what is waited for is there. */
typedef bool (*conform_until_t)(conform_stage_t *stage, const void *context);

MUST_CHECK proto_status_t actor_conform_stage_init(conform_stage_t *self,
                                                   const actor_conform_options_t *options,
                                                   conform_report_t *report);
void actor_conform_stage_fini(conform_stage_t *self);

/* ---- links ----------------------------------------------------------------------------------- */

/* Each returns false after it said why and aborted the scene. */
bool actor_conform_open_gateway(conform_stage_t *self, uint32_t index);
bool actor_conform_open_executor(conform_stage_t *self, const conform_machine_t *machine);
/* Until the executor was reset. */
bool actor_conform_attach(conform_stage_t *self, conform_rule_t rule);
/* A gateway and an executor, attached, with MODEL_INFO: how most scenes begin. */
bool actor_conform_open(conform_stage_t *self, const conform_machine_t *machine);
/* MODEL_INFO with the figures of the executor that is there. */
bool actor_conform_wait_info(conform_stage_t *self, uint32_t index);
/* A link by hand; of an executor if the name says so, else of a gateway. */
bool actor_conform_open_raw(conform_stage_t *self, uint32_t index, const char *name, uint64_t epoch,
                            uint64_t attempt);
/* HELLO on raw link 0, until anything comes; false if nobody is there: the run is over. */
bool actor_conform_contact(conform_stage_t *self);
/* HELLO to READY; without an answer `rule` is broken and the scene aborted. */
bool actor_conform_greet_raw(conform_stage_t *self, uint32_t index, conform_rule_t rule);

/* With BYE; the executor's requests may then end with worker_lost. */
void actor_conform_close_gateway(conform_stage_t *self, uint32_t index);
void actor_conform_close_executor(conform_stage_t *self);
void actor_conform_close_raw(conform_stage_t *self, uint32_t index);
void actor_conform_close_all(conform_stage_t *self);

/* ---- time ------------------------------------------------------------------------------------ */

/* One round of everything; sleeps until something comes, at most `wait_ns`. */
void actor_conform_poll(conform_stage_t *self, uint64_t wait_ns);
/* Plays on until `until` says so; false if that took longer than `limit_ns`, or the scene was
 * aborted. */
bool actor_conform_wait(conform_stage_t *self, uint64_t limit_ns, conform_until_t until,
                        const void *context);
/* Plays on for a while. */
void actor_conform_play(conform_stage_t *self, uint64_t duration_ns);
/* Until every request of the scene has ended, as long as there is progress; what has not ended
 * breaks the rule that the request is there for, or `rule` if that is above 0. */
bool actor_conform_wait_ends(conform_stage_t *self, conform_rule_t rule);
/* The same for one request. */
bool actor_conform_wait_end(conform_stage_t *self, const conform_request_t *request);
/* Waits for `count` tokens of a request. */
bool actor_conform_wait_tokens(conform_stage_t *self, const conform_request_t *request,
                               uint32_t count);
/* Waits until the executor has so many plans without a result. */
bool actor_conform_wait_flights(conform_stage_t *self, uint32_t count);
/* Everything has ended: every slot must be released, then links close. */
void actor_conform_settle(conform_stage_t *self);
/* Waits for a message of `kind` (0: any but heartbeats) on a raw link; it is in raws[index]. */
bool actor_conform_wait_raw(conform_stage_t *self, uint32_t index, proto_kind_t kind,
                            uint64_t limit_ns);

/* ---- requests -------------------------------------------------------------------------------- */

/* Makes and submits a request; NULL after it aborted the scene. */
conform_request_t *actor_conform_ask(conform_stage_t *self, const conform_ask_t *ask);
/* Requests of this scene: from book.first to book.count. */
void actor_conform_excuse(conform_stage_t *self, uint32_t excuse);
/* A number in [0, limit), from the seed. */
uint32_t actor_conform_random(conform_stage_t *self, uint32_t limit);

/* An executor of usual size. */
conform_machine_t actor_conform_machine(void);

#endif
