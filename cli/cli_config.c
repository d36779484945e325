/* `onepath config`: a cluster file checked, shown with the origin of each value, and its keys. */
#include <string.h>
#include <unistd.h>

#include "cli_file.h"
#include "cli_node.h"
#include "config_cluster.h"
#include "config_value.h"

typedef struct {
    bool effective;
    bool origin;
    bool markdown;
    const char *node;
    cli_list_t sets;
} options_t;

static const cli_option_t options_table[] = {
    {"effective", CLI_OPTION_FLAG, offsetof(options_t, effective), 0, 0, NULL,
     "show: every value, defaults too", false},
    {"origin", CLI_OPTION_FLAG, offsetof(options_t, origin), 0, 0, NULL,
     "show: say behind each value where it came from", false},
    {"node", CLI_OPTION_TEXT, offsetof(options_t, node), 0, 0, "NAME",
     "show: only what holds for this node", false},
    {"set", CLI_OPTION_LIST, offsetof(options_t, sets), 0, 0, "KEY=VALUE",
     "set a key for all nodes, above file and environment", false},
    {"markdown", CLI_OPTION_FLAG, offsetof(options_t, markdown), 0, 0, NULL,
     "keys: as the table of docs/configuration.md", false},
};

static const cli_command_t config_command = {
    .name = "config",
    .usage = "config check FILE | show [FILE] | keys  [OPTIONS]",
    .text =
        "check  reads a cluster file and says all that is wrong with it, with line and column.\n"
        "show   prints the configuration: what the file and the environment set, or all of it\n"
        "       with --effective.  Without --node the output is a cluster file again.\n"
        "keys   lists every key: type, default, environment variable, whom it concerns.\n"
        "A value is the first of: command line, environment (ONEPATH_...), the entry of its\n"
        "node in the file, the top of the file, the default.\n"
        "Exit codes: 0 all is well, 78 the configuration is wrong.",
    .examples = "  onepath config check cluster.yaml\n"
                "  onepath config show cluster.yaml --effective --origin --node decode-0\n"
                "  onepath config show cluster.yaml --set limits.max_num_seqs=64",
    .options = options_table,
    .words = "check show keys",
    .option_count = sizeof options_table / sizeof options_table[0],
    .word_count_min = 1,
    .word_count_max = 2,
};

static void
print_line(void *context, const char *line)
{
    (void)context;
    puts(line);
}

/* True if a variable is one of a setting, of an option without a key, or of another command. */
static bool
is_known(const char *variable, size_t variable_len, char near[CONFIG_VARIABLE_SIZE_BYTES])
{
    unsigned least = 3;
    char known[CONFIG_VARIABLE_SIZE_BYTES];
    for (uint32_t i = 0; i < config_key_count; i++) {
        config_schema_variable(&config_keys[i], known);
        unsigned away = config_distance(variable, variable_len, known, strlen(known));
        if (away == 0) {
            return true;
        }
        if (away < least && config_schema_is_settable(&config_keys[i])) {
            least = away;
            (void)snprintf(near, CONFIG_VARIABLE_SIZE_BYTES, "%s", known);
        }
    }
    for (uint32_t i = 0; i < cli_node_option_count; i++) {
        const cli_command_t node = {.is_node = true};
        cli_options_variable(&node, &cli_node_options[i], known);
        if (strlen(known) == variable_len && memcmp(known, variable, variable_len) == 0) {
            return true;
        }
    }
    return least == 3; /* nothing is near: somebody else's */
}

/* A variable that is misspelt is as if it were not there, so that nobody would notice. */
static void
warn_of_variables(void)
{
    for (char *const *at = environ; *at != NULL; at++) {
        char near[CONFIG_VARIABLE_SIZE_BYTES] = "";
        size_t variable_len = strcspn(*at, "=");
        if (strncmp(*at, "ONEPATH_", 8) == 0 && !is_known(*at, variable_len, near)) {
            fprintf(stderr, "onepath config: nothing reads %.*s; did you mean %s?\n",
                    (int)variable_len, *at, near);
        }
    }
}

static int
show(const config_cluster_t *cluster, const options_t *options)
{
    config_show_t wanted = {.all = options->effective,
                            .with_origin = options->origin,
                            .node = CONFIG_TOP};
    if (options->node != NULL) {
        wanted.node = config_cluster_find_node(cluster, options->node);
        if (wanted.node == CONFIG_TOP) {
            fprintf(stderr, "onepath config: --node is '%s'; the nodes are", options->node);
            for (uint32_t i = 0; i < config_cluster_node_count(cluster); i++) {
                fprintf(stderr, "%s %s", i > 0 ? "," : "", config_cluster_text(cluster, i, "name"));
            }
            fputc('\n', stderr);
            return CLI_EXIT_CONFIG;
        }
    }
    config_cluster_show(cluster, &wanted, print_line, NULL);
    return CLI_EXIT_OK;
}

