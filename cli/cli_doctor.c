/* `onepath doctor`: what this machine has, what is missing, what to type. */
#include "cli_doctor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "actor_versions.h"
#include "cli_model.h"
#include "cli_node.h"

typedef struct {
    const char *host;
    uint32_t port;
    bool json;
    const char *root;
} doctor_options_t;

#define AT(field) offsetof(doctor_options_t, field)

static const cli_option_t doctor_cli_options[] = {
    {"host", CLI_OPTION_TEXT, AT(host), 0, 0, "ADDRESS",
     "address that `serve` is to listen on (127.0.0.1)", false},
    {"port", CLI_OPTION_U32, AT(port), 0, 65535, "PORT",
     "port that `serve` is to listen on; 0: any (8000)", false},
    {"json", CLI_OPTION_FLAG, AT(json), 0, 0, NULL, "the same as one JSON object", false},
    {"root", CLI_OPTION_TEXT, AT(root), 0, 0, "DIR", "", true}, /* of /proc, /sys and /dev; tests */
};

static const cli_command_t doctor_command = {
    .name = "doctor",
    .usage = "doctor [MODEL] [OPTIONS]",
    .text =
        "Looks at this machine: processors and the kernels chosen for them, quotas and limits\n"
        "of its control group, memory, open files, libraries, GPU and driver, the port; and at\n"
        "MODEL, if one is named: can it be read and run, and does it fit.  Changes nothing.\n"
        "Exit codes: 0 all is well; 1 it can serve, with warnings; 2 it cannot serve; 78\n"
        "options.",
    .examples = "  onepath doctor\n"
                "  onepath doctor model.gguf --port 8080\n"
                "  onepath doctor --json | jq '.checks[] | select(.level != \"ok\")'",
    .options = doctor_cli_options,
    .option_count = sizeof doctor_cli_options / sizeof doctor_cli_options[0],
    .word_count_max = 1,
};

static const char *const level_names[] = {"ok", "warning", "failure"};

static void
check_libraries(cli_doctor_report_t *report)
{
    char loaded[32];
    actor_versions_zmq(loaded, sizeof loaded);
    cli_doctor_line_t *line = cli_doctor_add(report, "libzmq", "%s, compiled with %s", loaded,
                                             actor_versions_zmq_built());
    if (strcmp(loaded, actor_versions_zmq_built()) != 0) {
        cli_doctor_advise(line, CLI_DOCTOR_WARNING,
                          "another version is loaded than the program was compiled with: ldd "
                          "$(command -v onepath)");
    }
}

static void
check_port(const doctor_options_t *options, cli_doctor_report_t *report)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)options->port)};
    if (inet_pton(AF_INET, options->host, &address.sin_addr) != 1) {
        cli_doctor_advise(cli_doctor_add(report, "port", "%s", options->host), CLI_DOCTOR_FAILURE,
                          "--host takes an IPv4 address, such as 127.0.0.1 or 0.0.0.0");
        return;
    }
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int yes = 1;
    int error = fd < 0 ? errno : 0;
    if (fd >= 0) {
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
            listen(fd, 1) != 0) {
            error = errno;
        }
        (void)close(fd);
    }
    cli_doctor_line_t *line =
        cli_doctor_add(report, "port", "%s:%u %s", options->host, options->port,
                       error == 0 ? "is free" : strerror(error));
    if (error == EADDRINUSE) {
        cli_doctor_advise(line, CLI_DOCTOR_FAILURE,
                          "who has it: ss -ltnp 'sport = %u'; another: onepath serve --port 0",
                          options->port);
    } else if (error != 0) {
        cli_doctor_advise(line, CLI_DOCTOR_FAILURE, "choose another --host or --port");
    }
}

static void
check_run_dir(cli_doctor_report_t *report)
{
    char base[64];
    cli_node_run_base(base, sizeof base);
    bool good = access(base, W_OK | X_OK) == 0;
    cli_doctor_line_t *line = cli_doctor_add(report, "run-dir", "below %s%s%s", base,
                                             good ? "" : ": ", good ? "" : strerror(errno));
    if (!good) {
        cli_doctor_advise(line, CLI_DOCTOR_FAILURE, "onepath serve --run-dir DIR");
    }
}

