/* proto_messages.h - the one list of messages.  It gives the enum, the structs, the codec's tables,
 * the JSON view, the round-trip tests, the fuzz corpus and docs/protocol.md.
 *
 * MESSAGE(NAME, name, number, scope, form, "who -> whom", "what it is for")
 *   who    the roles that may send it: actor_roles.h reads it, and a receiver refuses it from
 * others scope  WIRE between actors, LOCAL between a core and its own shell (logged, never sent)
 *   form   MAP for handshakes (unknown keys skipped), ARRAY for all others (positional and
 *          append-only: new fields go to the end, unknown trailing fields are skipped, a missing
 *          trailing field takes the value 0 / "" / empty)
 * PROTO_FIELDS_name(FIELD) lists FIELD(name, TYPE, limit, PRIVACY, "meaning, unit"):
 *   TYPE     U32 U64 I64 F64 BOOL STR BIN, or a column COL_U8 COL_U32 COL_I32 COL_U64 COL_F32,
 *            which lies in the blob, little endian, at a 64-byte aligned offset
 *   limit    the largest number (U32, U64), bytes (STR, BIN) or entries (columns); for I64 the
 *            largest magnitude; ignored for F64 (which must be finite) and BOOL
 *   PRIVACY  PRIVATE content is dropped by `log redact`: prompts, tokens, sampling
 * Numbers and positions never change once released; see docs/protocol.md for the rules.
 * Long because it is one list: split, it would no longer be the one place. */
#ifndef PROTO_MESSAGES_H
#define PROTO_MESSAGES_H

#include "proto_messages_pd.h"

enum {
    PROTO_SCHEMA_VERSION = 1,
    PROTO_SCHEMA_VERSION_MIN = 1, /* the oldest version that we talk to */
    PROTO_TEXT_LEN_MAX = 1024,    /* bytes of a name or sentence */
    PROTO_ROWS_MAX = 4096,        /* requests in one forward batch */
    PROTO_TOKENS_MAX = 1 << 20,   /* tokens of one prompt, or of one step */
    PROTO_BLOCKS_MAX = 1 << 22,   /* block ids in one plan */
    PROTO_PAGES_MAX = 1 << 16,    /* prefix pages of one prompt */
    PROTO_GROUPS_MAX = 64,        /* cache groups */
    PROTO_CHOICES_MAX = 16,       /* `n` of a request */
    PROTO_LOGPROBS_MAX = 20,      /* `top_logprobs` of a request */
    PROTO_STOP_IDS_MAX = 64,
    PROTO_BIAS_MAX = 300,
    PROTO_LOOK_ROWS_MAX = 128,  /* requests in one REQUESTS */
    PROTO_LOOK_ACTORS_MAX = 32, /* actors of a node, links of an actor */
    PROTO_LOOK_LINKS_MAX = 256, /* links of a node */
};

