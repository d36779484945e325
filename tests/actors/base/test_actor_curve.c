/* Links over TCP with keys: who is let in, as whom, and what a stranger can do (nothing). */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "actor_roles.h"
#include "actor_secret.h"
#include "actor_zap.h"
#include "support.h"

static test_core_t core;
static test_core_t friend_core;
static actor_shell_t *shell;
static actor_shell_t *friend_shell;
static char endpoint[128];
static char folder[128];
static actor_keys_t scheduler_keys;
static actor_keys_t gateway_keys;

static void
make_keys(void)
{
    (void)snprintf(folder, sizeof folder, "%s/keys", test_dir());
    ck_assert_int_eq(actor_keys_make(folder, PROTO_ROLE_SCHEDULER, "scheduler"), STATUS_OK);
    ck_assert_int_eq(actor_keys_make(folder, PROTO_ROLE_GATEWAY, "gateway"), STATUS_OK);
    ck_assert_int_eq(actor_keys_make(folder, PROTO_ROLE_EXECUTOR, "executor-0"), STATUS_OK);
    ck_assert_int_eq(actor_keys_load(folder, PROTO_ROLE_SCHEDULER, "scheduler", &scheduler_keys),
                     STATUS_OK);
    ck_assert_int_eq(actor_keys_load(folder, PROTO_ROLE_GATEWAY, "gateway", &gateway_keys),
                     STATUS_OK);
}

static void
start(void)
{
    make_keys();
    test_core_init(&core, PROTO_ROLE_SCHEDULER, "scheduler");
    actor_link_options_t link = {.endpoint = "tcp://127.0.0.1:*", .bind = true};
    shell = test_shell_with(
        &core, (actor_shell_options_t){.name = "scheduler", .epoch = 50, .keys = &scheduler_keys},
        &link);
    (void)snprintf(endpoint, sizeof endpoint, "%s", actor_shell_endpoint(shell, 0));
    test_core_init(&friend_core, PROTO_ROLE_GATEWAY, "gateway");
    actor_link_options_t dial = {.endpoint = endpoint, .peer_role = PROTO_ROLE_SCHEDULER};
    friend_shell = test_shell_with(
        &friend_core,
        (actor_shell_options_t){.name = "gateway", .epoch = 60, .keys = &gateway_keys}, &dial);
    TEST_PUMP_UNTIL(friend_core.peer != ACTOR_PEER_NONE && core.peer != ACTOR_PEER_NONE, 5000);
}

