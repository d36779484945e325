/* actor_links.c - opening links and noticing who is still there.
 * Long because each of the ways in which a peer can be gone is to be read beside the others. */
#include "actor_links_private.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_log.h"
#include "proto_clock.h"
#include "proto_require.h"

#define MS_NS UINT64_C(1000000)

enum {
    QUEUE_LEN_DEFAULT = 1024,
    CONTROL_PART_SIZE_MAX = 64 * 1024,
    GREETED_MS = 2000, /* READY must follow INIT within this */
    REOPEN_MS = 500,   /* a socket that cannot be opened is tried again */
    PROBE_COUNT = 5,   /* heartbeats that find out whose connection ended */
    ALIGNED_SIZE_BYTES = 64 * 1024,
    INSECURE_MS = 60000, /* between two warnings of an open address */
};

/* Waits before each probe: the connection's end is known before its queue is gone. */
static const uint64_t probe_waits_ns[PROBE_COUNT] = {0, 2 * MS_NS, 6 * MS_NS, 20 * MS_NS,
                                                     60 * MS_NS};

/* In every process: a routing id is used by one socket only. */
static atomic_uint_fast64_t attempts;

static uint64_t
now(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

static void
lower(uint64_t *wait_ns, uint64_t at_ns, uint64_t now_ns)
{
    uint64_t wait = at_ns > now_ns ? at_ns - now_ns : 0;
    *wait_ns = wait < *wait_ns ? wait : *wait_ns;
}

/* ---- fences ---------------------------------------------------------------------------------- */

uint64_t
actor_links_epoch_min(const actor_links_t *self, const char *name)
{
    for (uint32_t index = 0; index < ACTOR_FENCE_COUNT; index++) {
        if (strcmp(self->fences[index].name, name) == 0) {
            return self->fences[index].epoch_min;
        }
    }
    return 0;
}

void
actor_links_set_epoch_min(actor_links_t *self, const char *name, uint64_t epoch_min)
{
    for (uint32_t index = 0; index < ACTOR_FENCE_COUNT; index++) {
        actor_fence_t *fence = &self->fences[index];
        if (strcmp(fence->name, name) == 0) {
            fence->epoch_min = epoch_min > fence->epoch_min ? epoch_min : fence->epoch_min;
            return;
        }
    }
    actor_fence_t *fence = &self->fences[self->fence_next];
    self->fence_next = (self->fence_next + 1) % ACTOR_FENCE_COUNT;
    (void)snprintf(fence->name, sizeof fence->name, "%s", name);
    fence->epoch_min = epoch_min;
}

void
actor_links_fence(actor_links_t *self, proto_text_t name, uint64_t epoch, const char *why)
{
    char text[PROTO_NAME_SIZE_BYTES];
    if (name.size_bytes == 0 || name.size_bytes >= sizeof text) {
        return;
    }
    memcpy(text, name.data, name.size_bytes);
    text[name.size_bytes] = '\0';
    actor_links_set_epoch_min(self, text, epoch < UINT64_MAX ? epoch + 1 : epoch);
    uint64_t peers = self->peer_mask;
    while (peers != 0) {
        uint32_t peer = actor_mask_take(&peers);
        const actor_remote_t *remote = &self->remotes[peer];
        if (remote->state != ACTOR_REMOTE_FREE && remote->epoch <= epoch &&
            strcmp(remote->name, text) == 0) {
            actor_links_fail(self, peer, "its process ended: %s", why);
        }
    }
}

/* An actor that we left on purpose may come back with whatever epoch its own life gives it. */
static void
forget_epoch_min(actor_links_t *self, const char *name)
{
    for (uint32_t index = 0; index < ACTOR_FENCE_COUNT; index++) {
        if (strcmp(self->fences[index].name, name) == 0) {
            self->fences[index].epoch_min = 0;
        }
    }
}

/* ---- failing and reaping --------------------------------------------------------------------- */

void
actor_links_fail(actor_links_t *self, uint32_t peer, const char *format, ...)
{
    actor_remote_t *remote = &self->remotes[peer];
    if (remote->state == ACTOR_REMOTE_FREE || remote->state == ACTOR_REMOTE_FAILED) {
        return;
    }
    actor_links_set_state(self, peer, ACTOR_REMOTE_FAILED);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(remote->detail, sizeof remote->detail, format, arguments);
    va_end(arguments);
}

static void
reap_one(actor_links_t *self, uint32_t peer)
{
    actor_remote_t *remote = &self->remotes[peer];
    actor_link_t *link = &self->links[remote->link_index];
    if (remote->known_to_core) {
        actor_log_level_t level = self->ending           ? ACTOR_LOG_DEBUG
                                  : remote->said_goodbye ? ACTOR_LOG_INFO
                                                         : ACTOR_LOG_WARN;
        actor_log(level, "link.down", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("peer", remote->name),
                                   actor_log_u64("peer_epoch", remote->epoch),
                                   actor_log_str("why", remote->detail)),
                  "link to %s is down: %s", remote->name, remote->detail);
        self->hooks.down(self->hooks_context, peer);
        if (link->required && !self->ending && self->failure == STATUS_OK) {
            self->failure = STATUS_ERR_PEER_LOST;
        }
    }
    actor_links_set_state(self, peer, ACTOR_REMOTE_FREE);
    remote->known_to_core = false;
    if (!link->bind && link->peer == peer) {
        link->peer = ACTOR_PEER_NONE;
        link->reopen = true;
    }
}

