/* A cluster file: read, held against itself, shown; what is shown must read back. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct {
    char text[4 << 20];
    size_t len;
} page;

static void
keep(void *context, const char *line)
{
    (void)context;
    size_t line_len = strlen(line);
    if (page.len + line_len + 1 > sizeof page.text) {
        abort();
    }
    memcpy(page.text + page.len, line, line_len);
    page.len += line_len;
    page.text[page.len++] = '\n';
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    config_cluster_t *cluster = NULL;
    if (config_cluster_new(&cluster) != STATUS_OK) {
        abort();
    }
    proto_status_t status = config_cluster_read_bytes(cluster, "f", data, size);
    proto_status_t checked = config_cluster_check(cluster);
    if ((checked == STATUS_OK) != (config_cluster_problem_count(cluster) == 0) ||
        (status != STATUS_OK && checked == STATUS_OK)) {
        abort();
    }
    if (checked == STATUS_OK) {
        const config_show_t show = {.all = size % 2 == 0,
                                    .with_origin = size % 3 == 0,
                                    .node = CONFIG_TOP};
        page.len = 0;
        config_cluster_show(cluster, &show, keep, NULL);
        config_cluster_t *again = NULL;
        if (config_cluster_new(&again) != STATUS_OK ||
            config_cluster_read_bytes(again, "g", page.text, page.len) != STATUS_OK ||
            config_cluster_check(again) != STATUS_OK) {
            abort();
        }
        config_cluster_destroy(&again);
    }
    config_cluster_destroy(&cluster);
    return 0;
}