#define PROTO_MESSAGE_LIST(MESSAGE)                                                                \
    /* Links: every pair of actors (docs/protocol.md, Handshake). */                               \
    MESSAGE(HELLO, hello, 1, WIRE, MAP, "connector -> binder", "asks for a link")                  \
    MESSAGE(INIT, init, 2, WIRE, MAP, "binder -> connector", "accepts the link, gives settings")   \
    MESSAGE(READY, ready, 3, WIRE, MAP, "connector -> binder", "the link is open")                 \
    MESSAGE(REFUSE, refuse, 4, WIRE, MAP, "binder -> connector", "refuses the link, says why")     \
    MESSAGE(HEARTBEAT, heartbeat, 5, WIRE, ARRAY, "both", "alive, and how far the work is")        \
    MESSAGE(BYE, bye, 6, WIRE, ARRAY, "both", "an orderly end of the link")                        \
    MESSAGE(NAK, nak, 7, WIRE, ARRAY, "both", "a message could not be decoded or is not known")    \
    /* Control: supervisor and every actor. */                                                     \
    MESSAGE(ACTOR_STATE, actor_state, 10, WIRE, ARRAY, "actor -> supervisor", "load progress")     \
    MESSAGE(STOP, stop, 11, WIRE, ARRAY, "supervisor -> actor", "end in good order")               \
    MESSAGE(DOWN, down, 12, WIRE, ARRAY, "supervisor -> actor", "another actor's process ended")   \
    MESSAGE(STATS, stats, 13, WIRE, ARRAY, "actor -> supervisor", "what this actor did so far")    \
    MESSAGE(RELINK, relink, 14, WIRE, ARRAY, "supervisor -> actor",                                \
            "leave a peer of this role and link to the endpoint instead")                          \
    MESSAGE(COMPLAINT, complaint, 15, WIRE, ARRAY, "actor -> supervisor",                          \
            "a peer is gone, or breaks the protocol")                                              \
    MESSAGE(COMMAND, command, 16, WIRE, ARRAY, "client -> supervisor -> actor",                    \
            "a wish of the operator")                                                              \
    MESSAGE(COMMAND_DONE, command_done, 17, WIRE, ARRAY, "actor -> supervisor -> client",          \
            "what became of a COMMAND")                                                            \
    MESSAGE(LINKED, linked, 18, WIRE, ARRAY, "actor -> supervisor",                                \
            "a link that this actor opened is up")                                                 \
    /* Inputs that a shell gives to its own core. */                                               \
    MESSAGE(PEER_UP, peer_up, 20, LOCAL, ARRAY, "shell -> core", "a link opened")                  \
    MESSAGE(PEER_DOWN, peer_down, 21, LOCAL, ARRAY, "shell -> core", "a link ended")               \
    MESSAGE(TIMER, timer, 22, LOCAL, ARRAY, "shell -> core", "the core's deadline has passed")     \
    MESSAGE(DRAIN, drain, 23, LOCAL, ARRAY, "shell -> core", "admit nothing more, finish")         \
    /* Looking at a node: operators and dashboards. */                                             \
    MESSAGE(LOOK, look, 24, WIRE, ARRAY, "client -> supervisor -> actor", "asks what it sees")     \
    MESSAGE(REQUESTS, requests, 25, WIRE, ARRAY, "actor -> supervisor -> client",                  \
            "open requests, and what each one waits for")                                          \
    MESSAGE(ACTORS, actors, 26, WIRE, ARRAY, "supervisor -> client, gateway",                      \
            "every actor of the node and its links")                                               \
    MESSAGE(LINKS, links, 27, WIRE, ARRAY, "actor -> supervisor", "the links of this actor")       \
    MESSAGE(HOLD, hold, 28, WIRE, ARRAY, "supervisor -> gateway",                                  \
            "admit nothing new, until told otherwise")                                             \
    /* A node: gateway, scheduler, executor. */                                                    \
    MESSAGE(EXECUTOR_INFO, executor_info, 30, WIRE, ARRAY, "executor -> scheduler",                \
            "what the executor has: cache, limits")                                                \
    MESSAGE(MODEL_INFO, model_info, 31, WIRE, ARRAY, "scheduler, role -> gateway, role",           \
            "what can be served: model, limits")                                                   \
    MESSAGE(SUBMIT, submit, 32, WIRE, ARRAY, "gateway, role -> scheduler", "a new request")        \
    MESSAGE(FINISH, finish, 33, WIRE, ARRAY, "gateway, role -> scheduler",                         \
            "end a request at a token")                                                            \
    MESSAGE(TOKENS, tokens, 34, WIRE, ARRAY, "scheduler, role -> gateway, role",                   \
            "new tokens of a step")                                                                \
    MESSAGE(FINISHED, finished, 35, WIRE, ARRAY, "scheduler, role -> gateway, role",               \
            "the one terminal answer of a request")                                                \
    MESSAGE(SAMPLING, sampling, 36, LOCAL, ARRAY, "inside SUBMIT and ADMIT",                       \
            "how to choose tokens; opaque to the scheduler")                                       \
    MESSAGE(LOAD, load, 37, WIRE, ARRAY,                                                           \
            "scheduler, role -> gateway, role -> supervisor -> client", "queue and cache figures") \
    MESSAGE(ADMIT, admit, 40, WIRE, ARRAY, "scheduler -> executor", "a request takes a slot")      \
    MESSAGE(PLAN, plan, 41, WIRE, ARRAY, "scheduler -> executor", "one step, as a patch")          \
    MESSAGE(STEP_RESULT, step_result, 42, WIRE, ARRAY, "executor -> scheduler",                    \
            "what a step gave, and its cost")                                                      \
    MESSAGE(PLAN_REFUSED, plan_refused, 43, WIRE, ARRAY, "executor -> scheduler",                  \
            "a plan breaks a rule and was not applied")                                            \
    MESSAGE(RESET, reset, 44, WIRE, ARRAY, "scheduler -> executor", "drop every row")              \
    /* Executor core and its device thread. */                                                     \
    MESSAGE(SLOT_SETUP, slot_setup, 50, LOCAL, ARRAY, "core -> device", "a request takes a slot")  \
    MESSAGE(STEP_LAUNCH, step_launch, 51, LOCAL, ARRAY, "core -> device", "a checked step")        \
    MESSAGE(STEP_DONE, step_done, 52, LOCAL, ARRAY, "device -> core", "a step's outputs")          \
    MESSAGE(DEVICE_READY, device_ready, 53, LOCAL, ARRAY, "device -> core", "the model is loaded") \
    MESSAGE(DEVICE_FAILED, device_failed, 54, LOCAL, ARRAY, "device -> core", "a sticky error")    \
    MESSAGE(DEVICE_RESET, device_reset, 55, LOCAL, ARRAY, "core -> device", "forget every slot")   \
    /* Gateway core and its HTTP shell. */                                                         \
    MESSAGE(HTTP_REQUEST, http_request, 60, LOCAL, ARRAY, "http -> core", "a parsed request")      \
    MESSAGE(HTTP_STOP, http_stop, 61, LOCAL, ARRAY, "http -> core",                                \
            "a stop string matched, or the client went away")                                      \
    MESSAGE(HTTP_TOKENS, http_tokens, 62, LOCAL, ARRAY, "core -> http", "tokens of one choice")    \
    MESSAGE(HTTP_END, http_end, 63, LOCAL, ARRAY, "core -> http", "one choice ended")              \
    MESSAGE(HTTP_STATE, http_state, 64, LOCAL, ARRAY, "core -> http", "ready or not, and why")     \
    /* Executor and drafter.  Rows and candidates lie in ring slots (gpu/draft/draft_ring.h). */   \
    MESSAGE(DRAFT_PROPOSE, draft_propose, 70, WIRE, ARRAY, "executor -> drafter",                  \
            "a ring slot will hold the rows of a step")                                            \
    MESSAGE(DRAFT_PROPOSED, draft_proposed, 71, WIRE, ARRAY, "drafter -> executor",                \
            "that ring slot holds the candidates")                                                 \
    MESSAGE(DRAFTER_INFO, drafter_info, 72, WIRE, MAP, "drafter -> executor",                      \
            "what it drafts for; asks to be used")                                                 \
    MESSAGE(DRAFTER_ACCEPT, drafter_accept, 73, WIRE, MAP, "executor -> drafter",                  \
            "where the ring is, and its sizes")                                                    \
    MESSAGE(DRAFTER_REFUSE, drafter_refuse, 74, WIRE, MAP, "executor -> drafter",                  \
            "they do not fit: both values")                                                        \
    MESSAGE(DRAFT_OPEN, draft_open, 75, LOCAL, ARRAY, "core -> device",                            \
            "use this ring from now on, or none")                                                  \
    MESSAGE(DRAFT_LAUNCH, draft_launch, 76, LOCAL, ARRAY, "core -> device", "draft for a step")    \
    MESSAGE(DRAFT_DONE, draft_done, 77, LOCAL, ARRAY, "device -> core", "what was proposed")       \
    /* KV transfer and roles: 80-109, in proto_messages_pd.h. */                                   \
    MESSAGE(TRANSFER_OFFER, transfer_offer, 80, WIRE, ARRAY, "decode-role -> prefill-role",        \
            "asks for a prefill, names the destination")                                           \
    MESSAGE(TRANSFER_DONE, transfer_done, 81, WIRE, ARRAY, "kv-transfer -> role",                  \
            "a transfer landed whole, or failed")                                                  \
    MESSAGE(LEASE_RENEW, lease_renew, 82, WIRE, ARRAY, "decode-role -> prefill-role",              \
            "keeps what is held for it")                                                           \
    MESSAGE(FENCE, fence, 83, WIRE, ARRAY, "scheduler -> kv-transfer",                             \
            "no copy of this transfer may begin")                                                  \
    MESSAGE(FENCED, fenced, 84, WIRE, ARRAY, "kv-transfer -> scheduler",                           \
            "the fence holds, no copy runs")                                                       \
    MESSAGE(RESERVE, reserve, 85, WIRE, ARRAY, "decode-role -> scheduler",                         \
            "blocks for a prompt computed elsewhere")                                              \
    MESSAGE(RESERVED, reserved, 86, WIRE, ARRAY, "scheduler -> decode-role",                       \
            "these blocks wait for their content")                                                 \
    MESSAGE(ACTIVATE, activate, 87, WIRE, ARRAY, "decode-role -> scheduler",                       \
            "the content is there: decode")                                                        \
    MESSAGE(RETURNED, returned, 88, WIRE, ARRAY, "scheduler -> role",                              \
            "every block of a transfer is back")                                                   \
    MESSAGE(TRANSFER_PART, transfer_part, 89, WIRE, ARRAY, "scheduler -> kv-transfer",             \
            "what a planned chunk completes")                                                      \
    MESSAGE(RELEASE, release, 90, WIRE, ARRAY, "role -> scheduler",                                \
            "held or incoming blocks may go back")                                                 \
    MESSAGE(TRANSFER_EXPECT, transfer_expect, 91, WIRE, ARRAY, "decode-role -> kv-transfer",       \
            "these blocks may be written")                                                         \
    MESSAGE(TRANSFER_SERVE, transfer_serve, 92, WIRE, ARRAY, "prefill-role -> kv-transfer",        \
            "what is sent, and to whom")                                                           \
    MESSAGE(TRANSFER_CANCEL, transfer_cancel, 93, WIRE, ARRAY, "role -> kv-transfer",              \
            "end a transfer at once")                                                              \
    MESSAGE(KV_OFFER, kv_offer, 94, WIRE, ARRAY, "kv-transfer -> kv-transfer",                     \
            "source to destination: a transfer begins")                                            \
    MESSAGE(KV_PART, kv_part, 95, WIRE, ARRAY, "kv-transfer -> kv-transfer",                       \
            "source to destination: columns and layers that are ready")                            \
    MESSAGE(KV_LANDED, kv_landed, 96, WIRE, ARRAY, "kv-transfer -> kv-transfer",                   \
            "destination to source: a part landed, or was refused")                                \
    MESSAGE(KV_CANCEL, kv_cancel, 97, WIRE, ARRAY, "kv-transfer -> kv-transfer", "end a transfer") \
    MESSAGE(KV_CANCELLED, kv_cancelled, 98, WIRE, ARRAY, "kv-transfer -> kv-transfer",             \
            "it has ended here")                                                                   \
    MESSAGE(KV_DATA, kv_data, 99, WIRE, ARRAY, "kv-transfer -> kv-transfer",                       \
            "source to destination: bytes of a part")                                              \
    MESSAGE(KV_ARENA, kv_arena, 100, WIRE, ARRAY, "executor, drafter, kv-transfer -> kv-transfer", \
            "registers a cache arena")                                                             \
    MESSAGE(KV_READY, kv_ready, 101, WIRE, ARRAY, "executor, drafter -> kv-transfer",              \
            "layers of a step are written")                                                        \
    MESSAGE(OFFER_TAKEN, offer_taken, 102, WIRE, ARRAY, "prefill-role -> decode-role",             \
            "the prefill is queued, under a lease")                                                \
    MESSAGE(PREFILLED, prefilled, 103, WIRE, ARRAY, "prefill-role -> decode-role",                 \
            "the prompt is computed: its first token")                                             \
    MESSAGE(TRANSFER_FAILED, transfer_failed, 104, WIRE, ARRAY, "prefill-role -> decode-role",     \
            "it will not come")                                                                    \
    MESSAGE(TRANSFER_CLOSE, transfer_close, 105, WIRE, ARRAY, "decode-role -> prefill-role",       \
            "let go of it")                                                                        \
    MESSAGE(TRANSFER_CLOSED, transfer_closed, 106, WIRE, ARRAY, "prefill-role -> decode-role",     \
            "nothing of it is left here")                                                          \
    MESSAGE(PAGES, pages, 107, WIRE, ARRAY, "scheduler, role -> role, gateway",                    \
            "which prefix pages came and went")                                                    \
    MESSAGE(NODE_STATE, node_state, 108, WIRE, ARRAY, "role -> role, gateway",                     \
            "whether a node can serve")                                                            \
    MESSAGE(KV_PULL, kv_pull, 110, WIRE, ARRAY, "kv-transfer -> kv-transfer",                      \
            "destination to source: asks for the bytes of a piece")                                \
    MESSAGE(KV_END, kv_end, 111, WIRE, ARRAY, "kv-transfer -> kv-transfer",                        \
            "source to destination: all bytes of a piece are out, and still right")                \
    MESSAGE(KV_GATE, kv_gate, 112, LOCAL, ARRAY, "core -> data",                                   \
            "a transfer may be read, or no longer")                                                \
    MESSAGE(KV_SERVE, kv_serve, 113, LOCAL, ARRAY, "core -> data", "a piece may be pulled")        \
    MESSAGE(KV_COPY, kv_copy, 114, LOCAL, ARRAY, "core -> data", "bring a piece here")             \
    MESSAGE(KV_COPIED, kv_copied, 115, LOCAL, ARRAY, "data -> core", "it is here, or why not")     \
    MESSAGE(KV_WATCH, kv_watch, 116, LOCAL, ARRAY, "core -> data", "steps whose layers matter")

