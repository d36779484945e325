/* `onepath bench`: the options and the order of things. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli_bench.h"
#include "cli_node.h"

enum { CONCURRENCY_MAX = 16384, CLOSED_DEFAULT = 8, OPEN_DEFAULT = 1024, REQUESTS_DEFAULT = 100 };

typedef struct {
    uint32_t concurrency;
    uint32_t requests;
    uint32_t duration_s;
    const char *rate;
    const char *api;
    const char *model;
    const char *prompts;
    const char *prompt_words;
    uint32_t prefix_words;
    const char *tokens_max;
    bool no_stream;
    bool ignore_eos;
    int64_t seed;
    uint32_t timeout_s;
    uint32_t errors_max;
    const char *key_file;
    bool json;
    bool quiet;
} bench_options_t;

#define AT(field) offsetof(bench_options_t, field)

static const cli_option_t bench_cli_options[] = {
    {"concurrency", CLI_OPTION_U32, AT(concurrency), 1, CONCURRENCY_MAX, "COUNT",
     "requests at once (8; 1024 at most with --rate)", false},
    {"requests", CLI_OPTION_U32, AT(requests), 1, UINT32_MAX, "COUNT",
     "how many (100, unless --duration is given)", false},
    {"duration", CLI_OPTION_U32, AT(duration_s), 1, 86400, "SECONDS",
     "begin no request after this time; those that run are waited for", false},
    {"rate", CLI_OPTION_TEXT, AT(rate), 0, 0, "PER_SECOND",
     "open loop: requests come at random (Poisson), whatever the answers do", false},
    {"api", CLI_OPTION_TEXT, AT(api), 0, 0, "NAME", "chat or completions (chat)", false},
    {"model", CLI_OPTION_TEXT, AT(model), 0, 0, "NAME", "the first that /v1/models names", false},
    {"prompts", CLI_OPTION_TEXT, AT(prompts), 0, 0, "FILE",
     "JSON lines with \"prompt\" or \"messages\" and any other field, in turn", false},
    {"prompt-words", CLI_OPTION_TEXT, AT(prompt_words), 0, 0, "LENGTH",
     "made-up prompts: 128, 64-512, normal:128:32 or exp:128 words (128)", false},
    {"prefix-words", CLI_OPTION_U32, AT(prefix_words), 0, 100000, "COUNT",
     "words before them that are the same in every prompt (0)", false},
    {"max-tokens", CLI_OPTION_TEXT, AT(tokens_max), 0, 0, "LENGTH",
     "of each answer; a number or a spread, as above (64)", false},
    {"ignore-eos", CLI_OPTION_FLAG, AT(ignore_eos), 0, 0, NULL,
     "ask for answers of exactly that length; not every server can", false},
    {"no-stream", CLI_OPTION_FLAG, AT(no_stream), 0, 0, NULL, "ask for whole answers", false},
    {"seed", CLI_OPTION_I64, AT(seed), 0, 0, "N",
     "of lengths, words and arrivals (from the clock; printed)", false},
    {"timeout", CLI_OPTION_U32, AT(timeout_s), 1, 86400, "SECONDS", "of one request (300)", false},
    {"errors-max", CLI_OPTION_U32, AT(errors_max), 0, UINT32_MAX, "COUNT",
     "exit code 1 with more errors than these (0)", false},
    {"api-key-file", CLI_OPTION_TEXT, AT(key_file), 0, 0, "FILE",
     "its first line is the key (ONEPATH_API_KEY)", false},
    {"json", CLI_OPTION_FLAG, AT(json), 0, 0, NULL, "the result and every setting as JSON", false},
    {"quiet", CLI_OPTION_FLAG, AT(quiet), 0, 0, NULL, "no progress on a terminal", false},
};

static const cli_command_t bench_command = {
    .name = "bench",
    .usage = "bench [URL] [OPTIONS] | bench [OPTIONS] -- MODEL [SERVE OPTIONS]",
    .text =
        "Sends requests to an OpenAI-style server (http://127.0.0.1:8000 if none is named) and\n"
        "measures: requests and tokens per second, time to the first token, time between tokens,\n"
        "errors by kind.  After `--` it starts a node of its own, and ends it.  Without --rate\n"
        "each of --concurrency clients asks again as soon as it has its answer (100 ms later\n"
        "after an error).  With --rate latencies count from the moment at which a request was\n"
        "due, so that a stalled server cannot look fast.  A stream without [DONE] is an error.\n"
        "Exit codes: 0; 1 more errors than --errors-max, or interrupted; 75 nobody answers\n"
        "(asked for the model's name); 78 options; with `--` that of a node that did not start.",
    .examples =
        "  onepath bench --concurrency 16 --requests 200 --max-tokens 128\n"
        "  onepath bench http://10.0.0.7:8000 --rate 5 --duration 60 --prompt-words exp:500\n"
        "  onepath bench --api completions --prompts prompts.jsonl --json > result.json\n"
        "  onepath bench --concurrency 8 -- model.gguf --max-num-seqs 8",
    .options = bench_cli_options,
    .option_count = sizeof bench_cli_options / sizeof bench_cli_options[0],
    .word_count_min = 0,
    .word_count_max = 1,
};

static bool
parse_length(const char *option, const char *text, cli_bench_length_t *out)
{
    if (cli_bench_length_parse(text, out) == STATUS_OK) {
        return true;
    }
    fprintf(stderr,
            "onepath bench: --%s is '%s'; it takes 128, 64-512, normal:128:32 or exp:128, from 1 "
            "to 1000000\n",
            option, text);
    return false;
}

static bool
parse_rate(const char *text, double *out)
{
    errno = 0;
    char *end = NULL;
    *out = strtod(text, &end);
    if (errno != 0 || end == text || *end != '\0' || !isfinite(*out) || *out < 1e-3 || *out > 1e5) {
        fprintf(stderr, "onepath bench: --rate is '%s'; it takes a number from 0.001 to 100000\n",
                text);
        return false;
    }
    return true;
}

/* The key, from the file or the environment; never from the command line, which others can see. */
static bool
read_key(const char *path, const char **out)
{
    static char key[400];
    if (path == NULL) {
        *out = getenv("ONEPATH_API_KEY");
        if (*out != NULL && (strlen(*out) >= sizeof key || strpbrk(*out, "\r\n") != NULL)) {
            fprintf(stderr, "onepath bench: ONEPATH_API_KEY is no key: too long or two lines\n");
            return false;
        }
        return true;
    }
    FILE *file = fopen(path, "re");
    bool good = file != NULL && fgets(key, sizeof key, file) != NULL;
    if (file != NULL) {
        (void)fclose(file);
    }
    key[strcspn(key, "\r\n")] = '\0';
    if (!good || key[0] == '\0' || strlen(key) == sizeof key - 1) {
        fprintf(stderr, "onepath bench: --api-key-file is '%s': %s\n", path,
                file == NULL ? strerror(errno) : "its first line is no key");
        return false;
    }
    *out = key;
    return true;
}

