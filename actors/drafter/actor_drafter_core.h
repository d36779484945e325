/* actor_drafter_core.h - the drafter's logic: who it drafts for, and which rounds are in work.
 *
 * Pure: no ring, device, socket or clock.  One thread at a time (the shell's).  Everything is
 * allocated by actor_drafter_core_new().
 *
 * An executor's link opens: DRAFTER_INFO.  It accepts: DRAFT_OPEN to the device, and from then on
 * each DRAFT_PROPOSE becomes a DRAFT_LAUNCH, each DRAFT_DONE of the device a DRAFT_PROPOSED, in
 * their order.  It refuses: DEVICE_FAILED to the shell, with both values: the process ends.  The
 * link ends: DRAFT_OPEN without a ring, and what was in work is forgotten. */
#ifndef ACTOR_DRAFTER_CORE_H
#define ACTOR_DRAFTER_CORE_H

#include "actor_core.h"

typedef struct actor_drafter_core actor_drafter_core_t;

enum {
    ACTOR_DRAFTER_ROUNDS_MAX = 4, /* in work: the ring slots of draft_ring.h */
    ACTOR_DRAFTER_TARGET_SIZE_BYTES = 128,
};

/* What DRAFTER_INFO says of it. */
typedef struct {
    char name[PROTO_NAME_SIZE_BYTES];
    char target[ACTOR_DRAFTER_TARGET_SIZE_BYTES]; /* digest of its target; "" = any */
    uint32_t vocab_size;                          /* 0 = any */
    uint32_t hidden_size;                         /* 0 = it reads no hidden rows */
    uint32_t width_max;
    uint32_t parent_count_max; /* 0 = any */
} actor_drafter_core_options_t;

/* STATUS_ERR_NO_MEMORY.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_drafter_core_new(const actor_drafter_core_options_t *options,
                                                 actor_drafter_core_t **out_p);
void actor_drafter_core_destroy(actor_drafter_core_t **self_p);

/* Makes a core out of what the `save` operation packed; it goes on exactly as the saved one.  The
 * bytes may be hostile: STATUS_ERR_MALFORMED with a sentence in *error (may be NULL),
 * STATUS_ERR_VERSION, STATUS_ERR_NO_MEMORY.  There is no secret.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_drafter_core_restore(proto_bytes_t state, proto_bytes_t secret,
                                                     actor_drafter_core_t **out_p,
                                                     proto_error_t *error);

/* The operations to run it with; lent, lives as long as the core. */
const actor_core_ops_t *actor_drafter_core_ops(const actor_drafter_core_t *self);

typedef struct {
    bool is_open; /* an executor accepted it */
    uint32_t round_count;
    uint64_t rounds;   /* that ended */
    uint64_t proposed; /* candidates */
    uint64_t rebuilt;  /* rows whose state was made anew */
    uint64_t empty;    /* rounds that ended without an answer */
    uint64_t ignored;  /* inputs that fit nothing */
} actor_drafter_figures_t;
void actor_drafter_core_figures(const actor_drafter_core_t *self, actor_drafter_figures_t *out);

#endif
