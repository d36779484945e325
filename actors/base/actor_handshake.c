/* actor_handshake.c - how a link begins, and whom it refuses. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "actor_links_private.h"
#include "actor_log.h"
#include "proto_clock.h"
#include "proto_require.h"

#define MS_NS UINT64_C(1000000)

enum {
    HELLO_MS = 250,       /* between two HELLOs */
    HELLO_FULL_MS = 5,    /* nobody connected yet: look again soon */
    HELLO_COUNT_MAX = 12, /* unanswered; then a new socket with a new routing id */
    RETRY_SLOW_MS = 5000, /* after a refusal that only a person can resolve */
    RETRY_BUSY_MS = 1000, /* after a refusal that time may resolve */
    HEARTBEAT_MIN_MS = 5, /* bounds on what a binder may ask for */
    HEARTBEAT_MAX_MS = 10000,
};

static uint64_t
now(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

static bool
text_equal(proto_text_t text, const char *string)
{
    return strlen(string) == text.size_bytes && memcmp(text.data, string, text.size_bytes) == 0;
}

/* Copies a name of [a-z0-9-]{1,31}; false if it is none. */
static bool
copy_name(proto_text_t text, char out[PROTO_NAME_SIZE_BYTES])
{
    if (text.size_bytes == 0 || text.size_bytes >= PROTO_NAME_SIZE_BYTES) {
        return false;
    }
    for (uint32_t index = 0; index < text.size_bytes; index++) {
        char c = text.data[index];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-')) {
            return false;
        }
    }
    memcpy(out, text.data, text.size_bytes);
    out[text.size_bytes] = '\0';
    return true;
}

/* The attempt in "name.epoch.attempt"; 0 if the routing id is not that of this name and epoch. */
static uint64_t
routing_attempt(proto_bytes_t routing_id, const char *name, uint64_t epoch)
{
    char text[ACTOR_ROUTING_ID_SIZE_MAX + 1];
    char prefix[ACTOR_ROUTING_ID_SIZE_MAX + 1];
    if (routing_id.size_bytes > ACTOR_ROUTING_ID_SIZE_MAX) {
        return 0;
    }
    memcpy(text, routing_id.data, routing_id.size_bytes);
    text[routing_id.size_bytes] = '\0';
    int size = snprintf(prefix, sizeof prefix, "%s.%" PRIu64 ".", name, epoch);
    if (size <= 0 || strncmp(text, prefix, (size_t)size) != 0) {
        return 0;
    }
    const char *digits = text + size;
    char *end = NULL;
    uint64_t attempt = digits[0] >= '1' && digits[0] <= '9' ? strtoull(digits, &end, 10) : 0;
    return end != NULL && *end == '\0' ? attempt : 0;
}

/* Says no to a connector, and to whoever reads this actor's log. */
static void
refuse(actor_links_t *self, actor_link_t *link, proto_bytes_t routing_id, proto_text_t who,
       proto_status_t status, const char *detail, proto_text_t expected, proto_text_t got)
{
    self->counts.refused_in++;
    actor_log(ACTOR_LOG_WARN, "link.refused", 0,
              ACTOR_LOG_FIELDS(actor_log_text("peer", who), actor_log_text("expected", expected),
                               actor_log_text("got", got),
                               actor_log_str("status", proto_status_name(status))),
              "refused a link: %s", detail);
    proto_body_t body = {.refuse = {.status = status,
                                    .detail = proto_text(detail),
                                    .expected = expected,
                                    .got = got}};
    actor_links_send_raw(self, link, routing_id, PROTO_KIND_REFUSE, &body);
}

static void
send_init(actor_links_t *self, actor_link_t *link, proto_bytes_t routing_id, uint32_t version,
          bool packs)
{
    proto_body_t body = {.init = {.version = version,
                                  .role = self->options.role,
                                  .name = proto_text(self->options.name),
                                  .epoch = self->options.epoch,
                                  .heartbeat_ns = self->options.heartbeat_ns,
                                  .fingerprint = proto_text(link->fingerprint),
                                  .packs = packs}};
    actor_links_send_raw(self, link, routing_id, PROTO_KIND_INIT, &body);
}

