/* actor_gateway_run.c - one libevent loop for the HTTP sockets and the shell's descriptors.
 *
 * A ZeroMQ descriptor only tells of changes, so the shell is serviced after everything that may
 * have used its sockets: `service` is made active then, and runs before the loop sleeps. */
#include "actor_gateway.h"

#include <event2/event.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "actor_exit.h"
#include "actor_gateway_table.h"
#include "actor_http_server.h"
#include "actor_log.h"
#include "actor_socket.h"
#include "proto_clock.h"
#include "proto_require.h"

enum {
    FD_COUNT_MAX = 64,
    OTHER_FDS = 128, /* beside connections */
    WORKER_JOB_COUNT_MAX = 64,
    INSECURE_S = 60,   /* between two warnings of an address that is open to all */
    TICK_MS_MAX = 250, /* a signal that came just before the poll is seen after this */
};
#define NS_PER_MS UINT64_C(1000000)
#define LAST_WORDS_NS UINT64_C(2000000000) /* for clients to read the end of their answers */
#define LINGER_NS UINT64_C(500000000)

typedef struct {
    actor_gateway_options_t options; /* defaults filled in */
    actor_gateway_checkpoint_t *checkpoint;
    actor_http_text_t model_name; /* with its zero */
    actor_http_server_t server;
    struct event_base *base;
    struct event *tick;
    struct event *worker_event;
    struct event *fd_events[FD_COUNT_MAX];
    int fds[FD_COUNT_MAX];
    uint32_t fd_count;
    proto_status_t status; /* why the loop ended */
    bool ending;           /* the shell is done: only last words are left */
    uint64_t ending_until_ns;
    int stop_seen;
    bool is_open;               /* other machines reach it, and nobody is asked for a key */
    uint64_t open_warn_next_ns; /* when to say so again */
} gateway_t;

