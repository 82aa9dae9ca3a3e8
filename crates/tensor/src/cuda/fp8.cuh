// e4m3 rows (e4m3.rs): a one-byte code per element, and a scale, common or per row; an element is
// the code's value times the scale. Scales are powers of two, so that rounding to e4m3 is the only
// rounding.

// The smallest power of two such that numbers up to `largest` in magnitude, divided by it, are at
// most 448, which is 1.75 * 2^8.
__device__ __forceinline__ float e4m3_scale(float largest) {
    const u32 bits = __float_as_uint(fmaxf(largest, 1e-30f));
    return __uint_as_float(((bits >> 23) - 8 + ((bits & 0x7fffff) > 0x600000)) << 23);
}

// 1 / scale, exactly.
__device__ __forceinline__ float e4m3_inverse(float scale) {
    return __uint_as_float((254u << 23) - __float_as_uint(scale));
}

// Two floats as e4m3, rounded to nearest even, saturating; `low` goes to the lower address.
__device__ __forceinline__ u16 pack_e4m3(float low, float high) {
    u16 out = 0;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(out) : "f"(high), "f"(low));
#endif
    return out;
}

__device__ __forceinline__ u32 pack_e4m3x4(float4 v) {
    return (u32)pack_e4m3(v.x, v.y) | (u32)pack_e4m3(v.z, v.w) << 16;
}

__device__ __forceinline__ float4 scaled4(float4 v, float by) {
    return make_float4(v.x * by, v.y * by, v.z * by, v.w * by);
}

__device__ __forceinline__ float largest4(float4 v) {
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

// Two f16 in 32 bits, the first in the low half.
__device__ __forceinline__ u32 pack_f16(float low, float high) {
    u32 out;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}

__device__ __forceinline__ u32 mul_f16x2(u32 a, u32 b) {
    u32 out;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    return out;
}

__device__ __forceinline__ u32 fma_f16x2(u32 a, u32 b, u32 c) {
    u32 out;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
    return out;
}

__device__ __forceinline__ u32 tanh_f16x2(u32 x) {  // 11 bits
    u32 out;
    asm("tanh.approx.f16x2 %0, %1;" : "=r"(out) : "r"(x));
    return out;
}

// Two f16 as e4m3, rounded like pack_e4m3.
__device__ __forceinline__ u16 e4m3_from_f16(u32 x) {
    u16 out = 0;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(out) : "r"(x));
#endif
    return out;
}

// Two codes of e4m3, in the low 16 bits, as f16: exactly.
__device__ __forceinline__ u32 f16_from_e4m3(u32 codes) {
    u32 out = 0;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"((u16)codes));
#endif
    return out;
}

// Two bf16 as f16, saturating.
__device__ __forceinline__ u32 f16_from_bf16(u32 two) {
    u32 out;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;"
        : "=r"(out)
        : "f"(__uint_as_float(two & 0xffff0000u)), "f"(__uint_as_float(two << 16)));
    return out;
}
