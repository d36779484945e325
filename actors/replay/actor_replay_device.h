/* actor_replay_device.h - a real device beside a replayed executor core: what the core launches is
 * carried out again, and its outputs are compared with the recorded ones.
 *
 * Owns the device.  Needs a log that begins with the actor's first input, because a device has no
 * snapshots.  One thread. */
#ifndef ACTOR_REPLAY_DEVICE_H
#define ACTOR_REPLAY_DEVICE_H

#include "actor_core.h"
#include "log_field.h"
#include "proto_status.h"

typedef struct actor_replay_device actor_replay_device_t; /* opaque */

typedef struct {
    const char *model_path;
    const char *kernel_path;           /* NULL = "auto" */
    const proto_device_ready_t *ready; /* what the recorded device had */
    double tolerance;                  /* of log-probabilities; 0 = exact */
} actor_replay_device_options_t;

/* Loads the model with the sizes of the recorded device.  STATUS_ERR_CONFIG if it is another model
 * or gives other sizes, with a sentence.  The caller owns *out_p. */
MUST_CHECK proto_status_t actor_replay_device_new(const actor_replay_device_options_t *options,
                                                  actor_replay_device_t **out_p,
                                                  proto_error_t *error);
void actor_replay_device_destroy(actor_replay_device_t **self_p);

/* Carries out SLOT_SETUP or STEP_LAUNCH; a DEVICE_RESET and what follows it wait for
 * actor_replay_device_ready().  The failures of run_executor.h. */
MUST_CHECK proto_status_t actor_replay_device_push(actor_replay_device_t *self,
                                                   const actor_emission_t *command,
                                                   proto_error_t *error);

/* The log says that the device was ready (again): carries out the reset that was pushed, if there
 * is one, and what waits behind it. */
MUST_CHECK proto_status_t actor_replay_device_ready(actor_replay_device_t *self,
                                                    proto_error_t *error);

/* Waits for the oldest step and compares it with the recorded one.  STATUS_OK with *differs;
 * STATUS_ERR_DEADLINE after 60 s, STATUS_END if no step is under way. */
MUST_CHECK proto_status_t actor_replay_device_compare(actor_replay_device_t *self,
                                                      const proto_step_done_t *recorded,
                                                      bool *differs, log_field_diff_t *out);

#endif
