// A GEMM for many rows on Hopper with a fused epilogue: bias and GELU, the write of keys and values
// to their slots, or a reduction of logits to maxima and sums of exponentials. Empty for other
// architectures. Operands are bf16 or, if E4M3 is defined, e4m3 (fp8.cuh): weights with one scale,
// rows of x with one for all or one for each.
//
// Persistent, warp-specialized, ping-pong: a CTA computes tiles of 128 rows by 192 outputs, one
// after another. The producer, a thread of the third warpgroup, loads 128 bytes of rows and weights
// at a time by TMA through a ring of STAGES stages, across tiles. The other two warpgroups process
// alternate tiles, so that one runs its epilogue while the other uses the tensor cores.
//
// Both kinds of operands have the same layout in bytes, so e4m3 has half as many stages as bf16 for
// the same depth. Its sums stay in the tensor cores' accumulators over the whole depth: a second
// set of registers, to add them up in f32, would leave no room for this tile.
//
// Clusters of two CTAs compute the same outputs for different rows: each loads half of the weights
// and multicasts it to both. With all SMs active the L2 cache is still the bottleneck (28 KB for
// each tile and stage, at about 7 TB/s); then shared memory (832 cycles for 64 KB read by the
// tensor cores and 40 KB written), then the tensor cores (768).

#define STAGES 4
#define NO_INDEX 0xffffffffu
#define LOG2_E 1.4426950409f

// Results of 16 rows on their way from a warp's registers to memory, padded so that eight rows are
// in different banks.
#define ROW_BYTES (OUTPUTS * 2 + 16)
#define WARP_BYTES (16 * ROW_BYTES)

// EPILOGUE is one of these. It and the name of the KERNEL come from module.rs, which compiles this
// file once for each.
#define STORE 0
#define GELU 1
#define QKV 2
#define ARGMAX 3

// The kernel's parameter: tensor maps of both matrices, the shape, and where results go.
struct __align__(128) GemmParams {
    u64 x[16], weights[16];
    u64 rows, outputs, depth;
    const float* bias;  // (outputs), or null
    void* out;          // (rows, outputs) of bf16; ARGMAX: (rows, tiles of outputs) of uint4: the
                        // largest logit, the sum of exponentials relative to it, its index
    // QKV: the first `queries` outputs go to `out`; those of `kv_heads` heads of `dim` go to each
    // of these, (kv_heads, slots, dim), to the slots of `slot_of` (rows). They are bf16; if the
    // operands are e4m3, they are e4m3 without scales.
    u8 *keys, *values;
    const u32* slot_of;
    u64 slots, dim, kv_heads, queries;
    // E4M3: results are sums of codes' products times `by`, and times their row's scale.
    const float* x_scales;  // (rows); null: `by` includes the scale of all rows
    float by;
    float half_inverse;  // GELU: `out` is e4m3, this is half of 1 / its scale
    u64 constant;  // not 0: weights and bias do not change (CudaLinear::is_constant), and are read
                   // before the previous kernel ends
    u64 unused;
};

static_assert(sizeof(GemmParams) == 48 * 8, "as in hopper_gemm.rs");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Shared-memory addresses of the stages and mbarriers.
struct Smem {
    u32 stages;  // each x, then weights
    u32 full;    // (STAGES): the stage is loaded
    u32 empty;   // (STAGES): the stage was consumed, in both CTAs
    u32 turns;   // (2): the other warpgroup has its whole tile, the next stages are this one's
};

// A position in the ring of stages.
struct RingState {
    u32 stage, parity;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }

    __device__ __forceinline__ void advance_by(u32 steps) {
        stage += steps;
        parity ^= stage / STAGES & 1;
        stage %= STAGES;
    }
};

// The tiles of a cluster: all rows before the next outputs, so that weights are read once and x
// stays in the L2 cache.
struct TileScheduler {
    u32 row_blocks, count, steps;

    __device__ __forceinline__ TileScheduler(const GemmParams& params)
        : row_blocks(((u32)params.rows + CLUSTER * ROWS - 1) / (CLUSTER * ROWS)),
          count(row_blocks * (((u32)params.outputs + OUTPUTS - 1) / OUTPUTS)),
          steps(((u32)params.depth + DEPTH - 1) / DEPTH) {}

