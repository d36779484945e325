/* What `onepath doctor` reads out of the texts of /proc, and what it concludes. */
#include <check.h>
#include <string.h>

#include "cli_doctor.h"

static const char cpuinfo[] =
    "processor\t: 0\nmodel name\t: Some CPU  \nflags\t\t: fpu avx avx2 fma\n"
    "\nprocessor\t: 1\nmodel name\t: Other\nflags\t\t: fpu avx512f\n";

START_TEST(cpuinfo_is_read)
{
    char model[32];
    ck_assert(cli_doctor_field(cpuinfo, "model name", model, sizeof model));
    ck_assert_str_eq(model, "Some CPU");
    ck_assert_uint_eq(cli_doctor_processor_count(cpuinfo), 2);
    ck_assert_uint_eq(cli_doctor_processor_count(NULL), 0);
    ck_assert_uint_eq(cli_doctor_processor_count("processor : 0"), 1);
    ck_assert(cli_doctor_has_flag(cpuinfo, "avx2"));
    ck_assert(cli_doctor_has_flag(cpuinfo, "fma"));
    ck_assert(!cli_doctor_has_flag(cpuinfo, "avx512f")); /* of the second processor only */
    ck_assert(!cli_doctor_has_flag(cpuinfo, "av"));
    ck_assert(!cli_doctor_has_flag(NULL, "avx"));
    ck_assert(cli_doctor_has_flag("Features : asimd sve\n", "sve"));
    ck_assert(!cli_doctor_field(cpuinfo, "model", model, sizeof model));
    ck_assert(!cli_doctor_field("", "model name", model, sizeof model));
}
END_TEST

START_TEST(amounts_have_units_or_none)
{
    static const char meminfo[] = "MemTotal:       16384 kB\nMemAvailable:    1024 kB\n"
                                  "HugePages_Total:       3\nBroken: 12 MB\nNone: x\n"
                                  "Huge: 99999999999999999999 kB\nShift: 18446744073709551615 kB\n";
    uint64_t amount = 0;
    ck_assert(cli_doctor_amount(meminfo, "MemAvailable", &amount));
    ck_assert_uint_eq(amount, 1 << 20);
    ck_assert(cli_doctor_amount(meminfo, "HugePages_Total", &amount));
    ck_assert_uint_eq(amount, 3);
    static const char *const bad[] = {"Broken", "None", "Huge", "Shift", "Mem", "MemFree"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_msg(!cli_doctor_amount(meminfo, bad[i], &amount), "%s", bad[i]);
    }
    ck_assert(!cli_doctor_amount(NULL, "MemTotal", &amount));
}
END_TEST

START_TEST(limits_of_both_versions)
{
    double quota = 0;
    ck_assert(cli_doctor_quota("250000 100000\n", &quota));
    ck_assert_double_eq_tol(quota, 2.5, 1e-12);
    static const char *const none[] = {"max 100000", "-1 100000", "", "5", "5 0", "x y"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        ck_assert_msg(!cli_doctor_quota(none[i], &quota), "'%s'", none[i]);
    }
    ck_assert(!cli_doctor_quota(NULL, &quota));
    uint64_t limit = 0;
    ck_assert(cli_doctor_limit("1073741824\n", &limit));
    ck_assert_uint_eq(limit, UINT64_C(1) << 30);
    ck_assert(cli_doctor_limit("0", &limit));
    static const char *const unlimited[] = {"max\n", "9223372036854771712\n", "", "-1",
                                            "99999999999999999999999"};
    for (size_t i = 0; i < sizeof unlimited / sizeof unlimited[0]; i++) {
        ck_assert_msg(!cli_doctor_limit(unlimited[i], &limit), "'%s'", unlimited[i]);
    }
    ck_assert(!cli_doctor_limit(NULL, &limit));
}
END_TEST

