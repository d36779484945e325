/* One shell against peers that speak bytes: what is refused, and that others do not suffer. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "proto_frame.h"
#include "support.h"

static test_core_t core;
static test_core_t friend_core;
static actor_shell_t *shell;
static actor_shell_t *friend_shell; /* a good peer, whose link must go on */
static char endpoint[128];

static void
start(const char *fingerprint, uint32_t queue_len_max)
{
    test_core_init(&core, PROTO_ROLE_SCHEDULER, "scheduler");
    (void)snprintf(endpoint, sizeof endpoint, "%s", test_endpoint("links"));
    actor_link_options_t link = {.endpoint = endpoint,
                                 .bind = true,
                                 .fingerprint = fingerprint,
                                 .queue_len_max = queue_len_max,
                                 .part_size_bytes_max = 256 * 1024};
    shell = test_shell(&core, "scheduler", 50, &link);
}

static void
start_friend(void)
{
    test_core_init(&friend_core, PROTO_ROLE_GATEWAY, "gateway");
    actor_link_options_t link = {.endpoint = endpoint};
    friend_shell = test_shell(&friend_core, "gateway", 60, &link);
    TEST_PUMP_UNTIL(friend_core.peer != ACTOR_PEER_NONE && core.peer != ACTOR_PEER_NONE, 2000);
}

static void
end(void)
{
    test_shell_end(&friend_shell);
    test_shell_end(&shell);
    test_dir_remove();
}

static uint64_t
refused(void)
{
    proto_stats_t stats;
    actor_shell_stats(shell, &stats);
    return stats.refused_in;
}

/* The friend asks and is answered, over the link that it always had. */
static void
check_friend(void)
{
    uint32_t before = test_core_count(&friend_core, PROTO_KIND_FINISHED);
    proto_body_t body = {.finish = {.token_index = 1}};
    actor_shell_inject(friend_shell, PROTO_KIND_FINISH, 1, &body);
    TEST_PUMP_UNTIL(test_core_count(&friend_core, PROTO_KIND_FINISHED) == before + 1, 2000);
    ck_assert_uint_eq(test_core_count(&friend_core, PROTO_KIND_PEER_UP), 1);
    ck_assert_uint_eq(test_core_count(&friend_core, PROTO_KIND_PEER_DOWN), 0);
}

static bool
text_is(proto_text_t text, const char *string)
{
    return text.size_bytes == strlen(string) && memcmp(text.data, string, text.size_bytes) == 0;
}

/* An actor of another protocol version is told both versions. */
START_TEST(other_version_is_refused_with_both_values)
{
    start("", 0);
    test_raw_t raw;
    test_reply_t reply;
    test_raw_open(&raw, endpoint, "executor-0", 1, "1");
    test_raw_hello(&raw, PROTO_ROLE_GATEWAY, PROTO_SCHEMA_VERSION + 6, "");
    ck_assert(test_raw_wait(&raw, PROTO_KIND_REFUSE, 2000, &reply));
    char expected[32];
    char got[32];
    (void)snprintf(expected, sizeof expected, "%d..%d", PROTO_SCHEMA_VERSION_MIN,
                   PROTO_SCHEMA_VERSION);
    (void)snprintf(got, sizeof got, "%d..%d", PROTO_SCHEMA_VERSION + 6, PROTO_SCHEMA_VERSION + 6);
    ck_assert_int_eq(reply.body.refuse.status, STATUS_ERR_VERSION);
    ck_assert(text_is(reply.body.refuse.expected, expected));
    ck_assert(text_is(reply.body.refuse.got, got));
    ck_assert_uint_eq(core.event_count, 0);
    test_raw_close(&raw);
    end();
}
END_TEST

/* So is one that is configured differently; and it may try again when it was corrected. */
START_TEST(other_fingerprint_is_refused_with_both_values)
{
    start("model=aa;dtype=bf16", 0);
    test_raw_t raw;
    test_reply_t reply;
    test_raw_open(&raw, endpoint, "executor-0", 1, "1");
    test_raw_hello(&raw, PROTO_ROLE_GATEWAY, PROTO_SCHEMA_VERSION, "model=bb;dtype=bf16");
    ck_assert(test_raw_wait(&raw, PROTO_KIND_REFUSE, 2000, &reply));
    ck_assert_int_eq(reply.body.refuse.status, STATUS_ERR_FINGERPRINT);
    ck_assert(text_is(reply.body.refuse.expected, "model=aa;dtype=bf16"));
    ck_assert(text_is(reply.body.refuse.got, "model=bb;dtype=bf16"));
    ck_assert_uint_eq(core.event_count, 0);
    test_raw_hello(&raw, PROTO_ROLE_GATEWAY, PROTO_SCHEMA_VERSION, "model=aa;dtype=bf16");
    ck_assert(test_raw_wait(&raw, PROTO_KIND_INIT, 2000, &reply));
    test_raw_close(&raw);
    end();
}
END_TEST

