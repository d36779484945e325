/* Sets of segments: the order of what is read, and what becomes of damage. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log_maker.h"
#include "log_set.h"
#include "proto_log_recover.h"

static char folder[512];

static void
set_up(void)
{
    maker_folder(folder, sizeof folder);
}

static void
tear_down(void)
{
    maker_remove(folder);
}

static log_set_t *
open_set(const log_set_options_t *options)
{
    const char *path = folder;
    log_set_t *set = NULL;
    ck_assert_int_eq(log_set_open(&path, 1, options, &set, NULL), STATUS_OK);
    return set;
}

static uint64_t
count_all(log_set_t *set)
{
    log_set_item_t item;
    uint64_t count = 0;
    proto_status_t status;
    while ((status = log_set_next(set, &item)) == STATUS_OK) {
        count++;
    }
    ck_assert_int_eq(status, STATUS_END);
    return count;
}

/* Who looks at a cluster wants one story: by time over all actors, by sequence within each. */
START_TEST(actors_are_merged_in_order_of_time)
{
    maker_log_t options = {.directory = folder, .request_count = 4};
    uint64_t written = maker_log_write(&options);
    log_set_t *set = open_set(NULL);
    ck_assert_uint_eq(log_set_stream_count(set), 3);
    uint64_t last_ns = 0, count = 0, sequences[3] = {0};
    log_set_item_t item;
    while (log_set_next(set, &item) == STATUS_OK) {
        ck_assert_uint_ge(item.record.time_ns, last_ns);
        last_ns = item.record.time_ns;
        ck_assert_uint_eq(item.record.sequence, ++sequences[item.stream]);
        count++;
    }
    ck_assert_uint_eq(count, written);
    ck_assert_int_eq(log_set_rewind(set), STATUS_OK);
    ck_assert_uint_eq(count_all(set), written);
    ck_assert_uint_eq(log_set_damage_count(set), 0);
    log_set_close(&set);
}
END_TEST

START_TEST(one_actor_is_chosen_by_name_role_or_epoch)
{
    maker_log_t first = {.directory = folder, .request_count = 1};
    maker_log_t second = {.directory = folder, .request_count = 2, .epoch = MAKER_EPOCH + 1};
    (void)maker_log_write(&first);
    (void)maker_log_write(&second);
    log_set_options_t options = {.actor = "scheduler"};
    log_set_t *set = open_set(&options);
    ck_assert_uint_eq(log_set_stream_count(set), 2);
    log_set_item_t item;
    while (log_set_next(set, &item) == STATUS_OK) {
        ck_assert_str_eq(item.header->name, "scheduler");
    }
    log_set_close(&set);
    options.epoch = MAKER_EPOCH + 1;
    set = open_set(&options);
    ck_assert_uint_eq(log_set_stream_count(set), 1);
    ck_assert_uint_eq(log_set_stream(set, 0).header->epoch, MAKER_EPOCH + 1);
    log_set_close(&set);
    options.actor = "drafter";
    const char *path = folder;
    proto_error_t error = {{0}};
    ck_assert_int_eq(log_set_open(&path, 1, &options, &set, &error), STATUS_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.detail, "drafter"));
}
END_TEST

/* Segments come as the shell sorts them, or the user types them. */
START_TEST(segments_are_read_by_index_and_each_once)
{
    maker_log_t options = {.directory = folder, .request_count = 30, .segment_size_max = 16384};
    uint64_t written = maker_log_write(&options);
    char last[600], first[600];
    maker_log_path(&options, "scheduler", first, sizeof first);
    memcpy(last, first, sizeof last);
    memcpy(strstr(last, ".000000.alog"), ".000001.alog", 12);
    const char *paths[] = {last, first, folder};
    log_set_t *set = NULL;
    ck_assert_int_eq(log_set_open(paths, 3, NULL, &set, NULL), STATUS_OK);
    ck_assert_uint_eq(log_set_stream_count(set), 3);
    ck_assert_uint_ge(log_set_stream(set, 0).segment_count, 2);
    ck_assert_uint_eq(log_set_segment_header(set, 0, 0)->segment_index, 0);
    ck_assert_uint_eq(log_set_segment_header(set, 0, 1)->segment_index, 1);
    ck_assert_uint_eq(count_all(set), written);
    log_set_close(&set);
}
END_TEST

static void
write_segment(const char *name, const char *boot, uint64_t time_ns, uint64_t realtime_ns)
{
    proto_log_header_t header = {.version = PROTO_LOG_VERSION,
                                 .role = PROTO_ROLE_SCHEDULER,
                                 .epoch = 1,
                                 .time_ns = time_ns,
                                 .realtime_ns = realtime_ns};
    (void)snprintf(header.name, sizeof header.name, "%s", name);
    (void)snprintf(header.boot, sizeof header.boot, "%s", boot);
    char path[600];
    (void)snprintf(path, sizeof path, "%s/%s.alog", folder, name);
    proto_log_copy_t *copy = NULL;
    ck_assert_int_eq(proto_log_copy_open(path, &header, &copy, NULL), STATUS_OK);
    for (uint64_t i = 1; i <= 3; i++) {
        proto_log_record_t record = {.kind = PROTO_LOG_NOTE,
                                     .sequence = i,
                                     .time_ns = time_ns + i * 1000};
        ck_assert_int_eq(proto_log_copy_append(copy, &record), STATUS_OK);
    }
    ck_assert_int_eq(proto_log_copy_commit(&copy, NULL), STATUS_OK);
}

