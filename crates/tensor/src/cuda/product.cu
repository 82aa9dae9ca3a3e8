// Linear maps of many rows on Hopper, with what becomes of their results fused in: a bias and GELU, keys and values put into
// their slots, or nothing kept but the largest and a sum of exponentials. Compiles to nothing for other GPUs.
//
// A block takes tiles of 128 rows by 192 outputs, one after another. Its third warpgroup asks for what the other two multiply:
// blocks of 64 numbers of rows and weights, by the copy engine, through STAGES buffers, across tiles. The other two take tiles
// in turn, so that one finishes its results while the other has the tensor cores.
//
// Two neighbouring blocks are a pair that takes the same outputs for different rows: each brings half of the weights to both. With
// all multiprocessors at work the L2 cache is the bound even so (28 KB for each tile and 64 of depth, at about 7 TB/s); then shared
// memory (832 cycles for 64 KB read by the tensor cores and 40 KB written), then the tensor cores (768).

#define ROWS 128
#define OUTPUTS 192
#define DEPTH 64
#define STAGES 4
#define PAIR 2
#define SHARE (OUTPUTS / PAIR) // outputs whose weights a block brings
#define X_BYTES (ROWS * DEPTH * 2)
#define STAGE_BYTES (X_BYTES + OUTPUTS * DEPTH * 2) // x, then weights
#define NOWHERE 0xffffffffu

// Results of 16 rows on their way from a warp's registers to memory, apart so that eight rows lie in different banks.
#define ROW_BYTES (OUTPUTS * 2 + 16)
#define WARP_BYTES (16 * ROW_BYTES)

// What becomes of results: WHAT is one of these. It and the name of the KERNEL come from module.rs, which compiles this for each.
#define STORED 0
#define GELU 1
#define PLACED 2
#define REDUCED 3

// What the host passes, as one parameter: both matrices as the copy engine knows them, shapes, and where results go.
struct __align__(128) Product {
    u64 x[16], weights[16];
    u64 rows, outputs, depth;
    const float* bias; // (outputs), or none
    void* out;         // (rows, outputs) of bf16; if reduced, (rows, tiles of outputs): the largest, the sum of exponentials
                       // relative to it, its index
    // If placed: the first `queries` outputs go to `out`, as many as are in `kv_heads` heads of `dim` into each of these,
    // (kv_heads, slots, dim), where `to` (rows) says.
    u16 *keys, *values;
    const u32* to;
    u64 slots, dim, kv_heads, queries;
    u64 unused[4];
};

static_assert(sizeof(Product) == 48 * 8, "as in product.rs");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Where a block's stages and barriers are in its shared memory.
struct Memory {
    u32 stages; // each x, then weights
    u32 full;   // (STAGES): what a stage holds is there
    u32 empty;  // (STAGES): it was multiplied, in both blocks
    u32 turns;  // (2): the other warpgroup has all of its tile, so the stages from here on are this one's
};

// How far a warpgroup is in the ring of stages.
struct Ring {
    u32 stage, parity;

    __device__ __forceinline__ void step() {
        if (++stage == STAGES) { stage = 0; parity ^= 1; }
    }

    __device__ __forceinline__ void skip(u32 steps) {
        stage += steps;
        parity ^= stage / STAGES & 1;
        stage %= STAGES;
    }
};

// The pair's tiles: all rows before the next outputs, so the weights are read once, and x stays in the L2 cache.
struct Tiles {
    u32 row_blocks, count, steps;

    __device__ __forceinline__ Tiles(const Product& by)
        : row_blocks(((u32)by.rows + PAIR * ROWS - 1) / (PAIR * ROWS)),
          count(row_blocks * (((u32)by.outputs + OUTPUTS - 1) / OUTPUTS)),
          steps(((u32)by.depth + DEPTH - 1) / DEPTH) {}

    __device__ __forceinline__ static u32 rank() { return blockIdx.x % PAIR; }
    __device__ __forceinline__ static u32 first() { return blockIdx.x / PAIR; }
    __device__ __forceinline__ static u32 apart() { return gridDim.x / PAIR; }
    __device__ __forceinline__ u32 row(u32 tile) const { return (tile % row_blocks * PAIR + rank()) * ROWS; }
    __device__ __forceinline__ u32 column(u32 tile) const { return tile / row_blocks * OUTPUTS; }
};

