// What Hopper has of its own: copies by an engine that knows matrices, barriers in shared memory that count bytes, products of
// whole warpgroups that run on beside the program, and clusters of blocks that reach each other's shared memory.
// Nothing is here for other GPUs.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ u32 shared_at(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Sets up a barrier whose phases end when `count` have arrived and all bytes that were announced are there.
__device__ __forceinline__ void set_up(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Lets the copy engine and the other blocks of a cluster see the barriers that this thread has set up.
__device__ __forceinline__ void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Waits until the phase of a barrier that has this parity is over.
__device__ __forceinline__ void await(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(barrier), "r"(parity)
        : "memory");
}

// Arrives.
__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and says how many bytes are on their way.
__device__ __forceinline__ void expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Lets the copy engine read the description of a matrix before it is needed.
__device__ __forceinline__ void expect_matrix(const u64* matrix) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(matrix) : "memory");
}

// A box of a matrix, from this column and row on, into this block's shared memory; what lies beyond the matrix is 0.
__device__ __forceinline__ void bring(u32 to, const u64* matrix, u32 column, u32 row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(matrix), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}

// The same into every block of the cluster whose bit is set, at the same place in each, whose own barrier is told.
__device__ __forceinline__ void bring_to(u16 blocks, u32 to, const u64* matrix, u32 column, u32 row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], "
        "[%4], %5;" ::"r"(to), "l"(matrix), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
        : "memory");
}

// The same of rows in eights, each as rows 0, 2, 4, 6, 1, 3, 5, 7: a box of as many eights as the matrix's description says.
__device__ __forceinline__ void bring_eights(u32 to, const u64* matrix, u32 column, u32 eight, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %3, %4}], [%5];" ::"r"(
            to),
        "l"(matrix), "r"(column), "r"(0), "r"(eight), "r"(barrier)
        : "memory");
}

// Asks for a box of a matrix to be in the L2 cache.
__device__ __forceinline__ void foresee(const u64* matrix, u32 column, u32 row) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(matrix), "r"(column), "r"(row) : "memory");
}

// Lets the copy engine see what this thread wrote to shared memory.
__device__ __forceinline__ void show_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A box from shared memory into a matrix; what lies beyond the matrix is left out.
__device__ __forceinline__ void take(u32 from, const u64* matrix, u32 column, u32 row) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(matrix), "r"(column),
                 "r"(row), "r"(from)
                 : "memory");
}

// Makes a group of what this thread has asked to take since the last one.
__device__ __forceinline__ void after_copies() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until everything that this thread has asked to take has left shared memory.
__device__ __forceinline__ void copies_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Tells the first BLOCKS blocks of a cluster that a warp has read a stage. It has written nothing that they read, so nothing is
// fenced.
template <int BLOCKS>
__device__ __forceinline__ void release(u32 barrier) {
#pragma unroll
    for (u32 block = 0; block < BLOCKS; block++) {
        asm volatile(
            "{\n.reg .b32 there;\n"
            "mapa.shared::cluster.u32 there, %0, %1;\n"
            "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(block)
            : "memory");
    }
}

// Waits for all blocks of the cluster; what they wrote before can be read. Threads that only arrive do not wait.
__device__ __forceinline__ void arrive_cluster() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void meet_cluster() {
    arrive_cluster();
    wait_cluster();
}

// Arrives there without a promise that anything written before can be read, so memory is not waited for.
__device__ __forceinline__ void reach_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }

// Lets a warpgroup have so many registers a thread, less or more than the kernel was started with.
template <int COUNT>
__device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT>
__device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// Four pieces of 8 x 8 numbers of 16 bits: lane l says where row l % 8 of piece l / 8 goes, and holds two neighbours of row l / 4
// of each.
__device__ __forceinline__ void put_pieces(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

// How the tensor cores find rows of 128 bytes whose parts the copy engine has permuted within groups of eight rows.
__device__ __forceinline__ u64 described(u32 at) {
    return (u64)(at >> 4 & 0x3fff) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D32(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12), D4(i + 16), D4(i + 20), D4(i + 24), D4(i + 28)

// d (64, 192) = a (64, 16) b (192, 16)^T, added to what is there if `adds`.
__device__ __forceinline__ void multiply(float (&d)[96], u64 a, u64 b, u32 adds) {
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
        : "l"(a), "l"(b), "r"(adds));
}

__device__ __forceinline__ void before_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Makes a group of the products that were asked for since the last one.
__device__ __forceinline__ void after_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most LEFT groups are under way.
template <int LEFT>
__device__ __forceinline__ void multiplied() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#endif
