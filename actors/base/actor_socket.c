/* actor_socket.c - options and calls of libzmq, in one place. */
#include "actor_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "actor_log.h"
#include "actor_zap.h"
#include "proto_require.h"

enum {
    HANDSHAKE_MS = 2000,    /* of the transport; an inherited listener answers never */
    RECONNECT_MS = 50,      /* first try; libzmq adds a random part */
    RECONNECT_MAX_MS = 500, /* a restarted peer is found soon */
    BACKLOG = 64,
};

static const char ipc_prefix[] = "ipc://";
static const char tcp_prefix[] = "tcp://";
static const char inproc_prefix[] = "inproc://";

static bool
has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool
actor_endpoint_is_local(const char *endpoint)
{
    if (has_prefix(endpoint, ipc_prefix) || has_prefix(endpoint, inproc_prefix)) {
        return true;
    }
    if (!has_prefix(endpoint, tcp_prefix)) {
        return false;
    }
    /* The host must be the whole word: 127.0.0.1.example.com is not this machine. */
    const char *host = endpoint + strlen(tcp_prefix);
    const char *colon = strrchr(host, ':');
    char word[64];
    if (colon == NULL || (size_t)(colon - host) >= sizeof word) {
        return false;
    }
    memcpy(word, host, (size_t)(colon - host));
    word[colon - host] = '\0';
    struct in_addr address;
    if (strcmp(word, "localhost") == 0 || strcmp(word, "[::1]") == 0) {
        return true;
    }
    return inet_pton(AF_INET, word, &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

/* libzmq unlinks a socket file before it binds, and so would take the address of a living
 * process: ask first whether somebody answers there. */
static bool
ipc_is_in_use(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return false;
    }
    bool in_use =
        connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 || errno == EAGAIN;
    (void)close(fd);
    return in_use;
}

/* The folder of a socket: whoever can write to it could put his own in its place. */
static proto_status_t
check_folder(const actor_socket_options_t *options, const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[sizeof((struct sockaddr_un *)NULL)->sun_path];
    size_t size = slash != NULL ? (size_t)(slash - path) : 0;
    (void)snprintf(folder, sizeof folder, "%.*s", size > 0 ? (int)size : 1,
                   slash != NULL ? path : ".");
    struct stat info;
    bool known = stat(folder, &info) == 0;
    bool ours = known && (info.st_uid == geteuid() || info.st_uid == 0);
    bool open = known && (info.st_mode & 022) != 0 && (info.st_mode & S_ISVTX) == 0;
    if (!known || (ours && !open)) {
        return STATUS_OK; /* one that is missing is the library's error, with its words */
    }
    actor_log(
        ACTOR_LOG_ERROR, "link.folder", 0,
        ACTOR_LOG_FIELDS(actor_log_str("endpoint", options->endpoint)),
        "others can write to the folder '%s' of endpoint '%s': use one of this user with mode "
        "0700",
        folder, options->endpoint);
    return STATUS_ERR_CONFIG;
}

static proto_status_t
check_endpoint(const actor_socket_options_t *options)
{
    const char *endpoint = options->endpoint;
    bool known = has_prefix(endpoint, ipc_prefix) || has_prefix(endpoint, tcp_prefix) ||
                 has_prefix(endpoint, inproc_prefix);
    if (!known || strlen(endpoint) >= ACTOR_ENDPOINT_SIZE_MAX) {
        actor_log(ACTOR_LOG_ERROR, "link.endpoint", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("endpoint", endpoint)),
                  "endpoint '%s' is not usable: write ipc://PATH or tcp://HOST:PORT", endpoint);
        return STATUS_ERR_CONFIG;
    }
    if (!has_prefix(endpoint, ipc_prefix)) {
        return STATUS_OK;
    }
    const char *path = endpoint + strlen(ipc_prefix);
    if (strlen(path) >= sizeof((struct sockaddr_un *)NULL)->sun_path) {
        actor_log(ACTOR_LOG_ERROR, "link.endpoint", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("endpoint", endpoint)),
                  "the path of endpoint '%s' is longer than %zu bytes: choose a shorter run folder",
                  endpoint, sizeof((struct sockaddr_un *)NULL)->sun_path - 1);
        return STATUS_ERR_CONFIG;
    }
    if (options->bind && path[0] == '/' && ipc_is_in_use(path)) {
        actor_log(
            ACTOR_LOG_ERROR, "link.in_use", 0,
            ACTOR_LOG_FIELDS(actor_log_str("endpoint", endpoint)),
            "endpoint '%s' is in use by another process: stop it or choose another run folder",
            endpoint);
        return STATUS_ERR_IO;
    }
    return options->bind && path[0] != '@' ? check_folder(options, path) : STATUS_OK;
}

