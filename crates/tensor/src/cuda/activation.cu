// Element-wise functions. Memory-bound: each element is read once and written once, four at a time.

__device__ __forceinline__ float gelu_tanh(float x) {
    // 0.5 (1 + tanh u) = 1 / (1 + e^-2u), without cancellation.
    float u = 0.79788456f * fmaf(0.044715f * x * x, x, x);
    return x / (1.0f + expf(-2.0f * u));
}

__device__ __forceinline__ float gelu_erf(float x) {
    return 0.5f * x * (1.0f + erff(x * 0.70710678f));
}

__device__ __forceinline__ float apply_activation(float x, int activation) {
    return activation == 1 ? gelu_tanh(x) : activation == 2 ? gelu_erf(x) : x;
}

// x = activation(x + bias), in place; bias may be null.
extern "C" __global__ void bias_activation(void* x, int type, const float* bias, int activation,
                                           u64 count, u32 cols) {
    const u64 at = 4 * ((u64)blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= count) return;
    const int left = (int)(count - at < 4 ? count - at : 4);
    float4 v = load4(x, type, at, left);
    if (bias) {
        u32 c = (u32)(at % cols);
        v.x += bias[c];
        c = c + 1 == cols ? 0 : c + 1;
        v.y += bias[c];
        c = c + 1 == cols ? 0 : c + 1;
        v.z += bias[c];
        c = c + 1 == cols ? 0 : c + 1;
        v.w += bias[c];
    }
    v.x = apply_activation(v.x, activation);
    v.y = apply_activation(v.y, activation);
    v.z = apply_activation(v.z, activation);
    v.w = apply_activation(v.w, activation);
    store4(x, type, at, left, v);
}

__device__ __forceinline__ float activation_derivative(float x, int activation) {
    if (activation == 1) {
        const float u = 0.79788456f * fmaf(0.044715f * x * x, x, x),
                    sigmoid = 1.0f / (1.0f + expf(-2.0f * u));
        return fmaf(2.0f * x * 0.79788456f * fmaf(0.134145f * x, x, 1.0f) * sigmoid, 1.0f - sigmoid,
                    sigmoid);
    }
    if (activation == 2)
        return fmaf(0.39894228f * x, expf(-0.5f * x * x), 0.5f * (1.0f + erff(x * 0.70710678f)));
    return 1.0f;
}

// out = activation(x); the two may have different dtypes.
extern "C" __global__ void activate(const void* x, int type, int activation, void* out,
                                    int out_type, u64 count) {
    const u64 at = 4 * ((u64)blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= count) return;
    const int left = (int)(count - at < 4 ? count - at : 4);
    const float4 v = load4(x, type, at, left);
    store4(out, out_type, at, left,
           make_float4(apply_activation(v.x, activation), apply_activation(v.y, activation),
                       apply_activation(v.z, activation), apply_activation(v.w, activation)));
}

