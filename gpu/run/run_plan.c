#include "run_plan.h"

#include <stdlib.h>

#include "proto_require.h"
#include "run_backend.h"
#include "run_plan_state.h"

typedef struct {
    cache_group_t groups[2];
    uint32_t group_count;
    uint32_t group_of_kind[2]; /* file_layer_kind_t to index */
    uint32_t field_counts[2];  /* by group */
    uint32_t plane_count;
} layout_t;

/* Keys and values, or one latent for both. */
static uint32_t
fields_of_layer(const file_config_t *config)
{
    return config->latent_dim > 0 ? 1 : 2;
}

static layout_t
lay_out(const run_plan_options_t *options)
{
    const file_config_t *config = options->config;
    uint32_t layers[2] = {0, 0};
    for (uint32_t i = 0; i < config->layer_count; i++) {
        layers[config->layer_kinds[i]]++;
    }
    layout_t layout = {.plane_count = UINT32_MAX};
    static const struct {
        const char *id;
        cache_kind_t kind;
    } kinds[2] = {
        [FILE_LAYER_FULL] = {"full_attention", CACHE_KIND_FULL},
        [FILE_LAYER_SLIDING] = {"sliding_attention", CACHE_KIND_SLIDING},
    };
    for (uint32_t kind = 0; kind < 2; kind++) {
        if (layers[kind] == 0) {
            continue;
        }
        uint32_t group = layout.group_count++;
        layout.group_of_kind[kind] = group;
        layout.field_counts[group] = fields_of_layer(config) * layers[kind];
        layout.groups[group] = (cache_group_t){
            .id = kinds[kind].id,
            .kind = kinds[kind].kind,
            .granularity = options->granularity,
            .window = kinds[kind].kind == CACHE_KIND_SLIDING ? config->sliding_window : 0,
            .packing = 1,
        };
        if (layout.field_counts[group] < layout.plane_count) {
            layout.plane_count = layout.field_counts[group];
        }
    }
    if (layout.group_count == 2) {
        uint32_t small = layout.field_counts[0] <= layout.field_counts[1] ? 0 : 1;
        uint32_t large = 1 - small;
        layout.groups[small].packing =
            (layout.field_counts[large] + layout.plane_count - 1) / layout.plane_count;
    }
    return layout;
}

proto_status_t
run_plan_new(const run_plan_options_t *options, cache_plan_t **out_p)
{
    const file_config_t *config = options->config;
    uint32_t draft_layers = options->draft == NULL ? 0 : options->draft->cache_layers;
    if (run_backend_has_states(config)) {
        return draft_layers > 0 ? STATUS_ERR_UNSUPPORTED : run_plan_state_new(options, out_p);
    }
    layout_t layout = lay_out(options);
    if (draft_layers > 0 && layout.groups[0].kind != CACHE_KIND_FULL) {
        return STATUS_ERR_UNSUPPORTED;
    }
    require(layout.group_count > 0);
    uint32_t per_layer = fields_of_layer(config);
    bool is_latent = config->latent_dim > 0;
    uint32_t field_count = per_layer * config->layer_count;
    cache_field_t *fields = calloc(field_count + 2 * (size_t)draft_layers, sizeof *fields);
    if (fields == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    uint32_t used[2] = {0, 0};
    for (uint32_t i = 0; i < field_count; i++) {
        uint32_t layer = i / per_layer;
        uint32_t group = layout.group_of_kind[config->layer_kinds[layer]];
        cache_field_name_t name = i % per_layer == 0 ? CACHE_FIELD_K : CACHE_FIELD_V;
        fields[i] = (cache_field_t){
            .layer = layer,
            .name = is_latent ? CACHE_FIELD_LATENT : name,
            .group = group,
            .plane = used[group]++ % layout.plane_count,
            .rows = options->granularity,
            .heads = config->kv_head_count,
            .head_dim = is_latent ? config->latent_dim + config->rope_dim : config->head_dim,
            .dtype = options->dtype,
        };
    }
    for (uint32_t i = 0; i < 2 * draft_layers; i++) {
        fields[field_count++] = (cache_field_t){
            .layer = config->layer_count + i / 2,
            .name = i % 2 == 0 ? CACHE_FIELD_K : CACHE_FIELD_V,
            .group = 0,
            .plane = layout.plane_count + i,
            .rows = options->granularity,
            .heads = options->draft->cache_kv_heads,
            .head_dim = options->draft->cache_head_dim,
            .dtype = options->dtype,
        };
    }
    cache_plan_options_t plan = {
        .groups = layout.groups,
        .group_count = layout.group_count,
        .fields = fields,
        .field_count = field_count,
        .prefix_granularity = options->granularity,
    };
    proto_status_t status = cache_plan_new(&plan, out_p);
    free(fields);
    return status;
}
