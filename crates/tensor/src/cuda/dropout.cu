// Dropout as a separate kernel. Memory-bound. One block per row.

// out = dropout(x); the two may have different dtypes.
extern "C" __global__ void dropout(const void* x, int type, int mask, const void* masks, u32 site,
                                   float keep, void* out, int out_type, u32 cols) {
    const u32 row = blockIdx.x;
    RowPerturbation perturbation = {};
    if (mask == MASK_SAMPLED) perturbation = ((const RowPerturbation*)masks)[row];
    for (u32 c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
        const int left = (int)(cols - c);
        const float4 v = load4(x, type, (u64)row * cols + c, left);
        store4(out, out_type, (u64)row * cols + c, left,
               dropout4(v, mask, masks, site, keep, row, c, cols, perturbation));
    }
}
