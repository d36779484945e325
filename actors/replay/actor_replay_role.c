/* actor_replay_role.c - the list of cores that can be replayed. */
#include "actor_replay_role.h"

#include <inttypes.h>
#include <stdio.h>

#include "actor_drafter_core.h"
#include "actor_executor_core.h"
#include "actor_gateway_core.h"
#include "actor_kv_core.h"
#include "actor_scheduler_core.h"

/* ---- scheduler ------------------------------------------------------------------------------- */

static proto_status_t
scheduler_restore(proto_bytes_t state, proto_bytes_t secret, void **core_p,
                  const actor_core_ops_t **ops_p, proto_error_t *error)
{
    actor_scheduler_core_t *core = NULL;
    proto_status_t status = actor_scheduler_core_restore(state, secret, &core, error);
    if (status == STATUS_OK) {
        *core_p = core;
        *ops_p = actor_scheduler_core_ops(core);
    }
    return status;
}

static void
scheduler_destroy(void *core)
{
    actor_scheduler_core_t *scheduler = core;
    actor_scheduler_core_destroy(&scheduler);
}

static void
scheduler_describe(const void *core, char *out, size_t capacity_bytes)
{
    sched_figures_t figures;
    sched_core_figures(actor_scheduler_core_library(core), &figures);
    (void)snprintf(out, capacity_bytes,
                   "running: %" PRIu32 "\nwaiting: %" PRIu32 "\nretracted: %" PRIu32
                   "\nsteps in flight: %" PRIu32 "\nblocks free: %" PRIu32
                   "\nblocks cached: %" PRIu32 "\nblocks of group 0: %" PRIu32 "\nsteps: %" PRIu64
                   "\nfull plans: %" PRIu64 "\nplans refused: %" PRIu64 "\nstalls: %" PRIu64
                   "\nretractions: %" PRIu64 "\nlate events: %" PRIu64 "\nprompt tokens: %" PRIu64
                   "\ngenerated tokens: %" PRIu64 "\n",
                   figures.running_count, figures.waiting_count, figures.retracted_count,
                   figures.in_flight_count, figures.free_count, figures.cached_count,
                   figures.block_count, figures.steps, figures.full_plans, figures.plans_refused,
                   figures.stalls, figures.retractions, figures.late_events, figures.prompt_tokens,
                   figures.generation_tokens);
}

/* ---- gateway --------------------------------------------------------------------------------- */

static proto_status_t
gateway_restore(proto_bytes_t state, proto_bytes_t secret, void **core_p,
                const actor_core_ops_t **ops_p, proto_error_t *error)
{
    actor_gateway_core_t *core = NULL;
    proto_status_t status = actor_gateway_core_restore(state, secret, &core, error);
    if (status == STATUS_OK) {
        *core_p = core;
        *ops_p = actor_gateway_core_ops();
    }
    return status;
}

static void
gateway_destroy(void *core)
{
    actor_gateway_core_t *gateway = core;
    actor_gateway_core_destroy(&gateway);
}

static void
gateway_describe(const void *core, char *out, size_t capacity_bytes)
{
    actor_gateway_core_state_t state = actor_gateway_core_state(core);
    (void)snprintf(out, capacity_bytes,
                   "ready: %s\ndraining: %s\nopen choices: %" PRIu32 "\nsubmitted: %" PRIu64
                   "\nended: %" PRIu64 "\nlost to gaps: %" PRIu64 "\nignored inputs: %" PRIu64 "\n",
                   state.ready ? "yes" : "no", state.draining ? "yes" : "no", state.open_count,
                   state.submitted_count, state.ended_count, state.gap_count, state.ignored_count);
}

/* ---- executor -------------------------------------------------------------------------------- */

static proto_status_t
executor_restore(proto_bytes_t state, proto_bytes_t secret, void **core_p,
                 const actor_core_ops_t **ops_p, proto_error_t *error)
{
    actor_executor_core_t *core = NULL;
    proto_status_t status = actor_executor_core_restore(state, secret, &core, error);
    if (status == STATUS_OK) {
        *core_p = core;
        *ops_p = actor_executor_core_ops(core);
    }
    return status;
}

static void
executor_destroy(void *core)
{
    actor_executor_core_t *executor = core;
    actor_executor_core_destroy(&executor);
}

