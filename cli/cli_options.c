#include "cli_options.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config_schema.h"
#include "config_value.h"
#include "proto_require.h"

enum { HELP_WIDTH = 28 };

enum { ORIGIN_COUNT_MAX = 96 };

/* Of each option that has its value from elsewhere than the command line. */
static struct {
    const char *option;
    char text[CLI_ORIGIN_SIZE_BYTES + 16];
} origins[ORIGIN_COUNT_MAX];
static uint32_t origin_count;

static cli_options_file_t file_of_options;
static void *file_context;

static cli_options_visit_t visitor;
static void *visitor_context;

void
cli_options_set_visitor(cli_options_visit_t visit, void *context)
{
    visitor = visit;
    visitor_context = context;
}

bool
cli_options_has_visitor(void)
{
    return visitor != NULL;
}

void
cli_options_set_file(cli_options_file_t file, void *context)
{
    file_of_options = file;
    file_context = context;
}

const char *
cli_options_origin(const char *option)
{
    for (uint32_t i = 0; i < origin_count; i++) {
        if (strcmp(origins[i].option, option) == 0) {
            return origins[i].text;
        }
    }
    return "";
}

/* The last one to set an option has the last word; NULL: the command line. */
static void
note_origin(const cli_option_t *option, const char *from)
{
    uint32_t i = 0;
    while (i < origin_count && strcmp(origins[i].option, option->name) != 0) {
        i++;
    }
    if (i == origin_count && (from == NULL || origin_count == ORIGIN_COUNT_MAX)) {
        return;
    }
    origin_count += i == origin_count ? 1 : 0;
    origins[i].option = option->name;
    origins[i].text[0] = '\0';
    if (from != NULL) {
        (void)snprintf(origins[i].text, sizeof origins[i].text, " (from %s)", from);
    }
}

void
cli_options_variable(const cli_command_t *command, const cli_option_t *option,
                     char out[CLI_VARIABLE_SIZE_BYTES])
{
    bool is_shared = command->is_node || (command->node_option != NULL &&
                                          strcmp(command->node_option, option->name) == 0);
    (void)snprintf(out, CLI_VARIABLE_SIZE_BYTES, "ONEPATH_%s%s%s", is_shared ? "" : command->name,
                   is_shared ? "" : "_", option->name);
    for (char *at = out; *at != '\0'; at++) {
        *at = *at == '-' || *at == ' ' ? '_' : (char)toupper((unsigned char)*at);
    }
}

const char *
cli_plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

void
cli_print_quoted(FILE *stream, const char *argument)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-+=./:,@%";
    if (argument[0] != '\0' && argument[strspn(argument, plain)] == '\0') {
        fputs(argument, stream);
        return;
    }
    fputc('\'', stream);
    for (const char *at = argument; *at != '\0'; at++) {
        if (*at == '\'') {
            fputs("'\\''", stream);
        } else {
            fputc(*at, stream);
        }
    }
    fputc('\'', stream);
}

void
cli_options_help(const cli_command_t *command, FILE *stream)
{
    fprintf(stream, "usage: onepath %s\n\n%s\n", command->usage, command->text);
    if (command->examples != NULL) {
        fprintf(stream, "\nexamples:\n%s\n", command->examples);
    }
    if (command->option_count > 0) {
        fprintf(stream, "\noptions:\n");
    }
    const cli_option_t *example = NULL;
    for (uint32_t i = 0; i < command->option_count; i++) {
        const cli_option_t *option = &command->options[i];
        if (option->hidden) {
            continue;
        }
        char left[64];
        (void)snprintf(left, sizeof left, "--%s%s%s", option->name,
                       option->argument != NULL ? " " : "",
                       option->argument != NULL ? option->argument : "");
        if (strlen(left) > HELP_WIDTH) {
            fprintf(stream, "  %s\n  %-*s %s\n", left, HELP_WIDTH, "", option->text);
        } else {
            fprintf(stream, "  %-*s %s\n", HELP_WIDTH, left, option->text);
        }
        bool is_better = example == NULL ||
                         (example->type == CLI_OPTION_FLAG && option->type != CLI_OPTION_FLAG);
        example = is_better ? option : example;
    }
    if (example != NULL) {
        char name[CLI_VARIABLE_SIZE_BYTES];
        cli_options_variable(command, example, name);
        fprintf(stream, "\nEach option can also be set in the environment: --%s as %s%s.\n",
                example->name, name, example->type == CLI_OPTION_FLAG ? "=1" : "");
    }
}

