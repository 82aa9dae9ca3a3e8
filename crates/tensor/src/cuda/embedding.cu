// Gathers and scatters rows. Memory-bound: each row is read once and written once, four elements at
// a time. One block per row.

#define MAX_PARTS 16

// Matrices that are indexed as if they were concatenated; part p starts at row `first[p]`.
struct GatherParts {
    const void* at[MAX_PARTS];
    u64 first[MAX_PARTS];
};

// out[r] = row picked[r * stride] of the parts
extern "C" __global__ void gather(const u32* picked, u32 stride, void* out, int out_type, int type,
                                  u32 cols, u32 parts,
                                  const __grid_constant__ GatherParts sources) {
    griddep_wait();  // the indices may be the previous kernel's result
    const u64 row = blockIdx.x, from = picked[row * stride];
    u32 part = 0;
    while (part + 1 < parts && from >= sources.first[part + 1]) part++;
    const u64 at = (from - sources.first[part]) * cols;
    for (u32 c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
        const int left = (int)(cols - c);
        store4(out, out_type, row * cols + c, left, load4(sources.at[part], type, at + c, left));
    }
}

// to[picked[r]] += x[r]; indices may repeat.
extern "C" __global__ void scatter_add(const void* x, int type, const u32* picked, float* to,
                                       u32 cols) {
    const u64 row = blockIdx.x;
    for (u32 c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
        const int left = (int)(cols - c);
        add4(to + (u64)picked[row] * cols + c, left, load4(x, type, row * cols + c, left));
    }
}