void
actor_links_reap(actor_links_t *self)
{
    /* A core's answer to one loss may find the next. */
    while (self->failed_mask != 0) {
        reap_one(self, (uint32_t)__builtin_ctzll(self->failed_mask));
    }
}

/* ---- sockets --------------------------------------------------------------------------------- */

static proto_status_t
open_socket(actor_links_t *self, actor_link_t *link)
{
    char routing_id[ACTOR_ROUTING_ID_SIZE_MAX];
    (void)snprintf(routing_id, sizeof routing_id, "%s.%" PRIu64 ".%" PRIu64, self->options.name,
                   self->options.epoch, (uint64_t)(atomic_fetch_add(&attempts, 1) + 1));
    actor_socket_options_t options = {.endpoint = link->endpoint,
                                      .bind = link->bind,
                                      .routing_id = routing_id,
                                      .queue_len_max = link->queue_len_max,
                                      .part_size_bytes_max = link->part_size_bytes_max,
                                      .keys = self->options.keys,
                                      .peer_role = link->peer_role};
    proto_status_t status = actor_socket_open(self->zmq_context, &options, &link->socket);
    link->look = true;
    link->look_monitor = true;
    link->peer = ACTOR_PEER_NONE;
    link->hello_next_ns = 0;
    link->hello_count = 0;
    return status;
}

/* Gives a DEALER a socket that has never been used. */
static void
reopen(actor_links_t *self, uint32_t link_index)
{
    actor_link_t *link = &self->links[link_index];
    uint64_t now_ns = now();
    if (now_ns < link->open_at_ns) {
        return;
    }
    actor_socket_close(&link->socket, 0);
    link->reopen = open_socket(self, link) != STATUS_OK;
    link->open_at_ns = link->reopen ? now_ns + REOPEN_MS * MS_NS : 0;
}

/* Beyond this machine only what is encrypted, or what somebody asked for in so many words. */
static bool
may_use(const actor_links_t *self, const char *endpoint)
{
    return self->options.allow_remote || self->options.keys != NULL ||
           actor_endpoint_is_local(endpoint);
}

