/* A run: a node made by the seed, faults, healing, silence, and one more request. */
#include "actor_sim.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor_sim_world.h"
#include "proto_require.h"

enum {
    STEP_COUNT_DEFAULT = 2000,
    CHECK_INTERVAL_DEFAULT = 4,
    FAULTS_SHARE_PERCENT = 75, /* of the steps; then all is healed */
    STREAM_STATES = 5,         /* of the random numbers, beside those of the world */
};

#define FAULTS_NS_MAX (600000 * ACTOR_SIM_MS) /* of virtual time */
#define QUIET_NS_MAX (60000 * ACTOR_SIM_MS)   /* from the healing to the last end */

/* Where SIGABRT of the run in work goes; one run at a time. */
static actor_sim_t *in_work;

proto_status_t
actor_sim_new(const actor_sim_options_t *options, actor_sim_t **out_p)
{
    require(options != NULL);
    require(out_p != NULL);
    actor_sim_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    if (self->options.step_count == 0) {
        self->options.step_count = STEP_COUNT_DEFAULT;
    }
    if (self->options.check_interval == 0) {
        self->options.check_interval = CHECK_INTERVAL_DEFAULT;
    }
    self->clients = calloc(ACTOR_SIM_CLIENT_COUNT_MAX, sizeof *self->clients);
    if (self->clients == NULL) {
        free(self);
        return STATUS_ERR_NO_MEMORY;
    }
    if (options->log_directory != NULL && access(options->log_directory, W_OK) != 0) {
        actor_sim_destroy(&self);
        return STATUS_ERR_IO;
    }
    *out_p = self;
    return STATUS_OK;
}

void
actor_sim_destroy(actor_sim_t **self_p)
{
    require(self_p != NULL);
    actor_sim_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    actor_sim_world_end(self);
    actor_sim_queue_fini(&self->queue);
    free(self->clients);
    free(self);
    *self_p = NULL;
}

/* ---- the node of a seed ---------------------------------------------------------------------- */

static void
choose_model(actor_sim_random_t *random, bool small_pool, actor_sim_model_t *model)
{
    model->slot_count = actor_sim_random_between(random, 1, 8);
    model->model_len_max = actor_sim_random_between(random, 24, 120);
    model->step_tokens_max = actor_sim_random_between(random, 4, 48);
    if (model->step_tokens_max < model->slot_count) {
        model->step_tokens_max = model->slot_count;
    }
    model->vocab_size = actor_sim_random_between(random, 20, 200);
    model->overlap = actor_sim_random_chance(random, 700) ? 1 : 0;
    model->page_tokens = UINT32_C(4) << actor_sim_random_between(random, 0, 1);
    model->group_count = actor_sim_random_chance(random, 400) ? 2 : 1;
    uint32_t parents = 0;
    for (uint32_t g = 0; g < model->group_count; g++) {
        model->granularities[g] = model->page_tokens >> actor_sim_random_between(random, 0, 2);
        model->packings[g] = actor_sim_random_between(random, 1, 3);
        if (g == 1 && actor_sim_random_chance(random, 700)) {
            model->kinds[g] = 1;
            model->windows[g] = actor_sim_random_between(random, 2, 20);
        }
        uint32_t columns = model->model_len_max / model->granularities[g] + 2;
        parents += (columns + model->packings[g] - 1) / model->packings[g];
    }
    uint32_t fits = small_pool ? 0 : actor_sim_random_between(random, 1, model->slot_count);
    model->parent_count = 2 + parents + fits * parents;
    if (small_pool) {
        model->parent_count += actor_sim_random_between(random, 0, parents);
    }
    for (uint32_t i = 0; i < PROTO_HASH_SIZE_BYTES; i++) {
        model->page_hash_key[i] = (uint8_t)actor_sim_random_between(random, 0, 255);
    }
}

/* Some executors have a state group, some of these a sliding one too, and most of them wide rows.
 * Drawn apart, so that the others stay what their seeds say. */
