/* Draft folders: what they say, which target they take, and what is refused with what words. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file_draft.h"
#include "support.h"

enum { CONFIG_MAX = 4096 };

/* Of tiny-llama, as it was before there were roles of drafts. */
static const char TARGET_DIGEST[] =
    "577f979948a885ada5935e96e02a113ffaed91543df2a31cb6d6b3f76fac9dcf";

static char *folder;
static char error[FILE_ERROR_SIZE_BYTES];
static file_model_t *target;

static void
set_up(void)
{
    folder = support_temp_folder();
    ck_assert_int_eq(file_model_open(support_fixture("tiny-llama"), error, sizeof error, &target),
                     STATUS_OK);
}

static void
tear_down(void)
{
    file_model_close(&target);
    support_remove_folder(folder);
}

static char *
read_fixture(const char *kind, const char *name, size_t *size_bytes)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", kind, name);
    FILE *file = fopen(support_fixture(path), "rb");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, 0, SEEK_END), 0);
    *size_bytes = (size_t)ftell(file);
    rewind(file);
    char *data = calloc(1, *size_bytes + 1);
    ck_assert_ptr_nonnull(data);
    ck_assert_uint_eq(fread(data, 1, *size_bytes, file), *size_bytes);
    (void)fclose(file);
    return data;
}

/* A copy of a fixture with other words in its config, and in the header of its weights words of the
 * same length. */
static void
copy_with(const char *kind, const char *from, const char *to, const char *header_from,
          const char *header_to)
{
    size_t size_bytes;
    char *config = read_fixture(kind, "config.json", &size_bytes);
    char changed[CONFIG_MAX];
    const char *at = strstr(config, from);
    ck_assert_msg(at != NULL, "'%s' is not in the config", from);
    int written = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - config), config, to,
                           at + strlen(from));
    ck_assert_int_lt(written, CONFIG_MAX);
    support_write(folder, "config.json", changed, (size_t)written);
    free(config);
    char *weights = read_fixture(kind, "model.safetensors", &size_bytes);
    if (header_from != NULL) {
        ck_assert_uint_eq(strlen(header_from), strlen(header_to));
        char *place = memmem(weights, size_bytes, header_from, strlen(header_from));
        ck_assert_ptr_nonnull(place);
        memcpy(place, header_to, strlen(header_to));
    }
    support_write(folder, "model.safetensors", weights, size_bytes);
    free(weights);
}

static proto_status_t
try_open(const char *path, file_draft_t *out)
{
    file_model_t *file = NULL;
    proto_status_t status =
        file_draft_open(path, file_model_config(target), error, sizeof error, out, &file);
    file_model_close(&file);
    return status;
}

static void
expect_refused(proto_status_t wanted, const char *words, const char *more)
{
    file_draft_t draft = {0};
    proto_status_t status = try_open(folder, &draft);
    ck_assert_msg(status == wanted, "%s: %s", proto_status_name(status), error);
    ck_assert_msg(strstr(error, words) != NULL && strstr(error, more) != NULL, "%s", error);
}

