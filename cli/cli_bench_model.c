/* Where `onepath bench` asks, and for which model. */
#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cli_bench.h"

enum { ASK_SECONDS = 10, PROBE_MS = 1000 };

proto_status_t
cli_bench_url_parse(const char *text, cli_bench_url_t *out)
{
    struct evhttp_uri *uri = evhttp_uri_parse(text);
    proto_status_t status = STATUS_ERR_INVALID;
    if (uri == NULL) {
        return status;
    }
    const char *scheme = evhttp_uri_get_scheme(uri);
    const char *host = evhttp_uri_get_host(uri);
    const char *path = evhttp_uri_get_path(uri);
    int port = evhttp_uri_get_port(uri);
    size_t path_len = path != NULL ? strlen(path) : 0;
    if (path_len > 0 && path[path_len - 1] == '/') {
        path_len--;
    }
    if (path_len >= 3 && memcmp(path + path_len - 3, "/v1", 3) == 0) {
        path_len -= 3;
    }
    if (scheme != NULL && strcmp(scheme, "http") == 0 && host != NULL && host[0] != '\0' &&
        strlen(host) < sizeof out->host && path_len < sizeof out->path && port != 0 &&
        evhttp_uri_get_query(uri) == NULL && evhttp_uri_get_userinfo(uri) == NULL) {
        (void)snprintf(out->host, sizeof out->host, "%s", host);
        size_t host_len = strlen(host);
        bool is_bracketed = host[0] == '[' && host[host_len - 1] == ']';
        (void)snprintf(out->address, sizeof out->address, "%.*s",
                       (int)(is_bracketed ? host_len - 2 : host_len), host + is_bracketed);
        (void)snprintf(out->path, sizeof out->path, "%.*s", (int)path_len,
                       path != NULL ? path : "");
        out->port = port < 0 ? 80 : (uint16_t)port;
        status = STATUS_OK;
    }
    evhttp_uri_free(uri);
    return status;
}

void
cli_bench_probe(const cli_bench_url_t *url, char why[CLI_BENCH_WHY_SIZE_BYTES])
{
    char port[8];
    (void)snprintf(port, sizeof port, "%u", (unsigned)url->port);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int code = getaddrinfo(url->address, port, &hints, &found);
    if (code != 0) {
        (void)snprintf(why, CLI_BENCH_WHY_SIZE_BYTES, "%s", gai_strerror(code));
        return;
    }
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = 0;
    if (fd < 0) {
        error = errno;
    } else if (connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
        error = errno;
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        if (error == EINPROGRESS) {
            socklen_t size_bytes = sizeof error;
            error = ETIMEDOUT;
            if (poll(&wait, 1, PROBE_MS) > 0) {
                (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size_bytes);
            }
        }
    }
    (void)snprintf(why, CLI_BENCH_WHY_SIZE_BYTES, "%s",
                   error != 0 ? strerror(error) : "the connection was lost");
    if (fd >= 0) {
        (void)close(fd);
    }
    freeaddrinfo(found);
}

typedef struct {
    const cli_bench_url_t *url;
    struct event_base *base;
    proto_status_t status;
    char *out;
    size_t capacity_bytes;
    char *why;
} question_t;

static void
on_models(struct evhttp_request *request, void *context)
{
    question_t *question = context;
    int code = request != NULL ? evhttp_request_get_response_code(request) : 0;
    if (code == 0) {
        cli_bench_probe(question->url, question->why);
        question->status = STATUS_ERR_PEER_LOST;
        (void)event_base_loopbreak(question->base);
        return;
    }
    struct evbuffer *input = evhttp_request_get_input_buffer(request);
    size_t size_bytes = evbuffer_get_length(input);
    const char *body = (const char *)evbuffer_pullup(input, -1);
    json_t *answer = json_loadb(body != NULL ? body : "", size_bytes, 0, NULL);
    const json_t *first = json_array_get(json_object_get(answer, "data"), 0);
    const char *model = json_string_value(json_object_get(first, "id"));
    if (code == 200 && model != NULL && strlen(model) < question->capacity_bytes) {
        (void)snprintf(question->out, question->capacity_bytes, "%s", model);
        question->status = STATUS_OK;
    } else {
        (void)snprintf(question->why, CLI_BENCH_WHY_SIZE_BYTES,
                       "/v1/models answered %d without a model", code);
        question->status = STATUS_ERR_REFUSED;
    }
    json_decref(answer);
    (void)event_base_loopbreak(question->base);
}

proto_status_t
cli_bench_ask_model(const cli_bench_plan_t *plan, char *out, size_t capacity_bytes,
                    char why[CLI_BENCH_WHY_SIZE_BYTES])
{
    question_t question = {.url = &plan->url,
                           .base = event_base_new(),
                           .status = STATUS_ERR_PEER_LOST,
                           .out = out,
                           .capacity_bytes = capacity_bytes,
                           .why = why};
    (void)snprintf(why, CLI_BENCH_WHY_SIZE_BYTES, "no answer");
    if (question.base == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    struct evhttp_connection *connection =
        evhttp_connection_base_new(question.base, NULL, plan->url.address, plan->url.port);
    struct evhttp_request *request = evhttp_request_new(on_models, &question);
    if (connection != NULL && request != NULL) {
        char host[280];
        char key[512];
        char path[300];
        (void)snprintf(host, sizeof host, "%s:%u", plan->url.host, (unsigned)plan->url.port);
        (void)snprintf(key, sizeof key, "Bearer %s", plan->key != NULL ? plan->key : "");
        (void)snprintf(path, sizeof path, "%s/v1/models", plan->url.path);
        struct evkeyvalq *heads = evhttp_request_get_output_headers(request);
        (void)evhttp_add_header(heads, "Host", host);
        (void)evhttp_add_header(heads, "Connection", "close");
        if (plan->key != NULL) {
            (void)evhttp_add_header(heads, "Authorization", key);
        }
        evhttp_connection_set_timeout(connection, ASK_SECONDS);
        if (evhttp_make_request(connection, request, EVHTTP_REQ_GET, path) == 0) {
            (void)event_base_dispatch(question.base);
        }
    } else if (request != NULL) {
        evhttp_request_free(request);
    }
    if (connection != NULL) {
        evhttp_connection_free(connection);
    }
    event_base_free(question.base);
    return question.status;
}
