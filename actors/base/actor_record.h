/* actor_record.h - what a shell writes into its record ring: each input in the order in which the
 * core got it, and each message that the core emitted.
 *
 * Owns the ring's writer.  Never waits; no system call for a record.  One thread. */
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
/* The same for an input that has not been encoded: it is encoded here. */
void actor_record_own_input(actor_record_t *self, const actor_input_t *input);
void actor_record_output(actor_record_t *self, uint64_t now_ns, const proto_header_t *header,
                         const actor_emission_t *emission);
void actor_record_peer(actor_record_t *self, uint64_t now_ns, uint32_t peer, const char *name,
                       proto_role_t role, uint64_t epoch);
void actor_record_digest(actor_record_t *self, uint64_t now_ns, uint64_t digest);
/* The clock pair, with which monotonic times become dates. */
void actor_record_clock(actor_record_t *self, uint64_t now_ns);
void actor_record_note(actor_record_t *self, uint64_t now_ns, const char *text);
/* Records of which a part was left out because they were too large. */
uint64_t actor_record_cut_count(const actor_record_t *self);

#endif
