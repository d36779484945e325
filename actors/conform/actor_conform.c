#include "actor_conform.h"

#include <string.h>

#include "actor_conform_scenes.h"
#include "actor_log.h"
#include "proto_clock.h"
#include "proto_require.h"

enum {
    ABORTED_MAX = 3, /* scenes that could not go on; then the run ends */
    AGAIN_MAX = 2,   /* times that a scene is played again */
};

/* A peer that does nothing for so long may be given up: its links are lost by its own fault. */
static const uint64_t AWAY_MAX_NS = 400000000u;

typedef struct {
    const char *name;
    const char *text;
    void (*play)(conform_stage_t *stage);
} scene_t;

static const scene_t scenes[] = {
#define CONFORM_SCENE_ROW(name, text) {#name, text, actor_conform_scene_##name},
    ACTOR_CONFORM_SCENE_LIST(CONFORM_SCENE_ROW)
#undef CONFORM_SCENE_ROW
};

enum { SCENE_COUNT = sizeof scenes / sizeof scenes[0] };

const char *
actor_conform_scene_name(uint32_t index)
{
    return index < SCENE_COUNT ? scenes[index].name : NULL;
}

const char *
actor_conform_scene_text(uint32_t index)
{
    return index < SCENE_COUNT ? scenes[index].text : NULL;
}

static void
play(conform_stage_t *stage, const scene_t *scene)
{
    const actor_conform_options_t *options = stage->options;
    (void)snprintf(stage->report->scene, sizeof stage->report->scene, "%s", scene->name);
    if (options->progress != NULL) {
        options->progress(options->context, scene->name);
    }
    static conform_report_t before;
    before = *stage->report;
    for (uint32_t again = 0;; again++) {
        stage->is_aborted = false;
        stage->away_ns = 0;
        stage->polled_ns = 0;
        stage->book.first = stage->book.count;
        stage->book.open_count = 0;
        scene->play(stage);
        actor_conform_close_all(stage);
        bool is_ours = stage->away_ns > AWAY_MAX_NS && !stage->is_lost &&
                       stage->report->failed_count > before.failed_count;
        if (!is_ours || again == AGAIN_MAX) {
            break;
        }
        /* This process stood still: what was broken may be broken by that. */
        *stage->report = before;
        actor_log(ACTOR_LOG_WARN, "conform.again", 0,
                  ACTOR_LOG_FIELDS(actor_log_u64("away_ms", stage->away_ns / 1000000)),
                  "this process stood still; scene %s is played again", scene->name);
    }
    stage->aborted_count += stage->is_aborted ? 1 : 0;
}

static bool
is_over(const conform_stage_t *stage)
{
    conform_report_t *report = stage->report;
    if (stage->is_lost) {
        return true;
    }
    if (stage->options->fail_fast && report->failed_count > 0) {
        (void)snprintf(report->ended, sizeof report->ended,
                       "a rule was broken in scene %s and --fail-fast was given", report->scene);
        return true;
    }
    if (stage->aborted_count >= ABORTED_MAX) {
        (void)snprintf(report->ended, sizeof report->ended,
                       "%d scenes could not go on; the last was %s", ABORTED_MAX, report->scene);
        return true;
    }
    return false;
}

static bool
endpoint_is_allowed(const actor_conform_options_t *options, const char *endpoint)
{
    if (options->allow_remote || actor_endpoint_is_local(endpoint)) {
        return true;
    }
    actor_log(ACTOR_LOG_ERROR, "conform.endpoint", 0, NULL,
              "endpoint '%s' is on another machine and links are not encrypted, or it is none: use "
              "ipc://PATH or tcp://127.0.0.1:PORT, or --allow-remote",
              endpoint);
    return false;
}

proto_status_t
actor_conform_scheduler(const actor_conform_options_t *options, conform_report_t *report,
                        conform_run_t *run)
{
    require(options->gateway_endpoint != NULL && options->executor_endpoint != NULL);
    static conform_stage_t stage; /* large, and there is one */
    if (!endpoint_is_allowed(options, options->gateway_endpoint) ||
        !endpoint_is_allowed(options, options->executor_endpoint)) {
        return STATUS_ERR_CONFIG;
    }
    memset(report, 0, sizeof *report);
    const proto_clock_t *clock = proto_clock_system();
    uint64_t begin_ns = proto_clock_monotonic_ns(clock);
    proto_status_t status = actor_conform_stage_init(&stage, options, report);
    if (status != STATUS_OK) {
        return status;
    }
    (void)snprintf(report->scene, sizeof report->scene, "contact");
    if (!actor_conform_open_raw(&stage, 0, "conform-raw-first", ++stage.epoch, 1)) {
        actor_conform_stage_fini(&stage);
        return STATUS_ERR_CONFIG;
    }
    (void)actor_conform_contact(&stage);
    actor_conform_close_raw(&stage, 0);
    for (uint32_t i = 0; i < SCENE_COUNT && !is_over(&stage); i++) {
        size_t length = options->scene != NULL ? strlen(options->scene) : 0;
        if (length == 0 || strncmp(scenes[i].name, options->scene, length) == 0) {
            play(&stage, &scenes[i]);
        }
    }
    (void)is_over(&stage);
    *run = (conform_run_t){.endpoint = options->gateway_endpoint,
                           .seed = options->seed != 0 ? options->seed : 1,
                           .duration_ns = proto_clock_monotonic_ns(clock) - begin_ns,
                           .plan_count = stage.plan_count,
                           .request_count = stage.book.count};
    bool is_lost = stage.is_lost;
    actor_conform_stage_fini(&stage);
    return is_lost ? STATUS_ERR_PEER_LOST : STATUS_OK;
}
