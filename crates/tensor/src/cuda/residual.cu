// Linear map, bias, dropout, addition to the residual stream and norm in one kernel on Hopper,
// which saves separate round trips of the GEMM's result and of the stream through memory. Empty for
// other architectures. Operands are bf16 or, if E4M3 is defined, e4m3 with one scale each
// (fp8.cuh); the normalized rows are bf16, f32, or e4m3 with one scale.
//
// A CTA computes 128 rows by 192 of their 768 outputs: two warpgroups multiply 64 rows each, a
// thread of the third loads their operands and the stream's tile by TMA; before that, the fourth
// helps the first two to sample masks. Two CTAs of different rows and the same outputs form a
// cluster, in which each loads half of the weights and multicasts it to both. Bound by the L2 cache
// while it multiplies, by latency after that.
//
// The four CTAs of a row exchange the mean and the sum of squared deviations of their columns
// through the mailbox (stream.rs), and wait for each other. CUDA guarantees no order in which the
// clusters of a grid start, so a cluster takes its number from a counter as it starts, and the
// number determines its rows and columns. Four consecutive numbers are a group, which contains a
// row's four CTAs. Then nothing waits forever:
//
// * Numbers are assigned in order. At any time all groups except the last started one are complete:
//   their clusters run (both CTAs of a cluster start together), publish without waiting for another
//   cluster, receive the values published by the others of their group, and end.
// * So at most three clusters of a launch wait for one that is not running yet. The others free
//   their SMs for it, and the next cluster that starts takes the missing number. A launch on
//   another stream may hold three more; residual.rs checks that there is room for both and one.
// * The previous kernel does not interfere: all of it has started before this one starts early
//   (PDL). Nor does the next kernel, which starts early only when every CTA of this one has called
//   griddep_launch, after it has taken its number. Therefore two launches of a stream never take
//   numbers at the same time, and the counter, which the last cluster to take a number resets, is
//   ready for the next launch.

#define ROW_CTAS 4
#define STAGES 5
#define BOX_BYTES \
    (64 * 128)  // 64 rows of 32 columns of the stream (f32), or of 64 normalized ones (bf16)
#define STREAM_BYTES (ROWS * OUTPUTS * 4)
#define STREAM_BOXES (STREAM_BYTES / BOX_BYTES)
#define BOXES (STAGE_BYTES / BOX_BYTES)  // per stage
#define MASK_WORDS (OUTPUTS / 32)
#define MMA_THREADS 256  // the first two warpgroups
#define THREADS 512
#define PARAM_THREADS (128 - 32)              // threads of the third that load parameters
#define HELPER_THREADS (PARAM_THREADS + 128)  // and the fourth, which samples masks
#define NUMBER_THREAD (MMA_THREADS + 127)     // of these, one with little other work

// The kernel's parameter: tensor maps, vectors, the shape.
struct __align__(128) ResidualParams {
    u64 inputs[16], weights[16], stream[16], out[16];
    const float *bias, *scale, *shift;     // bias may be null; shift is null for an RMSNorm
    const RowPerturbation* perturbations;  // (rows); null without dropout
    // The normalized rows as f32 or as codes of e4m3, instead of `out`.
    float* out_f32;
    u8* out_codes;
    u32 rows, depth, site;
    float eps;
    float by;           // E4M3: factor that converts sums of codes' products to results
    float out_inverse;  // for codes 1 / their scale, else 1
    // (rows, ROW_CTAS): mean and m2 (sum of squared deviations) of each CTA's columns of a row,
    // each with the number of the launch that published it.
    uint2 (*mailbox)[2];
    u64* counter;  // launches so far << 32 | numbers that clusters of this one have taken
    u64 unused[5];
};

static_assert(sizeof(ResidualParams) == 80 * 8, "as in residual.rs");

