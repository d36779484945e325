/* actor_recorder.c - a shell without links that looks at the rings between its rounds.  Rings give
 * no wake-up, because their producers make no system call: they are looked at every few ms. */
#include "actor_recorder.h"

#include <poll.h>
#include <stdlib.h>
#include <time.h>

#include "actor_exit.h"
#include "actor_recorder_source.h"
#include "actor_shell.h"
#include "proto_clock.h"
#include "proto_require.h"

#define MS_NS UINT64_C(1000000)

enum {
    LOOK_MS = 8,    /* between two looks; what a look finds is written at once: below 10 ms */
    IDLE_MS = 100,  /* in ring mode there is nothing to do but to be there */
    SYNC_MS = 1000, /* a loss of power costs at most this */
    FD_COUNT_MAX = 8,
};

typedef struct {
    const actor_recorder_options_t *options;
    actor_recorder_source_t *sources[ACTOR_RECORDER_RING_COUNT_MAX];
    uint32_t source_count;
    uint64_t sync_next_ns;
} recorder_t;

static uint64_t
now(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

/* ---- the core: there is nothing to decide ---------------------------------------------------- */

static void
core_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    (void)core;
    (void)input;
    (void)outbox;
}

static void
core_stats(const void *core, proto_stats_t *out)
{
    const recorder_t *self = core;
    for (uint32_t index = 0; index < self->source_count; index++) {
        actor_recorder_counts_t counts;
        actor_recorder_source_counts(self->sources[index], &counts);
        out->steps += counts.written;
        out->record_dropped += counts.lost + counts.refused;
    }
}

static const actor_core_ops_t recorder_ops = {.name = "recorder",
                                              .role = PROTO_ROLE_RECORDER,
                                              .outbox_size_bytes = 1024,
                                              .outbox_count_max = 1,
                                              .step = core_step,
                                              .stats = core_stats};

/* ---- rings to segments ----------------------------------------------------------------------- */

static bool
drain_all(recorder_t *self)
{
    bool more = false;
    for (uint32_t index = 0; index < self->source_count; index++) {
        more = actor_recorder_source_drain(self->sources[index]) || more;
    }
    uint64_t now_ns = now();
    if (now_ns >= self->sync_next_ns) {
        self->sync_next_ns = now_ns + SYNC_MS * MS_NS;
        for (uint32_t index = 0; index < self->source_count; index++) {
            actor_recorder_source_sync(self->sources[index]);
        }
    }
    return more;
}

/* ---- begin and end --------------------------------------------------------------------------- */

static int
open_sources(recorder_t *self)
{
    const actor_recorder_options_t *options = self->options;
    if (options->log_dir == NULL) {
        return ACTOR_EXIT_OK; /* rings stay where they are */
    }
    if (actor_recorder_open_folder(options->log_dir) != STATUS_OK) {
        return ACTOR_EXIT_CONFIG;
    }
    for (uint32_t index = 0; index < options->ring_count; index++) {
        const actor_recorder_source_options_t source_options = {
            .fd = options->rings[index].fd,
            .actor_name = options->rings[index].actor_name,
            .log_dir = options->log_dir,
            .build = options->build};
        proto_status_t status =
            actor_recorder_source_open(&source_options, &self->sources[self->source_count]);
        if (status != STATUS_OK) {
            return status == STATUS_ERR_IO ? ACTOR_EXIT_CONFIG : ACTOR_EXIT_INTERNAL;
        }
        self->source_count++;
    }
    return ACTOR_EXIT_OK;
}

static void
close_sources(recorder_t *self)
{
    for (uint32_t index = 0; index < self->source_count; index++) {
        actor_recorder_source_close(&self->sources[index]);
    }
}

static bool
stop_asked(const recorder_t *self)
{
    return self->options->stop != NULL && atomic_load(self->options->stop) != 0;
}

/* True if the shell has something to read. */
static bool
sleep_a_little(const actor_shell_t *shell, uint64_t wait_ns)
{
    int fds[FD_COUNT_MAX];
    struct pollfd items[FD_COUNT_MAX];
    uint32_t count = actor_shell_fds(shell, fds, FD_COUNT_MAX);
    for (uint32_t index = 0; index < count; index++) {
        items[index] = (struct pollfd){.fd = fds[index], .events = POLLIN};
    }
    struct timespec wait = {0, (long)wait_ns};
    return ppoll(items, count, &wait, NULL) != 0;
}

static int
run(recorder_t *self, actor_shell_t *shell)
{
    uint64_t look_ns = (self->source_count > 0 ? LOOK_MS : IDLE_MS) * MS_NS;
    uint64_t service_next_ns = 0;
    bool is_readable = true;
    proto_status_t status = STATUS_OK;
    while (status == STATUS_OK && !stop_asked(self)) {
        uint64_t now_ns = now();
        if (is_readable || now_ns >= service_next_ns) { /* it costs more than a look at the rings */
            uint64_t wait_ns = 0;
            status = actor_shell_service(shell, &wait_ns);
            service_next_ns = now_ns + wait_ns;
        }
        bool more = drain_all(self);
        is_readable = false;
        if (status == STATUS_OK && !more) {
            uint64_t wait_ns = service_next_ns > now_ns ? service_next_ns - now_ns : 0;
            is_readable = sleep_a_little(shell, wait_ns < look_ns ? wait_ns : look_ns);
        }
    }
    /* The others ended before us: what they left is all there will be. */
    while (drain_all(self)) {
    }
    return status == STATUS_OK || status == STATUS_END ? ACTOR_EXIT_OK : ACTOR_EXIT_INTERNAL;
}

int
actor_recorder_run(const actor_recorder_options_t *options)
{
    require(options->ring_count <= ACTOR_RECORDER_RING_COUNT_MAX);

    int code = ACTOR_EXIT_INTERNAL;
    actor_shell_t *shell = NULL;
    recorder_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return code;
    }
    self->options = options;
    actor_shell_options_t shell_options = {.name = options->name,
                                           .epoch = options->epoch,
                                           .ops = &recorder_ops,
                                           .core = self,
                                           .supervisor_endpoint = options->supervisor_endpoint,
                                           .ring_fd = -1,
                                           .post_size_bytes = 4096};
    code = open_sources(self);
    if (code != ACTOR_EXIT_OK) {
        goto end;
    }
    if (actor_shell_new(&shell_options, &shell) != STATUS_OK) {
        code = ACTOR_EXIT_INTERNAL;
        goto end;
    }
    actor_shell_report(shell, ACTOR_STATE_READY, 0, 0,
                       options->log_dir != NULL ? options->log_dir : "rings in memory");
    code = run(self, shell);

end:
    actor_shell_destroy(&shell, 100 * MS_NS); /* its last STATS ask the sources */
    close_sources(self);
    free(self);
    return code;
}
