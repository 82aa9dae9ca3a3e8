// The backward of attention. Tiles, rows and spans are as in attention.cu.
//
// With p the probabilities of a row, o its output and d the gradient of o: the gradient of v is the
// sum over rows of p d, that of the scores is p (d . v - d . o), which determine those of q and k.
// Probabilities are recomputed: a first pass over the keys computes each row's normalizer, a second
// one the gradients. Gradients of keys and values are f32, (kv_heads, slots, dim).

__device__ __forceinline__ void to_float8(uint4 v, float (&x)[8]) {
    x[0] = low_half(v.x);
    x[1] = high_half(v.x);
    x[2] = low_half(v.y);
    x[3] = high_half(v.y);
    x[4] = low_half(v.z);
    x[5] = high_half(v.z);
    x[6] = low_half(v.w);
    x[7] = high_half(v.w);
}

// Keys whose scores a warp holds at a time.
#define SCORE_KEYS 32

// Keys of a stage in shared memory; of two stages, one is used while the other is loaded.
template <int DIM>
struct Stage {
    static constexpr int KEYS = DIM <= 64 ? 64 : 32;
    static constexpr int STRIDE =
        DIM + 8;  // padded by 16 bytes: adjacent rows are in different banks
};

template <int DIM>
__device__ __forceinline__ void fetch_stage(u16* stage, const u16* keys, const u16* values,
                                            u32 base, u32 len) {
    constexpr int KEYS = Stage<DIM>::KEYS, STRIDE = Stage<DIM>::STRIDE, CHUNKS = DIM / 8;
    // Beyond the end nothing is loaded, but the group is counted.
    for (u32 i = threadIdx.x; base < len && i < KEYS * CHUNKS; i += blockDim.x) {
        const u32 r = i / CHUNKS, part = 8 * (i % CHUNKS);
        const bool inside = base + r < len;
        const u64 from = inside ? (u64)(base + r) * DIM + part : 0;
        cp_async16(stage + r * STRIDE + part, keys + from, inside);
        cp_async16(stage + (KEYS + r) * STRIDE + part, values + from, inside);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Adds a 16 x 8 result of mma to memory, four elements of a row per lane: even lanes take its upper
// half.
__device__ __forceinline__ void add_tile(float* upper, float* lower, bool in_upper, bool in_lower,
                                         const float (&c)[4]) {
    const u32 lane = threadIdx.x % 32, t = lane % 4, odd = t % 2;
    const float x = __shfl_xor_sync(FULL_MASK, odd ? c[0] : c[2], 1),
                y = __shfl_xor_sync(FULL_MASK, odd ? c[1] : c[3], 1);
    if (odd) {
        if (in_lower) add4(lower + 2 * (t - 1), 4, make_float4(x, y, c[2], c[3]));
    } else if (in_upper) {
        add4(upper + 2 * t, 4, make_float4(c[0], c[1], x, y));
    }
}

// log2 of the normalizer: subtracted from a score (base 2), the exponential is the probability;
// infinite for a row without keys.
__device__ __forceinline__ float log2_normaliser(float score_max, float sum, float scale2) {
    return sum > 0.0f ? fmaf(score_max, scale2, log2f(sum)) : INF;
}

// bf16, head dimensions that are powers of two. As in attention.cu a warp has 16 rows of one key
// head; in a CTA of fewer rows some warps have none. A warp computes probabilities and gradients of
// scores for 32 keys at a time and stores them in shared memory, from which all warps compute the
// gradients of these keys and values over all rows: one atomic addition per tile. Prefixes of up to
// two stages are loaded once. Memory-bound (the gradients of keys and values) for single rows,
// latency-bound for whole prompts.
template <int DIM>
__device__ __forceinline__ void backward_mma(const u16* q, u32 q_cols, const u16* keys,
                                             const u16* values, u32 slots, u32 group,
                                             const u16* out, const u16* dout, u32 out_cols,
                                             u16* dqkv, u32 dqkv_cols, float* dkeys, float* dvalues,
                                             const uint4* tiles, const uint4* rows,
                                             const uint2* spans, float scale, u32 held) {
    constexpr int KEYS = Stage<DIM>::KEYS, STRIDE = Stage<DIM>::STRIDE, OSTRIDE = DIM + 4,
                  PSTRIDE = SCORE_KEYS + 8;
    constexpr int LANES = DIM / 8, ROWS_AT_ONCE = 32 / LANES, IN_FLIGHT = 4;
    extern __shared__ uint4 shared[];
    __shared__ float row_max[64], row_sum[64], dot_out[64];
    __shared__ u32 reach[4];
    u16* stages = (u16*)shared;            // (2, keys and values, KEYS, STRIDE)
    u16* sq = stages + 4 * KEYS * STRIDE;  // (held, STRIDE)
    u16* sd = sq + held * STRIDE;          // (held, STRIDE)
    u16* sp = sd + held * STRIDE;          // (held, PSTRIDE): probabilities
    u16* ss = sp + held * PSTRIDE;         // (held, PSTRIDE): gradients of scores
    const uint4 tile = tiles[blockIdx.x];
    const u32 first_row = blockIdx.z * held, total_rows = tile.y * group;
    if (first_row >= total_rows) return;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4,
              warp_row = first_row + warp * 16;
    const u32 part = 8 * (lane % LANES), warps = blockDim.x / 32,
              count = total_rows - first_row < held ? total_rows - first_row : held;
    const bool has_rows = warp * 16 < count;
    const u64 head = (u64)blockIdx.y * slots * DIM, start = head + (u64)tile.z * DIM;
    const u32 steps = (tile.w + KEYS - 1) / KEYS;
    const float scale2 = scale * 1.44269504f;  // exponentials have base 2

    for (u32 i = threadIdx.x; i < held * LANES; i += blockDim.x) {
        const u32 r = i / LANES, row = first_row + r;
        const bool real = row < total_rows;
        const u64 at = tile.x + row / group,
                  column = (blockIdx.y * group + row % group) * DIM + 8 * (i % LANES);
        cp_async16(sq + r * STRIDE + 8 * (i % LANES), q + (real ? at * q_cols + column : 0), real);
        cp_async16(sd + r * STRIDE + 8 * (i % LANES), dout + (real ? at * out_cols + column : 0),
                   real);
    }
    fetch_stage<DIM>(stages, keys + start, values + start, 0, tile.w);
    fetch_stage<DIM>(stages + 2 * KEYS * STRIDE, keys + start, values + start, KEYS, tile.w);
    u32 in_stage[2] = {0, 1};

    // Lane r has the metadata of the warp's row r.
    const u32 row_index = warp_row + lane % 16;
    const uint4 info = has_rows && row_index < total_rows ? rows[tile.x + row_index / group]
                                                          : make_uint4(0, 0, 0, 0);
    const u32 len0 = __shfl_sync(FULL_MASK, info.x, g),
              len1 = __shfl_sync(FULL_MASK, info.x, g + 8);
    const u32 longest = __reduce_max_sync(FULL_MASK, info.x);
    if (lane == 0) reach[warp] = longest;

#pragma unroll 1
    for (u32 first = warp * ROWS_AT_ONCE; first < count; first += warps * ROWS_AT_ONCE) {
        const u32 r = first + lane / LANES, row = first_row + r;
        float o[8], d[8], dot = 0.0f;
        const u64 at = (u64)(tile.x + row / group) * out_cols +
                       (blockIdx.y * group + row % group) * DIM + part;
        to_float8(r < count ? *(const uint4*)(out + at) : make_uint4(0, 0, 0, 0), o);
        to_float8(r < count ? *(const uint4*)(dout + at) : make_uint4(0, 0, 0, 0), d);
#pragma unroll
        for (int i = 0; i < 8; i++) dot = fmaf(o[i], d[i], dot);
#pragma unroll
        for (int i = 1; i < LANES; i <<= 1) dot += __shfl_xor_sync(FULL_MASK, dot, i);
        if (lane % LANES == 0 && r < count) dot_out[r] = dot;
    }

    asm volatile("cp.async.wait_group 1;" ::: "memory");
    const bool has_own = __syncthreads_or(info.w > 0);
    u32 a[DIM / 16][4] = {}, e[DIM / 16][4] = {};
    const u32 mine = (warp * 16 + lane % 16) * STRIDE + lane / 16 * 8;
#pragma unroll
    for (int s = 0; s < DIM / 16 && has_rows; s++) {
        ldmatrix_x4(a[s], sq + mine + 16 * s);
        ldmatrix_x4(e[s], sd + mine + 16 * s);
    }

    // The first pass: the largest score of each row and the sum of exponentials.
    float max0 = -INF, max1 = -INF, sum0 = 0.0f, sum1 = 0.0f;
    for (u32 step = 0; step < steps; step++) {
        if (step > 0) {
            if (in_stage[step % 2] != step) {
                __syncthreads();
                fetch_stage<DIM>(stages + (step % 2) * 2 * KEYS * STRIDE, keys + start,
                                 values + start, step * KEYS, tile.w);
                in_stage[step % 2] = step;
            }
            asm volatile("cp.async.wait_group 0;" ::: "memory");
            __syncthreads();
        }
        const u16* sk = stages + (step % 2) * 2 * KEYS * STRIDE;
#pragma unroll 1
        for (u32 from = 0; from < KEYS; from += SCORE_KEYS) {
            const u32 base = step * KEYS + from;
            if (base >= longest) break;
            float s[SCORE_KEYS / 8][4];
            const u16* at = sk + (from + lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
            for (int n = 0; n < SCORE_KEYS / 8; n += 2) {
                s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
                s[n + 1][0] = s[n + 1][1] = s[n + 1][2] = s[n + 1][3] = 0.0f;
#pragma unroll
                for (int k = 0; k < DIM / 16; k++) {
                    u32 b[4];
                    ldmatrix_x4(b, at + 8 * n * STRIDE + 16 * k);
                    mma_m16n8k16(s[n], a[k], b[0], b[1]);
                    mma_m16n8k16(s[n + 1], a[k], b[2], b[3]);
                }
            }
            float new0 = max0, new1 = max1;
#pragma unroll
            for (int n = 0; n < SCORE_KEYS / 8; n++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const u32 key = base + 8 * n + 2 * t + c;
                    s[n][c] = key < len0 ? s[n][c] : -INF;
                    s[n][2 + c] = key < len1 ? s[n][2 + c] : -INF;
                    new0 = fmaxf(new0, s[n][c]);
                    new1 = fmaxf(new1, s[n][2 + c]);
                }
            }
            // Each lane has its own maximum; they are combined after the sweep.
            const float use0 = new0 == -INF ? 0.0f : new0 * scale2,
                        use1 = new1 == -INF ? 0.0f : new1 * scale2;
            sum0 *= exp2_approx(fmaf(max0, scale2, -use0));
            sum1 *= exp2_approx(fmaf(max1, scale2, -use1));
            max0 = new0;
            max1 = new1;
#pragma unroll
            for (int n = 0; n < SCORE_KEYS / 8; n++) {
                sum0 += exp2_approx(fmaf(s[n][0], scale2, -use0)) +
                        exp2_approx(fmaf(s[n][1], scale2, -use0));
                sum1 += exp2_approx(fmaf(s[n][2], scale2, -use1)) +
                        exp2_approx(fmaf(s[n][3], scale2, -use1));
            }
        }
    }
#pragma unroll
    for (int d = 1; d <= 2; d++) {
        const float other0 = __shfl_xor_sync(FULL_MASK, max0, d),
                    other1 = __shfl_xor_sync(FULL_MASK, max1, d);
        const float more0 = __shfl_xor_sync(FULL_MASK, sum0, d),
                    more1 = __shfl_xor_sync(FULL_MASK, sum1, d);
        const float new0 = fmaxf(max0, other0), new1 = fmaxf(max1, other1);
        const float use0 = new0 == -INF ? 0.0f : new0 * scale2,
                    use1 = new1 == -INF ? 0.0f : new1 * scale2;
        sum0 = sum0 * exp2_approx(fmaf(max0, scale2, -use0)) +
               more0 * exp2_approx(fmaf(other0, scale2, -use0));
        sum1 = sum1 * exp2_approx(fmaf(max1, scale2, -use1)) +
               more1 * exp2_approx(fmaf(other1, scale2, -use1));
        max0 = new0;
        max1 = new1;
    }
    if (t == 0 && has_rows) {
        row_max[warp * 16 + g] = max0;
        row_max[warp * 16 + g + 8] = max1;
        row_sum[warp * 16 + g] = sum0;
        row_sum[warp * 16 + g + 8] = sum1;
    }
    __syncthreads();

    // The same over the rows' unshared keys.
    const u16* own_keys = keys + head + part;
    const u16* own_values = values + head + part;
#pragma unroll 1
    for (u32 first = warp * ROWS_AT_ONCE; has_own && first < count; first += warps * ROWS_AT_ONCE) {
        const u32 r = first + lane / LANES;
        const uint4 own_info =
            r < count ? rows[tile.x + (first_row + r) / group] : make_uint4(0, 0, 0, 0);
        const u32 most = __reduce_max_sync(FULL_MASK, own_info.w);
        float query[8], score_max = -INF, sum = 0.0f;
        if (r < count) {
            score_max = row_max[r];
            sum = row_sum[r];
        }
        to_float8(*(const uint4*)(sq + (r < count ? r : 0) * STRIDE + part), query);
        SpanIterator own_slots(spans, make_uint2(0, 0), own_info.y);
        for (u32 j = 0; j < most; j += IN_FLIGHT) {
            uint4 k[IN_FLIGHT];
#pragma unroll
            for (int u = 0; u < IN_FLIGHT; u++)
                k[u] = j + u < own_info.w ? *(const uint4*)(own_keys + (u64)own_slots.next() * DIM)
                                          : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int u = 0; u < IN_FLIGHT; u++) {
                float w[8], dot = 0.0f;
                to_float8(k[u], w);
#pragma unroll
                for (int i = 0; i < 8; i++) dot = fmaf(query[i], w[i], dot);
#pragma unroll
                for (int d = 1; d < LANES; d <<= 1) dot += __shfl_xor_sync(FULL_MASK, dot, d);
                if (j + u < own_info.w) {
                    const float new_max = fmaxf(score_max, dot);
                    sum = sum * exp2_approx((score_max - new_max) * scale2) +
                          exp2_approx((dot - new_max) * scale2);
                    score_max = new_max;
                }
            }
        }
        __syncwarp();  // all lanes of the row have read what one of them replaces
        if (lane % LANES == 0 && r < count) {
            row_max[r] = score_max;
            row_sum[r] = sum;
        }
    }
    __syncthreads();

    // The second pass, in reverse: it starts with the keys that are still in shared memory.
    const u32 upper = warp * 16 + g, lower = upper + 8;
    const float norm0 =
        upper < count ? log2_normaliser(row_max[upper], row_sum[upper], scale2) : INF;
    const float norm1 =
        lower < count ? log2_normaliser(row_max[lower], row_sum[lower], scale2) : INF;
    const float dot_out0 = upper < count ? dot_out[upper] : 0.0f,
                dot_out1 = lower < count ? dot_out[lower] : 0.0f;
    const u32 row_blocks = (count + 15) / 16;
    float dq[DIM / 8][4];
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) dq[n][0] = dq[n][1] = dq[n][2] = dq[n][3] = 0.0f;
    for (u32 step = steps; step-- > 0;) {
        if (in_stage[step % 2] != step) {
            __syncthreads();
            fetch_stage<DIM>(stages + (step % 2) * 2 * KEYS * STRIDE, keys + start, values + start,
                             step * KEYS, tile.w);
            in_stage[step % 2] = step;
            asm volatile("cp.async.wait_group 0;" ::: "memory");
            __syncthreads();
        }
        const u16* sk = stages + (step % 2) * 2 * KEYS * STRIDE;
        const u16* sv = sk + KEYS * STRIDE;
#pragma unroll 1
        for (u32 from = 0; from < KEYS; from += SCORE_KEYS) {
            const u32 base = step * KEYS + from;
            if (base >= tile.w) break;
            u16* to_p = sp + (warp * 16 + g) * PSTRIDE + 2 * t;
            u16* to_s = ss + (warp * 16 + g) * PSTRIDE + 2 * t;
            if (base < longest) {
                u32 dscores[SCORE_KEYS / 16][4];
#pragma unroll
                for (int n = 0; n < SCORE_KEYS / 8; n += 2) {
                    float s[2][4] = {}, d[2][4] = {};
                    const u32 at =
                        (from + 8 * n + lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
                    for (int k = 0; k < DIM / 16; k++) {
                        u32 b[4];
                        ldmatrix_x4(b, sk + at + 16 * k);
                        mma_m16n8k16(s[0], a[k], b[0], b[1]);
                        mma_m16n8k16(s[1], a[k], b[2], b[3]);
                        ldmatrix_x4(b, sv + at + 16 * k);
                        mma_m16n8k16(d[0], e[k], b[0], b[1]);
                        mma_m16n8k16(d[1], e[k], b[2], b[3]);
                    }
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        float p[4];
#pragma unroll
                        for (int c = 0; c < 4; c++) {
                            const u32 key = base + 8 * (n + h) + 2 * t + c % 2;
                            p[c] = key < (c < 2 ? len0 : len1)
                                       ? exp2_approx(fmaf(s[h][c], scale2, c < 2 ? -norm0 : -norm1))
                                       : 0.0f;
                            d[h][c] = p[c] * (d[h][c] - (c < 2 ? dot_out0 : dot_out1)) * scale;
                        }
                        *(u32*)(to_p + 8 * (n + h)) = pack_bf16(p[0], p[1]);
                        *(u32*)(to_p + 8 * PSTRIDE + 8 * (n + h)) = pack_bf16(p[2], p[3]);
                        dscores[n / 2][2 * h] = pack_bf16(d[h][0], d[h][1]);
                        dscores[n / 2][2 * h + 1] = pack_bf16(d[h][2], d[h][3]);
                        *(u32*)(to_s + 8 * (n + h)) = dscores[n / 2][2 * h];
                        *(u32*)(to_s + 8 * PSTRIDE + 8 * (n + h)) = dscores[n / 2][2 * h + 1];
                    }
                }
#pragma unroll
                for (int k = 0; k < SCORE_KEYS / 16; k++) {
                    const u16* at = sk + (from + 16 * k + lane % 16) * STRIDE + lane / 16 * 8;
#pragma unroll
                    for (int n = 0; n < DIM / 16; n++) {
                        u32 b[4];
                        ldmatrix_x4_trans(b, at + 16 * n);
                        mma_m16n8k16(dq[2 * n], dscores[k], b[0], b[1]);
                        mma_m16n8k16(dq[2 * n + 1], dscores[k], b[2], b[3]);
                    }
                }
            }
            __syncthreads();
            // The gradients of sixteen keys or values per warp at a time: units 0 and 1 are keys, 2
            // and 3 values.
#pragma unroll 1
            for (u32 unit = warp; unit < 4; unit += warps) {
                const u32 m = 16 * (unit % 2), key = base + m;
                if (key >= tile.w) continue;
                const u16* left = (unit < 2 ? ss : sp) + (lane / 16 * 8 + lane % 8) * PSTRIDE + m +
                                  lane / 8 % 2 * 8;
                const u16* right = (unit < 2 ? sq : sd) + (lane % 16) * STRIDE + lane / 16 * 8;
                float acc[DIM / 8][4];
#pragma unroll
                for (int n = 0; n < DIM / 8; n++)
                    acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
#pragma unroll 1
                for (u32 r = 0; r < row_blocks; r++) {
                    if (reach[r] <= key) continue;  // nothing was stored there
                    u32 weights[4];
                    ldmatrix_x4_trans(weights, left + 16 * r * PSTRIDE);
#pragma unroll
                    for (int n = 0; n < DIM / 16; n++) {
                        u32 b[4];
                        ldmatrix_x4_trans(b, right + 16 * r * STRIDE + 16 * n);
                        mma_m16n8k16(acc[2 * n], weights, b[0], b[1]);
                        mma_m16n8k16(acc[2 * n + 1], weights, b[2], b[3]);
                    }
                }
                float* to = (unit < 2 ? dkeys : dvalues) + start + (u64)(key + g) * DIM;
#pragma unroll
                for (int n = 0; n < DIM / 8; n++)
                    add_tile(to + 8 * n, to + 8 * DIM + 8 * n, key + g < tile.w,
                             key + g + 8 < tile.w, acc[n]);
            }
            __syncthreads();
        }
    }

    // The queries' gradients from the mma layout to rows, through the memory of the stages; then
    // the rows' unshared slots.
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    float* so = (float*)shared;  // (held, OSTRIDE)
    if (has_rows) {
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            *(float2*)(so + upper * OSTRIDE + 8 * n + 2 * t) = make_float2(dq[n][0], dq[n][1]);
            *(float2*)(so + lower * OSTRIDE + 8 * n + 2 * t) = make_float2(dq[n][2], dq[n][3]);
        }
    }
    __syncthreads();