proto_status_t
actor_links_open(actor_links_t *self, uint32_t index, const actor_link_options_t *options)
{
    require(index <= ACTOR_LINK_COUNT_MAX);
    require(!self->links[index].in_use);

    if (!may_use(self, options->endpoint)) {
        actor_log(ACTOR_LOG_ERROR, "link.endpoint", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("endpoint", options->endpoint)),
                  "endpoint '%s' can be reached from other machines and is not encrypted: use "
                  "ipc:// or 127.0.0.1, give it keys (onepath keygen, --curve-keys), or allow it "
                  "with --insecure-bind",
                  options->endpoint);
        return STATUS_ERR_CONFIG;
    }
    actor_link_t *link = &self->links[index];
    bool control = index == ACTOR_LINK_CONTROL;
    *link = (actor_link_t){.in_use = true,
                           .bind = options->bind,
                           .required = options->required,
                           .peer_role = options->peer_role,
                           .queue_len_max = options->queue_len_max,
                           .part_size_bytes_max = options->part_size_bytes_max,
                           .peer = ACTOR_PEER_NONE};
    if (link->queue_len_max == 0) {
        link->queue_len_max = QUEUE_LEN_DEFAULT;
    }
    if (link->part_size_bytes_max == 0) {
        link->part_size_bytes_max = control ? CONTROL_PART_SIZE_MAX : PROTO_BLOB_SIZE_MAX;
    }
    int size = snprintf(link->endpoint, sizeof link->endpoint, "%s", options->endpoint);
    const char *fingerprint = options->fingerprint != NULL ? options->fingerprint : "";
    int fingerprint_size = snprintf(link->fingerprint, sizeof link->fingerprint, "%s", fingerprint);
    if (size >= (int)sizeof link->endpoint || fingerprint_size >= (int)sizeof link->fingerprint) {
        actor_log(ACTOR_LOG_ERROR, "link.endpoint", 0, NULL,
                  "an endpoint may have %zu bytes and a fingerprint %d", sizeof link->endpoint - 1,
                  PROTO_TEXT_LEN_MAX);
        link->in_use = false;
        return STATUS_ERR_CONFIG;
    }
    proto_status_t status = open_socket(self, link);
    bool open = self->options.keys == NULL && !actor_endpoint_is_local(link->endpoint);
    self->insecure_next_ns = open ? now() : self->insecure_next_ns;
    link->in_use = status == STATUS_OK;
    self->open_mask |= link->in_use ? UINT32_C(1) << index : 0;
    return status;
}

static void
leave(actor_links_t *self, uint32_t peer)
{
    actor_remote_t *remote = &self->remotes[peer];
    proto_body_t body = {.bye = {.detail = proto_text("moved to another scheduler")}};
    remote->said_goodbye = true;
    remote->moved = true;
    forget_epoch_min(self, remote->name);
    actor_links_send_body(self, peer, PROTO_KIND_BYE, &body);
    actor_links_fail(self, peer, "moved to another one");
}

proto_status_t
actor_links_relink(actor_links_t *self, proto_role_t role, proto_text_t endpoint)
{
    char text[ACTOR_ENDPOINT_SIZE_MAX];
    if (endpoint.size_bytes == 0 || endpoint.size_bytes >= sizeof text) {
        return STATUS_ERR_CONFIG;
    }
    memcpy(text, endpoint.data, endpoint.size_bytes);
    text[endpoint.size_bytes] = '\0';
    if (!may_use(self, text)) {
        return STATUS_ERR_CONFIG;
    }
    proto_status_t status = STATUS_ERR_NOT_FOUND;
    for (uint32_t index = 0; index < ACTOR_LINK_COUNT_MAX; index++) {
        actor_link_t *link = &self->links[index];
        if (!link->in_use || link->bind || link->peer_role != role) {
            continue;
        }
        status = STATUS_OK;
        memcpy(link->endpoint, text, sizeof text);
        if (link->peer != ACTOR_PEER_NONE) {
            leave(self, link->peer);
        }
        link->reopen = true;
        link->open_at_ns = 0;
    }
    return status;
}

uint32_t
actor_links_find_role(const actor_links_t *self, proto_role_t role)
{
    uint64_t peers = self->peer_mask;
    while (peers != 0) {
        uint32_t peer = actor_mask_take(&peers);
        if (self->remotes[peer].state == ACTOR_REMOTE_UP && self->remotes[peer].role == role) {
            return peer;
        }
    }
    return ACTOR_PEER_NONE;
}

const char *
actor_links_endpoint_of(const actor_links_t *self, uint32_t peer)
{
    const actor_link_t *link = &self->links[self->remotes[peer].link_index];
    return link->bind ? NULL : link->endpoint;
}

