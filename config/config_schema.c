#include "config_schema.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "proto_messages.h"
#include "proto_require.h"

#define TOP CONFIG_PLACE_TOP
#define NODE CONFIG_PLACE_NODE
#define SHARED CONFIG_PLACE_SHARED

/* The columns of one type in few words; `...` are further fields by name. */
#define FLAG(name_, place_, initial_, option_, actors_, help_)                                     \
    {                                                                                              \
        .name = name_, .type = CONFIG_TYPE_FLAG, .place = place_, .initial = initial_,             \
        .option = option_, .actors = actors_, .help = help_                                        \
    }
#define NEGATED(name_, place_, option_, actors_, help_)                                            \
    {                                                                                              \
        .name = name_, .type = CONFIG_TYPE_FLAG, .place = place_, .initial = "true",               \
        .option = option_, .inverted = true, .actors = actors_, .help = help_                      \
    }
#define NUMBER(name_, place_, min_, max_, initial_, unset_, option_, actors_, help_)               \
    {                                                                                              \
        .name = name_, .type = CONFIG_TYPE_NUMBER, .place = place_, .min = min_, .max = max_,      \
        .initial = initial_, .unset = unset_, .option = option_, .actors = actors_, .help = help_  \
    }
#define SIZE(name_, place_, min_, max_, initial_, unset_, option_, actors_, help_)                 \
    {                                                                                              \
        .name = name_, .type = CONFIG_TYPE_SIZE, .place = place_, .min = min_, .max = max_,        \
        .initial = initial_, .unset = unset_, .option = option_, .actors = actors_, .help = help_  \
    }
#define TEXT(name_, place_, initial_, unset_, option_, actors_, help_)                             \
    {                                                                                              \
        .name = name_, .type = CONFIG_TYPE_TEXT, .place = place_, .initial = initial_,             \
        .unset = unset_, .option = option_, .actors = actors_, .help = help_                       \
    }
#define CHOICE(name_, place_, choices_, initial_, unset_, option_, actors_, help_)                 \
    {                                                                                              \
        .name = name_, .type = CONFIG_TYPE_CHOICE, .place = place_, .choices = choices_,           \
        .initial = initial_, .unset = unset_, .option = option_, .actors = actors_, .help = help_  \
    }
#define ENDPOINT(name_, place_, unset_, option_, actors_, help_)                                   \
    {                                                                                              \
        .name = name_, .type = CONFIG_TYPE_ENDPOINT, .place = place_, .unset = unset_,             \
        .option = option_, .actors = actors_, .help = help_                                        \
    }