/* ---- links ---------------------------------------------------------------------------------- */
#define PROTO_FIELDS_hello(FIELD)                                                                  \
    FIELD(version_min, U32, 65535, OPEN, "oldest schema version spoken")                           \
    FIELD(version_max, U32, 65535, OPEN, "newest schema version spoken")                           \
    FIELD(role, U32, 255, OPEN, "proto_role_t of the sender")                                      \
    FIELD(name, STR, 31, OPEN, "actor name, [a-z0-9-]")                                            \
    FIELD(epoch, U64, UINT64_MAX, OPEN, "incarnation of the sender")                               \
    FIELD(fingerprint, STR, PROTO_TEXT_LEN_MAX, OPEN,                                              \
          "what must match, as key=value;...; empty: nothing to compare")                          \
    FIELD(packs, BOOL, 1, OPEN, "reads a message that is packed into one part of the transport")
#define PROTO_FIELDS_init(FIELD)                                                                   \
    FIELD(version, U32, 65535, OPEN, "schema version chosen for this link")                        \
    FIELD(role, U32, 255, OPEN, "proto_role_t of the sender")                                      \
    FIELD(name, STR, 31, OPEN, "actor name")                                                       \
    FIELD(epoch, U64, UINT64_MAX, OPEN, "incarnation of the sender")                               \
    FIELD(heartbeat_ns, U64, UINT64_MAX, OPEN, "interval between heartbeats, ns")                  \
    FIELD(fingerprint, STR, PROTO_TEXT_LEN_MAX, OPEN, "the binder's own, for the log")             \
    FIELD(packs, BOOL, 1, OPEN, "both ends do: what follows is packed")
#define PROTO_FIELDS_ready(FIELD) FIELD(epoch, U64, UINT64_MAX, OPEN, "incarnation of the sender")
#define PROTO_FIELDS_refuse(FIELD)                                                                 \
    FIELD(status, I64, 1000, OPEN, "proto_status_t")                                               \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "the rule that was broken")                       \
    FIELD(expected, STR, PROTO_TEXT_LEN_MAX, OPEN, "the binder's value")                           \
    FIELD(got, STR, PROTO_TEXT_LEN_MAX, OPEN, "the connector's value")
#define PROTO_FIELDS_heartbeat(FIELD)                                                              \
    FIELD(progress, U64, UINT64_MAX, OPEN, "count of inputs handled; stands still when stuck")     \
    FIELD(step, U64, UINT64_MAX, OPEN, "step in work; 0 = none")                                   \
    FIELD(layer, U32, 65535, OPEN, "layer in work")                                                \
    FIELD(step_age_ns, U64, UINT64_MAX, OPEN, "how long that step has run, ns")                    \
    FIELD(step_budget_ns, U64, UINT64_MAX, OPEN, "when it counts as stuck, ns; 0 = no step")
#define PROTO_FIELDS_bye(FIELD) FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "why")
#define PROTO_FIELDS_nak(FIELD)                                                                    \
    FIELD(sequence, U64, UINT64_MAX, OPEN, "sequence number of the refused message")               \
    FIELD(kind, U32, 65535, OPEN, "its message number")                                            \
    FIELD(status, I64, 1000, OPEN, "proto_status_t")                                               \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "what was wrong")

/* ---- control -------------------------------------------------------------------------------- */
#define PROTO_FIELDS_actor_state(FIELD)                                                            \
    FIELD(state, U32, 15, OPEN, "0 starting, 1 loading, 2 ready, 3 draining, 4 failing")           \
    FIELD(done_bytes, U64, UINT64_MAX, OPEN, "loaded so far")                                      \
    FIELD(total_bytes, U64, UINT64_MAX, OPEN, "to load")                                           \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "phase, endpoint or reason")                      \
    FIELD(exit_code, U32, 255, OPEN, "with state 4: the exit code that follows")
#define PROTO_FIELDS_stop(FIELD) FIELD(grace_ns, U64, UINT64_MAX, OPEN, "time to drain, ns")
#define PROTO_FIELDS_down(FIELD)                                                                   \
    FIELD(role, U32, 255, OPEN, "proto_role_t of the actor that ended")                            \
    FIELD(name, STR, 31, OPEN, "its name")                                                         \
    FIELD(epoch, U64, UINT64_MAX, OPEN, "the incarnation that ended")                              \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "signal or exit code")
#define PROTO_FIELDS_stats(FIELD)                                                                  \
    FIELD(messages_in, U64, UINT64_MAX, OPEN, "wire messages received")                            \
    FIELD(messages_out, U64, UINT64_MAX, OPEN, "wire messages sent")                               \
    FIELD(bytes_in, U64, UINT64_MAX, OPEN, "bytes received, all parts")                            \
    FIELD(bytes_out, U64, UINT64_MAX, OPEN, "bytes sent, all parts")                               \
    FIELD(refused_in, U64, UINT64_MAX, OPEN, "messages refused")                                   \
    FIELD(steps, U64, UINT64_MAX, OPEN, "plans made or run")                                       \
    FIELD(prompt_tokens, U64, UINT64_MAX, OPEN, "prompt tokens computed (not from the cache)")     \
    FIELD(generation_tokens, U64, UINT64_MAX, OPEN, "tokens generated")                            \
    FIELD(graph_steps, U64, UINT64_MAX, OPEN, "steps replayed from a graph")                       \
    FIELD(eager_steps, U64, UINT64_MAX, OPEN, "decode steps run without a graph")                  \
    FIELD(cpu_ns, U64, UINT64_MAX, OPEN, "processor time of the process, ns")                      \
    FIELD(resident_bytes, U64, UINT64_MAX, OPEN, "largest resident size")                          \
    FIELD(record_dropped, U64, UINT64_MAX, OPEN, "log records dropped")                            \
    FIELD(busy_ns, U64, UINT64_MAX, OPEN, "time with at least one step running, ns")               \
    FIELD(wide_steps, U64, UINT64_MAX, OPEN, "steps whose decode rows had room for candidates")    \
    FIELD(drafts_proposed, U64, UINT64_MAX, OPEN, "candidates in windows")                         \
    FIELD(drafts_accepted, U64, UINT64_MAX, OPEN, "of these, accepted")                            \
    FIELD(drafts_missing, U64, UINT64_MAX, OPEN, "rows with room for candidates that had none")    \
    FIELD(drafts_ignored, U64, UINT64_MAX, OPEN, "stale, miscounted or out of range: not tested")
#define PROTO_FIELDS_relink(FIELD)                                                                 \
    FIELD(role, U32, 255, OPEN, "proto_role_t of the peer to leave")                               \
    FIELD(endpoint, STR, 255, OPEN, "where its successor listens")                                 \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "why, for the log")
#define PROTO_FIELDS_complaint(FIELD)                                                              \
    FIELD(role, U32, 255, OPEN, "proto_role_t of the peer")                                        \
    FIELD(name, STR, 31, OPEN, "its name")                                                         \
    FIELD(epoch, U64, UINT64_MAX, OPEN, "its incarnation")                                         \
    FIELD(reason, U32, 15, OPEN, "proto_complaint_reason_t")                                       \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "how it was noticed, or the rule it broke")
#define PROTO_FIELDS_command(FIELD)                                                                \
    FIELD(verb, STR, 31, OPEN, "scheduler-attach, ..., executor-check, executor-graphs, ...")      \
    FIELD(argument, STR, PROTO_TEXT_LEN_MAX, OPEN, "of the verb; empty if it takes none")
#define PROTO_FIELDS_command_done(FIELD)                                                           \
    FIELD(status, I64, 1000, OPEN, "proto_status_t")                                               \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "the answer, or what is wrong and the remedy")
#define PROTO_FIELDS_linked(FIELD)                                                                 \
    FIELD(role, U32, 255, OPEN, "proto_role_t of the peer")                                        \
    FIELD(name, STR, 31, OPEN, "its name")                                                         \
    FIELD(epoch, U64, UINT64_MAX, OPEN, "its incarnation")                                         \
    FIELD(endpoint, STR, 255, OPEN, "where it listens")

/* ---- looking at a node ----------------------------------------------------------------------- */
#define PROTO_FIELDS_look(FIELD)                                                                   \
    FIELD(target, U32, 15, OPEN, "proto_look_target_t: whose view")                                \
    FIELD(after, U64, UINT64_MAX, OPEN, "the REQUESTS before this one said `next`; 0 = the first")
