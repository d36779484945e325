/* actor_replay_program.c - the player that is a program: records through two pipes, one input at a
 * time.  Whatever it writes is hostile: every length, count and wait has a bound. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "actor_replay_player.h"
#include "log_message.h"
#include "proto_clock.h"
#include "proto_require.h"

#define GRACE_NS UINT64_C(1000000000)
#define NAP_NS 5000000L

enum {
    OUTPUT_COUNT_MAX = 65536,            /* messages in answer to one input */
    ANSWER_SIZE_MAX = 256 * 1024 * 1024, /* bytes in answer to one input */
    READ_SIZE_MIN = 64 * 1024,
};

typedef struct {
    uint8_t *data;
    size_t size_bytes;
    size_t capacity_bytes;
} buffer_t;

typedef struct {
    actor_replay_player_t base;
    pid_t pid; /* 0 = it has been waited for */
    int to_fd, from_fd;
    uint64_t timeout_ns;
    buffer_t out;  /* records to write */
    size_t out_at; /* of these, written */
    buffer_t in;   /* what it answered to the last input; views point into it */
    size_t in_at;  /* of these, understood */
    actor_emission_t *outputs;
    size_t *offsets; /* [output] of its record in `in`, which may move while it grows */
    uint32_t output_count, output_capacity;
    uint64_t digest;
} program_t;

__attribute__((format(printf, 3, 4))) static proto_status_t
fail(proto_error_t *error, proto_status_t status, const char *format, ...)
{
    if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(error->detail, sizeof error->detail, format, arguments);
        va_end(arguments);
    }
    return status;
}

static bool
grow(buffer_t *buffer, size_t size_bytes)
{
    if (size_bytes <= buffer->capacity_bytes) {
        return true;
    }
    size_t capacity_bytes =
        buffer->capacity_bytes * 2 > size_bytes ? buffer->capacity_bytes * 2 : size_bytes;
    uint8_t *data = realloc(buffer->data, capacity_bytes);
    if (data == NULL) {
        return false;
    }
    buffer->data = data;
    buffer->capacity_bytes = capacity_bytes;
    return true;
}

/* ---- how it ended ---------------------------------------------------------------------------- */

