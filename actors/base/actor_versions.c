#include "actor_versions.h"

#include <stdio.h>
#include <zmq.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

void
actor_versions_zmq(char *out, size_t out_size_bytes)
{
    int major = 0;
    int minor = 0;
    int patch = 0;
    zmq_version(&major, &minor, &patch);
    (void)snprintf(out, out_size_bytes, "%d.%d.%d", major, minor, patch);
}

const char *
actor_versions_zmq_built(void)
{
    return TEXT(ZMQ_VERSION_MAJOR) "." TEXT(ZMQ_VERSION_MINOR) "." TEXT(ZMQ_VERSION_PATCH);
}
