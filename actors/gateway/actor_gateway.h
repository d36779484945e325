/* actor_gateway.h - the gateway actor: HTTP on one side, the scheduler on the other.
 *
 * One thread runs both: libevent's loop polls the HTTP sockets and the shell's descriptors.  A
 * second thread parses and tokenises large requests; it touches only the job it was given. */
#ifndef ACTOR_GATEWAY_H
#define ACTOR_GATEWAY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "actor_gateway_text.h"

enum {
    ACTOR_GATEWAY_RUN = 0,   /* values of options.stop: go on */
    ACTOR_GATEWAY_DRAIN = 1, /* admit nothing more, finish what runs, end with 0 */
    ACTOR_GATEWAY_QUIT = 2,  /* end now, with 0 */
};

/* A zero means the value in the comment. */
typedef struct {
    /* The actor. */
    const char *name;                /* "gateway" */
    uint64_t epoch;                  /* from the supervisor; made from the time */
    const char *scheduler_endpoint;  /* required: where the scheduler is bound */
    const char *supervisor_endpoint; /* none: runs alone */
    int ring_fd;                     /* -1 = record nothing */
    const atomic_int *stop;          /* ACTOR_GATEWAY_*, set from a signal handler; none */

    /* What is served. */
    const char *model_path;           /* a GGUF file or a folder: its tokenizer and template */
    const char *served_model_name;    /* the checkpoint's own name */
    const char *chat_template;        /* the checkpoint's own: name or file */
    const actor_gateway_text_t *text; /* instead of model_path (tests); lent */
    bool strict_params;               /* an unknown field of a request is a 400 */
    bool no_vllm_names;               /* leave the vllm: names out of /metrics */
    const char *otlp_endpoint;        /* where traces are sent; none */

    /* HTTP. */
    const char *bind_address;          /* "127.0.0.1" */
    uint16_t port;                     /* as given: 0 = choose one and report it */
    const char *api_key_file;          /* the keys of clients, one a line; none: nobody is asked */
    bool insecure_bind;                /* an address of other machines is allowed without keys */
    uint32_t connection_count_max;     /* 2048 */
    uint32_t connection_per_ip_max;    /* connection_count_max */
    uint32_t choice_count_max;         /* choices in flight: 1024 */
    uint32_t body_size_bytes_max;      /* 8 MiB */
    uint32_t backlog_size_bytes_max;   /* unread bytes of one client's answer: 1 MiB */
    uint32_t head_timeout_ms;          /* 5 000 */
    uint32_t body_timeout_ms;          /* 30 000 */
    uint32_t idle_timeout_ms;          /* a connection between two requests: 60 000 */
    uint32_t stall_timeout_ms;         /* a client that reads nothing: 30 000 */
    uint32_t keep_alive_ms;            /* between comment lines while a stream waits: 15 000 */
    uint32_t drain_timeout_ms;         /* 60 000 */
    uint64_t request_timeout_ms;       /* a request's whole life; none */
    uint64_t resume_timeout_ms;        /* open requests wait for another scheduler: 30 000 */
    uint64_t answer_timeout_ms;        /* a scheduler may be silent over them: 120 000 */
    uint64_t history_size_bytes;       /* kept of open requests, to submit them again: 64 MiB */
    uint32_t socket_send_buffer_bytes; /* SO_SNDBUF of clients (tests); the system's */
} actor_gateway_options_t;

/* Runs until the supervisor's STOP, *options->stop, or a failure.  Returns the exit code of the
 * process: 0 asked shutdown, 70 internal failure, 75 temporary (port in use), 78 configuration.
 * The address is reported as "http://HOST:PORT" (actor_shell_report) and logged. */
int actor_gateway_run(const actor_gateway_options_t *options);

#endif
