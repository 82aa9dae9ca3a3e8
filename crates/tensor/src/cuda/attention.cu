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

// Keys and values travel in units of 16: what one step of the tensor cores takes.
#define UNIT 16
// Units of the shared span that are on their way or in use at a time, as in attention.rs.
#define RING 5

// A unit in shared memory: (keys and values, UNIT, DIM), in bytes. Parts of 16 bytes are permuted within a row so that the
// eight rows of a block that the tensor cores load lie in different banks. The permutation is an exclusive or, so that of
// places whose rows and parts have no bits in common one follows from the other by a constant.
template <int DIM>
struct Unit {
    static constexpr int PARTS = DIM / 8, VALUES = UNIT * DIM * 2, SIZE = 2 * VALUES;
    static __device__ __forceinline__ constexpr u32 turn(u32 row) { return 16 * (PARTS >= 8 ? row % 8 : row / 2 % PARTS); }
    static __device__ __forceinline__ u32 at(u32 row, u32 part) { return row * PARTS * 16 + (16 * part ^ turn(row)); }
};

__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// All but the latest N groups of copies have arrived.
template <int N>
__device__ __forceinline__ void arrived() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// copy16 of what no other pass reads before it is forgotten: it leaves the second-level cache before anything else does.
__device__ __forceinline__ void copy16_once(u32 to, const u8* from, bool inside, u64 policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0),
                 "l"(policy)
                 : "memory");
}

// What a warp knows of its 16 rows: lane (g, t) has rows g and g + 8, as the tensor cores lay them out.
template <int DIM>
struct Mixture {
    u32 q[DIM / 16][4];
    float o[DIM / 8][4], max0, max1, sum0, sum1;

    // Takes COUNT units of keys, the first of which is number `base`. If MASKED, row g sees the `seen0` keys from number
    // `from0` on and row g + 8 those of `from1`; else both see all.
    template <int COUNT, bool MASKED>
    __device__ __forceinline__ void absorb(const u32 (&unit)[COUNT], u32 base, u32 from0, u32 seen0, u32 from1, u32 seen1,
                                           float scale) {
        const u32 lane = threadIdx.x % 32, t = lane % 4;
        float s[2 * COUNT][4] = {};
        const u32 key_at = Unit<DIM>::at(lane / 16 * 8 + lane % 8, lane / 8 % 2);
        const u32 value_at = Unit<DIM>::VALUES + Unit<DIM>::at(lane % 16, lane / 16);
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                u32 b[4];
                load_blocks(b, unit[i] + (key_at ^ 32 * k));
                mma(s[2 * i], q[k], b[0], b[1]);
                mma(s[2 * i + 1], q[k], b[2], b[3]);
            }
        }
        float new0 = max0, new1 = max1;
#pragma unroll
        for (int n = 0; n < 2 * COUNT; n++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                if (MASKED) {
                    const u32 key = base + 8 * n + 2 * t + c; // before `from` it wraps to a large number
                    s[n][c] = key - from0 < seen0 ? s[n][c] : -INF;
                    s[n][2 + c] = key - from1 < seen1 ? s[n][2 + c] : -INF;
                }
                new0 = fmaxf(new0, s[n][c]);
                new1 = fmaxf(new1, s[n][2 + c]);
            }
        }
        new0 = fmaxf(new0, __shfl_xor_sync(FULL, new0, 1));
        new0 = fmaxf(new0, __shfl_xor_sync(FULL, new0, 2));
        new1 = fmaxf(new1, __shfl_xor_sync(FULL, new1, 1));
        new1 = fmaxf(new1, __shfl_xor_sync(FULL, new1, 2));
        // A row that has seen nothing yet keeps its maximum at -inf, which must not become a not-a-number.
        const float use0 = new0 == -INF ? 0.0f : new0 * scale, use1 = new1 == -INF ? 0.0f : new1 * scale;
        if (__any_sync(FULL, new0 > max0 || new1 > max1)) {
            const float shrink0 = power_of_2(fmaf(max0, scale, -use0)), shrink1 = power_of_2(fmaf(max1, scale, -use1));
            max0 = new0;
            max1 = new1;
            sum0 *= shrink0;
            sum1 *= shrink1;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                o[n][0] *= shrink0; o[n][1] *= shrink0; o[n][2] *= shrink1; o[n][3] *= shrink1;
            }
        }
