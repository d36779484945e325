/* The draft metadata contract on a router, edit by edit: what a call changes, and that it changes
 * nothing else. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "backend_draft.h"
#include "device_host.h"
#include "draft_open.h"
#include "file_model.h"
#include "gpu_driver.h"
#include "model_base.h"
#include "router_cache_group.h"

enum {
    GRANULARITY = 16,
    PARENTS = 40,
    BS_MAX = 5,
    WIDTH = 4,
    COLUMNS = 8,
    LAYERS = 2,
};

static device_t *device;
static device_stream_t *stream;
static cache_plan_t *plan;
static cache_arena_t *arena;
static int32_t blocks[BS_MAX * COLUMNS];
static int32_t slots[BS_MAX];
static const int32_t lengths[BS_MAX] = {2, 16, 17, 100, 63};

static void
open_all(void)
{
    device_host_options_t options = {.thread_count = 1, .path = KERN_PATH_PORTABLE};
    ck_assert_int_eq(device_host_new(&options, &device), STATUS_OK);
    ck_assert_int_eq(device_stream_new(device, &stream), STATUS_OK);
    cache_group_t group = {.id = "full",
                           .kind = CACHE_KIND_FULL,
                           .granularity = GRANULARITY,
                           .packing = 1};
    cache_field_t fields[2 * LAYERS];
    for (uint32_t i = 0; i < 2 * LAYERS; i++) {
        fields[i] = (cache_field_t){.layer = i / 2,
                                    .name = i % 2 == 0 ? CACHE_FIELD_K : CACHE_FIELD_V,
                                    .plane = i,
                                    .rows = GRANULARITY,
                                    .heads = 1,
                                    .head_dim = 16,
                                    .dtype = CACHE_DTYPE_F32};
    }
    cache_plan_options_t layout = {.groups = &group,
                                   .group_count = 1,
                                   .fields = fields,
                                   .field_count = 2 * LAYERS,
                                   .prefix_granularity = GRANULARITY};
    ck_assert_int_eq(cache_plan_new(&layout, &plan), STATUS_OK);
    ck_assert_int_eq(cache_plan_bind(plan, PARENTS), STATUS_OK);
    ck_assert_int_eq(cache_arena_new(device, plan, &arena), STATUS_OK);
    for (uint32_t b = 0; b < BS_MAX; b++) {
        slots[b] = (int32_t)b + 1;
        for (uint32_t c = 0; c < COLUMNS; c++) {
            blocks[b * COLUMNS + c] = (int32_t)(1 + (b * 7 + c * 11) % PARENTS);
        }
    }
}

static void
close_all(void)
{
    cache_arena_destroy(&arena);
    cache_plan_destroy(&plan);
    device_stream_destroy(&stream);
    device_destroy(&device);
}

static backend_t *
new_tree(bool is_draft, uint32_t block_width)
{
    router_cache_group_options_t options = {
        .backend = {.device = device,
                    .stream = stream,
                    .bs_max = BS_MAX,
                    .width = WIDTH,
                    .step_tokens_max = 200,
                    .model_len_max = 110,
                    .q_heads = 2,
                    .kv_heads = 1,
                    .head_dim = 16,
                    .is_draft = is_draft,
                    .block_width = block_width},
    };
    backend_t *tree = NULL;
    cache_pool_t pool;
    ck_assert_int_eq(router_cache_group_new(&options, &tree), STATUS_OK);
    ck_assert_int_eq(cache_pool_init(&pool, plan, arena, 1, LAYERS - 1), STATUS_OK);
    ck_assert_int_eq(backend_set_cache_pool(tree, &pool), STATUS_OK);
    ck_assert_int_eq(backend_init_cuda_graph_state(tree), STATUS_OK);
    return tree;
}

static void
settle(void)
{
    ck_assert_int_eq(device_stream_synchronize(stream), STATUS_OK);
}

static void
refresh(backend_t *tree, const int32_t *seq_lens, uint32_t actual_bs, bool is_replay)
{
    backend_tables_t tables = {.group_count = 1};
    tables.groups[0] = (backend_table_t){.blocks = blocks, .stride = COLUMNS, .columns = COLUMNS};
    backend_refresh_t what = {.bs = BS_MAX,
                              .actual_bs = actual_bs,
                              .request_slots = slots,
                              .seq_lens = seq_lens,
                              .mode = BACKEND_MODE_DECODE,
                              .tables = &tables,
                              .num_extends = 0,
                              .for_graph_replay = is_replay};
    ck_assert_int_eq(backend_refresh_decode_metadata(tree, &what), STATUS_OK);
    settle();
}

static int32_t
slot_of(uint32_t request, int32_t position)
{
    if (position < 0 || position / GRANULARITY >= COLUMNS) {
        return 0;
    }
    return blocks[request * COLUMNS + (uint32_t)position / GRANULARITY] * GRANULARITY +
           position % GRANULARITY;
}

/* What the decode slot holds. */
typedef struct {
    int32_t lens[BS_MAX * WIDTH];
    int32_t window[BS_MAX * WIDTH];
    int32_t tables[BS_MAX * WIDTH * COLUMNS * 2];
} state_t;

