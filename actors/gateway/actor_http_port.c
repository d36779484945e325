/* actor_http_port.c - the listener and the limits on how many may come. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "actor_http_conn_private.h"
#include "actor_log.h"
#include "proto_require.h"

enum { LISTEN_BACKLOG = 128 };

static uint32_t
count_from(const actor_http_port_t *self, const char *peer)
{
    uint32_t count = 0;
    for (const actor_http_conn_t *conn = self->first; conn != NULL; conn = conn->next) {
        count += strcmp(conn->peer, peer) == 0;
    }
    return count;
}

static void
peer_text(const struct sockaddr *address, char out[INET6_ADDRSTRLEN])
{
    const void *raw = NULL;
    if (address->sa_family == AF_INET) {
        raw = &((const struct sockaddr_in *)(const void *)address)->sin_addr;
    } else if (address->sa_family == AF_INET6) {
        raw = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    }
    if (raw == NULL || inet_ntop(address->sa_family, raw, out, INET6_ADDRSTRLEN) == NULL) {
        memcpy(out, "unknown", sizeof "unknown");
    }
}

static void
on_accept(struct evconnlistener *listener, evutil_socket_t descriptor, struct sockaddr *address,
          int length, void *context)
{
    (void)listener;
    (void)length;
    actor_http_port_t *self = context;
    char peer[INET6_ADDRSTRLEN];
    peer_text(address, peer);
    bool full = self->counts.open_count >= self->options.connection_count_max ||
                count_from(self, peer) >= self->options.connection_per_ip_max;
    if (full || self->closed) {
        self->counts.refused_count++;
        actor_log(ACTOR_LOG_WARN, "http.connection_limit", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("client", peer),
                                   actor_log_u64("open", self->counts.open_count)),
                  "a connection over the limit was refused");
        static const char reply[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
                                    "x-request-id: none\r\nContent-Length: 0\r\n"
                                    "Connection: close\r\n\r\n";
        (void)send(descriptor, reply, sizeof reply - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)evutil_closesocket(descriptor);
        return;
    }
    self->counts.accepted_count++;
    actor_http_conn_accept(self, descriptor, address);
}

/* Out of descriptors, usually: the next try waits for the loop, so that it does not spin. */
static void
on_accept_error(struct evconnlistener *listener, void *context)
{
    (void)listener;
    (void)context;
    int failure = EVUTIL_SOCKET_ERROR();
    actor_log(ACTOR_LOG_ERROR, "http.accept_failed", 0, NULL, "accept: %s",
              evutil_socket_error_to_string(failure));
}

static proto_status_t
parse_address(const actor_http_port_options_t *options, struct sockaddr_storage *out, int *length)
{
    memset(out, 0, sizeof *out);
    struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)out;
    if (inet_pton(AF_INET, options->address, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(options->port);
        *length = sizeof *v4;
        return STATUS_OK;
    }
    if (inet_pton(AF_INET6, options->address, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(options->port);
        *length = sizeof *v6;
        return STATUS_OK;
    }
    actor_log(ACTOR_LOG_ERROR, "http.bind_failed", 0,
              ACTOR_LOG_FIELDS(actor_log_str("address", options->address)),
              "the HTTP address must be an IPv4 or IPv6 address, such as 127.0.0.1 or 0.0.0.0");
    return STATUS_ERR_CONFIG;
}

static uint16_t
bound_number(evutil_socket_t descriptor)
{
    struct sockaddr_storage address;
    memset(&address, 0, sizeof address);
    socklen_t length = sizeof address;
    if (getsockname(descriptor, (struct sockaddr *)&address, &length) != 0) {
        return 0;
    }
    if (address.ss_family == AF_INET6) {
        return ntohs(((struct sockaddr_in6 *)(void *)&address)->sin6_port);
    }
    return ntohs(((struct sockaddr_in *)(void *)&address)->sin_port);
}

proto_status_t
actor_http_port_new(const actor_http_port_options_t *options, actor_http_port_t **out_p)
{
    require(options != NULL);
    require(options->ops != NULL);
    require(out_p != NULL);

    struct sockaddr_storage address;
    int length = 0;
    proto_status_t status = parse_address(options, &address, &length);
    if (status != STATUS_OK) {
        return status;
    }
    actor_http_port_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    actor_http_parser_init(&self->settings);
    self->listener =
        evconnlistener_new_bind(options->base, on_accept, self,
                                LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_EXEC,
                                LISTEN_BACKLOG, (struct sockaddr *)&address, length);
    if (self->listener == NULL) {
        int failure = errno;
        status = failure == EADDRINUSE ? STATUS_ERR_REFUSED : STATUS_ERR_CONFIG;
        actor_log(ACTOR_LOG_ERROR, "http.bind_failed", 0,
                  ACTOR_LOG_FIELDS(actor_log_str("address", options->address),
                                   actor_log_u64("port", options->port)),
                  "cannot listen on %s port %u: %s%s", options->address, options->port,
                  strerror(failure),
                  failure == EADDRINUSE
                      ? "; another program uses it: stop that one or choose another port"
                      : "");
        free(self);
        return status;
    }
    evconnlistener_set_error_cb(self->listener, on_accept_error);
    self->number = bound_number(evconnlistener_get_fd(self->listener));
    *out_p = self;
    return STATUS_OK;
}

void
actor_http_port_destroy(actor_http_port_t **self_p)
{
    require(self_p != NULL);
    actor_http_port_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    self->closed = true;
    if (self->listener != NULL) {
        evconnlistener_free(self->listener);
    }
    while (self->first != NULL) {
        actor_http_conn_drop(self->first);
    }
    free(self);
    *self_p = NULL;
}

void
actor_http_port_close(actor_http_port_t *self)
{
    if (self->closed) {
        return;
    }
    self->closed = true;
    evconnlistener_free(self->listener);
    self->listener = NULL;
    actor_http_conn_t *next = NULL;
    for (actor_http_conn_t *conn = self->first; conn != NULL; conn = next) {
        next = conn->next;
        if (conn->state == ACTOR_HTTP_HEAD && !conn->head_begun) {
            actor_http_conn_drop(conn);
        }
    }
}

uint16_t
actor_http_port_number(const actor_http_port_t *self)
{
    return self->number;
}

actor_http_port_counts_t
actor_http_port_counts(const actor_http_port_t *self)
{
    return self->counts;
}
