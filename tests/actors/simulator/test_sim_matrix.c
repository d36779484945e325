/* The fault matrix: every state of a request against everything that may happen then.
 *
 * In each cell a stream runs that has nothing to do with it, a request is brought into its state,
 * the event happens, and then: exactly one end, the one that the table says; the other stream as
 * the table says, never silent for longer than it says; every block and slot back within a lease;
 * the next request answered rightly; and the whole a second time, with the same messages. Long
 * because the table is one: what happens, and what it costs, side by side. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "actor_sim_world.h"

enum {
    SEED = 5,
    LEASE_MS = 5000, /* from the event to the last block, but for what has a bound of its own */
    STATE_MS = 2000, /* until a request is in its state */
    FILLER_COUNT = 3,
};

typedef enum {
    GATEWAY = 0, /* given to the gateway, on its way to the scheduler */
    QUEUED,      /* at the scheduler, every slot taken */
    PREFILL,     /* a part of its prompt is computed */
    DECODE,      /* three tokens are at the client */
    DONE,        /* ended for the client, its slot not yet released */
    STATE_COUNT,
} state_t;

static const char *const state_names[STATE_COUNT] = {"gateway queue", "scheduler queue", "prefill",
                                                     "decode", "done"};

/* How a request ends.  Errors and refusals by their codes: an error may come after tokens, a
 * refusal never does. */
static const struct {
    char letter;
    const char *text;
    actor_sim_client_state_t state;
    proto_finish_reason_t reason; /* NONE: any of this state */
    const char *code;
} ends[] = {
    {'A', "answer", ACTOR_SIM_CLIENT_COMPLETE, PROTO_FINISH_NONE, ""},
    {'C', "cancelled", ACTOR_SIM_CLIENT_COMPLETE, PROTO_FINISH_CANCELLED, ""},
    {'X', "cut off", ACTOR_SIM_CLIENT_BROKEN, PROTO_FINISH_NONE, ""},
    {'E', "worker_lost", ACTOR_SIM_CLIENT_ERROR, PROTO_FINISH_ERROR, "worker_lost"},
    {'N', "no_executor", ACTOR_SIM_CLIENT_ERROR, PROTO_FINISH_REFUSED, "no_executor"},
    {'D', "draining", ACTOR_SIM_CLIENT_ERROR, PROTO_FINISH_REFUSED, "draining"},
};
enum { END_COUNT = sizeof ends / sizeof ends[0] };

typedef struct {
    const char *name;
    void (*happen)(void);
    actor_sim_tamper_t tamper; /* or this, to the next message of a kind: */
    proto_kind_t kinds[STATE_COUNT];
    char ends[STATE_COUNT + 1];   /* of the request, in each state */
    char others[STATE_COUNT + 1]; /* of the stream beside it */
    uint32_t stall_ms;            /* the longest silence of that stream, if it is answered */
} event_t;

static actor_sim_t *sim;
static uint32_t victim;
static uint32_t other;

static actor_sim_client_t *
client(uint32_t index)
{
    ck_assert_uint_lt(index, sim->client_count);
    return &sim->clients[index];
}

static uint32_t
actor_of(uint32_t member)
{
    ck_assert_uint_ne(sim->members[member].actor, ACTOR_SIM_NONE);
    return sim->members[member].actor;
}

