/* http_client.h - a raw HTTP client for tests: it sends exactly the bytes it is given and says
 * exactly how an answer ended.  Every wait has a deadline. */
#ifndef HTTP_CLIENT_H
#define HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_CLIENT_BUFFER = 1 << 20, HTTP_CLIENT_WAIT_MS = 10000 };

typedef struct {
    int fd;
    char *bytes; /* received and not yet consumed */
    size_t size_bytes;
    bool closed; /* the server closed or reset */
} http_client_t;

typedef struct {
    int status;      /* 0: no answer before the close */
    char head[8192]; /* terminated */
    char *body;      /* terminated; owned */
    size_t body_size_bytes;
    bool chunked;
    bool whole; /* the length or the last chunk was reached */
} http_reply_t;

void http_client_open(http_client_t *self, uint16_t port);
/* With a small receive buffer, so that what it does not read stays with the server. */
void http_client_open_slow(http_client_t *self, uint16_t port);
void http_client_close(http_client_t *self);
/* With an RST, as a client that is killed may leave. */
void http_client_reset(http_client_t *self);
void http_client_send(http_client_t *self, const char *bytes, size_t size_bytes);
void http_client_puts(http_client_t *self, const char *text);
/* POST with a JSON body and keep-alive. */
void http_client_post(http_client_t *self, const char *path, const char *json);
/* Reads one answer, to its end or the close.  The caller frees with http_reply_free. */
void http_client_read(http_client_t *self, http_reply_t *reply, bool is_head);
void http_reply_free(http_reply_t *reply);
/* Waits until `text` has been received (it stays unread) or the close: false. */
bool http_client_wait_for(http_client_t *self, const char *text);
/* True if the server closes within `wait_ms`. */
bool http_client_wait_close(http_client_t *self, int wait_ms);

/* The value of a header of the reply, or NULL; a copy in a static buffer. */
const char *http_reply_header(const http_reply_t *reply, const char *name);

uint64_t test_now_ns(void);

#endif