/* A shell that is refused keeps its core out of it and tries again slowly. */
START_TEST(refused_connector_waits)
{
    start("model=aa", 0);
    test_core_init(&friend_core, PROTO_ROLE_GATEWAY, "gateway");
    actor_link_options_t link = {.endpoint = endpoint, .fingerprint = "model=bb"};
    friend_shell = test_shell(&friend_core, "gateway", 60, &link);
    TEST_PUMP_UNTIL(refused() == 1, 2000);
    uint64_t until_ns = test_now_ns() + 600000000; /* more than two HELLO intervals */
    while (test_now_ns() < until_ns) {
        test_pump();
    }
    ck_assert_uint_eq(refused(), 1);
    ck_assert_uint_eq(friend_core.event_count, 0);
    ck_assert_uint_eq(core.event_count, 0);
    ck_assert_int_eq(test_status(friend_shell), STATUS_OK);
    end();
}
END_TEST

/* Who is refused as old ends, unless a supervisor knows better which incarnation is the right one:
 * the peer may be another node's, which knows an actor of the same name. */
START_TEST(stale_connector_ends_without_a_supervisor)
{
    bool supervised = _i == 1;
    start("", 0);
    test_raw_t raw;
    test_raw_open(&raw, endpoint, "gateway", 61, "1");
    test_raw_handshake(&raw, PROTO_ROLE_GATEWAY);
    test_core_init(&friend_core, PROTO_ROLE_GATEWAY, "gateway");
    actor_link_options_t link = {.endpoint = endpoint};
    char nobody[128];
    (void)snprintf(nobody, sizeof nobody, "%s", test_endpoint("supervisor"));
    friend_shell =
        test_shell_with(&friend_core,
                        (actor_shell_options_t){.name = "gateway",
                                                .epoch = 60,
                                                .supervisor_endpoint = supervised ? nobody : NULL},
                        &link);
    TEST_PUMP_UNTIL(refused() == 1, 2000);
    uint64_t until_ns = test_now_ns() + 300000000;
    while (test_now_ns() < until_ns) {
        test_pump();
    }
    ck_assert_int_eq(test_status(friend_shell), supervised ? STATUS_OK : STATUS_ERR_STALE);
    test_raw_close(&raw);
    end();
}
END_TEST

/* The routing id is the name and the epoch: whoever claims others is nobody. */
START_TEST(names_must_match_the_routing_id)
{
    start("", 0);
    test_raw_t raw;
    test_reply_t reply;
    test_raw_open(&raw, endpoint, "executor-0", 1, "1");
    (void)snprintf(raw.name, sizeof raw.name, "gateway");
    test_raw_hello(&raw, PROTO_ROLE_GATEWAY, PROTO_SCHEMA_VERSION, "");
    ck_assert(test_raw_wait(&raw, PROTO_KIND_REFUSE, 2000, &reply));
    ck_assert_int_eq(reply.body.refuse.status, STATUS_ERR_INVALID);
    (void)snprintf(raw.name, sizeof raw.name, "executor-0");
    raw.epoch = 2;
    test_raw_hello(&raw, PROTO_ROLE_GATEWAY, PROTO_SCHEMA_VERSION, "");
    ck_assert(test_raw_wait(&raw, PROTO_KIND_REFUSE, 2000, &reply));
    ck_assert_int_eq(reply.body.refuse.status, STATUS_ERR_INVALID);
    ck_assert_uint_eq(core.event_count, 0);
    test_raw_close(&raw);
    end();
}
END_TEST

/* Bytes that are no message are counted and answered, and the friend does not notice. */
START_TEST(garbage_is_refused_and_others_go_on)
{
    start("", 0);
    start_friend();
    test_raw_t raw;
    test_reply_t reply;
    test_raw_open(&raw, endpoint, "executor-0", 1, "1");
    test_raw_handshake(&raw, PROTO_ROLE_GATEWAY);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_UP) == 2, 2000);

    static const uint8_t garbage[] = "GET / HTTP/1.1\r\n\r\n";
    static const uint8_t bomb[] = {0xdd, 0x04, 0x00, 0x00, 0x00}; /* array of 67 million */
    static const uint8_t map_bomb[] = {0xdf, 0x10, 0x00, 0x00, 0x00};
    const proto_bytes_t whole = {garbage, sizeof garbage - 1};
    const proto_bytes_t bombs[3] = {{bomb, sizeof bomb}, {map_bomb, sizeof map_bomb}, {bomb, 5}};
    const proto_bytes_t empty[3] = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
    test_raw_parts(&raw, &whole, 1);
    test_raw_parts(&raw, bombs, 1);
    test_raw_parts(&raw, bombs, 3);
    test_raw_parts(&raw, empty, 1);
    test_raw_parts(&raw, empty, 3);
    for (uint32_t count = 0; count < 5; count++) {
        ck_assert(test_raw_wait(&raw, PROTO_KIND_NAK, 2000, &reply));
        ck_assert_int_eq(reply.body.nak.status, STATUS_ERR_MALFORMED);
    }
    ck_assert_uint_eq(refused(), 5);
    check_friend();
    /* The sender's own link goes on too: what could not be read does not count. */
    proto_body_t body = {.finish = {.token_index = 3}};
    test_raw_send(&raw, PROTO_KIND_FINISH, 1, 77, &body);
    ck_assert(test_raw_wait(&raw, PROTO_KIND_FINISHED, 2000, &reply));
    ck_assert_uint_eq(reply.header.request, 77);
    test_raw_close(&raw);
    end();
}
END_TEST