static void
note(void *context, const char *path, const void *address, size_t size_bytes)
{
    state_t *state = context;
    if (strstr(path, "seq_lens") != NULL) {
        ck_assert_uint_le(size_bytes, sizeof state->lens);
        memcpy(state->lens, address, size_bytes);
    } else if (strstr(path, "page_table") != NULL) {
        ck_assert_uint_le(size_bytes, sizeof state->tables);
        memcpy(state->tables, address, size_bytes);
    } else if (strstr(path, "write_locations") != NULL) {
        memcpy(state->window, address, size_bytes);
    }
}

static state_t
state_of(const backend_t *tree)
{
    settle();
    state_t state = {.lens = {0}};
    backend_visit_decode_slot(tree, BS_MAX, note, &state);
    return state;
}

/* Steps write where the table says, at any start: before position 0 and behind the table it is the
 * null page, and padded requests have no other. */
START_TEST(step_windows_follow_the_table)
{
    backend_t *tree = new_tree(true, 0);
    for (uint32_t actual_bs = BS_MAX - 2; actual_bs <= BS_MAX; actual_bs++) {
        refresh(tree, lengths, actual_bs, false);
        for (uint32_t n = 1; n <= WIDTH; n++) {
            const int32_t starts[BS_MAX] = {-3, 15, 16, 126, 61};
            backend_publish_draft_step_locations(tree, starts, n, BS_MAX);
            settle();
            const int32_t *window = backend_write_locations(tree, 0, BACKEND_MODE_DECODE);
            ck_assert_ptr_eq(window, backend_decode_window_locations(tree));
            for (uint32_t b = 0; b < BS_MAX; b++) {
                for (uint32_t t = 0; t < n; t++) {
                    int32_t wanted = slot_of(b, starts[b] + (int32_t)t);
                    wanted = b < actual_bs ? wanted : (starts[b] + (int32_t)t) % GRANULARITY;
                    int32_t got = window[b * n + t];
                    ck_assert_msg(b < actual_bs ? got == wanted : got < GRANULARITY,
                                  "request %u, row %u of %u: %d", b, t, n, got);
                }
            }
        }
    }
    backend_destroy(&tree);
}
END_TEST

