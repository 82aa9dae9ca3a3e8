//! Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as
//! 1, 2, 3", 2011).
//!
//! There is no generator state. A number is a pure function of its key (seed, question, trajectory,
//! position, layer, site, element), so it is the same for every batch, order, thread count and
//! device.
//!
//! The words 0 to 3 of the 128-bit counter are: `site << 26 | layer << 16 | element / 4`, position,
//! trajectory, question. Philox's key is the seed. One call yields four words, for four consecutive
//! elements.

const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// The increments of the key per round.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;
/// Number of counters per call of [`philox_lanes`].
pub(crate) const LANES: usize = 8;

/// The generator's four output words for a counter and a key.
#[inline(always)]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..ROUNDS {
        let [p0, p1] = [MULTIPLIERS[0] * u64::from(c0), MULTIPLIERS[1] * u64::from(c2)];
        let n0 = (p1 >> 32) as u32 ^ c1 ^ k0;
        let n2 = (p0 >> 32) as u32 ^ c3 ^ k1;
        (c0, c1, c2, c3) = (n0, p1 as u32, n2, p0 as u32);
        (k0, k1) = (k0.wrapping_add(WEYL[0]), k1.wrapping_add(WEYL[1]));
    }
    [c0, c1, c2, c3]
}

/// [`philox`] for counters with consecutive values of word 0 and equal other words. `FUSED` is as
/// in [`crate::cpu::isa`].
#[inline(always)]
pub(crate) fn philox_lanes<const FUSED: bool>(
    word0: u32,
    rest: [u32; 3],
    key: [u32; 2],
) -> [[u32; 4]; LANES] {
    #[cfg(target_arch = "x86_64")]
    if FUSED {
        // SAFETY: on x86-64 fused code is compiled for CPUs with AVX2 and FMA.
        return unsafe { philox_avx2(word0, rest, key) };
    }
    std::array::from_fn(|l| philox([word0 + l as u32, rest[0], rest[1], rest[2]], key))
}

/// [`philox_lanes`] in registers of four products; compilers vectorize it poorly.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn philox_avx2(word0: u32, rest: [u32; 3], key: [u32; 2]) -> [[u32; 4]; LANES] {
    use std::arch::x86_64::*;
    const HALF: usize = LANES / 2;
    let wide = |x: u32| _mm256_set1_epi64x(i64::from(x));
    let [m0, m1] = MULTIPLIERS.map(|m| _mm256_set1_epi64x(m as i64));
    let low_words = wide(u32::MAX);
    let counts = _mm256_set_epi64x(3, 2, 1, 0);
    // A 32-bit number in each 64 bits; the upper bits are ignored or cleared.
    let mut c0 = [0, HALF as u32].map(|first| _mm256_add_epi64(wide(word0 + first), counts));
    let mut c1 = [wide(rest[0]); 2];
    let mut c2 = [wide(rest[1]); 2];
    let mut c3 = [wide(rest[2]); 2];
    let [mut k0, mut k1] = key;
    for _ in 0..ROUNDS {
        for i in 0..2 {
            let p0 = _mm256_mul_epu32(m0, c0[i]);
            let p1 = _mm256_mul_epu32(m1, c2[i]);
            let high = |p: __m256i| _mm256_srli_epi64::<32>(p);
            let n0 = _mm256_xor_si256(_mm256_xor_si256(high(p1), c1[i]), wide(k0));
            let n2 = _mm256_xor_si256(_mm256_xor_si256(high(p0), c3[i]), wide(k1));
            (c0[i], c1[i], c2[i], c3[i]) = (n0, p1, n2, p0);
        }
        (k0, k1) = (k0.wrapping_add(WEYL[0]), k1.wrapping_add(WEYL[1]));
    }
    let mut words = [[0u32; 4]; LANES];
    for (i, words) in words.as_chunks_mut::<HALF>().0.iter_mut().enumerate() {
        // Words 0 and 1, and words 2 and 3, of each counter.
        let pair = |low: __m256i, high: __m256i| {
            _mm256_or_si256(_mm256_and_si256(low, low_words), _mm256_slli_epi64::<32>(high))
        };
        let first = pair(c0[i], c1[i]);
        let second = pair(c2[i], c3[i]);
        let even = _mm256_unpacklo_epi64(first, second); // counters 0 and 2
        let odd = _mm256_unpackhi_epi64(first, second); // 1 and 3
        let to = words.as_mut_ptr().cast::<__m256i>();
        // SAFETY: four counters of four words are two registers.
        unsafe {
            _mm256_storeu_si256(to, _mm256_permute2x128_si256::<0x20>(even, odd));
            _mm256_storeu_si256(to.add(1), _mm256_permute2x128_si256::<0x31>(even, odd));
        }
    }
    words
}