    __device__ __forceinline__ static u32 rank() { return blockIdx.x % CLUSTER; }
    __device__ __forceinline__ static u32 first() { return blockIdx.x / CLUSTER; }
    __device__ __forceinline__ static u32 stride() { return gridDim.x / CLUSTER; }
    __device__ __forceinline__ u32 row(u32 tile) const {
        return (tile % row_blocks * CLUSTER + rank()) * ROWS;
    }
    __device__ __forceinline__ u32 column(u32 tile) const { return tile / row_blocks * OUTPUTS; }
};

// The producer: loads all stages of all tiles.
__device__ __forceinline__ void load_stages(const GemmParams& params, Smem smem) {
    const TileScheduler tiles(params);
    const u32 share = CTA_OUTPUTS * TileScheduler::rank();
    prefetch_tensor_map(params.x);
    // The first weights may have to come from memory, and do not depend on the previous kernel:
    // prefetch them. Clusters with the same weights prefetch a share each.
    const u32 tile = TileScheduler::first(), sharers = tiles.row_blocks;
    for (u32 step = tile % sharers; tile < tiles.count && step < tiles.steps; step += sharers)
        tma_prefetch(params.weights, step * DEPTH, tiles.column(tile) + share);
    auto load_weights = [&](u32 stage, u32 column, u32 step) {
        const u32 to = smem.stages + stage * STAGE_BYTES + X_BYTES + share * DEPTH_BYTES,
                  barrier = smem.full + 8 * stage;
        mbarrier_expect_tx(barrier, STAGE_BYTES);
        tma_load_multicast((1 << CLUSTER) - 1, to, params.weights, step * DEPTH, column, barrier);
    };
    // If they are constant, the first stages load theirs before the previous kernel ends.
    const u32 ahead = params.constant && tile < tiles.count ? min(tiles.steps, STAGES) : 0;
#pragma unroll 1
    for (u32 s = 0; s < ahead; s++) load_weights(s, tiles.column(tile) + share, s);
    griddep_wait();
    griddep_launch();
    RingState ring = {0, 0};
    for (u32 tile = TileScheduler::first(); tile < tiles.count; tile += TileScheduler::stride()) {
        const u32 row = tiles.row(tile), column = tiles.column(tile) + share;
#pragma unroll 1  // the producer has few registers
        for (u32 step = 0; step < tiles.steps; step++) {
            if (step >= ahead || tile != TileScheduler::first()) {
                mbarrier_wait(smem.empty + 8 * ring.stage, ring.parity ^ 1);
                load_weights(ring.stage, column, step);
            }
            tma_load(smem.stages + ring.stage * STAGE_BYTES, params.x, step * DEPTH, row,
                     smem.full + 8 * ring.stage);
            ring.advance();
        }
    }
}

// Adds a tile's product to d (2 x 64, 192), from the ring's position on. Signals the other
// warpgroup when its turn begins.
__device__ __forceinline__ void multiply_tile(float (&d)[2][96], RingState& ring, u32 steps,
                                              Smem smem, u32 other) {
    const bool is_leader = threadIdx.x % 32 == 0;
    u32 before = 0;
    for (u32 step = 0; step < steps; step++) {
        mbarrier_wait(smem.full + 8 * ring.stage, ring.parity);
        if (step + 1 == steps && threadIdx.x % 128 == 0) mbarrier_arrive(smem.turns + 8 * other);
        const u32 from = smem.stages + ring.stage * STAGE_BYTES;
        const u64 a = wgmma_descriptor(from), b = wgmma_descriptor(from + X_BYTES);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH_BYTES / 32; k++) {  // 32 bytes further
            WGMMA(d[0], a + 2 * k, b + 2 * k, 1);
            WGMMA(d[1], a + (64 * DEPTH_BYTES >> 4) + 2 * k, b + 2 * k, 1);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0 && is_leader) mbarrier_arrive_cluster<CLUSTER>(smem.empty + 8 * before);
        before = ring.stage;
        ring.advance();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 96; i++)
        asm volatile("" : "+f"(d[0][i]), "+f"(d[1][i]));  // keeps reads of d after the wait
    if (is_leader) mbarrier_arrive_cluster<CLUSTER>(smem.empty + 8 * before);
}

