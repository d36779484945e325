/* `onepath actor KIND MODEL`: one actor in this process, as `serve` starts it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor_drafter.h"
#include "actor_drafter_shared.h"
#include "actor_executor.h"
#include "actor_executor_group.h"
#include "actor_fault.h"
#include "actor_gateway.h"
#include "actor_keys.h"
#include "actor_log.h"
#include "actor_recorder.h"
#include "actor_recorder_tap.h"
#include "actor_sandbox.h"
#include "actor_scheduler.h"
#include "cli_node.h"
#include "proto_clock.h"

static const cli_command_t actor_command = {
    .name = "actor",
    .usage = "actor gateway|scheduler|executor|drafter|recorder MODEL [OPTIONS]",
    .text = "Runs one actor in this process.  The sockets are in --run-dir: start the scheduler\n"
            "first.  `serve` does this for you.",
    .examples =
        "  onepath actor scheduler model.gguf --run-dir /run/onepath &\n"
        "  onepath actor executor model.gguf --run-dir /run/onepath &\n"
        "  onepath actor gateway model.gguf --run-dir /run/onepath\n"
        "  onepath actor scheduler model.gguf --run-dir /run/onepath --scheduler ipc:///run/s",
    .options = cli_node_options,
    .is_node = true,
    .words = "gateway scheduler executor drafter recorder",
    .word_count_min = 2,
    .word_count_max = 2,
};

typedef struct {
    cli_node_t node;
    const char *kind;
    const char *model;
    uint64_t epoch;
    int ring_fd;
    char gateway_endpoint[CLI_ENDPOINT_SIZE_BYTES];
    char executor_endpoint[CLI_ENDPOINT_SIZE_BYTES];
} session_t;

static proto_status_t
parse_unsigned(const char *option, const char *text, uint64_t *out)
{
    errno = 0;
    char *end = NULL;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0') {
        fprintf(stderr, "onepath actor: --%s is '%s'; it takes a number\n", option, text);
        return STATUS_ERR_CONFIG;
    }
    *out = value;
    return STATUS_OK;
}

/* Arms the fault points of this actor, once in the life of a node: a restarted actor must not die
 * at the same place again, so a file in the run folder remembers that it was armed. */
static proto_status_t
arm_faults(const session_t *session)
{
    char specification[1024] = "";
    size_t length = 0;
    size_t kind_len = strlen(session->kind);
    for (uint32_t i = 0; i < session->node.faults.count; i++) {
        const char *fault = session->node.faults.items[i];
        if (strncmp(fault, session->kind, kind_len) != 0 || fault[kind_len] != '/') {
            continue;
        }
        int put = snprintf(specification + length, sizeof specification - length, "%s%s",
                           length > 0 ? "," : "", fault + kind_len + 1);
        if (put < 0 || (size_t)put >= sizeof specification - length) {
            fprintf(stderr, "onepath actor: too many --fault\n");
            return STATUS_ERR_CONFIG;
        }
        length += (size_t)put;
    }
    if (length == 0) {
        return STATUS_OK;
    }
    char marker[256];
    (void)snprintf(marker, sizeof marker, "%s/armed-%s", session->node.run_dir, session->node.name);
    int fd = open(marker, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) {
        return STATUS_OK;
    }
    close(fd);
    proto_status_t status = actor_fault_arm(specification);
    if (status != STATUS_OK) {
        fprintf(stderr,
                "onepath actor: --fault '%s' does not parse: NAME:ACTION[:NTH[:ARGUMENT]]\n",
                specification);
    }
    return status;
}

/* What people call a model: its file or folder without path and ending.  The name inside a GGUF
 * file is often a note of its maker. */
static const char *
model_name(const char *path)
{
    static char name[128];
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    size_t begin = length;
    while (begin > 0 && path[begin - 1] != '/') {
        begin--;
    }
    length -= begin;
    if (length > 5 && strncmp(path + begin + length - 5, ".gguf", 5) == 0) {
        length -= 5;
    }
    (void)snprintf(name, sizeof name, "%.*s", (int)length, path + begin);
    return name;
}

static int
run_gateway(const session_t *session)
{
    const cli_node_t *node = &session->node;
    const actor_gateway_options_t options = {
        .name = node->name,
        .epoch = session->epoch,
        .scheduler_endpoint = session->gateway_endpoint,
        .supervisor_endpoint = node->supervisor,
        .ring_fd = session->ring_fd,
        .stop = &cli_stop,
        .model_path = session->model,
        .served_model_name =
            node->served_model_name != NULL ? node->served_model_name : model_name(session->model),
        .chat_template = node->chat_template,
        .strict_params = node->strict_params,
        .no_vllm_names = node->no_vllm_metrics,
        .connection_count_max = node->connection_count_max,
        .otlp_endpoint = node->otlp_endpoint,
        .bind_address = node->host,
        .port = (uint16_t)node->port,
        .api_key_file = node->api_key_file,
        .insecure_bind = node->insecure_bind,
        .choice_count_max = node->slot_count + node->queue_len_max,
        .drain_timeout_ms = node->drain_timeout_s * 1000,
        .resume_timeout_ms = node->resume_timeout_s * UINT64_C(1000),
        .answer_timeout_ms = node->answer_timeout_s * UINT64_C(1000),
        .history_size_bytes = node->resume_bytes,
    };
    return actor_gateway_run(&options);
}

