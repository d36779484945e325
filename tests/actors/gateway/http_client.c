/* http_client.c - see the header. */
#include "http_client.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

uint64_t
test_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void
open_with(http_client_t *self, uint16_t port, int receive_bytes)
{
    memset(self, 0, sizeof *self);
    self->bytes = malloc(HTTP_CLIENT_BUFFER);
    ck_assert_ptr_nonnull(self->bytes);
    self->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(self->fd, 0);
    if (receive_bytes > 0) {
        (void)setsockopt(self->fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ck_assert_int_eq(connect(self->fd, (struct sockaddr *)&address, sizeof address), 0);
}

void
http_client_open(http_client_t *self, uint16_t port)
{
    open_with(self, port, 0);
}

void
http_client_open_slow(http_client_t *self, uint16_t port)
{
    open_with(self, port, 8192);
}

void
http_client_close(http_client_t *self)
{
    if (self->fd >= 0) {
        (void)close(self->fd);
    }
    self->fd = -1;
    free(self->bytes);
    self->bytes = NULL;
}

void
http_client_reset(http_client_t *self)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    (void)setsockopt(self->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    http_client_close(self);
}

void
http_client_send(http_client_t *self, const char *bytes, size_t size_bytes)
{
    size_t sent = 0;
    while (sent < size_bytes) {
        ssize_t count = send(self->fd, bytes + sent, size_bytes - sent, MSG_NOSIGNAL);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            return; /* the server closed early: what it said is still to be read */
        }
        sent += (size_t)count;
    }
}

void
http_client_puts(http_client_t *self, const char *text)
{
    http_client_send(self, text, strlen(text));
}

void
http_client_post(http_client_t *self, const char *path, const char *json)
{
    char head[512];
    (void)snprintf(head, sizeof head,
                   "POST %s HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
                   "Content-Length: %zu\r\n\r\n",
                   path, strlen(json));
    http_client_puts(self, head);
    http_client_puts(self, json);
}

/* Receives something; false at the close. */
static bool
receive(http_client_t *self, int wait_ms)
{
    if (self->closed) {
        return false;
    }
    struct pollfd item = {.fd = self->fd, .events = POLLIN};
    int ready = poll(&item, 1, wait_ms);
    ck_assert_msg(ready > 0, "nothing came within %d ms after: %.*s", wait_ms,
                  (int)self->size_bytes, self->bytes);
    ck_assert_uint_lt(self->size_bytes, HTTP_CLIENT_BUFFER - 1);
    ssize_t count = recv(self->fd, self->bytes + self->size_bytes,
                         HTTP_CLIENT_BUFFER - 1 - self->size_bytes, 0);
    if (count <= 0) {
        self->closed = true;
        return false;
    }
    self->size_bytes += (size_t)count;
    return true;
}

bool
http_client_wait_for(http_client_t *self, const char *text)
{
    while (memmem(self->bytes, self->size_bytes, text, strlen(text)) == NULL) {
        if (!receive(self, HTTP_CLIENT_WAIT_MS)) {
            return false;
        }
    }
    return true;
}

bool
http_client_wait_close(http_client_t *self, int wait_ms)
{
    uint64_t until = test_now_ns() + (uint64_t)wait_ms * 1000000u;
    while (!self->closed && test_now_ns() < until) {
        struct pollfd item = {.fd = self->fd, .events = POLLIN};
        if (poll(&item, 1, 10) > 0) {
            char bytes[4096];
            ssize_t count = recv(self->fd, bytes, sizeof bytes, 0);
            self->closed = count <= 0;
        }
    }
    return self->closed;
}

static void
consume(http_client_t *self, size_t size_bytes)
{
    memmove(self->bytes, self->bytes + size_bytes, self->size_bytes - size_bytes);
    self->size_bytes -= size_bytes;
}

static void
append(http_reply_t *reply, const char *bytes, size_t size_bytes)
{
    reply->body = realloc(reply->body, reply->body_size_bytes + size_bytes + 1);
    ck_assert_ptr_nonnull(reply->body);
    memcpy(reply->body + reply->body_size_bytes, bytes, size_bytes);
    reply->body_size_bytes += size_bytes;
    reply->body[reply->body_size_bytes] = '\0';
}

static void
read_chunks(http_client_t *self, http_reply_t *reply)
{
    for (;;) {
        self->bytes[self->size_bytes] = '\0';
        char *line_end = strstr(self->bytes, "\r\n");
        if (line_end == NULL) {
            if (!receive(self, HTTP_CLIENT_WAIT_MS)) {
                return;
            }
            continue;
        }
        char *end = NULL;
        size_t size = strtoul(self->bytes, &end, 16);
        ck_assert_ptr_eq(end, line_end);
        size_t whole = (size_t)(line_end - self->bytes) + 2 + size + 2;
        while (self->size_bytes < whole) {
            if (!receive(self, HTTP_CLIENT_WAIT_MS)) {
                return;
            }
        }
        append(reply, self->bytes + (whole - size - 2), size);
        consume(self, whole);
        if (size == 0) {
            reply->whole = true;
            return;
        }
    }
}

void
http_client_read(http_client_t *self, http_reply_t *reply, bool is_head)
{
    memset(reply, 0, sizeof *reply);
    append(reply, "", 0);
    if (!http_client_wait_for(self, "\r\n\r\n")) {
        return;
    }
    const char *end = memmem(self->bytes, self->size_bytes, "\r\n\r\n", 4);
    size_t size = (size_t)(end - self->bytes) + 4;
    ck_assert_uint_lt(size, sizeof reply->head);
    memcpy(reply->head, self->bytes, size);
    reply->head[size] = '\0';
    consume(self, size);
    ck_assert_int_eq(sscanf(reply->head, "HTTP/1.1 %d", &reply->status), 1);
    if (is_head || reply->status == 204 || reply->status == 100) {
        reply->whole = true;
        return;
    }
    const char *length = http_reply_header(reply, "Content-Length");
    if (length != NULL) {
        size_t wanted = strtoul(length, NULL, 10);
        while (self->size_bytes < wanted && receive(self, HTTP_CLIENT_WAIT_MS)) {
        }
        reply->whole = self->size_bytes >= wanted;
        wanted = reply->whole ? wanted : self->size_bytes;
        append(reply, self->bytes, wanted);
        consume(self, wanted);
        return;
    }
    reply->chunked = http_reply_header(reply, "Transfer-Encoding") != NULL;
    if (reply->chunked) {
        read_chunks(self, reply);
        return;
    }
    while (receive(self, HTTP_CLIENT_WAIT_MS)) {
    }
    append(reply, self->bytes, self->size_bytes);
    consume(self, self->size_bytes);
    reply->whole = true;
}

void
http_reply_free(http_reply_t *reply)
{
    free(reply->body);
    reply->body = NULL;
}

const char *
http_reply_header(const http_reply_t *reply, const char *name)
{
    static char value[512];
    const char *line = strstr(reply->head, "\r\n");
    size_t size = strlen(name);
    while (line != NULL && line[2] != '\r') {
        line += 2;
        const char *end = strstr(line, "\r\n");
        if (strncasecmp(line, name, size) == 0 && line[size] == ':') {
            const char *from = line + size + 1;
            from += *from == ' ';
            (void)snprintf(value, sizeof value, "%.*s", (int)(end - from), from);
            return value;
        }
        line = end;
    }
    return NULL;
}
