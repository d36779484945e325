/* Every kind of drafter against its definition in float64 (tests/models/fixtures/make_draft.py):
 * what it proposes behind so many tokens is known for every length, whatever way led there.  So
 * each scene
 * - chunks, prefix hits, retractions, other blocks, other batches, rejects at every index -
 * compares with the same table. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "draft_scene.h"
#include "run_inspect.h"

enum { WIDTH = 4, FRONTIER_MAX = 64, TARGET_LAYERS = 3 };

typedef struct {
    uint32_t prompt;
    uint32_t token_count;
    uint32_t frontiers;
    int32_t tokens[SCENE_LEN_MAX];
    int32_t ids[FRONTIER_MAX][WIDTH - 1]; /* behind prompt + i tokens in the cache */
    float leads[FRONTIER_MAX][WIDTH - 1];
} reference_t;

static const char *const kinds[] = {"tiny-draft-eagle3", "tiny-draft-mtp", "tiny-draft-dflash",
                                    "tiny-draft-dspark"};
enum { KIND_COUNT = sizeof kinds / sizeof *kinds };

static reference_t reference;
static uint32_t right_max; /* of what by_turns() plants */
static scene_request_t requests[SCENE_SLOTS + 1];

static void
read_exactly(FILE *file, void *out, size_t size_bytes)
{
    ck_assert_uint_eq(fread(out, 1, size_bytes, file), size_bytes);
}

/* Every slot's request is the fixture's. */
static void
load_reference(const char *kind)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/draft.bin", driver_fixture(kind));
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    uint8_t magic[4];
    uint32_t head[5];
    read_exactly(file, magic, sizeof magic);
    read_exactly(file, head, sizeof head);
    ck_assert_mem_eq(magic, "OPDR", 4);
    ck_assert_uint_eq(head[1], WIDTH);
    reference = (reference_t){.prompt = head[2], .token_count = head[3], .frontiers = head[4]};
    ck_assert_uint_le(reference.token_count, SCENE_LEN_MAX);
    ck_assert_uint_le(reference.frontiers, FRONTIER_MAX);
    read_exactly(file, reference.tokens, reference.token_count * sizeof(int32_t));
    for (uint32_t i = 0; i < reference.frontiers; i++) {
        for (uint32_t j = 0; j < WIDTH - 1; j++) {
            read_exactly(file, &reference.ids[i][j], sizeof(int32_t));
            read_exactly(file, &reference.leads[i][j], sizeof(float));
        }
    }
    (void)fclose(file);
    right_max = strcmp(kind, "tiny-draft-mtp") == 0 ? 1 : WIDTH - 1;
    for (uint32_t slot = 1; slot <= SCENE_SLOTS; slot++) {
        scene_answer_t *answer = &scene_answers[slot];
        *answer = (scene_answer_t){.prompt_length = reference.prompt};
        answer->sampling =
            (proto_sampling_t){.prompt_length = reference.prompt, .ignore_eos = true};
        memcpy(answer->tokens, reference.tokens, reference.token_count * sizeof(int32_t));
    }
}

typedef struct {
    uint32_t compared;
    uint32_t different;
} verdict_t;

/* Proposals noted behind `length` tokens have length - 1 of them in the cache. */
static void
compare(const scene_request_t *request, verdict_t *verdict)
{
    for (uint32_t i = 0; i < reference.frontiers; i++) {
        const int32_t *proposal = request->proposals[reference.prompt + i + 1];
        uint32_t length = reference.prompt + i + 1;
        for (uint32_t j = 0; request->is_noted[length] && j < WIDTH - 1; j++) {
            if (reference.leads[i][j] < 1e-3f) {
                break; /* and what follows from another choice */
            }
            verdict->compared++;
            verdict->different += proposal[j] != reference.ids[i][j];
        }
    }
}

static void
expect_right(const scene_request_t *request)
{
    verdict_t verdict = {0};
    compare(request, &verdict);
    ck_assert_uint_ge(verdict.compared, WIDTH);
    ck_assert_msg(verdict.different == 0, "%u of %u proposals are others; slot %u",
                  verdict.different, verdict.compared, request->slot);
}

static bool
is_done(const scene_request_t *request)
{
    return request->length >= reference.prompt + reference.frontiers;
}

/* Right candidates of every count, by turns; and now and then what the drafter says.  MTP's window
 * of N rows makes good the deeper layers' last N - 2 rows only where no more than two tokens were
 * accepted that it did not propose itself: one right candidate that is not its own is its most. */
