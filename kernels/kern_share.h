/* kern_share.h - how the threads of a team share one operation.
 *
 * An operation `void kern_<op>_host(const void *args, kern_share_t *share)` is called by ALL
 * threads of a team at once.  Work is cut into chunks that depend on shapes and lengths only, never
 * on the number of threads; chunks are claimed by an atomic counter, and whatever is summed over
 * chunks is summed in chunk order.  So results do not depend on threads or their timing.
 *
 * Every thread passes the same sequence of kern_share_sync() calls. */
#ifndef KERN_SHARE_H
#define KERN_SHARE_H

#ifndef __cplusplus
#include <stdatomic.h>
#endif
#include <stddef.h>
#include <stdint.h>

#include "kern_path.h"

enum {
    KERN_CACHE_LINE_SIZE_BYTES = 64,
    KERN_SCRATCH_SIZE_BYTES = 1 << 20, /* private scratch of each thread */
    KERN_THREADS_MAX = 64,
};

#ifdef __cplusplus

/* The kernels of other devices read argument structs only. */
typedef struct kern_share kern_share_t;

#else

/* Shared by the threads of a team; owned by it. */
typedef struct {
    _Alignas(KERN_CACHE_LINE_SIZE_BYTES) _Atomic uint32_t chunk; /* next to be claimed */
    _Alignas(KERN_CACHE_LINE_SIZE_BYTES) _Atomic uint32_t phase; /* advances when all arrived */
    _Atomic uint32_t sleepers;                                   /* waiting in the kernel */
    _Alignas(KERN_CACHE_LINE_SIZE_BYTES) _Atomic uint32_t arrived;
} kern_share_state_t;

/* One for each thread. */
typedef struct kern_share {
    kern_share_state_t *state; /* NULL only when thread_count is 1 */
    uint32_t thread_index;     /* 0 = the thread that called kern_team_run() */
    uint32_t thread_count;     /* at least 1 */
    kern_path_t path;          /* instruction set of this team */
    uint32_t spin_count;       /* polls before a wait sleeps */
    uint32_t chunk;            /* the counter when thread_count is 1 */
    void *scratch;             /* KERN_SCRATCH_SIZE_BYTES, this thread's own, 64-byte aligned */
} kern_share_t;

/* Claims the next chunk of this phase: 0, 1, 2, ...  The caller stops at its own total. */
static inline uint32_t
kern_share_claim(kern_share_t *share)
{
    if (share->thread_count == 1) {
        return share->chunk++;
    }
    return atomic_fetch_add_explicit(&share->state->chunk, 1, memory_order_relaxed);
}

/* A barrier of the team: what was written before it by any thread is seen after it by all, and the
 * chunk counter starts again at 0.  Spins for a bounded time, then sleeps. */
void kern_share_sync(kern_share_t *share);

#endif

#endif
