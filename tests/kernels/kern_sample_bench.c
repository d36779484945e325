#include "kern_sample_bench.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kern_expect.h"
#include "kern_reference.h"
#include "kern_team.h"

sample_bench_t *
sample_bench_new(uint32_t vocabulary)
{
    sample_bench_t *self = calloc(1, sizeof *self);
    ck_assert(self != NULL);
    for (int i = 0; i < SLOTS; i++) {
        self->temperature[i] = 1.0f;
        self->top_p[i] = 1.0f;
        self->repetition[i] = 1.0f;
        self->seed[i] = 1000 + (uint64_t)i;
    }
    self->args = (kern_sample_args_t){
        .pool = {self->temperature, self->top_k, self->top_p, self->min_p, self->seed,
                 self->repetition, self->presence, self->frequency, self->counts, self->bias_counts,
                 self->bias_ids, self->bias_values, self->banned_counts, self->banned_ids,
                 self->banned_until, self->logprobs, SLOTS},
        .logits = self->logits,
        .logits_stride = vocabulary,
        .vocabulary = vocabulary,
        .bs = 1,
        .rows_per_request = 1,
        .slots = self->slots,
        .seq_lens = self->seq_lens,
        .tokens = self->tokens,
        .accept_lengths = self->accept_lengths,
        .flags = self->flags,
        .logprob_ids = self->logprob_ids,
        .logprob_values = self->logprob_values,
    };
    self->slots[0] = 1;
    self->seq_lens[0] = 10;
    return self;
}

void
sample_bench_run(sample_bench_t *self, kern_path_t path, uint32_t threads)
{
    size_t size_bytes = kern_sample_workspace_size_bytes(self->args.vocabulary, threads);
    reference_guarded_t work = reference_guarded_new(size_bytes);
    self->args.workspace = work.data;
    self->args.workspace_size_bytes = size_bytes;
    kern_team_run(reference_team(path, threads), kern_sample_host, &self->args);
    reference_guarded_check(&work);
    reference_guarded_free(&work);
}

int
sample_by_value(const void *a_void, const void *b_void)
{
    const sample_entry_t *a = a_void;
    const sample_entry_t *b = b_void;
    if (a->z != b->z) {
        return a->z > b->z ? -1 : 1;
    }
    return a->id < b->id ? -1 : 1;
}

void
sample_distribution(const float *z, uint32_t vocabulary, double temperature, int32_t top_k,
                    double top_p, double min_p, double *out)
{
    sample_entry_t *entries = malloc(vocabulary * sizeof *entries);
    ck_assert(entries != NULL);
    for (uint32_t i = 0; i < vocabulary; i++) {
        entries[i] = (sample_entry_t){i, (double)z[i]};
        out[i] = 0.0;
    }
    qsort(entries, vocabulary, sizeof *entries, sample_by_value);
    uint32_t count = top_k > 0 && (uint32_t)top_k < vocabulary ? (uint32_t)top_k : vocabulary;
    double top = entries[0].z;
    double total = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        total += exp((entries[i].z - top) / temperature);
    }
    double mass = 0.0;
    uint32_t kept = 0;
    while (kept < count && (kept == 0 || top_p >= 1.0 || mass < top_p * total)) {
        mass += exp((entries[kept].z - top) / temperature);
        kept++;
    }
    double rest = 0.0;
    for (uint32_t i = 0; i < kept; i++) {
        double weight = exp((entries[i].z - top) / temperature);
        if (weight >= min_p) {
            out[entries[i].id] = weight;
            rest += weight;
        }
    }
    for (uint32_t i = 0; i < vocabulary; i++) {
        out[i] /= rest;
    }
    free(entries);
}

uint32_t
sample_draw(const double *probabilities, uint32_t vocabulary, double coin, double *margin)
{
    double at = 0.0;
    uint32_t last = 0;
    *margin = 1.0;
    for (uint32_t i = 0; i < vocabulary; i++) {
        if (probabilities[i] <= 0.0) {
            continue;
        }
        double next = at + probabilities[i];
        last = i;
        double distance = fmin(fabs(coin - at), fabs(coin - next));
        *margin = distance < *margin ? distance : *margin;
        if (coin < next) {
            return i;
        }
        at = next;
    }
    return last;
}

double
sample_chi_square(const uint32_t *counts, const double *probabilities, uint32_t vocabulary,
                  double total)
{
    double chi_square = 0.0;
    double freedom = -1.0;
    for (uint32_t i = 0; i < vocabulary; i++) {
        double expected = probabilities[i] * total;
        expect(expected > 0.0 || counts[i] == 0);
        if (expected > 0.0) {
            double off = (double)counts[i] - expected;
            chi_square += off * off / expected;
            freedom += 1.0;
        }
    }
    return freedom > 0.0 ? (chi_square - freedom) / sqrt(2.0 * freedom) : 0.0;
}
