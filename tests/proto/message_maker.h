/* message_maker.h - bodies of every message from the field tables alone: random but valid values,
 * comparison, and a check that decoded values are in range.  For tests, the corpus and the golden
 * bytes; a field that is added to the list is covered without a change here. */
#ifndef MESSAGE_MAKER_H
#define MESSAGE_MAKER_H

#include <stdbool.h>

#include "proto_codec.h"

enum { MAKER_ARENA_SIZE = 1 << 20 };

typedef struct {
    uint64_t state;       /* of the random sequence */
    uint32_t content_max; /* bytes of STR and BIN, entries of columns */
    size_t used_bytes;
    _Alignas(64) uint8_t arena[MAKER_ARENA_SIZE]; /* what the bodies point at */
} maker_t;

typedef struct {
    size_t body_size_bytes;
    size_t blob_size_bytes;
    _Alignas(64) uint8_t body[1 << 18];
    _Alignas(64) uint8_t blob[1 << 20];
} encoded_t;

/* A new maker; free() it. */
maker_t *maker_new(uint64_t seed, uint32_t content_max);

/* The seed of this run: ONEPATH_SEED or from the clock; printed. */
uint64_t maker_seed(const char *test);

uint64_t maker_random(maker_t *maker);

/* Fills the body of `message`; earlier bodies of this maker lose their content. */
void maker_fill(maker_t *maker, const proto_message_t *message, proto_body_t *body);

/* Encodes; aborts if that fails. */
void maker_encode(const proto_message_t *message, const proto_body_t *body, encoded_t *out);

/* NULL if equal, else the name of the first field that differs. */
const char *maker_difference(const proto_message_t *message, const proto_body_t *a,
                             const proto_body_t *b);

/* NULL if every value is within its limit and every column within the blob and apart from the
 * others; else the name of the field. */
const char *maker_out_of_range(const proto_message_t *message, const proto_body_t *body,
                               proto_bytes_t body_bytes, proto_bytes_t blob);

/* Entry size of a column type; 0 for other types. */
size_t maker_entry_size(proto_field_type_t type);

#endif
