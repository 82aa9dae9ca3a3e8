// A GEMM of bf16 operands whose results do not depend on the number of rows: out[m, n] = sum over k
// of x[m, k] w[n, k]. An element is the sum of its products in f32, 16 at a time in the order of k,
// for every shape: no split along k, one tile size. Deterministic devices use it where the Hopper
// GEMM does not apply.
//
// A block computes 128 x 128 results, each of its eight warps 32 x 64 of them with mma. Operands
// are loaded through two stages of shared memory by cp.async. Bound by shared memory.

#define TILE 128
#define DEPTH 32
#define STRIDE (DEPTH + 8)  // elements of a row in shared memory: eight rows are in different banks
#define THREADS 256

// Copies TILE rows and DEPTH columns from (first, k0) on; zeros beyond the matrix. Rows that are
// not whole vectors of 16 bytes are copied element by element.
__device__ __forceinline__ void fetch_tile(u16* to, const u16* from, u64 stride, u32 first,
                                           u32 rows, u32 k0, u32 depth) {
    const bool whole = depth % 8 == 0 && stride % 8 == 0;
    for (u32 i = threadIdx.x; i < TILE * DEPTH / 8; i += THREADS) {
        const u32 r = i / (DEPTH / 8), c = i % (DEPTH / 8) * 8;
        const bool inside = first + r < rows && k0 + c < depth;
        const u16* at = from + (inside ? (first + r) * stride + k0 + c : 0);
        u16* there = to + r * STRIDE + c;
        if (whole) cp_async16(there, at, inside);
        else
            for (u32 e = 0; e < 8; e++) there[e] = inside && k0 + c + e < depth ? at[e] : 0;
    }
}

// x (rows, inputs), w (outputs, inputs) and out (rows, outputs) of f32 or bf16, each with a stride.
// The bias (outputs), which may be null, has out's dtype.
extern "C" __global__ void __launch_bounds__(THREADS)
    mma_gemm(const u16* x, u64 x_stride, const u16* w, u64 w_stride, const void* bias, void* out,
             int type, u64 out_stride, int accumulate, u32 rows, u32 outputs, u32 inputs) {
    __shared__ __align__(16) u16 xs[2][TILE * STRIDE], ws[2][TILE * STRIDE];
    const u32 m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, m = warp / 2 * 32,
              n = warp % 2 * 64;
    const u32 steps = (inputs + DEPTH - 1) / DEPTH;
    float d[2][8][4] = {};
    auto fetch = [&](u32 step) {
        if (step < steps) {
            fetch_tile(xs[step % 2], x, x_stride, m0, rows, step * DEPTH, inputs);
            fetch_tile(ws[step % 2], w, w_stride, n0, outputs, step * DEPTH, inputs);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    fetch(0);
    for (u32 step = 0; step < steps; step++) {
        fetch(step + 1);
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        const u16 *xt = xs[step % 2], *wt = ws[step % 2];
#pragma unroll
        for (u32 k = 0; k < DEPTH; k += 16) {
            u32 a[2][4];
#pragma unroll
            for (u32 i = 0; i < 2; i++)
                ldmatrix_x4(a[i], xt + (m + 16 * i + lane % 16) * STRIDE + k + lane / 16 * 8);
#pragma unroll
            for (u32 j = 0; j < 8; j += 2) {
                u32 b[4];
                ldmatrix_x4(b, wt + (n + 8 * j + lane / 16 * 8 + lane % 8) * STRIDE + k +
                                   lane / 8 % 2 * 8);
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    mma_m16n8k16(d[i][j], a[i], b[0], b[1]);
                    mma_m16n8k16(d[i][j + 1], a[i], b[2], b[3]);
                }
            }
        }
        __syncthreads();  // the stage is free
    }
    // Elements 2 h and the next of a product are columns 2 (lane % 4) and the next of row lane / 4
    // + 8 h.
#pragma unroll
    for (u32 i = 0; i < 2; i++)
#pragma unroll
        for (u32 j = 0; j < 8; j++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                const u32 row = m0 + m + 16 * i + lane / 4 + e / 2 * 8,
                          col = n0 + n + 8 * j + 2 * (lane % 4) + e % 2;
                if (row >= rows || col >= outputs) continue;
                const u64 at = row * out_stride + col;
                float sum = d[i][j][e];
                if (bias) sum += load1(bias, type, col);
                if (accumulate) sum += load1(out, type, at);
                store1(out, type, at, sum);
            }
}
