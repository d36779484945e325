/* `onepath sim`: the shipped cores on a simulated bus, clock and device, from one seed. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "actor_sim.h"
#include "cli_node.h"

typedef struct {
    int64_t seed;
    uint32_t seeds;
    uint32_t steps;
    uint32_t requests;
    uint32_t check_interval;
    const char *faults;
    const char *log;
    bool every_fault;
    bool trace;
    bool bench;
} sim_options_t;

static const cli_option_t sim_cli_options[] = {
    {"seed", CLI_OPTION_I64, offsetof(sim_options_t, seed), 0, INT64_MAX, "N", "first seed (1)",
     false},
    {"seeds", CLI_OPTION_U32, offsetof(sim_options_t, seeds), 1, UINT32_MAX, "K",
     "how many, one after the other (1)", false},
    {"steps", CLI_OPTION_U32, offsetof(sim_options_t, steps), 1, UINT32_MAX, "M",
     "inputs given to cores before everything comes to its end (2000)", false},
    {"requests", CLI_OPTION_U32, offsetof(sim_options_t, requests), 1, UINT32_MAX, "R",
     "requests at most (as many as come)", false},
    {"faults", CLI_OPTION_TEXT, offsetof(sim_options_t, faults), 0, 0, "LIST",
     "what may go wrong, with commas: all, none, -NAME takes one away (all)", false},
    {"every-fault", CLI_OPTION_FLAG, offsetof(sim_options_t, every_fault), 0, 0, NULL,
     "a seed gets all of these, not some", false},
    {"trace", CLI_OPTION_FLAG, offsetof(sim_options_t, trace), 0, 0, NULL,
     "print every delivered message", false},
    {"log", CLI_OPTION_TEXT, offsetof(sim_options_t, log), 0, 0, "DIR",
     "write what each actor was given and answered, for `onepath log`; one seed only", false},
    {"check-interval", CLI_OPTION_U32, offsetof(sim_options_t, check_interval), 1, UINT32_MAX, "N",
     "inputs between two walks over all invariants (4)", false},
    {"bench", CLI_OPTION_FLAG, offsetof(sim_options_t, bench), 0, 0, NULL,
     "say how many messages a second one core simulates", false},
};

static const cli_command_t sim_command = {
    .name = "sim",
    .usage = "sim [OPTIONS]",
    .text =
        "Gateways, scheduler and executor as they ship, in one thread: bus, clock, device and\n"
        "clients are simulated, and one seed decides everything.  First faults, then everything\n"
        "is healed and every request must end.  Every token is compared with the right one.\n"
        "Faults: delay loss duplicate reorder corrupt stale partition crash zombie freeze slow\n"
        "device disk abort burst pool refuse clock drain.\n"
        "Exit codes: 0; 1 if a rule was broken (the command that repeats it is printed);\n"
        "75 if the log cannot be written; 78 for a wrong option.",
    .examples = "  onepath sim --seed 7 --steps 2000\n"
                "  onepath sim --seed 1 --seeds 2000\n"
                "  onepath sim --seed 7 --faults crash,loss --trace\n"
                "  onepath sim --seed 7 --log ./simlog && onepath log ls ./simlog",
    .options = sim_cli_options,
    .option_count = sizeof sim_cli_options / sizeof sim_cli_options[0],
};

static double
seconds(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void
print_failure(const sim_options_t *options, const actor_sim_t *sim,
              const actor_sim_result_t *result)
{
    char faults[256];
    (void)actor_sim_faults_print(result->faults, faults, sizeof faults);
    printf("seed %" PRId64 ", input %" PRIu64 ", %.6f s: broken rule: %s\n  %s\n  faults: %s\n",
           (int64_t)result->seed, result->step_count, (double)result->virtual_ns / 1e9,
           result->rule, result->detail, faults);
    printf("the last inputs:\n");
    actor_sim_print_events(sim, stdout);
    printf("again: onepath sim --seed %" PRId64 " --steps %u --faults %s --check-interval %u",
           (int64_t)result->seed, options->steps, options->faults, options->check_interval);
    if (options->requests != 0) {
        printf(" --requests %u", options->requests);
    }
    printf("%s --trace\n", options->every_fault ? " --every-fault" : "");
}

static void
add(actor_sim_result_t *sum, const actor_sim_result_t *one)
{
    sum->step_count += one->step_count;
    sum->virtual_ns += one->virtual_ns;
    sum->request_count += one->request_count;
    sum->complete_count += one->complete_count;
    sum->error_count += one->error_count;
    sum->broken_count += one->broken_count;
    sum->token_count += one->token_count;
    sum->retraction_count += one->retraction_count;
    sum->refused_plan_count += one->refused_plan_count;
    sum->restart_count += one->restart_count;
    sum->fault_count += one->fault_count;
    sum->resumed_count += one->resumed_count;
}

static void
print_sum(const sim_options_t *options, const actor_sim_result_t *sum, double processor,
          double elapsed)
{
    printf("%u seed%s, %" PRIu64 " inputs, %.0f s of simulated time, %" PRIu64 " faults, %" PRIu64
           " restarts\n",
           options->seeds, options->seeds == 1 ? "" : "s", sum->step_count,
           (double)sum->virtual_ns / 1e9, sum->fault_count, sum->restart_count);
    printf("%" PRIu64 " requests: %" PRIu64 " complete (%" PRIu64
           " although an actor was replaced), %" PRIu64 " errors and refusals, %" PRIu64
           " cut off with their gateway\n",
           sum->request_count, sum->complete_count, sum->resumed_count, sum->error_count,
           sum->broken_count);
    printf("%" PRIu64 " tokens, all right; %" PRIu64 " retractions, %" PRIu64 " plans refused\n",
           sum->token_count, sum->retraction_count, sum->refused_plan_count);
    if (options->seeds == 1) {
        printf("digest %016" PRIx64 "\n", sum->digest);
    }
    if (options->bench) {
        printf("%.0f messages/s of one core (%.2f s of processor time, %.2f s passed)\n",
               (double)sum->step_count / processor, processor, elapsed);
    }
}

static int
run(const sim_options_t *options, actor_sim_t *sim)
{
    actor_sim_result_t sum = {.failed = false};
    double begin = seconds(CLOCK_MONOTONIC);
    double begin_processor = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (uint32_t i = 0; i < options->seeds; i++) {
        actor_sim_result_t result;
        actor_sim_run(sim, (uint64_t)options->seed + i, &result);
        if (result.failed) {
            print_failure(options, sim, &result);
            return CLI_EXIT_FOUND;
        }
        sum.digest = result.digest;
        add(&sum, &result);
    }
    print_sum(options, &sum, seconds(CLOCK_PROCESS_CPUTIME_ID) - begin_processor,
              seconds(CLOCK_MONOTONIC) - begin);
    return CLI_EXIT_OK;
}

/* Makes the folder for the log unless it is there. */
static int
make_folder(const char *path)
{
    struct stat info;
    int error = mkdir(path, 0700) == 0 || errno == EEXIST ? 0 : errno;
    if (error == 0 && (stat(path, &info) != 0 || access(path, W_OK) != 0)) {
        error = errno;
    } else if (error == 0 && !S_ISDIR(info.st_mode)) {
        error = ENOTDIR;
    }
    if (error != 0) {
        fprintf(stderr, "onepath sim: --log: %s: %s\n", path, strerror(error));
        return CLI_EXIT_TEMPORARY;
    }
    return CLI_EXIT_OK;
}

