/* Tokenizer against reference ids, round trips, hostile files and hostile texts. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "file_tokenizer.h"
#include "support.h"

enum { IDS_MAX = 1 << 20, TEXT_MAX = 1 << 20 };

static file_model_t *model;
static file_tokenizer_t *tokenizer;
static file_tokenizer_scratch_t *scratch;
static int32_t *ids;
static char error[FILE_ERROR_SIZE_BYTES];

static void
open_model(const char *path)
{
    ck_assert_msg(file_model_open(path, error, sizeof error, &model) == STATUS_OK, "%s", error);
    ck_assert_msg(file_tokenizer_open(model, error, sizeof error, &tokenizer) == STATUS_OK, "%s",
                  error);
    ck_assert_int_eq(file_tokenizer_scratch_new(TEXT_MAX, &scratch), STATUS_OK);
    ids = malloc(IDS_MAX * sizeof *ids);
    ck_assert_ptr_nonnull(ids);
}

static void
close_model(void)
{
    file_tokenizer_scratch_destroy(&scratch);
    file_tokenizer_close(&tokenizer);
    file_model_close(&model);
    free(ids);
    ids = NULL;
}

static size_t
encode(const char *text, size_t size_bytes, bool special)
{
    size_t count = 0;
    file_encode_t call = {text, size_bytes, special, special, ids, IDS_MAX};
    ck_assert_int_eq(file_tokenizer_encode(tokenizer, scratch, &call, &count), STATUS_OK);
    return count;
}

static void
expect_ids(const json_t *text, const json_t *wanted, bool special)
{
    const char *bytes = json_string_value(text);
    size_t count = encode(bytes, json_string_length(text), special);
    bool same = count == json_array_size(wanted);
    for (size_t i = 0; same && i < count; i++) {
        same = ids[i] == json_integer_value(json_array_get(wanted, i));
    }
    if (!same) {
        char *shown = json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
        char *expected = json_dumps(wanted, JSON_COMPACT);
        char found[512] = "";
        size_t at = 0;
        for (size_t i = 0; i < count && at < sizeof found - 16; i++) {
            at += (size_t)snprintf(found + at, sizeof found - at, "%" PRId32 ",", ids[i]);
        }
        ck_abort_msg("text %s (special %d): expected %s, got [%s]", shown, special, expected,
                     found);
    }
}

static void
compare_with_reference(const char *path, const char *fixture, size_t least)
{
    open_model(path);
    json_t *cases = support_json(fixture);
    ck_assert_uint_ge(json_array_size(cases), least);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        const json_t *text = json_object_get(one, "text");
        const json_t *plain = json_object_get(one, "plain");
        expect_ids(text, json_object_get(one, "ids"), true);
        expect_ids(text, json_is_null(plain) ? json_object_get(one, "ids") : plain, false);
    }
    json_decref(cases);
    close_model();
}

/* The same ids as the tokenizer the model was trained with, or every answer is a little wrong. */
START_TEST(smollm2_ids_equal_the_reference)
{
    compare_with_reference(support_smollm2(), "tokens-smollm2.json", 300);
}
END_TEST

/* tokenizer.json with the pattern of Llama 3, ignore_merges and a bos by its template. */
START_TEST(llama3_like_json_equals_the_reference)
{
    compare_with_reference(support_fixture("tiny-llama"), "tokens-llama3.json", 300);
}
END_TEST

/* tokenizer.json with the pattern of Qwen2 and NFC. */
START_TEST(qwen_like_json_equals_the_reference)
{
    compare_with_reference(support_fixture("tiny-qwen3"), "tokens-qwen3.json", 300);
}
END_TEST

