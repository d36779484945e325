/* The drafter without weights: what it proposes, and that it forgets. */
#include <check.h>
#include <string.h>

#include "draft_ngram.h"

enum { WIDTH = 5, SLOTS = 3, LENGTH = 64 };

static draft_t *draft;

static void
open_draft(void)
{
    const draft_ngram_options_t options = {.width = WIDTH,
                                           .vocabulary = 1000,
                                           .slot_count = SLOTS,
                                           .model_len_max = LENGTH,
                                           .rows_max = 64};
    ck_assert_int_eq(draft_ngram_new(&options, &draft), STATUS_OK);
}

static void
close_draft(void)
{
    draft_destroy(&draft);
}

/* A decode round of one slot that accepted these tokens; out[WIDTH - 1]. */
static void
propose(uint32_t slot, const int32_t *tokens, uint32_t count, int32_t *out)
{
    int32_t window[WIDTH];
    memset(window, 0xff, sizeof window);
    memcpy(window, tokens, count * sizeof *tokens);
    int32_t accepted = (int32_t)count;
    int32_t length = 1;
    const draft_round_t round = {.mode = BACKEND_MODE_DECODE,
                                 .bs = 1,
                                 .rows = WIDTH,
                                 .width = WIDTH,
                                 .slots_host = &slot,
                                 .seq_lens = &length,
                                 .tokens = window,
                                 .accept_lengths = &accepted};
    draft_proposal_t proposal;
    ck_assert_int_eq(draft_propose(draft, &round, &proposal), STATUS_OK);
    ck_assert_uint_eq(proposal.count, WIDTH - 1);
    memcpy(out, proposal.candidates, (WIDTH - 1) * sizeof *out);
}

static void
expect(const int32_t *got, int32_t a, int32_t b, int32_t c, int32_t d)
{
    const int32_t want[WIDTH - 1] = {a, b, c, d};
    for (int i = 0; i < WIDTH - 1; i++) {
        ck_assert_int_eq(got[i], want[i]);
    }
}

/* What followed the last tokens before, the longest match first, the latest one of equals. */
START_TEST(it_proposes_what_followed_before)
{
    const int32_t prompt[] = {1, 2, 3, 10, 11, 12, 13, 5, 2, 3, 20, 21, 22, 23, 1, 2};
    int32_t got[WIDTH - 1];
    draft_begin(draft, 1, prompt, 16);
    propose(1, (const int32_t[]){3}, 1, got);
    expect(got, 10, 11, 12, 13); /* 1 2 3 was there, longer than 2 3 */
    propose(1, (const int32_t[]){99, 2, 3}, 3, got);
    expect(got, 99, 2, 3, 99); /* 2 3 last stood before 99; beyond the end it repeats */
    propose(1, (const int32_t[]){77}, 1, got);
    expect(got, -1, -1, -1, -1);
}
END_TEST

/* The state belongs to the request: the next one in the slot starts from nothing. */
START_TEST(a_new_request_finds_nothing_of_the_old_one)
{
    const int32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8};
    int32_t got[WIDTH - 1];
    draft_begin(draft, 1, prompt, 8);
    draft_begin(draft, 2, prompt, 8);
    draft_begin(draft, 1, (const int32_t[]){50}, 1);
    propose(1, (const int32_t[]){1, 2, 3}, 3, got);
    expect(got, -1, -1, -1, -1);
    propose(2, (const int32_t[]){2, 3}, 2, got);
    expect(got, 4, 5, 6, 7);
}
END_TEST

/* A request at its last token takes no more, and a round that lies about its rows is refused. */
START_TEST(limits_hold)
{
    int32_t prompt[LENGTH];
    for (int i = 0; i < LENGTH; i++) {
        prompt[i] = i % 3;
    }
    int32_t got[WIDTH - 1];
    draft_begin(draft, 1, prompt, LENGTH);
    propose(1, (const int32_t[]){1, 2, 0, 1, 2}, 5, got);
    ck_assert_int_ge(got[0], 0);
    uint32_t slot = 1;
    int32_t accepted = WIDTH + 1;
    int32_t tokens[WIDTH + 1] = {0};
    const draft_round_t wrong = {.mode = BACKEND_MODE_DECODE,
                                 .bs = 1,
                                 .rows = WIDTH,
                                 .width = WIDTH,
                                 .slots_host = &slot,
                                 .tokens = tokens,
                                 .accept_lengths = &accepted};
    draft_proposal_t proposal;
    ck_assert_int_eq(draft_propose(draft, &wrong, &proposal), STATUS_ERR_INVALID);
}
END_TEST

/* Extends: one that ends its prompt gives a token and gets candidates, another one does not. */
START_TEST(only_sampling_extends_get_candidates)
{
    const int32_t prompt[] = {7, 8, 9, 7};
    draft_begin(draft, 1, prompt, 4);
    draft_begin(draft, 2, prompt, 4);
    draft_begin(draft, 3, prompt, 4);
    const uint32_t slots[] = {1, 2, 3};
    const int32_t prefix[] = {0, 0};
    const int32_t lengths[] = {4, 4};
    const uint8_t samples[] = {0, 1};
    const int32_t tokens[] = {8, 8, -1, -1, -1, -1};
    const int32_t accepted[] = {1};
    const draft_round_t round = {.mode = BACKEND_MODE_MIXED,
                                 .bs = 3,
                                 .num_extends = 2,
                                 .rows = 8 + WIDTH,
                                 .width = WIDTH,
                                 .slots_host = slots,
                                 .extend_prefix_lens_host = prefix,
                                 .extend_seq_lens_host = lengths,
                                 .extend_samples_host = samples,
                                 .tokens = tokens,
                                 .accept_lengths = accepted};
    draft_proposal_t proposal;
    ck_assert_int_eq(draft_propose(draft, &round, &proposal), STATUS_OK);
    expect(proposal.candidates, -1, -1, -1, -1);
    expect(proposal.candidates + (WIDTH - 1), 9, 7, 8, 9);
    expect(proposal.candidates + 2 * (WIDTH - 1), 9, 7, 8, 9);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("gpu.draft_ngram");
    TCase *tests = tcase_create("ngram");
    tcase_add_checked_fixture(tests, open_draft, close_draft);
    tcase_add_test(tests, it_proposes_what_followed_before);
    tcase_add_test(tests, a_new_request_finds_nothing_of_the_old_one);
    tcase_add_test(tests, limits_hold);
    tcase_add_test(tests, only_sampling_extends_get_candidates);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
