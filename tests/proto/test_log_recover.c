/* Damaged segments: what is good is read, what is not is told, and nothing ever crashes. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log_support.h"
#include "message_maker.h"

enum { SMALL_RECORDS = 24, SMALL_SIZE = 90 };

static uint8_t file[LOG_FILE_SIZE_MAX];
static uint8_t changed[LOG_FILE_SIZE_MAX];
static size_t file_size;
static uint64_t offsets[SMALL_RECORDS + 2]; /* [n] = where record n begins; [last + 1] = the end */
static char segment[LOG_PATH_SIZE];

/* A small log, its bytes, and where each record begins. */
static void
set_up(void)
{
    log_folder_make();
    (void)snprintf(segment, sizeof segment, "%s", log_segment_path(0));
    log_make(SMALL_RECORDS, SMALL_SIZE);
    file_size = log_file_read(segment, file);
    proto_log_reader_t *reader = log_reader_open(segment);
    proto_log_record_t record;
    for (uint64_t sequence = 1; sequence <= SMALL_RECORDS; sequence++) {
        offsets[sequence] = proto_log_reader_offset(reader);
        ck_assert_int_eq(proto_log_reader_next(reader, &record), STATUS_OK);
    }
    offsets[SMALL_RECORDS + 1] = proto_log_reader_offset(reader);
    ck_assert_uint_eq(offsets[SMALL_RECORDS + 1], file_size);
    proto_log_reader_close(&reader);
}

static proto_log_verdict_t
verify(const char *path)
{
    proto_log_verdict_t verdict;
    proto_error_t error = {""};
    ck_assert_msg(proto_log_verify(path, &verdict, &error) == STATUS_OK, "%s", error.detail);
    return verdict;
}

/* Reads in skip mode: every record that is not made up is one of the originals, numbers rise, and
 * DROP records cover all gaps.  Returns the number of originals; *dropped gets what DROPs say. */
static uint64_t
read_skipping(const char *path, uint64_t *dropped, proto_status_t *end)
{
    proto_log_reader_t *reader = log_reader_open(path);
    proto_log_record_t record;
    uint64_t count = 0;
    uint64_t last = 0;
    uint64_t told = 0;
    *dropped = 0;
    proto_log_reader_set_skip(reader, true);
    while ((*end = proto_log_reader_next(reader, &record)) == STATUS_OK) {
        if (record.kind == PROTO_LOG_DROP) {
            told += log_drop_count(&record);
            ck_assert_uint_gt(record.sequence, last);
            continue;
        }
        log_record_check(&record, SMALL_SIZE);
        ck_assert_uint_eq(record.sequence, last + told + 1);
        last = record.sequence;
        *dropped += told;
        told = 0;
        count++;
    }
    ck_assert_uint_eq(told, 0);
    proto_log_reader_close(&reader);
    return count;
}

START_TEST(a_whole_log_has_nothing_to_say)
{
    proto_log_verdict_t verdict = verify(segment);
    ck_assert_uint_eq(verdict.records, SMALL_RECORDS);
    ck_assert_uint_eq(verdict.size_bytes, file_size);
    ck_assert_uint_eq(verdict.sequence_first, 1);
    ck_assert_uint_eq(verdict.sequence_last, SMALL_RECORDS);
    ck_assert_uint_eq(verdict.kind_counts[PROTO_LOG_IN] + verdict.kind_counts[PROTO_LOG_OUT],
                      SMALL_RECORDS);
    ck_assert_uint_eq(verdict.redacted, SMALL_RECORDS / 7);
    ck_assert_uint_eq(verdict.damage_count + verdict.torn_bytes + verdict.gaps, 0);
    ck_assert_int_eq(verdict.index_state, PROTO_LOG_INDEX_GOOD);
    ck_assert_int_eq(proto_log_recover(segment, NULL, NULL, NULL), STATUS_OK);
    ck_assert_uint_eq(log_file_read(segment, changed), file_size);
    ck_assert_mem_eq(changed, file, file_size);
}
END_TEST

