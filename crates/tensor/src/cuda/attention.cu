// Attention over spans of KV slots.
//
// Rows are grouped into tiles: adjacent rows whose prefixes start at the same slot (rows forked
// from one prefix, or the positions of one prompt). A CTA computes one tile and one head. Phase A
// loads the prefix once for the whole tile into shared memory; phase B loads the unshared slots of
// each row. Softmax is online and in f32 throughout.
//
//   tiles[i] = (first row, rows, first slot of the prefix, its greatest length)
//   rows[r]  = (length of the prefix, begin and end of unshared spans, slots in them)
//   spans[i] = (first slot, length)
//
// A prefix whose slots are not contiguous is SCATTERED (attention.cuh).
//
// Keys and values of a layer are (kv_heads, slots, dim).
//
// The bits of a row's result depend on that row only. Its prefix is added in groups of 32 keys
// starting from the first, its unshared slots in groups of a fixed number; a group has one maximum,
// and keys of other rows in the same instructions contribute exact zeros.

// Also compiled with E4M3: keys and values are then e4m3, without scales, and converted to f16
// where they are multiplied, which halves the memory traffic. Unshared slots are then bound by
// instructions.

// Units of the shared span that are in flight or in use at a time, as in attention.rs.
#define RING 5

#ifdef E4M3
typedef u8 Stored;  // an element of a key or value
#else
typedef u16 Stored;
#endif

// Rows of a fixed number of bytes in shared memory. Chunks of 16 bytes are swizzled within a row,
// so that the eight rows of an ldmatrix are in different banks. The swizzle is an exclusive or, so
// that addresses whose rows and chunks have no common bits differ by a constant.
template <int BYTES>
struct SwizzledRows {
    static constexpr int CHUNKS = BYTES / 16;
    static __device__ __forceinline__ constexpr u32 swizzle(u32 row) {
        return 16 * (CHUNKS >= 8 ? row % 8 : row / (8 / CHUNKS) % CHUNKS);
    }
    static __device__ __forceinline__ u32 at(u32 row, u32 chunk) {
        return row * CHUNKS * 16 + (16 * chunk ^ swizzle(row));
    }
};

// A unit in shared memory: (keys and values, UNIT, DIM).
template <int DIM>
struct Unit : SwizzledRows<DIM * sizeof(Stored)> {
    static constexpr int ROW = DIM * sizeof(Stored), VALUES = UNIT * ROW, SIZE = 2 * VALUES;
};

__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all but the latest N groups of copies.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// cp_async16 of data that is not read again soon: it is evicted from the L2 cache first.
__device__ __forceinline__ void cp_async16_evict_first(u32 to, const u8* from, bool inside,
                                                       u64 policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
                 "l"(from), "r"(inside ? 16 : 0), "l"(policy)
                 : "memory");
}

// The power of two by which exponentials may exceed 1 before their row is rescaled.
#define SLACK 8.0f

// The online softmax of a warp's 16 rows: lane (g, t) has rows g and g + 8, in the layout of mma.
template <int DIM>
struct OnlineSoftmax {
    u32 q[DIM / 16][4];
    float o[DIM / 8][4], sum0, sum1;
    // The offset of exponentials: a row's largest score, or one that is less by up to SLACK.
    float max0, max1;

    // Accumulates COUNT units of keys as one group. If MASKED, row g attends to the keys from
    // `from0` of each unit on, as many as the unit's of `seen0` says, and row g + 8 to those of
    // `from1` and `seen1`; else both attend to all.
    template <int COUNT, bool MASKED>
    __device__ __forceinline__ void accumulate(const u32 (&unit)[COUNT], u32 from0,
                                               const u32 (&seen0)[COUNT], u32 from1,
                                               const u32 (&seen1)[COUNT], float scale) {
        const u32 lane = threadIdx.x % 32, t = lane % 4;
        float s[2 * COUNT][4] = {};
        const u32 value_at = Unit<DIM>::VALUES + Unit<DIM>::at(lane % 16, lane / 16);
#ifdef E4M3
        // A matrix of ldmatrix is eight rows of sixteen codes, of which a lane has four: two for
        // each half of an mma's k, which is any order of dimensions that the queries have, too.
        const u32 key_at = Unit<DIM>::at(lane % 16, lane / 16);
#pragma unroll
        for (int k = 0; k < DIM / 32; k++) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                u32 b[4];
                ldmatrix_x4(b, unit[i] + (key_at ^ 32 * k));
#pragma unroll
                for (int m = 0; m < 4; m++)
                    mma_f16_m16n8k16(s[2 * i + m % 2], q[2 * k + m / 2], f16_from_e4m3(b[m]),
                                     f16_from_e4m3(b[m] >> 16));
            }
        }