#define PROTO_FIELDS_requests(FIELD)                                                               \
    FIELD(status, I64, 1000, OPEN, "proto_status_t; not OK: no rows, `detail` says why")           \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "a sentence")                                     \
    FIELD(total, U32, 1 << 20, OPEN, "open requests of this actor")                                \
    FIELD(next, U64, UINT64_MAX, OPEN, "`after` of the LOOK for the rest; 0 = that was all")       \
    FIELD(requests, COL_U64, PROTO_LOOK_ROWS_MAX, OPEN, "[rows] request ids")                      \
    FIELD(states, COL_U8, PROTO_LOOK_ROWS_MAX, OPEN, "[rows] proto_request_state_t")               \
    FIELD(waits, COL_U8, PROTO_LOOK_ROWS_MAX, OPEN, "[rows] proto_wait_t: the resource")           \
    FIELD(holders, COL_U64, PROTO_LOOK_ROWS_MAX, OPEN,                                             \
          "[rows] request that has it, or the step; 0")                                            \
    FIELD(needed, COL_U32, PROTO_LOOK_ROWS_MAX, OPEN, "[rows] how much of it")                     \
    FIELD(available, COL_U32, PROTO_LOOK_ROWS_MAX, OPEN, "[rows] how much there is")               \
    FIELD(ages_ms, COL_U32, PROTO_LOOK_ROWS_MAX, OPEN, "[rows] since it came, ms")                 \
    FIELD(prompt_tokens, COL_U32, PROTO_LOOK_ROWS_MAX, OPEN, "[rows]")                             \
    FIELD(computed_tokens, COL_U32, PROTO_LOOK_ROWS_MAX, OPEN, "[rows] in the cache")              \
    FIELD(generated_tokens, COL_U32, PROTO_LOOK_ROWS_MAX, OPEN, "[rows]")                          \
    FIELD(generation_max, COL_U32, PROTO_LOOK_ROWS_MAX, OPEN, "[rows]")                            \
    FIELD(blocks, COL_U32, PROTO_LOOK_ROWS_MAX, OPEN, "[rows] in its tables, all groups")          \
    FIELD(slots, COL_U32, PROTO_LOOK_ROWS_MAX, OPEN, "[rows] 0 = none")                            \
    FIELD(priorities, COL_I32, PROTO_LOOK_ROWS_MAX, OPEN, "[rows] lower goes first")               \
    FIELD(name_sizes, COL_U8, PROTO_LOOK_ROWS_MAX, OPEN, "[rows] bytes of its name in `names`")    \
    FIELD(names, COL_U8, PROTO_LOOK_ROWS_MAX * 64, OPEN, "x-request-id, as the client knows it")
#define PROTO_FIELDS_actors(FIELD)                                                                 \
    FIELD(node_state, U32, 15, OPEN, "proto_node_health_t")                                        \
    FIELD(owner, STR, 64, OPEN, "who asked for the drain; empty: nobody")                          \
    FIELD(scheduler, STR, 255, OPEN, "endpoint of an attached scheduler; empty: the built-in one") \
    FIELD(names, STR, PROTO_TEXT_LEN_MAX, OPEN, "[actors], each ended by a line feed")             \
    FIELD(details, STR, 8192, OPEN, "[actors] what each said last, each ended by a line feed")     \
    FIELD(roles, COL_U8, PROTO_LOOK_ACTORS_MAX, OPEN, "[actors] proto_role_t")                     \
    FIELD(states, COL_U8, PROTO_LOOK_ACTORS_MAX, OPEN, "[actors] as in ACTOR_STATE")               \
    FIELD(pids, COL_U32, PROTO_LOOK_ACTORS_MAX, OPEN, "[actors] 0 = it does not run")              \
    FIELD(epochs, COL_U64, PROTO_LOOK_ACTORS_MAX, OPEN, "[actors]")                                \
    FIELD(uptimes_ms, COL_U64, PROTO_LOOK_ACTORS_MAX, OPEN, "[actors] since this process began")   \
    FIELD(beat_ages_ms, COL_U32, PROTO_LOOK_ACTORS_MAX, OPEN, "[actors] since its last heartbeat") \
    FIELD(exits, COL_U32, PROTO_LOOK_ACTORS_MAX, OPEN, "[actors] restarts after an exit")          \
    FIELD(signals, COL_U32, PROTO_LOOK_ACTORS_MAX, OPEN, "[actors] restarts after a signal")       \
    FIELD(hangs, COL_U32, PROTO_LOOK_ACTORS_MAX, OPEN, "[actors] restarts because it hung")        \
    FIELD(detections_us, COL_U32, PROTO_LOOK_ACTORS_MAX, OPEN,                                     \
          "[actors] last sign of life to notice of its end, the last time")                        \
    FIELD(cpu_ns, COL_U64, PROTO_LOOK_ACTORS_MAX, OPEN, "[actors] processor time")                 \
    FIELD(resident_bytes, COL_U64, PROTO_LOOK_ACTORS_MAX, OPEN, "[actors] now")                    \
    FIELD(steps, COL_U64, PROTO_LOOK_ACTORS_MAX, OPEN, "[actors] step in work; 0 = none")          \
    FIELD(step_ages_ms, COL_U32, PROTO_LOOK_ACTORS_MAX, OPEN, "[actors] how long it has run")      \
    FIELD(refused_in, COL_U64, PROTO_LOOK_ACTORS_MAX, OPEN, "[actors] messages refused")           \
    FIELD(record_dropped, COL_U64, PROTO_LOOK_ACTORS_MAX, OPEN, "[actors] log records dropped")    \
    FIELD(link_names, STR, 8192, OPEN, "[links] the peer, each ended by a line feed")              \
    FIELD(link_actors, COL_U8, PROTO_LOOK_LINKS_MAX, OPEN,                                         \
          "[links] index of the actor whose it is")                                                \
    FIELD(link_ages_ms, COL_U32, PROTO_LOOK_LINKS_MAX, OPEN, "[links] since the peer was heard")   \
    FIELD(link_in, COL_U64, PROTO_LOOK_LINKS_MAX, OPEN, "[links] messages received")               \
    FIELD(link_out, COL_U64, PROTO_LOOK_LINKS_MAX, OPEN, "[links] messages sent")
#define PROTO_FIELDS_links(FIELD)                                                                  \
    FIELD(names, STR, PROTO_TEXT_LEN_MAX, OPEN, "[links] the peer, each ended by a line feed")     \
    FIELD(ages_ms, COL_U32, PROTO_LOOK_ACTORS_MAX, OPEN, "[links] since the peer was heard")       \
    FIELD(messages_in, COL_U64, PROTO_LOOK_ACTORS_MAX, OPEN, "[links]")                            \
    FIELD(messages_out, COL_U64, PROTO_LOOK_ACTORS_MAX, OPEN, "[links]")
#define PROTO_FIELDS_hold(FIELD)                                                                   \
    FIELD(on, BOOL, 1, OPEN, "false: admit again")                                                 \
    FIELD(owner, STR, 64, OPEN, "who asked for it")

/* ---- a shell to its core -------------------------------------------------------------------- */
#define PROTO_FIELDS_peer_up(FIELD)                                                                \
    FIELD(peer, U32, 255, OPEN, "index of the peer within this actor")                             \
    FIELD(role, U32, 255, OPEN, "proto_role_t")                                                    \
    FIELD(name, STR, 31, OPEN, "actor name")                                                       \
    FIELD(epoch, U64, UINT64_MAX, OPEN, "its incarnation")
#define PROTO_FIELDS_peer_down(FIELD)                                                              \
    FIELD(peer, U32, 255, OPEN, "index of the peer within this actor")                             \
    FIELD(role, U32, 255, OPEN, "proto_role_t")                                                    \
    FIELD(epoch, U64, UINT64_MAX, OPEN, "the incarnation that is gone")                            \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "how it was noticed")
#define PROTO_FIELDS_timer(FIELD) FIELD(deadline_ns, U64, UINT64_MAX, OPEN, "the deadline, ns")
#define PROTO_FIELDS_drain(FIELD) FIELD(grace_ns, U64, UINT64_MAX, OPEN, "time to drain, ns")

/* ---- a node ---------------------------------------------------------------------------------- */
#define PROTO_FIELDS_executor_info(FIELD)                                                          \
    FIELD(model_name, STR, PROTO_TEXT_LEN_MAX, OPEN, "for people")                                 \
    FIELD(fingerprint, STR, PROTO_TEXT_LEN_MAX, OPEN, "model digest, dtype, layout: key=value;")   \
    FIELD(vocab_size, U32, 1 << 24, OPEN, "tokens")                                                \
    FIELD(model_len_max, U32, PROTO_TOKENS_MAX, OPEN, "prompt + generated tokens of a request")    \
    FIELD(slot_count, U32, PROTO_ROWS_MAX, OPEN, "requests at once; slots are 1..slot_count")      \
    FIELD(step_tokens_max, U32, PROTO_TOKENS_MAX, OPEN, "tokens in one forward")                   \
    FIELD(decode_width, U32, 16, OPEN, "tokens a decode row computes; 1 without a drafter")        \
    FIELD(overlap_depth_max, U32, 1, OPEN, "plans that may wait behind the running one")           \
    FIELD(prefix_granularity, U32, 65536, OPEN, "raw tokens of one identity page")                 \
    FIELD(parent_count, U32, PROTO_BLOCKS_MAX, OPEN, "parent blocks, the null parent 0 included")  \
    FIELD(group_kinds, COL_U32, PROTO_GROUPS_MAX, OPEN, "0 full, 1 sliding window, 2 state")       \
    FIELD(group_granularities, COL_U32, PROTO_GROUPS_MAX, OPEN, "raw tokens of a block")           \
    FIELD(group_windows, COL_U32, PROTO_GROUPS_MAX, OPEN, "tokens a sliding group keeps; else 0")  \
    FIELD(group_packings, COL_U32, PROTO_GROUPS_MAX, OPEN, "blocks of the group in a parent")      \
    FIELD(page_hash_key, BIN, 32, PRIVATE, "key of the page identity; all actors must agree")      \
    FIELD(phases, U32, 15, OPEN, "what it runs: 0 everything, 1 prefill only, 2 decode only")      \
    FIELD(hidden_size, U32, 1 << 24, OPEN, "of a hidden row; 0 = not said")
