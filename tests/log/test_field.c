/* The first field that differs, for every message of the list. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "log_field.h"
#include "message_maker.h"

/* The comparison of the codec's tests knows the fields too: both must name the same one. */
START_TEST(first_field_agrees_with_the_codecs_comparison)
{
    uint64_t seed = maker_seed("log.field");
    maker_t *left = maker_new(seed, 12), *right = maker_new(seed + 1, 12);
    uint32_t count = 0;
    const proto_message_t *messages = proto_message_all(&count);
    static proto_body_t a, b;
    for (uint32_t round = 0; round < 200; round++) {
        for (uint32_t i = 0; i < count; i++) {
            const proto_message_t *message = &messages[i];
            maker_fill(left, message, &a);
            maker_fill(right, message, &b);
            log_field_diff_t diff;
            ck_assert(!log_field_diff(message->kind, &a, &a, NULL, NULL));
            const char *field = maker_difference(message, &a, &b);
            bool differ = log_field_diff(message->kind, &a, &b, NULL, &diff);
            ck_assert_int_eq(differ, field != NULL);
            bool same_hash =
                log_field_hash(message->kind, &a, NULL) == log_field_hash(message->kind, &b, NULL);
            ck_assert_int_eq(same_hash, !differ);
            if (differ) {
                const char *dot = strchr(diff.path, '.');
                ck_assert_ptr_nonnull(dot);
                ck_assert_int_eq(strncmp(dot + 1, field, strlen(field)), 0);
                ck_assert_str_ne(diff.left, "");
                ck_assert_str_ne(diff.right, "");
            }
        }
    }
    free(left);
    free(right);
}
END_TEST

START_TEST(an_element_of_a_column_is_named)
{
    uint32_t left[20], right[20];
    for (uint32_t i = 0; i < 20; i++) {
        left[i] = right[i] = i;
    }
    right[17] = 99;
    right[19] = 98;
    proto_body_t a = {.plan = {.step = 4, .patch_blocks = {left, 20}, .width = 1}};
    proto_body_t b = {.plan = {.step = 4, .patch_blocks = {right, 20}, .width = 2}};
    log_field_diff_t diff;
    ck_assert(log_field_diff(PROTO_KIND_PLAN, &a, &b, NULL, &diff));
    ck_assert_str_eq(diff.path, "plan.width");
    ck_assert_uint_eq(diff.more_count, 1);
    const char *ignored[] = {"plan.width"};
    log_field_options_t options = {.ignored = ignored, .ignored_count = 1};
    ck_assert(log_field_diff(PROTO_KIND_PLAN, &a, &b, &options, &diff));
    ck_assert_str_eq(diff.path, "plan.patch_blocks[17]");
    ck_assert_str_eq(diff.left, "17");
    ck_assert_str_eq(diff.right, "99");
    ck_assert_uint_eq(diff.more_count, 0);
    /* A column that is shorter ends where the other goes on. */
    b.plan.patch_blocks = (proto_column_u32_t){left, 18};
    ck_assert(log_field_diff(PROTO_KIND_PLAN, &a, &b, &options, &diff));
    ck_assert_str_eq(diff.path, "plan.patch_blocks[18]");
    ck_assert_str_eq(diff.left, "18");
    ck_assert_str_eq(diff.right, "(ends)");
}
END_TEST

START_TEST(private_fields_are_skipped_or_hidden)
{
    int32_t left[] = {1, 2}, right[] = {1, 3};
    proto_body_t a = {.submit = {.prompt_length = 2, .tokens = {left, 2}}};
    proto_body_t b = {.submit = {.prompt_length = 2, .tokens = {right, 2}}};
    log_field_diff_t diff;
    log_field_options_t options = {.ignore_private = true};
    ck_assert(!log_field_diff(PROTO_KIND_SUBMIT, &a, &b, &options, &diff));
    options = (log_field_options_t){.hide_private = true};
    ck_assert(log_field_diff(PROTO_KIND_SUBMIT, &a, &b, &options, &diff));
    ck_assert_str_eq(diff.path, "submit.tokens[1]");
    ck_assert_str_eq(diff.left, "(private)");
    ck_assert_str_eq(diff.right, "(private)");
    ck_assert(log_field_diff(PROTO_KIND_SUBMIT, &a, &b, NULL, &diff));
    ck_assert_str_eq(diff.right, "3");
}
END_TEST

