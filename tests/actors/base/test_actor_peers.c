/* A peer in a process of its own that is killed, held, or starts again: how soon it is noticed and
 * that nothing of its past has an effect. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor_fault.h"
#include "support.h"

enum { DOWN_MS = 250 }; /* 50 ms are the goal; machines that build meanwhile need more */

static test_core_t core;
static actor_shell_t *shell;
static char endpoint[128];

typedef struct {
    bool bind;
    uint64_t epoch;
    const char *fault;
    int gate; /* the peer begins when a byte comes through; -1 = at once */
} peer_t;

/* In the process of the peer: a shell that runs until it is stopped or killed. */
static void
run_peer(void *context)
{
    const peer_t *peer = context;
    static test_core_t peer_core;
    char byte;
    if (peer->gate >= 0 && read(peer->gate, &byte, 1) != 1) {
        _exit(98);
    }
    test_core_init(&peer_core, peer->bind ? PROTO_ROLE_SCHEDULER : PROTO_ROLE_EXECUTOR, "peer");
    if (peer->fault != NULL && actor_fault_arm(peer->fault) != STATUS_OK) {
        _exit(99);
    }
    actor_link_options_t link = {.endpoint = endpoint, .bind = peer->bind};
    actor_shell_t *peer_shell = test_shell(&peer_core, "peer", peer->epoch, &link);
    _exit(actor_shell_run(peer_shell) == STATUS_OK ? 0 : 70);
}

static pid_t
start_peer(bool bind, uint64_t epoch, const char *fault)
{
    static peer_t peer;
    peer = (peer_t){bind, epoch, fault, -1};
    (void)snprintf(endpoint, sizeof endpoint, "%s", test_endpoint("peers"));
    return test_fork(run_peer, &peer);
}

static void
start_shell_with(bool bind, uint64_t heartbeat_ns)
{
    test_core_init(&core, bind ? PROTO_ROLE_SCHEDULER : PROTO_ROLE_EXECUTOR, "subject");
    actor_link_options_t link = {.endpoint = endpoint, .bind = bind};
    shell = test_shell_with(
        &core, (actor_shell_options_t){.name = "subject", .epoch = 1, .heartbeat_ns = heartbeat_ns},
        &link);
    TEST_PUMP_UNTIL(core.peer != ACTOR_PEER_NONE, 3000);
}

static void
start_shell(bool bind)
{
    start_shell_with(bind, 0);
}

static void
end(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    test_shell_end(&shell);
    test_dir_remove();
}

static uint64_t
wait_for_down(uint32_t count, uint32_t ms)
{
    uint64_t begin_ns = test_now_ns();
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_DOWN) == count, ms);
    return test_now_ns() - begin_ns;
}

/* The process is gone, and so is the link, long before a heartbeat is missed. */
START_TEST(killed_connector_is_down_at_once)
{
    pid_t pid = start_peer(false, 5, NULL);
    /* Heartbeats are rare here: it must be the end of the connection that is noticed. */
    start_shell_with(true, UINT64_C(5000000000));
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    uint64_t took_ns = wait_for_down(1, 2000);
    ck_assert_msg(took_ns < DOWN_MS * UINT64_C(1000000), "took %u us", (unsigned)(took_ns / 1000));
    ck_assert_uint_eq(test_core_last(&core, PROTO_KIND_PEER_DOWN)->epoch, 5);
    end(pid);
}
END_TEST

START_TEST(killed_binder_is_down_at_once)
{
    pid_t pid = start_peer(true, 5, NULL);
    start_shell(false);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    uint64_t took_ns = wait_for_down(1, 2000);
    ck_assert_msg(took_ns < DOWN_MS * UINT64_C(1000000), "took %u us", (unsigned)(took_ns / 1000));
    end(pid);
}
END_TEST

/* A process that stands still keeps its connection: only its heartbeats are missing. */
START_TEST(held_connector_is_down_and_comes_back)
{
    pid_t pid = start_peer(false, 5, NULL);
    start_shell(true);
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    uint64_t took_ns = wait_for_down(1, 3000);
    ck_assert_uint_gt(took_ns, UINT64_C(500000000));
    ck_assert_uint_lt(took_ns, UINT64_C(1500000000));
    ck_assert_int_eq(kill(pid, SIGCONT), 0);
    /* What it still says is refused; it has to shake hands again. */
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_UP) == 2, 3000);
    ck_assert_uint_eq(test_core_last(&core, PROTO_KIND_PEER_UP)->epoch, 5);
    proto_body_t body = {.actor_state = {.done_bytes = 1}};
    actor_shell_inject(shell, PROTO_KIND_ACTOR_STATE, 9, &body);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_LINKED) == 1, 2000);
    end(pid);
}
END_TEST

