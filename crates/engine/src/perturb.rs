//! What makes N trajectories differ: Monte Carlo dropout or Gaussian noise, drawn or replayed, or
//! words that are drawn.

use model::{Decoder, Dropout};
use tensor::ops::{
    self, PendingTokens, PerturbedRows, RowPerturbation, SiteSet, TokenDraw, TokenSampling,
};
use tensor::rng::{RngKey, Site};
use tensor::{Device, DeviceError, Tensor};

use crate::method::LengthRange;

/// A share in `[0, 1)`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Probability(f32);

impl Probability {
    /// The share, if it is one.
    pub fn new(p: f32) -> Option<Self> {
        (0.0..1.0).contains(&p).then_some(Self(p))
    }

    /// The share.
    pub fn get(self) -> f32 {
        self.0
    }
}

/// Which outputs dropout falls on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropoutSites {
    /// The attention block's output, before the residual.
    pub attn_out: bool,
    /// The MLP block's output, before the residual.
    pub mlp_out: bool,
}

impl DropoutSites {
    /// Both sites.
    pub const BOTH: Self = Self { attn_out: true, mlp_out: true };
    /// The MLP alone.
    pub const MLP: Self = Self { attn_out: false, mlp_out: true };
    /// The attention alone.
    pub const ATTN: Self = Self { attn_out: true, mlp_out: false };
}

impl From<DropoutSites> for SiteSet {
    fn from(DropoutSites { attn_out, mlp_out }: DropoutSites) -> Self {
        let when = |is: bool, sites: Self| if is { sites } else { Self::EMPTY };
        when(attn_out, Self::ATTN_OUT).union(when(mlp_out, Self::MLP_OUT))
    }
}

/// Which passes dropout falls on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropoutScope {
    /// Those whose output becomes a thought: the last prompt token and thoughts 1 to T-1. The
    /// prompt before is shared.
    Thoughts,
    /// The whole prompt as well, as the Python reference does. Each row then has a prompt of its
    /// own.
    Prompt,
    /// Everything, through the answer.
    All,
}

/// How the rows of a question are made to differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Perturbation {
    /// Not at all.
    None,
    /// Inverted dropout, fresh for every row, position, layer and site.
    Dropout {
        /// The share of elements dropped.
        p: Probability,
        /// On which outputs.
        sites: DropoutSites,
        /// In which passes.
        scope: DropoutScope,
    },
    /// Normal noise added to every thought just before it is fed.
    Gaussian {
        /// Its standard deviation.
        std: f32,
    },
    /// Tokens of the answer are drawn; thoughts, if there are any, are the same in every row.
    Tokens(TokenSampling),
}

impl Perturbation {
    /// Whether rows have a prompt of their own, so that no prefix can be shared.
    pub fn prompt_is_private(&self) -> bool {
        matches!(self, Self::Dropout { scope: DropoutScope::Prompt | DropoutScope::All, .. })
    }

    /// Whether the pass over the last prompt token differs from row to row.
    pub fn last_token_is_private(&self) -> bool {
        matches!(self, Self::Dropout { .. })
    }

    /// Whether it falls on thoughts alone, and so does nothing where there are none.
    pub(crate) fn only_affects_thoughts(&self) -> bool {
        matches!(self, Self::Dropout { scope: DropoutScope::Thoughts, .. } | Self::Gaussian { .. })
    }

    /// Whether dropout goes on after the thoughts.
    pub fn affects_answer(&self) -> bool {
        matches!(self, Self::Dropout { scope: DropoutScope::All, .. })
    }
}

/// Where the random numbers come from.
#[derive(Clone, Copy, Debug)]
pub enum RandomSource<'a> {
    /// The random function under a seed.
    Seeded(u64),
    /// Another implementation's masks and noise, for one question's rows.
    Recorded(&'a RecordedNoise),
}

/// Masks and noise that another implementation used.
#[derive(Clone, Debug, Default)]
pub struct RecordedNoise {
    /// Thoughts, layers, rows and width of what follows.
    pub shape: [usize; 4],
    /// 1 keeps, 0 drops: (thoughts, layers, 2 sites, rows, width).
    pub keep_masks: Vec<u8>,
    /// (thoughts, rows, width)
    pub noise: Vec<f32>,
}

