/* What a step costs beside the two cores: plan -> result through real scheduler and executor
 * shells with the null device, as a ratio to a bare DEALER/ROUTER round trip of 64 bytes on the
 * same kind of endpoint, taken in turns in one run.
 *
 *   bench_actor_step [--regime a|b] [--rounds N] [--quick] [--case NAME] [--calls] [--overlap]
 *                    [--device-thread] [--curve] [--json FILE]
 *
 * Regime a: both processes (and both bare ones) on one core, the load on the other: what the
 * software costs; the goals are for it.  Regime b: one core each.
 *   step       from the scheduler's core having emitted a plan to its being given the result
 *   cores      the scheduler's core on the result, the executor's core on plan and STEP_DONE
 *   transport  step minus the executor's core: sockets, codec, both shells, and the null device,
 *              which runs on the executor's own thread; --device-thread adds the hand-over to a
 *              device thread and back, as with a real device
 *   --curve    only this: the step at batch 64 over TCP with CURVE keys beside the one without
 * Exits with 1 if a goal is missed. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench_actor_step.h"

enum {
    ROUNDS_DEFAULT = 7,
    ROUNDS_MAX = 64,
    BARE_COUNT = 400,
    GENERATION = 256,
    SAMPLE_MAX = 1 << 16,
};

typedef struct {
    const char *name;
    uint32_t batch;
    bool full_plans;
    double limit; /* of transport p50 / bare p50 */
} case_t;

/* Microseconds, except where said. */
typedef struct {
    double bare_p50;
    double step_p50;
    double step_p99;
    double transport_p50;
    double scheduler_p50;
    double executor_p50;
    double out_p50;   /* of transport: the plan's way */
    double local_p50; /* of transport: to the null device and back */
    double back_p50;  /* of transport: the result's way */
    double plan_bytes;
    double ratio;     /* median over the rounds */
    double ratio_low; /* best and worst round */
    double ratio_high;
    double syscalls; /* a step, both processes */
    double switches; /* a step, both processes */
    bool is_exact;   /* syscalls come from the kernel's counter, not from a slow traced run */
    double calls[CALLER_COUNT][CALL_KINDS];
    uint64_t steps;
} figures_t;

static shared_t *shared;
static uint32_t samples[7][SAMPLE_MAX];
static bool which_calls; /* also tell the system calls apart */
static int commands[2];
static int answers[2];