// Asks for all stages of all tiles.
__device__ __forceinline__ void bring_all(const Product& by, Memory in) {
    const Tiles tiles(by);
    const u32 share = SHARE * Tiles::rank();
    expect_matrix(by.x);
    // The first weights may come from memory, and need not wait for the kernel before. Pairs with the same ones ask for a part
    // each.
    const u32 tile = Tiles::first(), alike = tiles.row_blocks;
    for (u32 step = tile % alike; tile < tiles.count && step < tiles.steps; step += alike)
        foresee(by.weights, step * DEPTH, tiles.column(tile) + share);
    after_previous();
    let_next_start();
    Ring ring = {0, 0};
    for (u32 tile = Tiles::first(); tile < tiles.count; tile += Tiles::apart()) {
        const u32 row = tiles.row(tile), column = tiles.column(tile) + share;
#pragma unroll 1 // there are few registers
        for (u32 step = 0; step < tiles.steps; step++) {
            const u32 to = in.stages + ring.stage * STAGE_BYTES, barrier = in.full + 8 * ring.stage;
            await(in.empty + 8 * ring.stage, ring.parity ^ 1);
            expect(barrier, STAGE_BYTES);
            bring(to, by.x, step * DEPTH, row, barrier);
            bring_to((1 << PAIR) - 1, to + X_BYTES + share * DEPTH * 2, by.weights, step * DEPTH, column, barrier);
            ring.step();
        }
    }
}

// Adds a tile's product to d (2 x 64, 192), from the stages that the ring is at. Tells the other warpgroup when its turn is.
__device__ __forceinline__ void multiply_tile(float (&d)[2][96], Ring& ring, u32 steps, Memory in, u32 other) {
    const bool tells = threadIdx.x % 32 == 0;
    u32 before = 0;
    for (u32 step = 0; step < steps; step++) {
        await(in.full + 8 * ring.stage, ring.parity);
        if (step + 1 == steps && threadIdx.x % 128 == 0) arrive(in.turns + 8 * other);
        const u32 from = in.stages + ring.stage * STAGE_BYTES;
        const u64 a = described(from), b = described(from + X_BYTES);
        before_products();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) { // 32 bytes on
            multiply(d[0], a + 2 * k, b + 2 * k, 1);
            multiply(d[1], a + (64 * DEPTH * 2 >> 4) + 2 * k, b + 2 * k, 1);
        }
        after_products();
        multiplied<1>();
        if (step > 0 && tells) release<PAIR>(in.empty + 8 * before);
        before = ring.stage;
        ring.step();
    }
    multiplied<0>();
#pragma unroll
    for (int i = 0; i < 96; i++) asm volatile("" : "+f"(d[0][i]), "+f"(d[1][i])); // read from here on, not before
    if (tells) release<PAIR>(in.empty + 8 * before);
}

// Results 4 j + 2 w and the next of half h are those of row 64 h + 8 w of this thread's, columns 8 j + 2 (lane % 4) and the next.
__device__ __forceinline__ void start_from_bias(const Product& by, float (&d)[2][96], u32 column) {
    const u32 first = column + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < 24; j++) {
        const bool is = by.bias && first + 8 * j < (u32)by.outputs;
        const float2 bias = is ? *(const float2*)(by.bias + first + 8 * j) : make_float2(0.0f, 0.0f);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            d[h][4 * j] = d[h][4 * j + 2] = bias.x;
            d[h][4 * j + 1] = d[h][4 * j + 3] = bias.y;
        }
    }
}

__device__ __forceinline__ float gelu(float x) {
    const float half = 0.5f * x, u = x * fmaf(0.044715f * 0.7978845608f, x * x, 0.7978845608f);
    float t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(u)); // good to 11 bits, and to more where 1 + t is small
    return fmaf(half, t, half);
}

// Where eight neighbouring results of rows go: `base` + (row or its slot) * `stride`.
struct Target {
    u16* base;
    u32 stride;
    bool slotted;
};

