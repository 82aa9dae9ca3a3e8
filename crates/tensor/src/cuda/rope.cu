// What happens between the qkv product and attention: q/k normalisation, rotary positions, keys and values into slots.
//
// Bound by memory: q, k and v are read once, q written back, k and v written to their slots. One block a row, so that a
// row's sines are computed once for all heads; one warp a head, several heads
// of a warp in flight. A lane holds two neighbours of each half of a head.

// Two neighbours; the second is read as 0 if it is not `both`.
__device__ __forceinline__ float2 load2(const void* p, int type, u64 at, bool both) {
    if (both && (at & 1) == 0) {
        if (type == F32) return *(const float2*)((const float*)p + at);
        u32 two = *(const u32*)((const u16*)p + at);
        return make_float2(low_half(two), high_half(two));
    }
    return make_float2(load1(p, type, at), both ? load1(p, type, at + 1) : 0.0f);
}

__device__ __forceinline__ void store2(void* p, int type, u64 at, bool both, float2 v) {
    if (both && (at & 1) == 0) {
        if (type == F32) *(float2*)((float*)p + at) = v;
        else *(u32*)((u16*)p + at) = pack(v.x, v.y);
        return;
    }
    store1(p, type, at, v.x);
    if (both) store1(p, type, at + 1, v.y);
}

// Heads of a warp whose loads are in flight together.
#define FLIGHT 4

// TWOS pairs of neighbours of each half of a head a lane: heads of up to 128 TWOS.
template <int TWOS>
__device__ __forceinline__ void place(void* qkv, int type, u32 cols, u32 heads, u32 kv_heads, u32 dim,
                                      const float* frequencies, const u32* positions, const float* q_scale,
                                      const float* k_scale, float eps, void* keys, void* values, const u32* to, u32 slots) {
    __shared__ float sines[128], cosines[128];
    const u32 row = blockIdx.x, half = (dim + 1) / 2, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const u32 all = heads + 2 * kv_heads, slot = to[row], first = frequencies || q_scale ? 0 : heads; // plain queries stay
    const u64 base = (u64)row * cols;
    if (frequencies) {
        const float position = (float)positions[row];
        for (u32 i = threadIdx.x; i < half; i += blockDim.x) sincosf(frequencies[i] * position, &sines[i], &cosines[i]);
        __syncthreads();
    }
    for (u32 h0 = first + threadIdx.x / 32; h0 < all; h0 += FLIGHT * warps) {
        float2 a[FLIGHT][TWOS], b[FLIGHT][TWOS];
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) {
            const u32 h = h0 + f * warps;
#pragma unroll
            for (int j = 0; j < TWOS; j++) {
                const u32 i = 2 * (lane + 32 * j);
                const bool here = h < all && i < half, both = i + 1 < half;
                a[f][j] = here ? load2(qkv, type, base + h * dim + i, both) : make_float2(0.0f, 0.0f);
                b[f][j] = here && i + half < dim ? load2(qkv, type, base + h * dim + half + i, both && i + 1 + half < dim)
                                                 : make_float2(0.0f, 0.0f);
            }
        }
#pragma unroll
        for (int f = 0; f < FLIGHT; f++) {
            const u32 h = h0 + f * warps;
            if (h >= all) break;
            const bool is_q = h < heads, is_v = h >= heads + kv_heads;
            const float* scale = is_v ? 0 : is_q ? q_scale : k_scale;
            float inverse = 1.0f;
            if (scale) {
                float square = 0.0f;
#pragma unroll
                for (int j = 0; j < TWOS; j++)
                    square += a[f][j].x * a[f][j].x + a[f][j].y * a[f][j].y + b[f][j].x * b[f][j].x + b[f][j].y * b[f][j].y;
                inverse = 1.0f / sqrtf(warp_sum(square) / (float)dim + eps);
            }
            const u32 kv = is_v ? h - heads - kv_heads : h - heads;
            void* out = is_q ? qkv : is_v ? values : keys;
            const u64 at = is_q ? base + h * dim : ((u64)kv * slots + slot) * dim;
#pragma unroll
            for (int j = 0; j < TWOS; j++) {
                const u32 i = 2 * (lane + 32 * j);
                if (i >= half) continue;
                const bool both = i + 1 < half, low = i + half < dim, low_both = both && i + 1 + half < dim;
                float2 x = a[f][j], y = b[f][j];
                if (scale) {
                    x.x = x.x * inverse * scale[i];
                    if (both) x.y = x.y * inverse * scale[i + 1];
                    if (low) y.x = y.x * inverse * scale[i + half];
                    if (low_both) y.y = y.y * inverse * scale[i + 1 + half];
                }
                if (frequencies && !is_v) {
                    const float2 u = x;
                    x.x = fmaf(u.x, cosines[i], -(y.x * sines[i]));
                    y.x = fmaf(y.x, cosines[i], u.x * sines[i]);
                    if (both) {
                        x.y = fmaf(u.y, cosines[i + 1], -(y.y * sines[i + 1]));
                        y.y = fmaf(y.y, cosines[i + 1], u.y * sines[i + 1]);
                    }
                }
                store2(out, type, at + i, both, x);
                if (low) store2(out, type, at + half + i, low_both, y);
            }
        }
    }
}

#define PLACE(TWOS)                                                                                                         \
    extern "C" __global__ void __launch_bounds__(256) place_##TWOS(                                                         \
        void* qkv, int type, u32 cols, u32 heads, u32 kv_heads, u32 dim, const float* frequencies, const u32* positions,    \
        const float* q_scale, const float* k_scale, float eps, void* keys, void* values, const u32* to, u32 slots) {        \
        place<TWOS>(qkv, type, cols, heads, kv_heads, dim, frequencies, positions, q_scale, k_scale, eps, keys, values, to, \
                    slots);                                                                                                 \
    }

PLACE(1)
PLACE(2)

// Keys and values into slots, nothing else to do: 16 bytes a thread. `width` is head_dim in units of 16 bytes.
extern "C" __global__ void __launch_bounds__(256) place_plain(const uint4* qkv, u32 cols, u32 heads, u32 kv_heads, u32 width,
                                                              uint4* keys, uint4* values, const u32* to, u32 slots) {
    const u32 half = kv_heads * width, slot = to[blockIdx.x];
    const uint4* row = qkv + (u64)blockIdx.x * cols + heads * width;
    for (u32 i = threadIdx.x; i < half; i += blockDim.x) {
        const u64 at = ((u64)(i / width) * slots + slot) * width + i % width;
        const uint4 key = row[i], value = row[half + i];
        keys[at] = key;
        values[at] = value;
    }
}
