/* actor_http_conn.c - one connection.
 *
 * The head is collected whole (at most 16 KiB), read by the guard, then given to http_parser in
 * one piece; both must agree.  Body bytes pass the guard's chunk framing first.  So the parser's
 * known leniencies are never reached, and its size limit, which counts per call, does not matter.
 *
 * Replies go to the socket directly while the client keeps up; only what it does not take is
 * copied into libevent's buffer.  A stream in its stride allocates nothing. */
#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

#include "actor_http_conn_private.h"
#include "actor_log.h"
#include "proto_clock.h"
#include "proto_require.h"

enum {
    READ_AHEAD_BYTES = 64 * 1024, /* what a busy connection takes from the kernel at most */
    STALL_PROGRESS_BYTES = 4096,  /* less than this in a stall period is a stall */
};
#define LINGER_NS UINT64_C(2000000000)
#define NS_PER_MS UINT64_C(1000000)

static void process(actor_http_conn_t *self);

static uint64_t
now_ns(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

/* ---- the second reader ----------------------------------------------------------------------- */

static int
on_body(http_parser *parser, const char *bytes, size_t size_bytes)
{
    actor_http_conn_t *self = parser->data;
    actor_http_text_add(&self->body, bytes, size_bytes);
    return self->body.failed ? 1 : 0;
}

/* There is no other protocol here: an offer to upgrade is ignored, as HTTP allows, and the bytes
 * that follow stay HTTP. */
static int
on_headers_complete(http_parser *parser)
{
    parser->upgrade = 0;
    return 0;
}

static int
on_message_complete(http_parser *parser)
{
    actor_http_conn_t *self = parser->data;
    self->message_complete = true;
    return 0;
}

void
actor_http_parser_init(http_parser_settings *settings)
{
    http_parser_settings_init(settings);
    settings->on_headers_complete = on_headers_complete;
    settings->on_body = on_body;
    settings->on_message_complete = on_message_complete;
}

static bool
feed_parser(actor_http_conn_t *self, const char *bytes, size_t size_bytes)
{
    size_t read = http_parser_execute(&self->parser, &self->port->settings, bytes, size_bytes);
    return read == size_bytes && HTTP_PARSER_ERRNO(&self->parser) == HPE_OK;
}

/* ---- deadlines ------------------------------------------------------------------------------- */

static void
arm(actor_http_conn_t *self)
{
    uint64_t deadline_ns =
        self->deadline_ns < self->stall_deadline_ns ? self->deadline_ns : self->stall_deadline_ns;
    if (deadline_ns == UINT64_MAX) {
        (void)evtimer_del(self->timer);
        return;
    }
    uint64_t now = now_ns();
    uint64_t wait_ns = deadline_ns > now ? deadline_ns - now : 0;
    struct timeval wait = {
        .tv_sec = (time_t)(wait_ns / 1000000000u),
        .tv_usec = (suseconds_t)(wait_ns % 1000000000u / 1000u) + 1,
    };
    (void)evtimer_add(self->timer, &wait);
}

static void
set_state(actor_http_conn_t *self, actor_http_conn_state_t state, uint64_t wait_ns)
{
    self->state = state;
    self->deadline_ns = wait_ns == 0 ? UINT64_MAX : now_ns() + wait_ns;
    arm(self);
}

static void
watch_stall(actor_http_conn_t *self)
{
    size_t backlog = actor_http_conn_backlog(self);
    if (backlog == 0) {
        self->stall_deadline_ns = UINT64_MAX;
    } else if (self->stall_deadline_ns == UINT64_MAX) {
        self->stall_deadline_ns = now_ns() + self->port->options.stall_timeout_ms * NS_PER_MS;
        self->stall_backlog_bytes = backlog;
        self->write_count_bytes = 0;
    } else {
        return;
    }
    arm(self);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void
release(actor_http_conn_t *self)
{
    if (self->timer != NULL) {
        event_free(self->timer);
    }
    actor_http_text_fini(&self->body);
    free(self->head_bytes);
    free(self);
}

/* Takes it off the port and closes the socket; memory follows at once unless process() is inside
 * it, which then releases it. */
static void
end(actor_http_conn_t *self, bool is_inside)
{
    require(self->buffers != NULL);
    bufferevent_free(self->buffers);
    self->buffers = NULL;
    (void)evtimer_del(self->timer);
    actor_http_port_t *port = self->port;
    if (self->previous != NULL) {
        self->previous->next = self->next;
    } else {
        port->first = self->next;
    }
    if (self->next != NULL) {
        self->next->previous = self->previous;
    }
    port->counts.open_count--;
    self->exchange = NULL;
    if (!is_inside) {
        release(self);
    }
}

static void
drop(actor_http_conn_t *self, bool is_inside)
{
    if (self->state == ACTOR_HTTP_BUSY && self->exchange != NULL) {
        void *exchange = self->exchange;
        self->exchange = NULL;
        self->port->options.ops->gone(self->port->options.context, self, exchange);
    }
    end(self, is_inside);
}

void
actor_http_conn_drop(actor_http_conn_t *self)
{
    drop(self, self->processing);
}

void
actor_http_conn_cut(actor_http_conn_t *self)
{
    self->exchange = NULL;
    self->port->counts.cut_count++;
    end(self, self->processing);
}

static void
linger(actor_http_conn_t *self)
{
    set_state(self, ACTOR_HTTP_LINGER, LINGER_NS);
    if (actor_http_conn_backlog(self) == 0 && !self->shut) {
        /* The client reads all before it sees the end; closing now could take it away. */
        self->shut = true;
        (void)shutdown(bufferevent_getfd(self->buffers), SHUT_WR);
    }
}

/* ---- writing --------------------------------------------------------------------------------- */

size_t
actor_http_conn_backlog(const actor_http_conn_t *self)
{
    return self->buffers == NULL ? 0 : evbuffer_get_length(bufferevent_get_output(self->buffers));
}

void
actor_http_conn_write(actor_http_conn_t *self, const char *bytes, size_t size_bytes)
{
    if (self->buffers == NULL || self->send_failed) {
        return;
    }
    size_t sent = 0;
    if (actor_http_conn_backlog(self) == 0) {
        ssize_t result =
            send(bufferevent_getfd(self->buffers), bytes, size_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (result >= 0) {
            sent = (size_t)result;
        } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            self->send_failed = true; /* the loop reports the end of the socket */
            return;
        }
    }
    if (sent < size_bytes) {
        if (bufferevent_write(self->buffers, bytes + sent, size_bytes - sent) != 0) {
            self->send_failed = true;
            return;
        }
        watch_stall(self);
    }
}

void
actor_http_conn_finish(actor_http_conn_t *self, bool keep_alive)
{
    if (self->buffers == NULL) {
        return;
    }
    require(self->state == ACTOR_HTTP_BUSY);
    self->exchange = NULL;
    if (!keep_alive || self->port->closed || self->send_failed) {
        linger(self);
        return;
    }
    self->head_begun = false;
    self->head_scanned = 0;
    self->message_complete = false;
    actor_http_text_clear(&self->body);
    set_state(self, ACTOR_HTTP_HEAD, self->port->options.idle_timeout_ms * NS_PER_MS);
    if (!self->processing) {
        process(self); /* what came ahead */
    }
}

void
actor_http_conn_set_exchange(actor_http_conn_t *self, void *exchange)
{
    self->exchange = exchange;
}

const char *
actor_http_conn_peer(const actor_http_conn_t *self)
{
    return self->peer;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void
refuse(actor_http_conn_t *self, const actor_http_head_t *head, int status, const char *reason)
{
    const actor_http_port_options_t *options = &self->port->options;
    self->state = ACTOR_HTTP_BUSY;
    options->ops->refuse(options->context, self, head, status, reason);
    if (self->buffers != NULL) {
        linger(self);
    }
}

static void
hand_over(actor_http_conn_t *self)
{
    const actor_http_port_options_t *options = &self->port->options;
    set_state(self, ACTOR_HTTP_BUSY, 0);
    options->ops->request(options->context, self, &self->head, &self->body);
}

/* Keeps the head, which the texts in self->head point into. */
static bool
keep_head(actor_http_conn_t *self, struct evbuffer *input, size_t size_bytes)
{
    if (self->head_bytes == NULL) {
        self->head_bytes = malloc(ACTOR_HTTP_HEAD_SIZE_MAX);
        if (self->head_bytes == NULL) {
            return false;
        }
    }
    require(size_bytes <= ACTOR_HTTP_HEAD_SIZE_MAX);
    self->head_size_bytes = size_bytes;
    return evbuffer_remove(input, self->head_bytes, size_bytes) == (int)size_bytes;
}

static void
begin_body(actor_http_conn_t *self)
{
    const actor_http_port_options_t *options = &self->port->options;
    const actor_http_head_t *head = &self->head;
    self->body_size_max = options->body_size_bytes_max;
    int status = options->ops->check(options->context, head, &self->body_size_max);
    if (status != 0) {
        refuse(self, head, status, NULL);
        return;
    }
    if (head->has_length && head->content_length > self->body_size_max) {
        refuse(self, head, 413, "the body is larger than this server takes");
        return;
    }
    http_parser_init(&self->parser, HTTP_REQUEST);
    self->parser.data = self;
    self->message_complete = false;
    memset(&self->chunks, 0, sizeof self->chunks);
    bool empty = !head->chunked && head->content_length == 0;
    if (!feed_parser(self, self->head_bytes, self->head_size_bytes) ||
        self->message_complete != empty) {
        refuse(self, head, 400, "the request is malformed");
        return;
    }
    if (self->message_complete) {
        hand_over(self);
        return;
    }
    if (head->expect_continue && evbuffer_get_length(bufferevent_get_input(self->buffers)) == 0) {
        static const char reply[] = "HTTP/1.1 100 Continue\r\n\r\n";
        actor_http_conn_write(self, reply, sizeof reply - 1);
    }
    set_state(self, ACTOR_HTTP_BODY, options->body_timeout_ms * NS_PER_MS);
}

/* True if it could go on. */
static bool
read_head(actor_http_conn_t *self)
{
    struct evbuffer *input = bufferevent_get_input(self->buffers);
    size_t size = evbuffer_get_length(input);
    if (size == 0) {
        return false;
    }
    if (!self->head_begun) {
        self->head_begun = true;
        set_state(self, ACTOR_HTTP_HEAD, self->port->options.head_timeout_ms * NS_PER_MS);
    }
    size_t limit = size < ACTOR_HTTP_HEAD_SIZE_MAX ? size : ACTOR_HTTP_HEAD_SIZE_MAX;
    const char *bytes = (const char *)evbuffer_pullup(input, (ev_ssize_t)limit);
    if (bytes == NULL) {
        drop(self, true);
        return false;
    }
    if (self->head_scanned == 0 && limit >= 2 && memcmp(bytes, "\r\n", 2) == 0) {
        /* One empty line before a request: old clients put it after a body. */
        (void)evbuffer_drain(input, 2);
        self->head_scanned = 0;
        size = evbuffer_get_length(input);
        limit = size < ACTOR_HTTP_HEAD_SIZE_MAX ? size : ACTOR_HTTP_HEAD_SIZE_MAX;
        bytes = limit == 0 ? "" : (const char *)evbuffer_pullup(input, (ev_ssize_t)limit);
        if (bytes == NULL || limit == 0) {
            return false;
        }
    }
    long head_size = actor_http_guard_find_end(bytes, limit, &self->head_scanned);
    if (head_size < 0) {
        refuse(self, NULL, 400, "a line ends with a bare CR or LF");
        return true;
    }
    if (head_size == 0) {
        if (limit == ACTOR_HTTP_HEAD_SIZE_MAX) {
            refuse(self, NULL, 431, "the request's head is larger than 16 KiB");
        }
        return false;
    }
    if (!keep_head(self, input, (size_t)head_size)) {
        drop(self, true);
        return false;
    }
    self->head_scanned = 0;
    const char *reason = "the request is malformed";
    int status =
        actor_http_guard_head(self->head_bytes, self->head_size_bytes, &self->head, &reason);
    if (status != 0) {
        refuse(self, NULL, status, reason);
        return true;
    }
    begin_body(self);
    return true;
}

/* True if it could go on. */
static bool
read_body(actor_http_conn_t *self)
{
    struct evbuffer *input = bufferevent_get_input(self->buffers);
    size_t size = evbuffer_get_contiguous_space(input);
    if (size == 0) {
        return false;
    }
    const char *bytes = (const char *)evbuffer_pullup(input, (ev_ssize_t)size);
    bool done = false;
    if (self->head.chunked) {
        long used = actor_http_guard_chunks(&self->chunks, bytes, size, &done);
        if (used < 0) {
            refuse(self, &self->head, 400, "the chunked body is malformed");
            return true;
        }
        size = (size_t)used;
    } else {
        uint64_t missing = self->head.content_length - self->body.size_bytes;
        size = size < missing ? size : (size_t)missing;
        done = size == missing;
    }
    if (!feed_parser(self, bytes, size) || self->message_complete != done) {
        bool is_memory = self->body.failed;
        refuse(self, &self->head, is_memory ? 503 : 400,
               is_memory ? "the server is out of memory" : "the body is malformed");
        return true;
    }
    (void)evbuffer_drain(input, size);
    if (self->body.size_bytes > self->body_size_max) {
        refuse(self, &self->head, 413, "the body is larger than this server takes");
        return true;
    }
    if (done) {
        hand_over(self);
    }
    return true;
}

static void
process(actor_http_conn_t *self)
{
    require(!self->processing);
    self->processing = true;
    bool more = true;
    while (more && self->buffers != NULL) {
        switch (self->state) {
        case ACTOR_HTTP_HEAD:
            more = read_head(self);
            break;
        case ACTOR_HTTP_BODY:
            more = read_body(self);
            break;
        case ACTOR_HTTP_LINGER:
            (void)evbuffer_drain(bufferevent_get_input(self->buffers), SIZE_MAX);
            more = false;
            break;
        case ACTOR_HTTP_BUSY:
            more = false;
            break;
        }
    }
    self->processing = false;
    if (self->buffers == NULL) {
        release(self);
    }
}

/* ---- libevent -------------------------------------------------------------------------------- */

static void
on_read(struct bufferevent *buffers, void *context)
{
    (void)buffers;
    process(context);
}

/* The output is empty now. */
static void
on_written(struct bufferevent *buffers, void *context)
{
    (void)buffers;
    actor_http_conn_t *self = context;
    watch_stall(self);
    if (self->state == ACTOR_HTTP_LINGER) {
        linger(self);
    }
}

static void
on_event(struct bufferevent *buffers, short what, void *context)
{
    (void)buffers;
    (void)what; /* end of file, or an error: the client is gone either way */
    actor_http_conn_drop(context);
}

static void
on_timer(evutil_socket_t descriptor, short what, void *context)
{
    (void)descriptor;
    (void)what;
    actor_http_conn_t *self = context;
    uint64_t now = now_ns();
    if (self->stall_deadline_ns <= now) {
        size_t backlog = actor_http_conn_backlog(self);
        bool progressed = backlog + STALL_PROGRESS_BYTES <= self->stall_backlog_bytes;
        if (backlog > 0 && !progressed) {
            self->port->counts.cut_count++;
            actor_http_conn_drop(self);
            return;
        }
        self->stall_deadline_ns = UINT64_MAX;
        watch_stall(self);
    }
    if (self->deadline_ns > now) {
        arm(self);
        return;
    }
    bool silent = evbuffer_get_length(bufferevent_get_input(self->buffers)) == 0;
    bool is_reading = self->state == ACTOR_HTTP_BODY || (self->state == ACTOR_HTTP_HEAD && !silent);
    if (is_reading) {
        self->processing = true;
        refuse(self, NULL, 408, "the request did not come in time");
        self->processing = false;
        if (self->buffers == NULL) {
            release(self);
        }
    } else if (self->state == ACTOR_HTTP_LINGER && actor_http_conn_backlog(self) > 0) {
        set_state(self, ACTOR_HTTP_LINGER, LINGER_NS); /* the stall deadline decides */
    } else {
        actor_http_conn_drop(self); /* nobody waits for an answer */
    }
}

void
actor_http_conn_accept(actor_http_port_t *port, evutil_socket_t descriptor,
                       const struct sockaddr *address)
{
    actor_http_conn_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        (void)evutil_closesocket(descriptor);
        return;
    }
    struct bufferevent *buffers =
        bufferevent_socket_new(port->options.base, descriptor, BEV_OPT_CLOSE_ON_FREE);
    self->timer = evtimer_new(port->options.base, on_timer, self);
    if (buffers == NULL || self->timer == NULL) {
        if (buffers != NULL) {
            bufferevent_free(buffers);
        } else {
            (void)evutil_closesocket(descriptor);
        }
        release(self);
        return;
    }
    (void)evutil_make_socket_nonblocking(descriptor);
    int on = 1;
    (void)setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (port->options.send_buffer_bytes > 0) {
        int size = (int)port->options.send_buffer_bytes;
        (void)setsockopt(descriptor, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    }
    const void *raw =
        address->sa_family == AF_INET6
            ? (const void *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr
            : (const void *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;
    if (inet_ntop(address->sa_family, raw, self->peer, sizeof self->peer) == NULL) {
        memcpy(self->peer, "unknown", sizeof "unknown");
    }
    self->port = port;
    self->buffers = buffers;
    self->stall_deadline_ns = UINT64_MAX;
    self->next = port->first;
    if (port->first != NULL) {
        port->first->previous = self;
    }
    port->first = self;
    port->counts.open_count++;
    bufferevent_setcb(buffers, on_read, on_written, on_event, self);
    bufferevent_setwatermark(buffers, EV_READ, 0, READ_AHEAD_BYTES);
    (void)bufferevent_enable(buffers, EV_READ | EV_WRITE);
    self->head_begun = true; /* the first head's deadline runs from the connection's start */
    set_state(self, ACTOR_HTTP_HEAD, port->options.head_timeout_ms * NS_PER_MS);
}
