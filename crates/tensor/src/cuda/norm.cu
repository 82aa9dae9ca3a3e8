// Residual, dropout and normalisation in one pass over a row.
//
// Bound by memory: each element of x, y and out is touched once. A row is held in registers (4 CHUNKS numbers a thread),
// so mean, variance and result need no second read, and all its loads are in flight at once. WARPS warps share a row;
// several short rows share a block. What is added (Y) is a template so that it waits in the registers it came in.

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

// y + bias, then dropout, of one chunk of four.
__device__ __forceinline__ float4 dropped(float4 v, const float* bias, int mask, const void* masks, u32 site, u32 threshold,
                                          float keep, u32 row, u32 c, u32 cols, const Draw& draw) {
    int left = (int)(cols - c);
    if (bias) {
        float4 b = load4(bias, F32, c, left);
        v.x += b.x; v.y += b.y; v.z += b.z; v.w += b.w;
    }
    if (mask == 1 && draw.drawn) {
        uint4 w = bits(draw, site, c / 4);
        v.x = w.x >= threshold ? v.x * keep : 0.0f;
        v.y = w.y >= threshold ? v.y * keep : 0.0f;
        v.z = w.z >= threshold ? v.z * keep : 0.0f;
        v.w = w.w >= threshold ? v.w * keep : 0.0f;
    } else if (mask == 2) {
        const u8* k = (const u8*)masks + (u64)row * cols + c;
        v.x = k[0] ? v.x * keep : 0.0f;
        v.y = left > 1 && k[1] ? v.y * keep : 0.0f;
        v.z = left > 2 && k[2] ? v.z * keep : 0.0f;
        v.w = left > 3 && k[3] ? v.w * keep : 0.0f;
    }
    return v;
}

// Four numbers as they lie in memory.
template <int TYPE>
struct Raw {
    float4 v;
    __device__ __forceinline__ void load(const void* p, u64 at, int left) { v = load4(p, F32, at, left); }
    __device__ __forceinline__ float4 wide() const { return v; }
};

template <>
struct Raw<BF16> {
    uint2 v;
    __device__ __forceinline__ void load(const void* p, u64 at, int left) {
        if (left >= 4 && (at & 3) == 0) v = *(const uint2*)((const u16*)p + at);
        else {
            float4 w = load4(p, BF16, at, left);
            v = make_uint2(pack(w.x, w.y), pack(w.z, w.w));
        }
    }
    __device__ __forceinline__ float4 wide() const {
        return make_float4(low_half(v.x), high_half(v.x), low_half(v.y), high_half(v.y));
    }
};

template <int WARPS, int CHUNKS, int Y>
__device__ __forceinline__ void add_norm(float* x, const void* y, const float* bias, int mask, const void* masks,
                                         u32 site, u32 threshold, float keep, void* out, int out_type, int rms, float eps,
                                         const float* scale, const float* shift, u32 rows, u32 cols) {
    __shared__ float scratch[2 * WARPS];
    const u32 threads = 32 * WARPS;
    const u32 row = WARPS == 1 ? blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x;
    const u32 lane = WARPS == 1 ? threadIdx.x % 32 : threadIdx.x;
    if (row >= rows) return;
    const u64 base = (u64)row * cols;
    float4 v[CHUNKS];
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        u32 c = 4 * (lane + threads * i);
        v[i] = c < cols ? load4(x, F32, base + c, (int)(cols - c)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (Y != NOTHING) {
        Draw draw = {};
        if (mask == 1) draw = ((const Draw*)masks)[row];
        Raw<Y> z[CHUNKS];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            u32 c = 4 * (lane + threads * i);
            if (c < cols) z[i].load(y, base + c, (int)(cols - c));
        }
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            u32 c = 4 * (lane + threads * i);
            if (c < cols) {
                float4 d = dropped(z[i].wide(), bias, mask, masks, site, threshold, keep, row, c, cols, draw);
                v[i].x += d.x; v[i].y += d.y; v[i].z += d.z; v[i].w += d.w;
                store4(x, F32, base + c, (int)(cols - c), v[i]);
            }
        }
    }
    if (out_type == NOTHING) return;
    float mean = 0.0f;
    if (!rms) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            u32 c = 4 * (lane + threads * i);
            // Elements beyond the row were read as 0, but may have become something else through a bias.
            if (c < cols) {
                int left = (int)(cols - c);
                sum += v[i].x + (left > 1 ? v[i].y : 0.0f) + (left > 2 ? v[i].z : 0.0f) + (left > 3 ? v[i].w : 0.0f);
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
            square += a * a + (left > 1 ? b * b : 0.0f) + (left > 2 ? d * d : 0.0f) + (left > 3 ? e * e : 0.0f);
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
            store4(out, out_type, base + c, left, o);
        }
    }
}

#define ADD_NORM(WARPS, CHUNKS, Y, THREADS, BLOCKS)                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) add_norm_##WARPS##_##Y(                                   \
        float* x, const void* y, const float* bias, int mask, const void* masks, u32 site, u32 threshold, float keep,       \
        void* out, int out_type, int rms, float eps, const float* scale, const float* shift, u32 rows, u32 cols) {          \
        add_norm<WARPS, CHUNKS, Y>(x, y, bias, mask, masks, site, threshold, keep, out, out_type, rms, eps, scale, shift,   \
                                   rows, cols);                                                                             \
    }

// BLOCKS caps registers so that 4096 rows of 768 run in one wave, where what is added is bf16.
#define ALL(Y, BLOCKS)                                                                                                      \
    ADD_NORM(1, 6, Y, 128, BLOCKS)                                                                                          \
    ADD_NORM(4, 4, Y, 128, 6)                                                                                               \
    ADD_NORM(16, 8, Y, 512, 1)

ALL(0, 8)
ALL(1, 6)
ALL(2, 8)
