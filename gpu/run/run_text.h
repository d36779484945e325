/* run_text.h - text for people that grows in a buffer of fixed size, and says so when it was cut.
 */
#ifndef RUN_TEXT_H
#define RUN_TEXT_H

#include <stdarg.h>
#include <stddef.h>

/* Appends to the NUL-terminated `text` of size_bytes (at least 8).  What does not fit is cut, and
 * the text ends with "..."; nothing is appended to it after that. */
void run_text_add(char *text, size_t size_bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void run_text_vadd(char *text, size_t size_bytes, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

#endif