static int
by_turns(const scene_request_t *request, uint32_t width)
{
    uint32_t turn = (request->rounds + request->slot) % (width + 1);
    if (turn == width) {
        return -1;
    }
    return (int)(turn < right_max ? turn : right_max);
}

static void
run_until_done(driver_t *driver, scene_request_t **live, uint32_t count)
{
    while (!is_done(live[0])) {
        uint32_t still = 0;
        scene_request_t *now[SCENE_SLOTS];
        for (uint32_t i = 0; i < count; i++) {
            if (!is_done(live[i])) {
                now[still++] = live[i];
            }
        }
        scene_round(driver, now, still, NULL, by_turns);
    }
}

/* Replayed in batches of up to 4, eager above. */
START_TEST(proposals_are_those_of_the_definition)
{
    load_reference(kinds[_i]);
    run_executor_options_t options = scene_options("tiny-llama", kinds[_i], WIDTH);
    driver_t driver;
    driver_open(&driver, &options);
    for (uint32_t count = 1; count <= 7; count += 3) {
        scene_request_t *live[SCENE_SLOTS];
        for (uint32_t i = 0; i < count; i++) {
            scene_start(&driver, i + 1, 64, &requests[i]);
            live[i] = &requests[i];
        }
        run_until_done(&driver, live, count);
        for (uint32_t i = 0; i < count; i++) {
            expect_right(live[i]);
        }
    }
    driver_close(&driver);
}
END_TEST

static void
finish_alone(driver_t *driver, scene_request_t *request)
{
    run_until_done(driver, &request, 1);
    expect_right(request);
}

/* A prompt in chunks of every size: the last row of a chunk knows the token behind it. */
static void
chunks(driver_t *driver)
{
    for (uint32_t chunk = 1; chunk <= 8; chunk += chunk == 1 ? 1 : 3) {
        scene_start(driver, 1, chunk, &requests[0]);
        finish_alone(driver, &requests[0]);
    }
}

/* The blocks of a neighbour with the same prompt: its draft cache holds for both. */
static void
prefix_hit(driver_t *driver)
{
    uint32_t hit = 16;
    scene_start(driver, 1, 64, &requests[0]);
    driver->blocks[2][0] = driver->blocks[1][0];
    scene_request_t *request = &requests[1];
    const scene_answer_t *answer = &scene_answers[2];
    *request = (scene_request_t){.answer = answer, .slot = 2};
    driver_setup(driver, 2, answer->tokens, answer->prompt_length, &answer->sampling);
    driver_extend_t extend = {.slot = 2,
                              .begin = hit,
                              .length = answer->prompt_length - hit,
                              .sample = true,
                              .tokens = answer->tokens + hit};
    driver_result_t result;
    driver_step(driver, &extend, 1, NULL, 0, &result);
    ck_assert_int_eq(result.tokens[0], answer->tokens[answer->prompt_length]);
    request->length = answer->prompt_length + 1;
    scene_request_t *live[] = {request, &requests[0]};
    scene_note(driver, request);
    run_until_done(driver, live, 2);
    expect_right(request);
    expect_right(&requests[0]);
    driver->blocks[2][0] = 1 + driver->columns;
}

/* A hit that leaves one row to compute: rows in front of it are in no stash, and theirs that stand
 * in the shared blocks stay as they are. */
static void
hit_but_for_one(driver_t *driver)
{
    uint32_t hit = 32;
    scene_request_t *live[] = {&requests[0], &requests[1]};
    scene_start(driver, 1, 64, live[0]);
    while (live[0]->length < hit + 8) {
        scene_round(driver, live, 1, NULL, by_turns);
    }
    memcpy(driver->blocks[2], driver->blocks[1], 2 * sizeof driver->blocks[2][0]);
    *live[1] = (scene_request_t){.answer = &scene_answers[2], .slot = 2};
    driver_setup(driver, 2, reference.tokens, hit + 1, &scene_answers[2].sampling);
    driver_extend_t extend = {
        .slot = 2, .begin = hit, .length = 1, .sample = true, .tokens = reference.tokens + hit};
    driver_result_t result;
    driver_step(driver, &extend, 1, NULL, 0, &result);
    ck_assert_int_eq(result.tokens[0], reference.tokens[hit + 1]);
    live[1]->length = hit + 2;
    scene_note(driver, live[1]);
    while (!is_done(live[0]) && !is_done(live[1])) {
        scene_round(driver, live, 2, NULL, by_turns);
    }
    expect_right(live[0]);
    expect_right(live[1]);
    driver->blocks[2][0] = 1 + driver->columns;
    driver->blocks[2][1] = 2 + driver->columns;
}