/* Monotonic clocks of two hosts say nothing about each other; dates do. */
START_TEST(several_boots_are_merged_by_date)
{
    write_segment("late", "boot-a", 1000, 2000000000);
    write_segment("early", "boot-b", 900000000, 1000000000);
    log_set_t *set = open_set(NULL);
    log_set_item_t item;
    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(log_set_next(set, &item), STATUS_OK);
        ck_assert_str_eq(item.header->name, i < 3 ? "early" : "late");
    }
    ck_assert_uint_eq(item.realtime_ns, 2000000000 + 3000);
    log_set_close(&set);
}
END_TEST

/* Terminals and file names get these: a hostile header must not speak to either. */
START_TEST(names_of_headers_are_made_plain)
{
    write_segment("a", "boot", 1, 1);
    char path[600];
    (void)snprintf(path, sizeof path, "%s/a.alog", folder);
    proto_log_header_t header = {.version = PROTO_LOG_VERSION, .epoch = 2};
    (void)snprintf(header.name, sizeof header.name, "../\x1b[2J\"");
    proto_log_copy_t *copy = NULL;
    ck_assert_int_eq(proto_log_copy_open(path, &header, &copy, NULL), STATUS_OK);
    ck_assert_int_eq(proto_log_copy_commit(&copy, NULL), STATUS_OK);
    log_set_t *set = open_set(NULL);
    ck_assert_str_eq(log_set_stream(set, 0).header->name, "----"
                                                          "-2--");
    log_set_close(&set);
}
END_TEST

static void
damage_scheduler(const maker_log_t *options, bool cut)
{
    char path[600];
    size_t size_bytes;
    maker_log_path(options, "scheduler", path, sizeof path);
    uint8_t *data = maker_read(path, &size_bytes);
    if (cut) {
        size_bytes -= 5;
    } else {
        data[(PROTO_LOG_HEADER_SIZE_BYTES + size_bytes) / 2] ^= 0x10;
    }
    maker_write(path, data, size_bytes);
    free(data);
}

/* What is before the damage is worth as much as it was. */
START_TEST(damage_ends_its_segment_and_nothing_else)
{
    maker_log_t options = {.directory = folder, .request_count = 30, .segment_size_max = 16384};
    uint64_t written = maker_log_write(&options);
    damage_scheduler(&options, false);
    log_set_t *set = open_set(NULL);
    uint64_t count = count_all(set);
    ck_assert_uint_lt(count, written);
    ck_assert_uint_eq(log_set_damage_count(set), 1);
    const log_damage_t *damage = log_set_damage(set, 0);
    ck_assert_int_eq(damage->status, STATUS_ERR_MALFORMED);
    ck_assert_uint_gt(damage->offset, PROTO_LOG_HEADER_SIZE_BYTES);
    ck_assert_uint_gt(damage->record_count, 0);
    ck_assert_ptr_nonnull(strstr(damage->detail, "is damaged at byte"));
    /* A second pass does not count it twice. */
    ck_assert_int_eq(log_set_rewind(set), STATUS_OK);
    ck_assert_uint_eq(count_all(set), count);
    ck_assert_uint_eq(log_set_damage_count(set), 1);
    log_set_close(&set);
    /* Behind the damage, with one record that says so; one record is lost. */
    log_set_options_t skip = {.skip_damage = true};
    set = open_set(&skip);
    ck_assert_uint_eq(count_all(set), written - 1 + 1);
    ck_assert_uint_eq(log_set_damage_count(set), 1);
    log_set_close(&set);
}
END_TEST

START_TEST(a_torn_tail_is_told_apart)
{
    maker_log_t options = {.directory = folder, .request_count = 2};
    uint64_t written = maker_log_write(&options);
    damage_scheduler(&options, true);
    log_set_t *set = open_set(NULL);
    ck_assert_uint_eq(count_all(set), written - 1);
    ck_assert_uint_eq(log_set_damage_count(set), 1);
    ck_assert_int_eq(log_set_damage(set, 0)->status, STATUS_AGAIN);
    log_set_close(&set);
}
END_TEST