#ifdef E4M3
#define KERNEL residual_fp8_768
#else
#define KERNEL residual_768
#endif

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct Shared {
    u8 stages[STAGES][STAGE_BYTES];  // then the stream's tile in the next three, the normalized
                                     // rows in the last two
    u32 masks[ROWS][MASK_WORDS];
    float bias[OUTPUTS], scale[OUTPUTS], shift[OUTPUTS];
    u64 full[STAGES], empty[STAGES], stream_full;
    u64 taken;  // by the cluster, from the counter; in its first CTA
    // The assignment of this CTA. Volatile: the epilogue, which has no register to spare, reads it
    // again where it needs it.
    volatile u32 column_cta, row, launch, unused;

    // A box of the stream's tile, which follows the last of `steps` stages in the ring.
    __device__ __forceinline__ u8* stream(u32 steps, u32 box) {
        return stages[(steps + box / BOXES) % STAGES] + box % BOXES * BOX_BYTES;
    }
};

static_assert(sizeof(Shared) == 210288, "as in residual.rs");

// Named barriers of some warps; threads that only arrive do not wait.
__device__ __forceinline__ void named_barrier_sync(u32 barrier, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(u32 barrier, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Named barriers: parameters and masks are in shared memory; all products are done.
#define PREPARED 1
#define MULTIPLIED 2

// The assignment that follows from a cluster's number: the columns and the first row of this CTA,
// and the launch.
struct Work {
    u32 column_cta, row, launch;

    // After the cluster barrier that follows the taking of the number.
    __device__ __forceinline__ static Work of_cluster(const Shared& shared) {
        u64 taken;
        asm volatile(
            "{\n.reg .b32 there;\n"
            "mapa.shared::cluster.u32 there, %1, 0;\n"
            "ld.shared::cluster.u64 %0, [there];\n}"
            : "=l"(taken)
            : "r"(smem_addr(&shared.taken))
            : "memory");
        const u32 number = (u32)taken;
        // Never 0, the initial value of the mailbox; repeats after 2^31 launches.
        return {number % ROW_CTAS, (number / ROW_CTAS * CLUSTER + blockIdx.x % CLUSTER) * ROWS,
                (u32)(taken >> 32) << 1 | 1};
    }
};

// Resets the counter for the next launch, if the cluster has taken the last number of this one;
// before this CTA lets the next kernel start.
__device__ __forceinline__ void end_numbers(const ResidualParams& params, const Shared& shared) {
    const u32 clusters = gridDim.x / CLUSTER;
    if (blockIdx.x % CLUSTER > 0 || (u32)shared.taken + 1 < clusters) return;
    atomicAdd(params.counter, (1ull << 32) - clusters);
    __threadfence();
}

// The parameters of all rows, which do not depend on the previous kernel.
__device__ __forceinline__ void load_parameters(const ResidualParams& params, Shared& shared,
                                                u32 column_cta) {
    for (u32 c = threadIdx.x - MMA_THREADS - 32; c < OUTPUTS; c += PARAM_THREADS) {
        const u32 at = column_cta * OUTPUTS + c;
        shared.bias[c] = params.bias ? params.bias[at] : 0.0f;
        shared.scale[c] = params.scale[at] * params.out_inverse;
        shared.shift[c] = params.shift ? params.shift[at] * params.out_inverse : 0.0f;
    }
}

// Prefetches the stream's tile into the L2 cache: it is loaded late, and attention has read a lot
// since it was last used.
__device__ __forceinline__ void prefetch_stream(const ResidualParams& params, u32 column_cta,
                                                u32 row, u32 box) {
    if (box < MASK_WORDS * (ROWS / 16))
        tma_prefetch(params.stream, column_cta * OUTPUTS + box % MASK_WORDS * 32,
                     row + box / MASK_WORDS * 16);
}

// Samples two words of a row's masks; three threads share a row. This runs before there are
// operands to multiply, because wgmma's register traffic slows everything else down.
static_assert(ROWS * MASK_WORDS / 2 == THREADS - 128, "a sampler for every two words");
__device__ __forceinline__ void sample_masks(const ResidualParams& params, Shared& shared,
                                             u32 column_cta, u32 row, u32 sampler) {
    if (!params.perturbations) return;
    const u32 r = sampler / (MASK_WORDS / 2), first = sampler % (MASK_WORDS / 2) * 2;
    RowPerturbation perturbation = {};
    if (row + r < params.rows) perturbation = params.perturbations[row + r];
    const bool drops = is_perturbed(perturbation, params.site);
#pragma unroll 1
    for (u32 w = first; w < first + 2; w++) {
        u32 word = drops ? 0 : FULL_MASK;
#pragma unroll
        for (u32 n = 0; n < 8; n++)
            word |= keep_bits(perturbation, params.site, (column_cta * MASK_WORDS + w) * 8 + n)
                    << 4 * n;
        shared.masks[r][w] = word;
    }
}

// The producer: loads the operands, then the stream's tile.
__device__ __forceinline__ void load_all(const ResidualParams& params, Shared& shared,
                                         u32 column_cta, u32 row) {
    const u32 full_at = smem_addr(shared.full), empty_at = smem_addr(shared.empty),
              stream_at = smem_addr(&shared.stream_full);
    const u32 steps = (params.depth + DEPTH - 1) / DEPTH, ahead = min(steps, STAGES),
              rank = blockIdx.x % CLUSTER;
    const u32 share = rank * CTA_OUTPUTS, share_at = X_BYTES + share * DEPTH_BYTES,
              output = column_cta * OUTPUTS + share;
    const u16 both = (1 << CLUSTER) - 1;
    prefetch_tensor_map(params.inputs);
    prefetch_tensor_map(params.stream);
    prefetch_tensor_map(params.out);
    for (u32 s = 0; s < ahead; s++) {  // weights do not depend on the previous kernel
        mbarrier_expect_tx(full_at + 8 * s, STAGE_BYTES);
        tma_load_multicast(both, smem_addr(shared.stages[s]) + share_at, params.weights, s * DEPTH,
                           output, full_at + 8 * s);
    }
    griddep_wait();
    u32 stage = 0, parity = 0;
    for (u32 step = 0; step < steps; step++) {
        const u32 to = smem_addr(shared.stages[stage]), barrier = full_at + 8 * stage;
        if (step >= STAGES) {
            mbarrier_wait(empty_at + 8 * stage, parity ^ 1);
            mbarrier_expect_tx(barrier, STAGE_BYTES);
            tma_load_multicast(both, to + share_at, params.weights, step * DEPTH, output, barrier);
        }
        tma_load_interleaved(to, params.inputs, step * DEPTH, row / 8, barrier);
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    mbarrier_expect_tx(stream_at, STREAM_BYTES);
    for (u32 box = 0; box < STREAM_BOXES; box++) {
        if (box % BOXES == 0) {
            mbarrier_wait(empty_at + 8 * stage, parity ^ 1);
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
        const u32 to = smem_addr(shared.stream(steps, box)),
                  column = column_cta * OUTPUTS + box % MASK_WORDS * 32;
        for (u32 r = 0; r < 64; r += 16)
            tma_load(to + r * 128, params.stream, column, row + box / MASK_WORDS * 64 + r,
                     stream_at);
    }
}

// Multiplies this warpgroup's rows.
__device__ __forceinline__ void multiply_all(float (&d)[96], Shared& shared, u32 steps) {
    const u32 full_at = smem_addr(shared.full), empty_at = smem_addr(shared.empty);
    u32 stage = 0, parity = 0, before = 0;
    for (u32 step = 0; step < steps; step++) {
        mbarrier_wait(full_at + 8 * stage, parity);
        const u32 from = smem_addr(shared.stages[stage]);
        const u64 a = wgmma_descriptor(from + threadIdx.x / 128 * 64 * DEPTH_BYTES),
                  b = wgmma_descriptor(from + X_BYTES);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH_BYTES / 32; k++)
            WGMMA(d, a + 2 * k, b + 2 * k, step > 0 || k > 0);  // 32 bytes further
        wgmma_commit();
        wgmma_wait<1>();
        if (step > 0 && threadIdx.x % 32 == 0)
            mbarrier_arrive_cluster<CLUSTER>(empty_at + 8 * before);
        before = stage;
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 96; i++) asm volatile("" : "+f"(d[i]));  // keeps reads of d after the wait
}

// Publishes a value with the launch number in one 8-byte store, which is read in one load, so no
// fence is needed.
__device__ __forceinline__ void publish(uint2* to, float x, u32 launch) {
    const u64 both = (u64)launch << 32 | __float_as_uint(x);
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(both) : "memory");
}

// Polls until this launch has published mean and m2 of one CTA's columns of a row and of the eighth
// row after it. Both are loaded at once, to overlap their latency.
__device__ __forceinline__ void poll(const uint2 (&published)[2], u32 launch, float (&mean)[2],
                                     float (&m2)[2]) {
    u64 words[4];
    do
        asm volatile(
            "ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%4];\n\tld.relaxed.gpu.global.v2.b64 {%2, "
            "%3}, [%4 + %5];"
            : "=l"(words[0]), "=l"(words[1]), "=l"(words[2]), "=l"(words[3])
            : "l"(published), "n"(8 * ROW_CTAS * sizeof(published))
            : "memory");
    while ((u32)(words[0] >> 32) != launch || (u32)(words[1] >> 32) != launch ||
           (u32)(words[2] >> 32) != launch || (u32)(words[3] >> 32) != launch);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        mean[h] = __uint_as_float((u32)words[2 * h]);
        m2[h] = __uint_as_float((u32)words[2 * h + 1]);
    }
}

// The sum over the four lanes of a row, the same in each.
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(FULL_MASK, x, 1);
    return x + __shfl_xor_sync(FULL_MASK, x, 2);
}

