//! Plain parameter types shared by the kernels of both backends.

use crate::rng::{RngKey, Site};

/// Number of GPU streams whose work may run concurrently.
pub(crate) const GPU_STREAMS: usize = 2;

/// How a device stores and multiplies numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Everything in f32; no TF32.
    F32,
    /// Weights, activations that are multiplied, keys and values in bf16; accumulators, norms,
    /// softmax and the residual stream in f32. GPU only.
    Bf16,
    /// Weights rounded to int8 with a scale per output, activations that are multiplied with them
    /// with a scale per row; exact sums, and the rest in f32. CPU only, for inference.
    Int8,
    /// Weights rounded to e4m3 with a scale per map, activations that the decoder's maps multiply
    /// with a scale that bounds all rows or one per row, the rest as in bf16. For inference, on
    /// GPUs of compute capability 9.0.
    Fp8,
}

impl Precision {
    /// The remedy in the error message of a device that does not support this precision.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            Self::Bf16 => "the CPU supports f32 and int8 (--dtype)",
            Self::Fp8 => {
                "a GPU of compute capability 9.0 does (--device cuda); the CPU supports f32 and \
                 int8 (--dtype)"
            }
            Self::F32 | Self::Int8 => "a GPU supports f32 and bf16 (--dtype); or use --device cpu",
        }
    }
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Fp8 => "fp8",
        })
    }
}

/// A distribution over tokens: softmax(logits / temperature), restricted to the smallest set of
/// tokens whose probabilities sum to at least `top_p` (nucleus sampling), in descending order, ties
/// in order of index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenSampling {
    temperature: f32,
    top_p: f32,
}

impl TokenSampling {
    /// The softmax itself: temperature 1, top-p 1.
    pub const FULL_SOFTMAX: Self = Self { temperature: 1.0, top_p: 1.0 };

    /// A temperature that is finite and above 0 and a top-p in `(0, 1]`; `None` otherwise.
    pub fn new(temperature: f32, top_p: f32) -> Option<Self> {
        let legal = temperature.is_finite() && temperature > 0.0 && top_p > 0.0 && top_p <= 1.0;
        legal.then_some(Self { temperature, top_p })
    }

    /// The divisor of the logits.
    pub fn temperature(self) -> f32 {
        self.temperature
    }

    /// The probability mass of the tokens that are sampled from.
    pub fn top_p(self) -> f32 {
        self.top_p
    }
}

/// How one row's token is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenDraw {
    /// Key of the random number.
    pub key: RngKey,
    /// The distribution.
    pub sampling: TokenSampling,
}

/// An activation function, fused into the preceding linear map where possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The identity.
    None,
    /// GELU in its tanh form.
    GeluTanh,
    /// GELU with the error function.
    GeluErf,
}

/// The factors of one AdamW step, which are the same for all parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamWCoefficients {
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) eps: f32,
    pub(crate) gradient_scale: f32,
    pub(crate) keep: f32,         // of the value: 1 - lr * weight_decay
    pub(crate) rate: f32,         // lr / (1 - beta1^step)
    pub(crate) second_scale: f32, // of the second moment's root: 1 / sqrt(1 - beta2^step)
}

/// Lower bound of the standard deviation by which a teacher's hidden states are divided: 0, for a
/// constant or a single element, would make the loss infinite or NaN.
pub(crate) const MIN_STD: f32 = 1e-6;

/// A set of the [`Site`]s that a row can be perturbed at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SiteSet(u32); // bit `site as u32`

impl SiteSet {
    /// No site.
    pub const EMPTY: Self = Self(0);
    /// [`Site::AttnOut`].
    pub const ATTN_OUT: Self = Self(1 << Site::AttnOut as u32);
    /// [`Site::MlpOut`].
    pub const MLP_OUT: Self = Self(1 << Site::MlpOut as u32);
    /// [`Site::Noise`].
    pub const NOISE: Self = Self(1 << Site::Noise as u32);
    /// [`Site::Gumbel`].
    pub const GUMBEL: Self = Self(1 << Site::Gumbel as u32);
    /// Both sites of dropout on what is added to the residual stream.
    pub const DROPOUT: Self = Self(Self::ATTN_OUT.0 | Self::MLP_OUT.0);
    /// The four sites of dropout on the inputs of low-rank adapters.
    pub const LORA: Self = Self(
        1 << Site::LoraQkv as u32
            | 1 << Site::LoraAttnOut as u32
            | 1 << Site::LoraMlpIn as u32
            | 1 << Site::LoraMlpOut as u32,
    );

    /// Whether `site` is in the set.
    pub const fn contains(self, site: Site) -> bool {
        self.0 >> site as u32 & 1 == 1
    }

    /// The sites of either set.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The sites of both sets.
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether no site is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set as a bit mask: bit `site as u32`.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// The perturbation of one row of a batch: exactly one of dropout, Gaussian noise and Gumbel noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowPerturbation {
    /// Key of the row's random numbers.
    pub key: RngKey,
    /// The probability of dropout, the standard deviation of Gaussian noise, or the temperature of
    /// mixtures under Gumbel noise.
    pub strength: f32,
    /// The sites at which the row is perturbed; it is unchanged at every other site.
    pub sites: SiteSet,
}

/// The factor by which inverted dropout of probability `p` scales the elements that it keeps.
#[inline(always)]
pub(crate) fn keep_scale(p: f32) -> f32 {
    1.0 / (1.0 - p)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_set_contains_its_sites_alone() {
        let others = [Site::AttnOut, Site::MlpOut, Site::Noise, Site::Length, Site::Token];
        let lora = [Site::LoraQkv, Site::LoraAttnOut, Site::LoraMlpIn, Site::LoraMlpOut];
        let members = |set: SiteSet| {
            let contains = |site| set.contains(site);
            (others.map(contains), lora.map(contains))
        };
        assert_eq!(members(SiteSet::EMPTY), ([false; 5], [false; 4]));
        assert_eq!(members(SiteSet::DROPOUT), ([true, true, false, false, false], [false; 4]));
        assert_eq!(members(SiteSet::NOISE), ([false, false, true, false, false], [false; 4]));
        assert_eq!(members(SiteSet::LORA), ([false; 5], [true; 4]));
        let either = SiteSet::ATTN_OUT.union(SiteSet::NOISE);
        assert_eq!(members(either), ([true, false, true, false, false], [false; 4]));
        assert_eq!(either.intersection(SiteSet::DROPOUT), SiteSet::ATTN_OUT);
        assert!(SiteSet::ATTN_OUT.intersection(SiteSet::MLP_OUT).is_empty());
    }
}
