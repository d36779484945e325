/* device_group.h - the ranks of a tensor parallel group on one machine, each a process of its own:
 * the memory that they share, who of them lives, and what rank 0 tells the others.
 *
 * The memory is an anonymous file whose descriptor the ranks inherit.  A rank holds a lock on a
 * byte of it as long as its process lives, so its end is seen whatever ended it.  A group that lost
 * a rank, or whose ranks differ, has failed for good: every wait in it ends, and each rank ends
 * with the same text.  It is made anew, never repaired.
 *
 * One thread of a rank sends and receives, one waits in collectives (device_comm.h); fail and fault
 * may be called from any. */
#ifndef DEVICE_GROUP_H
#define DEVICE_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_status.h"

typedef struct device_group device_group_t;

enum {
    DEVICE_GROUP_RANKS_MAX = 16,
    DEVICE_GROUP_TEXT_SIZE_BYTES = 256,
};

typedef struct {
    uint32_t rank_count;     /* at least 2 */
    size_t slot_size_bytes;  /* of a rank's part of an exchange; a multiple of 64 */
    size_t queue_size_bytes; /* of what rank 0 sends; at least twice the largest message */
} device_group_sizes_t;

typedef struct {
    int fd;        /* of device_group_create(); lent for the call */
    uint32_t rank; /* this process's */
    /* Looked at every DEVICE_GROUP_LOOK_MS: true with a text if somebody else's end is known.
     * NULL = nobody knows.  Called by the group's own thread. */
    bool (*is_lost)(void *context, char *text, size_t text_size_bytes);
    /* The group failed: called once, by the group's own thread; only wakes somebody.  May be NULL.
     */
    void (*on_failed)(void *context);
    void *context;
} device_group_options_t;

enum { DEVICE_GROUP_LOOK_MS = 100 };

/* The shared memory of a new group.  The caller owns *fd_p, which is closed on exec. */
MUST_CHECK proto_status_t device_group_create(const device_group_sizes_t *sizes, int *fd_p);

/* Takes the place of a rank and starts to watch the others.  Does not wait for them.
 * STATUS_ERR_INVALID: no memory of a group, or the place is taken; STATUS_ERR_IO;
 * STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t device_group_join(const device_group_options_t *options,
                                            device_group_t **out_p);

/* Leaves in good order: the others do not miss this rank.  Nothing of the device may use it. */
void device_group_leave(device_group_t **self_p);

uint32_t device_group_rank(const device_group_t *self);
uint32_t device_group_rank_count(const device_group_t *self);

/* Ends the group with this text, unless it has failed already.  Afterwards there is a fault. */
void device_group_fail(device_group_t *self, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Why the group failed; NULL while it has not.  Lives as long as the group. */
const char *device_group_fault(const device_group_t *self);

/* All ranks give a value; each gets the smallest.  Waits for all of them, so that the first such
 * call is also their meeting.  STATUS_ERR_DEVICE: the group has failed. */
MUST_CHECK proto_status_t device_group_agree_min(device_group_t *self, uint64_t value,
                                                 uint64_t *out);
/* All ranks give a digest; if one differs the group fails and the text says of `what`. */
MUST_CHECK proto_status_t device_group_agree_same(device_group_t *self, uint64_t digest,
                                                  const char *what);

/* A message of two parts from rank 0 to every other rank, in order.  Waits for room.
 * STATUS_ERR_DEVICE: the group has failed; STATUS_ERR_TOO_LARGE. */
typedef struct {
    uint32_t kind;
    uint32_t flags;
    const void *body;
    size_t body_size_bytes;
    const void *blob;
    size_t blob_size_bytes;
} device_group_message_t;
MUST_CHECK proto_status_t device_group_send(device_group_t *self,
                                            const device_group_message_t *message);
/* The next one, lent until the next call.  STATUS_AGAIN: none within the time; STATUS_ERR_DEVICE.
 */
MUST_CHECK proto_status_t device_group_receive(device_group_t *self, uint32_t wait_ms,
                                               device_group_message_t *out);

/* ---- for device_comm.h ------------------------------------------------------------------------
 */

/* A rank's half of an exchange: `parity` is that of the exchange's number. */
void *device_group_slot(const device_group_t *self, uint32_t rank, uint32_t parity);
size_t device_group_slot_size_bytes(const device_group_t *self);
/* What this rank wrote into its slot of exchange `number` (1, 2, ...) is there; returns when all
 * ranks have said so of theirs.  False: the group has failed. */
bool device_group_exchange(device_group_t *self, uint64_t number);
/* The last exchange of this rank; 0 = none yet. */
uint64_t device_group_exchanged(const device_group_t *self);

#endif