// Elements 4 j + 2 w and the next of half h are row 64 h + 8 w of this thread's, columns 8 j + 2
// (lane % 4) and the next.
__device__ __forceinline__ void init_from_bias(const GemmParams& params, float (&d)[2][96],
                                               u32 column) {
    const u32 first = column + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < 24; j++) {
        const bool is = params.bias && first + 8 * j < (u32)params.outputs;
        const float2 bias =
            is ? *(const float2*)(params.bias + first + 8 * j) : make_float2(0.0f, 0.0f);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            d[h][4 * j] = d[h][4 * j + 2] = bias.x;
            d[h][4 * j + 1] = d[h][4 * j + 3] = bias.y;
        }
    }
}

__device__ __forceinline__ float gelu_tanh_approx(float x) {
    const float half = 0.5f * x, u = x * fmaf(0.044715f * 0.7978845608f, x * x, 0.7978845608f);
    float t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(u));  // 11 bits, and more where 1 + t is small
    return fmaf(half, t, half);
}

#ifdef E4M3
// The factors that convert sums of codes' products to results.
struct TileTerms {
    float biases[OUTPUTS];
    float by[2][16];  // of a warp's rows, of each half
};
static_assert(sizeof(TileTerms) + 16 * ROW_BYTES_E4M3 <= WARP_BYTES, "before codes to be stored");

// Stores the terms of a warp's tile in its staging memory, before the product: after it they would
// have to come from the L2 cache a few at a time, as accumulators leave few registers.
__device__ __forceinline__ void stage_terms(const GemmParams& params, u32 row, u32 column,
                                            TileTerms& terms) {
    const u32 lane = threadIdx.x % 32;
    __syncwarp();  // the results of the previous tile have left
    if (EPILOGUE != ARGMAX) {
#pragma unroll
        for (u32 c = lane; c < OUTPUTS; c += 32)
            terms.biases[c] =
                params.bias && column + c < (u32)params.outputs ? params.bias[column + c] : 0.0f;
    }
    float by = params.by;
    if (params.x_scales) {
        griddep_wait();
        const u32 at = row + lane / 16 * 64 + threadIdx.x / 32 % 4 * 16 + lane % 16;
        by *= at < (u32)params.rows ? params.x_scales[at] : 0.0f;
    }
    terms.by[lane / 16][lane % 16] = by;
    __syncwarp();
}

// Converts sums of codes' products to results. Scales are powers of two: one rounding.
__device__ __forceinline__ void scale_tile(float (&d)[2][96], const TileTerms& terms) {
    const u32 lane = threadIdx.x % 32;
    float by[2][2];
#pragma unroll
    for (int i = 0; i < 4; i++) by[i / 2][i % 2] = terms.by[i / 2][i % 2 * 8 + lane / 4];
#pragma unroll
    for (int j = 0; j < 24; j++) {
        const float2 bias = ((const float2*)terms.biases)[4 * j + lane % 4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float* x = &d[i / 2][4 * j + 2 * (i % 2)];
            x[0] = fmaf(x[0], by[i / 2][i % 2], bias.x);
            x[1] = fmaf(x[1], by[i / 2][i % 2], bias.y);
        }
    }
}

// GELU of two numbers (f16x2) as codes. In f16, of whose eleven significand bits e4m3 keeps four:
// while the other warpgroup multiplies, every instruction takes several times as long.
__device__ __forceinline__ u16 gelu_codes(u32 x, u32 half_inverse) {
    // 0.7978845608 and 0.044715 times that. Squares may be infinite: then so is u, and tanh is 1.
    const u32 u = mul_f16x2(x, fma_f16x2(mul_f16x2(x, x), 0x28912891, 0x3a623a62)),
              half = mul_f16x2(x, half_inverse);
    return e4m3_from_f16(fma_f16x2(half, tanh_f16x2(u), half));
}