impl RecordedNoise {
    /// The masks of pass `t` for some rows, as [`Dropout::Recorded`] takes them.
    pub(crate) fn masks(&self, t: usize, rows: &[u32]) -> Vec<Vec<u8>> {
        let [_, layers, n, width] = self.shape;
        let site = |s: usize| {
            let start = (t * layers * 2 + s) * n * width;
            rows.iter()
                .flat_map(|&r| self.keep_masks[start + r as usize * width..][..width].to_vec())
                .collect()
        };
        (0..2 * layers).map(site).collect()
    }

    fn noise(&self, t: usize, row: u32) -> &[f32] {
        let [_, _, n, width] = self.shape;
        &self.noise[(t * n + row as usize) * width..][..width]
    }
}

/// A row's identity in the random function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowId {
    /// The question's number in its data set.
    pub question: u32,
    /// The trajectory's number within the question.
    pub trajectory: u32,
}

impl RowId {
    /// Where this row's numbers at a position are drawn.
    pub fn rng_key(self, seed: u64, position: usize) -> RngKey {
        RngKey {
            seed,
            question: self.question,
            trajectory: self.trajectory,
            position: position as u32,
        }
    }

    /// The number of thoughts that a row of variable length draws.
    pub(crate) fn length(self, seed: u64, range: LengthRange) -> usize {
        self.rng_key(seed, 0).uniform_int(Site::Length, range.low().get(), range.high().get())
    }
}

/// A perturbation and where its random numbers come from.
#[derive(Clone, Copy, Debug)]
pub struct Sampler<'a> {
    /// What is done.
    pub perturbation: Perturbation,
    /// With which numbers.
    pub source: RandomSource<'a>,
}

impl Sampler<'_> {
    /// Adds noise, if there is any, to thought `t` (counted from 0) of some rows. `draws` names the
    /// perturbed rows' numbers at the position where the thought is fed; x is (rows, width).
    pub(crate) fn add_noise(
        &self,
        device: &Device,
        rows: &[RowId],
        draws: impl FnOnce() -> Vec<Option<RngKey>>,
        t: usize,
        x: &mut Tensor,
    ) -> Result<(), DeviceError> {
        let Perturbation::Gaussian { std } = self.perturbation else { return Ok(()) };
        match self.source {
            RandomSource::Seeded(_) => {
                let noise = |key| RowPerturbation { key, strength: std, sites: SiteSet::NOISE };
                let rows = draws().into_iter().map(|key| key.map(noise)).collect();
                ops::add_noise(device, x, &PerturbedRows::new(device, rows)?)
            }
            RandomSource::Recorded(recording) => {
                let noise = rows
                    .iter()
                    .flat_map(|row| recording.noise(t, row.trajectory).to_vec())
                    .collect();
                ops::add(
                    device,
                    x,
                    &Tensor::from_vec(rows.len(), x.cols(), noise).to_device(device)?,
                )
            }
        }
    }

    /// Asks for the next token of each row of hidden (rows, width): the likeliest, or drawn if
    /// tokens are. `draws` names the perturbed rows' numbers at the position where the token is
    /// fed.
    pub(crate) fn next_tokens(
        &self,
        decoder: &Decoder,
        hidden: &Tensor,
        draws: impl FnOnce() -> Vec<Option<RngKey>>,
    ) -> Result<PendingTokens, DeviceError> {
        match self.perturbation {
            Perturbation::Tokens(sampling) => {
                let draw = |key: Option<RngKey>| key.map(|key| TokenDraw { key, sampling });
                let rows: Vec<_> = draws().into_iter().map(draw).collect();
                ops::sample_tokens(decoder.device(), hidden, decoder.lm_head(), &rows)
                    .map(PendingTokens::from)
            }
            _ => PendingTokens::greedy(decoder.device(), hidden, decoder.lm_head()),
        }
    }

    /// The rows of [`Dropout::Sampled`] for rows with such keys, if this is dropout.
    pub(crate) fn dropout_rows(
        &self,
        keys: impl IntoIterator<Item = Option<RngKey>>,
    ) -> Option<Vec<Option<RowPerturbation>>> {
        let Perturbation::Dropout { p, sites, .. } = self.perturbation else { return None };
        let row = |key| RowPerturbation { key, strength: p.get(), sites: sites.into() };
        Some(keys.into_iter().map(|key| key.map(row)).collect())
    }

    /// Dropout with recorded masks, if this is dropout.
    pub(crate) fn recorded_dropout<'m>(&self, masks: &'m [Vec<u8>]) -> Option<Dropout<'m>> {
        let Perturbation::Dropout { p, sites, .. } = self.perturbation else { return None };
        Some(Dropout::Recorded { p: p.get(), sites: sites.into(), masks })
    }
}
