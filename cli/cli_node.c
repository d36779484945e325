#include "cli_node.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor_fault.h"
#include "actor_log.h"
#include "actor_restart.h"
#include "actor_socket.h"
#include "config_schema.h"
#include "config_value.h"
#include "proto_messages.h"
#include "proto_require.h"

#define AT(field) offsetof(cli_node_t, field)
#define FLAG(name, field, text)                                                                    \
    {                                                                                              \
        name, CLI_OPTION_FLAG, AT(field), 0, 0, NULL, text, false                                  \
    }
#define NUMBER(name, field, min, max, argument, text)                                              \
    {                                                                                              \
        name, CLI_OPTION_U32, AT(field), min, max, argument, text, false                           \
    }
#define TEXT(name, field, argument, text)                                                          \
    {                                                                                              \
        name, CLI_OPTION_TEXT, AT(field), 0, 0, argument, text, false                              \
    }
#define HIDDEN(name, type, field)                                                                  \
    {                                                                                              \
        name, type, AT(field), 0, 0, "VALUE", "", true                                             \
    }

const cli_option_t cli_node_options[] = {
    TEXT("host", host, "ADDRESS", "address to listen on (127.0.0.1)"),
    NUMBER("port", port, 0, 65535, "PORT", "port to listen on; 0 chooses one (8000; 0 for demo)"),
    TEXT("served-model-name", served_model_name, "NAME",
         "name in answers (the file's or folder's)"),
    TEXT("chat-template", chat_template, "NAME|FILE", "instead of the checkpoint's own"),
    FLAG("strict-params", strict_params, "an unknown field of a request is an error"),
    TEXT("api-key-file", api_key_file, "FILE",
         "ask clients for one of these keys, one a line (nobody is asked)"),
    TEXT("curve-keys", curve_keys, "DIR",
         "encrypt links over tcp:// with the keys of onepath keygen (none)"),
    FLAG("insecure-bind", insecure_bind, "allow addresses that other machines reach without keys"),
    TEXT("sandbox", sandbox, "MODE",
         "what gateway and scheduler may not ask of the kernel: kill, deny or off (deny)"),
    FLAG("no-vllm-metrics", no_vllm_metrics, "leave the vllm: names out of /metrics"),
    NUMBER("connections", connection_count_max, 1, 32768, "COUNT", "open HTTP connections (2048)"),
    TEXT("otlp-endpoint", otlp_endpoint, "URL",
         "send traces there as OTLP/HTTP JSON, such as http://127.0.0.1:4318 (none)"),
    NUMBER("max-model-len", model_len_max, 2, PROTO_TOKENS_MAX, "TOKENS",
           "prompt and answer of one request (the model's)"),
    NUMBER("max-num-seqs", slot_count, 1, PROTO_ROWS_MAX, "COUNT", "requests at once (32)"),
    NUMBER("max-num-batched-tokens", step_tokens_max, 1, 65536, "TOKENS", "tokens in a step (512)"),
    NUMBER("queue-len", queue_len_max, 1, 1 << 20, "COUNT", "requests that may wait (1024)"),
    {"memory", CLI_OPTION_SIZE, AT(memory_bytes), 1 << 20, UINT64_MAX, "SIZE",
     "for the cache, such as 2G (what the limits need, at most half of what is free)", false},
    NUMBER("block-size", block_granularity, 1, 1024, "TOKENS", "tokens of one cache block (64)"),
    FLAG("no-prefix-cache", no_prefix_cache, "compute every prompt anew"),
    FLAG("no-overlap", no_overlap, "wait for a step before the next is planned"),
    TEXT("device", device, "NAME", "auto (a GPU if there is one), cpu, cuda or cuda:N"),
    NUMBER("tensor-parallel", tensor_parallel, 1, 8, "RANKS",
           "processes of this machine that share the model (1)"),
    NUMBER("threads", thread_count, 0, 256, "COUNT", "compute threads (one for each core)"),
    TEXT("kernels", kernels, "PATH", "auto, avx512, avx2 or portable (auto)"),
    FLAG("enforce-eager", enforce_eager, "capture no graphs, whatever else is asked for"),
    NUMBER("max-capture-size", capture_size_max, 1, PROTO_ROWS_MAX, "ROWS",
           "largest decode batch that gets a graph (32)"),
    TEXT("capture-sizes", capture_sizes, "ROWS,ROWS,...",
         "decode batches that get a graph (1,2,4,8,16,24 ... the largest)"),
    FLAG("no-capture-padding", no_capture_padding,
         "a decode batch replays a graph of exactly its size, or none"),
    FLAG("disable-prefill-graph", disable_prefill_graph, "steps with prompts use no graph"),
    NUMBER("prefill-graph-max-tokens", prefill_graph_tokens_max, 1, 65536, "TOKENS",
           "largest step with prompts that uses a graph (2048, or the largest step)"),
    TEXT("drafter", drafter, "NAME",
         "who proposes tokens that the model then verifies: ngram (prompt lookup) or off (off)"),
    TEXT(
        "draft-model", draft_model, "PATH",
        "a draft folder (EAGLE3, MTP, DFLASH, DSpark) or a smaller model with the same vocabulary: "
        "proposes tokens in the executor's process"),
    NUMBER("decode-width", decode_width, 1, 16, "TOKENS",
           "tokens that a decode row may compute, the proposed ones included (4 with a drafter)"),
    FLAG("drafter-shared", drafter_shared,
         "the drafter is a thread of the executor's process, instead of a process"),
    FLAG("no-autotune", no_autotune, "do not measure at start which batch sizes need a graph"),
    FLAG("graph-debug", graph_debug, "check every captured address before each replay"),
    FLAG("int8-activations", int8_activations,
         "round activations to 8 bits: faster prefill, less exact"),
    TEXT("cache-dtype", cache_dtype, "TYPE", "auto, f16 or f32 (auto: f16 unless weights are f32)"),
    FLAG("null-device", null_device, "no model: made-up tokens, for measuring the actors"),
    TEXT("scheduler", scheduler, "ENDPOINT",
         "the scheduler that listens there plans, instead of the built-in one"),
    FLAG("scheduler-stays", scheduler_stays,
         "the built-in scheduler does not take over when that one fails"),
    NUMBER("bad-plans", bad_plans_max, 1, 1000000, "COUNT",
           "plans in a row that break a rule before the executor complains of the scheduler (8)"),
    TEXT("record", record, "MODE",
         "off, ring (memory only) or a folder for the message log (ring)"),
    FLAG("record-strict", record_strict,
         "with a folder: an actor waits for the recorder rather than lose a record"),
    TEXT("run-dir", run_dir, "DIR", "folder for sockets (one of its own)"),
    TEXT("config", config, "FILE", "cluster file; options and environment go before it"),
    TEXT("node", file_node, "NAME", "the node of the cluster file that is meant (the only one)"),
    TEXT("log-level", log_level, "LEVEL", "debug, info, warn or error (info)"),
    TEXT("log-format", log_format, "FORM", "json or text (text on a terminal)"),
    NUMBER("restart-intensity", restart_intensity, 1, ACTOR_RESTART_COUNT_MAX, "COUNT",
           "restarts within 60 s before the node gives up (3)"),
    NUMBER("drain-timeout", drain_timeout_s, 1, 86400, "SECONDS",
           "how long running requests may take after SIGTERM (60)"),
    NUMBER("resume-timeout", resume_timeout_s, 1, 86400, "SECONDS",
           "how long open requests wait for another scheduler when theirs is lost (30)"),
    {"resume-memory", CLI_OPTION_SIZE, AT(resume_bytes), 1 << 16, UINT64_C(4) << 30, "SIZE",
     "for what open requests need to go on with another scheduler (64M)", false},
    NUMBER(
        "answer-timeout", answer_timeout_s, 1, 86400, "SECONDS",
        "how long a scheduler may do nothing for open requests before it is complained of (120)"),
    FLAG("enable-fault-injection", enable_fault_injection, "allow --fault; for tests"),
    {"fault", CLI_OPTION_LIST, AT(faults), 0, 0, "ACTOR/POINT",
     "arm a fault point: ACTOR/NAME:ACTION[:NTH[:ARGUMENT]]", false},
    HIDDEN("name", CLI_OPTION_TEXT, name),
    HIDDEN("epoch", CLI_OPTION_TEXT, epoch),
    HIDDEN("supervisor", CLI_OPTION_TEXT, supervisor),
    HIDDEN("scheduler-at", CLI_OPTION_TEXT, scheduler_at),
    HIDDEN("ring-fd", CLI_OPTION_TEXT, ring_fd),
    HIDDEN("ring", CLI_OPTION_LIST, rings),
    HIDDEN("tensor-rank", CLI_OPTION_TEXT, tensor_rank),
    HIDDEN("tensor-group", CLI_OPTION_TEXT, tensor_group),
};
const uint32_t cli_node_option_count = sizeof cli_node_options / sizeof cli_node_options[0];

