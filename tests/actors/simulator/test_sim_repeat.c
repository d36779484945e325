/* The same seed is the same run, to the last byte of its log; a full disk costs records, never
 * answers. */
#include <check.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actor_sim.h"
#include "proto_log.h"

enum { FILE_COUNT_MAX = 128, PATH_SIZE = 512 };

typedef struct {
    char folder[64];
    char *names[FILE_COUNT_MAX];
    int count;
} folder_t;

static void
folder_make(folder_t *self)
{
    memset(self, 0, sizeof *self);
    (void)snprintf(self->folder, sizeof self->folder, "/tmp/onepath-sim-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(self->folder));
}

static int
by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void
folder_read(folder_t *self)
{
    DIR *stream = opendir(self->folder);
    ck_assert_ptr_nonnull(stream);
    const struct dirent *entry = NULL;
    while ((entry = readdir(stream)) != NULL) {
        if (entry->d_name[0] != '.') {
            ck_assert_int_lt(self->count, FILE_COUNT_MAX);
            self->names[self->count++] = strdup(entry->d_name);
        }
    }
    (void)closedir(stream);
    qsort(self->names, (size_t)self->count, sizeof self->names[0], by_name);
}

static void
folder_remove(folder_t *self)
{
    char path[PATH_SIZE];
    for (int i = 0; i < self->count; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", self->folder, self->names[i]);
        (void)unlink(path);
        free(self->names[i]);
    }
    (void)rmdir(self->folder);
}

static char *
read_file(const folder_t *folder, int index, size_t *size)
{
    char path[PATH_SIZE];
    (void)snprintf(path, sizeof path, "%s/%s", folder->folder, folder->names[index]);
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    struct stat about;
    ck_assert_int_eq(fstat(fileno(file), &about), 0);
    *size = (size_t)about.st_size;
    char *bytes = malloc(*size + 1);
    ck_assert_ptr_nonnull(bytes);
    ck_assert_uint_eq(fread(bytes, 1, *size, file), *size);
    (void)fclose(file);
    return bytes;
}

static actor_sim_result_t
run(uint64_t seed, uint32_t faults, bool every, const char *folder)
{
    actor_sim_options_t options = {.faults = faults, .every_fault = every, .log_directory = folder};
    actor_sim_t *sim = NULL;
    ck_assert_int_eq(actor_sim_new(&options, &sim), STATUS_OK);
    actor_sim_result_t result;
    actor_sim_run(sim, seed, &result);
    ck_assert_msg(!result.failed, "seed %llu: %s: %s", (unsigned long long)seed, result.rule,
                  result.detail);
    actor_sim_destroy(&sim);
    return result;
}

START_TEST(the_same_seed_writes_the_same_bytes)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        folder_t folders[2];
        actor_sim_result_t results[2];
        for (int i = 0; i < 2; i++) {
            folder_make(&folders[i]);
            results[i] = run(seed, ACTOR_SIM_FAULTS_ALL, seed == 6, folders[i].folder);
            folder_read(&folders[i]);
        }
        ck_assert_uint_eq(results[0].digest, results[1].digest);
        ck_assert_int_gt(folders[0].count, 2);
        ck_assert_int_eq(folders[0].count, folders[1].count);
        for (int i = 0; i < folders[0].count; i++) {
            size_t sizes[2];
            ck_assert_str_eq(folders[0].names[i], folders[1].names[i]);
            char *a = read_file(&folders[0], i, &sizes[0]);
            char *b = read_file(&folders[1], i, &sizes[1]);
            ck_assert_uint_eq(sizes[0], sizes[1]);
            ck_assert_msg(memcmp(a, b, sizes[0]) == 0, "seed %llu: %s differs",
                          (unsigned long long)seed, folders[0].names[i]);
            free(a);
            free(b);
        }
        folder_remove(&folders[0]);
        folder_remove(&folders[1]);
    }
}
END_TEST

/* What is written changes nothing of what happens, and another seed is another run. */
START_TEST(a_log_is_not_noticed_and_seeds_differ)
{
    folder_t folder;
    folder_make(&folder);
    uint64_t with_log = run(7, ACTOR_SIM_FAULTS_ALL, false, folder.folder).digest;
    folder_read(&folder);
    folder_remove(&folder);
    ck_assert_uint_eq(with_log, run(7, ACTOR_SIM_FAULTS_ALL, false, NULL).digest);
    ck_assert_uint_ne(with_log, run(8, ACTOR_SIM_FAULTS_ALL, false, NULL).digest);
    /* Other faults, but the same world: the load does not change. */
    ck_assert_uint_ne(with_log, run(7, ACTOR_SIM_LOSS, true, NULL).digest);
}
END_TEST

/* What a core saves is all of it: one that is made anew from that, again and again in the middle of
 * everything, goes on as if nothing had been. */
