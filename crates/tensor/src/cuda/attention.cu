// Attention over spans of slots.
//
// Rows come in tiles: neighbours whose first span starts at the same slot (rows forked from one prefix, or the positions of
// one prompt). A block takes one tile and one head. Phase A reads the shared span once for the whole tile through
// shared memory; phase B reads the spans that are each row's own. Softmax is online and in f32 throughout.
//
//   tiles[i] = (first row, rows, first slot of the shared span, its greatest length among the rows)
//   rows[r]  = (length of the shared span that r sees, where its own spans begin, where they end, slots in them)
//   spans[i] = (first slot, length)
//
// Keys and values of a layer are (kv_heads, slots, dim).

// bf16, head dimensions that are powers of two. Phase A on the tensor cores, 16 rows a warp; bound by latency at the short
// prefixes of prompts, by the tensor cores at long ones. Phase B is bound by memory: a row's own keys and values are read
// once, 16 bytes a lane, DIM / 8 lanes a row, four keys in flight.
template <int DIM>
__device__ __forceinline__ void attention_mma(const u16* q, u32 q_cols, const u16* keys, const u16* values, u32 slots,
                                              u32 group, u16* out, u32 out_cols, const uint4* tiles, const uint4* rows,
                                              const uint2* spans, float scale) {
    constexpr int KEYS = Stage<DIM>::KEYS, STRIDE = Stage<DIM>::STRIDE, OSTRIDE = DIM + 4;
    extern __shared__ uint4 shared[];
    __shared__ float kept_max[64], kept_sum[64];
    u16* stages = (u16*)shared; // (2, keys and values, KEYS, STRIDE)
    const uint4 tile = tiles[blockIdx.x];
    // The query heads that share a key head are rows of one product: row v is head v % group of the tile's row v / group.
    const u32 first_row = blockIdx.z * (blockDim.x / 2), height = tile.y * group;
    if (first_row >= height) return;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp_row = first_row + warp * 16;
    const u64 head = (u64)blockIdx.y * slots * DIM, start = head + (u64)tile.z * DIM;
    const u32 steps = (tile.w + KEYS - 1) / KEYS;
    fetch<DIM>(stages, keys + start, values + start, 0, tile.w);
    fetch<DIM>(stages + 2 * KEYS * STRIDE, keys + start, values + start, KEYS, tile.w);

    // What lane r knows of the warp's row r: read now, needed in phase B.
    const u32 known = warp_row + lane % 16;
    const uint4 view = known < height ? rows[tile.x + known / group] : make_uint4(0, 0, 0, 0);
    const uint2 first_span = view.w ? spans[view.y] : make_uint2(0, 0);

    const u32 row0 = warp_row + g, row1 = row0 + 8;
    const u32 len0 = __shfl_sync(FULL, view.x, g), len1 = __shfl_sync(FULL, view.x, g + 8);
    const u32 longest = __reduce_max_sync(FULL, view.x), shortest = __reduce_min_sync(FULL, view.x);
    u32 a[DIM / 16][4];
    const u16* q0 = q + (u64)(tile.x + row0 / group) * q_cols + (blockIdx.y * group + row0 % group) * DIM + 2 * t;
    const u16* q1 = q + (u64)(tile.x + row1 / group) * q_cols + (blockIdx.y * group + row1 % group) * DIM + 2 * t;
#pragma unroll
    for (int s = 0; s < DIM / 16; s++) {
        a[s][0] = row0 < height ? *(const u32*)(q0 + 16 * s) : 0;
        a[s][1] = row1 < height ? *(const u32*)(q1 + 16 * s) : 0;
        a[s][2] = row0 < height ? *(const u32*)(q0 + 16 * s + 8) : 0;
        a[s][3] = row1 < height ? *(const u32*)(q1 + 16 * s + 8) : 0;
    }
    float o[DIM / 8][4];
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;
    float max0 = -INF, max1 = -INF, sum0 = 0.0f, sum1 = 0.0f;

    for (u32 step = 0; step < steps; step++) {
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        const u16* sk = stages + (step % 2) * 2 * KEYS * STRIDE;
        const u16* sv = sk + KEYS * STRIDE;
#pragma unroll 1
        for (u32 part = 0; part < KEYS; part += SCORED) {
            const u32 base = step * KEYS + part;
            if (base >= longest) break;
            float s[SCORED / 8][4];
#pragma unroll
            for (int n = 0; n < SCORED / 8; n += 2) {
                s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
                s[n + 1][0] = s[n + 1][1] = s[n + 1][2] = s[n + 1][3] = 0.0f;
                if (base + 8 * n < longest) {
                    const u16* at = sk + (part + 8 * n + lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
                    for (int k = 0; k < DIM / 16; k++) {
                        u32 b[4];
                        load_blocks(b, at + 16 * k);
                        mma(s[n], a[k], b[0], b[1]);
                        mma(s[n + 1], a[k], b[2], b[3]);
                    }
                }
            }
            if (base + SCORED > shortest) {
#pragma unroll
                for (int n = 0; n < SCORED / 8; n++) {
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        u32 key = base + 8 * n + 2 * t + c;
                        s[n][c] = key < len0 ? s[n][c] : -INF;
                        s[n][2 + c] = key < len1 ? s[n][2 + c] : -INF;
                    }
                }
            }
            float new0 = max0, new1 = max1;
#pragma unroll
            for (int n = 0; n < SCORED / 8; n++) {
                new0 = fmaxf(new0, fmaxf(s[n][0], s[n][1]));
                new1 = fmaxf(new1, fmaxf(s[n][2], s[n][3]));
            }
            new0 = fmaxf(new0, __shfl_xor_sync(FULL, new0, 1));
            new0 = fmaxf(new0, __shfl_xor_sync(FULL, new0, 2));
            new1 = fmaxf(new1, __shfl_xor_sync(FULL, new1, 1));
            new1 = fmaxf(new1, __shfl_xor_sync(FULL, new1, 2));
            // Rows that pad a tile see nothing; their maximum stays -inf and must not become a not-a-number.
            const float use0 = new0 == -INF ? 0.0f : new0 * scale, use1 = new1 == -INF ? 0.0f : new1 * scale;
            const float shrink0 = power_of_2(fmaf(max0, scale, -use0)), shrink1 = power_of_2(fmaf(max1, scale, -use1));
            max0 = new0;
            max1 = new1;
            sum0 *= shrink0;
            sum1 *= shrink1;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                o[n][0] *= shrink0; o[n][1] *= shrink0; o[n][2] *= shrink1; o[n][3] *= shrink1;
            }
#pragma unroll
            for (int n = 0; n < SCORED / 8; n++) {
                s[n][0] = power_of_2(fmaf(s[n][0], scale, -use0));
                s[n][1] = power_of_2(fmaf(s[n][1], scale, -use0));
                s[n][2] = power_of_2(fmaf(s[n][2], scale, -use1));
                s[n][3] = power_of_2(fmaf(s[n][3], scale, -use1));
                sum0 += s[n][0] + s[n][1];
                sum1 += s[n][2] + s[n][3];
            }
#pragma unroll
            for (int k = 0; k < SCORED / 16; k++) {
                if (base + 16 * k < longest) {
                    u32 p[4] = {pack(s[2 * k][0], s[2 * k][1]), pack(s[2 * k][2], s[2 * k][3]),
                                pack(s[2 * k + 1][0], s[2 * k + 1][1]), pack(s[2 * k + 1][2], s[2 * k + 1][3])};
                    const u16* at = sv + (part + 16 * k + lane % 16) * STRIDE + lane / 16 * 8;
#pragma unroll
                    for (int n = 0; n < DIM / 16; n++) {
                        u32 v[4];
                        load_transposed(v, at + 16 * n);
                        mma(o[2 * n], p, v[0], v[1]);
                        mma(o[2 * n + 1], p, v[2], v[3]);
                    }
                }
            }
        }
        __syncthreads();
        fetch<DIM>(stages + (step % 2) * 2 * KEYS * STRIDE, keys + start, values + start, (step + 2) * KEYS, tile.w);
    }
    sum0 += __shfl_xor_sync(FULL, sum0, 1);
    sum0 += __shfl_xor_sync(FULL, sum0, 2);
    sum1 += __shfl_xor_sync(FULL, sum1, 1);
    sum1 += __shfl_xor_sync(FULL, sum1, 2);

    // From the tensor cores' layout to rows, through the memory that held the keys and values.
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    float* so = (float*)shared + warp * 16 * OSTRIDE;
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
        *(float2*)(so + g * OSTRIDE + 8 * n + 2 * t) = make_float2(o[n][0], o[n][1]);
        *(float2*)(so + (g + 8) * OSTRIDE + 8 * n + 2 * t) = make_float2(o[n][2], o[n][3]);
    }
    if (t == 0) {
        kept_max[warp * 16 + g] = max0; kept_max[warp * 16 + g + 8] = max1;
        kept_sum[warp * 16 + g] = sum0; kept_sum[warp * 16 + g + 8] = sum1;
    }
    __syncwarp();

    constexpr int LANES = DIM / 8, TOGETHER = 32 / LANES, AHEAD = 4;
    const u32 part = 8 * (lane % LANES);
    const u16* own_keys = keys + head + part;
    const u16* own_values = values + head + part;
