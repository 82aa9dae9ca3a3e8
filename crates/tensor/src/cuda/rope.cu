// What happens between the qkv product and attention: q/k normalisation, rotary positions, keys and values into slots.
//
// Bound by memory: q, k and v are read once, q written back, k and v written to their slots. One block a row, so that a
// row's sines are computed once for all heads; one warp a head. Lane i holds the pairs (i, i + half), i += 32.

#define PAIRS 4

extern "C" __global__ void __launch_bounds__(256) place(
    void* qkv, int type, u32 cols, u32 heads, u32 kv_heads, u32 dim, const float* frequencies, const u32* positions,
    const float* q_scale, const float* k_scale, float eps, void* keys, void* values, const u32* to, u32 slots) {
    __shared__ float sines[128], cosines[128];
    const u32 row = blockIdx.x, half = (dim + 1) / 2, lane = threadIdx.x % 32;
    if (frequencies) {
        const float position = (float)positions[row];
        for (u32 i = threadIdx.x; i < half; i += blockDim.x) sincosf(frequencies[i] * position, &sines[i], &cosines[i]);
        __syncthreads();
    }
    const u32 slot = to[row], warps = blockDim.x / 32;
    for (u32 h = threadIdx.x / 32; h < heads + 2 * kv_heads; h += warps) {
        const bool is_q = h < heads, is_v = h >= heads + kv_heads;
        const float* scale = is_v ? 0 : is_q ? q_scale : k_scale;
        if (is_q && !scale && !frequencies) continue;
        const u64 from = (u64)row * cols + h * dim;
        float a[PAIRS], b[PAIRS];
        float square = 0.0f;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            u32 i = lane + 32 * j;
            a[j] = i < half ? load1(qkv, type, from + i) : 0.0f;
            b[j] = i + half < dim ? load1(qkv, type, from + half + i) : 0.0f;
            square += a[j] * a[j] + b[j] * b[j];
        }
        const float inverse = scale ? 1.0f / sqrtf(warp_sum(square) / (float)dim + eps) : 1.0f;
        const u32 kv = is_v ? h - heads - kv_heads : h - heads;
        void* out = is_q ? qkv : is_v ? values : keys;
        const u64 at = is_q ? from : ((u64)kv * slots + slot) * dim;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            u32 i = lane + 32 * j;
            if (i >= half) continue;
            float x = a[j], y = b[j];
            if (scale) {
                x = x * inverse * scale[i];
                if (i + half < dim) y = y * inverse * scale[i + half];
            }
            if (frequencies && !is_v) {
                float s = sines[i], c = cosines[i], turned = fmaf(x, c, -(y * s));
                y = fmaf(y, c, x * s);
                x = turned;
            }
            store1(out, type, at + i, x);
            if (i + half < dim) store1(out, type, at + half + i, y);
        }
    }
}

// Keys and values into slots, nothing else to do: 16 bytes a thread. `width` is head_dim in units of 16 bytes.
extern "C" __global__ void __launch_bounds__(256) place_plain(const uint4* qkv, u32 rows, u32 cols, u32 heads, u32 kv_heads,
                                                              u32 width, uint4* keys, uint4* values, const u32* to,
                                                              u32 slots) {
    const u32 per_row = 2 * kv_heads * width;
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u32 row = (u32)(i / per_row), rest = (u32)(i % per_row);
    if (row >= rows) return;
    const u32 h = rest / width, part = rest % width;
    uint4* out = h < kv_heads ? keys : values;
    out[((u64)(h % kv_heads) * slots + to[row]) * width + part] = qkv[(u64)row * cols + heads * width + rest];
}