/* Every byte offset: the whole records are there, the tail is called torn, recover cuts it. */
START_TEST(a_log_cut_at_any_byte_is_recovered_to_its_whole_records)
{
    const char *cut = log_path("cut.alog");
    for (size_t size = 0; size <= file_size; size++) {
        log_file_write(cut, file, size);
        proto_log_verdict_t verdict;
        proto_error_t error = {""};
        if (size < PROTO_LOG_HEADER_SIZE_BYTES) {
            size += size + 40 < PROTO_LOG_HEADER_SIZE_BYTES ? 37 : 0;
            ck_assert_int_eq(proto_log_verify(cut, &verdict, &error), STATUS_ERR_MALFORMED);
            ck_assert_int_eq(proto_log_recover(cut, NULL, NULL, NULL), STATUS_ERR_MALFORMED);
            ck_assert_uint_gt(strlen(error.detail), 10);
            continue;
        }
        uint64_t whole = 0;
        while (whole < SMALL_RECORDS && offsets[whole + 2] <= size) {
            whole++;
        }
        verdict = verify(cut);
        ck_assert_uint_eq(verdict.records, whole);
        ck_assert_uint_eq(verdict.damage_count, 0);
        ck_assert_uint_eq(verdict.torn_bytes, size - offsets[whole + 1]);
        ck_assert_int_eq(proto_log_recover(cut, NULL, NULL, NULL), STATUS_OK);
        ck_assert_uint_eq(log_file_read(cut, changed), offsets[whole + 1]);
        ck_assert_mem_eq(changed, file, offsets[whole + 1]);
        verdict = verify(cut);
        ck_assert_uint_eq(verdict.torn_bytes, 0);
        ck_assert_int_eq(verdict.index_state, PROTO_LOG_INDEX_GOOD);
    }
}
END_TEST

/* One damaged byte anywhere costs its record and no other; the gap is told and can be read. */
START_TEST(damage_in_the_middle_costs_one_record)
{
    const char *bad = log_path("bad.alog");
    uint64_t damaged = 1;
    for (size_t at = PROTO_LOG_HEADER_SIZE_BYTES; at < file_size; at++) {
        damaged += at >= offsets[damaged + 1] ? 1 : 0;
        memcpy(changed, file, file_size);
        changed[at] ^= 0x41;
        log_file_write(bad, changed, file_size);
        bool is_last = damaged == SMALL_RECORDS;
        uint64_t dropped = 0;
        proto_status_t end = STATUS_OK;
        ck_assert_uint_eq(read_skipping(bad, &dropped, &end), SMALL_RECORDS - 1);
        ck_assert_uint_eq(dropped, is_last ? 0 : 1);
        ck_assert_int_eq(end, is_last ? STATUS_AGAIN : STATUS_END);
        proto_log_verdict_t verdict = verify(bad);
        ck_assert_uint_eq(verdict.records, SMALL_RECORDS - 1);
        ck_assert_uint_eq(verdict.missing, 0);
        if (!is_last) {
            ck_assert_uint_eq(verdict.damage_count, 1);
            ck_assert_uint_eq(verdict.damages[0].begin_offset, offsets[damaged]);
            ck_assert_uint_eq(verdict.damages[0].end_offset, offsets[damaged + 1]);
            ck_assert_uint_eq(verdict.damages[0].records_lost, 1);
            ck_assert_uint_eq(verdict.damages[0].next_sequence, damaged + 1);
            ck_assert_uint_gt(strlen(verdict.damages[0].why), 10);
        }
    }
}
END_TEST

