/* All parts of a message in one: what is packed comes out again, and nothing else is taken. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto_frame.h"

static uint8_t bytes[4096];
static uint8_t source[1024];

static size_t
pack(size_t header_size, size_t body_size, size_t blob_size)
{
    proto_parts_t parts = {{source, header_size}, {source + 1, body_size}, {source + 2, blob_size}};
    size_t size = proto_frame_size(&parts);
    ck_assert_uint_le(size, sizeof bytes);
    memset(bytes, 0xee, sizeof bytes);
    proto_frame_pack(&parts, bytes);
    ck_assert_uint_eq(bytes[size], 0xee);
    return size;
}

static void
setup(void)
{
    for (size_t index = 0; index < sizeof source; index++) {
        source[index] = (uint8_t)(index * 31 + 7);
    }
}

static void
check_part(proto_bytes_t part, const uint8_t *data, size_t size)
{
    ck_assert_uint_eq(part.size_bytes, size);
    ck_assert(size == 0 || memcmp(part.data, data, size) == 0);
}

/* Each part of each size comes back, and the blob lies where columns may be read in place. */
START_TEST(what_is_packed_comes_back)
{
    static const size_t headers[] = {0, 1, 9, PROTO_HEADER_SIZE_MAX};
    static const size_t bodies[] = {0, 1, 39, 40, 64, 500};
    static const size_t blobs[] = {0, 1, 64, 700};
    for (size_t h = 0; h < sizeof headers / sizeof headers[0]; h++) {
        for (size_t b = 0; b < sizeof bodies / sizeof bodies[0]; b++) {
            for (size_t c = 0; c < sizeof blobs / sizeof blobs[0]; c++) {
                size_t size = pack(headers[h], bodies[b], blobs[c]);
                ck_assert(proto_frame_is((proto_bytes_t){bytes, size}));
                proto_parts_t parts;
                ck_assert_int_eq(proto_frame_unpack((proto_bytes_t){bytes, size}, &parts),
                                 STATUS_OK);
                check_part(parts.header, source, headers[h]);
                check_part(parts.body, source + 1, bodies[b]);
                check_part(parts.blob, source + 2, blobs[c]);
                ck_assert(blobs[c] == 0 ||
                          (size_t)(parts.blob.data - bytes) % PROTO_COLUMN_ALIGN == 0);
            }
        }
    }
}
END_TEST

/* Every length but the right one is refused: nothing is read behind the end. */
START_TEST(another_length_is_refused)
{
    size_t size = pack(9, 40, 100);
    proto_parts_t parts;
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *copy = malloc(cut > 0 ? cut : 1); /* so that a sanitizer sees a byte too many */
        ck_assert_ptr_nonnull(copy);
        memcpy(copy, bytes, cut);
        ck_assert_int_eq(proto_frame_unpack((proto_bytes_t){copy, cut}, &parts),
                         STATUS_ERR_MALFORMED);
        free(copy);
    }
    ck_assert_int_eq(proto_frame_unpack((proto_bytes_t){bytes, size + 1}, &parts),
                     STATUS_ERR_MALFORMED);
}
END_TEST

/* Sizes whose sum would wrap, a gap that is not zero, another mark or version. */
START_TEST(a_wrong_table_is_refused)
{
    static const struct {
        size_t at;
        uint8_t value;
    } changes[] = {{0, 0x96}, {1, 2},     {2, 1},   {3, 1},     {4, 8},           {7, 0xff},
                   {8, 104},  {11, 0xff}, {12, 99}, {15, 0xff}, {16 + 9 + 40, 1}, {127, 1}};
    proto_parts_t parts;
    for (size_t index = 0; index < sizeof changes / sizeof changes[0]; index++) {
        size_t size = pack(9, 40, 100);
        ck_assert_uint_eq(size, 128 + 100);
        bytes[changes[index].at] = changes[index].value;
        ck_assert_msg(proto_frame_unpack((proto_bytes_t){bytes, size}, &parts) ==
                          STATUS_ERR_MALFORMED,
                      "byte %zu was not looked at", changes[index].at);
    }
}
END_TEST

/* The first byte tells a frame from a header: no header that is sent can begin so. */
START_TEST(a_header_is_no_frame)
{
    proto_header_t header = {.version = PROTO_SCHEMA_VERSION, .kind = PROTO_KIND_HELLO};
    size_t size = proto_header_encode(&header, bytes);
    ck_assert(!proto_frame_is((proto_bytes_t){bytes, size}));
    size = pack(size, 0, 0);
    ck_assert_int_ne(proto_header_decode((proto_bytes_t){bytes, size}, &header), STATUS_OK);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("proto.frame");
    TCase *test = tcase_create("frame");
    tcase_add_checked_fixture(test, setup, NULL);
    tcase_add_test(test, what_is_packed_comes_back);
    tcase_add_test(test, another_length_is_refused);
    tcase_add_test(test, a_wrong_table_is_refused);
    tcase_add_test(test, a_header_is_no_frame);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
