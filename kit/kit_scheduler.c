#include "kit_scheduler.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

#include "actor_exit.h"
#include "actor_log.h"
#include "actor_shell.h"
#include "kit_record.h"
#include "proto_clock.h"
#include "proto_require.h"

static const uint64_t LINGER_NS = 500000000u;
static const uint64_t HEARTBEAT_MIN_NS = 5000000u;
static const uint64_t HEARTBEAT_MAX_NS = 10000000000u;

/* ---- signals, unless the program has its own ------------------------------------------------- */

static atomic_int stop_asked;

static void
on_signal(int number)
{
    (void)number;
    int before = atomic_load(&stop_asked);
    atomic_store(&stop_asked, before == 0 ? 1 : 2);
}

static void
install_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
    action.sa_handler = SIG_IGN;
    (void)sigaction(SIGPIPE, &action, NULL);
}

/* ---- running --------------------------------------------------------------------------------- */

/* What a core sends to its own side is for the log: a NAK says what is wrong with a peer. */
static void
on_local(void *context, const actor_emission_t *emission)
{
    (void)context;
    proto_body_t body;
    if (emission->kind == PROTO_KIND_NAK &&
        proto_body_decode(emission->kind, emission->body, emission->blob, &body, NULL) ==
            STATUS_OK) {
        actor_log(ACTOR_LOG_WARN, "scheduler.peer", emission->request, NULL, "%.*s",
                  (int)body.nak.detail.size_bytes, body.nak.detail.data);
    }
}

static bool
options_are_usable(const kit_scheduler_options_t *options)
{
    const actor_core_ops_t *ops = options->ops;
    if (options->endpoint == NULL) {
        actor_log(ACTOR_LOG_ERROR, "scheduler.config", 0, NULL,
                  "no endpoint to bind: give ipc:///PATH or tcp://127.0.0.1:PORT");
        return false;
    }
    if (ops == NULL || ops->name == NULL || ops->step == NULL || ops->outbox_size_bytes == 0 ||
        ops->outbox_count_max == 0 || ops->role != PROTO_ROLE_SCHEDULER) {
        actor_log(ACTOR_LOG_ERROR, "scheduler.config", 0, NULL,
                  "the core's ops lack name, step or the bounds of the outbox, or its role is not "
                  "PROTO_ROLE_SCHEDULER");
        return false;
    }
    if (options->heartbeat_ns != 0 &&
        (options->heartbeat_ns < HEARTBEAT_MIN_NS || options->heartbeat_ns > HEARTBEAT_MAX_NS)) {
        actor_log(ACTOR_LOG_ERROR, "scheduler.config", 0, NULL,
                  "a heartbeat of %llu ns; it takes 5 ms to 10 s",
                  (unsigned long long)options->heartbeat_ns);
        return false;
    }
    return true;
}

static proto_status_t
run_shell(const kit_scheduler_options_t *options, const char *name, uint64_t epoch,
          const actor_core_ops_t *ops, void *core)
{
    actor_link_options_t link = {.peer_role = PROTO_ROLE_NONE,
                                 .endpoint = options->endpoint,
                                 .bind = true};
    actor_shell_options_t shell_options = {
        .name = name,
        .epoch = epoch,
        .ops = ops,
        .core = core,
        .links = &link,
        .link_count = 1,
        .ring_fd = -1,
        .heartbeat_ns = options->heartbeat_ns,
        .local = on_local,
        .allow_remote = options->allow_remote,
        .stop = options->stop != NULL ? options->stop : &stop_asked,
    };
    actor_shell_t *shell = NULL;
    proto_status_t status = actor_shell_new(&shell_options, &shell);
    if (status != STATUS_OK) {
        return status;
    }
    actor_log(ACTOR_LOG_INFO, "scheduler.listening", 0, NULL, "listening on %s",
              actor_shell_endpoint(shell, 0));
    status = actor_shell_run(shell);
    actor_shell_destroy(&shell, LINGER_NS);
    return status;
}

int
kit_scheduler_run(const kit_scheduler_options_t *options)
{
    require(options != NULL);
    const char *name = options->name != NULL ? options->name : "external";
    uint64_t epoch =
        options->epoch != 0 ? options->epoch : proto_clock_realtime_ns(proto_clock_system());
    actor_log_options_t log = {.actor = name,
                               .level_min = options->quiet ? ACTOR_LOG_WARN : ACTOR_LOG_INFO};
    actor_log_configure(&log);
    if (!options_are_usable(options)) {
        return ACTOR_EXIT_CONFIG;
    }
    if (options->stop == NULL) {
        install_signals();
    }
    if (options->record_dir == NULL) {
        return actor_exit_code(run_shell(options, name, epoch, options->ops, options->core));
    }
    kit_record_options_t record_options = {.directory = options->record_dir,
                                           .name = name,
                                           .epoch = epoch,
                                           .ops = options->ops,
                                           .core = options->core};
    if (mkdir(options->record_dir, 0700) != 0 && errno != EEXIST) {
        actor_log(ACTOR_LOG_ERROR, "scheduler.config", 0, NULL,
                  "cannot make the log folder '%s': %s; choose another one", options->record_dir,
                  strerror(errno));
        return ACTOR_EXIT_CONFIG;
    }
    kit_record_t *record = NULL;
    proto_status_t status = kit_record_new(&record_options, &record);
    if (status != STATUS_OK) {
        actor_log(ACTOR_LOG_ERROR, "scheduler.config", 0, NULL,
                  "cannot write a log of '%s' into the folder '%s': %s", name, options->record_dir,
                  strerror(errno));
        return status == STATUS_ERR_NO_MEMORY ? ACTOR_EXIT_TEMPORARY : ACTOR_EXIT_CONFIG;
    }
    status = run_shell(options, name, epoch, kit_record_ops(record), record);
    kit_record_destroy(&record);
    return actor_exit_code(status);
}