#else
        const u32 key_at = Unit<DIM>::at(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                u32 b[4];
                ldmatrix_x4(b, unit[i] + (key_at ^ 32 * k));
                mma_m16n8k16(s[2 * i], q[k], b[0], b[1]);
                mma_m16n8k16(s[2 * i + 1], q[k], b[2], b[3]);
            }
        }
#endif
        float new0 = max0, new1 = max1;
#pragma unroll
        for (int n = 0; n < 2 * COUNT; n++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                if (MASKED) {
                    // Below `from` it wraps around to a large number.
                    const u32 key = 8 * (n % 2) + 2 * t + c;
                    s[n][c] = key - from0 < seen0[n / 2] ? s[n][c] : -INF;
                    s[n][2 + c] = key - from1 < seen1[n / 2] ? s[n][2 + c] : -INF;
                }
                new0 = fmaxf(new0, s[n][c]);
                new1 = fmaxf(new1, s[n][2 + c]);
            }
        }
        new0 = fmaxf(new0, __shfl_xor_sync(FULL_MASK, new0, 1));
        new0 = fmaxf(new0, __shfl_xor_sync(FULL_MASK, new0, 2));
        new1 = fmaxf(new1, __shfl_xor_sync(FULL_MASK, new1, 1));
        new1 = fmaxf(new1, __shfl_xor_sync(FULL_MASK, new1, 2));
        // One of sixteen rows nearly always has a larger maximum, so that all would be rescaled for
        // each group; few have one that is much larger.
        const bool is_more0 = (new0 - max0) * scale > SLACK,
                   is_more1 = (new1 - max1) * scale > SLACK;
        if (__any_sync(FULL_MASK, is_more0 || is_more1)) {
            // Exactly 1 for a row whose maximum is unchanged: it must not depend on changes of
            // another row's maximum.
            const float rescale0 = is_more0 ? exp2_approx((max0 - new0) * scale) : 1.0f,
                        rescale1 = is_more1 ? exp2_approx((max1 - new1) * scale) : 1.0f;
            max0 = is_more0 ? new0 : max0;
            max1 = is_more1 ? new1 : max1;
            // Not contracted with the additions below, here or there.
            sum0 = __fmul_rn(sum0, rescale0);
            sum1 = __fmul_rn(sum1, rescale1);
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                o[n][0] *= rescale0;
                o[n][1] *= rescale0;
                o[n][2] *= rescale1;
                o[n][3] *= rescale1;
            }
        }
        // A row without any key yet keeps its maximum at -inf, which must not lead to NaN.
        const float use0 = max0 == -INF ? 0.0f : max0 * scale,
                    use1 = max1 == -INF ? 0.0f : max1 * scale;
#pragma unroll
        for (int n = 0; n < 2 * COUNT; n++) {
            s[n][0] = exp2_approx(fmaf(s[n][0], scale, -use0));
            s[n][1] = exp2_approx(fmaf(s[n][1], scale, -use0));
            s[n][2] = exp2_approx(fmaf(s[n][2], scale, -use1));
            s[n][3] = exp2_approx(fmaf(s[n][3], scale, -use1));
            sum0 += s[n][0] + s[n][1];
            sum1 += s[n][2] + s[n][3];
        }
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const float (*w)[4] = s + 2 * i;
#ifdef E4M3
            const u32 p[4] = {pack_f16(w[0][0], w[0][1]), pack_f16(w[0][2], w[0][3]),
                              pack_f16(w[1][0], w[1][1]), pack_f16(w[1][2], w[1][3])};
