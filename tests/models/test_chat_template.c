/* Chat templates: recognition, rendering equal to jinja2's, the file form, and refusals. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file_chat_template.h"
#include "support.h"

enum { OUT_MAX = 1 << 16, MESSAGES_MAX = 32 };

static char error[FILE_ERROR_SIZE_BYTES];
static char out[OUT_MAX];

static proto_status_t
render(const file_chat_template_t *template, const json_t *turns, bool prompt,
       size_t out_size_bytes, size_t *written)
{
    file_chat_message_t messages[MESSAGES_MAX];
    size_t count = json_array_size(turns);
    ck_assert_uint_le(count, MESSAGES_MAX);
    for (size_t i = 0; i < count; i++) {
        const json_t *role = json_array_get(json_array_get(turns, i), 0);
        const json_t *content = json_array_get(json_array_get(turns, i), 1);
        messages[i] =
            (file_chat_message_t){json_string_value(role), json_string_length(role),
                                  json_string_value(content), json_string_length(content)};
    }
    file_chat_render_t call = {.messages = messages,
                               .message_count = count,
                               .add_generation_prompt = prompt,
                               .bos = "<s>",
                               .eos = "</s>",
                               .out = out,
                               .out_size_bytes = out_size_bytes};
    return file_chat_template_render(template, &call, error, sizeof error, written);
}

static void
expect_case(const file_chat_template_t *template, const json_t *one, size_t index)
{
    const char *name = file_chat_template_name(template);
    const json_t *text = json_object_get(one, "text");
    const json_t *turns = json_object_get(one, "turns");
    bool prompt = json_is_true(json_object_get(one, "prompt"));
    size_t written = 0;
    proto_status_t status = render(template, turns, prompt, sizeof out, &written);
    if (json_is_null(text)) {
        ck_assert_msg(status == STATUS_ERR_INVALID, "%s case %zu must be refused", name, index);
        ck_assert_int_ne(error[0], '\0');
        return;
    }
    ck_assert_msg(status == STATUS_OK, "%s case %zu: %s", name, index, error);
    size_t wanted = json_string_length(text);
    bool same = written == wanted && memcmp(out, json_string_value(text), wanted) == 0;
    ck_assert_msg(same, "%s case %zu\nexpected: %s\n   found: %.*s", name, index,
                  json_string_value(text), (int)written, out);
    /* One byte less must fail, and write nothing behind its end. */
    out[wanted] = 'X';
    ck_assert_int_eq(render(template, turns, prompt, wanted, &written), STATUS_OK);
    ck_assert_int_eq(out[wanted], 'X');
    if (wanted > 0) {
        out[wanted - 1] = 'Y';
        written = 12345;
        proto_status_t less = render(template, turns, prompt, wanted - 1, &written);
        /* Trimming may have needed the room for a moment, so a smaller buffer may fail earlier. */
        ck_assert_int_eq(less, STATUS_ERR_TOO_LARGE);
        ck_assert_uint_eq(written, 12345);
        ck_assert_int_eq(out[wanted - 1], 'Y');
    }
}

/* A prompt that differs by one blank from what the model was trained on answers worse, and nobody
 * sees why: each family must equal its Jinja, byte for byte. */
START_TEST(every_family_renders_as_its_jinja)
{
    json_t *families = support_json("chat.json");
    ck_assert_uint_eq(json_array_size(families), 11);
    for (size_t i = 0; i < json_array_size(families); i++) {
        const json_t *family = json_array_get(families, i);
        const json_t *jinja = json_object_get(family, "jinja");
        file_chat_template_t *template = NULL;
        ck_assert_msg(file_chat_template_open_jinja(json_string_value(jinja),
                                                    json_string_length(jinja), error, sizeof error,
                                                    &template) == STATUS_OK,
                      "%s: %s", json_string_value(json_object_get(family, "name")), error);
        ck_assert_str_eq(file_chat_template_name(template),
                         json_string_value(json_object_get(family, "name")));
        const json_t *cases = json_object_get(family, "cases");
        ck_assert_uint_ge(json_array_size(cases), 40);
        for (size_t k = 0; k < json_array_size(cases); k++) {
            expect_case(template, json_array_get(cases, k), k);
        }
        file_chat_template_close(&template);
        /* The name alone gives the same template. */
        ck_assert_int_eq(file_chat_template_open_named(json_string_value(
                                                           json_object_get(family, "name")),
                                                       error, sizeof error, &template),
                         STATUS_OK);
        expect_case(template, json_array_get(cases, 1), 1);
        file_chat_template_close(&template);
    }
    json_decref(families);
}
END_TEST

