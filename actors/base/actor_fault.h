/* actor_fault.h - named fault points, for tests of what happens when a process dies or stalls at
 * exactly this place.
 *
 * Compiled in always, armed only by actor_fault_arm(), which the program calls only when it was
 * started with --enable-fault-injection.  An unarmed point costs one relaxed load.  Any thread.
 *
 * Specification, comma separated: name:action[:nth[:argument]]
 *   action   kill (SIGKILL to itself), stop (SIGSTOP), abort, exit (argument = code, default 70),
 *            delay (argument = ms), drop (the caller skips what it was about to do)
 *   nth      the hit that fires, from 1; 0 = every hit; default 1 */
#ifndef ACTOR_FAULT_H
#define ACTOR_FAULT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "proto_codec.h"
#include "proto_status.h"

extern atomic_bool actor_fault_armed;

/* Arms the points of `specification`; STATUS_ERR_CONFIG, with nothing armed, if it does not parse.
 */
MUST_CHECK proto_status_t actor_fault_arm(const char *specification);
/* Forgets everything that was armed. */
void actor_fault_clear(void);

/* Calls `fn` with a sentence on the thread of each hit that fires, before it acts; NULL: no more.
 * For the record of what is about to happen; not while other threads may hit. */
void actor_fault_watch(void (*fn)(void *context, const char *text), void *context);

/* For the macros. */
bool actor_fault_hit(const char *name);
bool actor_fault_hit_kind(const char *prefix, proto_kind_t kind);

/* True if the caller shall drop what it was about to do: if (ACTOR_FAULT("x.before_y")) {...} */
#define ACTOR_FAULT(name)                                                                          \
    (atomic_load_explicit(&actor_fault_armed, memory_order_relaxed) && actor_fault_hit(name))

/* The point "prefix.KIND", such as shell.before_send.PLAN. */
#define ACTOR_FAULT_KIND(prefix, kind)                                                             \
    (atomic_load_explicit(&actor_fault_armed, memory_order_relaxed) &&                             \
     actor_fault_hit_kind(prefix, kind))

#endif
