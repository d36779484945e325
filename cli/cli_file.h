/* cli_file.h - a cluster file as the options of one node: `onepath serve --config FILE`.
 *
 * Main thread.  The file stays open as values until the process ends: options lend its texts. */
#ifndef CLI_FILE_H
#define CLI_FILE_H

#include "config_cluster.h"
#include "proto_status.h"

/* Reads a cluster file, path or what --config (ONEPATH_CONFIG) names, and hands the values of one
 * of its nodes to the next cli_options_parse(): the only one, or the one that --node (ONEPATH_NODE)
 * names, which must be fused.  *model is the file's; NULL if it has none or there is no file.
 * STATUS_ERR_CONFIG after the problems were printed. */
MUST_CHECK proto_status_t cli_file_offer(const char *path, int argc, char **argv,
                                         const char **model);

/* Hands the values of one node of a cluster to the next cli_options_parse(); the cluster must live
 * as long as what that parse filled in. */
void cli_file_offer_node(const config_cluster_t *cluster, uint32_t node);

/* Reads a cluster file, the environment and `sets` ("KEY=VALUE", of --set), checks all, and prints
 * every problem.  path may be NULL: no file.  The caller owns *out_p, also when STATUS_ERR_CONFIG.
 */
MUST_CHECK proto_status_t cli_file_read(const char *path, const char *const *sets,
                                        uint32_t set_count, config_cluster_t **out_p);

#endif