// dx = dy * activation'(x)
extern "C" __global__ void activate_backward(const void* x, int type, int activation,
                                             const void* dy, int dy_type, void* dx, int dx_type,
                                             u64 count) {
    const u64 at = 4 * ((u64)blockIdx.x * blockDim.x + threadIdx.x);
    if (at >= count) return;
    const int left = (int)(count - at < 4 ? count - at : 4);
    const float4 v = load4(x, type, at, left), d = load4(dy, dy_type, at, left);
    store4(dx, dx_type, at, left,
           make_float4(d.x * activation_derivative(v.x, activation),
                       d.y * activation_derivative(v.y, activation),
                       d.z * activation_derivative(v.z, activation),
                       d.w * activation_derivative(v.w, activation)));
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

__device__ __forceinline__ u32 swiglu2(u32 g, u32 u) {
    return pack_bf16(silu(low_half(g)) * low_half(u), silu(high_half(g)) * high_half(u));
}

// out[r, c] = silu(x[r, c]) * x[r, n + c]; one block per row.
extern "C" __global__ void __launch_bounds__(256)
    swiglu(const void* x, int type, void* out, u32 n) {
    const u64 row = blockIdx.x;
    if (type == BF16 && n % 8 == 0) {
        const uint4* gates = (const uint4*)((const u16*)x + row * 2 * n);
        uint4* to = (uint4*)((u16*)out + row * n);
        for (u32 i = threadIdx.x; i < n / 8; i += blockDim.x) {
            const uint4 g = gates[i], u = gates[n / 8 + i];
            to[i] = make_uint4(swiglu2(g.x, u.x), swiglu2(g.y, u.y), swiglu2(g.z, u.z),
                               swiglu2(g.w, u.w));
        }
        return;
    }
    for (u32 c = 4 * threadIdx.x; c < n; c += 4 * blockDim.x) {
        const int left = (int)(n - c);
        float4 g = load4(x, type, row * 2 * n + c, left),
               u = load4(x, type, row * 2 * n + n + c, left);
        store4(out, type, row * n + c, left,
               make_float4(silu(g.x) * u.x, silu(g.y) * u.y, silu(g.z) * u.z, silu(g.w) * u.w));
    }
}

__device__ __forceinline__ float silu_derivative(float x) {
    const float sigmoid = 1.0f / (1.0f + expf(-x));
    return fmaf(x * sigmoid, 1.0f - sigmoid, sigmoid);
}

// dx (rows, 2n) from x (rows, 2n) and dy (rows, n); one block per row.
extern "C" __global__ void __launch_bounds__(256)
    swiglu_backward(const void* x, int type, const void* dy, int dy_type, void* dx, int dx_type,
                    u32 n) {
    const u64 row = blockIdx.x;
    for (u32 c = 4 * threadIdx.x; c < n; c += 4 * blockDim.x) {
        const int left = (int)(n - c);
        const float4 g = load4(x, type, row * 2 * n + c, left),
                     u = load4(x, type, row * 2 * n + n + c, left);
        const float4 d = load4(dy, dy_type, row * n + c, left);
        store4(dx, dx_type, row * 2 * n + c, left,
               make_float4(d.x * u.x * silu_derivative(g.x), d.y * u.y * silu_derivative(g.y),
                           d.z * u.z * silu_derivative(g.z), d.w * u.w * silu_derivative(g.w)));
        store4(dx, dx_type, row * 2 * n + n + c, left,
               make_float4(d.x * silu(g.x), d.y * silu(g.y), d.z * silu(g.z), d.w * silu(g.w)));
    }
}

// out = by * x; the two may have different dtypes.
extern "C" __global__ void scale(const void* x, int type, void* out, int out_type, float by,
                                 u64 count) {
    const u64 at = 4 * ((u64)blockIdx.x * blockDim.x + threadIdx.x);
    griddep_wait();
    if (at >= count) return;
    const int left = (int)(count - at < 4 ? count - at : 4);
    float4 v = load4(x, type, at, left);
    store4(out, out_type, at, left, make_float4(by * v.x, by * v.y, by * v.z, by * v.w));
}

// out (cols, rows) = x (rows, cols), in tiles of 32 x 32 through shared memory, so that both
// accesses are coalesced.
extern "C" __global__ void transpose(const float* x, void* out, int out_type, u32 rows, u32 cols) {
    __shared__ float tile[32][33];
    u32 c = blockIdx.x * 32 + threadIdx.x % 32;
    for (u32 i = threadIdx.x / 32; i < 32; i += blockDim.x / 32) {
        u32 r = blockIdx.y * 32 + i;
        if (r < rows && c < cols) tile[i][threadIdx.x % 32] = x[(u64)r * cols + c];
    }
    __syncthreads();
    u32 r = blockIdx.y * 32 + threadIdx.x % 32;
    for (u32 i = threadIdx.x / 32; i < 32; i += blockDim.x / 32) {
        u32 k = blockIdx.x * 32 + i;
        if (r < rows && k < cols)
            store1(out, out_type, (u64)k * rows + r, tile[threadIdx.x % 32][i]);
    }
}
