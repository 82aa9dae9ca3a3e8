// A linear map whose result joins the residual stream, on Hopper: product, bias, dropout, addition and norm in one kernel, so
// that neither the product nor the stream makes a trip of its own through memory. Compiles to nothing for other GPUs.
//
// A block takes 128 rows by 192 of their 768 outputs: two warpgroups multiply 64 rows each, a thread of the third asks the copy
// engine for what they multiply and for the stream's tile; before that, the fourth helps the first two to draw masks. Two blocks
// of other rows and the same outputs are a cluster, in which each brings half of the weights to both. Bound by the L2 cache while
// it multiplies, by waiting after that.
//
// The four blocks that have a row tell each other mean and spread of their part of it through memory. Blocks start in the order
// of their numbers and the four are neighbours, so nobody waits for one that has no place to run.

#define PAIR 2
#define PARTS 4
#define ROWS 128
#define OUTPUTS 192
#define DEPTH 64
#define STAGES 5
#define INPUT_BYTES (ROWS * DEPTH * 2)
#define STAGE_BYTES (INPUT_BYTES + OUTPUTS * DEPTH * 2)
#define BOX_BYTES (64 * 128) // 64 rows of 32 columns of the stream, or of 64 normalised ones
#define STREAM_BYTES (ROWS * OUTPUTS * 4)
#define STREAM_BOXES (STREAM_BYTES / BOX_BYTES)
#define BOXES (STAGE_BYTES / BOX_BYTES) // in a stage
#define MASK_WORDS (OUTPUTS / 32)
#define MULTIPLIERS 256 // threads of the first two warpgroups
#define THREADS 512
#define LOADERS (128 - 32) // threads of the third that bring parameters
#define HELPERS (LOADERS + 128)  // and those of the fourth, which draw masks

// What the host passes, as one parameter: matrices as the copy engine knows them, vectors, shapes.
struct __align__(128) Residual {
    u64 inputs[16], weights[16], stream[16], out[16];
    const float *bias, *scale, *shift; // bias may be absent; without a shift the norm is by the root mean square
    const RowPerturbation* perturbations; // (rows), or none: nothing is dropped
    float* single;                     // the normalised rows in single precision, in place of `out`
    u32 rows, depth, site;
    float eps;
    // (rows, PARTS): mean, and sum of squared distances from it, of each block's part of a row, both beside the number of the
    // kernel that told them.
    uint2 (*parts)[2];
    u64 number;
    u64 unused[7];
};

static_assert(sizeof(Residual) == 80 * 8, "as in residual.rs");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct Shared {
    u8 stages[STAGES][STAGE_BYTES]; // then the stream's tile in the next three, and the normalised rows in the last two
    u32 masks[ROWS][MASK_WORDS];
    float bias[OUTPUTS], scale[OUTPUTS], shift[OUTPUTS];
    u64 full[STAGES], empty[STAGES], stream_full;

    // A box of the stream's tile, which follows the last of so many steps in the ring of stages.
    __device__ __forceinline__ u8* stream(u32 steps, u32 box) {
        return stages[(steps + box / BOXES) % STAGES] + box % BOXES * BOX_BYTES;
    }
};

static_assert(sizeof(Shared) == 210264, "as in residual.rs");

