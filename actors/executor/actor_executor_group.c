/* Rank 0's side of a group. */
#include "actor_executor_group.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "actor_log.h"
#include "proto_require.h"

extern char **environ;

enum {
    SLOT_SIZE_BYTES = 4 << 20, /* a piece of a collective; a row of logits fits */
    QUEUE_SIZE_BYTES = 32 << 20,
    ARGS_MAX = 256,
    END_WAIT_MS = 2000,
    END_LOOK_NS = 5 * 1000 * 1000,
};

struct actor_executor_group {
    actor_executor_group_options_t options;
    device_group_t *ranks;
    int fd;
    pthread_mutex_t lock; /* covers what follows: the group's thread looks, the owner ends */
    bool is_ending;
    pid_t pids[DEVICE_GROUP_RANKS_MAX]; /* of ranks 1 ...; 0 = none, or reaped */
};

/* ---- processes --------------------------------------------------------------------------------
 */

static void
describe_end(int how, char *out, size_t out_size_bytes)
{
    if (WIFSIGNALED(how)) {
        (void)snprintf(out, out_size_bytes, "signal %d (%s)", WTERMSIG(how),
                       strsignal(WTERMSIG(how)));
    } else {
        (void)snprintf(out, out_size_bytes, "exit code %d", WEXITSTATUS(how));
    }
}

/* Whether a rank's process ended; called by the group's thread. */
static bool
is_lost(void *context, char *text, size_t text_size_bytes)
{
    actor_executor_group_t *self = context;
    bool found = false;
    (void)pthread_mutex_lock(&self->lock);
    for (uint32_t rank = 1; !self->is_ending && !found && rank < self->options.rank_count; rank++) {
        int how = 0;
        if (self->pids[rank] > 0 && waitpid(self->pids[rank], &how, WNOHANG) == self->pids[rank]) {
            char end[64];
            describe_end(how, end, sizeof end);
            (void)snprintf(text, text_size_bytes, "rank %" PRIu32 " of %" PRIu32 " ended: %s", rank,
                           self->options.rank_count, end);
            self->pids[rank] = 0;
            found = true;
        }
    }
    (void)pthread_mutex_unlock(&self->lock);
    return found;
}

static void
on_failed(void *context)
{
    actor_executor_group_t *self = context;
    self->options.on_failed(self->options.context);
}

static proto_status_t
start_rank(actor_executor_group_t *self, uint32_t rank)
{
    char rank_text[16];
    char fd_text[16];
    char *argv[ARGS_MAX];
    uint32_t count = 0;
    (void)snprintf(rank_text, sizeof rank_text, "%" PRIu32, rank);
    (void)snprintf(fd_text, sizeof fd_text, "%d", self->fd);
    const char *const *words = self->options.argv;
    while (words[count] != NULL) {
        require(count < ARGS_MAX - 5);
        argv[count] = (char *)(uintptr_t)words[count]; /* posix_spawn() does not write there */
        count++;
    }
    char rank_option[] = "--tensor-rank";
    char fd_option[] = "--tensor-group";
    argv[count++] = rank_option;
    argv[count++] = rank_text;
    argv[count++] = fd_option;
    argv[count++] = fd_text;
    argv[count] = NULL;
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions) != 0) {
        return STATUS_ERR_NO_MEMORY;
    }
    /* To itself: it stays open in that process. */
    int failed = posix_spawn_file_actions_adddup2(&actions, self->fd, self->fd);
    pid_t pid = 0;
    if (failed == 0) {
        failed = posix_spawn(&pid, argv[0], &actions, NULL, argv, environ);
    }
    (void)posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) {
        actor_log(ACTOR_LOG_ERROR, "executor.rank", 0, NULL, "cannot start rank %" PRIu32 ": %s",
                  rank, strerror(failed));
        return STATUS_ERR_IO;
    }
    self->pids[rank] = pid;
    actor_log(ACTOR_LOG_INFO, "executor.rank", 0,
              ACTOR_LOG_FIELDS(actor_log_i64("pid", pid), actor_log_u64("rank", rank)),
              "started rank %" PRIu32 " of %" PRIu32, rank, self->options.rank_count);
    return STATUS_OK;
}

