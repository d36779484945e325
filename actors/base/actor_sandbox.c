#include "actor_sandbox.h"

#include <errno.h>
#include <linux/capability.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "actor_log.h"

/* A sanitizer looks at the process from a child of it, which is what the list is against. */
#ifdef __has_feature /* of clang; gcc says it with macros */
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(SANITIZED) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

/* What `strace -f` shows of a gateway and a scheduler that start, answer, stream, report and end,
 * and the calls that other versions of the same libraries make instead.  tests/process/hardening.py
 * runs a node for which any other call is the end. */
const char *const actor_sandbox_allowed[] = {
    /* memory and threads */
    "brk", "mmap", "mremap", "munmap", "mprotect", "madvise", "mlock", "munlock", "mincore",
    "msync", "futex", "futex_waitv", "set_robust_list", "get_robust_list", "rseq",
    "set_tid_address", "membarrier", "sched_yield", "sched_getaffinity", "sched_setaffinity",
    "sched_getparam", "sched_getscheduler", "sched_setscheduler", "sched_get_priority_max",
    "sched_get_priority_min", "arch_prctl", "getcpu", "exit", "exit_group", "restart_syscall",
    /* signals */
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigtimedwait", "rt_sigpending",
    "rt_sigsuspend", "sigaltstack", "signalfd4",
    /* time */
    "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time",
    "timerfd_create", "timerfd_settime", "timerfd_gettime", "getitimer", "setitimer", "times",
    /* waiting */
    "poll", "ppoll", "select", "pselect6", "epoll_create", "epoll_create1", "epoll_ctl",
    "epoll_wait", "epoll_pwait", "epoll_pwait2", "eventfd2", "pipe2", "pipe",
    /* sockets */
    "socket", "socketpair", "bind", "listen", "accept", "accept4", "connect", "getsockname",
    "getpeername", "getsockopt", "setsockopt", "shutdown", "sendto", "recvfrom", "sendmsg",
    "recvmsg", "sendmmsg", "recvmmsg",
    /* files: the model, the message log, the sockets' folder, /proc/self */
    "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "open",
    "openat", "close", "close_range", "lseek", "stat", "fstat", "lstat", "newfstatat", "statx",
    "statfs", "fstatfs", "access", "faccessat", "faccessat2", "readlink", "readlinkat", "getcwd",
    "getdents64", "fcntl", "dup", "dup2", "dup3", "ftruncate", "fallocate", "fsync", "fdatasync",
    "sync_file_range", "rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir", "mkdirat",
    "rmdir", "flock", "fadvise64", "memfd_create", "umask", "chmod", "fchmod", "fchmodat", "chdir",
    /* who am I */
    "getpid", "gettid", "getppid", "getuid", "geteuid", "getgid", "getegid", "getresuid",
    "getresgid", "getgroups", "getrusage", "getrlimit", "setrlimit", "prlimit64", "sysinfo",
    "uname", "getrandom", "getpgrp", "getpgid", "getsid", NULL};

/* No program of ours has a reason for these, now or in any version of its libraries. */
static const char *const forbidden[] = {"execve",
                                        "execveat",
                                        "fork",
                                        "vfork",
                                        "ptrace",
                                        "process_vm_readv",
                                        "process_vm_writev",
                                        "init_module",
                                        "finit_module",
                                        "delete_module",
                                        "kexec_load",
                                        "kexec_file_load",
                                        "bpf",
                                        "perf_event_open",
                                        "unshare",
                                        "setns",
                                        "mount",
                                        "umount2",
                                        "pivot_root",
                                        "chroot",
                                        "move_mount",
                                        "open_tree",
                                        "fsopen",
                                        "keyctl",
                                        "add_key",
                                        "request_key",
                                        "userfaultfd",
                                        "io_uring_setup",
                                        "io_uring_enter",
                                        "io_uring_register",
                                        "reboot",
                                        "swapon",
                                        "swapoff",
                                        "setuid",
                                        "setgid",
                                        "setreuid",
                                        "setregid",
                                        "setresuid",
                                        "setresgid",
                                        "acct",
                                        "quotactl",
                                        "settimeofday",
                                        "clock_settime",
                                        "adjtimex",
                                        "iopl",
                                        "ioperm",
                                        "personality",
                                        NULL};

