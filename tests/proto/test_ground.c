#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto_clock.h"
#include "proto_codec.h"
#include "proto_ids.h"
#include "proto_require.h"
#include "proto_status.h"

/* Logs and NAKs show names; a number from a peer that we do not know must not crash them. */
START_TEST(every_status_has_a_name_and_a_sentence)
{
#define CHECK_STATUS(name, value, text)                                                            \
    ck_assert_str_eq(proto_status_name(STATUS_##name), #name);                                     \
    ck_assert_str_eq(proto_status_text(STATUS_##name), text);
    PROTO_STATUS_LIST(CHECK_STATUS)
#undef CHECK_STATUS
    ck_assert_str_eq(proto_status_name((proto_status_t)12345), "UNKNOWN");
    ck_assert_ptr_nonnull(proto_status_text((proto_status_t)12345));
}
END_TEST

START_TEST(every_role_has_a_name)
{
    ck_assert_str_eq(proto_role_name(PROTO_ROLE_KV_TRANSFER), "kv-transfer");
    ck_assert_str_eq(proto_role_name((proto_role_t)200), "unknown");
}
END_TEST

START_TEST(the_monotonic_clock_never_goes_back)
{
    const proto_clock_t *clock = proto_clock_system();
    uint64_t before = proto_clock_monotonic_ns(clock);
    for (int round = 0; round < 1000; round++) {
        uint64_t now = proto_clock_monotonic_ns(clock);
        ck_assert_uint_ge(now, before);
        before = now;
    }
    ck_assert_uint_gt(proto_clock_realtime_ns(clock), UINT64_C(1600000000) * 1000000000);
}
END_TEST

/* The report of a failed requirement is all that a crashed actor leaves: condition and request. */
START_TEST(a_failed_requirement_names_condition_and_request_and_aborts)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        (void)dup2(ends[1], STDERR_FILENO);
        (void)signal(SIGABRT, SIG_DFL);
        int one = 1;
        proto_require_set_request(4711);
        require(one == 2);
        _exit(0);
    }
    (void)close(ends[1]);
    char text[1024];
    size_t size_bytes = 0;
    ssize_t got;
    while ((got = read(ends[0], text + size_bytes, sizeof text - 1 - size_bytes)) > 0) {
        size_bytes += (size_t)got;
    }
    text[size_bytes] = '\0';
    (void)close(ends[0]);
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status));
    ck_assert_int_eq(WTERMSIG(status), SIGABRT);
    ck_assert_ptr_nonnull(strstr(text, "require(one == 2) failed, request 4711"));
    ck_assert_ptr_nonnull(strstr(text, "test_ground.c"));
}
END_TEST

/* Two messages with one number, or a name that is too long for the encoder's bound, would break
 * the wire silently. */
START_TEST(the_tables_are_sound)
{
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    ck_assert_uint_gt(count, 40);
    for (uint32_t index = 0; index < count; index++) {
        const proto_message_t *message = &messages[index];
        ck_assert_ptr_eq(proto_message_find(message->kind), message);
        ck_assert_str_eq(proto_kind_name(message->kind), message->name);
        ck_assert(proto_kind_known(message->kind));
        ck_assert_int_eq(proto_kind_is_wire(message->kind), message->is_wire);
        ck_assert_uint_gt(message->field_count, 0);
        ck_assert_uint_le(message->struct_size_bytes, sizeof(proto_body_t));
        for (uint32_t at = 0; at < message->field_count; at++) {
            const proto_field_t *field = &message->fields[at];
            ck_assert_uint_lt(field->offset_bytes, message->struct_size_bytes);
            ck_assert_uint_le(strlen(field->name), 63);
            if (field->type == PROTO_FIELD_U32 || field->type >= PROTO_FIELD_COL_U8 ||
                field->type == PROTO_FIELD_STR) {
                ck_assert_msg(field->limit <= UINT32_MAX, "%s.%s", message->name, field->name);
            }
            for (uint32_t before = 0; before < at; before++) {
                ck_assert_str_ne(message->fields[before].name, field->name);
            }
        }
    }
    ck_assert_ptr_null(proto_message_find(PROTO_KIND_NONE));
    ck_assert_ptr_null(proto_message_find((proto_kind_t)65535));
    ck_assert_str_eq(proto_kind_name((proto_kind_t)127), "UNKNOWN");
    ck_assert(!proto_kind_is_wire((proto_kind_t)999));
}
END_TEST

/* A prompt's token ids and how they are drawn must never be in a redacted log. */
START_TEST(prompts_tokens_and_sampling_are_private)
{
    static const char *const secret[] = {"tokens", "sampling",    "extend_tokens",
                                         "salt",   "logprob_ids", "logprob_values"};
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    for (uint32_t index = 0; index < count; index++) {
        for (uint32_t at = 0; at < messages[index].field_count; at++) {
            const proto_field_t *field = &messages[index].fields[at];
            for (size_t name = 0; name < sizeof secret / sizeof *secret; name++) {
                if (strcmp(field->name, secret[name]) == 0) {
                    ck_assert_msg(field->is_private, "%s.%s", messages[index].name, field->name);
                }
            }
        }
    }
}
END_TEST

