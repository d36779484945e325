#include "actor_roles.h"

#include <stdatomic.h>
#include <string.h>

#include "actor_keys.h"

enum {
    KIND_COUNT_MAX = 256, /* whose answers are kept */
    WORD_SIZE_BYTES = 32,
};

static const uint32_t every_role = INT32_MAX;
static const uint32_t filled = UINT32_C(1) << 31; /* no role is as large */
static atomic_uint_least32_t senders_of[KIND_COUNT_MAX];

static uint32_t
roles_of_word(const char *word)
{
    if (strcmp(word, "both") == 0 || strcmp(word, "actor") == 0 || strcmp(word, "connector") == 0 ||
        strcmp(word, "binder") == 0) {
        return every_role;
    }
    if (strcmp(word, "role") == 0) {
        return UINT32_C(1) << PROTO_ROLE_PREFILL_ROLE | UINT32_C(1) << PROTO_ROLE_DECODE_ROLE;
    }
    proto_role_t role = actor_keys_role(word);
    return role != PROTO_ROLE_NONE ? UINT32_C(1) << role : 0;
}

uint32_t
actor_roles_of_route(const char *route)
{
    static const char separators[] = " ,";
    char word[WORD_SIZE_BYTES];
    uint32_t senders = 0;   /* before the last arrow */
    uint32_t waiting = 0;   /* since the last arrow */
    bool both_ways = false; /* an arrow with two heads */
    bool known = true;
    uint32_t arrow_count = 0;
    while (*route != '\0') {
        route += strspn(route, separators);
        size_t size = strcspn(route, separators);
        if (size == 0) {
            break;
        }
        if (size >= sizeof word) {
            return 0;
        }
        memcpy(word, route, size);
        word[size] = '\0';
        route += size;
        if (strcmp(word, "->") == 0 || strcmp(word, "<->") == 0) {
            both_ways = both_ways || word[0] == '<';
            arrow_count++;
            senders |= waiting;
            waiting = 0;
        } else if (strcmp(word, "or") != 0 && strcmp(word, "and") != 0) {
            uint32_t roles = roles_of_word(word);
            known = known && roles != 0;
            waiting |= roles;
        }
    }
    bool everybody = arrow_count == 0 || both_ways;
    return known ? senders | (everybody ? waiting : 0) : 0;
}

static uint32_t
find_senders(proto_kind_t kind)
{
    const proto_message_t *message = proto_message_find(kind);
    return message != NULL ? actor_roles_of_route(message->route) : 0;
}

bool
actor_roles_may_send(proto_role_t role, proto_kind_t kind)
{
    uint32_t senders;
    if ((uint32_t)kind < KIND_COUNT_MAX) {
        /* Any thread may fill it in: each finds the same. */
        senders = (uint32_t)atomic_load_explicit(&senders_of[kind], memory_order_relaxed);
        if (senders == 0) {
            senders = find_senders(kind) | filled;
            atomic_store_explicit(&senders_of[kind], senders, memory_order_relaxed);
        }
    } else {
        senders = find_senders(kind);
    }
    return (uint32_t)role < 31 && (senders & UINT32_C(1) << role) != 0;
}
