/* The schema of cluster files and the options of a node say the same of the same setting. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_node.h"
#include "config_cluster.h"

/* Options that no file may set: they are for tests, or name the file itself. */
static const char *const without_key[] = {"enable-fault-injection", "fault", "config", "node"};

static bool
may_lack_key(const char *name)
{
    for (size_t i = 0; i < sizeof without_key / sizeof without_key[0]; i++) {
        if (strcmp(without_key[i], name) == 0) {
            return true;
        }
    }
    return false;
}

START_TEST(every_option_of_a_node_has_a_key_with_the_same_bounds)
{
    for (uint32_t i = 0; i < cli_node_option_count; i++) {
        const cli_option_t *option = &cli_node_options[i];
        if (option->hidden || may_lack_key(option->name)) {
            continue;
        }
        const config_key_t *key = config_schema_find_option(option->name);
        ck_assert_msg(key != NULL, "config/config_schema.c has no key for --%s", option->name);
        bool is_number = option->type == CLI_OPTION_U32 || option->type == CLI_OPTION_SIZE;
        ck_assert_msg(!is_number || (key->min == option->min && key->max == option->max),
                      "--%s takes other numbers than %s", option->name, key->name);
        ck_assert_msg((option->type == CLI_OPTION_FLAG) == (key->type == CONFIG_TYPE_FLAG),
                      "--%s is of another type than %s", option->name, key->name);
    }
}
END_TEST

START_TEST(every_key_with_an_option_has_its_default)
{
    cli_node_t node;
    cli_node_init(&node);
    config_cluster_t *cluster = NULL;
    ck_assert_int_eq(config_cluster_new(&cluster), STATUS_OK);
    for (uint32_t i = 0; i < cli_node_option_count; i++) {
        const cli_option_t *option = &cli_node_options[i];
        const config_key_t *key = config_schema_find_option(option->name);
        const char *field = (const char *)&node + option->offset_bytes;
        if (key == NULL) {
            continue;
        }
        config_value_t value = config_cluster_value(cluster, CONFIG_TOP, key->name);
        uint64_t number = value.number;
        switch (option->type) {
        case CLI_OPTION_FLAG:
            ck_assert_msg(*(const bool *)(const void *)field == ((number != 0) != key->inverted),
                          "%s", key->name);
            break;
        case CLI_OPTION_U32:
            ck_assert_msg(*(const uint32_t *)(const void *)field == number, "%s", key->name);
            break;
        case CLI_OPTION_SIZE:
        case CLI_OPTION_I64:
            ck_assert_msg(*(const uint64_t *)(const void *)field == number, "%s", key->name);
            break;
        case CLI_OPTION_TEXT: {
            const char *text = *(const char *const *)(const void *)field;
            ck_assert_msg((text == NULL) == (value.text == NULL) &&
                              (text == NULL || strcmp(text, value.text) == 0),
                          "%s is %s, --%s is %s", key->name, value.text, option->name, text);
            break;
        }
        case CLI_OPTION_LIST:
            break;
        }
    }
    config_cluster_destroy(&cluster);
}
END_TEST

START_TEST(every_option_that_a_key_names_exists)
{
    for (uint32_t i = 0; i < config_key_count; i++) {
        bool found = config_keys[i].option == NULL;
        for (uint32_t k = 0; k < cli_node_option_count && !found; k++) {
            found = strcmp(cli_node_options[k].name, config_keys[i].option) == 0;
        }
        ck_assert_msg(found, "%s names --%s", config_keys[i].name, config_keys[i].option);
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("config.options");
    TCase *tests = tcase_create("options");
    tcase_add_test(tests, every_option_of_a_node_has_a_key_with_the_same_bounds);
    tcase_add_test(tests, every_key_with_an_option_has_its_default);
    tcase_add_test(tests, every_option_that_a_key_names_exists);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
