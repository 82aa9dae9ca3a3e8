// Token sampling from rows of logits: temperature, then top-p, then the inverse of the cumulative
// distribution in token order at one random number. Specified in ops/sample.rs.
//
// Probability mass is summed in fixed point, so that the order of the additions does not matter: a
// row's token depends only on its logits and its draw. Nothing is sorted. Tokens that are too light
// for the top-p set are excluded while the weights are computed, and the set's lightest weight is
// found by radix selection among the others, eight bits at a time.

#define SAMPLE_WARPS 16
#define SAMPLE_THREADS (32 * SAMPLE_WARPS)
// Candidates of the top-p set in shared memory, per warp; rows with more are read again.
#define WARP_CANDIDATES 256

// DeviceDraw of sample.rs.
struct TokenDraw {
    double uniform;             // in [0, 1)
    float inverse_temperature;  // 0: the argmax
    float top_p;
};

struct Candidate {
    float weight;
    u32 token;
};

// A weight in [0, 1] in fixed point: sums of 2^23 of them fit 64 bits.
__device__ __forceinline__ u64 mass_of(float weight) {
    return __float2ull_rz(weight * 1099511627776.0f);  // 2^40
}

// A row of logits and its candidates. Warp w has the tokens of segment w.
struct SampleRow {
    const float* logits;
    const float* bias;
    float largest, inverse_temperature;
    u32 first, count;             // this warp's segment
    const Candidate* candidates;  // this warp's, in the order of tokens
    u32 held;                     // number of candidates; unused if `stored` is false
    bool stored;                  // whether all candidates of the row are in shared memory

    __device__ __forceinline__ float logit(u32 token) const {
        return logits[token] + (bias ? bias[token] : 0.0f);
    }

    // softmax's numerator; 0 for NaN. Equal logits give 1 even if the scale is infinite.
    __device__ __forceinline__ float weight(float logit) const {
        const float w = logit == largest ? 1.0f : expf((logit - largest) * inverse_temperature);
        return w != w ? 0.0f : w;
    }

    __device__ __forceinline__ u32 items() const { return stored ? held : count; }

    __device__ __forceinline__ Candidate item(u32 i) const {
        if (stored) return candidates[i];
        Candidate one;
        one.token = first + i;
        one.weight = weight(logit(one.token));
        return one;
    }
};

__device__ __forceinline__ u64 warp_sum_mass(u64 x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(FULL_MASK, x, d);
    return x;
}

// Inclusive prefix sum over the lanes of a warp.
__device__ __forceinline__ u64 warp_scan_mass(u64 x) {
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const u64 before = __shfl_up_sync(FULL_MASK, x, d);
        if ((threadIdx.x & 31) >= d) x += before;
    }
    return x;
}

// The lightest weight (as bits) of the smallest set of tokens whose mass is at least `target`, and
// the mass of all heavier ones.
__device__ __forceinline__ void select_threshold(const SampleRow& row, u64 target, u64* histogram,
                                                 u32* threshold, u64* heavier) {
    const u32 lane = threadIdx.x & 31;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (u32 i = threadIdx.x; i < 256; i += SAMPLE_THREADS) histogram[i] = 0;
        __syncthreads();
        const u32 prefix = *threshold;
        for (u32 i = lane; i < row.items(); i += 32) {
            const float weight = row.item(i).weight;
            const u32 bits = __float_as_uint(weight);
            if (shift == 24 || bits >> (shift + 8) == prefix >> (shift + 8))
                atomicAdd(histogram + (bits >> shift & 255), mass_of(weight));
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            // Lane l has the eight digits below 256 - 8 l.
            u64 mine = 0;
            for (u32 i = 0; i < 8; i++) mine += histogram[255 - 8 * lane - i];
            const u64 upto = *heavier + warp_scan_mass(mine);
            const u32 reached = __ballot_sync(FULL_MASK, upto >= target);
            const u32 chosen = reached ? __ffs(reached) - 1 : 31;
            if (lane == chosen) {
                u64 above = upto - mine;
                u32 digit = 255 - 8 * lane;
                for (u32 i = 0; i < 7 && above + histogram[digit] < target; i++)
                    above += histogram[digit--];
                *heavier = above;
                *threshold = prefix | digit << shift;
            }
        }
        __syncthreads();
    }
}