static void
check_friend(void)
{
    uint32_t before = test_core_count(&friend_core, PROTO_KIND_FINISHED);
    proto_body_t body = {.finish = {.token_index = 1}};
    actor_shell_inject(friend_shell, PROTO_KIND_FINISH, 1, &body);
    TEST_PUMP_UNTIL(test_core_count(&friend_core, PROTO_KIND_FINISHED) == before + 1, 5000);
    ck_assert_uint_eq(test_core_count(&friend_core, PROTO_KIND_PEER_UP), 1);
    ck_assert_uint_eq(test_core_count(&friend_core, PROTO_KIND_PEER_DOWN), 0);
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

/* Messages that reached the core, those of links that opened included. */
static uint32_t
reached(void)
{
    return core.event_count;
}

/* A raw peer with the key of a file, or with a pair that nobody knows; connects at once. */
static void
raw_open(test_raw_t *raw, const char *name, const char *attempt, const actor_keys_t *keys)
{
    test_raw_open(raw, "inproc://nowhere", name, 7, attempt); /* not yet: the key comes first */
    (void)zmq_disconnect(raw->socket, "inproc://nowhere");
    if (keys != NULL) {
        ck_assert_int_eq(zmq_setsockopt(raw->socket, ZMQ_CURVE_SECRETKEY, keys->secret_text, 40),
                         0);
        ck_assert_int_eq(zmq_setsockopt(raw->socket, ZMQ_CURVE_PUBLICKEY, keys->public_text, 40),
                         0);
        ck_assert_int_eq(zmq_setsockopt(raw->socket, ZMQ_CURVE_SERVERKEY,
                                        scheduler_keys.public_text, 40),
                         0);
    }
    ck_assert_int_eq(zmq_connect(raw->socket, endpoint), 0);
}

/* Nothing comes to it for a while: it was not let in, so that there is nobody to answer. */
static void
hears_nothing(test_raw_t *raw)
{
    char byte;
    uint64_t until_ns = test_now_ns() + UINT64_C(300000000);
    while (test_now_ns() < until_ns) {
        test_pump();
        ck_assert_int_eq(zmq_recv(raw->socket, &byte, 1, ZMQ_DONTWAIT), -1);
    }
}

/* Two actors with keys talk as two without. */
START_TEST(listed_keys_talk)
{
    start();
    for (uint32_t round = 0; round < 20; round++) {
        check_friend();
    }
    end();
}
END_TEST

/* A key that is not in the file of peers, no key at all, and no ZeroMQ at all: nothing of theirs
 * reaches the actor, the refusals are counted, and the others go on. */
START_TEST(a_key_that_is_not_listed_says_nothing)
{
    start();
    uint32_t before = reached();
    uint64_t refused_before = refused();
    actor_keys_t stranger = {.peer_count = 0};
    ck_assert_int_eq(zmq_curve_keypair(stranger.public_text, stranger.secret_text), 0);
    test_raw_t unlisted;
    test_raw_t naked;
    raw_open(&unlisted, "executor-0", "1", &stranger);
    raw_open(&naked, "executor-0", "2", NULL);
    test_raw_hello(&unlisted, PROTO_ROLE_EXECUTOR, PROTO_SCHEMA_VERSION, "");
    test_raw_hello(&naked, PROTO_ROLE_EXECUTOR, PROTO_SCHEMA_VERSION, "");
    TEST_PUMP_UNTIL(refused() > refused_before, 5000);
    for (uint32_t round = 0; round < 10; round++) {
        check_friend();
    }
    hears_nothing(&unlisted);
    hears_nothing(&naked);
    ck_assert_uint_eq(reached() - before, test_core_count(&core, PROTO_KIND_FINISH));
    test_raw_close(&naked);
    test_raw_close(&unlisted);
    end();
}
END_TEST

/* A listed key for another role, or for another name: refused with both told. */
START_TEST(a_key_is_for_one_role_and_one_name)
{
    start();
    actor_keys_t executor_keys;
    ck_assert_int_eq(actor_keys_load(folder, PROTO_ROLE_EXECUTOR, "executor-0", &executor_keys),
                     STATUS_OK);
    static const struct {
        const char *name;
        const char *attempt;
        proto_role_t role;
        bool let_in;
    } cases[] = {{"executor-0", "1", PROTO_ROLE_GATEWAY, false},
                 {"executor-1", "2", PROTO_ROLE_EXECUTOR, false},
                 {"gateway", "3", PROTO_ROLE_GATEWAY, false},
                 {"executor-0", "4", PROTO_ROLE_EXECUTOR, true}};
    for (size_t index = 0; index < sizeof cases / sizeof cases[0]; index++) {
        test_raw_t raw;
        test_reply_t reply;
        raw_open(&raw, cases[index].name, cases[index].attempt, &executor_keys);
        test_raw_hello(&raw, cases[index].role, PROTO_SCHEMA_VERSION, "");
        proto_kind_t kind = cases[index].let_in ? PROTO_KIND_INIT : PROTO_KIND_REFUSE;
        ck_assert_msg(test_raw_wait(&raw, kind, 5000, &reply), "case %zu", index);
        ck_assert(cases[index].let_in || reply.body.refuse.status == STATUS_ERR_REFUSED);
        test_raw_close(&raw);
    }
    check_friend();
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_PEER_UP), 1);
    end();
}
END_TEST

/* An identity belongs to its key: another listed key that uses the routing id of a linked peer,
 * while it is there and after its connection went, gets and says nothing as that peer. */
