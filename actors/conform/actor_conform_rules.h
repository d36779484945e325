/* actor_conform_rules.h - the one list of rules that a scheduler is checked against.
 *
 * Owns names, texts and where each rule is written down; `onepath conform scheduler --list-rules`
 * and docs/conformance.md are made from it.  Names are stable: scripts match on them.  No state.
 * Long because it is one list. */
#ifndef ACTOR_CONFORM_RULES_H
#define ACTOR_CONFORM_RULES_H

#include <stdint.h>

#include "proto_messages.h"

/* RULE(ID, "name", "section: S: of docs/scheduler-protocol.md, P: of docs/protocol.md", "text") */
#define ACTOR_CONFORM_RULE_LIST(RULE)                                                              \
    RULE(                                                                                          \
        LINK_HANDSHAKE, "link.handshake", "P: Opening a link",                                     \
        "HELLO is answered with INIT: own role, name, epoch, a version that both speak, sequence " \
        "number 0")                                                                                \
    RULE(LINK_VERSION, "link.version", "P: Opening a link",                                        \
         "a HELLO without a common version is answered with REFUSE, ERR_VERSION")                  \
    RULE(LINK_NOT_OPEN, "link.not-open", "P: Opening a link",                                      \
         "a message before READY is answered with NAK, ERR_STALE")                                 \
    RULE(LINK_OLD_EPOCH, "link.old-epoch", "P: Opening a link",                                    \
         "a HELLO of an older epoch of a known name is answered with REFUSE, ERR_STALE")           \
    RULE(LINK_BYE, "link.bye", "P: Opening a link",                                                \
         "after BYE the same actor may open a link again")                                         \
    RULE(LINK_STOP, "link.stop", "P: Opening a link",                                              \
         "asked to end, the scheduler says BYE on its links and its process ends with code 0")     \
    RULE(LINK_HEARTBEAT, "link.heartbeat", "P: Heartbeats",                                        \
         "heartbeats come at the interval that INIT says, also while nothing else happens")        \
    RULE(LINK_SILENCE, "link.silence", "P: Heartbeats",                                            \
         "a peer that sends no heartbeats any more is given up: its requests end")                 \
    RULE(LINK_SEQUENCE, "link.sequence", "P: Delivery",                                            \
         "messages of a link are numbered 1, 2, 3, ... and carry the sender's epoch")              \
    RULE(LINK_DUPLICATE, "link.duplicate", "P: Delivery",                                          \
         "a message with a sequence number that came before has no effect")                        \
    RULE(LINK_GAP, "link.gap", "P: Delivery",                                                      \
         "a gap in the sequence ends the link: what comes after it has no effect, HELLO begins "   \
         "anew")                                                                                   \
    RULE(LINK_NAK, "link.nak", "P: NAK",                                                           \
         "what cannot be read, or is of no known kind, is answered with NAK and its number")       \
    RULE(LINK_GOES_ON, "link.goes-on", "P: NAK",                                                   \
         "after a message that could not be read the link goes on")                                \
    RULE(LINK_READABLE, "link.readable", "P: What a decoder checks",                               \
         "every message of the scheduler decodes: no value beyond its limit")                      \
    RULE(LINK_KIND, "link.kind", "S: The course of a link",                                        \
         "an executor gets RESET, ADMIT and PLAN, a gateway MODEL_INFO, TOKENS, FINISHED, LOAD")   \
    RULE(ATTACH_RESET, "attach.reset", "S: The course of a link",                                  \
         "EXECUTOR_INFO is answered with RESET before any ADMIT or PLAN")                          \
    RULE(ATTACH_REFUSAL, "attach.refusal", "S: The course of a link",                              \
         "an executor that cannot be used is answered with NAK of its EXECUTOR_INFO")              \
    RULE(ATTACH_MODEL_INFO, "attach.model-info", "S: The course of a link",                        \
         "with an executor each gateway gets MODEL_INFO with the executor's figures")              \
    RULE(                                                                                          \
        ATTACH_LOST, "attach.lost", "S: The course of a link",                                     \
        "without an executor MODEL_INFO says slot_count 0: on a link that opens, and when it was " \
        "lost")                                                                                    \
    RULE(ADMIT_SLOT, "admit.slot", "S: States of a request",                                       \
         "ADMIT names a slot of 1..slot_count that no other request has")                          \
    RULE(ADMIT_REUSE, "admit.reuse", "S: Plans",                                                   \
         "a slot is given away again only when the result of the plan that released it is there")  \
    RULE(ADMIT_REQUEST, "admit.request", "S: States of a request",                                 \
         "ADMIT is of a request that was submitted and has not ended, once for each executor")     \
    RULE(ADMIT_CONTENT, "admit.content", "S: Who owns what",                                       \
         "ADMIT carries tokens, sampling and page hashes exactly as they were submitted")          \
    RULE(ADMIT_LENGTH, "admit.length", "S: Plans",                                                 \
         "length_max of ADMIT is prompt_length + generation_max of SUBMIT")                        \
    RULE(SLOT_RELEASE, "slot.release", "S: Plans",                                                 \
         "the slot of an ended request is released by a plan, also when nothing else is to do")    \
    RULE(PLAN_STEP, "plan.step", "S: The course of a link",                                        \
         "step numbers go up and never come again within one scheduler")                           \
    RULE(PLAN_FIRST_FULL, "plan.first-full", "S: Plans",                                           \
         "the first plan for an executor is full: base_step 0")                                    \
    RULE(PLAN_FULL_ALONE, "plan.full-alone", "S: Plans",                                           \
         "a full plan goes out only when no plan before it can still be refused")                  \
    RULE(PLAN_IN_FLIGHT, "plan.in-flight", "S: The course of a link",                              \
         "at most 1 + overlap depth plans wait for their results")                                 \
    RULE(PLAN_STALE, "plan.stale", "S: Plans", "base_step is the plan before, or 0")               \
    RULE(PLAN_SLOT_RANGE, "plan.slot-range", "S: Plans", "slots are 1..slot_count")                \
    RULE(PLAN_SLOT_EMPTY, "plan.slot-empty", "S: The course of a link",                            \
         "ADMIT comes before the plan that first uses the slot")                                   \
    RULE(PLAN_SLOT_TWICE, "plan.slot-twice", "S: Plans", "a slot is in one row of a batch")        \
    RULE(PLAN_GROUP_RANGE, "plan.group-range", "S: Plans", "a cache group exists")                 \
    RULE(PLAN_COLUMN_RANGE, "plan.column-range", "S: Plans", "a column is within the table")       \
    RULE(PLAN_BLOCK_RANGE, "plan.block-range", "S: Blocks", "a block id is within the pool")       \
    RULE(PLAN_COLUMN_MISSING, "plan.column-missing", "S: Plans",                                   \
         "each token to compute or to read has a block")                                           \
    RULE(PLAN_WRITE_SHARED, "plan.write-shared", "S: Plans",                                       \
         "a block that is written belongs to one request alone")                                   \
    RULE(PLAN_TOKEN_RANGE, "plan.token-range", "S: Plans",                                         \
         "rows are within the tokens that the request has")                                        \
    RULE(PLAN_LENGTH_LIMIT, "plan.length-limit", "S: Plans", "no row goes beyond length_max")      \
    RULE(PLAN_BUDGET, "plan.budget", "S: Plans",                                                   \
         "at most step_tokens_max tokens and slot_count rows in a step")                           \
    RULE(PLAN_SHAPE, "plan.shape", "S: Plans", "columns of one table have one length")             \
    RULE(PLAN_WIDTH, "plan.width", "S: Plans", "the width is the executor's decode_width")         \
    RULE(EXTEND_IN_FLIGHT, "extend.in-flight", "S: Plans",                                         \
         "no extend while a row of the same request that samples is in flight")                    \
    RULE(EXTEND_SAMPLES, "extend.samples", "S: Plans",                                             \
         "an extend that ends with the last known token samples, and no other does")               \
    RULE(ROW_ENDED, "row.ended", "S: Ends",                                                        \
         "an ended request is not computed any more, beyond what was in flight")                   \
    RULE(BLOCK_CONTENT, "block.content", "S: Blocks",                                              \
         "what a row reads was computed for the same tokens and not overwritten since")            \
    RULE(BLOCK_OWNER, "block.owner", "S: Blocks",                                                  \
         "a block is in two tables only where both have the same tokens, all computed")            \
    RULE(BLOCK_STATE, "block.state", "S: State groups",                                            \
         "in a state group a row finds the state after exactly the tokens before it")              \
    RULE(BLOCK_CLEAR, "block.clear", "S: Plans",                                                   \
         "blocks of a request that ended with a NaN are cleared before they are used again")       \
    RULE(TOKENS_SHAPE, "tokens.shape", "S: Feedback",                                              \
         "columns of TOKENS agree: rows, counts, tokens, log probabilities")                       \
    RULE(TOKENS_OWNER, "tokens.owner", "S: Feedback",                                              \
         "a gateway gets rows of its own requests only")                                           \
    RULE(TOKENS_INDEX, "tokens.index", "S: Ends",                                                  \
         "token_indices counts on from `emitted`, in order")                                       \
    RULE(TOKENS_COMPLETE, "tokens.complete", "S: Feedback",                                        \
         "each token of a result reaches the gateway, once")                                       \
    RULE(TOKENS_VALUE, "tokens.value", "S: Feedback",                                              \
         "tokens and log probabilities are those of the result's row")                             \
    RULE(TOKENS_LENGTH, "tokens.length", "S: Ends",                                                \
         "no token beyond generation_max, none after a stop token")                                \
    RULE(TOKENS_AFTER_END, "tokens.after-end", "S: Ends", "no TOKENS of a request after FINISHED") \
    RULE(END_ONCE, "end.once", "S: Ends", "exactly one FINISHED for each SUBMIT")                  \
    RULE(END_OWNER, "end.owner", "S: Ends", "FINISHED goes to the gateway of the request")         \
    RULE(END_AFTER_TOKENS, "end.after-tokens", "S: Ends", "FINISHED comes after the last TOKENS")  \
    RULE(END_COUNTS, "end.counts", "S: Ends",                                                      \
         "FINISHED counts prompt, cached and generated tokens right")                              \
    RULE(END_STATUS, "end.status", "S: Ends",                                                      \
         "status, code and detail go with the reason: OK and empty, or a failure with a code")     \
    RULE(END_LENGTH, "end.length", "S: Ends",                                                      \
         "a request that gave generation_max tokens ends with LENGTH")                             \
    RULE(END_STOP_TOKEN, "end.stop-token", "S: Ends",                                              \
         "a stop token is delivered, counts, and ends the request with STOP")                      \
    RULE(END_CANCEL, "end.cancel", "S: Ends",                                                      \
         "FINISH ends a request in any state, also before its admission; code cancelled")          \
    RULE(END_INDEX, "end.index", "S: Ends",                                                        \
         "after FINISH only tokens before its token_index count")                                  \
    RULE(END_CANCEL_TWICE, "end.cancel-twice", "S: Ends",                                          \
         "a second FINISH, or one of an unknown or ended request, has no effect")                  \
    RULE(END_NAN, "end.nan", "S: Ends",                                                            \
         "a row with a NaN ends its request with nan_logits; no token of the row counts")          \
    RULE(END_NEVER_FITS, "end.never-fits", "S: Blocks",                                            \
         "a request that can never fit is refused at once with never_fits")                        \
    RULE(END_INVALID, "end.invalid", "S: Ends", "a SUBMIT that contradicts itself: invalid")       \
    RULE(END_OVERLOADED, "end.overloaded", "S: The queue",                                         \
         "beyond queue_len_max waiting requests: overloaded, with retry_after_ms")                 \
    RULE(END_QUEUE_TIMEOUT, "end.queue-timeout", "S: The queue",                                   \
         "a request that waits longer than its timeout is refused with queue_timeout")             \
    RULE(END_RESUME, "end.resume", "S: Ends",                                                      \
         "with `emitted`, token indices and FINISHED count on from there")                         \
    RULE(END_DUPLICATE, "end.duplicate", "S: Ends",                                                \
         "a second SUBMIT of a request that runs or ended just now gets no answer of its own")     \
    RULE(END_RESUBMIT, "end.resubmit", "S: When a scheduler is replaced",                          \
         "a gateway that comes back may submit its open requests again, under the same ids")       \
    RULE(END_NO_EXECUTOR, "end.no-executor", "S: Ends",                                            \
         "a SUBMIT without an executor is refused with no_executor, or waits and is served")       \
    RULE(END_EXECUTOR_LOST, "end.executor-lost", "S: The course of a link",                        \
         "when the executor is lost its requests end with worker_lost, or are planned anew")       \
    RULE(END_GATEWAY_GONE, "end.gateway-gone", "S: Ends",                                          \
         "when a gateway leaves, its requests end and others are unharmed")                        \
    RULE(PROGRESS_IDLE, "progress.idle", "S: The queue",                                           \
         "while something can run and nothing is in flight a plan comes")                          \
    RULE(PROGRESS_STARVE, "progress.starve", "S: The queue",                                       \
         "a request of low priority, a long one and a big one end, whatever runs beside them")     \
    RULE(PROGRESS_END, "progress.end", "S: The queue",                                             \
         "every request ends within a bounded number of steps")                                    \
    RULE(REFUSAL_FULL_PLAN, "refusal.full-plan", "S: After a refusal",                             \
         "the plan after a refusal is full")                                                       \
    RULE(REFUSAL_UNHARMED, "refusal.unharmed", "S: After a refusal",                               \
         "requests that are not in the refused plan go on as if nothing had happened")             \
    RULE(REFUSAL_RECOVERS, "refusal.recovers", "S: After a refusal",                               \
         "the requests of a refused plan start over, or end with plan_refused")                    \
    RULE(RESULT_LATE, "result.late", "S: Feedback",                                                \
         "a STEP_RESULT that comes twice or late has no effect")                                   \
    RULE(RESULT_FAULT, "result.fault", "S: Feedback",                                              \
         "a STEP_RESULT of another shape than its plan: requests end, RESET, service goes on")     \
    RULE(RESTART_RESET, "restart.reset", "S: The course of a link",                                \
         "a new executor is reset, and nothing that an earlier one had is taken for granted")      \
    RULE(RESTART_SERVES, "restart.serves", "S: The course of a link",                              \
         "after the executor came back requests are served again")

typedef enum {
#define ACTOR_CONFORM_RULE_ENUM(id, name, section, text) CONFORM_##id,
    ACTOR_CONFORM_RULE_LIST(ACTOR_CONFORM_RULE_ENUM)
#undef ACTOR_CONFORM_RULE_ENUM
        CONFORM_RULE_COUNT
} conform_rule_t;

typedef struct {
    const char *name;
    const char *section; /* "S: " or "P: " and a heading */
    const char *text;
} conform_rule_text_t;

/* Never NULL. */
const conform_rule_text_t *actor_conform_rule(conform_rule_t rule);

/* The rule of a refusal by the executor. */
conform_rule_t actor_conform_rule_of_plan(proto_plan_rule_t rule);

#endif
