/* actor_executor_queue.h - encoded commands from the shell's thread to the device thread.
 *
 * A ring of bytes, made once and touched only as far as it fills: an empty queue starts again at
 * its begin.  It has no lock: its owner's lock covers every call, but what actor_executor_queue_
 * front() lent may be read without it until the pop. */
#ifndef ACTOR_EXECUTOR_QUEUE_H
#define ACTOR_EXECUTOR_QUEUE_H

#include <stdbool.h>

#include "actor_core.h"

typedef struct {
    proto_kind_t kind;
    size_t body_size_bytes;
    size_t blob_size_bytes;
    size_t size_bytes; /* of the whole record, this head included */
} actor_executor_record_t;

typedef struct {
    uint8_t *memory; /* 64-byte aligned */
    size_t capacity_bytes;
    size_t head;  /* oldest record */
    size_t tail;  /* where the next one goes */
    size_t wrap;  /* where the records before the wrap end */
    size_t count; /* records */
} actor_executor_queue_t;

MUST_CHECK proto_status_t actor_executor_queue_init(actor_executor_queue_t *self,
                                                    size_t capacity_bytes);
void actor_executor_queue_fini(actor_executor_queue_t *self);

/* Copies a command in; false if there is no room now. */
MUST_CHECK bool actor_executor_queue_push(actor_executor_queue_t *self,
                                          const actor_emission_t *command);
/* The oldest command, or NULL. */
const actor_executor_record_t *actor_executor_queue_front(const actor_executor_queue_t *self);
void actor_executor_queue_pop(actor_executor_queue_t *self);

/* The parts of a record; the blob is 64-byte aligned. */
proto_bytes_t actor_executor_record_body(const actor_executor_record_t *record);
proto_bytes_t actor_executor_record_blob(const actor_executor_record_t *record);

#endif
