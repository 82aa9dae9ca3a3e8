// Linear maps of many rows on Hopper, with what becomes of their results fused in: a bias and GELU, keys and values put into
// their slots, or nothing kept but the largest and a sum of exponentials. Compiles to nothing for other GPUs.
//
// A block takes tiles of 128 rows by 192 outputs, one after another. Its third warpgroup asks for what the other two multiply:
// blocks of 64 numbers of rows and weights, by the copy engine, through STAGES buffers, across tiles. The other two take tiles
// in turn, so that one finishes its results while the other has the tensor cores, which bound this kernel.
//
// Two neighbouring blocks are a pair that takes the same outputs for different rows: each brings half of the weights to both.

#define ROWS 128
#define OUTPUTS 192
#define DEPTH 64
#define STAGES 5
#define PAIR 2
#define X_BYTES (ROWS * DEPTH * 2)
#define SHARE (OUTPUTS / PAIR) // outputs whose weights a block brings
#define STAGE_BYTES (X_BYTES + OUTPUTS * DEPTH * 2) // x, then weights
#define NOWHERE 0xffffffffu

// What becomes of results.
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

// This block's tiles. All rows before the next outputs: the weights are read once, x stays in the L2 cache.
struct Tiles {
    u32 row_blocks, count, steps, rank;

    __device__ __forceinline__ Tiles(const Product& by)
        : row_blocks(((u32)by.rows + PAIR * ROWS - 1) / (PAIR * ROWS)),
          count(row_blocks * (((u32)by.outputs + OUTPUTS - 1) / OUTPUTS)),
          steps(((u32)by.depth + DEPTH - 1) / DEPTH),
          rank(blockIdx.x % PAIR) {}

    __device__ __forceinline__ u32 row(u32 tile) const { return (tile % row_blocks * PAIR + rank) * ROWS; }
    __device__ __forceinline__ u32 column(u32 tile) const { return tile / row_blocks * OUTPUTS; }
};

// Asks for all stages of all tiles. Those of weights that there is room for at once do not wait for the kernel before.
__device__ __forceinline__ void bring_all(const Product& by, Memory in) {
    const Tiles tiles(by);
    const u16 both = (1 << PAIR) - 1;
    u32 ahead = min(tiles.steps, (u32)STAGES); // steps whose weights are under way
    for (u32 s = 0; s < ahead && blockIdx.x / PAIR < tiles.count; s++) {
        expect(in.full + 8 * s, STAGE_BYTES);
        bring_to(both, in.stages + s * STAGE_BYTES + X_BYTES + tiles.rank * SHARE * DEPTH * 2, by.weights, s * DEPTH,
                 tiles.column(blockIdx.x / PAIR) + SHARE * tiles.rank, in.full + 8 * s);
    }
    after_previous();
    Ring ring = {0, 0};
    for (u32 tile = blockIdx.x / PAIR; tile < tiles.count; tile += gridDim.x / PAIR) {
        const u32 row = tiles.row(tile), column = tiles.column(tile) + SHARE * tiles.rank;
#pragma unroll 1 // there are few registers
        for (u32 step = 0; step < tiles.steps; step++) {
            const u32 to = in.stages + ring.stage * STAGE_BYTES, barrier = in.full + 8 * ring.stage;
            if (ahead > 0) {
                ahead--;
            } else {
                await(in.empty + 8 * ring.stage, ring.parity ^ 1);
                expect(barrier, STAGE_BYTES);
                bring_to(both, to + X_BYTES + tiles.rank * SHARE * DEPTH * 2, by.weights, step * DEPTH, column, barrier);
            }
            bring(to, by.x, step * DEPTH, row, barrier);
            ring.step();
        }
    }
}

// d (2 x 64, 192) = a tile's product, from the stages that the ring is at. Tells the other warpgroup when its turn is.
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
            multiply(d[0], a + 2 * k, b + 2 * k, step > 0 || k > 0);
            multiply(d[1], a + (64 * DEPTH * 2 >> 4) + 2 * k, b + 2 * k, step > 0 || k > 0);
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

// x / (1 + exp(-2 u)) is x (1 + tanh u) / 2.
__device__ __forceinline__ float gelu(float x) {
    const float u = x * fmaf(0.044715f * 0.7978845608f, x * x, 0.7978845608f);
    return __fdividef(x, 1.0f + __expf(-2.0f * u));
}

// Word i of lane q of four becomes word q of lane i.
__device__ __forceinline__ void turn(u32 (&w)[4]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const u32 got = __shfl_xor_sync(FULL, odd ? w[i] : w[i + 1], 1);
        if (odd) w[i] = got;
        else w[i + 1] = got;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 got = __shfl_xor_sync(FULL, high ? w[i] : w[i + 2], 2);
        if (high) w[i] = got;
        else w[i + 2] = got;
    }
}

// Where eight neighbouring results of rows go: `base` + (row or its slot) * `stride`.
struct Target {
    u16* base;
    u32 stride;
    bool slotted;
};

