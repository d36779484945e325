/* The sidecar of a segment: it may make a look-up faster, and never wrong. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log_support.h"
#include "message_maker.h"

enum { RECORDS = 3000, SIZE_MAX_BYTES = 400 };

static uint8_t file[LOG_FILE_SIZE_MAX];
static char segment[LOG_PATH_SIZE];
static char sidecar[LOG_PATH_SIZE];

static void
set_up(void)
{
    log_folder_make();
    (void)snprintf(segment, sizeof segment, "%s", log_segment_path(0));
    ck_assert_int_eq(proto_log_index_path(segment, sidecar, sizeof sidecar), STATUS_OK);
}

static proto_log_index_t *
open_index(proto_log_index_state_t wanted)
{
    proto_log_index_t *index = NULL;
    proto_log_index_state_t state = PROTO_LOG_INDEX_WRONG;
    ck_assert_int_eq(proto_log_index_open(segment, &index, &state, NULL), STATUS_OK);
    ck_assert_msg(state == wanted, "the sidecar is %s, not %s", proto_log_index_state_name(state),
                  proto_log_index_state_name(wanted));
    return index;
}

static proto_log_index_state_t
check_index(void)
{
    proto_log_index_state_t state = PROTO_LOG_INDEX_WRONG;
    ck_assert_int_eq(proto_log_index_check(segment, &state, NULL), STATUS_OK);
    return state;
}

/* Looks for `sequence` of RECORDS records: it must be found whatever the index says. */
static void
check_seek(const proto_log_index_t *index, proto_log_reader_t *reader, uint64_t sequence)
{
    proto_log_record_t record;
    uint64_t wanted = sequence > 0 ? sequence : 1;
    ck_assert_int_eq(proto_log_index_seek_sequence(index, reader, sequence), STATUS_OK);
    proto_status_t status = proto_log_reader_next(reader, &record);
    if (wanted > RECORDS) {
        ck_assert_int_eq(status, STATUS_END);
        return;
    }
    ck_assert_int_eq(status, STATUS_OK);
    ck_assert_uint_eq(record.sequence, wanted);
    log_record_check(&record, SIZE_MAX_BYTES);
    /* Three records share a time; the first of them is wanted. */
    uint64_t first = wanted / 3 * 3 > 0 ? wanted / 3 * 3 : 1;
    ck_assert_int_eq(proto_log_index_seek_time(index, reader, record.time_ns), STATUS_OK);
    ck_assert_int_eq(proto_log_reader_next(reader, &record), STATUS_OK);
    ck_assert_uint_eq(record.sequence, first);
}

START_TEST(every_record_is_found_by_number_and_by_time)
{
    log_make(RECORDS, SIZE_MAX_BYTES);
    proto_log_index_t *index = open_index(PROTO_LOG_INDEX_GOOD);
    ck_assert_uint_gt(proto_log_index_count(index), 5);
    ck_assert_int_eq(check_index(), PROTO_LOG_INDEX_GOOD);
    proto_log_reader_t *reader = log_reader_open(segment);
    for (uint64_t sequence = 0; sequence <= RECORDS + 2; sequence++) {
        check_seek(index, reader, sequence);
    }
    for (uint64_t sequence = 1; sequence < RECORDS; sequence += 500) {
        check_seek(NULL, reader, sequence);
    }
    proto_log_reader_close(&reader);
    proto_log_index_close(&index);
}
END_TEST

/* The point of it all: a look-up reads one span, not the segment. */
START_TEST(a_look_up_begins_near_its_goal)
{
    log_make(RECORDS, SIZE_MAX_BYTES);
    proto_log_index_t *index = open_index(PROTO_LOG_INDEX_GOOD);
    uint64_t end = PROTO_LOG_HEADER_SIZE_BYTES;
    uint32_t count = proto_log_index_count(index);
    for (uint32_t at = 0; at < count; at++) {
        const proto_log_index_block_t *block = proto_log_index_at(index, at);
        ck_assert_uint_eq(block->offset, end);
        ck_assert(at + 1 == count || block->size_bytes >= PROTO_LOG_INDEX_SPAN_BYTES);
        ck_assert_uint_le(block->size_bytes, PROTO_LOG_INDEX_SPAN_BYTES + SIZE_MAX_BYTES + 200);
        ck_assert_uint_eq(block->record_count, block->sequence_last - block->sequence_first + 1);
        end += block->size_bytes;
    }
    ck_assert_uint_eq(end, proto_log_index_end_offset(index));
    proto_log_index_close(&index);
}
END_TEST

