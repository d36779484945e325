/* bench_actor_step.h - what the processes of this bench share.
 *
 * The controller (which is also the gateway that loads the node), scheduler, executor, and a pair
 * of bare sockets are processes of their own, forked before the first socket exists.  They note
 * their times in one shared mapping. */
#ifndef BENCH_ACTOR_STEP_H
#define BENCH_ACTOR_STEP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    STEP_RING = 1 << 16,
    BARE_MAX = 1 << 16,
    BATCH_MAX = 1024,
    CALL_KINDS = 11,
};

/* Whose system calls: the two actors' own threads and their library's. */
enum {
    CALLER_SCHEDULER,
    CALLER_SCHEDULER_IO,
    CALLER_EXECUTOR,
    CALLER_EXECUTOR_IO,
    CALLER_COUNT,
};

/* One step, by its number. */
typedef struct {
    uint64_t plan_end_ns;       /* the scheduler's core has emitted the plan */
    uint64_t result_begin_ns;   /* the scheduler's core is given the result */
    uint32_t scheduler_ns;      /* the scheduler's core, on that result (it also makes a plan) */
    uint32_t executor_ns;       /* the executor's core, on the plan and on STEP_DONE */
    uint64_t executor_begin_ns; /* the executor's core is given the plan */
    uint64_t executor_end_ns;   /* and has emitted the result */
    uint32_t decode_rows;
    uint32_t extend_rows;
    uint32_t plan_bytes; /* body and columns */
    bool is_full;
} step_record_t;

typedef struct {
    _Atomic uint64_t step_last;  /* of the scheduler's plans */
    atomic_uint batch;           /* decode rows of the steps that count */
    atomic_uint full_step_count; /* such steps so far */
    atomic_bool is_window;       /* such a step is under way: count system calls */
    atomic_bool is_tracing;      /* the tracer shall go on */
    atomic_bool is_traced;       /* it has attached */
    _Atomic uint64_t syscall_count;
    atomic_uint calls[CALLER_COUNT][CALL_KINDS];
    atomic_int stop; /* ACTOR_EXECUTOR_QUIT: end */
    step_record_t steps[STEP_RING];
    uint32_t bare_ns[BARE_MAX];
} shared_t;

typedef struct {
    char folder[64];
    char gateway_endpoint[96];
    char executor_endpoint[96];
    char bare_endpoint[96];
    int scheduler_cpu;
    int executor_cpu;
    bool full_plans;
    bool overlap;
    bool device_thread;
    bool tcp;   /* links over loopback instead of ipc */
    bool curve; /* and encrypted */
} node_t;

/* ---- processes (bench_step_peers.c) ---------------------------------------------------------- */
void pin(int cpu);
pid_t start_scheduler(const node_t *node, shared_t *shared);
pid_t start_executor(const node_t *node, shared_t *shared);
/* Echoes 64 bytes: ROUTER. */
pid_t start_bare_server(const node_t *node, shared_t *shared);
/* DEALER: reads a count from `commands`, makes that many round trips, writes it to `answers`. */
pid_t start_bare_client(const node_t *node, shared_t *shared, int commands, int answers);

/* ---- keys (bench_step_keys.c) ---------------------------------------------------------------- */
/* Gives the node TCP endpoints, and its actors keys in its folder. */
void keys_make(node_t *node);
/* This process is that actor, with its key if the node has some. */
void keys_use(const node_t *node, const char *name);
void keys_remove(const node_t *node);

/* ---- load (bench_step_load.c) ---------------------------------------------------------------- */
typedef struct load load_t;
load_t *load_open(const node_t *node);
void load_close(load_t *load);
/* Waits until the node serves. */
void load_wait_ready(load_t *load);
/* `count` requests of `generation` tokens each, prompts of different lengths; until all ended. */
void load_run(load_t *load, uint32_t count, uint32_t generation);
/* `watch` (NULL: nobody) is called about once a step while load_run() waits. */
void load_watch(load_t *load, void (*watch)(void *context), void *context);

/* ---- system calls (bench_step_trace.c) ------------------------------------------------------- */
enum { COUNTERS_MAX = 16 };
typedef struct {
    uint64_t trace_point;
    int fds[COUNTERS_MAX];
    uint32_t count;
    bool is_good;
} counters_t;
/* Counts from now on what all threads of `pids` call; false if the kernel does not let us. */
bool counters_open(counters_t *self, const pid_t *pids, uint32_t pid_count);
uint64_t counters_read(const counters_t *self);
void counters_close(counters_t *self);

/* A process that counts the system calls of all threads of `pids` (scheduler, executor) while
 * shared->is_window. */
pid_t start_tracer(const pid_t *pids, uint32_t pid_count, shared_t *shared);
const char *call_name(uint32_t kind);
/* Voluntary and involuntary context switches of all threads so far. */
uint64_t context_switches(pid_t pid);

uint64_t now_ns(void);
void die(const char *what);

#endif
