/* Building an executor: device, weights, cache, backend tree, sampling, runner, graphs; and taking
 * it apart in reverse. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto_require.h"
#include "run_autotune.h"
#include "run_backend.h"
#include "run_executor_private.h"
#include "run_graph_settings.h"
#include "run_inspect.h"
#include "run_share.h"
#include "run_text.h"

enum {
    SLOT_COUNT_DEFAULT = 32,
    STEP_TOKENS_DEFAULT = 512,
    CLEAR_COUNT_MIN = 1024,
    WIDTH_WITH_DRAFT = 4,
};

static const uint64_t DRAFT_WAIT_NS = 100000000u;

proto_status_t
run_executor_fail(run_executor_t *self, proto_status_t status, const char *format, ...)
{
    if (self->options.error != NULL && self->options.error_size_bytes > 0) {
        va_list args;
        va_start(args, format);
        (void)vsnprintf(self->options.error, self->options.error_size_bytes, format, args);
        va_end(args);
    }
    return status;
}

void
run_executor_add_summary(run_executor_t *self, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    run_text_vadd(self->summary, sizeof self->summary, format, args);
    va_end(args);
}

static uint64_t
now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

static void
default_u32(uint32_t *value, uint32_t otherwise)
{
    if (*value == 0) {
        *value = otherwise;
    }
}

static void
report_weights(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    run_executor_t *self = context;
    if (self->options.progress != NULL) {
        self->options.progress(self->options.progress_context, "weights", done_bytes, total_bytes);
    }
}

static proto_status_t
load_model(run_executor_t *self)
{
    run_executor_options_t *o = &self->options;
    char error[FILE_ERROR_SIZE_BYTES] = "";
    uint64_t begin_ms = now_ms();
    proto_status_t status = file_model_open(o->model_path, error, sizeof error, &self->file);
    if (status != STATUS_OK) {
        return run_executor_fail(self, status == STATUS_ERR_IO ? STATUS_ERR_CONFIG : status, "%s",
                                 error);
    }
    status = run_ranks_slice(self);
    if (status != STATUS_OK) {
        return status;
    }
    const file_config_t *config = file_model_config(self->file);
    status = run_executor_check_model(self);
    if (status != STATUS_OK) {
        return status;
    }
    run_model_new_fn make =
        o->plants != NULL && o->plants->make_model != NULL ? o->plants->make_model : model_new;
    status = make(self->device, self->file, report_weights, self, &self->model);
    if (status != STATUS_OK) {
        return run_executor_fail(self, status,
                                 "%s: no forward code for this %s (heads of %" PRIu32
                                 "; they must be multiples of 16, at most %d): %s",
                                 o->model_path, file_arch_name(config->arch), config->head_dim,
                                 (int)KERN_HEAD_DIM_MAX, proto_status_text(status));
    }
    model_set_comm(self->model, self->comm);
    model_set_activations(self->model,
                          o->int8_activations ? KERN_ACTIVATIONS_INT8 : KERN_ACTIVATIONS_FLOAT);
    run_executor_add_summary(self,
                             "model: %s (%s, %" PRIu32
                             " layers, %s), %.1f MiB on the device, %.1f MiB "
                             "mapped, loaded in %" PRIu64 " ms\n",
                             config->name, file_arch_name(config->arch), config->layer_count,
                             config->dtype_summary, (double)self->model->weight_bytes / 1048576.0,
                             (double)self->model->mapped_bytes / 1048576.0, now_ms() - begin_ms);
    return STATUS_OK;
}

static proto_status_t
choose_cache_dtype(run_executor_t *self)
{
    const char *name = self->options.cache_dtype;
    bool is_f32 = !self->is_cuda && model_config(self->model)->linear_dtype == FILE_DTYPE_F32;
    if (name != NULL && strcmp(name, "auto") != 0) {
        is_f32 = strcmp(name, "f32") == 0;
        if (!is_f32 && strcmp(name, "f16") != 0) {
            return run_executor_fail(self, STATUS_ERR_CONFIG,
                                     "cache type '%s'; there are auto, f32, f16", name);
        }
    }
    if (is_f32 && self->is_cuda) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "cache type '%s'; the CUDA device's attention reads f16", name);
    }
    self->cache_dtype = is_f32 ? CACHE_DTYPE_F32 : CACHE_DTYPE_F16;
    return STATUS_OK;
}

/* A checkpoint of a recurrent state stands at the end of a block. */
static proto_status_t
check_states(run_executor_t *self)
{
    const run_executor_options_t *o = &self->options;
    if (!run_backend_has_states(model_config(self->model))) {
        return choose_cache_dtype(self);
    }
    if (o->block_granularity % KERN_GDN_GRID != 0) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "blocks of %" PRIu32 " tokens; with recurrent layers they must be "
                                 "multiples of %d",
                                 o->block_granularity, (int)KERN_GDN_GRID);
    }
    if (o->step_tokens_max < o->block_granularity) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "--max-num-batched-tokens is %" PRIu32
                                 "; with recurrent layers it takes at least the tokens of a block "
                                 "(--block-size, %" PRIu32 ")",
                                 o->step_tokens_max, o->block_granularity);
    }
    return choose_cache_dtype(self);
}

