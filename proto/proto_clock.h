/* proto_clock.h - time as a thing that is passed in.  Cores get time with each input and never
 * call this; shells and tests do. */
#ifndef PROTO_CLOCK_H
#define PROTO_CLOCK_H

#include <stdint.h>

typedef struct {
    uint64_t (*monotonic_ns)(void *context); /* never goes back */
    uint64_t (*realtime_ns)(void *context);  /* nanoseconds since 1970; may jump */
    void *context;
} proto_clock_t;

/* The machine's clocks.  Never NULL, never freed; any thread. */
const proto_clock_t *proto_clock_system(void);

static inline uint64_t
proto_clock_monotonic_ns(const proto_clock_t *clock)
{
    return clock->monotonic_ns(clock->context);
}

static inline uint64_t
proto_clock_realtime_ns(const proto_clock_t *clock)
{
    return clock->realtime_ns(clock->context);
}

#endif