static void
describe_type(const config_key_t *key, char out[160])
{
    char low[24];
    char high[24];
    switch (key->type) {
    case CONFIG_TYPE_FLAG:
        (void)snprintf(out, 160, "true or false");
        break;
    case CONFIG_TYPE_NUMBER:
    case CONFIG_TYPE_NUMBERS:
        (void)snprintf(out, 160, "%s%llu to %llu",
                       key->type == CONFIG_TYPE_NUMBERS ? "list, ascending, of " : "",
                       (unsigned long long)key->min, (unsigned long long)key->max);
        break;
    case CONFIG_TYPE_SIZE:
        config_size_print(key->min, low);
        config_size_print(key->max, high);
        (void)snprintf(out, 160, key->max == UINT64_MAX ? "size, at least %s" : "size, %s to %s",
                       low, high);
        break;
    case CONFIG_TYPE_TEXT:
        (void)snprintf(out, 160, "text");
        break;
    case CONFIG_TYPE_CHOICE:
        (void)snprintf(out, 160, "%s", key->choices);
        break;
    case CONFIG_TYPE_ENDPOINT:
        (void)snprintf(out, 160, "ipc:///PATH or tcp://HOST:PORT");
        break;
    }
}

static int
list_keys(bool markdown)
{
    static const char *const places[] = {"top", "top", "node", "top, node"};
    if (markdown) {
        printf("| key | takes | default | where | environment | concerns | |\n"
               "| --- | --- | --- | --- | --- | --- | --- |\n");
    }
    for (uint32_t i = 0; i < config_key_count; i++) {
        const config_key_t *key = &config_keys[i];
        char variable[CONFIG_VARIABLE_SIZE_BYTES] = "";
        char type[160];
        bool is_default = key->initial != NULL;
        const char *initial = is_default ? key->initial : key->unset;
        describe_type(key, type);
        if (config_schema_is_settable(key)) {
            config_schema_variable(key, variable);
        }
        if (markdown) {
            const char *tick = is_default ? "`" : "";
            const char *variable_tick = variable[0] != '\0' ? "`" : "";
            printf("| `%s` | %s | %s%s%s | %s | %s%s%s%s | %s | %s |\n", key->name, type, tick,
                   initial, tick, places[key->place], variable_tick, variable, variable_tick,
                   key->inverted ? " (says the opposite)" : "", key->actors, key->help);
        } else {
            printf("%-30s %s\n%-30s   %s; default: %s%s%s; concerns: %s\n", key->name, key->help,
                   "", type, initial, variable[0] != '\0' ? "; " : "", variable, key->actors);
        }
    }
    return CLI_EXIT_OK;
}

int
cli_config(int argc, char **argv)
{
    options_t options = {.node = NULL};
    cli_words_t words;
    proto_status_t status = cli_options_parse(&config_command, argc, argv, 2, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    const char *verb = words.words[0];
    const char *path = words.count > 1 ? words.words[1] : NULL;
    bool checks = strcmp(verb, "check") == 0;
    if (strcmp(verb, "keys") == 0 && path == NULL) {
        return list_keys(options.markdown);
    }
    if ((!checks && strcmp(verb, "show") != 0) || (checks && path == NULL)) {
        fprintf(stderr,
                checks ? "onepath config: check takes the file to check\n"
                       : "onepath config: '%s' is none of check FILE, show [FILE], keys\n",
                verb);
        return CLI_EXIT_CONFIG;
    }
    config_cluster_t *cluster = NULL;
    status = cli_file_read(path, options.sets.items, options.sets.count, &cluster);
    int code = status == STATUS_ERR_CONFIG ? CLI_EXIT_CONFIG : CLI_EXIT_TEMPORARY;
    warn_of_variables();
    if (status == STATUS_OK) {
        code = checks ? CLI_EXIT_OK : show(cluster, &options);
        if (checks) {
            uint32_t count = config_cluster_node_count(cluster);
            printf("%s: %u node%s, no problems\n", path, count, cli_plural(count));
        }
    }
    config_cluster_destroy(&cluster);
    return code;
}
