// Residual, dropout and norm in one pass over a row: x = from + dropout(y + bias), out = norm(x).
// `from` and x may be the same; y may be gathered rows of an f32 table.
//
// Memory-bound: each element of x, y and out is accessed once. A row is held in registers (4 CHUNKS
// elements per thread), so mean, variance and result need no second read, and all its loads are in
// flight at once. WARPS warps share a row; several short rows share a block. The dtype of y is a
// template parameter, so that y stays in registers in its stored form.
//
// out may be e4m3 with one scale for all rows (fp8.cuh), whose length is then a multiple of 16.

#define E4M3_OUT 3  // the code of such an output, as in norm.rs

template <int WARPS>
__device__ __forceinline__ float row_sum(float x, float* scratch) {
    x = warp_sum(x);
    if (WARPS == 1) return x;
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) x += scratch[w];
    return x;
}

// Four elements in their stored form.
template <int TYPE>
struct RawVec4 {
    float4 v;
    __device__ __forceinline__ void load(const void* p, u64 at, int left) {
        v = load4(p, F32, at, left);
    }
    __device__ __forceinline__ float4 to_float4() const { return v; }
};

template <>
struct RawVec4<BF16> {
    uint2 v;
    __device__ __forceinline__ void load(const void* p, u64 at, int left) {
        if (left >= 4 && (at & 3) == 0) v = *(const uint2*)((const u16*)p + at);
        else {
            float4 w = load4(p, BF16, at, left);
            v = make_uint2(pack_bf16(w.x, w.y), pack_bf16(w.z, w.w));
        }
    }
    __device__ __forceinline__ float4 to_float4() const {
        return make_float4(low_half(v.x), high_half(v.x), low_half(v.y), high_half(v.y));
    }
};

template <int WARPS, int CHUNKS, int Y>
__device__ __forceinline__ void add_norm(const float* from, float* x, const void* y,
                                         const u32* gathered, const float* bias, int mask,
                                         const void* masks, u32 site, float keep, void* out,
                                         int out_type, int rms, float eps, const float* scale,
                                         const float* shift, u32 rows, u32 cols,
                                         float out_inverse) {
    __shared__ float scratch[2 * WARPS];
    const u32 threads = 32 * WARPS;
    const u32 row = WARPS == 1 ? blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x;
    const u32 lane = WARPS == 1 ? threadIdx.x % 32 : threadIdx.x;
    // PDL: masks are sampled while the previous kernel ends; the perturbations were staged before
    // it started.
    static_assert(CHUNKS <= 8, "a lane's mask is 32 bits");
    u32 kept = FULL_MASK;
    bool drops = false;
    if (Y != DTYPE_NONE && mask == MASK_SAMPLED && row < rows) {
        const RowPerturbation perturbation = ((const RowPerturbation*)masks)[row];
        drops = is_perturbed(perturbation, site);
        if (drops) {
            keep = perturbation.scale;
            kept = 0;
#pragma unroll
            for (int i = 0; i < CHUNKS; i++)
                kept |= keep_bits(perturbation, site, lane + threads * i) << 4 * i;
        }
    }
    griddep_wait();
    if (row >= rows) return;
    const u64 base = (u64)row * cols;
    float4 v[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        u32 c = 4 * (lane + threads * i);
        v[i] = c < cols ? load4(from, F32, base + c, (int)(cols - c))
                        : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (Y == DTYPE_NONE && from != x) {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            u32 c = 4 * (lane + threads * i);
            if (c < cols) store4(x, F32, base + c, (int)(cols - c), v[i]);
        }
    }
    if (Y != DTYPE_NONE) {
        const u64 y_at = Y == F32 && gathered ? (u64)gathered[row] * cols : base;
        RawVec4<Y> z[CHUNKS];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            u32 c = 4 * (lane + threads * i);
            if (c < cols) z[i].load(y, y_at + c, (int)(cols - c));
        }
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            u32 c = 4 * (lane + threads * i);
            if (c < cols) {
                float4 d = z[i].to_float4();
                if (bias) {
                    float4 b = load4(bias, F32, c, (int)(cols - c));
                    d.x += b.x;
                    d.y += b.y;
                    d.z += b.z;
                    d.w += b.w;
                }
                if (drops) {
                    d.x = kept >> 4 * i & 1 ? d.x * keep : 0.0f;
                    d.y = kept >> 4 * i & 2 ? d.y * keep : 0.0f;
                    d.z = kept >> 4 * i & 4 ? d.z * keep : 0.0f;
                    d.w = kept >> 4 * i & 8 ? d.w * keep : 0.0f;
                } else if (mask == MASK_RECORDED) {
                    d = dropout4(d, mask, masks, site, keep, row, c, cols, RowPerturbation{});
                }
                v[i].x += d.x;
                v[i].y += d.y;
                v[i].z += d.z;
                v[i].w += d.w;
                store4(x, F32, base + c, (int)(cols - c), v[i]);
            }
        }
    }
    if (out_type == DTYPE_NONE) return;
    float mean = 0.0f;
    if (!rms) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            u32 c = 4 * (lane + threads * i);
            // Elements beyond the row were loaded as 0, but a bias may have been added.
            if (c < cols) {
                int left = (int)(cols - c);
                sum += v[i].x + (left > 1 ? v[i].y : 0.0f) + (left > 2 ? v[i].z : 0.0f) +
                       (left > 3 ? v[i].w : 0.0f);
            }
        }
        mean = row_sum<WARPS>(sum, scratch) / (float)cols;
    }
    float square = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        u32 c = 4 * (lane + threads * i);
        if (c < cols) {
            int left = (int)(cols - c);
            float a = v[i].x - mean, b = v[i].y - mean, d = v[i].z - mean, e = v[i].w - mean;
            square += a * a + (left > 1 ? b * b : 0.0f) + (left > 2 ? d * d : 0.0f) +
                      (left > 3 ? e * e : 0.0f);
        }
    }
    const float inverse = 1.0f / sqrtf(row_sum<WARPS>(square, scratch + WARPS) / (float)cols + eps);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        u32 c = 4 * (lane + threads * i);
        if (c < cols) {
            int left = (int)(cols - c);
            float4 g = load4(scale, F32, c, left), o;
            float4 b = rms ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : load4(shift, F32, c, left);
            o.x = (v[i].x - mean) * inverse * g.x + b.x;
            o.y = (v[i].y - mean) * inverse * g.y + b.y;
            o.z = (v[i].z - mean) * inverse * g.z + b.z;
            o.w = (v[i].w - mean) * inverse * g.w + b.w;
            if (out_type == E4M3_OUT)
                *(u32*)((u8*)out + base + c) = pack_e4m3x4(scaled4(o, out_inverse));
            else store4(out, out_type, base + c, left, o);
        }
    }
}

