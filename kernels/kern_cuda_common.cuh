/* kern_cuda_common.cuh - inside kernels/: small device functions and the launch of a kernel. */
#ifndef KERN_CUDA_COMMON_CUH
#define KERN_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "kern_cuda.h"

/* Where programmatic dependent launch exists.  Both do nothing in a launch without it. */
__device__ __forceinline__ void
pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Permits the successor's start; publishes nothing.  It stands before the kernel's own wait, so
 * that the successor can load its weights while this one still waits. */
__device__ __forceinline__ void
pdl_trigger()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Copies 16 bytes to shared memory, or zeros where `valid` is false. */
__device__ __forceinline__ void
copy_async(uint32_t shared, const void *global, bool valid)
{
    int size = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(size)
                 : "memory");
}

__device__ __forceinline__ void
copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void
copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void
store_shared(uint32_t shared, uint4 value)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(value.x),
                 "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

__device__ __forceinline__ uint32_t
shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* d += a (16 x 16, rows) * b (16 x 8, columns), half precision in */
__device__ __forceinline__ void
mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t
pack_bf16(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

__device__ __forceinline__ uint32_t
pack_half(float low, float high)
{
    __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

__device__ __forceinline__ void
load_matrix(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void
load_matrix_transposed(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ float
bf16_to_float(kern_bf16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

__device__ __forceinline__ kern_bf16_t
float_to_bf16(float value)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

/* The sum over a warp, the same in every lane: a fixed tree. */
__device__ __forceinline__ float
warp_sum(float value)
{
    for (int step = 16; step > 0; step /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, step);
    }
    return value;
}

/* How a kernel is launched: its grid, its threads, its shared memory, and whether it may start
 * before its predecessor ended. */
typedef struct {
    dim3 grid;
    uint32_t threads;
    size_t shared_bytes;
    uint32_t cluster; /* blocks along x that share memory; 0 and 1 = none */
    bool pdl;
    kern_cuda_stream_t stream;
} kern_cuda_launch_t;

template <typename... Parameters, typename... Arguments>
static int
launch(void (*kernel)(Parameters...), const kern_cuda_launch_t &how, Arguments... arguments)
{
    if (how.shared_bytes > 48 * 1024) {
        cudaError_t status =
            cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)how.shared_bytes);
        if (status != cudaSuccess) {
            return (int)status;
        }
    }
    cudaLaunchAttribute attributes[2];
    unsigned count = 0;
    if (how.pdl) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (how.cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count].val.clusterDim.x = how.cluster;
        attributes[count].val.clusterDim.y = 1;
        attributes[count++].val.clusterDim.z = 1;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = how.grid;
    config.blockDim = dim3(how.threads);
    config.dynamicSmemBytes = how.shared_bytes;
    config.stream = how.stream;
    config.attrs = attributes;
    config.numAttrs = count;
    return (int)cudaLaunchKernelEx(&config, kernel, (Parameters)arguments...);
}

#endif
