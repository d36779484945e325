/* The sampling pool. */
#include "sample_pool.h"

#include <stdlib.h>
#include <string.h>

#include "proto_require.h"

enum {
    SETUP_COUNT_MAX = 64, /* setups whose staging is still in use */
};

typedef struct {
    device_event_t *done; /* the stream has read the staging */
    uint64_t end;         /* position in the staging ring up to which it is then free */
} setup_t;

struct sample_pool {
    sample_pool_options_t options;
    int32_t stop_ids[KERN_SAMPLE_BANNED_MAX]; /* the model's own */
    uint32_t rows;                            /* slots with dummy and sink */
    void *arrays;                             /* device: the arrays of `setup_args` */
    kern_slot_setup_args_t setup_args;        /* record is filled in for each launch */
    uint16_t *counts;                         /* device, [rows][vocabulary] */
    uint32_t *logprob_widths;                 /* host, [rows] */
    uint8_t *staging;                         /* pinned ring */
    uint64_t staging_bytes;
    uint64_t staging_head; /* positions, not offsets */
    uint64_t staging_tail;
    setup_t setups[SETUP_COUNT_MAX];
    uint64_t setup_head; /* counts */
    uint64_t setup_tail;
    void *workspace;
    size_t workspace_bytes;
    uint8_t *sample_flags; /* device, [bs_max * width] */
    void *logprobs;
    sample_outputs_t outputs;
    size_t size_bytes;
};

static size_t
round_up(size_t size_bytes)
{
    return (size_bytes + DEVICE_MEMORY_ALIGN - 1) / DEVICE_MEMORY_ALIGN * DEVICE_MEMORY_ALIGN;
}

static proto_status_t
pool_alloc(sample_pool_t *self, device_memory_t kind, size_t size_bytes, void **out_p)
{
    proto_status_t status = device_alloc(self->options.device, kind, size_bytes, out_p);
    if (status == STATUS_OK) {
        self->size_bytes += size_bytes;
    }
    return status;
}

/* Carves the per-slot arrays out of one allocation; with NULL memory it only measures. */
static size_t
lay_out_arrays(sample_pool_t *self, uint8_t *memory)
{
    kern_slot_setup_args_t *a = &self->setup_args;
    struct {
        void **pointer_p;
        size_t entry_bytes;
    } parts[] = {
        {(void **)&a->temperature, sizeof(float)},
        {(void **)&a->top_k, sizeof(int32_t)},
        {(void **)&a->top_p, sizeof(float)},
        {(void **)&a->min_p, sizeof(float)},
        {(void **)&a->seed, sizeof(uint64_t)},
        {(void **)&a->repetition_penalty, sizeof(float)},
        {(void **)&a->presence_penalty, sizeof(float)},
        {(void **)&a->frequency_penalty, sizeof(float)},
        {(void **)&a->logprobs, sizeof(uint32_t)},
        {(void **)&a->bias_counts, sizeof(uint32_t)},
        {(void **)&a->bias_ids, sizeof(int32_t) * KERN_SAMPLE_BIAS_MAX},
        {(void **)&a->bias_values, sizeof(float) * KERN_SAMPLE_BIAS_MAX},
        {(void **)&a->stop_counts, sizeof(uint32_t)},
        {(void **)&a->stop_ids, sizeof(int32_t) * KERN_SAMPLE_BANNED_MAX},
        {(void **)&a->stop_from, sizeof(int32_t)},
    };
    size_t at = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].pointer_p = memory == NULL ? NULL : memory + at;
        at += round_up(parts[i].entry_bytes * self->rows);
    }
    a->slot_count = self->rows;
    return at;
}

static proto_status_t
alloc_outputs(sample_pool_t *self)
{
    const sample_pool_options_t *o = &self->options;
    size_t rows = (size_t)o->bs_max * o->width;
    size_t tokens_bytes = round_up(rows * sizeof(int32_t));
    size_t accept_bytes = round_up(o->bs_max * sizeof(int32_t));
    size_t flags_bytes = round_up(o->bs_max);
    sample_outputs_t *out = &self->outputs;
    out->region_bytes = tokens_bytes + accept_bytes + flags_bytes;
    proto_status_t status = pool_alloc(self, DEVICE_MEMORY_DEVICE, out->region_bytes, &out->region);
    if (status != STATUS_OK) {
        return status;
    }
    uint8_t *at = out->region;
    out->tokens = (int32_t *)(void *)at;
    out->accept_lengths = (int32_t *)(void *)(at + tokens_bytes);
    out->row_flags = at + tokens_bytes + accept_bytes;

    size_t entries_bytes = round_up(rows * KERN_SAMPLE_LOGPROBS_WIDTH * sizeof(int32_t));
    status = pool_alloc(self, DEVICE_MEMORY_DEVICE, 2 * entries_bytes, &self->logprobs);
    if (status != STATUS_OK) {
        return status;
    }
    out->logprob_ids = self->logprobs;
    out->logprob_values = (float *)(void *)((uint8_t *)self->logprobs + entries_bytes);
    status = pool_alloc(self, DEVICE_MEMORY_DEVICE, rows, (void **)&self->sample_flags);
    if (status != STATUS_OK) {
        return status;
    }
    self->workspace_bytes =
        kern_sample_workspace_size_bytes(o->vocabulary, device_worker_count(o->device));
    return pool_alloc(self, DEVICE_MEMORY_DEVICE, self->workspace_bytes + DEVICE_MEMORY_ALIGN,
                      &self->workspace);
}

