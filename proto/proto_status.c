#include "proto_status.h"

const char *
proto_status_name(proto_status_t status)
{
    switch (status) {
#define PROTO_STATUS_CASE(name, value, text)                                                       \
    case STATUS_##name:                                                                            \
        return #name;
        PROTO_STATUS_LIST(PROTO_STATUS_CASE)
#undef PROTO_STATUS_CASE
    }
    /* Numbers also come from peers, so a value beyond the list is no bug. */
    return "UNKNOWN";
}

const char *
proto_status_text(proto_status_t status)
{
    switch (status) {
#define PROTO_STATUS_CASE(name, value, text)                                                       \
    case STATUS_##name:                                                                            \
        return text;
        PROTO_STATUS_LIST(PROTO_STATUS_CASE)
#undef PROTO_STATUS_CASE
    }
    return "a status that this build does not know";
}
