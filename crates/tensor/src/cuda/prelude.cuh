// Prepended to every source: dtypes, vector accesses, reductions, PDL, Philox and dropout. No
// header of the CUDA toolkit is included, so NVRTC suffices to compile it.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Dtype codes, as in memory.rs.
#define DTYPE_NONE 0
#define F32 1
#define BF16 2

#define INF __int_as_float(0x7f800000)
#define FULL_MASK 0xffffffffu
// Marks a missing slot.
#define NO_SLOT 0xffffffffu

// Programmatic dependent launch (the kernels are listed in module.rs): waits for the previous
// kernel. Nothing that it could access may be accessed earlier.
__device__ __forceinline__ void griddep_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Allows the next kernel, if it is launched with PDL, to start as soon as there are resources for
// it.
__device__ __forceinline__ void griddep_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float bf16_to_float(u16 bits) {
    return __uint_as_float((u32)bits << 16);
}

// Two floats as bf16, rounded to nearest even; `low` goes to the lower address.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

__device__ __forceinline__ u16 float_to_bf16(float x) { return (u16)pack_bf16(x, 0.0f); }
__device__ __forceinline__ float low_half(u32 two) { return __uint_as_float(two << 16); }
__device__ __forceinline__ float high_half(u32 two) { return __uint_as_float(two & 0xffff0000u); }

__device__ __forceinline__ float load1(const void* p, int type, u64 at) {
    return type == BF16 ? bf16_to_float(((const u16*)p)[at]) : ((const float*)p)[at];
}

__device__ __forceinline__ void store1(void* p, int type, u64 at, float x) {
    if (type == BF16) ((u16*)p)[at] = float_to_bf16(x);
    else ((float*)p)[at] = x;
}

// Loads four consecutive elements from `at` on; those from `left` on are 0.
__device__ __forceinline__ float4 load4(const void* p, int type, u64 at, int left) {
    if (left >= 4 && (at & 3) == 0) {
        if (type == F32) return *(const float4*)((const float*)p + at);
        uint2 two = *(const uint2*)((const u16*)p + at);
        return make_float4(low_half(two.x), high_half(two.x), low_half(two.y), high_half(two.y));
    }
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (left > 0) v.x = load1(p, type, at);
    if (left > 1) v.y = load1(p, type, at + 1);
    if (left > 2) v.z = load1(p, type, at + 2);
    if (left > 3) v.w = load1(p, type, at + 3);
    return v;
}

// Stores four consecutive elements from `at` on, except those from `left` on.
__device__ __forceinline__ void store4(void* p, int type, u64 at, int left, float4 v) {
    if (left >= 4 && (at & 3) == 0) {
        if (type == F32) *(float4*)((float*)p + at) = v;
        else *(uint2*)((u16*)p + at) = make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
        return;
    }
    if (left > 0) store1(p, type, at, v.x);
    if (left > 1) store1(p, type, at + 1, v.y);
    if (left > 2) store1(p, type, at + 2, v.z);
    if (left > 3) store1(p, type, at + 3, v.w);
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(FULL_MASK, x, d);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) x = fmaxf(x, __shfl_xor_sync(FULL_MASK, x, d));
    return x;
}

// Philox4x32-10, as in rng.rs.
__device__ __forceinline__ uint4 philox(u32 c0, u32 c1, u32 c2, u32 c3, u32 k0, u32 k1) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        u32 h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        u32 h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

// The perturbation of a row: DeviceRowPerturbation of dropout.rs. All zeros if unperturbed.
struct RowPerturbation {
    u32 seed_low, seed_high, position, trajectory, question;
    u32 sites;      // bit s: at site s
    u32 threshold;  // dropout: elements with random words below it are dropped
    // Dropout: the scale of retained elements; noise: the standard deviation; Gumbel noise: the
    // temperature.
    float scale;
};

// Whether a row is perturbed at a site; `site` is the site word of rng.rs: site << 26 | layer
// << 16.
__device__ __forceinline__ bool is_perturbed(const RowPerturbation& row, u32 site) {
    return row.sites >> (site >> 26) & 1;
}

// The four random words for elements 4 * block ...
__device__ __forceinline__ uint4 bits(const RowPerturbation& row, u32 site, u32 block) {
    return philox(site | block, row.position, row.trajectory, row.question, row.seed_low,
                  row.seed_high);
}

// Which of those four elements dropout keeps, as a 4-bit mask.
__device__ __forceinline__ u32 keep_bits(const RowPerturbation& row, u32 site, u32 block) {
    const uint4 w = bits(row, site, block);
    return (u32)(w.x >= row.threshold) | (u32)(w.y >= row.threshold) << 1 |
           (u32)(w.z >= row.threshold) << 2 | (u32)(w.w >= row.threshold) << 3;
}

// Kinds of dropout masks; DropoutArgs of dropout.rs.
#define MASK_SAMPLED 1
#define MASK_RECORDED 2

// Dropout of the four elements from column `c` of row `r` on, with a mask of the given kind. A
// sampled mask is generated from `row`, a recorded one is (rows, cols) at `masks` and scales
// retained elements by `keep`.
__device__ __forceinline__ float4 dropout4(float4 v, int kind, const void* masks, u32 site,
                                           float keep, u32 r, u32 c, u32 cols,
                                           const RowPerturbation& row) {
    if (kind == MASK_SAMPLED && is_perturbed(row, site)) {
        const uint4 w = bits(row, site, c / 4);
        v.x = w.x >= row.threshold ? v.x * row.scale : 0.0f;
        v.y = w.y >= row.threshold ? v.y * row.scale : 0.0f;
        v.z = w.z >= row.threshold ? v.z * row.scale : 0.0f;
        v.w = w.w >= row.threshold ? v.w * row.scale : 0.0f;
    } else if (kind == MASK_RECORDED) {
        const int left = (int)(cols - c);
        const u8* k = (const u8*)masks + (u64)r * cols + c;
        v.x = k[0] ? v.x * keep : 0.0f;
        v.y = left > 1 && k[1] ? v.y * keep : 0.0f;
        v.z = left > 2 && k[2] ? v.z * keep : 0.0f;
        v.w = left > 3 && k[3] ? v.w * keep : 0.0f;
    }
    return v;
}

// Atomically adds to four consecutive floats in memory, except those from `left` on.
__device__ __forceinline__ void add4(float* p, int left, float4 v) {
#if __CUDA_ARCH__ >= 900
    if (left >= 4 && ((u64)p & 15) == 0) {
        asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y),
                     "f"(v.z), "f"(v.w)
                     : "memory");
        return;
    }
#endif
    if (left > 0) atomicAdd(p, v.x);
    if (left > 1) atomicAdd(p + 1, v.y);
    if (left > 2) atomicAdd(p + 2, v.z);
    if (left > 3) atomicAdd(p + 3, v.w);
}

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