static proto_status_t
alloc_staging(sample_pool_t *self)
{
    const sample_pool_options_t *o = &self->options;
    /* Two of the largest setups, so that one can be written while another is read. */
    size_t largest = round_up(sizeof(kern_slot_record_t)) +
                     round_up((size_t)o->setup_tokens_max * sizeof(int32_t));
    self->staging_bytes = 2 * largest + (size_t)32 * round_up(sizeof(kern_slot_record_t));
    proto_status_t status =
        pool_alloc(self, DEVICE_MEMORY_PINNED, self->staging_bytes, (void **)&self->staging);
    for (uint32_t i = 0; status == STATUS_OK && i < SETUP_COUNT_MAX; i++) {
        status = device_event_new(o->device, &self->setups[i].done);
    }
    return status;
}

static bool
free_oldest_setup(sample_pool_t *self, bool may_wait)
{
    if (self->setup_tail == self->setup_head) {
        return false;
    }
    setup_t *oldest = &self->setups[self->setup_tail % SETUP_COUNT_MAX];
    if (may_wait) {
        proto_status_t status = device_event_synchronize(oldest->done);
        require(status == STATUS_OK);
    } else if (device_event_query(oldest->done) != STATUS_OK) {
        return false;
    }
    self->staging_tail = oldest->end;
    self->setup_tail++;
    return true;
}

/* A contiguous piece of the ring. */
static uint8_t *
stage(sample_pool_t *self, size_t size_bytes)
{
    while (free_oldest_setup(self, false)) {
    }
    uint64_t offset = self->staging_head % self->staging_bytes;
    uint64_t skip = offset + size_bytes > self->staging_bytes ? self->staging_bytes - offset : 0;
    while (self->staging_head + skip + size_bytes - self->staging_tail > self->staging_bytes ||
           self->setup_head - self->setup_tail == SETUP_COUNT_MAX) {
        if (!free_oldest_setup(self, true)) {
            /* Nothing is in use: start again at the front. */
            self->staging_tail = self->staging_head + skip;
        }
    }
    self->staging_head += skip + size_bytes;
    return self->staging + (self->staging_head - size_bytes) % self->staging_bytes;
}

static void
launch_record(sample_pool_t *self, const kern_slot_record_t *record)
{
    kern_slot_setup_args_t args = self->setup_args;
    args.record = record;
    device_ops(self->options.device)->slot_setup(self->options.stream, &args);
}

static proto_status_t
finish_setup(sample_pool_t *self)
{
    setup_t *setup = &self->setups[self->setup_head % SETUP_COUNT_MAX];
    setup->end = self->staging_head;
    self->setup_head++;
    return device_event_record(setup->done, self->options.stream);
}

