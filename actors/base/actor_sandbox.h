/* actor_sandbox.h - what this process may ask of the kernel from here on.
 *
 * For actors that read bytes of strangers and need little: gateway and scheduler.  A list of
 * allowed system calls (seccomp), no new privileges, no capabilities, no core dump of what they
 * hold. Executor and drafter are exempt: a GPU driver wants more than a list can say.  Main thread,
 * before others are started; holds for all of them, and cannot be taken back. */
#ifndef ACTOR_SANDBOX_H
#define ACTOR_SANDBOX_H

#include "proto_status.h"

typedef enum {
    ACTOR_SANDBOX_OFF,
    ACTOR_SANDBOX_DENY, /* a call that is not listed fails with ENOSYS */
    ACTOR_SANDBOX_KILL, /* it ends the process (SIGSYS), for tests */
} actor_sandbox_t;

/* "off", "kill"; anything else is DENY. */
actor_sandbox_t actor_sandbox_mode(const char *text);

/* Whatever the mode (but OFF), these end the process: starting programs or processes, tracing,
 * mounting, loading code into the kernel, other namespaces.  STATUS_ERR_CONFIG, logged with the
 * remedy, if the kernel refuses. */
MUST_CHECK proto_status_t actor_sandbox_enter(actor_sandbox_t mode);

/* The listed calls, by name; for the documentation and its test.  NULL ends the list. */
extern const char *const actor_sandbox_allowed[];

#endif
