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

/* Before the options are parsed, because the file stands below them. */
static const char *
find_path(int argc, char **argv)
{
    static const char option[] = "--config";
    const char *path = getenv("ONEPATH_CONFIG");
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], option) == 0 && i + 1 < argc) {
            path = argv[++i];
        } else if (strncmp(argv[i], option, strlen(option)) == 0 &&
                   argv[i][strlen(option)] == '=') {
            path = argv[i] + strlen(option) + 1;
        }
    }
    return path;
}

proto_status_t
cli_file_offer(int argc, char **argv, const char **model)
{
    const char *path = find_path(argc, argv);
    *model = NULL;
    if (path == NULL) {
        return STATUS_OK;
    }
    static config_cluster_t *cluster; /* lives on: options lend its texts */
    config_cluster_destroy(&cluster);
    proto_status_t status = cli_file_read(path, NULL, 0, &cluster);
    if (status != STATUS_OK) {
        return status;
    }
    if (config_cluster_node_count(cluster) != 1 ||
        strcmp(config_cluster_text(cluster, 0, "role"), "fused") != 0) {
        fprintf(stderr,
                "onepath: %s describes more than one fused node; 'onepath up %s' starts them\n",
                path, path);
        return STATUS_ERR_CONFIG;
    }
    cli_file_offer_node(cluster, 0);
    *model = config_cluster_text(cluster, 0, "model");
    return STATUS_OK;
}
