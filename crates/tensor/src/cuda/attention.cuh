// Shared by attention and its backward: the tensor cores, keys and values on their way to them, a row's own slots.

__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 blocks of shared memory in the tensor cores' layout; lane l names row l % 8 of block l / 8.
__device__ __forceinline__ void load_blocks(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_blocks(u32 (&r)[4], const u16* at) { load_blocks(r, (u32)__cvta_generic_to_shared(at)); }

// The same, each block transposed.
__device__ __forceinline__ void load_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_transposed(u32 (&r)[4], const u16* at) {
    load_transposed(r, (u32)__cvta_generic_to_shared(at));
}

// 16 bytes into shared memory, without waiting; zeros if not `inside`.
__device__ __forceinline__ void copy16(u32 to, const u16* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

__device__ __forceinline__ void copy16(u16* to, const u16* from, bool inside) {
    copy16((u32)__cvta_generic_to_shared(to), from, inside);
}

__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ void widen8(uint4 v, float (&x)[8]) {
    x[0] = low_half(v.x); x[1] = high_half(v.x); x[2] = low_half(v.y); x[3] = high_half(v.y);
    x[4] = low_half(v.z); x[5] = high_half(v.z); x[6] = low_half(v.w); x[7] = high_half(v.w);
}

// Walks the slots of a row's own spans in order.
struct Walk {
    const uint2* spans;
    uint2 span;
    u32 index, offset;
    // From a row's first own span, which is read already, and where the next one is.
    __device__ __forceinline__ Walk(const uint2* all, uint2 first, u32 next) : spans(all), span(first), index(next), offset(0) {}
    __device__ __forceinline__ u32 next() {
        while (offset == span.y) {
            span = spans[index++];
            offset = 0;
        }
        return span.x + offset++;
    }
};

// Keys of which a warp holds the scores at a time.
#define SCORED 32

// Keys that are in shared memory at a time, twice: one half is computed with while the other arrives.
template <int DIM>
struct Stage {
    static constexpr int KEYS = DIM <= 64 ? 64 : 32;
    static constexpr int STRIDE = DIM + 8; // 16 bytes more than a row: neighbouring rows fall into other banks
};

template <int DIM>
__device__ __forceinline__ void fetch(u16* stage, const u16* keys, const u16* values, u32 base, u32 len) {
    constexpr int KEYS = Stage<DIM>::KEYS, STRIDE = Stage<DIM>::STRIDE, PARTS = DIM / 8;
    // Beyond the end there is nothing to fetch, but a group to count.
    for (u32 i = threadIdx.x; base < len && i < KEYS * PARTS; i += blockDim.x) {
        const u32 r = i / PARTS, part = 8 * (i % PARTS);
        const bool inside = base + r < len;
        const u64 from = inside ? (u64)(base + r) * DIM + part : 0;
        copy16(stage + r * STRIDE + part, keys + from, inside);
        copy16(stage + (KEYS + r) * STRIDE + part, values + from, inside);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}
