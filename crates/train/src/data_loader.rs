//! Batches, made ahead of time by a thread of their own.
//!
//! The batch of a step is a function of the step, so that training can go on anywhere.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use model::Tokenizer;
use rayon::prelude::*;
use tensor::rng::philox;

use crate::corpus::{self, Split};
use crate::curriculum::Curriculum;
use crate::dataset::TrainExample;
use crate::error::TrainError;
use crate::example_encoder::{ExampleEncoder, LatentMarkers};
use crate::tokenized_example::TokenizedExample;

/// Where examples come from.
#[derive(Clone, Debug)]
pub enum ExampleSource {
    /// The built-in corpus: never the same problem twice.
    Corpus {
        /// Which problems.
        seed: u64,
    },
    /// A list, shuffled anew every time it is gone through.
    List {
        /// The examples.
        examples: Arc<Vec<TrainExample>>,
        /// Which orders.
        seed: u64,
    },
}

impl ExampleSource {
    fn batch(&self, first: u64, size: usize) -> Vec<(u64, TrainExample)> {
        match self {
            Self::Corpus { seed } => {
                let one = |index| (index, corpus::problem(Split::Train, *seed, index).into());
                (first..first + size as u64).into_par_iter().map(one).collect()
            }
            Self::List { examples, seed } => {
                let count = examples.len() as u64;
                let place = |index: u64| {
                    shuffled_index(index % count, count, seed.wrapping_add(index / count))
                };
                (first..first + size as u64)
                    .map(|index| (index, examples[place(index) as usize].clone()))
                    .collect()
            }
        }
    }
}

/// A permutation of `0..count`: four rounds of a Feistel network over the next even power of two,
/// walked until inside.
pub(crate) fn shuffled_index(index: u64, count: u64, seed: u64) -> u64 {
    let half = (64 - (count.max(2) - 1).leading_zeros()).div_ceil(2);
    let mask = (1u64 << half) - 1;
    let mut at = index;
    loop {
        let (mut left, mut right) = (at >> half, at & mask);
        for round in 0..4 {
            let mixed = u64::from(
                philox([right as u32, round, 0, 0], [seed as u32, (seed >> 32) as u32])[0],
            );
            (left, right) = (right, left ^ (mixed & mask));
        }
        at = left << half | right;
        if at < count {
            return at;
        }
    }
}

/// What a batch is made with.
#[derive(Clone)]
pub struct BatchSpec {
    /// Examples.
    pub source: ExampleSource,
    /// Their text to tokens.
    pub tokenizer: Arc<Tokenizer>,
    /// The markers.
    pub markers: LatentMarkers,
    /// What is thought and what is said.
    pub curriculum: Curriculum,
    /// Examples a batch.
    pub batch_size: usize,
    /// Batches in all, over which the curriculum goes.
    pub batches: u64,
    /// Draws of the curriculum.
    pub seed: u64,
    /// Positions that a lesson may take.
    pub context: usize,
}

impl BatchSpec {
    /// Batch number `at`.
    pub fn batch(&self, at: u64) -> Result<Vec<TokenizedExample>, TrainError> {
        let progress = at as f64 / self.batches.max(1) as f64;
        let marked = matches!(self.curriculum, Curriculum::Latent { .. });
        let scribe = ExampleEncoder {
            tokenizer: &self.tokenizer,
            markers: self.markers,
            with_markers: marked,
        };
        let lesson = |(index, example): &(u64, TrainExample)| {
            let lot = self.curriculum.sample(progress, example.steps.len(), self.uniforms(*index));
            let lesson = scribe.encode(*index as u32, example, lot)?;
            if lesson.len() > self.context {
                return Err(TrainError::TooLong {
                    id: *index,
                    length: lesson.len(),
                    context: self.context,
                });
            }
            Ok(lesson)
        };
        let examples = self.source.batch(at * self.batch_size as u64, self.batch_size);
        examples.par_iter().map(lesson).collect()
    }

    fn uniforms(&self, index: u64) -> [f64; 2] {
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let [a, b, ..] = philox([index as u32, (index >> 32) as u32, 0, u32::MAX], key);
        [a, b].map(|word| f64::from(word) / 4_294_967_296.0)
    }
}

/// Batches in order, made ahead.
pub struct DataLoader {
    spec: BatchSpec,
    next: u64,
    prefetched: Option<Receiver<Result<Vec<TokenizedExample>, TrainError>>>,
}

/// Batches that wait to be taken.
const PREFETCH: usize = 8;

impl DataLoader {
    /// A feed by a recipe.
    pub fn new(recipe: BatchSpec) -> Self {
        Self { spec: recipe, next: 0, prefetched: None }
    }

    /// The recipe.
    pub fn spec(&self) -> &BatchSpec {
        &self.spec
    }

    /// Batch number `at`: quick if it follows the one taken before.
    pub fn batch(&mut self, at: u64) -> Result<Vec<TokenizedExample>, TrainError> {
        if self.prefetched.is_none() || at != self.next {
            self.prefetched = Some(self.spawn_prefetch(at));
        }
        self.next = at + 1;
        match self.prefetched.as_ref().map(Receiver::recv) {
            Some(Ok(batch)) => batch,
            _ => self.spec.batch(at), // the thread is gone: it was the last one, or it died
        }
    }

    fn spawn_prefetch(&self, first: u64) -> Receiver<Result<Vec<TokenizedExample>, TrainError>> {
        let (sender, receiver) = sync_channel(PREFETCH);
        let recipe = self.spec.clone();
        std::thread::spawn(move || {
            for at in first..recipe.batches {
                if sender.send(recipe.batch(at)).is_err() {
                    return; // nobody takes any more
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
    fn an_order_holds_every_example_once() {
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