static proto_status_t
fill_options(run_executor_t *self)
{
    run_executor_options_t *o = &self->options;
    const file_config_t *config = model_config(self->model);
    default_u32(&o->slot_count, SLOT_COUNT_DEFAULT);
    default_u32(&o->step_tokens_max, STEP_TOKENS_DEFAULT);
    default_u32(&o->block_granularity, CACHE_GRANULARITY_DEFAULT);
    default_u32(&o->model_len_max, config->context_len);
    default_u32(&o->width, o->draft_path == NULL ? 1 : WIDTH_WITH_DRAFT);
    if (o->width > RUN_WIDTH_MAX) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "a decode width of %" PRIu32 "; at most %d", o->width,
                                 (int)RUN_WIDTH_MAX);
    }
    if (o->slot_count > PROTO_ROWS_MAX - 2) {
        return run_executor_fail(self, STATUS_ERR_CONFIG, "%" PRIu32 " slots; at most %d",
                                 o->slot_count, (int)PROTO_ROWS_MAX - 2);
    }
    if (o->model_len_max > config->context_len) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "a length of %" PRIu32 " tokens; the model was made for %" PRIu32,
                                 o->model_len_max, config->context_len);
    }
    if (o->model_len_max > PROTO_TOKENS_MAX) {
        o->model_len_max = PROTO_TOKENS_MAX;
    }
    if (o->step_tokens_max > PROTO_TOKENS_MAX) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "%" PRIu32 " tokens in a step; at most %d", o->step_tokens_max,
                                 (int)PROTO_TOKENS_MAX);
    }
    if (o->step_tokens_max < o->slot_count * o->width) {
        o->step_tokens_max = o->slot_count * o->width; /* every slot may decode at once */
    }
    if (o->block_granularity > 65536 ||
        (o->page_size != 0 && o->block_granularity % o->page_size != 0)) {
        return run_executor_fail(self, STATUS_ERR_CONFIG,
                                 "blocks of %" PRIu32 " tokens and kernel pages of %" PRIu32
                                 " do not go together",
                                 o->block_granularity, o->page_size);
    }
    char error[256];
    if (run_graph_settings_check(o, error, sizeof error) != STATUS_OK) {
        return run_executor_fail(self, STATUS_ERR_CONFIG, "%s", error);
    }
    return check_states(self);
}

proto_status_t
run_executor_make_backend(run_executor_t *self, uint32_t width, backend_t **out_p)
{
    const file_config_t *config = model_config(self->model);
    run_backend_options_t options = {
        .backend =
            {
                .device = self->device,
                .stream = self->stream,
                .bs_max = self->options.slot_count,
                .width = width,
                .step_tokens_max = self->options.step_tokens_max,
                .model_len_max = self->options.model_len_max,
                .q_heads = config->head_count,
                .kv_heads = config->kv_head_count,
                .head_dim = config->head_dim,
                .latent_dim = config->latent_dim,
                .rope_dim = config->latent_dim > 0 ? config->rope_dim : 0,
            },
        .page_size = self->options.page_size,
        .config = config,
        .keeps_states = self->options.keeps_states,
    };
    backend_t *backend = NULL;
    proto_status_t status = run_backend_new(&options, &backend);
    cache_pool_t pool;
    if (status == STATUS_OK) {
        status = cache_pool_init(&pool, self->plan, self->arena, 0, config->layer_count);
    }
    if (status == STATUS_OK) {
        status = backend_set_cache_pool(backend, &pool);
    }
    if (status == STATUS_OK) {
        status = run_executor_init_tree(backend);
    }
    const run_plants_t *plants = self->options.plants;
    if (status == STATUS_OK && plants != NULL && plants->adjust_backend != NULL) {
        plants->adjust_backend(backend);
    }
    if (status != STATUS_OK) {
        backend_destroy(&backend);
        return run_executor_fail(self, status, "cannot build the backend tree");
    }
    *out_p = backend;
    return STATUS_OK;
}

