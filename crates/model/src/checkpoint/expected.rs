//! The tensors that a decoder needs, recorded from its own loader.
//!
//! A second list of names would have to be kept in sync with the loader. Instead the loader runs on
//! the same architecture with toy sizes, and every requested name and shape is recorded. The toy
//! sizes are distinct, so that each can be mapped back to the real size.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use tensor::Device;

use super::Checkpoint;
use crate::config::{Architecture, Config};
use crate::decoder::{Decoder, LmHead};
use crate::error::ModelError;
use crate::source::TensorSource;

/// A tensor that a decoder needs, by its canonical name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedTensor {
    /// The canonical name.
    pub name: String,
    /// Shape in the file.
    pub shape: Vec<usize>,
}

impl Checkpoint {
    /// The tensors of the checkpoint's decoder, in load order.
    pub fn expected_tensors(&self, head: LmHead) -> Result<Vec<ExpectedTensor>, ModelError> {
        let config = self.config();
        let toy = toy_config(config);
        let recorder = RecordingSource { checkpoint: self, requests: Mutex::default() };
        // A single thread requests them in order.
        let device = Device::cpu(Some(NonZeroUsize::MIN))?;
        device.run(|| Decoder::load(&device, &toy, &recorder, head))?;
        let real = |size: &usize| {
            dimensions(&toy)
                .iter()
                .zip(dimensions(config))
                .find(|(toy, _)| *toy == size)
                .map_or(*size, |(_, real)| real)
        };
        let named =
            recorder.requests.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter();
        Ok(named
            .map(|(name, shape)| ExpectedTensor { name, shape: shape.iter().map(real).collect() })
            .collect())
    }
}

/// The same architecture with toy sizes. GPT-2 has `heads * head_dim == width`.
fn toy_config(config: &Config) -> Config {
    let (heads, kv_heads, head_dim) =
        if config.architecture == Architecture::Gpt2 { (1, 1, 10) } else { (4, 2, 6) };
    Config {
        width: 10,
        heads,
        kv_heads,
        head_dim,
        ffn: 14,
        vocab: 13,
        context: 17,
        ..config.clone()
    }
}

/// Every size that occurs in a tensor's shape.
fn dimensions(config: &Config) -> [usize; 8] {
    let Config { width, heads, kv_heads, head_dim, ffn, vocab, context, .. } = *config;
    [width, 3 * width, ffn, vocab, context, heads * head_dim, kv_heads * head_dim, head_dim]
}

/// Records every requested tensor and returns zeros.
struct RecordingSource<'a> {
    checkpoint: &'a Checkpoint,
    requests: Mutex<Vec<(String, Vec<usize>)>>,
}

impl TensorSource for RecordingSource<'_> {
    fn has(&self, name: &str) -> bool {
        self.checkpoint.has(name)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.push((name.to_owned(), shape.to_vec()));
        Ok(vec![0.0; shape.iter().product()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};

    /// Reading every expected tensor with its expected shape uses every tensor of the decoder.
    #[test]
    fn expected_tensors_match_the_checkpoint() {
        for family in CheckpointFamily::ALL {
            let dir = tempfile::tempdir().unwrap();
            write_checkpoint(dir.path(), &CheckpointSpec { family, ..CheckpointSpec::default() })
                .unwrap();
            let checkpoint = Checkpoint::open(dir.path()).unwrap();
            for expected in checkpoint.expected_tensors(LmHead::With).unwrap() {
                checkpoint.tensor(&expected.name, &expected.shape).unwrap();
            }
            let block = |name: &String| {
                name.starts_with("h.") || name.starts_with("layers.") || name.contains("norm")
            };
            assert_eq!(
                checkpoint.unused_tensors().iter().filter(|name| block(name)).count(),
                0,
                "{family:?}"
            );
        }
    }
}