void
actor_links_take_events(actor_links_t *self, uint32_t link_index)
{
    actor_link_t *link = &self->links[link_index];
    actor_socket_event_t event;
    link->look_monitor = false;
    while (link->socket.handle != NULL && actor_socket_event(&link->socket, &event) == STATUS_OK) {
        link->look = true;
        if (event == ACTOR_SOCKET_EVENT_CLOSED && link->bind) {
            link->probe_again = link->probes_left > 0;
            link->probes_left = link->probes_left > 0 ? link->probes_left : PROBE_COUNT;
        } else if (event == ACTOR_SOCKET_EVENT_CLOSED && link->peer != ACTOR_PEER_NONE) {
            actor_links_fail(self, link->peer, "its connection ended");
        } else if (event == ACTOR_SOCKET_EVENT_OPEN && !link->bind) {
            link->hello_next_ns = link->hello_count == 0 ? 0 : link->hello_next_ns;
        }
    }
}

/* ---- time ------------------------------------------------------------------------------------ */

static void
send_heartbeat(actor_links_t *self, uint32_t peer, uint64_t now_ns)
{
    proto_body_t body = {.heartbeat = {.progress = 0}};
    self->hooks.progress(self->hooks_context, now_ns, &body.heartbeat);
    actor_links_send_body(self, peer, PROTO_KIND_HEARTBEAT, &body);
    self->remotes[peer].heartbeat_next_ns = now_ns + self->remotes[peer].heartbeat_ns;
}

/* Finds out which peers of a ROUTER are gone after a connection ended: sending to them fails. */
static void
probe(actor_links_t *self, uint32_t link_index, uint64_t now_ns, uint64_t *wait_ns)
{
    actor_link_t *link = &self->links[link_index];
    if (link->probes_left == 0) {
        return;
    }
    if (link->probes_left == PROBE_COUNT && link->probe_next_ns == 0) {
        link->probe_next_ns = now_ns;
    }
    if (now_ns >= link->probe_next_ns) {
        (void)actor_socket_ready(&link->socket);
        uint64_t peers = self->peer_mask;
        while (peers != 0) {
            uint32_t peer = actor_mask_take(&peers);
            if (self->remotes[peer].state == ACTOR_REMOTE_UP &&
                self->remotes[peer].link_index == link_index) {
                send_heartbeat(self, peer, now_ns);
            }
        }
        link->probes_left--;
        if (link->probes_left == 0 && link->probe_again) {
            link->probe_again = false;
            link->probes_left = PROBE_COUNT - 1;
        }
        link->probe_next_ns =
            link->probes_left > 0 ? now_ns + probe_waits_ns[PROBE_COUNT - link->probes_left] : 0;
    }
    if (link->probes_left > 0) {
        lower(wait_ns, link->probe_next_ns, now_ns);
    }
}

static void
watch_remote(actor_links_t *self, uint32_t peer, uint64_t now_ns, uint64_t *wait_ns)
{
    actor_remote_t *remote = &self->remotes[peer];
    if (remote->state == ACTOR_REMOTE_GREETED) {
        if (now_ns - remote->heard_ns >= GREETED_MS * MS_NS) {
            actor_links_set_state(self, peer, ACTOR_REMOTE_FREE);
        } else {
            lower(wait_ns, remote->heard_ns + GREETED_MS * MS_NS, now_ns);
        }
        return;
    }
    if (remote->state != ACTOR_REMOTE_UP) {
        return;
    }
    /* Silence counts only when nothing of the peer's is left unread. */
    if (!self->links[remote->link_index].look && now_ns >= remote->heard_ns &&
        now_ns - remote->heard_ns >= remote->silence_max_ns) {
        actor_links_fail(self, peer, "nothing heard for %" PRIu64 " ms",
                         (now_ns - remote->heard_ns) / MS_NS);
        return;
    }
    if (now_ns >= remote->heartbeat_next_ns) {
        send_heartbeat(self, peer, now_ns);
    }
    lower(wait_ns, remote->heartbeat_next_ns, now_ns);
    lower(wait_ns, remote->heard_ns + remote->silence_max_ns, now_ns);
}