#pragma unroll
            for (int n = 0; n < DIM / 32; n++) {
                u32 v[4];
                ldmatrix_x4_trans(v, unit[i] + (value_at ^ 32 * n));
                // Pairs of codes are transposed: a lane has two dimensions of two keys. So even
                // dimensions are one result and odd ones the next.
#pragma unroll
                for (int m = 0; m < 4; m++) v[m] = __byte_perm(v[m], 0, 0x3120);
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    mma_f16_m16n8k16(o[4 * n + 2 * c], p, f16_from_e4m3(v[2 * c]),
                                     f16_from_e4m3(v[2 * c + 1]));
                    mma_f16_m16n8k16(o[4 * n + 2 * c + 1], p, f16_from_e4m3(v[2 * c] >> 16),
                                     f16_from_e4m3(v[2 * c + 1] >> 16));
                }
            }
#else
            const u32 p[4] = {pack_bf16(w[0][0], w[0][1]), pack_bf16(w[0][2], w[0][3]),
                              pack_bf16(w[1][0], w[1][1]), pack_bf16(w[1][2], w[1][3])};
#pragma unroll
            for (int n = 0; n < DIM / 16; n++) {
                u32 v[4];
                ldmatrix_x4_trans(v, unit[i] + (value_at ^ 32 * n));
                mma_m16n8k16(o[2 * n], p, v[0], v[1]);
                mma_m16n8k16(o[2 * n + 1], p, v[2], v[3]);
            }
#endif
        }
    }
};

// How many of `count` keys are left after the first `before`.
__device__ __forceinline__ u32 seen_after(u32 count, u32 before) {
    return count > before ? count - before : 0;
}

// The unshared slots of a warp's rows. Lane i has those of row i.
struct OwnSlots {
    const uint2* spans;
    uint2 first;  // the row's first unshared span
    u32 next;     // the index of the one after it
    u32 count;    // the row's unshared slots

    __device__ __forceinline__ OwnSlots(const uint2* all, uint4 info)
        : spans(all), next(info.y + 1), count(info.w) {
        first = count ? spans[info.y] : make_uint2(0, 0);
    }
    // Maximum unshared slots of a row.
    __device__ __forceinline__ u32 most() const { return __reduce_max_sync(FULL_MASK, count); }
    // Slot j of a row, where each lane has its own row and j; called by all lanes together. NO_SLOT
    // beyond the row's last.
    __device__ __forceinline__ u32 slot(u32 row, u32 j) const {
        const u32 end = __shfl_sync(FULL_MASK, count, row);
        uint2 span =
            make_uint2(__shfl_sync(FULL_MASK, first.x, row), __shfl_sync(FULL_MASK, first.y, row));
        u32 at = __shfl_sync(FULL_MASK, next, row);
        if (j >= end) return NO_SLOT;
        while (j >= span.y) {
            j -= span.y;
            span = spans[at++];
        }
        return span.x + j;
    }
};