START_TEST(the_checkpoint_brings_its_template)
{
    file_model_t *model = NULL;
    file_chat_template_t *template = NULL;
    ck_assert_int_eq(file_model_open(support_smollm2(), error, sizeof error, &model), STATUS_OK);
    ck_assert_int_eq(file_chat_template_open(model, error, sizeof error, &template), STATUS_OK);
    ck_assert_str_eq(file_chat_template_name(template), "smollm2");
    ck_assert(!file_chat_template_has_bos(template));
    file_chat_template_close(&template);
    file_model_close(&model);
    ck_assert_int_eq(file_model_open(support_fixture("tiny-llama"), error, sizeof error, &model),
                     STATUS_OK);
    ck_assert_int_eq(file_chat_template_open(model, error, sizeof error, &template),
                     STATUS_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error, "--chat-template"));
    file_model_close(&model);
}
END_TEST

/* A small change of a known template is another template: guessing would be worse than refusing. */
START_TEST(an_unknown_template_is_refused_by_name)
{
    static const char *const UNKNOWN[] = {
        "",
        "{{ messages }}",
        "{% for i in range(999999999) %}x{% endfor %}",
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
        "message['content'] + '<|im_end|>' + 'x\\n'}}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|im_start|>assistant\\n' }}{% endif %}",
    };
    file_chat_template_t *template = NULL;
    for (size_t i = 0; i < sizeof UNKNOWN / sizeof UNKNOWN[0]; i++) {
        ck_assert_int_eq(file_chat_template_open_jinja(UNKNOWN[i], strlen(UNKNOWN[i]), error,
                                                       sizeof error, &template),
                         STATUS_ERR_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(error, file_chat_template_names()));
        ck_assert_ptr_null(template);
    }
    char *large = calloc(1, 1 << 20);
    ck_assert_int_eq(file_chat_template_open_jinja(large, 1 << 20, error, sizeof error, &template),
                     STATUS_ERR_UNSUPPORTED);
    free(large);
    ck_assert_int_eq(file_chat_template_open_named("/nope", error, sizeof error, &template),
                     STATUS_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error, "smollm2"));
}
END_TEST

static proto_status_t
open_text(const char *text, file_chat_template_t **template)
{
    char *folder = support_temp_folder();
    char path[1024];
    support_write(folder, "form.txt", text, strlen(text));
    (void)snprintf(path, sizeof path, "%s/form.txt", folder);
    proto_status_t status = file_chat_template_open_named(path, error, sizeof error, template);
    support_remove_folder(folder);
    return status;
}

/* The form that docs/models.md describes. */
START_TEST(an_operators_file_is_a_template)
{
    file_chat_template_t *template = NULL;
    ck_assert_int_eq(open_text("# a comment\r\n\nstart: {bos}\r\ndefault_system: Be kind.\n"
                               "system: [S]{content}\\n\nuser: \\{{role}\\}{content}\\\\\\t\n"
                               "assistant: {content}{eos}\ngeneration:  >\ntrim: yes\n"
                               "alternate: no\nthink: keep",
                               &template),
                     STATUS_OK);
    ck_assert_msg(strlen(error) == 0, "%s", error);
    ck_assert(file_chat_template_has_bos(template));
    json_t *turns = json_pack("[[ss][ss]]", "user", " a ", "assistant", "b");
    size_t written = 0;
    ck_assert_int_eq(render(template, turns, true, sizeof out, &written), STATUS_OK);
    const char *wanted = "<s>[S]Be kind.\n{user}a\\\tb</s> >";
    ck_assert_msg(written == strlen(wanted) && memcmp(out, wanted, written) == 0, "%.*s",
                  (int)written, out);
    json_decref(turns);
    turns = json_pack("[[ss]]", "tool", "x");
    ck_assert_int_eq(render(template, turns, true, sizeof out, &written), STATUS_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error, "tool"));
    json_decref(turns);
    turns = json_array();
    ck_assert_int_eq(render(template, turns, true, sizeof out, &written), STATUS_ERR_INVALID);
    json_decref(turns);
    file_chat_template_close(&template);
}
END_TEST

