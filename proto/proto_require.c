#include "proto_require.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static _Thread_local uint64_t current_request;

void
proto_require_set_request(uint64_t request)
{
    current_request = request;
}

void
proto_require_failed(const char *condition, const char *file, int line, const char *function)
{
    /* One write(2) of a buffer on the stack: nothing here may need a lock or the heap, which may
     * be what is broken. */
    char text[512];
    int length = snprintf(text, sizeof text, "%s:%d: %s: require(%s) failed, request %" PRIu64 "\n",
                          file, line, function, condition, current_request);
    if (length > 0) {
        size_t size_bytes = (size_t)length < sizeof text ? (size_t)length : sizeof text - 1;
        ssize_t written = write(STDERR_FILENO, text, size_bytes);
        (void)written; /* about to abort: there is nobody left to tell */
    }
    abort();
}