static proto_status_t
make_backend(run_executor_t *self)
{
    proto_status_t status = run_executor_make_backend(self, self->options.width, &self->backend);
    if (status == STATUS_OK && self->options.width > 1) {
        status = run_executor_make_backend(self, 1, &self->single_backend);
    }
    return status;
}

static proto_status_t
make_sampling(run_executor_t *self)
{
    const file_config_t *config = model_config(self->model);
    sample_pool_options_t options = {
        .device = self->device,
        .stream = self->stream,
        .slot_count = self->options.slot_count,
        .bs_max = self->options.slot_count,
        .width = self->options.width,
        .verify = self->options.verify_by_rejection ? KERN_SAMPLE_VERIFY_REJECTION
                                                    : KERN_SAMPLE_VERIFY_CHAIN,
        .vocabulary = config->vocab_size,
        .setup_tokens_max = self->options.model_len_max,
        .stop_ids = config->stop_ids,
        .stop_id_count = config->stop_id_count,
    };
    return sample_pool_new(&options, &self->sample);
}

static proto_status_t
make_buffers(run_executor_t *self)
{
    run_executor_options_t *o = &self->options;
    uint32_t len_max = o->model_len_max + 2 * o->width;
    proto_status_t status = run_tables_new(self->plan, o->slot_count, len_max, &self->tables);
    if (status != STATUS_OK) {
        return status;
    }
    run_buffers_options_t options = {
        .device = self->device,
        .stream = self->stream,
        .bs_max = o->slot_count,
        .width = o->width,
        .step_tokens_max = o->step_tokens_max,
        .slot_count = o->slot_count,
        .group_count = cache_plan_group_count(self->plan),
        .output_region_bytes = sample_pool_outputs(self->sample)->region_bytes,
        .logprob_count = (size_t)o->slot_count * o->width * KERN_SAMPLE_LOGPROBS_WIDTH,
    };
    uint64_t clears = 0;
    for (uint32_t g = 0; g < options.group_count; g++) {
        options.columns_max[g] = run_tables_columns_max(self->tables, g);
        clears += (uint64_t)o->slot_count * options.columns_max[g];
    }
    /* Every block of every slot at most: the same for the probe's cache and the real one. */
    options.clear_count_max = clears < CLEAR_COUNT_MIN ? CLEAR_COUNT_MIN : (uint32_t)clears;
    return run_buffers_init(&self->buffers, &options);
}

/* The runner of steps without candidates: the same sizes, a tree of width 1. */
static proto_status_t
make_single(run_executor_t *self, run_forward_step_options_t *options)
{
    uint32_t count = 0;
    options->capture_sizes = run_forward_step_ladder(self->runner, &count);
    options->capture_size_count = count;
    options->backend = self->single_backend;
    options->width = 1;
    options->decode_capture = options->capture;
    options->prefill_tokens_max = 0;
    options->prefill = run_forward_step_prefill(self->runner);
    return run_forward_step_new(options, &self->single);
}