#pragma unroll 1
    for (u32 first = 0; first < 16; first += TOGETHER) {
        const u32 r = first + lane / LANES, row = warp_row + r;
        const bool real = row < height;
        const u64 at = (u64)(tile.x + row / group), column = (blockIdx.y * group + row % group) * DIM + part;
        const u32 count = __shfl_sync(FULL, view.w, r), spans_at = __shfl_sync(FULL, view.y, r);
        const uint2 span = make_uint2(__shfl_sync(FULL, first_span.x, r), __shfl_sync(FULL, first_span.y, r));
        u32 most = count;
#pragma unroll
        for (int d = LANES; d < 32; d <<= 1) {
            u32 other = __shfl_xor_sync(FULL, most, d);
            most = other > most ? other : most;
        }
        float x[8], query[8], largest = kept_max[warp * 16 + r], sum = kept_sum[warp * 16 + r];
        widen8(real ? *(const uint4*)(q + at * q_cols + column) : make_uint4(0, 0, 0, 0), query);
        *(float4*)&x[0] = *(const float4*)(so + r * OSTRIDE + part);
        *(float4*)&x[4] = *(const float4*)(so + r * OSTRIDE + part + 4);
        Walk walk(spans, span, spans_at + 1);
        for (u32 j = 0; j < most; j += AHEAD) {
            uint4 k[AHEAD], v[AHEAD];
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                k[u] = v[u] = make_uint4(0, 0, 0, 0);
                if (j + u < count) {
                    const u64 from = (u64)walk.next() * DIM;
                    k[u] = *(const uint4*)(own_keys + from);
                    v[u] = *(const uint4*)(own_values + from);
                }
            }
            float score[AHEAD], best = largest;
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                float w[8], dot = 0.0f;
                widen8(k[u], w);
#pragma unroll
                for (int i = 0; i < 8; i++) dot = fmaf(query[i], w[i], dot);
#pragma unroll
                for (int d = 1; d < LANES; d <<= 1) dot += __shfl_xor_sync(FULL, dot, d);
                score[u] = j + u < count ? dot : -INF;
                best = fmaxf(best, score[u]);
            }
            const float use = best == -INF ? 0.0f : best, shrink = power_of_2((largest - use) * scale);
            largest = best;
            sum *= shrink;
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] *= shrink;
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                float w[8], p = power_of_2((score[u] - use) * scale);
                widen8(v[u], w);
                sum += p;
