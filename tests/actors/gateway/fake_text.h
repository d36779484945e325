/* fake_text.h - a tokenizer for tests: one token for each byte, and a few that are awkward on
 * purpose.  Not the product's: that is file_tokenizer.h. */
#ifndef FAKE_TEXT_H
#define FAKE_TEXT_H

#include "actor_gateway_text.h"

enum {
    FAKE_EOS = 256,       /* special; ends a text */
    FAKE_HELLO = 257,     /* "Hello" */
    FAKE_WORLD = 258,     /* " world" */
    FAKE_EURO_HEAD = 259, /* the first two bytes of U+20AC */
    FAKE_EURO_TAIL = 260, /* its last byte */
    FAKE_ST = 261,        /* "ST" */
    FAKE_OP = 262,        /* "OP" */
    FAKE_BAD = 263,       /* a byte that is never UTF-8 */
    FAKE_MARK = 264,      /* special; "<mark>" */
    FAKE_XSTOPY = 265,    /* "xSTOPy": a whole stop string inside one token */
    FAKE_VOCAB = 266,
};

const actor_gateway_text_t *fake_text(void);

#endif
