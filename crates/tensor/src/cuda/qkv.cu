// Operations between the QKV projection and attention: QK norm, rotary embedding, the write of keys
// and values to their slots. Also compiled with E4M3, for e4m3 keys and values without scales.
//
// Memory-bound: q, k and v are read once, q written back, k and v written to their slots. One block
// per row, so that a row's sines are computed once for all heads; one warp per head at a time. A
// lane holds two consecutive elements of each half of a head.

#ifdef E4M3
typedef u8 Stored;  // an element of a key or value
#else
typedef u16 Stored;
#endif

// Stores two elements, bf16, of a query, key or value.
__device__ __forceinline__ void store_two(u16* to, u32 two) { *(u32*)to = two; }

#ifdef E4M3
__device__ __forceinline__ void store_two(u8* to, u32 two) {
    *(u16*)to = pack_e4m3(low_half(two), high_half(two));
}
#else
// Loads two consecutive elements; the second is 0 unless `both`.
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
        else *(u32*)((u16*)p + at) = pack_bf16(v.x, v.y);
        return;
    }
    store1(p, type, at, v.x);
    if (both) store1(p, type, at + 1, v.y);
}

// Pairs of consecutive elements of each half of a head that a lane holds.
#define PAIRS 2

// Any dtype, any head dimension of up to 256.
extern "C" __global__ void __launch_bounds__(256)
    rope_and_cache_any(void* qkv, int type, u32 cols, u32 heads, u32 kv_heads, u32 dim,
                       const float* frequencies, const u32* positions, const float* q_scale,
                       const float* k_scale, float eps, void* keys, void* values,
                       const u32* slot_of, u32 slots) {
    __shared__ float sines[128], cosines[128];
    griddep_wait();
    griddep_launch();
    const u32 row = blockIdx.x, half = (dim + 1) / 2, lane = threadIdx.x % 32,
              warps = blockDim.x / 32;
    // Queries without norm or rotation are unchanged.
    const u32 all = heads + 2 * kv_heads, slot = slot_of[row],
              first = frequencies || q_scale ? 0 : heads;
    const u64 base = (u64)row * cols;
    if (frequencies) {
        const float position = (float)positions[row];
        for (u32 i = threadIdx.x; i < half; i += blockDim.x)
            sincosf(frequencies[i] * position, &sines[i], &cosines[i]);
        __syncthreads();
    }
    for (u32 h = first + threadIdx.x / 32; h < all; h += warps) {
        float2 a[PAIRS], b[PAIRS];
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const u32 i = 2 * (lane + 32 * j);
            const bool both = i + 1 < half;
            a[j] = i < half ? load2(qkv, type, base + h * dim + i, both) : make_float2(0.0f, 0.0f);
            b[j] = i < half && i + half < dim
                       ? load2(qkv, type, base + h * dim + half + i, both && i + 1 + half < dim)
                       : make_float2(0.0f, 0.0f);
        }
        const bool is_q = h < heads, is_v = h >= heads + kv_heads;
        const float* scale = is_v ? 0 : is_q ? q_scale : k_scale;
        float inverse = 1.0f;
        if (scale) {
            float square = 0.0f;
#pragma unroll
            for (int j = 0; j < PAIRS; j++)
                square += a[j].x * a[j].x + a[j].y * a[j].y + b[j].x * b[j].x + b[j].y * b[j].y;
            inverse = 1.0f / sqrtf(warp_sum(square) / (float)dim + eps);
        }
        const u32 kv = is_v ? h - heads - kv_heads : h - heads;
        void* out = is_q ? qkv : is_v ? values : keys;
        const u64 at = is_q ? base + h * dim : ((u64)kv * slots + slot) * dim;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            const u32 i = 2 * (lane + 32 * j);
            if (i >= half) continue;
            const bool both = i + 1 < half, low = i + half < dim,
                       low_both = both && i + 1 + half < dim;
            float2 x = a[j], y = b[j];
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

#define ROPE_AND_CACHE rope_and_cache_bf16
#endif
#ifdef E4M3
#define ROPE_AND_CACHE rope_and_cache_fp8
#endif

// Heads of a warp whose loads are in flight together.
#define IN_FLIGHT 4

// bf16, head dimensions of up to 128 that are multiples of 4: a lane holds two consecutive elements
// of each half, and the same columns of every head, so sines and scales are in registers.
extern "C" __global__ void __launch_bounds__(256)
    ROPE_AND_CACHE(u16* qkv, u32 cols, u32 heads, u32 kv_heads, u32 dim, const float* frequencies,
                   const u32* positions, const float* q_scale, const float* k_scale, float eps,
                   Stored* keys, Stored* values, const u32* slot_of, u32 slots) {
    __shared__ float sines[64], cosines[64];
    griddep_wait();
    griddep_launch();
    const u32 half = dim / 2, i = 2 * (threadIdx.x % 32), warps = blockDim.x / 32,
              all = heads + 2 * kv_heads;
    const u32 slot = slot_of[blockIdx.x];
    const bool active = i < half;
    const float4 one = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    float s0 = 0.0f, s1 = 0.0f, c0 = 1.0f, c1 = 1.0f;
    if (frequencies) {
        const float position = (float)positions[blockIdx.x];
        for (u32 j = threadIdx.x; j < half; j += blockDim.x)
            sincosf(frequencies[j] * position, &sines[j], &cosines[j]);
        __syncthreads();
        if (active) {
            s0 = sines[i];
            s1 = sines[i + 1];
            c0 = cosines[i];
            c1 = cosines[i + 1];
        }
    }
    float4 qs = one, ks = one;
    if (q_scale && active) {
        qs = make_float4(q_scale[i], q_scale[i + 1], q_scale[half + i], q_scale[half + i + 1]);
        ks = make_float4(k_scale[i], k_scale[i + 1], k_scale[half + i], k_scale[half + i + 1]);
    }
    u16* row = qkv + (u64)blockIdx.x * cols + i;
    for (u32 h0 = threadIdx.x / 32; h0 < all; h0 += IN_FLIGHT * warps) {
        u32 a[IN_FLIGHT], b[IN_FLIGHT];
#pragma unroll
        for (int f = 0; f < IN_FLIGHT; f++) {
            const u32 h = h0 + f * warps;
            const bool here = active && h < all;
            a[f] = here ? *(const u32*)(row + h * dim) : 0;
            b[f] = here ? *(const u32*)(row + h * dim + half) : 0;
        }
#pragma unroll
        for (int f = 0; f < IN_FLIGHT; f++) {
            const u32 h = h0 + f * warps;
            if (h >= all) break;
            if (h < heads + kv_heads) {
                float x0 = low_half(a[f]), x1 = high_half(a[f]), y0 = low_half(b[f]),
                      y1 = high_half(b[f]);
                if (q_scale) {
                    const float4 g = h < heads ? qs : ks;
                    const float inverse =
                        1.0f /
                        sqrtf(warp_sum(x0 * x0 + x1 * x1 + y0 * y0 + y1 * y1) / (float)dim + eps);
                    x0 *= inverse * g.x;
                    x1 *= inverse * g.y;
                    y0 *= inverse * g.z;
                    y1 *= inverse * g.w;
                }
                a[f] = pack_bf16(fmaf(x0, c0, -(y0 * s0)), fmaf(x1, c1, -(y1 * s1)));
                b[f] = pack_bf16(fmaf(y0, c0, x0 * s0), fmaf(y1, c1, x1 * s1));
            }
            if (!active) continue;
            if (h < heads) {
                store_two(row + h * dim, a[f]);
                store_two(row + h * dim + half, b[f]);
            } else {
                const bool is_v = h >= heads + kv_heads;
                const u32 head = is_v ? h - heads - kv_heads : h - heads;
                Stored* out = (is_v ? values : keys) + ((u64)head * slots + slot) * dim + i;
                store_two(out, a[f]);
                store_two(out + half, b[f]);
            }
        }
    }
}

#ifndef E4M3

// Writes keys and values to their slots, without norm or rotation: 16 bytes per thread. `width` is
// head_dim in units of 16 bytes.
extern "C" __global__ void __launch_bounds__(256)
    cache_kv(const uint4* qkv, u32 cols, u32 heads, u32 kv_heads, u32 width, uint4* keys,
             uint4* values, const u32* slot_of, u32 slots) {
    griddep_wait();
    griddep_launch();
    const u32 half = kv_heads * width, slot = slot_of[blockIdx.x];
    const uint4* row = qkv + (u64)blockIdx.x * cols + heads * width;
    for (u32 i = threadIdx.x; i < half; i += blockDim.x) {
        const u64 at = ((u64)(i / width) * slots + slot) * width + i % width;
        const uint4 key = row[i], value = row[half + i];
        keys[at] = key;
        values[at] = value;
    }
}

// Completes dqkv, which contains the queries' gradients: copies the keys' and values' from the
// rows' slots (f32, (kv_heads, slots, dim)) and rotates queries' and keys' back. Memory-bound. One
// block per row.
extern "C" __global__ void __launch_bounds__(256)
    rope_and_cache_backward(void* dqkv, int type, u32 cols, u32 heads, u32 kv_heads, u32 dim,
                            const float* frequencies, const u32* positions, const float* dkeys,
                            const float* dvalues, const u32* slot_of, u32 slots) {
    __shared__ float sines[128], cosines[128];
    const u64 base = (u64)blockIdx.x * cols, slot = slot_of[blockIdx.x];
    const u32 width = kv_heads * dim;
    if (!frequencies && dim % 4 == 0) {
        for (u32 i = 4 * threadIdx.x; i < 2 * width; i += 4 * blockDim.x) {
            const u32 c = i < width ? i : i - width;
            const float4 v = *(const float4*)((i < width ? dkeys : dvalues) +
                                              (c / dim * (u64)slots + slot) * dim + c % dim);
            store4(dqkv, type, base + heads * dim + i, 4, v);
        }
        return;
    }
    const u32 half = (dim + 1) / 2, first = frequencies ? 0 : heads, all = heads + 2 * kv_heads;
    if (frequencies) {
        const float position = (float)positions[blockIdx.x];
        for (u32 i = threadIdx.x; i < half; i += blockDim.x)
            sincosf(frequencies[i] * position, &sines[i], &cosines[i]);
        __syncthreads();
    }
    for (u32 j = threadIdx.x; j < (all - first) * half; j += blockDim.x) {
        const u32 h = first + j / half, i = j % half;
        const bool is_q = h < heads, is_v = h >= heads + kv_heads, both = i + half < dim;
        const u64 at = base + h * dim + i;
        float x, y = 0.0f;
        if (is_q) {
            x = load1(dqkv, type, at);
            if (both) y = load1(dqkv, type, at + half);
        } else {
            const u32 kv = is_v ? h - heads - kv_heads : h - heads;
            const float* d = (is_v ? dvalues : dkeys) + (kv * (u64)slots + slot) * dim + i;
            x = d[0];
            if (both) y = d[half];
        }
        if (frequencies && !is_v) {
            const float u = x;
            x = fmaf(u, cosines[i], y * sines[i]);
            y = fmaf(y, cosines[i], -(u * sines[i]));
        }
        store1(dqkv, type, at, x);
        if (both) store1(dqkv, type, at + half, y);
    }
}

// Pairs of consecutive elements of a head of up to 256 that a lane holds.
#define HEAD_PAIRS 4

// A lane's elements of a head at `at`, zeros beyond it.
__device__ __forceinline__ void load_head(const void* p, int type, u64 at, u32 dim,
                                          float2 (&to)[HEAD_PAIRS]) {
#pragma unroll
    for (int j = 0; j < HEAD_PAIRS; j++) {
        const u32 i = 2 * (threadIdx.x % 32 + 32 * j);
        to[j] = i < dim ? load2(p, type, at + i, i + 1 < dim) : make_float2(0.0f, 0.0f);
    }
}

// Adds a lane's elements of a head to those of the other warps in shared memory, one warp after
// another, and the sums to memory.
__device__ __forceinline__ void add_head(const float2 (&sum)[HEAD_PAIRS], float* shared, float* to,
                                         u32 dim) {
    for (u32 w = 0; w < blockDim.x / 32; w++) {
        if (threadIdx.x / 32 == w) {
#pragma unroll
            for (int j = 0; j < HEAD_PAIRS; j++) {
                const u32 i = 2 * (threadIdx.x % 32 + 32 * j);
                shared[i] = (w > 0 ? shared[i] : 0.0f) + sum[j].x;
                shared[i + 1] = (w > 0 ? shared[i + 1] : 0.0f) + sum[j].y;
            }
        }
        __syncthreads();
    }
    for (u32 i = threadIdx.x; i < dim; i += blockDim.x) atomicAdd(to + i, shared[i]);
}

// The backward of the QK norms: the queries and keys of dqkv, gradients of the norms' results,
// become gradients of their inputs, the heads of qkv; those of the scales are added to dq_scale and
// dk_scale. A grid-stride loop over rows, one warp per head at a time, so that a lane sums its
// columns of the scales' gradients in registers and a block adds its sums once. Memory-bound: qkv
// is read, dqkv read and written once.
extern "C" __global__ void __launch_bounds__(256)
    qk_norm_backward(const void* qkv, int type, void* dqkv, int dtype, u32 cols, u32 heads,
                     u32 kv_heads, u32 dim, const float* q_scale, const float* k_scale, float eps,
                     float* dq_scale, float* dk_scale, u32 rows) {
    __shared__ float shared[2][64 * HEAD_PAIRS];
    const u32 lane = threadIdx.x % 32, all = heads + kv_heads, warps = blockDim.x / 32;
    float2 sum_q[HEAD_PAIRS] = {}, sum_k[HEAD_PAIRS] = {};
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        for (u32 h = threadIdx.x / 32; h < all; h += warps) {
            const u64 at = (u64)row * cols + h * dim;
            const bool is_q = h < heads;
            float2 x[HEAD_PAIRS], dy[HEAD_PAIRS], g[HEAD_PAIRS];
            load_head(qkv, type, at, dim, x);
            load_head(dqkv, dtype, at, dim, dy);
            load_head(is_q ? q_scale : k_scale, F32, 0, dim, g);
            float square = 0.0f, product = 0.0f;
#pragma unroll
            for (int j = 0; j < HEAD_PAIRS; j++) {
                square += x[j].x * x[j].x + x[j].y * x[j].y;
                product += dy[j].x * g[j].x * x[j].x + dy[j].y * g[j].y * x[j].y;
            }
            const float inverse = 1.0f / sqrtf(warp_sum(square) / (float)dim + eps);
            const float mean_dy_normed = inverse * warp_sum(product) / (float)dim;
#pragma unroll
            for (int j = 0; j < HEAD_PAIRS; j++) {
                const u32 i = 2 * (lane + 32 * j);
                const float2 normed = make_float2(x[j].x * inverse, x[j].y * inverse);
                const float2 d = make_float2(dy[j].x * normed.x, dy[j].y * normed.y);
                if (is_q) sum_q[j] = make_float2(sum_q[j].x + d.x, sum_q[j].y + d.y);
                else sum_k[j] = make_float2(sum_k[j].x + d.x, sum_k[j].y + d.y);
                if (i < dim)
                    store2(dqkv, dtype, at + i, i + 1 < dim,
                           make_float2(inverse * (dy[j].x * g[j].x - normed.x * mean_dy_normed),
                                       inverse * (dy[j].y * g[j].y - normed.y * mean_dy_normed)));
            }
        }
    }
    add_head(sum_q, shared[0], dq_scale, dim);
    add_head(sum_k, shared[1], dk_scale, dim);
}
#endif