template <int WHAT>
__device__ __forceinline__ Target target(const Product& by, u32 column) {
    if (WHAT != PLACED || column < (u32)by.queries) return {(u16*)by.out + column, (u32)by.outputs, false};
    const u32 kv_heads = (u32)by.kv_heads, dim = (u32)by.dim;
    const u32 head = (column - (u32)by.queries) / dim, within = (column - (u32)by.queries) % dim;
    u16* base = head < kv_heads ? by.keys + (u64)head * by.slots * dim : by.values + (u64)(head - kv_heads) * by.slots * dim;
    return {base + within, dim, true};
}

// Adds the bias and writes a tile, 16 bytes a lane: results 4 j + 2 w and the next of half h are those of row 64 h + 8 w of this
// thread's, columns 8 j + 2 (lane % 4) and the next; four lanes turn theirs so that each has eight neighbours.
template <int WHAT>
__device__ __forceinline__ void store_tile(const Product& by, const float (&d)[2][96], u32 row, u32 column) {
    const u32 lane = threadIdx.x % 32, q = lane % 4, outputs = (u32)by.outputs, rows = (u32)by.rows;
    row += threadIdx.x / 32 % 4 * 16 + lane / 4;
    u32 slots[4];
#pragma unroll
    for (int r = 0; WHAT == PLACED && r < 4; r++) slots[r] = row + 64 * (r / 2) + 8 * (r % 2) < rows ? by.to[row + 64 * (r / 2) + 8 * (r % 2)] : 0;
#pragma unroll
    for (int g = 0; g < OUTPUTS / 32; g++) {
        float2 bias[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u32 c = column + 32 * g + 8 * j + 2 * q;
            bias[j] = by.bias && c < outputs ? *(const float2*)(by.bias + c) : make_float2(0.0f, 0.0f);
        }
        const u32 mine = column + 32 * g + 8 * q;
        const Target to = target<WHAT>(by, mine);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            u32 words[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int i = 16 * g + 4 * j + 2 * (r % 2);
                const float x = d[r / 2][i] + bias[j].x, y = d[r / 2][i + 1] + bias[j].y;
                words[j] = WHAT == GELU ? pack(gelu(x), gelu(y)) : pack(x, y);
            }
            turn(words);
            const u32 at = row + 64 * (r / 2) + 8 * (r % 2);
            const u64 index = WHAT == PLACED && to.slotted ? slots[r] : at;
            if (at < rows && mine < outputs) *(uint4*)(to.base + index * to.stride) = make_uint4(words[0], words[1], words[2], words[3]);
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

template <int WHAT>
__device__ __forceinline__ void take_turns(const Product& by, u32 warpgroup, Memory in) {
    const Tiles tiles(by);
    Ring ring = {0, 0};
    u32 tile = blockIdx.x / PAIR, parity = warpgroup ^ 1; // the first turn is that of warpgroup 0
    if (warpgroup == 1) {
        ring.skip(tiles.steps);
        tile += gridDim.x / PAIR;
    }
    after_previous();
    for (; tile < tiles.count; tile += 2 * (gridDim.x / PAIR)) {
        float d[2][96];
        // Before its turn, a stage's parity says nothing: the other's tile fills it more than once.
        await(in.turns + 8 * warpgroup, parity);
        parity ^= 1;
        multiply_tile(d, ring, tiles.steps, in, warpgroup ^ 1);
        ring.skip(tiles.steps);
        if (WHAT == REDUCED) reduce_tile(by, d, tiles.row(tile), tiles.column(tile));
        else store_tile<WHAT>(by, d, tiles.row(tile), tiles.column(tile));
    }
}

template <int WHAT>
__device__ __forceinline__ void run(const Product& by) {
    extern __shared__ u8 memory[];
    __shared__ u64 barriers[2 * STAGES + 2];
    const u32 first = shared_at(barriers);
    const Memory in = {(shared_at(memory) + 1023) & ~1023u, first, first + 8 * STAGES, first + 16 * STAGES};
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; s++) {
            set_up(in.full + 8 * s, 1);
            set_up(in.empty + 8 * s, 4 * PAIR); // the warps of a warpgroup of each block
        }
        for (u32 w = 0; w < 2; w++) set_up(in.turns + 8 * w, 1);
        show_barriers();
    }
    meet_cluster();
    let_next_start();
    const u32 warpgroup = threadIdx.x / 128;
    if (warpgroup == 2) {
        fewer_registers<24>();
        if (threadIdx.x == 256) bring_all(by, in);
    } else {
        more_registers<240>();
        take_turns<WHAT>(by, warpgroup, in);
    }
    __syncwarp();
    meet_cluster(); // the other block may still write here
}

#define ENTRY(name, what)                                                                                        \
    extern "C" __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(384, 1)                            \
        name(const __grid_constant__ Product by) { run<what>(by); }
#else
#define ENTRY(name, what) \
    extern "C" __global__ void name(const __grid_constant__ Product by) {}
#endif

ENTRY(product_stored, STORED)
ENTRY(product_gelu, GELU)
ENTRY(product_placed, PLACED)
ENTRY(product_reduced, REDUCED)