static size_t
random_utf8(uint64_t *state, char *out, size_t char_count)
{
    size_t at = 0;
    for (size_t i = 0; i < char_count; i++) {
        static const uint32_t TOPS[4] = {0x80, 0x800, 0x10000, 0x110000};
        uint32_t code = (uint32_t)(support_random(state) % TOPS[support_random(state) % 4]);
        if (code >= 0xd800 && code <= 0xdfff) {
            code = ' ';
        }
        if (code < 0x80) {
            out[at++] = (char)code;
        } else if (code < 0x800) {
            out[at++] = (char)(0xc0 | code >> 6);
            out[at++] = (char)(0x80 | (code & 0x3f));
        } else if (code < 0x10000) {
            out[at++] = (char)(0xe0 | code >> 12);
            out[at++] = (char)(0x80 | (code >> 6 & 0x3f));
            out[at++] = (char)(0x80 | (code & 0x3f));
        } else {
            out[at++] = (char)(0xf0 | code >> 18);
            out[at++] = (char)(0x80 | (code >> 12 & 0x3f));
            out[at++] = (char)(0x80 | (code >> 6 & 0x3f));
            out[at++] = (char)(0x80 | (code & 0x3f));
        }
    }
    return at;
}

/* Detokenising one id at a time gives the text back, each piece valid UTF-8 by itself. */
static void
expect_round_trip(const char *text, size_t size_bytes)
{
    size_t count = encode(text, size_bytes, false);
    file_detokenizer_t detokenizer;
    file_detokenizer_init(&detokenizer, tokenizer, false);
    char *back = malloc(3 * size_bytes + 4096 + FILE_DETOKENIZER_ROOM(1024));
    ck_assert_ptr_nonnull(back);
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        size_t written = 0;
        ck_assert_int_eq(file_detokenizer_push(&detokenizer, ids[i], back + at,
                                               FILE_DETOKENIZER_ROOM(1024), &written),
                         STATUS_OK);
        at += written;
        ck_assert_uint_le(at, size_bytes);
    }
    ck_assert_uint_eq(file_detokenizer_flush(&detokenizer, back + at), 0);
    ck_assert_uint_eq(at, size_bytes);
    ck_assert_mem_eq(back, text, size_bytes);
    free(back);
}

/* Every byte of the tiny vocabulary has a token, so nothing may be lost. */
START_TEST(random_text_survives_a_round_trip)
{
    uint64_t state = support_seed();
    open_model(support_fixture("tiny-llama"));
    char *text = malloc(4 * 300);
    for (int i = 0; i < 2000; i++) {
        size_t size_bytes = random_utf8(&state, text, 1 + support_random(&state) % 300);
        expect_round_trip(text, size_bytes);
    }
    free(text);
    close_model();
}
END_TEST

/* SmolLM2 has no token for some bytes; a text without them survives. */
START_TEST(smollm2_text_survives_a_round_trip)
{
    uint64_t state = support_seed();
    open_model(support_smollm2());
    bool has_byte[256];
    int missing = 0;
    for (int byte = 0; byte < 256; byte++) {
        char one = (char)byte;
        has_byte[byte] = file_tokenizer_find(tokenizer, &one, 1) >= 0;
        missing += !has_byte[byte];
    }
    ck_assert_int_eq(missing, 21); /* 49152 - 17 special - 48900 merged = 235 bytes */
    char *text = malloc(4 * 300);
    int done = 0;
    for (int i = 0; i < 4000; i++) {
        size_t size_bytes = random_utf8(&state, text, 1 + support_random(&state) % 300);
        bool whole = true;
        for (size_t k = 0; k < size_bytes; k++) {
            whole = whole && has_byte[(unsigned char)text[k]];
        }
        if (whole) {
            expect_round_trip(text, size_bytes);
            done++;
        }
    }
    ck_assert_int_gt(done, 20);
    free(text);
    close_model();
}
END_TEST

/* A prompt of a million equal characters must not stop the gateway: textbook merging takes
 * minutes.  The limit is generous so that a busy machine passes and a quadratic one never does. */