static bool
fill(const bench_options_t *options, const cli_words_t *words, cli_bench_plan_t *plan)
{
    const char *url = words->count > 0 ? words->words[0] : "http://127.0.0.1:8000";
    if (cli_bench_url_parse(url, &plan->url) != STATUS_OK) {
        fprintf(stderr,
                "onepath bench: the URL is '%s'; it takes http://HOST[:PORT][/PATH] (no https: "
                "measure behind what ends TLS)\n",
                url);
        return false;
    }
    plan->prompt.is_chat = strcmp(options->api, "chat") == 0;
    if (!plan->prompt.is_chat && strcmp(options->api, "completions") != 0) {
        fprintf(stderr, "onepath bench: --api is '%s'; it takes chat or completions\n",
                options->api);
        return false;
    }
    if (!parse_length("prompt-words", options->prompt_words, &plan->prompt.prompt_words) ||
        !parse_length("max-tokens", options->tokens_max, &plan->prompt.tokens_max) ||
        (options->rate != NULL && !parse_rate(options->rate, &plan->rate)) ||
        !read_key(options->key_file, &plan->key)) {
        return false;
    }
    plan->prompt.stream = !options->no_stream;
    plan->prompt.ignore_eos = options->ignore_eos;
    plan->prompt.prefix_words = options->prefix_words;
    plan->prompt.file = options->prompts;
    plan->prompt.model = options->model;
    plan->concurrency = options->concurrency != 0 ? options->concurrency
                        : plan->rate > 0          ? OPEN_DEFAULT
                                                  : CLOSED_DEFAULT;
    plan->request_count = options->requests;
    if (options->requests == 0 && options->duration_s == 0) {
        plan->request_count = REQUESTS_DEFAULT;
    }
    plan->duration_ns = (uint64_t)options->duration_s * 1000000000ULL;
    plan->timeout_ns = (uint64_t)options->timeout_s * 1000000000ULL;
    plan->seed = (uint64_t)options->seed;
    plan->show_progress = !options->quiet && isatty(STDERR_FILENO) != 0;
    return true;
}

