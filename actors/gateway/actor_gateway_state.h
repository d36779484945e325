/* actor_gateway_state.h - the insides of the gateway's core, shared by its own files only, on its
 * thread.
 *
 * actor_gateway_core.c       making, the step, questions
 * actor_gateway_request.c    what the HTTP side says: requests and stops
 * actor_gateway_tokens.c     what the scheduler says of requests: TOKENS, FINISHED
 * actor_gateway_links.c      which scheduler there is, its model, its silence
 * actor_gateway_resume.c     choices without a scheduler: waiting, and being submitted again
 * actor_gateway_poison.c     choices whose executors die
 * actor_gateway_end.c        the ends of a choice
 * actor_gateway_snapshot.c   save and restore
 * Long because the state stands beside what each file does with it. */
#ifndef ACTOR_GATEWAY_STATE_H
#define ACTOR_GATEWAY_STATE_H

#include "actor_gateway_core.h"
#include "actor_gateway_history.h"
#include "actor_gateway_table.h"
#include "proto_require.h"

enum {
    /* What one TOKENS may carry; more is a broken peer, and the bound sizes the outbox. */
    GATEWAY_TOKENS_PER_MESSAGE_MAX = 1 << 16,
    GATEWAY_LOGPROBS_PER_MESSAGE_MAX = 1 << 20,
    GATEWAY_RETRY_AFTER_MS = 1000,
    GATEWAY_SAMPLING_SIZE_MAX = 16384,    /* bytes; the limit of SUBMIT.sampling */
    GATEWAY_RESUBMITS_MAX = 64,           /* requests submitted again in one step */
    GATEWAY_RESUBMIT_BYTES_MAX = 8 << 20, /* and their columns, beyond the largest one's */
};

/* What there is to be served; texts and key point into the room. */
typedef struct {
    proto_model_info_t info;
    char name[PROTO_TEXT_LEN_MAX];
    char fingerprint[PROTO_TEXT_LEN_MAX];
    uint8_t page_hash_key[PROTO_HASH_SIZE_BYTES];
} gateway_model_t;

struct actor_gateway_core {
    actor_gateway_core_options_t options; /* defaults filled in */
    actor_gateway_table_t *choices;
    actor_gateway_history_t *history;
    uint64_t request_base;  /* high half of every request id of this epoch */
    uint64_t request_count; /* ids minted */

    actor_peer_t scheduler; /* ACTOR_PEER_NONE while there is none */
    char scheduler_name[32];
    uint64_t scheduler_epoch;
    bool has_model; /* the scheduler that is attached has an executor: `model` is what it serves */
    bool knows_model;  /* `model` is what the last one served */
    bool is_replacing; /* a scheduler was lost a short while ago: requests wait for the next */
    bool draining;
    bool told_ready; /* the last HTTP_STATE */
    bool told_any;
    bool complained;             /* of this scheduler's silence */
    bool sweep_is_due;           /* some that wait may be submitted */
    uint64_t replacing_until_ns; /* with is_replacing */
    uint64_t drain_until_ns;     /* with draining */
    uint64_t progress_ns;        /* when the scheduler last did something for an open choice */
    uint32_t waiting_count;      /* choices that wait for a scheduler */
    uint32_t trial_count;        /* choices on trial: 0 or 1 */
    gateway_model_t model;
    char no_executor[256]; /* without has_model: why, in the scheduler's words */
    proto_load_t load;

    uint64_t submitted_count;
    uint64_t ended_count;
    uint64_t gap_count;
    uint64_t ignored_count;
    uint64_t resumed_count;
    uint64_t unkept_count;
    uint64_t poisoned_count;
    uint64_t prompt_tokens;     /* of ended choices, without the cached ones */
    uint64_t generation_tokens; /* given to clients */

    /* Where a choice's record is put together again, for one SUBMIT. */
    int32_t *tokens;   /* [PROTO_TOKENS_MAX] */
    uint8_t *hashes;   /* [PROTO_PAGES_MAX][PROTO_HASH_SIZE_BYTES] */
    uint8_t *sampling; /* [GATEWAY_SAMPLING_SIZE_MAX] */
};

/* ---- actor_gateway_core.c -------------------------------------------------------------------- */

static inline bool
actor_gateway_has_scheduler(const actor_gateway_core_t *self)
{
    return self->scheduler.index != ACTOR_PEER_NONE;
}

/* Something submitted now would be taken; a drain is no reason against finishing what is open. */
static inline bool
actor_gateway_can_submit(const actor_gateway_core_t *self)
{
    return actor_gateway_has_scheduler(self) && self->has_model;
}

/* `when` after `now_ns`, or never. */
static inline uint64_t
actor_gateway_after(uint64_t now_ns, uint64_t when_ns)
{
    return when_ns < UINT64_MAX - now_ns ? now_ns + when_ns : UINT64_MAX;
}

/* A request id that nobody has seen. */
uint64_t actor_gateway_mint(actor_gateway_core_t *self);
/* What is missing, as a sentence and as a code; "" when nothing is. */
const char *actor_gateway_missing_text(const actor_gateway_core_t *self);
const char *actor_gateway_missing_code(const actor_gateway_core_t *self);
/* HTTP_STATE, if it changed. */
void actor_gateway_tell_state(actor_gateway_core_t *self, actor_outbox_t *outbox);

/* ---- actor_gateway_request.c ----------------------------------------------------------------- */

void actor_gateway_on_http_request(actor_gateway_core_t *self, const actor_input_t *input,
                                   actor_outbox_t *outbox);
void actor_gateway_on_http_stop(actor_gateway_core_t *self, const actor_input_t *input,
                                actor_outbox_t *outbox);

/* ---- actor_gateway_tokens.c ------------------------------------------------------------------ */

