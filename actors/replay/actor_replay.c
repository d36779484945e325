/* actor_replay.c - the child process in which log and core meet, and the watch over it. */
#include "actor_replay.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "log_message.h"
#include "log_set.h"
#include "proto_clock.h"
#include "proto_require.h"

#define ANSWER_TIMEOUT_NS UINT64_C(30000000000)
#define LOAD_TIMEOUT_NS UINT64_C(600000000000)
#define PROGRAM_GRACE_NS UINT64_C(10000000000)

enum {
    LOOK_MS = 200, /* between two looks at a child that says nothing */
    COLUMN_LEN_SHOWN = 16,
};

/* ---- last words ------------------------------------------------------------------------------ */

/* Keeps the end of what was said. */
static void
keep_words(char words[ACTOR_REPLAY_WORDS_SIZE_BYTES], const char *data, size_t size_bytes)
{
    size_t room = ACTOR_REPLAY_WORDS_SIZE_BYTES - 1;
    if (size_bytes > room) {
        data += size_bytes - room;
        size_bytes = room;
    }
    size_t kept = strlen(words);
    if (kept + size_bytes > room) {
        size_t drop = kept + size_bytes - room;
        memmove(words, words + drop, kept - drop + 1);
        kept -= drop;
    }
    memcpy(words + kept, data, size_bytes);
    words[kept + size_bytes] = '\0';
}

/* What the child says goes on to our stderr.  False when it has closed its end. */
static bool
pass_words(int fd, char words[ACTOR_REPLAY_WORDS_SIZE_BYTES])
{
    char buffer[4096];
    ssize_t got = read(fd, buffer, sizeof buffer);
    if (got < 0) {
        return errno == EINTR || errno == EAGAIN;
    }
    if (got == 0) {
        return false;
    }
    for (ssize_t i = 0; i < got; i++) {
        bool is_plain = buffer[i] == '\n' || buffer[i] == '\t' || (uint8_t)buffer[i] >= 0x20;
        buffer[i] = is_plain && buffer[i] != 0x7f ? buffer[i] : '?';
    }
    (void)fwrite(buffer, 1, (size_t)got, stderr);
    keep_words(words, buffer, (size_t)got);
    return true;
}

/* ---- the child ------------------------------------------------------------------------------- */

/* How long one record may take: a core answers in microseconds, a model takes minutes to load. */
static uint64_t
patience_ns(const actor_replay_options_t *options)
{
    uint64_t answer_ns =
        options->answer_timeout_ns != 0 ? options->answer_timeout_ns : ANSWER_TIMEOUT_NS;
    uint64_t extra_ns = options->program != NULL ? PROGRAM_GRACE_NS : 0;
    extra_ns += options->device_model != NULL ? LOAD_TIMEOUT_NS : 0;
    return answer_ns < UINT64_MAX - extra_ns ? answer_ns + extra_ns : UINT64_MAX;
}

/* Until the child has ended; true if it was stuck and had to be killed.  A program of the child may
 * hold the pipe open for longer, so its end alone says nothing. */
static bool
watch(const actor_replay_options_t *options, pid_t child, int words_fd,
      volatile actor_replay_report_t *shared, char words[ACTOR_REPLAY_WORDS_SIZE_BYTES],
      int *wait_status)
{
    bool is_open = true;
    const proto_clock_t *clock = proto_clock_system();
    uint64_t patience = patience_ns(options);
    uint64_t beat = 0;
    uint64_t since_ns = proto_clock_monotonic_ns(clock);
    for (;;) {
        struct pollfd item = {.fd = is_open ? words_fd : -1, .events = POLLIN};
        int ready = poll(&item, 1, is_open ? LOOK_MS : 1);
        if (ready > 0) {
            is_open = pass_words(words_fd, words);
        } else if (waitpid(child, wait_status, WNOHANG) == child) {
            return false; /* all that it said has been read */
        }
        uint64_t now_ns = proto_clock_monotonic_ns(clock);
        if (shared->beat != beat) {
            beat = shared->beat;
            since_ns = now_ns;
        } else if (now_ns - since_ns > patience) {
            (void)kill(child, SIGKILL);
            while (waitpid(child, wait_status, 0) < 0 && errno == EINTR) {
            }
            return true;
        }
        if (options->progress != NULL) {
            actor_replay_report_t copy;
            memcpy(&copy, (const void *)(uintptr_t)shared, sizeof copy);
            options->progress(options->progress_context, &copy);
        }
    }
}

static void
name_death(actor_replay_report_t *report, int wait_status, bool is_stuck)
{
    char how[96];
    if (is_stuck) {
        (void)snprintf(how, sizeof how, "did not come back and was killed");
    } else if (WIFSIGNALED(wait_status)) {
        const char *name = sigabbrev_np(WTERMSIG(wait_status));
        (void)snprintf(how, sizeof how, "died: signal %d (SIG%s)", WTERMSIG(wait_status),
                       name != NULL ? name : "?");
    } else {
        (void)snprintf(how, sizeof how, "ended with exit code %d", WEXITSTATUS(wait_status));
    }
    report->outcome = ACTOR_REPLAY_DIED;
    if (report->input.sequence != 0) {
        (void)snprintf(report->detail, sizeof report->detail,
                       "the core %s at input %" PRIu64 " (record %" PRIu64 ", %s)", how,
                       report->input.number, report->input.sequence,
                       proto_kind_name(report->input.kind));
    } else {
        (void)snprintf(report->detail, sizeof report->detail,
                       "%s %s before the first input (record %" PRIu64 ")",
                       report->is_stepping ? "making the core from its snapshot:"
                                           : "reading the log:",
                       how, report->record_count);
    }
}

