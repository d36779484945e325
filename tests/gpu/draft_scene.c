/* Requests under a drafter. */
#include "draft_scene.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#include "run_inspect.h"

scene_answer_t scene_answers[SCENE_SLOTS + 1];
static char target_path[600];
static char draft_path[600];

static void
set_path(char out[600], const char *name)
{
    (void)snprintf(out, 600, "%s", name[0] == '/' ? name : driver_fixture(name));
}

run_executor_options_t
scene_options(const char *target, const char *draft, uint32_t width)
{
    set_path(target_path, target);
    if (draft != NULL) {
        set_path(draft_path, draft);
    }
    run_executor_options_t options = {
        .model_path = target_path,
        .draft_path = draft == NULL ? NULL : draft_path,
        .slot_count = SCENE_SLOTS,
        .model_len_max = 160,
        .step_tokens_max = 160,
        .block_granularity = 16,
        .cache_size_bytes = 32 << 20,
        .capture_bs_max = 4,
        .graph_debug = true,
        .width = width,
    };
    return options;
}

static void
fill_request(uint32_t slot, bool is_greedy)
{
    scene_answer_t *answer = &scene_answers[slot];
    answer->prompt_length = 3 + slot * 5;
    answer->sampling =
        (proto_sampling_t){.prompt_length = answer->prompt_length, .ignore_eos = true};
    if (!is_greedy && slot % 2 == 0) {
        answer->sampling.temperature = 0.7;
        answer->sampling.top_p = 0.95;
        answer->sampling.top_k = 30;
        answer->sampling.seed = 77 + slot;
    }
    driver_random_tokens(900 + slot, SCENE_VOCABULARY, answer->tokens, answer->prompt_length);
}

void
scene_make_answers(const char *target, bool is_greedy)
{
    run_executor_options_t options = scene_options(target, NULL, 1);
    driver_t driver;
    driver_open(&driver, &options);
    for (uint32_t slot = 1; slot <= SCENE_SLOTS; slot++) {
        fill_request(slot, is_greedy);
        scene_answer_t *answer = &scene_answers[slot];
        uint32_t end = answer->prompt_length + SCENE_GENERATED + RUN_WIDTH_MAX;
        driver_setup(&driver, slot, answer->tokens, answer->prompt_length, &answer->sampling);
        uint32_t at = answer->prompt_length;
        answer->tokens[at++] =
            driver_prefill(&driver, slot, answer->tokens, answer->prompt_length, 64);
        while (at < end) {
            answer->tokens[at++] = driver_decode_one(&driver, slot);
        }
    }
    driver_close(&driver);
}

void
scene_note(driver_t *driver, scene_request_t *request)
{
    uint32_t width = driver->info.decode_width;
    int32_t window[RUN_WIDTH_MAX];
    ck_assert_int_eq(run_inspect_future(driver->executor, request->slot, window, width), STATUS_OK);
    ck_assert_int_eq(window[0], request->answer->tokens[request->length - 1]);
    request->is_noted[request->length] = true;
    memcpy(request->proposals[request->length], window + 1, (width - 1) * sizeof *window);
}

void
scene_start(driver_t *driver, uint32_t slot, uint32_t chunk, scene_request_t *out)
{
    const scene_answer_t *answer = &scene_answers[slot];
    *out = (scene_request_t){.answer = answer, .slot = slot};
    driver_setup(driver, slot, answer->tokens, answer->prompt_length, &answer->sampling);
    int32_t first = driver_prefill(driver, slot, answer->tokens, answer->prompt_length, chunk);
    ck_assert_int_eq(first, answer->tokens[answer->prompt_length]);
    out->length = answer->prompt_length + 1;
    scene_note(driver, out);
}

bool
scene_is_done(const scene_request_t *request)
{
    return request->length >= request->answer->prompt_length + SCENE_GENERATED;
}

static void
plant(driver_t *driver, const scene_request_t *request, uint32_t right)
{
    uint32_t count = driver->info.decode_width - 1;
    const int32_t *next = request->answer->tokens + request->length;
    int32_t candidates[RUN_WIDTH_MAX];
    for (uint32_t i = 0; i < count; i++) {
        candidates[i] = i < right ? next[i] : (next[i] + 1) % SCENE_VOCABULARY;
    }
    ck_assert_int_eq(run_inspect_plant_candidates(driver->executor, request->slot, candidates,
                                                  count),
                     STATUS_OK);
}

void
scene_round(driver_t *driver, scene_request_t **requests, uint32_t count,
            const driver_extend_t *extend, scene_overrule_fn overrule)
{
    uint32_t width = driver->info.decode_width;
    uint32_t slots[SCENE_SLOTS] = {0};
    int right[SCENE_SLOTS] = {0};
    for (uint32_t i = 0; i < count; i++) {
        slots[i] = requests[i]->slot;
        right[i] = overrule == NULL ? -1 : overrule(requests[i], width);
        if (right[i] >= 0) {
            plant(driver, requests[i], (uint32_t)right[i]);
        }
    }
    driver_result_t result;
    uint32_t first = extend == NULL ? 0 : 1;
    driver_step(driver, extend, first, slots, count, &result);
    for (uint32_t i = 0; i < count; i++) {
        scene_request_t *request = requests[i];
        uint32_t given = result.counts[first + i];
        ck_assert_uint_ge(given, 1);
        ck_assert_mem_eq(result.windows[first + i], request->answer->tokens + request->length,
                         given * sizeof(int32_t));
        if (right[i] >= 0) {
            ck_assert_uint_eq(given, (uint32_t)right[i] + 1);
        }
        if (width > 1) { /* what a plan's width follows */
            ck_assert_uint_eq(result.drafted[first + i], width - 1);
            ck_assert_uint_eq(result.hits[first + i], given - 1);
        }
        request->counts[request->length] = (uint8_t)given;
        request->length += given;
        request->rounds++;
        request->accepted += given - 1;
        request->offered += width - 1;
        scene_note(driver, request);
    }
}

void
scene_run(driver_t *driver, scene_request_t **requests, uint32_t count, scene_overrule_fn overrule)
{
    for (;;) {
        scene_request_t *live[SCENE_SLOTS];
        uint32_t live_count = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (!scene_is_done(requests[i])) {
                live[live_count++] = requests[i];
            }
        }
        if (live_count == 0) {
            return;
        }
        scene_round(driver, live, live_count, NULL, overrule);
    }
}
