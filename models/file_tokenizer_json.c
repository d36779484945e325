/* The tokenizer from a tokenizer.json: byte-level BPE only, every part recognised or refused. */
#include <inttypes.h>
#include <stdio.h>

#include "file_tokenizer_internal.h"
#include "proto_require.h"

static const char *
type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type != NULL ? type : "";
}

static bool
is_nothing(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

static proto_status_t
unsupported(const char *part, const char *type, const char *supported, file_error_t error)
{
    return file_error_set(error, STATUS_ERR_UNSUPPORTED,
                          "tokenizer.json: %s '%s' is not supported; supported are %s", part,
                          file_printable(type, strlen(type)).text, supported);
}

static proto_status_t
malformed(const char *text, file_error_t error)
{
    return file_error_set(error, STATUS_ERR_MALFORMED, "tokenizer.json: %s", text);
}

static proto_status_t
read_normalizer(file_tokenizer_t *self, const json_t *normalizer, file_error_t error)
{
    if (is_nothing(normalizer)) {
        return STATUS_OK;
    }
    if (strcmp(type_of(normalizer), "NFC") == 0) {
        self->is_nfc = true;
        return STATUS_OK;
    }
    const json_t *list = json_object_get(normalizer, "normalizers");
    bool is_sequence = strcmp(type_of(normalizer), "Sequence") == 0 && json_is_array(list);
    for (size_t i = 0; is_sequence && i < json_array_size(list); i++) {
        is_sequence = strcmp(type_of(json_array_get(list, i)), "NFC") == 0;
        self->is_nfc = true;
    }
    return is_sequence ? STATUS_OK
                       : unsupported("normalizer", type_of(normalizer), "none, NFC", error);
}

static proto_status_t
read_split(file_tokenizer_t *self, const json_t *step, file_error_t error)
{
    const json_t *pattern = json_object_get(step, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *behavior = json_string_value(json_object_get(step, "behavior"));
    file_split_step_t known;
    if (behavior == NULL || strcmp(behavior, "Isolated") != 0 ||
        json_is_true(json_object_get(step, "invert"))) {
        return unsupported("Split with behavior", behavior != NULL ? behavior : "", "Isolated",
                           error);
    }
    if (regex == NULL || !file_split_recognise(regex, &known)) {
        return unsupported("Split with pattern", regex != NULL ? regex : "(a string)",
                           "those of GPT-2, Qwen2, Llama 3 and digits", error);
    }
    return file_split_add(&self->split, known, error);
}

static proto_status_t
read_step(file_tokenizer_t *self, const json_t *step, bool *has_byte_level, file_error_t error)
{
    const char *type = type_of(step);
    if (strcmp(type, "Split") == 0) {
        return read_split(self, step, error);
    }
    if (strcmp(type, "Digits") == 0) {
        bool individual = json_is_true(json_object_get(step, "individual_digits"));
        return file_split_add(&self->split, individual ? FILE_SPLIT_DIGIT : FILE_SPLIT_DIGITS,
                              error);
    }
    if (strcmp(type, "ByteLevel") != 0) {
        return unsupported("pre-tokenizer", type, "Split, Digits, ByteLevel", error);
    }
    if (json_is_true(json_object_get(step, "add_prefix_space"))) {
        return unsupported("ByteLevel with", "add_prefix_space", "without it", error);
    }
    *has_byte_level = true;
    const json_t *use_regex = json_object_get(step, "use_regex");
    return is_nothing(use_regex) || json_is_true(use_regex)
               ? file_split_add(&self->split, FILE_SPLIT_GPT2, error)
               : STATUS_OK;
}

static proto_status_t
read_pre_tokenizer(file_tokenizer_t *self, const json_t *pre, file_error_t error)
{
    bool has_byte_level = false;
    proto_status_t status = STATUS_OK;
    const json_t *list = json_object_get(pre, "pretokenizers");
    if (strcmp(type_of(pre), "Sequence") == 0 && json_is_array(list)) {
        for (size_t i = 0; status == STATUS_OK && i < json_array_size(list); i++) {
            if (has_byte_level) { /* its output is spelling, which no later step here expects */
                return malformed("ByteLevel must be the last pre-tokenizer", error);
            }
            status = read_step(self, json_array_get(list, i), &has_byte_level, error);
        }
    } else {
        status = read_step(self, pre, &has_byte_level, error);
    }
    if (status == STATUS_OK && (!has_byte_level || self->split.step_count == 0)) {
        return unsupported("pre-tokenizer", type_of(pre), "those that end with ByteLevel", error);
    }
    return status;
}

static proto_status_t
check_model(const json_t *model, file_error_t error)
{
    const char *type = type_of(model);
    if (!json_is_object(json_object_get(model, "vocab")) ||
        !json_is_array(json_object_get(model, "merges")) ||
        (type[0] != '\0' && strcmp(type, "BPE") != 0)) {
        return unsupported("model", type, "BPE with a vocab object and a list of merges", error);
    }
    static const char *const AFFIXES[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(model, AFFIXES[i]);
        if (!is_nothing(affix) && json_string_length(affix) > 0) {
            return unsupported("model with", AFFIXES[i], "without it", error);
        }
    }
    if (json_is_true(json_object_get(model, "byte_fallback"))) {
        return unsupported("model with", "byte_fallback", "without it", error);
    }
    return STATUS_OK;
}

/* Added tokens come first: they own their ids even where the vocabulary lists them too. */
static proto_status_t
read_added(file_tokenizer_t *self, const json_t *list, file_error_t error)
{
    proto_status_t status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < json_array_size(list); i++) {
        const json_t *token = json_array_get(list, i);
        const json_t *id = json_object_get(token, "id");
        const json_t *content = json_object_get(token, "content");
        if (!json_is_integer(id) || json_integer_value(id) < 0 || !json_is_string(content)) {
            return malformed("an added token needs 'id' and 'content'", error);
        }
        static const char *const FLAGS[] = {"single_word", "lstrip", "rstrip"};
        for (size_t k = 0; k < 3; k++) {
            if (json_is_true(json_object_get(token, FLAGS[k]))) {
                return unsupported("added token with", FLAGS[k], "without it", error);
            }
        }
        bool is_special = json_is_true(json_object_get(token, "special"));
        bool is_normalised = json_is_true(json_object_get(token, "normalized"));
        file_view_t text = {(const uint8_t *)json_string_value(content),
                            json_string_length(content)};
        status = file_vocab_set(&self->vocab, (uint64_t)json_integer_value(id),
                                is_special ? FILE_TOKEN_SPECIAL : FILE_TOKEN_ADDED, text, error);
        if (status == STATUS_OK) {
            status =
                file_tokenizer_add_token(self,
                                         is_normalised ? &self->added_normalised : &self->added,
                                         (int32_t)json_integer_value(id), error);
        }
    }
    return status;
}

static proto_status_t
read_vocab(file_tokenizer_t *self, const json_t *vocab, file_error_t error)
{
    const char *key;
    json_t *id;
    json_object_foreach((json_t *)(uintptr_t)vocab, key, id)
    {
        file_view_t text = {(const uint8_t *)key, strlen(key)};
        if (!json_is_integer(id) || json_integer_value(id) < 0) {
            return malformed("a token's id must be a whole number", error);
        }
        uint64_t number = (uint64_t)json_integer_value(id);
        int32_t added = text.size_bytes <= FILE_TOKEN_SIZE_BYTES_MAX
                            ? file_vocab_find_added(&self->vocab, key, (uint32_t)text.size_bytes)
                            : FILE_ID_NONE;
        if (added >= 0 && (uint64_t)added == number) {
            continue;
        }
        proto_status_t status =
            file_vocab_set(&self->vocab, number, FILE_TOKEN_NORMAL, text, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    file_vocab_finish(&self->vocab);
    return STATUS_OK;
}

/* A merge is "left right" or ["left", "right"]. */
static bool
split_merge(const json_t *merge, file_view_t *left, file_view_t *right)
{
    const json_t *first = json_array_get(merge, 0);
    const json_t *second = json_array_get(merge, 1);
    if (json_array_size(merge) == 2 && json_is_string(first) && json_is_string(second)) {
        *left = (file_view_t){(const uint8_t *)json_string_value(first), json_string_length(first)};
        *right =
            (file_view_t){(const uint8_t *)json_string_value(second), json_string_length(second)};
        return true;
    }
    const char *text = json_string_value(merge);
    const char *space = text != NULL ? strchr(text, ' ') : NULL;
    if (space == NULL) {
        return false;
    }
    *left = (file_view_t){(const uint8_t *)text, (uint64_t)(space - text)};
    *right = (file_view_t){(const uint8_t *)space + 1, strlen(space + 1)};
    return true;
}

static proto_status_t
read_merges(file_tokenizer_t *self, const json_t *merges, file_error_t error)
{
    proto_status_t status = file_bpe_init(&self->bpe, json_array_size(merges), error);
    for (size_t i = 0; status == STATUS_OK && i < json_array_size(merges); i++) {
        file_view_t left;
        file_view_t right;
        if (!split_merge(json_array_get(merges, i), &left, &right)) {
            return malformed("a merge must be \"left right\" or [\"left\", \"right\"]", error);
        }
        status = file_bpe_add(&self->bpe, &self->vocab, left, right, error);
    }
    return status;
}

static proto_status_t
read_model(file_tokenizer_t *self, const json_t *root, file_error_t error)
{
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    proto_status_t status = check_model(model, error);
    if (status != STATUS_OK) {
        return status;
    }
    /* Ids may leave holes, but not so many that a small file asks for a large table. */
    const json_t *vocab = json_object_get(model, "vocab");
    uint64_t count_max = 2 * ((uint64_t)json_object_size(vocab) + json_array_size(added)) + 1024;
    count_max = count_max > FILE_VOCAB_SIZE_MAX ? FILE_VOCAB_SIZE_MAX : count_max;
    status = file_vocab_init(&self->vocab, count_max, error);
    if (status == STATUS_OK) {
        status = read_added(self, added, error);
    }
    if (status == STATUS_OK) {
        status = read_vocab(self, vocab, error);
    }
    if (status == STATUS_OK) {
        status = read_merges(self, json_object_get(model, "merges"), error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    self->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    self->fuse_unknown = json_is_true(json_object_get(model, "fuse_unk"));
    const json_t *unknown = json_object_get(model, "unk_token");
    if (json_is_string(unknown)) {
        self->unknown_id =
            file_tokenizer_find(self, json_string_value(unknown), json_string_length(unknown));
        if (self->unknown_id < 0) {
            return malformed("'unk_token' is no token", error);
        }
    }
    return STATUS_OK;
}

/* The template's tokens before and after "A", the text. */
static proto_status_t
read_template(file_tokenizer_t *self, const json_t *single, file_error_t error)
{
    bool is_after = false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        if (json_object_get(piece, "Sequence") != NULL) {
            if (is_after) {
                return malformed("the post-processor's template repeats the text", error);
            }
            is_after = true;
            continue;
        }
        const json_t *text = json_object_get(json_object_get(piece, "SpecialToken"), "id");
        int32_t id = json_is_string(text) ? file_tokenizer_find(self, json_string_value(text),
                                                                json_string_length(text))
                                          : FILE_ID_NONE;
        uint32_t *count = is_after ? &self->after_count : &self->before_count;
        if (id < 0 || *count == FILE_AROUND_COUNT_MAX) {
            return malformed("the post-processor's template names an unknown token, or too many",
                             error);
        }
        (is_after ? self->after : self->before)[(*count)++] = id;
    }
    return is_after ? STATUS_OK : malformed("the post-processor's template has no text", error);
}

static proto_status_t
read_post_processor(file_tokenizer_t *self, const json_t *post, bool is_nested, file_error_t error)
{
    const char *type = type_of(post);
    if (is_nothing(post) || strcmp(type, "ByteLevel") == 0) {
        return STATUS_OK;
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        if (self->before_count + self->after_count > 0) {
            return malformed("two templates in the post-processor", error);
        }
        return read_template(self, json_object_get(post, "single"), error);
    }
    const json_t *list = json_object_get(post, "processors");
    if (is_nested || strcmp(type, "Sequence") != 0 || !json_is_array(list)) {
        return unsupported("post-processor", type, "ByteLevel, TemplateProcessing", error);
    }
    proto_status_t status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < json_array_size(list); i++) {
        status = read_post_processor(self, json_array_get(list, i), true, error);
    }
    return status;
}

proto_status_t
file_tokenizer_read_json(file_tokenizer_t *self, const json_t *root, file_error_t error)
{
    const json_t *decoder = json_object_get(root, "decoder");
    (void)snprintf(self->kind, sizeof self->kind, "tokenizer.json");
    if (!json_is_object(root)) {
        return malformed("must be an object", error);
    }
    if (strcmp(type_of(decoder), "ByteLevel") != 0) {
        return unsupported("decoder", type_of(decoder), "ByteLevel", error);
    }
    proto_status_t status = read_model(self, root, error);
    if (status == STATUS_OK) {
        status = read_normalizer(self, json_object_get(root, "normalizer"), error);
    }
    if (status == STATUS_OK) {
        status = read_pre_tokenizer(self, json_object_get(root, "pre_tokenizer"), error);
    }
    if (status == STATUS_OK) {
        status = read_post_processor(self, json_object_get(root, "post_processor"), false, error);
    }
    return status;
}