static uint32_t
free_peer(const actor_links_t *self)
{
    for (uint32_t peer = 1; peer < ACTOR_PEER_CONTROL; peer++) {
        if (self->remotes[peer].state == ACTOR_REMOTE_FREE) {
            return peer;
        }
    }
    return ACTOR_PEER_NONE;
}

/* Makes room for a new socket of `name`: true if it may come in, false if a newer one is there. */
static bool
replace_older(actor_links_t *self, uint32_t link_index, const char *name, uint64_t epoch,
              uint64_t attempt)
{
    uint64_t peers = self->peer_mask;
    while (peers != 0) {
        uint32_t peer = actor_mask_take(&peers);
        actor_remote_t *remote = &self->remotes[peer];
        if (remote->state == ACTOR_REMOTE_FREE || remote->link_index != link_index ||
            strcmp(remote->name, name) != 0) {
            continue;
        }
        if (remote->epoch > epoch || (remote->epoch == epoch && remote->attempt > attempt)) {
            return false;
        }
        actor_links_fail(self, peer, "replaced by epoch %" PRIu64 ", attempt %" PRIu64, epoch,
                         attempt);
    }
    actor_links_reap(self);
    return true;
}

/* The checks of a HELLO that need no table; true if it passed, else it was refused. */
static bool
check_hello(actor_links_t *self, actor_link_t *link, proto_bytes_t routing_id,
            const proto_hello_t *hello)
{
    char expected[64];
    char got[64];
    if (hello->version_max < PROTO_SCHEMA_VERSION_MIN ||
        hello->version_min > PROTO_SCHEMA_VERSION || hello->version_min > hello->version_max) {
        (void)snprintf(expected, sizeof expected, "%d..%d", PROTO_SCHEMA_VERSION_MIN,
                       PROTO_SCHEMA_VERSION);
        (void)snprintf(got, sizeof got, "%u..%u", hello->version_min, hello->version_max);
        refuse(self, link, routing_id, hello->name, STATUS_ERR_VERSION,
               "no common protocol version", proto_text(expected), proto_text(got));
        return false;
    }
    if (link->peer_role != PROTO_ROLE_NONE && hello->role != (uint32_t)link->peer_role) {
        const char *role = proto_role_name((proto_role_t)hello->role);
        refuse(self, link, routing_id, hello->name, STATUS_ERR_REFUSED,
               "this link is for another role", proto_text(proto_role_name(link->peer_role)),
               proto_text(role));
        return false;
    }
    if (link->fingerprint[0] != '\0' && hello->fingerprint.size_bytes > 0 &&
        !text_equal(hello->fingerprint, link->fingerprint)) {
        refuse(self, link, routing_id, hello->name, STATUS_ERR_FINGERPRINT,
               "the two ends are configured differently", proto_text(link->fingerprint),
               hello->fingerprint);
        return false;
    }
    return true;
}

/* Whether the key of the connection that HELLO came over is one for this role and name; true too
 * where the link has no keys.  *key: its line. */
static bool
check_key(actor_links_t *self, actor_link_t *link, proto_bytes_t routing_id,
          const proto_hello_t *hello, uint32_t *key)
{
    *key = ACTOR_KEY_NONE;
    if (!link->socket.has_keys) {
        return true;
    }
    char name[PROTO_NAME_SIZE_BYTES];
    *key = actor_keys_find(self->options.keys, self->frames.user);
    if (*key != ACTOR_KEY_NONE && copy_name(hello->name, name) &&
        actor_keys_fit(self->options.keys, *key, (proto_role_t)hello->role, name)) {
        return true;
    }
    char expected[96];
    (void)snprintf(expected, sizeof expected, "%s %s",
                   *key != ACTOR_KEY_NONE ? proto_role_name(self->options.keys->peers[*key].role)
                                          : "a listed key",
                   *key != ACTOR_KEY_NONE ? self->options.keys->peers[*key].name : "");
    refuse(self, link, routing_id, hello->name, STATUS_ERR_REFUSED,
           "this key is for an actor of another role or name", proto_text(expected),
           proto_text(proto_role_name((proto_role_t)hello->role)));
    return false;
}