// words[r] = host_words[r] = token << 32 | log-probability (as bits) of the token that draw r
// selects from logits[r, ..cols] + bias; host_words is pinned host memory. One block per row.
// Memory-bound: the logits are read once for their maximum and once for their weights.
extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS)
    sample_rows(const float* logits, u32 stride, u32 cols, const float* bias,
                const TokenDraw* draws, u64* words, u64* host_words) {
    __shared__ Candidate candidates[SAMPLE_WARPS][WARP_CANDIDATES];
    __shared__ u64 histogram[256];
    __shared__ u64 masses[SAMPLE_WARPS];
    __shared__ float tops[SAMPLE_WARPS], sums[SAMPLE_WARPS];
    __shared__ u32 tokens[SAMPLE_WARPS], ties[SAMPLE_WARPS];
    __shared__ u32 threshold, overflow;
    __shared__ u64 heavier;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    griddep_wait();
    const TokenDraw draw = draws[blockIdx.x];
    const u32 segment = (cols + 32 * SAMPLE_WARPS - 1) / (32 * SAMPLE_WARPS) * 32;
    SampleRow row;
    row.logits = logits + (u64)blockIdx.x * stride;
    row.bias = bias;
    row.first = min(cols, warp * segment);
    row.count = min(cols, row.first + segment) - row.first;

    // The argmax, and the sum of exponentials relative to the largest logit so far.
    float top = -INF, sum = 0.0f;
    u32 at = 0xffffffffu;
#pragma unroll 4
    for (u32 i = lane; i < row.count; i += 32) {
        const float x = row.logit(row.first + i);
        if (x > top || (at == 0xffffffffu && x == top)) {
            if (x > top) sum *= top == -INF ? 1.0f : __expf(top - x);
            top = x;
            at = row.first + i;
        }
        sum += __expf(x - (top == -INF ? 0.0f : top));
    }
    float largest = warp_max(top);
    sum = warp_sum(top == -INF ? sum : sum * __expf(top - largest));
    at = __reduce_min_sync(FULL_MASK, top == largest ? at : 0xffffffffu);
    if (lane == 0) {
        tops[warp] = largest;
        sums[warp] = sum;
        tokens[warp] = at;
    }
    if (threadIdx.x == 0) {
        threshold = overflow = 0;
        heavier = 0;
    }
    __syncthreads();
    largest = -INF;
    for (u32 w = 0; w < SAMPLE_WARPS; w++) largest = fmaxf(largest, tops[w]);
    sum = 0.0f;
    u32 token = 0xffffffffu;
    for (u32 w = 0; w < SAMPLE_WARPS; w++) {
        sum += tops[w] == -INF ? sums[w] : sums[w] * __expf(tops[w] - largest);
        if (tops[w] == largest) token = min(token, tokens[w]);
    }
    if (token >= cols) token = 0;  // all NaN
    const float log_sum = logf(sum);
    if (draw.inverse_temperature == 0.0f) {
        if (threadIdx.x == 0)
            words[blockIdx.x] = host_words[blockIdx.x] =
                (u64)token << 32 | __float_as_uint(-log_sum);
        return;
    }

    // All tokens lighter than this together have less than 1 - top_p of the mass: the largest
    // weight is 1.
    row.largest = largest;
    row.inverse_temperature = draw.inverse_temperature;
    const bool cut = draw.top_p < 1.0f;
    const float lightest = 0.99f * (1.0f - draw.top_p) / (float)cols;
    u64 mass = 0;
    u32 held = 0;
#pragma unroll 4
    for (u32 base = 0; base < row.count; base += 32) {
        const u32 i = base + lane;
        const float weight = i < row.count ? row.weight(row.logit(row.first + i)) : 0.0f;
        mass += mass_of(weight);
        if (!cut) continue;
        const u32 heavy = __ballot_sync(FULL_MASK, weight > 0.0f && weight >= lightest);
        const u32 place = held + __popc(heavy & ((1u << lane) - 1));
        if ((heavy >> lane & 1) && place < WARP_CANDIDATES)
            candidates[warp][place] = {weight, row.first + i};
        held += __popc(heavy);
    }
    mass = warp_sum_mass(mass);
    if (lane == 0) {
        masses[warp] = mass;
        if (held > WARP_CANDIDATES) overflow = 1;
    }
    __syncthreads();
    row.candidates = candidates[warp];
    row.held = held;
    row.stored = cut && !overflow;
    u64 total = 0;
    for (u32 w = 0; w < SAMPLE_WARPS; w++) total += masses[w];
    __syncthreads();  // masses are written again

    // Of the tokens as light as the threshold only as many are kept as needed, in token order.
    u32 tied = 0xffffffffu;
    if (cut && total > 0) {
        const u64 target = max(1ull, (u64)ceil((double)draw.top_p * (double)total));
        select_threshold(row, target, histogram, &threshold, &heavier);
        const u64 each = mass_of(__uint_as_float(threshold));
        if (each > 0)
            tied = (u32)min(0xfffffffeull, (target - min(target, heavier) + each - 1) / each);
        u64 above = 0;
        u32 equal = 0;
        for (u32 i = lane; i < row.items(); i += 32) {
            const float weight = row.item(i).weight;
            const u32 bits = __float_as_uint(weight);
            above += bits > threshold ? mass_of(weight) : 0;
            equal += bits == threshold;
        }
        above = warp_sum_mass(above);
        equal = __reduce_add_sync(FULL_MASK, equal);
        if (lane == 0) {
            masses[warp] = above;
            ties[warp] = equal;
        }
    } else if (lane == 0) {
        ties[warp] = 0;
    }
    __syncthreads();

    // Every thread finds the warp whose segment contains the token.
    const u64 each = mass_of(__uint_as_float(threshold));
    u64 kept = 0;
    u32 ties_before = 0;
    for (u32 w = 0; w < SAMPLE_WARPS; w++) {
        kept += masses[w] + min(ties[w], tied - min(tied, ties_before)) * each;
        ties_before += ties[w];
    }
    const u64 target = (u64)(draw.uniform * (double)kept);
    u64 so_far = 0;
    u32 chosen = 0;
    ties_before = 0;
    for (; chosen < SAMPLE_WARPS; chosen++) {
        const u64 here =
            masses[chosen] + min(ties[chosen], tied - min(tied, ties_before)) * each;
        if (so_far + here > target) break;
        so_far += here;
        ties_before += ties[chosen];
    }
    if (total == 0 || chosen == SAMPLE_WARPS) chosen = 0;  // all weights are 0: the argmax
    if (warp != chosen) return;
    for (u32 base = 0; total > 0 && base < row.items(); base += 32) {
        Candidate one = {0.0f, 0};
        if (base + lane < row.items()) one = row.item(base + lane);
        const u32 bits = __float_as_uint(one.weight);
        const bool is_tie = cut && bits == threshold && base + lane < row.items();
        const u32 equal = __ballot_sync(FULL_MASK, is_tie);
        const bool kept_tie = is_tie && ties_before + __popc(equal & ((1u << lane) - 1)) < tied;
        const bool is_kept = cut ? bits > threshold || kept_tie : true;
        const u64 upto = so_far + warp_scan_mass(is_kept ? mass_of(one.weight) : 0);
        const u32 reached = __ballot_sync(FULL_MASK, upto > target);
        if (reached) {
            token = __shfl_sync(FULL_MASK, one.token, __ffs(reached) - 1);
            break;
        }
        so_far = __shfl_sync(FULL_MASK, upto, 31);
        ties_before += __popc(equal);
    }
    if (lane == 0)
        words[blockIdx.x] = host_words[blockIdx.x] =
            (u64)token << 32 | __float_as_uint(row.logit(token) - largest - log_sum);
}
