// GEMM of f32 operands: out[m, n] = sum over k of x[m, k] w[n, k], summed in f64 and rounded once.
// The sum runs over k in order for every shape, so a row's result does not depend on the other
// rows.
//
// A block computes 64 x 64 results, a thread 4 x 4 of them. Operands are converted to f64 when they
// are stored to shared memory: once per tile, not once per product. Bound by f64 FMA, on GPUs with
// slow f64 by a large factor.

#define TILE 64
#define DEPTH 16

// Loads a tile of `TILE` rows and `DEPTH` columns from (first, k0) on; zeros beyond the matrix. A
// transposed matrix is also read along its rows, so that loads stay coalesced.
__device__ __forceinline__ void load_tile(double (&tile)[DEPTH][TILE + 2], const float* from,
                                          u64 stride, int transposed, u32 first, u32 rows, u32 k0,
                                          u32 depth) {
#pragma unroll
    for (u32 i = threadIdx.x; i < TILE * DEPTH; i += 256) {
        const u32 r = transposed ? i % TILE : i / DEPTH, k = transposed ? i / TILE : i % DEPTH;
        const u32 row = first + r, col = k0 + k;
        const u64 at = transposed ? col * stride + row : row * stride + col;
        tile[k][r] = row < rows && col < depth ? (double)from[at] : 0.0;
    }
}

extern "C" __global__ void __launch_bounds__(256)
    f32_gemm(const float* x, u64 x_stride, int x_transposed, const float* w, u64 w_stride,
             int w_transposed, const float* bias, float* out, u64 out_stride, int accumulate,
             u32 rows, u32 outputs, u32 inputs) {
    __shared__ double xs[DEPTH][TILE + 2], ws[DEPTH][TILE + 2];
    const u32 m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;
    const u32 m = threadIdx.x / 16, n = threadIdx.x % 16;
    double sums[4][4] = {};
    for (u32 k0 = 0; k0 < inputs; k0 += DEPTH) {
        load_tile(xs, x, x_stride, x_transposed, m0, rows, k0, inputs);
        load_tile(ws, w, w_stride, w_transposed, n0, outputs, k0, inputs);
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < DEPTH; k++) {
            double a[4], b[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                a[i] = xs[k][m + 16 * i];
                b[i] = ws[k][n + 16 * i];
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) sums[i][j] = fma(a[i], b[j], sums[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u32 row = m0 + m + 16 * i, col = n0 + n + 16 * j;
            if (row >= rows || col >= outputs) continue;
            const u64 at = row * out_stride + col;
            double sum = sums[i][j];
            if (bias) sum += (double)bias[col];
            if (accumulate) sum += (double)out[at];
            out[at] = (float)sum;
        }
}
