// Sums and multiples of whole tensors and of their rows. Memory-bound: each element is read once
// and written once, four at a time.

// x += by * y
extern "C" __global__ void add_scaled(float* x, const float* y, float by, u64 count) {
    const u64 at = 4 * ((u64)blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= count) return;
    const int left = (int)(count - at < 4 ? count - at : 4);
    const float4 u = load4(x, F32, at, left), v = load4(y, F32, at, left);
    store4(x, F32, at, left,
           make_float4(fmaf(by, v.x, u.x), fmaf(by, v.y, u.y), fmaf(by, v.z, u.z),
                       fmaf(by, v.w, u.w)));
}

// x[r] *= factors[r]; one block per row.
extern "C" __global__ void scale_rows(float* x, const float* factors, u32 cols) {
    griddep_wait();
    const u64 base = (u64)blockIdx.x * cols;
    const float by = factors[blockIdx.x];
    for (u32 c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
        const int left = (int)(cols - c);
        const float4 v = load4(x, F32, base + c, left);
        store4(x, F32, base + c, left, make_float4(by * v.x, by * v.y, by * v.z, by * v.w));
    }
}
