/* Drafters that propose token after token: what they propose, and that nothing they propose shows
 * in an answer.  A draft that is the target itself must be right every time: whatever goes wrong
 * with its cache, its positions or its lengths costs acceptance, and shows here. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "draft_scene.h"
#include "run_inspect.h"

static scene_request_t requests[SCENE_SLOTS + 1];

static void
start_all(driver_t *driver, scene_request_t *live[SCENE_SLOTS], uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        scene_start(driver, i + 1, 64, &requests[i]);
        live[i] = &requests[i];
    }
}

/* Draft and target identical: every candidate stands, at every width, replayed (batches up to 4)
 * and eagerly; and the tokens are those without speculation. */
START_TEST(a_draft_that_is_the_target_is_always_right)
{
    scene_make_answers("tiny-llama", true);
    for (uint32_t width = 1; width <= 8; width++) {
        run_executor_options_t options =
            scene_options("tiny-llama", width == 1 ? NULL : "tiny-llama", width);
        driver_t driver;
        driver_open(&driver, &options);
        scene_request_t *live[SCENE_SLOTS];
        for (int again = 0; again < 2; again++) { /* eager; replayed, in the same slots */
            uint32_t count = again == 0 ? 5 : 2;
            start_all(&driver, live, count);
            scene_run(&driver, live, count, NULL);
            for (uint32_t i = 0; i < count; i++) {
                ck_assert_uint_eq(live[i]->accepted, live[i]->offered);
                ck_assert_uint_eq(live[i]->offered, live[i]->rounds * (width - 1));
            }
        }
        driver_close(&driver);
    }
}
END_TEST

static int reject_at;

/* Every second round rejects, the others are the drafter's own. */
static int
reject_sometimes(const scene_request_t *request, uint32_t width)
{
    (void)width;
    return request->rounds % 2 == 0 ? reject_at : -1;
}

/* A reject forced at every index leaves the tokens alone, and the drafter is right again in the
 * round after it: nothing of what was rejected is attended to. */
START_TEST(a_forced_reject_costs_its_round_and_nothing_else)
{
    enum { WIDTH = 6 };
    scene_make_answers("tiny-llama", true);
    run_executor_options_t options = scene_options("tiny-llama", "tiny-llama", WIDTH);
    driver_t driver;
    driver_open(&driver, &options);
    for (reject_at = 0; reject_at < WIDTH; reject_at++) {
        scene_request_t *live[SCENE_SLOTS];
        uint32_t count = reject_at % 2 == 0 ? 2 : 5; /* replayed, eager */
        start_all(&driver, live, count);
        scene_run(&driver, live, count, reject_sometimes);
        for (uint32_t i = 0; i < count; i++) {
            const scene_request_t *request = live[i];
            uint32_t round = 0;
            for (uint32_t at = request->answer->prompt_length + 1; round < request->rounds;) {
                uint32_t wanted = round % 2 == 0 ? (uint32_t)reject_at + 1 : WIDTH;
                ck_assert_uint_eq(request->counts[at], wanted);
                at += request->counts[at];
                round++;
            }
        }
    }
    driver_close(&driver);
}
END_TEST

/* Drawn tokens: candidates count only where the draw agrees, so the answer is that of width 1. */
START_TEST(seeded_draws_do_not_depend_on_the_drafter)
{
    scene_make_answers("tiny-llama", false);
    run_executor_options_t options = scene_options("tiny-llama", "tiny-llama", 4);
    driver_t driver;
    driver_open(&driver, &options);
    scene_request_t *live[SCENE_SLOTS];
    start_all(&driver, live, SCENE_SLOTS);
    scene_run(&driver, live, SCENE_SLOTS, NULL);
    uint32_t accepted = 0;
    uint32_t offered = 0;
    for (uint32_t i = 0; i < SCENE_SLOTS; i++) {
        if (live[i]->answer->sampling.temperature > 0) {
            accepted += live[i]->accepted;
            offered += live[i]->offered;
        }
    }
    ck_assert_uint_gt(accepted, 0);
    ck_assert_uint_lt(accepted, offered);
    driver_close(&driver);
}
END_TEST

/* ---- rejection keeps the distribution -------------------------------------------------------- */

enum { KEPT = 3, DRAWN = 3, CELLS = KEPT * KEPT * KEPT, CROWD = 60, ROUNDS = 60 };

/* How often each run of DRAWN tokens came, for one prompt and CROWD * ROUNDS seeds.  A token is
 * known by its rank among the KEPT that can follow, in the order in which they came up first. */
typedef struct {
    int32_t ids[1 + KEPT + KEPT * KEPT][KEPT];
    double counts[CELLS];
} tally_t;

static uint32_t
rank_of(tally_t *tally, uint32_t node, int32_t token)
{
    for (uint32_t i = 0; i < KEPT; i++) {
        if (tally->ids[node][i] == token || tally->ids[node][i] == -1) {
            tally->ids[node][i] = token;
            return i;
        }
    }
    ck_abort_msg("a token that top_k should have left out: %d", token);
    return 0;
}

