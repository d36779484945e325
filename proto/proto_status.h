/* proto_status.h - how a call ended.  Ground floor: every folder may use it.
 *
 * 0 is done; a positive value means "not now" and is no failure; a negative value is a failure,
 * in ranges by what is lost: -1xx the request, -2xx the peer, -3xx the device (a sticky device
 * error: restart the worker), -4xx the process.  Supervision acts on the range. */
#ifndef PROTO_STATUS_H
#define PROTO_STATUS_H

#define MUST_CHECK __attribute__((warn_unused_result))

#define PROTO_STATUS_LIST(STATUS)                                                                  \
    STATUS(OK, 0, "done")                                                                          \
    STATUS(FULL, 1, "no room now; wait for a release")                                             \
    STATUS(AGAIN, 2, "nothing to do now; try later")                                               \
    STATUS(END, 3, "no more items")                                                                \
    STATUS(ERR_INVALID, -100, "a value is outside its range")                                      \
    STATUS(ERR_NOT_FOUND, -101, "no such thing")                                                   \
    STATUS(ERR_TOO_LARGE, -102, "larger than its limit")                                           \
    STATUS(ERR_NEVER_FITS, -103, "can never fit, whatever is freed")                               \
    STATUS(ERR_UNSUPPORTED, -104, "meaningful, but not supported here")                            \
    STATUS(ERR_CANCELLED, -105, "cancelled")                                                       \
    STATUS(ERR_DEADLINE, -106, "its deadline passed")                                              \
    STATUS(ERR_STALE, -107, "names an old step, epoch or generation")                              \
    STATUS(ERR_OVERLOADED, -108, "the queue is full")                                              \
    STATUS(ERR_MALFORMED, -200, "bytes from a peer or file do not decode")                         \
    STATUS(ERR_PEER_LOST, -201, "the peer is gone")                                                \
    STATUS(ERR_VERSION, -202, "no common protocol version")                                        \
    STATUS(ERR_FINGERPRINT, -203, "the peer is configured differently")                            \
    STATUS(ERR_REFUSED, -204, "the peer refused")                                                  \
    STATUS(ERR_DEVICE, -300, "the device failed; restart the worker")                              \
    STATUS(ERR_CAPTURE, -301, "not allowed while a graph is captured")                             \
    STATUS(ERR_NO_MEMORY, -400, "out of memory")                                                   \
    STATUS(ERR_IO, -401, "an operating system call failed")                                        \
    STATUS(ERR_CONFIG, -402, "the configuration is wrong")                                         \
    STATUS(ERR_INTERNAL, -403, "a bug")

typedef enum {
#define PROTO_STATUS_ENUM(name, value, text) STATUS_##name = (value),
    PROTO_STATUS_LIST(PROTO_STATUS_ENUM)
#undef PROTO_STATUS_ENUM
} proto_status_t;

/* The constant's name without the prefix ("ERR_STALE"); "UNKNOWN" for a value not listed. */
const char *proto_status_name(proto_status_t status);

/* The sentence of the list; never NULL. */
const char *proto_status_text(proto_status_t status);

#endif
