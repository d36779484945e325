/* actor_command.h - an operator's word to the supervisor of a running node.
 *
 * Owns a short-lived link to the supervisor's socket, which only its own user can open.  Blocks
 * until the answer is there; any thread, several at once. */
#ifndef ACTOR_COMMAND_H
#define ACTOR_COMMAND_H

#include <stddef.h>
#include <stdint.h>

#include "proto_status.h"

enum {
    ACTOR_COMMAND_ANSWER_SIZE_BYTES = 1025,
    ACTOR_COMMAND_ENDPOINT_SIZE_BYTES = 272,
    /* No command waits in a queue, and each has a deadline of the supervisor's well below this. */
    ACTOR_COMMAND_TIMEOUT_S = 30,
};

typedef struct {
    const char *run_dir;  /* of the node */
    const char *verb;     /* as in COMMAND */
    const char *argument; /* "" if it takes none */
    uint64_t timeout_ns;
} actor_command_t;

/* Sends one COMMAND and waits for its COMMAND_DONE; what that says is the status and the text in
 * `answer`.  STATUS_ERR_NOT_FOUND: no node has its sockets in that folder;
 * STATUS_ERR_DEADLINE: it did not answer in time; both with a sentence in `answer`. */
MUST_CHECK proto_status_t actor_command_send(const actor_command_t *command,
                                             char answer[ACTOR_COMMAND_ANSWER_SIZE_BYTES]);

/* The endpoint of the supervisor with its sockets in `run_dir`.  STATUS_ERR_NOT_FOUND: there is no
 * socket; STATUS_ERR_PEER_LOST: nobody listens at it any more; both with a sentence in `error`. */
MUST_CHECK proto_status_t actor_command_find(const char *run_dir,
                                             char endpoint[ACTOR_COMMAND_ENDPOINT_SIZE_BYTES],
                                             char *error, size_t capacity_bytes);

#endif