START_TEST(a_routing_id_belongs_to_its_key)
{
    start();
    actor_keys_t executor_keys;
    ck_assert_int_eq(actor_keys_load(folder, PROTO_ROLE_EXECUTOR, "executor-0", &executor_keys),
                     STATUS_OK);
    test_raw_t peer;
    test_raw_t impostor;
    test_reply_t reply;
    raw_open(&peer, "executor-0", "1", &executor_keys);
    test_raw_handshake(&peer, PROTO_ROLE_EXECUTOR);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_UP) == 2, 5000);
    raw_open(&impostor, "executor-0", "1", &gateway_keys);
    proto_body_t result = {.step_result = {.step = 1}};
    test_raw_send(&impostor, PROTO_KIND_STEP_RESULT, 1, 0, &result);
    ck_assert(!test_raw_wait(&impostor, PROTO_KIND_HEARTBEAT, 300, &reply));
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_STEP_RESULT), 0);
    /* The true one's connection ends: its routing id is free, its link not yet known to be gone. */
    uint64_t refused_before = refused();
    test_raw_close(&peer);
    test_raw_close(&impostor);
    raw_open(&impostor, "executor-0", "1", &gateway_keys);
    test_raw_send(&impostor, PROTO_KIND_STEP_RESULT, 1, 0, &result);
    ck_assert(test_raw_wait(&impostor, PROTO_KIND_NAK, 5000, &reply));
    ck_assert_uint_gt(refused(), refused_before);
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_STEP_RESULT), 0);
    check_friend();
    test_raw_close(&impostor);
    end();
}
END_TEST

/* A connector trusts only the key that is listed for the role that it looks for: a binder with
 * another key cannot even read its HELLO. */
START_TEST(a_binder_with_another_key_is_not_trusted)
{
    make_keys();
    actor_keys_t gateway_as_binder = gateway_keys; /* a listed key, of another role */
    test_core_init(&core, PROTO_ROLE_SCHEDULER, "scheduler");
    actor_link_options_t link = {.endpoint = "tcp://127.0.0.1:*", .bind = true};
    shell = test_shell_with(&core,
                            (actor_shell_options_t){.name = "scheduler",
                                                    .epoch = 50,
                                                    .keys = &gateway_as_binder},
                            &link);
    (void)snprintf(endpoint, sizeof endpoint, "%s", actor_shell_endpoint(shell, 0));
    test_core_init(&friend_core, PROTO_ROLE_GATEWAY, "gateway");
    actor_link_options_t dial = {.endpoint = endpoint, .peer_role = PROTO_ROLE_SCHEDULER};
    friend_shell = test_shell_with(
        &friend_core,
        (actor_shell_options_t){.name = "gateway", .epoch = 60, .keys = &gateway_keys}, &dial);
    uint64_t until_ns = test_now_ns() + UINT64_C(700000000);
    while (test_now_ns() < until_ns) {
        test_pump();
    }
    ck_assert_uint_eq(core.event_count, 0);
    ck_assert_uint_eq(friend_core.event_count, 0);
    end();
}
END_TEST

static int
plain_connect(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)atoi(strrchr(endpoint, ':') + 1))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    (void)connect(fd, (const struct sockaddr *)&address, sizeof address);
    return fd;
}

static uint64_t
resident_kib(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long pages = 0;
    unsigned long resident = 0;
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%lu %lu", &pages, &resident), 2);
    (void)fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE) / 1024;
}

/* Connections that never finish their handshake, or send what is none (CVE-2020-15166): ten
 * thousand come and go, a hundred at a time; the memory stays bounded and the others are served. */
