/* The null device under the real core: an answer is a function of its prompt alone, whatever is
 * chunked, batched, overlapped or retracted. */
#include <string.h>

#include "actor_executor_null.h"
#include "executor_fixture.h"

enum { ANSWER = 12 };

static fixture_t fixture;
static plan_t plan;
static actor_executor_null_t *device;

/* Gives the device what the core emitted; its outputs stay in it. */
static void
run_device(void)
{
    proto_status_t status = STATUS_OK;
    for (uint32_t i = 0; i < fixture_count(&fixture, PROTO_KIND_SLOT_SETUP); i++) {
        const proto_body_t *body = fixture_find(&fixture, PROTO_KIND_SLOT_SETUP, i);
        status = actor_executor_null_slot_setup(device, &body->slot_setup);
        ck_assert_int_eq(status, STATUS_OK);
    }
    const proto_body_t *body = fixture_find(&fixture, PROTO_KIND_STEP_LAUNCH, 0);
    status = actor_executor_null_launch(device, &body->step_launch);
    ck_assert_int_eq(status, STATUS_OK);
}

static void
collect(int32_t *tokens, uint32_t *count)
{
    proto_body_t body;
    ck_assert_int_eq(actor_executor_null_collect(device, &body.step_done), STATUS_OK);
    fixture_local(&fixture, PROTO_KIND_STEP_DONE, &body);
    const proto_step_result_t *result =
        &fixture_find(&fixture, PROTO_KIND_STEP_RESULT, 0)->step_result;
    for (uint32_t i = 0; i < result->tokens.count; i++) {
        tokens[(*count)++] = result->tokens.data[i];
    }
}

/* `chunk` tokens of prompt in a step, `overlap` plans behind the running one, a retraction after
 * `retract_after` steps that give tokens (0: none), rows of `width`. */
typedef struct {
    uint32_t chunk;
    uint32_t overlap;
    uint32_t retract_after;
    uint32_t width;
} way_t;

/* Returns how many plans that took. */
static uint64_t
make_answer(uint32_t prompt_length, const way_t *way, int32_t *answer)
{
    uint32_t chunk = way->chunk;
    uint32_t overlap = way->overlap;
    uint32_t retract_after = way->retract_after;
    uint32_t count = 0;
    uint32_t planned = 0;
    uint32_t begin = 0;
    uint32_t known = prompt_length;
    uint64_t step = 0;
    actor_executor_null_options_t options = {.slot_count = FIXTURE_SLOTS,
                                             .model_len_max = FIXTURE_LEN_MAX,
                                             .block_granularity = FIXTURE_PAGE,
                                             .vocab_size = FIXTURE_VOCAB,
                                             .decode_width = way->width,
                                             .no_overlap = overlap == 0};
    ck_assert_int_eq(actor_executor_null_new(&options, &device), STATUS_OK);
    fixture_open(&fixture, 1, overlap);
    actor_executor_null_info(device, &fixture.info);
    fixture.info.step_tokens_max = FIXTURE_STEP_MAX;
    fixture_ready(&fixture);
    fixture_peer_up(&fixture, 7);
    fixture_admit(&fixture, 2, 11, prompt_length, FIXTURE_LEN_MAX);
    uint32_t in_flight = 0;
    while (count < ANSWER) {
        plan_begin(&plan, step + 1, step);
        plan.plan.width = way->width;
        plan_patch(&plan, 2, 0, 0, 8, 9);
        if (begin < known) {
            uint32_t length = known - begin < chunk ? known - begin : chunk;
            plan_extend(&plan, 2, begin, length, begin + length == known);
            begin += length;
            planned += begin == known;
        } else {
            plan_decode(&plan, 2);
            planned++;
        }
        plan_accept(&plan, &fixture);
        step++;
        run_device();
        in_flight++;
        bool retracts = retract_after > 0 && planned == retract_after;
        while (in_flight > (retracts ? 0 : overlap) || (planned >= ANSWER && in_flight > 0)) {
            collect(answer, &count);
            in_flight--;
        }
        if (retracts) {
            begin = 0;
            known = prompt_length + count;
            retract_after = 0;
        }
    }
    actor_executor_null_destroy(&device);
    fixture_close(&fixture);
    return step;
}

