/* Merging by scores against the rule written out: look at every pair, merge the best, again. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file_spm.h"
#include "proto_require.h"
#include "support.h"

enum { TOKENS_MAX = 400, TEXT_MAX = 96, ROUNDS = 400 };

typedef struct {
    file_vocab_t vocab;
    file_spm_t spm;
    float scores[TOKENS_MAX];
    uint32_t count;
} world_t;

static char error_text[FILE_ERROR_SIZE_BYTES];

static void
add_token(world_t *self, const char *text, float score)
{
    file_error_t error = file_error_init(error_text, sizeof error_text);
    char spelled[256];
    size_t size = 0;
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == ' ') {
            memcpy(spelled + size, "\xe2\x96\x81", 3);
            size += 3;
        } else {
            spelled[size++] = *at;
        }
    }
    file_view_t view = {(const uint8_t *)spelled, size};
    if (file_vocab_find_normal(&self->vocab, text, (uint32_t)strlen(text)) >= 0) {
        return;
    }
    ck_assert_int_eq(file_vocab_set(&self->vocab, self->count, FILE_TOKEN_NORMAL, view, error),
                     STATUS_OK);
    self->scores[self->count++] = score;
}

/* Random words over a few characters, so that unions are common and scores are often equal. */
static void
make_world(world_t *self, uint64_t *random)
{
    static const char *const LETTERS[] = {"a", "b", "\xc3\xa9", " ", "\xf0\x9f\x98\x80"};
    file_error_t error = file_error_init(error_text, sizeof error_text);
    memset(self, 0, sizeof *self);
    ck_assert_int_eq(file_vocab_init(&self->vocab, TOKENS_MAX, error), STATUS_OK);
    self->vocab.is_plain = true;
    for (uint32_t i = 0; i < TOKENS_MAX / 2; i++) {
        char text[64];
        size_t size = 0;
        uint64_t length = 1 + support_random(random) % 4;
        for (uint64_t k = 0; k < length; k++) {
            const char *letter = LETTERS[support_random(random) % 5];
            memcpy(text + size, letter, strlen(letter) + 1);
            size += strlen(letter);
        }
        add_token(self, text, -(float)(support_random(random) % 20));
    }
    ck_assert_int_eq(file_spm_init(&self->spm, self->scores, self->count, error), STATUS_OK);
    file_vocab_finish(&self->vocab);
}

static void
free_world(world_t *self)
{
    file_spm_fini(&self->spm);
    file_vocab_fini(&self->vocab);
}

/* Ends of the pieces of `text`; returns how many. */
static uint32_t
merge_slowly(const world_t *self, const uint8_t *text, uint32_t size, uint32_t *ends)
{
    uint32_t count = 0;
    for (size_t at = 0; at < size;) {
        (void)file_utf8_next(text, size, &at);
        ends[count++] = (uint32_t)at;
    }
    for (;;) {
        uint32_t best = count;
        float best_score = 0;
        for (uint32_t i = 0; i + 1 < count; i++) {
            uint32_t begin = i == 0 ? 0 : ends[i - 1];
            int32_t id = file_vocab_find_normal(&self->vocab, text + begin, ends[i + 1] - begin);
            if (id >= 0 && (best == count || self->scores[id] > best_score)) {
                best = i;
                best_score = self->scores[id];
            }
        }
        if (best == count) {
            return count;
        }
        memmove(ends + best, ends + best + 1, (count - best - 1) * sizeof *ends);
        count--;
    }
}

START_TEST(merging_follows_the_rule)
{
    static world_t world;
    static file_symbol_t symbols[TEXT_MAX];
    static uint64_t heap[2 * TEXT_MAX];
    file_bpe_work_t work = {symbols, heap, TEXT_MAX};
    uint64_t random = support_seed();
    for (uint32_t round = 0; round < ROUNDS; round++) {
        if (round % 40 == 0) {
            make_world(&world, &random);
        }
        static const char *const LETTERS[] = {"a", "b", "\xc3\xa9", " ", "\xf0\x9f\x98\x80", "z"};
        uint8_t text[TEXT_MAX];
        uint32_t size = 0;
        while (size == 0 || (size + 4 <= TEXT_MAX && support_random(&random) % 30 != 0)) {
            const char *letter = LETTERS[support_random(&random) % 6];
            memcpy(text + size, letter, strlen(letter));
            size += (uint32_t)strlen(letter);
        }
        uint32_t ends[TEXT_MAX];
        uint32_t wanted = merge_slowly(&world, text, size, ends);
        file_spm_merge(&world.spm, &world.vocab, &work, text, size);
        uint32_t found = 0;
        for (uint32_t at = 0; at != UINT32_MAX; at = symbols[at].next) {
            uint32_t end = symbols[at].next == UINT32_MAX ? size : symbols[at].next;
            ck_assert_uint_lt(found, wanted);
            ck_assert_uint_eq(end, ends[found++]);
            ck_assert_int_eq(symbols[at].id,
                             file_vocab_find_normal(&world.vocab, text + at, end - at));
        }
        ck_assert_uint_eq(found, wanted);
        if (round % 40 == 39) {
            free_world(&world);
        }
    }
}
END_TEST

START_TEST(scores_that_are_no_numbers_are_refused)
{
    file_error_t error = file_error_init(error_text, sizeof error_text);
    const float scores[] = {1.0f, -0.0f / 0.0f};
    file_spm_t spm;
    ck_assert_int_eq(file_spm_init(&spm, scores, 2, error), STATUS_ERR_MALFORMED);
    ck_assert_ptr_null(spm.ranks);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("models.spm");
    TCase *tests = tcase_create("spm");
    tcase_add_test(tests, merging_follows_the_rule);
    tcase_add_test(tests, scores_that_are_no_numbers_are_refused);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