#pragma unroll 1
    for (u32 first = warp * ROWS_AT_ONCE; first < count; first += warps * ROWS_AT_ONCE) {
        const u32 r = first + lane / LANES, at = r < count ? r : 0, row = first_row + r;
        const uint4 own_info =
            has_own && r < count ? rows[tile.x + row / group] : make_uint4(0, 0, 0, 0);
        const u32 most = __reduce_max_sync(FULL_MASK, own_info.w);
        const float norm = log2_normaliser(row_max[at], row_sum[at], scale2),
                    dot_out_row = dot_out[at];
        float query[8], d[8], x[8];
        to_float8(*(const uint4*)(sq + at * STRIDE + part), query);
        to_float8(*(const uint4*)(sd + at * STRIDE + part), d);
        *(float4*)&x[0] = *(const float4*)(so + at * OSTRIDE + part);
        *(float4*)&x[4] = *(const float4*)(so + at * OSTRIDE + part + 4);
        SpanIterator own_slots(spans, make_uint2(0, 0), own_info.y);
        for (u32 j = 0; j < most; j += IN_FLIGHT) {
            u64 from[IN_FLIGHT];
            uint4 keys8[IN_FLIGHT], values8[IN_FLIGHT];
#pragma unroll
            for (int u = 0; u < IN_FLIGHT; u++) {
                keys8[u] = values8[u] = make_uint4(0, 0, 0, 0);
                from[u] = 0;
                if (j + u < own_info.w) {
                    from[u] = (u64)own_slots.next() * DIM;
                    keys8[u] = *(const uint4*)(own_keys + from[u]);
                    values8[u] = *(const uint4*)(own_values + from[u]);
                }
            }
#pragma unroll
            for (int u = 0; u < IN_FLIGHT; u++) {
                float k[8], v[8], score = 0.0f, dp = 0.0f;
                to_float8(keys8[u], k);
                to_float8(values8[u], v);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    score = fmaf(query[i], k[i], score);
                    dp = fmaf(d[i], v[i], dp);
                }
#pragma unroll
                for (int i = 1; i < LANES; i <<= 1) {
                    score += __shfl_xor_sync(FULL_MASK, score, i);
                    dp += __shfl_xor_sync(FULL_MASK, dp, i);
                }
                if (j + u >= own_info.w) continue;
                const float p = exp2_approx(fmaf(score, scale2, -norm)),
                            s = p * (dp - dot_out_row) * scale;
#pragma unroll
                for (int i = 0; i < 8; i++) x[i] = fmaf(s, k[i], x[i]);
                float* dk = dkeys + head + from[u] + part;
                float* dv = dvalues + head + from[u] + part;
                add4(dk, 4, make_float4(s * query[0], s * query[1], s * query[2], s * query[3]));
                add4(dk + 4, 4,
                     make_float4(s * query[4], s * query[5], s * query[6], s * query[7]));
                add4(dv, 4, make_float4(p * d[0], p * d[1], p * d[2], p * d[3]));
                add4(dv + 4, 4, make_float4(p * d[4], p * d[5], p * d[6], p * d[7]));
            }
        }
        if (r < count)
            *(uint4*)(dqkv + (u64)(tile.x + row / group) * dqkv_cols +
                      (blockIdx.y * group + row % group) * DIM + part) =
                make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                           pack_bf16(x[6], x[7]));
    }
}