#define PROTO_FIELDS_model_info(FIELD)                                                             \
    FIELD(model_name, STR, PROTO_TEXT_LEN_MAX, OPEN, "for people")                                 \
    FIELD(fingerprint, STR, PROTO_TEXT_LEN_MAX, OPEN, "as in EXECUTOR_INFO")                       \
    FIELD(vocab_size, U32, 1 << 24, OPEN, "tokens")                                                \
    FIELD(model_len_max, U32, PROTO_TOKENS_MAX, OPEN, "prompt + generated tokens of a request")    \
    FIELD(prompt_len_max, U32, PROTO_TOKENS_MAX, OPEN, "longest prompt that can ever fit")         \
    FIELD(slot_count, U32, PROTO_ROWS_MAX, OPEN, "requests at once")                               \
    FIELD(queue_len_max, U32, 1 << 20, OPEN, "requests that may wait")                             \
    FIELD(prefix_granularity, U32, 65536, OPEN, "raw tokens of one identity page")                 \
    FIELD(token_capacity, U64, UINT64_MAX, OPEN, "tokens that the cache holds")                    \
    FIELD(page_hash_key, BIN, 32, PRIVATE, "key of the page identity")                             \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "without an executor: why, if one was refused")
#define PROTO_FIELDS_submit(FIELD)                                                                 \
    FIELD(prompt_length, U32, PROTO_TOKENS_MAX, OPEN, "tokens, at least 1")                        \
    FIELD(generation_max, U32, PROTO_TOKENS_MAX, OPEN, "tokens to generate at most, at least 1")   \
    FIELD(priority, I64, 1000000, OPEN, "lower goes first; 0 by default")                          \
    FIELD(queue_timeout_ns, U64, UINT64_MAX, OPEN, "may wait this long for a slot; 0 = default")   \
    FIELD(emitted, U32, PROTO_TOKENS_MAX, OPEN, "tokens at the prompt's end already generated")    \
    FIELD(page_hashes, BIN, PROTO_PAGES_MAX * 32, OPEN, "32 bytes for each whole prompt page")     \
    FIELD(tokens, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "[prompt_length]")                           \
    FIELD(sampling, COL_U8, 16384, PRIVATE, "an encoded SAMPLING body")                            \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "keep the blocks for this transfer at the end; 0 = no")
#define PROTO_FIELDS_finish(FIELD)                                                                 \
    FIELD(token_index, U32, PROTO_TOKENS_MAX, OPEN, "keep generated tokens [0, token_index)")      \
    FIELD(reason, U32, 15, OPEN, "proto_finish_reason_t")
#define PROTO_FIELDS_tokens(FIELD)                                                                 \
    FIELD(step, U64, UINT64_MAX, OPEN, "the step that gave them")                                  \
    FIELD(requests, COL_U64, PROTO_ROWS_MAX, OPEN, "[rows]")                                       \
    FIELD(token_indices, COL_U32, PROTO_ROWS_MAX, OPEN, "[rows] index of the first one, from 0")   \
    FIELD(token_counts, COL_U8, PROTO_ROWS_MAX, OPEN, "[rows]")                                    \
    FIELD(tokens, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "[sum of counts]")                           \
    FIELD(logprob_widths, COL_U8, PROTO_ROWS_MAX, OPEN, "[rows] entries a token; 0 = none")        \
    FIELD(logprob_ids, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "row by row, [count][width]")           \
    FIELD(logprob_values, COL_F32, PROTO_TOKENS_MAX, PRIVATE, "natural logarithm; same order")
#define PROTO_FIELDS_finished(FIELD)                                                               \
    FIELD(reason, U32, 15, OPEN, "proto_finish_reason_t")                                          \
    FIELD(prompt_tokens, U32, PROTO_TOKENS_MAX, OPEN, "tokens of the prompt")                      \
    FIELD(cached_tokens, U32, PROTO_TOKENS_MAX, OPEN, "of these, found in the prefix cache")       \
    FIELD(generated_tokens, U32, PROTO_TOKENS_MAX, OPEN, "tokens that count")                      \
    FIELD(status, I64, 1000, OPEN, "proto_status_t with reason ERROR or REFUSED")                  \
    FIELD(code, STR, 64, OPEN, "stable code: overloaded, worker_lost, never_fits, ...")            \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "a sentence with the numbers")                    \
    FIELD(retry_after_ms, U32, 600000, OPEN, "0 = do not retry")                                   \
    FIELD(queue_ns, U64, UINT64_MAX, OPEN, "from submit to first plan, ns")                        \
    FIELD(suspects, U32, PROTO_ROWS_MAX, OPEN,                                                     \
          "the executor died in steps with so many requests, this one among them; 0 = not")
#define PROTO_FIELDS_sampling(FIELD)                                                               \
    FIELD(temperature, F64, 0, OPEN, "0..2 and above; below 1e-6 means greedy")                    \
    FIELD(top_p, F64, 0, OPEN, "(0, 1]")                                                           \
    FIELD(min_p, F64, 0, OPEN, "[0, 1]")                                                           \
    FIELD(top_k, U32, 1 << 24, OPEN, "0 = all; 1 = greedy")                                        \
    FIELD(repetition_penalty, F64, 0, OPEN, "1 = none")                                            \
    FIELD(presence_penalty, F64, 0, OPEN, "0 = none")                                              \
    FIELD(frequency_penalty, F64, 0, OPEN, "0 = none")                                             \
    FIELD(seed, U64, UINT64_MAX, OPEN, "key of the Philox stream")                                 \
    FIELD(logprobs, U32, PROTO_LOGPROBS_MAX + 1, OPEN, "0 none, 1 sampled token, 1+n also top n")  \
    FIELD(generation_min, U32, PROTO_TOKENS_MAX, OPEN, "no stop token before this many")           \
    FIELD(ignore_eos, BOOL, 1, OPEN, "the model's own stop tokens do not end it")                  \
    FIELD(stop_ids, BIN, PROTO_STOP_IDS_MAX * 4, OPEN, "more stop tokens, i32 little endian")      \
    FIELD(bias_ids, BIN, PROTO_BIAS_MAX * 4, OPEN, "logit_bias: token ids, i32 little endian")     \
    FIELD(bias_values, BIN, PROTO_BIAS_MAX * 4, OPEN, "logit_bias: f32 little endian")             \
    FIELD(prompt_length, U32, PROTO_TOKENS_MAX, OPEN,                                              \
          "tokens before generation; penalties and "                                               \
          "the draws' positions count from it")                                                    \
    FIELD(page_salt, BIN, 64, PRIVATE, "salt of the page hashes; also for pages of answers")