// bf16, head dimensions that are powers of two, 16 rows per warp, all products by mma.
//
// Memory-bound, so loads do not wait for compute: the first units of each warp's unshared slots are
// loaded together with the shared span, and DEPTH buffers per warp keep loads in flight. Few CTAs
// with deep buffers perform better than many with shallow ones: registers suffice, and a CTA that
// follows another on its SM loads while its neighbors compute, whereas CTAs that all start together
// load together, then compute together.
//
// A unit of unshared slots contains the same number of slots of each row of the warp,
// 1 << own_shift, contiguously (attention.rs); each row masks all scores except its own. That
// wastes most of the tensor cores' work, which is free here, and issues less than half the
// instructions of one product per row. The positions of a row's slots within a unit do not matter:
// products are added to an accumulator eight or sixteen at a time, in any order, and all but the
// row's own are 0.
template <int DIM, int DEPTH, int OWN_GROUP>
__device__ __forceinline__ void attention_mma(const u16* q, u32 q_cols, const Stored* keys,
                                              const Stored* values, u32 slots, u32 group,
                                              u32 own_shift, u16* out, u32 out_cols,
                                              const uint4* tiles, const uint4* rows,
                                              const uint2* spans, float scale) {
    constexpr int CHUNKS = Unit<DIM>::CHUNKS, ROW = Unit<DIM>::ROW, VALUES = Unit<DIM>::VALUES,
                  SIZE = Unit<DIM>::SIZE;
    extern __shared__ __align__(256) uint4 shared[];
    const u32 units = (u32)__cvta_generic_to_shared(shared);  // (RING + (DEPTH - 1) warps, SIZE)
    const uint4 tile = tiles[blockIdx.x];
    // The query heads that share a key head are rows of one product (GQA): row v is head v % group
    // of the tile's row v / group.
    const u32 first_row = blockIdx.z * (blockDim.x / 2), total_rows = tile.y * group;
    if (first_row >= total_rows) return;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4,
              warp_row = first_row + warp * 16;
    // v / group for v * group < 2^20 (see attention.rs), without the twenty instructions of a
    // division.
    const u32 reciprocal = (1u << 20) / group + 1;
    auto div_group = [&](u32 v) { return v * reciprocal >> 20; };
    // Lane i has the metadata of the i-th of the tile's rows that the warp's rows belong to.
    const u32 first_info = div_group(warp_row), tile_row = first_info + lane;
    const bool here = lane < 16 && warp_row < total_rows && tile_row < tile.y &&
                      tile_row <= div_group(warp_row + 15);
    const uint4 info = here ? rows[tile.x + tile_row] : make_uint4(0, 0, 0, 0);
    const OwnSlots own_slots(spans, info);
    // PDL: the metadata was staged before the previous kernel started; if it was staged later, this
    // kernel does not start early. Queries, keys and values are results of the previous kernel.
    griddep_wait();
    griddep_launch();

    OnlineSoftmax<DIM> softmax;
    const u32 row0 = warp_row + g, row1 = row0 + 8, of0 = div_group(row0), of1 = div_group(row1);
    const u16* q0 =
        q + (u64)(tile.x + of0) * q_cols + (blockIdx.y * group + row0 - of0 * group) * DIM;
    const u16* q1 =
        q + (u64)(tile.x + of1) * q_cols + (blockIdx.y * group + row1 - of1 * group) * DIM;
#pragma unroll
    for (int s = 0; s < DIM / 16; s++) {
#ifdef E4M3
        const uint2 none = make_uint2(0, 0),
                    x0 = row0 < total_rows ? *(const uint2*)(q0 + 16 * s + 4 * t) : none,
                    x1 = row1 < total_rows ? *(const uint2*)(q1 + 16 * s + 4 * t) : none;
        softmax.q[s][0] = f16_from_bf16(x0.x);
        softmax.q[s][1] = f16_from_bf16(x1.x);
        softmax.q[s][2] = f16_from_bf16(x0.y);
        softmax.q[s][3] = f16_from_bf16(x1.y);
#else
        softmax.q[s][0] = row0 < total_rows ? *(const u32*)(q0 + 16 * s + 2 * t) : 0;
        softmax.q[s][1] = row1 < total_rows ? *(const u32*)(q1 + 16 * s + 2 * t) : 0;
        softmax.q[s][2] = row0 < total_rows ? *(const u32*)(q0 + 16 * s + 8 + 2 * t) : 0;
        softmax.q[s][3] = row1 < total_rows ? *(const u32*)(q1 + 16 * s + 8 + 2 * t) : 0;
#endif
    }
#pragma unroll
    for (int n = 0; n < DIM / 8; n++)
        softmax.o[n][0] = softmax.o[n][1] = softmax.o[n][2] = softmax.o[n][3] = 0.0f;
    softmax.max0 = softmax.max1 = -INF;
    softmax.sum0 = softmax.sum1 = 0.0f;
    const u32 info0 = row0 < total_rows ? of0 - first_info : 31,
              info1 = row1 < total_rows ? of1 - first_info : 31;

    const u8* head = (const u8*)(keys + (u64)blockIdx.y * slots * DIM);
    const u64 values_offset = (const u8*)values - (const u8*)keys;
    u64 evict_first;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(evict_first));
    const u32 shared_units = (tile.w + UNIT - 1) / UNIT;
    const u32 chunk = threadIdx.x % CHUNKS, step = blockDim.x / CHUNKS;
    const u8* shared_from = head + (u64)(threadIdx.x / CHUNKS) * ROW + 16 * chunk;
    auto fetch_shared = [&](u32 number) {
        if (number < shared_units) {
            const u8* from = shared_from + (u64)unit_slot(tile, spans, number) * ROW;
#pragma unroll 1
            for (u32 r = threadIdx.x / CHUNKS; r < UNIT; r += step, from += step * ROW) {
                const bool inside = number * UNIT + r < tile.w;
                const u32 to = units + number % RING * SIZE + Unit<DIM>::at(r, chunk);
                cp_async16_evict_first(to, from, inside, evict_first);
                cp_async16_evict_first(to + VALUES, from + values_offset, inside, evict_first);
            }
        }
        cp_async_commit();  // beyond the end nothing is loaded, but the group is counted
    };
    const u32 own_units = (own_slots.most() + (1 << own_shift) - 1) >> own_shift;
    u32 slot = 0;  // of key lane % 16 of the unit that this half of the warp looks up
    // A warp's last buffer is part of the ring, which is free once the shared span was read.
    auto buffer_of = [&](u32 number) {
        const u32 which = number % DEPTH;
        return units + (which == DEPTH - 1 ? warp : RING + warp * (DEPTH - 1) + which) * SIZE;
    };
    auto fetch_own = [&](u32 number) {
        if (number < own_units) {
            if (number % 2 == 0) {
                const u32 key = lane % UNIT, within = key & ((1 << own_shift) - 1);
                slot = own_slots.slot(key >> own_shift,
                                      (number + lane / UNIT << own_shift) + within);
            }
            constexpr int ROWS_AT_ONCE = 32 / CHUNKS;
            const u8* column = head + 16 * (lane % CHUNKS);
            const u32 to = buffer_of(number) + Unit<DIM>::at(lane / CHUNKS, lane % CHUNKS);
#pragma unroll
            for (int r = 0; r < UNIT; r += ROWS_AT_ONCE) {
                const u32 here =
                    __shfl_sync(FULL_MASK, slot, number % 2 * UNIT + r + lane / CHUNKS);
                const bool inside = here != NO_SLOT;
                const u8* from = column + (u64)(inside ? here : 0) * ROW;
                const u32 there = (to ^ Unit<DIM>::swizzle(r)) + r * ROW;
                cp_async16_evict_first(there, from, inside, evict_first);
                cp_async16_evict_first(there + VALUES, from + values_offset, inside, evict_first);
            }
        }
        cp_async_commit();
    };