static proto_status_t
make_runner(run_executor_t *self)
{
    run_executor_options_t *o = &self->options;
    uint64_t begin_ms = now_ms();
    run_forward_step_options_t options = {
        .device = self->device,
        .stream = self->stream,
        .model = self->model,
        .backend = self->backend,
        .sample = self->sample,
        .buffers = &self->buffers,
        .graph_debug = o->graph_debug,
        .progress = self->layer,
        .workspace = &self->workspace,
        .no_padding = o->no_padding,
        .width = o->width,
        .capture = run_drafter_capture(&self->drafter),
        .decode_capture = run_drafter_decode_capture(&self->drafter),
    };
    const backend_t *const trees[] = {self->backend, self->drafter.draft == NULL
                                                         ? NULL
                                                         : self->drafter.draft->backend};
    uint32_t tree_count = trees[1] == NULL ? 1 : 2;
    char culprits[RUN_CULPRITS_SIZE_BYTES];
    backend_support_t support =
        run_graph_settings_support(self->device, trees, tree_count, culprits);
    run_executor_add_summary(self, "%s", culprits);
    run_graph_settings_t graphs;
    run_graph_settings_resolve(o, support, &graphs);
    options.capture_sizes = graphs.capture_sizes;
    options.capture_size_count = graphs.capture_size_count;
    options.prefill_tokens_max = graphs.prefill_tokens_max;
    run_workspace_init(&self->workspace, self->device);
    proto_status_t status = run_forward_step_new(&options, &self->runner);
    if (status == STATUS_OK) {
        run_executor_note_memory(self, "workspaces");
        status = run_autotune(self);
    }
    if (status == STATUS_OK && o->width > 1) {
        status = make_single(self, &options);
    }
    if (status == STATUS_OK) {
        status = run_executor_capture(self);
    }
    uint32_t bucket = self->runner == NULL ? 0 : run_forward_step_failed_bucket(self->runner);
    if (status != STATUS_OK && bucket > 0) {
        return run_executor_fail(self, status,
                                 "the prefill graph of %" PRIu32
                                 " tokens cannot be captured: %s; a backend that "
                                 "never can must declare it",
                                 bucket, proto_status_text(status));
    }
    if (status != STATUS_OK && self->workspace.fault[0] != '\0') {
        return run_executor_fail(self, status, "%s", self->workspace.fault);
    }
    if (status != STATUS_OK) {
        return run_executor_fail(self, status, "the decode graphs cannot be captured: %s",
                                 proto_status_text(status));
    }
    run_executor_add_summary(
        self,
        "buffers: %.1f MiB inputs and staging, %.1f MiB sampling, %.1f MiB workspaces; "
        "%" PRIu32 " decode and %" PRIu32 " prefill graphs in %" PRIu64 " ms\n",
        (double)self->buffers.size_bytes / 1048576.0,
        (double)sample_pool_size_bytes(self->sample) / 1048576.0,
        (double)run_forward_step_size_bytes(self->runner) / 1048576.0,
        run_forward_step_graph_count(self->runner),
        run_prefill_graph_bucket_count(run_forward_step_prefill(self->runner)),
        now_ms() - begin_ms);
    return STATUS_OK;
}

/* The way to a drafter.  Its file is shared memory of the machine, no memory of the device. */
static proto_status_t
make_draft(run_executor_t *self)
{
    const run_executor_options_t *o = &self->options;
    if (o->draft_ring_path == NULL || o->width < 2) {
        return STATUS_OK;
    }
    const sample_outputs_t *outputs = sample_pool_outputs(self->sample);
    const uint8_t *region = outputs->region;
    run_draft_options_t options = {
        .ring_path = o->draft_ring_path,
        .ring_id = o->draft_ring_id,
        .device = self->device,
        .stream = self->stream,
        .buffers = &self->buffers,
        .lengths_at = (size_t)((const uint8_t *)outputs->accept_lengths - region),
        .flags_at = (size_t)(outputs->row_flags - region),
        .slot_count = o->slot_count,
        .width = o->width,
        .vocabulary = model_config(self->model)->vocab_size,
        .model_len_max = o->model_len_max,
        .wait_ns = o->draft_wait_ns != 0 ? o->draft_wait_ns : DRAFT_WAIT_NS,
    };
    proto_status_t status = run_draft_new(&options, &self->draft);
    if (status != STATUS_OK) {
        return run_executor_fail(self, status, "cannot make the drafter's ring '%s': %s",
                                 o->draft_ring_path,
                                 status == STATUS_ERR_IO ? strerror(errno)
                                                         : proto_status_text(status));
    }
    run_executor_add_summary(self, "drafter: %.1f MiB shared in %s\n",
                             (double)run_draft_size_bytes(self->draft) / 1048576.0,
                             o->draft_ring_path);
    return STATUS_OK;
}

static const char *
draft_name(const run_executor_t *self)
{
    if (self->drafter.draft != NULL) {
        return draft_info(self->drafter.draft)->kind;
    }
    return self->draft != NULL && self->options.drafter != NULL ? self->options.drafter : "none";
}

/* What a peer must agree on to share tokens, pages or logs with this executor. */
static void
make_identity(run_executor_t *self)
{
    const file_config_t *config = model_config(self->model);
    bool is_latent = config->latent_dim > 0;
    char ranks[24] = "";
    if (self->comm != NULL) {
        (void)snprintf(ranks, sizeof ranks, ";ranks=%" PRIu32, run_ranks_count(self));
    }
    char digest[2 * FILE_DIGEST_SIZE_BYTES + 1];
    for (size_t i = 0; i < FILE_DIGEST_SIZE_BYTES; i++) {
        (void)snprintf(digest + 2 * i, 3, "%02x", config->digest[i]);
    }
    (void)snprintf(self->fingerprint, sizeof self->fingerprint,
                   "model=%s;arch=%s;layers=%" PRIu32 ";kv=%s;kv_heads=%" PRIu32
                   ";head_dim=%" PRIu32 ";block=%" PRIu32 ";width=%" PRIu32
                   ";verify=%s;draft=%s;activations=%s%s",
                   digest, file_arch_name(config->arch), config->layer_count,
                   self->cache_dtype == CACHE_DTYPE_F32 ? "f32" : "f16", config->kv_head_count,
                   is_latent ? config->latent_dim + config->rope_dim : config->head_dim,
                   self->options.block_granularity, self->options.width,
                   self->options.verify_by_rejection ? "rejection" : "chain", draft_name(self),
                   self->options.int8_activations ? "int8" : "float", ranks);
    for (uint32_t g = 0; g < cache_plan_group_count(self->plan); g++) {
        const cache_group_t *group = cache_plan_group(self->plan, g);
        self->group_kinds[g] = (uint32_t)group->kind;
        self->group_granularities[g] = group->granularity;
        self->group_windows[g] = group->window;
        self->group_packings[g] = group->packing;
    }
}