static void
fill_defaults(actor_gateway_options_t *options)
{
    static const actor_gateway_options_t defaults = {
        .name = "gateway",
        .bind_address = "127.0.0.1",
        .connection_count_max = 2048,
        .choice_count_max = 1024,
        .body_size_bytes_max = 8 * 1024 * 1024,
        .backlog_size_bytes_max = 1024 * 1024,
        .head_timeout_ms = 5000,
        .body_timeout_ms = 30000,
        .idle_timeout_ms = 60000,
        .stall_timeout_ms = 30000,
        .keep_alive_ms = 15000,
        .drain_timeout_ms = 60000,
    };
#define FILL(field)                                                                                \
    if (options->field == 0) {                                                                     \
        options->field = defaults.field;                                                           \
    }
    FILL(name)
    FILL(bind_address)
    FILL(connection_count_max)
    FILL(choice_count_max)
    FILL(body_size_bytes_max)
    FILL(backlog_size_bytes_max)
    FILL(head_timeout_ms)
    FILL(body_timeout_ms)
    FILL(idle_timeout_ms)
    FILL(stall_timeout_ms)
    FILL(keep_alive_ms)
    FILL(drain_timeout_ms)
#undef FILL
    if (options->connection_per_ip_max == 0) {
        options->connection_per_ip_max = options->connection_count_max;
    }
    if (options->epoch == 0) {
        options->epoch = proto_clock_realtime_ns(proto_clock_system());
    }
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void
on_shell_readable(evutil_socket_t descriptor, short what, void *context)
{
    (void)descriptor;
    (void)what;
    gateway_t *self = context;
    event_active(self->server.service, EV_TIMEOUT, 0);
}

static void
forget_fds(gateway_t *self)
{
    for (uint32_t at = 0; at < self->fd_count; at++) {
        event_free(self->fd_events[at]);
    }
    self->fd_count = 0;
}

/* The shell's descriptors change when a link is opened again. */
static void
watch_fds(gateway_t *self)
{
    int fds[FD_COUNT_MAX];
    uint32_t count = actor_shell_fds(self->server.shell, fds, FD_COUNT_MAX);
    if (count == self->fd_count && memcmp(fds, self->fds, count * sizeof fds[0]) == 0) {
        return;
    }
    forget_fds(self);
    for (uint32_t at = 0; at < count; at++) {
        struct event *event =
            event_new(self->base, fds[at], EV_READ | EV_PERSIST, on_shell_readable, self);
        if (event == NULL || event_add(event, NULL) != 0) {
            if (event != NULL) {
                event_free(event);
            }
            self->status = STATUS_ERR_NO_MEMORY;
            (void)event_base_loopbreak(self->base);
            return;
        }
        self->fd_events[self->fd_count] = event;
        self->fds[self->fd_count++] = fds[at];
    }
}

static void
begin_ending(gateway_t *self, proto_status_t status)
{
    self->ending = true;
    self->status = status;
    self->ending_until_ns = actor_http_now_ns() + LAST_WORDS_NS;
    forget_fds(self);
    actor_http_exchange_fail_all(&self->server);
    actor_http_port_close(self->server.port);
}

/* True when nobody is left to be told anything. */
static bool
is_over(const gateway_t *self)
{
    return actor_http_port_counts(self->server.port).open_count == 0 ||
           actor_http_now_ns() >= self->ending_until_ns;
}

static void
on_service(evutil_socket_t descriptor, short what, void *context)
{
    (void)descriptor;
    (void)what;
    gateway_t *self = context;
    if (self->ending) {
        actor_http_exchange_flush(&self->server);
        if (is_over(self)) {
            (void)event_base_loopbreak(self->base);
        }
        return;
    }
    uint64_t wait_ns = 0;
    proto_status_t status = actor_shell_service(self->server.shell, &wait_ns);
    actor_http_exchange_flush(&self->server);
    if (status != STATUS_OK) {
        begin_ending(self, status);
        return;
    }
    watch_fds(self);
    struct timeval wait = {
        .tv_sec = (time_t)(wait_ns / 1000000000u),
        .tv_usec = (suseconds_t)(wait_ns % 1000000000u / 1000u),
    };
    (void)event_add(self->server.service, &wait);
}

static void
on_worker(evutil_socket_t descriptor, short what, void *context)
{
    (void)descriptor;
    (void)what;
    gateway_t *self = context;
    actor_http_exchange_collect(&self->server);
}

static void
warn_open(gateway_t *self, uint64_t now_ns)
{
    if (!self->is_open || now_ns < self->open_warn_next_ns) {
        return;
    }
    self->open_warn_next_ns = now_ns + INSECURE_S * 1000 * NS_PER_MS;
    actor_log_each(
        ACTOR_LOG_WARN, "http.insecure", 0,
        ACTOR_LOG_FIELDS(actor_log_str("address", self->options.bind_address)),
        "other machines reach %s and nobody is asked for a key (--insecure-bind): name a "
        "file of keys with --api-key-file",
        self->options.bind_address);
}

static void
on_tick(evutil_socket_t descriptor, short what, void *context)
{
    (void)descriptor;
    (void)what;
    gateway_t *self = context;
    actor_http_exchange_tick(&self->server, actor_http_now_ns());
    warn_open(self, actor_http_now_ns());
    if (self->ending) {
        event_active(self->server.service, EV_TIMEOUT, 0);
        return;
    }
    int stop = self->options.stop == NULL ? ACTOR_GATEWAY_RUN : atomic_load(self->options.stop);
    if (stop <= self->stop_seen) {
        return;
    }
    self->stop_seen = stop;
    if (stop >= ACTOR_GATEWAY_QUIT) {
        begin_ending(self, STATUS_END);
    } else {
        actor_shell_drain(self->server.shell, self->options.drain_timeout_ms * NS_PER_MS);
    }
    event_active(self->server.service, EV_TIMEOUT, 0);
}

static void
run_job(void *context, void *job)
{
    (void)context;
    actor_http_exchange_prepare(job, 1);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* The name that clients are told must be one that they can send back: a file's name may be any
 * bytes, JSON has none but UTF-8. */
static void
name_model(gateway_t *self, const char *name)
{
    actor_http_text_t *out = &self->model_name;
    bool is_whole = true;
    size_t size_bytes = strlen(name);
    for (size_t at = 0; at < size_bytes;) {
        int length = actor_http_utf8_length(name + at, size_bytes - at);
        if (length <= 0) {
            actor_http_text_puts(out, "\xef\xbf\xbd");
            is_whole = false;
            at++;
        } else {
            actor_http_text_add(out, name + at, (size_t)length);
            at += (size_t)length;
        }
    }
    actor_http_text_add(out, "", 1);
    self->server.model_name = out->failed ? "model" : out->data;
    if (!is_whole) {
        actor_log(ACTOR_LOG_WARN, "gateway.model_name", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("name", self->server.model_name)),
                  "the served name is not UTF-8; clients see a changed one "
                  "(--served-model-name sets another)");
    }
}

static proto_status_t
open_text(gateway_t *self)
{
    actor_http_server_t *server = &self->server;
    if (self->options.text != NULL) {
        server->text = self->options.text;
    } else {
        if (self->options.model_path == NULL) {
            actor_log(ACTOR_LOG_ERROR, "gateway.config", 0, NULL, "no model was given");
            return STATUS_ERR_CONFIG;
        }
        char error[ACTOR_TEXT_ERROR_SIZE_BYTES] = "";
        proto_status_t status =
            actor_gateway_checkpoint_open(self->options.model_path, self->options.chat_template,
                                          error, &self->checkpoint);
        if (status != STATUS_OK) {
            actor_log(ACTOR_LOG_ERROR, "gateway.model", 0,
                      ACTOR_LOG_FIELDS(actor_log_str("path", self->options.model_path),
                                       actor_log_str("status", proto_status_name(status))),
                      "cannot read the model's tokenizer: %s", error);
            return status == STATUS_ERR_NO_MEMORY ? status : STATUS_ERR_CONFIG;
        }
        server->text = actor_gateway_checkpoint_text(self->checkpoint);
    }
    name_model(self, self->options.served_model_name != NULL ? self->options.served_model_name
                                                             : server->text->model_name);
    if (server->text->chat_missing != NULL) {
        actor_log(ACTOR_LOG_WARN, "gateway.no_chat_template", 0, NULL, "%s",
                  server->text->chat_missing);
    }
    return STATUS_OK;
}

/* A connection is a descriptor, and the usual limit is 1024 of them. */
static void
allow_descriptors(uint32_t connection_count_max)
{
    struct rlimit limit;
    rlim_t wanted = (rlim_t)connection_count_max + OTHER_FDS;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) {
        return;
    }
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted) {
        actor_log(
            ACTOR_LOG_WARN, "gateway.descriptors", 0,
            ACTOR_LOG_FIELDS(actor_log_u64("limit", limit.rlim_cur),
                             actor_log_u64("wanted", wanted)),
            "the limit on open files is too low for %u connections; raise it (ulimit -Hn), or "
            "lower --connections",
            connection_count_max);
    }
}

