//! The record of one question, created by the sampling process and written by the process that owns
//! the run directory.
//!
//! These may be different processes. In serialized form a record is the line of `samples.jsonl`,
//! the line of `timings.jsonl`, then the thoughts as little-endian f32.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::RecordError;
use crate::sample::{Sample, Validate};
use schema::StageSeconds;

/// One question under one seed, with the data recorded in addition to its sample.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QuestionRecord {
    /// The line of `samples.jsonl`.
    pub sample: Sample,
    /// The seconds it took; zero if it was timed together with another question.
    pub seconds: StageSeconds,
    /// The thoughts of the trajectories in order, then those of the greedy one; empty unless they
    /// are recorded.
    pub latents: Vec<f32>,
}

impl QuestionRecord {
    /// Serializes the record for another process.
    pub fn to_bytes(&self) -> Result<Vec<u8>, RecordError> {
        let invalid = |source| RecordError::Transfer { source };
        let mut bytes = serde_json::to_vec(&self.sample).map_err(invalid)?;
        bytes.push(b'\n');
        bytes.extend(serde_json::to_vec(&self.seconds).map_err(invalid)?);
        bytes.push(b'\n');
        bytes.extend(self.latents.iter().flat_map(|x| x.to_le_bytes()));
        Ok(bytes)
    }

    /// The inverse of [`QuestionRecord::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut parts = bytes.splitn(3, |&byte| byte == b'\n');
        let mut part = || parts.next().unwrap_or_default();
        let sample = part();
        let seconds = part();
        let latents = part();
        let sample: Sample = parse(sample)?;
        sample.validate().map_err(|error| error.into_record_error(Path::new("a record")))?;
        let latents = latents.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        Ok(Self { sample, seconds: parse(seconds)?, latents: latents.collect() })
    }
}

fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, RecordError> {
    serde_json::from_slice(text).map_err(|source| RecordError::Transfer { source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrajectoryRecord;

    fn record() -> QuestionRecord {
        let trajectory = TrajectoryRecord {
            latent_steps: 1,
            text: "a\nb".into(),
            answer: Some("0.1".into()),
            process_rewards: Some(vec![0.1]),
            logprob: Some(-1.0e-7),
            ..TrajectoryRecord::default()
        };
        let sample = Sample { id: 3, seed: 7, trajectories: vec![trajectory], ..Sample::default() };
        let seconds = StageSeconds { total: 0.25, ..StageSeconds::default() };
        // The bytes of a thought may contain a line feed.
        QuestionRecord { sample, seconds, latents: vec![f32::from_bits(0x0a0a_0a0a), -2.5] }
    }

    #[test]
    fn bytes_round_trip() {
        let record = record();
        assert_eq!(QuestionRecord::from_bytes(&record.to_bytes().unwrap()).unwrap(), record);
        let bare = QuestionRecord::default();
        assert_eq!(QuestionRecord::from_bytes(&bare.to_bytes().unwrap()).unwrap(), bare);
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let bytes = record().to_bytes().unwrap();
        let lines = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let end = lines.map(|(i, _)| i).nth(1).unwrap();
        assert!((0..end).all(|length| QuestionRecord::from_bytes(&bytes[..length]).is_err()));
    }
}