static void
set_int(void *handle, int option, int value)
{
    int rc = zmq_setsockopt(handle, option, &value, sizeof value);
    require(rc == 0);
}

static void
set_options(actor_socket_t *self, const actor_socket_options_t *options)
{
    /* A packed message holds a header, a body and a blob in one part. */
    size_t part = options->part_size_bytes_max;
    size_t body = part < PROTO_BODY_SIZE_MAX ? part : PROTO_BODY_SIZE_MAX;
    int64_t part_max = (int64_t)(part + body + PROTO_HEADER_SIZE_MAX + PROTO_FRAME_OVERHEAD_BYTES);
    int rc = zmq_setsockopt(self->handle, ZMQ_MAXMSGSIZE, &part_max, sizeof part_max);
    require(rc == 0);
    set_int(self->handle, ZMQ_SNDHWM, (int)options->queue_len_max);
    set_int(self->handle, ZMQ_RCVHWM, (int)options->queue_len_max);
    set_int(self->handle, ZMQ_LINGER, 0);
    set_int(self->handle, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS);
    if (has_prefix(options->endpoint, tcp_prefix)) {
        /* A lost host is otherwise noticed by the system after two hours. */
        set_int(self->handle, ZMQ_TCP_KEEPALIVE, 1);
        set_int(self->handle, ZMQ_TCP_KEEPALIVE_IDLE, 1);
        set_int(self->handle, ZMQ_TCP_KEEPALIVE_INTVL, 1);
        set_int(self->handle, ZMQ_TCP_KEEPALIVE_CNT, 3);
    }
    if (self->router) {
        set_int(self->handle, ZMQ_ROUTER_MANDATORY, 1);
        set_int(self->handle, ZMQ_BACKLOG, BACKLOG);
    } else {
        rc = zmq_setsockopt(self->handle, ZMQ_ROUTING_ID, options->routing_id,
                            strlen(options->routing_id));
        require(rc == 0);
        set_int(self->handle, ZMQ_IMMEDIATE, 1);
        set_int(self->handle, ZMQ_RECONNECT_IVL, RECONNECT_MS);
        set_int(self->handle, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS);
    }
}

/* Who may connect to a Unix socket: this user, and root, who may do anything anyhow.  The socket's
 * file mode alone would not tell who they are. */
static void
set_ipc_filter(void *handle)
{
    const uid_t users[] = {geteuid(), 0};
    for (size_t index = 0; index < sizeof users / sizeof users[0]; index++) {
        int rc = zmq_setsockopt(handle, ZMQ_IPC_FILTER_UID, &users[index], sizeof users[index]);
        require(rc == 0);
    }
}

static proto_status_t
set_text(void *handle, int option, const char *text)
{
    return zmq_setsockopt(handle, option, text, strlen(text)) == 0 ? STATUS_OK : STATUS_ERR_CONFIG;
}