#pragma unroll
        for (int n = 0; n < 2 * COUNT; n++) {
            s[n][0] = power_of_2(fmaf(s[n][0], scale, -use0));
            s[n][1] = power_of_2(fmaf(s[n][1], scale, -use0));
            s[n][2] = power_of_2(fmaf(s[n][2], scale, -use1));
            s[n][3] = power_of_2(fmaf(s[n][3], scale, -use1));
            sum0 += s[n][0] + s[n][1];
            sum1 += s[n][2] + s[n][3];
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const float(*w)[4] = s + 2 * i;
            const u32 p[4] = {pack(w[0][0], w[0][1]), pack(w[0][2], w[0][3]), pack(w[1][0], w[1][1]), pack(w[1][2], w[1][3])};
#pragma unroll
            for (int n = 0; n < DIM / 16; n++) {
                u32 v[4];
                load_transposed(v, unit[i] + (value_at ^ 32 * n));
                mma(o[2 * n], p, v[0], v[1]);
                mma(o[2 * n + 1], p, v[2], v[3]);
            }
        }
    }
};

// The slots that a warp's rows have of their own, as one sequence: row after row, each row's in order. Lane i has row i's.
struct Owned {
    const uint2* spans;
    uint2 first; // the row's first own span
    u32 next;    // where the one after it is
    u32 count;   // the row's slots
    u32 end;     // where they end in the sequence

    __device__ __forceinline__ Owned(const uint2* all, uint4 view) : spans(all), next(view.y + 1), count(view.w), end(view.w) {
        first = count ? spans[view.y] : make_uint2(0, 0);
#pragma unroll
        for (int d = 1; d < 16; d <<= 1) {
            const u32 before = __shfl_up_sync(FULL, end, d);
            if (threadIdx.x % 32 >= d) end += before;
        }
    }
    __device__ __forceinline__ u32 total() const { return __shfl_sync(FULL, end, 15); }
    // Each lane's j-th slot of the sequence; all lanes ask together. Beyond the end it is slot 0.
    __device__ __forceinline__ u32 slot(u32 j) const {
        u32 row = 0;
#pragma unroll
        for (int step = 8; step > 0; step >>= 1)
            if (__shfl_sync(FULL, end, row + step - 1) <= j) row += step;
        const u32 stop = __shfl_sync(FULL, end, row), start = stop - __shfl_sync(FULL, count, row);
        uint2 span = make_uint2(__shfl_sync(FULL, first.x, row), __shfl_sync(FULL, first.y, row));
        u32 at = __shfl_sync(FULL, next, row), offset = j - start;
        if (j >= stop) return 0;
        while (offset >= span.y) {
            offset -= span.y;
            span = spans[at++];
        }
        return span.x + offset;
    }
};