#pragma unroll
                for (int i = 0; i < 8; i++) x[i] = fmaf(p, w[i], x[i]);
            }
        }
        if (real) {
            const float inverse = 1.0f / sum;
            *(uint4*)(out + at * out_cols + column) =
                make_uint4(pack(x[0] * inverse, x[1] * inverse), pack(x[2] * inverse, x[3] * inverse),
                           pack(x[4] * inverse, x[5] * inverse), pack(x[6] * inverse, x[7] * inverse));
        }
    }
}

// Registers are capped so that BLOCKS fit a multiprocessor at once: with 4096 rows of 12 heads all blocks run in one wave.
#define ATTENTION(DIM, BLOCKS)                                                                                              \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS) attention_##DIM(                                              \
        const u16* q, u32 q_cols, const u16* keys, const u16* values, u32 slots, u32 group, u16* out, u32 out_cols,         \
        const uint4* tiles, const uint4* rows, const uint2* spans, float scale) {                                           \
        attention_mma<DIM>(q, q_cols, keys, values, slots, group, out, out_cols, tiles, rows, spans, scale);                \
    }

ATTENTION(32, 6)
ATTENTION(64, 6)
ATTENTION(128, 3)

#define ROWS_A_WARP 4
#define PARTS 8
#define TILE_KEYS 32