// Threads of some warps wait for each other; those that only arrive do not.
__device__ __forceinline__ void meet(u32 barrier, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Named barriers: parameters and masks are there; nobody multiplies any more.
#define PREPARED 1
#define MULTIPLIED 2

// What all rows need, and does not depend on the kernel before this one.
__device__ __forceinline__ void load_parameters(const Residual& by, Shared& shared, u32 part) {
    for (u32 c = threadIdx.x - MULTIPLIERS - 32; c < OUTPUTS; c += LOADERS) {
        const u32 at = part * OUTPUTS + c;
        shared.bias[c] = by.bias ? by.bias[at] : 0.0f;
        shared.scale[c] = by.scale[at];
        shared.shift[c] = by.shift ? by.shift[at] : 0.0f;
    }
}

// Has the stream's tile in the L2 cache by the time it is asked for, which is late: meanwhile attention has read much else.
__device__ __forceinline__ void foresee_stream(const Residual& by, u32 part, u32 row, u32 box) {
    if (box < MASK_WORDS * (ROWS / 16)) foresee(by.stream, part * OUTPUTS + box % MASK_WORDS * 32, row + box / MASK_WORDS * 16);
}

// A part of the masks: two words of a row, which three threads share. Drawn before there is something to multiply, because
// the tensor cores' traffic with the registers slows everything else down.
static_assert(ROWS * MASK_WORDS / 2 == THREADS - 128, "a drawer for every two words");
__device__ __forceinline__ void draw_masks(const Residual& by, Shared& shared, u32 part, u32 row, u32 drawer) {
    if (!by.perturbations) return;
    const u32 r = drawer / (MASK_WORDS / 2), first = drawer % (MASK_WORDS / 2) * 2;
    RowPerturbation perturbation = {};
    if (row + r < by.rows) perturbation = by.perturbations[row + r];
    const bool drops = is_perturbed(perturbation, by.site);
#pragma unroll 1
    for (u32 w = first; w < first + 2; w++) {
        u32 word = drops ? 0 : FULL;
#pragma unroll
        for (u32 n = 0; n < 8; n++) word |= keep_bits(perturbation, by.site, (part * MASK_WORDS + w) * 8 + n) << 4 * n;
        shared.masks[r][w] = word;
    }
}

// Asks for everything: what is multiplied, then the stream.
__device__ __forceinline__ void bring_all(const Residual& by, Shared& shared, u32 part, u32 row) {
    const u32 full_at = shared_at(shared.full), empty_at = shared_at(shared.empty), stream_at = shared_at(&shared.stream_full);
    const u32 steps = (by.depth + DEPTH - 1) / DEPTH, ahead = min(steps, STAGES), rank = blockIdx.x % PAIR;
    const u32 share = rank * (OUTPUTS / PAIR), share_at = INPUT_BYTES + share * DEPTH * 2, output = part * OUTPUTS + share;
    const u16 both = (1 << PAIR) - 1;
    expect_matrix(by.inputs);
    expect_matrix(by.stream);
    expect_matrix(by.out);
    for (u32 s = 0; s < ahead; s++) { // weights wait for nobody
        expect(full_at + 8 * s, STAGE_BYTES);
        bring_to(both, shared_at(shared.stages[s]) + share_at, by.weights, s * DEPTH, output, full_at + 8 * s);
    }
    after_previous();
    u32 stage = 0, parity = 0;
    for (u32 step = 0; step < steps; step++) {
        const u32 to = shared_at(shared.stages[stage]), barrier = full_at + 8 * stage;
        if (step >= STAGES) {
            await(empty_at + 8 * stage, parity ^ 1);
            expect(barrier, STAGE_BYTES);
            bring_to(both, to + share_at, by.weights, step * DEPTH, output, barrier);
        }
        bring_eights(to, by.inputs, step * DEPTH, row / 8, barrier);
        if (++stage == STAGES) { stage = 0; parity ^= 1; }
    }
    expect(stream_at, STREAM_BYTES);
    for (u32 box = 0; box < STREAM_BOXES; box++) {
        if (box % BOXES == 0) {
            await(empty_at + 8 * stage, parity ^ 1);
            if (++stage == STAGES) { stage = 0; parity ^= 1; }
        }
        const u32 to = shared_at(shared.stream(steps, box)), column = part * OUTPUTS + box % MASK_WORDS * 32;
        for (u32 r = 0; r < 64; r += 16) bring(to + r * 128, by.stream, column, row + box / MASK_WORDS * 64 + r, stream_at);
    }
}

// Adds up the product of this warpgroup's rows.
__device__ __forceinline__ void multiply_all(float (&d)[96], Shared& shared, u32 steps) {
    const u32 full_at = shared_at(shared.full), empty_at = shared_at(shared.empty);
    u32 stage = 0, parity = 0, before = 0;
    for (u32 step = 0; step < steps; step++) {
        await(full_at + 8 * stage, parity);
        const u32 from = shared_at(shared.stages[stage]);
        const u64 a = described(from + threadIdx.x / 128 * 64 * DEPTH * 2), b = described(from + INPUT_BYTES);
        before_products();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) multiply(d, a + 2 * k, b + 2 * k, step > 0 || k > 0); // 32 bytes on
        after_products();
        multiplied<1>();
        if (step > 0 && threadIdx.x % 32 == 0) release<PAIR>(empty_at + 8 * before);
        before = stage;
        if (++stage == STAGES) { stage = 0; parity ^= 1; }
    }
    multiplied<0>();
#pragma unroll
    for (int i = 0; i < 96; i++) asm volatile("" : "+f"(d[i])); // read from here on, not before
}

// Number and kernel in eight bytes that are written and read at once, so nobody needs to fence.
__device__ __forceinline__ void tell(uint2* to, float x, u32 number) {
    const u64 both = (u64)number << 32 | __float_as_uint(x);
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(both) : "memory");
}

