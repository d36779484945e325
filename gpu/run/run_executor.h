/* run_executor.h - the device side of an executor: everything below the actor's core.
 *
 * It owns the device context, the weights, the cache arena, the backend tree, the graph captures
 * and the pinned output buffers.  It trusts its caller: a launch was checked by the executor core.
 * All calls come from one thread (the device thread); on_complete comes from a device thread. */
#ifndef RUN_EXECUTOR_H
#define RUN_EXECUTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto_codec.h"
#include "proto_status.h"

typedef struct run_executor run_executor_t;

enum { RUN_WIDTH_MAX = 16 }; /* the limit of EXECUTOR_INFO.decode_width */

/* Bytes of weights read so far, for the progress bar.  Called on the loading thread. */
typedef void (*run_progress_fn)(void *context, const char *phase, uint64_t done_bytes,
                                uint64_t total_bytes);

typedef struct {
    const char *model_path; /* a GGUF file or a Hugging Face folder */
    const char *device; /* "cpu" (NULL too), "cuda", "cuda:N", or "auto": a GPU if there is one */
    uint32_t model_len_max;        /* 0 = the model's own */
    uint32_t slot_count;           /* requests at once; 0 = 32 */
    uint32_t step_tokens_max;      /* tokens in one forward; 0 = 512 */
    uint32_t block_granularity;    /* raw tokens of a block; 0 = 64 */
    uint64_t cache_size_bytes;     /* cache arena; 0 = choose from memory and limits */
    uint32_t thread_count;         /* compute threads; 0 = the machine's cores */
    bool enforce_eager;            /* capture no graphs, whatever else is asked for */
    uint32_t capture_bs_max;       /* top of the capture ladder; 0 = 32 */
    const uint32_t *capture_sizes; /* ascending decode batches, instead of the ladder; or NULL */
    uint32_t capture_size_count;   /* of them, at most 128 */
    bool no_padding;               /* a decode replays only at exactly a captured size */
    bool disable_prefill_graph;    /* extend and mixed steps always run eagerly */
    uint32_t prefill_graph_tokens_max; /* top token bucket; 0 = min(2048, step_tokens_max) */
    const char *kernel_path;           /* instruction set: "auto", "avx2", "avx512", "portable" */
    const uint8_t
        *page_hash_key; /* PROTO_HASH_SIZE_BYTES; NULL = zeros; an executor actor draws one */
    void (*on_complete)(void *context); /* a step has ended; only wakes somebody; may be NULL */
    void *on_complete_context;
    run_progress_fn progress; /* may be NULL */
    void *progress_context;
    char *error; /* what went wrong, for people; may be NULL */
    size_t error_size_bytes;
    const struct run_plants *plants; /* run_inspect.h: doubles that a test plants; NULL = none */
    bool graph_debug;                /* ONEPATH_GRAPH_DEBUG: verify the addresses of a graph's
                                      * metadata before each replay, poison tails and pools */
    uint32_t page_size;              /* tokens of a kernel page; 0 = min(granularity, 64) */
    bool int8_activations;           /* round activations to 8 bits for quantised weights */
    const char *cache_dtype;         /* "f32", "f16"; NULL or "auto" = f16 unless weights are f32 */
    uint32_t width; /* N: tokens that a decode row computes, at most RUN_WIDTH_MAX; 0 = 1 */
    bool verify_by_rejection; /* candidates stand with the target's probability of them, not if
                               * they are its draw: seeded tokens then depend on the candidates */
    bool keeps_states; /* recurrent layers, N > 1: keep the state after every row, in place of
                        * computing the accepted rows again.  Same bits, more memory */
    bool share_cache;  /* for a kv-transfer: the arena can be mapped by another process, and steps
                        * tell which layers are done (run_share.h) */
    bool autotune;     /* measure at start what changes no result: run_autotune.h */
    const char
        *draft_ring_path;   /* the ring to a drafter is made here, with width > 1; NULL = none */
    uint64_t draft_ring_id; /* names it */
    uint64_t draft_wait_ns; /* the longest wait of a step for candidates; 0 = 100 ms */
    const char *drafter;    /* which one, for the fingerprint; NULL = "none" */
    struct device_group *group; /* lent (device_group.h): of the ranks that share the model, of
                                 * which this is one; NULL = it has all of it.  cache_size_bytes is
                                 * for all of them together */
    const char *draft_path;     /* a drafter in this process, on this device: a draft folder or a
                                 * smaller model (draft_open.h); NULL = none.  `width` 0 is 4 then */
} run_executor_options_t;

