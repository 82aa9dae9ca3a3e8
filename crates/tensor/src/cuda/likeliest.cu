// The likeliest output of a linear map for many rows on Hopper, without logits in memory: a product whose results are reduced
// where they are made. Compiles to nothing for other GPUs.
//
// A block takes tiles of 128 rows by 256 outputs, one after another. Its third warpgroup asks for what the other two multiply:
// blocks of 64 numbers of rows and weights, by the copy engine, through STAGES buffers, across tiles, so that copies run on
// while results are reduced. Bound by the tensor cores, then by exponentials (one for each logit).
//
// Two neighbouring blocks are a pair that takes the same outputs for different rows: each brings half of the weights to both.

#define ROWS 128
#define OUTPUTS 256
#define DEPTH 64
#define STAGES 4
#define PAIR 2
#define HALF_BYTES (128 * DEPTH * 2)                 // 128 rows of x, or of weights
#define STAGE_BYTES (HALF_BYTES + 2 * HALF_BYTES)    // x, then weights
#define NOWHERE 0xffffffffu

// What the host passes, as one parameter: both matrices as the copy engine knows them, and shapes.
struct __align__(128) Head {
    u64 x[16], weights[16];
    u64 rows, outputs, depth;
    uint4* parts; // (rows, blocks of outputs): the largest, the sum of exponentials relative to it, its index
    u64 unused[12];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Reduces a row's 64 results of this thread and those of the three others that have the row. Results of row `which` (0 or 1)
// are elements 4 j + 2 which and the next, columns 8 j + 2 (lane % 4) and the next.
template <int WHICH>
__device__ __forceinline__ uint4 reduced(const float (&d)[128], u32 first, u32 outputs) {
    float top = -INF;
#pragma unroll
    for (int j = 0; j < 128; j += 4) top = fmaxf(top, fmaxf(d[j + 2 * WHICH], d[j + 2 * WHICH + 1])); // passes over not-a-number
    top = fmaxf(top, __shfl_xor_sync(FULL, top, 1));
    top = fmaxf(top, __shfl_xor_sync(FULL, top, 2));
    // Negative infinity cannot be subtracted from itself; what is no number spoils the sum, as it should.
    const float shift = top == -INF ? 0.0f : top;
    float sums[4] = {};
    u32 at = NOWHERE;
#pragma unroll
    for (int j = 124; j >= 0; j -= 4) {
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

extern "C" __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(384, 1)
    likeliest_parts(const __grid_constant__ Head head) {
    extern __shared__ u8 memory[];
    __shared__ u64 full[STAGES], empty[STAGES];
    const u32 stages = (shared_at(memory) + 1023) & ~1023u, full_at = shared_at(full), empty_at = shared_at(empty);
    const u32 rank = blockIdx.x % PAIR, warpgroup = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; s++) {
            set_up(full_at + 8 * s, 1);
            set_up(empty_at + 8 * s, 8 * PAIR); // every warp that multiplies, of both blocks
        }
        show_barriers();
    }
    after_previous();
    meet_cluster();
    const u32 rows = (u32)head.rows, outputs = (u32)head.outputs, steps = ((u32)head.depth + DEPTH - 1) / DEPTH;
    // All rows before the next outputs: the weights are read once, x stays in the L2 cache.
    const u32 row_blocks = (rows + PAIR * ROWS - 1) / (PAIR * ROWS), column_blocks = (outputs + OUTPUTS - 1) / OUTPUTS;
    u32 stage = 0, parity = 0;
    for (u32 tile = blockIdx.x / PAIR; tile < row_blocks * column_blocks; tile += gridDim.x / PAIR) {
        const u32 row = (tile % row_blocks * PAIR + rank) * ROWS, column = tile / row_blocks * OUTPUTS;
        if (warpgroup == 2) {
            for (u32 step = 0; threadIdx.x == 256 && step < steps; step++) {
                const u32 to = stages + stage * STAGE_BYTES, barrier = full_at + 8 * stage;
                await(empty_at + 8 * stage, parity ^ 1);
                expect(barrier, STAGE_BYTES);
                bring(to, head.x, step * DEPTH, row, barrier);
                bring_to(3, to + (1 + rank) * HALF_BYTES, head.weights, step * DEPTH, column + 128 * rank, barrier);
                if (++stage == STAGES) { stage = 0; parity ^= 1; }
            }
            continue;
        }
        float d[128];
        const u32 lane = threadIdx.x % 32;
        u32 before = 0;
        for (u32 step = 0; step < steps; step++) {
            await(full_at + 8 * stage, parity);
            const u32 from = stages + stage * STAGE_BYTES;
            const u64 a = described(from + warpgroup * 64 * DEPTH * 2), b = described(from + HALF_BYTES);
            before_products();
#pragma unroll
            for (int k = 0; k < DEPTH / 16; k++) multiply(d, a + 2 * k, b + 2 * k, step > 0 || k > 0); // 32 bytes on
            after_products();
            multiplied<1>();
            if (step > 0 && lane == 0) release<PAIR>(empty_at + 8 * before);
            before = stage;
            if (++stage == STAGES) { stage = 0; parity ^= 1; }
        }
        multiplied<0>();
#pragma unroll
        for (int i = 0; i < 128; i++) asm volatile("" : "+f"(d[i])); // read from here on, not before
        if (lane == 0) release<PAIR>(empty_at + 8 * before);

        const u32 first = column + 2 * (lane % 4);
        if (column + OUTPUTS > outputs) {
#pragma unroll
            for (int i = 0; i < 128; i++)
                if (first + 2 * (i & ~3) + (i & 1) >= outputs) d[i] = -INF;
        }
        const u32 mine = row + warpgroup * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
        const uint4 part0 = reduced<0>(d, first, outputs), part1 = reduced<1>(d, first, outputs);
        uint4* parts = head.parts + column / OUTPUTS;
        if (lane % 4 == 0 && mine < rows) parts[(u64)mine * column_blocks] = part0;
        if (lane % 4 == 0 && mine + 8 < rows) parts[(u64)(mine + 8) * column_blocks] = part1;
    }
    __syncwarp();
    meet_cluster(); // the other block may still write here
}

#else
extern "C" __global__ void likeliest_parts(const __grid_constant__ Head head) {}
#endif

// words[r] = index << 32 | log-probability (as bits) of the best of row r, from its parts. A warp a row; bound by memory.
extern "C" __global__ void __launch_bounds__(256) likeliest_whole(const uint4* parts, u32 rows, u32 blocks, u64* words) {
    after_previous();
    const u32 row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float top = -INF, sum = 0.0f;
    u32 at = NOWHERE;
    for (u32 i = lane; i < blocks; i += 32) {
        const uint4 part = parts[(u64)row * blocks + i];
        const float x = __uint_as_float(part.x), s = __uint_as_float(part.y);
        const float larger = fmaxf(top, x), shift = larger == -INF ? 0.0f : larger;
        // Sums of nothing but negative infinities and not-a-numbers are relative to 0.
        sum = sum * (top == -INF ? 1.0f : __expf(top - shift)) + s * (x == -INF ? 1.0f : __expf(x - shift));
        if (x > top || (x == top && part.z < at)) at = part.z;
        top = larger;
    }
    const float largest = warp_max(top);
    sum = warp_sum(sum * (top == -INF ? 1.0f : __expf(top - largest)));
    at = __reduce_min_sync(FULL, top == largest ? at : NOWHERE);
    if (lane == 0) words[row] = (u64)(at == NOWHERE ? 0u : at) << 32 | __float_as_uint(-logf(sum));
}
