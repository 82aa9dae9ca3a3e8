// Rows picked from tables. Bound by memory: each picked row is read once and written once, four numbers at a time. A block a row.

// out[r] = table[picked[r * apart]] + positions[places[r]]; `positions` may be null.
extern "C" __global__ void gather(const void* table, int type, const u32* picked, u32 apart, const float* positions,
                                  const u32* places, void* out, int out_type, u32 cols) {
    const u64 row = blockIdx.x, from = picked[row * apart];
    for (u32 c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
        const int left = (int)(cols - c);
        float4 v = load4(table, type, from * cols + c, left);
        if (positions) {
            float4 p = load4(positions, F32, (u64)places[row] * cols + c, left);
            v.x += p.x; v.y += p.y; v.z += p.z; v.w += p.w;
        }
        store4(out, out_type, row * cols + c, left, v);
    }
}

// x[r] += table[picked[r]]
extern "C" __global__ void add_rows(float* x, const float* table, const u32* picked, u32 cols) {
    const u64 row = blockIdx.x;
    for (u32 c = 4 * threadIdx.x; c < cols; c += 4 * blockDim.x) {
        const int left = (int)(cols - c);
        float4 v = load4(x, F32, row * cols + c, left), p = load4(table, F32, (u64)picked[row] * cols + c, left);
        store4(x, F32, row * cols + c, left, make_float4(v.x + p.x, v.y + p.y, v.z + p.z, v.w + p.w));
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