// Stores a tile of GELU's results as codes: each warp its 16 rows of a half through shared memory.
// First all results are converted to f16, whose range they are within (fp8.rs), which halves the
// registers and so lets many of them be in flight.
__device__ __forceinline__ void store_gelu_codes(const GemmParams& params, const float (&d)[2][96],
                                                 u32 row, u32 column, const TileTerms& terms) {
    const u32 half_inverse = pack_f16(params.half_inverse, params.half_inverse);
    u32 x[2][48];
#pragma unroll
    for (int j = 0; j < 24; j++) {
        const float2 bias = ((const float2*)terms.biases)[4 * j + threadIdx.x % 4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float* sums = &d[i / 2][4 * j + 2 * (i % 2)];
            x[i / 2][2 * j + i % 2] = pack_f16(fmaf(sums[0], params.by, bias.x),
                                               fmaf(sums[1], params.by, bias.y));
        }
    }
    u8* codes = (u8*)(&terms + 1);
    row += threadIdx.x / 32 % 4 * 16;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        __syncwarp();
        stage_codes(codes, [&](int i) { return gelu_codes(x[h][i], half_inverse); });
        __syncwarp();
        for_staged_codes(codes, [&](u32 r, u32 c, uint4 some) {
            const u32 at = row + 64 * h + r;
            if (at < (u32)params.rows && column + c < (u32)params.outputs)
                *(uint4*)((u8*)params.out + (u64)at * params.outputs + column + c) = some;
        });
    }
}
#endif

// Size of an element of a key or value.
#ifdef E4M3
#define KV_BYTES 1
#else
#define KV_BYTES 2
#endif

// The destination of eight consecutive results of rows: `base` + (row or its slot) * `stride`, in
// bytes.
struct Destination {
    u8* base;
    u32 stride;
    bool by_slot;
};

__device__ __forceinline__ Destination destination(const GemmParams& params, u32 column) {
    if (EPILOGUE != QKV || column < (u32)params.queries)
        return {(u8*)params.out + 2 * column, 2 * (u32)params.outputs, false};
    const u32 kv_heads = (u32)params.kv_heads, dim = (u32)params.dim;
    const u32 head = (column - (u32)params.queries) / dim,
              within = (column - (u32)params.queries) % dim;
    const u64 slots = (head < kv_heads ? head : head - kv_heads) * params.slots;
    u8* base = head < kv_heads ? params.keys : params.values;
    return {base + (slots * dim + within) * KV_BYTES, dim * KV_BYTES, true};
}

// The slot of one of the warp's rows, which this lane keeps for the warp: lane 16 h + r has that of
// row r of half h.
__device__ __forceinline__ u32 lane_slot(const GemmParams& params, u32 row) {
    const u32 lane = threadIdx.x % 32,
              at = row + lane / 16 * 64 + threadIdx.x / 32 % 4 * 16 + lane % 16;
    return at < (u32)params.rows ? params.slot_of[at] : NO_SLOT;
}

#ifdef E4M3
// Stores a tile's keys and values as codes: each warp its 16 rows of a half through shared memory.
__device__ __forceinline__ void store_kv_codes(const GemmParams& params, const float (&d)[2][96],
                                               u32 column, u8* staging, u32 slot) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        __syncwarp();
        stage_codes(staging, [&](int i) { return pack_e4m3(d[h][2 * i], d[h][2 * i + 1]); });
        __syncwarp();
        for_staged_codes(staging, [&](u32 r, u32 c, uint4 some) {
            const u32 first = column + c, to = __shfl_sync(FULL_MASK, slot, 16 * h + r);
            if (to == NO_SLOT || first < (u32)params.queries || first >= (u32)params.outputs)
                return;
            const Destination at = destination(params, first);
            *(uint4*)(at.base + (u64)to * at.stride) = some;
        });
    }
}
#endif

// Stores a tile: each warp its 16 rows of a half through shared memory, so that eight lanes write
// 128 bytes of a row. e4m3 keys and values are handled by store_kv_codes.
__device__ __forceinline__ void store_tile(const GemmParams& params, const float (&d)[2][96],
                                           u32 row, u32 column, u8* staging, u32 slot) {
    const u32 lane = threadIdx.x % 32,
              store_at = smem_addr(staging) + lane % 16 * ROW_BYTES + lane / 16 * 16;
    const u8* load_at = staging + lane / 8 * ROW_BYTES + lane % 8 * 16;
    row += threadIdx.x / 32 % 4 * 16 + lane / 8;
    const bool only_queries = EPILOGUE == QKV && KV_BYTES == 1;
    const u32 end = (u32)(only_queries ? params.queries : params.outputs);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 96; i += 8) {
            u32 words[4];
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const float x = d[h][i + 2 * w], y = d[h][i + 2 * w + 1];
                words[w] = EPILOGUE == GELU ? pack_bf16(gelu_tanh_approx(x), gelu_tanh_approx(y))
                                            : pack_bf16(x, y);
            }
            stmatrix_x4(store_at + 4 * i, words[0], words[1], words[2], words[3]);
        }
        __syncwarp();
        u32 at[4], slots[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            at[r] = row + 64 * h + 4 * r;
            slots[r] =
                EPILOGUE == QKV ? __shfl_sync(FULL_MASK, slot, 16 * h + 4 * r + lane / 8) : 0;
        }