#define PROTO_FIELDS_load(FIELD)                                                                   \
    FIELD(running, U32, PROTO_ROWS_MAX, OPEN, "requests with a slot")                              \
    FIELD(waiting, U32, 1 << 20, OPEN, "requests without")                                         \
    FIELD(blocks_total, U32, PROTO_BLOCKS_MAX, OPEN, "usable blocks")                              \
    FIELD(blocks_free, U32, PROTO_BLOCKS_MAX, OPEN, "owned by nobody")                             \
    FIELD(blocks_cached, U32, PROTO_BLOCKS_MAX, OPEN, "kept only for the prefix cache")            \
    FIELD(prefix_queries, U64, UINT64_MAX, OPEN, "prompt tokens looked up")                        \
    FIELD(prefix_hits, U64, UINT64_MAX, OPEN, "prompt tokens found")                               \
    FIELD(preemptions, U64, UINT64_MAX, OPEN, "retractions")                                       \
    FIELD(steps, U64, UINT64_MAX, OPEN, "plans made")                                              \
    FIELD(plans_refused, U64, UINT64_MAX, OPEN, "plans that the executor refused")                 \
    FIELD(graph_steps, U64, UINT64_MAX, OPEN, "decode steps replayed from a graph")                \
    FIELD(eager_steps, U64, UINT64_MAX, OPEN, "decode steps run without a graph")                  \
    FIELD(prompt_tokens, U64, UINT64_MAX, OPEN, "prompt tokens computed")                          \
    FIELD(generation_tokens, U64, UINT64_MAX, OPEN, "tokens generated")                            \
    FIELD(above_ladder_steps, U64, UINT64_MAX, OPEN,                                               \
          "of eager_steps: the batch was above the capture ladder")                                \
    FIELD(wide_steps, U64, UINT64_MAX, OPEN, "steps whose decode rows had room for candidates")    \
    FIELD(drafts_proposed, U64, UINT64_MAX, OPEN, "candidates in windows")                         \
    FIELD(drafts_accepted, U64, UINT64_MAX, OPEN, "of these, accepted")                            \
    FIELD(drafts_missing, U64, UINT64_MAX, OPEN, "rows with room for candidates that had none")    \
    FIELD(drafts_ignored, U64, UINT64_MAX, OPEN, "stale, miscounted or out of range: not tested")  \
    FIELD(blocks_held, U32, PROTO_BLOCKS_MAX, OPEN, "wait for a peer to fetch them")               \
    FIELD(blocks_incoming, U32, PROTO_BLOCKS_MAX, OPEN, "wait for their content")                  \
    FIELD(blocks_fencing, U32, PROTO_BLOCKS_MAX, OPEN, "wait until no copy runs")                  \
    FIELD(prefill_graph_steps, U64, UINT64_MAX, OPEN, "steps with prefills replayed from a graph") \
    FIELD(prefill_eager_steps, U64, UINT64_MAX, OPEN, "steps with prefills run without a graph")   \
    FIELD(recomputed_tokens, U64, UINT64_MAX, OPEN, "lost by retractions, to be computed again")   \
    FIELD(evicted_blocks, U64, UINT64_MAX, OPEN, "cached blocks given to others")                  \
    FIELD(stalls, U64, UINT64_MAX, OPEN, "times that work waited and nothing could be planned")
#define PROTO_FIELDS_admit(FIELD)                                                                  \
    FIELD(slot, U32, PROTO_ROWS_MAX, OPEN, "1..slot_count; stays until a plan releases it")        \
    FIELD(prompt_length, U32, PROTO_TOKENS_MAX, OPEN, "tokens")                                    \
    FIELD(length_max, U32, PROTO_TOKENS_MAX, OPEN, "prompt + generated tokens at most")            \
    FIELD(tokens, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "[prompt_length]")                           \
    FIELD(sampling, COL_U8, 16384, PRIVATE, "an encoded SAMPLING body")                            \
    FIELD(page_hashes, BIN, PROTO_PAGES_MAX * 32, OPEN, "as submitted: where the chain goes on")   \
    FIELD(computed, U32, PROTO_TOKENS_MAX, OPEN,                                                   \
          "tokens that the cache holds already: all but the last; 0 = none")                       \
    FIELD(candidates, COL_I32, 16, PRIVATE, "what follows the last token, by a drafter; -1 = none")
/* Applied in this order: releases, patches, clears, then the forward batch (extends first).
 * Ranges, never token ids: the executor has the tokens. */
#define PROTO_FIELDS_plan(FIELD)                                                                   \
    FIELD(step, U64, UINT64_MAX, OPEN, "this step")                                                \
    FIELD(base_step, U64, UINT64_MAX, OPEN, "the step whose tables this patches; 0 = full plan")   \
    FIELD(width, U32, 16, OPEN, "tokens a decode row computes")                                    \
    FIELD(release_slots, COL_U32, PROTO_ROWS_MAX, OPEN, "slots that end here")                     \
    FIELD(patch_slots, COL_U32, PROTO_BLOCKS_MAX, OPEN, "[patches]")                               \
    FIELD(patch_groups, COL_U8, PROTO_BLOCKS_MAX, OPEN, "[patches]")                               \
    FIELD(patch_columns, COL_U32, PROTO_BLOCKS_MAX, OPEN, "[patches] first column")                \
    FIELD(patch_counts, COL_U32, PROTO_BLOCKS_MAX, OPEN, "[patches] columns")                      \
    FIELD(patch_blocks, COL_U32, PROTO_BLOCKS_MAX, OPEN, "[sum of counts] block ids; 0 = hole")    \
    FIELD(clear_groups, COL_U8, PROTO_BLOCKS_MAX, OPEN, "[clears] blocks to zero before use")      \
    FIELD(clear_blocks, COL_U32, PROTO_BLOCKS_MAX, OPEN, "[clears]")                               \
    FIELD(extend_slots, COL_U32, PROTO_ROWS_MAX, OPEN, "[extends]")                                \
    FIELD(extend_begins, COL_U32, PROTO_ROWS_MAX, OPEN, "[extends] tokens already in the cache")   \
    FIELD(extend_lengths, COL_U32, PROTO_ROWS_MAX, OPEN, "[extends] tokens to compute")            \
    FIELD(extend_samples, COL_U8, PROTO_ROWS_MAX, OPEN, "[extends] 1: completes, sample a token")  \
    FIELD(decode_slots, COL_U32, PROTO_ROWS_MAX, OPEN, "[decodes]")
/* Rows are in plan order: extends, then decodes. */
#define PROTO_FIELDS_step_result(FIELD)                                                            \
    FIELD(step, U64, UINT64_MAX, OPEN, "the plan's step")                                          \
    FIELD(mode, U32, 15, OPEN, "proto_step_mode_t")                                                \
    FIELD(duration_ns, U64, UINT64_MAX, OPEN, "device time, ns")                                   \
    FIELD(computed_tokens, U32, PROTO_TOKENS_MAX, OPEN, "tokens in the forward, without padding")  \
    FIELD(token_counts, COL_U8, PROTO_ROWS_MAX, OPEN, "[rows] tokens accepted")                    \
    FIELD(row_flags, COL_U8, PROTO_ROWS_MAX, OPEN, "[rows] PROTO_ROW_*")                           \
    FIELD(hash_rows, COL_U32, PROTO_TOKENS_MAX, OPEN, "[hashes] row of each newly complete page")  \
    FIELD(hash_pages, COL_U32, PROTO_TOKENS_MAX, OPEN, "[hashes] page index within the request")   \
    FIELD(hash_bytes, COL_U8, PROTO_PAGES_MAX * 32, OPEN, "[hashes][32] generated pages only")     \
    FIELD(tokens, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "[sum of counts]")                           \
    FIELD(logprob_widths, COL_U8, PROTO_ROWS_MAX, OPEN, "[rows] entries a token; 0 = none")        \
    FIELD(logprob_ids, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "row by row, [count][width]")           \
    FIELD(logprob_values, COL_F32, PROTO_TOKENS_MAX, PRIVATE, "natural logarithm; same order")     \
    FIELD(drafted, COL_U8, PROTO_ROWS_MAX, OPEN, "[rows] candidates that were tested, or empty")   \
    FIELD(draft_hits, COL_U8, PROTO_ROWS_MAX, OPEN, "[rows] of these, right; or empty")            \
    FIELD(draft_ignored, U32, PROTO_TOKENS_MAX, OPEN, "candidates not fit to be tested")           \
    FIELD(candidates, COL_I32, PROTO_TOKENS_MAX, PRIVATE,                                          \
          "[extends that sample][decode_width - 1] of a drafter, or empty")
#define PROTO_FIELDS_plan_refused(FIELD)                                                           \
    FIELD(step, U64, UINT64_MAX, OPEN, "the plan's step")                                          \
    FIELD(applied_step, U64, UINT64_MAX, OPEN, "the last step that was applied")                   \
    FIELD(rule, U32, 255, OPEN, "proto_plan_rule_t")                                               \
    FIELD(slot, U32, PROTO_ROWS_MAX, OPEN, "the slot concerned; 0 = none")                         \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "the value and the limit")
#define PROTO_FIELDS_reset(FIELD) FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "why")

/* ---- executor core and device ---------------------------------------------------------------- */
#define PROTO_FIELDS_slot_setup(FIELD)                                                             \
    FIELD(slot, U32, PROTO_ROWS_MAX, OPEN, "pool slot")                                            \
    FIELD(tokens, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "the prompt, for the penalties")             \
    FIELD(sampling, COL_U8, 16384, PRIVATE, "an encoded SAMPLING body")                            \
    FIELD(computed, U32, PROTO_TOKENS_MAX, OPEN, "as in ADMIT")                                    \
    FIELD(candidates, COL_I32, 16, PRIVATE, "as in ADMIT")