/* Lengths, window and side writes: each call edits its own and leaves the others. */
START_TEST(edits_touch_what_they_name)
{
    backend_t *tree = new_tree(true, 0);
    refresh(tree, lengths, BS_MAX, false);
    state_t before = state_of(tree);
    ck_assert_mem_eq(before.lens, lengths, sizeof lengths); /* floor 1, not the width */
    const int32_t other[BS_MAX] = {1, 20, 30, 40, 0};
    const int32_t floored[BS_MAX] = {1, 20, 30, 40, 1};

    backend_advance_draft_forward_metadata(tree, other, BS_MAX);
    state_t after = state_of(tree);
    ck_assert_mem_eq(after.lens, floored, sizeof floored);
    ck_assert_mem_eq(after.window, before.window, sizeof before.window);
    ck_assert_mem_eq(after.tables, before.tables, sizeof before.tables);

    backend_publish_draft_step_locations(tree, other, 1, BS_MAX);
    state_t moved = state_of(tree);
    ck_assert_mem_eq(moved.lens, floored, sizeof floored);
    ck_assert_mem_ne(moved.window, before.window, sizeof before.window);

    int32_t *aside = NULL;
    ck_assert_int_eq(device_alloc(device, DEVICE_MEMORY_DEVICE, sizeof before.window,
                                  (void **)&aside),
                     STATUS_OK);
    backend_draft_write_locations_uniform(tree, aside, lengths, 3, BS_MAX);
    state_t beside = state_of(tree);
    ck_assert_mem_eq(&beside, &moved, sizeof moved);
    for (uint32_t i = 0; i < BS_MAX * 3; i++) {
        ck_assert_int_eq(aside[i], slot_of(i / 3, lengths[i / 3] + (int32_t)(i % 3)));
    }
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&aside);

    backend_accepted_prefix_t publisher = {.backend = tree, .frontier = other, .bs = BS_MAX};
    for (int i = 0; i < 2; i++) { /* idempotent */
        backend_publish_accepted_prefix(&publisher);
        state_t published = state_of(tree);
        ck_assert_mem_eq(published.lens, floored, sizeof floored);
        ck_assert_mem_eq(published.window, moved.window, sizeof moved.window);
    }

    refresh(tree, lengths, BS_MAX, false); /* the next round's: nothing of the edits is left */
    state_t again = state_of(tree);
    ck_assert_mem_eq(&again, &before, sizeof before);
    backend_destroy(&tree);
}
END_TEST

/* Rows that a request does not have go to the null page. */
START_TEST(a_limited_window_writes_its_last_rows)
{
    backend_t *tree = new_tree(true, 0);
    refresh(tree, lengths, BS_MAX, false);
    const int32_t starts[BS_MAX] = {0, 16, 32, 48, 64};
    const int32_t counts[BS_MAX] = {0, 1, 2, WIDTH, WIDTH + 3};
    backend_publish_draft_step_locations(tree, starts, WIDTH, BS_MAX);
    backend_limit_draft_step_locations(tree, counts, WIDTH, BS_MAX);
    settle();
    const int32_t *window = backend_write_locations(tree, 0, BACKEND_MODE_DECODE);
    for (uint32_t i = 0; i < BS_MAX * WIDTH; i++) {
        uint32_t b = i / WIDTH;
        bool is_kept = (int32_t)(WIDTH - i % WIDTH) <= counts[b];
        ck_assert_int_eq(window[i], is_kept ? slot_of(b, starts[b] + (int32_t)(i % WIDTH)) : 0);
    }
    backend_destroy(&tree);
}
END_TEST

/* Init writes the prefill slot, refresh the decode slot. */
START_TEST(neither_slot_is_touched_for_the_other)
{
    backend_t *tree = new_tree(true, 0);
    refresh(tree, lengths, BS_MAX, false);
    state_t before = state_of(tree);
    const int32_t extend_lens[] = {5, 9};
    const int32_t prefix_lens[] = {16, 0};
    const int32_t seq_lens[] = {21, 9};
    const int32_t cu_lens[] = {0, 5, 14};
    const int32_t zeros[] = {0, 0};
    backend_tables_t tables = {.group_count = 1};
    tables.groups[0] = (backend_table_t){.blocks = blocks, .stride = COLUMNS, .columns = COLUMNS};
    backend_extend_t extend = {.bs = 2,
                               .num_extends = 2,
                               .request_slots = slots,
                               .seq_lens = seq_lens,
                               .mode = BACKEND_MODE_EXTEND,
                               .tables = &tables,
                               .extend_seq_lens = extend_lens,
                               .extend_prefix_lens = prefix_lens,
                               .extend_cu_lens = cu_lens,
                               .extend_seq_lens_host = extend_lens,
                               .extend_prefix_lens_host = prefix_lens,
                               .extend_replay_lens_host = zeros,
                               .extend_prompt_lens_host = zeros,
                               .extend_with_prefix = true};
    ck_assert_int_eq(backend_init_forward_metadata(tree, &extend), STATUS_OK);
    state_t after = state_of(tree);
    ck_assert_mem_eq(&after, &before, sizeof before);
    int32_t span[14];
    memcpy(span, backend_extend_span_locations(tree), sizeof span);
    ck_assert_int_eq(span[0], slot_of(0, 16));
    ck_assert_int_eq(span[5], slot_of(1, 0));
    refresh(tree, lengths, BS_MAX, false);
    ck_assert_mem_eq(span, backend_write_locations(tree, 0, BACKEND_MODE_EXTEND), sizeof span);
    backend_destroy(&tree);
}
END_TEST