#define BACKWARD(DIM, BLOCKS)                                                                   \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS) attention_backward_##DIM(         \
        const u16* q, u32 q_cols, const u16* keys, const u16* values, u32 slots, u32 group,     \
        const u16* out, const u16* dout, u32 out_cols, u16* dqkv, u32 dqkv_cols, float* dkeys,  \
        float* dvalues, const uint4* tiles, const uint4* rows, const uint2* spans, float scale, \
        u32 held) {                                                                             \
        backward_mma<DIM>(q, q_cols, keys, values, slots, group, out, dout, out_cols, dqkv,     \
                          dqkv_cols, dkeys, dvalues, tiles, rows, spans, scale, held);          \
    }

BACKWARD(32, 4)
BACKWARD(64, 3)
BACKWARD(128, 2)

#define LANE_DIMS 8

// Any dtype, any head dimension up to 256, without mma: one warp per row, one lane per dimension.
// Bound by the atomic additions of every row to every key and value; it exists for checks in f32.
extern "C" __global__ void __launch_bounds__(128)
    attention_backward_any(const void* q, int type, u32 q_cols, const void* keys,
                           const void* values, u32 slots, u32 group, u32 dim, const void* out,
                           const void* dout, u32 out_cols, void* dqkv, u32 dqkv_cols, float* dkeys,
                           float* dvalues, const uint4* tiles, const uint4* rows,
                           const uint2* spans, float scale) {
    const uint4 tile = tiles[blockIdx.x];
    const u32 h = blockIdx.y, lane = threadIdx.x % 32;
    const u64 head = (u64)(h / group) * slots * dim;
    for (u32 r = threadIdx.x / 32; r < tile.y; r += blockDim.x / 32) {
        const uint4 info = rows[tile.x + r];
        const u64 row = tile.x + r;
        float query[LANE_DIMS], d[LANE_DIMS], dq[LANE_DIMS], score_max = -INF, sum = 0.0f,
                                                             dot_out_row = 0.0f;
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) {
            const u32 c = lane + 32 * i;
            query[i] = c < dim ? load1(q, type, row * q_cols + h * dim + c) : 0.0f;
            d[i] = c < dim ? load1(dout, type, row * out_cols + h * dim + c) : 0.0f;
            dot_out_row += c < dim ? d[i] * load1(out, type, row * out_cols + h * dim + c) : 0.0f;
            dq[i] = 0.0f;
        }
        dot_out_row = warp_sum(dot_out_row);
        for (int sweep = 0; sweep < 2; sweep++) {
            SpanIterator own_slots(spans, make_uint2(0, 0), info.y);
            for (u32 j = 0; j < info.x + info.w; j++) {
                const u64 from = head + (u64)(j < info.x ? tile.z + j : own_slots.next()) * dim;
                float score = 0.0f, dp = 0.0f;
#pragma unroll
                for (int i = 0; i < LANE_DIMS; i++) {
                    const u32 c = lane + 32 * i;
                    if (c >= dim) continue;
                    score = fmaf(query[i], load1(keys, type, from + c), score);
                    if (sweep) dp = fmaf(d[i], load1(values, type, from + c), dp);
                }
                score = warp_sum(score) * scale;
                if (!sweep) {
                    const float new_max = fmaxf(score_max, score);
                    sum = sum * expf(score_max - new_max) + expf(score - new_max);
                    score_max = new_max;
                    continue;
                }
                const float p = expf(score - score_max) / sum,
                            s = p * (warp_sum(dp) - dot_out_row) * scale;
#pragma unroll
                for (int i = 0; i < LANE_DIMS; i++) {
                    const u32 c = lane + 32 * i;
                    if (c >= dim) continue;
                    dq[i] = fmaf(s, load1(keys, type, from + c), dq[i]);
                    atomicAdd(dkeys + from + c, s * query[i]);
                    atomicAdd(dvalues + from + c, p * d[i]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++)
            if (lane + 32 * i < dim)
                store1(dqkv, type, row * dqkv_cols + h * dim + lane + 32 * i, dq[i]);
    }
}
