// A linear map whose result joins the residual stream, on Hopper: product, bias, dropout, addition and norm in one kernel, so
// that neither the product nor the stream makes a trip of its own through memory. Compiles to nothing for other GPUs.
//
// A cluster of four blocks takes 128 rows, each block 192 of their 768 outputs: two warpgroups multiply 64 rows each, a thread of
// the third asks the copy engine for what they multiply and for the stream's tile, the rest of it draws masks meanwhile. Each
// block brings a quarter of the rows' inputs to all four. Blocks tell each other mean and spread of their part of every row.
// Bound by the tensor cores; what comes after the products is bound by shared memory.

#define CLUSTER 4
#define ROWS 128
#define OUTPUTS 192
#define DEPTH 64
#define STAGES 3
#define INPUT_BYTES (ROWS * DEPTH * 2)
#define STAGE_BYTES (INPUT_BYTES + OUTPUTS * DEPTH * 2)
#define STREAM_BYTES (ROWS * OUTPUTS * 4)
#define MASK_WORDS (OUTPUTS / 32)
#define MULTIPLIERS 256 // threads of the first two warpgroups
#define THREADS 512
#define DRAWERS (THREADS - MULTIPLIERS - 32)

// What the host passes, as one parameter: matrices as the copy engine knows them, vectors, shapes.
struct __align__(128) Residual {
    u64 inputs[16], weights[16], stream[16], out[16];
    const float *bias, *scale, *shift; // bias may be absent; without a shift the norm is by the root mean square
    const Draw* draws;                 // none: nothing is dropped
    float* single;                     // the normalised rows in single precision, in place of `out`
    u32 rows, depth, site, threshold;
    float keep, eps;
    u64 unused[8];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct Shared {
    u8 stages[STAGES][STAGE_BYTES];  // later the normalised rows
    u8 stream[STREAM_BYTES];         // 2 x 6 boxes of 64 rows by 32 columns
    u32 masks[ROWS][MASK_WORDS];
    float2 parts[CLUSTER][ROWS];     // mean, and sum of squared distances from it, of each block's part of a row
    float bias[OUTPUTS], scale[OUTPUTS], shift[OUTPUTS];
    u64 full[STAGES], empty[STAGES], stream_full;
};

// Threads of some warps wait for each other; those that only arrive do not.
__device__ __forceinline__ void meet(u32 barrier, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Named barriers: masks and parameters are there; a warpgroup has put its part of the stream, and of the normalised rows, where
// they are taken from.
#define PREPARED 1
#define ADDED(warpgroup) (2 + (warpgroup))
#define NORMED(warpgroup) (4 + (warpgroup))

// Masks and parameters: what does not depend on the kernel before this one.
__device__ __forceinline__ void prepare(const Residual& by, Shared& shared, u32 rank, u32 row) {
    const u32 i = threadIdx.x - (THREADS - DRAWERS);
    for (u32 c = i; c < OUTPUTS; c += DRAWERS) {
        const u32 at = rank * OUTPUTS + c;
        shared.bias[c] = by.bias ? by.bias[at] : 0.0f;
        shared.scale[c] = by.scale[at];
        shared.shift[c] = by.shift ? by.shift[at] : 0.0f;
    }
    if (!by.draws) return;
#pragma unroll 2
    for (u32 w = i; w < ROWS * MASK_WORDS; w += DRAWERS) {
        const u32 r = w / MASK_WORDS, block = (rank * MASK_WORDS + w % MASK_WORDS) * 8;
        Draw draw = {};
        if (row + r < by.rows) draw = by.draws[row + r];
        u32 word = draw.drawn ? 0 : FULL;
#pragma unroll
        for (u32 n = 0; n < 8; n++) word |= kept(draw, by.site, by.threshold, block + n) << 4 * n;
        shared.masks[r][w % MASK_WORDS] = word;
    }
}

// The thread that asks for everything: what is multiplied, and the stream; then takes the results.
__device__ __forceinline__ void copy(const Residual& by, Shared& shared, u32 rank, u32 row) {
    const u32 full_at = shared_at(shared.full), empty_at = shared_at(shared.empty), stream_at = shared_at(&shared.stream_full);
    const u32 steps = (by.depth + DEPTH - 1) / DEPTH, ahead = min(steps, STAGES);
    for (u32 s = 0; s < ahead; s++) { // weights wait for nobody
        expect(full_at + 8 * s, STAGE_BYTES);
        bring(shared_at(shared.stages[s]) + INPUT_BYTES, by.weights, s * DEPTH, rank * OUTPUTS, full_at + 8 * s);
    }
    after_previous();
    u32 stage = 0, parity = 0;
    for (u32 step = 0; step < steps; step++) {
        const u32 to = shared_at(shared.stages[stage]), barrier = full_at + 8 * stage;
        if (step >= STAGES) {
            await(empty_at + 8 * stage, parity ^ 1);
            expect(barrier, STAGE_BYTES);
            bring(to + INPUT_BYTES, by.weights, step * DEPTH, rank * OUTPUTS, barrier);
        }
        bring_eights_to((1 << CLUSTER) - 1, to + rank * (INPUT_BYTES / CLUSTER), by.inputs, step * DEPTH,
                        (row + rank * (ROWS / CLUSTER)) / 8, barrier);
        if (step + 1 == ahead) {
            expect(stream_at, STREAM_BYTES);
            for (u32 b = 0; b < 12; b++)
                bring(shared_at(shared.stream) + b * 8192, by.stream, rank * OUTPUTS + b % 6 * 32, row + b / 6 * 64, stream_at);
        }
        if (++stage == STAGES) { stage = 0; parity ^= 1; }
    }
}

// Where two neighbours of a row of a warpgroup's stream lie: columns 8 j + 2 q and the next.
__device__ __forceinline__ float2* in_stream(u8* stream, u32 row, u32 j, u32 q) {
    return (float2*)(stream + j / 4 * 8192 + row * 128 + ((2 * (j % 4) + q / 2) ^ (row & 7)) * 16 + q % 2 * 8);
}

// The copy engine has put rows 0, 2, 4, 6, 1, 3, 5, 7 of eight in this order, so that the rows of half a warp lie in different
// banks of the stream's tile.
__device__ __forceinline__ u32 of_eight(u32 place) { return place % 4 * 2 + place / 4; }

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    residual_768(const __grid_constant__ Residual by) {
    extern __shared__ __align__(1024) u8 memory[];
    Shared& shared = *(Shared*)memory;
    const u32 full_at = shared_at(shared.full), empty_at = shared_at(shared.empty), stream_at = shared_at(&shared.stream_full);
    const u32 rank = blockIdx.x % CLUSTER, row = blockIdx.x / CLUSTER * ROWS, warpgroup = threadIdx.x / 128;
    const u32 lane = threadIdx.x % 32, q = lane % 4;
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; s++) {
            set_up(full_at + 8 * s, 1);
            set_up(empty_at + 8 * s, 8 * CLUSTER); // every warp that multiplies, of all blocks
        }
        set_up(stream_at, 1);
        show_barriers();
    }
    meet_cluster();
    let_next_start();
    u8* const normed = shared.stages[0]; // when nobody reads stages any more
    if (threadIdx.x >= MULTIPLIERS) {
        fewer_registers<72>();
        if (threadIdx.x >= THREADS - DRAWERS) {
            prepare(by, shared, rank, row);
            arrive(PREPARED, MULTIPLIERS + DRAWERS);
            meet_cluster();
            return;
        }
        if (lane == 0) copy(by, shared, rank, row);
        __syncwarp();
        arrive_cluster();
        for (u32 w = 0; w < 2; w++) {
            meet(ADDED(w), 128 + 32);
            for (u32 b = 0; lane == 0 && b < 6; b++)
                take(shared_at(shared.stream) + (6 * w + b) * 8192, by.stream, rank * OUTPUTS + b * 32, row + w * 64);
        }
        wait_cluster();
        for (u32 w = 0; w < 2 && !by.single; w++) {
            meet(NORMED(w), 128 + 32);
            for (u32 b = 0; lane == 0 && b < 3; b++)
                take(shared_at(normed) + (3 * w + b) * 8192, by.out, rank * OUTPUTS + b * 64, row + w * 64);
        }
        after_copies();
        copies_read();
        return;
    }

