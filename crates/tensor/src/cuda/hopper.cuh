// Wrappers of Hopper PTX instructions: TMA, mbarriers, wgmma, clusters, setmaxnreg. Empty for other
// architectures.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ u32 smem_addr(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Initializes an mbarrier whose phases complete when `count` threads have arrived and all expected
// bytes are loaded.
__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Makes this thread's mbarrier_init visible to TMA and to the other CTAs of the cluster.
__device__ __forceinline__ void fence_mbarrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Waits for the phase of this parity to complete.
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and expects `bytes` bytes from TMA.
__device__ __forceinline__ void mbarrier_expect_tx(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Prefetches a tensor map.
__device__ __forceinline__ void prefetch_tensor_map(const u64* tensor_map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(tensor_map) : "memory");
}

// Loads the box of a matrix that starts at this column and row into this CTA's shared memory;
// elements beyond the matrix are 0.
__device__ __forceinline__ void tma_load(u32 to, const u64* tensor_map, u32 column, u32 row,
                                         u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2, %3}], [%4];" ::"r"(to),
        "l"(tensor_map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}

// The same into every CTA of the cluster whose bit is set, at the same offset, signalling that
// CTA's own barrier.
__device__ __forceinline__ void tma_load_multicast(u16 ctas, u32 to, const u64* tensor_map,
                                                   u32 column, u32 row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
        "cluster [%0], [%1, {%2, %3}], "
        "[%4], %5;" ::"r"(to),
        "l"(tensor_map), "r"(column), "r"(row), "r"(barrier), "h"(ctas)
        : "memory");
}

// The same for groups of eight rows, each in the order of rows 0, 2, 4, 6, 1, 3, 5, 7 (tma.rs).
__device__ __forceinline__ void tma_load_interleaved(u32 to, const u64* tensor_map, u32 column,
                                                     u32 row_group, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2, %3, %3, %4}], [%5];" ::"r"(to),
        "l"(tensor_map), "r"(column), "r"(0), "r"(row_group), "r"(barrier)
        : "memory");
}

// Prefetches a box of a matrix into the L2 cache.
__device__ __forceinline__ void tma_prefetch(const u64* tensor_map, u32 column, u32 row) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(tensor_map),
                 "r"(column), "r"(row)
                 : "memory");
}

// Makes this thread's writes to shared memory visible to TMA.
__device__ __forceinline__ void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Stores a box from shared memory to a matrix; elements beyond the matrix are skipped.
__device__ __forceinline__ void tma_store(u32 from, const u64* tensor_map, u32 column, u32 row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
            tensor_map),
        "r"(column), "r"(row), "r"(from)
        : "memory");
}

// Commits this thread's stores since the last commit as a group.
__device__ __forceinline__ void tma_store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until this thread's stores have read shared memory.
__device__ __forceinline__ void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Arrives at the barrier of the first CTAS CTAs of the cluster, to release a stage that a warp has
// read. The warp wrote nothing that they read, so no fence is needed.
template <int CTAS>
__device__ __forceinline__ void mbarrier_arrive_cluster(u32 barrier) {
#pragma unroll
    for (u32 cta = 0; cta < CTAS; cta++) {
        asm volatile(
            "{\n.reg .b32 there;\n"
            "mapa.shared::cluster.u32 there, %0, %1;\n"
            "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
            "r"(cta)
            : "memory");
    }
}

// The cluster barrier: writes before the arrive are visible after the wait. Threads that only
// arrive do not wait.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}

// Arrives without release semantics, so outstanding memory accesses are not waited for.
__device__ __forceinline__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

// Changes the registers per thread of a warpgroup.
template <int COUNT>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Stores four 8 x 8 matrices of 16-bit elements: lane l has the address of row l % 8 of matrix l /
// 8, and two consecutive elements of row l / 4 of each.
__device__ __forceinline__ void stmatrix_x4(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

// The shared-memory descriptor of K-major rows of 128 bytes with the 128-byte swizzle.
__device__ __forceinline__ u64 wgmma_descriptor(u32 at) {
    return (u64)(at >> 4 & 0x3fff) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D32(i) \
    D4(i), D4(i + 4), D4(i + 8), D4(i + 12), D4(i + 16), D4(i + 20), D4(i + 24), D4(i + 28)

// d (64, 192) = a (64, 16) b (192, 16)^T, or d += if `accumulate`.
__device__ __forceinline__ void wgmma_m64n192k16(float (&d)[96], u64 a, u64 b, u32 accumulate) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "setp.ne.b32 p, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, p, 1, 1, 0, 0;\n}"
        : D32(0), D32(32), D32(64)
        : "l"(a), "l"(b), "r"(accumulate));
}

// d (64, 192) = a (64, 32) b (192, 32)^T of e4m3, or d += if `accumulate`. The tensor cores keep
// about 14 bits of a sum: lower bits are truncated at every addition.
__device__ __forceinline__ void wgmma_m64n192k32_e4m3(float (&d)[96], u64 a, u64 b,
                                                      u32 accumulate) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "setp.ne.b32 p, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "%96, %97, p, 1, 1;\n}"
        : D32(0), D32(32), D32(64)
        : "l"(a), "l"(b), "r"(accumulate));
}

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Commits the wgmmas since the last commit as a group.
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most PENDING groups are in flight.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#endif