/* Loads the model, sizes and allocates everything, captures the graphs.  Takes seconds.
 * STATUS_ERR_CONFIG / STATUS_ERR_MALFORMED / STATUS_ERR_NO_MEMORY with options->error filled.
 * The caller owns *out_p. */
MUST_CHECK proto_status_t run_executor_new(const run_executor_options_t *options,
                                           run_executor_t **out_p);
void run_executor_destroy(run_executor_t **self_p);

/* What this executor has; views live as long as it does. */
void run_executor_info(const run_executor_t *self, proto_executor_info_t *out);

/* A request takes a pool slot: sampling parameters, penalty state from the prompt.  In order with
 * launches. */
MUST_CHECK proto_status_t run_executor_slot_setup(run_executor_t *self,
                                                  const proto_slot_setup_t *setup);

/* Enqueues one step and returns without waiting for it.  At most
 * 1 + overlap_depth_max steps may be in flight (STATUS_FULL beyond).  The launch's views need not
 * outlive the call.  STATUS_ERR_DEVICE is sticky: end the process. */
MUST_CHECK proto_status_t run_executor_launch(run_executor_t *self,
                                              const proto_step_launch_t *launch);

/* The outputs of the oldest step in flight, if it has ended: STATUS_OK; STATUS_AGAIN if it runs;
 * STATUS_END if none is in flight.  Never blocks.  The views live until the next call of
 * run_executor_collect(). */
MUST_CHECK proto_status_t run_executor_collect(run_executor_t *self, proto_step_done_t *out);

/* Whether a step was launched and not yet collected. */
bool run_executor_is_busy(const run_executor_t *self);

/* Waits for what is in flight and drops it; forgets every slot and table. */
MUST_CHECK proto_status_t run_executor_reset(run_executor_t *self);

/* Candidates of this incarnation of the drafter count from now on; 0 = nobody's: a step that waits
 * for some goes on at once.  Nothing without a ring.  Any thread. */
void run_executor_draft_admit(run_executor_t *self, uint64_t epoch);

/* Off: decode steps run eagerly, on: they are replayed again, with the same tokens.  Between two
 * launches, at any time; the captured graphs are kept. */
void run_executor_set_graphs(run_executor_t *self, bool on);

bool run_executor_has_graphs_off(const run_executor_t *self);

/* How decode steps run now: a sentence. */
void run_executor_graphs_text(const run_executor_t *self, char *out, size_t out_size_bytes);

/* Asks for a shadow check (run_shadow.h) of the next decode step that has a graph.  STATUS_ERR_
 * REFUSED: there are no graphs, or they are off, or other ranks would not run the step twice.
 * `is_planted`: with a fault that it must find. */
MUST_CHECK proto_status_t run_executor_want_check(run_executor_t *self, bool is_planted);
/* The verdict: STATUS_OK with *result and *text_p (which lives until the next check is asked for),
 * once; STATUS_AGAIN while no such step came; STATUS_END if none was asked for. */
MUST_CHECK proto_status_t run_executor_take_check(run_executor_t *self, proto_status_t *result,
                                                  const char **text_p);

/* A check that was asked for and not made is not wanted any more. */
void run_executor_drop_check(run_executor_t *self);

/* What was sized and how, one line for each subject, for the start log. */
const char *run_executor_summary(const run_executor_t *self);

/* Why a launch failed with STATUS_ERR_INTERNAL or STATUS_ERR_DEVICE, or a rebind with the former;
 * "" if none did. */
const char *run_executor_fault(const run_executor_t *self);

/* Layer in work, for heartbeats; any thread. */
uint32_t run_executor_layer(const run_executor_t *self);

#endif
