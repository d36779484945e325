/* kern_slot.h - the sampling state of one pool slot: its setup, and which tokens end a request.
 *
 * Little work: thread 0 does it and the others pass by.  Arrays are read at execution. */
#ifndef KERN_SLOT_H
#define KERN_SLOT_H

#include <stddef.h>
#include <stdint.h>

#include "kern_sample.h"
#include "kern_share.h"

/* Everything that a pool slot needs to choose tokens, as it is written once for a request. */
typedef struct {
    uint32_t slot;
    float temperature;
    int32_t top_k;
    float top_p;
    float min_p;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint64_t seed;
    uint32_t logprobs;
    uint32_t bias_count;
    int32_t bias_ids[KERN_SAMPLE_BIAS_MAX];
    float bias_values[KERN_SAMPLE_BIAS_MAX];
    uint32_t stop_count;
    int32_t stop_ids[KERN_SAMPLE_BANNED_MAX];
    int32_t stop_from; /* position before which a stop token neither counts nor is drawn */
} kern_slot_record_t;

/* Writes a record into the arrays of the sampling pool (kern_sample.h says what they hold). */
typedef struct {
    const kern_slot_record_t *record; /* read at execution */
    uint32_t slot_count;
    float *temperature;
    int32_t *top_k;
    float *top_p;
    float *min_p;
    uint64_t *seed;
    float *repetition_penalty;
    float *presence_penalty;
    float *frequency_penalty;
    uint32_t *logprobs;
    uint32_t *bias_counts;
    int32_t *bias_ids;
    float *bias_values;
    uint32_t *stop_counts;
    int32_t *stop_ids; /* [slots][KERN_SAMPLE_BANNED_MAX] */
    int32_t *stop_from;
} kern_slot_setup_args_t;
void kern_slot_setup_host(const void *args, kern_share_t *share);

/* Which rows end: out[b] = stop bit if the last accepted token of the request is one of its slot's
 * stop ids and stands at position >= stop_from; nan bit if one of its accepted rows had a NaN. */
typedef struct {
    const int32_t *slots;          /* [bs] */
    const int32_t *seq_lens;       /* [bs], with the `width` tokens of this step */
    const int32_t *tokens;         /* [bs * width] */
    const int32_t *accept_lengths; /* [bs] */
    const uint8_t *sample_flags;   /* [bs * width] KERN_SAMPLE_FLAG_* */
    uint32_t bs;
    uint32_t width;
    const uint32_t *stop_counts; /* [slots] */
    const int32_t *stop_ids;     /* [slots][stop_stride] */
    size_t stop_stride;
    const int32_t *stop_from; /* [slots]: no stop before this position */
    uint8_t stop_bit;
    uint8_t nan_bit;
    uint8_t *out; /* [bs] */
} kern_stop_flags_args_t;
void kern_stop_flags_host(const void *args, kern_share_t *share);

#endif
