/* actor_arrival.h - what a link does with a message before anybody reads its body: whose it must
 * be and which number it must have.  Pure rules on numbers, shared by the links
 * (actor_links_receive.c) and the bus of the simulator; no socket, no clock, any thread. */
#ifndef ACTOR_ARRIVAL_H
#define ACTOR_ARRIVAL_H

#include <stdbool.h>

#include "proto_codec.h"

static inline bool
actor_arrival_is_handshake(proto_kind_t kind)
{
    return kind == PROTO_KIND_HELLO || kind == PROTO_KIND_INIT || kind == PROTO_KIND_READY ||
           kind == PROTO_KIND_REFUSE;
}

/* Whether the sender is in a state to send this at all.  `up`: its link is open; `epoch`: its
 * incarnation, as it said when it was opened.  *detail (a constant) only on a failure. */
static inline proto_status_t
actor_arrival_check_origin(bool up, uint64_t epoch, const proto_header_t *header,
                           const char **detail)
{
    if (actor_arrival_is_handshake(header->kind)) {
        return STATUS_OK;
    }
    if (!up) {
        *detail = "this link is not open: shake hands again";
        return STATUS_ERR_STALE;
    }
#if defined(ONEPATH_MUTANT) && ONEPATH_MUTANT == 3
    /* Known to be wrong, for the test of the simulator: an old incarnation is let in. */
    bool known = header->epoch <= epoch;
#else
    bool known = header->epoch == epoch;
#endif
    /* A binder that does not know this link answers without a number, whichever incarnation it is.
     */
    bool stranger = header->kind == PROTO_KIND_NAK && header->sequence == 0;
    if (!known && !stranger) {
        *detail = "the message is of another incarnation";
        return STATUS_ERR_STALE;
    }
    if (header->sequence == 0 && !stranger) {
        *detail = "the message has no sequence number";
        return STATUS_ERR_MALFORMED;
    }
    return STATUS_OK;
}

typedef enum {
    ACTOR_ARRIVAL_NEXT,      /* the one that was awaited */
    ACTOR_ARRIVAL_DUPLICATE, /* it came before: drop it */
    ACTOR_ARRIVAL_GAP,       /* messages before it are missing: fail the link */
} actor_arrival_t;

/* Judges the number of a message.  *sequence_in is the last one taken, *unread_count counts
 * messages whose header, and so whose number, could not be read; both follow.  *missing is how many
 * are lacking; 0 unless a GAP. */
static inline actor_arrival_t
actor_arrival_check_sequence(uint64_t *sequence_in, uint64_t *unread_count, uint64_t sequence,
                             uint64_t *missing)
{
    *missing = 0;
    if (sequence <= *sequence_in) {
        return ACTOR_ARRIVAL_DUPLICATE;
    }
    uint64_t gap = sequence - *sequence_in - 1;
    if (gap > *unread_count) {
        *missing = gap;
        return ACTOR_ARRIVAL_GAP;
    }
    *unread_count -= gap; /* they did come */
    *sequence_in = sequence;
    return ACTOR_ARRIVAL_NEXT;
}

/* Whether a NAK from a peer ends the link.  STALE: it does not know this link.  A message that the
 * peer's link could not read (cause 0: no core of its saw it) never took effect, and it may be the
 * very one that both ends now wait for, as after a gap.  A core's own NAK is for our core's logic.
 */
static inline bool
actor_arrival_nak_ends_link(const proto_header_t *header, const proto_nak_t *nak)
{
    if (nak->status == STATUS_ERR_STALE) {
        return true;
    }
    bool unread = header->cause == 0 &&
                  (nak->status == STATUS_ERR_MALFORMED || nak->status == STATUS_ERR_TOO_LARGE);
    bool telemetry = nak->kind == PROTO_KIND_HEARTBEAT || nak->kind == PROTO_KIND_STATS ||
                     nak->kind == PROTO_KIND_LOAD || nak->kind == PROTO_KIND_BYE ||
                     nak->kind == PROTO_KIND_NAK;
    return unread && !telemetry;
}

#endif