static proto_status_t
open_port(gateway_t *self)
{
    allow_descriptors(self->options.connection_count_max);
    const actor_gateway_options_t *options = &self->options;
    actor_http_port_options_t port = {
        .base = self->base,
        .address = options->bind_address,
        .port = options->port,
        .connection_count_max = options->connection_count_max,
        .connection_per_ip_max = options->connection_per_ip_max,
        .body_size_bytes_max = options->body_size_bytes_max,
        .head_timeout_ms = options->head_timeout_ms,
        .body_timeout_ms = options->body_timeout_ms,
        .idle_timeout_ms = options->idle_timeout_ms,
        .stall_timeout_ms = options->stall_timeout_ms,
        .send_buffer_bytes = options->socket_send_buffer_bytes,
        .ops = actor_http_routes_ops(),
        .context = &self->server,
    };
    proto_status_t status = actor_http_port_new(&port, &self->server.port);
    if (status == STATUS_OK) {
        bool v6 = strchr(options->bind_address, ':') != NULL;
        (void)snprintf(self->server.url, sizeof self->server.url, "http://%s%s%s:%u", v6 ? "[" : "",
                       options->bind_address, v6 ? "]" : "",
                       actor_http_port_number(self->server.port));
    }
    return status;
}

static proto_status_t
open_shell(gateway_t *self)
{
    const actor_gateway_options_t *options = &self->options;
    actor_gateway_core_options_t core = {
        .epoch = options->epoch,
        .choice_count_max = options->choice_count_max,
        .resume_timeout_ns = options->resume_timeout_ms * NS_PER_MS,
        .answer_timeout_ns = options->answer_timeout_ms * NS_PER_MS,
        .history_size_bytes = options->history_size_bytes,
    };
    const actor_gateway_text_t *text = self->server.text;
    require(text->stop_id_count <= ACTOR_GATEWAY_STOP_ID_COUNT_MAX);
    core.stop_id_count = text->stop_id_count;
    memcpy(core.stop_ids, text->stop_ids, text->stop_id_count * sizeof *text->stop_ids);
    proto_status_t status = actor_gateway_core_new(&core, &self->server.core);
    if (status != STATUS_OK) {
        return status;
    }
    actor_link_options_t link = {
        .peer_role = PROTO_ROLE_SCHEDULER,
        .endpoint = options->scheduler_endpoint,
    };
    actor_shell_options_t shell = {
        .name = options->name,
        .epoch = options->epoch,
        .ops = actor_gateway_core_ops(),
        .core = self->server.core,
        .links = &link,
        .link_count = 1,
        .supervisor_endpoint = options->supervisor_endpoint,
        .ring_fd = options->ring_fd,
        .local = actor_http_exchange_local,
        .local_context = &self->server,
        .told = actor_http_told,
        .told_context = &self->server,
    };
    return actor_shell_new(&shell, &self->server.shell);
}

