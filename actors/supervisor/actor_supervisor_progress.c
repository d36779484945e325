/* actor_supervisor_progress.c - how loading goes: a bar on a terminal, else a line now and then. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "actor_log.h"
#include "actor_supervisor_private.h"

#define MS_NS UINT64_C(1000000)

enum {
    PROGRESS_TTY_MS = 100,
    PROGRESS_LOG_MS = 2000,
};

void
actor_supervisor_clear_bar(actor_supervisor_state_t *self)
{
    if (self->bar_shown) {
        (void)fprintf(stderr, "\r\x1b[K");
        (void)fflush(stderr);
        self->bar_shown = false;
    }
}

static void
draw_bar(actor_supervisor_state_t *self, uint64_t done, uint64_t total, const char *detail)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    uint32_t filled = total > 0 ? (uint32_t)((double)done / (double)total * WIDTH) : 0;
    filled = filled > WIDTH ? WIDTH : filled;
    memset(bar, '.', WIDTH);
    memset(bar, '#', filled);
    bar[WIDTH] = '\0';
    (void)fprintf(stderr, "\r\x1b[Kloading [%s] %5.1f / %.1f MB  %.60s", bar, (double)done / 1e6,
                  (double)total / 1e6, detail);
    (void)fflush(stderr);
    self->bar_shown = true;
}

void
actor_supervisor_show_progress(actor_supervisor_state_t *self, uint64_t *wait_ns)
{
    if (!self->options->show_progress || self->was_ready || self->phase != PHASE_RUNNING) {
        actor_supervisor_clear_bar(self);
        return;
    }
    bool terminal = isatty(STDERR_FILENO) == 1;
    if (self->now_ns >= self->progress_next_ns) {
        uint64_t done = 0;
        uint64_t total = 0;
        const char *detail = "";
        for (uint32_t index = 0; index < self->child_count; index++) {
            const actor_supervisor_member_t *member = &self->core.members[index];
            done += member->done_bytes;
            total += member->total_bytes;
            if (member->state == ACTOR_STATE_LOADING) {
                detail = member->detail;
            }
        }
        if (terminal) {
            draw_bar(self, done, total, detail);
        } else if (total > 0) {
            actor_log(ACTOR_LOG_INFO, "supervisor.loading", 0,
                      ACTOR_LOG_FIELDS(actor_log_u64("done_bytes", done),
                                       actor_log_u64("total_bytes", total)),
                      "loading: %.1f of %.1f MB %s", (double)done / 1e6, (double)total / 1e6,
                      detail);
        }
        self->progress_next_ns =
            self->now_ns + (terminal ? PROGRESS_TTY_MS : PROGRESS_LOG_MS) * MS_NS;
    }
    actor_supervisor_lower(wait_ns, self->progress_next_ns, self->now_ns);
}