START_TEST(half_open_handshakes_hold_nothing)
{
    start();
    static const char greeting[] = "\xff\0\0\0\0\0\0\0\1\x7f\3";
    uint64_t before_kib = resident_kib();
    int fds[100];
    for (uint32_t round = 0; round < 100; round++) {
        for (uint32_t index = 0; index < 100; index++) {
            fds[index] = plain_connect();
        }
        test_pump();
        for (uint32_t index = 0; index < 100; index++) {
            /* Half a greeting, a wrong one, or silence. */
            const char *text = index % 3 == 0 ? greeting : "GET / HTTP/1.1\r\n\r\n";
            ssize_t put = index % 3 == 2 ? 0 : send(fds[index], text, 11, MSG_NOSIGNAL);
            (void)put;
        }
        if (round % 10 == 0) {
            check_friend(); /* while they are there */
        }
        for (uint32_t index = 0; index < 100; index++) {
            (void)close(fds[index]);
        }
    }
    check_friend();
    uint64_t grown_kib = resident_kib() - before_kib;
#ifndef __SANITIZE_ADDRESS__
    ck_assert_msg(grown_kib < 64 * 1024, "grown by %llu KiB", (unsigned long long)grown_kib);
#endif
    (void)grown_kib;
    end();
}
END_TEST

/* Files of secrets: what others can read or put elsewhere is refused; what is made has mode 0600.
 */
START_TEST(secrets_are_read_only_where_they_are_safe)
{
    make_keys();
    char path[256];
    char other[256];
    char text[4096];
    size_t size = 0;
    struct stat info;
    (void)snprintf(path, sizeof path, "%s/gateway.key", folder);
    (void)snprintf(other, sizeof other, "%s/link.key", folder);
    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_uint_eq(info.st_mode & 07777, 0600);
    ck_assert_int_eq(stat(folder, &info), 0);
    ck_assert_uint_eq(info.st_mode & 07777, 0700);
    ck_assert_int_eq(actor_secret_read(path, text, sizeof text, &size), STATUS_OK);
    static const mode_t bad[] = {0644, 0604, 0620, 0660, 0601, 0777};
    for (size_t index = 0; index < sizeof bad / sizeof bad[0]; index++) {
        ck_assert_int_eq(chmod(path, bad[index]), 0);
        ck_assert_int_eq(actor_secret_read(path, text, sizeof text, &size), STATUS_ERR_CONFIG);
        ck_assert_int_eq(text[0], 0);
    }
    static const mode_t good[] = {0600, 0400, 0440, 0640};
    for (size_t index = 0; index < sizeof good / sizeof good[0]; index++) {
        ck_assert_int_eq(chmod(path, good[index]), 0);
        ck_assert_int_eq(actor_secret_read(path, text, sizeof text, &size), STATUS_OK);
    }
    ck_assert_int_eq(actor_secret_read(path, text, 16, &size), STATUS_ERR_CONFIG);
    ck_assert_int_eq(symlink(path, other), 0);
    ck_assert_int_eq(actor_secret_read(other, text, sizeof text, &size), STATUS_ERR_CONFIG);
    ck_assert_int_eq(actor_secret_read(folder, text, sizeof text, &size), STATUS_ERR_CONFIG);
    ck_assert_int_eq(unlink(other), 0);
    ck_assert_int_eq(mkfifo(other, 0600), 0);
    ck_assert_int_eq(actor_secret_read(other, text, sizeof text, &size), STATUS_ERR_CONFIG);
    /* Nothing that is there is overwritten, and no link is followed. */
    ck_assert_int_eq(actor_keys_make(folder, PROTO_ROLE_GATEWAY, "gateway"), STATUS_ERR_CONFIG);
    ck_assert_int_eq(unlink(other), 0);
    ck_assert_int_eq(symlink("/tmp/onepath-nowhere", other), 0);
    ck_assert_int_eq(actor_keys_make(folder, PROTO_ROLE_GATEWAY, "link"), STATUS_ERR_CONFIG);
    ck_assert_int_ne(access("/tmp/onepath-nowhere", F_OK), 0);
    if (geteuid() == 0) {
        ck_assert_int_eq(chown(path, 65534, 65534), 0);
        ck_assert_int_eq(actor_secret_read(path, text, sizeof text, &size), STATUS_ERR_CONFIG);
    }
    test_dir_remove();
}
END_TEST