/* A good header with a bad body: the request is known, the sender is told, the link goes on. */
START_TEST(bad_bodies_are_refused_by_number)
{
    start("", 0);
    start_friend();
    test_raw_t raw;
    test_reply_t reply;
    test_raw_open(&raw, endpoint, "executor-0", 1, "1");
    test_raw_handshake(&raw, PROTO_ROLE_GATEWAY);
    static const uint8_t bomb[] = {0xdd, 0x04, 0x00, 0x00, 0x00};
    static const uint8_t short_body[] = {0x92, 0x01}; /* two elements, one there */
    static const uint8_t wrong_type[] = {0x91, 0xa1, 'x'};
    const proto_bytes_t bodies[] = {{bomb, sizeof bomb},
                                    {short_body, sizeof short_body},
                                    {wrong_type, sizeof wrong_type}};
    for (uint64_t index = 0; index < 3; index++) {
        proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                                 .kind = PROTO_KIND_FINISH,
                                 .epoch = 1,
                                 .sequence = index + 1,
                                 .request = 100 + index};
        uint8_t bytes[PROTO_HEADER_SIZE_MAX];
        proto_bytes_t parts[2] = {{bytes, proto_header_encode(&header, bytes)}, bodies[index]};
        test_raw_parts(&raw, parts, 2);
        ck_assert(test_raw_wait(&raw, PROTO_KIND_NAK, 2000, &reply));
        ck_assert_uint_eq(reply.body.nak.sequence, index + 1);
        ck_assert_uint_eq(reply.body.nak.kind, PROTO_KIND_FINISH);
        ck_assert_int_eq(reply.body.nak.status, STATUS_ERR_MALFORMED);
    }
    proto_body_t body = {.finish = {.token_index = 3}};
    test_raw_send(&raw, PROTO_KIND_FINISH, 4, 5, &body);
    ck_assert(test_raw_wait(&raw, PROTO_KIND_FINISHED, 2000, &reply));
    check_friend();
    test_raw_close(&raw);
    end();
}
END_TEST

/* Kinds that nobody knows, or that may never come from outside. */
START_TEST(unknown_and_local_kinds_are_refused)
{
    start("", 0);
    start_friend();
    test_raw_t raw;
    test_reply_t reply;
    test_raw_open(&raw, endpoint, "executor-0", 1, "1");
    test_raw_handshake(&raw, PROTO_ROLE_GATEWAY);
    static const uint32_t kinds[] = {4711, 0, PROTO_KIND_PEER_UP, PROTO_KIND_TIMER,
                                     PROTO_KIND_HTTP_REQUEST};
    uint32_t before = core.event_count;
    static const uint8_t empty_array[] = {0x90};
    for (uint64_t index = 0; index < 5; index++) {
        proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                                 .kind = (proto_kind_t)kinds[index],
                                 .epoch = 1,
                                 .sequence = index + 1};
        uint8_t bytes[PROTO_HEADER_SIZE_MAX];
        proto_bytes_t parts[2] = {{bytes, proto_header_encode(&header, bytes)}, {empty_array, 1}};
        test_raw_parts(&raw, parts, 2);
        ck_assert(test_raw_wait(&raw, PROTO_KIND_NAK, 2000, &reply));
        ck_assert_int_eq(reply.body.nak.status, STATUS_ERR_UNSUPPORTED);
    }
    ck_assert_uint_eq(core.event_count, before + 1); /* its own PEER_UP */
    check_friend();
    test_raw_close(&raw);
    end();
}
END_TEST

/* Only the supervisor may end an actor. */
START_TEST(stop_from_a_peer_is_refused)
{
    start("", 0);
    test_raw_t raw;
    test_raw_open(&raw, endpoint, "executor-0", 1, "1");
    test_raw_handshake(&raw, PROTO_ROLE_GATEWAY);
    proto_body_t body = {.stop = {.grace_ns = 0}};
    test_raw_send(&raw, PROTO_KIND_STOP, 1, 0, &body);
    TEST_PUMP_UNTIL(refused() == 1, 2000);
    ck_assert_int_eq(test_status(shell), STATUS_OK);
    ck_assert(!actor_shell_is_draining(shell));
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_DRAIN), 0);
    test_raw_close(&raw);
    end();
}
END_TEST

