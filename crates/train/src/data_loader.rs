//! Batches of tokenized examples, prefetched by a background thread.
//!
//! Batch `i` is a function of `i`, so that training can resume at any step. Batches are not sorted
//! by length: examples are packed without padding and no attention tile spans two of them, so
//! sorting would save nothing.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use rayon::prelude::*;
use tensor::rng::philox;

use crate::error::TrainError;
use crate::methods::{ExampleEncoder, ExamplePlace};
use corpus::{self, Split};
use data::TrainExample;

/// A source of examples.
#[derive(Clone, Debug)]
pub enum ExampleSource {
    /// The built-in corpus, an infinite stream of problems.
    Corpus {
        /// Seed of the problems.
        seed: u64,
    },
    /// A list, reshuffled every epoch.
    List {
        /// The examples.
        examples: Arc<Vec<TrainExample>>,
        /// Seed of the shuffling.
        seed: u64,
    },
    /// Several sources, interleaved.
    Mixture(ExampleMixture),
}

impl ExampleSource {
    /// The lists among the sources, without the corpus.
    pub fn lists(&self) -> Vec<&[TrainExample]> {
        match self {
            Self::Corpus { .. } => Vec::new(),
            Self::List { examples, .. } => vec![examples.as_slice()],
            Self::Mixture(mixture) => mixture.sources.iter().flat_map(Self::lists).collect(),
        }
    }

    /// Examples `first..first + size` of the stream, each with its index.
    pub(crate) fn batch(&self, first: u64, size: usize) -> Vec<(u64, TrainExample)> {
        let indices = first..first + size as u64;
        indices.into_par_iter().map(|i| (i, self.example(i))).collect()
    }

    /// Example `i` of the stream.
    fn example(&self, i: u64) -> TrainExample {
        match self {
            Self::Corpus { seed } => corpus::problem(Split::Train, *seed, i).into(),
            Self::List { examples, seed } => {
                let count = examples.len() as u64;
                let shuffled = shuffled_index(i % count, count, seed.wrapping_add(i / count));
                examples[shuffled as usize].clone()
            }
            Self::Mixture(mixture) => mixture.example(i),
        }
    }
}

/// Several sources in fixed proportions.
///
/// The stream is divided into cycles of [`MIXTURE_CYCLE`] examples. Each cycle has the same number
/// of examples from each source, in a shuffled order, and takes a source's examples in the source's
/// order. An example is therefore a function of its index, and no example of a list is repeated
/// before the whole list has been used.
#[derive(Clone, Debug)]
pub struct ExampleMixture {
    sources: Vec<ExampleSource>,
    /// Per source: its first slot in a cycle; the last entry is the end.
    slots: Vec<u64>,
    seed: u64,
}

/// Examples per cycle of a mixture. Shares are rounded to multiples of its inverse.
pub const MIXTURE_CYCLE: u64 = 4096;

impl ExampleMixture {
    /// A mixture of sources with relative weights; `None` unless there are 1 to [`MIXTURE_CYCLE`]
    /// sources with positive, finite weights.
    ///
    /// Every source has at least one example per cycle, however small its weight.
    pub fn new(sources: Vec<(ExampleSource, f64)>, seed: u64) -> Option<Self> {
        let valid = |weight: &f64| *weight > 0.0 && weight.is_finite();
        let weights: Vec<f64> = sources.iter().map(|(_, weight)| *weight).collect();
        let count = sources.len() as u64;
        if count == 0 || count > MIXTURE_CYCLE || !weights.iter().all(valid) {
            return None;
        }
        // Each source has one slot; the others are split by weight, rounding the cumulative sums.
        let total: f64 = weights.iter().sum();
        let free = (MIXTURE_CYCLE - count) as f64;
        let mut slots = vec![0];
        let mut sum = 0.0;
        for (source, weight) in weights.iter().enumerate() {
            sum += weight;
            slots.push((free * sum / total).round() as u64 + source as u64 + 1);
        }
        let sources = sources.into_iter().map(|(source, _)| source).collect();
        Some(Self { sources, slots, seed })
    }