/// The purpose of a random number. Sites never share numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Site {
    /// Dropout on the attention block's output.
    AttnOut = 0,
    /// Dropout on the MLP block's output.
    MlpOut = 1,
    /// Gaussian noise on a thought.
    Noise = 2,
    /// The number of thoughts of a trajectory.
    Length = 3,
    /// A token of the answer.
    Token = 4,
    /// Dropout on the input of a low-rank adapter of the queries', keys' and values' projection.
    LoraQkv = 5,
    /// Dropout on the input of a low-rank adapter of the attention block's output projection.
    LoraAttnOut = 6,
    /// Dropout on the input of a low-rank adapter of the MLP block's first projection.
    LoraMlpIn = 7,
    /// Dropout on the input of a low-rank adapter of the MLP block's second projection.
    LoraMlpOut = 8,
    /// The permutation of a trajectory's thoughts, if they are shuffled.
    Order = 9,
    /// Gumbel noise on the logits of a mixture of tokens; its elements are tokens. It has no layer,
    /// so the layer's bits extend the element.
    Gumbel = 10,
    /// The offset of systematic resampling in a particle filter.
    Resampling = 11,
}

/// The key of the random numbers of one position of one trajectory: Philox's key and the upper
/// three words of the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RngKey {
    /// The run's seed.
    pub seed: u64,
    /// The question's index in its data set.
    pub question: u32,
    /// The trajectory's index within the question.
    pub trajectory: u32,
    /// The position in the trajectory's sequence, counted from the first prompt token.
    pub position: u32,
}

/// Maximum elements of a row that the counter can distinguish.
pub const MAX_ELEMENTS: usize = 1 << 18;
/// Maximum layers that the counter can distinguish.
pub const MAX_LAYERS: usize = 1 << 10;

impl RngKey {
    /// Philox's key, and words 1 to 3 of its counter.
    #[inline(always)]
    pub(crate) fn key_and_counter(&self) -> ([u32; 2], [u32; 3]) {
        (
            [self.seed as u32, (self.seed >> 32) as u32],
            [self.position, self.trajectory, self.question],
        )
    }

    /// The four random words for elements `4 * block ..= 4 * block + 3` of a site.
    pub fn bits(&self, layer: usize, site: Site, block: usize) -> [u32; 4] {
        let (key, rest) = self.key_and_counter();
        philox([site_word(layer, site) | block as u32, rest[0], rest[1], rest[2]], key)
    }

    /// Whether dropout of probability `p` keeps element `i` of a site.
    pub fn keeps(&self, layer: usize, site: Site, i: usize, p: f32) -> bool {
        self.bits(layer, site, i / 4)[i % 4] >= drop_threshold(p)
    }

    /// Adds Gaussian noise of standard deviation `std` to a thought.
    pub fn add_noise(&self, std: f32, thought: &mut [f32]) {
        for (block, four) in thought.chunks_mut(4).enumerate() {
            let normals = normals(self.bits(0, Site::Noise, block));
            for (x, n) in four.iter_mut().zip(normals) {
                *x += (f64::from(std) * n) as f32;
            }
        }
    }

