#include "actor_zap.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "actor_log.h"
#include "proto_require.h"

enum {
    ROUND_COUNT_MAX = 64,
    ADDRESS_COUNT = 1, /* parts before the empty one: who asks */
    PART_COUNT_MAX = 12,
    PART_SIZE_MAX = 256,
    KEY_SIZE_BYTES = 32,
};

/* Where each thing is behind the empty part. */
enum {
    AT_VERSION,
    AT_REQUEST_ID,
    AT_DOMAIN,
    AT_ADDRESS,
    AT_ROUTING_ID,
    AT_MECHANISM,
    AT_CREDENTIALS,
    AT_COUNT,
};

const char actor_zap_domain[] = "onepath";

typedef struct {
    uint8_t bytes[PART_COUNT_MAX][PART_SIZE_MAX];
    size_t sizes[PART_COUNT_MAX];
    uint32_t count;
} question_t;

proto_status_t
actor_zap_open(void *context, const actor_keys_t *keys, actor_zap_t *out)
{
    *out = (actor_zap_t){.handle = zmq_socket(context, ZMQ_ROUTER), .fd = -1, .keys = keys};
    if (out->handle == NULL) {
        return STATUS_ERR_IO;
    }
    int linger = 0;
    (void)zmq_setsockopt(out->handle, ZMQ_LINGER, &linger, sizeof linger);
    if (zmq_bind(out->handle, "inproc://zeromq.zap.01") != 0) {
        actor_log(ACTOR_LOG_ERROR, "link.zap", 0, NULL,
                  "cannot check keys: %s; only one actor of a process can have keys",
                  zmq_strerror(zmq_errno()));
        (void)zmq_close(out->handle);
        out->handle = NULL;
        return STATUS_ERR_CONFIG;
    }
    size_t size = sizeof out->fd;
    int rc = zmq_getsockopt(out->handle, ZMQ_FD, &out->fd, &size);
    require(rc == 0);
    return STATUS_OK;
}

void
actor_zap_close(actor_zap_t *self)
{
    if (self->handle != NULL) {
        (void)zmq_close(self->handle);
    }
    self->handle = NULL;
    self->fd = -1;
}

/* Takes one question off the socket; false if there is none. */
static bool
receive(actor_zap_t *self, question_t *out)
{
    out->count = 0;
    int more = 1;
    while (more != 0) {
        uint8_t rest[PART_SIZE_MAX];
        bool keep = out->count < PART_COUNT_MAX;
        int size = zmq_recv(self->handle, keep ? out->bytes[out->count] : rest, PART_SIZE_MAX,
                            ZMQ_DONTWAIT);
        if (size < 0) {
            return false;
        }
        if (keep) {
            /* One that is longer was cut, and so is not what it should be; `size` is that of the
             * whole. */
            out->sizes[out->count++] = size < PART_SIZE_MAX ? (size_t)size : PART_SIZE_MAX;
        }
        size_t more_size = sizeof more;
        if (zmq_getsockopt(self->handle, ZMQ_RCVMORE, &more, &more_size) != 0) {
            return false;
        }
    }
    return true;
}

static bool
part_is(const question_t *question, uint32_t index, const char *text)
{
    return index < question->count && question->sizes[index] == strlen(text) &&
           memcmp(question->bytes[index], text, strlen(text)) == 0;
}

/* The line of the key that asks; ACTOR_KEY_NONE if it may not come in. */
static uint32_t
judge(const actor_zap_t *self, const question_t *question, uint32_t first)
{
    if (question->count != first + AT_COUNT || !part_is(question, first + AT_VERSION, "1.0") ||
        !part_is(question, first + AT_DOMAIN, actor_zap_domain) ||
        !part_is(question, first + AT_MECHANISM, "CURVE") ||
        question->sizes[first + AT_CREDENTIALS] != KEY_SIZE_BYTES) {
        return ACTOR_KEY_NONE;
    }
    char text[ACTOR_KEY_TEXT_SIZE_BYTES];
    (void)zmq_z85_encode(text, question->bytes[first + AT_CREDENTIALS], KEY_SIZE_BYTES);
    return actor_keys_find(self->keys, text);
}

static void
answer(actor_zap_t *self, const question_t *question, uint32_t first, const char *user)
{
    struct {
        const void *data;
        size_t size_bytes;
    } parts[] = {{question->bytes[0], question->sizes[0]},
                 {"", 0},
                 {"1.0", 3},
                 {question->bytes[first + AT_REQUEST_ID], question->sizes[first + AT_REQUEST_ID]},
                 {user != NULL ? "200" : "400", 3},
                 {user != NULL ? "OK" : "this key is not listed",
                  strlen(user != NULL ? "OK" : "this key is not listed")},
                 {user != NULL ? user : "", user != NULL ? strlen(user) : 0},
                 {"", 0}};
    const size_t count = sizeof parts / sizeof parts[0];
    for (size_t index = 0; index < count; index++) {
        int flags = index + 1 < count ? ZMQ_SNDMORE : 0;
        if (zmq_send(self->handle, parts[index].data, parts[index].size_bytes,
                     ZMQ_DONTWAIT | flags) < 0) {
            return; /* who asked is gone */
        }
    }
}

uint32_t
actor_zap_service(actor_zap_t *self)
{
    uint32_t denied = 0;
    question_t question;
    for (uint32_t round = 0;
         self->handle != NULL && round < ROUND_COUNT_MAX && receive(self, &question); round++) {
        const uint32_t first = ADDRESS_COUNT + 1;
        if (question.count < first + AT_REQUEST_ID + 1) {
            continue;
        }
        uint32_t index = judge(self, &question, first);
        bool granted = index != ACTOR_KEY_NONE;
        answer(self, &question, first, granted ? self->keys->peers[index].public_text : NULL);
        self->granted_count += granted ? 1 : 0;
        self->denied_count += granted ? 0 : 1;
        denied += granted ? 0 : 1;
        if (!granted) {
            bool has_address = question.count > first + AT_ADDRESS;
            char address[PART_SIZE_MAX + 1];
            (void)snprintf(address, sizeof address, "%.*s",
                           has_address ? (int)question.sizes[first + AT_ADDRESS] : 0,
                           (const char *)question.bytes[has_address ? first + AT_ADDRESS : 0]);
            actor_log(ACTOR_LOG_WARN, "link.key_refused", 0,
                      ACTOR_LOG_FIELDS(actor_log_str("address", address)),
                      "a key that is not listed may not connect; add it to the file of peers if "
                      "it should");
        }
    }
    return denied;
}
