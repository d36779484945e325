/* The validator stands before every decoder: what it lets through is bounded. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "proto_codec.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_SANITIZER 1
#endif
#endif
#ifndef HAS_SANITIZER
#define HAS_SANITIZER 0
#endif

static proto_status_t
validate(const void *data, size_t size_bytes)
{
    /* Memory of exactly this size: the sanitizers see a read past the end. */
    uint8_t *copy = malloc(size_bytes > 0 ? size_bytes : 1);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, data, size_bytes);
    proto_error_t error = {""};
    proto_status_t status = proto_validate((proto_bytes_t){copy, size_bytes}, &error);
    ck_assert_int_eq(status != STATUS_OK, error.detail[0] != '\0');
    free(copy);
    return status;
}

#define GOOD(text) ck_assert_int_eq(validate(text, sizeof(text) - 1), STATUS_OK)
#define BAD(text) ck_assert_int_eq(validate(text, sizeof(text) - 1), STATUS_ERR_MALFORMED)

START_TEST(every_form_of_msgpack_is_walked)
{
    GOOD("\x00");
    GOOD("\x7f");
    GOOD("\xe0");
    GOOD("\xc0");
    GOOD("\xc2");
    GOOD("\xcc\xff");
    GOOD("\xcd\xff\xff");
    GOOD("\xce\xff\xff\xff\xff");
    GOOD("\xcf\xff\xff\xff\xff\xff\xff\xff\xff");
    GOOD("\xd0\x80");
    GOOD("\xd1\x80\x00");
    GOOD("\xd2\x80\x00\x00\x00");
    GOOD("\xd3\x80\x00\x00\x00\x00\x00\x00\x00");
    GOOD("\xca\x00\x00\x00\x00");
    GOOD("\xcb\x00\x00\x00\x00\x00\x00\x00\x00");
    GOOD("\xa0");
    GOOD("\xa3"
         "abc");
    GOOD("\xd9\x03"
         "abc");
    GOOD("\xda\x00\x03"
         "abc");
    GOOD("\xdb\x00\x00\x00\x03"
         "abc");
    GOOD("\xc4\x01\xff");
    GOOD("\xc5\x00\x01\xff");
    GOOD("\xc6\x00\x00\x00\x01\xff");
    GOOD("\x90");
    GOOD("\x92\x01\x02");
    GOOD("\xdc\x00\x01\x01");
    GOOD("\xdd\x00\x00\x00\x01\x01");
    GOOD("\x80");
    GOOD("\x82\xa1"
         "a\x01\xa1"
         "b\x92\x01\x02");
    GOOD("\xde\x00\x01\xa1"
         "a\x01");
    GOOD("\xdf\x00\x00\x00\x01\xa1"
         "a\x01");
}
END_TEST

START_TEST(what_is_not_one_whole_value_is_refused)
{
    BAD("");
    BAD("\x01\x02");
    BAD("\x90\x00");
    BAD("\x91");
    BAD("\x92\x01");
    BAD("\xcc");
    BAD("\xcf\x00\x00");
    BAD("\xa3"
        "ab");
    BAD("\xc4\x02\x00");
    BAD("\xda\x00");
    BAD("\x81\xa1"
        "a");
    BAD("\xc1");
    BAD("\x91\xc1");
}
END_TEST

/* Ext types would let a peer name types of its own. */
START_TEST(ext_types_are_refused)
{
    BAD("\xd4\x01\x00");
    BAD("\xd5\x01\x00\x00");
    BAD("\xd6\xff\x00\x00\x00\x00");
    BAD("\xd7\x01\x00\x00\x00\x00\x00\x00\x00\x00");
    BAD("\xc7\x01\x01\x00");
    BAD("\xc8\x00\x01\x01\x00");
    BAD("\xc9\x00\x00\x00\x01\x01\x00");
}
END_TEST

START_TEST(map_keys_are_text_and_come_once)
{
    BAD("\x82\xa1"
        "a\x01\xa1"
        "a\x02");
    BAD("\x82\xa1"
        "a\x01\xd9\x01"
        "a\x02"); /* the same key in another form */
    GOOD("\x82\xa1"
         "a\x81\xa1"
         "a\x01\xa1"
         "b\x01"); /* in different maps */
    BAD("\x82\xa1"
        "a\x81\xa1"
        "b\x01\xa1"
        "a\x01");
    BAD("\x81\x01\x01");
    BAD("\x81\xc4\x01"
        "a\x01");
    BAD("\x81\x90\x01");
}
END_TEST

START_TEST(text_must_be_utf8)
{
    GOOD("\xa2\xc2\x80");
    GOOD("\xa3\xe0\xa0\x80");
    GOOD("\xa4\xf0\x90\x80\x80");
    GOOD("\xa4\xf4\x8f\xbf\xbf");
    GOOD("\xa3\xed\x9f\xbf");
    GOOD("\xac"
         "abcdefghi\xe2\x82\xac");
    BAD("\xa1\x80");
    BAD("\xa1\xff");
    BAD("\xa2\xc0\x80");         /* overlong */
    BAD("\xa3\xe0\x9f\xbf");     /* overlong */
    BAD("\xa4\xf0\x8f\xbf\xbf"); /* overlong */
    BAD("\xa3\xed\xa0\x80");     /* a surrogate */
    BAD("\xa4\xf4\x90\x80\x80"); /* beyond U+10FFFF */
    BAD("\xa1\xc2");             /* cut */
    BAD("\xa2\xe2\x82");         /* cut */
    BAD("\xa9"
        "abcdefgh\xff"); /* after eight good bytes */
    BAD("\xa9"
        "abcdefg\xff"
        "h"); /* within eight bytes */
}
END_TEST

