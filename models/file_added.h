/* file_added.h - finds added tokens in a text: leftmost, then longest.  Internal to models/.
 * A trie over bytes; filled once, then constant; any thread. */
#ifndef FILE_ADDED_H
#define FILE_ADDED_H

#include "file_support.h"
#include "file_vocab.h"

typedef struct {
    uint32_t child;   /* 0 = none */
    uint32_t sibling; /* 0 = none */
    int32_t id;       /* FILE_ID_NONE: no token ends here */
    uint8_t byte;
    bool is_special;
} file_added_node_t;

typedef struct {
    file_added_node_t *nodes; /* [count_max]; 0 is the root */
    uint32_t count;
    uint32_t count_max;
    uint8_t starts[256]; /* 1 if a token begins with this byte */
} file_added_t;

enum { FILE_ADDED_NODE_COUNT_MAX = 1 << 22 };

void file_added_fini(file_added_t *self);

/* STATUS_ERR_TOO_LARGE over FILE_ADDED_NODE_COUNT_MAX. */
MUST_CHECK proto_status_t file_added_insert(file_added_t *self, const uint8_t *bytes,
                                            uint32_t size_bytes, int32_t id, bool is_special);

/* The next token in text[from..size): its id with *begin and *end, or FILE_ID_NONE. */
int32_t file_added_find(const file_added_t *self, const uint8_t *text, size_t size_bytes,
                        size_t from, bool with_special, size_t *begin, size_t *end);

#endif