const config_key_t config_keys[] = {
    NUMBER("version", CONFIG_PLACE_FILE, 1, 1, "1", NULL, NULL, "all", "version of this format"),
    TEXT("cluster.name", TOP, "onepath", NULL, NULL, "all", "name of the cluster, in its reports"),
    TEXT("cluster.run_dir", TOP, NULL, "one of its own", "run-dir", "all",
         "folder for sockets; each node of a cluster has a folder in it"),

    TEXT("gateway.host", TOP, "127.0.0.1", NULL, "host", "gateway", "address to listen on"),
    NUMBER("gateway.port", TOP, 0, 65535, "8000", NULL, "port", "gateway",
           "port to listen on; 0 chooses one"),
    TEXT("gateway.served_model_name", TOP, NULL, "the file's or folder's", "served-model-name",
         "gateway", "name in answers"),
    TEXT("gateway.chat_template", TOP, NULL, "the checkpoint's own", "chat-template", "gateway",
         "name or file of a chat template"),
    FLAG("gateway.strict_params", TOP, "false", "strict-params", "gateway",
         "an unknown field of a request is an error"),
    NEGATED("gateway.vllm_metrics", TOP, "no-vllm-metrics", "gateway",
            "the vllm: names beside our own in /metrics"),
    NUMBER("gateway.connections", TOP, 1, 32768, "2048", NULL, "connections", "gateway",
           "open HTTP connections"),
    TEXT("gateway.otlp_endpoint", TOP, NULL, "no traces", "otlp-endpoint", "gateway",
         "where traces are sent as OTLP/HTTP JSON"),
    NUMBER("gateway.resume_timeout", TOP, 1, 86400, "30", NULL, "resume-timeout", "gateway",
           "seconds that open requests wait for another scheduler when theirs is lost"),
    SIZE("gateway.resume_memory", TOP, 1 << 16, UINT64_C(4) << 30, "64M", NULL, "resume-memory",
         "gateway", "for what open requests need to go on with another scheduler"),
    NUMBER("gateway.answer_timeout", TOP, 1, 86400, "120", NULL, "answer-timeout", "gateway",
           "seconds that a scheduler may do nothing for open requests"),

    TEXT("name", NODE, NULL, "must be given", NULL, "all",
         "name of the node: a-z, 0-9 and -, at most 63"),
    CHOICE("role", NODE, "fused prefill decode", "fused", NULL, NULL, "all",
           "what the node does: both phases, or one of them"),
    TEXT("host", NODE, "127.0.0.1", NULL, NULL, "all",
         "name or address at which other nodes reach this one"),
    TEXT("bind", SHARED, NULL, "the node's host", NULL, "all",
         "address that tcp endpoints of the node listen on"),
    ENDPOINT("endpoints.scheduler", NODE, "ipc in the run folder", NULL, "scheduler gateway",
             "where gateways find the scheduler of this node"),
    ENDPOINT("endpoints.role", NODE, "ipc in the run folder", NULL, "prefill-role decode-role",
             "where roles of other nodes, and gateways, find the role of this node"),
    ENDPOINT("endpoints.transfer", NODE, "ipc in the run folder", NULL, "kv-transfer",
             "where the transfer of cache blocks of this node is found"),

    TEXT("model", SHARED, NULL, "must be given", NULL, "gateway executor",
         "GGUF file or folder with config.json and safetensors"),
    TEXT("device", SHARED, "auto", NULL, "device", "executor",
         "auto (a GPU if there is one), cpu, cuda or cuda:N"),
    NUMBER("tensor_parallel", SHARED, 1, 8, "1", NULL, "tensor-parallel", "executor",
           "processes of this machine that share the model"),
    NUMBER("threads", SHARED, 0, 256, "0", NULL, "threads", "executor",
           "compute threads; 0: one for each core"),
    CHOICE("kernels", SHARED, "auto avx512 avx2 portable", "auto", NULL, "kernels", "executor",
           "instruction set of the kernels"),
    FLAG("null_device", SHARED, "false", "null-device", "executor",
         "no model: made-up tokens, for measuring the actors"),
    FLAG("int8_activations", SHARED, "false", "int8-activations", "executor",
         "round activations to 8 bits: faster prefill, less exact"),

    CHOICE("drafter.kind", SHARED, "off ngram", "off", NULL, "drafter", "drafter executor",
           "who proposes tokens: nobody, or earlier tokens of the same request"),
    TEXT("drafter.model", SHARED, NULL, "none", "draft-model", "executor",
         "draft folder or smaller model that proposes tokens in the executor's process"),
    NUMBER("drafter.width", SHARED, 1, 16, NULL, "4 with a drafter, else 1", "decode-width",
           "executor scheduler", "tokens that a decode row may compute, the proposed included"),
    FLAG("drafter.shared", SHARED, "false", "drafter-shared", "drafter executor",
         "the drafter is a thread of the executor's process, instead of a process"),

    SIZE("cache.memory", SHARED, 1 << 20, UINT64_MAX, NULL,
         "what the limits need, at most half of what is free", "memory", "executor",
         "memory for the cache"),
    NUMBER("cache.block_size", SHARED, 1, 1024, "64", NULL, "block-size", "executor scheduler",
           "tokens of one cache block"),
    CHOICE("cache.dtype", SHARED, "auto f16 f32", "auto", NULL, "cache-dtype", "executor",
           "type of what the cache holds; auto: f16 unless weights are f32"),
    NEGATED("cache.prefix_cache", SHARED, "no-prefix-cache", "scheduler",
            "reuse what earlier prompts computed"),

    NUMBER("limits.max_model_len", SHARED, 2, PROTO_TOKENS_MAX, NULL, "the model's",
           "max-model-len", "gateway scheduler executor", "prompt and answer of one request"),
    NUMBER("limits.max_num_seqs", SHARED, 1, PROTO_ROWS_MAX, "32", NULL, "max-num-seqs",
           "scheduler executor", "requests at once"),
    NUMBER("limits.max_num_batched_tokens", SHARED, 1, 65536, "512", NULL, "max-num-batched-tokens",
           "scheduler executor", "tokens in a step"),
    NUMBER("limits.queue_len", SHARED, 1, 1 << 20, "1024", NULL, "queue-len", "gateway scheduler",
           "requests that may wait"),

    FLAG("graphs.eager", SHARED, "false", "enforce-eager", "executor",
         "capture no graphs, whatever else is asked for"),
    NUMBER("graphs.max_capture_size", SHARED, 1, PROTO_ROWS_MAX, NULL, "32", "max-capture-size",
           "executor", "largest decode batch that gets a graph"),
    {.name = "graphs.capture_sizes",
     .type = CONFIG_TYPE_NUMBERS,
     .place = SHARED,
     .min = 1,
     .max = PROTO_ROWS_MAX,
     .unset = "1, 2, 4, 8, 16, 24 ... the largest",
     .option = "capture-sizes",
     .actors = "executor",
     .help = "decode batches that get a graph"},
    NEGATED("graphs.capture_padding", SHARED, "no-capture-padding", "executor",
            "a decode batch may replay a graph of a larger size"),
    NEGATED("graphs.prefill", SHARED, "disable-prefill-graph", "executor",
            "steps with prompts use a graph"),
    NUMBER("graphs.prefill_max_tokens", SHARED, 1, 65536, NULL, "2048, or the largest step",
           "prefill-graph-max-tokens", "executor", "largest step with prompts that uses a graph"),
    NEGATED("graphs.autotune", SHARED, "no-autotune", "executor",
            "measure at start which batch sizes need a graph of their own"),
    FLAG("graphs.debug", SHARED, "false", "graph-debug", "executor",
         "check every captured address before each replay"),

    ENDPOINT("scheduler.endpoint", SHARED, "the built-in scheduler", "scheduler",
             "supervisor gateway executor", "the scheduler that listens there plans"),
    FLAG("scheduler.stays", SHARED, "false", "scheduler-stays", "supervisor",
         "the built-in scheduler does not take over when that one fails"),
    NUMBER("scheduler.bad_plans", SHARED, 1, 1000000, "8", NULL, "bad-plans", "executor",
           "plans in a row that break a rule before the executor complains"),
    NEGATED("scheduler.overlap", SHARED, "no-overlap", "scheduler executor",
            "plan the next step before this one ends"),

    TEXT("recording.mode", SHARED, "ring", NULL, "record", "recorder",
         "off, ring (memory only) or a folder for the message log"),
    FLAG("recording.strict", SHARED, "false", "record-strict", "recorder",
         "with a folder: an actor waits for the recorder rather than lose a record"),

    CHOICE("logging.level", SHARED, "debug info warn error", "info", NULL, "log-level", "all",
           "lines below this level are left out"),
    CHOICE("logging.format", SHARED, "json text human", NULL, "text on a terminal, else json",
           "log-format", "all", "form of a log line"),

    NUMBER("supervisor.restart_intensity", SHARED, 1, 1000, "3", NULL, "restart-intensity",
           "supervisor", "restarts within 60 s before the node gives up"),
    NUMBER("supervisor.drain_timeout", SHARED, 1, 86400, "60", NULL, "drain-timeout", "supervisor",
           "seconds that running requests may take after SIGTERM"),

    TEXT("security.curve_keys", SHARED, NULL, "links between hosts are refused", "curve-keys",
         "all", "folder with the keys of this node and those it trusts (onepath keygen)"),
    FLAG("security.insecure_bind", SHARED, "false", "insecure-bind", "all",
         "allow addresses that other machines reach without keys"),
    CHOICE("security.sandbox", SHARED, "kill deny off", "deny", NULL, "sandbox",
           "gateway scheduler", "what happens at a system call that is not on the list"),
    TEXT("security.api_key_file", TOP, NULL, "no key is asked for", "api-key-file", "gateway",
         "file with the API keys of clients, one a line"),
};
const uint32_t config_key_count = sizeof config_keys / sizeof config_keys[0];

