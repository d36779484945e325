/* `onepath serve` and `onepath demo`: a supervisor with the actors of one node. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor_fault.h"
#include "actor_log.h"
#include "actor_supervisor.h"
#include "cli_file.h"
#include "cli_http.h"
#include "cli_model.h"
#include "cli_node.h"
#include "cli_notify.h"
#include "proto_clock.h"

enum { CHILD_COUNT_MAX = 5, DEMO_TOKENS_MAX = 160 };

static const uint64_t DEMO_TIMEOUT_NS = 120ULL * 1000 * 1000 * 1000;

typedef struct {
    cli_node_t node;
    const char *model;
    const char *question; /* NULL: serve until asked to stop */
    char url[128];        /* what the gateway reported */
    char run_dir[96];
    pthread_t asker;
    bool asker_started;
    int asker_exit;
    cli_http_answer_t answer;
} session_t;

static const cli_command_t serve_command = {
    .name = "serve",
    .usage = "serve MODEL [OPTIONS]",
    .text = "Serves MODEL (a GGUF file or a Hugging Face folder) with an OpenAI-style HTTP API.\n"
            "Starts gateway, scheduler, executor and recorder as processes and watches them.\n"
            "Exit codes: 0 asked shutdown, 70 internal failure, 75 temporary (port in use), 78\n"
            "configuration.",
    .examples = "  onepath serve SmolLM2-135M-Instruct.Q4_1.gguf\n"
                "  onepath serve ./Qwen3-0.6B --port 8080 --max-num-seqs 16 --memory 2G\n"
                "  onepath serve model.gguf --record ./log    (then: onepath log ls ./log)\n"
                "  onepath serve --config node.yaml --port 8080",
    .options = cli_node_options,
    .is_node = true,
    .word_count_min = 1,
    .word_count_max = 1,
};

static const cli_command_t up_command = {
    .name = "up",
    .usage = "up FILE [OPTIONS]",
    .text =
        "Starts a node of a cluster file on this machine: the only one, or the one that --node\n"
        "names.  Environment and options go before the file (onepath config show FILE --origin).\n"
        "Exit codes: as of serve.",
    .examples = "  onepath up cluster.yaml\n"
                "  onepath up cluster.yaml --node node-1 --port 8001",
    .options = cli_node_options,
    .is_node = true,
    .word_count_min = 1,
    .word_count_max = 1,
};

static const cli_command_t demo_command = {
    .name = "demo",
    .usage = "demo MODEL [QUESTION] [OPTIONS]",
    .text = "Starts a node with MODEL, asks one question, streams the answer, prints what each\n"
            "actor did, and stops everything.",
    .examples = "  onepath demo model.gguf \"Why is the sky blue?\"",
    .options = cli_node_options,
    .is_node = true,
    .word_count_min = 1,
    .word_count_max = 2,
};

static void
on_state(void *context, const char *name, uint32_t state, const char *detail)
{
    session_t *session = context;
    (void)name;
    (void)state;
    if (strncmp(detail, "http://", 7) == 0) {
        (void)snprintf(session->url, sizeof session->url, "%s", detail);
    }
}

static void *
ask(void *context)
{
    session_t *session = context;
    const char *colon = strrchr(session->url, ':');
    uint16_t port = colon != NULL ? (uint16_t)strtoul(colon + 1, NULL, 10) : 0;
    fprintf(stderr, "\nQ: %s\nA: ", session->question);
    proto_status_t status = cli_http_ask(port, session->question, DEMO_TOKENS_MAX, DEMO_TIMEOUT_NS,
                                         stdout, &session->answer);
    fputc('\n', stdout);
    fflush(stdout);
    if (status != STATUS_OK) {
        fprintf(stderr, "onepath: no whole answer came: %s\n", proto_status_text(status));
        session->asker_exit = CLI_EXIT_INTERNAL;
    }
    actor_supervisor_ask_stop();
    return NULL;
}

static void
on_ready(void *context)
{
    session_t *session = context;
    fprintf(stderr, "ready: %s\n", session->url);
    cli_notify_ready(session->url);
    if (session->question != NULL && !session->asker_started) {
        session->asker_started = pthread_create(&session->asker, NULL, ask, session) == 0;
        if (!session->asker_started) {
            session->asker_exit = CLI_EXIT_TEMPORARY;
            actor_supervisor_ask_stop();
        }
    }
}

