/* What ranks hold of a checkpoint: put together again it is the checkpoint, byte for byte; and what
 * does not divide is refused with the numbers. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file_model.h"
#include "support.h"

enum { RANKS_MAX = 4, SEGMENTS_MAX = 64 };

static file_model_t *whole;
static file_model_t *slices[RANKS_MAX];
static char error[FILE_ERROR_SIZE_BYTES];

static void
open_all(const char *path, uint32_t count)
{
    ck_assert_msg(file_model_open(path, error, sizeof error, &whole) == STATUS_OK, "%s", error);
    for (uint32_t rank = 0; rank < count; rank++) {
        ck_assert_int_eq(file_model_open(path, error, sizeof error, &slices[rank]), STATUS_OK);
        ck_assert_msg(file_model_slice(slices[rank], rank, count, error, sizeof error) == STATUS_OK,
                      "%s", error);
    }
}

static void
close_all(uint32_t count)
{
    file_model_close(&whole);
    for (uint32_t rank = 0; rank < count; rank++) {
        file_model_close(&slices[rank]);
    }
}

static size_t
row_bytes(const file_tensor_t *tensor)
{
    ck_assert_uint_eq(tensor->size_bytes,
                      tensor->rows * file_dtype_row_size_bytes(tensor->dtype, tensor->cols));
    return (size_t)tensor->size_bytes / tensor->rows;
}

/* Rows that are shared out together: all, those of each expert, or of queries, keys and values. */
static uint32_t
segments_of(const file_config_t *c, file_role_t role, uint32_t rows, uint32_t *lengths)
{
    bool is_stacked = role == FILE_ROLE_EXPERT_GATE || role == FILE_ROLE_EXPERT_UP ||
                      (role == FILE_ROLE_EXPERT_DOWN && c->has_fused_experts);
    if (is_stacked) {
        for (uint32_t i = 0; i < c->expert_count; i++) {
            lengths[i] = rows / c->expert_count;
        }
        return c->expert_count;
    }
    if (role == FILE_ROLE_LINEAR_QKV || role == FILE_ROLE_LINEAR_CONV) {
        lengths[0] = c->linear_key_head_count * c->linear_key_head_dim;
        lengths[1] = lengths[0];
        lengths[2] = rows - 2 * lengths[0];
        return 3;
    }
    lengths[0] = rows;
    return 1;
}

static void
check_rows(const file_tensor_t *all, const file_tensor_t *parts, uint32_t count, file_role_t role)
{
    uint32_t lengths[SEGMENTS_MAX];
    uint32_t segments = segments_of(file_model_config(whole), role, all->rows, lengths);
    size_t bytes = row_bytes(all);
    const uint8_t *from = all->data;
    uint32_t done[RANKS_MAX] = {0};
    for (uint32_t i = 0; i < segments; i++) {
        uint32_t left = lengths[i];
        for (uint32_t rank = 0; rank < count; rank++) {
            uint32_t rows = segments == 1 ? parts[rank].rows : lengths[i] / count;
            ck_assert_uint_le(rows, left);
            ck_assert_mem_eq((const uint8_t *)parts[rank].data + done[rank] * bytes, from,
                             rows * bytes);
            from += rows * bytes;
            done[rank] += rows;
            left -= rows;
        }
        ck_assert_uint_eq(left, 0);
    }
}

static void
check_cols(const file_tensor_t *all, const file_tensor_t *parts, uint32_t count)
{
    size_t bytes = row_bytes(all);
    for (uint32_t row = 0; row < all->rows; row++) {
        const uint8_t *from = (const uint8_t *)all->data + row * bytes;
        for (uint32_t rank = 0; rank < count; rank++) {
            size_t own = row_bytes(&parts[rank]);
            ck_assert_mem_eq((const uint8_t *)parts[rank].data + row * own, from, own);
            from += own;
        }
        ck_assert_ptr_eq(from, (const uint8_t *)all->data + (row + 1) * bytes);
    }
}

/* The same on all ranks; or the first rank's, and zeros on the others: what is added once. */
static void
check_same(const file_tensor_t *all, const file_tensor_t *parts, uint32_t count, file_role_t role)
{
    bool is_once = role == FILE_ROLE_ATTN_O_BIAS || role == FILE_ROLE_EXPERT_DOWN_BIAS;
    uint8_t *zeros = calloc(1, (size_t)all->size_bytes);
    for (uint32_t rank = 0; rank < count; rank++) {
        ck_assert_mem_eq(parts[rank].data, is_once && rank > 0 ? zeros : all->data,
                         (size_t)all->size_bytes);
    }
    free(zeros);
}

static void
check_tensor(file_role_t role, uint32_t layer, uint32_t count)
{
    file_tensor_t all;
    file_tensor_t parts[RANKS_MAX];
    uint32_t rows = 0;
    uint32_t cols = 0;
    bool is_there = file_model_tensor(whole, role, layer, &all) == STATUS_OK;
    for (uint32_t rank = 0; rank < count; rank++) {
        bool has = file_model_tensor(slices[rank], role, layer, &parts[rank]) == STATUS_OK;
        ck_assert(has == is_there);
        if (has) {
            ck_assert_int_eq(parts[rank].dtype, all.dtype);
            rows += parts[rank].rows;
            cols += parts[rank].cols;
        }
    }
    if (!is_there) {
        return;
    }
    if (rows == all.rows && cols == count * all.cols && all.rows > 1) {
        check_rows(&all, parts, count, role);
    } else if (cols == all.cols && rows == count * all.rows) {
        check_cols(&all, parts, count);
    } else {
        ck_assert_msg(rows == count * all.rows && cols == count * all.cols, "role %d", (int)role);
        check_same(&all, parts, count, role);
    }
}

