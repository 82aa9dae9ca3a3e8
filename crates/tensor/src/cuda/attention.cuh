// Shared by attention, its backward and the GEMM with fixed summation order: mma, ldmatrix,
// cp.async; and the slots of a prefix and of a row's unshared spans.

__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_f16_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8 x 8 matrices from shared memory; lane l has the address of row l % 8 of matrix l /
// 8.
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], const u16* at) {
    ldmatrix_x4(r, (u32)__cvta_generic_to_shared(at));
}

// The same, each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], const u16* at) {
    ldmatrix_x4_trans(r, (u32)__cvta_generic_to_shared(at));
}

// Copies 16 bytes to shared memory asynchronously; zeros unless `inside`.
__device__ __forceinline__ void cp_async16(u32 to, const u16* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(inside ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void cp_async16(u16* to, const u16* from, bool inside) {
    cp_async16((u32)__cvta_generic_to_shared(to), from, inside);
}

// Keys and values of a prefix are loaded in units of 16, the k of one mma.
#define UNIT 16
// As in attention.rs.
#define SCATTERED 0x80000000u

// The first slot of a unit of a tile's prefix: the slots are contiguous, or spans list the units.
__device__ __forceinline__ u32 unit_slot(const uint4& tile, const uint2* spans, u32 unit) {
    return tile.z & SCATTERED ? spans[(tile.z & ~SCATTERED) + unit].x : tile.z + unit * UNIT;
}

// Iterates over the slots of a row's unshared spans, in order.
struct SpanIterator {
    const uint2* spans;
    uint2 span;
    u32 index, offset;
    // From a row's first unshared span, which was already loaded, and the index of the next one.
    __device__ __forceinline__ SpanIterator(const uint2* all, uint2 first, u32 next)
        : spans(all), span(first), index(next), offset(0) {}
    __device__ __forceinline__ u32 next() {
        while (offset == span.y) {
            span = spans[index++];
            offset = 0;
        }
        return span.x + offset++;
    }
};