/* Lines of the file of peers that say nothing, or say it twice. */
START_TEST(wrong_files_of_peers_are_refused)
{
    make_keys();
    char path[256];
    (void)snprintf(path, sizeof path, "%s/peers", folder);
    char good[1024];
    size_t size = 0;
    ck_assert_int_eq(actor_secret_read(path, good, sizeof good, &size), STATUS_OK);
    const char *wrong[] = {"",
                           "nokey gateway gateway\n",
                           "%s gateway\n",
                           "%s nobody gateway\n",
                           "%s gateway UPPER\n",
                           "%s gateway a b c\n",
                           "%s gateway a\n%s executor b\n"};
    for (size_t index = 0; index < sizeof wrong / sizeof wrong[0]; index++) {
        FILE *file = fopen(path, "we");
        ck_assert_ptr_nonnull(file);
        const char *at = wrong[index];
        for (const char *mark = strstr(at, "%s"); mark != NULL; mark = strstr(at, "%s")) {
            (void)fwrite(at, 1, (size_t)(mark - at), file);
            (void)fputs(gateway_keys.public_text, file);
            at = mark + 2;
        }
        (void)fputs(at, file);
        ck_assert_int_eq(fclose(file), 0);
        actor_keys_t keys;
        ck_assert_msg(actor_keys_load(folder, PROTO_ROLE_GATEWAY, "gateway", &keys) ==
                          STATUS_ERR_CONFIG,
                      "case %zu", index);
    }
    /* Of two schedulers the endpoint says which. */
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    (void)fprintf(file, "# two\n%s scheduler a tcp://10.0.0.1:1\n%s scheduler *\n",
                  gateway_keys.public_text, scheduler_keys.public_text);
    ck_assert_int_eq(fclose(file), 0);
    actor_keys_t keys;
    ck_assert_int_eq(actor_keys_load(folder, PROTO_ROLE_GATEWAY, "gateway", &keys), STATUS_OK);
    ck_assert_uint_eq(keys.peer_count, 2);
    ck_assert_uint_eq(actor_keys_find_binder(&keys, PROTO_ROLE_SCHEDULER, "tcp://10.0.0.1:1"), 0);
    ck_assert_uint_eq(actor_keys_find_binder(&keys, PROTO_ROLE_SCHEDULER, "tcp://10.0.0.2:1"), 1);
    ck_assert_uint_eq(actor_keys_find_binder(&keys, PROTO_ROLE_EXECUTOR, "tcp://10.0.0.1:1"),
                      ACTOR_KEY_NONE);
    ck_assert(actor_keys_fit(&keys, 1, PROTO_ROLE_SCHEDULER, "anything"));
    ck_assert(!actor_keys_fit(&keys, 0, PROTO_ROLE_SCHEDULER, "b"));
    test_dir_remove();
}
END_TEST

/* What other machines reach wants keys, or the words that say otherwise. */
START_TEST(an_open_address_without_keys_is_refused)
{
    make_keys();
    test_core_init(&core, PROTO_ROLE_SCHEDULER, "scheduler");
    static const char *const open[] = {"tcp://*:*", "tcp://0.0.0.0:*", "tcp://[::]:*"};
    for (size_t index = 0; index < sizeof open / sizeof open[0]; index++) {
        actor_link_options_t link = {.endpoint = open[index], .bind = true};
        actor_shell_options_t options = {.name = "scheduler",
                                         .epoch = 1,
                                         .ops = &core.ops,
                                         .core = &core,
                                         .links = &link,
                                         .link_count = 1,
                                         .ring_fd = -1};
        actor_shell_t *made = NULL;
        ck_assert_int_eq(actor_shell_new(&options, &made), STATUS_ERR_CONFIG);
        if (index == 2) {
            continue; /* perhaps there is no IPv6 here */
        }
        options.keys = &scheduler_keys;
        ck_assert_int_eq(actor_shell_new(&options, &made), STATUS_OK);
        actor_shell_destroy(&made, 0);
        options.keys = NULL;
        options.allow_remote = true;
        ck_assert_int_eq(actor_shell_new(&options, &made), STATUS_OK);
        actor_shell_destroy(&made, 0);
    }
    /* To connect elsewhere is no different. */
    actor_link_options_t dial = {.endpoint = "tcp://192.0.2.1:7000"};
    actor_shell_options_t options = {.name = "gateway",
                                     .epoch = 1,
                                     .ops = &core.ops,
                                     .core = &core,
                                     .links = &dial,
                                     .link_count = 1,
                                     .ring_fd = -1};
    actor_shell_t *made = NULL;
    ck_assert_int_eq(actor_shell_new(&options, &made), STATUS_ERR_CONFIG);
    test_dir_remove();
}
END_TEST

