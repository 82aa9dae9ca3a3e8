// Losses between vectors: smooth L1 of groups of rows, squared errors of Gaussian samples.
//
// Memory-bound. No atomics: every sum is in a fixed order, so results are the same to the bit.

// The sum over the threads of a block, broadcast to all of them.
__device__ __forceinline__ double block_sum(double x, double* scratch) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(FULL_MASK, x, d);
    __syncthreads();  // the scratch of the last call may still be read
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0.0;
    for (u32 w = 0; w < blockDim.x / 32; w++) x += scratch[w];
    return x;
}

// Smooth L1 in three kernels over groups of `size` elements. The first two have one block per part
// of `share` elements (the last part may be shorter): blockIdx is (part, group).

__device__ __forceinline__ u64 part_end(u32 part, u32 share, u64 size) {
    const u64 end = ((u64)part + 1) * share;
    return end < size ? end : size;
}

// moments[block] = the sum of the part's elements, and that of their squared deviations from the
// part's mean. The second read of the part is from the cache.
extern "C" __global__ void __launch_bounds__(256)
    smooth_l1_moments(const float* teacher, u64 size, u32 share, double2* moments) {
    __shared__ double scratch[8];
    const u64 first = (u64)blockIdx.y * size, start = (u64)blockIdx.x * share,
              end = part_end(blockIdx.x, share, size);
    double sum = 0.0, squares = 0.0;
    for (u64 at = start + 4 * threadIdx.x; at < end; at += 4 * blockDim.x) {
        const float4 v = load4(teacher, F32, first + at, (int)(end - at < 4 ? end - at : 4));
        sum += ((double)v.x + (double)v.y) + ((double)v.z + (double)v.w);
    }
    sum = block_sum(sum, scratch);
    const double mean = sum / (double)(end - start);
    for (u64 at = start + 4 * threadIdx.x; at < end; at += 4 * blockDim.x) {
        const int left = (int)(end - at < 4 ? end - at : 4);
        const float4 v = load4(teacher, F32, first + at, left);
        const double x = v.x - mean, y = left > 1 ? v.y - mean : 0.0,
                     z = left > 2 ? v.z - mean : 0.0, w = left > 3 ? v.w - mean : 0.0;
        squares += x * x + y * y + z * z + w * w;
    }
    squares = block_sum(squares, scratch);
    if (threadIdx.x == 0)
        moments[(u64)blockIdx.y * gridDim.x + blockIdx.x] = make_double2(sum, squares);
}

// The unbiased standard deviation of a group from the moments of its parts; 0 of one element.
__device__ __forceinline__ double standard_deviation(const double2* moments, u32 parts, u32 share,
                                                     u64 size, double* scratch) {
    double sum = 0.0, squares = 0.0;
    for (u32 p = threadIdx.x; p < parts; p += blockDim.x) sum += moments[p].x;
    const double mean = block_sum(sum, scratch) / (double)size;
    for (u32 p = threadIdx.x; p < parts; p += blockDim.x) {
        const double count = (double)(part_end(p, share, size) - (u64)p * share),
                     offset = moments[p].x / count - mean;
        squares += moments[p].y + count * offset * offset;
    }
    return sqrt(block_sum(squares, scratch) / (double)(size > 1 ? size - 1 : 1));
}

// d^2 / 2 up to 1, then |d| - 1/2.
__device__ __forceinline__ float smooth(float d) {
    const float size = fabsf(d), clamped = fminf(size, 1.0f);
    return clamped * fmaf(-0.5f, clamped, size);
}

__device__ __forceinline__ float clamp1(float d) { return fminf(fmaxf(d, -1.0f), 1.0f); }

// dstudent, and sums[block] = the part's share of its group's loss.
extern "C" __global__ void __launch_bounds__(256)
    smooth_l1(const float* student, const float* teacher, u64 size, u32 share,
              const double2* moments, float min_std, float weight, float* dstudent, double* sums) {
    __shared__ double scratch[8];
    const u64 first = (u64)blockIdx.y * size, start = (u64)blockIdx.x * share,
              end = part_end(blockIdx.x, share, size);
    const double std = standard_deviation(moments + (u64)blockIdx.y * gridDim.x, gridDim.x, share,
                                          size, scratch),
                 scale = 1.0 / ((double)size * fmax(std, (double)min_std));
    const float factor = (float)(weight * scale);
    double sum = 0.0;
    for (u64 at = start + 4 * threadIdx.x; at < end; at += 4 * blockDim.x) {
        const int left = (int)(end - at < 4 ? end - at : 4);
        const float4 s = load4(student, F32, first + at, left),
                     t = load4(teacher, F32, first + at, left),
                     d = make_float4(s.x - t.x, s.y - t.y, s.z - t.z, s.w - t.w);
        sum += ((double)smooth(d.x) + (double)smooth(d.y)) +
               ((double)smooth(d.z) + (double)smooth(d.w));
        store4(dstudent, F32, first + at, left,
               make_float4(factor * clamp1(d.x), factor * clamp1(d.y), factor * clamp1(d.z),
                           factor * clamp1(d.w)));
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) sums[(u64)blockIdx.y * gridDim.x + blockIdx.x] = sum * scale;
}

// losses[g] = the sum over the parts of group g; one thread per group.
extern "C" __global__ void smooth_l1_losses(const double* sums, u32 parts, float* losses,
                                            u32 groups) {
    const u32 group = blockIdx.x * blockDim.x + threadIdx.x;
    if (group >= groups) return;
    double sum = 0.0;
    for (u32 p = 0; p < parts; p++) sum += sums[(u64)group * parts + p];
    losses[group] = (float)sum;
}

// With e = mean + exp(log_std) * noise - target: losses[r] = the mean of e^2, dmean = 2 weight e /
// cols, dlog_std = dmean * exp(log_std) * noise. One block per row.
extern "C" __global__ void __launch_bounds__(256)
    gaussian_loss(const float* mean, const float* log_std, const float* noise, const float* target,
                  float weight, float* losses, float* dmean, float* dlog_std, u32 cols) {
    __shared__ double scratch[8];
    const u64 base = (u64)blockIdx.x * cols;
    const float factor = 2.0f * weight / (float)cols;
    double sum = 0.0;
    for (u32 c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
        const int left = (int)(cols - c);
        const float4 m = load4(mean, F32, base + c, left), l = load4(log_std, F32, base + c, left),
                     n = load4(noise, F32, base + c, left), t = load4(target, F32, base + c, left);
        const float4 moved =
            make_float4(expf(l.x) * n.x, expf(l.y) * n.y, expf(l.z) * n.z, expf(l.w) * n.w);
        const float4 e = make_float4(m.x + moved.x - t.x, m.y + moved.y - t.y, m.z + moved.z - t.z,
                                     m.w + moved.w - t.w);
        sum += (double)(e.x * e.x + e.y * e.y + e.z * e.z + e.w * e.w);
        const float4 d = make_float4(factor * e.x, factor * e.y, factor * e.z, factor * e.w);
        store4(dmean, F32, base + c, left, d);
        store4(dlog_std, F32, base + c, left,
               make_float4(d.x * moved.x, d.y * moved.y, d.z * moved.z, d.w * moved.w));
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) losses[blockIdx.x] = (float)(sum / (double)cols);
}