#pragma unroll 1
    for (u32 number = 0; number < RING; number++) fetch_shared(number);
#pragma unroll 1
    for (u32 number = 0; number < DEPTH - 1; number++) fetch_own(number);

    const u32 len0 = __shfl_sync(FULL_MASK, info.x, info0),
              len1 = __shfl_sync(FULL_MASK, info.x, info1);
    const u32 longest = __reduce_max_sync(FULL_MASK, info.x),
              shortest = __reduce_min_sync(FULL_MASK, here ? info.x : longest);
    for (u32 number = 0; number < shared_units; number += 2) {
        // cp.async groups: the ring, DEPTH - 1 unshared units, and one for each unit so far; units
        // beyond the ring were loaded after the own ones.
        if (min(number + 1, shared_units - 1) < RING) cp_async_wait<RING + DEPTH - 3>();
        else cp_async_wait<RING - 2>();
        __syncthreads();
        const u32 unit[2] = {units + number % RING * SIZE, units + (number + 1) % RING * SIZE};
        // Two units are one group, also where rows end in it: the second is left out only if no row
        // has a part of it.
        const u32 first = number * UNIT, second = first + UNIT;
        const u32 seen0[2] = {seen_after(len0, first), seen_after(len0, second)},
                  seen1[2] = {seen_after(len1, first), seen_after(len1, second)};
        if (second + UNIT <= shortest) {
            softmax.template accumulate<2, false>(unit, 0, seen0, 0, seen1, scale);
        } else if (second < longest) {
            softmax.template accumulate<2, true>(unit, 0, seen0, 0, seen1, scale);
        } else if (first < longest) {
            const u32 one[1] = {unit[0]}, one0[1] = {seen0[0]}, one1[1] = {seen1[0]};
            softmax.template accumulate<1, true>(one, 0, one0, 0, one1, scale);
        }
        if (number + RING < shared_units) __syncthreads();
        fetch_shared(number + RING);
        fetch_shared(number + 1 + RING);
    }

    __syncthreads();
    const u32 own0 = __shfl_sync(FULL_MASK, own_slots.count, info0),
              own1 = __shfl_sync(FULL_MASK, own_slots.count, info1);
    // Four lanes have a part each of a row's sum. From here on the lane with the first of its
    // unshared keys has the whole sum, so that the order of additions does not depend on where
    // those keys are.
    auto collect = [&](float sum, u32 row) {
        sum += __shfl_xor_sync(FULL_MASK, sum, 1);
        sum += __shfl_xor_sync(FULL_MASK, sum, 2);
        return t == (row << own_shift) % 8 / 2 ? sum : 0.0f;
    };
    softmax.sum0 = collect(softmax.sum0, info0);
    softmax.sum1 = collect(softmax.sum1, info1);
    fetch_own(DEPTH - 1);
    for (u32 number = 0; number < own_units; number += OWN_GROUP) {
        u32 unit[OWN_GROUP], seen0[OWN_GROUP], seen1[OWN_GROUP];
#pragma unroll
        for (int i = 0; i < OWN_GROUP; i++) {
            // All keys of a unit beyond the last are masked; it substitutes for a loaded one.
            const u32 before = number + i << own_shift;
            unit[i] = buffer_of(number + i < own_units ? number + i : number);
            seen0[i] = min(seen_after(own0, before), 1 << own_shift);
            seen1[i] = min(seen_after(own1, before), 1 << own_shift);
        }
        cp_async_wait<DEPTH - OWN_GROUP>();
        __syncwarp();
        softmax.template accumulate<OWN_GROUP, true>(unit, info0 << own_shift, seen0,
                                                     info1 << own_shift, seen1, scale);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < OWN_GROUP; i++) fetch_own(number + i + DEPTH);
    }

    // From the mma layout to rows, through the warp's first buffer.
    cp_async_wait<0>();
    __syncwarp();
    float sum0 = softmax.sum0, sum1 = softmax.sum1;
    sum0 += __shfl_xor_sync(FULL_MASK, sum0, 1);
    sum0 += __shfl_xor_sync(FULL_MASK, sum0, 2);
    sum1 += __shfl_xor_sync(FULL_MASK, sum1, 1);
    sum1 += __shfl_xor_sync(FULL_MASK, sum1, 2);
    const float inverse0 = __fdividef(1.0f, sum0), inverse1 = __fdividef(1.0f, sum1);
    u8* buffer = (u8*)shared + (RING + warp * (DEPTH - 1)) * SIZE;
    static_assert(UNIT * DIM * 2 <= SIZE, "results fit a buffer");
    typedef SwizzledRows<DIM * 2> Results;
