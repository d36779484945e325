#include "cli_http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto_clock.h"

enum { LINE_SIZE_BYTES = 64 * 1024 };

typedef struct {
    int fd;
    uint64_t start_ns;
    uint64_t deadline_ns;
    char line[LINE_SIZE_BYTES];
    size_t line_len;
    bool done;
    cli_http_answer_t *answer;
    FILE *out;
} exchange_t;

static uint64_t
now_ns(void)
{
    return proto_clock_monotonic_ns(proto_clock_system());
}

static proto_status_t
send_all(int fd, const char *data, size_t size_bytes)
{
    while (size_bytes > 0) {
        ssize_t sent = send(fd, data, size_bytes, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EINTR) {
                continue;
            }
            return STATUS_ERR_PEER_LOST;
        }
        data += sent;
        size_bytes -= (size_t)sent;
    }
    return STATUS_OK;
}

static proto_status_t
send_request(int fd, uint16_t port, const char *question, uint32_t tokens_max)
{
    json_t *body = json_pack("{s:[{s:s,s:s}],s:b,s:i,s:f,s:{s:b}}", "messages", "role", "user",
                             "content", question, "stream", 1, "max_tokens", (int)tokens_max,
                             "temperature", 0.0, "stream_options", "include_usage", 1);
    char *text = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (text == NULL) {
        return STATUS_ERR_INVALID; /* the question is not UTF-8 */
    }
    char head[256];
    int head_len = snprintf(head, sizeof head,
                            "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%u\r\n"
                            "Content-Type: application/json\r\nContent-Length: %zu\r\n"
                            "Connection: close\r\n\r\n",
                            (unsigned)port, strlen(text));
    proto_status_t status = send_all(fd, head, (size_t)head_len);
    if (status == STATUS_OK) {
        status = send_all(fd, text, strlen(text));
    }
    free(text);
    return status;
}

static void
take_usage(cli_http_answer_t *answer, const json_t *usage)
{
    if (json_is_object(usage)) {
        answer->prompt_tokens =
            (uint32_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
        answer->answer_tokens =
            (uint32_t)json_integer_value(json_object_get(usage, "completion_tokens"));
    }
}

/* One `data:` line of the stream, or one line of an error answer. */
static proto_status_t
take_line(exchange_t *exchange)
{
    const char *text = exchange->line;
    if (strncmp(text, "data: ", 6) == 0) {
        text += 6;
    } else if (text[0] != '{') {
        return STATUS_OK; /* headers, chunk sizes, comments */
    }
    if (strcmp(text, "[DONE]") == 0) {
        exchange->done = true;
        return STATUS_OK;
    }
    json_t *chunk = json_loads(text, 0, NULL);
    if (chunk == NULL) {
        return STATUS_ERR_MALFORMED;
    }
    proto_status_t status = STATUS_OK;
    const json_t *error = json_object_get(chunk, "error");
    if (error != NULL) {
        const char *message = json_string_value(json_object_get(error, "message"));
        fprintf(stderr, "\nonepath: the gateway answered: %s\n", message != NULL ? message : text);
        status = STATUS_ERR_REFUSED;
    } else {
        const json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
        const char *piece =
            json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
        if (piece != NULL && piece[0] != '\0') {
            if (exchange->answer->chunk_count++ == 0) {
                exchange->answer->first_ns = now_ns() - exchange->start_ns;
            }
            fputs(piece, exchange->out);
            fflush(exchange->out);
        }
        take_usage(exchange->answer, json_object_get(chunk, "usage"));
    }
    json_decref(chunk);
    return status;
}

static proto_status_t
take_bytes(exchange_t *exchange, const char *data, size_t size_bytes)
{
    for (size_t i = 0; i < size_bytes; i++) {
        if (data[i] != '\n') {
            if (exchange->line_len + 1 >= sizeof exchange->line) {
                return STATUS_ERR_TOO_LARGE;
            }
            exchange->line[exchange->line_len++] = data[i];
            continue;
        }
        if (exchange->line_len > 0 && exchange->line[exchange->line_len - 1] == '\r') {
            exchange->line_len--;
        }
        exchange->line[exchange->line_len] = '\0';
        exchange->line_len = 0;
        proto_status_t status = take_line(exchange);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

static proto_status_t
receive_answer(exchange_t *exchange)
{
    char buffer[4096];
    while (!exchange->done) {
        uint64_t now = now_ns();
        if (now >= exchange->deadline_ns) {
            return STATUS_ERR_DEADLINE;
        }
        struct pollfd poll_fd = {.fd = exchange->fd, .events = POLLIN};
        int ready = poll(&poll_fd, 1, (int)((exchange->deadline_ns - now) / 1000000) + 1);
        if (ready < 0 && errno != EINTR) {
            return STATUS_ERR_IO;
        }
        if (ready <= 0) {
            continue;
        }
        ssize_t got = recv(exchange->fd, buffer, sizeof buffer, 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            /* An error answer has no line end of its own. */
            exchange->line[exchange->line_len] = '\0';
            proto_status_t status = exchange->line_len > 0 ? take_line(exchange) : STATUS_OK;
            return status != STATUS_OK ? status : STATUS_ERR_PEER_LOST;
        }
        proto_status_t status = take_bytes(exchange, buffer, (size_t)got);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

proto_status_t
cli_http_ask(uint16_t port, const char *question, uint32_t tokens_max, uint64_t timeout_ns,
             FILE *out, cli_http_answer_t *answer)
{
    static exchange_t exchange; /* one question at a time, and too large for a stack */
    memset(&exchange, 0, sizeof exchange);
    memset(answer, 0, sizeof *answer);
    exchange.answer = answer;
    exchange.out = out;
    exchange.start_ns = now_ns();
    exchange.deadline_ns = exchange.start_ns + timeout_ns;
    exchange.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (exchange.fd < 0) {
        return STATUS_ERR_IO;
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    proto_status_t status = STATUS_ERR_PEER_LOST;
    if (connect(exchange.fd, (const struct sockaddr *)&address, sizeof address) == 0) {
        status = send_request(exchange.fd, port, question, tokens_max);
    }
    if (status == STATUS_OK) {
        status = receive_answer(&exchange);
    }
    answer->total_ns = now_ns() - exchange.start_ns;
    close(exchange.fd);
    return status;
}
