#include "actor_http_trace_send.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto_clock.h"

#define MS_NS UINT64_C(1000000)

static bool
copy(char *out, size_t capacity_bytes, const char *text, size_t size_bytes)
{
    if (size_bytes >= capacity_bytes) {
        return false;
    }
    memcpy(out, text, size_bytes);
    out[size_bytes] = '\0';
    return true;
}

/* A byte that could end the request line or the field that it goes into. */
static bool
is_plain(const char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text <= ' ' || (unsigned char)*text >= 127) {
            return false;
        }
    }
    return true;
}

bool
actor_http_trace_url(const char *text, actor_http_trace_url_t *out)
{
    static const char scheme[] = "http://";
    *out = (actor_http_trace_url_t){.port = "4318", .path = "/v1/traces"};
    if (strncmp(text, scheme, sizeof scheme - 1) != 0 || !is_plain(text)) {
        return false;
    }
    const char *host = text + sizeof scheme - 1;
    const char *slash = strchr(host, '/');
    size_t size = slash != NULL ? (size_t)(slash - host) : strlen(host);
    if (size == 0 || memchr(host, '@', size) != NULL ||
        !copy(out->authority, sizeof out->authority, host, size)) {
        return false;
    }
    if (slash != NULL && slash[1] != '\0' &&
        !copy(out->path, sizeof out->path, slash, strlen(slash))) {
        return false;
    }
    const char *end = out->authority + size;
    const char *close = out->authority[0] == '[' ? strchr(out->authority, ']') : NULL;
    const char *colon = strchr(close != NULL ? close : out->authority, ':');
    if (out->authority[0] == '[' && close == NULL) {
        return false;
    }
    if (colon != NULL) {
        char *rest = NULL;
        unsigned long port = strtoul(colon + 1, &rest, 10);
        if (colon[1] < '0' || colon[1] > '9' || *rest != '\0' || port == 0 || port > 65535) {
            return false;
        }
        (void)snprintf(out->port, sizeof out->port, "%lu", port);
        end = colon;
    }
    const char *begin = close != NULL ? out->authority + 1 : out->authority;
    end = close != NULL ? close : end;
    return end > begin && copy(out->host, sizeof out->host, begin, (size_t)(end - begin));
}

static uint64_t
now_ns(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

static bool
wait_for(int fd, short events, uint64_t until_ns)
{
    uint64_t now = now_ns();
    struct pollfd item = {.fd = fd, .events = events};
    return now < until_ns && poll(&item, 1, (int)((until_ns - now) / MS_NS) + 1) > 0;
}

static int
open_socket(const actor_http_trace_url_t *url, uint64_t until_ns)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    if (getaddrinfo(url->host, url->port, &hints, &found) != 0) {
        errno = ENOENT;
        return -1;
    }
    int fd = -1;
    for (const struct addrinfo *at = found; at != NULL && fd < 0; at = at->ai_next) {
        int candidate = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int failed = 0;
        socklen_t size = sizeof failed;
        if (candidate < 0) {
            continue;
        }
        bool is_up = connect(candidate, at->ai_addr, at->ai_addrlen) == 0;
        if (!is_up && errno == EINPROGRESS && wait_for(candidate, POLLOUT, until_ns)) {
            is_up = getsockopt(candidate, SOL_SOCKET, SO_ERROR, &failed, &size) == 0 && failed == 0;
            errno = failed;
        }
        if (is_up) {
            fd = candidate;
        } else {
            int why = errno;
            (void)close(candidate);
            errno = why;
        }
    }
    freeaddrinfo(found);
    return fd;
}

static bool
write_all(int fd, const char *bytes, size_t size_bytes, uint64_t until_ns)
{
    while (size_bytes > 0) {
        ssize_t written = send(fd, bytes, size_bytes, MSG_NOSIGNAL);
        if (written > 0) {
            bytes += written;
            size_bytes -= (size_t)written;
        } else if (errno != EAGAIN || !wait_for(fd, POLLOUT, until_ns)) {
            return false;
        }
    }
    return true;
}

/* The status of the answer; 0 if none came in time.  The rest of it is of no interest. */
static int
read_status(int fd, uint64_t until_ns)
{
    char head[64];
    size_t size = 0;
    while (size < 12) {
        ssize_t got = recv(fd, head + size, sizeof head - 1 - size, 0);
        if (got > 0) {
            size += (size_t)got;
        } else if (got == 0 || errno != EAGAIN || !wait_for(fd, POLLIN, until_ns)) {
            return 0;
        }
    }
    head[size] = '\0';
    return strncmp(head, "HTTP/1.", 7) == 0 ? (int)strtol(head + 9, NULL, 10) : 0;
}

bool
actor_http_trace_send(const actor_http_trace_url_t *url, const char *body, size_t size_bytes,
                      uint32_t timeout_ms, char *error, size_t error_size_bytes)
{
    char head[1024];
    uint64_t until_ns = now_ns() + timeout_ms * MS_NS;
    int fd = open_socket(url, until_ns);
    if (fd < 0) {
        (void)snprintf(error, error_size_bytes, "cannot connect to %s: %s", url->authority,
                       strerror(errno));
        return false;
    }
    int size = snprintf(head, sizeof head,
                        "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                        "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                        url->path, url->authority, size_bytes);
    int status = 0;
    if (write_all(fd, head, (size_t)size, until_ns) && write_all(fd, body, size_bytes, until_ns)) {
        status = read_status(fd, until_ns);
    }
    (void)close(fd);
    if (status == 0) {
        (void)snprintf(error, error_size_bytes, "%s gave no answer", url->authority);
    } else if (status < 200 || status >= 300) {
        (void)snprintf(error, error_size_bytes, "%s answered with %d", url->authority, status);
    }
    return status >= 200 && status < 300;
}
