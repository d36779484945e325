/* config_private.h - the inside of a cluster, shared by its files.  Not for others. */
#ifndef CONFIG_PRIVATE_H
#define CONFIG_PRIVATE_H

#include "config_cluster.h"
#include "config_value.h"

enum { CONFIG_PROBLEM_SIZE_BYTES = 640, CONFIG_KEYS_MAX = 96, CONFIG_LAYERS = 3 };

typedef struct {
    char *text; /* owned; NULL: not set */
    uint64_t number;
    uint32_t line, column;
    char *where; /* owned */
} config_cell_t;

/* Layers of what holds for all nodes, by their rank. */
enum { CONFIG_LAYER_TOP, CONFIG_LAYER_ENVIRONMENT, CONFIG_LAYER_COMMAND_LINE };

typedef struct {
    uint32_t line, column; /* of its entry */
    config_cell_t cells[CONFIG_KEYS_MAX];
} config_node_t;

struct config_cluster {
    char *path; /* owned; NULL: no file was read */
    config_cell_t layers[CONFIG_LAYERS][CONFIG_KEYS_MAX];
    config_node_t *nodes[CONFIG_NODES_MAX]; /* owned */
    uint32_t node_count;
    uint64_t initial[CONFIG_KEYS_MAX]; /* the defaults as numbers */
    char problems[CONFIG_PROBLEMS_MAX][CONFIG_PROBLEM_SIZE_BYTES];
    uint32_t problem_count; /* may be more than are kept */
};

/* The number of a key of the schema. */
uint32_t config_key_index(const config_key_t *key);

/* Adds "PATH:LINE:COLUMN: ..." (line 0: without a place). */
void config_problem_at(config_cluster_t *self, uint32_t line, uint32_t column, const char *format,
                       ...) __attribute__((format(printf, 4, 5)));

/* Puts a value that was parsed into a cell, replacing what it held. */
MUST_CHECK proto_status_t config_cell_set(config_cell_t *cell, const char *text, uint64_t number,
                                          const char *where);

#endif