static void
executor_describe(const void *core, char *out, size_t capacity_bytes)
{
    proto_stats_t stats = {0};
    actor_executor_core_ops(core)->stats(core, &stats);
    (void)snprintf(out, capacity_bytes,
                   "steps: %" PRIu64 "\nprompt tokens: %" PRIu64 "\ngenerated tokens: %" PRIu64
                   "\n",
                   stats.steps, stats.prompt_tokens, stats.generation_tokens);
}

/* ---- drafter --------------------------------------------------------------------------------- */

static proto_status_t
drafter_restore(proto_bytes_t state, proto_bytes_t secret, void **core_p,
                const actor_core_ops_t **ops_p, proto_error_t *error)
{
    actor_drafter_core_t *core = NULL;
    proto_status_t status = actor_drafter_core_restore(state, secret, &core, error);
    if (status == STATUS_OK) {
        *core_p = core;
        *ops_p = actor_drafter_core_ops(core);
    }
    return status;
}

static void
drafter_destroy(void *core)
{
    actor_drafter_core_t *drafter = core;
    actor_drafter_core_destroy(&drafter);
}

static void
drafter_describe(const void *core, char *out, size_t capacity_bytes)
{
    actor_drafter_figures_t figures;
    actor_drafter_core_figures(core, &figures);
    (void)snprintf(out, capacity_bytes,
                   "open: %s\nrounds in work: %" PRIu32 "\nrounds: %" PRIu64
                   "\ncandidates: %" PRIu64 "\nrows made anew: %" PRIu64
                   "\nrounds without an answer: %" PRIu64 "\nignored inputs: %" PRIu64 "\n",
                   figures.is_open ? "yes" : "no", figures.round_count, figures.rounds,
                   figures.proposed, figures.rebuilt, figures.empty, figures.ignored);
}

/* ---- kv-transfer ----------------------------------------------------------------------------- */

static proto_status_t
kv_restore(proto_bytes_t state, proto_bytes_t secret, void **core_p, const actor_core_ops_t **ops_p,
           proto_error_t *error)
{
    actor_kv_core_t *core = NULL;
    proto_status_t status = actor_kv_core_restore(state, secret, &core, error);
    if (status == STATUS_OK) {
        *core_p = core;
        *ops_p = actor_kv_core_ops(core);
    }
    return status;
}

static void
kv_destroy(void *core)
{
    actor_kv_core_t *kv = core;
    actor_kv_core_destroy(&kv);
}

static void
kv_describe(const void *core, char *out, size_t capacity_bytes)
{
    actor_kv_figures_t figures;
    actor_kv_core_figures(core, &figures);
    (void)snprintf(out, capacity_bytes,
                   "open transfers: %" PRIu32 "\nparked messages: %" PRIu32 "\nserved: %" PRIu64
                   "\nlanded: %" PRIu64 "\nfailed: %" PRIu64 "\npieces: %" PRIu64
                   "\nbytes: %" PRIu64 "\nrefused: %" PRIu64 "\nstale: %" PRIu64 "\n",
                   figures.open_count, figures.parked_count, figures.served_count,
                   figures.landed_count, figures.failed_count, figures.piece_count,
                   figures.size_bytes, figures.refused_count, figures.stale_count);
}

/* ---- the list -------------------------------------------------------------------------------- */

#define NAMES "scheduler, gateway, executor, drafter, kv-transfer"

static const actor_replay_role_t roles[] = {
    {"scheduler", PROTO_ROLE_SCHEDULER, false, scheduler_restore, scheduler_destroy,
     scheduler_describe},
    {"gateway", PROTO_ROLE_GATEWAY, true, gateway_restore, gateway_destroy, gateway_describe},
    {"executor", PROTO_ROLE_EXECUTOR, true, executor_restore, executor_destroy, executor_describe},
    {"drafter", PROTO_ROLE_DRAFTER, false, drafter_restore, drafter_destroy, drafter_describe},
    {"kv-transfer", PROTO_ROLE_KV_TRANSFER, false, kv_restore, kv_destroy, kv_describe},
};

const actor_replay_role_t *
actor_replay_role_find(proto_role_t role)
{
    for (size_t index = 0; index < sizeof roles / sizeof roles[0]; index++) {
        if (roles[index].role == role) {
            return &roles[index];
        }
    }
    return NULL;
}

const char *
actor_replay_role_names(void)
{
    return NAMES;
}