START_TEST(answers_depend_on_the_prompt_alone)
{
    static const way_t ways[] = {{32, 0, 0, 1}, {3, 0, 0, 1},  {32, 1, 0, 1},
                                 {5, 1, 0, 1},  {32, 0, 4, 1}, {4, 1, 7, 1}};
    for (uint32_t prompt_length = 1; prompt_length < 18; prompt_length++) {
        int32_t tokens[FIXTURE_LEN_MAX];
        for (uint32_t i = 0; i < prompt_length; i++) {
            tokens[i] = fixture_token(11, i);
        }
        for (uint32_t i = 0; i < ANSWER; i++) {
            tokens[prompt_length + i] =
                actor_executor_null_token(tokens, prompt_length + i, FIXTURE_VOCAB);
        }
        for (uint32_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
            int32_t answer[ANSWER + 2];
            (void)make_answer(prompt_length, &ways[way], answer);
            ck_assert_mem_eq(answer, tokens + prompt_length, ANSWER * sizeof(int32_t));
        }
    }
}
END_TEST

/* Rows that accept one to four tokens: the same answers in fewer steps. */
START_TEST(wide_rows_give_the_same_answers)
{
    enum { WIDTH = 4, PROMPT_MAX = 8 };
    static const way_t ways[] = {{32, 0, 0, WIDTH}, {3, 0, 0, WIDTH},  {32, 1, 0, WIDTH},
                                 {5, 1, 0, WIDTH},  {32, 0, 2, WIDTH}, {4, 1, 3, WIDTH}};
    uint64_t step_count = 0;
    for (uint32_t prompt_length = 1; prompt_length < PROMPT_MAX; prompt_length++) {
        int32_t tokens[FIXTURE_LEN_MAX];
        for (uint32_t i = 0; i < prompt_length; i++) {
            tokens[i] = fixture_token(11, i);
        }
        for (uint32_t i = 0; i < ANSWER; i++) {
            tokens[prompt_length + i] =
                actor_executor_null_token(tokens, prompt_length + i, FIXTURE_VOCAB);
        }
        for (uint32_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
            int32_t answer[ANSWER + 3 * WIDTH];
            uint64_t steps = make_answer(prompt_length, &ways[way], answer);
            ck_assert_mem_eq(answer, tokens + prompt_length, ANSWER * sizeof(int32_t));
            step_count += way == 0 ? steps : 0;
        }
    }
    ck_assert_uint_lt(step_count, PROMPT_MAX * ANSWER * 3 / 4);
    ck_assert_uint_gt(step_count, PROMPT_MAX * ANSWER / WIDTH);
}
END_TEST

START_TEST(options_out_of_range_are_refused)
{
    actor_executor_null_options_t options = {.slot_count = PROTO_ROWS_MAX + 1};
    ck_assert_int_eq(actor_executor_null_new(&options, &device), STATUS_ERR_CONFIG);
    options = (actor_executor_null_options_t){.decode_width = 17};
    ck_assert_int_eq(actor_executor_null_new(&options, &device), STATUS_ERR_CONFIG);
    options = (actor_executor_null_options_t){.is_inline = true, .step_ns = 1};
    ck_assert_int_eq(actor_executor_null_new(&options, &device), STATUS_ERR_CONFIG);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("actors.executor_null");
    TCase *answers = tcase_create("answers");
    tcase_set_timeout(answers, 60);
    tcase_add_test(answers, answers_depend_on_the_prompt_alone);
    tcase_add_test(answers, wide_rows_give_the_same_answers);
    tcase_add_test(answers, options_out_of_range_are_refused);
    suite_add_tcase(suite, answers);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
