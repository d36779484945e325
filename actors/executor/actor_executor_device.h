/* actor_executor_device.h - the device thread: carries out the core's commands in their order.
 *
 * It owns the device (run_executor.h, or the null device) and a bounded queue of encoded commands.
 * The shell's thread pushes; the device thread decodes, launches, collects what has ended and
 * posts it to the core.  It never waits for the shell with a command half done. */
#ifndef ACTOR_EXECUTOR_DEVICE_H
#define ACTOR_EXECUTOR_DEVICE_H

#include "actor_executor.h"
#include "actor_executor_wish.h"
#include "actor_shell.h"

typedef struct actor_executor_device actor_executor_device_t;

/* `options` is lent for the life of the device.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_executor_device_new(const actor_executor_options_t *options,
                                                    actor_executor_device_t **out_p);

/* Starts the thread: it loads the model, reports progress to the shell, posts DEVICE_READY or
 * DEVICE_FAILED.  The shell outlives the device. */
MUST_CHECK proto_status_t actor_executor_device_start(actor_executor_device_t *self,
                                                      actor_shell_t *shell);

/* Queues SLOT_SETUP, STEP_LAUNCH or DEVICE_RESET; a copy is made.  The core bounds what is under
 * way, so there is room; if a stuck device still lets the queue fill, waits at most 10 s.
 * STATUS_ERR_DEVICE then, or after the device failed. */
MUST_CHECK proto_status_t actor_executor_device_push(actor_executor_device_t *self,
                                                     const actor_emission_t *command);

/* An operator's wish (actor_executor_wish.h), from the shell's thread, which does not wait.  The
 * device thread carries it out and answers; the null device, and one that is not loaded yet or is
 * ending, answers at once that it cannot.  CANCEL withdraws the wish `number`, whether it waits
 * here or is the pending check. */
void actor_executor_device_ask(actor_executor_device_t *self, uint64_t number,
                               actor_executor_wish_t wish);

/* Candidates of this incarnation of the drafter count from now on; 0 = nobody's.  Any thread, at
 * once. */
void actor_executor_device_admit_drafter(actor_executor_device_t *self, uint64_t epoch);

/* Layer in work, for heartbeats; any thread. */
uint32_t actor_executor_device_layer(const actor_executor_device_t *self);

/* Stops the thread after the call that it is in, and joins it; the shell must be stopping. */
void actor_executor_device_destroy(actor_executor_device_t **self_p);

/* The loaded executor, for what does not change any more; NULL before DEVICE_READY, or with the
 * null device. */
const run_executor_t *actor_executor_device_run(const actor_executor_device_t *self);

#endif