void
cli_doctor_check_fit(const file_config_t *config, cli_doctor_report_t *report)
{
    uint64_t weights = config->weight_size_bytes;
    uint64_t available = report->available_bytes;
    uint64_t request = cli_doctor_cache_bytes(config, config->context_len);
    /* The executor gives the cache at most half of what is free. */
    uint64_t cache = available > weights ? (available - weights) / 2 : 0;
    char texts[5][32];
    cli_doctor_line_t *line = cli_doctor_add(
        report, "model-fit",
        "%s available - %s of weights = %s; at most half of it is cache: %s; one request of %u "
        "tokens needs %s",
        cli_doctor_bytes(available, texts[0]), cli_doctor_bytes(weights, texts[1]),
        cli_doctor_bytes(available > weights ? available - weights : 0, texts[2]),
        cli_doctor_bytes(cache, texts[3]), config->context_len,
        cli_doctor_bytes(request, texts[4]));
    if (available <= weights) {
        cli_doctor_advise(line, CLI_DOCTOR_FAILURE,
                          "the weights alone do not fit: a smaller quantisation, or more memory");
        return;
    }
    uint32_t len = config->context_len;
    while (len > 1 && cli_doctor_cache_bytes(config, len) > cache) {
        len /= 2;
    }
    if (len < config->context_len) {
        cli_doctor_advise(line, CLI_DOCTOR_WARNING,
                          "a request of full length does not fit: onepath serve --max-model-len %u",
                          len);
    }
}

static void
check_model(const char *path, cli_doctor_report_t *report)
{
    char error[FILE_ERROR_SIZE_BYTES];
    file_model_t *model = NULL;
    const char *name = NULL;
    if (access(path, F_OK) != 0 && cli_model_is_hub_name(path, &name)) {
        cli_doctor_advise(cli_doctor_add(report, "model", "there is no file '%.300s'", path),
                          CLI_DOCTOR_FAILURE, "hf download %.100s --local-dir ./%.100s", name,
                          strchr(name, '/') + 1);
        return;
    }
    if (file_model_open(path, error, sizeof error, &model) != STATUS_OK) {
        cli_doctor_advise(cli_doctor_add(report, "model", "%.370s", error), CLI_DOCTOR_FAILURE,
                          "a GGUF file, or a folder with config.json and *.safetensors; "
                          "docs/models.md lists what can be run");
        return;
    }
    const file_config_t *config = file_model_config(model);
    char size[32];
    (void)cli_doctor_add(report, "model", "%.100s: %u layers, %u tokens of context, %s (%s)",
                         config->name, config->layer_count, config->context_len,
                         cli_doctor_bytes(config->file_size_bytes, size), config->dtype_summary);
    cli_doctor_check_fit(config, report);
    file_model_close(&model);
}

static void
print_text(const cli_doctor_report_t *report, const char *model)
{
    for (uint32_t i = 0; i < report->count; i++) {
        const cli_doctor_line_t *line = &report->lines[i];
        printf("%-8s %-11s %s\n", level_names[line->level], line->name, line->value);
        if (line->advice[0] != '\0') {
            printf("%20s -> %s\n", "", line->advice);
        }
    }
    switch (cli_doctor_verdict(report)) {
    case CLI_DOCTOR_OK:
        printf("\nAll is well: onepath serve %s\n", model != NULL ? model : "MODEL");
        break;
    case CLI_DOCTOR_WARNING:
        printf("\nIt can serve; see the warnings.\n");
        break;
    case CLI_DOCTOR_FAILURE:
        printf("\nIt cannot serve like this; see the failures.\n");
        break;
    }
}

static bool
print_json(const cli_doctor_report_t *report)
{
    json_t *checks = json_array();
    for (uint32_t i = 0; i < report->count; i++) {
        const cli_doctor_line_t *line = &report->lines[i];
        /* A name inside a model's file may be no UTF-8. */
        json_t *value = json_string(line->value);
        (void)json_array_append_new(checks,
                                    json_pack("{s:s, s:s, s:o, s:s}", "name", line->name, "level",
                                              level_names[line->level], "value",
                                              value != NULL ? value : json_string("(not UTF-8)"),
                                              "advice", line->advice));
    }
    json_t *object =
        json_pack("{s:s, s:I, s:o}", "verdict", level_names[cli_doctor_verdict(report)],
                  "available_bytes", (json_int_t)report->available_bytes, "checks", checks);
    bool good = object != NULL && json_dumpf(object, stdout, JSON_INDENT(2)) == 0;
    (void)fputc('\n', stdout);
    json_decref(object);
    return good;
}

int
cli_doctor(int argc, char **argv)
{
    doctor_options_t options = {.host = "127.0.0.1", .port = 8000, .root = ""};
    cli_words_t words;
    proto_status_t status = cli_options_parse(&doctor_command, argc, argv, 2, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    const char *model = words.count > 0 ? words.words[0] : NULL;
    static cli_doctor_report_t report;
    report.count = 0;
    cli_doctor_check_machine(options.root, &report);
    check_libraries(&report);
    check_port(&options, &report);
    check_run_dir(&report);
    if (model != NULL) {
        check_model(model, &report);
    }
    if (!options.json) {
        print_text(&report, model);
    } else if (!print_json(&report)) {
        return CLI_EXIT_TEMPORARY;
    }
    return (int)cli_doctor_verdict(&report); /* 0, 1 and 2, as the help says */
}