static void
knock_as_nobody(void *context)
{
    if (setgid(65534) != 0 || setuid(65534) != 0) {
        _exit(2);
    }
    void *zmq = zmq_ctx_new();
    void *socket = zmq_socket(zmq, ZMQ_DEALER);
    (void)zmq_setsockopt(socket, ZMQ_ROUTING_ID, "gateway.9.1", 11);
    if (zmq_connect(socket, context) != 0) {
        _exit(3);
    }
    (void)zmq_send(socket, "x", 1, 0);
    char byte;
    int timeout_ms = 1000;
    (void)zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
    /* Anything unreadable is answered with NAK, if it is let in. */
    _exit(zmq_recv(socket, &byte, 1, 0) >= 0 ? 1 : 0);
}

/* A Unix socket is for processes of this user (and root) alone, whatever the file's mode says. */
START_TEST(other_users_do_not_get_in)
{
    if (geteuid() != 0) {
        return; /* cannot become another user */
    }
    test_core_init(&core, PROTO_ROLE_SCHEDULER, "scheduler");
    (void)snprintf(endpoint, sizeof endpoint, "%s", test_endpoint("open"));
    actor_link_options_t link = {.endpoint = endpoint, .bind = true};
    shell = test_shell(&core, "scheduler", 50, &link);
    ck_assert_int_eq(chmod(test_dir(), 0711), 0);
    ck_assert_int_eq(chmod(endpoint + strlen("ipc://"), 0666), 0);
    pid_t pid = test_fork(knock_as_nobody, endpoint);
    int code = 0;
    TEST_PUMP_UNTIL(waitpid(pid, &code, WNOHANG) == pid, 10000);
    ck_assert(WIFEXITED(code));
    ck_assert_int_eq(WEXITSTATUS(code), 0);
    ck_assert_uint_eq(core.event_count, 0);
    test_shell_end(&shell);
    /* A folder that others can write to is no place for one. */
    ck_assert_int_eq(chmod(test_dir(), 0777), 0);
    actor_shell_options_t options = {.name = "scheduler",
                                     .epoch = 1,
                                     .ops = &core.ops,
                                     .core = &core,
                                     .links = &link,
                                     .link_count = 1,
                                     .ring_fd = -1};
    ck_assert_int_eq(actor_shell_new(&options, &shell), STATUS_ERR_CONFIG);
    test_dir_remove();
}
END_TEST

/* Every message of the list says who may send it, and who says so is let through. */
START_TEST(every_route_names_its_senders)
{
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (uint32_t index = 0; index < count; index++) {
        if (messages[index].is_wire) {
            ck_assert_msg(actor_roles_of_route(messages[index].route) != 0,
                          "%s: the route '%s' has a word that is no role", messages[index].name,
                          messages[index].route);
        }
    }
    ck_assert(actor_roles_may_send(PROTO_ROLE_GATEWAY, PROTO_KIND_SUBMIT));
    ck_assert(!actor_roles_may_send(PROTO_ROLE_EXECUTOR, PROTO_KIND_SUBMIT));
    ck_assert(!actor_roles_may_send(PROTO_ROLE_GATEWAY, PROTO_KIND_PLAN));
    ck_assert(actor_roles_may_send(PROTO_ROLE_CLIENT, PROTO_KIND_COMMAND));
    ck_assert(actor_roles_may_send(PROTO_ROLE_SUPERVISOR, PROTO_KIND_COMMAND));
    ck_assert(!actor_roles_may_send(PROTO_ROLE_GATEWAY, PROTO_KIND_COMMAND));
    ck_assert(!actor_roles_may_send(PROTO_ROLE_EXECUTOR, PROTO_KIND_STOP));
    ck_assert(actor_roles_may_send(PROTO_ROLE_EXECUTOR, PROTO_KIND_HEARTBEAT));
    ck_assert_uint_eq(actor_roles_of_route("gateway -> nobody"), 0);
    ck_assert_uint_eq(actor_roles_of_route("executor or drafter -> kv-transfer"),
                      1U << PROTO_ROLE_EXECUTOR | 1U << PROTO_ROLE_DRAFTER);
    ck_assert_uint_eq(actor_roles_of_route("gateway <-> scheduler"),
                      1U << PROTO_ROLE_GATEWAY | 1U << PROTO_ROLE_SCHEDULER);
}
END_TEST

