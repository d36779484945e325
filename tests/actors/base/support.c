#include "support.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "proto_clock.h"

static char directory[64];
static char endpoint_text[128];

typedef struct {
    actor_shell_t *shell;
    proto_status_t status;
} entry_t;

static entry_t entries[SHELL_COUNT_MAX];

uint64_t
test_now_ns(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

/* ---- the core -------------------------------------------------------------------------------- */

static void
note(test_core_t *self, const actor_input_t *input)
{
    ck_assert_uint_lt(self->event_count, EVENT_COUNT_MAX);
    test_event_t *event = &self->events[self->event_count++];
    *event = (test_event_t){.kind = input->header->kind,
                            .from = input->from.index,
                            .request = input->header->request,
                            .time_ns = input->now_ns};
    if (event->kind == PROTO_KIND_PEER_UP) {
        event->epoch = input->body->peer_up.epoch;
        self->peer = input->body->peer_up.peer;
    } else if (event->kind == PROTO_KIND_PEER_DOWN) {
        proto_text_t detail = input->body->peer_down.detail;
        event->epoch = input->body->peer_down.epoch;
        (void)snprintf(event->detail, sizeof event->detail, "%.*s", (int)detail.size_bytes,
                       detail.data);
        if (self->peer == input->body->peer_down.peer) {
            self->peer = ACTOR_PEER_NONE;
        }
    }
}

static void
core_step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    test_core_t *self = core;
    note(self, input);
    bool local = input->from.index == ACTOR_PEER_LOCAL;
    if (input->header->kind == PROTO_KIND_TIMER) {
        self->deadline_ns = UINT64_MAX;
    }
    if (input->header->kind == PROTO_KIND_FINISH && local && self->emit_local > 0) {
        self->emit_local--;
        proto_body_t body = {.http_end = {.exchange = input->header->request}};
        actor_outbox_push(outbox, (actor_peer_t){ACTOR_PEER_LOCAL}, PROTO_KIND_HTTP_END,
                          input->header->request, &body);
    } else if (input->header->kind == PROTO_KIND_FINISH) {
        /* From our own side: ask the peer.  From a peer: answer. */
        uint32_t to = local ? self->peer : input->from.index;
        if (to == ACTOR_PEER_NONE) {
            return;
        }
        proto_body_t answer = {.finished = {.generated_tokens = input->body->finish.token_index}};
        actor_outbox_push(outbox, (actor_peer_t){to},
                          local ? PROTO_KIND_FINISH : PROTO_KIND_FINISHED, input->header->request,
                          local ? input->body : &answer);
    } else if (input->header->kind == PROTO_KIND_ACTOR_STATE) {
        uint32_t to = local ? self->peer : input->from.index;
        proto_body_t answer = {.linked = {.epoch = input->body->actor_state.done_bytes}};
        if (to != ACTOR_PEER_NONE) {
            actor_outbox_push(outbox, (actor_peer_t){to},
                              local ? PROTO_KIND_ACTOR_STATE : PROTO_KIND_LINKED,
                              input->header->request, local ? input->body : &answer);
        }
    } else if (input->header->kind == PROTO_KIND_PLAN && local) {
        actor_outbox_push(outbox, (actor_peer_t){self->peer}, PROTO_KIND_PLAN, 0, input->body);
    } else if (input->header->kind == PROTO_KIND_PLAN) {
        const proto_plan_t *plan = &input->body->plan;
        for (uint32_t index = 0; index < plan->patch_blocks.count; index++) {
            self->plan_checked += plan->patch_blocks.data[index] == index * 3 + 1 ? 1 : 0;
        }
        ck_assert_uint_eq((uintptr_t)plan->patch_blocks.data % sizeof(uint32_t), 0);
        proto_body_t body = {.step_result = {.step = plan->step}};
        actor_outbox_push(outbox, input->from, PROTO_KIND_STEP_RESULT, 0, &body);
    }
}

static uint64_t
core_deadline(const void *core)
{
    return ((const test_core_t *)core)->deadline_ns;
}

static bool
core_idle(const void *core)
{
    return !((const test_core_t *)core)->busy;
}

void
test_core_init(test_core_t *self, proto_role_t role, const char *name)
{
    *self = (test_core_t){.peer = ACTOR_PEER_NONE, .deadline_ns = UINT64_MAX};
    self->ops = (actor_core_ops_t){.name = name,
                                   .role = role,
                                   .outbox_size_bytes = 1024 * 1024,
                                   .outbox_count_max = 16,
                                   .step = core_step,
                                   .deadline_ns = core_deadline,
                                   .idle = core_idle};
}