/* Retracted after some rounds, and admitted again into another slot with all its tokens. */
static void
retraction(driver_t *driver)
{
    scene_request_t *first = &requests[0];
    scene_start(driver, 3, 64, first);
    for (int i = 0; i < 4; i++) {
        scene_round(driver, &first, 1, NULL, by_turns);
    }
    uint32_t known = first->length;
    scene_request_t *second = &requests[1];
    *second = (scene_request_t){.answer = &scene_answers[4], .slot = 4};
    driver_setup(driver, 4, reference.tokens, known, &scene_answers[4].sampling);
    ck_assert_int_eq(driver_prefill(driver, 4, reference.tokens, known, 7),
                     reference.tokens[known]);
    second->length = known + 1;
    scene_note(driver, second);
    run_until_done(driver, &second, 1);
    expect_right(second);
}

/* No two blocks of the request lie side by side. */
static void
fragmentation(driver_t *driver)
{
    for (uint32_t column = 0; column < driver->columns; column++) {
        uint32_t turned = driver->columns - 1 - column;
        driver->blocks[5][column] = 1 + (4 + turned % 2) * driver->columns + turned;
    }
    scene_start(driver, 5, 6, &requests[0]);
    finish_alone(driver, &requests[0]);
    for (uint32_t column = 0; column < driver->columns; column++) {
        driver->blocks[5][column] = 1 + 4 * driver->columns + column;
    }
}

/* Neighbours come, in mixed rounds, and go. */
static void
batch_changes(driver_t *driver)
{
    scene_request_t *live[SCENE_SLOTS] = {&requests[0]};
    scene_start(driver, 1, 64, &requests[0]);
    for (uint32_t slot = 2; slot <= 4; slot++) {
        const scene_answer_t *answer = &scene_answers[slot];
        scene_request_t *request = &requests[slot - 1];
        *request = (scene_request_t){.answer = answer, .slot = slot};
        driver_setup(driver, slot, answer->tokens, answer->prompt_length, &answer->sampling);
        for (uint32_t at = 0; at < answer->prompt_length; at += 11) {
            uint32_t left = answer->prompt_length - at;
            driver_extend_t extend = {.slot = slot,
                                      .begin = at,
                                      .length = left < 11 ? left : 11,
                                      .sample = left <= 11,
                                      .tokens = answer->tokens + at,
                                      .next = left <= 11 ? NULL : answer->tokens + at + 11};
            scene_round(driver, live, slot - 1, &extend, by_turns);
        }
        request->length = answer->prompt_length + 1;
        scene_note(driver, request);
        live[slot - 1] = request;
    }
    for (uint32_t count = 4; count >= 1; count--) {
        scene_round(driver, live, count, NULL, by_turns);
    }
    for (uint32_t i = 0; i < 4; i++) {
        expect_right(live[i]);
    }
}

START_TEST(disturbances_change_no_proposal)
{
    static void (*const scenes[])(driver_t *) = {chunks,     prefix_hit,    hit_but_for_one,
                                                 retraction, fragmentation, batch_changes};
    load_reference(kinds[_i]);
    run_executor_options_t options = scene_options("tiny-llama", kinds[_i], WIDTH);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
        driver_t driver; /* a new one for each: nothing of another scene helps */
        driver_open(&driver, &options);
        ck_assert_int_eq(run_inspect_poison_cache(driver.executor), STATUS_OK);
        scenes[i](&driver);
        driver_close(&driver);
    }
}
END_TEST

/* ---- mutants: a draft that is wrong in one place must not pass ------------------------------- */

static char mutant[256];

static char *
read_whole(const char *kind, const char *name, size_t *size_bytes)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/%s", driver_fixture(kind), name);
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    *size_bytes = (size_t)ftell(file);
    rewind(file);
    char *bytes = calloc(1, *size_bytes + 1);
    ck_assert_ptr_nonnull(bytes);
    read_exactly(file, bytes, *size_bytes);
    (void)fclose(file);
    return bytes;
}

static void
write_whole(const char *name, const char *bytes, size_t size_bytes)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/%s", mutant, name);
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size_bytes, file), size_bytes);
    (void)fclose(file);
}

typedef struct {
    const char *kind;
    const char *tensor; /* its values become `value`; NULL = the config changes */
    float value;
    const char *from;
    const char *to;
} mutation_t;