    more_registers<184>();
    // Rows `mine` and `mine + 8` of the warpgroup: elements 4 j + 2 h and the next are columns 8 j + 2 q and the next of row h.
    const u32 mine = threadIdx.x / 32 % 4 * 16 + of_eight(lane / 4), above = warpgroup * 64 + mine;
    u8* stream = shared.stream + warpgroup * (STREAM_BYTES / 2);
    float keep[2] = {1.0f, 1.0f};
    if (by.draws) {
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (row + above + 8 * h < by.rows && by.draws[row + above + 8 * h].drawn) keep[h] = by.keep;
    }
    float d[96];
    const u32 steps = (by.depth + DEPTH - 1) / DEPTH;
    u32 stage = 0, parity = 0, before = 0;
    for (u32 step = 0; step < steps; step++) {
        await(full_at + 8 * stage, parity);
        const u32 from = shared_at(shared.stages[stage]);
        const u64 a = described(from + warpgroup * 64 * DEPTH * 2), b = described(from + INPUT_BYTES);
        before_products();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) multiply(d, a + 2 * k, b + 2 * k, step > 0 || k > 0); // 32 bytes on
        after_products();
        multiplied<1>();
        if (step > 0 && lane == 0) release<CLUSTER>(empty_at + 8 * before);
        before = stage;
        if (++stage == STAGES) { stage = 0; parity ^= 1; }
    }
    multiplied<0>();