#pragma unroll
        for (int c = 0; c < 3; c++) {
            const u32 first = column + 64 * c + lane % 8 * 8;
            const Destination to = destination(params, first);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const uint4 words = *(const uint4*)(load_at + 4 * r * ROW_BYTES + 128 * c);
                const u64 index = to.by_slot ? slots[r] : at[r];
                if (at[r] < (u32)params.rows && first < end)
                    *(uint4*)(to.base + index * to.stride) = words;
            }
        }
    }
}

// The largest of a row's four threads.
__device__ __forceinline__ float largest_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_MASK, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_MASK, x, 2));
}

// The lowest index in the tile, less the thread's first column, of a result that equals the largest
// of its row, if this thread has one.
__device__ __forceinline__ void find_indices(u32 (&at)[2][2], const float (&d)[2][96],
                                             const float (&top)[2][2]) {
#pragma unroll
    for (int i = 95; i >= 0; i--) {  // descending, so that the lowest stays
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32& found = at[h][i / 2 % 2];
            found = d[h][i] == top[h][i / 2 % 2] ? 2 * (i & ~3) + (i & 1) : found;
        }
    }
}

// Reduces a tile: each row to its largest logit, the sum of exponentials relative to it and its
// index. All four rows of a thread at once, because one row's steps wait for each other. For e4m3,
// d contains sums of codes' products, which the rows' factors convert to logits.
__device__ __forceinline__ void reduce_tile(const GemmParams& params, float (&d)[2][96], u32 row,
                                            u32 column, const u8* staging) {
    const u32 lane = threadIdx.x % 32, rows = (u32)params.rows, outputs = (u32)params.outputs,
              first = column + 2 * (lane % 4);
    if (column >= outputs) return;  // beyond the last tile
    if (column + OUTPUTS > outputs) {
#pragma unroll
        for (int i = 0; i < 96; i++)
            if (first + 2 * (i & ~3) + (i & 1) >= outputs) d[0][i] = d[1][i] = -INF;
    }
    float top[2][2] = {{-INF, -INF}, {-INF, -INF}};  // ignoring NaN
#pragma unroll
    for (int j = 0; j < 96; j += 2) {
#pragma unroll
        for (int h = 0; h < 2; h++)
            top[h][j / 2 % 2] = fmaxf(top[h][j / 2 % 2], fmaxf(d[h][j], d[h][j + 1]));
    }
    float base2[2][2], shift[2][2], sums[2][2] = {}, by[2][2];
#ifdef E4M3
    const TileTerms& terms = *(const TileTerms*)staging;
#endif
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int w = 0; w < 2; w++) {
            top[h][w] = largest_of_row(top[h][w]);
            by[h][w] = 1.0f;
#ifdef E4M3
            by[h][w] = terms.by[h][8 * w + lane / 4];
#endif
            // -inf - -inf would be NaN. A NaN logit makes the sum NaN, as it should.
            base2[h][w] = by[h][w] * LOG2_E;
            shift[h][w] = top[h][w] == -INF ? 0.0f : top[h][w] * base2[h][w];
        }
    }
#pragma unroll
    for (int j = 0; j < 96; j += 2) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int w = j / 2 % 2;
            sums[h][w] += exp2_approx(fmaf(d[h][j], base2[h][w], -shift[h][w])) +
                          exp2_approx(fmaf(d[h][j + 1], base2[h][w], -shift[h][w]));
        }
    }
    u32 found[2][2] = {{NO_INDEX, NO_INDEX}, {NO_INDEX, NO_INDEX}};
    find_indices(found, d, top);
    row += threadIdx.x / 32 % 4 * 16 + lane / 4;
    const u32 blocks = (outputs + OUTPUTS - 1) / OUTPUTS;
    uint4* partials = (uint4*)params.out + column / OUTPUTS;
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int w = 0; w < 2; w++) {
            float sum = sums[h][w];
            sum += __shfl_xor_sync(FULL_MASK, sum, 1);
            sum += __shfl_xor_sync(FULL_MASK, sum, 2);
            u32 at = found[h][w];
            if (at != NO_INDEX) at += first;
            at = min(at, __shfl_xor_sync(FULL_MASK, at, 1));
            at = min(at, __shfl_xor_sync(FULL_MASK, at, 2));
            if (at >= outputs) at = NO_INDEX;  // only NaN before the end
            const u32 index = row + 64 * h + 8 * w;
            if (lane % 4 != 0 || index >= rows) continue;
            const float logit = top[h][w] * by[h][w];
            partials[(u64)index * blocks] =
                make_uint4(__float_as_uint(logit), __float_as_uint(sum), at, 0);
        }
    }
}