atomic_int cli_stop;

void
cli_node_init(cli_node_t *node)
{
    memset(node, 0, sizeof *node);
    node->host = "127.0.0.1";
    node->port = 8000;
    node->slot_count = 32;
    node->step_tokens_max = 512;
    node->queue_len_max = 1024;
    node->connection_count_max = 2048;
    node->block_granularity = 64;
    node->drafter = "off";
    node->device = "auto";
    node->tensor_parallel = 1;
    node->kernels = "auto";
    node->cache_dtype = "auto";
    node->record = "ring";
    node->log_level = "info";
    node->sandbox = "deny";
    node->restart_intensity = 3;
    node->drain_timeout_s = 60;
    node->bad_plans_max = 8;
    node->resume_timeout_s = 30;
    node->resume_bytes = UINT64_C(64) << 20;
    node->answer_timeout_s = 120;
}

proto_status_t
cli_capture_sizes_parse(const cli_node_t *node, uint32_t out[CLI_CAPTURE_SIZES_MAX],
                        uint32_t *count)
{
    *count = 0;
    for (const char *at = node->capture_sizes; at != NULL;) {
        char *end = NULL;
        errno = 0;
        unsigned long size = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        bool ascends = *count == 0 || size > out[*count - 1];
        if (errno != 0 || size < 1 || size > node->slot_count || !ascends ||
            *count == CLI_CAPTURE_SIZES_MAX || (*end != ',' && *end != '\0')) {
            return STATUS_ERR_INVALID;
        }
        out[(*count)++] = (uint32_t)size;
        at = *end == ',' ? end + 1 : NULL;
    }
    return STATUS_OK;
}

