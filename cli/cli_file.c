#include "cli_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_options.h"

static struct {
    const config_cluster_t *cluster;
    uint32_t node;
} offered;

static const char *
look_up(const char *variable)
{
    return getenv(variable);
}

proto_status_t
cli_file_read(const char *path, const char *const *sets, uint32_t set_count,
              config_cluster_t **out_p)
{
    proto_status_t status = config_cluster_new(out_p);
    if (status != STATUS_OK) {
        fprintf(stderr, "onepath: out of memory\n");
        return status;
    }
    config_cluster_t *cluster = *out_p;
    bool ok = path == NULL || config_cluster_read_file(cluster, path) == STATUS_OK;
    ok &= config_cluster_read_environment(cluster, look_up) == STATUS_OK;
    for (uint32_t i = 0; i < set_count; i++) {
        ok &= config_cluster_set_pair(cluster, sets[i], "--set") == STATUS_OK;
    }
    if (ok) {
        ok = config_cluster_check(cluster) == STATUS_OK;
    }
    for (uint32_t i = 0; i < config_cluster_problem_count(cluster); i++) {
        fprintf(stderr, "%s\n", config_cluster_problem(cluster, i));
    }
    return ok ? STATUS_OK : STATUS_ERR_CONFIG;
}

/* The environment and the command line are read by the parse that follows, with words of its own.
 */
static const char *
value_of_option(void *context, const char *option, char origin[CLI_ORIGIN_SIZE_BYTES])
{
    (void)context;
    const config_key_t *key = config_schema_find_option(option);
    if (key == NULL) {
        return NULL;
    }
    config_value_t value = config_cluster_value(offered.cluster, offered.node, key->name);
    if (value.from == CONFIG_FROM_DEFAULT || value.from == CONFIG_FROM_ENVIRONMENT) {
        return NULL;
    }
    config_cluster_origin(offered.cluster, &value, origin);
    if (key->type == CONFIG_TYPE_FLAG) {
        return (value.number != 0) != key->inverted ? "1" : "0";
    }
    return value.text;
}

void
cli_file_offer_node(const config_cluster_t *cluster, uint32_t node)
{
    offered.cluster = cluster;
    offered.node = node;
    cli_options_set_file(value_of_option, NULL);
}

/* The value of an option before the options are parsed, because the file stands below them. */
static const char *
find_option(const char *option, const char *variable, int argc, char **argv)
{
    const char *value = getenv(variable);
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], option) == 0 && i + 1 < argc) {
            value = argv[++i];
        } else if (strncmp(argv[i], option, strlen(option)) == 0 &&
                   argv[i][strlen(option)] == '=') {
            value = argv[i] + strlen(option) + 1;
        }
    }
    return value;
}

/* CONFIG_TOP after an error was printed. */
static uint32_t
choose_node(const config_cluster_t *cluster, const char *path, const char *name)
{
    uint32_t count = config_cluster_node_count(cluster);
    uint32_t node = name != NULL ? config_cluster_find_node(cluster, name) : 0;
    if (node == CONFIG_TOP || (name == NULL && count != 1)) {
        fprintf(stderr, "onepath: --node is %s%s%s; the nodes of %s are", name != NULL ? "'" : "",
                name != NULL ? name : "missing", name != NULL ? "'" : "", path);
        for (uint32_t i = 0; i < count; i++) {
            fprintf(stderr, "%s %s", i > 0 ? "," : "", config_cluster_text(cluster, i, "name"));
        }
        fputc('\n', stderr);
        return CONFIG_TOP;
    }
    const char *role = config_cluster_text(cluster, node, "role");
    if (strcmp(role, "fused") != 0) {
        fprintf(stderr,
                "onepath: node '%s' of %s has role: %s; this command starts fused nodes only\n",
                config_cluster_text(cluster, node, "name"), path, role);
        return CONFIG_TOP;
    }
    return node;
}

proto_status_t
cli_file_offer(const char *path, int argc, char **argv, const char **model)
{
    *model = NULL;
    if (cli_options_has_visitor()) {
        return STATUS_OK;
    }
    if (path == NULL) {
        path = find_option("--config", "ONEPATH_CONFIG", argc, argv);
    }
    if (path == NULL) {
        return STATUS_OK;
    }
    static config_cluster_t *cluster; /* lives on: options lend its texts */
    config_cluster_destroy(&cluster);
    proto_status_t status = cli_file_read(path, NULL, 0, &cluster);
    if (status != STATUS_OK) {
        return status;
    }
    const char *name = find_option("--node", "ONEPATH_NODE", argc, argv);
    uint32_t node = choose_node(cluster, path, name);
    if (node == CONFIG_TOP) {
        return STATUS_ERR_CONFIG;
    }
    cli_file_offer_node(cluster, node);
    *model = config_cluster_text(cluster, node, "model");
    return STATUS_OK;
}