__device__ __forceinline__ Target target(const Product& by, u32 column) {
    if (WHAT != PLACED || column < (u32)by.queries) return {(u16*)by.out + column, (u32)by.outputs, false};
    const u32 kv_heads = (u32)by.kv_heads, dim = (u32)by.dim;
    const u32 head = (column - (u32)by.queries) / dim, within = (column - (u32)by.queries) % dim;
    u16* base = head < kv_heads ? by.keys + (u64)head * by.slots * dim : by.values + (u64)(head - kv_heads) * by.slots * dim;
    return {base + within, dim, true};
}

// The slot of the row of a tile that this lane keeps for its warp: row 16 h + r of the warp's is lane 16 h + r.
__device__ __forceinline__ u32 slot_kept(const Product& by, u32 row) {
    const u32 lane = threadIdx.x % 32, at = row + lane / 16 * 64 + threadIdx.x / 32 % 4 * 16 + lane % 16;
    return at < (u32)by.rows ? by.to[at] : 0;
}

// Writes a tile, each warp its 16 rows of a half by way of shared memory, so that eight lanes write 128 bytes of a row.
__device__ __forceinline__ void store_tile(const Product& by, const float (&d)[2][96], u32 row, u32 column, u8* mine, u32 slot) {
    const u32 lane = threadIdx.x % 32, put_at = shared_at(mine) + lane % 16 * ROW_BYTES + lane / 16 * 16;
    const u8* take_at = mine + lane / 8 * ROW_BYTES + lane % 8 * 16;
    row += threadIdx.x / 32 % 4 * 16 + lane / 8;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 96; i += 8) {
            u32 words[4];
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const float x = d[h][i + 2 * w], y = d[h][i + 2 * w + 1];
                words[w] = WHAT == GELU ? pack(gelu(x), gelu(y)) : pack(x, y);
            }
            put_pieces(put_at + 4 * i, words[0], words[1], words[2], words[3]);
        }
        __syncwarp();
        u32 at[4], slots[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            at[r] = row + 64 * h + 4 * r;
            slots[r] = WHAT == PLACED ? __shfl_sync(FULL, slot, 16 * h + 4 * r + lane / 8) : 0;
        }
#pragma unroll
        for (int c = 0; c < 3; c++) {
            const u32 first = column + 64 * c + lane % 8 * 8;
            const Target to = target(by, first);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const uint4 words = *(const uint4*)(take_at + 4 * r * ROW_BYTES + 128 * c);
                const u64 index = to.slotted ? slots[r] : at[r];
                if (at[r] < (u32)by.rows && first < (u32)by.outputs) *(uint4*)(to.base + index * to.stride) = words;
            }
        }
    }
}

// Reduces a row's 48 results of this thread and those of the three others that have the row: results 4 j + 2 WHICH and the next.
template <int WHICH>
__device__ __forceinline__ uint4 reduced(const float (&d)[96], u32 first, u32 outputs) {
    float top = -INF;
#pragma unroll
    for (int j = 0; j < 96; j += 4) top = fmaxf(top, fmaxf(d[j + 2 * WHICH], d[j + 2 * WHICH + 1])); // passes over not-a-number
    top = fmaxf(top, __shfl_xor_sync(FULL, top, 1));
    top = fmaxf(top, __shfl_xor_sync(FULL, top, 2));
    // Negative infinity cannot be subtracted from itself; what is no number spoils the sum, as it should.
    const float shift = top == -INF ? 0.0f : top;
    float sums[4] = {};
    u32 at = NOWHERE;
#pragma unroll
    for (int j = 92; j >= 0; j -= 4) {
        const float v = d[j + 2 * WHICH], w = d[j + 2 * WHICH + 1];
        sums[j / 4 % 4] += __expf(v - shift) + __expf(w - shift);
        // Downwards, so that the lowest of equals stays.
        at = w == top ? 2 * j + 1 : at;
        at = v == top ? 2 * j : at;
    }
    if (at != NOWHERE) at += first;
    at = min(at, __shfl_xor_sync(FULL, at, 1));
    at = min(at, __shfl_xor_sync(FULL, at, 2));
    if (at >= outputs) at = NOWHERE; // nothing but not-a-number before the end
    float sum = sums[0] + sums[1] + (sums[2] + sums[3]);
    sum += __shfl_xor_sync(FULL, sum, 1);
    sum += __shfl_xor_sync(FULL, sum, 2);
    return make_uint4(__float_as_uint(top), __float_as_uint(sum), at, 0);
}

