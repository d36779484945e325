/* actor_roles.h - which role may send which message, as the routes of the message list say.
 *
 * Pure; any thread. */
#ifndef ACTOR_ROLES_H
#define ACTOR_ROLES_H

#include <stdbool.h>

#include "proto_codec.h"
#include "proto_ids.h"

/* The senders in a route such as "client -> supervisor -> executor" (all but the last), as bits of
 * proto_role_t; "both" and "actor" are every role, "role" is prefill-role and decode-role.  0 if a
 * word is none of these: such a message is let in from nobody. */
uint32_t actor_roles_of_route(const char *route);

/* Whether an actor of this role may send a message of this kind, which is in the list. */
bool actor_roles_may_send(proto_role_t role, proto_kind_t kind);

#endif
