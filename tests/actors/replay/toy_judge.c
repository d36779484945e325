/* toy_judge FILE SEQUENCE: fails if the log holds the record of that number. */
#include <stdlib.h>

#include "proto_log.h"

int
main(int argc, char **argv)
{
    proto_log_reader_t *reader = NULL;
    if (argc != 3 || proto_log_reader_open(argv[1], &reader, NULL) != STATUS_OK) {
        return 3;
    }
    uint64_t sequence = strtoull(argv[2], NULL, 10);
    proto_log_record_t record;
    int code = 0;
    proto_status_t status;
    while ((status = proto_log_reader_next(reader, &record)) == STATUS_OK) {
        code = record.sequence == sequence ? 1 : code;
    }
    proto_log_reader_close(&reader);
    return status == STATUS_END ? code : 3;
}