static void
add_states(actor_sim_random_t *random, bool small_pool, actor_sim_config_t *config)
{
    actor_sim_model_t *model = &config->model;
    if (!actor_sim_random_chance(random, 400)) {
        return;
    }
    uint32_t g = model->group_count++;
    if (g == 1 && actor_sim_random_chance(random, 700)) {
        model->kinds[1] = 1;
        model->granularities[1] = model->page_tokens >> actor_sim_random_between(random, 0, 2);
        model->windows[1] = actor_sim_random_between(random, 2, 20);
        model->packings[1] = actor_sim_random_between(random, 1, 3);
        model->parent_count += model->model_len_max / model->granularities[1];
        g = model->group_count++;
    }
    model->kinds[g] = 2;
    model->windows[g] = 0;
    model->granularities[g] = model->page_tokens >> actor_sim_random_between(random, 0, 2);
    model->packings[g] = actor_sim_random_between(random, 1, 3);
    model->width = actor_sim_random_chance(random, 500) ? ACTOR_SIM_WIDTH_MAX
                                                        : actor_sim_random_between(random, 1, 3);
    if (model->step_tokens_max < model->page_tokens) {
        model->step_tokens_max = model->page_tokens;
    }
    uint32_t reach = 2 * model->width + model->granularities[g] - 1;
    uint32_t states = 4 + reach / model->granularities[g];
    model->parent_count += states * (small_pool ? 1 : model->slot_count) + 3 * model->width;
}

