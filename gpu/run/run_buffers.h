/* run_buffers.h - persistent input buffers, the state that steps hand to each other on the device,
 * and the host staging of a step.
 *
 * Sized once: bs_max requests (max_decode_bs), step_tokens_max tokens.  A stage belongs to one step
 * from its launch until its outputs were dropped; there is one more stage than steps in flight, so
 * that the outputs of the oldest can be read while the next is being filled.  The device thread. */
#ifndef RUN_BUFFERS_H
#define RUN_BUFFERS_H

#include <stdint.h>

#include "backend_base.h"
#include "cache_plan.h"
#include "device_ops.h"
#include "run_tables.h"

enum {
    RUN_STEPS_IN_FLIGHT_MAX = 2, /* 1 + overlap depth */
    RUN_STAGE_COUNT = 3,
};

/* The small arrays of a step: the same layout in a stage and on the device. */
typedef struct {
    int32_t *slots;          /* [bs_max] extends, then decodes */
    int32_t *prefix_lens;    /* [bs_max] extends */
    int32_t *extend_lens;    /* [bs_max] extends */
    int32_t *cu_lens;        /* [bs_max + 1] extends */
    int32_t *sample_indices; /* [bs_max] extends: row in the outputs, -1 = none */
    int32_t *next_ids;       /* [bs_max] extends: the prompt's token behind the chunk, or -1 */
    int32_t *sample_slots;   /* [bs_max] sampled extends */
    int32_t *sample_lens;    /* [bs_max] sampled extends */
    int32_t *gather_rows;    /* [bs_max * width] rows with logits */
} run_header_t;

typedef struct {
    int32_t *memory; /* pinned: header, ids, tables, clears */
    run_header_t header;
    int32_t *input_ids;    /* [step_tokens_max] of the extends */
    int32_t *tables;       /* [table_count_max] */
    int32_t *clear_groups; /* [clear_count_max] */
    int32_t *clear_blocks; /* [clear_count_max] */
    void *outputs;         /* pinned copy of the sampling outputs */
    int32_t *logprob_ids;  /* pinned */
    float *logprob_values; /* pinned */
    uint64_t mirror;       /* digest of what this rank was told, this step included */
} run_stage_t;

typedef struct {
    device_t *device;
    device_stream_t *stream;
    uint32_t bs_max;
    uint32_t width;
    uint32_t step_tokens_max;
    uint32_t slot_count;
    uint32_t group_count;
    uint32_t columns_max[CACHE_GROUP_COUNT_MAX]; /* of each group's table */
    uint32_t clear_count_max;
    size_t output_region_bytes;
    size_t logprob_count; /* entries of the logprob outputs */
} run_buffers_options_t;

typedef struct {
    run_buffers_options_t options;
    int32_t *device_memory; /* one allocation for what follows */
    run_header_t header;
    int32_t *input_ids;     /* [step_tokens_max] */
    int32_t *positions;     /* [step_tokens_max] */
    int32_t *seq_lens;      /* [bs_max] */
    int32_t *request_slots; /* [bs_max]; padding: 0 */
    int32_t *write_slots;   /* [bs_max]; padding: the sink */
    int32_t *tables;        /* [table_count_max] */
    int32_t *placeholder;   /* zeros, full width: the tables of captures and idle steps */
    int32_t *valid_lengths; /* [slot_count + 2]: tokens in the cache, by slot */
    int32_t *future_inputs; /* [slot_count + 2][width]: next inputs, by slot */
    size_t header_count;    /* int32 entries */
    size_t table_count_max;
    size_t size_bytes;
    run_stage_t stages[RUN_STAGE_COUNT];
} run_buffers_t;

/* STATUS_ERR_NO_MEMORY. */
MUST_CHECK proto_status_t run_buffers_init(run_buffers_t *self,
                                           const run_buffers_options_t *options);
void run_buffers_fini(run_buffers_t *self);

/* The slot that takes the state writes of padded requests. */
int32_t run_buffers_sink(const run_buffers_t *self);

/* Full-width zero tables: complete for every group, all columns the null block. */
backend_tables_t run_buffers_placeholder_tables(const run_buffers_t *self);

/* Packs the tables of a batch into the stage, launches their upload, and says where they are. */
backend_tables_t run_buffers_upload_tables(run_buffers_t *self, run_stage_t *stage,
                                           const run_tables_t *tables, uint32_t bs);

/* Launches the upload of the stage's header and of `token_count` ids. */
void run_buffers_upload(run_buffers_t *self, const run_stage_t *stage, uint32_t token_count);

typedef struct {
    uint32_t first;     /* request, in the header and in the buffers */
    uint32_t first_row; /* its first row */
    uint32_t bs;        /* requests, padding included */
    uint32_t actual_bs; /* live ones; 0 = idle */
    uint32_t width;     /* rows of a request: at most the buffers' */
    uint32_t vocabulary;
} run_decode_fill_t;

/* Launches what the decodes' rows get from the uploaded header and from what the last step left on
 * the device: ids, positions, slots, lengths. */
void run_buffers_fill_decode(run_buffers_t *self, const run_decode_fill_t *fill);

/* Launches what the extends' rows get from the uploaded header: positions, slots, lengths. */
void run_buffers_fill_extend(run_buffers_t *self, uint32_t extends);

/* Fills what lies behind the first `bs` requests, of `width` rows each, with a value that no code
 * survives reading. */
void run_buffers_poison_tails(run_buffers_t *self, uint32_t bs, uint32_t width);

/* Launches a copy of bytes. */
void run_buffers_copy(const run_buffers_t *self, void *to, const void *from, size_t size_bytes);

#endif