/* A block drafter's rows all end where their block does; an eager refresh and a capture seed that,
 * a replay leaves it to the fill that the graph recorded. */
START_TEST(rows_of_a_block_see_its_end)
{
    enum { BLOCK = 3 };
    backend_t *tree = new_tree(true, BLOCK);
    refresh(tree, lengths, BS_MAX, false);
    state_t state = state_of(tree);
    for (uint32_t i = 0; i < BS_MAX * BLOCK; i++) {
        ck_assert_int_eq(state.lens[i], lengths[i / BLOCK] + BLOCK);
    }
    const int32_t prefixes[BS_MAX] = {7, 8, 9, 10, 11};
    backend_fill_block_decode_seq_lens(tree, prefixes, BS_MAX);
    refresh(tree, lengths, BS_MAX, true);
    state = state_of(tree);
    for (uint32_t i = 0; i < BS_MAX * BLOCK; i++) {
        ck_assert_int_eq(state.lens[i], prefixes[i / BLOCK] + BLOCK);
    }
    refresh(tree, lengths, 0, true); /* of a capture */
    state = state_of(tree);
    ck_assert_int_eq(state.lens[0], lengths[0] + BLOCK);
    backend_destroy(&tree);
}
END_TEST

/* A target's lengths have the window as their floor; a draft's have 1. */
START_TEST(only_a_target_has_the_window_for_a_floor)
{
    const int32_t short_lengths[BS_MAX] = {1, 2, 3, 4, 5};
    backend_t *target = new_tree(false, 0);
    refresh(target, short_lengths, BS_MAX, false);
    state_t state = state_of(target);
    for (uint32_t b = 0; b < BS_MAX; b++) {
        ck_assert_int_eq(state.lens[b], short_lengths[b] < WIDTH ? WIDTH : short_lengths[b]);
    }
    backend_destroy(&target);
}
END_TEST