static void
advance(void)
{
    ck_assert_msg(actor_sim_world_advance(sim), "%s: %s", sim->result.rule, sim->result.detail);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void
client_leaves(void)
{
    actor_sim_client_leave(sim, victim);
}

static void
client_stops(void)
{
    actor_sim_client_stop(sim, victim, PROTO_FINISH_STOP, client(victim)->received);
}

static void
executor_dies(void)
{
    actor_sim_kill(sim, actor_of(ACTOR_SIM_MEMBER_EXECUTOR));
}

static void
scheduler_dies(void)
{
    actor_sim_kill(sim, actor_of(ACTOR_SIM_MEMBER_SCHEDULER));
}

static void
gateway_dies(void)
{
    actor_sim_kill(sim, actor_of(ACTOR_SIM_MEMBER_GATEWAY));
}

/* The successor shakes hands before anybody has noticed the death. */
static void
restart_at_once(uint32_t member)
{
    for (uint32_t peer = 0; peer < sim->member_count; peer++) {
        if (peer != member) {
            actor_sim_partition(sim, member, peer, false, true, 1000);
        }
    }
    uint32_t dead = actor_of(member);
    sim->members[member].starting = true; /* so that no other one is started */
    actor_sim_kill(sim, dead);
    for (uint32_t peer = 0; peer < sim->member_count; peer++) {
        sim->cut_until_ns[member][peer] = 0;
    }
    actor_sim_start(sim, member);
}

static void
executor_restarts(void)
{
    restart_at_once(ACTOR_SIM_MEMBER_EXECUTOR);
}

static void
scheduler_restarts(void)
{
    restart_at_once(ACTOR_SIM_MEMBER_SCHEDULER);
}

static void
executor_freezes(void)
{
    actor_sim_freeze(sim, actor_of(ACTOR_SIM_MEMBER_EXECUTOR), 500 * ACTOR_SIM_MS);
}

static void
scheduler_freezes(void)
{
    actor_sim_freeze(sim, actor_of(ACTOR_SIM_MEMBER_SCHEDULER), 500 * ACTOR_SIM_MS);
}

static void
executor_freezes_long(void)
{
    actor_sim_freeze(sim, actor_of(ACTOR_SIM_MEMBER_EXECUTOR), 3000 * ACTOR_SIM_MS);
}

static void
scheduler_freezes_long(void)
{
    actor_sim_freeze(sim, actor_of(ACTOR_SIM_MEMBER_SCHEDULER), 3000 * ACTOR_SIM_MS);
}

static void
executor_is_cut_off(void)
{
    actor_sim_partition(sim, ACTOR_SIM_MEMBER_EXECUTOR, ACTOR_SIM_MEMBER_SCHEDULER, true, true,
                        3000 * ACTOR_SIM_MS);
}

static void
gateway_is_cut_off(void)
{
    actor_sim_partition(sim, ACTOR_SIM_MEMBER_GATEWAY, ACTOR_SIM_MEMBER_SCHEDULER, true, true,
                        3000 * ACTOR_SIM_MS);
}

static void
gateway_hears_nothing(void)
{
    actor_sim_partition(sim, ACTOR_SIM_MEMBER_SCHEDULER, ACTOR_SIM_MEMBER_GATEWAY, false, true,
                        3000 * ACTOR_SIM_MS);
}

static void
device_fails(void)
{
    proto_body_t body = {
        .device_failed = {.status = STATUS_ERR_DEVICE, .detail = proto_text("simulated")}};
    actor_sim_input_own(sim, actor_of(ACTOR_SIM_MEMBER_EXECUTOR), PROTO_KIND_DEVICE_FAILED, &body);
}

/* Requests that can never run, and more than the queue holds. */
static void
others_are_refused(void)
{
    actor_sim_ask_t never = {.prompt_length = 60, .generation_max = 60};
    actor_sim_ask_t more = {.prompt_length = 8, .generation_max = 4, .priority = 5};
    uint32_t first = actor_sim_ask(sim, &never);
    for (uint32_t i = 0; i < 24; i++) {
        more.variety = i;
        (void)actor_sim_ask(sim, &more);
    }
    ck_assert_int_eq(client(first)->state, ACTOR_SIM_CLIENT_ERROR);
    ck_assert_str_eq(client(first)->code, "context_length_exceeded");
}

/* Requests that grow, more important than the others, until the cache is full. */
static void
pool_fills(void)
{
    actor_sim_ask_t ask = {.prompt_length = 8, .generation_max = 50, .priority = -5};
    for (uint32_t i = 0; i < 6; i++) {
        ask.family = 2 + i;
        (void)actor_sim_ask(sim, &ask);
    }
}

static void
clocks_jump(void)
{
    for (uint32_t i = 0; i < ACTOR_SIM_ACTOR_COUNT_MAX; i++) {
        sim->actors[i].clock_offset_ns += (i + 1) * 700 * ACTOR_SIM_MS;
    }
}

static void
gateway_drains(void)
{
    actor_sim_drain(sim, actor_of(ACTOR_SIM_MEMBER_GATEWAY), 2000 * ACTOR_SIM_MS);
}

static void
scheduler_drains(void)
{
    actor_sim_drain(sim, actor_of(ACTOR_SIM_MEMBER_SCHEDULER), 2000 * ACTOR_SIM_MS);
}

static void
executor_drains(void)
{
    actor_sim_drain(sim, actor_of(ACTOR_SIM_MEMBER_EXECUTOR), 2000 * ACTOR_SIM_MS);
}

static void
scheduler_ends_now(void)
{
    actor_sim_drain(sim, actor_of(ACTOR_SIM_MEMBER_SCHEDULER), 1000);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* clang-format off */
#define EVENT(text, function) text, function, ACTOR_SIM_TAMPER_NONE, {PROTO_KIND_NONE}
#define TO_SCHEDULER(text, how) "to the scheduler, a message " text, NULL, how, \
    {PROTO_KIND_SUBMIT, PROTO_KIND_STEP_RESULT, PROTO_KIND_STEP_RESULT, PROTO_KIND_STEP_RESULT, \
     PROTO_KIND_STEP_RESULT}
#define TO_EXECUTOR(text, how) "to the executor, a message " text, NULL, how, \
    {PROTO_KIND_ADMIT, PROTO_KIND_PLAN, PROTO_KIND_PLAN, PROTO_KIND_PLAN, PROTO_KIND_PLAN}
#define TO_GATEWAY(text, how) "to the gateway, a message " text, NULL, how, \
    {PROTO_KIND_TOKENS, PROTO_KIND_TOKENS, PROTO_KIND_TOKENS, PROTO_KIND_TOKENS, \
     PROTO_KIND_FINISHED}
static const event_t events[] = {
    /* How the request ends in each state (gateway, queued, prefill, decode, done), how the stream
     * beside it ends, and that one's longest silence. */
    {EVENT("the client leaves", client_leaves), "CCCCA", "AAAAA", 20},
    {EVENT("a stop string matches", client_stops), "AAAAA", "AAAAA", 20},
    {EVENT("the executor dies", executor_dies), "AAAAA", "AAAAA", 300},
    {EVENT("the scheduler dies", scheduler_dies), "AAAAA", "AAAAA", 1000},
    {EVENT("the gateway dies", gateway_dies), "XXXXA", "XXXXX", 0},
    {EVENT("the executor is replaced, unnoticed", executor_restarts), "AAAAA", "AAAAA", 300},
    {EVENT("the scheduler is replaced, unnoticed", scheduler_restarts), "AAAAA", "AAAAA", 1600},
    {EVENT("the executor freezes for 0.5 s", executor_freezes), "AAAAA", "AAAAA", 550},
    {EVENT("the scheduler freezes for 0.5 s", scheduler_freezes), "AAAAA", "AAAAA", 550},
    {EVENT("the executor freezes for 3 s", executor_freezes_long), "AAAAA", "AAAAA", 3300},
    {EVENT("the scheduler freezes for 3 s", scheduler_freezes_long), "AAAAA", "AAAAA", 3300},
    {EVENT("executor and scheduler are cut apart for 3 s", executor_is_cut_off), "AAAAA", "AAAAA", 3500},
    {EVENT("gateway and scheduler are cut apart for 3 s", gateway_is_cut_off), "AAAAA", "AAAAA", 3300},
    {EVENT("the gateway hears nothing for 3 s", gateway_hears_nothing), "AAAAA", "AAAAA", 3300},
    {EVENT("the device fails", device_fails), "AAAAA", "AAAAA", 300},
    {EVENT("others are refused, the queue is full", others_are_refused), "AAAAA", "AAAAA", 20},
    {EVENT("the cache is full", pool_fills), "AAAAA", "AAAAA", 100},
    {EVENT("the clocks jump by seconds", clocks_jump), "AAAAA", "AAAAA", 20},
    {EVENT("SIGTERM to the gateway", gateway_drains), "AAAAA", "AAAAA", 20},
    {EVENT("SIGTERM to the scheduler", scheduler_drains), "DAAAA", "AAAAA", 20},
    {EVENT("SIGTERM to the executor", executor_drains), "AAAAA", "AAAAA", 20},
    {EVENT("SIGTERM to the scheduler, no grace", scheduler_ends_now), "AAAAA", "AAAAA", 1000},
    {TO_SCHEDULER("is lost", ACTOR_SIM_TAMPER_LOSE), "AAAAA", "AAAAA", 800},
    {TO_SCHEDULER("comes twice", ACTOR_SIM_TAMPER_DOUBLE), "AAAAA", "AAAAA", 20},
    {TO_SCHEDULER("comes late", ACTOR_SIM_TAMPER_LATE), "AAAAA", "AAAAA", 800},
    {TO_SCHEDULER("comes early", ACTOR_SIM_TAMPER_EARLY), "AAAAA", "AAAAA", 800},
    {TO_SCHEDULER("is corrupt", ACTOR_SIM_TAMPER_CORRUPT), "AAAAA", "AAAAA", 800},
    {TO_EXECUTOR("is lost", ACTOR_SIM_TAMPER_LOSE), "AAAAA", "AAAAA", 800},
    {TO_EXECUTOR("comes twice", ACTOR_SIM_TAMPER_DOUBLE), "AAAAA", "AAAAA", 20},
    {TO_EXECUTOR("comes late", ACTOR_SIM_TAMPER_LATE), "AAAAA", "AAAAA", 800},
    {TO_EXECUTOR("comes early", ACTOR_SIM_TAMPER_EARLY), "AAAAA", "AAAAA", 800},
    {TO_EXECUTOR("is corrupt", ACTOR_SIM_TAMPER_CORRUPT), "AAAAA", "AAAAA", 800},
    {"to the executor, a plan breaks a rule", NULL, ACTOR_SIM_TAMPER_REFUSE,
     {PROTO_KIND_PLAN, PROTO_KIND_PLAN, PROTO_KIND_PLAN, PROTO_KIND_PLAN, PROTO_KIND_PLAN},
     "AAAAA", "AAAAA", 50},
    {TO_GATEWAY("is lost", ACTOR_SIM_TAMPER_LOSE), "AAAAA", "AAAAA", 800},
    {TO_GATEWAY("comes twice", ACTOR_SIM_TAMPER_DOUBLE), "AAAAA", "AAAAA", 20},
    {TO_GATEWAY("comes late", ACTOR_SIM_TAMPER_LATE), "AAAAA", "AAAAA", 800},
    {TO_GATEWAY("comes early", ACTOR_SIM_TAMPER_EARLY), "AAAAA", "AAAAA", 800},
    {TO_GATEWAY("is corrupt", ACTOR_SIM_TAMPER_CORRUPT), "AAAAA", "AAAAA", 800},
};
/* clang-format on */
enum { EVENT_COUNT = sizeof events / sizeof events[0] };

/* ---- a cell ---------------------------------------------------------------------------------- */

/* The scheduler's own word of where the request is. */
static bool
victim_is(sched_state_t state)
{
    const actor_sim_actor_t *scheduler = actor_sim_member_actor(sim, ACTOR_SIM_MEMBER_SCHEDULER);
    const sched_core_t *library = actor_scheduler_core_library(scheduler->core);
    for (uint32_t peer = 1; peer < ACTOR_SIM_PEER_COUNT_MAX; peer++) {
        if (scheduler->peer_members[peer] != ACTOR_SIM_MEMBER_GATEWAY) {
            continue;
        }
        sched_why_t why;
        uint32_t owner = scheduler->peer_incarnations[peer] << 8 | peer;
        if (sched_core_why(library, scheduler->now_ns, owner, client(victim)->request, &why) ==
            STATUS_OK) {
            return why.state == state;
        }
    }
    return false;
}

static bool
is_in(state_t state)
{
    switch (state) {
    case GATEWAY:
        return client(victim)->request != 0;
    case QUEUED:
        return victim_is(SCHED_STATE_SUBMITTED);
    case PREFILL:
        return victim_is(SCHED_STATE_PREFILLING);
    case DECODE:
        return client(victim)->received >= 3 && victim_is(SCHED_STATE_DECODING);
    case DONE:
        return client(victim)->state == ACTOR_SIM_CLIENT_COMPLETE;
    case STATE_COUNT:
        break;
    }
    return false;
}

/* '?' for an end that no row of the table names. */
static char
end_of(const actor_sim_client_t *self)
{
    char letter = '?';
    for (uint32_t i = 0; i < END_COUNT; i++) {
        bool same = ends[i].state == self->state && strcmp(ends[i].code, self->code) == 0 &&
                    (ends[i].reason == PROTO_FINISH_NONE || ends[i].reason == self->reason);
        letter = same ? ends[i].letter : letter;
    }
    return letter;
}

static const char *
text_of(char letter)
{
    for (uint32_t i = 0; i < END_COUNT; i++) {
        if (ends[i].letter == letter) {
            return ends[i].text;
        }
    }
    return "?";
}

static void
begin_world(const event_t *event)
{
    actor_sim_config_t config;
    actor_sim_world_config(&config);
    if (event->happen == pool_fills) {
        config.model.parent_count = 30; /* room for two when they have grown */
    }
    actor_sim_world_begin(sim, SEED, &config);
    uint64_t until_ns = sim->now_ns + STATE_MS * ACTOR_SIM_MS;
    while (!actor_sim_is_quiet(sim)) {
        advance();
        ck_assert_uint_lt(sim->now_ns, until_ns);
    }
    /* From here on nothing may go wrong but what the cell does. */
    while (sim->now_ns <= sim->harm_until_ns) {
        advance();
    }
    actor_sim_ask_t ask = {.prompt_length = 4, .generation_max = 50, .family = 9, .priority = -9};
    other = actor_sim_ask(sim, &ask);
    while (client(other)->received < 2) {
        advance();
    }
}

static void
bring_into(state_t state, const event_t *event)
{
    if (state == QUEUED) {
        actor_sim_ask_t filler = {.prompt_length = 4, .generation_max = 30, .priority = -1};
        for (uint32_t i = 0; i < FILLER_COUNT; i++) {
            filler.family = 10 + i;
            (void)actor_sim_ask(sim, &filler);
        }
        while (client(other + FILLER_COUNT)->received == 0) {
            advance();
        }
    }
    bool at_submit = state == GATEWAY || state == DONE;
    if (event->tamper == ACTOR_SIM_TAMPER_EARLY) {
        /* Long ways, so that there is something to be overtaken. */
        sim->config.latency_min_us = 4000;
        sim->config.latency_max_us = 4500;
    }
    if (event->tamper != ACTOR_SIM_TAMPER_NONE && state == GATEWAY) {
        actor_sim_ask_t before = {.prompt_length = 4, .generation_max = 4, .family = 4};
        (void)actor_sim_ask(sim, &before);
        sim->tamper = event->tamper;
        sim->tamper_kind = event->kinds[state];
    }
    actor_sim_ask_t ask = {.prompt_length = at_submit ? 8 : 30, .generation_max = 12, .family = 3};
    victim = actor_sim_ask(sim, &ask);
    uint64_t until_ns = sim->now_ns + STATE_MS * ACTOR_SIM_MS;
    while (!is_in(state)) {
        if (state == DONE && event->kinds[state] == PROTO_KIND_FINISHED &&
            client(victim)->received == 11 && sim->tamper_count == 0) {
            sim->tamper = event->tamper; /* its last messages */
            sim->tamper_kind = event->kinds[state];
        }
        advance();
        ck_assert_msg(sim->now_ns < until_ns, "not in the state within %d ms", STATE_MS);
    }
}

typedef struct {
    char end;
    char other;
    uint64_t stall_ms;
    uint64_t quiet_ms;
    uint64_t digest;
} cell_t;

static cell_t
run_cell(const event_t *event, state_t state)
{
    begin_world(event);
    actor_sim_harm(sim, UINT64_MAX, true); /* the table says what may fail */
    bring_into(state, event);
    uint64_t event_ns = sim->now_ns;
    if (event->happen != NULL) {
        event->happen();
    } else if (state != GATEWAY && event->kinds[state] != PROTO_KIND_FINISHED) {
        sim->tamper = event->tamper;
        sim->tamper_kind = event->kinds[state];
    }
    uint64_t until_ns = event_ns + 30000 * ACTOR_SIM_MS;
    while (!actor_sim_is_quiet(sim)) {
        advance();
        ck_assert_msg(sim->now_ns < until_ns, "%s, %s: not quiet after 30 s", event->name,
                      state_names[state]);
    }
    ck_assert_int_eq(sim->tamper, ACTOR_SIM_TAMPER_NONE);
    actor_sim_count(sim);
    if (event->happen == pool_fills) {
        ck_assert_uint_gt(sim->result.retraction_count, 0);
    } else if (event->tamper == ACTOR_SIM_TAMPER_REFUSE) {
        ck_assert_uint_eq(sim->result.refused_plan_count, 1);
    }
    cell_t cell = {.end = end_of(client(victim)),
                   .other = end_of(client(other)),
                   .stall_ms = client(other)->longest_gap_ns / ACTOR_SIM_MS,
                   .quiet_ms = (sim->now_ns - event_ns) / ACTOR_SIM_MS};
    /* The next one, with the same prompt: its answer is compared with the right one. */
    actor_sim_ask_t ask = {.prompt_length = 30, .generation_max = 12, .family = 3};
    uint32_t next = actor_sim_ask(sim, &ask);
    ck_assert_uint_ne(next, ACTOR_SIM_NONE);
    while (!actor_sim_is_quiet(sim)) {
        advance();
        ck_assert_uint_lt(sim->now_ns, until_ns + 10000 * ACTOR_SIM_MS);
    }
    ck_assert_msg(end_of(client(next)) == 'A', "%s, %s: the next request ended with %s",
                  event->name, state_names[state], client(next)->code);
    actor_sim_check(sim);
    ck_assert(!sim->result.failed);
    cell.digest = sim->result.digest;
    return cell;
}

START_TEST(every_state_meets_every_event)
{
    actor_sim_options_t options = {.check_interval = 1};
    ck_assert_int_eq(actor_sim_new(&options, &sim), STATUS_OK);
    uint32_t wrong = 0;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    printf("| event | gateway queue | scheduler queue | prefill | decode | done "
           "| another stream | its longest silence |\n");
    printf("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (uint32_t e = 0; e < EVENT_COUNT; e++) {
        const event_t *event = &events[e];
        uint64_t stall_ms = 0;
        printf("| %s |", event->name);
        char others[STATE_COUNT + 1] = "";
        for (uint32_t s = 0; s < STATE_COUNT; s++) {
            state_t state = (state_t)s;
            cell_t cell = run_cell(event, state);
            cell_t again = run_cell(event, state);
            bool stalls = cell.other == 'A' && cell.stall_ms > event->stall_ms;
            bool right = cell.end == event->ends[s] && cell.other == event->others[s] &&
                         cell.quiet_ms <= LEASE_MS && !stalls && cell.digest == again.digest;
            printf(" %s%s |", text_of(cell.end), right ? "" : " (WRONG)");
            if (!right) {
                wrong++;
                fprintf(stderr,
                        "%s, %s: ended %c (%s), not %c; the other stream %c, not %c, silent for "
                        "%llu ms; quiet after %llu ms; repeats: %d\n",
                        event->name, state_names[s], cell.end, client(victim)->code, event->ends[s],
                        cell.other, event->others[s], (unsigned long long)cell.stall_ms,
                        (unsigned long long)cell.quiet_ms, cell.digest == again.digest);
            }
            others[s] = cell.other;
            bool counts = cell.other == 'A' && cell.stall_ms > stall_ms;
            stall_ms = counts ? cell.stall_ms : stall_ms;
        }
        bool same = strspn(others, (char[]){others[0], '\0'}) == STATE_COUNT;
        printf(" %s%s%s | %llu ms |\n", text_of(others[0]), same ? "" : ", then ",
               same ? "" : text_of(others[1]), (unsigned long long)stall_ms);
    }
    ck_assert_uint_eq(wrong, 0);
    actor_sim_destroy(&sim);
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("sim");
    TCase *matrix = tcase_create("matrix");
    tcase_set_timeout(matrix, 230);
    tcase_add_test(matrix, every_state_meets_every_event);
    suite_add_tcase(suite, matrix);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
