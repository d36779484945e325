/* A log is hostile: cut at every byte, with bits flipped anywhere, every tool ends with the valid
 * prefix or a refusal.  Flips behind the check (CRC) are made good, or hardly one would get past
 * it. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "log_maker.h"
#include "log_tools.h"
#include "proto_log.h"

enum {
    FLIPS = 10000,
    WRITERS_EVERY = 7, /* tries in which the tools that write logs run too */
    RECORD_PREFIX = 8,
};

static char folder[512], scratch[600], path[600];
static FILE *sink;

static void
set_up(void)
{
    maker_folder(folder, sizeof folder);
    (void)snprintf(scratch, sizeof scratch, "%s/scratch", folder);
    (void)snprintf(path, sizeof path, "%s/hostile.alog", folder);
    sink = fopen("/dev/null", "w");
    ck_assert_ptr_nonnull(sink);
}

static void
tear_down(void)
{
    (void)fclose(sink);
    maker_remove(folder);
}

static uint8_t *
small_log(const char *actor, uint32_t requests, size_t *size_bytes)
{
    maker_log_t options = {.directory = folder, .request_count = requests};
    char source[600];
    (void)maker_log_write(&options);
    maker_log_path(&options, actor, source, sizeof source);
    return maker_read(source, size_bytes);
}

static void
try_bytes(const uint8_t *data, size_t size_bytes)
{
    static uint32_t turn;
    bool writers = turn++ % WRITERS_EVERY == 0;
    maker_write(path, data, size_bytes);
    if (writers) {
        maker_remove(scratch);
        ck_assert_int_eq(mkdir(scratch, 0700), 0);
    }
    log_tools_run_all(path, scratch, writers, sink);
}

static uint64_t random_state;

static uint64_t
random_next(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void
seed_random(const char *test)
{
    const char *given = getenv("ONEPATH_SEED");
    random_state = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    printf("%s: ONEPATH_SEED=%" PRIu64 "\n", test, random_state);
    (void)fflush(stdout);
    random_state = random_state * 2 + 1;
}

/* Puts the checks of header and records right, where lengths still make sense. */
static void
repair_checks(uint8_t *data, size_t size_bytes)
{
    uint32_t crc = proto_crc32c(0, data, PROTO_LOG_HEADER_SIZE_BYTES - 4);
    memcpy(data + PROTO_LOG_HEADER_SIZE_BYTES - 4, &crc, sizeof crc);
    size_t at = PROTO_LOG_HEADER_SIZE_BYTES;
    while (size_bytes - at >= RECORD_PREFIX) {
        uint32_t rest;
        memcpy(&rest, data + at, sizeof rest);
        if (rest > size_bytes - at - RECORD_PREFIX) {
            return;
        }
        crc = proto_crc32c(0, data + at + RECORD_PREFIX, rest);
        memcpy(data + at + 4, &crc, sizeof crc);
        at += RECORD_PREFIX + (size_t)rest;
    }
}

START_TEST(cut_at_every_byte)
{
    size_t size_bytes;
    uint8_t *data = small_log("scheduler", 1, &size_bytes);
    for (size_t cut = 0; cut <= size_bytes; cut++) {
        /* All cuts within the header are one case: a few of them do. */
        if (cut < PROTO_LOG_HEADER_SIZE_BYTES && cut % 97 != 0) {
            continue;
        }
        try_bytes(data, cut);
    }
    free(data);
}
END_TEST

START_TEST(flipped_anywhere)
{
    seed_random("flipped_anywhere");
    static const char *const actors[] = {"gateway", "scheduler", "executor"};
    size_t size_bytes;
    uint8_t *data = small_log(actors[random_next() % 3], 1, &size_bytes);
    uint8_t *copy = malloc(size_bytes);
    ck_assert_ptr_nonnull(copy);
    for (uint32_t flip = 0; flip < FLIPS; flip++) {
        memcpy(copy, data, size_bytes);
        /* Half of them in the records, where there is most to get wrong. */
        size_t begin = flip % 8 == 0 ? 0 : PROTO_LOG_HEADER_SIZE_BYTES;
        for (uint64_t count = 1 + random_next() % 3; count > 0; count--) {
            copy[begin + random_next() % (size_bytes - begin)] ^=
                (uint8_t)(1U << random_next() % 8);
        }
        if (flip % 4 != 1) {
            repair_checks(copy, size_bytes);
        }
        try_bytes(copy, size_bytes);
    }
    free(copy);
    free(data);
}
END_TEST

/* Records out of order, repeated, from another file. */
START_TEST(records_are_shuffled)
{
    seed_random("records_are_shuffled");
    size_t size_bytes, other_bytes;
    uint8_t *data = small_log("scheduler", 2, &size_bytes);
    uint8_t *other = small_log("executor", 1, &other_bytes);
    uint8_t *made = malloc(size_bytes * 4);
    ck_assert_ptr_nonnull(made);
    for (uint32_t round = 0; round < 200; round++) {
        memcpy(made, data, PROTO_LOG_HEADER_SIZE_BYTES);
        size_t end = PROTO_LOG_HEADER_SIZE_BYTES;
        for (uint32_t i = 0; i < 40 && end < size_bytes * 3; i++) {
            const uint8_t *from = random_next() % 4 == 0 ? other : data;
            size_t from_bytes = from == data ? size_bytes : other_bytes;
            size_t at = PROTO_LOG_HEADER_SIZE_BYTES;
            uint32_t rest = 0;
            for (uint64_t skip = random_next() % 12; at + RECORD_PREFIX < from_bytes; skip--) {
                memcpy(&rest, from + at, sizeof rest);
                if (skip == 0) {
                    break;
                }
                at += RECORD_PREFIX + (size_t)rest;
            }
            if (at + RECORD_PREFIX + rest <= from_bytes) {
                memcpy(made + end, from + at, RECORD_PREFIX + (size_t)rest);
                end += RECORD_PREFIX + (size_t)rest;
            }
        }
        try_bytes(made, end);
    }
    free(made);
    free(other);
    free(data);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("log.hostile");
    TCase *tests = tcase_create("hostile");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_set_timeout(tests, 240);
    tcase_add_test(tests, cut_at_every_byte);
    tcase_add_test(tests, flipped_anywhere);
    tcase_add_test(tests, records_are_shuffled);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