START_TEST(held_binder_is_down_and_comes_back)
{
    pid_t pid = start_peer(true, 5, NULL);
    start_shell(false);
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    uint64_t took_ns = wait_for_down(1, 3000);
    ck_assert_uint_gt(took_ns, UINT64_C(500000000));
    ck_assert_uint_lt(took_ns, UINT64_C(1500000000));
    ck_assert_int_eq(kill(pid, SIGCONT), 0);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_UP) == 2, 3000);
    proto_body_t body = {.actor_state = {.done_bytes = 1}};
    actor_shell_inject(shell, PROTO_KIND_ACTOR_STATE, 9, &body);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_LINKED) == 1, 2000);
    end(pid);
}
END_TEST

/* A pause that is shorter than the limit is no reason to lose a link. */
START_TEST(short_pause_is_forgiven)
{
    pid_t pid = start_peer(false, 5, NULL);
    start_shell(true);
    for (uint32_t round = 0; round < 3; round++) {
        ck_assert_int_eq(kill(pid, SIGSTOP), 0);
        uint64_t until_ns = test_now_ns() + 400000000;
        while (test_now_ns() < until_ns) {
            test_pump();
        }
        ck_assert_int_eq(kill(pid, SIGCONT), 0);
        until_ns = test_now_ns() + 300000000;
        while (test_now_ns() < until_ns) {
            test_pump();
        }
    }
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_PEER_DOWN), 0);
    end(pid);
}
END_TEST

/* The one who stood still itself must not take its peers for dead when it goes on. */
START_TEST(own_pause_is_no_silence_of_others)
{
    pid_t pid = start_peer(false, 5, NULL);
    start_shell(true);
    (void)usleep(800000); /* a step that takes long: heartbeats wait in the queue meanwhile */
    uint64_t until_ns = test_now_ns() + 500000000;
    while (test_now_ns() < until_ns) {
        test_pump();
    }
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_PEER_DOWN), 0);
    end(pid);
}
END_TEST

enum { LIVES = 4 };

static pid_t lives[LIVES];
static int gates[LIVES][2];

/* Forks all lives of a peer before there is a socket; each waits for its turn. */
static void
fork_lives(bool bind)
{
    (void)snprintf(endpoint, sizeof endpoint, "%s", test_endpoint("peers"));
    for (uint32_t life = 0; life < LIVES; life++) {
        static peer_t peer;
        ck_assert_int_eq(pipe(gates[life]), 0);
        peer = (peer_t){bind, 5 + life, NULL, gates[life][0]};
        lives[life] = test_fork(run_peer, &peer);
    }
    ck_assert_int_eq(write(gates[0][1], "x", 1), 1);
}

static void
live_through(bool bind)
{
    fork_lives(bind);
    start_shell(!bind);
    for (uint32_t life = 1; life < LIVES; life++) {
        ck_assert_int_eq(kill(lives[life - 1], SIGKILL), 0);
        ck_assert_int_eq(waitpid(lives[life - 1], NULL, 0), lives[life - 1]);
        ck_assert_int_eq(write(gates[life][1], "x", 1), 1);
        TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_UP) == life + 1, 3000);
        ck_assert_uint_eq(test_core_last(&core, PROTO_KIND_PEER_UP)->epoch, 5 + life);
        ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_PEER_DOWN), life);
        proto_body_t body = {.actor_state = {.done_bytes = life}};
        actor_shell_inject(shell, PROTO_KIND_ACTOR_STATE, life, &body);
        TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_LINKED) == life, 2000);
    }
    end(lives[LIVES - 1]);
}

/* A restarted peer with a higher epoch is a new one, whichever side it is. */
START_TEST(restarted_connector_is_a_new_peer)
{
    live_through(false);
}
END_TEST

/* It binds again where its predecessor left a socket file behind. */
START_TEST(restarted_binder_is_a_new_peer)
{
    live_through(true);
}
END_TEST