static proto_status_t
set_flag(const cli_option_t *option, const char *value, bool *out)
{
    if (value == NULL || strcmp(value, "1") == 0 || strcmp(value, "true") == 0) {
        *out = true;
    } else if (strcmp(value, "0") == 0 || strcmp(value, "false") == 0 || value[0] == '\0') {
        *out = false;
    } else {
        fprintf(stderr, "onepath: --%s is '%s'%s; it takes 1 or 0\n", option->name, value,
                cli_options_origin(option->name));
        return STATUS_ERR_CONFIG;
    }
    return STATUS_OK;
}

static proto_status_t
set_number(const cli_option_t *option, const char *value, void *field)
{
    errno = 0;
    char *end = NULL;
    long long number = strtoll(value, &end, 10);
    bool bad = errno != 0 || end == value || *end != '\0';
    if (option->type == CLI_OPTION_U32) {
        if (bad || number < 0 || (uint64_t)number < option->min || (uint64_t)number > option->max) {
            fprintf(stderr, "onepath: --%s is '%s'%s; it takes a number from %llu to %llu\n",
                    option->name, value, cli_options_origin(option->name),
                    (unsigned long long)option->min, (unsigned long long)option->max);
            return STATUS_ERR_CONFIG;
        }
        *(uint32_t *)field = (uint32_t)number;
        return STATUS_OK;
    }
    if (bad) {
        fprintf(stderr, "onepath: --%s is '%s'%s; it takes a number\n", option->name, value,
                cli_options_origin(option->name));
        return STATUS_ERR_CONFIG;
    }
    *(int64_t *)field = number;
    return STATUS_OK;
}

static proto_status_t
set_size(const cli_option_t *option, const char *value, uint64_t *out)
{
    uint64_t size_bytes = 0;
    if (config_size_parse(value, &size_bytes) != STATUS_OK || size_bytes < option->min ||
        size_bytes > option->max) {
        char low[24];
        char high[24];
        config_size_print(option->min, low);
        config_size_print(option->max, high);
        fprintf(stderr, "onepath: --%s is '%s'%s; it takes a size of at least %s", option->name,
                value, cli_options_origin(option->name), low);
        if (option->max != UINT64_MAX) {
            fprintf(stderr, " and at most %s", high);
        }
        fprintf(stderr, ", such as 512M or 4G\n");
        return STATUS_ERR_CONFIG;
    }
    *out = size_bytes;
    return STATUS_OK;
}

static proto_status_t
set_option(const cli_option_t *option, const char *value, void *values)
{
    char *field = (char *)values + option->offset_bytes;
    switch (option->type) {
    case CLI_OPTION_FLAG:
        return set_flag(option, value, (bool *)(void *)field);
    case CLI_OPTION_U32:
    case CLI_OPTION_I64:
        return set_number(option, value, field);
    case CLI_OPTION_SIZE:
        return set_size(option, value, (uint64_t *)(void *)field);
    case CLI_OPTION_TEXT:
        *(const char **)(void *)field = value;
        return STATUS_OK;
    case CLI_OPTION_LIST: {
        cli_list_t *list = (cli_list_t *)(void *)field;
        if (list->count == CLI_LIST_LEN_MAX) {
            fprintf(stderr, "onepath: --%s is given more than %d times\n", option->name,
                    CLI_LIST_LEN_MAX);
            return STATUS_ERR_CONFIG;
        }
        list->items[list->count++] = value;
        return STATUS_OK;
    }
    }
    require(false);
    return STATUS_ERR_INTERNAL;
}

