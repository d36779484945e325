/* gateway_fixture.c - see the header. */
#include "gateway_fixture.h"

#include <check.h>
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zmq.h>

#include "actor_log.h"
#include "fake_text.h"

enum { WAIT_NS_5S = 5 };

fixture_t fixture;

/* gcc says it with macros, clang with a question. */
#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#elif __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

#ifdef __SANITIZE_THREAD__
/* libzmq and libevent are not instrumented: what they do inside looks like races. */
const char *__tsan_default_options(void);
const char *
__tsan_default_options(void)
{
    return "ignore_noninstrumented_modules=1";
}
#endif

static pthread_t thread;
static bool running;
static atomic_int stop;
static int log_fd = -1;
static char folder[64];
static char endpoint[128];
static char log_text[1 << 20];
static const int32_t hello[] = {FAKE_HELLO, FAKE_WORLD, '!'};

void
fixture_setup(void)
{
    memset(&fixture, 0, sizeof fixture);
    atomic_store(&stop, ACTOR_GATEWAY_RUN);
    (void)snprintf(folder, sizeof folder, "/tmp/onepath-gateway-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(endpoint, sizeof endpoint, "ipc://%s/scheduler", folder);
    log_fd = memfd_create("log", MFD_CLOEXEC);
    ck_assert_int_ge(log_fd, 0);
    actor_log_options_t log = {.actor = "gateway", .format = ACTOR_LOG_FORMAT_JSON, .fd = log_fd};
    actor_log_configure(&log);
    fixture.options = (actor_gateway_options_t){
        .scheduler_endpoint = endpoint,
        .ring_fd = -1,
        .stop = &stop,
        .text = fake_text(),
    };
    fixture.script = (fake_script_t){
        .tokens = hello,
        .token_count = 3,
        .hold_at = FAKE_NEVER,
        .skip_at = FAKE_NEVER,
    };
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* Every allocation of the gateway's own thread is counted, but those that libzmq makes for the
 * bytes of a message that leaves (tests/process/alloc.py draws the same line). */
void *__libc_malloc(size_t size_bytes);
void *__libc_calloc(size_t count, size_t size_bytes);
void *__libc_realloc(void *memory, size_t size_bytes);

static _Thread_local bool counted;
static atomic_uint allocations;

static bool
is_of_zmq(const void *caller)
{
    Dl_info here;
    Dl_info zmq;
    return dladdr(caller, &here) != 0 && dladdr((const void *)(uintptr_t)zmq_version, &zmq) != 0 &&
           here.dli_fbase == zmq.dli_fbase;
}

void *
malloc(size_t size_bytes)
{
    if (counted && !is_of_zmq(__builtin_return_address(0))) {
        atomic_fetch_add(&allocations, 1);
    }
    return __libc_malloc(size_bytes);
}

void *
calloc(size_t count, size_t size_bytes)
{
    atomic_fetch_add(&allocations, counted ? 1 : 0);
    return __libc_calloc(count, size_bytes);
}

void *
realloc(void *memory, size_t size_bytes)
{
    atomic_fetch_add(&allocations, counted ? 1 : 0);
    return __libc_realloc(memory, size_bytes);
}

bool
fixture_allocations(uint32_t *count)
{
    *count = atomic_load(&allocations);
    return true;
}

static void
count_this_thread(void)
{
    counted = true;
}
#else
bool
fixture_allocations(uint32_t *count)
{
    *count = 0;
    return false;
}

static void
count_this_thread(void)
{
}
#endif

static void *
run(void *argument)
{
    (void)argument;
    count_this_thread();
    fixture.exit_code = actor_gateway_run(&fixture.options);
    return NULL;
}

const char *
fixture_log(void)
{
    ssize_t size = pread(log_fd, log_text, sizeof log_text - 1, 0);
    log_text[size > 0 ? size : 0] = '\0';
    return log_text;
}

static void
pause_ms(int ms)
{
    (void)poll(NULL, 0, ms);
}

void
fixture_start(void)
{
    if (!fixture.no_scheduler) {
        fixture.scheduler = fake_scheduler_start(endpoint, &fixture.script);
    }
    ck_assert_int_eq(pthread_create(&thread, NULL, run, NULL), 0);
    running = true;
    uint64_t until = test_now_ns() + WAIT_NS_5S * UINT64_C(1000000000);
    while (fixture.port == 0) {
        const char *at = strstr(fixture_log(), "\"url\":\"http://127.0.0.1:");
        if (at != NULL) {
            fixture.port = (uint16_t)strtoul(at + 24, NULL, 10);
            break;
        }
        ck_assert_msg(test_now_ns() < until, "the gateway does not listen: %s", fixture_log());
        pause_ms(1);
    }
    while (!fixture.no_scheduler && !fixture.script.no_executor) {
        http_reply_t reply;
        fixture_get("/health/ready", &reply);
        int status = reply.status;
        http_reply_free(&reply);
        if (status == 200) {
            break;
        }
        ck_assert_msg(test_now_ns() < until, "the gateway is not ready: %s", fixture_log());
        pause_ms(5);
    }
}

void
fixture_drain(void)
{
    atomic_store(&stop, ACTOR_GATEWAY_DRAIN);
}

void
fixture_stop(void)
{
    if (running) {
        int expected = ACTOR_GATEWAY_RUN;
        (void)atomic_compare_exchange_strong(&stop, &expected, ACTOR_GATEWAY_QUIT);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        running = false;
    }
}

void
fixture_teardown(void)
{
    fixture_stop();
    fake_scheduler_stop(&fixture.scheduler);
    char path[160];
    (void)snprintf(path, sizeof path, "%s/scheduler", folder);
    (void)unlink(path);
    (void)rmdir(folder);
    actor_log_options_t log = {.actor = "gateway"};
    actor_log_configure(&log);
    (void)close(log_fd);
}

void
fixture_post(const char *path, const char *json, http_reply_t *reply)
{
    http_client_t client;
    http_client_open(&client, fixture.port);
    http_client_post(&client, path, json);
    http_client_read(&client, reply, false);
    http_client_close(&client);
}

void
fixture_get(const char *path, http_reply_t *reply)
{
    http_client_t client;
    char head[256];
    http_client_open(&client, fixture.port);
    (void)snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: test\r\n\r\n", path);
    http_client_puts(&client, head);
    http_client_read(&client, reply, false);
    http_client_close(&client);
}

bool
fixture_wait_seen(bool (*done)(const fake_seen_t *seen))
{
    uint64_t until = test_now_ns() + WAIT_NS_5S * UINT64_C(1000000000);
    while (test_now_ns() < until) {
        fake_seen_t seen = fake_scheduler_seen(fixture.scheduler);
        if (done(&seen)) {
            return true;
        }
        pause_ms(1);
    }
    return false;
}
