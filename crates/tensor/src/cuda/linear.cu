// The bias gradient of a linear map.

#define ROW_LANES 8

// out[c] += the sum of column c. A block takes 128 columns (four per thread) of a share of the
// rows, eight rows at a time, and adds its partial sums once. Memory-bound: each element is read
// once.
extern "C" __global__ void __launch_bounds__(256)
    column_sums(const void* x, int type, u32 stride, u32 rows, u32 cols, float* out) {
    __shared__ float4 sums[ROW_LANES][32];
    const u32 lane = threadIdx.x % 32, row_lane = threadIdx.x / 32, c = blockIdx.x * 128 + 4 * lane;
    const int left = c < cols ? (int)(cols - c) : 0;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (left > 0) {
#pragma unroll 8
        for (u32 r = blockIdx.y * ROW_LANES + row_lane; r < rows; r += gridDim.y * ROW_LANES) {
            const float4 v = load4(x, type, (u64)r * stride + c, left);
            sum.x += v.x;
            sum.y += v.y;
            sum.z += v.z;
            sum.w += v.w;
        }
    }
    sums[row_lane][lane] = sum;
    __syncthreads();
    if (row_lane > 0 || left <= 0) return;
#pragma unroll
    for (int w = 1; w < ROW_LANES; w++) {
        const float4 v = sums[w][lane];
        sum.x += v.x;
        sum.y += v.y;
        sum.z += v.z;
        sum.w += v.w;
    }
    add4(out + c, left, sum);
}
