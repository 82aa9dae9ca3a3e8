// The tile of hopper_gemm.cu and residual.cu: 128 rows by 192 outputs, whose operands are loaded
// 128 bytes of each row at a time, and the conversion of accumulators to e4m3 codes in memory.
// Operands are bf16 or, if E4M3 is defined, e4m3.

#define CLUSTER 2
#define ROWS 128
#define OUTPUTS 192
#define CTA_OUTPUTS (OUTPUTS / CLUSTER)  // outputs whose weights a CTA loads
#define DEPTH_BYTES 128                  // of a row in a stage: what is swizzled together
#define X_BYTES (ROWS * DEPTH_BYTES)
#define STAGE_BYTES (X_BYTES + OUTPUTS * DEPTH_BYTES)  // x, then weights
#ifdef E4M3
#define DEPTH 128
#define WGMMA wgmma_m64n192k32_e4m3
#else
#define DEPTH 64
#define WGMMA wgmma_m64n192k16
#endif

// A row of codes in shared memory, padded so that eight rows are in different banks.
#define ROW_BYTES_E4M3 (OUTPUTS + 16)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Stores the codes of a warp's 16 rows of 192 in shared memory: `pair(i)` are those of results 2 i
// and 2 i + 1 of the thread. Of sixteen columns a thread has two in each half, which stmatrix
// stores next to each other: staged_codes puts them in order.
template <typename Pair>
__device__ __forceinline__ void stage_codes(u8* staging, Pair pair) {
    const u32 lane = threadIdx.x % 32,
              to = smem_addr(staging) + lane % 16 * ROW_BYTES_E4M3 + lane / 16 * 16;
#pragma unroll
    for (int c = 0; c < OUTPUTS / 16; c += 2) {
        u32 words[4];
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const int i = 4 * (c + m / 2) + m % 2;
            words[m] = (u32)pair(i) | (u32)pair(i + 2) << 16;
        }
        stmatrix_x4(to + 16 * c, words[0], words[1], words[2], words[3]);
    }
}

// Reads sixteen codes of a row that were stored by stage_codes.
__device__ __forceinline__ uint4 staged_codes(const u8* at) {
    const uint4 x = *(const uint4*)at;
    return make_uint4(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.z, x.w, 0x5410),
                      __byte_perm(x.x, x.y, 0x7632), __byte_perm(x.z, x.w, 0x7632));
}

// Passes the codes of a warp's 16 rows, which stage_codes stored, to `store(row, column, codes)`,
// sixteen at a time: twelve lanes have the 192 of a row.
template <typename Store>
__device__ __forceinline__ void for_staged_codes(const u8* staging, Store store) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 6; i++) {
        const u32 r = (lane + 32 * i) / 12, c = (lane + 32 * i) % 12 * 16;
        store(r, c, staged_codes(staging + r * ROW_BYTES_E4M3 + c));
    }
}

#endif