/* Encryption, and who we are; a binder asks actor_zap.h about each key that comes. */
static proto_status_t
set_keys(actor_socket_t *self, const actor_socket_options_t *options)
{
    if (options->bind && has_prefix(options->endpoint, ipc_prefix)) {
        set_ipc_filter(self->handle);
    }
    const actor_keys_t *keys = options->keys;
    if (keys == NULL || !has_prefix(options->endpoint, tcp_prefix)) {
        return STATUS_OK;
    }
    self->has_keys = true;
    proto_status_t status = set_text(self->handle, ZMQ_CURVE_SECRETKEY, keys->secret_text);
    if (options->bind && status == STATUS_OK) {
        set_int(self->handle, ZMQ_CURVE_SERVER, 1);
        return set_text(self->handle, ZMQ_ZAP_DOMAIN, actor_zap_domain);
    }
    self->server = actor_keys_find_binder(keys, options->peer_role, options->endpoint);
    if (self->server == ACTOR_KEY_NONE) {
        actor_log(ACTOR_LOG_ERROR, "link.server_key", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("endpoint", options->endpoint),
                                   actor_log_str("role", proto_role_name(options->peer_role))),
                  "the file of peers must list exactly one key of a %s for '%s': name the endpoint "
                  "as the fourth word of its line",
                  proto_role_name(options->peer_role), options->endpoint);
        return STATUS_ERR_CONFIG;
    }
    if (status == STATUS_OK) {
        status = set_text(self->handle, ZMQ_CURVE_PUBLICKEY, keys->public_text);
    }
    return status == STATUS_OK
               ? set_text(self->handle, ZMQ_CURVE_SERVERKEY, keys->peers[self->server].public_text)
               : status;
}

static int
socket_fd(void *handle)
{
    int fd = -1;
    size_t size = sizeof fd;
    int rc = zmq_getsockopt(handle, ZMQ_FD, &fd, &size);
    require(rc == 0);
    return fd;
}

static proto_status_t
open_monitor(void *context, actor_socket_t *self)
{
    static atomic_uint counter;
    char address[64];
    (void)snprintf(address, sizeof address, "inproc://actor-monitor-%u",
                   atomic_fetch_add(&counter, 1));
    int events = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED |
                 ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
    if (zmq_socket_monitor(self->handle, address, events) != 0) {
        return STATUS_ERR_IO;
    }
    self->monitor = zmq_socket(context, ZMQ_PAIR);
    if (self->monitor == NULL) {
        return STATUS_ERR_IO;
    }
    set_int(self->monitor, ZMQ_LINGER, 0);
    if (zmq_connect(self->monitor, address) != 0) {
        return STATUS_ERR_IO;
    }
    self->monitor_fd = socket_fd(self->monitor);
    return STATUS_OK;
}

static proto_status_t
attach(actor_socket_t *self, const actor_socket_options_t *options)
{
    int rc = options->bind ? zmq_bind(self->handle, options->endpoint)
                           : zmq_connect(self->handle, options->endpoint);
    if (rc != 0) {
        int error = errno;
        bool config = error == EINVAL || error == EPROTONOSUPPORT || error == ENODEV;
        actor_log(ACTOR_LOG_ERROR, error == EADDRINUSE ? "link.in_use" : "link.endpoint", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("endpoint", options->endpoint),
                                   actor_log_str("error", zmq_strerror(error))),
                  "cannot %s '%s': %s; choose another endpoint",
                  options->bind ? "bind" : "connect to", options->endpoint, zmq_strerror(error));
        return config ? STATUS_ERR_CONFIG : STATUS_ERR_IO;
    }
    (void)snprintf(self->endpoint, sizeof self->endpoint, "%s", options->endpoint);
    if (options->bind) {
        size_t size = sizeof self->endpoint;
        (void)zmq_getsockopt(self->handle, ZMQ_LAST_ENDPOINT, self->endpoint, &size);
    }
    return STATUS_OK;
}

proto_status_t
actor_socket_open(void *context, const actor_socket_options_t *options, actor_socket_t *out)
{
    require(context != NULL);
    require(options->bind || options->routing_id != NULL);
    require(options->queue_len_max > 0);

    proto_status_t status = check_endpoint(options);
    if (status != STATUS_OK) {
        goto err;
    }
    actor_socket_t self = {.router = options->bind,
                           .fd = -1,
                           .monitor_fd = -1,
                           .server = ACTOR_KEY_NONE};
    self.handle = zmq_socket(context, self.router ? ZMQ_ROUTER : ZMQ_DEALER);
    if (self.handle == NULL) {
        status = STATUS_ERR_IO;
        goto err;
    }
    set_options(&self, options);
    status = set_keys(&self, options);
    if (status == STATUS_OK) {
        status = open_monitor(context, &self);
    }
    if (status != STATUS_OK) {
        goto err_close;
    }
    status = attach(&self, options);
    if (status != STATUS_OK) {
        goto err_close;
    }
    self.fd = socket_fd(self.handle);
    *out = self;
    return STATUS_OK;

err_close:
    actor_socket_close(&self, 0);
err:
    return status;
}