static int
run_scheduler(const session_t *session)
{
    const cli_node_t *node = &session->node;
    const actor_scheduler_options_t options = {
        .name = node->name,
        .epoch = session->epoch,
        .gateway_endpoint = session->gateway_endpoint,
        .executor_endpoint = session->executor_endpoint,
        /* With --scheduler it listens there for everybody: a scheduler for other nodes. */
        .endpoint = node->supervisor == NULL ? node->scheduler : NULL,
        .supervisor_endpoint = node->supervisor,
        .ring_fd = session->ring_fd,
        .stop = &cli_stop,
        .queue_len_max = node->queue_len_max,
        .no_overlap = node->no_overlap,
        .no_prefix_cache = node->no_prefix_cache,
    };
    return actor_scheduler_run(&options);
}

/* A rank that another executor started. */
static int
run_rank(const cli_node_t *node, const actor_executor_options_t *options)
{
    uint64_t rank = 0;
    uint64_t fd = 0;
    if (node->tensor_group == NULL ||
        parse_unsigned("tensor-rank", node->tensor_rank, &rank) != STATUS_OK ||
        parse_unsigned("tensor-group", node->tensor_group, &fd) != STATUS_OK || rank == 0 ||
        rank >= options->rank_count || fd > INT32_MAX) {
        fprintf(stderr, "onepath actor: --tensor-rank and --tensor-group are for ranks that an "
                        "executor starts\n");
        return CLI_EXIT_CONFIG;
    }
    return actor_executor_rank_run(options, (uint32_t)rank, (int)fd);
}

static int
run_drafter(const session_t *session)
{
    const cli_node_t *node = &session->node;
    char endpoint[CLI_ENDPOINT_SIZE_BYTES];
    cli_node_drafter_endpoint(node, endpoint);
    const actor_drafter_options_t options = {
        .name = node->name,
        .epoch = session->epoch,
        .executor_endpoint = endpoint,
        .supervisor_endpoint = node->supervisor,
        .ring_fd = session->ring_fd,
        .stop = &cli_stop,
        .kind = node->drafter,
    };
    return actor_drafter_run(&options);
}

/* Fills in what an executor needs for a drafter beside it or, as *shared_p, in its own process. */
static proto_status_t
add_drafter(const cli_node_t *node, actor_executor_options_t *options,
            actor_drafter_shared_t **shared_p)
{
    static char endpoint[CLI_ENDPOINT_SIZE_BYTES];
    static char ring[CLI_ENDPOINT_SIZE_BYTES];
    if (!cli_node_has_drafter(node)) {
        return STATUS_OK;
    }
    cli_node_drafter_endpoint(node, endpoint);
    cli_node_draft_ring(node, ring);
    options->drafter_endpoint = endpoint;
    options->run.drafter = node->drafter;
    options->run.draft_ring_path = ring;
    options->run.draft_ring_id = proto_clock_realtime_ns(proto_clock_system());
    if (!node->drafter_shared) {
        return STATUS_OK;
    }
    const actor_drafter_options_t drafter = {.kind = node->drafter};
    proto_status_t status = actor_drafter_shared_new(&drafter, shared_p);
    if (status == STATUS_OK) {
        options->drafter_endpoint = actor_drafter_shared_endpoint();
        options->zmq_context = actor_drafter_shared_context(*shared_p);
        status = actor_drafter_shared_start(*shared_p);
    }
    return status;
}

