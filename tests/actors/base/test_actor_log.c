/* Log lines: always one JSON object, whatever is put in; repeats are limited. */
#include <check.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor_log.h"

static char path[64];
static int fd;

static void
setup(void)
{
    (void)snprintf(path, sizeof path, "/tmp/onepath-log-XXXXXX");
    fd = mkostemp(path, O_CLOEXEC);
    ck_assert_int_gt(fd, 2);
    actor_log_options_t options = {.actor = "executor-0", .epoch = 42, .fd = fd};
    actor_log_configure(&options);
}

static void
teardown(void)
{
    (void)close(fd);
    (void)unlink(path);
}

/* Parses the file's lines; the array is new. */
static json_t *
lines(void)
{
    static char line[65536];
    json_t *array = json_array();
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file) != NULL) {
        json_error_t error;
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        ck_assert_msg(object != NULL, "%s in: %s", error.text, line);
        json_array_append_new(array, object);
    }
    (void)fclose(file);
    return array;
}

START_TEST(line_has_the_documented_keys)
{
    actor_log(ACTOR_LOG_WARN, "link.down", 77,
              ACTOR_LOG_FIELDS(actor_log_u64("a", INT64_MAX), actor_log_i64("b", -5),
                               actor_log_f64("c", 0.5), actor_log_str("d", "x\"y\n\\"),
                               actor_log_f64("e", 1.0 / 0.0)),
              "link to %s is down", "gateway");
    json_t *array = lines();
    json_t *line = json_array_get(array, 0);
    ck_assert_str_eq(json_string_value(json_object_get(line, "level")), "warn");
    ck_assert_str_eq(json_string_value(json_object_get(line, "actor")), "executor-0");
    ck_assert_int_eq(json_integer_value(json_object_get(line, "epoch")), 42);
    ck_assert_int_eq(json_integer_value(json_object_get(line, "req")), 77);
    ck_assert_str_eq(json_string_value(json_object_get(line, "event")), "link.down");
    ck_assert_str_eq(json_string_value(json_object_get(line, "msg")), "link to gateway is down");
    ck_assert_int_eq(json_integer_value(json_object_get(line, "b")), -5);
    ck_assert_str_eq(json_string_value(json_object_get(line, "d")), "x\"y\n\\");
    ck_assert(json_is_null(json_object_get(line, "e")));
    ck_assert_uint_eq(strlen(json_string_value(json_object_get(line, "ts"))), 27);
    json_decref(array);
}
END_TEST

/* Hostile text (a client's, a peer's) stays inside its string, and one line stays one line. */
START_TEST(any_bytes_give_valid_json)
{
    static char text[20000];
    for (uint32_t round = 0; round < 64; round++) {
        for (uint32_t index = 0; index < sizeof text; index++) {
            text[index] = (char)(index * 131 + round * 17 + index / 256);
        }
        uint32_t size = round < 63 ? round * 100 : (uint32_t)sizeof text;
        actor_log_each(ACTOR_LOG_INFO, "test.bytes", 0,
                       ACTOR_LOG_FIELDS(actor_log_text("t", (proto_text_t){text, size})), "%.*s",
                       (int)(size > 3000 ? 3000 : size), text + 1);
    }
    json_t *array = lines();
    ck_assert_uint_eq(json_array_size(array), 64);
    json_decref(array);
}
END_TEST

/* A fault that repeats a thousand times does not fill the disk, and says how often it was. */
START_TEST(repeats_are_limited_and_counted)
{
    for (uint32_t index = 0; index < 1000; index++) {
        actor_log(ACTOR_LOG_WARN, "test.repeat", 0, NULL, "again");
    }
    actor_log(ACTOR_LOG_WARN, "test.other", 0, NULL, "another event is not held back");
    json_t *array = lines();
    size_t count = json_array_size(array);
    ck_assert_uint_ge(count, 10);
    ck_assert_uint_le(count, 40);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(array, count - 1), "event")),
                     "test.other");
    json_decref(array);
}
END_TEST

/* Lower levels are dropped before anything is formatted. */
START_TEST(level_is_obeyed)
{
    actor_log_level_t level = ACTOR_LOG_DEBUG;
    ck_assert(actor_log_level_parse("error", &level));
    ck_assert(!actor_log_level_parse("loud", &level));
    actor_log_set_level(level);
    actor_log(ACTOR_LOG_WARN, "test.low", 0, NULL, "not seen");
    actor_log(ACTOR_LOG_ERROR, "test.high", 0, NULL, "seen");
    json_t *array = lines();
    ck_assert_uint_eq(json_array_size(array), 1);
    json_decref(array);
    actor_log_set_level(ACTOR_LOG_INFO);
}
END_TEST

/* A reader that stands still costs lines, never time. */
START_TEST(full_pipe_drops_lines)
{
    int fds[2];
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
    actor_log_options_t options = {.actor = "executor-0", .fd = fds[1]};
    actor_log_configure(&options);
    uint64_t before = actor_log_dropped();
    for (uint32_t index = 0; index < 5000; index++) {
        actor_log_each(ACTOR_LOG_INFO, "test.pipe", 0, NULL, "line %u of many that nobody reads",
                       index);
    }
    ck_assert_uint_gt(actor_log_dropped(), before);
    (void)close(fds[0]);
    (void)close(fds[1]);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.log");
    TCase *test = tcase_create("log");
    tcase_add_checked_fixture(test, setup, teardown);
    tcase_add_test(test, line_has_the_documented_keys);
    tcase_add_test(test, any_bytes_give_valid_json);
    tcase_add_test(test, repeats_are_limited_and_counted);
    tcase_add_test(test, level_is_obeyed);
    tcase_add_test(test, full_pipe_drops_lines);
    suite_add_tcase(suite, test);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