uint32_t
test_core_count(const test_core_t *self, proto_kind_t kind)
{
    uint32_t count = 0;
    for (uint32_t index = 0; index < self->event_count; index++) {
        count += self->events[index].kind == kind ? 1 : 0;
    }
    return count;
}

const test_event_t *
test_core_last(const test_core_t *self, proto_kind_t kind)
{
    for (uint32_t index = self->event_count; index > 0; index--) {
        if (self->events[index - 1].kind == kind) {
            return &self->events[index - 1];
        }
    }
    ck_abort_msg("no event of kind %s", proto_kind_name(kind));
    return NULL;
}

/* ---- shells ---------------------------------------------------------------------------------- */

const char *
test_dir(void)
{
    if (directory[0] == '\0') {
        (void)snprintf(directory, sizeof directory, "/tmp/onepath-test-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(directory));
    }
    return directory;
}

void
test_dir_remove(void)
{
    if (directory[0] == '\0') {
        return;
    }
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", directory);
    ck_assert_int_eq(system(command), 0);
    directory[0] = '\0';
}

const char *
test_endpoint(const char *name)
{
    (void)snprintf(endpoint_text, sizeof endpoint_text, "ipc://%s/%s", test_dir(), name);
    return endpoint_text;
}

actor_shell_t *
test_shell_with(test_core_t *core, actor_shell_options_t options, const actor_link_options_t *link)
{
    if (options.ops == NULL) {
        options.ops = &core->ops;
        options.core = core;
    }
    options.links = link;
    options.link_count = link != NULL ? 1 : 0;
    options.ring_fd = options.ring_fd > 0 ? options.ring_fd : -1;
    actor_shell_t *shell = NULL;
    ck_assert_int_eq(actor_shell_new(&options, &shell), STATUS_OK);
    uint32_t index = 0;
    while (index < SHELL_COUNT_MAX && entries[index].shell != NULL) {
        index++;
    }
    ck_assert_uint_lt(index, SHELL_COUNT_MAX);
    entries[index] = (entry_t){.shell = shell, .status = STATUS_OK};
    return shell;
}

actor_shell_t *
test_shell(test_core_t *core, const char *name, uint64_t epoch, const actor_link_options_t *link)
{
    return test_shell_with(core, (actor_shell_options_t){.name = name, .epoch = epoch}, link);
}

void
test_shell_end(actor_shell_t **shell)
{
    for (uint32_t index = 0; index < SHELL_COUNT_MAX; index++) {
        if (entries[index].shell == *shell) {
            entries[index].shell = NULL;
        }
    }
    actor_shell_destroy(shell, 200000000);
}

proto_status_t
test_status(const actor_shell_t *shell)
{
    for (uint32_t index = 0; index < SHELL_COUNT_MAX; index++) {
        if (entries[index].shell == shell) {
            return entries[index].status;
        }
    }
    return STATUS_ERR_NOT_FOUND;
}

void
test_pump(void)
{
    struct pollfd items[SHELL_COUNT_MAX * 8];
    uint32_t count = 0;
    uint64_t wait_ns = 1000000;
    for (uint32_t index = 0; index < SHELL_COUNT_MAX; index++) {
        entry_t *entry = &entries[index];
        if (entry->shell == NULL || entry->status != STATUS_OK) {
            continue;
        }
        uint64_t shell_wait_ns = 0;
        entry->status = actor_shell_service(entry->shell, &shell_wait_ns);
        wait_ns = shell_wait_ns < wait_ns ? shell_wait_ns : wait_ns;
        int fds[8];
        uint32_t fd_count = actor_shell_fds(entry->shell, fds, 8);
        for (uint32_t fd = 0; fd < fd_count; fd++) {
            items[count++] = (struct pollfd){.fd = fds[fd], .events = POLLIN};
        }
    }
    struct timespec wait = {0, (long)wait_ns};
    (void)ppoll(items, count, &wait, NULL);
}

/* ---- raw peers ------------------------------------------------------------------------------- */

void
test_raw_open(test_raw_t *self, const char *endpoint, const char *name, uint64_t epoch,
              const char *attempt)
{
    char routing_id[96];
    (void)snprintf(routing_id, sizeof routing_id, "%s.%" PRIu64 ".%s", name, epoch, attempt);
    (void)snprintf(self->name, sizeof self->name, "%s", name);
    self->epoch = epoch;
    self->sequence = 0;
    self->context = zmq_ctx_new();
    self->socket = zmq_socket(self->context, ZMQ_DEALER);
    int zero = 0;
    ck_assert_int_eq(zmq_setsockopt(self->socket, ZMQ_LINGER, &zero, sizeof zero), 0);
    ck_assert_int_eq(zmq_setsockopt(self->socket, ZMQ_ROUTING_ID, routing_id, strlen(routing_id)),
                     0);
    ck_assert_int_eq(zmq_connect(self->socket, endpoint), 0);
}

void
test_raw_close(test_raw_t *self)
{
    (void)zmq_close(self->socket);
    (void)zmq_ctx_term(self->context);
    self->socket = NULL;
}

void
test_raw_parts(test_raw_t *self, const proto_bytes_t *parts, uint32_t count)
{
    for (uint32_t index = 0; index < count; index++) {
        int flags = index + 1 < count ? ZMQ_SNDMORE : 0;
        ck_assert_int_ge(zmq_send(self->socket, parts[index].data, parts[index].size_bytes, flags),
                         0);
    }
}

void
test_raw_send(test_raw_t *self, proto_kind_t kind, uint64_t sequence, uint64_t request,
              const proto_body_t *body)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .epoch = self->epoch,
                             .sequence = sequence,
                             .request = request};
    uint8_t header_bytes[PROTO_HEADER_SIZE_MAX];
    uint8_t body_bytes[8192];
    size_t body_size = 0;
    size_t blob_size = 0;
    size_t header_size = proto_header_encode(&header, header_bytes);
    ck_assert_int_eq(proto_body_encode(kind, body, body_bytes, sizeof body_bytes, &body_size, NULL,
                                       0, &blob_size),
                     STATUS_OK);
    proto_bytes_t parts[2] = {{header_bytes, header_size}, {body_bytes, body_size}};
    test_raw_parts(self, parts, 2);
}