__device__ __forceinline__ void consume_tiles(const GemmParams& params, u32 warpgroup, Smem smem,
                                              u8* staging) {
    const TileScheduler tiles(params);
    RingState ring = {0, 0};
    u32 tile = TileScheduler::first(), parity = warpgroup ^ 1;  // the first turn is warpgroup 0's
    if (warpgroup == 1) {
        ring.advance_by(tiles.steps);
        tile += TileScheduler::stride();
    }
    if (!params.constant) griddep_wait();
    for (; tile < tiles.count; tile += 2 * TileScheduler::stride()) {
        float d[2][96];
#ifdef E4M3
        TileTerms& terms = *(TileTerms*)staging;
        stage_terms(params, tiles.row(tile), tiles.column(tile), terms);
#pragma unroll
        for (int i = 0; i < 96; i++) d[0][i] = d[1][i] = 0.0f;
#else
        init_from_bias(params, d, tiles.column(tile));
#endif
        griddep_wait();  // after the first tile it does nothing
        const u32 slot = EPILOGUE == QKV ? lane_slot(params, tiles.row(tile)) : 0;
        // Before its turn, a stage's parity is ambiguous: the other's tile fills it more than once.
        mbarrier_wait(smem.turns + 8 * warpgroup, parity);
        parity ^= 1;
        multiply_tile(d, ring, tiles.steps, smem, warpgroup ^ 1);
        ring.advance_by(tiles.steps);
#ifdef E4M3
        if (EPILOGUE == GELU) {
            store_gelu_codes(params, d, tiles.row(tile), tiles.column(tile), terms);
            continue;
        }
        if (EPILOGUE != ARGMAX) scale_tile(d, terms);
        if (EPILOGUE == QKV && tiles.column(tile) + OUTPUTS > (u32)params.queries)
            store_kv_codes(params, d, tiles.column(tile), staging, slot);
        if (EPILOGUE == QKV && tiles.column(tile) >= (u32)params.queries) continue;
#endif
        if (EPILOGUE == ARGMAX)
            reduce_tile(params, d, tiles.row(tile), tiles.column(tile), staging);
        else store_tile(params, d, tiles.row(tile), tiles.column(tile), staging, slot);
    }
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(384, 1)
    KERNEL(const __grid_constant__ GemmParams params) {
    extern __shared__ u8 shared_bytes[];
    __shared__ u64 barriers[2 * STAGES + 2];
    u8* aligned = shared_bytes + (-smem_addr(shared_bytes) & 1023);
    const u32 first = smem_addr(barriers);
    const Smem smem = {smem_addr(aligned), first, first + 8 * STAGES, first + 16 * STAGES};
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; s++) {
            mbarrier_init(smem.full + 8 * s, 1);
            mbarrier_init(smem.empty + 8 * s,
                          4 * CLUSTER);  // the warps of one warpgroup of each CTA
        }
        for (u32 w = 0; w < 2; w++) mbarrier_init(smem.turns + 8 * w, 1);
        fence_mbarrier_init();
    }
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
    const u32 warpgroup = threadIdx.x / 128;
    if (warpgroup == 2) {
        setmaxnreg_dec<24>();
        if (threadIdx.x == 256) load_stages(params, smem);
    } else {
        setmaxnreg_inc<240>();
        consume_tiles(params, warpgroup, smem,
                      aligned + STAGES * STAGE_BYTES + threadIdx.x / 32 * WARP_BYTES);
    }
    __syncwarp();
    cluster_arrive_relaxed();  // the other CTA may still write here
    cluster_wait();
}

#else
extern "C" __global__ void KERNEL(const __grid_constant__ GemmParams params) {}
#endif