/* More than four parts, or one beyond the limit of the link. */
START_TEST(too_many_and_too_large_parts_are_refused)
{
    start("", 0);
    start_friend();
    test_raw_t raw;
    test_reply_t reply;
    test_raw_open(&raw, endpoint, "executor-0", 1, "1");
    test_raw_handshake(&raw, PROTO_ROLE_GATEWAY);
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = PROTO_KIND_FINISH,
                             .epoch = 1,
                             .sequence = 1};
    uint8_t bytes[PROTO_HEADER_SIZE_MAX];
    static uint8_t large[300 * 1024];
    static const uint8_t body[] = {0x92, 0x01, 0x01};
    proto_bytes_t parts[200];
    parts[0] = (proto_bytes_t){bytes, proto_header_encode(&header, bytes)};
    for (uint32_t index = 1; index < 200; index++) {
        parts[index] = (proto_bytes_t){body, sizeof body};
    }
    test_raw_parts(&raw, parts, 4); /* with the routing id: five */
    ck_assert(test_raw_wait(&raw, PROTO_KIND_NAK, 2000, &reply));
    ck_assert_int_eq(reply.body.nak.status, STATUS_ERR_TOO_LARGE);
    header.sequence = 2;
    parts[0].size_bytes = proto_header_encode(&header, bytes);
    test_raw_parts(&raw, parts, 200);
    ck_assert(test_raw_wait(&raw, PROTO_KIND_NAK, 2000, &reply));
    ck_assert_int_eq(reply.body.nak.status, STATUS_ERR_TOO_LARGE);
    /* libzmq itself ends a connection over a part beyond the limit: its sender is gone. */
    parts[1] = (proto_bytes_t){large, sizeof large};
    test_raw_parts(&raw, parts, 2);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_DOWN) == 1, 3000);
    check_friend();
    test_raw_close(&raw);
    end();
}
END_TEST

/* Numbers that were left out mean that something was lost: the link begins anew.  Numbers that
 * come twice are dropped. */
START_TEST(gaps_end_the_link_and_duplicates_are_dropped)
{
    start("", 0);
    test_raw_t raw;
    test_reply_t reply;
    test_raw_open(&raw, endpoint, "executor-0", 1, "1");
    test_raw_handshake(&raw, PROTO_ROLE_GATEWAY);
    proto_body_t body = {.finish = {.token_index = 3}};
    test_raw_send(&raw, PROTO_KIND_FINISH, 1, 1, &body);
    test_raw_send(&raw, PROTO_KIND_FINISH, 1, 1, &body);
    test_raw_send(&raw, PROTO_KIND_FINISH, 2, 2, &body);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_FINISH) == 2, 2000);
    ck_assert_uint_eq(test_core_last(&core, PROTO_KIND_FINISH)->request, 2);
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_PEER_DOWN), 0);
    test_raw_send(&raw, PROTO_KIND_FINISH, 5, 5, &body);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_DOWN) == 1, 2000);
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_FINISH), 2);
    /* What it says now is of a link that is no more. */
    test_raw_send(&raw, PROTO_KIND_FINISH, 6, 6, &body);
    ck_assert(test_raw_wait(&raw, PROTO_KIND_NAK, 2000, &reply));
    ck_assert_int_eq(reply.body.nak.status, STATUS_ERR_STALE);
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_FINISH), 2);
    test_raw_close(&raw);
    end();
}
END_TEST

/* A message of ours that the peer's link could not read never took effect, and both ends may wait
 * for what it would have brought: the link begins anew.  Numbers that the peer does not know, its
 * telemetry, and what its core refuses are no such case. */
START_TEST(nak_of_an_unread_message_ends_the_link)
{
    start("", 0);
    test_raw_t raw;
    test_raw_open(&raw, endpoint, "executor-0", 1, "1");
    test_raw_handshake(&raw, PROTO_ROLE_GATEWAY);
    proto_body_t finish = {.finish = {.token_index = 3}};
    proto_body_t body = {.nak = {.sequence = 1,
                                 .kind = PROTO_KIND_PLAN,
                                 .status = STATUS_ERR_UNSUPPORTED,
                                 .detail = proto_text("not known")}};
    test_raw_send(&raw, PROTO_KIND_NAK, 1, 0, &body);
    body.nak.status = STATUS_ERR_MALFORMED;
    body.nak.kind = PROTO_KIND_HEARTBEAT;
    test_raw_send(&raw, PROTO_KIND_NAK, 2, 0, &body);
    test_raw_send(&raw, PROTO_KIND_FINISH, 3, 1, &finish);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_FINISH) == 1, 2000);
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_PEER_DOWN), 0);
    body.nak.kind = PROTO_KIND_PLAN;
    test_raw_send(&raw, PROTO_KIND_NAK, 4, 0, &body);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_DOWN) == 1, 2000);
    ck_assert_msg(strstr(test_core_last(&core, PROTO_KIND_PEER_DOWN)->detail, "could not read"),
                  "%s", test_core_last(&core, PROTO_KIND_PEER_DOWN)->detail);
    test_raw_close(&raw);
    end();
}
END_TEST

