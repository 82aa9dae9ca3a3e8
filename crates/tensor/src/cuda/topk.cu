// Argmax and top-k of rows of logits.

// Order-preserving bits: they compare as unsigned integers as the floats do.
__device__ __forceinline__ u32 order_preserving(float x) {
    u32 b = __float_as_uint(x);
    return b >> 31 ? ~b : b | 0x80000000u;
}

// A logit and its index as one key: the larger logit wins, then the lower index; NaN is 0, i.e. no
// key.
__device__ __forceinline__ u64 candidate(float x, u32 index) {
    x = x + 0.0f;  // -0 equals 0
    return x != x ? 0ull : (u64)order_preserving(x) << 32 | (u32)~index;
}

__device__ __forceinline__ u64 block_max(u64 best, u64* scratch) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        u64 other = __shfl_xor_sync(FULL_MASK, best, d);
        best = other > best ? other : best;
    }
    __syncthreads();  // the scratch of the last call may still be read
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = best;
    __syncthreads();
    best = scratch[0];
    for (u32 w = 1; w < blockDim.x / 32; w++) best = scratch[w] > best ? scratch[w] : best;
    return best;
}

#define NO_INDEX 0xffffffffu

// words[r] = host_words[r] = index << 32 | log-probability (as bits) of the argmax of logits[r,
// ..cols] + bias; host_words is pinned host memory. Memory-bound: each logit is read once; the sum
// of exponentials is relative to the largest logit so far (online softmax).
extern "C" __global__ void __launch_bounds__(256)
    argmax_rows(const float* logits, u32 stride, u32 cols, const float* bias, u64* words,
                u64* host_words) {
    __shared__ u64 scratch[8];
    __shared__ float sums[8];
    __shared__ float shared_top;
    const float* row = logits + (u64)blockIdx.x * stride;
    float top = -INF, sum = 0.0f;
    u32 at = NO_INDEX;
    griddep_wait();
    // A strict comparison keeps the lowest index, since a thread's columns ascend.
    for (u32 c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
        float4 v = load4(row, F32, c, (int)(cols - c));
        if (bias) {
            float4 b = load4(bias, F32, c, (int)(cols - c));
            v.x += b.x;
            v.y += b.y;
            v.z += b.z;
            v.w += b.w;
        }
        const bool y = c + 1 < cols, z = c + 2 < cols, w = c + 3 < cols;
        const float before = top;
        if (v.x > top || (at == NO_INDEX && v.x == top)) {
            top = v.x;
            at = c;
        }
        if (y && (v.y > top || (at == NO_INDEX && v.y == top))) {
            top = v.y;
            at = c + 1;
        }
        if (z && (v.z > top || (at == NO_INDEX && v.z == top))) {
            top = v.z;
            at = c + 2;
        }
        if (w && (v.w > top || (at == NO_INDEX && v.w == top))) {
            top = v.w;
            at = c + 3;
        }
        // -inf - -inf would be NaN. A NaN logit makes the sum NaN, as it should.
        const float shift = top == -INF ? 0.0f : top;
        if (top > before) sum *= __expf(before - top);
        sum += __expf(v.x - shift) + (y ? __expf(v.y - shift) : 0.0f) +
               (z ? __expf(v.z - shift) : 0.0f) + (w ? __expf(v.w - shift) : 0.0f);
    }
    const u64 mine = at == NO_INDEX ? 0ull : candidate(top, at);
    const u64 best = block_max(mine, scratch);
    if (mine == best) shared_top = top;  // one thread, or all if every logit is NaN: then -INF
    __syncthreads();
    const float largest = shared_top;
    sum = warp_sum(top == -INF ? sum : sum * __expf(top - largest));
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (u32 w = 1; w < blockDim.x / 32; w++) sum += sums[w];
    words[blockIdx.x] = host_words[blockIdx.x] =
        (u64)(best == 0 ? 0u : (u32)~best) << 32 | __float_as_uint(-logf(sum));
}

#define MAX_K 64
#define HELD 4

__device__ __forceinline__ void insert(u64 (&held)[HELD], u64 x) {
    if (x <= held[HELD - 1]) return;
    held[HELD - 1] = x;
#pragma unroll
    for (int i = HELD - 1; i > 0; i--) {
        u64 a = held[i - 1], b = held[i];
        held[i - 1] = a > b ? a : b;
        held[i] = a > b ? b : a;
    }
}

// Standard Gumbel noise for a token, as in rng.rs: in double, so that devices agree after rounding.
__device__ __forceinline__ float gumbel(const RowPerturbation& row, u32 site, u32 token) {
    const uint4 w = bits(row, site, token / 4);
    const u32 word = token % 4 == 0 ? w.x : token % 4 == 1 ? w.y : token % 4 == 2 ? w.z : w.w;
    return (float)-log(-log(((double)word + 0.5) / 4294967296.0));
}