static proto_status_t
open_events(gateway_t *self)
{
    actor_http_server_t *server = &self->server;
    server->service = event_new(self->base, -1, 0, on_service, self);
    self->tick = event_new(self->base, -1, EV_PERSIST, on_tick, self);
    self->worker_event = event_new(self->base, actor_http_worker_fd(server->worker),
                                   EV_READ | EV_PERSIST, on_worker, self);
    uint32_t tick_ms = self->options.keep_alive_ms / 4 + 1;
    tick_ms = tick_ms < TICK_MS_MAX ? tick_ms : TICK_MS_MAX;
    struct timeval every = {.tv_usec = (suseconds_t)(tick_ms * 1000)};
    if (server->service == NULL || self->tick == NULL || self->worker_event == NULL ||
        event_add(self->tick, &every) != 0 || event_add(self->worker_event, NULL) != 0) {
        return STATUS_ERR_NO_MEMORY;
    }
    return STATUS_OK;
}

static proto_status_t
check_options(const actor_gateway_options_t *options)
{
    const char *wrong = NULL;
    if (options->scheduler_endpoint == NULL) {
        wrong = "no endpoint of a scheduler was given";
    } else if (options->choice_count_max > ACTOR_GATEWAY_CHOICE_COUNT_MAX) {
        wrong = "more choices in flight than 4096 were asked for";
    } else if (options->history_size_bytes > ACTOR_GATEWAY_HISTORY_SIZE_MAX) {
        wrong = "more than 4 GiB of history were asked for";
    } else if (options->connection_count_max > 32768) {
        wrong = "more connections than 32768 were asked for";
    } else if (options->body_size_bytes_max > 64u * 1024 * 1024) {
        wrong = "bodies larger than 64 MiB were asked for";
    }
    if (wrong != NULL) {
        actor_log(ACTOR_LOG_ERROR, "gateway.config", 0, NULL, "%s", wrong);
        return STATUS_ERR_CONFIG;
    }
    return STATUS_OK;
}

/* Beyond this machine only for those who have a key, or where somebody said that all may. */
static proto_status_t
open_keys(gateway_t *self)
{
    const actor_gateway_options_t *options = &self->options;
    char endpoint[ACTOR_ENDPOINT_SIZE_MAX];
    bool is_v6 = strchr(options->bind_address, ':') != NULL;
    (void)snprintf(endpoint, sizeof endpoint, is_v6 ? "tcp://[%s]:1" : "tcp://%s:1",
                   options->bind_address);
    bool is_remote = !actor_endpoint_is_local(endpoint);
    if (options->api_key_file != NULL) {
        return actor_http_keys_new(options->api_key_file, &self->server.keys);
    }
    if (is_remote && !options->insecure_bind) {
        actor_log(
            ACTOR_LOG_ERROR, "gateway.config", 0,
            ACTOR_LOG_FIELDS(actor_log_str("address", options->bind_address)),
            "other machines reach '%s' and no client would be asked for a key: name a file of "
            "keys (--api-key-file), listen on 127.0.0.1, or allow it with --insecure-bind",
            options->bind_address);
        return STATUS_ERR_CONFIG;
    }
    self->is_open = is_remote;
    return STATUS_OK;
}