START_TEST(control_groups_are_found)
{
    static const char first[] = "9:name=systemd:/a\n4:cpu,cpuacct:/b/c\n3:memory:/d\n0::/e\n";
    char path[32];
    ck_assert(cli_doctor_cgroup_path(first, "cpu", path, sizeof path));
    ck_assert_str_eq(path, "/b/c");
    ck_assert(cli_doctor_cgroup_path(first, "cpuacct", path, sizeof path));
    ck_assert_str_eq(path, "/b/c");
    ck_assert(cli_doctor_cgroup_path(first, "memory", path, sizeof path));
    ck_assert_str_eq(path, "/d");
    ck_assert(cli_doctor_cgroup_path(first, NULL, path, sizeof path));
    ck_assert_str_eq(path, "/e");
    ck_assert(!cli_doctor_cgroup_path(first, "cp", path, sizeof path));
    ck_assert(!cli_doctor_cgroup_path("0::/e", "memory", path, sizeof path));
    ck_assert(!cli_doctor_cgroup_path("nonsense\n:\n", NULL, path, sizeof path));
    ck_assert(!cli_doctor_cgroup_path(NULL, NULL, path, sizeof path));
    ck_assert(cli_doctor_choice("always [madvise] never\n", path, sizeof path));
    ck_assert_str_eq(path, "madvise");
    ck_assert(!cli_doctor_choice("always madvise", path, sizeof path));
    ck_assert(!cli_doctor_choice("] [", path, sizeof path));
}
END_TEST

START_TEST(sizes_are_for_people)
{
    char out[32];
    ck_assert_str_eq(cli_doctor_bytes(0, out), "0 bytes");
    ck_assert_str_eq(cli_doctor_bytes(1023, out), "1023 bytes");
    ck_assert_str_eq(cli_doctor_bytes(1536, out), "1.5 KiB");
    ck_assert_str_eq(cli_doctor_bytes(UINT64_C(300) << 30, out), "300 GiB");
    ck_assert_str_eq(cli_doctor_bytes(UINT64_MAX, out), "16777216 TiB");
}
END_TEST

/* 4 layers: two full, one that slides over 16 tokens, one recurrent. */
static file_config_t
made_config(void)
{
    file_config_t config = {.layer_count = 4,
                            .kv_head_count = 2,
                            .head_dim = 64,
                            .sliding_window = 16,
                            .context_len = 1024,
                            .weight_size_bytes = 1 << 20};
    config.layer_kinds[1] = FILE_LAYER_SLIDING;
    config.layer_kinds[3] = FILE_LAYER_LINEAR;
    return config;
}

START_TEST(the_cache_is_counted_by_kind_of_layer)
{
    file_config_t config = made_config();
    uint64_t row = 2 * 2 * 64 * 2; /* keys and values, heads, dim, bytes */
    ck_assert_uint_eq(cli_doctor_cache_bytes(&config, 8), row * (8 + 8 + 8));
    ck_assert_uint_eq(cli_doctor_cache_bytes(&config, 100), row * (100 + 16 + 100));
    config.latent_dim = 512;
    config.rope_dim = 64;
    ck_assert_uint_eq(cli_doctor_cache_bytes(&config, 100), UINT64_C(576) * 2 * (100 + 16 + 100));
}
END_TEST

START_TEST(what_does_not_fit_is_told_with_a_length_that_does)
{
    file_config_t config = made_config();
    uint64_t request = cli_doctor_cache_bytes(&config, 1024);
    cli_doctor_report_t report = {.available_bytes = (1 << 20) + 2 * request};
    cli_doctor_check_fit(&config, &report);
    ck_assert_int_eq(report.lines[0].level, CLI_DOCTOR_OK);
    report = (cli_doctor_report_t){.available_bytes = (1 << 20) + 2 * request - 2};
    cli_doctor_check_fit(&config, &report);
    ck_assert_int_eq(report.lines[0].level, CLI_DOCTOR_WARNING);
    ck_assert_ptr_nonnull(strstr(report.lines[0].advice, "--max-model-len 512"));
    report = (cli_doctor_report_t){.available_bytes = 1 << 20};
    cli_doctor_check_fit(&config, &report);
    ck_assert_int_eq(report.lines[0].level, CLI_DOCTOR_FAILURE);
    ck_assert_int_eq(cli_doctor_verdict(&report), CLI_DOCTOR_FAILURE);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("cli.doctor_parts");
    TCase *tests = tcase_create("parts");
    tcase_add_test(tests, cpuinfo_is_read);
    tcase_add_test(tests, amounts_have_units_or_none);
    tcase_add_test(tests, limits_of_both_versions);
    tcase_add_test(tests, control_groups_are_found);
    tcase_add_test(tests, sizes_are_for_people);
    tcase_add_test(tests, the_cache_is_counted_by_kind_of_layer);
    tcase_add_test(tests, what_does_not_fit_is_told_with_a_length_that_does);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
