/* actor_record.h - what a shell writes into its record ring, so that its core can be replayed
 * alone: snapshots, each input in the order in which the core got it, each message that the core
 * emitted.
 *
 * Owns the ring's writer and the room that a snapshot is packed in: reserved at the start, nothing
 * is allocated later.  Never waits and makes no system call for a record, but in a strict ring
 * (proto_ring.h).  One thread. */
#ifndef ACTOR_RECORD_H
#define ACTOR_RECORD_H

#include "actor_core.h"
#include "proto_ring.h"

typedef struct actor_record actor_record_t;

/* `fd` stays the caller's.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_record_new(int fd, actor_record_t **out_p);
void actor_record_destroy(actor_record_t **self_p);

/* An input with its encoded parts.  self may be NULL here and below: nothing is recorded. */
void actor_record_input(actor_record_t *self, const actor_input_t *input, proto_bytes_t body,
                        proto_bytes_t blob);
/* The same for an input that has not been encoded: it is encoded here.  One that is too large for
 * the ring anyway is recorded without its body (PROTO_LOG_FLAG_CUT). */
void actor_record_own_input(actor_record_t *self, const actor_input_t *input);
void actor_record_output(actor_record_t *self, uint64_t now_ns, const proto_header_t *header,
                         const actor_emission_t *emission);
void actor_record_peer(actor_record_t *self, uint64_t now_ns, uint32_t peer, const char *name,
                       proto_role_t role, uint64_t epoch);
/* Before each input: writes the core's state if none was written yet or a third of the ring was
 * written since, so that a ring always holds a snapshot and what came after it.  SNAPSHOT,
 * STATE_DIGEST and then what a reader of the ring's rest needs anyhow: CLOCK and the CHANNEL_DEF of
 * each peer.  `input_count` inputs led to this state.  A core without save has no snapshot; one
 * that does not fit half a ring is left out, counted, and said once by a NOTE. */
void actor_record_snapshot(actor_record_t *self, uint64_t now_ns, const actor_core_ops_t *ops,
                           const void *core, uint64_t input_count);
void actor_record_digest(actor_record_t *self, uint64_t now_ns, uint64_t digest);
/* The clock pair, with which monotonic times become dates. */
void actor_record_clock(actor_record_t *self, uint64_t now_ns);
void actor_record_note(actor_record_t *self, uint64_t now_ns, const char *text);
/* Something was made to fail, or was seen failing; the recorder syncs its file at once. */
void actor_record_fault(actor_record_t *self, uint64_t now_ns, const char *text);

/* Snapshots that did not fit. */
uint64_t actor_record_skipped_count(const actor_record_t *self);
/* Records of which a part was left out because they were too large, or that were overwritten in a
 * strict ring after a wait in vain (counted once for each wait). */
uint64_t actor_record_cut_count(const actor_record_t *self);

#endif