#ifdef E4M3
#pragma unroll
    for (int n = 0; n < DIM / 16; n++) {
        const float(&even)[4] = softmax.o[2 * n], (&odd)[4] = softmax.o[2 * n + 1];
        const u32 at = Results::at(g, 2 * n + t / 2) + t % 2 * 8;
        *(uint2*)(buffer + at) = make_uint2(pack_bf16(even[0] * inverse0, odd[0] * inverse0),
                                            pack_bf16(even[1] * inverse0, odd[1] * inverse0));
        *(uint2*)(buffer + at + 8 * DIM * 2) =
            make_uint2(pack_bf16(even[2] * inverse1, odd[2] * inverse1),
                       pack_bf16(even[3] * inverse1, odd[3] * inverse1));
    }
#else
    const u32 at = Results::at(g, 0) + 4 * t;
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
        *(u32*)(buffer + (at ^ 16 * n)) =
            pack_bf16(softmax.o[n][0] * inverse0, softmax.o[n][1] * inverse0);
        *(u32*)(buffer + (at ^ 16 * n) + 8 * DIM * 2) =
            pack_bf16(softmax.o[n][2] * inverse1, softmax.o[n][3] * inverse1);
    }
#endif
    __syncwarp();
#pragma unroll
    for (int i = 0; i < UNIT * Results::CHUNKS / 32; i++) {
        const u32 r = (lane + 32 * i) / Results::CHUNKS, row = warp_row + r, of = div_group(row);
        if (row >= total_rows) continue;
        const u64 to = (u64)(tile.x + of) * out_cols +
                       (blockIdx.y * group + row - of * group) * DIM +
                       8 * (lane % Results::CHUNKS);
        *(uint4*)(out + to) = *(const uint4*)(buffer + Results::at(r, lane % Results::CHUNKS));
    }
}