/* A request that a block holds is never denied; one that it does not is denied nearly always. */
START_TEST(the_filter_denies_no_request_that_is_there)
{
    log_make(RECORDS, SIZE_MAX_BYTES);
    proto_log_index_t *index = open_index(PROTO_LOG_INDEX_GOOD);
    uint32_t wrong = 0;
    uint32_t asked = 0;
    for (uint32_t at = 0; at < proto_log_index_count(index); at++) {
        const proto_log_index_block_t *block = proto_log_index_at(index, at);
        uint64_t first = 1 + block->sequence_first / 10;
        uint64_t last = 1 + block->sequence_last / 10;
        for (uint64_t request = 1; request <= 1 + RECORDS / 10 + 1000; request++) {
            bool may_hold = proto_log_index_may_hold(block, request);
            if (request >= first && request <= last) {
                ck_assert(may_hold);
            } else {
                asked++;
                wrong += may_hold ? 1 : 0;
            }
        }
    }
    ck_assert_uint_lt(wrong * 100, asked); /* below 1 % */
    proto_log_index_close(&index);
}
END_TEST

START_TEST(a_rebuilt_sidecar_is_the_written_one)
{
    static uint8_t rebuilt[LOG_FILE_SIZE_MAX];
    log_make(RECORDS, SIZE_MAX_BYTES);
    size_t size_bytes = log_file_read(sidecar, file);
    ck_assert_int_eq(unlink(sidecar), 0);
    ck_assert_int_eq(check_index(), PROTO_LOG_INDEX_MISSING);
    proto_log_index_t *index = open_index(PROTO_LOG_INDEX_MISSING);
    ck_assert_uint_eq(proto_log_index_count(index), 0);
    proto_log_index_close(&index);
    ck_assert_int_eq(proto_log_index_rebuild(segment, NULL), STATUS_OK);
    ck_assert_uint_eq(log_file_read(sidecar, rebuilt), size_bytes);
    ck_assert_mem_eq(file, rebuilt, size_bytes);
    ck_assert_int_eq(check_index(), PROTO_LOG_INDEX_GOOD);
}
END_TEST

/* While a segment is written its sidecar is behind, and right. */
START_TEST(a_growing_segment_has_a_partial_sidecar)
{
    proto_log_writer_t *writer = log_writer_open(0, 0);
    log_write(writer, 1, RECORDS, SIZE_MAX_BYTES);
    ck_assert_int_eq(proto_log_writer_flush(writer), STATUS_OK);
    proto_log_index_t *index = open_index(PROTO_LOG_INDEX_PARTIAL);
    ck_assert_uint_gt(proto_log_index_count(index), 5);
    proto_log_reader_t *reader = log_reader_open(segment);
    for (uint64_t sequence = 1; sequence <= RECORDS + 1; sequence += 97) {
        check_seek(index, reader, sequence);
    }
    check_seek(index, reader, RECORDS);
    ck_assert_int_eq(check_index(), PROTO_LOG_INDEX_PARTIAL);
    proto_log_reader_close(&reader);
    proto_log_index_close(&index);
    proto_log_writer_close(&writer);
}
END_TEST

/* Finds some records with whatever sidecar there is now. */
static void
check_some(maker_t *maker)
{
    proto_log_index_t *index = NULL;
    ck_assert_int_eq(proto_log_index_open(segment, &index, NULL, NULL), STATUS_OK);
    proto_log_reader_t *reader = log_reader_open(segment);
    for (int count = 0; count < 6; count++) {
        check_seek(index, reader, maker_random(maker) % (RECORDS + 2));
    }
    proto_log_reader_close(&reader);
    proto_log_index_close(&index);
}

