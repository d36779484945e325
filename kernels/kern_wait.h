/* kern_wait.h - inside kernels/: wait until a word changes, spinning first, then asleep.
 *
 * The waker changes the word, then calls kern_wake().  Both sides order "word" and "sleepers"
 * sequentially, so either the waiter sees the new word or the waker sees the sleeper. */
#ifndef KERN_WAIT_H
#define KERN_WAIT_H

#include <stdatomic.h>
#include <stdint.h>

/* Returns when *word differs from `seen`, with its new value. */
uint32_t kern_wait(_Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *sleepers,
                   uint32_t spin_count);

/* Wakes whoever sleeps on the word. */
void kern_wake(_Atomic uint32_t *word, _Atomic uint32_t *sleepers);

#endif