    /// A standard Gumbel number for a token, in f64, so that devices agree after rounding to f32.
    pub fn gumbel(&self, token: usize) -> f32 {
        let word = self.bits(0, Site::Gumbel, token / 4)[token % 4];
        let uniform = (f64::from(word) + 0.5) / 4_294_967_296.0;
        -(-uniform.ln()).ln() as f32
    }

    /// An integer, uniform over `low ..= high`.
    pub fn uniform_int(&self, site: Site, low: usize, high: usize) -> usize {
        let span = (high - low + 1) as u64;
        low + ((u64::from(self.bits(0, site, 0)[0]) * span) >> 32) as usize
    }

    /// A number of 53 bits, uniform over `[0, 1)`.
    pub fn uniform(&self, site: Site) -> f64 {
        self.uniform_of(site, 0)
    }

    /// The `index`th of several uniform numbers.
    pub fn uniform_of(&self, site: Site, index: usize) -> f64 {
        let [high, low, ..] = self.bits(0, site, index);
        ((u64::from(high) << 32 | u64::from(low)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The bits of layer and site in word 0 of the counter.
#[inline(always)]
pub(crate) fn site_word(layer: usize, site: Site) -> u32 {
    debug_assert!(layer < MAX_LAYERS);
    (site as u32) << 26 | (layer as u32) << 16
}

/// Dropout drops elements whose random word is below this threshold, which has probability `p` to
/// within 2^-32.
#[inline(always)]
pub fn drop_threshold(p: f32) -> u32 {
    (f64::from(p) * 4_294_967_296.0) as u32
}

/// Box-Muller: four standard normal numbers from four random words, in f64, so that devices agree
/// after rounding to f32.
fn normals(words: [u32; 4]) -> [f64; 4] {
    let pair = |a: u32, b: u32| {
        let radius = (-2.0 * ((f64::from(a) + 0.5) / 4_294_967_296.0).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * f64::from(b) / 4_294_967_296.0).sin_cos();
        (radius * cos, radius * sin)
    };
    let (a, b) = pair(words[0], words[1]);
    let (c, d) = pair(words[2], words[3]);
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    /// Random123's published known-answer vectors for philox4x32-10.
    #[test]
    fn philox_gives_the_published_vectors() {
        let f = 0xffff_ffff;
        let cases = [
            ([0, 0, 0, 0], [0, 0], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([f, f, f, f], [f, f], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox(counter, key), expected);
        }
    }

    #[test]
    fn lanes_equal_scalar_calls() {
        for (first, rest, key) in
            [(1 << 26, [7, 8, 9], [1, 2]), (u32::MAX - 7, [u32::MAX; 3], [u32::MAX; 2])]
        {
            let mut found = vec![philox_lanes::<false>(first, rest, key)];
            if Isa::detect().is_fused() || Isa::detect() == Isa::Amx {
                found.push(philox_lanes::<true>(first, rest, key));
            }
            for lanes in found {
                for (l, lane) in lanes.into_iter().enumerate() {
                    let counter = [first + l as u32, rest[0], rest[1], rest[2]];
                    assert_eq!(lane, philox(counter, key));
                }
            }
        }
    }

    /// Published results depend on these numbers: a new site takes a new one.
    #[test]
    fn sites_keep_their_numbers() {
        let sites = [
            (Site::AttnOut, 0x31fc_e580),
            (Site::MlpOut, 0x07e4_aa1d),
            (Site::Noise, 0x2ca9_5375),
            (Site::Length, 0x3a99_72a7),
            (Site::Token, 0x834d_d37f),
            (Site::LoraQkv, 0xb951_3894),
            (Site::LoraAttnOut, 0x5c5d_6937),
            (Site::LoraMlpIn, 0x3d30_c749),
            (Site::LoraMlpOut, 0xc0c4_a820),
            (Site::Order, 0xcd29_9566),
            (Site::Gumbel, 0xb3d1_7cd2),
        ];
        for (number, (site, word)) in sites.into_iter().enumerate() {
            assert_eq!(site as usize, number);
            assert_eq!(key(5).bits(1, site, 9)[0], word, "{site:?}");
        }
    }

    fn key(trajectory: u32) -> RngKey {
        RngKey { seed: 42, question: 3, trajectory, position: 71 }
    }

    #[test]
    fn dropout_keeps_a_share_of_one_minus_p() {
        for p in [0.03f32, 0.2, 0.5, 0.9] {
            let n = 400_000;
            let kept = (0..n)
                .filter(|&i| key(i / 1000).keeps(2, Site::MlpOut, (i % 1000) as usize, p))
                .count() as f64;
            let mean = f64::from(n) * f64::from(1.0 - p);
            let sd = (f64::from(n) * f64::from(p * (1.0 - p))).sqrt();
            assert!((kept - mean).abs() < 4.0 * sd, "p {p}: kept {kept}, expected {mean} +- {sd}");
        }
        assert!((0..1000).all(|i| key(0).keeps(0, Site::AttnOut, i, 0.0)));
    }

    #[test]
    fn noise_has_gaussian_moments() {
        let rows = 500u32;
        let width = 801usize;
        let mut all = Vec::new();
        for r in 0..rows {
            let mut x = vec![0.0; width];
            key(r).add_noise(0.6, &mut x);
            all.extend(x);
        }
        let n = all.len() as f64;
        let moment = |k: i32| all.iter().map(|&x| (f64::from(x) / 0.6).powi(k)).sum::<f64>() / n;
        assert!(moment(1).abs() < 4.0 / n.sqrt());
        assert!((moment(2) - 1.0).abs() < 4.0 * (2.0 / n).sqrt());
        assert!(moment(3).abs() < 4.0 * (15.0 / n).sqrt());
        assert!((moment(4) - 3.0).abs() < 4.0 * (96.0 / n).sqrt());
    }

    /// The standard Gumbel distribution has mean 0.5772 (Euler's constant) and variance pi^2 / 6.
    #[test]
    fn gumbel_numbers_have_their_moments() {
        let all: Vec<f64> = (0..400)
            .flat_map(|t| (0..1000).map(move |token| f64::from(key(t).gumbel(token))))
            .collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let variance = all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / all.len() as f64;
        assert!((mean - 0.577_215_7).abs() < 0.009, "{mean}");
        assert!((variance - std::f64::consts::PI.powi(2) / 6.0).abs() < 0.03, "{variance}");
        assert!(all.iter().all(|x| x.is_finite()));
    }

    #[test]
    fn every_counter_field_changes_the_bits() {
        let base = key(5);
        let bits = base.bits(1, Site::AttnOut, 9);
        let others = [
            RngKey { seed: 43, ..base }.bits(1, Site::AttnOut, 9),
            RngKey { seed: 42 | 1 << 40, ..base }.bits(1, Site::AttnOut, 9),
            RngKey { question: 4, ..base }.bits(1, Site::AttnOut, 9),
            RngKey { trajectory: 6, ..base }.bits(1, Site::AttnOut, 9),
            RngKey { position: 72, ..base }.bits(1, Site::AttnOut, 9),
            base.bits(2, Site::AttnOut, 9),
            base.bits(1, Site::MlpOut, 9),
            base.bits(1, Site::AttnOut, 10),
        ];
        assert!(others.iter().all(|o| *o != bits));
    }

    #[test]
    fn uniform_int_is_uniform() {
        let mut counts = [0usize; 3];
        (0..30_000).for_each(|t| counts[key(t).uniform_int(Site::Length, 4, 6) - 4] += 1);
        assert!(counts.iter().all(|&c| (9_600..10_400).contains(&c)), "{counts:?}");
    }
}
