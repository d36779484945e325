#include "kern_team.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kern_wait.h"
#include "proto_require.h"

/* Polls before a thread sleeps: some 30 us, the time of a few operations.  Longer would take the
 * processor from the other actors on a machine of few cores; when there are more threads than
 * processors, whoever we wait for may need ours at once. */
enum {
    TEAM_SPIN_COUNT = 1500,
    TEAM_SPIN_COUNT_CROWDED = 20,
};

typedef struct {
    kern_team_t *team;
    kern_share_t share;
    pthread_t thread;
} member_t;

struct kern_team {
    kern_share_state_t state;
    _Alignas(KERN_CACHE_LINE_SIZE_BYTES) _Atomic uint32_t job; /* advances with each hand-over */
    _Atomic uint32_t job_sleepers;
    _Alignas(KERN_CACHE_LINE_SIZE_BYTES) _Atomic uint32_t finished; /* helpers done with the job */
    _Atomic uint32_t finished_sleepers;
    const kern_command_t *commands; /* the job's; written before `job` advances */
    uint32_t command_count;
    bool stop;
    uint32_t thread_count;
    uint32_t started_count; /* helpers that were started */
    uint32_t spin_count;
    kern_path_t path;
    member_t *members; /* [thread_count]; 0 is the caller */
};

static void
run_commands(kern_share_t *share, const kern_command_t *commands, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0) {
            kern_share_sync(share);
        }
        commands[i].fn(commands[i].args, share);
    }
}

static void *
helper_main(void *context)
{
    member_t *member = context;
    kern_team_t *team = member->team;
    uint32_t seen = 0;
    for (;;) {
        seen = kern_wait(&team->job, seen, &team->job_sleepers, team->spin_count);
        if (team->stop) {
            return NULL;
        }
        run_commands(&member->share, team->commands, team->command_count);
        atomic_fetch_add(&team->finished, 1);
        kern_wake(&team->finished, &team->finished_sleepers);
    }
}

static uint32_t
processor_count(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) < 1) {
        return 1;
    }
    return (uint32_t)CPU_COUNT(&set);
}

static proto_status_t
start_members(kern_team_t *self)
{
    for (uint32_t i = 0; i < self->thread_count; i++) {
        member_t *member = &self->members[i];
        member->team = self;
        member->share.state = &self->state;
        member->share.thread_index = i;
        member->share.thread_count = self->thread_count;
        member->share.path = self->path;
        member->share.spin_count = self->spin_count;
        member->share.scratch = aligned_alloc(KERN_CACHE_LINE_SIZE_BYTES, KERN_SCRATCH_SIZE_BYTES);
        if (member->share.scratch == NULL) {
            return STATUS_ERR_NO_MEMORY;
        }
        /* Touched now, so that no step pays for the pages. */
        memset(member->share.scratch, 0, KERN_SCRATCH_SIZE_BYTES);
    }
    for (uint32_t i = 1; i < self->thread_count; i++) {
        if (pthread_create(&self->members[i].thread, NULL, helper_main, &self->members[i]) != 0) {
            return STATUS_ERR_NO_MEMORY;
        }
        self->started_count++;
    }
    return STATUS_OK;
}

proto_status_t
kern_team_new(const kern_team_options_t *options, kern_team_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);

    uint32_t processors = processor_count();
    uint32_t thread_count = options->thread_count;
    if (thread_count == 0) {
        thread_count = processors < KERN_THREADS_MAX ? processors : KERN_THREADS_MAX;
    }
    if (thread_count > KERN_THREADS_MAX || !kern_path_available(options->path)) {
        return STATUS_ERR_CONFIG;
    }
    kern_team_t *self = aligned_alloc(_Alignof(kern_team_t), sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    memset(self, 0, sizeof *self);
    self->thread_count = thread_count;
    self->path = options->path;
    self->spin_count = thread_count <= processors ? TEAM_SPIN_COUNT : TEAM_SPIN_COUNT_CROWDED;
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    self->members = calloc(thread_count, sizeof *self->members);
    if (self->members != NULL) {
        status = start_members(self);
    }
    if (status != STATUS_OK) {
        kern_team_destroy(&self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

void
kern_team_destroy(kern_team_t **self_p)
{
    require(self_p != NULL);
    kern_team_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    self->stop = true;
    atomic_fetch_add(&self->job, 1);
    kern_wake(&self->job, &self->job_sleepers);
    for (uint32_t i = 1; i <= self->started_count; i++) {
        (void)pthread_join(self->members[i].thread, NULL);
    }
    if (self->members != NULL) {
        for (uint32_t i = 0; i < self->thread_count; i++) {
            free(self->members[i].share.scratch);
        }
    }
    free(self->members);
    free(self);
    *self_p = NULL;
}

void
kern_team_run_list(kern_team_t *self, const kern_command_t *commands, uint32_t count)
{
    require(self != NULL);
    require(commands != NULL);

    uint32_t helpers = self->thread_count - 1;
    kern_share_t *share = &self->members[0].share;
    if (helpers == 0) {
        share->chunk = 0;
        run_commands(share, commands, count);
        return;
    }
    self->commands = commands;
    self->command_count = count;
    atomic_store_explicit(&self->state.chunk, 0, memory_order_relaxed);
    atomic_store_explicit(&self->finished, 0, memory_order_relaxed);
    atomic_fetch_add(&self->job, 1);
    kern_wake(&self->job, &self->job_sleepers);

    run_commands(share, commands, count);
    uint32_t finished = atomic_load_explicit(&self->finished, memory_order_acquire);
    while (finished != helpers) {
        finished = kern_wait(&self->finished, finished, &self->finished_sleepers, self->spin_count);
    }
}

void
kern_team_run_alone(kern_team_t *self, const kern_command_t *commands, uint32_t count)
{
    require(self != NULL);
    require(commands != NULL);
    kern_share_t share = self->members[0].share;
    share.state = NULL;
    share.thread_count = 1;
    share.chunk = 0;
    run_commands(&share, commands, count);
}

void
kern_team_run(kern_team_t *self, kern_host_fn fn, const void *args)
{
    kern_command_t command = {.fn = fn, .args = args};
    kern_team_run_list(self, &command, 1);
}

uint32_t
kern_team_thread_count(const kern_team_t *self)
{
    return self->thread_count;
}

kern_path_t
kern_team_path(const kern_team_t *self)
{
    return self->path;
}
