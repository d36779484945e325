/* The fake device is worth what it notices: right tables give the right tokens, wrong ones do not.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "actor_sim_device.h"

enum { PROMPT = 10, GENERATED = 12, VOCAB = 50000 };

static actor_sim_model_t model;
static actor_sim_device_t *device;
static actor_sim_random_t random_state;
static uint64_t step;

static void
set_up(void)
{
    model = (actor_sim_model_t){.slot_count = 3,
                                .model_len_max = 64,
                                .step_tokens_max = 32,
                                .vocab_size = VOCAB,
                                .page_tokens = 4,
                                .parent_count = 40,
                                .group_count = 2,
                                .kinds = {0, 1},
                                .granularities = {4, 2},
                                .windows = {0, 6},
                                .packings = {1, 2},
                                .reads_whole_blocks = true};
    ck_assert_int_eq(actor_sim_device_new(&model, &device), STATUS_OK);
    step = 0;
}

static void
tear_down(void)
{
    actor_sim_device_destroy(&device);
}

static void
setup_slot(uint32_t slot, const int32_t *tokens, uint32_t count)
{
    proto_slot_setup_t setup = {.slot = slot, .tokens = {tokens, count}};
    actor_sim_device_setup(device, &setup);
}

/* Gives the slot blocks base, base + 1, ... for all that it can need, in both groups. */
static void
patch(proto_step_launch_t *launch, uint32_t slot, uint32_t base)
{
    static uint32_t slots[2];
    static const uint8_t groups[2] = {0, 1};
    static const uint32_t columns[2] = {0, 0};
    static const uint32_t counts[2] = {6, 12};
    static uint32_t blocks[18];
    slots[0] = slots[1] = slot;
    for (uint32_t i = 0; i < 6; i++) {
        blocks[i] = base + i;
    }
    for (uint32_t i = 0; i < 12; i++) {
        blocks[6 + i] = 2 * (base + 6) - 1 + i; /* two to a parent, behind the others */
    }
    launch->patch_slots = (proto_column_u32_t){slots, 2};
    launch->patch_groups = (proto_column_u8_t){groups, 2};
    launch->patch_columns = (proto_column_u32_t){columns, 2};
    launch->patch_counts = (proto_column_u32_t){counts, 2};
    launch->patch_blocks = (proto_column_u32_t){blocks, 18};
}

static int32_t
run(proto_step_launch_t *launch)
{
    launch->step = ++step;
    launch->width = 1;
    ck_assert(actor_sim_device_launch(device, launch, 0, &random_state));
    proto_step_done_t done;
    ck_assert(actor_sim_device_collect(device, &done));
    ck_assert_uint_eq(done.step, step);
    return done.tokens.count > 0 ? done.tokens.data[done.tokens.count - 1] : -1;
}

static int32_t
extend(uint32_t slot, const int32_t *tokens, uint32_t begin, uint32_t length, bool samples,
       uint32_t base)
{
    uint8_t sample = samples ? 1 : 0;
    proto_step_launch_t launch = {.extend_slots = {&slot, 1},
                                  .extend_begins = {&begin, 1},
                                  .extend_lengths = {&length, 1},
                                  .extend_samples = {&sample, 1},
                                  .extend_tokens = {tokens + begin, length}};
    if (base != 0) {
        patch(&launch, slot, base);
    }
    return run(&launch);
}

static int32_t
decode(uint32_t slot)
{
    proto_step_launch_t launch = {.decode_slots = {&slot, 1}};
    return run(&launch);
}

static void
make_prompt(int32_t *tokens, uint32_t family)
{
    for (uint32_t i = 0; i < PROMPT; i++) {
        tokens[i] = (int32_t)(actor_sim_mix(family * 100 + i) % VOCAB);
    }
}

static void
start(actor_sim_sequence_t *sequence, const int32_t *tokens)
{
    sequence->length = 0;
    for (uint32_t i = 0; i < PROMPT; i++) {
        actor_sim_sequence_append(sequence, &model, tokens[i]);
    }
}

/* Whole prompts, chunks and decodes give what the pure function says. */
START_TEST(tokens_are_those_of_the_sequence)
{
    int32_t prompt[PROMPT];
    make_prompt(prompt, 1);
    actor_sim_sequence_t sequence;
    start(&sequence, prompt);
    setup_slot(1, prompt, PROMPT);
    ck_assert_int_eq(extend(1, prompt, 0, 7, false, 1), -1);
    int32_t token = extend(1, prompt, 7, PROMPT - 7, true, 0);
    for (uint32_t i = 0; i < GENERATED; i++) {
        ck_assert_int_eq(token, actor_sim_sequence_next(&sequence, &model));
        actor_sim_sequence_append(&sequence, &model, token);
        token = decode(1);
    }
}
END_TEST