static void
receive_hello(actor_links_t *self, uint32_t link_index, proto_bytes_t routing_id,
              const proto_header_t *header, const proto_hello_t *hello)
{
    actor_link_t *link = &self->links[link_index];
    char name[PROTO_NAME_SIZE_BYTES];
    uint64_t attempt =
        copy_name(hello->name, name) ? routing_attempt(routing_id, name, hello->epoch) : 0;
    if (attempt == 0 || header->epoch != hello->epoch) {
        refuse(self, link, routing_id, hello->name, STATUS_ERR_INVALID,
               "the routing id is not that of this name and epoch",
               proto_text("name.epoch.attempt"), proto_text("another one"));
        return;
    }
    uint32_t key = ACTOR_KEY_NONE;
    if (!check_hello(self, link, routing_id, hello) ||
        !check_key(self, link, routing_id, hello, &key)) {
        return;
    }
    uint32_t version =
        hello->version_max < PROTO_SCHEMA_VERSION ? hello->version_max : PROTO_SCHEMA_VERSION;
    uint32_t peer = actor_links_find(self, link_index, routing_id);
    if (peer != ACTOR_PEER_NONE) {
        /* Asked again before our answer came. */
        if (self->remotes[peer].state == ACTOR_REMOTE_GREETED) {
            send_init(self, link, routing_id, version, self->remotes[peer].packs);
        }
        return;
    }
    uint64_t epoch_min = actor_links_epoch_min(self, name);
    if (hello->epoch < epoch_min || !replace_older(self, link_index, name, hello->epoch, attempt)) {
        char expected[32];
        char got[32];
        (void)snprintf(expected, sizeof expected, "at least %" PRIu64, epoch_min);
        (void)snprintf(got, sizeof got, "%" PRIu64, hello->epoch);
        refuse(self, link, routing_id, hello->name, STATUS_ERR_STALE,
               "a newer incarnation of this actor is known", proto_text(expected), proto_text(got));
        return;
    }
    peer = free_peer(self);
    if (peer == ACTOR_PEER_NONE) {
        refuse(self, link, routing_id, hello->name, STATUS_ERR_OVERLOADED, "too many peers",
               proto_text("a free place"), proto_text("none"));
        return;
    }
    actor_links_set_epoch_min(self, name, hello->epoch);
    actor_remote_t *remote = &self->remotes[peer];
    *remote = (actor_remote_t){.link_index = link_index,
                               .role = (proto_role_t)hello->role,
                               .epoch = hello->epoch,
                               .attempt = attempt,
                               .key = key,
                               .packs = hello->packs,
                               .heard_ns = now(),
                               .heartbeat_ns = self->options.heartbeat_ns};
    actor_links_set_state(self, peer, ACTOR_REMOTE_GREETED);
    memcpy(remote->name, name, sizeof remote->name);
    memcpy(remote->routing_id, routing_id.data, routing_id.size_bytes);
    remote->routing_id_size = routing_id.size_bytes;
    send_init(self, link, routing_id, version, remote->packs);
}

static void
bring_up(actor_links_t *self, uint32_t peer)
{
    actor_remote_t *remote = &self->remotes[peer];
    uint64_t now_ns = now();
    actor_links_set_state(self, peer, ACTOR_REMOTE_UP);
    remote->heard_ns = now_ns;
    remote->heartbeat_next_ns = now_ns + remote->heartbeat_ns;
    remote->silence_max_ns = remote->heartbeat_ns * self->options.missed_max;
    if (peer == ACTOR_PEER_CONTROL) {
        /* A supervisor that dies is seen at once; one that is merely held, say by a debugger,
         * must not take the node with it. */
        remote->silence_max_ns = 30000 * MS_NS;
    }
    actor_log(ACTOR_LOG_INFO, "link.up", 0,
              ACTOR_LOG_FIELDS(actor_log_str("peer", remote->name),
                               actor_log_u64("peer_epoch", remote->epoch),
                               actor_log_str("role", proto_role_name(remote->role))),
              "link to %s is up", remote->name);
    remote->known_to_core = true;
    remote->said_goodbye = false;
    self->hooks.up(self->hooks_context, peer);
}