const config_key_t *
config_schema_find(const char *name, size_t name_len)
{
    for (uint32_t i = 0; i < config_key_count; i++) {
        if (strlen(config_keys[i].name) == name_len &&
            memcmp(config_keys[i].name, name, name_len) == 0) {
            return &config_keys[i];
        }
    }
    return NULL;
}

const config_key_t *
config_schema_find_option(const char *option)
{
    for (uint32_t i = 0; i < config_key_count; i++) {
        if (config_keys[i].option != NULL && strcmp(config_keys[i].option, option) == 0) {
            return &config_keys[i];
        }
    }
    return NULL;
}

bool
config_schema_is_section(const char *name, size_t name_len)
{
    for (uint32_t i = 0; i < config_key_count; i++) {
        const char *dot = strchr(config_keys[i].name, '.');
        if (dot != NULL && (size_t)(dot - config_keys[i].name) == name_len &&
            memcmp(config_keys[i].name, name, name_len) == 0) {
            return true;
        }
    }
    return false;
}

bool
config_schema_is_settable(const config_key_t *key)
{
    return key->place == CONFIG_PLACE_TOP || key->place == CONFIG_PLACE_SHARED;
}

void
config_schema_variable(const config_key_t *key, char out[CONFIG_VARIABLE_SIZE_BYTES])
{
    const char *from = key->option != NULL ? key->option : key->name;
    int begin = snprintf(out, CONFIG_VARIABLE_SIZE_BYTES, "ONEPATH_");
    require(begin > 0);
    size_t at = (size_t)begin;
    for (; *from != '\0'; from++) {
        require(at + 3 < CONFIG_VARIABLE_SIZE_BYTES);
        if (*from == '.') {
            out[at++] = '_';
        }
        out[at++] = *from == '-' || *from == '.' ? '_' : (char)toupper((unsigned char)*from);
    }
    out[at] = '\0';
}