static void
expect_fast(const char *unit)
{
    char *text = malloc(TEXT_MAX);
    size_t unit_size_bytes = strlen(unit);
    size_t size_bytes = 0;
    while (size_bytes + unit_size_bytes <= TEXT_MAX) {
        memcpy(text + size_bytes, unit, unit_size_bytes);
        size_bytes += unit_size_bytes;
    }
    struct timespec start;
    struct timespec end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    size_t count = 0;
    file_encode_t call = {text, size_bytes, true, false, ids, IDS_MAX};
    ck_assert_int_eq(file_tokenizer_encode(tokenizer, scratch, &call, &count), STATUS_OK);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    double seconds =
        (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    double limit = 1.0;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(ONEPATH_DEBUG)
    limit = 10.0;
#endif
    ck_assert_msg(seconds < limit, "1 MB of '%s' took %.2f s", unit, seconds);
    ck_assert_uint_gt(count, 0);
    free(text);
}

START_TEST(a_megabyte_of_anything_is_encoded_in_a_second)
{
    static const char *const UNITS[] = {
        "a",
        " ",
        "\n",
        "\t ",
        "1",
        "<",
        "<|im_",
        "\xcc\x80",
        "\xcc\xa3\xcc\x80",
        "ab",
        "'s",
        "\xe4\xbd\xa0",
        "\xf0\x9f\x98\x80",
        "e\xcc\x81",
        " \n",
        "\xc2\xa0",
        "A1 .",
    };
    open_model(support_smollm2());
    for (size_t i = 0; i < sizeof UNITS / sizeof UNITS[0]; i++) {
        expect_fast(UNITS[i]);
    }
    close_model();
    open_model(support_fixture("tiny-qwen3")); /* with normalisation */
    for (size_t i = 0; i < sizeof UNITS / sizeof UNITS[0]; i++) {
        expect_fast(UNITS[i]);
    }
    close_model();
}
END_TEST

/* Limits are told apart from failures, and nothing is written over them. */
START_TEST(encode_keeps_its_limits)
{
    open_model(support_fixture("tiny-llama"));
    size_t count = 77;
    file_encode_t call = {"hello there", 11, true, true, ids, 3};
    ids[3] = -5;
    ck_assert_int_eq(file_tokenizer_encode(tokenizer, scratch, &call, &count),
                     STATUS_ERR_TOO_LARGE);
    ck_assert_uint_eq(count, 77);
    ck_assert_int_eq(ids[3], -5);
    call.id_count_max = 0;
    ck_assert_int_eq(file_tokenizer_encode(tokenizer, scratch, &call, &count),
                     STATUS_ERR_TOO_LARGE);
    static const char *const BROKEN[] = {
        "\x80", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe4\xbd", "\xff"};
    for (size_t i = 0; i < sizeof BROKEN / sizeof BROKEN[0]; i++) {
        call = (file_encode_t){BROKEN[i], strlen(BROKEN[i]), true, true, ids, IDS_MAX};
        ck_assert_int_eq(file_tokenizer_encode(tokenizer, scratch, &call, &count),
                         STATUS_ERR_INVALID);
    }
    file_tokenizer_scratch_t *small = NULL;
    ck_assert_int_eq(file_tokenizer_scratch_new(4, &small), STATUS_OK);
    call = (file_encode_t){"hello", 5, false, false, ids, IDS_MAX};
    ck_assert_int_eq(file_tokenizer_encode(tokenizer, small, &call, &count), STATUS_ERR_TOO_LARGE);
    call.size_bytes = 4;
    ck_assert_int_eq(file_tokenizer_encode(tokenizer, small, &call, &count), STATUS_OK);
    ck_assert_uint_gt(count, 0);
    file_tokenizer_scratch_destroy(&small);
    file_bytes_t bytes;
    ck_assert_int_eq(file_tokenizer_token_bytes(tokenizer, -1, &bytes), STATUS_ERR_NOT_FOUND);
    ck_assert_int_eq(file_tokenizer_token_bytes(tokenizer, 320, &bytes), STATUS_ERR_NOT_FOUND);
    ck_assert_int_eq(file_tokenizer_token_bytes(tokenizer, INT32_MAX, &bytes),
                     STATUS_ERR_NOT_FOUND);
    ck_assert(file_tokenizer_is_special(tokenizer, 317));
    ck_assert(!file_tokenizer_is_special(tokenizer, 316));
    ck_assert_int_eq(file_tokenizer_find(tokenizer, "<|eot_id|>", 10), 319);
    close_model();
}
END_TEST

/* Pushes single bytes and checks what comes out after each. */
static void
expect_stream(const char *bytes, size_t size_bytes, const char *wanted)
{
    file_detokenizer_t detokenizer;
    file_detokenizer_init(&detokenizer, tokenizer, true);
    char out[256];
    size_t at = 0;
    for (size_t i = 0; i < size_bytes; i++) {
        int32_t id = file_tokenizer_find(tokenizer, bytes + i, 1);
        size_t written = 0;
        ck_assert_int_ge(id, 0);
        ck_assert_int_eq(file_detokenizer_push(&detokenizer, id, out + at, sizeof out - at,
                                               &written),
                         STATUS_OK);
        at += written;
    }
    at += file_detokenizer_flush(&detokenizer, out + at);
    out[at] = '\0';
    ck_assert_str_eq(out, wanted);
}

/* A client never sees half a character, and broken bytes end as U+FFFD like everywhere else. */
START_TEST(detokenizer_holds_back_incomplete_characters)
{
    open_model(support_fixture("tiny-llama"));
    expect_stream("a\xc3\xa9z", 4, "a\xc3\xa9z");
    expect_stream("\xf0\x9f\x98\x80", 4, "\xf0\x9f\x98\x80");
    expect_stream("\xf0\x9f\x98", 3, "\xef\xbf\xbd");
    expect_stream("\xf0\x9f\x98x", 4, "\xef\xbf\xbdx");
    expect_stream("\xff\xfe", 2, "\xef\xbf\xbd\xef\xbf\xbd");
    expect_stream("\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    expect_stream("\xc3\xc3\xa9", 3, "\xef\xbf\xbd\xc3\xa9");
    file_detokenizer_t detokenizer;
    char out[FILE_DETOKENIZER_ROOM(1024)];
    size_t written = 9;
    file_detokenizer_init(&detokenizer, tokenizer, true);
    int32_t lead = file_tokenizer_find(tokenizer, "\xc3", 1);
    ck_assert_int_eq(file_detokenizer_push(&detokenizer, lead, out, sizeof out, &written),
                     STATUS_OK);
    ck_assert_uint_eq(written, 0);
    ck_assert_int_eq(file_detokenizer_push(&detokenizer, 317, out, sizeof out, &written),
                     STATUS_OK);
    ck_assert_uint_eq(written, 0); /* a special token is left out */
    ck_assert_int_eq(file_detokenizer_push(&detokenizer, 999, out, sizeof out, &written),
                     STATUS_ERR_NOT_FOUND);
    ck_assert_int_eq(file_detokenizer_push(&detokenizer, lead, out, 3, &written),
                     STATUS_ERR_TOO_LARGE);
    ck_assert_uint_eq(file_detokenizer_flush(&detokenizer, out), 3);
    ck_assert_uint_eq(file_detokenizer_flush(&detokenizer, out), 0);
    file_detokenizer_init(&detokenizer, tokenizer, false);
    ck_assert_int_eq(file_detokenizer_push(&detokenizer, 319, out, sizeof out, &written),
                     STATUS_OK);
    ck_assert_uint_eq(written, 10);
    ck_assert_mem_eq(out, "<|eot_id|>", 10);
    close_model();
}
END_TEST

/* A change to the small tokenizer.json: replaces `from` (which must be there) by `to`. */
static proto_status_t
open_changed(const char *from, const char *to)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s", support_fixture("tiny-qwen3/tokenizer.json"));
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    static char text[1 << 16];
    static char changed[1 << 17];
    size_t size_bytes = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[size_bytes] = '\0';
    char *at = strstr(text, from);
    ck_assert_msg(at != NULL, "'%s' is not in the fixture", from);
    int written = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to,
                           at + strlen(from));
    file_tokenizer_t *other = NULL;
    proto_status_t status =
        file_tokenizer_open_json_bytes(changed, (size_t)written, error, sizeof error, &other);
    ck_assert((status == STATUS_OK) == (other != NULL));
    ck_assert((status == STATUS_OK) == (error[0] == '\0'));
    file_tokenizer_close(&other);
    return status;
}

/* Everything that is not understood is refused with a text that names it, never ignored. */
START_TEST(unknown_parts_of_a_tokenizer_are_refused)
{
    ck_assert_int_eq(open_changed("\"NFC\"", "\"NFC\""), STATUS_OK);
    static const struct {
        const char *from;
        const char *to;
        proto_status_t status;
        const char *text;
    } CASES[] = {
        {"\"NFC\"", "\"NFKC\"", STATUS_ERR_UNSUPPORTED, "NFKC"},
        {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", STATUS_ERR_UNSUPPORTED, "Unigram"},
        {"\\\\p{N}|", "\\\\p{N}*|", STATUS_ERR_UNSUPPORTED, "Split"},
        {"\"Isolated\"", "\"Removed\"", STATUS_ERR_UNSUPPORTED, "Removed"},
        {"\"add_prefix_space\": false", "\"add_prefix_space\": true", STATUS_ERR_UNSUPPORTED,
         "add_prefix_space"},
        {"\"byte_fallback\": false", "\"byte_fallback\": true", STATUS_ERR_UNSUPPORTED,
         "byte_fallback"},
        {"\"lstrip\": false", "\"lstrip\": true", STATUS_ERR_UNSUPPORTED, "lstrip"},
        {"\"id\": 317", "\"id\": 1048576", STATUS_ERR_MALFORMED, "1048576"},
        {"\"id\": 317", "\"id\": -1", STATUS_ERR_MALFORMED, "added token"},
        {"\"id\": 317", "\"id\": 318", STATUS_ERR_MALFORMED, "twice"},
        {"\"!\": 0", "\"!\": 1", STATUS_ERR_MALFORMED, "twice"},
        {"\"!\": 0", "\"!\": 99999999", STATUS_ERR_MALFORMED, "99999999"},
        {"\"!\": 0", "\"!\": \"0\"", STATUS_ERR_MALFORMED, "whole number"},
        {"\"!\": 0", "\"!\": 0, \"!\": 0", STATUS_ERR_MALFORMED, "duplicate"},
        {"\"merges\": [", "\"merges\": [[\"zzz\", \"!\"],", STATUS_ERR_MALFORMED, "merge 0"},
        {"\"merges\": [", "\"merges\": [[\"!\", \"\"],", STATUS_ERR_MALFORMED, "merge 0"},
        {"\"merges\": [", "\"merges\": [\"ab\",", STATUS_ERR_MALFORMED, "merge"},
        {"\"merges\": [", "\"merges\": [7,", STATUS_ERR_MALFORMED, "merge"},
        {"\"vocab\": {", "\"vocab\": [], \"x\": {", STATUS_ERR_UNSUPPORTED, "BPE"},
        {"{", "[", STATUS_ERR_MALFORMED, "JSON"},
        {"\"version\"", "\"x\": [[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]], \"version\"",
         STATUS_ERR_MALFORMED, "nested"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        ck_assert_msg(open_changed(CASES[i].from, CASES[i].to) == CASES[i].status,
                      "case %zu (%s): %s", i, CASES[i].to, error);
        ck_assert_msg(strstr(error, CASES[i].text) != NULL, "case %zu: '%s' lacks '%s'", i, error,
                      CASES[i].text);
    }
}
END_TEST

/* Flipped and cut bytes end in an error or in a tokenizer that still works. */
START_TEST(damaged_tokenizer_files_never_crash)
{
    uint64_t state = support_seed();
    open_model(support_fixture("tiny-llama"));
    char path[1024];
    (void)snprintf(path, sizeof path, "%s", support_fixture("tiny-qwen3/tokenizer.json"));
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    static char text[1 << 16];
    size_t size_bytes = fread(text, 1, sizeof text, file);
    (void)fclose(file);
    int opened = 0;
    for (int i = 0; i < 3000; i++) {
        char kept[4];
        size_t places[4];
        size_t cut = i % 4 == 0 ? support_random(&state) % size_bytes : size_bytes;
        for (int k = 0; k < 4; k++) {
            places[k] = support_random(&state) % size_bytes;
            kept[k] = text[places[k]];
            if (k <= i % 4) {
                text[places[k]] =
                    (char)(support_random(&state) % 3 == 0
                               ? (int)(support_random(&state) & 0xff)
                               : "0123456789abc\"[]{},:\\ "[support_random(&state) % 22]);
            }
        }
        file_tokenizer_t *other = NULL;
        if (file_tokenizer_open_json_bytes(text, cut, error, sizeof error, &other) == STATUS_OK) {
            size_t count = 0;
            file_encode_t call = {"Hello <|im_start|> w\xc3\xb6rld 123", 29, true, true, ids, 64};
            proto_status_t status = file_tokenizer_encode(other, scratch, &call, &count);
            ck_assert(status == STATUS_OK || status == STATUS_ERR_TOO_LARGE);
            opened++;
        } else {
            ck_assert_int_ne(error[0], '\0');
        }
        file_tokenizer_close(&other);
        for (int k = 3; k >= 0; k--) {
            text[places[k]] = kept[k];
        }
    }
    printf("%d of 3000 damaged files still open\n", opened);
    close_model();
}
END_TEST

/* Another model's tokenizer beside a checkpoint must not run. */
START_TEST(a_tokenizer_with_more_tokens_than_embeddings_is_wrong)
{
    char *folder = support_temp_folder();
    static const char *const FILES[] = {"config.json", "model.safetensors", "tokenizer.json"};
    static char text[1 << 20];
    for (size_t i = 0; i < 3; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "tiny-qwen3/%s", FILES[i]);
        FILE *file = fopen(support_fixture(name), "rb");
        ck_assert_ptr_nonnull(file);
        size_t size_bytes = fread(text, 1, sizeof text - 64, file);
        (void)fclose(file);
        if (i == 2) {
            text[size_bytes] = '\0';
            char *at = strstr(text, "\"!\": 0");
            ck_assert_ptr_nonnull(at);
            memmove(at + 8, at + 6, size_bytes - (size_t)(at - text) - 6);
            memcpy(at, "\"!\": 320", 8);
            size_bytes += 2;
        }
        support_write(folder, FILES[i], text, size_bytes);
    }
    ck_assert_int_eq(file_model_open(folder, error, sizeof error, &model), STATUS_OK);
    ck_assert_int_eq(file_tokenizer_open(model, error, sizeof error, &tokenizer),
                     STATUS_ERR_MALFORMED);
    ck_assert_msg(strstr(error, "wrong tokenizer") != NULL, "%s", error);
    file_model_close(&model);
    support_remove_folder(folder);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("models.tokenizer");
    TCase *cases = tcase_create("all");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, smollm2_ids_equal_the_reference);
    tcase_add_test(cases, llama3_like_json_equals_the_reference);
    tcase_add_test(cases, qwen_like_json_equals_the_reference);
    tcase_add_test(cases, random_text_survives_a_round_trip);
    tcase_add_test(cases, smollm2_text_survives_a_round_trip);
    tcase_add_test(cases, a_megabyte_of_anything_is_encoded_in_a_second);
    tcase_add_test(cases, encode_keeps_its_limits);
    tcase_add_test(cases, detokenizer_holds_back_incomplete_characters);
    tcase_add_test(cases, unknown_parts_of_a_tokenizer_are_refused);
    tcase_add_test(cases, damaged_tokenizer_files_never_crash);
    tcase_add_test(cases, a_tokenizer_with_more_tokens_than_embeddings_is_wrong);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