    /// Number of examples of each source per cycle.
    pub fn shares(&self) -> Vec<u64> {
        self.slots.windows(2).map(|slots| slots[1] - slots[0]).collect()
    }

    fn example(&self, i: u64) -> TrainExample {
        let (source, index) = self.locate(i);
        self.sources[source].example(index)
    }

    /// The source of example `i` of the mixture, and its index in that source.
    fn locate(&self, i: u64) -> (usize, u64) {
        let cycle = i / MIXTURE_CYCLE;
        let order = self.seed.wrapping_add(cycle).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = shuffled_index(i % MIXTURE_CYCLE, MIXTURE_CYCLE, order);
        let source = self.slots.partition_point(|first| *first <= slot) - 1;
        let first = self.slots[source];
        let end = self.slots[source + 1];
        (source, cycle * (end - first) + slot - first)
    }
}

/// The image of `index` under a pseudorandom permutation of `0..count`: four rounds of a Feistel
/// network over the next even power of two, repeated until the result is in range (cycle walking).
pub(crate) fn shuffled_index(index: u64, count: u64, seed: u64) -> u64 {
    let half = (64 - (count.max(2) - 1).leading_zeros()).div_ceil(2);
    let mask = (1u64 << half) - 1;
    let key = [seed as u32, (seed >> 32) as u32];
    let mut at = index;
    loop {
        let mut left = at >> half;
        let mut right = at & mask;
        for round in 0..4 {
            let mixed = u64::from(philox([right as u32, round, 0, 0], key)[0]);
            (left, right) = (right, left ^ (mixed & mask));
        }
        at = left << half | right;
        if at < count {
            return at;
        }
    }
}

/// Everything that determines the batches.
pub struct BatchSpec<E> {
    /// The examples.
    pub source: ExampleSource,
    /// Encoder that tokenizes the examples.
    pub encoder: E,
    /// Examples per batch.
    pub batch_size: usize,
    /// Total number of batches, over which the curriculum progresses.
    pub batches: u64,
    /// Seed of the encoder's random numbers.
    pub seed: u64,
    /// Maximum length of an example in positions.
    pub context: usize,
}

impl<E: ExampleEncoder> BatchSpec<E> {
    /// Batch `index`, counted from 0.
    pub fn batch(&self, index: u64) -> Result<Vec<E::Encoded>, TrainError> {
        let progress = index as f64 / self.batches.max(1) as f64;
        let encode = |(id, example): &(u64, TrainExample)| {
            let place = ExamplePlace { id: *id, progress, uniforms: self.uniforms(*id) };
            let encoded = self.encoder.encode(example, place)?;
            let longest = encoded.iter().map(|one| self.encoder.rows(one).fed).max().unwrap_or(0);
            match longest > self.context {
                true => {
                    Err(TrainError::TooLong { id: *id, length: longest, context: self.context })
                }
                false => Ok(encoded),
            }
        };
        let examples = self.source.batch(index * self.batch_size as u64, self.batch_size);
        let encoded: Vec<Vec<E::Encoded>> =
            examples.par_iter().map(encode).collect::<Result<_, TrainError>>()?;
        Ok(encoded.into_iter().flatten().collect())
    }

    /// Two uniform random numbers in [0, 1) for an example.
    fn uniforms(&self, id: u64) -> [f64; 2] {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let [a, b, ..] = philox([id as u32, (id >> 32) as u32, 0, u32::MAX], key);
        [a, b].map(|word| f64::from(word) / 4_294_967_296.0)
    }
}

/// Batches in order, prefetched.
pub struct DataLoader<E: ExampleEncoder> {
    spec: Arc<BatchSpec<E>>,
    next: u64,
    prefetched: Option<Receiver<Batch<E>>>,
}

/// A batch, or an error.
type Batch<E> = Result<Vec<<E as ExampleEncoder>::Encoded>, TrainError>;