#pragma unroll
    for (int i = 0; i < 96; i++) asm volatile("" : "+f"(d[i])); // read from here on, not before

    meet(PREPARED, MULTIPLIERS + DRAWERS);
    await(stream_at, 0);
    float sum[2] = {};
#pragma unroll
    for (int w = 0; w < MASK_WORDS; w++) {
        u32 masks[2] = {FULL, FULL};
        if (by.draws) {
#pragma unroll
            for (int h = 0; h < 2; h++) masks[h] = shared.masks[above + 8 * h][w] >> 2 * q;
        }
#pragma unroll
        for (int j = 4 * w; j < 4 * w + 4; j++) {
            const float2 b = ((const float2*)shared.bias)[4 * j + q];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float2 *at = in_stream(stream, mine + 8 * h, j, q), x = *at;
                x.x += masks[h] >> 8 * (j % 4) & 1 ? (d[4 * j + 2 * h] + b.x) * keep[h] : 0.0f;
                x.y += masks[h] >> 8 * (j % 4) & 2 ? (d[4 * j + 2 * h + 1] + b.y) * keep[h] : 0.0f;
                *at = x;
                d[4 * j + 2 * h] = x.x;
                d[4 * j + 2 * h + 1] = x.y;
                sum[h] += x.x + x.y;
            }
        }
    }
    show_copies();
    arrive(ADDED(warpgroup), 128 + 32);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] += __shfl_xor_sync(FULL, sum[h], 1);
        sum[h] += __shfl_xor_sync(FULL, sum[h], 2);
        const float mean = by.shift ? sum[h] * (1.0f / OUTPUTS) : 0.0f;
        float spread = 0.0f;
#pragma unroll
        for (int j = 0; j < 24; j++) {
            const float x = d[4 * j + 2 * h] - mean, y = d[4 * j + 2 * h + 1] - mean;
            spread += x * x + y * y;
        }
        spread += __shfl_xor_sync(FULL, spread, 1);
        spread += __shfl_xor_sync(FULL, spread, 2);
        put(shared_at(&shared.parts[rank][above + 8 * h]), q, make_float2(mean, spread)); // each lane tells one block
    }
    arrive_cluster();
    wait_cluster();

    float mean[2], inverse[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float2 part[CLUSTER];
        float sum = 0.0f, spread = 0.0f;
#pragma unroll
        for (int b = 0; b < CLUSTER; b++) sum += (part[b] = shared.parts[b][above + 8 * h]).x;
        mean[h] = sum * (1.0f / CLUSTER);
#pragma unroll
        for (int b = 0; b < CLUSTER; b++) {
            const float far = part[b].x - mean[h];
            spread += part[b].y + OUTPUTS * far * far;
        }
        inverse[h] = 1.0f / sqrtf(spread * (1.0f / (CLUSTER * OUTPUTS)) + by.eps);
    }
#pragma unroll
    for (int j = 0; j < 24; j++) {
        const float2 g = ((const float2*)shared.scale)[4 * j + q], s = ((const float2*)shared.shift)[4 * j + q];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            d[4 * j + 2 * h] = (d[4 * j + 2 * h] - mean[h]) * inverse[h] * g.x + s.x;
            d[4 * j + 2 * h + 1] = (d[4 * j + 2 * h + 1] - mean[h]) * inverse[h] * g.y + s.y;
        }
    }
    if (by.single) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 r = row + above + 8 * h;
            float2* out = (float2*)(by.single + (u64)r * (CLUSTER * OUTPUTS) + rank * OUTPUTS) + q;
#pragma unroll
            for (int j = 0; j < 24; j++)
                if (r < by.rows) out[4 * j] = make_float2(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
        }
        return;
    }
    // Pieces of 8 x 8, two above each other and two beside each other, permuted as the copy engine expects them.
    const u32 r = threadIdx.x / 32 % 4 * 16 + lane / 8 % 2 * 8 + of_eight(lane % 8);
    const u32 to = shared_at(normed) + warpgroup * 3 * 8192 + r * 128;
#pragma unroll
    for (int j = 0; j < 24; j += 2) {
        const u32 piece = j + lane / 16;
        put_pieces(to + piece / 8 * 8192 + ((piece % 8) ^ (r & 7)) * 16, pack(d[4 * j], d[4 * j + 1]), pack(d[4 * j + 2], d[4 * j + 3]),
                   pack(d[4 * j + 4], d[4 * j + 5]), pack(d[4 * j + 6], d[4 * j + 7]));
    }
    show_copies();
    arrive(NORMED(warpgroup), 128 + 32);
}

#else
extern "C" __global__ void residual_768(const __grid_constant__ Residual by) {}
#endif