uint64_t
now_ns(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void
die(const char *what)
{
    (void)fprintf(stderr, "bench_actor_step: %s\n", what);
    _exit(70);
}

static int
compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int
compare_double(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double
percentile_us(uint32_t *values, uint32_t count, double part)
{
    if (count == 0) {
        die("no step of the wanted size was seen");
    }
    qsort(values, count, sizeof *values, compare_u32);
    return (double)values[(uint32_t)((double)(count - 1) * part)] / 1000.0;
}

/* ---- one round ------------------------------------------------------------------------------- */

static double
run_bare(uint32_t count)
{
    uint32_t done = 0;
    if (write(commands[1], &count, sizeof count) != (ssize_t)sizeof count ||
        read(answers[0], &done, sizeof done) != (ssize_t)sizeof done || done != count) {
        die("the bare sockets failed");
    }
    static uint32_t sorted[BARE_MAX];
    memcpy(sorted, shared->bare_ns, count * sizeof *sorted);
    return percentile_us(sorted, count, 0.5);
}

/* Appends what the steps (first, last] of the wanted size took; returns the new sample count. */
static uint32_t
gather(const case_t *which, uint64_t first, uint64_t last, uint32_t count, double *bytes)
{
    for (uint64_t step = first + 1; step <= last && count < SAMPLE_MAX; step++) {
        const step_record_t *record = &shared->steps[step % STEP_RING];
        if (record->decode_rows != which->batch || record->extend_rows != 0 ||
            record->is_full != which->full_plans || record->result_begin_ns == 0) {
            continue;
        }
        uint64_t step_ns = record->result_begin_ns - record->plan_end_ns;
        uint64_t transport_ns = step_ns > record->executor_ns ? step_ns - record->executor_ns : 0;
        samples[0][count] = (uint32_t)step_ns;
        samples[1][count] = (uint32_t)transport_ns;
        samples[2][count] = record->scheduler_ns;
        samples[3][count] = record->executor_ns;
        samples[4][count] = (uint32_t)(record->executor_begin_ns - record->plan_end_ns);
        samples[5][count] =
            (uint32_t)(record->executor_end_ns - record->executor_begin_ns) - record->executor_ns;
        samples[6][count] = (uint32_t)(record->result_begin_ns - record->executor_end_ns);
        *bytes = record->plan_bytes;
        count++;
    }
    return count;
}

static void
run_rounds(const case_t *which, load_t *load, uint32_t rounds, figures_t *out)
{
    static uint32_t round_transport[SAMPLE_MAX];
    double ratios[ROUNDS_MAX];
    double bare[ROUNDS_MAX];
    uint32_t count = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        bare[round] = run_bare(BARE_COUNT);
        uint64_t first = atomic_load(&shared->step_last);
        load_run(load, which->batch, GENERATION);
        uint32_t before = count;
        count = gather(which, first, atomic_load(&shared->step_last), count, &out->plan_bytes);
        /* The yardstick is taken on both sides of the steps. */
        bare[round] = (bare[round] + run_bare(BARE_COUNT)) / 2;
        memcpy(round_transport, samples[1] + before, (count - before) * sizeof *round_transport);
        ratios[round] = percentile_us(round_transport, count - before, 0.5) / bare[round];
    }
    out->steps = count;
    out->step_p50 = percentile_us(samples[0], count, 0.5);
    out->step_p99 = percentile_us(samples[0], count, 0.99);
    out->transport_p50 = percentile_us(samples[1], count, 0.5);
    out->scheduler_p50 = percentile_us(samples[2], count, 0.5);
    out->executor_p50 = percentile_us(samples[3], count, 0.5);
    out->out_p50 = percentile_us(samples[4], count, 0.5);
    out->local_p50 = percentile_us(samples[5], count, 0.5);
    out->back_p50 = percentile_us(samples[6], count, 0.5);
    qsort(ratios, rounds, sizeof *ratios, compare_double);
    qsort(bare, rounds, sizeof *bare, compare_double);
    out->ratio = ratios[rounds / 2];
    out->ratio_low = ratios[0];
    out->ratio_high = ratios[rounds - 1];
    out->bare_p50 = bare[rounds / 2];
}

/* Which system calls, from a traced run. */
static void
trace_calls(const case_t *which, load_t *load, const pid_t *pids, figures_t *out)
{
    pid_t tracer = start_tracer(pids, 2, shared);
    while (!atomic_load(&shared->is_traced)) {
        (void)usleep(1000);
    }
    atomic_store(&shared->full_step_count, 0);
    load_run(load, which->batch, GENERATION);
    uint32_t counted = atomic_load(&shared->full_step_count);
    atomic_store(&shared->is_tracing, false);
    (void)waitpid(tracer, NULL, 0);
    if (counted == 0) {
        die("no traced step of the wanted size was seen");
    }
    for (uint32_t who = 0; who < CALLER_COUNT; who++) {
        for (uint32_t kind = 0; kind < CALL_KINDS; kind++) {
            out->calls[who][kind] = (double)atomic_load(&shared->calls[who][kind]) / counted;
        }
    }
    if (!out->is_exact) {
        out->syscalls = (double)atomic_load(&shared->syscall_count) / counted;
    }
}

/* The longest row of steps of the wanted size, and what was called in it. */
typedef struct {
    counters_t counters;
    const pid_t *pids;
    bool is_open;
    uint64_t first[3]; /* steps, system calls, context switches when it began */
    uint64_t best[3];  /* the same, of the longest one */
} window_t;

static void
watch_window(void *context)
{
    window_t *self = context;
    if (!atomic_load(&shared->is_window)) {
        self->is_open = false;
        return;
    }
    uint64_t at[3] = {atomic_load(&shared->full_step_count), counters_read(&self->counters),
                      context_switches(self->pids[0]) + context_switches(self->pids[1])};
    if (!self->is_open) {
        self->is_open = true;
        memcpy(self->first, at, sizeof at);
    }
    if (at[0] - self->first[0] > self->best[0]) {
        for (uint32_t i = 0; i < 3; i++) {
            self->best[i] = at[i] - self->first[i];
        }
    }
}

/* System calls and context switches a step, in a run at full speed. */
static void
count_calls(const case_t *which, load_t *load, const pid_t *pids, figures_t *out)
{
    window_t window = {.pids = pids};
    out->is_exact = counters_open(&window.counters, pids, 2);
    load_watch(load, watch_window, &window);
    load_run(load, which->batch, GENERATION);
    load_watch(load, NULL, NULL);
    counters_close(&window.counters);
    if (window.best[0] == 0) {
        die("no row of steps of the wanted size was seen");
    }
    out->syscalls = (double)window.best[1] / (double)window.best[0];
    out->switches = (double)window.best[2] / (double)window.best[0];
    if (!out->is_exact || which_calls) {
        trace_calls(which, load, pids, out);
    }
}

/* ---- a node ---------------------------------------------------------------------------------- */

static void
make_endpoints(node_t *node)
{
    (void)snprintf(node->folder, sizeof node->folder, "/tmp/onepath-bench-XXXXXX");
    if (mkdtemp(node->folder) == NULL) {
        die("cannot make a folder");
    }
    (void)snprintf(node->gateway_endpoint, sizeof node->gateway_endpoint, "ipc://%s/gateway",
                   node->folder);
    (void)snprintf(node->executor_endpoint, sizeof node->executor_endpoint, "ipc://%s/executor",
                   node->folder);
    if (node->tcp) {
        keys_make(node);
    }
    (void)snprintf(node->bare_endpoint, sizeof node->bare_endpoint, "ipc://%s/bare", node->folder);
}

static void
remove_endpoints(const node_t *node)
{
    static const char *const names[] = {"gateway", "executor", "bare"};
    char path[96];
    for (uint32_t i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", node->folder, names[i]);
        (void)unlink(path);
    }
    keys_remove(node);
    (void)rmdir(node->folder);
}

/* Every case has fresh processes: nothing of one is in the next. */
static void
run_case(const case_t *which, node_t node, uint32_t rounds, figures_t *out)
{
    node.full_plans = which->full_plans;
    make_endpoints(&node);
    memset(shared, 0, sizeof *shared);
    atomic_store(&shared->batch, which->batch);
    if (pipe(commands) != 0 || pipe(answers) != 0) {
        die("cannot make a pipe");
    }
    pid_t pids[4] = {start_scheduler(&node, shared), start_executor(&node, shared),
                     start_bare_server(&node, shared),
                     start_bare_client(&node, shared, commands[0], answers[1])};
    load_t *load = load_open(&node);
    load_wait_ready(load);
    (void)run_bare(BARE_COUNT);
    load_run(load, which->batch, GENERATION);
    run_rounds(which, load, rounds, out);
    count_calls(which, load, pids, out);
    load_close(load);
    atomic_store(&shared->stop, 2);
    for (uint32_t i = 0; i < 4; i++) {
        (void)close(i < 2 ? commands[i] : answers[i - 2]);
    }
    (void)kill(pids[3], SIGTERM); /* it waits for a command */
    for (uint32_t i = 0; i < 4; i++) {
        (void)waitpid(pids[i], NULL, 0);
    }
    remove_endpoints(&node);
}

/* ---- report ---------------------------------------------------------------------------------- */

static void
print_json(FILE *file, const case_t *which, const figures_t *f, const char *regime, bool is_first)
{
    (void)fprintf(file,
                  "%s  {\"case\": \"%s\", \"regime\": \"%s\", \"batch\": %u, \"full_plans\": %s, "
                  "\"steps\": %llu, \"plan_bytes\": %.0f,\n"
                  "   \"bare_p50_us\": %.2f, \"step_p50_us\": %.2f, \"step_p99_us\": %.2f, "
                  "\"transport_p50_us\": %.2f, \"scheduler_core_p50_us\": %.2f, "
                  "\"executor_core_p50_us\": %.2f, \"out_p50_us\": %.2f, \"local_p50_us\": %.2f, "
                  "\"back_p50_us\": %.2f,\n"
                  "   \"ratio\": %.3f, \"ratio_low\": %.3f, \"ratio_high\": %.3f, "
                  "\"ratio_limit\": %.2f, \"syscalls\": %.1f, \"context_switches\": %.1f}",
                  is_first ? "" : ",\n", which->name, regime, which->batch,
                  which->full_plans ? "true" : "false", (unsigned long long)f->steps, f->plan_bytes,
                  f->bare_p50, f->step_p50, f->step_p99, f->transport_p50, f->scheduler_p50,
                  f->executor_p50, f->out_p50, f->local_p50, f->back_p50, f->ratio, f->ratio_low,
                  f->ratio_high, which->limit, f->syscalls, f->switches);
}

static bool
print_row(const case_t *which, const figures_t *f)
{
    bool is_good = f->ratio <= which->limit && f->syscalls <= 60;
    (void)printf("%-10s %6.1f %8.1f %8.1f %9.1f %9.2f %9.2f  %5.1f %5.1f %5.1f %7.0f %6.2f "
                 "(%.2f-%.2f) <= %.1f"
                 " %7.1f %6.1f  %s\n",
                 which->name, f->bare_p50, f->step_p50, f->step_p99, f->transport_p50,
                 f->scheduler_p50, f->executor_p50, f->out_p50, f->local_p50, f->back_p50,
                 f->plan_bytes, f->ratio, f->ratio_low, f->ratio_high, which->limit, f->syscalls,
                 f->switches, is_good ? "ok" : "MISSED");
    (void)fflush(stdout);
    return is_good;
}

/* System calls a step of the traced run, by thread. */
static void
print_calls(const figures_t *f)
{
    static const char *const names[CALLER_COUNT] = {"scheduler", "scheduler's library", "executor",
                                                    "executor's library"};
    for (uint32_t who = 0; who < CALLER_COUNT; who++) {
        double sum = 0;
        for (uint32_t kind = 0; kind < CALL_KINDS; kind++) {
            sum += f->calls[who][kind];
        }
        (void)printf("    %-20s %5.1f:", names[who], sum);
        for (uint32_t kind = 0; kind < CALL_KINDS; kind++) {
            if (f->calls[who][kind] >= 0.05) {
                (void)printf(" %s %.1f", call_name(kind), f->calls[who][kind]);
            }
        }
        (void)printf("\n");
    }
    (void)fflush(stdout);
}

/* The step with encrypted links beside the plain one, taken in turns; 1 if it costs too much. */
static int
compare_curve(node_t node, uint32_t rounds)
{
    static const case_t which = {"64", 64, false, 100};
    static const double limit = 1.25;
    double ratios[ROUNDS_MAX];
    figures_t plain = {0};
    figures_t curve = {0};
    node.tcp = true;
    for (uint32_t round = 0; round < rounds; round++) {
        node.curve = false;
        run_case(&which, node, 2, &plain);
        node.curve = true;
        run_case(&which, node, 2, &curve);
        ratios[round] = curve.step_p50 / plain.step_p50;
        (void)printf("round %u: plain step %.1f us, CURVE step %.1f us, ratio %.3f\n", round,
                     plain.step_p50, curve.step_p50, ratios[round]);
        (void)fflush(stdout);
    }
    qsort(ratios, rounds, sizeof ratios[0], compare_double);
    bool is_good = ratios[rounds / 2] <= limit;
    (void)printf("CURVE / plain, batch 64 over TCP: median %.3f (%.3f-%.3f) <= %.2f  %s\n",
                 ratios[rounds / 2], ratios[0], ratios[rounds - 1], limit,
                 is_good ? "ok" : "MISSED");
    return is_good ? 0 : 1;
}

int
main(int argc, char **argv)
{
    static const case_t cases[] = {
        {"1", 1, false, 1.5},       {"32", 32, false, 1.5},       {"256", 256, false, 1.5},
        {"1024", 1024, false, 2.5}, {"256 full", 256, true, 2.0},
    };
    enum { CASES = sizeof cases / sizeof cases[0] };
    node_t node = {.scheduler_cpu = 0, .executor_cpu = 0};
    const char *regime = "a";
    const char *json = NULL;
    const char *only = NULL;
    uint32_t rounds = ROUNDS_DEFAULT;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--regime") == 0 && i + 1 < argc) {
            regime = argv[++i];
            node.executor_cpu = strcmp(regime, "b") == 0 ? 1 : 0;
        } else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
            rounds = (uint32_t)atoi(argv[++i]);
        } else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
            json = argv[++i];
        } else if (strcmp(argv[i], "--quick") == 0) {
            rounds = 3;
        } else if (strcmp(argv[i], "--case") == 0 && i + 1 < argc) {
            only = argv[++i];
        } else if (strcmp(argv[i], "--calls") == 0) {
            which_calls = true;
        } else if (strcmp(argv[i], "--overlap") == 0) {
            node.overlap = true;
        } else if (strcmp(argv[i], "--curve") == 0) {
            node.curve = true;
        } else if (strcmp(argv[i], "--device-thread") == 0) {
            node.device_thread = true;
        } else {
            (void)fprintf(
                stderr,
                "usage: bench_actor_step [--regime a|b] [--rounds N] [--quick] [--case NAME] "
                "[--calls] [--overlap] [--device-thread] [--curve] [--json FILE]\n");
            return 78;
        }
    }
    rounds = rounds < 1 ? 1 : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
    (void)signal(SIGPIPE, SIG_IGN);
    if (sysconf(_SC_NPROCESSORS_ONLN) > 1) {
        pin(1); /* the load stays off the core that is measured */
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        die("no shared memory");
    }
    if (node.curve) {
        return compare_curve(node, rounds);
    }
    static figures_t figures[CASES];
    bool is_good = true;
    (void)printf("regime %s, overlap %s, device %s, %u rounds; us, p50 unless said\n"
                 "batch        bare     step step p99 transport scheduler  executor    out local  "
                 "back  plan B "
                 " ratio (range) limit      syscalls switches\n",
                 regime, node.overlap ? "on" : "off", node.device_thread ? "thread" : "inline",
                 rounds);
    for (uint32_t i = 0; i < CASES; i++) {
        if (only != NULL && strcmp(only, cases[i].name) != 0) {
            continue;
        }
        run_case(&cases[i], node, rounds, &figures[i]);
        is_good = print_row(&cases[i], &figures[i]) && is_good;
        if (which_calls) {
            print_calls(&figures[i]);
        }
    }
    if (json != NULL) {
        FILE *file = fopen(json, "w");
        if (file == NULL) {
            die("cannot write the JSON file");
        }
        (void)fprintf(file, "[\n");
        bool is_first = true;
        for (uint32_t i = 0; i < CASES; i++) {
            if (figures[i].steps > 0) {
                print_json(file, &cases[i], &figures[i], regime, is_first);
                is_first = false;
            }
        }
        (void)fprintf(file, "\n]\n");
        (void)fclose(file);
    }
    return is_good ? 0 : 1;
}
