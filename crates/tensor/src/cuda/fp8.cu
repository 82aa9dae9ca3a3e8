// Conversion of rows to e4m3 and back, and SwiGLU with e4m3 results. Memory-bound. Rows are whole
// groups of 16 elements. The scale of a row depends on that row only; weights have a single scale.

// codes (rows, cols) and scales (rows) of x (rows, cols); one warp per row, which reads it twice:
// the second time from the L1 cache.
extern "C" __global__ void __launch_bounds__(128)
    quantize_rows(const void* x, int type, u8* codes, float* scales, u32 rows, u32 cols) {
    griddep_wait();
    griddep_launch();
    const u32 row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const u64 base = (u64)row * cols;
    float largest = 0.0f;
#pragma unroll 4
    for (u32 c = 4 * lane; c < cols; c += 128)
        largest = fmaxf(largest, largest4(load4(x, type, base + c, 4)));
    const float scale = e4m3_scale(warp_max(largest)), inverse = e4m3_inverse(scale);
#pragma unroll 4
    for (u32 c = 4 * lane; c < cols; c += 128)
        *(u32*)(codes + base + c) = pack_e4m3x4(scaled4(load4(x, type, base + c, 4), inverse));
    if (lane == 0) scales[row] = scale;
}

// measured (rows): the largest magnitude of each row of x (rows, cols) and its L2 norm; one warp
// per row.
extern "C" __global__ void __launch_bounds__(128)
    measure_rows(const void* x, int type, float2* measured, u32 rows, u32 cols) {
    const u32 row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float largest = 0.0f, square = 0.0f;
    for (u32 c = 4 * lane; c < cols; c += 128) {
        const float4 v = load4(x, type, (u64)row * cols + c, 4);
        largest = fmaxf(largest, largest4(v));
        square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    largest = warp_max(largest);
    square = warp_sum(square);
    if (lane == 0) measured[row] = make_float2(largest, sqrtf(square));
}

// codes (count) of x (count) with one scale, given as its inverse; four elements per thread.
extern "C" __global__ void quantize(const void* x, int type, u8* codes, float inverse, u64 count) {
    const u64 at = 4 * ((u64)blockIdx.x * blockDim.x + threadIdx.x);
    if (at < count) *(u32*)(codes + at) = pack_e4m3x4(scaled4(load4(x, type, at, 4), inverse));
}

__device__ __forceinline__ float e4m3_to_float(u32 code) {
    const u32 sign = (code & 0x80) << 24, magnitude = code & 0x7f;
    if (magnitude == 0x7f) return __uint_as_float(0x7fc00000);
    // The bits as those of a float with the same fraction, times 2^(127 - 7): exact for subnormal
    // numbers, too.
    return __uint_as_float(magnitude << 20 | sign) * 1.329227996e36f;
}

// out (rows, cols) of bf16: the codes' values times `by`, and times the scales (rows), if any; four
// elements per thread.
extern "C" __global__ void dequantize_rows(const u8* codes, const float* scales, float by, u16* out,
                                           u64 count, u32 cols) {
    const u64 at = 4 * ((u64)blockIdx.x * blockDim.x + threadIdx.x);
    griddep_wait();
    if (at >= count) return;
    const float scale = scales ? by * scales[at / cols] : by;
    const u32 four = *(const u32*)(codes + at);
    store4(out, BF16, at, 4,
           scaled4(make_float4(e4m3_to_float(four & 0xff), e4m3_to_float(four >> 8 & 0xff),
                               e4m3_to_float(four >> 16 & 0xff), e4m3_to_float(four >> 24)),
                   scale));
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

__device__ __forceinline__ u32 swiglu2(u32 g, u32 u) {
    return pack_bf16(silu(low_half(g)) * low_half(u), silu(high_half(g)) * high_half(u));
}

__device__ __forceinline__ float largest_of_two(u32 two) {
    return fmaxf(fabsf(low_half(two)), fabsf(high_half(two)));
}

__device__ __forceinline__ u32 pack_two_of_bf16(u32 a, u32 b, float by) {
    return pack_e4m3x4(
        make_float4(low_half(a) * by, high_half(a) * by, low_half(b) * by, high_half(b) * by));
}

#define SWIGLU_CHUNKS 8  // of eight elements, of each of 256 threads: n is at most 16,384

// codes[r, c] and scales[r] of silu(x[r, c]) * x[r, n + c], x of bf16, rounded to bf16 first like
// `swiglu`; one block per row, which stays in registers.
extern "C" __global__ void __launch_bounds__(256)
    swiglu_fp8(const u16* x, u8* codes, float* scales, u32 n) {
    __shared__ float maxima[8];
    griddep_wait();
    griddep_launch();
    const u64 row = blockIdx.x;
    const uint4* gates = (const uint4*)(x + row * 2 * n);
    uint4 h[SWIGLU_CHUNKS];
    float largest = 0.0f;
#pragma unroll
    for (int k = 0; k < SWIGLU_CHUNKS; k++) {
        const u32 i = threadIdx.x + 256 * k;
        h[k] = make_uint4(0, 0, 0, 0);
        if (i < n / 8) {
            const uint4 g = gates[i], u = gates[n / 8 + i];
            h[k] = make_uint4(swiglu2(g.x, u.x), swiglu2(g.y, u.y), swiglu2(g.z, u.z),
                              swiglu2(g.w, u.w));
        }
        largest = fmaxf(largest, fmaxf(fmaxf(largest_of_two(h[k].x), largest_of_two(h[k].y)),
                                       fmaxf(largest_of_two(h[k].z), largest_of_two(h[k].w))));
    }
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = largest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < 8; w++) largest = fmaxf(largest, maxima[w]);
    const float scale = e4m3_scale(largest), inverse = e4m3_inverse(scale);
    uint2* to = (uint2*)(codes + row * n);
#pragma unroll
    for (int k = 0; k < SWIGLU_CHUNKS; k++) {
        const u32 i = threadIdx.x + 256 * k;
        if (i < n / 8)
            to[i] = make_uint2(pack_two_of_bf16(h[k].x, h[k].y, inverse),
                               pack_two_of_bf16(h[k].z, h[k].w, inverse));
    }
    if (threadIdx.x == 0) scales[row] = scale;
}