// bf16, head dimensions that are powers of two, 16 rows a warp, all products on the tensor cores. Memory bounds it, so loads
// do not wait for computing: the first units of each warp's own slots are asked for together with the shared span, and DEPTH
// buffers a warp keep them coming. Few blocks with deep buffers do better than many with shallow ones: registers suffice, and
// a block that follows another on its multiprocessor loads while its neighbours compute, where blocks that all start together
// load together, then compute together. Rows' own slots follow each other without gaps, so that a unit holds those of several
// rows where rows have few; each row takes only its own of the scores (the rest weighs nothing). That wastes most of the
// tensor cores' work, which is free here, and issues less than half the instructions of one product a row.
template <int DIM, int DEPTH>
__device__ __forceinline__ void attention_mma(const u16* q, u32 q_cols, const u16* keys, const u16* values, u32 slots,
                                              u32 group, u16* out, u32 out_cols, const uint4* tiles, const uint4* rows,
                                              const uint2* spans, float scale) {
    constexpr int PARTS = Unit<DIM>::PARTS, VALUES = Unit<DIM>::VALUES, SIZE = Unit<DIM>::SIZE;
    extern __shared__ __align__(256) uint4 shared[];
    const u32 units = (u32)__cvta_generic_to_shared(shared); // (RING + (DEPTH - 1) warps, SIZE)
    const uint4 tile = tiles[blockIdx.x];
    // The query heads that share a key head are rows of one product: row v is head v % group of the tile's row v / group.
    const u32 first_row = blockIdx.z * (blockDim.x / 2), height = tile.y * group;
    if (first_row >= height) return;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp_row = first_row + warp * 16;
    // v / group for v * group < 2^20 (see attention.rs), without the twenty instructions of a division.
    const u32 share = (1u << 20) / group + 1;
    auto over_group = [&](u32 v) { return v * share >> 20; };
    // Lane i knows the tile's row that is the i-th of those that the warp's rows belong to.
    const u32 first_view = over_group(warp_row), known = first_view + lane;
    const bool here = lane < 16 && warp_row < height && known < tile.y && known <= over_group(warp_row + 15);
    const uint4 view = here ? rows[tile.x + known] : make_uint4(0, 0, 0, 0);
    const Owned owned(spans, view);
    // What rows see was uploaded before the kernel ahead of this one began, or since, and then this one does not start early;
    // queries, keys and values are of that one.
    after_previous();
    let_next_start();

    Mixture<DIM> mixture;
    const u32 row0 = warp_row + g, row1 = row0 + 8, of0 = over_group(row0), of1 = over_group(row1);
    const u16* q0 = q + (u64)(tile.x + of0) * q_cols + (blockIdx.y * group + row0 - of0 * group) * DIM + 2 * t;
    const u16* q1 = q + (u64)(tile.x + of1) * q_cols + (blockIdx.y * group + row1 - of1 * group) * DIM + 2 * t;
#pragma unroll
    for (int s = 0; s < DIM / 16; s++) {
        mixture.q[s][0] = row0 < height ? *(const u32*)(q0 + 16 * s) : 0;
        mixture.q[s][1] = row1 < height ? *(const u32*)(q1 + 16 * s) : 0;
        mixture.q[s][2] = row0 < height ? *(const u32*)(q0 + 16 * s + 8) : 0;
        mixture.q[s][3] = row1 < height ? *(const u32*)(q1 + 16 * s + 8) : 0;
    }
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) mixture.o[n][0] = mixture.o[n][1] = mixture.o[n][2] = mixture.o[n][3] = 0.0f;
    mixture.max0 = mixture.max1 = -INF;
    mixture.sum0 = mixture.sum1 = 0.0f;
    const u32 view0 = row0 < height ? of0 - first_view : 31, view1 = row1 < height ? of1 - first_view : 31;

    const u8* head = (const u8*)(keys + (u64)blockIdx.y * slots * DIM);
    const u64 apart = (const u8*)values - (const u8*)keys;
    u64 once;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    const u32 shared_units = (tile.w + UNIT - 1) / UNIT;
    const u32 part = threadIdx.x % PARTS, step = blockDim.x / PARTS;
    const u8* shared_from = head + (u64)(tile.z + threadIdx.x / PARTS) * (DIM * 2) + 16 * part;
    auto fetch_shared = [&](u32 number) {
        if (number < shared_units) {
            const u8* from = shared_from + number * (UNIT * DIM * 2);
#pragma unroll 1
            for (u32 r = threadIdx.x / PARTS; r < UNIT; r += step, from += step * (DIM * 2)) {
                const bool inside = number * UNIT + r < tile.w;
                const u32 to = units + number % RING * SIZE + Unit<DIM>::at(r, part);
                copy16_once(to, from, inside, once);
                copy16_once(to + VALUES, from + apart, inside, once);
            }
        }
        commit(); // beyond the end there is nothing to fetch, but a group to count
    };
    const u32 own = owned.total();
    u32 slot = 0; // of number 32 i + lane of the sequence
    // A warp's last buffer is part of the ring, which is free when the shared span has been read.
    auto buffer_of = [&](u32 number) {
        const u32 which = number % DEPTH;
        return units + (which == DEPTH - 1 ? warp : RING + warp * (DEPTH - 1) + which) * SIZE;
    };
    auto fetch_own = [&](u32 number) {
        if (number * UNIT < own) {
            if (number % 2 == 0) slot = owned.slot(number * UNIT + lane);
            constexpr int TOGETHER = 32 / PARTS;
            const u8* column = head + 16 * (lane % PARTS);
            const u32 to = buffer_of(number) + Unit<DIM>::at(lane / PARTS, lane % PARTS), left = own - number * UNIT;
#pragma unroll
            for (int r = 0; r < UNIT; r += TOGETHER) {
                const u32 which = r + lane / PARTS;
                const u8* from = column + (u64)__shfl_sync(FULL, slot, number % 2 * UNIT + which) * (DIM * 2);
                const u32 there = (to ^ Unit<DIM>::turn(r)) + r * DIM * 2;
                copy16_once(there, from, which < left, once);
                copy16_once(there + VALUES, from + apart, which < left, once);
            }
        }
        commit();
    };
#pragma unroll 1
    for (u32 number = 0; number < RING; number++) fetch_shared(number);