/* Details may hold a user's file name: whatever it is, the message must be sendable. */
START_TEST(text_of_a_c_string_is_cut_to_valid_utf8)
{
    char longer[PROTO_TEXT_LEN_MAX + 10];
    memset(longer, 'a', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    ck_assert_uint_eq(proto_text("").size_bytes, 0);
    ck_assert_uint_eq(proto_text("abc").size_bytes, 3);
    ck_assert_uint_eq(proto_text("ab\xff"
                                 "cd")
                          .size_bytes,
                      2);
    ck_assert_uint_eq(proto_text(longer).size_bytes, PROTO_TEXT_LEN_MAX);
    memcpy(longer + PROTO_TEXT_LEN_MAX - 2, "\xe2\x82\xac", 3); /* a code point over the border */
    ck_assert_uint_eq(proto_text(longer).size_bytes, PROTO_TEXT_LEN_MAX - 2);
}
END_TEST

static const uint8_t key[PROTO_HASH_SIZE_BYTES] = "0123456789abcdef0123456789abcde";

/* Chain, salt and key all decide a page's identity; no two prompts may share a page by chance or
 * by choice of another tenant. */
START_TEST(page_hashes_depend_on_all_that_they_should)
{
    const int32_t tokens[] = {1, 2, 3, 4};
    const int32_t others[] = {1, 2, 3, 5};
    proto_bytes_t none = {NULL, 0};
    proto_bytes_t salt = {(const uint8_t *)"tenant", 6};
    uint8_t first[PROTO_HASH_SIZE_BYTES];
    uint8_t again[PROTO_HASH_SIZE_BYTES];
    uint8_t different[PROTO_HASH_SIZE_BYTES];
    uint8_t other_key[PROTO_HASH_SIZE_BYTES];
    memcpy(other_key, key, sizeof key);
    other_key[31] ^= 1;
    proto_page_hash(key, NULL, none, tokens, 4, first);
    proto_page_hash(key, NULL, none, tokens, 4, again);
    ck_assert_mem_eq(first, again, sizeof first);
    proto_page_hash(key, NULL, none, others, 4, different);
    ck_assert_mem_ne(first, different, sizeof first);
    proto_page_hash(key, NULL, salt, tokens, 4, different);
    ck_assert_mem_ne(first, different, sizeof first);
    proto_page_hash(other_key, NULL, none, tokens, 4, different);
    ck_assert_mem_ne(first, different, sizeof first);
    proto_page_hash(key, NULL, none, tokens, 3, different);
    ck_assert_mem_ne(first, different, sizeof first);
    /* In place, as a chain is built. */
    uint8_t chain[PROTO_HASH_SIZE_BYTES];
    proto_page_hash(key, first, none, others, 4, different);
    memcpy(chain, first, sizeof chain);
    proto_page_hash(key, chain, none, others, 4, chain);
    ck_assert_mem_eq(chain, different, sizeof chain);
    ck_assert_mem_ne(chain, first, sizeof chain);
}
END_TEST

/* Known answer, computed with Python's hashlib.blake2b(digest_size=32, key=...): other languages
 * compute page identities too. */
START_TEST(page_hash_equals_blake2b_of_another_implementation)
{
    static const uint8_t wanted[PROTO_HASH_SIZE_BYTES] = {0x1e, 0x3f, 0x57, 0x38, 0x86, 0x1b, 0x15,
                                                          0x91, 0xe7, 0x39, 0xb0, 0xec, 0xff, 0x85,
                                                          0xe4, 0xcc, 0x63, 0xcb, 0x25, 0x61, 0x8d,
                                                          0x6f, 0x65, 0xbe, 0xed, 0xf6, 0xea, 0x31,
                                                          0x74, 0x76, 0x3d, 0x28};
    const int32_t tokens[] = {1, -2, 300000};
    proto_bytes_t salt = {(const uint8_t *)"salt", 4};
    uint8_t hash[PROTO_HASH_SIZE_BYTES];
    proto_page_hash(key, NULL, salt, tokens, 3, hash);
    ck_assert_mem_eq(hash, wanted, sizeof hash);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("proto.ground");
    TCase *tcase = tcase_create("ground");
    tcase_add_test(tcase, every_status_has_a_name_and_a_sentence);
    tcase_add_test(tcase, every_role_has_a_name);
    tcase_add_test(tcase, the_monotonic_clock_never_goes_back);
    tcase_add_test(tcase, a_failed_requirement_names_condition_and_request_and_aborts);
    tcase_add_test(tcase, the_tables_are_sound);
    tcase_add_test(tcase, prompts_tokens_and_sampling_are_private);
    tcase_add_test(tcase, text_of_a_c_string_is_cut_to_valid_utf8);
    tcase_add_test(tcase, page_hashes_depend_on_all_that_they_should);
    tcase_add_test(tcase, page_hash_equals_blake2b_of_another_implementation);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