// The row of eight that tma_load_interleaved put at this index (0, 2, 4, 6, 1, 3, 5, 7), an order
// in which the rows of half a warp are in different banks of the stream's tile.
__device__ __forceinline__ u32 interleaved_row(u32 index) { return index % 4 * 2 + index / 4; }

// Two consecutive elements of a row of a box of the stream: columns 8 j + 2 q and the next.
__device__ __forceinline__ float2& stream_elements(u8* box, u32 row, u32 j, u32 q) {
    return *(float2*)(box + row * 128 + ((2 * (j % 4) + q / 2) ^ (row & 7)) * 16 + q % 2 * 8);
}

// Bias, dropout, residual and norm. Elements 4 j + 2 h and the next are columns 8 j + 2 q and the
// next of this thread's row h. Products are contracted with sums manually, so that it is the same
// for both rows: a row's bits must not depend on its position.
__device__ __forceinline__ void epilogue(const ResidualParams& params, Shared& shared,
                                         float (&d)[96], const float (&keep)[2]) {
    const u32 warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32,
              q = lane % 4;
    const u32 steps = (params.depth + DEPTH - 1) / DEPTH, above = warpgroup * 64 + warp * 16,
              mine = warp * 16 + interleaved_row(lane / 4);
    auto row_at = [&](u32 h) { return shared.row + warpgroup * 64 + mine + 8 * h; };
#ifdef E4M3
#pragma unroll
    for (int i = 0; i < 96; i++) d[i] *= params.by;  // while the stream's tile is loaded
#endif
    named_barrier_sync(PREPARED, MMA_THREADS + HELPER_THREADS);
    mbarrier_wait(smem_addr(&shared.stream_full), 0);
    float sum[2] = {};
#pragma unroll
    for (int w = 0; w < MASK_WORDS; w++) {
        u8* box = shared.stream(steps, warpgroup * MASK_WORDS + w);
        u32 masks[2] = {FULL_MASK, FULL_MASK};
        if (params.perturbations) {
#pragma unroll
            for (int h = 0; h < 2; h++)
                masks[h] = shared.masks[warpgroup * 64 + mine + 8 * h][w] >> 2 * q;
        }
#pragma unroll
        for (int j = 4 * w; j < 4 * w + 4; j++) {
            const float2 b = ((const float2*)shared.bias)[4 * j + q];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float2 x = stream_elements(box, mine + 8 * h, j, q);
                const float y = (d[4 * j + 2 * h] + b.x) * keep[h],
                            z = (d[4 * j + 2 * h + 1] + b.y) * keep[h];
                d[4 * j + 2 * h] = x.x + (masks[h] >> 8 * (j % 4) & 1 ? y : 0.0f);
                d[4 * j + 2 * h + 1] = x.y + (masks[h] >> 8 * (j % 4) & 2 ? z : 0.0f);
                sum[h] += d[4 * j + 2 * h] + d[4 * j + 2 * h + 1];
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float mean = params.shift ? quad_sum(sum[h]) * (1.0f / OUTPUTS) : 0.0f;
        float m2s[2] = {};
#pragma unroll
        for (int j = 0; j < 24; j++) {
            const float x = d[4 * j + 2 * h] - mean, y = d[4 * j + 2 * h + 1] - mean;
            m2s[j % 2] = fmaf(x, x, fmaf(y, y, m2s[j % 2]));
        }
        const float m2 = quad_sum(m2s[0] + m2s[1]);
        if (q < 2)
            publish(&params.mailbox[(u64)row_at(h) * ROW_CTAS + shared.column_cta][q],
                    q ? m2 : mean, shared.launch);
    }

    // The new stream is stored while the other CTAs' statistics are awaited.
#pragma unroll
    for (int j = 0; j < 24; j++) {
        u8* box = shared.stream(steps, warpgroup * MASK_WORDS + j / 4);
#pragma unroll
        for (int h = 0; h < 2; h++)
            stream_elements(box, mine + 8 * h, j, q) =
                make_float2(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
    }
    fence_async_proxy();
    __syncwarp();
    for (u32 w = 0; lane == 0 && w < MASK_WORDS; w++)
        tma_store(smem_addr(shared.stream(steps, warpgroup * MASK_WORDS + w)) + warp * 16 * 128,
                  params.stream, shared.column_cta * OUTPUTS + w * 32, shared.row + above);
    tma_store_commit();

    named_barrier_sync(MULTIPLIED, MMA_THREADS);
    float cta_mean[2], cta_m2[2], mean[2], inverse[2];  // each lane polls one CTA
    poll(params.mailbox[(u64)row_at(0) * ROW_CTAS + q], shared.launch, cta_mean, cta_m2);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        mean[h] = quad_sum(cta_mean[h]) * (1.0f / ROW_CTAS);
        const float deviation = cta_mean[h] - mean[h],
                    m2 = quad_sum(fmaf(OUTPUTS * deviation, deviation, cta_m2[h]));
        inverse[h] = 1.0f / sqrtf(fmaf(m2, 1.0f / (ROW_CTAS * OUTPUTS), params.eps));
    }
#pragma unroll
    for (int j = 0; j < 24; j++) {
        const float2 g = ((const float2*)shared.scale)[4 * j + q],
                     s = ((const float2*)shared.shift)[4 * j + q];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            d[4 * j + 2 * h] = fmaf((d[4 * j + 2 * h] - mean[h]) * inverse[h], g.x, s.x);
            d[4 * j + 2 * h + 1] = fmaf((d[4 * j + 2 * h + 1] - mean[h]) * inverse[h], g.y, s.y);
        }
    }
    if (params.out_f32) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const bool inside = row_at(h) < params.rows;
            float2* out = (float2*)(params.out_f32 + (u64)row_at(h) * (ROW_CTAS * OUTPUTS) +
                                    shared.column_cta * OUTPUTS) +
                          q;
#pragma unroll
            for (int j = 0; j < 24; j++)
                if (inside) out[4 * j] = make_float2(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
        }
    } else if (params.out_codes) {
        u8* codes = shared.stages[(steps + 3 + warpgroup) % STAGES] + warp * 16 * ROW_BYTES_E4M3;
        stage_codes(codes, [&](int i) { return pack_e4m3(d[2 * i], d[2 * i + 1]); });
        __syncwarp();
        for_staged_codes(codes, [&](u32 r, u32 c, uint4 some) {
            const u32 at = shared.row + above + r / 8 * 8 + interleaved_row(r % 8);
            if (at < params.rows)
                *(uint4*)(params.out_codes + (u64)at * (ROW_CTAS * OUTPUTS) +
                          shared.column_cta * OUTPUTS + c) = some;
        });
    } else {
        // 8 x 8 matrices, two by two, in TMA's 128-byte swizzle.
        const u32 r = warp * 16 + lane / 8 % 2 * 8 + interleaved_row(lane % 8);
        const u32 to = smem_addr(shared.stages[(steps + 3 + warpgroup) % STAGES]);
#pragma unroll
        for (int j = 0; j < 24; j += 2) {
            const u32 piece = j + lane / 16;
            stmatrix_x4(to + piece / 8 * BOX_BYTES + r * 128 + ((piece % 8) ^ (r & 7)) * 16,
                        pack_bf16(d[4 * j], d[4 * j + 1]), pack_bf16(d[4 * j + 2], d[4 * j + 3]),
                        pack_bf16(d[4 * j + 4], d[4 * j + 5]),
                        pack_bf16(d[4 * j + 6], d[4 * j + 7]));
        }
        fence_async_proxy();
        __syncwarp();
        for (u32 b = 0; lane == 0 && b < OUTPUTS / 64; b++)
            tma_store(to + b * BOX_BYTES + warp * 16 * 128, params.out,
                      shared.column_cta * OUTPUTS + b * 64, shared.row + above);
        tma_store_commit();
    }
    tma_store_wait_read();
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
    KERNEL(const __grid_constant__ ResidualParams params) {
    extern __shared__ __align__(1024) u8 memory[];
    Shared& shared = *(Shared*)memory;
    if (threadIdx.x == 0) {
        for (u32 s = 0; s < STAGES; s++) {
            mbarrier_init(smem_addr(shared.full + s), 1);
            mbarrier_init(smem_addr(shared.empty + s),
                          MMA_THREADS / 32 * CLUSTER);  // every consumer warp of both CTAs
        }
        mbarrier_init(smem_addr(&shared.stream_full), 1);
        fence_mbarrier_init();
    }
    if (threadIdx.x == NUMBER_THREAD && blockIdx.x % CLUSTER == 0)
        shared.taken = atomicAdd(params.counter, 1ull);
    __syncwarp();
    if (threadIdx.x >= MMA_THREADS) {
        setmaxnreg_dec<64>();
        const u32 helper = threadIdx.x - MMA_THREADS;
        cluster_sync();
        const Work work = Work::of_cluster(shared);
        if (helper == 0) load_all(params, shared, work.column_cta, work.row);
        if (threadIdx.x == NUMBER_THREAD) {
            shared.column_cta = work.column_cta;
            shared.row = work.row;
            shared.launch = work.launch;
            end_numbers(params, shared);
            griddep_launch();
        }
        if (helper >= 32) {
            if (helper < 128) {
                prefetch_stream(params, work.column_cta, work.row, helper - 32);
                load_parameters(params, shared, work.column_cta);
            } else sample_masks(params, shared, work.column_cta, work.row, threadIdx.x - 128);
            __syncwarp();
            named_barrier_arrive(PREPARED, MMA_THREADS + HELPER_THREADS);
        }
        __syncwarp();
        cluster_sync();
        return;
    }
    setmaxnreg_inc<192>();
    cluster_sync();
    const Work work = Work::of_cluster(shared);
    sample_masks(params, shared, work.column_cta, work.row, threadIdx.x);
    float d[96], keep[2] = {1.0f, 1.0f};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const u32 at =
            work.row + threadIdx.x / 32 * 16 + interleaved_row(threadIdx.x % 32 / 4) + 8 * h;
        if (params.perturbations && at < params.rows &&
            is_perturbed(params.perturbations[at], params.site))
            keep[h] = params.perturbations[at].scale;
    }
    multiply_all(d, shared, (params.depth + DEPTH - 1) / DEPTH);
    cluster_arrive();  // the other CTA may exit once nothing more is sent to it
    epilogue(params, shared, d, keep);
    __syncwarp();
    cluster_wait();
}

#else
extern "C" __global__ void KERNEL(const __grid_constant__ ResidualParams params) {}
#endif
