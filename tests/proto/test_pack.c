/* Canonical bytes: what was packed comes back, and no hostile byte string is believed. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "proto_pack.h"

static void
pack_all(proto_pack_t *pack)
{
    static const uint32_t small[3] = {1, 2, UINT32_MAX};
    static const uint64_t large[2] = {7, UINT64_MAX};
    proto_pack_u8(pack, 200);
    proto_pack_u32(pack, 0x01020304);
    proto_pack_u64(pack, 0x0102030405060708);
    proto_pack_i64(pack, -5);
    proto_pack_bool(pack, true);
    proto_pack_raw(pack, "raw", 3);
    proto_pack_bytes(pack, "bytes", 5);
    proto_pack_bytes(pack, NULL, 0);
    proto_pack_u32_array(pack, small, 3);
    proto_pack_u64_array(pack, large, 2);
}

/* True if every value came back. */
static bool
unpack_all(proto_unpack_t *unpack)
{
    uint32_t small[3];
    uint64_t large[2];
    char raw[3];
    bool good = proto_unpack_u8(unpack) == 200;
    good &= proto_unpack_u32(unpack) == 0x01020304;
    good &= proto_unpack_u64(unpack) == 0x0102030405060708;
    good &= proto_unpack_i64(unpack) == -5;
    good &= proto_unpack_bool(unpack);
    proto_unpack_raw(unpack, raw, sizeof raw);
    good &= memcmp(raw, "raw", 3) == 0;
    proto_bytes_t bytes = proto_unpack_bytes(unpack, 5);
    good &= bytes.size_bytes == 5 && memcmp(bytes.data, "bytes", 5) == 0;
    good &= proto_unpack_bytes(unpack, 5).size_bytes == 0;
    proto_unpack_u32_array(unpack, small, 3, UINT32_MAX);
    proto_unpack_u64_array(unpack, large, 2);
    good &= small[0] == 1 && small[1] == 2 && small[2] == UINT32_MAX;
    good &= large[0] == 7 && large[1] == UINT64_MAX;
    return good;
}

START_TEST(what_was_packed_comes_back)
{
    uint8_t room[256];
    proto_pack_t pack = {.out = room, .capacity_bytes = sizeof room};
    pack_all(&pack);
    ck_assert(proto_pack_is_complete(&pack));
    proto_unpack_t unpack = {.bytes = {room, pack.size_bytes}};
    ck_assert(unpack_all(&unpack));
    ck_assert_int_eq(proto_unpack_end(&unpack), STATUS_OK);
}
END_TEST

START_TEST(a_full_packer_counts_on_and_writes_nothing_beyond)
{
    proto_pack_t whole = {0};
    pack_all(&whole);
    for (size_t capacity = 0; capacity < whole.size_bytes; capacity++) {
        uint8_t *room = malloc(capacity + 1);
        ck_assert_ptr_nonnull(room);
        room[capacity] = 0xee;
        proto_pack_t pack = {.out = room, .capacity_bytes = capacity};
        pack_all(&pack);
        ck_assert_uint_eq(pack.size_bytes, whole.size_bytes);
        ck_assert(!proto_pack_is_complete(&pack));
        ck_assert_uint_eq(room[capacity], 0xee);
        free(room);
    }
}
END_TEST

START_TEST(every_truncation_and_every_extra_byte_is_refused)
{
    uint8_t room[256] = {0};
    proto_pack_t pack = {.out = room, .capacity_bytes = sizeof room};
    pack_all(&pack);
    for (size_t size = 0; size < pack.size_bytes + 9; size++) {
        if (size == pack.size_bytes) {
            continue;
        }
        proto_unpack_t unpack = {.bytes = {room, size}};
        (void)unpack_all(&unpack);
        ck_assert_int_eq(proto_unpack_end(&unpack), STATUS_ERR_MALFORMED);
    }
}
END_TEST

START_TEST(values_beyond_a_limit_read_as_zero_and_fail)
{
    static const uint8_t nine[8] = {9};
    proto_unpack_t unpack = {.bytes = {nine, 4}};
    ck_assert_uint_eq(proto_unpack_u32_max(&unpack, 8), 0);
    ck_assert_int_eq(proto_unpack_end(&unpack), STATUS_ERR_MALFORMED);

    unpack = (proto_unpack_t){.bytes = {nine, 8}};
    ck_assert_uint_eq(proto_unpack_u64_max(&unpack, 8), 0);
    ck_assert_int_eq(proto_unpack_end(&unpack), STATUS_ERR_MALFORMED);

    unpack = (proto_unpack_t){.bytes = {nine, 1}};
    ck_assert(!proto_unpack_bool(&unpack));
    ck_assert_int_eq(proto_unpack_end(&unpack), STATUS_ERR_MALFORMED);

    unpack = (proto_unpack_t){.bytes = {nine, 8}};
    ck_assert_uint_eq(proto_unpack_bytes(&unpack, 8).size_bytes, 0);
    ck_assert_uint_eq(proto_unpack_u64(&unpack), 0);
    ck_assert_int_eq(proto_unpack_end(&unpack), STATUS_ERR_MALFORMED);

    uint32_t value = 1;
    unpack = (proto_unpack_t){.bytes = {nine, 4}};
    proto_unpack_u32_array(&unpack, &value, 1, 8);
    ck_assert_uint_eq(value, 0);
    ck_assert_int_eq(proto_unpack_end(&unpack), STATUS_ERR_MALFORMED);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("proto.pack");
    TCase *tcase = tcase_create("pack");
    tcase_add_test(tcase, what_was_packed_comes_back);
    tcase_add_test(tcase, a_full_packer_counts_on_and_writes_nothing_beyond);
    tcase_add_test(tcase, every_truncation_and_every_extra_byte_is_refused);
    tcase_add_test(tcase, values_beyond_a_limit_read_as_zero_and_fail);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
