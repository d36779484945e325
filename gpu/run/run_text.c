/* Text that says when it was cut. */
#include "run_text.h"

#include <stdio.h>
#include <string.h>

#include "proto_require.h"

static const char cut_mark[] = "...";

void
run_text_vadd(char *text, size_t size_bytes, const char *format, va_list args)
{
    require(size_bytes >= 2 * sizeof cut_mark);
    size_t used = strlen(text);
    require(used < size_bytes);
    int wanted = vsnprintf(text + used, size_bytes - used, format, args);
    if (wanted < 0 || (size_t)wanted >= size_bytes - used) {
        memcpy(text + size_bytes - sizeof cut_mark, cut_mark, sizeof cut_mark);
    }
}

void
run_text_add(char *text, size_t size_bytes, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    run_text_vadd(text, size_bytes, format, args);
    va_end(args);
}