static void
receive_init(actor_links_t *self, uint32_t link_index, const proto_header_t *header,
             const proto_init_t *init)
{
    actor_link_t *link = &self->links[link_index];
    char name[PROTO_NAME_SIZE_BYTES];
    if (link->bind || link->peer != ACTOR_PEER_NONE) {
        return; /* the answer to a HELLO that was repeated */
    }
    bool fits =
        copy_name(init->name, name) && header->epoch == init->epoch &&
        init->version >= PROTO_SCHEMA_VERSION_MIN && init->version <= PROTO_SCHEMA_VERSION &&
        (link->peer_role == PROTO_ROLE_NONE || init->role == (uint32_t)link->peer_role) &&
        (link->fingerprint[0] == '\0' || init->fingerprint.size_bytes == 0 ||
         text_equal(init->fingerprint, link->fingerprint)) &&
        init->epoch >= actor_links_epoch_min(self, name) &&
        (!link->socket.has_keys ||
         actor_keys_fit(self->options.keys, link->socket.server, (proto_role_t)init->role, name));
    if (!fits) {
        self->counts.refused_in++;
        actor_log(ACTOR_LOG_WARN, "link.refused", 0,
                  ACTOR_LOG_FIELDS(actor_log_text("peer", init->name),
                                   actor_log_u64("peer_epoch", init->epoch),
                                   actor_log_u64("role", init->role),
                                   actor_log_str("expected", link->fingerprint),
                                   actor_log_text("got", init->fingerprint)),
                  "the binder of %s is not whom this link is for", link->endpoint);
        link->hello_next_ns = now() + RETRY_SLOW_MS * MS_NS;
        return;
    }
    uint32_t peer = link_index == ACTOR_LINK_CONTROL ? ACTOR_PEER_CONTROL : free_peer(self);
    if (peer == ACTOR_PEER_NONE) {
        link->hello_next_ns = now() + RETRY_BUSY_MS * MS_NS;
        return;
    }
    actor_links_set_epoch_min(self, name, init->epoch);
    uint64_t heartbeat_ns = init->heartbeat_ns;
    if (heartbeat_ns < HEARTBEAT_MIN_MS * MS_NS) {
        heartbeat_ns = HEARTBEAT_MIN_MS * MS_NS;
    } else if (heartbeat_ns > HEARTBEAT_MAX_MS * MS_NS) {
        heartbeat_ns = HEARTBEAT_MAX_MS * MS_NS;
    }
    actor_remote_t *remote = &self->remotes[peer];
    *remote = (actor_remote_t){.link_index = link_index,
                               .role = (proto_role_t)init->role,
                               .epoch = init->epoch,
                               .key = link->socket.server,
                               .packs = init->packs,
                               .heartbeat_ns = heartbeat_ns};
    actor_links_set_state(self, peer, ACTOR_REMOTE_GREETED);
    memcpy(remote->name, name, sizeof remote->name);
    link->peer = peer;
    proto_body_t body = {.ready = {.epoch = self->options.epoch}};
    actor_links_send_raw(self, link, (proto_bytes_t){NULL, 0}, PROTO_KIND_READY, &body);
    bring_up(self, peer);
}

static void
receive_ready(actor_links_t *self, uint32_t link_index, proto_bytes_t routing_id,
              const proto_header_t *header)
{
    uint32_t peer = actor_links_find(self, link_index, routing_id);
    if (peer == ACTOR_PEER_NONE || self->remotes[peer].state != ACTOR_REMOTE_GREETED ||
        header->epoch != self->remotes[peer].epoch) {
        self->counts.refused_in++;
        return;
    }
    bring_up(self, peer);
}