static proto_status_t
check_graphs(const cli_node_t *node)
{
    uint32_t sizes[CLI_CAPTURE_SIZES_MAX];
    uint32_t count = 0;
    if (cli_capture_sizes_parse(node, sizes, &count) != STATUS_OK) {
        fprintf(
            stderr,
            "onepath: --capture-sizes is '%s'%s; it takes ascending numbers such as 1,2,4,8, up "
            "to --max-num-seqs (%u%s)\n",
            node->capture_sizes, cli_options_origin("capture-sizes"), node->slot_count,
            cli_options_origin("max-num-seqs"));
        return STATUS_ERR_CONFIG;
    }
    if (count > 0 && node->capture_size_max != 0 && sizes[count - 1] > node->capture_size_max) {
        fprintf(stderr,
                "onepath: --capture-sizes is '%s'%s; it goes up to --max-capture-size (%u%s)\n",
                node->capture_sizes, cli_options_origin("capture-sizes"), node->capture_size_max,
                cli_options_origin("max-capture-size"));
        return STATUS_ERR_CONFIG;
    }
    if (node->prefill_graph_tokens_max > node->step_tokens_max) {
        fprintf(stderr,
                "onepath: --prefill-graph-max-tokens is %u%s; a step has at most "
                "--max-num-batched-tokens (%u%s)\n",
                node->prefill_graph_tokens_max, cli_options_origin("prefill-graph-max-tokens"),
                node->step_tokens_max, cli_options_origin("max-num-batched-tokens"));
        return STATUS_ERR_CONFIG;
    }
    if (node->disable_prefill_graph && node->prefill_graph_tokens_max != 0) {
        fprintf(stderr, "onepath: --disable-prefill-graph and --prefill-graph-max-tokens do not go "
                        "together\n");
        return STATUS_ERR_CONFIG;
    }
    return STATUS_OK;
}