START_TEST(a_file_that_is_no_segment_is_damage_beside_others_and_a_refusal_alone)
{
    maker_log_t options = {.directory = folder, .request_count = 1};
    uint64_t written = maker_log_write(&options);
    char path[600];
    (void)snprintf(path, sizeof path, "%s/zero.alog", folder);
    maker_write(path, (const uint8_t *)"not a log", 9);
    log_set_t *set = open_set(NULL);
    ck_assert_uint_eq(count_all(set), written);
    ck_assert_uint_eq(log_set_damage_count(set), 1);
    ck_assert_str_eq(log_set_damage(set, 0)->path, path);
    log_set_close(&set);
    const char *alone = path;
    proto_error_t error = {{0}};
    ck_assert_int_eq(log_set_open(&alone, 1, NULL, &set, &error), STATUS_ERR_MALFORMED);
    ck_assert_ptr_nonnull(strstr(error.detail, "zero.alog"));
    alone = "/nowhere/at/all";
    ck_assert_int_eq(log_set_open(&alone, 1, NULL, &set, &error), STATUS_ERR_NOT_FOUND);
}
END_TEST

/* `show -f`: a segment that grows, a new segment, a new actor. */
START_TEST(following_sees_what_is_written_later)
{
    log_set_options_t follow = {.follow = true};
    log_set_t *set = open_set(&follow);
    log_set_item_t item;
    ck_assert_int_eq(log_set_next(set, &item), STATUS_END);
    proto_log_options_t options = {.directory = folder,
                                   .name = "scheduler",
                                   .epoch = 1,
                                   .segment_size_max = 8192,
                                   .sequence_before = PROTO_LOG_SEQUENCE_ANY};
    proto_log_writer_t *writer = NULL;
    ck_assert_int_eq(proto_log_writer_open(&options, &writer), STATUS_OK);
    static uint8_t content[1000];
    for (uint64_t i = 1; i <= 20; i++) {
        proto_log_record_t record = {.kind = PROTO_LOG_NOTE,
                                     .sequence = i,
                                     .time_ns = i,
                                     .part_count = 1,
                                     .parts = {{content, sizeof content}}};
        ck_assert_int_eq(proto_log_append(writer, &record, i), STATUS_OK);
        ck_assert_int_eq(proto_log_writer_flush(writer), STATUS_OK);
        ck_assert_int_eq(log_set_refresh(set), STATUS_OK);
        ck_assert_int_eq(log_set_next(set, &item), STATUS_OK);
        ck_assert_uint_eq(item.record.sequence, i);
        ck_assert_int_eq(log_set_next(set, &item), STATUS_END);
    }
    ck_assert_uint_gt(log_set_stream(set, 0).segment_count, 3);
    ck_assert_uint_eq(log_set_damage_count(set), 0);
    proto_log_writer_close(&writer);
    log_set_close(&set);
}
END_TEST

/* The sidecar only makes it faster: with it, without it, with a wrong one, the same records. */
START_TEST(a_place_is_found_by_sequence_and_by_time)
{
    maker_log_t options = {.directory = folder,
                           .request_count = 2000,
                           .segment_size_max = 1024 * 1024};
    (void)maker_log_write(&options);
    log_set_options_t chosen = {.actor = "scheduler"};
    log_set_t *set = open_set(&chosen);
    log_set_item_t item;
    uint64_t last = 0, last_ns = 0;
    while (log_set_next(set, &item) == STATUS_OK) {
        last = item.record.sequence;
        last_ns = item.record.time_ns;
    }
    ck_assert_uint_gt(log_set_stream(set, 0).segment_count, 2);
    log_set_close(&set);
    for (uint64_t back = 1; back < last; back += 977) {
        chosen.from_sequence = last - back;
        set = open_set(&chosen);
        uint64_t read = 0, wanted = 0;
        while (log_set_next(set, &item) == STATUS_OK) {
            read++;
            wanted += item.record.sequence >= chosen.from_sequence ? 1U : 0U;
        }
        ck_assert_uint_eq(wanted, back + 1);
        ck_assert_uint_eq(read, wanted);
        ck_assert_uint_eq(log_set_damage_count(set), 0);
        log_set_close(&set);
    }
    chosen.from_sequence = 0;
    chosen.from_time_ns = (MAKER_BEGIN_NS + last_ns) / 2;
    set = open_set(&chosen);
    ck_assert_int_eq(log_set_next(set, &item), STATUS_OK);
    ck_assert_uint_ge(item.record.time_ns, chosen.from_time_ns);
    ck_assert_uint_lt(item.record.time_ns, chosen.from_time_ns + 10000000);
    log_set_close(&set);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("log.set");
    TCase *tests = tcase_create("set");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, actors_are_merged_in_order_of_time);
    tcase_add_test(tests, one_actor_is_chosen_by_name_role_or_epoch);
    tcase_add_test(tests, segments_are_read_by_index_and_each_once);
    tcase_add_test(tests, several_boots_are_merged_by_date);
    tcase_add_test(tests, names_of_headers_are_made_plain);
    tcase_add_test(tests, damage_ends_its_segment_and_nothing_else);
    tcase_add_test(tests, a_torn_tail_is_told_apart);
    tcase_add_test(tests, a_file_that_is_no_segment_is_damage_beside_others_and_a_refusal_alone);
    tcase_add_test(tests, following_sees_what_is_written_later);
    tcase_add_test(tests, a_place_is_found_by_sequence_and_by_time);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