START_TEST(every_kind_says_what_it_taps)
{
    static const struct {
        const char *fixture;
        file_draft_kind_t kind;
        uint32_t taps;
        uint32_t first;
        uint32_t vocabulary;
        uint32_t block;
    } rows[] = {
        {"tiny-draft-eagle3", FILE_DRAFT_EAGLE3, 3, 0, 200, 0},
        {"tiny-draft-mtp", FILE_DRAFT_MTP, 1, FILE_DRAFT_TAP_FINAL, 320, 0},
        {"tiny-draft-dflash", FILE_DRAFT_DFLASH, 3, 0, 320, 4},
        {"tiny-draft-dspark", FILE_DRAFT_DSPARK, 3, 0, 320, 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        file_draft_t draft;
        file_model_t *file = NULL;
        const char *path = support_fixture(rows[i].fixture);
        ck_assert(file_draft_is_draft(path));
        ck_assert_int_eq(file_draft_open(path, file_model_config(target), error, sizeof error,
                                         &draft, &file),
                         STATUS_OK);
        ck_assert_int_eq(draft.kind, rows[i].kind);
        ck_assert_uint_eq(draft.tap_count, rows[i].taps);
        ck_assert_uint_eq(draft.tap_layers[0], rows[i].first);
        ck_assert_uint_eq(file_model_config(file)->vocab_size, rows[i].vocabulary);
        ck_assert_uint_eq(draft.block_size, rows[i].block);
        ck_assert(!draft.has_embed);
        ck_assert((draft.offsets != NULL) == (rows[i].vocabulary < 320));
        file_draft_fini(&draft);
        file_model_close(&file);
    }
    ck_assert(!file_draft_is_draft(support_fixture("tiny-llama")));
    ck_assert(!file_draft_is_draft("/nowhere"));
}
END_TEST

static void
hex_of_target(char out[2 * FILE_DIGEST_SIZE_BYTES + 1])
{
    for (size_t i = 0; i < FILE_DIGEST_SIZE_BYTES; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", file_model_config(target)->digest[i]);
    }
}

/* A head for another target proposes nonsense: it is refused, with both values. */
START_TEST(a_draft_for_another_target_is_refused_with_both_values)
{
    char digest[2 * FILE_DIGEST_SIZE_BYTES + 1];
    char key[256];
    hex_of_target(digest);
    (void)snprintf(key, sizeof key, "{\"onepath_target_digests\": [\"00ff\", \"%s\"],", digest);
    copy_with("tiny-draft-eagle3", "{", key, NULL, NULL);
    file_draft_t draft = {0};
    ck_assert_msg(try_open(folder, &draft) == STATUS_OK, "%s", error);
    file_draft_fini(&draft);
    copy_with("tiny-draft-eagle3", "{", "{\"onepath_target_digests\": [\"00ff\"],", NULL, NULL);
    expect_refused(STATUS_ERR_CONFIG, "digest 00ff", digest);
    copy_with("tiny-draft-eagle3", "\"vocab_size\": 320", "\"vocab_size\": 321", NULL, NULL);
    expect_refused(STATUS_ERR_CONFIG, "vocabulary of 321", "320");
    copy_with("tiny-draft-eagle3", "{", "{\"target_hidden_size\": 128,", NULL, NULL);
    expect_refused(STATUS_ERR_CONFIG, "hidden size of 128", "64");
    copy_with("tiny-draft-mtp", "\"hidden_size\": 64", "\"hidden_size\": 80", NULL, NULL);
    expect_refused(STATUS_ERR_CONFIG, "hidden size of 80", "64");
    copy_with("tiny-draft-dflash", "      2\n", "      7\n", NULL, NULL);
    expect_refused(STATUS_ERR_CONFIG, "layer 7", "0 to 2");
}
END_TEST

START_TEST(what_cannot_be_run_is_refused)
{
    static const struct {
        const char *kind;
        const char *from;
        const char *to;
        const char *header_from;
        const char *header_to;
        proto_status_t status;
        const char *words;
    } rows[] = {
        {"tiny-draft-eagle3", "LlamaForCausalLMEagle3", "LlamaForCausalLMEagle9", NULL, NULL,
         STATUS_ERR_UNSUPPORTED, "names no draft architecture"},
        {"tiny-draft-eagle3", "\"draft_vocab_size\": 200", "\"draft_vocab_size\": 400", NULL, NULL,
         STATUS_ERR_MALFORMED, "draft vocabulary of 400"},
        {"tiny-draft-eagle3", "\"draft_vocab_size\": 200", "\"draft_vocab_size\": 0", NULL, NULL,
         STATUS_ERR_MALFORMED, "over 0"},
        {"tiny-draft-eagle3", "{", "{", "\"I64\"", "\"U64\"", STATUS_ERR_MALFORMED, "must be I64"},
        {"tiny-draft-eagle3", "{", "{", "\"d2t\"", "\"d3t\"", STATUS_ERR_MALFORMED,
         "'d2t' is missing"},
        {"tiny-draft-eagle3", "{", "{", "\"fc.weight\"", "\"fz.weight\"", STATUS_ERR_MALFORMED,
         "'fc.weight' is missing"},
        {"tiny-draft-eagle3", "{", "{", "\"t2d\"", "\"t3d\"", STATUS_ERR_UNSUPPORTED,
         "'t3d' is no part"},
        {"tiny-draft-eagle3", "{", "{", "\"lm_head.weight\"", "\"lm_hood.weight\"",
         STATUS_ERR_UNSUPPORTED, "lm_hood"},
        {"tiny-draft-eagle3", "\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2", NULL, NULL,
         STATUS_ERR_UNSUPPORTED, "head of 2 layers"},
        {"tiny-draft-eagle3", "eagle_aux_hidden_state_layer_ids", "eagle_aux", NULL, NULL,
         STATUS_ERR_CONFIG, "3 layers"},
        {"tiny-draft-eagle3", "      1,\n", "      0,\n", NULL, NULL, STATUS_ERR_CONFIG,
         "layer -1"},
        {"tiny-draft-dflash", "\"block_size\": 4", "\"block_size\": 1", NULL, NULL,
         STATUS_ERR_MALFORMED, "block_size"},
        {"tiny-draft-dflash", "\"mask_token_id\": 319", "\"mask_token_id\": 320", NULL, NULL,
         STATUS_ERR_MALFORMED, "mask_token_id"},
        {"tiny-draft-dflash", "      1,\n", "      0,\n", NULL, NULL, STATUS_ERR_MALFORMED,
         "must ascend"},
        {"tiny-draft-dspark", "\"markov_rank\": 16", "\"markov_rank\": 17", NULL, NULL,
         STATUS_ERR_MALFORMED, "markov_w1.weight"},
        {"tiny-draft-dspark", "\"markov_rank\": 16", "\"markov_rank\": -1", NULL, NULL,
         STATUS_ERR_MALFORMED, "markov_rank"},
        {"tiny-draft-mtp", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4", NULL, NULL,
         STATUS_ERR_MALFORMED, "model.layers.3"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        copy_with(rows[i].kind, rows[i].from, rows[i].to, rows[i].header_from, rows[i].header_to);
        expect_refused(rows[i].status, rows[i].words, "");
    }
}
END_TEST

/* Every entry of the map must be a token of the target: the target's embedding is indexed with it.
 */
START_TEST(a_map_out_of_the_vocabulary_is_refused)
{
    size_t size_bytes;
    copy_with("tiny-draft-eagle3", "{", "{", NULL, NULL);
    char *weights = read_fixture("tiny-draft-eagle3", "model.safetensors", &size_bytes);
    char *at = memmem(weights, size_bytes, "\"d2t\":", 6);
    ck_assert_ptr_nonnull(at);
    at = strstr(at, "data_offsets\":[") + strlen("data_offsets\":[");
    uint64_t header = 0;
    memcpy(&header, weights, sizeof header);
    int64_t *map = (int64_t *)(void *)(weights + 8 + header + strtoul(at, NULL, 10));
    static const struct {
        uint32_t index;
        int64_t offset;
    } rows[] = {{0, -1}, {199, 121}, {10, INT64_MAX}, {10, INT64_MIN}, {7, 313}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t before = 0;
        memcpy(&before, map + rows[i].index, sizeof before);
        memcpy(map + rows[i].index, &rows[i].offset, sizeof before);
        support_write(folder, "model.safetensors", weights, size_bytes);
        expect_refused(STATUS_ERR_MALFORMED, "none of the target's 320", "'d2t'");
        memcpy(map + rows[i].index, &before, sizeof before);
    }
    free(weights);
}
END_TEST

/* Roles of drafts change no model's digest: peers of another version still agree. */
START_TEST(no_models_digest_moves)
{
    char digest[2 * FILE_DIGEST_SIZE_BYTES + 1];
    hex_of_target(digest);
    ck_assert_str_eq(digest, TARGET_DIGEST);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("models.draft");
    TCase *tests = tcase_create("all");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, every_kind_says_what_it_taps);
    tcase_add_test(tests, a_draft_for_another_target_is_refused_with_both_values);
    tcase_add_test(tests, what_cannot_be_run_is_refused);
    tcase_add_test(tests, a_map_out_of_the_vocabulary_is_refused);
    tcase_add_test(tests, no_models_digest_moves);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
