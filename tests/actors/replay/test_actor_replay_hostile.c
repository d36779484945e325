/* A log is hostile: cut at every byte, changed at random, with and without a right check sum.  The
 * answer is a refusal or the replay of what is valid; nothing here may crash. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "actor_replay.h"
#include "toy_core.h"
#include "toy_log.h"

enum { FLIPS = 10000, FORKED_FLIPS = 200, LOG_SIZE_MAX = 1 << 20 };

static char folder[64];
static char path[4096];
static const char *paths[1];
static actor_replay_options_t options;
static actor_replay_report_t report;
static uint8_t bytes[LOG_SIZE_MAX];
static size_t size_bytes;

static void
setup(void)
{
    toy_wrong = TOY_RIGHT;
    toy_folder_make(folder);
    paths[0] = path;
    options = (actor_replay_options_t){.paths = paths, .path_count = 1, .role = &toy_role};
    const toy_log_options_t log = {.folder = folder,
                                   .input_count = 40,
                                   .random = 3,
                                   .snapshot_interval = 16};
    toy_log_write(&log, path);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    size_bytes = fread(bytes, 1, sizeof bytes, file);
    (void)fclose(file);
    ck_assert_uint_gt(size_bytes, PROTO_LOG_HEADER_SIZE_BYTES);
    ck_assert_uint_lt(size_bytes, LOG_SIZE_MAX);
}

static void
teardown(void)
{
    toy_folder_remove(folder);
}

/* Every prefix: never a divergence, and never more than was there. */
START_TEST(every_truncation_gives_the_prefix_or_a_refusal)
{
    uint64_t last_inputs = 40;
    for (size_t size = size_bytes; size-- > 0;) {
        ck_assert_int_eq(truncate(path, (off_t)size), 0);
        actor_replay_play(&options, &report);
        if (size <= PROTO_LOG_HEADER_SIZE_BYTES) {
            ck_assert_int_eq(report.outcome, ACTOR_REPLAY_REFUSED);
            ck_assert_str_ne(report.detail, "");
            continue;
        }
        ck_assert_int_ne(report.outcome, ACTOR_REPLAY_DIVERGED);
        ck_assert_int_ne(report.outcome, ACTOR_REPLAY_DIED);
        ck_assert_uint_le(report.input_count, last_inputs);
        last_inputs = report.input_count;
    }
    ck_assert_uint_eq(last_inputs, 0);
}
END_TEST

static uint32_t state;

static uint32_t
draw(uint32_t below)
{
    state = state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)state * below) >> 32);
}

/* Makes the check sum of the record around `at` right again, so that the change gets in. */
static void
mend(uint8_t *log, size_t at)
{
    size_t begin = PROTO_LOG_HEADER_SIZE_BYTES;
    while (begin + 8 <= size_bytes) {
        uint32_t rest;
        memcpy(&rest, bytes + begin, sizeof rest); /* of the log as it was */
        if (at < begin + 8 + rest) {
            uint32_t changed;
            memcpy(&changed, log + begin, sizeof changed);
            if (at >= begin + 8 && changed == rest) {
                uint32_t check = proto_crc32c(0, log + begin + 8, rest);
                memcpy(log + begin + 4, &check, sizeof check);
            }
            return;
        }
        begin += 8 + (size_t)rest;
    }
}

static void
write_flipped(bool mended)
{
    static uint8_t changed[LOG_SIZE_MAX];
    memcpy(changed, bytes, size_bytes);
    uint32_t count = 1 + draw(3);
    for (uint32_t i = 0; i < count; i++) {
        size_t at = draw((uint32_t)size_bytes);
        if (mended) {
            at = PROTO_LOG_HEADER_SIZE_BYTES +
                 draw((uint32_t)(size_bytes - PROTO_LOG_HEADER_SIZE_BYTES));
        }
        changed[at] = (uint8_t)(draw(4) == 0 ? draw(256) : changed[at] ^ (1u << draw(8)));
        if (mended) {
            mend(changed, at);
        }
    }
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(changed, 1, size_bytes, file), size_bytes);
    ck_assert_int_eq(fclose(file), 0);
}

static void
seed(void)
{
    const char *given = getenv("ONEPATH_SEED");
    state = given != NULL ? (uint32_t)strtoul(given, NULL, 10) : (uint32_t)time(NULL);
    printf("ONEPATH_SEED=%u\n", state);
    (void)fflush(stdout);
}

START_TEST(random_flips_never_crash)
{
    uint32_t outcomes[4] = {0};
    seed();
    for (uint32_t i = 0; i < FLIPS; i++) {
        write_flipped(i % 2 == 1);
        actor_replay_play(&options, &report);
        outcomes[report.outcome]++;
        ck_assert_int_ne(report.outcome, ACTOR_REPLAY_DIED);
        if (report.outcome == ACTOR_REPLAY_REFUSED) {
            ck_assert_str_ne(report.detail, "");
        }
    }
    printf("same %u, diverged %u, refused %u\n", outcomes[0], outcomes[1], outcomes[3]);
    ck_assert_uint_gt(outcomes[ACTOR_REPLAY_SAME], 0);
    ck_assert_uint_gt(outcomes[ACTOR_REPLAY_DIVERGED], 0);
    ck_assert_uint_gt(outcomes[ACTOR_REPLAY_REFUSED], 0);
}
END_TEST

/* The same through the child, as the command runs it. */
START_TEST(random_flips_in_a_child_end_in_a_report)
{
    seed();
    for (uint32_t i = 0; i < FORKED_FLIPS; i++) {
        write_flipped(true);
        ck_assert_int_eq(actor_replay_run(&options, &report), STATUS_OK);
        ck_assert_int_ne(report.outcome, ACTOR_REPLAY_DIED);
    }
}
END_TEST

static Suite *
suite(void)
{
    Suite *s = suite_create("actors.replay_hostile");
    TCase *tc = tcase_create("hostile");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 200);
    tcase_add_test(tc, every_truncation_gives_the_prefix_or_a_refusal);
    tcase_add_test(tc, random_flips_never_crash);
    tcase_add_test(tc, random_flips_in_a_child_end_in_a_report);
    suite_add_tcase(s, tc);
    return s;
}

int
main(void)
{
    SRunner *runner = srunner_create(suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