#define ADD_NORM(WARPS, CHUNKS, Y, THREADS, BLOCKS)                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) add_norm_##WARPS##_##Y(        \
        const float* from, float* x, const void* y, const u32* gathered, const float* bias,      \
        int mask, const void* masks, u32 site, float keep, void* out, int out_type, int rms,     \
        float eps, const float* scale, const float* shift, u32 rows, u32 cols,                   \
        float out_inverse) {                                                                     \
        add_norm<WARPS, CHUNKS, Y>(from, x, y, gathered, bias, mask, masks, site, keep, out,     \
                                   out_type, rms, eps, scale, shift, rows, cols, out_inverse);   \
    }

// BLOCKS caps registers, so that as many rows of 768 as possible run in one wave: 4224, or 4752.
#define ALL(Y, BLOCKS)             \
    ADD_NORM(1, 6, Y, 128, BLOCKS) \
    ADD_NORM(4, 4, Y, 128, 6)      \
    ADD_NORM(16, 8, Y, 512, 1)

ALL(0, 8)
ALL(1, 8)
ALL(2, 9)

__device__ __forceinline__ float4 zero4() { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); }

// The first `left` of four, the others 0.
__device__ __forceinline__ float4 mask4(float4 v, int left) {
    return make_float4(v.x, left > 1 ? v.y : 0.0f, left > 2 ? v.z : 0.0f, left > 3 ? v.w : 0.0f);
}

