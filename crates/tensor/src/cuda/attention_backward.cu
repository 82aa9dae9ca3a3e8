// The backward of attention over spans of slots. Tiles, rows and spans are as in attention.cu.
//
// With p the probabilities of a row, o its result and d what reaches that: v's gradient is the sum over rows of p d, the
// scores' is p (d . v - d . o), from which follow q's and k's. Probabilities are computed again: a first sweep over the keys
// finds each row's normaliser, a second one the gradients. Gradients of keys and values are f32, (kv_heads, slots, dim).

__device__ __forceinline__ void widen8(uint4 v, float (&x)[8]) {
    x[0] = low_half(v.x); x[1] = high_half(v.x); x[2] = low_half(v.y); x[3] = high_half(v.y);
    x[4] = low_half(v.z); x[5] = high_half(v.z); x[6] = low_half(v.w); x[7] = high_half(v.w);
}

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

// Four numbers of a row of a finished 16 x 8 tile of the tensor cores, added to memory: even lanes take the tile's upper half.
__device__ __forceinline__ void add_tile(float* upper, float* lower, bool in_upper, bool in_lower, const float (&c)[4]) {
    const u32 lane = threadIdx.x % 32, t = lane % 4, odd = t % 2;
    const float x = __shfl_xor_sync(FULL, odd ? c[0] : c[2], 1), y = __shfl_xor_sync(FULL, odd ? c[1] : c[3], 1);
    if (odd) {
        if (in_lower) add4(lower + 2 * (t - 1), 4, make_float4(x, y, c[2], c[3]));
    } else if (in_upper) {
        add4(upper + 2 * t, 4, make_float4(c[0], c[1], x, y));
    }
}

// What is subtracted from a score, in powers of 2, to make it a probability; infinite where nothing is seen.
__device__ __forceinline__ float normaliser(float largest, float sum, float scale2) {
    return sum > 0.0f ? fmaf(largest, scale2, log2f(sum)) : INF;
}