static void
run_child(const actor_replay_options_t *options, actor_replay_report_t *shared, int words_fd)
{
    actor_replay_options_t own = *options;
    own.progress = NULL; /* the parent tells it */
    (void)dup2(words_fd, STDERR_FILENO);
    if (words_fd != STDERR_FILENO) {
        (void)close(words_fd);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    actor_replay_play(&own, shared);
    _exit(0);
}

proto_status_t
actor_replay_run(const actor_replay_options_t *options, actor_replay_report_t *out)
{
    require(options != NULL);
    require(out != NULL);
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    int fds[2];
    actor_replay_report_t *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        goto err;
    }
    status = STATUS_ERR_IO;
    if (pipe(fds) != 0) {
        goto err_unmap;
    }
    (void)fflush(stdout);
    (void)fflush(stderr);
    pid_t child = fork();
    if (child < 0) {
        goto err_close;
    }
    if (child == 0) {
        (void)close(fds[0]);
        run_child(options, shared, fds[1]);
    }
    (void)close(fds[1]);
    char words[ACTOR_REPLAY_WORDS_SIZE_BYTES] = "";
    int wait_status = 0;
    bool is_stuck = watch(options, child, fds[0], shared, words, &wait_status);
    *out = *shared;
    if (is_stuck || !WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0) {
        name_death(out, wait_status, is_stuck);
    }
    if (out->outcome == ACTOR_REPLAY_DIED) {
        memcpy(out->words, words, sizeof out->words);
    }
    status = STATUS_OK;

err_close:
    (void)close(fds[0]);
    if (status != STATUS_OK) {
        (void)close(fds[1]);
    }
err_unmap:
    (void)munmap(shared, sizeof *shared);
err:
    return status;
}

/* ---- words for people ------------------------------------------------------------------------ */

const char *
actor_replay_find_text(actor_replay_find_t what)
{
    switch (what) {
    case ACTOR_REPLAY_FIND_NONE:
        return "nothing";
    case ACTOR_REPLAY_FIND_FIELD:
        return "a field differs";
    case ACTOR_REPLAY_FIND_TO:
        return "a message goes to another peer";
    case ACTOR_REPLAY_FIND_KIND:
        return "another message comes";
    case ACTOR_REPLAY_FIND_REQUEST:
        return "a message names another request";
    case ACTOR_REPLAY_FIND_MISSING:
        return "a recorded message does not come";
    case ACTOR_REPLAY_FIND_EXTRA:
        return "a message comes that was not recorded";
    case ACTOR_REPLAY_FIND_DIGEST:
        return "the digest of the state differs";
    case ACTOR_REPLAY_FIND_STATE:
        return "the bytes of the state differ";
    case ACTOR_REPLAY_FIND_DEADLINE:
        return "the core wanted its timer at another time";
    case ACTOR_REPLAY_FIND_RESTORE:
        return "the core made from the snapshot has another digest than the recorded one";
    case ACTOR_REPLAY_FIND_DEVICE:
        return "the device gave something else";
    }
    return "unknown";
}

static void
describe_record(log_decoder_t *decoder, const proto_log_record_t *record, char *out,
                size_t capacity_bytes)
{
    log_message_t message;
    const char *kind = record->kind == PROTO_LOG_TIMER ? "TIMER" : "UNKNOWN";
    int length = 0;
    if (log_decoder_decode(decoder, record, &message) != STATUS_OK) {
        (void)snprintf(out, capacity_bytes, "record %" PRIu64 " does not decode", record->sequence);
        return;
    }
    kind = record->kind == PROTO_LOG_TIMER ? kind : proto_kind_name(message.header.kind);
    length =
        snprintf(out, capacity_bytes, "record %" PRIu64 "  %s peer %u  %s", record->sequence,
                 record->kind == PROTO_LOG_OUT ? "out" : "in", (unsigned)record->channel, kind);
    if (message.header.request != 0 && (size_t)length < capacity_bytes) {
        length += snprintf(out + length, capacity_bytes - (size_t)length, "  request %" PRIu64,
                           message.header.request);
    }
    if (message.has_body && (size_t)length + 2 < capacity_bytes) {
        out[length] = ' ';
        out[length + 1] = ' ';
        (void)proto_body_to_json(record->kind == PROTO_LOG_TIMER ? PROTO_KIND_TIMER
                                                                 : message.header.kind,
                                 &message.body, false, COLUMN_LEN_SHOWN, out + length + 2,
                                 capacity_bytes - (size_t)length - 2);
    }
}

proto_status_t
actor_replay_describe(const actor_replay_options_t *options, uint64_t sequence, char *out,
                      size_t capacity_bytes)
{
    require(capacity_bytes > 0);
    out[0] = '\0';
    log_set_t *set = NULL;
    log_decoder_t decoder = {0};
    const log_set_options_t set_options = {.actor = options->actor,
                                           .epoch = options->epoch,
                                           .skip_damage = true};
    proto_status_t status =
        log_set_open(options->paths, options->path_count, &set_options, &set, NULL);
    if (status != STATUS_OK) {
        return status;
    }
    log_set_item_t item;
    while ((status = log_set_next(set, &item)) == STATUS_OK) {
        if (item.record.sequence == sequence && item.record.kind != PROTO_LOG_DROP) {
            describe_record(&decoder, &item.record, out, capacity_bytes);
            break;
        }
    }
    log_decoder_fini(&decoder);
    log_set_close(&set);
    return status == STATUS_END ? STATUS_ERR_NOT_FOUND : status;
}