static proto_status_t
build(run_executor_t *self)
{
    static const struct {
        proto_status_t (*run)(run_executor_t *);
        const char *term; /* of the memory sum; NULL = before it begins, or none */
    } steps[] = {
        {run_executor_open_device, NULL},
        {load_model, NULL},
        {fill_options, NULL},
        {run_executor_check_options, NULL},
        {run_share_open, NULL},
        {run_drafter_open, NULL},
        {run_executor_open_cache, "page map"},
        {make_backend, "decode metadata"},
        {run_drafter_bind, "draft metadata"},
        {make_sampling, "sampling"},
        {make_buffers, "inputs and staging"},
        {make_runner, "graphs"},
        {run_executor_settle_cache, NULL},
        {run_executor_init_flights, NULL},
        {make_draft, NULL},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        proto_status_t status = steps[i].run(self);
        if (status != STATUS_OK) {
            return status;
        }
        if (steps[i].term != NULL) {
            run_executor_note_memory(self, steps[i].term);
        }
    }
    make_identity(self);
    proto_status_t status = device_stream_synchronize(self->stream);
    return status == STATUS_OK ? run_ranks_meet(self) : status;
}

proto_status_t
run_executor_new(const run_executor_options_t *options, run_executor_t **out_p)
{
    require(options != NULL);
    require(options->model_path != NULL);
    require(out_p != NULL);
    run_executor_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    if (options->error != NULL && options->error_size_bytes > 0) {
        options->error[0] = '\0';
    }
    if (options->page_hash_key != NULL) {
        memcpy(self->page_hash_key, options->page_hash_key, sizeof self->page_hash_key);
    }
    proto_status_t status = build(self);
    if (status != STATUS_OK) {
        if (options->error != NULL && options->error_size_bytes > 0 && options->error[0] == '\0') {
            (void)run_executor_fail(self, status, "%s", proto_status_text(status));
        }
        if (options->group != NULL) {
            /* The others wait for this rank. */
            device_group_fail(options->group, "rank %" PRIu32 " did not start: %s",
                              device_group_rank(options->group),
                              options->error != NULL ? options->error : proto_status_text(status));
        }
        run_executor_destroy(&self);
        return status;
    }
    self->options.error = NULL; /* lent for the call */
    *out_p = self;
    return STATUS_OK;
}

void
run_executor_destroy(run_executor_t **self_p)
{
    require(self_p != NULL);
    run_executor_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    if (self->stream != NULL) {
        proto_status_t status = device_stream_synchronize(self->stream);
        require(status == STATUS_OK || status == STATUS_ERR_DEVICE);
        run_draft_destroy(&self->draft);
        run_executor_fini_flights(self);
        run_forward_step_destroy(&self->single);
        run_forward_step_destroy(&self->runner);
        run_drafter_close(self);
        run_workspace_fini(&self->workspace);
        run_buffers_fini(&self->buffers);
        run_tables_destroy(&self->tables);
        sample_pool_destroy(&self->sample);
        backend_destroy(&self->single_backend);
        backend_destroy(&self->backend);
        backend_destroy(&self->planted_backend);
        device_release(self->device, DEVICE_MEMORY_PINNED, (void **)&self->zero_fields);
        void *layer = (void *)self->layer;
        device_release(self->device, DEVICE_MEMORY_PINNED, &layer);
        cache_arena_destroy(&self->arena);
        run_share_close(self);
        cache_plan_destroy(&self->plan);
        model_destroy(&self->model);
        file_model_close(&self->file);
        device_stream_destroy(&self->stream);
        device_comm_destroy(&self->comm);
    }
    device_destroy(&self->device);
    free(self);
    *self_p = NULL;
}
