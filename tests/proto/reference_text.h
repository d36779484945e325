/* reference_text.h - the message reference of docs/protocol.md, from the field tables. */
#ifndef REFERENCE_TEXT_H
#define REFERENCE_TEXT_H

#include <stdio.h>

#define REFERENCE_BEGIN "<!-- messages: begin; written by proto_reference, not by hand -->\n"
#define REFERENCE_END "<!-- messages: end -->\n"

/* Writes what belongs between the two marks. */
void reference_write(FILE *out);

/* Text of a whole file, zero-terminated; NULL if it cannot be read.  free() it. */
char *reference_read(const char *path);

#endif