// bf16, head dimensions that are powers of two. As in attention.cu a warp has 16 rows, which are those of one key head; of a
// block that holds fewer rows than its warps could, some warps have none. A warp
// computes probabilities and slopes 32 keys at a time and leaves them in shared memory, where all warps together
// turn them into gradients of these keys and values over all rows: one addition to memory a tile. Prefixes of up to two
// stages are fetched once. Bound by memory (the gradients of keys and values) for single rows, by latency for whole prompts.
template <int DIM>
__device__ __forceinline__ void backward_mma(const u16* q, u32 q_cols, const u16* keys, const u16* values, u32 slots, u32 group,
                                             const u16* out, const u16* dout, u32 out_cols, u16* dqkv, u32 dqkv_cols,
                                             float* dkeys, float* dvalues, const uint4* tiles, const uint4* rows,
                                             const uint2* spans, float scale, u32 held) {
    constexpr int KEYS = Stage<DIM>::KEYS, STRIDE = Stage<DIM>::STRIDE, OSTRIDE = DIM + 4, PSTRIDE = SCORED + 8;
    constexpr int LANES = DIM / 8, TOGETHER = 32 / LANES, AHEAD = 4;
    extern __shared__ uint4 shared[];
    __shared__ float kept_max[64], kept_sum[64], along[64];
    __shared__ u32 reach[4];
    u16* stages = (u16*)shared;                   // (2, keys and values, KEYS, STRIDE)
    u16* sq = stages + 4 * KEYS * STRIDE;         // (held, STRIDE)
    u16* sd = sq + held * STRIDE;                 // (held, STRIDE)
    u16* sp = sd + held * STRIDE;                 // (held, PSTRIDE): probabilities
    u16* ss = sp + held * PSTRIDE;                // (held, PSTRIDE): slopes of scores
    const uint4 tile = tiles[blockIdx.x];
    const u32 first_row = blockIdx.z * held, height = tile.y * group;
    if (first_row >= height) return;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp_row = first_row + warp * 16;
    const u32 part = 8 * (lane % LANES), warps = blockDim.x / 32, count = height - first_row < held ? height - first_row : held;
    const bool has_rows = warp * 16 < count;
    const u64 head = (u64)blockIdx.y * slots * DIM, start = head + (u64)tile.z * DIM;
    const u32 steps = (tile.w + KEYS - 1) / KEYS;
    const float scale2 = scale * 1.44269504f; // powers are of 2

    for (u32 i = threadIdx.x; i < held * LANES; i += blockDim.x) {
        const u32 r = i / LANES, row = first_row + r;
        const bool real = row < height;
        const u64 at = tile.x + row / group, column = (blockIdx.y * group + row % group) * DIM + 8 * (i % LANES);
        copy16(sq + r * STRIDE + 8 * (i % LANES), q + (real ? at * q_cols + column : 0), real);
        copy16(sd + r * STRIDE + 8 * (i % LANES), dout + (real ? at * out_cols + column : 0), real);
    }
    fetch<DIM>(stages, keys + start, values + start, 0, tile.w);
    fetch<DIM>(stages + 2 * KEYS * STRIDE, keys + start, values + start, KEYS, tile.w);
    u32 in_stage[2] = {0, 1};

    // What lane r knows of the warp's row r.
    const u32 known = warp_row + lane % 16;
    const uint4 view = has_rows && known < height ? rows[tile.x + known / group] : make_uint4(0, 0, 0, 0);
    const u32 len0 = __shfl_sync(FULL, view.x, g), len1 = __shfl_sync(FULL, view.x, g + 8);
    const u32 longest = __reduce_max_sync(FULL, view.x);
    if (lane == 0) reach[warp] = longest;

#pragma unroll 1
    for (u32 first = warp * TOGETHER; first < count; first += warps * TOGETHER) {
        const u32 r = first + lane / LANES, row = first_row + r;
        float o[8], d[8], dot = 0.0f;
        const u64 at = (u64)(tile.x + row / group) * out_cols + (blockIdx.y * group + row % group) * DIM + part;
        widen8(r < count ? *(const uint4*)(out + at) : make_uint4(0, 0, 0, 0), o);
        widen8(r < count ? *(const uint4*)(dout + at) : make_uint4(0, 0, 0, 0), d);
#pragma unroll
        for (int i = 0; i < 8; i++) dot = fmaf(o[i], d[i], dot);
#pragma unroll
        for (int i = 1; i < LANES; i <<= 1) dot += __shfl_xor_sync(FULL, dot, i);
        if (lane % LANES == 0 && r < count) along[r] = dot;
    }

    asm volatile("cp.async.wait_group 1;" ::: "memory");
    const bool has_own = __syncthreads_or(view.w > 0);
    u32 a[DIM / 16][4] = {}, e[DIM / 16][4] = {};
    const u32 mine = (warp * 16 + lane % 16) * STRIDE + lane / 16 * 8;
#pragma unroll
    for (int s = 0; s < DIM / 16 && has_rows; s++) {
        load_blocks(a[s], sq + mine + 16 * s);
        load_blocks(e[s], sd + mine + 16 * s);
    }

    // The first sweep: the largest score of each row and the sum of powers.
    float max0 = -INF, max1 = -INF, sum0 = 0.0f, sum1 = 0.0f;
    for (u32 step = 0; step < steps; step++) {
        if (step > 0) {
            if (in_stage[step % 2] != step) {
                __syncthreads();
                fetch<DIM>(stages + (step % 2) * 2 * KEYS * STRIDE, keys + start, values + start, step * KEYS, tile.w);
                in_stage[step % 2] = step;
            }
            asm volatile("cp.async.wait_group 0;" ::: "memory");
            __syncthreads();
        }
        const u16* sk = stages + (step % 2) * 2 * KEYS * STRIDE;
#pragma unroll 1
        for (u32 from = 0; from < KEYS; from += SCORED) {
            const u32 base = step * KEYS + from;
            if (base >= longest) break;
            float s[SCORED / 8][4];
            const u16* at = sk + (from + lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
            for (int n = 0; n < SCORED / 8; n += 2) {
                s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
                s[n + 1][0] = s[n + 1][1] = s[n + 1][2] = s[n + 1][3] = 0.0f;
#pragma unroll
                for (int k = 0; k < DIM / 16; k++) {
                    u32 b[4];
                    load_blocks(b, at + 8 * n * STRIDE + 16 * k);
                    mma(s[n], a[k], b[0], b[1]);
                    mma(s[n + 1], a[k], b[2], b[3]);
                }
            }
            float new0 = max0, new1 = max1;
#pragma unroll
            for (int n = 0; n < SCORED / 8; n++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const u32 key = base + 8 * n + 2 * t + c;
                    s[n][c] = key < len0 ? s[n][c] : -INF;
                    s[n][2 + c] = key < len1 ? s[n][2 + c] : -INF;
                    new0 = fmaxf(new0, s[n][c]);
                    new1 = fmaxf(new1, s[n][2 + c]);
                }
            }
            // Each lane has a maximum of its own; they meet after the sweep.
            const float use0 = new0 == -INF ? 0.0f : new0 * scale2, use1 = new1 == -INF ? 0.0f : new1 * scale2;
            sum0 *= power_of_2(fmaf(max0, scale2, -use0));
            sum1 *= power_of_2(fmaf(max1, scale2, -use1));
            max0 = new0;
            max1 = new1;
#pragma unroll
            for (int n = 0; n < SCORED / 8; n++) {
                sum0 += power_of_2(fmaf(s[n][0], scale2, -use0)) + power_of_2(fmaf(s[n][1], scale2, -use0));
                sum1 += power_of_2(fmaf(s[n][2], scale2, -use1)) + power_of_2(fmaf(s[n][3], scale2, -use1));
            }
        }
    }
#pragma unroll
    for (int d = 1; d <= 2; d++) {
        const float other0 = __shfl_xor_sync(FULL, max0, d), other1 = __shfl_xor_sync(FULL, max1, d);
        const float more0 = __shfl_xor_sync(FULL, sum0, d), more1 = __shfl_xor_sync(FULL, sum1, d);
        const float new0 = fmaxf(max0, other0), new1 = fmaxf(max1, other1);
        const float use0 = new0 == -INF ? 0.0f : new0 * scale2, use1 = new1 == -INF ? 0.0f : new1 * scale2;
        sum0 = sum0 * power_of_2(fmaf(max0, scale2, -use0)) + more0 * power_of_2(fmaf(other0, scale2, -use0));
        sum1 = sum1 * power_of_2(fmaf(max1, scale2, -use1)) + more1 * power_of_2(fmaf(other1, scale2, -use1));
        max0 = new0;
        max1 = new1;
    }
    if (t == 0 && has_rows) {
        kept_max[warp * 16 + g] = max0; kept_max[warp * 16 + g + 8] = max1;
        kept_sum[warp * 16 + g] = sum0; kept_sum[warp * 16 + g + 8] = sum1;
    }
    __syncthreads();

    // The same over the rows' own keys.
    const u16* own_keys = keys + head + part;
    const u16* own_values = values + head + part;
#pragma unroll 1
    for (u32 first = warp * TOGETHER; has_own && first < count; first += warps * TOGETHER) {
        const u32 r = first + lane / LANES;
        const uint4 seen = r < count ? rows[tile.x + (first_row + r) / group] : make_uint4(0, 0, 0, 0);
        const u32 most = __reduce_max_sync(FULL, seen.w), at = r < count ? r : 0;
        float query[8], largest = kept_max[at], sum = kept_sum[at];
        widen8(*(const uint4*)(sq + at * STRIDE + part), query);
        Walk walk(spans, make_uint2(0, 0), seen.y);
        for (u32 j = 0; j < most; j += AHEAD) {
            uint4 k[AHEAD];
#pragma unroll
            for (int u = 0; u < AHEAD; u++)
                k[u] = j + u < seen.w ? *(const uint4*)(own_keys + (u64)walk.next() * DIM) : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                float w[8], dot = 0.0f;
                widen8(k[u], w);
#pragma unroll
                for (int i = 0; i < 8; i++) dot = fmaf(query[i], w[i], dot);
#pragma unroll
                for (int d = 1; d < LANES; d <<= 1) dot += __shfl_xor_sync(FULL, dot, d);
                if (j + u < seen.w) {
                    const float best = fmaxf(largest, dot);
                    sum = sum * power_of_2((largest - best) * scale2) + power_of_2((dot - best) * scale2);
                    largest = best;
                }
            }
        }
        if (lane % LANES == 0 && r < count) {
            kept_max[r] = largest;
            kept_sum[r] = sum;
        }
    }
    __syncthreads();

    // The second sweep, from the keys that are still here on.
    const u32 upper = warp * 16 + g, lower = upper + 8;
    const float norm0 = upper < count ? normaliser(kept_max[upper], kept_sum[upper], scale2) : INF;
    const float norm1 = lower < count ? normaliser(kept_max[lower], kept_sum[lower], scale2) : INF;
    const float along0 = upper < count ? along[upper] : 0.0f, along1 = lower < count ? along[lower] : 0.0f;
    const u32 row_blocks = (count + 15) / 16;
    float dq[DIM / 8][4];
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) dq[n][0] = dq[n][1] = dq[n][2] = dq[n][3] = 0.0f;
    for (u32 step = steps; step-- > 0;) {
        if (in_stage[step % 2] != step) {
            __syncthreads();
            fetch<DIM>(stages + (step % 2) * 2 * KEYS * STRIDE, keys + start, values + start, step * KEYS, tile.w);
            in_stage[step % 2] = step;
            asm volatile("cp.async.wait_group 0;" ::: "memory");
            __syncthreads();
        }
        const u16* sk = stages + (step % 2) * 2 * KEYS * STRIDE;
        const u16* sv = sk + KEYS * STRIDE;
#pragma unroll 1
        for (u32 from = 0; from < KEYS; from += SCORED) {
            const u32 base = step * KEYS + from;
            if (base >= tile.w) break;
            u16* to_p = sp + (warp * 16 + g) * PSTRIDE + 2 * t;
            u16* to_s = ss + (warp * 16 + g) * PSTRIDE + 2 * t;
            if (base < longest) {
                u32 slopes[SCORED / 16][4];
#pragma unroll
                for (int n = 0; n < SCORED / 8; n += 2) {
                    float s[2][4] = {}, d[2][4] = {};
                    const u32 at = (from + 8 * n + lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
                    for (int k = 0; k < DIM / 16; k++) {
                        u32 b[4];
                        load_blocks(b, sk + at + 16 * k);
                        mma(s[0], a[k], b[0], b[1]);
                        mma(s[1], a[k], b[2], b[3]);
                        load_blocks(b, sv + at + 16 * k);
                        mma(d[0], e[k], b[0], b[1]);
                        mma(d[1], e[k], b[2], b[3]);
                    }
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        float p[4];
#pragma unroll
                        for (int c = 0; c < 4; c++) {
                            const u32 key = base + 8 * (n + h) + 2 * t + c % 2;
                            p[c] = key < (c < 2 ? len0 : len1) ? power_of_2(fmaf(s[h][c], scale2, c < 2 ? -norm0 : -norm1)) : 0.0f;
                            d[h][c] = p[c] * (d[h][c] - (c < 2 ? along0 : along1)) * scale;
                        }
                        *(u32*)(to_p + 8 * (n + h)) = pack(p[0], p[1]);
                        *(u32*)(to_p + 8 * PSTRIDE + 8 * (n + h)) = pack(p[2], p[3]);
                        slopes[n / 2][2 * h] = pack(d[h][0], d[h][1]);
                        slopes[n / 2][2 * h + 1] = pack(d[h][2], d[h][3]);
                        *(u32*)(to_s + 8 * (n + h)) = slopes[n / 2][2 * h];
                        *(u32*)(to_s + 8 * PSTRIDE + 8 * (n + h)) = slopes[n / 2][2 * h + 1];
                    }
                }
#pragma unroll
                for (int k = 0; k < SCORED / 16; k++) {
                    const u16* at = sk + (from + 16 * k + lane % 16) * STRIDE + lane / 16 * 8;
#pragma unroll
                    for (int n = 0; n < DIM / 16; n++) {
                        u32 b[4];
                        load_transposed(b, at + 16 * n);
                        mma(dq[2 * n], slopes[k], b[0], b[1]);
                        mma(dq[2 * n + 1], slopes[k], b[2], b[3]);
                    }
                }
            }
            __syncthreads();
            // Sixteen keys' or values' gradients a warp at a time: unit 0 and 1 are keys, 2 and 3 values.
#pragma unroll 1
            for (u32 unit = warp; unit < 4; unit += warps) {
                const u32 m = 16 * (unit % 2), key = base + m;
                if (key >= tile.w) continue;
                const u16* left = (unit < 2 ? ss : sp) + (lane / 16 * 8 + lane % 8) * PSTRIDE + m + lane / 8 % 2 * 8;
                const u16* right = (unit < 2 ? sq : sd) + (lane % 16) * STRIDE + lane / 16 * 8;
                float acc[DIM / 8][4];
#pragma unroll
                for (int n = 0; n < DIM / 8; n++) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
#pragma unroll 1
                for (u32 r = 0; r < row_blocks; r++) {
                    if (reach[r] <= key) continue; // and nothing was written there
                    u32 weights[4];
                    load_transposed(weights, left + 16 * r * PSTRIDE);
#pragma unroll
                    for (int n = 0; n < DIM / 16; n++) {
                        u32 b[4];
                        load_transposed(b, right + 16 * r * STRIDE + 16 * n);
                        mma(acc[2 * n], weights, b[0], b[1]);
                        mma(acc[2 * n + 1], weights, b[2], b[3]);
                    }
                }
                float* to = (unit < 2 ? dkeys : dvalues) + start + (u64)(key + g) * DIM;
#pragma unroll
                for (int n = 0; n < DIM / 8; n++)
                    add_tile(to + 8 * n, to + 8 * DIM + 8 * n, key + g < tile.w, key + g + 8 < tile.w, acc[n]);
            }
            __syncthreads();
        }
    }

    // Queries' gradients from the tensor cores' layout to rows, through the memory that held the keys and values; then what
    // rows own.
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    float* so = (float*)shared; // (held, OSTRIDE)
    if (has_rows) {
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            *(float2*)(so + upper * OSTRIDE + 8 * n + 2 * t) = make_float2(dq[n][0], dq[n][1]);
            *(float2*)(so + lower * OSTRIDE + 8 * n + 2 * t) = make_float2(dq[n][2], dq[n][3]);
        }
    }
    __syncthreads();