void actor_gateway_on_tokens(actor_gateway_core_t *self, const actor_input_t *input,
                             actor_outbox_t *outbox);
void actor_gateway_on_finished(actor_gateway_core_t *self, const actor_input_t *input,
                               actor_outbox_t *outbox);

/* ---- actor_gateway_links.c ------------------------------------------------------------------- */

void actor_gateway_on_peer_up(actor_gateway_core_t *self, const actor_input_t *input,
                              actor_outbox_t *outbox);
void actor_gateway_on_peer_down(actor_gateway_core_t *self, const actor_input_t *input,
                                actor_outbox_t *outbox);
void actor_gateway_on_model_info(actor_gateway_core_t *self, const actor_input_t *input,
                                 actor_outbox_t *outbox);
void actor_gateway_on_load(actor_gateway_core_t *self, const actor_input_t *input);
void actor_gateway_on_drain(actor_gateway_core_t *self, const actor_input_t *input,
                            actor_outbox_t *outbox);
/* Says why there is no executor; an empty refusal: nobody knows more. */
void actor_gateway_set_no_executor(actor_gateway_core_t *self, proto_text_t refusal);
/* Points the texts of a model at its own room. */
void actor_gateway_point_model(gateway_model_t *model);
/* Until when the scheduler may be silent; UINT64_MAX while nothing is expected of it. */
uint64_t actor_gateway_silence_ns(const actor_gateway_core_t *self);
/* COMPLAINT, if it was silent for too long; once for each scheduler. */
void actor_gateway_watch(actor_gateway_core_t *self, uint64_t now_ns, actor_outbox_t *outbox);

/* ---- actor_gateway_resume.c ------------------------------------------------------------------ */

/* Takes a choice away from whoever has it, under a new request id, to wait for a scheduler. */
void actor_gateway_wait(actor_gateway_core_t *self, actor_gateway_choice_t *choice,
                        uint64_t until_ns, uint64_t retry_ns);
/* The scheduler that had it is gone, or failed it: it waits, not before retry_ns (0 = for the next
 * scheduler), or ends if it is complete or cannot be resumed. */
void actor_gateway_lose(actor_gateway_core_t *self, actor_outbox_t *outbox,
                        actor_gateway_choice_t *choice, uint64_t now_ns, uint64_t retry_ns,
                        const char *detail);
/* Puts all that a new submission needs into the history; false if it does not fit. */
bool actor_gateway_keep(actor_gateway_core_t *self, actor_gateway_choice_t *choice,
                        const proto_http_request_t *request);
/* Adds tokens to it; without room the choice is not kept any more. */
void actor_gateway_keep_tokens(actor_gateway_core_t *self, actor_gateway_choice_t *choice,
                               const int32_t *tokens, uint32_t count);
/* Submits what waits, oldest first, as much as one step may; the rest follows with a TIMER. */
void actor_gateway_sweep(actor_gateway_core_t *self, uint64_t now_ns, actor_outbox_t *outbox);
/* Ends all that wait. */
void actor_gateway_end_waiting(actor_gateway_core_t *self, actor_outbox_t *outbox,
                               proto_status_t status, const char *code, const char *detail);
/* Deadlines of choices. */
void actor_gateway_on_timer(actor_gateway_core_t *self, uint64_t now_ns, actor_outbox_t *outbox);

/* ---- actor_gateway_poison.c ------------------------------------------------------------------ */

/* An executor died with this choice in its step, and `suspects` in all.  True if it is to blame:
 * the caller ends it with request_killed_worker. */
bool actor_gateway_blame(actor_gateway_core_t *self, actor_gateway_choice_t *choice,
                         uint32_t suspects);
/* True if it may not be submitted now, because another suspect is on trial. */
bool actor_gateway_must_stand_back(const actor_gateway_core_t *self,
                                   const actor_gateway_choice_t *choice);
/* It is submitted: a suspect is on trial from now on. */
void actor_gateway_try(actor_gateway_core_t *self, actor_gateway_choice_t *choice);
/* It got tokens; enough of them clear it. */
void actor_gateway_acquit(actor_gateway_core_t *self, actor_gateway_choice_t *choice);
/* It does not run any more. */
void actor_gateway_leave_trial(actor_gateway_core_t *self, actor_gateway_choice_t *choice);

/* ---- actor_gateway_end.c --------------------------------------------------------------------- */

/* The answer to a request that gets no place in the table. */
void actor_gateway_refuse(actor_gateway_core_t *self, actor_outbox_t *outbox,
                          const proto_http_request_t *request, proto_status_t status,
                          const char *code, const char *detail);
/* The one way out of the table.  Fills in whom the end is for. */
void actor_gateway_end_choice(actor_gateway_core_t *self, actor_outbox_t *outbox,
                              actor_gateway_choice_t *choice, proto_http_end_t end);
void actor_gateway_end_with_error(actor_gateway_core_t *self, actor_outbox_t *outbox,
                                  actor_gateway_choice_t *choice, proto_status_t status,
                                  const char *code, const char *detail);
/* The end of a choice whose stop was recorded: the stop decides, not what came after it.
 * `finished` NULL: the scheduler said nothing. */
void actor_gateway_end_as_stopped(actor_gateway_core_t *self, actor_outbox_t *outbox,
                                  actor_gateway_choice_t *choice, const proto_finished_t *finished);
void actor_gateway_send_finish(actor_gateway_core_t *self, actor_outbox_t *outbox,
                               const actor_gateway_choice_t *choice, uint32_t token_index,
                               proto_finish_reason_t reason);

/* ---- actor_gateway_snapshot.c ---------------------------------------------------------------- */

void actor_gateway_save(const void *core, proto_pack_t *state, proto_pack_t *secret);

#endif