actor_sandbox_t
actor_sandbox_mode(const char *text)
{
    if (strcmp(text, "off") == 0) {
        return ACTOR_SANDBOX_OFF;
    }
    return strcmp(text, "kill") == 0 ? ACTOR_SANDBOX_KILL : ACTOR_SANDBOX_DENY;
}

static int
add_names(scmp_filter_ctx filter, uint32_t action, const char *const *names)
{
    int rc = 0;
    for (; *names != NULL && rc == 0; names++) {
        int number = seccomp_syscall_resolve_name(*names);
        /* An older library does not know a newer call: it is not allowed then. */
        rc = number == __NR_SCMP_ERROR ? 0 : seccomp_rule_add(filter, action, number, 0);
    }
    return rc;
}

/* Calls that are allowed with some arguments only. */
static int
add_special(scmp_filter_ctx filter, actor_sandbox_t mode)
{
    const scmp_datum_t self = (scmp_datum_t)getpid();
    /* Threads, not processes.  clone3 hides its flags behind a pointer: glibc then takes clone. */
    int rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
                              SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
    if (rc == 0 && mode == ACTOR_SANDBOX_DENY) {
        rc = seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, SCMP_SYS(clone), 1,
                              SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
    }
    if (rc == 0 && mode == ACTOR_SANDBOX_KILL) {
        rc = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    }
    /* Signals to this process alone: abort, and fault points. */
    if (rc == 0) {
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(kill), 1,
                              SCMP_A0(SCMP_CMP_EQ, self, 0));
    }
    if (rc == 0) {
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1,
                              SCMP_A0(SCMP_CMP_EQ, self, 0));
    }
    /* Terminals and sockets: how large, how much to read.  Nothing of devices. */
    static const unsigned requests[] = {0x5401 /* TCGETS */, 0x5413 /* TIOCGWINSZ */,
                                        0x541b /* FIONREAD */, 0x5421 /* FIONBIO */};
    for (size_t index = 0; index < sizeof requests / sizeof requests[0] && rc == 0; index++) {
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(ioctl), 1,
                              SCMP_A1(SCMP_CMP_EQ, requests[index], 0));
    }
    static const int options[] = {PR_SET_NAME,     PR_GET_NAME,     PR_SET_PDEATHSIG,
                                  PR_SET_DUMPABLE, PR_GET_DUMPABLE, PR_SET_VMA};
    for (size_t index = 0; index < sizeof options / sizeof options[0] && rc == 0; index++) {
        rc = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(prctl), 1,
                              SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)options[index], 0));
    }
    return rc;
}

/* Gives up what root has beside its name: capabilities now, and those that a program could bring.
 */
static void
drop_capabilities(void)
{
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; capability++) {
        (void)prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
    }
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};
    (void)syscall(SYS_capset, &header, none);
}

proto_status_t
actor_sandbox_enter(actor_sandbox_t mode)
{
    if (mode == ACTOR_SANDBOX_OFF || sanitized) {
        return STATUS_OK;
    }
    drop_capabilities();
    int rc = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    scmp_filter_ctx filter =
        seccomp_init(mode == ACTOR_SANDBOX_KILL ? SCMP_ACT_KILL_PROCESS : SCMP_ACT_ERRNO(ENOSYS));
    if (rc == 0 && filter != NULL) {
        rc = add_names(filter, SCMP_ACT_ALLOW, actor_sandbox_allowed);
    }
    if (rc == 0 && filter != NULL && mode == ACTOR_SANDBOX_DENY) {
        rc = add_names(filter, SCMP_ACT_KILL_PROCESS, forbidden);
    }
    if (rc == 0 && filter != NULL) {
        rc = add_special(filter, mode);
    }
    if (rc == 0 && filter != NULL) {
        (void)seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2); /* a tree, not a list */
        rc = seccomp_load(filter);
    }
    bool done = rc == 0 && filter != NULL;
    if (filter != NULL) {
        seccomp_release(filter);
    }
    if (!done) {
        actor_log(ACTOR_LOG_ERROR, "sandbox.failed", 0, ACTOR_LOG_FIELDS(actor_log_i64("rc", rc)),
                  "the kernel takes no list of allowed system calls (%s); --sandbox off runs "
                  "without one",
                  strerror(rc < 0 ? -rc : errno));
        return STATUS_ERR_CONFIG;
    }
    return STATUS_OK;
}
