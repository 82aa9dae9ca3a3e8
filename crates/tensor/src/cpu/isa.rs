//! The instruction sets that kernels are compiled for, and their selection at run time.

use std::fmt;

/// A SIMD instruction set of the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// AVX-512 and AMX tiles (x86-64, Linux), which multiply bf16 numbers: products of f32 are sums
    /// of products of their bf16 parts.
    Amx,
    /// 512-bit vectors with fused multiply-add (x86-64).
    Avx512,
    /// 256-bit vectors with fused multiply-add (x86-64).
    Avx2,
    /// 128-bit vectors with fused multiply-add (aarch64).
    Neon,
    /// The target's baseline, without fused multiply-add.
    Portable,
}

impl Isa {
    /// All instruction sets, best first.
    pub const ALL: [Self; 5] = [Self::Amx, Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];

    /// The best instruction set of this CPU.
    pub fn detect() -> Self {
        Self::ALL.into_iter().find(|isa| isa.is_present()).unwrap_or(Self::Portable)
    }

    /// Whether each element of an f32 product is one chain of fused multiply-adds; all such
    /// instruction sets give the same bits.
    pub fn is_fused(self) -> bool {
        matches!(self, Self::Avx512 | Self::Avx2 | Self::Neon)
    }

    /// Whether there are 32 registers of 512 bits.
    pub(crate) fn is_wide(self) -> bool {
        matches!(self, Self::Amx | Self::Avx512)
    }

    /// Whether this CPU has it.
    pub fn is_present(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx => Self::Avx512.is_present() && super::amx::is_present(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512dq")
                    && Self::Avx2.is_present()
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            Self::Neon => cfg!(target_arch = "aarch64"),
            Self::Portable => true,
            #[cfg(not(target_arch = "x86_64"))]
            Self::Amx | Self::Avx512 | Self::Avx2 => false,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Amx => "AMX",
            Self::Avx512 => "AVX-512",
            Self::Avx2 => "AVX2",
            Self::Neon => "NEON",
            Self::Portable => "portable",
        })
    }
}

/// `a * b + c`: fused where the instruction set fuses. Without it `f32::mul_add` would call a slow
/// library function.
#[inline(always)]
pub(crate) fn fma<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Compiles `body::<FUSED>(args)` once per instruction set and calls the version for `isa`. A body
/// with another const parameter `N`, inferred from the arguments, is passed as `body<const N>`.
///
/// The body must be `#[inline(always)]`, so that it is compiled inside each version with that
/// version's instructions.
macro_rules! per_isa {
    (
        $isa:expr,
        $body:ident $(<const $n:ident>)? ( $($arg:ident : $ty:ty),* $(,)? ) $(-> $ret:ty)?
    ) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512dq,avx2,fma")]
        fn avx512$(<const $n: usize>)?($($arg: $ty),*) $(-> $ret)? {
            $body::<true $(, $n)?>($($arg),*)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn avx2$(<const $n: usize>)?($($arg: $ty),*) $(-> $ret)? {
            $body::<true $(, $n)?>($($arg),*)
        }
        debug_assert!($isa.is_present());
        match $isa {
            // SAFETY: a device is only created for an instruction set that the CPU has.
            #[cfg(target_arch = "x86_64")]
            $crate::cpu::isa::Isa::Amx | $crate::cpu::isa::Isa::Avx512 => unsafe { avx512($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::cpu::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
            // Every aarch64 CPU has NEON, so the target's baseline includes it.
            #[cfg(target_arch = "aarch64")]
            $crate::cpu::isa::Isa::Neon => $body::<true $(, $n)?>($($arg),*),
            _ => $body::<false $(, $n)?>($($arg),*),
        }
    }};
}
pub(crate) use per_isa;
