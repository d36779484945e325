/* The cache plan of a model with recurrent layers.
 *
 * A block of the state group, the windows and states of all recurrent layers, weighs as much as
 * many blocks of keys and values (36 layers of 32 heads of 128 x 128: 75 MiB; 12 layers of 64
 * tokens, 2 heads of 256, half precision: 1.5 MiB), so both groups share parent blocks in one
 * plane: one block of the heavier group, or as many of the lighter one as fill it.  With w and l
 * the bytes of a heavier and of a lighter block, the packing is ceil(w / l): lighter blocks waste
 * nothing, and a heavier one less than one lighter block, at most l / w of itself.  Where states
 * are the lighter ones (blocks of very many tokens) the packing is the largest whose part of a
 * parent is whole pages, and the waste is theirs. */
#include "run_plan_state.h"

#include <stdlib.h>

#include "proto_require.h"

enum { GROUP_FULL = 0, GROUP_STATE = 1, GROUP_COUNT = 2, PACKING_MAX = 4096 };

static size_t
round_up(size_t size_bytes)
{
    return (size_bytes + CACHE_FIELD_ALIGN - 1) / CACHE_FIELD_ALIGN * CACHE_FIELD_ALIGN;
}

static size_t
field_bytes(const cache_field_t *field)
{
    return round_up((size_t)field->rows * field->heads * field->head_dim *
                    cache_dtype_size_bytes(field->dtype));
}

/* Two fields of a layer, of its kind. */
static void
fill_fields(const run_plan_options_t *options, uint32_t layer, cache_field_t out[2])
{
    const file_config_t *c = options->config;
    if (c->layer_kinds[layer] == FILE_LAYER_LINEAR) {
        out[0] = (cache_field_t){
            .layer = layer,
            .name = CACHE_FIELD_CONV,
            .group = GROUP_STATE,
            .rows = c->linear_conv_width - 1,
            .heads = 1,
            .head_dim = file_config_linear_channels(c),
            .dtype = CACHE_DTYPE_F32,
        };
        out[1] = (cache_field_t){
            .layer = layer,
            .name = CACHE_FIELD_STATE,
            .group = GROUP_STATE,
            .rows = c->linear_value_head_count,
            .heads = c->linear_key_head_dim,
            .head_dim = c->linear_value_head_dim,
            .dtype = CACHE_DTYPE_F32,
        };
        return;
    }
    for (uint32_t i = 0; i < 2; i++) {
        out[i] = (cache_field_t){
            .layer = layer,
            .name = i == 0 ? CACHE_FIELD_K : CACHE_FIELD_V,
            .group = GROUP_FULL,
            .rows = options->granularity,
            .heads = c->kv_head_count,
            .head_dim = c->head_dim,
            .dtype = options->dtype,
        };
    }
}

static void
choose_packings(cache_group_t groups[GROUP_COUNT], const size_t bytes[GROUP_COUNT])
{
    uint32_t heavy = bytes[GROUP_STATE] >= bytes[GROUP_FULL] ? GROUP_STATE : GROUP_FULL;
    uint32_t light = 1 - heavy;
    size_t packing = (bytes[heavy] + bytes[light] - 1) / bytes[light];
    if (heavy == GROUP_FULL) {
        packing = bytes[heavy] / bytes[light];
        while (packing > 1 && bytes[heavy] % (packing * CACHE_FIELD_ALIGN) != 0) {
            packing--;
        }
    }
    groups[light].packing = packing > PACKING_MAX ? PACKING_MAX : (uint32_t)packing;
}

proto_status_t
run_plan_state_new(const run_plan_options_t *options, cache_plan_t **out_p)
{
    uint32_t field_count = 2 * options->config->layer_count;
    cache_field_t *fields = calloc(field_count, sizeof *fields);
    if (fields == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    size_t bytes[GROUP_COUNT] = {0};
    for (uint32_t i = 0; i < field_count; i += 2) {
        fill_fields(options, i / 2, &fields[i]);
        bytes[fields[i].group] += field_bytes(&fields[i]) + field_bytes(&fields[i + 1]);
    }
    require(bytes[GROUP_FULL] > 0);
    require(bytes[GROUP_STATE] > 0);
    cache_group_t groups[GROUP_COUNT] = {
        [GROUP_FULL] = {.id = "full_attention",
                        .kind = CACHE_KIND_FULL,
                        .granularity = options->granularity,
                        .packing = 1},
        [GROUP_STATE] = {.id = "linear_attention",
                         .kind = CACHE_KIND_STATE,
                         .granularity = options->granularity,
                         .packing = 1},
    };
    choose_packings(groups, bytes);
    cache_plan_options_t plan = {
        .groups = groups,
        .group_count = GROUP_COUNT,
        .fields = fields,
        .field_count = field_count,
        .prefix_granularity = options->granularity,
    };
    proto_status_t status = cache_plan_new(&plan, out_p);
    free(fields);
    return status;
}