START_TEST(nesting_ends_at_sixteen)
{
    uint8_t bytes[64];
    memset(bytes, 0x91, sizeof bytes);
    bytes[16] = 0x01;
    ck_assert_int_eq(validate(bytes, 17), STATUS_OK);
    bytes[16] = 0x91;
    bytes[17] = 0x01;
    ck_assert_int_eq(validate(bytes, 18), STATUS_ERR_MALFORMED);
    /* An empty container is a level too. */
    bytes[15] = 0x90;
    ck_assert_int_eq(validate(bytes, 16), STATUS_OK);
    bytes[15] = 0x91;
    bytes[16] = 0x90;
    ck_assert_int_eq(validate(bytes, 17), STATUS_ERR_MALFORMED);
}
END_TEST

START_TEST(elements_end_at_65536)
{
    size_t size_bytes = 5 + 65536;
    uint8_t *bytes = calloc(1, size_bytes);
    ck_assert_ptr_nonnull(bytes);
    memcpy(bytes, "\xdd\x00\x00\xff\xff", 5); /* 65535 and the array itself */
    ck_assert_int_eq(validate(bytes, size_bytes - 1), STATUS_OK);
    memcpy(bytes, "\xdd\x00\x01\x00\x00", 5);
    ck_assert_int_eq(validate(bytes, size_bytes), STATUS_ERR_MALFORMED);
    free(bytes);
}
END_TEST

START_TEST(open_map_keys_end_at_256)
{
    uint8_t bytes[3 + 257 * 4];
    for (unsigned count = 256; count <= 257; count++) {
        size_t at = 0;
        bytes[at++] = 0xde;
        bytes[at++] = (uint8_t)(count >> 8);
        bytes[at++] = (uint8_t)count;
        for (unsigned key = 0; key < count; key++) {
            bytes[at++] = 0xa2;
            bytes[at++] = (uint8_t)('0' + key / 64);
            bytes[at++] = (uint8_t)('0' + key % 64);
            bytes[at++] = 0x01;
        }
        ck_assert_int_eq(validate(bytes, at), count == 256 ? STATUS_OK : STATUS_ERR_MALFORMED);
    }
}
END_TEST

/* Five bytes that announce 67 million elements made a common library allocate two gigabytes.  Here
 * there is room for 64 MiB more in all, and each bomb must be refused. */
START_TEST(bombs_are_refused_without_memory)
{
    if (!HAS_SANITIZER) { /* their shadow memory alone is larger */
        struct rlimit limit = {UINT64_C(64) << 20, UINT64_C(64) << 20};
        ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
    }
    BAD("\xdd\x04\x00\x00\x00");
    BAD("\xdf\x04\x00\x00\x00");
    BAD("\xdd\xff\xff\xff\xff");
    BAD("\xdf\xff\xff\xff\xff");
    BAD("\xdf\x7f\xff\xff\xff");
    BAD("\xdf\x80\x00\x00\x00");
    BAD("\xdb\xff\xff\xff\xff");
    BAD("\xc6\xff\xff\xff\xff");
    BAD("\xc9\xff\xff\xff\xff\x01");
    static const uint8_t array_bomb[] = {0xdd, 0x04, 0x00, 0x00, 0x00};
    static const uint8_t map_bomb[] = {0xdf, 0x04, 0x00, 0x00, 0x00};
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (uint32_t index = 0; index < count; index++) {
        proto_body_t body;
        proto_bytes_t none = {NULL, 0};
        proto_bytes_t array = {array_bomb, sizeof array_bomb};
        proto_bytes_t map = {map_bomb, sizeof map_bomb};
        ck_assert_int_eq(proto_body_decode(messages[index].kind, array, none, &body, NULL),
                         STATUS_ERR_MALFORMED);
        ck_assert_int_eq(proto_body_decode(messages[index].kind, map, none, &body, NULL),
                         STATUS_ERR_MALFORMED);
    }
}
END_TEST

/* A map inside a map inside ... with many keys: work must stay linear in the bytes.  The test's
 * time limit is the judge. */
START_TEST(hostile_maps_cost_little)
{
    size_t size_bytes = 4 * 1024 * 1024;
    uint8_t *bytes = malloc(size_bytes);
    ck_assert_ptr_nonnull(bytes);
    /* An array of maps with one long key each. */
    size_t at = 5;
    uint32_t count = 0;
    while (at + 260 < size_bytes && count < 15000) {
        bytes[at++] = 0x81;
        bytes[at++] = 0xd9;
        bytes[at++] = 255;
        memset(bytes + at, 'k', 255);
        at += 255;
        bytes[at++] = 0xc0;
        count++;
    }
    memcpy(bytes, "\xdd\x00\x00\x00\x00", 5);
    bytes[3] = (uint8_t)(count >> 8);
    bytes[4] = (uint8_t)count;
    for (int round = 0; round < 20; round++) {
        ck_assert_int_eq(validate(bytes, at), STATUS_OK);
    }
    free(bytes);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("proto.validate");
    TCase *tcase = tcase_create("validate");
    tcase_set_timeout(tcase, 20);
    tcase_add_test(tcase, every_form_of_msgpack_is_walked);
    tcase_add_test(tcase, what_is_not_one_whole_value_is_refused);
    tcase_add_test(tcase, ext_types_are_refused);
    tcase_add_test(tcase, map_keys_are_text_and_come_once);
    tcase_add_test(tcase, text_must_be_utf8);
    tcase_add_test(tcase, nesting_ends_at_sixteen);
    tcase_add_test(tcase, elements_end_at_65536);
    tcase_add_test(tcase, open_map_keys_end_at_256);
    tcase_add_test(tcase, bombs_are_refused_without_memory);
    tcase_add_test(tcase, hostile_maps_cost_little);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