__device__ __forceinline__ float dot4(float4 a, float4 b) {
    return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// Adds the gradients of x to dx, and those of the parameters to dscale and dshift (may be null). A
// grid-stride loop over rows, so that a thread sums its columns of dscale and dshift in registers
// and a block adds its sums once. Memory-bound: x, dy and dx are read once, dx is written once.
template <int WARPS, int CHUNKS>
__device__ __forceinline__ void norm_backward(const float* x, const void* dy, int type, float* dx,
                                              float* dscale, float* dshift, int rms, float eps,
                                              const float* scale, u32 rows, u32 cols) {
    __shared__ float scratch[4 * WARPS];
    const u32 threads = 32 * WARPS, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const u32 lane = WARPS == 1 ? threadIdx.x % 32 : threadIdx.x;
    const u32 start = WARPS == 1 ? blockIdx.x * warps + warp : blockIdx.x,
              step = WARPS == 1 ? gridDim.x * warps : gridDim.x;
    float4 sum_scale[CHUNKS], sum_shift[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) sum_scale[i] = sum_shift[i] = zero4();
    for (u32 row = start; row < rows; row += step) {
        const u64 base = (u64)row * cols;
        float4 v[CHUNKS], d[CHUNKS], to[CHUNKS];
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            const u32 c = 4 * (lane + threads * i);
            v[i] = c < cols ? load4(x, F32, base + c, (int)(cols - c)) : zero4();
            d[i] = c < cols ? load4(dy, type, base + c, (int)(cols - c)) : zero4();
            to[i] = c < cols ? load4(dx, F32, base + c, (int)(cols - c)) : zero4();
            sum += v[i].x + v[i].y + v[i].z + v[i].w;
        }
        const float mean = rms ? 0.0f : row_sum<WARPS>(sum, scratch) / (float)cols;
        float square = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            const u32 c = 4 * (lane + threads * i);
            v[i] = make_float4(v[i].x - mean, v[i].y - mean, v[i].z - mean, v[i].w - mean);
            v[i] = c < cols ? mask4(v[i], (int)(cols - c)) : zero4();
            square += dot4(v[i], v[i]);
        }
        const float inverse =
            1.0f / sqrtf(row_sum<WARPS>(square, scratch + WARPS) / (float)cols + eps);
        float mean_dy_normed = 0.0f, mean_dy = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            const u32 c = 4 * (lane + threads * i);
            const float4 g = c < cols ? load4(scale, F32, c, (int)(cols - c)) : zero4();
            v[i] =
                make_float4(v[i].x * inverse, v[i].y * inverse, v[i].z * inverse, v[i].w * inverse);
            mean_dy_normed +=
                dot4(make_float4(d[i].x * g.x, d[i].y * g.y, d[i].z * g.z, d[i].w * g.w), v[i]);
            mean_dy += dot4(d[i], g);
        }
        mean_dy_normed = row_sum<WARPS>(mean_dy_normed, scratch + 2 * WARPS) / (float)cols;
        mean_dy = rms ? 0.0f : row_sum<WARPS>(mean_dy, scratch + 3 * WARPS) / (float)cols;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            const u32 c = 4 * (lane + threads * i);
            if (c >= cols) continue;
            const int left = (int)(cols - c);
            const float4 g = load4(scale, F32, c, left);
            to[i].x += inverse * (d[i].x * g.x - mean_dy - v[i].x * mean_dy_normed);
            to[i].y += inverse * (d[i].y * g.y - mean_dy - v[i].y * mean_dy_normed);
            to[i].z += inverse * (d[i].z * g.z - mean_dy - v[i].z * mean_dy_normed);
            to[i].w += inverse * (d[i].w * g.w - mean_dy - v[i].w * mean_dy_normed);
            store4(dx, F32, base + c, left, to[i]);
            sum_scale[i].x += d[i].x * v[i].x;
            sum_scale[i].y += d[i].y * v[i].y;
            sum_scale[i].z += d[i].z * v[i].z;
            sum_scale[i].w += d[i].w * v[i].w;
            sum_shift[i].x += d[i].x;
            sum_shift[i].y += d[i].y;
            sum_shift[i].z += d[i].z;
            sum_shift[i].w += d[i].w;
        }
    }
    if (WARPS == 1) {
        // Warps hold the same columns: they add up in shared memory one after another, and the last
        // adds the block's sums to memory.
        __shared__ float4 sums[2][32 * CHUNKS];
        for (u32 w = 0; w < warps; w++) {
            if (warp == w) {
#pragma unroll
                for (int i = 0; i < CHUNKS; i++) {
                    if (w > 0) {
                        const float4 a = sums[0][lane + 32 * i], b = sums[1][lane + 32 * i];
                        sum_scale[i].x += a.x;
                        sum_scale[i].y += a.y;
                        sum_scale[i].z += a.z;
                        sum_scale[i].w += a.w;
                        sum_shift[i].x += b.x;
                        sum_shift[i].y += b.y;
                        sum_shift[i].z += b.z;
                        sum_shift[i].w += b.w;
                    }
                    sums[0][lane + 32 * i] = sum_scale[i];
                    sums[1][lane + 32 * i] = sum_shift[i];
                }
            }
            __syncthreads();
        }
        if (warp + 1 < warps) return;
    }
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const u32 c = 4 * (lane + threads * i);
        if (c >= cols) continue;
        add4(dscale + c, (int)(cols - c), sum_scale[i]);
        if (dshift) add4(dshift + c, (int)(cols - c), sum_shift[i]);
    }
}

#define NORM_BACKWARD(WARPS, CHUNKS, THREADS)                                                \
    extern "C" __global__ void __launch_bounds__(THREADS) norm_backward_##WARPS##_##CHUNKS(  \
        const float* x, const void* dy, int type, float* dx, float* dscale, float* dshift,   \
        int rms, float eps, const float* scale, u32 rows, u32 cols) {                        \
        norm_backward<WARPS, CHUNKS>(x, dy, type, dx, dscale, dshift, rms, eps, scale, rows, \
                                     cols);                                                  \
    }

NORM_BACKWARD(1, 2, 256)
NORM_BACKWARD(4, 2, 128)
NORM_BACKWARD(4, 4, 128)
NORM_BACKWARD(16, 8, 512)