#pragma unroll 1
    for (u32 first = warp * TOGETHER; first < count; first += warps * TOGETHER) {
        const u32 r = first + lane / LANES, at = r < count ? r : 0, row = first_row + r;
        const uint4 seen = has_own && r < count ? rows[tile.x + row / group] : make_uint4(0, 0, 0, 0);
        const u32 most = __reduce_max_sync(FULL, seen.w);
        const float norm = normaliser(kept_max[at], kept_sum[at], scale2), with = along[at];
        float query[8], d[8], x[8];
        widen8(*(const uint4*)(sq + at * STRIDE + part), query);
        widen8(*(const uint4*)(sd + at * STRIDE + part), d);
        *(float4*)&x[0] = *(const float4*)(so + at * OSTRIDE + part);
        *(float4*)&x[4] = *(const float4*)(so + at * OSTRIDE + part + 4);
        Walk walk(spans, make_uint2(0, 0), seen.y);
        for (u32 j = 0; j < most; j += AHEAD) {
            u64 from[AHEAD];
            uint4 keys8[AHEAD], values8[AHEAD];
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                keys8[u] = values8[u] = make_uint4(0, 0, 0, 0);
                from[u] = 0;
                if (j + u < seen.w) {
                    from[u] = (u64)walk.next() * DIM;
                    keys8[u] = *(const uint4*)(own_keys + from[u]);
                    values8[u] = *(const uint4*)(own_values + from[u]);
                }
            }
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                float k[8], v[8], score = 0.0f, reached = 0.0f;
                widen8(keys8[u], k);
                widen8(values8[u], v);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    score = fmaf(query[i], k[i], score);
                    reached = fmaf(d[i], v[i], reached);
                }
