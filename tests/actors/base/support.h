/* support.h - a small core that notes what it is given, a raw peer that may misbehave, and loops
 * with deadlines, for the tests of the shell. */
#ifndef TEST_ACTORS_SUPPORT_H
#define TEST_ACTORS_SUPPORT_H

#include <check.h>
#include <stdbool.h>
#include <sys/types.h>

#include "actor_shell.h"

enum {
    EVENT_COUNT_MAX = 4096,
    SHELL_COUNT_MAX = 4,
};

typedef struct {
    proto_kind_t kind;
    uint32_t from;
    uint64_t request;
    uint64_t time_ns;
    uint64_t epoch; /* of PEER_UP and PEER_DOWN */
    char detail[128];
} test_event_t;

/* Notes every input.  FINISH from a peer is answered with FINISHED, ACTOR_STATE (which every role
 * may send) with LINKED, PLAN with STEP_RESULT; from the own side they are passed on to the peer.
 */
typedef struct {
    actor_core_ops_t ops;
    test_event_t events[EVENT_COUNT_MAX];
    uint32_t event_count;
    uint32_t peer; /* the one that came up last; ACTOR_PEER_NONE when it went */
    uint64_t deadline_ns;
    uint32_t plan_checked; /* columns that held what was sent */
    bool busy;             /* not idle while draining */
    uint64_t emit_local;   /* FINISH from LOCAL is answered with HTTP_END to LOCAL */
} test_core_t;

void test_core_init(test_core_t *self, proto_role_t role, const char *name);
uint32_t test_core_count(const test_core_t *self, proto_kind_t kind);
const test_event_t *test_core_last(const test_core_t *self, proto_kind_t kind);

/* A folder of its own for each test, and an endpoint in it; lent until the next call. */
const char *test_dir(void);
void test_dir_remove(void);
const char *test_endpoint(const char *name);

uint64_t test_now_ns(void);

/* A shell with one link, registered for test_pump(); fails the test if it cannot be made. */
actor_shell_t *test_shell(test_core_t *core, const char *name, uint64_t epoch,
                          const actor_link_options_t *link);
/* With more options: name, epoch, ops, core, links and ring are filled in where they are empty. */
actor_shell_t *test_shell_with(test_core_t *core, actor_shell_options_t options,
                               const actor_link_options_t *link);
void test_shell_end(actor_shell_t **shell);

/* Services every registered shell once and sleeps at most a millisecond. */
void test_pump(void);
/* The status of the last round of a shell; STATUS_OK while it runs. */
proto_status_t test_status(const actor_shell_t *shell);

/* Pumps until the condition holds; fails the test after `ms`. */
#define TEST_PUMP_UNTIL(condition, ms)                                                             \
    do {                                                                                           \
        uint64_t test_until_ns = test_now_ns() + (uint64_t)(ms)*1000000;                           \
        while (!(condition)) {                                                                     \
            ck_assert_msg(test_now_ns() < test_until_ns, "not within %d ms: %s", (int)(ms),        \
                          #condition);                                                             \
            test_pump();                                                                           \
        }                                                                                          \
    } while (0)

/* A peer that speaks bytes. */
typedef struct {
    void *context;
    void *socket;
    uint64_t sequence;
    uint64_t epoch;
    char name[32];
} test_raw_t;

typedef struct {
    bool came;
    proto_header_t header;
    proto_body_t body; /* views into bytes */
    uint8_t bytes[8192];
} test_reply_t;

void test_raw_open(test_raw_t *self, const char *endpoint, const char *name, uint64_t epoch,
                   const char *attempt);
void test_raw_close(test_raw_t *self);
void test_raw_parts(test_raw_t *self, const proto_bytes_t *parts, uint32_t count);
void test_raw_send(test_raw_t *self, proto_kind_t kind, uint64_t sequence, uint64_t request,
                   const proto_body_t *body);
void test_raw_hello(test_raw_t *self, proto_role_t role, uint32_t version, const char *fingerprint);
/* HELLO, INIT, READY. */
void test_raw_handshake(test_raw_t *self, proto_role_t role);
/* Waits for a message of this kind, pumping; others are skipped. */
bool test_raw_wait(test_raw_t *self, proto_kind_t kind, uint32_t ms, test_reply_t *out);

/* Forks a process that runs `body` and never returns; killed at the test's end. */
pid_t test_fork(void (*body)(void *context), void *context);

#endif