// DEPTH is as in attention.rs; with it BLOCKS CTAs fit the shared memory of an SM. OWN_GROUP units
// of unshared slots are one group, as far as DEPTH allows others to be loaded meanwhile.
#define ATTENTION(NAME, DIM, DEPTH, OWN_GROUP, BLOCKS)                                            \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS)                                     \
        NAME(const u16* q, u32 q_cols, const Stored* keys, const Stored* values, u32 slots,       \
             u32 group, u32 own_shift, u16* out, u32 out_cols, const uint4* tiles,                \
             const uint4* rows, const uint2* spans, float scale) {                                \
        attention_mma<DIM, DEPTH, OWN_GROUP>(q, q_cols, keys, values, slots, group, own_shift,    \
                                             out, out_cols, tiles, rows, spans, scale);           \
    }

#ifdef E4M3
ATTENTION(attention_fp8_32, 32, 4, 2, 5)
ATTENTION(attention_fp8_64, 64, 4, 2, 4)
ATTENTION(attention_fp8_128, 128, 4, 2, 3)
#else
ATTENTION(attention_32, 32, 4, 2, 5)
ATTENTION(attention_64, 64, 4, 2, 3)
ATTENTION(attention_128, 128, 2, 1, 3)

#define ROWS_PER_WARP 4
#define LANE_DIMS 8
#define TILE_KEYS 32

