/* kit_scheduler.h - run a scheduler of your own: all that a program needs beside its core.
 *
 * A core is a step function (actor_core.h): one message in, messages out, no clock, no socket.  The
 * kit gives it the link to gateways and executor, with handshake, heartbeats and sequence numbers;
 * a log of its own; and replay.  It owns sockets and files while it runs, reads no environment, and
 * never touches the core but through its ops.  Everything is called from one thread.
 *
 *     my_core_t *core = my_core_new();
 *     kit_scheduler_options_t options = {
 *         .endpoint = "ipc:///run/my-scheduler", .ops = my_core_ops(), .core = core};
 *     return getenv("ONEPATH_REPLAY") != NULL
 *                ? kit_scheduler_replay(options.ops, core, STDIN_FILENO, STDOUT_FILENO)
 *                : kit_scheduler_run(&options);
 *
 * then   onepath serve MODEL --scheduler ipc:///run/my-scheduler
 * and    onepath log replay LOG --exec './my_scheduler'
 *
 * docs/scheduler-protocol.md says what the messages mean; examples/c-scheduler is a whole one. */
#ifndef KIT_SCHEDULER_H
#define KIT_SCHEDULER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "actor_core.h"

/* A zero means the value in the comment. */
typedef struct {
    const char *endpoint;        /* one ROUTER is bound here, for gateways and the executor:
                                    ipc:///PATH or tcp://HOST:PORT; needed */
    const char *name;            /* [a-z0-9-]{1,31}, and not "scheduler", which is the built-in
                                    one's: two of one name take each other for an older and a newer
                                    self: "external" */
    uint64_t epoch;              /* higher than that of every earlier run: the time */
    const actor_core_ops_t *ops; /* role PROTO_ROLE_SCHEDULER; needed are name, step and the
                                    bounds of the outbox */
    void *core;                  /* handed to the ops; lent */
    const char *record_dir;      /* a folder, made if need be (its parent is there), for the log
                                    NAME.EPOCH.NNNNNN.alog, from the first input on: no log */
    uint64_t heartbeat_ns;       /* 5 ms to 10 s: 250 ms */
    bool allow_remote;           /* bind an address that other machines reach; not encrypted */
    bool quiet;                  /* log warnings and errors only */
    const atomic_int *stop;      /* 1 = end when everything begun has ended, at most 60 s; 2 = now.
                                    NULL: SIGTERM and SIGINT do this, once and twice */
} kit_scheduler_options_t;

/* Runs until it is asked to end.  Returns the exit code for main(): 0 it was asked to, 70 a failure
 * inside, 75 try again (endpoint in use, no memory), 78 wrong options; what is wrong is on stderr,
 * with the remedy. */
int kit_scheduler_run(const kit_scheduler_options_t *options);

/* Replay for `onepath log replay FILE --exec`: reads records (CHANNEL_DEF, IN, TIMER) from in_fd,
 * gives each IN and TIMER to the core, writes its messages as OUT records and then one STATE_DIGEST
 * record to out_fd; blocks on both.  Returns the exit code: 0 at the end of the input, 70 if the
 * core or the pipe failed, 78 if the input is no stream of records. */
int kit_scheduler_replay(const actor_core_ops_t *ops, void *core, int in_fd, int out_fd);

#endif