proto_status_t
actor_executor_group_new(const actor_executor_group_options_t *options,
                         actor_executor_group_t **out_p)
{
    require(options->rank_count >= 2 && options->rank_count <= DEVICE_GROUP_RANKS_MAX);
    actor_executor_group_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    self->fd = -1;
    (void)pthread_mutex_init(&self->lock, NULL);
    const device_group_sizes_t sizes = {.rank_count = options->rank_count,
                                        .slot_size_bytes = SLOT_SIZE_BYTES,
                                        .queue_size_bytes = QUEUE_SIZE_BYTES};
    proto_status_t status = device_group_create(&sizes, &self->fd);
    if (status == STATUS_OK) {
        const device_group_options_t join = {.fd = self->fd,
                                             .is_lost = is_lost,
                                             .on_failed = on_failed,
                                             .context = self};
        status = device_group_join(&join, &self->ranks);
    }
    for (uint32_t rank = 1; status == STATUS_OK && rank < options->rank_count; rank++) {
        (void)pthread_mutex_lock(&self->lock);
        status = start_rank(self, rank);
        (void)pthread_mutex_unlock(&self->lock);
    }
    if (status != STATUS_OK) {
        actor_log(ACTOR_LOG_ERROR, "executor.rank", 0, NULL, "cannot make a group of ranks: %s",
                  proto_status_text(status));
        actor_executor_group_destroy(&self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

device_group_t *
actor_executor_group_ranks(actor_executor_group_t *self)
{
    return self->ranks;
}

proto_status_t
actor_executor_group_forward(actor_executor_group_t *self, proto_kind_t kind, bool has_graphs_off,
                             proto_bytes_t body, proto_bytes_t blob)
{
    const device_group_message_t message = {
        .kind = (uint32_t)kind,
        .flags = has_graphs_off ? 1 : 0,
        .body = body.data,
        .body_size_bytes = body.size_bytes,
        .blob = blob.data,
        .blob_size_bytes = blob.size_bytes,
    };
    return device_group_send(self->ranks, &message);
}

/* ---- the end ----------------------------------------------------------------------------------
 */

static bool
reap(actor_executor_group_t *self)
{
    bool is_empty = true;
    for (uint32_t rank = 1; rank < self->options.rank_count; rank++) {
        if (self->pids[rank] > 0 && waitpid(self->pids[rank], NULL, WNOHANG) == self->pids[rank]) {
            self->pids[rank] = 0;
        }
        is_empty = is_empty && self->pids[rank] <= 0;
    }
    return is_empty;
}

void
actor_executor_group_destroy(actor_executor_group_t **self_p)
{
    actor_executor_group_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&self->lock);
    self->is_ending = true;
    (void)pthread_mutex_unlock(&self->lock);
    if (self->ranks != NULL) {
        const device_group_message_t end = {.kind = PROTO_KIND_STOP};
        if (device_group_send(self->ranks, &end) != STATUS_OK) {
            /* The group has failed: they end by themselves. */
            actor_log(ACTOR_LOG_DEBUG, "executor.rank", 0, NULL, "the ranks end by themselves");
        }
    }
    const struct timespec look = {.tv_nsec = END_LOOK_NS};
    for (uint32_t i = 0; !reap(self) && i < END_WAIT_MS / (END_LOOK_NS / 1000000); i++) {
        (void)nanosleep(&look, NULL);
    }
    for (uint32_t rank = 1; rank < self->options.rank_count; rank++) {
        if (self->pids[rank] > 0) {
            actor_log(ACTOR_LOG_WARN, "executor.rank", 0, NULL,
                      "killing rank %" PRIu32 ": it does not end", rank);
            (void)kill(self->pids[rank], SIGKILL);
            (void)waitpid(self->pids[rank], NULL, 0);
        }
    }
    device_group_leave(&self->ranks);
    if (self->fd >= 0) {
        (void)close(self->fd);
    }
    (void)pthread_mutex_destroy(&self->lock);
    free(self);
    *self_p = NULL;
}