/* Every slot starts greedy; slot 0 and the sink stay so. */
static proto_status_t
setup_defaults(sample_pool_t *self)
{
    proto_sampling_t greedy = {0};
    for (uint32_t slot = 0; slot < self->rows; slot++) {
        kern_slot_record_t *record =
            (kern_slot_record_t *)(void *)stage(self, round_up(sizeof *record));
        sample_record_make(&greedy, NULL, 0, 0, record);
        record->slot = slot;
        launch_record(self, record);
        proto_status_t status = finish_setup(self);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

proto_status_t
sample_pool_new(const sample_pool_options_t *options, sample_pool_t **out_p)
{
    require(options->slot_count > 0);
    require(options->width >= 1);
    require(options->stop_id_count <= KERN_SAMPLE_BANNED_MAX - PROTO_STOP_IDS_MAX);
    sample_pool_t *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return STATUS_ERR_NO_MEMORY;
    }
    self->options = *options;
    self->options.stop_ids = self->stop_ids;
    if (options->stop_id_count > 0) {
        memcpy(self->stop_ids, options->stop_ids, options->stop_id_count * sizeof(int32_t));
    }
    self->rows = options->slot_count + 2;
    self->logprob_widths = calloc(self->rows, sizeof *self->logprob_widths);
    proto_status_t status = self->logprob_widths == NULL ? STATUS_ERR_NO_MEMORY : STATUS_OK;
    if (status == STATUS_OK) {
        status = pool_alloc(self, DEVICE_MEMORY_DEVICE, lay_out_arrays(self, NULL), &self->arrays);
    }
    if (status == STATUS_OK) {
        (void)lay_out_arrays(self, self->arrays);
        status = pool_alloc(self, DEVICE_MEMORY_DEVICE,
                            (size_t)self->rows * options->vocabulary * sizeof(uint16_t),
                            (void **)&self->counts);
    }
    if (status == STATUS_OK) {
        status = alloc_outputs(self);
    }
    if (status == STATUS_OK) {
        status = alloc_staging(self);
    }
    if (status == STATUS_OK) {
        status = setup_defaults(self);
    }
    if (status != STATUS_OK) {
        sample_pool_destroy(&self);
        return status;
    }
    *out_p = self;
    return STATUS_OK;
}

void
sample_pool_destroy(sample_pool_t **self_p)
{
    require(self_p != NULL);
    sample_pool_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    device_t *device = self->options.device;
    proto_status_t status = device_stream_synchronize(self->options.stream);
    require(status == STATUS_OK || status == STATUS_ERR_DEVICE);
    for (uint32_t i = 0; i < SETUP_COUNT_MAX; i++) {
        device_event_destroy(&self->setups[i].done);
    }
    device_release(device, DEVICE_MEMORY_DEVICE, &self->arrays);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->counts);
    device_release(device, DEVICE_MEMORY_PINNED, (void **)&self->staging);
    device_release(device, DEVICE_MEMORY_DEVICE, &self->workspace);
    device_release(device, DEVICE_MEMORY_DEVICE, (void **)&self->sample_flags);
    device_release(device, DEVICE_MEMORY_DEVICE, &self->logprobs);
    device_release(device, DEVICE_MEMORY_DEVICE, &self->outputs.region);
    free(self->logprob_widths);
    free(self);
    *self_p = NULL;
}

static bool
has_penalties(const kern_slot_record_t *record)
{
    return record->repetition_penalty != 1.0f || record->presence_penalty != 0.0f ||
           record->frequency_penalty != 0.0f;
}

proto_status_t
sample_pool_setup(sample_pool_t *self, const proto_slot_setup_t *setup)
{
    if (setup->slot == 0 || setup->slot > self->options.slot_count ||
        setup->tokens.count > self->options.setup_tokens_max) {
        return STATUS_ERR_INVALID;
    }
    proto_sampling_t sampling = {0};
    if (setup->sampling.count > 0) {
        proto_status_t status = proto_sampling_decode(setup->sampling, &sampling, NULL);
        if (status != STATUS_OK) {
            return status;
        }
    }
    size_t record_bytes = round_up(sizeof(kern_slot_record_t));
    size_t tokens_bytes = round_up(setup->tokens.count * sizeof(int32_t));
    uint8_t *staged = stage(self, record_bytes + tokens_bytes);
    kern_slot_record_t *record = (kern_slot_record_t *)(void *)staged;
    sample_record_make(&sampling, self->stop_ids, self->options.stop_id_count, setup->tokens.count,
                       record);
    record->slot = setup->slot;
    self->logprob_widths[setup->slot] = record->logprobs;
    launch_record(self, record);
    if (has_penalties(record)) {
        uint32_t prompt_count = sampling.prompt_length;
        if (prompt_count == 0 || prompt_count > setup->tokens.count) {
            prompt_count = setup->tokens.count;
        }
        if (setup->tokens.count > 0) {
            memcpy(staged + record_bytes, setup->tokens.data,
                   setup->tokens.count * sizeof(int32_t));
        }
        kern_sample_counts_args_t args = {
            .counts = self->counts + (size_t)setup->slot * self->options.vocabulary,
            .vocabulary = self->options.vocabulary,
            .tokens = (const int32_t *)(const void *)(staged + record_bytes),
            .token_count = setup->tokens.count,
            .prompt_count = prompt_count,
        };
        device_ops(self->options.device)->sample_counts(self->options.stream, &args);
    }
    return finish_setup(self);
}