static const mutation_t mutations[] = {
    {"tiny-draft-eagle3", "midlayer.hidden_norm.weight", 1.0f, NULL, NULL},
    {"tiny-draft-eagle3", "midlayer.input_layernorm.weight", 1.0f, NULL, NULL},
    {"tiny-draft-eagle3", "norm.weight", 1.0f, NULL, NULL},
    {"tiny-draft-eagle3", NULL, 0.0f, "\"rope_theta\": 10000.0", "\"rope_theta\": 2.0"},
    {"tiny-draft-mtp", "model.layers.1.enorm.weight", 1.0f, NULL, NULL},
    {"tiny-draft-mtp", "model.layers.0.hnorm.weight", 1.0f, NULL, NULL},
    {"tiny-draft-mtp", "model.layers.2.shared_head.norm.weight", 1.0f, NULL, NULL},
    {"tiny-draft-mtp", NULL, 0.0f, "\"rope_theta\": 10000.0", "\"rope_theta\": 2.0"},
    {"tiny-draft-dflash", "hidden_norm.weight", 1.0f, NULL, NULL},
    {"tiny-draft-dflash", "layers.1.self_attn.k_norm.weight", 1.5f, NULL, NULL},
    {"tiny-draft-dflash", NULL, 0.0f, "\"mask_token_id\": 319", "\"mask_token_id\": 318"},
    {"tiny-draft-dspark", "markov_w1.weight", 0.0f, NULL, NULL},
    {"tiny-draft-dspark", "layers.0.self_attn.q_norm.weight", 1.5f, NULL, NULL},
};
enum { MUTATION_COUNT = sizeof mutations / sizeof *mutations };

static void
change_tensor(char *weights, size_t size_bytes, const mutation_t *mutation)
{
    char quoted[128];
    (void)snprintf(quoted, sizeof quoted, "\"%s\":", mutation->tensor);
    const char *at = memmem(weights, size_bytes, quoted, strlen(quoted));
    ck_assert_msg(at != NULL, "%s", quoted);
    static const char OFFSETS[] = "\"data_offsets\":[";
    at = strstr(at, OFFSETS) + sizeof OFFSETS - 1;
    char *comma = NULL;
    unsigned long begin = strtoul(at, &comma, 10);
    unsigned long end = strtoul(comma + 1, NULL, 10);
    uint64_t header = 0;
    memcpy(&header, weights, sizeof header);
    for (unsigned long i = begin; i < end; i += sizeof(float)) {
        memcpy(weights + sizeof header + header + i, &mutation->value, sizeof(float));
    }
}

static void
make_mutant(const mutation_t *mutation)
{
    const char *base = getenv("TMPDIR");
    (void)snprintf(mutant, sizeof mutant, "%s/onepath-draft-XXXXXX", base == NULL ? "/tmp" : base);
    ck_assert_ptr_nonnull(mkdtemp(mutant));
    size_t size_bytes = 0;
    char *config = read_whole(mutation->kind, "config.json", &size_bytes);
    if (mutation->tensor == NULL) {
        char changed[4096];
        const char *at = strstr(config, mutation->from);
        ck_assert_ptr_nonnull(at);
        int count = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - config), config,
                             mutation->to, at + strlen(mutation->from));
        write_whole("config.json", changed, (size_t)count);
    } else {
        write_whole("config.json", config, size_bytes);
    }
    char *weights = read_whole(mutation->kind, "model.safetensors", &size_bytes);
    if (mutation->tensor != NULL) {
        change_tensor(weights, size_bytes, mutation);
    }
    write_whole("model.safetensors", weights, size_bytes);
    free(weights);
    free(config);
}

static void
remove_mutant(void)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < 2; i++) {
        char path[700];
        (void)snprintf(path, sizeof path, "%s/%s", mutant, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(mutant);
}

START_TEST(a_draft_that_is_wrong_in_one_place_is_noticed)
{
    const mutation_t *mutation = &mutations[_i];
    load_reference(mutation->kind);
    make_mutant(mutation);
    run_executor_options_t options = scene_options("tiny-llama", mutant, WIDTH);
    options.enforce_eager = true;
    driver_t driver;
    driver_open(&driver, &options);
    scene_request_t *live[] = {&requests[0]};
    scene_start(&driver, 1, 64, &requests[0]);
    run_until_done(&driver, live, 1); /* whatever it proposes, the answer is the target's */
    driver_close(&driver);
    remove_mutant();
    verdict_t verdict = {0};
    compare(live[0], &verdict);
    ck_assert_uint_gt(verdict.different, 0);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.draft_kinds");
    TCase *tests = tcase_create("kinds");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, proposals_are_those_of_the_definition, 0, KIND_COUNT);
    tcase_add_loop_test(tests, disturbances_change_no_proposal, 0, KIND_COUNT);
    tcase_add_loop_test(tests, a_draft_that_is_wrong_in_one_place_is_noticed, 0, MUTATION_COUNT);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
