//! Batches of tokenized examples, prefetched by a background thread.
//!
//! Batch `i` is a function of `i`, so that training resumes at any step.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use rayon::prelude::*;
use tensor::rng::philox;

use crate::corpus::{self, Split};
use crate::dataset::TrainExample;
use crate::error::TrainError;
use crate::methods::{ExampleEncoder, ExamplePlace};

/// Where examples come from.
#[derive(Clone, Debug)]
pub enum ExampleSource {
    /// The built-in corpus, an endless stream of problems.
    Corpus {
        /// Seed of the problems.
        seed: u64,
    },
    /// A list, reshuffled every epoch.
    List {
        /// The examples.
        examples: Arc<Vec<TrainExample>>,
        /// Seed of the orders.
        seed: u64,
    },
}

impl ExampleSource {
    /// Examples `first..first + size` of the stream, each with its index.
    fn batch(&self, first: u64, size: usize) -> Vec<(u64, TrainExample)> {
        let indices = first..first + size as u64;
        match self {
            Self::Corpus { seed } => {
                let example = |i| (i, corpus::problem(Split::Train, *seed, i).into());
                indices.into_par_iter().map(example).collect()
            }
            Self::List { examples, seed } => {
                let count = examples.len() as u64;
                let shuffled =
                    |i: u64| shuffled_index(i % count, count, seed.wrapping_add(i / count));
                indices.map(|i| (i, examples[shuffled(i) as usize].clone())).collect()
            }
        }
    }
}

/// Where a permutation of `0..count` takes `index`: four rounds of a Feistel network over the next
/// even power of two, repeated until the result is in range (cycle walking).
pub(crate) fn shuffled_index(index: u64, count: u64, seed: u64) -> u64 {
    let half = (64 - (count.max(2) - 1).leading_zeros()).div_ceil(2);
    let mask = (1u64 << half) - 1;
    let key = [seed as u32, (seed >> 32) as u32];
    let mut at = index;
    loop {
        let (mut left, mut right) = (at >> half, at & mask);
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
    /// Tokenizes them.
    pub encoder: E,
    /// Examples per batch.
    pub batch_size: usize,
    /// Batches in total, over which the curriculum progresses.
    pub batches: u64,
    /// Seed of the encoder's random numbers.
    pub seed: u64,
    /// Positions that an example may take.
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

    /// Two uniform numbers from [0, 1) for an example.
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

/// A batch, or why it cannot be made.
type Batch<E> = Result<Vec<<E as ExampleEncoder>::Encoded>, TrainError>;

/// Batches that are prepared ahead of the one in use.
const PREFETCH: usize = 8;

impl<E: ExampleEncoder + 'static> DataLoader<E> {
    /// A loader of the batches of a spec. Prefetching starts with the first batch.
    pub fn new(spec: BatchSpec<E>) -> Self {
        Self { spec: Arc::new(spec), next: 0, prefetched: None }
    }

    /// What tokenizes the examples.
    pub fn encoder(&self) -> &E {
        &self.spec.encoder
    }

    /// Batch `index`; prefetched if it follows the one before.
    pub fn batch(&mut self, index: u64) -> Batch<E> {
        if self.prefetched.is_none() || index != self.next {
            self.prefetched = Some(self.spawn_prefetch(index));
        }
        self.next = index + 1;
        match self.prefetched.as_ref().map(Receiver::recv) {
            Some(Ok(batch)) => batch,
            // The thread has ended: after the last batch, or by a panic.
            _ => self.spec.batch(index),
        }
    }

    fn spawn_prefetch(&self, first: u64) -> Receiver<Batch<E>> {
        let (sender, receiver) = sync_channel(PREFETCH);
        let spec = self.spec.clone();
        std::thread::spawn(move || {
            for index in first..spec.batches {
                if sender.send(spec.batch(index)).is_err() {
                    return; // the receiver is dropped
                }
            }
        });
        receiver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
