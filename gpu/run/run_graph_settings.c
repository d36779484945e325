/* Graph settings. */
#include "run_graph_settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto_require.h"
#include "run_text.h"

enum { CAPTURE_BS_DEFAULT = 32 };

static proto_status_t
check_sizes(const run_executor_options_t *o, char *error, size_t error_size_bytes)
{
    if (o->capture_size_count > RUN_LADDER_LEN_MAX) {
        (void)snprintf(error, error_size_bytes, "%" PRIu32 " capture sizes; at most %d",
                       o->capture_size_count, (int)RUN_LADDER_LEN_MAX);
        return STATUS_ERR_CONFIG;
    }
    for (uint32_t i = 0; i < o->capture_size_count; i++) {
        uint32_t size = o->capture_sizes[i];
        if (size == 0 || size > o->slot_count) {
            (void)snprintf(error, error_size_bytes,
                           "a capture size of %" PRIu32 "; they are 1 to %" PRIu32
                           ", as many as there are slots",
                           size, o->slot_count);
            return STATUS_ERR_CONFIG;
        }
        if (i > 0 && size <= o->capture_sizes[i - 1]) {
            (void)snprintf(error, error_size_bytes,
                           "capture size %" PRIu32 " after %" PRIu32 "; they must ascend", size,
                           o->capture_sizes[i - 1]);
            return STATUS_ERR_CONFIG;
        }
        if (o->capture_bs_max != 0 && size > o->capture_bs_max) {
            (void)snprintf(error, error_size_bytes,
                           "a capture size of %" PRIu32 " above the largest asked for, %" PRIu32,
                           size, o->capture_bs_max);
            return STATUS_ERR_CONFIG;
        }
    }
    return STATUS_OK;
}

proto_status_t
run_graph_settings_check(run_executor_options_t *o, char *error, size_t error_size_bytes)
{
    require(o->slot_count > 0);
    require(o->step_tokens_max > 0);
    if ((o->capture_sizes == NULL) != (o->capture_size_count == 0)) {
        (void)snprintf(error, error_size_bytes, "an empty list of capture sizes");
        return STATUS_ERR_CONFIG;
    }
    proto_status_t status = check_sizes(o, error, error_size_bytes);
    if (status != STATUS_OK) {
        return status;
    }
    if (o->disable_prefill_graph && o->prefill_graph_tokens_max != 0) {
        (void)snprintf(error, error_size_bytes,
                       "prefill graphs of %" PRIu32 " tokens asked for, and none at all",
                       o->prefill_graph_tokens_max);
        return STATUS_ERR_CONFIG;
    }
    if (o->prefill_graph_tokens_max > o->step_tokens_max) {
        (void)snprintf(error, error_size_bytes,
                       "prefill graphs of %" PRIu32 " tokens; a step has at most %" PRIu32,
                       o->prefill_graph_tokens_max, o->step_tokens_max);
        return STATUS_ERR_CONFIG;
    }
    if (o->capture_bs_max == 0) {
        o->capture_bs_max = CAPTURE_BS_DEFAULT;
    }
    if (o->prefill_graph_tokens_max == 0) {
        o->prefill_graph_tokens_max = o->step_tokens_max < RUN_PREFILL_TOKENS_DEFAULT
                                          ? o->step_tokens_max
                                          : RUN_PREFILL_TOKENS_DEFAULT;
    }
    return STATUS_OK;
}

static void
add_culprit(void *context, const char *name, backend_support_t support)
{
    run_text_add(context, RUN_CULPRITS_SIZE_BYTES, "graphs: no %s%s%s for %s\n",
                 support.decode_graph ? "" : "decode graph",
                 support.decode_graph || support.prefill_graph ? "" : ", no ",
                 support.prefill_graph ? "" : "prefill graph", name);
}

backend_support_t
run_graph_settings_support(const device_t *device, const backend_t *const *trees,
                           uint32_t tree_count, char culprits[RUN_CULPRITS_SIZE_BYTES])
{
    backend_support_t all = {.decode_graph = device->has_decode_graph,
                             .prefill_graph = device->has_prefill_graph};
    culprits[0] = '\0';
    if (!(all.decode_graph && all.prefill_graph)) {
        add_culprit(culprits, device->name, all);
    }
    for (uint32_t i = 0; i < tree_count; i++) {
        if (trees[i] == NULL) {
            continue;
        }
        backend_support_t tree = backend_resolve_support(trees[i], add_culprit, culprits);
        all.decode_graph = all.decode_graph && tree.decode_graph;
        all.prefill_graph = all.prefill_graph && tree.prefill_graph;
    }
    return all;
}

/* From `bs` to the next rung: 8, from 16 * rungs on twice that, and so on. */
static uint32_t
ladder_step(uint32_t bs, uint32_t rungs)
{
    uint32_t step = 8;
    while (bs / rungs >= 2 * step) {
        step *= 2;
    }
    return bs < 8 ? bs : step;
}

static uint32_t
ladder_len(uint32_t capture_bs_max, uint32_t rungs)
{
    uint32_t len = 1; /* the top */
    for (uint32_t bs = 1; bs < capture_bs_max; bs += ladder_step(bs, rungs)) {
        len++;
    }
    return len;
}

uint32_t
run_graph_settings_ladder(uint32_t capture_bs_max, uint32_t *out)
{
    require(capture_bs_max > 0);
    uint32_t rungs = RUN_LADDER_LEN_MAX;
    while (ladder_len(capture_bs_max, rungs) > RUN_LADDER_LEN_MAX) {
        rungs /= 2;
        require(rungs > 0);
    }
    uint32_t count = 0;
    for (uint32_t bs = 1; bs < capture_bs_max; bs += ladder_step(bs, rungs)) {
        out[count++] = bs;
    }
    out[count++] = capture_bs_max;
    return count;
}

void
run_graph_settings_resolve(const run_executor_options_t *o, backend_support_t support,
                           run_graph_settings_t *out)
{
    *out = (run_graph_settings_t){0};
    if (o->enforce_eager) {
        return;
    }
    if (support.decode_graph && o->capture_sizes != NULL) {
        out->capture_size_count = o->capture_size_count;
        memcpy(out->capture_sizes, o->capture_sizes,
               o->capture_size_count * sizeof *o->capture_sizes);
    } else if (support.decode_graph) {
        uint32_t top = o->capture_bs_max < o->slot_count ? o->capture_bs_max : o->slot_count;
        out->capture_size_count = run_graph_settings_ladder(top, out->capture_sizes);
    }
    if (support.prefill_graph && !o->disable_prefill_graph) {
        out->prefill_tokens_max = o->prefill_graph_tokens_max;
    }
}