#pragma unroll 1
    for (u32 number = 0; number < DEPTH - 1; number++) fetch_own(number);

    const u32 len0 = __shfl_sync(FULL, view.x, view0), len1 = __shfl_sync(FULL, view.x, view1);
    const u32 longest = __reduce_max_sync(FULL, view.x), shortest = __reduce_min_sync(FULL, here ? view.x : longest);
    for (u32 number = 0; number < shared_units; number += 2) {
        // Groups: the ring, DEPTH - 1 own units, and one for each unit so far; units beyond the ring were asked for after the own.
        if (min(number + 1, shared_units - 1) < RING) arrived<RING + DEPTH - 3>();
        else arrived<RING - 2>();
        __syncthreads();
        const u32 unit[2] = {units + number % RING * SIZE, units + (number + 1) % RING * SIZE};
        if ((number + 2) * UNIT <= shortest) {
            mixture.template absorb<2, false>(unit, 0, 0, 0, 0, 0, scale);
        } else {
#pragma unroll 1
            for (u32 i = number; i < number + 2 && i * UNIT < longest; i++) {
                const u32 one[1] = {i == number ? unit[0] : unit[1]};
                mixture.template absorb<1, true>(one, i * UNIT, 0, len0, 0, len1, scale);
            }
        }
        if (number + RING < shared_units) __syncthreads();
        fetch_shared(number + RING);
        fetch_shared(number + 1 + RING);
    }

    __syncthreads();
    const u32 own0 = __shfl_sync(FULL, owned.count, view0), own1 = __shfl_sync(FULL, owned.count, view1);
    const u32 from0 = __shfl_sync(FULL, owned.end, view0) - own0, from1 = __shfl_sync(FULL, owned.end, view1) - own1;
    fetch_own(DEPTH - 1);
    for (u32 number = 0; number * UNIT < own; number++) {
        const u32 unit[1] = {buffer_of(number)};
        arrived<DEPTH - 1>();
        __syncwarp();
        mixture.template absorb<1, true>(unit, number * UNIT, from0, own0, from1, own1, scale);
        __syncwarp();
        fetch_own(number + DEPTH);
    }

    // From the tensor cores' layout to rows, through the warp's first buffer.
    arrived<0>();
    __syncwarp();
    float sum0 = mixture.sum0, sum1 = mixture.sum1;
    sum0 += __shfl_xor_sync(FULL, sum0, 1);
    sum0 += __shfl_xor_sync(FULL, sum0, 2);
    sum1 += __shfl_xor_sync(FULL, sum1, 1);
    sum1 += __shfl_xor_sync(FULL, sum1, 2);
    const float inverse0 = __fdividef(1.0f, sum0), inverse1 = __fdividef(1.0f, sum1);
    u8* buffer = (u8*)shared + (RING + warp * (DEPTH - 1)) * SIZE;
    const u32 at = Unit<DIM>::at(g, 0) + 4 * t;
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
        *(u32*)(buffer + (at ^ 16 * n)) = pack(mixture.o[n][0] * inverse0, mixture.o[n][1] * inverse0);
        *(u32*)(buffer + (at ^ 16 * n) + 8 * DIM * 2) = pack(mixture.o[n][2] * inverse1, mixture.o[n][3] * inverse1);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < UNIT * PARTS / 32; i++) {
        const u32 r = (lane + 32 * i) / PARTS, row = warp_row + r, of = over_group(row);
        if (row >= height) continue;
        const u64 to = (u64)(tile.x + of) * out_cols + (blockIdx.y * group + row - of * group) * DIM + 8 * (lane % PARTS);
        *(uint4*)(out + to) = *(const uint4*)(buffer + Unit<DIM>::at(r, lane % PARTS));
    }
}

// DEPTH is as in attention.rs, and with it BLOCKS fit a multiprocessor's shared memory at once.
#define ATTENTION(DIM, DEPTH, BLOCKS)                                                                                       \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS) attention_##DIM(                                              \
        const u16* q, u32 q_cols, const u16* keys, const u16* values, u32 slots, u32 group, u16* out, u32 out_cols,         \
        const uint4* tiles, const uint4* rows, const uint2* spans, float scale) {                                           \
        attention_mma<DIM, DEPTH>(q, q_cols, keys, values, slots, group, out, out_cols, tiles, rows, spans, scale);         \
    }

ATTENTION(32, 4, 5)
ATTENTION(64, 4, 3)
ATTENTION(128, 2, 3)

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
    after_previous();
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
