// The largest elements of rows of logits.

// Bits that compare as the numbers do.
__device__ __forceinline__ u32 ordered(float x) {
    u32 b = __float_as_uint(x);
    return b >> 31 ? ~b : b | 0x80000000u;
}

// A candidate: the larger value wins, then the lower index; 0 is none, which is what not-a-number is.
__device__ __forceinline__ u64 candidate(float x, u32 index) {
    x = x + 0.0f; // -0 equals 0
    return x != x ? 0ull : (u64)ordered(x) << 32 | (u32)~index;
}

__device__ __forceinline__ u64 block_best(u64 best, u64* scratch) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        u64 other = __shfl_xor_sync(FULL, best, d);
        best = other > best ? other : best;
    }
    __syncthreads(); // the scratch may still be read from the call before
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = best;
    __syncthreads();
    best = scratch[0];
    for (u32 w = 1; w < blockDim.x / 32; w++) best = scratch[w] > best ? scratch[w] : best;
    return best;
}

#define NOWHERE 0xffffffffu

// words[r] = told[r] = index << 32 | log-probability (as bits) of the best of logits[r, ..cols] + bias. What is told is the host's.
// Bound by memory: each logit is read once; the sum of exponentials is kept relative to the largest logit so far.
extern "C" __global__ void __launch_bounds__(256) likeliest(const float* logits, u32 stride, u32 cols, const float* bias,
                                                            u64* words, u64* told) {
    __shared__ u64 scratch[8];
    __shared__ float sums[8];
    __shared__ float shared_top;
    const float* row = logits + (u64)blockIdx.x * stride;
    float top = -INF, sum = 0.0f;
    u32 at = NOWHERE;
    after_previous();
    // Strictly greater keeps the lowest index a thread meets; threads meet their columns in ascending order.
    for (u32 c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
        float4 v = load4(row, F32, c, (int)(cols - c));
        if (bias) {
            float4 b = load4(bias, F32, c, (int)(cols - c));
            v.x += b.x; v.y += b.y; v.z += b.z; v.w += b.w;
        }
        const bool y = c + 1 < cols, z = c + 2 < cols, w = c + 3 < cols;
        const float before = top;
        if (v.x > top || (at == NOWHERE && v.x == top)) { top = v.x; at = c; }
        if (y && (v.y > top || (at == NOWHERE && v.y == top))) { top = v.y; at = c + 1; }
        if (z && (v.z > top || (at == NOWHERE && v.z == top))) { top = v.z; at = c + 2; }
        if (w && (v.w > top || (at == NOWHERE && v.w == top))) { top = v.w; at = c + 3; }
        // Negative infinity cannot be subtracted from itself; what is no number spoils the sum, as it should.
        const float shift = top == -INF ? 0.0f : top;
        if (top > before) sum *= __expf(before - top);
        sum += __expf(v.x - shift) + (y ? __expf(v.y - shift) : 0.0f) + (z ? __expf(v.z - shift) : 0.0f) +
               (w ? __expf(v.w - shift) : 0.0f);
    }
    const u64 mine = at == NOWHERE ? 0ull : candidate(top, at);
    const u64 best = block_best(mine, scratch);
    if (mine == best) shared_top = top; // one thread, or all if there is no number: then -INF
    __syncthreads();
    const float largest = shared_top;
    sum = warp_sum(top == -INF ? sum : sum * __expf(top - largest));
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (u32 w = 1; w < blockDim.x / 32; w++) sum += sums[w];
    words[blockIdx.x] = told[blockIdx.x] = (u64)(best == 0 ? 0u : (u32)~best) << 32 | __float_as_uint(-logf(sum));
}

#define MOST 64
#define HELD 4

__device__ __forceinline__ void hold(u64 (&held)[HELD], u64 x) {
    if (x <= held[HELD - 1]) return;
    held[HELD - 1] = x;
#pragma unroll
    for (int i = HELD - 1; i > 0; i--) {
        u64 a = held[i - 1], b = held[i];
        held[i - 1] = a > b ? a : b;
        held[i] = a > b ? b : a;
    }
}