#pragma unroll
                for (int i = 1; i < LANES; i <<= 1) {
                    score += __shfl_xor_sync(FULL, score, i);
                    reached += __shfl_xor_sync(FULL, reached, i);
                }
                if (j + u >= seen.w) continue;
                const float p = power_of_2(fmaf(score, scale2, -norm)), s = p * (reached - with) * scale;
#pragma unroll
                for (int i = 0; i < 8; i++) x[i] = fmaf(s, k[i], x[i]);
                float* dk = dkeys + head + from[u] + part;
                float* dv = dvalues + head + from[u] + part;
                add4(dk, 4, make_float4(s * query[0], s * query[1], s * query[2], s * query[3]));
                add4(dk + 4, 4, make_float4(s * query[4], s * query[5], s * query[6], s * query[7]));
                add4(dv, 4, make_float4(p * d[0], p * d[1], p * d[2], p * d[3]));
                add4(dv + 4, 4, make_float4(p * d[4], p * d[5], p * d[6], p * d[7]));
            }
        }
        if (r < count)
            *(uint4*)(dqkv + (u64)(tile.x + row / group) * dqkv_cols + (blockIdx.y * group + row % group) * DIM + part) =
                make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
    }
}

#define BACKWARD(DIM, BLOCKS)                                                                                               \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS) attention_backward_##DIM(                                     \
        const u16* q, u32 q_cols, const u16* keys, const u16* values, u32 slots, u32 group, const u16* out, const u16* dout, \
        u32 out_cols, u16* dqkv, u32 dqkv_cols, float* dkeys, float* dvalues, const uint4* tiles, const uint4* rows,        \
        const uint2* spans, float scale, u32 held) {                                                                        \
        backward_mma<DIM>(q, q_cols, keys, values, slots, group, out, dout, out_cols, dqkv, dqkv_cols, dkeys, dvalues,      \
                          tiles, rows, spans, scale, held);                                                                 \
    }