/* A message that is lost on its way is missed within a heartbeat, and the link begins anew. */
START_TEST(lost_message_is_noticed)
{
    pid_t pid = start_peer(false, 5, "shell.before_send.LINKED:drop:2");
    start_shell(true);
    for (uint32_t index = 1; index <= 2; index++) {
        proto_body_t body = {.actor_state = {.done_bytes = index}};
        actor_shell_inject(shell, PROTO_KIND_ACTOR_STATE, index, &body);
    }
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_DOWN) == 1, 2000);
    ck_assert_ptr_nonnull(strstr(test_core_last(&core, PROTO_KIND_PEER_DOWN)->detail, "lost"));
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_UP) == 2, 3000);
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_LINKED), 1);
    end(pid);
}
END_TEST

/* A fault point kills a process exactly before it would have answered. */
START_TEST(fault_point_kills_before_the_answer)
{
    pid_t pid = start_peer(false, 5, "shell.before_send.LINKED:kill:3");
    start_shell(true);
    for (uint32_t index = 1; index <= 3; index++) {
        proto_body_t body = {.actor_state = {.done_bytes = index}};
        actor_shell_inject(shell, PROTO_KIND_ACTOR_STATE, index, &body);
        TEST_PUMP_UNTIL(index == 3 || test_core_count(&core, PROTO_KIND_LINKED) == index, 2000);
    }
    (void)wait_for_down(1, 2000);
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_LINKED), 2);
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    test_shell_end(&shell);
    test_dir_remove();
}
END_TEST

/* The loss of a link without which the actor is of no use ends it. */
START_TEST(loss_of_a_required_link_ends_the_actor)
{
    pid_t pid = start_peer(true, 5, NULL);
    test_core_init(&core, PROTO_ROLE_EXECUTOR, "subject");
    actor_link_options_t link = {.endpoint = endpoint, .required = true};
    shell = test_shell(&core, "subject", 1, &link);
    TEST_PUMP_UNTIL(core.peer != ACTOR_PEER_NONE, 3000);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    TEST_PUMP_UNTIL(test_status(shell) == STATUS_ERR_PEER_LOST, 2000);
    end(pid);
}
END_TEST

/* A replaced incarnation that comes back from a long pause finds that it is not wanted. */
START_TEST(fenced_incarnation_ends)
{
    pid_t old = start_peer(false, 5, NULL);
    pid_t new = start_peer(false, 6, NULL);
    ck_assert_int_eq(kill(new, SIGSTOP), 0);
    start_shell(true);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_UP) == 1, 3000);
    ck_assert_uint_eq(test_core_last(&core, PROTO_KIND_PEER_UP)->epoch, 5);
    ck_assert_int_eq(kill(old, SIGSTOP), 0);
    ck_assert_int_eq(kill(new, SIGCONT), 0);
    TEST_PUMP_UNTIL(test_core_count(&core, PROTO_KIND_PEER_UP) == 2, 5000);
    ck_assert_uint_eq(test_core_last(&core, PROTO_KIND_PEER_UP)->epoch, 6);
    ck_assert_int_eq(kill(old, SIGCONT), 0);
    int status = 0;
    TEST_PUMP_UNTIL(waitpid(old, &status, WNOHANG) == old, 5000);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 70);
    ck_assert_uint_eq(test_core_count(&core, PROTO_KIND_PEER_UP), 2);
    end(new);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.peers");
    TCase *test = tcase_create("processes");
    tcase_set_timeout(test, 30);
    tcase_add_test(test, killed_connector_is_down_at_once);
    tcase_add_test(test, killed_binder_is_down_at_once);
    tcase_add_test(test, held_connector_is_down_and_comes_back);
    tcase_add_test(test, held_binder_is_down_and_comes_back);
    tcase_add_test(test, short_pause_is_forgiven);
    tcase_add_test(test, own_pause_is_no_silence_of_others);
    tcase_add_test(test, restarted_connector_is_a_new_peer);
    tcase_add_test(test, restarted_binder_is_a_new_peer);
    tcase_add_test(test, lost_message_is_noticed);
    tcase_add_test(test, fault_point_kills_before_the_answer);
    tcase_add_test(test, loss_of_a_required_link_ends_the_actor);
    tcase_add_test(test, fenced_incarnation_ends);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
