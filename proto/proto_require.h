/* proto_require.h - assertions that stay on in every build.
 *
 * For bugs only: never for a peer's bytes, a user's input, memory or a device's result.  One
 * condition each, no side effects.  A failing `require` prints the place and the request that
 * this thread works on, then aborts. */
#ifndef PROTO_REQUIRE_H
#define PROTO_REQUIRE_H

#include <stdint.h>

#define require(condition)                                                                         \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0)) {                                                   \
            proto_require_failed(#condition, __FILE__, __LINE__, __func__);                        \
        }                                                                                          \
    } while (0)

/* Names the request that the calling thread works on, for the report; 0 = none. */
void proto_require_set_request(uint64_t request);

void proto_require_failed(const char *condition, const char *file, int line, const char *function)
    __attribute__((noreturn, cold));

#endif