/* Another request writes into a block that this one still reads. */
START_TEST(an_overwritten_block_gives_a_wrong_token)
{
    int32_t prompt[PROMPT];
    int32_t other[PROMPT];
    make_prompt(prompt, 1);
    make_prompt(other, 2);
    actor_sim_sequence_t sequence;
    start(&sequence, prompt);
    setup_slot(1, prompt, PROMPT);
    setup_slot(2, other, PROMPT);
    int32_t token = extend(1, prompt, 0, PROMPT, true, 1);
    actor_sim_sequence_append(&sequence, &model, token);
    (void)extend(2, other, 0, 4, false, 1); /* its first block is the first of the other one */
    ck_assert_int_ne(decode(1), actor_sim_sequence_next(&sequence, &model));
}
END_TEST

/* A parent that went to the other group holds other bytes now. */
START_TEST(groups_share_the_memory_of_a_parent)
{
    int32_t prompt[PROMPT];
    int32_t other[PROMPT];
    make_prompt(prompt, 1);
    make_prompt(other, 2);
    actor_sim_sequence_t sequence;
    start(&sequence, prompt);
    setup_slot(1, prompt, PROMPT);
    setup_slot(2, other, PROMPT);
    int32_t token = extend(1, prompt, 0, PROMPT, true, 1);
    actor_sim_sequence_append(&sequence, &model, token);
    /* Group 0 of slot 2 begins in the parents that hold group 1 of slot 1. */
    (void)extend(2, other, 0, PROMPT, true, 7);
    ck_assert_int_ne(decode(1), actor_sim_sequence_next(&sequence, &model));
}
END_TEST

/* A prefix that is in the cache need not be computed again; a wrong one shows. */
START_TEST(a_found_prefix_is_read_from_its_blocks)
{
    int32_t prompt[PROMPT];
    int32_t other[PROMPT];
    make_prompt(prompt, 1);
    make_prompt(other, 2);
    actor_sim_sequence_t sequence;
    start(&sequence, prompt);
    setup_slot(1, prompt, PROMPT);
    (void)extend(1, prompt, 0, PROMPT, true, 1);
    setup_slot(2, prompt, PROMPT);
    ck_assert_int_eq(extend(2, prompt, 8, PROMPT - 8, true, 1),
                     actor_sim_sequence_next(&sequence, &model));
    start(&sequence, other);
    setup_slot(3, other, PROMPT);
    ck_assert_int_ne(extend(3, other, 8, PROMPT - 8, true, 1),
                     actor_sim_sequence_next(&sequence, &model));
}
END_TEST

START_TEST(a_spoiled_row_says_so_and_spoils_what_reads_it)
{
    int32_t prompt[PROMPT];
    make_prompt(prompt, 1);
    actor_sim_sequence_t sequence;
    start(&sequence, prompt);
    setup_slot(1, prompt, PROMPT);
    int32_t token = extend(1, prompt, 0, PROMPT, true, 1);
    actor_sim_sequence_append(&sequence, &model, token);
    uint32_t slot = 1;
    proto_step_launch_t launch = {.step = ++step, .decode_slots = {&slot, 1}};
    ck_assert(actor_sim_device_launch(device, &launch, 1000, &random_state));
    proto_step_done_t done;
    ck_assert(actor_sim_device_collect(device, &done));
    ck_assert_uint_eq(done.row_flags.data[0], PROTO_ROW_NAN);
    ck_assert_int_ne(done.tokens.data[0], actor_sim_sequence_next(&sequence, &model));
}
END_TEST

/* As on a device that reads whole blocks: a NaN behind the last token is not harmless. */
START_TEST(a_spoiled_block_must_be_cleared_for_its_next_owner)
{
    int32_t prompt[PROMPT];
    make_prompt(prompt, 1);
    setup_slot(1, prompt, PROMPT);
    (void)extend(1, prompt, 0, PROMPT, true, 1);
    uint32_t slot = 1;
    proto_step_launch_t launch = {.step = ++step, .decode_slots = {&slot, 1}};
    ck_assert(actor_sim_device_launch(device, &launch, 1000, &random_state));
    proto_step_done_t done;
    ck_assert(actor_sim_device_collect(device, &done));
    /* Position 10 is spoiled, in block 3 of group 0 and in 18 of group 1. */
    int32_t other[PROMPT];
    make_prompt(other, 2);
    actor_sim_sequence_t sequence;
    start(&sequence, other);
    setup_slot(2, other, PROMPT);
    ck_assert_int_ne(extend(2, other, 0, PROMPT, true, 1),
                     actor_sim_sequence_next(&sequence, &model));
    static const uint8_t groups[2] = {0, 1};
    static const uint32_t blocks[2] = {3, 18};
    setup_slot(3, other, PROMPT);
    proto_step_launch_t clear = {.clear_groups = {groups, 2}, .clear_blocks = {blocks, 2}};
    (void)run(&clear);
    ck_assert_int_eq(extend(3, other, 0, PROMPT, true, 1),
                     actor_sim_sequence_next(&sequence, &model));
}
END_TEST