void
actor_socket_close(actor_socket_t *self, int linger_ms)
{
    if (self->handle == NULL) {
        return;
    }
    /* The monitor's writing end dies with the socket; its reading end is ours. */
    (void)zmq_socket_monitor(self->handle, NULL, 0);
    if (self->monitor != NULL) {
        (void)zmq_close(self->monitor);
    }
    set_int(self->handle, ZMQ_LINGER, linger_ms);
    (void)zmq_close(self->handle);
    self->handle = NULL;
    self->monitor = NULL;
    self->fd = -1;
    self->monitor_fd = -1;
}

void
actor_frames_init(actor_frames_t *frames)
{
    for (uint32_t index = 0; index < PROTO_PART_COUNT_MAX; index++) {
        (void)zmq_msg_init(&frames->parts[index]);
    }
    frames->is_packed = false;
    frames->user = "";
    frames->count = 0;
    frames->count_sent = 0;
    frames->size_bytes = 0;
}

void
actor_frames_fini(actor_frames_t *frames)
{
    for (uint32_t index = 0; index < PROTO_PART_COUNT_MAX; index++) {
        (void)zmq_msg_close(&frames->parts[index]);
    }
}

proto_bytes_t
actor_frames_part(actor_frames_t *frames, uint32_t index)
{
    if (index >= frames->count) {
        return (proto_bytes_t){NULL, 0};
    }
    size_t size = zmq_msg_size(&frames->parts[index]);
    return (proto_bytes_t){size > 0 ? zmq_msg_data(&frames->parts[index]) : NULL, size};
}

proto_parts_t
actor_frames_message(actor_frames_t *frames, uint32_t first)
{
    if (frames->is_packed) {
        return frames->packed;
    }
    return (proto_parts_t){actor_frames_part(frames, first), actor_frames_part(frames, first + 1),
                           actor_frames_part(frames, first + 2)};
}

/* A packed message is one part; one whose table is wrong is left as it is: no header. */
static void
unpack(actor_frames_t *frames, uint32_t first)
{
    proto_bytes_t bytes = actor_frames_part(frames, first);
    frames->is_packed = frames->count_sent == first + 1 && proto_frame_is(bytes) &&
                        proto_frame_unpack(bytes, &frames->packed) == STATUS_OK;
}

proto_status_t
actor_socket_receive(actor_socket_t *self, size_t size_bytes_max, actor_frames_t *frames)
{
    frames->is_packed = false;
    frames->user = "";
    frames->count = 0;
    frames->count_sent = 0;
    frames->size_bytes = 0;
    zmq_msg_t rest; /* parts beyond those that are kept */
    (void)zmq_msg_init(&rest);
    proto_status_t status = STATUS_OK;
    bool more = true;
    while (more) {
        bool keep = frames->count_sent < PROTO_PART_COUNT_MAX;
        zmq_msg_t *part = keep ? &frames->parts[frames->count_sent] : &rest;
        if (zmq_msg_recv(part, self->handle, ZMQ_DONTWAIT) < 0) {
            /* Parts of one message come together: this can only be its beginning. */
            status = STATUS_AGAIN;
            break;
        }
        frames->count_sent++;
        frames->count += keep ? 1 : 0;
        frames->size_bytes += zmq_msg_size(part);
        more = zmq_msg_more(part) != 0;
    }
    (void)zmq_msg_close(&rest);
    if (status == STATUS_OK) {
        unpack(frames, self->router ? 1 : 0);
        const char *user =
            self->has_keys ? zmq_msg_gets(&frames->parts[frames->count - 1], "User-Id") : NULL;
        frames->user = user != NULL ? user : "";
    }
    if (status == STATUS_OK &&
        (frames->count_sent > PROTO_PART_COUNT_MAX || frames->size_bytes > size_bytes_max)) {
        status = STATUS_ERR_TOO_LARGE;
    }
    return status;
}