static void
on_round(void *context, bool is_ending)
{
    (void)context;
    cli_notify_round(is_ending);
}

/* A folder for this node's sockets. */
static const char *
choose_run_dir(session_t *session)
{
    if (session->node.run_dir != NULL) {
        return session->node.run_dir;
    }
    char base[64];
    cli_node_run_base(base, sizeof base);
    (void)snprintf(session->run_dir, sizeof session->run_dir, "%s/onepath-%ld-%ld", base,
                   (long)getuid(), (long)getpid());
    session->node.run_dir = session->run_dir;
    return session->run_dir;
}

static void
print_report(const actor_supervisor_report_t *report, uint32_t count,
             const cli_http_answer_t *answer)
{
    fprintf(stderr, "\n%-10s %10s %10s %10s %10s %8s %9s %9s\n", "actor", "msgs in", "msgs out",
            "KiB in", "KiB out", "steps", "cpu ms", "MiB");
    for (uint32_t i = 0; i < count; i++) {
        const proto_stats_t *stats = &report[i].stats;
        fprintf(stderr, "%-10s %10llu %10llu %10.1f %10.1f %8llu %9.0f %9.1f\n", report[i].name,
                (unsigned long long)stats->messages_in, (unsigned long long)stats->messages_out,
                (double)stats->bytes_in / 1024.0, (double)stats->bytes_out / 1024.0,
                (unsigned long long)stats->steps, (double)stats->cpu_ns / 1e6,
                (double)stats->resident_bytes / 1048576.0);
    }
    if (answer->answer_tokens > 1) {
        double seconds = (double)(answer->total_ns - answer->first_ns) / 1e9;
        fprintf(stderr,
                "\n%u prompt tokens, %u answer tokens; first text after %.0f ms, then %.1f "
                "tokens/s\n",
                answer->prompt_tokens, answer->answer_tokens, (double)answer->first_ns / 1e6,
                (double)(answer->answer_tokens - 1) / seconds);
    }
}

static int
run(session_t *session)
{
    const cli_node_t *node = &session->node;
    bool recording = strcmp(node->record, "off") != 0;
    bool to_folder = cli_node_log_dir(node) != NULL;
    choose_run_dir(session);
    static char endpoints[2][CLI_ENDPOINT_SIZE_BYTES];
    cli_node_scheduler_endpoint(node, PROTO_ROLE_GATEWAY, endpoints[0]);
    cli_node_scheduler_endpoint(node, PROTO_ROLE_EXECUTOR, endpoints[1]);
    actor_supervisor_child_t all[CHILD_COUNT_MAX] = {
        {.name = "gateway",
         .role = PROTO_ROLE_GATEWAY,
         .argv = cli_node_argv(node, "gateway", session->model),
         .scheduler_endpoint = endpoints[0],
         .has_ring = recording},
        {.name = "scheduler",
         .role = PROTO_ROLE_SCHEDULER,
         .argv = cli_node_argv(node, "scheduler", session->model),
         .has_ring = recording},
        {.name = "executor",
         .role = PROTO_ROLE_EXECUTOR,
         .argv = cli_node_argv(node, "executor", session->model),
         .scheduler_endpoint = endpoints[1],
         .has_ring = recording},
    };
    uint32_t child_count = 3;
    if (cli_node_has_drafter(node) && !node->drafter_shared) {
        all[child_count++] = (actor_supervisor_child_t){
            .name = "drafter",
            .role = PROTO_ROLE_DRAFTER,
            .argv = cli_node_argv(node, "drafter", session->model),
            .has_ring = recording,
            .optional = true /* decoding goes on without it */
        };
    }
    if (recording) {
        all[child_count++] = (actor_supervisor_child_t){
            .name = "recorder",
            .role = PROTO_ROLE_RECORDER,
            .argv = cli_node_argv(node, "recorder", session->model),
            .is_recorder = true,
            /* Without its folder there is no log that somebody asked for; without the rings'
             * reader nothing is lost. */
            .optional = !to_folder,
        };
    }
    const actor_supervisor_options_t options = {
        .children = all,
        .child_count = child_count,
        .run_dir = node->run_dir,
        .restart_count_max = node->restart_intensity,
        .grace_ns = (uint64_t)node->drain_timeout_s * 1000000000ULL,
        .record_strict = node->record_strict,
        .show_progress = true,
        .scheduler_endpoint = node->scheduler,
        .scheduler_stays = node->scheduler_stays,
        .on_ready = on_ready,
        .on_state = on_state,
        .on_round = on_round,
        .context = session,
    };
    static actor_supervisor_report_t report[CHILD_COUNT_MAX];
    int code = actor_supervisor_run(&options, report);
    if (session->asker_started) {
        (void)pthread_join(session->asker, NULL);
        print_report(report, options.child_count, &session->answer);
    }
    return code != CLI_EXIT_OK ? code : session->asker_exit;
}