// Waits until this kernel has told mean and spread of a part of a row and of the eighth after it. Both are asked for at once:
// memory is far away.
__device__ __forceinline__ void hear(const uint2 (&part)[2], u32 number, float (&mean)[2], float (&spread)[2]) {
    u64 told[4];
    do asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%4];\n\tld.relaxed.gpu.global.v2.b64 {%2, %3}, [%4 + %5];"
                    : "=l"(told[0]), "=l"(told[1]), "=l"(told[2]), "=l"(told[3])
                    : "l"(part), "n"(8 * PARTS * sizeof(part))
                    : "memory");
    while ((u32)(told[0] >> 32) != number || (u32)(told[1] >> 32) != number || (u32)(told[2] >> 32) != number ||
           (u32)(told[3] >> 32) != number);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        mean[h] = __uint_as_float((u32)told[2 * h]);
        spread[h] = __uint_as_float((u32)told[2 * h + 1]);
    }
}

// The same number from all four lanes that have a row.
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(FULL, x, 1);
    return x + __shfl_xor_sync(FULL, x, 2);
}

// The copy engine has put rows 0, 2, 4, 6, 1, 3, 5, 7 of eight in this order, so that the rows of half a warp lie in different
// banks of the stream's tile.
__device__ __forceinline__ u32 of_eight(u32 place) { return place % 4 * 2 + place / 4; }

// Two neighbours of a row of a box of the stream: columns 8 j + 2 q and the next.
__device__ __forceinline__ float2& in_stream(u8* box, u32 row, u32 j, u32 q) {
    return *(float2*)(box + row * 128 + ((2 * (j % 4) + q / 2) ^ (row & 7)) * 16 + q % 2 * 8);
}