/* ---- states ---------------------------------------------------------------------------------- */

enum { WIDTH = 4 };

/* A full, a sliding and a state group; rows of 4 tokens. */
static void
set_up_states(void)
{
    set_up();
    actor_sim_device_destroy(&device);
    model.group_count = 3;
    model.kinds[2] = 2;
    model.granularities[2] = 2;
    model.windows[2] = 0;
    model.packings[2] = 1;
    model.width = WIDTH;
    model.parent_count = 120;
    ck_assert_int_eq(actor_sim_device_new(&model, &device), STATUS_OK);
}

/* Sets columns of a slot's state group: block base + column each. */
static void
set_states(uint32_t slot, uint32_t begin, uint32_t end, uint32_t base)
{
    static const uint8_t group = 2;
    uint32_t blocks[32];
    uint32_t count = end - begin;
    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = base + begin + i;
    }
    proto_step_launch_t launch = {.patch_slots = {&slot, 1},
                                  .patch_groups = {&group, 1},
                                  .patch_columns = {&begin, 1},
                                  .patch_counts = {&count, 1},
                                  .patch_blocks = {blocks, count}};
    (void)run(&launch);
}

/* The tokens of a decoding row, compared with the sequence until they differ; true if they do not.
 */
static bool
decode_row(uint32_t slot, actor_sim_sequence_t *sequence)
{
    proto_step_launch_t launch = {.step = ++step, .width = WIDTH, .decode_slots = {&slot, 1}};
    ck_assert(actor_sim_device_launch(device, &launch, 0, &random_state));
    proto_step_done_t done;
    ck_assert(actor_sim_device_collect(device, &done));
    uint32_t count = actor_sim_sequence_accepted(sequence, &model);
    bool same = done.token_counts.data[0] == count;
    for (uint32_t i = 0; same && i < count; i++) {
        same = done.tokens.data[i] == actor_sim_sequence_next(sequence, &model);
        actor_sim_sequence_append(sequence, &model, done.tokens.data[i]);
    }
    return same;
}

/* Starts request 1 in slot 1 with blocks for all; its first token is in the sequence. */
static void
start_states(int32_t *prompt, actor_sim_sequence_t *sequence)
{
    make_prompt(prompt, 1);
    start(sequence, prompt);
    setup_slot(1, prompt, PROMPT);
    proto_step_launch_t launch = {.step = 0};
    patch(&launch, 1, 1);
    (void)run(&launch);
    set_states(1, 0, 12, 60);
    ck_assert_int_eq(extend(1, prompt, 0, 8, false, 0), -1);
    int32_t token = extend(1, prompt, 8, PROMPT - 8, true, 0);
    ck_assert_int_eq(token, actor_sim_sequence_next(sequence, &model));
    actor_sim_sequence_append(sequence, &model, token);
}

START_TEST(states_go_on_from_chunk_to_row_to_row)
{
    int32_t prompt[PROMPT];
    actor_sim_sequence_t sequence;
    start_states(prompt, &sequence);
    while (sequence.length < 20) {
        ck_assert(decode_row(1, &sequence));
    }
}
END_TEST

/* A hole where the state before the row has to be. */
START_TEST(a_missing_state_gives_a_wrong_token)
{
    int32_t prompt[PROMPT];
    actor_sim_sequence_t sequence;
    start_states(prompt, &sequence);
    static const uint8_t group = 2;
    uint32_t slot = 1;
    uint32_t column = (PROMPT - 1) / 2;
    uint32_t one = 1;
    uint32_t hole = 0;
    proto_step_launch_t launch = {.patch_slots = {&slot, 1},
                                  .patch_groups = {&group, 1},
                                  .patch_columns = {&column, 1},
                                  .patch_counts = {&one, 1},
                                  .patch_blocks = {&hole, 1}};
    (void)run(&launch);
    ck_assert(!decode_row(1, &sequence));
}
END_TEST