/* Target capture is set up once, and fails where it is missing. */
START_TEST(capture_is_configured_once_and_fails_when_missing)
{
    file_model_t *file = NULL;
    model_t *model = NULL;
    char error[FILE_ERROR_SIZE_BYTES];
    ck_assert_int_eq(file_model_open(driver_fixture("tiny-llama"), error, sizeof error, &file),
                     STATUS_OK);
    ck_assert_int_eq(model_new(device, file, NULL, NULL, &model), STATUS_OK);
    static const model_taps_t wrong[] = {
        {.count = 0},
        {.count = 1, .layers = {3}},
        {.count = 2, .layers = {1, 1}},
        {.count = 2, .layers = {2, 0}},
        {.count = 2, .layers = {MODEL_TAP_FINAL, 1}},
        {.count = MODEL_TAP_COUNT_MAX + 1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ck_assert_int_eq(model_configure_capture(model, &wrong[i]), STATUS_ERR_INVALID);
    }
    const model_taps_t taps = {.count = 3, .layers = {0, 2, MODEL_TAP_FINAL}};
    model_vtable_t without = *model->vtable;
    const model_vtable_t *with = model->vtable;
    without.gives_taps = false;
    model->vtable = &without;
    ck_assert_int_eq(model_configure_capture(model, &taps), STATUS_ERR_UNSUPPORTED);
    model->vtable = with;
    ck_assert_int_eq(model_configure_capture(model, &taps), STATUS_OK);
    ck_assert_int_eq(model_configure_capture(model, &taps), STATUS_ERR_INVALID);
    model_destroy(&model);
    file_model_close(&file);
}
END_TEST

/* A block drafter wants the taps of its own decode rounds as they come, and of no other round; who
 * says that a round was projected which the gate does not let through is refused. */
START_TEST(the_sink_is_armed_under_its_gate_alone)
{
    char target_path[600];
    char draft_path[600];
    char error[FILE_ERROR_SIZE_BYTES] = "";
    file_model_t *target = NULL;
    (void)snprintf(target_path, sizeof target_path, "%s", driver_fixture("tiny-llama"));
    ck_assert_int_eq(file_model_open(target_path, error, sizeof error, &target), STATUS_OK);
    static const struct {
        const char *name;
        bool wants;
    } rows[] = {{"tiny-draft-dflash", true},
                {"tiny-draft-dspark", true},
                {"tiny-draft-eagle3", false},
                {"tiny-draft-mtp", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)snprintf(draft_path, sizeof draft_path, "%s", driver_fixture(rows[i].name));
        draft_options_t options = {.path = draft_path,
                                   .target = target,
                                   .device = device,
                                   .stream = stream,
                                   .width = WIDTH,
                                   .slot_count = 2,
                                   .bs_max = 2,
                                   .rows_max = 16,
                                   .model_len_max = 64,
                                   .error = error,
                                   .error_size_bytes = sizeof error};
        draft_t *draft = NULL;
        ck_assert_msg(draft_open(&options, &draft) == STATUS_OK, "%s", error);
        static const struct {
            backend_mode_t mode;
            uint32_t width;
            bool is_armed;
        } rounds[] = {{BACKEND_MODE_DECODE, WIDTH, true},
                      {BACKEND_MODE_DECODE, 1, false},
                      {BACKEND_MODE_EXTEND, WIDTH, false},
                      {BACKEND_MODE_MIXED, WIDTH, false},
                      {BACKEND_MODE_IDLE, WIDTH, false}};
        for (size_t r = 0; r < sizeof rounds / sizeof *rounds; r++) {
            bool is_armed =
                draft_prepare_target_forward(draft, rounds[r].mode, rounds[r].width) != NULL;
            ck_assert(is_armed == (rows[i].wants && rounds[r].is_armed));
        }
        if (rows[i].wants) {
            const uint32_t one = 1;
            float hidden[3 * 64] = {0};
            draft_round_t round = {.mode = BACKEND_MODE_DECODE,
                                   .bs = 1,
                                   .rows = 1,
                                   .width = 1,
                                   .slots_host = &one,
                                   .hidden = hidden,
                                   .hidden_stride = 3 * 64,
                                   .is_projected = true};
            draft_proposal_t proposal;
            ck_assert_int_eq(draft_propose(draft, &round, &proposal), STATUS_ERR_INVALID);
        }
        draft_destroy(&draft);
    }
    file_model_close(&target);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.draft_contract");
    TCase *tests = tcase_create("contract");
    tcase_add_checked_fixture(tests, open_all, close_all);
    tcase_add_test(tests, step_windows_follow_the_table);
    tcase_add_test(tests, edits_touch_what_they_name);
    tcase_add_test(tests, a_limited_window_writes_its_last_rows);
    tcase_add_test(tests, neither_slot_is_touched_for_the_other);
    tcase_add_test(tests, rows_of_a_block_see_its_end);
    tcase_add_test(tests, only_a_target_has_the_window_for_a_floor);
    tcase_add_test(tests, capture_is_configured_once_and_fails_when_missing);
    tcase_add_test(tests, the_sink_is_armed_under_its_gate_alone);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
