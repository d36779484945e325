/* Every allocation fails once: opening ends in an error, leaks nothing (run with LeakSanitizer),
 * and works when there is memory again. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "file_chat_template.h"
#include "file_model.h"
#include "file_tokenizer.h"
#include "support.h"

/* The linker sends the library's calls here (--wrap). */
void *__real_malloc(size_t size_bytes);
void *__real_calloc(size_t count, size_t size_bytes);
void *__real_realloc(void *old, size_t size_bytes);
void *__wrap_malloc(size_t size_bytes);
void *__wrap_calloc(size_t count, size_t size_bytes);
void *__wrap_realloc(void *old, size_t size_bytes);

static long left = -1; /* allocations until the one that fails; -1 = none fails */

static bool
fails(void)
{
    if (left < 0) {
        return false;
    }
    return left-- == 0;
}

void *
__wrap_malloc(size_t size_bytes)
{
    return fails() ? NULL : __real_malloc(size_bytes);
}

void *
__wrap_calloc(size_t count, size_t size_bytes)
{
    return fails() ? NULL : __real_calloc(count, size_bytes);
}

void *
__wrap_realloc(void *old, size_t size_bytes)
{
    return fails() ? NULL : __real_realloc(old, size_bytes);
}

static char error[FILE_ERROR_SIZE_BYTES];

/* Opens everything that a checkpoint has. */
static proto_status_t
open_all(const char *path)
{
    file_model_t *model = NULL;
    file_tokenizer_t *tokenizer = NULL;
    file_tokenizer_scratch_t *scratch = NULL;
    file_chat_template_t *template = NULL;
    proto_status_t status = file_model_open(path, error, sizeof error, &model);
    if (status == STATUS_OK) {
        status = file_tokenizer_open(model, error, sizeof error, &tokenizer);
    }
    if (status == STATUS_OK) {
        status = file_tokenizer_scratch_new(100, &scratch);
    }
    if (status == STATUS_OK) {
        status = file_chat_template_open_named("smollm2", error, sizeof error, &template);
    }
    file_chat_template_close(&template);
    file_tokenizer_scratch_destroy(&scratch);
    file_tokenizer_close(&tokenizer);
    file_model_close(&model);
    return status;
}

/* Fails the first, the second, ... allocation until none is left to fail; returns how many there
 * are. */
static long
sweep(const char *path)
{
    ck_assert_int_eq(open_all(path), STATUS_OK);
    json_set_alloc_funcs(__real_malloc, free); /* the parser's own must not fail: file_support.c */
    for (long n = 0;; n++) {
        left = n;
        proto_status_t status = open_all(path);
        bool was_reached = left < 0;
        left = -1;
        if (!was_reached) {
            ck_assert_int_eq(status, STATUS_OK);
            return n;
        }
        ck_assert_msg(status == STATUS_ERR_NO_MEMORY, "allocation %ld: %s: %s", n,
                      proto_status_name(status), error);
    }
}

START_TEST(each_failing_allocation_is_reported_and_leaks_nothing)
{
    static const char *const FOLDERS[] = {"tiny-qwen3", "tiny-llama"};
    for (size_t i = 0; i < 2; i++) {
        char path[1024];
        (void)snprintf(path, sizeof path, "%s", support_fixture(FOLDERS[i]));
        ck_assert_int_gt(sweep(path), 10);
    }
    ck_assert_int_gt(sweep(support_smollm2()), 10);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("models.memory");
    TCase *cases = tcase_create("all");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, each_failing_allocation_is_reported_and_leaks_nothing);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
