/* cli_node.h - the options of a node, shared by serve, demo and the actors that they start.
 *
 * Filled in once from the command line, read by all.  Main thread; cli_stop is set by signals. */
#ifndef CLI_NODE_H
#define CLI_NODE_H

#include <stdatomic.h>

#include "cli_options.h"
#include "proto_ids.h"

typedef struct {
    const char *config;    /* cluster file; NULL = none */
    const char *file_node; /* the node of it; NULL = the only one */
    /* HTTP */
    const char *host;
    uint32_t port;
    const char *served_model_name;
    const char *chat_template;
    bool strict_params;
    const char *api_key_file;
    /* security */
    const char *curve_keys; /* folder of keys; NULL = none */
    bool insecure_bind;
    const char *sandbox;
    bool no_vllm_metrics;
    uint32_t connection_count_max;
    const char *otlp_endpoint;
    /* limits */
    uint32_t model_len_max;
    uint32_t slot_count;
    uint32_t step_tokens_max;
    uint32_t queue_len_max;
    uint64_t memory_bytes;
    uint32_t block_granularity;
    bool no_prefix_cache;
    bool no_overlap;
    /* device */
    const char *device;
    uint32_t tensor_parallel; /* ranks that share the model */
    uint32_t thread_count;
    const char *kernels;
    bool enforce_eager;
    uint32_t capture_size_max; /* 0 = the executor's default */
    const char *capture_sizes; /* "1,2,4"; NULL = the ladder */
    bool no_capture_padding;
    bool disable_prefill_graph;
    uint32_t prefill_graph_tokens_max; /* 0 = the executor's default */
    bool no_autotune;
    bool graph_debug;
    uint32_t decode_width; /* 0 = 4 with a drafter, 1 without */
    const char *drafter;   /* "off", "ngram" */
    bool drafter_shared;
    const char *draft_model; /* NULL = none; drafts in the executor's process */
    bool int8_activations;
    const char *cache_dtype;
    bool null_device;
    /* scheduler */
    const char *scheduler;
    bool scheduler_stays;
    /* running */
    const char *record;
    bool record_strict;
    const char *run_dir;
    const char *log_level;
    const char *log_format;
    uint32_t restart_intensity;
    uint32_t drain_timeout_s;
    uint32_t bad_plans_max;
    uint32_t resume_timeout_s;
    uint64_t resume_bytes;
    uint32_t answer_timeout_s;
    bool enable_fault_injection;
    cli_list_t faults;
    /* what the supervisor adds for one actor */
    const char *name;
    const char *epoch;
    const char *supervisor;
    const char *scheduler_at;
    const char *ring_fd;
    cli_list_t rings;
    /* what rank 0 of an executor adds for another rank */
    const char *tensor_rank;
    const char *tensor_group;
} cli_node_t;

extern const cli_option_t cli_node_options[];
extern const uint32_t cli_node_option_count;

/* The defaults that the help states. */
void cli_node_init(cli_node_t *node);

/* Checks what one option alone cannot; prints what is wrong.  STATUS_ERR_CONFIG then. */
MUST_CHECK proto_status_t cli_node_check(const cli_node_t *node);

enum { CLI_CAPTURE_SIZES_MAX = 128 };

/* Reads the list of --capture-sizes.  STATUS_ERR_INVALID: no list of ascending numbers from 1 to
 * slot_count, or too long. */
MUST_CHECK proto_status_t cli_capture_sizes_parse(const cli_node_t *node,
                                                  uint32_t out[CLI_CAPTURE_SIZES_MAX],
                                                  uint32_t *count);

/* The command line of one actor of this node: program, "actor", kind, model, then each visible
 * option that is not at its default.  Strings live in a static store: called at start only. */
const char *const *cli_node_argv(const cli_node_t *node, const char *kind, const char *model);

/* The folder in which nodes make their own run folders. */
void cli_node_run_base(char *out, size_t capacity_bytes);

enum { CLI_ENDPOINT_SIZE_BYTES = 256 };

/* Where the built-in scheduler of this node listens for that role. */
void cli_node_scheduler_endpoint(const cli_node_t *node, proto_role_t role,
                                 char out[CLI_ENDPOINT_SIZE_BYTES]);

/* Whether this node has a drafter that is an actor, and the width of its decode rows. */
bool cli_node_has_drafter(const cli_node_t *node);
uint32_t cli_node_width(const cli_node_t *node);
/* Where the executor of this node listens for a drafter, and the file that both map. */
void cli_node_drafter_endpoint(const cli_node_t *node, char out[CLI_ENDPOINT_SIZE_BYTES]);
void cli_node_draft_ring(const cli_node_t *node, char out[CLI_ENDPOINT_SIZE_BYTES]);

/* The folder of the message log, or NULL: off and ring write none. */
const char *cli_node_log_dir(const cli_node_t *node);

/* Log level and form, from the options; for `actor`. */
MUST_CHECK proto_status_t cli_node_configure_log(const cli_node_t *node, const char *actor,
                                                 uint64_t epoch);

/* Set by SIGTERM (and by SIGINT, unless a supervisor passes the wish on); 0 = go on, 1 = end in
 * good order, 2 = end now. */
extern atomic_int cli_stop;
void cli_signals_install(bool supervised);

/* The commands; each returns the exit code. */
int cli_serve(int argc, char **argv);
int cli_up(int argc, char **argv);
int cli_demo(int argc, char **argv);
int cli_actor(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_config(int argc, char **argv);
int cli_completion(int argc, char **argv);
int cli_doctor(int argc, char **argv);
int cli_man(int argc, char **argv);
int cli_report(int argc, char **argv);
int cli_log(int argc, char **argv);
int cli_sim(int argc, char **argv);
int cli_scheduler(int argc, char **argv);
int cli_executor(int argc, char **argv);
int cli_ps(int argc, char **argv);
int cli_top(int argc, char **argv);
int cli_probe(int argc, char **argv);
int cli_drain(int argc, char **argv);
int cli_undrain(int argc, char **argv);
int cli_level(int argc, char **argv);
int cli_keygen(int argc, char **argv);
int cli_protocol(int argc, char **argv);
int cli_conform(int argc, char **argv);

enum {
    CLI_EXIT_OK = 0,
    CLI_EXIT_FOUND = 1,      /* damage or a difference was found */
    CLI_EXIT_INTERNAL = 70,  /* a failure of ours */
    CLI_EXIT_TEMPORARY = 75, /* try again: port in use, no memory */
    CLI_EXIT_CONFIG = 78,    /* options, files: nothing will change by trying again */
};

#endif