static proto_status_t
open_all(gateway_t *self)
{
    actor_http_server_t *server = &self->server;
    server->options = &self->options;
    server->id_key = actor_gateway_mix(self->options.epoch ^ UINT64_C(0x6761746577617921));
    server->started_s = proto_clock_realtime_ns(proto_clock_system()) / UINT64_C(1000000000);
    (void)snprintf(server->fingerprint, sizeof server->fingerprint, "fp_0000000000");
    proto_status_t status = check_options(&self->options);
    if (status == STATUS_OK) {
        status = open_keys(self);
    }
    if (status == STATUS_OK) {
        status = open_text(self);
    }
    if (status == STATUS_OK) {
        self->base = event_base_new();
        status = self->base == NULL ? STATUS_ERR_NO_MEMORY : actor_http_server_init(server);
    }
    if (status == STATUS_OK) {
        status = open_port(self);
    }
    if (status == STATUS_OK) {
        status = actor_http_worker_new(WORKER_JOB_COUNT_MAX, run_job, NULL, &server->worker);
    }
    if (status == STATUS_OK && self->options.otlp_endpoint != NULL) {
        actor_http_trace_options_t trace = {.endpoint = self->options.otlp_endpoint,
                                            .service = "onepath",
                                            .model_name = server->model_name};
        status = actor_http_trace_new(&trace, &server->trace);
    }
    if (status == STATUS_OK) {
        status = open_events(self);
    }
    if (status == STATUS_OK) {
        status = open_shell(self);
    }
    return status;
}

static void
close_all(gateway_t *self)
{
    actor_http_server_t *server = &self->server;
    actor_http_worker_destroy(&server->worker);
    actor_http_port_destroy(&server->port);
    forget_fds(self);
    /* Marks that the last connections made are without a flush now. */
    while (server->first_dirty != NULL) {
        server->first_dirty->is_dirty = false;
        server->first_dirty = server->first_dirty->next_dirty;
    }
    actor_http_server_fini(server);
    actor_http_trace_destroy(&server->trace);
    if (server->service != NULL) {
        event_free(server->service);
    }
    if (self->tick != NULL) {
        event_free(self->tick);
    }
    if (self->worker_event != NULL) {
        event_free(self->worker_event);
    }
    actor_shell_destroy(&server->shell, LINGER_NS);
    actor_gateway_core_destroy(&server->core);
    if (self->base != NULL) {
        event_base_free(self->base);
    }
    actor_gateway_checkpoint_close(&self->checkpoint);
    actor_http_text_fini(&self->model_name);
    actor_http_keys_destroy(&server->keys);
}

int
actor_gateway_run(const actor_gateway_options_t *options)
{
    require(options != NULL);
    gateway_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return ACTOR_EXIT_TEMPORARY;
    }
    /* A client that left must be an error of its socket, not the end of the process.  The signal
     * goes to the thread that writes, which is this one. */
    sigset_t pipe_set;
    sigset_t mask_before;
    (void)sigemptyset(&pipe_set);
    (void)sigaddset(&pipe_set, SIGPIPE);
    (void)pthread_sigmask(SIG_BLOCK, &pipe_set, &mask_before);

    self->options = *options;
    fill_defaults(&self->options);
    proto_status_t status = open_all(self);
    if (status == STATUS_OK) {
        actor_shell_report(self->server.shell, ACTOR_STATE_LOADING, 0, 0, self->server.url);
        actor_log(ACTOR_LOG_INFO, "gateway.listening", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("url", self->server.url),
                                   actor_log_str("model", self->server.model_name)),
                  "listening on %s", self->server.url);
        event_active(self->server.service, EV_TIMEOUT, 0);
        int result = event_base_dispatch(self->base);
        status = result < 0 ? STATUS_ERR_INTERNAL : self->status;
    }
    if (self->server.port != NULL && self->server.shell != NULL) {
        actor_log(ACTOR_LOG_INFO, "gateway.ended", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("status", proto_status_name(status))), "ended: %s",
                  proto_status_text(status));
    }
    close_all(self);
    free(self);
    /* One that is pending belongs to a socket that is gone. */
    struct timespec now = {0, 0};
    while (sigtimedwait(&pipe_set, NULL, &now) > 0) {
    }
    (void)pthread_sigmask(SIG_SETMASK, &mask_before, NULL);
    return actor_exit_code(status);
}
