/* proto_reference FILE: writes the message reference between the marks of FILE (docs/protocol.md).
 * Without FILE: prints it. */
#include <stdlib.h>
#include <string.h>

#include "reference_text.h"

int
main(int argument_count, char **arguments)
{
    if (argument_count < 2) {
        reference_write(stdout);
        return 0;
    }
    char *text = reference_read(arguments[1]);
    char *begin = text != NULL ? strstr(text, REFERENCE_BEGIN) : NULL;
    char *end = begin != NULL ? strstr(begin, REFERENCE_END) : NULL;
    if (end == NULL) {
        (void)fprintf(stderr, "%s: cannot be read, or the marks are missing\n", arguments[1]);
        free(text);
        return 1;
    }
    FILE *out = fopen(arguments[1], "wb");
    if (out == NULL) {
        perror(arguments[1]);
        free(text);
        return 1;
    }
    size_t before = (size_t)(begin - text) + strlen(REFERENCE_BEGIN);
    int failed = fwrite(text, 1, before, out) != before;
    reference_write(out);
    failed |= fputs(end, out) < 0;
    failed |= fclose(out) != 0;
    free(text);
    return failed != 0 ? 1 : 0;
}