START_TEST(floats_are_the_same_within_the_tolerance)
{
    float left[] = {-1.0F, -100.0F}, right[] = {-1.0005F, -100.05F};
    proto_body_t a = {.tokens = {.logprob_values = {left, 2}}};
    proto_body_t b = {.tokens = {.logprob_values = {right, 2}}};
    log_field_diff_t diff;
    log_field_options_t options = {.tolerance = 1e-3};
    ck_assert(!log_field_diff(PROTO_KIND_TOKENS, &a, &b, &options, &diff));
    options.tolerance = 4e-4;
    ck_assert(log_field_diff(PROTO_KIND_TOKENS, &a, &b, &options, &diff));
    ck_assert_str_eq(diff.path, "tokens.logprob_values[0]");
    ck_assert(log_field_diff(PROTO_KIND_TOKENS, &a, &b, NULL, &diff));
}
END_TEST

static proto_column_u8_t
encode_sampling(double temperature, uint64_t seed, uint8_t *room, size_t capacity)
{
    proto_body_t body = {.sampling = {.temperature = temperature, .top_p = 1, .seed = seed}};
    size_t size_bytes = 0, blob_size_bytes = 0;
    ck_assert_int_eq(proto_body_encode(PROTO_KIND_SAMPLING, &body, room, capacity, &size_bytes,
                                       NULL, 0, &blob_size_bytes),
                     STATUS_OK);
    return (proto_column_u8_t){room, (uint32_t)size_bytes};
}

/* SAMPLING travels as bytes; people ask which of its fields it was. */
START_TEST(sampling_is_compared_by_its_fields)
{
    uint8_t rooms[3][512];
    proto_body_t a = {.submit = {.sampling = encode_sampling(0.5, 1, rooms[0], 512)}};
    proto_body_t b = {.submit = {.sampling = encode_sampling(0.7, 1, rooms[1], 512)}};
    proto_body_t c = {.submit = {.sampling = encode_sampling(0.5, 2, rooms[2], 512)}};
    log_field_diff_t diff;
    ck_assert(log_field_diff(PROTO_KIND_SUBMIT, &a, &b, NULL, &diff));
    ck_assert_str_eq(diff.path, "submit.sampling.temperature");
    ck_assert_str_eq(diff.left, "0.5");
    const char *ignored[] = {"sampling.seed"};
    log_field_options_t options = {.ignored = ignored, .ignored_count = 1};
    ck_assert(log_field_diff(PROTO_KIND_SUBMIT, &a, &c, NULL, &diff));
    ck_assert(!log_field_diff(PROTO_KIND_SUBMIT, &a, &c, &options, &diff));
    ck_assert_uint_eq(log_field_hash(PROTO_KIND_SUBMIT, &a, &options),
                      log_field_hash(PROTO_KIND_SUBMIT, &c, &options));
    options = (log_field_options_t){.hide_private = true};
    ck_assert(log_field_diff(PROTO_KIND_SUBMIT, &a, &b, &options, &diff));
    ck_assert_str_eq(diff.left, "(private)");
}
END_TEST

START_TEST(headers_are_compared_without_what_belongs_to_the_link)
{
    proto_header_t a = {.version = 1, .kind = PROTO_KIND_PLAN, .sequence = 7, .cause = 3};
    proto_header_t b = {.version = 2, .kind = PROTO_KIND_PLAN, .sequence = 9, .cause = 3};
    log_field_diff_t diff;
    ck_assert(!log_field_diff_header(&a, &b, NULL, &diff));
    b.cause = 4;
    ck_assert(log_field_diff_header(&a, &b, NULL, &diff));
    ck_assert_str_eq(diff.path, "header.cause");
    ck_assert_str_eq(diff.left, "3");
    ck_assert_str_eq(diff.right, "4");
    const char *ignored[] = {"header.cause"};
    log_field_options_t options = {.ignored = ignored, .ignored_count = 1};
    ck_assert(!log_field_diff_header(&a, &b, &options, &diff));
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("log.field");
    TCase *tests = tcase_create("field");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, first_field_agrees_with_the_codecs_comparison);
    tcase_add_test(tests, an_element_of_a_column_is_named);
    tcase_add_test(tests, private_fields_are_skipped_or_hidden);
    tcase_add_test(tests, floats_are_the_same_within_the_tolerance);
    tcase_add_test(tests, sampling_is_compared_by_its_fields);
    tcase_add_test(tests, headers_are_compared_without_what_belongs_to_the_link);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