static bool
print_result(const cli_bench_plan_t *plan, cli_bench_books_t *books, bool json)
{
    if (!json) {
        cli_bench_print_text(plan, books, stdout);
        return true;
    }
    json_t *report = cli_bench_report_json(plan, books);
    bool good = report != NULL && json_dumpf(report, stdout, JSON_INDENT(2)) == 0;
    (void)fputc('\n', stdout);
    json_decref(report);
    return good;
}

/* The run itself, once there is somebody to ask. */
static int
measure(const bench_options_t *options, cli_bench_plan_t *plan)
{
    static char model[256];
    if (plan->prompt.model == NULL) {
        char why[CLI_BENCH_WHY_SIZE_BYTES];
        proto_status_t status = cli_bench_ask_model(plan, model, sizeof model, why);
        if (status != STATUS_OK) {
            fprintf(stderr, "onepath bench: http://%s:%u%s: %s\n", plan->url.host,
                    (unsigned)plan->url.port, plan->url.path, why);
            return status == STATUS_ERR_REFUSED ? CLI_EXIT_CONFIG : CLI_EXIT_TEMPORARY;
        }
        plan->prompt.model = model;
    }
    cli_bench_prompts_t *prompts = NULL;
    proto_status_t status = cli_bench_prompts_new(&plan->prompt, &prompts);
    if (status != STATUS_OK) {
        return status == STATUS_ERR_CONFIG ? CLI_EXIT_CONFIG : CLI_EXIT_TEMPORARY;
    }
    cli_bench_books_t books = {0};
    fprintf(stderr, "http://%s:%u%s, model %s, seed %lld\n", plan->url.host,
            (unsigned)plan->url.port, plan->url.path, plan->prompt.model, (long long)plan->seed);
    status = cli_bench_run(plan, prompts, &books);
    int code = CLI_EXIT_TEMPORARY;
    if (status != STATUS_OK) {
        fprintf(stderr, "onepath bench: %s\n", proto_status_text(status));
    } else if (print_result(plan, &books, options->json)) {
        code =
            books.failed > options->errors_max || books.interrupted ? CLI_EXIT_FOUND : CLI_EXIT_OK;
    }
    cli_bench_books_fini(&books);
    cli_bench_prompts_destroy(&prompts);
    return code;
}

/* Where `--` is: what follows is for `serve`. */
static int
find_own_node(int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            return i;
        }
    }
    return argc;
}

int
cli_bench(int argc, char **argv)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    bench_options_t options = {.api = "chat",
                               .prompt_words = "128",
                               .tokens_max = "64",
                               .timeout_s = 300,
                               .seed = (now.tv_sec ^ now.tv_nsec) & 0x7fffffff};
    int end = find_own_node(argc, argv);
    cli_words_t words;
    proto_status_t status = cli_options_parse(&bench_command, end, argv, 2, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    cli_bench_plan_t plan = {0};
    if (!fill(&options, &words, &plan)) {
        return CLI_EXIT_CONFIG;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    if (end >= argc) {
        return measure(&options, &plan);
    }
    if (words.count > 0 || end + 1 == argc) {
        fprintf(stderr, "onepath bench: %s\n",
                words.count > 0 ? "either a URL or `-- MODEL ...`" : "after `--` comes a MODEL");
        return CLI_EXIT_CONFIG;
    }
    int code = CLI_EXIT_TEMPORARY;
    status = cli_bench_node_start(argv + end + 1, &plan.url, &code);
    if (status != STATUS_OK) {
        fprintf(stderr, "onepath bench: the node did not start\n");
        return code != CLI_EXIT_OK ? code : CLI_EXIT_TEMPORARY;
    }
    code = measure(&options, &plan);
    cli_bench_node_stop();
    return code;
}