/* In place: the old file is kept, the new one is whole and says what is missing. */
START_TEST(recover_puts_a_drop_where_the_damage_was)
{
    memcpy(changed, file, file_size);
    changed[offsets[5] + 45] ^= 1;
    changed[offsets[6] + 45] ^= 1;
    changed[offsets[11]] ^= 0x80;
    log_file_write(segment, changed, file_size - 3);
    proto_log_verdict_t before;
    ck_assert_int_eq(proto_log_recover(segment, NULL, &before, NULL), STATUS_OK);
    ck_assert_uint_eq(before.damage_count, 2);
    ck_assert_uint_gt(before.torn_bytes, 0);
    proto_log_verdict_t after = verify(segment);
    ck_assert_uint_eq(after.damage_count + after.torn_bytes, 0);
    ck_assert_uint_eq(after.records, SMALL_RECORDS - 4 + 2);
    ck_assert_uint_eq(after.kind_counts[PROTO_LOG_DROP], 2);
    ck_assert_uint_eq(after.dropped, 3);
    ck_assert_uint_eq(after.missing, 3);
    ck_assert_uint_eq(after.gaps, 2);
    ck_assert_int_eq(after.index_state, PROTO_LOG_INDEX_GOOD);
    char kept[LOG_PATH_SIZE + 16];
    (void)snprintf(kept, sizeof kept, "%s.damaged", segment);
    ck_assert_uint_eq(log_file_read(kept, file), file_size - 3);
    ck_assert_mem_eq(file, changed, file_size - 3);
    struct stat info;
    ck_assert_int_eq(stat(segment, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    uint64_t dropped = 0;
    proto_status_t end = STATUS_OK;
    ck_assert_uint_eq(read_skipping(segment, &dropped, &end), SMALL_RECORDS - 4);
    ck_assert_uint_eq(dropped, 3);
    ck_assert_int_eq(end, STATUS_END);
}
END_TEST

/* Into another file: the source is not touched. */
START_TEST(recover_into_another_file)
{
    memcpy(changed, file, file_size);
    changed[offsets[3] + 20] ^= 1;
    log_file_write(segment, changed, file_size);
    const char *copy = log_path("copy.alog");
    ck_assert_int_eq(proto_log_recover(segment, copy, NULL, NULL), STATUS_OK);
    ck_assert_uint_eq(log_file_read(segment, file), file_size);
    ck_assert_mem_eq(file, changed, file_size);
    ck_assert_uint_eq(verify(copy).dropped, 1);
    ck_assert_uint_eq(verify(copy).damage_count, 0);
}
END_TEST

/* Copies records [1..], in the order of `numbers`, behind the header. */
static void
write_in_order(const char *path, const uint64_t *numbers, size_t count)
{
    size_t size = PROTO_LOG_HEADER_SIZE_BYTES;
    memcpy(changed, file, size);
    for (size_t at = 0; at < count; at++) {
        size_t record_size = (size_t)(offsets[numbers[at] + 1] - offsets[numbers[at]]);
        memcpy(changed + size, file + offsets[numbers[at]], record_size);
        size += record_size;
    }
    log_file_write(path, changed, size);
}

/* Whole records in the wrong order: reading ends where the numbers do not rise. */
START_TEST(reordered_records_are_not_believed)
{
    static const uint64_t swapped[] = {1, 2, 3, 5, 4, 6, 7};
    static const uint64_t repeated[] = {1, 2, 3, 3, 4};
    static const uint64_t back[] = {4, 5, 6, 1, 2, 3, 7};
    const char *path = log_path("order.alog");
    proto_log_record_t record;
    write_in_order(path, swapped, 7);
    proto_log_reader_t *reader = log_reader_open(path);
    for (int count = 0; count < 4; count++) {
        ck_assert_int_eq(proto_log_reader_next(reader, &record), STATUS_OK);
    }
    ck_assert_int_eq(proto_log_reader_next(reader, &record), STATUS_ERR_MALFORMED);
    ck_assert_str_eq(proto_log_reader_why(reader), "sequence 4 after 5");
    ck_assert_int_eq(proto_log_reader_next(reader, &record), STATUS_ERR_MALFORMED);
    proto_log_reader_close(&reader);
    proto_log_verdict_t verdict = verify(path);
    ck_assert_uint_eq(verdict.records, 6);
    ck_assert_uint_eq(verdict.damage_count, 1);
    ck_assert_uint_eq(verdict.gaps, 1); /* 4 is missing before 5 */
    write_in_order(path, repeated, 5);
    verdict = verify(path);
    ck_assert_uint_eq(verdict.records, 4);
    ck_assert_uint_eq(verdict.damage_count, 1);
    write_in_order(path, back, 7);
    verdict = verify(path);
    ck_assert_uint_eq(verdict.records, 4);
    ck_assert_uint_eq(verdict.damage_count, 1);
    ck_assert_uint_eq(verdict.damages[0].next_sequence, 7);
}
END_TEST

/* 10,000 times a few random bits, a cut or a moved piece. */
START_TEST(ten_thousand_damages_give_originals_or_a_refusal)
{
    maker_t *maker = maker_new(maker_seed("log damage"), 0);
    const char *bad = log_path("bad.alog");
    const char *fixed = log_path("fixed.alog");
    uint32_t refused = 0;
    uint64_t saved = 0;
    for (int round = 0; round < 10000; round++) {
        memcpy(changed, file, file_size);
        size_t size = file_size;
        for (uint64_t flips = 1 + maker_random(maker) % 4; flips > 0; flips--) {
            changed[maker_random(maker) % file_size] ^= (uint8_t)(1u << maker_random(maker) % 8);
        }
        if (round % 10 == 0) {
            size = maker_random(maker) % (file_size + 1);
        } else if (round % 10 == 1) {
            size_t length = maker_random(maker) % 300;
            size_t from = maker_random(maker) % (file_size - length);
            memmove(changed + maker_random(maker) % (file_size - length), changed + from, length);
        }
        log_file_write(bad, changed, size);
        proto_log_verdict_t verdict;
        proto_error_t error = {""};
        proto_status_t status = proto_log_verify(bad, &verdict, &error);
        if (status != STATUS_OK) {
            ck_assert(status == STATUS_ERR_MALFORMED || status == STATUS_ERR_VERSION);
            ck_assert_uint_gt(strlen(error.detail), 10);
            refused++;
            continue;
        }
        uint64_t dropped = 0;
        proto_status_t end = STATUS_OK;
        uint64_t count = read_skipping(bad, &dropped, &end);
        ck_assert(end == STATUS_END || end == STATUS_AGAIN);
        saved += count;
        if (round % 16 == 0) { /* it syncs */
            ck_assert_int_eq(proto_log_recover(bad, fixed, NULL, NULL), STATUS_OK);
            uint64_t dropped_again = 0;
            ck_assert_uint_eq(read_skipping(fixed, &dropped_again, &end), count);
            ck_assert_uint_eq(dropped_again, dropped);
            ck_assert_int_eq(end, STATUS_END);
        }
    }
    ck_assert_uint_gt(refused, 1000); /* the header is more than half of this file */
    ck_assert_uint_gt(saved, 20000);
    free(maker);
}
END_TEST

/* Every offset looks like a record and each check would be long: the search ends all the same. */
START_TEST(a_forged_tail_costs_bounded_work)
{
    size_t size = LOG_FILE_SIZE_MAX - 8;
    memcpy(changed, file, (size_t)offsets[3]);
    for (size_t at = (size_t)offsets[3]; at + 48 <= size; at += 8) {
        uint32_t rest = (uint32_t)(size - at - 8) / 8 * 8;
        uint32_t kind = 1;
        memcpy(changed + at, &rest, 4); /* read as sizes, as kinds and as numbers by turns */
        memcpy(changed + at + 4, &kind, 4);
    }
    const char *bad = log_path("forged.alog");
    log_file_write(bad, changed, size);
    proto_log_verdict_t verdict = verify(bad);
    ck_assert_uint_eq(verdict.records, 2);
    uint64_t dropped = 0;
    proto_status_t end = STATUS_OK;
    ck_assert_uint_eq(read_skipping(bad, &dropped, &end), 2);
    ck_assert_int_eq(end, STATUS_AGAIN);
}
END_TEST

/* A writer that goes on after a killed one: nothing twice, nothing torn, the gap told. */
START_TEST(the_last_number_is_found_behind_a_torn_tail)
{
    uint64_t last = 99;
    ck_assert_int_eq(proto_log_last_sequence(log_folder(), "gateway", 7, &last), STATUS_OK);
    ck_assert_uint_eq(last, 0);
    ck_assert_int_eq(proto_log_last_sequence(log_folder(), "scheduler", 8, &last), STATUS_OK);
    ck_assert_uint_eq(last, 0);
    ck_assert_int_eq(proto_log_last_sequence(log_folder(), "scheduler", 7, &last), STATUS_OK);
    ck_assert_uint_eq(last, SMALL_RECORDS);
    ck_assert_int_eq(truncate(segment, (off_t)file_size - 5), 0);
    ck_assert_int_eq(proto_log_last_sequence(log_folder(), "scheduler", 7, &last), STATUS_OK);
    ck_assert_uint_eq(last, SMALL_RECORDS - 1);
    ck_assert_uint_eq(verify(segment).torn_bytes, 0);
    proto_log_writer_t *writer = log_writer_open(0, last);
    proto_log_record_t record;
    log_record_make(last, SMALL_SIZE, &record);
    ck_assert_int_eq(proto_log_append(writer, &record, 1), STATUS_ERR_INVALID);
    log_write(writer, last + 3, last + 5, SMALL_SIZE);
    proto_log_writer_close(&writer);
    proto_log_reader_t *reader = log_reader_open(log_segment_path(1));
    ck_assert_int_eq(proto_log_reader_next(reader, &record), STATUS_OK);
    ck_assert_uint_eq(log_drop_count(&record), 2);
    ck_assert_uint_eq(record.sequence, last + 3);
    proto_log_reader_close(&reader);
    /* A newer segment without a record does not hide the older ones. */
    log_file_write(log_segment_path(2), file, PROTO_LOG_HEADER_SIZE_BYTES);
    uint64_t newest = 0;
    ck_assert_int_eq(proto_log_last_sequence(log_folder(), "scheduler", 7, &newest), STATUS_OK);
    ck_assert_uint_eq(newest, last + 5);
    ck_assert_int_eq(proto_log_last_sequence("/nonexistent", "scheduler", 7, &newest),
                     STATUS_ERR_IO);
}
END_TEST

/* What redaction marked stays marked through copy, recovery and index. */
START_TEST(redacted_records_stay_redacted)
{
    memcpy(changed, file, file_size);
    changed[offsets[2] + 30] ^= 1;
    log_file_write(segment, changed, file_size);
    ck_assert_int_eq(proto_log_recover(segment, NULL, NULL, NULL), STATUS_OK);
    ck_assert_uint_eq(verify(segment).redacted, SMALL_RECORDS / 7);
}
END_TEST

/* A tool that fails leaves nothing behind. */
START_TEST(an_aborted_copy_is_gone)
{
    proto_log_reader_t *reader = log_reader_open(segment);
    proto_log_header_t header = *proto_log_reader_header(reader);
    proto_log_reader_close(&reader);
    proto_log_copy_t *copy = NULL;
    const char *path = log_path("aborted.alog");
    ck_assert_int_eq(proto_log_copy_open(path, &header, &copy, NULL), STATUS_OK);
    proto_log_copy_abort(&copy);
    ck_assert_ptr_null(copy);
    ck_assert(!log_file_exists(path));
    ck_assert(!log_file_exists(log_path("aborted.alog.part")));
    proto_error_t error = {""};
    ck_assert_int_eq(proto_log_copy_open("/nonexistent/x.alog", &header, &copy, &error),
                     STATUS_ERR_IO);
    ck_assert_ptr_nonnull(strstr(error.detail, "/nonexistent/x.alog"));
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("proto.log_recover");
    TCase *tcase = tcase_create("recover");
    tcase_set_timeout(tcase, 230);
    tcase_add_checked_fixture(tcase, set_up, log_folder_remove);
    tcase_add_test(tcase, a_whole_log_has_nothing_to_say);
    tcase_add_test(tcase, a_log_cut_at_any_byte_is_recovered_to_its_whole_records);
    tcase_add_test(tcase, damage_in_the_middle_costs_one_record);
    tcase_add_test(tcase, recover_puts_a_drop_where_the_damage_was);
    tcase_add_test(tcase, recover_into_another_file);
    tcase_add_test(tcase, reordered_records_are_not_believed);
    tcase_add_test(tcase, ten_thousand_damages_give_originals_or_a_refusal);
    tcase_add_test(tcase, a_forged_tail_costs_bounded_work);
    tcase_add_test(tcase, the_last_number_is_found_behind_a_torn_tail);
    tcase_add_test(tcase, redacted_records_stay_redacted);
    tcase_add_test(tcase, an_aborted_copy_is_gone);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
