/* config_cluster.h - the configuration of a cluster: its nodes, every value, and where it came
 * from.
 *
 * A value is the first of: the command line, the environment, the entry of its node in the file,
 * the top of the file, the default.  The order of the calls does not matter.
 *
 *     config_cluster_new -> read_file, read_environment, set -> check -> values
 *
 * Problems are collected, so that one run shows them all; each names its file, line and column, or
 * variable, or option, and says what to write.  One thread. */
#ifndef CONFIG_CLUSTER_H
#define CONFIG_CLUSTER_H

#include "config_schema.h"
#include "proto_status.h"

enum {
    CONFIG_NODES_MAX = 64,
    CONFIG_PROBLEMS_MAX = 32,
    CONFIG_FILE_SIZE_BYTES_MAX = 1 << 20,
    CONFIG_ORIGIN_SIZE_BYTES = 512,
};

/* In place of a node's index: the top of the file. */
#define CONFIG_TOP UINT32_MAX

typedef enum {
    CONFIG_FROM_DEFAULT,
    CONFIG_FROM_TOP,
    CONFIG_FROM_NODE,
    CONFIG_FROM_ENVIRONMENT,
    CONFIG_FROM_COMMAND_LINE,
} config_from_t;

typedef struct {
    const config_key_t *key;
    config_from_t from;
    const char *text;      /* as it was written, lists as "1,2,4"; NULL: no value and no default */
    uint64_t number;       /* FLAG, NUMBER, SIZE */
    uint32_t line, column; /* of the value, if it is from a file; from 1 */
    const char *where;     /* the variable or the option it is from; else NULL */
} config_value_t;

typedef struct config_cluster config_cluster_t;

/* The caller owns *out_p. */
MUST_CHECK proto_status_t config_cluster_new(config_cluster_t **out_p);
void config_cluster_destroy(config_cluster_t **self_p);

/* Reads a cluster file, once for each cluster.  STATUS_ERR_CONFIG if that left problems. */
MUST_CHECK proto_status_t config_cluster_read_file(config_cluster_t *self, const char *path);

/* The same from memory; `path` is only named in problems. */
MUST_CHECK proto_status_t config_cluster_read_bytes(config_cluster_t *self, const char *path,
                                                    const void *bytes, size_t size_bytes);

/* Takes every variable that a key has; `lookup` is getenv() or a test's.  A value tcp://..., as
 * Kubernetes injects for a service, is passed over unless the key takes endpoints. */
typedef const char *(*config_lookup_t)(const char *variable);
MUST_CHECK proto_status_t config_cluster_read_environment(config_cluster_t *self,
                                                          config_lookup_t lookup);

/* Sets a key of all nodes from the command line, where it stood as `option` ("--port"). */
MUST_CHECK proto_status_t config_cluster_set(config_cluster_t *self, const char *name,
                                             const char *text, const char *option);

/* "KEY=VALUE", of an option such as --set. */
MUST_CHECK proto_status_t config_cluster_set_pair(config_cluster_t *self, const char *pair,
                                                  const char *option);

/* What one value alone cannot show: names, roles, endpoints, limits that contradict each other.
 * STATUS_ERR_CONFIG if there are problems, earlier ones included. */
MUST_CHECK proto_status_t config_cluster_check(config_cluster_t *self);

uint32_t config_cluster_problem_count(const config_cluster_t *self);
/* "FILE:LINE:COLUMN: what, and the remedy". */
const char *config_cluster_problem(const config_cluster_t *self, uint32_t index);

/* A file without `nodes` has one node, called "node". */
uint32_t config_cluster_node_count(const config_cluster_t *self);
/* CONFIG_TOP if there is no such node. */
uint32_t config_cluster_find_node(const config_cluster_t *self, const char *name);

/* The effective value of a key for a node (CONFIG_TOP: for keys of the top, and what holds for
 * all). The name must be in the schema.  Texts are lent for the cluster's life. */
config_value_t config_cluster_value(const config_cluster_t *self, uint32_t node, const char *name);
/* Its parts, where no more is wanted; text is NULL without a value. */
const char *config_cluster_text(const config_cluster_t *self, uint32_t node, const char *name);
uint64_t config_cluster_number(const config_cluster_t *self, uint32_t node, const char *name);
bool config_cluster_flag(const config_cluster_t *self, uint32_t node, const char *name);

/* "cluster.yaml:3:9", "environment variable ONEPATH_PORT", "--port", "default". */
void config_cluster_origin(const config_cluster_t *self, const config_value_t *value,
                           char out[CONFIG_ORIGIN_SIZE_BYTES]);

/* Adds a problem at a value, for checks that others make: "ORIGIN: KEY is 'TEXT'; what". */
void config_cluster_complain(config_cluster_t *self, const config_value_t *value, const char *what);

/* Takes the cluster's configuration as text that reads back as the same: all values, or only those
 * that are no defaults.  `with_origin` adds where each came from as a comment.  A node's values
 * stand in its entry where they differ from the top's.  `emit` is called for each line, without its
 * end. */
typedef void (*config_emit_t)(void *context, const char *line);
typedef struct {
    bool all;
    bool with_origin;
    uint32_t node; /* only this one, with all that holds for it; CONFIG_TOP: all */
} config_show_t;
void config_cluster_show(const config_cluster_t *self, const config_show_t *show,
                         config_emit_t emit, void *context);

#endif