/* After this process itself stood still, what the peers sent meanwhile is still on its way in. */
static void
forgive_silence(actor_links_t *self, uint64_t now_ns)
{
    uint64_t away_ns = now_ns - self->serviced_ns;
    self->serviced_ns = now_ns;
    if (away_ns < 2 * self->options.heartbeat_ns) {
        return;
    }
    uint64_t peers = self->peer_mask;
    while (peers != 0) {
        actor_remote_t *remote = &self->remotes[actor_mask_take(&peers)];
        uint64_t grace_ns = 2 * remote->heartbeat_ns;
        if (remote->state == ACTOR_REMOTE_UP &&
            now_ns - remote->heard_ns + grace_ns > remote->silence_max_ns) {
            remote->heard_ns = now_ns + grace_ns - remote->silence_max_ns;
        }
    }
}

/* Says again and again that something listens, or is listened to, without keys. */
static void
warn_insecure(actor_links_t *self, uint64_t now_ns, uint64_t *wait_ns)
{
    if (self->insecure_next_ns == 0) {
        return;
    }
    if (now_ns >= self->insecure_next_ns) {
        self->insecure_next_ns = now_ns + INSECURE_MS * MS_NS;
        actor_log_each(ACTOR_LOG_WARN, "link.insecure", 0, NULL,
                       "messages go to or come from other machines without encryption, and whoever "
                       "reaches the port can send them (--insecure-bind): give this node keys "
                       "(onepath keygen)");
    }
    lower(wait_ns, self->insecure_next_ns, now_ns);
}

proto_status_t
actor_links_service(actor_links_t *self, uint32_t message_count_max, uint64_t *wait_ns)
{
    forgive_silence(self, now());
    /* Whom a send may have woken us for is asked again: the wake-up comes once. */
    self->counts.refused_in += actor_zap_service(&self->zap);
    uint64_t links = self->open_mask;
    while (links != 0) {
        uint32_t index = actor_mask_take(&links);
        actor_link_t *link = &self->links[index];
        if (link->in_use && link->look && link->socket.handle != NULL) {
            /* Messages first: what a peer said before it died still counts. */
            actor_links_receive(self, index, message_count_max);
        }
        if (link->in_use && link->look_monitor && self->failure == STATUS_OK) {
            actor_links_take_events(self, index);
        }
        if (self->failure != STATUS_OK) {
            return self->failure;
        }
    }
    actor_links_reap(self);
    uint64_t now_ns = now();
    warn_insecure(self, now_ns, wait_ns);
    links = self->open_mask;
    while (links != 0) {
        uint32_t index = actor_mask_take(&links);
        actor_link_t *link = &self->links[index];
        if (!link->in_use) {
            continue;
        }
        if (link->reopen && !self->ending) {
            reopen(self, index);
        }
        if (link->bind) {
            probe(self, index, now_ns, wait_ns);
        } else {
            actor_handshake_service(self, link, now_ns, wait_ns);
        }
    }
    uint64_t peers = self->peer_mask;
    while (peers != 0) {
        watch_remote(self, actor_mask_take(&peers), now_ns, wait_ns);
    }
    actor_links_reap(self);
    links = self->open_mask;
    while (links != 0) {
        uint32_t index = actor_mask_take(&links);
        if (self->links[index].in_use && self->links[index].reopen) {
            lower(wait_ns, self->links[index].open_at_ns, now_ns);
        }
    }
    return self->failure;
}

/* ---- descriptors, begin and end -------------------------------------------------------------- */

uint32_t
actor_links_fds(const actor_links_t *self, int *fds, uint32_t capacity)
{
    uint32_t count = 0;
    if (self->zap.handle != NULL && count < capacity) {
        fds[count++] = self->zap.fd;
    }
    uint64_t links = self->open_mask;
    while (links != 0) {
        uint32_t index = actor_mask_take(&links);
        const actor_link_t *link = &self->links[index];
        if (!link->in_use || link->socket.handle == NULL) {
            continue;
        }
        if (count < capacity) {
            fds[count++] = link->socket.fd;
        }
        if (count < capacity && link->socket.monitor_fd >= 0) {
            fds[count++] = link->socket.monitor_fd;
        }
    }
    return count;
}