static void
check_model(const char *path, uint32_t count)
{
    open_all(path, count);
    const file_config_t *c = file_model_config(whole);
    const file_config_t *share = file_model_config(slices[count - 1]);
    ck_assert_uint_eq(share->head_count * count, c->head_count);
    ck_assert_uint_eq(share->hidden_size, c->hidden_size);
    ck_assert_uint_eq(share->vocab_size, c->vocab_size);
    ck_assert_uint_eq(share->linear_value_head_count * count, c->linear_value_head_count);
    for (uint32_t role = 0; role < FILE_ROLE_COUNT; role++) {
        uint32_t layers = role < FILE_ROLE_FIRST_OF_LAYER ? 1 : c->layer_count;
        for (uint32_t layer = 0; layer < layers; layer++) {
            check_tensor((file_role_t)role, layer, count);
        }
    }
    for (uint32_t layer = c->dense_layer_count; c->has_apart_experts && layer < c->layer_count;
         layer++) {
        for (uint32_t expert = 0; expert < c->expert_count; expert++) {
            static const file_role_t roles[] = {FILE_ROLE_EXPERT_GATE, FILE_ROLE_EXPERT_UP,
                                                FILE_ROLE_EXPERT_DOWN};
            for (uint32_t i = 0; i < 3; i++) {
                file_tensor_t all;
                file_tensor_t parts[RANKS_MAX];
                ck_assert_int_eq(file_model_expert(whole, roles[i], layer, expert, &all),
                                 STATUS_OK);
                for (uint32_t rank = 0; rank < count; rank++) {
                    ck_assert_int_eq(file_model_expert(slices[rank], roles[i], layer, expert,
                                                       &parts[rank]),
                                     STATUS_OK);
                    ck_assert_uint_eq(parts[rank].rows * parts[rank].cols * count,
                                      all.rows * all.cols);
                }
                if (parts[0].cols == all.cols) {
                    check_rows(&all, parts, count, FILE_ROLE_FFN_GATE);
                } else {
                    check_cols(&all, parts, count);
                }
            }
        }
    }
    close_all(count);
}

START_TEST(slices_put_together_are_the_checkpoint)
{
    static const char *const fixtures[] = {"tiny-llama",  "tiny-qwen3",      "tiny-gpt-oss",
                                           "tiny-qwen35", "tiny-qwen35-moe", "tiny-deepseek"};
    char path[600];
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        (void)snprintf(path, sizeof path, "tests/models/fixtures/%s", fixtures[i]);
        check_model(path, 2);
    }
    check_model(support_smollm2(), 3);
}
END_TEST

/* One head of keys and values for two ranks: both hold it. */
START_TEST(few_key_heads_are_held_by_several)
{
    open_all("tests/models/fixtures/tiny-gemma3", 2);
    file_tensor_t all;
    file_tensor_t part;
    ck_assert_int_eq(file_model_tensor(whole, FILE_ROLE_ATTN_K, 0, &all), STATUS_OK);
    for (uint32_t rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(file_model_tensor(slices[rank], FILE_ROLE_ATTN_K, 0, &part), STATUS_OK);
        ck_assert_uint_eq(part.size_bytes, all.size_bytes);
        ck_assert_mem_eq(part.data, all.data, (size_t)all.size_bytes);
        ck_assert_uint_eq(file_model_config(slices[rank])->kv_head_count, 1);
        ck_assert_uint_eq(file_model_config(slices[rank])->head_count, 2);
    }
    close_all(2);
}
END_TEST

START_TEST(what_does_not_divide_is_refused)
{
    const struct {
        const char *path;
        uint32_t count;
        const char *words;
    } refused[] = {
        {support_smollm2(), 2, "over 2 ranks: it has 9 query heads, 3 key and value heads"},
        {support_smollm2(), 9, "over 9 ranks: it has 1536 rows of the feed-forward"},
        {"tests/models/fixtures/tiny-qwen35", 4, "over 4 ranks: it has 2 recurrent key heads"},
        {"tests/models/fixtures/tiny-qwen3", 3, "128 rows of the feed-forward"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ck_assert_int_eq(file_model_open(refused[i].path, error, sizeof error, &whole), STATUS_OK);
        ck_assert_int_eq(file_model_slice(whole, 1, refused[i].count, error, sizeof error),
                         STATUS_ERR_CONFIG);
        ck_assert_msg(strstr(error, refused[i].words) != NULL, "%s", error);
        file_model_close(&whole);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("models.slice");
    TCase *tests = tcase_create("slice");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, slices_put_together_are_the_checkpoint);
    tcase_add_test(tests, few_key_heads_are_held_by_several);
    tcase_add_test(tests, what_does_not_divide_is_refused);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