BACKWARD(32, 4)
BACKWARD(64, 3)
BACKWARD(128, 2)

#define PARTS 8

// Any format, any head dimension up to 256, on the ordinary cores: a warp a row, a lane a dimension. Every row adds to every
// key and value that it sees, so this is bound by these additions; it is there for checks in single precision.
extern "C" __global__ void __launch_bounds__(128) attention_backward_any(
    const void* q, int type, u32 q_cols, const void* keys, const void* values, u32 slots, u32 group, u32 dim, const void* out,
    const void* dout, u32 out_cols, void* dqkv, u32 dqkv_cols, float* dkeys, float* dvalues, const uint4* tiles,
    const uint4* rows, const uint2* spans, float scale) {
    const uint4 tile = tiles[blockIdx.x];
    const u32 h = blockIdx.y, lane = threadIdx.x % 32;
    const u64 head = (u64)(h / group) * slots * dim;
    for (u32 r = threadIdx.x / 32; r < tile.y; r += blockDim.x / 32) {
        const uint4 view = rows[tile.x + r];
        const u64 row = tile.x + r;
        float query[PARTS], d[PARTS], dq[PARTS], largest = -INF, sum = 0.0f, with = 0.0f;
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const u32 c = lane + 32 * i;
            query[i] = c < dim ? load1(q, type, row * q_cols + h * dim + c) : 0.0f;
            d[i] = c < dim ? load1(dout, type, row * out_cols + h * dim + c) : 0.0f;
            with += c < dim ? d[i] * load1(out, type, row * out_cols + h * dim + c) : 0.0f;
            dq[i] = 0.0f;
        }
        with = warp_sum(with);
        for (int sweep = 0; sweep < 2; sweep++) {
            Walk walk(spans, make_uint2(0, 0), view.y);
            for (u32 j = 0; j < view.x + view.w; j++) {
                const u64 from = head + (u64)(j < view.x ? tile.z + j : walk.next()) * dim;
                float score = 0.0f, reached = 0.0f;
#pragma unroll
                for (int i = 0; i < PARTS; i++) {
                    const u32 c = lane + 32 * i;
                    if (c >= dim) continue;
                    score = fmaf(query[i], load1(keys, type, from + c), score);
                    if (sweep) reached = fmaf(d[i], load1(values, type, from + c), reached);
                }
                score = warp_sum(score) * scale;
                if (!sweep) {
                    const float best = fmaxf(largest, score);
                    sum = sum * expf(largest - best) + expf(score - best);
                    largest = best;
                    continue;
                }
                const float p = expf(score - largest) / sum, s = p * (warp_sum(reached) - with) * scale;
#pragma unroll
                for (int i = 0; i < PARTS; i++) {
                    const u32 c = lane + 32 * i;
                    if (c >= dim) continue;
                    dq[i] = fmaf(s, load1(keys, type, from + c), dq[i]);
                    atomicAdd(dkeys + from + c, s * query[i]);
                    atomicAdd(dvalues + from + c, p * d[i]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            if (lane + 32 * i < dim) store1(dqkv, type, row * dqkv_cols + h * dim + lane + 32 * i, dq[i]);
    }
}