void
test_raw_hello(test_raw_t *self, proto_role_t role, uint32_t version, const char *fingerprint)
{
    proto_body_t body = {.hello = {.version_min = version,
                                   .version_max = version,
                                   .role = role,
                                   .name = proto_text(self->name),
                                   .epoch = self->epoch,
                                   .fingerprint = proto_text(fingerprint)}};
    test_raw_send(self, PROTO_KIND_HELLO, 0, 0, &body);
}

void
test_raw_handshake(test_raw_t *self, proto_role_t role)
{
    test_reply_t reply;
    test_raw_hello(self, role, PROTO_SCHEMA_VERSION, "");
    ck_assert(test_raw_wait(self, PROTO_KIND_INIT, 3000, &reply));
    proto_body_t ready = {.ready = {.epoch = self->epoch}};
    test_raw_send(self, PROTO_KIND_READY, 0, 0, &ready);
}

/* One message if there is one now. */
static bool
raw_receive(test_raw_t *self, test_reply_t *out)
{
    uint8_t header_bytes[256];
    int size = zmq_recv(self->socket, header_bytes, sizeof header_bytes, ZMQ_DONTWAIT);
    if (size < 0) {
        return false;
    }
    proto_bytes_t header = {header_bytes, (size_t)size};
    ck_assert_int_eq(proto_header_decode(header, &out->header), STATUS_OK);
    size = zmq_recv(self->socket, out->bytes, sizeof out->bytes, 0);
    ck_assert_int_ge(size, 0);
    proto_bytes_t body = {out->bytes, (size_t)size};
    int more = 0;
    size_t more_size = sizeof more;
    (void)zmq_getsockopt(self->socket, ZMQ_RCVMORE, &more, &more_size);
    ck_assert_int_eq(more, 0);
    ck_assert_int_eq(proto_body_decode(out->header.kind, body, (proto_bytes_t){NULL, 0}, &out->body,
                                       NULL),
                     STATUS_OK);
    return true;
}

bool
test_raw_wait(test_raw_t *self, proto_kind_t kind, uint32_t ms, test_reply_t *out)
{
    uint64_t until_ns = test_now_ns() + (uint64_t)ms * 1000000;
    while (test_now_ns() < until_ns) {
        test_pump();
        while (raw_receive(self, out)) {
            if (out->header.kind == kind) {
                return true;
            }
        }
    }
    return false;
}

pid_t
test_fork(void (*body)(void *context), void *context)
{
    (void)fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        body(context);
        _exit(0);
    }
    return pid;
}