START_TEST(a_wrong_file_is_refused_with_its_line)
{
    static const struct {
        const char *text;
        const char *wanted;
    } CASES[] = {
        {"", "needs 'generation'"},
        {"other: {content}\n", "needs 'generation'"},
        {"generation: x\nuser: {content}\n", "needs 'generation'"},
        {"generation: x\nother: {content}\nnonsense\n", "line 3"},
        {"generation: x\nother: {content}\nnothing: y\n", "unknown key"},
        {"generation: x\nother: {content}\ngeneration: y\n", "twice"},
        {"generation: x\nother: {content}\ntrim: yes\ntrim: yes\n", "twice"},
        {"generation: x\nother: {content}\ntrim: maybe\n", "yes or no"},
        {"generation: x\nother: {content}{content}\n", "'other' must have {content} once"},
        {"generation: x\nother: {role}\n", "'other' must have {content} once"},
        {"generation: {content}\nother: {content}\n", "'generation'"},
        {"generation: {role}\nother: {content}\n", "'generation'"},
        {"generation: x\nother: {contents}\n", "line 2"},
        {"generation: x\nother: {content}}\n", "line 2"},
        {"generation: x\nother: {content}\\x\n", "line 2"},
        {"generation: x\nother: {content}\\", "line 2"},
        {"generation: \x01\nother: {content}\n", "line 1"},
        {"generation: \xff\nother: {content}\n", "UTF-8"},
        {"generation: x\nother: {content}\ndefault_system: {bos}\n", "default_system"},
        {"generation: x\nuser: {content}\nassistant: {content}\ndefault_system: y\n",
         "needs 'system'"},
        {"generation: {bos}{eos}{bos}{eos}{bos}{eos}{bos}{eos}{bos}{eos}{bos}{eos}{bos}{eos}{bos}"
         "{eos}{bos}\nother: {content}\n",
         "too many"},
    };
    file_chat_template_t *template = NULL;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        if (CASES[i].text[0] == '\0') {
            continue; /* an empty file is refused when it is mapped */
        }
        ck_assert_msg(open_text(CASES[i].text, &template) == STATUS_ERR_MALFORMED, "case %zu: %s",
                      i, error);
        ck_assert_msg(strstr(error, CASES[i].wanted) != NULL, "case %zu: '%s' lacks '%s'", i, error,
                      CASES[i].wanted);
    }
}
END_TEST

/* Jinja texts with random damage are refused or mean a template that can be rendered. */
START_TEST(damaged_templates_never_crash)
{
    uint64_t state = support_seed();
    json_t *families = support_json("chat.json");
    for (int i = 0; i < 4000; i++) {
        const json_t *family =
            json_array_get(families, support_random(&state) % json_array_size(families));
        const json_t *jinja = json_object_get(family, "jinja");
        size_t size_bytes = json_string_length(jinja);
        char *text = malloc(size_bytes + 1);
        memcpy(text, json_string_value(jinja), size_bytes);
        for (int k = 0; k < 1 + i % 3; k++) {
            text[support_random(&state) % size_bytes] =
                "{}%-'\"[] \\n.x"[support_random(&state) % 13];
        }
        size_t cut = i % 5 == 0 ? support_random(&state) % size_bytes : size_bytes;
        file_chat_template_t *template = NULL;
        if (file_chat_template_open_jinja(text, cut, error, sizeof error, &template) == STATUS_OK) {
            expect_case(template, json_array_get(json_object_get(family, "cases"), 1), 1);
        }
        file_chat_template_close(&template);
        free(text);
    }
    json_decref(families);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("models.chat_template");
    TCase *cases = tcase_create("all");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, every_family_renders_as_its_jinja);
    tcase_add_test(cases, the_checkpoint_brings_its_template);
    tcase_add_test(cases, an_unknown_template_is_refused_by_name);
    tcase_add_test(cases, an_operators_file_is_a_template);
    tcase_add_test(cases, a_wrong_file_is_refused_with_its_line);
    tcase_add_test(cases, damaged_templates_never_crash);
    suite_add_tcase(suite, cases);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