/* "cuda:N", N below 1024: what the executor's device takes (run_device.c). */
static bool
is_cuda_ordinal(const char *text)
{
    const char *digits = text + 5;
    return strncmp(text, "cuda:", 5) == 0 && digits[0] != '\0' &&
           digits[strspn(digits, "0123456789")] == '\0' && strtoul(digits, NULL, 10) < 1024;
}

static proto_status_t
check_security(const cli_node_t *node)
{
    if (node->scheduler != NULL && !actor_endpoint_is_local(node->scheduler) &&
        node->curve_keys == NULL && !node->insecure_bind) {
        fprintf(stderr,
                "onepath: --scheduler is '%s'; it takes ipc:///PATH or tcp://127.0.0.1:PORT, and "
                "others only with --curve-keys (see onepath keygen) or --insecure-bind\n",
                node->scheduler);
        return STATUS_ERR_CONFIG;
    }
    return STATUS_OK;
}

/* Options that take one of some words, as the schema has them. */
static proto_status_t
check_choices(const cli_node_t *node)
{
    for (uint32_t i = 0; i < cli_node_option_count; i++) {
        const cli_option_t *option = &cli_node_options[i];
        const config_key_t *key = config_schema_find_option(option->name);
        if (key == NULL || key->type != CONFIG_TYPE_CHOICE || option->type != CLI_OPTION_TEXT) {
            continue;
        }
        const char *field = (const char *)node + option->offset_bytes;
        const char *text = *(const char *const *)(const void *)field;
        char message[CONFIG_MESSAGE_SIZE_BYTES];
        uint64_t number = 0;
        if (text != NULL && config_value_parse(key, text, &number, message) != STATUS_OK) {
            fprintf(stderr, "onepath: --%s is '%s'%s; %s\n", option->name, text,
                    cli_options_origin(option->name), message);
            return STATUS_ERR_CONFIG;
        }
    }
    return STATUS_OK;
}

proto_status_t
cli_node_check(const cli_node_t *node)
{
    if (check_choices(node) != STATUS_OK || check_graphs(node) != STATUS_OK) {
        return STATUS_ERR_CONFIG;
    }
    if (strcmp(node->device, "auto") != 0 && strcmp(node->device, "cpu") != 0 &&
        strcmp(node->device, "cuda") != 0 && !is_cuda_ordinal(node->device)) {
        fprintf(stderr, "onepath: --device is '%s'%s; it takes auto, cpu, cuda or cuda:N\n",
                node->device, cli_options_origin("device"));
        return STATUS_ERR_CONFIG;
    }
    if (node->tensor_parallel > 1 && (node->null_device || strncmp(node->device, "cuda", 4) == 0)) {
        fprintf(stderr, "onepath: --tensor-parallel is %u; %s\n", node->tensor_parallel,
                node->null_device ? "the null device has no model to share"
                                  : "the CUDA device has no collectives yet (--device cpu has)");
        return STATUS_ERR_CONFIG;
    }
    bool has_kind = strcmp(node->drafter, "off") != 0;
    if (has_kind && node->draft_model != NULL) {
        fprintf(stderr, "onepath: --drafter %s and --draft-model are two drafters; one is enough\n",
                node->drafter);
        return STATUS_ERR_CONFIG;
    }
    if ((has_kind || node->draft_model != NULL) && node->decode_width == 1) {
        fprintf(stderr, "onepath: %s needs a --decode-width of 2 or more; it is 1\n",
                has_kind ? "--drafter" : "--draft-model");
        return STATUS_ERR_CONFIG;
    }
    if (check_security(node) != STATUS_OK) {
        return STATUS_ERR_CONFIG;
    }
    if (node->faults.count > 0 && !node->enable_fault_injection) {
        fprintf(stderr, "onepath: --fault needs --enable-fault-injection\n");
        return STATUS_ERR_CONFIG;
    }
    if (node->record_strict && cli_node_log_dir(node) == NULL) {
        fprintf(stderr, "onepath: --record-strict%s needs --record FOLDER; --record is '%s'%s\n",
                cli_options_origin("record-strict"), node->record, cli_options_origin("record"));
        return STATUS_ERR_CONFIG;
    }
    return STATUS_OK;
}

