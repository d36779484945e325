#include "cli_notify.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto_clock.h"

static struct {
    struct sockaddr_un address;
    socklen_t address_size_bytes; /* 0 = nobody listens */
    int fd;
    uint64_t watchdog_ns; /* between two signs of life; 0 = none are wanted */
    uint64_t told_ns;     /* the last one */
    bool is_ending;
} notify;

/* A full socket loses a line, it never holds the node up. */
static void
tell(const char *text)
{
    if (notify.address_size_bytes > 0) {
        ssize_t sent = sendto(notify.fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL,
                              (const struct sockaddr *)&notify.address, notify.address_size_bytes);
        (void)sent;
    }
}

static uint64_t
number_of(const char *text)
{
    return text != NULL && text[0] >= '1' && text[0] <= '9' ? strtoull(text, NULL, 10) : 0;
}

void
cli_notify_init(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    const char *for_pid = getenv("WATCHDOG_PID");
    uint64_t watchdog_us = number_of(getenv("WATCHDOG_USEC"));
    notify.address_size_bytes = 0;
    /* A path, or @NAME for a name in the kernel. */
    if (path != NULL && (path[0] == '/' || path[0] == '@') && path[1] != '\0' &&
        strlen(path) < sizeof notify.address.sun_path) {
        notify.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        notify.address = (struct sockaddr_un){.sun_family = AF_UNIX};
        memcpy(notify.address.sun_path, path, strlen(path));
        if (path[0] == '@') {
            notify.address.sun_path[0] = '\0';
        }
        notify.address_size_bytes =
            notify.fd >= 0 ? (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)) : 0;
    }
    bool is_ours = for_pid == NULL || number_of(for_pid) == (uint64_t)getpid();
    notify.watchdog_ns = is_ours ? watchdog_us * 1000 / 2 : 0;
    (void)unsetenv("NOTIFY_SOCKET");
    (void)unsetenv("WATCHDOG_USEC");
    (void)unsetenv("WATCHDOG_PID");
}

void
cli_notify_ready(const char *status)
{
    char text[256];
    (void)snprintf(text, sizeof text, "READY=1\nSTATUS=%.200s", status);
    tell(text);
}

void
cli_notify_round(bool is_ending)
{
    if (is_ending && !notify.is_ending) {
        notify.is_ending = true;
        tell("STOPPING=1\nSTATUS=finishing what is open");
    }
    uint64_t now_ns = proto_clock_monotonic_ns(proto_clock_system());
    if (notify.watchdog_ns != 0 && now_ns - notify.told_ns >= notify.watchdog_ns) {
        notify.told_ns = now_ns;
        tell("WATCHDOG=1");
    }
}