static int
run_executor(const session_t *session)
{
    const cli_node_t *node = &session->node;
    uint32_t capture_sizes[CLI_CAPTURE_SIZES_MAX];
    uint32_t capture_size_count = 0;
    if (cli_capture_sizes_parse(node, capture_sizes, &capture_size_count) != STATUS_OK) {
        return CLI_EXIT_CONFIG; /* not of a node that was checked */
    }
    actor_executor_options_t options = {
        .name = node->name,
        .epoch = session->epoch,
        .scheduler_endpoint = session->executor_endpoint,
        .supervisor_endpoint = node->supervisor,
        .ring_fd = session->ring_fd,
        .stop = &cli_stop,
        .bad_plans_max = node->bad_plans_max,
        .run =
            {
                .model_path = session->model,
                .device = node->device,
                .model_len_max = node->model_len_max,
                .slot_count = node->slot_count,
                .step_tokens_max = node->step_tokens_max,
                .block_granularity = node->block_granularity,
                .cache_size_bytes = node->memory_bytes,
                .thread_count = node->thread_count,
                .enforce_eager = node->enforce_eager,
                .capture_bs_max = node->capture_size_max,
                .capture_sizes = capture_size_count > 0 ? capture_sizes : NULL,
                .capture_size_count = capture_size_count,
                .no_padding = node->no_capture_padding,
                .disable_prefill_graph = node->disable_prefill_graph,
                .prefill_graph_tokens_max = node->prefill_graph_tokens_max,
                .kernel_path = node->kernels,
                .autotune = !node->no_autotune,
                .graph_debug = node->graph_debug,
                .int8_activations = node->int8_activations,
                .cache_dtype = node->cache_dtype,
                .width = cli_node_width(node),
                .draft_path = node->null_device ? NULL : node->draft_model,
            },
        .rank_count = node->tensor_parallel,
        .rank_argv = node->tensor_parallel > 1 && node->tensor_rank == NULL
                         ? cli_node_argv(node, "executor", session->model)
                         : NULL,
        .null_device = node->null_device,
    };
    if (node->tensor_rank != NULL) {
        return run_rank(node, &options); /* drafters talk to rank 0 */
    }
    actor_drafter_shared_t *shared = NULL;
    int code = CLI_EXIT_TEMPORARY;
    if (add_drafter(node, &options, &shared) == STATUS_OK) {
        code = actor_executor_run(&options);
    }
    actor_drafter_shared_destroy(&shared);
    return code;
}

static int
run_recorder(const session_t *session)
{
    const cli_node_t *node = &session->node;
    actor_recorder_ring_t rings[CLI_LIST_LEN_MAX];
    static char names[CLI_LIST_LEN_MAX][PROTO_NAME_SIZE_BYTES];
    for (uint32_t i = 0; i < node->rings.count; i++) {
        const char *equals = strchr(node->rings.items[i], '=');
        uint64_t fd = 0;
        if (equals == NULL || (size_t)(equals - node->rings.items[i]) >= PROTO_NAME_SIZE_BYTES ||
            parse_unsigned("ring", equals + 1, &fd) != STATUS_OK) {
            fprintf(stderr, "onepath actor: --ring is '%s'; it takes NAME=DESCRIPTOR\n",
                    node->rings.items[i]);
            return CLI_EXIT_CONFIG;
        }
        memcpy(names[i], node->rings.items[i], (size_t)(equals - node->rings.items[i]));
        rings[i] = (actor_recorder_ring_t){.actor_name = names[i], .fd = (int)fd};
    }
    const actor_recorder_options_t options = {
        .name = node->name,
        .epoch = session->epoch,
        .supervisor_endpoint = node->supervisor,
        .rings = rings,
        .ring_count = node->rings.count,
        .log_dir = cli_node_log_dir(node),
        .build = "onepath " ONEPATH_VERSION,
        .stop = &cli_stop,
    };
    return actor_recorder_run(&options);
}

static const struct {
    const char *kind;
    proto_role_t role;
    int (*run)(const session_t *session);
} kinds[] = {
    {"gateway", PROTO_ROLE_GATEWAY, run_gateway},
    {"scheduler", PROTO_ROLE_SCHEDULER, run_scheduler},
    {"executor", PROTO_ROLE_EXECUTOR, run_executor},
    {"drafter", PROTO_ROLE_DRAFTER, run_drafter},
    {"recorder", PROTO_ROLE_RECORDER, run_recorder},
};

/* Runs the actor; where no supervisor gave it a ring, its log goes straight into the folder. */
static int
run_recorded(session_t *session, size_t kind)
{
    const cli_node_t *node = &session->node;
    bool is_alone = node->supervisor == NULL && session->ring_fd < 0 &&
                    kinds[kind].role != PROTO_ROLE_RECORDER && node->tensor_rank == NULL &&
                    cli_node_log_dir(node) != NULL;
    actor_recorder_tap_t *tap = NULL;
    if (is_alone) {
        if (session->epoch == 0) { /* the log's name needs it before the actor would make it */
            session->epoch = proto_clock_realtime_ns(proto_clock_system());
        }
        const actor_recorder_tap_options_t options = {.name = node->name,
                                                      .role = kinds[kind].role,
                                                      .epoch = session->epoch,
                                                      .log_dir = cli_node_log_dir(node),
                                                      .build = "onepath " ONEPATH_VERSION,
                                                      .is_strict = node->record_strict};
        proto_status_t status = actor_recorder_tap_open(&options, &tap);
        if (status != STATUS_OK) {
            return status == STATUS_ERR_CONFIG ? CLI_EXIT_CONFIG : CLI_EXIT_INTERNAL;
        }
        session->ring_fd = actor_recorder_tap_ring_fd(tap);
    }
    int code = kinds[kind].run(session);
    actor_recorder_tap_close(&tap);
    return code;
}