void
cli_node_run_base(char *out, size_t capacity_bytes)
{
    const char *base = getenv("XDG_RUNTIME_DIR");
    /* Short, because a socket's path has 107 bytes. */
    if (base == NULL || base[0] != '/' || strlen(base) > 40 || access(base, W_OK) != 0) {
        base = "/tmp";
    }
    (void)snprintf(out, capacity_bytes, "%s", base);
}

void
cli_node_scheduler_endpoint(const cli_node_t *node, proto_role_t role,
                            char out[CLI_ENDPOINT_SIZE_BYTES])
{
    (void)snprintf(out, CLI_ENDPOINT_SIZE_BYTES, "ipc://%s/scheduler-%s", node->run_dir,
                   proto_role_name(role));
}

bool
cli_node_has_drafter(const cli_node_t *node)
{
    return strcmp(node->drafter, "off") != 0 && !node->null_device;
}

uint32_t
cli_node_width(const cli_node_t *node)
{
    enum { WITH_DRAFTER = 4 };
    if (node->decode_width != 0) {
        return node->decode_width;
    }
    bool has_draft_model = node->draft_model != NULL && !node->null_device;
    return cli_node_has_drafter(node) || has_draft_model ? WITH_DRAFTER : 1;
}

void
cli_node_drafter_endpoint(const cli_node_t *node, char out[CLI_ENDPOINT_SIZE_BYTES])
{
    (void)snprintf(out, CLI_ENDPOINT_SIZE_BYTES, "ipc://%s/executor-drafter", node->run_dir);
}

void
cli_node_draft_ring(const cli_node_t *node, char out[CLI_ENDPOINT_SIZE_BYTES])
{
    (void)snprintf(out, CLI_ENDPOINT_SIZE_BYTES, "%s/draft-ring", node->run_dir);
}

const char *
cli_node_log_dir(const cli_node_t *node)
{
    bool to_folder = strcmp(node->record, "ring") != 0 && strcmp(node->record, "off") != 0;
    return to_folder ? node->record : NULL;
}

proto_status_t
cli_node_configure_log(const cli_node_t *node, const char *actor, uint64_t epoch)
{
    actor_log_options_t options = {.actor = actor, .epoch = epoch, .level_min = ACTOR_LOG_INFO};
    if (!actor_log_level_parse(node->log_level, &options.level_min)) {
        return STATUS_ERR_CONFIG;
    }
    if (node->log_format != NULL) {
        options.format =
            strcmp(node->log_format, "json") == 0 ? ACTOR_LOG_FORMAT_JSON : ACTOR_LOG_FORMAT_HUMAN;
    }
    actor_log_configure(&options);
    return STATUS_OK;
}

/* ---- command lines of the actors ------------------------------------------------------------- */

enum { ARGV_STORE_SIZE_BYTES = 64 * 1024, ARGV_WORDS_MAX = 512 };

static struct {
    char text[ARGV_STORE_SIZE_BYTES];
    size_t text_len;
    const char *words[ARGV_WORDS_MAX];
    uint32_t word_count;
} store;