void
actor_links_readable(actor_links_t *self, int fd)
{
    uint64_t links = self->open_mask;
    while (links != 0) {
        uint32_t index = actor_mask_take(&links);
        actor_link_t *link = &self->links[index];
        /* The end of a connection wakes only the monitor; look for messages that came before. */
        bool monitor = link->in_use && link->socket.monitor_fd == fd;
        link->look = link->look || monitor || (link->in_use && link->socket.fd == fd);
        link->look_monitor = link->look_monitor || monitor;
    }
}

void
actor_links_readable_all(actor_links_t *self)
{
    uint64_t links = self->open_mask;
    while (links != 0) {
        uint32_t index = actor_mask_take(&links);
        self->links[index].look = self->links[index].in_use;
        self->links[index].look_monitor = self->links[index].in_use;
    }
}

bool
actor_links_pending(actor_links_t *self)
{
    bool pending = false;
    uint64_t links = self->open_mask;
    while (links != 0) {
        uint32_t index = actor_mask_take(&links);
        actor_link_t *link = &self->links[index];
        if (link->in_use && link->look && link->socket.handle != NULL) {
            link->look = (actor_socket_ready(&link->socket) & ZMQ_POLLIN) != 0;
            pending = pending || link->look;
        }
    }
    return pending;
}

proto_status_t
actor_links_new(const actor_links_options_t *options, const actor_links_hooks_t *hooks,
                void *hooks_context, actor_links_t **out_p)
{
    require(options->heartbeat_ns > 0);
    require(options->missed_max > 0);

    proto_status_t status = STATUS_ERR_NO_MEMORY;
    actor_links_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        goto err;
    }
    self->aligned = aligned_alloc(PROTO_COLUMN_ALIGN, ALIGNED_SIZE_BYTES);
    self->scratch_blob = aligned_alloc(PROTO_COLUMN_ALIGN, ACTOR_SCRATCH_BLOB_SIZE_BYTES);
    if (self->aligned == NULL || self->scratch_blob == NULL) {
        goto err_free_aligned;
    }
    self->aligned_size_bytes = ALIGNED_SIZE_BYTES;
    self->options = *options;
    self->hooks = *hooks;
    self->hooks_context = hooks_context;
    self->owns_context = options->zmq_context == NULL;
    self->zmq_context = self->owns_context ? zmq_ctx_new() : options->zmq_context;
    if (self->zmq_context == NULL) {
        status = STATUS_ERR_IO;
        goto err_free_aligned;
    }
    if (options->keys != NULL) {
        status = actor_zap_open(self->zmq_context, options->keys, &self->zap);
        if (status != STATUS_OK) {
            goto err_end_context;
        }
    }
    actor_frames_init(&self->frames);
    self->serviced_ns = now();
    self->nak_filled_ns = self->serviced_ns;
    self->nak_tokens = ACTOR_NAK_BURST;
    *out_p = self;
    return STATUS_OK;

err_end_context:
    if (self->owns_context) {
        (void)zmq_ctx_term(self->zmq_context);
    }
err_free_aligned:
    free(self->scratch_blob);
    free(self->aligned);
    free(self);
err:
    return status;
}

void
actor_links_destroy(actor_links_t **self_p, uint64_t linger_ns)
{
    actor_links_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    self->ending = true;
    proto_body_t body = {.bye = {.detail = proto_text("the actor ends")}};
    uint64_t peers = self->peer_mask;
    while (peers != 0) {
        uint32_t peer = actor_mask_take(&peers);
        if (self->remotes[peer].state == ACTOR_REMOTE_UP) {
            actor_links_send_body(self, peer, PROTO_KIND_BYE, &body);
        }
    }
    actor_frames_fini(&self->frames);
    uint64_t links = self->open_mask;
    while (links != 0) {
        uint32_t index = actor_mask_take(&links);
        if (self->links[index].in_use) {
            actor_socket_close(&self->links[index].socket, (int)(linger_ns / MS_NS));
        }
    }
    actor_zap_close(&self->zap);
    if (self->owns_context) {
        /* Waits for what lingers: without this, a process that ends loses its last words. */
        while (zmq_ctx_term(self->zmq_context) != 0 && errno == EINTR) {
        }
    }
    free(self->scratch_blob);
    free(self->aligned);
    free(self);
    *self_p = NULL;
}