// Any dtype, any head dimension up to 256, without mma: four rows per warp, one lane per key for
// the scores and one lane per dimension for the output. Bound by shared-memory reads in phase A, by
// latency in phase B.
extern "C" __global__ void __launch_bounds__(512)
    attention_any(const void* q, int type, u32 q_cols, const void* keys, const void* values,
                  u32 slots, u32 group, u32 dim, void* out, u32 out_cols, const uint4* tiles,
                  const uint4* rows, const uint2* spans, float scale) {
    extern __shared__ float memory[];
    griddep_wait();
    const uint4 tile = tiles[blockIdx.x];
    const u32 h = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32,
              total_rows = blockDim.x / 32 * ROWS_PER_WARP;
    const u64 head = (u64)(h / group) * slots * dim;
    float* sq = memory;                      // (height, dim)
    float* skv = memory + total_rows * dim;  // (TILE_KEYS, dim + 1)
    for (u32 i = threadIdx.x; i < total_rows * dim; i += blockDim.x) {
        u32 r = i / dim;
        sq[i] = r < tile.y ? load1(q, type, (u64)(tile.x + r) * q_cols + h * dim + i % dim) : 0.0f;
    }
    const float* own = sq + warp * ROWS_PER_WARP * dim;
    float row_max[ROWS_PER_WARP], sum[ROWS_PER_WARP], x[ROWS_PER_WARP][LANE_DIMS];
    uint4 info[ROWS_PER_WARP];
#pragma unroll
    for (int k = 0; k < ROWS_PER_WARP; k++) {
        u32 r = warp * ROWS_PER_WARP + k;
        info[k] = r < tile.y ? rows[tile.x + r] : make_uint4(0, 0, 0, 0);
        row_max[k] = -INF;
        sum[k] = 0.0f;
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++) x[k][i] = 0.0f;
    }
    for (u32 base = 0; base < tile.w; base += TILE_KEYS) {
        const u32 count = tile.w - base < TILE_KEYS ? tile.w - base : TILE_KEYS;
        // Element i of the keys or values from `base` on.
        auto at = [&](u32 i) {
            const u32 key = base + i / dim;
            return head + (u64)(unit_slot(tile, spans, key / UNIT) + key % UNIT) * dim + i % dim;
        };
        __syncthreads();
        for (u32 i = threadIdx.x; i < TILE_KEYS * dim; i += blockDim.x)
            skv[i / dim * (dim + 1) + i % dim] =
                i < count * dim ? load1(keys, type, at(i)) : 0.0f;
        __syncthreads();
        float s[ROWS_PER_WARP] = {};
        for (u32 d = 0; d < dim; d++) {
            float key = skv[lane * (dim + 1) + d];
#pragma unroll
            for (int k = 0; k < ROWS_PER_WARP; k++) s[k] = fmaf(own[k * dim + d], key, s[k]);
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < TILE_KEYS * dim; i += blockDim.x)
            skv[i / dim * (dim + 1) + i % dim] =
                i < count * dim ? load1(values, type, at(i)) : 0.0f;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < ROWS_PER_WARP; k++) {
            if (info[k].x <= base) continue;
            const u32 seen = info[k].x - base < TILE_KEYS ? info[k].x - base : TILE_KEYS;
            const float score = lane < seen ? s[k] * scale : -INF,
                        new_max = fmaxf(row_max[k], warp_max(score));
            const float rescale = expf(row_max[k] - new_max),
                        p = lane < seen ? expf(score - new_max) : 0.0f;
            row_max[k] = new_max;
            sum[k] = fmaf(sum[k], rescale, warp_sum(p));
#pragma unroll
            for (int i = 0; i < LANE_DIMS; i++) x[k][i] *= rescale;
            for (u32 j = 0; j < seen; j++) {
                const float weight = __shfl_sync(FULL_MASK, p, j);
                const float* value = skv + j * (dim + 1);
#pragma unroll
                for (int i = 0; i < LANE_DIMS; i++)
                    if (lane + 32 * i < dim) x[k][i] = fmaf(weight, value[lane + 32 * i], x[k][i]);
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ROWS_PER_WARP; k++) {
        const u32 r = warp * ROWS_PER_WARP + k;
        if (r >= tile.y) continue;
        SpanIterator own_slots(spans, make_uint2(0, 0), info[k].y);
        for (u32 j = 0; j < info[k].w; j++) {
            const u64 from = head + (u64)own_slots.next() * dim;
            float dot = 0.0f, value[LANE_DIMS];
#pragma unroll
            for (int i = 0; i < LANE_DIMS; i++) {
                const u32 d = lane + 32 * i;
                value[i] = d < dim ? load1(values, type, from + d) : 0.0f;
                if (d < dim) dot = fmaf(own[k * dim + d], load1(keys, type, from + d), dot);
            }
            const float score = warp_sum(dot) * scale, new_max = fmaxf(row_max[k], score);
            const float rescale = expf(row_max[k] - new_max), p = expf(score - new_max);
            row_max[k] = new_max;
            sum[k] = fmaf(sum[k], rescale, p);
#pragma unroll
            for (int i = 0; i < LANE_DIMS; i++) x[k][i] = fmaf(p, value[i], x[k][i] * rescale);
        }
        const float inverse = 1.0f / sum[k];
#pragma unroll
        for (int i = 0; i < LANE_DIMS; i++)
            if (lane + 32 * i < dim)
                store1(out, type, (u64)(tile.x + r) * out_cols + h * dim + lane + 32 * i,
                       x[k][i] * inverse);
    }
}
#endif