/* Insertions, deletions, other letters, and two letters swapped ("modle"). */
unsigned
config_distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    unsigned rows[3][CONFIG_NAME_LEN_MAX + 1];
    if (a_len >= CONFIG_NAME_LEN_MAX || b_len >= CONFIG_NAME_LEN_MAX) {
        return 99;
    }
    for (unsigned j = 0; j <= b_len; j++) {
        rows[0][j] = j;
    }
    for (unsigned i = 1; i <= a_len; i++) {
        unsigned *row = rows[i % 3];
        const unsigned *above = rows[(i + 2) % 3];
        const unsigned *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (unsigned j = 1; j <= b_len; j++) {
            unsigned best = above[j - 1] + (a[i - 1] == b[j - 1] ? 0U : 1U);
            best = above[j] + 1 < best ? above[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                two_above[j - 2] + 1 < best) {
                best = two_above[j - 2] + 1;
            }
            row[j] = best;
        }
    }
    return rows[a_len % 3][b_len];
}

typedef struct {
    const char *name;
    size_t name_len;
    unsigned distance;
} nearest_t;

/* `name` is what would be said, `word` and `candidate` are what is compared. */
static void
consider(nearest_t *best, const char *word, const char *candidate, nearest_t found)
{
    size_t word_len = strlen(word);
    size_t candidate_len = found.name_len - (size_t)(candidate - found.name);
    found.distance = config_distance(word, word_len, candidate, candidate_len);
    if (found.distance < best->distance && found.distance <= 1 + word_len / 3) {
        *best = found;
    }
}

bool
config_schema_nearest(const char *prefix, const char *word, char out[CONFIG_VARIABLE_SIZE_BYTES])
{
    static const char nodes[] = "nodes";
    nearest_t best = {NULL, 0, 4};
    size_t prefix_len = strlen(prefix);
    bool is_whole = strchr(word, '.') != NULL; /* "gateway.prot", as --set takes it */
    if (prefix_len == 0) {
        consider(&best, word, nodes, (nearest_t){nodes, strlen(nodes), 0});
    }
    for (uint32_t i = 0; i < config_key_count; i++) {
        const char *name = config_keys[i].name;
        const char *dot = strchr(name, '.');
        bool is_section = prefix_len == 0 && dot != NULL && !is_whole;
        size_t name_len = is_section ? (size_t)(dot - name) : strlen(name);
        if (strncmp(name, prefix, prefix_len) == 0) {
            consider(&best, word, name + prefix_len, (nearest_t){name, name_len, 0});
        }
    }
    /* The right word in the wrong place, unless something as near is in the right one. */
    for (uint32_t i = 0; i < config_key_count && best.distance > 1; i++) {
        const char *name = config_keys[i].name;
        const char *dot = strchr(name, '.');
        if (strcmp(dot != NULL ? dot + 1 : name, word) == 0) {
            best = (nearest_t){name, strlen(name), 1};
        }
    }
    if (best.name == NULL) {
        return false;
    }
    (void)snprintf(out, CONFIG_VARIABLE_SIZE_BYTES, "%.*s", (int)best.name_len, best.name);
    return true;
}