static void
count_draws(const char *draft, double temperature, uint32_t first_seed, tally_t *tally)
{
    static driver_extend_t extends[CROWD];
    static int32_t drawn[CROWD][DRAWN + RUN_WIDTH_MAX];
    const int32_t prompt[] = {17, 201, 5};
    run_executor_options_t options = scene_options("tiny-llama", draft, draft == NULL ? 1 : 4);
    options.slot_count = CROWD;
    options.model_len_max = 32;
    options.step_tokens_max = CROWD * 4;
    options.capture_bs_max = 1;
    options.disable_prefill_graph = true;
    options.verify_by_rejection = true;
    options.graph_debug = false;
    driver_t driver;
    driver_open(&driver, &options);
    memset(tally->counts, 0, sizeof tally->counts);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t slots[CROWD];
        uint32_t counts[CROWD];
        for (uint32_t i = 0; i < CROWD; i++) {
            slots[i] = i + 1;
            proto_sampling_t sampling = {.prompt_length = 3,
                                         .temperature = temperature,
                                         .top_p = 1.0,
                                         .top_k = KEPT,
                                         .repetition_penalty = 1.0,
                                         .seed = first_seed + round * CROWD + i,
                                         .ignore_eos = true};
            driver_setup(&driver, i + 1, prompt, 3, &sampling);
            extends[i] =
                (driver_extend_t){.slot = i + 1, .length = 3, .sample = true, .tokens = prompt};
        }
        driver_result_t result;
        driver_step(&driver, extends, CROWD, NULL, 0, &result);
        for (uint32_t i = 0; i < CROWD; i++) {
            drawn[i][0] = result.tokens[i];
            counts[i] = 1;
        }
        for (uint32_t step = 1; step < DRAWN; step++) {
            driver_step(&driver, NULL, 0, slots, CROWD, &result);
            for (uint32_t i = 0; i < CROWD; i++) {
                for (uint32_t t = 0; t < result.counts[i] && counts[i] < DRAWN; t++) {
                    drawn[i][counts[i]++] = result.windows[i][t];
                }
            }
        }
        for (uint32_t i = 0; i < CROWD; i++) {
            uint32_t a = rank_of(tally, 0, drawn[i][0]);
            uint32_t b = rank_of(tally, 1 + a, drawn[i][1]);
            uint32_t c = rank_of(tally, 1 + KEPT + a * KEPT + b, drawn[i][2]);
            tally->counts[(a * KEPT + b) * KEPT + c]++;
        }
    }
    driver_close(&driver);
}

/* Two samples of one size: sum of (a - b)^2 / (a + b), cells of fewer than 10 in one.  The degrees
 * of freedom are cells - 1; returns the distance in standard deviations, about. */
static double
distance(const tally_t *one, const tally_t *two)
{
    double sum = 0;
    double rest[2] = {0, 0};
    uint32_t cells = 0;
    for (uint32_t i = 0; i < CELLS; i++) {
        double a = one->counts[i];
        double b = two->counts[i];
        if (a + b < 10) {
            rest[0] += a;
            rest[1] += b;
            continue;
        }
        sum += (a - b) * (a - b) / (a + b);
        cells++;
    }
    if (rest[0] + rest[1] >= 10) {
        sum += (rest[0] - rest[1]) * (rest[0] - rest[1]) / (rest[0] + rest[1]);
        cells++;
    }
    ck_assert_uint_gt(cells, 6);
    double freedom = cells - 1;
    return (sum - freedom) / sqrt(2 * freedom);
}

/* The seeds are fixed, so this test gives one answer; 3.5 deviations is a chance of 1 in 2000. With
 * a drafter that is often right and one that hardly ever is; another temperature is noticed. */
START_TEST(rejection_keeps_the_distribution)
{
    static tally_t alone;
    static tally_t other;
    memset(alone.ids, -1, sizeof alone.ids);
    count_draws(NULL, 1.5, 1, &alone);
    other = alone; /* its names of the tokens */
    static const char *const drafts[] = {"tiny-llama", "tiny-draft-dflash"};
    for (size_t i = 0; i < 2; i++) {
        count_draws(drafts[i], 1.5, 100000 * (uint32_t)(i + 1), &other);
        double far = distance(&alone, &other);
        ck_assert_msg(far < 3.5, "%s: %.2f deviations", drafts[i], far);
    }
    count_draws("tiny-llama", 0.9, 300000, &other);
    ck_assert_double_gt(distance(&alone, &other), 3.5);
}
END_TEST

/* A target that no draft fits is refused at the start, with the reason. */
START_TEST(a_start_that_cannot_be_says_why)
{
    static const struct {
        const char *target;
        const char *draft;
        const char *reason;
    } rows[] = {
        {"tiny-gemma3", "tiny-llama", "sliding window"},
        {"tiny-gpt-oss", "tiny-llama", "sliding window"},
        {"tiny-qwen35", "tiny-llama", "do not go with recurrent layers"},
        {"tiny-llama", "/no/such/draft", "'/no/such/draft' cannot be opened"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char error[512];
        run_executor_t *executor = NULL;
        run_executor_options_t options = scene_options(rows[i].target, rows[i].draft, 4);
        options.block_granularity = 64;
        options.error = error;
        options.error_size_bytes = sizeof error;
        ck_assert_int_eq(run_executor_new(&options, &executor), STATUS_ERR_CONFIG);
        ck_assert_msg(strstr(error, rows[i].reason) != NULL, "%s: %s", rows[i].target, error);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.draft");
    TCase *tests = tcase_create("chain");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, a_draft_that_is_the_target_is_always_right);
    tcase_add_test(tests, a_forced_reject_costs_its_round_and_nothing_else);
    tcase_add_test(tests, seeded_draws_do_not_depend_on_the_drafter);
    tcase_add_test(tests, a_start_that_cannot_be_says_why);
    tcase_add_test(tests, rejection_keeps_the_distribution);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
