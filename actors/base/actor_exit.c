#include "actor_exit.h"

int
actor_exit_code(proto_status_t status)
{
    switch ((int)status) {
    case STATUS_OK:
    case STATUS_END:
        return ACTOR_EXIT_OK;
    case STATUS_ERR_CONFIG:
    case STATUS_ERR_MALFORMED:
    case STATUS_ERR_UNSUPPORTED:
    case STATUS_ERR_NOT_FOUND:
    case STATUS_ERR_VERSION:
    case STATUS_ERR_FINGERPRINT:
        return ACTOR_EXIT_CONFIG;
    case STATUS_ERR_REFUSED: /* the port is in use */
    case STATUS_ERR_NO_MEMORY:
    case STATUS_ERR_IO:
    case STATUS_ERR_PEER_LOST:
        return ACTOR_EXIT_TEMPORARY;
    default:
        return ACTOR_EXIT_INTERNAL;
    }
}