/* A newer incarnation replaces the older one; the older one is refused from then on. */
START_TEST(newer_epoch_replaces_the_older)
{
    start("", 0);
    test_raw_t old;
    test_raw_t new;
    test_reply_t reply;
    test_raw_open(&old, endpoint, "executor-0", 7, "1");
    test_raw_handshake(&old, PROTO_ROLE_GATEWAY);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_UP) == 1, 2000);
    test_raw_open(&new, endpoint, "executor-0", 8, "1");
    test_raw_handshake(&new, PROTO_ROLE_GATEWAY);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_UP) == 2, 2000);
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_PEER_DOWN), 1);
    ck_assert_uint_eq(test_core_last(&core, PROTO_KIND_PEER_DOWN)->epoch, 7);
    ck_assert_uint_eq(test_core_last(&core, PROTO_KIND_PEER_UP)->epoch, 8);
    ck_assert_int_eq(core.events[core.event_count - 1].kind, PROTO_KIND_PEER_UP);

    proto_body_t body = {.finish = {.token_index = 3}};
    test_raw_send(&old, PROTO_KIND_FINISH, 1, 1, &body);
    ck_assert(test_raw_wait(&old, PROTO_KIND_NAK, 2000, &reply));
    ck_assert_int_eq(reply.body.nak.status, STATUS_ERR_STALE);
    test_raw_hello(&old, PROTO_ROLE_GATEWAY, PROTO_SCHEMA_VERSION, "");
    ck_assert(test_raw_wait(&old, PROTO_KIND_REFUSE, 2000, &reply));
    ck_assert_int_eq(reply.body.refuse.status, STATUS_ERR_STALE);
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_FINISH), 0);
    test_raw_send(&new, PROTO_KIND_FINISH, 1, 2, &body);
    ck_assert(test_raw_wait(&new, PROTO_KIND_FINISHED, 2000, &reply));
    test_raw_close(&old);
    test_raw_close(&new);
    end();
}
END_TEST

/* An old incarnation's message over the new one's link has no effect either. */
START_TEST(old_epoch_in_a_header_is_refused)
{
    start("", 0);
    test_raw_t raw;
    test_reply_t reply;
    test_raw_open(&raw, endpoint, "executor-0", 8, "1");
    test_raw_handshake(&raw, PROTO_ROLE_GATEWAY);
    proto_body_t body = {.finish = {.token_index = 3}};
    raw.epoch = 7;
    test_raw_send(&raw, PROTO_KIND_FINISH, 1, 1, &body);
    ck_assert(test_raw_wait(&raw, PROTO_KIND_NAK, 2000, &reply));
    ck_assert_int_eq(reply.body.nak.status, STATUS_ERR_STALE);
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_FINISH), 0);
    /* A NAK neither, and it takes no number away: the next message still counts. */
    proto_body_t nak = {.nak = {.status = STATUS_ERR_UNSUPPORTED}};
    test_raw_send(&raw, PROTO_KIND_NAK, 1, 0, &nak);
    raw.epoch = 8;
    test_raw_send(&raw, PROTO_KIND_FINISH, 1, 1, &body);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_FINISH) == 1, 2000);
    test_raw_close(&raw);
    end();
}
END_TEST

/* A second socket with the routing id of a linked peer gets nothing of what is meant for it. */
START_TEST(impostor_reads_nothing)
{
    start("", 0);
    test_raw_t peer;
    test_raw_t impostor;
    test_reply_t reply;
    test_raw_open(&peer, endpoint, "executor-0", 7, "1");
    test_raw_handshake(&peer, PROTO_ROLE_GATEWAY);
    TEST_PUMP_UNTIL(core.peer != ACTOR_PEER_NONE, 2000);
    test_raw_open(&impostor, endpoint, "executor-0", 7, "1");
    test_raw_hello(&impostor, PROTO_ROLE_GATEWAY, PROTO_SCHEMA_VERSION, "");
    for (uint64_t index = 1; index <= 20; index++) {
        proto_body_t body = {.finish = {.token_index = 1}};
        actor_shell_inject(shell, PROTO_KIND_FINISH, index, &body);
        ck_assert(test_raw_wait(&peer, PROTO_KIND_FINISH, 2000, &reply));
        ck_assert_uint_eq(reply.header.request, index);
    }
    char byte;
    ck_assert_int_eq(zmq_recv(impostor.socket, &byte, 1, ZMQ_DONTWAIT), -1);
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_PEER_UP), 1);
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_PEER_DOWN), 0);
    test_raw_close(&impostor);
    test_raw_close(&peer);
    end();
}
END_TEST

/* One message of a raw peer, and of how many parts it was. */
static bool
receive_parts(test_raw_t *raw, uint8_t out[8192], size_t *size, uint32_t *part_count)
{
    int got = zmq_recv(raw->socket, out, 8192, ZMQ_DONTWAIT);
    if (got < 0) {
        return false;
    }
    *size = (size_t)got;
    *part_count = 1;
    int more = 0;
    size_t more_size = sizeof more;
    while (zmq_getsockopt(raw->socket, ZMQ_RCVMORE, &more, &more_size) == 0 && more != 0) {
        uint8_t rest[8192];
        ck_assert_int_ge(zmq_recv(raw->socket, rest, sizeof rest, 0), 0);
        ++*part_count;
    }
    return true;
}

/* What a role may not say is refused, counted and answered, whoever says it; what it may say comes
 * through, in order. */
