/* What the machine can do at most. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench_pd.h"

uint64_t
bench_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int
compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double
bench_median(double *values, uint32_t count)
{
    return bench_percentile(values, count, 50);
}

double
bench_percentile(double *values, uint32_t count, double percent)
{
    qsort(values, count, sizeof *values, compare);
    uint32_t at = (uint32_t)(percent / 100 * count);
    return values[at < count ? at : count - 1];
}

double
bench_floor_memcpy(uint8_t *to, const uint8_t *from, size_t size_bytes)
{
    uint64_t begin_ns = bench_now_ns();
    memcpy(to, from, size_bytes);
    return (double)(bench_now_ns() - begin_ns) / 1e9;
}

static void
stop_if(int condition, const char *what)
{
    if (condition) {
        perror(what);
        _exit(1);
    }
}

static void
write_all(uint16_t port, const uint8_t *from, size_t size_bytes)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = port,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    stop_if(connect(fd, (struct sockaddr *)&address, sizeof address) != 0, "connect");
    for (size_t done = 0; done < size_bytes;) {
        size_t size = size_bytes - done < (1u << 20) ? size_bytes - done : 1u << 20;
        ssize_t put = write(fd, from + done, size);
        stop_if(put <= 0, "write");
        done += (size_t)put;
    }
    char last;
    (void)!read(fd, &last, 1); /* until the reader has it all */
    _exit(0);
}

double
bench_floor_tcp(uint8_t *to, const uint8_t *from, size_t size_bytes)
{
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    stop_if(bind(server, (struct sockaddr *)&address, sizeof address) != 0, "bind");
    stop_if(listen(server, 1) != 0, "listen");
    stop_if(getsockname(server, (struct sockaddr *)&address, &length) != 0, "getsockname");
    pid_t child = fork();
    stop_if(child < 0, "fork");
    if (child == 0) {
        write_all(address.sin_port, from, size_bytes);
    }
    int fd = accept(server, NULL, NULL);
    stop_if(fd < 0, "accept");
    uint64_t begin_ns = bench_now_ns();
    for (size_t done = 0; done < size_bytes;) {
        ssize_t got = read(fd, to + done, size_bytes - done);
        stop_if(got <= 0, "read");
        done += (size_t)got;
    }
    double seconds = (double)(bench_now_ns() - begin_ns) / 1e9;
    (void)close(fd);
    (void)close(server);
    (void)waitpid(child, NULL, 0);
    return seconds;
}