static void
choose_config(actor_sim_random_t *random, uint32_t faults, actor_sim_config_t *config)
{
    actor_sim_world_config(config);
    choose_model(random, (faults & ACTOR_SIM_POOL) != 0, &config->model);
    config->scheduler = (actor_scheduler_core_options_t){
        .slot_count_max = config->model.slot_count,
        .queue_len_max = actor_sim_random_between(random, 2, 40),
        .store_size_bytes = 65536,
        .no_overlap = actor_sim_random_chance(random, 200),
        .no_prefix_cache = actor_sim_random_chance(random, 200),
        .full_plans = actor_sim_random_chance(random, 100),
    };
    /* Only where no request ends while a row of it runs: a NaN in such a row is not told to the
     * block's next owner, which is harmless to a device that masks (docs/debugging.md, Simulation).
     */
    uint32_t ends_nothing = ACTOR_SIM_DEVICE | ACTOR_SIM_POOL | ACTOR_SIM_REFUSE | ACTOR_SIM_BURST |
                            ACTOR_SIM_DELAY | ACTOR_SIM_DUPLICATE | ACTOR_SIM_DISK;
    config->no_timeouts = (faults & ~ends_nothing) == 0;
    config->model.reads_whole_blocks =
        config->no_timeouts && (config->model.overlap == 0 || config->scheduler.no_overlap);
    config->gateway.choice_count_max = actor_sim_random_between(random, 8, 64);
    config->gateway_count = actor_sim_random_chance(random, 300) ? 2 : 1;
    config->latency_max_us = actor_sim_random_between(random, 30, 2000);
    config->step_min_us = actor_sim_random_between(random, 100, 4000);
    config->step_max_us = config->step_min_us + actor_sim_random_between(random, 0, 4000);
    config->prompt_max = actor_sim_random_between(random, 2, config->model.model_len_max - 2);
    config->generation_max = actor_sim_random_between(random, 2, config->model.model_len_max / 2);
    config->open_count_max = 2 * config->model.slot_count + actor_sim_random_between(random, 0, 40);
    /* From a third of what the node can bear to the double of it. */
    uint32_t step_us = (config->step_min_us + config->step_max_us) / 2 + config->latency_max_us;
    uint32_t bearable_us = step_us * (config->generation_max / 2 + 3) / config->model.slot_count;
    uint32_t load_percent = actor_sim_random_between(random, 50, 300);
    config->interval_us = 1 + bearable_us / 100 * load_percent;
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* Lets the world go on until everything has ended.  False: a rule was broken. */
static bool
run_until_quiet(actor_sim_t *self, const char *rule)
{
    uint64_t end_ns = self->now_ns + QUIET_NS_MAX;
    while (!actor_sim_is_quiet(self)) {
        if (!actor_sim_world_advance(self)) {
            return false;
        }
        if (self->now_ns > end_ns) {
            actor_sim_describe_stuck(self, rule);
            return false;
        }
    }
    return true;
}

/* Everything works again: a request must be answered, in full and rightly. */
static bool
run_canary(actor_sim_t *self)
{
    actor_sim_ask_t ask = {.prompt_length = 2, .generation_max = 5, .family = 1, .variety = 77};
    uint32_t client = actor_sim_ask(self, &ask);
    if (client == ACTOR_SIM_NONE) {
        return true; /* so many requests that there is no room for one more */
    }
    if (!run_until_quiet(self, "the next request is answered")) {
        return false;
    }
    if (self->clients[client].state != ACTOR_SIM_CLIENT_COMPLETE) {
        actor_sim_fail(self, "the next request is answered", "it ended with '%s'",
                       self->clients[client].code);
    }
    return !self->result.failed;
}

static void
run(actor_sim_t *self)
{
    uint64_t faults_end = self->options.step_count * FAULTS_SHARE_PERCENT / 100;
    uint64_t faults_end_ns = self->now_ns + FAULTS_NS_MAX;
    while (self->result.step_count < faults_end && self->now_ns < faults_end_ns) {
        if (!actor_sim_world_advance(self)) {
            return;
        }
        if (self->options.request_count != 0 && self->open_count == 0 &&
            self->result.request_count >= self->options.request_count) {
            break;
        }
    }
    actor_sim_heal(self);
    while (self->result.step_count < self->options.step_count && self->now_ns < faults_end_ns) {
        if (!actor_sim_world_advance(self)) {
            return;
        }
        if (self->options.request_count != 0 && self->open_count == 0) {
            break;
        }
    }
    self->arrivals_over = true;
    if (run_until_quiet(self, "every request ends") && run_canary(self)) {
        actor_sim_check(self);
    }
}

/* What a core does that it must not: a failed `require`, or worse.  A sanitizer tells more of the
 * latter than we could. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const int caught[] = {SIGABRT};
#else
static const int caught[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE};
#endif
enum { CAUGHT_COUNT = sizeof caught / sizeof caught[0] };

static void
on_crash(int number)
{
    if (in_work != NULL) {
        siglongjmp(in_work->escape, number);
    }
}

/* Runs with the signals caught; the seed that crashes a core is to be named like any other. */
static void
run_caught(actor_sim_t *self)
{
    struct sigaction action = {.sa_handler = on_crash, .sa_flags = SA_NODEFER};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    struct sigaction before[CAUGHT_COUNT];
    struct sigaction before_size;
    (void)sigemptyset(&action.sa_mask);
    (void)sigemptyset(&ignore.sa_mask);
    for (uint32_t i = 0; i < CAUGHT_COUNT; i++) {
        (void)sigaction(caught[i], &action, &before[i]);
    }
    (void)sigaction(SIGXFSZ, &ignore, &before_size); /* a full disk is an error, not a signal */
    in_work = self;
    int number = sigsetjmp(self->escape, 1);
    if (number == 0) {
        run(self);
    } else if (number == SIGABRT) {
        actor_sim_fail(self, "no require fails", "a core aborted; its line is on stderr");
    } else {
        actor_sim_fail(self, "no core crashes", "signal %d", number);
    }
    in_work = NULL;
    for (uint32_t i = 0; i < CAUGHT_COUNT; i++) {
        (void)sigaction(caught[i], &before[i], NULL);
    }
    (void)sigaction(SIGXFSZ, &before_size, NULL);
}

void
actor_sim_run(actor_sim_t *self, uint64_t seed, actor_sim_result_t *out)
{
    require(in_work == NULL);
    actor_sim_random_t random;
    actor_sim_random_init(&random, seed, 0);
    actor_sim_config_t config;
    actor_sim_world_config(&config);
    actor_sim_world_begin(self, seed, &config);
    actor_sim_faults_choose(self);
    uint32_t faults = self->result.faults;
    choose_config(&random, faults, &config);
    actor_sim_random_init(&random, seed, STREAM_STATES);
    add_states(&random, (faults & ACTOR_SIM_POOL) != 0, &config);
    actor_sim_world_begin(self, seed, &config);
    actor_sim_faults_choose(self);

    run_caught(self);
    self->result.virtual_ns = self->now_ns;
    self->result.group_count = config.model.group_count;
    self->result.width = config.model.width > 0 ? config.model.width : 1;
    self->result.overlap = config.scheduler.no_overlap ? 0 : config.model.overlap;
    self->result.has_states = config.model.kinds[config.model.group_count - 1] == 2;
    actor_sim_count(self);
    *out = self->result;
}

void
actor_sim_print_events(const actor_sim_t *self, FILE *stream)
{
    uint64_t count =
        self->event_count < ACTOR_SIM_EVENTS_KEPT ? self->event_count : ACTOR_SIM_EVENTS_KEPT;
    for (uint64_t i = self->event_count - count; i < self->event_count; i++) {
        const actor_sim_trace_t *event = &self->events[i % ACTOR_SIM_EVENTS_KEPT];
        const char *from =
            event->from != ACTOR_SIM_NONE ? self->members[event->from].name : "itself";
        fprintf(stream, "  %12.6f %s.%llu < %s  %s", (double)event->time_ns / 1e9,
                self->members[event->member].name, (unsigned long long)event->epoch, from,
                proto_kind_name(event->kind));
        if (event->request != 0) {
            fprintf(stream, "  request %llx", (unsigned long long)event->request);
        }
        fprintf(stream, "  number %llu, %u bytes\n", (unsigned long long)event->sequence,
                event->size_bytes);
    }
}
