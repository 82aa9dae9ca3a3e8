// Gaussian noise on thoughts: Box-Muller in double precision on Philox's words, as in rng.rs.
//
// Bound by double-precision logarithms and sines, four normals per thread. Kept simple: the decoder
// pass of a thought takes thousands of times as many operations.

__device__ __forceinline__ void box_muller(u32 a, u32 b, double* x, double* y) {
    double radius = sqrt(-2.0 * log(((double)a + 0.5) / 4294967296.0)), s, c;
    sincos(6.283185307179586 * (double)b / 4294967296.0, &s, &c);
    *x = radius * c;
    *y = radius * s;
}

// One block per row.
extern "C" __global__ void add_noise(float* x, const RowPerturbation* rows, u32 site, u32 cols) {
    const RowPerturbation perturbation = rows[blockIdx.x];
    if (!is_perturbed(perturbation, site)) return;
    const double std = perturbation.scale;
    float* row = x + (u64)blockIdx.x * cols;
    for (u32 block = threadIdx.x; 4 * block < cols; block += blockDim.x) {
        uint4 w = bits(perturbation, site, block);
        double n[4];
        box_muller(w.x, w.y, &n[0], &n[1]);
        box_muller(w.z, w.w, &n[2], &n[3]);
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            if (4 * block + j < cols) row[4 * block + j] += (float)(std * n[j]);
    }
}
