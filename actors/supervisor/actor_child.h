/* actor_child.h - one child process: its start, its standard error, its end.
 *
 * Owns the process, the pipe and the last log lines.  Decides nothing.  One thread. */
#ifndef ACTOR_CHILD_H
#define ACTOR_CHILD_H

#include <stddef.h>
#include <sys/types.h>

#include "actor_supervisor.h"

enum {
    ACTOR_CHILD_LINE_SIZE_BYTES = 8448, /* longer lines are cut; those of actor_log.h are shorter */
};

typedef struct {
    pid_t pid;                                  /* 0 = no process */
    int pid_fd;                                 /* readable when it ended; -1 = none */
    int error_fd;                               /* its standard error; -1 = none */
    int exit_code;                              /* of the last end; -1: by a signal */
    int exit_signal;                            /* of the last end; 0: by an exit */
    char (*lines)[ACTOR_CHILD_LINE_SIZE_BYTES]; /* [ACTOR_SUPERVISOR_LOG_LINES], a ring */
    uint32_t line_next;
    uint32_t line_count;
    char partial[ACTOR_CHILD_LINE_SIZE_BYTES]; /* a line that has not ended yet */
    size_t partial_size;
} actor_process_t;

/* A descriptor that a child inherits. */
typedef struct {
    int fd;
    const char *option;  /* "--ring-fd" or "--ring" */
    const char *ring_of; /* with --ring: NAME=FD; NULL: FD alone */
} actor_inherited_t;

/* Whom the child talks to. */
typedef struct {
    const char *supervisor;
    const char *scheduler; /* NULL: it has no link to one, or its own arguments say where */
} actor_process_endpoints_t;

MUST_CHECK proto_status_t actor_process_init(actor_process_t *self);
/* Kills what still runs. */
void actor_process_fini(actor_process_t *self);

/* Starts argv with --name, --epoch, --supervisor, --scheduler-at and the descriptors added; in a
 * process group of its own, killed when the calling thread's process ends. */
MUST_CHECK proto_status_t actor_process_start(actor_process_t *self,
                                              const actor_supervisor_child_t *child, uint64_t epoch,
                                              const actor_process_endpoints_t *endpoints,
                                              const actor_inherited_t *inherited,
                                              uint32_t inherited_count);

/* Sends a signal to its process group; nothing if there is no process. */
void actor_process_signal(const actor_process_t *self, int signal_number);

/* STATUS_OK if it ended: exit_code and exit_signal say how, the rest of its lines is read and what
 * is left of its group is killed.  STATUS_AGAIN while it runs. */
MUST_CHECK proto_status_t actor_process_reap(actor_process_t *self);

/* Passes on what the child wrote, line by line, and keeps the last ones. */
void actor_process_read(actor_process_t *self);

/* Line `index` of those kept, oldest first. */
const char *actor_process_line(const actor_process_t *self, uint32_t index);

/* "exit code 70" or "signal 9 (Killed)". */
void actor_process_describe(const actor_process_t *self, char *out, size_t capacity_bytes);

#endif