static void
put_word(const char *text)
{
    require(store.word_count < ARGV_WORDS_MAX);
    if (text == NULL) {
        store.words[store.word_count++] = NULL;
        return;
    }
    size_t size_bytes = strlen(text) + 1;
    require(size_bytes <= sizeof store.text - store.text_len);
    char *copy = store.text + store.text_len;
    memcpy(copy, text, size_bytes);
    store.text_len += size_bytes;
    store.words[store.word_count++] = copy;
}

static void
put_option(const cli_option_t *option, const void *values, const void *defaults)
{
    const char *field = (const char *)values + option->offset_bytes;
    const char *usual = (const char *)defaults + option->offset_bytes;
    char word[4096];
    if (option->type == CLI_OPTION_LIST) {
        const cli_list_t *list = (const cli_list_t *)(const void *)field;
        for (uint32_t i = 0; i < list->count; i++) {
            (void)snprintf(word, sizeof word, "--%s=%s", option->name, list->items[i]);
            put_word(word);
        }
        return;
    }
    if (option->type == CLI_OPTION_TEXT) {
        const char *text = *(const char *const *)(const void *)field;
        if (text != NULL) {
            (void)snprintf(word, sizeof word, "--%s=%s", option->name, text);
            put_word(word);
        }
        return;
    }
    uint64_t value = 0;
    if (option->type == CLI_OPTION_FLAG) {
        value = *(const bool *)(const void *)field ? 1 : 0;
        if (value == (*(const bool *)(const void *)usual ? 1U : 0U)) {
            return;
        }
    } else if (option->type == CLI_OPTION_U32) {
        value = *(const uint32_t *)(const void *)field;
        if (value == *(const uint32_t *)(const void *)usual) {
            return;
        }
    } else {
        value = *(const uint64_t *)(const void *)field;
        if (value == *(const uint64_t *)(const void *)usual) {
            return;
        }
    }
    (void)snprintf(word, sizeof word, "--%s=%llu", option->name, (unsigned long long)value);
    put_word(word);
}

const char *const *
cli_node_argv(const cli_node_t *node, const char *kind, const char *model)
{
    cli_node_t defaults;
    cli_node_init(&defaults);
    uint32_t first = store.word_count;
    put_word("/proc/self/exe");
    put_word("actor");
    put_word(kind);
    put_word(model);
    for (uint32_t i = 0; i < cli_node_option_count; i++) {
        /* What the file says is in the values by now. */
        bool is_of_file = cli_node_options[i].offset_bytes == AT(config) ||
                          cli_node_options[i].offset_bytes == AT(file_node);
        if (!cli_node_options[i].hidden && !is_of_file) {
            put_option(&cli_node_options[i], node, &defaults);
        }
    }
    put_word(NULL);
    return &store.words[first];
}

/* ---- signals --------------------------------------------------------------------------------- */

static void
on_signal(int number)
{
    (void)number;
    int before = atomic_load(&cli_stop);
    atomic_store(&cli_stop, before == 0 ? 1 : 2);
}

void
cli_signals_install(bool supervised)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = SIG_IGN;
    (void)sigaction(SIGPIPE, &action, NULL);
    (void)sigaction(SIGXFSZ, &action, NULL); /* a limit on file sizes is a full disk, no death */
    if (supervised) {
        /* Ctrl-C reaches the whole process group; the supervisor turns it into STOP messages. */
        (void)sigaction(SIGINT, &action, NULL);
    }
    action.sa_handler = on_signal;
    (void)sigaction(SIGTERM, &action, NULL);
    if (!supervised) {
        (void)sigaction(SIGINT, &action, NULL);
    }
    sigset_t mask; /* a supervisor starts us with SIGTERM held back until now */
    (void)sigemptyset(&mask);
    (void)sigaddset(&mask, SIGTERM);
    (void)sigprocmask(SIG_UNBLOCK, &mask, NULL);
}