static void
launch_sample(sample_pool_t *self, const sample_launch_t *launch)
{
    const kern_slot_setup_args_t *a = &self->setup_args;
    size_t entries = (size_t)launch->first_row * KERN_SAMPLE_LOGPROBS_WIDTH;
    kern_sample_args_t args = {
        .pool =
            {
                .temperature = a->temperature,
                .top_k = a->top_k,
                .top_p = a->top_p,
                .min_p = a->min_p,
                .seed = a->seed,
                .repetition_penalty = a->repetition_penalty,
                .presence_penalty = a->presence_penalty,
                .frequency_penalty = a->frequency_penalty,
                .counts = self->counts,
                .bias_counts = a->bias_counts,
                .bias_ids = a->bias_ids,
                .bias_values = a->bias_values,
                .banned_counts = a->stop_counts,
                .banned_ids = a->stop_ids,
                .banned_until = a->stop_from,
                .logprobs = a->logprobs,
                .slot_count = self->rows,
            },
        .logits = launch->logits,
        .logits_stride = launch->logits_stride,
        .vocabulary = self->options.vocabulary,
        .bs = launch->bs,
        .rows_per_request = launch->width,
        .slots = launch->slots,
        .seq_lens = launch->seq_lens,
        .candidates = launch->candidates,
        .verify = self->options.verify,
        .tokens = self->outputs.tokens + launch->first_row,
        .accept_lengths = self->outputs.accept_lengths + launch->first_request,
        .flags = self->sample_flags + launch->first_row,
        .logprob_ids = self->outputs.logprob_ids + entries,
        .logprob_values = self->outputs.logprob_values + entries,
        .workspace = self->workspace,
        .workspace_size_bytes = self->workspace_bytes,
    };
    device_ops(self->options.device)->sample(self->options.stream, &args);
}

void
sample_pool_launch(sample_pool_t *self, const sample_launch_t *launch)
{
    require(launch->first_request + launch->bs <= self->options.bs_max);
    require(launch->first_row + launch->bs * launch->width <=
            self->options.bs_max * self->options.width);
    if (launch->bs == 0) {
        return;
    }
    launch_sample(self, launch);
    kern_stop_flags_args_t flags = {
        .slots = launch->slots,
        .seq_lens = launch->seq_lens,
        .tokens = self->outputs.tokens + launch->first_row,
        .accept_lengths = self->outputs.accept_lengths + launch->first_request,
        .sample_flags = self->sample_flags + launch->first_row,
        .bs = launch->bs,
        .width = launch->width,
        .stop_counts = self->setup_args.stop_counts,
        .stop_ids = self->setup_args.stop_ids,
        .stop_stride = KERN_SAMPLE_BANNED_MAX,
        .stop_from = self->setup_args.stop_from,
        .stop_bit = PROTO_ROW_STOP_TOKEN,
        .nan_bit = PROTO_ROW_NAN,
        .out = self->outputs.row_flags + launch->first_request,
    };
    device_ops(self->options.device)->stop_flags(self->options.stream, &flags);
}

const sample_outputs_t *
sample_pool_outputs(const sample_pool_t *self)
{
    return &self->outputs;
}

uint32_t
sample_pool_logprob_width(const sample_pool_t *self, uint32_t slot)
{
    require(slot < self->rows);
    return self->logprob_widths[slot];
}

void
sample_pool_visit_step_spans(const sample_pool_t *self, const sample_step_t *step,
                             sample_visit_fn visit, void *context)
{
    const sample_outputs_t *out = &self->outputs;
    const int32_t *slots = step->slots;
    uint32_t bs = step->bs;
    size_t rows = (size_t)bs * step->width;
    require(step->width <= self->options.width);
    size_t entries = rows * KERN_SAMPLE_LOGPROBS_WIDTH;
    visit(context, "sample.tokens", out->tokens, rows * sizeof *out->tokens);
    visit(context, "sample.accept_lengths", out->accept_lengths, bs * sizeof *out->accept_lengths);
    visit(context, "sample.row_flags", out->row_flags, bs * sizeof *out->row_flags);
    visit(context, "sample.logprob_ids", out->logprob_ids, entries * sizeof *out->logprob_ids);
    visit(context, "sample.logprob_values", out->logprob_values,
          entries * sizeof *out->logprob_values);
    size_t vocabulary = self->options.vocabulary;
    for (uint32_t i = 0; i < bs; i++) {
        require(slots[i] > 0);
        require((uint32_t)slots[i] < self->rows);
        visit(context, "sample.counts", self->counts + (size_t)slots[i] * vocabulary,
              vocabulary * sizeof *self->counts);
    }
}

size_t
sample_pool_size_bytes(const sample_pool_t *self)
{
    return self->size_bytes;
}
