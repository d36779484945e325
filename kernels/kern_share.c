#include "kern_share.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kern_wait.h"
#include "proto_require.h"

static inline void
pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

uint32_t
kern_wait(_Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *sleepers, uint32_t spin_count)
{
    for (uint32_t i = 0; i < spin_count; i++) {
        uint32_t now = atomic_load_explicit(word, memory_order_acquire);
        if (now != seen) {
            return now;
        }
        pause_briefly();
    }
    atomic_fetch_add(sleepers, 1);
    uint32_t now = atomic_load(word);
    while (now == seen) {
        /* EAGAIN (the word changed) and EINTR both lead to another look at the word. */
        (void)syscall(SYS_futex, (void *)word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        now = atomic_load(word);
    }
    atomic_fetch_sub(sleepers, 1);
    return now;
}

void
kern_wake(_Atomic uint32_t *word, _Atomic uint32_t *sleepers)
{
    if (atomic_load(sleepers) > 0) {
        (void)syscall(SYS_futex, (void *)word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

void
kern_share_sync(kern_share_t *share)
{
    if (share->thread_count == 1) {
        share->chunk = 0;
        return;
    }
    kern_share_state_t *state = share->state;
    require(state != NULL);
    uint32_t phase = atomic_load_explicit(&state->phase, memory_order_acquire);
    if (atomic_fetch_add(&state->arrived, 1) + 1 == share->thread_count) {
        /* Nobody else runs between its arrival and the new phase, so plain order is enough. */
        atomic_store_explicit(&state->chunk, 0, memory_order_relaxed);
        atomic_store_explicit(&state->arrived, 0, memory_order_relaxed);
        atomic_store(&state->phase, phase + 1);
        kern_wake(&state->phase, &state->sleepers);
        return;
    }
    (void)kern_wait(&state->phase, phase, &state->sleepers, share->spin_count);
}
