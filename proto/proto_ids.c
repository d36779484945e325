#include "proto_ids.h"

const char *
proto_role_name(proto_role_t role)
{
    switch (role) {
#define PROTO_ROLE_CASE(name, value, text)                                                         \
    case PROTO_ROLE_##name:                                                                        \
        return text;
        PROTO_ROLE_LIST(PROTO_ROLE_CASE)
#undef PROTO_ROLE_CASE
    }
    return "unknown";
}
