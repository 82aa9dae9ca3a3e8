// Gaussian noise on thoughts: Box-Muller in double precision from Philox's words, as in rng.rs.
//
// Bound by double-precision logarithms and sines: four normals a thread. A thought is noised once, a decoder's pass runs
// thousands of times as many operations, so this is left as plain as its contract.

__device__ __forceinline__ void pair(u32 a, u32 b, double* x, double* y) {
    double radius = sqrt(-2.0 * log(((double)a + 0.5) / 4294967296.0)), s, c;
    sincos(6.283185307179586 * (double)b / 4294967296.0, &s, &c);
    *x = radius * c;
    *y = radius * s;
}

extern "C" __global__ void add_noise(float* x, double std, const Draw* draws, u32 site, u32 rows, u32 cols) {
    const u32 per_row = (cols + 3) / 4;
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 row = i / per_row;
    if (row >= rows || !draws[row].drawn) return;
    const u32 block = (u32)(i % per_row);
    uint4 w = bits(draws[row], site, block);
    double n[4];
    pair(w.x, w.y, &n[0], &n[1]);
    pair(w.z, w.w, &n[2], &n[3]);
    for (u32 j = 0; j < 4 && 4 * block + j < cols; j++) x[row * cols + 4 * block + j] += (float)(std * n[j]);
}
