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
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