/* A mistyped fault point must not be a test that tests nothing: the actor that would complain about
 * it is the very one that it fails to name. */
static bool
check_faults(const cli_list_t *faults)
{
    static const char *const kinds[] = {"gateway", "scheduler", "executor", "drafter", "recorder"};
    for (uint32_t i = 0; i < faults->count; i++) {
        const char *fault = faults->items[i];
        const char *slash = strchr(fault, '/');
        bool is_known = false;
        for (uint32_t k = 0; slash != NULL && k < sizeof kinds / sizeof kinds[0]; k++) {
            size_t length = (size_t)(slash - fault);
            is_known |= strlen(kinds[k]) == length && memcmp(fault, kinds[k], length) == 0;
        }
        proto_status_t status = is_known ? actor_fault_arm(slash + 1) : STATUS_ERR_CONFIG;
        actor_fault_clear(); /* it is for the actor, not for this process */
        if (status != STATUS_OK) {
            fprintf(stderr,
                    "onepath: --fault is '%s'; it takes ACTOR/NAME:ACTION[:NTH[:ARGUMENT]] with "
                    "gateway, scheduler, executor, drafter or recorder as ACTOR\n",
                    fault);
            return false;
        }
    }
    return true;
}

static int
start(session_t *session, cli_command_t command, int argc, char **argv, cli_words_t *words)
{
    const char *model = NULL;
    bool is_up = strcmp(command.name, up_command.name) == 0;
    const char *file = is_up && argc > 2 && argv[2][0] != '-' ? argv[2] : NULL;
    command.option_count = cli_node_option_count;
    proto_status_t status = cli_file_offer(file, argc, argv, &model);
    if (status == STATUS_OK) {
        command.word_count_min = model != NULL && !is_up ? 0 : command.word_count_min;
        status = cli_options_parse(&command, argc, argv, 2, &session->node, words);
    }
    if (status == STATUS_END) {
        return CLI_EXIT_OK;
    }
    if (status != STATUS_OK || cli_node_check(&session->node) != STATUS_OK ||
        !check_faults(&session->node.faults)) {
        return CLI_EXIT_CONFIG;
    }
    session->model = words->count > 0 && !is_up ? words->words[0] : model;
    if (is_up && file == NULL) {
        fprintf(stderr, "onepath up: the file goes first: onepath %s\n", up_command.usage);
        return CLI_EXIT_CONFIG;
    }
    if (session->model == NULL) { /* the check of the file allows that for the null device only */
        fprintf(stderr, "onepath: there is no model: write 'model: PATH' into %s\n", file);
        return CLI_EXIT_CONFIG;
    }
    const char *draft = session->node.draft_model;
    if (!session->node.null_device &&
        (!cli_model_check(session->model) || (draft != NULL && !cli_model_check_draft(draft)))) {
        return CLI_EXIT_CONFIG;
    }
    if (cli_node_configure_log(&session->node, "supervisor", 0) != STATUS_OK) {
        return CLI_EXIT_CONFIG;
    }
    return -1;
}

int
cli_serve(int argc, char **argv)
{
    static session_t session;
    cli_node_init(&session.node);
    cli_words_t words;
    cli_notify_init();
    int code = start(&session, serve_command, argc, argv, &words);
    return code >= 0 ? code : run(&session);
}

int
cli_up(int argc, char **argv)
{
    static session_t session;
    cli_node_init(&session.node);
    cli_words_t words;
    cli_notify_init();
    int code = start(&session, up_command, argc, argv, &words);
    return code >= 0 ? code : run(&session);
}

int
cli_demo(int argc, char **argv)
{
    static session_t session;
    cli_node_init(&session.node);
    session.node.port = 0;
    session.node.log_level = "warn";
    cli_words_t words;
    int code = start(&session, demo_command, argc, argv, &words);
    if (code >= 0) {
        return code;
    }
    session.question =
        words.count > 1 ? words.words[1] : "What is a lighthouse for? Answer in two sentences.";
    return run(&session);
}
