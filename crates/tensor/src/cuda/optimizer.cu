// AdamW, and squared norms of gradients. Memory-bound.

__device__ __forceinline__ void adamw_step(float& x, float& g, float& m, float& v, float beta1,
                                           float beta2, float eps, float gradient_scale, float keep,
                                           float rate, float second_scale) {
    g *= gradient_scale;
    m = fmaf(beta1, m, (1.0f - beta1) * g);
    v = fmaf(beta2, v, (1.0f - beta2) * g * g);
    x = fmaf(x, keep, -(rate * m / (sqrtf(v) * second_scale + eps)));
}

// One AdamW step of each element; the gradient becomes 0.
extern "C" __global__ void adamw(float* value, float* gradient, float* first, float* second,
                                 u64 count, float beta1, float beta2, float eps,
                                 float gradient_scale, float keep, float rate, float second_scale) {
    const u64 at = 4 * ((u64)blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= count) return;
    const int left = (int)(count - at < 4 ? count - at : 4);
    float4 x = load4(value, F32, at, left), g = load4(gradient, F32, at, left);
    float4 m = load4(first, F32, at, left), v = load4(second, F32, at, left);
    adamw_step(x.x, g.x, m.x, v.x, beta1, beta2, eps, gradient_scale, keep, rate, second_scale);
    adamw_step(x.y, g.y, m.y, v.y, beta1, beta2, eps, gradient_scale, keep, rate, second_scale);
    adamw_step(x.z, g.z, m.z, v.z, beta1, beta2, eps, gradient_scale, keep, rate, second_scale);
    adamw_step(x.w, g.w, m.w, v.w, beta1, beta2, eps, gradient_scale, keep, rate, second_scale);
    store4(value, F32, at, left, x);
    store4(first, F32, at, left, m);
    store4(second, F32, at, left, v);
    store4(gradient, F32, at, left, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
}

// sums[block] = the sum of squares of the block's `share` elements, in double precision and in a
// fixed order.
extern "C" __global__ void __launch_bounds__(256)
    sum_of_squares(const float* x, u64 count, u32 share, double* sums) {
    __shared__ double scratch[8];
    const u64 start = (u64)blockIdx.x * share, end = start + share < count ? start + share : count;
    double sum = 0.0;
    for (u64 at = start + 4 * threadIdx.x; at < end; at += 4 * blockDim.x) {
        const float4 v = load4(x, F32, at, (int)(end - at < 4 ? end - at : 4));
        sum += (double)v.x * v.x + (double)v.y * v.y + (double)v.z * v.z + (double)v.w * v.w;
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(FULL_MASK, sum, d);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (u32 w = 1; w < blockDim.x / 32; w++) sum += scratch[w];
    sums[blockIdx.x] = sum;
}
