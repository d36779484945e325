/* kern_cuda_wgmma.cuh - inside kernels/: the warpgroup's matrix unit, bulk copies and their
 * barriers (compute capability 9.0a). */
#ifndef KERN_CUDA_WGMMA_CUH
#define KERN_CUDA_WGMMA_CUH

#include "kern_cuda_common.cuh"

/* ---- barriers in shared memory --------------------------------------------------------------- */

__device__ __forceinline__ void
barrier_init(uint32_t barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}

/* Makes initialised barriers visible to the copy engine. */
__device__ __forceinline__ void
barrier_publish()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void
barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives, and lets the phase end only when `bytes` more were copied. */
__device__ __forceinline__ void
barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Waits for the end of the phase of that parity. */
__device__ __forceinline__ void
barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\n"
                 "WAIT:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE;\n"
                 "bra WAIT;\n"
                 "DONE:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* `bytes` (a multiple of 16) from global to shared memory; the barrier counts them. */
__device__ __forceinline__ void
copy_bulk(uint32_t shared, const void *global, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* A barrier of the 256 threads of two warpgroups. */
__device__ __forceinline__ void
consumers_sync()
{
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

/* ---- clusters -------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t
cluster_rank()
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Of all threads of the cluster that have not ended. */
__device__ __forceinline__ void
cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* What stands at this block's shared address, 16-byte aligned, in another block of the cluster. */
__device__ __forceinline__ float4
load_cluster(uint32_t shared, uint32_t rank)
{
    float4 value;
    asm volatile("{\n.reg .u32 a;\n"
                 "mapa.shared::cluster.u32 a, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [a];\n}"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(shared), "r"(rank)
                 : "memory");
    return value;
}

/* ---- the matrix unit ------------------------------------------------------------------------- */

/* An operand in shared memory: rows of 128 bytes (64 values of k), 16-byte pieces exchanged by
 * piece ^ (row & 7), eight rows after another; 1024-byte aligned.  `k16` is the step within the
 * row. */
__device__ __forceinline__ uint64_t
operand(uint32_t shared, uint32_t k16)
{
    uint64_t address = (shared + k16 * 32) >> 4;
    return (address & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

__device__ __forceinline__ void
wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void
wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void
wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* d += a (64 rows x 16) * b (16 x N columns).  A thread's d[4j .. 4j + 3] are, for columns
 * 8j + 2 (lane % 4) + {0, 1}, the rows lane / 4 and lane / 4 + 8 of its warp's 16. */
template <int N> struct wgmma_t;

template <> struct wgmma_t<8> {
    static __device__ __forceinline__ void
    add(float (&d)[4], uint64_t a, uint64_t b)
    {
        asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3}, "
                     "%4, %5, p, 1, 1, 0, 0;\n}\n"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma_t<16> {
    static __device__ __forceinline__ void
    add(float (&d)[8], uint64_t a, uint64_t b)
    {
        asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7}, "
                     "%8, %9, p, 1, 1, 0, 0;\n}\n"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                       "+f"(d[6]), "+f"(d[7])
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma_t<32> {
    static __device__ __forceinline__ void
    add(float (&d)[16], uint64_t a, uint64_t b)
    {
        asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                     "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                     "%16, %17, p, 1, 1, 0, 0;\n}\n"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                       "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                       "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma_t<64> {
    static __device__ __forceinline__ void
    add(float (&d)[32], uint64_t a, uint64_t b)
    {
        asm volatile(
            "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
            "%32, %33, p, 1, 1, 0, 0;\n}\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
              "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),
              "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),
              "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
              "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
              "+f"(d[31])
            : "l"(a), "l"(b));
    }
};

template <> struct wgmma_t<128> {
    static __device__ __forceinline__ void
    add(float (&d)[64], uint64_t a, uint64_t b)
    {
        asm volatile(
            "{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
            "%64, %65, p, 1, 1, 0, 0;\n}\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
              "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),
              "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),
              "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
              "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
              "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]),
              "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]),
              "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
              "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]),
              "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]),
              "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
            : "l"(a), "l"(b));
    }
};

#endif
