#include "proto_clock.h"

#include <time.h>

#include "proto_require.h"

static uint64_t
read_clock(clockid_t id)
{
    struct timespec now;
    int result = clock_gettime(id, &now);
    require(result == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t
system_monotonic_ns(void *context)
{
    (void)context;
    return read_clock(CLOCK_MONOTONIC);
}

static uint64_t
system_realtime_ns(void *context)
{
    (void)context;
    return read_clock(CLOCK_REALTIME);
}

const proto_clock_t *
proto_clock_system(void)
{
    static const proto_clock_t clock = {system_monotonic_ns, system_realtime_ns, NULL};
    return &clock;
}