static proto_status_t
fail_ended(program_t *self, proto_error_t *error)
{
    int wait_status = 0;
    struct timespec nap = {0, NAP_NS};
    pid_t got = 0;
    for (uint64_t waited_ns = 0; waited_ns < GRACE_NS && got == 0; waited_ns += NAP_NS) {
        got = waitpid(self->pid, &wait_status, WNOHANG);
        if (got == 0) {
            (void)nanosleep(&nap, NULL);
        }
    }
    if (got != self->pid) {
        return fail(error, STATUS_ERR_PEER_LOST, "the program closed its output, and lives on");
    }
    self->pid = 0;
    if (WIFSIGNALED(wait_status)) {
        return fail(error, STATUS_ERR_PEER_LOST, "the program died of signal %d (%s)",
                    WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
    }
    return fail(error, STATUS_ERR_PEER_LOST,
                "the program ended with exit code %d before it had answered%s",
                WEXITSTATUS(wait_status),
                WEXITSTATUS(wait_status) == 127 ? " (is the command right?)" : "");
}

/* ---- its answer ------------------------------------------------------------------------------ */

static proto_status_t
take_output(program_t *self, const proto_log_record_t *record, size_t offset, proto_error_t *error)
{
    proto_header_t header;
    if (record->part_count < 2 || record->part_count > 3 ||
        proto_header_decode(record->parts[0], &header) != STATUS_OK ||
        !proto_kind_known(header.kind)) {
        return fail(error, STATUS_ERR_MALFORMED,
                    "output %" PRIu32
                    " of the program is no message: it takes a header, a body and "
                    "perhaps a blob",
                    self->output_count);
    }
    if (self->output_count == OUTPUT_COUNT_MAX) {
        return fail(error, STATUS_ERR_MALFORMED,
                    "the program answers one input with more than %d messages", OUTPUT_COUNT_MAX);
    }
    if (self->output_count == self->output_capacity) {
        uint32_t capacity = self->output_capacity == 0 ? 64 : self->output_capacity * 2;
        actor_emission_t *outputs = realloc(self->outputs, capacity * sizeof *outputs);
        if (outputs != NULL) {
            self->outputs = outputs;
        }
        size_t *offsets = realloc(self->offsets, capacity * sizeof *offsets);
        if (offsets != NULL) {
            self->offsets = offsets;
        }
        if (outputs == NULL || offsets == NULL) {
            return fail(error, STATUS_ERR_NO_MEMORY, "no memory for the program's answer");
        }
        self->output_capacity = capacity;
    }
    self->offsets[self->output_count] = offset;
    self->outputs[self->output_count++] =
        (actor_emission_t){.to = {record->channel}, .kind = header.kind, .request = header.request};
    return STATUS_OK;
}

/* The buffer has stopped growing: views into it can be made. */
static void
make_views(program_t *self)
{
    for (uint32_t i = 0; i < self->output_count; i++) {
        size_t offset = self->offsets[i];
        size_t size_bytes = 0;
        proto_log_record_t record;
        proto_status_t status =
            proto_log_record_decode((proto_bytes_t){self->in.data + offset,
                                                    self->in.size_bytes - offset},
                                    true, &record, &size_bytes);
        require(status == STATUS_OK); /* it was, a moment ago */
        self->outputs[i].body = record.parts[1];
        self->outputs[i].blob = record.part_count > 2 ? record.parts[2] : (proto_bytes_t){NULL, 0};
    }
}

/* Understands what has come so far.  STATUS_OK when the answer is complete, STATUS_AGAIN if there
 * is more to come. */
static proto_status_t
take_records(program_t *self, uint64_t sequence, proto_error_t *error)
{
    for (;;) {
        proto_log_record_t record;
        size_t size_bytes = 0;
        proto_bytes_t rest = {self->in.data + self->in_at, self->in.size_bytes - self->in_at};
        proto_status_t status = proto_log_record_decode(rest, true, &record, &size_bytes);
        if (status == STATUS_AGAIN) {
            return STATUS_AGAIN;
        }
        if (status != STATUS_OK) {
            return fail(error, STATUS_ERR_MALFORMED,
                        "what the program writes is no record (byte %zu of its answer); nothing "
                        "else may go to its stdout",
                        self->in_at);
        }
        if (record.kind == PROTO_LOG_OUT) {
            status = take_output(self, &record, self->in_at, error);
            if (status != STATUS_OK) {
                return status;
            }
            self->in_at += size_bytes;
            continue;
        }
        if (record.kind != PROTO_LOG_STATE_DIGEST || record.part_count != 1 ||
            record.parts[0].size_bytes != 8) {
            return fail(
                error, STATUS_ERR_MALFORMED,
                "the program wrote a record of kind %s; only OUT and STATE_DIGEST (8 bytes) "
                "are its to write",
                proto_log_kind_name(record.kind));
        }
        if (record.sequence != sequence) {
            return fail(error, STATUS_ERR_MALFORMED,
                        "the program's STATE_DIGEST names record %" PRIu64 "; the input was record "
                        "%" PRIu64,
                        record.sequence, sequence);
        }
        memcpy(&self->digest, record.parts[0].data, sizeof self->digest);
        self->in_at += size_bytes;
        return STATUS_OK;
    }
}

/* ---- the pipes ------------------------------------------------------------------------------- */

static proto_status_t
write_some(program_t *self)
{
    ssize_t written =
        write(self->to_fd, self->out.data + self->out_at, self->out.size_bytes - self->out_at);
    if (written < 0) {
        return errno == EINTR || errno == EAGAIN ? STATUS_AGAIN : STATUS_ERR_PEER_LOST;
    }
    self->out_at += (size_t)written;
    return STATUS_OK;
}

static proto_status_t
read_some(program_t *self, proto_error_t *error)
{
    if (self->in.size_bytes >= ANSWER_SIZE_MAX) {
        return fail(error, STATUS_ERR_MALFORMED,
                    "the program answers one input with more than %d bytes", ANSWER_SIZE_MAX);
    }
    if (!grow(&self->in, self->in.size_bytes + READ_SIZE_MIN)) {
        return fail(error, STATUS_ERR_NO_MEMORY, "no memory for the program's answer");
    }
    ssize_t got = read(self->from_fd, self->in.data + self->in.size_bytes,
                       self->in.capacity_bytes - self->in.size_bytes);
    if (got < 0) {
        return errno == EINTR || errno == EAGAIN ? STATUS_AGAIN : fail_ended(self, error);
    }
    if (got == 0) {
        return fail_ended(self, error);
    }
    self->in.size_bytes += (size_t)got;
    return STATUS_OK;
}

/* Writes the input and reads until the answer is whole: both at once, so that neither side waits
 * for the other with a full pipe. */
static proto_status_t
exchange(program_t *self, uint64_t sequence, proto_error_t *error)
{
    const proto_clock_t *clock = proto_clock_system();
    uint64_t begin_ns = proto_clock_monotonic_ns(clock);
    for (;;) {
        uint64_t spent_ns = proto_clock_monotonic_ns(clock) - begin_ns;
        if (spent_ns >= self->timeout_ns) {
            return fail(error, STATUS_ERR_DEADLINE,
                        "the program did not answer within %" PRIu64 " ms (--answer-timeout)",
                        self->timeout_ns / 1000000);
        }
        bool has_more = self->out_at < self->out.size_bytes;
        struct pollfd items[2] = {{.fd = self->from_fd, .events = POLLIN},
                                  {.fd = has_more ? self->to_fd : -1, .events = POLLOUT}};
        uint64_t wait_ms = (self->timeout_ns - spent_ns) / 1000000 + 1;
        (void)poll(items, 2, wait_ms < 1000 ? (int)wait_ms : 1000);
        if (items[1].revents != 0 && write_some(self) == STATUS_ERR_PEER_LOST) {
            return fail_ended(self, error);
        }
        if (items[0].revents == 0) {
            continue;
        }
        proto_status_t status = read_some(self, error);
        if (status < 0) {
            return status;
        }
        status = take_records(self, sequence, error);
        if (status != STATUS_AGAIN) {
            return status;
        }
    }
}

static proto_status_t
queue_record(program_t *self, const proto_log_record_t *record, proto_error_t *error)
{
    size_t size_bytes = proto_log_record_size_bytes(record);
    require(size_bytes <= PROTO_LOG_RECORD_SIZE_MAX);
    if (self->out_at == self->out.size_bytes) {
        self->out_at = 0;
        self->out.size_bytes = 0;
    }
    if (!grow(&self->out, self->out.size_bytes + size_bytes)) {
        return fail(error, STATUS_ERR_NO_MEMORY, "no memory for record %" PRIu64, record->sequence);
    }
    proto_log_record_encode(record, true, self->out.data + self->out.size_bytes);
    self->out.size_bytes += size_bytes;
    return STATUS_OK;
}

/* ---- the operations -------------------------------------------------------------------------- */

static proto_status_t
step(actor_replay_player_t *base, const actor_input_t *input, const proto_log_record_t *record,
     proto_error_t *error)
{
    (void)input;
    program_t *self = (program_t *)base;
    if (self->in_at < self->in.size_bytes) {
        return fail(error, STATUS_ERR_MALFORMED,
                    "the program wrote %zu bytes after its STATE_DIGEST, before the next input",
                    self->in.size_bytes - self->in_at);
    }
    self->in.size_bytes = 0;
    self->in_at = 0;
    self->output_count = 0;
    proto_status_t status = queue_record(self, record, error);
    if (status == STATUS_OK) {
        status = exchange(self, record->sequence, error);
    }
    if (status == STATUS_OK) {
        make_views(self);
    } else {
        self->output_count = 0;
    }
    return status;
}

/* The records that tell it who its peers are wait for the next input. */
static proto_status_t
define(actor_replay_player_t *base, const proto_log_record_t *record, proto_error_t *error)
{
    return queue_record((program_t *)base, record, error);
}

static uint32_t
output_count(const actor_replay_player_t *base)
{
    return ((const program_t *)base)->output_count;
}

static const actor_emission_t *
output(const actor_replay_player_t *base, uint32_t index)
{
    const program_t *self = (const program_t *)base;
    require(index < self->output_count);
    return &self->outputs[index];
}

static bool
digest(const actor_replay_player_t *base, uint64_t *out)
{
    *out = ((const program_t *)base)->digest;
    return *out != 0;
}

static void
destroy(actor_replay_player_t **self_p)
{
    program_t *self = (program_t *)*self_p;
    if (self == NULL) {
        return;
    }
    (void)close(self->to_fd); /* the end of its input ends it */
    struct timespec nap = {0, NAP_NS};
    for (uint64_t waited_ns = 0; self->pid != 0; waited_ns += NAP_NS) {
        pid_t got = waitpid(self->pid, NULL, WNOHANG);
        if (got == self->pid || (got < 0 && errno != EINTR)) {
            self->pid = 0;
        } else if (waited_ns >= GRACE_NS) {
            (void)kill(-self->pid, SIGKILL);
            (void)kill(self->pid, SIGKILL);
            (void)waitpid(self->pid, NULL, 0);
            self->pid = 0;
        } else {
            (void)nanosleep(&nap, NULL);
        }
    }
    (void)close(self->from_fd);
    free(self->out.data);
    free(self->in.data);
    free(self->outputs);
    free(self->offsets);
    free(self);
    *self_p = NULL;
}

static const actor_replay_player_ops_t program_ops = {.define = define,
                                                      .step = step,
                                                      .output_count = output_count,
                                                      .output = output,
                                                      .digest = digest,
                                                      .destroy = destroy};

/* ---- starting it ----------------------------------------------------------------------------- */

static void
run_program(const char *command, int stdin_fd, int stdout_fd)
{
    (void)setpgid(0, 0); /* so that what the shell starts ends with it */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (dup2(stdin_fd, STDIN_FILENO) < 0 || dup2(stdout_fd, STDOUT_FILENO) < 0 ||
        setenv("ONEPATH_REPLAY", "1", 1) != 0) {
        _exit(126);
    }
    (void)signal(SIGPIPE, SIG_DFL);
    (void)execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

proto_status_t
actor_replay_program_new(const char *command, uint64_t timeout_ns, actor_replay_player_t **out_p,
                         proto_error_t *error)
{
    require(command != NULL);
    require(timeout_ns > 0);
    int to[2];
    int from[2];
    proto_status_t status = STATUS_ERR_NO_MEMORY;
    program_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        goto err;
    }
    status = fail(error, STATUS_ERR_IO, "the program cannot be started: %s", strerror(errno));
    if (pipe2(to, O_CLOEXEC) != 0) {
        goto err_free;
    }
    if (pipe2(from, O_CLOEXEC) != 0) {
        goto err_close_to;
    }
    self->pid = fork();
    if (self->pid < 0) {
        goto err_close_from;
    }
    if (self->pid == 0) {
        run_program(command, to[0], from[1]);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    (void)fcntl(to[1], F_SETFL, O_NONBLOCK);
    (void)fcntl(from[0], F_SETFL, O_NONBLOCK);
    self->base.ops = &program_ops;
    self->to_fd = to[1];
    self->from_fd = from[0];
    self->timeout_ns = timeout_ns;
    *out_p = &self->base;
    return STATUS_OK;

err_close_from:
    (void)close(from[0]);
    (void)close(from[1]);
err_close_to:
    (void)close(to[0]);
    (void)close(to[1]);
err_free:
    free(self);
err:
    return status;
}
