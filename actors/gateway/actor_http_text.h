/* actor_http_text.h - a growing text, and JSON written into it with every byte escaped that needs
 * it.  One thread at a time; memory is kept across actor_http_text_clear(), so that a stream in
 * its stride allocates nothing.  Out of memory is remembered (failed) and checked once, at the
 * end. */
#ifndef ACTOR_HTTP_TEXT_H
#define ACTOR_HTTP_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Embed it, zeroed. */
typedef struct {
    char *data;            /* not terminated; owned */
    size_t size_bytes;     /* in use */
    size_t capacity_bytes; /* allocated */
    bool failed;           /* an addition was lost to a lack of memory */
} actor_http_text_t;

void actor_http_text_fini(actor_http_text_t *self);
void actor_http_text_clear(actor_http_text_t *self);
/* Makes room for `size_bytes` more; false (and failed) without memory. */
bool actor_http_text_reserve(actor_http_text_t *self, size_t size_bytes);
void actor_http_text_add(actor_http_text_t *self, const char *bytes, size_t size_bytes);
void actor_http_text_puts(actor_http_text_t *self, const char *string);
void actor_http_text_printf(actor_http_text_t *self, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Takes out [0, size_bytes), moving the rest to the front. */
void actor_http_text_drop_front(actor_http_text_t *self, size_t size_bytes);

/* A JSON string with its quotes.  Bytes that are no UTF-8 become U+FFFD; control characters are
 * escaped, and so is U+2028/9 (line ends to some readers). */
void actor_http_text_json(actor_http_text_t *self, const char *bytes, size_t size_bytes);
/* The shortest number that reads back as the same float; what JSON cannot say becomes null. */
void actor_http_text_number(actor_http_text_t *self, double value);

/* Length of the valid UTF-8 character at `bytes` (1..4), 0 if it is malformed, -1 if it could
 * become valid with more bytes. */
int actor_http_utf8_length(const char *bytes, size_t size_bytes);

#endif