/// Number of prefetched batches.
const PREFETCH: usize = 8;

impl<E: ExampleEncoder + 'static> DataLoader<E> {
    /// A loader of the batches of a spec. Prefetching starts with the first batch.
    pub fn new(spec: BatchSpec<E>) -> Self {
        Self { spec: Arc::new(spec), next: 0, prefetched: None }
    }

    /// The encoder.
    pub fn encoder(&self) -> &E {
        &self.spec.encoder
    }

    /// Batch `index`; prefetched if it follows the previous one.
    pub fn batch(&mut self, index: u64) -> Batch<E> {
        if self.prefetched.is_none() || index != self.next {
            self.prefetched = Some(self.spawn_prefetch(index));
        }
        self.next = index + 1;
        match self.prefetched.as_ref().map(Receiver::recv) {
            Some(Ok(batch)) => batch,
            // The thread could not be started, or has ended after the last batch or with a panic.
            _ => self.spec.batch(index),
        }
    }

    fn spawn_prefetch(&self, first: u64) -> Receiver<Batch<E>> {
        let (sender, receiver) = sync_channel(PREFETCH);
        let spec = self.spec.clone();
        let prefetch = move || {
            for index in first..spec.batches {
                if sender.send(spec.batch(index)).is_err() {
                    return; // the receiver was dropped
                }
            }
        };
        // If no thread can be started, `batch` computes every batch on demand.
        drop(std::thread::Builder::new().spawn(prefetch));
        receiver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(name: &str, count: usize) -> ExampleSource {
        let example = |i: usize| TrainExample {
            question: format!("{name}{i}"),
            steps: Vec::new(),
            answer: i.to_string(),
        };
        ExampleSource::List { examples: Arc::new((0..count).map(example).collect()), seed: 1 }
    }

    #[test]
    fn a_mixture_keeps_its_shares_and_uses_lists_up() {
        let parts = vec![(list("a", 3000), 3.0), (list("b", 1000), 1.0)];
        let mixture = ExampleMixture::new(parts, 5).unwrap();
        assert_eq!(mixture.shares().iter().sum::<u64>(), MIXTURE_CYCLE);
        assert!(mixture.shares()[0].abs_diff(3072) <= 1);
        let source = ExampleSource::Mixture(mixture.clone());
        let batch = source.batch(0, MIXTURE_CYCLE as usize);
        let mut names: Vec<&str> = batch.iter().map(|(_, e)| e.question.as_str()).collect();
        assert!(names[..100].iter().any(|n| n.starts_with('a')));
        assert!(names[..100].iter().any(|n| n.starts_with('b')));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 4000, "an example was repeated before the list was used up");
        // Any part of the stream can be computed independently.
        assert_eq!(source.batch(1000, 50), batch[1000..1050]);
        let located: Vec<_> = (0..3 * MIXTURE_CYCLE).map(|i| mixture.locate(i)).collect();
        let mut distinct = located.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), located.len());
    }

    #[test]
    fn mixtures_without_sensible_weights_are_refused() {
        assert!(ExampleMixture::new(Vec::new(), 0).is_none());
        for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(ExampleMixture::new(vec![(list("a", 1), weight)], 0).is_none());
        }
        let tiny = vec![(list("a", 1), 1e-9), (list("b", 1), 1.0)];
        assert_eq!(ExampleMixture::new(tiny, 0).unwrap().shares(), [1, MIXTURE_CYCLE - 1]);
    }

    #[test]
    fn shuffling_is_a_permutation() {
        for count in [1, 2, 7, 64, 1000] {
            let mut seen: Vec<u64> = (0..count).map(|i| shuffled_index(i, count, 3)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..count).collect::<Vec<_>>());
        }
        let order = |seed| (0..100).map(|i| shuffled_index(i, 100, seed)).collect::<Vec<_>>();
        assert_ne!(order(1), order(2));
        assert_ne!(order(1), (0..100).collect::<Vec<_>>());
    }
}