/* Flipped bits and a cut at any place: what is found stays right. */
START_TEST(a_damaged_sidecar_misleads_nobody)
{
    maker_t *maker = maker_new(maker_seed("damaged sidecar"), 0);
    log_make(RECORDS, SIZE_MAX_BYTES);
    size_t size_bytes = log_file_read(sidecar, file);
    uint32_t noticed = 0;
    for (int round = 0; round < 400; round++) {
        size_t at = maker_random(maker) % size_bytes;
        uint8_t bit = (uint8_t)(1u << maker_random(maker) % 8);
        file[at] ^= bit;
        log_file_write(sidecar, file, size_bytes);
        file[at] ^= bit;
        check_some(maker);
        noticed += check_index() == PROTO_LOG_INDEX_WRONG ? 1 : 0;
    }
    ck_assert_uint_eq(noticed, 400); /* no bit is without its check */
    for (size_t size = 0; size < size_bytes; size += 1 + maker_random(maker) % 40) {
        log_file_write(sidecar, file, size);
        check_some(maker);
        ck_assert_int_ne(check_index(), PROTO_LOG_INDEX_GOOD);
    }
    free(maker);
}
END_TEST

static void
seal_block(uint8_t *block, const uint8_t *segment_id)
{
    uint32_t crc =
        proto_crc32c(proto_crc32c(0, segment_id, 16), block, PROTO_LOG_INDEX_BLOCK_SIZE_BYTES - 4);
    memcpy(block + PROTO_LOG_INDEX_BLOCK_SIZE_BYTES - 4, &crc, sizeof crc);
}

/* Forged with right checks: numbers that lead elsewhere, past the end, round in a circle. */
START_TEST(a_forged_sidecar_misleads_nobody)
{
    static uint8_t forged[LOG_FILE_SIZE_MAX];
    static const uint64_t values[] = {0, 1, 8, 4096, 4104, UINT64_MAX, UINT64_MAX - 7, 1 << 20};
    maker_t *maker = maker_new(maker_seed("forged sidecar"), 0);
    log_make(RECORDS, SIZE_MAX_BYTES);
    size_t size_bytes = log_file_read(sidecar, file);
    size_t blocks =
        (size_bytes - PROTO_LOG_INDEX_HEADER_SIZE_BYTES) / PROTO_LOG_INDEX_BLOCK_SIZE_BYTES;
    for (int round = 0; round < 600; round++) {
        memcpy(forged, file, size_bytes);
        uint8_t *block = forged + PROTO_LOG_INDEX_HEADER_SIZE_BYTES +
                         maker_random(maker) % blocks * PROTO_LOG_INDEX_BLOCK_SIZE_BYTES;
        for (uint64_t changes = 1 + maker_random(maker) % 3; changes > 0; changes--) {
            uint64_t number;
            uint8_t *field = block + 8 * (maker_random(maker) % 6);
            memcpy(&number, field, sizeof number);
            number = maker_random(maker) % 2 == 0 ? values[maker_random(maker) % 8]
                                                  : number + 8 * (maker_random(maker) % 64) - 256;
            memcpy(field, &number, sizeof number);
        }
        seal_block(block, file + 16);
        log_file_write(sidecar, forged, size_bytes);
        check_some(maker);
    }
    free(maker);
}
END_TEST

/* The sidecar of another segment, and one of the same that has been made anew since. */
START_TEST(a_stale_sidecar_is_wrong)
{
    log_make(RECORDS, SIZE_MAX_BYTES);
    size_t size_bytes = log_file_read(sidecar, file);
    proto_log_header_t header;
    proto_log_reader_t *reader = log_reader_open(segment);
    header = *proto_log_reader_header(reader);
    proto_log_reader_close(&reader);
    proto_log_new_segment_id(header.segment_id);
    proto_log_copy_t *copy = NULL;
    ck_assert_int_eq(proto_log_copy_open(segment, &header, &copy, NULL), STATUS_OK);
    for (uint64_t sequence = 1; sequence <= RECORDS; sequence++) {
        proto_log_record_t record;
        log_record_make(sequence, SIZE_MAX_BYTES, &record);
        ck_assert_int_eq(proto_log_copy_append(copy, &record), STATUS_OK);
    }
    ck_assert_int_eq(proto_log_copy_commit(&copy, NULL), STATUS_OK);
    ck_assert_int_eq(check_index(), PROTO_LOG_INDEX_GOOD);
    log_file_write(sidecar, file, size_bytes);
    proto_log_index_t *index = open_index(PROTO_LOG_INDEX_WRONG);
    ck_assert_uint_eq(proto_log_index_count(index), 0);
    proto_log_index_close(&index);
}
END_TEST