int
cli_sim(int argc, char **argv)
{
    sim_options_t options = {
        .seed = 1, .seeds = 1, .steps = 2000, .check_interval = 4, .faults = "all"};
    cli_words_t words;
    proto_status_t status = cli_options_parse(&sim_command, argc, argv, 2, &options, &words);
    if (status != STATUS_OK) {
        return status == STATUS_END ? CLI_EXIT_OK : CLI_EXIT_CONFIG;
    }
    actor_sim_options_t sim_options = {.step_count = options.steps,
                                       .every_fault = options.every_fault,
                                       .request_count = options.requests,
                                       .check_interval = options.check_interval,
                                       .log_directory = options.log,
                                       .trace = options.trace ? stdout : NULL};
    const char *word = NULL;
    if (actor_sim_faults_parse(options.faults, &sim_options.faults, &word) != STATUS_OK) {
        fprintf(stderr, "onepath sim: --faults: no such fault at '%s'; --help lists them\n", word);
        return CLI_EXIT_CONFIG;
    }
    if (options.log != NULL && options.seeds != 1) {
        fprintf(stderr, "onepath sim: --log takes one seed, not %u: leave --seeds away\n",
                options.seeds);
        return CLI_EXIT_CONFIG;
    }
    if (options.log != NULL && make_folder(options.log) != CLI_EXIT_OK) {
        return CLI_EXIT_TEMPORARY;
    }
    actor_sim_t *sim = NULL;
    status = actor_sim_new(&sim_options, &sim);
    if (status != STATUS_OK) {
        fprintf(stderr, "onepath sim: %s: %s\n",
                status == STATUS_ERR_IO ? options.log : "cannot start", proto_status_text(status));
        return CLI_EXIT_TEMPORARY;
    }
    int code = run(&options, sim);
    actor_sim_destroy(&sim);
    return code;
}