START_TEST(a_restored_core_goes_on_as_the_first)
{
    for (uint64_t seed = 1; seed <= SEED_COUNT; seed++) {
        actor_sim_options_t options = {.faults = ACTOR_SIM_FAULTS_ALL, .step_count = 1000};
        actor_sim_result_t results[2];
        for (int i = 0; i < 2; i++) {
            options.restore_interval = i == 0 ? 0 : 1 + (uint32_t)seed % 7;
            actor_sim_t *sim = NULL;
            ck_assert_int_eq(actor_sim_new(&options, &sim), STATUS_OK);
            actor_sim_run(sim, seed, &results[i]);
            ck_assert_msg(!results[i].failed, "seed %llu: %s: %s", (unsigned long long)seed,
                          results[i].rule, results[i].detail);
            actor_sim_destroy(&sim);
        }
        ck_assert_msg(results[0].digest == results[1].digest, "seed %llu differs after a restore",
                      (unsigned long long)seed);
    }
}
END_TEST

START_TEST(a_full_disk_costs_records_and_says_so)
{
    uint64_t drops = 0;
    uint64_t records = 0;
    uint64_t failures = 0;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        folder_t folder;
        folder_make(&folder);
        actor_sim_result_t result = run(seed, ACTOR_SIM_DISK, true, folder.folder);
        ck_assert_uint_eq(result.digest, run(seed, ACTOR_SIM_DISK, true, NULL).digest);
        failures += result.record_failure_count;
        folder_read(&folder);
        for (int i = 0; i < folder.count; i++) {
            if (strstr(folder.names[i], ".alog") == NULL ||
                strcmp(strrchr(folder.names[i], '.'), ".alog") != 0) {
                continue; /* an index */
            }
            char path[PATH_SIZE];
            (void)snprintf(path, sizeof path, "%s/%s", folder.folder, folder.names[i]);
            proto_log_reader_t *reader = NULL;
            ck_assert_int_eq(proto_log_reader_open(path, &reader, NULL), STATUS_OK);
            proto_log_record_t record;
            proto_status_t status = proto_log_reader_next(reader, &record);
            while (status == STATUS_OK) {
                records++;
                drops += record.kind == PROTO_LOG_DROP ? 1 : 0;
                status = proto_log_reader_next(reader, &record);
            }
            ck_assert_int_eq(status, STATUS_END);
            proto_log_reader_close(&reader);
        }
        folder_remove(&folder);
    }
    printf("%llu records, %llu refused by the disk, %llu DROP records\n",
           (unsigned long long)records, (unsigned long long)failures, (unsigned long long)drops);
    ck_assert_uint_gt(failures, 0);
    ck_assert_uint_gt(drops, 0);
    ck_assert_uint_gt(records, 5000);
}
END_TEST

START_TEST(lists_of_faults_are_read_and_written)
{
    uint32_t faults = 1;
    ck_assert_int_eq(actor_sim_faults_parse("none", &faults, NULL), STATUS_OK);
    ck_assert_uint_eq(faults, 0);
    ck_assert_int_eq(actor_sim_faults_parse("loss,crash", &faults, NULL), STATUS_OK);
    ck_assert_uint_eq(faults, ACTOR_SIM_LOSS | ACTOR_SIM_CRASH);
    ck_assert_int_eq(actor_sim_faults_parse("all,-disk", &faults, NULL), STATUS_OK);
    ck_assert_uint_eq(faults, ACTOR_SIM_FAULTS_ALL & ~ACTOR_SIM_DISK);
    const char *word = NULL;
    ck_assert_int_eq(actor_sim_faults_parse("loss,fire", &faults, &word), STATUS_ERR_INVALID);
    ck_assert_str_eq(word, "fire");
    char text[256];
    (void)actor_sim_faults_print(ACTOR_SIM_LOSS | ACTOR_SIM_DRAIN, text, sizeof text);
    ck_assert_str_eq(text, "loss,drain");
    (void)actor_sim_faults_print(ACTOR_SIM_FAULTS_ALL, text, sizeof text);
    ck_assert_int_eq(actor_sim_faults_parse(text, &faults, NULL), STATUS_OK);
    ck_assert_uint_eq(faults, ACTOR_SIM_FAULTS_ALL);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("sim");
    TCase *repeat = tcase_create("repeat");
    tcase_set_timeout(repeat, 110);
    tcase_add_test(repeat, the_same_seed_writes_the_same_bytes);
    tcase_add_test(repeat, a_log_is_not_noticed_and_seeds_differ);
    tcase_add_test(repeat, a_restored_core_goes_on_as_the_first);
    tcase_add_test(repeat, a_full_disk_costs_records_and_says_so);
    tcase_add_test(repeat, lists_of_faults_are_read_and_written);
    suite_add_tcase(suite, repeat);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