START_TEST(a_message_of_a_wrong_role_is_refused)
{
    start("", 0);
    start_friend();
    test_raw_t raw;
    test_reply_t reply;
    test_raw_open(&raw, endpoint, "executor-0", 7, "1");
    test_raw_handshake(&raw, PROTO_ROLE_EXECUTOR);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_UP) == 2, 2000);
    uint64_t before = refused();
    proto_body_t finish = {.finish = {.token_index = 1}};
    test_raw_send(&raw, PROTO_KIND_FINISH, 1, 77, &finish);
    ck_assert(test_raw_wait(&raw, PROTO_KIND_NAK, 2000, &reply));
    ck_assert_int_eq(reply.body.nak.status, STATUS_ERR_REFUSED);
    ck_assert_uint_eq(reply.body.nak.sequence, 1);
    ck_assert_uint_eq(reply.header.request, 0);
    ck_assert_uint_eq(refused(), before + 1);
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_FINISH), 0);
    proto_body_t result = {.step_result = {.step = 1}};
    test_raw_send(&raw, PROTO_KIND_STEP_RESULT, 2, 0, &result);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_STEP_RESULT) == 1, 2000);
    check_friend();
    test_raw_close(&raw);
    end();
}
END_TEST

/* libzmq aborts a process that reads a message of several parts while its connection ends: once
 * both ends have said that they can, a message is one part. */
START_TEST(messages_are_one_part_between_those_who_can)
{
    start("", 0);
    test_raw_t raw;
    test_reply_t reply;
    test_raw_open(&raw, endpoint, "executor-0", 7, "1");
    proto_body_t hello = {.hello = {.version_min = PROTO_SCHEMA_VERSION,
                                    .version_max = PROTO_SCHEMA_VERSION,
                                    .role = PROTO_ROLE_GATEWAY,
                                    .name = proto_text("executor-0"),
                                    .epoch = 7,
                                    .packs = true}};
    test_raw_send(&raw, PROTO_KIND_HELLO, 0, 0, &hello);
    ck_assert(test_raw_wait(&raw, PROTO_KIND_INIT, 3000, &reply));
    ck_assert(reply.body.init.packs);
    proto_body_t ready = {.ready = {.epoch = 7}};
    test_raw_send(&raw, PROTO_KIND_READY, 0, 0, &ready);
    TEST_PUMP_UNTIL(core.peer != ACTOR_PEER_NONE, 2000);
    proto_body_t body = {.finish = {.token_index = 1}};
    actor_shell_inject(shell, PROTO_KIND_FINISH, 3, &body);
    static uint8_t bytes[8192];
    uint64_t until_ns = test_now_ns() + UINT64_C(3000000000);
    proto_header_t header = {.kind = PROTO_KIND_NONE};
    while (header.kind != PROTO_KIND_FINISH) {
        ck_assert(test_now_ns() < until_ns);
        size_t size = 0;
        uint32_t part_count = 0;
        test_pump();
        if (receive_parts(&raw, bytes, &size, &part_count)) {
            proto_parts_t parts;
            ck_assert_uint_eq(part_count, 1);
            ck_assert_int_eq(proto_frame_unpack((proto_bytes_t){bytes, size}, &parts), STATUS_OK);
            ck_assert_int_eq(proto_header_decode(parts.header, &header), STATUS_OK);
        }
    }
    ck_assert_uint_eq(header.request, 3);
    test_raw_close(&raw);
    end();
}
END_TEST

/* An end of the last version hears nothing that it cannot read; a frame is taken from anybody, and
 * one with a wrong table is a header that does not decode. */
START_TEST(older_ends_get_several_parts)
{
    start("", 0);
    start_friend();
    test_raw_t raw;
    test_raw_open(&raw, endpoint, "executor-0", 7, "1");
    test_raw_handshake(&raw, PROTO_ROLE_GATEWAY); /* its HELLO says nothing of packing */
    test_reply_t reply;
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = PROTO_KIND_FINISH,
                             .epoch = 7,
                             .sequence = 1,
                             .request = 5};
    uint8_t header_bytes[PROTO_HEADER_SIZE_MAX];
    static const uint8_t body[] = {0x91, 0x01};
    proto_parts_t parts = {{header_bytes, proto_header_encode(&header, header_bytes)},
                           {body, sizeof body},
                           {NULL, 0}};
    uint8_t frame[512];
    proto_bytes_t part = {frame, proto_frame_size(&parts)};
    proto_frame_pack(&parts, frame);
    test_raw_parts(&raw, &part, 1);
    ck_assert(test_raw_wait(&raw, PROTO_KIND_FINISHED, 3000, &reply)); /* reads two parts */
    ck_assert_uint_eq(reply.header.request, 5);
    uint64_t before = refused();
    frame[8]++;
    test_raw_parts(&raw, &part, 1);
    ck_assert(test_raw_wait(&raw, PROTO_KIND_NAK, 3000, &reply));
    ck_assert_int_eq(reply.body.nak.status, STATUS_ERR_MALFORMED);
    ck_assert_uint_eq(refused(), before + 1);
    check_friend();
    test_raw_close(&raw);
    end();
}
END_TEST

/* A stranger that never shook hands is told so, and not more often than is good. */
START_TEST(strangers_are_answered_with_measure)
{
    start("", 0);
    test_raw_t raw;
    test_reply_t reply;
    test_raw_open(&raw, endpoint, "executor-0", 1, "1");
    proto_body_t body = {.finish = {.token_index = 3}};
    for (uint64_t index = 1; index <= 500; index++) {
        test_raw_send(&raw, PROTO_KIND_FINISH, index, index, &body);
    }
    TEST_PUMP_UNTIL(refused() == 500, 3000);
    uint32_t answers = 0;
    while (test_raw_wait(&raw, PROTO_KIND_NAK, 100, &reply)) {
        ck_assert_int_eq(reply.body.nak.status, STATUS_ERR_STALE);
        answers++;
    }
    ck_assert_uint_ge(answers, 10);
    ck_assert_uint_le(answers, 150);
    ck_assert_uint_eq(core.event_count, 0);
    test_raw_close(&raw);
    end();
}
END_TEST

