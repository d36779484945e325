/* bench_cuda_decode [check|time] [geometry] - the decode kernels of a CUDA device: checked against
 * doubles, then timed as whole decode steps in one captured graph.
 *
 * Geometry: layers,hidden,q_heads,kv_heads,intermediate,vocabulary (default: Qwen3-8B's
 * 36,4096,32,8,12288,151936).  Weights and keys are random: zeros would run faster than real data.
 * Prints JSON to standard output and a table for people to standard error.  Exits 1 if a check
 * fails. */
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kern_cuda.h"

namespace {

constexpr int DIM = KERN_CUDA_HEAD_DIM;

void
must(cudaError_t status, const char *what)
{
    if (status != cudaSuccess) {
        std::fprintf(stderr, "bench_cuda_decode: %s: %s\n", what, cudaGetErrorString(status));
        std::exit(2);
    }
}

void
must(int status, const char *what)
{
    must((cudaError_t)status, what);
}

uint64_t
mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

/* Uniform in (-1, 1), times `scale`. */
float
random_at(uint64_t seed, uint64_t index, float scale)
{
    uint64_t bits = mix(seed * UINT64_C(0x9e3779b97f4a7c15) + index);
    return ((float)(bits >> 40) / 8388608.0f - 1.0f) * scale;
}

kern_bf16_t
to_bf16(float value)
{
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits += 0x7fff + ((bits >> 16) & 1);
    return (kern_bf16_t)(bits >> 16);
}

float
from_bf16(kern_bf16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

__global__ void
fill_kernel(kern_bf16_t *out, size_t count, uint64_t seed, float scale)
{
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        uint64_t value = seed * UINT64_C(0x9e3779b97f4a7c15) + i;
        value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
        value ^= value >> 31;
        float unit = ((float)(value >> 40) / 8388608.0f - 1.0f) * scale;
        uint32_t bits = __float_as_uint(unit);
        bits += 0x7fff + ((bits >> 16) & 1);
        out[i] = (kern_bf16_t)(bits >> 16);
    }
}

/* Device memory that is never given back: the program ends soon. */
template <typename T>
T *
device_new(size_t count)
{
    void *memory = nullptr;
    must(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc");
    return (T *)memory;
}

kern_bf16_t *
device_random(size_t count, uint64_t seed, float scale)
{
    kern_bf16_t *memory = device_new<kern_bf16_t>(count);
    fill_kernel<<<1024, 256>>>(memory, count, seed, scale);
    must(cudaGetLastError(), "fill");
    return memory;
}

template <typename T>
T *
device_copy(const std::vector<T> &host)
{
    T *memory = device_new<T>(host.size());
    must(cudaMemcpy(memory, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
    return memory;
}

template <typename T>
std::vector<T>
host_copy(const T *memory, size_t count)
{
    std::vector<T> host(count);
    must(cudaDeviceSynchronize(), "synchronize");
    must(cudaMemcpy(host.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost), "copy back");
    return host;
}

/* ---- checks ---------------------------------------------------------------------------------- */

int failures = 0;

void
report(const char *what, double distance, double bound)
{
    bool good = distance <= bound; /* false for NaN */
    failures += good ? 0 : 1;
    std::fprintf(stderr, "%-44s %.2e (at most %.0e) %s\n", what, distance, bound,
                 good ? "" : "FAILED");
}

void
report_same(const char *what, bool same)
{
    failures += same ? 0 : 1;
    std::fprintf(stderr, "%-44s %s\n", what, same ? "same bits" : "FAILED: other bits");
}

double
distance_of(const std::vector<double> &wanted, const std::vector<double> &got)
{
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < wanted.size(); i++) {
        difference += (wanted[i] - got[i]) * (wanted[i] - got[i]);
        norm += wanted[i] * wanted[i];
    }
    return std::sqrt(difference / norm);
}

/* An activation as the products read it. */
std::vector<kern_bf16_t>
packed(const std::vector<kern_bf16_t> &rows, uint32_t batch, uint32_t cols)
{
    uint32_t padded = kern_cuda_batch_padded(batch);
    std::vector<kern_bf16_t> out((size_t)padded * cols, 0x7fc0); /* NaN in what nobody may use */
    for (uint32_t b = 0; b < batch; b++) {
        for (uint32_t i = 0; i < cols; i++) {
            out[kern_cuda_packed_index(b, i, padded)] = rows[(size_t)b * cols + i];
        }
    }
    return out;
}

std::vector<kern_bf16_t>
unpacked(const std::vector<kern_bf16_t> &operand, uint32_t batch, uint32_t cols)
{
    std::vector<kern_bf16_t> out((size_t)batch * cols);
    for (uint32_t b = 0; b < batch; b++) {
        for (uint32_t i = 0; i < cols; i++) {
            out[(size_t)b * cols + i] =
                operand[kern_cuda_packed_index(b, i, kern_cuda_batch_padded(batch))];
        }
    }
    return out;
}

std::vector<kern_bf16_t>
random_bf16(size_t count, uint64_t seed, float scale)
{
    std::vector<kern_bf16_t> out(count);
    for (size_t i = 0; i < count; i++) {
        out[i] = to_bf16(random_at(seed, i, scale));
    }
    return out;
}

void
check_linear(uint32_t rows, uint32_t cols, bool pdl)
{
    const uint32_t batches[] = {1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 128, 130};
    const uint32_t most = 130;
    std::vector<kern_bf16_t> w = random_bf16((size_t)rows * cols, 1, 1.0f);
    std::vector<kern_bf16_t> x = random_bf16((size_t)most * cols, 2, 1.0f);
    kern_bf16_t *weight = device_new<kern_bf16_t>((size_t)rows * cols);
    must(kern_cuda_pack(device_copy(w), nullptr, rows, cols, weight, nullptr), "pack");
    uint32_t splits = kern_cuda_split_count(rows, cols);
    std::vector<double> wanted((size_t)most * rows);
    for (uint32_t b = 0; b < most; b++) {
        for (uint32_t n = 0; n < rows; n++) {
            double sum = 0;
            for (uint32_t k = 0; k < cols; k++) {
                sum += (double)from_bf16(x[(size_t)b * cols + k]) *
                       (double)from_bf16(w[(size_t)n * cols + k]);
            }
            wanted[(size_t)b * rows + n] = sum;
        }
    }
    std::vector<float> first;
    bool same = true;
    double worst = 0;
    for (uint32_t batch : batches) {
        float *parts = device_new<float>((size_t)splits * batch * rows);
        must(cudaMemset(parts, 0xff, (size_t)splits * batch * rows * 4), "poison");
        kern_bf16_t *input = device_copy(packed(x, batch, cols));
        kern_cuda_linear_t args = {weight, rows, cols, input, batch, parts, pdl};
        must(kern_cuda_linear(&args, nullptr), "linear");
        std::vector<float> got = host_copy(parts, (size_t)splits * batch * rows);
        std::vector<double> sums((size_t)batch * rows);
        for (uint32_t s = 0; s < splits; s++) {
            for (size_t i = 0; i < sums.size(); i++) {
                sums[i] += (double)got[s * sums.size() + i];
            }
        }
        std::vector<double> part(wanted.begin(), wanted.begin() + sums.size());
        double distance = distance_of(part, sums);
        worst = distance > worst || std::isnan(distance) ? distance : worst;
        if (first.empty()) {
            for (uint32_t s = 0; s < splits; s++) {
                first.insert(first.end(), got.begin() + (size_t)s * rows,
                             got.begin() + (size_t)(s + 1) * rows);
            }
        }
        for (uint32_t s = 0; s < splits; s++) {
            same = same && std::memcmp(first.data() + (size_t)s * rows,
                                       got.data() + (size_t)s * batch * rows, rows * 4) == 0;
        }
        must(cudaFree(parts), "free");
    }
    char what[96];
    std::snprintf(what, sizeof what, "linear %u x %u, %u splits%s", rows, cols, splits,
                  pdl ? ", pdl" : "");
    report(what, worst, 1e-5);
    report_same("  row 0 alone and in every batch", same);
}

void
check_gate_up()
{
    const uint32_t rows = 192;
    const uint32_t cols = 512;
    const uint32_t batch = 19;
    std::vector<kern_bf16_t> g = random_bf16((size_t)rows * cols, 3, 0.1f);
    std::vector<kern_bf16_t> u = random_bf16((size_t)rows * cols, 4, 0.1f);
    std::vector<kern_bf16_t> x = random_bf16((size_t)batch * cols, 5, 1.0f);
    size_t count = (size_t)kern_cuda_batch_padded(batch) * rows;
    kern_bf16_t *output = device_new<kern_bf16_t>(count);
    kern_bf16_t *weight = device_new<kern_bf16_t>((size_t)2 * rows * cols);
    must(kern_cuda_pack(device_copy(g), device_copy(u), 2 * rows, cols, weight, nullptr), "pack");
    kern_cuda_gate_up_t args = {weight, rows,   cols, device_copy(packed(x, batch, cols)),
                                batch,  output, false};
    must(kern_cuda_gate_up(&args, nullptr), "gate_up");
    std::vector<kern_bf16_t> got = unpacked(host_copy(output, count), batch, rows);
    std::vector<double> wanted;
    std::vector<double> found;
    for (uint32_t b = 0; b < batch; b++) {
        for (uint32_t n = 0; n < rows; n++) {
            double gate = 0;
            double up = 0;
            for (uint32_t k = 0; k < cols; k++) {
                double value = (double)from_bf16(x[(size_t)b * cols + k]);
                gate += value * (double)from_bf16(g[(size_t)n * cols + k]);
                up += value * (double)from_bf16(u[(size_t)n * cols + k]);
            }
            wanted.push_back(gate / (1.0 + std::exp(-gate)) * up);
            found.push_back((double)from_bf16(got[(size_t)b * rows + n]));
        }
    }
    report("gate and up", distance_of(wanted, found), 4e-3);
}

void
check_norm()
{
    const uint32_t cols = 1152;
    const uint32_t batch = 5;
    const uint32_t splits = 3;
    std::vector<float> x((size_t)batch * cols);
    std::vector<float> parts((size_t)splits * batch * cols);
    for (size_t i = 0; i < x.size(); i++) {
        x[i] = random_at(6, i, 2.0f);
    }
    for (size_t i = 0; i < parts.size(); i++) {
        parts[i] = random_at(7, i, 1.0f);
    }
    std::vector<kern_bf16_t> w = random_bf16(cols, 8, 1.0f);
    float *stream = device_copy(x);
    size_t count = (size_t)kern_cuda_batch_padded(batch) * cols;
    kern_bf16_t *output = device_new<kern_bf16_t>(count);
    kern_cuda_add_norm_t args = {
        stream, device_copy(parts), splits, device_copy(w), output, batch, cols, 1e-6f, false};
    must(kern_cuda_add_norm(&args, nullptr), "add_norm");
    std::vector<kern_bf16_t> got = unpacked(host_copy(output, count), batch, cols);
    std::vector<float> sums = host_copy(stream, (size_t)batch * cols);
    std::vector<double> wanted;
    std::vector<double> found;
    std::vector<double> wanted_x;
    std::vector<double> found_x;
    for (uint32_t b = 0; b < batch; b++) {
        std::vector<double> row(cols);
        double squares = 0;
        for (uint32_t i = 0; i < cols; i++) {
            row[i] = (double)x[(size_t)b * cols + i];
            for (uint32_t s = 0; s < splits; s++) {
                row[i] += (double)parts[((size_t)s * batch + b) * cols + i];
            }
            squares += row[i] * row[i];
        }
        double scale = 1.0 / std::sqrt(squares / cols + 1e-6);
        for (uint32_t i = 0; i < cols; i++) {
            wanted.push_back(row[i] * scale * (double)from_bf16(w[i]));
            found.push_back((double)from_bf16(got[(size_t)b * cols + i]));
            wanted_x.push_back(row[i]);
            found_x.push_back((double)sums[(size_t)b * cols + i]);
        }
    }
    report("add and norm, the norm", distance_of(wanted, found), 4e-3);
    report("add and norm, the sum", distance_of(wanted_x, found_x), 1e-6);
}

void
check_rope()
{
    const uint32_t q_heads = 6;
    const uint32_t kv_heads = 2;
    const uint32_t heads = q_heads + 2 * kv_heads;
    const uint32_t batch = 3;
    const uint32_t splits = 2;
    const uint32_t slots = 40;
    std::vector<float> parts((size_t)splits * batch * heads * DIM);
    for (size_t i = 0; i < parts.size(); i++) {
        parts[i] = random_at(9, i, 1.0f);
    }
    std::vector<kern_bf16_t> q_norm = random_bf16(DIM, 10, 1.0f);
    std::vector<kern_bf16_t> k_norm = random_bf16(DIM, 11, 1.0f);
    std::vector<float> frequencies(DIM / 2);
    for (int i = 0; i < DIM / 2; i++) {
        frequencies[i] = (float)std::pow(1e6, -2.0 * i / DIM);
    }
    std::vector<int32_t> positions = {0, 17, 4000};
    std::vector<int32_t> locations = {3, -1, 39};
    kern_bf16_t *q = device_new<kern_bf16_t>((size_t)batch * q_heads * DIM);
    kern_bf16_t *k = device_new<kern_bf16_t>((size_t)slots * kv_heads * DIM);
    kern_bf16_t *v = device_new<kern_bf16_t>((size_t)slots * kv_heads * DIM);
    must(cudaMemset(k, 0xff, (size_t)slots * kv_heads * DIM * 2), "poison");
    must(cudaMemset(v, 0xff, (size_t)slots * kv_heads * DIM * 2), "poison");
    kern_cuda_rope_write_t args = {device_copy(parts),
                                   splits,
                                   batch,
                                   q_heads,
                                   kv_heads,
                                   device_copy(q_norm),
                                   device_copy(k_norm),
                                   1e-6f,
                                   device_copy(frequencies),
                                   device_copy(positions),
                                   device_copy(locations),
                                   q,
                                   k,
                                   v,
                                   false};
    must(kern_cuda_rope_write(&args, nullptr), "rope_write");
    std::vector<kern_bf16_t> got_q = host_copy(q, (size_t)batch * q_heads * DIM);
    std::vector<kern_bf16_t> got_k = host_copy(k, (size_t)slots * kv_heads * DIM);
    std::vector<kern_bf16_t> got_v = host_copy(v, (size_t)slots * kv_heads * DIM);
    std::vector<double> wanted;
    std::vector<double> found;
    size_t untouched = 0;
    for (uint32_t b = 0; b < batch; b++) {
        for (uint32_t h = 0; h < heads; h++) {
            double row[DIM];
            double squares = 0;
            for (int i = 0; i < DIM; i++) {
                row[i] = 0;
                for (uint32_t s = 0; s < splits; s++) {
                    row[i] += (double)parts[(((size_t)s * batch + b) * heads + h) * DIM + i];
                }
                squares += row[i] * row[i];
            }
            bool is_q = h < q_heads;
            bool is_k = !is_q && h < q_heads + kv_heads;
            double scale = 1.0 / std::sqrt(squares / DIM + 1e-6);
            for (int i = 0; i < DIM && (is_q || is_k); i++) {
                row[i] *= scale * (double)from_bf16(is_q ? q_norm[i] : k_norm[i]);
            }
            for (int i = 0; i < DIM; i++) {
                double value = row[i];
                if (is_q || is_k) {
                    int pair = i % (DIM / 2);
                    /* The product is a float32 product, as the references have it. */
                    double angle = (double)((float)positions[b] * frequencies[pair]);
                    double other = i < DIM / 2 ? -row[i + DIM / 2] : row[i - DIM / 2];
                    value = row[i] * std::cos(angle) + other * std::sin(angle);
                }
                size_t kv =
                    ((size_t)std::max(locations[b], 0) * kv_heads + (h - q_heads) % kv_heads) *
                        DIM +
                    i;
                if (is_q) {
                    wanted.push_back(value);
                    found.push_back((double)from_bf16(got_q[((size_t)b * q_heads + h) * DIM + i]));
                } else if (locations[b] >= 0) {
                    wanted.push_back(value);
                    found.push_back((double)from_bf16(is_k ? got_k[kv] : got_v[kv]));
                }
            }
        }
    }
    for (size_t i = 0; i < got_k.size(); i++) {
        untouched += got_k[i] == 0xffff && got_v[i] == 0xffff ? 1 : 0;
    }
    report("rotation and cache write", distance_of(wanted, found), 4e-3);
    report_same("  no other slot is written", untouched == got_k.size() - 2 * kv_heads * DIM);
}

/* Attention of one request in doubles. */
void
attend(const std::vector<kern_bf16_t> &q, const std::vector<kern_bf16_t> &k,
       const std::vector<kern_bf16_t> &v, const int32_t *pages, uint32_t page_size, int length,
       uint32_t request, uint32_t q_heads, uint32_t kv_heads, std::vector<double> &out)
{
    for (uint32_t h = 0; h < q_heads; h++) {
        std::vector<double> scores(length);
        double best = -1e300;
        for (int p = 0; p < length; p++) {
            size_t slot = (size_t)pages[p / page_size] * page_size + p % page_size;
            const kern_bf16_t *key = &k[(slot * kv_heads + h / (q_heads / kv_heads)) * DIM];
            double sum = 0;
            for (int i = 0; i < DIM; i++) {
                sum += (double)from_bf16(q[((size_t)request * q_heads + h) * DIM + i]) *
                       (double)from_bf16(key[i]);
            }
            scores[p] = sum / std::sqrt((double)DIM);
            best = std::max(best, scores[p]);
        }
        double total = 0;
        std::vector<double> value(DIM);
        for (int p = 0; p < length; p++) {
            size_t slot = (size_t)pages[p / page_size] * page_size + p % page_size;
            const kern_bf16_t *row = &v[(slot * kv_heads + h / (q_heads / kv_heads)) * DIM];
            double weight = std::exp(scores[p] - best);
            total += weight;
            for (int i = 0; i < DIM; i++) {
                value[i] += weight * (double)from_bf16(row[i]);
            }
        }
        for (int i = 0; i < DIM; i++) {
            out.push_back(value[i] / total);
        }
    }
}

void
check_attention()
{
    const uint32_t q_heads = 8;
    const uint32_t kv_heads = 2;
    const uint32_t page_size = 64;
    const uint32_t pages = 120;
    const std::vector<int32_t> lengths = {1, 16, 63, 64, 65, 511, 512, 513, 1300};
    const uint32_t batch = (uint32_t)lengths.size();
    const uint32_t stride = 24;
    size_t cells = (size_t)pages * page_size * kv_heads * DIM;
    std::vector<kern_bf16_t> q = random_bf16((size_t)batch * q_heads * DIM, 12, 2.0f);
    std::vector<kern_bf16_t> k = random_bf16(cells, 13, 2.0f);
    std::vector<kern_bf16_t> v = random_bf16(cells, 14, 1.0f);
    std::vector<int32_t> table((size_t)batch * stride);
    for (size_t i = 0; i < table.size(); i++) {
        table[i] = 1 + (int32_t)(mix(i + 99) % (pages - 1));
    }
    size_t count = (size_t)kern_cuda_batch_padded(batch) * q_heads * DIM;
    kern_bf16_t *output = device_new<kern_bf16_t>(count);
    float *workspace =
        device_new<float>(kern_cuda_attention_workspace_floats(batch, q_heads, 1536));
    kern_cuda_attention_t args = {device_copy(q),
                                  device_copy(k),
                                  device_copy(v),
                                  device_copy(table),
                                  stride,
                                  page_size,
                                  device_copy(lengths),
                                  batch,
                                  q_heads,
                                  kv_heads,
                                  1536,
                                  (float)(1.0 / std::sqrt((double)DIM)),
                                  workspace,
                                  output,
                                  false};
    must(kern_cuda_attention(&args, nullptr), "attention");
    std::vector<kern_bf16_t> got = unpacked(host_copy(output, count), batch, q_heads * DIM);
    std::vector<double> wanted;
    for (uint32_t b = 0; b < batch; b++) {
        attend(q, k, v, &table[(size_t)b * stride], page_size, lengths[b], b, q_heads, kv_heads,
               wanted);
    }
    std::vector<double> found;
    for (kern_bf16_t bits : got) {
        found.push_back((double)from_bf16(bits));
    }
    report("paged attention, lengths 1 to 1300", distance_of(wanted, found), 8e-3);
    bool same = true;
    for (uint32_t b = 0; b < batch; b++) {
        kern_cuda_attention_t alone = args;
        alone.batch = 1;
        alone.q = args.q + (size_t)b * q_heads * DIM;
        alone.page_table = args.page_table + (size_t)b * stride;
        alone.seq_lens = args.seq_lens + b;
        alone.seq_len_max = 2048;
        alone.workspace = device_new<float>(kern_cuda_attention_workspace_floats(1, q_heads, 2048));
        alone.output = device_new<kern_bf16_t>((size_t)8 * q_heads * DIM);
        must(kern_cuda_attention(&alone, nullptr), "attention");
        std::vector<kern_bf16_t> one =
            unpacked(host_copy(alone.output, (size_t)8 * q_heads * DIM), 1, q_heads * DIM);
        same =
            same && std::memcmp(one.data(), &got[(size_t)b * q_heads * DIM], one.size() * 2) == 0;
    }
    report_same("  each request alone and together", same);
}

void
check_ends()
{
    const uint32_t vocabulary = 5000;
    std::vector<float> logits((size_t)3 * vocabulary);
    for (size_t i = 0; i < logits.size(); i++) {
        logits[i] = random_at(15, i, 1.0f);
    }
    logits[4321] = 5.0f;
    logits[4999] = 5.0f;
    logits[vocabulary] = 7.0f;
    logits[3 * (size_t)vocabulary - 1] = 9.0f;
    int32_t *tokens = device_new<int32_t>(3);
    kern_cuda_argmax_t args = {device_copy(logits), vocabulary, 3, tokens};
    must(kern_cuda_argmax(&args, nullptr), "argmax");
    std::vector<int32_t> got = host_copy(tokens, 3);
    report_same("argmax, the first of equals", got[0] == 4321 && got[1] == 0 && got[2] == 4999);
    const uint32_t cols = 96;
    std::vector<kern_bf16_t> table = random_bf16((size_t)10 * cols, 16, 1.0f);
    std::vector<int32_t> ids = {9, -1, 10};
    float *x = device_new<float>(3 * cols);
    kern_cuda_embed_t embed = {device_copy(table), device_copy(ids), 10, x, 3, cols};
    must(kern_cuda_embed(&embed, nullptr), "embed");
    std::vector<float> row = host_copy(x, 3 * cols);
    bool same = true;
    for (uint32_t i = 0; i < cols; i++) {
        same = same && row[i] == from_bf16(table[9 * cols + i]) && row[cols + i] == 0.0f &&
               row[2 * cols + i] == 0.0f;
    }
    report_same("embedding, strange tokens give zeros", same);
}

/* ---- whole steps ----------------------------------------------------------------------------- */

struct geometry_t {
    uint32_t layers, hidden, q_heads, kv_heads, intermediate, vocabulary;
};

struct layer_t {
    kern_bf16_t *attn_norm, *qkv, *q_norm, *k_norm, *o, *ffn_norm, *gate_up, *down;
};

struct model_t {
    geometry_t g;
    std::vector<layer_t> layers;
    kern_bf16_t *embed, *output_norm, *output;
    float *frequencies;
    size_t streamed_bytes; /* of weights, in a step */
};

model_t
make_model(const geometry_t &g)
{
    model_t model = {g, {}, nullptr, nullptr, nullptr, nullptr, 0};
    uint32_t q_size = g.q_heads * DIM;
    uint32_t kv_size = g.kv_heads * DIM;
    float scale = 1.7f / std::sqrt((float)g.hidden);
    uint64_t seed = 100;
    auto weight = [&](size_t rows, size_t cols, float size) {
        model.streamed_bytes += rows * cols * 2;
        return device_random(rows * cols, seed++, size);
    };
    for (uint32_t i = 0; i < g.layers; i++) {
        layer_t layer;
        layer.attn_norm = device_random(g.hidden, seed++, 1.0f);
        layer.qkv = weight(q_size + 2 * kv_size, g.hidden, scale);
        layer.q_norm = device_random(DIM, seed++, 1.0f);
        layer.k_norm = device_random(DIM, seed++, 1.0f);
        layer.o = weight(g.hidden, q_size, scale);
        layer.ffn_norm = device_random(g.hidden, seed++, 1.0f);
        layer.gate_up = weight(2 * g.intermediate, g.hidden, scale);
        layer.down = weight(g.hidden, g.intermediate, scale);
        model.layers.push_back(layer);
    }
    model.output_norm = device_random(g.hidden, seed++, 1.0f);
    model.output = weight(g.vocabulary, g.hidden, scale);
    model.embed = device_random((size_t)g.vocabulary * g.hidden, seed++, 1.0f);
    std::vector<float> frequencies(DIM / 2);
    for (int i = 0; i < DIM / 2; i++) {
        frequencies[i] = (float)std::pow(1e6, -2.0 * i / DIM);
    }
    model.frequencies = device_copy(frequencies);
    return model;
}

/* Buffers of one batch size and context.  Random weights are as good packed as not. */
struct step_t {
    uint32_t batch, length, page_size, pages;
    int32_t *tokens, *positions, *locations, *lengths, *table;
    float *x, *parts, *workspace, *logits;
    kern_bf16_t *normed, *q, *attention, *hidden;
    kern_bf16_t *k_cache, *v_cache; /* of all layers */
    size_t layer_cells;
    size_t cache_bytes; /* read in a step */
};

step_t
make_step(const geometry_t &g, uint32_t batch, uint32_t length)
{
    step_t s = {};
    s.batch = batch;
    s.length = length;
    s.page_size = 64;
    s.pages = (length + s.page_size - 1) / s.page_size;
    uint32_t total = 1 + batch * s.pages;
    std::vector<int32_t> table((size_t)batch * s.pages);
    for (size_t i = 0; i < table.size(); i++) {
        table[i] = 1 + (int32_t)i;
    }
    for (size_t i = table.size(); i > 1; i--) {
        std::swap(table[i - 1], table[mix(i) % i]); /* pages lie anywhere */
    }
    std::vector<int32_t> locations(batch);
    for (uint32_t b = 0; b < batch; b++) {
        locations[b] =
            table[(size_t)b * s.pages + (length - 1) / s.page_size] * (int32_t)s.page_size +
            (int32_t)((length - 1) % s.page_size);
    }
    s.table = device_copy(table);
    s.locations = device_copy(locations);
    s.tokens = device_copy(std::vector<int32_t>(batch, 5));
    s.positions = device_copy(std::vector<int32_t>(batch, (int32_t)length - 1));
    s.lengths = device_copy(std::vector<int32_t>(batch, (int32_t)length));
    uint32_t q_size = g.q_heads * DIM;
    uint32_t qkv = q_size + 2 * g.kv_heads * DIM;
    size_t parts = std::max((size_t)kern_cuda_split_count(qkv, g.hidden) * qkv,
                            (size_t)kern_cuda_split_count(g.hidden, q_size) * g.hidden);
    parts = std::max(parts, (size_t)kern_cuda_split_count(g.hidden, g.intermediate) * g.hidden);
    s.parts = device_new<float>(parts * batch);
    s.x = device_new<float>((size_t)batch * g.hidden);
    s.logits = device_new<float>((size_t)batch * g.vocabulary);
    s.workspace = device_new<float>(kern_cuda_attention_workspace_floats(batch, g.q_heads, length));
    size_t padded = kern_cuda_batch_padded(batch);
    s.normed = device_random(padded * g.hidden, 7003, 1.0f);
    s.q = device_new<kern_bf16_t>((size_t)batch * q_size);
    s.attention = device_random(padded * q_size, 7004, 1.0f);
    s.hidden = device_random(padded * g.intermediate, 7005, 1.0f);
    s.layer_cells = (size_t)total * s.page_size * g.kv_heads * DIM;
    s.k_cache = device_random(s.layer_cells * g.layers, 7001, 1.0f);
    s.v_cache = device_random(s.layer_cells * g.layers, 7002, 1.0f);
    s.cache_bytes = (size_t)2 * g.layers * batch * length * g.kv_heads * DIM * 2;
    return s;
}

void
free_step(const step_t &s)
{
    void *all[] = {s.table, s.locations, s.tokens, s.positions, s.lengths,
                   s.parts, s.x,         s.logits, s.workspace, s.normed,
                   s.q,     s.attention, s.hidden, s.k_cache,   s.v_cache};
    for (void *memory : all) {
        must(cudaFree(memory), "free");
    }
}

void
launch_step(const model_t &m, const step_t &s, bool pdl, cudaStream_t stream)
{
    const geometry_t &g = m.g;
    uint32_t q_size = g.q_heads * DIM;
    uint32_t qkv = q_size + 2 * g.kv_heads * DIM;
    kern_cuda_embed_t embed = {m.embed, s.tokens, g.vocabulary, s.x, s.batch, g.hidden};
    must(kern_cuda_embed(&embed, stream), "embed");
    uint32_t splits = 0;
    for (uint32_t i = 0; i < g.layers; i++) {
        const layer_t &l = m.layers[i];
        kern_cuda_add_norm_t norm = {s.x,     s.parts,  splits, l.attn_norm, s.normed,
                                     s.batch, g.hidden, 1e-6f,  pdl && i > 0};
        must(kern_cuda_add_norm(&norm, stream), "add_norm");
        kern_cuda_linear_t project = {l.qkv, qkv, g.hidden, s.normed, s.batch, s.parts, pdl};
        must(kern_cuda_linear(&project, stream), "qkv");
        kern_bf16_t *k = s.k_cache + i * s.layer_cells;
        kern_bf16_t *v = s.v_cache + i * s.layer_cells;
        kern_cuda_rope_write_t rope = {s.parts,
                                       kern_cuda_split_count(qkv, g.hidden),
                                       s.batch,
                                       g.q_heads,
                                       g.kv_heads,
                                       l.q_norm,
                                       l.k_norm,
                                       1e-6f,
                                       m.frequencies,
                                       s.positions,
                                       s.locations,
                                       s.q,
                                       k,
                                       v,
                                       pdl};
        must(kern_cuda_rope_write(&rope, stream), "rope_write");
        kern_cuda_attention_t attention = {
            s.q,         k,           v,         s.table,
            s.pages,     s.page_size, s.lengths, s.batch,
            g.q_heads,   g.kv_heads,  s.length,  (float)(1.0 / std::sqrt((double)DIM)),
            s.workspace, s.attention, pdl};
        must(kern_cuda_attention(&attention, stream), "attention");
        kern_cuda_linear_t out = {l.o, g.hidden, q_size, s.attention, s.batch, s.parts, pdl};
        must(kern_cuda_linear(&out, stream), "o");
        kern_cuda_add_norm_t between = {
            s.x,        s.parts,  kern_cuda_split_count(g.hidden, q_size),
            l.ffn_norm, s.normed, s.batch,
            g.hidden,   1e-6f,    pdl};
        must(kern_cuda_add_norm(&between, stream), "add_norm");
        kern_cuda_gate_up_t gate_up = {l.gate_up, g.intermediate, g.hidden, s.normed,
                                       s.batch,   s.hidden,       pdl};
        must(kern_cuda_gate_up(&gate_up, stream), "gate_up");
        kern_cuda_linear_t down = {l.down,  g.hidden, g.intermediate, s.hidden, s.batch,
                                   s.parts, pdl};
        must(kern_cuda_linear(&down, stream), "down");
        splits = kern_cuda_split_count(g.hidden, g.intermediate);
    }
    kern_cuda_add_norm_t norm = {s.x,      s.parts, splits, m.output_norm, s.normed, s.batch,
                                 g.hidden, 1e-6f,   pdl};
    must(kern_cuda_add_norm(&norm, stream), "add_norm");
    kern_cuda_linear_t head = {m.output, g.vocabulary, g.hidden, s.normed, s.batch, s.logits, pdl};
    must(kern_cuda_linear(&head, stream), "head");
    kern_cuda_argmax_t argmax = {s.logits, g.vocabulary, s.batch, s.tokens};
    must(kern_cuda_argmax(&argmax, stream), "argmax");
}

template <typename F>
float
median_ms(F &&work, cudaStream_t stream, int count)
{
    std::vector<float> times;
    cudaEvent_t begin;
    cudaEvent_t end;
    must(cudaEventCreate(&begin), "event");
    must(cudaEventCreate(&end), "event");
    for (int i = 0; i < 5; i++) {
        work();
    }
    for (int i = 0; i < count; i++) {
        must(cudaEventRecord(begin, stream), "record");
        work();
        must(cudaEventRecord(end, stream), "record");
        must(cudaEventSynchronize(end), "synchronize");
        float ms = 0;
        must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
        times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

double
measure_copy(cudaStream_t stream)
{
    size_t bytes = (size_t)4 << 30;
    kern_bf16_t *from = device_random(bytes / 2, 1, 1.0f);
    kern_bf16_t *to = device_new<kern_bf16_t>(bytes / 2);
    float ms = median_ms(
        [&] { must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copy"); },
        stream, 11);
    must(cudaFree(from), "free");
    must(cudaFree(to), "free");
    return 2.0 * (double)bytes / ((double)ms * 1e-3);
}

void
time_step(const model_t &m, uint32_t batch, uint32_t length, bool pdl, double ceiling,
          cudaStream_t stream, bool is_last)
{
    step_t s = make_step(m.g, batch, length);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    launch_step(m, s, pdl, stream);
    must(cudaStreamEndCapture(stream, &graph), "end of capture");
    must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    float ms = median_ms([&] { must(cudaGraphLaunch(exec, stream), "launch"); }, stream, 31);
    double floor_ms = (double)(m.streamed_bytes + s.cache_bytes) / ceiling * 1e3;
    std::printf("  {\"batch\": %u, \"context\": %u, \"pdl\": %s, \"step_ms\": %.3f, "
                "\"floor_ms\": %.3f, \"of_ceiling\": %.3f}%s\n",
                batch, length, pdl ? "true" : "false", (double)ms, floor_ms, floor_ms / (double)ms,
                is_last ? "" : ",");
    std::fprintf(stderr, "batch %3u context %5u %s: %.3f ms, floor %.3f ms (%.0f %%)\n", batch,
                 length, pdl ? "pdl   " : "no pdl", (double)ms, floor_ms,
                 100.0 * floor_ms / (double)ms);
    must(cudaGraphExecDestroy(exec), "destroy");
    must(cudaGraphDestroy(graph), "destroy");
    free_step(s);
}

void
time_attention(const geometry_t &g, uint32_t batch, uint32_t length, double ceiling,
               cudaStream_t stream)
{
    geometry_t one = g;
    one.layers = 2; /* taken in turn, so that the L2 holds neither */
    step_t s = make_step(one, batch, length);
    int layer = 0;
    float ms = median_ms(
        [&] {
            kern_cuda_attention_t a = {s.q,
                                       s.k_cache + layer * s.layer_cells,
                                       s.v_cache + layer * s.layer_cells,
                                       s.table,
                                       s.pages,
                                       s.page_size,
                                       s.lengths,
                                       s.batch,
                                       g.q_heads,
                                       g.kv_heads,
                                       s.length,
                                       (float)(1.0 / std::sqrt((double)DIM)),
                                       s.workspace,
                                       s.attention,
                                       false};
            must(kern_cuda_attention(&a, stream), "attention");
            layer = 1 - layer;
        },
        stream, 31);
    double bytes = (double)s.cache_bytes / 2;
    std::printf("  \"attention_%ux%u\": {\"us\": %.1f, \"of_ceiling\": %.3f},\n", batch, length,
                (double)ms * 1e3, bytes / ceiling / ((double)ms * 1e-3));
    std::fprintf(stderr, "attention batch %u context %u: %.1f us, %.0f %% of the ceiling\n", batch,
                 length, (double)ms * 1e3, 100.0 * bytes / ceiling / ((double)ms * 1e-3));
    free_step(s);
}

void
time_linear(const model_t &m, uint32_t batch, double ceiling, cudaStream_t stream)
{
    const geometry_t &g = m.g;
    uint32_t q_size = g.q_heads * DIM;
    uint32_t qkv = q_size + 2 * g.kv_heads * DIM;
    step_t s = make_step(g, batch, 64);
    struct {
        const char *name;
        uint32_t rows, cols;
        int which;
    } shapes[] = {{"qkv", qkv, g.hidden, 0},
                  {"o", g.hidden, q_size, 1},
                  {"down", g.hidden, g.intermediate, 2},
                  {"gate_up", 2 * g.intermediate, g.hidden, 3}};
    for (const auto &shape : shapes) {
        size_t at = 0;
        float ms = median_ms(
            [&] {
                for (int i = 0; i < 12; i++) {
                    const layer_t &l = m.layers[at++ % m.layers.size()];
                    if (shape.which == 3) {
                        kern_cuda_gate_up_t a = {l.gate_up, g.intermediate, g.hidden, s.normed,
                                                 s.batch,   s.hidden,       false};
                        must(kern_cuda_gate_up(&a, stream), "gate_up");
                    } else {
                        const kern_bf16_t *w = shape.which == 0   ? l.qkv
                                               : shape.which == 1 ? l.o
                                                                  : l.down;
                        kern_cuda_linear_t a = {w,       shape.rows, shape.cols, s.hidden,
                                                s.batch, s.parts,    false};
                        must(kern_cuda_linear(&a, stream), "linear");
                    }
                }
            },
            stream, 21);
        double us = (double)ms * 1e3 / 12;
        double bytes = (double)shape.rows * shape.cols * 2;
        std::fprintf(stderr, "linear %-8s batch %3u: %.1f us, %.0f %% of the ceiling\n", shape.name,
                     batch, us, 100.0 * bytes / ceiling / (us * 1e-6));
    }
    free_step(s);
}

void
time_all(const geometry_t &g)
{
    cudaStream_t stream;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    cudaDeviceProp properties;
    must(cudaGetDeviceProperties(&properties, 0), "properties");
    double ceiling = measure_copy(stream);
    model_t model = make_model(g);
    must(cudaDeviceSynchronize(), "weights");
    std::printf("{\n  \"card\": \"%s\", \"multiprocessors\": %d, \"copy_tb_s\": %.3f,\n",
                properties.name, properties.multiProcessorCount, ceiling * 1e-12);
    std::printf("  \"geometry\": \"%u,%u,%u,%u,%u,%u\", \"weights_gb\": %.2f,\n", g.layers,
                g.hidden, g.q_heads, g.kv_heads, g.intermediate, g.vocabulary,
                (double)model.streamed_bytes * 1e-9);
    std::fprintf(stderr, "copy: %.2f TB/s\n", ceiling * 1e-12);
    time_attention(g, 64, 8192, ceiling, stream);
    time_attention(g, 1, 1024, ceiling, stream);
    time_attention(g, 1, 32768, ceiling, stream);
    time_linear(model, 1, ceiling, stream);
    time_linear(model, 32, ceiling, stream);
    time_linear(model, 128, ceiling, stream);
    std::printf("  \"steps\": [\n");
    const uint32_t cases[][2] = {{1, 1024},  {8, 1024},   {32, 1024},
                                 {64, 1024}, {128, 1024}, {1, 32768}};
    constexpr int COUNT = sizeof cases / sizeof *cases;
    for (int i = 0; i < COUNT; i++) {
        for (int pdl = 0; pdl < 2; pdl++) {
            time_step(model, cases[i][0], cases[i][1], pdl == 1, ceiling, stream,
                      i == COUNT - 1 && pdl == 1);
        }
    }
    std::printf("  ]\n}\n");
}

} // namespace

int
main(int argc, char **argv)
{
    std::string what = argc > 1 ? argv[1] : "all";
    geometry_t g = {36, 4096, 32, 8, 12288, 151936};
    if (argc > 2 && std::sscanf(argv[2], "%u,%u,%u,%u,%u,%u", &g.layers, &g.hidden, &g.q_heads,
                                &g.kv_heads, &g.intermediate, &g.vocabulary) != 6) {
        std::fprintf(stderr, "usage: bench_cuda_decode [check|time|all] "
                             "[layers,hidden,q_heads,kv_heads,intermediate,vocabulary]\n");
        return 78;
    }
    if (what != "time") {
        check_linear(256, 1024, false);
        check_linear(128, 4096, true);
        check_gate_up();
        check_norm();
        check_rope();
        check_attention();
        check_ends();
    }
    if (what != "check" && failures == 0) {
        time_all(g);
    }
    std::fprintf(stderr, failures == 0 ? "all checks passed\n" : "%d checks FAILED\n", failures);
    return failures == 0 ? 0 : 1;
}
