/* actor_crash.h - what is left to look at after a child died: its record ring as a log segment, and
 * one JSON line with its last words.  One thread. */
#ifndef ACTOR_CRASH_H
#define ACTOR_CRASH_H

#include "actor_child.h"

enum {
    ACTOR_CRASH_PATH_SIZE_BYTES = 512,
    ACTOR_CRASH_KEPT_MAX = 64, /* records in the default folder, of all nodes of this user */
};

/* Writes what the ring holds as a log of its own into `directory` (made 0700 if missing); path_out
 * gets the file's name.  STATUS_END if the ring is empty. */
MUST_CHECK proto_status_t actor_crash_dump(int ring_fd, const char *directory, const char *name,
                                           proto_role_t role, uint64_t epoch,
                                           char path_out[ACTOR_CRASH_PATH_SIZE_BYTES]);

/* The folder for crash records where none is named; STATUS_ERR_IO if it is not safely ours. */
MUST_CHECK proto_status_t actor_crash_default_dir(char *out, size_t capacity_bytes);

/* Removes the oldest records of a folder, until at most `kept_max` are there: *.alog and its
 * sidecar, nothing else.  Records of a run that goes on are among the newest. */
void actor_crash_prune(const char *directory, uint32_t kept_max);

/* Writes the line of an escalation to the log's descriptor. */
void actor_crash_report(const char *name, const actor_process_t *process, uint32_t restart_count,
                        const char *crash_path);

#endif
