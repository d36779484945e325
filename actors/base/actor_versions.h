/* actor_versions.h - the versions of the libraries that the links are built on.  Any thread. */
#ifndef ACTOR_VERSIONS_H
#define ACTOR_VERSIONS_H

#include <stddef.h>

/* Of libzmq as it is loaded now, "4.3.4". */
void actor_versions_zmq(char *out, size_t out_size_bytes);

/* Of the libzmq that this program was compiled with. */
const char *actor_versions_zmq_built(void);

#endif