static proto_status_t
prepare(session_t *session)
{
    cli_node_t *node = &session->node;
    static char rank_name[32];
    if (node->name == NULL && node->tensor_rank != NULL) {
        (void)snprintf(rank_name, sizeof rank_name, "%s.%.8s", session->kind, node->tensor_rank);
        node->name = rank_name;
    } else if (node->name == NULL) {
        node->name = session->kind;
    }
    session->ring_fd = -1;
    uint64_t fd = 0;
    if (node->ring_fd != NULL) {
        if (parse_unsigned("ring-fd", node->ring_fd, &fd) != STATUS_OK) {
            return STATUS_ERR_CONFIG;
        }
        session->ring_fd = (int)fd;
    }
    if (node->epoch != NULL && parse_unsigned("epoch", node->epoch, &session->epoch) != STATUS_OK) {
        return STATUS_ERR_CONFIG;
    }
    if (node->run_dir == NULL) {
        fprintf(stderr, "onepath actor: --run-dir is needed: the folder where the actors meet\n");
        return STATUS_ERR_CONFIG;
    }
    if (strlen(node->run_dir) > 80) {
        fprintf(stderr, "onepath actor: --run-dir is %zu bytes long; a socket path allows 80\n",
                strlen(node->run_dir));
        return STATUS_ERR_CONFIG;
    }
    cli_node_scheduler_endpoint(node, PROTO_ROLE_GATEWAY, session->gateway_endpoint);
    cli_node_scheduler_endpoint(node, PROTO_ROLE_EXECUTOR, session->executor_endpoint);
    const char *elsewhere = node->scheduler_at != NULL ? node->scheduler_at : node->scheduler;
    if (elsewhere != NULL && strcmp(session->kind, "scheduler") != 0) {
        if (strlen(elsewhere) >= sizeof session->gateway_endpoint) {
            fprintf(stderr, "onepath actor: --scheduler is %zu bytes long; it takes %zu\n",
                    strlen(elsewhere), sizeof session->gateway_endpoint - 1);
            return STATUS_ERR_CONFIG;
        }
        (void)snprintf(session->gateway_endpoint, sizeof session->gateway_endpoint, "%s",
                       elsewhere);
        (void)snprintf(session->executor_endpoint, sizeof session->executor_endpoint, "%s",
                       elsewhere);
    }
    return arm_faults(session);
}

/* Who this process is to others, and what it may ask of the kernel: before anything of it listens.
 * GPU drivers want more than a list can say, and the recorder writes where it is told. */
static proto_status_t
secure(const session_t *session, proto_role_t role)
{
    const cli_node_t *node = &session->node;
    static actor_keys_t keys;
    if (node->curve_keys != NULL) {
        proto_status_t status = actor_keys_load(node->curve_keys, role, node->name, &keys);
        if (status != STATUS_OK) {
            return status;
        }
    }
    actor_keys_set_process(node->curve_keys != NULL ? &keys : NULL, node->insecure_bind);
    bool is_confined = role == PROTO_ROLE_GATEWAY || role == PROTO_ROLE_SCHEDULER;
    return is_confined ? actor_sandbox_enter(actor_sandbox_mode(node->sandbox)) : STATUS_OK;
}

int
cli_actor(int argc, char **argv)
{
    static session_t session;
    cli_node_init(&session.node);
    cli_command_t command = actor_command;
    command.option_count = cli_node_option_count;
    cli_words_t words;
    proto_status_t status = cli_options_parse(&command, argc, argv, 2, &session.node, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    session.kind = words.words[0];
    session.model = words.words[1];
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].kind, session.kind) != 0) {
            continue;
        }
        cli_signals_install(session.node.supervisor != NULL);
        if (cli_node_check(&session.node) != STATUS_OK || prepare(&session) != STATUS_OK ||
            cli_node_configure_log(&session.node, session.node.name, session.epoch) != STATUS_OK) {
            return CLI_EXIT_CONFIG;
        }
        if (secure(&session, kinds[i].role) != STATUS_OK) {
            return CLI_EXIT_CONFIG;
        }
        return run_recorded(&session, i);
    }
    fprintf(stderr,
            "onepath actor: '%s' is no actor; there are: gateway, scheduler, executor, "
            "drafter, recorder\n",
            session.kind);
    return CLI_EXIT_CONFIG;
}
