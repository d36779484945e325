/* From a request's words to a slot's record. */
#include <string.h>

#include "proto_require.h"
#include "sample_pool.h"

_Static_assert((int)PROTO_STOP_IDS_MAX + 16 <= (int)KERN_SAMPLE_BANNED_MAX,
               "stop ids of both kinds fit");
_Static_assert((int)PROTO_BIAS_MAX <= (int)KERN_SAMPLE_BIAS_MAX, "biases fit");

static const double greedy_below = 1e-6;

/* A penalty or limit that was not given arrives as 0. */
static float
positive_or(double value, float otherwise)
{
    return value > 0.0 ? (float)value : otherwise;
}

static void
add_stop_id(kern_slot_record_t *out, int32_t id)
{
    for (uint32_t i = 0; i < out->stop_count; i++) {
        if (out->stop_ids[i] == id) {
            return;
        }
    }
    if (out->stop_count < KERN_SAMPLE_BANNED_MAX) {
        out->stop_ids[out->stop_count++] = id;
    }
}

static uint32_t
count_of(proto_bytes_t bytes, uint32_t count_max)
{
    size_t count = bytes.size_bytes / 4;
    return count > count_max ? count_max : (uint32_t)count;
}

void
sample_record_make(const proto_sampling_t *sampling, const int32_t *model_stop_ids,
                   uint32_t model_stop_id_count, uint32_t token_count, kern_slot_record_t *out)
{
    require(out != NULL);
    memset(out, 0, sizeof *out);
    bool is_greedy = sampling->temperature < greedy_below;
    out->temperature = is_greedy ? 1.0f : (float)sampling->temperature;
    out->top_k = is_greedy ? 1 : (int32_t)sampling->top_k;
    out->top_p = positive_or(sampling->top_p, 1.0f);
    out->min_p = (float)sampling->min_p;
    out->repetition_penalty = positive_or(sampling->repetition_penalty, 1.0f);
    out->presence_penalty = (float)sampling->presence_penalty;
    out->frequency_penalty = (float)sampling->frequency_penalty;
    out->seed = sampling->seed;
    out->logprobs = sampling->logprobs;

    uint32_t biases = count_of(sampling->bias_ids, KERN_SAMPLE_BIAS_MAX);
    uint32_t values = count_of(sampling->bias_values, KERN_SAMPLE_BIAS_MAX);
    out->bias_count = biases < values ? biases : values;
    if (out->bias_count > 0) {
        memcpy(out->bias_ids, sampling->bias_ids.data, out->bias_count * sizeof(int32_t));
        memcpy(out->bias_values, sampling->bias_values.data, out->bias_count * sizeof(float));
    }
    for (uint32_t i = 0; i < count_of(sampling->stop_ids, PROTO_STOP_IDS_MAX); i++) {
        int32_t id;
        memcpy(&id, sampling->stop_ids.data + 4 * (size_t)i, sizeof id);
        add_stop_id(out, id);
    }
    for (uint32_t i = 0; !sampling->ignore_eos && i < model_stop_id_count; i++) {
        add_stop_id(out, model_stop_ids[i]);
    }
    uint32_t prompt_length = sampling->prompt_length;
    if (prompt_length == 0 || prompt_length > token_count) {
        prompt_length = token_count;
    }
    out->stop_from =
        sampling->generation_min == 0 ? 0 : (int32_t)(prompt_length + sampling->generation_min);
}