static proto_status_t
send_part(actor_socket_t *self, proto_bytes_t bytes, int flags)
{
    int rc;
    do {
        rc = zmq_send(self->handle, bytes.data, bytes.size_bytes, ZMQ_DONTWAIT | flags);
    } while (rc < 0 && errno == EINTR);
    if (rc >= 0) {
        return STATUS_OK;
    }
    return errno == EAGAIN ? STATUS_AGAIN : STATUS_ERR_PEER_LOST;
}

proto_status_t
actor_socket_send(actor_socket_t *self, proto_bytes_t routing_id, proto_bytes_t header,
                  proto_bytes_t body, proto_bytes_t blob)
{
    require(self->router == (routing_id.size_bytes > 0));
    if (self->router) {
        proto_status_t status = send_part(self, routing_id, ZMQ_SNDMORE);
        if (status != STATUS_OK) {
            return status;
        }
    }
    proto_status_t status = send_part(self, header, ZMQ_SNDMORE);
    if (status != STATUS_OK) {
        return status;
    }
    /* Once the first part is in, libzmq takes the others or drops the whole with its peer. */
    bool has_blob = blob.size_bytes > 0;
    (void)send_part(self, body, has_blob ? ZMQ_SNDMORE : 0);
    if (has_blob) {
        (void)send_part(self, blob, 0);
    }
    return STATUS_OK;
}

proto_status_t
actor_socket_send_packed(actor_socket_t *self, proto_bytes_t routing_id, const proto_parts_t *parts)
{
    require(self->router == (routing_id.size_bytes > 0));
    zmq_msg_t frame;
    if (zmq_msg_init_size(&frame, proto_frame_size(parts)) != 0) {
        return STATUS_AGAIN; /* no memory now: as a queue that is full */
    }
    proto_frame_pack(parts, zmq_msg_data(&frame));
    proto_status_t status = STATUS_OK;
    if (self->router) {
        status = send_part(self, routing_id, ZMQ_SNDMORE);
    }
    if (status == STATUS_OK) {
        int rc;
        do {
            rc = zmq_msg_send(&frame, self->handle, ZMQ_DONTWAIT);
        } while (rc < 0 && errno == EINTR);
        if (rc < 0) {
            /* Behind a routing id it is taken, or dropped with the peer. */
            status = self->router      ? STATUS_OK
                     : errno == EAGAIN ? STATUS_AGAIN
                                       : STATUS_ERR_PEER_LOST;
        }
    }
    (void)zmq_msg_close(&frame);
    return status;
}

int
actor_socket_ready(actor_socket_t *self)
{
    int events = 0;
    size_t size = sizeof events;
    int rc = zmq_getsockopt(self->handle, ZMQ_EVENTS, &events, &size);
    return rc == 0 ? events : 0;
}

proto_status_t
actor_socket_event(actor_socket_t *self, actor_socket_event_t *out)
{
    if (self->monitor == NULL) {
        return STATUS_AGAIN;
    }
    zmq_msg_t part;
    (void)zmq_msg_init(&part);
    if (zmq_msg_recv(&part, self->monitor, ZMQ_DONTWAIT) < 0) {
        (void)zmq_msg_close(&part);
        return STATUS_AGAIN;
    }
    uint16_t event = 0;
    if (zmq_msg_size(&part) >= sizeof event) {
        memcpy(&event, zmq_msg_data(&part), sizeof event);
    }
    while (zmq_msg_more(&part) != 0 && zmq_msg_recv(&part, self->monitor, ZMQ_DONTWAIT) >= 0) {
    }
    (void)zmq_msg_close(&part);
    switch (event) {
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        *out = ACTOR_SOCKET_EVENT_OPEN;
        break;
    case ZMQ_EVENT_DISCONNECTED:
        *out = ACTOR_SOCKET_EVENT_CLOSED;
        break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        *out = ACTOR_SOCKET_EVENT_REFUSED;
        break;
    default:
        *out = ACTOR_SOCKET_EVENT_OTHER;
        break;
    }
    return STATUS_OK;
}