// Any format, any head dimension up to 256, on the ordinary cores: four rows a warp, a lane a key for the scores and a lane
// a dimension for the mixture. Bound by shared-memory reads in phase A, by latency in phase B.
extern "C" __global__ void __launch_bounds__(512) attention_any(const void* q, int type, u32 q_cols, const void* keys,
                                                                const void* values, u32 slots, u32 group, u32 dim, void* out,
                                                                u32 out_cols, const uint4* tiles, const uint4* rows,
                                                                const uint2* spans, float scale) {
    extern __shared__ float memory[];
    const uint4 tile = tiles[blockIdx.x];
    const u32 h = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, height = blockDim.x / 32 * ROWS_A_WARP;
    const u64 head = (u64)(h / group) * slots * dim;
    float* sq = memory;                                   // (height, dim)
    float* skv = memory + height * dim;                   // (TILE_KEYS, dim + 1)
    for (u32 i = threadIdx.x; i < height * dim; i += blockDim.x) {
        u32 r = i / dim;
        sq[i] = r < tile.y ? load1(q, type, (u64)(tile.x + r) * q_cols + h * dim + i % dim) : 0.0f;
    }
    const float* own = sq + warp * ROWS_A_WARP * dim;
    float largest[ROWS_A_WARP], sum[ROWS_A_WARP], x[ROWS_A_WARP][PARTS];
    uint4 view[ROWS_A_WARP];
#pragma unroll
    for (int k = 0; k < ROWS_A_WARP; k++) {
        u32 r = warp * ROWS_A_WARP + k;
        view[k] = r < tile.y ? rows[tile.x + r] : make_uint4(0, 0, 0, 0);
        largest[k] = -INF;
        sum[k] = 0.0f;
#pragma unroll
        for (int i = 0; i < PARTS; i++) x[k][i] = 0.0f;
    }
    for (u32 base = 0; base < tile.w; base += TILE_KEYS) {
        const u32 count = tile.w - base < TILE_KEYS ? tile.w - base : TILE_KEYS;
        const u64 from = head + (u64)(tile.z + base) * dim;
        __syncthreads();
        for (u32 i = threadIdx.x; i < TILE_KEYS * dim; i += blockDim.x)
            skv[i / dim * (dim + 1) + i % dim] = i < count * dim ? load1(keys, type, from + i) : 0.0f;
        __syncthreads();
        float s[ROWS_A_WARP] = {};
        for (u32 d = 0; d < dim; d++) {
            float key = skv[lane * (dim + 1) + d];
#pragma unroll
            for (int k = 0; k < ROWS_A_WARP; k++) s[k] = fmaf(own[k * dim + d], key, s[k]);
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < TILE_KEYS * dim; i += blockDim.x)
            skv[i / dim * (dim + 1) + i % dim] = i < count * dim ? load1(values, type, from + i) : 0.0f;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < ROWS_A_WARP; k++) {
            if (view[k].x <= base) continue;
            const u32 seen = view[k].x - base < TILE_KEYS ? view[k].x - base : TILE_KEYS;
            const float score = lane < seen ? s[k] * scale : -INF, best = fmaxf(largest[k], warp_max(score));
            const float shrink = expf(largest[k] - best), p = lane < seen ? expf(score - best) : 0.0f;
            largest[k] = best;
            sum[k] = sum[k] * shrink + warp_sum(p);
#pragma unroll
            for (int i = 0; i < PARTS; i++) x[k][i] *= shrink;
            for (u32 j = 0; j < seen; j++) {
                const float weight = __shfl_sync(FULL, p, j);
                const float* value = skv + j * (dim + 1);
#pragma unroll
                for (int i = 0; i < PARTS; i++)
                    if (lane + 32 * i < dim) x[k][i] = fmaf(weight, value[lane + 32 * i], x[k][i]);
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ROWS_A_WARP; k++) {
        const u32 r = warp * ROWS_A_WARP + k;
        if (r >= tile.y) continue;
        Walk walk(spans, make_uint2(0, 0), view[k].y);
        for (u32 j = 0; j < view[k].w; j++) {
            const u64 from = head + (u64)walk.next() * dim;
            float dot = 0.0f, value[PARTS];
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                const u32 d = lane + 32 * i;
                value[i] = d < dim ? load1(values, type, from + d) : 0.0f;
                if (d < dim) dot = fmaf(own[k * dim + d], load1(keys, type, from + d), dot);
            }
            const float score = warp_sum(dot) * scale, best = fmaxf(largest[k], score);
            const float shrink = expf(largest[k] - best), p = expf(score - best);
            largest[k] = best;
            sum[k] = sum[k] * shrink + p;
#pragma unroll
            for (int i = 0; i < PARTS; i++) x[k][i] = fmaf(p, value[i], x[k][i] * shrink);
        }
        const float inverse = 1.0f / sum[k];
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            if (lane + 32 * i < dim)
                store1(out, type, (u64)(tile.x + r) * out_cols + h * dim + lane + 32 * i, x[k][i] * inverse);
    }
}
