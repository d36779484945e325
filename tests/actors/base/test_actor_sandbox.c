/* The list of system calls: what is on it works, what is forbidden ends the process. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor_sandbox.h"

enum {
    REFUSED = 3, /* exit codes of the children */
    DONE = 4,
};

/* Runs `act` in a child that is confined; returns its wait status. */
static int
confined(actor_sandbox_t mode, int (*act)(void))
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        if (actor_sandbox_enter(mode) != STATUS_OK) {
            _exit(99);
        }
        _exit(act());
    }
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return status;
}

static int
start_program(void)
{
    char *const words[] = {"/bin/true", NULL};
    (void)execve(words[0], words, NULL);
    return REFUSED;
}

static int
start_process(void)
{
    return fork() < 0 ? REFUSED : DONE;
}

static int
trace(void)
{
    return ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0 ? REFUSED : DONE;
}

static int
leave_namespace(void)
{
    return syscall(SYS_unshare, 0) != 0 ? REFUSED : DONE;
}

static int
kill_another(void)
{
    return kill(getppid(), 0) != 0 ? REFUSED : DONE;
}

static int
ask_for_a_rare_one(void)
{
    /* Not listed, not forbidden by name. */
    return syscall(SYS_mknodat, AT_FDCWD, "/tmp/x", 0, 0) != 0 && errno == ENOSYS ? REFUSED : DONE;
}

static void *
thread(void *context)
{
    *(int *)context = 7;
    return NULL;
}

static int
work(void)
{
    pthread_t other;
    int seen = 0;
    char byte;
    int pair[2];
    bool good = pthread_create(&other, NULL, thread, &seen) == 0 && pthread_join(other, NULL) == 0;
    good = good && seen == 7 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0;
    good = good && send(pair[0], "x", 1, 0) == 1 && recv(pair[1], &byte, 1, 0) == 1;
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    good = good && fd >= 0 && read(fd, &byte, 1) == 1 && kill(getpid(), 0) == 0;
    free(malloc(8 << 20));
    return good ? DONE : REFUSED;
}

/* Each of these ends the process at once, in both modes. */
START_TEST(a_forbidden_call_ends_the_process)
{
    static int (*const acts[])(void) = {start_program, start_process, trace, leave_namespace};
    static const actor_sandbox_t modes[] = {ACTOR_SANDBOX_DENY, ACTOR_SANDBOX_KILL};
    for (size_t mode = 0; mode < 2; mode++) {
        for (size_t act = 0; act < sizeof acts / sizeof acts[0]; act++) {
            int status = confined(modes[mode], acts[act]);
            ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS,
                          "mode %zu, act %zu: %x", mode, act, (unsigned)status);
        }
    }
}
END_TEST

/* What nobody thought of is an error of the call where the node serves, and found in tests. */
START_TEST(a_call_that_is_not_listed_fails_or_kills)
{
    static int (*const acts[])(void) = {kill_another, ask_for_a_rare_one};
    for (size_t act = 0; act < sizeof acts / sizeof acts[0]; act++) {
        int status = confined(ACTOR_SANDBOX_DENY, acts[act]);
        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == REFUSED);
        status = confined(ACTOR_SANDBOX_KILL, acts[act]);
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
    }
}
END_TEST

/* Threads, sockets, files, memory and signals to itself go on as before. */
START_TEST(what_is_listed_works)
{
    int status = confined(ACTOR_SANDBOX_KILL, work);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == DONE, "%x", (unsigned)status);
    status = confined(ACTOR_SANDBOX_DENY, work);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == DONE, "%x", (unsigned)status);
}
END_TEST

/* A name with a typing mistake would allow nothing, and nobody would notice. */
START_TEST(every_listed_name_is_a_system_call)
{
    for (const char *const *name = actor_sandbox_allowed; *name != NULL; name++) {
        ck_assert_msg(seccomp_syscall_resolve_name(*name) != __NR_SCMP_ERROR, "%s", *name);
    }
    ck_assert_int_eq(actor_sandbox_mode("off"), ACTOR_SANDBOX_OFF);
    ck_assert_int_eq(actor_sandbox_mode("kill"), ACTOR_SANDBOX_KILL);
    ck_assert_int_eq(actor_sandbox_mode("deny"), ACTOR_SANDBOX_DENY);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.sandbox");
    TCase *test = tcase_create("sandbox");
    tcase_add_test(test, a_forbidden_call_ends_the_process);
    tcase_add_test(test, a_call_that_is_not_listed_fails_or_kills);
    tcase_add_test(test, what_is_listed_works);
    tcase_add_test(test, every_listed_name_is_a_system_call);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