// The top k logits of each row, the softmax over them, and the sum of their table rows weighted by
// it; best[r] is the argmax. Rows that `noise` (if any) perturbs at `site` have Gumbel noise on
// these k logits, and its scale as the temperature. Memory-bound: the logits are read once, while
// each thread keeps the HELD largest of its columns; then k rounds of block-wide maxima. A thread
// rereads its columns only if all of its retained logits were selected.
extern "C" __global__ void __launch_bounds__(512)
    top_k_mixture(const float* logits, u32 stride, u32 cols, const float* bias, u32 k,
                  const RowPerturbation* noise, u32 site, const void* table, int type, u32 width, float* out, u64* best) {
    __shared__ u64 scratch[16];
    __shared__ u64 won[MAX_K];
    __shared__ float weight[MAX_K];
    const float* row = logits + (u64)blockIdx.x * stride;
    griddep_wait();
    u64 held[HELD] = {};  // this thread's largest logits, in descending order
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x)
        insert(held, candidate(row[c] + (bias ? bias[c] : 0.0f), c));
    u32 count = 0;
    for (; count < k; count++) {
        u64 top = block_max(held[0], scratch);
        if (top == 0) break;
        if (threadIdx.x == 0) won[count] = top;
        if (top != held[0]) continue;
#pragma unroll
        for (int i = 0; i + 1 < HELD; i++) held[i] = held[i + 1];
        held[HELD - 1] = 0;
        if (held[0] == 0) {  // all of them were selected: find the next in this thread's columns
            for (u32 c = threadIdx.x; c < cols; c += blockDim.x) {
                u64 x = candidate(row[c] + (bias ? bias[c] : 0.0f), c);
                if (x < top) insert(held, x);
            }
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        best[blockIdx.x] = count ? won[0] : ~0ull;  // all NaN: token 0
        const bool noisy = noise && is_perturbed(noise[blockIdx.x], site);
        const float temperature = noisy ? noise[blockIdx.x].scale : 1.0f;
        float total = 0.0f, largest = -INF;
        for (u32 i = 0; i < count; i++) {
            u32 token = ~(u32)won[i];
            weight[i] = row[token] + (bias ? bias[token] : 0.0f);
            if (noisy) weight[i] += gumbel(noise[blockIdx.x], site, token);
            largest = fmaxf(largest, weight[i]);
        }
        for (u32 i = 0; i < count; i++) {
            weight[i] = expf((weight[i] - largest) / temperature);
            total += weight[i];
        }
        for (u32 i = 0; i < count; i++) weight[i] /= total;
    }
    __syncthreads();
    for (u32 c = threadIdx.x; c < width; c += blockDim.x) {
        float sum = 0.0f;
        for (u32 i = 0; i < count; i++)
            sum = fmaf(weight[i], load1(table, type, (u64) ~(u32)won[i] * width + c), sum);
        out[(u64)blockIdx.x * width + c] = sum;
    }
}

// words[r] = host_words[r] = index << 32 | log-probability (as bits) of the argmax of row r, from
// the partials that gemm_argmax writes; host_words is pinned host memory. One warp per row. Bound
// by memory latency, so each lane has nine loads in flight.
extern "C" __global__ void __launch_bounds__(256)
    argmax_partials(const uint4* partials, u32 rows, u32 tiles, u64* words, u64* host_words) {
    griddep_wait();
    const u32 row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float top = -INF, sum = 0.0f;
    u32 at = NO_INDEX;
    for (u32 first = lane; first < tiles; first += 9 * 32) {
        uint4 some[9];
#pragma unroll
        for (int k = 0; k < 9; k++) {
            const u32 i = first + 32 * k;
            some[k] = i < tiles ? partials[(u64)row * tiles + i]
                                : make_uint4(__float_as_uint(-INF), 0, NO_INDEX, 0);
        }
#pragma unroll
        for (int k = 0; k < 9; k++) {
            const uint4 partial = some[k];
            const float x = __uint_as_float(partial.x), s = __uint_as_float(partial.y);
            const float larger = fmaxf(top, x), shift = larger == -INF ? 0.0f : larger;
            // Sums of only -inf and NaN are relative to 0.
            sum = sum * (top == -INF ? 1.0f : __expf(top - shift)) +
                  s * (x == -INF ? 1.0f : __expf(x - shift));
            if (x > top || (x == top && partial.z < at)) at = partial.z;
            top = larger;
        }
    }
    const float largest = warp_max(top);
    sum = warp_sum(sum * (top == -INF ? 1.0f : __expf(top - largest)));
    at = __reduce_min_sync(FULL_MASK, top == largest ? at : NO_INDEX);
    if (lane == 0)
        words[row] = host_words[row] =
            (u64)(at == NO_INDEX ? 0u : at) << 32 | __float_as_uint(-logf(sum));
}