static void
receive_refuse(actor_links_t *self, uint32_t link_index, const proto_refuse_t *refusal)
{
    actor_link_t *link = &self->links[link_index];
    if (link->bind || link->peer != ACTOR_PEER_NONE) {
        return;
    }
    proto_status_t status = (proto_status_t)refusal->status;
    /* The supervisor knows which incarnation is ours.  A stranger may have met another node's. */
    bool stale = status == STATUS_ERR_STALE &&
                 (link_index == ACTOR_LINK_CONTROL || !self->links[ACTOR_LINK_CONTROL].in_use);
    actor_log(ACTOR_LOG_ERROR, "link.refused_by_peer", 0,
              ACTOR_LOG_FIELDS(actor_log_str("endpoint", link->endpoint),
                               actor_log_str("status", proto_status_name(status)),
                               actor_log_text("expected", refusal->expected),
                               actor_log_text("got", refusal->got)),
              "refused at %s: %.*s%s", link->endpoint, (int)refusal->detail.size_bytes,
              refusal->detail.data,
              stale ? "; this incarnation is replaced and ends" : "; trying again later");
    if (stale) {
        /* A newer incarnation does our work: anything that we still do would be wrong. */
        self->failure = STATUS_ERR_STALE;
    }
    uint64_t wait_ms = status == STATUS_ERR_OVERLOADED ? RETRY_BUSY_MS : RETRY_SLOW_MS;
    link->hello_next_ns = now() + wait_ms * MS_NS;
    link->hello_count = 0;
}

void
actor_handshake_receive(actor_links_t *self, uint32_t link_index, proto_bytes_t routing_id,
                        const proto_header_t *header, const proto_body_t *body)
{
    bool binder = self->links[link_index].bind;
    if (header->kind == PROTO_KIND_HELLO && binder) {
        receive_hello(self, link_index, routing_id, header, &body->hello);
    } else if (header->kind == PROTO_KIND_READY && binder) {
        receive_ready(self, link_index, routing_id, header);
    } else if (header->kind == PROTO_KIND_INIT && !binder) {
        receive_init(self, link_index, header, &body->init);
    } else if (header->kind == PROTO_KIND_REFUSE && !binder) {
        receive_refuse(self, link_index, &body->refuse);
    } else {
        self->counts.refused_in++;
    }
}

static void
send_hello(actor_links_t *self, actor_link_t *link)
{
    proto_body_t body = {.hello = {.version_min = PROTO_SCHEMA_VERSION_MIN,
                                   .version_max = PROTO_SCHEMA_VERSION,
                                   .role = self->options.role,
                                   .name = proto_text(self->options.name),
                                   .epoch = self->options.epoch,
                                   .fingerprint = proto_text(link->fingerprint),
                                   .packs = true}};
    actor_links_send_raw(self, link, (proto_bytes_t){NULL, 0}, PROTO_KIND_HELLO, &body);
}

void
actor_handshake_service(actor_links_t *self, actor_link_t *link, uint64_t now_ns, uint64_t *wait_ns)
{
    require(!link->bind);
    if (link->socket.handle == NULL || link->peer != ACTOR_PEER_NONE) {
        return;
    }
    if (now_ns >= link->hello_next_ns) {
        if ((actor_socket_ready(&link->socket) & ZMQ_POLLOUT) == 0) {
            /* The wake-up for a new connection may come without any event that we see. */
            link->hello_next_ns = now_ns + HELLO_FULL_MS * MS_NS;
        } else if (link->hello_count >= HELLO_COUNT_MAX) {
            /* Perhaps the binder still holds our routing id for a connection that is dead. */
            link->reopen = true;
            link->hello_next_ns = now_ns;
        } else {
            send_hello(self, link);
            link->hello_count++;
            link->hello_next_ns = now_ns + HELLO_MS * MS_NS;
        }
    }
    uint64_t wait = link->hello_next_ns > now_ns ? link->hello_next_ns - now_ns : 0;
    *wait_ns = wait < *wait_ns ? wait : *wait_ns;
}
