// Cross entropy of rows of logits.

__device__ __forceinline__ float block_sum(float x, float* scratch) {
    x = warp_sum(x);
    __syncthreads();  // the scratch of the last call may still be read
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0.0f;
    for (u32 w = 0; w < blockDim.x / 32; w++) x += scratch[w];
    return x;
}

__device__ __forceinline__ float block_max(float x, float* scratch) {
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = -INF;
    for (u32 w = 0; w < blockDim.x / 32; w++) x = fmaxf(x, scratch[w]);
    return x;
}

// losses[r] = -log softmax(logits[r])[target], out[r] = weight * (softmax - onehot), zeros from
// cols to out_stride. One block per row. Memory-bound: logits are read twice (the second time from
// the cache if the row is short), out is written once.
extern "C" __global__ void __launch_bounds__(512)
    cross_entropy(const float* logits, u32 stride, const u32* targets, const float* weights,
                  float* losses, void* out, int out_type, u32 out_stride, u32 cols) {
    __shared__ float scratch[16];
    const float* row = logits + (u64)blockIdx.x * stride;
    float max = -INF, sum = 0.0f;
    for (u32 c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
        const int left = (int)(cols - c);
        float4 v = load4(logits, F32, (u64)blockIdx.x * stride + c, left);
        if (left < 2) v.y = -INF;
        if (left < 3) v.z = -INF;
        if (left < 4) v.w = -INF;
        const float max4 = fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
        if (max4 > max) {
            sum *= expf(max - max4);
            max = max4;
        }
        if (max > -INF)
            sum += expf(v.x - max) + expf(v.y - max) + expf(v.z - max) + expf(v.w - max);
    }
    const float row_max = block_max(max, scratch);
    const float total = block_sum(max > -INF ? sum * expf(max - row_max) : 0.0f, scratch);
    const u32 target = targets[blockIdx.x];
    const float weight = weights[blockIdx.x], factor = weight / total;
    if (threadIdx.x == 0) losses[blockIdx.x] = row_max + logf(total) - row[target];
    for (u32 c = 4 * threadIdx.x; c < out_stride; c += 4 * blockDim.x) {
        const int left = c < cols ? (int)(cols - c) : 0;
        const float4 v = load4(logits, F32, (u64)blockIdx.x * stride + c, left);
        float4 d;
        d.x = left > 0 ? factor * expf(v.x - row_max) - (c == target ? weight : 0.0f) : 0.0f;
        d.y = left > 1 ? factor * expf(v.y - row_max) - (c + 1 == target ? weight : 0.0f) : 0.0f;
        d.z = left > 2 ? factor * expf(v.z - row_max) - (c + 2 == target ? weight : 0.0f) : 0.0f;
        d.w = left > 3 ? factor * expf(v.w - row_max) - (c + 3 == target ? weight : 0.0f) : 0.0f;
        store4(out, out_type, (u64)blockIdx.x * out_stride + c, (int)(out_stride - c), d);
    }
}