#define PROTO_FIELDS_step_launch(FIELD)                                                            \
    FIELD(step, U64, UINT64_MAX, OPEN, "this step")                                                \
    FIELD(width, U32, 16, OPEN, "tokens a decode row computes")                                    \
    FIELD(patch_slots, COL_U32, PROTO_BLOCKS_MAX, OPEN, "as in PLAN")                              \
    FIELD(patch_groups, COL_U8, PROTO_BLOCKS_MAX, OPEN, "as in PLAN")                              \
    FIELD(patch_columns, COL_U32, PROTO_BLOCKS_MAX, OPEN, "as in PLAN")                            \
    FIELD(patch_counts, COL_U32, PROTO_BLOCKS_MAX, OPEN, "as in PLAN")                             \
    FIELD(patch_blocks, COL_U32, PROTO_BLOCKS_MAX, OPEN, "as in PLAN")                             \
    FIELD(clear_groups, COL_U8, PROTO_BLOCKS_MAX, OPEN, "as in PLAN")                              \
    FIELD(clear_blocks, COL_U32, PROTO_BLOCKS_MAX, OPEN, "as in PLAN")                             \
    FIELD(extend_slots, COL_U32, PROTO_ROWS_MAX, OPEN, "as in PLAN")                               \
    FIELD(extend_begins, COL_U32, PROTO_ROWS_MAX, OPEN, "as in PLAN")                              \
    FIELD(extend_lengths, COL_U32, PROTO_ROWS_MAX, OPEN, "as in PLAN")                             \
    FIELD(extend_samples, COL_U8, PROTO_ROWS_MAX, OPEN, "as in PLAN")                              \
    FIELD(extend_tokens, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "[sum of extend_lengths]")            \
    FIELD(decode_slots, COL_U32, PROTO_ROWS_MAX, OPEN, "as in PLAN")                               \
    FIELD(draft_slot, U32, 255, OPEN, "1 + ring slot for its rows; 0 = no drafter gets them")      \
    FIELD(extend_next_ids, COL_I32, PROTO_ROWS_MAX, PRIVATE,                                       \
          "[extends] the prompt's token behind the chunk, -1 = none; empty: nobody drafts")
#define PROTO_FIELDS_step_done(FIELD)                                                              \
    FIELD(step, U64, UINT64_MAX, OPEN, "the launched step")                                        \
    FIELD(mode, U32, 15, OPEN, "proto_step_mode_t")                                                \
    FIELD(duration_ns, U64, UINT64_MAX, OPEN, "device time, ns")                                   \
    FIELD(token_counts, COL_U8, PROTO_ROWS_MAX, OPEN, "[rows]")                                    \
    FIELD(row_flags, COL_U8, PROTO_ROWS_MAX, OPEN, "[rows] PROTO_ROW_*")                           \
    FIELD(tokens, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "[sum of counts]")                           \
    FIELD(logprob_widths, COL_U8, PROTO_ROWS_MAX, OPEN, "[rows]")                                  \
    FIELD(logprob_ids, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "as in STEP_RESULT")                    \
    FIELD(logprob_values, COL_F32, PROTO_TOKENS_MAX, PRIVATE, "as in STEP_RESULT")                 \
    FIELD(drafted, COL_U8, PROTO_ROWS_MAX, OPEN, "[rows] candidates that were tested, or empty")   \
    FIELD(draft_hits, COL_U8, PROTO_ROWS_MAX, OPEN, "[rows] of these, right; or empty")            \
    FIELD(draft_ignored, U32, PROTO_TOKENS_MAX, OPEN, "candidates not fit to be tested")           \
    FIELD(candidates, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "as in STEP_RESULT")
#define PROTO_FIELDS_device_ready(FIELD) PROTO_FIELDS_executor_info(FIELD)
#define PROTO_FIELDS_device_failed(FIELD)                                                          \
    FIELD(status, I64, 1000, OPEN, "proto_status_t")                                               \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "the device's own words")
#define PROTO_FIELDS_device_reset(FIELD) FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "why")

/* ---- gateway core and HTTP shell ------------------------------------------------------------- */
#define PROTO_FIELDS_http_request(FIELD)                                                           \
    FIELD(exchange, U64, UINT64_MAX, OPEN, "names one HTTP exchange")                              \
    FIELD(choice_index, U32, 65535, OPEN, "which of its choices")                                  \
    FIELD(generation_max, U32, PROTO_TOKENS_MAX, OPEN, "tokens; 0 = what is left of the context")  \
    FIELD(priority, I64, 1000000, OPEN, "lower goes first")                                        \
    FIELD(timeout_ns, U64, UINT64_MAX, OPEN, "the client's deadline; 0 = none")                    \
    FIELD(salt, BIN, 64, PRIVATE, "cache_salt, mixed into the page hashes")                        \
    FIELD(tokens, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "the prompt")                                \
    FIELD(sampling, COL_U8, 16384, PRIVATE, "an encoded SAMPLING body")                            \
    FIELD(page_hashes, BIN, PROTO_PAGES_MAX * 32, OPEN, "32 bytes for each whole prompt page")
#define PROTO_FIELDS_http_stop(FIELD)                                                              \
    FIELD(exchange, U64, UINT64_MAX, OPEN, "names one HTTP exchange")                              \
    FIELD(choice_index, U32, 65535, OPEN, "which of its choices")                                  \
    FIELD(token_index, U32, PROTO_TOKENS_MAX, OPEN, "keep generated tokens [0, token_index)")      \
    FIELD(reason, U32, 15, OPEN, "proto_finish_reason_t: STOP or CANCELLED")
#define PROTO_FIELDS_http_tokens(FIELD)                                                            \
    FIELD(exchange, U64, UINT64_MAX, OPEN, "names one HTTP exchange")                              \
    FIELD(choice_index, U32, 65535, OPEN, "which of its choices")                                  \
    FIELD(token_index, U32, PROTO_TOKENS_MAX, OPEN, "index of the first token")                    \
    FIELD(tokens, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "new tokens")                                \
    FIELD(logprob_width, U32, 255, OPEN, "entries a token; 0 = none")                              \
    FIELD(logprob_ids, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "[tokens][width]")                      \
    FIELD(logprob_values, COL_F32, PROTO_TOKENS_MAX, PRIVATE, "[tokens][width]")
#define PROTO_FIELDS_http_end(FIELD)                                                               \
    FIELD(exchange, U64, UINT64_MAX, OPEN, "names one HTTP exchange")                              \
    FIELD(choice_index, U32, 65535, OPEN, "which of its choices")                                  \
    FIELD(reason, U32, 15, OPEN, "proto_finish_reason_t")                                          \
    FIELD(prompt_tokens, U32, PROTO_TOKENS_MAX, OPEN, "tokens of the prompt")                      \
    FIELD(cached_tokens, U32, PROTO_TOKENS_MAX, OPEN, "of these, from the prefix cache")           \
    FIELD(generated_tokens, U32, PROTO_TOKENS_MAX, OPEN, "tokens that count")                      \
    FIELD(status, I64, 1000, OPEN, "proto_status_t with reason ERROR or REFUSED")                  \
    FIELD(code, STR, 64, OPEN, "stable code for the client")                                       \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "a sentence for the client")                      \
    FIELD(retry_after_ms, U32, 600000, OPEN, "0 = do not retry")                                   \
    FIELD(queue_ns, U64, UINT64_MAX, OPEN, "from submit to first plan, ns")
#define PROTO_FIELDS_http_state(FIELD)                                                             \
    FIELD(ready, BOOL, 1, OPEN, "scheduler and executor are attached")                             \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "what is missing")

/* ---- executor and drafter ------------------------------------------------------------------ */
#define PROTO_FIELDS_draft_propose(FIELD)                                                          \
    FIELD(step, U64, UINT64_MAX, OPEN, "the step")                                                 \
    FIELD(slot, U32, 255, OPEN, "ring slot")
#define PROTO_FIELDS_draft_proposed(FIELD)                                                         \
    FIELD(step, U64, UINT64_MAX, OPEN, "the step")                                                 \
    FIELD(slot, U32, 255, OPEN, "ring slot")
#define PROTO_FIELDS_drafter_info(FIELD)                                                           \
    FIELD(name, STR, 31, OPEN, "what it is: ngram, eagle3, mtp, dflash, dspark")                   \
    FIELD(target, STR, PROTO_TEXT_LEN_MAX, OPEN, "digest of its target; empty: any")               \
    FIELD(vocab_size, U32, 1 << 24, OPEN, "tokens it may propose are below it; 0 = any")           \
    FIELD(hidden_size, U32, 1 << 24, OPEN, "of a hidden row that it reads; 0 = it reads none")     \
    FIELD(width_max, U32, 16, OPEN, "the widest window it can fill, the verified token included")  \
    FIELD(parent_count_max, U32, PROTO_BLOCKS_MAX, OPEN, "parent blocks it has room for; 0 = any")
#define PROTO_FIELDS_drafter_accept(FIELD)                                                         \
    FIELD(ring, STR, 255, OPEN, "the file that both map")                                          \
    FIELD(ring_id, U64, UINT64_MAX, OPEN, "as in the ring's header")                               \
    FIELD(width, U32, 16, OPEN, "tokens of a window, the verified token included")                 \
    FIELD(vocab_size, U32, 1 << 24, OPEN, "as in EXECUTOR_INFO")                                   \
    FIELD(slot_count, U32, PROTO_ROWS_MAX, OPEN, "as in EXECUTOR_INFO")                            \
    FIELD(model_len_max, U32, PROTO_TOKENS_MAX, OPEN, "as in EXECUTOR_INFO")                       \
    FIELD(parent_count, U32, PROTO_BLOCKS_MAX, OPEN, "as in EXECUTOR_INFO")