/* A peer that reads nothing is failed after a bounded wait; nobody else waits for it. */
START_TEST(full_queue_fails_its_peer_only)
{
    start("", 4);
    start_friend();
    test_raw_t raw;
    test_raw_open(&raw, endpoint, "executor-0", 1, "1");
    test_raw_handshake(&raw, PROTO_ROLE_GATEWAY);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_UP) == 2, 2000);
    uint32_t peer = core.peer;
    static uint32_t blocks[16384];
    uint64_t begin_ns = test_now_ns();
    uint32_t sent = 0;
    while (test_core_count(&core, PROTO_KIND_PEER_DOWN) == 0) {
        ck_assert_uint_lt(sent, 2000);
        proto_body_t body = {.plan = {.step = ++sent, .patch_blocks = {blocks, 16384}}};
        core.peer = peer;
        actor_shell_inject(shell, PROTO_KIND_PLAN, 0, &body);
    }
    ck_assert_uint_gt(sent, 4);
    ck_assert_ptr_nonnull(
        strstr(test_core_last(&core, PROTO_KIND_PEER_DOWN)->detail, "queue was full"));
    ck_assert_uint_lt(test_now_ns() - begin_ns, UINT64_C(3000000000));
    check_friend();
    test_raw_close(&raw);
    end();
}
END_TEST

/* A raw supervisor: a ROUTER that answers the control link of a shell. */
typedef struct {
    void *context;
    void *socket;
    uint8_t id[128];
    size_t id_size;
    uint64_t sequence;
} boss_t;

static void
boss_send(boss_t *boss, proto_kind_t kind, uint64_t sequence, const proto_body_t *body)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION,
                             .kind = kind,
                             .epoch = 99,
                             .sequence = sequence};
    uint8_t header_bytes[PROTO_HEADER_SIZE_MAX];
    uint8_t bytes[4096];
    size_t size = 0;
    size_t blob_size = 0;
    size_t header_size = proto_header_encode(&header, header_bytes);
    ck_assert_int_eq(proto_body_encode(kind, body, bytes, sizeof bytes, &size, NULL, 0, &blob_size),
                     STATUS_OK);
    ck_assert_int_ge(zmq_send(boss->socket, boss->id, boss->id_size, ZMQ_SNDMORE), 0);
    ck_assert_int_ge(zmq_send(boss->socket, header_bytes, header_size, ZMQ_SNDMORE), 0);
    ck_assert_int_ge(zmq_send(boss->socket, bytes, size, 0), 0);
}

/* The next message of the shell, or PROTO_KIND_NONE. */
static proto_kind_t
boss_receive(boss_t *boss)
{
    uint8_t bytes[4096];
    int size = zmq_recv(boss->socket, boss->id, sizeof boss->id, ZMQ_DONTWAIT);
    if (size < 0) {
        return PROTO_KIND_NONE;
    }
    boss->id_size = (size_t)size;
    size = zmq_recv(boss->socket, bytes, sizeof bytes, 0);
    proto_header_t header;
    ck_assert_int_eq(proto_header_decode((proto_bytes_t){bytes, (size_t)size}, &header), STATUS_OK);
    ck_assert_int_ge(zmq_recv(boss->socket, bytes, sizeof bytes, 0), 0);
    return header.kind;
}

static void
boss_wait(boss_t *boss, proto_kind_t kind)
{
    uint64_t until_ns = test_now_ns() + UINT64_C(3000000000);
    while (boss_receive(boss) != kind) {
        ck_assert_uint_lt(test_now_ns(), until_ns);
        test_pump();
    }
}

/* The supervisor's word that a process ended is enough: its links are down at once, and its
 * incarnation stays out.  STOP drains; the supervisor's own end ends the actor. */