/* A state of fewer tokens, and one that another request left in its place. */
START_TEST(another_state_gives_a_wrong_token)
{
    for (uint32_t stolen = 0; stolen < 2; stolen++) {
        int32_t prompt[PROMPT];
        actor_sim_sequence_t sequence;
        start_states(prompt, &sequence);
        if (stolen != 0) {
            int32_t other[PROMPT];
            make_prompt(other, 2);
            setup_slot(2, other, PROMPT);
            proto_step_launch_t launch = {.step = 0};
            patch(&launch, 2, 20);
            (void)run(&launch);
            set_states(2, 0, 12, 60);
            (void)extend(2, other, 0, PROMPT, true, 0);
        } else {
            set_states(1, 4, 5, 59); /* column 4 holds what column 3 did */
        }
        ck_assert(!decode_row(1, &sequence));
    }
}
END_TEST

/* A second request begins behind the first 8 tokens: their state is in column 3, and only there. */
START_TEST(a_found_state_is_the_one_after_so_many_tokens)
{
    int32_t prompt[PROMPT];
    actor_sim_sequence_t first;
    start_states(prompt, &first);
    for (uint32_t column = 3; column <= 4; column++) {
        actor_sim_sequence_t sequence;
        start(&sequence, prompt);
        setup_slot(2, prompt, PROMPT);
        proto_step_launch_t launch = {.step = 0};
        patch(&launch, 2, 1);
        (void)run(&launch);
        set_states(2, 3, 4, column == 3 ? 60 : 61);
        set_states(2, 4, 8, 90);
        int32_t token = extend(2, prompt, 8, PROMPT - 8, true, 0);
        if (column == 3) {
            ck_assert_int_eq(token, actor_sim_sequence_next(&sequence, &model));
        } else {
            ck_assert_int_ne(token, actor_sim_sequence_next(&sequence, &model));
        }
    }
}
END_TEST

/* A block of another group in memory where a state lay: whoever reads it whole needs it cleared. */
START_TEST(a_state_is_no_number_to_another_group)
{
    int32_t prompt[PROMPT];
    actor_sim_sequence_t sequence;
    start_states(prompt, &sequence);
    int32_t other[PROMPT];
    make_prompt(other, 2);
    for (uint32_t clears = 0; clears < 2; clears++) {
        sequence.length = 0;
        for (uint32_t i = 0; i < PROMPT - 1; i++) {
            actor_sim_sequence_append(&sequence, &model, other[i]);
        }
        setup_slot(2, other, PROMPT - 1);
        proto_step_launch_t launch = {.step = 0};
        patch(&launch, 2, 62); /* blocks 62 to 67 of group 0: parents in which states lie */
        static const uint8_t groups[6] = {0};
        static const uint32_t blocks[6] = {62, 63, 64, 65, 66, 67};
        launch.clear_groups = (proto_column_u8_t){groups, clears * 6};
        launch.clear_blocks = (proto_column_u32_t){blocks, clears * 6};
        (void)run(&launch);
        set_states(2, 0, 12, 100);
        int32_t token = extend(2, other, 0, PROMPT - 1, true, 0); /* the last in block 64, as one */
        if (clears != 0) {
            ck_assert_int_eq(token, actor_sim_sequence_next(&sequence, &model));
        } else {
            ck_assert_int_ne(token, actor_sim_sequence_next(&sequence, &model));
        }
        setup_slot(1, prompt, PROMPT);
        launch = (proto_step_launch_t){.step = 0};
        patch(&launch, 1, 1);
        (void)run(&launch);
        set_states(1, 0, 12, 60);
        for (uint32_t end = 2; end <= PROMPT; end += 2) { /* states again, in every column */
            (void)extend(1, prompt, end - 2, 2, false, 0);
        }
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("sim");
    TCase *tcase = tcase_create("device");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, tokens_are_those_of_the_sequence);
    tcase_add_test(tcase, an_overwritten_block_gives_a_wrong_token);
    tcase_add_test(tcase, groups_share_the_memory_of_a_parent);
    tcase_add_test(tcase, a_found_prefix_is_read_from_its_blocks);
    tcase_add_test(tcase, a_spoiled_row_says_so_and_spoils_what_reads_it);
    tcase_add_test(tcase, a_spoiled_block_must_be_cleared_for_its_next_owner);
    suite_add_tcase(suite, tcase);
    TCase *states = tcase_create("states");
    tcase_add_checked_fixture(states, set_up_states, tear_down);
    tcase_add_test(states, states_go_on_from_chunk_to_row_to_row);
    tcase_add_test(states, a_missing_state_gives_a_wrong_token);
    tcase_add_test(states, another_state_gives_a_wrong_token);
    tcase_add_test(states, a_found_state_is_the_one_after_so_many_tokens);
    tcase_add_test(states, a_state_is_no_number_to_another_group);
    suite_add_tcase(suite, states);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