#define PROTO_FIELDS_drafter_refuse(FIELD)                                                         \
    FIELD(status, I64, 1000, OPEN, "proto_status_t")                                               \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "what differs")                                   \
    FIELD(expected, STR, PROTO_TEXT_LEN_MAX, OPEN, "the executor's value")                         \
    FIELD(got, STR, PROTO_TEXT_LEN_MAX, OPEN, "the drafter's value")
#define PROTO_FIELDS_draft_open(FIELD)                                                             \
    FIELD(ring, STR, 255, OPEN, "the file to map; empty: none")                                    \
    FIELD(ring_id, U64, UINT64_MAX, OPEN, "as in its header")                                      \
    FIELD(epoch, U64, UINT64_MAX, OPEN, "incarnation of the peer")                                 \
    FIELD(width, U32, 16, OPEN, "as in DRAFTER_ACCEPT")                                            \
    FIELD(vocab_size, U32, 1 << 24, OPEN, "as in EXECUTOR_INFO")                                   \
    FIELD(slot_count, U32, PROTO_ROWS_MAX, OPEN, "as in EXECUTOR_INFO")                            \
    FIELD(model_len_max, U32, PROTO_TOKENS_MAX, OPEN, "as in EXECUTOR_INFO")                       \
    FIELD(parent_count, U32, PROTO_BLOCKS_MAX, OPEN, "as in EXECUTOR_INFO")
#define PROTO_FIELDS_draft_launch(FIELD)                                                           \
    FIELD(step, U64, UINT64_MAX, OPEN, "the step")                                                 \
    FIELD(slot, U32, 255, OPEN, "ring slot")
#define PROTO_FIELDS_draft_done(FIELD)                                                             \
    FIELD(step, U64, UINT64_MAX, OPEN, "the step")                                                 \
    FIELD(slot, U32, 255, OPEN, "ring slot")                                                       \
    FIELD(status, I64, 1000, OPEN, "proto_status_t: OK, or why there are no candidates")           \
    FIELD(rebuilt, U32, PROTO_ROWS_MAX, OPEN, "rows whose state was made from all their tokens")   \
    FIELD(rows, COL_U32, PROTO_ROWS_MAX, OPEN, "[rows] pool slots")                                \
    FIELD(lengths, COL_U32, PROTO_ROWS_MAX, OPEN, "[rows] tokens that the row has")                \
    FIELD(counts, COL_U8, PROTO_ROWS_MAX, OPEN, "[rows] candidates")                               \
    FIELD(candidates, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "[sum of counts]")

/* What is wrong with a peer; on the wire. */
typedef enum {
    PROTO_COMPLAINT_NONE = 0,
    PROTO_COMPLAINT_LOST = 1,      /* its link ended without a goodbye, or with one */
    PROTO_COMPLAINT_BAD_PLANS = 2, /* too many plans in a row broke a rule */
    PROTO_COMPLAINT_NO_ANSWER = 3, /* it lives, and nothing comes of it */
} proto_complaint_reason_t;

/* Whose view a LOOK asks for; on the wire. */
typedef enum {
    PROTO_LOOK_ACTORS = 0,    /* the supervisor's: ACTORS */
    PROTO_LOOK_GATEWAY = 1,   /* REQUESTS of the gateway: every open choice */
    PROTO_LOOK_SCHEDULER = 2, /* REQUESTS of the built-in scheduler */
    PROTO_LOOK_LOAD = 3,      /* LOAD, as the gateway heard it last of whoever plans */
} proto_look_target_t;

/* How far a request is; on the wire. */
typedef enum {
    PROTO_REQUEST_WAITING = 0,   /* gateway: nobody has it */
    PROTO_REQUEST_SUBMITTED = 1, /* gateway: a scheduler has it, no token came */
    PROTO_REQUEST_STREAMING = 2, /* gateway: tokens come */
    PROTO_REQUEST_STOPPING = 3,  /* gateway: it was told to end */
    PROTO_REQUEST_QUEUED = 4,    /* scheduler: no slot yet */
    PROTO_REQUEST_PREFILL = 5,   /* scheduler: its prompt is computed */
    PROTO_REQUEST_DECODE = 6,    /* scheduler: it generates */
    PROTO_REQUEST_RETRACTED = 7, /* scheduler: lost its blocks, starts over */
} proto_request_state_t;

/* What a request waits for; on the wire. */
typedef enum {
    PROTO_WAIT_NOTHING = 0,   /* it runs; the holder is the step */
    PROTO_WAIT_EXECUTOR = 1,  /* none is attached */
    PROTO_WAIT_SLOT = 2,      /* every slot is taken; the holder runs longest */
    PROTO_WAIT_BLOCKS = 3,    /* cache blocks; the holder has most of them */
    PROTO_WAIT_RETRACTED = 4, /* the holder lost its blocks and goes first */
    PROTO_WAIT_HEAD = 5,      /* the holder was passed too often and holds the queue */
    PROTO_WAIT_TURN = 6,      /* the holder is before it */
    PROTO_WAIT_STEP = 7,      /* the step in flight, which is the holder */
    PROTO_WAIT_SCHEDULER = 8, /* gateway: none is there, or it has not answered */
} proto_wait_t;

/* What the supervisor says of the whole node; on the wire. */
typedef enum {
    PROTO_NODE_STARTING = 0,
    PROTO_NODE_READY = 1,    /* every actor that counts is ready */
    PROTO_NODE_DEGRADED = 2, /* it was, and one is not now */
    PROTO_NODE_HELD = 3,     /* `onepath drain`: nothing new is admitted */
    PROTO_NODE_STOPPING = 4,
} proto_node_health_t;

/* Why a request ended; on the wire. */
typedef enum {
    PROTO_FINISH_NONE = 0,
    PROTO_FINISH_STOP = 1,      /* a stop token or stop string */
    PROTO_FINISH_LENGTH = 2,    /* generation_max or the context */
    PROTO_FINISH_CANCELLED = 3, /* the client went away or asked */
    PROTO_FINISH_ERROR = 4,     /* something was lost; status and code say what */
    PROTO_FINISH_REFUSED = 5,   /* never ran; status and code say why */
} proto_finish_reason_t;

/* How a step ran; on the wire. */
typedef enum {
    PROTO_STEP_NONE = 0,
    PROTO_STEP_DECODE_EAGER = 1,
    PROTO_STEP_DECODE_GRAPH = 2,
    PROTO_STEP_EXTEND = 3,
    PROTO_STEP_MIXED = 4,
    PROTO_STEP_IDLE = 5,
    PROTO_STEP_EXTEND_GRAPH = 6, /* as EXTEND and MIXED, replayed from a prefill graph */
    PROTO_STEP_MIXED_GRAPH = 7,
    PROTO_STEP_DECODE_ABOVE = 8, /* without a graph, because the batch is above the ladder */
} proto_step_mode_t;

/* What the executor saw in a row; on the wire, bits of row_flags. */
enum {
    PROTO_ROW_STOP_TOKEN = 1, /* the last accepted token is a stop token */
    PROTO_ROW_NAN = 2,        /* the logits held a NaN: no token of this row counts */
};

/* Which rule a refused plan breaks; on the wire. */
typedef enum {
    PROTO_RULE_NONE = 0,
    PROTO_RULE_STALE = 1,      /* base_step is not the last applied step, or awaiting a full plan */
    PROTO_RULE_SLOT_RANGE = 2, /* a slot outside 1..slot_count */
    PROTO_RULE_SLOT_EMPTY = 3, /* a slot that no request was admitted to */
    PROTO_RULE_SLOT_TWICE = 4, /* a slot appears in two rows of the batch */
    PROTO_RULE_GROUP_RANGE = 5,    /* no such cache group */
    PROTO_RULE_COLUMN_RANGE = 6,   /* a column beyond the table */
    PROTO_RULE_BLOCK_RANGE = 7,    /* a block id beyond the pool */
    PROTO_RULE_COLUMN_MISSING = 8, /* a token to compute or read has no block */
    PROTO_RULE_WRITE_SHARED = 9,   /* a block to write is referenced by another live row */
    PROTO_RULE_TOKEN_RANGE = 10,   /* a range beyond the tokens that the request has */
    PROTO_RULE_LENGTH_LIMIT = 11,  /* beyond length_max */
    PROTO_RULE_BUDGET = 12,        /* more rows or tokens than a step may hold */
    PROTO_RULE_SHAPE = 13,         /* columns of one table differ in length */
    PROTO_RULE_WIDTH = 14,         /* a width that the executor was not built for */
} proto_plan_rule_t;

#endif