static proto_status_t
read_environment(const cli_command_t *command, void *values)
{
    for (uint32_t i = 0; i < command->option_count; i++) {
        const cli_option_t *option = &command->options[i];
        if (option->hidden) {
            continue;
        }
        char name[CLI_VARIABLE_SIZE_BYTES];
        cli_options_variable(command, option, name);
        const char *value = getenv(name);
        if (value == NULL) {
            continue;
        }
        /* Kubernetes injects <SERVICE>_PORT=tcp://... for a service that is named like us. */
        if (strncmp(value, "tcp://", 6) == 0) {
            fprintf(stderr, "onepath: %s is '%s', which looks injected by a service; ignored\n",
                    name, value);
            continue;
        }
        note_origin(option, name);
        proto_status_t status = set_option(option, value, values);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

static proto_status_t
read_file(const cli_command_t *command, void *values)
{
    for (uint32_t i = 0; i < command->option_count; i++) {
        const cli_option_t *option = &command->options[i];
        char origin[CLI_ORIGIN_SIZE_BYTES] = "";
        const char *value =
            option->hidden ? NULL : file_of_options(file_context, option->name, origin);
        if (value == NULL) {
            continue;
        }
        note_origin(option, origin);
        proto_status_t status = set_option(option, value, values);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

static const cli_option_t *
find_option(const cli_command_t *command, const char *name, size_t name_len)
{
    const cli_option_t *nearest = NULL;
    unsigned nearest_distance = 4;
    for (uint32_t i = 0; i < command->option_count; i++) {
        const cli_option_t *option = &command->options[i];
        if (strlen(option->name) == name_len && memcmp(option->name, name, name_len) == 0) {
            return option;
        }
        unsigned away = config_distance(name, name_len, option->name, strlen(option->name));
        if (!option->hidden && away < nearest_distance) {
            nearest_distance = away;
            nearest = option;
        }
    }
    fprintf(stderr, "onepath %s: unknown option --%.*s", command->name, (int)name_len, name);
    if (nearest != NULL) {
        fprintf(stderr, "; did you mean --%s?", nearest->name);
    }
    fprintf(stderr, "\nTry: onepath %s --help\n", command->name);
    return NULL;
}

static proto_status_t
parse_option(const cli_command_t *command, int argc, char **argv, int *index, void *values)
{
    const char *name = argv[*index] + 2;
    const char *equals = strchr(name, '=');
    size_t name_len = equals != NULL ? (size_t)(equals - name) : strlen(name);
    const cli_option_t *option = find_option(command, name, name_len);
    if (option == NULL) {
        return STATUS_ERR_CONFIG;
    }
    const char *value = equals != NULL ? equals + 1 : NULL;
    if (value == NULL && option->type != CLI_OPTION_FLAG) {
        if (*index + 1 >= argc) {
            fprintf(stderr, "onepath: --%s needs a value (%s)\n", option->name, option->argument);
            return STATUS_ERR_CONFIG;
        }
        value = argv[++*index];
    }
    note_origin(option, NULL);
    return set_option(option, value, values);
}

proto_status_t
cli_options_parse(const cli_command_t *command, int argc, char **argv, int first, void *values,
                  cli_words_t *words)
{
    words->count = 0;
    if (visitor != NULL) {
        visitor(visitor_context, command);
        return STATUS_END;
    }
    origin_count = 0;
    proto_status_t status = STATUS_OK;
    if (command->is_node && file_of_options != NULL) {
        status = read_file(command, values);
    }
    if (status == STATUS_OK) {
        status = read_environment(command, values);
    }
    if (status != STATUS_OK) {
        return status;
    }
    for (int i = first; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            cli_options_help(command, stdout);
            return STATUS_END;
        }
        if (strncmp(argv[i], "--", 2) == 0 && argv[i][2] != '\0') {
            status = parse_option(command, argc, argv, &i, values);
            if (status != STATUS_OK) {
                return status;
            }
        } else if (words->count < command->word_count_max && words->count < CLI_WORDS_LEN_MAX) {
            words->words[words->count++] = argv[i];
        } else {
            fprintf(stderr, "onepath %s: '%s' is one word too many\nTry: onepath %s --help\n",
                    command->name, argv[i], command->name);
            return STATUS_ERR_CONFIG;
        }
    }
    if (words->count < command->word_count_min) {
        fprintf(stderr, "usage: onepath %s\nTry: onepath %s --help\n", command->usage,
                command->name);
        return STATUS_ERR_CONFIG;
    }
    return STATUS_OK;
}
