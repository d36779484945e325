/* Idle forwards leave no trace, and every node of every tree refuses what does not go through
 * init_forward_metadata. */
#include <check.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend_base.h"
#include "gpu_driver.h"
#include "run_inspect.h"

enum { VOCABULARY = 320, SLOTS = 6, GENERATED = 10, PROMPT = 21 };

static const char *const fixtures[] = {"tiny-llama",   "tiny-qwen3",    "tiny-gemma3",
                                       "tiny-gpt-oss", "tiny-deepseek", "tiny-qwen35"};
enum { FIXTURE_COUNT = sizeof fixtures / sizeof *fixtures };

static backend_t *root; /* of the executor made last */

static void
note_root(backend_t *backend)
{
    root = backend;
}

static const run_plants_t plants = {.adjust_backend = note_root};

static run_executor_options_t
tiny_options(const char *fixture)
{
    static char model_path[600];
    (void)snprintf(model_path, sizeof model_path, "%s", driver_fixture(fixture));
    run_executor_options_t options = {
        .model_path = model_path,
        .slot_count = SLOTS,
        .model_len_max = 256,
        .step_tokens_max = 64,
        .block_granularity = strcmp(fixture, "tiny-qwen35") == 0 ? 64 : 16,
        .capture_bs_max = 4,
        .graph_debug = true,
        .cache_size_bytes = 6 << 20,
        .plants = &plants,
    };
    return options;
}

/* A digest of all blocks but the null one. */
static uint64_t
digest_cache(const driver_t *driver)
{
    uint64_t sum = 0;
    for (uint32_t group = 0; group < driver->info.group_kinds.count; group++) {
        uint32_t blocks = (driver->info.parent_count - 1) * driver->info.group_packings.data[group];
        for (uint32_t block = 1; block <= blocks; block++) {
            uint64_t digest;
            ck_assert_int_eq(run_inspect_block_digest(driver->executor, group, block, &digest),
                             STATUS_OK);
            sum = (sum ^ digest) * UINT64_C(1099511628211);
        }
    }
    return sum;
}

/* Between chunks, between decode steps, beside other slots: tokens, logits and cache are those of a
 * run without idle forwards. */
START_TEST(idle_forwards_leave_no_trace)
{
    static float logits[2][(GENERATED + 1) * VOCABULARY];
    int32_t prompt[PROMPT];
    driver_random_tokens(3, VOCABULARY, prompt, PROMPT);
    for (int way = 0; way < 2; way++) {
        run_executor_options_t options = tiny_options(fixtures[_i]);
        driver_t driver;
        driver_open(&driver, &options);
        driver_setup(&driver, 4, prompt, PROMPT, NULL);
        for (uint32_t step = 0; step <= GENERATED; step++) {
            if (step == 0) {
                (void)driver_prefill(&driver, 4, prompt, PROMPT, 9);
            } else {
                (void)driver_decode_one(&driver, 4);
            }
            driver_logits(&driver, logits[way] + step * VOCABULARY, VOCABULARY, 1);
            if (way == 1) {
                bool is_compared = step == 5; /* the whole cache: slow */
                uint64_t before = is_compared ? digest_cache(&driver) : 0;
                uint64_t allocations = driver_allocation_count();
                ck_assert_int_eq(run_inspect_idle(driver.executor, 1 + step % SLOTS), STATUS_OK);
                ck_assert_uint_eq(driver_allocation_count(), allocations);
                ck_assert(!is_compared || digest_cache(&driver) == before);
            }
        }
        ck_assert_int_eq(run_inspect_idle(driver.executor, 0), STATUS_ERR_INVALID);
        ck_assert_int_eq(run_inspect_idle(driver.executor, SLOTS + 1), STATUS_ERR_INVALID);
        driver_close(&driver);
    }
    ck_assert_mem_eq(logits[0], logits[1], sizeof logits[0]);
}
END_TEST

/* Returns how many nodes it asked. */
static uint32_t
refuse_everywhere(backend_t *node, const backend_extend_t *good)
{
    static const size_t pointers[] = {
        offsetof(backend_extend_t, request_slots),
        offsetof(backend_extend_t, seq_lens),
        offsetof(backend_extend_t, tables),
        offsetof(backend_extend_t, extend_seq_lens),
        offsetof(backend_extend_t, extend_prefix_lens),
        offsetof(backend_extend_t, extend_cu_lens),
        offsetof(backend_extend_t, extend_seq_lens_host),
        offsetof(backend_extend_t, extend_prefix_lens_host),
        offsetof(backend_extend_t, extend_replay_lens_host),
        offsetof(backend_extend_t, extend_prompt_lens_host),
    };
    static const int32_t replayed[] = {0, 1};
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++) {
        backend_extend_t bad = *good;
        memset((uint8_t *)&bad + pointers[i], 0, sizeof(void *));
        ck_assert_msg(backend_init_forward_metadata(node, &bad) == STATUS_ERR_INVALID,
                      "%s takes an incomplete bundle: pointer %zu", node->name, i);
    }
    backend_extend_t bad = *good;
    bad.mode = BACKEND_MODE_DECODE;
    ck_assert_msg(backend_init_forward_metadata(node, &bad) == STATUS_ERR_INVALID,
                  "%s takes pure decode", node->name);
    bad = *good;
    bad.extend_replay_lens_host = replayed;
    ck_assert_msg(backend_init_forward_metadata(node, &bad) == STATUS_ERR_INVALID,
                  "%s takes a bounded replay", node->name);
    ck_assert_msg(backend_init_forward_metadata(node, good) == STATUS_OK,
                  "%s refuses the whole bundle", node->name);
    uint32_t count = 1;
    for (uint32_t i = 0; i < node->child_count; i++) {
        count += refuse_everywhere(node->children[i], good);
    }
    return count;
}

/* The bundle has no defaults, at no node: a field that a composite swallows cannot be missed. */
START_TEST(every_node_refuses_what_is_not_a_whole_extend)
{
    static const int32_t zeros[1024];
    static const int32_t lengths[] = {3, 5};
    static const int32_t sums[] = {0, 3, 8};
    run_executor_options_t options = tiny_options(fixtures[_i]);
    driver_t driver;
    driver_open(&driver, &options);
    backend_tables_t tables = {.group_count = driver.info.group_kinds.count};
    for (uint32_t g = 0; g < tables.group_count; g++) {
        tables.groups[g] = (backend_table_t){.blocks = zeros, .stride = 4, .columns = 4};
    }
    const backend_extend_t good = {
        .bs = 2,
        .num_extends = 2,
        .request_slots = zeros,
        .seq_lens = lengths,
        .mode = BACKEND_MODE_EXTEND,
        .tables = &tables,
        .extend_seq_lens = lengths,
        .extend_prefix_lens = zeros,
        .extend_cu_lens = sums,
        .extend_seq_lens_host = lengths,
        .extend_prefix_lens_host = zeros,
        .extend_replay_lens_host = zeros,
        .extend_prompt_lens_host = zeros,
        .extend_with_prefix = false,
    };
    uint32_t nodes = refuse_everywhere(root, &good);
    ck_assert_uint_eq(nodes, strcmp(fixtures[_i], "tiny-qwen35") == 0 ? 3 : 1);
    driver_close(&driver); /* waits for what was launched */
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.idle");
    TCase *tests = tcase_create("idle");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, idle_forwards_leave_no_trace, 0, FIXTURE_COUNT);
    tcase_add_loop_test(tests, every_node_refuses_what_is_not_a_whole_extend, 0, FIXTURE_COUNT);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
