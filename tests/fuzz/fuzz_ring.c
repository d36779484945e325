/* A record ring of any content.  Input: u64 head, u64 tail, then the records from the begin of the
 * ring on.  The reader must end, and a writer must open it or refuse it, and go on. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto_ring.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

enum { PAGE = 4096, RING = PROTO_RING_SIZE_MIN, HEAD_AT = 64, TAIL_AT = 128 };

static uint8_t *memory;
static int fd = -1;

static void
make_ring(void)
{
    const proto_ring_owner_t owner = {"fuzz", PROTO_ROLE_CLIENT, 1, 0};
    if (proto_ring_create(&owner, RING, &fd) != STATUS_OK) {
        abort();
    }
    memory = mmap(NULL, PAGE + RING, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        abort();
    }
}

static void
read_all(void)
{
    proto_ring_reader_t *reader = NULL;
    proto_log_record_t record;
    if (proto_ring_reader_open(fd, &reader) != STATUS_OK) {
        abort();
    }
    for (uint32_t count = 0; proto_ring_reader_next(reader, &record) == STATUS_OK; count++) {
        if (count > RING / 40) {
            abort();
        }
    }
    proto_ring_reader_close(&reader);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    if (fd < 0) {
        make_ring();
    }
    if (size_bytes < 16 || size_bytes > 16 + RING) {
        return 0;
    }
    memcpy(memory + HEAD_AT, data, 8);
    memcpy(memory + TAIL_AT, data + 8, 8);
    memcpy(memory + PAGE, data + 16, size_bytes - 16);
    read_all();
    proto_ring_writer_t *writer = NULL;
    if (proto_ring_writer_open(fd, &writer) == STATUS_OK) {
        const proto_log_record_t record = {.kind = PROTO_LOG_NOTE,
                                           .part_count = 1,
                                           .parts = {{memory, 3000}}};
        for (int count = 0; count < 40; count++) {
            proto_ring_append(writer, &record);
        }
        proto_ring_writer_close(&writer);
        read_all();
    }
    return 0;
}
