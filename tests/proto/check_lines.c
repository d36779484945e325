/* For tests/proto/compare_msgpack.py: reads messages as lines of hexadecimal digits, writes "1" for
 * each that the validator lets through and "0" for each that it refuses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_codec.h"

int
main(void)
{
    char *line = NULL;
    size_t capacity_bytes = 0;
    ssize_t length;
    while ((length = getline(&line, &capacity_bytes, stdin)) >= 0) {
        size_t size_bytes = (size_t)length / 2;
        uint8_t *bytes = malloc(size_bytes > 0 ? size_bytes : 1);
        if (bytes == NULL) {
            return 1;
        }
        for (size_t at = 0; at < size_bytes; at++) {
            unsigned byte = 0;
            if (sscanf(line + 2 * at, "%2x", &byte) != 1) {
                return 1;
            }
            bytes[at] = (uint8_t)byte;
        }
        puts(proto_validate((proto_bytes_t){bytes, size_bytes}, NULL) == STATUS_OK ? "1" : "0");
        free(bytes);
    }
    free(line);
    return 0;
}