/* Where the segment is cut, the sidecar's blocks beyond the cut do not count. */
START_TEST(a_sidecar_longer_than_its_segment_is_cut)
{
    log_make(RECORDS, SIZE_MAX_BYTES);
    ck_assert_int_eq(truncate(segment, 200000), 0);
    proto_log_index_t *index = open_index(PROTO_LOG_INDEX_WRONG);
    ck_assert_uint_gt(proto_log_index_count(index), 0);
    ck_assert_uint_le(proto_log_index_end_offset(index), 200000);
    proto_log_index_close(&index);
}
END_TEST

/* A DROP has the number of the record after it: the look-up gives the DROP, even where a block
 * ends between the two. */
START_TEST(a_look_up_gives_the_drop_before_its_record)
{
    proto_log_writer_t *writer = log_writer_open(0, 0);
    for (uint64_t sequence = 1; sequence <= RECORDS; sequence += 5) {
        log_write(writer, sequence, sequence, SIZE_MAX_BYTES);
    }
    proto_log_writer_close(&writer);
    proto_log_index_t *index = open_index(PROTO_LOG_INDEX_GOOD);
    proto_log_reader_t *reader = log_reader_open(segment);
    for (uint64_t sequence = 6; sequence <= RECORDS; sequence += 5) {
        proto_log_record_t record;
        ck_assert_int_eq(proto_log_index_seek_sequence(index, reader, sequence - 2), STATUS_OK);
        ck_assert_int_eq(proto_log_reader_next(reader, &record), STATUS_OK);
        ck_assert_uint_eq(log_drop_count(&record), 4);
        ck_assert_uint_eq(record.sequence, sequence);
        ck_assert_int_eq(proto_log_reader_next(reader, &record), STATUS_OK);
        ck_assert_uint_eq(record.sequence, sequence);
        log_record_check(&record, SIZE_MAX_BYTES);
    }
    proto_log_reader_close(&reader);
    proto_log_index_close(&index);
}
END_TEST

/* Old segments go, and their sidecars with them. */
START_TEST(sidecars_go_with_their_segments)
{
    proto_log_options_t options = {.directory = log_folder(),
                                   .name = "scheduler",
                                   .role = PROTO_ROLE_SCHEDULER,
                                   .epoch = 7,
                                   .segment_size_max = 20000,
                                   .segment_count_max = 2};
    proto_log_writer_t *writer = NULL;
    ck_assert_int_eq(proto_log_writer_open(&options, &writer), STATUS_OK);
    log_write(writer, 1, 400, 200);
    proto_log_writer_close(&writer);
    uint32_t segments = 0;
    for (uint32_t index = 0; index < 20; index++) {
        char path[LOG_PATH_SIZE];
        ck_assert_int_eq(proto_log_index_path(log_segment_path(index), path, sizeof path),
                         STATUS_OK);
        ck_assert_int_eq(log_file_exists(log_segment_path(index)), log_file_exists(path));
        segments += log_file_exists(path) ? 1 : 0;
    }
    ck_assert_uint_eq(segments, 2);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("proto.log_index");
    TCase *tcase = tcase_create("index");
    tcase_set_timeout(tcase, 110);
    tcase_add_checked_fixture(tcase, set_up, log_folder_remove);
    tcase_add_test(tcase, every_record_is_found_by_number_and_by_time);
    tcase_add_test(tcase, a_look_up_begins_near_its_goal);
    tcase_add_test(tcase, the_filter_denies_no_request_that_is_there);
    tcase_add_test(tcase, a_rebuilt_sidecar_is_the_written_one);
    tcase_add_test(tcase, a_growing_segment_has_a_partial_sidecar);
    tcase_add_test(tcase, a_damaged_sidecar_misleads_nobody);
    tcase_add_test(tcase, a_forged_sidecar_misleads_nobody);
    tcase_add_test(tcase, a_stale_sidecar_is_wrong);
    tcase_add_test(tcase, a_sidecar_longer_than_its_segment_is_cut);
    tcase_add_test(tcase, a_look_up_gives_the_drop_before_its_record);
    tcase_add_test(tcase, sidecars_go_with_their_segments);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