// The k best logits of each row, softmax over them, and the mixture of their table rows; best[r] is the likeliest.
// Bound by memory: one read of the logits, in which each thread holds the best of its strip (1 / blockDim of the row);
// then k rounds over what is held. A thread looks through its strip again only if all that it held has won.
extern "C" __global__ void __launch_bounds__(512) mixture(const float* logits, u32 stride, u32 cols, const float* bias, u32 k,
                                                          const void* table, int type, u32 width, float* out, u64* best) {
    __shared__ u64 scratch[16];
    __shared__ u64 won[MOST];
    __shared__ float weight[MOST];
    const float* row = logits + (u64)blockIdx.x * stride;
    after_previous();
    u64 held[HELD] = {}; // this thread's best, largest first
    for (u32 c = threadIdx.x; c < cols; c += blockDim.x) hold(held, candidate(row[c] + (bias ? bias[c] : 0.0f), c));
    u32 count = 0;
    for (; count < k; count++) {
        u64 top = block_best(held[0], scratch);
        if (top == 0) break;
        if (threadIdx.x == 0) won[count] = top;
        if (top != held[0]) continue;
#pragma unroll
        for (int i = 0; i + 1 < HELD; i++) held[i] = held[i + 1];
        held[HELD - 1] = 0;
        if (held[0] == 0) { // all of them won: what comes next in the strip?
            for (u32 c = threadIdx.x; c < cols; c += blockDim.x) {
                u64 x = candidate(row[c] + (bias ? bias[c] : 0.0f), c);
                if (x < top) hold(held, x);
            }
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        best[blockIdx.x] = count ? won[0] : ~0ull; // no number at all: token 0
        float total = 0.0f, largest = 0.0f;
        for (u32 i = 0; i < count; i++) {
            u32 token = ~(u32)won[i];
            float x = row[token] + (bias ? bias[token] : 0.0f);
            if (i == 0) largest = x;
            weight[i] = expf(x - largest);
            total += weight[i];
        }
        for (u32 i = 0; i < count; i++) weight[i] /= total;
    }
    __syncthreads();
    for (u32 c = threadIdx.x; c < width; c += blockDim.x) {
        float sum = 0.0f;
        for (u32 i = 0; i < count; i++) sum = fmaf(weight[i], load1(table, type, (u64) ~(u32)won[i] * width + c), sum);
        out[(u64)blockIdx.x * width + c] = sum;
    }
}

// words[r] = told[r] = index << 32 | log-probability (as bits) of the best of row r, from its parts, as product.cu leaves them. What
// is told is the host's. A warp a row; bound by the latency of memory, so that a lane has nine parts on their way.
extern "C" __global__ void __launch_bounds__(256) likeliest_whole(const uint4* parts, u32 rows, u32 blocks, u64* words, u64* told) {
    after_previous();
    const u32 row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    float top = -INF, sum = 0.0f;
    u32 at = NOWHERE;
    for (u32 first = lane; first < blocks; first += 9 * 32) {
        uint4 some[9];
#pragma unroll
        for (int k = 0; k < 9; k++) {
            const u32 i = first + 32 * k;
            some[k] = i < blocks ? parts[(u64)row * blocks + i] : make_uint4(__float_as_uint(-INF), 0, NOWHERE, 0);
        }
#pragma unroll
        for (int k = 0; k < 9; k++) {
            const uint4 part = some[k];
            const float x = __uint_as_float(part.x), s = __uint_as_float(part.y);
            const float larger = fmaxf(top, x), shift = larger == -INF ? 0.0f : larger;
            // Sums of nothing but negative infinities and not-a-numbers are relative to 0.
            sum = sum * (top == -INF ? 1.0f : __expf(top - shift)) + s * (x == -INF ? 1.0f : __expf(x - shift));
            if (x > top || (x == top && part.z < at)) at = part.z;
            top = larger;
        }
    }
    const float largest = warp_max(top);
    sum = warp_sum(sum * (top == -INF ? 1.0f : __expf(top - largest)));
    at = __reduce_min_sync(FULL, top == largest ? at : NOWHERE);
    if (lane == 0) words[row] = told[row] = (u64)(at == NOWHERE ? 0u : at) << 32 | __float_as_uint(-logf(sum));
}