__device__ __forceinline__ void reduce_tile(const Product& by, float (&d)[2][96], u32 row, u32 column) {
    const u32 lane = threadIdx.x % 32, rows = (u32)by.rows, outputs = (u32)by.outputs, first = column + 2 * (lane % 4);
    if (column >= outputs) return; // beside the last tile
    if (column + OUTPUTS > outputs) {
#pragma unroll
        for (int i = 0; i < 96; i++)
            if (first + 2 * (i & ~3) + (i & 1) >= outputs) d[0][i] = d[1][i] = -INF;
    }
    row += threadIdx.x / 32 % 4 * 16 + lane / 4;
    const u32 blocks = (outputs + OUTPUTS - 1) / OUTPUTS;
    uint4* parts = (uint4*)by.out + column / OUTPUTS;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const u32 at = row + 64 * h;
        const uint4 part0 = reduced<0>(d[h], first, outputs), part1 = reduced<1>(d[h], first, outputs);
        if (lane % 4 == 0 && at < rows) parts[(u64)at * blocks] = part0;
        if (lane % 4 == 0 && at + 8 < rows) parts[(u64)(at + 8) * blocks] = part1;
    }
}

__device__ __forceinline__ void take_turns(const Product& by, u32 warpgroup, Memory in, u8* mine) {
    const Tiles tiles(by);
    Ring ring = {0, 0};
    u32 tile = Tiles::first(), parity = warpgroup ^ 1; // the first turn is that of warpgroup 0
    if (warpgroup == 1) {
        ring.skip(tiles.steps);
        tile += Tiles::apart();
    }
    after_previous();
    for (; tile < tiles.count; tile += 2 * Tiles::apart()) {
        float d[2][96];
        start_from_bias(by, d, tiles.column(tile));
        const u32 slot = WHAT == PLACED ? slot_kept(by, tiles.row(tile)) : 0;
        // Before its turn, a stage's parity says nothing: the other's tile fills it more than once.
        await(in.turns + 8 * warpgroup, parity);
        parity ^= 1;
        multiply_tile(d, ring, tiles.steps, in, warpgroup ^ 1);
        ring.skip(tiles.steps);
        if (WHAT == REDUCED) reduce_tile(by, d, tiles.row(tile), tiles.column(tile));
        else store_tile(by, d, tiles.row(tile), tiles.column(tile), mine, slot);
    }
}

extern "C" __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(384, 1) KERNEL(const __grid_constant__ Product by) {
    extern __shared__ u8 memory[];
    __shared__ u64 barriers[2 * STAGES + 2];
    u8* aligned = memory + (-shared_at(memory) & 1023);
    const u32 first = shared_at(barriers);
    const Memory in = {shared_at(aligned), first, first + 8 * STAGES, first + 16 * STAGES};
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; s++) {
            set_up(in.full + 8 * s, 1);
            set_up(in.empty + 8 * s, 4 * PAIR); // the warps of a warpgroup of each block
        }
        for (u32 w = 0; w < 2; w++) set_up(in.turns + 8 * w, 1);
        show_barriers();
    }
    __syncwarp();
    reach_cluster();
    wait_cluster();
    const u32 warpgroup = threadIdx.x / 128;
    if (warpgroup == 2) {
        fewer_registers<24>();
        if (threadIdx.x == 256) bring_all(by, in);
    } else {
        more_registers<240>();
        take_turns(by, warpgroup, in, aligned + STAGES * STAGE_BYTES + threadIdx.x / 32 * WARP_BYTES);
    }
    __syncwarp();
    reach_cluster(); // the other block may still write here
    wait_cluster();
}

#else
extern "C" __global__ void KERNEL(const __grid_constant__ Product by) {}
#endif
