/* proto_ids.h - sizes of names and hashes, and the roles of actors.  Requests, epochs and steps are
 * uint64_t on the wire and in every room; 0 is "none" for all of them. */
#ifndef PROTO_IDS_H
#define PROTO_IDS_H

enum {
    PROTO_NAME_SIZE_BYTES = 32, /* an actor's name with its terminating zero: [a-z0-9-]{1,31} */
    PROTO_HASH_SIZE_BYTES = 32, /* identity of one prefix page: keyed BLAKE2b-256 */
};

/* What an actor is for; the numbers are on the wire. */
#define PROTO_ROLE_LIST(ROLE)                                                                      \
    ROLE(NONE, 0, "none")                                                                          \
    ROLE(GATEWAY, 1, "gateway")                                                                    \
    ROLE(SCHEDULER, 2, "scheduler")                                                                \
    ROLE(EXECUTOR, 3, "executor")                                                                  \
    ROLE(DRAFTER, 4, "drafter")                                                                    \
    ROLE(KV_TRANSFER, 5, "kv-transfer")                                                            \
    ROLE(PREFILL_ROLE, 6, "prefill-role")                                                          \
    ROLE(DECODE_ROLE, 7, "decode-role")                                                            \
    ROLE(RECORDER, 8, "recorder")                                                                  \
    ROLE(SUPERVISOR, 9, "supervisor")                                                              \
    ROLE(CLIENT, 10, "client")

typedef enum {
#define PROTO_ROLE_ENUM(name, value, text) PROTO_ROLE_##name = (value),
    PROTO_ROLE_LIST(PROTO_ROLE_ENUM)
#undef PROTO_ROLE_ENUM
} proto_role_t;

/* The text of the list; "unknown" for a number not listed. */
const char *proto_role_name(proto_role_t role);

#endif