// What becomes of the products. Elements 4 j + 2 h and the next are columns 8 j + 2 q and the next of this thread's row h.
__device__ __forceinline__ void finish(const Residual& by, Shared& shared, float (&d)[96], u32 part, u32 row,
                                       const float (&keep)[2]) {
    const u32 warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, q = lane % 4;
    const u32 steps = (by.depth + DEPTH - 1) / DEPTH, above = warpgroup * 64 + warp * 16, mine = warp * 16 + of_eight(lane / 4);
    const u32 rows[2] = {row + warpgroup * 64 + mine, row + warpgroup * 64 + mine + 8}, number = (u32)by.number;
    meet(PREPARED, MULTIPLIERS + HELPERS);
    await(shared_at(&shared.stream_full), 0);
    float sum[2] = {};
#pragma unroll
    for (int w = 0; w < MASK_WORDS; w++) {
        u8* box = shared.stream(steps, warpgroup * MASK_WORDS + w);
        u32 masks[2] = {FULL, FULL};
        if (by.perturbations) {
#pragma unroll
            for (int h = 0; h < 2; h++) masks[h] = shared.masks[warpgroup * 64 + mine + 8 * h][w] >> 2 * q;
        }
#pragma unroll
        for (int j = 4 * w; j < 4 * w + 4; j++) {
            const float2 b = ((const float2*)shared.bias)[4 * j + q];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float2 x = in_stream(box, mine + 8 * h, j, q);
                const float y = (d[4 * j + 2 * h] + b.x) * keep[h], z = (d[4 * j + 2 * h + 1] + b.y) * keep[h];
                d[4 * j + 2 * h] = x.x + (masks[h] >> 8 * (j % 4) & 1 ? y : 0.0f);
                d[4 * j + 2 * h + 1] = x.y + (masks[h] >> 8 * (j % 4) & 2 ? z : 0.0f);
                sum[h] += d[4 * j + 2 * h] + d[4 * j + 2 * h + 1];
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float mean = by.shift ? quad_sum(sum[h]) * (1.0f / OUTPUTS) : 0.0f;
        float spreads[2] = {};
#pragma unroll
        for (int j = 0; j < 24; j++) {
            const float x = d[4 * j + 2 * h] - mean, y = d[4 * j + 2 * h + 1] - mean;
            spreads[j % 2] += x * x + y * y;
        }
        const float spread = quad_sum(spreads[0] + spreads[1]);
        if (q < 2) tell(&by.parts[(u64)rows[h] * PARTS + part][q], q ? spread : mean, number);
    }

    // The new stream goes out while the others are awaited.
#pragma unroll
    for (int j = 0; j < 24; j++) {
        u8* box = shared.stream(steps, warpgroup * MASK_WORDS + j / 4);
#pragma unroll
        for (int h = 0; h < 2; h++) in_stream(box, mine + 8 * h, j, q) = make_float2(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
    }
    show_copies();
    __syncwarp();
    for (u32 w = 0; lane == 0 && w < MASK_WORDS; w++)
        take(shared_at(shared.stream(steps, warpgroup * MASK_WORDS + w)) + warp * 16 * 128, by.stream, part * OUTPUTS + w * 32,
             row + above);
    after_copies();

    meet(MULTIPLIED, MULTIPLIERS);
    float its_mean[2], its_spread[2], mean[2], inverse[2]; // each lane hears one block
    hear(by.parts[(u64)rows[0] * PARTS + q], number, its_mean, its_spread);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        mean[h] = quad_sum(its_mean[h]) * (1.0f / PARTS);
        const float far = its_mean[h] - mean[h], spread = quad_sum(its_spread[h] + OUTPUTS * far * far);
        inverse[h] = 1.0f / sqrtf(spread * (1.0f / (PARTS * OUTPUTS)) + by.eps);
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
            float2* out = (float2*)(by.single + (u64)rows[h] * (PARTS * OUTPUTS) + part * OUTPUTS) + q;
#pragma unroll
            for (int j = 0; j < 24; j++)
                if (rows[h] < by.rows) out[4 * j] = make_float2(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
        }
    } else {
        // Pieces of 8 x 8, two above each other and two beside each other, permuted as the copy engine expects them.
        const u32 r = warp * 16 + lane / 8 % 2 * 8 + of_eight(lane % 8);
        const u32 to = shared_at(shared.stages[(steps + 3 + warpgroup) % STAGES]);
#pragma unroll
        for (int j = 0; j < 24; j += 2) {
            const u32 piece = j + lane / 16;
            put_pieces(to + piece / 8 * BOX_BYTES + r * 128 + ((piece % 8) ^ (r & 7)) * 16, pack(d[4 * j], d[4 * j + 1]),
                       pack(d[4 * j + 2], d[4 * j + 3]), pack(d[4 * j + 4], d[4 * j + 5]), pack(d[4 * j + 6], d[4 * j + 7]));
        }
        show_copies();
        __syncwarp();
        for (u32 b = 0; lane == 0 && b < OUTPUTS / 64; b++)
            take(to + b * BOX_BYTES + warp * 16 * 128, by.out, part * OUTPUTS + b * 64, row + above);
        after_copies();
    }
    copies_read();
}

extern "C" __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(THREADS, 1)
    residual_768(const __grid_constant__ Residual by) {
    extern __shared__ __align__(1024) u8 memory[];
    Shared& shared = *(Shared*)memory;
    const u32 part = blockIdx.x / PAIR % PARTS, row = (blockIdx.x / (PAIR * PARTS) * PAIR + blockIdx.x % PAIR) * ROWS;
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; s++) {
            set_up(shared_at(shared.full + s), 1);
            set_up(shared_at(shared.empty + s), MULTIPLIERS / 32 * PAIR); // every warp that multiplies, of both blocks
        }
        set_up(shared_at(&shared.stream_full), 1);
        show_barriers();
    }
    __syncwarp();
    if (threadIdx.x >= MULTIPLIERS) {
        fewer_registers<64>();
        const u32 helper = threadIdx.x - MULTIPLIERS;
        arrive_cluster();
        if (helper >= 128) draw_masks(by, shared, part, row, threadIdx.x - 128);
        else if (helper >= 32) foresee_stream(by, part, row, helper - 32);
        wait_cluster();
        if (helper == 0) bring_all(by, shared, part, row);
        if (helper >= 32) {
            if (helper < 128) load_parameters(by, shared, part);
            arrive(PREPARED, MULTIPLIERS + HELPERS);
        }
        __syncwarp();
        meet_cluster();
        return;
    }
    more_registers<192>();
    arrive_cluster();
    draw_masks(by, shared, part, row, threadIdx.x);
    wait_cluster();
    let_next_start();
    float d[96], keep[2] = {1.0f, 1.0f};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const u32 at = row + threadIdx.x / 32 * 16 + of_eight(threadIdx.x % 32 / 4) + 8 * h;
        if (by.perturbations && at < by.rows && is_perturbed(by.perturbations[at], by.site)) keep[h] = by.perturbations[at].scale;
    }
    multiply_all(d, shared, (by.depth + DEPTH - 1) / DEPTH);
    arrive_cluster(); // the other block may end when nothing more is sent to it
    finish(by, shared, d, part, row, keep);
    __syncwarp();
    wait_cluster();
}

#else
extern "C" __global__ void residual_768(const __grid_constant__ Residual by) {}
#endif