START_TEST(supervisor_is_obeyed)
{
    boss_t boss = {.context = zmq_ctx_new()};
    char control[128];
    (void)snprintf(control, sizeof control, "%s", test_endpoint("supervisor"));
    boss.socket = zmq_socket(boss.context, ZMQ_ROUTER);
    int zero = 0;
    ck_assert_int_eq(zmq_setsockopt(boss.socket, ZMQ_LINGER, &zero, sizeof zero), 0);
    ck_assert_int_eq(zmq_bind(boss.socket, control), 0);
    test_core_init(&core, PROTO_ROLE_SCHEDULER, "scheduler");
    (void)snprintf(endpoint, sizeof endpoint, "%s", test_endpoint("links"));
    actor_link_options_t link = {.endpoint = endpoint, .bind = true};
    shell = test_shell_with(&core,
                            (actor_shell_options_t){.name = "scheduler",
                                                    .epoch = 50,
                                                    .supervisor_endpoint = control},
                            &link);
    actor_shell_report(shell, ACTOR_STATE_READY, 0, 0, "ready");
    boss_wait(&boss, PROTO_KIND_HELLO);
    proto_body_t init = {.init = {.version = PROTO_SCHEMA_VERSION,
                                  .role = PROTO_ROLE_SUPERVISOR,
                                  .name = proto_text("supervisor"),
                                  .epoch = 99,
                                  .heartbeat_ns = 250000000}};
    boss_send(&boss, PROTO_KIND_INIT, 0, &init);
    boss_wait(&boss, PROTO_KIND_READY);
    boss_wait(&boss, PROTO_KIND_ACTOR_STATE);
    boss_wait(&boss, PROTO_KIND_STATS);
    boss_wait(&boss, PROTO_KIND_HEARTBEAT);

    test_raw_t raw;
    test_reply_t reply;
    test_raw_open(&raw, endpoint, "executor-0", 7, "1");
    test_raw_handshake(&raw, PROTO_ROLE_GATEWAY);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_UP) == 1, 2000);
    proto_body_t down = {.down = {.role = PROTO_ROLE_GATEWAY,
                                  .name = proto_text("executor-0"),
                                  .epoch = 7,
                                  .detail = proto_text("signal 9")}};
    uint64_t begin_ns = test_now_ns();
    boss_send(&boss, PROTO_KIND_DOWN, 1, &down);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_DOWN) == 1, 1000);
    ck_assert_uint_lt(test_now_ns() - begin_ns, 50000000);
    test_raw_hello(&raw, PROTO_ROLE_GATEWAY, PROTO_SCHEMA_VERSION, "");
    ck_assert(test_raw_wait(&raw, PROTO_KIND_REFUSE, 2000, &reply));
    ck_assert_int_eq(reply.body.refuse.status, STATUS_ERR_STALE);
    test_raw_close(&raw);

    core.busy = true;
    proto_body_t stop = {.stop = {.grace_ns = UINT64_C(60000000000)}};
    boss_send(&boss, PROTO_KIND_STOP, 2, &stop);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_DRAIN) == 1, 1000);
    ck_assert_int_eq(test_status(shell), STATUS_OK);
    core.busy = false;
    TEST_PUMP_UNTIL(test_status(shell) == STATUS_END, 1000);
    test_shell_end(&shell);
    boss_wait(&boss, PROTO_KIND_BYE);
    (void)zmq_close(boss.socket);
    (void)zmq_ctx_term(boss.context);
    test_dir_remove();
}
END_TEST

/* Noise on the socket itself: connections that say nothing of ZeroMQ. */
START_TEST(plain_connections_do_no_harm)
{
    test_core_init(&core, PROTO_ROLE_SCHEDULER, "scheduler");
    actor_link_options_t link = {.endpoint = "tcp://127.0.0.1:*", .bind = true};
    shell = test_shell(&core, "scheduler", 50, &link);
    (void)snprintf(endpoint, sizeof endpoint, "%s", actor_shell_endpoint(shell, 0));
    start_friend();
    char command[256];
    (void)snprintf(command, sizeof command,
                   "for i in 1 2 3 4 5 6 7 8 9 10; do exec 3<>/dev/tcp/127.0.0.1/%s || exit 1; "
                   "printf 'GET / HTTP/1.1\\r\\n\\r\\n' >&3; exec 3>&-; done",
                   strrchr(endpoint, ':') + 1);
    char shell_command[320];
    (void)snprintf(shell_command, sizeof shell_command, "bash -c \"%s\"", command);
    ck_assert_int_eq(system(shell_command), 0);
    check_friend();
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_PEER_DOWN), 0);
    end();
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.links");
    TCase *test = tcase_create("links");
    tcase_set_timeout(test, 30);
    tcase_add_test(test, other_version_is_refused_with_both_values);
    tcase_add_test(test, other_fingerprint_is_refused_with_both_values);
    tcase_add_test(test, refused_connector_waits);
    tcase_add_loop_test(test, stale_connector_ends_without_a_supervisor, 0, 2);
    tcase_add_test(test, names_must_match_the_routing_id);
    tcase_add_test(test, garbage_is_refused_and_others_go_on);
    tcase_add_test(test, bad_bodies_are_refused_by_number);
    tcase_add_test(test, unknown_and_local_kinds_are_refused);
    tcase_add_test(test, stop_from_a_peer_is_refused);
    tcase_add_test(test, too_many_and_too_large_parts_are_refused);
    tcase_add_test(test, gaps_end_the_link_and_duplicates_are_dropped);
    tcase_add_test(test, nak_of_an_unread_message_ends_the_link);
    tcase_add_test(test, newer_epoch_replaces_the_older);
    tcase_add_test(test, old_epoch_in_a_header_is_refused);
    tcase_add_test(test, impostor_reads_nothing);
    tcase_add_test(test, a_message_of_a_wrong_role_is_refused);
    tcase_add_test(test, messages_are_one_part_between_those_who_can);
    tcase_add_test(test, older_ends_get_several_parts);
    tcase_add_test(test, strangers_are_answered_with_measure);
    tcase_add_test(test, full_queue_fails_its_peer_only);
    tcase_add_test(test, supervisor_is_obeyed);
    tcase_add_test(test, plain_connections_do_no_harm);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
