// Rows picked from tables. Bound by memory: each picked row is read once and written once, four numbers at a time. A block a row.

#define PARTS 16

// Matrices whose rows are counted through; part p begins with row `first[p]`.
struct Parts {
    const void* at[PARTS];
    u64 first[PARTS];
};

// out[r] = row picked[r * apart] of the parts
extern "C" __global__ void gather(const u32* picked, u32 apart, void* out, int out_type, int type, u32 cols, u32 parts,
                                  const __grid_constant__ Parts of) {
    after_previous(); // which rows are picked may be what it finds
    const u64 row = blockIdx.x, from = picked[row * apart];
    u32 part = 0;
    while (part + 1 < parts && from >= of.first[part + 1]) part++;
    const u64 at = (from - of.first[part]) * cols;
    for (u32 c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
        const int left = (int)(cols - c);
        store4(out, out_type, row * cols + c, left, load4(of.at[part], type, at + c, left));
    }
}

// to[picked[r]] += x[r]; rows that share a place add up.
extern "C" __global__ void scatter_add(const void* x, int type, const u32* picked, float* to, u32 cols) {
    const u64 row = blockIdx.x;
    for (u32 c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
        const int left = (int)(cols - c);
        add4(to + (u64)picked[row] * cols + c, left, load4(x, type, row * cols + c, left));
    }
}