/* Only libzmq itself asks that way, or who shares the process. */
START_TEST(a_question_with_a_part_too_long_is_answered_no_with_what_was_read)
{
    enum { ASKED_SIZE = 1000, READ_SIZE = 256 };
    uint8_t part[ASKED_SIZE];
    memset(part, 'x', sizeof part);
    void *context = zmq_ctx_new();
    actor_zap_t zap;
    ck_assert_int_eq(actor_zap_open(context, &scheduler_keys, &zap), STATUS_OK);
    void *asking = zmq_socket(context, ZMQ_DEALER);
    int timeout_ms = 5000;
    ck_assert_int_eq(zmq_setsockopt(asking, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms), 0);
    ck_assert_int_eq(zmq_connect(asking, "inproc://zeromq.zap.01"), 0);
    ck_assert_int_eq(zmq_send(asking, "", 0, ZMQ_SNDMORE), 0);
    ck_assert_int_eq(zmq_send(asking, "1.0", 3, ZMQ_SNDMORE), 3);
    ck_assert_int_eq(zmq_send(asking, part, ASKED_SIZE, ZMQ_SNDMORE), ASKED_SIZE); /* its id */
    ck_assert_int_eq(zmq_send(asking, "onepath", 7, ZMQ_SNDMORE), 7);
    ck_assert_int_eq(zmq_send(asking, part, ASKED_SIZE, 0), ASKED_SIZE); /* its address */
    for (int round = 0; round < 5000 && zap.denied_count == 0; round++) {
        (void)actor_zap_service(&zap);
        (void)usleep(1000);
    }
    ck_assert_uint_eq(zap.denied_count, 1);
    ck_assert_int_eq(zmq_recv(asking, part, sizeof part, 0), 0);
    ck_assert_int_eq(zmq_recv(asking, part, sizeof part, 0), 3);
    ck_assert_int_eq(zmq_recv(asking, part, sizeof part, 0), READ_SIZE);
    ck_assert_int_eq(zmq_recv(asking, part, sizeof part, 0), 3);
    ck_assert_mem_eq(part, "400", 3);
    (void)zmq_close(asking);
    actor_zap_close(&zap);
    (void)zmq_ctx_term(context);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.curve");
    TCase *test = tcase_create("curve");
    tcase_set_timeout(test, 60);
    tcase_add_test(test, listed_keys_talk);
    tcase_add_test(test, a_key_that_is_not_listed_says_nothing);
    tcase_add_test(test, a_key_is_for_one_role_and_one_name);
    tcase_add_test(test, a_routing_id_belongs_to_its_key);
    tcase_add_test(test, a_binder_with_another_key_is_not_trusted);
    tcase_add_test(test, half_open_handshakes_hold_nothing);
    tcase_add_test(test, secrets_are_read_only_where_they_are_safe);
    tcase_add_test(test, wrong_files_of_peers_are_refused);
    tcase_add_test(test, an_open_address_without_keys_is_refused);
    tcase_add_test(test, other_users_do_not_get_in);
    tcase_add_test(test, every_route_names_its_senders);
    tcase_add_test(test, a_question_with_a_part_too_long_is_answered_no_with_what_was_read);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
